"""`manyheads head L3H2 --image cat.png`: where a head looks in a picture, as a small grid, as JSON, or drawn on it.

With a text too (`manyheads head L3H2 --image cat.png "what is it?"`) it is a token of the text or of the answer that
looks, in a model that reads both.
"""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from manyheads import figures, inputs
from manyheads.base import Json
from manyheads.cli.arguments import PICTURE_ENDINGS, ModelChoice, Source, check_output, head_of, load_model
from manyheads.cli.terminal.console import (
    cells_of,
    clean,
    drawn,
    emit_document,
    hanging,
    legend,
    offered,
    print_sections,
    shades_of,
    stdout_console,
)
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import FileAccessError, HeadError, ShapeError, TextError
from manyheads.heads import Head

if TYPE_CHECKING:
    import torch

    from manyheads.inputs.media import ImageLike
    from manyheads.models import LoadedModel
    from manyheads.texts import Grid
LABEL = 6
NUM_STRONGEST = 8
MEAN = "the mean over all patches"
ELSEWHERE = "the rest of the text"


@dataclass(frozen=True)
class Question:
    """A text about the picture, its answer (given, or so many tokens to write), and which token looks."""

    source: Source
    answer: str | None = None
    write: int | None = None
    token: int | None = None

    @property
    def arguments(self) -> str:
        """What says the same on a command line, but for the token."""
        answer = "" if self.answer is None else f" --answer {shlex.quote(self.answer)}"
        write = "" if self.write is None else f" --generate {self.write}"
        return (self.source.arguments and f" {self.source.arguments}") + answer + write


@dataclass(frozen=True, eq=False)
class PictureResult:
    """One head on one picture: the row of weights, whose row it is, and where its positions lie."""

    lm: LoadedModel
    model: ModelChoice
    head: Head
    image: str
    grid: Grid
    looker: str
    framed: tuple[int, int] | None
    row: torch.Tensor
    because: str
    written: tuple[str, ...] = ()
    seconds: float = 0.0
    question: Question | None = None
    place: int = 0  # of the token that looks, in the whole text
    tokens: tuple[str, ...] = ()  # those that `--token` counts
    prompt: str = ""

    @property
    def weights(self) -> torch.Tensor:
        """By place."""
        return self.grid.laid_out(self.row)

    @property
    def others(self) -> dict[str, float]:
        """The weights of what is not a patch (a class token, the text), by name."""
        return {name: float(self.row[index]) for name, index in self.grid.others.items()}

    def strongest(self) -> list[tuple[int, int, float]]:
        """Row, column and weight of the patches with most of it, the largest first."""
        values, order = self.weights.flatten().sort(descending=True, stable=True)
        places = [divmod(index, self.grid.columns) for index in order[:NUM_STRONGEST].tolist()]
        return [(row, column, value) for (row, column), value in zip(places, values.tolist(), strict=False)]

    def to_dict(self) -> Json:
        """Everything about it as plain data."""
        return {
            "model": self.model.loaded(self.lm),
            "head": str(self.head),
            "image": self.image,
            "grid": asdict(self.grid),
            "looks_from": self.looker,
            "patch": self.framed,
            "weights": self.weights.tolist(),
            "others": self.others,
            "strongest": [dict(zip(("row", "column", "weight"), link, strict=True)) for link in self.strongest()],
            "backend": self.because,
            **({} if self.question is None else {"token": self.place, "tokens": self.tokens, "prompt": self.prompt}),
            "written": list(self.written),
            "seconds": round(self.seconds, 3),
        }


def look_at_picture(
    name: str,
    image: str,
    patch: str | None,
    model: ModelChoice,
    plot: Path | None,
    as_json: bool,
    question: Question | None = None,
) -> None:
    """The whole command, once it is known that it is about a picture."""
    place = None
    if patch is not None:
        match = re.fullmatch(r"\s*r?(\d+)\s*[,c]\s*(\d+)\s*", patch)
        if match is None:
            raise ShapeError(f"--patch {patch}: give a row and a column, both counted from 0, as in --patch 3,5.")
        place = int(match[1]), int(match[2])
    check_output(plot, "--plot", PICTURE_ENDINGS)
    if not Path(image).exists():
        raise FileAccessError(f"there is no picture {image}.")
    looked = gather(ProgressLine(), name, image, place, model, plot, question)
    if as_json:
        emit_document(looked.to_dict())
    else:
        print_page(looked)


