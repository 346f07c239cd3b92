"""What an architecture costs: FLOPs of a text and of one more token, bytes of the cache, bytes read to decode a token.

`Sizing` holds all of it, in FLOPs and bytes; the functions below it count numbers (not bytes) for one text; `document`
is a sizing as one JSON value, `shape_in_words` and `layers_in_words` describe an architecture in a phrase.

What is counted. A multiply and an add are 2 FLOPs. Counted are matrix products: projections, feed-forward (the experts
that a token goes through), router, scores (q times k), values (weights times v), the head. Not counted: softmax, norms,
activations, rotary positions, biases, the update of a recurrent state; together a few percent at most.
Causal attention is counted by what is visible: n (n + 1) / 2 pairs, fewer where there is a window. `dense` says what an
implementation computes that masks instead of skipping: all n n.
A text's head runs once, on the last token, where a model generates; at every token where it does not.
MLA is counted as its authors run it: a whole text with the keys and values of every head, one more token on the latents
themselves (the up-projections are absorbed into the queries and the output; DeepSeek-AI 2024, section 2.1.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from manyheads.base import divisors
from manyheads.sizing.architecture import (
    LAST,
    ONCE,
    PARTS,
    SOURCE,
    TEXT,
    Architecture,
    Attention,
    LayerShape,
    Weights,
    by_part,
    kind_of,
)

__all__ = [
    "COUNTED", "DTYPES", "OPERATIONS", "Ask", "Cache", "Decoding", "Flops", "Sizing", "Variant", "allocated_numbers",
    "cached_numbers", "decoding", "dense_pairs", "document", "layers_in_words", "prefill", "read_numbers",
    "shape_in_words", "visible_pairs",
]  # fmt: skip


OPERATIONS: tuple[str, ...] = (*PARTS[:6], "scores", "values", *PARTS[6:])
"""Where FLOPs can be spent: the parts, and attention's two products."""

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
        lengths = (self.architecture, self.ask.context, self.ask.source)
        return Flops(prefill(*lengths), sum(prefill(*lengths, dense=True).values()))

    @cached_property
    def decode(self) -> Flops | None:
        """FLOPs of one more token of one text, the last of this context."""
        if self.architecture.why_untold("flops") or not self.architecture.generates:
            return None
        operations = decoding(self.architecture, self.ask.context, self.ask.source)
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
        return document(self)


# ------------------------------------------------------------------------------------------------------------- counting


def visible_pairs(attention: Attention, length: int, source: int) -> int:
    """How many pairs of a query and a key that it may see there are in one text."""
    if attention.cross:
        return length * source
    if not attention.causal:
        return length * length
    if attention.window is None or attention.window >= length:
        return length * (length + 1) // 2
    window = attention.window
    triangle = window * (window + 1) // 2
    if attention.chunked:
        remainder = length % window
        return length // window * triangle + remainder * (remainder + 1) // 2
    return triangle + (length - window) * window


def dense_pairs(attention: Attention, length: int, source: int) -> int:
    return length * (source if attention.cross else length)


def seen_keys(attention: Attention, length: int, source: int) -> int:
    """How many keys the last of `length` tokens sees, itself included."""
    if attention.cross:
        return source
    if attention.window is None:
        return length
    return (length - 1) % attention.window + 1 if attention.chunked else min(length, attention.window)


def prefill(architecture: Architecture, length: int, source: int, *, dense: bool = False) -> dict[str, int]:
    """Operation -> FLOPs of one text of `length` tokens, all at once (and of the other text, of `source` tokens)."""
    rows = {TEXT: length, LAST: 1, SOURCE: source, ONCE: 1}
    spent = _products(architecture.weights, rows)
    pairs = dense_pairs if dense else visible_pairs
    for layer in architecture.layers:
        length_here = source if layer.stack == "encoder" else length
        for attention in layer.attention:
            count = 2 * attention.num_heads * pairs(attention, length_here, source)
            spent["scores"] += count * attention.qk_dim
            spent["values"] += count * attention.v_dim
    return {operation: count for operation, count in spent.items() if count}


