"""Many interventions on one corpus: what each of them changes in each text, with all that they share computed once.

Interventions that begin in one layer share everything before it, and its attention (`blocks`): what they do not share
runs on a batch in which every text stands once for each of them. Of L layers half are saved, (L + 1) / 2 forward
passes for L, less the last layer's attention, whatever the number of heads. Where blocks cannot be told, nothing is
shared, and that is said.

An expanded batch is checked once: unedited, it must give what the plain pass gave. Cost besides the passes: one copy of
the residual stream a layer and text.
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
from jaxtyping import Float64
from torch import Tensor, nn

from manyheads.interventions.apply.applied import prepare
from manyheads.interventions.apply.computed import Computed
from manyheads.interventions.apply.edits import Acts, Editor
from manyheads.interventions.effects.metrics import Batch, Corpus, Metric, outputs_of, require_numbers
from manyheads.models import BATCH_TOKENS, AttentionCall, tap
from manyheads.plan import Plan
from manyheads.spec import ModelSpec, Site
from manyheads.statistics import Progress

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


# ---------------------------------------------------------------------------------------------------------------------
# Parts of a model that need not run again: blocks before an intervention, and the attention that it edits.
#
# A block (attention and feed-forward of one layer) whose inputs nobody has touched returns what it returned before. So
# does the attention inside the block that an intervention begins in: its heads' outputs are known, only their edit and
# the output projection are new. Both stand in for the module's own forward while a block is open, and are put right
# again whatever happens. Only in the thread that asked: others may run the same model meanwhile, and see nothing of it.


SAME_OF_BLOCKS = 1e-5  # of the largest number, in float32: the same sums in another order


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
            self.known = bool((again - first).abs().max() <= SAME_OF_BLOCKS * first.abs().max())

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
