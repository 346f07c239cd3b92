"""Labels that come with the package: those of the bundled models, so that a first look costs no measuring.

`python -m manyheads.roles.shipped [MODEL ...]` measures them again, two minutes for 270 heads; a test holds what is
there to what is measured (`make test-all`). They are a model's only if everything that they depend on is as it was: the
weights and tables of angles byte for byte, their dtype, the config, the words of the tokenizer, the page of texts, the
version of the rules.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from dataclasses import replace
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypedDict

from manyheads.base import Json
from manyheads.corpora import reading_of
from manyheads.measurement.corpus_run import code_digest, config_of
from manyheads.models import BUNDLED, LoadedModel, load
from manyheads.roles.labels import PageLabels, labels_from, labels_to_data, measured_page

RULES = 2
"""Raise it where labels of the same texts become others: those that are shipped are then measured again."""


def shipped_labels(lm: LoadedModel) -> PageLabels | None:
    """The labels that come with the package, if they are this model's, whatever it is called; None where none are.

    Cost: where the config is that of a bundled model, digests of the weights' sums (135 M parameters: 0.1 s) and of the
    tokenizer's words.
    """
    config = config_of(lm.model)
    for stored in filter(None, map(_stored, BUNDLED)):
        # The config of another version of transformers has other fields besides.
        if any(config[name] != stored["config"][name] for name in config.keys() & stored["config"].keys()):
            continue
        if stored["basis"] == basis_of(lm):
            because = f"shipped with manyheads, measured {stored['date']} (python -m manyheads.roles.shipped)"
            return labels_from(stored["labels"], because)
    return None


def basis_of(lm: LoadedModel) -> Json:
    """What labels depend on, besides the code."""
    tokenizer = lm.required_tokenizer
    words = repr(sorted(tokenizer.get_vocab().items())).encode()
    stored = lm.model.state_dict().keys()
    tables = [buffer.cpu().float().numpy().tobytes() for name, buffer in lm.model.named_buffers() if name not in stored]
    return {
        "rules": RULES,
        "weights": lm.weights_sums,
        "tables": hashlib.blake2b(b"".join(tables), digest_size=12).hexdigest(),
        "dtype": str(lm.dtype),
        "words": hashlib.blake2b(words, digest_size=12).hexdigest(),
        "page": reading_of(lm.name).digest(),
    }


def path_of(name: str) -> Path:
    """Where the labels of a bundled model are."""
    return Path(str(files("manyheads").joinpath(f"bundled/labels/{name}.json.gz")))


class Stored(TypedDict):
    """A file of labels: what they depend on, the model's config, when and by which code they were measured."""

    basis: Json
    config: Json
    date: str
    code: str
    labels: Json


@cache
def _stored(name: str) -> Stored | None:
    path = path_of(name)
    return json.loads(gzip.decompress(path.read_bytes())) if name in BUNDLED and path.is_file() else None


def main(names: list[str]) -> None:
    """Measure the labels of bundled models, all or those named, and write them where the package has them."""
    for name in names or list(BUNDLED):
        lm = load(name, device="cpu")
        labels = replace(measured_page(lm), because="")
        document = {
            "basis": basis_of(lm),
            "config": config_of(lm.model),
            "date": date.today().isoformat(),
            "code": code_digest(),
            "labels": labels_to_data(labels),
        }
        path_of(name).parent.mkdir(exist_ok=True)
        path_of(name).write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
        print(f"{path_of(name)}: {len(labels.roles)} heads")


if __name__ == "__main__":
    main(sys.argv[1:])
