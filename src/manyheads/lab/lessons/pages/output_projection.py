"""The output projection: the heads' outputs side by side, times W_O, which is a sum of one part a head.

First on the reader's own numbers, then in a real layer: what each head adds, what its columns hold after W_O, and what
the model computes without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from einops import rearrange
from jaxtyping import Float64
from numpy import ndarray

from manyheads import edits, inputs
from manyheads.errors import ShapeError
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, HeadLink, Loader, Ran, matrix, numbered
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.pages.shared import (
    HEADS,
    KV_HEADS,
    MAX_UNSEEN,
    MODEL,
    SENTENCE,
    WIDTH,
    require_short,
    weights,
)
from manyheads.lab.lessons.parameters import Values, choice, fitting, matrix_text, read_matrix, text, whole
from manyheads.plan import Ablate, Plan, SkipOutputProjection
from manyheads.spec import Site

if TYPE_CHECKING:
    from manyheads.models import LoadedModel

MIXING = "1 0 0 1\n0 1 1 0\n1 0 -1 0\n0 1 0 -1"
MIXED, NONE, OWN = "a W_O that mixes", "none: heads side by side", "my own"
WITH, WITHOUT = "with W_O", "without it"


def sum_of_parts(values: Values, load: Loader) -> Ran:
    """Heads side by side times W_O, and head by head; with the reader's own numbers. Raises LessonError, ShapeError."""
    heads, w_o = read_matrix("heads", values.text("heads")), read_matrix("w_o", values.text("w_o"))
    (h, f), m = heads.shape, w_o.shape[1]
    if len(w_o) != h * f:
        raise ShapeError(
            f"heads has {h} rows of {f}, so {h * f} numbers in all, and w_o {len(w_o)} rows: the two "
            f"numbers must be equal."
        )
    parts = head_parts(heads, w_o)
    whole_way, sums = heads.reshape(1, -1) @ w_o, parts.sum(0, keepdims=True)
    names = numbered("head", h)
    reach = [int((np.abs(rows).max(0) > 0).sum()) for rows in rearrange(w_o, "(h f) m -> h f m", h=h)]
    counts = [f"{name} can reach {count} of {m} columns" for name, count in zip(names, reach, strict=True)]
    reached = f"each head can reach {reach[0]} of {m} columns" if len(set(reach)) == 1 else ", ".join(counts)
    return Ran(
        f"The sum of the heads' parts is the output; {reached}.",
        (
            matrix("heads", "what each head says at one token", heads, names, "f"),
            matrix("side by side", "concat: head 0's numbers, then head 1's", heads.reshape(1, -1), ("token",),
                   tuple(f"h{i}.{j}" for i in range(h) for j in range(f))),
            matrix("W_O", "its first rows are head 0's, the next are head 1's", w_o,
                   tuple(f"head {i}, row {j}" for i in range(h) for j in range(f)), numbered("m", m)),
            matrix("parts", "each head times its own rows of W_O", parts, names, numbered("m", m)),
            matrix("sum", "of the parts", sums, ("token",), numbered("m", m)),
            matrix("concat W_O", "all at once: the same", whole_way, ("token",), numbered("m", m)),
        ),
    )  # fmt: skip


def head_parts(heads: Float64[ndarray, "h f"], w_o: Float64[ndarray, "hf m"]) -> Float64[ndarray, "h m"]:
    """What each head adds to the output: its numbers times its rows of W_O."""
    # 0 times a negative number is -0.0, which a sentence would show
    return np.einsum("hf,hfm->hm", heads, rearrange(w_o, "(h f) m -> h f m", h=len(heads)), optimize=True) + 0.0


_KIND = choice("kind", "W_O", (MIXED, NONE, OWN), {MIXED: {"w_o": MIXING}, NONE: {"w_o": matrix_text(np.eye(4))}})


