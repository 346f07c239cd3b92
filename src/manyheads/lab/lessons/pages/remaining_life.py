"""Remaining useful life: eight heads over the cycles of an engine, their shapes, their parameters, and what they read.

The shapes are of our own layer, which is run; which cycles trained heads read, and both nets' errors, are stored from a
real training on SIMULATED engines (`lab.lessons.stored`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from manyheads import nn
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, Loader, Ran, Table, matrix, numbered
from manyheads.lab.lessons.pages.shared import weights
from manyheads.lab.lessons.parameters import Values, choice, fitting, require_fitting, whole
from manyheads.lab.lessons.stored import read_reading

BATCH, CYCLES, WIDTH, HEADS = 2, 30, 512, 8
LAST, FIRST = "the last ten cycles", "the first ten cycles"
SEEN = {LAST: slice(-10, None), FIRST: slice(10)}

# -------------------------------------------------------------------------------------------------------------- cells


def block(values: Values, load: Loader) -> Ran:
    """The attention block on random states of windows, step by step; the first window is shown. Raises ShapeError."""
    import torch  # of this cell alone

    require_fitting(values)
    b, n, m, h = (values.whole(name) for name in ("batch", "cycles", "d_model", "heads"))
    d = m // h
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        layer = nn.MultiHeadAttention(m, h, batch_first=True).eval()
        states = torch.randn(b, n, m)
        out, maps = layer(states, average_attn_weights=False)
    count = sum(parameter.numel() for parameter in layer.parameters())
    cycles = numbered("cycle", n)

    def shown(label: str, words: str, numbers: torch.Tensor, shape: tuple[int, ...], as_map: bool = False) -> Table:
        """The first window's numbers, with the shape of all windows."""
        table = matrix(label, words, np.asarray(numbers.double()), cycles, cycles if as_map else "m", as_map=as_map)
        return Table(table.label, table.words, table.values, shape, table.rows, table.columns, as_map)

    tables = (
        shown("states", "what the BiLSTM gives for each cycle (random here); the first window", states[0], (b, n, m)),
        *(shown(f"weights, head {head}", "which cycles it reads; the first window", maps[0, head], (b, n, n), True)
          for head in range(h)),
        shown("out", "after concat and the output projection, in the states' shape", out[0], (b, n, m)),
    )  # fmt: skip
    words = (
        f"({b}, {n}, {m}) goes in and comes out; between them {h} heads of width {d}, and {b} x {h} maps of {n} x {n}: "
        f"{maps.numel():,} weights. {count:,} parameters: four matrices of {m} x {m}, and four biases."
    )
    lanes = tuple((f"weights, head {head}",) for head in range(h))
    return Ran(words, tables, flow=((("states",),), lanes, (("out",),)), found={"maps": maps.numel()})


def cycles_read(values: Values, load: Loader) -> Ran:
    """Which cycles of a window each trained head reads, engines near their end; stored."""
    stored = read_reading()
    read = np.array(list(stored["heads"].values()))
    names, engines = tuple(stored["heads"]), stored["engines"]
    place = values.text("of")
    shares = read[:, SEEN[place]].sum(1)
    share = 100 * shares.mean()
    peaks = read.argmax(1) - read.shape[1]
    ages = tuple(f"{age}" for age in range(-read.shape[1], 0))
    attention, alone = (stored["errors"][kind] for kind in ("attention", "no-attention"))
    return Ran(
        f"Over {engines['worn']} SIMULATED engines with at most {engines['at_most_left']} cycles left, a head gives "
        f"{place} {share:.0f} % of its weight on average; an even reading gives {1000 / read.shape[1]:.0f} %.",
        (
            matrix("by cycle", "weight of each cycle, -1 being the last; rows are heads", read, names, ages),
            matrix("heads", f"percent of its weight on {place}; the cycle that it reads most",
                   np.stack([100 * shares, peaks], 1), names, ("percent", "most at")),
            matrix("errors", f"of {engines['tested']} test engines, in cycles; one seed",
                   np.array([[attention["rmse"]], [alone["rmse"]]]), ("with attention", "the same without"), ("RMSE",)),
        ),
        found={"share": float(share)},
    )  # fmt: skip


