"""Maps apart from tiles: one exact row of a head, and a thumbnail of every head's map. Both are envelopes."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from manyheads.recording import LayerRecord, Pooled, prepare
from manyheads.recording.layer import one_text, small_maps
from manyheads.studio.problems import NotHere, TooLarge
from manyheads.studio.state.recordings import Opened
from manyheads.studio.views.envelope import MIN_MISSING, in_steps, pack

__all__ = ["row_of", "thumbnails_of", "visible_cells"]


THUMBNAIL_ROWS = 8  # sampled rows per block of a thumbnail of a long text
THUMBNAIL_SIZES = (4, 256)
MAXIMUM_CELLS = 2_000_000_000  # up to so many, every cell is read for the largest weights


def row_of(opened: Opened, head: str, row: int, text: int) -> bytes:
    """One exact row of a head's map: the weights of one query. Envelope."""
    layer, index = opened.layer_of(head)
    opened.check_text(text)
    if not 0 <= row < layer.num_queries(text):
        raise NotHere(f"there is no row {row}: this text has {layer.num_queries(text)} tokens, counted from 0.")
    weights = layer.weights(index, slice(row, row + 1), None, text)[0].float()
    visible = visible_cells(layer, index, slice(row, row + 1), slice(0, layer.num_keys(text)), text)[0]
    num_visible = int(visible.sum())
    # A learned sink takes mass that no key has, and a row sums to less than 1: the page draws the difference.
    missing = max(0.0, 1.0 - float(weights.double().sum())) if num_visible else 0.0
    header = {
        "head": head,
        "row": row,
        "visible": num_visible,
        "missing": missing if missing > MIN_MISSING else 0.0,
        "words": f"exact weights of row {row}",
        "exact": True,
    }
    return pack(header, weights=weights.masked_fill(~visible, torch.nan).numpy())


def visible_cells(layer: LayerRecord, head: int, rows: slice, keys: slice, text: int) -> Bool[Tensor, "q k"]:
    """Which cells of a window of a head's map its mask leaves visible."""
    mask = layer.mask.expand(len(layer.lengths)).texts(slice(text, text + 1)).visible(rows, keys)[0]
    return mask[head if len(mask) > 1 else 0]


def thumbnails_of(opened: Opened, size: int, how: str, text: int) -> bytes:
    """Every head's map, small. Envelope: `maps` uint8, `peaks` float32; see docs/decisions/005."""
    opened.check_text(text)
    low, high = THUMBNAIL_SIZES
    if not low <= size <= high:
        raise TooLarge(f"size={size}: thumbnails have {low} to {high} blocks a side.")
    return opened.once(("thumbnails", text, size, how), lambda: _thumbnails(opened, size, how, text))


def _thumbnails(opened: Opened, size: int, how: str, text: int) -> bytes:
    if how == "max" and opened.cells(text) > MAXIMUM_CELLS:
        raise TooLarge("the largest weights of all heads are too many cells to read at once here: use how=mean.")
    maps, heads, words, exact = [], [], "", True
    side = max(min(size, max(layer.num_queries(text), layer.num_keys(text))) for layer in opened.layers())
    for layer in opened.layers():
        if how == "max":
            # A maximum over sampled rows would miss most peaks, so every row is read.
            request = Pooled(size, "max")
            pooled = prepare(layer.tokens.text(text), [request]).run(one_text(layer, text))[request][0]
            rows_read = num_rows = layer.num_queries(text)
        else:
            pooled, rows_read, num_rows = small_maps(layer, size, text, THUMBNAIL_ROWS)
        exact &= rows_read == num_rows
        words = words or f"{how} of about {-(-num_rows // size)} x {-(-layer.num_keys(text) // size)} cells"
        words += "" if rows_read == num_rows or "rows" in words else f", {rows_read:,} of {num_rows:,} rows read"
        # A stack with fewer tokens has smaller maps: absent cells fill the common square.
        square = np.full((layer.site.num_heads, side, side), np.nan, np.float32)
        square[:, : pooled.shape[1], : pooled.shape[2]] = pooled.numpy()[:, :side, :side]
        maps.append(square)
        heads += [str(head) for head in layer.site.heads]
    steps, peaks = in_steps(np.concatenate(maps))
    return pack({"heads": heads, "how": how, "words": words, "exact": exact, "text": text}, maps=steps, peaks=peaks)
