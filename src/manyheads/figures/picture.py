"""One head on one picture: the picture as the model reads it, and beside it the same with the head's weights on top.

On the right the picture is faded to light grey, so that it can be recognised and nothing of it is as dark as a weight;
each patch is inked over it, the more the more weight it has, in the one ramp of all maps (even to the eye, no rainbow).
The patch that looks is framed. What goes to tokens that are not patches (class token, registers) is said below in
figures: it is part of the same row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64, UInt8
from numpy import ndarray

from manyheads.errors import ShapeError
from manyheads.figures.palette import FADED, HAIRLINE, PAPER, inked
from manyheads.figures.paper import SMALL, Sheet, kind_of, on_host, text_width
from manyheads.roles.words import role_style

PANEL = 460  # pixels that a picture's longer side is enlarged to, by a whole factor; larger ones stay as they are
MOST = 1_040  # and no larger than this: then by every second, third ... pixel
GAP, MARGIN, LINE = 28, 32, 20
BAR, BAR_ROOM, BAR_HEIGHT = 14, 84, 260
TITLE = 19
FADE = (0.74, 0.97)  # the greys that the picture's black and white become under the weights
MEDIUM = 0.9  # the grey that the scale is drawn on
MOST_INK = 0.92  # of the picture hidden by full ink: what lies below still shows a little
FRAME = role_style("duplicate token").colour  # vermilion: in no part of the ramp
NEEDED_WIDTH = 560
SCALE = "Ink goes by the square root of the weight, so that small ones show; full ink is this head's largest."


def save_picture(
    picture: UInt8[ndarray, "h w rgb"],
    weights: object,
    pixels: Mapping[tuple[int, int], tuple[slice, slice]],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str = "",
    framed: tuple[int, int] | None = None,
    others: Mapping[str, float] | None = None,
) -> None:
    """Draw weights `Float[rows columns]` on the pixels that each patch covers; .png, .svg or .pdf.

    - `picture`: red, green and blue of each pixel, 0 to 255.
    - `weights`: of each patch, 0 to 1.
    - `pixels`: each patch's place in the picture, by its row and column.
    - `path`: the file.
    - `title`: above the drawing.
    - `subtitle`: below the title.
    - `framed`: row and column of the patch that looks.
    - `others`: weights of positions that are not patches, by name.

    Errors: FileAccessError; ShapeError for weights that are not a grid.
    """
    kind_of(path)
    grid = np.asarray(on_host(weights), dtype=np.float64)
    if grid.ndim != 2 or not grid.size or len(pixels) != grid.size:
        raise ShapeError(f"weights of the shape {grid.shape} are not one for each of {len(pixels)} patches.")
    peak = float(grid.max()) or 1.0
    # large pictures lose pixels and small ones are enlarged by a whole factor: nothing is smoothed in between
    skip = -(-max(picture.shape[:2]) // MOST)
    left, right = picture[::skip, ::skip], overlaid(picture, grid / peak, pixels)[::skip, ::skip]
    factor = max(1, PANEL // max(left.shape[:2]))
    height, width = left.shape[0] * factor, left.shape[1] * factor
    top = MARGIN + 44 + 18
    notes = [SCALE, *["The framed patch is the one that looks."] * (framed is not None)]
    if others:
        # What the picture cannot show, in figures; lines no longer than they may be.
        line = f"On patches {100 * float(grid.sum()):.1f}%; on other tokens: "
        for index, (name, weight) in enumerate(others.items(), 1):
            part = f"{name} {100 * weight:.1f}%{'.' if index == len(others) else ', '}"
            if text_width(line + part, SMALL) > NEEDED_WIDTH:
                notes.append(line.rstrip())
                line = ""
            line += part
        notes.append(line)
    bottom = top + max(height, 120) + 26
    across = max(2 * width + GAP + BAR_ROOM + GAP, NEEDED_WIDTH)
    sheet = Sheet(across + 2 * MARGIN, bottom + LINE * len(notes) + MARGIN - LINE + 4)
    sheet.heading(MARGIN, title, subtitle, size=TITLE, below=37)
    second = MARGIN + width + GAP
    for x, image in ((MARGIN, left), (second, right)):
        sheet.picture(x, top, width, height, _opaque(image))
        sheet.box(x - 0.5, top - 0.5, width + 1, height + 1, edge=HAIRLINE)
        if framed is not None:
            down, along = pixels[framed]
            scale = factor / skip
            for colour, line_width in ((PAPER, 5.0), (FRAME, 2.5)):  # light around it: seen on every picture
                sheet.box(
                    x + along.start * scale, top + down.start * scale,
                    (along.stop - along.start) * scale, (down.stop - down.start) * scale, edge=colour, line=line_width,
                )  # fmt: skip
    # The scale: full ink on top, and the weight at each mark.
    x, bar_height = second + width + GAP, min(max(height, 100), BAR_HEIGHT)
    sheet.text(x, top - 8, "weight", SMALL, colour=FADED)
    shares = np.linspace(1, 0, bar_height)[:, None] ** 2
    sheet.picture(x, top, BAR, bar_height, _opaque(_inked_over(np.full_like(shares, MEDIUM), shares)))
    for share in (1.0, 0.5, 0.1, 0.0):
        y = top + bar_height * (1 - share**0.5)
        tick_label = f"{100 * share * peak:.2g}%" if share else "0"
        sheet.text(x + BAR + 9, y + 4, tick_label, SMALL)
        sheet.lines([((x + BAR + 1, y), (x + BAR + 5, y))], FADED)
    sheet.notes(MARGIN, bottom, notes, LINE)
    sheet.save(path)


def overlaid(
    picture: UInt8[ndarray, "h w rgb"],
    shares: Float64[ndarray, "row column"],
    pixels: Mapping[tuple[int, int], tuple[slice, slice]],
) -> UInt8[ndarray, "h w rgb"]:
    """The picture in light grey, each patch inked by its share of the largest weight (the mean where they overlap)."""
    total, count = np.zeros(picture.shape[:2]), np.zeros(picture.shape[:2])
    for (row, column), place in pixels.items():
        total[place] += shares[row, column]
        count[place] += 1
    # Rec. 709's weights of red, green and blue: as light as the colour is to the eye
    grey = picture @ np.array([0.2126, 0.7152, 0.0722]) / 255
    return _inked_over(FADE[0] + (FADE[1] - FADE[0]) * grey, total / np.maximum(count, 1))


def _inked_over(grey: Float64[ndarray, "h w"], shares: Float64[ndarray, "h w"]) -> UInt8[ndarray, "h w rgb"]:
    """Ink on grey. It thins out towards 0, so that parts that nobody looks at stay picture."""
    ink = np.sqrt(shares.clip(0, 1))
    hidden = MOST_INK * np.sqrt(ink)[..., None]
    colours = inked(ink)[..., :3] / 255
    return ((grey[..., None] * (1 - hidden) + colours * hidden) * 255).round().astype(np.uint8)


def _opaque(image: UInt8[ndarray, "h w rgb"]) -> UInt8[ndarray, "h w rgba"]:
    return np.concatenate([image, np.full((*image.shape[:2], 1), 255, np.uint8)], -1)
