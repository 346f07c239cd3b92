"""What kind of characters a token is made of: without torch, which a text's `Tokens` need."""

from __future__ import annotations

import unicodedata


def is_punctuation(text: str) -> bool:
    """Whether a text is made of punctuation and symbols alone (Unicode categories P and S); an empty one is not."""
    return bool(text) and all(unicodedata.category(char)[0] in "PS" for char in text)
