"""`manyheads importance`: what every head is worth, which can go, and how far that goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from manyheads import figures
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    PICTURE_ENDINGS,
    TABLE_ENDINGS,
    AsJson,
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
from manyheads.cli.steps import load_model, model_arguments
from manyheads.cli.terminal.console import clean, emit_document, knows_blocks, print_whole, stdout_console
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import StatisticError
from manyheads.heads import Head
from manyheads.plan import Ablate

if TYPE_CHECKING:
    from rich.console import Console

    from manyheads.interventions import Curve, Importance

SHADES = (" ░▒▓█", " .:*#")
LISTED = 6
ESTIMATOR_HELP = "ablation (exact), gradient (quicker on large models), or both."


def importance(
    text: TextOrOwn = None,
    file: TextsFile = None,
    lines: TextsAreLines = False,
    model: ModelName = DEFAULT_MODEL,
    estimator: Annotated[str, typer.Option("--estimator", metavar="NAME", help=ESTIMATOR_HELP)] = "ablation",
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="zero, mean, resample or first.")] = "zero",
    metric: MetricName = "auto",
    save: Annotated[Path | None, to_file("--save", "Write the table: .parquet, .csv or .json.")] = None,
    curve: Annotated[Path | None, to_file("--curve", "Draw what is lost as heads go: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """What every head is worth on some texts, from the ones that can go to the ones that cannot.

    Importance is about these texts, one head at a time. What a set of heads is worth: --curve, and manyheads ablate.

    For example: manyheads importance --file novel.txt --curve how-far.svg
    """
    talk = Talk()
    check_output(save, "--save", TABLE_ENDINGS)
    check_output(curve, "--curve", PICTURE_ENDINGS)
    if estimator not in ("ablation", "gradient", "both"):
        raise StatisticError(f"--estimator {estimator} is unknown: use ablation, gradient or both.")
    check_metric(metric)
    Ablate("L*", kind=kind)  # refuses a kind that there is not, in its own words
    texts = given_texts(talk, text or [], file, lines, model)
    lm = load_model(talk, model)
    result, second = _estimates(talk, lm, texts, estimator, kind, metric)
    if save is not None:
        result.save(save)
    drawn = None if curve is None else _draw(talk, lm, texts, result, kind, metric, curve)
    if as_json:
        emit_document(document(result, second, drawn, texts))
    else:
        print_whole(page(result, second, texts, model, stdout_console()))
        print_whole(f"wrote {clean(str(path))}" for path in (save, curve) if path is not None)


def _estimates(
    talk: Talk, lm: Any, texts: Texts, estimator: str, kind: str, metric: str
) -> tuple[Importance, Importance | None]:
    """What was asked for; the gradients too, where both were."""
    from manyheads.interventions import importance as measured

    first = "gradient" if estimator == "gradient" else "ablation"
    by_gradient = "reading, forwards and back"
    with talk.step(by_gradient if first == "gradient" else "reading the texts without each head") as progress:
        result = measured(lm, texts.texts, first, kind=kind, metric=metric, progress=progress)
    if estimator != "both":
        return result, None
    with talk.step(by_gradient):
        return result, measured(lm, texts.texts, "gradient", metric=metric)


def _draw(talk: Talk, lm: Any, texts: Texts, result: Importance, kind: str, metric: str, path: Path) -> Curve:
    from manyheads.interventions.effects.removal_curve import removal_curve

    with talk.step("removing more and more heads") as progress:
        drawn = removal_curve(lm, texts.texts, result.estimator, kind=kind, metric=metric, progress=progress)
    figures.save_curve(drawn, path)
    return drawn


def document(result: Importance, other: Importance | None, drawn: Curve | None, texts: Texts) -> dict[str, Any]:
    """Everything, as data."""
    table = result.to_pandas()
    heads = table.astype(object).where(table.notna(), None).to_dict(orient="records")
    if other is not None:
        for row, value in zip(heads, other.values, strict=True):
            row["gradient"] = float(value)
    return {
        "origin": texts.origin,
        "estimator": result.estimator,
        "metric": result.metric,
        "unit": result.unit,
        "heads": heads,
        "agreement": None if other is None else result.agreement(other),
        "curve": None if drawn is None else drawn.to_dict(),
        "notes": result.notes,
    }


def page(result: Importance, other: Importance | None, texts: Texts, model: str, console: Console) -> list[Text]:
    """A shade for every head, the ones at either end with their numbers, and what to try next."""
    unit = f" {result.unit}" if result.unit else ""
    lines = [
        Text.assemble((clean(result.notes["model"]), "bold"), f": what each head is worth, {result.metric}{unit}"),
        Text(f"texts     {texts.origin}"),
        Text(f"metric    {result.notes['metric']}"),
        Text(f"computed  {result.notes['computed']}"),
    ]
    if other is not None:
        lines.append(Text(f"agreement {result.agreement(other):.3f} with the gradient (rank correlation)"))
    lines += [Text(), *_grid(result, console), Text()]
    order = result.ranking()
    lines += _listing("worth most", list(order[::-1][:LISTED]), result)
    lines += _listing("worth least", list(order[:LISTED]), result)
    lowest = result.lowest(max(1, len(order) // 10))
    added = model_arguments(model)
    lines += [
        Text(),
        Text("Try next", style="bold"),
        Text(f'  manyheads ablate "{lowest}"{added}'),
        Text(f"  manyheads importance{added} --curve how-far.svg"),
    ]
    return lines


def _grid(result: Importance, console: Console) -> list[Text]:
    """Layers down, heads across; a darker cell is worth more, in fifths of the largest on a square-root scale."""
    shades = SHADES[0] if knows_blocks(console) else SHADES[1]
    top = max(float(result.values.max()), 1e-30)
    lines, value = [], dict(zip(result.heads, result.values, strict=True))
    for (stack, layer), indices in result.spec.heads.by_layer().items():
        name = f"{stack}:L{layer}" if stack else f"L{layer}"
        worth = (max(0.0, value[Head(stack, layer, index)]) for index in indices)
        cells = (shades[round(4 * (share / top) ** 0.5)] * 2 for share in worth)
        lines.append(Text(f"{name:>12}  |{'|'.join(cells)}|  {len(indices)} heads"))
    return lines


def _listing(title: str, heads: list[Any], result: Importance) -> list[Text]:
    low, high = result.interval
    rank_of = {head: index for index, head in enumerate(result.heads)}
    lines = [Text(title, style="bold")]
    for head in heads:
        index = rank_of[head]
        span = f"({low[index]:.3g} to {high[index]:.3g})" if len(result.per_text) > 1 else ""
        lines.append(Text(f"  {head!s:<12}{result.values[index]:>10.4g}  {span}"))
    return lines
