"""Which texts the recorder takes: how long ones are read, what is refused in a line, and the size said beforehand."""

import logging

import jaxtyping
import pytest
import torch

import manyheads as mh
from manyheads.errors import ModelError, RecordingError, ShapeError, TextError, WindowError
from manyheads.models import recorder
from tests.models.eager import assert_near, eager_maps, implementation, padded
from tests.models.recorded import LENGTHS, some_text
from tests.models.tiny import VOCAB_SIZE

# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("text", ["", "   \n\t "])
def test_an_empty_text_is_one_clear_line(text, loaded):
    lm = loaded("llama")
    with pytest.raises(TextError, match="^the text is empty: give at least one word.$"):
        mh.record(lm, text)
    with pytest.raises(TextError, match="^text 1 is empty: give at least one word.$"):
        mh.record(lm, ["the cat", text, "the dog"])


def test_texts_must_be_there_and_be_text(loaded):
    lm = loaded("llama")
    with pytest.raises(TextError, match="no text was given: give at least one"):
        mh.record(lm, [])
    jaxtyping.config.update("jaxtyping_disable", True)  # as everywhere but here, where it might come first
    try:
        with pytest.raises(TextError, match="text 1 is an int: give strings"):
            mh.record(lm, ["the cat", 7])
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    with pytest.raises(
        TextError, match="long='wndows' is not a way to read a long text: use one of windows, truncate, whole"
    ):
        mh.record(lm, "the cat", long="wndows")
    with pytest.raises(
        ModelError, match="LlamaForCausalLM has no tokenizer.*load it with tokenizer=, or use record_call"
    ):
        mh.record(mh.load(lm.model, tokenizer=False), "the cat")


def test_a_mask_with_holes_is_refused(loaded, fresh):
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE)
    inputs["attention_mask"][2, 4] = 0
    with pytest.raises(RecordingError, match="attention_mask has holes: a text must be one run of ones"):
        mh.record_call(loaded("llama").model, **inputs)


def test_asking_for_what_is_not_there_says_what_is(loaded, fresh):
    layer = mh.record_call(loaded("llama").model, **padded(fresh, LENGTHS, VOCAB_SIZE)).layers[1]
    for head in (6, -1):
        with pytest.raises(ShapeError, match=rf"head={head} is not in layer 1: it has heads 0 to 5"):
            layer.weights(head=head)
    with pytest.raises(ShapeError, match="text=4 is not in this recording: it holds 4 texts"):
        layer.weights(text=4)
    with pytest.raises(ShapeError, match="a window has step 1, but .* has step 2"):
        layer.weights(queries=slice(0, 9, 2))
    with pytest.raises(ShapeError, match="keys run from 0 to 7, but text 1 has 7"):
        layer.weights_at(torch.tensor([0, 1]), torch.tensor([0, 7]), text=1)
    with pytest.raises(ShapeError, match="features has 8 rows, but text 1 has 7"):
        layer.project(torch.ones(8, 2), text=1)


def test_a_window_too_large_to_hold_is_refused_with_its_size(loaded, fresh, monkeypatch):
    monkeypatch.setattr("manyheads.recording.recording.WINDOW_BYTES", 6 * 11 * 11 * 4 - 1)
    layer = mh.record_call(loaded("llama").model, **padded(fresh, LENGTHS, VOCAB_SIZE)).layers[0]
    with pytest.raises(WindowError, match=r"6 heads x 11 x 11 weights is 0\.0 GB, above the limit .*ask for fewer"):
        layer.weights(text=0)
    assert layer.weights(text=1).shape == (6, 7, 7)


# --------------------------------------------------------------------------------------------------------- long texts


