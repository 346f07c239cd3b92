"""`manyheads watch heads.parquet`: the heads of a training, a line a layer, while it runs or afterwards."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.text import Text
from typer.models import OptionInfo

from manyheads import watching
from manyheads.base import plural
from manyheads.cli.studio import desk_of, open_studio
from manyheads.cli.terminal.console import (
    Column,
    aligned,
    clean,
    emit,
    emit_document,
    hanging,
    knows_blocks,
    lay_out,
    offered,
    print_sections,
    stdout_console,
)
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import FileAccessError, StatisticError
from manyheads.heads import layer_name, parse_heads

if TYPE_CHECKING:
    from jaxtyping import Float64
    from numpy import ndarray
    from rich.console import Console

    from manyheads.watching import AlertRule, HeadCurves


PATH_HELP = "The folder that a watched training writes, such as heads.parquet."
STATISTIC_HELP = "The statistic to show. Default: max_logit, or the first that the file has."
HEADS_HELP = "A line for each of these heads: L3, L3H0-5, L*H7."
FOLLOW_HELP = "Go on while the file grows, until Ctrl-C."
STUDIO_HELP = "Open the studio's room Training on it."
SHOWN_ALERTS = 12  # in the terminal; --json has all
LOOK_SECONDS = 0.5  # between two looks at a file that grows
BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
MOST_BARS = 36  # columns of a line's curve
ABSENT = "–"


def limit(name: str, unit: str, default: float) -> OptionInfo:
    """An option for the limit of an alert."""
    return typer.Option(f"--{name}", metavar="N", help=f"Alert limit, {unit}. Default: {default:g}.")


def watch(
    path: Annotated[Path, typer.Argument(metavar="FILE", help=PATH_HELP, show_default=False)],
    statistic: Annotated[str | None, typer.Option("--statistic", metavar="NAME", help=STATISTIC_HELP)] = None,
    heads: Annotated[str | None, typer.Option("--heads", metavar="HEADS", help=HEADS_HELP)] = None,
    follow: Annotated[bool, typer.Option("--follow", help=FOLLOW_HELP)] = False,
    in_studio: Annotated[bool, typer.Option("--studio", help=STUDIO_HELP)] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="With --studio, open a browser.")] = True,
    max_logit: Annotated[float | None, limit("max-logit", "the largest logit", 100.0)] = None,
    entropy: Annotated[float | None, limit("entropy", "nats, from below", 0.1)] = None,
    first_mass: Annotated[float | None, limit("first-mass", "weight on the first token", 0.9)] = None,
    dead: Annotated[float | None, limit("dead", "output, in even shares, from below", 0.1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --follow, a line for each change.")] = False,
) -> None:
    """The heads of a model that trains: each layer's last value and curve, its extreme heads, and what is wrong.

    A training writes the file: mh.watch(model, out="heads.parquet"), or HeadWatch(out=...) for a Trainer.

    For example: manyheads watch heads.parquet --statistic entropy --follow
    """
    talk = ProgressLine()
    limits = {"max_logit": max_logit, "entropy": entropy, "first_mass": first_mass, "dead": dead}
    rules = watching.rules_with({name: value for name, value in limits.items() if value is not None})
    if follow and not in_studio and _is_awaited(path):
        talk.note(f"waiting for {path}: a training writes it at its first watched step")
        while _is_awaited(path):
            time.sleep(LOOK_SECONDS)
    if not path.exists():
        name = clean(str(path))
        raise FileAccessError(
            f"cannot read {name}: there is no such file. A training writes it: mh.watch(model, out='{name}') in yours, "
            f"or, to see one, manyheads train induction --out run, which writes run/heads/induction."
        )
    curves = watching.open_history(path)
    if in_studio:  # with this file alone, at its room
        with talk.step("starting the studio"):
            desk = desk_of([], None, None, None, None)
        name = path.resolve().name
        desk.workspace.histories[name] = path
        open_studio(talk, desk, browser=browser, view=f"#/training?history={desk.workspace.history_id(name)}")
        return
    if statistic is not None and statistic not in curves.statistics:
        raise StatisticError(
            f"{curves.path} has no {statistic!r}, only {', '.join(curves.statistics)}: name one of them, or watch it "
            f"from the start, with statistics=[...]."
        )
    chosen = statistic or ("max_logit" if "max_logit" in curves.statistics else curves.statistics[0])
    names = None
    if heads is not None:
        shape: dict[str, list[int]] = {}  # stack -> heads of each layer, as far as the file knows
        for head in curves.heads:
            counts = shape.setdefault(head.stack, [])
            counts += [0] * (head.layer + 1 - len(counts))
            counts[head.layer] = max(counts[head.layer], head.index + 1)
        names = [str(head) for head in parse_heads(heads, shape)]
    console = stdout_console()

    def lines(now: HeadCurves) -> list[list[Text]]:
        return curves_page(now, chosen, names, rules, console, command=not follow)

    if not follow:
        if as_json:
            emit_document(curves_document(curves, rules))
        else:
            print_sections(lines(curves), console)
        return
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else None
    if live is not None:
        live.start()
    try:
        before = None
        while True:
            if curves is not before:
                if as_json:
                    emit(json.dumps(curves_document(curves, rules), allow_nan=False))
                elif live is not None:
                    # Sections as one picture, each line cut at the console's width, no more lines than it has.
                    sections = [section for section in lines(curves) if section]
                    picture = [line for section in sections for line in (Text(), *section)][1:]
                    for line in picture:
                        line.truncate(console.width, overflow="ellipsis")
                    live.update(Text("\n").join(picture[: max(1, console.height - 1)]), refresh=True)
                else:
                    print_sections([*lines(curves), [Text()]], console)
            before = curves
            time.sleep(LOOK_SECONDS)
            curves = curves.refresh()
    finally:  # Ctrl-C ends it: the last picture stays
        if live is not None:
            live.stop()


def _is_awaited(path: Path) -> bool:
    """Whether nothing is there yet: no file, or a folder that was made a moment ago."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def curves_document(curves: HeadCurves, rules: Sequence[AlertRule]) -> dict[str, Any]:
    """Everything, as data: the curves, and the alerts."""
    raised = watching.alerts(curves.heads, curves.statistics, curves.steps, curves.values, rules)
    return {**curves.to_dict(), "alerts": [alert.to_dict() for alert in raised]}


