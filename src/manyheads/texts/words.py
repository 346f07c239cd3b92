"""Attention between words: which word each token belongs to, and maps of pieces merged into maps of words.

Models read pieces, people and treebanks read words. Attention *to* a word is the sum over its pieces, attention *from*
a word the mean over them, so rows that sum to one still do. Tokens of no word (special ones, white space) stay units
of their own.

What a word is has no one answer, so each answer has a name (`WAYS`). None of them knows a language: a stretch of
Chinese or Thai, written without spaces, is one word here, and `don't` is one word, not the `do` and `n't` of a
treebank. Whoever wants those words gives their spans: `(begin, end)` of characters, ordered and disjoint.

Which characters a token covers is known exactly from the tokenizer's offsets, so the marks of pieces are read only
where there are none: slow tokenizers, generated text. Marks of byte-level tokenizers spell the text exactly. The others
do not tell what was changed before (case, accents) or how wide a space was, and WordPiece parts `didn't` into three
words.

Cost: O(characters). Sources: Unicode's general categories; Clark et al. 2019, section 4.1 (sum, mean); their published
code takes the first piece.
"""

# device: words are the host's

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch does not say of what numbers the lists of `tolist` are.

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.base import one_of
from manyheads.errors import ShapeError, StatisticError, TextError
from manyheads.texts.tokens import Tokens

# -------------------------------------------------------------------------------------- where the words of a text stand


Span = tuple[int, int]

INNER_MARKS = "'\u2019-\u2010\u2011"  # apostrophes and hyphens: no break between a letter or digit and another
DIGIT_MARKS = ".,"  # no break between two digits: 3.14 and 1,000
ZERO_WIDTH_SPACE, JOINER = "\u200b", "\u200d"
SKIN = "\U0001f3fb", "\U0001f3ff"  # the first and the last tone


def is_space(char: str) -> bool:
    """White space as Python has it, and the zero-width space, which is there to part words."""
    return char.isspace() or char == ZERO_WIDTH_SPACE


def _is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] in "PS"


def word_spans(text: str) -> list[Span]:
    """Runs without white space, with each mark of punctuation and each symbol a word of its own.

    Apostrophes and hyphens inside a word stay in it (don't, well-known), so do `.` and `,` between digits. An emoji is
    one mark with all that is joined to it: skin tones, ZWJ families, the two letters of a flag, a keycap's frame.
    """
    spans, begin = list[Span](), 0
    while begin < len(text):
        if is_space(text[begin]):
            begin += 1
            continue
        end = _end_of_mark(text, begin) if _is_mark(text[begin]) else _end_of_run(text, begin)
        spans.append((begin, end))
        begin = end
    return spans


def run_spans(text: str) -> list[Span]:
    """Runs between white space, punctuation and all."""
    spans, begin = list[Span](), None
    for index, char in enumerate(text + " "):
        if is_space(char):
            if begin is not None:
                spans.append((begin, index))
            begin = None
        elif begin is None:
            begin = index
    return spans


WAYS: dict[str, Callable[[str], list[Span]]] = {"words": word_spans, "whitespace": run_spans}


def checked_spans(spans: Sequence[Span], text: str, index: int) -> tuple[Span, ...]:
    """Given spans, if they are ordered, disjoint and inside the text."""
    last = 0
    for begin, end in spans:
        if not last <= begin < end <= len(text):
            raise TextError(
                f"the span ({begin}, {end}) of text {index} does not fit: spans are (begin, end) of characters, in "
                f"order, not empty, not overlapping, and within the text's {len(text)} characters."
            )
        last = end
    return tuple((int(begin), int(end)) for begin, end in spans)


