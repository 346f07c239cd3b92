"""Masks of flex attention: a function of places, and the blocks of the map in which it is asked.

torch's compiled kernels skip the blocks that a BlockMask does not list, and ask no function in those that it lists as
full; the uncompiled ones ask the function alone. So the function is asked for every cell, some rows at a time, and
proven to say what the blocks say: a mask on which the two part is refused, not guessed.
Cost: q * k cells once for each mask, the memory of `DENSE_ROWS` rows. Checked on torch 2.13.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from manyheads.errors import ModelError
from manyheads.nn.masks import DENSE_ROWS, Mask

FLEX = "torch.nn.attention.flex_attention"


def is_block_mask(mask: object) -> bool:
    """Whether it is one of flex attention's masks. Imports nothing: who has one has imported it."""
    return FLEX in sys.modules and isinstance(mask, sys.modules[FLEX].BlockMask)


def read_block_mask(block_mask: Any, num_queries: int, num_keys: int) -> Mask:
    """The same as runs of keys. Errors: ModelError where its blocks and its function say different things."""
    parts = []
    for begin in range(0, num_queries, DENSE_ROWS):
        rows = slice(begin, min(begin + DENSE_ROWS, num_queries))
        seen = _asked(block_mask, rows, num_keys)
        listed, full = (cells[..., :num_keys] for cells in _listed(block_mask, rows))
        if not bool((seen == (seen & listed | full)).all()):
            raise ModelError(
                "the model hands flex attention a BlockMask whose blocks and mask_mod say different things, so kernels "
                "differ in what they hide: make it by create_block_mask, or load the model with "
                "attn_implementation='sdpa' or 'eager'."
            )
        parts.append(Mask.from_dense(seen))
    dense = None
    if any(part.dense is not None for part in parts):
        whole = [part.visible(slice(None), slice(None)) for part in parts]
        heads = max(part.shape[1] for part in whole)
        dense = torch.cat([part.expand(-1, heads, -1, -1) for part in whole], 2)
    start, stop = (torch.cat([getattr(part, name) for part in parts], 1) for name in ("start", "stop"))
    return Mask(start, stop, num_keys, dense)


def _asked(block_mask: Any, rows: slice, num_keys: int) -> Bool[Tensor, "b h r k"]:
    """What the mask's function says of some rows."""
    from torch.nn.attention.flex_attention import create_mask

    (texts, heads), device = block_mask.kv_num_blocks.shape[:2], block_mask.kv_num_blocks.device
    return create_mask(
        lambda text, head, row, key: block_mask.mask_mod(text, head, row + rows.start, key),
        *(texts, heads, rows.stop - rows.start, num_keys),
        device=device,
    )


def _listed(block_mask: Any, rows: slice) -> tuple[Bool[Tensor, "b h r k"], Bool[Tensor, "b h r k"]]:
    """Cells of some rows that are in a listed block, and in one that is listed as full."""
    high, wide = block_mask.BLOCK_SIZE
    place = torch.arange(rows.start, rows.stop, device=block_mask.kv_num_blocks.device) // high
    listed = block_mask.to_dense().bool()
    full = torch.zeros_like(listed)
    if block_mask.full_kv_num_blocks is not None:
        alone = (block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        full = type(block_mask).from_kv_blocks(*alone, BLOCK_SIZE=(high, wide)).to_dense().bool()
    listed, full = (blocks[:, :, place].repeat_interleave(wide, 3) for blocks in (listed, full))
    return listed, full
