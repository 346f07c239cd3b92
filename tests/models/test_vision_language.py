"""A text with pictures: what is recorded, which tokens are which patch, the answer, and what is refused."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import ModelError, RecordingError, TextError
from manyheads.models.inputs.vision_language import shown_in_text
from manyheads.recording.media import ImageSpan
from manyheads.spec import VISION
from tests.models.eager import SHARP, assert_near, draw, eager_maps
from tests.models.tiny import tiny_gpt2, tiny_tokenizer
from tests.models.tiny_media import saved, some_picture, square, tiny_clip
from tests.models.tiny_vision_language import MARKS, READERS, SIDE, TEMPLATE, saved_llava, saved_qwen

QUESTION, ANSWER = "what is the red cat ?", "a small dog"
TOKENS = {"qwen2.5": MARKS[2], "qwen2": MARKS[2], "llava": "<image>", "paligemma": "<image>"}
every_reader = pytest.mark.parametrize("name", sorted(READERS))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("readers")


@pytest.fixture
def reading(fresh, folders):
    """`reading("llava")`: a model with fresh weights, saved once and loaded with its processor."""

    def make(name):
        folder = folders / name
        return mh.load(folder if folder.is_dir() else READERS[name](folder, draw(fresh)))

    return make


def prompt_of(name, count):
    """What the processor is given, by hand."""
    token = TOKENS[name]
    around = f"{MARKS[0]}{token}{MARKS[1]}" if name.startswith("qwen") else token
    images = around * count
    return f"user : {images}{QUESTION} . he said : " if name == "qwen2" else images + QUESTION


def inputs_of(lm, name, pictures, answer=None):
    """The model's inputs as its own processor makes them, with the answer's ids behind them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PaliGemma's processor has one of NumPy
        made = dict(lm.processor(text=[prompt_of(name, len(pictures))], images=pictures, return_tensors="pt"))
    made.pop("labels", None)
    if answer is not None:
        ids = torch.tensor([lm.tokenizer.convert_tokens_to_ids(answer.split())])
        behind = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": 0 * ids}
        behind["token_type_ids"] = torch.ones_like(ids)  # PaliGemma's suffix, which its prefix does not read
        made |= {key: torch.cat([made[key], behind[key]], 1) for key in behind if key in made}
    return {key: value.double() if value.is_floating_point() else value for key, value in made.items()}


@pytest.mark.turns(4)
@pytest.mark.parametrize(("name", "answer"), [*((name, ANSWER) for name in sorted(READERS)), ("paligemma", None)])
@pytest.mark.sampled(2)
def test_every_weight_is_the_models_own(name, answer, reading, fresh):
    lm, picture = reading(name), some_picture(fresh)
    rec = mh.record(lm, QUESTION, image=picture, answer=answer)
    inputs = inputs_of(lm, name, [picture], answer)
    maps = eager_maps(lm.model, **inputs)
    assert list(rec.stacks) == [""] and len(rec.layers) == len(maps) == 2 and lm.spec.shape == {"": (4, 4)}
    assert rec.tokens.ids.tolist() == inputs["input_ids"].tolist()
    for layer, want in zip(rec.layers, maps, strict=True):
        assert_near(layer.weights(), want[0])
    assert max(float(want.max()) for want in maps) > SHARP
    reads_ahead = bool((maps[0][0].triu(1) > 0).any())
    assert reads_ahead == (name == "paligemma") and not any(layer.mask.dense is not None for layer in rec.layers)
    if answer is not None:
        assert [rec.tokens.pieces[0][place] for place in range(*rec.answer.indices(99))] == ANSWER.split()
        assert not bool((maps[0][0, :, : rec.answer.start, rec.answer] > 0).any())  # nobody read it beforehand


