"""Recordings: what they hold, which texts the recorder takes and refuses, and their size before memory is taken."""

import logging
import math
import re

import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads import reference
from manyheads.errors import ModelError, RecordingError, ShapeError, TextError, WindowError
from manyheads.inputs import Recorder, read, recorder
from manyheads.inputs import recorder as keeping
from manyheads.inputs.reading import groups_of
from manyheads.recording import Recording
from manyheads.units import gb
from tests.models import eager
from tests.models.tiny import VOCAB_SIZE, WORDS, tiny_t5
from tests.refusals import refuses

LENGTHS = (11, 7, 13, 1)


def some_text(fresh, num_words):
    return " ".join(WORDS[i] for i in torch.randint(len(WORDS), (num_words,), generator=fresh).tolist())


EAGER_ONLY = ("gemma2", "gpt_oss")


def assert_same_weights(rec, maps, where):
    """Every layer, text and head of a recording against [b, h, q, k] maps with the texts at `where`."""
    assert len(rec.layers) == len(maps)
    assert max(float(one.max()) for one in maps) > eager.SHARP, "these maps are too flat to test anything"
    for index, (layer, own) in enumerate(zip(rec.layers, maps, strict=True)):
        assert layer.lengths.tolist() == [span.stop - span.start for span in where]
        for text, span in enumerate(where):
            eager.assert_near(layer.weights(text=text), own[text, :, span, span], f"layer {index}, text {text}")


# ----------------------------------------------------------------------------------------------------------- exactness


@pytest.mark.thinned
@eager.every_case
def test_weights_rebuilt_from_texts_equal_the_models_own(name, attention, loaded, fresh):
    lm = loaded(name)
    texts = [some_text(fresh, n) for n in (11, 3, 23, 1)]
    inputs = lm.tokenizer(texts, padding=True, return_tensors="pt")
    inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    with eager.implementation(lm.model, attention):
        rec = mh.record(lm, texts)
    assert_same_weights(rec, eager.eager_maps(lm.model, **inputs), eager.spans(inputs["attention_mask"]))
    assert float(rec.provenance["guard_error"]) < eager.GUARDED
    assert rec.tokens.texts == tuple(texts)


@pytest.mark.thinned
@eager.every_case
@pytest.mark.parametrize("side", ["left", "right"])
def test_weights_rebuilt_from_a_padded_call_equal_the_models_own(name, attention, side, loaded, fresh):
    model = loaded(name).model
    inputs = eager.padded(fresh, LENGTHS, model.config.vocab_size, side)
    with eager.implementation(model, attention):
        rec = mh.record_call(model, **inputs)
    where = eager.spans(inputs["attention_mask"])
    assert_same_weights(rec, eager.eager_maps(model, **inputs), where)
    ids = inputs["input_ids"]
    for text, span in enumerate(where):
        assert rec.tokens.ids[text, : len(ids[text, span])].tolist() == ids[text, span].tolist()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_oss"])
def test_a_call_without_a_mask_is_recorded_whole(name, loaded, fresh):
    model = loaded(name).model
    ids = eager.padded(fresh, (9, 9, 9), VOCAB_SIZE)["input_ids"]
    with eager.implementation(model, "eager" if name in EAGER_ONLY else "sdpa"):
        rec = mh.record_call(model, ids)  # by position
    assert_same_weights(rec, eager.eager_maps(model, input_ids=ids), [slice(0, 9)] * 3)


