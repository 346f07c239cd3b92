"""Heads and how they are written: one spelling of each head, one grammar for sets of them.

    L3H7            layer 3, head 7, both from 0
    L3              all heads of layer 3
    L3H0-5          heads 0 to 5 of layer 3, both ends included; L0-2H7 and L0-2 work alike
    L*H7            head 7 of every layer that has one
    encoder:L0H1    where a model has several stacks, the stack comes first; one of them may have no name, as in a
                    decoder with cross-attention: "L0H1" and "cross:L0H1"
    L3H7, L5        any of these, separated by commas or spaces; l3h7 is L3H7

In Python also `(3, 7)`, which is L3H7, lists (sets, ...) of all those and of `Head`s, as `[(3, 7), "L5"]` or the rows
of an array of pairs, and, where a model has one stack, `{layer: [heads]}`, the form people know from head pruning.

Reading takes two steps. `parts_of` reads the grammar alone, without a model: a plan does that when it is written.
`parse_heads(what, shape)` then resolves the parts against a model, where `shape` holds the number of heads of each
layer of each stack. Sets come out in the model's order whatever the order of the request, so equal sets are equal
values, print alike and hash alike. Plans, pruning, commands and the page all read heads here and nowhere else.
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
    "HeadLike",
    "HeadSet",
    "HeadsLike",
    "LayerPlace",
    "Shape",
    "component_name",
    "in_layer",
    "layer_name",
    "parse_heads",
    "parts_of",
    "written",
]

HeadLike: TypeAlias = "str | Head | tuple[SupportsIndex, SupportsIndex]"
"""One head: "L3H7", a `Head`, or `(3, 7)`, the layer and the head, of the stack without a name."""

HeadsLike: TypeAlias = "HeadLike | Mapping[int, Iterable[int]] | Iterable[HeadLike | Iterable[SupportsIndex]]"
"""What `parse_heads` reads; an iterable holds strings, `Head`s and pairs (layer, head)."""

Shape: TypeAlias = Mapping[str, Sequence[int]]
"""Stack -> number of heads of each layer (0 where a layer has no attention). `""` is a stack without a name: an only
one, or one beside others that have names."""

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
            raise HeadError(
                f"{self.stack=} is not a name for a stack: use letters, digits, '_' and '.', a letter first."
            )
        if self.layer < 0 or self.index < 0:
            raise HeadError(f"{self.layer=}, {self.index=}: layers and heads count from 0, never from the end.")

    def __str__(self) -> str:
        return f"{layer_name(self.stack, self.layer)}H{self.index}"

    @classmethod
    def parse(cls, what: HeadLike) -> Head:
        """The head that a name, a pair (layer, head) or a `Head` is, whether or not a model has it.

        Raises HeadError for anything but one head.
        """
        if isinstance(what, cls):
            return what
        if (pair := _pair_in(what)) is not None:
            return cls("", *pair)
        text = cast(str, what)
        if not isinstance(what, str):
            raise HeadError(
                f"{what!r} does not name one head. Write it like 'L3H7' or (3, 7){_did_you_mean(what, numbers=2)}."
            )
        match = _fullmatch(text.strip())
        if match is None or not (match["layers"] + (match["heads"] or "*")).isdigit():
            guess = _did_you_mean(text, numbers=2)
            raise HeadError(f"{text!r} does not name one head. Write it like 'L3H7' or 'encoder:L0H1'{guess}.")
        return cls(match["stack"] or "", int(match["layers"]), int(match["heads"]))


@dataclass(frozen=True, order=True)
class LayerPlace:
    """A place of a layer that is not a head: `str(place)` is "L3 stream" or "encoder:L3 feed-forward"."""

    stack: str
    layer: int
    place: str

    def __str__(self) -> str:
        return f"{layer_name(self.stack, self.layer)} {self.place}"


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
        heads = (
            Head(stack, layer, index)
            for stack, counts in shape.items()
            for layer, count in enumerate(counts)
            for index in range(count)
        )
        return cls(tuple(heads), tuple((stack, tuple(counts)) for stack, counts in shape.items()))

    def complement(self) -> HeadSet:
        """The heads of the model that are not in this set."""
        return HeadSet(tuple(head for head in HeadSet.all(dict(self.shape)).heads if head not in self), self.shape)

    def by_layer(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """(stack, layer) -> the indices of its heads in this set, for layers that have any."""
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
            if len(indices) == counts[stack][layer]:
                parts.append(name)
                continue
            # In a run of neighbours, index minus position is constant: (0, 1, 2, 5) gives "0-2" and "5".
            for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
                numbers = [index for _, index in run]
                parts.append(f"{name}H{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"{name}H{numbers[0]}")
        return ", ".join(parts)

    def _from_iterable(self, it: Iterable[Head]) -> HeadSet:  # pyright: ignore[reportIncompatibleMethodOverride]
        return parse_heads(it, dict(self.shape))  # Set calls this on the instance: operators keep order and shape


def parse_heads(what: HeadsLike, shape: Shape) -> HeadSet:
    """The heads that `what` names, of the model whose `shape` is {stack: heads of each layer}.

    The grammar is in `manyheads.heads`. An empty list or mapping is the empty set; an empty text is a mistake.
    Raises HeadError, naming the request, what exists, and the nearest form that would work.
    """
    parts = parts_of(what)
    if isinstance(what, Mapping):  # {layer: [heads]} has a meaning only where there is one stack
        if len(shape) > 1:
            example = [f"{layer_name(next(iter(shape)), 0)}H1"]
            raise HeadError(f"{what!r} does not say which stack; {_described(shape)}. Write texts that do: {example}.")
        list(parts_of(cast("object", what)))  # entries that are no numbers are refused before unknown layers
        for layer in cast("Mapping[object, object]", what):  # {9: []} names a layer, too
            name = f"L{_whole_number(layer, repr(layer))}"
            _heads_of(_match(name, name), shape)
    selected = {head for match in parts for head in _heads_of(match, shape)}
    model_heads = HeadSet.all(shape)
    return HeadSet(tuple(head for head in model_heads.heads if head in selected), model_heads.shape)


def written(what: HeadsLike) -> str:
    """What `parse_heads` reads as one text of the grammar, with no model at hand; "" for an empty list.

    Raises HeadError for what the grammar does not know. Whether a model has these heads is not checked.
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
    heads_of_part: dict[str, tuple[int, ...]] = {}
    for part in text.split(", "):
        match = _match(part, text)
        layers, heads = match["layers"], match["heads"]
        if match["stack"] not in (None, stack) or (layers != "*" and layer not in _span(layers)):
            continue
        if layers == "*" and heads:  # only the heads that this layer has: other layers may have more
            heads_of_part[part] = tuple(index for index in range(count) if index in _span(heads, count))
        else:
            nearest = partial(_nearest, match, stack, {stack: (count,) * (layer + 1)})
            heads_of_part[part] = tuple(_numbers(match, "heads", count, nearest, f" in {layer_name(stack, layer)}"))
    return heads_of_part


