"""From the arguments of an attention function to a mask of runs and a rule: how the model's own masks are read.

transformers passes dense masks: booleans (True = may look) under `sdpa`, floats added to the scores under `eager`. Flex
attention has a `BlockMask`: a function of places, and the blocks of the map in which kernels call it. All become a
`Mask`, runs of keys where they are runs and dense where not. A float mask that holds more than "see" and "do not see"
is split into a mask and a bias. Checked on transformers 5.23 and torch 2.13; the guard checks the result on every call.
Cost: O(b * q * k) once for each mask (a BlockMask's function runs on every cell, `DENSE_ROWS` rows at a time).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from manyheads.attention import DENSE_ROWS, Mask, Rule
from manyheads.errors import ModelError

FLEX = "torch.nn.attention.flex_attention"
FLEX_NAME = "flex_attention"  # as transformers calls it
HIDDEN_BELOW = 0.5  # a float mask hides what lies below this share of the dtype's lowest value: sums of two masks too


@dataclass(eq=False)
class MaskReader:
    """Reads masks, each tensor once: all layers of a forward pass get the same one.

    `known` is keyed by the mask's identity and how it was read. An id is given again once its tensor is gone, so every
    entry has a weak reference to the mask, and counts only while that is the mask in hand.
    """

    known: dict[tuple[object, ...], tuple[weakref.ref[object], Mask, Tensor | None]] = field(default_factory=dict)
    without_tensor: dict[tuple[int, int, bool], Mask] = field(default_factory=dict)

    def read(self, attention_mask: object, num_queries: int, num_keys: int, causal: bool) -> tuple[Mask, Tensor | None]:
        """A transformers mask as runs, and a bias where a float mask holds one.

        Errors: ModelError for a mask that is neither dense nor flex attention's, or contradicts itself.
        """
        if attention_mask is None:
            key = (num_queries, num_keys, causal)
            if key not in self.without_tensor:
                # Offset 0: torch's `is_causal` lays its triangle from the
                # upper left, also where there are more keys than queries.
                mask = Mask.causal(num_queries, num_keys, offset=0) if causal else Mask.full(num_queries, num_keys)
                # One entry is enough: layers of one pass share it, and each step of a text being written has its own.
                self.without_tensor = {key: mask}
            return self.without_tensor[key], None
        read_as = num_queries, num_keys
        if (entry := self._known(attention_mask, read_as)) is not None:
            return entry
        # Nothing is imported to tell: whoever has a BlockMask has imported flex attention.
        if FLEX in sys.modules and isinstance(attention_mask, sys.modules[FLEX].BlockMask):
            return self._remember(attention_mask, read_as, read_block_mask(attention_mask, num_queries, num_keys), None)
        if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 4:
            shape = tuple(getattr(attention_mask, "shape", ()))
            raise ModelError(
                f"the model hands its attention a {type(attention_mask).__name__} of shape {shape} as mask; only dense "
                f"masks (text, head, query, key) can be read: load it with attn_implementation='sdpa' or 'eager'."
            )
        # A static cache's mask is longer than the keys, and one row may serve every query: both are brought to size.
        mask, bias = _split(attention_mask[..., :num_keys])
        dense = None if mask.dense is None else mask.dense.expand(-1, -1, num_queries, -1)
        mask = Mask(mask.start.expand(-1, num_queries), mask.stop.expand(-1, num_queries), mask.num_keys, dense)
        bias = None if bias is None else bias.expand(-1, -1, num_queries, -1)
        return self._remember(attention_mask, read_as, mask, bias)

    def plain(
        self, attn_mask: Tensor | None, num_axes: int, num_queries: int, num_keys: int, causal: bool
    ) -> tuple[Mask, Tensor | None]:
        """The same for torch's own function, whose masks may lack axes; `num_axes` is how many its query has."""
        if attn_mask is None:
            return self.read(None, num_queries, num_keys, causal)
        read_as = num_queries, num_keys, num_axes, causal
        if (entry := self._known(attn_mask, read_as)) is not None:
            return entry
        axes = attn_mask.expand(*attn_mask.shape[:-2], num_queries, num_keys)
        axes = four_axes(axes.reshape((1,) * (num_axes - axes.ndim) + axes.shape))
        if causal:
            triangle = Mask.causal(num_queries, num_keys, offset=0)
            visible = triangle.visible(slice(0, num_queries), slice(0, num_keys), device=axes.device)
            # -inf, which `_split` takes for hidden whatever bias stood in the cell.
            axes = axes & visible if axes.dtype == torch.bool else axes.masked_fill(~visible, -torch.inf)
        return self._remember(attn_mask, read_as, *_split(axes))

    def once(
        self, source: object, read_as: tuple[object, ...], read: Callable[[], tuple[Mask, Tensor | None]]
    ) -> tuple[Mask, Tensor | None]:
        """What `read` makes of a call whose layers all get `source`, computed for the first of them."""
        if source is None:
            return read()
        return self._known(source, read_as) or self._remember(source, read_as, *read())

    def _known(self, attention_mask: object, read_as: tuple[object, ...]) -> tuple[Mask, Tensor | None] | None:
        entry = self.known.get((id(attention_mask), *read_as))
        return entry[1:] if entry is not None and entry[0]() is attention_mask else None

    def _remember(
        self, attention_mask: object, read_as: tuple[object, ...], mask: Mask, bias: Tensor | None
    ) -> tuple[Mask, Tensor | None]:
        # Masks of passes that are over are forgotten: a tap may stay open over a whole corpus.
        self.known = {key: entry for key, entry in self.known.items() if entry[0]() is not None}
        self.known[id(attention_mask), *read_as] = (weakref.ref(attention_mask), mask, bias)
        return mask, bias


