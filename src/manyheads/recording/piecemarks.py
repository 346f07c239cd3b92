"""Each text and what its tokens cover there: from the tokenizer's offsets, or put together from the marks of pieces.

Offsets say exactly which characters a token was made from, so marks are read only where there are none: slow
tokenizers, generated text. Marks of byte-level tokenizers spell the text exactly. The others do not say what was
changed before (case, accents) or how wide a space was, and WordPiece parts `didn't` into three words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from manyheads.errors import TextError
from manyheads.recording.tokens import Tokens
from manyheads.recording.wordspans import Span


def texts_and_offsets(tokens: Tokens) -> tuple[Sequence[str], Sequence[Sequence[Span]], str]:
    """Each text, each token's characters in it, and where both are from."""
    if not tokens.pieces or tokens.special is None:
        raise TextError("this recording knows no pieces, so no words: record a text through a model with a tokenizer.")
    if tokens.offsets is not None and tokens.texts:
        covers = (tokens.offsets[..., 1] > tokens.offsets[..., 0]) & tokens.ordinary
        if bool(covers.any()) or not bool(tokens.ordinary.any()):
            lengths = tokens.lengths.tolist()
            rows = [[(b, e) for b, e in row[:n].tolist()] for row, n in zip(tokens.offsets, lengths, strict=True)]
            return tokens.texts, rows, "the tokenizer's offsets"
    added = [row[:n].tolist() for row, n in zip(tokens.special, tokens.lengths.tolist(), strict=True)]
    texts, rows, marks = text_of_marks(tokens.pieces, added)
    return texts, rows, f"the marks of pieces, as their offsets are not known ({marks})"


def text_of_marks(
    pieces: Sequence[Sequence[str]], special: Sequence[Sequence[bool]]
) -> tuple[list[str], list[list[Span]], str]:
    """Texts as their pieces spell them, each piece's span there, and by which marks."""
    ordinary = [p for row, added in zip(pieces, special, strict=True) for p, s in zip(row, added, strict=True) if not s]
    name, spell = next((name, spell) for name, test, spell in _MARKS if test(ordinary))
    texts, spans = [], []
    for row, added in zip(pieces, special, strict=True):
        spelt = [b" " if s else spell(piece) for piece, s in zip(row, added, strict=True)]
        text, places = _decoded(spelt)
        texts.append(text)
        spans.append([(b, b) if s else (b, e) for (b, e), s in zip(places, added, strict=True)])
    return texts, spans, name


def _decoded(spelt: Sequence[bytes]) -> tuple[str, list[Span]]:
    """UTF-8 in pieces, put together, and which characters each piece has a byte of. Stray bytes become U+FFFD."""
    text, owners = b"".join(spelt).decode("utf-8", "surrogateescape"), []
    for at, char in enumerate(text):
        owners += [at] * len(char.encode("utf-8", "surrogateescape"))
    spans, at = [], 0
    for part in spelt:
        begin = owners[at] if at < len(owners) else len(text)
        at += len(part)
        spans.append((begin, owners[at - 1] + 1 if part else begin))
    return re.sub("[\udc80-\udcff]", "\ufffd", text), spans


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for 256 and up, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _spell_bytes(piece: str) -> bytes:
    known = all(char in _BYTE_OF for char in piece)
    return bytes(_BYTE_OF[char] for char in piece) if known else _utf8(piece)


def _spell_metaspace(piece: str) -> bytes:
    byte = re.fullmatch("<0x([0-9A-Fa-f]{2})>", piece)  # what the vocabulary lacks, byte by byte
    return bytes([int(byte[1], 16)]) if byte else _utf8(piece.replace("▁", " "))


def _spell_single(piece: str) -> bytes:
    return bytes([ord(piece)]) if ord(piece) < 256 else _utf8(piece)


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
    ("one byte a piece", lambda pieces: bool(pieces) and all(len(piece) == 1 for piece in pieces), _spell_single),
    ("none found: each piece apart", lambda pieces: True, lambda piece: _utf8(f" {piece}")),
)
