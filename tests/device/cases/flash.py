"""flash-attn's functions (stand-ins) on a device: what is read off them and their lse are the host's."""

import pytest

import manyheads as mh
from tests.device.conftest import assert_same, each, on_device
from tests.models.eager import implementation, padded
from tests.models.test_flash import install, packed_inputs  # noqa: F401
from tests.models.tiny import VOCAB_SIZE


@pytest.mark.parametrize("texts", each(["padded", "packed", "cu_seq_lens"], "packed"))
@pytest.mark.turns(2)
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
