"""The best head for each question, with chance and fixed guesses on the same axis: what heads were found to do.

Read each row from left to right: the question, the head that answered it best on the choosing half, and how it did on
the other half. What counts is not how far right the dot lies but how far right of its ticks: a dot on a tick does what
somebody does who never saw the sentence. A claim that holds is in ink, one that does not is hollow and grey.

Marks are told apart by form, not by colour, so that the picture can be read in grey and by any eyes: chance hangs from
a row's axis or stands on it, fixed guesses cross it with a flag, scores are dots, diamonds and crosses.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from manyheads.figures.palette import FADED, HAIRLINE, PAPER
from manyheads.figures.paper import BODY, POINT, SMALL, Pixels, Point, Sheet, flow, kind_of, text_width
from manyheads.roles import MAX_FALSE, UNASKED, Claim, Roles, by_family, family_of
from manyheads.roles.words import INK, NOT_EFFECT, ONLY_READS, counted, left_out, percent, words_and_name

WIDTH, MARGIN = 1_120, 36
ROW, LINE = 22, 20
FAMILY = 58  # above each family's rows, for its name and the axis' figures
LABEL, HEAD = 318, 70  # widths of the first columns
PLOT = (MARGIN + LABEL + HEAD, 506)  # where the axis begins, and how long 100% is
SCORE, CASES = PLOT[0] + PLOT[1] + 76, WIDTH - MARGIN  # right edges of the figures
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
TICK = 7  # how far a tick reaches up or down
SAMPLE = 9  # half the stretch of axis beside a mark in the legend
SIZES = {"o": 9.0, "D": 5.6, "v": 7.0, "x": 5.4}
PALE = "#8D8F94"  # marks of a claim that does not hold
CAVEATS = (
    "What counts is how far a dot lies to the right of its ticks: on a tick, the head does no better than a guess that "
    "never saw the sentence.",
    f"{NOT_EFFECT.capitalize()}: this says {ONLY_READS}.",
)


def save_roles(roles: Roles, path: str | os.PathLike[str]) -> None:
    """Draw the best head of every question, a row each; .png, .svg or .pdf. The page grows with the questions.

    The best is chosen on one half of the texts, all figures are of the other. Cost: a second for 100 questions.
    Errors: FileAccessError.
    """
    kind_of(path)
    draw_roles(roles).save(path)


def draw_roles(roles: Roles) -> Sheet:
    """The drawing that `save_roles` writes."""
    ranked = {role: roles.ranked(role, 1) for role in roles.answerable}
    families, best = by_family(ranked), {role: claims[0] for role, claims in ranked.items()}
    claims = [claim for of_head in roles.claims for claim in of_head]
    without = left_out(roles)
    summary = (
        f"{len(roles.answerable):,} questions to {len(roles):,} heads. {counted(roles)}.",
        f"Each head was chosen on one half of the texts; all figures are of the other half. Of {roles.num_tried:,} "
        f"claims {sum(claim.holds for claim in claims):,} hold, at a false discovery rate of {MAX_FALSE:.0%}.",
        *((f"{without}.",) if without else ()),
    )
    key, room = _key(list(best.values())), WIDTH - 2 * MARGIN
    # the key runs over as many lines as it needs, so everything below is placed after it
    places = flow([2 * SAMPLE + 8 + text_width(words, SMALL) for words, _, _ in key], room, 26)
    key_top = MARGIN + 42 + LINE * len(summary)
    top = key_top + (LINE * (places[-1][0] + 1) if places else 0)
    rows = sum(len(members) for _, members in families)
    sheet, marks = Sheet(WIDTH, top + FAMILY * len(families) + ROW * rows + 70 + MARGIN), Marks()
    title = f"{roles.table.notes.get('model', 'a model')}: the best head for each question"
    sheet.heading(MARGIN, title)
    sheet.notes(MARGIN, MARGIN + 40, summary, LINE, BODY)
    for (line, x), (words, draw, colour) in zip(places, key, strict=True):
        left, y = MARGIN + x, key_top + line * LINE + 4
        marks.line([((left, y), (left + 2 * SAMPLE, y))], HAIRLINE, 1, 2)
        draw(marks, left + SAMPLE, y, colour)
        sheet.text(left + 2 * SAMPLE + 8, y + 4, words, SMALL)
    y: Pixels = top
    for family, members in families:  # a family's name, and its axis down to the last row
        begin, end = y + FAMILY, y + FAMILY + ROW * len(members)
        sheet.text(MARGIN, y + 36, family.title, BODY + 1, weight="bold", width=LABEL + HEAD - 10)
        for tick in TICKS:
            sheet.text(_x(tick), begin - 10, f"{tick:.0%}", SMALL, align="center", colour=FADED)
            sheet.lines([((_x(tick), begin - 4), (_x(tick), end))])
        sheet.text(_x(0.5), y + 30, family.unit, SMALL, align="center", colour=FADED)
        sheet.text(SCORE, begin - 10, "score", SMALL, align="right", colour=FADED)
        sheet.text(CASES, begin - 10, "cases", SMALL, align="right", colour=FADED)
        for index, role in enumerate(members):
            _draw_row(sheet, marks, best[role], begin + ROW * index + ROW / 2)
        y = end
    if not families:
        sheet.text(MARGIN, y + 20, "No question was asked.", BODY)
    sheet.notes(MARGIN, y + 40, CAVEATS, LINE)
    marks.draw(sheet)
    return sheet


def _draw_row(sheet: Sheet, marks: Marks, claim: Claim, y: Pixels) -> None:
    words, name = words_and_name(claim)
    ink, pale = (INK, INK) if claim.holds else (FADED, PALE)
    weight = "bold" if claim.holds else "normal"
    after = sheet.text(MARGIN, y + 4, words, BODY, width=LABEL - 14, colour=ink)
    sheet.text(MARGIN + after + 8, y + 4, name, SMALL, width=max(0, LABEL - 22 - after), colour=FADED)
    sheet.text(MARGIN + LABEL, y + 4, str(claim.head), SMALL, mono=True, width=HEAD - 8, colour=ink, weight=weight)
    if math.isnan(claim.tested):
        sheet.text(_x(0.0) + 8, y + 4, UNASKED, SMALL, colour=FADED)
        return
    for name, value in claim.chances.items():
        (evenly if name == "uniform" else shuffled)(marks, _x(value), y, pale)
    for name, value in claim.guesses.items():
        (rule_guess if name == "rule" else fixed_guess)(marks, _x(value), y, pale)
    if family_of(claim.statistic).accuracy:
        diamond(marks, _x(claim.score), y, pale)
    if not math.isnan(claim.low):
        marks.line([((_x(claim.low), y), (_x(claim.high), y))], pale, 2.4 if claim.holds else 1.2, 4)
    marks.point("o", _x(claim.tested), y, pale if claim.holds else PAPER, PAPER if claim.holds else pale, 5)
    if claim.elsewhere is not None and not math.isnan(claim.elsewhere):
        cross(marks, _x(claim.elsewhere), y, pale)
    sheet.text(SCORE, y + 4, percent(claim.tested), SMALL, align="right", colour=ink, weight=weight)
    sheet.text(CASES, y + 4, f"{claim.num_queries:,}", SMALL, align="right", colour=FADED)


def _x(share: float) -> float:
    return PLOT[0] + PLOT[1] * min(1.0, max(0.0, share))


def _key(claims: Sequence[Claim]) -> list[tuple[str, Draw, str]]:
    """The legend: every mark that occurs, in words."""
    chances = {name for claim in claims for name in claim.chances}
    fixed = {name for claim in claims for name in claim.guesses}
    accurate = any(family_of(claim.statistic).accuracy for claim in claims)
    alike = " (syntax, reference: one of the right part of speech, by place)" if accurate else ""
    marks: list[tuple[bool, str, Draw, str]] = [
        (any(claim.holds for claim in claims), "score, 95% interval: the claim holds", holding, INK),
        (any(not claim.holds for claim in claims), "it does not hold", not_holding, PALE),
        (accurate, "score where special tokens may win", diamond, INK),
        (any(claim.elsewhere is not None for claim in claims), "score on the second corpus", cross, INK),
        ("uniform" in chances, "chance: evenly spread", evenly, INK),
        (bool(chances - {"uniform"}), f"chance: words shuffled{alike}", shuffled, INK),
        (bool(fixed - {"rule"}), "guess: most frequent offset, nearest mention, same word", fixed_guess, INK),
        ("rule" in fixed, "guess: nearest word of one part of speech", rule_guess, INK),
    ]
    return [(words, draw, colour) for occurs, words, draw, colour in marks if occurs]


class Marks:
    """Lines and points, gathered and drawn at once: a thousand marks cost a dozen artists, not a thousand."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, Pixels, int], list[tuple[Point, Point]]] = {}
        self.points: dict[tuple[str, str, str, int], list[Point]] = {}

    def line(self, ends: list[tuple[Point, Point]], colour: str, width: Pixels = 1.2, order: int = 3) -> None:
        self.lines.setdefault((colour, width, order), []).extend(ends)

    def point(self, form: str, x: Pixels, y: Pixels, fill: str, edge: str, order: int) -> None:
        self.points.setdefault((form, fill, edge, order), []).append((x, y))

    def draw(self, sheet: Sheet) -> None:
        for (colour, width, order), ends in self.lines.items():
            sheet.axes.add_artist(LineCollection(ends, colors=colour, linewidths=width * POINT, zorder=order))
        for (form, fill, edge, order), points in self.points.items():
            artist = Line2D(*zip(*points, strict=True), linestyle="none", marker=form, zorder=order)
            artist.set(markersize=SIZES[form] * POINT, markerfacecolor=fill, markeredgecolor=edge, snap=False)
            artist.set_markeredgewidth(1.2 * POINT)
            sheet.axes.add_artist(artist)


