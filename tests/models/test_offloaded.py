"""Models that are partly on disk: weights, statistics and generation are those of the same model in memory.

With accelerate, where it is installed: real device maps. Without it: hooks of our own that do what its hooks do.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import manyheads as mh
from manyheads.errors import ModelError
from manyheads.models import device_of
from manyheads.models.loading.offloaded import weight_of
from manyheads.statistics import STATISTICS
from manyheads.texts import Sinks
from tests.models.eager import draw
from tests.models.tiny import save_tiny, tiny_llama, tiny_tokenizer

TEXT = "the old cat sat on the table, and the dog ran"
PARTS = ["model.embed_tokens", *(f"model.layers.{at}" for at in range(3)), "model.norm", "model.rotary_emb", "lm_head"]
MAPS = {
    "all in memory": {"": "cpu"},
    "a layer on disk": {**dict.fromkeys(PARTS, "cpu"), "model.layers.1": "disk"},
    "most on disk": {**dict.fromkeys(PARTS, "disk"), "model.embed_tokens": "cpu"},
    "all on disk": {"": "disk"},
}


def assert_same(offloaded, whole):
    """Recording, every statistic, and generation."""
    got, want = mh.record(offloaded, TEXT, keep=("q", "k", "v", "lse")), mh.record(whole, TEXT)
    assert got.provenance["guard_error"] < 5e-5
    for one, other in zip(got.layers, want.layers, strict=True):
        assert torch.equal(one.weights(), other.weights())
    one, other = (mh.measure(lm, TEXT, statistics="all", sinks=Sinks(first=True)) for lm in (offloaded, whole))
    assert 0 < other["L1H0", "sink_norm_mass"] < 1
    for name in STATISTICS:
        np.testing.assert_allclose(one.column(name), other.column(name), atol=1e-6, err_msg=name)
    one, other = (mh.record(lm, TEXT, generate=3) for lm in (offloaded, whole))
    assert one.tokens.ids.tolist() == other.tokens.ids.tolist()
    assert torch.equal(one.layers[2].weights(), other.layers[2].weights())
    assert offloaded.spec == whole.spec


@pytest.mark.thinned(name=("a layer on disk", "all on disk"))  # between them, and with all in memory, nothing is new
@pytest.mark.parametrize("name", sorted(MAPS))
def test_a_device_map_changes_nothing_that_is_seen(name, fresh, tmp_path):
    folder, tokenizer = tmp_path / "model", tiny_tokenizer(special_tokens=False)
    save_tiny(tiny_llama(seed=draw(fresh)), folder, tokenizer)
    split = AutoModelForCausalLM.from_pretrained(folder, device_map=MAPS[name], offload_folder=str(tmp_path / "away"))
    away = [parameter.device.type == "meta" for parameter in split.parameters()]
    assert any(away) == ("disk" in name) and all(away) == (name == "all on disk")
    assert device_of(split) == torch.device("cpu")
    whole = mh.load(folder)
    assert_same(mh.load(split, tokenizer=whole.tokenizer), mh.load(whole.model, tokenizer=whole.tokenizer))


def offload(model):
    """Every linear map's weight kept beside it, brought before a call and dropped after it, as accelerate does."""

    def bring(module, _):
        module.weight = nn.Parameter(module._hf_hook.weights_map["weight"], requires_grad=False)

    def drop(module, *_):
        module.weight = nn.Parameter(torch.empty_like(module.weight, device="meta"), requires_grad=False)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            kept = SimpleNamespace(weights_map={"weight": module.weight.detach().clone()}, execution_device="cpu")
            module._hf_hook = SimpleNamespace(hooks=(SimpleNamespace(execution_device=None), kept))
            module._hf_hook.weights_map = kept.weights_map
            module.register_forward_pre_hook(bring)
            module.register_forward_hook(drop)
            drop(module)
    return model


def test_weights_that_come_only_while_a_module_runs_are_found_where_they_are_kept(fresh):
    seed, tokenizer = draw(fresh), tiny_tokenizer(special_tokens=False)
    split = offload(tiny_llama(seed=seed))
    assert split.model.layers[1].self_attn.o_proj.weight.device.type == "meta"
    assert_same(mh.load(split, tokenizer=tokenizer), mh.load(tiny_llama(seed=seed), tokenizer=tokenizer))


def test_a_weight_that_is_nowhere_is_refused_in_words_and_needed_for_norms_alone(fresh):
    lm = mh.load(offload(tiny_llama(seed=draw(fresh))), tokenizer=tiny_tokenizer(special_tokens=False))
    projection = lm.model.model.layers[1].self_attn.o_proj
    projection.register_forward_pre_hook(lambda module, _: setattr(module, "weight", module.there), prepend=True)
    projection.there, hook = nn.Parameter(weight_of(projection)), projection._hf_hook
    del projection._hf_hook
    projection._forward_pre_hooks.popitem()  # the one that would look for the numbers in the hook that is gone
    with pytest.raises(ModelError, match=r"the weight of a Linear \(\(48, 48\)\) is on no device, and no hook knows"):
        mh.measure(lm, TEXT, statistics=["sink_norm_mass"])
    assert mh.measure(lm, TEXT, statistics="entropy").column("entropy").shape == (18,)
    projection._hf_hook = hook


def test_inputs_go_where_the_model_runs():
    assert device_of(nn.Linear(2, 3)) == torch.device("cpu") == device_of(nn.Identity())
    away = nn.Linear(2, 3, device="meta")
    assert device_of(away) == torch.device("cpu")
    away._hf_hook = SimpleNamespace(execution_device="cuda:1")
    assert device_of(away) == torch.device("cuda:1")
