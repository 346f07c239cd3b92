"""Pictures and sounds: what is read, how positions are named, and what is refused."""

import json
import warnings
import wave
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads as mh
from manyheads.errors import FileAccessError, ModelError, RecordingError, ShapeError, TextError
from manyheads.inputs.media import picture_of, shown, sounds_of
from manyheads.inputs.media.pictures_and_sounds import settled
from manyheads.inputs.media.positions import look
from manyheads.models.describe import PICTURES as OF_PICTURES
from manyheads.models.describe import SOUNDS, TEXT, sense_of
from manyheads.recording.media import frames_of, grid_of
from manyheads.spec import VISION
from manyheads.texts.tokens import ImageSpan
from tests.models.eager import SHARP, assert_near, draw, eager_maps, implementation
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_tokenizer
from tests.models.tiny_media import (
    MARKS,
    PICTURES,
    RATE,
    READERS,
    SIDE,
    TEMPLATE,
    pixels,
    saved,
    saved_llava,
    saved_qwen,
    some_picture,
    some_sound,
    square,
    tiny_clip,
    tiny_vit,
    tiny_wav2vec2,
    tiny_whisper,
    wide,
)
from tests.refusals import refuses

# ------------------------------------------------------------------------------------------------------------- loading


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_model_of_pictures_needs_no_tokenizer_and_has_a_spec(name, seeing):
    lm = seeing(name)
    assert lm.tokenizer is None and lm.processor is not None and sense_of(lm.model) == OF_PICTURES
    assert f"pictures by {type(lm.processor).__name__}, which lies beside it" in lm.because
    heads = [(site.num_heads, site.qk_dim) for site in lm.spec.sites if site.stack == ""]
    assert heads == ([(2, 6)] * 2 + [(3, 8)] * 2 if name == "swin" else [(3, 8)] * 2)


def test_models_of_sounds_have_a_spec_with_and_without_a_processor(whisper, wav2vec2, fresh):
    for lm in (whisper(), mh.load(tiny_whisper())):
        assert lm.spec.shape == {"encoder": (3, 3), "decoder": (3, 3), "cross": (3, 3)}
    for lm in (wav2vec2(), mh.load(tiny_wav2vec2())):
        assert lm.spec.shape == {"": (3, 3)} and sense_of(lm.model) == SOUNDS
    assert whisper().processor.feature_size == 16


def test_without_a_processor_inputs_must_be_ones_own(fresh, tmp_path):
    lm = mh.load(saved(tmp_path / "bare", tiny_vit(draw(fresh)), None))
    assert lm.processor is None and lm.spec.shape == {"": (3, 3)}
    with pytest.raises(ModelError, match=r"has no processor to make inputs of pictures: .* load it with\s+processor="):
        mh.record(lm, mh.Inputs(image=some_picture(fresh)))
    (tmp_path / "bare" / "preprocessor_config.json").write_text('{"image_processor_type": "NoSuch"}')
    broken = mh.load(tmp_path / "bare")
    assert broken.processor is None and "its processor of pictures cannot be used" in broken.because
    given = mh.load(tmp_path / "bare", processor=wide())
    assert grid_of(mh.record(given, mh.Inputs(image=some_picture(fresh)))).rows == 3
    assert mh.load(tmp_path / "bare", processor=False).processor is None
    with pytest.raises(ModelError, match="processor=3 is not a processor of pictures or sounds: give one in hand"):
        mh.load(tmp_path / "bare", processor=3)


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_model_says_what_it_reads_which_is_exactly_one_of_texts_image_and_audio(seeing, fresh, whisper):
    lm, picture = seeing("vit"), some_picture(fresh)
    refuses(TextError, "give a text, or a list of texts. Or give one of image= and audio=", mh.record, lm, None)
    with pytest.raises(RecordingError, match="exactly one of texts, image= and audio=: texts and audio= came"):
        mh.record(lm, mh.Inputs("a cat", audio=picture))
    with pytest.raises(RecordingError, match="sampling_rate= and transcript= are for sounds"):
        mh.record(lm, mh.Inputs(image=picture, sampling_rate=RATE))
    with pytest.raises(ModelError, match=r"vit \(ViTModel\) reads pictures, not text: give mh.Inputs\(image="):
        mh.record(seeing("vit"), "a cat")
    with pytest.raises(ModelError, match=r"reads pictures, not sounds: give mh.Inputs\(image="):
        mh.record(seeing("vit"), mh.Inputs(audio=some_sound(fresh, 0.1), sampling_rate=RATE))
    refuses(
        ModelError,
        r"reads sounds, not pictures: give mh.Inputs\(audio=",
        mh.record,
        whisper(),
        mh.Inputs(image=some_picture(fresh)),
    )
    bert = mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    assert sense_of(bert.model) == TEXT
    with pytest.raises(ModelError, match=r"BertModel.* reads text, not pictures: give it a text"):
        mh.record(bert, mh.Inputs(image=some_picture(fresh)))
    with pytest.raises(ModelError, match=r"'vit' is a str, not a loaded model: load it first, as mh.load\('vit'\)"):
        mh.record("vit", mh.Inputs(image=some_picture(fresh)))


