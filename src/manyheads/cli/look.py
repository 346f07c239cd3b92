"""`manyheads look`: what every head of a model does, and what it does on your text.

Roles come from the bundled page (hundreds of texts, measured once for each model), never from one sentence; the
numbers of your text stand beside them. Shown as a page to read, as one JSON document, or as a frame with a row a head.
"""

from __future__ import annotations

import operator
import textwrap
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from manyheads import figures, studio
from manyheads import statistics as measures
from manyheads.base import users_home
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    PICTURE_ENDINGS,
    TABLE_ENDINGS,
    AsJson,
    DeviceName,
    DtypeName,
    ModelChoice,
    ModelName,
    NoCache,
    Source,
    TextFile,
    TextWords,
    check_output,
    label_heads,
    load_model,
    read_source,
    source_note,
    to_file,
    way_to_read,
)
from manyheads.cli.role_words import by_role, example_head, figure, nearest_role, plain, role_of, span, unit_of
from manyheads.cli.studio import open_studio
from manyheads.cli.terminal.console import (
    Column,
    Row,
    clean,
    emit_document,
    lay_out,
    left_out,
    print_sections,
    rules_of,
    shortened,
    stdout_console,
)
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import ModelError, TextError
from manyheads.roles.role_table import CAVEAT, UNLABELLED, role_style

if TYPE_CHECKING:
    import pandas as pd

PAGE_ENDINGS = (".html", ".htm")
SHOWN = ("entropy", "distance", "sink_mass", "duplicate_mass")
"""Statistics of your text that stand beside the roles unless others are asked for by name."""


@dataclass(frozen=True)
class Looked:
    """All that one look found: the labels from the page, the table of your text, and what it took.

    `names` are the statistics that were asked for; the table may hold more. `written` are the files, in words, and
    `options` those that asked for them; `seconds` are those of the steps: loading the model, the labels, the text, and
    all.
    """

    lm: Any
    model: ModelChoice
    source: Source
    labels: Any
    table: Any
    names: tuple[str, ...]
    written: tuple[str, ...]
    seconds: dict[str, float]
    options: tuple[str, ...] = ()


def look(
    text: TextWords = None,
    file: TextFile = None,
    model: ModelName = DEFAULT_MODEL,
    as_json: AsJson = False,
    save: Annotated[Path | None, to_file("--save", "Write the table: .parquet, .csv or .json.")] = None,
    plot: Annotated[Path | None, to_file("--plot", "Draw every head's map: .png, .svg or .pdf.")] = None,
    html: Annotated[Path | None, to_file("--html", "Write one page with every head, for any browser.")] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Let that page compute any cell: it holds q, k and lse.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Then open the studio at this text, until Ctrl-C.")] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut a text longer than the model's positions.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Refuse a text longer than the model's positions.")] = False,
    statistics: Annotated[
        str, typer.Option("--statistics", metavar="NAMES", help="default, all, or names separated by commas.")
    ] = "default",
    no_cache: NoCache = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """What every head of a model does, with the evidence, and its numbers on your text.

    A text longer than the model's positions is read in overlapping windows.

    Roles rest on hundreds of texts that come with manyheads, measured once for each model and remembered.

    For example: manyheads look --file novel.txt --plot grid.png
    """
    words, long = text or [], way_to_read(truncate, whole)
    check_output(save, "--save", TABLE_ENDINGS)
    check_output(plot, "--plot", PICTURE_ENDINGS)
    check_output(html, "--html", PAGE_ENDINGS)
    if exact and html is None:
        raise TextError("--exact is about the page of --html: give --html page.html, too.")
    if (html is not None or open_page) and find_spec("fastapi") is None:
        option = "--html" if html is not None else "--open"
        raise ModelError(f'{option} needs the studio: pip install "manyheads[studio]".')
    if open_page and as_json:
        raise TextError("--json writes data to stdout and ends, --open stays until Ctrl-C: give one of them.")
    source, talk = read_source(words, file, model), Talk()
    if note := source_note(words, file, model):
        talk.note(note)
    choice = ModelChoice(model, device, dtype)
    looked = gather(
        talk, source, choice, statistics, long, save=save, plot=plot, html=html, exact=exact, remember=not no_cache
    )
    if as_json:
        emit_document(document(looked))
    else:
        print_page(looked)
    if open_page:
        with talk.step("starting the studio"):
            desk = studio.desk_with(looked.lm, looked.labels)
            studio.open_text(desk, looked.lm, source.text)
        open_studio(talk, desk, view=studio.address_of(looked.lm.name, source.text))


