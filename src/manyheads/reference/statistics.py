"""Every statistic of a head, from the whole map of one text: what it means in a line of words, then in a line of code.

What: `statistics` takes a map and what is known of its text, and gives for every name a numerator and a denominator
per head. Over many texts a statistic is sum(numerators) / sum(denominators), so long texts count by their rows.
Why: the library measures heads on maps that it never holds. This page holds the map, and is what it must agree with.
It is also the place to look up what a number means. There are three kinds: something of each row, averaged over the
rows; the mass on some cells (at an offset, on a class of tokens, on copies of the row's token); two facts about the
whole map. Beside a number stands its chance level: `.uniform` is the same statistic of a head that looks everywhere
alike, `.relabelled` that of a text whose words stand in another order. On pages of their own: masses weighted by the
values' lengths (`norms`), and which key a row looks at most (`tops`).
Cost: a few passes over the map, in float64.
Source: entropy: Clark et al. 2019, section 5.1; max_weight ("confidence"), strongest keys: Voita et al. 2019;
induction: Olsson et al. 2022; sink_norm_mass: Kobayashi et al. 2020 (norms); sinks themselves: Xiao et al. 2024.

A row is *alive* if it sees at least one key. Mass on a kind of key is counted over the rows that see such a key.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Bool, Float64, Int, Real

from manyheads.errors import ShapeError
from manyheads.reference import reductions
from manyheads.reference.norms import norm_masses, norm_matches
from manyheads.reference.tops import tops

OFFSETS = range(-8, 9)
NEAR = 3  # tokens to either side that count as local
NAMED_OFFSETS = {-1: "previous_mass", 0: "self_mass", 1: "next_mass"}
MATCHES = ("duplicate_mass", "induction_mass", "previous_copy_mass")  # of two tokens, few rows see any
MOVABLE = ("punctuation", "number", "capitalised", "rare")  # classes of words, which may stand in another order

Map = Float64[np.ndarray, "h n n"]
Rows = Float64[np.ndarray, "h n"]
Cells = Bool[np.ndarray, "n n"]
Pair = tuple[Float64[np.ndarray, " h"], Float64[np.ndarray, " h"]]  # numerator, denominator


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
        return _any(self.visible)

    @property
    def offset(self) -> Int[np.ndarray, "n n"]:
        """j - i for every cell: negative looks back."""
        position = np.arange(len(self.ids))
        return position[None] - position[:, None]


def statistics(weights: Real[np.ndarray, "h n n"], text: TextFacts) -> dict[str, Pair]:
    """Every statistic of every head over one text: name -> (numerator, denominator), with the chance levels.

    `weights` is 0 where the text's mask hides a key. A denominator of 0 says that this text has nothing to tell.
    What is weighted by norms is left out without `value_norms`, what hangs on rarity without `rarity`.
    Raises ShapeError where map and mask differ in size.
    """
    if weights.shape[1:] != text.visible.shape:
        n = len(text.visible)
        raise ShapeError(f"weights has shape {weights.shape}, but this text's map must be (heads, {n}, {n}).")
    weights, other_order = np.asarray(weights, np.float64), replace(text, ids=text.ids[text.relabelling])
    everywhere = np.broadcast_to(uniform(text), weights.shape)
    out: dict[str, Pair] = {}
    for name, of_rows in ROWS.items():
        out[name] = over(text.alive, of_rows(weights))
        out[f"{name}.uniform"] = over(text.alive, of_rows(everywhere))
    for name, cells in CELLS.items():
        out[name] = mass_on(cells(text), weights, text)
        out[f"{name}.uniform"] = mass_on(cells(text), everywhere, text)
    out["local_mass"], out["local_mass.uniform"] = local_mass(weights, text), local_mass(everywhere, text)
    for name in MOVABLE:
        out[f"{name}_mass.relabelled"] = scattered_mass(getattr(text, name), weights, text)
    for name in MATCHES:
        out[f"{name}.relabelled"] = mass_on(CELLS[name](other_order), weights, other_order)
    for name in MATCHES:
        out[name.replace("_mass", "_unsunk_mass")] = unsunk_mass(CELLS[name](text), weights, text)
    for name, of_map in WHOLE.items():
        out[name] = of_map(weights, text)
    if text.rarity is not None:
        out |= tops(weights, text.visible, text.ids, ~text.special, text.rarity)
    if text.value_norms is not None:
        out["sink_norm_mass"] = sink_norm_mass(weights, text)
        cells = {name: of_text(text) for name, of_text in CELLS.items() if name in WEIGHTED}
        movable = {f"{name}_mass": getattr(text, name) for name in MOVABLE}
        out |= norm_masses(weights, text.value_norms, text.visible, cells, movable, ~text.special)
        matches = {name: CELLS[name](text) for name in MATCHES}
        out |= norm_matches(weights, text.value_norms, text.visible, matches)
    return out


def over(rows: Bool[np.ndarray, " n"], values: Rows) -> Pair:
    """The sum of some rows' values, and how many rows they are."""
    return values[:, rows].sum(axis=1), np.full(len(values), np.count_nonzero(rows), np.float64)


