"""Cards that were made before: remembered as JSON in the user's cache folder, a file a head; and what heads are worth,
the longest measurement, so that a run that was stopped begins again where it was.

A card is a model's only if all that it depends on is as it was: the weights, the words of the tokenizer, the config,
the dtype, the page of texts, our own source. A cache that cannot be read or written costs the measuring again, and the
card's notes say so.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyheads.base import Json, no_access, replacing, users_folder
from manyheads.cards.head_card import Card
from manyheads.corpora import reading_of
from manyheads.errors import FileAccessError
from manyheads.heads import Head
from manyheads.measurement.corpus_run import code_digest, config_digest
from manyheads.models import LoadedModel

Place = Path | FileAccessError | None
"""Where something is remembered, why nowhere, or None: nothing is to be."""
NOTE = "remembered"
# Whatever is wrong with a cache, the answer is to measure again: it holds nothing that cannot be had anew.
DAMAGED = (EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError, zlib.error)


def folder_of(lm: LoadedModel) -> Place:
    """Where this model's cards are remembered, or why nowhere."""
    tokenizer = lm.tokenizer
    vocabulary = "" if tokenizer is None else repr(sorted(tokenizer.get_vocab().items())[:: len(tokenizer) // 997 + 1])
    parts = (lm.name, lm.weights_sums, config_digest(lm.model), str(lm.dtype), vocabulary, code_digest())
    page = "" if tokenizer is None else reading_of(lm.name).digest()
    key = hashlib.blake2b("\0".join((*parts, page)).encode(), digest_size=12).hexdigest()
    try:
        return users_folder("MANYHEADS_CACHE", "XDG_CACHE_HOME", ".cache") / f"cards-{key}"
    except FileAccessError as error:  # no home
        return error


def remembered(folder: Place, heads: Sequence[Head]) -> dict[Head, Card]:
    """The cards of these heads that an earlier run made; one that is damaged is made again."""
    known: dict[Head, Card] = {}
    for head in heads:
        with suppress(*DAMAGED):
            if data := stored(folder, name_of(head)):
                known[head] = Card.from_dict(data)
    return known


def keep(folder: Place, card: Card) -> Card:
    """Write a card, whole or not at all; returned with a note of whether that worked. Without a folder, as it is."""
    if folder is None:
        return card
    known = _noted(card, f"from an earlier run ({folder})")
    reason = store(folder, name_of(card.head), known.to_dict())
    return _noted(card, f"measured now, {f'and not remembered: {reason}' if reason else 'remembered for the next run'}")


def name_of(head: Head) -> str:
    """The file of a head's card, without its ending."""
    return str(head).replace(":", "-")


def stored(folder: Place, name: str) -> Mapping[str, Any]:
    """What was stored under a name; empty where nothing is, or what is there is damaged."""
    if not isinstance(folder, Path) or not (path := folder / f"{name}.json.gz").is_file():
        return {}
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, *DAMAGED):
        return {}
    return data if isinstance(data, dict) else {}


def store(folder: Place, name: str, data: Json) -> str:
    """Write plain data, whole or not at all, if there is a folder. Returns why that did not work, "" where it did."""
    if not isinstance(folder, Path):
        return str(folder or "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / f"{name}.json.gz") as temporary:
            Path(temporary).write_bytes(gzip.compress(json.dumps(data).encode(), mtime=0))
    except OSError as error:
        return str(error if isinstance(error, FileAccessError) else no_access("write", folder, error))
    return ""


def _noted(card: Card, words: str) -> Card:
    return replace(card, notes={**card.notes, NOTE: words.removesuffix(".")})
