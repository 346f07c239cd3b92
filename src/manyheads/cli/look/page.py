"""What a look found as a page to read: what was read, what heads do, a row for each head, what to try next."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from manyheads import statistics
from manyheads.base import users_home
from manyheads.cli.look.looked import SHOWN
from manyheads.cli.role_words import (
    by_role,
    example_head,
    figure,
    nearest_role,
    plain,
    role_of,
    span,
    unit_of,
)
from manyheads.cli.steps import model_arguments
from manyheads.cli.terminal.console import (
    Column,
    Row,
    clean,
    lay_out,
    left_out,
    print_sections,
    rules_of,
    shortened,
    stdout_console,
)
from manyheads.roles.role_table import CAVEAT, UNLABELLED, role_style
from manyheads.statistics.head_table import number

if TYPE_CHECKING:
    import pandas as pd

    from manyheads.cli.look.looked import Looked


TITLES = {"sink_mass": "sink", "duplicate_mass": "repeat"}
LABEL_WIDTH = 9
PAGE, YOURS = "on the page", "on your text"


def print_page(looked: Looked) -> None:
    console = stdout_console()
    sections = [_headline(looked, console), _summary(looked, console), _table(looked, console), _next(looked, console)]
    print_sections(sections, console)


# ----------------------------------------------------------------------------------------------------- what was read


def _headline(looked: Looked, console: Console) -> list[Text]:
    spec, table, labels, source = looked.lm.spec, looked.table, looked.labels, looked.source
    millions = spec.num_parameters / 1e6
    size = f"{millions:,.1f} million parameters" if millions >= 0.1 else f"{spec.num_parameters:,} parameters"
    lines = [Text.assemble((clean(looked.lm.name), "bold"), f" · {shape_in_words(spec)} · {size}")]
    count = f" · {table.sums.num_tokens:,} tokens{f', {source.origin}' if source.own else ''}"
    text = shortened(source.text, console.width - LABEL_WIDTH - len(count) - 2)
    basis = f"rest on {labels.num_texts:,} {labels.texts_are}, {labels.num_tokens:,} tokens; {labels.because}"
    error = table.notes.get("guard_error", "?")
    facts = [
        ("text", f'"{text}"{count}'),
        ("windows", table.notes.get("windows", "")),
        ("decoder", table.notes.get("decoder", "")),
        ("roles", basis if labels.roles else f"none: {labels.because}"),
        ("weights", f"exact: {table.notes.get('backend')}; off from the model's own output by {error} at most"),
        ("took", _times(looked.seconds)),
        *(("wrote", path) for path in looked.written),
    ]
    for name, value in facts:
        if value:
            lines += hanging(Text(f"{name:<{LABEL_WIDTH}}", style="dim"), home(value), console.width)
    return lines


def _times(seconds: dict[str, float]) -> str:
    page = f"{seconds['labels']:.1f} to read the page, " if seconds["labels"] >= 0.05 else ""
    steps = f"{seconds['model']:.1f} to load the model, {page}{seconds['text']:.1f} to read the text"
    return f"{seconds['all']:.1f} seconds: {steps}"


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


# ----------------------------------------------------------------------------------------------------- what heads do


def _summary(looked: Looked, console: Console) -> list[Text]:
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


# ------------------------------------------------------------------------------------------------- a row for each head


def _table(looked: Looked, console: Console) -> list[Text]:
    statistic_names = _named(looked)
    columns, rows = _columns(looked, statistic_names), _rows(looked, statistic_names)
    hidden = left_out(columns, rows, console.width)
    remarks = []
    if hidden:
        remarks.append(f"No room here for {', '.join(hidden)}: --json and --save hold all.")
    elif set(statistic_names) < set(looked.asked):
        remarks.append(
            f"Of {len(looked.asked)} statistics of your text here are {len(statistic_names)}: "
            "--json and --save hold all."
        )
    notes = [Text(line, style="dim") for remark in remarks for line in textwrap.wrap(remark, console.width)]
    return [
        *_legend(looked, statistic_names, console),
        *lay_out(columns, rows, console.width, **rules_of(console)),
        *notes,
    ]


def _columns(looked: Looked, statistic_names: list[str]) -> list[Column]:
    page = PAGE if looked.labels.roles else ""
    columns = [Column("head", page, right=False)]
    if looked.labels.roles:
        columns += [
            Column("role", PAGE, right=False, most=26),
            Column("score", PAGE),
            Column("chance", PAGE),
            Column("95% interval", PAGE, spare=1),
            Column("score", YOURS),
        ]
    return columns + [
        Column(TITLES.get(name, name), YOURS, spare=2 + index) for index, name in enumerate(statistic_names)
    ]


def _rows(looked: Looked, named: list[str]) -> list[Row]:
    """A row a head, a rule before each layer."""
    rows: list[Row] = []
    values = {name: looked.table.column(name) for name in looked.table.names}
    layer = None
    for index, head in enumerate(looked.table.heads):
        if (head.stack, head.layer) != layer:
            rows.append(None)
            layer = (head.stack, head.layer)
        yours = {name: float(column[index]) for name, column in values.items()}
        rows.append(_row(head, role_of(looked.labels, head), yours, named))
    return rows


def _named(looked: Looked) -> list[str]:
    """The columns of your text: those asked for by name, else a handful."""

    everything = set(looked.asked) in (set(statistics.DEFAULT), set(statistics.STATISTICS))
    return list(SHOWN if everything else looked.asked)


def _row(head: Any, role: Any, yours: dict[str, float], named: list[str]) -> list[Text]:
    cells = [Text(str(head), style="bold")]
    if role is not None:
        near, unit, about = nearest_role(role), unit_of(role.evidence.statistic), role.evidence
        style = hue(role.name)
        faint = "dim" if near else ""
        name = f"{UNLABELLED} ({near}?)" if near else clean(role.name)
        cells += [
            Text(name, style=style),
            Text(figure(about.score, unit), style=faint or style),
            Text(figure(about.chance, unit), style=faint),
            Text(span(about.low, about.high, unit), style=faint),
            Text(figure(yours.get(about.statistic), unit), style=faint or style),
        ]
    return cells + [Text(figure(yours[name], unit_of(name))) for name in named]


def _legend(looked: Looked, statistic_names: list[str], console: Console) -> list[Text]:
    """What the columns mean."""

    roles = (
        ("score", "how much of its attention goes to what the role names (broad: how spread it is, in nats)"),
        ("chance", "the same with attention spread evenly, or with the words shuffled: the higher of the two"),
        ("(local?)", "unlabelled: that is the role it came nearest to"),
    )
    meanings = [
        ("your text", "the same score there; distance in tokens; the share on the sink, and on repeated tokens")
    ]
    if statistic_names != list(SHOWN):
        meanings = [
            (name, statistics.STATISTICS[name].meaning) for name in statistic_names if name in statistics.STATISTICS
        ]
    entries = [*(roles if looked.labels.roles else ()), *meanings]
    wide = 2 + max(len(label) for label, _ in entries)
    lines = [line for label, words in entries for line in hanging(Text(f"{label:<{wide}}"), words, console.width)]
    for line in lines:
        line.stylize("dim")
    return [Text("Every head", style="bold"), *lines, Text()]


# -------------------------------------------------------------------------------------------------- what to try next


def _next(looked: Looked, console: Console) -> list[Text]:
    arguments = looked.source.arguments and f" {looked.source.arguments}"
    model = model_arguments(looked.model)
    head = example_head(looked.labels) or looked.table.heads[0]
    offers = [(f"manyheads head {head}{arguments}{model}", "one head: where each word looks")]
    if not looked.source.origin.startswith("file"):
        offers.append((f"manyheads look --file novel.txt{model}", "a text of your own, of any length"))
    elif "--save" not in looked.given:
        offers.append((f"manyheads look{arguments}{model} --save heads.parquet", "the table, for pandas"))
    if "--plot" not in looked.given:
        offers.append((f"manyheads look{arguments}{model} --plot grid.png", "every head's map in one picture"))
    loaded = hanging(Text("Loaded  ", style="dim"), home(looked.lm.because), console.width)
    return [*loaded, Text(), *offered(offers, console)]


def offered(offers: list[tuple[str, str]], console: Console) -> list[Text]:
    """Commands to copy, each with what it shows beside it; below it where there is no room.

    One that holds what cannot be shown as it is (a control character in a text) is not offered.
    """
    offers = [(command, purpose) for command, purpose in offers if clean(command) == command]
    if not offers:
        return []
    wide = max(len(command) for command, _ in offers)
    lines = [Text("Try next", style="bold")]
    for command, purpose in offers:
        if 4 + wide + max(len(words) for _, words in offers) <= console.width:
            lines.append(Text.assemble(f"  {command:<{wide}}", (f"  {purpose}", "dim")))
        else:
            lines += [Text(f"  {command}"), Text(f"      {purpose}", style="dim")]
    return lines


# ---------------------------------------------------------------------------------------------------------------------
# What a look found as data: one JSON document, and a frame with a row a head.


def document(looked: Looked) -> dict[str, Any]:
    """Everything; null where there is no number."""
    lm, labels, table = looked.lm, looked.labels, looked.table
    return {
        "model": {"asked": looked.model, "because": lm.because, **lm.spec.to_dict()},
        "text": {
            "origin": looked.source.origin,
            "text": looked.source.text,
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
        "heads": _heads(looked),
        "notes": {**table.notes, "caveat": CAVEAT},
        "written": list(looked.written),
        "seconds": {step: round(value, 3) for step, value in looked.seconds.items()},
    }


def _heads(looked: Looked) -> list[dict[str, Any]]:
    columns = {name: looked.table.column(name) for name in looked.table.names}
    heads = []
    for index, head in enumerate(looked.table.heads):
        values = {name: number(column[index]) for name, column in columns.items()}
        role = role_of(looked.labels, head)
        heads.append(
            {
                "head": str(head),
                "stack": head.stack,
                "layer": head.layer,
                "index": head.index,
                "role": None if role is None else role.name,
                "evidence": None if role is None else evidence_of(role),
                "page": looked.labels.values.get(str(head)),
                "text": values,
            }
        )
    return heads


def evidence_of(role: Any) -> dict[str, Any]:
    return {key: value for key, value in plain(role.to_dict()).items() if key not in ("head", "role")}


def frame(labels: Any, table: Any, asked: tuple[str, ...]) -> pd.DataFrame:
    """A row a head: role and evidence from the page, then what was asked of the text."""
    from dataclasses import asdict

    import pandas as pd

    from manyheads.roles.labels import Evidence

    columns = table.to_pandas()
    roles = [role_of(labels, head) for head in table.heads]
    evidence = pd.DataFrame([{} if role is None else asdict(role.evidence) for role in roles])
    evidence = evidence.reindex(columns=list(Evidence.__dataclass_fields__)).add_prefix("page_")
    evidence.insert(0, "role", [None if role is None else role.name for role in roles])
    return pd.concat([columns[["head", "stack", "layer", "index", "module"]], evidence, columns[list(asked)]], axis=1)
