"""How a recording lies in its file: what is packed, and what must fit what. docs/format.md says all of it.

Packing leaves out padding: of an axis of positions, the rows that are tokens are kept, text after text, the position
first, so that a layer's tensor is one run of bytes and a text is one run within it. Something is packed only where
nothing is lost: a layer whose mask never looks past a text's end, a column that is nothing but filling there. The rest
(mostly cross-attention, whose queries and keys are not the same tokens) is stored whole, with the axis of texts; how
many axes a stored tensor has says which it is.

Writer and reader share the checks, so that nothing is saved that could not be opened. A header is anybody's JSON: a
value that is missing, of another kind or out of range is a `Misfit`, before anything is made of it.
"""

# device: a file is opened on the host

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from manyheads.nn import Mask
from manyheads.recording.file.safetensors_io import Entry, Part, TensorFile
from manyheads.recording.media import ImageSpan
from manyheads.recording.tokens import Sinks, Stretch, Tokens
from manyheads.spec import Site

FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
INTEGERS = {torch.int64, torch.int32}
Parts: TypeAlias = Mapping[str, Part] | Mapping[str, Entry]  # dtypes and shapes, before making or reading anything

MOST_POSITIONS = 100_000_000  # padding included: no machine could have held q of as many, so no honest file says so
MOST_PADDED = 10_000_000  # positions of which nearly all may be padding: what is said of so many tokens takes 0.3 GB
MOST_PADDING = 64  # ... of more positions, so many for each token: it goes for q, k and lse too, in whoever's memory
POSITIONED = ("q", "k", "v", "lse")  # a layer's tensors that have positions: [b heads positions ...]
TOKEN_COLUMNS = ("ids", "special", "offsets", "rarity")  # what is said of each token: [b positions ...]
TOKEN_TEXTS = ("pieces", "texts")
TOKEN_LISTS = (*TOKEN_TEXTS, "stretches", "images", "answers")  # what is said of each text, or of none
FILL: Mapping[str, float] = {"lse": -torch.inf, "ids": -1.0}


class Misfit(Exception):
    """What does not fit, in words. Whoever knows whether it is being saved or opened says the rest."""


def layer_name(stack: str, index: int) -> str:
    """What the names of a layer's tensors begin with: "layer.3", or "cross.layer.3" in a stack that has a name."""
    return f"{stack}.layer.{index}" if stack else f"layer.{index}"


def fill_of(field: str) -> float:
    """What stands in padding: -1 for ids, -inf for lse, else 0 (False)."""
    return FILL.get(field, 0.0)


def real_positions(lengths: Int[Tensor, "b"]) -> Bool[Tensor, "b n"]:
    """True where a token is, False on padding."""
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest)[None] < lengths[:, None]


def pack_rows(padded: Shaped[Tensor, "..."], real: Bool[Tensor, "b n"], axis: int) -> Shaped[Tensor, "..."]:
    """[b, ..., n, ...] with the positions on `axis` to [sum of lengths, ...], each text's rows after another's."""
    rows = padded.movedim(axis, 1)
    texts = [rows[text, :length] for text, length in enumerate(real.sum(-1).tolist())]
    return torch.cat(texts) if texts else rows.flatten(0, 1)


def unpack_rows(
    packed: Shaped[Tensor, "..."], real: Bool[Tensor, "b n"], axis: int, fill: float
) -> Shaped[Tensor, "..."]:
    """Undo `pack_rows`; `fill` goes into the padding."""
    shape = [real.shape[0], *packed.shape[1:]]
    shape.insert(axis, real.shape[1])
    out = packed.new_full(shape, fill)
    lengths = real.sum(-1).tolist()
    # One text at a time: indexing by `real` would make a second copy of all positions.
    for text, rows in enumerate(packed.split(lengths) if lengths else ()):
        out[text : text + 1].movedim(axis, 1)[0, : len(rows)] = rows
    return out