@pytest.mark.turns(4)
@every_reader
@pytest.mark.sampled(2)
def test_each_picture_has_its_run_of_image_tokens_by_the_models_grid(name, reading, fresh):
    lm, pictures = reading(name), [some_picture(fresh), some_picture(fresh, 61, 40)]
    rec = mh.record(lm, QUESTION, image=pictures)
    inputs = inputs_of(lm, name, pictures)
    image_id, ids = lm.tokenizer.convert_tokens_to_ids(TOKENS[name]), inputs["input_ids"][0]
    if name.startswith("qwen"):
        grids = [(rows // 2, columns // 2) for _, rows, columns in inputs["image_grid_thw"].tolist()]
        sizes = [(16 * rows, 16 * columns) for rows, columns in grids]
        assert len(set(grids)) == 2
    else:
        grids, sizes = [(5, 5)] * 2, [(SIDE, SIDE)] * 2
    assert [((image.rows, image.columns), image.size) for image in rec.images] == list(zip(grids, sizes, strict=True))
    ours = torch.zeros(len(ids), dtype=torch.bool)
    for image in rec.images:
        assert not ours[image.span].any() and image.grid.patches == slice(0, image.rows * image.columns)
        ours[image.span] = True
    assert torch.equal(ours, ids == image_id) and torch.equal(rec.tokens.image[0], ours)
    assert rec.images[0].begin < rec.images[1].begin
    assert bool(rec.tokens.special[0][ours].all()) and "image" not in rec.tokens.texts[0]
    place = rec.images[1].begin + rec.images[1].columns + 1
    assert rec.tokens.pieces[0][place] == "1:r1c1"
    with pytest.raises(RecordingError, match=r"has no answer: record\(lm, text, image=..., answer=...\) has"):
        _ = rec.answer


@pytest.mark.turns(4)
@every_reader
@pytest.mark.sampled(2)
def test_a_changed_patch_changes_the_token_at_its_row_and_column(name, reading, fresh):
    lm = reading(name)
    with torch.no_grad():  # patches of a tower that does not attend are not mixed
        for path, weight in lm.model.named_parameters():
            if ("vision" in path or "visual" in path) and (".out_proj." in path or ".attn.proj." in path):
                weight.zero_()
    height, width = (48, 80) if name.startswith("qwen") else (SIDE, SIDE)  # as the model reads it: nothing is resized
    picture = some_picture(fresh, height, width)
    before = mh.record(lm, QUESTION, image=picture)
    image = before.images[0]
    assert image.size == (height, width) and np.abs(shown_in_text(lm, picture, image.size) - picture * 1.0).max() <= 1
    for row, column in ((0, 0), (1, image.columns - 1), (image.rows - 1, 1)):
        changed = picture.copy()
        changed[image.grid.pixels(row, column)] ^= 0xFF
        after = mh.record(lm, QUESTION, image=changed)
        moved = (after.layers[0].k - before.layers[0].k).abs().amax((0, 1, 3)) > 1e-9
        assert moved.nonzero()[:, 0].tolist() == [image.begin + image.grid.position(row, column)]


@pytest.mark.turns(4)
@every_reader
@pytest.mark.sampled(2)
def test_what_the_model_writes_is_its_own_choice_read_again(name, reading, fresh):
    lm, picture = reading(name), some_picture(fresh)
    rec = mh.record(lm, QUESTION, image=picture, generate=4)
    begin, ids = rec.answer.start, rec.tokens.ids[0]
    assert len(ids) - begin == 4 and rec.provenance["answer"] == "written by the model"
    inputs = inputs_of(lm, name, [picture], " ".join(lm.tokenizer.convert_ids_to_tokens(ids[begin:])))
    with torch.no_grad():
        logits = lm.model(**inputs).logits[0]
    assert torch.equal(logits[begin - 1 : -1].argmax(-1), ids[begin:])
    want = eager_maps(lm.model, **inputs)
    assert_near(rec.layers[1].weights(), want[1][0])


@pytest.mark.turns(4)
def test_the_prompt_is_the_callers_the_templates_or_pictures_first(reading, fresh):
    lm, picture = reading("llava"), some_picture(fresh)
    own = mh.record(lm, "the cat <image> said", image=picture)
    assert own.images[0].begin == 2 and own.provenance["prompt"] == "as it was given, with its image tokens"
    assert "no chat template" in mh.record(lm, QUESTION, image=picture).provenance["prompt"]
    with pytest.raises(TextError, match=r"the text has 1 image tokens \(<image>\) for 2 pictures: give one for each"):
        mh.record(lm, "the cat <image> said", image=[picture, picture])
    qwen = reading("qwen2")
    templated = mh.record(qwen, QUESTION, image=picture)
    assert templated.provenance["prompt"] == "in the processor's chat template, pictures first"
    qwen.processor.chat_template = TEMPLATE.replace("he said", "she said")  # before the tokenizer's own
    by_processor = mh.record(qwen, QUESTION, image=picture)
    assert by_processor.images == templated.images and by_processor.tokens.pieces[0][-3:] == ("she", "said", ":")
    qwen.processor.chat_template = "{{ messages[0]['content'][-1]['text'] }}"
    with pytest.raises(TextError, match="chat template makes 0 image tokens for 1 pictures: write the whole prompt"):
        mh.record(qwen, QUESTION, image=picture)


@pytest.mark.turns(4)
def test_a_file_keeps_where_the_pictures_and_the_answer_are(reading, fresh, tmp_path):
    rec = mh.record(reading("qwen2.5"), QUESTION, image=[some_picture(fresh), some_picture(fresh, 61, 40)], answer="a")
    rec.save(tmp_path / "a.heads")
    opened = mh.open_recording(tmp_path / "a.heads")
    assert opened.images == rec.images and opened.answer == rec.answer
    assert torch.equal(opened.layers[0].tokens.image, rec.tokens.image)
    for images, answers in (
        (((ImageSpan(0, 2, 99, (32, 48)),),), (5,)),
        (((ImageSpan(0, 0, 2, (32, 48)),),), (5,)),
        (((ImageSpan(0, 1, 2, (32, 48)),),), (500,)),
    ):
        wrong = replace(rec, tokens=replace(rec.tokens, images=images, answers=answers))
        with pytest.raises(RecordingError, match="cannot be saved, its tokens does not fit together"):
            wrong.save(tmp_path / "b.heads")
    assert not (tmp_path / "b.heads").exists()


@pytest.mark.turns(4)
def test_the_vision_tower_is_a_stack_of_its_own_and_a_model_of_pictures_by_itself(reading, fresh):
    lm, picture = reading("llava"), some_picture(fresh)
    assert mh.record(lm, QUESTION, image=picture).provenance["vision tower"].startswith("not kept")
    rec = mh.record_call(lm.model, **inputs_of(lm, "llava", [picture]))
    assert {stack: len(layers) for stack, layers in rec.stacks.items()} == {VISION: 3, "": 2}
    alone = mh.load(lm.model.model.vision_tower, processor=lm.processor)
    tower = mh.record(alone, image=picture)
    assert (tower.grid.rows, tower.grid.prefix) == (5, ("[CLS]",)) and tower.stacks.keys() == {""}
    torch.testing.assert_close(tower.layers[1].weights(), rec.stacks[VISION][1].weights(), rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.turns(4)
def test_what_cannot_be_read_together_is_refused(reading, fresh, tmp_path):
    picture, lm = some_picture(fresh), reading("llava")
    with pytest.raises(ModelError, match=r"reads pictures among the tokens of a text: give it a text too, as in"):
        mh.record(lm, image=picture)
    with pytest.raises(RecordingError, match="2 texts came with image=: give one text, with all its pictures in a"):
        mh.record(lm, [QUESTION, QUESTION], image=picture)
    with pytest.raises(TextError, match=r"the text has \d+ tokens, of which pictures are most, but .* has 128 pos"):
        mh.record(lm, QUESTION, image=[picture] * 6)
    with pytest.raises(RecordingError, match="answer= is for a text with pictures: give it with a text and image="):
        mh.record(lm, QUESTION, answer="a cat")
    with pytest.raises(RecordingError, match="answer= and generate= are two answers: give one of them"):
        mh.record(lm, QUESTION, image=picture, answer="a cat", generate=2)
    with pytest.raises(TextError, match="the text is empty: give at least one word"):
        mh.record(lm, QUESTION, image=picture, answer=" ")
    with pytest.raises(RecordingError, match="the list is empty: give at least one"):
        mh.record(lm, QUESTION, image=[])
    writer = mh.load(tiny_gpt2(), tokenizer=tiny_tokenizer(special_tokens=False))
    with pytest.raises(ModelError, match="reads text alone: give exactly one of texts, image= and audio="):
        mh.record(writer, QUESTION, image=picture)
    seeing = mh.load(saved(tmp_path / "clip", tiny_clip(), square()))
    with pytest.raises(ModelError, match="reads pictures alone: give exactly one of texts, image= and audio="):
        mh.record(seeing, QUESTION, image=picture)


@pytest.mark.turns(4)
def test_a_model_without_a_processor_of_both_says_so(fresh, tmp_path):
    folder = saved_llava(tmp_path / "llava")
    for lm in (mh.load(folder, processor=False), mh.load(folder, processor=square())):
        had = "no processor" if lm.processor is None else "a CLIPImageProcessorPil"
        with pytest.raises(ModelError, match=f"has {had}, and a text with pictures needs one of both: save it beside"):
            mh.record(lm, QUESTION, image=some_picture(fresh))
    # Read from the files, such a processor is missing with the reason.
    settings = tmp_path / "llava" / "processor_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "image_token": 3}))
    assert "no text with pictures, since their processor failed" in mh.load(folder).because
    given = mh.load(mh.load(saved_llava(tmp_path / "whole")).model, processor=mh.load(tmp_path / "whole").processor)
    assert mh.record(given, QUESTION, image=some_picture(fresh)).images[0].rows == 5


def test_tokens_that_are_not_the_patches_of_one_picture_are_refused(reading, fresh, tmp_path, monkeypatch):
    picture = some_picture(fresh)
    with_class = mh.load(saved_llava(tmp_path / "full", strategy="full"))
    with pytest.raises(ModelError, match=r"26 image tokens are no grid of square patches of 1 x 40 x 40. Which patch"):
        mh.record(with_class, QUESTION, image=picture)
    lm = reading("llava")
    plain = lm.processor.__class__.__call__

    def cut(self, **kwargs):
        made = plain(self, **kwargs)
        return {**made, "pixel_values": made["pixel_values"].repeat(3, 1, 1, 1)}

    monkeypatch.setattr(lm.processor.__class__, "__call__", cut)
    with pytest.raises(ModelError, match=r"1 pictures are cut into several crops each \(pixel_values of \(3, 3, 40"):
        mh.record(lm, QUESTION, image=picture)

    def broken(self, **kwargs):
        made = plain(self, **kwargs)
        ids = made["input_ids"]
        return {**made, "input_ids": torch.cat([ids[:, :5], ids[:, -1:], ids[:, 5:]], 1)}

    monkeypatch.setattr(lm.processor.__class__, "__call__", broken)
    with pytest.raises(ModelError, match="the 5 x 5 patches of a picture are no single run of tokens"):
        mh.record(lm, QUESTION, image=picture)

    def stumbling(self, **kwargs):
        raise ValueError("no such thing")

    monkeypatch.setattr(lm.processor.__class__, "__call__", stumbling)
    with pytest.raises(ModelError, match="LlavaProcessor cannot read this text with pictures: no such thing"):
        mh.record(lm, QUESTION, image=picture)
    monkeypatch.undo()
    lm.model.resampler = torch.nn.Identity()
    with pytest.raises(ModelError, match="makes tokens of a picture that are no patches of it"):
        mh.record(lm, QUESTION, image=picture)


def test_a_film_is_refused(fresh, tmp_path, monkeypatch):
    lm = mh.load(saved_qwen(tmp_path / "qwen"))
    plain = lm.processor.image_processor.__class__.__call__

    def film(self, *args, **kwargs):
        made = plain(self, *args, **kwargs)
        made["image_grid_thw"] = made["image_grid_thw"] * torch.tensor([2, 1, 1])
        return made

    monkeypatch.setattr(lm.processor.image_processor.__class__, "__call__", film)
    with pytest.raises(ModelError, match="1 pictures are cut into 1 crops, or read as films"):
        mh.record(lm, QUESTION, image=some_picture(fresh))
