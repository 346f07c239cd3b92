"""What one model reads of some inputs: pieces that it batches by length, or batches that are ready.

`read` makes a `Reading` of `Inputs`: texts become pieces (`pieces.py`), pictures and sounds the batches that the
model's processor makes (`media`), ready tensors stay as they are. `Reading.batches` hands out
what each forward pass takes. Batches hold texts of like length, so that little is padded; a long text goes alone.

Of an encoder-decoder a text may be a pair, (source, target): the decoder then reads the target, as in training, and not
the source once more.
"""

# device: texts are the host's, until a batch's inputs are sent to the model

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from manyheads.errors import TextError
from manyheads.inputs.batch import Batch, Side, named_texts
from manyheads.inputs.generation import decoder_start
from manyheads.inputs.inputs import Inputs, InputsLike, Labels
from manyheads.inputs.media.pictures_and_sounds import read_pictures, read_sounds, require_sense
from manyheads.inputs.media.vision_language import pictures_in_text
from manyheads.inputs.pieces import (
    Long,
    Piece,
    documents_of,
    encoded,
    piece_of,
    rarity_of,
    require_loaded,
    require_reader,
    story,
    tokenised,
)
from manyheads.models import TEXT, LoadedModel
from manyheads.progress import Progress
from manyheads.texts import Document, Stretch, Tokens, data_seed

BATCH_TOKENS = 2_048  # tokens of a batch, padding included: about where two cores stop gaining
MEDIA_BATCH = 8  # pictures or sounds read together: each is some hundreds of positions


@dataclass(frozen=True, eq=False)
class Reading:
    """Every piece of some texts, in order; or batches that are ready: of pictures, of sounds, of tensors in hand.

    `notes`: how texts were cut ("windows", "" where nothing was), what a decoder beside an encoder reads ("decoder"),
    and of pictures and sounds where they lie ("grid", "frames", "prompt", "vision tower"). `rarity`: how rare each
    token of the vocabulary is, as `rarity_because` says; None where nobody counted. `labels`: of each text given.
    `most_padding`: the tokens of padding that a batch may take on with a further text.
    """

    lm: LoadedModel = field(repr=False)
    pieces: tuple[Piece, ...] = ()
    ready: tuple[Batch, ...] = ()
    notes: Mapping[str, object] = field(default_factory=dict)
    rarity: Float[Tensor, "vocabulary"] | None = None
    rarity_because: str = ""
    labels: tuple[int, ...] | None = None
    most_padding: float = math.inf

    @property
    def num_texts(self) -> int:
        """How many are read; each window of a long text counts."""
        return len(self.pieces) + sum(len(batch.places) for batch in self.ready)

    @property
    def num_tokens(self) -> int:
        """How many tokens are read; of ready inputs those that a mask shows."""
        masks = [batch.inputs["attention_mask"] for batch in self.ready if "attention_mask" in batch.inputs]
        return sum(len(piece.ids) for piece in self.pieces) + sum(int(mask.sum()) for mask in masks)

    @property
    def windows(self) -> str:
        """How texts were cut, in words; "" where nothing was."""
        return str(self.notes.get("windows", ""))

    @property
    def remarks(self) -> dict[str, str]:
        """What results say about how texts were read: how they were cut, and what a decoder beside an encoder reads."""
        return {name: str(self.notes[name]) for name in ("windows", "decoder") if self.notes.get(name)}

    def counted(self, whose: str = "the corpus'") -> Reading:
        """The same, with how rare each token is by the counts of this reading, which are `whose` in words."""
        ids = torch.tensor(list(chain.from_iterable(piece.ids for piece in self.pieces)), dtype=torch.long)
        rarity, because = rarity_of(torch.bincount(ids, minlength=self.lm.spec.vocab_size or 1), whose)
        return replace(self, rarity=rarity, rarity_because=because)

    def groups(self, num_tokens: int = BATCH_TOKENS) -> list[list[int]]:
        """Indices of the pieces of each batch: `groups_of` them."""
        return groups_of(self.pieces, num_tokens, self.most_padding)

    def batches(self, num_tokens: int = BATCH_TOKENS, progress: Progress | None = None) -> Iterator[Batch]:
        """What each forward pass takes. `progress` is called when the caller is done with a batch.

        `num_tokens`: of a batch of texts, with padding. Pictures and sounds come in eights, where each is laid out by
        itself; ready batches as they are.
        """
        done, total = 0, self.num_tokens if self.pieces else self.num_texts
        for batch in self.ready:
            count = len(batch.places)
            is_whole = not batch.seeds or any(len(value) != count for value in batch.inputs.values())
            size = count if is_whole else MEDIA_BATCH
            for begin in range(0, count, size):
                part = batch if size >= count else batch.some(slice(begin, begin + size))
                yield part
                done += len(part.places)
                if progress is not None:
                    progress(done, total)
        for group in self.groups(num_tokens):
            yield self.batch(group)
            done += sum(len(self.pieces[index].ids) for index in group)
            if progress is not None:
                progress(done, total)

    def batch(self, chosen: Sequence[int]) -> Batch:
        """The chosen pieces as one left-aligned batch."""
        pieces = [self.pieces[index] for index in chosen]
        batch = batch_of_tokens(self.lm, self.tokens(chosen), tuple(chosen))
        labels = _label_tensor(self.labels, [piece.source for piece in pieces])
        return replace(batch, seeds=() if pieces[0].text else tuple(piece.seed for piece in pieces), labels=labels)

    def tokens(self, chosen: Sequence[int]) -> Tokens:
        """The tokens of the chosen pieces, from the left edge on."""
        pieces = [self.pieces[index] for index in chosen]
        tokens = _tokens(pieces, bool(self.windows))
        if not pieces[0].text:  # ids alone, named as far as the tokenizer can
            assert tokens.ids is not None
            tokens = named_texts(self.lm, tokens.ids, torch.zeros_like(tokens.lengths), tokens.lengths).tokens
        if targets := [piece.target for piece in pieces if piece.target is not None]:
            target = replace(self, pieces=tuple(targets), notes={}).tokens(range(len(targets)))
            tokens = replace(tokens, target=target)
        if self.rarity is None:
            return tokens
        assert tokens.ids is not None
        rarity = torch.where(tokens.ids >= 0, self.rarity[tokens.ids.clamp_min(0)], 0)
        return replace(tokens, rarity=rarity, rarity_because=self.rarity_because)


