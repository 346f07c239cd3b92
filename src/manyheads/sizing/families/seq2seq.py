"""Encoder-decoders, from their config: T5, BART and their kin. One stack reads a text, the other writes with a cache.

The decoder's second attention looks at the encoder's output: its keys and values are made once for the other text, and
stay in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from manyheads.sizing import building_blocks as blocks
from manyheads.sizing.architecture import SOURCE, TEXT, Architecture, Attention, LayerShape, Weights
from manyheads.sizing.families.fields import Fields

__all__ = ["SEQ2SEQ", "pair", "seq2seq"]


SEQ2SEQ: Mapping[str, str] = MappingProxyType({"t5": "t5", "mt5": "t5", "bart": "bart", "mbart": "mbart"})
"""model_type -> whose layout it has."""


def seq2seq(fields: Fields, layout: str, *, headless: bool) -> Architecture:
    """Errors: ModelError, ShapeError."""
    return _t5(fields, headless) if layout == "t5" else _bart(fields, layout, headless)


def pair(
    embed_dim: int,
    num_heads: int,
    width: int,
    feeds: tuple[Weights, Weights],
    *,
    bias: bool,
    norm: int,
) -> tuple[LayerShape, LayerShape]:
    """An encoder layer and a decoder layer: full-headed attention, `feeds` of the two, a norm after or before each."""
    reads = Attention(num_heads, num_heads, width, width, causal=False, cached=False)
    writes = Attention(num_heads, num_heads, width, width)
    looks = replace(writes, causal=False, cross=True)
    norm_weights = blocks.vector("norm", norm * embed_dim)
    projections = [blocks.projections(embed_dim, item, qkv_bias=bias, o_bias=bias) for item in (reads, writes, looks)]
    source = tuple(replace(item, rows=SOURCE) for item in (*projections[0], feeds[0], norm_weights, norm_weights))
    return (
        LayerShape(source, (reads,), stack="encoder"),
        LayerShape(
            (*projections[1], *projections[2], feeds[1], norm_weights, norm_weights, norm_weights),
            (writes, looks),
            stack="decoder",
        ),
    )


def _t5(fields: Fields, headless: bool) -> Architecture:
    """No biases, scale-only norms, one table of relative positions in the first layer of each stack."""
    embed_dim, vocab = fields.whole("d_model"), fields.whole("vocab_size")
    num_heads, width, inner = fields.whole("num_heads"), fields.whole("d_kv"), fields.whole("d_ff")
    count = fields.whole("num_layers")
    gated = str(fields.get("feed_forward_proj", "gated-gelu" if fields.family == "mt5" else "relu")).startswith("gated")
    feed = blocks.feed_forward(embed_dim, inner, gated=gated)
    reads, writes = pair(embed_dim, num_heads, width, (feed, feed), bias=False, norm=1)
    table = blocks.vector("other", fields.whole("relative_attention_num_buckets", 32) * num_heads)
    layers = (*_first(reads, count, table), *_first(writes, fields.whole("num_decoder_layers", count), table))
    norm = blocks.vector("norm", embed_dim)
    outside = [blocks.table(vocab, embed_dim), replace(norm, rows=SOURCE), norm]
    outside += [] if headless else [blocks.head(embed_dim, vocab, tied=True)]  # as transformers does, whatever is said
    tied = fields.get("tie_word_embeddings", True)
    return Architecture(
        name=fields.family,
        family=fields.family,
        embed_dim=embed_dim,
        layers=layers,
        outside=tuple(outside),
        vocab_size=vocab,
        because=() if tied else ("its config says untied embeddings, but transformers ties them always",),
    )


def _first(layer: LayerShape, count: int, extra: Weights) -> tuple[LayerShape, ...]:
    """`count` layers, of which the first has something more."""
    return replace(layer, weights=(*layer.weights, extra)), *(layer,) * (count - 1)


def _bart(fields: Fields, layout: str, headless: bool) -> Architecture:
    """Biases everywhere, learned positions with two spare rows, a norm on the embeddings (mBART: one at the end,
    too)."""
    embed_dim, vocab = fields.whole("d_model"), fields.whole("vocab_size")
    positions = fields.whole("max_position_embeddings")
    norm = blocks.vector("norm", 2 * embed_dim)
    layers: list[LayerShape] = []
    for index, side in enumerate(("encoder", "decoder")):
        num_heads = fields.whole(f"{side}_attention_heads")
        feed = blocks.feed_forward(embed_dim, fields.whole(f"{side}_ffn_dim"), gated=False, bias=True)
        made = pair(embed_dim, num_heads, embed_dim // num_heads, (feed, feed), bias=True, norm=2)
        layers += [made[index]] * fields.whole(f"{side}_layers")
    tied = fields.flag("tie_word_embeddings")
    outside = [blocks.table(vocab, embed_dim)] * (1 if tied else 3)  # untied, each side has one besides the shared one
    for rows in (SOURCE, TEXT):
        outside += [blocks.table(positions + 2, embed_dim)]
        outside += [replace(norm, rows=rows)] * (2 if layout == "mbart" else 1)
    if not headless:
        outside.append(blocks.head(embed_dim, vocab, tied=tied))
    return Architecture(
        name=fields.family,
        family=fields.family,
        embed_dim=embed_dim,
        layers=tuple(layers),
        outside=tuple(outside),
        vocab_size=vocab,
        max_positions=positions,
        learned_positions=True,
    )
