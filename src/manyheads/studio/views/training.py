"""The room Training: a file that a watched training writes, as the page draws it, while it grows.

The page asks for a file's state and waits for the answer until the file has changed; then it asks for the curves of the
statistic on screen. Only parts of the file that changed are read. Curves of very many steps are thinned for the page:
of each stretch the smallest and the largest value stay, so that no peak is lost.
"""

from __future__ import annotations

import threading

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from manyheads.base import Cache
from manyheads.errors import ManyHeadsError, StatisticError
from manyheads.studio.schema.training import History, HistoryAlert, HistoryEntry, HistoryStatistic
from manyheads.studio.state.workspace import Workspace, digest
from manyheads.studio.views.maps import pack
from manyheads.watching import RULES, HeadCurves, alerts, open_history

POINTS, MOST_POINTS, FEWEST_POINTS = 60_000, 400, 60  # of all small curves, and of one: about as many as it has pixels
MOST_POINTS_LARGE = 4_000  # of a single head's
FILES_KEPT = 4


class Histories:
    """The histories of a workspace, read as far as they are written."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._open: Cache[str, HeadCurves] = Cache(FILES_KEPT)
        self._lock = threading.Lock()

    def entries(self) -> list[HistoryEntry]:
        """Every history of the workspace, with why it cannot be read where that is so."""
        entries = []
        for name in self._workspace.histories:
            history, unreadable = self._workspace.history_id(name), None
            try:
                self.curves(history)
            except ManyHeadsError as error:
                unreadable = str(error)
            entries.append(HistoryEntry(name=name, id=history, unreadable=unreadable))
        return entries

    def curves(self, history: str) -> HeadCurves:
        """A history as it is now. Raises NotHere, and what opening it raises."""
        path = self._workspace.history_path(history)
        with self._lock:  # two pages at once: the file is read once
            known = self._open.get(history)
            return self._open.put(history, open_history(path) if known is None else known.refresh())

    def state(self, history: str) -> History:
        """All but the curves."""
        curves = self.curves(history)
        facts, steps = curves.facts, curves.steps
        because, meaning = facts.get("because"), facts.get("meaning")
        lines = because if isinstance(because, list) else [because] * isinstance(because, str)
        lines = [*lines, *filter(None, [curves.numbering])]
        meaning = meaning if isinstance(meaning, dict) else {}
        every = facts.get("every")
        raised = alerts(curves.heads, curves.statistics, steps, curves.values)
        return History(
            id=history,
            name=self._workspace.history_name(history),
            path=str(curves.path),
            version=version_of(curves),
            model=str(facts.get("model", "")),
            every=every if isinstance(every, int) else None,
            because=[str(line) for line in lines],
            heads=[str(head) for head in curves.heads],
            statistics=[
                HistoryStatistic(name=name, meaning=str(meaning.get(name, "")), is_maximum=name.startswith("max_logit"))
                for name in curves.statistics
            ],
            num_steps=len(steps),
            first_step=int(steps[0]) if len(steps) else None,
            last_step=int(steps[-1]) if len(steps) else None,
            alerts=[HistoryAlert.model_validate(alert.to_dict()) for alert in raised],
            limits=[rule.condition for rule in RULES if rule.statistic in curves.statistics],
        )

    def drawn(self, history: str, statistic: str) -> bytes:
        """One statistic of every head: `steps` [n], `values` [head, n], `loss` [n], NaN for no number. Raises
        StatisticError."""
        curves = self.curves(history)
        if statistic not in curves.statistics:
            raise StatisticError(f"{curves.path.name} has no {statistic!r}, only {', '.join(curves.statistics)}.")
        most = max(FEWEST_POINTS, min(MOST_POINTS, POINTS // max(1, len(curves.heads))))
        return _packed(curves, curves.values[:, :, curves.statistics.index(statistic)], most, with_loss=True)

    def drawn_head(self, history: str, head: str) -> bytes:
        """Every statistic of one head, with more points: `steps` [n], `values` [statistic, n]. Raises HeadError."""
        curves = self.curves(history)
        return _packed(curves, curves.of(head), MOST_POINTS_LARGE)


def _packed(curves: HeadCurves, values: Float64[ndarray, "step line"], most: int, *, with_loss: bool = False) -> bytes:
    steps, lines = thinned(curves.steps, np.column_stack([values, curves.loss]) if with_loss else values, most)
    header = {"version": version_of(curves), "exact": len(steps) == len(values)}
    loss = {"loss": lines[-1]} if with_loss else {}
    return pack(header, steps=steps.astype(np.float64), values=lines[: values.shape[1]], **loss)


def version_of(curves: HeadCurves) -> str:
    """Another text as soon as the file has changed."""
    last = curves.steps[-1:].tolist()
    return digest("history", str(len(curves.steps)), str(last), str(float(np.nansum(curves.values[-1:]))))


def thinned(
    steps: Int64[ndarray, "n"], values: Float64[ndarray, "n h"], most: int
) -> tuple[Int64[ndarray, "p"], Float32[ndarray, "h p"]]:
    """At most about `most` points of each curve: each stretch of steps gives its ends, and its two extremes there.

    A stretch's first point has the extreme that comes first, its last point the other. The last step stays as it is.
    """
    with np.errstate(over="ignore"):  # beyond float32 a curve has no place on the page: infinite, it is left out
        lines = values.T.astype(np.float32)
    if len(steps) <= most:
        return steps, lines
    stretches = np.array_split(np.arange(len(steps) - 1), (most - 1) // 2)
    points = [row for stretch in stretches for row in (stretch[0], stretch[-1])] + [len(steps) - 1]
    out = np.full((len(lines), len(points)), np.nan, np.float32)
    for number, stretch in enumerate(stretches):
        part = lines[:, stretch]
        known = np.isfinite(part)
        low, high = np.where(known, part, np.inf), np.where(known, part, -np.inf)
        first = low.argmin(1) < high.argmax(1)
        ends = np.where(first, (low.min(1), high.max(1)), (high.max(1), low.min(1)))
        out[:, 2 * number : 2 * number + 2] = np.where(known.any(1), ends, np.nan).T
    out[:, -1] = lines[:, -1]
    return steps[points], out
