"""Statistics of a recording: the same definitions, read from q, k and lse that were kept, without the model.

Opening a recording gives no model to run again, and none is needed: the pass reads what was recorded. A text too long
for a whole pass is read by rows spread evenly over it; a statistic that depends on where a row stands among its
neighbours (distances, offsets, repeats) cannot be computed from such rows, and is NaN. `notes["rows"]` says which rows
were read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import ShapeError, StatisticError
from manyheads.recording import LayerRecord, Received, Recording, Sinks, Tokens, prepare
from manyheads.recording.layer import one_text
from manyheads.statistics.gathered import UNSEEN, WORDY
from manyheads.statistics.head_table import HeadTable
from manyheads.statistics.one_batch import finish, requests_of
from manyheads.statistics.sinks import judge
from manyheads.statistics.statistic import Facts, Statistic, evenly
from manyheads.statistics.sums import Sums
from manyheads.statistics.table import choose

EVERY_ROW = "every row"
VALUES = frozenset({"values"})
BY_ROW = frozenset(
    {
        *("entropy", "effective_keys", "max_weight", "sum_of_squares", "missing_mass", "first_mass", "sink_mass"),
        *("special_mass", "separator_mass", "punctuation_mass", "number_mass", "capitalised_mass", "rare_mass"),
    }
)
"""Statistics of a row alone, wherever it stands; their chance levels by an even spread are, too."""


def measure_recording(
    recording: Recording,
    statistics: str | Sequence[str | Statistic] = "default",
    *,
    text: int = 0,
    sinks: Sinks | None = None,
    most_cells: int | None = None,
    on_layer: Callable[[int, int], None] | None = None,
) -> HeadTable:
    """A table with a row a head and a column a statistic, of one text of a recording.

    `sinks`: where the model parks its attention, found on this text unless given. `most_cells`: where the maps of all
    heads have more visible cells, rows are sampled. `on_layer` is called with layers done and layers in all, and may
    raise to stop. Statistics that ask for words where there are none, or for the model's weights, are left out (in the
    notes).
    Cost: one pass over the tiles of each layer. Errors: StatisticError where nothing is left, ShapeError.
    """
    layers = _layers(recording)
    if not layers:
        raise StatisticError("no layer of this recording attends from a text to itself: there is nothing to measure.")
    if not 0 <= text < len(layers[0].lengths):
        raise ShapeError(f"{text=} is not in this recording: it holds {len(layers[0].lengths)} texts, counted from 0.")
    wordless = layers[0].tokens.ids is None or layers[0].tokens.special is None
    chosen, refused = _askable(choose(statistics), wordless)
    rows = _sampled_rows(layers, text, most_cells)
    if sinks is None:
        sinks = Sinks() if wordless or rows is not None else sinks_of(recording, text)
    nums, dens = [], []
    for number, layer in enumerate(layers):
        if on_layer is not None:
            on_layer(number, len(layers))
        num, den = _of_layer(layer, text, chosen, sinks, rows)
        nums.append(num)
        dens.append(den)
    tokens = layers[0].tokens.text(text)
    sums = Sums.of(torch.cat(nums, 1), torch.cat(dens, 1), tokens.seeds, int(tokens.lengths.sum()))
    length = int(layers[0].lengths[text])
    notes = {
        "model": str(recording.provenance.get("model", "")),
        "rows": EVERY_ROW if rows is None else f"{len(rows):,} of {length:,} rows, spread evenly",
        "sinks": sinks.because,
        "left out, for want of words or of the model's weights": ", ".join(refused),
        UNSEEN: str(recording.provenance.get("left out", "")),
    }
    notes = {key: value for key, value in notes.items() if value}
    return HeadTable(tuple(layer.site for layer in layers), chosen, sums, sinks, notes)


def sinks_of(recording: Recording, text: int = 0) -> Sinks:
    """Where one text's attention parks, by what every token receives over all heads (as `find_sinks` of a model)."""
    received, even, rows = torch.zeros(1), torch.zeros(1), 0
    tokens: Tokens | None = None
    layers = _layers(recording)
    for layer in layers:
        if layer.site.stack == layers[0].site.stack:  # another stack may read another text
            tokens = layer.tokens.text(text)
            reduced = prepare(tokens, [Received()]).run(one_text(layer, text))
            received = received + reduced[Received()].mean(1)
            even = even + evenly(reduced.mask, tokens)
            rows += int(reduced.rows.sum())
    if tokens is None or tokens.ids is None or tokens.special is None:
        return Sinks()
    return judge(tokens, received / max(rows, 1), even / max(rows, 1))


def _layers(recording: Recording) -> list[LayerRecord]:
    """The layers that attend from a text to itself."""
    return [layer for stack in recording.stacks.values() for layer in stack if not layer.crosses]


def _askable(statistics: tuple[Statistic, ...], wordless: bool) -> tuple[tuple[Statistic, ...], tuple[str, ...]]:
    """The statistics that a recording can answer, and the names of the others.

    A recording holds values and not the weights of W_O, on which the length of what a value moves depends.
    """
    barred = VALUES | (WORDY if wordless else frozenset())
    chosen = tuple(statistic for statistic in statistics if not statistic.asks & barred)
    refused = tuple(statistic.name for statistic in statistics if statistic.asks & barred)
    if not chosen:
        raise StatisticError(
            f"{', '.join(refused)}: asked of words or of the model's weights, which this recording does not hold."
        )
    return chosen, refused


def _sampled_rows(layers: Sequence[LayerRecord], text: int, most_cells: int | None) -> Int[Tensor, "r"] | None:
    """The rows to read where the maps have more than `most_cells` cells; None for all of them."""
    length = layers[0].num_queries(text)
    cells = sum(
        layer.site.num_heads * int(layer.mask.expand(len(layer.lengths)).texts(slice(text, text + 1)).counts().sum())
        for layer in layers
    )
    if most_cells is None or cells <= most_cells:
        return None
    count = max(1, length * most_cells // cells)
    return ((torch.arange(count, dtype=torch.float64) + 0.5) * length / count).long()


def _of_layer(
    layer: LayerRecord, text: int, statistics: tuple[Statistic, ...], sinks: Sinks, rows: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Numerators and denominators of one layer; of sampled rows, 0 over 0 for a statistic that needs every row."""
    tokens = layer.tokens.text(text).with_sinks(sinks)
    answerable = statistics
    if rows is not None:
        answerable = tuple(statistic for statistic in statistics if statistic.name.removesuffix(".uniform") in BY_ROW)
    record = one_text(layer, text, rows)
    reduced = prepare(tokens, requests_of(answerable, tokens)).run(record)
    num, den = finish(Facts(reduced, layer=record), answerable, layer.site.num_heads)
    if rows is None:
        return num, den
    columns = [statistics.index(statistic) for statistic in answerable]
    all_num, all_den = (torch.zeros(1, layer.site.num_heads, len(statistics), dtype=torch.float64) for _ in range(2))
    all_num[..., columns], all_den[..., columns] = num, den
    return all_num, all_den
