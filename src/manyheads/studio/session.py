"""What one studio works with: its workspace, open recordings, labels, tiles, jobs, experiments."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from manyheads.errors import FileAccessError, RecordingError, TextError
from manyheads.recording import Recording
from manyheads.roles import PageLabels
from manyheads.studio.jobs import Jobs, Say
from manyheads.studio.problems import Busy, NotHere
from manyheads.studio.schema.base import MAX_TEXT
from manyheads.studio.schema.experiments import Experiment, ExperimentAsk, Pruning, PruningAsk
from manyheads.studio.schema.recordings import Atlas, RecordingAsk, RecordingInfo, Worth
from manyheads.studio.state.labels import Labels
from manyheads.studio.state.recordings import TITLE, Opened, Recordings
from manyheads.studio.state.workspace import Workspace
from manyheads.studio.views.atlas import atlas_of
from manyheads.studio.views.recording import recording_info
from manyheads.studio.views.tiles import Tiles

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["Desk", "Queue", "address_of", "desk_with", "open_recording", "open_text"]


TILE_THREADS = 2
MOST_WAITING = 512  # tiles; a page has some dozens under way
CHECK_SECONDS = 0.05  # between two looks whether a request is still there
MOST_EXPERIMENTS = 200
MOST_TOKENS = 100_000  # of all experiments together: each is told token by token
T = TypeVar("T")


class Queue:
    """Short work off the event loop, given up when the request that wants it is gone; so many wait and no more."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(TILE_THREADS, thread_name_prefix="studio-tile")
        self._waiting = 0

    async def run(self, request: Request, work: Callable[[Callable[[], bool]], T]) -> T:
        """`work` is given a function that says whether it may stop. Raises Busy, and whatever the work raises."""
        if self._waiting >= MOST_WAITING:
            raise Busy(f"{self._waiting} tiles are waiting already. Try again in a moment.")
        gone = threading.Event()
        self._waiting += 1
        try:
            future = asyncio.get_running_loop().run_in_executor(self._pool, work, gone.is_set)
            while True:
                done, _ = await asyncio.wait([future], timeout=CHECK_SECONDS)
                if done:
                    return future.result()
                if await request.is_disconnected():
                    gone.set()
        except asyncio.CancelledError:
            gone.set()
            raise
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Desk:
    """One studio. `first` is the recording to show first, where the command line named one."""

    def __init__(self, workspace: Workspace, first: str | None = None) -> None:
        self.workspace = workspace
        self.recordings = Recordings(workspace)
        self.labels = Labels(workspace)
        self.tiles = Tiles()
        self.jobs = Jobs()
        self.queue = Queue()
        self.first = first
        self._experiments: OrderedDict[str, Experiment] = OrderedDict()

    def open(self, ask: RecordingAsk, say: Say) -> RecordingInfo:
        return self.info(self.recordings.open(ask, say))

    def info(self, opened: Opened, text: int = 0) -> RecordingInfo:
        return recording_info(self.workspace, opened, text)

    def worth(self, opened: Opened, head: str, kind: str, text: int, say: Say) -> Worth:
        """What is lost without one head. Raises NotHere."""
        from manyheads.studio.views import experiments

        opened.layer_of(head)
        lm, words = self._to_run(opened, text, say)
        return experiments.worth(lm, opened.id, head, words, kind, progress=say)

    def importance(self, opened: Opened, text: int, say: Say) -> Atlas:
        """The atlas with what is lost without each head, found once for a text. Raises NotHere."""
        from manyheads.interventions import importance

        lm, words = self._to_run(opened, text, say)

        def find() -> Any:
            def progress(done: int, total: int) -> None:
                say("without each head, one by one", done, total)

            return importance(lm, words, progress=progress)

        opened.once(("importance", text), find)
        return atlas_of(opened, text, self.labels.of(opened))

    def _to_run(self, opened: Opened, text: int, say: Say) -> tuple[Any, str]:
        """The model and the text of a recording, to run again. Raises NotHere where that cannot be."""
        texts = opened.recording.tokens.texts
        if opened.edited:
            raise NotHere("this recording's heads were edited: run an experiment with the plan and this head in it.")
        if opened.model not in self.workspace.models or not texts:
            raise NotHere(f"{opened.model} is not in this workspace, so nothing can be taken from it: --model ...")
        say(f"loading {opened.model}", 0, None)
        return self.workspace.load(opened.model), texts[opened.check_text(text)]

    def experiment(self, ask: ExperimentAsk, say: Say) -> Experiment:
        from manyheads.studio.views import experiments

        say(f"loading {ask.model}", 0, None)
        found = experiments.run(self.workspace.load(ask.model), ask, progress=say)
        self._experiments[found.id] = found
        kept = self._experiments
        while len(kept) > 1 and (len(kept) > MOST_EXPERIMENTS or self._tokens() > MOST_TOKENS):
            kept.popitem(last=False)
        return found

    def _tokens(self) -> int:
        return sum(len(experiment.tokens) for experiment in self._experiments.values())

    def experiment_of(self, name: str) -> Experiment:
        if name not in self._experiments:
            raise NotHere("this experiment is not kept any more: run it again.")
        return self._experiments[name]

    def prune(self, ask: PruningAsk, say: Say) -> Pruning:
        from manyheads.studio.views import experiments

        if self.workspace.folder is None:
            raise FileAccessError("this studio may write nothing: start it with --folder DIR to save pruned models.")
        say(f"loading {ask.model}", 0, None)
        return experiments.save_pruned(self.workspace.load(ask.model), ask, self.workspace.folder, progress=say)

    def config_of(self, model: str) -> Any:
        """What `size` is given for a model of the workspace."""
        place = self.workspace.place_of(model)
        return self.workspace.load(model) if place.bundled or hasattr(place.what, "model") else place.what

    def close(self) -> None:
        self.jobs.close()
        self.queue.close()