def pack_cells(padded: Bool[Tensor, "b h n n"], real: Bool[Tensor, "b n"]) -> Bool[Tensor, "cells"]:
    """A dense mask without padding: each text's [h, length, length] after another's, as one run."""
    return padded[_square(real).expand_as(padded)]


def unpack_cells(packed: Bool[Tensor, "cells"], real: Bool[Tensor, "b n"]) -> Bool[Tensor, "b h n n"]:
    """Undo `pack_cells`; the padding is hidden."""
    square = _square(real)
    # Nothing in the file says whether the mask was one for all heads: its length does. `max`: all texts may be empty.
    num_heads = len(packed) // max(1, int(square.sum()))
    out = torch.zeros(square.shape[0], num_heads, *square.shape[2:], dtype=torch.bool)
    out[square.expand_as(out)] = packed
    return out


def _square(real: Bool[Tensor, "b n"]) -> Bool[Tensor, "b one n n"]:
    return (real[:, :, None] & real[:, None, :])[:, None]


def pack_where_lossless(padded: Tensor, real: Bool[Tensor, "b n"], axis: int, fill: float) -> Tensor:
    """Packed if its padding is nothing but `fill`, else as it is."""
    if padded.shape[0] != real.shape[0] or padded.shape[axis] != real.shape[1]:
        return padded
    # Unpacked again and compared: what a mask or a column has in its padding may mean something to whoever reads it.
    packed = pack_rows(padded, real, axis)
    return packed if torch.equal(unpack_rows(packed, real, axis, fill), padded) else padded


def is_packable(mask: Mask, lengths: Int[Tensor, "b"], num_queries: int) -> bool:
    """Whether queries and keys are the same tokens and no row, of a text or of padding, sees any padding."""
    real = real_positions(lengths)
    if not (num_queries == mask.num_queries == mask.num_keys == real.shape[1]):
        return False
    if mask.start.shape[0] not in (1, len(lengths)):
        return False
    sees = mask.stop > mask.start
    return not bool((sees & (~real | (mask.stop > lengths[:, None]))).any())


def check_lengths(lengths: Tensor, subject: str) -> None:
    """That these are lengths of texts, and how much padding they ask for. Raises Misfit."""
    if lengths.ndim != 1 or lengths.dtype not in (torch.int64, torch.int32):
        raise Misfit(f"{subject} has shape {tuple(lengths.shape)} of {lengths.dtype}, not one whole number a text")
    if len(lengths) and int(lengths.min()) < 0:
        raise Misfit(f"{subject} holds {int(lengths.min())}, but a text has no fewer than 0 tokens")
    # Before anything of this size is made: lengths are a few bytes in a file, and may ask for any amount of memory.
    positions = len(lengths) * int(lengths.max()) if len(lengths) else 0
    if positions > MOST_POSITIONS:
        raise Misfit(
            f"{subject}: {len(lengths)} texts, padded to {int(lengths.max())} tokens, are over {MOST_POSITIONS} "
            f"positions"
        )
    if positions > MOST_PADDED and positions > MOST_PADDING * int(lengths.sum()):
        raise Misfit(
            f"{subject}: {len(lengths)} texts of {int(lengths.sum())} tokens, padded to {int(lengths.max())} each, are "
            f"nearly nothing but padding. Record texts of such unlike lengths apart"
        )


