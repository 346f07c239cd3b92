"""The workspace: the models and recordings that a studio may open, by names of its own.

A request names a model or a file by its name in this list, never by a path: what is not listed cannot be reached. The
list holds the bundled models and what the command line named: recordings, models, and folders, which are searched two
levels deep for recordings and checkpoints. Models are loaded once and kept, the least recently used one dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from manyheads.base import Cache
from manyheads.corpora import reading_of
from manyheads.errors import FileAccessError, ManyHeadsError, ModelError
from manyheads.machine import choose_device
from manyheads.models import BUNDLED, LoadedModel, load
from manyheads.models.loading import find_bundled, is_here, is_hub_id, weights_dtype
from manyheads.recording import open_recording
from manyheads.studio.jobs import ReportProgress
from manyheads.studio.problems import NotHere
from manyheads.studio.schema.base import Alternatives, ExamplePair, FileEntry, ModelEntry, Question
from manyheads.watching import FIRST_PART

RECORDING_ENDING, HISTORY_ENDING = ".heads", ".parquet"
DEPTH = 2  # folders below a folder that are searched
MOST_ENTRIES = 2_000  # of a folder: a home directory named by mistake must not be walked for minutes
MODELS_KEPT = 2


@dataclass(frozen=True)
class ModelPlace:
    """A model by name. `what` is the argument of `load` for it, or the loaded model; `bundled`: it is one of ours."""

    name: str
    what: str | LoadedModel
    title: str
    bundled: bool = False


@dataclass(eq=False)
class Workspace:
    """Models, recordings and histories of trainings by name. `folder`: for pruned checkpoints; None: write none.

    `dropped` are the names of files that were dropped on the page. `device` and `dtype` are those of every model that
    is loaded here, as `load` takes them.
    """

    models: dict[str, ModelPlace] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    histories: dict[str, Path] = field(default_factory=dict)
    folder: Path | None = None
    dropped: set[str] = field(default_factory=set)
    device: str | None = None
    dtype: str | None = None
    loaded: Cache[str, LoadedModel] = field(default_factory=lambda: Cache(MODELS_KEPT))

    @staticmethod
    def of(
        paths: Sequence[str | Path] = (),
        model: str | None = None,
        folder: Path | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
    ) -> Workspace:
        """The workspace of a command line.

        Errors: FileAccessError for a path that does not exist, or is neither; ModelError for a device that is not
        here, or a dtype that it lacks.
        """
        workspace = Workspace(folder=folder, device=device, dtype=dtype)
        place, _ = choose_device(device)  # now, and not with the first model that somebody opens
        if dtype is not None:
            weights_dtype(dtype, place)
        for name in BUNDLED:
            workspace.models[name] = ModelPlace(name, name, f"{name}, which comes with manyheads", bundled=True)
        for path in map(Path, paths):
            workspace.add_path(path)
        if model is not None:
            workspace._put_first(workspace._place_for(model))
        return workspace

    def add_path(self, path: Path) -> None:
        """Add a recording, a watched training or a model, or what is below a folder. Errors: FileAccessError."""
        if is_history(path):
            self._add(path.resolve().name, path)
        elif path.is_dir():
            for name, entry in _entries_below(path):
                self._add(name, entry)
            if (path / "config.json").is_file():
                self._add(path.resolve().name, path)
        elif path.is_file() and path.suffix == RECORDING_ENDING:
            self._add(path.name, path)
        elif path.exists():
            raise FileAccessError(
                f"{path} is neither a recording ({RECORDING_ENDING}) nor a folder nor what a watched training wrote "
                f"(.parquet): the studio opens those. For a text: manyheads look --file {path} --open."
            )
        else:
            raise FileAccessError(f"there is no file or folder {path}.")

    def _add(self, name: str, path: Path) -> None:
        """Under its own name, or with the folder's before it where that is taken."""
        is_model = path.is_dir() and not is_history(path)
        taken = self.histories if is_history(path) else self.models if is_model else self.files
        if name in taken:
            name = f"{path.resolve().parent.name}/{name}"
            if name in taken:
                return  # the same path, named twice
        if is_model:
            self.models[name] = ModelPlace(name, str(path), str(path))
        else:
            (self.histories if is_history(path) else self.files)[name] = path

    def _place_for(self, model: str) -> ModelPlace:
        """The model that a name or a folder stands for: one of the list, else a new one, named as in `_add`."""
        if model in self.models:
            return self.models[model]
        if not (path := Path(model).resolve()).exists():
            if not is_hub_id(model):
                raise FileAccessError(
                    f"there is no model {model}: no such folder, and no name that the hub could know."
                )
            return ModelPlace(model, model, f"{model}, of the hub: looked for when it is first used")
        for place in self.models.values():
            if not place.bundled and isinstance(place.what, str) and Path(place.what).resolve() == path:
                return place
        name = path.name if path.name not in self.models else f"{path.parent.name}/{path.name}"
        return ModelPlace(name, model, model)

    def _put_first(self, place: ModelPlace) -> None:
        """Make it the first of the list, in place of one with the same name."""
        self.models.pop(place.name, None)
        self.models = {place.name: place, **self.models}

    @property
    def default_model(self) -> str | None:
        """The first one that can be loaded."""
        return next((name for name in self.models if self.why_not(name) is None), None)

    def why_not(self, name: str) -> str | None:
        """Why a model cannot be loaded, as far as that is known without loading it."""
        if self.models[name].bundled and not is_here(name):
            try:
                find_bundled(name)
            except ModelError as error:
                return str(error)
        return None

    def model_entries(self) -> list[ModelEntry]:
        """Every model of the list; none is loaded for it."""
        return [
            ModelEntry.of(
                place,
                sample=reading_of(name).sentence,
                question=first_question(name),
                swap=first_swap(name),
                loaded=name in self.loaded,
                unavailable=self.why_not(name),
                device=(
                    f"{place.what.device}, where it was"
                    if isinstance(place.what, LoadedModel)
                    else "{}, {}".format(*choose_device(self.device))
                ),
                pair=None if place.bundled and not BUNDLED[name].predicts else ExamplePair(**reading_of(name).pairs[0]),
            )
            for name, place in self.models.items()
        ]

    def add_model(self, lm: LoadedModel) -> None:
        """Add a loaded model under its own name: the first of the list, in place of one with the same name."""
        self._put_first(replace(self.models.get(lm.name, ModelPlace(lm.name, lm, lm.name)), what=lm))

    def place_of(self, name: str) -> ModelPlace:
        """Raises NotHere for a model that is not in the list."""
        if name not in self.models:
            raise NotHere(
                f"there is no model {name!r} in this workspace. There is: {', '.join(self.models) or 'none'}."
            )
        return self.models[name]

    def load(self, name: str, report: ReportProgress = lambda *_: None) -> LoadedModel:
        """The model, loaded once; `report` is told of it before. Raises NotHere, ModelError."""
        what = self.place_of(name).what
        report(f"loading {name}", 0, None)
        if isinstance(what, LoadedModel):
            return self.loaded.get_or_make(name, lambda: what)
        return self.loaded.get_or_make(name, lambda: load(what, device=self.device, dtype=self.dtype))

    def file_entries(self) -> list[FileEntry]:
        """Every recording of the list, with why it cannot be opened where that is so. Cost: their headers."""
        entries = []
        for name, path in self.files.items():
            try:
                open_recording(path)
                entries.append(self._file_entry(name))
            except (OSError, ManyHeadsError) as error:
                entries.append(FileEntry(name=name, id="", num_bytes=0, unreadable=str(error)))
        return entries

    def _file_entry(self, name: str) -> FileEntry:
        size = self.files[name].stat().st_size
        return FileEntry(name=name, id=self.file_id(name), num_bytes=size, unreadable=None)

    def add_dropped(self, name: str, path: Path) -> FileEntry:
        """Add a recording that was dropped on the page. One that was dropped under this name before is replaced."""
        if name in self.files and name not in self.dropped:
            name = f"dropped/{name}"
        if name in self.dropped:
            self.files[name].unlink(missing_ok=True)
        self.dropped.add(name)
        self.files[name] = path
        return self._file_entry(name)

    def file_of(self, name: str) -> Path:
        """Raises NotHere for a file that is not in the list."""
        if name not in self.files:
            raise NotHere(f"there is no recording {name!r} in this workspace.")
        return self.files[name]

    def file_id(self, name: str) -> str:
        """The id of a file's recording: another one as soon as the file changes."""
        path = self.file_of(name)
        try:
            stat = path.stat()
        except OSError as error:
            raise FileAccessError(f"{name} cannot be read: {error.strerror}.") from error
        return digest("file", name, str(stat.st_size), str(stat.st_mtime_ns))

    def file_called(self, recording: str) -> str | None:
        """The file whose recording has this id. Files that have gone are passed over."""
        # Every id is made anew, for a file that has changed since is another recording.
        for file in self.files:
            with suppress(FileAccessError):
                if self.file_id(file) == recording:
                    return file
        return None

    @staticmethod
    def history_id(name: str) -> str:
        """The id of a history, the same while it grows."""
        return digest("history", name)

    def history_name(self, history: str) -> str:
        """Raises NotHere for a history that is not in the list."""
        for name in self.histories:
            if self.history_id(name) == history:
                return name
        raise NotHere("there is no such file of a training in this studio: manyheads studio heads.parquet.")

    def history_path(self, history: str) -> Path:
        """Raises NotHere."""
        return self.histories[self.history_name(history)]


