"""`manyheads ablate L3H7`: what is lost without some heads, beside as many heads chosen at random."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from manyheads.errors import PlanError

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
    asked = _plan(heads, kind, factor, source, plan)
    _require_text(heads, words)
    texts = given_texts(talk, words, file, lines, model)
    other = None if corpus is None else given_texts(talk, [], corpus, lines).texts
    lm = load_model(talk, model)
    with talk.step("reading the texts, with these heads and without") as progress:
        from manyheads.interventions import effect

        found = effect(lm, asked, texts.texts, metric=metric, corpus=other, controls=controls, progress=progress)
    if save_plan is not None:
        _save(lm, asked, other or texts.texts, save_plan)
    if as_json:
        emit_document({"origin": texts.origin, **found.to_dict()})
    else:
        rows = page(lm, found, texts, save_plan)
        print_whole(f"{label:<{LABEL_WIDTH}}{clean(words)}" if label else words for label, words in rows)


def _plan(heads: str | None, kind: str | None, factor: float | None, source: str | None, file: Path | None) -> Plan:
    """The plan that the options mean. Errors: PlanError for options that contradict each other; HeadError."""
    from manyheads.heads import require_forwards
    from manyheads.plan import KINDS, Ablate, Average, Copy, Plan, Scale, SkipOutputProjection

    if file is not None:
        from manyheads.interventions import open_plan

        if heads is not None:
            raise PlanError(
                f"HEADS ({heads!r}) and --plan {file} both say what to do: give one of them. A text goes after it, in "
                f"quotes, or comes by --file."
            )
        given = {"--kind": kind, "--factor": factor, "--source": source}
        if options := " and ".join(name for name, value in given.items() if value is not None):
            raise PlanError(f"{options} and --plan {file} both say what to do: leave out one or the other.")
        plan = open_plan(file).plans[0]
        if not plan.steps:
            raise PlanError(f"{file}: the plan has no steps, so nothing would change: give it at least one.")
        return plan
    if heads is None:
        raise PlanError("no heads were named: give HEADS, as in manyheads ablate L3H7, or --plan FILE.")
    for each in filter(None, (heads, source)):
        require_forwards(each)
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
    from manyheads.errors import HeadError
    from manyheads.heads import written

    try:
        return bool(written(word))
    except HeadError:
        return False


def _save(lm: Any, plan: Plan, texts: list[str], path: Path) -> None:
    from manyheads.interventions.apply.applied import prepare

    prepare(lm, plan, texts if plan.needs_corpus else None)[0].save(path)


def page(lm: Any, found: Effect, texts: Texts, saved: Path | None) -> list[tuple[str, str]]:
    """The effect as lines, each with its label."""
    unit = f" {found.unit}" if found.unit else ""
    rows = [("", f"{lm.name}: {found.plan}"), ("texts", texts.origin)]
    if "unchanged" in found.notes:
        rows.append(("nothing", f"{found.notes['unchanged']}: changed nothing, so what follows is rounding"))
    if found.before is not None and found.after is not None:
        rows.append(("before", f"{found.metric} {found.before:.4f}, after {found.after:.4f}{unit}"))
    interval = "" if found.low is None else f"  ({found.low:.4g} to {found.high:.4g} in 95 % of resampled texts)"
    rows.append(("change", f"{found.metric} {found.change:+.4g}{unit}{interval}"))
    if found.control:
        mean = sum(found.control) / len(found.control)
        above = sum(each >= found.change for each in found.control)
        span = f"({min(found.control):.4g} to {max(found.control):.4g})"
        rows.append(("control", f"{mean:+.4g} {span}: {found.notes['control']}"))
        rows.append(("", f"{'':<{LABEL_WIDTH}}{above} of {len(found.control)} change at least as much"))
    else:
        rows.append(("control", found.notes["control"]))
    if found.per_token is not None and found.num_texts == 1:
        rows.append(("tokens", _worst_tokens(lm, found, texts.texts[0])))
    rows += [(name, found.notes[name]) for name in ("metric", "corpus", "windows", "decoder") if name in found.notes]
    if saved is not None:
        rows.append(("wrote", str(saved)))
    return rows


def _worst_tokens(lm: Any, found: Effect, text: str) -> str:
    """The tokens whose loss rose most."""
    assert found.per_token is not None
    ids = lm.tokenizer(text, verbose=False)["input_ids"]
    rises = found.per_token[0]
    names = lm.tokenizer.convert_ids_to_tokens(ids)[-len(rises) :]
    order = sorted(range(len(names)), key=lambda at: -rises[at])[:MOST_TOKENS]
    return ", ".join(f"{lm.tokenizer.convert_tokens_to_string([names[at]]).strip()!r} {rises[at]:+.2f}" for at in order)
