"""The output projection in a real layer: what each head adds, what its columns hold after W_O, and life without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.lessons.cells import Cell, Fact, HeadLink, Loader, Ran, matrix
from manyheads.lessons.checks import Check, Predict, Right
from manyheads.lessons.parameters import Values, choice, text, whole
from manyheads.lessons.topics.bundled import MAX_UNSEEN, MODEL, SENTENCE, require_short
from manyheads.spec import Site

__all__ = ["CELLS", "CHECKS", "FACTS"]

BEFORE, AFTER = "before W_O", "after W_O"


def without_projection(values: Values, load: Loader) -> Ran:
    """How far a sentence's embedding turns when W_O is skipped in one layer, beside what else one could take away.

    Raises TextError, LessonError.
    """
    from manyheads.interventions.apply.applied import editors_of
    from manyheads.interventions.effects.effect import carried_out
    from manyheads.interventions.effects.metrics import choose_metric
    from manyheads.interventions.effects.metrics import read_corpus
    from manyheads.plan import Ablate, Plan, SkipOutputProjection

    lm, sentence, head = load(MODEL), values.text("sentence"), values.whole("head")
    require_short(lm, sentence, MAX_UNSEEN)
    depths = range(len(lm.spec.sites))
    steps = [(SkipOutputProjection(at), Ablate(f"L{at}"), Ablate(f"L{at}H{head}")) for at in depths]
    editors = editors_of(lm, [Plan(each) for row in steps for each in row], None)
    metric, _ = choose_metric(lm, "cosine", None)
    _, _, changes = carried_out(lm, editors, read_corpus(lm, [sentence], None), metric, None)
    turned = np.asarray(changes[:, 0], np.float64).reshape(len(steps), -1)
    worse = int((turned[:, 0] > turned[:, 1]).sum())
    return Ran(
        f"Without its W_O a layer turns the embedding by {turned[:, 0].min():.3f} to {turned[:, 0].max():.3f} "
        f"(1 - cosine: 0 is the same, 1 at right angles). In {worse} of {len(turned)} layers that is worse than "
        f"removing all of its heads.",
        (
            matrix("change", "of the sentence's embedding, 1 - cosine", turned, "layer",
                   ("no W_O", "no heads", f"no H{head}")),
        ),
        (HeadLink(f"L{len(turned) - 1}H{head}", sentence, MODEL),),
    )  # fmt: skip


def slice_zeroed(values: Values, load: Loader) -> Ran:
    """A head's columns set to 0 before W_O, and as many after it: who loses what. Raises TextError, LessonError."""
    lm, sentence, depth, head = load(MODEL), values.text("sentence"), values.whole("layer"), values.whole("head")
    said, w_o = _layer(lm, sentence, depth)
    parts = np.einsum("hnf,hfm->hnm", said, w_o, optimize=True)
    h, _, f = said.shape
    own = slice(head * f, (head + 1) * f)
    before = np.where(np.arange(h) == head, 100.0, 0.0)
    after = 100 * (parts[:, :, own] ** 2).sum((1, 2)) / (parts**2).sum((1, 2))
    names = tuple(f"L{depth}H{i}" for i in range(h))
    return Ran(
        f"Columns {own.start} to {own.stop - 1} set to 0 before W_O: {names[head]} is gone, nobody else is touched. "
        f"The same columns after W_O: every head loses {after.min():.1f} to {after.max():.1f} % of what it adds, "
        f"{names[head]} {after[head]:.1f} %.",
        (
            matrix("lost", "of what each head adds on this sentence (squared length), in percent",
                   np.stack((before, after), 1), names, ("before", "after")),
            matrix("stays", "of a head's rows of W_O, the share in the head's own columns, in percent; none mixed: 100",
                   100 * _at_home(w_o, f)[:, None], names, ("%",)),
        ),
        (HeadLink(names[head], sentence, MODEL),),
    )  # fmt: skip


def _layer(lm: Any, sentence: str, depth: int) -> tuple[Float64[ndarray, "h n f"], Float64[ndarray, "h f m"]]:
    """What each head of a layer says at each token of a sentence, and its rows of W_O."""
    from manyheads.models.recorder import record

    require_short(lm, sentence, MAX_UNSEEN)
    layer = record(lm, sentence, keep=("q", "k", "v", "lse")).layers[depth]
    assert layer.v is not None
    heads = range(layer.site.num_heads)
    maps = np.stack([np.asarray(layer.weights(head).double()) for head in heads])
    v = np.stack([np.asarray(layer.v[0, layer.site.kv_head_of(head)].double()) for head in heads])
    return np.einsum("hqk,hkf->hqf", maps, v, optimize=True), _w_o(lm, layer.site)


def _w_o(lm: Any, site: Site) -> Float64[ndarray, "h f m"]:
    """Each head's rows of a layer's W_O."""
    from manyheads.models.weights.projections import output_projection
    from manyheads.models.weights.projections import weight_by_head

    found = output_projection(lm.model, site.module, site.num_heads * site.v_dim)
    assert found is not None
    return np.asarray(weight_by_head(found[1], site.num_heads).detach().double())


def _at_home(w_o: Float64[ndarray, "h f m"], f: int) -> Float64[ndarray, "h"]:
    """Of each head's rows of W_O, the share (squared length) that is in the head's own columns."""
    return np.array([(rows[:, i * f : (i + 1) * f] ** 2).sum() / (rows**2).sum() for i, rows in enumerate(w_o)])


_SENTENCE = text("sentence", "A sentence", SENTENCE)
CELLS: Mapping[str, Cell] = {
    "without-projection": Cell(without_projection, (_SENTENCE, whole("head", "a head to compare with", 4, 0, 11))),
    "slice-zeroed": Cell(slice_zeroed, (_SENTENCE, whole("layer", "layer", 2, 0, 5), whole("head", "head", 4, 0, 11))),
}


def lost_part(values: Values, ran: Ran) -> Right:
    """What a head loses when columns are set to 0 before W_O or after it."""
    table, head, when = ran.table("lost"), values.whole("head"), values.text("when")
    found = table.values[head]
    answer, other = (float(found[at]) for at in ((0, 1) if when == BEFORE else (1, 0)))
    mistakes = {}
    if abs(other - answer) > 10:
        mistakes = {other: f"That is {AFTER if when == BEFORE else BEFORE}."}
    elif answer < 90:
        mistakes = {100.0: f"All of it goes only for the head whose columns they are, and only {BEFORE}."}
    words = f"{table.rows[head]} loses {found[0]:.0f} % of what it adds before W_O, and {found[1]:.1f} % after it."
    return Right(
        answer,
        words,
        f"{words} Before W_O the columns are one head's. After it, every head has written into all of them.",
        unit="%",
        tolerance=5.0,
        mistakes=mistakes,
    )


CHECKS: Mapping[str, Check | Predict] = {
    "lost-part": Predict(lost_part, (whole("head", "head", 7, 0, 11), choice("when", "when", (AFTER, BEFORE)))),
}


def stays_home(values: Values, load: Loader) -> str:
    """Of all heads' rows of W_O in the bundled model, the share in the head's own columns: the mean over all heads."""
    lm = load(MODEL)
    if values["of"] == "measured":
        share = float(np.mean([_at_home(_w_o(lm, site), site.v_dim) for site in lm.spec.sites]))
    else:
        share = 1 / lm.spec.sites[0].num_heads
    return f"{100 * share:.1f} %"


FACTS: Mapping[str, Fact] = {
    "stays-home": Fact(stays_home, (choice("of", "of", ("measured", "if spread evenly")),)),
}