def read_block_mask(block_mask: Any, num_queries: int, num_keys: int) -> Mask:
    """A BlockMask as runs of keys. Errors: ModelError where its blocks and its function contradict each other.

    torch's compiled kernels skip the blocks that it does not list, and call no function in those that it lists as full;
    the uncompiled ones call the function alone. So the function is computed for every cell, and must agree with the
    blocks: a mask on which the two part is refused, not guessed.
    """
    from torch.nn.attention.flex_attention import create_mask

    (num_texts, num_heads), device = block_mask.kv_num_blocks.shape[:2], block_mask.kv_num_blocks.device
    block_rows, block_keys = block_mask.BLOCK_SIZE
    listed_blocks = block_mask.to_dense().bool()
    full_blocks = torch.zeros_like(listed_blocks)
    if block_mask.full_kv_num_blocks is not None:
        full_only = (block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        full_blocks = type(block_mask).from_kv_blocks(*full_only, BLOCK_SIZE=(block_rows, block_keys)).to_dense().bool()
    parts = []
    for begin in range(0, num_queries, DENSE_ROWS):
        rows = slice(begin, min(begin + DENSE_ROWS, num_queries))
        visible = create_mask(
            lambda text, head, row, key, first=begin: block_mask.mask_mod(text, head, row + first, key),
            *(num_texts, num_heads, rows.stop - rows.start, num_keys),
            device=device,
        )
        block_of_row = torch.arange(rows.start, rows.stop, device=device) // block_rows
        listed, full = (
            blocks[:, :, block_of_row].repeat_interleave(block_keys, 3)[..., :num_keys]
            for blocks in (listed_blocks, full_blocks)
        )
        if not bool((visible == (visible & listed | full)).all()):
            raise ModelError(
                "the model hands flex attention a BlockMask whose blocks and mask_mod say different things, so kernels "
                "differ in what they hide: make it by create_block_mask, or load the model with "
                "attn_implementation='sdpa' or 'eager'."
            )
        parts.append(Mask.from_dense(visible))
    dense = None
    if any(part.dense is not None for part in parts):
        cells = [part.visible(slice(None), slice(None), device=device) for part in parts]
        # A block of rows in which all heads agree has one plane,
        # another may have one a head: widened, they can be joined.
        most_heads = max(part.shape[1] for part in cells)
        dense = torch.cat([part.expand(-1, most_heads, -1, -1) for part in cells], 2)
    start, stop = (torch.cat([getattr(part, name) for part in parts], 1) for name in ("start", "stop"))
    return Mask(start, stop, num_keys, dense)


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
    # Not by equality with the lowest value: where a padding and a causal mask are added, cells hold twice it, or -inf.
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
    """Whether a call without a mask is causal: `sdpa` asks the module, others add the mask they get and no more."""
    # A single row is a decoded token, which sees all of its cache:
    # taken as causal from the upper left, it would see one key.
    if implementation in ("eager", FLEX_NAME) or num_queries <= 1:
        return False
    is_causal = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
