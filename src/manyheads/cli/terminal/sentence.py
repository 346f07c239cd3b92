"""A sentence with a link between two of its words, drawn in characters: an arc above, an arrow where it points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from manyheads.cli.terminal.console import clean, knows_blocks

INDENT = 2
ARC = "╭─╮│▼"
ASCII_ARC = "+-+|v"
DOTS = "…"
LINK_COLOUR = "default"  # of a head without a role: no other role's


def linked_sentence(words: Sequence[Any], link: Any, label: str, colour: str, console: Console) -> list[Text]:
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
