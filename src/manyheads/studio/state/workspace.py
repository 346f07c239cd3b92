"""The workspace: which models and recordings a studio may open, by names of its own.

A request names a model or a file by its name in this list, never by a path: what is not listed cannot be reached. The
list is made of what the command line named: recordings, folders (searched two levels deep for recordings and for
checkpoints), models; and of the bundled models. Models are loaded once and kept, the least recently used one dropped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from manyheads.errors import FileAccessError, ManyHeadsError, ModelError
from manyheads.models import BUNDLED
from manyheads.models.loading.checkpoints import find_bundled, is_hub_id
from manyheads.studio.problems import NotHere
from manyheads.studio.schema.base import FileEntry, ModelEntry

__all__ = ["RECORDING_ENDING", "ModelPlace", "Workspace", "digest"]


RECORDING_ENDING = ".heads"
DEPTH = 2  # folders below a folder that are searched
MOST_ENTRIES = 2_000  # of a folder: a home directory named by mistake must not be walked for minutes
MODELS_KEPT = 2


@dataclass(frozen=True)
class ModelPlace:
    """A model by name, and what `load` is given for it; `bundled` where it is one of ours."""

    name: str
    what: Any
    title: str
    bundled: bool = False


@dataclass(eq=False)
class Workspace:
    """Models and recordings by name. `folder` is where pruned checkpoints go, None where nothing may be written."""

    models: dict[str, ModelPlace] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    folder: Path | None = None

    def __post_init__(self) -> None:
        self._loaded: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    @staticmethod
    def of(paths: Sequence[str | Path] = (), model: str | None = None, folder: Path | None = None) -> Workspace:
        """What the command line named. Errors: FileAccessError for a path that is not there, or is neither."""
        made = Workspace(folder=folder)
        for name in BUNDLED:
            made.models[name] = ModelPlace(name, name, f"{name}, which comes with manyheads", bundled=True)
        for path in map(Path, paths):
            made.add_path(path)
        if model is not None:
            made._put_first(made._meant(model))
        return made

    def add_path(self, path: Path) -> None:
        if path.is_dir():
            for name, found in _within(path):
                self._add(name, found)
            if (path / "config.json").is_file():
                self._add(path.resolve().name, path)
        elif path.is_file() and path.suffix == RECORDING_ENDING:
            self._add(path.name, path)
        elif path.exists():
            raise FileAccessError(
                f"{path} is neither a recording ({RECORDING_ENDING}) nor a folder: the studio opens those. For a text: "
                f"manyheads look --file {path} --open."
            )
        else:
            raise FileAccessError(f"there is no file or folder {path}.")

    def _add(self, name: str, path: Path) -> None:
        """Under its own name, or with the folder's before it where that is taken."""
        taken: Any = self.models if path.is_dir() else self.files
        if name in taken:
            name = f"{path.resolve().parent.name}/{name}"
            if name in taken:
                return  # the same path, named twice
        taken[name] = ModelPlace(name, str(path), str(path)) if path.is_dir() else path

    def _meant(self, model: str) -> ModelPlace:
        """What a name or a folder stands for: a model of the list, else one called by the folder, as in `_add`."""
        if model in self.models:
            return self.models[model]
        if not (path := Path(model).resolve()).exists():
            if not is_hub_id(model):
                raise FileAccessError(
                    f"there is no model {model}: no such folder, and no name that the hub could know."
                )
            return ModelPlace(model, model, f"{model}, of the hub: looked for when it is first used")
        for place in self.models.values():
            if not place.bundled and Path(place.what).resolve() == path:
                return place
        name = path.name if path.name not in self.models else f"{path.parent.name}/{path.name}"
        return ModelPlace(name, model, model)

    def _put_first(self, place: ModelPlace) -> None:
        """The first of the list, in place of one that is called so."""
        self.models.pop(place.name, None)
        self.models = {place.name: place, **self.models}

    # ------------------------------------------------------------------------------------------------------ models

    @property
    def default_model(self) -> str | None:
        """The first one that can be loaded."""
        return next((name for name in self.models if self.why_not(name) is None), None)

    def why_not(self, name: str) -> str | None:
        """Why a model cannot be loaded, as far as that is known without loading it."""
        if self.models[name].bundled and importlib.util.find_spec(BUNDLED[name].module) is None:
            try:
                find_bundled(name)
            except ModelError as error:
                return str(error)
        return None

    def model_entries(self) -> list[ModelEntry]:
        return [
            ModelEntry(
                name=name,
                title=place.title,
                bundled=place.bundled,
                loaded=name in self._loaded,
                unavailable=self.why_not(name),
            )
            for name, place in self.models.items()
        ]

    def add_model(self, lm: Any) -> None:
        """A loaded model in hand, under its own name: the first of the list, in place of one that is called so."""
        self._put_first(replace(self.models.get(lm.name, ModelPlace(lm.name, lm, lm.name)), what=lm))

    def place_of(self, name: str) -> ModelPlace:
        """Raises NotHere for a model that is not in the list."""
        if name not in self.models:
            raise NotHere(
                f"there is no model {name!r} in this workspace. There is: {', '.join(self.models) or 'none'}."
            )
        return self.models[name]

    def load(self, name: str) -> Any:
        """The model, loaded once. Raises NotHere, ModelError."""
        place = self.place_of(name)
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            with self._lock:
                lm = self._loaded.get(name)
            if lm is None:
                lm = _load(place)
            with self._lock:
                self._loaded[name] = lm
                self._loaded.move_to_end(name)
                while len(self._loaded) > MODELS_KEPT:
                    self._loaded.popitem(last=False)
            return lm

    # --------------------------------------------------------------------------------------------------- recordings

    def file_entries(self) -> list[FileEntry]:
        return [self._file_entry(name, path) for name, path in self.files.items()]

    def file_of(self, name: str) -> Path:
        """Raises NotHere for a file that is not in the list."""
        if name not in self.files:
            raise NotHere(f"there is no recording {name!r} in this workspace.")
        return self.files[name]

    def file_id(self, name: str) -> str:
        """What a file's recording is called: another one as soon as the file changes."""
        path = self.file_of(name)
        try:
            stat = path.stat()
        except OSError as error:
            raise FileAccessError(f"{name} cannot be read: {error.strerror}.") from error
        return digest("file", name, str(stat.st_size), str(stat.st_mtime_ns))

    def file_called(self, name: str) -> str | None:
        """The file whose recording is called so, by `file_id`. Files that have gone are no reason to find none."""
        for file in self.files:
            with suppress(FileAccessError):
                if self.file_id(file) == name:
                    return file
        return None

    def _file_entry(self, name: str, path: Path) -> FileEntry:
        from manyheads.recording import open_recording

        try:
            size, unreadable = path.stat().st_size, None
            open_recording(path)
        except (OSError, ManyHeadsError) as error:
            size, unreadable = 0, str(error)
        return FileEntry(name=name, id="" if unreadable else self.file_id(name), num_bytes=size, unreadable=unreadable)


def digest(*parts: str) -> str:
    """A short name for what is made of these parts."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=10).hexdigest()


def _load(place: ModelPlace) -> Any:
    if hasattr(place.what, "model"):
        return place.what
    from manyheads.models import load

    return load(place.what)


def _within(folder: Path) -> Iterator[tuple[str, Path]]:
    """Recordings and checkpoints below a folder, by their path in it. Links are not followed out of it."""
    root, seen = folder.resolve(), 0
    waiting = [(folder, 0)]
    while waiting:
        here, depth = waiting.pop(0)
        try:
            entries = sorted(here.iterdir())
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > MOST_ENTRIES or entry.name.startswith(".") or not entry.resolve().is_relative_to(root):
                continue
            name = entry.relative_to(folder).as_posix()
            if entry.is_dir():
                if (entry / "config.json").is_file():
                    yield name, entry
                elif depth + 1 < DEPTH:
                    waiting.append((entry, depth + 1))
            elif entry.suffix == RECORDING_ENDING and entry.is_file():
                yield name, entry
