"""What an architecture costs, ready to draw: `mh.size` with its cache against context, layer by layer, part by part.

Why: the page's sliders ask again at every move, so an answer has to come at once, and a slider at its end must be an
answer too, not a server out of memory: sizes are capped here, far past any model.
Cost: arithmetic, some milliseconds; for a model of a family that has no formula, as `mh.size`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from manyheads import __version__
from manyheads.errors import ShapeError
from manyheads.models import size
from manyheads.sizing import (
    PRESETS,
    Architecture,
    LayerShape,
    Sizing,
    Variant,
    Weights,
    by_part,
    kind_of,
    preset,
    transformer,
)
from manyheads.sizing.costs import COUNTED
from manyheads.studio.schema.sizes import CacheLine, CachePoint, SizeAsk, SizeLayer, SizePreset, SizeReport

__all__ = ["presets", "run"]


MAX_LAYERS = 512  # of a description: each is drawn; the largest model that is known has some 130
MAX_WORD = 10_000_000  # of any other number in a description
MAX_NAME = 200
LONGEST = 131_072  # tokens that every line is drawn to, at the least
ATTENTION, FEED_FORWARD = ("q", "k", "v", "qkv", "latent", "o"), ("feed-forward", "router")


def run(ask: SizeAsk, config_of: Callable[[str], Any]) -> SizeReport:
    """What a preset, a model of the workspace or a description costs. `config_of(name)`: what `mh.size` takes of it.

    Errors: ShapeError where not exactly one of the three is asked for, or sizes do not fit; ModelError, and whatever
    `config_of` raises.
    """
    what, num_kv_heads = _meant(ask, config_of)
    found = size(what, ask.context, ask.batch, ask.dtype, num_kv_heads=num_kv_heads, cache_dtype=ask.cache_dtype)
    return SizeReport(
        name=found.name,
        num_parameters=found.num_parameters,
        weight_bytes=found.weight_bytes,
        cache_bytes=found.cache.steady if found.cache else None,
        parts=dict(found.parameters),
        layers=[_layer(at, layer, found.architecture) for at, layer in enumerate(found.architecture.layers)],
        lines=_lines(found),
        notes=_notes(found),
        document={"manyheads": __version__, **found.to_dict(), "written": []},
    )


def presets() -> list[SizePreset]:
    """Every preset, in words where words say all of it."""
    return list(_presets())


# ------------------------------------------------------------------------------------------------------- what is meant


def _meant(ask: SizeAsk, config_of: Callable[[str], Any]) -> tuple[Any, int | None]:
    """What `mh.size` is asked, and the key/value heads to give it instead."""
    given = [name for name in ("preset", "model", "words") if getattr(ask, name) is not None]
    if len(given) != 1:
        raise ShapeError(
            f"{' and '.join(given) or 'nothing'} was given to size: give exactly one of preset=, model= or words=."
        )
    if ask.preset is not None:
        return preset(ask.preset), ask.num_kv_heads  # looked up by name, never as a file
    if ask.model is not None:
        return config_of(ask.model), ask.num_kv_heads
    words = dict(ask.words or {})
    _require_sane(words)
    words.pop("model_type", None)  # would make it a config
    return {**words, **({"num_kv_heads": ask.num_kv_heads} if ask.num_kv_heads is not None else {})}, None


def _require_sane(words: Mapping[str, int | bool | str]) -> None:
    """Raises ShapeError for numbers that no model has and no page could draw."""
    for name, value in words.items():
        most = MAX_LAYERS if name == "num_layers" else MAX_WORD
        if isinstance(value, int) and not -most <= value <= most:
            raise ShapeError(f"{name[:40]} is above {most:,}, the most that is drawn here. Give a smaller number.")
        if len(name) > MAX_NAME or (isinstance(value, str) and len(value) > MAX_NAME):
            raise ShapeError(f"{name[:40]} is a text of more than {MAX_NAME} characters: give a shorter one.")


# -------------------------------------------------------------------------------------------------------- what is drawn


def _layer(index: int, layer: LayerShape, whole: Architecture) -> SizeLayer:
    parts = dict(by_part(layer.weights))
    attention, feed_forward = (sum(parts.get(name, 0) for name in names) for names in (ATTENTION, FEED_FORWARD))
    other = sum(parts.values()) - attention - feed_forward
    kind = _kind(layer, whole)
    return SizeLayer(index=index, kind=kind, attention=attention, feed_forward=feed_forward, other=other, parts=parts)


def _kind(layer: LayerShape, whole: Architecture) -> str:
    """A layer in a few words: "GQA-8, window 4,096", "encoder, MHA"."""
    windows = sorted({attention.window for attention in layer.attention if attention.window is not None})
    experts = max((weight.experts for weight in layer.weights), default=1)
    said = [layer.stack, kind_of(replace(whole, layers=(layer,))) or "no attention"]
    said += [f"window {window:,}" for window in windows]
    said += [f"{experts} experts"] if experts > 1 else []
    return ", ".join(part for part in said if part)


def _lines(found: Sizing) -> list[CacheLine]:
    """The cache of every variant at every context that is drawn."""
    by_context = {context: _at(found, context).variants for context in _contexts(found)}
    return [_line(variant, by_context) for variant in found.variants]


def _line(each: Variant, by_context: Mapping[int, tuple[Variant, ...]]) -> CacheLine:
    points = []
    for context, variants in by_context.items():
        same = next(one for one in variants if (one.name, one.num_kv_heads) == (each.name, each.num_kv_heads))
        points.append(CachePoint(context=context, num_bytes=same.cache.steady))
    return CacheLine(
        name=each.name or "as it is",
        num_kv_heads=each.num_kv_heads,
        own=each.own,
        num_parameters=each.num_parameters,
        points=points,
        num_bytes=each.cache.steady,
    )


def _contexts(found: Sizing) -> list[int]:
    """Powers of two, and the context that is asked for; none that the model has no positions for."""
    at, asked = found.architecture, found.ask.context
    hard = at.max_positions if at.learned_positions else None
    most = hard or max(asked, at.max_positions or 0, LONGEST)
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({asked, *(context for context in powers if context <= most)})


def _at(found: Sizing, context: int) -> Sizing:
    """The same at another context; an encoder reads as many tokens as that, unless it always reads equally many."""
    source = found.architecture.num_source or context
    return Sizing(found.architecture, replace(found.ask, context=context, source=source))


def _notes(found: Sizing) -> list[str]:
    """What is counted, what was assumed, what cannot be told: as sentences."""
    at = found.architecture
    said = ["; ".join(at.because)] if at.because else []
    said += [f"{what} cannot be told: {why}" for what, why in at.untold]
    said += list(found.notes)
    if at.learned_positions and found.cache:
        said.append(f"drawn to {at.max_positions:,} tokens, all the positions that it has")
    said = [f"{each[:1].upper()}{each[1:].rstrip('.')}." for each in said]
    return [*said, COUNTED] if found.prefill else said


# ----------------------------------------------------------------------------------------------------- presets in words


@cache
def _presets() -> tuple[SizePreset, ...]:
    return tuple(
        SizePreset(name=name, title=each.title, source=each.source, note=each.note, words=_words(preset(name)))
        for name, each in PRESETS.items()
    )


def _words(at: Architecture) -> dict[str, int | bool | str | None] | None:
    """The words of `blocks.transformer` that describe `at` to the last parameter; None where there are none."""
    first = at.layers[0]
    if len(set(at.layers)) > 1 or len(first.attention) != 1 or at.num_tokens is not None:
        return None
    head = first.attention[0]
    weights = {part: [weight for weight in first.weights if weight.part == part] for part in by_part(first.weights)}
    inner = weights.get("feed-forward", [None])[0]
    guess: dict[str, Any] = {
        "num_layers": len(at.layers),
        "embed_dim": at.embed_dim,
        "num_heads": head.num_heads,
        "num_kv_heads": head.num_kv_heads,
        "head_dim": head.qk_dim,
        "window": head.window,
        "causal": head.causal,
        "vocab_size": at.vocab_size,
        "learned_positions": at.max_positions if at.learned_positions else None,
        "qkv_bias": any(_biased(each) for part in "qkv" for each in weights.get(part, [])),
        "o_bias": any(_biased(each) for each in weights.get("o", [])),
        "ffn_bias": inner is not None and _biased(inner),
        "tied": any(each.part == "head" and each.size < each.matmul for each in at.outside),
        **_experts(inner),
    }
    for gated in (True, False):  # three matrices or two: told apart by what is usual, and tried
        for norm in ("rms", "layer", "none"):
            ffn = inner.matmul // ((3 if gated else 2) * at.embed_dim) if inner else 0
            words = {**guess, "ffn_dim": ffn, "gated": gated and bool(inner), "norm": norm}
            words = {name: value for name, value in words.items() if value is not None}
            if (not gated or _usually_gated(at)) and _same(at, words):
                return words
    return None


def _experts(inner: Weights | None) -> dict[str, int]:
    if inner is None or inner.experts == 1:
        return {}
    return {"num_experts": inner.experts, "experts_per_token": inner.chosen}


def _biased(weights: Weights) -> bool:
    return weights.size > weights.matmul


def _usually_gated(at: Architecture) -> bool:
    """Whether the preset's config names a width that only three matrices explain."""
    config = PRESETS[at.name].config
    inner = next((weight for weight in at.layers[0].weights if weight.part == "feed-forward"), None)
    width = config.get("intermediate_size")
    return inner is not None and width is not None and inner.matmul == 3 * at.embed_dim * width


def _same(at: Architecture, words: Mapping[str, Any]) -> bool:
    """Whether these words give the same parameters, part by part, and the same attention."""
    try:
        made = transformer(**words)
    except ShapeError:
        return False
    outside = dict(by_part(made.outside)) == dict(by_part(at.outside))
    layers = [(dict(by_part(each.weights)), each.attention) for each in (made.layers[0], at.layers[0])]
    return outside and layers[0] == layers[1] and made.generates == at.generates
