"""Statistics of a recording: the same definitions, read from q, k and lse that were kept, without the model.

Whoever opens a recording has no model to run again, and needs none: the pass reads what was recorded. A text too long
for a whole pass is read by rows spread evenly over it; what hangs on where a row stands among its neighbours
(distances, offsets, repeats) cannot be had so, and is NaN. `notes["rows"]` says what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import ShapeError, StatisticError
from manyheads.recording import LayerRecord, Received, Recording, Sinks, Tokens, prepare
from manyheads.recording.recording import one_text
from manyheads.spec import Site
from manyheads.statistics.gathered import UNSEEN, WORDY
from manyheads.statistics.head_table import HeadTable
from manyheads.statistics.one_batch import finish, requests_of
from manyheads.statistics.sinks import evenly, judge
from manyheads.statistics.statistic import Facts, Statistic
from manyheads.statistics.sums import Sums
from manyheads.statistics.table import choose

__all__ = ["EVERY_ROW", "measure_recording", "sinks_of"]


EVERY_ROW = "every row"
VALUES = frozenset({"values"})
BY_ROW = frozenset(
    {
        *("entropy", "effective_keys", "max_weight", "sum_of_squares", "missing_mass", "first_mass", "sink_mass"),
        *("special_mass", "separator_mass", "punctuation_mass", "number_mass", "capitalised_mass", "rare_mass"),
    }
)
"""What a row tells by itself, wherever it stands; so does each one's chance level by an even spread."""


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
    chosen, left = _askable(choose(statistics), wordless)
    rows = _rows(layers, text, most_cells)
    if sinks is None:
        sinks = Sinks() if wordless or rows is not None else sinks_of(recording, text)
    sites: list[Site] = []
    nums, dens = [], []
    for at, layer in enumerate(layers):
        if on_layer is not None:
            on_layer(at, len(layers))
        num, den = _of_layer(layer, text, chosen, sinks, rows)
        sites.append(layer.site)
        nums.append(num)
        dens.append(den)
    tokens = layers[0].tokens.text(text)
    sums = Sums.of(torch.cat(nums, 1), torch.cat(dens, 1), tokens.seeds, int(tokens.lengths.sum()))
    length = int(layers[0].lengths[text])
    notes = {
        "model": str(recording.provenance.get("model", "")),
        "rows": EVERY_ROW if rows is None else f"{len(rows):,} of {length:,} rows, spread evenly",
        "sinks": sinks.because,
        "left out, for want of words or of the model's weights": ", ".join(left),
        UNSEEN: str(recording.provenance.get("left out", "")),
    }
    return HeadTable(tuple(sites), chosen, sums, sinks, {key: value for key, value in notes.items() if value})


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
    """Those that attend from a text to itself."""
    return [layer for stack in recording.stacks.values() for layer in stack if not layer.crosses]


def _askable(wanted: tuple[Statistic, ...], wordless: bool) -> tuple[tuple[Statistic, ...], tuple[str, ...]]:
    """The statistics that a recording can answer, and the names of the others: what a value moves hangs on weights."""
    barred = VALUES | (WORDY if wordless else frozenset())
    chosen = tuple(each for each in wanted if not each.asks & barred)
    left = tuple(each.name for each in wanted if each.asks & barred)
    if not chosen:
        raise StatisticError(
            f"{', '.join(left)}: asked of words or of the model's weights, which this recording does not hold."
        )
    return chosen, left


def _rows(layers: Sequence[LayerRecord], text: int, most_cells: int | None) -> Int[Tensor, "r"] | None:
    """Which rows are read: None for all of them."""
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
    """Numerators and denominators of one layer; of sampled rows, 0 over 0 where a statistic cannot be had of them."""
    tokens = layer.tokens.text(text).with_sinks(sinks)
    had = statistics
    if rows is not None:
        had = tuple(each for each in statistics if each.name.removesuffix(".uniform") in BY_ROW)
    one = one_text(layer, text, rows)
    reduced = prepare(tokens, requests_of(had, tokens)).run(one)
    num, den = finish(Facts(reduced, layer=one), had, layer.site.num_heads)
    if rows is None:
        return num, den
    places = [statistics.index(each) for each in had]
    out = [torch.zeros(1, layer.site.num_heads, len(statistics), dtype=torch.float64) for _ in range(2)]
    for whole, part in zip(out, (num, den), strict=True):
        whole[..., places] = part
    return out[0], out[1]
