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
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import ShapeError, StatisticError
from manyheads.measurement.sinks import Parked
from manyheads.recording import LayerRecord, MaskLike, Recording, one_text, prepare, record_tensors, spread_evenly
from manyheads.recording.exact_map import Received
from manyheads.statistics import Facts, HeadTable, Statistic, Sums, choose
from manyheads.statistics.sums import HIDDEN_NOTE, WORDY, finish, maximum_columns, requests_of, require_words, without
from manyheads.texts import Sinks

EVERY_ROW = "every row"
VALUES = frozenset({"values"})


def measure_recording(
    recording: Recording,
    statistics: str | Sequence[str | Statistic] = "default",
    *,
    text: int | None = 0,
    sinks: Sinks | None = None,
    most_cells: int | None = None,
    on_layer: Callable[[int, int], None] | None = None,
) -> HeadTable:
    """A table with a row a head and a column a statistic, of one text of a recording; with `text=None`, of all of them.

    `sinks`: where the model parks its attention, found on this text (the first one) unless given. `most_cells`: where
    the maps of all heads of a text have more visible cells, rows are sampled. `on_layer` is called with layers done and
    layers in all, and may raise to stop. Statistics that ask for words where there are none, or for the model's
    weights, are left out (in the notes).
    Cost: one pass over the tiles of each layer. Errors: StatisticError where nothing is left, ShapeError.
    """
    layers = _layers(recording)
    if not layers:
        raise StatisticError("no layer of this recording attends from a text to itself: there is nothing to measure.")
    tokens = layers[0].tokens
    if text is not None and not 0 <= text < tokens.num_texts:
        raise ShapeError(f"{text=} is not in this recording: it holds {tokens.num_texts} texts, counted from 0.")
    texts = range(tokens.num_texts) if text is None else [text]
    wordless = tokens.ids is None or tokens.special is None
    # A recording holds values and not the weights of W_O, on which the length of what a value moves depends.
    requested, barred = choose(statistics, images=bool(tokens.images)), VALUES | (WORDY if wordless else frozenset())
    chosen, refused = without(requested, barred)
    if not chosen:
        raise StatisticError(f"{refused}: about words or the model's weights, which this recording does not hold.")
    rows_of: dict[int, Int[Tensor, "r"] | None] = dict.fromkeys(texts)  # the rows that are read of each text; None: all
    if most_cells is not None:
        for index in texts:
            cells = sum(layer.site.num_heads * int(layer.mask_of(index).counts().sum()) for layer in layers)
            if cells > most_cells:
                length = layers[0].num_queries(index)
                rows_of[index] = spread_evenly(max(1, length * most_cells // cells), length)
    sampled = [rows for rows in rows_of.values() if rows is not None]
    if sinks is None:
        sinks = Sinks() if wordless or sampled else sinks_of(recording, texts[0])
    nums, dens = [], []
    for index, rows in rows_of.items():
        answerable = chosen if rows is None else tuple(statistic for statistic in chosen if statistic.by_row)
        columns = [chosen.index(statistic) for statistic in answerable]
        by_layer = []
        for number, layer in enumerate(layers):
            if on_layer is not None:
                on_layer(number, len(layers))
            text_tokens, record = layer.tokens.text(index).with_sinks(sinks), one_text(layer, index, rows)
            require_words(text_tokens, answerable, layer.site)
            reduced = prepare(text_tokens, requests_of(answerable, text_tokens)).run(record)
            # Of sampled rows, 0 over 0 for a statistic that needs every row: NaN in the table.
            numbers = torch.zeros(2, 1, layer.site.num_heads, len(chosen), dtype=torch.float64)
            numbers[..., columns] = torch.stack(finish(Facts(reduced, layer=record), answerable, layer.site.num_heads))
            by_layer.append(numbers)
        num, den = torch.cat(by_layer, 2)
        nums.append(num)
        dens.append(den)
    seeds = [tokens.seeds[index] for index in texts]
    num_tokens = int(tokens.lengths[list(texts)].sum())
    sums = Sums.of(torch.cat(nums), torch.cat(dens), seeds, num_tokens, maximum_columns(chosen))
    rows_read = f"{sum(map(len, sampled)):,} of {num_tokens:,} rows, spread evenly" if sampled else EVERY_ROW
    notes = {
        "model": str(recording.provenance.get("model", "")),
        "rows": rows_read,
        "sinks": sinks.because,
        "left out, for want of words or of the model's weights": refused,
        HIDDEN_NOTE: str(recording.provenance.get("left out", "")),
    }
    notes = {key: value for key, value in notes.items() if value}
    return HeadTable(tuple(layer.site for layer in layers), chosen, sums, sinks, notes)


def statistics_of(
    q: Tensor | Sequence[Tensor],
    k: Tensor | Sequence[Tensor],
    lse: Tensor | Sequence[Tensor] | None = None,
    mask: MaskLike | Sequence[MaskLike] = "causal",
    statistics: str | Sequence[str | Statistic] = "default",
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Sequence[int] | None = None,
) -> HeadTable:
    """The statistics of every head from q and k alone: from another library's hooks, an engine's dump, or your own
    module.

        table = mh.statistics_of(q, k)                            # one layer: q [b, h, n, d], k [b, g, n, d]
        table = mh.statistics_of([q0, q1], [k0, k1], [lse0, lse1])   # two layers, whose kernels gave their lse

    - `q`: as it was multiplied, after rotation and norms; a tensor, or a list of one a layer.
    - `k`: likewise.
    - `lse`: natural logarithm; it spares the pass that computes it, and is checked on some rows.
    - `mask`: "causal", "full", a boolean tensor (True = may look) or a `Mask`; one for all layers, or a list.
    - `statistics`: by name, as in `measure`.
    - `scale`: of the products, 1 / sqrt(d) by default.
    - `softcap`: as in `attend`.
    - `sinks`: a logit for each head, as in `attend`.
    - `bias`: as in `attend`.
    - `lengths`: the length of each text; its positions are the first ones. All by default.

    Statistics of words or of the model's weights are left out, and named in the notes.
    Cost: one pass over the tiles of each layer; O(tile) memory. Errors: ShapeError, RecordingError for an lse that is
    not that of q and k, StatisticError.
    """
    options = {"scale": scale, "softcap": softcap, "sinks": sinks, "bias": bias}
    recording = record_tensors(q, k, lse, mask=mask, lengths=lengths, **options)
    if crossing := [layer for stack in recording.stacks.values() for layer in stack if layer.crosses]:
        raise ShapeError(
            f"q has {crossing[0].q.shape[2]} positions and k {crossing[0].k.shape[2]}: statistics are for texts that "
            f"attend to themselves. Are heads and positions swapped? The axes are (text, head, position, width)."
        )
    return measure_recording(recording, statistics, text=None)


def sinks_of(recording: Recording, text: int = 0) -> Sinks:
    """Where one text's attention parks, by what every token receives over all heads (as `find_sinks` of a model)."""
    layers = _layers(recording)
    tokens = layers[0].tokens.text(text) if layers else recording.tokens
    if not layers or tokens.ids is None or tokens.special is None:
        return Sinks()
    parked = Parked(tokens)
    for layer in layers:
        if layer.site.stack == layers[0].site.stack:  # another stack may read another text
            read = prepare(layer.tokens.text(text), [Received()])
            parked.add([0], [0], read.run(one_text(layer, text)))
    return parked.sinks()


def _layers(recording: Recording) -> list[LayerRecord]:
    """The layers that attend from a text to itself."""
    return [layer for stack in recording.stacks.values() for layer in stack if not layer.crosses]
