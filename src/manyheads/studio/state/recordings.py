"""The recordings a studio has open: made from a text, or from a file of the workspace; named by what made them.

Two pages that ask for the same text share one recording; neither has any state here. What is computed of a recording
(its table, its sinks) is kept with it. The least recently used ones are dropped: a page that finds its own gone asks
for it again, and gets it under the same name.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from manyheads.errors import ManyHeadsError, TextError
from manyheads.heads import Head
from manyheads.recording import LayerRecord, Recording, Sinks
from manyheads.studio.jobs import Say
from manyheads.studio.problems import NotHere
from manyheads.studio.schema.base import PlanStep
from manyheads.studio.schema.recordings import RecordingAsk
from manyheads.studio.state.workspace import Workspace, digest

__all__ = ["TILE_CELLS", "TITLE", "Opened", "Recordings", "recording_id"]


MOST_OPEN = 24
MOST_BYTES = 2_000_000_000  # of open recordings together; the last one stays whatever its size
SINK_CELLS = 100_000_000  # up to so many cells over all heads, sinks are looked for at once
TILE_CELLS = 256
TITLE = 80  # characters of a text that stand for it


def recording_id(model: str, text: str, plan: Sequence[PlanStep] = ()) -> str:
    """What a recording of a text through a model, its heads edited by a plan, is called."""
    return digest("text", model, text, json.dumps([step.model_dump() for step in plan], sort_keys=True))


@dataclass(eq=False)
class Opened:
    """A recording and where it is from. `model` is its name in the workspace, or what the file says of it."""

    id: str
    recording: Recording
    title: str
    model: str
    source: str
    edited: bool = False  # whether its heads were, by a plan
    written: str | None = None  # where the whole text was typed here
    kept: dict[Any, Any] = field(default_factory=dict)
    locks: dict[Any, threading.Lock] = field(default_factory=dict)

    @property
    def main(self) -> LayerRecord:
        """The layer whose tokens are the recording's: the first that attends within its text, else the first."""
        layers = [layer for stack in self.recording.stacks.values() for layer in stack[:1]]
        return next((layer for layer in layers if not layer.crosses), layers[0])

    @property
    def num_texts(self) -> int:
        return len(self.main.lengths)

    def check_text(self, text: int) -> int:
        if not 0 <= text < self.num_texts:
            raise NotHere(f"this recording has no text {text}: it holds {self.num_texts}, counted from 0.")
        return text

    def layer_of(self, head: str) -> tuple[LayerRecord, int]:
        """The layer of a head by name, and the head's index in it. Raises NotHere."""
        try:
            wanted = Head.parse(head)
        except ManyHeadsError as error:
            raise NotHere(str(error)) from error
        layers = self.recording.stacks.get(wanted.stack, ())
        for at in range(len(layers)):
            if layers[at].site.layer == wanted.layer and wanted.index < layers[at].site.num_heads:
                return layers[at], wanted.index
        raise NotHere(f"there is no head {head} in this recording.")

    def layers(self) -> list[LayerRecord]:
        return [layer for stack in self.recording.stacks.values() for layer in stack]

    def cells(self, text: int) -> int:
        """How many cells all heads' maps of a text have, hidden ones too."""
        return sum(layer.site.num_heads * layer.num_queries(text) * layer.num_keys(text) for layer in self.layers())

    def sinks(self, text: int) -> Sinks:
        """Where this text's attention parks; unknown where looking would take long."""
        from manyheads.statistics.of_a_recording import sinks_of

        def find() -> Sinks:
            return sinks_of(self.recording, text) if self.cells(text) <= SINK_CELLS else Sinks()

        return self.once(("sinks", text), find)

    def once(self, what: Any, make: Any) -> Any:
        """Something about this recording, computed once, by whoever asks first; who asks for something else goes on."""
        with self.locks.setdefault(what, threading.Lock()):
            if what not in self.kept:
                self.kept[what] = make()
            return self.kept[what]


class Recordings:
    """Open recordings by name."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._open: OrderedDict[str, Opened] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    def open(self, ask: RecordingAsk, say: Say) -> Opened:
        """The recording that is asked for, made if need be. Raises NotHere, or what recording and opening raise."""
        if ask.file is not None:
            if ask.model is not None or ask.text is not None or ask.plan:
                raise TextError("a file holds its own text: give file=, or model= and text=.")
            return self._open_file(ask.file)
        if ask.model is None or ask.text is None:
            raise TextError("give a model and a text, or the name of a recording in the workspace.")
        name = recording_id(ask.model, ask.text, ask.plan)
        with self._lock:
            lock = self._making.setdefault(name, threading.Lock())
        try:
            with lock:
                if (known := self._known(name)) is not None:
                    return known
                return self._keep(self._record(name, ask.model, ask.text, ask.plan, say))
        finally:
            self._making.pop(name, None)

    def get(self, name: str) -> Opened:
        """An open recording; a file of the workspace is opened where it is not. Raises NotHere."""
        if (known := self._known(name)) is not None:
            return known
        if (file := self.workspace.file_called(name)) is not None:
            return self._open_file(file)
        raise NotHere("this recording is not open any more: open it again.")

    def add(self, recording: Recording, title: str, model: str = "") -> Opened:
        """A recording in hand."""
        name = digest("hand", str(id(recording)))
        return self._keep(Opened(name, recording, title, model or _model_of(recording), "in hand"))

    def _open_file(self, file: str) -> Opened:
        from manyheads.recording import open_recording

        name = self.workspace.file_id(file)
        if (known := self._known(name)) is not None:
            return known
        recording = open_recording(self.workspace.file_of(file))
        return self._keep(Opened(name, recording, file, _model_of(recording), f"file {file}"))

    def _record(self, name: str, model: str, text: str, plan: Sequence[PlanStep], say: Say) -> Opened:
        from manyheads.models import record

        self.workspace.place_of(model)
        say(f"loading {model}", 0, None)
        lm = self.workspace.load(model)
        say("reading the text", 0, None)
        if plan:
            from manyheads.interventions import applied
            from manyheads.studio.state.plans import corpus_of, plan_of

            wanted = plan_of(plan)
            with applied(lm, wanted, corpus=corpus_of(wanted, text)[0]):
                recording = record(lm, text)
        else:
            recording = record(lm, text)
        say("ready", 1, 1)
        source = "typed, with heads edited" if plan else "typed"
        return Opened(name, recording, text[:TITLE], model, source, bool(plan), text)

    def _known(self, name: str) -> Opened | None:
        """One that is open, which is thereby used."""
        with self._lock:
            if name in self._open:
                self._open.move_to_end(name)
            return self._open.get(name)

    def _keep(self, made: Opened) -> Opened:
        with self._lock:
            self._open[made.id] = made
            self._open.move_to_end(made.id)
            while len(self._open) > 1 and (len(self._open) > MOST_OPEN or self._num_bytes() > MOST_BYTES):
                self._open.popitem(last=False)
        return made

    def _num_bytes(self) -> int:
        return sum(each.recording.num_bytes for each in self._open.values())


def _model_of(recording: Recording) -> str:
    return str(recording.provenance.get("model", "an unnamed model"))
