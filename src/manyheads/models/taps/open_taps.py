"""What is open: the taps, the modules they watch, and a call on its way to them.

There are three ways in: transformers' interface (`interface`), our own layers (`ownlayers`), and any other module
(`plain`). Each of them ends here, in `Seen.show`: one call, the same few facts, shown to every tap on the module.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from manyheads.models.taps import call as guarding
from manyheads.models.taps.call import AttentionCall, Edit, KnownLse, Observer, lse_of
from manyheads.models.taps.mask_arguments import MaskReader
from manyheads.models.weights.projections import output_projection, stack_of
from manyheads.nn import Mask, Rule
from manyheads.spec import Site

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
COMPOSITE = torch.ops.aten.scaled_dot_product_attention.default
EDITED = "heads were edited meanwhile: they say what the plan lets them, and their weights are those of their q and k"
log = logging.getLogger("manyheads")


class WatchFused(TorchDispatchMode):
    """Keeps the lse of every fused CPU call made under it. Changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.lse: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is COMPOSITE:  # under inference_mode it arrives whole: take it apart, under this same mode
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func is FUSED:
            self.lse.append(result[1])
        return result


class _Here(threading.local):
    """What this thread is in the middle of: modules, outermost first, and calls that a way in has in hand."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.in_hand = 0


HERE = _Here()


@contextmanager
def in_hand() -> Iterator[None]:
    """While a way in runs a call, what the call does inside is no call of its own."""
    HERE.in_hand += 1
    try:
        yield
    finally:
        HERE.in_hand -= 1


@dataclass(eq=False)
class Tap:
    """An open tap. `sites` in the order in which layers first called; `guard_error` the worst seen so far.

    `by_hand`: modules that made attention weights where no way in could see them, path to class.
    """

    model: nn.Module
    on_call: Observer | None = None
    edits: Sequence[Edit] = ()
    guard: bool = True
    thread: int = 0
    sites: dict[str, Site] = field(default_factory=dict)
    guard_error: float = 0.0
    because: dict[str, int] = field(default_factory=dict)
    by_hand: dict[str, str] = field(default_factory=dict)
    edited: bool = False  # whether another tap of this thread edits the model
    paths: dict[int, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    projections: dict[str, nn.Module | None] = field(default_factory=dict)
    masks: MaskReader = field(default_factory=MaskReader)

    def site(self, seen: Seen, causal: bool) -> Site:
        """The call's place in the model; layers are counted in the order in which they first call.

        A module that is called again in the same forward pass (layers that share their weights) is a layer again.
        """
        path = self.paths[id(seen.module)]
        turn = self.calls.get(path, 0) if HERE.modules else 0
        self.calls[path] = turn + 1
        name = f"{path}#{turn + 1}" if turn else path
        if name not in self.sites:
            config = getattr(self.model, "config", None)
            stack = stack_of(
                path,
                encoder_decoder=bool(getattr(config, "is_encoder_decoder", False)),
                crosses=seen.crosses or bool(getattr(seen.module, "is_cross_attention", False)),
            )
            layer = sum(site.stack == stack for site in self.sites.values())
            sizes = (seen.q.shape[1], seen.k.shape[1], seen.q.shape[3], seen.v.shape[3])
            self.sites[name] = Site(stack, layer, name, *sizes, causal)
        return self.sites[name]

    def projection(self, seen: Seen) -> nn.Module | None:
        path = self.paths[id(seen.module)]
        if path not in self.projections:
            found = output_projection(self.model, path, seen.q.shape[1] * seen.v.shape[3])
            self.projections[path] = None if found is None else found[1]
        return self.projections[path]


@dataclass(eq=False)
class Open:
    """All open taps, of all threads. The list is replaced, never changed: readers need no lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    taps: tuple[Tap, ...] = ()

    def on(self, module: nn.Module) -> list[Tap]:
        """The taps of this thread that hold this module, the first opened first."""
        here = threading.get_ident()
        return [tap for tap in self.taps if tap.thread == here and id(module) in tap.paths]


OPEN = Open()


@dataclass(frozen=True, eq=False)
class Seen:
    """One call, whoever made it, on its way to the taps. `lse`: what a fused kernel returned for it, where one did."""

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    rule: Rule
    out: Tensor
    lse: Tensor | None = None
    crosses: bool = False
    gain: Tensor | None = None

    def show(self, taps: list[Tap]) -> Tensor:
        """The outputs after every tap's edits: the same tensor where there were none."""
        known = KnownLse(lambda: lse_of(self.q, self.k, self.mask, self.rule, self.lse))
        edited = self.out
        for state in taps:
            site = state.site(self, _looks_causal(self.mask))
            facts = (self.q, self.k, self.v, self.mask, self.rule, self.out, known)
            call = AttentionCall(site, *facts, state.projection(self), self.gain)
            if state.guard or state.on_call is not None:  # now: a static cache writes over k at the next step
                state.because[call.because] = state.because.get(call.because, 0) + 1
            if state.guard:
                state.guard_error = max(state.guard_error, guarding.check(call, state.model))
            if state.on_call is not None:
                state.on_call(call)
            for edit in state.edits:
                new = edit(replace(call, out=edited))
                edited = edited if new is None else new
        return edited


def only(watch: WatchFused) -> Tensor | None:
    """The lse of the one fused call that was made; None where there were none or several."""
    return watch.lse[0] if len(watch.lse) == 1 else None


def _looks_causal(mask: Mask) -> bool:
    """Whether no row sees past its own place."""
    rows = torch.arange(mask.num_queries)[None] + 1 + max(0, mask.num_keys - mask.num_queries)
    return mask.num_queries > 1 and bool((mask.stop <= rows).all())


def no_way_in(model: nn.Module, name: str, by_hand: dict[str, str]) -> str:
    """What to say of a model whose attention never showed."""
    whose = name if name == type(model).__name__ else f"{name} ({type(model).__name__})"
    if by_hand:
        path, kind = next(iter(by_hand.items()))
        where = f"module {path!r} ({kind})" if path else kind
        others = f", and {len(by_hand) - 1} more like it," if len(by_hand) > 1 else ""
        return (
            f"{whose}: {where}{others} makes its attention weights by hand, with a softmax and a product, where nobody "
            f"can see them. Nothing was recorded. Have it call torch.nn.functional.scaled_dot_product_attention, or "
            f"load a model that uses transformers' attention interface."
        )
    return (
        f"{whose} made no attention call that can be seen: it uses neither transformers' "
        f"attention interface nor scaled_dot_product_attention, or it does not attend. Nothing was recorded."
    )


def left_out(by_hand: dict[str, str]) -> str:
    """Modules that attend where nobody can see, in words; "" where there are none."""
    if not by_hand:
        return ""
    return f"{', '.join(f'{path} ({kind})' for path, kind in by_hand.items())}: weights made by hand, not seen"
