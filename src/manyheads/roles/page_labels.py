"""`label_page`: the labels of a model's heads on bundled texts, as they are shipped, remembered or measured now.

Labels need more than the sentence that somebody types. `label_page` measures them on a page of texts of the model's
kind (prose, but for a bundled model that has read something else), a few seconds' work, and remembers the result as
JSON in the user's cache folder, under everything that it depends on: the weights, the page, our own source. A cache
that cannot be written, or is damaged, is reported in `because`, and costs those seconds again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from manyheads import private_names
from manyheads.base import no_access, replacing, users_folder
from manyheads.corpora import reading_of
from manyheads.errors import FileAccessError
from manyheads.measurement.corpus_run import code_digest, config_digest
from manyheads.models import LoadedModel
from manyheads.progress import ShowProgress, shows_progress
from manyheads.roles.labels import PageLabels, labels_from, labels_to_data, measured_page
from manyheads.roles.shipped import shipped_labels

DIGEST = "digest"  # the field of a remembered file that has the hash of all others


@shows_progress("labelling heads")
def label_page(lm: LoadedModel, *, progress: ShowProgress = None, remember: bool = True) -> PageLabels:
    """The labels of a loaded model's heads on the bundled texts.

    - `remember`: whether labels that come with the package, or of an earlier run, will do.

    Cost: seconds the first time, then milliseconds; a digest of its weights' sums among them.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    if remember and (labels := shipped_labels(lm)) is not None:
        return labels
    try:
        path = cache_folder() / f"page-{key_of(lm, reading_of(lm.name).digest())}.json"
    except FileAccessError as error:  # no home
        path = error
    # Before a text is read: what is remembered must cost milliseconds.
    if remember and isinstance(path, Path) and (labels := remembered(path)) is not None:
        return labels
    labels = measured_page(lm, progress=progress)
    return replace(labels, because=_remember(labels, path)) if remember else labels


def remembered(path: Path) -> PageLabels | None:
    """The labels of an earlier run; None where there are none, or the file is damaged: they are measured again then."""
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop(DIGEST) != _digest(data):
            return None
        return labels_from(data, f"remembered from an earlier run ({path})")
    # Whatever is wrong with a cache, the answer is to measure again: it holds nothing that cannot be had anew.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def cache_folder() -> Path:
    """Where labels are remembered: $MANYHEADS_CACHE, else the user's cache folder. Errors: FileAccessError."""
    return users_folder("MANYHEADS_CACHE", "XDG_CACHE_HOME", ".cache")


def key_of(lm: LoadedModel, *texts: str) -> str:
    """A name for everything that numbers of these texts depend on; each of `texts` names some."""
    # A thousand words of the vocabulary: enough to tell two tokenizers apart, and a long one costs no seconds
    tokenizer = lm.required_tokenizer
    sampled = sorted(tokenizer.get_vocab().items())[:: len(tokenizer) // 997 + 1]
    words = repr((type(tokenizer).__name__, len(tokenizer), sampled))
    attention = private_names.attention_in_words(lm.model)
    parts = (lm.weights_sums, config_digest(lm.model), attention, *texts, str(lm.dtype), words, code_digest())
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def _remember(labels: PageLabels, path: Path | FileAccessError) -> str:
    """Write the labels, whole or not at all; returns in words whether that worked. `path`: or why there is none."""
    if isinstance(path, FileAccessError):
        return f"measured now, and not remembered: {str(path).removesuffix('.')}"
    data = labels_to_data(labels)
    # Of what a reader will get: JSON knows no tuples.
    data[DIGEST] = _digest(json.loads(json.dumps(data)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as out:
            json.dump(data, out)
    except OSError as error:
        reason = error if isinstance(error, FileAccessError) else no_access("write", path.parent, error)
        return f"measured now, and not remembered: {str(reason).removesuffix('.')}"
    return "measured now, remembered for the next run"


def _digest(data: object) -> str:
    """A hash of the file's data as JSON: it changes with any byte of them."""
    return hashlib.blake2b(json.dumps(data, sort_keys=True).encode(), digest_size=12).hexdigest()
