"""The drawing of each result, by its class: what `result.plot()` returns.

A result of heads that has no figure of its own, and any of them by a column of its table, is drawn as a grid of layers
and heads. The curves of a training are lines over its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.base import few, plural
from manyheads.circuits import Composition
from manyheads.circuits.why import Why, WhyMeans
from manyheads.circuits.writes import Writes
from manyheads.errors import HeadError, StatisticError
from manyheads.figures.attribution import BARS, PITCH, draw_attribution, signed_bars
from manyheads.figures.circuit import draw_circuit
from manyheads.figures.families import draw_families
from manyheads.figures.head import draw_head
from manyheads.figures.head_grid import draw_cells, layers_of
from manyheads.figures.head_split import draw_split
from manyheads.figures.maps import draw_grid
from manyheads.figures.palette import FADED
from manyheads.figures.paper import BODY, SMALL, Sheet, even_ticks
from manyheads.figures.patching import draw_patching
from manyheads.figures.questions import draw_roles
from manyheads.figures.removal_curve import draw_curve
from manyheads.figures.sizing import draw_sizing
from manyheads.heads import HeadLike, layer_name
from manyheads.interventions import Effect, verdict
from manyheads.measurement import PooledMaps
from manyheads.recording import LayerRecord, PerHeadResult, Recording, small_maps
from manyheads.roles.probes import CopyingScores, HeadScores, Probe, RepeatProbe, RetrievalScores
from manyheads.roles.words import INK
from manyheads.watching import HeadCurves

OF_HEADS = ("head", "stack", "layer", "index", "step")  # columns that say what a row is of
WHOLE, BLOCKS = 512, 256  # tokens up to which every weight of a head's map is drawn, and blocks of a longer text
MOST_PAIRED = 36  # heads whose pairs are drawn one by one
WIDTH, HEIGHT, MARGIN = 860, 460, 36
HALF, NAMES = 490, 180  # of a sheet of two columns of bars, and what the names before them take
BARS_TOP = 124  # ... below their headings
SMALL_MAP = 32  # blocks of each map where all heads are drawn
LEFT, RIGHT, TOP, BOTTOM = 90, 40, 100, 76


def draw(result: object, column: str | None = None, **options: object) -> Sheet:
    """The drawing of a result, by the name of its class. Options are those of the result's `plot`.

    Errors: StatisticError for a column that is not there, or has no numbers; those of the drawing.
    """
    if isinstance(result, HeadCurves):  # the one drawing of its own that has a column
        return draw_curves(result, column, cast("list[HeadLike] | None", options.get("heads")))
    own = DRAWINGS.get(type(result).__name__)
    if own is not None and column is None:
        return own(result, **options)
    return draw_column(cast(PerHeadResult, result), column)


def draw_column(result: PerHeadResult, column: str | None = None) -> Sheet:
    """A grid of layers and heads, each cell inked by its number in one column of the table; None: the first column."""
    frame = result.to_pandas()
    numbers = [name for name in frame if name not in OF_HEADS and frame[name].dtype.kind in "fi"]
    column = numbers[0] if column is None and numbers else column
    column = column or (numbers[0] if numbers else "")
    if column not in numbers:
        raise StatisticError(f"{column=} is not a column of numbers of this table: it has {few(numbers, 12)}.")
    if len(frame) != len(result.heads):
        raise StatisticError(
            f"this table has {plural(len(frame), 'row')} for {plural(len(result.heads), 'head')}, and a grid has one "
            f"number for each: draw a column of to_pandas() as you need it."
        )
    rows, columns, grid = layers_of(result.heads, frame[column].to_numpy(float))
    words = f"Darkest: {np.nanmax(np.abs(grid)):.4g}. White: 0." if np.isfinite(grid).any() else "No head has a number."
    return draw_cells(rows, columns, grid, column.replace("_", " "), str(result).split("\n")[0], [words])


def draw_curves(curves: HeadCurves, column: str | None = None, heads: list[HeadLike] | None = None) -> Sheet:
    """One statistic of every head over the steps of a training, in grey; `heads` in ink, with their names."""
    column = column or curves.statistics[0]
    if column not in curves.statistics:
        raise StatisticError(f"{column=} is not a statistic of this history: it has {few(curves.statistics, 12)}.")
    values = curves.values[..., curves.statistics.index(column)]
    marked = [curves.head_place(head) for head in heads or ()]
    known = values[np.isfinite(values)]
    if not len(known):
        raise StatisticError(f"no head of this history has a number for {column}: there is nothing to draw.")
    sheet, bottom = Sheet(WIDTH, HEIGHT), HEIGHT - BOTTOM
    title = f"{column.replace('_', ' ')} of {plural(len(curves.heads), 'head')} while the model trains"
    sheet.heading(MARGIN, title, str(curves.facts.get("meaning", {}).get(column, "")))
    first, last = float(curves.steps[0]), float(curves.steps[-1])
    axes = sheet.chart(
        LEFT, TOP, WIDTH - LEFT - RIGHT, bottom - TOP, (first, max(last, first + 1)),
        {tick: f"{tick:.4g}" for tick in even_ticks(float(known.min()), float(known.max()))},
        ticks={float(step): f"{step:,.0f}" for step in np.unique(np.linspace(first, last, 6).round())},
    )  # fmt: skip
    for place in (*[place for place in range(len(curves.heads)) if place not in marked], *marked):
        line, colour = values[:, place], INK if place in marked else FADED
        points = [(float(x), float(y)) for x, y in zip(curves.steps, line, strict=True) if np.isfinite(y)]
        sheet.curve(points, colour, 2.2 if place in marked else 1, alpha=1.0 if place in marked else 0.45, axes=axes)
        if place in marked and points:
            x, y = sheet.place(axes, *points[len(points) // 2])
            sheet.text(x + 6, y - 8, str(curves.heads[place]), BODY, weight="bold")
    sheet.text((LEFT + WIDTH - RIGHT) / 2, bottom + 42, "step", SMALL, align="center", colour=FADED)
    return sheet


def draw_layer(layer: LayerRecord, head: int, text: int = 0) -> Sheet:
    """One head's map of one text, by mean over blocks where it is long."""
    names = layer.site.heads
    if not 0 <= head < len(names):
        raise HeadError(f"{head=} is not in layer {layer.site.layer}: it has heads 0 to {len(names) - 1}.")
    queries, keys = layer.num_queries(text), layer.num_keys(text)
    whole = max(queries, keys) <= WHOLE
    weights: Float64[ndarray, "q k"] = small_maps(layer, WHOLE if whole else BLOCKS, text)[0][head].double().numpy()
    labels = layer.tokens.pieces[text] if whole and not layer.crosses else None
    note = "" if whole else f"means of blocks of about {queries / len(weights):.0f} x {keys / weights.shape[1]:.0f}"
    return draw_head(weights, labels, title=str(names[head]), subtitle=layer.site.module, note=note)


