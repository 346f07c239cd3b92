"""A model before and after conversion to GQA: quality, cache, decode speed, and the error of each layer's attention.

Quality is a metric of `effect` on texts; the cache is counted (`mh.size`); the speed is measured, on this machine. All
of it precedes uptraining, which conversion is made for, and the table notes that.

Decode speed is tokens per second when two models write with their caches: one text, greedy, and only the steps after
the prompt are timed. Models take turns, so that a busy moment hits both alike. The median of the rounds counts, and
the range of the rounds' own ratios is given: where it includes 1, no difference was seen. On a short text a smaller
cache saves little: decoding then reads nearly nothing but weights.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from manyheads import private_names
from manyheads.base import Json, brief
from manyheads.edits import Metric, MetricLike, choose_metric, read_under, require_numbers
from manyheads.errors import ManyHeadsError
from manyheads.inputs import Batch, InputsLike, Reading, read
from manyheads.models import LoadedModel, size
from manyheads.statistics import mean_interval

AFTER = "after, before uptraining"
STEPS, ROUNDS = 12, 7
PROMPT = 512  # tokens at most: prompts are read anew in each round


@dataclass(frozen=True)
class Row:
    """One quantity, of the model before and after. `change` is a text for a change that no percentage describes."""

    what: str
    unit: str
    before: int | float
    after: int | float
    change: str = ""


@dataclass(frozen=True)
class Comparison:
    """Rows, and notes on how they were measured. Printing it gives the table."""

    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(f"Comparison({', '.join(row.what for row in self.rows)})")

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {"after": AFTER, "rows": [vars(row) for row in self.rows], "notes": list(self.notes)}

    def __str__(self) -> str:
        # A column for each quantity, so that a column has one unit and one number of decimals: four digits of the
        # larger number.
        columns = [("", "", "before", AFTER, "change")]
        for row in self.rows:
            numbers, larger = (row.before, row.after), max(abs(row.before), abs(row.after))
            are_counts = all(isinstance(value, int) for value in numbers)
            decimals = 0 if are_counts else max(0, 3 - math.floor(math.log10(larger))) if larger else 3
            percentage = f"{100 * (row.after - row.before) / row.before:+.1f}%" if row.before else ""
            before, after = (f"{value:z,.{decimals}f}" for value in numbers)
            columns.append((row.what, row.unit, before, after, row.change or percentage))
        widths = [max(map(len, column)) for column in columns]
        lines = [
            "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])])
            for cells in zip(*columns, strict=True)
        ]
        return "\n".join([*map(str.rstrip, lines), *self.notes])


@dataclass(frozen=True, eq=False)
class Quality:
    """The texts and the metric by which quality is measured, and why that metric."""

    reading: Reading
    metric: Metric
    because: str


def choose_quality(lm: LoadedModel, given: InputsLike, metric: MetricLike) -> Quality:
    """Read the texts and choose the metric. Errors: TextError, StatisticError, ModelError."""
    chosen, because = choose_metric(lm, metric)
    return Quality(read(lm, given), chosen, because)


def compare(before: LoadedModel, after: LoadedModel, quality: Quality | None) -> tuple[dict[int, float], Comparison]:
    """Each layer's error on the texts (none without texts), and the table."""
    rows = [Row("parameters", "", before.spec.num_parameters, after.spec.num_parameters)]
    dtype = str(before.dtype).removeprefix("torch.")
    try:
        sizes = [size(lm, batch=1, dtype=dtype) for lm in (before, after)]
    except ManyHeadsError as error:  # a user's own model, whose converted copy should not be lost for that
        cache_note = f"KV cache: not counted, since {error}"
    else:
        old, new = (size.cache for size in sizes)
        if old is None or new is None:
            why = sizes[0].architecture.why_untold("cache") or "this model writes no text"
            cache_note = f"KV cache: none, since {why}."
        else:
            context = f"KV cache of {sizes[0].ask.context:,} tokens"
            rows.append(Row(context, "bytes", int(old.steady), int(new.steady)))
            cache_note = f"{context}: counted, one text, in {dtype}."
    if quality is None:
        note = "quality and decode speed: not measured, since no texts were given."
        return {}, Comparison(tuple(rows), (note, cache_note))
    metric, reading = quality.metric, quality.reading
    batches = tuple(reading.batches())
    # One batch at a time, since a twin must know which rows of it are padding.
    old_readings: list[Tensor] = []
    with _twin_errors(before, after) as (sums, current):
        for batch in batches:
            current[:] = [batch]
            old_readings.append(read_under(before, batch, metric).reading)
    changes = torch.zeros(reading.num_texts, dtype=torch.float64, device="cpu")
    for batch, old_reading in zip(batches, old_readings, strict=True):
        changes[list(batch.places)] = metric.change(old_reading, read_under(after, batch, metric).reading).cpu()
    require_numbers(changes, metric, "these texts")
    # One number back from the device per layer, at the end: sums stay there while the texts are read.
    errors = {layer: (float(gap) / (float(total) or 1.0)) ** 0.5 for layer, (gap, total) in sums.items()}
    change, level = float(changes.mean()), metric.level(old_readings) or 0.0
    low, high = (float(bound[0]) for bound in mean_interval(changes.numpy()[:, None]))
    quality_note = (
        f"{metric.name}: {metric.meaning}, {change:+.4g} ({low:.4g} to {high:.4g} over {reading.num_texts} texts); "
        f"{quality.because}{''.join(f'; {words}' for words in reading.remarks.values())}."
    )
    rows.insert(0, Row(metric.name, metric.unit, level, level + change))
    rates, speed_note = decode_rates(before, after, batches)
    if rates is not None:
        low, high = rates.ratios
        rows.append(Row("decoding", "tokens a second", rates.before, rates.after, f"x {low:.2f} to {high:.2f}"))
    return errors, Comparison(tuple(rows), (quality_note, speed_note, cache_note))


