"""What a model is, in numbers: its sites (places where attention happens) and its dimensions.

A `ModelSpec` is all that most of the library needs to know about a model: which heads there are, how wide they are,
which key/value head serves which query head. It is plain data without torch, so that a recording can carry it, a
command can print it, and sizes can be computed from it on a machine without the model. `to_json` and `from_json` are
inverses.
"""

from __future__ import annotations

import json
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Generic, SupportsIndex, TypeVar, cast, overload

from manyheads.base import Json, check_groups
from manyheads.errors import HeadError, RecordingError, ShapeError
from manyheads.heads import Head, HeadSet, HeadsLike, layer_name, parse_heads

__all__ = ["CROSS", "DECODER", "VISION", "Layers", "ModelSpec", "Site", "counted_layers", "layer_number"]

T = TypeVar("T")

MOST = 1 << 20  # layers, heads and their widths, as a file may claim them: heads are listed one by one
DECODER = "decoder"  # the stack that reads texts of its own, beside an encoder's
CROSS = "cross"  # the stack whose keys are other tokens than its queries
VISION = "vision"  # the stack of the vision tower beside a language model that reads pictures among its tokens


@dataclass(frozen=True)
class Site:
    """One attention operation of a model. Raises ShapeError where the numbers of heads do not divide.

    `stack` is "" where the model has only one, or where it is the plain one beside others; `layer` is the model's own
    number of the layer, from 0: layers without attention leave gaps. A number that two layers would have (a block that
    is called again, stages that number their blocks again) stays with the first of them: `layer_number` says what the
    others get. `module` is the path of the module that attends ("encoder.layer.3.attention.self"); where it is called
    again in one pass, "#2" follows, then "#3". `qk_dim` and `v_dim` are the widths d and f of one head. `num_kv_heads`
    is `num_heads` (MHA), a divisor of it (GQA) or 1 (MQA).
    """

    stack: str
    layer: int
    module: str
    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    causal: bool

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("num_heads", "num_kv_heads", "qk_dim", "v_dim")}
        for name, size in sizes.items():
            if size < 1:
                raise ShapeError(f"{self}: {name}={size}, but a site has at least one head of width at least 1.")
        check_groups(self.num_heads, self.num_kv_heads, str(self))

    def __str__(self) -> str:
        return f"{self.stack}:L{self.layer}" if self.stack else f"L{self.layer}"

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(Head(self.stack, self.layer, index) for index in range(self.num_heads))

    @classmethod
    def from_dict(cls, data: object, label: str = "a site") -> Site:
        """The site that `asdict` turned into `data`. `label` names the data in errors.

        Raises RecordingError naming the field that is missing, unknown or out of range; ShapeError as a site does.
        """
        return cls(**_fields_of(cls, data, label, MOST))

    def kv_head_of(self, head: int) -> int:
        """The key/value head that serves query head `head`: neighbours share one. Raises HeadError past the end."""
        if not 0 <= head < self.num_heads:
            raise HeadError(f"{self} has no head {head}: heads are 0 to {self.num_heads - 1}.")
        return head // (self.num_heads // self.num_kv_heads)