@pytest.mark.parametrize(("name", "attention"), [("bert", "sdpa"), ("gpt2", "eager"), ("llama", "sdpa")])
def test_a_long_text_is_read_in_overlapping_windows_that_cover_it(name, attention, loaded, fresh):
    limit, extra = 16, 2 if name == "bert" else 0  # [CLS] and [SEP] around each window
    sizes = {"n_positions" if name == "gpt2" else "max_position_embeddings": limit}
    lm = loaded(name, **sizes)
    texts = [some_text(fresh, 61), some_text(fresh, 5)]
    with implementation(lm.model, attention):
        rec = mh.record(lm, texts)
    lengths, words = (
        rec.tokens.lengths.tolist(),
        [lm.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts],
    )
    assert max(lengths) == limit and lengths[-1] == len(words[1]) + extra
    num_windows, overlap = len(lengths) - 1, limit // 8
    assert rec.provenance["windows"] == (
        f"1 of 2 texts is longer than the model's positions: "
        f"read in {num_windows} windows of {limit}, overlapping by {overlap}"
    )
    parts = [rec.tokens.ids[i, :n][rec.tokens.ordinary[i, :n]].tolist() for i, n in enumerate(lengths)]
    assert parts[-1] == words[1]
    whole = parts[0]
    for part in parts[1:-1]:
        assert part[:overlap] == whole[-overlap:]
        whole = whole + part[overlap:]
    assert whole == words[0]
    for index, words_of in enumerate(parts):  # each is a text of its own, specials included
        assert len(words_of) == lengths[index] - extra
        shown = rec.tokens.texts[index]
        assert lm.tokenizer(shown, add_special_tokens=False)["input_ids"] == words_of
        assert shown in texts[min(index // num_windows, 1)]
    own = [eager_maps(lm.model, input_ids=rec.tokens.ids[i : i + 1, :n]) for i, n in enumerate(lengths)]
    for text in range(len(lengths)):
        for layer, one in zip(rec.layers, [one[0] for one in own[text]], strict=True):
            assert_near(layer.weights(text=text), one, f"window {text}")


def test_truncate_reads_the_first_window_and_says_so(loaded, fresh):
    lm = loaded("bert", max_position_embeddings=16)
    text = some_text(fresh, 40)
    windows, cut = mh.record(lm, text), mh.record(lm, text, long="truncate")
    assert len(windows.tokens.lengths) > 2 and cut.tokens.lengths.tolist() == [16]
    assert torch.equal(cut.tokens.ids, windows.tokens.ids[:1])
    assert cut.tokens.special[0].nonzero().flatten().tolist() == [0, 15]
    assert cut.provenance["windows"] == "the text cut to the model's 16 positions"


def test_whole_refuses_what_is_too_long_with_both_numbers(loaded, fresh):
    lm = loaded("bert", max_position_embeddings=16)
    text = "the cat sat on the table and the dog sat on the chair in the house"
    with pytest.raises(
        TextError, match=r"text 1 has 18 tokens, but BertModel has 16 positions: read it in windows.*cut it"
    ):
        mh.record(lm, ["the cat", text], long="whole")
    assert mh.record(lm, "the cat", long="whole").tokens.lengths.tolist() == [4]


def test_a_text_of_exactly_the_models_positions_is_not_cut(loaded, fresh):
    lm = loaded("bert", max_position_embeddings=16)
    text = "the cat " * 7
    for long in ("windows", "truncate", "whole"):
        rec = mh.record(lm, text, long=long)
        assert rec.tokens.lengths.tolist() == [16] and rec.provenance["windows"] == ""


# ---------------------------------------------------------------------------------------------------------------- size


@pytest.mark.thinned
@pytest.mark.parametrize("keep", [("q", "k", "lse"), ("q", "k", "v", "lse")], ids=str)
@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "gpt_oss"])
def test_the_size_is_said_before_it_is_taken_and_is_right(name, keep, loaded, fresh, caplog):
    lm = loaded(name)
    with implementation(lm.model, "eager"), caplog.at_level(logging.INFO, logger="manyheads"):
        rec = mh.record(lm, [some_text(fresh, n) for n in (23, 7, 11)], keep=keep)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "manyheads"]
    longest = int(rec.tokens.lengths.max())
    assert said == f"recording 3 texts of up to {longest} tokens: {rec.num_bytes / 1e6:.1f} MB"


def test_a_recording_that_would_not_fit_is_refused_before_the_model_runs(loaded, monkeypatch):
    lm = loaded("llama")
    assert lm.spec.sites  # the probe is another matter
    monkeypatch.setattr(recorder, "free_memory_bytes", lambda: 3_000_000_000)
    lm.model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    for path, module in lm.model.named_children():
        module.register_forward_pre_hook(lambda *_, path=path: pytest.fail(f"{path} ran"))
    monkeypatch.setattr(recorder, "MEMORY_SHARE", 1e-9)
    wanted = r"would take 0\.0 GB and 3\.0 GB are free: record fewer or shorter texts, or use measure\(\)"
    with pytest.raises(ModelError, match=wanted):
        mh.record(lm, "the cat sat on the table")


def test_where_the_system_does_not_say_what_is_free_nothing_is_refused(loaded, monkeypatch):
    lm = loaded("llama")
    monkeypatch.setattr(recorder, "free_memory_bytes", lambda: None)
    assert mh.record(lm, "the cat").num_bytes > 0
    monkeypatch.undo()
    free = recorder.free_memory_bytes()
    assert free is None or free > 1e6
