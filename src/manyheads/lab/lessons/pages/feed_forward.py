"""The feed-forward block, 4 d wide and two matrices, or 8/3 d and three; and where a model's parameters are.

The small cell computes both kinds on the reader's own numbers, in NumPy. Counts are of our own layers, built without
memory for their numbers; a model's parameters are those of `sizing`'s presets.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads import nn, reference
from manyheads.errors import ShapeError
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, Loader, Ran, cited, matrix
from manyheads.lab.lessons.pages.shared import in_prefix, in_words, scaled
from manyheads.lab.lessons.parameters import Values, choice, read_matrix, text, whole
from manyheads.reference import NaiveWeights
from manyheads.sizing import PRESETS, Sizing, architecture_of, size

CLASSIC, GATED = "W2 relu(W1 x)", "W2 (silu(W1 x) * W3 x)"
WIDENING = 4
FEED, ATTENTION = "feed-forward", "attention"


def feed_forward(values: Values, load: Loader) -> Ran:
    """Both kinds on the reader's own numbers, token by token. Raises LessonError, ShapeError."""
    x, w1, w3, w2 = (read_matrix(name, values.text(name)) for name in ("x", "w1", "w3", "w2"))
    gated = values["kind"] == GATED
    for name, table in (("w1", w1), ("w3", w3)) if gated else (("w1", w1),):
        if len(table) != x.shape[1]:
            raise ShapeError(
                f"x has {x.shape[1]} columns, and {name} {len(table)} rows: the two numbers must be equal."
            )
    if gated and w1.shape != w3.shape:
        raise ShapeError(f"w1 is {w1.shape}, w3 {w3.shape}: each gate has one number to let through.")
    if w2.shape != (w1.shape[1], x.shape[1]):
        raise ShapeError(
            f"w2 is {w2.shape}: from {w1.shape[1]} inner numbers back to {x.shape[1]}, it must be "
            f"{(w1.shape[1], x.shape[1])}."
        )
    up = x @ w1
    steps = [
        matrix("x", "one row a token, as attention left it", x, "token", "m"),
        matrix("W1 x", "made wide", up, "token", "w"),
    ]
    if gated:
        # clipped: exp of a large number is a warning, and the gate is shut or open long before
        gate, passing = up / (1 + np.exp(-np.clip(up, -700, 700))), x @ w3
        hidden = gate * passing
        steps += [
            matrix("silu(W1 x)", "a soft relu: how far each gate is open", gate, "token", "w"),
            matrix("W3 x", "what is to pass", passing, "token", "w"),
            matrix("hidden", "gates times what is to pass", hidden, "token", "w"),
        ]
    else:
        hidden = np.maximum(up, 0)
        steps.append(matrix("hidden", "relu: what is below 0 becomes 0", hidden, "token", "w"))
    out = hidden @ w2
    says = ", ".join(f"{value:.3g}" for value in out[0])
    quiet = "" if gated else f" {100 * float((hidden == 0).mean()):.0f} % of the inner numbers are 0."
    return Ran(
        f"Token 0 becomes ({says}), whatever the other tokens are.{quiet}",
        (*steps, matrix("out", "narrow again: added to the token", out, "token", "m")),
    )


def block_sizes(values: Values, load: Loader) -> Ran:
    """Widths and weights of both kinds for one model width, counted on the layers themselves."""
    m, multiple = values.whole("d_model"), values.whole("multiple")
    classic, gated = _blocks(m, multiple)
    full = _gated(m, WIDENING * m)
    widths, counts, matrices = (WIDENING * m, WIDENING * m, gated[0]), (classic, full, gated[1]), (2, 3, 3)
    names = (f"classic, {WIDENING} d", f"SwiGLU, {WIDENING} d", "SwiGLU, 8/3 d")
    more = 100 * (gated[1] / classic - 1)
    prefix, factor = scaled(max(counts))
    return Ran(
        f"SwiGLU at 8/3 of {m:,}, rounded up to a multiple of {multiple}, is {gated[0]:,} wide and has "
        f"{gated[1]:,} weights: {abs(more):.2f} % {'more' if more >= 0 else 'fewer'} than the classic block.",
        (
            matrix("inner width", "of the middle, and the matrices", np.column_stack((widths, matrices)), names,
                   ("width", "matrices")),
            matrix("weights", in_prefix(prefix, "without biases"), np.array(counts)[:, None] / factor, names,
                   ("weights",)),
        ),
    )  # fmt: skip


