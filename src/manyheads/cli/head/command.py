"""`manyheads head L0H2 "text"`: one head in words, where each word of a text looks, and a small map.

One text, or one window of a longer one (`--window`): `look` reads all of it. A picture (`--image`): `picture.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from manyheads import circuits, figures, inputs, measurement, statistics, texts
from manyheads.base import Json
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    PICTURE_ENDINGS,
    YOURS,
    AsJson,
    DeviceName,
    DtypeName,
    HeadName,
    ModelChoice,
    ModelName,
    NoCache,
    Source,
    TargetText,
    TextFile,
    TextWords,
    check_output,
    head_of,
    label_heads,
    load_model,
    read_source,
    to_file,
    typed_source,
)
from manyheads.cli.head.picture import Question, look_at_picture
from manyheads.cli.head.says import saying_lines
from manyheads.cli.look.command import home
from manyheads.cli.terminal.console import (
    LINK_COLOUR,
    Column,
    Row,
    cells_of,
    clean,
    emit_document,
    hanging,
    knows_blocks,
    lay_out,
    legend,
    link_colour,
    offered,
    print_sections,
    print_whole,
    shades_of,
    shortened,
    stdout_console,
    wrapped,
)
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import HeadError, ModelError, TextError
from manyheads.heads import Head
from manyheads.recording import exact_map
from manyheads.roles.words import ABSENT, UNLABELLED, figure, hue, span
from manyheads.spec import CROSS

if TYPE_CHECKING:
    import torch

    from manyheads.models import LoadedModel
    from manyheads.recording import LayerRecord
    from manyheads.roles import HeadRole, PageLabels
MOST_CELLS, BLOCKS = 512, 256  # a picture shows every weight of up to 512 tokens, the means of blocks of a longer text
TOP_HELP = "How many keys to show for each word."
WINDOW_HELP = "Which window of a long text, from 1."
IMAGE_HELP = "Read this picture, with a vision model; with a text, by a model that reads both."
ANSWER_HELP = "The answer that the model is assumed to give to the text about the picture."
WRITE_HELP = "Let the model write this many tokens as the answer."
TOKEN_HELP = "Which token looks at the picture, from 0: in the answer, else in the text after it. Default: the last."
SAY_HELP = "What the head says at this word: where it looks, and what reaches the output."
SINKS_HELP = "Hatch the model's sinks; the other weights are not scaled up."
PATCH_HELP = "The patch that looks, row and column from 0. Default: the class token."


@dataclass(frozen=True)
class HeadResult:
    """One head on one text: its label from the page, the layer's record of the text, the table of its statistics."""

    lm: LoadedModel
    model: ModelChoice
    source: Source
    head: Head
    role: HeadRole | None
    labels: PageLabels
    layer: LayerRecord
    table: statistics.HeadTable
    window: int
    num_windows: int
    written: tuple[str, ...]
    saying: circuits.HeadOutput | None
    seconds: float

    def to_dict(self, top: int, leave_out: bool) -> Json:
        """Everything about one head: what the page says, its numbers on the text, where every token looks."""
        links = find_links(self.layer, self.head.index, top, leave_out)
        tokens, table, role = self.layer.tokens, self.table, self.role
        index = table.heads.index(self.head)
        return {
            "model": self.model.loaded(self.lm),
            "head": str(self.head),
            "role": None if role is None else role.name,
            "evidence": None if role is None else role.evidence.to_dict(),
            "page": self.labels.values.get(str(self.head)),
            "text": {name: statistics.number(table.column(name)[index]) for name in table.names},
            "window": {"shown": self.window, "of": self.num_windows},
            "tokens": [word(tokens, i) for i in range(int(self.layer.lengths[0]))],
            "sinks": list(tokens.sinks.names),
            "sinks_left_out": leave_out,
            "sink_shares": list(links.sink_shares),
            "looks": [[{"key": link.key, "weight": link.weight} for link in row] for row in links.looks],
            "strongest": [vars(link) for link in links.strongest[:NUM_LINKS]],
            **({} if self.saying is None else {"says": self.saying.to_dict()}),
            "notes": {"labels": self.labels.because, **table.notes, "backend": self.layer.because},
            "written": list(self.written),
            "seconds": round(self.seconds, 3),
        }


