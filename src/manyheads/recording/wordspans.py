"""Where the words of a text stand: spans `(begin, end)` of its characters, ordered and disjoint.

What a word is has no one answer, so each answer has a name (`WAYS`). None of them knows a language: a stretch of
Chinese or Thai, written without spaces, is one word here, and `don't` is one word, not the `do` and `n't` of a
treebank. Whoever wants those words gives their spans. Cost: O(characters). Source: Unicode's general categories.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

from manyheads.errors import TextError

Span = tuple[int, int]

INNER_MARKS = "'\u2019-\u2010\u2011"  # apostrophes and hyphens: no break between a letter or digit and another
DIGIT_MARKS = ".,"  # no break between two digits: 3.14 and 1,000
ZERO_WIDTH_SPACE, JOINER = "\u200b", "\u200d"


def is_space(char: str) -> bool:
    """White space as Python has it, and the zero-width space, which is there to part words."""
    return char.isspace() or char == ZERO_WIDTH_SPACE


def word_spans(text: str) -> list[Span]:
    """Runs without white space, with each mark of punctuation and each symbol a word of its own.

    Apostrophes and hyphens inside a word stay in it (don't, well-known), so do `.` and `,` between digits. An emoji is
    one mark with all that is joined to it: skin tones, ZWJ families, the two letters of a flag, a keycap's frame.
    """
    spans, at = [], 0
    while at < len(text):
        if is_space(text[at]):
            at += 1
            continue
        end = _end_of_mark(text, at) if _is_mark(text[at]) else _end_of_run(text, at)
        spans.append((at, end))
        at = end
    return spans


def run_spans(text: str) -> list[Span]:
    """Runs between white space, punctuation and all."""
    spans, begin = [], None
    for at, char in enumerate(text + " "):
        if is_space(char):
            if begin is not None:
                spans.append((begin, at))
            begin = None
        elif begin is None:
            begin = at
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
    out = []
    for begin, end in offsets:
        covered = [owner[at] for at in range(begin, min(end, len(text))) if not is_space(text[at])]
        word = covered[0] if covered else -1
        out.append((word, any(other not in (-1, word) for other in covered)))
    return out


def _is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] in "PS"


def _end_of_run(text: str, begin: int) -> int:
    end = begin + 1
    while end < len(text) and not is_space(text[end]):
        if _is_mark(text[end]) and not _stays_inside(text, end):
            break
        end += 1
    return end


def _stays_inside(text: str, at: int) -> bool:
    before, char, after = text[at - 1], text[at], text[at + 1 : at + 2]
    if char in INNER_MARKS:
        return after.isalnum()  # what is before is in the word: no mark, or it would have ended there
    return char in DIGIT_MARKS and before.isdigit() and after.isdigit()


def _end_of_mark(text: str, begin: int) -> int:
    end = begin + 1
    if _is_flag_letter(text[begin]) and end < len(text) and _is_flag_letter(text[end]):
        end += 1
    while end < len(text):
        joined = text[end - 1] == JOINER and unicodedata.category(text[end])[0] == "S"
        if not joined and not _extends(text[end]):
            break
        end += 1
    return end


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _extends(char: str) -> bool:
    """Combining marks, variation selectors, joiners and tags (category Cf), skin tones."""
    category = unicodedata.category(char)
    return category[0] == "M" or (category == "Cf" and not is_space(char)) or "\U0001f3fb" <= char <= "\U0001f3ff"
