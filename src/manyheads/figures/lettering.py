"""Words in figures: tokens are data, whatever they hold, and are drawn as they are written.

A token may be a formula's dollar sign, markup, an emoji, a line break, right-to-left script, or four thousand letters.
So nothing is ever read as mathtext, what cannot be printed gets a visible stand-in, what is too long is cut with an
ellipsis at a measured width, and characters that no font here has become a box, said nowhere else. DejaVu ships with
matplotlib and covers Latin, Greek, Cyrillic, Hebrew, Arabic and much else; fonts for other scripts are used where the
system has them.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from matplotlib import font_manager
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

Pixels = int | float

SANS = "DejaVu Sans"
MONO = "DejaVu Sans Mono"
OTHER_SCRIPTS = (  # asked for only where installed
    "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR",
    "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Thai", "Noto Sans Symbols 2", "Noto Sans Symbols2",
    "Noto Emoji", "Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Apple Symbols", "Arial Unicode MS",
    "Microsoft YaHei", "Malgun Gothic", "Nirmala UI", "Leelawadee UI", "Segoe UI Symbol", "WenQuanYi Zen Hei",
)  # fmt: skip
STAND_INS = {"\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"}
NOT_PRINTED = "\N{REPLACEMENT CHARACTER}"  # control characters, halves of surrogate pairs, code points of no meaning
NO_GLYPH = "\N{WHITE SQUARE}"
NOTHING = "\N{MIDDLE DOT}"  # for a token of which nothing is left to see: zero-width marks alone
LONGEST = 400  # characters: more fit no line, and measuring them costs time
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"  # letters of Persian and Indic scripts hang on them


@lru_cache
def families(mono: bool) -> tuple[str, ...]:
    """Fonts to look in for each character, in this order."""
    installed = set(font_manager.fontManager.get_font_names())
    first = (MONO, SANS) if mono else (SANS, MONO)
    return (*first, *(name for name in OTHER_SCRIPTS if name in installed))


@lru_cache
def _coverage() -> frozenset[int]:
    """The code points that some font has."""
    paths = (font_manager.findfont(FontProperties(family=name)) for name in families(mono=False))
    return frozenset(code for path in paths for code in font_manager.get_font(path).get_charmap())


def printable(text: str) -> str:
    """The text on one line, with stand-ins for what cannot be printed; valid in any XML file."""
    kept = "".join(_stand_in(char) for char in text[:LONGEST])
    return kept + "…" if len(text) > LONGEST else kept or (NOTHING if text else "")


def _stand_in(char: str) -> str:
    if char in STAND_INS:
        return STAND_INS[char]
    category = unicodedata.category(char)
    if category == "Cf":  # invisible marks, among them those that would turn the rest of the line round
        return char if char in JOINERS else ""
    return NOT_PRINTED if category in ("Cc", "Cs", "Co", "Cn") else char


def drawable(text: str) -> str:
    """`printable`, with a box for each character that no font here has."""
    covered = _coverage()
    return "".join(char if ord(char) in covered else "" if _goes_unseen(char) else NO_GLYPH for char in printable(text))


def _goes_unseen(char: str) -> bool:
    """Joiners and variation selectors only change their neighbours."""
    return char in JOINERS or "\ufe00" <= char <= "\ufe0f"


@lru_cache(maxsize=8_192)
def text_width(text: str, size: Pixels, mono: bool = False, weight: str = "normal") -> float:
    """How wide a drawable text is, in the unit of `size`."""
    font = FontProperties(family=list(families(mono)), size=100, weight=weight)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] * size / 100


def fitted(text: str, width: Pixels, size: Pixels, mono: bool = False, weight: str = "normal") -> str:
    """`drawable`, cut with an ellipsis where it is wider than `width`; "" where not even one letter fits."""
    whole = drawable(text)
    if text_width(whole, size, mono, weight) <= width:
        return whole
    low, high = 0, len(whole)
    while low < high:  # the most letters that fit
        middle = (low + high + 1) // 2
        if text_width(whole[:middle].rstrip() + "…", size, mono, weight) <= width:
            low = middle
        else:
            high = middle - 1
    return whole[:low].rstrip() + "…" if low else ""