def test_what_is_no_picture_is_refused_in_a_line(seeing, fresh, tmp_path):
    lm = seeing("vit")
    (tmp_path / "notes.txt").write_text("no picture")
    good = tmp_path / "good.png"
    Image.fromarray(some_picture(fresh)).save(good)
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:-400])
    for what, error, said in [
        (tmp_path / "none.png", FileAccessError, r"cannot read .*none\.png: there is no such file"),
        (tmp_path, FileAccessError, "it is a folder"),
        (tmp_path / "notes.txt", FileAccessError,
         r"notes\.txt is not a picture that can be read: give a \.png or \.jpg"),
        (tmp_path / "cut.png", FileAccessError, r"cut\.png is a damaged picture"),
        (np.zeros((3, 24, 40), np.uint8), ShapeError,
         r"\(3, 24, 40\) is not a picture: .*permute\(1, 2, 0\) puts them"),
        (np.zeros((24, 40), np.uint8), ShapeError, r"\(24, 40\) is not a picture: give \[height, width, 3\]\.$"),
        (np.full((24, 40, 3), 7.0), ShapeError, "float64 values from 7.0 to 7.0 cannot be read: give uint8"),
        (np.full((24, 40, 3), np.nan), ShapeError, "cannot be read"),
        (7, RecordingError, "a int is not a picture: give a path, a PIL image, or an array"),
        ([], RecordingError, "the list is empty: give at least one"),
    ]:  # fmt: skip
        refuses(error, said, lambda what=what: mh.record(lm, mh.Inputs(image=what)))


def test_what_is_no_sound_is_refused_in_a_line(whisper, wav2vec2, fresh, tmp_path):
    lm, sound = whisper(), some_sound(fresh, 0.2)
    (tmp_path / "a.wav").write_bytes(b"RIFF no sound")
    for what, rate, error, said in [
        (sound, None, RecordingError, "samples it has a second: give sampling_rate=, the model hears 16,000"),
        (sound, 44_100, RecordingError, r"has 44,100 samples a second, the model hears 16,000: resample it first"),
        (np.zeros((2, 9), np.float32), RATE, ShapeError, r"shape \(2, 9\), is not a sound: give one channel"),
        (np.full(9, np.nan), RATE, ShapeError, "NaN or infinite samples"),
        (tmp_path / "none.wav", None, FileAccessError, r"none\.wav: there is no such file"),
        (tmp_path / "a.wav", None, FileAccessError,
         r"cannot read .*a\.wav as a sound .*: save it as a \.wav of 16-bit"),
        (some_sound(fresh, 2.5), RATE, RecordingError, "sound 0 is 2.5 s long, and whisper hears at most 2 s at once"),
    ]:  # fmt: skip
        refuses(error, said, lambda w=what, r=rate: mh.record(lm, mh.Inputs(audio=w, sampling_rate=r)))
    tokens = mh.load(lm.model, processor=lm.processor, tokenizer=tiny_tokenizer(special_tokens=False))
    refuses(
        TextError, "transcript= is empty", mh.record, tokens, mh.Inputs(audio=sound, sampling_rate=RATE, transcript=" ")
    )
    with pytest.raises(TextError, match="the transcript has 61 tokens, but the decoder of .* has 50: shorten it"):
        mh.record(tokens, mh.Inputs(audio=sound, sampling_rate=RATE, transcript="cat " * 60))
    unmasked = wav2vec2(mask=False)
    with pytest.raises(RecordingError, match="different lengths, .* would hear the padding: record them one by one"):
        mh.record(unmasked, mh.Inputs(audio=[sound, sound[:900]], sampling_rate=RATE))
    with pytest.raises(RecordingError, match="transcript= is for a model with a decoder"):
        mh.record(unmasked, mh.Inputs(audio=sound, sampling_rate=RATE, transcript="a cat"))


