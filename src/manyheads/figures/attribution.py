"""What adds to a logit: every head as a cell of layers x heads, and the components that add or take most as bars.

Ink adds to the answer, rust takes from it; a cell's tint is its share of the largest head. Bars are in logits, heads
among feed-forwards, embeddings and biases, so that one sees whether heads matter at all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from manyheads.circuits import Attribution
from manyheads.figures.palette import FADED, HAIRLINE, inked
from manyheads.figures.paper import BODY, SMALL, Sheet, kind_of
from manyheads.heads import layer_name
from manyheads.roles.words import INK

TAKES = "#A8401F"
WIDTH, MARGIN, TOP = 980, 36, 112
CELL, LARGEST = 40, 420  # pixels of a cell, and of the grid's width
BARS, PITCH, BAR_LEFT = 14, 24, 700


def save_attribution(result: Attribution, path: str | os.PathLike[str]) -> None:
    """Draw an attribution; .png, .svg or .pdf. Errors: FileAccessError."""
    kind_of(path)
    draw_attribution(result).save(path)


def draw_attribution(result: Attribution) -> Sheet:
    """The drawing that `save_attribution` writes."""
    layers = list(dict.fromkeys((head.stack, head.layer) for head in result.heads))
    across = 1 + max(head.index for head in result.heads)
    cell = min(CELL, LARGEST // across) if across <= LARGEST else 1
    order = np.argsort(-np.abs(result.values), kind="stable")[:BARS]
    height = max(TOP + cell * len(layers), TOP + PITCH * len(order)) + 84
    sheet = Sheet(WIDTH, height)
    named = result.answers[0] if len(set(result.answers)) == 1 else f"{len(set(result.answers))} answers"
    over = f"{len(result.logit)} text{'s' * (len(result.logit) > 1)}"
    title = f"{result.spec.name}: what adds to the logit of {named}"
    sheet.heading(MARGIN, title, f"{result.logit.mean():.3f}, {over}; straight along the residual stream")
    table = np.full((len(layers), across), np.nan)
    for head in result.heads:
        table[layers.index((head.stack, head.layer)), head.index] = result[head]
    most = float(np.nanmax(np.abs(table))) or 1.0
    colours = inked(np.abs(table) / most)
    rust = np.array([int(TAKES[i : i + 2], 16) for i in (1, 3, 5)])
    paper = colours[..., :3].astype(float)
    share = np.nan_to_num(np.abs(table) / most)[..., None]
    takes = np.broadcast_to((table < 0)[..., None], paper.shape)
    tinted = inked(np.zeros_like(table))[..., :3] * (1 - share) + rust * share
    colours[..., :3] = np.where(takes, tinted, paper).round().astype(np.uint8)
    left = MARGIN + 64
    sheet.text(left, TOP - 16, "heads, by layer", BODY, weight="bold")
    sheet.picture(left, TOP, cell * across, cell * len(layers), colours)
    step = max(1, -(-14 // cell))
    for row, (stack, layer) in enumerate(layers):
        if row % step == 0:
            name = layer_name(stack, layer)
            sheet.text(left - 8, TOP + cell * (row + 0.5) + 4, name, SMALL, align="right", width=90, colour=FADED)
    base = TOP + cell * len(layers)
    for column in range(0, across, max(1, -(-22 // cell))):
        sheet.text(left + cell * (column + 0.5), base + 16, str(column), SMALL, align="center", colour=FADED)
    rows = [(result.components[index], float(result.values[index])) for index in order]
    signed_bars(sheet, "all components", rows, BAR_LEFT, TOP, WIDTH - MARGIN - BAR_LEFT)
    words = f"Ink adds, rust takes; darkest: {most:.3g}. Rows sum to the logit; {result.notes['norms']}."
    sheet.text(MARGIN, height - 24, words, SMALL, colour=FADED, width=WIDTH - 2 * MARGIN)
    return sheet


def signed_bars(sheet: Sheet, title: str, rows: Sequence[tuple[str, float]], left: int, top: int, width: int) -> None:
    """Bars from a common zero, in ink what adds and in rust what takes, each with its name before it and its number."""
    values = [value for _, value in rows]
    adds, takes = max(0.0, *values, 0.0), max(0.0, *(-value for value in values), 0.0)
    scale = (width - 52) / ((adds + takes) or 1.0)
    zero = left + scale * takes
    sheet.text(left - 8, top - 16, title, BODY, align="right", weight="bold")
    sheet.lines([((zero, top - 4), (zero, top + PITCH * len(rows)))], HAIRLINE)
    for place, (name, value) in enumerate(rows):
        y = top + PITCH * place
        sheet.text(left - 8, y + 14, name, SMALL, align="right", width=170)
        start, end = sorted((zero, zero + scale * value))
        sheet.box(start, y + 3, end - start, PITCH - 8, fill=INK if value > 0 else TAKES)
        sheet.text(end + 6, y + 14, f"{value:+.2f}", SMALL, colour=FADED)
