"""`manyheads head L3H1 "text" --say it`: what one head says at one word, in a sentence and in its two bars.

The look is where its weights go; what is heard is what the words' values make of the output. The sentence is the one
that the studio's scene ends with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from manyheads import circuits
from manyheads.base import percent
from manyheads.cli.terminal.console import clean, knows_blocks, link_colour, shortened, wrapped

if TYPE_CHECKING:
    from manyheads.roles import HeadRole

MOST_VOICES = 8
BAR = 20  # columns of all of a look, or of an output
NAME_WIDTH = 16


def saying_lines(output: circuits.HeadOutput, role: HeadRole | None, console: Console) -> list[list[Text]]:
    """The sentence, the two bars of each word, and what is added to the stream."""
    colour = link_colour(role)
    bar = "█" if knows_blocks(console) else "#"
    voices = sorted(output.voices, key=lambda voice: -voice.look)
    heard_more = sorted(voices[MOST_VOICES:], key=lambda voice: -abs(voice.heard) if voice.heard == voice.heard else 0)
    # The loudest is shown, however little it is looked at.
    shown = voices[:MOST_VOICES]
    if heard_more and abs(heard_more[0].heard) > min((abs(voice.heard) for voice in shown), default=0.0):
        shown = [*shown[:-1], heard_more[0]]
    figures = [(voice.name.removeprefix("the "), voice.look, voice.heard) for voice in shown]
    if output.missing:
        figures.append(("nobody", output.missing, math.nan))
    wide = max([len("nobody"), *(Text(shortened(name, NAME_WIDTH)).cell_len for name, *_ in figures)])
    rows = [Text.assemble(" " * (wide + 2), (f"{'looks':<{BAR + 10}}", "bold"), ("is heard", "bold"))]
    for name, look, heard in figures:
        row = Text.assemble("  ", shortened(clean(name), NAME_WIDTH))
        row.append(" " * (wide + 2 - row.cell_len))
        for value in (look, heard):
            length = min(BAR, round(BAR * max(0.0, value))) if value == value else 0
            row.append(f"{percent(value, 1):>7}  ")
            row.append(bar * length, style=colour)
            row.append(" " * (BAR - length + 1))
        row.rstrip()
        rows.append(row)
    left = len(voices) - len(shown)
    if left:
        rows.append(Text(f"  and {left} more words: --json", style="dim"))
    sections = [
        [*wrapped(clean(output.sentence), console, "bold"), *wrapped(clean(output.figures), console)],
        rows,
    ]
    if output.adds is None or output.before is None:
        sections.append(wrapped(clean(f"What it adds to the stream is not known: {output.because}."), console))
    else:
        added, before = (float((x**2).sum() ** 0.5) for x in (output.adds, output.before))
        words = f"It adds a vector of length {added:.3g} to a stream of length {before:.3g} at {output.word}"
        if output.wrote is not None:
            words += f": {percent(output.wrote, 1)} of what layer {output.head.layer} adds there"
        sections.append(wrapped(clean(f"{words}."), console))
    return sections