GRIDDED = sorted(set(PICTURES) - {"swin"})
PREFIX = {
    "vit": ("[CLS]",), "deit": ("[CLS]", "[DIST]"), "dinov2": ("[CLS]", "reg1", "reg2", "reg3", "reg4"),
    "dinov3": ("[CLS]", "reg1", "reg2"), "clip": ("[CLS]",), "siglip": (), "yolos": ("[CLS]",),
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", GRIDDED)
def test_weights_are_the_models_own(name, attention, seeing, fresh):
    lm, pictures = seeing(name), [some_picture(fresh), some_picture(fresh, 47, 31)]
    with implementation(lm.model, attention):
        rec = mh.record(lm, mh.Inputs(image=pictures))
    maps = eager_maps(lm.model, pixel_values=pixels(lm, pictures))
    assert len(rec.stacks[""]) == len(maps) and max(float(one.max()) for one in maps) > SHARP
    for layer, own in zip(rec.stacks[""], maps, strict=True):
        for text in range(2):
            assert_near(layer.weights(text=text), own[text])
    assert not torch.equal(rec.stacks[""][0].weights(text=0), rec.stacks[""][0].weights(text=1))


@pytest.mark.parametrize("name", GRIDDED)
def test_tokens_around_the_grid_are_found_and_named(name, seeing, fresh):
    rec = mh.record(seeing(name), mh.Inputs(image=[some_picture(fresh)] * 2))
    grid = grid_of(rec)
    assert (grid.rows, grid.columns) == ((5, 5) if name in ("clip", "siglip") else (3, 5))
    assert grid.prefix == PREFIX[name]
    assert grid.suffix == (tuple(f"detection{i}" for i in range(1, 6)) if name == "yolos" else ())
    layer = rec.stacks[""][0]
    assert layer.tokens.pieces == (grid.names,) * 2 and layer.lengths.tolist() == [grid.num_positions] * 2
    assert layer.tokens.special[0].nonzero()[:, 0].tolist() == sorted(grid.others.values())


@pytest.mark.slow
def test_only_the_pixels_of_a_patch_change_its_position(seeing, fresh):
    """Every pixel that the grid gives a patch, and none besides: seen in the first layer's queries."""
    for name in GRIDDED:
        lm = seeing(name)
        grid = grid_of(mh.record(lm, mh.Inputs(image=some_picture(fresh))))
        values = pixels(lm, [some_picture(fresh)])
        before = look(lm.model, lm.name, {"pixel_values": values}).call.q
        for row, column in ((0, 0), (1, 3), (grid.rows - 1, grid.columns - 1)):
            down, across = grid.pixels(row, column)
            corners = ((down.start, across.start), (down.stop - 1, across.stop - 1), (down.start, across.stop - 1))
            for y, x in corners:
                changed = values.clone()
                changed[:, :, y, x] += 3
                off = (look(lm.model, lm.name, {"pixel_values": changed}).call.q - before).abs().amax((0, 1, 3))
                assert off.argmax() == grid.position(row, column), (name, row, column)
                off[grid.position(row, column)] = 0
                assert off.max() < 1e-4


def test_a_picture_of_another_shape_has_another_grid(seeing, fresh, tmp_path):
    lm = seeing("dinov2")
    processor = type(lm.processor)(size={"height": 48, "width": 16})
    tall = mh.load(lm.model, processor=processor)
    rec = mh.record(tall, mh.Inputs(image=some_picture(fresh)))
    assert (grid_of(rec).rows, grid_of(rec).columns, grid_of(rec).picture) == (6, 2, (48, 16))
    with pytest.raises(ModelError, match=r"could not read its input: ValueError: Input image size \(48\*16\)"):
        mh.record(mh.load(seeing("vit").model, processor=processor), mh.Inputs(image=some_picture(fresh)))


def test_windows_have_no_grid_and_weights_all_the_same(seeing, fresh):
    lm, picture = seeing("swin"), some_picture(fresh)
    rec = mh.record(lm, mh.Inputs(image=picture))
    refuses(RecordingError, "no grid of patches: its layers attend within windows: .* 16 of 16 posi", grid_of, rec)
    maps = eager_maps(lm.model, pixel_values=pixels(lm, [picture]))  # of the second layer of each stage, the shifted
    for layer, own in zip(rec.layers[1::2], maps, strict=True):
        assert len(own) == len(layer.lengths) > 1
        for text, one in enumerate(own):
            assert_near(layer.weights(text=text), one)


def test_a_later_layer_with_other_positions_takes_the_grid_away(seeing, fresh):
    rec = mh.record(seeing("vit"), mh.Inputs(image=some_picture(fresh)))
    assert settled(rec) is rec
    layer = rec.layers[1]
    fewer = replace(layer, q=layer.q[:, :, :4], lse=layer.lse[:, :, :4])
    less = settled(type(rec)({"": [rec.layers[0], fewer]}, rec.tokens, rec.provenance))
    refuses(RecordingError, r"layers\.1\.attention has 4 positions, the first layer 16", grid_of, less)


def test_patches_that_are_mixed_before_the_first_layer_are_no_grid(fresh):
    model = tiny_vit(draw(fresh))
    mixed = model.embeddings.register_forward_hook(lambda module, args, out: out + out.mean(1, keepdim=True))
    lm = mh.load(model, processor=wide())
    with pytest.raises(RecordingError, match="patches are mixed before the first layer, or are not in reading order"):
        grid_of(mh.record(lm, mh.Inputs(image=some_picture(fresh))))
    mixed.remove()
    flipped = model.embeddings.register_forward_hook(lambda module, args, out: out.flip(1))
    refuses(RecordingError, "not in reading order", grid_of, mh.record(lm, mh.Inputs(image=some_picture(fresh))))
    flipped.remove()
    assert grid_of(mh.record(lm, mh.Inputs(image=some_picture(fresh)))).rows == 3


def test_a_look_leaves_the_model_as_it_was(seeing, fresh):
    lm = seeing("dinov2")
    before = {name: value.clone() for name, value in lm.model.state_dict().items()}
    mh.record(lm, mh.Inputs(image=some_picture(fresh)))
    assert all(torch.equal(value, before[name]) for name, value in lm.model.state_dict().items())
    assert not any(module._forward_hooks for module in lm.model.modules())


def test_a_path_an_image_and_arrays_of_the_same_picture_give_the_same_recording(seeing, fresh, tmp_path):
    lm, array = seeing("vit"), some_picture(fresh)
    Image.fromarray(array).save(tmp_path / "a.png")
    ways = [str(tmp_path / "a.png"), tmp_path / "a.png", Image.fromarray(array), torch.from_numpy(array)]
    ways += [array / 255, (array / 255).astype(np.float32)]
    want = mh.record(lm, mh.Inputs(image=array))
    for way in ways:
        assert torch.equal(mh.record(lm, mh.Inputs(image=way)).layers[1].q, want.layers[1].q)
    together = mh.record(lm, mh.Inputs(image=ways))
    assert len(together.tokens.lengths) == 6


def test_a_picture_is_turned_upright_as_the_camera_says(fresh, tmp_path):
    array = some_picture(fresh, 16, 24)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    Image.fromarray(array).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(np.asarray(picture_of(tmp_path / "a.png")), np.rot90(array, -1))


def test_the_picture_that_is_shown_is_what_the_model_reads(seeing, fresh):
    for name in ("vit", "clip"):
        lm, picture = seeing(name), some_picture(fresh)
        seen = shown(lm, picture)
        want = pixels(lm, [picture])[0]
        mean, std = (torch.tensor(getattr(lm.processor, each))[:, None, None] for each in ("image_mean", "image_std"))
        got = (torch.from_numpy(seen).permute(2, 0, 1) / 255 - mean) / std
        assert seen.dtype == np.uint8 and float((got - want).abs().max()) < 1 / 255 / float(std.min())


def test_saved_and_opened_it_knows_its_grid(seeing, fresh, tmp_path):
    rec = mh.record(seeing("deit"), mh.Inputs(image=some_picture(fresh)))
    rec.save(tmp_path / "picture.heads")
    again = mh.open_recording(tmp_path / "picture.heads")
    assert grid_of(again) == grid_of(rec) and again.tokens.pieces == rec.tokens.pieces
    assert torch.equal(again.layers[1].weights(), rec.layers[1].weights())


def test_whisper_has_its_three_stacks_exactly(whisper, fresh):
    lm = whisper(tokenizer=tiny_tokenizer(special_tokens=False))
    sounds = [some_sound(fresh, 1.3), some_sound(fresh, 0.7)]
    rec = mh.record(lm, mh.Inputs(audio=sounds, sampling_rate=RATE, transcript="the cat sat on the mat"))
    features = lm.processor(sounds, sampling_rate=RATE, return_tensors="pt")["input_features"]
    ids = rec.stacks["decoder"][0].tokens.ids
    assert ids[0].tolist() == [2, *lm.tokenizer("the cat sat on the mat")["input_ids"]]
    with implementation(lm.model, "eager"), torch.no_grad():
        own = lm.model(input_features=features, decoder_input_ids=ids, output_attentions=True)
    wanted = {"encoder": own.encoder_attentions, "decoder": own.decoder_attentions, "cross": own.cross_attentions}
    assert float(own.cross_attentions[0].max()) > SHARP and list(rec.stacks) == list(wanted)
    for stack, maps in wanted.items():
        for layer, one in zip(rec.stacks[stack], maps, strict=True):
            for text in range(2):
                assert_near(layer.weights(text=text), one[text])
    assert rec.provenance["decoder"] == "a transcript that was given"
    assert rec.stacks["encoder"][0].tokens.pieces[0][:3] == ("0.00s", "0.02s", "0.04s")


def test_wav2vec2_sounds_of_two_lengths_are_each_as_long_as_they_are(wav2vec2, fresh):
    lm, sounds = wav2vec2(), [some_sound(fresh, 1.25), some_sound(fresh, 0.6)]
    rec = mh.record(lm, mh.Inputs(audio=sounds, sampling_rate=RATE))
    frames = frames_of(rec)
    assert (frames.count, frames.seconds_per_frame, frames.window_seconds) == (62, 0.02, 0.025)
    assert rec.tokens.lengths.tolist() == [62, 29] and frames.sound_seconds == (1.25, 0.6)
    inputs = lm.processor(sounds, sampling_rate=RATE, return_tensors="pt", padding=True)
    maps = eager_maps(lm.model, **inputs)
    assert max(float(own.max()) for own in maps) > 5 / 62, "rows that read nearly all alike would prove little"
    for layer, own in zip(rec.layers, maps, strict=True):
        for text, length in enumerate((62, 29)):
            assert_near(layer.weights(text=text), own[text, :, :length, :length])
    alone = mh.record(lm, mh.Inputs(audio=sounds[1], sampling_rate=RATE))
    for one, many in zip(alone.layers, rec.layers, strict=True):
        assert_near(many.weights(text=1), one.weights())


def test_frames_hear_the_samples_that_they_say(wav2vec2, fresh):
    """Its own samples, from the first to the last, change what the convolutions make of a frame; others leave it."""
    lm, sound = wav2vec2(), torch.from_numpy(some_sound(fresh, 0.5))[None]
    frames = frames_of(mh.record(lm, mh.Inputs(audio=sound[0].numpy(), sampling_rate=RATE)))
    with torch.no_grad():
        before = lm.model.feature_extractor(sound)
        for frame in (0, 7, frames.count - 1):
            first = round(frames.start(frame) * RATE)
            last = first + round(frames.window_seconds * RATE) - 1
            for at, matters in ((first - 1, False), (first, True), (last, True), (last + 1, False)):
                if 0 <= at < sound.shape[1]:
                    changed = sound.clone()
                    changed[0, at] += 5.0
                    after = lm.model.feature_extractor(changed)
                    moved = float((after - before)[0, :, frame].abs().max())
                    assert (moved > 0) == matters, (frame, at, moved)


def test_generation_beside_a_sound_equals_the_recording_of_the_finished_text(whisper, fresh):
    lm = whisper()
    sounds = [some_sound(fresh, 1.3), some_sound(fresh, 0.7)]
    rec = mh.record(lm, mh.Inputs(audio=sounds, sampling_rate=RATE), generate=9)
    ids = rec.stacks["decoder"][0].tokens.ids
    assert ids.shape[1] <= 10 and ids[:, 0].tolist() == [2, 2]
    features = lm.processor(sounds, sampling_rate=RATE, return_tensors="pt")["input_features"]
    whole = mh.record_call(lm.model, input_features=features, decoder_input_ids=ids.clamp_min(0), use_cache=False)
    for stack in ("encoder", "decoder", "cross"):
        for got, want in zip(rec.stacks[stack], whole.stacks[stack], strict=True):
            for text in range(2):
                length = int(got.lengths[text])
                assert_near(got.weights(text=text)[:, :length], want.weights(text=text)[:, :length, : got.k.shape[2]])
    assert rec.provenance["generated"] == {"tokens": 9} and "plain generation" in rec.provenance["decoder"]
    with torch.no_grad():
        scores = lm.model(input_features=features, decoder_input_ids=ids.clamp_min(0)).logits
    assert int(scores[0, 0].argmax()) == int(ids[0, 1])
    with pytest.raises(RecordingError, match=r"generate=50 after 1 tokens is more than the 50 .*: ask for at most 49"):
        mh.record(lm, mh.Inputs(audio=sounds, sampling_rate=RATE), generate=50)


def test_without_a_transcript_the_decoder_reads_its_start_alone(whisper, fresh):
    lm = whisper()
    rec = mh.record(lm, mh.Inputs(audio=some_sound(fresh, 0.5), sampling_rate=RATE))
    assert rec.stacks["decoder"][0].tokens.ids.tolist() == [[2]]
    assert rec.stacks["cross"][0].weights().shape == (3, 1, 100)
    assert rec.provenance["decoder"] == "its start tokens alone"
    with pytest.raises(ModelError, match="has no tokenizer, so it cannot read a transcript"):
        mh.record(lm, mh.Inputs(audio=some_sound(fresh, 0.5), sampling_rate=RATE, transcript="the cat"))


@pytest.mark.parametrize(("width", "dtype", "scale"), [(1, np.uint8, 127), (2, "<i2", 32767), (4, "<i4", 2**31 - 1)])
def test_a_wav_is_its_samples(width, dtype, scale, fresh, tmp_path):
    """Two channels, of which the mean is heard; three bytes are tested by themselves below."""
    sound = some_sound(fresh, 0.1).clip(-1, 1)
    stored = (sound * scale + (128 if width == 1 else 0)).round().astype(dtype)
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((2, width, RATE, 0, "NONE", ""))
        file.writeframes(np.stack([stored, stored], 1).tobytes())
    (got,) = sounds_of(path, None, RATE)
    assert got.dtype == np.float32 and float(np.abs(got - sound).max()) < 2 / min(scale, 2**20)


def test_three_bytes_a_sample_int16_and_a_list_of_numbers_are_sounds(fresh, tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 3, RATE, 0, "NONE", ""))
        file.writeframes(b"\x00\x00\x40\x00\x00\xc0\xff\xff\x7f")
    assert sounds_of(tmp_path / "a.wav", None, RATE)[0].tolist() == pytest.approx([0.5, -0.5, 1], abs=1e-6)
    sound = (some_sound(fresh, 0.01).clip(-1, 1) * 32767).astype(np.int16)
    assert sounds_of(sound, RATE, RATE)[0].tolist() == (sound / np.float32(32768)).tolist()
    assert len(sounds_of([0.0, 0.5, 1.0], RATE, RATE)) == 1 and len(sounds_of([sound, sound], RATE, RATE)) == 2


