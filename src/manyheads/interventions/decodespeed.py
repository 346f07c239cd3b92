"""Tokens a second when two models write with their caches: measured in turns, so that a busy moment hits both alike.

One text, greedy; only the steps after the prompt are timed. The median of the rounds counts, and how far the rounds'
own ratios reach is said: where that includes 1, no difference was seen. On a short text a smaller cache saves little:
what decoding reads is then nearly all weights.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.interventions.readings import Corpus
from manyheads.models.loading.load import LoadedModel

__all__ = ["Rates", "decode_rates"]

STEPS, ROUNDS = 12, 7
PROMPT = 512  # tokens at most: prompts are read anew in each round


@dataclass(frozen=True)
class Rates:
    """Tokens a second of both, and the smallest and largest ratio of the rounds, after to before."""

    before: float
    after: float
    ratios: tuple[float, float]


def decode_rates(before: LoadedModel, after: LoadedModel, corpus: Corpus) -> tuple[Rates | None, str]:
    """Both rates after the corpus' longest text, and how they were taken; None, and why, where they were not."""
    if not getattr(before.model, "can_generate", lambda: False)():
        return None, f"decode speed: none, since {type(before.model).__name__} writes no text."
    ids = _prompt(before, corpus)
    if ids is None:
        return None, f"decode speed: not measured, since no text leaves room for {STEPS} tokens more."
    rounds: list[tuple[float, float]] = []
    with torch.no_grad():
        for at in range(ROUNDS + 1):
            # whoever is first pays for what the other finds warm: they take turns in that, too
            both = (before, after) if at % 2 else (after, before)
            times = {id(lm): _seconds(lm.model, ids) for lm in both}
            rounds.append((times[id(before)], times[id(after)]))
    old, new = zip(*rounds[1:], strict=True)  # the first warmed up
    ratios = [one / other for one, other in rounds[1:]]
    rates = Rates(STEPS / statistics.median(old), STEPS / statistics.median(new), (min(ratios), max(ratios)))
    return rates, (
        f"decode speed: measured here ({before.device.type}), one text of {ids.shape[1]} tokens, median of {ROUNDS} "
        f"rounds of {STEPS} tokens, both in turns; beside it, how many times as fast it was, round by round."
    )


def _prompt(lm: LoadedModel, corpus: Corpus) -> Int[Tensor, "1 n"] | None:
    """The longest text of the corpus, cut so that there is room to go on."""
    room = PROMPT if lm.max_positions is None else min(PROMPT, lm.max_positions - STEPS)
    texts = []
    for batch in corpus.batches:
        if (ids := batch.inputs.get("input_ids")) is not None:
            rows = torch.ones_like(ids, dtype=torch.bool) if batch.real is None else batch.real
            texts += [row[real] for row, real in zip(ids, rows, strict=True)]
    longest = max(texts, key=len, default=None)
    return None if longest is None or room < 1 else longest[None, :room]


def _seconds(model: Any, ids: Int[Tensor, "1 n"]) -> float:
    out = model(input_ids=ids, use_cache=True)
    _wait(ids)
    begin = time.perf_counter()
    for _ in range(STEPS):
        out = model(input_ids=out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
    _wait(ids)
    return time.perf_counter() - begin


def _wait(on: Tensor) -> None:
    """Until an accelerator has done what it was given."""
    if on.device.type != "cpu":
        torch.accelerator.synchronize(on.device)
