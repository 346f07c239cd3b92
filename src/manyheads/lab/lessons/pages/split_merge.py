"""Splitting and merging heads: a loop over heads, one wide product, one fused product; the same numbers.

The numbers come from `reference`'s three layouts. The mistake that everybody makes once, a reshape without its
transpose, is made on purpose. The time of each layout is measured in torch, on the reader's machine, whenever the cell
runs; what `torch.nn.MultiheadAttention` returns, and its conventions, are read from torch itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
from einops import rearrange
from jaxtyping import Float64
from numpy import ndarray

from manyheads import nn
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, Loader, Ran, matrix, numbered
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.parameters import Values, choice, number, require_fitting, whole
from manyheads.reference import (
    batched,
    fused,
    initialise,
    naive,
    softmax_rows,
    to_batched,
    to_fused,
    to_naive,
)

if TYPE_CHECKING:
    from torch import Tensor

RIGHT, ALONE = "reshape, then transpose", "reshape alone"
LOOP, WIDE, FUSED = "head by head", "with a wide W_Q, W_K and W_V", "with one fused W_QKV"
MAX_ROWS = 24  # of a table of all heads' tokens
ROUNDING = 1e-9  # of results in float64 that should be the same

# --------------------------------------------------------------------------------------------------- one wide product


def side_by_side(values: Values, load: Loader) -> Ran:
    """The heads' matrices side by side, their one product, and what each head gets of it. Raises ShapeError."""
    m, h, n = (values.whole(name) for name in ("d_model", "heads", "tokens"))
    require_fitting(values)
    rng = np.random.Generator(np.random.PCG64(values.whole("seed")))
    w_q = to_batched(initialise(rng, m, h)).w_q
    x = rng.normal(size=(n, m))
    q = rearrange(x @ w_q, "n (h d) -> h n d", h=h)
    names = [f"Q, head {head}" for head in range(h)]
    return Ran(
        f"{h} heads, each {m // h} wide, stand side by side in W_Q. One product makes the queries of all.",
        (
            matrix("X", "a row a token", x, "token", "m"),
            matrix("W_Q", f"{m // h} columns a head: head 0's come first", w_q, "m", numbered("c", m)),
            matrix("X W_Q", "the queries of all heads, side by side", x @ w_q, "token", numbered("c", m)),
            *(
                matrix(name, "its columns of every token", part, "token", numbered("d", m // h))
                for name, part in zip(names, q, strict=True)
            ),
        ),
        flow=((("X", "W_Q", "X W_Q"),), tuple((name,) for name in names)),
    )


# --------------------------------------------------------------------------------------------- where each number goes


def where_numbers_go(values: Values, load: Loader) -> Ran:
    """Numbers that say where they come from, split rightly and wrongly. Raises ShapeError."""
    m, h, n = (values.whole(name) for name in ("d_model", "heads", "tokens"))
    require_fitting(values)
    if h * n > MAX_ROWS:
        raise LessonError(f"{h} heads of {n} tokens are {h * n} rows: take up to {MAX_ROWS} together.")
    wide = 100.0 * np.arange(n)[:, None] + np.arange(m)
    split, alone = rearrange(wide, "n (h d) -> h n d", h=h), split_alone(wide, h)
    rows = tuple(f"head {head}, row {row}" for head in range(h) for row in range(n))
    astray = int((split // 100 != alone // 100).sum())
    return Ran(
        f"Reshape alone puts {astray} of {wide.size} numbers into another token's row."
        + (" With one head, or one token, there is nothing to transpose." if not astray else " Its shape is right."),
        (
            matrix("X W_Q", "one row a token: 203 is token 2, column 3", wide, "token", "c"),
            matrix(RIGHT, "a head's tokens row by row, with its own columns", split.reshape(h * n, -1), rows, "d"),
            matrix(ALONE, "the same shape, but other numbers", alone.reshape(h * n, -1), rows, "d"),
        ),
    )  # fmt: skip


def split_alone(wide: Float64[ndarray, "n m"], h: int) -> Float64[ndarray, "h n d"]:
    """The mistake: the right shape without a transpose. Pieces of tokens are taken for tokens."""
    return wide.reshape(h, len(wide), -1)


def close_to(gap: float) -> str:
    return f"to {gap:.0e}" if gap else "in every digit"


# -------------------------------------------------------------------------------------------------------- same numbers


def three_ways(values: Values, load: Loader) -> Ran:
    """The same layer in three layouts, and with the mistake. Raises ShapeError."""
    m, h, n = (values.whole(name) for name in ("d_model", "heads", "tokens"))
    require_fitting(values)
    rng = np.random.Generator(np.random.PCG64(values.whole("seed")))
    made, x = initialise(rng, m, h), rng.normal(size=(n, m))
    # All of multi-head attention, heads cut and joined by reshape alone.
    wide = to_batched(made)
    q, k, v = (split_alone(x @ table, h) for table in (wide.w_q, wide.w_k, wide.w_v))
    weights, _ = softmax_rows(np.einsum("hqd,hkd->hqk", q, k, optimize=True) / np.sqrt(q.shape[2]))
    mistaken = np.einsum("hqk,hkf->hqf", weights, v, optimize=True).reshape(x.shape) @ wide.w_o
    loop = naive(x, to_naive(made)).out
    outs = {
        LOOP: loop,
        WIDE: batched(x, wide).out,
        FUSED: fused(x, to_fused(made)).out,
        ALONE: mistaken,
    }
    gaps = {name: float(np.abs(out - loop).max()) for name, out in outs.items()}
    rows = ("the loop", "one wide each", "one fused", ALONE)
    assert max(gaps[WIDE], gaps[FUSED]) < ROUNDING
    return Ran(
        "The three ways agree, but for rounding. Reshape alone "
        + (
            f"is off by up to {gaps[ALONE]:.2g}, and nothing fails."
            if h > 1 and n > 1
            else "is right here: with one head, or one token, there is nothing to transpose."
        ),
        (
            matrix("output", "of token 0, by each way", np.stack([out[0] for out in outs.values()]), rows, "m"),
            matrix("difference", "from the loop, the largest over all tokens", np.array(list(gaps.values()))[:, None],
                   rows, ("largest",)),
        ),
    )  # fmt: skip


_SHAPE = (
    whole("d_model", "model width", 8, 1, 48),
    whole("heads", "heads", 2, 1, 12),
    whole("tokens", "tokens", 3, 1, 12),
)


def number_in_place(values: Values, ran: Ran) -> Right:
    """What stands in some place of the split, right or wrong, as the cell has it."""
    head, row, how = values.whole("head"), values.whole("row"), values.text("how")
    name = f"head {head}, row {row}"
    table, other_table = ran.table(how), ran.table(ALONE if how == RIGHT else RIGHT)
    if name not in table.rows:
        raise LessonError(f"there is no {name} in the cell now: its last is {table.rows[-1]}.")
    place = table.rows.index(name)
    answer, mistake = int(table.values[place, 0]), int(other_table.values[place, 0])
    words = f"{answer}: column {answer % 100} of token {answer // 100}."
    return Right(
        float(answer),
        words,
        "Reshape reads numbers in the order in which they are stored: token 0 from left to right, "
        "then token 1. A split must "
        f"give head {head} its columns of every token.",
        mistakes={float(mistake): f"That stands there after {other_table.label}."},
    )


def products(values: Values, load: Loader) -> Right:
    """How many products give all queries, keys and values: counted on the weights of each layout."""
    h, layout = values.whole("heads"), values.text("layout")
    made = initialise(np.random.Generator(np.random.PCG64(0)), 2 * h, h)
    counts = {LOOP: sum(len(matrices) for matrices in (to_naive(made).w_q, to_naive(made).w_k, to_naive(made).w_v)),
              WIDE: len((to_batched(made).w_q, to_batched(made).w_k, to_batched(made).w_v)),
              FUSED: len((to_fused(made).w_qkv,))}  # fmt: skip
    answer = counts[layout]
    return Right(
        float(answer),
        f"{counts[LOOP]} small ones, {counts[WIDE]} wide ones, {counts[FUSED]} wider still: the same multiplications.",
        "How many matrices are there for X to be multiplied with?",
        mistakes={float(count): f"So many it is {name}." for name, count in counts.items()},
    )


HEADS = whole("heads", "heads", 8, 2, 128, others=(4, 12, 16))


# ---------------------------------------------------------------------------------------------- the time of each layout


ROUNDS, WARM_UP = 15, 2  # timed runs of each way, in turn; before them some that are not counted
MOST_WORK = 3e8  # products in one run: all of them then take a second or two on a slow machine
MOST_SCORES = 2e7  # 80 MB of them


def timed(values: Values, load: Loader) -> Ran:
    """Each way timed in turn, in torch, float32, on the reader's own processor. Raises ShapeError, LessonError."""
    import torch

    m, h, n, b = (values.whole(name) for name in ("d_model", "heads", "tokens", "batch"))
    require_fitting(values)
    work = b * n * m * (4 * m + 2 * n)
    # Refused before anything is made: a reader may type any size.
    if work > MOST_WORK or b * h * n * n > MOST_SCORES:
        raise LessonError(
            f"that is {work:.1e} products and {b * h * n * n:.1e} scores a run, {ROUNDS} runs of each way: take up to "
            f"{MOST_WORK:.0e} and {MOST_SCORES:.0e}."
        )
    ways, gap = layouts(m, h, n, b)
    runs: list[list[float]] = [[] for _ in ways]
    with torch.no_grad():
        for _ in range(WARM_UP + ROUNDS):
            # In turn, so that whatever else the machine does falls on all of them.
            for way, milliseconds in zip(ways, runs, strict=True):
                began = time.perf_counter()
                way()
                milliseconds.append(1000 * (time.perf_counter() - began))
    # medians and the middle half: a single slow run on a busy machine moves neither
    table = np.array([np.quantile(milliseconds[WARM_UP:], (0.5, 0.25, 0.75)) for milliseconds in runs])
    loop, wide, joined = table[:, 0]
    names = ("the loop", "one wide each", "one fused")
    overlap = table[1, 2] >= table[0, 1]
    note = " The middle halves of the two overlap: that is not a clear difference." if overlap else ""
    return Ran(
        f"On this machine, just now: the loop takes {loop:.3g} ms, the wide product {wide:.3g} ms, the fused one "
        f"{joined:.3g} ms; so the wide one is {loop / wide:.1f} times as fast as the loop.{note} They agree "
        f"{close_to(gap)}.",
        (
            matrix("milliseconds", f"median of {ROUNDS} runs each, and where their middle half lies", table, names,
                   ("median", "from", "to")),
            matrix("times as fast", "as the loop, by the medians", (loop / table[:, 0])[:, None], names, ("times",)),
        ),
    )  # fmt: skip


def layouts(m: int, h: int, n: int, b: int) -> tuple[tuple[Callable[[], Any], ...], float]:
    """The three layouts as functions of nothing, on the same weights and input; and how far apart their results are."""
    import torch

    d = m // h
    made = torch.Generator().manual_seed(0)
    x = torch.randn(b, n, m, generator=made)
    w_q, w_k, w_v, w_o = (torch.randn(4, m, m, generator=made) * m**-0.5).unbind()
    by_head = [[w[:, i * d : (i + 1) * d].contiguous() for w in (w_q, w_k, w_v)] for i in range(h)]
    w_qkv = torch.cat((w_q, w_k, w_v), 1)

    def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) * d**-0.5).softmax(-1) @ v

    def loop() -> Tensor:
        return torch.cat([attended(x @ q, x @ k, x @ v) for q, k, v in by_head], 2) @ w_o

    def wide() -> Tensor:
        q, k, v = (rearrange(x @ w, "b n (h d) -> b h n d", h=h) for w in (w_q, w_k, w_v))
        return rearrange(attended(q, k, v), "b h n d -> b n (h d)") @ w_o

    def joined() -> Tensor:
        q, k, v = rearrange(x @ w_qkv, "b n (three h d) -> three b h n d", three=3, h=h)
        return rearrange(attended(q, k, v), "b h n d -> b n (h d)") @ w_o

    with torch.no_grad():
        first, *outs = (way() for way in (loop, wide, joined))
    return (loop, wide, joined), max(float((out - first).abs().max()) for out in outs)


# ------------------------------------------------------------------------------------------- what torch's layer returns


EVAL, TRAIN = "in use", "in training"
CALLS: Mapping[str, Mapping[str, bool]] = {
    "nothing said": {},
    "average_attn_weights=False": {"average_attn_weights": False},
    "need_weights=False": {"need_weights": False},
}


def torch_layer(values: Values, load: Loader) -> Ran:
    """What `torch.nn.MultiheadAttention` returns, called in several ways, beside our layer with the same weights."""
    import torch

    h, n, b = (values.whole(name) for name in ("heads", "tokens", "batch"))
    dropout, training = values.number("dropout"), values["mode"] == TRAIN
    m = 4 * h
    # Forked, so that a lesson moves nobody's random numbers.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        torchs = torch.nn.MultiheadAttention(m, h, dropout=dropout, batch_first=True)
        our_layer = nn.MultiHeadAttention(m, h, dropout=dropout, batch_first=True)
        nn.load_state(our_layer, torchs.state_dict(), "torch")
        x = torch.randn(b, n, m)
        torchs.train(training)
        our_layer.train(training)
        calls = {name: torchs(x, x, x, **how) for name, how in CALLS.items()}
        our_out, _ = our_layer(x)
        mean = np.asarray(calls["nothing said"][1][0], np.float64)
        first = np.asarray(calls["average_attn_weights=False"][1][0, 0], np.float64)
        gap = float((our_out - calls["nothing said"][0]).abs().max())
    shapes = [(list(out.shape), [] if w is None else list(w.shape)) for out, w in calls.values()]
    shapes_in_words = "; ".join(f"{name}: {_axes(w)}" for name, (_, w) in zip(CALLS, shapes, strict=True))
    beside = (
        "Dropout falls on weights at random, so ours and torch's differ from call to call."
        if training and dropout
        else f"Ours, with the same weights, says the same, {close_to(gap)}."
    )
    tokens = numbered("token", n)
    return Ran(
        f"Output {' x '.join(map(str, shapes[0][0]))}. Weights, {shapes_in_words}. {beside}",
        (
            matrix("averaged", "with nothing said: one map for all heads", mean, tokens, tokens, as_map=True),
            matrix("head 0", "its own map, with average_attn_weights=False", first, tokens, tokens, as_map=True),
            matrix("row sums", "of head 0", first.sum(1, keepdims=True), tokens, ("sum",)),
            matrix("zeros", "in percent, of all heads' weights and of the output",
                   np.array([[_zeros(calls["average_attn_weights=False"][1])], [_zeros(calls["nothing said"][0])]]),
                   ("weights", "output"), ("%",)),
        ),
    )  # fmt: skip


def _axes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) if shape else "None"


def _zeros(x: Tensor) -> float:
    return 100 * float((x == 0).float().mean())


def returned(values: Values, load: Loader) -> Right:
    """How many numbers of weights torch's layer returns: by calling it."""
    import torch

    h, b, n = (values.whole(name) for name in ("heads", "batch", "tokens"))
    # On the meta device: shapes are computed, and no memory is taken for the numbers.
    layer = torch.nn.MultiheadAttention(h, h, batch_first=True, device="meta")
    x = torch.empty(b, n, h, device="meta")
    with torch.no_grad():
        made = {name: layer(x, x, x, **how)[1] for name, how in CALLS.items()}
    counts = {name: 0 if weights is None else weights.numel() for name, weights in made.items()}
    call = values.text("call")
    returned_words = "no weights at all: None" if made[call] is None else f"weights of shape {_axes(made[call].shape)}"
    explanations = {
        "nothing said": "That is the default: weights, averaged over the heads.",
        "average_attn_weights=False": "That is a map for each head. They come averaged, unless one says otherwise.",
        "need_weights=False": "Weights are returned unless you pass need_weights=False: it is True by default.",
    }
    return Right(
        float(counts[call]),
        f"It returns {returned_words}.",
        "A map is tokens by tokens, for each text. Do the heads come one by one, or averaged, or not at all?",
        unit="numbers",
        mistakes={float(count): explanations[name] for name, count in counts.items()},
    )


def torch_default(values: Values, load: Loader) -> str:
    """The default of an argument of torch's layer, from its signature."""
    import torch

    layer = torch.nn.MultiheadAttention
    for function in (layer.forward, layer.__init__):
        if (parameter := signature(function).parameters.get(values.text("of"))) is not None:
            return str(parameter.default)
    raise LessonError(f"torch's layer has no argument {values.text('of')}.")


def dropped(values: Values, load: Loader) -> str:
    """The share of torch's weights, or of its output, that is 0 in training with dropout: by running the layer."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        layer = torch.nn.MultiheadAttention(64, 4, dropout=values.number("dropout"), batch_first=True).train()
        x = torch.randn(8, 32, 64)
        out, weights = layer(x, x, x, average_attn_weights=False)
    return f"{_zeros(weights if values['of'] == 'weights' else out):.0f} %"


CELLS: Mapping[str, Cell] = {
    "side-by-side": Cell(
        side_by_side, (*_SHAPE, whole("seed", "seed of the random numbers", 0, 0, 1_000_000)), in_page=True
    ),
    "where-numbers-go": Cell(where_numbers_go, _SHAPE, in_page=True),
    "three-ways": Cell(
        three_ways,
        (
            whole("d_model", "model width", 64, 1, 512),
            whole("heads", "heads", 8, 1, 64),
            whole("tokens", "tokens", 10, 1, 256),
            whole("seed", "seed of the random weights", 0, 0, 1_000_000),
        ),
        in_page=True,
    ),
    "loop-or-wide": Cell(
        timed,
        (
            whole("d_model", "model width", 64, 1, 2048, 64),
            whole("heads", "heads", 8, 1, 64),
            whole("tokens", "tokens", 16, 1, 2048),
            whole("batch", "texts at a time", 1, 1, 256),
        ),
    ),
    "torch-layer": Cell(
        torch_layer,
        (
            whole("heads", "heads", 4, 1, 16),
            whole("tokens", "tokens", 5, 1, 12),
            whole("batch", "texts", 2, 1, 8),
            number("dropout", "dropout", 0, 0, 0.9, 0.1),
            choice("mode", "the layer is", (EVAL, TRAIN)),
        ),
    ),
}
CHECKS: Mapping[str, Check | Predict] = {
    "number-in-place": Predict(
        number_in_place,
        (
            whole("head", "head", 0, 0, 11, others=(1,)),
            whole("row", "row", 1, 0, 11, others=(0, 2)),
            choice("how", "split", (RIGHT, ALONE)),
        ),
    ),
    "products": Check(products, (HEADS, choice("layout", "layout", (LOOP, WIDE, FUSED)))),
    "weights-returned": Check(
        returned,
        (
            HEADS,
            whole("batch", "texts", 2, 1, 64, others=(3, 4)),
            whole("tokens", "tokens", 10, 1, 512, others=(5, 20)),
            choice("call", "called with", tuple(CALLS)),
        ),
    ),
}
FACTS: Mapping[str, Fact] = {
    "torch-default": Fact(
        torch_default, (choice("of", "of", ("need_weights", "average_attn_weights", "batch_first", "dropout")),)
    ),
    "dropped-share": Fact(
        dropped, (number("dropout", "dropout", 0.5, 0, 0.9, 0.1), choice("of", "of", ("weights", "output")))
    ),
}