def decoding(architecture: Architecture, length: int, source: int) -> dict[str, int]:
    """Operation -> FLOPs of one more token, the last of `length`."""
    spent = _products(architecture.weights, {TEXT: 1, LAST: 1, SOURCE: 0, ONCE: 0})
    for layer in architecture.layers:
        if layer.stack == "encoder":
            continue
        for attention in layer.attention:
            qk_dim, v_dim = (
                (sum(attention.latent), attention.latent[0])
                if attention.latent
                else (attention.qk_dim, attention.v_dim)
            )
            count = 2 * attention.num_heads * seen_keys(attention, length, source)
            spent["scores"] += count * qk_dim
            spent["values"] += count * v_dim
    return {operation: count for operation, count in spent.items() if count}


def cached_numbers(architecture: Architecture, length: int, source: int) -> int:
    """Numbers that one text of `length` tokens leaves in the cache: what it needs for the next token, not more."""
    return sum(attention.cache_width * _kept_tokens(attention, length, source) for attention in _caching(architecture))


def allocated_numbers(architecture: Architecture, length: int, source: int) -> int:
    """Numbers to set aside beforehand for one text of `length` tokens: a window has a place for the newest, too."""
    total = 0
    for attention in _caching(architecture):
        tokens = source if attention.cross else length
        if attention.window is not None and attention.sheds:
            tokens = min(tokens, attention.window)
        total += attention.cache_width * tokens
    return total


def read_numbers(architecture: Architecture, length: int, source: int, batch: int) -> tuple[float, int]:
    """Numbers read to decode one more token of each of `batch` texts: of the weights, once; of the cache, for each
    text.

    Of experts, as many as that many tokens choose on average if every choice is as likely as any other. Tables count as
    nothing (a row a token), an encoder's weights neither.
    """
    weights = 0.0
    for weight in architecture.weights:
        if weight.rows in (SOURCE, ONCE) or (weight.part == "embedding" and not weight.matmul):
            continue
        touched = weight.experts * (1 - (1 - weight.chosen / weight.experts) ** batch) if weight.experts > 1 else 1
        weights += touched * max(weight.size, weight.matmul)  # a tied head has no numbers of its own, and is read
    cache = sum(attention.cache_width * seen_keys(attention, length, source) for attention in _caching(architecture))
    return weights, cache


def _kept_tokens(attention: Attention, length: int, source: int) -> int:
    if attention.cross:
        return source
    if attention.window is None or not attention.sheds:
        return length
    return min(length, attention.window - 1)  # the next token brings its own


def _caching(architecture: Architecture) -> Iterable[Attention]:
    return (attention for attention in architecture.attention if attention.cached) if architecture.generates else ()


def _products(weights: Iterable[Weights], rows: Mapping[str, int]) -> dict[str, int]:
    spent = dict.fromkeys(OPERATIONS, 0)
    for weight in weights:
        spent[weight.part] += 2 * weight.matmul * weight.chosen * rows[weight.rows]
    return spent


# ----------------------------------------------------------------------------- in bytes, and with other key/value heads


def _cache(architecture: Architecture, ask: Ask) -> Cache | None:
    if architecture.why_untold("cache") or not architecture.generates:
        return None
    now, then = (cached_numbers(architecture, ask.context + extra, ask.source) for extra in (0, 1))
    first = cached_numbers(architecture, 1, 0)
    set_aside = allocated_numbers(architecture, ask.context, ask.source)
    state = ask.cache_bytes(sum(layer.state for layer in architecture.layers))
    state += 4 * sum(layer.state32 for layer in architecture.layers)
    return Cache(
        token=ask.cache_bytes(max(first, allocated_numbers(architecture, 1, 0))),
        growth=ask.cache_bytes(then - now),
        steady=ask.batch * (ask.cache_bytes(now) + state),
        allocated=ask.batch * (ask.cache_bytes(set_aside) + state),
        state=ask.batch * state,
    )