def read(lm: LoadedModel, given: InputsLike, *, pairs: bool = True, only_texts: bool = False) -> Reading:
    """What a loaded model reads of some inputs. `pairs`, `only_texts`: whether the caller reads targets; no pictures.

    Long texts become windows, each of which counts as a text. Cost: tokenising; for pictures and sounds the processor,
    and a few passes that end at the first layer.
    Errors: ModelError for what is not a loaded model, or reads no such inputs; TextError for an empty text, one too
    long under `long="whole"`, pairs where they cannot be read, or not one label for each; those of `Inputs.of`; of
    pictures and sounds FileAccessError, ShapeError and RecordingError.
    """
    require_loaded(lm)
    inputs = Inputs.of(given)
    if only_texts and (inputs.has_media or inputs.ready is not None):
        kind = "ready tensors" if inputs.ready is not None else "pictures" if inputs.audio is None else "sounds"
        raise TextError(f"this reads texts, not {kind}: give texts.")
    if inputs.ready is not None:
        return _ready(lm, inputs.ready, inputs.labels)
    if inputs.ids is not None:
        return _of_ids(lm, inputs.ids, inputs.labels)
    if not inputs.has_media:
        require_sense(lm, TEXT)
        require_reader(lm, inputs.long)
        return _of_texts(lm, inputs, pairs)
    if inputs.audio is not None:
        batch, notes = read_sounds(lm, inputs.audio, inputs.sampling_rate, inputs.transcript)
    elif inputs.texts is not None:
        assert inputs.image is not None
        batch, notes = pictures_in_text(lm, inputs.texts, inputs.image, inputs.answer)
    else:
        assert inputs.image is not None
        batch, notes = read_pictures(lm, inputs.image)
    labels = _checked_labels(inputs.labels, len(batch.places))
    return Reading(lm, ready=(replace(batch, labels=_label_tensor(labels, batch.places)),), notes=notes)


def _of_texts(lm: LoadedModel, inputs: Inputs, pairs: bool) -> Reading:
    documents = documents_of(inputs.texts)
    names = [f"text {index}" if len(documents) > 1 else "the text" for index in range(len(documents))]
    targets = _targets(lm, documents, names, inputs.long, pairs)
    pieces: list[Piece] = []
    for of_text in tokenised(lm, dict(enumerate(documents)), inputs.long, names):
        if isinstance(of_text, Exception):
            raise of_text
        pieces += [replace(of_text[0], target=targets[of_text[0].source])] if targets else of_text
    cut = len({piece.source for piece in pieces if piece.is_cut})
    notes = {"windows": story(len(pieces), cut, len(documents), lm.max_positions, inputs.long)}
    if lm.writes_apart:
        notes["decoder"] = decoder_story(lm, paired=bool(targets))
    # Labels are checked after the texts: a text that cannot be read is the more basic fault.
    labels = _checked_labels(inputs.labels, len(documents))
    return Reading(lm, tuple(pieces), notes=notes, labels=labels).counted()


