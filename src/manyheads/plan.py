"""Plans: interventions on heads as plain data. Frozen, JSON in and out, no model needed to write one.

    Plan([Ablate("L3H7", kind="mean"), Scale("L0H1", 0.5), Average("L2"), Copy("L1", source="L1H0")])

A step names its heads in the grammar of `manyheads.heads`, which is checked here; whether a model has them is known
when the plan is applied (`manyheads.edits`). Steps act one after another, each on what the last one left. They act on
a head's output *before* the output projection mixes the heads: after it there is no head any more. Two may do without
heads: `SkipPositions`, since a model's positions are all heads' own, and an `Edit` of the stream or of a feed-forward.
"""

# pyright: reportUnnecessaryIsInstance=false
# Arguments are checked at run time, whatever their annotations say.
from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

from manyheads.base import Json, one_of
from manyheads.errors import HeadError, PlanError
from manyheads.heads import HeadsLike, written
from manyheads.own_functions import argument_names, imported, name_of, reference_of

__all__ = ["Ablate", "Average", "Copy", "Edit", "Plan", "Scale", "SkipOutputProjection", "SkipPositions", "Step"]

AblationKind = Literal["zero", "mean", "resample", "first", "streaming"]
KINDS: tuple[AblationKind, ...] = get_args(AblationKind)
STREAMED = {"sink": 128, "recent": 256}  # keys that a streaming head sees: DuoAttention's published files have these
MOST_KEYS = 10**9
FORMAT, COUNTED = 2, 1  # of the JSON; in format 1 a layer was counted among those that attend
SEEDS = 2**32
LARGEST = 1e30  # of a factor: what it multiplies should still fit in a float32


@dataclass(frozen=True)
class Ablate:
    """Replace the outputs of heads. `kind` chooses the replacement, and so what is taken away:

    - "zero": zeros. Also takes away a head's average output, which later layers may count on.
    - "mean": the head's mean output over a corpus; with `per_position`, over its tokens at the same position.
    - "resample": the head's output on another text at the same position: `text`, or one drawn from a corpus by `seed`.
    - "first": the output that it would have with all of its weight on the first token that it sees.
    - "streaming": the output that it would have if it saw its text's first `sink` keys (128) and each row's last
      `recent` ones (256, the row's own included) alone, of those that it saw: exactly what a head gives whose cache
      keeps these keys and drops the others (Xiao et al. 2024). For causal self-attention.

    "mean", and "resample" without a `text`, need a corpus when the plan is applied. `counted`: as of a `Plan`.
    """

    heads: HeadsLike
    kind: AblationKind = "zero"
    per_position: bool = False
    text: str | None = None
    seed: int = 0
    sink: int | None = None
    recent: int | None = None
    counted: bool = field(default=False, init=False, repr=False, compare=False)  # a plan takes it over
    name: ClassVar[str] = "ablate"

    def __post_init__(self) -> None:
        _set_heads(self)
        one_of("kind", self.kind, KINDS, PlanError, "is not a way to ablate")
        if not isinstance(self.per_position, bool):
            raise PlanError(
                f"per_position={self.per_position!r} is a {type(self.per_position).__name__}: True or False."
            )
        if self.per_position and self.kind != "mean":
            raise PlanError(f"per_position= is for kind='mean', not for {self.kind!r}: leave it out.")
        wordless = self.text is not None and (not isinstance(self.text, str) or not self.text.strip())
        if wordless or (self.text is not None and self.kind != "resample"):
            raise PlanError(f"text={self.text!r} with kind={self.kind!r}: give a text of words, for kind='resample'.")
        _check_type(self, "seed", int)
        if not 0 <= self.seed < SEEDS:
            raise PlanError(f"seed={self.seed} is out of range: give a whole number from 0 to 2**32 - 1.")
        for (name, default), least in zip(STREAMED.items(), (0, 1), strict=True):
            value = getattr(self, name)
            if self.kind != "streaming":
                if value is not None:
                    raise PlanError(f"{name}={value!r} is for kind='streaming', not for {self.kind!r}: leave it out.")
                continue
            if value is None:  # filled in, so that equal steps are equal values, and a file says what was meant
                object.__setattr__(self, name, default)
                continue
            _check_type(self, name, int)
            if not least <= value <= MOST_KEYS:
                raise PlanError(
                    f"{name}={value} is not a number of keys to keep: give a whole number, {least} or more."
                )

    @property
    def needs_corpus(self) -> bool:
        return self.kind == "mean" or (self.kind == "resample" and self.text is None)


