"""Building blocks of a description: matrices, tables, norms, attention, feed-forward; and a whole transformer in words.

Why: families differ in which of these they use and with which biases, never in how a projection is counted. Here each
is counted once.
"""

from __future__ import annotations

from manyheads.base import one_of
from manyheads.errors import ShapeError
from manyheads.sizing.architecture.architecture import LAST, SOURCE, TEXT, Architecture, Attention, LayerShape, Weights
from manyheads.sizing.architecture.fields import MOST_LISTED

NORMS = {"rms": 1, "layer": 2, "none": 0}
"""Vectors of the residual stream's width that a norm has: a scale; a scale and a shift; nothing."""


def matrix(
    part: str,
    inputs: int,
    outputs: int,
    *,
    bias: bool = False,
    rows: str = TEXT,
    per_kv_head: bool = False,
    replicated: bool = False,
) -> Weights:
    """A projection.

    - `part`: one of `PARTS`.
    - `inputs`: numbers that it reads.
    - `outputs`: numbers that it writes.
    - `bias`: it has a number to add to each of these.
    - `rows`: which rows it multiplies (`TEXT`, `LAST`, `SOURCE`, `ONCE`).
    - `per_kv_head`: it grows with the key/value heads.
    - `replicated`: GPUs that divide a layer hold it whole, each.
    """
    size = inputs * outputs + (outputs if bias else 0)
    return Weights(part, size, inputs * outputs, rows=rows, per_kv_head=per_kv_head, replicated=replicated)


def vector(part: str, size: int, *, per_kv_head: bool = False) -> Weights:
    """Numbers that are added or scaled by: norms, biases of their own, sinks."""
    return Weights(part, size, per_kv_head=per_kv_head)


def table(rows: int, columns: int, *, replicated: bool = False) -> Weights:
    """An embedding: one row is looked up for a token, and nothing is multiplied. `replicated`: of positions."""
    return Weights("embedding", rows * columns, replicated=replicated)


def head(embed_dim: int, outputs: int, *, tied: bool = False, bias: bool = False, rows: str = LAST) -> Weights:
    """The projection to the vocabulary (or to classes). `tied`: its matrix is the embedding's, counted there."""
    size = (0 if tied else embed_dim * outputs) + (outputs if bias else 0)
    return Weights("head", size, embed_dim * outputs, rows=rows)


def projections(
    embed_dim: int,
    attention: Attention,
    *,
    qkv_bias: bool | tuple[bool, bool, bool] = False,
    o_bias: bool = False,
    kv_inputs: int | None = None,
) -> tuple[Weights, ...]:
    """q, k, v and o. `qkv_bias` may say so for each of the three; `kv_inputs`: the other text's width, if not ours."""
    q_bias, k_bias, v_bias = qkv_bias if isinstance(qkv_bias, tuple) else (qkv_bias,) * 3
    kv_rows = SOURCE if attention.cross else TEXT
    inputs = kv_inputs or embed_dim
    return (
        matrix("q", embed_dim, attention.num_heads * attention.qk_dim, bias=q_bias),
        matrix("k", inputs, attention.num_kv_heads * attention.qk_dim, bias=k_bias, rows=kv_rows, per_kv_head=True),
        matrix("v", inputs, attention.num_kv_heads * attention.v_dim, bias=v_bias, rows=kv_rows, per_kv_head=True),
        matrix("o", attention.num_heads * attention.v_dim, embed_dim, bias=o_bias),
    )


def latent_attention(
    embed_dim: int, attention: Attention, *, q_rank: int | None, bias: bool = False
) -> tuple[Weights, ...]:
    """MLA's projections: queries through `q_rank` (None: directly), keys and values through the latent; their norms.

    Source: DeepSeek-AI 2024, DeepSeek-V2, section 2.1. `bias` is on the compressions and the output, as there.
    """
    assert attention.latent is not None
    rank, rope = attention.latent
    q_width = attention.num_heads * attention.qk_dim
    if q_rank is None:
        queries = (matrix("q", embed_dim, q_width),)
    else:
        down, up = matrix("q", embed_dim, q_rank, bias=bias, replicated=True), matrix("q", q_rank, q_width)
        queries = (down, vector("norm", q_rank), up)
    return (
        *queries,
        matrix("latent", embed_dim, rank + rope, bias=bias),
        vector("norm", rank),
        matrix("k", rank, attention.num_heads * (attention.qk_dim - rope)),
        matrix("v", rank, attention.num_heads * attention.v_dim),
        matrix("o", attention.num_heads * attention.v_dim, embed_dim, bias=bias),
    )


def feed_forward(
    embed_dim: int, ffn_dim: int, *, gated: bool, bias: bool = False, num_experts: int = 1, chosen: int = 1
) -> Weights:
    """Two matrices, or three where it is gated (SwiGLU and kin).

    - `embed_dim`: numbers that it reads and writes.
    - `ffn_dim`: numbers between its matrices.
    - `gated`: a third matrix multiplies the first one's output.
    - `bias`: each matrix has one.
    - `num_experts`: how many of them stand side by side.
    - `chosen`: through how many of these a token goes.
    """
    ups = 2 if gated else 1
    matmul = (ups + 1) * embed_dim * ffn_dim
    # A bias for each number that the matrices write: the inner ones, then the residual stream's.
    size = matmul + (ups * ffn_dim + embed_dim if bias else 0)
    return Weights("feed-forward", size, matmul, num_experts, chosen)