def curves_page(
    curves: HeadCurves,
    statistic: str,
    heads: Sequence[str] | None,
    rules: Sequence[AlertRule],
    console: Console,
    command: bool,
) -> list[list[Text]]:
    """The same for people, in sections: what was watched, a line a layer or head, alerts, what to type next."""
    import numpy as np  # as above

    facts, steps = curves.facts, curves.steps
    title = Text.assemble(
        (clean(str(curves.path)), "bold"), f" · {clean(str(facts['model']))}" if "model" in facts else ""
    )
    if not len(steps):
        return [[title], [Text("No step yet: the first watched step of the training comes here.")]]
    span = f"{steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else f"{steps[0]:,}"
    every = f", every {facts['every']:,}" if isinstance(facts.get("every"), int) else ""
    title.append(f" · {plural(len(curves.heads), 'head')} · {plural(len(steps), 'watched step')}, {span}{every}")
    values = curves.values[:, :, curves.statistics.index(statistic)]
    raised = watching.alerts(curves.heads, curves.statistics, steps, curves.values, rules)
    counted = [Text(clean(curves.numbering), style="dim")] if curves.numbering else []
    sections = [
        [title, *counted],
        _table(curves, statistic, values, heads, {str(alert.head) for alert in raised}, console),
    ]
    checked = [rule for rule in rules if rule.statistic in curves.statistics]
    missing: list[Text] = []  # no rule knows of them, and the table draws a gap
    for name in dict.fromkeys([statistic, *(rule.statistic for rule in checked)]):
        column = np.isnan(curves.values[:, :, curves.statistics.index(name)])
        if column.any():
            gone = [str(curves.heads[place]) for place in np.flatnonzero(column.any(0)).tolist()]
            first, last = (int(steps[row]) for row in np.flatnonzero(column.any(1))[[0, -1]])
            few = ", ".join(gone[:SHOWN_ALERTS]) + (", ..." if len(gone) > SHOWN_ALERTS else "")
            where = f": {name} of {few}, first at step {first:,}, last at step {last:,}."
            missing += hanging(Text("no number (NaN)", style="bold"), where, console.width)
    sections.append(missing)
    words = [Text.assemble("  ", (str(alert), "bold" if alert.lasts else "")) for alert in raised[:SHOWN_ALERTS]]
    for line, alert in zip(words, raised, strict=False):
        value = "NaN" if math.isnan(alert.value) else f"{alert.value:.3g}"
        line.append(f" ({value}{', and is now' if alert.lasts else ', no longer'})", style="dim")
    if raised:
        more = [Text(f"  and {len(raised) - SHOWN_ALERTS} more: --json has all", style="dim")] * (
            len(raised) > SHOWN_ALERTS
        )
        sections.append([Text(f"{len(raised)} alerts" if len(raised) > 1 else "1 alert", style="bold"), *words, *more])
    else:
        heading = Text("no alerts where there are numbers" if missing else "no alerts")
        none = f": no head has {', or '.join(rule.condition for rule in checked)}."
        sections.append(hanging(heading, none, console.width) if checked else [])
    if command:
        further = [name for name in curves.statistics if name != statistic]
        line = f"manyheads watch {shlex.quote(str(curves.path))}"
        sections.append(
            offered(
                [(f"{line} --statistic {shlex.quote(name)}", "another statistic") for name in further[:1]]
                + [
                    (f"{line} --heads {layer_name(curves.heads[0].stack, curves.heads[0].layer)}", "head by head"),
                    (f"{line} --studio", "every curve, as a page that grows"),
                ],
                console,
            )
        )
    return sections