def gather(
    talk: Talk,
    source: Source,
    model: ModelChoice,
    statistics: str,
    long: str,
    *,
    save: Path | None = None,
    plot: Path | None = None,
    html: Path | None = None,
    exact: bool = False,
    remember: bool = True,
) -> Looked:
    """Load, label and measure, and write the files that were asked for."""
    times = [time.perf_counter()]
    with talk.step("starting"):  # misspelt statistics are refused before a model is loaded
        # Imports torch, for which --help is not to wait: within the step, so that the wait is announced.
        from manyheads.statistics.table import choose

        listed = [name.strip() for name in statistics.split(",") if name.strip()]
        chosen = choose(listed[0] if listed in (["default"], ["all"]) else listed)
        names = tuple(statistic.name for statistic in chosen)
    lm = load_model(talk, model)
    times.append(time.perf_counter())
    labels = label_heads(talk, lm, remember=remember)
    times.append(time.perf_counter())
    # What was asked for, what the page shows, and what each head's role is about.
    measured = tuple(dict.fromkeys((*names, *SHOWN, *(role.evidence.statistic for role in labels.roles))))
    sinks = labels.sinks if labels.roles else None
    with talk.step("reading your text") as progress:
        table = measures.measure(lm, source.text, measured, long=long, sinks=sinks, progress=progress)
    times.append(time.perf_counter())
    written = []
    if save is not None:
        measures.write_frame(frame(labels, table, names), save)
        written.append(f"{save}, a row a head: its role, and {len(names)} statistics of your text")
    if plot is not None:
        with talk.step("reading your text for the maps") as progress:
            maps = measures.pooled_maps(lm, source.text, long=long, progress=progress)
        with talk.step(f"drawing {plot.name}"):
            note = f"Roles rest on {labels.num_texts:,} {labels.texts_are}." if labels.roles else ""
            figures.save_grid(maps, labels.roles or None, plot, title=f"{lm.name}: {len(maps.heads)} heads", note=note)
        written.append(f"{plot}, the map of every head: {maps.because}")
    if html is not None:
        with talk.step(f"writing {html.name}") as progress:
            words = studio.write_report(html, lm, source.text, labels=labels, long=long, progress=progress, exact=exact)
        written.append(f"{html}, a page for any browser, without a network: {words}")
    steps = dict(zip(("model", "labels", "text"), map(operator.sub, times[1:], times), strict=True))
    seconds = {**steps, "all": time.perf_counter() - times[0]}
    options = tuple(name for name, path in (("--save", save), ("--plot", plot), ("--html", html)) if path is not None)
    return Looked(lm, model, source, labels, table, names, tuple(written), seconds, options)


# ---------------------------------------------------------------------------------------------------------------------
# The page: what was read, what heads do, a row for each head, what to try next.


TITLES = {"sink_mass": "sink", "duplicate_mass": "repeat"}
LABEL_WIDTH = 9
PAGE, YOURS = "on the page", "on your text"