Draw = Callable[[Marks, Pixels, Pixels, str], None]


def holding(marks: Marks, x: Pixels, y: Pixels, colour: str) -> None:
    marks.line([((x - SAMPLE, y), (x + SAMPLE, y))], colour, 2.4, 4)
    marks.point("o", x, y, colour, PAPER, 5)


def not_holding(marks: Marks, x: Pixels, y: Pixels, colour: str) -> None:
    marks.line([((x - SAMPLE, y), (x + SAMPLE, y))], colour, 1.2, 4)
    marks.point("o", x, y, PAPER, colour, 5)


def evenly(marks: Marks, x: Pixels, y: Pixels, colour: str) -> None:
    marks.line([((x, y), (x, y + TICK))], colour)


def shuffled(marks: Marks, x: Pixels, y: Pixels, colour: str) -> None:
    marks.line([((x, y - TICK), (x, y)), ((x - 2.5, y - TICK), (x + 2.5, y - TICK))], colour)


def fixed_guess(marks: Marks, x: Pixels, y: Pixels, colour: str) -> None:
    marks.line([((x, y - TICK), (x, y + TICK))], colour)
    marks.point("v", x, y - TICK + 1, colour, colour, 3)


def rule_guess(marks: Marks, x: Pixels, y: Pixels, colour: str) -> None:
    marks.line([((x, y - TICK), (x, y + TICK))], colour)
    marks.point("v", x, y - TICK + 1, PAPER, colour, 3)


def diamond(marks: Marks, x: Pixels, y: Pixels, colour: str) -> None:
    marks.point("D", x, y, PAPER, colour, 4)


def cross(marks: Marks, x: Pixels, y: Pixels, colour: str) -> None:
    marks.point("x", x, y, colour, colour, 6)
