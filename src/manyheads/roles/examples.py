"""Texts in which a head does what its role says: from the head of the corpus, of the reporting half alone.

For each label, and for each question's best head where it holds: the texts in which the head's score is highest, and
its strongest links there. The links are of syntax from a word to its head or dependent, of reference from a mention to
its antecedents, else between the tokens that the role means, and no other: an example shows what its label says, so the
pairs are those that the statistic counts, taken from the statistics' own tables and at their own granularity (tokens,
not words). A number says how often a head does something; a sentence shows what that looks like.
Cost: one more reading of at most `MOST_TEXTS`, and of as many passages where coreference is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from manyheads.corpora import Document, is_about_texts
from manyheads.heads import Head
from manyheads.models import CallTexts, Piece, Reading, read_batches, read_texts, record
from manyheads.models.inputs.texts import rarity_table
from manyheads.recording import ROOT, Gold, Sinks, Tokens, Words, text_seed
from manyheads.recording.words import WordMap
from manyheads.roles.claims import REPORT
from manyheads.roles.results import Example, Roles
from manyheads.roles.role_table import UNLABELLED
from manyheads.roles.rules import coreference_rules
from manyheads.statistics import STATISTICS, Statistic
from manyheads.statistics.defined.coreference import searches
from manyheads.statistics.defined.own_pattern import Pattern, surfaces_of, targets
from manyheads.statistics.one_batch import Measured

MOST_TEXTS = 200
MIN_ROWS = 3  # questions in a text, so that one lucky one is no example; fewer where no such text does it half as much
SHORTEST, LONGEST = 5, 60  # tokens: what reads as a sentence
LONGEST_PASSAGE = 256  # passages have up to 128 words
LINKS = 3
LEAST_WEIGHT = 0.005  # of a link that is shown: below it, it would read 0.00
COREFERENCE = {rule.role: rule.statistic for rule in coreference_rules()}
RESTS = ("first_mass", "sink_mass", "special_mass", "separator_mass")  # their keys are special tokens, mostly


class Pairs(NamedTuple):
    """Cells of one text's map, `rows[i]` looks at `keys[i]`."""

    rows: list[int]
    keys: list[int]


def pairs_of(statistic: str, tokens: Tokens, text: int, patterns: Mapping[str, Pattern]) -> Pairs:
    """The pairs that a statistic counts in one text; from and to words where there are such, as people read words.

    Of what means no pair in particular (entropy), every pair of two words.
    """
    if statistic in patterns:
        places = targets(statistic, patterns[statistic], surfaces_of(tokens, text))
        pairs = [(row, key) for row, keys in enumerate(places) for key in keys]
    else:
        count = int(tokens.lengths[text])
        cells, plain = _cells(statistic, tokens, text)[:count, :count], tokens.ordinary[text][:count]
        readable = cells & plain[:, None] & (plain[None] | (statistic in RESTS))
        pairs = (readable if bool(readable.any()) else cells).nonzero().tolist()
    return Pairs([row for row, _ in pairs], [key for _, key in pairs])


def _cells(statistic: str, tokens: Tokens, text: int) -> Bool[Tensor, "q k"]:
    """The cells that the statistic counts; of one that is about whole rows, every pair of two different words."""
    cells = STATISTICS[statistic].cells if statistic in STATISTICS else None
    if cells is not None:
        return cells(tokens, text)
    word = tokens.ordinary[text]
    return word[:, None] & word[None] & ~torch.eye(len(word), dtype=torch.bool)


class Search(NamedTuple):
    """A search for examples: of a head (`place` counts from the model's first) at a role, by a statistic."""

    head: Head
    role: str
    place: int
    statistic: str


