"""What a recording's header says: each thing taken only if it is of the kind that it should be; its sites and tokens.

A header is anybody's JSON. What is missing, of another kind, or out of range is a `Misfit`, before anything is made of
it.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import torch

from manyheads.recording.layout import (
    FLOATS,
    INTEGERS,
    TOKEN_COLUMNS,
    TOKEN_TEXTS,
    Misfit,
    check_lengths,
    check_tensor,
    check_tokens,
    fill_of,
    real_positions,
    unpack_rows,
)
from manyheads.recording.tensorfile import TensorFile
from manyheads.recording.tokens import Sinks, Stretch, Tokens
from manyheads.spec import Site

__all__ = ["each_of", "number_in", "read_site", "read_tokens", "take"]

MOST_HEADS = 1 << 20  # and layers, and their widths: a Site lists the divisors of what does not divide
KINDS: dict[Any, type] = {"str": str, "int": int, "bool": bool}  # a Site's fields say their kinds as texts
DTYPES = {"ids": INTEGERS, "offsets": INTEGERS, "special": {torch.bool}, "rarity": FLOATS}


def take(about: object, key: str, *kinds: type) -> Any:
    """What a mapping from JSON holds under `key`, if it is of one of these kinds. (True is no int here.)"""
    if not isinstance(about, dict) or key not in about or type(about[key]) not in kinds:
        raise Misfit(f"its header's {key!r} is missing or no {' or '.join(kind.__name__ for kind in kinds)}")
    return about[key]


def number_in(about: object, key: str, count: int) -> int:
    """The same, a number from 0 to `count - 1`."""
    number = take(about, key, int)
    if not 0 <= number < count:
        raise Misfit(f"its header's {key!r} is {number}, not 0 to {count - 1}")
    return number


def each_of(values: list[Any], kind: type, what: str) -> list[Any]:
    """The values, if each is of this kind; `what` they are."""
    if not all(type(value) is kind for value in values):
        raise Misfit(f"its {what} are not all {kind.__name__}")
    return values


def read_site(about: dict[str, Any]) -> Site:
    """The site that a layer's header describes. Raises Misfit, ShapeError."""
    for field in fields(Site):
        if field.type == "int":
            number_in(about, field.name, MOST_HEADS)
    return Site(**{field.name: take(about, field.name, KINDS[field.type]) for field in fields(Site)})


def read_tokens(file: TensorFile, name: str, about: object) -> Tokens:
    """The tokens whose tensors are called `name` in the file. Raises Misfit, RecordingError."""
    lengths = file.read(f"{name}.lengths")
    check_lengths(lengths, f"{name}.lengths")
    real, columns = real_positions(lengths), {}
    for field in TOKEN_COLUMNS:
        if f"{name}.{field}" in file.entries:
            more = (2,) if field == "offsets" else ()
            shapes = {(int(lengths.sum()), *more), (*real.shape, *more)}
            check_tensor(file.entries, f"{name}.{field}", shapes, DTYPES[field])
            stored = file.read(f"{name}.{field}")
            packed = stored.ndim == 1 + len(more)
            columns[field] = unpack_rows(stored, real, 1, fill_of(field)) if packed else stored
    pieces, texts = (_read_texts(file, f"{name}.{field}") for field in TOKEN_TEXTS)
    tokens = Tokens(
        lengths,
        pieces=tuple(tuple(each_of(text, str, "pieces")) for text in each_of(pieces, list, "pieces")),
        texts=tuple(each_of(texts, str, "texts")),
        rarity_because=take(about, "rarity_because", str),
        sinks=_read_sinks(take(about, "sinks", dict)),
        stretches=_read_stretches(about),
        **columns,
    )
    check_tokens(tokens, name)
    return tokens


def _read_sinks(about: object) -> Sinks:
    return Sinks(
        take(about, "first", bool),
        tuple(each_of(take(about, "ids", list), int, "ids")),
        tuple(each_of(take(about, "names", list), str, "names")),
        take(about, "because", str),
    )


def _read_stretches(about: object) -> tuple[Stretch, ...]:
    """Where windows of long texts begin; missing where there are none, and in files that are older than they."""
    assert isinstance(about, dict), "what was taken of it before has shown that"
    pairs = take(about, "stretches", list) if "stretches" in about else []
    if not all(type(pair) is list and len(each_of(pair, int, "stretches")) in (2, 3) for pair in pairs):
        raise Misfit("its stretches are not all two or three numbers")
    return tuple(Stretch(*pair) for pair in pairs)


def _read_texts(file: TensorFile, name: str) -> list[Any]:
    """A list that is stored as JSON in a tensor of bytes; empty where there is none."""
    if name not in file.entries:
        return []
    check_tensor(file.entries, name, {file.entries[name].shape}, {torch.uint8})
    stored = bytes(file.read(name).numpy().data)
    try:
        found = json.loads(stored.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise Misfit(f"{name} is not JSON") from None
    if not isinstance(found, list):
        raise Misfit(f"{name} is not a list")
    return found
