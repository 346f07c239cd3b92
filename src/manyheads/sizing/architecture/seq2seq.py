"""Encoder-decoders, from their config: T5, BART, Marian and kin. One stack reads a text, the other writes with a cache.

The decoder's second attention looks at the encoder's output: its keys and values are made once for the other text, and
stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from manyheads.sizing.architecture import building_blocks as blocks
from manyheads.sizing.architecture.architecture import SOURCE, TEXT, Architecture, Attention, LayerShape, Weights
from manyheads.sizing.architecture.fields import Fields


def pair(
    embed_dim: int, num_heads: int, width: int, feeds: tuple[Weights, Weights], *, bias: bool, norm: int
) -> tuple[LayerShape, LayerShape]:
    """An encoder layer and a decoder layer: full-headed attention, a feed-forward, a norm after or before each.

    - `embed_dim`: numbers of a token's vector.
    - `num_heads`: heads of each attention, with keys and values of their own.
    - `width`: of a head.
    - `feeds`: the feed-forwards of the two.
    - `bias`: projections have biases.
    - `norm`: vectors that a norm has (`blocks.NORMS`).
    """
    reads = Attention(num_heads, num_heads, width, width, causal=False, cached=False)
    writes = Attention(num_heads, num_heads, width, width)
    looks = replace(writes, causal=False, cross=True)
    norm_weights = blocks.vector("norm", norm * embed_dim)
    projections = [blocks.projections(embed_dim, item, qkv_bias=bias, o_bias=bias) for item in (reads, writes, looks)]
    # The encoder's weights meet the rows of the other text; those of `looks` that make its keys do so already.
    source = tuple(replace(item, rows=SOURCE) for item in (*projections[0], feeds[0], norm_weights, norm_weights))
    text = (*projections[1], *projections[2], feeds[1], *(norm_weights,) * 3)
    return LayerShape(source, (reads,), stack="encoder"), LayerShape(text, (writes, looks), stack="decoder")


def t5(fields: Fields, headless: bool) -> Architecture:
    """No biases, scale-only norms, one table of relative positions in the first layer of each stack.

    Errors: ModelError, ShapeError.
    """
    embed_dim, vocab = fields.whole("d_model"), fields.whole("vocab_size")
    num_heads, width, inner = fields.whole("num_heads"), fields.whole("d_kv"), fields.whole("d_ff")
    count = fields.whole("num_layers")
    gated = str(fields.get("feed_forward_proj", "gated-gelu" if fields.family == "mt5" else "relu")).startswith("gated")
    feed = blocks.feed_forward(embed_dim, inner, gated=gated)
    reads, writes = pair(embed_dim, num_heads, width, (feed, feed), bias=False, norm=1)
    table = blocks.vector("other", fields.whole("relative_attention_num_buckets", 32) * num_heads)
    counts = (count, fields.whole("num_decoder_layers", count))
    layers: list[LayerShape] = []
    for layer, of_stack in zip((reads, writes), counts, strict=True):
        layers += [replace(layer, weights=(*layer.weights, table)), *[layer] * (of_stack - 1)]
    norm = blocks.vector("norm", embed_dim)
    outside = [blocks.table(vocab, embed_dim), replace(norm, rows=SOURCE), norm]
    # transformers ties the head to the embeddings whatever the config says.
    outside += [] if headless else [blocks.head(embed_dim, vocab, tied=True)]
    tied = fields.get("tie_word_embeddings", True)
    return Architecture(
        name=fields.family,
        family=fields.family,
        embed_dim=embed_dim,
        layers=tuple(layers),
        outside=tuple(outside),
        vocab_size=vocab,
        because=() if tied else ("its config says untied embeddings, but transformers ties them always",),
    )


def bart(fields: Fields, headless: bool) -> Architecture:
    """Biases everywhere, a table of positions a side. BART: two spare rows in it, a norm on the embeddings (mBART: one
    at the end as well). Marian: sinusoids in the table, counted as transformers counts them, and no norm outside a
    layer.

    Errors: ModelError, ShapeError.
    """
    embed_dim, vocab = fields.whole("d_model"), fields.whole("vocab_size")
    positions = fields.whole("max_position_embeddings")
    norm = blocks.vector("norm", 2 * embed_dim)
    layers: list[LayerShape] = []
    for index, side in enumerate(("encoder", "decoder")):
        num_heads = fields.whole(f"{side}_attention_heads")
        feed = blocks.feed_forward(embed_dim, fields.whole(f"{side}_ffn_dim"), gated=False, bias=True)
        made = pair(embed_dim, num_heads, embed_dim // num_heads, (feed, feed), bias=True, norm=2)
        layers += [made[index]] * fields.whole(f"{side}_layers")
    tied, marian = fields.flag("tie_word_embeddings"), fields.family == "marian"
    shared = not marian or fields.flag("share_encoder_decoder_embeddings")
    # Only Marian's two languages may have a vocabulary each.
    written = fields.whole("decoder_vocab_size", vocab) if marian else vocab
    # Untied, each side has a table of its own besides the shared one.
    rows_of_tables = ([vocab] if shared else []) + ([] if shared and tied else [vocab, written])
    outside = [blocks.table(rows, embed_dim) for rows in rows_of_tables]
    for rows in (SOURCE, TEXT):
        outside += [blocks.table(positions + (0 if marian else 2), embed_dim)]
        outside += [replace(norm, rows=rows)] * {"bart": 1, "mbart": 2, "marian": 0}[fields.family]
    if not headless:
        outside.append(blocks.head(embed_dim, vocab if shared else written, tied=tied))
    return Architecture(
        name=fields.family,
        family=fields.family,
        embed_dim=embed_dim,
        layers=tuple(layers),
        outside=tuple(outside),
        vocab_size=vocab if shared else written,
        max_positions=positions,
        learned_positions=True,
    )


SEQ2SEQ: Mapping[str, Callable[[Fields, bool], Architecture]] = MappingProxyType(
    {"t5": t5, "mt5": t5, "bart": bart, "mbart": bart, "marian": bart}
)
"""model_type -> who reads its config; the second argument asks for the model without its head."""
