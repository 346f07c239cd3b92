"""From texts to a model's inputs: tokens, windows for what is too long, batches for what is short.

A text longer than the model's positions is read in overlapping windows (default), cut (`"truncate"`), or refused
(`"whole"`). Every window is a text of its own from then on, with the tokenizer's special tokens around it; a text's
gold (what people have annotated) counts where the text is whole. Batches hold texts of like length, so that little is
padded; a long text goes alone. Texts are checked before a tokenizer sees them: its own error for what is no string of
words is a bare TypeError or an empty batch, which names no text.

Of an encoder-decoder a text may be a pair, (source, target): the decoder then reads the target, as in training, and not
the source once more.

`CallTexts` holds which texts each layer of a call reads, as tokens where they are known, and where each begins among
the positions: of a batch of ours, of a bare call, or of what a model has generated.
"""

# device: texts are the host's, until `model_inputs` sends them

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.attention import Mask
from manyheads.base import one_of
from manyheads.errors import ModelError, RecordingError, TextError
from manyheads.models.loading.offloaded import device_of
from manyheads.models.taps.call import Aligner, AttentionCall, rolled
from manyheads.spec import CROSS, VISION
from manyheads.texts import Gold, Tokens, text_seed
from manyheads.texts.tokens import Stretch

WINDOW_OVERLAP = 8  # neighbouring windows share an eighth of their tokens, so that few links are cut
BATCH_TOKENS = 2_048  # tokens of a batch, padding included: about where two cores stop gaining
CPU_PASS = 16.0  # tokens of padding that a batch may take on with a further text on a CPU: less than a pass costs there
CORPUS_TOKENS = 50_000  # from this many tokens on, rarity is counted in the corpus itself
Long = Literal["windows", "truncate", "whole"]  # how a text over the limit is read
LONG_TEXTS: tuple[Long, ...] = get_args(Long)
ALWAYS = {"return_special_tokens_mask": True, "verbose": False}  # options of every tokenizer's call
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character beyond the first 65,536: no tokenizer takes one
DECODER = "decoder"  # the stack that reads texts of its own, beside an encoder's


@dataclass(frozen=True)
class Piece:
    """One tokenised text, or one window of a long one, which begins at character `begin` of its text.

    `source` is the text's index. `seed` of a window is the whole text's: windows of one text fall in the same half of
    a corpus, and are drawn together. `target`: what a decoder beside the encoder is to write, where that was given.
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


class Pair(NamedTuple):
    """A text for an encoder-decoder, and what it is to write of it."""

    text: str
    target: str


@runtime_checkable
class Written(Protocol):
    """A text and its gold, what people have annotated in it: a corpus' `Document` is one."""

    @property
    def text(self) -> str: ...
    @property
    def gold(self) -> Gold | None: ...


@dataclass(frozen=True)
class Reading:
    """Every piece of some texts, in order, and how they were cut, in words ("" where nothing was).

    `most_padding`: the tokens of padding that a batch may take on with a further text.
    """

    pieces: tuple[Piece, ...]
    because: str
    most_padding: float = math.inf

    @property
    def num_tokens(self) -> int:
        return sum(len(piece.ids) for piece in self.pieces)


def read_texts(lm: Any, texts: str | Sequence[Any], long: Long = "windows", *, pairs: bool = False) -> Reading:
    """Tokenise texts for a loaded model. `pairs`: whether the caller can read a text with a target.

    Errors: TextError for an empty text, one too long under `long="whole"`, or pairs where they cannot be read.
    """
    require_reader(lm, long)
    documents, names, plain = read_given(texts)
    targets = _targets(lm, documents, names, long, pairs)
    limit, pieces, cut = lm.max_positions, [], 0
    for source, (text, encoding) in enumerate(zip(plain, encoded(lm.tokenizer, plain), strict=True)):
        if targets and long == "windows" and is_long(encoding, limit):
            raise TextError(
                f"{names[source]} has {len(encoding['input_ids'])} tokens, but {lm.name} has {limit} positions, and a "
                f"window of it has no target of its own: give a shorter text, or cut it (truncate)."
            )
        of_text = pieces_of(lm, text, encoding, source, long, limit, names[source])
        cut += is_long(encoding, limit)
        if targets:
            of_text = [replace(of_text[0], target=targets[source])]
        gold = getattr(documents[source], "gold", None)
        pieces += of_text if gold is None or is_long(encoding, limit) else [replace(of_text[0], gold=gold)]
    return Reading(tuple(pieces), story(len(pieces), cut, len(plain), limit, long))