def head(
    name: HeadName,
    text: TextWords = None,
    file: TextFile = None,
    target: TargetText = None,
    model: ModelName = DEFAULT_MODEL,
    as_json: AsJson = False,
    plot: Annotated[Path | None, to_file("--plot", "Draw the head's map: .png, .svg or .pdf.")] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, max=10, help=TOP_HELP)] = 3,
    window: Annotated[int, typer.Option("--window", metavar="N", min=1, help=WINDOW_HELP)] = 1,
    no_cache: NoCache = False,
    leave_out: Annotated[bool, typer.Option("--leave-out-sinks", help=SINKS_HELP)] = False,
    image: Annotated[str | None, typer.Option("--image", metavar="FILE", help=IMAGE_HELP)] = None,
    patch: Annotated[str | None, typer.Option("--patch", metavar="R,C", help=PATCH_HELP)] = None,
    answer: Annotated[str | None, typer.Option("--answer", metavar="TEXT", help=ANSWER_HELP)] = None,
    write: Annotated[int | None, typer.Option("--generate", metavar="N", min=1, help=WRITE_HELP)] = None,
    token: Annotated[int | None, typer.Option("--token", metavar="N", min=0, help=TOKEN_HELP)] = None,
    say_at: Annotated[str | None, typer.Option("--say", metavar="WORD", help=SAY_HELP)] = None,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """One head: its role with the evidence, where each word looks, the strongest links, a small map.

    Several heads, as in L3H1 L5H11, are shown one after another: the text is read once.

    For example: manyheads head L2H9 "Ada gave Grace the key, and Grace kept the key."
    """
    words, choice = text or [], ModelChoice(model, device, dtype)
    Head.parse(name)
    names = [name]
    while words and is_head(words[0]):
        names.append(words[0])
        words = words[1:]
    several = [option for option, value in {"--plot": plot, "--image": image}.items() if value is not None]
    if len(names) > 1 and several:
        raise HeadError(f"{several[0]} is about one head, and {', '.join(names)} are {len(names)}: give one of them.")
    of_pictures = {"--answer": answer, "--generate": write, "--token": token}
    passed = [option for option, value in of_pictures.items() if value is not None]
    if image is not None and say_at is not None:
        raise TextError(f"--say {say_at} names a word of a text, and --image is read by its patches: leave one out.")
    if image is not None and (words or file is not None):
        if patch is not None:
            raise TextError(f"--patch {patch} and a text were given: a token of the text looks, not a patch: --token.")
        question = Question(read_source(words, file, model), answer, write, token)
        return look_at_picture(name, image, None, choice, plot, as_json, question)
    if passed:
        raise TextError(f"{passed[0]} is about a text with a picture: give both, a text and --image.")
    if image is not None:
        return look_at_picture(name, image, patch, choice, plot, as_json)
    if patch is not None:
        raise TextError(f"--patch {patch} is a place in a picture: also give the picture, --image.")
    check_output(plot, "--plot", PICTURE_ENDINGS)
    talk = ProgressLine()
    source = typed_source(talk, words, file, model, target)
    results = gather(talk, source, names, choice, window, plot=plot, say_at=say_at, remember=not no_cache)
    if as_json:
        documents = [looked.to_dict(top, leave_out) for looked in results]
        emit_document(documents[0] if len(documents) == 1 else {"heads": documents})
        return
    for place, looked in enumerate(results):
        if place:
            print_whole([""])
        print_page(looked, top, leave_out)


def is_head(word: str) -> bool:
    """Whether a word names a head."""
    try:
        Head.parse(word)
    except HeadError:
        return False
    return True


