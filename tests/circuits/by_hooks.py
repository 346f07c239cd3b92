"""What patching should do, done by forward hooks of plain torch on transformers' own modules, in float64.

Nothing of manyheads is in it, and no attention is written again: a patched query is the output of the model's own query
projection, put in place by a hook. A head that alone reads another run's keys: the layer runs with all keys of its
key/value head replaced, and of that pass this one head's output is taken into the unpatched run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Places:
    """Paths of a layer's projections, by format, and how a fused one is laid out: "side" [q|k|v], "inside" a head."""

    output: str
    q: str
    k: str
    v: str
    fused: str = ""


LLAMA = Places(*(f"model.layers.{{}}.self_attn.{name}_proj" for name in "oqkv"))
PLACES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen3": LLAMA,
    "gemma2": LLAMA,
    "gpt_oss": LLAMA,
    "gpt2": Places("transformer.h.{}.attn.c_proj", *["transformer.h.{}.attn.c_attn"] * 3, "side"),
    "gpt_neox": Places(
        "gpt_neox.layers.{}.attention.dense", *["gpt_neox.layers.{}.attention.query_key_value"] * 3, "inside"
    ),
    "bert": Places(
        "bert.encoder.layer.{}.attention.output.dense",
        *(f"bert.encoder.layer.{{}}.attention.self.{name}" for name in ("query", "key", "value")),
    ),
    "opt": Places(
        "model.decoder.layers.{}.self_attn.out_proj",
        *(f"model.decoder.layers.{{}}.self_attn.{name}_proj" for name in "qkv"),
    ),
    "t5": Places(
        "decoder.block.{}.layer.0.SelfAttention.o",
        *(f"decoder.block.{{}}.layer.0.SelfAttention.{name}" for name in "qkv"),
    ),
}


@contextmanager
def hooked(model: nn.Module, before: dict[str, Callable], after: dict[str, Callable]) -> Iterator[None]:
    """Inputs (`before`) and outputs (`after`) of modules as functions of what they are."""
    with ExitStack() as stack:
        for path, change in before.items():
            hook = model.get_submodule(path).register_forward_pre_hook(
                lambda _, args, c=change: (c(args[0]), *args[1:])
            )
            stack.callback(hook.remove)
        for path, change in after.items():
            stack.callback(
                model.get_submodule(path).register_forward_hook(lambda _, args, out, c=change: c(out)).remove
            )
        yield


@dataclass
class ByHooks:
    """A model, its sizes, and how its answer is read."""

    model: Any
    places: Places
    num_heads: int
    num_kv_heads: int
    head_dim: int
    read: Callable[[Any], Tensor]

    def run(self, inputs: dict[str, Tensor], before: Any = None, after: Any = None) -> Tensor:
        with torch.no_grad(), hooked(self.model, before or {}, after or {}):
            return self.read(self.model(**inputs))

    def split(self, x: Tensor, name: str) -> Tensor:
        """The part of a projection's output that is q, k or v, heads apart: a view, to be written to."""
        place = "qkv".index(name)
        if self.places.fused == "side":
            return x.unflatten(-1, (3, self.num_heads, self.head_dim))[..., place, :, :]
        if self.places.fused == "inside":
            return x.unflatten(-1, (self.num_heads, 3, self.head_dim))[..., place, :]
        count = self.num_heads if name == "q" else self.num_kv_heads
        return x.unflatten(-1, (count, self.head_dim))

    def seen(self, inputs: dict[str, Tensor], layer: int, name: str, **hooks: Any) -> Tensor:
        """What the q, k or v projection of a layer gives, or what its output projection reads ("out"), heads apart."""
        kept: list[Tensor] = []

        def keep(x: Tensor) -> Tensor:
            kept.append(x.clone())
            return x

        if name == "out":
            before = {self.places.output.format(layer): keep}
            self.run(inputs, before, hooks.get("after"))
            return kept[0].unflatten(-1, (self.num_heads, self.head_dim))
        self.run(inputs, None, {getattr(self.places, name).format(layer): keep})
        return self.split(kept[0], name)

    def replacing(self, layer: int, name: str, head: int, new: Tensor, where: slice | list[int]) -> dict[str, Callable]:
        """A hook that puts `new` [b, n, d] in the place of a head's q, k or v."""

        def change(x: Tensor) -> Tensor:
            x = x.clone()
            self.split(x, name)[:, where, head] = new[:, where]
            return x

        return {getattr(self.places, name).format(layer): change}

    def patched(
        self, base: Any, other: Any, layer: int, head: int, what: str, where: slice | list[int], share: float = 1.0
    ) -> Tensor:
        """The answer of `base` when a head has `what` from `other` at these positions, or goes a share of the way."""
        shared = head // (self.num_heads // self.num_kv_heads)
        rows: Any = where
        if what == "out":
            new = self.seen(other, layer, "out")[:, :, head]
        elif what == "weights":  # the other run, with this run's values: its weights times them
            own = self.seen(base, layer, "v")[:, :, shared]
            hooks = self.replacing(layer, "v", shared, own, slice(None))
            new = self.seen(other, layer, "out", after=hooks)[:, :, head]
        else:
            place = head if what == "q" else shared
            mine, theirs = (self.seen(run, layer, what)[:, :, place] for run in (base, other))
            theirs = mine + share * (theirs - mine)
            hooks = self.replacing(layer, what, place, theirs, where)
            new, rows = self.seen(base, layer, "out", after=hooks)[:, :, head], slice(None)

        if what in ("out", "weights"):
            mine = self.seen(base, layer, "out")[:, :, head]
            new = mine + share * (new - mine)

        def change(x: Tensor) -> Tensor:
            x = x.clone()
            x.unflatten(-1, (self.num_heads, self.head_dim))[:, rows, head] = new[:, rows]
            return x

        return self.run(base, {self.places.output.format(layer): change})
