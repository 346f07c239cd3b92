"""ALiBi: no positions in the tokens; each head's scores fall with distance instead, at a slope of its own.

Source: Press et al. 2022, section 3. Cost: the bias of all heads, O(h * q * k), made for each call.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def alibi_slopes(num_heads: int) -> Float[Tensor, "h"]:
    """The paper's slopes: powers of 2^(-8/h), and for h no power of two those of the next ones, interleaved."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(num_heads - power)]
    return torch.tensor(slopes, dtype=torch.float32)


def alibi_bias(slopes: Float[Tensor, "h"], num_queries: int, num_keys: int) -> Float[Tensor, "1 h q k"]:
    """`-slope * |i - j|`, query i standing at position `i + K - Q`: in a causal layer, how far back a key lies."""
    query = torch.arange(num_queries, device=slopes.device)[:, None] + num_keys - num_queries
    distance = (query - torch.arange(num_keys, device=slopes.device)).abs()
    return -slopes[None, :, None, None] * distance
