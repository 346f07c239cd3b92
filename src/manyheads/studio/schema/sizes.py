"""What an architecture costs: parameters, FLOPs, cache."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from manyheads.studio.schema.base import Name, Number, Said, Told


class SizeAsk(Told):
    """A preset or a model of the workspace by name, or a description; then what of it is different."""

    preset: Name | None = None
    model: Name | None = None
    words: dict[str, int | bool | str] | None = None
    num_kv_heads: Annotated[int, Field(ge=1, le=100_000)] | None = None
    context: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = 8
    dtype: Annotated[str, Field(max_length=20)] = "fp16"
    cache_dtype: Annotated[str, Field(max_length=20)] | None = None


class SizePreset(Said):
    """`words` where the preset can be described in plain words, for the sliders."""

    name: str
    title: str
    source: str
    note: str
    words: dict[str, int | bool | str | None] | None


class SizeLayer(Said):
    """One layer's parameters by part, and in all of attention and of the feed-forward."""

    index: int
    kind: str
    attention: int
    feed_forward: int
    other: int
    parts: dict[str, int]


class CachePoint(Said):
    context: int
    num_bytes: float


class CacheLine(Said):
    """The cache of one variant (MHA, GQA, MQA) against context."""

    name: str
    num_kv_heads: int | None
    own: bool
    num_parameters: int | None
    points: list[CachePoint]
    num_bytes: float


class SizeReport(Said):
    """`document` is what `manyheads size --json` prints; the rest is ready to draw. Bytes are exact; GiB is 2^30."""

    name: str
    num_parameters: int
    weight_bytes: float
    cache_bytes: Number
    parts: dict[str, int]
    layers: list[SizeLayer]
    lines: list[CacheLine]
    notes: list[str]
    document: dict[str, Any]
