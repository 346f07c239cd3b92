"""Pruning and redundancy: what is lost without a head, without several, and where heads have to be taken away.

Changes are those of the bundled model's sentence embedding, 1 - cosine to what it was (`mh.effect`, `mh.importance`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, cast

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads import corpora, edits, interventions, measurement
from manyheads.base import few
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, HeadLink, Loader, Ran, cited, matrix, numbered
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.pages.shared import MAX_UNSEEN, MODEL, SENTENCE, pruned_away, require_short
from manyheads.lab.lessons.parameters import Values, choice, fitting, text, whole
from manyheads.models import size
from manyheads.plan import Ablate, AblationKind, Plan

if TYPE_CHECKING:
    from manyheads.models import LoadedModel

MAX_HEADS = 6  # taken away one by one, and all but one: two forward passes each
CONTROLS = 4  # random sets beside them
CORPUS = 12  # texts of our page that "mean" is the mean of
ZERO, MEAN = "zero", "mean"
MORE, LESS = "worth at least {percent} % more than before", "less than that"

# -------------------------------------------------------------------------------------------------------------- cells


def taken_away(values: Values, load: Loader) -> Ran:
    """Some heads ablated, and as many at random: what that does to the embedding. Raises HeadError, TextError."""
    lm, sentence, kind = load(MODEL), values.text("sentence"), cast("AblationKind", values.text("kind"))
    require_short(lm, sentence, MAX_UNSEEN)
    heads = tuple(lm.spec.select(values.text("heads")))
    corpus = corpora.page_texts()[:CORPUS] if kind == MEAN else None
    result = interventions.effect(
        lm, Plan(Ablate(values.text("heads"), kind=kind)), sentence, corpus=corpus, controls=CONTROLS
    )
    rows = ("these heads", *(f"random {index + 1}" for index in range(len(result.control))))
    changes = np.array([result.change, *result.control])[:, None]
    random = (
        f"; {len(result.control)} random sets of the same size: {np.mean(result.control):.2g} on average"
        if result.control
        else ""
    )
    return Ran(
        f"Without {few(heads)} ({kind}) the embedding moves by {result.change:.2g}{random}. One sentence has no "
        f"interval: take many texts before you believe it.",
        (matrix("change", "1 - cosine to the embedding as it was", changes, rows, ("change",)),),
        tuple(HeadLink(str(head), sentence, MODEL) for head in heads[:3]),
    )


def all_heads(values: Values, load: Loader) -> Ran:
    """Every head ablated by itself, beside how much of its weight is off the first token. Raises TextError."""
    # torch comes with it, and listing the lessons needs none
    from manyheads.interventions.effects import rank_correlation

    lm, sentence = load(MODEL), values.text("sentence")
    require_short(lm, sentence)
    worth = interventions.importance(lm, [sentence])
    busy = 1 - measurement.measure(lm, sentence, ["first_mass"]).column("first_mass")
    by_layer = 1000 * worth.values.reshape(len(lm.spec.sites), -1)
    heads = numbered("H", by_layer.shape[1])
    order = worth.ranking()
    return Ran(
        f"{order[-1]} matters most ({worth[str(order[-1])]:.2g}), {order[0]} least ({worth[str(order[0])]:.2g}); half "
        f"of them stay below {np.median(worth.values):.2g}. Importance and weight off the first token rank heads alike "
        f"to {rank_correlation(worth.values, busy):.2f} (1 would be the same order, 0 none).",
        (
            matrix("importance", "1 - cosine without this head, x 1,000", by_layer, "layer", heads),
            matrix("weight off [CLS]", "percent that is not on the first token", 100 * busy.reshape(by_layer.shape),
                   "layer", heads),
        ),
        tuple(HeadLink(str(head), sentence, MODEL) for head in (order[-1], order[0])),
    )  # fmt: skip


def together(values: Values, load: Loader) -> Ran:
    """What each head is worth with the others there, and with them gone. Raises HeadError, TextError, LessonError.

    Worth is measured by how far the sentence's vector moves, as a straight line between unit vectors, and not by
    1 - cosine: that is half the square of it, so that two moves in one direction look like more than their sum.
    """
    lm, sentence = load(MODEL), values.text("sentence")
    require_short(lm, sentence)
    heads = tuple(str(head) for head in lm.spec.select(values.text("heads")))
    # Each head costs two forward passes: alone, and with all the others gone.
    if not 2 <= len(heads) <= MAX_HEADS:
        raise LessonError(f"{len(heads)} heads: name 2 to {MAX_HEADS}, as in 'L1H1, L2H9'.")
    whole_model, none_left = (_vector(lm, sentence, gone) for gone in ((), heads))
    moved = {head: _apart(whole_model, _vector(lm, sentence, (head,))) for head in heads}
    others_gone = {head: tuple(name for name in heads if name != head) for head in heads}
    later = {head: _apart(none_left, _vector(lm, sentence, others_gone[head])) for head in heads}
    all_gone = _apart(whole_model, none_left)
    percents = np.array([[moved[head], later[head]] for head in heads])
    alone = sum(moved.values())
    apart = ": not in one direction, so that the lengths do not add up" if all_gone < alone else ""
    changes = "; ".join(f"{head} {100 * (later[head] / moved[head] - 1):+.0f} %" for head in heads)
    return Ran(
        f"Once the others are gone, each is worth more (+) or less (-): {changes}. Together they move the vector by "
        f"{all_gone:.2f} % of its length, one by one by {alone:.2f} % in all{apart}.",
        (matrix("worth", "how far the vector moves without it, in percent of its length: the others there, or gone",
                percents, heads, ("there", "gone")),),
        tuple(HeadLink(head, sentence, MODEL) for head in heads),
    )  # fmt: skip


def _vector(lm: LoadedModel, sentence: str, gone: tuple[str, ...]) -> Float64[ndarray, "m"]:
    """The sentence's vector, of length 1, without these heads: the mean over its tokens."""
    import torch

    inputs = lm.required_tokenizer(sentence, return_tensors="pt")
    with edits.applied(lm, Ablate(", ".join(gone))) if gone else nullcontext(), torch.no_grad():
        mean = np.asarray(lm.model(**inputs).last_hidden_state[0].double()).mean(0)
    return mean / np.linalg.norm(mean)