# ================================================================================================= a text with pictures
# A text with pictures: what is recorded, which tokens are which patch, the answer, and what is refused.

QUESTION, ANSWER = "what is the red cat ?", "a small dog"
TOKENS = {"qwen2.5": MARKS[2], "qwen2": MARKS[2], "llava": "<image>", "paligemma": "<image>"}
every_reader = pytest.mark.parametrize("name", sorted(READERS))


def prompt_of(name, count):
    """What the processor is given, by hand."""
    token = TOKENS[name]
    around = f"{MARKS[0]}{token}{MARKS[1]}" if name.startswith("qwen") else token
    images = around * count
    return f"user : {images}{QUESTION} . he said : " if name == "qwen2" else images + QUESTION


def inputs_with_text(lm, name, pictures, answer=None):
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


@pytest.mark.parametrize(("name", "answer"), [*((name, ANSWER) for name in sorted(READERS)), ("paligemma", None)])
def test_every_weight_is_the_models_own(name, answer, reading, fresh):
    lm, picture = reading(name), some_picture(fresh)
    rec = mh.record(lm, mh.Inputs(QUESTION, image=picture, answer=answer))
    inputs = inputs_with_text(lm, name, [picture], answer)
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


@every_reader
def test_each_picture_has_its_run_of_image_tokens_by_the_models_grid(name, reading, fresh):
    lm, pictures = reading(name), [some_picture(fresh), some_picture(fresh, 61, 40)]
    rec = mh.record(lm, mh.Inputs(QUESTION, image=pictures))
    inputs = inputs_with_text(lm, name, pictures)
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
    with pytest.raises(RecordingError, match=r"has no answer: record\(lm, mh.Inputs\(text, image="):
        _ = rec.answer


