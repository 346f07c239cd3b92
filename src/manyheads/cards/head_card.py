"""A card: what is known of one head, as plain data that the terminal, a static page and the studio all show.

A card is a sentence and sections. Each section asks one question, answers it in facts (a number with its chance level,
and words), and names the command that measures them; what a model cannot be asked is one line in `note`. Numbers are
those of the library's own results, rounded to six digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyheads.base import Json, brief, plain
from manyheads.heads import Head
from manyheads.results import Shown
from manyheads.roles.words import figure

SIGNED = {"nats a token": "+.2g", "1 - cosine": "+.2g", "log-odds": "+.2f", "-1 to 1": "+.2f"}
"""How numbers of a unit are written that has a sign."""


@dataclass(frozen=True)
class Fact:
    """One line of a section: `value` in `unit` ("share", "nats", "z" ...), with what chance gives, and words.

    `low` to `high`: the 95 % interval. `mark`: a word on how it stands ("holds", "stands out"), "" where that is no
    question. `head`: another head that the line is about. `command`: where it is not the section's.
    """

    label: str
    value: float | None = None
    unit: str = ""
    chance: float | None = None
    low: float | None = None
    high: float | None = None
    mark: str = ""
    words: str = ""
    head: str = ""
    command: str = ""

    @property
    def number(self) -> str:
        """The value as people read it; "" where there is none."""
        if self.value is None:
            return ""
        if self.unit in SIGNED:
            return f"{self.value:{SIGNED[self.unit]}}"
        return figure(self.value, self.unit)

    @property
    def chance_number(self) -> str:
        """The chance level as people read it; "" where there is none."""
        return "" if self.chance is None else figure(self.chance, self.unit)

    @property
    def interval(self) -> str:
        """The interval as people read it; "" where there is none."""
        if self.low is None or self.high is None:
            return ""
        if self.unit in SIGNED:
            return f"{self.low:{SIGNED[self.unit]}} to {self.high:{SIGNED[self.unit]}}"
        return f"{figure(self.low, self.unit)} to {figure(self.high, self.unit)}"


@dataclass(frozen=True)
class Section:
    """One question about a head, its answer in facts, and the command that gives these numbers.

    `note`: on what they rest, or in one line why there are none.
    """

    name: str
    asks: str
    facts: tuple[Fact, ...]
    command: str
    note: str = ""


@dataclass(frozen=True)
class TextMap:
    """The head's map of one short text. `weights[query]`: its weights in thousandths, up to the last key above 0.

    `query` and `key`: the link that tells most, `weight` its weight (0 to 1). `words`: why this text is shown.
    """

    text: str
    tokens: tuple[str, ...]
    weights: tuple[tuple[int, ...], ...]
    query: int
    key: int
    weight: float
    words: str
    command: str

    def row(self, query: int) -> list[float]:
        """A token's weights over all tokens, 0 to 1, to a thousandth."""
        known = [weight / 1000 for weight in self.weights[query]]
        return known + [0.0] * (len(self.tokens) - len(known))


@dataclass(frozen=True)
class Card(Shown):
    """What is known about one head of a model.

    - `model`, `head`: which.
    - `place`: its layer, its number there, and the heads that share its keys and values, in words.
    - `group`: the number of its key/value head in the layer.
    - `role`: its label, as `manyheads look` shows it ("unlabelled": none).
    - `sentence`: what it is, in one sentence, by rules (`cards.sentence`) from the facts of the section "evidence".
    - `maps`: three short texts on which it does most of what it does.
    - `sections`: evidence, looks, why, writes, listens, heard, lost, reach, neighbours.
    - `keywords`: words by which it is searched for: its roles, and tokens that it promotes, suppresses or reads.
    - `notes`: on what all rests, by topic.
    """

    model: str
    head: Head
    place: str
    group: int
    role: str
    sentence: str
    maps: tuple[TextMap, ...]
    sections: tuple[Section, ...]
    keywords: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict[str, str])

    def __getitem__(self, name: str) -> Section:
        """The section of that name. Errors: KeyError names those that there are."""
        for section in self.sections:
            if section.name == name:
                return section
        raise KeyError(f"{name!r} is not a section of a card: {', '.join(section.name for section in self.sections)}.")

    @property
    def loss(self) -> float | None:
        """What is lost without it (exact, or the gradient's estimate), None where that was not measured."""
        facts = self["lost"].facts
        return facts[0].value if facts else None

    def to_dict(self) -> Json:
        """Plain data for JSON; `Card.from_dict` reads it."""
        return {
            "model": self.model,
            "head": str(self.head),
            "place": self.place,
            "group": self.group,
            "role": self.role,
            "sentence": self.sentence,
            "maps": [plain(vars(one)) for one in self.maps],
            "sections": [
                {**vars(section), "facts": [_short(fact) for fact in section.facts]} for section in self.sections
            ],
            "keywords": list(self.keywords),
            "notes": dict(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Card:
        """A card from what `to_dict` gives, as JSON has it."""
        maps = [
            TextMap(**{**one, "tokens": tuple(one["tokens"]), "weights": tuple(map(tuple, one["weights"]))})
            for one in data["maps"]
        ]
        sections = [
            Section(**{**section, "facts": tuple(Fact(**fact) for fact in section["facts"])})
            for section in data["sections"]
        ]
        return cls(
            data["model"], Head.parse(data["head"]), data["place"], data["group"], data["role"], data["sentence"],
            tuple(maps), tuple(sections), tuple(data["keywords"]), dict(data["notes"]),
        )  # fmt: skip

    def __repr__(self) -> str:
        return brief(f"Card({self.model} {self.head}: {self.sentence})")

    def __str__(self) -> str:
        lines = [f"{self.head} of {self.model}: {self.sentence}", self.place]
        for section in self.sections:
            lines += ["", f"{section.asks}  [{section.command}]" if section.command else section.asks]
            lines += [f"  {words_of(fact)}" for fact in section.facts]
            lines += [f"  {section.note}"] if section.note else []
        return "\n".join(lines)


def words_of(fact: Fact) -> str:
    """A fact as one line of text."""
    number = f"{fact.number} ({fact.interval})" if fact.interval else fact.number
    parts = [
        f"{fact.label} {number}".strip(),
        f"{fact.chance_number} by chance" if fact.chance is not None else "",
        fact.words or fact.mark,
    ]
    return "; ".join(filter(None, parts))


def rounded(value: float | None) -> float | None:
    """Six digits, as cards store numbers; None for what is not known."""
    return None if value is None or value != value else float(f"{value:.6g}")


def _short(fact: Fact) -> Json:
    """The fields that say something."""
    return {name: plain(value) for name, value in vars(fact).items() if value not in (None, "")} | {"label": fact.label}


def names_of(cards: Sequence[Card]) -> list[str]:
    """The models of some cards, each once, in their order."""
    return list(dict.fromkeys(card.model for card in cards))
