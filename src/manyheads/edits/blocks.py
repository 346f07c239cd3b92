"""A model's blocks while interventions run: what each returned in the plain pass, and other forwards in their place.

A block (attention and feed-forward of one layer) whose inputs nobody has changed returns what it returned before, and
so does the attention inside the block in which an intervention begins: its heads' outputs are known, only their edit
and the output projection are new. Both replace the module's own forward while an expanded batch runs, and are put right
again whatever happens. Only the thread that asked is concerned: others may run the same model meanwhile.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch
from einops import rearrange
from torch import Tensor, nn

from manyheads.machine import is_sharded
from manyheads.models import AttentionCall, tap
from manyheads.spec import ModelSpec, Site

SAME_OF_BLOCKS = 1e-5  # of the largest number, in float32: one module's sums in another order

Arguments = tuple[tuple[object, ...], Mapping[str, object]]
"""What a module was called with, by place and by name."""


@dataclass(frozen=True, eq=False)
class Part:
    """What of a batch runs expanded: neighbouring texts from row `first` on, each once for every plan, in a row.

    `size`: the texts of the whole batch.
    """

    texts: range
    plans: list[int]
    first: int
    size: int

    @property
    def times(self) -> int:
        return len(self.plans)

    def wide(self, value: Tensor) -> Tensor:
        """A tensor of all texts for the expanded ones, all its rows."""
        return value[self.texts.start : self.texts.stop].repeat_interleave(self.times, 0)

    def of(self, value: object) -> object:
        """Any module's result for the whole batch as it is for this part, all its rows."""
        # Another first axis is no batch: a position bias, say, or the tables of a rotation, which all texts share.
        if isinstance(value, Tensor):
            return self.wide(value) if value.ndim and value.shape[0] == self.size else value
        if isinstance(value, tuple | list):
            return type(value)(self.of(item) for item in value)
        return value


def states_of(returned: object) -> Tensor:
    """The hidden states among what a block returned: the first of it. Errors: TypeError where that is not a tensor."""
    first = returned[0] if isinstance(returned, tuple | list) else returned
    if not isinstance(first, Tensor):
        raise TypeError(f"a block returned a {type(first).__name__}")
    return first


@dataclass(eq=False)
class Attention:
    """One attention module with its result in the plain pass, and the call from which its heads' outputs are known."""

    site: Site
    module: nn.Module
    returned: object = None
    call: AttentionCall | None = None
    known: bool = False  # whether `project` gives what the module returned, tried once

    def project(self, out: Tensor) -> Tensor:
        """The module's first result for these heads' outputs: side by side, or after its own output projection."""
        assert self.call is not None
        flat, projection = rearrange(out, "b h q f -> b q (h f)"), self.call.output
        # A projection outside the module is called by whoever called the module, on what it returned.
        is_inside = projection is not None and any(projection is module for module in self.module.modules())
        return projection(flat) if is_inside and projection is not None else flat

    def check(self) -> None:
        """Set `known`: whether `project` gives the module's result. A module that does more (a gate) runs as it is."""
        self.known = False
        # Modules of transformers return weights or caches behind
        # the outputs: only the first result follows from the heads.
        first = self.returned[0] if isinstance(self.returned, tuple | list) else self.returned
        if self.call is None or not isinstance(first, Tensor) or self.call.gain is not None:
            return
        again = self.project(self.call.out)
        if again.shape == first.shape:
            self.known = bool((again - first).abs().max() <= SAME_OF_BLOCKS * first.abs().max())

    def edited(self, edit: Callable[[AttentionCall], Tensor | None], part: Part) -> object:
        """The module's result for a part of the batch, after an edit."""
        assert self.call is not None
        call = self.call.rows_from(part.first)
        wide = replace(call, **{name: part.wide(getattr(call, name)) for name in ("q", "k", "v", "out")})
        mask, rule = call.mask, call.rule
        if mask.start.shape[0] == part.size:
            # Only where it has a row of runs for each text: a mask
            # that all texts share serves the expanded batch as it is.
            mask = mask.texts(torch.tensor(part.texts, device="cpu").repeat_interleave(part.times))
        if rule.bias is not None and rule.bias.shape[0] == part.size:
            rule = replace(rule, bias=part.wide(rule.bias))
        new = edit(replace(wide, mask=mask, rule=rule))
        first = self.project(wide.out if new is None else new)
        if isinstance(self.returned, Tensor):
            return first
        assert isinstance(self.returned, tuple | list), "else it is not known"
        return type(self.returned)([first, *(part.of(value) for value in self.returned[1:])])


