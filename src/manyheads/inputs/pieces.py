"""Texts, tokenised: pieces that a model can read, and windows of what is longer than its positions.

A text longer than the model's positions is read in overlapping windows (default), cut (`"truncate"`), or refused
(`"whole"`). Every window is a text of its own from then on, with the tokenizer's special tokens around it; a text's
gold (what people have annotated) counts where the text is whole. Texts are checked before a tokenizer sees them: its
own error for what is not a string of words is a bare TypeError or an empty batch, which names no text.
"""

# device: words and tokens are the host's

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.base import one_of
from manyheads.errors import ModelError, TextError
from manyheads.models import LoadedModel
from manyheads.texts import Document, Gold, text_seed

WINDOW_OVERLAP = 8  # neighbouring windows share an eighth of their tokens, so that few links are cut
CORPUS_TOKENS = 50_000  # from this many tokens on, rarity is counted in the corpus itself
Long = Literal["windows", "truncate", "whole"]  # how a text over the limit is read
LONG_TEXTS: tuple[Long, ...] = get_args(Long)
ALWAYS = {"return_special_tokens_mask": True, "verbose": False}  # options of every tokenizer's call
Encoding = Mapping[str, Any]  # what a tokenizer makes of a text: lists by name
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character beyond the first 65,536: no tokenizer takes one


@dataclass(frozen=True)
class Piece:
    """One tokenised text, or one window of a long one, which begins at character `begin` of its text.

    `source` is the text's index. `seed` of a window is the whole text's: windows of one text fall in the same half of
    a corpus, and are drawn together. `target`: what a decoder beside the encoder is to write, where that was given.
    `is_cut`: whether it is a window, or all that was left of a longer text.
    """

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    special: tuple[bool, ...]
    offsets: tuple[tuple[int, int], ...]
    source: int
    begin: int = 0
    gold: Gold | None = None
    seed: int = 0
    target: Piece | None = None
    is_cut: bool = False


def documents_of(texts: object) -> list[Document]:
    """Texts as documents, each checked: strings, Documents, and pairs (source, target) in a list. Errors: TextError."""

    def kind(value: object) -> str:
        name = type(value).__name__
        return f"an {name}" if name[0] in "aeiou" else f"a {name}"

    if not isinstance(texts, str | Document | Sequence) or isinstance(texts, bytes | bytearray):
        raise TextError(f"texts is {kind(texts)}: give a text, or a list of texts.")
    items: list[object] = [texts] if isinstance(texts, str | Document) else [*texts]
    if not items:
        raise TextError("no text was given: give at least one.")
    documents: list[Document] = []
    for index, item in enumerate(items):
        name = f"text {index}" if len(items) > 1 else "the text"
        if isinstance(item, Document):
            text, target = item.text, item.target
        else:
            text, target = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if not isinstance(text, str):
            raise TextError(f"text {index} is {kind(text)}: give strings.")
        if fault := fault_in(text):
            raise TextError(f"{name} {fault}")
        if isinstance(item, tuple) and not isinstance(target, str):
            raise TextError(f"the target of {name} is {kind(target)}: give strings.")
        if target is not None and (fault := fault_in(target)):
            raise TextError(f"the target of {name} {fault}")
        documents.append(item if isinstance(item, Document) else Document(text, target=target))
    return documents


def fault_in(text: str) -> str:
    """What no tokenizer can read in a text, as words after its name; "" where there is nothing."""
    if not text.strip():
        return "is empty: give at least one word."
    if half := SURROGATE.search(text):
        return f"is not valid Unicode: it has a lone surrogate at character {half.start():,}. Leave that out."
    return ""


def require_loaded(lm: LoadedModel) -> None:
    """Errors: ModelError for what is not a loaded model."""
    if not hasattr(lm, "tokenizer"):
        own = " On a module's own inputs: mh.record_call(module, ...)." if isinstance(lm, nn.Module) else ""
        raise ModelError(
            f"{lm!r} is a {type(lm).__name__}, not a loaded model: load it first, as mh.load({lm!r})."
            if isinstance(lm, str)
            else f"a {type(lm).__name__} is not a loaded model: load it first, as mh.load(model, tokenizer=...).{own}"
        )


def require_reader(lm: LoadedModel, long: Long) -> None:
    """Errors: ModelError for what is not a loaded model, or has no tokenizer; TextError for a way to read there is
    not."""
    require_loaded(lm)
    one_of("long", long, LONG_TEXTS, TextError, "is not a way to read a long text")
    if lm.tokenizer is None:
        raise ModelError(
            f"{lm.name} has no tokenizer, so it cannot read text: load it with tokenizer=, or use record_call."
        )


def story(num_pieces: int, cut: int, num_texts: int, limit: int | None, long: Long) -> str:
    """How texts were cut, in words: `cut` of `num_texts` were longer than the model's positions."""
    if not cut:
        return ""
    subject = "the text" if num_texts == 1 else f"{cut} of {num_texts} texts"
    if long == "truncate":
        return f"{subject} cut to the model's {limit} positions"
    windows = num_pieces - (num_texts - cut)
    be, overlap = "is" if num_texts == 1 or cut == 1 else "are", f"overlapping by {_overlap(limit or 0)}"
    return f"{subject} {be} longer than the model's positions: read in {windows} windows of {limit}, {overlap}"


def _overlap(limit: int) -> int:
    return limit // WINDOW_OVERLAP


