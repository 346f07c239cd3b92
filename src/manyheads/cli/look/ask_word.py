"""`manyheads look "..." --from it --to animal`: which heads take one word of a text to another.

The heads by the exact weight between two words; or, for one word alone, where it looks in every head (`--from`), or who
looks at it (`--to`). It is one text: what heads do there, beside the roles that rest on many.
"""

from __future__ import annotations

import math
import re
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from manyheads import inputs, recording, statistics, texts
from manyheads.base import Json, nearest, percent, quoted
from manyheads.cli.arguments import YOURS, ModelChoice, Source, label_heads, load_model
from manyheads.cli.terminal.console import (
    clean,
    emit_document,
    knows_blocks,
    link_colour,
    linked_sentence,
    offered,
    print_sections,
    shortened,
    stdout_console,
    wrapped,
)
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import TextError
from manyheads.spec import CROSS

if TYPE_CHECKING:
    from manyheads.models import LoadedModel
    from manyheads.roles import PageLabels
MOST_HEADS = 10
MOST_WORDS = 12
BAR = 40  # columns of the longest bar there can be: all of a word's attention
ONE_TEXT = "One text shows what its heads do here. A role rests on many texts: manyheads roles."


@dataclass(frozen=True)
class WordAnswer:
    """The links that were asked for, the words of the text, the link to draw, and the labels of the model's heads.

    `window`: of a text in several windows, which of them was read, in words.
    """

    lm: LoadedModel
    model: ModelChoice
    source: Source
    links: recording.HeadLinks
    words: Sequence[recording.SpacedWord]
    drawn: recording.HeadLink | None
    labels: PageLabels
    written: tuple[str, ...]
    window: str
    seconds: float

    def to_dict(self) -> Json:
        """Every head with its link, the heaviest first; null where the head cannot see the word."""
        links, heads = self.links, []
        for link in links:
            role = self.labels.role_of(link.head)
            heads.append({
                "head": str(link.head),
                "stack": link.head.stack,
                "layer": link.head.layer,
                "index": link.head.index,
                "from": link.query,
                "to": link.key,
                "weight": statistics.number(link.weight),
                "even": statistics.number(link.chance),
                "role": None if role is None else role.name,
            })  # fmt: skip
        return {
            "model": self.model.loaded(self.lm),
            "text": {"origin": self.source.origin, "text": links.text},
            "from": links.query or None,
            "to": links.key or None,
            "heads": heads,
            "notes": {
                "links": links.because,
                "labels": self.labels.because,
                "one_text": ONE_TEXT,
                "window": self.window,
            },
            "written": list(self.written),
            "seconds": round(self.seconds, 3),
        }


def ask_word(
    talk: ProgressLine,
    source: Source,
    model: ModelChoice,
    query: str | None,
    key: str | None,
    long: inputs.Long,
    *,
    out: Path | None = None,
    remember: bool = True,
) -> WordAnswer:
    """Load, record, and read off the rows of the words.

    - `talk`: the line on stderr.
    - `source`: the text, and what names it on a command line.
    - `model`: which model to load, and where.
    - `query`: the word that looks; None: any.
    - `key`: the word that is looked at; None: any.
    - `long`: what becomes of a text over the model's positions.
    - `out`: where the table goes.
    - `remember`: take labels that are known, and store those that are not.

    A text in several windows is answered from one that holds the words. Errors: TextError for words that the text
    has not, or no window both of.
    """
    begun = time.perf_counter()
    lm = load_model(talk, model)
    source = source.shown_to(lm)
    reading = inputs.read(lm, inputs.Inputs(source.text, long=long))
    window = ""
    if (count := len(reading.pieces)) > 1:
        number = _window_with(reading, [word for word in (query, key) if word is not None])
        reading = replace(reading, pieces=(reading.pieces[number],))
        window = f"This is window {number + 1} of the {count} in which the model reads the text."
    with talk.step("reading your text"):
        record = inputs.record(lm, reading)
        try:
            links = record.heads_linking(query, key)
        except TextError as error:
            raise TextError(f"{error} {window}".rstrip()) from error
        # Cross-attention links words of two texts, which are no one sentence to draw.
        inside = [link for link in links if link.head.stack != CROSS and not math.isnan(link.weight)]
        words, drawn = [], None
        if inside:
            stack = inside[0].head.stack
            words = recording.spaced_words(texts.Words.of(record.stacks[stack][-1].tokens))
            candidates = [link for link in inside if link.head.stack == stack]
            if links.query and links.key:
                drawn = candidates[0]
            else:  # of one word alone the heaviest for its distance, as neighbours are likely targets
                places = {word.name: index for index, word in enumerate(word for word in words if not word.aside)}
                placed = [link for link in candidates if link.query in places and link.key in places]

                def telling(link: recording.HeadLink) -> float:
                    distance = abs(places.get(link.query, 0) - places.get(link.key, 0))
                    return link.weight * math.log2(1 + distance)

                drawn = max(placed or candidates[:1], key=telling)
    labels = label_heads(talk, lm, remember=remember)
    written = ()
    if out is not None:
        links.save(out)
        written = (f"{out}, a row a head: the words, the weight, and the weight if spread evenly",)
    return WordAnswer(lm, model, source, links, words, drawn, labels, written, window, time.perf_counter() - begun)