@dataclass(frozen=True)
class Scale:
    """Multiply the outputs of heads by `factor`: 0 takes them away, 1 changes nothing, 2 doubles them."""

    heads: HeadsLike
    factor: int | float
    name: ClassVar[str] = "scale"
    needs_corpus: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _set_heads(self)
        _check_type(self, "factor", (int, float))
        if not -LARGEST <= self.factor <= LARGEST:  # NaN is neither
            raise PlanError(f"factor={str(self.factor)[:40]} is not a number to multiply by: give a finite one.")


@dataclass(frozen=True)
class Average:
    """All named heads of a layer use the mean of their weights, each with its own values; layer by layer."""

    heads: HeadsLike
    name: ClassVar[str] = "average"
    needs_corpus: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _set_heads(self)


@dataclass(frozen=True)
class Copy:
    """All named heads use the weights of `source`, each with its own values: the collapse experiment.

    `source` is one head in each layer where heads are named, as in `Copy("L1", source="L1H0")` or
    `Copy("L*", source="L*H0")`. `share`, 0 to 1, goes a part of the way: a head's weights are `1 - share` of its own
    and `share` of the source's.
    """

    heads: HeadsLike
    source: HeadsLike
    share: int | float = 1.0
    name: ClassVar[str] = "copy"
    needs_corpus: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _set_heads(self)
        _set_heads(self, "source")
        _check_type(self, "share", (int, float))
        if not 0 <= self.share <= 1:  # NaN is neither
            raise PlanError(
                f"share={str(self.share)[:40]} is not a share of the source's weights: give a number, 0 to 1."
            )


@dataclass(frozen=True)
class SkipOutputProjection:
    """The heads' outputs go into the residual stream side by side, unmixed, as if W^O were the identity.

    `layer` is a number, where a model has one stack, or a layer in the grammar: "L3", "L*", "encoder:L0". A bias of
    the output projection is left out too. Possible where number of heads times head width is the model's width.
    """

    layer: int | str
    name: ClassVar[str] = "skip_output_projection"
    needs_corpus: ClassVar[bool] = False

    def __post_init__(self) -> None:
        text = f"L{self.layer}" if type(self.layer) is int else self.layer
        if not isinstance(text, str) or any("H" in part.rpartition(":")[2] for part in text.split(",")):
            raise PlanError(f"layer={self.layer!r} is not a layer: write a number, or a layer as in 'L3', 'L*'.")
        object.__setattr__(self, "layer", text)
        _set_heads(self, "layer")

    @property
    def heads(self) -> str:
        return str(self.layer)


@dataclass(frozen=True)
class SkipPositions:
    """The model reads its text without knowing where its tokens stand: position embeddings give zeros, rotations
    (RoPE) turn nothing, biases by distance (T5) are 0.

    A causal mask, a window and a recurrence still tell one token from the next. A model whose positions come in any
    other way, or not at all, is refused by name when the plan is applied.
    """

    name: ClassVar[str] = "skip_positions"
    needs_corpus: ClassVar[bool] = False


Place = Literal["stream", "feed-forward"]
PLACES: tuple[Place, ...] = get_args(Place)
_PLACE = re.compile(rf"\s*(?P<layers>\S+)\s+(?P<place>{'|'.join(PLACES)})\s*")
OF_A_HEAD = ("output", "q", "k", "v", "weights", "positions", "head")
OF_A_PLACE = ("output",)


