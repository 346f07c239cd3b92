"""QK-clip: heads whose scores grew past tau are at tau afterwards, on the same input, and no bit of the others changed.

Oracle: the scores of the q and k that the model hands to its attention function, in float64, by a function that stands
in the place of it; of our own and torch's layer, from their weights by hand.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import manyheads as mh
from manyheads.errors import ModelError, PlanError
from manyheads.watching.qk_clip import split_factor
from tests.models.eager import draw, implementation
from tests.models.tiny import VOCAB_SIZE, tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama
from tests.processes import forked
from tests.refusals import refuses

ROOT = Path(__file__).parents[2]
AT_TAU = 1e-5
SIZES = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 48, "intermediate_size": 68, "num_hidden_layers": 2,
    "num_attention_heads": 6, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
GQA = SIZES | {"num_key_value_heads": 3}
MLA = SIZES | {
    "num_key_value_heads": 6, "kv_lora_rank": 14, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 10,
    "first_k_dense_replace": 2,
}  # fmt: skip
MAKERS = {
    "llama: GQA": (tiny_llama, {"num_kv_heads": 3}),
    "llama: MQA": (tiny_llama, {"num_kv_heads": 1}),
    "bert: MHA with biases": (tiny_bert, {}),
    "gpt2: fused, transposed": (tiny_gpt2, {}),
    "gemma2: softcap": (tiny_gemma2, {}),
    "qwen2: GQA with biases": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**GQA)),
    "gpt_neox: fused by head": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**SIZES)),
    "phi3: fused GQA": (hf.Phi3ForCausalLM, hf.Phi3Config(**GQA, original_max_position_embeddings=64)),
    "olmo2: a norm over all heads": (hf.Olmo2ForCausalLM, hf.Olmo2Config(**GQA)),
    "cohere: a norm's row a head": (hf.CohereForCausalLM, hf.CohereConfig(**GQA, use_qk_norm=True)),
    "stablelm: a norm a head": (hf.StableLmForCausalLM, hf.StableLmConfig(**GQA, qk_layernorm=True)),
    "deepseek_v3: MLA": (hf.DeepseekV3ForCausalLM, hf.DeepseekV3Config(**MLA, q_lora_rank=18)),
    "deepseek_v3: MLA, q in one": (hf.DeepseekV3ForCausalLM, hf.DeepseekV3Config(**MLA, q_lora_rank=None)),
}
QUICK = ("llama: GQA", "gpt2: fused, transposed", "phi3: fused GQA", "olmo2: a norm over all heads", "deepseek_v3: MLA")


def tiny(name: str, fresh: torch.Generator) -> Any:
    """The model in float64, in training mode, without dropout; every weight random, biases and norms too."""
    maker, how = MAKERS[name]
    if isinstance(how, dict):
        model = maker(seed=draw(fresh), **how)
    else:
        with torch.random.fork_rng():
            torch.manual_seed(draw(fresh))
            model = maker(how)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=fresh, dtype=torch.float64).to(parameter.dtype)
            parameter.add_(noise * (0.3 if parameter.ndim == 1 or "norm" in path else 0.08))
    return model.double().train()


def tokens(fresh: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(5, VOCAB_SIZE, shape, generator=fresh)


class Spy:
    """An attention function that keeps q, k and v, and each head's largest visible score, by module."""

    def __init__(self, model: nn.Module) -> None:
        self.paths = {module: path for path, module in model.named_modules()}
        self.seen: dict[str, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def __call__(self, module, q, k, v, mask, scaling=None, softcap=None, **_):
        copies = q.shape[1] // k.shape[1]
        scores = (q.double() @ k.double().repeat_interleave(copies, 1).mT) * (scaling or q.shape[-1] ** -0.5)
        hidden = torch.zeros_like(scores, dtype=torch.bool) if mask is None else (mask < -1e4).expand_as(scores)
        largest = scores.masked_fill(hidden, -torch.inf).amax((0, 2, 3))
        self.seen[self.paths[module]] = (q.detach(), k.detach(), v.detach(), largest.detach())
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(v.dtype)
        return (weights @ v.repeat_interleave(copies, 1)).transpose(1, 2), weights


@contextmanager
def spied(model: nn.Module):
    spy, maps, masks = Spy(model), hf.AttentionInterface._global_mapping, hf.AttentionMaskInterface._global_mapping
    maps["spy"], masks["spy"] = spy, masks["eager"]
    try:
        with implementation(model, "spy"), torch.no_grad():
            yield spy
    finally:
        del maps["spy"], masks["spy"]


def looked_at(model: nn.Module, ids: Tensor) -> tuple[dict, dict]:
    """What the model hands to its attention function; and the inputs of each attention module, to call it again."""
    inputs: dict[str, Any] = {}
    with spied(model) as spy:
        handles = [
            module.register_forward_pre_hook(
                lambda _, args, kwargs, path=path: inputs.__setitem__(path, (args, kwargs)), with_kwargs=True
            )
            for path, module in model.named_modules()
        ]
        model(input_ids=ids, use_cache=False)
        for handle in handles:
            handle.remove()
    return spy.seen, {path: inputs[path] for path in spy.seen}


def looked_at_again(model: nn.Module, inputs: dict) -> dict:
    """The same layers on the same inputs."""
    with spied(model) as spy:
        for path, (args, kwargs) in inputs.items():
            model.get_submodule(path)(*args, **kwargs)
    return spy.seen


@pytest.mark.thinned(name=QUICK)
@pytest.mark.parametrize("name", MAKERS)
def test_clipped_heads_are_at_tau_and_of_the_others_no_bit_changed(name, fresh):
    model, ids = tiny(name, fresh), tokens(fresh, 3, 11)
    before, inputs = looked_at(model, ids)
    maxima = torch.cat([largest for *_, largest in before.values()])
    tau = float(maxima.sort().values[len(maxima) // 2 - 1 :][:2].mean())  # between the two in the middle
    assert tau > 0, "half of the heads are to be clipped"
    clip = mh.QKClip(model, tau=tau)
    assert "tried on 4 tokens" in clip.because
    unclipped = {path: parameter.detach().clone() for path, parameter in model.named_parameters()}
    model(input_ids=ids, use_cache=False).logits if hasattr(model, "lm_head") else model(input_ids=ids)
    for path, parameter in model.named_parameters():
        assert torch.equal(parameter, unclipped[path]), f"the trial left its mark on {path}"
    done = clip.step()
    clip.close()
    after = looked_at_again(model, inputs)
    for layer, (path, (q, k, v, largest)) in enumerate(before.items()):
        new_q, new_k, new_v, new_largest = after[path]
        clipped = {head.head.index: head for head in done.clipped if head.head.layer == layer}
        assert sorted(clipped) == (largest > tau).nonzero()[:, 0].tolist()
        copies = q.shape[1] // k.shape[1]
        for head in range(q.shape[1]):
            if head in clipped:
                np.testing.assert_allclose(clipped[head].max_logit, float(largest[head]), rtol=1e-6)
                assert new_largest[head] <= tau * (1 + AT_TAU)
                assert new_largest[head] >= tau * (1 - AT_TAU), "no more than needed"
            else:
                assert torch.equal(q[:, head], new_q[:, head])
                assert torch.equal(k[:, head // copies], new_k[:, head // copies])
        assert torch.equal(v, new_v)
    assert 0 < len(done.clipped) < len(maxima) and done is clip.last
    np.testing.assert_allclose(done.max_logit, float(maxima.max()), rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_alpha_splits_a_factor_between_q_and_k(alpha, fresh):
    """By the paper's formula with a key head each; a shared key head takes what its least clipped query head allows."""
    gamma = torch.rand(6, generator=fresh, dtype=torch.float64) * 0.9 + 0.05
    q, k = split_factor(gamma, 6, alpha)
    np.testing.assert_allclose(q, gamma**alpha, rtol=1e-12)
    np.testing.assert_allclose(k, gamma ** (1 - alpha), rtol=1e-12)
    gamma[2] = 1.0
    q, k = split_factor(gamma, 2, alpha)
    np.testing.assert_allclose(q * k.repeat_interleave(3), gamma, rtol=1e-12)
    assert k[0] == 1 and q[2] == 1 and float(k[1]) == pytest.approx(float(gamma[3:].max()) ** (1 - alpha))
    assert (q <= 1).all() and (k <= 1).all()


# ------------------------------------------------------------------------------------------- layers without a config


def by_hand(x: Tensor, weight_q: Tensor, weight_k: Tensor, bias_q: Tensor, bias_k: Tensor, d: int) -> list[Tensor]:
    """[b h n d] of x [b n m], as the definition has it."""
    return [
        (x.double() @ weight.double().T + bias.double()).unflatten(-1, (-1, d)).transpose(1, 2)
        for weight, bias in ((weight_q, bias_q), (weight_k, bias_k))
    ]


def largest_of(q: Tensor, k: Tensor, d: int) -> Tensor:
    return (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / d**0.5).amax((0, 2, 3))


def parts_of(layer: nn.Module) -> tuple[Tensor, ...]:
    """Weights and biases of q and k of both kinds of layer, fused or apart."""
    if isinstance(layer, mh.MultiHeadAttention):
        if hasattr(layer.qkv_proj, "weight"):
            h, g, _ = layer.qkv_proj.widths
            weight, bias = layer.qkv_proj.weight, layer.qkv_proj.bias
            return tuple(x.detach().clone() for x in (weight[:h], weight[h : h + g], bias[:h], bias[h : h + g]))
        apart = (layer.qkv_proj.q, layer.qkv_proj.k)
        return tuple(x.detach().clone() for x in (*(one.weight for one in apart), *(one.bias for one in apart)))
    m = layer.embed_dim
    weights = (layer.q_proj_weight, layer.k_proj_weight)
    if layer.in_proj_weight is not None:
        weights = (layer.in_proj_weight[:m], layer.in_proj_weight[m : 2 * m])
    return tuple(x.detach().clone() for x in (*weights, layer.in_proj_bias[:m], layer.in_proj_bias[m : 2 * m]))


M, H, G, D, N = 30, 5, 5, 6, 13
LAYERS = {
    "ours, fused": lambda: mh.MultiHeadAttention(M, 6, 2, head_dim=D, batch_first=True),
    "ours, apart": lambda: mh.MultiHeadAttention(M, 6, 3, head_dim=D, batch_first=True, projections="split"),
    "ours, a learned key": lambda: mh.MultiHeadAttention(M, 5, batch_first=True, add_bias_kv=True),
    "torch's": lambda: nn.MultiheadAttention(M, 5, batch_first=True),
    "torch's, apart": lambda: nn.MultiheadAttention(M, 5, batch_first=True, kdim=M, vdim=17),
    "torch's, a learned key": lambda: nn.MultiheadAttention(M, 5, batch_first=True, add_bias_kv=True),
}


class OneLayer(nn.Module):
    """Self-attention, as a plain module of somebody's."""

    def __init__(self, layer: nn.Module, vdim: int = M) -> None:
        super().__init__()
        self.layer, self.vdim = layer, vdim

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x if self.vdim == M else x[..., : self.vdim], need_weights=False)[0]


def random_layer(name: str, fresh: torch.Generator) -> OneLayer:
    layer = LAYERS[name]()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=fresh) * 0.6)
    return OneLayer(layer.double(), getattr(layer, "vdim", M))


@pytest.mark.parametrize("name", LAYERS)
def test_our_layer_and_torchs_are_clipped(name, fresh):
    model, x = random_layer(name, fresh), torch.randn(2, N, M, generator=fresh, dtype=torch.float64)
    before = parts_of(model.layer)

    def scores() -> tuple[Tensor, Tensor, Tensor]:
        q, k = by_hand(x, *parts_of(model.layer), D)
        learned = getattr(model.layer, "bias_k", None)
        if learned is not None:
            extra = learned.detach().reshape(k.shape[1], 1, D).expand(len(k), -1, -1, -1)
            k = torch.cat([k, extra], 2)
        return q, k, largest_of(q, k, D)

    q, k, largest = scores()
    tau = float(largest.sort().values[2:4].mean())
    with mh.QKClip(model, tau=tau, alpha=0.3) as clip:
        model(x)
        assert "tried on the first batch" in clip.because
        assert all(torch.equal(old, new) for old, new in zip(before, parts_of(model.layer), strict=True))
        done = clip.step()
    clipped = (largest > tau).nonzero()[:, 0].tolist()
    assert [head.head.index for head in done.clipped] == clipped and clipped
    new_q, new_k, new_largest = scores()
    assert (new_largest[clipped] <= tau * (1 + AT_TAU)).all() and (new_largest[clipped] >= tau * (1 - AT_TAU)).all()
    for head in set(range(q.shape[1])) - set(clipped):
        assert torch.equal(q[:, head], new_q[:, head])
        group = head // (q.shape[1] // k.shape[1])
        assert torch.equal(k[:, group], new_k[:, group])
    if q.shape[1] == k.shape[1]:
        gamma = tau / largest[clipped]
        squares = [keys[:, clipped].square().sum((0, 2, 3)) for keys in (new_k, k)]
        np.testing.assert_allclose((squares[0] / squares[1]).sqrt(), gamma**0.7, rtol=1e-6)


class Repeating(nn.Module):
    """A plain module that repeats its key heads before it attends."""

    def __init__(self, *, interleave: bool = True, clamp: float | None = None, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = nn.Linear(M, 36), nn.Linear(M, 12), nn.Linear(M, 12)
        self.wo, self.interleave, self.clamp = nn.Linear(36, M), interleave, clamp
        self.qn = nn.Identity() if norm is None else norm

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, D)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q = self.qn(q) if self.clamp is None else q.clamp(-self.clamp, self.clamp)
        k, v = ((y.repeat_interleave(3, 1) if self.interleave else y.repeat(1, 3, 1, 1)) for y in (k, v))
        return self.wo(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def test_a_plain_module_that_repeats_its_keys_is_clipped_by_its_own(fresh):
    model, x = Repeating(), torch.randn(2, N, M, generator=fresh) * 30
    with mh.QKClip(model, tau=2.0) as clip:
        model(x)
        assert clip.step().clipped
        model(x)
        assert clip.step().max_logit <= 2.0 * (1 + 1e-4)


# ------------------------------------------------------------------------------------------- what counts as a maximum


def test_the_maximum_is_of_all_micro_batches_since_the_last_step_and_of_no_others(fresh):
    model, x = random_layer("ours, fused", fresh), torch.randn(2, N, M, generator=fresh, dtype=torch.float64)
    largest = largest_of(*by_hand(x, *parts_of(model.layer), D), D)
    with torch.no_grad():
        model.layer.qkv_proj.bias.zero_()
    largest = float(largest_of(*by_hand(x, *parts_of(model.layer), D), D).max())
    with mh.QKClip(model, tau=1e9) as clip:
        for scale in (1.0, 0.1, 0.5):  # without biases a score is of the input's second degree
            model(x * scale)
        with torch.no_grad():
            model(x * 3)  # an evaluation in between is not trained on
        np.testing.assert_allclose(clip.step().max_logit, largest, rtol=1e-6)
        model(x * 0.5)
        np.testing.assert_allclose(clip.step().max_logit, largest / 4, rtol=1e-6)


def test_a_step_without_a_forward_pass_says_so(fresh, caplog):
    model = random_layer("torch's", fresh)
    with mh.QKClip(model, tau=1e-3) as clip:
        assert clip.last is None
        model(torch.randn(1, 3, M, generator=fresh, dtype=torch.float64))
        assert clip.step().clipped
        before = parts_of(model.layer)
        with caplog.at_level(logging.WARNING, "manyheads"):
            done = clip.step()
    assert "no forward pass with gradients was seen since the last step" in done.because and done.clipped == ()
    assert done.because in caplog.text
    assert all(torch.equal(old, new) for old, new in zip(before, parts_of(model.layer), strict=True))


def test_a_head_whose_largest_score_is_negative_or_infinite_is_left_as_it_is(fresh):
    """tau / S of a negative S is negative, and its root NaN: the bug of Megatron-LM#7517."""
    model = random_layer("torch's", fresh)
    layer, x = model.layer, torch.randn(2, N, M, generator=fresh, dtype=torch.float64)
    with torch.no_grad():
        for head, (of_q, of_k) in enumerate([(1.0, -1.0), (1.0, 1.0), (0.0, 1.0)]):  # scores -12, 12 and 0 at d = 6
            rows = slice(head * D, head * D + D)
            for begin, bias in ((0, of_q), (M, of_k)):
                layer.in_proj_weight[begin:][rows] = 0
                layer.in_proj_bias[begin:][rows] = bias * (12 / 6**0.5) ** 0.5
    with mh.QKClip(model, tau=3.0) as clip:
        model(x)  # the first batch, on which the model is tried, is sound
        with torch.no_grad():
            layer.in_proj_weight[3 * D] = layer.in_proj_weight[M + 3 * D] = 1e200
        before = parts_of(layer)
        model(x)
        done = clip.step()
    largest = largest_of(*by_hand(x, *before, D), D)
    assert float(largest[0]) < 0 < 3 < float(largest[1])
    assert [head.head.index for head in done.clipped if head.head.index < 4] == [1]
    assert "scores of L0H3 are infinite or NaN: not clipped" in done.because
    after = parts_of(layer)
    assert all(bool(part.isfinite().all()) for part in after)
    for old, new in zip(before, after, strict=True):
        for head in (0, 2, 3):
            assert torch.equal(old[head * D : head * D + D], new[head * D : head * D + D])


class Trained(nn.Module):
    """A net in a module that trains it, as Lightning's are: nobody calls the module itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.calls = net, 0

    def training_step(self, batch: Tensor) -> Tensor:
        self.calls += 1
        return self.net(input_ids=batch).logits.sum()


@pytest.mark.parametrize("first_out", ["watch", "clip"])
def test_a_method_that_trains_is_watched_and_clipped_at_once_and_runs_no_more_often(first_out, fresh):
    model = Trained(tiny_llama(seed=draw(fresh), sharpness=30.0).train())
    watch = mh.watch(model, every=1, statistics=["max_logit"], method="training_step")
    clip = mh.QKClip(model, tau=5.0, method="training_step")
    batch = tokens(fresh, 2, 9)
    model.training_step(batch).backward()
    done = clip.step()
    watch.step()
    assert done.clipped and "tried on 4 tokens" in clip.because and model.calls == 1
    np.testing.assert_allclose(watch.latest()["heads/max_logit.max"], done.max_logit, rtol=1e-6)
    parts = [watch, clip] if first_out == "watch" else [clip, watch]
    parts[0].close()
    model.training_step(batch)
    if first_out == "watch":
        assert clip.step().max_logit < done.max_logit
    parts[1].close()
    assert "training_step" not in vars(model) and model.training_step.__func__ is Trained.training_step


# ----------------------------------------------------------------------------------------------------------- refusals


class Adapted(nn.Module):
    """A projection with low-rank additions, as PEFT makes them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A, self.lora_B = (
            nn.Linear(base.in_features, 2, bias=False),
            nn.Linear(2, base.out_features, bias=False),
        )

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


class Quantised(nn.Module):
    """A projection of whole numbers and a scale."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        scale = base.weight.abs().amax() / 127
        self.weight = nn.Parameter((base.weight / scale).round().to(torch.int8), requires_grad=False)
        self.scale = nn.Parameter(scale.detach())

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.to(x.dtype) * self.scale).T


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def first(model: Any) -> Any:
    return model.model.layers[0].self_attn


def adapted(model: Any) -> None:
    first(model).q_proj = Adapted(first(model).q_proj)


def quantised(model: Any) -> None:
    first(model).k_proj = Quantised(first(model).k_proj)


def doubled(model: Any) -> None:
    first(model).q_proj.__class__ = Doubling


def tied(model: Any) -> None:
    model.model.layers[1].self_attn.k_proj.weight = first(model).k_proj.weight


def twice(model: Any) -> None:
    model.model.layers[2] = model.model.layers[0]


def frozen(model: Any) -> None:
    first(model).k_proj.requires_grad_(False)


def computed(model: Any) -> None:
    nn.utils.parametrizations.weight_norm(first(model).q_proj)


def clamped(model: Any) -> None:
    model.config.clip_qkv = 8.0


def shares_values(model: Any) -> None:
    first(model).v_proj.weight = first(model).k_proj.weight


BROKEN = {
    adapted: r"self_attn' \(LlamaAttention\): its q_proj carries an adapter \(LoRA\), so that q or k is made of a sum",
    quantised: r"its weights are quantised.*k_proj.weight \[24, 48\] int8",
    doubled: r"its q_proj is a Doubling, which is not known to be a plain linear map",
    tied: r"used in several places \(model.layers.0.self_attn.k_proj.weight, model.layers.1.self_attn.k_proj.weight\)",
    twice: r"used in several places \(model.layers.0.self_attn.q_proj.weight, model.layers.2.self_attn.q_proj.weight\)",
    frozen: r"the weight of its k_proj is frozen \(requires_grad=False\)",
    computed: r"the weight of its q_proj is computed, not a parameter",
    clamped: r"it clamps q, k and v \(clip_qkv\)",
    shares_values: r"the same weight is used in several places \(.*k_proj.weight, .*v_proj.weight\)",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: one.__name__)
def test_weights_that_cannot_be_scaled_by_head_are_refused_before_anything_changes(broken, fresh):
    model = tiny_llama(3, seed=draw(fresh)).train()
    broken(model)
    before = {path: parameter.detach().clone() for path, parameter in model.named_parameters()}
    refuses(ModelError, "QKClip cannot clip L.*" + BROKEN[broken], mh.QKClip, model)
    assert all(torch.equal(parameter, before[path]) for path, parameter in model.named_parameters())
    assert all(module.training for module in model.modules())
    assert not model._forward_pre_hooks and not model._forward_hooks


def test_a_norm_that_all_heads_share_is_refused(fresh):
    with pytest.raises(ModelError, match=r"its q_norm norms each head after the projection.*\[8\], shared by all 6"):
        mh.QKClip(hf.Qwen3ForCausalLM(hf.Qwen3Config(**GQA, head_dim=8)))
    ours = mh.MultiHeadAttention(M, 5, qk_norm=True)
    refuses(ModelError, r"its q_norm norms each head.*that is \[6\], shared by all 5 heads", mh.QKClip, OneLayer(ours))


class Looped(nn.Module):
    """A layer that runs twice in a forward pass."""

    def __init__(self, layer: OneLayer) -> None:
        super().__init__()
        self.inner = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x))


def test_a_layer_that_attends_twice_in_a_forward_pass_is_refused(fresh):
    model = Looped(random_layer("ours, fused", fresh))
    words = r"module 'inner.layer#2': it attends several times in a forw"
    with mh.QKClip(model), pytest.raises(ModelError, match=words):
        model(torch.randn(2, N, M, generator=fresh, dtype=torch.float64))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"clamp": 0.5}, r"the scores of head \d should be .* of what they were, they were .*: something else than"),
        ({"norm": nn.RMSNorm(D)}, r"the scores of head 0 should be 0.250 of what they were, they were 0\.[5-9]"),
        ({"interleave": False}, "its query and key weights were not found"),
    ],
    ids=["a clamp", "a norm under a name of its own", "keys in another order"],
)
def test_what_the_names_do_not_tell_the_trial_does(how, message, fresh):
    """Before the first forward pass, which raises it."""
    model = Repeating(**how)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with mh.QKClip(model), pytest.raises(ModelError, match="QKClip cannot clip L0.*" + message):
        model(torch.randn(2, N, M, generator=fresh) * 3)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_options_and_other_models_are_refused_by_one_line(fresh, unchecked_types):
    model = random_layer("torch's", fresh)
    for tau in (0.0, -1.0, float("nan"), float("inf")):
        refuses(PlanError, r"tau=.* is not a limit for a score: give a number above 0", mh.QKClip, model, tau=tau)
    for alpha in (-0.1, 1.5):
        refuses(PlanError, r"alpha=.* is not a share of the clip", mh.QKClip, model, alpha=alpha)
    with pytest.raises(ModelError, match=r"watch a torch module, not a LoadedModel"):
        mh.QKClip(mh.models.LoadedModel.__new__(mh.models.LoadedModel))
    llama = tiny_llama(seed=draw(fresh))
    mine, others = torch.optim.SGD(llama.parameters(), 0.1), torch.optim.SGD(tiny_llama().parameters(), 0.1)
    with pytest.raises(ModelError, match=r"the optimizer \(SGD\) does not have model.layers.0.self_attn.q_proj.weight"):
        mh.QKClip(llama, optimizer=others)
    mh.QKClip(llama, optimizer=mine).close()
    no_heads = nn.Linear(3, 2)
    with mh.QKClip(no_heads), pytest.raises(ModelError, match="made no attention call that can be seen"):
        no_heads(torch.randn(1, 3))


# ------------------------------------------------------------------------------------------------------ two processes


def in_one_process(make: Any, texts: Tensor, tau: float) -> tuple[Any, Any]:
    model = make(seed=5, sharpness=30.0).double()
    with mh.QKClip(model, tau=tau) as clip:
        for text in texts:
            model(input_ids=text[None])
        return model, clip.step()


def divided(rank: int) -> dict:
    """What one of two processes does: FSDP2 and DDP, each with a text of its own."""
    from torch.distributed.fsdp import fully_shard

    texts, found = tokens(torch.Generator().manual_seed(3), 2, 9), {}
    for name, make in (("llama", tiny_llama), ("gpt2", tiny_gpt2)):
        whole, expected = in_one_process(make, texts, 8.0)
        for kind in ("fsdp", "ddp"):
            model = shell = make(seed=5, sharpness=30.0).double()
            if kind == "ddp":
                shell = nn.parallel.DistributedDataParallel(model)
            else:
                for block in model.model.layers if name == "llama" else ():
                    fully_shard(block)
                fully_shard(
                    model
                )  # the root gathers its own weights, of GPT-2 all, and keeps them until a backward pass
            clip = mh.QKClip(shell, tau=8.0, optimizer=torch.optim.SGD(model.parameters(), 0.1))
            shell(input_ids=texts[rank][None]).logits.sum().backward()
            with torch.no_grad():
                shell(input_ids=texts[rank][None])  # afterwards FSDP keeps some weights gathered
            done = clip.step()
            if kind == "fsdp":
                model.reshard()  # what the optimizer has, not what was gathered for the last forward pass
            worst = 0.0
            for parameter, right in zip(model.parameters(), whole.parameters(), strict=True):
                full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
                worst = max(worst, float((full - right).abs().max() / right.abs().max().clamp_min(1e-9)))
            found[f"{name} {kind}"] = {
                "worst": worst, "clipped": len(done.clipped), "expected": len(expected.clipped),
                "max": done.max_logit / expected.max_logit, "tried": clip.because.startswith("tried on 4 tokens"),
            }  # fmt: skip
    return found


@pytest.mark.slow
def test_two_processes_clip_what_one_clips_that_reads_all_texts(tmp_path):
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    run = subprocess.run(
        [sys.executable, "-m", "tests.watching.test_qk_clip", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(found) == 4
        for name, numbers in found.items():
            assert numbers["worst"] < 1e-6 and abs(numbers["max"] - 1) < 1e-6, (name, numbers)
            assert numbers["clipped"] == numbers["expected"] > 3 and numbers["tried"], (name, numbers)


if __name__ == "__main__":
    found = forked(2, Path(sys.argv[1]), divided)
    sys.exit(not all(found))
