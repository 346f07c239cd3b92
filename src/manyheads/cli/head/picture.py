"""`manyheads head L3H2 --image cat.png`: where a head looks in a picture, as a small grid, as JSON, or drawn on it."""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from manyheads.cli.arguments import PICTURE_ENDINGS, check_output
from manyheads.cli.look.page import hanging, offered
from manyheads.cli.steps import load_model, model_arguments
from manyheads.cli.terminal.console import (
    cells_of,
    clean,
    drawn,
    emit_document,
    legend,
    print_sections,
    shades_of,
    stdout_console,
)
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import FileAccessError, HeadError, ShapeError

LABEL = 6
NUM_STRONGEST = 8
MEAN = "the mean over all patches"


@dataclass(frozen=True, eq=False)
class PictureLooked:
    """One head on one picture: the row of weights, whose row it is, and where its positions lie."""

    lm: Any
    model: str
    head: Any
    image: str
    grid: Any
    looker: str
    framed: tuple[int, int] | None
    row: torch.Tensor
    because: str
    written: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def weights(self) -> torch.Tensor:
        """By place."""
        return self.grid.laid_out(self.row)

    @property
    def others(self) -> dict[str, float]:
        return {name: float(self.row[at]) for name, at in self.grid.others.items()}


def look_at_picture(name: str, image: str, patch: str | None, model: str, plot: Path | None, as_json: bool) -> None:
    """The whole command, once it is known that it is about a picture."""
    place = _place(patch)
    check_output(plot, "--plot", PICTURE_ENDINGS)
    if not Path(image).exists():
        raise FileAccessError(f"there is no picture {image}.")
    found = gather(Talk(), name, image, place, model, plot)
    if as_json:
        emit_document(document(found))
    else:
        print_page(found)


def gather(
    talk: Talk, name: str, image: str, place: tuple[int, int] | None, model: str, plot: Path | None
) -> PictureLooked:
    """Load, record, read the row, and draw the picture that was asked for."""
    from manyheads.models import record
    from manyheads.models.inputs.media import picture_of, require_reader
    from manyheads.models.loading.modality import PICTURES
    from manyheads.recording.media import grid_of

    begun = time.perf_counter()
    picture = picture_of(image)
    lm = load_model(talk, model)
    require_reader(lm, PICTURES)
    wanted = _head_of(lm, name)
    with talk.step("reading the picture"):
        recording = record(lm, image=picture)
        grid = grid_of(recording)
    layer = next(stack for stack in recording.stacks[wanted.stack] if stack.site.layer == wanted.layer)
    if layer.crosses:
        raise HeadError(f"{wanted} is cross-attention: its rows are no patches of the picture. Take another layer.")
    looker, rows, framed = _looker(grid, place)
    row = layer.weights(head=wanted.index, queries=rows).mean(0)
    found = PictureLooked(lm, model, wanted, image, grid, looker, framed, row, layer.because)
    written = () if plot is None else (_plot(talk, found, picture, plot),)
    return replace(found, written=written, seconds=time.perf_counter() - begun)


def _place(patch: str | None) -> tuple[int, int] | None:
    """The row and column of `--patch r,c`. Errors: ShapeError."""
    if patch is None:
        return None
    found = re.fullmatch(r"\s*r?(\d+)\s*[,c]\s*(\d+)\s*", patch)
    if found is None:
        raise ShapeError(f"--patch {patch}: give a row and a column, both counted from 0, as in --patch 3,5.")
    return int(found[1]), int(found[2])


def _head_of(lm: Any, name: str) -> Any:
    """The head by that name; one without a stack is of the patches' own. Errors: HeadError."""
    from manyheads.cli.head.looked import head_of
    from manyheads.heads import Head

    asked, own = Head.parse(name), lm.spec.shape.get("", ())
    if len(lm.spec.shape) == 1 or asked.stack or not own:
        return head_of(lm, name)
    if asked.layer >= len(own) or asked.index >= own[asked.layer]:
        raise HeadError(f"{name}: {lm.name} has layers 0-{len(own) - 1} and heads 0-{max(own) - 1}.")
    return asked


def _looker(grid: Any, place: tuple[int, int] | None) -> tuple[str, slice, tuple[int, int] | None]:
    """Whose rows are shown: a patch's, the class token's, or all patches' where there is none."""
    if place is not None:
        at = grid.position(*place)
        return f"patch {place[0]},{place[1]}", slice(at, at + 1), place
    if "[CLS]" in grid.others:
        at = grid.others["[CLS]"]
        return "[CLS]", slice(at, at + 1), None
    return MEAN, grid.patches, None


