"""Everything that the numbers of a run over a corpus hang on, by name: a run goes on only with the same.

Where the model computes (device, attention kernel, number of processes) is none of it: that changes rounding alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from manyheads.corpora.corpus import Corpus
from manyheads.errors import StatisticError
from manyheads.models.inputs.texts import BATCH_TOKENS
from manyheads.recording.tokens import Sinks
from manyheads.statistics.chunks import CHUNK_CHARACTERS, CHUNK_TEXTS
from manyheads.statistics.statistic import Statistic
from manyheads.statistics.surveys import SURVEY_TEXTS, SURVEY_TOKENS

SOURCES = ("nn", "recording", "models", "corpora", "statistics", "roles")  # the packages whose code numbers hang on
ELSEWHERE = ("_name_or_path", "transformers_version")  # of a config: where it lay, not what the model does
SHOWN = 48  # characters of an input in an error


def inputs_of(
    lm: Any, corpus: Corpus, statistics: Sequence[Statistic], long: str, sinks: Sinks | None, kinds: bool
) -> dict[str, str]:
    """Each input in words that are equal only where it is. Cost: a digest of the weights (22M parameters: 0.1 s)."""
    asked = [(each.name, each.source, each.meaning, each.column, each.block and each.block.name) for each in statistics]
    return {
        "texts": corpus.key,
        "model's weights": lm.weights_hash,
        "model's config": config_digest(lm.model),
        "dtype": str(lm.dtype).removeprefix("torch."),
        "tokenizer": tokenizer_digest(lm.tokenizer),
        "statistics": f"{len(statistics)} statistics {_digest(repr(asked))}",
        "manyheads' own code": code_digest(),
        "long": long,
        "kinds": str(kinds),
        "sinks": "as found" if sinks is None else repr(sinks),
        "batches": f"{BATCH_TOKENS} tokens, {CHUNK_TEXTS} texts or {CHUNK_CHARACTERS} characters a chunk",
        "survey": f"{SURVEY_TOKENS} tokens or {SURVEY_TEXTS} texts",
    }


def require_same(inputs: dict[str, str], known: dict[str, str], folder: Path) -> None:
    """Errors: StatisticError names what is other than when the run in `folder` began."""
    other = [name for name in inputs.keys() | known.keys() if inputs.get(name) != known.get(name)]
    if other:
        told = "; ".join(
            f"{name} ({_short(known.get(name))} then, {_short(inputs.get(name))} now)" for name in sorted(other)
        )
        raise StatisticError(
            f"the run in {folder} was begun with other inputs: {told}. What it has is left as it is: to measure with "
            f"these inputs, give another folder, or delete that one."
        )


def _short(value: str | None) -> str:
    return "none" if value is None else value if len(value) <= SHOWN else f"{value[:SHOWN]}..."


def config_digest(model: Any) -> str:
    """Of what a model's config says of the model."""
    config: Any = getattr(model, "config", None)
    shape = config.to_dict() if hasattr(config, "to_dict") else {}
    return _digest(json.dumps({k: v for k, v in shape.items() if k not in ELSEWHERE}, default=str))


def tokenizer_digest(tokenizer: Any) -> str:
    """Of all that a fast tokenizer does; of a slow one its class and its words."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        rules = json.loads(backend.to_str())
        return _digest(json.dumps({k: v for k, v in rules.items() if k not in ("truncation", "padding")}))
    words = sorted(tokenizer.get_vocab().items()) if hasattr(tokenizer, "get_vocab") else []
    return _digest(f"{type(tokenizer).__name__} {words!r}")


def code_digest() -> str:
    """Digest of the source of the packages that numbers depend on, sub-folders included: an update may change them."""
    parts: list[str] = []
    for package in SOURCES:
        with as_file(files("manyheads").joinpath(package)) as folder:  # a zip's members are unpacked for the time of it
            modules = sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix())
            parts += [path.read_text(encoding="utf-8") for path in modules]
    return _digest("\0".join(parts))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