@dataclass(eq=False)
class Block:
    """A block of the model, its attention, the plans that begin in it, and the plain pass's arguments and result."""

    module: nn.Module
    path: str
    attention: list[Attention] = field(default_factory=list)
    plans: list[int] = field(default_factory=list)
    called: Arguments = ((), {})
    returned: object = None


def blocks_of(model: nn.Module, spec: ModelSpec) -> tuple[list[Block], str]:
    """The blocks in the order in which they run; or none, and the reason, where they cannot be identified."""
    if is_sharded(model):
        return [], "FSDP gathers a block's weights only while the whole model runs"
    blocks: dict[str, Block] = {}
    for site in spec.sites:
        match = re.match(r"(.*?\.\d+)(\.|$)", f".{site.module}")
        # "#2" marks a second call of one module: what it returned last is not what its first call returned.
        if match is None or "#" in site.module:
            return [], f"{site.module} is in no numbered block"
        path = match[1].removeprefix(".")
        if path == site.module:
            return [], f"{path} attends by itself, with no module of its own for it"
        if path not in blocks:
            blocks[path] = Block(model.get_submodule(path), path)
        blocks[path].attention.append(Attention(site, model.get_submodule(site.module)))
    return list(blocks.values()), ""


@contextmanager
def keeping(model: nn.Module, blocks: Sequence[Block], *, guard: bool) -> Generator[None]:
    """Keep what each block and each attention module got and returned, and every call, while a plain pass runs."""
    thread = threading.get_ident()

    # Hooks fire in every thread that runs the model: another thread's results would be kept as ours.
    def keeper(part: Block | Attention) -> Callable[..., None]:
        def keep(module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], result: object) -> None:
            if threading.get_ident() == thread:
                part.returned = result
                if isinstance(part, Block):
                    part.called = (args, kwargs)

        return keep

    with ExitStack() as stack:
        by_path = {attention.site.module: attention for block in blocks for attention in block.attention}

        def keep_call(call: AttentionCall) -> None:
            if call.site.module in by_path:
                by_path[call.site.module].call = call

        # The stack takes every hook off again, however far the pass came.
        for part in [*blocks, *by_path.values()]:
            stack.callback(part.module.register_forward_hook(keeper(part), with_kwargs=True).remove)
        if by_path or guard:
            stack.enter_context(tap(model, on_call=keep_call if by_path else None, guard=guard))
        yield


@contextmanager
def skipping(blocks: Sequence[Block], part: Part) -> Generator[None]:
    """Blocks that return their result of the plain pass; the last of each stack that of a part of the batch.

    The results of the others are read by nobody: the block after them ignores its inputs.
    """
    last = {block.path.rpartition(".")[0]: block for block in blocks}.values()
    # Only the last block's result reaches the expanded part, so only that one is copied.
    with ExitStack() as stack:
        for block in blocks:
            returned = part.of(block.returned) if block in last else block.returned
            stack.enter_context(replaced_forward(block.module, lambda *args, r=returned, **kwargs: r))
        yield


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., object]) -> Generator[None]:
    """Another forward in a module's place, for this thread. They nest: the innermost one is called."""
    thread = threading.get_ident()
    with _FORWARD_STACKS:
        stage = module.__dict__.get("forward")
        if not isinstance(stage, _ForwardStack):
            stage = _ForwardStack(module.forward, set_before=stage)
            module.forward = stage  # type: ignore[method-assign]
        # Under the lock, and by thread: another thread may put its own forward in, or take it out, at this very moment.
        stage.forwards.setdefault(thread, []).append(forward)
    try:
        yield
    finally:
        with _FORWARD_STACKS:
            stage.forwards[thread].pop()
            if not stage.forwards[thread]:
                del stage.forwards[thread]
            # The last thread that leaves restores the module: the class's forward, or one set on the instance before.
            if not stage.forwards and stage.set_before is None:
                del module.forward
            elif not stage.forwards:
                module.forward = stage.set_before  # type: ignore[method-assign]


@dataclass(eq=False)
class _ForwardStack:
    """A module's forward while some threads have others in its place. `set_before`: one set on the instance itself."""

    forward: Callable[..., object]
    set_before: Callable[..., object] | None
    forwards: dict[int, list[Callable[..., object]]] = field(default_factory=dict)  # by thread

    def __call__(self, *args: object, **kwargs: object) -> object:
        forwards = self.forwards.get(threading.get_ident())
        return (forwards[-1] if forwards else self.forward)(*args, **kwargs)


_FORWARD_STACKS = threading.Lock()  # held while stages come and go, never while a module runs
