"""Decoders, from their config: what a family's row says differs from Llama, and the one function that reads it.

Why: nearly all decoders are one architecture with other choices: biases, norms, a gate, a window, experts, latents. So
a family is a row of choices (`manyheads.sizing.architecture.decoder_table`), and a new one is a new row.
Oracle: the models themselves, built with transformers without their weights; a test holds every row to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyheads.errors import ModelError
from manyheads.sizing.architecture import building_blocks as blocks
from manyheads.sizing.architecture.architecture import Architecture, Attention, LayerShape, Weights
from manyheads.sizing.architecture.fields import Fields

WINDOWED = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Kinds of layers that do not see all, and the field with how many tokens they see."""
LINEAR = "linear_attention"
FULL = "full_attention"
Windows = Callable[[Fields, int], Sequence[bool]]
"""Which of so many layers are not of full attention, where no `layer_types` are listed."""


def nowhere(fields: Fields, count: int) -> list[bool]:
    """No layer has a window."""
    return [False] * count


def everywhere(fields: Fields, count: int) -> list[bool]:
    """All layers, where the config has a window."""
    return [fields.maybe("sliding_window") is not None] * count


def every(period: int) -> Windows:
    """All layers but the last of each `period`; a config may name another period."""

    def windows(fields: Fields, count: int) -> list[bool]:
        step = fields.whole("sliding_window_pattern", period)
        return [fields.maybe("sliding_window") is not None and (layer + 1) % step != 0 for layer in range(count)]

    return windows


def always(fields: Fields, layer: int) -> bool:
    return True


@dataclass(frozen=True)
class Experts:
    """Where a family keeps its experts. Texts are names of fields; `shared` is the width of the feed-forward that every
    token goes through besides; `extra` what the router has besides its matrix, numbers for each expert."""

    count: str = "num_experts"
    chosen: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    shared: Callable[[Fields], int] = lambda fields: 0
    sparse: Callable[[Fields, int], bool] = always
    bias: bool | str = False
    extra: int = 0
    shared_gate: bool = False


@dataclass(frozen=True)
class Decoder:
    """What a family does otherwise than Llama. A text is the name of the field that decides.

    `norm`: vectors that a norm has (see `blocks.NORMS`); `norms`: how many a layer has; `qk_norm`: "head" (one of a
    head's width for q and for k), "heads" (one for each head), "whole" (over all heads together), `qk_vectors` each.
    `positions`: rows that the table of learned positions has beyond max_positions; None: no table. `times`: the
    feed-forward's width is that many times the model's unless said. `extras`: whatever else a layer has. `marked`: the
    kind of the layers that `windows` names. `linear`: the mixer of layers without attention, their states in the same
    shape. `gated_heads`: q has a gate as wide as itself. `width`: the field with a dense layer's inner width.
    """

    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    gated: bool = True
    norm: int = 1
    norms: int | Callable[[Fields], int] = 2
    final_norm: bool | Callable[[Fields], bool] = True
    embedding_norm: bool = False
    qk_norm: str = ""
    qk_norm_if: bool | str = True
    qk_vectors: int = 1
    head_bias: bool | str = False
    positions: int | None = None
    times: int | None = None
    windows: Windows = nowhere
    sheds: bool = True
    heads_of: Callable[[Fields, int], int] | None = None
    experts: Experts | None = None
    latent: bool = False
    marked: str = "sliding_attention"
    linear: Callable[[Fields, int], LayerShape] | None = None
    gated_heads: bool = False
    width: str = "intermediate_size"
    extras: Callable[[Fields, Attention, int], tuple[Weights, ...]] | None = None
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])


def decoder(fields: Fields, row: Decoder, *, headless: bool) -> Architecture:
    """The architecture that a config of the family means. Errors: ModelError, ShapeError."""
    embed_dim, num_layers = fields.whole("hidden_size"), fields.whole("num_hidden_layers")
    # Layers of one kind are one object: a deep model costs a few shapes, and as many references as it has layers.
    shapes: dict[tuple[str, bool], LayerShape] = {}
    layers: list[LayerShape] = []
    for layer, kind in enumerate(_kinds(fields, row, num_layers)):
        sparse = row.experts is not None and row.experts.sparse(fields, layer)
        if (kind, sparse) not in shapes:
            shapes[kind, sparse] = _layer(fields, row, embed_dim, kind, sparse)
        layers.append(shapes[kind, sparse])
    vocab, narrow = fields.whole("vocab_size"), fields.maybe("word_embed_proj_dim") or embed_dim
    outside = [blocks.table(vocab, narrow)]
    if narrow != embed_dim:  # OPT: the tables may be narrower than the model
        outside += [
            blocks.matrix("embedding", narrow, embed_dim, replicated=True),
            blocks.matrix("head", embed_dim, narrow, replicated=True),
        ]
    if row.positions is not None:
        rows = fields.whole("max_position_embeddings") + row.positions
        outside.append(blocks.table(rows, embed_dim, replicated=True))
    final = row.final_norm if isinstance(row.final_norm, bool) else row.final_norm(fields)
    outside += [blocks.vector("norm", row.norm * embed_dim)] * (final + row.embedding_norm) if row.norm else []
    if not headless:
        tied, bias = fields.flag("tie_word_embeddings"), fields.flag(row.head_bias)
        outside.append(blocks.head(narrow, vocab, tied=tied, bias=bias))
    return Architecture(
        name=fields.family,
        family=fields.family,
        embed_dim=embed_dim,
        layers=tuple(layers),
        outside=tuple(outside),
        vocab_size=vocab,
        max_positions=fields.maybe("max_position_embeddings"),
        learned_positions=row.positions is not None,
        because=("the update of its recurrent state is not counted",) if any(kind.state for kind in layers) else (),
    )


