"""The bundled page: our own prose on which labels rest when nobody gives a corpus.

Names that recur, numbers, quotations, questions, lists, code: varied on purpose, so that heads of many kinds find
something to do. One text a line.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files


def page_texts() -> list[str]:
    """The page's texts, in order."""
    return _read().splitlines()


def page_digest() -> str:
    """What the page's words hash to: part of the key under which labels are cached."""
    return hashlib.blake2b(_read().encode(), digest_size=8).hexdigest()


def _read() -> str:
    return files("manyheads.corpora").joinpath("page.txt").read_text(encoding="utf-8")