def words_of_tokens(text: str, spans: Sequence[Span], offsets: Sequence[Span]) -> list[tuple[int, bool]]:
    """For each token its word (-1 for none), and whether it covers characters of another one."""
    owner = [-1] * len(text)
    for word, (begin, end) in enumerate(spans):
        owner[begin:end] = [word] * (end - begin)
    out: list[tuple[int, bool]] = []
    for begin, end in offsets:
        # White space is looked past: a byte-level piece has the blank before its word, which belongs to no word.
        covered = [owner[place] for place in range(begin, min(end, len(text))) if not is_space(text[place])]
        word = covered[0] if covered else -1
        out.append((word, any(owner_word not in (-1, word) for owner_word in covered)))
    return out


def _end_of_run(text: str, begin: int) -> int:
    for end in range(begin + 1, len(text)):
        before, char, after = text[end - 1], text[end], text[end + 1 : end + 2]
        if is_space(char):
            return end
        # What is before is in the word: no mark, or the word would have ended there.
        inside = char in INNER_MARKS and after.isalnum()
        inside = inside or (char in DIGIT_MARKS and before.isdigit() and after.isdigit())
        if _is_mark(char) and not inside:
            return end
    return len(text)


def _end_of_mark(text: str, begin: int) -> int:
    end = begin + 1
    if _is_flag_letter(text[begin]) and end < len(text) and _is_flag_letter(text[end]):
        end += 1
    while end < len(text):
        char, category = text[end], unicodedata.category(text[end])
        joined = text[end - 1] == JOINER and category[0] == "S"
        # Variation selectors are combining marks; joiners and tags are of the category Cf.
        extends = category[0] == "M" or (category == "Cf" and not is_space(char)) or SKIN[0] <= char <= SKIN[1]
        if not joined and not extends:
            break
        end += 1
    return end


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


# -------------------------------------------------------------------------------------- which characters a token covers


def texts_and_offsets(tokens: Tokens) -> tuple[Sequence[str], Sequence[Sequence[Span]], str]:
    """Each text, each token's characters in it, and where both are from."""
    if not tokens.pieces or tokens.special is None:
        raise TextError("this recording knows no pieces, so no words: record a text through a model with a tokenizer.")
    if tokens.offsets is not None and tokens.texts:
        covers = (tokens.offsets[..., 1] > tokens.offsets[..., 0]) & tokens.ordinary
        if bool(covers.any()) or not bool(tokens.ordinary.any()):
            lengths: list[int] = tokens.lengths.tolist()
            offsets: list[list[tuple[int, int]]] = tokens.offsets.tolist()
            rows = [[(b, e) for b, e in row[:n]] for row, n in zip(offsets, lengths, strict=True)]
            return tokens.texts, rows, "the tokenizer's offsets"
    added: list[list[bool]] = [row[:n].tolist() for row, n in zip(tokens.special, tokens.lengths.tolist(), strict=True)]
    texts, rows, marks = text_of_marks(tokens.pieces, added)
    return texts, rows, f"the marks of pieces, as their offsets are not known ({marks})"


def text_of_marks(
    pieces: Sequence[Sequence[str]], special: Sequence[Sequence[bool]]
) -> tuple[list[str], list[list[Span]], str]:
    """Texts as their pieces spell them (stray bytes as U+FFFD), each piece's span there, and by which marks."""
    # Over the whole batch: a short text may hold no piece that shows the mark, and one tokenizer wrote all of them.
    ordinary = [p for row, added in zip(pieces, special, strict=True) for p, s in zip(row, added, strict=True) if not s]
    name, spell = next((name, spell) for name, test, spell in _MARKS if test(ordinary))
    texts, spans = list[str](), list[list[Span]]()
    for row, added in zip(pieces, special, strict=True):
        spelt = [b" " if s else spell(piece) for piece, s in zip(row, added, strict=True)]
        # A piece may end inside a character, so the bytes are decoded together, and each one's character is noted.
        text, owners = b"".join(spelt).decode("utf-8", "surrogateescape"), list[int]()
        for index, char in enumerate(text):
            owners += [index] * len(char.encode("utf-8", "surrogateescape"))
        text_spans, index = list[Span](), 0
        for part, is_special in zip(spelt, added, strict=True):
            begin = owners[index] if index < len(owners) else len(text)
            index += len(part)
            text_spans.append((begin, owners[index - 1] + 1 if part and not is_special else begin))
        texts.append(re.sub("[\udc80-\udcff]", "\ufffd", text))
        spans.append(text_spans)
    return texts, spans, name


