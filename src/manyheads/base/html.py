"""A table as plain HTML, for notebooks and for pages without JavaScript: no style sheet, no script, nothing to fetch.

Everything that is shown is escaped: tokens and texts are data. Colours are the page's own, so that it reads in light
and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

MOST_ROWS = 20
MOST_CHARS = 120  # of one cell
CELL = "padding:2px 10px 2px 0;border-bottom:1px solid rgba(128,128,128,.35)"
NUMBER = f"{CELL};text-align:right;font-variant-numeric:tabular-nums"
WORDS = f"{CELL};text-align:left"


def html_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str | int | float | None]],
    *,
    caption: str = "",
    note: str = "",
    most: int = MOST_ROWS,
    total: int | None = None,
    styled: bool = True,
) -> str:
    """At most `most` rows, then how many more there are. Numbers to the right; no number (None, NaN) is a dash.

    `total`: how many rows there are, where `rows` are only the first of them.
    `styled` as a notebook needs it, where a table brings no style sheet: each cell says its own, most of its bytes.
    """
    first_rows = rows[:most]
    # A column with a number anywhere in it is one of numbers: its gaps are None, and would be set left by themselves.
    are_numbers = [any(isinstance(row[column], int | float) for row in first_rows) for column in range(len(columns))]
    styles = [f' style="{NUMBER if is_number else WORDS}"' if styled else "" for is_number in are_numbers]
    head = "".join(f'<th scope="col"{style}>{escape(name)}</th>' for style, name in zip(styles, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{style}>{_cell(value)}</td>" for style, value in zip(styles, row, strict=True)) + "</tr>"
        for row in first_rows
    )
    title = f'<caption style="text-align:left;padding:4px 0">{escape(caption)}</caption>' if caption else ""
    left = (total or len(rows)) - len(first_rows)
    more = f"... and {left:,} more" if left else ""
    below = " ".join(f"<p>{escape(paragraph)}</p>" for paragraph in (more, note) if paragraph)
    table = (
        f'<table style="border-collapse:collapse">{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    )
    return f'<div style="overflow-x:auto">{table}{below}</div>'


def _cell(value: str | int | float | None) -> str:
    if isinstance(value, str):
        return escape(value if len(value) <= MOST_CHARS else f"{value[:MOST_CHARS]}...")
    if value is None or math.isnan(value):
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
