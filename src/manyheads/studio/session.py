"""A studio session: its workspace, open recordings, role labels, tiles, jobs and experiments.

The command builds one from paths and names (`StudioSession(Workspace.of(...))`); `desk_with`, `open_text` and
`open_recording` build one from a model or a recording in memory, for notebooks, single files and `look --open`.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

from manyheads.base import Cache
from manyheads.errors import FileAccessError, ManyHeadsError, RecordingError, TextError
from manyheads.inputs import Inputs, Long, read, record
from manyheads.interventions import importance
from manyheads.measurement import changed_text, word_swap
from manyheads.models import LoadedModel
from manyheads.plan import AblationKind
from manyheads.recording import Recording
from manyheads.recording import open_recording as read_recording
from manyheads.roles import PageLabels
from manyheads.studio.jobs import Jobs, ReportProgress
from manyheads.studio.problems import Busy, NotHere, TooLarge
from manyheads.studio.schema.base import MAX_TEXT, FileEntry
from manyheads.studio.schema.experiments import Blend, BlendAsk, Experiment, ExperimentAsk, Pruning, PruningAsk
from manyheads.studio.schema.recordings import Atlas, RecordingAsk, RecordingInfo, Swap, SwapAsk, SwapRow, Worth
from manyheads.studio.state.recordings import TITLE, Opened, Recordings, keep_for
from manyheads.studio.state.workspace import Workspace
from manyheads.studio.views import blend, experiments
from manyheads.studio.views.atlas import Labels, atlas_of
from manyheads.studio.views.cards import Cards
from manyheads.studio.views.recording import recording_info
from manyheads.studio.views.tiles import Tiles
from manyheads.studio.views.training import Histories
from manyheads.units import gb

if TYPE_CHECKING:
    from starlette.requests import Request

TILE_THREADS = 2
MOST_WAITING = 512  # tiles; a page has some dozens under way
CHECK_SECONDS = 0.05  # between two checks whether a request is still open
MOST_EXPERIMENTS = 200
MOST_TOKENS = 100_000  # of all experiments together: each holds values token by token
PLAIN_TEXT = 400  # characters of a text that stands in an address as it is
MAX_UPLOAD = 512_000_000  # bytes of one recording that is dropped on the page
MAX_UPLOADS = 2_000_000_000  # of all of them together: they lie in a folder for temporary files until the studio stops
LONGEST_ADDRESS = 2_000  # characters that every browser, and every system's way to start one, accepts
T = TypeVar("T")


class StudioSession:
    """The state of one studio. `first` is the id of the recording that the page shows first, None for none."""

    def __init__(self, workspace: Workspace, first: str | None = None) -> None:
        self.workspace = workspace
        self.labels = Labels(workspace)
        self.recordings = Recordings(workspace, self.labels.sinks_of)
        self.cards = Cards(workspace)
        self.tiles = Tiles()
        self.histories = Histories(workspace)
        self.jobs = Jobs()
        self.queue = Queue()  # apart from the jobs: a tile must not wait behind a minute's work
        self.first = first
        self.dropped: tempfile.TemporaryDirectory[str] | None = None
        self.experiments: Cache[str, Experiment] = Cache(
            MOST_EXPERIMENTS, MOST_TOKENS, lambda experiment: len(experiment.tokens)
        )

    def open(self, ask: RecordingAsk, report: ReportProgress) -> RecordingInfo:
        """Record a text or open a file, unless it is open. Raises NotHere, and what recording and opening raise."""
        return self.info(self.recordings.open(ask, report))

    def info(self, opened: Opened, text: int = 0) -> RecordingInfo:
        """The description of an open recording and of one of its texts. Raises NotHere for a text that it has not."""
        return recording_info(self.workspace, opened, text)

    def worth(self, opened: Opened, head: str, kind: AblationKind, text: int, report: ReportProgress) -> Worth:
        """The effect of ablating one head. Raises NotHere."""
        opened.layer_of(head)
        lm, words = self._model_and_text(opened, text, report)
        return experiments.worth(lm, opened.id, head, words, kind, progress=report)

    def importance(self, opened: Opened, text: int, report: ReportProgress) -> Atlas:
        """The atlas with the importance of each head, measured once per text. Raises NotHere."""
        lm, words = self._model_and_text(opened, text, report)

        def progress(done: int, total: int | None) -> None:
            report("without each head, one by one", done, total)

        # `atlas_of` finds it under this name, now and for as long as the recording is open.
        opened.once(("importance", text), lambda: importance(lm, words, progress=progress))
        return atlas_of(opened, text, self.labels.of(opened))

    def _model_and_text(self, opened: Opened, text: int, report: ReportProgress) -> tuple[LoadedModel, str]:
        """The model and the text of a recording, to run again. Raises NotHere where that is impossible."""
        texts = opened.recording.tokens.texts
        if opened.edited:
            raise NotHere("this recording's heads were edited: run an experiment with the plan and this head in it.")
        if opened.model not in self.workspace.models or not texts:
            raise NotHere(f"{opened.model} is not in this workspace, so nothing can be taken from it: --model ...")
        return self.workspace.load(opened.model, report), texts[opened.check_text(text)]

    def swap(self, opened: Opened, ask: SwapAsk, report: ReportProgress) -> Swap:
        """A text with one word changed, and what becomes of a word's looks. Raises NotHere, TextError, HeadError."""
        for head in ask.heads:
            opened.layer_of(head)
        self._model_and_text(opened, 0, report)
        text = changed_text(opened.recording, ask.at, ask.word)
        # Opened like any other: the maps after the change can be compared with those before.
        later = self.recordings.open(RecordingAsk(model=opened.model, text=text), report)
        swap = word_swap(opened.recording, later.recording, ask.at, ask.query, ask.heads)
        return Swap.of(
            swap,
            recording=opened.id,
            after_recording=later.id,
            text=text,
            words=list(swap.words),
            begins=list(swap.begins),
            special=swap.special.tolist(),
            rows=[SwapRow(head=str(r.head), before=r.before.tolist(), after=r.after.tolist()) for r in swap.rows],
            links=list(swap.links),
            beside=None if swap.beside is None else str(swap.beside),
            linked=swap.linked(),
            said=swap.said(),
            figures=swap.figures(),
        )

    def blend(self, ask: BlendAsk, report: ReportProgress) -> Blend:
        """All heads on their way to one map. Errors: those of `blend.run`; NotHere."""
        return blend.run(self.workspace.load(ask.model, report), ask, progress=report)

    def experiment(self, ask: ExperimentAsk, report: ReportProgress) -> Experiment:
        """Run an experiment, and keep its result for `experiment_of`. Errors: those of `experiments.run`; NotHere."""
        experiment = experiments.run(self.workspace.load(ask.model, report), ask, progress=report)
        return self.experiments.put(experiment.id, experiment)

    def experiment_of(self, name: str) -> Experiment:
        """The result of an experiment by its id. Raises NotHere for one that is not kept any more."""
        experiment = self.experiments.get(name)
        if experiment is None:
            raise NotHere("this experiment is not kept any more: run it again.")
        return experiment

    def prune(self, ask: PruningAsk, report: ReportProgress) -> Pruning:
        """Write a smaller checkpoint into the folder. Errors: FileAccessError without one, and as `save_pruned`."""
        if self.workspace.folder is None:
            raise FileAccessError("this studio may write nothing: start it with --folder DIR to save pruned models.")
        lm = self.workspace.load(ask.model, report)
        return experiments.save_pruned(lm, ask, self.workspace.folder, progress=report)

    def config_of(self, model: str) -> str | LoadedModel:
        """The argument of `mh.size` for a model of the workspace: its folder's path needs no weights to be loaded."""
        place = self.workspace.place_of(model)
        return self.workspace.load(model) if place.bundled or isinstance(place.what, LoadedModel) else place.what

    def place_for_upload(self) -> Path:
        """A path for the bytes of a recording that is dropped on the page. No part of a request is in it."""
        if self.dropped is None:
            self.dropped = tempfile.TemporaryDirectory(prefix="manyheads-dropped-")
        return Path(self.dropped.name) / f"{secrets.token_hex(8)}.heads"

    def take_in(self, name: str, path: Path) -> FileEntry:
        """Add a recording that was dropped on the page to the workspace, after the checks of every file that is opened.

        Errors: TooLarge, and what opening a recording raises; the file is then deleted.
        """
        try:
            size = sum(file.stat().st_size for file in path.parent.iterdir())
            if size > MAX_UPLOADS:
                raise TooLarge(
                    f"{name} would make it {gb(size)} of dropped recordings, above the limit of {gb(MAX_UPLOADS)}: "
                    f"start the studio with the file, manyheads studio {name}."
                )
            try:
                for layers in read_recording(path).stacks.values():
                    for _ in layers:  # each is read once: a damaged one is refused now, not when a head is clicked
                        pass
            except ManyHeadsError as error:
                error.args = (str(error).replace(str(path), name),)
                raise
            return self.workspace.add_dropped(name, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Stop what runs, and delete the recordings that were dropped on the page."""
        self.jobs.close()
        self.queue.close()
        if self.dropped is not None:
            self.dropped.cleanup()


class Queue:
    """Short work in threads, given up when the request for it is closed; at most `MOST_WAITING` requests wait."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(TILE_THREADS, thread_name_prefix="studio-tile")
        self._waiting = 0

    async def run(self, request: Request, work: Callable[[Callable[[], bool]], T]) -> T:
        """The result of `work`, which receives a function that returns whether it may stop.

        Raises Busy, and whatever the work raises.
        """
        if self._waiting >= MOST_WAITING:
            raise Busy(f"{self._waiting} tiles are waiting already. Try again in a moment.")
        closed = threading.Event()
        self._waiting += 1  # no lock: only the event loop's thread changes it
        try:
            future = asyncio.get_running_loop().run_in_executor(self._pool, work, closed.is_set)
            while True:
                done, _ = await asyncio.wait([future], timeout=CHECK_SECONDS)
                if done:
                    return future.result()
                # A browser closes the requests of tiles that were scrolled away, and a thread cannot be cancelled:
                # the work itself has to look at the event.
                if await request.is_disconnected():
                    closed.set()
        except asyncio.CancelledError:
            closed.set()
            raise
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def desk_with(lm: LoadedModel | None = None, labels: PageLabels | None = None) -> StudioSession:
    """A session with the bundled models, and before them `lm`, a model in memory, with its labels."""
    workspace = Workspace.of()
    if lm is not None:
        workspace.add_model(lm)
    desk = StudioSession(workspace)
    if lm is not None and labels is not None and labels.roles:
        desk.labels.known[lm.name] = labels
    return desk


def open_text(
    desk: StudioSession, lm: LoadedModel, text: str, long: Long = "windows", recording: Recording | None = None
) -> Opened:
    """Record a text through the model that the desk was made with, under the id that the page would give it.

    `recording`: that of this very text, where it was made already; then the model is not run.
    Errors: TextError above the page's limit; whatever `record` raises.
    """
    if len(text) > MAX_TEXT:
        raise TextError(
            f"the text has {len(text):,} characters, above the studio's {MAX_TEXT:,}: record() it, and show that."
        )
    if long != "windows":
        inputs = Inputs(text, long=long)
        if recording is None:
            reading = read(lm, inputs)
            recording = record(lm, reading, keep=keep_for(lm, reading.num_tokens))
        opened = desk.recordings.add(recording, text[:TITLE], lm.name)
    elif recording is not None:
        opened = desk.recordings.add_text(recording, lm.name, text)
    else:
        opened = desk.recordings.open(RecordingAsk(model=lm.name, text=text), lambda *_: None)
    desk.first = opened.id
    return opened


def open_recording(desk: StudioSession, recording: Recording) -> Opened:
    """Add a recording that is in memory. Errors: RecordingError for a recording without layers."""
    if not any(len(layers) for layers in recording.stacks.values()):
        raise RecordingError("this recording holds no attention layer: there is nothing to show.")
    texts = recording.tokens.texts
    opened = desk.recordings.add(recording, texts[0][:TITLE] if texts else "a recording")
    opened.source = "a recording in hand"
    desk.first = opened.id
    return opened


def address_of(model: str, text: str) -> str:
    """The URL fragment at which the page opens a text, as web/src/lib/state/view.svelte.ts reads it.

    A longer text is deflated. "" for one whose address no browser accepts: the page then opens the desk's first
    recording.
    """
    named = {"text": text}
    if len(text) > PLAIN_TEXT:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        deflated = deflate.compress(text.encode("utf-8", "replace")) + deflate.flush()
        named = {"z": urlsafe_b64encode(deflated).decode().rstrip("=")}
    fragment = f"#/atlas?{urlencode({'model': model, **named})}"
    return fragment if len(fragment) <= LONGEST_ADDRESS else ""