def draw_maps(maps: PooledMaps) -> Sheet:
    """Every head's pooled map."""
    return draw_grid(maps, None, title=plural(len(maps.heads), "head"))


def draw_recording(recording: Recording, text: int = 0) -> Sheet:
    """Every head's map of one text, in blocks, a row a layer; of several stacks the first."""
    layers = next(iter(recording.stacks.values()))
    sites = tuple(layer.site for layer in layers)
    maps = [small_maps(layer, SMALL_MAP, text, SMALL_MAP)[0].float().cpu().numpy() for layer in layers]
    if len({of_layer.shape[1:] for of_layer in maps}) > 1:
        raise StatisticError("the layers of this recording have maps of different sizes: draw each by its .plot(head).")
    heads = tuple(head for site in sites for head in site.heads)
    num_tokens, because = layers[sites[0].layer].num_keys(text), f"means of blocks of text {text}"
    return draw_grid(
        PooledMaps(sites, heads, np.concatenate(maps), num_tokens, (), because), None, title=str(recording)
    )


def draw_why(why: Why | WhyMeans) -> Sheet:
    """What was written of the log-odds of a weight, by whose query and by whose key it was: the largest of each."""
    sides = {"query": why.query, "key": why.key}
    rows = {side: [(row.writer, float(row.share)) for row in table[:BARS]] for side, table in sides.items()}
    sheet = Sheet(2 * HALF, BARS_TOP + PITCH * max(map(len, rows.values())) + 60)
    sheet.heading(
        MARGIN, str(why).split("\n")[0], f"log-odds {why.log_odds:+.2f} nats, of which writers gave {why.total:+.2f}"
    )
    for column, (side, bars) in enumerate(rows.items()):
        left = column * HALF + MARGIN + NAMES
        signed_bars(sheet, f"by whose {side}", bars, left, BARS_TOP, HALF - NAMES - 2 * MARGIN)
    words = "In nats. Ink speaks for that weight, rust against it. Each side adds up to the same sum."
    sheet.text(MARGIN, BARS_TOP + PITCH * max(map(len, rows.values())) + 36, words, SMALL, colour=FADED)
    return sheet