@every_reader
def test_a_changed_patch_changes_the_token_at_its_row_and_column(name, reading, fresh):
    lm = reading(name)
    with torch.no_grad():  # patches of a tower that does not attend are not mixed
        for path, weight in lm.model.named_parameters():
            if ("vision" in path or "visual" in path) and (".out_proj." in path or ".attn.proj." in path):
                weight.zero_()
    height, width = (48, 80) if name.startswith("qwen") else (SIDE, SIDE)  # as the model reads it: nothing is resized
    picture = some_picture(fresh, height, width)
    before = mh.record(lm, mh.Inputs(QUESTION, image=picture))
    image = before.images[0]
    assert image.size == (height, width) and np.abs(shown(lm, picture, image.size) - picture * 1.0).max() <= 1
    for row, column in ((0, 0), (1, image.columns - 1), (image.rows - 1, 1)):
        changed = picture.copy()
        changed[image.grid.pixels(row, column)] ^= 0xFF
        after = mh.record(lm, mh.Inputs(QUESTION, image=changed))
        moved = (after.layers[0].k - before.layers[0].k).abs().amax((0, 1, 3)) > 1e-9
        assert moved.nonzero()[:, 0].tolist() == [image.begin + image.grid.position(row, column)]


@every_reader
def test_what_the_model_writes_is_its_own_choice_read_again(name, reading, fresh):
    lm, picture = reading(name), some_picture(fresh)
    # No trained model writes a picture's place, which would need a picture; weights at random may.
    places = ("image_token_id", "video_token_id", "vision_start_token_id")
    with torch.no_grad():
        for token in {getattr(lm.model.config, place, None) for place in places} - {None}:
            lm.model.get_output_embeddings().weight[token] = 0.0
    rec = mh.record(lm, mh.Inputs(QUESTION, image=picture), generate=4)
    begin, ids = rec.answer.start, rec.tokens.ids[0]
    assert len(ids) - begin == 4 and rec.provenance["answer"] == "written by the model"
    inputs = inputs_with_text(lm, name, [picture], " ".join(lm.tokenizer.convert_ids_to_tokens(ids[begin:])))
    with torch.no_grad():
        logits = lm.model(**inputs).logits[0]
    assert torch.equal(logits[begin - 1 : -1].argmax(-1), ids[begin:])
    want = eager_maps(lm.model, **inputs)
    assert_near(rec.layers[1].weights(), want[1][0])


