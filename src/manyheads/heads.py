"""Heads and how they are written: one spelling of each head, one grammar for sets of them.

    L3H7            layer 3, head 7, both from 0
    L3              all heads of layer 3
    L3H0-5          heads 0 to 5 of layer 3, both ends included; L0-2H7 and L0-2 work alike
    L*H7            head 7 of every layer that has one
    encoder:L0H1    where a model has several stacks, the stack comes first; one of them may have no name, as in a
                    decoder with cross-attention: "L0H1" and "cross:L0H1"
    L3H7, L5        any of these, separated by commas

In Python also lists (tuples, sets, ...) of those and of `Head`s, and, where a model has one stack, `{layer: [heads]}`,
the form people know from head pruning. What is asked resolves against what exists: `parse_heads(what, shape)`, where
`shape` says how many heads each layer of each stack has. Sets come out in the model's order whatever the order asked,
so equal sets are equal values, print alike and hash alike.

Everywhere a set of heads is asked for (plans, pruning, commands, the page), it is this grammar and no other: `grammar`
reads it, `sets` finds in a model what it names.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any, SupportsIndex, TypeAlias, cast

from manyheads.errors import HeadError

__all__ = [
    "Head",
    "HeadSet",
    "HeadsLike",
    "Shape",
    "in_layer",
    "parse_heads",
    "written",
    "layer_name",
    "matched",
    "parts_of",
    "span_of",
    "whole",
]


# ---------------------------------------------------------------------------------------------------------------------
# Heads as text, with no model at hand: one head, and the parts that a set of heads is written in.


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


# ---------------------------------------------------------------------------------------------------------------------
# Heads of a model: the set that what is asked names, or an error with the nearest form that would name some.


Shape: TypeAlias = Mapping[str, Sequence[int]]
"""Stack -> number of heads of each layer (0 where a layer has no attention). `""` is a stack without a name: an only
one, or one beside others that have names."""


@dataclass(frozen=True, eq=False)
class HeadSet(Set[Head]):
    """Heads of one model: an immutable set in the model's order, whose `str`, unless empty, reads back as the same set.

    Made by `parse_heads` or `HeadSet.all`. `|`, `&`, `-`, `<=` and `in` work as on any set of `Head`s and keep the
    shape; a head that the model lacks raises HeadError.
    """

    heads: tuple[Head, ...]
    shape: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def all(cls, shape: Shape) -> HeadSet:
        """Every head that there is."""
        every = (
            Head(stack, layer, index)
            for stack, counts in shape.items()
            for layer, count in enumerate(counts)
            for index in range(count)
        )
        return cls(tuple(every), tuple((stack, tuple(counts)) for stack, counts in shape.items()))

    def complement(self) -> HeadSet:
        """The heads of the model that are not in here."""
        every = HeadSet.all(dict(self.shape))
        return HeadSet(tuple(head for head in every.heads if head not in self), self.shape)

    def by_layer(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """(stack, layer) -> the indices in here, for layers that have any."""
        layers = groupby(self.heads, key=lambda head: (head.stack, head.layer))
        return {layer: tuple(head.index for head in heads) for layer, heads in layers}

    @cached_property
    def _members(self) -> frozenset[Head]:
        return frozenset(self.heads)

    def __contains__(self, head: object) -> bool:
        return head in self._members

    def __iter__(self) -> Iterator[Head]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def __hash__(self) -> int:
        return self._hash()  # as Set's __eq__ compares: by members alone

    def __str__(self) -> str:
        counts = dict(self.shape)
        parts: list[str] = []
        for (stack, layer), indices in self.by_layer().items():
            name = layer_name(stack, layer)
            whole_layer = len(indices) == counts[stack][layer]
            parts += [name] if whole_layer else [f"{name}H{run}" for run in _runs(indices)]
        return ", ".join(parts)

    def _from_iterable(self, it: Iterable[Head]) -> HeadSet:  # pyright: ignore[reportIncompatibleMethodOverride]
        return parse_heads(it, dict(self.shape))  # Set calls this on the instance: operators keep order and shape


def parse_heads(what: HeadsLike, shape: Shape) -> HeadSet:
    """The heads that `what` asks for, of the model whose `shape` is {stack: heads of each layer}.

    The grammar is in `manyheads.heads`. An empty list or mapping is the empty set; an empty text is a mistake.
    Raises HeadError, naming what was asked, what exists, and the nearest form that would work.
    """
    parts = parts_of(what)
    if isinstance(what, Mapping):
        _check_mapping(cast("Mapping[object, object]", what), shape)
    wanted = {head for match in parts for head in _heads_of(match, shape)}
    every = HeadSet.all(shape)
    return HeadSet(tuple(head for head in every.heads if head in wanted), every.shape)


def written(what: HeadsLike) -> str:
    """What `parse_heads` reads as one text of the grammar, with no model at hand; "" for an empty list.

    Raises HeadError for what the grammar does not know. Whether a model has these heads, `parse_heads` says.
    """
    return str(what) if isinstance(what, HeadSet) else ", ".join(match[0] for match in parts_of(what))


def require_forwards(what: HeadsLike) -> None:
    """Raises HeadError for a span that runs backwards, which no model has."""
    for match in parts_of(what):
        for axis in ("layers", "heads"):
            first, _, last = (match[axis] or "*").partition("-")
            if last and int(first) > int(last):
                raise _backwards(match, axis, match[0].replace(f"{first}-{last}", f"{last}-{first}"))


def in_layer(text: str, stack: str, layer: int, count: int) -> dict[str, tuple[int, ...]]:
    """The parts of a text of the grammar that mean this layer of `count` heads, and which heads each of them names.

    For models whose layers are not known before they run. A part without a stack means any. Raises HeadError.
    """
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split(", "):
        match = matched(part, text)
        layers, heads = match["layers"], match["heads"]
        if match["stack"] not in (None, stack) or (layers != "*" and layer not in span_of(layers)):
            continue
        if layers == "*" and heads:  # those that are there: other layers may have more
            found[part] = tuple(index for index in range(count) if index in span_of(heads, count))
        else:
            nearest = partial(_nearest, match, stack, {stack: (count,) * (layer + 1)})
            found[part] = tuple(_numbers(match, "heads", count, nearest, f" in {layer_name(stack, layer)}"))
    return found


def _check_mapping(what: Mapping[object, object], shape: Shape) -> None:
    """{layer: [heads]} can only mean something where there is one stack; {9: []} names a layer, too."""
    if len(shape) > 1:
        example = [f"{layer_name(next(iter(shape)), 0)}H1"]
        raise HeadError(f"{what!r} does not say which stack; {_described(shape)}. Write texts that do: {example}.")
    list(parts_of(what))  # what is no number is told first
    for layer in what:
        name = f"L{whole(layer, repr(layer))}"
        _heads_of(matched(name, name), shape)


def _heads_of(match: re.Match[str], shape: Shape) -> list[Head]:
    """The heads that one part of the grammar names, never none. Raises HeadError."""
    stack = _stack_of(match, shape)
    counts, nearest = shape[stack], partial(_nearest, match, stack, shape)
    layers = _numbers(match, "layers", len(counts), nearest)
    if match["layers"] == "*":  # "L*H7" is head 7 of the layers that have one: pruned layers may not
        most = _numbers(match, "heads", max(counts, default=0), nearest)
        found = [Head(stack, layer, index) for layer in layers for index in most if index < counts[layer]]
    else:
        found = [
            Head(stack, layer, index)
            for layer in layers
            for index in _numbers(match, "heads", counts[layer], nearest, f" in {layer_name(stack, layer)}")
        ]
    if not found:
        raise HeadError(f"{match[0]!r}: there are no attention heads there; {_described(shape)}.")
    return found


def _stack_of(match: re.Match[str], shape: Shape) -> str:
    """The stack meant: where none is said, the one without a name, or the only one."""
    if not shape:
        raise HeadError(f"{match[0]!r}: this model has no attention heads to choose from.")
    asked, first = match["stack"], next(iter(shape))
    if asked in shape:
        return asked
    if asked is None:
        if "" in shape:
            return ""
        if len(shape) == 1:
            return first
        advice = f"Write '{_nearest(match, first, shape)}'."
        raise HeadError(f"{match[0]!r} does not say which stack; {_described(shape)}. {advice}")
    close = difflib.get_close_matches(asked, shape, n=1, cutoff=0.0)[0]
    advice = f"Nearest: '{_nearest(match, close, shape)}'."
    raise HeadError(f"{match[0]!r}: no stack {asked!r}; {_described(shape)}. {advice}")


def _numbers(match: re.Match[str], axis: str, count: int, nearest: Callable[[], str], where: str = "") -> range:
    """The "layers" or "heads" that a part names, all of them below `count`; `nearest` makes the form to advise."""
    text, noun = match[axis] or "*", axis.removesuffix("s")
    if text == "*":
        return range(count)
    span = span_of(text)
    if not span:
        raise _backwards(match, axis, nearest())
    if span.stop <= count:
        return span
    missing = f"{match[0]!r}: there is no {noun} {span[-1]}{where}"
    if not count:
        raise HeadError(f"{missing}, nor any other: it has no attention heads.")
    raise HeadError(f"{missing}: {axis} are 0 to {count - 1}. Nearest: '{nearest()}'.")


def _backwards(match: re.Match[str], axis: str, nearest: str) -> HeadError:
    first, _, last = match[axis].partition("-")
    return HeadError(f"{match[0]!r}: {axis} {first} to {last} run backwards. Write '{nearest}'.")


def _nearest(match: re.Match[str], stack: str, shape: Shape) -> str:
    """What a part would be of this stack: the same layers and heads as far as they are there, else the nearest."""
    counts = shape[stack]
    there = [layer for layer, count in enumerate(counts) if count]
    if not there:
        return match[0]
    layers, heads = _below(match["layers"], len(counts)), match["heads"] or "*"
    here = [counts[layer] for layer in span_of(layers, len(counts))]
    count = max(here) if "*" in (layers, heads) else min(here)
    if not count:
        last = span_of(layers)[-1]
        closest = min(there, key=lambda layer: abs(layer - last))
        layers, count = str(closest), counts[closest]
    name = f"{stack}:" if stack and (match["stack"] or len(shape) > 1) else ""
    return f"{name}L{layers}" + (f"H{_below(heads, count)}" if match["heads"] else "")


def _below(text: str, count: int) -> str:
    """A number or a span, forwards, with what is not below `count` moved there; "*" as it is."""
    if text == "*":
        return text
    ends = text.split("-")
    first, last = sorted(min(int(end), count - 1) for end in (ends[0], ends[-1]))
    return f"{first}-{last}" if first < last else f"{last}"


def _described(shape: Shape) -> str:
    """ "this model has the stacks 'encoder' (layers 0 to 5), ..."."""
    unnamed = "one without a name " * (len(shape) > 1)
    stacks = [(f"{stack!r} " if stack else unnamed) + f"({len(counts)} layers)" for stack, counts in shape.items()]
    return f"this model has {'the stacks' if len(stacks) > 1 else 'one stack'} {', '.join(stacks)}"


def _runs(indices: Sequence[int]) -> list[str]:
    """(0, 1, 2, 5) -> ["0-2", "5"]."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), key=lambda at: at[1] - at[0])]
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
