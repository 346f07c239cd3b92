"""What is known of a text besides its maps, and which cells of a map each mass is on: a line of code for each.

What: `TextFacts` holds a text's tokens and their classes; `CELLS` names the cells that masses are on: at an offset, on
a class of tokens, on copies of the row's token. The statistics themselves are in `statistics`.
Cost: a table of booleans, n x n, for each kind of cell.
Source: induction: Olsson et al. 2022; sinks: Xiao et al. 2024.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Bool, Int, Real

OFFSETS = range(-8, 9)
NAMED_OFFSETS = {-1: "previous_mass", 0: "self_mass", 1: "next_mass"}
MATCHES = ("duplicate_mass", "induction_mass", "previous_copy_mass")  # of two tokens, few rows see any

Cells = Bool[np.ndarray, "n n"]


@dataclass(frozen=True)
class TextFacts:
    """What is known of a text of n tokens besides its maps. Classes are True where a token belongs to them."""

    visible: Bool[np.ndarray, "n n"]  # row i may look at key j
    ids: Int[np.ndarray, " n"]
    special: Bool[np.ndarray, " n"]
    punctuation: Bool[np.ndarray, " n"]
    number: Bool[np.ndarray, " n"]
    capitalised: Bool[np.ndarray, " n"]
    rare: Bool[np.ndarray, " n"]
    sink: Bool[np.ndarray, " n"]
    relabelling: Int[np.ndarray, " n"]  # a permutation of the positions; special tokens stay where they are
    value_norms: Real[np.ndarray, "h n"] | None = None  # the length of each key's value vector, head by head
    rarity: Real[np.ndarray, " n"] | None = None  # of each token, 0 the most common to 1 the rarest

    @property
    def alive(self) -> Bool[np.ndarray, " n"]:
        """Rows that see at least one key."""
        return rows_with(self.visible)

    @property
    def offset(self) -> Int[np.ndarray, "n n"]:
        """j - i for every cell: negative looks back."""
        position = np.arange(len(self.ids))
        return position[None] - position[:, None]


def at_offset(text: TextFacts, offset: int) -> Cells:
    """The key so many tokens ahead (before, where negative): previous is -1, next +1, self 0."""
    return text.offset == offset


def on_first(text: TextFacts) -> Cells:
    """The text's first position."""
    return _keys(np.arange(len(text.ids)) == 0)


def on_sink(text: TextFacts) -> Cells:
    """Where this model parks attention that it has no use for, as found by looking."""
    return _keys(text.sink)


def on_special(text: TextFacts) -> Cells:
    """Tokens that the tokenizer added by itself: [CLS], [SEP], a beginning of text."""
    return _keys(text.special)


def on_separator(text: TextFacts) -> Cells:
    """Tokens that the tokenizer added behind or between texts, not before: [SEP], an end of text."""
    return _keys(text.special & (np.arange(len(text.ids)) > 0))


def on_punctuation(text: TextFacts) -> Cells:
    """Tokens made of punctuation and symbols alone."""
    return _keys(text.punctuation)


def on_number(text: TextFacts) -> Cells:
    """Tokens with a digit in them."""
    return _keys(text.number)


def on_capitalised(text: TextFacts) -> Cells:
    """Tokens that begin with a capital in the text as it was written."""
    return _keys(text.capitalised)


def on_rare(text: TextFacts) -> Cells:
    """The text's rarest tokens."""
    return _keys(text.rare)


def on_duplicate(text: TextFacts) -> Cells:
    """Other places with the row's own token; special tokens have no copies."""
    ordinary = ~text.special
    return _same(text.ids, text.ids) & (text.offset != 0) & ordinary[:, None] & ordinary[None]


def on_induction(text: TextFacts) -> Cells:
    """The key right after an earlier copy of the row's token: what came next the last time."""
    before = np.arange(len(text.ids)) - 1  # of each key the position before it; key 0 has none
    copy = _same(text.ids, text.ids[before]) & ~text.special[:, None] & ~text.special[before][None]
    return copy & (text.offset <= 0) & (before >= 0)[None]


def on_previous_copy(text: TextFacts) -> Cells:
    """The key right before an earlier copy of the row's token."""
    after = np.minimum(np.arange(len(text.ids)) + 1, len(text.ids) - 1)  # of each key the position after it
    copy = _same(text.ids, text.ids[after]) & ~text.special[:, None] & ~text.special[after][None]
    return copy & (text.offset < -1)


def on_distant(text: TextFacts, sink: int = 4, recent: int = 64) -> Cells:
    """Keys that are neither among the text's first `sink` nor less than `recent` places from the row."""
    return _keys(np.arange(len(text.ids)) >= sink) & (np.abs(text.offset) >= recent)


def rows_with(cells: Cells) -> Bool[np.ndarray, " n"]:
    """Rows that hold at least one of the cells."""
    return cells.sum(axis=1) > 0


def _keys(column: Bool[np.ndarray, " n"]) -> Cells:
    """Cells from a class of keys: the same in every row."""
    return np.broadcast_to(column, (len(column), len(column)))


def _same(row_ids: Int[np.ndarray, " n"], key_ids: Int[np.ndarray, " n"]) -> Cells:
    return row_ids[:, None] == key_ids[None]


CELLS: dict[str, Callable[[TextFacts], Cells]] = {
    **{NAMED_OFFSETS.get(o, f"offset_{o:+d}_mass"): partial(at_offset, offset=o) for o in OFFSETS},
    "distant_mass": on_distant,
    "first_mass": on_first,
    "sink_mass": on_sink,
    "special_mass": on_special,
    "separator_mass": on_separator,
    "punctuation_mass": on_punctuation,
    "number_mass": on_number,
    "capitalised_mass": on_capitalised,
    "rare_mass": on_rare,
    "duplicate_mass": on_duplicate,
    "induction_mass": on_induction,
    "previous_copy_mass": on_previous_copy,
}
