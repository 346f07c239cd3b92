"""The heads of a training: what a watched training wrote, its alerts, and how far it is."""

from __future__ import annotations

from manyheads.studio.schema.base import AnswerBody, Number


class HistoryEntry(AnswerBody):
    """A file that a watched training writes. `unreadable`: why it cannot be read, null where it can."""

    name: str
    id: str
    unreadable: str | None


class HistoryAlert(AnswerBody):
    """A head past a limit: the first watched step at which it was, its value there, whether it still is."""

    head: str
    rule: str
    statistic: str
    limit: float
    step: int
    value: Number
    lasts: bool
    words: str


class HistoryStatistic(AnswerBody):
    """A statistic that a training was watched for. `is_maximum`: of a layer, the largest of its heads says most."""

    name: str
    meaning: str
    is_maximum: bool


class History(AnswerBody):
    """A watched training. `version` changes with the file; `last_step` is null before the first watched step.

    `limits`: what alerts look for, of the statistics that there are, as in "entropy under 0.1 nats".
    """

    id: str
    name: str
    path: str
    version: str
    model: str
    every: int | None
    because: list[str]
    heads: list[str]
    statistics: list[HistoryStatistic]
    num_steps: int
    first_step: int | None
    last_step: int | None
    alerts: list[HistoryAlert]
    limits: list[str]
