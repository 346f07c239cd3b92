"""Where a model's parameters are: in attention, in the feed-forward blocks, outside of both; of `sizing`'s presets."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from manyheads.lessons.cells import Cell, Fact, Loader, Ran, cited, matrix
from manyheads.lessons.checks import Check, Predict, Right
from manyheads.lessons.parameters import Values, choice
from manyheads.lessons.topics.counts import in_prefix, in_words, scaled
from manyheads.lessons.topics.feedforward import ATTENTION, FEED, WIDENING
from manyheads.sizing.costs import Sizing
from manyheads.sizing.sizing import architecture_of
from manyheads.sizing.sizing import size

__all__ = ["CELLS", "CHECKS", "FACTS"]

NORMS = "norms"
ATTENTION_PARTS = ("q", "k", "v", "qkv", "latent", "o")
FEED_PARTS = ("feed-forward", "router")
LAYER, MODEL = "one layer", "the whole model"
MODELS = (
    "llama-2-70b", "llama-2-7b", "llama-3-8b", "mistral-7b", "gemma-2-9b", "phi-4-mini", "mixtral-8x7b", "gpt2",
    "gpt3-175b", "bert-base", "bert-large", "minilm", "vit-base",
)  # fmt: skip


def model_shares(values: Values, load: Loader) -> Ran:
    """Where one preset's parameters are: in a layer, and in all of it."""
    found = _sized(values.text("model"))
    layer, total = _split(found.layers[0]), _split(found.parameters)
    share = 100 * layer[FEED] / (layer[FEED] + layer[ATTENTION])
    outside = found.num_parameters - sum(total.values())
    parts = np.array([[layer[each], total[each]] for each in (ATTENTION, FEED, NORMS)] + [[0, outside]], np.float64)
    sums = parts.sum(0)
    names = ("attention", "feed-forward", "norms", "outside layers")
    prefix, factor = scaled(float(sums[0]))
    prefix = prefix.replace("G", "B")
    return Ran(
        f"{found.name}: {in_words(found.num_parameters)} parameters, {share:.1f} % of a layer's two blocks in the "
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
    """Attention, feed-forward and norms of some parameters by part. The last norm of a model is among its norms."""
    attention = sum(parts.get(each, 0) for each in ATTENTION_PARTS)
    feed = sum(parts.get(each, 0) for each in FEED_PARTS)
    return {ATTENTION: attention, FEED: feed, NORMS: parts.get("norm", 0)}


CELLS: Mapping[str, Cell] = {
    "model-shares": Cell(model_shares, (choice("model", "model", MODELS),)),
}


def model_feed(values: Values, load: Loader) -> Right:
    """What the feed-forward blocks of a preset hold."""
    found = _sized(values.text("model"))
    m, count = found.architecture.embed_dim, len(found.layers)
    every = values["of"] == MODEL
    parts = found.parameters if every else found.layers[0]
    answer, attention = parts[FEED], _split(parts)[ATTENTION]
    inner = _inner(found)
    gated = answer > 2.5 * m * inner * (count if every else 1)
    said = f"{'Three' if gated else 'Two'} matrices of {m:,} x {inner:,}{f', in {count} layers' if every else ''}"
    return Right(
        float(answer),
        f"{said}: {in_words(answer)}. Attention has {in_words(attention)}.",
        f"{'Three matrices' if gated else 'Two matrices'} of {m:,} x {inner:,}{f', {count} times' if every else ''}.",
        unit="parameters",
        tolerance=0.005 * answer,
        mistakes={
            float(attention): "That is attention.",
            answer * (2 / 3 if gated else 3 / 2): f"There are {'three' if gated else 'two'} matrices.",
            float(found.parameters[FEED] if not every else found.layers[0][FEED]): "That is one layer."
            if every
            else "That is all layers together.",
        },
    )


def _inner(found: Sizing) -> int:
    """The inner width, from its config or in words: of the presets asked about, as they say it."""
    from manyheads.sizing.presets import PRESETS

    config = PRESETS[found.name].config
    return int(config.get("intermediate_size", WIDENING * found.architecture.embed_dim))


def share_of_layer(values: Values, ran: Ran) -> Right:
    """Of the two blocks of a layer, in the preset that the cell shows."""
    attention, feed = (float(each) for each in ran.table("a layer").values[:2, 0])
    shares = {FEED: 100 * feed / (attention + feed), ATTENTION: 100 * attention / (attention + feed)}
    part = values.text("part")
    answer, other = shares[part], 100 - shares[part]
    words = f"Of a layer's two blocks the feed-forward holds {shares[FEED]:.1f} %, attention {shares[ATTENTION]:.1f} %."
    return Right(
        answer,
        words,
        f"{words} Two thirds to a third is classic; fewer key/value heads and a wider block move it on.",
        unit="%",
        tolerance=2.0,
        mistakes={other: "That is the other block."} if abs(answer - other) > 4 else {},
    )


_SOME = choice("model", "model", ("llama-2-70b", "llama-2-7b", "gpt2", "bert-base"))
CHECKS: Mapping[str, Check | Predict] = {
    "model-feed": Check(model_feed, (_SOME, choice("of", "of", (LAYER, MODEL)))),
    "share-of-layer": Predict(share_of_layer, (choice("part", "which block", (FEED, ATTENTION)),)),
}


def part_of(values: Values, load: Loader) -> str:
    """704.6M, 56.4B: of a preset, by part."""
    found = _sized(values.text("model"))
    parts = found.layers[0] if values["of"] == LAYER else found.parameters
    return in_words(_split(parts)[values.text("part")])


def percent_of(values: Values, load: Loader) -> str:
    """What a part takes of a layer's two blocks."""
    parts = _split(_sized(values.text("model")).layers[0])
    return f"{100 * parts[values.text('part')] / (parts[FEED] + parts[ATTENTION]):.0f} %"


def inner_width(values: Values, load: Loader) -> str:
    """As the preset has it; as so many times its width; or what 8/3 d, rounded up, would be."""
    found = _sized(values.text("model"))
    m, inner = found.architecture.embed_dim, _inner(found)
    return {"width": f"{inner:,}", "times d": f"{inner / m:.3g}", "8/3 d": f"{8 * m / 3:,.0f}"}[values.text("as")]


_MODEL = choice("model", "model", MODELS)
_PARTS = choice("part", "part", (FEED, ATTENTION))
FACTS: Mapping[str, Fact] = {
    "part-of": Fact(part_of, (_MODEL, _PARTS, choice("of", "of", (LAYER, MODEL)))),
    "percent-of": Fact(percent_of, (_MODEL, _PARTS)),
    "inner-width": Fact(inner_width, (_MODEL, choice("as", "as", ("width", "times d", "8/3 d")))),
    "llama-2-widening": cited("1.3", "Touvron et al. 2023, appendix A.2.1"),
}