def _blocks(m: int, multiple: int) -> tuple[int, tuple[int, int]]:
    """Weights of the classic block; width and weights of the gated one."""
    classic = sum(weight.numel() for weight in nn.FeedForward(m, bias=False, device="meta").parameters())
    width = nn.gated_width(m, multiple)
    return classic, (width, _gated(m, width))


def _gated(m: int, width: int) -> int:
    return sum(weight.numel() for weight in nn.SwiGLU(m, width, device="meta").parameters())


_W1 = "1 0 -1 0.5\n0 1 1 -0.5"
_W2 = "1 0\n0 1\n0.5 0.5\n-1 1"


def classic_weights(values: Values, load: Loader) -> Right:
    m = values.whole("d_model")
    answer, (width, gated) = _blocks(m, 8)
    return Right(
        float(answer),
        f"Two matrices of {m:,} x {WIDENING * m:,}: 8 d^2 = {answer:,}, twice the 4 d^2 of attention.",
        f"It goes from {m:,} to four times as many, and back.",
        unit="weights",
        mistakes={
            float(answer // 2): "That is one matrix: the other makes it narrow again.",
            float(_gated(m, WIDENING * m)): "That has three matrices: the classic block has two.",
            float(gated): f"That is SwiGLU, {width:,} wide.",
        },
    )


def swiglu_width(values: Values, load: Loader) -> Right:
    """The width at which three matrices have the same number of weights as two of 4 d, rounded up."""
    m, multiple = values.whole("d_model"), values.whole("multiple")
    classic, (answer, gated) = _blocks(m, multiple)
    plain = _blocks(m, 1)[1][0]
    return Right(
        float(answer),
        f"8/3 of {m:,} is {8 * m / 3:,.1f}; the next multiple of {multiple} is {answer:,}. Its three matrices hold "
        f"{gated:,} weights, where two of {WIDENING * m:,} hold {classic:,}.",
        f"Two matrices of 4 d hold 8 d^2. Three of which width do? Then round up to a multiple of {multiple}.",
        mistakes={
            float(WIDENING * m): "At that width three matrices hold half as much again as two.",
            **dict.fromkeys((float(plain), float(plain - 1)), f"Round up to a multiple of {multiple}."),
            float(answer - multiple): "Round up, not down.",
            float(2 * m): "Two thirds of 4 d, not half of it: there are three matrices in place of two.",
        },
    )


def kept_apart(values: Values, load: Loader) -> Right:
    """How many tokens' outputs change with one token's input: in this block, or in attention."""
    n, alone = values.whole("tokens"), values["block"] == FEED
    # Both outputs are computed: before and after one row of the input is changed.
    rng = np.random.Generator(np.random.PCG64(0))
    x = rng.normal(size=(n, 8))
    changed = x.copy()
    changed[n // 2] += 1.0
    made = reference.initialise(rng, 8, 2)
    assert isinstance(made, NaiveWeights)
    up, down = rng.normal(size=(8, 32)), rng.normal(size=(32, 8))

    def block(rows: Float64[ndarray, "n m"]) -> Float64[ndarray, "n m"]:
        return np.maximum(rows @ up, 0) @ down if alone else reference.naive(rows, made).out

    return Right(
        float((np.abs(block(changed) - block(x)).max(1) > 1e-9).sum()),
        "It reads one token at a time: one token changes, and no other token learns of it. Tokens "
        "speak to each other only in attention."
        if alone
        else f"All {n} of them read its key and its value, so each output changes a little.",
        "Does this block multiply anything of one token with anything of another?",
        unit="tokens",
        mistakes={float(n if alone else 1): f"So it is in {ATTENTION if alone else f'the {FEED} block'}."},
    )


_M = whole("d_model", "model width", 512, 8, 16_384, 8, others=(256, 768, 1024, 4096))
_BLOCK = choice("block", "block", (FEED, ATTENTION))


def block_weights(values: Values, load: Loader) -> str:
    m = values.whole("d_model")
    classic, (width, gated) = _blocks(m, values.whole("multiple"))
    return {"classic": f"{classic:,}", "SwiGLU": f"{gated:,}", "SwiGLU's width": f"{width:,}"}[values.text("of")]


# --------------------------------------------------------------------------------------- where a model's parameters are


NORMS = "norms"
ATTENTION_PARTS = ("q", "k", "v", "qkv", "latent", "o")
FEED_PARTS = ("feed-forward", "router")
LAYER, MODEL = "one layer", "the whole model"
MODELS = (
    "llama-2-70b", "llama-2-7b", "llama-3-8b", "mistral-7b", "gemma-2-9b", "phi-4-mini", "mixtral-8x7b", "gpt2",
    "gpt3-175b", "bert-base", "bert-large", "minilm", "vit-base",
)  # fmt: skip


def model_shares(values: Values, load: Loader) -> Ran:
    """Where one preset's parameters are: in a layer, and in the whole model."""
    sizing = _sized(values.text("model"))
    layer, total = _split(sizing.layers[0]), _split(sizing.parameters)
    share = 100 * layer[FEED] / (layer[FEED] + layer[ATTENTION])
    outside = sizing.num_parameters - sum(total.values())
    parts = np.array([[layer[part], total[part]] for part in (ATTENTION, FEED, NORMS)] + [[0, outside]], np.float64)
    sums = parts.sum(0)
    names = ("attention", "feed-forward", "norms", "outside layers")
    prefix, factor = scaled(float(sums[0]))
    prefix = prefix.replace("G", "B")
    return Ran(
        f"{sizing.name}: {in_words(sizing.num_parameters)} parameters, {share:.1f} % of a layer's two blocks in the "
        f"feed-forward. In all layers together that is {in_words(total[FEED])}, beside {in_words(total[ATTENTION])} "
        f"in attention.",
        (
            matrix("a layer", in_prefix(prefix, "the first one"), parts[:3, :1] / factor, names[:3], ("parameters",)),
            matrix("the model", in_prefix(prefix, "all of it"), parts[:, 1:] / factor, names, ("parameters",)),
            matrix("shares", "in percent", 100 * parts / np.maximum(sums, 1), names, ("a layer", "the model")),
        ),
    )  # fmt: skip


def _sized(name: str) -> Sizing:
    return size(architecture_of(name), batch=1)


def _split(parts: Mapping[str, int]) -> dict[str, int]:
    """Parameters by part, summed up as attention, feed-forward and norms (a model's last norm among them)."""
    attention = sum(parts.get(part, 0) for part in ATTENTION_PARTS)
    feed = sum(parts.get(part, 0) for part in FEED_PARTS)
    return {ATTENTION: attention, FEED: feed, NORMS: parts.get("norm", 0)}


def model_feed(values: Values, load: Loader) -> Right:
    """How many parameters the feed-forward blocks of a preset have."""
    sizing = _sized(values.text("model"))
    m, count = sizing.architecture.embed_dim, len(sizing.layers)
    every = values["of"] == MODEL
    parts = sizing.parameters if every else sizing.layers[0]
    answer, attention = parts[FEED], _split(parts)[ATTENTION]
    inner = _inner(sizing)
    gated = answer > 2.5 * m * inner * (count if every else 1)
    matrices = f"{'Three' if gated else 'Two'} matrices of {m:,} x {inner:,}{f', in {count} layers' if every else ''}"
    return Right(
        float(answer),
        f"{matrices}: {in_words(answer)}. Attention has {in_words(attention)}.",
        f"{'Three matrices' if gated else 'Two matrices'} of {m:,} x {inner:,}{f', {count} times' if every else ''}.",
        unit="parameters",
        tolerance=0.005 * answer,
        mistakes={
            float(attention): "That is attention.",
            answer * (2 / 3 if gated else 3 / 2): f"There are {'three' if gated else 'two'} matrices.",
            float(sizing.parameters[FEED] if not every else sizing.layers[0][FEED]): "That is one layer."
            if every
            else "That is all layers together.",
        },
    )


def _inner(sizing: Sizing) -> int:
    """The inner width of a preset's feed-forward block, from its config; the classic one where that has none."""
    config = PRESETS[sizing.name].config
    return int(config.get("intermediate_size", WIDENING * sizing.architecture.embed_dim))


def share_of_layer(values: Values, ran: Ran) -> Right:
    """The share of one of a layer's two blocks, in the preset that the cell shows."""
    attention, feed = (float(number) for number in ran.table("a layer").values[:2, 0])
    shares = {FEED: 100 * feed / (attention + feed), ATTENTION: 100 * attention / (attention + feed)}
    part = values.text("part")
    answer, other_share = shares[part], 100 - shares[part]
    words = f"Of a layer's two blocks the feed-forward holds {shares[FEED]:.1f} %, attention {shares[ATTENTION]:.1f} %."
    return Right(
        answer,
        words,
        "Two thirds to a third is classic; fewer key/value heads and a wider block move it on.",
        unit="%",
        tolerance=2.0,
        mistakes={other_share: "That is the other block."} if abs(answer - other_share) > 4 else {},
    )


_SOME = choice("model", "model", ("llama-2-70b", "llama-2-7b", "gpt2", "bert-base"))


def part_of(values: Values, load: Loader) -> str:
    """The parameters of a part of a preset: 704.6M, 56.4B."""
    sizing = _sized(values.text("model"))
    parts = sizing.layers[0] if values["of"] == LAYER else sizing.parameters
    return in_words(_split(parts)[values.text("part")])


def percent_of(values: Values, load: Loader) -> str:
    """The share of a part in a layer's two blocks."""
    parts = _split(_sized(values.text("model")).layers[0])
    return f"{100 * parts[values.text('part')] / (parts[FEED] + parts[ATTENTION]):.0f} %"


def inner_width(values: Values, load: Loader) -> str:
    """A preset's inner width, in numbers or in model widths; or 8/3 of its model width."""
    sizing = _sized(values.text("model"))
    m, inner = sizing.architecture.embed_dim, _inner(sizing)
    return {"width": f"{inner:,}", "times d": f"{inner / m:.3g}", "8/3 d": f"{8 * m / 3:,.0f}"}[values.text("as")]


_MODEL = choice("model", "model", MODELS)
_PARTS = choice("part", "part", (FEED, ATTENTION))

CELLS: Mapping[str, Cell] = {
    "feed-forward": Cell(
        feed_forward,
        (
            choice("kind", "kind", (CLASSIC, GATED)),
            text("x", "x, one row a token", "1 0\n0 1\n-1 2"),
            text("w1", "W1", _W1),
            text("w3", "W3 (of SwiGLU)", "1 1 0 0\n0 0 1 1"),
            text("w2", "W2", _W2),
        ),
        in_page=True,
    ),
    "block-sizes": Cell(
        block_sizes,
        (
            whole("d_model", "model width d", 4096, 8, 32_768, 8),
            whole("multiple", "rounded up to a multiple of", 256, 1, 4096),
        ),
        in_page=True,
    ),
    "model-shares": Cell(model_shares, (choice("model", "model", MODELS),)),
}
CHECKS: Mapping[str, Check | Predict] = {
    "classic-weights": Check(classic_weights, (_M,)),
    "swiglu-width": Check(
        swiglu_width,
        (
            whole("d_model", "model width", 4096, 64, 16_384, 64, others=(512, 2048, 5120)),
            whole("multiple", "a multiple of", 256, 1, 4096, others=(64,)),
        ),
    ),
    "kept-apart": Check(kept_apart, (whole("tokens", "tokens", 12, 2, 64, others=(5, 20)), _BLOCK)),
    "model-feed": Check(model_feed, (_SOME, choice("of", "of", (LAYER, MODEL)))),
    "share-of-layer": Predict(share_of_layer, (choice("part", "which block", (FEED, ATTENTION)),)),
}
FACTS: Mapping[str, Fact] = {
    "block-weights": Fact(
        block_weights,
        (
            _M,
            whole("multiple", "a multiple of", 8, 1, 4096),
            choice("of", "of", ("classic", "SwiGLU", "SwiGLU's width")),
        ),
    ),
    "part-of": Fact(part_of, (_MODEL, _PARTS, choice("of", "of", (LAYER, MODEL)))),
    "percent-of": Fact(percent_of, (_MODEL, _PARTS)),
    "inner-width": Fact(inner_width, (_MODEL, choice("as", "as", ("width", "times d", "8/3 d")))),
    "llama-2-widening": cited("1.3", "Touvron et al. 2023, appendix A.2.1"),
}  # fmt: skip