def check_tokens(tokens: Tokens, subject: str) -> None:
    """That everything said of tokens is said for each. Raises Misfit."""
    check_lengths(tokens.lengths, f"{subject}.lengths")
    shape = tuple(real_positions(tokens.lengths).shape)
    shapes = {"ids": shape, "special": shape, "offsets": (*shape, 2), "rarity": shape}
    for field, want in shapes.items():
        value = getattr(tokens, field)
        if value is not None and tuple(value.shape) != want:
            raise Misfit(f"{subject}.{field} has shape {tuple(value.shape)}, not {want}")
    for field in TOKEN_LISTS:
        if len(getattr(tokens, field)) not in (0, shape[0]):
            raise Misfit(f"{subject}.{field} is for {len(getattr(tokens, field))} texts, but there are {shape[0]}")
    for images, answer, length in zip(tokens.images, tokens.answers, tokens.lengths.tolist(), strict=False):
        sizes = [size for image in images for size in (image.rows, image.columns, *image.size)]
        if min(sizes, default=1) < 1 or not 0 <= answer <= length or len(tokens.answers) != len(tokens.images):
            raise Misfit(f"{subject}.images has sizes or an answer that are none")
        if any(image.begin < 0 or image.span.stop > length for image in images):
            raise Misfit(f"{subject}.images reaches beyond its text of {length} tokens")
    for text, (pieces, length) in enumerate(zip(tokens.pieces, tokens.lengths.tolist(), strict=False)):
        if len(pieces) < length:
            raise Misfit(f"{subject}.pieces has {len(pieces)} for text {text}, which has {length} tokens")


def check_mask(mask: Mask, subject: str) -> None:
    """That runs lie among the keys. Raises Misfit."""
    if not bool(((mask.start >= 0) & (mask.start <= mask.stop) & (mask.stop <= mask.num_keys)).all()):
        raise Misfit(f"{subject} has runs that are not 0 <= start <= stop <= {mask.num_keys}")


def check_layer(parts: Parts, name: str, site: Site, lengths: Int[Tensor, "b"], mask: str, bias: str | None) -> None:
    """That a layer's tensors are there and fit its site, its texts and each other: by shape and type, nothing is read.

    `mask` and `bias` are what the names of its mask's tensors begin with, and of its bias. Raises Misfit.
    """
    texts, longest = real_positions(lengths).shape
    # `long` first: the square of an int32 length overflows from 46,341 tokens on, and would be another number.
    heads, groups, rows, cells = site.num_heads, site.num_kv_heads, int(lengths.sum()), int((lengths.long() ** 2).sum())
    q, k = (parts[f"{name}.{field}"].shape if f"{name}.{field}" in parts else () for field in ("q", "k"))
    if len(q) == 4 and len(k) == 4:  # whole
        num_queries, num_keys = q[2], k[2]
        queried, keyed = (texts, heads, num_queries), (texts, groups, num_keys)
    else:  # packed: no axis of texts
        num_queries = num_keys = longest
        queried, keyed = (rows, heads), (rows, groups)
    shapes = {"q": (*queried, site.qk_dim), "k": (*keyed, site.qk_dim), "v": (*keyed, site.v_dim), "lse": queried}
    runs: set[tuple[int, ...]] = {(1, num_queries), (texts, num_queries)}
    dense: set[tuple[int, ...]] = {(t, h, num_queries, num_keys) for t in (1, texts) for h in (1, heads)}
    for field, shape in shapes.items():
        check_tensor(parts, f"{name}.{field}", {shape}, FLOATS, needed=field != "v")
    check_tensor(parts, f"{name}.sinks", {(heads,)}, FLOATS, needed=False)
    if bias is not None:
        check_tensor(parts, bias, dense, FLOATS)
    if num_queries == longest:
        runs.add((rows,))
    if num_queries == num_keys == longest:
        dense |= {(cells,), (cells * heads,)}
    for field in ("start", "stop"):
        check_tensor(parts, f"{mask}.{field}", runs, INTEGERS)
    check_tensor(parts, f"{mask}.dense", dense, {torch.bool}, needed=False)


def num_keys_of(parts: Parts, name: str, lengths: Int[Tensor, "b"]) -> int:
    """How many keys a layer's map is wide: of a packed layer, as many as the longest text has tokens."""
    shape = parts[f"{name}.k"].shape
    return shape[2] if len(shape) == 4 else real_positions(lengths).shape[1]


