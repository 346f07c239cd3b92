"""Statistics of a recording: the same definitions, read from q, k and lse that were kept, without the model.

Opening a recording gives no model to run again, and none is needed: the pass reads what was recorded. A text too long
for a whole pass is read by rows spread evenly over it; a statistic that depends on where a row stands among its
neighbours (distances, offsets, repeats) cannot be computed from such rows, and is NaN. `notes["rows"]` says which rows
were read.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from manyheads.errors import ShapeError, StatisticError
from manyheads.recording import LayerRecord, Received, Recording, Sinks, Tokens, prepare
from manyheads.recording.layer import one_text
from manyheads.statistics.head_table import HeadTable
from manyheads.statistics.one_batch import UNSEEN, WORDY, finish, requests_of
from manyheads.statistics.sinks import Parked
from manyheads.statistics.statistic import Facts, Statistic
from manyheads.statistics.sums import Sums
from manyheads.statistics.table import choose

EVERY_ROW = "every row"
VALUES = frozenset({"values"})


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
    # A recording holds values and not the weights of W_O, on which the length of what a value moves depends.
    requested, barred = choose(statistics), VALUES | (WORDY if wordless else frozenset())
    chosen = tuple(statistic for statistic in requested if not statistic.asks & barred)
    refused = ", ".join(statistic.name for statistic in requested if statistic.asks & barred)
    if not chosen:
        raise StatisticError(
            f"{refused}: asked of words or of the model's weights, which this recording does not hold."
        )
    length, rows, answerable = layers[0].num_queries(text), None, chosen
    cells = sum(
        layer.site.num_heads * int(layer.mask.expand(len(layer.lengths)).texts(slice(text, text + 1)).counts().sum())
        for layer in layers
    )
    if most_cells is not None and cells > most_cells:
        count = max(1, length * most_cells // cells)
        rows = ((torch.arange(count, dtype=torch.float64) + 0.5) * length / count).long()
        answerable = tuple(statistic for statistic in chosen if statistic.by_row)
    columns = [chosen.index(statistic) for statistic in answerable]
    if sinks is None:
        sinks = Sinks() if wordless or rows is not None else sinks_of(recording, text)
    nums, dens = [], []
    for number, layer in enumerate(layers):
        if on_layer is not None:
            on_layer(number, len(layers))
        tokens, record = layer.tokens.text(text).with_sinks(sinks), one_text(layer, text, rows)
        reduced = prepare(tokens, requests_of(answerable, tokens)).run(record)
        numbers = finish(Facts(reduced, layer=record), answerable, layer.site.num_heads)
        # Of sampled rows, 0 over 0 for a statistic that needs every row: NaN in the table.
        num, den = (torch.zeros(1, layer.site.num_heads, len(chosen), dtype=torch.float64) for _ in range(2))
        num[..., columns], den[..., columns] = numbers
        nums.append(num)
        dens.append(den)
    tokens = layers[0].tokens.text(text)
    sums = Sums.of(torch.cat(nums, 1), torch.cat(dens, 1), tokens.seeds, int(tokens.lengths.sum()))
    notes = {
        "model": str(recording.provenance.get("model", "")),
        "rows": EVERY_ROW if rows is None else f"{len(rows):,} of {length:,} rows, spread evenly",
        "sinks": sinks.because,
        "left out, for want of words or of the model's weights": refused,
        UNSEEN: str(recording.provenance.get("left out", "")),
    }
    notes = {key: value for key, value in notes.items() if value}
    return HeadTable(tuple(layer.site for layer in layers), chosen, sums, sinks, notes)


def sinks_of(recording: Recording, text: int = 0) -> Sinks:
    """Where one text's attention parks, by what every token receives over all heads (as `find_sinks` of a model)."""
    parked = Parked()
    tokens: Tokens | None = None
    layers = _layers(recording)
    for layer in layers:
        if layer.site.stack == layers[0].site.stack:  # another stack may read another text
            tokens = layer.tokens.text(text)
            parked.add(prepare(tokens, [Received()]).run(one_text(layer, text)))
    if tokens is None or tokens.ids is None or tokens.special is None:
        return Sinks()
    return parked.sinks(tokens)


def _layers(recording: Recording) -> list[LayerRecord]:
    """The layers that attend from a text to itself."""
    return [layer for stack in recording.stacks.values() for layer in stack if not layer.crosses]