class Layers(Generic[T]):
    """The layers of one stack that attend, by number (`Site.layer`): `layers[3]` is layer 3, `layers[-1]` the last.

    Iteration, `len` and slices go over the layers that are there, sorted by number, whatever the order in which the
    model calls them. The ends of a slice are numbers too: of the layers 1, 3 and 4, `layers[1:4]` are layers 1 and 3,
    and `layers[-2:]` the last two; a step goes over the layers that are there. So this is no `Sequence`.

    `site_of` gives a layer's site. Layers in a file are read when they are asked for: these come sorted, with the
    `sites` of all of them, and none is looked at. Raises HeadError for a layer without attention, or that the model
    does not have: it names those that attend.
    """

    def __init__(self, layers: Sequence[T], site_of: Callable[[T], Site], sites: Sequence[Site] | None = None) -> None:
        if sites is None:
            layers = sorted(layers, key=lambda layer: site_of(layer).layer)
        self.by_place = layers
        self.sites = tuple(map(site_of, layers)) if sites is None else tuple(sites)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of each layer that is there (`Site.layer`)."""
        return tuple(site.layer for site in self.sites)

    def __len__(self) -> int:
        return len(self.by_place)

    def __iter__(self) -> Iterator[T]:
        return iter(self.by_place)

    def __reversed__(self) -> Iterator[T]:
        return reversed(self.by_place)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layers) and tuple(self) == tuple(cast("Layers[Any]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return self._between(index)
        numbers = self.numbers
        try:
            number = operator.index(index)
        except TypeError:
            digits = re.search(r"[0-9]+", str(index))
            meant = digits[0] if digits else (numbers or (0,))[0]
            raise HeadError(f"layers[{index!r}]: a layer is found by its number: write layers[{meant}].") from None
        if -len(numbers) <= number < 0:  # from the end, as of any sequence
            return self.by_place[number]
        if number not in numbers:
            raise HeadError(self._absent(number))
        return self.by_place[numbers.index(number)]

    def _between(self, chosen: slice) -> Sequence[T]:
        numbers, step = self.numbers, chosen.step
        try:
            ends = [None if end is None else operator.index(end) for end in (chosen.start, chosen.stop)]
            backward = step is not None and operator.index(step) < 0
        except TypeError:
            raise HeadError(
                f"layers[{chosen}]: the ends of a slice are numbers of layers, as in layers[1:3]."
            ) from None
        # From the end, as of any sequence; what lies before the first layer is below every number.
        ends = [end if end is None or end >= 0 else (-1, *numbers)[max(0, len(numbers) + end + 1)] for end in ends]
        low, high = reversed(ends) if backward else ends
        place = bisect_right if backward else bisect_left  # backward, the end that is left out is the lower one
        places = slice(0 if low is None else place(numbers, low), None if high is None else place(numbers, high))
        return self.by_place[places] if step is None else self.by_place[places][::step]

    def _absent(self, number: int) -> str:
        if not self.sites:
            return f"layer {number} is not in this stack: it has no layer that attends."
        names = [layer_name(site.stack, site.layer) for site in self.sites]
        if number < 0:
            return f"layer {number}, from the end, is not in this stack: it has {len(names)} layers that attend."
        name = layer_name(self.sites[0].stack, number)
        if self.numbers == tuple(range(len(names))):
            return f"there is no {name} in this stack: its layers are {names[0]} to {names[-1]}."
        return f"{name} has no attention, or none that was seen: the layers that are here are {', '.join(names)}."

    def __repr__(self) -> str:
        return f"Layers({', '.join(layer_name(site.stack, site.layer) for site in self.sites)})"


def layer_number(own: int | None, taken: Collection[int]) -> int:
    """The number of a layer that attends: the model's `own`; or else, where it has none, as many as are `taken`.

    Where the stack has that number already, the largest one plus 1, and so it is no more the model's own: of a block
    that is called again, of stages whose blocks are numbered again, and of layers after them that find their number
    taken. `layers.0`, `layers.1`, `layers.1` again and `layers.2` are 0, 1, 2, 3; so L3 is `layers.2`. The stages
    `1.0`, `1.1`, `2.0`, `2.1` are 1, 2, 3, 4. `Site.module` tells which module a layer is.
    """
    number = len(taken) if own is None else own
    return max(taken) + 1 if number in taken else number


def sharing_words(sites: Iterable[Site]) -> str:
    """How many query heads of these sites share a key/value head, in words; "" where none do."""
    first, *others = sorted({site.num_heads // site.num_kv_heads for site in sites} - {1}) or [1]
    if first == 1:
        return ""
    beside = f", in other layers {' or '.join(map(str, others))}" if others else ""
    return f"{first} query heads share one key/value head{beside}"


def counted_layers(sites: Sequence[Site]) -> str:
    """A sentence where layers are not numbered as the model numbers them, but counted by their first calls; else "".

    So it is in what an earlier manyheads wrote of a model some of whose layers do not attend. It shows in the sites
    themselves: the layers of a stack are 0, 1, 2 ... though a path has a larger number. "" says no more than that: a
    number that was taken is another one (`layer_number`).
    """
    examples: list[str] = []
    for stack in dict.fromkeys(site.stack for site in sites):
        own = [site for site in sites if site.stack == stack]
        paths = [site.module.partition("#")[0].split(".") for site in own]
        # What all paths begin with tells no layer from another (a part of a larger model), unless all are one module.
        begins = (place for place, names in enumerate(zip(*paths, strict=False)) if len({*names}) > 1)
        shared = next(begins, 0)
        later = [
            site
            for site, path in zip(own, paths, strict=True)
            if next((int(name) for name in path[max(1, shared) :] if name.isdecimal()), 0) > site.layer
        ]
        if later and sorted(site.layer for site in own) == list(range(len(own))):
            examples.append(f"{later[0]} is {later[0].module}")
    counted = "layers are counted in the order of their first calls, not by the model's own numbers"
    return f"{counted}: {', '.join(examples)}" if examples else ""


@dataclass(frozen=True)
class ModelSpec:
    """A model's sites, in the order in which a text meets them, and its dimensions.

    `architecture` is the class's name. `embed_dim` is the width m of the residual stream. None where a model has no
    such thing: `vocab_size` (a bare module, an image model), `max_positions` (it takes any length). `dtype` is the
    weights' ("float32", "bfloat16"). Raises ShapeError if two sites are the same layer.
    """

    name: str
    architecture: str
    sites: tuple[Site, ...]
    embed_dim: int
    vocab_size: int | None
    max_positions: int | None
    num_parameters: int
    dtype: str

    def __post_init__(self) -> None:
        first: dict[tuple[str, int], Site] = {}
        for site in self.sites:
            earlier = first.setdefault((site.stack, site.layer), site)
            if earlier is not site:
                raise ShapeError(
                    f"{self.name} has two sites {site}, modules {earlier.module!r} and {site.module!r}: "
                    f"a head's name must mean one head. Give them different stacks or layers."
                )

    @property
    def stacks(self) -> dict[str, Layers[Site]]:
        """Stack -> its sites by layer. An only stack is called ""; several have names ("encoder"), or all but one."""
        names = dict.fromkeys(site.stack for site in self.sites)
        return {name: Layers([site for site in self.sites if site.stack == name], lambda site: site) for name in names}

    @property
    def layers(self) -> Layers[Site]:
        """The sites of the only stack. Raises HeadError if there are several: then ask `stacks[name]`."""
        stacks = self.stacks
        if len(stacks) != 1:
            names = ", ".join(map(repr, stacks)) or "none"
            raise HeadError(f"{self.name} has several stacks of layers or none ({names}): use stacks[name].")
        return next(iter(stacks.values()))

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        """Stack -> number of heads of each layer; 0 for a layer without attention. For `parse_heads`."""
        return {
            name: tuple(counts.get(layer, 0) for layer in range(max(counts) + 1))
            for name, sites in self.stacks.items()
            for counts in [{site.layer: site.num_heads for site in sites}]
        }

    @property
    def heads(self) -> HeadSet:
        """Every head of the model."""
        return HeadSet.all(self.shape)

    def select(self, what: HeadsLike) -> HeadSet:
        """The heads that `what` names, as in "L3H7, L5" (the grammar is in `manyheads.heads`). Raises HeadError."""
        return parse_heads(what, self.shape)

    def site_of(self, head: Head) -> Site:
        """The site where `head` is. Raises HeadError if the model has no such head."""
        (head,) = self.select(head)
        return next(site for site in self.sites if (site.stack, site.layer) == (head.stack, head.layer))

    def to_dict(self) -> Json:
        """Plain data for JSON, to be read back by `from_dict`."""
        return {**asdict(self), "sites": [asdict(site) for site in self.sites]}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, data: object) -> ModelSpec:
        """Read what `to_dict` wrote. Raises RecordingError naming the field that is missing, unknown or wrong."""
        plain = _fields_of(cls, data, "a model's description")
        plain["sites"] = tuple(Site.from_dict(site, f"site {index}") for index, site in enumerate(plain["sites"]))
        return cls(**plain)

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """Read what `to_json` wrote. Raises RecordingError."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
            raise RecordingError(f"a model's description is not JSON ({error}): the file is damaged.") from error
        return cls.from_dict(data)