CELLS: Mapping[str, Cell] = {
    "life-block": Cell(
        block,
        (
            whole("batch", "windows", BATCH, 1, 4),
            whole("cycles", "cycles of a window", CYCLES, 2, 40),
            whole("d_model", "numbers a cycle", WIDTH, 8, 512, 8),
            whole("heads", "heads", HEADS, 1, 8),
        ),
    ),
    "cycles-read": Cell(cycles_read, (choice("of", "weight on", tuple(SEEN)),)),
}

# ------------------------------------------------------------------------------------------------------------- checks


def life_parameters(values: Values, load: Loader) -> Right:
    """The parameters of one attention layer, biases and all."""
    m, h = values.whole("d_model"), values.whole("heads")
    answer, bare = (sum(weights(m, h, biased=biased).values()) for biased in (True, False))
    return Right(
        float(answer),
        f"4 ({m}^2 + {m}) = {answer:,}, whatever the heads, and whatever the cycles.",
        "Four matrices as wide as the model, and a bias of that width for each.",
        unit="parameters",
        mistakes={
            float(bare): "That is without the four biases.",
            float(3 * (m * m + m)): "The output projection is the fourth.",
        },
    )


def life_out(values: Values, ran: Ran) -> Right:
    """The weights in all maps of the layer in the cell: windows, heads, cycles by cycles."""
    b, n, _ = ran.table("states").shape
    count, single = int(ran.found["maps"]), n * n
    return Right(
        float(count),
        ran.words,
        "Each window has a map for each head: a row and a column for each cycle.",
        mistakes={
            float(count // b): "That is one window.",
            float(b * single): "Each head has its own.",
            float(single): "That is one map: each window has one for each head.",
        },
    )


def life_read(values: Values, ran: Ran) -> Right:
    """Into which of three ranges the mean share of the cycles chosen in the cell falls."""
    share, num_cycles = float(ran.found["share"]), len(ran.table("by cycle").columns)
    even = 1000 / num_cycles  # percent, of ten cycles
    return Right(
        MOST if share > 50 else MORE if share > even else EVEN,
        ran.words,
        "What does an engine show of its wear: its first cycles or its last?",
    )


def even_share(values: Values, load: Loader) -> Right:
    """What an even reading gives some cycles of a window."""
    part, n = values.whole("part"), values.whole("cycles")
    return Right(
        100 * part / n,
        f"{part} of {n}. A head has to give more than this, to have chosen these cycles.",
        "All cycles alike: each gets the same share of 1.",
        unit="%",
        mistakes={100 / n: "That is one cycle."},
    )


MOST = "more than half"
MORE = "less than half, but more than an even reading gives"
EVEN = "no more than an even reading gives"
_WIDE = whole("d_model", "width", WIDTH, 64, 4096, 64, others=(256, 768, 1024))
_MANY = whole("heads", "heads", HEADS, 1, 64, others=(4, 16))
_LONG = whole("cycles", "cycles", CYCLES, 2, 1000, others=(20, 50))
CHECKS: Mapping[str, Check | Predict] = {
    "life-parameters": Check(life_parameters, (_WIDE, _MANY), fitting),
    "life-out": Predict(life_out),
    "life-read": Predict(life_read),
    "life-even": Check(even_share, (whole("part", "cycles of interest", 10, 1, 1000, others=(5, 6)), _LONG),
                       lambda values: values.whole("part") < values.whole("cycles")),
}  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- facts


def stored_number(values: Values, load: Loader) -> str:
    """A number of the stored training."""
    stored, name = read_reading(), values.text("of")
    if name in stored["errors"]:
        return f"{stored['errors'][name]['rmse']:.1f}"
    if name == "worn engines":
        return str(stored["engines"]["worn"])
    return f"{100 * np.array(list(stored['heads'].values()))[:, SEEN[name]].sum(1).mean():.0f} %"


FACTS: Mapping[str, Fact] = {
    "life-stored": Fact(stored_number, (choice("of", "which", ("attention", "no-attention", "worn engines", *SEEN)),)),
}