def _plot(talk: Talk, found: PictureLooked, picture: Any, path: Path) -> str:
    """Draw it; what it shows, in words."""
    from manyheads.figures import save_picture
    from manyheads.models.inputs.media import shown

    grid = found.grid
    places = {(row, column): grid.pixels(row, column) for row in range(grid.rows) for column in range(grid.columns)}
    with talk.step(f"drawing {path.name}"):
        seen = shown(found.lm, picture)
        title = f"{found.head} in {found.lm.name}: where {found.looker} looks"
        if found.looker == MEAN:
            title = f"{found.head} in {found.lm.name}: where patches look, {MEAN}"
        about = f"{Path(found.image).name}, read as {seen.shape[1]} x {seen.shape[0]} pixels"
        save_picture(
            seen,
            found.weights.double().numpy(),
            places,
            path,
            title=title,
            subtitle=f"{about} in {grid.rows} x {grid.columns} patches",
            framed=found.framed,
            others=found.others,
        )
    return f"{path}, the picture with the weights on it"


# ------------------------------------------------------------------------------------------------------------- showing


def print_page(found: PictureLooked) -> None:
    console = stdout_console()
    sections = [_headline(found, console), _map(found, console), _strongest(found), _next(found, console)]
    print_sections(sections, console)


def _headline(found: PictureLooked, console: Console) -> list[Text]:
    grid, (height, width) = found.grid, found.grid.picture
    read = f"{found.image}, read as {width} x {height} pixels in {grid.rows} x {grid.columns} patches"
    beside = f"; other tokens: {', '.join(grid.others)}" if grid.others else ""
    facts = [("picture", read + beside), ("looks", f"{found.looker}: {_split(found)}")]
    lines = [Text.assemble((str(found.head), "bold"), f"  in {clean(found.lm.name)}")]
    for label, said in (*facts, *(("wrote", each) for each in found.written)):
        lines += hanging(Text(f"{label:<10}", style="dim"), clean(said), console.width)
    return lines


def _split(found: PictureLooked) -> str:
    """How the row's weight is shared between patches and other tokens."""
    parts = [f"{float(found.row[found.grid.patches].sum()):.1%} on patches"]
    return ", ".join(parts + [f"{weight:.1%} on {name}" for name, weight in found.others.items()])


def _map(found: PictureLooked, console: Console) -> list[Text]:
    """The picture's patches, or means of blocks of them where there is no room for each."""
    weights = found.weights
    fits = (console.width - LABEL) // 2
    block = -(-weights.shape[1] // fits)
    if block > 1:
        weights = torch.nn.functional.avg_pool2d(weights[None], block, ceil_mode=True, count_include_pad=False)[0]
    largest = float(weights.max())
    shades = shades_of(console)
    each = "one patch" if block == 1 else f"the mean of {block} x {block} patches"
    marks = "".join(f"{column * block:<10}" for column in range(0, weights.shape[1], 5))
    looks = "; @ is the patch that looks" if found.framed is not None else ""
    lines = [
        Text.assemble(("Map", "bold"), f"  the picture; a cell is {each}{looks}"),
        legend(largest, shades),
        Text(" " * LABEL + marks.rstrip(), style="dim"),
    ]
    for at, row in enumerate(weights.tolist()):
        cells = cells_of(row, largest, shades)
        if found.framed is not None and found.framed[0] // block == at:
            cells[found.framed[1] // block] = "@" + cells[found.framed[1] // block][1]
        lines.append(Text.assemble((f"{at * block:>4}  ", "dim"), drawn(cells, shades)))
    return lines


def _strongest(found: PictureLooked) -> list[Text]:
    line = Text(" ")
    for row, column, weight in _ranked(found)[:NUM_STRONGEST]:
        line.append_text(Text.assemble("  ", (f"{row},{column} ", "bold"), f"{weight:.1%}"))
    return [Text.assemble(("Strongest patches", "bold"), "  row,column"), line]


def _ranked(found: PictureLooked) -> list[tuple[int, int, float]]:
    """Every patch, the one with most weight first."""
    values, order = found.weights.flatten().sort(descending=True, stable=True)
    places = (divmod(at, found.grid.columns) for at in order.tolist())
    return [(row, column, value) for (row, column), value in zip(places, values.tolist(), strict=True)]


def _next(found: PictureLooked, console: Console) -> list[Text]:
    again = f"manyheads head {found.head} --image {shlex.quote(found.image)}{model_arguments(found.model)}"
    row, column, _ = _ranked(found)[0]
    offers = [(f"{again} --plot seen.png", "the weights drawn on the picture")]
    offers.append((f"{again} --patch {row},{column}", "where the strongest patch itself looks"))
    return offered(offers, console)


def document(found: PictureLooked) -> dict[str, Any]:
    """Everything about it as plain data."""
    return {
        "model": {"asked": found.model, "name": found.lm.name, "because": found.lm.because},
        "head": str(found.head),
        "image": found.image,
        "grid": asdict(found.grid),
        "looks_from": found.looker,
        "patch": found.framed,
        "weights": found.weights.tolist(),
        "others": found.others,
        "strongest": [
            dict(zip(("row", "column", "weight"), each, strict=True)) for each in _ranked(found)[:NUM_STRONGEST]
        ],
        "backend": found.because,
        "written": list(found.written),
        "seconds": round(found.seconds, 3),
    }
