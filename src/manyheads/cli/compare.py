"""`manyheads compare A B`: what differs between the heads of two models, or of two checkpoints of one training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from manyheads.cli.arguments import (
    TABLE_ENDINGS,
    AsJson,
    CorpusFiles,
    DeviceName,
    DtypeName,
    ModelChoice,
    StatisticNames,
    TextOrOwn,
    TextsAreLines,
    TextsFile,
    check_output,
    check_statistics,
    given_corpora,
    load_model,
    requested_statistics,
    to_file,
)
from manyheads.cli.role_words import ABSENT, figure, hue
from manyheads.cli.terminal.console import (
    Column,
    Row,
    aligned,
    cells_of,
    clean,
    drawn,
    emit_document,
    hanging,
    lay_out,
    offered,
    print_sections,
    rules_of,
    shades_of,
    stdout_console,
)
from manyheads.cli.terminal.progress import Talk
from manyheads.roles.role_table import UNLABELLED

if TYPE_CHECKING:
    from rich.console import Console

    from manyheads.roles import Comparison
    from manyheads.statistics import Statistic

FIRST_HELP = "A model: minilm or tiny-code (bundled), a folder, or a name on the Hugging Face hub."
SECOND_HELP = "Another of the same shape, as another checkpoint of the same training."
ROWS_HELP = "Compare at most so many rows of each text's maps. Default: all."
LISTED = 10  # heads that are shown unless all are asked for


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=FIRST_HELP)],
    b: Annotated[str, typer.Argument(metavar="B", help=SECOND_HELP)],
    text: TextOrOwn = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    corpus: CorpusFiles = None,
    statistics: StatisticNames = "default",
    rows: Annotated[int | None, typer.Option("--rows", metavar="N", min=1, help=ROWS_HELP)] = None,
    complete: Annotated[bool, typer.Option("--all", help="Every head that differs.")] = False,
    save: Annotated[Path | None, to_file("--save", "Write a row a head: .parquet, .csv or .json.")] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """What differs between the heads of two models of one shape, on the same texts: maps, statistics, labels.

    Two checkpoints of a training, or a base and a tuned model. The furthest apart come first; a model with itself shows
    nothing.

    For example: manyheads compare run/step-1000 run/step-2000 --file novel.txt
    """
    # Imports torch, for which --help is not to wait.
    from manyheads.roles.compare.two_models import READINGS
    from manyheads.roles.compare.two_models import compare as compare_models

    talk = Talk()
    check_output(save, "--save", TABLE_ENDINGS)
    request = requested_statistics(statistics)
    texts, _, origin = given_corpora(talk, text or [], file, lines, corpus, a)
    check_statistics(request, texts)
    first = load_model(talk, ModelChoice(a, device, dtype))
    second = first if a == b else load_model(talk, ModelChoice(b, device, dtype))
    labels = {READINGS[0]: f"reading the texts by {a}", READINGS[1]: f"reading the texts by {b}"}
    with talk.steps() as steps:

        def begin(name: str) -> None:
            steps.begin(labels.get(name, "comparing their maps"))

        result = compare_models(first, second, texts, request, rows=rows, progress=steps.progress, on_reading=begin)
    if save is not None:
        result.save(save)
    if as_json:
        emit_document({"origin": origin, **result.to_dict()})
        return
    console = stdout_console()
    print_sections(_page(result, (a, b), origin, complete, save, console), console)


def _page(
    result: Comparison, names: tuple[str, str], origin: str, complete: bool, saved: Path | None, console: Console
) -> list[list[Text]]:
    """What it comes to, a map of all heads, those furthest apart, labels that changed, and what all rests on."""
    tokens = result.before.sums.num_tokens
    basis = f"{names[0]} and {names[1]} on {origin}: {tokens:,} tokens, {result.num_rows:,} rows of each map"
    title = [
        Text(f"{result.summary[:1].upper()}{result.summary[1:]}.", style="bold"),
        *hanging(Text(), clean(basis), console.width),
        *([Text(f"wrote {clean(str(saved))}", style="dim")] if saved is not None else []),
    ]
    if not result.changed:
        return [title]
    num_differences = sum(len(head.differences) for head in result.changed)
    clear = (
        f"{result.num_clear:,} of the {num_differences:,} differences of these heads in {len(result.statistics)} "
        f"statistics have an interval that leaves out 0 (by chance alone, 1 in 20 would)."
        if result.num_texts > 1
        else "Of one text there are no intervals."
    )
    remarks = [line for words in (clear, *_notes(result)) for line in hanging(Text(), words, console.width)]
    for line in remarks:
        line.stylize("dim")
    offers = [] if complete or len(result.changed) <= LISTED else [
        (f"manyheads compare {names[0]} {names[1]} --all", f"all {len(result.changed)} heads that differ")
    ]  # fmt: skip
    return [
        title,
        _grid(result, console),
        _table(result, complete, console),
        _labels(result, complete),
        remarks,
        offered(offers, console),
    ]


def _notes(result: Comparison) -> list[str]:
    few = "" if labelled(result) else "No head has a label on these texts: labels need some hundreds of them."
    return [words for words in (few, *(result.notes.get(name, "") for name in ("windows", "failed"))) if words]


def labelled(result: Comparison) -> bool:
    """Whether any head has a label in either model."""
    return any(role.name != UNLABELLED for pair in result.labels for role in pair)


def _grid(result: Comparison, console: Console) -> list[Text]:
    """Layers down, heads across: the darker, the further apart."""
    layers: dict[tuple[str, int], list[float]] = {}
    for head, moved in zip(result.heads, result.moved.tolist(), strict=True):
        layers.setdefault((head.stack, head.layer), []).append(moved)
    shades, largest = shades_of(console), max(value for values in layers.values() for value in [0.0, *values])
    if largest <= 0:
        return []
    names = [f"{stack}:L{layer}" if stack else f"L{layer}" for stack, layer in layers]
    wide = max(map(len, names))
    lines = [Text("How far apart the two maps of each head are", style="bold")]
    for name, values in zip(names, layers.values(), strict=True):
        lines.append(Text.assemble(f"{name:<{wide}}  ", drawn(cells_of(values, largest, shades), shades)))
    return [*lines, Text(f"{shades[-1]} is up to {largest:.2g} nats; 0 is alike, 0.69 nothing in common", style="dim")]


def _table(result: Comparison, complete: bool, console: Console) -> list[Text]:
    """A row for each head, the furthest apart first."""
    heads = result.changed if complete else result.changed[:LISTED]
    moved = aligned([0.0 if head.moved is None else head.moved for head in heads], digits=3, most=4)
    columns = [Column("head", right=False), Column("apart, nats"), Column("95 %", spare=3)]
    columns += [Column("changed most", right=False), Column("before"), Column("after"), Column("by", spare=2)]
    columns += [Column("label", right=False, spare=1, most=36)] if labelled(result) else []
    rows: list[Row] = []
    for head, apart in zip(heads, moved, strict=True):
        most = result.largest(head.head)
        cells = [Text(str(head.head), style="bold"), Text(ABSENT if head.moved is None else apart)]
        known = head.moved_low is not None and head.moved_high is not None
        cells.append(
            Text("–".join(aligned([head.moved_low or 0.0, head.moved_high or 0.0], 3, 4)) if known else ABSENT)
        )
        if most is None:
            cells += [Text(ABSENT, style="dim"), Text(), Text(), Text()]
        else:
            unit = unit_in(result, most.statistic)
            change = figure(most.difference, unit)
            cells += [Text(most.statistic), Text(figure(most.before, unit)), Text(figure(most.after, unit))]
            cells.append(Text(change if change.startswith("-") else f"+{change}"))
        if labelled(result):
            same = head.label_before == head.label_after
            words = head.label_after if same else f"{head.label_before} → {head.label_after}"
            cells.append(Text(clean(words or ""), style=hue(head.label_after or "")))
        rows.append(cells)
    title = Text("The furthest apart" if len(heads) < len(result.changed) else "All heads that differ", style="bold")
    return [title, *lay_out(columns, rows, console.width, **rules_of(console))]


def unit_in(result: Comparison, name: str) -> str:
    """The unit of a statistic of the comparison."""
    by_name: dict[str, Statistic] = {statistic.name: statistic for statistic in result.before.statistics}
    return by_name[name].unit


def _labels(result: Comparison, complete: bool) -> list[Text]:
    """The heads whose label changed, and from what to what."""
    if not result.relabelled:
        return []
    shown = result.relabelled if complete else result.relabelled[:LISTED]
    wide = max(len(str(head.head)) for head in shown)
    lines = [
        Text.assemble((f"{head.head!s:<{wide}}  ", "bold"), clean(f"{head.label_before} → {head.label_after}"))
        for head in shown
    ]
    more = len(result.relabelled) - len(shown)
    rest = [Text(f"and {more} more: --all", style="dim")] if more else []
    return [Text("Labels that changed", style="bold"), *lines, *rest]
