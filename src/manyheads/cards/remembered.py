"""Cards that were made before: remembered as JSON in the user's cache folder, a file a head.

A card is a model's only if all that it depends on is as it was: the weights, the words of the tokenizer, the config,
the dtype, the page of texts, our own source. A cache that cannot be read or written costs the measuring again, and the
card's notes say so.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from manyheads.base import no_access, replacing, users_folder
from manyheads.cards.head_card import Card
from manyheads.corpora import reading_of
from manyheads.errors import FileAccessError
from manyheads.heads import Head
from manyheads.measurement.corpus_run import code_digest, config_digest
from manyheads.models import LoadedModel

NOTE = "remembered"


def folder_of(lm: LoadedModel) -> Path | FileAccessError:
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


def remembered(folder: Path | FileAccessError, heads: Sequence[Head]) -> dict[Head, Card]:
    """The cards of these heads that an earlier run made; one that is damaged is made again."""
    known: dict[Head, Card] = {}
    if isinstance(folder, FileAccessError):
        return known
    for head in heads:
        path = folder / f"{str(head).replace(':', '-')}.json.gz"
        if not path.is_file():
            continue
        try:
            known[head] = Card.from_dict(json.loads(gzip.decompress(path.read_bytes())))
        # Whatever is wrong with a cache, the answer is to measure again: it holds nothing that cannot be had anew.
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
    return known


def remember(folder: Path | FileAccessError, card: Card) -> Card:
    """Write a card, whole or not at all; returned with a note of whether that worked."""
    if isinstance(folder, FileAccessError):
        return _noted(card, f"measured now, and not remembered: {folder}")
    path = folder / f"{str(card.head).replace(':', '-')}.json.gz"
    known = _noted(card, f"from an earlier run ({folder})")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            Path(temporary).write_bytes(gzip.compress(json.dumps(known.to_dict()).encode(), mtime=0))
    except OSError as error:
        reason = error if isinstance(error, FileAccessError) else no_access("write", folder, error)
        return _noted(card, f"measured now, and not remembered: {reason}")
    return _noted(card, "measured now, remembered for the next run")


def _noted(card: Card, words: str) -> Card:
    return replace(card, notes={**card.notes, NOTE: words.removesuffix(".")})
