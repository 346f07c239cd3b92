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
Source: Kobayashi et al. 2020. Oracle: `reference.statistics`.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, arange, stack

from manyheads.recording import Received
from manyheads.recording.exact_map.requests import MatchReceived, RowsReceived
from manyheads.statistics.defined import masses
from manyheads.statistics.statistic import SHARE, Block, Facts, PerText, Statistic, evenly, shares_of

KOBAYASHI = "Kobayashi et al. 2020, norm-weighted attention; ratio of sums"
# Not the sinks: sink_norm_mass counts texts without a sink, too.
WEIGHTED = tuple(group for group in masses.CLASSES if group.name != "sink")
MEANING = "share of what is moved (weight x value norm) that comes from"
CHANCES = {"": "", ".uniform": f" {masses.EVENLY}", ".relabelled": " if the words were shuffled"}


def weighted_name(mass: str) -> str:
    """`previous_mass` -> `previous_norm_mass`."""
    return f"{mass.removesuffix('_mass')}_norm_mass"


def norm_masses() -> list[Statistic]:
    """Every norm-weighted mass with its chance levels: columns of one block, so that shared parts are computed once."""
    offsets = {masses.offset_name(offset): masses.offset_place(offset) for offset in masses.OFFSETS}
    meanings = {weighted_name(name): (place, False) for name, place in offsets.items()}
    meanings |= {weighted_name(f"{group.name}_mass"): (group.meaning, group.movable) for group in WEIGHTED}
    columns = [
        (name + chance, f"{MEANING} {meaning}{words}", KOBAYASHI, "chance" if chance else "statistic")
        for name, (meaning, movable) in meanings.items()
        for chance, words in CHANCES.items()
        if movable or chance != ".relabelled"
    ]

    def compute(facts: Facts) -> tuple[Float[Tensor, "b h c"], Float[Tensor, "b h c"]]:
        by_name = offset_and_class_shares(facts)
        pairs = [by_name[name] for name, *_ in columns]
        return stack([pair.num for pair in pairs], -1), stack([pair.den for pair in pairs], -1)

    return shares_of(Block("norm-weighted masses", compute), columns, (Received(), masses.BAND), ("tokens", "values"))


def offset_and_class_shares(facts: Facts) -> dict[str, PerText]:
    """Numerators and denominators of one layer's offsets and classes, by name."""
    assert facts.value_norms is not None
    norms = facts.value_norms.double()
    even = facts.once("even keys", lambda: evenly(facts.reduced.mask, facts.tokens).double())
    moved, spread = facts[Received()] * norms, even[:, None] * norms
    even_share = (1 / facts.visible.clamp_min(1))[:, None]
    place, out = arange(norms.shape[-1]), {}
    for offset in masses.OFFSETS:
        name, rows = weighted_name(masses.offset_name(offset)), masses.has_key(facts, offset)
        # The norm of each row's key at this offset. Rows without such a key read some other place and count as 0.
        key_norms = norms[..., (place + offset).clamp(0, len(place) - 1)] * rows[:, None]
        out[name] = _ratio(facts[masses.BAND][..., masses.OFFSETS.index(offset)] * key_norms, moved, rows)
        out[f"{name}.uniform"] = _ratio(even_share * key_norms, spread, rows)
    for group in WEIGHTED:
        name, rows = weighted_name(f"{group.name}_mass"), masses.seeing(facts, group.members)
        column, ordinary = group.members(facts.tokens).double(), facts.tokens.ordinary.double()
        out[name] = _ratio(moved * column[:, None], moved, rows)
        out[f"{name}.uniform"] = _ratio(spread * column[:, None], spread, rows)
        if group.movable:
            share = (column * ordinary).sum(-1) / ordinary.sum(-1).clamp_min(1)
            placed = ordinary * share[:, None] + column * (1 - ordinary)
            out[f"{name}.relabelled"] = _ratio(moved * placed[:, None], moved, rows)
    return out


def _ratio(part: Float[Tensor, "b h k"], total: Float[Tensor, "b h k"], rows: Bool[Tensor, "b q"]) -> PerText:
    """A part of what is moved over all of it, for the texts that have a row for it."""
    counts = rows.any(-1)[:, None]
    return PerText(part.sum(-1) * counts, total.sum(-1) * counts)


def norm_matches() -> list[Statistic]:
    """The norm-weighted counterparts of matches between tokens."""

    def statistic(match: masses.Matched) -> Statistic:
        on_match, on_any = MatchReceived(match.request), RowsReceived(match.request)

        def finish(facts: Facts) -> PerText:
            assert facts.value_norms is not None
            norms = facts.value_norms.double()
            return PerText((facts[on_match] * norms).sum(-1), (facts[on_any] * norms).sum(-1))

        name, asks = weighted_name(f"{match.name}_mass"), frozenset({"tokens", "values"})
        meaning = f"{MEANING} {match.meaning}, in rows that see such a key"
        return Statistic(name, "share", SHARE, KOBAYASHI, meaning, lambda _: (on_match, on_any), finish, asks=asks)

    return [statistic(match) for match in masses.MATCHES]
