"""Many interventions on one corpus: the change of each in each text, with all that they share computed once.

`Runner.over` carries them out, and every pass is one of `read_under`. Interventions that begin in one layer share
everything before it, and its attention. What they do not share runs on an expanded batch, in which every text stands
once for each intervention. Of L layers half are saved: (L + 1) / 2 forward passes for L interventions, less the last
layer's attention, whatever the number of heads. Where a model's blocks cannot be identified, nothing is shared, and
`Swept.because` gives the reason.

A block (attention and feed-forward of one layer) whose inputs nobody has changed returns what it returned before, and
so does the attention inside the block in which an intervention begins: its heads' outputs are known, only their edit
and the output projection are new. Both replace the module's own forward while the expanded batch runs, and are put
right again whatever happens. Only the thread that asked is concerned: others may run the same model meanwhile.

An expanded batch is checked once: unedited, it must give what the plain pass gave. Cost besides the passes: one copy of
the residual stream per layer and text.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Float64
from torch import Tensor, nn

from manyheads.base import Progress
from manyheads.edits.application import prepare
from manyheads.edits.computed import Computed
from manyheads.edits.edits import Acts, Editor
from manyheads.edits.metrics import Metric, require_numbers
from manyheads.inputs import BATCH_TOKENS, Batch, InputsLike, forward
from manyheads.machine import is_sharded
from manyheads.models import AttentionCall, LoadedModel, tap
from manyheads.plan import Plan
from manyheads.spec import ModelSpec, Site

SAME = 1e-4  # of the largest number: an expanded batch is the same sums in another order
SAME_OF_BLOCKS = 1e-5  # of the largest number, in float32: one module's sums in another order


Calls = Mapping[tuple[str, int], AttentionCall]
"""Each layer's call of one pass, by (stack, layer)."""


class PassRead(NamedTuple):
    """What is read of one pass: the metric, the calls if they are kept, and what the metric compared with, if so."""

    reading: Tensor
    calls: Calls
    reference: Tensor | None


def read_under(
    lm: LoadedModel,
    batch: Batch,
    metric: Metric | None,
    edits: Sequence[Callable[[AttentionCall], Tensor | None]] = (),
    *,
    guard: bool = False,
    keep: bool = False,
    grad: bool = False,
) -> PassRead:
    """One pass of a batch under edits. A batch without the reference that a metric needs is compared with itself.

    - `lm`: a loaded model.
    - `batch`: what it reads.
    - `metric`: what is read of the outputs; None: nothing.
    - `edits`: new outputs of heads for each attention call, one edit after another; None of a call that stays.
    - `guard`: check what the tap sees.
    - `keep`: keep every layer's call: q, k, v and the heads' outputs of the whole batch stay in memory.
    - `grad`: with gradients.

    Without `edits`, `guard` and `keep` the model runs untapped. Cost: one forward pass. Errors: ModelError where the
    model refuses its inputs; StatisticError where the metric cannot be read of its outputs; GuardError.
    """
    calls: dict[tuple[str, int], AttentionCall] = {}

    def kept(call: AttentionCall) -> None:
        calls[call.site.stack, call.site.layer] = call

    head, observers = metric is None or metric.head, [kept] if keep else []
    outputs = forward(lm, batch, *observers, edits=edits, guard=guard, head=head, grad=grad).outputs
    if metric is None:
        return PassRead(torch.empty(0, device="cpu"), calls, None)
    if metric.refer is not None and batch.reference is None:
        batch = replace(batch, reference=metric.refer(outputs, batch))
    return PassRead(metric.read(outputs, batch), calls, batch.reference)


@runtime_checkable
class OpenEditor(Protocol):
    """An edit for `tap`, and what it has to put right again when the pass is over."""

    def __call__(self, call: AttentionCall) -> Tensor | None: ...

    def close(self) -> None: ...


@runtime_checkable
class Edits(Protocol):
    """Interventions by number, as a `Runner` carries them out: plans, or patches from another run."""

    @property
    def count(self) -> int: ...

    def touching(self, site: Site) -> set[int]:
        """Which interventions act in a layer."""
        ...

    def editor(self, chosen: Sequence[int], *, each_its_own: bool, size: int, places: Mapping[str, Site]) -> OpenEditor:
        """An editor for a batch of `size` texts, each of which stands once for every chosen intervention, in a row.

        Without `each_its_own` one intervention serves the whole batch. `places`: paths of modules, from the model or
        from the block that is tapped -> the model's sites; {} for a tap on the whole model. It is made while the model
        is as it was: it may run passes of its own.
        """
        ...


