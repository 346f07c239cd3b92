"""Several texts in one row, told apart by positions that begin again: what a row sees ends at its own text.

transformers makes such masks where it is given no attention_mask and no cache. Oracles: the model's own eager maps, and
each text read alone.
"""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import manyheads as mh
from tests.models.eager import draw, eager_maps, implementation
from tests.models.tiny import VOCAB_SIZE, tiny_llama

EXACT = 1e-5
PACKED = ((5, 9, 3), (2, 11, 4))  # the lengths of the texts in each row: 17 tokens
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 36}


def tiny_qwen2(seed):
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        config = Qwen2Config(**SIZES, intermediate_size=44, vocab_size=VOCAB_SIZE, max_position_embeddings=64)
        model = Qwen2ForCausalLM(config).eval()
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.mul_(30.0)
        return model


MAKERS = {"llama": lambda seed: tiny_llama(seed=seed), "qwen2": tiny_qwen2}


@pytest.fixture(params=sorted(MAKERS))
def model(request, fresh):
    return MAKERS[request.param](draw(fresh))


@pytest.fixture
def inputs(fresh):
    places = [torch.cat([torch.arange(n) for n in row]) for row in PACKED]
    return {
        "input_ids": torch.randint(5, VOCAB_SIZE, (2, 17), generator=fresh),
        "position_ids": torch.stack(places),
        "use_cache": False,
    }


def assert_near(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=EXACT)


@pytest.mark.thinned
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_weights_of_packed_texts_are_the_models_own_and_runs_end_at_their_text(attention, model, inputs):
    with implementation(model, attention):
        rec = mh.record_call(model, **inputs)
    maps = eager_maps(model, **inputs)
    assert max(float(one.max()) for one in maps) > 0.3
    for layer, own in zip(rec.layers, maps, strict=True):
        assert layer.mask.dense is None and layer.site.causal
        for row, lengths in enumerate(PACKED):
            assert_near(layer.weights(text=row), own[row])
            begins = [sum(lengths[:at]) for at, length in enumerate(lengths) for _ in range(length)]
            assert layer.mask.start[row].tolist() == begins
            assert layer.mask.stop[row].tolist() == list(range(1, 18))


@pytest.mark.turns(4)
@pytest.mark.thinned
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.sampled(1)
def test_a_packed_text_has_the_weights_that_it_has_alone(attention, model, inputs):
    with implementation(model, attention):
        rec = mh.record_call(model, **inputs)
        for row, lengths in enumerate(PACKED):
            for at in range(len(lengths)):
                span = slice(sum(lengths[:at]), sum(lengths[: at + 1]))
                alone = mh.record_call(model, input_ids=inputs["input_ids"][row : row + 1, span])
                for packed, one in zip(rec.layers, alone.layers, strict=True):
                    assert_near(packed.weights(queries=span, keys=span, text=row), one.weights())


def test_chance_levels_go_by_what_a_packed_row_sees(model, inputs):
    """The entropy of an even spread: over a row's own text so far, not over all that stands before it."""
    table = mh.measure_call(model, **inputs, statistics=["entropy", "entropy.uniform"])
    seen = torch.cat([torch.arange(1, n + 1) for row in PACKED for n in row]).double()
    assert table.column("entropy.uniform") == pytest.approx([float(seen.log().mean())] * len(table.heads))


def test_saved_packed_texts_come_back(model, inputs, tmp_path):
    rec = mh.record_call(model, **inputs)
    rec.save(tmp_path / "packed.heads")
    again = mh.open_recording(tmp_path / "packed.heads")
    assert torch.equal(again.layers[1].weights(text=1), rec.layers[1].weights(text=1))


def test_a_cache_makes_the_model_itself_read_the_row_as_one_text(model, inputs):
    """transformers looks for packed texts only without one; the recording shows what the model did."""
    inputs["use_cache"] = True
    rec = mh.record_call(model, **inputs)
    for layer, own in zip(rec.layers, eager_maps(model, **inputs), strict=True):
        assert_near(layer.weights(text=1), own[1])
        assert layer.mask.start.unique().tolist() == [0]
