"""Needles: a few tokens far from the question about them, and which heads fetch them.

A needle is a text whose end repeats what stands far before it: a pass key in the words of a haystack, or random tokens
among others. `recall` is the share of needles that the model writes right. A head's *retrieval score* is the share of
the answer's tokens at which the key that it looks at most is the needle's copy of the token being written.
Source: Wu et al. 2024, Retrieval head mechanistically explains long-context factuality, equation 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy import ndarray

from manyheads.attention import grouped_scores
from manyheads.edits import token_losses
from manyheads.errors import StatisticError
from manyheads.inputs import Batch, Inputs, forward, read
from manyheads.models import AttentionCall, LoadedModel
from manyheads.progress import Progress

DIGITS = 5  # of a pass key
LEAD, AFTER, QUESTION = "\nThe pass key is", ". Remember the pass key.\n", "\nWhat is the pass key? The pass key is"
RANDOM_LEAD, RANDOM_KEY = 3, 4  # tokens, where there are no words


@dataclass(frozen=True)
class Needle:
    """A text as token ids, with its answer at `ids[answer[0]:answer[1]]` and the needle at the like `needle_span`.

    The answer is a part of the text (it is read with the answer in place, each token predicted by the row before it);
    the needle, somewhere before, holds the same tokens. Errors: StatisticError for spans that cannot be.
    """

    ids: tuple[int, ...]
    answer: tuple[int, int]
    needle_span: tuple[int, int]

    def __post_init__(self) -> None:
        (begin, end), (first, last) = self.answer, self.needle_span
        if not 0 <= first < last <= begin < end <= len(self.ids):
            raise StatisticError(
                f"a needle at {self.needle_span} and its answer at {self.answer}, of {len(self.ids)} tokens: both are "
                f"(begin, end) with end after begin, lie within the text, and the needle comes first."
            )


def hidden_needles(
    lm: LoadedModel, haystacks: Sequence[Sequence[int]], sink: int, recent: int, count: int, seed: int
) -> list[Needle]:
    """Needles in texts, at depths spread evenly over the keys that a streaming head drops.

    - `lm`: a loaded model.
    - `haystacks`: the texts as token ids; they take turns.
    - `sink`: the first positions that a streaming head keeps.
    - `recent`: the last positions that it keeps.
    - `count`: how many needles at most.
    - `seed`: draws their keys.

    With a tokenizer, a pass key in English; without, random tokens of the haystacks. A haystack in which nothing lies
    beyond `sink` and `recent` of the question is passed over: the list may be empty.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    limit, needles = lm.max_positions, []
    for number in range(count):
        haystack = list(haystacks[number % len(haystacks)])
        if lm.tokenizer is None:
            vocabulary = np.unique(np.concatenate([np.asarray(row) for row in haystacks]))
            lead, key, after = (generator.choice(vocabulary, size).tolist() for size in (RANDOM_LEAD, RANDOM_KEY, 1))
            question = lead
        else:
            words = (LEAD, " " + "".join(map(str, generator.integers(0, 10, DIGITS))), AFTER, QUESTION)
            lead, key, after, question = (
                lm.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in words
            )
        added = len(lead) + len(key) + len(after)
        most = len(haystack) if limit is None else limit - added - len(question) - len(key)
        haystack = haystack[: max(0, most)]
        row = added + len(haystack) + len(question) - 1  # predicts the answer's first token
        first, last = max(1, sink - len(lead)), min(len(haystack), row - recent + 1 - len(lead) - len(key))
        if last < first:
            continue
        place = first + round((last - first) * (number + 0.5) / count)
        text = [*haystack[:place], *lead, *key, *after, *haystack[place:], *question, *key]
        span = (place + len(lead), place + len(lead) + len(key))
        needles.append(Needle(tuple(text), (len(text) - len(key), len(text)), span))
    return needles


def answer_losses(outputs: Any, batch: Batch, needles: Sequence[Needle]) -> Float64[torch.Tensor, "b"]:
    """The mean cross-entropy of each needle's answer, each of its tokens after those before it (nats)."""
    losses = token_losses(outputs, batch).double()
    spans = [needles[place].answer for place in batch.places]
    return torch.stack([losses[row, begin - 1 : end - 1].mean() for row, (begin, end) in enumerate(spans)])


def needle_scores(
    lm: LoadedModel, needles: Sequence[Needle], stack: str = "", progress: Progress | None = None
) -> Mapping[int, Float64[ndarray, "h"]]:
    """Each layer's query heads' retrieval scores, 0 to 1, means over needles, by layer.

    `progress` is called with how many needles are read, and of how many.
    Cost: one forward pass over the needles, and the answer's rows of each map.
    """
    reading = read(lm, Inputs(ids=[needle.ids for needle in needles]))
    sums: dict[int, Float64[ndarray, "h"]] = {}

    def add(call: AttentionCall, needle: Needle) -> None:
        if call.site.stack == stack:
            sums[call.site.layer] = sums.get(call.site.layer, 0.0) + copied_share(call, needle)

    for place, needle in enumerate(needles):  # one by one: a text that is read alone has no padding to reckon with
        # The guard checks the first pass alone: it costs a second attention, and needles differ in tokens alone.
        forward(lm, reading.batch([place]), partial(add, needle=needle), guard=place == 0)
        if progress is not None:
            progress(place + 1, len(needles))
    return {layer: hits / len(needles) for layer, hits in sums.items()}


def copied_share(call: AttentionCall, needle: Needle) -> Float64[ndarray, "h"]:
    """The share of the answer's tokens that each head of a layer looks at most, in the needle, as they are written."""
    (begin, end), (first, last) = needle.answer, needle.needle_span
    rows, keys = slice(begin - 1, end - 1), slice(call.k.shape[2])
    scores = call.rule.finish(grouped_scores(call.q[:, :, rows].double(), call.k.double(), call.rule.scale), rows, keys)
    hidden = ~call.mask.visible(rows, keys, None, scores.device)
    strongest = scores.masked_fill(hidden, -torch.inf).argmax(-1)[0]  # [h, answer]
    ids = torch.tensor(needle.ids, device=scores.device)
    hit = (ids[strongest] == ids[begin:end]) & (strongest >= first) & (strongest < last)
    return hit.double().mean(-1).cpu().numpy()