def test_the_prompt_is_the_callers_the_templates_or_pictures_first(reading, fresh):
    lm, picture = reading("llava"), some_picture(fresh)
    own = mh.record(lm, mh.Inputs("the cat <image> said", image=picture))
    assert own.images[0].begin == 2 and own.provenance["prompt"] == "as it was given, with its image tokens"
    assert "no chat template" in mh.record(lm, mh.Inputs(QUESTION, image=picture)).provenance["prompt"]
    with pytest.raises(TextError, match=r"the text has 1 image tokens \(<image>\) for 2 pictures: give one for each"):
        mh.record(lm, mh.Inputs("the cat <image> said", image=[picture, picture]))
    qwen = reading("qwen2")
    templated = mh.record(qwen, mh.Inputs(QUESTION, image=picture))
    assert templated.provenance["prompt"] == "in the processor's chat template, pictures first"
    qwen.processor.chat_template = TEMPLATE.replace("he said", "she said")  # before the tokenizer's own
    by_processor = mh.record(qwen, mh.Inputs(QUESTION, image=picture))
    assert by_processor.images == templated.images and by_processor.tokens.pieces[0][-3:] == ("she", "said", ":")
    qwen.processor.chat_template = "{{ messages[0]['content'][-1]['text'] }}"
    with pytest.raises(TextError, match="chat template makes 0 image tokens for 1 pictures: write the whole prompt"):
        mh.record(qwen, mh.Inputs(QUESTION, image=picture))


