"""The sums: FLOPs of a whole text and of one more token, numbers in the cache, numbers read to decode.

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
    "allocated_numbers",
    "cached_numbers",
    "decoding",
    "dense_pairs",
    "prefill",
    "read_numbers",
    "visible_pairs",
    "DTYPES",
    "Ask",
    "Cache",
    "Decoding",
    "Flops",
    "Sizing",
    "Variant",
    "COUNTED",
    "document",
    "layers_in_words",
    "shape_in_words",
]


OPERATIONS: tuple[str, ...] = (*PARTS[:6], "scores", "values", *PARTS[6:])
"""Where FLOPs can be spent: the parts, and attention's two products."""


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
        rest = length % window
        return length // window * triangle + rest * (rest + 1) // 2
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
        for each in layer.attention:
            count = 2 * each.num_heads * pairs(each, length_here, source)
            spent["scores"] += count * each.qk_dim
            spent["values"] += count * each.v_dim
    return _kept(spent)


def decoding(architecture: Architecture, length: int, source: int) -> dict[str, int]:
    """Operation -> FLOPs of one more token, the last of `length`."""
    spent = _products(architecture.weights, {TEXT: 1, LAST: 1, SOURCE: 0, ONCE: 0})
    for layer in architecture.layers:
        if layer.stack == "encoder":
            continue
        for each in layer.attention:
            qk_dim, v_dim = (sum(each.latent), each.latent[0]) if each.latent else (each.qk_dim, each.v_dim)
            count = 2 * each.num_heads * seen_keys(each, length, source)
            spent["scores"] += count * qk_dim
            spent["values"] += count * v_dim
    return _kept(spent)


def cached_numbers(architecture: Architecture, length: int, source: int) -> int:
    """Numbers that one text of `length` tokens leaves in the cache: what it needs for the next token, not more."""
    return sum(each.cache_width * _kept_tokens(each, length, source) for each in _caching(architecture))


def allocated_numbers(architecture: Architecture, length: int, source: int) -> int:
    """Numbers to set aside beforehand for one text of `length` tokens: a window has a place for the newest, too."""
    total = 0
    for each in _caching(architecture):
        tokens = source if each.cross else length
        if each.window is not None and each.sheds:
            tokens = min(tokens, each.window)
        total += each.cache_width * tokens
    return total


def read_numbers(architecture: Architecture, length: int, source: int, batch: int) -> tuple[float, int]:
    """Numbers read to decode one more token of each of `batch` texts: of the weights, once; of the cache, for each
    text.

    Of experts, as many as that many tokens choose on average if every choice is as likely as any other. Tables count as
    nothing (a row a token), an encoder's weights neither.
    """
    weights = 0.0
    for each in architecture.weights:
        if each.rows in (SOURCE, ONCE) or (each.part == "embedding" and not each.matmul):
            continue
        touched = each.experts * (1 - (1 - each.chosen / each.experts) ** batch) if each.experts > 1 else 1
        weights += touched * max(each.size, each.matmul)  # a tied head has no numbers of its own, and is read
    cache = sum(each.cache_width * seen_keys(each, length, source) for each in _caching(architecture))
    return weights, cache


def _kept_tokens(attention: Attention, length: int, source: int) -> int:
    if attention.cross:
        return source
    if attention.window is None or not attention.sheds:
        return length
    return min(length, attention.window - 1)  # the next token brings its own


def _caching(architecture: Architecture) -> Iterable[Attention]:
    return (each for each in architecture.attention if each.cached) if architecture.generates else ()


def _products(weights: Iterable[Weights], rows: Mapping[str, int]) -> dict[str, int]:
    spent = dict.fromkeys(OPERATIONS, 0)
    for each in weights:
        spent[each.part] += 2 * each.matmul * each.chosen * rows[each.rows]
    return spent


def _kept(spent: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in spent.items() if count}


# ---------------------------------------------------------------------------------------------------------------------
# A sizing as one JSON document: every number that it has, what each means, and where the description comes from.


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
        "cache": _cache_of_document(sizing.cache),
        "variants": [_variant_of_document(each) for each in sizing.variants],
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


# ---------------------------------------------------------------------------------------------------------------------
# A `Sizing` and its parts: what the sums of `manyheads.sizing.costs` come to, in FLOPs and bytes.


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
        return Flops(prefill(*at), sum(prefill(*at, dense=True).values()))

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


def _cache(architecture: Architecture, ask: Ask) -> Cache | None:
    if architecture.why_untold("cache") or not architecture.generates:
        return None
    now, then = (cached_numbers(architecture, ask.context + more, ask.source) for more in (0, 1))
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


# ---------------------------------------------------------------------------------------------------------------------
# An architecture in words: how its attention is shaped, and which layers differ. For pages, figures and documents.


def shape_in_words(architecture: Architecture) -> str:
    """ "80 layers of 8,192, 64 heads of 128 on 8 key/value heads (GQA-8), 32,000 words, 4,096 positions"."""
    at = architecture
    count = len(at.layers)
    said = [f"{count} layer{'s' * (count != 1)} of {at.embed_dim:,}"]
    shapes = {(each.num_heads, each.num_kv_heads, each.qk_dim, each.v_dim, each.latent) for each in at.attention}
    if len(shapes) == 1:
        said.append(_heads(at.attention[0], kind_of(at)))
    elif shapes:
        said.append(f"attention of {len(shapes)} shapes ({kind_of(at)})")
    said += [f"{at.vocab_size:,} words"] if at.vocab_size else []
    said += [f"{at.max_positions:,} positions"] if at.max_positions else []
    return ", ".join(said)


def layers_in_words(architecture: Architecture) -> str:
    """ "21 of 42 layers see the last 4,096 tokens; 58 of 61 layers have experts"; "" where all layers are alike."""
    at, said = architecture, list[str]()
    windows = Counter(each.window for layer in at.layers for each in layer.attention if each.window)
    total = len(at.layers)
    for window, count in sorted(windows.items()):
        seen = "chunks of" if any(each.chunked for each in at.attention if each.window == window) else "the last"
        said.append(f"{_share(count, total)} see {seen} {window:,} tokens")
    sparse = [layer for layer in at.layers if any(each.experts > 1 for each in layer.weights)]
    if sparse:
        one = next(each for layer in sparse for each in layer.weights if each.experts > 1)
        said.append(f"{_share(len(sparse), total)} have {one.experts} experts, of which a token uses {one.chosen}")
    stateful = sum(1 for layer in at.layers if layer.state or layer.state32)
    if stateful:
        said.append(f"{_share(stateful, total)} keep a state that does not grow")
    stacks = Counter(layer.stack for layer in at.layers if layer.stack)
    said += [f"{count} layers of {stack}" for stack, count in stacks.items()] if len(stacks) > 1 else []
    return "; ".join(said)


def _heads(attention: Attention, kind: str) -> str:
    at = attention
    wide = f"{at.qk_dim}" if at.qk_dim == at.v_dim else f"{at.qk_dim} (q, k) and {at.v_dim} (v)"
    said = f"{at.num_heads} head{'s' * (at.num_heads != 1)} of {wide}"
    if at.latent:
        return f"{said} on latents of {at.latent[0]} + {at.latent[1]} (MLA)"
    if at.num_kv_heads == at.num_heads:
        return f"{said} ({kind})"
    return f"{said} on {at.num_kv_heads} key/value head{'s' * (at.num_kv_heads != 1)} ({kind})"


def _share(count: int, total: int) -> str:
    return "all layers" if count == total else f"{count} of {total} layers"
