"""Maps apart from tiles: one exact row of a head, a word's row in every head, one weight from q and k, small maps, a
window of a map as a file.

Rows, thumbnails and tiles are sent as envelopes: a header in JSON, then arrays as they lie in memory, numbers and not
colours, so that what is read off a pixel is the exact value. `unpack` reads what `pack` writes; docs/decisions/005
describes the format.
"""

from __future__ import annotations

import io
import json
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, UInt8
from numpy import ndarray
from torch import Tensor

from manyheads.models import LoadedModel
from manyheads.recording import LayerRecord, one_text, prepare, small_maps
from manyheads.recording.exact_map import Pooled
from manyheads.roles.compare import mixed
from manyheads.studio.problems import NotHere, TooLarge
from manyheads.studio.schema.recordings import Pair
from manyheads.studio.state.recordings import Opened
from manyheads.studio.views.recording import layer_info, tokens_of, units_of
from manyheads.texts import Merging, numbered

if TYPE_CHECKING:
    import pandas as pd

MAGIC = b"MHB1"
MEDIA_TYPE = "application/vnd.manyheads.arrays"
ALIGN = 8  # bytes: a typed array in the browser must begin at a multiple of its element's size
STEPS, ABSENT = 254, 255  # of a byte
MIN_MISSING = 1e-4  # of a row's mass: less is rounding, more went to a sink without a key
THUMBNAIL_ROWS = 8  # sampled rows per block of a thumbnail of a long text
THUMBNAIL_SIZES = (4, 256)
MAXIMUM_CELLS = 2_000_000_000  # up to so many, every cell is read for the largest weights
WORD_CELLS = 1 << 22  # of a word's row in all heads together: 16 MB
WINDOW_CELLS = 1 << 20  # of a window in a file: a spreadsheet opens no more rows
FILE_TYPES = {
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "json": "application/json",
}


def row_of(opened: Opened, head: str, row: int, text: int) -> bytes:
    """One exact row of a head's map: the weights of one query. Envelope."""
    layer, index = opened.layer_of(head)
    opened.check_text(text)
    if not 0 <= row < layer.num_queries(text):
        raise NotHere(f"there is no row {row}: this text has {layer.num_queries(text)} tokens, counted from 0.")
    weights = layer.weights(index, slice(row, row + 1), None, text)[0].float().cpu()
    visible = _visible_cells(layer, index, slice(row, row + 1), slice(0, layer.num_keys(text)), text)[0]
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


def pair_of(opened: Opened, head: str, query: int, key: int, text: int, lm: LoadedModel | None = None) -> Pair:
    """Every number between the q and k of a pair and its weight, in float64 from what the record holds.

    `lm`: the model, where it is here: only its config knows whether q and k were rotated. Cost: O(d + keys).
    Raises NotHere for a pair beside the map.
    """
    layer, index = opened.layer_of(head)
    opened.check_text(text)
    num_rows, num_keys = layer.num_queries(text), layer.num_keys(text)
    if not (0 <= query < num_rows and 0 <= key < num_keys):
        raise NotHere(f"there is no cell {query}, {key}: this map has {num_rows} rows and {num_keys} columns, from 0.")
    rule, row = layer.rule.texts(slice(text, text + 1)), slice(query, query + 1)
    q, k = layer.q[text, index, query].double().cpu(), layer.k[text, layer.site.kv_head_of(index), key].double().cpu()
    bias = None
    if rule.bias is not None:  # an axis of 1 serves every head
        bias = rule.bias[0, min(index, rule.bias.shape[1] - 1), query, key].double().cpu()
    scaled = rule.scale * (q * k).sum()
    lse = float(layer.lse[text, index, query])
    visible = _visible_cells(layer, index, row, slice(0, num_keys), text)[0]
    about = {
        None: "q and k as attention received them: after rotation by position (RoPE), if the model has it",
        True: "q and k after rotation by position (RoPE)",
        False: "q and k as attention received them, not rotated",
    }[is_turned(lm)]
    return Pair(
        head=head,
        query=query,
        key=key,
        q=q.tolist(),
        k=k.tolist(),
        scale=rule.scale,
        scaled=float(scaled),
        softcap=rule.softcap,
        bias=None if bias is None else float(bias),
        score=float(rule.finish_cells(scaled.clone(), bias)),
        lse=lse if math.isfinite(lse) else None,
        sink=None if rule.sinks is None else float(rule.sinks[index]),
        visible=bool(visible[key]),
        num_visible=int(visible.sum()),
        weight=float(layer.weights(index, row, slice(key, key + 1), text)),
        about=about,
    )