def find_examples(
    lm: Any,
    documents: Sequence[Document],
    roles: Roles,
    statistics: Sequence[Statistic],
    sinks: Sinks,
    count: int,
    patterns: Mapping[str, Pattern],
) -> dict[tuple[Head, str], tuple[Example, ...]]:
    """The `count` best texts of all that rests on one of `statistics`; fewer where few texts ask it at all.

    `patterns`: the functions behind roles of one's own, by name.
    """
    number = {statistic.name: index for index, statistic in enumerate(statistics)}
    wants = [search for search in _searches(roles) if search.statistic in number] if count else []
    longest = LONGEST_PASSAGE if any(search.role in COREFERENCE for search in wants) else LONGEST
    pieces = _pieces(lm, documents, longest) if wants else []
    if not pieces:
        return {}
    reading = Reading(tuple(piece for piece, _ in pieces), "")
    columns = sorted({number[search.statistic] for search in wants})
    num, den = _by_text(lm, reading, [statistics[column] for column in columns], sinks)
    best: dict[Search, list[tuple[float, int]]] = {}
    for search in wants:
        column = columns.index(number[search.statistic])
        best[search] = _best(num[:, search.place, column], den[:, search.place, column], count)
    texts = sorted({text for scored in best.values() for _, text in scored})
    links = _Links(lm, [reading.pieces[text] for text in texts], sinks, patterns)
    return {
        (search.head, search.role): tuple(
            Example(pieces[text][1], reading.pieces[text].text, score, linked)
            for score, text in scored
            if (linked := links.of(search.head, texts.index(text), search.role, search.statistic))
        )
        for search, scored in best.items()
        if scored
    }


def _best(num: Tensor, den: Tensor, count: int) -> list[tuple[float, int]]:
    """The texts of the highest scores; those that ask often enough come first, if they score half as high as any."""
    scores = torch.where(den > 0, num / den.clamp_min(1), 0.0)
    half = float(scores.max()) / 2 if len(scores) else 0.0

    def rank(text: int) -> tuple[bool, float, float]:
        often = bool(den[text] >= MIN_ROWS) and float(scores[text]) >= half
        return not often, -float(scores[text]), -float(den[text])

    ranked = sorted(range(len(scores)), key=rank)[:count]
    return [(float(scores[text]), text) for text in ranked if scores[text] > 0]


def _searches(roles: Roles) -> list[Search]:
    """Every label, and every question's best head for which it holds; each once."""
    place = {label.head: index for index, label in enumerate(roles)}
    statistics = {(label.head, label.name): label.evidence.statistic for label in roles if label.name != UNLABELLED}
    for role in roles.questions:
        best = roles.ranked(role, 1)[0]
        if best.holds:
            statistics[best.head, role] = best.statistic
    return [Search(head, role, place[head], statistic) for (head, role), statistic in statistics.items()]


def _pieces(lm: Any, documents: Sequence[Document], longest: int) -> list[tuple[Piece, str]]:
    """Short texts of the reporting half, in order, with their names; none that the tokenizer cannot read."""
    chosen = [document for document in documents if document.text.strip() and text_seed(document.text) & 1 == REPORT]
    pieces: list[tuple[Piece, str]] = []
    for document in chosen[: 4 * MOST_TEXTS]:
        try:
            (first, *more) = read_texts(lm, [document], "windows").pieces
        except Exception as error:
            if not is_about_texts(error):
                raise
            continue
        if not more and SHORTEST <= len(first.ids) <= longest:
            pieces.append((first, document.name))
        if len(pieces) == MOST_TEXTS:
            break
    return pieces


def _by_text(lm: Any, reading: Reading, statistics: Sequence[Statistic], sinks: Sinks) -> tuple[Tensor, Tensor]:
    """Numerators and denominators of each text, `[text, head, statistic]`."""
    num, den, order = [], [], []

    def measuring(tokens: Tokens) -> Measured:
        return Measured(CallTexts.of(lm, tokens.with_sinks(sinks)), tuple(statistics))

    for batch in read_batches(lm, reading, measuring, rarity=rarity_table(reading, lm.spec.vocab_size or 0)):
        sums = batch.watcher.contribution(batch.tap)
        num.append(sums.num)
        den.append(sums.own_of(range(len(statistics))))
        order += batch.indices
    back = torch.tensor(order).argsort()
    return torch.cat(num)[back], torch.cat(den)[back]


