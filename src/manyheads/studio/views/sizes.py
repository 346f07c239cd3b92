"""The costs of an architecture, ready to draw: `mh.size` with its cache against context, layer by layer, part by part.

A slider at its end must get an answer, not a server out of memory: sizes are capped here, far beyond any model.
The page itself needs no answer for a preset: parameters and bytes are sums of products, whose coefficients (`shape`)
stand in a table that this module writes (`python -m manyheads.studio.views.sizes FILE`; `make web` does). So a page
without a server can size as well, and no formula of an architecture is written twice.
Cost: arithmetic, some milliseconds; for a model of an architecture without a formula, that of `mh.size`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from manyheads import __version__
from manyheads.errors import ShapeError
from manyheads.models import size
from manyheads.sizing import (
    COUNTED,
    DTYPES,
    MAC_SHARE,
    MACHINES,
    OVERHEAD,
    PRESETS,
    SEVERAL,
    Ask,
    Placement,
    Sizing,
    cache_terms,
    layer_in_words,
    preset,
    variants_of,
)
from manyheads.sizing.architecture import Architecture, LayerShape, Weights, by_part, transformer
from manyheads.studio.schema import sizes as bodies

MAX_LAYERS = 512  # of a description: each is drawn; the largest known model has some 130
MAX_WORD = 10_000_000  # of any other number in a description
MAX_NAME = 200
LONGEST = 131_072  # tokens to which every line is drawn at least
ATTENTION, FEED_FORWARD = ("q", "k", "v", "qkv", "latent", "o"), ("feed-forward", "router")


def run(ask: bodies.SizeAsk, config_of: Callable[[str], object]) -> bodies.SizeReport:
    """The costs of a preset, of a model of the workspace, or of a description.

    `config_of(name)` returns the argument of `mh.size` for a model of the workspace. Errors: ShapeError where not
    exactly one of the three is given, or sizes do not fit; ModelError, and whatever `config_of` raises.
    """
    names = [name for name in ("preset", "model", "words") if getattr(ask, name) is not None]
    if len(names) != 1:
        raise ShapeError(
            f"{' and '.join(names) or 'nothing'} was given to size: give exactly one of preset=, model= or words=."
        )
    subject: object
    num_kv_heads = ask.num_kv_heads
    if ask.preset is not None:
        subject = preset(ask.preset)  # by its name in our table: `mh.size` would look for a file of that name, too
    elif ask.model is not None:
        subject = config_of(ask.model)
    else:
        subject = dict(ask.words or {})
        for name, value in subject.items():
            most = MAX_LAYERS if name == "num_layers" else MAX_WORD
            if isinstance(value, int) and not -most <= value <= most:
                raise ShapeError(f"{name[:40]} is above {most:,}, the most that is drawn here. Give a smaller number.")
            if len(name) > MAX_NAME or (isinstance(value, str) and len(value) > MAX_NAME):
                raise ShapeError(f"{name[:40]} is a text of more than {MAX_NAME} characters: give a shorter one.")
        subject.pop("model_type", None)  # would make `mh.size` read it as a config
        if num_kv_heads is not None:
            subject, num_kv_heads = {**subject, "num_kv_heads": num_kv_heads}, None
    sizing = size(subject, ask.context, ask.batch, ask.dtype, num_kv_heads=num_kv_heads, cache_dtype=ask.cache_dtype)
    architecture = sizing.architecture
    # What is counted, what was assumed, what is unknown: as sentences.
    notes = _origin(architecture)
    notes += list(sizing.notes)
    if architecture.learned_positions and sizing.cache:
        notes.append(f"drawn to {architecture.max_positions:,} tokens, all the positions that it has")
    notes = list(map(_sentence, notes))
    layers: list[bodies.SizeLayer] = []
    for index, layer in enumerate(architecture.layers):
        parts = dict(by_part(layer.weights))
        attention, feed_forward = (sum(parts.get(name, 0) for name in names) for names in (ATTENTION, FEED_FORWARD))
        layers.append(
            bodies.SizeLayer(
                index=index,
                kind=layer_in_words(layer),
                attention=attention,
                feed_forward=feed_forward,
                other=sum(parts.values()) - attention - feed_forward,
                parts=parts,
            )
        )
    return bodies.SizeReport.of(
        sizing,
        cache_bytes=sizing.cache.steady if sizing.cache else None,
        parts=dict(sizing.parameters),
        layers=layers,
        lines=_lines(sizing),
        notes=[*notes, COUNTED] if sizing.prefill else notes,
        shape=shape_of(architecture),
        document={"manyheads": __version__, **sizing.to_dict(), "written": []},
    )


@cache
def presets() -> tuple[bodies.SizePreset, ...]:
    """Every preset, with its description in words where words describe it exactly."""
    return tuple(bodies.SizePreset.of(entry, name=name, words=_words(preset(name))) for name, entry in PRESETS.items())


def shape_of(architecture: Architecture) -> bodies.SizeShape:
    """The coefficients of an architecture's size, equal layers taken together."""
    kinds: list[bodies.LayerKind] = []
    for layer, count in Counter(architecture.layers).items():
        num_kv_heads = layer.attention[0].num_kv_heads if layer.attention else 1
        shared = by_part(tuple(weight for weight in layer.weights if weight.per_kv_head))
        kinds.append(
            bodies.LayerKind(
                kind=layer_in_words(layer),
                count=count,
                parts=dict(by_part(layer.weights)),
                per_kv_head={part: total // num_kv_heads for part, total in shared.items()},
            )
        )
    heads = {(attention.num_heads, attention.num_kv_heads) for attention in architecture.attention}
    latent = any(attention.latent for attention in architecture.attention)
    variants = Sizing(architecture, Ask(1, 1, 1, "fp32", "fp32")).variants  # how much they keep is the page's sum
    changeable = len(heads) == 1 and not latent and variants and not architecture.why_untold("parts")
    num_heads, num_kv_heads = heads.pop() if changeable else (None, None)
    return bodies.SizeShape(
        positions=architecture.max_positions,
        learned_positions=architecture.learned_positions,
        num_tokens=architecture.num_tokens,
        num_source=architecture.num_source,
        outside=dict(by_part(architecture.outside)),
        kinds=kinds,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        terms=_terms(architecture.with_kv_heads(1)) if changeable else [],
        variants=[]
        if changeable
        else [
            bodies.CacheShape.of(variant, name=variant.name or "as it is", terms=_terms(shaped))
            for variant in variants
            for _, shaped in [variants_of(architecture)[variant.name]]
        ],
        num_idle=architecture.num_parameters - architecture.num_active,
        state=sum(layer.state for layer in architecture.layers),
        state32=sum(layer.state32 for layer in architecture.layers),
        served=_served(architecture),
        notes=list(map(_sentence, _origin(architecture))),
    )


def _served(architecture: Architecture) -> bodies.Served | None:
    """What the page divides over GPUs, as `manyheads.sizing.placement` does; None for what that refuses."""
    several = any(layer.stack or len(layer.attention) > 1 for layer in architecture.layers)
    untold = architecture.why_untold("cache") or architecture.why_untold("parts")
    if untold or several or not architecture.generates or architecture.has_source:
        return None
    kinds = list(dict.fromkeys(architecture.layers))
    runs = [(kinds.index(layer), len(list(equal))) for layer, equal in groupby(architecture.layers)]

    def outside(first: bool) -> bodies.ServedOutside:
        weights = [weight for weight in architecture.outside if (weight.part == "embedding") == first]
        return bodies.ServedOutside(
            whole=sum(weight.size for weight in weights if weight.stands_whole),
            divided=[
                (weight.size, weight.matmul if weight.part == "head" and weight.size < weight.matmul else 0)
                for weight in weights
                if not weight.stands_whole
            ],
        )

    return bodies.Served(
        embed_dim=architecture.embed_dim,
        vocab_size=architecture.vocab_size or 0,
        kinds=[_served_kind(layer, architecture.embed_dim) for layer in kinds],
        runs=runs,
        first=outside(True),
        last=outside(False),
    )


def _served_kind(layer: LayerShape, embed_dim: int) -> bodies.ServedKind:
    """A layer's weights as those that stand on every GPU, those that are divided, and those of each key/value head."""
    item = layer.attention[0] if layer.attention else None
    shared = item if item and not item.latent else None  # with keys and values of each key/value head
    num_kv_heads = shared.num_kv_heads if shared else 1
    whole = per_kv_head = beside = 0
    divided: Counter[int] = Counter()
    forward: list[tuple[int, int]] = []
    for weight in layer.weights:
        if weight.part == "feed-forward" and weight.matmul:
            forward.append((weight.matmul, weight.chosen))
            beside += weight.chosen * embed_dim if weight.experts > 1 else 0
        if weight.stands_whole:
            whole += weight.total
        elif weight.per_kv_head and shared:
            per_kv_head += weight.total // num_kv_heads
        else:
            bias, size = weight.summed_bias(embed_dim), weight.size
            if weight.part == "qkv" and shared:  # what k and v are of one matrix
                of_heads = num_kv_heads * (shared.qk_dim + shared.v_dim)
                of_keys = size * of_heads // (of_heads + shared.num_heads * shared.qk_dim)
                per_kv_head += of_keys // num_kv_heads
                size -= of_keys
            whole += bias * weight.experts
            divided[size - bias] += weight.experts
    return bodies.ServedKind(
        whole=whole,
        divided=list(divided.items()),
        per_kv_head=per_kv_head,
        attention=item
        and bodies.ServedAttention(
            num_heads=item.num_heads,
            num_kv_heads=item.num_kv_heads,
            width=item.cache_width if item.latent else item.cache_width // item.num_kv_heads,
            latent=item.latent is not None,
            window=item.window if item.sheds else None,
            chunked=item.chunked and item.sheds and item.window is not None,
            scored=item.qk_dim + item.v_dim,
        ),
        forward=forward,
        beside=beside,
        state=layer.state,
        state32=layer.state32,
    )


def _lines(sizing: Sizing) -> list[bodies.CacheLine]:
    """The cache of every variant at powers of two and at the requested context, up to the last position of a model."""
    architecture, requested = sizing.architecture, sizing.ask.context
    hard_limit = architecture.max_positions if architecture.learned_positions else None
    longest = hard_limit or max(requested, architecture.max_positions or 0, LONGEST)
    powers = [1 << power for power in range(longest.bit_length())]
    contexts = sorted({requested, *(context for context in powers if context <= longest)})
    points: dict[tuple[str, int | None], dict[int, bodies.CachePoint]] = {}
    for context in contexts:
        # An encoder reads as many tokens as the context, unless it always reads the same number.
        source = architecture.num_source or context
        for variant in Sizing(architecture, replace(sizing.ask, context=context, source=source)).variants:
            point = bodies.CachePoint(context=context, num_bytes=variant.cache.steady)
            points.setdefault((variant.name, variant.num_kv_heads), {}).setdefault(context, point)
    return [
        bodies.CacheLine.of(
            variant,
            name=variant.name or "as it is",
            points=list(points[variant.name, variant.num_kv_heads].values()),
            num_bytes=variant.cache.steady,
        )
        for variant in sizing.variants
    ]


def _terms(architecture: Architecture) -> list[bodies.CacheTerm]:
    return [bodies.CacheTerm(**term._asdict()) for term in cache_terms(architecture)]


def _origin(architecture: Architecture) -> list[str]:
    """Where a description is from, and what it cannot tell."""
    origin = ["; ".join(architecture.because)] if architecture.because else []
    return origin + [f"{quantity} cannot be told: {why}" for quantity, why in architecture.untold]


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:].rstrip('.')}."


