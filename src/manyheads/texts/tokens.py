"""The tokens of a batch of texts, and every class of tokens that a statistic may ask about.

Texts are left-aligned: text b is `[:lengths[b]]`, what follows is padding (id -1, in no class). A class is a
boolean column `[b, k]`: special, punctuation, number, capitalised, rare, sink. Classes are read off the *original*
text through the tokenizer's offsets, so an uncased tokenizer still knows what was written with a capital.
A bare module has no tokens, only lengths: statistics that need more say so instead of guessing.

`Gold` is what people have annotated in a text: its words, who depends on whom, and who is meant by which words.
Treebanks come as this (`corpora`), and statistics of syntax and coreference read it off the tokens of a batch. A text
without it is not an error: it counts for every statistic that needs no gold.

A vision-language model reads a picture among the tokens of a text. `ImageSpan` says which tokens those are and how they
lie in the picture (`Tokens.images`); `Grid`, where the patches of any picture lie.
"""

# device: tokens are the host's

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch does not say of what numbers the lists of `tolist` are.

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.errors import ShapeError, TextError
from manyheads.texts.characters import is_punctuation

# ------------------------------------------------------------------------------------------------------ gold annotation


ROOT = -1
"""The head of a word that depends on no other word of its text."""


class GoldWord(NamedTuple):
    """A word as the treebank has it: `text[begin:end]` of its text, its universal part of speech, head and relation.

    `head` is the number of another word of the same text, or `ROOT`. Relations keep the treebank's own names
    ("nsubj:pass", "dobj"): releases differ.
    """

    begin: int
    end: int
    pos: str
    head: int
    relation: str


class Mention(NamedTuple):
    """Words `first` to `last` (both included) that name an entity; on `head` the others among them hang.

    Two mentions with one `entity` name the same thing. Pronouns are mentions whose head's `pos` is "PRON".
    """

    first: int
    last: int
    head: int
    entity: str


class Gold(NamedTuple):
    """One text's words in order, and its mentions in the order of their first words (the longer first of equals).

    `has_syntax` and `has_coreference` say what was annotated: an annotated text without a mention is a finding as well.
    """

    words: tuple[GoldWord, ...]
    mentions: tuple[Mention, ...] = ()
    has_syntax: bool = True
    has_coreference: bool = False


@dataclass(frozen=True)
class Grid:
    """The patches of a picture: `rows` x `columns` of them, after the tokens in `prefix` and before those in `suffix`.

    `picture` is the height and width of the picture as the model reads it (resized, cropped), in pixels; `patch` the
    height and width of a patch, `stride` how far neighbours lie apart: less than `patch` where they overlap.
    """

    rows: int
    columns: int
    picture: tuple[int, int]
    patch: tuple[int, int]
    stride: tuple[int, int]
    prefix: tuple[str, ...] = ()
    suffix: tuple[str, ...] = ()

    @property
    def num_patches(self) -> int:
        return self.rows * self.columns

    @property
    def num_positions(self) -> int:
        return len(self.prefix) + self.num_patches + len(self.suffix)

    @property
    def patches(self) -> slice:
        """The positions that are patches."""
        return slice(len(self.prefix), len(self.prefix) + self.num_patches)

    @property
    def others(self) -> dict[str, int]:
        """The positions that are none, by name."""
        behind = self.patches.stop
        names = [*enumerate(self.prefix), *enumerate(self.suffix, behind)]
        return {name: position for position, name in names}

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each position: "[CLS]", "reg1", "r0c3"."""
        patches = (f"r{row}c{column}" for row in range(self.rows) for column in range(self.columns))
        return (*self.prefix, *patches, *self.suffix)

    def position(self, row: int, column: int) -> int:
        """Where among a layer's positions the patch stands. Errors: ShapeError."""
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            raise ShapeError(
                f"there is no patch {row},{column}: the picture has {self.rows} rows and {self.columns} columns of "
                f"patches, both counted from 0."
            )
        return self.patches.start + row * self.columns + column

    def place(self, position: int) -> tuple[int, int] | None:
        """The row and column of a position; None for one that is not a patch. Errors: ShapeError."""
        if not 0 <= position < self.num_positions:
            raise ShapeError(f"{position=} is not in this grid: it has {self.num_positions}, counted from 0.")
        inside = position - self.patches.start
        return divmod(inside, self.columns) if 0 <= inside < self.num_patches else None

    def pixels(self, row: int, column: int) -> tuple[slice, slice]:
        """The pixels that a patch covers, rows and columns of the picture as the model reads it. Errors: ShapeError."""
        self.position(row, column)
        top, left = row * self.stride[0], column * self.stride[1]
        return slice(top, top + self.patch[0]), slice(left, left + self.patch[1])

    def laid_out(self, values: Tensor) -> Tensor:
        """Values by position as values by place: `[..., positions]` to `[..., rows, columns]`. Errors: ShapeError."""
        if values.shape[-1] != self.num_positions:
            raise ShapeError(f"{tuple(values.shape)} does not end in the grid's {self.num_positions} positions.")
        return rearrange(values[..., self.patches], "... (r c) -> ... r c", r=self.rows)


