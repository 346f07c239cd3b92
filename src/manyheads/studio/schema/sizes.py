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


class LayerKind(AnswerBody):
    """Equal layers, drawn once: how many, and the parameters of one by part; `per_kv_head` of them come with each
    key/value head."""

    kind: str
    count: int
    parts: dict[str, int]
    per_kv_head: dict[str, int]


class CacheTerm(AnswerBody):
    """Numbers that one token leaves in the cache of all layers that see equally far: `window` tokens at most, all where
    that is null. `crosses`: they are of the text that an encoder read."""

    width: int
    window: int | None
    crosses: bool


class CacheShape(AnswerBody):
    """What one variant keeps, and its parameters (null: they cannot be told)."""

    name: str
    own: bool
    num_parameters: int | None
    terms: list[CacheTerm]


class ServedAttention(AnswerBody):
    """The attention of a layer, where GPUs divide it: `width` numbers of a token are kept for each key/value head, or
    in all (`latent`); `window` as the cache sheds what is past it; `scored`: widths of q and of v together."""

    num_heads: int
    num_kv_heads: int
    width: int
    latent: bool
    window: int | None
    chunked: bool
    scored: int


class ServedKind(AnswerBody):
    """Equal layers, where GPUs divide each of them. `whole` parameters stand on every GPU; `divided` are pairs: a
    matrix's parameters, and how often there is such a one; `per_kv_head` come with each key/value head. `forward`:
    of each feed-forward, its matrices' numbers and how often a token goes through one; `beside` are numbers of a token
    that stand beside these. `state`, `state32`: numbers kept for each text."""

    whole: int
    divided: list[tuple[int, int]]
    per_kv_head: int
    attention: ServedAttention | None
    forward: list[tuple[int, int]]
    beside: int
    state: int
    state32: int


class ServedOutside(AnswerBody):
    """Parameters of no layer: those that stand on every GPU, and of each matrix those that are divided, beside the
    numbers of the table of words that another stage needs a copy of."""

    whole: int
    divided: list[tuple[int, int]]


class Served(AnswerBody):
    """What the page needs to divide a decoder over GPUs. `runs`: an index into `kinds`, and how many such layers follow
    one another; `first`, `last`: what the first stage and the last have beside layers."""

    embed_dim: int
    vocab_size: int
    kinds: list[ServedKind]
    runs: list[tuple[int, int]]
    first: ServedOutside
    last: ServedOutside


class SizeShape(AnswerBody):
    """All that the page needs to size an architecture at any context, batch and dtype: sums of products of these.

    `positions`: what it is made for, a limit where `learned_positions`. `num_tokens`: of a text that always has so
    many, `num_source` the same of what an encoder reads. `state`: numbers kept for each text however long, `state32`
    those of 32 bits. `num_heads`, `num_kv_heads`: of every layer, and `terms` are of one key/value head; null for
    latents, for heads that differ and where nothing is kept: then `variants` has what there is. `num_idle`: parameters
    of the experts that a token does not go through. `served`: how GPUs divide it; null for what is not a decoder of one
    stack, or cannot be told.
    """

    positions: int | None
    learned_positions: bool
    num_tokens: int | None
    num_source: int | None
    outside: dict[str, int]
    kinds: list[LayerKind]
    num_heads: int | None
    num_kv_heads: int | None
    terms: list[CacheTerm]
    variants: list[CacheShape]
    num_idle: int
    state: int
    state32: int
    served: Served | None
    notes: list[str]


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
    shape: SizeShape
    document: dict[str, Any]
