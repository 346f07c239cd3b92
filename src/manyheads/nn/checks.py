"""What can be wrong with a layer's arguments, before anything is computed: what was asked, what came, what would do."""

# pyright: reportUnnecessaryIsInstance=false
# What people give is checked, whatever its type says.
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyheads.base import check_groups, divisors
from manyheads.errors import ShapeError
from manyheads.nn.caches import KVCache
from manyheads.nn.layer_inputs import MASK_TRUE
from manyheads.nn.positions import Rope
from manyheads.nn.projections import LAYOUTS, Sizes
from manyheads.nn.scores import check_softcap

if TYPE_CHECKING:
    from manyheads.nn.layer import MultiHeadAttention


def read_sizes(given: Mapping[str, Any]) -> Sizes:
    """The sizes that a constructor's arguments make. Errors: ShapeError."""
    _counts(given)
    embed_dim, num_heads = given["embed_dim"], given["num_heads"]
    num_kv_heads = num_heads if given["num_kv_heads"] is None else given["num_kv_heads"]
    check_groups(num_heads, num_kv_heads)
    head_dim = given["head_dim"]
    if head_dim is None:
        if embed_dim % num_heads:
            raise ShapeError(
                f"{embed_dim=} is not a multiple of {num_heads=}: say head_dim=, or use one of {divisors(embed_dim)} "
                f"heads."
            )
        head_dim = embed_dim // num_heads
    _numbers(given, num_heads)
    kdim, vdim = (embed_dim if given[name] is None else given[name] for name in ("kdim", "vdim"))
    biases = tuple(
        given["bias"] if given[f"{name}_bias"] is None else given[f"{name}_bias"] for name in ("q", "k", "v", "out")
    )
    layout = _layout(given, (kdim, vdim) == (embed_dim, embed_dim), len(set(biases[:3])) == 1)
    v_head_dim = given["v_head_dim"] or head_dim
    return Sizes(num_heads, num_kv_heads, head_dim, v_head_dim, kdim, vdim, biases, layout)


def _counts(given: Mapping[str, Any]) -> None:
    dtype = given.get("dtype")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ShapeError(f"{dtype=} is no dtype for weights: use torch.float32, bfloat16, float16 or float64.")
    if isinstance(given["num_kv_heads"], float):
        raise ShapeError(
            f"num_kv_heads={given['num_kv_heads']} is no count: where nn.MultiheadAttention has dropout third, here "
            f"stands num_kv_heads. Write dropout={given['num_kv_heads']}."
        )
    for name in ("embed_dim", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "kdim", "vdim", "window"):
        value = given[name]
        if value is None and name not in ("embed_dim", "num_heads"):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ShapeError(f"{name}={value!r} is no count: use a whole number, 1 or more.")


def _numbers(given: Mapping[str, Any], num_heads: int) -> None:
    dropout, softcap, scale = given["dropout"], given["softcap"], given["scale"]
    if not 0 <= dropout < 1:
        raise ShapeError(f"{dropout=} is no share of the weights to drop: use 0 up to, not including, 1.")
    if dropout and given["attend"] is not None:
        raise ShapeError(
            f"{dropout=} with attend=: an injected attend takes no dropout. Use dropout=0.0, or leave attend out."
        )
    check_softcap(softcap)
    if scale is not None and not isinstance(scale, float | int) and len(scale) != num_heads:
        raise ShapeError(f"scale has {len(scale)} numbers: give one for all, or one a head, {num_heads}.")
    if given["mask_true"] not in MASK_TRUE:
        raise ShapeError(
            f"mask_true={given['mask_true']!r}: say 'hide' (True = may not look) or 'see' (True = may look)."
        )
    if given["rope"] is not None and not isinstance(given["rope"], Rope):
        raise ShapeError(
            f"rope is a {type(given['rope']).__name__}: give a Rope, as in Rope(base=10_000.0, max_positions=4096)."
        )


def _layout(given: Mapping[str, Any], one_input: bool, one_bias: bool) -> str | None:
    asked = given["projections"]
    if isinstance(asked, Mapping):
        sized = [name for name in ("q_bias", "k_bias", "v_bias", "out_bias", "kdim", "vdim") if given[name] is not None]
        sized += [] if given["bias"] else ["bias"]
        if sized:
            raise ShapeError(
                f"{', '.join(sized)} with injected projections: those have their own. Leave these arguments out."
            )
        return None
    if asked is None:
        return "fused" if one_input and one_bias else "split"
    if asked not in LAYOUTS:
        raise ShapeError(f"projections={asked!r}: use 'fused', 'split', or a mapping of modules q, k, v and out.")
    if asked == "fused" and not (one_input and one_bias):
        why = "kdim or vdim differ from embed_dim" if not one_input else "q, k and v differ in having a bias"
        raise ShapeError(f"projections='fused', but {why}, and one product has one input and one bias: use 'split'.")
    return asked


def call_faults(
    layer: MultiHeadAttention,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    cache: KVCache | None,
    positions: Tensor | None,
    need_weights: bool,
    weight_heads: Sequence[int] | None,
    is_causal: bool,
) -> None:
    """Refuse a call that cannot mean anything, by name. Errors: ShapeError."""
    if not torch.compiler.is_compiling():
        _tensors(query=query, key=key, value=value, positions=positions)
        if cache is not None and not isinstance(cache, KVCache):
            raise ShapeError(f"cache is a {type(cache).__name__}: give an mh.KVCache, or None.")
    _inputs(layer, query, key, value, held=cache is not None and cache.kind == "cross" and cache.filled)
    if weight_heads is not None:
        wrong = [head for head in weight_heads if not _is_head(head, layer.num_heads)]
        if wrong:
            raise ShapeError(
                f"weight_heads has {wrong}, but this layer has heads 0 to {layer.num_heads - 1}: give a list of their "
                f"numbers."
            )
        if not need_weights:
            raise ShapeError(
                "weight_heads with need_weights=False: one asks for weights and the other for none. Leave one out."
            )
    if positions is not None:
        _positions(layer, query, key, positions)
    if cache is not None:
        _cache(layer, key, cache, is_causal)