# GPT-2's letters for bytes: printable ones stand for themselves, the others for 256 and up, in order.
_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_UNPRINTABLE)}


def _spell_bytes(piece: str) -> bytes:
    known = all(char in _BYTE_OF for char in piece)
    return bytes(_BYTE_OF[char] for char in piece) if known else _utf8(piece)


def _spell_metaspace(piece: str) -> bytes:
    byte = re.fullmatch("<0x([0-9A-Fa-f]{2})>", piece)  # what the vocabulary lacks, byte by byte
    return bytes([int(byte[1], 16)]) if byte else _utf8(piece.replace("▁", " "))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_MARKS: tuple[tuple[str, Callable[[Sequence[str]], bool], Callable[[str], bytes]], ...] = (
    ("▁ before a word", lambda pieces: any(piece.startswith("▁") for piece in pieces), _spell_metaspace),
    ("Ġ for a space", lambda pieces: any("Ġ" in piece or "Ċ" in piece for piece in pieces), _spell_bytes),
    (
        "</w> after a word",
        lambda pieces: any(piece.endswith("</w>") for piece in pieces),
        lambda piece: _utf8(piece.replace("</w>", " ")),
    ),
    (
        "## inside a word",
        lambda pieces: any(piece.startswith("##") and len(piece) > 2 for piece in pieces),
        lambda piece: _utf8(piece[2:] if piece.startswith("##") and len(piece) > 2 else f" {piece}"),
    ),
    (
        "one byte a piece",
        lambda pieces: bool(pieces) and all(len(piece) == 1 for piece in pieces),
        lambda piece: bytes([ord(piece)]) if ord(piece) < 256 else _utf8(piece),
    ),
    ("none found: each piece apart", lambda pieces: True, lambda piece: _utf8(f" {piece}")),
)

How = Literal["mean", "first", "max"]
HOWS: tuple[How, ...] = get_args(How)
Drop = Literal["none", "special", "wordless"]
DROPS: tuple[Drop, ...] = get_args(Drop)
By = str | Sequence[Sequence[Span]]


class Unit(NamedTuple):
    """A row or column of a map of words: a word with its tokens, or a token of no word (`word` is -1) alone."""

    text: str
    span: Span
    tokens: tuple[int, ...]
    word: int
    special: bool


