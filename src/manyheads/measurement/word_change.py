"""One word of a text changed: how much a word looks at each word before and after, and that in a sentence.

A classic picture has "it" look at "animal" where the animal is tired and at "street" where the street is wide. A head
may do that, or hold on to the animal, or let go of it and find nothing else; `WordSwap.said` says which, from the
numbers alone. Rows are those of words: shares of a word's pieces are summed, rows of its pieces averaged, so that a
changed word is one word whatever its pieces are, and the words before and after pair one to one.

Cost: one row of each head of two recordings. Source of the pair: Uszkoreit 2017.
"""

# device: rows of words are the host's

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from manyheads.base import Json, percent
from manyheads.errors import HeadError, TextError
from manyheads.heads import Head
from manyheads.recording import LayerRecord, Recording, SpacedWord
from manyheads.results import Shown
from manyheads.texts import Merging, Unit, Words, numbered, readable

SAME = 1e-6  # of a share: rows that differ by less were computed from the same numbers
LINK = 0.05  # of a look: a word that gets less is not looked at
HOLDS, LETS_GO = 0.8, 1.25  # of its share before: a word that keeps so much, and one that gains so much
HALF = 0.5  # of what it loses: another word that gains so much has got part of the look
TURNS = 0.02  # of a look: what another word gains by less is no turn to it
BESIDE = 0.3  # of a look at the same word: with less, a head is no example of holding on


@dataclass(frozen=True, eq=False)
class HeadRows:
    """One head's row of the asking word before and after: the share of each word, summing to 1 but for hidden sinks."""

    head: Head
    before: Float64[ndarray, "n"]
    after: Float64[ndarray, "n"]


