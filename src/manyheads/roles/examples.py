"""Texts in which a head does what it is asked for: from the head of the corpus, of the reporting half alone.

For each label, and for each question's best head where it holds, the texts in which the head's score is highest, and
its strongest links there in words: of syntax from a word to its head or dependent, of reference from a mention to its
antecedents, else any. A number says how often a head does something; a sentence shows what that looks like.
Cost: one more reading of at most `MOST_TEXTS`, and of as many passages where coreference is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyheads.corpora.documents import Document
from manyheads.heads import Head
from manyheads.models.calltexts import CallTexts
from manyheads.models.recorder import record, watch
from manyheads.models.sites import run
from manyheads.models.texts import Piece, Reading, batches, model_inputs, rarity_table, read_texts, tokens_of
from manyheads.recording.gold import ROOT, Gold
from manyheads.recording.tokens import Sinks, text_seed
from manyheads.recording.words import WordMap, Words
from manyheads.roles.claims import REPORT
from manyheads.roles.found import Example, Roles
from manyheads.roles.goldrules import coreference_rules
from manyheads.statistics.coreference import searches
from manyheads.statistics.failures import is_about_texts
from manyheads.statistics.onebatch import Measured
from manyheads.statistics.statistic import Statistic

MOST_TEXTS = 200
MIN_ROWS = 3  # questions in a text, so that one lucky one is no example
SHORTEST, LONGEST = 5, 60  # tokens: what reads as a sentence
LONGEST_PASSAGE = 256  # passages have up to 128 words
LINKS = 3
RESTS = ("sink", "first token", "separator")  # roles whose keys may be special tokens
COREFERENCE = {rule.role: rule.statistic for rule in coreference_rules()}


class Want(NamedTuple):
    """What examples are looked for: of a head (`at` is its place in the model) at a role, by a statistic."""

    head: Head
    role: str
    at: int
    statistic: str


def find_examples(
    lm: Any, documents: Sequence[Document], roles: Roles, statistics: Sequence[Statistic], sinks: Sinks, count: int = 3
) -> dict[tuple[Head, str], tuple[Example, ...]]:
    """The `count` best texts of all that rests on one of `statistics`; fewer where few texts ask it at all."""
    number = {each.name: at for at, each in enumerate(statistics)}
    wanted = [want for want in _wanted(roles) if want.statistic in number] if count else []
    longest = LONGEST_PASSAGE if any(want.role in COREFERENCE for want in wanted) else LONGEST
    pieces = _pieces(lm, documents, longest) if wanted else []
    if not pieces:
        return {}
    reading = Reading(tuple(piece for piece, _ in pieces), "")
    columns = sorted({number[want.statistic] for want in wanted})
    num, den = _by_text(lm, reading, [statistics[column] for column in columns], sinks)
    best: dict[tuple[Head, str], list[tuple[float, int]]] = {}
    for want in wanted:
        column, least = columns.index(number[want.statistic]), MIN_ROWS
        if statistics[number[want.statistic]].block:  # of syntax and reference few words of a text are asked
            least = 1
        asked = den[:, want.at, column]
        scores = torch.where(asked >= least, num[:, want.at, column] / asked.clamp_min(1), -1.0).tolist()
        order = sorted(range(len(scores)), key=lambda at: (-scores[at], -float(asked[at])))[:count]
        best[want.head, want.role] = [(scores[at], at) for at in order if scores[at] > 0]
    shown = sorted({at for found in best.values() for _, at in found})
    links = _Links(lm, [reading.pieces[at] for at in shown])
    return {
        (head, role): tuple(
            Example(pieces[at][1], reading.pieces[at].text, value, links.of(head, shown.index(at), role))
            for value, at in found
        )
        for (head, role), found in best.items()
        if found
    }


def _wanted(roles: Roles) -> list[Want]:
    """Every label, and every question's best head for which it holds; each once."""
    place = {label.head: at for at, label in enumerate(roles)}
    out = {(label.head, label.name): label.evidence.statistic for label in roles if label.name != "unlabelled"}
    for role in roles.questions:
        best = roles.ranked(role, 1)[0]
        if best.holds:
            out[best.head, role] = best.statistic
    return [Want(head, role, place[head], statistic) for (head, role), statistic in out.items()]


