"""Where the command writes: stdout for data, stderr for talk, at most 100 columns, colour only for people.

Colour is off where stdout is not a terminal or NO_COLOR is set, on where FORCE_COLOR is. Whatever comes from outside (a
text, a token, a file's name) is printed through `clean`: it may hold anything, escape sequences too.

A sentence with a link between two of its words, drawn in characters: an arc above, an arrow where it points.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar, runtime_checkable

from rich.console import Console
from rich.text import Text

from manyheads import __version__
from manyheads.roles.words import UNLABELLED, hue

if TYPE_CHECKING:
    from manyheads.recording import HeadLink, SpacedWord
    from manyheads.roles import HeadRole

WIDTH = 100
JOINERS = "\u200c\u200d"  # of signs (a family of emoji, letters of Persian): they show nothing, and are left out
NOT_SHOWN = ("Cc", "Cf", "Cs", "Co", "Cn")  # Unicode's categories of control, format and unassigned characters
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
NARROWEST = 60  # below this, lines are cut rather than wrapped into ribbons


class ClosedPipe(Exception):
    """Whoever read our output has gone: end quietly. (No OSError: nobody on the way may take it for one.)"""


@runtime_checkable
class CanBeSaved(Protocol):
    """A result with a table that can be written."""

    def save(self, path: Path, /) -> object: ...


Saved = TypeVar("Saved", bound=CanBeSaved)


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise ClosedPipe from None


def emit(text: str) -> None:
    """Write plain data to stdout."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ClosedPipe from None


def emit_document(content: dict[str, Any]) -> None:
    """Write one JSON document, the version first: no NaN, and UTF-8 as ASCII escapes, for any reader and terminal."""
    emit(json.dumps({"manyheads": __version__, **content}, indent=1, allow_nan=False))


def print_whole(lines: Iterable[str | Text]) -> None:
    """Write lines to stdout as long as they are: a terminal wraps them, a pipe gets each as one."""
    console = stdout_console()
    for line in lines:
        console.print(line, soft_wrap=True)


def print_written(*paths: object) -> None:
    """A line for each file that was written; None: it was not asked for."""
    print_whole(f"wrote {clean(str(path))}" for path in paths if path is not None)


def hand_out(
    result: Saved,
    save: Path | None,
    draw: Callable[[Saved, Path], object],
    picture: Path | None,
    shown: dict[str, Any] | list[Text],
) -> None:
    """Write a result's table and its picture where files were named for them, and show a JSON document or lines."""
    if save is not None:
        result.save(save)
    if picture is not None:
        draw(result, picture)
    if isinstance(shown, dict):
        emit_document(shown)
    else:
        print_whole(shown)
        print_written(save, picture)


def print_listing(noun: str, entries: Iterable[Any], as_json: bool, above: Sequence[str], below: Sequence[str]) -> None:
    """What there is to run by name, each with its meaning and how long it takes; or as JSON, under `noun`."""
    entries = list(entries)
    if as_json:
        rows = [{field: getattr(entry, field) for field in ("name", "meaning", "takes")} for entry in entries]
        emit(json.dumps({noun: rows}, indent=1))
        return
    width = max(len(entry.name) for entry in entries)
    lines = [f"  {entry.name:<{width}}  {entry.meaning} ({entry.takes})" for entry in entries]
    print_whole([*above, *lines, "", *below])


def print_cut(lines: Iterable[Text], console: Console) -> None:
    """Write lines, each cut where the console ends, but for those that say `overflow="ignore"`: commands to copy."""
    for line in lines:
        is_whole = line.overflow == "ignore"
        console.print(line, no_wrap=True, overflow=line.overflow or "ellipsis", crop=not is_whole, soft_wrap=is_whole)


def print_sections(sections: Iterable[list[Text]], console: Console) -> None:
    """Write sections of cut lines, an empty line between them; one without lines is left out."""
    for index, lines in enumerate(filter(None, sections)):
        if index:
            console.print()
        print_cut(lines, console)


def stdout_console() -> Console:
    """The console for data, as stdout is now: at most `WIDTH` columns, a terminal's own width below that."""
    return _console("stdout")


def stderr_console() -> Console:
    """The same for messages, on stderr."""
    return _console("stderr")


