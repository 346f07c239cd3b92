"""Heads as parsers: how often the word that a head attends to most is the one that a treebank links a word to.

Two directions: "dep->head", a word attends most to its head; "head<-dep", of all words its head attends to it most (the
map transposed). Beside them the guess "the word k places on". Root and punctuation have no line of their own but
count in "all", where no head can have the root right. Layers and heads from 0, as in their code; their Table 1 counts
from 1. Source: section 4.2, `Syntax_Analysis.ipynb`. Oracle: tests/compat/clark_oracle.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from manyheads.compat.clark.general import FLOAT16, POSS, VANISHING, chosen_quirks
from manyheads.compat.clark.words import Sentence, laid_out, most_attended, most_tokens, num_tokens, recorded
from manyheads.compat.inputs import gold_documents, heads_of, require_reader
from manyheads.corpora import Corpus, Document
from manyheads.errors import TextError
from manyheads.heads import Head

DIRECTIONS = ("dep->head", "head<-dep")
OFFSETS = tuple(range(-3, 3))  # of the baseline; +3 was not tried
MAX_TOKENS = 128  # longer sentences are left out
MIN_EXAMPLES = 100
ALL = "all"
UNLISTED = ("root", "punct")
GENITIVES = ("'s", "s'")


class BestHead(NamedTuple):
    """A line of their Table 1: the best head for a relation, in which direction, and the best offset beside it."""

    relation: str
    examples: int
    accuracy: float
    head: Head
    direction: str
    offset: int
    offset_accuracy: float


@dataclass(frozen=True, eq=False)
class SyntaxScores:
    """How many arcs of each relation ("all" first, then by number) each head and each offset gets right.

    `left_out` says how many documents were not read, by reason; `vanishing` whether relations without errors have no
    score (NaN).
    """

    relations: tuple[str, ...]
    counts: Int[Tensor, "r"]
    heads: tuple[Head, ...]
    correct: Int[Tensor, "d h r"]
    offset_correct: Int[Tensor, "o r"]
    num_sentences: int
    left_out: dict[str, int]
    vanishing: bool

    def accuracy(self, direction: str) -> Float64[Tensor, "h r"]:
        """The share that each head gets right: rows as in `heads`, columns as in `relations`."""
        return self._shares(self.correct[DIRECTIONS.index(direction)])

    @property
    def offset_accuracy(self) -> Float64[Tensor, "o r"]:
        """The same of the offsets -3 ... 2."""
        return self._shares(self.offset_correct)

    def _shares(self, correct: Int[Tensor, "n r"]) -> Float64[Tensor, "n r"]:
        shares = correct.double() / self.counts
        return shares.masked_fill(correct == self.counts, torch.nan) if self.vanishing else shares

    def best(self, min_examples: int = MIN_EXAMPLES) -> list[BestHead]:
        """The best head and direction of every relation with that many examples. Of equals, the last in order."""
        shares = torch.stack([self.accuracy(direction) for direction in DIRECTIONS], 1).nan_to_num(nan=-1)
        offsets = self.offset_accuracy.nan_to_num(nan=-1)
        out = []
        for column, (name, count) in enumerate(zip(self.relations, self.counts.tolist(), strict=True)):
            if name in UNLISTED or (count < min_examples and name != ALL):
                continue
            by_head = shares[..., column].flatten().tolist()
            best = max(range(len(by_head)), key=lambda i: (by_head[i], i))  # of equals the last, as in their code
            head, direction = self.heads[best // len(DIRECTIONS)], DIRECTIONS[best % len(DIRECTIONS)]
            share, offset = max(zip(offsets[:, column].tolist(), OFFSETS, strict=True))
            out.append(BestHead(name, count, by_head[best], head, direction, offset, share))
        return out

    def __str__(self) -> str:
        """Lines as their notebook prints them, with our names of heads."""
        lines = (
            f"{b.relation[:8]:8s} | {b.examples:5d} | attn: {100 * b.accuracy:.1f} | offset={b.offset:2d}: "
            f"{100 * b.offset_accuracy:.1f} | {b.head} {b.direction}"
            for b in self.best()
        )
        return "\n".join(lines)


def syntax_accuracies(
    lm: Any,
    documents: Iterable[Document] | Corpus,
    *,
    mode: str = "first",
    layout: str = "joined",
    max_tokens: int | None = MAX_TOKENS,
    quirks: bool | Collection[str] = True,
) -> SyntaxScores:
    """How often each head of a loaded model attends from dependents to heads, and back, for every relation.

    `documents`: sentences with gold syntax; those without, and those of more than `max_tokens` tokens, are left out
    and counted. `mode`, `layout`: see `words`. `quirks`: "poss", "vanishing", "float16". Relations keep the
    treebank's names, and "poss" is Stanford's: Universal Dependencies' "nmod:poss" has no special case.
    A word that has no token of its own (`layout="raw"`) is never right.

    Cost: a forward pass a sentence, and each layer's map by blocks of rows.
    Errors: TextError where nothing is left to read, StatisticError, ModelError.
    """
    require_reader(lm, documents)
    active, tally = chosen_quirks(quirks, (POSS, VANISHING, FLOAT16)), _Tally()
    for read in recorded(lm, _readable(lm, documents, layout, most_tokens(lm, max_tokens), tally)):
        guesses = [most_attended(layer, read, mode, FLOAT16 in active) for layer in read.layers]
        by_direction = torch.stack([torch.cat(part) for part in zip(*guesses, strict=True)])
        tally.heads = heads_of(read.layers)
        tally.add(read.sentence, by_direction, POSS in active)
    return tally.scores(VANISHING in active)


def _readable(
    lm: Any, documents: Iterable[Document] | Corpus, layout: str, limit: int | None, tally: _Tally
) -> Iterator[Sentence]:
    for document in gold_documents(documents, "syntax"):
        gold = document.gold
        if gold is None or not gold.has_syntax or not gold.words:
            tally.left_out["no syntax"] += 1
            continue
        sentence = laid_out(document, layout)
        if limit is not None and num_tokens(lm, sentence.text) > limit:
            tally.left_out[f"more than {limit} tokens"] += 1
            continue
        yield sentence


@dataclass(eq=False)
class _Tally:
    """Right guesses so far, by relation."""

    heads: tuple[Head, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)
    correct: dict[str, Tensor] = field(default_factory=dict)
    offsets: dict[str, Tensor] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    num_sentences: int = 0

    def add(self, sentence: Sentence, guesses: Int[Tensor, "d h w"], poss: bool) -> None:
        num_words = len(sentence.words)
        place = torch.arange(1, num_words + 1)
        shifted = torch.stack([(place + offset).clamp(0, num_words) for offset in OFFSETS])  # 0 is the root
        by_head, by_offset = right(sentence, guesses, poss).long(), right(sentence, shifted, poss).long()
        relations = [word.relation for word in sentence.gold.words]
        self.counts.update(relations)
        for name in dict.fromkeys(relations):
            words = torch.tensor([relation == name for relation in relations])
            self.correct[name] = self.correct.get(name, 0) + by_head[..., words].sum(-1)
            self.offsets[name] = self.offsets.get(name, 0) + by_offset[..., words].sum(-1)
        self.num_sentences += 1

    def scores(self, vanishing: bool) -> SyntaxScores:
        if not self.num_sentences:
            why = ", ".join(f"{count} with {reason}" for reason, count in self.left_out.items())
            raise TextError(f"no sentence was read{f': {why}' if why else ''}. Give documents with gold syntax.")
        names = [name for name, _ in self.counts.most_common()]
        correct, offsets = (torch.stack([x[name] for name in names], -1) for x in (self.correct, self.offsets))
        correct, offsets = (torch.cat([x.sum(-1, keepdim=True), x], -1) for x in (correct, offsets))
        counts = torch.tensor([self.counts.total(), *(self.counts[name] for name in names)])
        about = (self.num_sentences, dict(self.left_out), vanishing)
        return SyntaxScores((ALL, *names), counts, self.heads, correct, offsets, *about)


def right(sentence: Sentence, guesses: Int[Tensor, "*d w"], poss: bool) -> Bool[Tensor, "*d w"]:
    """Whether each guess is the word's head; with the special case for genitives, `general.QUIRKS["poss"]`."""
    gold = torch.tensor([word.head + 1 for word in sentence.gold.words])
    out = guesses == gold
    if poss:
        for index, word in enumerate(sentence.gold.words[:-1]):
            if word.relation == "poss" and sentence.words[index + 1] in GENITIVES:
                next_is_right = guesses[..., index + 1] == gold[index]
                out[..., index] = torch.where(guesses[..., index] < len(gold), next_is_right, out[..., index])
    return out