class WordMap(NamedTuple):
    """Weights between units: `weights[..., i, j]` is how much `queries[i]` looks at `keys[j]`."""

    queries: tuple[Unit, ...]
    keys: tuple[Unit, ...]
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Words:
    """The words of each text, `spans[text][word] = (begin, end)` in `texts[text]`, and the word of each token.

    `offsets[text][token]` are the characters that a token covers. `of_token` is -1 for special tokens, padding and
    tokens of no word. `straddling` marks tokens that also cover characters of a word that is not theirs. `because`
    says what all this was read from.
    """

    tokens: Tokens
    texts: tuple[str, ...]
    spans: tuple[tuple[Span, ...], ...]
    offsets: tuple[tuple[Span, ...], ...]
    of_token: Int[Tensor, "b k"]
    straddling: Bool[Tensor, "b k"]
    because: str

    @staticmethod
    def bytes_of(piece: str) -> str:
        """A piece that is part of a character, as its bytes: for vocabularies of bytes, or that fall back to them.

        >>> Words.bytes_of("âĢ"), Words.bytes_of("<0xE2>")
        ('\\\\xe2\\\\x80', '\\\\xe2')
        """
        known = all(char in _BYTE_OF for char in piece) and not piece.startswith("<0x")
        return (_spell_bytes(piece) if known else _spell_metaspace(piece)).decode("utf-8", "backslashreplace")

    @staticmethod
    def of(tokens: Tokens, by: By = "words") -> Words:
        """The words of a batch of texts: by a name in `wordspans.WAYS`, or by the spans of each text's words.

        A token belongs to the word that its first character other than white space lies in; a token of white space
        alone, or of no character, to none. A word in which no token begins has no token: it is in `spans`, and is no
        unit. Given spans count characters of `tokens.texts`: of the text as it was given, or of the window that stands
        for a part of it (`tokens.stretches` says where that begins). Without offsets (slow tokenizers, generated text),
        the text is put together from the marks of its pieces, `because` says by which, and `texts` is what came out;
        spans cannot be given then.
        Cost: O(characters + tokens). Errors: TextError for tokens without text, unknown ways, spans that do not fit.
        """
        if not isinstance(by, str) and len(by) != tokens.num_texts:
            raise TextError(f"spans of {len(by)} texts were given for {tokens.num_texts}: give each text a list.")
        if isinstance(by, str):
            one_of("by", by, WAYS, TextError, "is not a way to find words", ", or give spans")
        texts, offsets, source = texts_and_offsets(tokens)
        if texts is not tokens.texts and not isinstance(by, str):
            raise TextError(
                "spans were given, but this recording has no character offsets to match them with: use by='words'."
            )
        if isinstance(by, str):
            spans = tuple(tuple(WAYS[by](text)) for text in texts)
        else:
            spans = tuple(
                checked_spans(text_spans, text, index)
                for index, (text_spans, text) in enumerate(zip(by, texts, strict=True))
            )
        of_token = torch.full(tokens.real.shape, -1, device=tokens.real.device)
        straddling = torch.zeros_like(tokens.real)
        for text, text_spans in enumerate(spans):
            numbers = words_of_tokens(texts[text], text_spans, offsets[text])
            numbers = torch.tensor(numbers, device=of_token.device).view(-1, 2)
            ordinary = tokens.ordinary[text, : len(numbers)]
            of_token[text, : len(numbers)] = torch.where(ordinary, numbers[:, 0].long(), -1)
            straddling[text, : len(numbers)] = ordinary & (numbers[:, 1] > 0)
        way, astride = repr(by) if isinstance(by, str) else "given spans", int(straddling.sum())
        because = f"words by {way}, from {source}" + (f"; tokens that straddle words: {astride}" if astride else "")
        return Words(tokens, tuple(texts), spans, tuple(map(tuple, offsets)), of_token, straddling, because)

    def units(self, text: int = 0, drop: Drop = "none") -> tuple[Unit, ...]:
        """A text's units in the order of their first tokens: words that have tokens, and tokens of no word.

        `drop="special"` leaves out what the tokenizer added, `"wordless"` every token of no word. Cost: O(tokens).
        Errors: TextError for another `drop`, ShapeError for a text that is not there.
        """
        one_of("drop", drop, DROPS, TextError, "is not what can be dropped")
        text = self._index(text)
        groups: dict[tuple[int, int], list[int]] = {}
        of_token: list[int] = self.of_token[text, : int(self.tokens.lengths[text])].tolist()
        for token, word in enumerate(of_token):
            groups.setdefault((word, -1 if word >= 0 else token), []).append(token)
        units: list[Unit] = []
        for (word, token), members in groups.items():
            if word >= 0:
                begin, end = self.spans[text][word]
                units.append(Unit(self.texts[text][begin:end], (begin, end), tuple(members), word, False))
                continue
            special = not bool(self.tokens.ordinary[text, token])
            if drop == "none" or (drop == "special" and not special):
                piece, span = self.tokens.pieces[text][token], self.offsets[text][token]
                units.append(Unit(piece, span, (token,), -1, special))
        return tuple(units)

    def text(self, index: int) -> Words:
        """The words of one text alone."""
        index = self._index(index)
        alone, chosen = self.tokens.text(index), slice(index, index + 1)
        of_token, straddling = self.of_token[chosen, : alone.longest], self.straddling[chosen, : alone.longest]
        return Words(
            alone, self.texts[chosen], self.spans[chosen], self.offsets[chosen], of_token, straddling, self.because
        )

    def _index(self, text: int) -> int:
        if not -len(self.texts) <= text < len(self.texts):
            raise ShapeError(f"{text=} has no words here: they are of {len(self.texts)} texts, counted from 0.")
        return text % len(self.texts)


