"""What plans should do, done by hand on transformers' own modules: an oracle that shares no code with them.

Each oracle stands in for the input of an output projection (a forward pre-hook), by plain torch: the heads' outputs
side by side, text by text. Weights are those of the model's own eager maps; values come from its own projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import manyheads as mh
from tests.models.eager import PROJECTION, implementation
from tests.models.tiny import (
    attend_by,
    tiny_bert,
    tiny_gemma2,
    tiny_gpt2,
    tiny_gpt_oss,
    tiny_llama,
    tiny_t5,
    tiny_tokenizer,
)
from tests.models.tiny_media import tiny_vit

SAME = 1e-5  # of the largest output
MATTERS = 1e-4
MAKERS = {
    "bert": tiny_bert,
    "gpt2": tiny_gpt2,
    "llama": tiny_llama,  # GQA: 6 heads over 3
    "gemma2": tiny_gemma2,  # softcap, windows of 7
    "gpt_oss": tiny_gpt_oss,  # sinks, windows of 5
    "t5": tiny_t5,  # three stacks, a bias on its scores
    "vit": tiny_vit,
}
PROJECTIONS = {
    **{name: {"": path} for name, path in PROJECTION.items()},
    "t5": {
        "encoder": "encoder.block.{}.layer.0.SelfAttention.o",
        "decoder": "decoder.block.{}.layer.0.SelfAttention.o",
        "cross": "decoder.block.{}.layer.1.EncDecAttention.o",
    },
    "vit": {"": "layers.{}.attention.o_proj"},
}
VALUES = {
    "bert": "encoder.layer.{}.attention.self.value",
    "llama": "model.layers.{}.self_attn.v_proj",
    "gemma2": "model.layers.{}.self_attn.v_proj",
    "gpt_oss": "model.layers.{}.self_attn.v_proj",
}
HEADS = {"bert": 5, "gpt2": 4, "llama": 6, "gemma2": 4, "gpt_oss": 6, "t5": 4, "vit": 3}
ONLY_EAGER = ("gemma2", "gpt_oss")
CASES = [(name, attention) for name in MAKERS for attention in ("eager", "sdpa")[: 1 if name in ONLY_EAGER else 2]]
TEXTS = (
    "the cat sat on the table and the dog said why is the cat here",
    "a king found the old book",
    "she told the child a long story about rain , snow , fire and wind",
    "seven birds sat near the river",
)


def loaded(
    name: str, seed: int, attention: str | None = None, dtype: torch.dtype = torch.float32, **config: Any
) -> Any:
    """A tiny model in hand with a tokenizer, its attention computed as said."""
    model = MAKERS[name](seed=seed, **config).to(dtype)
    if dtype == torch.float64:
        model.config._experts_implementation = "eager"  # the grouped product of experts has no float64
    if attention is not None:
        attend_by(model, attention)
    return mh.load(model, tokenizer=tiny_tokenizer(special_tokens=name == "bert"))


def projection(name: str, model: Any, layer: int, stack: str = "") -> nn.Module:
    return model.get_submodule(PROJECTIONS[name][stack].format(layer))


def assert_close(got: Tensor, want: Tensor, share: float = SAME) -> None:
    """To a share of the largest number."""
    assert got.shape == want.shape
    gap, largest = float((got - want).abs().max()), float(want.abs().max())
    assert gap <= share * largest, f"{gap:.2e} apart, of {largest:.2e}"


def assert_matters(edited: Tensor, plain: Tensor) -> None:
    assert float((edited - plain).abs().max()) > MATTERS, "the intervention changed nothing: this proves nothing"


def output(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The first output; of padded texts, the rows that are not padding."""
    with torch.no_grad():
        got = model(**inputs)[0]
    real = inputs.get("attention_mask")
    return got if real is None or got.shape[:2] != real.shape else got[real.bool()]


def edited(lm: Any, plan: Any, inputs: dict[str, Tensor], corpus: Any = None) -> Tensor:
    """The first output under a plan: what the oracles are held against."""
    with mh.applied(lm, plan, corpus=corpus):
        return output(lm.model, inputs)


@contextmanager
def feeding(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, an output projection reads what `change` makes of its input."""
    handle = module.register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def reading(modules: dict[Any, nn.Module]) -> Iterator[dict[Any, list[Tensor]]]:
    """Inside, what goes into each of some modules is kept, call after call."""
    seen: dict[Any, list[Tensor]] = {name: [] for name in modules}
    with ExitStack() as stack:
        for name, module in modules.items():
            hook = module.register_forward_pre_hook(lambda _, args, n=name: seen[n].append(args[0].detach().clone()))
            stack.callback(hook.remove)
        yield seen


def without_heads(name: str, model: Any, layer: int, heads: list[int], stack: str = "") -> None:
    """Zeros in the output projection's columns of some heads: for good, so on a copy."""
    module, count = projection(name, model, layer, stack), HEADS[name]
    weight = module.weight.data if isinstance(module, nn.Linear) else module.weight.data.T  # GPT-2's Conv1D
    width = weight.shape[1] // count
    for head in heads:
        weight[:, head * width : (head + 1) * width] = 0


def by_head(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1))


def with_heads(x: Tensor, heads: list[int], new: Tensor | float, count: int) -> Tensor:
    """Heads side by side, some of them replaced by `new`, which broadcasts to [b, q, heads, f]."""
    out = by_head(x.clone(), count)
    out[:, :, heads] = torch.as_tensor(new, dtype=x.dtype).expand_as(out[:, :, heads])
    return out.flatten(-2)


def weighted(name: str, model: Any, layer: int, inputs: dict[str, Tensor], heads: list[int], weights: Any) -> Tensor:
    """What some heads say with other weights: `weights` maps [b, h, q, k] to [b, q, k], one for all of them, or to
    [b, n, q, k], one for each."""
    with implementation(model, "eager"), torch.no_grad():
        values: list[Tensor] = []
        module = model.get_submodule(VALUES[name].format(layer))
        hook = module.register_forward_hook(lambda _, args, out: values.append(out.detach()))
        maps = model(**inputs, output_attentions=True).attentions[layer]
        hook.remove()
    width = projection(name, model, layer).weight.shape[1] // HEADS[name]
    v = values[0].unflatten(-1, (-1, width))  # [b, k, g, f]
    own = [head // (HEADS[name] // v.shape[2]) for head in heads]
    new = weights(maps)
    each = new if new.ndim == 4 else new[:, None].expand(-1, len(heads), -1, -1)
    return torch.einsum("bnqk,bknf->bqnf", each, v[:, :, own])


def hook_counts(model: Any) -> list[tuple[int, int, bool]]:
    """What of a plan could be left on a model's modules."""
    return [
        (len(each._forward_hooks), len(each._forward_pre_hooks), "forward" in vars(each)) for each in model.modules()
    ]
