"""The commands of statistics: `stats` of every head by name; `compare`, of two models; `merge`, of parts of a corpus.

`manyheads stats`: statistics of every head by name, on texts or a treebank, and which there are.
`manyheads compare A B`: what differs between the heads of two models, or of two checkpoints of one training.
`manyheads merge part-*.sums`: parts of a corpus that `stats --shard` and `roles --shard` measured, added up.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from manyheads import corpora, measurement
from manyheads import roles as role_finder
from manyheads.base import Json, plural
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    OF_SHARD,
    SUMS_ENDINGS,
    TABLE_ENDINGS,
    AsJson,
    CorpusFiles,
    DeviceName,
    DtypeName,
    EngineActors,
    EngineAddress,
    EngineEvery,
    EngineGpus,
    EngineName,
    ModelChoice,
    ModelName,
    ResumeFolder,
    ShardBy,
    ShardOption,
    StatisticNames,
    TargetsFile,
    TextOrOwn,
    TextsAreLines,
    TextsFile,
    check_output,
    check_statistics,
    chosen_engine,
    chosen_shard,
    given_corpora,
    load_model,
    requested_statistics,
    save_sums,
    to_file,
)
from manyheads.cli.head import command as of_head
from manyheads.cli.roles import command as of_roles
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
    lay_out_heads,
    offered,
    print_sections,
    print_whole,
    print_written,
    shades_of,
    stdout_console,
    wrapped,
)
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import HeadError, ModelError, StatisticError, TextError
from manyheads.heads import layer_name
from manyheads.measurement import corpus_run
from manyheads.progress import Progress
from manyheads.roles.words import ABSENT, UNLABELLED, column_figures, figure, hue, span
from manyheads.statistics import listed

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from manyheads.corpora import Corpus, Shard
    from manyheads.models import LoadedModel
    from manyheads.ray import Engine
    from manyheads.roles.compare import Comparison
    from manyheads.statistics import HeadTable, Statistic


LIST_HELP = "List all statistics, or those of --statistics; with --corpus also the treebank's."
FIRST_HELP = "A model: minilm or tiny-code (bundled), a folder, or a name on the Hugging Face hub. Or a head, as L3H1."
SECOND_HELP = (
    "Another of the same shape, such as another checkpoint of the same training. Or another head of one model."
)
OF_HEADS_HELP = "The model of two heads. Two models are A and B themselves."
ROWS_HELP = "Compare at most this many rows of each text's maps. Default: all."
DRY_RUN_HELP = (
    "Measure four batches, and say what the whole run would take (time, memory, sums) and what would stop it."
)
CHECK_HELP = "Compare your own statistics with their definitions, on whole maps of up to 8 texts."
CHECKED_TEXTS = 8
LISTED = 10  # heads that are shown unless all are asked for


def stats(
    text: TextOrOwn = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    targets: TargetsFile = None,
    corpus: CorpusFiles = None,
    model: ModelName = DEFAULT_MODEL,
    statistics: StatisticNames = "default",
    show_list: Annotated[bool, typer.Option("--list", help=LIST_HELP)] = False,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="How many heads to show for each statistic.")
    ] = 3,
    complete: Annotated[bool, typer.Option("--all", help="A row for each head.")] = False,
    out: Annotated[Path | None, to_file("--out", f"Write the table: .parquet, .csv or .json. {OF_SHARD}")] = None,
    shard: ShardOption = None,
    shard_by: ShardBy = "text",
    resume: ResumeFolder = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN_HELP)] = False,
    check: Annotated[bool, typer.Option("--check", help=CHECK_HELP)] = False,
    engine: EngineName = None,
    address: EngineAddress = None,
    actors: EngineActors = None,
    gpus_per_actor: EngineGpus = None,
    every: EngineEvery = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Statistics of every head by name: the heads with the most of each, with 95 % intervals over texts.

    A treebank (.conllu) has more of them: for each relation (det.to_governor.given) and for coreference, which is
    counted in passages. Only what is named is computed. Also typed as manyheads measure.

    For example: manyheads stats --corpus treebank.conllu --statistics "nsubj.to_governor.given,coreference.*"
    """
    talk = ProgressLine()
    crew = chosen_engine(engine, address, actors, gpus_per_actor, every, shard_by)
    whole = {"--json": as_json and not dry_run, "--all": complete, "--engine": engine}
    place = chosen_shard(shard, shard_by if engine is None else "text", out, whole)
    request = requested_statistics(statistics)
    if show_list:
        if text or file is not None:
            raise TextError("--list needs no text: leave it out, or give a treebank with --corpus.")
        texts = given_corpora(talk, [], None, lines, corpus, model)[0] if corpus else None
        return _show_list(texts, request, as_json)
    if targets is not None and (place is not None or resume is not None):
        raise TextError("--targets pairs with texts that are read at once: leave out --shard and --resume.")
    refuse_names_as_text(text or [])
    texts, passages, origin = given_corpora(talk, text or [], file, lines, corpus, model, targets)
    check_statistics(request, texts)
    own = of_own(request, {**whole, "--resume": resume, "--dry-run": dry_run, "--out": out}) if check else []
    lm = load_model(talk, ModelChoice(model, device, dtype))
    if check:
        some = texts if isinstance(texts, list) else [document.text for document in islice(texts.open(), CHECKED_TEXTS)]
        show_checked(talk, lm, own, some[:CHECKED_TEXTS], as_json)
        return
    measured = _measured(talk, lm, texts, passages, request, origin, place, resume, dry_run, crew)
    if dry_run:
        show_forecasts(measured, as_json)
        return
    if place is not None and out is not None:
        print_written(*save_sums(measured, out))
        return
    tables: list[HeadTable] = measured
    if out is not None:
        from manyheads.results import write_frame  # as above

        write_frame(frame(tables), out)
    if as_json:
        emit_document({"model": lm.name, "loaded": lm.because, "origin": origin, **document(tables)})
        return
    show_tables(tables, lm.name, origin, top, complete)
    print_written(out)