def first_question(model: str) -> Question | None:
    """Two words of the text that a model begins with, whose link is offered at the first visit; None: no offer."""
    reading = reading_of(model)
    if reading.question is None:
        return None
    text, query, key = reading.question
    words = f"See which heads link “{query}” to “{key}”."
    if model in BUNDLED and BUNDLED[model].predicts:
        words = f"{model} goes on with “{key}”. See which heads look back at that name."
    return Question(text=text, query=query, key=key, words=words)


def first_swap(model: str) -> Alternatives | None:
    """A word of the text that a model begins with, and words to put in its place; None: no offer."""
    swap = reading_of(model).swap
    return None if swap is None else Alternatives(word=swap[0], words=list(swap[1]))


def is_history(path: Path) -> bool:
    """Whether a path is what a watched training writes, by its name alone: a folder of parts, or a .parquet file."""
    return (path / FIRST_PART).is_file() or (path.suffix == HISTORY_ENDING and path.is_file())


def digest(*parts: str) -> str:
    """A short id for what is made from these parts, the same in every process."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=10).hexdigest()


def _entries_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Recordings and checkpoints below a folder, by their path in it. Links are not followed out of it."""
    root, num_entries = folder.resolve(), 0
    waiting = [(folder, 0)]  # breadth first, so that the limit drops what lies deepest
    while waiting:
        parent, depth = waiting.pop(0)
        try:
            entries = sorted(parent.iterdir())
        except OSError:
            continue  # a folder that may not be read offers nothing
        for entry in entries:
            num_entries += 1
            if num_entries > MOST_ENTRIES or entry.name.startswith(".") or not entry.resolve().is_relative_to(root):
                continue
            name = entry.relative_to(folder).as_posix()
            if entry.is_dir():
                if (entry / "config.json").is_file() or (entry / FIRST_PART).is_file():
                    yield name, entry
                elif depth + 1 < DEPTH:
                    waiting.append((entry, depth + 1))
            elif entry.suffix == RECORDING_ENDING and entry.is_file():
                yield name, entry