def part_of_head(values: Values, ran: Ran) -> Right:
    """What a head adds to a column of the output."""
    head, column = values.whole("head"), values.whole("column")
    parts, total = ran.table("parts"), ran.table("sum").values[0]
    if head >= len(parts.rows) or column >= len(parts.columns):
        raise LessonError(f"the cell now has {len(parts.rows)} heads and {len(parts.columns)} columns, counted from 0.")
    answer = float(parts.values[head, column])
    f = ran.table("heads").values.shape[1]
    outputs, rows = ran.table("heads").values[head], ran.table("W_O").values[head * f : (head + 1) * f, column]
    worked = " + ".join(f"{a:g} × {b:g}" if b >= 0 else f"{a:g} × ({b:g})" for a, b in zip(outputs, rows, strict=True))
    words = f"Head {head}'s numbers, each times its row's number in column {column} of W_O: {worked} = {answer:g}."
    apart = abs(total[column] - answer) > 0.05
    return Right(
        answer,
        words.replace("-", "−"),
        f"Take head {head}'s numbers, and column {column} of the rows of W_O that are head {head}'s.",
        mistakes={float(total[column]): "That is the sum of all heads."} if apart else {},
    )


def reaches(values: Values, load: Loader) -> Right:
    """How many columns of the output one head reaches: computed on random numbers."""
    m, h, mixes = values.whole("d_model"), values.whole("heads"), values["how"] == WITH
    f, rng = m // h, np.random.Generator(np.random.PCG64(0))
    w_o, head = rng.normal(size=(f, m)), rng.normal(size=(1, f))
    mixed, alone = (int((np.abs(head @ rows) > 0).sum()) for rows in (w_o, np.eye(m)[:f]))
    answer, other_answer = (mixed, alone) if mixes else (alone, mixed)
    return Right(
        float(answer),
        f"Its {m // h} rows of the output projection go into every column."
        if mixes
        else f"Only its own {m // h}: nothing has mixed them.",
        "Which columns does a row of the projection write into? And where does a head's output stand without it?",
        unit="columns",
        mistakes={float(other_answer): f"So it is {WITHOUT if mixes else WITH}."},
    )


def first_row(values: Values, load: Loader) -> Right:
    """Where a head's rows of W_O begin."""
    m, h, head = values.whole("d_model"), values.whole("heads"), values.whole("head")
    rows = rearrange(np.arange(m), "(h f) -> h f", h=h)[head]
    return Right(
        float(rows[0]),
        f"Rows {rows[0]} to {rows[-1]} are head {head}'s: {m // h} for each of the {head} before it, and then its own.",
        "The heads stand side by side in concat, so their rows stand one below the other in the matrix. Count from 0.",
        mistakes={
            float(rows[0] + 1): "Count from 0.",
            float(rows[-1] + 1): f"There head {head + 1} begins.",
            float(head): "Each head has several rows, as many as it is wide.",
        },
    )


def projection_share(values: Values, load: Loader) -> Right:
    """The share of W_O in an attention layer's weights."""
    m, h, g = values.whole("d_model"), values.whole("heads"), values.whole("kv_heads")
    parts = weights(m, h, kv_heads=g)
    answer = 100 * parts["o"] / sum(parts.values())
    plain = weights(m, h)
    usual = 100 * plain["o"] / sum(plain.values())
    return Right(
        answer,
        f"{parts['o']:,} of {sum(parts.values()):,}. W_K and W_V shrink with the key/value heads, W_Q and W_O do not.",
        "W_Q and W_O are d x d each. W_K and W_V have columns for the key/value heads only.",
        unit="%",
        mistakes={
            usual: "That is with a key/value head for every query head.",
            100 * parts["o"] / (sum(parts.values()) - parts["o"]): "Count W_O itself in the sum as well.",
        },
    )


def share_of_projection(values: Values, load: Loader) -> str:
    return f"{float(projection_share(values, load).answer):.0f} %"


# ------------------------------------------------------------------------------------------------------ in a real layer


BEFORE, AFTER = "before W_O", "after W_O"