def _window_with(reading: inputs.Reading, asked_for: Sequence[str]) -> int:
    """Of a text's windows that hold these words, the one in which they stand the fewest times, the first of such.

    A number after a word, as in "it#2", counts within a window. Errors: TextError where no window holds them.
    """
    spellings = [re.sub("#[0-9]+$", "", word) for word in asked_for]
    times: dict[int, int] = {}
    known = Counter[str]()
    for number in range(len(reading.pieces)):
        units = Counter(unit.text for unit in texts.Words.of(reading.batch([number]).tokens).units(0))
        known += units
        counts = [units[word] or units[spelling] for word, spelling in zip(asked_for, spellings, strict=True)]
        if all(counts):
            times[number] = sum(counts)
    if times:
        return min(times, key=times.__getitem__)
    windows = f"{len(reading.pieces)} windows in which the text is read, since it is longer than the model's positions"
    absent = [word for word, spelling in zip(asked_for, spellings, strict=True) if not (known[word] or known[spelling])]
    if absent:
        near = " or ".join(map(repr, nearest(absent[0], known)))
        near = f" Did you mean {near}?" if near else ""
        raise TextError(f"there is no word {absent[0]!r} in the {windows}.{near}")
    both = " and ".join(map(repr, asked_for))
    raise TextError(f"none of the {windows}, holds both {both}. A head sees one at a time.")


