"""The commands that remove heads: `ablate` and `importance`, what heads are worth; `prune` and `convert`, for good.

`manyheads ablate L3H7`: what is lost without some heads, beside the same number chosen at random. `manyheads
importance`: what every head is worth, which can go, and how far that goes. `manyheads prune` removes heads for good;
`manyheads convert` merges key/value heads into fewer. Both save a checkpoint that was loaded in a fresh process and
compared before it was kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.text import Text

from manyheads import base, edits, figures, interventions, units
from manyheads.base import percent
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    PICTURE_ENDINGS,
    TABLE_ENDINGS,
    TEXTS_HELP,
    AsJson,
    DeviceName,
    DtypeName,
    EngineActors,
    EngineAddress,
    EngineEvery,
    EngineGpus,
    EngineName,
    HeadNames,
    MetricName,
    ModelChoice,
    ModelName,
    ResumeFolder,
    Source,
    TargetsFile,
    TextOrOwn,
    TextsAreLines,
    TextsFile,
    check_folder,
    check_metric,
    check_output,
    chosen_engine,
    count_option,
    given_texts,
    imported_here,
    load_model,
    read_source,
    texts_in,
    to_file,
)
from manyheads.cli.terminal.console import (
    aligned,
    clean,
    emit_document,
    knows_blocks,
    print_whole,
    print_written,
    shortened,
    stdout_console,
)
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import HeadError, PlanError, StatisticError
from manyheads.heads import Head, layer_name, require_forwards, written
from manyheads.plan import (
    KINDS,
    PLACES,
    Ablate,
    AblationKind,
    Average,
    Copy,
    Edit,
    Plan,
    Scale,
    SkipOutputProjection,
    SkipPositions,
)
from manyheads.roles.words import TERMS

if TYPE_CHECKING:
    from rich.console import Console

    from manyheads.interventions import Effect, Importance, Lowest, Saved
    from manyheads.interventions.convert import Converted
    from manyheads.interventions.effects import Estimator, Way
    from manyheads.interventions.save import Only, PrunedModel
    from manyheads.models import LoadedModel


LABEL_WIDTH = 10
KIND_HELP = (
    "What replaces their output: zero (the default), mean, resample, first or streaming; or scale, average, copy, "
    "unmixed; or module:function of your own."
)
CORPUS_HELP = "Texts from which mean and resample are taken. Default: the texts that are read."
PLAN_HELP = "A plan (.json) instead of HEADS; the first argument is then the text."
MOST_TOKENS = 8  # whose loss rose most, of a single text
STRIP_WIDTH = 60
MOST_STACKED = 6  # dots at one place; a + on top stands for more
METRIC_TERMS = {"loss": "loss", "kl": "KL divergence", "cosine": "cosine"}  # their names in the glossary


def ablate(
    heads: HeadNames = None,
    text: TextOrOwn = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    targets: TargetsFile = None,
    model: ModelName = DEFAULT_MODEL,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help=KIND_HELP)] = None,
    factor: Annotated[float | None, typer.Option("--factor", metavar="X", help="For --kind scale.")] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="HEAD", help="For --kind copy.")] = None,
    sink: Annotated[
        int | None,
        typer.Option("--sink", metavar="N", help="For --kind streaming: the text's first N keys. Default: 128."),
    ] = None,
    recent: Annotated[
        int | None,
        typer.Option("--recent", metavar="N", help="For --kind streaming: a row's last N keys. Default: 256."),
    ] = None,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help=PLAN_HELP)] = None,
    corpus: Annotated[str | None, typer.Option("--corpus", metavar="FILE", help=CORPUS_HELP)] = None,
    metric: MetricName = "auto",
    controls: Annotated[
        int,
        typer.Option("--controls", metavar="N", min=0, help="How many random sets of the same size to compare."),
    ] = 10,
    save_plan: Annotated[Path | None, to_file("--save-plan", "Write the plan: .json.")] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """What is lost without some heads, compared with the same number of heads chosen at random.

    Heads are edited before the output projection mixes them; afterwards the model is unchanged.

    For example: manyheads ablate L3H7 --kind mean --file novel.txt
    """
    talk = ProgressLine()
    check_output(save_plan, "--save-plan", (".json",))
    check_metric(metric)
    words = text or []
    # With --plan the first word typed is the text, although it stands where HEADS would.
    if plan is not None and heads is not None and not _names_heads(heads):
        heads, words = None, [heads, *words]
    requested = _plan(heads, kind, factor, source, {"sink": sink, "recent": recent}, plan)
    if heads is not None and words and _names_heads(words[0]):
        raise PlanError(
            f'{words[0]!r} names heads, and would be read as the text: name all in one, "{heads}, {words[0]}".'
        )
    texts = given_texts(talk, words, file, lines, model, targets)
    corpus_texts = None if corpus is None else given_texts(talk, [], corpus, lines).given
    lm = load_model(talk, ModelChoice(model, device, dtype))
    with talk.step("reading the texts, with these heads and without") as progress:
        result = interventions.effect(
            lm, requested, texts.given, metric=metric, corpus=corpus_texts, controls=controls, progress=progress
        )
    if save_plan is not None:
        # Imports torch, for which --help is not to wait.
        from manyheads.edits import prepare

        prepare(lm, requested, (corpus_texts or texts.given) if requested.needs_corpus else None)[0].save(save_plan)
    if as_json:
        emit_document({"origin": texts.origin, "loaded": lm.because, **result.to_dict()})
    else:
        console = stdout_console()
        print_whole(ablation_lines(lm, result, texts, save_plan, console))


def _plan(
    heads: str | None,
    kind: str | None,
    factor: float | None,
    source: str | None,
    streamed: dict[str, int | None],
    file: Path | None,
) -> Plan:
    """The plan that the options mean. Errors: PlanError for options that contradict each other; HeadError."""
    if file is not None:
        if heads is not None:
            raise PlanError(
                f"HEADS ({heads!r}) and --plan {file} both say what to do: give one of them. A text "
                f"goes after it, in quotes, or comes from --file."
            )
        per_step_options = {"--kind": kind, "--factor": factor, "--source": source}
        per_step_options |= {f"--{name}": value for name, value in streamed.items()}
        if options := " and ".join(name for name, value in per_step_options.items() if value is not None):
            raise PlanError(f"{options} and --plan {file} both say what to do: leave out one or the other.")
        plan = edits.open_plan(file).plans[0]
        if not plan.steps:
            raise PlanError(f"{file}: the plan has no steps, so nothing would change: give it at least one.")
        return plan
    if heads is None:
        raise PlanError("no heads were named: give HEADS, as in manyheads ablate L3H7, or --plan FILE.")
    for names in filter(None, (heads, source)):
        if not names.rstrip().endswith(PLACES):
            require_forwards(names)
    kind = kind or "zero"
    if (factor is not None) != (kind == "scale"):
        raise PlanError("--factor belongs to --kind scale: give both, as in --kind scale --factor 0.5.")
    if (source is not None) != (kind == "copy"):
        raise PlanError("--source belongs to --kind copy: give both, as in 'L1' --kind copy --source L1H0.")
    if kind != "streaming" and (options := [name for name, value in streamed.items() if value is not None]):
        raise PlanError(f"--{options[0]} belongs to --kind streaming: give both, as in --kind streaming --recent 64.")
    match kind:
        case "scale":
            return Plan(Scale(heads, factor or 0.0))
        case "average":
            return Plan(Average(heads))
        case "copy":
            return Plan(Copy(heads, source or ""))
        case "unmixed":
            return Plan(SkipOutputProjection(heads))
        case _ if kind in KINDS:
            return Plan(Ablate(heads, kind=kind, sink=streamed["sink"], recent=streamed["recent"]))
        case _ if ":" in kind:
            return Plan(Edit(heads, own_function(kind)))
    raise PlanError(
        f"--kind {kind} is unknown: use {', '.join(KINDS)}, scale, average, copy, unmixed, or module:function of your "
        f"own, as my_edits:flip."
    )


def own_function(kind: str) -> Callable[..., Any]:
    """The function that --kind names, of a module in the working folder or an installed one. Errors: PlanError."""
    function = imported_here(kind, f"--kind {kind}", PlanError)
    if not callable(function):
        raise PlanError(f"--kind {kind}: that is a {type(function).__name__}, and no function.")
    return function


def _names_heads(word: str) -> bool:
    try:
        return word.rstrip().endswith(PLACES) or bool(written(word))
    except HeadError:
        return False


def ablation_lines(lm: LoadedModel, result: Effect, texts: Source, saved: Path | None, console: Console) -> list[Text]:
    """The verdict, the effect among random heads as a strip of dots, then the numbers, each with its label."""
    lines = [
        Text.assemble((clean(lm.name), "bold"), f": {clean(str(result.plan))}"),
        Text(interventions.verdict(result).words, style="bold"),
        Text(),
    ]
    if result.control:
        lines += [*strip(result, console), Text()]
    unit = f" {result.unit}" if result.unit else ""
    rows = [("texts", texts.origin)]
    if "unchanged" in result.notes:
        rows.append(("nothing", f"{result.notes['unchanged']}: changed nothing, so the numbers below are rounding"))
    if result.before is not None and result.after is not None:
        rows.append(("before", f"{result.metric} {result.before:.4f}, after {result.after:.4f}{unit}"))
    mean = sum(result.control) / len(result.control) if result.control else 0.0
    ends = (result.low, result.high, *((mean, min(result.control), max(result.control)) if result.control else ()))
    # Change and control are compared by eye: all of them with as many decimals.
    known = [result.change, *(value for value in ends if value is not None)]
    written = dict(zip(known, aligned(known), strict=True))
    signed = {value: text if text.startswith("-") else f"+{text}" for value, text in written.items()}
    interval = (
        "(no 95% interval: too few texts)"
        if result.low is None or result.high is None
        else f"(95% interval {written[result.low]} to {written[result.high]})"
    )
    rows.append(("change", f"{result.metric} {signed[result.change]}{unit}  {interval}".rstrip()))
    rows += [("", TERMS[METRIC_TERMS[result.metric]].short)] if result.metric in METRIC_TERMS else []
    if result.control:
        span = f"({written[min(result.control)]} to {written[max(result.control)]})"
        rows.append(("control", f"{result.metric} {signed[mean]}{unit}  {span}: {result.notes['control']}"))
    if result.per_token is not None and result.num_texts == 1:
        # The tokens whose loss rose most: of a pair, those of its target. The first token is predicted by none.
        text, rises = texts.given[0], result.per_token[0]
        side = {"text": text} if isinstance(text, str) else {"text_target": text[1]}
        tokenizer = lm.required_tokenizer
        ids = tokenizer(**side, verbose=False)["input_ids"]
        names = tokenizer.convert_ids_to_tokens(ids)[-len(rises) :]
        order = sorted(range(len(names)), key=lambda index: -rises[index])[:MOST_TOKENS]
        tokens = {index: tokenizer.convert_tokens_to_string([names[index]]).strip() for index in order}
        rows.append(("tokens", ", ".join(f"{token!r} {rises[index]:+.2f}" for index, token in tokens.items())))
    rows.append(("metric", f"{result.metric} ({result.notes['metric']})"))
    rows += [(name, result.notes[name]) for name in ("corpus", "windows", "decoder") if name in result.notes]
    if saved is not None:
        rows.append(("wrote", str(saved)))
    return lines + [Text(f"{label:<{LABEL_WIDTH}}{clean(words)}") for label, words in rows]


def strip(result: Effect, console: Console) -> list[Text]:
    """The change among those of random heads, on one line from the least to the most, 0 included; then its scale."""
    mark, dot, line = ("▼", "●", "─") if knows_blocks(console) else ("v", "o", "-")
    low, high = min(0.0, result.change, *result.control), max(0.0, result.change, *result.control)

    def place(change: float) -> int:
        return round((STRIP_WIDTH - 1) * (change - low) / (high - low)) if high > low else 0

    counts = Counter(map(place, result.control))
    height = min(MOST_STACKED, max(counts.values()))
    # Dots at one place stand on each other; the lowest row is the line itself.
    rows = [
        "".join(
            ("+" if level == MOST_STACKED < counts[column] else dot) if counts[column] >= level else blank
            for column in range(STRIP_WIDTH)
        )
        for level, blank in ((level, line if level == 1 else " ") for level in range(height, 0, -1))
    ]
    plan = result.plan
    one_head = result.num_heads == 1 and not plan.of_whole_model
    one_place = len(plan.on_places) == len(plan.steps) == 1
    named = [str(step.heads) for step in plan.steps if not isinstance(step, SkipPositions)]
    subject = named[0] if one_head or one_place else "this plan"
    margin = " " * LABEL_WIDTH
    first, last = (end if value else "0" for end, value in zip(aligned([low, high]), (low, high), strict=True))
    scale = f"{first:<{STRIP_WIDTH - len(last)}}{last}"
    if len(first) < place(0.0) < STRIP_WIDTH - len(last) - 1:
        scale = f"{scale[: place(0.0)]}0{scale[place(0.0) + 1 :]}"
    things = interventions.verdict(result).things
    return [
        Text(f"{margin}{' ' * place(result.change)}{mark} {subject}"),
        *(Text(f"{margin}{row}".rstrip()) for row in rows),
        Text(f"{margin}{scale} {result.metric}", style="dim"),
        Text(f"{margin}{dot} {things}", style="dim"),
    ]


# ---------------------------------------------------------------------------------------------------------- importance


SHADES = (" ░▒▓█", " .:*#")
LISTED = 6  # heads at either end
ESTIMATORS = ("auto", "ablation", "gradient", "both")
FORMS = ("compact", "zeroed")  # as `Only` of interventions/save/save.py, which imports torch
ESTIMATOR_HELP = (
    "ablation (exact: a pass for each head), gradient (an estimate, one pass forwards and back), or both. auto: "
    "ablation for up to 100 heads, gradient for more."
)


def importance(
    text: TextOrOwn = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    targets: TargetsFile = None,
    model: ModelName = DEFAULT_MODEL,
    estimator: Annotated[str, typer.Option("--estimator", metavar="NAME", help=ESTIMATOR_HELP)] = "auto",
    kind: Annotated[
        str,
        typer.Option("--kind", metavar="KIND", help="zero, mean, resample, first, streaming, or module:function."),
    ] = "zero",
    metric: MetricName = "auto",
    out: Annotated[Path | None, to_file("--out", "Write the table: .parquet, .csv or .json.")] = None,
    curve: Annotated[
        Path | None, to_file("--curve", "Draw the loss as more and more heads are removed: .png, .svg or .pdf.")
    ] = None,
    resume: ResumeFolder = None,
    engine: EngineName = None,
    address: EngineAddress = None,
    actors: EngineActors = None,
    gpus_per_actor: EngineGpus = None,
    every: EngineEvery = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """What every head is worth on some texts: which heads matter, and which can be removed.

    Importance holds for these texts and for one head at a time. For sets of heads: --curve, and manyheads ablate.

    For example: manyheads importance --file novel.txt --curve how-far.svg
    """
    talk = ProgressLine()
    check_output(out, "--out", TABLE_ENDINGS)
    check_output(curve, "--curve", PICTURE_ENDINGS)
    if estimator not in ESTIMATORS:
        raise StatisticError(f"--estimator {estimator} is unknown: use auto, ablation, gradient or both.")
    check_metric(metric)
    crew = chosen_engine(engine, address, actors, gpus_per_actor, every)
    of_own = own_function(kind) if ":" in kind else None
    if of_own is not None and curve is not None:
        raise PlanError(f"--curve removes heads, and --kind {kind} is an edit of your own: leave one of them out.")
    # Refuses what cannot be, in its own words, before anything is read.
    step = Plan(Ablate("L*", kind=cast("AblationKind", kind)) if of_own is None else Edit("L*", of_own)).steps[0]
    ablated = step.kind if isinstance(step, Ablate) else "zero"
    texts = given_texts(talk, text or [], file, lines, model, targets)
    choice = ModelChoice(model, device, dtype)
    lm = load_model(talk, choice)
    first = cast("Estimator", "ablation" if estimator == "both" else estimator)
    with talk.step(f"reading the texts: what each of {len(lm.spec.heads)} heads is worth") as progress:
        result = interventions.importance(
            lm, texts.given, first, kind=of_own or ablated, metric=metric, progress=progress, resume=resume,
            engine=crew,
        )  # fmt: skip
    second = removed = None
    if estimator == "both":
        with talk.step("reading, forwards and back") as progress:
            second = interventions.importance(
                lm, texts.given, "gradient", metric=metric, progress=progress, resume=resume, engine=crew
            )
    if out is not None:
        result.save(out)
    if curve is not None:
        # Imports torch, for which --help is not to wait.
        from manyheads.interventions import removal_curve

        with talk.step("removing more and more heads") as progress:
            removed = removal_curve(lm, texts.given, result.estimator, kind=ablated, metric=metric, progress=progress)
        figures.save_curve(removed, curve)
    if as_json:
        document = result.to_dict()
        rows, notes = result.rows(), document.pop("notes")
        for row, value in zip(rows, [] if second is None else second.values, strict=second is not None):
            row["gradient"] = float(value)
        document["heads"] = rows
        document["agreement"] = None if second is None else result.agreement(second)
        document["curve"] = None if removed is None else removed.to_dict()
        emit_document({"loaded": lm.because, "origin": texts.origin, **document, "notes": notes})
    else:
        print_whole(importance_lines(result, second, texts, choice, stdout_console()))
        print_written(out, curve)


def importance_lines(
    result: Importance, second: Importance | None, texts: Source, model: ModelChoice, console: Console
) -> list[Text]:
    """What it comes to, a shade for every head, the ones at either end with their numbers, and what to try next."""
    unit = f" {result.unit}" if result.unit else ""
    lines = [
        Text.assemble((clean(result.notes["model"]), "bold"), f": what each head is worth, {result.metric}{unit}"),
        Text(interventions.importance_verdict(result), style="bold"),
        *([Text(TERMS[METRIC_TERMS[result.metric]].short, style="dim")] if result.metric in METRIC_TERMS else []),
        Text(),
    ]
    # Layers down, heads across, then what the shades mean: a darker cell is worth more, on a square-root scale.
    shades = SHADES[0] if knows_blocks(console) else SHADES[1]
    top, last = max(float(result.values.max()), 1e-30), len(shades) - 1
    value = dict(zip(result.heads, result.values, strict=True))
    for (stack, layer), numbers in result.spec.heads.by_layer().items():
        worth = (max(0.0, value[Head(stack, layer, number)]) for number in numbers)
        cells = (shades[round(last * (share / top) ** 0.5)] * 2 for share in worth)
        lines.append(Text(f"{layer_name(stack, layer):>12}  |{'|'.join(cells)}|  {len(numbers)} heads"))
    bounds = [f"{shades[step]} from {((step - 0.5) / last) ** 2:.0%}" for step in range(1, last + 1)]
    scale = f"{'':>12}  {'  '.join(bounds)} of {result.ranking()[-1]}, the largest; blank: less"
    lines += [Text(scale, style="dim"), Text()]
    order, (low, high) = result.ranking(), result.interval
    index_of = {head: index for index, head in enumerate(result.heads)}
    if len(order) <= 2 * LISTED:  # each head once
        ends = {"every head, the most important first": order[::-1]}
    else:
        most = [head for head in order[::-1][:LISTED] if value[head] > 0]
        ends = {"worth most": most, "worth least": order[:LISTED]} if most else {"worth least": order[:LISTED]}
    indices = [index_of[head] for heads in ends.values() for head in heads]
    values, lows, highs = (aligned(column[indices].tolist()) for column in (result.values, low, high))
    row = 0
    for title, heads in ends.items():
        lines.append(Text(title, style="bold"))
        for head in heads:
            span = f"  ({lows[row]} to {highs[row]})" if len(result.per_text) > 1 else ""
            lines.append(Text(f"  {head!s:<12}{values[row]:>10}{span}"))
            row += 1
    lines += [
        Text(),
        Text(f"texts     {texts.origin}"),
        Text(f"metric    {result.metric} ({result.notes['metric']})"),
        Text(f"estimator {result.notes['estimator']}"),
        Text(f"computed  {result.notes['computed']}"),
        Text("control   none: ablate compares a head with random ones"),
    ]
    if second is not None:
        lines.append(Text(f"agreement {result.agreement(second):.3f} with the gradient (rank correlation)"))
    added = model.arguments
    return [
        *lines,
        Text(),
        Text("Try next", style="bold"),
        Text(f"  manyheads ablate {order[-1]}{added}"),
        Text(f'  manyheads ablate "{result.lowest(max(1, len(order) // 10))}"{added}'),
        Text(f"  manyheads importance{added} --curve how-far.svg"),
    ]


FACT_WIDTH = 12
LISTED_CHOICES = 12  # groups of chosen heads
LOWEST_HELP = (
    "Instead of HEADS: remove the N heads that are least important on texts, or at most a share of all, "
    "such as 25%. Heads that share keys and values go in whole groups, which frees cache."
)
CACHE_HELP = (
    "Instead of --lowest: remove the least important heads, in whole groups, until this many bytes of "
    "cache a token are free."
)
LOSS_HELP = (
    "Instead of --lowest: remove the least important heads while the loss on the texts rises by at most "
    "this much, in nats a token."
)
WAYS_HELP = (
    "For --lowest, where heads share keys and values: each-layer (the same number of groups from each "
    "layer), anywhere (the least important groups) or each-group (the same number of heads from each "
    "group: frees no cache). Default: the first of these that can remove N; for --loss, anywhere."
)
RANKS_HELP = "For --lowest: ablation (exact) or gradient. auto: ablation for up to 100 heads, gradient for more."
ONLY_HELP = (
    "If no config can describe what is left, two forms are saved. Write only one: compact (small, for "
    "mh.load) or zeroed (original shapes, for any software)."
)
EVIDENCE_HELP = "Why these heads: a text for the model card."


def prune(
    heads: HeadNames = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where to save it; an earlier save there is replaced."),
    ] = None,
    lowest: Annotated[str | None, typer.Option("--lowest", metavar="N", help=LOWEST_HELP)] = None,
    cache_bytes: Annotated[int | None, count_option("--cache-bytes", help=CACHE_HELP)] = None,
    loss: Annotated[float | None, typer.Option("--loss", metavar="NATS", help=LOSS_HELP)] = None,
    way: Annotated[str | None, typer.Option("--way", metavar="NAME", help=WAYS_HELP)] = None,
    estimator: Annotated[str, typer.Option("--estimator", metavar="NAME", help=RANKS_HELP)] = "auto",
    file: TextsFile = None,
    lines: TextsAreLines = False,
    targets: TargetsFile = None,
    model: ModelName = DEFAULT_MODEL,
    as_json: AsJson = False,
    empty_layers: Annotated[
        bool, typer.Option("--empty-layers", help="Allow a layer to lose all of its heads.")
    ] = False,
    only: Annotated[str | None, typer.Option("--only", metavar="FORM", help=ONLY_HELP)] = None,
    evidence: Annotated[str | None, typer.Option("--evidence", metavar="TEXT", help=EVIDENCE_HELP)] = None,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Remove heads for good, and save the smaller model.

    The smaller model is checked against the whole one with these heads at zero. Where possible, transformers loads the
    checkpoint without manyheads. It is loaded in a fresh process and compared before it is kept.

    For example: manyheads prune "L3H7, L4H0-1" --out smaller
    """
    talk = ProgressLine()
    choices = (
        (heads, f"HEADS ({heads!r})"),
        (lowest, f"--lowest {lowest}"),
        (cache_bytes, f"--cache-bytes {cache_bytes}"),
        (loss, f"--loss {loss}"),
    )
    requested = [words for value, words in choices if value is not None]
    if len(requested) > 1:
        raise PlanError(f"{' and '.join(requested)} were both given, and both say which heads: give one of them.")
    how_many = None if lowest is None else count_or_share(lowest)
    if cache_bytes is not None and cache_bytes < 1:
        raise PlanError(f"--cache-bytes {cache_bytes}: give a number of bytes from 1.")
    if not requested:
        raise PlanError('say which heads, as in manyheads prune "L3H7, L4H0-1", or how many: --lowest N or 25%.')
    if loss is not None:
        # Imports torch, for which --help is not to wait.
        from manyheads.interventions.effects import check_bound

        check_bound("--loss ", loss)
    if out is None:
        raise PlanError("no place to save to: give --out FOLDER.")
    if heads is not None and (file is not None or lines or targets is not None):
        raise PlanError("--file, --lines and --targets are the texts that --lowest ranks heads by: leave them out.")
    if heads is not None and (way is not None or estimator != "auto"):
        raise PlanError("--way and --estimator say how --lowest chooses heads, and HEADS names them: leave them out.")
    if estimator not in ESTIMATORS[:3]:
        raise StatisticError(f"--estimator {estimator} is unknown: use auto, ablation or gradient.")
    if only not in (None, *FORMS):
        raise PlanError(f"--only {only} is not a form: use {' or '.join(FORMS)}, or leave it out for both.")
    if heads is not None:
        require_forwards(heads)
    check_folder(talk, out)
    texts = None if heads is not None else given_texts(talk, [], file, lines, model, targets)
    lm = load_model(talk, ModelChoice(model, device, dtype), reads=texts is not None)
    chosen = None
    if heads is None:
        assert texts is not None
        # What cannot be is known before reading.
        count = to_remove(lm, how_many, cache_bytes, empty_layers) if loss is None else None
        # Heads are chosen on one half of the texts; their loss is measured on the other, which had no part in it. Where
        # the loss is what is bounded, it is bounded on all of them.
        with talk.step(f"reading the texts: what each of {len(lm.spec.heads)} heads or its group is worth") as progress:
            chosen = interventions.lowest_heads(
                lm,
                texts.given[::2] if loss is None else texts.given,
                count,
                cast("Estimator", estimator),
                loss=loss,
                way=None if way is None else cast("Way", way.replace("-", " ")),
                empty_layers=empty_layers,
                progress=progress,
            )
        heads = str(chosen.heads)
        scores = (
            f"{lowest_words(chosen, len(lm.spec.heads))} by "
            f"{'zero ablation' if chosen.estimator == 'ablation' else 'gradient'}"
            f"{f', {chosen.because};' if chosen.ways else ','} {chosen.metric} on {chosen.num_texts} "
            f"of {texts.origin}. "
        )
        if loss is None:
            with talk.step("reading the other texts with all of them removed") as progress:
                held_out = texts.given[1::2] or texts.given
                lost = interventions.effect(lm, Ablate(heads), held_out, metric=chosen.metric, progress=progress)
            span = "" if lost.low is None else f" ({lost.low:.4g} to {lost.high:.4g})"
            control = f"{sum(lost.control) / len(lost.control):.4g}" if lost.control else "not available"
            scores += (
                f"On {lost.num_texts} other texts, removing all of them changes {lost.metric} by "
                f"{lost.change:+.4g}{span}; the same number of random heads: {control}"
            )
        else:
            scores += f"The loss: {bounded_words(chosen)}"
        evidence = f"{scores}. {evidence}" if evidence else scores
    with talk.step(f"removing {heads} and checking what is left"):
        pruned = interventions.prune_heads(lm, heads, empty_layers=empty_layers)
    with talk.step(f"saving to {out}, and loading it in a fresh process"):
        saved = pruned.save(out, evidence=evidence, only=cast("Only | None", only))
    if as_json:
        lowest_groups = {} if chosen is None else {"lowest": chosen.to_dict()}
        emit_document({**pruned.to_dict(), "saved": saved.to_dict(), **lowest_groups})
    else:
        rows = pruned_lines(pruned, saved, chosen)
        if chosen is not None:
            rows += [*([] if loss is None else [("loss", bounded_words(chosen))]), *lowest_lines(chosen)]
        print_whole(f"  {label:<{FACT_WIDTH}}{clean(text)}" if label else clean(text) for label, text in rows)


