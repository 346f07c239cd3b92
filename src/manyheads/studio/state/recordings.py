"""The recordings a studio has open: made from a text, or from a file of the workspace; their ids name what made them.

Two pages that open the same text share one recording, and neither has any state here. What is computed from a recording
(its table, its sinks) is kept with it. The least recently used recordings are dropped: a page that finds its recording
gone opens it again, under the same id.

Heads may be edited by a plan. An experiment and the recording of its "after" must put the same values in a head's
place, so both use `plan_of` and `corpus_of`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from manyheads.base import Cache
from manyheads.circuits.says import Additions
from manyheads.corpora import page_texts
from manyheads.edits import applied
from manyheads.errors import ManyHeadsError, TextError
from manyheads.heads import Head
from manyheads.inputs import Keep, Recorder, read, record
from manyheads.measurement import sinks_of
from manyheads.models import LoadedModel
from manyheads.plan import Ablate, Plan
from manyheads.recording import LayerRecord, Recording, open_recording
from manyheads.roles.compare import sharing_around
from manyheads.studio.jobs import ReportProgress
from manyheads.studio.problems import NotHere
from manyheads.studio.schema.base import PlanStep
from manyheads.studio.schema.explained import WhyAnswer
from manyheads.studio.schema.recordings import RecordingAsk
from manyheads.studio.state.workspace import Workspace, digest
from manyheads.texts import Sinks

Value = TypeVar("Value")
MOST_OPEN = 24
MOST_BYTES = 2_000_000_000  # of open recordings together; the last one stays whatever its size
SINK_CELLS = 100_000_000  # over all heads: up to so many, sinks are searched for at once
TILE_CELLS = 256
OUTPUT_BYTES = 16_000_000  # of what heads say, for each recording
MOST_EXPLAINED = 64  # weights, for each recording: each answer names every writer before it
MOST_PASSES = 32  # of the model, for each recording: one for each token that was asked about
VALUE_BYTES = 64_000_000  # a recording holds values where it is below this, q, k and lse included
WITH_VALUES: tuple[Keep, ...] = ("q", "k", "v", "lse")
WITHOUT_VALUES: tuple[Keep, ...] = ("q", "k", "lse")
TITLE = 80  # characters of a text that stand for it
RESAMPLED_TEXTS = 32  # of the bundled texts, where "resample" has no corpus: as many as resampling draws from


def keep_for(lm: LoadedModel, num_tokens: int) -> tuple[Keep, ...]:
    """What a recording for the page keeps: values as well, where it stays small with them."""
    is_small = Recorder(WITH_VALUES).bytes_per_token(lm) * num_tokens < VALUE_BYTES
    return WITH_VALUES if is_small else WITHOUT_VALUES


def recording_id(model: str, text: str, plan: Sequence[PlanStep] = ()) -> str:
    """The id of the recording of a text through a model, its heads edited by a plan."""
    return digest("text", model, text, json.dumps([step.model_dump() for step in plan], sort_keys=True))


@dataclass(eq=False)
class Opened:
    """A recording and its origin. `model` is its name in the workspace, or the name that the file gives.

    `edited`: whether its heads were edited by a plan. `sharing`: by a site's name, which heads use which part of which
    heads' weights under that plan. `written`: the whole text, where it was typed into the page. `model_sinks`: where
    the model parks attention on many texts, as its labels have it; None where they are not known.
    """

    id: str
    recording: Recording
    title: str
    model: str
    source: str
    edited: bool = False
    sharing: Mapping[str, Mapping[int, Mapping[int, float]]] = field(default_factory=dict)
    written: str | None = None
    model_sinks: Sinks | None = None
    computed: Cache[tuple[Any, ...], Any] = field(default_factory=Cache)
    outputs: Cache[tuple[int, str, int, int, bool], bytes] = field(
        default_factory=lambda: Cache(None, OUTPUT_BYTES, len)
    )
    passes: Cache[tuple[int, int], Additions | str] = field(default_factory=lambda: Cache(MOST_PASSES))
    explained: Cache[tuple[int, str, int, int, str | int], WhyAnswer] = field(
        default_factory=lambda: Cache(MOST_EXPLAINED)
    )

    @property
    def main(self) -> LayerRecord:
        """The layer whose tokens are the recording's: the first that attends within its text, else the first."""
        layers = [layer for stack in self.recording.stacks.values() for layer in stack[:1]]
        return next((layer for layer in layers if not layer.crosses), layers[0])

    @property
    def num_texts(self) -> int:
        return len(self.main.lengths)

    def check_text(self, text: int) -> int:
        """The number of a text, as it was given. Raises NotHere for one that the recording has not."""
        if not 0 <= text < self.num_texts:
            raise NotHere(f"this recording has no text {text}: it holds {self.num_texts}, counted from 0.")
        return text

    def layer_of(self, name: str) -> tuple[LayerRecord, int]:
        """The layer of a head by name, and the head's index in it. Raises NotHere."""
        try:
            head = Head.parse(name)
        except ManyHeadsError as error:
            raise NotHere(str(error)) from error
        layers = self.recording.stacks.get(head.stack)
        # Asked of the sites first: a file's layers are read when they are asked for.
        if layers is not None and any(s.layer == head.layer and head.index < s.num_heads for s in layers.sites):
            return layers[head.layer], head.index
        raise NotHere(f"there is no head {name} in this recording.")

    def layers(self) -> list[LayerRecord]:
        """The layers of all stacks, one stack after another."""
        return [layer for stack in self.recording.stacks.values() for layer in stack]

    def cells(self, text: int) -> int:
        """The number of cells of all heads' maps of a text, hidden ones too."""
        return sum(layer.site.num_heads * layer.num_queries(text) * layer.num_keys(text) for layer in self.layers())

    def sinks(self, text: int) -> Sinks:
        """The attention sinks of a text: the model's, else the text's own; none where the search would take long."""
        if self.model_sinks is not None:
            return self.model_sinks
        # A short text alone seldom shows them: an even spread gives much to its first token as well.
        return self.once(
            ("sinks", text),
            lambda: sinks_of(self.recording, text) if self.cells(text) <= SINK_CELLS else Sinks(),
        )

    def once(self, key: tuple[str | int | float, ...], make: Callable[[], Value]) -> Value:
        """A value computed from this recording, once: by the first caller, for whom callers of the same key wait."""
        return self.computed.get_or_make(key, make)


