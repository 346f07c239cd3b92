"""A head from a picture of it: which token should look at which, and weights W_Q and W_K that do so.

    tokens = split_words("The cat sat on the mat.")
    head = draw(tokens, picture_of("previous", tokens), width=2)
    head.weights(split_words("A fox ran home."))  # what the same head does on another sentence

A head sees of a token its features X: where it stands (cosine and sine of four waves), which word it is, of which kind
it is. Its scores are X W_Q (X W_K)^T / sqrt(d) = X W X^T, and softmax does not see what is added to a whole row. So a
row of the picture, a, asks for scores of log(a + e^-6) up to a constant, and three steps lead to weights:

1. Least squares. W minimises |w (X W C X^T - T)|^2 + ridge |W|^2, with T the logarithms, their row means taken away, C
   the same for the keys, and w the rows' weights: 0 for a row that was left empty, which may look anywhere. With the
   singular vectors of w X and of C X it has a closed form.
2. Width. The scores' d largest singular values are kept, so that W = W_Q W_K^T with d columns each. No scores of d
   numbers a token are nearer to those of step 1 (Eckart and Young). Rows weigh a little less towards the end: of
   equally good cuts it is always the same.
3. Training. Least squares counts a nat too few on a token that nobody looks at as much as one on the token that is
   meant, and so gives narrow heads less than they can do. Adam then lowers the rows' cross-entropy from there.

NumPy, in float64. Cost: milliseconds for a sentence; O(steps * (n f d + n^2 d)). The page has the same program
(`web/src/rooms/learn/drawing.ts`), since it has to draw without a server; a test compares their numbers.

Source: Vaswani et al. 2017, sections 3.2.1 and 3.5; Elhage et al. 2021 on W_Q W_K^T as one bilinear form; Bhojanapalli
et al. 2020, "Low-Rank Bottleneck in Multi-head Attention Models", on width.
"""

# device: a design is made on the host

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.errors import PlanError, ShapeError
from manyheads.reference import softmax_rows
from manyheads.texts import is_punctuation

if TYPE_CHECKING:
    from manyheads.nn import MultiHeadAttention

Feature = Literal["places", "words", "kinds"]
Rule = Literal["previous", "next", "itself", "first", "same word", "marks", "after a copy"]
FEATURES: tuple[Feature, ...] = ("places", "words", "kinds")
RULES: tuple[Rule, ...] = ("previous", "next", "itself", "first", "same word", "marks", "after a copy")
KINDS = ("first", "last", "mark", "capital")

WAVES = (4, 8, 16, 32)  # tokens: each place of a sentence of up to 32 has numbers of its own, and a shift is a rotation
DEPTH = 6.0  # nats below a painted cell that an empty one is asked for: a row of 15 others then loses 4 %
RIDGE = 0.1
FADE = 0.1  # by which the last row weighs less than the first
STEPS, RATE, DECAY = 200, 0.05, 1e-3
MOMENTS, DAMPING = (0.9, 0.99), 1e-2  # of Adam; damping well above rounding, so that two programs agree
NOTHING = 1e-9  # of the largest singular value: what is less is rounding


def split_words(sentence: str) -> tuple[str, ...]:
    """The words and marks of a sentence, which are the tokens here.

    >>> split_words("It didn't rain, did it?")
    ('It', "didn't", 'rain', ',', 'did', 'it', '?')
    """
    return tuple(re.findall(r"\w+(?:['\u2019-]\w+)*|[^\w\s]", sentence))


def picture_of(rule: Rule, tokens: Sequence[str]) -> Float64[ndarray, "n n"]:
    """The picture that a rule paints on these tokens: 1 where a token (row) is to look, rows without a target empty.

    "after a copy": the token after an earlier copy of one's own, as induction heads look. Copies are counted without
    case. Errors: PlanError.
    """
    lower, count = [token.lower() for token in tokens], len(tokens)
    paints: Mapping[Rule, Callable[[int, int], bool]] = {
        "previous": lambda q, k: k == q - 1,
        "next": lambda q, k: k == q + 1,
        "itself": lambda q, k: k == q,
        "first": lambda q, k: k == 0,
        "same word": lambda q, k: k != q and lower[k] == lower[q],
        "marks": lambda q, k: is_punctuation(tokens[k]),
        "after a copy": lambda q, k: 0 < k <= q and lower[k - 1] == lower[q],
    }
    if rule not in paints:
        raise PlanError(f"rule={rule!r} is not a rule: use one of {', '.join(RULES)}.")
    return np.array([[float(paints[rule](q, k)) for k in range(count)] for q in range(count)])