def print_page(looked: Looked) -> None:
    console = stdout_console()
    arguments = looked.source.arguments and f" {looked.source.arguments}"
    model = looked.model.arguments
    head = example_head(looked.labels) or looked.table.heads[0]
    offers = [(f"manyheads head {head}{arguments}{model}", "one head: where each word looks")]
    if not looked.source.origin.startswith("file"):
        offers.append((f"manyheads look --file novel.txt{model}", "a text of your own, of any length"))
    elif "--save" not in looked.options:
        offers.append((f"manyheads look{arguments}{model} --save heads.parquet", "the table, for pandas"))
    if "--plot" not in looked.options:
        offers.append((f"manyheads look{arguments}{model} --plot grid.png", "every head's map in one picture"))
    loaded = hanging(Text("Loaded  ", style="dim"), home(looked.lm.because), console.width)
    last = [*loaded, Text(), *offered(offers, console)]
    print_sections([_headline(looked, console), _summary(looked, console), _table(looked, console), last], console)


def _headline(looked: Looked, console: Console) -> list[Text]:
    """What was read, what the roles rest on, and how long it took."""
    spec, table, labels, source = looked.lm.spec, looked.table, looked.labels, looked.source
    millions, seconds = spec.num_parameters / 1e6, looked.seconds
    size = f"{millions:,.1f} million parameters" if millions >= 0.1 else f"{spec.num_parameters:,} parameters"
    lines = [Text.assemble((clean(looked.lm.name), "bold"), f" · {shape_in_words(spec)} · {size}")]
    count = f" · {table.sums.num_tokens:,} tokens{f', {source.origin}' if source.own else ''}"
    text = shortened(source.text, console.width - LABEL_WIDTH - len(count) - 2)
    basis = f"rest on {labels.num_texts:,} {labels.texts_are}, {labels.num_tokens:,} tokens; {labels.because}"
    error = table.notes.get("guard_error", "?")
    page = f"{seconds['labels']:.1f} to read the page, " if seconds["labels"] >= 0.05 else ""
    steps = f"{seconds['model']:.1f} to load the model, {page}{seconds['text']:.1f} to read the text"
    facts = [
        ("text", f'"{text}"{count}'),
        ("windows", table.notes.get("windows", "")),
        ("decoder", table.notes.get("decoder", "")),
        ("roles", basis if labels.roles else f"none: {labels.because}"),
        ("weights", f"exact: {table.notes.get('backend')}; off from the model's own output by {error} at most"),
        ("took", f"{seconds['all']:.1f} seconds: {steps}"),
        *(("wrote", path) for path in looked.written),
    ]
    for name, value in facts:
        if value:
            lines += hanging(Text(f"{name:<{LABEL_WIDTH}}", style="dim"), home(value), console.width)
    return lines


def shape_in_words(spec: Any) -> str:
    """ "6 layers x 12 heads"; where layers differ or there are several stacks, as much as is true."""
    phrases = []
    for name, counts in spec.shape.items():
        counts = [count for count in counts if count]
        heads_in_words = f"{counts[0]} heads" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} heads"
        phrases.append(f"{name} {len(counts)} layers x {heads_in_words}".strip())
    return ", ".join(phrases)


def home(text: str) -> str:
    """Paths in the user's own folder, as people write them."""
    folder = users_home()
    return clean(text) if folder is None else clean(text).replace(f"{folder}/", "~/")


def hanging(label: Text, words: str, width: int) -> list[Text]:
    """A label and words beside it, wrapped under themselves."""
    rows = textwrap.wrap(words, max(20, width - label.cell_len), break_on_hyphens=False) or [""]
    starts = [label, *(Text(" " * label.cell_len) for _ in rows[1:])]
    return [Text.assemble(start, row) for start, row in zip(starts, rows, strict=True)]