def gather(
    talk: ProgressLine,
    source: Source,
    heads: Sequence[str],
    model: ModelChoice,
    window: int,
    *,
    plot: Path | None = None,
    say_at: str | None = None,
    remember: bool = True,
) -> list[HeadResult]:
    """Load, label, record and measure one text or window for some heads, and draw the picture that was asked for.

    - `talk`: the line on stderr.
    - `source`: the text, and what names it on a command line.
    - `heads`: the heads' names.
    - `model`: which model to load, and where.
    - `window`: which window of a long text, from 1.
    - `plot`: where the picture of the first head goes.
    - `say_at`: a word at which each head is to say something.
    - `remember`: take labels that are known, and store those that are not.
    """
    # Both import torch, for which --help is not to wait.
    from manyheads.inputs.media import require_sense
    from manyheads.models import TEXT  # as above

    begun = time.perf_counter()
    lm = load_model(talk, model)
    require_sense(lm, TEXT)
    source, chosen = source.shown_to(lm), [head_of(lm, name) for name in heads]
    if head := next((head for head in chosen if head.stack == CROSS), None):
        raise ModelError(
            f"{head} is cross-attention, from what is written to what was read, and this shows a text's attention to "
            f"itself: manyheads look --html draws its map; in Python, mh.record(lm, text, generate=20).stacks['cross']."
        )
    pieces = inputs.read(lm, source.given).pieces
    if window > len(pieces):
        count = f"{len(pieces)} windows" if len(pieces) > 1 else "one window: it fits the model's positions"
        raise TextError(f"--window {window}: the text has {count}.")
    one_window = inputs.Inputs(source.given, long="whole")
    if len(pieces) > 1:
        one_window = inputs.Inputs(pieces[window - 1].text, long="truncate")
    labels = label_heads(talk, lm, remember=remember)
    with talk.step("reading your text"):
        names = tuple(dict.fromkeys((*statistics.DEFAULT, *(role.evidence.statistic for role in labels.roles))))
        keep: tuple[inputs.Keep, ...] = ("q", "k", "lse") if say_at is None else ("q", "k", "v", "lse")
        sinks = labels.sinks if labels.roles else None
        table, record = measurement.study(lm, one_window, names, keep=keep, sinks=sinks)
        assert record is not None, "it was asked for"
        results = []
        for head in chosen:
            layer = record.stacks[head.stack][head.layer]
            layer = replace(layer, tokens=layer.tokens.with_sinks(table.sinks))
            saying = None if say_at is None else circuits.head_output(record, head, say_at, lm, sinks=table.sinks)
            role = labels.role_of(head)
            results.append(
                HeadResult(lm, model, source, head, role, labels, layer, table, window, len(pieces), (), saying, 0.0)
            )
    written = []
    if plot is not None:
        head, layer, role = results[0].head, results[0].layer, results[0].role
        with talk.step(f"drawing {plot.name}"):
            weights, length = small_map(layer, head.index, MOST_CELLS, BLOCKS), int(layer.lengths[0])
            complete, side = len(weights) == length, f"{length / len(weights):.0f}"
            role_words = f", {role.name}" if role is not None and role.name != UNLABELLED else ""
            figures.save_head(
                weights,
                [word(layer.tokens, position) for position in range(length)] if complete else None,
                plot,
                title=f"{head}{role_words}, in {lm.name}",
                subtitle=role.evidence.words if role is not None and role_words else "",
                note="" if complete else f"means of blocks of about {side} x {side}",
            )
        written.append(f"{plot}, the map of {head} on this text")
    seconds = time.perf_counter() - begun
    return [replace(result, written=tuple(written), seconds=seconds) for result in results]


# ---------------------------------------------------------------------------------------------------------------------
# Where the words of one text look, for one head: read off its record row by row, never as a whole map.


ROWS = 256  # rows of the map held at once
NUM_LINKS = 10