# ---------------------------------------------------------------------------------------------------------------------
# A desk for what a caller has in hand, a model or a recording, instead of what a command line named.


LONGEST_ADDRESS = 2_000  # characters that every browser and every system's way to start one takes


def desk_with(lm: Any = None, labels: PageLabels | None = None) -> Desk:
    """A desk with the bundled models, and first of all this one as it is in memory, with its labels."""
    workspace = Workspace.of()
    if lm is not None:
        workspace.add_model(lm)
    desk = Desk(workspace)
    if lm is not None and labels is not None and labels.roles:
        desk.labels.known[lm.name] = labels
    return desk


def open_text(desk: Desk, lm: Any, text: str, long: str = "windows") -> Opened:
    """A text through the model that the desk was made with; the page would open the same under the same name.

    Errors: TextError above what a page takes; whatever `record` raises.
    """
    from manyheads.models import record

    if len(text) > MAX_TEXT:
        raise TextError(
            f"the text has {len(text):,} characters, above the studio's {MAX_TEXT:,}: record() it, and show that."
        )
    if long == "windows":
        opened = desk.recordings.open(RecordingAsk(model=lm.name, text=text), lambda *_: None)
    else:
        opened = desk.recordings.add(record(lm, text, long=long), text[:TITLE], lm.name)
    desk.first = opened.id
    return opened


def open_recording(desk: Desk, recording: Recording) -> Opened:
    """A recording in hand. Errors: RecordingError for one that holds nothing."""
    if not any(len(layers) for layers in recording.stacks.values()):
        raise RecordingError("this recording holds no attention layer: there is nothing to show.")
    texts = recording.tokens.texts
    opened = desk.recordings.add(recording, texts[0][:TITLE] if texts else "a recording")
    opened.source = "a recording in hand"
    desk.first = opened.id
    return opened


def address_of(model: str, text: str) -> str:
    """The fragment at which the page opens a text, as web/src/lib/state/view.svelte.ts reads it.

    A long text has none: no browser takes it, and the page then opens what the desk has first.
    """
    from urllib.parse import urlencode

    fragment = f"#/atlas?{urlencode({'model': model, 'text': text})}"
    return fragment if len(fragment) <= LONGEST_ADDRESS else ""