def without_projection(values: Values, load: Loader) -> Ran:
    """How far a sentence's embedding turns when W_O is skipped in one layer, beside its heads removed, all or one.

    Raises TextError, LessonError.
    """
    lm, sentence, head = load(MODEL), values.text("sentence"), values.whole("head")
    require_short(lm, sentence, MAX_UNSEEN)
    depths = range(len(lm.spec.sites))
    steps = [(SkipOutputProjection(depth), Ablate(f"L{depth}"), Ablate(f"L{depth}H{head}")) for depth in depths]
    plans = edits.plan_edits(lm, [Plan(step) for row in steps for step in row])
    metric, _ = edits.choose_metric(lm, "cosine", None)
    swept = edits.Runner.of(lm, plans, metric, share=False).over(tuple(inputs.read(lm, [sentence]).batches()))
    turned = swept.changes[0].numpy().reshape(len(steps), -1)
    worse = int((turned[:, 0] > turned[:, 1]).sum())
    return Ran(
        f"Without its output projection a layer turns the embedding by {turned[:, 0].min():.3f} to "
        f"{turned[:, 0].max():.3f} (1 - cosine: 0 is the same, 1 at right angles). "
        f"In {worse} of {len(turned)} layers that is worse than "
        f"removing all of its heads.",
        (
            matrix("change", "of the sentence's embedding, 1 - cosine", turned, "layer",
                   ("no W_O", "no heads", f"no H{head}")),
        ),
        (HeadLink(f"L{len(turned) - 1}H{head}", sentence, MODEL),),
    )  # fmt: skip


def slice_zeroed(values: Values, load: Loader) -> Ran:
    """What each head loses by a head's columns set to 0 before W_O, or after it. Raises TextError, LessonError."""
    lm, sentence, depth, head = load(MODEL), values.text("sentence"), values.whole("layer"), values.whole("head")
    outputs, w_o = layer_outputs(lm, sentence, depth)
    parts = np.einsum("hnf,hfm->hnm", outputs, w_o, optimize=True)
    h, _, f = outputs.shape
    columns = slice(head * f, (head + 1) * f)
    before = np.where(np.arange(h) == head, 100.0, 0.0)
    after = 100 * (parts[:, :, columns] ** 2).sum((1, 2)) / (parts**2).sum((1, 2))
    names = tuple(f"L{depth}H{i}" for i in range(h))
    return Ran(
        f"Columns {columns.start} to {columns.stop - 1} set to 0 before the projection: {names[head]} is gone, "
        f"no other is touched. The same columns after it: every head loses {after.min():.1f} to {after.max():.1f} % of "
        f"what it adds, {names[head]} {after[head]:.1f} %.",
        (
            matrix("lost", "of what each head adds on this sentence (squared length), in percent",
                   np.stack((before, after), 1), names, ("before", "after")),
            matrix("stays", "of a head's rows of W_O, the share in its own columns, in percent; none mixed: 100",
                   100 * _at_home(w_o, f)[:, None], names, ("%",)),
        ),
        (HeadLink(names[head], sentence, MODEL),),
    )  # fmt: skip


def layer_outputs(
    lm: LoadedModel, sentence: str, depth: int
) -> tuple[Float64[ndarray, "h n f"], Float64[ndarray, "h f m"]]:
    """The output of each head of a layer at each token of a sentence, and its rows of W_O. Raises TextError."""
    require_short(lm, sentence, MAX_UNSEEN)
    layer = inputs.record(lm, sentence, keep=("q", "k", "v", "lse")).layers[depth]
    assert layer.v is not None
    heads = range(layer.site.num_heads)
    maps = np.stack([np.asarray(layer.weights(head).double()) for head in heads])
    v = np.stack([np.asarray(layer.v[0, layer.site.kv_head_of(head)].double()) for head in heads])
    return np.einsum("hqk,hkf->hqf", maps, v, optimize=True), _w_o(lm, layer.site)