def experts(
    embed_dim: int, ffn_dim: int, *, num_experts: int, chosen: int, gated: bool = True, bias: bool = False
) -> tuple[Weights, ...]:
    """The router of experts, and the experts.

    - `embed_dim`, `ffn_dim`, `gated`: of each expert, as in `feed_forward`.
    - `num_experts`: how many there are.
    - `chosen`: through how many of them a token goes.
    - `bias`: router and experts have biases.

    Raises ShapeError where more would be chosen than there are.
    """
    if not 0 < chosen <= num_experts:
        raise ShapeError(f"experts_per_token={chosen} of num_experts={num_experts}: choose at least 1, at most all.")
    routed = feed_forward(embed_dim, ffn_dim, gated=gated, bias=bias, num_experts=num_experts, chosen=chosen)
    return matrix("router", embed_dim, num_experts, bias=bias), routed


def transformer(
    name: str = "your description",
    *,
    num_layers: int,
    embed_dim: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn_dim: int | None = None,
    gated: bool = False,
    num_experts: int | None = None,
    experts_per_token: int | None = None,
    vocab_size: int | None = None,
    learned_positions: int | None = None,
    window: int | None = None,
    causal: bool = True,
    qkv_bias: bool = False,
    o_bias: bool = False,
    ffn_bias: bool = False,
    norm: str = "rms",
    tied: bool = False,
) -> Architecture:
    """A transformer of equal layers, in plain words: what `size` takes as a mapping.

    - `name`: what the result calls it.
    - `num_layers`: how many layers.
    - `embed_dim`: numbers of a token's vector.
    - `num_heads`: query heads of a layer.
    - `num_kv_heads`: key/value heads of a layer; None: `num_heads`.
    - `head_dim`: width of a head; None: embed_dim / num_heads.
    - `ffn_dim`: width of the feed-forward; None: 4 times `embed_dim`; 0: attention alone.
    - `gated`: SwiGLU, which has three matrices and needs its `ffn_dim` said.
    - `num_experts`: feed-forwards of a layer; None: one, for all tokens.
    - `experts_per_token`: how many of them a token runs through.
    - `vocab_size`: rows of the embedding; None: there is none.
    - `learned_positions`: rows of a position table; None: there is none.
    - `window`: how many keys a row sees; None: all.
    - `causal`: rows see no later token.
    - `qkv_bias`: q, k and v have biases.
    - `o_bias`: the output projection has a bias.
    - `ffn_bias`: the feed-forward has biases.
    - `norm`: two a layer and one at the end: "rms", "layer" or "none".
    - `tied`: the unembedding is the embedding.

    Raises ShapeError for sizes that do not fit.
    """
    sizes = {"num_layers": num_layers, "embed_dim": embed_dim, "num_heads": num_heads}
    sizes |= {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "vocab_size": vocab_size}
    for size_name, size in sizes.items():
        if size is not None and size < 1:
            raise ShapeError(f"{size_name}={size}: at least 1 is needed.")
    if num_layers > MOST_LISTED:
        raise ShapeError(f"num_layers is above {MOST_LISTED:,}, the most that is described: give fewer.")
    one_of("norm", norm, NORMS, ShapeError, "is not a norm known here")
    if head_dim is None and embed_dim % num_heads:
        raise ShapeError(
            f"{embed_dim=} is not a multiple of {num_heads=}, so a head's width is unknown: give head_dim, or "
            f"another number of heads."
        )
    if gated and ffn_dim is None:
        usual = 8 * embed_dim // 3
        raise ShapeError(f"gated=True needs ffn_dim: with three matrices, 8/3 of embed_dim is usual, {usual}.")
    width, inner = head_dim or embed_dim // num_heads, 4 * embed_dim if ffn_dim is None else ffn_dim
    attention = Attention(num_heads, num_kv_heads or num_heads, width, width, causal=causal, window=window)
    weights = projections(embed_dim, attention, qkv_bias=qkv_bias, o_bias=o_bias)
    if num_experts is not None and experts_per_token is not None and inner:
        choice = {"num_experts": num_experts, "chosen": experts_per_token}
        weights += experts(embed_dim, inner, **choice, gated=gated, bias=ffn_bias)
    elif num_experts is not None or experts_per_token is not None:
        raise ShapeError(f"{num_experts=} and {experts_per_token=} need each other, and ffn_dim above 0.")
    elif inner:
        weights += (feed_forward(embed_dim, inner, gated=gated, bias=ffn_bias),)
    norms = (vector("norm", NORMS[norm] * embed_dim),) if NORMS[norm] else ()
    tables = (table(vocab_size, embed_dim),) if vocab_size else ()
    tables += (table(learned_positions, embed_dim, replicated=True),) if learned_positions else ()
    # Only what writes has a head over its words; a bidirectional model ends with its last norm.
    heads = (head(embed_dim, vocab_size, tied=tied),) if vocab_size and causal else ()
    return Architecture(
        name=name,
        family="described",
        embed_dim=embed_dim,
        layers=(LayerShape(weights + norms * (2 if inner else 1), (attention,)),) * num_layers,
        outside=tables + (norms if inner else ()) + heads,
        vocab_size=vocab_size,
        max_positions=learned_positions,
        learned_positions=learned_positions is not None,
        generates=causal,
        because=("as described",),
    )
