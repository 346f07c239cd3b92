"""What a head moves, rather than what it looks at: the masses on some cells, each weight times its value's length.

What: `norm_masses` takes a map, the length of each key's value vector behind the output projection, and the cells of
each mass; it gives the part of everything that is moved which comes from those cells, with chance levels.
Why: a head that has nothing to do gives its weight to a sink, whose value is short. Plain weights call that its main
interest; lengths show that next to nothing comes of it.
Cost: a few passes over the map, in float64.
Source: Kobayashi et al. 2020 (norm-weighted attention), as a ratio of sums over a text.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float64, Real, Shaped

Map = Float64[np.ndarray, "h n n"]
Pair = tuple[Float64[np.ndarray, " h"], Float64[np.ndarray, " h"]]  # numerator, denominator


def norm_masses(
    weights: Map,
    norms: Real[np.ndarray, "h n"],
    visible: Bool[np.ndarray, "n n"],
    cells: Mapping[str, Bool[np.ndarray, "n n"]],
    movable: Mapping[str, Bool[np.ndarray, " n"]],
    ordinary: Bool[np.ndarray, " n"],
) -> dict[str, Pair]:
    """Name -> (what is moved from the cells, all that is moved); both 0 where the text has no such cell.

    "x_mass" becomes "x_norm_mass", with ".uniform": a head that looks alike at all it may see, its values as they are.
    `movable` are classes of keys that may stand in another order among the `ordinary` ones: ".relabelled".
    """
    everywhere = np.broadcast_to(visible / np.maximum(visible.sum(axis=1, keepdims=True), 1), weights.shape)
    moved, evenly = (each * norms[:, None] for each in (weights, everywhere))
    out: dict[str, Pair] = {}
    for name, chosen in cells.items():
        seen, weighted = chosen & visible, name.replace("_mass", "_norm_mass")
        out[weighted] = part_of(moved, seen, seen.any())
        out[f"{weighted}.uniform"] = part_of(evenly, seen, seen.any())
        if name in movable:
            out[f"{weighted}.relabelled"] = scattered(moved, movable[name], ordinary, seen.any())
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
        seen = chosen & visible
        in_rows = moved[:, seen.any(axis=1)]
        out[name.replace("_mass", "_norm_mass")] = (moved * seen).sum(axis=(1, 2)), in_rows.sum(axis=(1, 2))
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