@dataclass(frozen=True)
class Link:
    """Token `query` gives `weight` of its attention to token `key`. Both count from 0."""

    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Links:
    """`looks[i]`: the strongest keys of token i. `strongest`: each token's best link but those to sinks, best first.

    `sink_shares[i]`: how much of its attention token i gives to the sinks.
    """

    looks: tuple[tuple[Link, ...], ...]
    strongest: tuple[Link, ...]
    sink_shares: tuple[float, ...]


def sinks_of(layer: LayerRecord) -> torch.Tensor:
    """Which tokens of the text are the model's sinks."""
    length = int(layer.lengths[0])
    return layer.tokens.sink[0, :length] if layer.tokens.ids is not None else layer.lengths.new_zeros(length).bool()


def find_links(layer: LayerRecord, head: int, top: int, leave_out: bool = False) -> Links:
    """One reading of a head's map, `ROWS` rows at a time, without keys that cannot be seen, nor sinks if so asked."""
    length, sinks = int(layer.lengths[0]), sinks_of(layer)
    shares: list[float] = []
    looks: list[tuple[Link, ...]] = []
    best: list[Link] = []
    for begin in range(0, length, ROWS):
        weights = layer.weights(head=head, queries=slice(begin, begin + ROWS)).cpu()
        shares += weights[:, sinks].sum(-1).tolist()
        without_sinks = weights.masked_fill(sinks, 0)
        values, keys = (without_sinks if leave_out else weights).topk(min(top, length), dim=-1)
        for row, (value, key) in enumerate(zip(values.tolist(), keys.tolist(), strict=True)):
            pairs = zip(key, value, strict=True)
            looks.append(tuple(Link(begin + row, k, v) for k, v in pairs if v > 0))
        value, key = without_sinks.max(-1)
        links = zip(range(begin, begin + ROWS), key.tolist(), value.tolist(), strict=False)
        best += [Link(query, k, v) for query, k, v in links if v > 0]
    return Links(tuple(looks), tuple(sorted(best, key=lambda link: -link.weight)), tuple(shares))


@dataclass(frozen=True, eq=False)
class BlockMap:
    """The map in at most so many blocks: the mean weight of each (NaN: nothing is visible), and which of them are of
    sinks: those with more than half of their weight on sinks, and, `hatched`, those without any other key."""

    weights: torch.Tensor
    of_sinks: torch.Tensor
    hatched: torch.Tensor


def block_map(layer: LayerRecord, head: int, blocks: int, leave_out: bool) -> BlockMap:
    """Reads the map `ROWS` rows at a time. `leave_out`: the means are those of the other keys, not scaled up."""
    import torch  # for which --help is not to wait

    length, sinks = int(layer.lengths[0]), sinks_of(layer).double()
    size = min(blocks, length)
    block = torch.arange(length, device="cpu") * size // length
    columns = torch.nn.functional.one_hot(block, size).double()
    sums, parked, num_seen, num_seen_sinks = (
        torch.zeros(size, size, dtype=torch.float64, device="cpu") for _ in range(4)
    )
    for begin in range(0, length, ROWS):
        rows = slice(begin, min(begin + ROWS, length))
        weights = layer.weights(head=head, queries=rows).cpu().double()
        visible = layer.mask.visible(rows, slice(0, length), heads=[head])[0, 0].cpu().double()
        for total, cells in (
            (sums, weights),
            (parked, weights * sinks),
            (num_seen, visible),
            (num_seen_sinks, visible * sinks),
        ):
            total.index_add_(0, block[rows], cells @ columns)
    means = (sums - parked) / (num_seen - num_seen_sinks) if leave_out else sums / num_seen
    return BlockMap(means, parked > sums / 2, (num_seen > 0) & (num_seen == num_seen_sinks))


def small_map(layer: LayerRecord, head: int, most: int, blocks: int) -> torch.Tensor:
    """The map in at most `blocks` x `blocks` blocks, by mean, or whole up to `most` tokens. NaN: nothing visible."""
    length = int(layer.lengths[0])
    request = exact_map.Pooled(length if length <= most else blocks)
    return layer.reduce([request])[request][0, head]


