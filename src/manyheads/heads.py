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

Everywhere a set of heads is asked for (plans, pruning, commands, the page), it is this grammar and no other.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, SupportsIndex, TypeAlias, cast

from manyheads.errors import HeadError

__all__ = ["Head", "HeadSet", "HeadsLike", "Shape", "parse_heads", "written"]

Shape: TypeAlias = Mapping[str, Sequence[int]]
"""Stack -> number of heads of each layer (0 where a layer has no attention). `""` is a stack without a name: an only
one, or one beside others that have names."""

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
        return f"{_layer_name(self.stack, self.layer)}H{self.index}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """The head that `text` names, whether or not a model has it. Raises HeadError for anything but one head."""
        match = _PART.fullmatch(text.strip())
        if match is None or not (match["layers"] + (match["heads"] or "*")).isdigit():
            guess = _did_you_mean(text, numbers=2)
            raise HeadError(f"{text!r} does not name one head. Write it like 'L3H7' or 'encoder:L0H1'{guess}.")
        return cls(match["stack"] or "", int(match["layers"]), int(match["heads"]))


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
            name = _layer_name(stack, layer)
            whole = len(indices) == counts[stack][layer]
            parts += [name] if whole else [f"{name}H{run}" for run in _runs(indices)]
        return ", ".join(parts)

    def _from_iterable(self, it: Iterable[Head]) -> HeadSet:  # pyright: ignore[reportIncompatibleMethodOverride]
        return parse_heads(it, dict(self.shape))  # Set calls this on the instance: operators keep order and shape


def parse_heads(what: HeadsLike, shape: Shape) -> HeadSet:
    """The heads that `what` asks for, of the model whose `shape` is {stack: heads of each layer}.

    The grammar is this module's docstring. An empty list or mapping is the empty set; an empty text is a mistake.
    Raises HeadError, naming what was asked, what exists, and the nearest form that would work.
    """
    wanted = set(_resolve(what, shape))
    every = HeadSet.all(shape)
    return HeadSet(tuple(head for head in every.heads if head in wanted), every.shape)


def written(what: HeadsLike) -> str:
    """What `parse_heads` reads as one text of the grammar, with no model at hand; "" for an empty list.

    Raises HeadError for what the grammar does not know. Whether a model has these heads, `parse_heads` says.
    """
    if isinstance(what, str):
        parts = [part.strip() for part in what.split(",")]
        for part in parts:
            _matched(part, what)
        return ", ".join(parts)
    if isinstance(what, Head | HeadSet):
        return str(what)
    if isinstance(what, Mapping):
        return ", ".join(_mapped(cast("Mapping[object, object]", what)))
    items = cast("object", what)
    if isinstance(items, Iterable):
        return ", ".join(filter(None, (written(item) for item in _listed(cast("Iterable[Any]", items)))))
    raise HeadError(f"{what!r} names no heads. Write {_EXAMPLES}{_did_you_mean(what)}.")


def in_layer(text: str, stack: str, layer: int, count: int) -> dict[str, tuple[int, ...]]:
    """The parts of a text of the grammar that mean this layer of `count` heads, and which heads each of them names.

    For models whose layers are not known before they run. A part without a stack means any. Raises HeadError.
    """
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split(", "):
        match = _matched(part, text)
        if match["stack"] in (None, stack) and (match["layers"] == "*" or layer in _span(match["layers"])):
            where = f" in {_layer_name(stack, layer)}"
            anywhere = match["layers"] == "*" and match["heads"]
            found[part] = tuple(
                (index for index in range(count) if index in _span(match["heads"], count))
                if anywhere
                else _indices(match["heads"] or "*", count, "head", part, where)
            )
    return found


def _span(text: str, count: int = 0) -> range:
    """ "3" or "0-5" as numbers; "*" as all of `count`."""
    if text == "*":
        return range(count)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _matched(part: str, asked: str) -> re.Match[str]:
    match = _PART.fullmatch(part)
    if match is None:
        where = f" in {asked!r}" if part != asked else ""
        raise HeadError(f"{part!r}{where} names no heads. Write {_EXAMPLES}{_did_you_mean(part)}.")
    return match


def _listed(what: Iterable[Any]) -> list[str | Head]:
    """The items of a list of heads. Raises HeadError for anything but texts and heads."""
    items = list(what)
    for item in items:
        if not isinstance(item, (str, Head)):
            guess = _did_you_mean(items, numbers=2)
            raise HeadError(f"{item!r} in {items!r} is no head. A list holds texts such as 'L3H7'{guess}.")
    return items


def _mapped(what: Mapping[object, object]) -> Iterator[str]:
    """The heads that {layer: [heads]} names, each as a text."""
    for layer, indices in what.items():
        entry = f"{{{layer!r}: {indices!r}}}"
        if isinstance(indices, str) or not isinstance(indices, Iterable):
            raise HeadError(f"{entry} needs a list of heads: write {{{layer!r}: [{indices}]}}.")
        name = f"L{_whole(layer, entry)}"
        yield from (f"{name}H{_whole(index, entry)}" for index in cast("Iterable[object]", indices))


def _resolve(what: object, shape: Shape) -> Iterator[Head]:
    if isinstance(what, str):
        for part in what.split(","):
            yield from _resolve_part(part.strip(), what, shape)
    elif isinstance(what, Head):
        yield from _resolve_part(str(what), str(what), shape)
    elif isinstance(what, Mapping):
        yield from _resolve_mapping(cast("Mapping[object, object]", what), shape)
    elif isinstance(what, Iterable):
        for item in _listed(cast("Iterable[Any]", what)):
            yield from _resolve(item, shape)
    else:
        raise HeadError(f"{what!r} names no heads. Write {_EXAMPLES}{_did_you_mean(what)}.")


def _resolve_part(part: str, asked: str, shape: Shape) -> Iterator[Head]:
    """One element of the grammar, say "L3H0-5"."""
    match = _matched(part, asked)
    stack = _resolve_stack(match["stack"], part, shape)
    counts = shape[stack]
    wanted = match["heads"] or "*"
    indices = _indices(wanted, max(counts, default=0), "head", part) if match["layers"] == "*" else None
    found = False
    for layer in _indices(match["layers"], len(counts), "layer", part):
        if indices is None:
            here = _indices(wanted, counts[layer], "head", part, f" in {_layer_name(stack, layer)}")
        else:  # "L*H7" is head 7 of the layers that have one: pruned layers may not
            here = (index for index in indices if index < counts[layer])
        for index in here:
            found = True
            yield Head(stack, layer, index)
    if not found:
        raise HeadError(f"{part!r}: there are no attention heads there; {_described(shape)}.")


def _resolve_mapping(what: Mapping[object, object], shape: Shape) -> Iterator[Head]:
    """{layer: [heads]}, which can only mean something where there is one stack."""
    if len(shape) > 1:
        example = [f"{_layer_name(next(iter(shape)), 0)}H1"]
        raise HeadError(f"{what!r} does not say which stack; {_described(shape)}. Write texts that do: {example}.")
    parts = list(_mapped(what))
    for layer in what:  # {9: []} names a layer, too
        name = f"L{_whole(layer, repr(layer))}"
        tuple(_resolve_part(name, name, shape))
    for part in parts:
        yield from _resolve_part(part, part, shape)


def _whole(number: object, entry: str) -> int:
    """A layer or head of a mapping as an int; NumPy's integers will do, "3", 3.0 and -1 will not."""
    try:
        value = operator.index(cast(SupportsIndex, number))
    except TypeError:
        kind = type(number).__name__
        raise HeadError(f"{entry}: {number!r} is a {kind}; use whole numbers, as in {{3: [7], 4: [0, 1]}}.") from None
    if value < 0:
        raise HeadError(f"{entry}: {value}: layers and heads count from 0, never from the end.")
    return value


