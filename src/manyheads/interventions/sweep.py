"""Many interventions on one corpus: what each of them changes in each text, with all that they share computed once.

Interventions that begin in one layer share everything before it, and its attention (`blocks`): what they do not share
runs on a batch in which every text stands once for each of them. Of L layers half are saved, (L + 1) / 2 forward
passes for L, less the last layer's attention, whatever the number of heads. Where blocks cannot be told, nothing is
shared, and that is said.

An expanded batch is checked once: unedited, it must give what the plain pass gave. Cost besides the passes: one copy of
the residual stream a layer and text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from manyheads.interventions.applying import prepare
from manyheads.interventions.blocks import Block, blocks_of, keeping, skipping, standing_in
from manyheads.interventions.computed import Computed
from manyheads.interventions.editing import Editor
from manyheads.interventions.metrics import Metric, require_numbers
from manyheads.interventions.readings import Batch, Corpus, outputs_of
from manyheads.interventions.resolving import Acts
from manyheads.models.taps.tap import tap
from manyheads.models.inputs.texts import BATCH_TOKENS
from manyheads.plan import Plan
from manyheads.spec import Site
from manyheads.statistics.gathered import Progress

__all__ = ["Sweep", "sweep"]

SAME = 1e-4  # of the largest number: an expanded batch is the same sums in another order


@dataclass(frozen=True, eq=False)
class Sweep:
    """`changes[text, plan]` of a metric, and how they were computed, in words."""

    changes: Float64[Tensor, "text plan"]
    because: str


def sweep(
    lm: Any,
    plans: Sequence[Plan],
    corpus: Corpus,
    metric: Metric,
    *,
    texts: Any = None,
    share: bool = True,
    num_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Sweep:
    """What each plan changes in each text. `texts`: the corpus that "mean" and "resample" ablation draw from.

    Batches of `num_tokens` after expansion; `share=False` runs every plan by itself. Errors: those of `applied`;
    StatisticError for a metric that gives NaN.
    """
    prepared, _ = prepare(lm, list(plans), texts)
    blocks, why = blocks_of(lm.model, lm.spec) if share else ([], "as asked")
    acts = Acts(prepared.plans, lm.spec)
    _begin(blocks, acts)
    runner = _Runner(lm, prepared.computed, acts, metric, blocks, num_tokens, why)
    changes = torch.zeros(corpus.num_texts, len(plans), dtype=torch.float64)
    for done, batch in enumerate(corpus.batches):
        changes[list(batch.places)] = runner.run(batch)
        if progress is not None:
            progress(done + 1, len(corpus.batches))
    require_numbers(changes, metric, "an intervention")
    return Sweep(changes, runner.story())


def _begin(blocks: Sequence[Block], acts: Acts) -> None:
    """Give each plan to the first block that it touches; those that touch none begin in the last."""
    waiting = set(range(len(acts.plans)))
    for block in blocks:
        sites = [each.site for each in block.attention]
        here = {act.plan for site in sites for act in acts.known[site.stack, site.layer]} & waiting
        block.plans = sorted(waiting if block is blocks[-1] else here)
        waiting -= here


@dataclass(eq=False)
class _Runner:
    lm: Any
    computed: Computed
    acts: Acts
    metric: Metric
    blocks: list[Block]
    num_tokens: int
    why: str
    checked: bool = False

    def story(self) -> str:
        if not self.blocks:
            return f"one by one: {self.why}"
        known = sum(block.attention[0].known for block in self.blocks if len(block.attention) == 1)
        return f"what layers share is computed once: {len(self.blocks)} blocks, attention of {known} of them too"

    def run(self, batch: Batch) -> Float64[Tensor, "b plan"]:
        """Every plan's change in each text of a batch."""
        with keeping(self.lm.model, self.blocks, guard=not self.checked):
            plain = self._read(batch)
        require_numbers(self.metric.change(plain, plain), self.metric, "the model as it is")
        if self.blocks and not self.checked:
            self._check(batch, plain)
        self.checked = True
        changes = torch.zeros(len(batch.places), len(self.acts.plans), dtype=torch.float64)
        if not self.blocks:
            for index in range(len(self.acts.plans)):
                with self._tapped(self.lm.model, [index], each=False):
                    changes[:, index] = self.metric.change(plain, self._read(batch))
        for at, block in enumerate(self.blocks):
            for plans in self._groups(block.plans, batch):
                changes[:, plans] = self._expanded(batch, plain, at, plans)
        return changes

    def _read(self, batch: Batch) -> Tensor:
        return self.metric.read(outputs_of(self.lm, batch, head=self.metric.head), batch)

    def _groups(self, plans: list[int], batch: Batch) -> Iterator[list[int]]:
        """Plans of one block, as many at a time as a batch may hold, in groups of like size."""
        ids = batch.inputs.get("input_ids")
        width = self.num_tokens // 8 if ids is None else ids.numel()  # pictures: eight at a time
        count = min(-(-len(plans) * max(1, width) // max(1, self.num_tokens)), len(plans))
        for part in range(count):
            yield plans[part * len(plans) // count : (part + 1) * len(plans) // count]

    def _expanded(self, batch: Batch, plain: Tensor, at: int, plans: list[int]) -> Float64[Tensor, "b plan"]:
        """The changes of plans that begin in block `at`: each text stands once for each plan."""
        times, size = len(plans), len(batch.places)
        with skipping(self.blocks[:at], size, times), self._around(self.blocks[at], plans, size):
            after = self._read(batch.repeated(times))
        return self.metric.change(plain.repeat_interleave(times, 0), after).view(size, times)

    @contextmanager
    def _around(self, block: Block, plans: list[int], size: int) -> Iterator[None]:
        """The plans' edits, in a block that runs; where its attention is known, that alone is made again."""
        (first, *others), times = block.attention, len(plans)
        later = any(act.plan in plans for site in self._after(block) for act in self.acts.of(site))
        if first.known and not others and not later:
            editor = self._editor(plans, each=True, size=size)
            try:
                with standing_in(first.module, lambda *args, **kwargs: first.edited(editor, size, times)):
                    yield
            finally:
                editor.close()
            return
        if later:  # skipped layers do not call, so layers cannot be told by counting
            where = {site.module: site for site in self.lm.spec.sites}
            with self._tapped(self.lm.model, plans, each=True, size=size, places=where):
                yield
            return
        forward = block.module.forward

        def edited(*args: Any, **kwargs: Any) -> Any:
            with self._tapped(block.module, plans, each=True, size=size, places=block.places()):
                return forward(*args, **kwargs)

        with standing_in(block.module, edited):
            yield

    def _after(self, block: Block) -> list[Site]:
        """The sites of the blocks that run after this one."""
        at = self.blocks.index(block)
        return [each.site for later in self.blocks[at + 1 :] for each in later.attention]

    def _editor(self, plans: list[int], *, each: bool, size: int, places: Any = None) -> Editor:
        acts = self.acts.chosen(plans * (size if each else 1))
        return Editor(acts, each, self.computed, places=places or {})

    @contextmanager
    def _tapped(
        self, module: nn.Module, plans: list[int], *, each: bool, size: int = 1, places: dict[str, Site] | None = None
    ) -> Iterator[None]:
        editor = self._editor(plans, each=each, size=size, places=places)
        try:
            with tap(module, edits=[editor], guard=False):
                yield
        finally:
            editor.close()

    def _check(self, batch: Batch, plain: Tensor) -> None:
        """Whether an expanded batch, unedited, gives what the plain one did, and which attention is known."""
        try:
            with skipping(self.blocks[:-1], len(batch.places), 2):
                again = self._read(batch.repeated(2))
            off = (again - plain.repeat_interleave(2, 0)).abs().nan_to_num(0).max()
            same = bool(off <= SAME * plain.abs().nan_to_num(0).max().clamp_min(1e-30))
            self.why = "" if same else "an expanded batch does not give what the plain one does"
            if any(len(each.call.out) != len(plain) for b in self.blocks for each in b.attention if each.call):
                self.why = "layers attend in batches of their own (windows of a picture)"
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            said = str(error.__cause__ or error).splitlines() or [type(error).__name__]
            self.why = f"an expanded batch cannot be run ({said[0][:80]})"
        if self.why:
            self.blocks = []
        for block in self.blocks:
            for attention in block.attention:
                attention.check()