def check_tensor(
    parts: Parts, name: str, shapes: set[tuple[int, ...]], dtypes: set[torch.dtype], needed: bool = True
) -> None:
    if name not in parts:
        if needed:
            raise Misfit(f"{name} is missing")
        return
    shape, dtype = tuple(parts[name].shape), parts[name].dtype
    if shape not in shapes:
        raise Misfit(f"{name} has shape {shape}, not {' or '.join(map(str, sorted(shapes)))}")
    if dtype not in dtypes:
        raise Misfit(f"{name} holds {dtype}, not {' or '.join(sorted(map(str, dtypes)))}")


# ----------------------------------------------------------------------------------------------------------- the header


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


def each_of(values: list[Any], kind: type, subject: str) -> list[Any]:
    """The values, if each is of this kind; `subject` names them in the error."""
    if not all(type(value) is kind for value in values):
        raise Misfit(f"its {subject} are not all {kind.__name__}")
    return values


def read_site(about: dict[str, Any]) -> Site:
    """The site that a layer's header describes. Raises Misfit, ShapeError."""
    for field in fields(Site):
        # Before a Site is built: its own checks list divisors of
        # these numbers, which takes as long as a header wants it to.
        if field.type == "int":
            number_in(about, field.name, MOST_HEADS)
    return Site(**{field.name: take(about, field.name, KINDS[field.type]) for field in fields(Site)})


def _read_image(about: object) -> ImageSpan:
    begin, rows, columns = (take(about, name, int) for name in ("begin", "rows", "columns"))
    size = each_of(take(about, "size", list), int, "size")
    if len(size) != 2:
        raise Misfit(f"an image's size is {size}, not a height and a width")
    return ImageSpan(begin, rows, columns, (size[0], size[1]))


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
    lists: dict[str, list[Any]] = {"pieces": [], "texts": []}  # each stored as JSON in a tensor of bytes
    for field in TOKEN_TEXTS:
        if (tensor := f"{name}.{field}") in file.entries:
            check_tensor(file.entries, tensor, {file.entries[tensor].shape}, {torch.uint8})
            stored = bytes(file.read(tensor).numpy().data)
            try:
                lists[field] = json.loads(stored.decode("utf-8", "surrogatepass"))
            except (ValueError, RecursionError):
                raise Misfit(f"{tensor} is not JSON") from None
            if not isinstance(lists[field], list):
                raise Misfit(f"{tensor} is not a list")
    pieces = tuple(tuple(each_of(text, str, "pieces")) for text in each_of(lists["pieces"], list, "pieces"))
    texts, because, sinks = (
        tuple(each_of(lists["texts"], str, "texts")),
        take(about, "rarity_because", str),
        take(about, "sinks", dict),
    )
    first, ids, names = take(sinks, "first", bool), take(sinks, "ids", list), take(sinks, "names", list)
    ids, names = tuple(each_of(ids, int, "ids")), tuple(each_of(names, str, "names"))
    sinks = Sinks(first, ids, names, take(sinks, "because", str))
    assert isinstance(about, dict), "what was taken of it before has shown that"
    # Missing where there are no windows of long texts, and in files that are older than they.
    pairs = take(about, "stretches", list) if "stretches" in about else []
    if not all(type(pair) is list and len(each_of(pair, int, "stretches")) in (2, 3) for pair in pairs):
        raise Misfit("its stretches are not all two or three numbers")
    stretches = tuple(Stretch(*pair) for pair in pairs)
    lists["images"] = take(about, "images", list) if "images" in about else []
    images = tuple(tuple(map(_read_image, each_of(pictures, dict, "images"))) for pictures in lists["images"])
    answers = tuple(each_of(take(about, "answers", list), int, "answers")) if images else ()
    tokens = Tokens(
        lengths, pieces=pieces, texts=texts, rarity_because=because, sinks=sinks, stretches=stretches,
        images=images, answers=answers, **columns,
    )  # fmt: skip
    check_tokens(tokens, name)
    return tokens