def encoded(
    tokenizer: Callable[..., Encoding] | None, texts: Sequence[str], side: str = "text"
) -> Iterator[Encoding | Exception]:
    """Ids, special tokens and offsets of each text, of any length; or the tokenizer's own error, in the text's place.

    `side`: the tokenizer's argument, "text" or "text_target": translators may have a vocabulary, or a mark, for each.

    A fast tokenizer reads many texts at once in a tenth of the time. Where it fails, texts are read one by one.
    """
    assert tokenizer is not None, "who reads texts has asked for a tokenizer"
    fast = bool(getattr(tokenizer, "is_fast", False))
    options = {**ALWAYS, "return_offsets_mapping": fast, "truncation": False}
    if fast and len(texts) > 1:
        with suppress(Exception):  # it comes again below if it is a text's fault
            yield from _one_by_one(tokenizer(**{side: list(texts)}, **options))
            return
    for text in texts:
        try:
            encoding = tokenizer(**{side: text}, **options)
        except Exception as error:
            yield error
        else:
            yield encoding


def _one_by_one(batch: Encoding) -> list[Encoding]:
    """A fast tokenizer's encoding of several texts, or windows, as one encoding each."""
    keys = ("input_ids", "special_tokens_mask", "offset_mapping")
    return [dict(zip(keys, values, strict=True)) for values in zip(*(batch[key] for key in keys), strict=True)]


def tokenised(
    lm: LoadedModel, documents: Mapping[int, Document], long: Long, names: Sequence[str] | None = None
) -> Iterator[list[Piece] | Exception]:
    """The pieces of each text, one or its windows; or why it cannot be read, in its place.

    `documents`: by number, which their pieces have as `source`; gold is laid on a text that is read whole. `names`:
    what errors call them. The reason is a TextError, or what the tokenizer raised.
    """
    encodings, limit = encoded(lm.tokenizer, [document.text for document in documents.values()]), lm.max_positions
    for (source, document), encoding in zip(documents.items(), encodings, strict=True):
        if isinstance(encoding, Exception):
            yield encoding
            continue
        try:
            if limit is None or len(encoding["input_ids"]) <= limit:
                pieces = [piece_of(lm, document.text, encoding, source, document.gold)]
            else:
                pieces = _windows(lm, document, encoding, source, long, names[source] if names else "the text")
        except Exception as error:
            yield error
        else:
            yield pieces


def _windows(
    lm: LoadedModel, document: Document, encoding: Encoding, source: int, long: Long, name: str
) -> list[Piece]:
    """What a text over the model's positions is read as. `name` is what errors call it. Errors: TextError."""
    text, limit, num_tokens = document.text, lm.max_positions or 0, len(encoding["input_ids"])
    tokenizer = lm.required_tokenizer
    if document.target is not None and long == "windows":
        raise TextError(
            f"{name} has {num_tokens} tokens, but {lm.name} has {limit} positions, and a window of it has no target of "
            f"its own: give a shorter text, or cut it (truncate)."
        )
    if long == "whole":
        raise TextError(
            f"{name} has {num_tokens} tokens, but {lm.name} has {limit} positions: read it in "
            f"windows (the default) or cut it (truncate)."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise TextError(
            f"{name} is longer than the model's {limit} positions, and its slow tokenizer cannot cut windows: "
            f"install the fast one, or give shorter texts."
        )
    cut = {"truncation": True, "max_length": limit, "stride": _overlap(limit), "return_overflowing_tokens": True}
    windows = _one_by_one(tokenizer(text, return_offsets_mapping=True, **cut, **ALWAYS))
    pieces, seed = [], text_seed(text)
    for window in windows[:1] if long == "truncate" else windows:
        # The window's stretch of the text: from its first word to its last, special tokens (which have no place) aside.
        offsets = zip(window["offset_mapping"], window["special_tokens_mask"], strict=True)
        spans = [(int(begin), int(end)) for (begin, end), added in offsets if not added and end > begin]
        stretch = (spans[0][0], max(end for _, end in spans)) if spans else (0, len(text))
        pieces.append(piece_of(lm, text, window, source, stretch=stretch, seed=seed))
    return pieces


def piece_of(
    lm: LoadedModel,
    text: str,
    encoding: Encoding,
    source: int,
    gold: Gold | None = None,
    *,
    stretch: tuple[int, int] | None = None,
    seed: int = 0,
) -> Piece:
    """A whole text as a piece; or a `stretch` of it (from, to), with offsets into that. Errors: TextError for none."""
    begin, end = stretch or (0, len(text))
    ids = tuple(map(int, encoding["input_ids"]))
    if not ids:
        raise TextError(f"the tokenizer makes no token of {text[:40]!r}: give a text it knows.")
    special = tuple(map(bool, encoding["special_tokens_mask"]))
    offsets = tuple((int(a), int(b)) for a, b in encoding.get("offset_mapping") or ((begin, begin),) * len(ids))
    offsets = tuple((max(0, a - begin), max(0, b - begin)) for a, b in offsets) if begin else offsets
    pieces = tuple(map(str, lm.required_tokenizer.convert_ids_to_tokens(list(ids))))
    is_cut = stretch is not None
    return Piece(text[begin:end], ids, pieces, special, offsets, source, begin, gold, seed, is_cut=is_cut)


def rarity_of(counts: Int[Tensor, "vocabulary"], whose: str) -> tuple[Float[Tensor, "vocabulary"], str]:
    """How rare each token is, 0 to 1: by its count where there are enough tokens, else by its id, with the reason.

    Subword vocabularies are built from the frequent to the rare, so an id is a rank, roughly.
    """
    num_tokens, size = int(counts.sum()), len(counts)
    if num_tokens < CORPUS_TOKENS:
        return torch.arange(size) / size, f"rank in the vocabulary ({num_tokens:,} tokens are too few to count)"
    values, because = counts.unique(sorted=True), f"counts over {whose} {num_tokens:,} tokens"
    return 1 - torch.searchsorted(values, counts).float() / max(len(values) - 1, 1), because
