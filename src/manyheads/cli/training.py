"""The commands of trainings: `train`, a preset; `watch`, the heads of any; `reproduce`, a published result.

`manyheads train`: small models of our own layers, each of which shows one thing about heads.
`manyheads watch heads.parquet`: the heads of a training, a line a layer, while it runs or afterwards.
`manyheads reproduce`: published results, made again: the paper's number beside ours.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.text import Text

from manyheads import figures, training, watching
from manyheads.cli import ASKED_WRONG
from manyheads.cli.arguments import AsJson, DeviceName, chosen_place
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
    print_listing,
    print_sections,
    print_whole,
    stdout_console,
)
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import FileAccessError, LostProcessError, ManyHeadsError, PlanError, StatisticError
from manyheads.heads import layer_name, parse_heads
from manyheads.reproductions.table import REPRODUCTIONS, reproduction_of
from manyheads.training.presets.table import PRESETS, preset_of

if TYPE_CHECKING:
    from jaxtyping import Float64
    from numpy import ndarray
    from rich.console import Console

    from manyheads.reproductions import Reproduced
    from manyheads.training import Outcome
    from manyheads.watching import AlertRule, HeadCurves


FIGURE = "figure.svg"
TO_SPEAK_SECONDS = 30  # for the first process: torchrun ends all of them as soon as one has ended
PRESET_HELP = "What to train. Default: list them."
QUICK_HELP = "A trial of seconds: everything runs, nothing is learned."
OUT_HELP = "Folder to write; a stopped training continues from it. Default: the preset's name."
DATA_HELP = "Files to learn from, for presets that take them (rul: a C-MAPSS folder). Default: the preset's own."
STEPS_HELP = "How many steps. Default: the preset's own."


def train(
    preset: Annotated[str | None, typer.Argument(metavar="PRESET", help=PRESET_HELP, show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK_HELP)] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help=OUT_HELP, show_default=False)] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of weights and data.")] = 0,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help=STEPS_HELP, show_default=False)] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="PATH", help=DATA_HELP, show_default=False)] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
) -> None:
    """Train a small model that shows one thing about heads, and write what came out into a folder.

    A training that was stopped continues with the same line, with the same losses as if it had never stopped.
    Several processes share every batch: torchrun --nproc-per-node 2 -m manyheads train induction

    For example: manyheads train induction --out circuit
    """
    with _first_speaks() as talk:
        if preset is None:
            options = {"--quick": quick, "--out": out, "--steps": steps, "--data": data, "--device": device}
            if names := [name for name, value in options.items() if value is not None and value is not False]:
                raise PlanError(f"{names[0]} was given, but no preset: say which of {', '.join(PRESETS)} to train.")
            print_listing(
                "presets", PRESETS.values(), as_json, (), (f"Train one: manyheads train {next(iter(PRESETS))}",)
            )
            return
        with talk.step("getting ready to train"):
            chosen = preset_of(preset)
            if device is not None:
                chosen_place(device)
        folder = Path(chosen.name + ("-quick" if quick else "")) if out is None else out
        with talk.steps() as stages:
            outcome = training.carry_out(
                chosen, folder, seed=seed, quick=quick, steps=steps, data=data, device=device, progress=stages.begin
            )
        if outcome.rank:
            return
        with talk.step("drawing the figure"):
            figures.save_chart(outcome.findings.chart, folder / FIGURE)
    if as_json:
        emit(json.dumps(outcome_document(outcome), indent=1, allow_nan=False))
    else:
        print_whole(outcome_page(outcome))


@contextmanager
def _first_speaks() -> Iterator[Talk]:
    """Under torchrun the first process speaks for all: what is wrong with options or data, every one of them finds."""
    talk, rank, world = Talk(), int(os.environ.get("RANK", "0")), os.environ.get("WORLD_SIZE", "1")
    if rank:
        talk.silence()
    elif world != "1":
        talk.note(f"{world} processes share every batch")
    try:
        yield talk
    except ManyHeadsError as error:
        if rank and not isinstance(error, LostProcessError | FileAccessError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what torchrun sends, once the first has spoken and ended
            time.sleep(TO_SPEAK_SECONDS)
            raise typer.Exit(ASKED_WRONG) from error
        raise


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """What report.json holds, and where everything is."""
    return {**outcome.report, "folder": str(outcome.folder), "files": files_of(outcome)}


def outcome_page(outcome: Outcome) -> list[str]:
    """The same for people."""
    report = outcome.report
    steps = sum(run["steps"] for run in report["runs"].values())
    lines = [f"{report['preset']}: {'a trial of ' * report['quick']}{steps:,} steps, seed {report['seed']}"]
    for name, run in report["runs"].items():
        taken_up = f", taken up at step {run['resumed_at']:,}" if run["resumed_at"] else ""
        ended = f"; {run['ended']}, and it ended" if "ended" in run else ""
        lines.append(
            f"  {name}: {run['parameters']:,} parameters, loss {run['loss']:.3f}, {run['training_seconds']:.0f} s of "
            f"training{taken_up}{ended}; {run['computed']}"
        )
    lines += ["", *map(clean, outcome.findings.lines), ""]
    return [*lines, *(f"wrote {clean(str(outcome.folder / name))}" for name in files_of(outcome))]


def files_of(outcome: Outcome) -> list[str]:
    """What is there for whoever looks: not what the training keeps for itself."""
    names = ("report.json", FIGURE, "metrics.parquet", "heads.parquet", "heads", "model", "texts.jsonl")
    return [name for name in names if (outcome.folder / name).exists()]


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


def limit(name: str, unit: str, default: float) -> Any:
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

    Trainings write the file: mh.watch(model, out="heads.parquet"), or HeadWatch(out=...) for a Trainer.

    For example: manyheads watch heads.parquet --statistic entropy --follow
    """
    talk = Talk()
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
    if in_studio:
        _open_page(talk, path, browser)
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