@pytest.mark.parametrize("name", ["minilm", "llama", "gemma2", "gpt_oss"])
def test_every_way_to_ask_for_weights_gives_the_models_own(name, loaded, fresh):
    """A head, a window, chosen cells, tiles, column sums, weights times features: all of the same map."""
    model = loaded(name).model
    inputs = eager.padded(fresh, LENGTHS, model.config.vocab_size, "left")
    with eager.implementation(model, "eager" if name in EAGER_ONLY else "sdpa"):
        rec = mh.record_call(model, **inputs)
    maps, where = eager.eager_maps(model, **inputs), eager.spans(inputs["attention_mask"])
    for layer, own in zip(rec.layers, maps, strict=True):
        received = layer.received()
        for text, span in enumerate(where):
            want, n = own[text, :, span, span], span.stop - span.start
            for head in range(layer.site.num_heads):
                eager.assert_near(layer.weights(head=head, text=text), want[head], "a head")
            window = layer.weights(queries=slice(2, 9), keys=slice(1, -1), text=text)
            eager.assert_near(window, want[:, 2:9, 1:-1], "a window")
            pairs = torch.randint(n, (2, 17), generator=fresh)
            eager.assert_near(layer.weights_at(*pairs, text=text), want[:, pairs[0], pairs[1]], "chosen cells")
            eager.assert_near(received[text, :, :n], want.sum(1), "column sums", n * eager.EXACT)
            assert bool((received[text, :, n:] == 0).all())
            features = torch.randn(n, 3, generator=fresh)
            eager.assert_near(layer.project(features, text=text), want @ features, "project", 5 * eager.EXACT)
            pieces = torch.zeros_like(want)
            for rows, keys, tile in layer.tiles(text=text, size=4):
                pieces[:, rows, keys] = tile
            eager.assert_near(pieces, want, "tiles")


def test_a_recording_is_the_same_whether_texts_are_recorded_together_or_alone(loaded, fresh):
    lm = loaded("minilm")
    texts = [some_text(fresh, n) for n in (5, 17, 2)]
    together = mh.record(lm, texts)
    for text, words in enumerate(texts):
        alone = mh.record(lm, words)
        for one, many in zip(alone.layers, together.layers, strict=True):
            eager.assert_near(many.weights(text=text), one.weights(), "together, alone", 2 * eager.EXACT)
    reading = read(lm, texts)
    again = mh.record(lm, reading, keep=("q", "k", "v", "lse"))
    for one, many in zip(again.layers, together.layers, strict=True):
        assert torch.equal(one.q, many.q) and one.v is not None and one.lengths.tolist() == many.lengths.tolist()
    refuses(RecordingError, "a Reading is recorded as texts that were read", mh.record, lm, reading, generate=3)


@pytest.mark.slow
def test_an_encoder_decoder_is_recorded_by_its_three_stacks(fresh):
    """Texts of the decoder have lengths of their own, more or fewer than the encoder's."""
    model = tiny_t5(seed=eager.draw(fresh))
    for answers in ((3, 5, 2, 4), (17, 11, 19, 5), (13, 13, 13, 13)):
        inputs, asked = eager.padded(fresh, LENGTHS, VOCAB_SIZE), eager.padded(fresh, answers, VOCAB_SIZE)
        inputs |= {"decoder_input_ids": asked["input_ids"], "decoder_attention_mask": asked["attention_mask"]}
        for attention in ("sdpa", "eager"):
            with eager.implementation(model, attention):
                rec = mh.record_call(model, **inputs)
            with eager.implementation(model, "eager"), torch.no_grad():
                own = model(**inputs, output_attentions=True)
            wanted = {"encoder": own.encoder_attentions, "decoder": own.decoder_attentions}
            assert list(rec.stacks) == ["encoder", "decoder", "cross"]
            for (stack, maps), lengths in zip(wanted.items(), (LENGTHS, answers), strict=True):
                assert len(rec.stacks[stack]) == len(maps)
                for layer, one in zip(rec.stacks[stack], maps, strict=True):
                    assert layer.lengths.tolist() == list(lengths)
                    for text, n in enumerate(lengths):
                        eager.assert_near(layer.weights(text=text), one[text, :, :n, :n], f"{stack}, text {text}")
            for layer, one in zip(rec.stacks["cross"], own.cross_attentions, strict=True):
                for text, (n, m) in enumerate(zip(answers, LENGTHS, strict=True)):
                    eager.assert_near(layer.weights(text=text)[:, :n, :m], one[text, :, :n, :m], f"cross, text {text}")