def of_own(request: str | list[str | Statistic], others: Mapping[str, object]) -> list[Statistic]:
    """The statistics that --check is about. Errors: StatisticError where there are none, or other options beside it."""
    own = [] if isinstance(request, str) else [item for item in request if not isinstance(item, str)]
    if not own:
        raise StatisticError("--check is for statistics of your own: name them, as --statistics my_stats:mine.")
    if wrong := [name for name, value in others.items() if value and name != "--json"]:
        raise StatisticError(f"--check measures nothing else: leave {wrong[0]} out.")
    return own


def show_checked(
    talk: ProgressLine, lm: LoadedModel, own: Sequence[Statistic], texts: list[str], as_json: bool
) -> None:
    """How far each is from its definition. Errors: StatisticError for one that is too far."""
    from manyheads.measurement import check_definition  # as above

    checked: dict[str, float] = {}
    for statistic in own:
        with talk.step(f"making whole maps of {plural(len(texts), 'text')} for {statistic.name}"):
            checked[statistic.name] = check_definition(lm, statistic, texts)
    size = {"heads": len(lm.spec.heads), "texts": len(texts)}
    if as_json:
        emit_document({"model": lm.name, **size, "furthest": checked})
        return
    over = f"{plural(size['heads'], 'head')} and {plural(size['texts'], 'text')}"
    print_whole(
        f"{name} agrees with its definition on whole maps: at most {apart:.1e} apart, over {over} of {lm.name}"
        for name, apart in checked.items()
    )


def refuse_names_as_text(words: Sequence[str]) -> None:
    """Errors: TextError for names of statistics, or nearly so, where a text stands: who types them means those."""
    # Imports torch, for which --help is not to wait.
    from manyheads.statistics import NAMED

    # Not by `nearest`, to which the beginning of a name is enough: "local" and "first" are words that a text may hold.
    names = [name for word in words for name in difflib.get_close_matches(word.strip(","), NAMED, 1, 0.8)]
    if words and len(names) == len(words):
        raise TextError(
            f"{' '.join(words)!r} stands where the text does, and is not a text but the name of a statistic: "
            f"--statistics {','.join(names)}. (A file may hold any text: --file FILE.)"
        )