def _resolve_stack(asked: str | None, part: str, shape: Shape) -> str:
    """The stack meant: where none is said, the one without a name, or the only one."""
    if not shape:
        raise HeadError(f"{part!r}: this model has no attention heads to choose from.")
    if asked is None and "" in shape:
        return ""
    if asked is None and len(shape) > 1:
        raise HeadError(f"{part!r} does not say which stack; {_described(shape)}. Write '{next(iter(shape))}:{part}'.")
    stack = next(iter(shape)) if asked is None else asked
    if stack in shape:
        return stack
    close = difflib.get_close_matches(stack, shape, n=1, cutoff=0.0)[0]
    nearest = f"{close}:{part.partition(':')[2]}".removeprefix(":")
    raise HeadError(f"{part!r}: no stack {stack!r}; {_described(shape)}. Nearest: '{nearest}'.")


def _indices(text: str, count: int, noun: str, part: str, where: str = "") -> range:
    """The numbers that "3", "0-5" or "*" stand for, all of them below `count`."""
    if text == "*":
        return range(count)
    first, _, last = text.partition("-")
    start, end = int(first), int(last or first)
    letter = noun[0].upper()
    if start > end:
        forwards = part.replace(f"{letter}{text}", f"{letter}{end}-{start}")
        raise HeadError(f"{part!r}: {noun}s {start} to {end} run backwards. Write '{forwards}'.")
    if end < count:
        return range(start, end + 1)
    top = count - 1
    if top < 0:
        raise HeadError(f"{part!r}: there is no {noun} {end}{where}, nor any other: it has no attention heads.")
    nearest = part.replace(f"{letter}{text}", f"{letter}{start}-{top}" if last and start < top else f"{letter}{top}")
    raise HeadError(f"{part!r}: there is no {noun} {end}{where}: {noun}s are 0 to {top}. Nearest: '{nearest}'.")


def _did_you_mean(what: object, numbers: int = 1) -> str:
    """ " (did you mean 'L3H7'?)", guessed from the numbers in what was written, if there are at least `numbers`."""
    found = re.findall(r"[0-9]+", str(what))[:2]
    if len(found) < numbers or any(len(number) > _DIGITS for number in found):
        return ""
    stack = re.match(rf"\s*({_STACK.pattern}\s*:)", str(what))
    guess = "".join(f"{letter}{int(number)}" for letter, number in zip("LH", found, strict=False))
    return f" (did you mean '{stack[1] if stack else ''}{guess}'?)"


def _described(shape: Shape) -> str:
    """ "this model has the stacks 'encoder' (layers 0 to 5), ..."."""
    unnamed = "one without a name " * (len(shape) > 1)
    stacks = [(f"{stack!r} " if stack else unnamed) + f"({len(counts)} layers)" for stack, counts in shape.items()]
    return f"this model has {'the stacks' if len(stacks) > 1 else 'one stack'} {', '.join(stacks)}"


def _layer_name(stack: str, layer: int) -> str:
    return f"{stack}:L{layer}" if stack else f"L{layer}"


def _runs(indices: Sequence[int]) -> list[str]:
    """(0, 1, 2, 5) -> ["0-2", "5"]."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), key=lambda at: at[1] - at[0])]
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