# ------------------------------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("side", ["left", "right"])
def test_keep_v_makes_the_heads_outputs_again(side, loaded, fresh):
    model = loaded("llama").model
    inputs, outs = eager.padded(fresh, LENGTHS, VOCAB_SIZE, side), []
    with mh.tap(model, on_call=lambda call: outs.append(call.out)), torch.no_grad():
        model(**inputs)
    rec = mh.record_call(model, **inputs, keep=("q", "k", "v", "lse"))
    for layer, out in zip(rec.layers, outs, strict=True):
        for text, span in enumerate(eager.spans(inputs["attention_mask"])):
            n = span.stop - span.start
            v = layer.v[text, :, :n].repeat_interleave(2, 0)  # 6 heads over 3
            eager.assert_near(layer.weights(text=text) @ v, out[text, :, span])
    assert all(layer.v is None for layer in mh.record_call(model, **inputs).layers)


@pytest.mark.parametrize("keep", [("q",), ("q", "lse"), ("k", "lse"), (), ("q", "k", "lse", "weights"), ["v"]], ids=str)
def test_keep_refuses_what_it_cannot_do(keep, loaded, fresh):
    lm = loaded("llama")
    wanted = re.escape(f"{keep=}") + ".*keeps q, k and lse, and v if asked for.*'q', 'k', 'v', 'lse'"
    refuses(RecordingError, wanted, mh.record, lm, "the cat", keep=keep)
    refuses(RecordingError, wanted, mh.record_call, lm.model, **eager.padded(fresh, LENGTHS, VOCAB_SIZE), keep=keep)


def test_a_recording_holds_no_gradients_and_nothing_of_the_models_memory(loaded, fresh):
    model = loaded("gpt2").model
    inputs = eager.padded(fresh, LENGTHS, VOCAB_SIZE)
    rec = mh.record_call(model, **inputs, keep=("q", "k", "v", "lse"))
    before = rec.layers[0].weights(text=0)
    for weight in model.parameters():
        weight.data.zero_()
    assert torch.equal(rec.layers[0].weights(text=0), before)
    assert not any(x.requires_grad for layer in rec.layers for x in (layer.q, layer.k, layer.v, layer.lse))


@pytest.mark.thinned
@eager.every_case
def test_provenance_says_which_model_dtype_backend_and_how_good(name, attention, loaded, fresh):
    lm = loaded(name)
    with eager.implementation(lm.model, attention):
        said = mh.record(lm, [some_text(fresh, n) for n in (5, 3)]).provenance
    assert (said["model"], said["dtype"], said["implementation"]) == (lm.name, "float32", attention)
    assert 0 <= said["guard_error"] < eager.GUARDED and said["windows"] == ""
    (because,) = said["backend"]
    assert because.startswith("the model's own fused kernel" if attention == "sdpa" else "recomputed")
    assert said["backend"][because] == len(lm.spec.sites)


def test_layers_say_which_of_several_stacks_to_ask(fresh, loaded):
    rec = mh.record_call(loaded("llama").model, **eager.padded(fresh, LENGTHS, VOCAB_SIZE))
    assert rec.layers is rec.stacks[""]
    two = type(rec)({"encoder": rec.layers, "decoder": rec.layers}, rec.tokens)
    with pytest.raises(RecordingError, match=r"2 stacks of layers \(encoder, decoder\).*rec\.stacks\['encoder'\]\[0\]"):
        _ = two.layers


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_the_error_against_float64_is_measured_and_stored(loaded, fresh, name, dtype):
    """The oracle: the reference's lse, in float64, from the q and k that were recorded, row by row."""
    model = loaded(name).model.to(dtype)
    with eager.implementation(model, "eager" if name in EAGER_ONLY else "sdpa"):
        rec = mh.record_call(model, **eager.padded(fresh, (11,), VOCAB_SIZE))
    worst = 0.0
    for layer in rec.layers:
        assert layer.lse.dtype == torch.float32
        q, k = (x.double().numpy() for x in (layer.q, layer.k))
        seen = layer.mask.visible(slice(0, 11), slice(0, 11)).numpy()
        sinks = None if layer.rule.sinks is None else layer.rule.sinks.double().numpy()
        told = {"scale": layer.rule.scale, "softcap": layer.rule.softcap, "sinks": sinks, "mask": seen}
        exact = reference.attend(q, k, k.copy(), **told).lse
        rows = sorted({round(each) for each in torch.linspace(10, 0, keeping.ERROR_ROWS).tolist()})
        off = abs(layer.lse.double().numpy() - exact)[:, :, rows].max()
        worst = max(worst, math.expm1(off))
    assert rec.provenance["float64_error"] == pytest.approx(worst, rel=1e-6)
    assert 0 < worst < 1e-4


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_texts_of_unlike_length_are_read_in_batches_and_each_is_as_it_is_alone(loaded, fresh, name, monkeypatch):
    monkeypatch.setattr("manyheads.inputs.reading.groups_of", lambda pieces, *_: groups_of(pieces, 40))
    lm = loaded(name)
    assert lm.spec.sites
    texts = [some_text(fresh, count) for count in (19, 4, 30, 7, 4, 11)]
    calls = []
    lm.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    rec = mh.record(lm, texts, keep=("q", "k", "v", "lse"))
    assert len(calls) > 2, "one batch proves nothing"
    for text, words in enumerate(texts):
        alone = mh.record(lm, words, keep=("q", "k", "v", "lse"))
        length = int(rec.tokens.lengths[text])
        assert rec.tokens.pieces[text] == alone.tokens.pieces[0]
        for stack, layers in alone.stacks.items():
            for got, want in zip(rec.stacks[stack], layers, strict=True):
                eager.assert_near(
                    got.weights(text=text)[..., : want.k.shape[2]], want.weights(), f"{stack} {text}", eager.GUARDED
                )
                eager.assert_near(got.v[text, :, :length], want.v[0], f"{stack} {text}", eager.GUARDED)
                assert got.tokens.pieces[text] == want.tokens.pieces[0]