def show_tables(tables: Sequence[HeadTable], model: str, origin: str, top: int, complete: bool) -> None:
    """What was measured, on what; the leading heads of each statistic, or every head."""
    console = stdout_console()
    sums = tables[0].sums
    title = Text.assemble((clean(model), "bold"), f" · {clean(origin)} · {sums.num_tokens:,} tokens")
    columns = [(table, statistic) for table in tables for statistic in table.statistics]
    if complete:
        headings = [Column("head", right=False)]
        headings += [Column(statistic.name, spare=1 + index) for index, (_, statistic) in enumerate(columns)]
        figures = [column_figures(table.column(entry.name).tolist(), entry.unit) for table, entry in columns]
        cells = [list(map(Text, row)) for row in zip(*figures, strict=True)]
        table_lines, remark = lay_out_heads(headings, tables[0].heads, cells, console)
        print_sections([[title], [*table_lines, *wrapped(remark, console)]], console)
        return
    # A line for each statistic: how many cases there were, the head with most of it and its interval, the next ones. Of
    # what is the same for all heads, as most chance levels are, one value.
    wide = max(len(statistic.name) for _, statistic in columns)
    lines = [Text(f"{'statistic':<{wide}}{'cases':>9}  most, with its 95 % interval, and next", style="dim")]
    without: dict[str, list[str]] = {}  # why the leading heads of some statistics have no interval
    for table, statistic in columns:
        values, (low, high) = table.column(statistic.name).tolist(), table.interval(statistic.name)
        counted = [index for index, value in enumerate(values) if math.isfinite(value)]
        order = sorted(counted, key=values.__getitem__, reverse=True)
        alike = len(order) > 1 and len({round(values[index], 12) for index in order}) == 1
        cells = [
            f"{'all heads' if alike else table.heads[index]} {figure(values[index], statistic.unit)}"
            for index in order[: 1 if alike else top]
        ]
        if cells:
            cells[0] += f" ({span(low[order[0]], high[order[0]], statistic.unit)})"
        cases = table.sums.den[:, :, table.names.index(statistic.name), 0].sum(0).max()
        label = Text.assemble((f"{statistic.name:<{wide}}", "bold"), f"{cases:>9,.0f}  ")
        lines += hanging(label, " · ".join(cells) or "nothing to count on these texts", console.width)
        known = [(value, head) for head, value in enumerate(values) if value == value]
        if known:  # what no text has a case of is said beside its name
            reason = table.no_interval(statistic.name, table.heads[max(known)[1]])
            without.setdefault(reason, []).append(statistic.name)
    without.pop("", None)
    for reason, names in without.items():
        lines += wrapped(f"No interval of {', '.join(names)}: {reason}.", console)
    print_sections([[title], lines], console)


def _measured(
    talk: ProgressLine,
    lm: LoadedModel,
    texts: Corpus | list[str],
    passages: Corpus | None,
    request: str | list[str | Statistic],
    origin: str,
    place: Shard | None,
    resume: Path | None,
    dry_run: bool,
    engine: Engine | None,
) -> list[Any]:
    """The statistics of the texts, and those of coreference, of passages: a table for each reading that is needed.

    - `talk`: the line on stderr.
    - `lm`: the loaded model.
    - `texts`: what is read.
    - `passages`: stretches with gold coreference; None: there are none.
    - `request`: the statistics, as --statistics names them.
    - `origin`: what the texts are called.
    - `place`: which shard is read; then there are sums in place of tables.
    - `resume`: the folder of a run that may be stopped.
    - `dry_run`: then there are forecasts in place of tables.
    - `engine`: whose processes measure; None: this one.
    """
    # All import torch, for which --help is not to wait.
    from manyheads.statistics import Survey, choose, matches  # as above
    from manyheads.statistics.defined import NAMES  # as above

    items = [request] if isinstance(request, str) else request
    about: list[str | Statistic] = [
        item
        for item in items
        if passages is not None and isinstance(item, str) and any(matches(name, item) for name in NAMES)
    ]
    of_all = [item for item in items if item not in about or str(item).startswith(("*", "?", "["))]

    apart = passages is not None  # no corpus: what an engine sends should be small

    def of_texts(survey: Survey) -> list[Statistic]:
        # With passages at hand a sentence alone is not asked who is meant in it.
        chosen = choose(str(of_all[0]) if of_all in (["default"], ["all"]) else of_all, survey)
        return [statistic for statistic in chosen if not apart or statistic.name not in NAMES]

    def of_passages(survey: Survey) -> list[Statistic]:
        return [statistic for statistic in choose(about, survey) if statistic.name in NAMES]

    def read(
        source: Corpus | list[str],
        chosen: str | list[str | Statistic] | Callable[[Survey], list[Statistic]],
        reading: str,
        progress: Progress,
    ) -> HeadTable | corpus_run.HeadSums | corpus_run.Forecast:
        folder = None if resume is None else resume / reading
        if dry_run:
            corpus = corpora.as_corpus(source)
            of_place = corpus if place is None else corpus.shard(place.index, place.of, place.by)
            return corpus_run.forecast(lm, of_place, chosen, resume=folder, engine=engine)
        if place is None:
            return measurement.measure(lm, source, chosen, progress=progress, resume=folder, engine=engine)
        part = corpora.as_corpus(source).shard(place.index, place.of, place.by)
        return corpus_run.HeadSums(lm, chosen, reading=reading).update(part, resume=folder, progress=progress)

    measured = []
    if of_all:
        with talk.step(f"reading {origin}") as progress:
            chosen = request if isinstance(texts, list) else of_texts
            measured.append(read(texts, chosen, "texts", progress))
    if about and passages is not None:
        with talk.step(f"reading passages of {origin}") as progress:
            measured.append(read(passages, of_passages, "passages", progress))
    return measured