def _targets(
    lm: LoadedModel, documents: Sequence[Document], names: Sequence[str], long: Long, allowed: bool
) -> list[Piece]:
    """The targets of pairs, tokenised as targets; none where no text is a pair. Errors: TextError."""
    written = [document.target for document in documents]
    paired = [target is not None for target in written]
    if not any(paired):
        return []
    first = names[paired.index(True)]
    if not lm.writes_apart:
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
    limit, pieces, targets = lm.max_positions, [], [target for target in written if target is not None]
    for source, (text, encoding) in enumerate(zip(targets, encoded(lm.tokenizer, targets, "text_target"), strict=True)):
        if isinstance(encoding, Exception):
            raise encoding
        count = len(encoding["input_ids"])
        if long != "truncate" and limit is not None and count > limit:
            raise TextError(
                f"the target of {names[source]} has {count} tokens, but {lm.name} has {limit} positions: "
                f"give a shorter one, or cut both (truncate)."
            )
        cut = {name: values[:limit] for name, values in encoding.items()}
        pieces.append(piece_of(lm, text, cut, source))
    return pieces


def _of_ids(lm: LoadedModel, rows: Sequence[Sequence[int]], labels: Labels | None) -> Reading:
    """Token ids as they are. Errors: TextError for too many of them, or for one that the vocabulary lacks."""
    size, longest = lm.spec.vocab_size, max(map(len, rows), default=0)
    if not rows or not all(rows):
        raise TextError("ids= holds no token, or a text without one: give at least one of each.")
    if lm.max_positions is not None and longest > lm.max_positions:
        raise TextError(
            f"a text has {longest} tokens, and {lm.name} has {lm.max_positions} positions: token ids are read as "
            f"they are. Cut them."
        )
    if wrong := {token for row in rows for token in row if not 0 <= token < (size or token + 1)}:
        raise TextError(f"token {min(wrong)} is not one of the {size} tokens of {lm.name}.")
    pieces: list[Piece] = []
    special = set(getattr(lm.tokenizer, "all_special_ids", ()))
    for number, row in enumerate(rows):
        named = None if lm.tokenizer is None else lm.tokenizer.convert_ids_to_tokens(list(row))
        names = tuple(map(str, named or (f"token {token}" for token in row)))
        seed = data_seed(np.asarray(row, dtype=np.int64).tobytes())
        is_special = tuple(token in special for token in row)
        pieces.append(Piece("", tuple(row), names, is_special, ((0, 0),) * len(row), number, seed=seed))
    return Reading(lm, tuple(pieces), labels=_checked_labels(labels, len(rows))).counted()


def _ready(lm: LoadedModel, items: Sequence[Mapping[str, Tensor]], labels: Labels | None) -> Reading:
    """Ready inputs, each mapping one batch. Labels are checked last, when the number of samples is known."""
    batches: list[Batch] = []
    count = 0
    for inputs in items:
        if not isinstance(inputs, Mapping) or not inputs or not all(isinstance(x, Tensor) for x in inputs.values()):
            raise TextError("ready inputs are mappings of names to tensors, each a batch: one of these is not.")
        inputs = {name: x.to(lm.device) for name, x in inputs.items()}
        size = len(next(iter(inputs.values()))) if all(x.ndim for x in inputs.values()) else 0
        if not size or any(len(x) != size for x in inputs.values()):
            shapes = {name: tuple(x.shape) for name, x in inputs.items()}
            raise TextError(f"a batch of inputs has {shapes}: the first axis of each must be the samples.")
        batches.append(Batch(inputs, tuple(range(count, count + size))))
        count += size
    checked = _checked_labels(labels, count)
    return Reading(lm, ready=tuple(replace(batch, labels=_label_tensor(checked, batch.places)) for batch in batches))


def _checked_labels(labels: Labels | None, count: int) -> tuple[int, ...] | None:
    if labels is None:
        return None
    if isinstance(labels, str) or not isinstance(labels, Sequence | Tensor | ndarray):
        raise TextError(f"labels is a {type(labels).__name__}: give a list of class numbers, one for each text.")
    if len(labels) != count:
        raise TextError(f"{len(labels)} labels were given for {count} texts: give one for each.")
    if wrong := [label for label in labels if isinstance(label, str) or int(label) != label or label < 0]:
        raise TextError(f"label {wrong[0]!r} is not a class: give whole numbers, from 0.")
    return tuple(int(label) for label in labels)


def _label_tensor(labels: Sequence[int] | None, sources: Sequence[int]) -> Tensor | None:
    return None if labels is None else torch.tensor([labels[source] for source in sources], device="cpu")


