"""What an architecture costs: FLOPs of a text and of one more token, bytes of the cache, bytes read to decode a token.

`Sizing` holds all of it, in FLOPs and bytes; the functions below it count numbers (not bytes) for one text;
`shape_in_words` and `layers_in_words` describe an architecture in a phrase.

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

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from manyheads import units
from manyheads.base import Json, brief, divisors, plural
from manyheads.errors import ModelError, ShapeError
from manyheads.results import NotIterated, Plotted, Shown
from manyheads.sizing.architecture.architecture import (
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
from manyheads.sizing.memory import FAR, OVERHEAD, Ask, Fit, cache_terms, checked_overhead, memory_bytes
from manyheads.sizing.placement import BLOCK, CHUNK, Placement, divided, parsed_gpus, place

# Attention's two products come after the parts that make q, k and v, as they do in a layer.
OPERATIONS: tuple[str, ...] = (*PARTS[:6], "scores", "values", *PARTS[6:])
"""Where FLOPs can be spent: the parts, and attention's two products."""

SCALE_BYTES = 2  # of a row of an int8 `KVCache`: bfloat16

COUNTED = (
    "A multiply and an add are 2 FLOPs. Counted are matrix products: projections, feed-forward (the experts that a "
    "token goes through), router, scores, values, head (for the last token, where a model generates). Causal attention "
    "is counted by the pairs that are visible; dense is with all pairs."
)

GROUPS = 8
"""Key/value heads of the grouped variant of a model that has none: what Llama, Mistral and Qwen chose."""


