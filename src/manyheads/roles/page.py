"""Labels for a model from the bundled page, measured once and remembered by the weights' hash.

Labels need more than the sentence somebody types: they rest on a page of what the model reads (prose, but for a bundled
model that has read something else), a few seconds' work. The answer is kept as JSON in the user's cache folder, under
everything it hangs on: the weights, the page, our own source. A cache that cannot be written, or is damaged, is said
and costs those seconds again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from manyheads.corpora.bundled_texts import reading_of
from manyheads.errors import FileAccessError
from manyheads.heads import Head
from manyheads.recording.tokens import Sinks
from manyheads.roles.labels import Evidence, HeadRole, label
from manyheads.roles.rules import NEEDED
from manyheads.statistics.head_table import number
from manyheads.statistics.corpus_run.chunks import code_digest
from manyheads.statistics.corpus_run.chunks import config_digest
from manyheads.statistics.gathered import Progress
from manyheads.statistics.measurement import measure
from manyheads.statistics.table import DEFAULT
from manyheads.base.files import no_access
from manyheads.base.files import replacing
from manyheads.base.files import users_folder

DIGEST = "digest"  # under which the file says what the rest of it hashes to


@dataclass(frozen=True)
class PageLabels:
    """A model's labels and default statistics on the bundled page. `because` says whether they were remembered;
    `texts_are` whose texts these are, in words."""

    roles: tuple[HeadRole, ...]
    values: dict[str, dict[str, float | None]]
    sinks: Sinks
    notes: dict[str, str]
    num_texts: int
    num_tokens: int
    because: str
    texts_are: str = "texts of our own"


def label_page(lm: Any, *, progress: Progress | None = None, remember: bool = True) -> PageLabels:
    """The labels of a loaded model's heads on the bundled page. Cost: seconds the first time, then milliseconds."""
    try:
        path = cache_folder() / f"page-{_key(lm)}.json"
    except FileAccessError as error:  # no home
        path = error
    if remember and isinstance(path, Path) and (found := remembered(path)) is not None:
        return found
    reading = reading_of(lm.name)
    table = measure(lm, reading.texts(), tuple(dict.fromkeys((*NEEDED, *DEFAULT))), kinds=True, progress=progress)
    columns = {name: table.column(name) for name in DEFAULT}
    values = {
        str(head): {name: number(column[at]) for name, column in columns.items()} for at, head in enumerate(table.heads)
    }
    found = PageLabels(
        tuple(label(table)), values, table.sinks, table.notes, table.sums.num_texts, table.sums.num_tokens,
        "measured now", reading.texts_are,
    )  # fmt: skip
    return replace(found, because=_remember(found, path)) if remember else found


def remembered(path: Path) -> PageLabels | None:
    """What an earlier run kept; None where there is nothing, or it is damaged: then it is measured and written anew."""
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        whole = data.pop(DIGEST) == _digest(data)
        return _read(data, f"remembered from an earlier run ({path})") if whole else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def cache_folder() -> Path:
    """Where labels are remembered: $MANYHEADS_CACHE, else the user's cache folder. Errors: FileAccessError."""
    return users_folder("MANYHEADS_CACHE", "XDG_CACHE_HOME", ".cache")


def _key(lm: Any) -> str:
    """Everything the labels hang on."""
    some_words = sorted(lm.tokenizer.get_vocab().items())[:: len(lm.tokenizer) // 997 + 1]
    words = repr((type(lm.tokenizer).__name__, len(lm.tokenizer), some_words))
    page = reading_of(lm.name).digest()
    parts = (lm.weights_hash, config_digest(lm.model), page, str(lm.dtype), words, code_digest())
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def _remember(found: PageLabels, path: Path | FileAccessError) -> str:
    """Write the labels, whole or not at all; what came of it, in words. `path`: or why there is none."""
    if isinstance(path, FileAccessError):
        return f"measured now, and not remembered: {str(path).removesuffix('.')}"
    data = {**asdict(found), "roles": [role.to_dict() for role in found.roles]}
    data[DIGEST] = _digest(json.loads(json.dumps(data)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as out:
            json.dump(data, out)
    except OSError as error:
        reason = error if isinstance(error, FileAccessError) else no_access("write", path.parent, error)
        return f"measured now, and not remembered: {str(reason).removesuffix('.')}"
    return "measured now, remembered for the next run"


def _digest(data: Any) -> str:
    """Of what is kept, as JSON: whoever changes a byte of it changes this."""
    return hashlib.blake2b(json.dumps(data, sort_keys=True).encode(), digest_size=12).hexdigest()


def _read(data: dict[str, Any], because: str) -> PageLabels:
    names = [field.name for field in fields(Evidence)]
    roles = tuple(
        HeadRole(Head.parse(each["head"]), each["role"], Evidence(**{name: each[name] for name in names}))
        for each in data["roles"]
    )
    told = data["sinks"]
    sinks = Sinks(told["first"], tuple(told["ids"]), tuple(told["names"]), told["because"])
    return PageLabels(
        roles, data["values"], sinks, data["notes"], data["num_texts"], data["num_tokens"], because, data["texts_are"]
    )