def component_name(what: HeadLike) -> str:
    """The name of a head, as "L3H5" of (3, 5) and of "l3h5"; any other text as it is: "embeddings" names no head.

    Raises HeadError for what is neither.
    """
    return str(Head.parse(what)) if not isinstance(what, str) or _fullmatch(what) else what


def layer_name(stack: str, layer: int) -> str:
    """ "L3", or "encoder:L3" in a stack that has a name."""
    return f"{stack}:L{layer}" if stack else f"L{layer}"


# --------------------------------------------------------------------------------- the grammar alone, without a model


def parts_of(what: object) -> Iterator[re.Match[str]]:
    """Each part of what names heads, "L3H0-5" say, as its `stack`, `layers` and `heads` (None where left out).

    Raises HeadError for what the grammar does not know.
    """
    if isinstance(what, str):
        yield from (match for part in what.split(",") for match in _matches(part.strip(), what))
    elif isinstance(what, Head):
        yield _match(str(what), str(what))
    elif isinstance(what, tuple) and (pair := _pair_in(cast("object", what))) is not None:
        name = str(Head("", *pair))
        yield _match(name, name)
    elif isinstance(what, Mapping):
        for layer, indices in cast("Mapping[object, object]", what).items():
            entry = f"{{{layer!r}: {indices!r}}}"
            if isinstance(indices, str) or not isinstance(indices, Iterable):
                raise HeadError(f"{entry} needs a list of heads: write {{{layer!r}: [{indices}]}}.")
            name = f"L{_whole_number(layer, entry)}"
            for index in cast("Iterable[object]", indices):
                part = f"{name}H{_whole_number(index, entry)}"
                yield _match(part, part)
    elif isinstance(what, Iterable):
        items = list(cast("Iterable[Any]", what))
        for item in items:  # all of them before the first is read: [3, 7] should be refused as a whole
            if not isinstance(item, (str, Head)) and _pair_in(item) is None:
                guess = _did_you_mean(items, numbers=2)
                raise HeadError(
                    f"{item!r} in {items!r} is not a head. A list holds texts such as 'L3H7', or pairs (3, 7){guess}."
                )
        for item in items:
            yield from parts_of(item if isinstance(item, (str, Head)) else _pair_in(item))
    else:
        raise HeadError(f"{what!r} names no heads. Write {_EXAMPLES}{_did_you_mean(what)}.")