def _console(name: Literal["stdout", "stderr"]) -> Console:
    stream = getattr(sys, name)
    stream = io.StringIO() if stream is None else stream  # closed by the shell: `2>&-`
    terminal = stream.isatty()
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for what it lacks
    options: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    console = _Console(file=stream, width=None if terminal else WIDTH, **options)
    console.width = max(NARROWEST, min(console.width, WIDTH))
    return console


def knows_blocks(console: Console) -> bool:
    """Whether shades and rules can be drawn, or only ASCII."""
    return (console.encoding or "").lower().startswith("utf")


def clean(text: str) -> str:
    """Text on one line and without anything that a terminal would obey."""
    # White space comes first: a line break is a control character (Cc) itself, and is to become a blank.
    visible = (
        " " if char.isspace() else REPLACEMENT if unicodedata.category(char) in NOT_SHOWN else char
        for char in text
        if char not in JOINERS
    )
    return " ".join("".join(visible).split())


def shortened(text: str, width: int) -> str:
    """At most `width` columns of a text, whole words where possible, with an ellipsis where some is left out."""
    text = clean(text)
    if Text(text).cell_len <= width:
        return text
    cut = Text(text)
    cut.truncate(width - 1)
    words = cut.plain.rsplit(" ", 1)
    return f"{words[0] if len(words[0]) > width // 2 else cut.plain.rstrip()}…"


def aligned(values: Sequence[float], digits: int = 3, most: int = 6) -> list[str]:
    """The numbers of one column, all with the same number of decimals, so that they can be compared by eye.

    As many as give the largest `digits` digits and the smallest one, up to `most`; smaller columns as powers of ten.
    """
    sizes = [abs(value) for value in values if math.isfinite(value) and value]
    if not sizes:
        return [f"{value:g}" for value in values]
    needed = max(digits - 1 - math.floor(math.log10(max(sizes))), -math.floor(math.log10(min(sizes))), 0)
    if max(sizes) < 10**-most:
        return [f"{value:.{digits - 1}e}" for value in values]
    return [f"{value:.{min(needed, most)}f}" for value in values]


def hanging(label: Text, words: str, width: int) -> list[Text]:
    """A label and words beside it, wrapped under themselves."""
    rows = textwrap.wrap(words, max(20, width - label.cell_len), break_on_hyphens=False) or [""]
    starts = [label, *(Text(" " * label.cell_len) for _ in rows[1:])]
    return [Text.assemble(start, row) for start, row in zip(starts, rows, strict=True)]


def wrapped(words: str, console: Console, style: str = "dim") -> list[Text]:
    """Words in as many lines as they take."""
    return [Text(line, style=style) for line in textwrap.wrap(words, console.width)]


def offered(offers: Sequence[tuple[str, str]], console: Console) -> list[Text]:
    """Commands to copy, each with what it shows beside it; below it where there is no room.

    One that is too long for a line goes on in the next, as a shell reads it. One that holds what cannot be shown as it
    is (a control character in a text) is not offered.
    """
    offers = [(command, purpose) for command, purpose in offers if clean(command) == command]
    if not offers:
        return []
    wide = max(len(command) for command, _ in offers)
    has_room = 4 + wide + max(len(purpose) for _, purpose in offers) <= console.width
    lines = [Text("Try next", style="bold")]
    for command, purpose in offers:
        if has_room:
            lines.append(Text.assemble(f"  {command:<{wide}}", (f"  {purpose}", "dim")))
            continue
        # The blanks before options at which the command may be broken, so that its first line has room.
        outside = re.sub(r"\"[^\"]*\"|'[^']*'", lambda quoted: "x" * len(quoted[0]), command)
        places = [match.start() for match in re.finditer(" --", outside) if match.start() <= console.width - 4]
        if 2 + len(command) > console.width and places:
            parts = [f"  {command[: places[-1]]} \\", f"      {command[places[-1] + 1 :]}"]
        else:
            parts = [f"  {command}"]
        lines += [Text(part, overflow="ignore") for part in parts]
        lines.append(Text(f"      {purpose}", style="dim"))
    return lines


# ---------------------------------------------------------------------------------------------------------------------
# Aligned columns under two lines of headings, cut to the width there is: a table that never wraps.
#
# Figures stand right, words left. Columns belong to groups, with a bar between groups and the group's name above it.
# Where the page is too narrow, whole columns go, those with the highest `spare` first.


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


