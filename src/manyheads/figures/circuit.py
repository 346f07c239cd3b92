"""A circuit as a picture: layers upward, its heads as dots on the model's whole row of heads, edges by weight.

Read it from below: a line goes from the head that speaks to the one that listens, and its colour says by what the
listener hears it, its queries, keys or values. Wide lines carry much of the answer; below a tenth of the strongest
nothing is drawn. A dot's area is what the circuit loses without that head.
"""

from __future__ import annotations

import os

from manyheads.circuits import Circuit
from manyheads.figures.palette import FADED, HAIRLINE
from manyheads.figures.paper import BODY, SMALL, Sheet, kind_of
from manyheads.heads import Head
from manyheads.roles.words import INK, role_style

COLUMN, ROW = 46, 84
TALLEST, LEAST_ROW = 720, 20  # rows of a deep model lie closer, so that a screen holds them
MARGIN, TOP, LINE, RULER = 32, 112, 20, 44
LEAST_WIDTH = 620
LEAST_SHARE = 0.1  # of the strongest edge: weaker ones are not drawn
WIDEST, LARGEST, SMALLEST = 6.0, 12.0, 4.0  # of a line, and radii of dots, in pixels
COLOURS = {"q": "duplicate token", "k": "local", "v": "induction"}
"""The role whose colour a channel has: three that are told apart in any sight."""
WORDS = {"q": "into its queries", "k": "into its keys", "v": "into its values"}
STEPS = 24  # of a curve


def save_circuit(circuit: Circuit, path: str | os.PathLike[str]) -> None:
    """Draw a circuit and, where they were measured, its edges; .png, .svg or .pdf. Errors: FileAccessError."""
    kind_of(path)
    draw_circuit(circuit).save(path)


def draw_circuit(circuit: Circuit) -> Sheet:
    """The drawing that `save_circuit` writes."""
    layers = list(dict.fromkeys((site.stack, site.layer) for site in circuit.spec.sites))
    across = max(site.num_heads for site in circuit.spec.sites)
    width = max(LEAST_WIDTH, 2 * MARGIN + RULER + COLUMN * across)
    row_height = max(LEAST_ROW, min(ROW, TALLEST / len(layers)))
    bottom = round(TOP + row_height * len(layers))
    sheet = Sheet(width, bottom + 5 * LINE + MARGIN)
    sheet.heading(
        MARGIN,
        f"{circuit.notes['model']}: {len(circuit.heads)} of {len(circuit.spec.heads)} heads keep the answer",
        f"{circuit.metric}: {circuit.faithfulness:.2f} of the gap is kept, {circuit.without:.2f} is left without them",
    )

    def place(head: Head) -> tuple[float, float]:
        row = layers.index((head.stack, head.layer))
        return MARGIN + RULER + COLUMN * (head.index + 0.5), bottom - row_height * (row + 0.5)

    for head in circuit.spec.heads:  # the heads that are no part of it, so that one sees how few it takes
        x, y = place(head)
        sheet.dots(sheet.axes, [(x, y)], HAIRLINE, SMALLEST - 1, 1.0)
        if not head.index:
            sheet.text(
                MARGIN, y + 4, f"{head.stack}:L{head.layer}" if head.stack else f"L{head.layer}", SMALL, colour=FADED
            )
    strongest = abs(circuit.edges[0].value) if circuit.edges else 0.0
    drawn = [edge for edge in circuit.edges if abs(edge.value) >= LEAST_SHARE * strongest > 0]
    for edge in drawn[::-1]:
        (x0, y0), (x1, y1) = place(edge.senders[0]), place(edge.receiver)
        bend = {"q": -14, "k": 0, "v": 14}[edge.channel]  # lines of one pair of heads lie beside each other
        points = [
            (x0 + (x1 - x0) * t + 4 * bend * t * (1 - t), y0 + (y1 - y0) * t)
            for t in (step / STEPS for step in range(STEPS + 1))
        ]
        colour = role_style(COLOURS[edge.channel]).colour
        sheet.curve(points, colour, WIDEST * abs(edge.value) / strongest, alpha=0.85, dashed=edge.value < 0)
    largest = max((abs(cost) for cost in circuit.costs.tolist()), default=0.0) or 1.0
    for head, cost in zip(circuit.heads, circuit.costs.tolist(), strict=True):
        x, y = place(head)
        radius = max(SMALLEST, LARGEST * (abs(cost) / largest) ** 0.5)
        sheet.dots(sheet.axes, [(x, y)], INK, radius, 1.0)
        sheet.text(x + radius + 4, y + 4, f"H{head.index}", BODY, weight="bold")
    x, y = float(MARGIN), bottom + LINE
    for channel in [name for name in WORDS if any(edge.channel == name for edge in drawn)]:
        sheet.curve([(x, y - 4), (x + 22, y - 4)], role_style(COLOURS[channel]).colour, 3)
        x += 28 + sheet.text(x + 28, y, WORDS[channel], SMALL, colour=FADED) + 24
    words = f"Lines from {LEAST_SHARE * strongest:.3f} to {strongest:.3f} of the gap; dashed: against the answer."
    if not circuit.edges:
        words = "Edges were not measured (edges=True)."
    beside = "No random sets were measured."
    if circuit.random:
        low, high = min(circuit.random), max(circuit.random)
        beside = f"{len(circuit.random)} random sets of the same size keep {low:.2f} to {high:.2f}."
    sheet.notes(MARGIN, y + LINE, [words, "A dot's area is what the circuit loses without that head.", beside], LINE)
    return sheet
