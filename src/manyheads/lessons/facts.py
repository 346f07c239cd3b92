"""Numbers in prose: `{{name}}`, or `{{name d_model=512 heads=8}}`, is filled in with what the fact of it says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from manyheads.lessons.format import LessonError

__all__ = ["asked_facts", "filled"]

PLACE = re.compile(r"\{\{(?P<asked>[^{}]+)\}\}")


def filled(where: str, text: str, say: Callable[[str, dict[str, str]], str]) -> str:
    """The text with every fact said. `say(name, inputs)` gives its words. Raises LessonError, or as `say`."""
    return PLACE.sub(lambda found: say(*_asked(where, found["asked"])), text)


def asked_facts(where: str, text: str) -> list[tuple[str, dict[str, str]]]:
    """What a text asks for: each fact's name and inputs. Raises LessonError."""
    return [_asked(where, found["asked"]) for found in PLACE.finditer(text)]


def _asked(where: str, written: str) -> tuple[str, dict[str, str]]:
    try:
        name, *inputs = shlex.split(written)
    except ValueError as error:
        raise LessonError(f"{where}: {{{{{written[:60]}}}}} cannot be read: {error}.") from None
    pairs = [each.partition("=") for each in inputs]
    if wrong := [each[0] for each in pairs if not each[1]]:
        raise LessonError(f"{where}: {wrong[0][:40]!r} in {{{{{written[:60]}}}}} is no input: write name=value.")
    return name, {key: value for key, _, value in pairs}