def _targets(lm: Any, documents: Sequence[Any], names: Sequence[str], long: Long, allowed: bool) -> list[Piece]:
    """The targets of pairs, tokenised as targets; none where no text is a pair. Errors: TextError."""
    paired = [isinstance(document, Pair) for document in documents]
    if not any(paired):
        return []
    first = names[paired.index(True)]
    if not writes_apart(lm):
        raise TextError(
            f"{first} is a pair (source, target), and {lm.name} writes no text beside the one that it reads: give "
            f"strings."
        )
    if not allowed:
        raise TextError(
            f"{first} is a pair (source, target), and this reads no targets: give strings. Pairs are for record, "
            f"measure, effect and importance."
        )
    if not all(paired):
        raise TextError(f"{first} has a target, and {names[paired.index(False)]} has none: give one for each, or none.")
    limit, pieces = lm.max_positions, []
    written = [document.target for document in documents]
    for source, (text, encoding) in enumerate(zip(written, encoded(lm.tokenizer, written, "text_target"), strict=True)):
        count = len(encoding["input_ids"])
        if long != "truncate" and limit is not None and count > limit:
            raise TextError(
                f"the target of {names[source]} has {count} tokens, but {lm.name} has {limit} positions: "
                f"give a shorter one, or cut both (truncate)."
            )
        cut = {name: values[:limit] for name, values in encoding.items()}
        pieces += pieces_of(lm, text, cut, source, "whole", None, f"the target of {names[source]}")
    return pieces


def read_given(texts: object) -> tuple[list[str | Written | Pair], list[str], list[str]]:
    """Texts and documents as a list, what to call each of them in an error, and their strings. Errors: TextError.

    A tuple of two strings among them is a `Pair`.
    """

    def kind(value: object) -> str:
        name = type(value).__name__
        return f"an {name}" if name[0] in "aeiou" else f"a {name}"

    if not isinstance(texts, str | Sequence):
        raise TextError(f"texts is {kind(texts)}: give a text, or a list of texts.")
    items: list[Any] = [texts] if isinstance(texts, str) else [*texts]
    documents: list[Any] = [Pair(*item) if isinstance(item, tuple) and len(item) == 2 else item for item in items]
    if not documents:
        raise TextError("no text was given: give at least one.")
    plain: list[str] = []
    names: list[str] = []
    for index, document in enumerate(documents):
        text: object = getattr(document, "text", document)
        if not isinstance(text, str):
            raise TextError(f"text {index} is {kind(text if isinstance(document, Pair) else document)}: give strings.")
        names.append(f"text {index}" if len(documents) > 1 else "the text")
        if fault := fault_in(text):
            raise TextError(f"{names[-1]} {fault}")
        target: object = document.target if isinstance(document, Pair) else text
        if not isinstance(target, str):
            raise TextError(f"the target of {names[-1]} is {kind(target)}: give strings.")
        if fault := fault_in(target):
            raise TextError(f"the target of {names[-1]} {fault}")
        plain.append(text)
    return documents, names, plain


def fault_in(text: str) -> str:
    """What no tokenizer can read in a text, as words after its name; "" where there is nothing."""
    if not text.strip():
        return "is empty: give at least one word."
    if half := SURROGATE.search(text):
        return f"is not valid Unicode: it has a lone surrogate at character {half.start():,}. Leave that out."
    return ""


def require_reader(lm: Any, long: Long) -> None:
    """Errors: ModelError for what is no loaded model, or has no tokenizer; TextError for a way to read there is not."""
    if not hasattr(lm, "tokenizer"):
        raise ModelError(
            f"{lm!r} is a {type(lm).__name__}, not a loaded model: load it first, as mh.load({lm!r})."
            if isinstance(lm, str)
            else f"a {type(lm).__name__} is not a loaded model: load it first, as mh.load(model, tokenizer=...)."
        )
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