def show_forecasts(forecasts: Sequence[corpus_run.Forecast], as_json: bool) -> None:
    """What a run takes, for each reading. Errors: StatisticError with the reasons for which it would be refused."""
    if as_json:
        emit_document({"forecasts": [forecast.to_dict() for forecast in forecasts]})
    else:
        console = stdout_console()
        for forecast in forecasts:
            about = f" · {clean(forecast.origin)} · nothing is measured yet"
            title = Text.assemble((clean(forecast.model), "bold"), about)
            lines: list[Text] = []
            for name, words in forecast.rows():
                lines += hanging(Text(f"{name:<9}", style="dim"), clean(words), console.width)
            print_sections([[title], lines], console)
    for forecast in forecasts:
        corpus_run.require_possible(forecast)


def frame(tables: Sequence[HeadTable]) -> pd.DataFrame:
    """A row for each head: its name, then the statistics of all readings."""
    import pandas as pd  # half a second: not for who asks for no frame

    columns = [table.to_pandas()[list(table.names)] for table in tables[1:]]
    return pd.concat([tables[0].to_pandas(), *columns], axis=1)


def document(tables: Sequence[HeadTable]) -> Json:
    """The tables of several readings as one: the statistics of all, and the first table's notes before the others'."""
    notes = {key: note for table in reversed(tables) for key, note in table.notes.items()}
    return {"statistics": [row for table in tables for row in table.statistic_rows()], "notes": notes}


def _show_list(texts: Corpus | list[str] | None, request: str | list[str | Statistic], as_json: bool) -> None:
    """The statistics by name with what each is, a line each; a treebank's too."""
    is_plain = texts is None and request in ("default", "all")
    rows = listed() if is_plain else _rows_of(texts, request)
    if as_json:
        emit_document({"statistics": rows})
        return
    wide = max(len(row["name"]) for row in rows)
    print_whole(Text.assemble((f"{row['name']:<{wide}}", "bold"), f"  {clean(row['is'])}") for row in rows)
    if is_plain:
        print_whole([
            Text(),
            Text("A treebank has more (--list --corpus FILE.conllu): for every relation, such as "
                "det.to_governor.given, and for coreference. A pattern names many: --statistics \"det.*\"."),
        ])  # fmt: skip


def _rows_of(texts: Corpus | list[str] | None, request: str | list[str | Statistic]) -> list[dict[str, str]]:
    """The rows of the statistics requested, a treebank's among them."""
    # All import torch, for which --help is not to wait, and which the list without a treebank does not need.
    from manyheads.measurement.corpus_run import SURVEY_TEXTS
    from manyheads.statistics import OF_SCORES, STATISTICS, Annotated, Survey, choose  # as above

    survey = None
    if texts is not None:
        assert not isinstance(texts, list)
        documents = tuple(islice(texts.open(), SURVEY_TEXTS + 1))
        survey = Survey(documents[:SURVEY_TEXTS], len(documents) <= SURVEY_TEXTS)
    all_names = [*STATISTICS, *OF_SCORES, *Annotated(survey).names]
    return listed(choose(all_names if request in ("default", "all") else request, survey))