def _summary(looked: Looked, console: Console) -> list[Text]:
    """A line for each role: how many heads have it, and the strongest of them."""
    labels = looked.labels
    if not labels.roles:
        return []
    lines = [Text(f"What the {len(labels.roles)} heads do", style="bold")]
    groups = by_role(labels)
    wide = max(len(clean(name)) for name in groups)
    head_width = max(len(str(role.head)) for role in labels.roles)
    for name, roles in groups.items():
        start = Text.assemble(f"{len(roles):4}  ", (f"{clean(name):<{wide}}", hue(name)), "  ")
        if name == UNLABELLED:
            lines += hanging(start, "no rule holds with enough evidence", console.width)
        else:
            start.append(f"{roles[0].head!s:<{head_width}}", style="bold").append("  ")
            lines += hanging(start, clean(roles[0].evidence.words), console.width)
    sinks = labels.sinks
    parked = f"found, not assumed: {sinks.because}" if sinks.names else sinks.because
    rows = max(role.evidence.num_queries for role in labels.roles)
    remarks = (
        "Beside each role: how many heads, and the strongest of them. Roles are chosen on one half of the texts; all "
        f"figures are from the other half ({rows:,} tokens).",
        f"Sink, where attention goes that has nothing to do: {parked}.",
        CAVEAT,
    )
    return [*lines, Text()] + [Text(line) for remark in remarks for line in textwrap.wrap(clean(remark), console.width)]


def hue(name: str) -> str:
    """The role's colour in a terminal; unlabelled heads are faint."""
    return "dim" if name == UNLABELLED else role_style(name).terminal


def _table(looked: Looked, console: Console) -> list[Text]:
    """A row for each head, a rule before each layer; what the columns mean stands above, what had no room below."""
    labels, table = looked.labels, looked.table
    everything = set(looked.names) in (set(measures.DEFAULT), set(measures.STATISTICS))
    names = list(SHOWN if everything else looked.names)  # those asked for by name, else a handful
    columns = [Column("head", PAGE if labels.roles else "", right=False)]
    if labels.roles:
        columns += [
            Column("role", PAGE, right=False, most=26),
            Column("score", PAGE),
            Column("chance", PAGE),
            Column("95% interval", PAGE, spare=1),
            Column("score", YOURS),
        ]
    columns += [Column(TITLES.get(name, name), YOURS, spare=2 + index) for index, name in enumerate(names)]
    rows: list[Row] = []
    values = {name: table.column(name) for name in table.names}
    layer = None
    for index, head in enumerate(table.heads):
        if (head.stack, head.layer) != layer:
            rows.append(None)
            layer = (head.stack, head.layer)
        yours = {name: float(column[index]) for name, column in values.items()}
        rows.append([
            Text(str(head), style="bold"),
            *_role_cells(role_of(labels, head), yours),
            *(Text(figure(yours[name], unit_of(name))) for name in names),
        ])  # fmt: skip
    remark = ""
    if hidden := left_out(columns, rows, console.width):
        remark = f"No room here for {', '.join(hidden)}: --json and --save hold all."
    elif set(names) < set(looked.names):
        remark = f"Of {len(looked.names)} statistics of your text here are {len(names)}: --json and --save hold all."
    return [
        *_legend(bool(labels.roles), names, console),
        *lay_out(columns, rows, console.width, **rules_of(console)),
        *(Text(line, style="dim") for line in textwrap.wrap(remark, console.width)),
    ]


def _role_cells(role: Any, yours: dict[str, float]) -> list[Text]:
    """A head's role with its figures on the page, and the role's statistic on your text; none without labels."""
    if role is None:
        return []
    near, unit, evidence = nearest_role(role), unit_of(role.evidence.statistic), role.evidence
    style, faint = hue(role.name), "dim" if near else ""
    return [
        Text(f"{UNLABELLED} ({near}?)" if near else clean(role.name), style=style),
        Text(figure(evidence.score, unit), style=faint or style),
        Text(figure(evidence.chance, unit), style=faint),
        Text(span(evidence.low, evidence.high, unit), style=faint),
        Text(figure(yours.get(evidence.statistic), unit), style=faint or style),
    ]


