"""Parts of a model that need not run again: blocks before an intervention, and the attention that it edits.

A block (attention and feed-forward of one layer) whose inputs nobody has touched returns what it returned before. So
does the attention inside the block that an intervention begins in: its heads' outputs are known, only their edit and
the output projection are new. Both stand in for the module's own forward while a block is open, and are put right
again whatever happens. Only in the thread that asked: others may run the same model meanwhile, and see nothing of it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from manyheads.models.taps.call import AttentionCall
from manyheads.models.taps.tap import tap
from manyheads.spec import ModelSpec, Site

SAME = 1e-5  # of the largest number, in float32: the same sums in another order


@dataclass(eq=False)
class Attention:
    """One attention module: what it returned in the plain pass, from which call, and where its heads leave it."""

    site: Site
    module: nn.Module
    returned: Any = None
    call: AttentionCall | None = None
    known: bool = False  # whether `again` gives what the module returned, tried once

    def again(self, out: Tensor) -> Tensor:
        """What the module returns first for these heads' outputs: side by side, or after its own output projection."""
        assert self.call is not None
        flat = rearrange(out, "b h q f -> b q (h f)")
        inside = self.call.output is not None and any(self.call.output is each for each in self.module.modules())
        return self.call.output(flat) if inside and self.call.output is not None else flat

    def check(self) -> None:
        """Whether `again` knows this module. One that does more (a gate, another road) is run as it is."""
        self.known = False
        first = self.returned[0] if isinstance(self.returned, tuple | list) else self.returned
        if self.call is None or not isinstance(first, Tensor) or self.call.gain is not None:
            return
        again = self.again(self.call.out)
        if again.shape == first.shape:
            self.known = bool((again - first).abs().max() <= SAME * first.abs().max())

    def edited(self, edit: Callable[[AttentionCall], Tensor | None], size: int, times: int) -> Any:
        """What the module returns, each text `times` times in a row, after an edit."""
        assert self.call is not None
        call, facts = self.call, ("q", "k", "v", "out")
        wide = replace(call, **{name: widened(getattr(call, name), size, times) for name in facts})
        mask, rule = call.mask, call.rule
        if mask.start.shape[0] == size:
            mask = mask.texts(torch.arange(size).repeat_interleave(times))
        if rule.bias is not None and rule.bias.shape[0] == size:
            rule = replace(rule, bias=rule.bias.repeat_interleave(times, 0))
        new = edit(replace(wide, mask=mask, rule=rule))
        first = self.again(wide.out if new is None else new)
        if isinstance(self.returned, Tensor):
            return first
        return type(self.returned)([first, *(widened(each, size, times) for each in self.returned[1:])])


@dataclass(eq=False)
class Block:
    """A block of the model, its attention, the plans that begin in it, and what it returned in the plain pass."""

    module: nn.Module
    path: str
    attention: list[Attention] = field(default_factory=list)
    plans: list[int] = field(default_factory=list)
    returned: Any = None

    def places(self) -> dict[str, Site]:
        """Paths as a tap on the block alone sees them -> the sites of the whole model."""
        cut = len(self.path) + 1
        return {each.site.module[cut:]: each.site for each in self.attention}


def blocks_of(model: nn.Module, spec: ModelSpec) -> tuple[list[Block], str]:
    """The blocks in the order in which they run; none, and why, where they cannot be told."""
    found: dict[str, Block] = {}
    for site in spec.sites:
        match = re.match(r"(.*?\.\d+)(\.|$)", f".{site.module}")
        if match is None or "#" in site.module:
            return [], f"{site.module} is in no numbered block"
        path = match[1].removeprefix(".")
        if path == site.module:
            return [], f"{path} attends by itself, with no module of its own for it"
        if path not in found:
            found[path] = Block(model.get_submodule(path), path)
        found[path].attention.append(Attention(site, model.get_submodule(site.module)))
    return list(found.values()), ""


@contextmanager
def keeping(model: nn.Module, blocks: Sequence[Block], *, guard: bool) -> Iterator[None]:
    """While a plain pass runs, what each block and each attention module returns is kept, and every call."""
    with ExitStack() as stack:
        by_path = {each.site.module: each for block in blocks for each in block.attention}

        def keep(call: AttentionCall) -> None:
            if call.site.module in by_path:
                by_path[call.site.module].call = call

        for kept in [*blocks, *by_path.values()]:
            stack.callback(kept.module.register_forward_hook(_keeper(kept)).remove)
        stack.enter_context(tap(model, on_call=keep if blocks else None, guard=guard))
        yield


def _keeper(kept: Block | Attention) -> Callable[..., None]:
    thread = threading.get_ident()

    def keep(module: nn.Module, args: Any, result: Any) -> None:
        if threading.get_ident() == thread:
            kept.returned = result

    return keep


@contextmanager
def skipping(blocks: Sequence[Block], size: int, times: int) -> Iterator[None]:
    """Blocks that hand on what they returned in the plain pass; the last of each stack with each text `times` times.

    What the others return nobody reads: the block after them does not look at what it is given.
    """
    last = {block.path.rpartition(".")[0]: block for block in blocks}.values()
    with ExitStack() as stack:
        for block in blocks:
            returned = widened(block.returned, size, times) if block in last else block.returned
            stack.enter_context(standing_in(block.module, lambda *args, r=returned, **kwargs: r))
        yield


@contextmanager
def standing_in(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Another forward in a module's place, for this thread; the last one that it gave, where it gave several."""
    thread = threading.get_ident()
    with _PLACES:
        stage = module.__dict__.get("forward")
        if not isinstance(stage, _Stage):
            stage = _Stage(module.forward, kept=stage)
            module.forward = stage  # type: ignore[method-assign]
        stage.instead.setdefault(thread, []).append(forward)
    try:
        yield
    finally:
        with _PLACES:
            stage.instead[thread].pop()
            if not stage.instead[thread]:
                del stage.instead[thread]
            if not stage.instead and stage.kept is None:
                del module.forward
            elif not stage.instead:
                module.forward = stage.kept  # type: ignore[method-assign]


@dataclass(eq=False)
class _Stage:
    """A module's forward while some threads have others in its place. `kept`: what the module itself had set as one."""

    own: Callable[..., Any]
    kept: Callable[..., Any] | None
    instead: dict[int, list[Callable[..., Any]]] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mine = self.instead.get(threading.get_ident())
        return (mine[-1] if mine else self.own)(*args, **kwargs)


_PLACES = threading.Lock()  # held while stages come and go, never while a module runs


def widened(value: Any, size: int, times: int) -> Any:
    """Whatever a module returned, for a batch in which each text stands `times` times in a row."""
    if isinstance(value, Tensor):
        return value.repeat_interleave(times, 0) if value.ndim and value.shape[0] == size else value
    if isinstance(value, tuple | list):
        return type(value)(widened(each, size, times) for each in value)
    return value
