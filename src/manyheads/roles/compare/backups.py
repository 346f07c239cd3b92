"""Backup heads: which heads change when another is taken away, in what they look at and in what they are worth.

A head that seems to be worth nothing may be covered by others. So each other head is asked two things. Do its rows
change once the target is gone (`moved`; heads of earlier layers cannot)? And is more lost without it once the target
is gone than before (`interaction`)? A backup is worth more then. A head that only passes on what the target says is
worth less, and its interaction is negative.

Losing any head shifts a little of everything. So the same is done without random heads of the target's layer, and a
backup must stand clear of each of these, besides an interaction that chance over texts does not explain.
Sources: Wang et al. 2023, section 3.4 (backup name movers); McGrath et al. 2023 (the hydra effect);
Benjamini and Hochberg 1995 (q).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# torch's methods and pandas have no types here.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float64
from numpy import ndarray

from manyheads.base import Json, brief, plain, whole
from manyheads.edits import Editor, MetricLike, Runner, choose_metric, plan_edits, require_loaded
from manyheads.errors import PlanError, StatisticError
from manyheads.heads import Head, HeadLike, HeadsLike
from manyheads.inputs import BATCH_TOKENS, Batch, Inputs, InputsLike, Reading, forward, read
from manyheads.models import LoadedModel, tap
from manyheads.plan import Ablate, AblationKind, Plan
from manyheads.progress import ShowProgress, shows_progress
from manyheads.recording import PerHeadResult
from manyheads.roles.chance import q_values, random_targets, sign_flip_p
from manyheads.roles.compare.rows import RowKeeper, block_size, row_divergences, rows_of_texts, sharing_around
from manyheads.statistics import mean_interval, number
from manyheads.texts import text_seed

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

CONTROLS = 3  # random targets: each costs as much as the target itself
MOST_Q = 0.05  # of the heads called backups, at most one in twenty by chance over texts


@dataclass(frozen=True)
class HeadChange:
    """What became of one head once the targets were gone. Means over texts; None where there is nothing to say.

    `moved`: the Jensen-Shannon divergence of its rows before and after, in nats (0 to ln 2), with its 95 % interval;
    `moved_control` the same for each random target; `moved_q` whether target and random targets differ.
    `alone`: what is lost without it in the whole model; `without`: in the model without the targets, beside that model.
    `interaction`: `without` less `alone`, with its interval; positive: it matters more once they are gone. `control`:
    the interaction with each random target. `p`: two-sided, signs flipped text by text; `q`: over all heads (BH).
    `backup`: whether q is at most 0.05, and the interaction's interval above 0 and above every random target's.
    """

    head: Head
    moved: float | None
    moved_low: float | None
    moved_high: float | None
    moved_control: tuple[float | None, ...]
    moved_q: float | None
    alone: float
    without: float
    interaction: float
    low: float | None
    high: float | None
    control: tuple[float | None, ...]
    p: float
    q: float
    backup: bool

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {name: plain(value) for name, value in {**vars(self), "head": str(self.head)}.items()}


@dataclass(frozen=True, eq=False)
class BackupHeads(PerHeadResult):
    """What the loss of `targets` changes in each other head. `effect`: what is lost without them, in `unit` of
    `metric`; `control_effects` is the same for the random targets. `notes` says how, on what, and beside which
    heads."""

    missing: ClassVar[str] = "here: it is a target, or was not among those that were asked for."

    model: str
    targets: tuple[Head, ...]
    kind: str
    metric: str
    unit: str
    effect: float
    control_effects: tuple[float, ...]
    changes: tuple[HeadChange, ...]
    num_texts: int
    notes: dict[str, str]

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads that were looked at, in the order of `changes`."""
        return tuple(change.head for change in self.changes)

    @property
    def backups(self) -> tuple[HeadChange, ...]:
        """The heads that are worth more once the targets are gone, largest first."""
        backups = [change for change in self.changes if change.backup]
        return tuple(sorted(backups, key=lambda change: -change.interaction))

    def __getitem__(self, head: HeadLike) -> HeadChange:
        """Errors: HeadError for a head that was not looked at."""
        return self.changes[self.head_place(head)]

    def to_pandas(self) -> pd.DataFrame:
        """A row a head: head, stack, layer, index, and the fields of `HeadChange`, of the controls their means."""
        import pandas as pd

        frame = pd.DataFrame(self.head_columns())
        controls = ("moved_control", "control")  # one value for each random target: their mean, in the last columns
        names = [field.name for field in fields(HeadChange) if field.name not in ("head", *controls)]
        for name in names:
            frame[name] = [getattr(change, name) for change in self.changes]
        for name in controls:
            known = ([value for value in getattr(change, name) if value is not None] for change in self.changes)
            frame[name] = [float(np.mean(values)) if values else None for values in known]
        return frame

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "targets": [str(head) for head in self.targets],
            "control_effects": list(self.control_effects),
            "changes": [change.to_dict() for change in self.changes],
        }

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        backups = ", ".join(f"{change.head} {change.interaction:+.3g}" for change in self.backups[:5]) or "none"
        targets = ", ".join(map(str, self.targets))
        return f"BackupHeads(of {targets}: {backups}; {self.metric}, {self.kind} ablation, {self.num_texts} texts)"


