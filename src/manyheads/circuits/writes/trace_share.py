"""Does a map from tokens to tokens take tokens to themselves? Asked of its eigenvalues, at the width of a head.

A head's circuit over the vocabulary is a matrix tokens x tokens of low rank: `C W_V W_O U^T` for what it writes, and
`C W_Q^T W_K D^T` for what it looks for (rows of C and D stand for tokens). Where its eigenvalues are positive, tokens
meet themselves (and each other). The trace share of Elhage et al. is

    sum of the eigenvalues / sum of their absolute values        1: to themselves, 0: neither, -1: away from themselves

and no matrix of the vocabulary's size is made: the same eigenvalues (but for zeros) are those of
`W_V (C^T U) W_O^T`, as wide as a head.

Chance: the vocabulary of one side shuffled, so that no token meets itself. Each factor keeps its spectrum, only who is
whom is lost. The sum over shuffled tokens tends to a normal matrix of known covariance (Hoeffding 1951), which is drawn
at the width of a head; its share is symmetric about 0.

Source: Elhage et al. 2021, "Detecting copying behavior". Oracle: eigenvalues of the whole matrix.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

CHUNK_TOKENS = 8_192  # of the vocabulary, multiplied at a time
JITTER = 1e-12  # of a covariance's trace, added so that a flat one can be factored


def eigenvalue_score(matrices: Float64[Tensor, "... f f"]) -> Float64[Tensor, "..."]:
    """The sum of the eigenvalues over the sum of their absolute values; 0 where there are none."""
    values = torch.linalg.eigvals(matrices)
    total = values.abs().sum(-1)
    return torch.where(total > 0, values.real.sum(-1) / total.clamp_min(1e-300), 0.0)


class Products(NamedTuple):
    """Sums over the vocabulary: of what stands for a token on either side, and of each side with itself, centred.

    `met`: embeddings with the same token's unembeddings (of matching: queries with keys); `embedded`, `read`: of each.
    """

    met: Float64[Tensor, "m n"]
    embedded: Float64[Tensor, "m m"]
    read: Float64[Tensor, "n n"]

    @staticmethod
    def of(embedding: Float[Tensor, "v m"], unembedding: Float[Tensor, "v n"]) -> Products:
        met, embedded = centred_product(embedding, unembedding), centred_product(embedding, embedding)
        return Products(met, embedded, centred_product(unembedding, unembedding))

    def shuffled(
        self, values: Float64[Tensor, "h f m"], read: Float64[Tensor, "h f n"], draws: int, generator: torch.Generator
    ) -> Float64[Tensor, "draws h f f"]:
        """What `values @ met @ read^T` is where every token meets another, but for a factor that no score sees: normal,
        its rows and columns as correlated as the heads' own matrices make them."""
        rows = _factor(values @ self.embedded @ values.transpose(1, 2))
        columns = _factor(read @ self.read @ read.transpose(1, 2))
        noise = torch.randn(draws, *rows.shape, generator=generator, dtype=torch.float64)
        return rows @ noise @ columns.transpose(1, 2)


def centred_product(left: Float[Tensor, "v m"], right: Float[Tensor, "v n"]) -> Float64[Tensor, "m n"]:
    """`left^T right` of two tables over the vocabulary, either less its mean. Cost: O(v * m * n)."""
    means = [matrix.double().mean(0) for matrix in (left, right)]
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64, device="cpu")
    for begin in range(0, len(left), CHUNK_TOKENS):
        chunk = slice(begin, begin + CHUNK_TOKENS)
        # Centred in float64, multiplied in float32: the product is what takes the time.
        one, other = ((x[chunk].double() - mean).float() for x, mean in zip((left, right), means, strict=True))
        total += (one.T @ other).double()
    return total


def _factor(covariance: Float64[Tensor, "h f f"]) -> Float64[Tensor, "h f f"]:
    # Few embeddings or a narrow reader leave a flat covariance, which has no Cholesky factor without the jitter.
    trace = covariance.diagonal(0, 1, 2).sum(-1)[:, None, None].clamp_min(1e-300)
    return torch.linalg.cholesky(
        covariance + JITTER * trace * torch.eye(covariance.shape[-1], dtype=torch.float64, device="cpu")
    )
