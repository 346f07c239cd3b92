"""Norms that stand between a head and what it reads or writes, as the linear maps that they are but for one scale.

A LayerNorm is `gain * (x - mean) / sd`, an RMSNorm `gain * x / rms`: both are linear up to a positive factor of each
row. So the gain (and the taking away of the mean) is folded into the matrices on either side; the factor and the bias
are left out. Which norm stands where is seen in one tiny forward pass, by whose output is whose input; what it does is
seen by giving it numbers, whatever it calls its weights (Gemma keeps gain - 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from manyheads.models.loading.offloaded import device_of
from manyheads.models.describe import run

PROBE_TOKENS = 4
PROBE_ROWS = 64
PROBE_SIZE = 30.0  # so large that no epsilon counts
SHIFT = 7.0  # added to every number of a row: whoever takes the mean away does not see it
SAME = 1 - 1e-4  # cosine: the same numbers, to the rounding of half types
FITS = 1e-2  # of the output: how far a norm may be from gain times the normalised input


@dataclass(frozen=True, eq=False)
class Fold:
    """What a norm does to directions: an optional taking away of the mean, then a gain for each number."""

    gain: Float64[Tensor, "m"]
    centres: bool

    def before(self, matrix: Float64[Tensor, "... m"]) -> Float64[Tensor, "... m"]:
        """`matrix @ norm(x)` as a matrix that acts on x."""
        scaled = matrix * self.gain
        return scaled - scaled.mean(-1, keepdim=True) if self.centres else scaled

    def after(self, rows: Float64[Tensor, "... m"]) -> Float64[Tensor, "... m"]:
        """Rows that are written through the norm, as they come out."""
        return (rows - rows.mean(-1, keepdim=True) if self.centres else rows) * self.gain


@dataclass(eq=False)
class Wiring:
    """What norms and other modules were given and gave, in one pass: whose output is whose input."""

    given: dict[nn.Module, Tensor] = field(default_factory=dict)
    gave: dict[nn.Module, Tensor] = field(default_factory=dict)

    def norm_before(self, module: nn.Module) -> nn.Module | None:
        """The norm whose output `module` reads, as it is or scaled."""
        return next((norm for norm in self._norms() if _same(self.gave[norm], self.given.get(module))), None)

    def norm_after(self, module: nn.Module) -> nn.Module | None:
        """The norm that reads what `module` writes, and nothing else."""
        return next((norm for norm in self._norms() if _same(self.given[norm], self.gave.get(module))), None)

    def _norms(self) -> list[nn.Module]:
        return [module for module in self.gave if is_norm(module)]


def _same(one: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors hold the same numbers but for one factor (as where T5 scales before its unembedding)."""
    if other is None or one.shape != other.shape:
        return False
    one, other = one.double().flatten(), other.double().flatten()
    return bool(one @ other > SAME * one.norm() * other.norm())


def wiring_of(lm: Any, modules: list[nn.Module]) -> Wiring:
    """One forward pass over four tokens, with the norms and these modules watched."""
    found = Wiring()
    ids = torch.arange(1, PROBE_TOKENS + 1, device=device_of(lm.model))[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(lm.model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids
    with _watching(lm.model, modules, found):
        run(lm.model, lm.name, inputs, head=True)
    return found


@contextmanager
def _watching(model: nn.Module, modules: list[nn.Module], found: Wiring) -> Iterator[None]:
    def watch(module: nn.Module, args: Any, output: Any) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            found.given[module], found.gave[module] = args[0].detach().clone(), output.detach().clone()

    hooks = [each.register_forward_hook(watch) for each in {*filter(is_norm, model.modules()), *modules}]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not any(module.children())


def fold_of(norm: nn.Module | None, width: int) -> Fold | None:
    """What a norm does to directions; None where there is none, or what it does is no norm of this kind."""
    if norm is None:
        return None
    weight = next(iter(norm.parameters()), torch.empty(0))
    generator = torch.Generator().manual_seed(0)
    x = PROBE_SIZE * torch.randn(PROBE_ROWS, width, generator=generator)
    with torch.no_grad():
        there, back, moved = (norm(each.to(weight)).double().cpu() for each in (x, -x, x + SHIFT))
    odd, x = (there - back) / 2, x.double()
    centres = bool((there - moved).norm() < FITS * there.norm())
    x = x - x.mean(-1, keepdim=True) if centres else x
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    gain = (odd * x).sum(0) / (x * x).sum(0)
    fits = (odd - gain * x).norm() <= FITS * odd.norm()
    return Fold(gain, centres) if bool(fits) and bool(torch.isfinite(gain).all()) else None
