"""A model before and after conversion to GQA: quality, cache, decode speed, and the error of each layer's attention.

Quality is a metric of `effect` on texts; the cache is counted (`mh.size`); the speed is measured, on this machine. All
of it is before uptraining, which conversion is made for, and the table says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import ManyHeadsError
from manyheads.interventions.effects.effect import interval_over_texts
from manyheads.interventions.effects.metrics import (
    Batch,
    Corpus,
    Metric,
    choose_metric,
    outputs_of,
    read_corpus,
    require_numbers,
)
from manyheads.models import LoadedModel, size

__all__ = ["Asked", "Comparison", "Row", "ask", "compare", "Rates", "decode_rates"]


AFTER = "after, before uptraining"


@dataclass(frozen=True)
class Row:
    """One quantity, of the model as it was and as it is. `change` says in words what a percentage would not."""

    what: str
    unit: str
    before: int | float
    after: int | float
    change: str = ""


@dataclass(frozen=True)
class Comparison:
    """Rows, and what has to be known of them. Printing it gives the table."""

    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"after": AFTER, "rows": [vars(row) for row in self.rows], "notes": list(self.notes)}

    def __str__(self) -> str:
        cells = [("", "before", AFTER, "")]
        cells += [(_name(row), _number(row.before), _number(row.after), _change(row)) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join([each[0].ljust(widths[0]), *map(str.rjust, each[1:], widths[1:])]) for each in cells]
        return "\n".join([*map(str.rstrip, lines), *self.notes])


@dataclass(frozen=True, eq=False)
class Asked:
    """What quality is measured on, and how."""

    corpus: Corpus
    metric: Metric
    because: str


def ask(lm: LoadedModel, texts: str | Sequence[Any], metric: str | Callable[..., Any]) -> Asked:
    """Texts read and the metric chosen before anything slow begins. Errors: TextError, StatisticError, ModelError."""
    chosen, because = choose_metric(lm, metric)
    return Asked(read_corpus(lm, texts), chosen, because)


def compare(before: LoadedModel, after: LoadedModel, asked: Asked | None) -> tuple[dict[int, float], Comparison]:
    """Each layer's error on the texts (none without texts), and the table."""
    rows, notes = [Row("parameters", "", before.spec.num_parameters, after.spec.num_parameters)], []
    kept, said = _caches(before, after)
    rows += kept
    errors: dict[int, float] = {}
    if asked is None:
        notes.append("quality and decode speed: not measured, since no texts were given.")
    else:
        errors, quality, story = _quality(before, after, asked)
        speed, why = _speed(before, after, asked.corpus)
        rows = [quality, *rows, *speed]
        notes += [story, why]
    return errors, Comparison(tuple(rows), (*notes, said))


# ------------------------------------------------------------------------------------------------------------ the rows


def _caches(before: LoadedModel, after: LoadedModel) -> tuple[list[Row], str]:
    """What one text needs to go on, by counting; no row, and the reason, for a model that has no cache."""
    dtype = str(before.dtype).removeprefix("torch.")
    try:
        sizes = [size(lm, batch=1, dtype=dtype) for lm in (before, after)]
    except ManyHeadsError as error:  # a model of one's own, whose converted copy should not be lost for that
        return [], f"KV cache: not counted, since {error}"
    kept = [each.cache for each in sizes]
    if kept[0] is None or kept[1] is None:
        why = sizes[0].architecture.why_untold("cache") or "this model writes no text"
        return [], f"KV cache: none, since {why}."
    context = f"KV cache of {sizes[0].ask.context:,} tokens"
    row = Row(context, "bytes", int(kept[0].steady), int(kept[1].steady))
    return [row], f"{context}: counted, one text, in {dtype}."


def _quality(before: LoadedModel, after: LoadedModel, asked: Asked) -> tuple[dict[int, float], Row, str]:
    """The errors of layers, the metric's row, and the change with its interval over texts. Two passes over them."""
    metric, corpus = asked.metric, asked.corpus
    with _watching(before, after) as (sums, now):
        first = [_read(before, batch, metric, now) for batch in corpus.batches]
    second = [_read(after, batch, metric, []) for batch in corpus.batches]
    changes = torch.zeros(corpus.num_texts, dtype=torch.float64)
    for batch, one, other in zip(corpus.batches, first, second, strict=True):
        changes[list(batch.places)] = metric.change(one, other).double().cpu()
    require_numbers(changes, metric, "these texts")
    change = float(changes.mean())
    low, high = (float(each[0]) for each in interval_over_texts(changes.numpy()[:, None]))
    level = 0.0 if metric.flat else float(torch.cat([_by_text(each) for each in first]).mean())
    errors = {layer: (float(gap) / (float(whole) or 1.0)) ** 0.5 for layer, (gap, whole) in sums.items()}
    story = (
        f"{metric.name}: {metric.meaning}, {change:+.4g} ({low:.4g} to {high:.4g} over {corpus.num_texts} texts); "
        f"{asked.because}{''.join(f'; {said}' for said in corpus.notes.values())}."
    )
    return errors, Row(metric.name, metric.unit, level, level + change), story


def _by_text(reading: Tensor) -> Tensor:
    return (reading.double().nanmean(-1) if reading.ndim > 1 else reading.double()).cpu()


def _read(lm: LoadedModel, batch: Batch, metric: Metric, now: list[Batch]) -> Tensor:
    now[:] = [batch]
    return metric.read(outputs_of(lm, batch, head=metric.head), batch)


@contextmanager
def _watching(before: LoadedModel, after: LoadedModel) -> Iterator[tuple[dict[int, list[Tensor]], list[Batch]]]:
    """While `before` runs, each layer of `after` reads what its own one reads: squared errors, and squared outputs.

    So a layer's error is its own, and not what reached it from below. `now` holds the batch that is being read.
    """
    sums = {site.layer: [torch.zeros((), dtype=torch.float64, device=before.device)] * 2 for site in before.spec.sites}
    now: list[Batch] = []

    def watch(layer: int, twin: Any) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            want, got = (each[0] if isinstance(each, tuple) else each for each in (output, twin(*args, **kwargs)))
            real = now[0].real
            if real is not None and real.shape == want.shape[:2]:
                want, got = want[real], got[real]
            for at, each in enumerate((got - want, want)):
                sums[layer][at] = sums[layer][at] + each.double().square().sum()

        return hook

    hooks = []
    try:
        for site in before.spec.sites:
            own, twin = (lm.model.get_submodule(site.module) for lm in (before, after))
            hooks.append(own.register_forward_hook(watch(site.layer, twin), with_kwargs=True))
        yield sums, now
    finally:
        for hook in hooks:
            hook.remove()


def _speed(before: LoadedModel, after: LoadedModel, corpus: Corpus) -> tuple[list[Row], str]:
    rates, story = decode_rates(before, after, corpus)
    if rates is None:
        return [], story
    low, high = rates.ratios
    return [Row("decoding", "tokens a second", rates.before, rates.after, f"x {low:.2f} to {high:.2f}")], story


def _name(row: Row) -> str:
    return f"{row.what}, {row.unit}" if row.unit else row.what


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _change(row: Row) -> str:
    return row.change or (f"{100 * (row.after - row.before) / row.before:+.1f} %" if row.before else "")


# ---------------------------------------------------------------------------------------------------------------------
# Tokens a second when two models write with their caches: measured in turns, so that a busy moment hits both alike.
#
# One text, greedy; only the steps after the prompt are timed. The median of the rounds counts, and how far the rounds'
# own ratios reach is said: where that includes 1, no difference was seen. On a short text a smaller cache saves little:
# what decoding reads is then nearly all weights.


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