def attention_of(fields: Fields, row: Decoder, embed_dim: int, kind: str) -> Attention:
    """The attention of one layer of that kind."""
    num_heads = fields.whole("num_attention_heads")
    if row.heads_of is not None:
        num_kv_heads = row.heads_of(fields, num_heads)
    else:
        num_kv_heads = fields.whole("num_key_value_heads", num_heads)
    length = fields.whole(WINDOWED[kind]) if kind in WINDOWED else None
    chunked = kind == "chunked_attention"
    if row.latent:
        rank, rope = fields.whole("kv_lora_rank"), fields.whole("qk_rope_head_dim")
        qk_dim, v_dim = fields.whole("qk_nope_head_dim") + rope, fields.whole("v_head_dim", embed_dim // num_heads)
        return Attention(num_heads, num_heads, qk_dim, v_dim, window=length, latent=(rank, rope))
    # A config may name the width of a head, which then need not be the model's width over its heads (Gemma, Qwen3).
    width = fields.maybe("head_dim")
    if width is None and embed_dim % num_heads:
        raise ModelError(
            f"the config of {fields.family!r} has hidden_size={embed_dim} and num_attention_heads={num_heads}, which "
            f"does not divide it, and no head_dim: the width of a head is unknown."
        )
    width = width or embed_dim // num_heads
    return Attention(num_heads, num_kv_heads, width, width, window=length, chunked=chunked, sheds=row.sheds)


def _kinds(fields: Fields, row: Decoder, count: int) -> list[str]:
    """The kind of each layer. `layer_types` come before the family's rule."""
    if fields.get("per_layer_config"):
        raise ModelError(
            f"the config of {fields.family!r} has per_layer_config: its layers differ in ways that are not read here."
        )
    kinds = fields.listed("layer_types")
    if not kinds:
        # The rules of some families read a list in the config, which a damaged file may have of any length.
        marks = row.windows(fields, count)
        if len(marks) != count:
            raise ModelError(
                f"the config of {fields.family!r} says which of {len(marks)} layers have a window, and "
                f"num_hidden_layers={count}: the file is damaged."
            )
        return [row.marked if mark else FULL for mark in marks]
    if len(kinds) != count:
        raise ModelError(
            f"the config of {fields.family!r} lists {len(kinds)} layer_types for num_hidden_layers={count}: "
            f"the file is damaged."
        )
    known = {*WINDOWED, FULL, *([LINEAR] if row.linear else [])}
    if unknown := sorted({str(kind) for kind in kinds} - known):
        raise ModelError(f"the config of {fields.family!r} has layers of the kind {', '.join(unknown)}, unknown here.")
    return kinds


def _layer(fields: Fields, row: Decoder, embed_dim: int, kind: str, sparse: bool) -> LayerShape:
    if kind == LINEAR:
        assert row.linear is not None
        mixer = row.linear(fields, embed_dim)
        return replace(mixer, weights=mixer.weights + _feed_forward(fields, row, embed_dim, sparse))
    attention = attention_of(fields, row, embed_dim, kind)
    biases = {"qkv_bias": fields.flag(row.qkv_bias), "o_bias": fields.flag(row.o_bias)}
    if row.latent:
        rank = fields.maybe("q_lora_rank")
        weights = blocks.latent_attention(embed_dim, attention, q_rank=rank, bias=biases["qkv_bias"])
    else:
        weights = blocks.projections(embed_dim, attention, **biases)
    if row.qk_norm and fields.flag(row.qk_norm_if):
        width = row.qk_vectors * attention.qk_dim
        counts = (1, 1) if row.qk_norm == "head" else (attention.num_heads, attention.num_kv_heads)
        # One of a head's width is shared by all key heads, so that it does not grow with their number.
        weights += (
            blocks.vector("norm", counts[0] * width),
            blocks.vector("norm", counts[1] * width, per_kv_head=row.qk_norm != "head"),
        )
    if row.gated_heads:
        q_width = attention.num_heads * attention.qk_dim
        weights += (blocks.matrix("q", embed_dim, q_width, bias=biases["qkv_bias"]),)
    weights += _feed_forward(fields, row, embed_dim, sparse)
    if row.extras is not None:
        weights += row.extras(fields, attention, embed_dim)
    return LayerShape(weights, (attention,))


def _feed_forward(fields: Fields, row: Decoder, embed_dim: int, sparse: bool) -> tuple[Weights, ...]:
    """The feed-forward of a layer, or its experts, and the layer's norms."""
    weights: tuple[Weights, ...] = ()
    if sparse:
        experts = row.experts
        assert experts is not None
        bias = fields.flag(experts.bias)
        count, chosen = fields.whole(experts.count), fields.whole(experts.chosen)
        width = fields.whole(experts.width)
        weights += blocks.experts(embed_dim, width, num_experts=count, chosen=chosen, gated=row.gated, bias=bias)
        # Every token goes through the shared ones, whatever the router chooses: they are no expert among others.
        if shared := experts.shared(fields):
            weights += (blocks.feed_forward(embed_dim, shared, gated=row.gated, bias=fields.flag(row.mlp_bias)),)
            weights += (blocks.matrix("router", embed_dim, 1),) if experts.shared_gate else ()
        weights += (blocks.vector("router", experts.extra * count),) if experts.extra else ()
    else:
        width = fields.whole(row.width, None if row.times is None else row.times * embed_dim)
        weights += (blocks.feed_forward(embed_dim, width, gated=row.gated, bias=fields.flag(row.mlp_bias)),)
    norms = row.norms if isinstance(row.norms, int) else row.norms(fields)
    weights += (blocks.vector("norm", row.norm * embed_dim),) * norms if row.norm else ()
    return weights