@dataclass(frozen=True)
class ImageSpan:
    """A picture among a text's tokens: `rows` x `columns` of them, row by row, from position `begin` on.

    `size` is the height and width, in pixels, of the picture as the model reads it (resized, cropped). Rows and columns
    are those that the language model reads: where the model merges patches (Qwen: 2 x 2), the merged ones.
    """

    begin: int
    rows: int
    columns: int
    size: tuple[int, int]

    @property
    def span(self) -> slice:
        """The picture's positions in the text."""
        return slice(self.begin, self.begin + self.rows * self.columns)

    @property
    def grid(self) -> Grid:
        """Where each of these positions lies in the picture: `grid.laid_out(row[image.span])` is a row by place."""
        patch = (self.size[0] // self.rows, self.size[1] // self.columns)
        return Grid(self.rows, self.columns, self.size, patch, patch)


LISTED = ("lengths", "pieces", "texts", "stretches", "gold", "images", "answers")  # of each text; some may be empty
RARE_SHARE = 0.1  # the rarest tenth of a text's ordinary tokens counts as rare: at least one token from 5 words on
SUBWORD_MARKS = ("##", "▁", "Ġ", "Ċ", "</w>")  # WordPiece, SentencePiece, byte-level BPE (space, newline), CLIP


@dataclass(frozen=True)
class Sinks:
    """Where a model parks attention it has no use for, as found on text: the first position, or tokens by id.

    `because` holds the evidence in words.
    """

    first: bool = False
    ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    because: str = "not looked for"


class Stretch(NamedTuple):
    """Where a window of a long text is from: the number of the given text, and its character that the window begins at.

    A token's offsets count from there: its characters in the given text are `begin + offset`. `seed` is the whole
    text's (`text_seed`); 0 where the text is not a window, or the seed was not kept.
    """

    text: int
    begin: int
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Tokens:
    """A left-aligned batch of tokenised texts. `rarity` is 0 (most common) to 1 (rarest) for each token.

    `texts` are the texts as they were given, blanks and all, and `offsets` the characters of each token in them.
    Where a text was too long for the model, windows stand in its place, each with its own stretch of it, and
    `stretches` says for every text where that is from; it is empty where all are whole. `gold` is what people have said
    about each text, empty where nobody was asked. `target`: the texts that a decoder beside an encoder is to write of
    these, where they were given. `images` are the pictures among each text's tokens, whose patches are special tokens,
    and `answers` where each text's answer begins (at its end: there is none); both are empty for plain texts.
    """

    lengths: Int[Tensor, "b"]
    ids: Int[Tensor, "b k"] | None = None
    pieces: tuple[tuple[str, ...], ...] = ()
    special: Bool[Tensor, "b k"] | None = None
    offsets: Int[Tensor, "b k two"] | None = None
    texts: tuple[str, ...] = ()
    rarity: Float[Tensor, "b k"] | None = None
    rarity_because: str = "unknown"
    sinks: Sinks = field(default_factory=Sinks)
    stretches: tuple[Stretch, ...] = ()
    gold: tuple[Gold | None, ...] = ()
    target: Tokens | None = None
    images: tuple[tuple[ImageSpan, ...], ...] = ()
    answers: tuple[int, ...] = ()

    def __repr__(self) -> str:
        lengths = [int(length) for length in self.lengths]
        several = f"{min(lengths)}-{max(lengths)}" if len(set(lengths)) > 1 else f"{max(lengths, default=0)}"
        return f"Tokens({len(lengths)} text{'s' * (len(lengths) != 1)} of {several} tokens)"

    @staticmethod
    def unnamed(lengths: Sequence[int]) -> Tokens:
        """Positions without tokens, as a bare module has them."""
        return Tokens(torch.tensor(list(lengths), dtype=torch.long))

    @property
    def num_texts(self) -> int:
        return len(self.lengths)

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max()) if len(self.lengths) else 0

    @cached_property
    def real(self) -> Bool[Tensor, "b k"]:
        """True where a token is, False on padding."""
        return torch.arange(self.longest)[None] < self.lengths[:, None]

    @cached_property
    def ordinary(self) -> Bool[Tensor, "b k"]:
        """Every token that the tokenizer did not add by itself."""
        return self.real & ~self._named("special")

    @cached_property
    def first(self) -> Bool[Tensor, "b k"]:
        return self.real & (torch.arange(self.longest)[None] == 0)

    @cached_property
    def image(self) -> Bool[Tensor, "b k"]:
        """Tokens that are patches of a picture."""
        out = torch.zeros_like(self.real)
        for text, images in enumerate(self.images):
            for image in images:
                out[text, image.span] = True
        return out

    @cached_property
    def sink(self) -> Bool[Tensor, "b k"]:
        """The model's own sinks, where they were searched for."""
        sinks = self.first if self.sinks.first else torch.zeros_like(self.real)
        if self.sinks.ids:
            sinks = sinks | torch.isin(self._named("ids"), torch.tensor(self.sinks.ids))
        return sinks & self.real

    @cached_property
    def punctuation(self) -> Bool[Tensor, "b k"]:
        """Pieces made of punctuation and symbols alone (Unicode categories P and S)."""
        return self._by_surface(is_punctuation)

    @cached_property
    def number(self) -> Bool[Tensor, "b k"]:
        """Pieces that hold a digit."""
        return self._by_surface(lambda text: any(char.isdigit() for char in text))

    @cached_property
    def capitalised(self) -> Bool[Tensor, "b k"]:
        """Pieces whose first letter is a capital in the text as it was written."""
        return self._by_surface(lambda text: text[0].isupper())

    @cached_property
    def rare(self) -> Bool[Tensor, "b k"]:
        """The rarest tenth (`RARE_SHARE`) of each text's ordinary tokens; ties with the last one count too."""
        # Ties count: which of two tokens of one rarity comes first in a text must not decide what is rare.
        rarity = self._named("rarity").masked_fill(~self.ordinary, -torch.inf)
        if not rarity.numel():
            return torch.zeros_like(self.real)
        count = (RARE_SHARE * self.ordinary.sum(-1, keepdim=True).double()).round().long().clamp_min(1)
        last = rarity.sort(-1, descending=True).values.gather(1, count - 1)
        return self.ordinary & (rarity >= last)

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """One number a text, made from its words alone: it decides the text's half and its bootstrap weights.

        Windows of one text have that text's: they share words, and so they are no two pieces of evidence.
        """
        if not self.texts:
            return tuple(range(self.num_texts))
        seeds = [stretch.seed for stretch in self.stretches] or [0] * self.num_texts
        return tuple(seed or text_seed(text) for seed, text in zip(seeds, self.texts, strict=True))

    def surface(self, text: int, position: int) -> str:
        """What stands at a token in the text as it was written (the bare piece where offsets are unknown)."""
        return self._surfaces[text][position]

    def _by_surface(self, test: Callable[[str], bool]) -> Bool[Tensor, "b k"]:
        """Ordinary tokens whose surface passes the test, which is made once for each surface: few of them differ."""
        known, out = {"": False}, torch.zeros_like(self.real)
        for text, surfaces in enumerate(self._surfaces):
            for surface in surfaces:
                if surface not in known:
                    known[surface] = bool(test(surface))
            out[text, : len(surfaces)] = torch.tensor([known[surface] for surface in surfaces], dtype=torch.bool)
        return out & self.ordinary

    @cached_property
    def _surfaces(self) -> list[list[str]]:
        """The surface of every token, text by text."""
        if self.offsets is None or not self.texts:
            return [[_bare(piece) for piece in pieces] for pieces in self.pieces]
        offsets: list[list[tuple[int, int]]] = self.offsets.tolist()
        pieces_of_texts = zip(self.texts, self.pieces, offsets, strict=True)
        return [
            [
                written[begin:end].strip() if end > begin else _bare(piece)
                for piece, (begin, end) in zip(pieces, spans, strict=False)
            ]
            for written, pieces, spans in pieces_of_texts
        ]

    @cached_property
    def relabelling(self) -> Int[Tensor, "b k"]:
        """For each text a shuffle of its ordinary tokens among themselves; special tokens and padding stay.

        Seeded by the text's own words, so that every run, order and machine shuffles alike.
        """
        out, generator = torch.arange(self.longest).repeat(self.num_texts, 1), torch.Generator()
        for text, seed in enumerate(self.seeds):
            where = self.ordinary[text].nonzero()[:, 0]
            # Among ordinary places alone: a special token has its place by rule, and no shuffle of words moves it.
            out[text, where] = where[torch.randperm(len(where), generator=generator.manual_seed(seed))]
        return out

    def _named(self, name: str) -> Tensor:
        value = getattr(self, name)
        if value is None:
            raise TextError(
                f"this recording knows no {name} of its tokens: record a text through a model with a tokenizer."
            )
        return value

    def with_sinks(self, sinks: Sinks) -> Tokens:
        return replace(self, sinks=sinks, target=self.target and self.target.with_sinks(sinks))

    def text(self, index: int) -> Tokens:
        """The tokens of one text alone."""
        return self.some(slice(index, index + 1))

    def some(self, chosen: slice) -> Tokens:
        """The tokens of some texts, cut to the longest of them."""
        longest = int(self.lengths[chosen].max())
        columns = {
            name: None if (value := getattr(self, name)) is None else value[chosen, :longest]
            for name in ("ids", "special", "offsets", "rarity")
        }
        listed = {name: getattr(self, name)[chosen] for name in LISTED}
        return replace(self, **listed, **columns, target=self.target and self.target.some(chosen))


def _bare(piece: str) -> str:
    """A piece without the marks of its vocabulary."""
    for mark in SUBWORD_MARKS:
        piece = piece.removeprefix(mark)
    return piece.removesuffix("</w>").strip()


def text_seed(text: str) -> int:
    """A stable 63-bit number of a text: the same on every machine, in every order of reading, with blanks around it."""
    return data_seed(text.strip().encode("utf-8", "surrogatepass"))


def data_seed(data: bytes) -> int:
    """The same of anything else that is measured: a picture's pixels, a sound's samples."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1