def gather(
    talk: ProgressLine,
    name: str,
    image: str,
    place: tuple[int, int] | None,
    model: ModelChoice,
    plot: Path | None,
    question: Question | None = None,
) -> PictureResult:
    """Load, record, read the row, and draw the picture that was asked for."""
    # All of these import torch, for which --help is not to wait.
    from manyheads.inputs.media import picture_of, require_sense  # as above
    from manyheads.models import PICTURES
    from manyheads.recording import grid_of  # as above

    begun = time.perf_counter()
    picture = picture_of(image)
    lm = load_model(talk, model)
    if question is not None:
        looked = _look_from_text(talk, lm, name, image, picture, question, model)
        return _finished(talk, looked, picture, plot, begun)
    require_sense(lm, PICTURES)
    head, counts = Head.parse(name), lm.spec.shape.get("", ())
    if len(lm.spec.shape) == 1 or head.stack or not counts:
        head = head_of(lm, name)
    elif head.layer >= len(counts) or head.index >= counts[head.layer]:  # without a stack, of the patches' own
        raise HeadError(f"{name}: {lm.name} has layers 0-{len(counts) - 1} and heads 0-{max(counts) - 1}.")
    with talk.step("reading the picture"):
        recording = inputs.record(lm, inputs.Inputs(image=picture))
        grid = grid_of(recording)
    layer = recording.stacks[head.stack][head.layer]
    if layer.crosses:
        raise HeadError(f"{head} is cross-attention: its rows are not patches of the picture. Choose another layer.")
    # Whose rows are shown: a patch's, the class token's, or all patches' where there is none.
    if place is not None:
        looker, position = f"patch {place[0]},{place[1]}", grid.position(*place)
        rows = slice(position, position + 1)
    elif "[CLS]" in grid.others:
        looker, position = "[CLS]", grid.others["[CLS]"]
        rows = slice(position, position + 1)
    else:
        looker, rows = MEAN, grid.patches
    row = layer.weights(head=head.index, queries=rows).mean(0).cpu()
    looked = PictureResult(lm, model, head, image, grid, looker, place, row, layer.because)
    return _finished(talk, looked, picture, plot, begun)


def _look_from_text(
    talk: ProgressLine,
    lm: LoadedModel,
    name: str,
    image: str,
    picture: ImageLike,
    question: Question,
    model: ModelChoice,
) -> PictureResult:
    """The row of a token of the answer, or of the text behind the picture. Errors: ShapeError for one not there."""
    import torch  # for which --help is not to wait

    from manyheads.statistics.defined import looking  # as above
    from manyheads.texts import readable  # imports torch, as the next does

    with talk.step("reading the text and the picture"):
        recording = inputs.record(
            lm,
            inputs.Inputs(question.source.text, image=picture, answer=question.answer),
            generate=question.write,
        )
    head = head_of(lm, name)
    layer = recording.stacks[head.stack][head.layer]
    image_read, places = recording.images[0], looking(recording.tokens)[0].nonzero()[:, 0].tolist()
    whose = "the text" if question.answer is None and question.write is None else "the answer"
    if not places:
        raise TextError("no token comes after the picture, so none looks at it: write the text after it.")
    if question.token is not None and question.token >= len(places):
        raise ShapeError(
            f"--token {question.token}: {whose} has {len(places)} that look at the picture, counted from 0."
        )
    number = len(places) - 1 if question.token is None else question.token
    place = places[number]
    row = layer.weights(head=head.index, queries=slice(place, place + 1))[0].cpu()
    on_picture = row[image_read.span]
    tokens = tuple(readable(recording.tokens)[place] for place in places)
    return PictureResult(
        lm,
        model,
        head,
        image,
        replace(image_read.grid, suffix=(ELSEWHERE,)),
        f"{tokens[number]!r}, token {number} of {whose}",
        None,
        torch.cat([on_picture, row.sum()[None] - on_picture.sum()]),
        layer.because,
        question=question,
        place=place,
        tokens=tokens,
        prompt=str(recording.provenance["prompt"]),
    )


