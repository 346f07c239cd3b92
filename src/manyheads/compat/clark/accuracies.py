"""Heads as parsers and as antecedent finders: does the word that a head attends to most have the link that people gave?

Syntax. Two directions: "dep->head", a word attends most to its head; "head<-dep", of all words its head attends to it
most (the map transposed). Beside them the guess "the word k places on". Root and punctuation have no line of their own
but count in "all", where no head can have the root right. Layers and heads from 0, as in their code; their Table 1
counts from 1. Source: section 4.2, `Syntax_Analysis.ipynb`. Oracle: tests/compat/clark_oracle.py.

Coreference. Their code for this was never published (issue 15 of their repository), so this reads the paper: of gold
mentions that have an antecedent, the word that their head word attends to most among all other words (special tokens
left out, as for syntax) must be an antecedent's head word. Documents are cut to 128 tokens. Beside it two of their
baselines: the nearest mention before, and the nearest before with the same head word. Their third, four sieves, needs
number, gender and person, which treebanks here do not say. Their figures are of CoNLL-2012, where a mention that
nothing corefers with is not marked; where such are marked (GUM), the nearest mention is a harder baseline to be right
with. Source: section 4.3, Table 2.
"""

# device: guesses and gold are the host's

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from manyheads.compat.clark.words import (
    FLOAT16,
    POSS,
    VANISHING,
    Sentence,
    chosen_quirks,
    laid_out,
    most_attended,
    most_tokens,
    num_tokens,
    recorded,
)
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
KINDS = ("all", "pronoun", "proper", "nominal")
BASELINES = ("nearest", "head match")


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
    active = chosen_quirks(quirks, (POSS, VANISHING, FLOAT16))
    limit = most_tokens(lm, max_tokens)

    def fault(sentence: Sentence) -> str:
        too_long = limit is not None and num_tokens(lm, sentence.text) > limit
        return f"more than {limit} tokens" if too_long else ""

    heads: tuple[Head, ...] = ()
    counts: Counter[str] = Counter()
    correct: dict[str, Tensor] = {}
    correct_offsets: dict[str, Tensor] = {}
    left_out: Counter[str] = Counter()
    num_sentences = 0
    sentences = _readable(documents, "syntax", lambda document: laid_out(document, layout), fault, left_out)
    for read in recorded(lm, sentences):
        heads, sentence = heads_of(read.layers), read.sentence
        guesses = [most_attended(layer, read, mode, FLOAT16 in active) for layer in read.layers]
        by_direction = torch.stack([torch.cat(part) for part in zip(*guesses, strict=True)])
        num_words = len(sentence.words)
        # Words count from 1 and 0 is the root: an offset that leads out is clipped to the first or the last of these.
        place = torch.arange(1, num_words + 1)
        shifted = torch.stack([(place + offset).clamp(0, num_words) for offset in OFFSETS])
        by_head = right(sentence, by_direction, POSS in active).long()
        by_offset = right(sentence, shifted, POSS in active).long()
        relations = [word.relation for word in sentence.gold.words]
        counts.update(relations)
        for name in dict.fromkeys(relations):
            words = torch.tensor([relation == name for relation in relations])
            correct[name] = correct.get(name, 0) + by_head[..., words].sum(-1)
            correct_offsets[name] = correct_offsets.get(name, 0) + by_offset[..., words].sum(-1)
        num_sentences += 1
    _require_some(num_sentences, "sentence", "syntax", left_out)
    names = [name for name, _ in counts.most_common()]
    columns = (torch.stack([sums[name] for name in names], -1) for sums in (correct, correct_offsets))
    of_heads, of_offsets = (torch.cat([column.sum(-1, keepdim=True), column], -1) for column in columns)
    totals = torch.tensor([counts.total(), *(counts[name] for name in names)])
    about = (num_sentences, dict(left_out), VANISHING in active)
    return SyntaxScores((ALL, *names), totals, heads, of_heads, of_offsets, *about)


def right(sentence: Sentence, guesses: Int[Tensor, "*d w"], poss: bool) -> Bool[Tensor, "*d w"]:
    """Whether each guess is the word's head; with the special case for genitives, `words.QUIRKS["poss"]`."""
    # Words count from 1 in guesses, and a head that is the root is 0.
    gold = torch.tensor([word.head + 1 for word in sentence.gold.words])
    out = guesses == gold
    if poss:
        for index, word in enumerate(sentence.gold.words[:-1]):
            if word.relation == "poss" and sentence.words[index + 1] in GENITIVES:
                next_is_right = guesses[..., index + 1] == gold[index]
                out[..., index] = torch.where(guesses[..., index] < len(gold), next_is_right, out[..., index])
    return out


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
    half, limit = FLOAT16 in chosen_quirks(quirks, (FLOAT16,)), most_tokens(lm, max_tokens)

    def fault(sentence: Sentence) -> str:
        return "no mention that has an antecedent" if next(questions(sentence), None) is None else ""

    heads: tuple[Head, ...] = ()
    counts = torch.zeros(len(KINDS), dtype=torch.long)
    correct = torch.zeros(0, len(KINDS), dtype=torch.long)
    baselines = torch.zeros(len(BASELINES), len(KINDS), dtype=torch.long)
    left_out: Counter[str] = Counter()
    num_documents = 0
    texts = _readable(documents, "coreference", lambda document: cut(lm, document, layout, limit), fault, left_out)
    for read in recorded(lm, texts):
        heads = heads_of(read.layers)
        # Guesses count words from 1, gold from 0.
        guesses = torch.cat([most_attended(layer, read, mode, half)[0] for layer in read.layers]) - 1
        if not num_documents:
            correct = torch.zeros(len(guesses), len(KINDS), dtype=torch.long)
        for question in questions(read.sentence):
            columns = [KINDS.index("all"), KINDS.index(question.kind)]
            is_right = torch.isin(guesses[:, question.word], torch.tensor(sorted(question.antecedents)))
            counts[columns] += 1
            correct[:, columns] += is_right.long()[:, None]
            for row, guess in enumerate(question.guesses):
                baselines[row, columns] += int(guess in question.antecedents)
        num_documents += 1
    _require_some(num_documents, "document", "coreference", left_out)
    return CoreferenceScores(counts, heads, correct, baselines, num_documents, dict(left_out))


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
            guesses = (max((earlier.head for earlier in group), default=None) for group in (before, alike))
            yield Question(mention.head, antecedents, kind, tuple(guesses))


def _readable(
    documents: Iterable[Document] | Corpus,
    kind: str,
    lay_out: Callable[[Document], Sentence],
    fault: Callable[[Sentence], str],
    left_out: Counter[str],
) -> Iterator[Sentence]:
    """The documents with gold of a kind, laid out, but those that have a fault: they are counted in `left_out`."""
    for document in gold_documents(documents, kind):
        gold = document.gold
        if gold is None or not getattr(gold, f"has_{kind}") or not gold.words:
            left_out[f"no {kind}"] += 1
        elif why := fault(sentence := lay_out(document)):
            left_out[why] += 1
        else:
            yield sentence


def _require_some(count: int, unit: str, kind: str, left_out: Counter[str]) -> None:
    """Errors: TextError where nothing was read, with the reasons."""
    if not count:
        why = ", ".join(f"{number} with {reason}" for reason, number in left_out.items())
        raise TextError(f"no {unit} was read{f': {why}' if why else ''}. Give documents with gold {kind}.")