def _table(
    curves: HeadCurves,
    statistic: str,
    values: Float64[ndarray, "step head"],
    heads: Sequence[str] | None,
    alerting: set[str],
    console: Console,
) -> list[Text]:
    """A line a layer, of its largest head where the statistic is a maximum, else of the mean; or a line a head."""
    import numpy as np  # as above

    is_maximum = statistic.startswith("max_logit")
    names = [str(head) for head in curves.heads]
    rows: dict[str, list[int]] = {}
    for index, head in enumerate(curves.heads):
        if heads is None:
            rows.setdefault(layer_name(head.stack, head.layer), []).append(index)
        elif names[index] in heads:
            rows[names[index]] = [index]
    finite = np.where(np.isfinite(values), values, np.nan)
    lines = {}
    for name, members in rows.items():
        part = finite[:, members]
        counted = ~np.isnan(part).all(1)
        line = np.full(len(part), np.nan)
        line[counted] = (np.nanmax if is_maximum else np.nanmean)(part[counted], axis=1)
        lines[name] = line
    all_lines = np.stack(list(lines.values()))
    low, high = (
        (float(end(all_lines)) for end in (np.nanmin, np.nanmax)) if np.isfinite(all_lines).any() else (0.0, 0.0)
    )
    bars = BARS if knows_blocks(console) else ASCII_BARS
    last = values[-1]
    figures = _figures([line[-1] for line in lines.values()])
    heads_last = _figures(last)
    columns = [
        Column("layer" if heads is None else "head", right=False),
        Column(statistic),
        Column(f"steps {curves.steps[0]:,} to {curves.steps[-1]:,}", right=False, most=MOST_BARS),
    ]
    if heads is None:
        columns += [Column("lowest head", right=False, spare=2), Column("highest head", right=False, spare=1)]
    table = []
    for (name, line), members, figure in zip(lines.items(), rows.values(), figures, strict=True):
        marked = any(names[index] in alerting for index in members)
        cells = [
            Text(name, style="bold red" if marked else "bold"),
            Text(figure),
            Text(sparkline(line, low, high, min(MOST_BARS, len(line)), bars, is_maximum)),
        ]
        if heads is None:
            known = [index for index in members if np.isfinite(last[index])]
            ends = [min(known, key=last.__getitem__), max(known, key=last.__getitem__)] if known else []
            cells += [Text(f"{names[index]} {heads_last[index]}") for index in ends] or [Text(ABSENT), Text(ABSENT)]
        table.append(cells)
    kind = "" if heads is not None else "the largest of its heads" if is_maximum else "the mean of its heads"
    scale = f"curves from {low:.3g} to {high:.3g}"
    meaning = clean(str(curves.facts.get("meaning", {}).get(statistic, "")))
    remark = "; ".join(filter(None, [meaning, f"of a layer, {kind}" if kind else "", scale]))
    return [*lay_out(columns, table, console), *hanging(Text(), remark, console.width)]


def sparkline(line: Float64[ndarray, "step"], low: float, high: float, width: int, bars: str, is_maximum: bool) -> str:
    """A curve in `width` characters between `low` and `high`; a blank where there is no number.

    A character stands for several steps: their maximum where the statistic is one, else their mean.
    """
    import numpy as np  # as above

    out = ""
    for part in np.array_split(line, width):
        known = part[np.isfinite(part)]
        if not len(known):
            out += " "
            continue
        value = float(known.max() if is_maximum else known.mean())
        share = (value - low) / (high - low) if high > low else 0.0
        out += bars[min(len(bars) - 1, max(0, int(share * len(bars))))]
    return out


def _figures(values: Sequence[float] | Float64[ndarray, "n"]) -> list[str]:
    numbers = [float(value) for value in values]
    finite = iter(aligned([value for value in numbers if math.isfinite(value)], digits=3, most=4))
    return [next(finite) if math.isfinite(value) else "NaN" if math.isnan(value) else ABSENT for value in numbers]
