"""Aligned columns under two lines of headings, cut to the width there is: a table that never wraps.

Figures stand right, words left. Columns belong to groups, with a bar between groups and the group's name above it.
Where the page is too narrow, whole columns go, those with the highest `spare` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from manyheads.cli.console import knows_blocks

GAP, BAR = "  ", " │ "


@dataclass(frozen=True)
class Column:
    """`spare`: 0 stays whatever the width; else the higher, the sooner it goes. `most`: wider cells are cut."""

    title: str
    group: str = ""
    right: bool = True
    spare: int = 0
    most: int = 40


Row = Sequence[Text] | None
"""Cells, or None for a light rule."""


def lay_out(
    columns: Sequence[Column], rows: Sequence[Row], width: int, *, rule: str = "─", bar: str = BAR
) -> list[Text]:
    """The table, a line an entry."""
    widths = _widths(columns, rows)
    kept = _kept(columns, widths, width, bar)
    full = _total(columns, widths, kept, bar)
    titles = [Text(column.title, style="dim") for column in columns]
    lines = [_groups(columns, widths, kept, bar), _line(columns, widths, kept, titles, bar)]
    for row in rows:
        lines.append(Text(rule * full, style="dim") if row is None else _line(columns, widths, kept, row, bar))
    return [line for line in lines if line.plain.strip()]


def rules_of(console: Console) -> dict[str, str]:
    """What `lay_out` draws rules and bars with, where that must be ASCII."""
    return {} if knows_blocks(console) else {"rule": "-", "bar": " | "}


def left_out(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[str]:
    """The titles of the columns for which there is no room."""
    kept = _kept(columns, _widths(columns, rows), width, BAR)
    return [column.title for at, column in enumerate(columns) if at not in kept]


def _widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [
        max(len(column.title), min(column.most, max((row[at].cell_len for row in rows if row), default=0)))
        for at, column in enumerate(columns)
    ]


def _kept(columns: Sequence[Column], widths: Sequence[int], width: int, bar: str) -> list[int]:
    kept = list(range(len(columns)))
    while _total(columns, widths, kept, bar) > width:
        spare = max(kept, key=lambda i: (columns[i].spare, i))
        if not columns[spare].spare:
            break
        kept.remove(spare)
    return kept


def _between(columns: Sequence[Column], kept: Sequence[int], at: int, bar: str) -> str:
    """What stands before the column at place `at` of those kept."""
    if at == 0:
        return ""
    same = columns[kept[at]].group == columns[kept[at - 1]].group
    return GAP if same else bar


def _total(columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int], bar: str) -> int:
    return sum(widths[i] + len(_between(columns, kept, at, bar)) for at, i in enumerate(kept))


def _line(
    columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int], cells: Sequence[Text], bar: str
) -> Text:
    line = Text()
    for at, i in enumerate(kept):
        cell = cells[i].copy()
        cell.truncate(widths[i], overflow="ellipsis")
        space = " " * (widths[i] - cell.cell_len)
        line.append(_between(columns, kept, at, bar), style="dim")
        line.append_text(Text.assemble(space, cell) if columns[i].right else Text.assemble(cell, space))
    line.rstrip()
    return line


def _groups(columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int], bar: str) -> Text:
    """The names of the groups, each above its first column."""
    line, at = Text(), 0
    while at < len(kept):
        group, end = columns[kept[at]].group, at
        room = 0
        while end < len(kept) and columns[kept[end]].group == group:
            room += widths[kept[end]] + (len(_between(columns, kept, end, bar)) if end > at else 0)
            end += 1
        line.append(_between(columns, kept, at, bar), style="dim")
        name = Text(group, style="bold")
        name.truncate(room, overflow="ellipsis", pad=True)
        line.append_text(name)
        at = end
    line.rstrip()
    return line