def test_a_file_keeps_where_the_pictures_and_the_answer_are(reading, fresh, tmp_path):
    rec = mh.record(
        reading("qwen2.5"), mh.Inputs(QUESTION, image=[some_picture(fresh), some_picture(fresh, 61, 40)], answer="a")
    )
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
        refuses(RecordingError, "cannot be saved, its tokens does not fit together", wrong.save, tmp_path / "b.heads")
    assert not (tmp_path / "b.heads").exists()


def test_the_vision_tower_is_a_stack_of_its_own_and_a_model_of_pictures_by_itself(reading, fresh):
    lm, picture = reading("llava"), some_picture(fresh)
    assert mh.record(lm, mh.Inputs(QUESTION, image=picture)).provenance["vision tower"].startswith("not kept")
    rec = mh.record_call(lm.model, **inputs_with_text(lm, "llava", [picture]))
    assert {stack: len(layers) for stack, layers in rec.stacks.items()} == {VISION: 3, "": 2}
    alone = mh.load(lm.model.model.vision_tower, processor=lm.processor)
    tower = mh.record(alone, mh.Inputs(image=picture))
    assert (tower.grid.rows, tower.grid.prefix) == (5, ("[CLS]",)) and tower.stacks.keys() == {""}
    torch.testing.assert_close(tower.layers[1].weights(), rec.stacks[VISION][1].weights(), rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_read_together_is_refused(reading, fresh, tmp_path):
    picture, lm = some_picture(fresh), reading("llava")
    with pytest.raises(ModelError, match=r"reads pictures among the tokens of a text: give it a text too, as in"):
        mh.record(lm, mh.Inputs(image=picture))
    with pytest.raises(RecordingError, match="2 texts came with image=: give one text, with all its pictures in a"):
        mh.record(lm, mh.Inputs([QUESTION, QUESTION], image=picture))
    with pytest.raises(TextError, match=r"the text has \d+ tokens, most of them from pictures, but .* has 128 pos"):
        mh.record(lm, mh.Inputs(QUESTION, image=[picture] * 6))
    with pytest.raises(RecordingError, match="answer= is for a text with pictures: give it with a text and image="):
        mh.record(lm, mh.Inputs(QUESTION, answer="a cat"))
    with pytest.raises(RecordingError, match="answer= and generate= are two answers: give one of them"):
        mh.record(lm, mh.Inputs(QUESTION, image=picture, answer="a cat"), generate=2)
    refuses(
        TextError,
        "the text is empty: give at least one word",
        mh.record,
        lm,
        mh.Inputs(QUESTION, image=picture, answer=" "),
    )
    refuses(RecordingError, "the list is empty: give at least one", mh.record, lm, mh.Inputs(QUESTION, image=[]))
    writer = mh.load(tiny_gpt2(), tokenizer=tiny_tokenizer(special_tokens=False))
    with pytest.raises(ModelError, match="reads text alone: give exactly one of texts, image= and audio="):
        mh.record(writer, mh.Inputs(QUESTION, image=picture))
    seeing = mh.load(saved(tmp_path / "clip", tiny_clip(), square()))
    with pytest.raises(ModelError, match="reads pictures alone: give exactly one of texts, image= and audio="):
        mh.record(seeing, mh.Inputs(QUESTION, image=picture))


def test_a_model_without_a_processor_of_both_says_so(fresh, tmp_path):
    folder = saved_llava(tmp_path / "llava")
    for lm in (mh.load(folder, processor=False), mh.load(folder, processor=square())):
        had = "no processor" if lm.processor is None else "a CLIPImageProcessorPil"
        with pytest.raises(ModelError, match=f"has {had}, and a text with pictures needs one of both: save it beside"):
            mh.record(lm, mh.Inputs(QUESTION, image=some_picture(fresh)))
    # Read from the files, such a processor is missing with the reason.
    settings = tmp_path / "llava" / "processor_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "image_token": 3}))
    assert "no text with pictures, since their processor failed" in mh.load(folder).because
    given = mh.load(mh.load(saved_llava(tmp_path / "whole")).model, processor=mh.load(tmp_path / "whole").processor)
    assert mh.record(given, mh.Inputs(QUESTION, image=some_picture(fresh))).images[0].rows == 5


def test_tokens_that_are_not_the_patches_of_one_picture_are_refused(reading, fresh, tmp_path, monkeypatch):
    picture = some_picture(fresh)
    with_class = mh.load(saved_llava(tmp_path / "full", strategy="full"))
    with pytest.raises(
        ModelError,
        match=r"26 image tokens are not a grid of square patches of 1 x 40 x 40. "
        r"Which patch",
    ):
        mh.record(with_class, mh.Inputs(QUESTION, image=picture))
    lm = reading("llava")
    plain = lm.processor.__class__.__call__

    def cut(self, **kwargs):
        made = plain(self, **kwargs)
        return {**made, "pixel_values": made["pixel_values"].repeat(3, 1, 1, 1)}

    monkeypatch.setattr(lm.processor.__class__, "__call__", cut)
    with pytest.raises(ModelError, match=r"1 pictures are cut into several crops each \(pixel_values of \(3, 3, 40"):
        mh.record(lm, mh.Inputs(QUESTION, image=picture))

    def broken(self, **kwargs):
        made = plain(self, **kwargs)
        ids = made["input_ids"]
        return {**made, "input_ids": torch.cat([ids[:, :5], ids[:, -1:], ids[:, 5:]], 1)}

    monkeypatch.setattr(lm.processor.__class__, "__call__", broken)
    with pytest.raises(ModelError, match="the 5 x 5 patches of a picture are not a single run of tokens"):
        mh.record(lm, mh.Inputs(QUESTION, image=picture))

    def stumbling(self, **kwargs):
        raise ValueError("no such thing")

    monkeypatch.setattr(lm.processor.__class__, "__call__", stumbling)
    with pytest.raises(ModelError, match="LlavaProcessor cannot read this text with pictures: no such thing"):
        mh.record(lm, mh.Inputs(QUESTION, image=picture))
    monkeypatch.undo()
    lm.model.resampler = torch.nn.Identity()
    refuses(
        ModelError,
        "makes tokens from a picture that are not its patches",
        mh.record,
        lm,
        mh.Inputs(QUESTION, image=picture),
    )


def test_a_film_is_refused(fresh, tmp_path, monkeypatch):
    lm = mh.load(saved_qwen(tmp_path / "qwen"))
    plain = lm.processor.image_processor.__class__.__call__

    def film(self, *args, **kwargs):
        made = plain(self, *args, **kwargs)
        made["image_grid_thw"] = made["image_grid_thw"] * torch.tensor([2, 1, 1])
        return made

    monkeypatch.setattr(lm.processor.image_processor.__class__, "__call__", film)
    with pytest.raises(ModelError, match="1 pictures are cut into 1 crops, or read as films"):
        mh.record(lm, mh.Inputs(QUESTION, image=some_picture(fresh)))
