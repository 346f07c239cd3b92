"""Why a head looks from one token to another, and the card of a head: answers of the room Head."""

from __future__ import annotations

from pydantic import Field

from manyheads.studio.schema.base import AnswerBody, Number


class WhyPlace(AnswerBody):
    """A token, by position and as it stands in the text."""

    position: int
    token: str


class WhyLook(WhyPlace):
    """A token, and the weight that a head gives it."""

    weight: float


class WhyWriter(AnswerBody):
    """What one writer gave one side of a weight; see `manyheads.circuits.why` WriterShare.

    `share`: of the log-odds, in nats; shares of a side add up to `written`. `without`: what the weight would be without
    it; these do not add up. `looks_at`: where a head looks most itself, from the token where it wrote.
    """

    writer: str
    kind: str
    share: float
    without: float
    looks_at: WhyLook | None
    at_rivals: Number = Field(description="the part of the share that was written at other keys; null for the query")


class WhyRow(AnswerBody):
    """A part of the log-odds that no writer has: the spread over other keys, a sink, a softcap, rounding."""

    name: str
    words: str
    share: float


class WhyPair(AnswerBody):
    """What a query's writer and a key's writer gave together; `of_all`: of all pairs, added without signs."""

    query: str
    key: str
    share: float
    of_all: float


class WhyAnswer(AnswerBody):
    """Why a head looks from one token to another: the log-odds of that weight, split over what was written.

    `log_odds` is `written` plus every share of `rows`. `query`, `key`: the writers of either side, largest share first.
    `said`: the answer in one sentence; `caution`: what to know before it is believed, "" for nothing; `lines`: the
    answer as the library prints it. `is_story`: whether the weight is large enough to be explained at all.
    """

    head: str
    query_token: WhyPlace
    key_token: WhyLook
    against: WhyLook | None = Field(description="the one rival; null for all other keys together")
    next: list[WhyLook] = Field(description="the row's other keys with the largest weights")
    weight: float
    is_story: bool
    log_odds: float
    written: float
    rows: list[WhyRow]
    query: list[WhyWriter]
    key: list[WhyWriter]
    pairs: list[WhyPair]
    num_pairs: int
    error: float
    said: str
    caution: str
    lines: list[str]
    command: str


class CardFact(AnswerBody):
    """One line of a section: a number beside chance, as people read them. `head`: the head that it is about."""

    label: str
    value: Number
    unit: str
    chance: Number
    number: str
    interval: str
    chance_number: str
    mark: str
    words: str
    head: str
    command: str


class CardSection(AnswerBody):
    """One question about a head, its answer, and the command that gives these numbers.

    `note`: on what they rest, or in one line why there are none.
    """

    name: str
    asks: str
    facts: list[CardFact]
    command: str
    note: str


class CardMap(AnswerBody):
    """The head's map of one short text. `weights[query]`: thousandths, up to the last key above 0.

    `query`, `key`: the link that tells most, with its weight; `words`: why this text is shown.
    """

    text: str
    tokens: list[str]
    weights: list[list[int]]
    query: int
    key: int
    weight: float
    words: str
    command: str


class FullCard(AnswerBody):
    """What is known of one head of a model, in a sentence and sections; see `manyheads.cards` Card."""

    model: str
    head: str
    place: str
    role: str
    family: str
    sentence: str
    maps: list[CardMap]
    sections: list[CardSection]
    notes: dict[str, str]
