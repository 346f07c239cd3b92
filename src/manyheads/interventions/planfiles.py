"""Plans with what was computed for them: a JSON file that people read, and tensors beside it.

`plan.json` holds the steps, and the digests of the corpus and of the model; `plan.safetensors` the tensors, where
there are any. Both are written whole or not at all. `plan.json` names the tensors' file by its checksum, too (sha256),
so that a damaged one is refused, and not put into a model. Tensors of a plan that was saved before there were checksums
are held to what a step can use: finite floating-point numbers of the right shapes.
Cost of opening: reading the tensors, and 1 to 2 s a GB for the checksum; a tensor is rarely more than some MB.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import FileAccessError, HeadError, PlanError
from manyheads.interventions.computed import Computed
from manyheads.plan import Plan
from manyheads.base.files import no_access
from manyheads.base.files import read_bytes
from manyheads.base.files import replacing

__all__ = ["Prepared", "open_plan"]

MOST_BYTES = 4_000_000  # of a plan's JSON, thousands of steps: in memory it may take 25 times as much
SUM = "sha256"
AXES = {  # of tensors, by the first word of their names: see `Computed`
    "mean": ("heads", "width"),
    "position": ("positions", "heads", "width"),
    "texts": ("texts", "tokens", "heads", "width"),
    "text": ("texts", "tokens", "heads", "width"),
}
LENGTHS = ":lengths"  # of texts, beside them


@dataclass(frozen=True, eq=False)
class Prepared:
    """One plan, or one for each sample, and what was computed for them from a corpus."""

    plans: tuple[Plan, ...]
    computed: Computed = field(default_factory=Computed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `path` (.json) and, where something was computed, a .safetensors file of the same name beside it.

        Errors: PlanError for several plans (save them one by one), another ending, numbers that are not finite, or
        more JSON than `open_plan` reads; FileAccessError.
        """
        where = Path(path)
        if len(self.plans) != 1:
            raise PlanError(f"{len(self.plans)} plans do not go into one file: save them one by one.")
        if where.suffix != ".json":
            raise PlanError(f"a plan is written as JSON: end {where.name!r} in .json.")
        document: dict[str, Any] = self.plans[0].to_dict()
        if not self.computed.tensors:
            text = _text(document)
            with replacing(where) as temporary:
                Path(temporary).write_text(text, encoding="utf-8")
            return
        beside, found = where.with_suffix(".safetensors"), self.computed
        if fault := _fault_in(found.tensors):
            raise PlanError(f"what was computed for this plan is of no use: {fault}. Compute it anew, corpus=.")
        packed = _packed(found)
        document["computed"] = {
            "file": beside.name,
            SUM: hashlib.sha256(packed).hexdigest(),
            "corpus": found.corpus,
            "model": found.model,
            "texts": found.num_texts,
            "tokens": found.num_tokens,
        }
        text = _text(document)
        with replacing(beside) as tensors, replacing(where) as temporary:  # both are written before either is moved
            Path(tensors).write_bytes(packed)
            Path(temporary).write_text(text, encoding="utf-8")


def _text(document: dict[str, Any]) -> str:
    text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    if (size := len(text.encode())) > MOST_BYTES:
        raise PlanError(
            f"this plan takes {size:,} bytes of JSON, and one of more than {MOST_BYTES:,} is not read again: save "
            f"its steps in several plans."
        )
    return text


def _packed(found: Computed) -> bytes:
    """As safetensors, in memory: their own writer reports a full disk in a way of its own."""
    from safetensors.torch import save

    tensors = {name: x.contiguous() for name, x in found.tensors.items()}
    return save(tensors, {"corpus": found.corpus, "model": found.model})


def open_plan(path: str | os.PathLike[str]) -> Prepared:
    """What `save` wrote, or a plan that a person did. Errors: PlanError, HeadError, FileAccessError."""
    where = Path(path)
    try:
        data = read_bytes(where, MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise no_access("read", where, error) from error
    if len(data) > MOST_BYTES:
        raise PlanError(f"{where} is no plan: it has more than {MOST_BYTES:,} bytes, and a plan is a list of steps.")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PlanError(f"{where} is no plan: it is not text ({error.reason}).") from error
    try:
        plan = Plan.from_json(text)
    except (PlanError, HeadError) as error:
        raise type(error)(f"{where}: {error}") from error
    about = json.loads(text).get("computed")
    return Prepared((plan,), Computed() if about is None else _computed(where, about))


def _computed(where: Path, about: Any) -> Computed:
    """The tensors that a plan names, all of them checked. Errors: PlanError, FileAccessError."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    kinds = {"file": str, "corpus": str, "model": str, "texts": int, "tokens": int}
    if not isinstance(about, dict) or {k: type(v) for k, v in about.items()} not in (kinds, {**kinds, SUM: str}):
        raise PlanError(f"{where}: 'computed' should hold {', '.join(kinds)}: the file is damaged.")
    beside = where.parent / Path(about["file"]).name
    try:
        data = read_bytes(beside)  # at once: safe_open opens a file twice, and another plan may take its place between
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__")
    except (OSError, ValueError, RecursionError, SafetensorError, KeyError, RuntimeError) as error:
        # ValueError: a name that no file can have; KeyError, RuntimeError: a type or a shape that torch has not
        said = getattr(error, "strerror", None) or error
        raise FileAccessError(f"what was computed for {where} cannot be read from {beside}: {said}.") from error
    for what in ("corpus", "model"):
        if not isinstance(metadata, dict) or metadata.get(what) != about[what]:
            raise PlanError(f"{beside} was computed from another {what} than {where} says: compute it anew, corpus=.")
    if SUM in about and hashlib.sha256(data).hexdigest() != about[SUM]:
        raise PlanError(f"{beside} is damaged: its bytes are not those that {where} names. Compute it anew, corpus=.")
    if fault := _fault_in(tensors):
        raise PlanError(f"{beside} is damaged: {fault}. Compute it anew, corpus=.")
    return Computed(tensors, about["corpus"], about["model"], about["texts"], about["tokens"], str(beside))


def _fault_in(tensors: Mapping[str, Tensor]) -> str:
    """What no step could use of some tensors, in words; "" for nothing. (The model's sizes are checked in use.)"""
    for name, x in tensors.items():
        called, axes = repr(name[:80]), AXES.get(name.partition(":")[0].partition(" ")[0])
        if name.endswith(LENGTHS):
            texts = tensors.get(name.removesuffix(LENGTHS))
            if texts is None or texts.ndim != 4 or x.dtype != torch.int64 or x.shape != texts.shape[:1]:
                return f"{called} is {_described(x)}, and not one whole number for each text"
            if not bool(((x >= 0) & (x <= texts.shape[1])).all()):
                return f"{called} holds lengths that are not from 0 to {texts.shape[1]}"
        elif axes is None:
            return f"{called} is nothing that a step takes"
        elif x.ndim != len(axes) or not x.numel():
            return f"{called} is {_described(x)}, and its axes should be [{', '.join(axes)}]"
        elif x.dtype not in (torch.float32, torch.float64):
            return f"{called} is {_described(x)}, and should be float32 or float64"
        elif not bool(x.isfinite().all()):
            return f"{called} holds numbers that are not finite"
    return ""


def _described(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} of shape {list(x.shape)}"
