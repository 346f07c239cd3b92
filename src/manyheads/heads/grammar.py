"""Heads as text, with no model at hand: one head, and the parts that a set of heads is written in."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias, cast

from manyheads.errors import HeadError

__all__ = ["Head", "HeadsLike", "layer_name", "matched", "parts_of", "span_of", "whole"]

HeadsLike: TypeAlias = "str | Head | Mapping[int, Iterable[int]] | Iterable[Any]"
"""What `parse_heads` reads; an iterable holds strings and `Head`s."""

_STACK = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_DIGITS = 9  # no model has a billion heads; of thousands of digits Python makes no number
_NUMBER = rf"(?:0|[1-9][0-9]{{0,{_DIGITS - 1}}})"
_SPAN = rf"\*|{_NUMBER}(?:-{_NUMBER})?"
_PART = re.compile(rf"(?:(?P<stack>{_STACK.pattern}):)?L(?P<layers>{_SPAN})(?:H(?P<heads>{_SPAN}))?")
_EXAMPLES = "'L3H7', 'L3', 'L3H0-5', 'L*H7', 'encoder:L0H1', or several separated by commas"


@dataclass(frozen=True, order=True)
class Head:
    """One attention head. `str(head)` is "L3H7" in a stack without a name (`stack == ""`), else "cross:L3H7".

    `layer` and `index` count from 0; heads sort by stack, layer, index. Raises HeadError.
    """

    stack: str
    layer: int
    index: int

    def __post_init__(self) -> None:
        if self.stack and not _STACK.fullmatch(self.stack):
            raise HeadError(f"{self.stack=} is no name for a stack: use letters, digits, '_' and '.', a letter first.")
        if self.layer < 0 or self.index < 0:
            raise HeadError(f"{self.layer=}, {self.index=}: layers and heads count from 0, never from the end.")

    def __str__(self) -> str:
        return f"{layer_name(self.stack, self.layer)}H{self.index}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """The head that `text` names, whether or not a model has it. Raises HeadError for anything but one head."""
        match = _PART.fullmatch(text.strip())
        if match is None or not (match["layers"] + (match["heads"] or "*")).isdigit():
            guess = _did_you_mean(text, numbers=2)
            raise HeadError(f"{text!r} does not name one head. Write it like 'L3H7' or 'encoder:L0H1'{guess}.")
        return cls(match["stack"] or "", int(match["layers"]), int(match["heads"]))


def layer_name(stack: str, layer: int) -> str:
    return f"{stack}:L{layer}" if stack else f"L{layer}"


def parts_of(what: object) -> Iterator[re.Match[str]]:
    """Each part of what names heads, "L3H0-5" say, as its `stack`, `layers` and `heads` (None where not said).

    Raises HeadError for what the grammar does not know.
    """
    if isinstance(what, str):
        yield from (matched(part.strip(), what) for part in what.split(","))
    elif isinstance(what, Head):
        yield matched(str(what), str(what))
    elif isinstance(what, Mapping):
        yield from (matched(part, part) for part in _mapped(cast("Mapping[object, object]", what)))
    elif isinstance(what, Iterable):
        for item in _listed(cast("Iterable[Any]", what)):
            yield from parts_of(item)
    else:
        raise HeadError(f"{what!r} names no heads. Write {_EXAMPLES}{_did_you_mean(what)}.")


def matched(part: str, asked: str) -> re.Match[str]:
    """One part of the grammar, of all that was asked. Raises HeadError."""
    match = _PART.fullmatch(part)
    if match is None:
        where = f" in {asked!r}" if part != asked else ""
        raise HeadError(f"{part!r}{where} names no heads. Write {_EXAMPLES}{_did_you_mean(part)}.")
    return match


def span_of(text: str, count: int = 0) -> range:
    """ "3" or "0-5" as numbers; "*" as all of `count`."""
    if text == "*":
        return range(count)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def whole(number: object, entry: str) -> int:
    """A layer or head of a mapping as an int; NumPy's integers will do, "3", 3.0 and -1 will not."""
    try:
        value = operator.index(cast(SupportsIndex, number))
    except TypeError:
        kind = type(number).__name__
        raise HeadError(f"{entry}: {number!r} is a {kind}; use whole numbers, as in {{3: [7], 4: [0, 1]}}.") from None
    if value < 0:
        raise HeadError(f"{entry}: {value}: layers and heads count from 0, never from the end.")
    return value


def _mapped(what: Mapping[object, object]) -> Iterator[str]:
    """The heads that {layer: [heads]} names, each as a text."""
    for layer, indices in what.items():
        entry = f"{{{layer!r}: {indices!r}}}"
        if isinstance(indices, str) or not isinstance(indices, Iterable):
            raise HeadError(f"{entry} needs a list of heads: write {{{layer!r}: [{indices}]}}.")
        name = f"L{whole(layer, entry)}"
        yield from (f"{name}H{whole(index, entry)}" for index in cast("Iterable[object]", indices))


def _listed(what: Iterable[Any]) -> list[str | Head]:
    """The items of a list of heads. Raises HeadError for anything but texts and heads."""
    items = list(what)
    for item in items:
        if not isinstance(item, (str, Head)):
            guess = _did_you_mean(items, numbers=2)
            raise HeadError(f"{item!r} in {items!r} is no head. A list holds texts such as 'L3H7'{guess}.")
    return items


def _did_you_mean(what: object, numbers: int = 1) -> str:
    """ " (did you mean 'L3H7'?)", guessed from the numbers in what was written, if there are at least `numbers`."""
    found = re.findall(r"[0-9]+", str(what))[:2]
    if len(found) < numbers or any(len(number) > _DIGITS for number in found):
        return ""
    stack = re.match(rf"\s*({_STACK.pattern}\s*:)", str(what))
    guess = "".join(f"{letter}{int(number)}" for letter, number in zip("LH", found, strict=False))
    return f" (did you mean '{stack[1] if stack else ''}{guess}'?)"
