"""How well a cross-attention head aligns what is written with what is heard (or read): how monotonic, how sharp.

A head that aligns moves through the sound as the text goes on, and looks at few frames at a time. Two numbers a head,
of a recorded layer (`alignment`) and as statistics of many texts (`measure`):

    m_i       = sum_j w_ij j / sum_j w_ij          where row i looks, on average, among its keys
    monotonic = Spearman's rank correlation of m_i with i, over the rows: 1 forwards, 0 no order, -1 backwards
    sharp     = mean over rows of 1 - H_i / ln n_i  with H_i = -sum_j p_ij ln p_ij, p_ij = w_ij / sum_j w_ij,
                                                    n_i the keys that row i sees: 1 one key, 0 evenly over all

Equal m_i, to a millionth of all keys, share the mean of their ranks. What is not defined is NaN: the order of fewer
than two rows, or of rows that all look at the same place; the sharpness of rows that see one key. Both come from one
pass over tiles, and no map is held: O(q * k * d) time. Oracle: NumPy on a model's own eager maps.

Three more are statistics alone, of a text of q rows that see something and k keys:

    peak_position = mean over rows of p_i / (k - 1)                     with p_i the key of row i's largest weight
    peak_distance = mean over rows of |p_i / (k - 1) - i / (q - 1)|     how far from the diagonal; 0 is on it
    coverage      = mean over keys of min(1, sum_i w_ij)                what was read at least once over, in all

Source: Spearman 1904 (rank correlation); Pielou 1966 (entropy over its maximum, of which sharpness is the rest to 1);
Tachibana et al. 2018, section 3 (distance from the diagonal); Wu et al. 2016, section 7 (coverage).
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from manyheads.base import Json, plain, plural
from manyheads.errors import ShapeError, StatisticError
from manyheads.recording import LayerRecord
from manyheads.recording.exact_map import Entropy, Linear, Mass, Received, Request, Strongest
from manyheads.results import Shown
from manyheads.statistics.defined.masses import uniform
from manyheads.statistics.statistic import CROSS_ONLY, SHARE, Facts, Finish, PerText, Statistic, evenly

RESOLUTION = 1e-6  # of the way from the first key to the last: below it, a difference is rounding, and no order


@dataclass(frozen=True, eq=False)
class Alignment(Shown):
    """`monotonic`, -1 to 1, and `sharp`, 0 to 1, of each text and head; NaN where one is not defined."""

    monotonic: Float64[Tensor, "b h"]
    sharp: Float64[Tensor, "b h"]

    def to_dict(self) -> Json:
        """Plain data for JSON: of each text a number for each head, None where it is not defined."""
        return {"monotonic": plain(self.monotonic), "sharp": plain(self.sharp)}

    def __repr__(self) -> str:
        texts, heads = self.monotonic.shape
        return f"Alignment({plural(texts, 'text')}, {plural(heads, 'head')})"


def alignment(layer: LayerRecord, rows: Bool[Tensor, "b q"] | None = None) -> Alignment:
    """How monotonic and how sharp each head of a cross-attention layer is, text by text.

    Over every real row that sees a key, or over those of them in `rows`: `~layer.tokens.special` leaves out start
    tokens, which align with nothing. Every key that the model sees counts, silence at the end of a sound too.
    Errors: StatisticError for a layer that attends to its own text; ShapeError for `rows` of another shape.
    """
    if not layer.crosses:
        raise StatisticError(
            f"alignment is about cross-attention, and layer {layer.site.module} attends to its own text: take a layer "
            f"of rec.stacks['cross']."
        )
    num_texts, _, num_rows, _ = layer.q.shape
    num_keys = layer.k.shape[2]

    column = Linear(lambda tokens: _places(num_keys).expand(tokens.num_texts, -1))
    reduced = layer.reduce([Mass(), Entropy(), column])
    visible = layer.mask.counts().double().expand(num_texts, -1)
    chosen = visible > 0  # rows past a text's end see nothing
    if rows is not None:
        width = rows.shape[-1]
        if rows.ndim != 2 or len(rows) != num_texts or width > num_rows or width < int(layer.lengths.max()):
            raise ShapeError(f"rows has the shape {tuple(rows.shape)}: give one for each of {(num_texts, num_rows)}.")
        chosen = chosen & torch.nn.functional.pad(rows.cpu(), (0, num_rows - width))
    mass = reduced[Mass()].double()
    counted = chosen[:, None] & (mass > 0)
    sharp = _sharp(reduced[Entropy()].double(), mass, visible, counted)
    return Alignment(_order(reduced[column].double(), mass, counted), (sharp.num / sharp.den).clamp(0, 1))


def alignments() -> list[Statistic]:
    """How a head aligns, as statistics: of cross-attention alone."""
    column = Linear(lambda keys: _places(keys.longest).expand(keys.num_texts, -1))

    def counted(facts: Facts) -> Bool[Tensor, "b h q"]:
        return facts.rows[:, None] & (facts[Mass()] > 0)

    def monotonic(facts: Facts) -> PerText:
        order = _order(facts[column], facts[Mass()], counted(facts))
        return PerText(order.nan_to_num(0.0), (~order.isnan()).double())

    def sharp(facts: Facts) -> PerText:
        return _sharp(facts[Entropy()], facts[Mass()], facts.visible, counted(facts))

    def peak(facts: Facts) -> Float64[Tensor, "b h q"]:
        """The place of each row's strongest key, from 0, the source's first token, to 1, its last."""
        return facts[Strongest()].clamp_min(0) / (facts.keys.lengths.double() - 1).clamp_min(1)[:, None, None]

    def peak_distance(facts: Facts) -> PerText:
        rows = facts.row_index / (facts.tokens.lengths.double() - 1).clamp_min(1)[:, None]
        return facts.over_rows((peak(facts) - rows[:, None]).abs())

    def covered(received: Float64[Tensor, "b h k"], facts: Facts) -> PerText:
        within = torch.where(facts.keys.real[:, None], received.clamp_max(1), 0.0)
        return PerText(within.sum(-1), facts.keys.lengths.double()[:, None])

    def one(
        name: str, unit: str, limits: tuple[float, float], source: str, meaning: str, needs: tuple[Request, ...],
        finish: Finish, by_row: bool = False,
    ) -> Statistic:  # fmt: skip
        """A statistic of cross-attention.

        - `name`: of the statistic.
        - `unit`: of its values.
        - `limits`: the least and the largest value.
        - `source`: who defined it.
        - `meaning`: in words.
        - `needs`: what the pass over tiles is asked for.
        - `finish`: makes the values of the pass's answers.
        - `by_row`: each row's number is its own, wherever it stands.
        """
        return Statistic(
            name=name,
            unit=unit,
            range=limits,
            source=source,
            meaning=meaning,
            needs=lambda _: needs,
            finish=finish,
            maps=CROSS_ONLY,
            by_row=by_row,
        )

    tachibana = "Tachibana et al. 2018, section 3, at the row's strongest key"
    coverage = one(
        "coverage", "share", SHARE, "Wu et al. 2016, section 7", "how much of the source is read at least once over",
        (Received(),), lambda facts: covered(facts[Received()], facts),
    )  # fmt: skip
    return [
        one(
            "monotonic", "rank correlation", (-1.0, 1.0), "Spearman 1904, of mean place with row",
            "whether it goes along the source: 1 forwards, 0 in no order, -1 backwards",
            (Mass(), column), monotonic,
        ),
        one(
            "sharpness", "share", SHARE, "Pielou 1966, 1 - evenness", "1 - entropy / ln(keys): 1 one key, 0 evenly",
            (Mass(), Entropy()), sharp, by_row=True,
        ),
        one(
            "peak_position", "share of the source", SHARE, "first moment", "mean place of the strongest key, 0 to 1",
            (Strongest(),), lambda facts: facts.over_rows(peak(facts)), by_row=True,
        ),
        one(
            "peak_distance", "share of the source", SHARE, tachibana,
            "mean distance of the strongest key from the diagonal",
            (Strongest(),), peak_distance,
        ),
        coverage,
        uniform(coverage, lambda facts: covered(evenly(facts.reduced.mask, facts.keys).double()[:, None], facts)),
    ]  # fmt: skip


def _places(num_keys: int) -> Float64[Tensor, "k"]:
    # From -1/2 to 1/2: small and centred, so that float32 sums keep neighbouring places apart.
    return torch.arange(num_keys, dtype=torch.float64) / max(num_keys - 1, 1) - 0.5


def _sharp(
    entropy: Float64[Tensor, "b h q"],
    mass: Float64[Tensor, "b h q"],
    visible: Float64[Tensor, "b q"],
    counted: Bool[Tensor, "b h q"],
) -> PerText:
    """The sum of the sharpness of the rows that see several keys, and their number."""
    # Where part of a row's weight goes to no key (sinks in the denominator), the row is divided by what does.
    divisor = torch.where(counted, mass, 1.0)
    several_keys = counted & (visible > 1)[:, None]
    share = 1 - (entropy / divisor + divisor.log()) / visible.clamp_min(2).log()[:, None]
    return PerText(torch.where(several_keys, share, 0.0).sum(-1), several_keys.sum(-1).double())


def _order(
    along: Float64[Tensor, "b h q"], mass: Float64[Tensor, "b h q"], counted: Bool[Tensor, "b h q"]
) -> Float64[Tensor, "b h"]:
    """How monotonic each head is, text by text; NaN where it has no order."""
    means = along / torch.where(counted, mass, 1.0)
    orders = [
        [_monotonic(row_means[rows]) for row_means, rows in zip(*of_text, strict=True)]
        for of_text in zip(means, counted, strict=True)
    ]
    return torch.tensor(orders, dtype=torch.float64)


def _monotonic(means: Float64[Tensor, "rows"]) -> float:
    """The correlation of the means' ranks with their order. NaN where there is none."""
    if len(means) < 2:
        return float("nan")
    _, kind, counts = (means / RESOLUTION).round().unique(return_inverse=True, return_counts=True)
    # Ranks from 0; equal values share the mean of theirs.
    ranks = (counts.cumsum(0).double() - (counts.double() + 1) / 2)[kind]
    order = torch.arange(len(means), dtype=torch.float64)
    ranks, order = ranks - ranks.mean(), order - order.mean()
    length = ranks.norm() * order.norm()
    return float((ranks * order).sum() / length) if float(length) > 0 else float("nan")
