"""Head statistics of a model in training, as columns of its history: so that a head's birth stands beside the loss.

They are the numbers that `probe_repeats` and `mh.measure` give for any model: the live model is wrapped, read and left
as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from manyheads.models import LoadedModel, device_of, load
from manyheads.roles import Repeats, probe_repeats
from manyheads.statistics import HeadTable, Statistic, measure, measure_call
from manyheads.training.checkpoints import head_column


def live(model: nn.Module, tokenizer: Any = None) -> LoadedModel:
    """The model, loaded as any other; it must be in eval mode."""
    return load(model, tokenizer=False if tokenizer is None else tokenizer)


def probe_columns(lm: LoadedModel, variant: str | Repeats, samples: int = 16) -> dict[str, float]:
    """Every head's induction score on random tokens that repeat (`after`)."""
    after = probe_repeats(lm, variant, samples=samples, between=(0.0, 1.0)).after
    return {head_column(head, "induction"): float(score) for head, score in zip(after.heads, after.score, strict=True)}


def text_columns(lm: LoadedModel, texts: Sequence[str], statistics: Sequence[str]) -> dict[str, float]:
    """Every head's statistics on texts."""
    return _columns(measure(lm, list(texts), list(statistics)))


def call_columns(model: nn.Module, ids: Int[Tensor, "b n"], statistics: Sequence[str | Statistic]) -> dict[str, float]:
    """Every head's statistics on token ids."""
    return _columns(measure_call(model, ids.to(device_of(model)), statistics=statistics))


def by_head(table: HeadTable) -> dict[str, dict[str, float]]:
    """Every head's statistics, for a report."""
    values = {name: table.column(name) for name in table.names}
    return {
        str(head): {name: float(column[index]) for name, column in values.items()}
        for index, head in enumerate(table.heads)
    }


def _columns(table: HeadTable) -> dict[str, float]:
    return {head_column(head, name): value for head, values in by_head(table).items() for name, value in values.items()}
