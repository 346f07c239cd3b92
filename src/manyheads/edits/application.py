"""`applied`: inside the block the model is as the plan says; afterwards it is as it was, whatever happened.

    with mh.applied(lm, mh.Plan([mh.Ablate("L3H7", kind="mean")]), corpus=texts) as now:
        table = mh.measure(lm, "The cat sat ...")        # or any call of lm.model
    now.unchanged                                          # steps that changed nothing, if any

Why: transformers 5 ignores `head_mask` in silence. Edits here act on each head's output before the output projection,
in the same tap that records, and report when they changed nothing. Cost: none that can be measured for zero, scale,
mean and resample; average and copy compute a layer's weights again, in blocks; an edit costs what its function does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from torch import nn

from manyheads.base import brief
from manyheads.edits.computed import CorpusLike, Prepared, compute, model_digest, open_plan
from manyheads.edits.edits import NOTHING, Acts, Editor, places_of, plans_of
from manyheads.edits.metrics import require_loaded
from manyheads.errors import HeadError, PlanError
from manyheads.heads import parts_of
from manyheads.machine import require_all_heads
from manyheads.models import LoadedModel, tap
from manyheads.models.loading import refusing_head_mask
from manyheads.plan import Plan, Step, describe

PlanLike = Plan | Step | Sequence[Plan | Step] | Prepared | str | os.PathLike[str]
log = logging.getLogger("manyheads")


@dataclass(eq=False, repr=False)
class Applied:
    """An applied plan: `unchanged` and `changes` report what its steps have done so far."""

    prepared: Prepared
    editor: Editor

    @property
    def changes(self) -> dict[str, float]:
        """Each step in words -> its largest change, as a share of the largest head output where it acted."""
        changes: dict[str, float] = {}
        for index, plan in enumerate(self.prepared.plans):
            for place, step in enumerate(plan.steps):
                name = describe(step) if len(self.prepared.plans) == 1 else f"plan {index}: {describe(step)}"
                changes[name] = max(changes.get(name, 0.0), self.editor.changed.get((index, place), 0.0))
        return changes

    @property
    def unchanged(self) -> tuple[str, ...]:
        """The steps that changed nothing, in words."""
        return tuple(name for name, change in self.changes.items() if change <= NOTHING)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, and beside it what was computed from a corpus. Errors: PlanError, FileAccessError."""
        self.prepared.save(path)

    def __repr__(self) -> str:
        return brief(f"Applied({'; '.join(map(str, self.prepared.plans))})")


@contextmanager
def applied(
    lm: LoadedModel | nn.Module,
    plan: PlanLike,
    corpus: CorpusLike | None = None,
) -> Generator[Applied]:
    """Carry out a plan in every attention call that `lm`'s model makes in this thread, until the block is left.

    `lm` is a loaded model, or any torch module in eval mode. `plan` is a Plan, one step, a file that `save` wrote, or
    a list of plans, one for each sample of a batch. `corpus`: the texts from which "mean" and "resample" ablation take
    their values (for a bare module: a list of its inputs, each a tensor, a tuple or keywords). Blocks nest: a plan that
    is applied later acts on the result of the earlier one.

    A layer's weights, as `record` and `measure` see them, remain those of its q and k whatever replaces its outputs.
    A step that changed nothing is reported as a warning (logger "manyheads") when the block is left.
    Errors: HeadError for heads that the model lacks; PlanError for a plan that needs a corpus and has none, that was
    computed for another model, or where a caller still passes `head_mask=`; ModelError and GuardError of the tap.
    """
    prepared, each_its_own = prepare(lm, plan, corpus)
    model = lm if isinstance(lm, nn.Module) else lm.model
    spec = None if isinstance(lm, nn.Module) else lm.spec
    now = Applied(prepared, Editor(Acts(prepared.plans, spec), each_its_own, prepared.computed))
    editor = now.editor
    with refusing_head_mask(model), tap(model, edits=[editor]) as state:
        try:
            editor.open(model)
            yield now
        finally:
            editor.close()
    # No fault of the plan: a block that never ran the model may be meant, and is reported, not refused.
    if not state.sites:
        log.warning("the plan changed nothing: the model did not run while it was applied.")
        return
    if unmet := editor.acts.unmet():
        raise PlanError(
            f"{unmet[0]!r} names no head of this {type(model).__name__}, which attended as "
            f"{', '.join(f'{site} ({site.num_heads} heads)' for site in state.sites.values())}."
        )
    for name in now.unchanged:
        log.warning("%s changed nothing in what was run.", name)


def prepare(lm: LoadedModel | nn.Module, plan: PlanLike, corpus: CorpusLike | None = None) -> tuple[Prepared, bool]:
    """A plan with all tensors that it needs, and whether it has one plan for each sample.

    Errors: PlanError, HeadError, TextError.
    """
    if not isinstance(lm, nn.Module):
        require_loaded(lm)
    model, name = (lm, type(lm).__name__) if isinstance(lm, nn.Module) else (lm.model, lm.name)
    require_all_heads(model, name, "a plan")
    if isinstance(plan, str) and not os.path.exists(plan):
        with suppress(HeadError):  # of a path, which `open_plan` refuses
            heads = [part[0] for part in parts_of(plan)]
            raise PlanError(
                f"{plan!r} names heads, but not what to do with them: write Plan([Ablate({', '.join(heads)!r})])."
            )
    if isinstance(plan, str | os.PathLike):
        plan = open_plan(plan)
    if isinstance(plan, Prepared):
        prepared = plan if corpus is None else Prepared(plan.plans)
        each_its_own = len(plan.plans) > 1
    else:
        plans, each_its_own = plans_of(plan)
        prepared = Prepared(plans)
    layers = None
    if not isinstance(lm, nn.Module):  # heads are checked before a corpus is read
        layers = frozenset(layer for layer, acts in Acts(prepared.plans, lm.spec).known.items() if acts)
    for step in [step for plan in prepared.plans for step in plan.on_places.values()]:
        places_of(model, None if isinstance(lm, nn.Module) else lm.spec, step).chosen(step.layers)
    if not prepared.computed.tensors:
        prepared = Prepared(prepared.plans, compute(lm, prepared.plans, corpus, layers))
    # Means of another model would be put into this one without any visible error.
    elif prepared.computed.model != model_digest(lm):
        name = type(lm).__name__ if isinstance(lm, nn.Module) else lm.name
        raise PlanError(
            f"the values that this plan puts in place of heads were computed with a model other than {name} (its "
            f"weights have another digest): give corpus= to compute it again."
        )
    return prepared, each_its_own
