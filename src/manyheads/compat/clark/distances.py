"""How differently two heads attend: Jensen-Shannon divergence between their rows, for all pairs of heads.

JS(p, q) is H((p + q) / 2) - (H(p) + H(q)) / 2, and that is what is summed, cell by cell, so one logarithm a pair and
cell is all it takes. Weights are smoothed first, and the sums never divided: their script's name says average, it
gives sums over rows and texts. Source: section 6, `head_distances.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from manyheads.compat.clark.general import Texts, reads
from manyheads.compat.inputs import BLOCK_CELLS, Read, heads_of
from manyheads.errors import TextError
from manyheads.heads import Head

UNIFORM_SHARE = 0.001  # that smoothing mixes in


@dataclass(frozen=True, eq=False)
class HeadDistances:
    """`sums[i, j]`, in nats: between `heads[i]` and `heads[j]`, over all rows of all texts, as their script has it."""

    heads: tuple[Head, ...]
    sums: Float64[Tensor, "h h"]
    num_rows: int
    num_texts: int

    @property
    def means(self) -> Float64[Tensor, "h h"]:
        """A row's divergence, 0 to ln 2: what does not grow with the corpus."""
        return self.sums / self.num_rows


def head_distances(lm_or_recording: Any, texts: Texts | None = None) -> HeadDistances:
    """The divergences between all pairs of heads of all layers.

    Cost: a forward pass a text, and pairs x n^2 logarithms, a block of rows of all heads in memory (144 heads, 128
    tokens: some seconds a text). Errors: as `attention_masses`.
    """
    sums, num_rows, num_texts = torch.zeros(0, 0), 0, 0
    heads: tuple[Head, ...] = ()
    for read, _ in reads(lm_or_recording, texts):
        heads = heads_of(read.layers)
        found = _of_text(read, len(heads))
        sums = sums + found if num_texts else found
        num_rows, num_texts = num_rows + len(read.ids), num_texts + 1
    if not num_texts:
        raise TextError("no text was given: give at least one.")
    return HeadDistances(heads, sums, num_rows, num_texts)


def _of_text(read: Read, num_heads: int) -> Float64[Tensor, "h h"]:
    length, out = len(read.ids), torch.zeros(num_heads, num_heads, dtype=torch.float64)
    step = max(1, BLOCK_CELLS // (num_heads * length))
    for row in range(0, length, step):
        rows = slice(row, min(row + step, length))
        block = torch.cat([layer.weights(None, rows, None, read.text) for layer in read.layers]).double()
        block = ((1 - UNIFORM_SHARE) * block + UNIFORM_SHARE / length).flatten(1)
        own = _entropy(block)
        for head in range(num_heads):
            between = _entropy((block[head] + block[head:]) / 2) - (own[head] + own[head:]) / 2
            out[head, head:] += between
            out[head + 1 :, head] += between[1:]
    return out


def _entropy(weights: Float64[Tensor, "h cells"]) -> Float64[Tensor, "h"]:
    return -torch.xlogy(weights, weights).sum(-1)