@dataclass(frozen=True, eq=False)
class DrawnHead:
    """A head that was fitted to a picture.

    `reads`: the groups of features that it sees; `vocabulary`: the words that it knows, in lower case; `query`, `key`:
    W_Q and W_K, for scores X W_Q (X W_K)^T / sqrt(d). Row f of each is feature `feature_names[f]`.
    """

    reads: tuple[Feature, ...]
    vocabulary: tuple[str, ...]
    query: Float64[ndarray, "f d"]
    key: Float64[ndarray, "f d"]

    def __repr__(self) -> str:
        features, width = self.query.shape
        return f"DrawnHead({features} features, {width} wide, reads {', '.join(self.reads)})"

    @property
    def feature_names(self) -> tuple[str, ...]:
        """A name for each feature, in order."""
        return _feature_names(self.reads, self.vocabulary)

    def features(self, tokens: Sequence[str]) -> Float64[ndarray, "n f"]:
        """X: what the head sees of each token. A word that it does not know is not a word to it. Errors: ShapeError."""
        return _features(tokens, self.reads, self.vocabulary)

    def weights(self, tokens: Sequence[str]) -> Float64[ndarray, "n n"]:
        """The head's map on any tokens: each row sums to 1. Errors: ShapeError."""
        x = self.features(tokens)
        return softmax_rows(x @ self.query @ (x @ self.key).T / math.sqrt(self.query.shape[1]))[0]

    def layer(self) -> MultiHeadAttention:
        """Our own layer, float64, with this one head in it. Its values and output are as they come: only its map is
        made to order."""
        import torch  # the lesson that draws heads needs none

        from manyheads.nn import MultiHeadAttention  # as above

        features, width = self.query.shape
        layer = MultiHeadAttention(
            features,
            1,
            head_dim=width,
            bias=False,
            batch_first=True,
            projections="split",
            dtype=torch.float64,
        )
        with torch.no_grad():
            layer.qkv_proj.q.weight.copy_(torch.from_numpy(self.query.T.copy()))  # type: ignore[union-attr]
            layer.qkv_proj.k.weight.copy_(torch.from_numpy(self.key.T.copy()))  # type: ignore[union-attr]
        return layer.eval()


def draw(
    tokens: Sequence[str],
    picture: Float64[ndarray, "n n"],
    *,
    width: int = 8,
    reads: Sequence[Feature] = FEATURES,
    steps: int = STEPS,
) -> DrawnHead:
    """Weights of a head that looks as the picture has it, as far as its width and what it reads allow.

    - `tokens`: of the sentence, two at least.
    - `picture`: how much each token (row) is to look at each (column), 0 or more; rows are made to sum to 1, and an
      empty row may look anywhere.
    - `width`: d, the numbers of a query and of a key.
    - `reads`: what the head sees of a token: "places", "words", "kinds", or some of them.
    - `steps`: of training after least squares; 0 for least squares alone.

    Errors: ShapeError for sizes, PlanError for a picture that is empty or no picture, or an unknown feature.
    """
    wished = wished_rows(tokens, picture)
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ShapeError(f"{width=} is not a width for a head: give a whole number of 1 or more.")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise PlanError(f"{steps=} is not a number of training steps: give a whole number, 0 for none.")
    if isinstance(reads, str) or not reads or not set(reads) <= set(FEATURES):
        raise PlanError(f"reads={reads!r}: give at least one of {', '.join(FEATURES)}, as a list.")
    groups: tuple[Feature, ...] = tuple(group for group in FEATURES if group in set(reads))
    vocabulary = tuple(dict.fromkeys(token.lower() for token in tokens))
    x = _features(tokens, groups, vocabulary)
    query, key = _trained(x, wished, *_least_squares(x, wished, width), steps)
    # A head divides its scores by sqrt(d): the fit did not.
    return DrawnHead(groups, vocabulary, query * width**0.25, key * width**0.25)


def wished_rows(tokens: Sequence[str], picture: Float64[ndarray, "n n"]) -> Float64[ndarray, "n n"]:
    """The picture with rows that sum to 1, or to 0 where nothing is painted. Errors: ShapeError, PlanError."""
    if len(tokens) < 2:
        raise ShapeError(f"a sentence of {len(tokens)} tokens leaves nothing to choose: give two or more.")
    picture = np.asarray(picture, np.float64)
    if picture.shape != (len(tokens), len(tokens)):
        raise ShapeError(
            f"the picture is {picture.shape}, and the sentence has {len(tokens)} tokens: give one number for each of "
            f"{len(tokens)} x {len(tokens)} cells."
        )
    if not np.isfinite(picture).all() or (picture < 0).any():
        raise PlanError("the picture has numbers below 0, or that are not numbers: give 0 for empty, more for painted.")
    totals = picture.sum(1, keepdims=True)
    if not totals.any():
        raise PlanError("the picture is empty: paint at least one cell.")
    return picture / np.where(totals > 0, totals, 1)


def arrived(wished: Float64[ndarray, "n n"], weights: Float64[ndarray, "n n"]) -> float:
    """The mean share of each painted row that arrives where it was painted: sum of min(wished, drawn), 0 to 1.

    `wished`: of `wished_rows`; empty rows do not count. NaN where all are empty.
    """
    painted = wished.sum(1) > 0
    return float(np.minimum(wished, weights).sum(1)[painted].mean()) if painted.any() else math.nan


