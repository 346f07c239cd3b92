"""What of a page is code: its blocks, in order, with what a page says about them.

    <!-- not run: it serves until Ctrl-C -->    on the line before a block: the block is not run, and why
    <!-- not held: times of one machine -->     on the line before what it prints: that is not compared, and why

What follows a block of Python, fenced as `text` or indented under the single word "prints", is what it prints: all of
it, or some of its lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
LANGUAGES = {"python": "python", "py": "python", "sh": "sh", "bash": "sh"}
FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
NOT_RUN = re.compile(r"\s*<!-- not run: (?P<reason>.+?) -->\s*")
NOT_HELD = re.compile(r"\s*<!-- not held: (?P<reason>.+?) -->\s*")

NEVER = (
    (r"manyheads studio(?!.*--get)", "it serves until Ctrl-C; tests/studio does that"),
    (r"manyheads look .*--open\b", "it serves until Ctrl-C; tests/studio does that"),
    (r"manyheads train \w+(?!.*--quick)", "it trains for minutes; tests/lab/training trains less"),
    (r".*\b[A-Z]{2,}(_[A-Z]+)+\b|.*(?<![\w-])(FOLDER|FILE|MODEL|NAME|PRESET)\b", "a name in capitals stands for yours"),
)
"""Lines that no page can run. All other reasons stand in the pages themselves."""


@dataclass(frozen=True)
class Block:
    """A block of code. `line` is that of its first line in the page, from 1; `not_run` says why, if it is not."""

    page: Path
    line: int
    language: str
    code: str
    not_run: str = ""
    prints: str | None = None
    not_held: str = ""


@dataclass(frozen=True)
class Command:
    """A line of a shell block: run if it is one of ours. `not_run` as of a block."""

    line: int
    text: str
    not_run: str = ""


def pages() -> list[Path]:
    """The README and every page of docs, by name."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block, of whatever language; what stands inside a longer fence is not a block."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found, at = [], 0
    while at < len(lines):
        opened = FENCE.fullmatch(lines[at])
        if not opened:
            at += 1
            continue
        closing = re.compile(rf" *{opened['fence'][0]}{{{len(opened['fence'])},}} *")
        end = next((i for i in range(at + 1, len(lines)) if closing.fullmatch(lines[i])), len(lines))
        said = NOT_RUN.fullmatch(lines[at - 1]) if at else None
        language, _, _ = opened["info"].strip().partition(" ")
        code = dedent("\n".join(lines[at + 1 : end])) + "\n"
        reason = said["reason"] if said else ""
        printed = _printed(lines[end + 1 :])
        found.append(Block(page, at + 2, LANGUAGES.get(language, language), code, reason, *printed))
        at = end + 1
    return found


def _printed(after: list[str]) -> tuple[str | None, str]:
    """What a block prints, where the page says so, and why that is not compared, where it is not."""
    at = next((number for number, line in enumerate(after) if line.strip()), len(after))
    if at < len(after) and (said := NOT_HELD.fullmatch(after[at])):
        return None, said["reason"]
    if after[at : at + 1] == ["```text"]:
        end = after.index("```", at)
        return "\n".join(after[at + 1 : end]) + "\n", ""
    if after[at : at + 1] == ["prints"]:
        kept = takewhile(lambda line: not line.strip() or line.startswith("    "), after[at + 1 :])
        return dedent("\n".join(kept)).strip("\n") + "\n", ""
    return None, ""


def commands_of(block: Block) -> Iterator[Command]:
    """The lines of a shell block, continued lines joined and comments left out."""
    text, begun = "", 0
    for number, line in enumerate(block.code.splitlines(), block.line):
        begun = begun if text else number
        text += line
        if text.endswith("\\"):
            text = text[:-1]
            continue
        if words := shlex.split(text, comments=True):
            yield Command(begun, text.strip(), block.not_run or _never(words, text))
        text = ""


def _never(words: list[str], text: str) -> str:
    if words[0] != "manyheads":
        return "a line of another program"
    bare = text.split(" #")[0]
    return next((reason for pattern, reason in NEVER if re.match(pattern, bare)), "")
