"""Every statistic of a head, from the whole map of one text: what it means in a line of words, then in a line of code.

What: `statistics` takes a map and what is known of its text, and gives for every name a numerator and a denominator
per head. Over many texts a statistic is sum(numerators) / sum(denominators), so long texts count by their rows.
Why: the library measures heads on maps that it never holds. This page holds the map, and is what it must agree with.
It is also the place to look up what a number means. There are three kinds: something of each row, averaged over the
rows; the mass on some cells (at an offset, on a class of tokens, on copies of the row's token); two facts about the
whole map. Beside a number stands its chance level: `.uniform` is the same statistic of a head that looks everywhere
alike, `.relabelled` that of a text whose words stand in another order. Which cells those are is in `cells`.

`norm_masses` weights masses by the values' lengths. It takes a map, the length of each key's value vector behind the
output projection, and the cells of each mass; it gives the part of everything that is moved which comes from those
cells, with chance levels. A head that has nothing to do gives its weight to a sink, whose value is short: plain weights
call that its main interest; lengths show that next to nothing comes of it.

`tops` gives the share of words whose strongest key is a word (no token that the tokenizer added), and of those the
share whose strongest key is the text's rarest word, or one of its two rarest, with chance levels. So Voita et al. found
the head that looks at rare words. Added tokens are left out, as rows and as answers; of equal weights the first is the
strongest.

Cost: a few passes over the map, in float64.
Source: entropy: Clark et al. 2019, section 3.3; max_weight ("confidence"), strongest keys, rare words: Voita et al.
2019; induction: Olsson et al. 2022; norm masses: Kobayashi et al. 2020, as a ratio of sums over a text; sinks
themselves: Xiao et al. 2024.

A row is *alive* if it sees at least one key. Mass on a kind of key is counted over the rows that see such a key.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float64, Int, Real, Shaped

from manyheads.errors import ShapeError
from manyheads.reference import reductions
from manyheads.reference.cells import CELLS, MATCHES, Cells, TextFacts, rows_with

NEAR = 3  # tokens to either side that count as local
MOVABLE = ("punctuation", "number", "capitalised", "rare")  # classes of words, which may stand in another order

Map = Float64[np.ndarray, "h n n"]
Rows = Float64[np.ndarray, "h n"]
Pair = tuple[Float64[np.ndarray, " h"], Float64[np.ndarray, " h"]]  # numerator, denominator


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
    position = reductions.places(weights.shape[2])
    return weights @ position / max(len(position) - 1, 1)


def signed_distance(weights: Map) -> Rows:
    """How far ahead a row looks, in tokens: sum_j a (j - i); negative looks back."""
    position = reductions.places(weights.shape[2])
    return weights @ position - weights.sum(axis=2) * position


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
    counted = cells & text.visible
    return over(rows_with(counted), (weights * counted).sum(axis=2))


def unsunk_mass(cells: Cells, weights: Map, text: TextFacts) -> Pair:
    """The weight on chosen cells, over all weight that does not go to a sink, both of rows that see such a cell."""
    counted = cells & text.visible
    of_rows = weights * rows_with(counted)[:, None] * ~text.sink
    return (of_rows * counted).sum(axis=(1, 2)), of_rows.sum(axis=(1, 2))


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
    return over(rows_with(column & text.visible), expected)


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


ROWS: dict[str, Callable[[Map], Rows]] = {
    "entropy": entropy,
    "effective_keys": effective_keys,
    "mean_position": mean_position,
    "signed_distance": signed_distance,
    "distance": distance,
    "max_weight": max_weight,
    "sum_of_squares": sum_of_squares,
}
WEIGHTED = set(CELLS) - {
    "sink_mass",
    "distant_mass",
    *MATCHES,
}  # with norms over all rows; matches over the rows that see one
WHOLE: dict[str, Callable[[Map, TextFacts], Pair]] = {"heaviest_key": heaviest_key, "missing_mass": missing_mass}


# ---------------------------------------------------------------------- what a head moves, rather than what it looks at


def norm_masses(
    weights: Map,
    norms: Real[np.ndarray, "h n"],
    visible: Bool[np.ndarray, "n n"],
    cells: Mapping[str, Bool[np.ndarray, "n n"]],
    movable: Mapping[str, Bool[np.ndarray, " n"]],
    ordinary: Bool[np.ndarray, " n"],
) -> dict[str, Pair]:
    """Name -> (what is moved from the cells, all that is moved); both 0 where the text has no such cell.

    - `weights`: the maps.
    - `norms`: lengths of the values, of each head and key.
    - `visible`: what each row may look at.
    - `cells`: by "x_mass", which becomes "x_norm_mass", and "x_norm_mass.uniform" of a head that looks alike at all it
      may see, its values as they are.
    - `movable`: classes of keys that may stand in another order: ".relabelled".
    - `ordinary`: the keys among which they may.
    """
    everywhere = np.broadcast_to(visible / np.maximum(visible.sum(axis=1, keepdims=True), 1), weights.shape)
    moved, evenly = (weighted_cells * norms[:, None] for weighted_cells in (weights, everywhere))
    out: dict[str, Pair] = {}
    for name, chosen in cells.items():
        counted, weighted = chosen & visible, name.replace("_mass", "_norm_mass")
        out[weighted] = part_of(moved, counted, counted.any())
        out[f"{weighted}.uniform"] = part_of(evenly, counted, counted.any())
        if name in movable:
            out[f"{weighted}.relabelled"] = scattered(moved, movable[name], ordinary, counted.any())
    return out


def norm_matches(
    weights: Map,
    norms: Real[np.ndarray, "h n"],
    visible: Bool[np.ndarray, "n n"],
    cells: Mapping[str, Bool[np.ndarray, "n n"]],
) -> dict[str, Pair]:
    """Name -> (what is moved from the cells, all that is moved in the rows that see one of them)."""
    moved = weights * norms[:, None]
    out: dict[str, Pair] = {}
    for name, chosen in cells.items():
        counted = chosen & visible
        in_rows = moved[:, counted.any(axis=1)]
        out[name.replace("_mass", "_norm_mass")] = (moved * counted).sum(axis=(1, 2)), in_rows.sum(axis=(1, 2))
    return out


def part_of(moved: Map, cells: Shaped[np.ndarray, "n n"], counts: bool | np.bool_) -> Pair:
    """The sum over some cells (or shares of cells), and over all; of a text that does not count, nothing."""
    return (moved * cells * counts).sum(axis=(1, 2)), (moved * counts).sum(axis=(1, 2))


def scattered(
    moved: Map, column: Bool[np.ndarray, " n"], ordinary: Bool[np.ndarray, " n"], counts: bool | np.bool_
) -> Pair:
    """What a class would move on average if it stood anywhere among the ordinary places, which keep their values."""
    share = (column & ordinary).sum() / max(ordinary.sum(), 1)
    expected = np.where(ordinary, share, column)
    return part_of(moved, np.broadcast_to(expected, moved.shape[1:]), counts)


# ---------------------------------------------------------------------------------------- which key a row looks at most


def tops(
    weights: Map,
    visible: Bool[np.ndarray, "n n"],
    ids: Int[np.ndarray, " n"],
    word: Bool[np.ndarray, " n"],
    rarity: Real[np.ndarray, " n"],
) -> dict[str, Pair]:
    """Name -> (rows whose strongest key is of the kind, rows that count), with the chance levels.

    `.uniform`: any word that a row sees is as likely to be its strongest key. `.relabelled`: the words stand in another
    order, so that any of them may stand where the row looks.
    """
    strongest = weights.argmax(axis=2) if len(ids) else np.zeros(weights.shape[:2], int)
    num_words = visible[:, word].sum(axis=1)
    rows = word & (num_words > 0)
    out = {"word_top": _of(word[strongest] & rows, rows)}
    out["word_top.uniform"] = _of(rows * num_words / np.maximum(visible.sum(axis=1), 1), rows, len(weights))
    for name, kinds in (("rarest_top", 1), ("two_rarest_top", 2)):
        rare = rarest(ids, word, rarity, kinds)
        num_rare = visible[:, rare].sum(axis=1)
        rows = word & (num_rare > 0)
        counted = rows & word[strongest]
        out[name] = _of(counted & rare[strongest], counted)
        out[f"{name}.uniform"] = _of(rows * num_rare / np.maximum(num_words, 1), rows, len(weights))
        out[f"{name}.relabelled"] = _of(counted * rare.sum() / max(word.sum(), 1), counted)
    return out


def rarest(
    ids: Int[np.ndarray, " n"], word: Bool[np.ndarray, " n"], rarity: Real[np.ndarray, " n"], kinds: int
) -> Bool[np.ndarray, " n"]:
    """Every place of the text's rarest words: of so many different ones, and of those as rare as the last of them."""
    _, first_places = np.unique(ids[word], return_index=True)
    by_kind = np.sort(rarity[word][first_places])[-kinds:]
    return word & (rarity >= by_kind[0]) if len(by_kind) else word


def _of(values: Shaped[np.ndarray, "... n"], rows: Shaped[np.ndarray, "... n"], num_heads: int | None = None) -> Pair:
    """Sums over rows, and how many rows; one for each head, also where heads do not differ."""
    num, den = np.sum(values, axis=-1, dtype=np.float64), np.sum(rows, axis=-1, dtype=np.float64)
    shape = (num_heads or len(np.atleast_1d(num)),)
    return np.broadcast_to(num, shape).copy(), np.broadcast_to(den, shape).copy()
