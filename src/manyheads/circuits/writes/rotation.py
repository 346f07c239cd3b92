"""How a model turns queries and keys by their positions, told from what its layers give.

Rotary positions turn pairs of dimensions of a head, the first with the one half the rotated width further on, or with
its neighbour; all of a head's dimensions, or some; at frequencies that may differ between layers (Gemma 3) and be none
in some (Cohere 2). No family is known here: a few random tokens are read, each query as its projection gives it is
compared with the query that attention received, and the pairing and angles are those that explain all of them. Where
nothing is turned, angles are 0; where queries are changed in another way, there is no rotation, and a reason.

Source: Su et al. 2021, "RoFormer". Where a norm of each head's queries stands in between, directions are compared.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Complex128, Float, Float64
from torch import Tensor, nn

from manyheads.circuits.head_matrices import NormFold
from manyheads.models import AttentionCall, LoadedModel, device_of, run, tap
from manyheads.models.weights import Projections, holders_of, output_projection

PROBE_TEXTS = 3
FITS = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 6e-2}
"""Of a query's length: how far a rotation may be from what the model did. Many compute rotations in float32."""


class Rotation(NamedTuple):
    """`turns[distance]`: of each pair of dimensions (`first`, `second`) a number of length 1; other dimensions stay."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    turns: Complex128[Tensor, "n pairs"]

    def turned(self, x: Float64[Tensor, "*heads d m"], distance: int) -> Float64[Tensor, "*heads d m"]:
        """A head's matrix whose outputs are turned to this distance."""
        first, second = list(self.first), list(self.second)
        pairs = torch.complex(x[..., first, :], x[..., second, :]) * self.turns[distance][:, None]
        x = x.clone()
        x[..., first, :], x[..., second, :] = pairs.real, pairs.imag
        return x

    @property
    def turns_at_all(self) -> bool:
        return bool(self.first)


def rotations_of(lm: LoadedModel, folds: Sequence[NormFold], longest: int) -> dict[str, Rotation | str]:
    """Each self-attention layer's rotation up to that distance, by the layer's name; or why there is none.

    Cost: one forward pass of a few dozen tokens.
    """
    model, inputs, calls = lm.model, dict[str, Tensor](), dict[str, AttentionCall]()
    holders = {}
    for site in lm.spec.sites:
        module = model.get_submodule(site.module.partition("#")[0])
        holder = next((holder for holder in holders_of(module, site) if "q" in holder.parts), None)
        if holder is not None:
            holders[str(site)] = module, holder.module
    handles = []
    for name, (_, module) in holders.items():

        def keep(_: nn.Module, args: tuple[Any, ...], name: str = name) -> None:
            inputs.setdefault(name, args[0].detach())

        handles.append(module.register_forward_pre_hook(keep))
    generator = torch.Generator().manual_seed(0)
    size = lm.spec.vocab_size or 2
    ids = torch.randint(min(size, 4) - 1, size, (PROBE_TEXTS, longest + 1), generator=generator).to(device_of(model))
    whole = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if lm.writes_apart:
        whole["decoder_input_ids"] = ids

    def see(call: AttentionCall) -> None:
        calls.setdefault(str(call.site), call)

    try:
        with tap(model, on_call=see, guard=False):
            run(model, lm.name, whole)
    finally:
        for handle in handles:
            handle.remove()
    result: dict[str, Rotation | str] = {}
    for site, fold in zip(lm.spec.sites, folds, strict=True):
        name = str(site)
        if name not in inputs or name not in calls:
            result[name] = f"{name}: its queries were not seen"
            continue
        module, _ = holders[name]
        output = output_projection(model, site.module.partition("#")[0], site.num_heads * site.v_dim)
        assert output is not None, "Branches.of refuses a layer without an output projection"
        weight, bias = Projections(site, module, holders_of(module, site), *output, {}).read("q")
        raw = torch.einsum("bnm,hdm->bhnd", inputs[name].double(), weight.double())
        raw = raw if bias is None else raw + bias.double()[:, None]
        raw = raw * fold.gains["q"].double()[..., None, :] if "q" in fold.gains else raw
        rotation = _fitted(raw, calls[name].q.double(), FITS[lm.dtype])
        result[name] = rotation or f"{name}: positions act on its queries in a way that is not known here"
    return result


def _fitted(raw: Float[Tensor, "b h n d"], received: Float[Tensor, "b h n d"], tolerance: float) -> Rotation | None:
    """The pairing and the angles that make queries what attention received; None where none does."""
    raw, received = (torch.nn.functional.normalize(x, dim=-1).cpu() for x in (raw, received))
    count, width = raw.shape[2], raw.shape[3]
    if float((raw - received).norm(dim=-1).max()) <= tolerance:
        return Rotation((), (), torch.ones(count, 0, dtype=torch.complex128, device="cpu"))
    moved = ((raw - received).abs().amax((0, 1, 2)) > tolerance * width**-0.5).nonzero()
    fewest = 2 * ((int(moved.max()) + 2) // 2)
    best: tuple[float, Rotation] | None = None
    for rotated in range(fewest, width + 1, 2):
        half = rotated // 2
        for first, second in (
            (range(half), range(half, rotated)),
            (range(0, rotated, 2), range(1, rotated, 2)),
        ):
            x, y = (torch.complex(q[..., list(first)], q[..., list(second)]) for q in (raw, received))
            turns = (y * x.conj()).sum((0, 1))
            turns = turns / turns.abs().clamp_min(1e-300)
            off = float((y - x * turns).norm(dim=-1).max())
            if best is None or off < best[0]:
                best = off, Rotation(tuple(first), tuple(second), turns * turns[0].conj())
    assert best is not None
    return best[1] if best[0] <= tolerance else None