def _words(architecture: Architecture) -> dict[str, int | bool | str | None] | None:
    """The arguments of `sizing.transformer` that give `architecture` to the last parameter; None where none do."""
    first = architecture.layers[0]
    if len(set(architecture.layers)) > 1 or len(first.attention) != 1 or architecture.num_tokens is not None:
        return None
    head = first.attention[0]
    weights = {part: [weight for weight in first.weights if weight.part == part] for part in by_part(first.weights)}
    inner = weights.get("feed-forward", [None])[0]
    guess: dict[str, Any] = {
        "num_layers": len(architecture.layers),
        "embed_dim": architecture.embed_dim,
        "num_heads": head.num_heads,
        "num_kv_heads": head.num_kv_heads,
        "head_dim": head.qk_dim,
        "window": head.window,
        "causal": head.causal,
        "vocab_size": architecture.vocab_size,
        "learned_positions": architecture.max_positions if architecture.learned_positions else None,
        "qkv_bias": any(_has_bias(weight) for part in "qkv" for weight in weights.get(part, [])),
        "o_bias": any(_has_bias(weight) for weight in weights.get("o", [])),
        "ffn_bias": inner is not None and _has_bias(inner),
        "tied": any(weight.part == "head" and weight.size < weight.matmul for weight in architecture.outside),
    }
    if inner is not None and inner.experts > 1:
        guess |= {"num_experts": inner.experts, "experts_per_token": inner.chosen}
    # A config does not say whether there are two matrices or three (gated). Where its width fits three exactly, both
    # are tried, the gated form first; every guess is held against the architecture to the last parameter.
    width = PRESETS[architecture.name].config.get("intermediate_size")
    sums = dict(by_part(architecture.outside)), dict(by_part(first.weights))
    may_be_gated = inner is not None and width is not None and inner.matmul == 3 * architecture.embed_dim * width
    for gated in (True, False) if may_be_gated else (False,):
        for norm in ("rms", "layer", "none"):
            ffn_dim = inner.matmul // ((3 if gated else 2) * architecture.embed_dim) if inner else 0
            words = {**guess, "ffn_dim": ffn_dim, "gated": gated, "norm": norm}
            words = {name: value for name, value in words.items() if value is not None}
            try:
                described = transformer(**words)
            except ShapeError:
                continue
            layer = described.layers[0]
            is_same = (dict(by_part(described.outside)), dict(by_part(layer.weights))) == sums
            if is_same and layer.attention == first.attention and described.generates == architecture.generates:
                return words
    return None


