"""A `Sizing` and its parts: what the sums of `manyheads.sizing.counting` come to, in FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from manyheads.base.grouping import divisors
from manyheads.sizing import counting
from manyheads.sizing.shapes import Architecture, by_part

__all__ = ["DTYPES", "Ask", "Cache", "Decoding", "Flops", "Sizing", "Variant"]

DTYPES = {
    "fp64": 64, "float64": 64, "fp32": 32, "float32": 32, "fp16": 16, "float16": 16, "bf16": 16, "bfloat16": 16,
    "fp8": 8, "float8": 8, "int8": 8, "int4": 4,
}  # fmt: skip
"""Bits of a number. Of 8 and 4 bits the numbers alone are counted, not the scales that come with them."""

GROUPS = 8
"""Key/value heads of the grouped variant of a model that has none: what Llama, Mistral and Qwen chose."""


@dataclass(frozen=True)
class Ask:
    """What is asked of an architecture: `batch` texts of `context` tokens (and `source`, what an encoder reads), the
    dtypes of the weights and of the cache."""

    context: int
    source: int
    batch: int
    dtype: str
    cache_dtype: str

    def weight_bytes(self, numbers: int | float) -> float:
        return numbers * DTYPES[self.dtype] / 8

    def cache_bytes(self, numbers: int | float) -> float:
        return numbers * DTYPES[self.cache_dtype] / 8


@dataclass(frozen=True)
class Flops:
    """FLOPs by operation, of one text. `dense`: in all, where masked scores are computed and thrown away."""

    operations: Mapping[str, int]
    dense: int

    @property
    def total(self) -> int:
        return sum(self.operations.values())


@dataclass(frozen=True)
class Cache:
    """Bytes of keys and values. `token`: what one token of one text leaves, windows not yet full; `growth`: what one
    more token adds at this context; `steady`: what all texts need to go on from here; `allocated`: what is set aside
    for them beforehand; `state`: how much of either does not grow with the text (recurrences, convolutions)."""

    token: float
    growth: float
    steady: float
    allocated: float
    state: float


@dataclass(frozen=True)
class Decoding:
    """One more token of every text: FLOPs, and bytes read of the weights and of the cache."""

    flops: int
    weight_bytes: float
    cache_bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs a byte. Where a device could do more (GPUs: 100 to 300), memory sets the pace."""
        return self.flops / (self.weight_bytes + self.cache_bytes)


@dataclass(frozen=True)
class Variant:
    """The architecture with other key/value heads, or with every head's keys and values in place of latents. `own`: as
    it is. `num_parameters` and `intensity` are None where they cannot be told."""

    name: str
    num_kv_heads: int | None
    own: bool
    num_parameters: int | None
    cache: Cache
    intensity: float | None