def word(tokens: texts.Tokens, position: int) -> str:
    """What stands at a token in the text, or the token's own name where nothing does."""
    return tokens.surface(0, position) or tokens.pieces[0][position]


# ---------------------------------------------------------------------------------------------------------------------
# The page: what the head does and how that is known, a small map, where each word looks, its numbers.


MOST_WORDS = 40  # a text of more tokens is shown by its strongest rows, and its map in blocks
MAP_BLOCKS = 32
STRONG_ROWS = 20
WORD_WIDTH = 12
LABEL = WORD_WIDTH + 6


def print_page(looked: HeadResult, top: int, leave_out: bool) -> None:
    """The role, a small map, where each token looks, the strongest links, the numbers, and what to type next.

    `top`: keys of each token. `leave_out`: sinks are hatched in the map and are not keys.
    """
    console = stdout_console()
    if looked.saying is not None:
        headline = _headline(looked, console)[:1]
        first, *others = saying_lines(looked.saying, looked.role, console)
        return print_sections([[*headline, *first], *others], console)
    links = find_links(looked.layer, looked.head.index, top, leave_out)
    arguments = looked.source.arguments and f" {looked.source.arguments}"
    model = looked.model.arguments
    this = f"manyheads head {looked.head}{arguments}{model}"
    offers = [(f"{this} --plot map.png", "the map as a picture")]
    if not leave_out and sum(links.sink_shares) > 0.1 * len(links.sink_shares):
        offers.append((f"{this} --leave-out-sinks", "what it reads besides the sink"))
    if looked.window < looked.num_windows and arguments:
        offers.append((f"{this} --window {looked.window + 1}", "the next window"))
    offers.append((f"manyheads look{arguments}{model}", "every head"))
    if looked.source.own:
        offers.append((f"manyheads head {looked.head} {YOURS}{model}", "the same on your own text"))
    sections = [
        _headline(looked, console),
        _map(looked, links, leave_out, console),
        _looks(looked, links, top, leave_out, console),
    ]
    sinks, pieces = clean(" and ".join(looked.layer.tokens.sinks.names)), texts.readable(looked.layer.tokens)
    strongest = [
        Text.assemble(("Strongest links", "bold"), f"  without those to {sinks}, the sink" if sinks else ""),
        Text(" " if links.strongest else "  none: all of its attention goes to the sink"),
    ]
    for link in links.strongest[:NUM_LINKS]:
        weight = Text(f" {figure(link.weight, 'share')}", style=_colour(looked))
        part = Text.assemble(" ", _token(pieces, link.query), " → ", _token(pieces, link.key), weight)
        if strongest[-1].cell_len > 1 and strongest[-1].cell_len + part.cell_len + 2 > console.width:
            strongest.append(Text(" "))
        strongest[-1].append_text(part if strongest[-1].cell_len == 1 else Text.assemble("  ", part))
    sections += [strongest, _numbers(looked, console), offered(offers, console)]
    print_sections(sections, console)