def _tensors(**given: object) -> None:
    for name, x in given.items():
        if x is not None and not isinstance(x, Tensor):
            raise ShapeError(f"{name} is a {type(x).__name__}: give a tensor, as torch.as_tensor({name}) makes one.")


def _is_head(head: object, num_heads: int) -> bool:
    return isinstance(head, int) and not isinstance(head, bool) and -num_heads <= head < num_heads


def _inputs(layer: MultiHeadAttention, query: Tensor, key: Tensor | None, value: Tensor | None, held: bool) -> None:
    if key is None and value is not None:
        raise ShapeError("value without key: give both, or key alone (value is key then), or neither (self-attention).")
    widths = {"query": layer.embed_dim, "key": layer.kdim, "value": layer.vdim}
    given = {"query": query, "key": key, "value": value}
    own = layer.sizes.layout is not None  # injected projections may read what they like
    if key is None and own and not held and (layer.kdim, layer.vdim) != (layer.embed_dim, layer.embed_dim):
        raise ShapeError(
            f"no key, but this layer reads keys of width {layer.kdim} and values of width {layer.vdim}, and query has "
            f"{layer.embed_dim}: give key and value."
        )
    for name, x in given.items():
        if x is None:
            continue
        if x.ndim not in (2, 3) or x.ndim != query.ndim:
            raise ShapeError(
                f"{name} has shape {tuple(x.shape)}: give (length, {widths[name]}), or a batch of those, "
                f"{_batch(layer, widths[name])}, and query, key and value alike."
            )
        if own and x.shape[-1] != widths[name]:
            raise ShapeError(
                f"{name} has width {x.shape[-1]}, but this layer reads a {name} of width {widths[name]}: its shape "
                f"is {tuple(x.shape)}."
            )
        if own:
            _kind(layer, name, x)
    if query.ndim == 3 and key is not None and key.shape[axis := 0 if layer.batch_first else 1] != query.shape[axis]:
        raise ShapeError(
            f"query has {query.shape[axis]} texts and key has {key.shape[axis]}: must be equal. This layer reads "
            f"{_batch(layer, layer.embed_dim)}."
        )
    if key is not None and value is not None and key.shape[:-1] != value.shape[:-1]:
        raise ShapeError(f"key has shape {tuple(key.shape)} and value {tuple(value.shape)}: every key needs one value.")


def _batch(layer: MultiHeadAttention, width: int) -> str:
    return f"(batch, length, {width})" if layer.batch_first else f"(length, batch, {width}) since batch_first=False"


def _kind(layer: MultiHeadAttention, name: str, x: Tensor) -> None:
    """dtype and device of an input against the weights'."""
    weight = layer.out_proj.weight
    assert isinstance(weight, Tensor)
    if x.device != weight.device:
        raise ShapeError(
            f"{name} is on {x.device} and the layer on {weight.device}: move one, as in layer.to({str(x.device)!r})."
        )
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ShapeError(f"{name} is {x.dtype} and the layer {weight.dtype}: convert one, as in layer.to({x.dtype}).")


def _positions(layer: MultiHeadAttention, query: Tensor, key: Tensor | None, positions: Tensor) -> None:
    if layer.rotary is None:
        raise ShapeError(
            "positions without rope: nothing else reads them. Build the layer with rope=Rope(), or leave them out."
        )
    if key is not None and key is not query:
        raise ShapeError(
            "positions with a key of its own: they are of one text, and query and key are two. Leave them out."
        )
    if query.ndim == 2:
        wanted: list[tuple[int, ...]] = [(query.shape[0],)]
    else:
        texts, length = query.shape[:2] if layer.batch_first else (query.shape[1], query.shape[0])
        wanted = [(length,), (texts, length)]
    if tuple(positions.shape) not in wanted or positions.is_floating_point():
        raise ShapeError(
            f"positions is {positions.dtype} of shape {tuple(positions.shape)}: give integers of shape "
            f"{' or '.join(map(str, wanted))}."
        )
    if not torch.compiler.is_compiling() and positions.numel() and int(positions.min()) < 0:
        raise ShapeError(f"positions has {int(positions.min())}: they count from 0. Shift them.")


def _cache(layer: MultiHeadAttention, key: Tensor | None, cache: KVCache, is_causal: bool) -> None:
    if not torch.compiler.is_compiling():
        cache.serve(layer)
    if cache.kind == "cross":
        if cache.filled:
            cache.stands_for(key)
        elif key is None:
            raise ShapeError("an empty cross cache without key: give the text to attend to, once.")
        if layer.rotary is not None or layer.alibi or layer.causal or is_causal or layer.window is not None:
            raise ShapeError(
                "a cross cache with rope, alibi, causal or window: those go by the distance of a query from a key, "
                "and the two texts have no common positions from step to step. Use a layer without them."
            )
    elif cache.kind == "sliding" and (layer.window is None or layer.window > (cache.size or 0)):
        raise ShapeError(
            f"a sliding cache of {cache.size} keys with window={layer.window}: it would drop keys that the layer "
            f"may look at. Use KVCache.sliding({layer.window})."
            if layer.window
            else f"a sliding cache of {cache.size} keys, but the layer has no window: it would drop keys that the "
            f"layer may look at. Use KVCache(), or a layer with window={cache.size}."
        )