def test_attention_to_padding_is_said_and_its_share_is_missing(loaded, fresh, caplog):
    """A model that is told of padding and does not hide it: rows are never renormalised."""

    class Forgets(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids)

    inputs = eager.padded(fresh, (11, 7), VOCAB_SIZE)
    with caplog.at_level(logging.WARNING, "manyheads"):
        rec = mh.record_call(Forgets(loaded("bert").model).eval(), **inputs)
    assert "rows lack what they gave to it" in rec.provenance["padding"] and "read padding" in caplog.text
    sums = rec.layers[0].weights(text=1).sum(-1)
    assert float(sums.max()) < 1 and rec.layers[0].weights(text=0).sum(-1).allclose(torch.ones(11), atol=1e-5)
    assert "padding" not in mh.record_call(loaded("llama").model, **inputs).provenance


def test_a_lse_that_is_off_shows_in_the_error(loaded, fresh, monkeypatch):
    monkeypatch.setattr(keeping, "sharpened", lambda layer: layer.lse + 0.01)
    rec = mh.record_call(loaded("llama").model, **eager.padded(fresh, (11,), VOCAB_SIZE))
    assert rec.provenance["float64_error"] == pytest.approx(math.expm1(0.01), rel=1e-3)


def test_a_model_that_reads_two_texts_in_one_call_has_its_layers_twice(loaded, fresh):
    model, ids = loaded("gpt2").model, eager.padded(fresh, (7, 7), VOCAB_SIZE)["input_ids"]
    both, alone = mh.record_call(eager.Twice(model).eval(), ids), [mh.record_call(model, x) for x in (ids, ids.flip(1))]
    count = len(alone[0].layers)
    assert [layer.site.module for layer in both.layers][::count] == [
        "model.transformer.h.0.attn",
        "model.transformer.h.0.attn#2",
    ]
    for layer, want in zip(both.layers, [*alone[0].layers, *alone[1].layers], strict=True):
        eager.assert_near(layer.weights(text=1), want.weights(text=1))


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("text", ["", "   \n\t "])
def test_an_empty_text_is_one_clear_line(text, loaded):
    lm = loaded("llama")
    refuses(TextError, "^the text is empty: give at least one word.$", mh.record, lm, text)
    refuses(TextError, "^text 1 is empty: give at least one word.$", mh.record, lm, ["the cat", text, "the dog"])


