"""Heads as antecedent finders: how often a mention's head word attends most to the head word of one of its antecedents.

Their code for this was never published (issue 15 of their repository), so this reads the paper: of gold mentions that
have an antecedent, the word that their head word attends to most among all other words (special tokens left out, as for
syntax) must be an antecedent's head word. Documents are cut to 128 tokens. Beside it two of their baselines: the
nearest mention before, and the nearest before with the same head word. Their third, four sieves, needs number,
gender and person, which treebanks here do not say. Their figures are of CoNLL-2012, where a mention that nothing
corefers with is not marked; where such are marked (GUM), the nearest mention is a harder baseline to be right with.
Source: section 4.3, Table 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from manyheads.compat.clark.general import FLOAT16, chosen_quirks
from manyheads.compat.clark.syntax import MAX_TOKENS
from manyheads.compat.clark.words import Sentence, laid_out, most_attended, most_tokens, num_tokens, recorded
from manyheads.compat.inputs import gold_documents, heads_of, require_reader
from manyheads.corpora import Corpus, Document
from manyheads.errors import TextError
from manyheads.heads import Head
from manyheads.recording import Mention

KINDS = ("all", "pronoun", "proper", "nominal")
BASELINES = ("nearest", "head match")


class Question(NamedTuple):
    """A mention with an antecedent: its head word, the head words of its antecedents, its kind, the baselines' guesses.

    Words count from 0; None where a baseline has no guess.
    """

    word: int
    antecedents: frozenset[int]
    kind: str
    guesses: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class CoreferenceScores:
    """How many mentions of each kind (`KINDS`) each head and each baseline (`BASELINES`) finds an antecedent of."""

    counts: Int[Tensor, "c"]
    heads: tuple[Head, ...]
    correct: Int[Tensor, "h c"]
    baseline_correct: Int[Tensor, "two c"]
    num_documents: int
    left_out: dict[str, int]

    @property
    def accuracy(self) -> Float64[Tensor, "h c"]:
        """The share that each head gets right; NaN for a kind that there is none of."""
        return self.correct.double() / self.counts

    @property
    def baseline_accuracy(self) -> Float64[Tensor, "two c"]:
        return self.baseline_correct.double() / self.counts

    def best(self, kind: str = "all") -> tuple[Head, float]:
        """The best head for a kind of mention, and its share."""
        share, index = self.accuracy[:, KINDS.index(kind)].nan_to_num(nan=-1).max(0)
        return self.heads[int(index)], float(share)


def coreference_accuracies(
    lm: Any,
    documents: Iterable[Document] | Corpus,
    *,
    mode: str = "first",
    layout: str = "joined",
    max_tokens: int | None = MAX_TOKENS,
    quirks: bool | Collection[str] = True,
) -> CoreferenceScores:
    """How often each head of a loaded model attends from a mention to an antecedent.

    `documents`: texts with gold coreference, cut to as many whole words as make `max_tokens` tokens; mentions beyond
    are dropped. The rest as in `syntax_accuracies`; `quirks`: "float16".
    Cost: a forward pass a document, and each layer's map by blocks of rows.
    Errors: TextError where there is no mention to ask about, StatisticError, ModelError.
    """
    require_reader(lm, documents)
    half, tally = FLOAT16 in chosen_quirks(quirks, (FLOAT16,)), _Tally()
    for read in recorded(lm, _readable(lm, documents, layout, most_tokens(lm, max_tokens), tally)):
        guesses = torch.cat([most_attended(layer, read, mode, half)[0] for layer in read.layers])
        tally.heads = heads_of(read.layers)
        tally.add(read.sentence, guesses - 1)
    return tally.scores()


def cut(lm: Any, document: Document, layout: str, limit: int | None) -> Sentence:
    """The document, or as many of its first words as make `limit` tokens at most."""
    sentence = laid_out(document, layout)
    if limit is None or num_tokens(lm, sentence.text) <= limit:
        return sentence
    low, high = 0, len(sentence.words)  # words that fit, words that do not
    while high - low > 1:
        middle = (low + high) // 2
        fits = num_tokens(lm, laid_out(document, layout, middle).text) <= limit
        low, high = (middle, high) if fits else (low, middle)
    return laid_out(document, layout, low)


def questions(sentence: Sentence) -> Iterator[Question]:
    """Every mention that has an antecedent: a mention of the same entity whose head word is before its own."""
    words = sentence.gold.words
    mentions = [mention for mention in sentence.gold.mentions if max(mention.last, mention.head) < len(sentence.words)]
    for mention in mentions:
        before = [earlier for earlier in mentions if earlier.head < mention.head]
        antecedents = frozenset(earlier.head for earlier in before if earlier.entity == mention.entity)
        if antecedents:
            kind = {"PRON": "pronoun", "PROPN": "proper"}.get(words[mention.head].pos, "nominal")
            word = sentence.words[mention.head].casefold()
            alike = [earlier for earlier in before if sentence.words[earlier.head].casefold() == word]
            yield Question(mention.head, antecedents, kind, (_nearest(before), _nearest(alike)))


def _nearest(mentions: list[Mention]) -> int | None:
    return max((mention.head for mention in mentions), default=None)


def _readable(
    lm: Any, documents: Iterable[Document] | Corpus, layout: str, limit: int | None, tally: _Tally
) -> Iterator[Sentence]:
    for document in gold_documents(documents, "coreference"):
        gold = document.gold
        if gold is None or not gold.has_coreference or not gold.words:
            tally.left_out["no coreference"] += 1
            continue
        sentence = cut(lm, document, layout, limit)
        if next(questions(sentence), None) is None:
            tally.left_out["no mention that has an antecedent"] += 1
            continue
        yield sentence


@dataclass(eq=False)
class _Tally:
    """Right guesses so far, by kind of mention."""

    heads: tuple[Head, ...] = ()
    counts: Tensor = field(default_factory=lambda: torch.zeros(len(KINDS), dtype=torch.long))
    correct: Tensor = field(default_factory=lambda: torch.zeros(0, len(KINDS), dtype=torch.long))
    baselines: Tensor = field(default_factory=lambda: torch.zeros(len(BASELINES), len(KINDS), dtype=torch.long))
    left_out: Counter[str] = field(default_factory=Counter)
    num_documents: int = 0

    def add(self, sentence: Sentence, guesses: Int[Tensor, "h w"]) -> None:
        if not len(self.correct):
            self.correct = torch.zeros(len(guesses), len(KINDS), dtype=torch.long)
        for question in questions(sentence):
            columns = [KINDS.index("all"), KINDS.index(question.kind)]
            right = torch.isin(guesses[:, question.word], torch.tensor(sorted(question.antecedents)))
            self.counts[columns] += 1
            self.correct[:, columns] += right.long()[:, None]
            for row, guess in enumerate(question.guesses):
                self.baselines[row, columns] += int(guess in question.antecedents)
        self.num_documents += 1

    def scores(self) -> CoreferenceScores:
        if not self.num_documents:
            why = ", ".join(f"{count} with {reason}" for reason, count in self.left_out.items())
            raise TextError(f"no document was read{f': {why}' if why else ''}. Give documents with gold coreference.")
        about = (self.num_documents, dict(self.left_out))
        return CoreferenceScores(self.counts, self.heads, self.correct, self.baselines, *about)