def _apart(first: Float64[ndarray, "m"], second: Float64[ndarray, "m"]) -> float:
    """How far two vectors of length 1 are apart, in percent of that length."""
    return 100 * float(np.linalg.norm(first - second))


def cut(values: Values, load: Loader) -> Ran:
    """`prune_heads`, and what is left. Raises HeadError for what cannot go."""
    lm = load(MODEL)
    heads = lm.spec.select(values.text("heads"))
    columns = ("before", "after")
    for (_, layer), gone in heads.by_layer().items():
        if len(gone) == lm.spec.sites[layer].num_heads:
            raise LessonError(f"these are all heads of layer {layer}: keep one in each layer.")
    small = interventions.prune_heads(lm, values.text("heads"))
    before, after = (int(sum(weight.numel() for weight in model.parameters())) for model in (lm.model, small.model))
    counts = np.array([[site.num_heads for site in model.spec.sites] for model in (lm, small)]).T
    return Ran(
        f"{before:,} parameters before, {after:,} after: {before - after:,} went with {len(heads)} heads, "
        f"{100 * (before - after) / before:.2f} % of the model. It equals zero ablation to {small.error:.0e}.",
        (
            matrix("parameters", "of the whole model", np.array([[before], [after]]), columns, ("count",)),
            matrix("heads", "of each layer", counts, "layer", columns),
        ),
    )


_SENTENCE = text("sentence", "A sentence", SENTENCE)
CELLS: Mapping[str, Cell] = {
    "taken-away": Cell(
        taken_away, (text("heads", "Heads", "L5H11"), choice("kind", "put in their place", (ZERO, MEAN)), _SENTENCE)
    ),
    "all-heads": Cell(all_heads, (_SENTENCE,)),
    "together": Cell(together, (text("heads", "Heads", "L1H1, L2H9"), _SENTENCE)),
    "cut": Cell(cut, (text("heads", "Heads", "L1H1, L2H7, L2H9"),)),
}  # fmt: skip