def test_an_empty_text_or_none_or_what_is_no_text_is_one_clear_line(loaded):
    lm = loaded("llama")
    refuses(TextError, "no text was given: give at least one", mh.record, lm, [])
    refuses(TextError, "text 1 is an int: give strings", mh.record, lm, ["the cat", 7])
    refuses(TextError, "^texts is a bytes: give a text, or a list of texts", mh.record, lm, b"the cat")
    message = "long='wndows' is not a way to read a long text: use one of windows, truncate, whole"
    refuses(TextError, message, lambda: mh.record(lm, mh.Inputs("the cat", long="wndows")))
    message = "LlamaForCausalLM has no tokenizer.*load it with tokenizer=, or use record_call"
    refuses(ModelError, message, mh.record, mh.load(lm.model, tokenizer=False), "the cat")


def test_a_mask_with_holes_is_refused(loaded, fresh):
    inputs = eager.padded(fresh, LENGTHS, VOCAB_SIZE)
    inputs["attention_mask"][2, 4] = 0
    with pytest.raises(RecordingError, match="attention_mask has holes: a text must be one run of ones"):
        mh.record_call(loaded("llama").model, **inputs)


def test_asking_for_what_is_not_there_says_what_is(loaded, fresh):
    layer = mh.record_call(loaded("llama").model, **eager.padded(fresh, LENGTHS, VOCAB_SIZE)).layers[1]
    for head in (6, -1):
        refuses(ShapeError, rf"head={head} is not in layer 1: it has heads 0 to 5", layer.weights, head=head)
    refuses(ShapeError, "text=4 is not in this recording: it holds 4 texts", layer.weights, text=4)
    refuses(ShapeError, "a window has step 1, but .* has step 2", layer.weights, queries=slice(0, 9, 2))
    with pytest.raises(ShapeError, match="keys run from 0 to 7, but text 1 has 7"):
        layer.weights_at(torch.tensor([0, 1]), torch.tensor([0, 7]), text=1)
    refuses(ShapeError, "features has 8 rows, but text 1 has 7", layer.project, torch.ones(8, 2), text=1)


def test_a_window_too_large_to_hold_is_refused_with_its_size(loaded, fresh, monkeypatch):
    monkeypatch.setattr("manyheads.recording.layer.WINDOW_BYTES", 6 * 11 * 11 * 4 - 1)
    layer = mh.record_call(loaded("llama").model, **eager.padded(fresh, LENGTHS, VOCAB_SIZE)).layers[0]
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
    with eager.implementation(lm.model, attention):
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
    own = [eager.eager_maps(lm.model, input_ids=rec.tokens.ids[i : i + 1, :n]) for i, n in enumerate(lengths)]
    for text in range(len(lengths)):
        for layer, one in zip(rec.layers, [one[0] for one in own[text]], strict=True):
            eager.assert_near(layer.weights(text=text), one, f"window {text}")


def test_what_is_too_long_is_cut_or_refused_with_both_numbers_and_exactly_the_models_positions_is_not(loaded, fresh):
    lm = loaded("bert", max_position_embeddings=16)
    text = some_text(fresh, 40)
    windows, cut = mh.record(lm, text), mh.record(lm, mh.Inputs(text, long="truncate"))
    assert len(windows.tokens.lengths) > 2 and cut.tokens.lengths.tolist() == [16]
    assert torch.equal(cut.tokens.ids, windows.tokens.ids[:1])
    assert cut.tokens.special[0].nonzero().flatten().tolist() == [0, 15]
    assert cut.provenance["windows"] == "the text cut to the model's 16 positions"
    text = "the cat sat on the table and the dog sat on the chair in the house"
    message = r"text 1 has 18 tokens, but BertModel has 16 positions: read it in windows.*cut it"
    refuses(TextError, message, mh.record, lm, mh.Inputs(["the cat", text], long="whole"))
    assert mh.record(lm, mh.Inputs("the cat", long="whole")).tokens.lengths.tolist() == [4]
    text = "the cat " * 7
    for long in ("windows", "truncate", "whole"):
        rec = mh.record(lm, mh.Inputs(text, long=long))
        assert rec.tokens.lengths.tolist() == [16] and rec.provenance["windows"] == ""


# ---------------------------------------------------------------------------------------------------------------- size