def count_or_share(text: str) -> int | float:
    """--lowest as people write it: a number of heads, or a share of all as 25%, which comes as 0.25."""
    match = re.fullmatch(r"([0-9]{1,9})(\.[0-9]{1,9})?\s*(%?)", text.strip())
    if match is not None and not match[3] and not match[2] and int(match[1]):
        return int(match[1])
    if match is not None and match[3] and 0 < (share := float(match[1] + (match[2] or "")) / 100) < 1:
        return share
    raise PlanError(
        f"--lowest {shortened(text, 40)}: give a number of heads from 1, or a share of them under 100%, such as 25%."
    )


def to_remove(lm: LoadedModel, how_many: int | float | None, cache_bytes: int | None, empty_layers: bool) -> int:
    """How many heads go: the number that was given, the largest that a share allows, or what frees the bytes.

    Errors: PlanError; HeadError for a number that cannot go, with numbers that can.
    """
    # Imports torch, for which --help is not to wait.
    from manyheads.interventions import costs_without, ways_to_lose

    spec = lm.spec
    if how_many is None:
        assert cache_bytes is not None
        sizes = {(site.num_heads // site.num_kv_heads, site.qk_dim, site.v_dim) for site in spec.sites}
        first, (size, *_) = spec.sites[0], next(iter(sizes))
        costs = costs_without(lm, [Head(first.stack, first.layer, index) for index in range(size)])
        before, freed = costs.cache_bytes[0], costs.freed_cache_bytes
        if not freed or len(sizes) > 1:
            why = "keeps no cache" if not before else "has layers whose heads free different numbers of bytes"
            raise PlanError(f"--cache-bytes {cache_bytes}: {lm.name} {why}: give --lowest N, or heads.")
        if cache_bytes >= before:
            raise PlanError(
                f"--cache-bytes {cache_bytes}: {lm.name} keeps {before:,} bytes a token in {lm.spec.dtype}: give fewer."
            )
        how_many = -(-cache_bytes // freed) * size
    if isinstance(how_many, float):
        for count in range(int(how_many * len(spec.heads)), 0, -1):
            try:
                ways_to_lose(spec, count, empty_layers=empty_layers)
            except HeadError:
                continue
            return count
        raise PlanError(
            f"--lowest {how_many:.4%} of the {len(spec.heads)} heads of {lm.name} is less than can "
            f"be removed on its own: give more."
        )
    if how_many >= len(spec.heads) and not empty_layers:
        raise PlanError(f"--lowest {how_many} is all of the {len(spec.heads)} heads of {lm.name}: give fewer.")
    ways_to_lose(spec, how_many, empty_layers=empty_layers)
    return how_many


def pruned_sentence(pruned: PrunedModel, chosen: Lowest | None) -> str:
    """What went, why as many of each layer, and whether the cache shrinks."""
    before, after = interventions.costs_of(pruned).cache_bytes
    of_layer = Counter((head.stack, head.layer) for head in pruned.removed)
    counts = [of_layer[site.stack, site.layer] for site in pruned.before.sites]
    spread = f"{counts[0]} of each layer" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} of a layer"
    reason = "as they were named" if chosen is None else chosen.because.partition(": ")[0]
    if not before:
        cache = "the model keeps no cache"
    elif after < before:
        cache = f"the cache shrinks by {percent(1 - after / before)}"
    else:
        cache = "the cache stays as it is, since no key/value head lost all heads that read it"
    return f"{len(pruned.removed)} of {len(pruned.before.heads)} heads are gone, {spread} ({reason}); {cache}."


def pruned_lines(pruned: PrunedModel, saved: Saved, chosen: Lowest | None) -> list[tuple[str, str]]:
    """The same for people: lines, each with its label."""
    costs = interventions.costs_of(pruned)
    before, after = costs.parameters
    heads, count = interventions.removed_text(pruned) or "nothing", len(pruned.removed)
    lines = [
        ("", f"{pruned.name} without {heads}: {count} head{'s' * (count != 1)} removed"),
        ("", pruned_sentence(pruned, chosen)),
        ("parameters", f"{before:,} -> {after:,} ({100 * (after - before) / before:+.1f}%)"),
    ]
    if costs.cache_bytes[0]:
        lines.append(("cache", f"{costs.cache_bytes[0]:,} -> {costs.cache_bytes[1]:,} bytes a token"))
    stock = f"transformers.{saved.loads_as}.from_pretrained({str(saved.zeroed or saved.folder)!r})"
    compact = f"mh.load({str(saved.folder)!r})"
    zeros = "the original shapes, zeros where heads were, for software without manyheads: no smaller than before"
    ways = {"compact": f"{compact}: the heads cut out", "zeroed": f"{stock}: {zeros}"}
    lines += [
        ("checked", f"equals the model with these heads at zero, within {pruned.error:.1e} of the largest output"),
        (
            "saved",
            f"{saved.folder}, {saved.form}: tried in a fresh process on {saved.tried_on}, off by {saved.error:.1e}",
        ),
        ("load it", ways.get(saved.form, stock)),
    ]
    small = units.gb(bytes_in(saved.folder))
    if saved.form == "compact" and saved.zeroed is not None:
        sizes = f"{small} the compact form, {units.gb(bytes_in(saved.zeroed))} the zeroed one"
        lines += [("or", ways["zeroed"]), ("on disk", f"{sizes}; --only compact or --only zeroed writes one")]
    else:
        lines.append(("on disk", small))
    return [*lines, ("because", saved.because)]


def bytes_in(folder: Path) -> int:
    """The size of the files of a folder, without those of folders in it."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def lowest_words(lowest: Lowest, num_heads: int) -> str:
    """What was chosen, of how many: heads, or the groups in which they went."""
    gone = set(lowest.heads)
    whole = [group for group in lowest.groups if gone.issuperset(group)]
    count = f"{len(gone)} head{'s' * (len(gone) != 1)}"
    if lowest.groups and sum(map(len, whole)) == len(gone):
        return (
            f"The {len(whole)} least important of {len(lowest.groups)} groups that share a key/value head, {count} of "
            f"{num_heads},"
        )
    return f"The {len(gone)} least important of {num_heads} heads"


def bounded_words(lowest: Lowest) -> str:
    """The loss before and after, what was allowed, what the next larger number would cost, and on what that rests."""
    count = len(lowest.heads)
    more = min((number for number in lowest.tried if number > count), default=None)
    no_more = "no more can go" if more is None else f"{more} heads would be {lowest.tried[more]:+.4f}"
    texts = base.plural(lowest.num_texts, "text")
    return (
        f"{lowest.before:.4f} -> {lowest.after:.4f} nats a token ({lowest.tried[count]:+.4f}, of at most "
        f"{lowest.bound:+g}; {no_more}), {base.plural(len(lowest.tried), 'evaluation')} by bisection, measured on "
        f"{texts} only, the same that chose the heads: others may lose more"
    )


def lowest_lines(lowest: Lowest) -> list[tuple[str, str]]:
    """Why in this way, and of which groups the heads are, each with its worth."""
    gone = set(lowest.heads)
    groups: list[str] = []
    for group, worth in lowest.groups.items():
        part = [head for head in group if head in gone]
        if part:
            name = str(group) if len(part) == len(group) else f"{', '.join(map(str, part))} of {group}"
            groups.append(f"{name} ({worth:+.4g})")
    if not groups:
        return [("estimator", lowest.why)]
    unit = f" {lowest.unit}" if lowest.unit else ""
    more = f" and {len(groups) - LISTED_CHOICES} more, in --json" if len(groups) > LISTED_CHOICES else ""
    meaning = "lost without the whole group" if lowest.estimator == "ablation" else "by gradient in a gate on the group"
    of_groups = f"{', '.join(groups[:LISTED_CHOICES])}{more}: {lowest.metric}{unit} {meaning}"
    (of_group, cache_bytes), (of_head, _) = lowest.frees["group"], lowest.frees["head"]
    freed = (
        f"a group {of_group:,} parameters and {cache_bytes:,} bytes of cache a token; one head of it {of_head:,} "
        f"parameters and no cache"
    )
    return [("chosen", lowest.because), ("groups", of_groups), ("frees", freed), ("estimator", lowest.why)]


# ------------------------------------------------------------------------------------------------------------- convert


COUNT_HELP = "Key/value heads that each layer keeps: a divisor of their present number. 1 is MQA."
MODEL_HELP = "A folder, or a name on the Hugging Face hub."
FILE_HELP = f"{TEXTS_HELP} The loss on them and the speed of decoding are measured."
NO_REGROUP_HELP = "Merge neighbouring heads instead of similar ones."
ERRORS_A_LINE = 8


def convert(
    kv_heads: Annotated[int, typer.Option("--kv-heads", metavar="N", min=1, help=COUNT_HELP, show_default=False)],
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP, show_default=False)],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FOLDER", help="Where to save it; an earlier save there is replaced.", show_default=False
        ),
    ],
    no_regroup: Annotated[bool, typer.Option("--no-regroup", help=NO_REGROUP_HELP)] = False,
    file: Annotated[str | None, typer.Option("--file", metavar="TEXTS", help=FILE_HELP, show_default=False)] = None,
    lines: TextsAreLines = False,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Merge key/value heads into fewer (MHA to GQA or MQA), and save the model.

    Similar heads are merged into their means. That costs quality until the model is trained further; the table is
    measured before that. The checkpoint is loaded in a fresh process and compared before it is kept.

    For example: manyheads convert --kv-heads 8 --model my-model --out grouped --file texts.txt
    """
    talk = ProgressLine()
    check_folder(talk, out)
    texts = None if file is None else texts_in(read_source([], file), lines)
    lm = load_model(talk, ModelChoice(model, device, dtype), reads=texts is not None)
    with talk.step(f"merging key/value heads into {kv_heads} and checking the copy"):
        converted = interventions.convert_to_gqa(lm, kv_heads, regroup=not no_regroup, texts=texts)
    with talk.step(f"saving to {out}, and loading it in a fresh process"):
        saved = converted.save(out)
    if as_json:
        where = saved.to_dict()
        names = ("folder", "loads_as", "error", "tried_on")
        emit_document({**converted.to_dict(), "saved": {name: where[name] for name in names}})
    else:
        print_whole(converted_lines(converted, saved))


def converted_lines(converted: Converted, saved: Saved) -> list[str]:
    """The same for people."""
    present = converted.before.sites[0].num_kv_heads
    errors = [f"L{layer} {error:.3f}" for layer, error in converted.error_by_layer.items()]
    tried = f"tried in a fresh process on {saved.tried_on}, off by {saved.error:.1e}"
    rows = [errors[begin : begin + ERRORS_A_LINE] for begin in range(0, len(errors), ERRORS_A_LINE)]
    return [
        clean(f"{converted.name}: {present} key/value heads of each layer merged into {converted.num_kv_heads}"),
        "",
        *str(converted.table).splitlines(),
        "",
        f"Relative error of {converted.error_because}:",
        *("  " + "  ".join(row) for row in rows),
        "",
        clean(f"Saved in {saved.folder}, as {saved.loads_as}: {tried}."),
        clean(f"Load it: transformers.{saved.loads_as}.from_pretrained({str(saved.folder)!r})"),
    ]
