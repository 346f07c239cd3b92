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

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy import ndarray

from manyheads.errors import HeadError, PlanError, StatisticError
from manyheads.heads import Head, HeadsLike
from manyheads.interventions import Editor, choose_metric, editors_of, read_corpus, sweep
from manyheads.interventions.effects.effect import interval_over_texts
from manyheads.interventions.effects.metrics import require_loaded
from manyheads.models import BATCH_TOKENS, CallTexts, Reading, batches, model_inputs, read_texts, tap, tokens_of
from manyheads.models.describe import run
from manyheads.plan import Ablate, Plan
from manyheads.recording import Tokens, text_seed
from manyheads.roles.chance import q_values, random_targets, sign_flip_p
from manyheads.roles.compare.rows import (
    KeptLayer,
    RowKeeper,
    block_size,
    row_divergences,
    rows_of_texts,
    sharing_around,
)
from manyheads.spec import ModelSpec
from manyheads.statistics import Progress, write_frame
from manyheads.statistics.head_table import number

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BackupHeads", "HeadChange", "backup_heads"]


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

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "head": str(self.head)}


@dataclass(frozen=True, eq=False)
class BackupHeads:
    """What the loss of `targets` changes in each other head. `effect`: what is lost without them, in `unit` of
    `metric`; `control_effects` the same of the random targets. `notes` says how, on what, and beside which heads."""

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
    def backups(self) -> tuple[HeadChange, ...]:
        """The heads that are worth more once the targets are gone, the most first."""
        return tuple(sorted((each for each in self.changes if each.backup), key=lambda each: -each.interaction))

    def __getitem__(self, head: str | Head) -> HeadChange:
        """Errors: HeadError for a head that was not looked at."""
        wanted = Head.parse(head) if isinstance(head, str) else head
        for each in self.changes:
            if each.head == wanted:
                return each
        raise HeadError(f"there is no head {wanted} here: it is a target, or was not among those that were asked for.")

    def to_pandas(self) -> pd.DataFrame:
        """A row a head: head, stack, layer, index, and the fields of `HeadChange`, of the controls their means."""
        import pandas as pd

        rows = []
        for each in self.changes:
            plain = each.to_dict()
            means = {name: _mean(plain.pop(name)) for name in ("moved_control", "control")}
            place = {"stack": each.head.stack, "layer": each.head.layer, "index": each.head.index}
            rows.append({"head": plain.pop("head"), **place, **plain, **means})
        return pd.DataFrame(rows)

    def save(self, path: str | Path) -> None:
        """Write the table by its ending: .parquet, .csv or .json, whole or not at all. Errors: FileAccessError."""
        write_frame(self.to_pandas(), Path(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "model": self.model,
            "targets": [str(head) for head in self.targets],
            "kind": self.kind,
            "metric": self.metric,
            "unit": self.unit,
            "effect": self.effect,
            "control_effects": list(self.control_effects),
            "changes": [each.to_dict() for each in self.changes],
            "num_texts": self.num_texts,
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        found = ", ".join(f"{each.head} {each.interaction:+.3g}" for each in self.backups[:5]) or "none"
        gone = ", ".join(map(str, self.targets))
        return f"BackupHeads(of {gone}: {found}; {self.metric}, {self.kind} ablation, {self.num_texts} texts)"


def backup_heads(
    lm: Any,
    texts: str | Sequence[str],
    targets: HeadsLike,
    *,
    metric: str | Callable[..., Any] = "auto",
    labels: Any = None,
    kind: str = "mean",
    corpus: Any = None,
    among: HeadsLike | None = None,
    rows: int | None = None,
    controls: int = CONTROLS,
    seed: int = 0,
    num_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> BackupHeads:
    """What each other head becomes once `targets` are ablated together: what it looks at, and what it is worth.

    `kind` is how heads are taken away, targets and others alike (as in `Ablate`; "mean" and "resample" take their
    values from `corpus`, or from the texts themselves, which is said, in the model as it then is). `metric`, `labels`
    as in `effect`. `among`: the heads that are looked at (None: all). `rows` as in `head_families`. `controls`: how
    many random targets of the same layers to set beside them, drawn by `seed`.

    Cost: 2 + `controls` times what `importance` costs, (L + 1) / 2 forward passes a head of a layer, and as many
    readings for the rows: of `minilm`'s 72 heads 200 forward passes. `among` and `controls=0` make it less.
    Errors: HeadError, PlanError, TextError, StatisticError, ModelError, GuardError.
    """
    require_loaded(lm)
    if isinstance(controls, bool) or not isinstance(controls, int) or controls < 0:
        raise StatisticError(f"{controls=!r}: give 0 or more random targets.")
    gone, others = _asked(lm.spec, targets, among)
    chosen, why = choose_metric(lm, metric, labels)
    reading = read_texts(lm, texts)
    sets = [gone, *random_targets(gone, lm.spec, controls, seed)]
    notes = {"model": lm.name, "metric": why, "controls": _said(sets[1:], controls)}
    if corpus is None and Ablate(gone[0], kind=kind).needs_corpus:
        corpus, notes["corpus"] = texts, "the texts themselves, for want of another"
    plans = [Plan(Ablate([str(head) for head in each], kind=kind)) for each in sets]
    editors = editors_of(lm, plans, corpus)
    moved, notes["rows"] = moved_rows(lm, reading, editors, others, rows)
    singles = [Plan(Ablate(head, kind=kind)) for head in others]
    read = read_corpus(lm, texts, labels, num_tokens // 4)

    def worths(at: int, wanted: list[Plan]) -> Float64[ndarray, "text plan"]:
        def told(done: int, of: int) -> None:
            if progress is not None:
                progress(at * of + done, (1 + len(editors)) * of)

        found = sweep(lm, wanted, read, chosen, texts=corpus, num_tokens=num_tokens, progress=told)
        notes["computed"] = f"{kind} ablation of each head; {found.because}"
        return found.changes.numpy()

    whole = worths(0, [*singles, *plans])
    left = np.stack([_under(lm, editor, lambda at=at: worths(at + 1, singles)) for at, editor in enumerate(editors)])
    if editors[0].idle(0, 0):
        notes["unchanged"] = f"{kind} ablation of {', '.join(map(str, gone))} changed nothing"
    notes |= read.notes
    alone, effects = whole[:, : len(others)], whole[:, len(others) :].mean(0)
    for at, heads in enumerate(sets[1:], 1):  # a random target has no interaction with itself
        left[at][:, [index for index, head in enumerate(others) if head in heads]] = np.nan
    seeds = [text_seed(piece.text) for piece in reading.pieces]
    changes = _changes(others, moved, alone, left, seeds)
    return BackupHeads(
        lm.name, gone, kind, chosen.name, chosen.unit, float(effects[0]), tuple(effects[1:].tolist()), changes,
        read.num_texts, notes,
    )  # fmt: skip


def _asked(spec: ModelSpec, targets: HeadsLike, among: HeadsLike | None) -> tuple[tuple[Head, ...], tuple[Head, ...]]:
    """The targets, and the heads to look at. Errors: HeadError, PlanError, StatisticError where none is left."""
    if not (gone := spec.select(targets).heads):
        raise PlanError(f"{targets=} names no heads: say which to take away, as 'L3H7'.")
    others = tuple(head for head in (spec.heads if among is None else spec.select(among)) if head not in gone)
    if not others:
        raise StatisticError(f"no head is left to look at beside the targets ({', '.join(map(str, gone))}).")
    return gone, others


def _under(lm: Any, editor: Editor, what: Callable[[], Any]) -> Any:
    """Something done to the model as a plan leaves it. (Its rows have been read before, and guarded.)"""
    try:
        with tap(lm.model, edits=[editor], guard=False):
            return what()
    finally:
        editor.close()


def _said(sets: list[tuple[Head, ...]], asked: int) -> str:
    if not sets:
        return "none: too few other heads" if asked else "none, as asked"
    return f"without {'; '.join(', '.join(map(str, heads)) for heads in sets)} in the targets' place"


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
    seen = ~np.isnan(moved[0]).any(1)  # texts of one token have no row to speak of
    rows = moved[:, seen] if seen.any() else moved
    moved_q = np.full(len(heads), np.nan)
    if len(moved) > 1:
        kept = [seed for seed, each in zip(seeds, seen, strict=True) if each or not seen.any()]
        moved_q = q_values(sign_flip_p(rows[0] - rows[1:].mean(0), kept))
    nothing = np.full(len(heads), np.nan)  # of one text, however often, there is no interval
    (low, high), (least, most) = (
        interval_over_texts(each) if len(set(seeds)) > 1 else (nothing, nothing) for each in (rows[0], interaction[0])
    )
    means, beside = interaction.mean(1), rows.mean(1)
    found = []
    for at, head in enumerate(heads):
        control = means[1:, at]
        bar = max([0.0, *control[~np.isnan(control)].tolist()])
        found.append(
            HeadChange(
                head=head,
                moved=number(beside[0, at]),
                moved_low=number(low[at]),
                moved_high=number(high[at]),
                moved_control=tuple(number(each) for each in beside[1:, at]),
                moved_q=number(moved_q[at]),
                alone=float(alone[:, at].mean()),
                without=float(left[0, :, at].mean()),
                interaction=float(means[0, at]),
                low=number(least[at]),
                high=number(most[at]),
                control=tuple(number(each) for each in control),
                p=float(p[at]),
                q=float(q[at]),
                backup=bool(q[at] <= MOST_Q and least[at] > bar),
            )
        )
    return tuple(found)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


# ---------------------------------------------------------------------------------------------------------------------
# How far each head's rows move when a plan is carried out: the same rows of the same texts, before and after.


def moved_rows(
    lm: Any, reading: Reading, editors: Sequence[Editor], heads: Sequence[Head], rows: int | None
) -> tuple[Float64[ndarray, "plan text head"], str]:
    """The mean divergence of each head's rows under each plan from those before, in nats, and which rows.

    NaN where a text has no row that sees two keys, and for layers that do not attend over whole texts.
    Cost: 1 forward pass and one more for each plan. Memory: twice the keys of one batch.
    """
    count, why = rows_of_texts(reading, rows)
    out = np.full((len(editors), len(reading.pieces), len(heads)), np.nan)
    left_out: dict[str, None] = {}
    for group in batches(reading):
        tokens = tokens_of(reading, group, None, "")
        before = _read(lm, tokens, count, None)
        left_out |= before.left_out
        for plan, editor in enumerate(editors):
            after = _read(lm, tokens, count, editor)
            for at, text in enumerate(group):
                moved = _moved(before, after, at)
                out[plan, text] = [moved.get(head, np.nan) for head in heads]
    return out, "; ".join([why, *(f"not of {module}, which attends in stretches of its own" for module in left_out)])


def _read(lm: Any, tokens: Tokens, count: int, editor: Editor | None) -> RowKeeper:
    """One forward pass, and the chosen rows of every layer."""
    keeper = RowKeeper(CallTexts.of(lm, tokens), count, None, sharing_around(lm.model))
    try:
        with tap(lm.model, on_call=keeper.observe, edits=[] if editor is None else [editor]):
            run(lm.model, lm.name, model_inputs(lm, tokens))
    finally:
        if editor is not None:
            editor.close()
    return keeper


def _moved(before: RowKeeper, after: RowKeeper, text: int) -> dict[Head, float]:
    """Each head's mean divergence over the rows of a text."""
    found: dict[Head, float] = {}
    for module, layer in before.layers.items():
        mean = _of_layer(layer, after.layers[module], text)
        if mean is not None:
            found |= zip(layer.site.heads, mean.tolist(), strict=True)
    return found


def _of_layer(layer: KeptLayer, other: KeptLayer, text: int) -> torch.Tensor | None:
    usable = layer.usable(text).nonzero()[:, 0]
    if not len(usable):
        return None
    parts = [
        row_divergences(layer.weights(text, chosen), other.weights(text, chosen)).sum(-1)
        for chosen in usable.split(block_size(layer.site.num_heads, layer.num_keys[text]))
    ]
    return torch.stack(parts).sum(0) / len(usable)
