"""The facts of the interviews' model answers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from manyheads.lab.lessons.cells import Fact, Loader, cited
from manyheads.lab.lessons.pages.shared import PAPER_SOURCE
from manyheads.lab.lessons.parameters import Values, choice, whole
from manyheads.lab.training import PAPER_BLEU
from manyheads.models import size
from manyheads.reference import softmax_rows


def spread_of_products(values: Values, load: Loader) -> str:
    """The standard deviation of a product of two random vectors: the root of their width."""
    return f"{float(np.sqrt(values.whole('width'))):g}"


def largest_share(values: Values, load: Loader) -> str:
    """Of a row of random scores, n of them, the mean of the largest weight: scores divided by sqrt(d), or not."""
    width, keys = values.whole("width"), values.whole("keys")
    rng = np.random.Generator(np.random.PCG64(0))
    q, k = rng.normal(size=(400, 1, width)), rng.normal(size=(400, keys, width))
    scores = np.einsum("bqd,bkd->bk", q, k, optimize=True)
    if values["scaled"] == "yes":
        scores = scores / np.sqrt(width)
    return f"{float(softmax_rows(scores)[0].max(axis=1).mean()):.2f}"


def model_heads(values: Values, load: Loader) -> str:
    """A real model's width, heads and head width, from its config."""
    model = size(values.text("model")).architecture
    return f"{model.embed_dim:,} / {model.attention[0].num_heads} = {model.attention[0].qk_dim}"


FACTS: Mapping[str, Fact] = {
    "model-heads": Fact(model_heads, (choice("model", "model", ("gpt2", "gpt3-175b", "llama-2-70b")),)),
    "spread-of-products": Fact(spread_of_products, (whole("width", "width", 64, 1, 4096),)),
    "largest-share": Fact(
        largest_share,
        (
            whole("width", "width", 64, 1, 512),
            whole("keys", "keys", 16, 2, 64),
            choice("scaled", "scaled", ("yes", "no")),
        ),
    ),
    "bleu-one-head": cited(f"{PAPER_BLEU[1]}", PAPER_SOURCE),
    "bleu-eight-heads": cited(f"{PAPER_BLEU[8]}", PAPER_SOURCE),
    "bleu-most-heads": cited(f"{PAPER_BLEU[max(PAPER_BLEU)]}", PAPER_SOURCE),
}
