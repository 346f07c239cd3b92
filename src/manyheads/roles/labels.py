"""What each head does, in words: a label a head, chosen on one half of the texts and reported on the other.

Choosing the best of many rules for each of many heads on the same texts that one reports would flatter every figure.
So the rules of `roles.rules` are tried on one half, and what an `Evidence` holds comes from the other alone.
"Attention is not effect": a label says what a head reads, not what is lost without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from manyheads.errors import StatisticError
from manyheads.heads import Head
from manyheads.roles.rules import (
    LOCAL_RULE,
    MIN_BROAD,
    MIN_EXCESS,
    MIN_FAVOUR,
    MIN_GIVEN,
    MIN_GIVEN_SCORE,
    MIN_LIFT,
    MIN_LIFT_LOW,
    MIN_QUERIES,
    NEEDED,
    RULES,
    SINK_RULE,
    Rule,
)
from manyheads.statistics.headtable import HeadTable
from manyheads.statistics.measuring import Progress, measure

CHOOSE, REPORT = 0, 1  # the half of the texts on which a label is chosen, and the one whose figures are shown


@dataclass(frozen=True)
class Evidence:
    """Why a head has its label. Shares are 0 to 1; all figures are of the reporting half of the texts.

    `chance` is the highest chance level; `low` and `high` the 95 % interval of `score` over texts; `given` the share
    of what does not go to a sink (None where
    that is not told apart). `words` says it in a sentence.
    """

    statistic: str
    score: float
    chance: float
    low: float
    high: float
    num_queries: int
    given: float | None
    words: str


@dataclass(frozen=True)
class HeadRole:
    """A head, the name of what it does ("unlabelled" where evidence is missing), and the evidence."""

    head: Head
    name: str
    evidence: Evidence

    def to_dict(self) -> dict[str, Any]:
        return {"head": str(self.head), "role": self.name, **asdict(self.evidence)}


def find_roles(lm: Any, texts: str | Sequence[str], *, progress: Progress | None = None) -> list[HeadRole]:
    """What each head of a loaded model does on some texts, one role a head, in the model's order.

    Give some hundreds of texts: with few, most heads stay "unlabelled". Cost: as `measure`.
    """
    return label(measure(lm, texts, NEEDED, kinds=True, progress=progress))


def label(table: HeadTable) -> list[HeadRole]:
    """Roles from a table that holds the statistics in `rules.NEEDED`, and `kinds`.

    Errors: StatisticError names what it lacks.
    """
    if lacking := [name for name in NEEDED if name not in table.names]:
        raise StatisticError(
            f"labelling needs {', '.join(lacking[:4])}{' ...' if lacking[4:] else ''}, which this table lacks: "
            f"measure with rules.NEEDED."
        )
    if table.kinds is None:
        raise StatisticError("labelling needs what each kind of token receives: measure with kinds=True.")
    chosen, reported = (_Half(table, half) for half in (CHOOSE, REPORT))
    return [_label(head, index, table, chosen, reported) for index, head in enumerate(table.heads)]


class _Half:
    """The figures of one half of the texts, each computed once."""

    def __init__(self, table: HeadTable, half: int) -> None:
        values, (low, high) = table.sums.value(half)[..., 0], table.sums.interval(half)
        self.index = {name: i for i, name in enumerate(table.names)}
        self.values, self.low, self.high = values, low, high
        self.rows = table.sums.den[half, :, :, 0]
        assert table.kinds is not None
        self.favour = table.kinds.favour(half)

    def evidence(self, rule: Rule, head: int, words: str = "") -> Evidence:
        column = self.index[rule.statistic]
        score, low, high = (float(x[head, column]) for x in (self.values, self.low, self.high))
        chance = max((self.get(f"{rule.statistic}.{kind}", head) for kind in rule.chances), default=0.0)
        free = 1 - self.get(SINK_RULE.statistic, head)
        given = score if rule is SINK_RULE else min(1.0, score / free) if free > 0 else None
        return Evidence(rule.statistic, score, chance, low, high, int(self.rows[head, column]), given, words)

    def bears_out(self, rule: Rule, head: int) -> bool:
        """Whether the figures satisfy the rule; a class of tokens also where each of its kinds counts once."""
        return holds(rule, self.evidence(rule, head)) and not (rule.by_kind and not self.favour[head] >= MIN_FAVOUR)

    def get(self, name: str, head: int) -> float:
        """A value, 0 where nothing was counted (a sink that no text holds takes no mass)."""
        value = float(self.values[head, self.index[name]])
        return 0.0 if np.isnan(value) else value


def _label(head: Head, index: int, table: HeadTable, chosen: _Half, reported: _Half) -> HeadRole:
    """The best rule that holds on the choosing half, if the reporting half bears it out."""
    candidates = [rule for rule in RULES if chosen.bears_out(rule, index)]
    finer = [rule for rule in candidates if rule is not LOCAL_RULE] or candidates
    for rule in sorted(finer, key=lambda r: -_excess(chosen.evidence(r, index))):
        found = reported.evidence(rule, index)
        if reported.bears_out(rule, index) and found.low > MIN_LIFT_LOW * found.chance:
            return HeadRole(head, rule.role, _said(found, rule.saying))
    sink = reported.evidence(SINK_RULE, index)
    if holds(SINK_RULE, chosen.evidence(SINK_RULE, index)) and holds(SINK_RULE, sink):
        names = " and ".join(table.sinks.names)
        return HeadRole(head, f"sink {names}", _said(sink, f"{names}, the model's sink"))
    return _without_rule(head, index, chosen, reported)


def _without_rule(head: Head, index: int, chosen: _Half, reported: _Half) -> HeadRole:
    """Broad, or unlabelled with the figures of what it came nearest to."""
    evenness = [
        half.get("entropy", index) / max(half.get("entropy.uniform", index), 1e-9) for half in (chosen, reported)
    ]
    column, most = reported.index["entropy"], reported.get("entropy.uniform", index)
    score, low, high = (float(x[index, column]) for x in (reported.values, reported.low, reported.high))
    rows = int(reported.rows[index, column])
    if min(evenness) >= MIN_BROAD and rows >= MIN_QUERIES:
        words = f"entropy {score:.2f} nats, {evenness[1]:.0%} of the evenest possible ({most:.2f})"
        return HeadRole(head, "broad", Evidence("entropy", score, most, low, high, rows, None, words))
    nearest = max(RULES, key=lambda rule: _excess(chosen.evidence(rule, index)))
    found = reported.evidence(nearest, index)
    said = _said(found, nearest.saying)
    why = "too few queries for a label" if found.num_queries < MIN_QUERIES else "nearest rule, not enough for a label"
    return HeadRole(head, "unlabelled", replace(said, words=f"{said.words}: {why}"))


def holds(rule: Rule, found: Evidence) -> bool:
    """Whether the figures satisfy a rule: enough of all attention (or of what words get), far enough above chance."""
    if not found.num_queries >= MIN_QUERIES // 2 or np.isnan(found.score):
        return False
    enough = found.score >= rule.floor
    if rule is not SINK_RULE:
        enough = enough or ((found.given or 0) >= MIN_GIVEN and found.score >= MIN_GIVEN_SCORE)
    return enough and found.score >= max(MIN_LIFT * found.chance, MIN_EXCESS + found.chance)


def _excess(found: Evidence) -> float:
    return -1.0 if np.isnan(found.score) else found.score - found.chance


def _said(found: Evidence, what: str) -> Evidence:
    """The evidence with its sentence."""
    words = f"{found.score:.0%} of its attention on {what}, {found.chance:.0%} by chance"
    if found.score < MIN_GIVEN <= (found.given or 0) and found.statistic != SINK_RULE.statistic:
        words += f"; {found.given:.0%} of what does not go to a sink"
    return replace(found, words=words)