@dataclass(frozen=True, eq=False)
class PlanEdits:
    """Plans, with what was computed for them, as `Edits` of a model."""

    model: nn.Module
    acts: Acts
    computed: Computed

    @property
    def count(self) -> int:
        return len(self.acts.plans)

    @cached_property
    def editors(self) -> tuple[Editor, ...]:
        """An editor for each plan by itself, which notes what its steps change in all batches."""
        return tuple(Editor(self.acts.chosen([index]), False, self.computed) for index in range(self.count))

    def touching(self, site: Site) -> set[int]:
        return {act.plan for act in self.acts.of(site)}

    def editor(self, chosen: Sequence[int], *, each_its_own: bool, size: int, places: Mapping[str, Site]) -> OpenEditor:
        if each_its_own:
            return Editor(self.acts.chosen([*chosen] * size), True, self.computed, places=places)
        (index,) = chosen
        self.editors[index].open(self.model)
        return self.editors[index]


def plan_edits(lm: LoadedModel, plans: Sequence[Plan], corpus: InputsLike | None = None) -> PlanEdits:
    """Plans as `Edits`, all of them with the tensors of one reading of `corpus`. Errors: those of `applied`."""
    prepared, _ = prepare(lm, list(plans), corpus)
    return PlanEdits(lm.model, Acts(prepared.plans, lm.spec), prepared.computed)


class BatchRan(NamedTuple):
    """What a runner reads of one batch: the unedited model, and every intervention's change in each text.

    `first`: the reading under intervention 0, None where it shared its passes.
    """

    plain: Tensor
    changes: Float64[Tensor, "b plan"]
    first: Tensor | None


@dataclass(frozen=True, eq=False)
class Swept:
    """`changes[text, plan]` of a metric, and how they were computed, in words.

    `before`, `after`: each batch's reading of the unedited model and under intervention 0, () where it shared its
    passes, and for a flat metric, whose readings are whole distributions.
    """

    before: tuple[Tensor, ...]
    after: tuple[Tensor, ...]
    changes: Float64[Tensor, "text plan"]
    because: str