def _decoding(architecture: Architecture, ask: Ask) -> Decoding | None:
    cache = _cache(architecture, ask)
    if cache is None or architecture.why_untold("flops"):
        return None
    spent = sum(decoding(architecture, ask.context, ask.source).values())
    weights, keys = read_numbers(architecture, ask.context, ask.source, ask.batch)
    return Decoding(ask.batch * spent, ask.weight_bytes(weights), ask.batch * ask.cache_bytes(keys) + cache.state)


def _variants(architecture: Architecture, ask: Ask) -> list[Variant]:
    own_kind = kind_of(architecture)
    if any(attention.latent for attention in architecture.attention):
        uncompressed = [
            replace(layer, attention=tuple(replace(attention, latent=None) for attention in layer.attention))
            for layer in architecture.layers
        ]
        architectures = {"MHA": (None, replace(architecture, layers=tuple(uncompressed)))}
    else:
        architectures = {}
        for count in _counts(architecture):
            variant = architecture.with_kv_heads(count, parts_told=False)
            architectures[kind_of(variant)] = (count, variant)
    architectures.setdefault(own_kind, (None, architecture))
    variants = [_variant(name, count, shape, name == own_kind, ask) for name, (count, shape) in architectures.items()]
    return sorted(variants, key=lambda each: -each.cache.steady)


def _counts(architecture: Architecture) -> list[int | None]:
    """Numbers of key/value heads to show: as many as query heads, a group's worth, one."""
    heads = {attention.num_heads for attention in architecture.attention}
    if not heads:
        return []
    shared = [count for count in divisors(min(heads)) if all(head % count == 0 for head in heads)]
    grouped = [count for count in shared if 1 < count < min(heads)]
    near = min(grouped, key=lambda count: abs(count - GROUPS), default=None)
    kv_counts = {attention.num_kv_heads for attention in architecture.attention}
    middle = next(iter(kv_counts)) if len(kv_counts) == 1 and 1 < min(kv_counts) < min(heads) else near
    return [None, *([middle] if middle else []), 1]


def _variant(name: str, count: int | None, architecture: Architecture, own: bool, ask: Ask) -> Variant:
    cache, decoding = _cache(architecture, ask), _decoding(architecture, ask)
    assert cache is not None  # variants are made of what has one
    parts_known = own or not architecture.why_untold("parts")
    intensity = decoding.intensity if decoding and parts_known else None
    return Variant(name, count, own, architecture.num_parameters if parts_known else None, cache, intensity)


# -------------------------------------------------------------------------------------------------------------- as JSON


COUNTED = (
    "A multiply and an add are 2 FLOPs. Counted are matrix products: projections, feed-forward (the experts that a "
    "token goes through), router, scores, values, head (for the last token, where a model generates). Causal attention "
    "is counted by the pairs that are visible; dense is with all pairs."
)


