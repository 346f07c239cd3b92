"""The shape of attention, whatever the words: how spread, how far, how peaked, how large its logits, what it moves.

Oracle: `reference.statistics`. Entropies are in nats, distances in tokens.

What a head moves are norm-weighted masses: the share of all that it *moves* which comes from certain keys. A weight
moves the residual stream by its key's value: `w[i, j] * |v_j W_O|`. A head that rests on a sink gives it most of its
weight, and moves next to nothing with it, so these figures stand beside the plain masses. Ratios of sums:

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

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, stack
from torch.nn.functional import pad

from manyheads.attention import LargestScores, largest_scores
from manyheads.errors import StatisticError
from manyheads.recording.exact_map import (
    Distance,
    Entropy,
    KeySum,
    Mass,
    MatchReceived,
    Maximum,
    Received,
    Request,
    RowsReceived,
    Square,
)
from manyheads.statistics.defined import masses
from manyheads.statistics.defined.masses import uniform
from manyheads.statistics.statistic import (
    ANY_MAP,
    SELF_ONLY,
    SHARE,
    Block,
    Facts,
    PerText,
    Statistic,
    evenly,
    row_count,
    shares_of,
)

ANY = (0.0, math.inf)
KIMI = "Kimi K2 2025, section 2.1 (QK-clip)"
ON_PLACES = KeySum(
    lambda tokens: torch.arange(tokens.longest, dtype=torch.float64, device="cpu").expand(tokens.num_texts, -1)
)
Row = Callable[[Facts], Float[Tensor, "b h q"]]


def row_mean(
    name: str,
    unit: str,
    limits: tuple[float, float],
    source: str,
    meaning: str,
    row: Row,
    request: Request,
    even: Row | None,
    by_row: bool = True,
) -> list[Statistic]:
    """The mean over rows of one number a row, and its value under even spread where the two can differ.

    - `name`: of the statistic.
    - `unit`: of its values.
    - `limits`: the least and the largest value.
    - `source`: who defined it.
    - `meaning`: in words.
    - `row`: the number of each row, from the pass's answers.
    - `request`: what the pass over tiles is asked for.
    - `even`: the same of an even spread; None: there is no such level.
    - `by_row`: each row's number is its own, wherever it stands, so that rows may be sampled.
    """

    def finish(facts: Facts) -> PerText:
        return facts.over_rows(row(facts))

    maps = ANY_MAP if by_row else SELF_ONLY  # what depends on a row's own place means nothing among other tokens
    mean = Statistic(
        name=name,
        unit=unit,
        range=limits,
        source=source,
        meaning=meaning,
        needs=lambda _: (request,),
        finish=finish,
        by_row=by_row,
        maps=maps,
    )
    return [mean] if even is None else [mean, uniform(mean, lambda facts: facts.over_rows(even(facts)))]


def spread() -> list[Statistic]:
    """Entropy and its kin."""
    return [
        *row_mean(
            "entropy", "nats", ANY, "Clark et al. 2019, section 3.3", "mean entropy of a row's weights",
            lambda f: f[Entropy()], Entropy(), lambda f: f.visible.clamp_min(1).log()[:, None],
        ),
        *row_mean(
            "effective_keys", "keys", ANY, "exp of the entropy", "how many keys a row reads, as exp(entropy)",
            lambda f: f[Entropy()].exp(), Entropy(), lambda f: f.visible[:, None],
        ),
        *row_mean(
            "max_weight", "share", SHARE, "Voita et al. 2019, confidence", "a row's largest weight, mean (confidence)",
            lambda f: f[Maximum()], Maximum(), lambda f: 1 / f.visible.clamp_min(1)[:, None],
        ),
        *row_mean(
            "sum_of_squares", "share", SHARE, "inverse participation ratio", "mean of a row's sum of squared weights",
            lambda f: f[Square()], Square(), lambda f: 1 / f.visible.clamp_min(1)[:, None],
        ),
        *row_mean(
            "missing_mass", "share", SHARE, "gpt-oss, sinks in the denominator", "weight that goes to no key at all",
            lambda f: 1 - f[Mass()], Mass(), None,
        ),
    ]  # fmt: skip


def places() -> list[Statistic]:
    """Where in the text, and how far away. Signed distances and positions follow from column sums."""
    vig = "Vig and Belinkov 2019, mean attention distance"

    def position(facts: Facts) -> PerText:
        scale = (facts.keys.lengths.double() - 1).clamp_min(1)[:, None, None]
        return PerText((facts[Received()] * facts.key_index / scale).sum(-1), row_count(facts.rows))

    def signed(facts: Facts) -> PerText:
        """sum_i sum_j w (j - i): the position of a row is taken with the row's own mass."""
        of_rows = (facts[Mass()] * facts.row_index).sum(-1)
        return PerText(facts[ON_PLACES] - of_rows, row_count(facts.rows))

    def even_position(facts: Facts) -> PerText:
        scale = (facts.keys.lengths.double() - 1).clamp_min(1)[:, None]
        return facts.over_rows((_mean_key(facts) / scale)[:, None])

    def even_signed(facts: Facts) -> PerText:
        return facts.over_rows((_mean_key(facts) - facts.row_index)[:, None])

    mean_position = Statistic(
        name="mean_position", unit="share of the text", range=SHARE, source="first moment",
        meaning="mean position of what is read, 0 start to 1 end",
        needs=lambda _: (Received(),), finish=position, maps=ANY_MAP,
    )  # fmt: skip
    signed_distance = Statistic(
        name="signed_distance", unit="tokens", range=(-math.inf, math.inf), source=vig,
        meaning="mean of key minus query place: negative looks back",
        needs=lambda _: (ON_PLACES, Mass()), finish=signed,
    )  # fmt: skip
    return [
        mean_position,
        uniform(mean_position, even_position),
        signed_distance,
        uniform(signed_distance, even_signed),
        *row_mean(
            "distance", "tokens", ANY, vig, "mean distance of what is read",
            lambda f: f[Distance()], Distance(), _mean_distance, by_row=False,
        ),
    ]  # fmt: skip