def _pieces(lm: Any, documents: Sequence[Document], longest: int) -> list[tuple[Piece, str]]:
    """Short texts of the reporting half, in order, with their names; none that the tokenizer cannot read."""
    chosen = [each for each in documents if each.text.strip() and text_seed(each.text) & 1 == REPORT]
    out: list[tuple[Piece, str]] = []
    for document in chosen[: 4 * MOST_TEXTS]:
        try:
            (first, *more) = read_texts(lm, [document], "windows").pieces
        except Exception as error:
            if not is_about_texts(error):
                raise
            continue
        if not more and SHORTEST <= len(first.ids) <= longest:
            out.append((first, document.name))
        if len(out) == MOST_TEXTS:
            break
    return out


def _by_text(lm: Any, reading: Reading, statistics: Sequence[Statistic], sinks: Sinks) -> tuple[Tensor, Tensor]:
    """Numerators and denominators of each text, `[text, head, statistic]`."""
    num, den, order = [], [], []
    for group in batches(reading):
        tokens = tokens_of(reading, group, *rarity_table(reading, lm.spec.vocab_size or 0)).with_sinks(sinks)
        batch = Measured(CallTexts.of(lm, tokens), tuple(statistics))
        state = watch(lm.model, lm.name, lambda t=tokens: run(lm.model, lm.name, model_inputs(lm, t)), batch.observe)
        got = batch.contribution(state)
        num.append(got.num)
        den.append(got.own_of(range(len(statistics))))
        order += group
    back = torch.tensor(order).argsort()
    return torch.cat(num)[back], torch.cat(den)[back]


class _Links:
    """The strongest links between the words of some texts, by head; of gold, the links that it has."""

    def __init__(self, lm: Any, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.spans = [_spans(piece.gold) for piece in pieces]
        self.recording = record(lm, [piece.text for piece in pieces]) if pieces else None
        self.words: dict[str, Words] = {}

    def of(self, head: Head, text: int, role: str) -> tuple[str, ...]:
        assert self.recording is not None
        layer = next(each for each in self.recording.stacks[head.stack] if each.site.layer == head.layer)
        gold = self.pieces[text].gold
        arcs = _arcs(gold, role) if gold is not None and self.spans[text] else []
        if arcs and gold is not None:
            if head.stack not in self.words:
                self.words[head.stack] = Words.of(layer.tokens, by=self.spans)
            words = layer.word_weights(head.index, text, words=self.words[head.stack])
            cells = self._cells(words, gold, text, arcs)
        else:
            rests = role.startswith(RESTS)
            words = layer.word_weights(head.index, text, drop="none" if rests else "special")
            rows, keys = (
                [at for at, each in enumerate(side) if not each.special] for side in (words.queries, words.keys)
            )
            keys = range(len(words.keys)) if rests else keys
            cells = [(row, key) for row in rows for key in keys if row != key or role == "self"]
        cells = sorted(cells, key=lambda cell: -float(words.weights[cell]))[:LINKS]
        named = [(words.queries[row].text, words.keys[key].text, float(words.weights[row, key])) for row, key in cells]
        return tuple(f"{query} → {key} {weight:.2f}" for query, key, weight in named if weight > 0)

    def _cells(self, words: WordMap, gold: Gold, text: int, arcs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Where gold words' links stand in a map of units; words that share their characters are one unit."""
        unit = {each.word: at for at, each in enumerate(words.queries) if each.word >= 0}
        number = {span: at for at, span in enumerate(self.spans[text])}
        place = [unit.get(number[word.begin, word.end]) for word in gold.words]
        found = [(place[row], place[key]) for row, key in arcs]
        return [(row, key) for row, key in dict.fromkeys(found) if row is not None and key is not None and row != key]


def _spans(gold: Gold | None) -> list[tuple[int, int]]:
    """Where the gold words stand, once each (German "im" is two); nothing where they overlap otherwise."""
    spans = sorted({(word.begin, word.end) for word in gold.words}) if gold is not None else []
    return [] if any(one[1] > two[0] for one, two in pairwise(spans)) else spans


def _arcs(gold: Gold, role: str) -> list[tuple[int, int]]:
    """From which word to which a role of syntax or reference asks, in one text; nothing for other roles."""
    if role in COREFERENCE:
        asked = [each for each in searches(gold) if role == "coreference" or gold.words[each.row].pos == "PRON"]
        return [(each.row, antecedent) for each in asked for antecedent in sorted(each.right)]
    relation, found, way = role.rpartition(": ")
    if not found:
        return []
    links = [(at, word.head) for at, word in enumerate(gold.words) if word.relation == relation and word.head != ROOT]
    return links if way == "dependent to head" else [(head, at) for at, head in links]
