"""What `attn_mask` and `key_padding_mask` say, whatever they are made of: who may look, and what is added to scores.

| dtype | means |
|---|---|
| bool | by the layer's `mask_true`: "hide" (the default) as in torch's layer, "see" as in torch's function |
| integers 0 and 1 | 1 = may look, 0 = may not, as in transformers' `attention_mask` |
| floats | added to the scores; -inf hides |
"""

# pyright: reportUnnecessaryIsInstance=false
# What people give is checked, whatever its type says.
from __future__ import annotations

import torch
from torch import Tensor

from manyheads.errors import ShapeError

MASK_TRUE = ("hide", "see")


def read_masks(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    shape: tuple[int, int, int, int],
    mask_true: str,
    like: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """`(visible, bias)`, each "#b #h #q k" or None. `shape` is (b, h, q, k), extra keys left out."""
    visible = bias = None
    masks = (("attn_mask", attn_mask, _four_axes), ("key_padding_mask", key_padding_mask, _padding_axes))
    for name, given, axes in masks:
        if given is None:
            continue
        if not isinstance(given, Tensor):
            raise ShapeError(f"{name} is a {type(given).__name__}: give a tensor of booleans, 0 and 1, or floats.")
        mask = axes(given, shape)
        if given.device != like.device:
            raise ShapeError(
                f"{name} is on {given.device}, but the layer and its input are on {like.device}: move it there."
            )
        if given.is_floating_point():
            if not torch.compiler.is_compiling() and given.numel() and not bool((given < torch.inf).all()):
                raise ShapeError(
                    f"{name} holds NaN or +inf, which would make whole rows NaN: floats are added to the scores, and "
                    f"-inf hides."
                )
            bias = mask if bias is None else bias + mask
        else:
            seen = _visible(name, mask, mask_true)
            visible = seen if visible is None else visible & seen
    return visible, bias


def _visible(name: str, mask: Tensor, mask_true: str) -> Tensor:
    if mask.dtype == torch.bool:
        return ~mask if mask_true == "hide" else mask
    if mask.is_complex():
        raise ShapeError(f"{name} is {mask.dtype}: use booleans, integers 0 and 1 (1 = may look), or floats to add.")
    if not torch.compiler.is_compiling() and mask.numel() and not 0 <= int(mask.min()) <= int(mask.max()) <= 1:
        raise ShapeError(
            f"{name} is {mask.dtype} and runs from {int(mask.min())} to {int(mask.max())}: integers are 0 (may not "
            f"look) or 1 (may look). Numbers to add to the scores must be floats."
        )
    return mask == 1


def _four_axes(mask: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """An attn_mask as "#b #h q k": of (q, k), of (b * h, q, k) as nn.MultiheadAttention has it, or of four axes."""
    texts, heads, rows, keys = shape
    got = tuple(mask.shape)
    if got == (rows, keys):
        return mask[None, None]
    if got == (texts * heads, rows, keys):
        return mask.reshape(shape)
    if len(got) == 4 and got[0] in (1, texts) and got[1] in (1, heads) and got[2:] == (rows, keys):
        return mask
    hint = " A mask for each text needs a head axis: attn_mask[:, None]." if got == (texts, rows, keys) else ""
    raise ShapeError(
        f"attn_mask has shape {got}: give (queries, keys) = {(rows, keys)}, (texts * heads, queries, keys) = "
        f"{(texts * heads, rows, keys)}, or {shape}, where texts and heads may be 1; keys count the cached ones.{hint}"
    )


def _padding_axes(mask: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    texts, _, _, keys = shape
    if tuple(mask.shape) != (texts, keys):
        raise ShapeError(
            f"key_padding_mask has shape {tuple(mask.shape)}: give (texts, keys) = {(texts, keys)}, or ({keys},) "
            f"without a batch; keys count the cached ones."
        )
    return mask[:, None, None]


def with_extra(mask: Tensor | None, extra: int, fill: float | bool) -> Tensor | None:
    """The mask with columns for keys that everybody sees."""
    return mask if mask is None or not extra else torch.nn.functional.pad(mask, (0, extra), value=fill)