class _Links:
    """The strongest links of some texts that a role means, by head: between tokens, of gold between its words."""

    def __init__(self, lm: Any, pieces: Sequence[Piece], sinks: Sinks, patterns: Mapping[str, Pattern]) -> None:
        self.pieces, self.sinks, self.patterns = pieces, sinks, patterns
        self.spans = [_spans(piece.gold) for piece in pieces]
        self.recording = record(lm, [piece.text for piece in pieces]) if pieces else None
        self.words: dict[str, Words] = {}

    def of(self, head: Head, text: int, role: str, statistic: str) -> tuple[str, ...]:
        """At most `LINKS`, the strongest first; none where no pair that is meant has any weight to speak of."""
        assert self.recording is not None
        layer = next(layer for layer in self.recording.stacks[head.stack] if layer.site.layer == head.layer)
        gold = self.pieces[text].gold
        arcs = _arcs(gold, role) if gold is not None and self.spans[text] else []
        if arcs and gold is not None:
            if head.stack not in self.words:
                self.words[head.stack] = Words.of(layer.tokens, by=self.spans)
            words = layer.word_weights(head.index, text, words=self.words[head.stack])
            cells = self._cells(words, gold, text, arcs)
            named = [(words.queries[i].text, words.keys[j].text, float(words.weights[i, j])) for i, j in cells]
        else:
            tokens = layer.tokens.with_sinks(self.sinks)
            pairs = pairs_of(statistic, tokens, text, self.patterns)
            weights = layer.weights_at(torch.tensor(pairs.rows).long(), torch.tensor(pairs.keys).long(), text)
            written = surfaces_of(tokens, text)
            cells = zip(pairs.rows, pairs.keys, weights[head.index].tolist(), strict=True)
            named = [(written[row], written[key], weight) for row, key, weight in cells]
        best = sorted(named, key=lambda link: -link[2])[:LINKS]
        return tuple(f"{query} → {key} {weight:.2f}" for query, key, weight in best if weight >= LEAST_WEIGHT)

    def _cells(self, words: WordMap, gold: Gold, text: int, arcs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Where gold words' links stand in a map of units; words that share their characters are one unit."""
        unit = {query.word: index for index, query in enumerate(words.queries) if query.word >= 0}
        number = {span: index for index, span in enumerate(self.spans[text])}
        place = [unit.get(number[word.begin, word.end]) for word in gold.words]
        cells = [(place[row], place[key]) for row, key in arcs]
        return [(row, key) for row, key in dict.fromkeys(cells) if row is not None and key is not None and row != key]


def _spans(gold: Gold | None) -> list[tuple[int, int]]:
    """Where the gold words stand, once each (German "im" is two); nothing where they overlap otherwise."""
    spans = sorted({(word.begin, word.end) for word in gold.words}) if gold is not None else []
    return [] if any(before[1] > after[0] for before, after in pairwise(spans)) else spans


def _arcs(gold: Gold, role: str) -> list[tuple[int, int]]:
    """The pairs of words that a role of syntax or reference means in one text; none for other roles."""
    if role in COREFERENCE:
        return [
            (search.row, antecedent)
            for search in searches(gold)
            if role == "coreference" or gold.words[search.row].pos == "PRON"
            for antecedent in sorted(search.right)
        ]
    relation, colon, direction = role.rpartition(": ")
    if not colon:
        return []
    arcs = [
        (index, word.head) for index, word in enumerate(gold.words) if word.relation == relation and word.head != ROOT
    ]
    return arcs if direction == "dependent to head" else [(head, dependent) for dependent, head in arcs]