def _legend(has_roles: bool, names: list[str], console: Console) -> list[Text]:
    """What the columns mean."""
    entries = []
    if has_roles:
        entries += [
            ("score", "how much of its attention goes to what the role names (broad: how spread it is, in nats)"),
            ("chance", "the same with attention spread evenly, or with the words shuffled: the higher of the two"),
            ("(local?)", "unlabelled: that is the role it came nearest to"),
        ]
    if names == list(SHOWN):
        entries += [
            ("your text", "the same score there; distance in tokens; the share on the sink, and on repeated tokens")
        ]
    else:
        defined = measures.STATISTICS
        entries += [(name, defined[name].meaning) for name in names if name in defined]
    wide = 2 + max(len(label) for label, _ in entries)
    lines = [line for label, words in entries for line in hanging(Text(f"{label:<{wide}}"), words, console.width)]
    for line in lines:
        line.stylize("dim")
    return [Text("Every head", style="bold"), *lines, Text()]


def offered(offers: list[tuple[str, str]], console: Console) -> list[Text]:
    """Commands to copy, each with what it shows beside it; below it where there is no room.

    One that holds what cannot be shown as it is (a control character in a text) is not offered.
    """
    offers = [(command, purpose) for command, purpose in offers if clean(command) == command]
    if not offers:
        return []
    wide = max(len(command) for command, _ in offers)
    has_room = 4 + wide + max(len(purpose) for _, purpose in offers) <= console.width
    lines = [Text("Try next", style="bold")]
    for command, purpose in offers:
        if has_room:
            lines.append(Text.assemble(f"  {command:<{wide}}", (f"  {purpose}", "dim")))
        else:
            lines += [Text(f"  {command}"), Text(f"      {purpose}", style="dim")]
    return lines


# ---------------------------------------------------------------------------------------------------------------------
# The same as data: one JSON document, and a frame with a row a head.


def document(looked: Looked) -> dict[str, Any]:
    """Everything; null where there is no number."""
    lm, labels, table, source = looked.lm, looked.labels, looked.table, looked.source
    columns = {name: table.column(name) for name in table.names}
    heads = []
    for index, head in enumerate(table.heads):
        role = role_of(labels, head)
        heads.append({
            "head": str(head),
            "stack": head.stack,
            "layer": head.layer,
            "index": head.index,
            "role": None if role is None else role.name,
            "evidence": None if role is None else evidence_of(role),
            "page": labels.values.get(str(head)),
            "text": {name: measures.number(column[index]) for name, column in columns.items()},
        })  # fmt: skip
    return {
        "model": {"asked": looked.model.name, "because": lm.because, **lm.spec.to_dict()},
        "text": {
            "origin": source.origin,
            "text": source.text,
            "tokens_read": table.sums.num_tokens,
            "texts_or_windows": table.sums.num_texts,
        },
        "page": {
            "texts": labels.num_texts,
            "texts_are": labels.texts_are,
            "tokens": labels.num_tokens,
            "because": labels.because,
            "sinks": list(labels.sinks.names),
            "notes": dict(labels.notes),
        },
        "statistics": {
            statistic.name: {"unit": statistic.unit, "meaning": statistic.meaning, "source": statistic.source}
            for statistic in table.statistics
        },
        "heads": heads,
        "notes": {**table.notes, "caveat": CAVEAT},
        "written": list(looked.written),
        "seconds": {step: round(value, 3) for step, value in looked.seconds.items()},
    }


def evidence_of(role: Any) -> dict[str, Any]:
    return {key: value for key, value in plain(role.to_dict()).items() if key not in ("head", "role")}


def frame(labels: Any, table: Any, names: tuple[str, ...]) -> pd.DataFrame:
    """A row a head: role and evidence from the page, then the statistics of the text by these names."""
    import pandas as pd

    # Imports torch, for which --help is not to wait.
    from manyheads.roles.labels import Evidence

    columns = table.to_pandas()
    roles = [role_of(labels, head) for head in table.heads]
    evidence = pd.DataFrame([{} if role is None else asdict(role.evidence) for role in roles])
    evidence = evidence.reindex(columns=list(Evidence.__dataclass_fields__)).add_prefix("page_")
    evidence.insert(0, "role", [None if role is None else role.name for role in roles])
    return pd.concat([columns[["head", "stack", "layer", "index", "module"]], evidence, columns[list(names)]], axis=1)