@contextmanager
def _twin_errors(before: LoadedModel, after: LoadedModel) -> Iterator[tuple[dict[int, list[Tensor]], list[Batch]]]:
    """While `before` runs, each layer of `after` reads the same inputs: squared errors, and squared outputs, by layer.

    So a layer's error is its own, without the errors of the layers below. The second result is a list that the caller
    must fill with the batch that is being read.
    """
    sums = {site.layer: [torch.zeros((), dtype=torch.float64, device=before.device)] * 2 for site in before.spec.sites}
    current: list[Batch] = []

    def watch(layer: int, twin: nn.Module) -> Callable[..., None]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor | tuple[Any, ...]
        ) -> None:
            results = (output, twin(*args, **kwargs))
            old, new = (result[0] if isinstance(result, tuple) else result for result in results)
            real = current[0].real
            if real is not None and real.shape == old.shape[:2]:  # padding has outputs too, and they mean nothing
                real = real.to(old.device)
                old, new = old[real], new[real]
            # A model may be split over devices: each layer adds up where it is, and its sum goes to the first of them.
            for index, values in enumerate((new - old, old)):
                sums[layer][index] = sums[layer][index] + values.double().square().sum().to(before.device)

        return hook

    hooks: list[Any] = []
    try:
        for site in before.spec.sites:
            module, twin = (lm.model.get_submodule(site.module) for lm in (before, after))
            hooks.append(module.register_forward_hook(watch(site.layer, twin), with_kwargs=True))
        yield sums, current
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class Rates:
    """Tokens a second of both, and the smallest and largest ratio of the rounds, after to before."""

    before: float
    after: float
    ratios: tuple[float, float]


def decode_rates(before: LoadedModel, after: LoadedModel, batches: Sequence[Batch]) -> tuple[Rates | None, str]:
    """Both rates after the corpus' longest text, and how they were taken; None, and the reason, where they were not."""
    if not getattr(before.model, "can_generate", lambda: False)():
        return None, f"decode speed: none, since {type(before.model).__name__} writes no text."
    room = PROMPT if before.max_positions is None else min(PROMPT, before.max_positions - STEPS)
    texts: list[Tensor] = []
    for batch in batches:
        if (ids := batch.inputs.get("input_ids")) is not None:
            rows = torch.ones_like(ids, dtype=torch.bool) if batch.real is None else batch.real
            texts += [row[real] for row, real in zip(ids, rows, strict=True)]
    longest = max(texts, key=len, default=None)
    if longest is None or room < 1:
        return None, f"decode speed: not measured, since no text leaves room for {STEPS} tokens more."
    prompt = longest[None, :room]

    def decode(model: nn.Module) -> Iterator[torch.device]:
        """Read the prompt, then write `STEPS` tokens. Suspends where the clock starts and where it stops."""
        out = model(input_ids=prompt, use_cache=True)
        yield prompt.device
        for _ in range(STEPS):
            inputs = {"input_ids": out.logits[:, -1:].argmax(-1), "use_cache": True}
            out = model(**private_names.with_cache(model, inputs, private_names.cache_in(out)))
        yield prompt.device

    models = {"before": before.model, "after": after.model}
    with torch.no_grad():
        seconds = seconds_in_turns({name: partial(decode, model) for name, model in models.items()}, ROUNDS)
    old, new = seconds["before"], seconds["after"]
    ratios = [slow / fast for slow, fast in zip(old, new, strict=True)]
    rates = Rates(STEPS / statistics.median(old), STEPS / statistics.median(new), (min(ratios), max(ratios)))
    return rates, (
        f"decode speed: measured here ({before.device.type}), one text of {prompt.shape[1]} tokens, median of {ROUNDS} "
        f"rounds of {STEPS} tokens, both in turns; beside it, how many times as fast it was, round by round."
    )


def seconds_in_turns(tasks: Mapping[str, Callable[[], Iterator[torch.device]]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each task, round by round; they take turns, so that a busy moment hits all of them alike.

    A task yields its device twice, before and after the timed part: what stands around is not timed. The order turns
    from round to round, because the first pays for what the others find warm, and a round before all others warms up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    names = list(tasks)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            times: list[float] = []
            for device in tasks[name]():
                if device.type != "cpu":  # an accelerator works on after the call that gave it work
                    torch.accelerator.synchronize(device)
                times.append(time.perf_counter())
            if number:
                seconds[name].append(times[1] - times[0])
    return seconds