class Recordings:
    """Open recordings by id. `model_sinks` returns the sinks of a model by its name, None where they are not known."""

    def __init__(self, workspace: Workspace, model_sinks: Callable[[str], Sinks | None] = lambda _: None) -> None:
        self.workspace, self.model_sinks = workspace, model_sinks
        # By bytes as well: a text of thousands of tokens holds as much as hundreds of short ones.
        self.opened: Cache[str, Opened] = Cache(MOST_OPEN, MOST_BYTES, lambda opened: opened.recording.num_bytes)

    def open(self, ask: RecordingAsk, report: ReportProgress) -> Opened:
        """The requested recording, made where it is not open. Raises NotHere, or what recording and opening raise."""
        if ask.file is not None:
            if ask.model is not None or ask.text is not None or ask.plan:
                raise TextError("a file holds its own text: give file=, or model= and text=.")
            return self._open_file(ask.file)
        model, text, steps = ask.model, ask.text, ask.plan
        if model is None or text is None:
            raise TextError("give a model and a text, or the name of a recording in the workspace.")
        name = recording_id(model, text, steps)

        def make() -> Opened:
            lm = self.workspace.load(model, report)  # first: one that is not in the workspace is refused before all
            report("reading the text", 0, None)
            reading = read(lm, text)
            keep = WITH_VALUES if ask.values else keep_for(lm, reading.num_tokens)
            sharing: dict[str, Mapping[int, Mapping[int, float]]] = {}
            if steps:
                plan = plan_of(steps)
                with applied(lm, plan, corpus=corpus_of(plan, text)[0]):
                    recording = record(lm, reading, keep=keep)
                    sharing = {str(site): sharing_around(lm.model)(site) for site in lm.spec.sites}
            else:
                recording = record(lm, reading, keep=keep)
            report("ready", 1, 1)
            source = "typed, with heads edited" if steps else "typed"
            return self._opened(name, recording, text[:TITLE], model, source, bool(steps), sharing, text)

        if ask.values and (known := self.opened.get(name)) is not None and known.main.v is None:
            return self.opened.put(name, make())  # the same text, read again with its values
        # Two pages that open the same text at once: one of them records it, and the other waits for that one.
        return self.opened.get_or_make(name, make)

    def get(self, name: str) -> Opened:
        """An open recording; a file of the workspace is opened where it is not. Raises NotHere."""
        if (known := self.opened.get(name)) is not None:
            return known
        if (file := self.workspace.file_called(name)) is not None:
            return self._open_file(file)
        raise NotHere("this recording is not open any more: open it again.")

    def add(self, recording: Recording, title: str, model: str = "") -> Opened:
        """Open a recording that is in memory."""
        # Two recordings of the same text may differ in everything else. The desk keeps this one, so that no other
        # object gets its address while it is open.
        name = digest("hand", str(id(recording)))
        return self.opened.put(name, self._opened(name, recording, title, model or _model_of(recording), "in hand"))

    def add_text(self, recording: Recording, model: str, text: str) -> Opened:
        """Open the recording of a text as if it had been typed into the page."""
        name = recording_id(model, text)
        return self.opened.put(name, self._opened(name, recording, text[:TITLE], model, "typed", written=text))

    def _opened(
        self,
        name: str,
        recording: Recording,
        title: str,
        model: str,
        source: str,
        edited: bool = False,
        sharing: Mapping[str, Mapping[int, Mapping[int, float]]] | None = None,
        written: str | None = None,
    ) -> Opened:
        """A recording with the sinks of its model.

        - `name`, `title`, `source`: its address, what is written over it, and where it is from, in words.
        - `recording`, `model`: it, and the model's name.
        - `edited`, `sharing`: whether heads were edited, and which of them share a key/value head then.
        - `written`: the text as it was typed.
        """
        sinks = self.model_sinks(model)
        return Opened(name, recording, title, model, source, edited, sharing or {}, written, sinks)

    def _open_file(self, file: str) -> Opened:
        def opened() -> Opened:
            recording = open_recording(self.workspace.file_of(file))
            return self._opened(name, recording, file, _model_of(recording), f"file {file}")

        name = self.workspace.file_id(file)
        return self.opened.get_or_make(name, opened)