def document(sizing: Sizing) -> dict[str, Any]:
    """Keys: name, family, because, notes, untold, asked, shape, parameters, flops, cache, variants, decoding."""
    architecture = sizing.architecture
    return {
        "name": architecture.name,
        "family": architecture.family,
        "because": list(architecture.because),
        "notes": list(sizing.notes),
        "untold": dict(architecture.untold),
        "asked": asdict(sizing.ask),
        "shape": {
            "embed_dim": architecture.embed_dim,
            "num_layers": len(architecture.layers),
            "vocab_size": architecture.vocab_size,
            "max_positions": architecture.max_positions,
            "attention": kind_of(architecture),
        },
        "parameters": {
            "total": sizing.num_parameters,
            "active": sizing.num_active,
            "bytes": whole(sizing.weight_bytes),
            "by_part": dict(sizing.parameters),
            "outside_layers": dict(by_part(architecture.outside)),
            "layers": [_layer(layer) for layer in architecture.layers],
        },
        "flops": {"prefill": _flops(sizing.prefill), "decode": _flops(sizing.decode), "counted": COUNTED},
        "cache": _cache_of_document(sizing.cache),
        "variants": [_variant_of_document(variant) for variant in sizing.variants],
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
    attention = [_attention(item) for item in layer.attention]
    return {"stack": layer.stack, "total": sum(parts.values()), "by_part": parts, "attention": attention}


def _attention(attention: Attention) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {key: [*value] if isinstance(value, tuple) else value for key, value in asdict(attention).items()}


def _flops(flops: Flops | None) -> dict[str, Any] | None:
    if flops is None:
        return None
    return {"total": flops.total, "dense": flops.dense, "by_operation": dict(flops.operations)}


def _cache_of_document(cache: Cache | None) -> dict[str, Any] | None:
    if cache is None:
        return None
    return {f"{name}_bytes": whole(value) for name, value in asdict(cache).items()}


def _variant_of_document(each: Variant) -> dict[str, Any]:
    return {
        "name": each.name,
        "own": each.own,
        "num_kv_heads": each.num_kv_heads,
        "parameters": each.num_parameters,
        "cache": _cache_of_document(each.cache),
        "flops_per_byte": each.intensity,
    }


# ------------------------------------------------------------------------------------------------------------- in words


def shape_in_words(architecture: Architecture) -> str:
    """ "80 layers of 8,192, 64 heads of 128 on 8 key/value heads (GQA-8), 32,000 words, 4,096 positions"."""
    count = len(architecture.layers)
    phrases = [f"{count} layer{'s' * (count != 1)} of {architecture.embed_dim:,}"]
    shapes = {
        (attention.num_heads, attention.num_kv_heads, attention.qk_dim, attention.v_dim, attention.latent)
        for attention in architecture.attention
    }
    if len(shapes) == 1:
        phrases.append(_heads(architecture.attention[0], kind_of(architecture)))
    elif shapes:
        phrases.append(f"attention of {len(shapes)} shapes ({kind_of(architecture)})")
    phrases += [f"{architecture.vocab_size:,} words"] if architecture.vocab_size else []
    phrases += [f"{architecture.max_positions:,} positions"] if architecture.max_positions else []
    return ", ".join(phrases)


def layers_in_words(architecture: Architecture) -> str:
    """ "21 of 42 layers see the last 4,096 tokens; 58 of 61 layers have experts"; "" where all layers are alike."""
    phrases: list[str] = []
    windows = Counter(
        attention.window for layer in architecture.layers for attention in layer.attention if attention.window
    )
    total = len(architecture.layers)
    for window, count in sorted(windows.items()):
        scope = (
            "chunks of"
            if any(attention.chunked for attention in architecture.attention if attention.window == window)
            else "the last"
        )
        phrases.append(f"{_share(count, total)} see {scope} {window:,} tokens")
    sparse = [layer for layer in architecture.layers if any(weight.experts > 1 for weight in layer.weights)]
    if sparse:
        example = next(weight for layer in sparse for weight in layer.weights if weight.experts > 1)
        phrases.append(
            f"{_share(len(sparse), total)} have {example.experts} experts, of which a token uses {example.chosen}"
        )
    stateful = sum(1 for layer in architecture.layers if layer.state or layer.state32)
    if stateful:
        phrases.append(f"{_share(stateful, total)} keep a state that does not grow")
    stacks = Counter(layer.stack for layer in architecture.layers if layer.stack)
    phrases += [f"{count} layers of {stack}" for stack, count in stacks.items()] if len(stacks) > 1 else []
    return "; ".join(phrases)


def _heads(attention: Attention, kind: str) -> str:
    wide = (
        f"{attention.qk_dim}"
        if attention.qk_dim == attention.v_dim
        else f"{attention.qk_dim} (q, k) and {attention.v_dim} (v)"
    )
    heads = f"{attention.num_heads} head{'s' * (attention.num_heads != 1)} of {wide}"
    if attention.latent:
        return f"{heads} on latents of {attention.latent[0]} + {attention.latent[1]} (MLA)"
    if attention.num_kv_heads == attention.num_heads:
        return f"{heads} ({kind})"
    return f"{heads} on {attention.num_kv_heads} key/value head{'s' * (attention.num_kv_heads != 1)} ({kind})"


def _share(count: int, total: int) -> str:
    return "all layers" if count == total else f"{count} of {total} layers"
