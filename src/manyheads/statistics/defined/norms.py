"""Norm-weighted masses: the share of all that a head *moves* which comes from certain keys.

A weight moves the residual stream by its key's value: `w[i, j] * |v_j W_O|`. A head that rests on a sink gives it
most of its weight, and moves next to nothing with it, so these figures stand beside the plain masses. Ratios of sums:

    offset o:   sum_i w[i, i + o] n[i + o]  /  sum_ij w[i, j] n[j]        with n[j] = |v_j W_O| of this head
    a class C:  sum_i sum_(j in C) w[i, j] n[j]  /  the same

    a match M:  sum_ij w[i, j] n[j] where M matches   /  the same over the rows i that see a match

Offsets and classes: over the texts that hold such a key (the denominator is the whole text's: also of rows that see
none). Numerators and denominators follow from column sums and diagonals that the plain masses need anyhow. Matches
(duplicate, induction) are of few rows, so they are held to those rows; they have no chance levels of their own.

`.uniform`: weights spread evenly over what each row sees, values as they are. `.relabelled`: the text's words shuffled,
each place keeping its value; the exact mean over all shuffles.
Source: Kobayashi et al. 2020. Oracle: `reference.norms`.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, arange, stack

from manyheads.recording import Received
from manyheads.recording.exact_map.requests import MatchReceived, RowsReceived
from manyheads.statistics.defined.masses import (
    BAND,
    CLASSES,
    EVENLY,
    MATCHES,
    OFFSETS,
    Matched,
    Named,
    has_key,
    offset_name,
    offset_place,
    seeing,
)
from manyheads.statistics.statistic import SHARE, Block, Facts, PerText, Statistic, shares_of

KOBAYASHI = "Kobayashi et al. 2020, norm-weighted attention; ratio of sums"
WEIGHTED = tuple(each for each in CLASSES if each.name != "sink")  # sink_norm_mass counts texts without a sink, too
MEANING = "share of what is moved (weight x value norm) that comes from"
CHANCES = {"": "", ".uniform": f" {EVENLY}", ".relabelled": " if the words were shuffled"}


def weighted_name(mass: str) -> str:
    """`previous_mass` -> `previous_norm_mass`."""
    return f"{mass.removesuffix('_mass')}_norm_mass"


def norm_masses() -> list[Statistic]:
    """Every norm-weighted mass with its chance levels: columns of one block, so that what they share is made once."""
    said = {weighted_name(offset_name(offset)): (offset_place(offset), False) for offset in OFFSETS}
    said |= {weighted_name(f"{each.name}_mass"): (each.meaning, each.movable) for each in WEIGHTED}
    columns = [
        (name + chance, f"{MEANING} {meaning}{words}", KOBAYASHI, "chance" if chance else "statistic")
        for name, (meaning, movable) in said.items()
        for chance, words in CHANCES.items()
        if movable or chance != ".relabelled"
    ]

    def compute(facts: Facts) -> tuple[Float[Tensor, "b h c"], Float[Tensor, "b h c"]]:
        found = _masses(facts)
        pairs = [found[name] for name, *_ in columns]
        return stack([pair.num for pair in pairs], -1), stack([pair.den for pair in pairs], -1)

    return shares_of(Block("norm-weighted masses", compute), columns, (Received(), BAND), ("tokens", "values"))


def norm_matches() -> list[Statistic]:
    """The norm-weighted twins of matches between tokens."""
    return [_norm_match(each) for each in MATCHES]


def _norm_match(each: Matched) -> Statistic:
    part, whole = MatchReceived(each.asked), RowsReceived(each.asked)

    def finish(facts: Facts) -> PerText:
        assert facts.value_norms is not None
        norms = facts.value_norms.double()
        return PerText((facts[part] * norms).sum(-1), (facts[whole] * norms).sum(-1))

    name, asks = weighted_name(f"{each.name}_mass"), frozenset({"tokens", "values"})
    meaning = f"{MEANING} {each.meaning}, in rows that see such a key"
    return Statistic(name, "share", SHARE, KOBAYASHI, meaning, lambda _: (part, whole), finish, asks=asks)


def _masses(facts: Facts) -> dict[str, PerText]:
    """Numerators and denominators of one layer, by name."""
    from manyheads.statistics.sinks import evenly  # here: it brings what runs models, and the table is read without

    assert facts.value_norms is not None
    norms = facts.value_norms.double()
    even = facts.once("even keys", lambda: evenly(facts.reduced.mask, facts.tokens).double())
    moved, spread = facts[Received()] * norms, even[:, None] * norms
    share = (1 / facts.visible.clamp_min(1))[:, None]
    place, out = arange(norms.shape[-1]), {}
    for offset in OFFSETS:
        name, rows = weighted_name(offset_name(offset)), has_key(facts, offset)
        there = norms[..., (place + offset).clamp(0, len(place) - 1)] * rows[:, None]  # of each row's key at the offset
        out[name] = _of(facts[BAND][..., OFFSETS.index(offset)] * there, moved, rows)
        out[f"{name}.uniform"] = _of(share * there, spread, rows)
    for each in WEIGHTED:
        out |= _of_class(facts, each, moved, spread)
    return out


def _of_class(
    facts: Facts, each: Named, moved: Float[Tensor, "b h k"], spread: Float[Tensor, "b h k"]
) -> dict[str, PerText]:
    name, rows = weighted_name(f"{each.name}_mass"), seeing(facts, each.members)
    column, ordinary = each.members(facts.tokens).double(), facts.tokens.ordinary.double()
    out = {
        name: _of(moved * column[:, None], moved, rows),
        f"{name}.uniform": _of(spread * column[:, None], spread, rows),
    }
    if each.movable:
        share = (column * ordinary).sum(-1) / ordinary.sum(-1).clamp_min(1)
        placed = ordinary * share[:, None] + column * (1 - ordinary)
        out[f"{name}.relabelled"] = _of(moved * placed[:, None], moved, rows)
    return out


def _of(part: Float[Tensor, "b h k"], whole: Float[Tensor, "b h k"], rows: Bool[Tensor, "b q"]) -> PerText:
    """A part of what is moved over the whole, for the texts that have a row for it."""
    counted = rows.any(-1)[:, None]
    return PerText(part.sum(-1) * counted, whole.sum(-1) * counted)