def _open_page(talk: Talk, path: Path, browser: bool) -> None:
    """The studio with this file alone, at its room."""
    with talk.step("starting the studio"):
        desk = desk_of([], None, None, None, None)
    name = path.resolve().name
    desk.workspace.histories[name] = path
    open_studio(talk, desk, browser=browser, view=f"#/training?history={desk.workspace.history_id(name)}")


def curves_document(curves: HeadCurves, rules: Sequence[AlertRule]) -> dict[str, Any]:
    """Everything, as data: the run's facts, steps, every head's curves by statistic, and the alerts."""
    import numpy as np  # a tenth of a second: not for --help

    plain = np.where(np.isfinite(curves.values), curves.values, np.nan)
    missing = np.isnan(plain)
    objects = plain.astype(object)
    objects[missing] = None
    return {
        "file": str(curves.path),
        "facts": curves.facts,
        "steps": curves.steps.tolist(),
        "heads": {
            str(head): {name: objects[:, column, index].tolist() for index, name in enumerate(curves.statistics)}
            for column, head in enumerate(curves.heads)
        },
        "alerts": [
            alert.to_dict()
            for alert in watching.alerts(curves.heads, curves.statistics, curves.steps, curves.values, rules)
        ],
    }


def curves_page(
    curves: HeadCurves,
    statistic: str,
    heads: Sequence[str] | None,
    rules: Sequence[AlertRule],
    console: Console,
    command: bool,
) -> list[list[Text]]:
    """The same for people, in sections: what was watched, a line a layer or head, alerts, what to type next."""
    facts, steps = curves.facts, curves.steps
    title = Text.assemble(
        (clean(str(curves.path)), "bold"), f" · {clean(str(facts['model']))}" if "model" in facts else ""
    )
    if not len(steps):
        return [[title], [Text("No step yet: the first watched step of the training comes here.")]]
    every = f", every {facts['every']:,}" if isinstance(facts.get("every"), int) else ""
    title.append(f" · {len(curves.heads):,} heads · {len(steps):,} watched steps, {steps[0]:,} to {steps[-1]:,}{every}")
    values = curves.values[:, :, curves.statistics.index(statistic)]
    raised = watching.alerts(curves.heads, curves.statistics, steps, curves.values, rules)
    counted = [Text(clean(curves.numbering), style="dim")] if curves.numbering else []
    sections = [
        [title, *counted],
        _table(curves, statistic, values, heads, {str(alert.head) for alert in raised}, console),
    ]
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
        checked = [rule.condition for rule in rules if rule.statistic in curves.statistics]
        sections.append(
            hanging(Text("no alerts"), f": no head has {', or '.join(checked)}.", console.width) if checked else []
        )
    if math.isnan(values.sum()):  # no rule knows of them, and the table draws a gap
        gone = [str(head) for head, column in zip(curves.heads, values.T, strict=True) if math.isnan(column.sum())]
        span = [int(step) for step, row in zip(steps, values, strict=True) if math.isnan(row.sum())]
        few = ", ".join(gone[:SHOWN_ALERTS]) + (", ..." if len(gone) > SHOWN_ALERTS else "")
        words = f": {statistic} of {few}, first at step {span[0]:,}, last at step {span[-1]:,}."
        sections.append(hanging(Text("no number (NaN)", style="bold"), words, console.width))
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


