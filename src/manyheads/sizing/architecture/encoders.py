"""Encoders, from their config: BERT and its kin, and image models. Every token sees every other, and nothing is cached.

A row says how a family's embeddings, norms and heads differ; `sizing.architecture.config` says which class a config
means: the bare encoder (with its pooler, if it has one) or the one with its usual head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

from manyheads.errors import ModelError
from manyheads.sizing.architecture import building_blocks as blocks
from manyheads.sizing.architecture.architecture import ONCE, TEXT, Architecture, Attention, LayerShape
from manyheads.sizing.architecture.fields import Fields


@dataclass(frozen=True)
class Encoder:
    """What a family does otherwise than BERT. `types`: it has a table of token types. `pooler`: the bare encoder
    ends in one. `relative`: rows of a table of relative positions that all layers share, a number for each head."""

    types: bool = True
    pooler: bool = True
    relative: int = 0
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])


DISTILBERT_NAMES = {
    "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
}  # fmt: skip

ENCODERS: Mapping[str, Encoder] = MappingProxyType(
    {
        "bert": Encoder(),
        "roberta": Encoder(),
        "xlm-roberta": Encoder(),
        "camembert": Encoder(),
        "data2vec-text": Encoder(),
        "ernie": Encoder(),
        "electra": Encoder(pooler=False, defaults={"embedding_size": 128}),
        "mpnet": Encoder(types=False, relative=32),
        "distilbert": Encoder(types=False, pooler=False, names=DISTILBERT_NAMES),
    }
)


def encoder(fields: Fields, row: Encoder, *, headless: bool) -> Architecture:
    """BERT-like: learned positions, biases everywhere, two layer norms a layer. Errors: ModelError, ShapeError."""
    if fields.flag("is_decoder") or fields.flag("add_cross_attention"):
        raise ModelError(f"this config of {fields.family!r} is a decoder's, which is not read here.")
    embed_dim, vocab = fields.whole("hidden_size"), fields.whole("vocab_size")
    narrow, positions = fields.maybe("embedding_size") or embed_dim, fields.whole("max_position_embeddings")
    attention = _attention(fields, embed_dim)
    feed = blocks.feed_forward(embed_dim, fields.whole("intermediate_size"), gated=False, bias=True)
    norm = blocks.vector("norm", 2 * embed_dim)
    weights = (*blocks.projections(embed_dim, attention, qkv_bias=True, o_bias=True), feed, norm, norm)
    outside = [blocks.table(vocab, narrow), blocks.table(positions, narrow), blocks.vector("norm", 2 * narrow)]
    outside += [blocks.table(fields.whole("type_vocab_size", 2), narrow)] if row.types else []
    outside += [blocks.matrix("embedding", narrow, embed_dim, bias=True)] if narrow != embed_dim else []
    if row.relative:
        buckets = fields.whole("relative_attention_num_buckets", row.relative)
        outside.append(blocks.vector("other", buckets * attention.num_heads))
    if not headless:
        # A matrix, a norm, and the vocabulary with a bias for each word; at every position.
        tied = fields.flag("tie_word_embeddings")
        outside += [blocks.matrix("head", embed_dim, narrow, bias=True), blocks.vector("head", 2 * narrow)]
        outside.append(blocks.head(narrow, vocab, tied=tied, bias=True, rows=TEXT))
    elif row.pooler:
        outside.append(blocks.matrix("head", embed_dim, embed_dim, bias=True, rows=ONCE))
    return Architecture(
        name=fields.family,
        family=fields.family,
        embed_dim=embed_dim,
        layers=(LayerShape(weights, (attention,)),) * fields.whole("num_hidden_layers"),
        outside=tuple(outside),
        vocab_size=vocab,
        max_positions=positions,
        learned_positions=True,
        generates=False,
    )


def _attention(fields: Fields, embed_dim: int) -> Attention:
    num_heads = fields.whole("num_attention_heads")
    if embed_dim % num_heads:
        raise ModelError(
            f"the config of {fields.family!r} has hidden_size={embed_dim}, which num_attention_heads={num_heads} does "
            f"not divide."
        )
    width = embed_dim // num_heads
    return Attention(num_heads, num_heads, width, width, causal=False, cached=False)


@dataclass(frozen=True)
class Images:
    """What a family of image models does otherwise than ViT. `extra_tokens`: besides the patches, each learned;
    `masks`: learned tokens that stand for hidden patches; `scales`: vectors that scale what a layer adds;
    `classes_see`: how many vectors side by side the classifier reads."""

    extra_tokens: int = 1
    masks: int = 0
    scales: int = 0
    pooler: bool = True
    classes_see: int = 1
    ratio: str = ""


IMAGES: Mapping[str, Images] = MappingProxyType(
    {
        "vit": Images(),
        "deit": Images(extra_tokens=2),
        "dinov2": Images(masks=1, scales=2, pooler=False, classes_see=2, ratio="mlp_ratio"),
    }
)


def images(fields: Fields, row: Images, *, headless: bool) -> Architecture:
    """ViT-like: a patch is a token. Errors: ModelError, ShapeError."""
    embed_dim, side, size = fields.whole("hidden_size"), fields.whole("image_size"), fields.whole("patch_size")
    patches, pixels = (side // size) ** 2, fields.whole("num_channels", 3) * size * size
    tokens = patches + row.extra_tokens
    attention = _attention(fields, embed_dim)
    if fields.flag("use_swiglu_ffn"):
        raise ModelError(f"this config of {fields.family!r} has use_swiglu_ffn, which is not read here.")
    inner = fields.whole(row.ratio) * embed_dim if row.ratio else fields.whole("intermediate_size")
    weights = blocks.projections(embed_dim, attention, qkv_bias=fields.flag("qkv_bias"), o_bias=True)
    weights += (blocks.feed_forward(embed_dim, inner, gated=False, bias=True),)
    weights += (blocks.vector("norm", 2 * embed_dim),) * 2 + (blocks.vector("other", embed_dim),) * row.scales
    # Patches are cut by a convolution: each meets the whole matrix, so one image is `patches` rows of it.
    patch = replace(blocks.matrix("embedding", pixels, embed_dim, bias=True, rows=ONCE), matmul=0)
    outside = [
        replace(patch, matmul=patches * pixels * embed_dim),
        blocks.table(tokens + row.extra_tokens + row.masks, embed_dim),  # positions, and the learned tokens
        blocks.vector("norm", 2 * embed_dim),
    ]
    if not headless:
        outside.append(blocks.head(row.classes_see * embed_dim, num_classes(fields), bias=True, rows=ONCE))
    elif row.pooler:
        width = fields.whole("pooler_output_size", embed_dim)
        outside.append(blocks.matrix("head", embed_dim, width, bias=True, rows=ONCE))
    return Architecture(
        name=fields.family,
        family=fields.family,
        embed_dim=embed_dim,
        layers=(LayerShape(weights, (attention,)),) * fields.whole("num_hidden_layers"),
        outside=tuple(outside),
        max_positions=tokens,
        learned_positions=True,
        num_tokens=tokens,
        generates=False,
    )


def num_classes(fields: Fields) -> int:
    """As many as are named, else the number that is said, else 2: what transformers makes of such a config."""
    labels: object = fields.get("id2label")
    if isinstance(labels, Mapping) and labels:
        return len(cast("Mapping[Any, Any]", labels))
    return fields.whole("num_labels", 2)
