"""Counting one attention layer: its parameters, and the FLOPs of a text, for the reader's own widths and lengths.

Every count comes from `sizing`, which counts what a layer holds and multiplies; the check on torch's own layer builds
it (without memory for its numbers) and counts what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Curve, Fact, Loader, Panel, Ran, matrix
from manyheads.lab.lessons.pages.shared import HEADS, STACKED, WIDTH, even_tokens, flops, in_flops, scaled, weights
from manyheads.lab.lessons.parameters import Values, choice, fitting, require_fitting, whole

WITH, WITHOUT = "with biases", "without biases"
ALL, CAUSAL = "every token", "itself and earlier ones"
PROJECTIONS, ATTENTION = "the four projections", "scores and weighted sum"
LENGTHS = (128, 512, 2_048, 8_192, 32_768, 131_072)

# -------------------------------------------------------------------------------------------------------------- cells


def attention_cost(values: Values, load: Loader) -> Ran:
    """The parameters of one layer of the reader's sizes, and its FLOPs on a text. Raises ShapeError."""
    require_fitting(values)
    m, h, n = (values.whole(name) for name in ("d_model", "heads", "tokens"))
    plain, full, wide = weights(m, h), weights(m, h, biased=values["biases"] == WITH), weights(m, h, wide=True)
    rows = [[plain[name], full[name] - plain[name], full[name]] for name in STACKED]
    table = np.array([*rows, np.sum(rows, 0)])
    qkv = sum(plain[name] for name in "qkv")
    heads = np.array([[qkv // h], [qkv], [sum(plain.values())], [sum(wide.values())]])
    spent, projections, attention = flops(m, h, n, values["mask"] == CAUSAL)
    total = projections + attention
    parts = np.array([sum(spent[name] for name in "qkv"), spent["o"], spent["scores"], spent["values"]])
    prefix, factor = scaled(int(parts.max()))
    names = ("Q, K, V", "W_O", "scores", "weighted sum")
    share = 100 * attention / total
    return Ran(
        f"{table[-1, 2]:,} parameters, in {h} heads of {m // h}. A text of {n:,} tokens takes {in_flops(total)}, "
        f"{share:.1f} % of it for scores and the weighted sum.",
        (
            matrix("parameters", "of each projection", table, ("W_Q", "W_K", "W_V", "W_O", "together"),
                   ("weights", "biases", "all")),
            matrix("by head", "weights; the last row is with heads as wide as the model", heads,
                   ("one head's QKV", "all heads' QKV", "with W_O", "full-width heads"), ("weights",)),
            matrix("FLOPs", f"of a text, in {prefix}FLOP: a multiply and an add are two", parts[:, None] / factor,
                   names, (f"{prefix}FLOP",)),
            matrix("shares", "of these FLOPs, in percent", 100 * (parts[:, None] / total), names, ("%",)),
        ),
    )  # fmt: skip


def by_length(values: Values, load: Loader) -> Ran:
    """FLOPs of the projections and of attention proper, for longer and longer texts. Raises ShapeError."""
    require_fitting(values)
    m, h, causal = values.whole("d_model"), values.whole("heads"), values["mask"] == CAUSAL
    lengths = sorted({*LENGTHS, values.whole("tokens")})
    costs = np.array([flops(m, h, n, causal)[1:] for n in lengths], np.float64)
    shares = 100 * costs / costs.sum(1, keepdims=True)
    names = tuple(f"{n:,} tokens" for n in lengths)
    prefix, factor = scaled(float(costs.min()))
    return Ran(
        f"With d_model = {m:,}, scores and the weighted sum cost as much as the projections from "
        f"{even_tokens(m, causal):,} tokens on.",
        (
            matrix("FLOPs", f"in {prefix}FLOP, of one layer", costs / factor, names, ("projected", "attended")),
            matrix("shares", "in percent", shares, names, ("projected", "attended")),
        ),
        chart=(
            Panel(
                "% of the FLOPs, by tokens of the text",
                tuple(
                    Curve(part, tuple(map(float, lengths)), tuple(column), bold=part == ATTENTION)
                    for part, column in zip((PROJECTIONS, ATTENTION), shares.T.tolist(), strict=True)
                ),
                100.0,
            ),
        ),
    )


_MASK = choice("mask", "a token may look at", (ALL, CAUSAL))
_BIASES = choice("biases", "biases", (WITH, WITHOUT))
CELLS: Mapping[str, Cell] = {
    "attention-cost": Cell(
        attention_cost,
        (
            whole("d_model", "model width d", 512, 1, 65_536, 64),
            whole("heads", "heads h", 8, 1, 1024),
            whole("tokens", "tokens n", 2048, 1, 1_000_000, 64),
            _BIASES,
            _MASK,
        ),
        in_page=True,
    ),
    "attention-by-length": Cell(
        by_length,
        (
            whole("d_model", "model width d", 512, 1, 65_536, 64),
            whole("heads", "heads h", 8, 1, 1024),
            whole("tokens", "a length of yours", 1024, 1, 1_000_000, 64),
            _MASK,
        ),
        in_page=True,
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks


def torch_parameters(values: Values, load: Loader) -> Right:
    """The parameters of torch's own layer, built without memory for its numbers and counted."""
    import torch

    m, h, biased = values.whole("d_model"), values.whole("heads"), values["biases"] == WITH
    layer = torch.nn.MultiheadAttention(m, h, bias=biased, device="meta")
    answer = sum(tensor.numel() for tensor in layer.parameters())
    plain, wide = sum(weights(m, h).values()), sum(weights(m, h, wide=True).values())
    other_answer = sum(weights(m, h, biased=not biased).values())
    added = f" + {m:,}" if biased else ""
    return Right(
        float(answer),
        f"4 ({m:,} x {m:,}{added}) = {answer:,}. The number of heads is not in it.",
        "Four projections: three that go into the heads, and one that comes out of them."
        + (" Each has a bias as wide as the model." if biased else ""),
        unit="parameters",
        mistakes={
            float(other_answer): f"That is the layer {WITHOUT if biased else WITH}.",
            float(plain * 3 // 4): "That is W_Q, W_K and W_V. The output projection W_O is as large as each of them.",
            float(wide): "That has heads as wide as the model. They share its width: each has d_model / heads.",
            float(plain // h): "That is one head's share of the weights.",
        },
    )


def head_parameters(values: Values, load: Loader) -> Right:
    """W_Q, W_K and W_V of one head."""
    m, h = values.whole("d_model"), values.whole("heads")
    parameters = weights(m, h)
    answer = sum(parameters[name] for name in "qkv") // h
    return Right(
        float(answer),
        f"Three matrices of {m:,} x {m // h}: 3 d^2 / h = {answer:,}.",
        f"A head is {m:,} / {h} wide. It reads tokens {m:,} wide, three times over.",
        unit="weights",
        mistakes={
            float(answer * h): "That is all heads together.",
            float(answer // 3): "That is one of its three matrices.",
            float(3 * (m // h) ** 2): "The matrices are not square: a head reads all of a token, as wide as the model.",
            float(sum(parameters.values()) // h): "That has its rows of W_O in it. They come fourth.",
        },
    )


def score_flops(values: Values, load: Loader) -> Right:
    """The FLOPs of Q K^T in all heads."""
    m, h, n = (values.whole(name) for name in ("d_model", "heads", "tokens"))
    spent, _, attention = flops(m, h, n, False)
    answer = spent["scores"] / 1e9
    return Right(
        answer,
        f"{n:,} x {n:,} products of {m // h} numbers, in {h} heads, two FLOP each: 2 n^2 d is "
        f"{in_flops(spent['scores'])}.",
        f"Each of {n:,} x {n:,} pairs takes {m // h} multiplications and the same number of additions, in each of "
        f"{h} heads.",
        unit="GFLOP",
        mistakes={
            answer / 2: "A multiplication and an addition are counted as two.",
            answer / h: "That is one head.",
            answer * h: "That has heads as wide as the model: each is narrower, and all together are as wide.",
            attention / 1e9: "That has the weighted sum in it, which costs as much again.",
        },
    )


def even_length(values: Values, load: Loader) -> Right:
    """The length from which the part with n squared costs most."""
    m, causal = values.whole("d_model"), values["mask"] == CAUSAL
    answer, other_answer = (even_tokens(m, mask) for mask in (causal, not causal))
    words = f"Projections take 8 n d^2. Scores and weighted sum take {'2 n (n + 1) d' if causal else '4 n^2 d'}."
    return Right(
        float(answer),
        f"{words} They are equal at n = {answer:,}.",
        words,
        unit="tokens",
        mistakes={
            float(other_answer): "That is where every token sees every other."
            if causal
            else "That is with a causal mask.",
            4.0 * m: "Nearly: a causal mask leaves n (n + 1) / 2 pairs, a few more than half of n squared."
            if causal
            else "That is about the place with a causal mask.",
            float(m): "Nearly: write both costs down, with their factors, and divide.",
        },
    )


def longer_text(values: Values, load: Loader) -> Right:
    """How the cost of a part grows with the text."""
    m, times, part = 512, values.whole("times"), values.text("part")
    n = 1024
    now, then = (flops(m, 8, length, False)[1:] for length in (n, n * times))
    factors = {PROJECTIONS: then[0] / now[0], ATTENTION: then[1] / now[1]}
    reads_tokens = part == PROJECTIONS
    answer, other_factor = factors[part], factors[ATTENTION if reads_tokens else PROJECTIONS]
    grows = "with n: each token is projected once" if reads_tokens else "with n squared: each pair of tokens is scored"
    return Right(
        answer,
        f"{answer:g} times: it grows {grows}.",
        "Is it done once for each token, or once for each pair of tokens?",
        mistakes={other_factor: f"So {ATTENTION if reads_tokens else PROJECTIONS} grow."},
    )


def flop_share(values: Values, ran: Ran) -> Right:
    """The share of a part in the cell's FLOPs."""
    shares = ran.table("shares").values[:, 0]
    projections, attention = float(shares[:2].sum()), float(shares[2:].sum())
    answer, other_share = (projections, attention) if values["part"] == PROJECTIONS else (attention, projections)
    words = f"Projections take {projections:.1f} %, scores and the weighted sum {attention:.1f} %."
    return Right(
        answer,
        words,
        "Compare 8 n d^2 with 4 n^2 d, or half of that under a causal mask.",
        unit="%",
        tolerance=2.0,
        mistakes={other_share: "That is the other part."} if abs(answer - other_share) > 4 else {},
    )


_PART = choice("part", "which part", (ATTENTION, PROJECTIONS))
CHECKS: Mapping[str, Check | Predict] = {
    "torch-parameters": Check(torch_parameters, (WIDTH, HEADS, _BIASES), sound=fitting),
    "head-parameters": Check(head_parameters, (WIDTH, HEADS), sound=fitting),
    "score-flops": Check(
        score_flops, (WIDTH, HEADS, whole("tokens", "tokens", 4096, 1, 131_072, others=(2048, 8192)))
    ),
    "even-length": Check(even_length, (WIDTH, _MASK)),
    "longer-text": Check(longer_text, (whole("times", "times as long", 4, 2, 100, others=(2, 3, 8)), _PART)),
    "flop-share": Predict(flop_share, (_PART,)),
}  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- facts


def torch_layer(values: Values, load: Loader) -> str:
    return f"{float(torch_parameters(values, load).answer):,.0f}"


def weights_of(values: Values, load: Loader) -> str:
    """The weights of one head, of all heads, with W_O, or of heads as wide as the model."""
    m, h = values.whole("d_model"), values.whole("heads")
    parameters, wide = weights(m, h), weights(m, h, wide=True)
    qkv = sum(parameters[name] for name in "qkv")
    counts: Sequence[int] = (qkv // h, qkv, sum(parameters.values()), sum(wide.values()))
    return f"{dict(zip(_OF.choices, counts, strict=True))[values.text('of')]:,}"


def even_at(values: Values, load: Loader) -> str:
    return f"{even_tokens(values.whole('d_model'), values['mask'] == CAUSAL):,}"


def share_at(values: Values, load: Loader) -> str:
    """The share of scores and weighted sum in the FLOPs of a text in the layer."""
    m, h, n = (values.whole(name) for name in ("d_model", "heads", "tokens"))
    _, projections, attention = flops(m, h, n, values["mask"] == CAUSAL)
    return f"{100 * attention / (attention + projections):.0f} %"


_OF = choice("of", "which", ("one head", "all heads", "with W_O", "full-width heads"))
FACTS: Mapping[str, Fact] = {
    "torch-layer": Fact(torch_layer, (WIDTH, HEADS, _BIASES)),
    "weights-of": Fact(weights_of, (WIDTH, HEADS, _OF)),
    "even-at": Fact(even_at, (WIDTH, _MASK)),
    "attention-share": Fact(share_at, (WIDTH, HEADS, whole("tokens", "tokens", 1024, 1, 1_000_000), _MASK)),
}
