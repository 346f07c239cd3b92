"""What an architecture costs: parameters, FLOPs, cache."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from manyheads.studio.schema.base import AnswerBody, Name, Number, RequestBody


class SizeAsk(RequestBody):
    """A preset or a model of the workspace by name, or a description in words; then what differs from it."""

    preset: Name | None = None
    model: Name | None = None
    words: dict[str, int | bool | str] | None = None
    num_kv_heads: Annotated[int, Field(ge=1, le=100_000)] | None = None
    context: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = 8
    dtype: Annotated[str, Field(max_length=20)] = "fp16"
    cache_dtype: Annotated[str, Field(max_length=20)] | None = None


class SizePreset(AnswerBody):
    """An architecture by name. `words`: its description for the sliders, null where no words describe it exactly."""

    name: str
    title: str
    source: str
    note: str
    words: dict[str, int | bool | str | None] | None


class SizeLayer(AnswerBody):
    """One layer's parameters: by part, and as sums over attention, the feed-forward part and the rest."""

    index: int
    kind: str
    attention: int
    feed_forward: int
    other: int
    parts: dict[str, int]


class CachePoint(AnswerBody):
    """The cache at one context length, in tokens."""

    context: int
    num_bytes: float


class CacheLine(AnswerBody):
    """The KV cache of one variant (MHA, GQA, MQA) against context length; `num_bytes` at the requested context."""

    name: str
    num_kv_heads: int | None
    own: bool
    num_parameters: int | None
    points: list[CachePoint]
    num_bytes: float


class SizeReport(AnswerBody):
    """`document` is the output of `manyheads size --json`; the rest is ready to draw. Bytes are exact; GiB is 2^30."""

    name: str
    num_parameters: int
    weight_bytes: float
    cache_bytes: Number
    parts: dict[str, int]
    layers: list[SizeLayer]
    lines: list[CacheLine]
    notes: list[str]
    document: dict[str, Any]
