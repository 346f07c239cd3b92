"""`manyheads card L12H3`: what one head is, in one sentence, with the evidence and the command of every number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from manyheads import cards as head_cards
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    AsJson,
    DeviceName,
    DtypeName,
    HeadName,
    ModelChoice,
    ModelName,
    NoCache,
    head_of,
    load_model,
)
from manyheads.cli.terminal.console import (
    cells_of,
    clean,
    drawn,
    emit_document,
    hanging,
    print_sections,
    shades_of,
    shortened,
    stdout_console,
    wrapped,
)
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.heads import Head, HeadsLike
from manyheads.roles.words import UNLABELLED, hue

if TYPE_CHECKING:
    from manyheads.models import LoadedModel

WORD_WIDTH = 12
LABEL = 32  # columns of what a line is


def card(
    name: HeadName,
    model: ModelName = DEFAULT_MODEL,
    as_json: AsJson = False,
    no_cache: NoCache = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """A card for one head: what it is in one sentence, how that is known, and what is lost without it.

    Its map, where it looks and why, what it writes, which heads it listens to, and the command of every number. The
    first card for a model takes a while.

    For example: manyheads card L12H3 --model smollm2
    """
    Head.parse(name)
    talk = ProgressLine()
    lm = load_model(talk, ModelChoice(model, device, dtype))
    (made,) = make_cards(talk, lm, [head_of(lm, name)], remember=not no_cache)
    if as_json:
        emit_document(made.to_dict())
    else:
        console = stdout_console()
        print_sections(card_lines(made, console), console)


def make_cards(
    talk: ProgressLine, lm: LoadedModel, heads: HeadsLike | None = None, *, remember: bool = True
) -> tuple[head_cards.Card, ...]:
    """The cards, each measurement that they share a step of its own."""
    with talk.steps() as steps:
        return head_cards.cards(lm, heads, remember=remember, on_step=steps.begin)


def card_lines(card: head_cards.Card, console: Console) -> list[list[Text]]:
    """The sentence, the first map, then a block of lines for each question."""
    role = "" if card.role == UNLABELLED else card.role
    title = Text.assemble(
        (str(card.head), "bold"), "  ", (clean(role), f"bold {hue(card.role)}"), f"  in {clean(card.model)}"
    )
    blocks = [[title, *wrapped(clean(card.sentence), console, "bold"), *wrapped(f"{card.place}.", console)]]
    if card.maps:
        blocks.append(_map(card.maps[0], card.role, console))
    for section in card.sections:
        lines = [Text.assemble((section.asks, "bold"), (f"  {printable(section.command)}", "dim"), overflow="ignore")]
        for fact in section.facts:
            label = Text(f"  {shortened(fact.label, LABEL - 3):<{LABEL - 2}}")
            number = f"{fact.number} ({fact.interval})" if fact.interval else fact.number
            chance = f"{fact.chance_number} by chance" if fact.chance_number else ""
            parts = [", ".join(filter(None, (number, chance))), fact.words or fact.mark]
            lines += hanging(label, clean("; ".join(filter(None, parts))), console.width)
            if fact.command and fact.command != section.command:
                lines.append(Text(f"{' ' * LABEL}{printable(fact.command)}", style="dim", overflow="ignore"))
        lines += wrapped(clean(section.note), console) if section.note else []
        blocks.append(lines)
    blocks.append(wrapped(f"Lines of Python come after: {card.notes['python']}", console))
    return blocks


def printable(command: str) -> str:
    """A command as it is to be copied, blanks and all, without anything that a terminal would obey."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in command)


def _map(one: head_cards.TextMap, role: str, console: Console) -> list[Text]:
    """The map of one short text: rows look at columns."""
    count = min(len(one.tokens), (console.width - WORD_WIDTH - 3) // 2)
    shades = shades_of(console)
    rows = [one.row(query)[:count] for query in range(count)]
    largest = max(map(max, rows))
    link = f"{one.tokens[one.query]} looks at {one.tokens[one.key]} with {one.weight:.0%}"
    lines = [*hanging(Text("Its map  ", "bold"), clean(one.words), console.width), Text(clean(link))]
    for query, row in enumerate(rows):
        name = shortened(one.tokens[query], WORD_WIDTH)
        padding = " " * (WORD_WIDTH - Text(name).cell_len)
        lines.append(
            Text.assemble("  ", (name, "dim"), padding, drawn(cells_of(row, largest, shades), shades, hue(role)))
        )
    return [*lines, Text(f"  {printable(one.command)}", style="dim", overflow="ignore")]