def _finished(
    talk: ProgressLine, looked: PictureResult, picture: ImageLike, plot: Path | None, begun: float
) -> PictureResult:
    """The same with the picture that was asked for, drawn, and how long it all took."""
    written = ()
    if plot is not None:
        from manyheads.inputs.media import shown  # imports torch, for which --help is not to wait

        grid = looked.grid
        places = {(row, column): grid.pixels(row, column) for row in range(grid.rows) for column in range(grid.columns)}
        with talk.step(f"drawing {plot.name}"):
            pixels = shown(looked.lm, picture, None if looked.question is None else grid.picture)
            comma = "," if looked.question is not None else ""
            looks = f"where patches look, {MEAN}" if looked.looker == MEAN else f"where {looked.looker}{comma} looks"
            about = f"{Path(looked.image).name}, read as {pixels.shape[1]} x {pixels.shape[0]} pixels"
            figures.save_picture(
                pixels,
                looked.weights.double().numpy(),
                places,
                plot,
                title=f"{looked.head} in {looked.lm.name}: {looks}",
                subtitle=f"{about} in {grid.rows} x {grid.columns} patches",
                framed=looked.framed,
                others=looked.others,
            )
        written = (f"{plot}, the picture with the weights on it",)
    return replace(looked, written=written, seconds=time.perf_counter() - begun)


# ------------------------------------------------------------------------------------------------------------- showing


def print_page(looked: PictureResult) -> None:
    """What was read and where the row goes, the map, the strongest patches, and what to type next."""
    console, strongest = stdout_console(), looked.strongest()
    patches = Text(" ")
    for row, column, weight in strongest:
        patches.append_text(Text.assemble("  ", (f"{row},{column} ", "bold"), f"{weight:.1%}"))
    question = "" if looked.question is None else looked.question.arguments
    command = f"manyheads head {looked.head} --image {shlex.quote(looked.image)}{question}{looked.model.arguments}"
    looker, offers = "", []
    if looked.framed is not None:
        looker = " --patch {},{}".format(*looked.framed)
    elif looked.question is not None and looked.question.token is not None:
        looker = f" --token {looked.question.token}"
    if not looked.written:
        offers.append((f"{command}{looker} --plot seen.png", "the weights drawn on the picture"))
    if looked.question is None:
        place = f"{strongest[0][0]},{strongest[0][1]}"
        offers.append((f"{command} --patch {place}", "where the strongest patch itself looks"))
    elif len(looked.tokens) > 1:
        offers.append((f"{command} --token 0", f"where {clean(looked.tokens[0])!r} looks"))
    # What was read, and how the row's weight is shared between patches and other tokens.
    grid, (height, width) = looked.grid, looked.grid.picture
    read = f"{looked.image}, read as {width} x {height} pixels in {grid.rows} x {grid.columns} patches"
    beside = f"; other tokens: {', '.join(grid.others)}" if grid.others else ""
    shares = [(float(looked.row[grid.patches].sum()), "patches"), *((w, name) for name, w in looked.others.items())]
    split = ", ".join(f"{share:.1%} on {name}" for share, name in shares)
    facts = [("picture", read + beside), ("looks", f"{looked.looker}: {split}")]
    if looked.question is not None:
        facts = [
            ("picture", read), ("prompt", looked.prompt), ("tokens", " ".join(looked.tokens)), *facts[1:],
        ]  # fmt: skip
    headline = [Text.assemble((str(looked.head), "bold"), f"  in {clean(looked.lm.name)}")]
    for label, value in (*facts, *(("wrote", path) for path in looked.written)):
        headline += hanging(Text(f"{label:<10}", style="dim"), clean(value), console.width)
    sections = [
        headline,
        _map(looked, console),
        [Text.assemble(("Strongest patches", "bold"), "  row,column"), patches],
        offered(offers, console),
    ]
    print_sections(sections, console)


def _map(looked: PictureResult, console: Console) -> list[Text]:
    """The picture's patches, or means of blocks of them where there is no room for each."""
    weights = looked.weights
    fits = (console.width - LABEL) // 2
    block = -(-weights.shape[1] // fits)
    if block > 1:
        import torch  # for which --help is not to wait

        weights = torch.nn.functional.avg_pool2d(weights[None], block, ceil_mode=True, count_include_pad=False)[0]
    largest = float(weights.max())
    shades = shades_of(console)
    cell_meaning = "one patch" if block == 1 else f"the mean of {block} x {block} patches"
    marks = "".join(f"{column * block:<10}" for column in range(0, weights.shape[1], 5))
    looks = "; @ is the patch that looks" if looked.framed is not None else ""
    lines = [
        Text.assemble(("Map", "bold"), f"  the picture; a cell is {cell_meaning}{looks}"),
        legend(largest, shades),
        Text(" " * LABEL + marks.rstrip(), style="dim"),
    ]
    for index, row in enumerate(weights.tolist()):
        cells = cells_of(row, largest, shades)
        if looked.framed is not None and looked.framed[0] // block == index:
            column = looked.framed[1] // block
            cells[column] = "@" + cells[column][1]
        lines.append(Text.assemble((f"{index * block:>4}  ", "dim"), drawn(cells, shades)))
    return lines
