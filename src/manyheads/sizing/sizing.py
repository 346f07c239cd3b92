"""`size`: what an architecture costs. `architecture_of`: what a preset, a config.json, a description or a spec means.

What: parameters by part and by layer, FLOPs of a whole text and of one more token, the cache at a context, the same
architecture as MHA, GQA and MQA side by side, and how many FLOPs decoding has for each byte that it reads.
Why: these numbers decide what to train and what to serve, and are needed before either. Calculators that know only
`4 d^2 + 8 d^2` miss grouped heads, wide heads, windows, latents, tied tables and experts; here each of them is in the
description, and what a description does not say is refused, never estimated.
Cost: arithmetic. Neither torch nor NumPy is imported; what needs transformers is in `manyheads.models.dimensions`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import Any, cast

from manyheads import units
from manyheads.base import one_of, whole
from manyheads.errors import FileAccessError, ModelError, ShapeError
from manyheads.sizing.architecture import building_blocks as blocks
from manyheads.sizing.architecture.architecture import Architecture, Attention, LayerShape, Streaming
from manyheads.sizing.architecture.config import describe_config, read_config
from manyheads.sizing.costs import SCALE_BYTES, Sizing, cache_scales
from manyheads.sizing.memory import DTYPES, PUBLISHED, Ask
from manyheads.sizing.presets import PRESETS, did_you_mean, key_of, preset
from manyheads.spec import ModelSpec

CONTEXT = 4096
"""Tokens of a text unless said: as many, or all that a model has positions for."""


def size(
    architecture: Architecture,
    context: int | None = None,
    batch: int = 8,
    dtype: str = "fp16",
    *,
    num_kv_heads: int | None = None,
    source: int | None = None,
    cache_dtype: str | None = None,
    streaming: float = 0.0,
    sink: int = 128,
    recent: int = 256,
) -> Sizing:
    """What an architecture costs, as `mh.size` says.

    - `architecture`: what is sized.
    - `context`: tokens of a text; None: 4,096, fewer where a model has fewer positions.
    - `batch`: how many texts at once.
    - `dtype`: of the weights; "published": each part as its config.json says, scales counted.
    - `num_kv_heads`: the same with so many key/value heads.
    - `source`: tokens of what an encoder reads; None: `context`.
    - `cache_dtype`: of the cache; None: `dtype`, of published weights what is not packed.
    - `streaming`: the share of key/value heads that stream, 0 to 1.
    - `sink`: the first tokens that a streaming head keeps.
    - `recent`: the last tokens that a streaming head keeps.

    Raises ModelError or ShapeError.
    """
    if num_kv_heads is not None:
        whole("num_kv_heads", num_kv_heads, 1, ShapeError)
        architecture = architecture.with_kv_heads(num_kv_heads)
        architecture = replace(architecture, because=(*architecture.because, f"with num_kv_heads={num_kv_heads}"))
    one_of("dtype", dtype, (*DTYPES, PUBLISHED), ModelError, "is not a dtype known here")
    stored = architecture.stored if dtype == PUBLISHED else None
    if dtype == PUBLISHED and stored is None:
        raise ModelError(
            f"{dtype=}: nothing says how the weights of {architecture.name} are published, or it is a packing that is "
            f"not known here. Use one of {', '.join(DTYPES)}."
        )
    if cache_dtype is None:
        cache_dtype = dtype if stored is None else stored.form if stored.form in DTYPES else "bf16"
    one_of("cache_dtype", cache_dtype, DTYPES, ModelError, "is not a dtype known here")
    length, notes = _context(architecture, context)
    source_length = whole("source", source, 1, ShapeError) if source is not None else architecture.num_source or length
    if source is not None and not architecture.has_source:
        raise ShapeError(f"{source=}: {architecture.name} reads no second text. Leave it out.")
    ask = Ask(
        length,
        source_length,
        whole("batch", batch, 1, ShapeError),
        dtype,
        cache_dtype,
        Streaming(streaming, sink, recent) if streaming else None,
        stored,
    )
    served = Sizing(architecture, ask).served
    if ask.streaming is not None:
        total, before, streams = (
            sum(attention.num_kv_heads for attention in shape.attention if window in (None, attention.window))
            for shape, window in ((architecture, None), (architecture, sink + recent), (served, sink + recent))
        )
        words = f"{streams - before:,} of {total:,} key/value heads keep {sink:,} + {recent:,} tokens and no more"
        notes = (words, *notes)
    scales = ask.batch * SCALE_BYTES * cache_scales(served, ask.context, ask.source)
    if ask.cache_dtype == "int8" and scales and not architecture.why_untold("cache"):
        size_in_words = f"{units.gib(scales)} ({scales:,} bytes)"
        notes = (
            f"the scales of KVCache(dtype=torch.int8), {size_in_words}, come on top of the cache",
            *notes,
        )  # first: what stands last is shown on top where a text is too long
    return Sizing(architecture, ask, notes)


def architecture_of(what: object) -> Architecture:
    """The architecture that `what` means, where that is known without transformers.

    `what`: a preset's name, or the repository that it is from ("Qwen/Qwen3-8B"); a config.json or a folder with one, a
    config as a mapping, a mapping in plain words, a `ModelSpec`, or an `Architecture`. Raises ModelError, ShapeError or
    FileAccessError.
    """
    if isinstance(what, Architecture):
        return what
    if isinstance(what, ModelSpec):
        return from_spec(what)
    if isinstance(what, Mapping):
        mapping = cast("Mapping[str, Any]", what)
        return describe_config(mapping) if "model_type" in mapping else _in_words(mapping)
    if not isinstance(what, str | os.PathLike):
        raise ModelError(
            f"cannot size a {type(what).__name__}. Give a preset's name, a config.json, a folder, a mapping or a spec."
        )
    # A preset's name wins over a file of that name: give that as ./name. A folder wins over the hub's "owner/name".
    name = str(os.fspath(cast("str | os.PathLike[str]", what)))
    is_here = bool(name.strip()) and os.path.exists(os.path.expanduser(name))
    if isinstance(what, str) and key_of(what) in PRESETS and not (is_here and "/" in what):
        return preset(what)
    if is_here:
        return read_config(name)
    if not isinstance(what, str) or name.endswith((".json", ".gguf")) or name.startswith((".", "/", "~")):
        raise FileAccessError(f"there is no file or folder {name}.")
    raise ModelError(
        f"nothing to size is called {name!r}: no preset, and no file or folder here.{did_you_mean(name)} "
        f"`manyheads size --list` shows the presets."
    )


def _in_words(words: Mapping[str, Any]) -> Architecture:
    """A mapping in our own words. Raises ShapeError naming those that are unknown, missing or of another kind."""
    parameters = signature(blocks.transformer).parameters
    if unknown := sorted(str(word) for word in words if word not in parameters):
        raise ShapeError(f"a description has no {', '.join(unknown)}. It has {', '.join(parameters)}.")
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if missing := [name for name in needed if name not in words]:
        raise ShapeError(
            f"a description needs {', '.join(needed)}, but there is no {' and no '.join(missing)}. (A config of "
            f"transformers has a model_type.)"
        )
    for name, value in words.items():
        if value is None and name not in needed:
            continue
        kind = str(parameters[name].annotation)
        if kind.startswith("int") and not (name == "ffn_dim" and value == 0):
            whole(name, value, 1, ShapeError)
        elif kind in ("bool", "str") and type(value).__name__ != kind:
            raise ShapeError(f"{name}={value!r}: give {'True or False' if kind == 'bool' else 'a text'}.")
    return blocks.transformer(**words)


def _context(architecture: Architecture, context: int | None) -> tuple[int, tuple[str, ...]]:
    """How many tokens a text has, and what is to be said about that."""
    name, limit = architecture.name, architecture.max_positions
    if architecture.num_tokens is not None:
        if context not in (None, architecture.num_tokens):
            raise ShapeError(f"context={context}: {name} reads images, always {architecture.num_tokens} tokens.")
        return architecture.num_tokens, (f"an image is {architecture.num_tokens} tokens",)
    if context is None:
        if limit is not None and limit < CONTEXT:
            return limit, (f"context is {limit:,}, all the positions that {name} has",)
        return CONTEXT, ()
    whole("context", context, 1, ShapeError)
    if limit is None or context <= limit:
        return context, ()
    # Past the last row of a learned table there is nothing to look up; rotary positions go on, if not well.
    if architecture.learned_positions:
        raise ShapeError(f"context={context}: {name} has positions for {limit:,} tokens and no more.")
    return context, (f"context is past the {limit:,} positions that {name} is made for",)


REMEDY = "Give the model itself, its config.json or its folder"


def from_spec(spec: ModelSpec) -> Architecture:
    """Attention's matrices site by site, and all else as one part; the cache as one that keeps every token.

    Raises ShapeError where a spec says too little: no sites, several stacks, no width of the residual stream.
    """
    if not spec.sites:
        raise ShapeError(f"the spec of {spec.name} has no attention to size. {REMEDY}.")
    if len(spec.stacks) > 1:
        raise ShapeError(
            f"the spec of {spec.name} has {len(spec.stacks)} stacks ({', '.join(spec.stacks)}) and does not say which "
            f"reads what: its cache cannot be told. {REMEDY}."
        )
    if spec.embed_dim < 1:
        raise ShapeError(f"the spec of {spec.name} has embed_dim={spec.embed_dim}, so no projections. {REMEDY}.")
    # Windows, latents and experts are in no spec: what is assumed of them is in `because` and `untold`.
    layers: list[LayerShape] = []
    for site in spec.layers:
        attention = Attention(site.num_heads, site.num_kv_heads, site.qk_dim, site.v_dim, causal=site.causal)
        layers.append(LayerShape(blocks.projections(spec.embed_dim, attention), (attention,)))
    counted = sum(weights.total for layer in layers for weights in layer.weights)
    if counted > spec.num_parameters:
        raise ShapeError(
            f"the spec of {spec.name} has {spec.num_parameters:,} parameters, fewer than the {counted:,} that its "
            f"attention alone would have: it does not describe ordinary projections. {REMEDY}."
        )
    why = f"a spec says how attention is shaped and not what else there is. {REMEDY}"
    return Architecture(
        name=spec.name,
        family=spec.architecture,
        embed_dim=spec.embed_dim,
        layers=tuple(layers),
        outside=(blocks.vector("other", spec.num_parameters - counted),),
        vocab_size=spec.vocab_size,
        max_positions=spec.max_positions,
        generates=all(site.causal for site in spec.layers),
        because=(
            "from a spec: q, k, v and o are their matrices, everything else, their biases too, is in one part",
            "the cache is one that keeps every token: a spec does not say whether layers have windows",
        ),
        untold=(("parts", why), ("flops", why)),
    )