@shows_progress("looking for backups")
def backup_heads(
    lm: LoadedModel,
    given: InputsLike,
    targets: HeadsLike,
    *,
    metric: MetricLike = "auto",
    kind: AblationKind = "mean",
    corpus: InputsLike | None = None,
    among: HeadsLike | None = None,
    rows: int | None = None,
    controls: int = CONTROLS,
    seed: int = 0,
    num_tokens: int = BATCH_TOKENS,
    progress: ShowProgress = None,
) -> BackupHeads:
    """What each other head becomes once `targets` are ablated together: what it looks at, and what it is worth.

    - `lm`: a loaded model.
    - `given`: what is read.
    - `targets`: the heads that are taken away together.
    - `metric`: as in `effect`.
    - `kind`: how heads are taken away, targets and others alike, as in `Ablate`.
    - `corpus`: texts from which "mean" and "resample" take their values, in the model as it then is; None: the texts
      themselves, which `notes` says.
    - `among`: the heads that are looked at; None: all.
    - `rows`: at most so many rows of each text, as in `head_families`.
    - `controls`: how many random targets of the same layers to set beside them.
    - `seed`: draws these.
    - `num_tokens`: the size of a batch in tokens, padding included.
    - `progress`: called with how much is read, and of how much.

    Cost: 2 + `controls` times what `importance` costs, (L + 1) / 2 forward passes a head of a layer, and the same
    number of readings for the rows: 200 forward passes for `minilm`'s 72 heads. `among` and `controls=0` reduce it.
    Errors: HeadError, PlanError, TextError, StatisticError, ModelError, GuardError.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    require_loaded(lm)
    whole("controls", controls, 0, StatisticError, "0 or more random targets")
    # the targets, and the heads to look at
    if not (gone := lm.spec.select(targets).heads):
        raise PlanError(f"{targets=} names no heads: say which to take away, as 'L3H7'.")
    heads = tuple(head for head in (lm.spec.heads if among is None else lm.spec.select(among)) if head not in gone)
    if not heads:
        raise StatisticError(f"no head is left to look at beside the targets ({', '.join(map(str, gone))}).")
    inputs = Inputs.of(given)
    chosen, why = choose_metric(lm, metric, inputs.labels)
    reading = read(lm, inputs, pairs=False, only_texts=True)
    sets = [gone, *random_targets(gone, lm.spec, controls, seed)]
    without = "; ".join(", ".join(map(str, target)) for target in sets[1:])
    none = "none: too few other heads" if controls else "none, as asked"
    notes = {
        "model": lm.name,
        "metric": why,
        "controls": f"without {without} in the targets' place" if without else none,
    }
    if corpus is None and Ablate(gone[0], kind=kind).needs_corpus:
        corpus, notes["corpus"] = inputs, "the texts themselves, for want of another"
    plans = [Plan(Ablate([str(head) for head in target], kind=kind)) for target in sets]
    editors = plan_edits(lm, plans, corpus).editors
    # Each editor is used twice below, for the rows and for the losses, and closed after each.
    moved, notes["rows"] = moved_rows(lm, reading, editors, heads, rows)
    singles = [Plan(Ablate(head, kind=kind)) for head in heads]
    batches = tuple(reading.batches(num_tokens // 4))

    def worths(turn: int, tried: list[Plan]) -> Float64[ndarray, "text plan"]:
        """What is lost by each plan, text by text; `turn` counts the sweeps, for progress alone."""

        def report(done: int, of: int | None) -> None:
            if progress is not None and of is not None:
                progress(turn * of + done, (1 + len(editors)) * of)

        runner = Runner.of(lm, plan_edits(lm, tried, corpus), chosen, num_tokens=num_tokens)
        swept = runner.over(batches, report)
        notes["computed"] = f"{kind} ablation of each head; {swept.because}"
        return swept.changes.numpy()

    # One sweep for both: heads and targets are then set beside one and the same plain pass.
    losses = worths(0, [*singles, *plans])
    under: list[ndarray] = []
    for turn, editor in enumerate(editors, 1):
        # The rows of this plan have been read before, and guarded.
        try:
            with tap(lm.model, edits=[editor], guard=False):
                under.append(worths(turn, singles))
        finally:
            editor.close()
    left = np.stack(under)
    if editors[0].idle(0, 0):
        notes["unchanged"] = f"{kind} ablation of {', '.join(map(str, gone))} changed nothing"
    notes |= reading.remarks
    alone, effects = losses[:, : len(heads)], losses[:, len(heads) :].mean(0)
    # A random target has no interaction with itself.
    for control, target in enumerate(sets[1:], 1):
        left[control][:, [index for index, head in enumerate(heads) if head in target]] = np.nan
    seeds = [text_seed(piece.text) for piece in reading.pieces]
    changes = _changes(heads, moved, alone, left, seeds)
    return BackupHeads(
        lm.name, gone, kind, chosen.name, chosen.unit, float(effects[0]), tuple(effects[1:].tolist()), changes,
        reading.num_texts, notes,
    )  # fmt: skip


def _changes(
    heads: tuple[Head, ...],
    moved: Float64[ndarray, "target text head"],
    alone: Float64[ndarray, "text head"],
    left: Float64[ndarray, "target text head"],
    seeds: Sequence[int],
) -> tuple[HeadChange, ...]:
    """Means, intervals, p and q of every head; target 0 is the one that is asked about, the others are controls."""
    interaction = left - alone
    p = sign_flip_p(interaction[0], seeds)
    q = q_values(p)
    # Texts of one token have no row to speak of; where there are no others, all are taken, and their means are NaN.
    has_rows = ~np.isnan(moved[0]).any(1)
    if not has_rows.any():
        has_rows[:] = True
    rows = moved[:, has_rows]
    moved_q = np.full(len(heads), np.nan)
    if len(moved) > 1:
        row_seeds = [seed for seed, counted in zip(seeds, has_rows, strict=True) if counted]
        moved_q = q_values(sign_flip_p(rows[0] - rows[1:].mean(0), row_seeds))
    # Of one text, however often it comes, there is no interval.
    unknown = np.full(len(heads), np.nan)
    (low, high), (least, most) = (
        mean_interval(values) if len(set(seeds)) > 1 else (unknown, unknown) for values in (rows[0], interaction[0])
    )
    means, moved_means = interaction.mean(1), rows.mean(1)
    changes: list[HeadChange] = []
    for index, head in enumerate(heads):
        control = means[1:, index]
        # Above 0 and above every random target: the loss of any head makes the others worth a little more or less.
        bar = max([0.0, *control[~np.isnan(control)].tolist()])
        changes.append(
            HeadChange(
                head=head,
                moved=number(moved_means[0, index]),
                moved_low=number(low[index]),
                moved_high=number(high[index]),
                moved_control=tuple(number(value) for value in moved_means[1:, index]),
                moved_q=number(moved_q[index]),
                alone=float(alone[:, index].mean()),
                without=float(left[0, :, index].mean()),
                interaction=float(means[0, index]),
                low=number(least[index]),
                high=number(most[index]),
                control=tuple(number(value) for value in control),
                p=float(p[index]),
                q=float(q[index]),
                backup=bool(q[index] <= MOST_Q and least[index] > bar),
            )
        )
    return tuple(changes)


def moved_rows(
    lm: LoadedModel, reading: Reading, editors: Sequence[Editor], heads: Sequence[Head], rows: int | None
) -> tuple[Float64[ndarray, "plan text head"], str]:
    """The mean divergence of each head's rows under each plan from those before, in nats, and which rows.

    The same rows of the same texts are read before and after. NaN where a text has no row that sees two keys, and for
    layers that do not attend over whole texts.
    Cost: 1 forward pass and one more for each plan. Memory: twice the keys of one batch.
    """
    count, why = rows_of_texts(reading, rows)
    moved = np.full((len(editors), len(reading.pieces), len(heads)), np.nan)
    left_out: dict[str, None] = {}
    for batch in reading.batches():
        before = _read(lm, batch, count, None)
        left_out |= before.left_out
        for plan, editor in enumerate(editors):
            after = _read(lm, batch, count, editor)
            for index, text in enumerate(batch.places):
                of_head: dict[Head, float] = {}
                for module, layer in before.layers.items():
                    usable = layer.usable(index).nonzero()[:, 0]
                    if not len(usable):
                        continue
                    pairs = (
                        (layer.weights(index, chosen), after.layers[module].weights(index, chosen))
                        for chosen in usable.split(block_size(layer.site.num_heads, layer.num_keys[index]))
                    )
                    sums = torch.stack([row_divergences(*pair).sum(-1) for pair in pairs]).sum(0)
                    of_head |= zip(layer.site.heads, (sums / len(usable)).tolist(), strict=True)
                moved[plan, text] = [of_head.get(head, np.nan) for head in heads]
    return moved, "; ".join([why, *(f"not of {module}, which attends in stretches of its own" for module in left_out)])


def _read(lm: LoadedModel, batch: Batch, count: int, editor: Editor | None) -> RowKeeper:
    """One forward pass, and the chosen rows of every layer."""
    keeper = RowKeeper(batch, count, None, sharing_around(lm.model))
    try:
        forward(lm, batch, keeper.observe, edits=[] if editor is None else [editor])
    finally:
        if editor is not None:
            editor.close()
    return keeper