def encoded(tokenizer: Any, texts: Sequence[str], side: str = "text") -> list[Mapping[str, Any]]:
    """Ids, special tokens and offsets of each text, of any length. Errors: as the tokenizer has them.

    `side`: the tokenizer's argument, "text" or "text_target": translators may have a vocabulary, or a mark, for each.

    A fast tokenizer reads many texts at once in a tenth of the time. Where it fails, texts are read one by one, so
    that an error is the first failing text's own.
    """
    fast = bool(getattr(tokenizer, "is_fast", False))
    options = {**ALWAYS, "return_offsets_mapping": fast, "truncation": False}
    if fast and len(texts) > 1:
        with suppress(Exception):  # it is raised again below if it is a text's fault
            return _one_by_one(tokenizer(**{side: list(texts)}, **options))
    return [tokenizer(**{side: text}, **options) for text in texts]


def _one_by_one(batch: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A fast tokenizer's encoding of several texts, or windows, as one encoding each."""
    keys = ("input_ids", "special_tokens_mask", "offset_mapping")
    return [dict(zip(keys, values, strict=True)) for values in zip(*(batch[key] for key in keys), strict=True)]


def is_long(encoding: Mapping[str, Any], limit: int | None) -> bool:
    """Whether a tokenised text has more tokens than the model has positions."""
    return limit is not None and len(encoding["input_ids"]) > limit


def pieces_of(
    lm: Any, text: str, encoding: Mapping[str, Any], source: int, long: Long, limit: int | None, name: str
) -> list[Piece]:
    """One tokenised text as a piece, or as windows. `name` is what errors call the text. Errors: TextError."""
    if not len(encoding["input_ids"]):
        raise TextError(f"the tokenizer makes no token of {text[:40]!r}: give a text it knows.")
    if limit is None or not is_long(encoding, limit):
        return [_piece(lm.tokenizer, text, encoding, source, (0, len(text)))]
    if long == "whole":
        raise TextError(
            f"{name} has {len(encoding['input_ids'])} tokens, but {lm.name} has {limit} positions: read it in "
            f"windows (the default) or cut it (truncate)."
        )
    tokenizer = lm.tokenizer
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
        pieces.append(replace(_piece(tokenizer, text, window, source, stretch), seed=seed))
    return pieces


def _piece(tokenizer: Any, text: str, encoding: Mapping[str, Any], source: int, stretch: tuple[int, int]) -> Piece:
    """A piece with its own stretch of the text, and offsets into that stretch."""
    begin, end = stretch
    ids = tuple(map(int, encoding["input_ids"]))
    special = tuple(map(bool, encoding["special_tokens_mask"]))
    offsets = tuple((int(a), int(b)) for a, b in encoding.get("offset_mapping") or ((begin, begin),) * len(ids))
    offsets = tuple((max(0, a - begin), max(0, b - begin)) for a, b in offsets) if begin else offsets
    pieces = tuple(tokenizer.convert_ids_to_tokens(list(ids)))
    return Piece(text[begin:end], ids, pieces, special, offsets, source, begin)


def most_padding(lm: Any) -> float:
    """The tokens of padding that a batch may take on with a further text, by where the model is.

    For what adds up over texts. A gradient of a batch's mean is another one of another batch, and is not cut by this.
    """
    # A CPU is as busy with a row of padding as with one of a text, and a further pass costs it as much as some 25 rows:
    # 12 texts of 55 to 166 tokens in one batch, a third of it padding, take 1.3 times as long as each by itself, in
    # pairs 0.92 times (docs/lab.yaml). An accelerator waits for calls, not for rows, and takes them all together.
    return CPU_PASS if device_of(lm.model).type == "cpu" else math.inf


def batches(reading: Reading, num_tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """Indices of pieces, grouped by like length: at most `num_tokens` a batch with padding, at least one piece.

    A text comes to a batch where that takes on no more padding than the reading allows.
    """
    # Stable, by length alone: batches of the same texts are the same on every machine, which resumed runs rely on.
    order = sorted(range(len(reading.pieces)), key=lambda i: len(reading.pieces[i].ids))
    groups: list[list[int]] = []
    widest = 0
    for index in order:
        narrow, widest = widest, len(reading.pieces[index].ids)
        count = len(groups[-1]) if groups else 0
        if groups and (count + 1) * widest <= num_tokens and count * (widest - narrow) <= reading.most_padding:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def tokens_of(
    reading: Reading, chosen: Sequence[int], rarity: Float[Tensor, "vocabulary"] | None, because: str
) -> Tokens:
    """The chosen pieces as one left-aligned batch."""
    pieces = [reading.pieces[index] for index in chosen]
    lengths = torch.tensor([len(piece.ids) for piece in pieces])
    longest = int(lengths.max())
    ids = torch.full((len(pieces), longest), -1, dtype=torch.long)
    special = torch.zeros(len(pieces), longest, dtype=torch.bool)
    offsets = torch.zeros(len(pieces), longest, 2, dtype=torch.long)
    for row, piece in enumerate(pieces):
        span = slice(0, len(piece.ids))
        ids[row, span], special[row, span] = torch.tensor(piece.ids), torch.tensor(piece.special)
        offsets[row, span] = torch.tensor(piece.offsets)
    named, texts = tuple(piece.pieces for piece in pieces), tuple(piece.text for piece in pieces)
    stretches = tuple(Stretch(piece.source, piece.begin, piece.seed) for piece in pieces) if reading.because else ()
    gold = tuple(piece.gold for piece in pieces)
    tokens = Tokens(lengths, ids, named, special, offsets, texts, stretches=stretches, gold=gold)
    if targets := [piece.target for piece in pieces if piece.target is not None]:
        tokens = replace(tokens, target=tokens_of(Reading(tuple(targets), ""), range(len(targets)), rarity, because))
    if rarity is None:
        return tokens
    return replace(tokens, rarity=torch.where(ids >= 0, rarity[ids.clamp_min(0)], 0), rarity_because=because)


def rarity_table(reading: Reading, vocab_size: int) -> tuple[Float[Tensor, "vocabulary"], str]:
    """How rare each token of the vocabulary is, and how that is known: `rarity_of` the counts of the reading."""
    ids = torch.tensor(list(chain.from_iterable(piece.ids for piece in reading.pieces)), dtype=torch.long)
    return rarity_of(torch.bincount(ids, minlength=vocab_size), "the corpus'")


def rarity_of(counts: Int[Tensor, "vocabulary"], whose: str) -> tuple[Float[Tensor, "vocabulary"], str]:
    """How rare each token is, 0 to 1: by its count where there are enough tokens, else by its id, with the reason.

    Subword vocabularies are built from the frequent to the rare, so an id is a rank, roughly.
    """
    num_tokens, size = int(counts.sum()), len(counts)
    if num_tokens < CORPUS_TOKENS:
        return torch.arange(size) / size, f"rank in the vocabulary ({num_tokens:,} tokens are too few to count)"
    values, because = counts.unique(sorted=True), f"counts over {whose} {num_tokens:,} tokens"
    return 1 - torch.searchsorted(values, counts).float() / max(len(values) - 1, 1), because


def model_inputs(lm: Any, tokens: Tokens) -> dict[str, Tensor]:
    """The model's arguments: padded ids and their mask; a decoder beside an encoder gets its own."""
    written = decoder_tokens(lm, tokens)
    inputs = _padded_ids(lm, tokens, "")
    inputs |= {} if written is None else _padded_ids(lm, written, "decoder_")
    return {name: value.to(device_of(lm.model)) for name, value in inputs.items()}


def _padded_ids(lm: Any, tokens: Tokens, side: str) -> dict[str, Tensor]:
    assert tokens.ids is not None
    pad = getattr(lm.tokenizer, "pad_token_id", None) or 0
    # Any legal id will do: the mask beside it hides padding, but -1 is no row of the embedding.
    ids = torch.where(tokens.ids >= 0, tokens.ids, pad)
    return {f"{side}input_ids": ids, f"{side}attention_mask": tokens.real.long()}


def decoder_tokens(lm: Any, tokens: Tokens) -> Tokens | None:
    """What a decoder beside an encoder reads: its start token, and all but the last one of the texts' targets.

    Without targets, of the texts themselves: so such models are trained to repeat a text. None for a model that is one
    or the other.
    """
    if not writes_apart(lm):
        return None
    tokens, is_target = tokens.target or tokens, tokens.target is not None
    assert tokens.ids is not None and tokens.special is not None and tokens.offsets is not None
    starts = [decoder_start(lm.model.config)] * tokens.num_texts
    shifted = getattr(lm.model, "prepare_decoder_input_ids_from_labels", None)
    if is_target and shifted is not None:  # the model's own way: a translator's start may be the target's language
        texts = zip(tokens.ids, tokens.lengths.tolist(), strict=True)
        starts = [int(shifted(labels=ids[None, :length])[0, 0]) for ids, length in texts]
    # `roll` brings the last token round to the first place, where the start token is put over it.
    ids, special, offsets = tokens.ids.roll(1, 1), tokens.special.roll(1, 1), tokens.offsets.roll(1, 1)
    ids[:, 0], special[:, 0], offsets[:, 0] = torch.tensor(starts), True, 0
    ids = ids.masked_fill(~tokens.real, -1)
    names = map(str, lm.tokenizer.convert_ids_to_tokens(starts))
    # Random tokens have no pieces: nobody reads them.
    pairs = zip(names, tokens.pieces, strict=True) if tokens.pieces else ()
    pieces = tuple((name, *piece[:-1]) for name, piece in pairs)
    rarity = None if tokens.rarity is None else tokens.rarity.roll(1, 1)
    return replace(tokens, ids=ids, special=special & tokens.real, offsets=offsets, pieces=pieces, rarity=rarity)


def decoder_story(lm: Any, reading: Reading | None = None) -> str:
    """The same in words, "" for other models. Without targets: it was trained to write another text than it reads."""
    if not writes_apart(lm):
        return ""
    if reading is not None and reading.pieces[0].target is not None:
        return "reads the targets that were given, one place later"
    return "reads the encoder's own text, one place later: pairs (source, target) give it a text of its own"


def writes_apart(lm: Any) -> bool:
    """Whether the model is an encoder-decoder: it writes a text of its own beside the one that it reads."""
    return bool(getattr(getattr(lm.model, "config", None), "is_encoder_decoder", False))


def decoder_start(config: Any) -> int:
    """The token that a decoder beside an encoder begins with, by the model's config."""
    start = getattr(config, "decoder_start_token_id", None)
    return int(start if start is not None else getattr(config, "bos_token_id", None) or 0)


def texts_of_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallTexts:
    """Ids and lengths as far as a bare call shows them, and where each text begins."""
    main = _padded(kwargs.get("input_ids", args[0] if args else None), kwargs.get("attention_mask"))
    return CallTexts(main, _padded(kwargs.get("decoder_input_ids"), kwargs.get("decoder_attention_mask")))


def _padded(ids: Any, mask: Any) -> Padded | None:
    """Texts as their ids and attention mask show them; None where there are no ids."""
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim != 2:
        return None
    # What is known of texts is the host's, wherever the model takes its ids.
    ids = ids.cpu()
    real = mask.cpu().bool() if isinstance(mask, Tensor) and mask.ndim == 2 else torch.ones_like(ids, dtype=torch.bool)
    # argmax gives the first of equals, hence where the ones begin; a text without any begins at 0.
    lengths, first = real.sum(-1), real.to(torch.uint8).argmax(-1)
    columns = torch.arange(ids.shape[1], device="cpu")[None]
    run_of_real = (columns >= first[:, None]) & (columns < (first + lengths)[:, None])
    if not bool((real == run_of_real).all()):
        raise RecordingError(
            "attention_mask has holes: a text must be one run of ones, with padding before or after it."
        )
    return Padded(Tokens(lengths, _aligned(ids, first, lengths)), first, ids.shape[1])


def _aligned(ids: Int[Tensor, "b k"], first: Int[Tensor, "b"], lengths: Int[Tensor, "b"]) -> Int[Tensor, "b longest"]:
    """Each text's ids from the left edge on, -1 after its end."""
    aligned = rolled(ids[:, None, :, None], first, lengths)[:, 0, :, 0]
    return aligned.masked_fill(torch.arange(aligned.shape[1], device="cpu")[None] >= lengths[:, None], -1)


class Padded(NamedTuple):
    """Texts, where each begins among the positions that the model was given, and how many positions these are."""

    tokens: Tokens
    first: Int[Tensor, "b"]
    width: int


def at_the_edge(tokens: Tokens, width: int | None = None) -> Padded:
    """Texts that begin at the left edge of `width` positions; by default as many as the longest text has."""
    return Padded(tokens, torch.zeros_like(tokens.lengths), tokens.longest if width is None else width)


def named_texts(lm: Any, ids: Int[Tensor, "b k"], first: Int[Tensor, "b"], lengths: Int[Tensor, "b"]) -> Padded:
    """Texts that nobody tokenised: ids named by the tokenizer (by number where there is none), words by decoding."""
    aligned = _aligned(ids, first, lengths)
    rows = [row[row >= 0].tolist() for row in aligned]
    if lm.tokenizer is None:
        tokens = Tokens(lengths, aligned, tuple(tuple(f"token {token}" for token in row) for row in rows))
    else:
        special = torch.isin(aligned, torch.tensor(sorted(lm.tokenizer.all_special_ids), dtype=torch.long))
        pieces = tuple(tuple(map(str, lm.tokenizer.convert_ids_to_tokens(row))) for row in rows)
        texts = tuple(str(lm.tokenizer.decode(row, skip_special_tokens=True)) for row in rows)
        tokens = Tokens(lengths, aligned, pieces, special, None, texts)
    return Padded(tokens, first, ids.shape[1])


@dataclass(eq=False)
class CallTexts:
    """Which texts a layer reads: a decoder beside an encoder has its own. None where a call shows none.

    A layer whose positions are no text's (an image, say) is read as it is, from edge to edge.
    """

    main: Padded | None
    decoder: Padded | None = None
    known: dict[tuple[str, int, int, bool], tuple[Tokens, Aligner]] = field(default_factory=dict)

    @staticmethod
    def of(lm: Any, tokens: Tokens) -> CallTexts:
        """Texts that are left-aligned as they are, and what a decoder beside an encoder reads of them."""
        written = decoder_tokens(lm, tokens)
        return CallTexts(at_the_edge(tokens), None if written is None else at_the_edge(written))

    def read_by(self, call: AttentionCall) -> tuple[Tokens, Aligner]:
        """The tokens that the call's layer reads, and what rolls its tensors to their left edge."""
        # One aligner for all layers of a shape: it treats a mask that they share only once.
        num_texts, _, num_rows, _ = call.q.shape
        key = (call.site.stack, num_texts, num_rows, call.crosses)
        if key not in self.known:
            by_stack = {DECODER: self.decoder, CROSS: self.decoder, VISION: None}
            texts = by_stack.get(call.site.stack, self.main)
            fits = texts is not None and (texts.tokens.num_texts, texts.width) == (num_texts, num_rows)
            # Where keys are other tokens, rows and keys begin at different places, and nothing can be rolled away.
            if texts is None or not fits or (call.crosses and bool(texts.first.any())):
                texts = at_the_edge(Tokens.unnamed([num_rows] * num_texts))
            self.known[key] = texts.tokens, Aligner(texts.first, texts.tokens.lengths)
        return self.known[key]

    def knows_keys(self, call: AttentionCall) -> bool:
        """Whether it is known where the text that a cross-attention layer looks at begins: at the left edge."""
        return call.site.stack == CROSS and not (self._is_main(call) and self.main and bool(self.main.first.any()))

    def keys_of(self, call: AttentionCall, mask: Mask) -> Tokens:
        """The tokens that a cross-attention layer looks at; by number as far as its mask shows any, where unknown."""
        if self.main is not None and self._is_main(call):
            return self.main.tokens
        ends = mask.stop
        if mask.dense is not None:  # which may be on the device, as its map is
            ends = mask.dense.any(2).any(1).cpu() * torch.arange(1, mask.num_keys + 1)
        return Tokens.unnamed(ends.amax(1).expand(len(call.q)).clamp_min(1).tolist())

    def _is_main(self, call: AttentionCall) -> bool:
        """Whether the keys of a call are the tokens of the main texts."""
        return self.main is not None and (self.main.tokens.num_texts, self.main.width) == (len(call.q), call.k.shape[2])