def _feature_names(reads: Sequence[Feature], vocabulary: Sequence[str]) -> tuple[str, ...]:
    places = [f"{part} of {wave}" for wave in WAVES for part in ("cos", "sin")]
    names: Mapping[Feature, list[str]] = {
        "places": places,
        "words": [f"'{word}'" for word in vocabulary],
        "kinds": [f"is {kind}" for kind in KINDS],
    }
    return ("one", *(name for group in reads for name in names[group]))


def _features(tokens: Sequence[str], reads: Sequence[Feature], vocabulary: Sequence[str]) -> Float64[ndarray, "n f"]:
    if not tokens:
        raise ShapeError("there are no tokens: give two or more.")
    place, lower = np.arange(len(tokens)), [token.lower() for token in tokens]
    columns: list[ndarray] = [np.ones(len(tokens))]  # so that a query can ask for the same at every token
    if "places" in reads:
        for wave in WAVES:
            angle = 2 * np.pi * place / wave
            columns += [np.cos(angle) / math.sqrt(len(WAVES)), np.sin(angle) / math.sqrt(len(WAVES))]
    if "words" in reads:
        columns += [np.array([token == word for token in lower]) for word in vocabulary]
    if "kinds" in reads:
        marks = np.array([is_punctuation(token) for token in tokens])
        capitals = np.array([token[0].isupper() for token in tokens])
        columns += [place == 0, place == len(tokens) - 1, marks, capitals]
    return np.stack([np.asarray(column, np.float64) for column in columns], 1)


def _least_squares(
    x: Float64[ndarray, "n f"], wished: Float64[ndarray, "n n"], width: int
) -> tuple[Float64[ndarray, "f d"], Float64[ndarray, "f d"]]:
    """Steps 1 and 2: W_Q and W_K whose scores, not divided, are the nearest of this width to the logarithms."""
    count = len(x)
    row_weights = (wished.sum(1) > 0) * (1 - FADE * np.arange(count) / count)
    target = np.log(wished + math.exp(-DEPTH))
    target = row_weights[:, None] * (target - target.mean(1, keepdims=True))
    # What is added to all keys of a row changes nothing, so keys are compared with their mean.
    asking, offered = row_weights[:, None] * x, x - x.mean(0)
    u_asking, s_asking, v_asking = np.linalg.svd(asking, full_matrices=False)
    u_offered, s_offered, v_offered = np.linalg.svd(offered, full_matrices=False)
    # In these bases every entry of W has an equation of its own: (s s')^2 w + ridge w = s s' t.
    gains = np.outer(s_asking, s_offered)
    form = v_asking.T @ (gains * (u_asking.T @ target @ u_offered) / (gains**2 + RIDGE)) @ v_offered
    left, sizes, right = np.linalg.svd(asking @ form @ offered.T)
    rank = min(width, int((sizes > NOTHING * max(sizes[0], NOTHING)).sum()))
    query, key = np.zeros((2, x.shape[1], width))
    query[:, :rank] = form @ offered.T @ right[:rank].T / np.sqrt(sizes[:rank])
    key[:, :rank] = form.T @ asking.T @ left[:, :rank] / np.sqrt(sizes[:rank])
    return query, key


def _trained(
    x: Float64[ndarray, "n f"],
    wished: Float64[ndarray, "n n"],
    query: Float64[ndarray, "f d"],
    key: Float64[ndarray, "f d"],
    steps: int,
) -> tuple[Float64[ndarray, "f d"], Float64[ndarray, "f d"]]:
    """Step 3: Adam on the mean cross-entropy of the painted rows and half the decay times the weights' squares."""
    painted = (wished.sum(1) > 0) / max(1, (wished.sum(1) > 0).sum())
    matrices, first, second = [query, key], [np.zeros_like(query)] * 2, [np.zeros_like(query)] * 2
    for step in range(1, steps + 1):
        q, k = x @ matrices[0], x @ matrices[1]
        slope = (softmax_rows(q @ k.T)[0] - wished) * painted[:, None]  # of the loss, by the scores
        slopes = [x.T @ (slope @ k) + DECAY * matrices[0], x.T @ (slope.T @ q) + DECAY * matrices[1]]
        for index, by_weight in enumerate(slopes):
            first[index] = MOMENTS[0] * first[index] + (1 - MOMENTS[0]) * by_weight
            second[index] = MOMENTS[1] * second[index] + (1 - MOMENTS[1]) * by_weight**2
            mean, spread = first[index] / (1 - MOMENTS[0] ** step), second[index] / (1 - MOMENTS[1] ** step)
            matrices[index] = matrices[index] - RATE * mean / (np.sqrt(spread) + DAMPING)
    return matrices[0], matrices[1]
