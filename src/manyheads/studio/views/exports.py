"""What is on the page as files: every head's numbers, and windows of a head's exact map."""

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
WINDOW_CELLS = 1 << 20  # of a window that is written: a spreadsheet opens no more


def table_file(opened: Opened, text: int, kind: str) -> tuple[str, str, bytes]:
    """A file's name, media type and bytes: a row a head."""
    return f"heads.{kind}", TABLE_FORMATS[kind], _written(table_of(opened, text).to_pandas(), kind)


def window_file(opened: Opened, head: str, queries: str, keys: str, text: int, kind: str) -> tuple[str, str, bytes]:
    """A row a cell: query, key, their tokens, the exact weight. Hidden cells are left out. Raises TooLarge."""
    import pandas as pd

    layer, index = opened.layer_of(head)
    opened.check_text(text)
    rows, columns = _span(queries, layer.num_queries(text)), _span(keys, layer.num_keys(text))
    cells = (rows.stop - rows.start) * (columns.stop - columns.start)
    if cells > WINDOW_CELLS:
        raise TooLarge(f"{cells:,} cells are above the limit of {WINDOW_CELLS:,}: give fewer queries= or keys=.")
    weights = layer.weights(index, rows, columns, text)
    query, key = visible_cells(layer, index, rows, columns, text).nonzero(as_tuple=True)
    names = [token.piece for token in tokens_of(layer, text, opened.sinks(text))]
    frame = pd.DataFrame({"query": query.numpy() + rows.start, "key": key.numpy() + columns.start})
    frame["query_token"] = [names[at] for at in frame["query"]]
    if not layer.crosses:
        frame["key_token"] = [names[at] for at in frame["key"]]
    frame["weight"] = weights[query, key].numpy()
    return f"{head.replace(':', '-')}.{kind}", TABLE_FORMATS[kind], _written(frame, kind)


def _span(asked: str, length: int) -> slice:
    """ "3:10" as a slice within a length."""
    begin, _, end = asked.partition(":")
    start = min(int(begin or 0), length)
    return slice(start, max(start, min(int(end or length), length)))


def _written(frame: Any, kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "parquet":
        frame.to_parquet(out, index=False)
    elif kind == "csv":
        frame.to_csv(out, index=False)
    else:
        frame.to_json(out, orient="records")
    return out.getvalue()
