"""Reading on a device gives the host's numbers: load, spec, recordings, tables, taps, generation, pictures, sounds."""

import pytest
import torch

import manyheads as mh
from manyheads.measurement import measure_call
from manyheads.recording import Recording
from manyheads.texts import Sinks
from tests.device.conftest import MAKERS, TEXTS, assert_same, each, on_device
from tests.models.eager import implementation, padded
from tests.models.test_flash import (
    install,  # noqa: F401
    packed_inputs,
)
from tests.models.tiny import VOCAB_SIZE

MODELS = sorted(MAKERS)
WRITERS = [("llama", "static"), ("gemma2", "static"), ("llama", "dynamic"), ("gemma2", "dynamic"), ("t5", "dynamic")]
WORDY = [name for name in MODELS if name != "t5"]


def assert_same_recording(got: Recording, want: Recording, share=5e-5):
    """Every layer's tensors and weights; runs of masks, tokens and labels on the host."""
    assert list(got.stacks) == list(want.stacks)
    assert_same(got.tokens, want.tokens)
    assert got.provenance["guard_error"] < 1e-4
    for stack, layers in want.stacks.items():
        for one, other in zip(got.stacks[stack], layers, strict=True):
            assert {one.q.device.type, one.k.device.type, one.lse.device.type} == {"cuda"}
            assert {one.lengths.device.type, one.mask.start.device.type} == {"cpu"}
            assert_same((one.q, one.k, one.v, one.lse), (other.q, other.k, other.v, other.lse), stack, share)
            assert_same((one.mask.start, one.mask.stop), (other.mask.start, other.mask.stop), stack)
            for text in range(len(other.lengths)):
                assert_same(one.weights(text=text), other.weights(text=text), f"{stack} weights", share)


def test_load_puts_a_model_on_a_device_and_says_where(tmp_path, both):
    host, _ = both("llama")
    host.model.save_pretrained(tmp_path)
    lm = mh.load(tmp_path, tokenizer=host.tokenizer, device="cuda:1")
    assert lm.device == torch.device("cuda:1") and "cuda:1" in lm.because
    assert lm.spec.sites == host.spec.sites and lm.weights_hash == host.weights_hash


@pytest.mark.parametrize("name", each(MODELS, "gpt_oss"))
def test_texts_are_recorded(name, both, tmp_path):
    host, device = both(name)
    assert device.spec == host.spec
    keep = ("q", "k", "v", "lse")
    got, want = (mh.record(lm, TEXTS, keep=keep) for lm in (device, host))
    assert_same_recording(got, want)
    got.save(tmp_path / "device.heads")
    stored = mh.open_recording(tmp_path / "device.heads")
    for stack, layers in want.stacks.items():
        for one, other in zip(stored.stacks[stack], layers, strict=True):
            assert_same(one.weights(text=1), other.weights(text=1), share=5e-5)


@pytest.mark.parametrize("name", each(["bert", "llama", "mistral"], "mistral"))
@pytest.mark.parametrize("side", each(["left", "right"], "left"))
def test_a_padded_call_is_recorded_and_measured(name, side, both, fresh):
    host, device = both(name)
    inputs = padded(fresh, (19, 11, 14), host.model.config.vocab_size, side)
    got, want = mh.record_call(device.model, **on_device(inputs)), mh.record_call(host.model, **inputs)
    assert_same_recording(got, want)
    got, want = measure_call(device.model, **on_device(inputs)), measure_call(host.model, **inputs)
    for statistic in want.names:
        assert_same(got.column(statistic), want.column(statistic), statistic, 5e-5)


@pytest.mark.parametrize("statistics", each(["default", "all"], "all"))
@pytest.mark.parametrize("name", each(WORDY, "gemma2"))
def test_texts_are_measured(name, statistics, both):
    host, device = both(name)
    got, want = (mh.measure(lm, TEXTS, statistics, sinks=Sinks(first=True)) for lm in (device, host))
    assert got.names == want.names and got.heads == want.heads
    for statistic in want.names:
        assert_same(got.column(statistic), want.column(statistic), statistic, 5e-5)


@pytest.mark.slow
def test_sinks_are_looked_for(both):
    host, device = both("llama")
    got, want = (mh.measure(lm, TEXTS) for lm in (device, host))
    assert (got.sinks.first, got.sinks.ids) == (want.sinks.first, want.sinks.ids)


@pytest.mark.parametrize("name", each(["llama", "gpt_oss", "t5"], "t5"))
def test_a_tap_shows_calls_and_edits_them(name, both):
    results = []
    for lm in both(name)[::-1]:
        shown = []
        edits = [lambda call: call.out * 0.5 if call.site.layer == 0 else None]
        inputs = lm.tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False).to(lm.device)
        decoder = {"decoder_input_ids": inputs["input_ids"]} if name == "t5" else {}
        with mh.tap(lm.model, on_call=shown.append, edits=edits), torch.no_grad():
            logits = lm.model(**inputs, **decoder).logits
        results.append(([call.lse for call in shown], [call.value_norms() for call in shown], logits))
    assert_same(*results, share=5e-5)


@pytest.mark.parametrize("writer", each(WRITERS, ("llama", "static")), ids="-".join)
@pytest.mark.slow
def test_a_text_that_is_written_is_recorded(writer, both):
    name, cache = writer
    options = {"cache_implementation": "static"} if cache == "static" else {}
    # transformers' cache wants as many layers in a decoder as in its encoder.
    host, device = both(name, **({"num_decoder_layers": 2} if name == "t5" else {}))
    got, want = (mh.record(lm, TEXTS, generate=4, **options) for lm in (device, host))
    assert_same_recording(got, want)


# =========================================================================================================== flash-attn
# flash-attn's functions (stand-ins) on a device: what is read off them and their lse are the host's.


@pytest.mark.parametrize("texts", each(["padded", "packed", "cu_seq_lens"], "packed"))
def test_what_flash_attention_was_handed(texts, both, install, fresh):  # noqa: F811
    host, device = (lm.model for lm in both("gemma2"))
    inputs = padded(fresh, (11, 7, 17), VOCAB_SIZE) if texts == "padded" else packed_inputs(fresh, texts)
    recordings = []
    for model, moved in ((host, inputs), (device, on_device(inputs))):
        install(model, "flash_attention_2")
        with implementation(model, "flash_attention_2"):
            recordings.append(mh.record_call(model, **moved))
    want, got = recordings
    assert list(got.provenance["backend"]) == ["the model's own fused kernel returned the lse (flash_attention_2)"]
    for layer, other in zip(got.layers, want.layers, strict=True):
        assert_same(layer.lse, other.lse)
        assert_same(layer.weights(text=0), other.weights(text=0))
