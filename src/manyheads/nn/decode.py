"""One new token against many cached ones: the query heads of a group become the rows of one matrix.

A decoded token costs what it costs to read K and V once. A kernel that takes query heads one by one reads each
key/value head again for every head it serves; repeating K and V copies them first. Packed, `[b, h, 1, d]` queries are
`[b, g, h / g, d]`: as many rows as a group has heads, and each key is read once for all of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

LONG_KEYS = 1024  # below it a step is a few calls' overhead, and the fused kernel makes fewest


def decode_one(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k f"],
    scale: float,
    mask: Shaped[Tensor, "#b #h 1 k"] | None,
) -> tuple[Float[Tensor, "b h 1 f"], str]:
    """`(out, because)` for a single query. `mask`: True = may look, or floats added to the scores."""
    num_texts, num_heads, _, dim = q.shape
    groups = k.shape[1]
    rows = q.reshape(num_texts, groups, num_heads // groups, dim)
    mask = None if mask is None else _by_group(mask, groups)
    if q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64) and k.shape[2] >= LONG_KEYS:
        out = _two_products(rows, k, v, scale, mask)
        because = "one query, its group's heads as rows of two matrix products: K and V are read once"
    else:
        wide = max(dim, v.shape[-1])
        width = v.shape[-1]
        rows, k, v = (x if x.shape[-1] == wide else F.pad(x, (0, wide - x.shape[-1])) for x in (rows, k, v))
        out = F.scaled_dot_product_attention(rows, k, v, mask, scale=scale)[..., :width]
        because = "scaled_dot_product_attention, one query, its group's heads as rows: K and V are read once"
    return out.reshape(num_texts, num_heads, 1, out.shape[-1]), because


def _two_products(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    # K times q, not q times K: with so few rows the library reads the tall matrix straight through only from the left.
    scores = (k @ (q * scale).transpose(2, 3)).transpose(2, 3).contiguous()
    if mask is None:
        return scores.softmax(-1) @ v
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.to(scores.dtype)
    top = scores.amax(-1, keepdim=True)
    raised = (scores - torch.where(top == -torch.inf, 0, top)).exp()
    total = raised.sum(-1, keepdim=True)
    return (raised @ v) / torch.where(total > 0, total, 1)


def _by_group(mask: Tensor, groups: int) -> Tensor:
    """The heads of a mask that tells them apart become its rows too; one for all heads is one for all rows."""
    return mask if mask.shape[1] == 1 else mask.reshape(mask.shape[0], groups, -1, mask.shape[-1])