# ------------------------------------------------------------------------------------------------------------- checks


def worth_more(values: Values, ran: Ran) -> Right:
    """Whether a head of the cell is worth so much more once the others are gone."""
    place, percent = values.whole("place"), values.whole("percent")
    table = ran.table("worth")
    if place >= len(table.rows):
        raise LessonError(f"the cell has {len(table.rows)} heads now, and no head {place}: they count from 0.")
    before, after = (float(column) for column in table.values[place])
    more = MORE.format(percent=percent)
    answer = more if after >= (1 + percent / 100) * before else LESS
    words = (
        f"{table.rows[place]} goes from {before:.2f} % to {after:.2f} %, which is {100 * (after / before - 1):+.0f} %."
    )
    return Right(answer, words, words, mistakes=dict.fromkeys((more, LESS), words))


def pruned_parameters(values: Values, load: Loader) -> Right:
    """What goes with some heads of a layer with biases."""
    m, h, gone = values.whole("d_model"), values.whole("heads"), values.whole("gone")
    answer, d = pruned_away(m, h, gone, biased=True), m // h
    return Right(
        float(answer),
        f"A head has {4 * m * d:,} weights and {3 * d:,} biases (of q, k and v). W_O's bias stays: it is no head's.",
        "A head has its part of W_Q, W_K, W_V and W_O, and of the biases of the first three.",
        unit="parameters",
        mistakes={
            float(4 * m * d * gone): "That is without biases.",
            float((4 * m * d + 4 * d) * gone): "The bias of W_O is as wide as the model, and belongs to no head.",
            float((3 * m * d + 3 * d) * gone): "Its rows of W_O go as well: nothing comes to them any more.",
        },
    )


def share_of_model(values: Values, load: Loader) -> Right:
    """What part of the bundled model goes with some of its heads."""
    total, heads, a_head = _model()
    gone = values.whole("gone")
    return Right(
        100 * a_head * gone / total,
        f"Each head has {a_head:,} of {total:,}. Most of this model is embeddings and feed-forward.",
        "How many parameters has one head? Times the heads, over those of the whole model.",
        unit="%",
        mistakes={100 * gone / heads: "That is their share of the heads. Most parameters are not in heads."},
    )


def _model() -> tuple[int, int, int]:
    """Of the bundled model: parameters, heads, and one head's parameters. By arithmetic, without its weights."""
    sizing = size(MODEL)
    (attention,) = sizing.architecture.layers[0].attention
    a_head = pruned_away(sizing.architecture.embed_dim, attention.num_heads, 1, biased=True)
    return sizing.num_parameters, len(sizing.layers) * attention.num_heads, a_head


CHECKS: Mapping[str, Check | Predict] = {
    "worth-more": Predict(
        worth_more, (whole("place", "place", 0, 0, 1), whole("percent", "percent", 10, 1, 500, others=(5, 50)))
    ),
    "pruned-parameters": Check(
        pruned_parameters,
        (
            whole("d_model", "model width", 384, 64, 16384, others=(512, 768)),
            whole("heads", "heads", 8, 1, 128, others=(4, 16)),
            whole("gone", "heads removed", 3, 1, 127, others=(1, 2)),
        ),
        sound=fitting,
    ),
    "share-of-model": Check(share_of_model, (whole("gone", "heads removed", 24, 1, 71, others=(6, 12, 36)),)),
}

# -------------------------------------------------------------------------------------------------------------- facts


def all_heads_share(values: Values, load: Loader) -> str:
    total, heads, a_head = _model()
    return f"{100 * heads * a_head / total:.0f} %"


FACTS: Mapping[str, Fact] = {
    "all-heads-share": Fact(all_heads_share),
    "michel-translation": cited("20 %", "Michel et al. 2019, section 4.2"),
    "michel-bert": cited("40 %", "Michel et al. 2019, section 4.2"),
}