@dataclass(frozen=True)
class Edit:
    """Replace the outputs of heads by what a function of your own makes of them.

    `function` is called for each of the heads in every attention call. It gets what its arguments name, and returns
    the new output, `[b q f]`, of the same dtype and on the same device. (b texts, q rows, k keys)

    - `output` [b q f]: the head's output, as the steps before left it.
    - `q` [b q d], `k` [b k d], `v` [b k f]: what it attends with, positions applied; k and v are those of the key/value
      head that serves it.
    - `weights` [b q k]: its map, 0 where a row sees nothing. Made only for a function that names it.
    - `positions` [b q]: where each row stands in its text, from 0.
    - `head`: which head this is, a `Head`.

    Tensors are copies, with the model's padding and, while it generates, its cache: k then has more rows than q. Texts
    are read in batches, so the rows of one should not depend on others. An argument of another name needs a default.

    `heads` may also be "L3 stream", the residual stream as layer 3 reads it, or "L3 feed-forward", what that layer's
    feed-forward gives ("L2-5 stream", "encoder:L* feed-forward"), of a loaded model: `output` is then [b q m].

    A plan is written with the function's name, "my_edits:flip", and read back where that module was imported before.
    Cost: for `weights`, O(b q k) memory a head. Errors: PlanError, HeadError; PlanError when it is applied and the
    function fails, or returns anything else.
    """

    heads: HeadsLike
    function: Callable[..., object] = field(hash=False)
    name: ClassVar[str] = "edit"
    needs_corpus: ClassVar[bool] = False

    def __post_init__(self) -> None:
        parts = self.heads.split(",") if isinstance(self.heads, str) else []
        matches = [match for part in parts if (match := _PLACE.fullmatch(part)) is not None]
        if not matches:
            try:
                _set_heads(self)
            except HeadError as error:
                raise HeadError(
                    f"{error} An edit can also name a place in a layer: 'L3 stream', 'L3 feed-forward'."
                ) from None
        elif len(matches) < len(parts) or len({match["place"] for match in matches}) > 1:
            raise PlanError(f"heads={self.heads!r} are places of several kinds: give each kind a step of its own.")
        else:
            layers = [written(match["layers"]) for match in matches]
            if named := [layer for layer in layers if "H" in layer.rpartition(":")[2]]:
                raise PlanError(
                    f"{named[0]!r} is a head, and {matches[0]['place']!r} is of a layer: write 'L3 stream'."
                )
            object.__setattr__(self, "heads", ", ".join(f"{layer} {matches[0]['place']}" for layer in layers))
        if isinstance(self.function, str):
            raise PlanError(
                f"function={self.function!r} is a text: give the function itself (on the command line, --kind "
                f"module:function)."
            )
        _ = self.arguments  # a function that takes something else is refused here

    @property
    def place(self) -> Place | None:
        """Where it acts, of a layer; None for heads."""
        return cast(Place, str(self.heads).rpartition(" ")[2]) if str(self.heads).endswith(PLACES) else None

    @property
    def layers(self) -> str:
        """The layers of a place, in the grammar of heads."""
        return str(self.heads).replace(f" {self.place}", "")

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """What the function asks for."""
        known = OF_A_HEAD if self.place is None else OF_A_PLACE
        return argument_names(self.function, known, f"Edit({self.heads!r}, ...)", PlanError)


HeadStep: TypeAlias = Ablate | Scale | Average | Copy | SkipOutputProjection | Edit
Step: TypeAlias = HeadStep | SkipPositions
KINDS_OF_STEP: dict[str, type[Step]] = {
    kind.name: kind for kind in (Ablate, Scale, Average, Copy, SkipOutputProjection, SkipPositions, Edit)
}