@dataclass(frozen=True, eq=False)
class WordSwap(Shown):
    """What one word's looks become when another word of its text is changed.

    - `words`: of the text before, special tokens and marks among them; `special` says which the tokenizer added.
    - `begins`: the first token of each word, in the text before.
    - `query`, `place`: the numbers of the word that asks and of the one that is changed, among `words`.
    - `new`: what stands in its place; all other words are the same after.
    - `rows`: those that were asked for, in that order, then that of `beside`.
    - `beside`: another head, of those that look at the same word the one that does so most after the change; None where
      no other looks there.
    - `looks_ahead`: whether words see what stands after them.
    """

    words: tuple[str, ...]
    special: Bool[ndarray, "n"]
    begins: tuple[int, ...]
    query: int
    place: int
    new: str
    rows: tuple[HeadRows, ...]
    beside: Head | None
    looks_ahead: bool

    def to_dict(self) -> Json:
        """Plain data for JSON: the sentence, and each head's share of each word before and after."""
        return {
            "words": list(self.words),
            "query": self.query,
            "place": self.place,
            "new": self.new,
            "said": self.said(),
            "rows": [
                {"head": str(row.head), "before": row.before.tolist(), "after": row.after.tolist()} for row in self.rows
            ],
            "beside": None if self.beside is None else str(self.beside),
        }

    def __repr__(self) -> str:
        return f"WordSwap({self.words[self.place]!r} -> {self.new!r}, {len(self.rows)} heads)"

    @cached_property
    def _names(self) -> list[str]:
        """The words as sentences name them: two that are the same are told apart."""
        return SpacedWord.in_sentences(self.words, quotes="“”")

    @property
    def links(self) -> tuple[int, int]:
        """The words whose shares the sentence is about: the one looked at most before, then the other one looked at
        most after, of those that gained by the change if any did.

        Of the first head. Neither is special or the word that asks; the changed word stands among them only where
        nothing else is looked at.
        """
        rows = self.rows[0]
        first = self._most(rows.before, ())
        gained = rows.after - rows.before >= TURNS
        return first, self._most(rows.after + gained, (first,))

    def linked(self) -> str:
        """What the first head does before the change, in a sentence."""
        rows, first = self.rows[0], self.links[0]
        begin, asker = f"With {self._names[self.place]}, head {rows.head}", self._names[self.query]
        if rows.before[first] < LINK:
            return f"{begin} links {asker} to no word."
        return f"{begin} links {asker} to {self._names[first]}: {percent(rows.before[first])}."

    def said(self) -> str:
        """What the first head does, in one sentence: it lets go, holds on, turns to another word, or nothing changes.

        >>> WordSwap(("it", "animal", "street", "tired"), np.zeros(4, bool), (0, 1, 2, 3), 0, 3, "wide", (HeadRows(
        ...     Head("", 3, 1), np.array([0.06, 0.68, 0.05, 0.01]), np.array([0.07, 0.28, 0.12, 0.02])),), None, True,
        ... ).said()
        'With “wide”, L3H1 lets go of “animal” (68 % → 28 %), yet does not swing to “street” (5 % → 12 %).'
        """
        rows, (first, other) = self.rows[0], self.links
        # A new word that stands elsewhere already would be taken for that one.
        head, begin = rows.head, f"With “{self.new}”" + f" for {self._names[self.place]}" * (self.new in self.words)
        if np.abs(rows.after - rows.before).max() < SAME:
            asker = self._names[self.query]
            if not self.looks_ahead and self.place > self.query:
                return f"{begin}, nothing changes: {asker} stands before it, and this model does not look ahead."
            return f"{begin}, nothing changes in {head}."
        before, after = rows.before[first], rows.after[first]
        turned = rows.after[other] - rows.before[other]
        there, elsewhere = self._moved(rows, first), self._moved(rows, other)
        swings = turned >= TURNS and rows.after[other] > after
        if max(before, rows.after[other]) < LINK:
            return f"{begin}, {head} links {self._names[self.query]} to no word, and did not before."
        if swings and before < LINK:
            return f"{begin}, {head} turns to {elsewhere}."
        if swings:
            return f"{begin}, {head} swings from {there} to {elsewhere}."
        if after > LETS_GO * before:
            return f"{begin}, {head} looks at {there} even more."
        if after >= HOLDS * before:
            return f"{begin}, {head} holds on to {there}."
        if turned >= HALF * (before - after):
            return f"{begin}, {head} swings part of the way, from {there} to {elsewhere}."
        if turned >= TURNS:
            return f"{begin}, {head} lets go of {there}, yet does not swing to {elsewhere}."
        return f"{begin}, {head} lets go of {there}, and no other word takes its place: {elsewhere}."

    def figures(self) -> str:
        """What the sentence leaves out, in a line: which other word gains most, and what the head beside does."""
        rows, (first, other) = self.rows[0], self.links
        parts: list[str] = []
        gains = rows.after - rows.before
        named = max(gains[first], gains[other])
        gains[[first, other]] = -np.inf
        most = int(gains.argmax())
        if gains[most] >= TURNS:
            word = self.words[most]
            name = f"“{word}”"
            if self.special[most]:
                name = f"{word}, where looks park,"
            elif most == self.query:
                name = f"“{word}” itself"
            elif most == self.place:
                name = f"“{self.new}”"
            verb = "gains most" if gains[most] >= named else "gains too"
            parts.append(f"{name} {verb}: {_change(rows, most)}.")
        if self.beside is not None:
            beside = self.rows[-1]
            holds = beside.after[first] >= HOLDS * beside.before[first]
            parts.append(f"{self.beside} {'holds on' if holds else 'lets go too'}: {_change(beside, first)}.")
        return "  ".join(parts)

    def _moved(self, rows: HeadRows, word: int) -> str:
        return f"{self._names[word]} ({_change(rows, word)})"

    def _most(self, values: Float64[ndarray, "n"], taken: Sequence[int]) -> int:
        """The word of the largest value, apart from some: special tokens, the word that asks, the one that changes."""
        out = self.special.copy()
        out[[self.query, self.place, *taken]] = True
        if out.all():  # a text of three words has no other
            out[:] = False
            out[[self.query, *taken]] = len(out) > 1 + len(taken)
        return int(np.where(out, -np.inf, values).argmax())


def changed_text(recording: Recording, place: int, word: str) -> str:
    """The text of a recording with one word changed: that of the token `place`, for `word`.

    Errors: TextError for a token of no word, for a word that is the same or empty, and for several texts.
    """
    words, unit = _words_and_unit(recording, place)
    if not word.strip():
        raise TextError("the new word is empty: give at least one character, or compare the maps without the word.")
    if word.strip() == unit.text:
        raise TextError(f"“{word.strip()}” stands there already: give another word.")
    begin, end = unit.span
    return words.texts[0][:begin] + word.strip() + words.texts[0][end:]


