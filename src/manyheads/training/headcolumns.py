"""Head statistics of a model in training, as columns of its history: so that a head's birth stands beside the loss.

They are the same numbers that `probe_repeats` and `mh.measure` give of any model: the live model is wrapped, read and
left as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from manyheads.models.loading import LoadedModel, load
from manyheads.roles.probes import probe_repeats
from manyheads.roles.repeats import Repeats
from manyheads.statistics.measuring import measure
from manyheads.training.history import head_column


def live(model: nn.Module, tokenizer: Any = None) -> LoadedModel:
    """The model as everything else here takes it; it must be in eval mode."""
    return load(model, tokenizer=False if tokenizer is None else tokenizer)


def probe_columns(lm: LoadedModel, variant: str | Repeats, samples: int = 16) -> dict[str, float]:
    """Every head's induction score on random tokens that repeat (`after`)."""
    probe = probe_repeats(lm, variant, samples=samples, between=(0.0, 1.0))
    return {
        head_column(head, "induction"): float(v) for head, v in zip(probe.after.heads, probe.after.score, strict=True)
    }


def text_columns(lm: LoadedModel, texts: Sequence[str], statistics: Sequence[str]) -> dict[str, float]:
    """Every head's statistics on texts."""
    table = measure(lm, list(texts), list(statistics))
    frame = table.to_pandas()
    return {
        head_column(head, name): float(value)
        for name in statistics
        for head, value in zip(table.heads, frame[name], strict=True)
    }