@dataclass(frozen=True)
class Plan:
    """Steps in order, applied to a model by `mh.applied`. Equal plans are equal values; `to_json` reads back.

    `counted`: read from a file of an earlier manyheads, in which L1 is the second layer that attends, and not the
    model's own layer 1. A model in which that differs refuses it. So it is with the step of a `HeadSplit` that has no
    layer without attention, which may also come from such a file.
    """

    steps: tuple[Step, ...]
    counted: bool = field(default=False, repr=False)

    def __init__(self, steps: Step | Sequence[Step], *, counted: bool = False) -> None:
        listed = (steps,) if isinstance(steps, Step) else steps
        if isinstance(listed, str) or not isinstance(listed, Sequence):
            raise PlanError(f"a plan is a list of steps, not a {type(steps).__name__}: Plan([Ablate('L3H7')]).")
        if wrong := [step for step in listed if not isinstance(step, Step)]:
            raise PlanError(
                f"{wrong[0]!r} is not a step of a plan: use "
                f"{', '.join(kind.__name__ for kind in KINDS_OF_STEP.values())}."
            )
        # Taken over from a step: a copy of it has the default again.
        steps_counted = [isinstance(step, Ablate) and step.counted for step in listed]
        plain = [replace(step) if taken else step for step, taken in zip(listed, steps_counted, strict=True)]
        object.__setattr__(self, "steps", tuple(plain))
        object.__setattr__(self, "counted", counted or any(steps_counted))

    @property
    def needs_corpus(self) -> bool:
        """Whether some step needs texts to compute the replacement of a head's output."""
        return any(step.needs_corpus for step in self.steps)

    @property
    def on_heads(self) -> dict[int, HeadStep]:
        """The steps that name heads, by their place in the plan."""
        others = self.on_places
        return {
            place: step
            for place, step in enumerate(self.steps)
            if not isinstance(step, SkipPositions) and place not in others
        }

    @property
    def on_places(self) -> dict[int, Edit]:
        """The edits of the stream and of feed-forwards, by their place in the plan."""
        edits = {place: step for place, step in enumerate(self.steps) if isinstance(step, Edit)}
        return {place: step for place, step in edits.items() if step.place is not None}

    @property
    def without_positions(self) -> bool:
        return any(isinstance(step, SkipPositions) for step in self.steps)

    @property
    def of_whole_model(self) -> bool:
        """Whether some step acts outside of attention, so that the model must run whole under it."""
        return self.without_positions or bool(self.on_places)

    def to_dict(self) -> Json:
        """Plain data for JSON, without the fields that have their default; functions by name."""
        steps: list[dict[str, Any]] = []
        for step in self.steps:
            values = {item.name: (getattr(step, item.name), item.default) for item in fields(step)}
            changed = {name: value for name, (value, default) in values.items() if value != default}
            if isinstance(step, Edit):
                changed["function"] = reference_of(step.function)
            steps.append({"step": step.name, **changed})
        return {"format": COUNTED if self.counted else FORMAT, "steps": steps}

    def to_json(self) -> str:
        """What `from_json` reads. Errors: PlanError as `require_named`."""
        self.require_named()
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def require_named(self) -> None:
        """Errors: PlanError for a function that could not be read back: a lambda, or one inside another."""
        for step in self.steps:
            if not isinstance(step, Edit):
                continue
            reference = reference_of(step.function)
            try:
                known = imported(reference, describe(step), PlanError, run=False)
            except PlanError:
                known = None
            if known is not step.function:
                raise PlanError(
                    f"{describe(step)} cannot be written: {reference!r} is not where this function is found again. "
                    f"Define it by `def` in a module."
                )

    @classmethod
    def from_dict(cls, data: object) -> Plan:
        """Read what `to_dict` or a person wrote. Raises PlanError or HeadError, naming the step and its fault."""
        document: Mapping[str, object] = cast("Mapping[str, object]", data) if isinstance(data, Mapping) else {}
        if not isinstance(document.get("steps"), list):
            raise PlanError(f'a plan is {{"steps": [...]}}, not {_short(cast(object, data))}.')
        version = document.get("format", FORMAT)  # a person leaves it out
        if version not in (COUNTED, FORMAT) or isinstance(version, bool):  # True == 1
            raise PlanError(f"this plan has format {version!r}, and {FORMAT} is the newest known: upgrade.")
        entries = cast("list[object]", document["steps"])
        steps: list[Step] = []
        for number, entry in enumerate(entries, 1):
            try:
                steps.append(_read_step(entry))
            except (PlanError, HeadError) as error:
                raise type(error)(f"step {number} of {len(entries)}: {error}") from error
        return cls(steps, counted=version == COUNTED)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote. Raises PlanError or HeadError."""
        try:
            data = json.loads(text)
        except RecursionError as error:
            raise PlanError("a plan is a list of steps, and this is nested too deep to be one.") from error
        except (ValueError, TypeError) as error:  # ValueError: also a number of thousands of digits
            raise PlanError(f"a plan is JSON, and this is not: {error}.") from error
        return cls.from_dict(data)

    def __str__(self) -> str:
        return "; ".join(map(describe, self.steps)) or "nothing"


def copied_words(step: Copy) -> tuple[str, str]:
    """Whose map a `Copy` uses and for which heads, in plain words.

    >>> copied_words(Copy("L*", source="L*H0")), copied_words(Copy("L1", source="L1H0"))
    (("its layer's first head", 'every head'), ('L1H0', 'every head of L1'))
    """
    heads, source = str(step.heads), str(step.source)
    layers_only = all("H" not in part.rpartition(":")[2] for part in heads.split(","))
    index = source.removeprefix("L*H")
    if heads == "L*" and index != source and index.isdecimal():
        return f"its layer's {'first head' if index == '0' else f'head {index}'}", "every head"
    return source, f"every head of {heads}" if layers_only else heads


def describe(step: Step) -> str:
    """A step in a few words: "ablate L3H7 (mean)"."""
    match step:
        case Ablate():
            where = ", per position" * step.per_position
            if step.kind == "streaming":
                where = f": first {step.sink}, last {step.recent} keys"
            return f"ablate {step.heads} ({step.kind}{where})"
        case Scale():
            return f"scale {step.heads} by {step.factor:g}"
        case Average():
            return f"average {step.heads}"
        case Copy():
            source, heads = copied_words(step)
            if step.share == 1:
                return f"use the map of {source} for {heads}"
            return f"go {step.share:.12g} of the way to the map of {source} in {heads}"
        case SkipOutputProjection():
            return f"skip the output projection of {step.layer}"
        case Edit():
            return f"edit {step.heads} by {name_of(step.function)}"
        case SkipPositions():
            return "skip the positions"


def _read_step(entry: object) -> Step:
    """One entry of "steps", with exactly the fields of its kind. Raises PlanError or HeadError."""
    if not isinstance(entry, Mapping):
        raise PlanError(f'{_short(entry)} is not a step: write {{"step": "ablate", "heads": "L3H7"}}.')
    values = dict(cast("Mapping[str, Any]", entry))
    if "step" not in values:
        kinds = ", ".join(KINDS_OF_STEP)
        raise PlanError(f'"step" is missing in {_short(cast(object, entry))}: say what it does, one of {kinds}.')
    name = values.pop("step")
    if not isinstance(name, str) or name not in KINDS_OF_STEP:
        raise PlanError(f"step={_short(name)} is not known: use one of {', '.join(KINDS_OF_STEP)}.")
    kind = KINDS_OF_STEP[name]
    known = [item.name for item in fields(kind) if item.init]
    # A misspelt field is refused before a missing one: it is usually the missing one.
    if unknown := sorted(map(str, set(values) - set(known))):
        raise PlanError(f"{', '.join(unknown)} means nothing to step {name!r}, which takes {', '.join(known)}.")
    if missing := [item.name for item in fields(kind) if item.default is MISSING and item.name not in values]:
        raise PlanError(f"step {name!r} is not complete: it takes {', '.join(known)}, and lacks {', '.join(missing)}.")
    if kind is Edit:
        values["function"] = imported(str(values["function"]), f"step {name!r}", PlanError, run=False)
    return kind(**values)


def _short(data: object) -> str:
    """The beginning of some data, however deep it goes."""
    try:
        text = repr(data)
    except RecursionError:
        text = f"a {type(data).__name__}"
    return text if len(text) <= 60 else f"{text[:60]} ..."


def _set_heads(step: HeadStep, field: str = "heads") -> None:
    """Write heads as one text of the grammar into a frozen step, so that plans compare, hash and print."""
    heads = getattr(step, field)
    try:
        text = written(heads)
    except RecursionError:
        raise HeadError(f"{field} is a {type(heads).__name__} with lists inside lists: give a list of texts.") from None
    if not text:
        raise PlanError(f"{field}={heads!r} names no heads: a step that touches none changes nothing. Leave it out.")
    object.__setattr__(step, field, text)


def _check_type(step: Step, field: str, kinds: type | tuple[type, ...]) -> None:
    value = getattr(step, field)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise PlanError(f"{field}={value!r} of {type(step).__name__} is a {type(value).__name__}: give a number.")