def _pair_in(what: object) -> tuple[int, int] | None:
    """Layer and head of a pair of whole numbers: a tuple, or a row of an array. None for anything else."""
    row = getattr(what, "tolist", None)  # of a NumPy array or a tensor, as argwhere and nonzero give them
    values: object = row() if callable(row) else cast("object", what) if isinstance(what, tuple) else None
    pair = cast("Sequence[object]", values) if isinstance(values, tuple | list) else ()
    if len(pair) != 2 or not all(hasattr(number, "__index__") for number in pair):
        return None
    layer, index = (_whole_number(number, str(pair)) for number in pair)
    return layer, index


def _matches(part: str, request: str) -> list[re.Match[str]]:
    """What stands between two commas: one part, or several with spaces between them. Raises HeadError."""
    several = [_fullmatch(word) for word in part.split()]
    known = [match for match in several if match is not None]
    # "l3 h6" is meant as one head: as a whole it is named in the message.
    return known if len(several) > 1 and len(known) == len(several) else [_match(part, request)]


def _match(part: str, request: str) -> re.Match[str]:
    """One part of the grammar, of a request that may have several. Raises HeadError."""
    match = _fullmatch(part)
    if match is None:
        where = f" in {request!r}" if part != request else ""
        pair = re.fullmatch(r"\W*[0-9]+\W+[0-9]+\W*", request)  # "3, 7", or a pair as text: its comma divides nothing
        raise HeadError(f"{part!r}{where} names no heads. Write {_EXAMPLES}{_did_you_mean(request if pair else part)}.")
    return match


def _fullmatch(part: str) -> re.Match[str] | None:
    """The match of one part of the grammar, in capitals: what reads `l3h7` has the same text as what reads `L3H7`."""
    stack, colon, heads = part.rpartition(":")
    return _PART.fullmatch(f"{stack}{colon}{heads.upper()}")


def _span(text: str, count: int = 0) -> range:
    """ "3" or "0-5" as numbers; "*" as all of `count`."""
    if text == "*":
        return range(count)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _whole_number(number: object, entry: str) -> int:
    """A layer or head of a mapping as an int; NumPy's integers will do, "3", 3.0 and -1 will not."""
    try:
        value = operator.index(cast(SupportsIndex, number))
    except TypeError:
        kind = type(number).__name__
        raise HeadError(f"{entry}: {number!r} is a {kind}; use whole numbers, as in {{3: [7], 4: [0, 1]}}.") from None
    if value < 0:
        raise HeadError(f"{entry}: {value}: layers and heads count from 0, never from the end.")
    return value


def _did_you_mean(request: object, numbers: int = 1) -> str:
    """ " (did you mean 'L3H7'?)", guessed from the numbers in the request, if there are at least `numbers`."""
    digits = re.findall(r"[0-9]+", str(request))[:2]
    if len(digits) < numbers or any(len(number) > _DIGITS for number in digits):
        return ""
    stack = re.match(rf"\s*({_STACK.pattern}\s*:)", str(request))
    guess = "".join(f"{letter}{int(number)}" for letter, number in zip("LH", digits, strict=False))
    return f" (did you mean '{stack[1] if stack else ''}{guess}'?)"


# ----------------------------------------------------------------------------------- a part, resolved against a model


def _heads_of(match: re.Match[str], shape: Shape) -> list[Head]:
    """The heads that one part of the grammar names, never none. Raises HeadError."""
    stack = _stack_of(match, shape)
    counts, nearest = shape[stack], partial(_nearest, match, stack, shape)
    layers = _numbers(match, "layers", len(counts), nearest, gaps=_attending(stack, counts))
    if match["layers"] == "*":  # "L*H7" is head 7 of the layers that have one: pruned layers may not
        indices = _numbers(match, "heads", max(counts), nearest) if any(counts) else range(0)
        heads = [Head(stack, layer, index) for layer in layers for index in indices if index < counts[layer]]
        if not heads:
            raise HeadError(f"{match[0]!r}: there are no attention heads there; {_described(shape)}.")
        return heads
    silent = [layer_name(stack, layer) for layer in layers if not counts[layer]]
    # A span of layers means those of it that attend, but not where it names heads: these are not there.
    if silent and (match["heads"] or len(silent) == len(layers)):
        has = "has" if len(silent) == 1 else "have"
        nothing = f"{', '.join(silent)} {has} no attention, or none that can be seen"
        raise HeadError(f"{match[0]!r}: {nothing}; {_attending(stack, counts)}.{_advice('Nearest:', nearest())}")
    return [
        Head(stack, layer, index)
        for layer in layers
        for index in _numbers(match, "heads", counts[layer], nearest, f" in {layer_name(stack, layer)}")
    ]