@dataclass(frozen=True)
class Flops:
    """FLOPs by operation, of one text. `dense`: in all, where masked scores are computed and thrown away."""

    operations: Mapping[str, int]
    dense: int

    @property
    def total(self) -> int:
        """FLOPs in all, of what is visible."""
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
class Sizing(Shown, Plotted, NotIterated):
    """What an architecture costs. Counts are exact; `notes` say what they mean and what was assumed. `prefill`,
    `decode`, `cache` and `decoding` are None where there is none, or where the description cannot tell (then
    `architecture.why_untold` says why)."""

    instead = "its numbers are attributes, as .num_parameters and .cache, and .layers has each layer's parameters"

    architecture: Architecture
    ask: Ask
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        weights = f"{units.count(self.num_parameters)} parameters, {units.gb(self.weight_bytes)} {self.ask.in_dtype}"
        texts = f"{plural(self.ask.batch, 'text')} of {plural(self.ask.context, 'token')}"
        cache = f", {units.gib(self.cache.steady)} of cache" if self.cache else ""
        return f"Sizing({self.name}: {weights}; {texts}{cache})"

    @property
    def name(self) -> str:
        """What the architecture is called: a preset's name, a folder's, a model's."""
        return self.architecture.name

    @cached_property
    def served(self) -> Architecture:
        """What computes and keeps a cache: the architecture, with the heads that stream."""
        streaming = self.ask.streaming
        return self.architecture if streaming is None else self.architecture.with_streaming(streaming)

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model, all experts included."""
        return self.architecture.num_parameters

    @property
    def num_active(self) -> int:
        """Parameters that one token uses: fewer where there are experts."""
        return self.architecture.num_active

    @property
    def weight_bytes(self) -> float:
        """Bytes of all parameters in the dtype that was asked for; scales of quantised numbers are counted in the dtype
        "published" alone."""
        return self.ask.weight_bytes(self.architecture.weights)

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
        lengths = (self.served, self.ask.context, self.ask.source)
        return Flops(prefill(*lengths), sum(prefill(*lengths, dense=True).values()))

    @cached_property
    def decode(self) -> Flops | None:
        """FLOPs of one more token of one text, the last of this context."""
        if self.architecture.why_untold("flops") or not self.architecture.generates:
            return None
        operations = decoding(self.served, self.ask.context, self.ask.source)
        return Flops(operations, sum(operations.values()))

    @cached_property
    def cache(self) -> Cache | None:
        """Bytes of keys and values of all texts at this context; None where nothing is kept, or that cannot be told."""
        architecture, ask = self.served, self.ask
        if architecture.why_untold("cache") or not architecture.generates:
            return None
        # At two lengths, not from the widths: a window that is full adds nothing any more.
        now, then = (cached_numbers(architecture, ask.context + extra, ask.source) for extra in (0, 1))
        # The first token alone: at the context itself a window may be full, and would hide what a token leaves.
        first = max(cached_numbers(architecture, 1, 0), allocated_numbers(architecture, 1, 0))
        set_aside = allocated_numbers(architecture, ask.context, ask.source)
        state = ask.cache_bytes(sum(layer.state for layer in architecture.layers))
        state += 4 * sum(layer.state32 for layer in architecture.layers)
        return Cache(
            token=ask.cache_bytes(first),
            growth=ask.cache_bytes(then - now),
            steady=ask.batch * (ask.cache_bytes(now) + state),
            allocated=ask.batch * (ask.cache_bytes(set_aside) + state),
            state=ask.batch * state,
        )

    @cached_property
    def decoding(self) -> Decoding | None:
        """One step of decoding for the whole batch."""
        # Every text brings its own keys; the weights are read once for the whole batch.
        if self.cache is None or self.decode is None:
            return None
        ask = self.ask
        weights, keys = read_numbers(self.served, ask.context, ask.source, ask.batch)
        cache_bytes = ask.batch * ask.cache_bytes(keys) + self.cache.state
        weight_bytes = sum(share * ask.weight_bytes([weight]) for weight, share in weights)
        return Decoding(ask.batch * self.decode.total, weight_bytes, cache_bytes)

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """As it is, and as MHA, GQA and MQA; most in the cache first. None where there is no cache."""
        own_kind = kind_of(self.architecture)
        variants: list[Variant] = []
        for kind, (count, architecture) in variants_of(self.architecture).items() if self.cache else ():
            sizing, is_own = Sizing(architecture, self.ask), kind == own_kind
            assert sizing.cache is not None  # variants are made of what has one
            # A spec knows how many parameters its own heads take, not how many other heads would.
            parts_known = is_own or not architecture.why_untold("parts")
            num_parameters = architecture.num_parameters if parts_known else None
            intensity = sizing.decoding.intensity if sizing.decoding and parts_known else None
            variants.append(Variant(kind, count, is_own, num_parameters, sizing.cache, intensity))
        return tuple(sorted(variants, key=lambda variant: -variant.cache.steady))

    def fits(self, memory: int | str, *, overhead: float = OVERHEAD) -> Fit:
        """What fits into `memory`, bytes or a text such as "24 GB" or "64 GiB": the longest context, the largest batch.

        Counted are the weights, the cache as it is set aside, and `overhead`, the share of the memory that stays free
        for all else (activations, the runtime, fragments). What an encoder reads stays as long as it was asked for.
        Raises ShapeError for anything that is not a memory, or not a share, ModelError where the cache cannot be told.
        """
        checked_overhead(overhead)
        architecture, ask = self.served, self.ask
        if why := architecture.why_untold("cache"):
            raise ModelError(f"what fits is not known for {self.name}, since its cache is not: {why}.")
        size_bytes = memory_bytes(memory)
        free_bytes = int(size_bytes * overhead)
        cache, room = self.cache, size_bytes - free_bytes - self.weight_bytes
        longest = largest = None
        if room < 0:
            longest = largest = 0
        elif cache is not None and cache.allocated:
            terms = cache_terms(architecture)

            def needs(context: int) -> float:
                numbers = sum(term.numbers(context, ask.source) for term in terms)
                return ask.batch * ask.cache_bytes(numbers) + cache.state

            largest = int(room // (cache.allocated / ask.batch))
            limit = architecture.max_positions if architecture.learned_positions else None
            if limit is not None or needs(FAR) > room:
                longest = bisect_right(range(1, (limit or FAR) + 1), room, key=needs)
        return Fit(
            name=self.name,
            memory_bytes=size_bytes,
            overhead_bytes=free_bytes,
            weight_bytes=self.weight_bytes,
            cache_bytes=cache.allocated if cache else 0.0,
            context=ask.context,
            batch=ask.batch,
            longest_context=longest,
            largest_batch=largest,
            positions=architecture.max_positions,
        )

    def on(
        self,
        gpus: str,
        *,
        tensor: int | None = None,
        pipeline: int = 1,
        block: int = BLOCK,
        prefix: int = 0,
        chunk: int = CHUNK,
        overhead: float = OVERHEAD,
    ) -> Placement:
        """What fits on several GPUs that serve it, GPU by GPU: "4x80GB", "8 x 141 GB".

        - `gpus`: how many, and the memory of each.
        - `tensor`: over how many GPUs each layer is divided; None: all of a stage.
        - `pipeline`: into how many stages the layers are divided.
        - `block`: tokens of a block of the cache.
        - `prefix`: tokens that all texts begin with, whose full blocks are kept once.
        - `chunk`: tokens of prompts that are computed at once.
        - `overhead`: the share of each memory that stays free.

        What is divided, what each GPU holds whole and how blocks are counted: `manyheads.sizing.placement`. Raises
        ShapeError for GPUs that cannot be read, heads that do not divide over them, more stages than layers, heads that
        stream, and what is not a decoder; ModelError where the cache cannot be told.
        """
        if self.ask.streaming is not None:
            raise ShapeError("streaming: streaming heads are counted for one memory, as in fits('80 GB'), not on GPUs.")
        count, size_bytes = parsed_gpus(gpus)
        placement = Placement(
            name=self.name,
            dtype=self.ask.dtype,
            cache_dtype=self.ask.cache_dtype,
            memory_bytes=size_bytes,
            tensor=divided(count, tensor, pipeline),
            pipeline=pipeline,
            block=block,
            prefix=prefix,
            chunk=chunk,
            overhead=overhead,
        )
        return place(self.architecture, self.ask, placement)

    def to_dict(self) -> Json:
        """Everything, as plain data for JSON.

        Keys: name, family, because, notes, untold, asked, shape, parameters, flops, cache, variants, decoding.
        """

        def flops(spent: Flops | None) -> dict[str, Any] | None:
            if spent is None:
                return None
            return {"total": spent.total, "dense": spent.dense, "by_operation": dict(spent.operations)}

        def cache_bytes(cache: Cache | None) -> dict[str, Any] | None:
            return None if cache is None else {f"{name}_bytes": whole(value) for name, value in asdict(cache).items()}

        architecture = self.architecture
        layers: list[dict[str, Any]] = []
        for layer in architecture.layers:
            parts, rows = dict(by_part(layer.weights)), [asdict(attention) for attention in layer.attention]
            for row in rows:
                row["latent"] = list(row["latent"]) if row["latent"] else None  # JSON knows no tuples
            layers.append({"stack": layer.stack, "total": sum(parts.values()), "by_part": parts, "attention": rows})
        return {
            "name": architecture.name,
            "family": architecture.family,
            "because": list(architecture.because),
            "notes": list(self.notes),
            "untold": dict(architecture.untold),
            "asked": asdict(self.ask),
            "shape": {
                "embed_dim": architecture.embed_dim,
                "num_layers": len(architecture.layers),
                "vocab_size": architecture.vocab_size,
                "max_positions": architecture.max_positions,
                "attention": kind_of(architecture),
            },
            "parameters": {
                "total": self.num_parameters,
                "active": self.num_active,
                "bytes": whole(self.weight_bytes),
                "by_part": dict(self.parameters),
                "outside_layers": dict(by_part(architecture.outside)),
                "layers": layers,
            },
            "flops": {"prefill": flops(self.prefill), "decode": flops(self.decode), "counted": COUNTED},
            "cache": cache_bytes(self.cache),
            "variants": [
                {
                    "name": variant.name,
                    "own": variant.own,
                    "num_kv_heads": variant.num_kv_heads,
                    "parameters": variant.num_parameters,
                    "cache": cache_bytes(variant.cache),
                    "flops_per_byte": variant.intensity,
                }
                for variant in self.variants
            ],
            "decoding": self.decoding
            and {
                "flops": self.decoding.flops,
                "weight_bytes_read": whole(self.decoding.weight_bytes),
                "cache_bytes_read": whole(self.decoding.cache_bytes),
                "flops_per_byte": self.decoding.intensity,
            },
        }


def whole(value: int | float) -> int | float:
    """Bytes without a point where they are whole."""
    return int(value) if float(value).is_integer() else value


def variants_of(architecture: Architecture) -> dict[str, tuple[int | None, Architecture]]:
    """The architecture and what it could be with other key/value heads, by kind of attention; first their number.

    That is None for as many as query heads, for latents and for what cannot have others.
    """
    heads = {attention.num_heads for attention in architecture.attention}
    kinds: dict[str, tuple[int | None, Architecture]] = {}
    if any(attention.latent for attention in architecture.attention):
        uncompressed = (
            replace(layer, attention=tuple(replace(attention, latent=None) for attention in layer.attention))
            for layer in architecture.layers
        )
        kinds["MHA"] = (None, replace(architecture, layers=tuple(uncompressed)))
    elif heads:
        # Grouped as it is, else by the number nearest to the usual one that divides the heads of every layer.
        shared = [count for count in divisors(min(heads)) if all(head % count == 0 for head in heads)]
        grouped = [count for count in shared if 1 < count < min(heads)]
        middle = min(grouped, key=lambda count: abs(count - GROUPS), default=None)
        kv_counts = {attention.num_kv_heads for attention in architecture.attention}
        if len(kv_counts) == 1 and 1 < min(kv_counts) < min(heads):
            middle = min(kv_counts)
        for count in (None, middle, 1) if middle else (None, 1):
            variant = architecture.with_kv_heads(count, parts_told=False)
            kinds[kind_of(variant)] = (count, variant)
    kinds.setdefault(kind_of(architecture), (None, architecture))
    return kinds


def visible_pairs(attention: Attention, length: int, source: int) -> int:
    """How many pairs of a query and a key that it may see there are in one text."""
    if attention.cross:
        return length * source
    if not attention.causal:
        return length * length
    if attention.window is None or attention.window >= length:
        return length * (length + 1) // 2
    # The first `window` rows see one key more each; all later rows see a full window, or begin a triangle anew.
    window = attention.window
    triangle = window * (window + 1) // 2
    if attention.chunked:
        remainder = length % window
        return length // window * triangle + remainder * (remainder + 1) // 2
    return triangle + (length - window) * window


def dense_pairs(attention: Attention, length: int, source: int) -> int:
    """All pairs of a query and a key, those that the mask hides included."""
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
        num_rows = source if layer.stack == "encoder" else length
        for attention in layer.attention:
            count = 2 * attention.num_heads * pairs(attention, num_rows, source)
            spent["scores"] += count * attention.qk_dim
            spent["values"] += count * attention.v_dim
    return {operation: count for operation, count in spent.items() if count}


def decoding(architecture: Architecture, length: int, source: int) -> dict[str, int]:
    """Operation -> FLOPs of one more token, the last of `length`."""
    spent = _products(architecture.weights, {TEXT: 1, LAST: 1, SOURCE: 0, ONCE: 0})
    for layer in architecture.layers:
        if layer.stack == "encoder":  # it ran once, before the first token
            continue
        for attention in layer.attention:
            qk_dim, v_dim = attention.qk_dim, attention.v_dim
            if attention.latent:  # the up-projections are absorbed: queries meet the latents themselves
                qk_dim, v_dim = sum(attention.latent), attention.latent[0]
            count = 2 * attention.num_heads * seen_keys(attention, length, source)
            spent["scores"] += count * qk_dim
            spent["values"] += count * v_dim
    return {operation: count for operation, count in spent.items() if count}


def cached_numbers(architecture: Architecture, length: int, source: int) -> int:
    """Numbers that one text of `length` tokens leaves in the cache: what it needs for the next token, not more.

    Of a window one less than it sees: the next token brings its own.
    """
    return sum(term.numbers(length, source, spare=1) for term in cache_terms(architecture))


def allocated_numbers(architecture: Architecture, length: int, source: int) -> int:
    """Numbers to set aside beforehand for one text of `length` tokens: a window has a place for the newest as well."""
    return sum(term.numbers(length, source) for term in cache_terms(architecture))


def cache_scales(architecture: Architecture, length: int, source: int) -> int:
    """Scales that `KVCache(dtype=torch.int8)` sets aside for one text beside the numbers: one a key or value of a head.

    None for latents, which are not a cache of that class.
    """
    count = 0
    for attention in architecture.attention if architecture.generates else ():
        if attention.cached and not attention.latent:
            cached = length if attention.window is None or not attention.sheds else min(length, attention.window)
            count += 2 * attention.num_kv_heads * (source if attention.cross else cached)
    return count


def read_numbers(
    architecture: Architecture, length: int, source: int, batch: int
) -> tuple[list[tuple[Weights, float]], int]:
    """What is read to decode one more token of each of `batch` texts: weights, once, with the share of each that is;
    numbers of the cache, for each text.

    Of experts, as many as that many tokens choose on average if every choice is as likely as any other. Tables count as
    nothing (a row a token), an encoder's weights neither.
    """
    weights: list[tuple[Weights, float]] = []
    for weight in architecture.weights:
        # Tables and what ran once before the first token are not read again for every token.
        if weight.rows in (SOURCE, ONCE) or (weight.part == "embedding" and not weight.matmul):
            continue
        # Two tokens may choose the same expert, which is then read once: of a large batch nearly all are touched.
        touched = 1 - (1 - weight.chosen / weight.experts) ** batch if weight.experts > 1 else 1.0
        # A tied head has no numbers of its own, and is read.
        weights.append((replace(weight, size=max(weight.size, weight.matmul)), touched))
    cache = sum(attention.cache_width * seen_keys(attention, length, source) for attention in architecture.attention)
    return weights, cache


def _products(weights: Iterable[Weights], rows: Mapping[str, int]) -> dict[str, int]:
    spent = dict.fromkeys(OPERATIONS, 0)
    for weight in weights:
        spent[weight.part] += 2 * weight.matmul * weight.chosen * rows[weight.rows]
    return spent


def shape_in_words(architecture: Architecture) -> str:
    """ "80 layers of 8,192, 64 heads of 128 on 8 KV heads (GQA-8), vocabulary of 32,000, 4,096 positions"."""
    phrases = [f"{plural(len(architecture.layers), 'layer')} of {architecture.embed_dim:,}"]
    shapes = {
        (attention.num_heads, attention.num_kv_heads, attention.qk_dim, attention.v_dim, attention.latent)
        for attention in architecture.attention
    }
    if len(shapes) == 1:
        attention, kind = architecture.attention[0], kind_of(architecture)
        same_width = attention.qk_dim == attention.v_dim
        width = f"{attention.qk_dim}" if same_width else f"{attention.qk_dim} (q, k) and {attention.v_dim} (v)"
        heads = f"{plural(attention.num_heads, 'head')} of {width}"
        if attention.latent:
            heads += f" on latents of {attention.latent[0]} + {attention.latent[1]} (MLA)"
        elif attention.num_kv_heads == attention.num_heads:
            heads += f" ({kind})"
        else:
            heads += f" on {plural(attention.num_kv_heads, 'KV head')} ({kind})"
        phrases.append(heads)
    elif shapes:
        phrases.append(f"attention of {len(shapes)} shapes ({kind_of(architecture)})")
    phrases += [f"vocabulary of {architecture.vocab_size:,}"] if architecture.vocab_size else []
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
        chunked = any(attention.chunked for attention in architecture.attention if attention.window == window)
        scope = "chunks of" if chunked else "the last"
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


def layer_in_words(layer: LayerShape) -> str:
    """ "GQA-8, window 4,096", "encoder, MHA", "MLA, 256 experts": what tells a layer from others."""
    windows = sorted({attention.window for attention in layer.attention if attention.window is not None})
    num_experts = max((weight.experts for weight in layer.weights), default=1)
    words = [layer.stack, kind_of(layer) or "no attention", *(f"window {window:,}" for window in windows)]
    return ", ".join(filter(None, [*words, f"{num_experts} experts" if num_experts > 1 else ""]))


def _share(count: int, total: int) -> str:
    return "all layers" if count == total else f"{count} of {total} layers"