# ---------------------------------------------------------------------------------------------------------------------
# Two models: which heads differ, the furthest apart first, and by what.


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
    out: Annotated[Path | None, to_file("--out", "Write a row a head: .parquet, .csv or .json.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help=OF_HEADS_HELP)] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """What differs between the heads of two models of one shape, on the same texts: maps, statistics, labels.

    Two heads of one model, as in L3H1 L5H11, are shown one after the other, as manyheads head does.

    Two checkpoints of a training, or a base and a tuned model. Heads that differ most come first; a model compared with
    itself shows no difference.

    For example: manyheads compare run/step-1000 run/step-2000 --file novel.txt
    """
    # Both import torch, for which --help is not to wait.
    from manyheads.roles.compare import READINGS
    from manyheads.roles.compare import compare as compare_models  # as above

    heads = [name for name in (a, b) if of_head.is_head(name) and not Path(name).exists()]
    if len(heads) == 1:
        raise HeadError(
            f"{heads[0]} is a head, and {a if heads[0] == b else b} is none: give two heads, or two models."
        )
    if heads:
        of_models = {"--lines": lines, "--corpus": corpus, "--rows": rows, "--all": complete, "--out": out}
        of_models["--statistics"] = statistics != "default"
        if passed := [option for option, value in of_models.items() if value]:
            raise HeadError(f"{passed[0]} is for two models, and {a} and {b} are heads of one: leave it out.")
        words = [b, *(text or [])]
        return of_head.head(a, words, file, model=model or DEFAULT_MODEL, as_json=as_json, device=device, dtype=dtype)
    if model is not None:
        raise ModelError(
            f"--model {model} is for two heads, and A and B are the models that are compared: leave it out."
        )
    talk = ProgressLine()
    check_output(out, "--out", TABLE_ENDINGS)
    request = requested_statistics(statistics)
    texts, _, origin = given_corpora(talk, text or [], file, lines, corpus, a)
    check_statistics(request, texts)
    first = load_model(talk, ModelChoice(a, device, dtype))
    second = first if a == b else load_model(talk, ModelChoice(b, device, dtype))
    labels = {READINGS[0]: f"running the texts through {a}", READINGS[1]: f"running the texts through {b}"}
    with talk.steps() as steps:

        def begin(name: str) -> None:
            steps.begin(labels.get(name, "comparing their maps"))

        result = compare_models(first, second, texts, request, rows=rows, progress=steps.progress, on_reading=begin)
    if out is not None:
        result.save(out)
    if as_json:
        emit_document({"origin": origin, **result.to_dict()})
        return
    console = stdout_console()
    print_sections(_page(result, (a, b), origin, complete, out, console), console)


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
        else "One text gives no intervals."
    )
    few = "" if labelled(result) else "No head has a label on these texts: labels need some hundreds of them."
    notes = [clear, few, *(result.notes.get(name, "") for name in ("windows", "failed"))]
    remarks = [line for words in notes if words for line in hanging(Text(), words, console.width)]
    for line in remarks:
        line.stylize("dim")
    offers = [] if complete or len(result.changed) <= LISTED else [
        (f"manyheads compare {names[0]} {names[1]} --all", f"all {len(result.changed)} heads that differ")
    ]  # fmt: skip
    # Layers down, heads across: the darker, the further apart the two maps of a head.
    layers: dict[tuple[str, int], list[float]] = {}
    for head, moved in zip(result.heads, result.moved.tolist(), strict=True):
        layers.setdefault((head.stack, head.layer), []).append(moved)
    shades, largest = shades_of(console), max(value for values in layers.values() for value in [0.0, *values])
    grid: list[Text] = []
    if largest > 0:
        rows = {layer_name(stack, layer): values for (stack, layer), values in layers.items()}
        wide = max(map(len, rows))
        scale = f"{shades[-1]} is up to {largest:.2g} nats; 0 is the same, 0.69 nothing in common"
        grid = [
            Text("How far apart the two maps of each head are", style="bold"),
            *(
                Text.assemble(f"{name:<{wide}}  ", drawn(cells_of(values, largest, shades), shades))
                for name, values in rows.items()
            ),
            Text(scale, style="dim"),
        ]
    relabelled: list[Text] = []
    if result.relabelled:
        heads = result.relabelled if complete else result.relabelled[:LISTED]
        wide, more = max(len(str(head.head)) for head in heads), len(result.relabelled) - len(heads)
        relabelled = [
            Text("Labels that changed", style="bold"),
            *(
                Text.assemble((f"{head.head!s:<{wide}}  ", "bold"), clean(f"{head.label_before} → {head.label_after}"))
                for head in heads
            ),
            *([Text(f"and {more} more: --all", style="dim")] if more else []),
        ]
    return [title, grid, _table(result, complete, console), relabelled, remarks, offered(offers, console)]


def labelled(result: Comparison) -> bool:
    """Whether any head has a label in either model."""
    return any(role.name != UNLABELLED for pair in result.labels for role in pair)


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
            is_kept = head.label_before == head.label_after
            words = head.label_after if is_kept else f"{head.label_before} → {head.label_after}"
            cells.append(Text(clean(words or ""), style=hue(head.label_after or "")))
        rows.append(cells)
    title = Text("The furthest apart" if len(heads) < len(result.changed) else "All heads that differ", style="bold")
    return [title, *lay_out(columns, rows, console)]


def unit_in(result: Comparison, name: str) -> str:
    """The unit of a statistic of the comparison."""
    by_name: dict[str, Statistic] = {statistic.name: statistic for statistic in result.before.statistics}
    return by_name[name].unit


FILES_HELP = "Files of sums; for a run's folder (--resume), its texts/finished.safetensors."
OUT_HELP = "Write the merged sums (.sums), or the table, for roles every claim (.parquet, .csv, .json)."
PARTIAL_HELP = "Go on if parts are missing: the table covers the others."


def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help=FILES_HELP, show_default=False)],
    out: Annotated[Path | None, to_file("--out", OUT_HELP)] = None,
    partial: Annotated[bool, typer.Option("--partial", help=PARTIAL_HELP)] = False,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="How many heads to show for each statistic.")
    ] = 3,
    complete: Annotated[bool, typer.Option("--all", help="A row for each head, or as roles --all.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add up parts of a corpus that were measured separately, in any order, and show the result.

    Parts with other weights, statistics, code or texts are named, as are parts that are missing or given twice. No
    model is loaded. Merged sums (--out all.sums) can be merged again.

    For example: manyheads merge part-*.sums --out table.parquet
    """
    # Imports torch, for which --help is not to wait.
    from manyheads.measurement.corpus_run import merged_sums, require_whole

    talk = ProgressLine()
    check_output(out, "--out", (*SUMS_ENDINGS, *TABLE_ENDINGS))
    with talk.step(f"adding {len(files):,} parts" if len(files) > 1 else f"reading {files[0]}") as progress:
        sums = merged_sums(files, progress)
    if out is not None and out.suffix.lower() in SUMS_ENDINGS:
        print_written(*save_sums(sums, out))
        return
    if not partial:
        for part in sums:
            require_whole(part)
    of_command = {part.reading.split(":")[0] == role_finder.OF_ROLES for part in sums}
    if len(of_command) > 1:
        raise StatisticError("some files are parts of manyheads stats and some of manyheads roles: merge them apart.")
    tables = [part.table() for part in sums]
    notes = tables[0].notes
    model, origin = notes["model"], notes["corpus"]
    about = {"parts": len(sums[0].parts), "missing": list(sums[0].missing)}
    if of_command == {True}:
        if "passages" in sums[0].reading and len(sums) == 1:
            raise StatisticError(
                f"{files[0]} holds passages, and roles need texts as well: also give the files of texts."
            )
        labelled = role_finder.roles_of(tables)
        if out is not None:
            labelled.save(out)
        if as_json:
            emit_document({"loaded": notes["loaded"], **about, "origin": origin, **labelled.to_dict()})
            return
        print_whole(of_roles.page(labelled, origin, ModelChoice(model), None, complete=complete))
    else:
        if out is not None:
            from manyheads.results import write_frame  # as above

            write_frame(frame(tables), out)
        if as_json:
            emit_document({"model": model, "loaded": notes["loaded"], "origin": origin, **about, **document(tables)})
            return
        show_tables(tables, model, origin, top, complete)
    print_written(out)