def _headline(looked: HeadResult, console: Console) -> list[Text]:
    """The head's role and how it is known, then what was read."""
    role, labels, layer = looked.role, looked.labels, looked.layer
    if role is None:
        name, facts = "no role", [("role", f"none: {labels.because}")]
    else:
        name, evidence, unit = clean(role.name), role.evidence, role.evidence.unit
        interval = f"95% interval {span(evidence.low, evidence.high, unit)}"
        if math.isnan(evidence.low):
            interval = "no 95% interval: too few texts hold its cases"
        basis = f"{labels.num_texts:,} {labels.texts_are}, {labels.num_tokens:,} tokens; {home(labels.because)}"
        facts = [
            ("because", f"{evidence.words}; {interval}, over {evidence.num_queries:,} tokens"),
            ("rests on", basis),
        ]
        if layer.site.num_kv_heads != layer.site.num_heads:
            group = f"{layer.site.kv_head_of(looked.head.index)} of {layer.site.num_kv_heads}, counted from 0"
            facts.append(("shares", f"its keys and values with the other heads of group {group}"))
    origin = f", {looked.source.origin}" if looked.source.own else ""
    count = f" · {int(layer.lengths[0]):,} tokens{origin}"
    facts.append(("text", f'"{shortened(layer.tokens.texts[0], console.width - 12 - len(count))}"{count}'))
    if looked.num_windows > 1:
        place = f"{looked.window:,} of {looked.num_windows:,}"
        facts.append(("window", f"{place}: the text is longer than the model's positions. --window N shows another"))
    facts += [("wrote", path) for path in looked.written]
    title = (f"{looked.head}", "bold"), "  ", (name, f"bold {hue(name)}"), f"  in {clean(looked.lm.name)}"
    lines = [Text.assemble(*title)]
    for label, value in facts:
        lines += hanging(Text(f"{label:<10}", style="dim"), clean(value), console.width)
    return lines


SINK_STYLE = "#767676"
HATCH, ASCII_HATCH = "╱╱", "//"


def _colour(looked: HeadResult) -> str:
    """The colour of the head's role; of heads that rest, or have no role, one that is not the sinks' grey."""
    rests = looked.role is not None and looked.role.name.startswith("sink")
    return LINK_COLOUR if rests else link_colour(looked.role)


def _sinks_line(looked: HeadResult, links: Links, leave_out: bool, console: Console) -> list[Text]:
    """What the model's sinks get of this head, and how the map shows them."""
    names = clean(" and ".join(looked.layer.tokens.sinks.names))
    if not names or not any(links.sink_shares):
        absent = "this model has no sink: nothing is left out" if not names else f"{names}, the sink, gets no weight"
        return [Text(absent, style="dim")] if leave_out else []
    share = f"{sum(links.sink_shares) / len(links.sink_shares):.0%} of this head's attention on this text"
    if leave_out:
        mark = HATCH if knows_blocks(console) else ASCII_HATCH
        words = f"{mark} {names}, the sink, is left out with {share}; the other weights are not scaled up"
    else:
        grey = "grey: " if console.color_system else ""
        words = f"{grey}{names}, the sink, gets {share}"
    return wrapped(words, console)


