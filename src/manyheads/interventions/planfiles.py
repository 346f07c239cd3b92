"""Plans with what was computed for them: a JSON file that people read, and tensors beside it.

`plan.json` holds the steps, and the digests of the corpus and of the model; `plan.safetensors` the tensors, where
there are any. Both are written whole or not at all.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyheads.errors import FileAccessError, HeadError, PlanError
from manyheads.interventions.computed import Computed
from manyheads.plan import Plan
from manyheads.wholefiles import no_access, replacing

__all__ = ["Prepared", "open_plan"]


@dataclass(frozen=True, eq=False)
class Prepared:
    """One plan, or one for each sample, and what was computed for them from a corpus."""

    plans: tuple[Plan, ...]
    computed: Computed = field(default_factory=Computed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `path` (.json) and, where something was computed, a .safetensors file of the same name beside it.

        Errors: PlanError for several plans (save them one by one) or another ending; FileAccessError.
        """
        where = Path(path)
        if len(self.plans) != 1:
            raise PlanError(f"{len(self.plans)} plans do not go into one file: save them one by one.")
        if where.suffix != ".json":
            raise PlanError(f"a plan is written as JSON: end {where.name!r} in .json.")
        document: dict[str, Any] = self.plans[0].to_dict()
        if not self.computed.tensors:
            with replacing(where) as temporary:
                _write(temporary, document)
            return
        beside, found = where.with_suffix(".safetensors"), self.computed
        document["computed"] = {
            "file": beside.name,
            "corpus": found.corpus,
            "model": found.model,
            "texts": found.num_texts,
            "tokens": found.num_tokens,
        }
        with replacing(beside) as tensors, replacing(where) as temporary:  # both are written before either is moved
            Path(tensors).write_bytes(_packed(found))
            _write(temporary, document)


def _write(path: str, document: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _packed(found: Computed) -> bytes:
    """As safetensors, in memory: their own writer reports a full disk in a way of its own."""
    from safetensors.torch import save

    tensors = {name: x.contiguous() for name, x in found.tensors.items()}
    return save(tensors, {"corpus": found.corpus, "model": found.model})


def open_plan(path: str | os.PathLike[str]) -> Prepared:
    """What `save` wrote, or a plan that a person did. Errors: PlanError, HeadError, FileAccessError."""
    where = Path(path)
    try:
        text = where.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PlanError(f"{where} is no plan: it is not text ({error.reason}).") from error
    except (OSError, ValueError) as error:
        raise no_access("read", where, error) from error
    try:
        plan = Plan.from_json(text)
    except (PlanError, HeadError) as error:
        raise type(error)(f"{where}: {error}") from error
    about = json.loads(text).get("computed")
    return Prepared((plan,), Computed() if about is None else _computed(where, about))


def _computed(where: Path, about: Any) -> Computed:
    from safetensors import SafetensorError
    from safetensors.torch import load

    kinds = {"file": str, "corpus": str, "model": str, "texts": int, "tokens": int}
    if not isinstance(about, dict) or {k: type(v) for k, v in about.items()} != kinds:
        raise PlanError(f"{where}: 'computed' should hold {', '.join(kinds)}: the file is damaged.")
    beside = where.parent / Path(about["file"]).name
    try:
        data = beside.read_bytes()  # at once: safe_open opens a file twice, and another plan may take its place between
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    except (OSError, ValueError, SafetensorError) as error:  # ValueError: a name that no file can have
        raise FileAccessError(f"what was computed for {where} cannot be read from {beside}: {error}.") from error
    for what in ("corpus", "model"):
        if metadata.get(what) != about[what]:
            raise PlanError(f"{beside} was computed from another {what} than {where} says: compute it anew, corpus=.")
    return Computed(tensors, about["corpus"], about["model"], about["texts"], about["tokens"])