def show_word(answer: WordAnswer, as_json: bool, complete: bool) -> None:
    """Print the page, of `complete` with every head, or the document."""
    if as_json:
        return emit_document(answer.to_dict())
    console, links, drawn = stdout_console(), answer.links, answer.drawn
    # The finding: the heaviest links, in words.
    pair = bool(links.query and links.key)
    if pair:
        first, second = links[0], [link for link in links[1:2] if not math.isnan(link.weight)]
        words = f"{quoted(links.query)} looks at {quoted(links.key)} most in {first.head} ({percent(first.weight, 1)})"
        words += "".join(f" and {link.head} ({percent(link.weight, 1)})" for link in second)
        words += f"; spread evenly it is {percent(first.chance, 1)}."
    else:
        subject = f"Where {quoted(links.query)} looks" if links.query else f"Which words look at {quoted(links.key)}"
        words = f"{subject}, in each of {len(links)} heads."
    sections = [wrapped(clean(f"{answer.lm.name}: {words}"), console, "bold")]
    if drawn is not None:
        label = f"{drawn.head} {drawn.weight:.0%}"
        lines = linked_sentence(answer.words, drawn, label, _colour(answer, drawn), console)
        rule = (
            ""
            if pair
            else "Drawn: the link that is strongest for its distance, since any head may look at a neighbour."
        )
        sections.append([*lines, *wrapped(rule, console)])
    sections.append(_ranking(answer, console, complete) if pair else _by_word(answer, console, complete))
    remarks = [answer.window] if answer.window else []
    if not pair:
        beside = f"{quoted(links.query)} looks at" if links.query else f"looks at {quoted(links.key)}"
        remarks.append(f"Each head is listed at the word that {beside} most; special tokens and marks are left out.")
    elif len(links) > MOST_HEADS and not complete:
        remarks.append(f"{MOST_HEADS} of {len(links)} heads; --all lists every one.")
    if "left out" in links.because:
        remarks.append(f"{links.because.split('; ', 1)[1]}.".replace("..", "."))
    remark = clean(" ".join([*remarks, ONE_TEXT]))
    offers, source, model = [], answer.source, answer.model.arguments
    if source.own or source.arguments:  # what to type next: the head that was drawn, and the other side
        arguments, link = source.arguments and f" {source.arguments}", drawn or links[0]
        offers.append((f"manyheads head {link.head}{arguments}{model}", "where each word looks, in that head"))
        command = f"manyheads look{arguments}{model} --from"
        if pair:
            offers.append(
                (f"{command} {shlex.quote(links.query)}", f"where {quoted(links.query)} looks, in every head")
            )
        else:
            words = f"{shlex.quote(link.query)} --to {shlex.quote(link.key)}"
            offers.append((f"{command} {words}", "every head, by that link"))
        if source.own:
            offers.append((f"manyheads look {YOURS}{model} --from WORD", "the same on a text of your own"))
    sections += [
        wrapped(remark, console),
        [Text.assemble(("wrote  ", "dim"), clean(path)) for path in answer.written],
        offered(offers, console),
    ]
    print_sections(sections, console)


def _colour(answer: WordAnswer, link: recording.HeadLink) -> str:
    return link_colour(answer.labels.role_of(link.head))


def _ranking(answer: WordAnswer, console: Console, complete: bool) -> list[Text]:
    """A bar for each head, the heaviest first."""
    links = answer.links if complete else answer.links[:MOST_HEADS]
    wide = max(len(str(link.head)) for link in links)
    bar, lines = "█" if knows_blocks(console) else "#", []
    for link in links:
        role = answer.labels.role_of(link.head)
        name = "" if role is None else clean(role.name)
        if math.isnan(link.weight):
            lines.append(Text.assemble((f"  {link.head!s:<{wide}}", "bold"), "       –  cannot see it from there"))
            continue
        length = round(BAR * link.weight)
        cells = (bar * length, _colour(answer, link)), " " * (BAR - length)
        head = (f"  {link.head!s:<{wide}}", "bold")
        line = Text.assemble(head, f"  {link.weight:>6.1%}  ", *cells, (f"  {name}", "dim"))
        line.rstrip()
        lines.append(line)
    return lines


def _by_word(answer: WordAnswer, console: Console, complete: bool) -> list[Text]:
    """A line for each word that some head links to the given one most: its heads, the heaviest first."""
    links, groups = answer.links, dict[str, list[recording.HeadLink]]()
    for link in links:
        if not math.isnan(link.weight):
            groups.setdefault(link.key if links.query else link.query, []).append(link)
    most = len(groups) if complete else MOST_WORDS
    wide = min(24, max(len(clean(name)) for name in groups))
    lines = []
    for name, of_word in list(groups.items())[:most]:
        count = f"{len(of_word)} head{'s' if len(of_word) > 1 else ''}"
        line = Text.assemble((f"  {shortened(name, wide):<{wide}}", "bold"), (f"  {count:>8}", "dim"))
        for place, link in enumerate(of_word):
            part = Text.assemble(f"  {link.head} ", (f"{link.weight:.0%}", _colour(answer, link)))
            if not complete and line.cell_len + part.cell_len + 4 > console.width and place:
                line.append(" …" if knows_blocks(console) else " ...", style="dim")
                break
            if line.cell_len + part.cell_len > console.width:
                lines.append(line)
                line = Text(" " * (wide + 12))
            line.append_text(part)
        lines.append(line)
    if len(groups) > most:
        lines.append(Text(f"  and {len(groups) - most} more words: --all", style="dim"))
    return lines
