"""Many interventions on one corpus: the change of each in each text, with all that they share computed once.

`Runner.over` carries them out, and every pass is one of `read_under`. Interventions that begin in one layer share
everything before it, and its attention. What they do not share runs on an expanded batch, in which every text stands
once for each intervention. Of L layers half are saved: (L + 1) / 2 forward passes for L interventions, less the last
layer's attention, whatever the number of heads. Where a model's blocks cannot be identified, nothing is shared, and
`Swept.because` gives the reason.

An expanded batch is checked once: unedited, it must give what the plain pass gave. Cost besides the passes: one copy of
the residual stream per layer and text.

Rows that no intervention changes run once as well. Where a model is causal, a metric reads the last row alone, and
`Edits` know the first row that differs, only the rows from there on are expanded (`later_rows`). Where they cannot run
without the rows before them, whole texts run, and `because` gives the reason.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from manyheads.edits.application import prepare
from manyheads.edits.blocks import Block, Part, blocks_of, keeping, replaced_forward, skipping
from manyheads.edits.computed import Computed
from manyheads.edits.edits import Acts, Editor
from manyheads.edits.later_rows import Joined, LaterRows
from manyheads.edits.metrics import Metric, require_numbers
from manyheads.inputs import BATCH_TOKENS, Batch, InputsLike, forward
from manyheads.models import AttentionCall, LoadedModel, tap
from manyheads.plan import Plan
from manyheads.private_names import cache_name
from manyheads.progress import Progress
from manyheads.spec import Site

SAME = 1e-4  # of the largest number: an expanded batch is the same sums in another order
PART_ROWS = 300  # rows whose run costs what a part of a batch costs besides: the pass by which it is prepared


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
    - `edits`: new outputs of heads for each attention call, one edit after another; None leaves a call as it is.
    - `guard`: check what the tap sees.
    - `keep`: keep every layer's call: q, k, v and the heads' outputs of the whole batch stay in memory.
    - `grad`: with gradients.

    Without `edits`, `guard` and `keep` the model runs untapped. Cost: one forward pass. Errors: ModelError where the
    model refuses its inputs; StatisticError where the metric cannot be read from its outputs; GuardError.
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

    def unchanged(self, calls: Calls, num_texts: int) -> tuple[Int[Tensor, "b plan"], str]:
        """How many first rows of each text an intervention leaves as they are in a causal model: all, where it changes
        nothing. And why none are known, where they could be expected. `calls`: those of the unedited model.
        """
        ...

    def editor(
        self, chosen: Sequence[int], *, each_its_own: bool, texts: range, places: Mapping[str, Site]
    ) -> OpenEditor:
        """An editor for some texts of a batch, each of which stands once for every chosen intervention, in a row.

        Without `each_its_own` one intervention serves them all. `places`: paths of modules, from the model or from the
        block that is tapped -> the model's sites; {} for a tap on the whole model. It is made while the model is as it
        was: it may run passes of its own. A call may lack first rows (`AttentionCall.rows_from`), never keys.
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

    def unchanged(self, calls: Calls, num_texts: int) -> tuple[Int[Tensor, "b plan"], str]:
        return torch.zeros(num_texts, self.count, dtype=torch.long, device="cpu"), ""

    def editor(
        self, chosen: Sequence[int], *, each_its_own: bool, texts: range, places: Mapping[str, Site]
    ) -> OpenEditor:
        if each_its_own:
            return Editor(self.acts.chosen([*chosen] * len(texts)), True, self.computed, places=places)
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
    """Carries all interventions out on one batch after another. `why`: the reason for sharing nothing, if so.

    `further`: plans that act in several blocks. `tried`: see `LaterRows.of`. `saved_rows`: whether rows that nothing
    changes were run once; `whole`: why whole texts ran where they might not have to.
    """

    many_heads: ClassVar[int] = 100
    """Above, a run for each takes long, and a gradient stands in for it where no estimator is named."""

    lm: LoadedModel
    edits: Edits
    metric: Metric
    share: bool
    blocks: list[Block]
    num_tokens: int
    why: str
    checked: bool = False
    further: frozenset[int] = frozenset()
    tried: set[object] = field(default_factory=set[object])
    saved_rows: bool = False
    whole: str = ""

    @classmethod
    def of(
        cls, lm: LoadedModel, edits: Edits, metric: Metric, *, share: bool = True, num_tokens: int = BATCH_TOKENS
    ) -> Runner:
        """A runner whose blocks know which interventions begin in them.

        Batches have at most `num_tokens` after expansion; `share=False` runs every intervention by itself.
        """
        blocks, why = blocks_of(lm.model, lm.spec) if share else ([], "as asked")
        runner = cls(lm, edits, metric, share, blocks, num_tokens, why)
        runner.take(edits)
        return runner

    def take(self, edits: Edits) -> None:
        """Carry out other interventions from now on. What was found out of the model stays known."""
        self.edits, waiting, self.further = edits, set(range(edits.count)), frozenset()
        for block in self.blocks:
            touching = {plan for attention in block.attention for plan in edits.touching(attention.site)}
            self.further |= touching - waiting
            touching &= waiting
            # Each plan begins in the first block that it touches: there everything before it is known, and everything
            # after it must run anyway. Those that touch none begin in the last.
            block.plans = sorted(waiting if block is self.blocks[-1] else touching)
            waiting -= touching

    @property
    def because(self) -> str:
        """How the interventions were carried out, in words."""
        if not self.blocks:
            return f"one by one: {self.why}"
        known = sum(block.attention[0].known for block in self.blocks if len(block.attention) == 1)
        words = f"what layers share is computed once: {len(self.blocks)} blocks, attention of {known} of them too"
        if self.saved_rows:
            words += ", and the rows before the first that is changed"
        return words + (f"; whole texts run again: {self.whole}" if self.whole else "")

    def over(self, batches: Sequence[Batch], progress: Progress | None = None) -> Swept:
        """The changes in all texts of a corpus. Errors: StatisticError for a metric that gives NaN."""
        num_texts = sum(len(batch.places) for batch in batches)
        changes = torch.zeros(num_texts, self.edits.count, dtype=torch.float64, device="cpu")
        before: list[Tensor] = []
        after: list[Tensor] = []
        # Batch by batch: log-probabilities of a whole corpus would be the largest thing in memory.
        for done, batch in enumerate(batches):
            plain, changes[list(batch.places)], first = self._checked(batch)
            if first is not None and not self.metric.flat:
                before.append(plain)
                after.append(first)
            if progress is not None:
                progress(done + 1, len(batches))
        return Swept(tuple(before), tuple(after), changes, self.because)

    def changes(self, batch: Batch) -> Float64[Tensor, "b plan"]:
        """The changes in the texts of one batch. Errors: StatisticError for a metric that gives NaN."""
        return self._checked(batch).changes

    def _checked(self, batch: Batch) -> BatchRan:
        ran = self.run(batch)
        require_numbers(ran.changes, self.metric, "an intervention" if self.share else "these texts")
        return ran

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
            editor = self.edits.editor([index], each_its_own=False, texts=range(len(batch.places)), places={})
            try:
                # A plain pass that was tapped has been guarded.
                edited = read_under(self.lm, batch, self.metric, [editor], guard=guard and not self.share).reading
            finally:
                editor.close()
            changes[:, index] = self.metric.change(plain, edited).cpu()
            first = edited if first is None else first
        unchanged, ids = self._unchanged(batch), batch.inputs.get("input_ids")
        run_alone = self._later_rows if bool(unchanged.any()) else self._whole_texts
        for rows in parts_of(unchanged, list(range(self.edits.count)), 1 if ids is None else ids.shape[1]):
            for part, after in run_alone(batch, rows):
                some = slice(part.texts.start, part.texts.stop)
                # In the order of `repeated`: text after text, each of them once for every plan.
                change = self.metric.change(plain[some].repeat_interleave(part.times, 0), after)
                changes[some, part.plans] = change.view(-1, part.times).cpu()
        return BatchRan(plain, changes, first)

    def _whole_texts(self, batch: Batch, part: Part) -> Generator[tuple[Part, Tensor]]:
        """The reading of whole texts under a part's plans, those of one block at a time."""
        for number, block in enumerate(self.blocks):
            for some in self._turns(batch, part, [plan for plan in block.plans if plan in set(part.plans)]):
                yield some, self._after(batch, number, some)

    def _later_rows(self, batch: Batch, part: Part) -> Generator[tuple[Part, Tensor]]:
        """The reading under a part's plans of texts whose rows before the part's first are known."""
        later = LaterRows.of(self.lm, self.blocks, batch, part, self.metric, self.tried)
        if isinstance(later, str):
            self.whole = later
            yield from self._whole_texts(batch, replace(part, first=0))
            return
        self.saved_rows |= part.first > 0
        begin = {plan: number for number, block in enumerate(self.blocks) for plan in block.plans}
        plans = sorted(part.plans, key=lambda plan: (begin[plan], plan))
        # Plans of one block join a pass each where it begins: so one pass carries those of many blocks. Others, which
        # a tap carries out, are alone in theirs.
        groups = [[plan for plan in plans if plan not in self.further]]
        groups += [[plan for plan in block.plans if plan in self.further & set(plans)] for block in self.blocks]
        for group in groups:
            for some in self._turns(batch, part, group):
                with ExitStack() as stack:
                    joined: dict[int, Joined] = {}
                    for number in dict.fromkeys(begin[plan] for plan in some.plans):
                        beginning = replace(part, plans=[plan for plan in some.plans if begin[plan] == number])
                        editor = stack.enter_context(self._editor(number, beginning))
                        joined[number] = Joined(beginning, editor, everywhere=group is not groups[0])
                    readings = later.run(joined, self.metric.read)
                parts = [entries.part for entries in joined.values()]
                yield from zip(parts, readings.split([len(one.texts) * one.times for one in parts]), strict=True)

    def _turns(self, batch: Batch, part: Part, plans: list[int]) -> Generator[Part]:
        """A part with some plans at a time, so that a pass has at most `num_tokens`."""
        ids, some = batch.inputs.get("input_ids"), slice(part.texts.start, part.texts.stop)
        width = self.num_tokens // 8 if ids is None else ids[some, part.first :].numel()  # pictures: eight at a time
        # Of like size: as many passes as with full groups and a remainder, and the largest batch is smaller.
        total = len(plans)
        count = min(-(-total * max(1, width) // max(1, self.num_tokens)), total)
        for turn in range(count):
            yield replace(part, plans=plans[turn * total // count : (turn + 1) * total // count])

    @contextmanager
    def _editor(self, number: int, part: Part) -> Generator[OpenEditor]:
        """The editor of a part's plans, which begin in a block, for a tap on the model or on that block."""
        block, places = self.blocks[number], {site.module: site for site in self.lm.spec.sites}
        # A tap on the block alone sees paths from there.
        places |= {attention.site.module[len(block.path) + 1 :]: attention.site for attention in block.attention}
        editor = self.edits.editor(part.plans, each_its_own=True, texts=part.texts, places=places)
        try:
            yield editor
        finally:
            editor.close()

    def _after(self, batch: Batch, number: int, part: Part) -> Tensor:
        """The reading of a batch in which each text stands once for every plan, where all of these begin in a block."""
        block = self.blocks[number]
        first = block.attention[0]
        with ExitStack() as stack:
            editor = stack.enter_context(self._editor(number, part))
            # Earlier blocks only pass on what they returned in the plain pass.
            stack.enter_context(skipping(self.blocks[:number], part))
            # There are three ways, the cheapest in the middle.
            if not self.further.isdisjoint(part.plans):
                # Skipped layers do not call, so a tap cannot count layers and goes by their paths.
                stack.enter_context(tap(self.lm.model, edits=[editor], guard=False))
            elif first.known and len(block.attention) == 1:
                # The attention is known from the plain pass: only the edit and the output projection are computed.
                stack.enter_context(replaced_forward(first.module, lambda *_, **__: first.edited(editor, part)))
            else:
                forward = block.module.forward

                def edited(*args: object, **kwargs: object) -> object:
                    with tap(block.module, edits=[editor], guard=False):
                        return forward(*args, **kwargs)

                stack.enter_context(replaced_forward(block.module, edited))
            expanded = batch.some(slice(part.texts.start, part.texts.stop)).repeated(part.times)
            return read_under(self.lm, expanded, self.metric).reading

    def _unchanged(self, batch: Batch) -> Int[Tensor, "b plan"]:
        """How many first rows need not run for each text and plan: 0 where whole texts do, and `whole` says why."""
        none = torch.zeros(len(batch.places), self.edits.count, dtype=torch.long, device="cpu")
        sites = [attention for block in self.blocks for attention in block.attention]
        calls = {(one.site.stack, one.site.layer): one.call for one in sites if one.call is not None}
        rows, why = self.edits.unchanged(calls, len(none))
        if why or not bool(rows.any()):
            self.whole = why or self.whole
            return none
        takes = inspect.signature(self.lm.model.forward).parameters
        reasons = {
            "the metric may read any row": not self.metric.last_row,
            "the model reads more than one text's tokens": bool(batch.inputs.keys() - {"input_ids", "attention_mask"}),
            "texts are padded": batch.real is not None and not bool(batch.real.all()),
            "attention is not causal": any(call.crosses or call.mask.sees_ahead for call in calls.values()),
            "not every layer's attention is known": len(calls) < len(self.lm.spec.sites),
            "the model takes no keys and values of earlier rows": cache_name(self.lm.model) not in takes,
        }
        why = next((words for words, holds in reasons.items() if holds), "")
        self.whole = why or self.whole
        return none if why else rows

    def _check(self, batch: Batch, plain: Tensor) -> None:
        """Give up sharing where an expanded batch, unedited, differs from the plain one; else find known attention."""
        # Any model may be behind `lm`: whatever it does to an expanded batch is a reason to share nothing, no error.
        try:
            probe = self.metric
            if probe.refer is not None:
                # Such a metric may be 0 as it is, and no difference is small beside that: what it compares is read.
                probe = replace(probe, read=probe.refer, refer=None)
                plain = read_under(self.lm, batch, probe).reading
            with skipping(self.blocks[:-1], Part(range(len(plain)), [0, 0], 0, len(plain))):
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


def parts_of(unchanged: Int[Tensor, "b plan"], plans: list[int], length: int) -> Generator[Part]:
    """The parts of a batch of texts of `length` rows in which plans run, each from the first row that they change on.

    Plans, or neighbouring texts, run together where the rows that this adds cost less than another part. What changes
    no row of a text does not run on it.
    """
    size = len(unchanged)
    if not bool(unchanged.any()):
        yield Part(range(size), plans, 0, size)
        return
    groups: list[list[int]] = []
    for plan in sorted(plans, key=lambda plan: int(unchanged[:, plan].sum())):
        rows = unchanged[:, [*groups[-1], plan]] if groups else unchanged[:, []]
        if groups and int((rows - rows.amin(1, keepdim=True)).sum()) <= PART_ROWS:
            groups[-1].append(plan)
        else:
            groups.append([plan])
    for group in groups:
        firsts, begin = unchanged[:, group].amin(1).tolist(), 0
        for end in range(1, size + 1):
            # Of these texts and the next one: rows that would run though nothing changes them.
            rows = firsts[begin : end + 1]
            if end < size and (sum(rows) - min(rows) * len(rows)) * len(group) <= PART_ROWS:
                continue
            if (first := min(firsts[begin:end])) < length:
                yield Part(range(begin, end), sorted(group), first, size)
            begin = end