def size_of(rec: Recording) -> str:
    """Padding included, since it lies in memory."""
    cells = len(rec.tokens.lengths) * rec.tokens.longest
    return f"{gb(rec.num_bytes)}, in memory and as a file ({gb(rec.num_bytes // cells)} a token)"


def test_a_recording_that_many_would_not_expect_warns_of_its_size_and_the_library_counts_it(
    loaded, monkeypatch, caplog
):
    lm = loaded("llama")
    rec = mh.record(lm, "the cat sat")
    assert not caplog.messages
    assert Recorder().bytes_per_token(lm) * rec.tokens.longest == rec.num_bytes
    with_values = mh.record(lm, "the cat sat", keep=recorder.KEEP)
    assert Recorder(recorder.KEEP).bytes_per_token(lm) * rec.tokens.longest == with_values.num_bytes > rec.num_bytes
    refuses(RecordingError, "a recording keeps q, k and lse", Recorder, ("q",))
    monkeypatch.setattr(recorder, "LARGE_FILE", rec.num_bytes)
    mh.record(lm, "the cat")
    mh.record(lm, "the cat sat")
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING and warning.getMessage().endswith(size_of(rec))


@pytest.mark.thinned
@pytest.mark.parametrize("keep", [("q", "k", "lse"), ("q", "k", "v", "lse")], ids=str)
@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "gpt_oss"])
def test_the_size_is_said_before_it_is_taken_and_is_right(name, keep, loaded, fresh, caplog):
    lm = loaded(name)
    with eager.implementation(lm.model, "eager"), caplog.at_level(logging.INFO, logger="manyheads"):
        rec = mh.record(lm, [some_text(fresh, n) for n in (23, 7, 11)], keep=keep)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "manyheads"]
    longest = int(rec.tokens.lengths.max())
    assert said == f"recording 3 texts of up to {longest} tokens: {size_of(rec)}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_recording_that_would_not_fit_is_refused_before_the_model_runs_and_what_fits_is_said(
    dtype, loaded, monkeypatch, caplog
):
    lm = mh.load(loaded("llama").model.to(dtype), tokenizer=loaded("llama").tokenizer)
    with caplog.at_level(logging.INFO, logger="manyheads"):
        rec = mh.record(lm, "the cat sat on the table")
    num_tokens = rec.tokens.longest
    assert caplog.messages == [f"recording 1 text of up to {num_tokens} tokens: {size_of(rec)}"]
    # Room for what was recorded, to the byte; then for a byte less.
    free = math.ceil(rec.num_bytes / recorder.MEMORY_SHARE)
    monkeypatch.setattr(recorder, "free_bytes", {torch.device("cpu"): free}.get)
    assert mh.record(lm, "the cat sat on the table").num_bytes == rec.num_bytes
    for path, module in [("the model", lm.model), *lm.model.named_children()]:
        module.register_forward_pre_hook(lambda *_, path=path: pytest.fail(f"{path} ran"))
    message = (
        rf"would take [\d.]+ kB on cpu, where [\d.]+ kB are free: about {num_tokens} tokens fit, and these are "
        rf"{num_tokens + 1}, padding included\. Record fewer or shorter texts, or use measure\(\)"
    )
    refuses(ModelError, message, mh.record, lm, "the cat sat on the table the")
    refuses(ModelError, r"about .* tokens fit, and these are ", mh.record, lm, "the cat", generate=num_tokens)


def test_a_device_that_runs_out_of_memory_on_the_way_is_an_error_in_words(loaded):
    lm = loaded("llama")
    assert lm.spec.sites

    def run_out(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    for module in lm.model.modules():
        module.register_forward_pre_hook(run_out)
    message = r"ran out of memory on cpu as it read 2 tokens, padding included; [\d.]+ kB of it were for the "
    refuses(ModelError, message, mh.record, lm, "the cat")


def test_where_the_system_does_not_say_what_is_free_nothing_is_refused(loaded, monkeypatch):
    lm = loaded("llama")
    monkeypatch.setattr(recorder, "free_bytes", lambda device: None)
    assert mh.record(lm, "the cat").num_bytes > 0
    monkeypatch.undo()
    free = recorder.free_bytes(lm.device)
    assert free is None or free > 1e6
