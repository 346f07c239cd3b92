"""Maps but for tiles: one exact row of a head, and every head's map, small. Both are envelopes."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from manyheads.recording import LayerRecord
from manyheads.studio.problems import NotHere, TooLarge
from manyheads.studio.state.recordings import Opened
from manyheads.studio.views.envelope import MIN_MISSING, in_steps, pack

__all__ = ["row_of", "thumbnails_of", "visible_cells"]


THUMBNAIL_ROWS = 8  # rows a block of a thumbnail, of a long text
THUMBNAIL_SIZES = (4, 256)
MAXIMUM_CELLS = 2_000_000_000  # up to so many, every cell is read for the largest weights


def row_of(opened: Opened, head: str, row: int, text: int) -> bytes:
    """One row of a head's map, exact: where this word looks. Envelope."""
    layer, index = opened.layer_of(head)
    opened.check_text(text)
    if not 0 <= row < layer.num_queries(text):
        raise NotHere(f"there is no row {row}: this text has {layer.num_queries(text)} tokens, counted from 0.")
    weights = layer.weights(index, slice(row, row + 1), None, text)[0].float()
    seen = visible_cells(layer, index, slice(row, row + 1), slice(0, layer.num_keys(text)), text)[0]
    visible = int(seen.sum())
    missing = max(0.0, 1.0 - float(weights.double().sum())) if visible else 0.0
    header = {
        "head": head,
        "row": row,
        "visible": visible,
        "missing": missing if missing > MIN_MISSING else 0.0,
        "words": f"exact weights of row {row}",
        "exact": True,
    }
    return pack(header, weights=weights.masked_fill(~seen, torch.nan).numpy())


def visible_cells(layer: LayerRecord, head: int, rows: slice, keys: slice, text: int) -> Bool[Tensor, "q k"]:
    """Which cells of a window of a head's map its mask lets be seen."""
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
    from manyheads.recording import Pooled, prepare
    from manyheads.recording.recording import one_text, small_maps

    if how == "max" and opened.cells(text) > MAXIMUM_CELLS:
        raise TooLarge("the largest weights of all heads are too many cells to read at once here: use how=mean.")
    maps, heads, said, exact = [], [], "", True
    side = max(min(size, max(each.num_queries(text), each.num_keys(text))) for each in opened.layers())
    for layer in opened.layers():
        if how == "max":
            plan = prepare(layer.tokens.text(text), [Pooled(size, "max")])
            got = plan.run(one_text(layer, text))[Pooled(size, "max")][0]
            rows = (layer.num_queries(text), layer.num_queries(text))
        else:
            got, *rows = small_maps(layer, size, text, THUMBNAIL_ROWS)
        exact &= rows[0] == rows[1]
        said = said or f"{how} of about {-(-rows[1] // size)} x {-(-layer.num_keys(text) // size)} cells"
        said += "" if rows[0] == rows[1] or "rows" in said else f", {rows[0]:,} of {rows[1]:,} rows read"
        whole = np.full((layer.site.num_heads, side, side), np.nan, np.float32)
        whole[:, : got.shape[1], : got.shape[2]] = got.numpy()[:, :side, :side]
        maps.append(whole)
        heads += [str(head) for head in layer.site.heads]
    steps, peaks = in_steps(np.concatenate(maps))
    return pack({"heads": heads, "how": how, "words": said, "exact": exact, "text": text}, maps=steps, peaks=peaks)
