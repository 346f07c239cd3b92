"""A whole model in one picture: layers x heads, each cell the head's pooled map, its frame the colour of its role.

Read it as one reads a contact sheet: a diagonal is a head that reads a fixed distance, a column a sink, scattered
blocks a head that goes by what the words are. Each map is drawn on a scale of its own, from 0 to its 99th percentile,
by square root: on one scale for all, a sink's column would leave every other head blank. A map without peaks keeps
to the middle of the ramp, for its noise is no structure.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from jaxtyping import Float, Float32
from numpy import ndarray

from manyheads.errors import HeadError
from manyheads.figures.palette import FADED, HAIRLINE, PAPER, inked
from manyheads.figures.paper import BODY, SMALL, Pixels, Sheet, drawable, flow, kind_of, text_width
from manyheads.heads import Head
from manyheads.measurement import PooledMaps
from manyheads.roles import HeadRole
from manyheads.roles.words import INK, NO_ROLE, ONLY_READS, ROLES, RoleStyle, role_style
from manyheads.spec import Site, sharing_words

SCALE_TOP = 99  # percentile of a map's visible cells that is drawn as full ink: the few above do not dim the rest
MIN_TOP = 5  # ... unless that is under 5 times the map's mean: an even map would else be as dark as a sharp one
WIDTH = 1_600
NEEDED_WIDTH = 720  # for title, legend and notes
MARGIN = 32
RULER = 36  # left of the cells, for the layers' names
SIDES = (60, 216)  # of a cell, in pixels: below, a map is a smudge; above, a small model fills a wall
NAME_HEIGHT = 17  # above each cell, for its name
HEADER = 26  # above each stack's first row, for the heads' numbers and their key/value groups
STACK_TITLE = 34
LINE = 22
TINY = 10
APART = 10  # between the groups of a row, beside the gap between cells
BETWEEN = 22  # between blocks of layers side by side
MOST_BLOCKS = 4
TALL = 1_900  # pixels: the layers of a higher stack stand in blocks side by side, if their cells are large enough

BAR = 140  # pixels of the scale
INK_SAID = (
    f"weight, by square root; full ink: each map's own {SCALE_TOP}th percentile, at least {MIN_TOP} times its mean"
)
BARE = "bare paper: nothing visible there, which is not 0"
READING = "Rows are the words that look, columns the words they look at, both from first to last."
GROUPS = "Under a bracket {}."
CAVEAT = f"A map shows {ONLY_READS}."
LEADS = {INK_SAID: 16 + BAR + 8, BARE: 19}  # pixels before these notes: the scale, a bare cell

Entry = tuple[RoleStyle, str, str]
"""A line of the legend: how, which role, how many heads."""
Place = tuple[int, Pixels]
"""Where something stands in running lines: the line from 0, pixels from the margin."""


@dataclass(frozen=True)
class _Layout:
    """Where things stand, in pixels. A cell's side is a whole number of pixels a block, so that blocks are alike."""

    side: int
    gap: int
    width: int
    blocks: int  # of a stack's layers, side by side
    stacks: tuple[tuple[Site, ...], ...]
    legend: tuple[tuple[Place, Entry], ...]
    notes: tuple[tuple[Place, str], ...]
    tokens: bool

    @staticmethod
    def of(maps: PooledMaps, roles: dict[Head, HeadRole] | None) -> _Layout:
        stacks = tuple(tuple(sites) for _, sites in groupby(maps.sites, key=lambda site: site.stack))
        columns, cells = max(site.num_heads for site in maps.sites), maps.maps.shape[-1]
        parted = max(site.num_kv_heads if site.num_kv_heads < site.num_heads else 1 for site in maps.sites) - 1

        def room_in(blocks: int) -> tuple[int, int]:
            """The room for a cell's side, and the gap between cells."""
            gap = 14 if columns * blocks <= 16 else 10
            spare = blocks * (RULER + APART * parted + BETWEEN - gap) - BETWEEN
            return (WIDTH - 2 * MARGIN - spare) // (columns * blocks) - gap, gap

        def side_in(blocks: int) -> int:
            # a whole number of pixels a block of a map: else some blocks were wider than others
            side = min(max(room_in(blocks)[0], SIDES[0]), SIDES[1]) // cells * cells
            return side if side >= SIDES[0] else -(-SIDES[0] // cells) * cells

        def height_in(blocks: int) -> float:
            return max(map(len, stacks)) / blocks * (NAME_HEIGHT + side_in(blocks) + room_in(blocks)[1] - 4)

        choices = [n for n in range(1, MOST_BLOCKS + 1) if n == 1 or room_in(n)[0] >= SIDES[0]]
        num_blocks = next((n for n in choices if height_in(n) <= TALL), choices[-1])
        side, gap = side_in(num_blocks), room_in(num_blocks)[1]
        inner = num_blocks * (RULER + columns * (side + gap) - gap + APART * parted + BETWEEN) - BETWEEN
        inner = max(inner, NEEDED_WIDTH)
        roles = roles or {}
        counts = Counter((role_style(roles[h].name), roles[h].name) for h in maps.heads if h in roles)
        order = {style: index for index, style in enumerate((*ROLES, NO_ROLE))}  # the palette's
        roles_there = sorted(counts.items(), key=lambda item: (order[item[0][0]], item[0][1]))
        legend = [(style, drawable(name), _heads(count)) for (style, name), count in roles_there]
        widths = [19 + text_width(name, BODY) + 6 + text_width(count, BODY) for _, name, count in legend]
        bare = [BARE] * bool(np.isnan(maps.maps).any())
        shared = sharing_words(maps.sites)
        notes = [INK_SAID, *bare, READING, *[GROUPS.format(shared)] * bool(shared), CAVEAT]
        spans = [LEADS.get(note, 0) + text_width(note, SMALL) for note in notes]
        placed = tuple(zip(flow(widths, inner, 26), legend, strict=True))
        noted = tuple(zip(flow(spans, inner, 24), notes, strict=True))
        return _Layout(side, gap, 2 * MARGIN + inner, num_blocks, stacks, placed, noted, bool(maps.tokens))

    @property
    def legend_top(self) -> int:
        return MARGIN + 58 + LINE * self.tokens

    @property
    def top(self) -> int:
        return self.legend_top + LINE * _lines(self.legend) + 8

    @property
    def step(self) -> int:
        """From one row of cells to the next."""
        return NAME_HEIGHT + self.side + self.gap - 4

    @property
    def titled(self) -> bool:
        """Whether stacks carry their names."""
        return len(self.stacks) > 1

    def stack_height(self, sites: Sequence[Site]) -> int:
        return STACK_TITLE * self.titled + HEADER + self.rows(sites) * self.step

    def rows(self, sites: Sequence[Site]) -> int:
        """Layers of a stack beneath each other."""
        return -(-len(sites) // self.blocks)

    def left_of(self, head: int, site: Site) -> int:
        """Pixels from a block's first head to another, groups of key/value heads apart."""
        group = site.num_heads // site.num_kv_heads
        return head * (self.side + self.gap) + (APART * (head // group) if group > 1 else 0)

    @property
    def notes_top(self) -> int:
        return self.top + sum(self.stack_height(sites) for sites in self.stacks) + 20

    @property
    def height(self) -> int:
        return self.notes_top + LINE * _lines(self.notes) + MARGIN - 8


def save_grid(
    maps: PooledMaps,
    roles: Iterable[HeadRole] | None,
    path: str | os.PathLike[str],
    *,
    title: str,
    note: str = "",
) -> None:
    """Draw every head's pooled map, layers down and heads across, stacks below each other; .png, .svg or .pdf.

    `roles` may name some of the heads, or be None: then there are no colours and no legend. Where nothing is visible
    to a word the paper is bare. `note` follows what the maps are: where the roles come from, say.
    Cost: 0.5 s, and 2 ms a head. Errors: FileAccessError; HeadError for the role of a head that has no map.
    """
    kind_of(path)
    draw_grid(maps, roles, title=title, note=note).save(path)


def draw_grid(
    maps: PooledMaps,
    roles: Iterable[HeadRole] | None,
    *,
    title: str,
    note: str = "",
) -> Sheet:
    """The drawing that `save_grid` writes."""
    named = None if roles is None else {role.head: role for role in roles}
    if strange := [str(head) for head in named or () if head not in maps.heads]:
        raise HeadError(f"roles are given for {', '.join(strange[:5])}, for which there is no map: leave them out.")
    layout = _Layout.of(maps, named)
    sheet = Sheet(layout.width, layout.height)
    side = maps.maps.shape[-1]
    cells = f"{_heads(len(maps.heads))}, {side} x {side} each: {maps.because}. {maps.num_tokens:,} tokens read. {note}"
    room = sheet.width - 2 * MARGIN
    sheet.text(MARGIN, MARGIN + 16, title, 21, width=room, weight="bold")
    sheet.text(MARGIN, MARGIN + 42, cells, BODY, width=room, colour=FADED)
    sheet.text(MARGIN, MARGIN + 42 + LINE, " ".join(maps.tokens), BODY, width=room, mono=True)
    for (line, x), (style, name, count) in layout.legend:
        y = layout.legend_top + line * LINE
        sheet.box(MARGIN + x + 1, y + 2, 10, 10, edge=style.colour, line=2.5)
        after = sheet.text(MARGIN + x + 19, y + 12, name, BODY)
        sheet.text(MARGIN + x + 19 + after + 6, y + 12, count, BODY, colour=FADED)
    y = layout.top
    for sites in layout.stacks:
        _draw_stack(sheet, maps, named or {}, sites, layout, y)
        y += layout.stack_height(sites)
    for (line, left), text in layout.notes:
        x, y = MARGIN + left, layout.notes_top + line * LINE
        if text == INK_SAID:
            sheet.text(x, y + 9, "0", SMALL, colour=FADED)
            sheet.picture(round(x) + 16, y, BAR, 11, inked(np.sqrt(np.linspace(0, 1, BAR))[None]))
        elif text == BARE:
            sheet.box(round(x) + 0.5, y + 0.5, 10, 10, fill=PAPER, edge=HAIRLINE)
        sheet.text(x + LEADS.get(text, 0), y + 9, text, SMALL, colour=FADED)
    return sheet


def scaled(weights: Float32[ndarray, "p p"]) -> Float[ndarray, "p p"]:
    """A map's weights as shares of ink, 0 to 1: the square root of their ratio to what is drawn as full ink."""
    visible = weights[~np.isnan(weights)]
    if not visible.size or visible.max() <= 0:
        return weights * 0
    # an even map's noise is no structure: without the second bound it would be as dark as a sharp map
    top = max(float(np.percentile(visible, SCALE_TOP)), min(1.0, MIN_TOP * float(visible.mean())))
    return np.sqrt((weights / top).clip(0, 1))


def _lines(placed: Sequence[tuple[Place, object]]) -> int:
    return placed[-1][0][0] + 1 if placed else 0


def _heads(count: int) -> str:
    return f"{count:,} head{'s' * (count != 1)}"


def _draw_stack(
    sheet: Sheet, maps: PooledMaps, roles: dict[Head, HeadRole], sites: Sequence[Site], layout: _Layout, y: int
) -> None:
    side = layout.side
    size = TINY if side >= 90 else TINY - 1.5
    if layout.titled:
        y += STACK_TITLE
        sheet.text(MARGIN, y - 10, sites[0].stack or "main stack", 15, weight="bold", width=sheet.width - 2 * MARGIN)
    widest = max(sites, key=lambda site: (site.num_heads, -site.num_kv_heads))
    across = RULER + layout.left_of(widest.num_heads - 1, widest) + side + BETWEEN
    rows = layout.rows(sites)
    for block, begin in enumerate(range(0, len(sites), rows)):
        _draw_block(sheet, maps, roles, sites[begin : begin + rows], widest, layout, MARGIN + block * across, y, size)


def _draw_block(
    sheet: Sheet,
    maps: PooledMaps,
    roles: dict[Head, HeadRole],
    sites: Sequence[Site],
    widest: Site,
    layout: _Layout,
    x: int,
    y: int,
    size: Pixels,
) -> None:
    """Layers beneath each other, under the numbers of the heads of the stack's widest layer.

    - sheet: what is drawn on.
    - maps, roles: what is drawn.
    - sites: the layers.
    - widest: that with most heads.
    - layout: where heads stand in a layer.
    - x, y: the place of the upper left corner.
    - size: of a map.
    """
    left, side = x + RULER, layout.side
    for index in range(widest.num_heads):
        middle = left + layout.left_of(index, widest) + side / 2
        sheet.text(middle, y + 13, f"H{index}", SMALL, colour=FADED, align="center")
    group_size = widest.num_heads // widest.num_kv_heads
    ends = []
    for group in range(widest.num_kv_heads if group_size > 1 else 0):  # a bracket over those that share keys and values
        first, top = group * group_size, y + 19
        begin = left + layout.left_of(first, widest) + 0.5
        end = left + layout.left_of(first + group_size - 1, widest) + side - 0.5
        ends += [((begin, top), (end, top)), ((begin, top), (begin, top + 4)), ((end, top), (end, top + 4))]
    if ends:
        sheet.lines(ends, colour=FADED)
    y += HEADER
    for site in sites:
        middle = y + NAME_HEIGHT + side / 2
        sheet.text(left - RULER, middle + 4, f"L{site.layer}", BODY, colour=INK)
        for head in site.heads:
            x, top, role = left + layout.left_of(head.index, site), y + NAME_HEIGHT, roles.get(head)
            sheet.picture(x, top, side, side, inked(scaled(maps[head])))
            style = NO_ROLE if role is None else role_style(role.name)
            if style is NO_ROLE:
                sheet.box(x - 0.5, top - 0.5, side + 1, side + 1, edge=HAIRLINE)
            else:
                sheet.box(x - 1, top - 1, side + 2, side + 2, edge=style.colour, line=2)
            after = sheet.text(x - 1, top - 6, f"L{head.layer}H{head.index}", size, mono=True, width=side + 4)
            if role is not None:
                room = side + 4 - after - 5
                word = drawable(role.name)  # of its words the longest for which there is room
                words: tuple[str, ...] = (word, word.removeprefix("offset "), style.short, style.tiny)
                if style is NO_ROLE:
                    words = () if word == style.name else (word,)
                fitting = (word for word in words if text_width(word, size) <= room)
                sheet.text(x + side + 1, top - 6, next(fitting, ""), size, colour=FADED, align="right")
        y += layout.step