def merge(
    weights: Float[Tensor, "*h q k"], from_words: Int[Tensor, "from"], to_words: Int[Tensor, "to"], how: How = "mean"
) -> Float[Tensor, "*h r c"]:
    """A map of pieces as a map of words: columns of a word are summed, its rows become one row.

    `from_words[i]` is the number of the word that piece i is of, from 0, each number at least once; pieces at -1 are
    left out. `how`: "mean" over a word's rows; "first", its first piece's row; "max", the largest of its rows in each
    column, scaled back to the mass that its rows have on average (else a row would sum to more than one).
    Cost: O(q * k). Errors: ShapeError, StatisticError. Source: Clark et al. 2019, section 4.1 and published code.
    """
    for name, words, size in (("from_words", from_words, weights.shape[-2]), ("to_words", to_words, weights.shape[-1])):
        if len(words) != size:
            raise ShapeError(f"{name} numbers {len(words)} pieces, but the weights have {size} there: give one each.")
        numbers: set[int] = set(words.tolist()) - {-1}
        if numbers != set(range(len(numbers))):
            raise ShapeError(f"{name} must number words 0, 1, 2 ... without a gap (or -1), not {sorted(numbers)[:12]}.")
    merging = Merging(from_words, to_words, how)
    merging.add(weights, 0)
    return merging.weights


class Merging:
    """A map of words, gathered from blocks of rows of pieces: what `merge` does, for maps that nobody holds whole.

    The rows of a word may come in several blocks. State: the map so far and, for "max", the mass of each row.
    """

    def __init__(self, from_words: Int[Tensor, "q"], to_words: Int[Tensor, "k"], how: How = "mean") -> None:
        one_of("how", how, HOWS, StatisticError, "is not a way to merge the rows of a word")
        self._how, self._rows, self._columns = how, from_words, to_words
        self._num_rows, self._num_columns = (int(w.max()) + 1 if len(w) else 0 for w in (from_words, to_words))
        in_word, row_index = from_words >= 0, torch.arange(len(from_words), device="cpu")
        rows = from_words[in_word]
        first = torch.full((self._num_rows,), len(row_index), device="cpu").scatter_reduce(
            0, rows, row_index[in_word], "amin"
        )
        counts = rows.bincount(minlength=self._num_rows).double()
        # A word's rows may come in two blocks, so which row is its first, and how many it has, is settled before them.
        self._share = torch.zeros(
            len(row_index), dtype=torch.float64, device="cpu"
        )  # of a row of pieces in its word's row
        self._share[in_word] = (row_index[in_word] == first[rows]).double() if how == "first" else 1 / counts[rows]
        self._map: Tensor | None = None
        self._mass: Tensor | None = None

    def add(self, weights: Float[Tensor, "*h r k"], begin: int) -> None:
        """Take in the rows of pieces from `begin` on. Float32 at least; float64 stays. The map is where they are."""
        dtype = torch.promote_types(weights.dtype, torch.float32)
        heads, span = weights.shape[:-2], slice(begin, begin + weights.shape[-2])
        if self._map is None:
            self._map = weights.new_zeros(*heads, self._num_rows, self._num_columns, dtype=dtype)
            self._mass = weights.new_zeros(*heads, self._num_rows, dtype=dtype)
        assert self._mass is not None
        rows, columns = self._rows[span], self._columns
        # Pieces of no word are cut out first: index_add knows no -1.
        row_index, column_index = ((numbers >= 0).nonzero()[:, 0].to(weights.device) for numbers in (rows, columns))
        share, rows, columns = self._share[span][rows >= 0].to(dtype), rows[rows >= 0], columns[columns >= 0]
        share, rows, columns = (part.to(weights.device) for part in (share, rows, columns))
        weights = weights[..., row_index, :][..., column_index].to(dtype)
        sums = weights.new_zeros(*weights.shape[:-1], self._num_columns).index_add_(-1, columns, weights)
        if self._how == "max":
            self._map.scatter_reduce_(-2, rows[:, None].expand_as(sums), sums, "amax")
            self._mass.index_add_(-1, rows, share * sums.sum(-1))
        else:
            self._map.index_add_(-2, rows, share[:, None] * sums)

    @property
    def weights(self) -> Tensor:
        """The map of words, once every row is in."""
        assert self._map is not None and self._mass is not None
        if self._how != "max":
            return self._map
        # A word whose rows saw nothing has mass 0 over a sum of 0: nan_to_num leaves its row at 0.
        return self._map * (self._mass / self._map.sum(-1)).nan_to_num()[..., None]