def _map(looked: HeadResult, links: Links, leave_out: bool, console: Console) -> list[Text]:
    """Rows look at columns: sinks grey, or hatched where they are left out, all else in the colour of the role."""
    fits = (console.width - LABEL) // 2
    length = int(looked.layer.lengths[0])
    blocks = length if length <= min(MOST_WORDS, fits) else min(MAP_BLOCKS, fits)
    small = block_map(looked.layer, looked.head.index, blocks, leave_out)
    weights, cells = small.weights.tolist(), len(small.weights)
    largest = max((x for row in weights for x in row if not math.isnan(x)), default=0.0)
    shades, hatch = shades_of(console), HATCH if knows_blocks(console) else ASCII_HATCH
    side = f"{length / cells:.0f}"
    cell_meaning = "one weight" if cells == length else f"the mean of about {side} x {side} weights"
    starts = [-(-i * length // cells) for i in range(cells)]  # of each block, where its first token stands
    step = 5 if cells == length else 4
    marks = "".join(f"{starts[i]:<{2 * step}}" for i in range(0, cells, step))
    lines = [
        Text.assemble(("Map", "bold"), f"  rows look at columns; a cell is {cell_meaning}"),
        legend(largest, shades),
        *_sinks_line(looked, links, leave_out, console),
        Text(" " * LABEL + marks.rstrip(), style="dim"),
    ]
    colour, pieces = _colour(looked), texts.readable(looked.layer.tokens)
    of_sinks, hatched = small.of_sinks.tolist(), small.hatched.tolist()
    for row, (start, values) in enumerate(zip(starts, weights, strict=True)):
        name = Text(shortened(pieces[start], WORD_WIDTH))
        line = Text.assemble((f"{start:>4} ", "dim"), name, " " * (LABEL - 5 - name.cell_len))
        for column, cell in enumerate(cells_of(values, largest, shades)):
            if leave_out and hatched[row][column]:
                line.append(hatch, style=SINK_STYLE)
            else:
                style = SINK_STYLE if of_sinks[row][column] and not leave_out else colour
                line.append(cell, style=f"dim {style}" if cell[0] == shades[0] else style)
        line.rstrip()
        lines.append(line)
    return lines


def _looks(looked: HeadResult, links: Links, top: int, leave_out: bool, console: Console) -> list[Text]:
    """Where each token looks, or those with the strongest links in a long text."""
    length, pieces, sinks = len(links.looks), texts.readable(looked.layer.tokens), sinks_of(looked.layer).tolist()
    queries, note = list(range(length)), ""
    if length > MOST_WORDS:
        queries = sorted(link.query for link in links.strongest[:STRONG_ROWS])
        note = f"  the {len(queries)} tokens with the strongest links, of {length:,}"
    columns = [Column("", right=True), Column("token", right=False, most=WORD_WIDTH)]
    for index in range(top):
        title, group, spare = "then at" if index else "looks at", f"{index}", 2 * index
        columns += [
            Column(title, group, right=False, most=WORD_WIDTH + 5, spare=spare),
            Column("", group, spare=spare),
        ]
    if leave_out:
        columns.append(Column("sink", "sink", spare=1))
    wide = len(str(int(looked.layer.lengths[0]) - 1))
    rows: list[Row] = []
    for query in queries:
        cells = [Text(str(query), style="dim"), Text(clean(pieces[query]), style="bold")]
        for index, link in enumerate(links.looks[query][:top]):
            style = SINK_STYLE if sinks[link.key] else "dim" if index else _colour(looked)
            number = Text(figure(link.weight, "share"), style=style)
            cells += [_token(pieces, link.key, style, wide), number]
        cells += [Text("")] * (2 + 2 * top - len(cells))
        rows.append([*cells, *([Text(figure(links.sink_shares[query], "share"), style="dim")] if leave_out else [])])
    lines = lay_out(columns, rows, console, bar="   ")[1:]
    return [Text.assemble(("Where each token looks", "bold"), note), *lines]


def _token(pieces: Sequence[str], position: int, style: str = "", wide: int = 0) -> Text:
    return Text.assemble((f"{position:>{wide}} ", "dim"), (clean(pieces[position]), style))


def _numbers(looked: HeadResult, console: Console) -> list[Text]:
    """Its default statistics, on the page and on the text."""
    page = looked.labels.values.get(str(looked.head), {})
    index = looked.table.heads.index(looked.head)
    columns = [
        Column("", right=False),
        Column("bundled texts"),
        Column("your text"),
        Column("", right=False, most=54, spare=1),
    ]
    shares: list[Row] = []
    with_units: list[Row] = []  # two decimals, so that their points stand below those of percents
    for statistic in looked.table.statistics:
        if statistic.name in statistics.DEFAULT:
            values = page.get(statistic.name), float(looked.table.column(statistic.name)[index])
            is_share = statistic.unit.startswith("share")
            if is_share:
                numbers = [figure(value, statistic.unit) for value in values]
            else:
                numbers = [ABSENT if value is None or math.isnan(value) else f"{value:z,.2f}" for value in values]
            name = statistic.name if is_share else f"{statistic.name} ({statistic.unit})"
            rows = shares if is_share else with_units
            rows.append([Text(name), *map(Text, numbers), Text(statistic.meaning, style="dim")])
    basis = "  bundled texts: all of them, also those on which the role was chosen"
    table = lay_out(columns, [*with_units, None, *shares], console)
    return [Text.assemble(("Its numbers", "bold"), basis), *table]
