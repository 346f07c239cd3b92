"""How the report writes any text and any table: texts, names and notes are data, whatever they hold."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["data", "isolated", "table_of", "terms_of"]

LONGEST = 2_000  # characters of a text that are shown


def data(text: object) -> str:
    """Any text as a page may hold it: escaped, without control characters and halves of characters."""
    whole = str(text)
    kept = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t" else char
        for char in whole[:LONGEST]
    )
    return escape(kept + "…" * (len(whole) > LONGEST))


def isolated(text: object) -> str:
    """The same within a sentence of ours, its direction of writing its own."""
    return f"<bdi>{data(text)}</bdi>"


def table_of(kind: str, titles: Sequence[str], bodies: str) -> str:
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead>{bodies}</table></div>'


def terms_of(pairs: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{isolated(name)}</dt><dd>{isolated(told)}</dd>' for name, told in pairs)}</dl>"