@dataclass(eq=False)
class Runner:
    """Carries all interventions out on one batch after another. `why`: the reason for sharing nothing, if so."""

    lm: LoadedModel
    edits: Edits
    metric: Metric
    share: bool
    blocks: list[Block]
    num_tokens: int
    why: str
    checked: bool = False

    @classmethod
    def of(
        cls, lm: LoadedModel, edits: Edits, metric: Metric, *, share: bool = True, num_tokens: int = BATCH_TOKENS
    ) -> Runner:
        """A runner whose blocks know which interventions begin in them.

        Batches have at most `num_tokens` after expansion; `share=False` runs every intervention by itself.
        """
        blocks, why = blocks_of(lm.model, lm.spec) if share else ([], "as asked")
        waiting = set(range(edits.count))
        for block in blocks:  # each plan begins in the first block that it touches; those that touch none, in the last
            touching = {plan for attention in block.attention for plan in edits.touching(attention.site)} & waiting
            block.plans = sorted(waiting if block is blocks[-1] else touching)
            # Each plan once, in its first block: there everything before
            # it is known, and everything after it must run anyway.
            waiting -= touching
        return cls(lm, edits, metric, share, blocks, num_tokens, why)

    @property
    def because(self) -> str:
        """How the interventions were carried out, in words."""
        if not self.blocks:
            return f"one by one: {self.why}"
        known = sum(block.attention[0].known for block in self.blocks if len(block.attention) == 1)
        return f"what layers share is computed once: {len(self.blocks)} blocks, attention of {known} of them too"

    def over(self, batches: Sequence[Batch], progress: Progress | None = None) -> Swept:
        """The changes in all texts of a corpus. Errors: StatisticError for a metric that gives NaN."""
        num_texts = sum(len(batch.places) for batch in batches)
        changes = torch.zeros(num_texts, self.edits.count, dtype=torch.float64, device="cpu")
        before: list[Tensor] = []
        after: list[Tensor] = []
        # Batch by batch: log-probabilities of a whole corpus would be the largest thing in memory.
        for done, batch in enumerate(batches):
            plain, changes[list(batch.places)], first = self.run(batch)
            source = "an intervention" if self.share else "these texts"
            require_numbers(changes[list(batch.places)], self.metric, source)
            if first is not None and not self.metric.flat:
                before.append(plain)
                after.append(first)
            if progress is not None:
                progress(done + 1, len(batches))
        return Swept(tuple(before), tuple(after), changes, self.because)

    def run(self, batch: Batch, seen: Callable[[Calls], None] | None = None) -> BatchRan:
        """The unedited model's reading of a batch, and every intervention's change in each of its texts.

        `seen` gets the unedited model's calls, before any intervention.
        """
        # The guard checks the first batch only: it costs a second attention, and batches differ in texts alone.
        guard = not self.checked
        with keeping(self.lm.model, self.blocks, guard=guard) if self.share else nullcontext():
            plain, calls, _ = read_under(self.lm, batch, self.metric, keep=seen is not None)
        if seen is not None:
            seen(calls)
        if self.share:
            require_numbers(self.metric.change(plain, plain), self.metric, "the model as it is")
        # Once: what would forbid sharing is in the model (windows, norms over a batch), not in the texts.
        if self.blocks and not self.checked:
            self._check(batch, plain)
        self.checked = True
        changes = torch.zeros(len(batch.places), self.edits.count, dtype=torch.float64, device="cpu")
        first: Tensor | None = None
        for index in range(0 if self.blocks else self.edits.count):
            editor = self.edits.editor([index], each_its_own=False, size=len(batch.places), places={})
            try:
                # A plain pass that was tapped has been guarded.
                edited = read_under(self.lm, batch, self.metric, [editor], guard=guard and not self.share).reading
            finally:
                editor.close()
            changes[:, index] = self.metric.change(plain, edited).cpu()
            first = edited if first is None else first
        for number, block in enumerate(self.blocks):
            ids = batch.inputs.get("input_ids")
            width = self.num_tokens // 8 if ids is None else ids.numel()  # pictures: eight at a time
            # Of like size: as many passes as with full groups and a remainder, and the largest batch is smaller.
            total = len(block.plans)
            count = min(-(-total * max(1, width) // max(1, self.num_tokens)), total)
            for part in range(count):
                plans = block.plans[part * total // count : (part + 1) * total // count]
                times, after = len(plans), self._after(batch, number, plans)
                # In the order of `repeated`: text after text, each of them once for every plan.
                change = self.metric.change(plain.repeat_interleave(times, 0), after)
                changes[:, plans] = change.view(-1, times).cpu()
        return BatchRan(plain, changes, first)

    def _after(self, batch: Batch, number: int, plans: list[int]) -> Tensor:
        """The reading of a batch in which each text stands once for every plan, where all of these begin in a block."""
        block, times, size = self.blocks[number], len(plans), len(batch.places)
        first, cut = block.attention[0], len(block.path) + 1
        later_sites = [attention.site for later in self.blocks[number + 1 :] for attention in later.attention]
        places = {site.module: site for site in self.lm.spec.sites}
        # A tap on the block alone sees paths from there.
        places |= {attention.site.module[cut:]: attention.site for attention in block.attention}
        with ExitStack() as stack:
            editor = self.edits.editor(plans, each_its_own=True, size=size, places=places)
            stack.callback(editor.close)
            # Earlier blocks only pass on what they returned in the plain pass.
            stack.enter_context(skipping(self.blocks[:number], size, times))
            # There are three ways, the cheapest in the middle.
            if any(not self.edits.touching(site).isdisjoint(plans) for site in later_sites):
                # Skipped layers do not call, so a tap cannot count layers and goes by their paths.
                stack.enter_context(tap(self.lm.model, edits=[editor], guard=False))
            elif first.known and len(block.attention) == 1:
                # The attention is known from the plain pass: only the edit and the output projection are computed.
                stack.enter_context(replaced_forward(first.module, lambda *_, **__: first.edited(editor, size, times)))
            else:
                forward = block.module.forward

                def edited(*args: Any, **kwargs: Any) -> object:
                    with tap(block.module, edits=[editor], guard=False):
                        return forward(*args, **kwargs)

                stack.enter_context(replaced_forward(block.module, edited))
            return read_under(self.lm, batch.repeated(times), self.metric).reading

    def _check(self, batch: Batch, plain: Tensor) -> None:
        """Give up sharing where an expanded batch, unedited, differs from the plain one; else find known attention."""
        # Any model may be behind `lm`: whatever it does to an expanded batch is a reason to share nothing, no error.
        try:
            probe = self.metric
            if probe.refer is not None:
                # Such a metric may be 0 as it is, and no difference is small beside that: what it compares is read.
                probe = replace(probe, read=probe.refer, refer=None)
                plain = read_under(self.lm, batch, probe).reading
            with skipping(self.blocks[:-1], len(batch.places), 2):
                again = read_under(self.lm, batch.repeated(2), probe).reading
            difference = (again - plain.repeat_interleave(2, 0)).abs().nan_to_num(0).max()
            is_same = bool(difference <= SAME * plain.abs().nan_to_num(0).max().clamp_min(1e-30))
            self.why = "" if is_same else "an expanded batch does not give what the plain one does"
            calls = [attention.call for block in self.blocks for attention in block.attention]
            if any(call is not None and len(call.out) != len(plain) for call in calls):
                self.why = "layers attend in batches of their own (windows of a picture)"
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            lines = str(error.__cause__ or error).splitlines() or [type(error).__name__]
            self.why = f"an expanded batch cannot be run ({lines[0][:80]})"
        if self.why:
            self.blocks = []
        for block in self.blocks:
            for attention in block.attention:
                # From what the plain pass left: the trial above ran without its hooks, and overwrote nothing.
                attention.check()


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

    def edited(self, edit: Callable[[AttentionCall], Tensor | None], size: int, times: int) -> object:
        """The module's result after an edit, each text `times` times in a row."""
        assert self.call is not None
        call = self.call
        wide = replace(call, **{name: widened(getattr(call, name), size, times) for name in ("q", "k", "v", "out")})
        mask, rule = call.mask, call.rule
        if mask.start.shape[0] == size:
            # Only where it has a row of runs for each text: a mask
            # that all texts share serves the expanded batch as it is.
            mask = mask.texts(torch.arange(size, device="cpu").repeat_interleave(times))
        if rule.bias is not None and rule.bias.shape[0] == size:
            rule = replace(rule, bias=rule.bias.repeat_interleave(times, 0))
        new = edit(replace(wide, mask=mask, rule=rule))
        first = self.project(wide.out if new is None else new)
        if isinstance(self.returned, Tensor):
            return first
        assert isinstance(self.returned, tuple | list), "else it is not known"
        return type(self.returned)([first, *(widened(value, size, times) for value in self.returned[1:])])


@dataclass(eq=False)
class Block:
    """A block of the model, its attention, the plans that begin in it, and its result in the plain pass."""

    module: nn.Module
    path: str
    attention: list[Attention] = field(default_factory=list)
    plans: list[int] = field(default_factory=list)
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
    """Keep the result of each block and each attention module, and every call, while a plain pass runs."""
    thread = threading.get_ident()

    # Hooks fire in every thread that runs the model: another thread's results would be kept as ours.
    def keeper(part: Block | Attention) -> Callable[..., None]:
        def keep(module: nn.Module, args: object, result: object) -> None:
            if threading.get_ident() == thread:
                part.returned = result

        return keep

    with ExitStack() as stack:
        by_path = {attention.site.module: attention for block in blocks for attention in block.attention}

        def keep_call(call: AttentionCall) -> None:
            if call.site.module in by_path:
                by_path[call.site.module].call = call

        # The stack takes every hook off again, however far the pass came.
        for part in [*blocks, *by_path.values()]:
            stack.callback(part.module.register_forward_hook(keeper(part)).remove)
        stack.enter_context(tap(model, on_call=keep_call if blocks else None, guard=guard))
        yield


@contextmanager
def skipping(blocks: Sequence[Block], size: int, times: int) -> Generator[None]:
    """Blocks that return their result of the plain pass; the last of each stack with each text `times` times.

    The results of the others are read by nobody: the block after them ignores its inputs.
    """
    last = {block.path.rpartition(".")[0]: block for block in blocks}.values()
    # Only the last block's result reaches the expanded part, so only that one is copied.
    with ExitStack() as stack:
        for block in blocks:
            returned = widened(block.returned, size, times) if block in last else block.returned
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

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        forwards = self.forwards.get(threading.get_ident())
        return (forwards[-1] if forwards else self.forward)(*args, **kwargs)


_FORWARD_STACKS = threading.Lock()  # held while stages come and go, never while a module runs


def widened(value: object, size: int, times: int) -> object:
    """Any module's result for a batch in which each text stands `times` times in a row."""
    # Another first axis is no batch: a position bias, say, or the tables of a rotation, which all texts share.
    if isinstance(value, Tensor):
        return value.repeat_interleave(times, 0) if value.ndim and value.shape[0] == size else value
    if isinstance(value, tuple | list):
        return type(value)(widened(item, size, times) for item in value)
    return value
