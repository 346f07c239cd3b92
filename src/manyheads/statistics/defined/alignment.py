"""How well a cross-attention head aligns what is written with what is heard (or read): how monotonic, how sharp.

A head that aligns moves through the sound as the text goes on, and looks at few frames at a time. Two numbers a head:

    m_i       = sum_j w_ij j / sum_j w_ij          where row i looks, on average, among its keys
    monotonic = Spearman's rank correlation of m_i with i, over the rows: 1 forwards, 0 no order, -1 backwards
    sharp     = mean over rows of 1 - H_i / ln n_i  with H_i = -sum_j p_ij ln p_ij, p_ij = w_ij / sum_j w_ij,
                                                    n_i the keys that row i sees: 1 one key, 0 evenly over all

Equal m_i, to a millionth of all keys, share the mean of their ranks. What is not defined is NaN: the order of fewer
than two rows, or of rows that all look at the same place; the sharpness of rows that see one key. Both come from one
pass over tiles, and no map is held: O(q * k * d) time. Oracle: NumPy on a model's own eager maps.
Source: Spearman 1904 (rank correlation); Pielou 1966 (entropy over its maximum, of which sharpness is the rest to 1).
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from manyheads.errors import ShapeError, StatisticError
from manyheads.recording import Entropy, LayerRecord, Tokens
from manyheads.recording.exact_map.requests import Linear, Mass

RESOLUTION = 1e-6  # of the way from the first key to the last: below it, a difference is rounding, and no order


@dataclass(frozen=True, eq=False)
class Alignment:
    """`monotonic`, -1 to 1, and `sharp`, 0 to 1, of each text and head; NaN where one is not defined."""

    monotonic: Float64[Tensor, "b h"]
    sharp: Float64[Tensor, "b h"]


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

    def places(tokens: Tokens) -> Tensor:
        # From -1/2 to 1/2: small and centred, so that float32 sums keep neighbouring places apart.
        places = torch.arange(num_keys, dtype=torch.float64) / max(num_keys - 1, 1) - 0.5
        return places.expand(tokens.num_texts, -1)

    column = Linear(places)
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
    # Where part of a row's weight goes to no key (sinks in the denominator), the row is divided by what does.
    divisor = torch.where(counted, mass, 1.0)
    means = reduced[column].double() / divisor
    entropy = reduced[Entropy()].double() / divisor + divisor.log()
    several_keys = counted & (visible > 1)[:, None]
    share = 1 - entropy / visible.clamp_min(2).log()[:, None]
    sharp = torch.where(several_keys, share, 0.0).sum(-1) / several_keys.sum(-1)
    monotonic = [
        [_monotonic(row_means[rows]) for row_means, rows in zip(means[text], counted[text], strict=True)]
        for text in range(num_texts)
    ]
    return Alignment(torch.tensor(monotonic, dtype=torch.float64), sharp.clamp(0, 1))


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
