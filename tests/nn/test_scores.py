"""Products that decide a weight are computed as they stand, whatever the model around them runs in."""

import threading

import pytest
import torch

import manyheads as mh
from manyheads.nn import exact_arithmetic
from tests.models.eager import MAKERS, draw, implementation
from tests.models.tiny import tiny_tokenizer

TF32 = torch.backends.cuda.matmul


def test_autocast_is_off_inside_and_as_it_was_after():
    x = torch.randn(3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x.T).dtype == torch.bfloat16
        with exact_arithmetic():
            assert (x @ x.T).dtype == torch.float32
        assert (x @ x.T).dtype == torch.bfloat16
    with exact_arithmetic():
        assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


@pytest.fixture
def tf32():
    TF32.allow_tf32 = True
    yield
    TF32.allow_tf32 = False


def test_tf32_is_off_until_the_last_thread_has_left_and_then_as_it_was(tf32):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with exact_arithmetic():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with exact_arithmetic():
        thread.start()
        assert inside.wait(30) and TF32.fp32_precision == "ieee"
    assert TF32.fp32_precision == "ieee", "the other is still inside"
    leave.set()
    thread.join()
    assert TF32.fp32_precision == "tf32" and TF32.allow_tf32
    with pytest.raises(KeyError), exact_arithmetic():
        raise KeyError
    assert TF32.allow_tf32


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ["llama", "bert", "gemma2"])
@pytest.mark.sampled(1)
def test_a_model_under_autocast_is_recorded_as_it_computed(name, fresh):
    """Its q and k are bfloat16, the weights that belong to them are not."""
    model = MAKERS[name](seed=draw(fresh))
    lm = mh.load(model, tokenizer=tiny_tokenizer(special_tokens=name == "bert"))
    text = "the old cat sat on the table and the dog said why is the cat here"
    with torch.autocast("cpu", torch.bfloat16):
        rec = mh.record(lm, text)
        table = mh.measure(lm, text, ["entropy", "missing_mass"])
        with implementation(model, "eager"), torch.no_grad():
            ids = torch.tensor([lm.tokenizer(text)["input_ids"]])
            maps = model(input_ids=ids, output_attentions=True).attentions
    for index, (layer, own) in enumerate(zip(rec.layers, maps, strict=True)):
        weights = layer.weights(text=0)
        scores = (weights.log() + layer.lse[0][..., None])[weights > 0]
        assert layer.q.dtype == torch.bfloat16 and weights.dtype == torch.float32
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]), atol=2e-4, rtol=0)
        # Eager's scores are bfloat16, a step of 2^-8 of the largest, and so is what every layer before this one gave.
        step = 2**-8 * float(scores.abs().max())
        torch.testing.assert_close(weights, own[0].float(), atol=(1.5 + index) * step, rtol=0)
    assert max(map(abs, table["missing_mass"])) < 2e-4