@dataclass(frozen=True)
class Sizing:
    """What an architecture costs. Counts are exact; `notes` say what they mean and what was assumed. `prefill`,
    `decode`, `cache` and `decoding` are None where there is none, or where the description cannot tell (then
    `architecture.why_untold` says why)."""

    architecture: Architecture
    ask: Ask
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.architecture.name

    @property
    def num_parameters(self) -> int:
        return self.architecture.num_parameters

    @property
    def num_active(self) -> int:
        """Parameters that one token uses: fewer where there are experts."""
        return self.architecture.num_active

    @property
    def weight_bytes(self) -> float:
        return self.ask.weight_bytes(self.num_parameters)

    @cached_property
    def parameters(self) -> Mapping[str, int]:
        """Part -> parameters of the whole model."""
        return by_part(self.architecture.weights)

    @cached_property
    def layers(self) -> tuple[Mapping[str, int], ...]:
        """For each layer, part -> parameters."""
        return tuple(by_part(layer.weights) for layer in self.architecture.layers)

    @cached_property
    def prefill(self) -> Flops | None:
        """FLOPs of one text of this context, all at once."""
        if self.architecture.why_untold("flops"):
            return None
        at = (self.architecture, self.ask.context, self.ask.source)
        return Flops(counting.prefill(*at), sum(counting.prefill(*at, dense=True).values()))

    @cached_property
    def decode(self) -> Flops | None:
        """FLOPs of one more token of one text, the last of this context."""
        if self.architecture.why_untold("flops") or not self.architecture.generates:
            return None
        operations = counting.decoding(self.architecture, self.ask.context, self.ask.source)
        return Flops(operations, sum(operations.values()))

    @cached_property
    def cache(self) -> Cache | None:
        return _cache(self.architecture, self.ask)

    @cached_property
    def decoding(self) -> Decoding | None:
        """One step of decoding for the whole batch."""
        return _decoding(self.architecture, self.ask)

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """As it is, and as MHA, GQA and MQA; most in the cache first. None where there is no cache."""
        return tuple(_variants(self.architecture, self.ask)) if self.cache else ()

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data for JSON."""
        from manyheads.sizing.document import document

        return document(self)


def kind_of(architecture: Architecture) -> str:
    """MHA, MQA, GQA-8 (its key/value heads), MLA, mixed where layers differ, or "" without attention."""
    kinds = {
        "MLA" if each.latent else "MHA" if each.num_kv_heads == each.num_heads else f"GQA-{each.num_kv_heads}"
        for each in architecture.attention
    }
    kind = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else ""
    return "MQA" if kind == "GQA-1" else kind


def _cache(architecture: Architecture, ask: Ask) -> Cache | None:
    if architecture.why_untold("cache") or not architecture.generates:
        return None
    now, then = (counting.cached_numbers(architecture, ask.context + more, ask.source) for more in (0, 1))
    first = counting.cached_numbers(architecture, 1, 0)
    set_aside = counting.allocated_numbers(architecture, ask.context, ask.source)
    state = ask.cache_bytes(sum(layer.state for layer in architecture.layers))
    state += 4 * sum(layer.state32 for layer in architecture.layers)
    return Cache(
        token=ask.cache_bytes(max(first, counting.allocated_numbers(architecture, 1, 0))),
        growth=ask.cache_bytes(then - now),
        steady=ask.batch * (ask.cache_bytes(now) + state),
        allocated=ask.batch * (ask.cache_bytes(set_aside) + state),
        state=ask.batch * state,
    )


def _decoding(architecture: Architecture, ask: Ask) -> Decoding | None:
    cache = _cache(architecture, ask)
    if cache is None or architecture.why_untold("flops"):
        return None
    spent = sum(counting.decoding(architecture, ask.context, ask.source).values())
    weights, keys = counting.read_numbers(architecture, ask.context, ask.source, ask.batch)
    return Decoding(ask.batch * spent, ask.weight_bytes(weights), ask.batch * ask.cache_bytes(keys) + cache.state)


def _variants(architecture: Architecture, ask: Ask) -> list[Variant]:
    own = kind_of(architecture)
    if any(each.latent for each in architecture.attention):
        whole = [
            replace(layer, attention=tuple(replace(each, latent=None) for each in layer.attention))
            for layer in architecture.layers
        ]
        made = {"MHA": (None, replace(architecture, layers=tuple(whole)))}
    else:
        made = {}
        for count in _counts(architecture):
            each = architecture.with_kv_heads(count, parts_told=False)
            made[kind_of(each)] = (count, each)
    made.setdefault(own, (None, architecture))
    found = [_variant(name, *each, name == own, ask) for name, each in made.items()]
    return sorted(found, key=lambda each: -each.cache.steady)


def _counts(architecture: Architecture) -> list[int | None]:
    """Numbers of key/value heads to show: as many as query heads, a group's worth, one."""
    heads = {each.num_heads for each in architecture.attention}
    if not heads:
        return []
    shared = [count for count in divisors(min(heads)) if all(each % count == 0 for each in heads)]
    grouped = [count for count in shared if 1 < count < min(heads)]
    near = min(grouped, key=lambda count: abs(count - GROUPS), default=None)
    own = {each.num_kv_heads for each in architecture.attention}
    middle = next(iter(own)) if len(own) == 1 and 1 < min(own) < min(heads) else near
    return [None, *([middle] if middle else []), 1]


def _variant(name: str, count: int | None, architecture: Architecture, own: bool, ask: Ask) -> Variant:
    cache, decoding = _cache(architecture, ask), _decoding(architecture, ask)
    assert cache is not None  # variants are made of what has one
    known = own or not architecture.why_untold("parts")
    intensity = decoding.intensity if decoding and known else None
    return Variant(name, count, own, architecture.num_parameters if known else None, cache, intensity)