def groups_of(pieces: Sequence[Piece], num_tokens: int = BATCH_TOKENS, padding: float = math.inf) -> list[list[int]]:
    """Indices of pieces, grouped by like length: at most `num_tokens` a batch with padding, at least one piece.

    A text comes to a batch where that takes on at most `padding` tokens of padding.
    """
    # Stable, by length alone: batches of the same texts are the same on every machine, which resumed runs rely on.
    order = sorted(range(len(pieces)), key=lambda i: len(pieces[i].ids))
    groups: list[list[int]] = []
    widest = 0
    for index in order:
        narrow, widest = widest, len(pieces[index].ids)
        count = len(groups[-1]) if groups else 0
        if groups and (count + 1) * widest <= num_tokens and count * (widest - narrow) <= padding:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _tokens(pieces: Sequence[Piece], with_stretches: bool) -> Tokens:
    """Pieces as one left-aligned batch."""
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
    stretches = tuple(Stretch(piece.source, piece.begin, piece.seed) for piece in pieces) if with_stretches else ()
    gold = tuple(piece.gold for piece in pieces)
    return Tokens(lengths, ids, named, special, offsets, texts, stretches=stretches, gold=gold)


def batch_of_tokens(lm: LoadedModel, tokens: Tokens, places: tuple[int, ...]) -> Batch:
    """The model's arguments for some tokens: padded ids and their mask; a decoder beside an encoder gets its own."""
    device, pad = lm.device, getattr(lm.tokenizer, "pad_token_id", None) or 0
    inputs: dict[str, Tensor] = {}
    written, targets = decoder_tokens(lm, tokens), None
    for side, read_tokens in (("", tokens), ("decoder_", written)):
        if read_tokens is None:
            continue
        assert read_tokens.ids is not None
        # Any legal id will do: the mask beside it hides padding, but -1 is no row of the embedding.
        inputs[f"{side}input_ids"] = torch.where(read_tokens.ids >= 0, read_tokens.ids, pad).to(device)
        inputs[f"{side}attention_mask"] = read_tokens.real.long().to(device)
    if written is not None:
        target_ids = (tokens.target or tokens).ids
        assert target_ids is not None
        targets = target_ids.masked_fill(target_ids < 0, -100).to(device)
    decoder = None if written is None else Side.at_the_edge(written)
    return Batch(inputs, places, Side.at_the_edge(tokens), decoder, targets=targets)


def decoder_tokens(lm: LoadedModel, tokens: Tokens) -> Tokens | None:
    """What a decoder beside an encoder reads: its start token, and all but the last one of the texts' targets.

    Without targets, of the texts themselves: so such models are trained to repeat a text. None for a model that is one
    or the other.
    """
    if not lm.writes_apart:
        return None
    tokens, is_target = tokens.target or tokens, tokens.target is not None
    assert tokens.ids is not None
    starts = [decoder_start(lm)] * tokens.num_texts
    shifted = getattr(lm.model, "prepare_decoder_input_ids_from_labels", None)
    if is_target and shifted is not None:  # the model's own way: a translator's start may be the target's language
        texts = zip(tokens.ids, tokens.lengths.tolist(), strict=True)
        starts = [int(shifted(labels=ids[None, :length])[0, 0]) for ids, length in texts]

    def one_later(values: Tensor | None, start: Tensor | bool | int) -> Tensor | None:
        if values is None:
            return None
        # `roll` brings the last token round to the first place, where the start token is put over it.
        values = values.roll(1, 1)
        values[:, 0] = start
        return values

    ids = one_later(tokens.ids, torch.tensor(starts))
    special, offsets = one_later(tokens.special, True), one_later(tokens.offsets, 0)
    assert ids is not None
    pieces: tuple[tuple[str, ...], ...] = ()
    if tokens.pieces:  # random tokens have none: nobody reads them
        named = None if lm.tokenizer is None else lm.tokenizer.convert_ids_to_tokens(starts)
        names = map(str, named or (f"token {start}" for start in starts))
        pieces = tuple((name, *piece[:-1]) for name, piece in zip(names, tokens.pieces, strict=True))
    return replace(
        tokens,
        ids=ids.masked_fill(~tokens.real, -1),
        special=None if special is None else special & tokens.real,
        offsets=offsets,
        pieces=pieces,
        rarity=None if tokens.rarity is None else tokens.rarity.roll(1, 1),
    )


def decoder_story(lm: LoadedModel, paired: bool = False) -> str:
    """The same in words, "" for other models. Without targets, since it was trained to write another text."""
    if not lm.writes_apart:
        return ""
    if paired:
        return "reads the targets that were given, one place later"
    return "reads the encoder's own text, one place later: pairs (source, target) give it a text of its own"