def lay_out(columns: Sequence[Column], rows: Sequence[Row], console: Console, *, bar: str = BAR) -> list[Text]:
    """The table, a line an entry. `bar`: what stands between groups."""
    rule = "─"
    if not knows_blocks(console):
        rule, bar = "-", bar.replace("│", "|")
    widths = _widths(columns, rows)
    visible = _kept(columns, widths, console.width, bar)
    full = _total(columns, widths, visible, bar)
    titles = [Text(column.title, style="dim") for column in columns]
    # The names of the groups, each above its first column.
    groups, column_start = Text(), 0
    while column_start < len(visible):
        group, end = columns[visible[column_start]].group, column_start
        room = 0
        while end < len(visible) and columns[visible[end]].group == group:
            room += widths[visible[end]] + (len(_between(columns, visible, end, bar)) if end > column_start else 0)
            end += 1
        groups.append(_between(columns, visible, column_start, bar), style="dim")
        name = Text(group, style="bold")
        name.truncate(room, overflow="ellipsis", pad=True)
        groups.append_text(name)
        column_start = end
    groups.rstrip()
    lines = [groups, _line(columns, widths, visible, titles, bar)]
    for row in rows:
        lines.append(Text(rule * full, style="dim") if row is None else _line(columns, widths, visible, row, bar))
    return [line for line in lines if line.plain.strip()]


def lay_out_heads(
    columns: Sequence[Column], heads: Sequence[Any], cells: Sequence[Sequence[Text]], console: Console
) -> tuple[list[Text], str]:
    """A table with a row for each head, its name first, a rule before each layer; and what had no room, in words."""
    rows: list[Row] = []
    layer = None
    for head, head_cells in zip(heads, cells, strict=True):
        if (head.stack, head.layer) != layer:
            rows.append(None)
            layer = (head.stack, head.layer)
        rows.append([Text(str(head), style="bold"), *head_cells])
    visible = _kept(columns, _widths(columns, rows), console.width, BAR)
    hidden = [column.title for index, column in enumerate(columns) if index not in visible]
    remark = f"No room here for {', '.join(hidden)}: --json and --out hold all." if hidden else ""
    return lay_out(columns, rows, console), remark


def _widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [
        max(len(column.title), min(column.most, max((row[index].cell_len for row in rows if row), default=0)))
        for index, column in enumerate(columns)
    ]


def _kept(columns: Sequence[Column], widths: Sequence[int], width: int, bar: str) -> list[int]:
    visible = list(range(len(columns)))
    while _total(columns, widths, visible, bar) > width:
        spare = max(visible, key=lambda i: (columns[i].spare, i))
        if not columns[spare].spare:
            break
        visible.remove(spare)
    return visible


def _between(columns: Sequence[Column], visible: Sequence[int], place: int, bar: str) -> str:
    """What stands before the column at `place` of the visible ones."""
    if place == 0:
        return ""
    return GAP if columns[visible[place]].group == columns[visible[place - 1]].group else bar


def _total(columns: Sequence[Column], widths: Sequence[int], visible: Sequence[int], bar: str) -> int:
    return sum(widths[i] + len(_between(columns, visible, place, bar)) for place, i in enumerate(visible))


def _line(
    columns: Sequence[Column], widths: Sequence[int], visible: Sequence[int], cells: Sequence[Text], bar: str
) -> Text:
    line = Text()
    for place, i in enumerate(visible):
        cell = cells[i].copy()
        cell.truncate(widths[i], overflow="ellipsis")
        space = " " * (widths[i] - cell.cell_len)
        line.append(_between(columns, visible, place, bar), style="dim")
        line.append_text(Text.assemble(space, cell) if columns[i].right else Text.assemble(cell, space))
    line.rstrip()
    return line


# ---------------------------------------------------------------------------------------------------------------------
# A head's weights as a small map in a terminal: the larger beside the largest, the darker.


SHADES, ASCII_SHADES = "·░▒▓█", ".:+x#"
STEPS = (0.1, 0.35, 0.6, 0.85)  # of the largest weight: where one shade ends and the next begins


def shades_of(console: Console) -> str:
    """The marks of a map from the smallest weights to the largest."""
    return SHADES if knows_blocks(console) else ASCII_SHADES