def _w_o(lm: LoadedModel, site: Site) -> Float64[ndarray, "h f m"]:
    """Each head's rows of a layer's W_O."""
    # torch comes with it, and listing the lessons needs none
    from manyheads.models.weights import output_projection, weight_by_head

    projection = output_projection(lm.model, site.module, site.num_heads * site.v_dim)
    assert projection is not None
    return np.asarray(weight_by_head(projection[1], site.num_heads, site.v_dim).detach().double())


def _at_home(w_o: Float64[ndarray, "h f m"], f: int) -> Float64[ndarray, "h"]:
    """Of each head's rows of W_O, the share (squared length) that is in the head's own columns."""
    return np.array([(rows[:, i * f : (i + 1) * f] ** 2).sum() / (rows**2).sum() for i, rows in enumerate(w_o)])


_SENTENCE = text("sentence", "A sentence", SENTENCE)


def lost_part(values: Values, ran: Ran) -> Right:
    """What a head loses when columns are set to 0 before W_O or after it."""
    table, head, when = ran.table("lost"), values.whole("head"), values.text("when")
    losses = table.values[head]
    answer, other_answer = (float(losses[column]) for column in ((0, 1) if when == BEFORE else (1, 0)))
    mistakes = {}
    if abs(other_answer - answer) > 10:
        mistakes = {other_answer: f"That is {AFTER if when == BEFORE else BEFORE}."}
    elif answer < 90:
        mistakes = {100.0: f"All of it goes only for the head whose columns they are, and only {BEFORE}."}
    words = (
        f"{table.rows[head]} loses {losses[0]:.0f} % of what it adds before the projection, "
        f"and {losses[1]:.1f} % after it."
    )
    return Right(
        answer,
        words,
        "Before the projection the columns are one head's. After it, every head has written into all of them.",
        unit="%",
        tolerance=5.0,
        mistakes=mistakes,
    )


def stays_home(values: Values, load: Loader) -> str:
    """The share of a head's rows of W_O that is in its own columns, as a mean over the bundled model's heads."""
    lm = load(MODEL)
    if values["of"] == "measured":
        share = float(np.mean([_at_home(_w_o(lm, site), site.v_dim) for site in lm.spec.sites]))
    else:
        share = 1 / lm.spec.sites[0].num_heads
    return f"{100 * share:.1f} %"


CELLS: Mapping[str, Cell] = {
    "sum-of-parts": Cell(
        sum_of_parts,
        (
            text("heads", "what the heads say, a row for each", "1 2\n3 4"),
            _KIND,
            text("w_o", "W_O, a row for each number of theirs", MIXING),
        ),
        in_page=True,
    ),
    "without-projection": Cell(without_projection, (_SENTENCE, whole("head", "a head to compare with", 4, 0, 11))),
    "slice-zeroed": Cell(slice_zeroed, (_SENTENCE, whole("layer", "layer", 2, 0, 5), whole("head", "head", 4, 0, 11))),
}
CHECKS: Mapping[str, Check | Predict] = {
    "part-of-head": Predict(
        part_of_head,
        (whole("head", "head", 1, 0, 11, others=(0,)), whole("column", "column", 2, 0, 11, others=(0, 1, 3))),
    ),
    "reaches": Check(reaches, (WIDTH, HEADS, choice("how", "how", (WITH, WITHOUT))), sound=fitting),
    "first-row": Check(first_row, (WIDTH, HEADS, whole("head", "head", 2, 0, 127, others=(1, 3))), sound=fitting),
    "projection-share": Check(projection_share, (WIDTH, HEADS, KV_HEADS), sound=fitting),
    "lost-part": Predict(lost_part, (whole("head", "head", 7, 0, 11), choice("when", "when", (AFTER, BEFORE)))),
}
FACTS: Mapping[str, Fact] = {
    "projection-percent": Fact(share_of_projection, CHECKS["projection-share"].parameters),
    "stays-home": Fact(stays_home, (choice("of", "of", ("measured", "if spread evenly")),)),
}
