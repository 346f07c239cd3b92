"""`manyheads ablate L3H7`: what is lost without some heads, beside as many heads chosen at random."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manyheads import interventions
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    AsJson,
    HeadNames,
    MetricName,
    ModelName,
    TextOrOwn,
    Texts,
    TextsAreLines,
    TextsFile,
    check_metric,
    check_output,
    given_texts,
    to_file,
)
from manyheads.cli.steps import load_model
from manyheads.cli.terminal.console import clean, emit_document, print_whole
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import HeadError, PlanError
from manyheads.heads import require_forwards, written
from manyheads.plan import KINDS, Ablate, Average, Copy, Plan, Scale, SkipOutputProjection

if TYPE_CHECKING:
    from manyheads.interventions import Effect
    from manyheads.plan import Plan

LABEL_WIDTH = 10
KIND_HELP = "What stands in their place: zero (the default), mean, resample or first; or scale, average, copy, unmixed."
CORPUS_HELP = "Texts that mean and resample take their values from; else those that are read."
PLAN_HELP = "A plan (.json) in place of HEADS: what is typed is the text then."
MOST_TOKENS = 8  # whose loss rose most, of a single text


def ablate(
    heads: HeadNames = None,
    text: TextOrOwn = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    model: ModelName = DEFAULT_MODEL,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help=KIND_HELP)] = None,
    factor: Annotated[float | None, typer.Option("--factor", metavar="X", help="For --kind scale.")] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="HEAD", help="For --kind copy.")] = None,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help=PLAN_HELP)] = None,
    corpus: Annotated[str | None, typer.Option("--corpus", metavar="FILE", help=CORPUS_HELP)] = None,
    metric: MetricName = "auto",
    controls: Annotated[int, typer.Option("--controls", metavar="N", min=0, help="Random sets of as many heads.")] = 10,
    save_plan: Annotated[Path | None, to_file("--save-plan", "Write the plan: .json.")] = None,
    as_json: AsJson = False,
) -> None:
    """What is lost without some heads, beside as many heads chosen at random.

    Heads are edited before the output projection mixes them; the model is as it was afterwards.

    For example: manyheads ablate L3H7 --kind mean --file novel.txt
    """
    talk = Talk()
    check_output(save_plan, "--save-plan", (".json",))
    check_metric(metric)
    words = text or []
    if plan is not None and heads is not None and not _names_heads(heads):
        heads, words = None, [heads, *words]
    requested = _plan(heads, kind, factor, source, plan)
    _require_text(heads, words)
    texts = given_texts(talk, words, file, lines, model)
    corpus_texts = None if corpus is None else given_texts(talk, [], corpus, lines).texts
    lm = load_model(talk, model)
    with talk.step("reading the texts, with these heads and without") as progress:
        result = interventions.effect(
            lm, requested, texts.texts, metric=metric, corpus=corpus_texts, controls=controls, progress=progress
        )
    if save_plan is not None:
        _save(lm, requested, corpus_texts or texts.texts, save_plan)
    if as_json:
        emit_document({"origin": texts.origin, **result.to_dict()})
    else:
        rows = page(lm, result, texts, save_plan)
        print_whole(f"{label:<{LABEL_WIDTH}}{clean(words)}" if label else words for label, words in rows)


def _plan(heads: str | None, kind: str | None, factor: float | None, source: str | None, file: Path | None) -> Plan:
    """The plan that the options mean. Errors: PlanError for options that contradict each other; HeadError."""
    if file is not None:
        if heads is not None:
            raise PlanError(
                f"HEADS ({heads!r}) and --plan {file} both say what to do: give one of them. A text goes after it, in "
                f"quotes, or comes by --file."
            )
        per_step_options = {"--kind": kind, "--factor": factor, "--source": source}
        if options := " and ".join(name for name, value in per_step_options.items() if value is not None):
            raise PlanError(f"{options} and --plan {file} both say what to do: leave out one or the other.")
        plan = interventions.open_plan(file).plans[0]
        if not plan.steps:
            raise PlanError(f"{file}: the plan has no steps, so nothing would change: give it at least one.")
        return plan
    if heads is None:
        raise PlanError("no heads were named: give HEADS, as in manyheads ablate L3H7, or --plan FILE.")
    for names in filter(None, (heads, source)):
        require_forwards(names)
    kind = kind or "zero"
    if (factor is not None) != (kind == "scale"):
        raise PlanError("--factor belongs to --kind scale: give both, as in --kind scale --factor 0.5.")
    if (source is not None) != (kind == "copy"):
        raise PlanError("--source belongs to --kind copy: give both, as in 'L1' --kind copy --source L1H0.")
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
            return Plan(Ablate(heads, kind=kind))
    raise PlanError(f"--kind {kind} is unknown: use {', '.join(KINDS)}, scale, average, copy or unmixed.")


def _require_text(heads: str | None, words: list[str]) -> None:
    """Errors: PlanError for a second name of heads, which would be read as the text."""
    if heads is not None and words and _names_heads(words[0]):
        raise PlanError(
            f'{words[0]!r} names heads, and would be read as the text: name all in one, "{heads}, {words[0]}".'
        )


def _names_heads(word: str) -> bool:
    try:
        return bool(written(word))
    except HeadError:
        return False


def _save(lm: Any, plan: Plan, texts: list[str], path: Path) -> None:
    from manyheads.interventions.apply.applied import prepare

    prepare(lm, plan, texts if plan.needs_corpus else None)[0].save(path)


def page(lm: Any, result: Effect, texts: Texts, saved: Path | None) -> list[tuple[str, str]]:
    """The effect as lines, each with its label."""
    unit = f" {result.unit}" if result.unit else ""
    rows = [("", f"{lm.name}: {result.plan}"), ("texts", texts.origin)]
    if "unchanged" in result.notes:
        rows.append(("nothing", f"{result.notes['unchanged']}: changed nothing, so what follows is rounding"))
    if result.before is not None and result.after is not None:
        rows.append(("before", f"{result.metric} {result.before:.4f}, after {result.after:.4f}{unit}"))
    interval = "" if result.low is None else f"  ({result.low:.4g} to {result.high:.4g} in 95 % of resampled texts)"
    rows.append(("change", f"{result.metric} {result.change:+.4g}{unit}{interval}"))
    if result.control:
        mean = sum(result.control) / len(result.control)
        above = sum(change >= result.change for change in result.control)
        span = f"({min(result.control):.4g} to {max(result.control):.4g})"
        rows.append(("control", f"{mean:+.4g} {span}: {result.notes['control']}"))
        rows.append(("", f"{'':<{LABEL_WIDTH}}{above} of {len(result.control)} change at least as much"))
    else:
        rows.append(("control", result.notes["control"]))
    if result.per_token is not None and result.num_texts == 1:
        rows.append(("tokens", _worst_tokens(lm, result, texts.texts[0])))
    rows += [(name, result.notes[name]) for name in ("metric", "corpus", "windows", "decoder") if name in result.notes]
    if saved is not None:
        rows.append(("wrote", str(saved)))
    return rows


def _worst_tokens(lm: Any, result: Effect, text: str) -> str:
    """The tokens whose loss rose most."""
    assert result.per_token is not None
    ids = lm.tokenizer(text, verbose=False)["input_ids"]
    rises = result.per_token[0]
    names = lm.tokenizer.convert_ids_to_tokens(ids)[-len(rises) :]
    order = sorted(range(len(names)), key=lambda index: -rises[index])[:MOST_TOKENS]
    return ", ".join(
        f"{lm.tokenizer.convert_tokens_to_string([names[index]]).strip()!r} {rises[index]:+.2f}" for index in order
    )