def _attending(stack: str, counts: Sequence[int]) -> str:
    """ "the layers that attend are L1, L3", or "no layer attends"; "" where all do."""
    if all(counts):
        return ""
    names = [layer_name(stack, layer) for layer, count in enumerate(counts) if count]
    return f"the layers that attend are {', '.join(names)}" if names else "none of its layers attends"


def _stack_of(match: re.Match[str], shape: Shape) -> str:
    """The stack meant: where the part names none, the one without a name, or the only one."""
    if not shape:
        raise HeadError(f"{match[0]!r}: this model has no attention heads to choose from.")
    stack, first = match["stack"], next(iter(shape))
    if stack in shape:
        return stack
    if stack is None:
        if "" in shape:
            return ""
        if len(shape) == 1:
            return first
        advice = _advice("Write", _nearest(match, first, shape))
        raise HeadError(f"{match[0]!r} does not say which stack; {_described(shape)}.{advice}")
    close = difflib.get_close_matches(stack, shape, n=1, cutoff=0.0)[0]
    advice = _advice("Nearest:", _nearest(match, close, shape))
    raise HeadError(f"{match[0]!r}: no stack {stack!r}; {_described(shape)}.{advice}")


def _advice(word: str, form: str) -> str:
    """ " Nearest: 'L3H7'."; "" where there is no such form."""
    return f" {word} '{form}'." if form else ""


def _numbers(
    match: re.Match[str], axis: str, count: int, nearest: Callable[[], str], where: str = "", gaps: str = ""
) -> range:
    """The "layers" or "heads" that a part names, all of them below `count`; `nearest` makes the form to advise.

    `gaps`: of layers, which attend, where not all do.
    """
    text, noun = match[axis] or "*", axis.removesuffix("s")
    if text == "*":
        return range(count)
    span = _span(text)
    if not span:
        raise _backwards(match, axis, nearest())
    if span.stop <= count:
        return span
    missing = f"{match[0]!r}: there is no {noun} {span[-1]}{where}"
    if gaps:  # layers after the last one that attends are not in a shape
        raise HeadError(f"{missing} that attends: {gaps}.{_advice('Nearest:', nearest())}")
    raise HeadError(f"{missing}: {axis} are 0 to {count - 1}.{_advice('Nearest:', nearest())}")


def _backwards(match: re.Match[str], axis: str, nearest: str) -> HeadError:
    first, _, last = match[axis].partition("-")
    return HeadError(f"{match[0]!r}: {axis} {first} to {last} run backwards.{_advice('Write', nearest)}")


def _nearest(match: re.Match[str], stack: str, shape: Shape) -> str:
    """The form of a part that this stack could answer: the same layers and heads where they exist, else the nearest.

    A range of layers takes the heads that all of them have, a star those that any has. Where the layers have no heads
    at all, the closest layer that has some stands for them. "" where no layer of the stack attends.
    """
    counts = shape[stack]
    attending = [layer for layer, count in enumerate(counts) if count]
    if not attending:
        return ""
    # The advice must be a form that parses and names heads: layers first, then heads as far as those layers have them.
    layers, heads = _below(match["layers"], len(counts)), match["heads"] or "*"
    layer_counts = [counts[layer] for layer in _span(layers, len(counts))]
    # Layers of a span that do not attend are passed over, but not where heads are named: "L0-1H*" needs both.
    count = max(layer_counts) if layers == "*" or not match["heads"] else min(layer_counts)
    if not count:
        last = _span(layers)[-1]
        closest = min(attending, key=lambda layer: abs(layer - last))
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
    """ "this model has the stacks 'encoder' (6 layers), ..."."""
    unnamed = "one without a name " * (len(shape) > 1)
    stacks = [(f"{stack!r} " if stack else unnamed) + f"({len(counts)} layers)" for stack, counts in shape.items()]
    return f"this model has {'the stacks' if len(stacks) > 1 else 'one stack'} {', '.join(stacks)}"
