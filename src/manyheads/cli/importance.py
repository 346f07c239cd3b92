"""`manyheads importance`: what every head is worth, which can go, and how far that goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from manyheads.cli.console import clean, emit, knows_blocks, stdout_console
from manyheads.cli.corpus import LINES_HELP, TEXT_OR_OWN_HELP, TEXTS_HELP, Texts, given_texts
from manyheads.cli.inputs import check_output
from manyheads.cli.look import PICTURE_ENDINGS, TABLE_ENDINGS
from manyheads.cli.options import DEFAULT_MODEL, AsJson, ModelName
from manyheads.cli.progress import Talk
from manyheads.cli.steps import load_model, model_arguments
from manyheads.errors import StatisticError

if TYPE_CHECKING:
    from rich.console import Console

    from manyheads.interventions.curve import Curve
    from manyheads.interventions.importance import Importance

SHADES = (" ░▒▓█", " .:*#")
LISTED = 6
ESTIMATOR_HELP = "ablation (exact), gradient (quicker on large models), or both."


def importance(
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help=TEXT_OR_OWN_HELP, show_default=False)] = None,
    file: Annotated[str | None, typer.Option("--file", metavar="FILE", help=TEXTS_HELP)] = None,
    lines: Annotated[bool, typer.Option("--lines", help=LINES_HELP)] = False,
    model: ModelName = DEFAULT_MODEL,
    estimator: Annotated[str, typer.Option("--estimator", metavar="NAME", help=ESTIMATOR_HELP)] = "ablation",
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="zero, mean, resample or first.")] = "zero",
    metric: Annotated[str, typer.Option("--metric", metavar="NAME", help="auto, loss, kl or cosine.")] = "auto",
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the table: .parquet, .csv or .json.")
    ] = None,
    curve: Annotated[
        Path | None, typer.Option("--curve", metavar="FILE", help="Draw what is lost as heads go: .png, .svg or .pdf.")
    ] = None,
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
    texts = given_texts(talk, text or [], file, lines, model)
    lm = load_model(talk, model)
    found, other = _estimates(talk, lm, texts, estimator, kind, metric)
    if save is not None:
        found.save(save)
    drawn = None
    if curve is not None:
        drawn = _draw(talk, lm, texts, found, kind, metric, curve)
    if as_json:
        emit(json.dumps(document(found, other, drawn, texts), indent=1, allow_nan=False))
    else:
        console = stdout_console()
        for line in page(found, other, texts, model, console):
            console.print(line, soft_wrap=True)
        for path in (save, curve):
            if path is not None:
                console.print(f"wrote {clean(str(path))}", soft_wrap=True)


def _estimates(
    talk: Talk, lm: Any, texts: Texts, estimator: str, kind: str, metric: str
) -> tuple[Importance, Importance | None]:
    """What was asked for; the gradients too, where both were."""
    from manyheads.interventions.importance import importance as measured

    first = "gradient" if estimator == "gradient" else "ablation"
    with talk.step(
        "reading the texts without each head" if first == "ablation" else "reading, forwards and back"
    ) as on:
        found = measured(lm, texts.texts, first, kind=kind, metric=metric, progress=on)
    if estimator != "both":
        return found, None
    with talk.step("reading, forwards and back"):
        return found, measured(lm, texts.texts, "gradient", metric=metric)


def _draw(talk: Talk, lm: Any, texts: Texts, found: Importance, kind: str, metric: str, path: Path) -> Curve:
    from manyheads.figures.curve import save_curve
    from manyheads.interventions.curve import removal_curve

    with talk.step("removing more and more heads") as progress:
        drawn, _ = removal_curve(lm, texts.texts, found.estimator, kind=kind, metric=metric, progress=progress)
    save_curve(drawn, path)
    return drawn


def document(found: Importance, other: Importance | None, drawn: Curve | None, texts: Texts) -> dict[str, Any]:
    """Everything, as data. Keys: manyheads, origin, estimator, metric, unit, heads, agreement, curve, notes."""
    from manyheads import __version__

    table = found.to_pandas()
    heads = table.astype(object).where(table.notna(), None).to_dict(orient="records")
    if other is not None:
        for row, value in zip(heads, other.values, strict=True):
            row["gradient"] = float(value)
    return {
        "manyheads": __version__,
        "origin": texts.origin,
        "estimator": found.estimator,
        "metric": found.metric,
        "unit": found.unit,
        "heads": heads,
        "agreement": None if other is None else found.agreement(other),
        "curve": None if drawn is None else drawn.to_dict(),
        "notes": found.notes,
    }


def page(found: Importance, other: Importance | None, texts: Texts, model: str, console: Console) -> list[Text]:
    """A shade for every head, the ones at either end with their numbers, and what to try next."""
    unit = f" {found.unit}" if found.unit else ""
    lines = [
        Text.assemble((clean(found.notes["model"]), "bold"), f": what each head is worth, {found.metric}{unit}"),
        Text(f"texts     {texts.origin}"),
        Text(f"metric    {found.notes['metric']}"),
        Text(f"computed  {found.notes['computed']}"),
    ]
    if other is not None:
        lines.append(Text(f"agreement {found.agreement(other):.3f} with the gradient (rank correlation)"))
    lines += [Text(), *_grid(found, console), Text()]
    order = found.ranking()
    lines += _listing("worth most", list(order[::-1][:LISTED]), found)
    lines += _listing("worth least", list(order[:LISTED]), found)
    lowest = found.lowest(max(1, len(order) // 10))
    added = model_arguments(model)
    lines += [
        Text(),
        Text("Try next", style="bold"),
        Text(f'  manyheads ablate "{lowest}"{added}'),
        Text(f"  manyheads importance{added} --curve how-far.svg"),
    ]
    return lines


def _grid(found: Importance, console: Console) -> list[Text]:
    """Layers down, heads across; a darker cell is worth more, in fifths of the largest on a square-root scale."""
    shades = SHADES[0] if knows_blocks(console) else SHADES[1]
    top = max(float(found.values.max()), 1e-30)
    lines, value = [], dict(zip(found.heads, found.values, strict=True))
    for (stack, layer), indices in found.spec.heads.by_layer().items():
        name = f"{stack}:L{layer}" if stack else f"L{layer}"
        cells = (shades[round(4 * (max(0.0, value[head]) / top) ** 0.5)] * 2 for head in found.heads
                 if (head.stack, head.layer) == (stack, layer))  # fmt: skip
        lines.append(Text(f"{name:>12}  |{'|'.join(cells)}|  {len(indices)} heads"))
    return lines


def _listing(title: str, heads: list[Any], found: Importance) -> list[Text]:
    low, high = found.interval
    at = {head: index for index, head in enumerate(found.heads)}
    said = [Text(title, style="bold")]
    for head in heads:
        index = at[head]
        span = f"({low[index]:.3g} to {high[index]:.3g})" if len(found.per_text) > 1 else ""
        said.append(Text(f"  {head!s:<12}{found.values[index]:>10.4g}  {span}"))
    return said
