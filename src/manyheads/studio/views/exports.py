"""What the page shows as files: every head's statistics, and windows of a head's exact map."""

from __future__ import annotations

import io
from typing import Any

from manyheads.studio.problems import TooLarge
from manyheads.studio.state.recordings import Opened
from manyheads.studio.views.atlas import table_of
from manyheads.studio.views.maps import visible_cells
from manyheads.studio.views.recording import tokens_of

__all__ = ["TABLE_FORMATS", "table_file", "window_file"]


TABLE_FORMATS = {
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "json": "application/json",
}
WINDOW_CELLS = 1 << 20  # of a window in a file: a spreadsheet opens no more rows


def table_file(opened: Opened, text: int, kind: str) -> tuple[str, str, bytes]:
    """A file's name, media type and bytes: one row per head."""
    return f"heads.{kind}", TABLE_FORMATS[kind], _file_bytes(table_of(opened, text).to_pandas(), kind)


def window_file(opened: Opened, head: str, queries: str, keys: str, text: int, kind: str) -> tuple[str, str, bytes]:
    """One row per cell: query, key, their tokens, the exact weight. Hidden cells are left out. Raises TooLarge."""
    import pandas as pd  # takes a second, and few pages export

    layer, index = opened.layer_of(head)
    opened.check_text(text)
    rows, columns = _slice_of(queries, layer.num_queries(text)), _slice_of(keys, layer.num_keys(text))
    cells = (rows.stop - rows.start) * (columns.stop - columns.start)
    if cells > WINDOW_CELLS:
        raise TooLarge(f"{cells:,} cells are above the limit of {WINDOW_CELLS:,}: give fewer queries= or keys=.")
    weights = layer.weights(index, rows, columns, text)
    query, key = visible_cells(layer, index, rows, columns, text).nonzero(as_tuple=True)
    pieces = [token.piece for token in tokens_of(layer, text, opened.sinks(text))]
    frame = pd.DataFrame({"query": query.numpy() + rows.start, "key": key.numpy() + columns.start})
    frame["query_token"] = [pieces[position] for position in frame["query"]]
    if not layer.crosses:
        frame["key_token"] = [pieces[position] for position in frame["key"]]
    frame["weight"] = weights[query, key].numpy()
    return f"{head.replace(':', '-')}.{kind}", TABLE_FORMATS[kind], _file_bytes(frame, kind)


def _slice_of(span: str, length: int) -> slice:
    """ "3:10" as a slice within a length."""
    begin, _, end = span.partition(":")
    start = min(int(begin or 0), length)
    return slice(start, max(start, min(int(end or length), length)))


def _file_bytes(frame: Any, kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "parquet":
        frame.to_parquet(out, index=False)
    elif kind == "csv":
        frame.to_csv(out, index=False)
    else:
        frame.to_json(out, orient="records")
    return out.getvalue()