def _model_of(recording: Recording) -> str:
    return str(recording.provenance.get("model", "an unnamed model"))


def plan_of(steps: Sequence[PlanStep]) -> Plan:
    """The library's plan of the steps of a request. Errors: PlanError, HeadError."""
    return Plan.from_dict({"steps": [step.model_dump() for step in steps]})


def corpus_of(plan: Plan, text: str, corpus: str | None = None) -> tuple[list[str] | None, str]:
    """The texts from which "mean" and "resample" take their values, and why these; None for a plan that needs none.

    They are the paragraphs of `corpus`, else the text itself; but "resample" then uses bundled texts, for values of the
    same text would change nothing.
    """
    if not plan.needs_corpus:
        return None, ""
    if corpus is not None and corpus.strip():
        paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", corpus) if part.strip()]
        return paragraphs, f"{len(paragraphs)} paragraph{'s' * (len(paragraphs) != 1)}, as given"
    if any(isinstance(step, Ablate) and step.kind == "resample" and step.needs_corpus for step in plan.steps):
        page = page_texts()
        spread = page[:: max(1, len(page) // RESAMPLED_TEXTS)][:RESAMPLED_TEXTS]
        return spread, f"{len(spread)} bundled texts: the text itself would change nothing"
    return [text], "the text itself, for want of another"