def is_turned(lm: LoadedModel | None) -> bool | None:
    """Whether recorded q and k were rotated by position before they met in attention; None without the model."""
    config = getattr(getattr(lm, "model", None), "config", None)
    if config is None:
        return None
    return bool(getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None))


def word_row_of(opened: Opened, query: int, keys: str, text: int) -> bytes:
    """The row of one word in every head: how much of it goes to each word of its text. Envelope.

    `query` is a token of the word; its pieces' rows are averaged and a key word's pieces summed, as `word_weights`
    does. `keys` is a range of words. NaN: the head does not see that word, or reads another text. `even` is the same
    row for a head that looks at all it sees evenly: one row where that is the same for all heads. Raises TooLarge.
    """
    opened.check_text(text)
    units, main, layers = units_of(opened, text), opened.main, opened.layers()
    if not 0 <= query < main.num_queries(text):
        raise NotHere(f"there is no token {query}: this text has {main.num_queries(text)}, counted from 0.")
    window = _slice_of(keys, len(units))
    num_heads, num_words = sum(layer.site.num_heads for layer in layers), window.stop - window.start
    if not num_words or num_heads * num_words > WORD_CELLS:
        most = WORD_CELLS // num_heads
        raise TooLarge(
            f"keys={keys} are {num_words:,} words of {len(units):,} in {num_heads} heads: give 1 to {most:,}."
        )
    word = next(unit for unit in units if query in unit.tokens)
    (rows, span), (columns, key_span) = numbered([word]), numbered(units[window])
    weights = np.full((num_heads, num_words), np.nan, np.float32)
    even, begin = weights.copy(), 0
    for layer in layers:
        info, heads = layer_info(layer, main, text), slice(begin, begin + layer.site.num_heads)
        begin = heads.stop
        if info.reads or info.looks_at != "" or layer.num_queries(text) != main.num_queries(text):
            continue  # it reads another text, where this word does not stand
        visible = _visible(layer, span, slice(0, layer.num_keys(text)), text).double()
        visible /= visible.sum(-1, keepdim=True).clamp_min(1)
        merged = []
        for cells in (layer.weights(None, span, key_span, text), visible[..., key_span]):
            merging = Merging(rows, columns)
            merging.add(cells, 0)
            merged.append(merging.weights[:, 0].float().cpu())
        even[heads] = merged[1]
        weights[heads] = merged[0].masked_fill(merged[1] == 0, torch.nan)
    header = {
        "heads": [str(head) for layer in layers for head in layer.site.heads],
        "begin": span.start,
        "end": span.stop,
        "keys": [window.start, window.stop],
        "words": f"exact weights from “{word.text}” to each word",
        "exact": True,
    }
    return pack(header, weights=weights, even=even[:1] if (even == even[:1]).all() else even)


def thumbnails_of(opened: Opened, size: int, how: str, text: int) -> bytes:
    """Every head's map, small. Envelope: `maps` uint8, `peaks` float32; see docs/decisions/005.

    Under a plan that has heads share weights, a head's map is the one that it uses, made of the sources'.
    """
    opened.check_text(text)
    low, high = THUMBNAIL_SIZES
    if not low <= size <= high:
        raise TooLarge(f"size={size}: thumbnails have {low} to {high} blocks a side.")

    def make() -> bytes:
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
            before = pooled
            for head, parts in opened.sharing.get(str(layer.site), {}).items():
                if how == "mean" or len(parts) == 1:  # the largest of a mean is not the mean of the largest
                    pooled = pooled.clone() if pooled is before else pooled
                    pooled[head] = mixed(before, parts)
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

    return opened.once(("thumbnails", text, size, how), make)


