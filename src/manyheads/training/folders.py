"""The folder of one training: what it holds, and that it holds the same training from its first start to its last.

`run.json` says which (preset, options, data), and is written first; a start that asks for something else is refused.
`checkpoint-<run>.safetensors` is where a run is. `metrics.parquet`, `heads.parquet` and `report.json` come at the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from manyheads.errors import FileAccessError, PlanError
from manyheads.base.files import no_access
from manyheads.base.files import replacing

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

BEGUN, REPORT = "run.json", "report.json"
UNFINISHED = ".manyheads-*"  # what a killed start was just writing (`wholefiles` names it so)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other trainings out of it until the block is left, however that happens.

    Errors: PlanError where another is at work there, FileAccessError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    except OSError as error:
        raise no_access("write", folder, error) from error
    if held is None:  # a system without such locks: whoever starts a training twice is not told
        yield
        return
    try:
        with suppress(OSError):  # a file system without them
            _lock(held, folder)
        yield
    finally:
        os.close(held)


def _lock(held: int, folder: Path) -> None:
    assert fcntl is not None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PlanError(
            f"another training is at work in {folder}: wait for it, or give another folder with --out."
        ) from error


def open_folder(folder: Path, options: Mapping[str, Any]) -> None:
    """Begin in an empty folder, or find this training in it. Errors: PlanError for another one, FileAccessError."""
    try:
        for each in folder.glob(UNFINISHED):
            each.unlink()
        held = sorted(each.name for each in folder.iterdir())
    except OSError as error:
        raise no_access("write", folder, error) from error
    known = folder / BEGUN
    if not known.exists():
        if held:
            raise PlanError(
                f"{folder} is not empty and holds no training ({', '.join(held[:3])}): give a new or an empty folder."
            )
        write_json(known, options)
        return
    require_same(folder, options)


def require_same(folder: Path, options: Mapping[str, Any]) -> None:
    """Errors: PlanError names each option that is another than when the training in `folder` began."""
    begun = read_json(folder / BEGUN)
    wanted = json.loads(json.dumps(options))
    other = [name for name in wanted if begun.get(name) != wanted[name]]
    if other:
        told = "; ".join(f"{name} {_said(begun.get(name))} then, {_said(wanted[name])} now" for name in other)
        raise PlanError(
            f"{folder} holds another training ({told}): give another folder with --out, the same options to go on, or "
            f"delete it."
        )


def write_json(path: Path, what: Mapping[str, Any]) -> None:
    """Whole or not at all. Errors: FileAccessError."""
    text = json.dumps(what, indent=1, allow_nan=False)
    with replacing(path, ".json") as temporary:
        Path(temporary).write_text(f"{text}\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Errors: FileAccessError for what cannot be read or is no JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise no_access("read", path, error) from error
    except ValueError as error:
        raise FileAccessError(
            f"{path} is not JSON ({error}): it is damaged. Delete its folder, or repair it."
        ) from error
    if not isinstance(found, dict):
        raise FileAccessError(f"{path} holds a {type(found).__name__}, no object: it is damaged.")
    return found


def _said(value: Any) -> str:
    return "none" if value is None else str(value)