def _has_bias(weights: Weights) -> bool:
    return weights.size > weights.matmul


def page_table() -> str:
    """What the page sizes with, as the JSON that it imports: presets, bits of a number, memories that people have.

    A preset that words describe exactly needs no shape: the page makes it from them, as it does of any description.
    """
    rows: list[dict[str, Any]] = []
    for entry in presets():
        shape = shape_of(preset(entry.name))
        # The page has the title already, and takes what is not said for false.
        notes = [re.sub(f"^{re.escape(entry.title)}(?=;)", "~", note) for note in shape.notes]
        shape = shape.model_copy(update={"notes": notes})
        words = {name: value for name, value in (entry.words or {}).items() if value is not False or name == "causal"}
        positions = {"positions": shape.positions, "notes": notes}
        content = {"words": words, **positions} if words else {"shape": shape.model_dump(mode="json")}
        rows.append({"name": entry.name, "title": entry.title, **content})
    table = {
        "bits": DTYPES, "overhead": OVERHEAD, "mac_share": MAC_SHARE, "machines": {**MACHINES, **SEVERAL},
        "block": Placement.default_block, "chunk": Placement.default_chunk,
        "presets": rows,
    }  # fmt: skip
    return json.dumps(table, separators=(",", ":"), ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page_table(), encoding="utf-8")