_TYPES: dict[str, tuple[type, ...]] = {  # by annotation; annotations are texts in this module
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "tuple[Site, ...]": (list, tuple),
}


def _fields_of(cls: type[Site] | type[ModelSpec], data: object, label: str, most: int | None = None) -> dict[str, Any]:
    """`data` if it holds exactly the fields of `cls`, each of its type, and whole numbers from 0 to `most`."""
    if not isinstance(data, Mapping):
        raise RecordingError(f"{label} is a {type(data).__name__}, not a mapping: the file is damaged.")
    values = dict(cast("Mapping[str, Any]", data))
    annotations = {field.name: cast(str, field.type) for field in fields(cls)}
    if missing := sorted(annotations.keys() - values.keys()):
        raise RecordingError(f"{label} lacks {', '.join(missing)}: the file is damaged.")
    if unknown := sorted(values.keys() - annotations.keys()):
        raise RecordingError(f"{label} says {', '.join(unknown)}, unknown here: a newer manyheads wrote it. Upgrade.")
    for name, annotation in annotations.items():
        # By type, not isinstance: True is an int, and no number of heads.
        if type(values[name]) not in _TYPES[annotation]:
            raise RecordingError(f"{label}: {name}={values[name]!r} should be {annotation}: the file is damaged.")
        if most is not None and annotation == "int" and not 0 <= values[name] <= most:
            raise RecordingError(f"{label}: {name}={values[name]} is not from 0 to {most}: the file is damaged.")
    return values