def _mean_key(facts: Facts) -> Float[Tensor, "b q"]:
    """The mean position of the keys that a row sees."""
    return facts.uniform(facts.key_index[None].expand(facts.rows.shape[0], -1))


def _mean_distance(facts: Facts) -> Float[Tensor, "b one q"]:
    """The mean |j - i| over the keys that a row sees: runs are sums of two arithmetic series."""
    mask = facts.reduced.mask
    if mask.dense is not None:
        distance = (facts.row_index[None] - facts.row_index[:, None]).abs()
        seen_by_heads = mask.dense.double().mean(1)
        return ((seen_by_heads * distance).sum(-1) / seen_by_heads.sum(-1).clamp_min(1))[:, None]
    start, stop = mask.start.double(), mask.stop.double()
    row = facts.row_index.clamp_min(0)
    # Keys below the row and keys above it, each as a long series less the short one that the run leaves out.
    below = _series(row - start + 1) - _series((row - stop + 1).clamp_min(0))
    above = _series(stop - row) - _series((start - row).clamp_min(0))
    total = below.clamp_min(0) * (start <= row) + above.clamp_min(0) * (stop > row)
    return (total / (stop - start).clamp_min(1)).expand(facts.rows.shape)[:, None]


def _series(count: Tensor) -> Tensor:
    """0 + 1 + ... + (count - 1), for counts of 0 and more."""
    count = count.clamp_min(0)
    return count * (count - 1) / 2


def effects() -> list[Statistic]:
    """The most popular key, and how much of what moves the residual stream comes from the sinks."""

    def heaviest(facts: Facts) -> PerText:
        share = facts[Received()].amax(-1) / row_count(facts.rows).clamp_min(1)
        return PerText(share, (facts.tokens.lengths > 0).double()[:, None])

    def sink_norm(facts: Facts) -> PerText:
        assert facts.value_norms is not None
        moved = facts[Received()] * facts.value_norms.double()
        return PerText((moved * facts.tokens.sink[:, None]).sum(-1), moved.sum(-1))

    return [
        Statistic(
            name="heaviest_key", unit="share", range=SHARE, source="column sums",
            meaning="share of all attention that the most popular key receives",
            needs=lambda _: (Received(),), finish=heaviest, maps=ANY_MAP,
        ),
        Statistic(
            name="sink_norm_mass", unit="share", range=SHARE, source=KOBAYASHI,
            meaning="share of what is moved (weight x value norm) due to sinks",
            needs=lambda _: (Received(),), finish=sink_norm, asks=frozenset({"tokens", "sinks", "values"}),
        ),
    ]  # fmt: skip


