"""A sizing as one JSON document: every number that it has, what each means, and where the description comes from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from manyheads.sizing.results import Cache, Flops, Sizing, Variant, kind_of
from manyheads.sizing.shapes import Attention, LayerShape, by_part

__all__ = ["COUNTED", "document"]

COUNTED = (
    "A multiply and an add are 2 FLOPs. Counted are matrix products: projections, feed-forward (the experts that a "
    "token goes through), router, scores, values, head (for the last token, where a model generates). Causal attention "
    "is counted by the pairs that are visible; dense is with all pairs."
)


def document(sizing: Sizing) -> dict[str, Any]:
    """Keys: name, family, because, notes, untold, asked, shape, parameters, flops, cache, variants, decoding."""
    at = sizing.architecture
    return {
        "name": at.name,
        "family": at.family,
        "because": list(at.because),
        "notes": list(sizing.notes),
        "untold": dict(at.untold),
        "asked": asdict(sizing.ask),
        "shape": {
            "embed_dim": at.embed_dim,
            "num_layers": len(at.layers),
            "vocab_size": at.vocab_size,
            "max_positions": at.max_positions,
            "attention": kind_of(at),
        },
        "parameters": {
            "total": sizing.num_parameters,
            "active": sizing.num_active,
            "bytes": whole(sizing.weight_bytes),
            "by_part": dict(sizing.parameters),
            "outside_layers": dict(by_part(at.outside)),
            "layers": [_layer(layer) for layer in at.layers],
        },
        "flops": {"prefill": _flops(sizing.prefill), "decode": _flops(sizing.decode), "counted": COUNTED},
        "cache": _cache(sizing.cache),
        "variants": [_variant(each) for each in sizing.variants],
        "decoding": None
        if sizing.decoding is None
        else {
            "flops": sizing.decoding.flops,
            "weight_bytes_read": whole(sizing.decoding.weight_bytes),
            "cache_bytes_read": whole(sizing.decoding.cache_bytes),
            "flops_per_byte": sizing.decoding.intensity,
        },
    }


def whole(value: int | float) -> int | float:
    """Bytes without a point where they are whole."""
    return int(value) if float(value).is_integer() else value


def _layer(layer: LayerShape) -> dict[str, Any]:
    parts = dict(by_part(layer.weights))
    attention = [_attention(each) for each in layer.attention]
    return {"stack": layer.stack, "total": sum(parts.values()), "by_part": parts, "attention": attention}


def _attention(attention: Attention) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {key: [*value] if isinstance(value, tuple) else value for key, value in asdict(attention).items()}


def _flops(flops: Flops | None) -> dict[str, Any] | None:
    if flops is None:
        return None
    return {"total": flops.total, "dense": flops.dense, "by_operation": dict(flops.operations)}


def _cache(cache: Cache | None) -> dict[str, Any] | None:
    if cache is None:
        return None
    return {f"{name}_bytes": whole(value) for name, value in asdict(cache).items()}


def _variant(each: Variant) -> dict[str, Any]:
    return {
        "name": each.name,
        "own": each.own,
        "num_kv_heads": each.num_kv_heads,
        "parameters": each.num_parameters,
        "cache": _cache(each.cache),
        "flops_per_byte": each.intensity,
    }