def window_file(opened: Opened, head: str, queries: str, keys: str, text: int, kind: str) -> tuple[str, str, bytes]:
    """A window of a head's map as a file: its name, media type and bytes.

    One row per cell: query, key, their tokens, the exact weight. Hidden cells are left out. Raises TooLarge.
    """
    import pandas as pd  # takes a second, and few pages export

    layer, index = opened.layer_of(head)
    opened.check_text(text)
    rows, columns = _slice_of(queries, layer.num_queries(text)), _slice_of(keys, layer.num_keys(text))
    cells = (rows.stop - rows.start) * (columns.stop - columns.start)
    if cells > WINDOW_CELLS:
        raise TooLarge(f"{cells:,} cells are above the limit of {WINDOW_CELLS:,}: give fewer queries= or keys=.")
    weights = layer.weights(index, rows, columns, text).cpu()
    query, key = _visible_cells(layer, index, rows, columns, text).nonzero(as_tuple=True)
    pieces = [token.piece for token in tokens_of(layer, text, opened.sinks(text))]
    frame = pd.DataFrame({"query": query.numpy() + rows.start, "key": key.numpy() + columns.start})
    frame["query_token"] = [pieces[position] for position in frame["query"]]
    if not layer.crosses:
        frame["key_token"] = [pieces[position] for position in frame["key"]]
    frame["weight"] = weights[query, key].numpy()
    return f"{head.replace(':', '-')}.{kind}", FILE_TYPES[kind], file_bytes(frame, kind)


def file_bytes(frame: pd.DataFrame, kind: str) -> bytes:
    """A data frame as a file of one of `FILE_TYPES`."""
    out = io.BytesIO()
    if kind == "parquet":
        frame.to_parquet(out, index=False)
    elif kind == "csv":
        frame.to_csv(out, index=False)
    else:
        frame.to_json(out, orient="records")
    return out.getvalue()


def pack(header: dict[str, Any], **arrays: ndarray) -> bytes:
    """An envelope. Arrays are written little-endian and in C order."""
    entries, chunks, offset = [], [], 0
    for name, values in arrays.items():
        data = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()
        entries.append({"name": name, "dtype": values.dtype.name, "shape": list(values.shape), "offset": offset})
        padding = -len(data) % ALIGN
        chunks += [data, bytes(padding)]
        offset += len(data) + padding
    head = json.dumps({**header, "arrays": entries}, allow_nan=False).encode()
    head += b" " * (-(len(MAGIC) + 4 + len(head)) % ALIGN)
    return b"".join([MAGIC, struct.pack("<I", len(head)), head, *chunks])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, ndarray]]:
    """The header and the arrays of an envelope. Raises ValueError for anything else."""
    if data[:4] != MAGIC or len(data) < 8:
        raise ValueError("this is not an envelope of manyheads")
    (length,) = struct.unpack("<I", data[4:8])
    header, begin = json.loads(data[8 : 8 + length]), 8 + length
    arrays = {}
    for entry in header["arrays"]:
        count = int(np.prod(entry["shape"], dtype=np.int64))
        dtype = np.dtype(entry["dtype"]).newbyteorder("<")
        arrays[entry["name"]] = np.frombuffer(data, dtype, count, begin + entry["offset"]).reshape(entry["shape"])
    return header, arrays


def in_steps(maps: Float32[ndarray, "h r c"]) -> tuple[UInt8[ndarray, "h r c"], Float32[ndarray, "h"]]:
    """Maps as bytes, and each map's peak: a byte u is `peak * (u / 254)^2`, to 0.4 % of the peak; 255 is absent."""
    peaks = np.nan_to_num(np.nanmax(maps.reshape(len(maps), -1), 1, initial=0.0)).astype(np.float32)
    # Square roots: most weights are far below the peak, and would all fall into the first few even steps.
    shares = np.sqrt(maps / np.maximum(peaks, 1e-30)[:, None, None])
    steps = np.rint(np.nan_to_num(shares).clip(0, 1) * STEPS)
    return np.where(np.isnan(maps), ABSENT, steps).astype(np.uint8), peaks


def _visible_cells(layer: LayerRecord, head: int, rows: slice, keys: slice, text: int) -> Bool[Tensor, "q k"]:
    """Which cells of a window of a head's map its mask leaves visible."""
    mask = _visible(layer, rows, keys, text)
    return mask[head if len(mask) > 1 else 0]


def _visible(layer: LayerRecord, rows: slice, keys: slice, text: int) -> Bool[Tensor, "h q k"]:
    """The same for all heads of a layer: one mask stands for them where they see the same."""
    return layer.mask_of(text).visible(rows, keys)[0]


def _slice_of(span: str, length: int) -> slice:
    """ "3:10" as a slice within a length."""
    begin, _, end = span.partition(":")
    start = min(int(begin or 0), length)
    return slice(start, max(start, min(int(end or length), length)))