def logits() -> list[Statistic]:
    """The largest logit of any text, by a search that reads few rows (`attention.largest_logits`) and no tiles."""

    def largest(facts: Facts, uncapped: bool) -> LargestScores:
        known: LargestScores | None = facts.of_layer.get("largest scores")
        # Before softcap and bias costs more rows, which also give what is after them.
        if known is None or (uncapped and known.uncapped is None):
            layer = facts.layer
            assert layer is not None, "a statistic of scores is measured where q and k are"
            known = largest_scores(layer.q, layer.k, layer.lse, layer.mask, layer.rule, uncapped=uncapped)
            facts.of_layer["largest scores"] = known
        return known

    def before_softcap(facts: Facts) -> Float[Tensor, "b h"]:
        values = largest(facts, True).uncapped
        assert values is not None, "it was asked for"
        return values

    def unscaled(facts: Facts) -> Float[Tensor, "b h"]:
        assert facts.layer is not None, "a statistic of scores is measured where q and k are"
        scale = facts.layer.rule.scale
        if not scale > 0:
            raise StatisticError(
                f"max_logit_unscaled divides by the scale of the scores, and a layer of this model has {scale}: leave "
                f"it out, and take max_logit_uncapped."
            )
        return before_softcap(facts) / scale

    def of(name: str, meaning: str, value: Callable[[Facts], Float[Tensor, "b h"]]) -> Statistic:
        def finish(facts: Facts) -> PerText:
            values = value(facts).double().cpu()
            # Not "above": NaN is a value, which is refused for all statistics in one place.
            has_one = values != -torch.inf
            is_shared = bool((has_one == has_one[:, :1]).all())
            return PerText(torch.where(has_one, values, 0.0), (has_one[:, :1] if is_shared else has_one).double())

        return Statistic(
            name=name,
            unit="logit",
            range=(-math.inf, math.inf),
            source=KIMI,
            meaning=meaning,
            needs=lambda _: (),
            finish=finish,
            maps=ANY_MAP,
            maximum=True,
        )

    return [
        of("max_logit", "largest logit of any text, as the softmax sees it", lambda f: largest(f, False).finished),
        of("max_logit_uncapped", "largest scale * q.k of any text, before softcap and bias", before_softcap),
        of("max_logit_unscaled", "largest q.k of any text, before the scale as well", unscaled),
    ]


KOBAYASHI = "Kobayashi et al. 2020, norm-weighted attention; ratio of sums"
# Not the sinks: sink_norm_mass counts texts without a sink as well.
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
    even = facts.cached("even keys", lambda: evenly(facts.reduced.mask, facts.tokens).double())
    moved, spread = facts[Received()] * norms, even[:, None] * norms
    moved_in_all, spread_in_all = moved.sum(-1), spread.sum(-1)
    even_share = facts.cached("even share", lambda: (1 / facts.visible.clamp_min(1))[:, None])
    reach, num_keys, out = max(masses.OFFSETS), norms.shape[-1], {}
    padded = pad(norms, (reach, reach))  # a row's key at an offset that is not there counts as 0
    for offset in masses.OFFSETS:
        name, rows = weighted_name(masses.offset_name(offset)), masses.has_key(facts, offset)
        texts = facts.cached((name, "texts"), lambda rows=rows: rows.any(-1)[:, None])
        # The norm of each row's key at this offset, of rows that see it.
        key_norms = padded[..., reach + offset : reach + offset + num_keys] * rows[:, None]
        out[name] = _ratio(masses.at_offset(facts, offset) * key_norms, moved_in_all, texts)
        out[f"{name}.uniform"] = _ratio(even_share * key_norms, spread_in_all, texts)
    for group in WEIGHTED:
        name = weighted_name(f"{group.name}_mass")
        texts, column, placed = facts.cached((name, "columns"), lambda group=group: _columns(facts, group))
        out[name] = _ratio(moved * column, moved_in_all, texts)
        out[f"{name}.uniform"] = _ratio(spread * column, spread_in_all, texts)
        if group.movable:
            out[f"{name}.relabelled"] = _ratio(moved * placed, moved_in_all, texts)
    return out


def _columns(
    facts: Facts, group: masses.TokenClass
) -> tuple[Bool[Tensor, "b one"], Float[Tensor, "b one k"], Float[Tensor, "b one k"]]:
    """The texts that have a row for a class of tokens; its keys, and its share of each key if words were shuffled."""
    texts = masses.seeing(facts, group.members).any(-1)[:, None]
    column, ordinary = group.members(facts.tokens).double(), facts.tokens.ordinary.double()
    share = (column * ordinary).sum(-1) / ordinary.sum(-1).clamp_min(1)
    placed = ordinary * share[:, None] + column * (1 - ordinary)
    return texts, column[:, None], placed[:, None]


def _ratio(part: Float[Tensor, "b h k"], total: Float[Tensor, "b h"], texts: Bool[Tensor, "b one"]) -> PerText:
    """A part of what is moved over all of it, for the texts that have a row for it."""
    return PerText(part.sum(-1) * texts, total * texts)


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
        return Statistic(
            name=name,
            unit="share",
            range=SHARE,
            source=KOBAYASHI,
            meaning=meaning,
            needs=lambda _: (on_match, on_any),
            finish=finish,
            asks=asks,
        )

    return [statistic(match) for match in masses.MATCHES]
