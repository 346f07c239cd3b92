"""Where a head looks in the pictures of a text: how much of its weight is there, and how it lies in them.

Of vision-language models, whose text holds pictures (`Tokens.images`). The rows are those of the answer; of a text
without one, every row of text behind its first picture, in which the last one is the row that writes the answer's first
token. Rows that see no patch do not count.

    image_mass      = mean over rows of sum_{j in pictures} w_ij
    border_mass     = sum over rows and border patches of w_ij / sum over rows and all patches of w_ij
    spatial_entropy = mean over rows and pictures of -sum_c p_c ln p_c,  p_c = |C_c| / sum_c |C_c|

C_c are the connected components (8 neighbours) of the patches with more than the picture's mean weight: 0 is one piece,
ln c is c pieces of one size. A row that weighs all patches alike has none, and does not count; nor has one that does
not see the whole picture. The formula is that of Kang et al. 2025, as others quote it; code that goes back to theirs
takes patches above twice the mean, and weighs a component by the weight in it.

Cost: the masses are sums of the pass; for the entropy, the rows that count are read over the pictures' tokens, some at
a time, O(rows * patches * d). Oracle: NumPy on a model's own eager maps.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from manyheads.recording.exact_map import Linear, window_weights
from manyheads.statistics.defined.masses import uniform
from manyheads.statistics.statistic import SHARE, Facts, PerText, Statistic
from manyheads.texts import Tokens

MOST_CELLS = 1 << 22  # weights of some rows on one picture, all heads, that are held at once
IMAGES = frozenset({"images"})
KANG = "Kang et al. 2025, localization heads"
Column = Callable[[Tokens], Float64[Tensor, "b k"]]


def looking(tokens: Tokens) -> Bool[Tensor, "b q"]:
    """The rows that count: the answer's, else those of text behind the first picture."""
    place, out = torch.arange(tokens.longest), torch.zeros_like(tokens.real)
    for text, (images, answer) in enumerate(zip(tokens.images, tokens.answers, strict=True)):
        has_answer = answer < int(tokens.lengths[text])
        out[text] = place >= (answer if has_answer else images[0].span.stop)
    return out & tokens.real & ~tokens.image


def on_pictures(tokens: Tokens) -> Float64[Tensor, "b k"]:
    return tokens.image.double()


def on_borders(tokens: Tokens) -> Float64[Tensor, "b k"]:
    """1 for a patch in the first or last row or column of its picture."""
    out = torch.zeros(tokens.real.shape, dtype=torch.float64)
    for text, images in enumerate(tokens.images):
        for image in images:
            border = torch.ones(image.rows, image.columns, dtype=torch.float64)
            border[1:-1, 1:-1] = 0
            out[text, image.span] = border.flatten()
    return out


def pictures() -> list[Statistic]:
    """The statistics of a text with pictures, with their chance levels."""
    mass, border = Linear(on_pictures), Linear(on_borders)

    def even(facts: Facts, column: Column) -> Float[Tensor, "b q"]:
        return facts.cached(column, lambda: facts.uniform(column(facts.keys)))

    def rows(facts: Facts) -> Bool[Tensor, "b q"]:
        return facts.cached(looking, lambda: looking(facts.tokens) & (even(facts, on_pictures) > 0))

    def summed(facts: Facts, values: Float[Tensor, "b h q"]) -> Float64[Tensor, "b h"]:
        return facts.over_rows(values, rows(facts)).num

    image_mass = Statistic(
        name="image_mass", unit="share", range=SHARE, source=KANG,
        meaning="mean weight on the pictures in the text, from the answer's rows",
        needs=lambda _: (mass,), finish=lambda facts: facts.over_rows(facts[mass], rows(facts)), asks=IMAGES,
    )  # fmt: skip
    border_mass = Statistic(
        name="border_mass", unit="share of the weight on pictures", range=SHARE,
        source="visual sinks at the border, QwenLM/Qwen3-VL#1551",
        meaning="how much of what goes to pictures is on patches at their border",
        needs=lambda _: (mass, border),
        finish=lambda facts: PerText(summed(facts, facts[border]), summed(facts, facts[mass])),
        asks=IMAGES,
    )  # fmt: skip
    spatial_entropy = Statistic(
        name="spatial_entropy", unit="nats", range=(0.0, math.inf), source=KANG,
        meaning="into how many pieces the patches above a picture's mean weight fall, as an entropy: 0 is one piece",
        needs=lambda _: (), finish=lambda facts: _entropies(facts, rows(facts)), asks=IMAGES,
    )  # fmt: skip
    return [
        image_mass,
        uniform(image_mass, lambda f: f.over_rows(even(f, on_pictures)[:, None], rows(f))),
        border_mass,
        uniform(border_mass, lambda f: PerText(*(summed(f, even(f, c)[:, None]) for c in (on_borders, on_pictures)))),
        spatial_entropy,
    ]


def _entropies(facts: Facts, rows: Bool[Tensor, "b q"]) -> PerText:
    """The sum of the entropies of the rows that have one, and their number."""
    layer = facts.layer
    assert layer is not None, "whoever measures a text with pictures has its layer"
    num = torch.zeros(len(rows), layer.q.shape[1], dtype=torch.float64)
    den = torch.zeros_like(num)
    for text, images in enumerate(facts.tokens.images):
        for image in images:
            column = torch.zeros(facts.tokens.real.shape, dtype=torch.float64)
            column[text, image.span] = 1
            num_visible = (facts.uniform(column)[text] * facts.visible[text]).round()
            sees_all = rows[text] & (num_visible == image.grid.num_patches)
            step = max(1, MOST_CELLS // (layer.q.shape[1] * image.grid.num_patches))
            # Neighbouring rows are read together, at most so many at a time.
            places = sees_all.nonzero()[:, 0]
            runs = torch.tensor_split(places, (places.diff() > 1).nonzero()[:, 0] + 1)
            for part in (part for run in runs if len(run) for part in run.split(step)):
                span = slice(int(part[0]), int(part[-1]) + 1)
                weights = window_weights(layer, text, range(layer.q.shape[1]), span, image.span).double().cpu()
                entropy = _entropy_of_pieces(weights.unflatten(-1, (image.rows, image.columns)))
                num[text] += entropy.nan_to_num(0.0).sum(-1)
                den[text] += (~entropy.isnan()).sum(-1)
    return PerText(num, den)


def _entropy_of_pieces(weights: Float64[Tensor, "*maps r c"]) -> Float64[Tensor, "*maps"]:
    """The spatial entropy of each map; NaN for one without any cell above its mean."""
    above = weights > weights.mean((-2, -1), keepdim=True)
    num_rows, num_columns = weights.shape[-2:]
    # Every cell begins with a number of its own; within a component the largest spreads to all, a step a round.
    numbers = torch.arange(1, num_rows * num_columns + 1, dtype=torch.float64).view(num_rows, num_columns)
    labels = (above * numbers).view(-1, 1, num_rows, num_columns)
    inside = labels > 0
    while True:
        spread = torch.nn.functional.max_pool2d(labels, 3, 1, 1) * inside
        if torch.equal(spread, labels):
            break
        labels = spread
    counts = torch.zeros(len(labels), num_rows * num_columns + 1, dtype=torch.float64)
    counts.scatter_add_(1, labels.flatten(1).long(), torch.ones_like(labels).flatten(1))
    sizes = counts[:, 1:]  # 0 stands for the cells that are not above the mean
    share = sizes / sizes.sum(-1, keepdim=True)
    return -torch.special.xlogy(share, share).sum(-1).view(weights.shape[:-2]) + 0.0