def draw_writes(writes: Writes) -> Sheet:
    """What a head writes of the first of its tokens: those that it promotes and suppresses most."""
    table = writes.tables[0]
    sides = {"promotes": table.promoted[:BARS], "suppresses": table.suppressed[:BARS]}
    height = BARS_TOP + PITCH * max(map(len, sides.values()))
    sheet = Sheet(2 * HALF, height + 60)
    sheet.heading(MARGIN, str(writes).split("\n")[0], f"what it writes where it looks at {table.token!r}")
    for column, (side, pairs) in enumerate(sides.items()):
        left = column * HALF + MARGIN + NAMES
        bars = [(repr(token), float(value)) for token, value in pairs]
        signed_bars(sheet, side, bars, left, BARS_TOP, HALF - NAMES - 2 * MARGIN)
    words = (
        "Of a source of length 1 a dimension, less the mean over the vocabulary: values compare within this head alone."
    )
    sheet.text(MARGIN, height + 36, words, SMALL, colour=FADED)
    return sheet


def draw_effect(effect: Effect) -> Sheet:
    """The change and its interval in ink, above it those of the same number of random heads."""
    sheet, bottom = Sheet(WIDTH, TOP + 150), TOP + 90
    sheet.heading(MARGIN, verdict(effect).words, str(effect))
    ends = [end for end in (effect.low, effect.high) if end is not None]
    values = [0.0, effect.change, *ends, *effect.control]
    ticks = {tick: f"{tick:.4g}" for tick in even_ticks(min(values), max(values))}
    across = (min(*ticks, *values), max(*ticks, *values))
    axes = sheet.chart(
        LEFT, TOP, WIDTH - LEFT - RIGHT, bottom - TOP, across, {1.0: "change", 2.0: "random" if effect.control else ""},
        ticks=ticks, up=(0.5, 2.5),
    )  # fmt: skip
    if ends:
        sheet.curve([(end, 1.0) for end in ends], INK, 2.4, axes=axes)
    sheet.dots(axes, [(effect.change, 1.0)], INK, 6, 1.0)
    if effect.control:
        sheet.dots(axes, [(change, 2.0) for change in effect.control], FADED, 5, 0.6)
    words = f"{effect.metric} ({effect.unit})" if effect.unit else effect.metric
    sheet.text((LEFT + WIDTH - RIGHT) / 2, bottom + 40, f"change of {words}", SMALL, align="center", colour=FADED)
    return sheet


def draw_composition(composition: Composition) -> Sheet:
    """How far pairs of heads are above chance, readers down, writers across; of many heads layer by layer."""
    z = np.maximum.reduce([np.nan_to_num(values, nan=-np.inf) for values in composition.z.values()])
    names, what = [str(head) for head in composition.heads], "heads"
    if len(names) > MOST_PAIRED:
        layers = [layer_name(head.stack, head.layer) for head in composition.heads]
        names, what = list(dict.fromkeys(layers)), "layers (the largest of their heads)"
        places = [[place for place, layer in enumerate(layers) if layer == name] for name in names]
        z = np.array([[z[np.ix_(rows, columns)].max() for columns in places] for rows in places])
    grid = np.where(np.isfinite(z), z, np.nan)
    title = f"who reads whom: {what}, in standard deviations from chance"
    note = "Down: readers. Across: writers, which come before them. Each cell: the largest of Q-, K- and V-composition."
    return draw_cells(names, names, grid, title, str(composition).split("\n")[0], [note])


def draw_scores(probe: Probe | RepeatProbe | RetrievalScores | CopyingScores) -> Sheet:
    """Each head's score less chance, layers down; of random repeats, at the token after the earlier copy."""
    if isinstance(probe, Probe) and probe.scores is None:
        raise StatisticError(f"{probe.name} was not asked ({probe.says}): there is nothing to draw.")
    scores = probe.after if isinstance(probe, RepeatProbe) else getattr(probe, "scores", probe)
    assert isinstance(scores, HeadScores | CopyingScores)
    above = scores.score - (scores.chance if isinstance(scores, HeadScores) else 0.0)
    title = probe.asks if isinstance(probe, Probe) else type(probe).__name__
    note = "Each head's score less the highest chance level. White: none, or nothing was counted."
    return draw_cells(*layers_of(scores.heads, above), title, str(probe).split("\n")[0], [note])


DRAWINGS: Mapping[str, Callable[..., Sheet]] = {
    "Attribution": draw_attribution,
    "Composition": draw_composition,
    "CopyingScores": draw_scores,
    "Effect": draw_effect,
    "Probe": draw_scores,
    "RepeatProbe": draw_scores,
    "RetrievalScores": draw_scores,
    "Circuit": draw_circuit,
    "Curve": draw_curve,
    "HeadFamilies": draw_families,
    "HeadSplit": draw_split,
    "LayerRecord": draw_layer,
    "Patching": draw_patching,
    "PooledMaps": draw_maps,
    "Roles": draw_roles,
    "Recording": draw_recording,
    "Sizing": draw_sizing,
    "Why": draw_why,
    "WhyMeans": draw_why,
    "Writes": draw_writes,
}
