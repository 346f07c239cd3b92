"""From the arguments of a transformers attention function to a mask of runs and a rule.

transformers hands masks over dense: booleans (True = may look) under `sdpa`, floats added to the scores under
`eager`. Both are turned into runs, and proven to be runs; so are flex attention's masks (`flexmasks`). A float mask
that holds more than "see" and "do not see" is split into a mask and a bias. Checked on transformers 5.23; the guard
checks the result on every call.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from manyheads.errors import ModelError
from manyheads.nn import DENSE_ROWS, Mask, Rule

# ---------------------------------------------------------------------------------------------------------------------
# Masks of flex attention: a function of places, and the blocks of the map in which it is asked.
#
# torch's compiled kernels skip the blocks that a BlockMask does not list, and ask no function in those that it lists as
# full; the uncompiled ones ask the function alone. So the function is asked for every cell, some rows at a time, and
# proven to say what the blocks say: a mask on which the two part is refused, not guessed.
# Cost: q * k cells once for each mask, the memory of `DENSE_ROWS` rows. Checked on torch 2.13.


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


FLEX_NAME = "flex_attention"  # as transformers calls it
HIDDEN_BELOW = 0.5  # a float mask hides what lies below this share of the dtype's lowest value: sums of two masks too


@dataclass(eq=False)
class MaskReader:
    """Reads masks, each tensor once: all layers of a forward pass are handed the same one."""

    known: dict[tuple[object, ...], tuple[weakref.ref[Any], Mask, Tensor | None]] = field(default_factory=dict)
    made: dict[tuple[int, int, bool], Mask] = field(default_factory=dict)

    def read(self, attention_mask: Any, num_queries: int, num_keys: int, causal: bool) -> tuple[Mask, Tensor | None]:
        """The mask as runs, and a bias where a float mask holds one."""
        if attention_mask is None:
            key = (num_queries, num_keys, causal)
            if key not in self.made:
                make = Mask.causal(num_queries, num_keys, offset=0) if causal else Mask.full(num_queries, num_keys)
                self.made = {key: make}
            return self.made[key], None
        read_as = num_queries, num_keys
        if (found := self._known(attention_mask, read_as)) is not None:
            return found
        if is_block_mask(attention_mask):
            return self._keep(attention_mask, read_as, read_block_mask(attention_mask, num_queries, num_keys), None)
        if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 4:
            shape = tuple(getattr(attention_mask, "shape", ()))
            raise ModelError(
                f"the model hands its attention a {type(attention_mask).__name__} of shape {shape} as mask; only dense "
                f"masks (text, head, query, key) can be read: load it with attn_implementation='sdpa' or 'eager'."
            )
        mask, bias = _split(attention_mask[..., :num_keys])
        dense = None if mask.dense is None else mask.dense.expand(-1, -1, num_queries, -1)
        mask = Mask(mask.start.expand(-1, num_queries), mask.stop.expand(-1, num_queries), mask.num_keys, dense)
        bias = None if bias is None else bias.expand(-1, -1, num_queries, -1)
        return self._keep(attention_mask, read_as, mask, bias)

    def plain(
        self, attn_mask: Tensor | None, num_axes: int, num_queries: int, num_keys: int, causal: bool
    ) -> tuple[Mask, Tensor | None]:
        """The same of torch's own function, whose masks may lack axes; `num_axes` is how many its query has."""
        if attn_mask is None:
            return self.read(None, num_queries, num_keys, causal)
        read_as = num_queries, num_keys, num_axes, causal
        if (found := self._known(attn_mask, read_as)) is not None:
            return found
        axes = attn_mask.expand(*attn_mask.shape[:-2], num_queries, num_keys)
        axes = four_axes(axes.reshape((1,) * (num_axes - axes.ndim) + axes.shape))
        if causal:
            seen = Mask.causal(num_queries, num_keys, offset=0).visible(slice(0, num_queries), slice(0, num_keys))
            axes = axes & seen if axes.dtype == torch.bool else axes.masked_fill(~seen, -torch.inf)
        return self._keep(attn_mask, read_as, *_split(axes))

    def _known(self, attention_mask: Any, read_as: tuple[object, ...]) -> tuple[Mask, Tensor | None] | None:
        """What was read of it, for such calls: one mask of a row may serve queries of several texts."""
        found = self.known.get((id(attention_mask), *read_as))
        return found[1:] if found is not None and found[0]() is attention_mask else None

    def _keep(
        self, attention_mask: Any, read_as: tuple[object, ...], mask: Mask, bias: Tensor | None
    ) -> tuple[Mask, Tensor | None]:
        self.known = {key: entry for key, entry in self.known.items() if entry[0]() is not None}
        self.known[id(attention_mask), *read_as] = (weakref.ref(attention_mask), mask, bias)
        return mask, bias


def four_axes(x: Tensor) -> Tensor:
    """(text, head, position, width): what torch's function takes as any number of leading axes.

    Three axes are texts with one head each, as torch's documentation reads them; of more than four, the leading ones
    are texts, one after another.
    """
    if x.ndim < 4:
        return x.reshape(*x.shape[:-2], *(1,) * (4 - x.ndim), *x.shape[-2:])
    return x if x.ndim == 4 else x.reshape(-1, *x.shape[-3:])


def _split(attention_mask: Tensor) -> tuple[Mask, Tensor | None]:
    """Visible cells and what is added to them (None where that is zero everywhere)."""
    if attention_mask.dtype == torch.bool:
        return Mask.from_dense(attention_mask), None
    visible = attention_mask > HIDDEN_BELOW * torch.finfo(attention_mask.dtype).min
    bias = torch.where(visible, attention_mask, 0)
    return Mask.from_dense(visible), bias if bool(bias.any()) else None


def read_rule(query: Tensor, kwargs: Mapping[str, Any], bias: Tensor | None) -> Rule:
    """Scale, softcap, sinks and bias from the keywords that transformers' attention functions understand."""
    scale = kwargs.get("scaling")
    sinks = kwargs.get("s_aux")
    position_bias = kwargs.get("position_bias")
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    return Rule(
        scale=float(query.shape[-1] ** -0.5 if scale is None else scale),
        softcap=kwargs.get("softcap"),
        sinks=None if sinks is None else sinks.detach().reshape(-1),
        bias=bias,
    )


def is_causal_without_mask(
    implementation: str, module: torch.nn.Module, num_queries: int, kwargs: Mapping[str, Any]
) -> bool:
    """Whether a call without a mask is causal: `sdpa` asks the module, others add what they are given and no more."""
    if implementation in ("eager", FLEX_NAME) or num_queries <= 1:
        return False
    asked = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if asked is None else asked)