def words_of_text(
    words: Words | str | None, tokens: Tokens, text: int, length: int, name: str, padded: bool = False
) -> Words:
    """The words of one text, of which the layer has `length` tokens (with padding, where it keeps that)."""
    if words is None or isinstance(words, str):
        text_words = Words.of(tokens.text(text), words or "words")
    else:
        text_words = words.text(text)
    if (num_tokens := text_words.tokens.longest) > length or (num_tokens < length and not padded):
        raise ShapeError(
            f"{name} are of {num_tokens} tokens, but text {text} has {length} here: give words of the same tokens."
        )
    return text_words


def numbered(units: Sequence[Unit]) -> tuple[Int[Tensor, "pieces"], slice]:
    """The stretch of pieces that holds these units, and each piece's unit there (-1: of none)."""
    members = [token for unit in units for token in unit.tokens]
    span = slice(min(members, default=0), max(members, default=-1) + 1)
    numbers = [-1] * (span.stop - span.start)
    for number, unit in enumerate(units):
        for token in unit.tokens:
            numbers[token - span.start] = number
    return torch.tensor(numbers, dtype=torch.long), span


# ------------------------------------------------------------------------------------------- tokens as people read them

READABLE_SPACES = {" ": "␣", "\n": "↵", "\r": "↵", "\t": "⇥"}
MOST_SPACES = 4  # more of one kind are counted: ␣×12


def readable(tokens: Tokens, text: int = 0) -> tuple[str, ...]:
    """Each token of a text as people read it, never empty: what stands there in the text, without vocabulary marks.

    White space alone is shown as its characters (␣ ↵ ⇥), a part of a character as its bytes (\\xf0\\x9f); where the
    offsets are unknown, the marks of pieces (Ġ, ▁, ##, </w>) are read. Special tokens keep their names.
    """
    # For each text which of its tokens the tokenizer added.
    special: list[list[bool]] = (
        [[False] * len(row) for row in tokens.pieces] if tokens.special is None else tokens.special.tolist()
    )
    spell: Callable[[str], bytes] | None = None
    out: list[str] = []
    for place, piece in enumerate(tokens.pieces[text]):
        written = ""
        if not special[text][place]:
            if tokens.offsets is not None and tokens.texts:
                span: list[int] = tokens.offsets[text, place].tolist()
                begin, end = span
                written = tokens.texts[text][begin:end]
            if not written:
                if spell is None:  # read off all texts: a short one may hold no piece that shows the mark
                    rows = zip(tokens.pieces, special, strict=True)
                    ordinary = [p for row, added in rows for p, s in zip(row, added, strict=False) if not s]
                    spell = next(spell for _, has_mark, spell in _MARKS if has_mark(ordinary))
                written = spell(piece).decode("utf-8", "backslashreplace")
        blanks = groupby(READABLE_SPACES.get(char, "␣") for char in written)
        runs = ((char, len(list(run))) for char, run in blanks)
        spaces = "".join(char * count if count <= MOST_SPACES else f"{char}×{count}" for char, count in runs)
        out.append(written.strip() or spaces or piece)
    return tuple(out)
