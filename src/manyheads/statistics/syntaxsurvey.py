"""What a treebank's relations look like without any head: where the other end lies, and what rule would guess it.

A head that links determiners to nouns must do better than whoever knows that a noun mostly follows. So from the head of
a corpus (its choosing half alone) we learn, for each relation: at which offsets its governor lies, the most frequent of
them, and the best rule of the kind "the nearest verb to the left". What heads are compared with hangs on it.
Source: Clark et al. 2019, section 4.2 (fixed offsets); the rule and the distribution are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float

from manyheads.recording.tokens import ROOT
from manyheads.recording.tokens import Gold
from manyheads.statistics.goldwords import POS

MIN_ARCS = 50
"""Arcs in the survey from which on a relation is scored: with fewer, no interval would say anything."""

FAR = 64
"""Offsets beyond this are counted as this."""

UNSEEN_OFFSET = 0.5  # added to each offset's count: none is impossible


@dataclass(frozen=True)
class Rule:
    """Guess the nearest word with part of speech `pos` on one `side`: -1 is to the left, 1 to the right.

    `pos` is one of `POS`, or "" for words that have none of them.
    """

    side: int
    pos: str

    def __str__(self) -> str:
        return f"the nearest {self.pos or 'word'} to the {'left' if self.side < 0 else 'right'}"


@dataclass(frozen=True)
class Relation:
    """One relation as the survey saw it. `offsets[o]`: how many governors lie at `o - FAR` from their dependents."""

    name: str
    num_arcs: int
    offsets: tuple[int, ...]
    rule: Rule

    @cached_property
    def modal(self) -> int:
        """The most frequent offset of a governor from its dependent."""
        return max(range(len(self.offsets)), key=lambda at: self.offsets[at]) - FAR

    @cached_property
    def chances(self) -> Float[torch.Tensor, "offset"]:
        """How likely each offset is."""
        counts = torch.tensor(self.offsets, dtype=torch.float32) + UNSEEN_OFFSET
        return counts / counts.sum()


def survey_syntax(golds: Iterable[Gold | None], min_arcs: int = MIN_ARCS) -> tuple[Relation, ...]:
    """The relations that are frequent enough, by name. What hangs on no word of its text has none."""
    offsets: dict[str, Counter[int]] = {}
    hits: dict[str, Counter[Rule]] = {}
    for gold in golds:
        if gold is None or not gold.has_syntax:
            continue
        tags = [word.pos if word.pos in POS else "" for word in gold.words]
        for at, word in enumerate(gold.words):
            if word.head == ROOT or word.head == at:
                continue
            offsets.setdefault(word.relation, Counter())[max(-FAR, min(FAR, word.head - at))] += 1
            guessed = hits.setdefault(word.relation, Counter())
            rule = Rule(1 if word.head > at else -1, tags[word.head])
            between = tags[min(at, word.head) + 1 : max(at, word.head)]
            guessed[rule] += rule.pos not in between  # the head is the nearest of its kind
    frequent = sorted(name for name, counts in offsets.items() if counts.total() >= min_arcs)
    return tuple(_relation(name, offsets[name], hits[name]) for name in frequent)


def _relation(name: str, offsets: Counter[int], hits: Counter[Rule]) -> Relation:
    counts = tuple(offsets[at] for at in range(-FAR, FAR + 1))
    best = max(hits, key=lambda rule: (hits[rule], POS.index(rule.pos) if rule.pos in POS else -1, rule.side))
    return Relation(name, offsets.total(), counts, best)
