"""What can be wrong with the arguments that build a layer; each message names the argument, its value, and a remedy."""

# pyright: reportUnnecessaryIsInstance=false
# What people give is checked, whatever its type says.
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from manyheads.base import check_groups, divisors
from manyheads.errors import ShapeError
from manyheads.nn.layer_inputs import MASK_TRUE
from manyheads.nn.positions import Rope
from manyheads.nn.projections import LAYOUTS, Sizes
from manyheads.nn.scores import check_softcap


def read_sizes(options: Mapping[str, Any]) -> Sizes:
    """The sizes that a constructor's arguments make. Errors: ShapeError."""
    _counts(options)
    embed_dim, num_heads = options["embed_dim"], options["num_heads"]
    num_kv_heads = num_heads if options["num_kv_heads"] is None else options["num_kv_heads"]
    check_groups(num_heads, num_kv_heads)
    head_dim = options["head_dim"]
    if head_dim is None:
        if embed_dim % num_heads:
            raise ShapeError(
                f"{embed_dim=} is not a multiple of {num_heads=}: say head_dim=, or use one of {divisors(embed_dim)} "
                f"heads."
            )
        head_dim = embed_dim // num_heads
    _numbers(options, num_heads)
    kdim, vdim = (embed_dim if options[name] is None else options[name] for name in ("kdim", "vdim"))
    biases = tuple(
        options["bias"] if options[f"{name}_bias"] is None else options[f"{name}_bias"]
        for name in ("q", "k", "v", "out")
    )
    layout = _layout(options, (kdim, vdim) == (embed_dim, embed_dim), len(set(biases[:3])) == 1)
    v_head_dim = options["v_head_dim"] or head_dim
    return Sizes(num_heads, num_kv_heads, head_dim, v_head_dim, kdim, vdim, biases, layout)


def _counts(options: Mapping[str, Any]) -> None:
    dtype = options.get("dtype")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ShapeError(f"{dtype=} is no dtype for weights: use torch.float32, bfloat16, float16 or float64.")
    if isinstance(options["num_kv_heads"], float):
        raise ShapeError(
            f"num_kv_heads={options['num_kv_heads']} is no count: where nn.MultiheadAttention has dropout third, here "
            f"stands num_kv_heads. Write dropout={options['num_kv_heads']}."
        )
    for name in ("embed_dim", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "kdim", "vdim", "window"):
        value = options[name]
        if value is None and name not in ("embed_dim", "num_heads"):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ShapeError(f"{name}={value!r} is no count: use a whole number, 1 or more.")


def _numbers(options: Mapping[str, Any], num_heads: int) -> None:
    dropout, softcap, scale = options["dropout"], options["softcap"], options["scale"]
    if not 0 <= dropout < 1:
        raise ShapeError(f"{dropout=} is no share of the weights to drop: use 0 up to, not including, 1.")
    if dropout and options["attend"] is not None:
        raise ShapeError(
            f"{dropout=} with attend=: an injected attend takes no dropout. Use dropout=0.0, or leave attend out."
        )
    check_softcap(softcap)
    if scale is not None and not isinstance(scale, float | int) and len(scale) != num_heads:
        raise ShapeError(f"scale has {len(scale)} numbers: give one for all, or one a head, {num_heads}.")
    if options["mask_true"] not in MASK_TRUE:
        raise ShapeError(
            f"mask_true={options['mask_true']!r}: say 'hide' (True = may not look) or 'see' (True = may look)."
        )
    if options["rope"] is not None and not isinstance(options["rope"], Rope):
        raise ShapeError(
            f"rope is a {type(options['rope']).__name__}: give a Rope, as in Rope(base=10_000.0, max_positions=4096)."
        )


def _layout(options: Mapping[str, Any], one_input: bool, one_bias: bool) -> str | None:
    layout = options["projections"]
    if isinstance(layout, Mapping):
        sized = [
            name for name in ("q_bias", "k_bias", "v_bias", "out_bias", "kdim", "vdim") if options[name] is not None
        ]
        sized += [] if options["bias"] else ["bias"]
        if sized:
            raise ShapeError(
                f"{', '.join(sized)} with injected projections: those have their own. Leave these arguments out."
            )
        return None
    if layout is None:
        return "fused" if one_input and one_bias else "split"
    if layout not in LAYOUTS:
        raise ShapeError(f"projections={layout!r}: use 'fused', 'split', or a mapping of modules q, k, v and out.")
    if layout == "fused" and not (one_input and one_bias):
        why = "kdim or vdim differ from embed_dim" if not one_input else "q, k and v differ in having a bias"
        raise ShapeError(f"projections='fused', but {why}, and one product has one input and one bias: use 'split'.")
    return layout