def legend(largest: float, shades: str) -> Text:
    """What each shade means, in percent."""
    bounds = [f"{100 * step * largest:.2g}%" for step in STEPS]
    words = [f"under {bounds[0]}", *(f"from {bound}" for bound in bounds)]
    return Text("   ".join(f"{mark} {word}" for mark, word in zip(shades, words, strict=True)), style="dim")


def cells_of(values: Sequence[float], largest: float, shades: str) -> list[str]:
    """A row of the map. Two columns of the terminal a cell, so that cells are about square."""
    indices = (sum(value >= step * largest for step in STEPS) if largest > 0 else 0 for value in values)
    return ["  " if math.isnan(value) else shades[i] * 2 for value, i in zip(values, indices, strict=True)]


def drawn(cells: Sequence[str], shades: str, colour: str = "") -> Text:
    """A row of cells as a line, those next to nothing faint."""
    line = Text("".join(cells).rstrip(), style=colour)
    line.highlight_regex(f"{re.escape(shades[0])}+", "dim")
    return line


INDENT = 2
ARC = "╭─╮│▼"
ASCII_ARC = "+-+|v"
DOTS = "…"
LINK_COLOUR = "default"  # of a head without a role: no other role's


def link_colour(role: HeadRole | None) -> str:
    """The colour of a link of a head with this role, or none."""
    return LINK_COLOUR if role is None or role.name == UNLABELLED else hue(role.name)


def linked_sentence(
    words: Sequence[SpacedWord], link: HeadLink, label: str, colour: str, console: Console
) -> list[Text]:
    """Three lines: the arc of a `HeadLink`, its ends, and as many words as fit, with what stands aside only if linked.

    `words` are the text's `spaced_words`. `label` stands in the arc, or beside a short one.
    """
    blocks, ends_of_link = knows_blocks(console), (link.query, link.key)
    words = [word for word in words if not word.aside or word.name in ends_of_link]
    query, key = (next(index for index, word in enumerate(words) if word.name == name) for name in ends_of_link)
    first, last = sorted((query, key))
    dots = DOTS if blocks else "..."
    widths = [Text(clean(word.text)).cell_len + word.blank for word in words]
    visible = _fitting(widths, first, last, console.width - INDENT - 2 * (len(dots) + 1))
    line, middles = Text(" " * INDENT), {}
    before = -1
    for index in visible:
        if index != before + 1:
            line.append(f" {dots}" if before >= 0 else dots, style="dim")
        apart = words[index].blank or index != before + 1 or words[before].aside
        line.append(" " if apart and line.cell_len > INDENT else "")
        begin = line.cell_len
        line.append(clean(words[index].text), style=f"bold {colour}".strip() if index in (query, key) else "")
        middles[index] = (begin + line.cell_len - 1) // 2
        before = index
    if before != len(words) - 1:
        line.append(f" {dots}", style="dim")
    corner, flat, end, side, arrow = ARC if blocks else ASCII_ARC
    left, right = middles[first], middles[last]
    room = right - left - 1
    arc = f" {label} ".center(room, flat) if len(label) + 4 <= room else flat * room
    beside = "" if len(label) + 4 <= room else f" {label}"
    ends = {middles[query]: side, middles[key]: arrow}
    return [
        Text.assemble(" " * left, (f"{corner}{arc}{end}", colour), (beside, colour)),
        Text.assemble(" " * left, (ends[left] + " " * room + ends[right], colour)),
        line,
    ]


def _fitting(widths: Sequence[int], first: int, last: int, room: int) -> list[int]:
    """The words that fit: those between both ends, and then those around; else those nearest to either end."""
    chosen, used = {first, last}, widths[first] + widths[last]
    if sum(widths[first : last + 1]) <= room:
        order = [*range(first, last + 1)]
        around = zip(range(first - 1, -len(widths), -1), range(last + 1, last + len(widths)), strict=False)
        order += [index for pair in around for index in pair]
    else:
        order = [index for step in range(1, last - first) for index in (first + step, last - step)]
    for index in order:
        if not 0 <= index < len(widths) or index in chosen:
            continue
        if used + widths[index] > room:
            break
        chosen.add(index)
        used += widths[index]
    return sorted(chosen)