def uniform(text: TextFacts) -> Float64[np.ndarray, "n n"]:
    """The map of a head that looks alike at everything it may see."""
    return text.visible / np.maximum(text.visible.sum(axis=1, keepdims=True), 1)


# ------------------------------------------------------------------------ something of each row, averaged over the rows


def entropy(weights: Map) -> Rows:
    """How widely a row looks: -sum_j a ln a, in nats; 0 for one key, ln n for n keys alike."""
    return reductions.entropy(weights)


def effective_keys(weights: Map) -> Rows:
    """How many keys a row looks at: exp(entropy), n for n keys alike."""
    return np.exp(reductions.entropy(weights))


def mean_position(weights: Map) -> Rows:
    """Where in the text a row looks: 0 is its first token, 1 its last."""
    length = weights.shape[2]
    return weights @ np.arange(length) / max(length - 1, 1)


def signed_distance(weights: Map) -> Rows:
    """How far ahead a row looks, in tokens: sum_j a (j - i); negative looks back."""
    num_rows, num_keys = weights.shape[1:]
    return weights @ np.arange(num_keys) - weights.sum(axis=2) * np.arange(num_rows)


def distance(weights: Map) -> Rows:
    """How far away a row looks, in tokens: sum_j a |j - i|."""
    return reductions.distance(weights)


def max_weight(weights: Map) -> Rows:
    """A row's largest weight: what Voita et al. call the head's confidence."""
    return reductions.maximum(weights)


def sum_of_squares(weights: Map) -> Rows:
    """How concentrated a row is: 1 for one key, 1/n for n keys alike."""
    return reductions.square(weights)


# --------------------------------------------------------- the mass on some cells, over the rows that see any of those


def mass_on(cells: Cells, weights: Map, text: TextFacts) -> Pair:
    """The weight on chosen cells, over the rows that see at least one of theirs."""
    seen = cells & text.visible
    return over(_any(seen), (weights * seen).sum(axis=2))


def unsunk_mass(cells: Cells, weights: Map, text: TextFacts) -> Pair:
    """The weight on chosen cells, over all weight that does not go to a sink, both of rows that see such a cell."""
    seen = cells & text.visible
    of_rows = weights * _any(seen)[:, None] * ~text.sink
    return (of_rows * seen).sum(axis=(1, 2)), of_rows.sum(axis=(1, 2))


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


def local_mass(weights: Map, text: TextFacts) -> Pair:
    """The weight within `NEAR` tokens to either side, over every row that is alive."""
    return over(text.alive, (weights * (abs(text.offset) <= NEAR)).sum(axis=2))


def scattered_mass(column: Bool[np.ndarray, " n"], weights: Map, text: TextFacts) -> Pair:
    """What a class would get on average if its tokens lay at random among the text's ordinary (non-special) positions.

    Every ordinary position is then equally likely to hold one, so the class gets its share of what they all get.
    """
    ordinary = ~text.special
    share = (column & ordinary).sum() / max(ordinary.sum(), 1)
    expected = weights[:, :, ordinary].sum(axis=2) * share + weights[:, :, column & ~ordinary].sum(axis=2)
    return over(_any(_keys(column) & text.visible), expected)


# ------------------------------------------------------------------------------------------------ of the map as a whole


def heaviest_key(weights: Map, text: TextFacts) -> Pair:
    """The most that any one key receives, as a share of all rows; each text counts once."""
    num_rows, received = np.count_nonzero(text.alive), reductions.received(weights)
    most = received.max(axis=1, initial=0.0) / max(num_rows, 1)
    return most, np.full(len(weights), float(num_rows > 0))


def missing_mass(weights: Map, text: TextFacts) -> Pair:
    """What the rows do not give to any key, because a sink in the denominator takes it."""
    return over(text.alive, 1 - reductions.mass(weights))


def sink_norm_mass(weights: Map, text: TextFacts) -> Pair:
    """The sinks' part of what is moved, weights times value lengths: little where a sink's value is short."""
    moved = reductions.received(weights) * text.value_norms
    return moved[:, text.sink].sum(axis=1), moved.sum(axis=1)


def _keys(column):
    """Cells from a class of keys: the same in every row."""
    return np.broadcast_to(column, (len(column), len(column)))


def _any(cells: Cells) -> Bool[np.ndarray, " n"]:
    """Rows that hold at least one of the cells."""
    return cells.sum(axis=1) > 0


def _same(row_ids, key_ids):
    return row_ids[:, None] == key_ids[None]


ROWS: dict[str, Callable[[Map], Rows]] = {
    "entropy": entropy,
    "effective_keys": effective_keys,
    "mean_position": mean_position,
    "signed_distance": signed_distance,
    "distance": distance,
    "max_weight": max_weight,
    "sum_of_squares": sum_of_squares,
}
CELLS: dict[str, Callable[[TextFacts], Cells]] = {
    **{NAMED_OFFSETS.get(o, f"offset_{o:+d}_mass"): partial(at_offset, offset=o) for o in OFFSETS},
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
WEIGHTED = set(CELLS) - {"sink_mass", *MATCHES}  # with norms over all rows; matches over the rows that see one
WHOLE: dict[str, Callable[[Map, TextFacts], Pair]] = {"heaviest_key": heaviest_key, "missing_mass": missing_mass}