def word_swap(before: Recording, after: Recording, place: int, query: int, heads: Sequence[Head | str]) -> WordSwap:
    """How much a word looks at each word in two recordings of one model, whose texts differ in one word.

    - `before`, `after`: of one text each; `after` of `changed_text(before, place, ...)`.
    - `place`, `query`: a token of the word that is changed, and one of the word that asks, in the text before.
    - `heads`: whose rows are given, the one that the sentence is about first.

    Errors: TextError where the texts differ in more than that word; HeadError for heads that read another text.
    """
    words, changed = _words_and_unit(before, place)
    old, new = words.units(), Words.of(after.tokens).units()
    index = old.index(changed)
    rest = len(old) - index - 1
    swapped = new[index : len(new) - rest]
    pairs = [*zip(old[:index], new[:index], strict=False), *zip(old[index + 1 :], new[len(new) - rest :], strict=False)]
    if not swapped or len(new) < len(old) or any(one.text != other.text for one, other in pairs):
        raise TextError(
            f"the two texts differ in more than “{changed.text}”, or the new word merges with its neighbours: "
            f"give a word that can stand alone there."
        )
    asking = next((number for number, unit in enumerate(old) if query in unit.tokens), None)
    if asking is None:
        raise TextError(f"there is no token {query}: this text has {sum(len(u.tokens) for u in old)}, counted from 0.")
    begin, end = swapped[0].span[0], swapped[-1].span[1]
    text = Words.of(after.tokens).texts[0][begin:end]
    # Several words in the place of one are one word here: shares of its pieces are summed.
    joined = Unit(text, (begin, end), tuple(token for unit in swapped for token in unit.tokens), swapped[0].word, False)
    units = (*new[:index], joined, *new[len(new) - rest :])
    requested = [Head.parse(head) for head in heads]
    rows: dict[Head, HeadRows] = {}
    looks_ahead = False
    for stack, layers in before.stacks.items():
        for site in layers.sites:
            layer, later = layers[site.layer], after.stacks[stack][site.layer]
            if layer.crosses or layer.num_queries(0) != before.tokens.lengths[0]:
                continue
            looks_ahead |= not site.causal
            pair = (_row(layer, old, asking), _row(later, units, asking))
            rows |= {head: HeadRows(head, *both) for head, *both in zip(site.heads, *pair, strict=True)}
    if missing := [head for head in requested if head not in rows]:
        raise HeadError(f"there is no head {missing[0]} here that reads this text: name one as in 'L3H1'.")
    labels = readable(before.tokens)
    names = tuple(unit.text if unit.word >= 0 else labels[unit.tokens[0]] for unit in old)
    special = np.array([unit.special for unit in old])
    begins = tuple(min(unit.tokens) for unit in old)
    swap = WordSwap(
        names, special, begins, asking, index, text, tuple(rows[head] for head in requested), None, looks_ahead
    )
    first = swap.links[0]
    others = [row for row in rows.values() if row.head not in requested and row.before[first] >= BESIDE]
    if not others:
        return swap
    beside = max(others, key=lambda row: row.after[first])
    return replace(swap, rows=(*swap.rows, beside), beside=beside.head)


def _words_and_unit(recording: Recording, place: int) -> tuple[Words, Unit]:
    """The words of a recording of one text, and the word of one of its tokens. Errors: TextError."""
    if recording.tokens.num_texts != 1:
        raise TextError(
            f"a word is changed in a recording of one text, and this one holds {recording.tokens.num_texts}: give a "
            f"text that the model reads at once."
        )
    words = Words.of(recording.tokens)
    unit = next((unit for unit in words.units() if place in unit.tokens), None)
    if unit is None or unit.word < 0:
        name = f"token {place}" if unit is None else f"“{readable(recording.tokens)[place]}”"
        raise TextError(f"{name} is not a word of this text, so it cannot be changed: choose a word.")
    return words, unit


def _row(layer: LayerRecord, units: Sequence[Unit], asking: int) -> Float64[ndarray, "h n"]:
    """Each head's row of one word over all words, in float64."""
    (rows, span), (columns, keys) = numbered([units[asking]]), numbered(units)
    merging = Merging(rows, columns)
    merging.add(layer.weights(None, span, keys).double().cpu(), 0)
    return merging.weights[:, 0].numpy()


def _change(rows: HeadRows, word: int) -> str:
    return f"{percent(rows.before[word])} → {percent(rows.after[word])}"