NAME_HELP = "What to reproduce. Default: list them."
FILE_HELP = "The file that wu-scores reads: one of head_score in github.com/nightdessert/Retrieval_Head."
SEEDS_HELP = "How many seeds to train. Default: 3."
TRIAL_HELP = "A trial of seconds: everything runs, and no result is shown."
MADE_HELP = "Folder to write; a stopped reproduction continues from it. Default: the name."
OPENING = (
    "What papers report, each line in short. A reproduction trains small models on this machine and says whether",
    "it comes out there: the paper's number, ours for three seeds, a verdict (times on two cores).",
    "",
)
ENDING = (
    "Make one: manyheads reproduce zhai-collapse",
    "Ours so far:  in the documentation, What published numbers say",
)


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help=NAME_HELP, show_default=False)] = None,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help=FILE_HELP, show_default=False)] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="N", help=SEEDS_HELP, show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help=TRIAL_HELP)] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help=MADE_HELP, show_default=False)] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
) -> None:
    """Make a published result again on small models: the paper's number beside ours, with seeds and a verdict.

    Writes a page, a figure and the numbers into a folder. What does not come out is shown as such.

    For example: manyheads reproduce zhai-collapse
    """
    if name is None:
        options = {"--seeds": seeds, "--quick": quick, "--out": out, "--device": device}
        if not as_json and (names := [option for option, value in options.items() if value not in (None, False)]):
            raise PlanError(f"{names[0]} was given, but no name: say which of {', '.join(REPRODUCTIONS)}.")
        print_listing("reproductions", REPRODUCTIONS.values(), as_json, OPENING, ENDING)
        return
    # Imports torch, for which the list is not to wait.
    from manyheads import reproductions

    talk = Talk()
    with talk.step("getting ready"):
        chosen = reproduction_of(name)
        if device is not None:
            chosen_place(device)
    folder = Path(chosen.name + ("-quick" if quick else "")) if out is None else out
    with talk.steps() as stages:
        made = reproductions.reproduce(
            chosen, folder, file=file, seeds=seeds, quick=quick, device=device, progress=stages.begin
        )
    with talk.step("drawing the figure"):
        figures.save_chart(made.result.chart, folder / "figure.svg")
    if as_json:
        emit_document({**made.document, "folder": str(folder)})
    else:
        print_whole(reproduced_page(made))


def reproduced_page(made: Reproduced) -> list[str]:
    """The result for people: a block a row, since six columns of words fit no terminal."""
    # Imports torch, for which --help is not to wait.
    from manyheads.reproductions.reproduction import each_words, made_words, mean_words

    document = made.document
    lines = [f"{document['name']}: {document['title']}", document["paper"], f"It reports: {document['reports']}", ""]
    if document["quick"]:
        lines += ["A trial: everything ran, on next to nothing. None of the numbers below is a result.", ""]
    for row in document["rows"]:
        mean, must_hold = mean_words(row), row["must_hold"]
        lines.append(f"{'no result' if document['quick'] else row['verdict']:<17}  {row['quantity']}")
        lines.append(f"{'':<17}  the paper: {row['paper']}")
        lines.append(f"{'':<17}  here: {each_words(row)}" + (f"; mean {mean}" if mean else ""))
        lines += [f"{'':<17}  must hold: {must_hold}"] if must_hold else []
    lines += ["", *map(clean, document["notes"]), f"Not comparable: {' '.join(document['not_comparable'])}"]
    lines += [f"{made_words(document)}", ""]
    files = ("page.md", "figure.svg", "result.json")
    return [*lines, *(f"wrote {clean(str(made.folder / file))}" for file in files)]
