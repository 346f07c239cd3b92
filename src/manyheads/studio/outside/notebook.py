"""The studio in a notebook: an anywidget that holds a snapshot, and answers the page as long as the kernel lives.

The page asks by messages, `{id, method, path, body}`; it is told at once that the question has come, `{id, taken}`, and
then the answer, `{id, status, kind}` with the body as bytes. The same application answers that the server runs,
without a socket, in threads: a cell that runs does not wait for it. Whatever goes wrong is an answer too.

Nothing comes from a network: the page's module and style sheet are part of the widget, and are saved with the notebook.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import anywidget
import traitlets

from manyheads.errors import ManyHeadsError, ModelError, RecordingError, TextError
from manyheads.recording import Recording
from manyheads.studio.outside.one_file import bundle
from manyheads.studio.problems import told
from manyheads.studio.server.app import create_app
from manyheads.studio.server.in_process import answer
from manyheads.studio.session import Desk, desk_with, open_recording, open_text
from manyheads.studio.snapshot import snapshot_of
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import Workspace

__all__ = ["StudioWidget", "of_model", "of_recording", "show"]


THREADS = 8  # of one widget: a page has some tiles under way, and each job that it waits for holds one
METHODS = ("GET", "POST", "DELETE")
JS, CSS = bundle()


class StudioWidget(anywidget.AnyWidget):
    """The page in a cell. `snapshot` is what shows without a kernel; `height` is fixed, in pixels."""

    _esm = JS
    _css = CSS
    snapshot = traitlets.Bytes().tag(sync=True)
    height = traitlets.Int(640).tag(sync=True)

    def __init__(self, desk: Desk, opened: Opened, snapshot: bytes, height: int) -> None:
        super().__init__(snapshot=snapshot, height=height)
        self._desk, self._opened, self._app = desk, opened, create_app(desk)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="studio-widget")
        self._asked: dict[str, Future[None]] = {}
        self._labelled = desk.labels.of(opened) is not None
        self.on_msg(self._hear)

    def close(self) -> None:
        super().close()
        self._desk.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _hear(self, _: Any, content: Any, __: Any = None) -> None:
        """A message of the page's: a question, or that one is not needed any more."""
        if not isinstance(content, dict):
            return
        if "cancel" in content:
            if waiting := self._asked.pop(str(content["cancel"]), None):
                waiting.cancel()
        elif "id" in content:
            name = str(content["id"])
            self.send({"id": name, "taken": True})
            self._asked[name] = future = self._pool.submit(self._answer, name, content)
            future.add_done_callback(lambda _: self._asked.pop(name, None))  # it may have ended before it was noted

    def _answer(self, name: str, content: dict[str, Any]) -> None:
        """Ask the application, and tell the page."""
        try:
            method, path = str(content.get("method", "GET")), str(content.get("path", ""))
            if method not in METHODS or not path.startswith("/api/"):
                raise TextError(f"{method} {path[:200]}: this widget answers {', '.join(METHODS)} of /api/ alone.")
            status, kind, body = answer(self._app, method, path, content.get("body"))
        except Exception as error:
            code, problem = told(error)
            status, kind, body = code, "application/json", problem.model_dump_json().encode()
        self.send({"id": name, "status": status, "kind": kind}, [body])
        self._relabel()

    def _relabel(self) -> None:
        """Take the roles into the snapshot as soon as they are known: a notebook that is saved then has them."""
        if not self._labelled and self._desk.labels.of(self._opened) is not None:
            self._labelled = True
            try:
                self.snapshot = snapshot_of(self._desk, self._opened).data
            except ManyHeadsError:
                self._labelled = False  # the old one stays; the next answer tries again


def of_recording(recording: Recording, height: int) -> StudioWidget:
    """A recording in hand. Its model is not loaded for it: the page asks for roles and changes when they are wanted."""
    bare = Desk(Workspace())
    snapshot = snapshot_of(bare, open_recording(bare, recording))
    bare.close()
    desk = desk_with()
    return StudioWidget(desk, open_recording(desk, recording), snapshot.data, height)


def of_model(lm: Any, text: str | None, height: int) -> StudioWidget:
    """A text through a model in hand, with its roles."""
    from manyheads.corpora import reading_of
    from manyheads.roles import label_page

    try:
        labels = label_page(lm)
    except TextError:  # it cannot read the page that roles rest on: the page says so where they would stand
        labels = None
    desk = desk_with(lm, labels)
    opened = open_text(desk, lm, reading_of(lm.name).sentence if text is None else text)
    return StudioWidget(desk, opened, snapshot_of(desk, opened).data, height)


# ---------------------------------------------------------------------------------------------------------------------
# `show`: heads in a notebook, by the same page as the studio's, alive while the kernel is and readable after.


INSTALL = 'show() needs the studio: pip install "manyheads[studio]".'
HEIGHTS = (320, 4000)


def show(what: Any, text: str | None = None, height: int = 640) -> Any:
    """Every head in a notebook: the atlas, any head's map, comparisons, experiments. Ends a cell: `mh.show(rec)`.

    `what` is a Recording, or a LoadedModel with a `text` (a sentence of ours unless given), whose heads then have their
    roles: the first time for a model that takes seconds. A table has numbers but no maps, and comes back as it is: a
    notebook shows it as a table. `height` in pixels.

    While the kernel runs, the page asks it for everything. What is saved with the notebook is a snapshot: the atlas,
    cards, maps and strongest links, which show without a kernel, and say what they are. No network is used.
    Returns an anywidget.AnyWidget. Cost: reading every weight once (72 heads, 512 tokens: 1.5 s), about 2 MB in the
    notebook. Errors: ModelError without the extra "studio", RecordingError for anything else, TextError.
    """
    from manyheads.statistics import HeadTable

    low, high = HEIGHTS
    if not isinstance(height, int) or not low <= height <= high:
        raise RecordingError(f"{height=}: give a height of {low} to {high} pixels.")
    if isinstance(what, HeadTable):
        return what
    if find_spec("anywidget") is None or find_spec("fastapi") is None:
        raise ModelError(INSTALL)
    from manyheads.recording import Recording

    if isinstance(what, Recording):
        if text is not None:
            raise TextError("a recording has its own text: show(rec) without text=, or show(lm, text).")
        return of_recording(what, height)
    if hasattr(what, "model") and hasattr(what, "tokenizer"):
        return of_model(what, text, height)
    raise RecordingError(
        f"show() was given {type(what).__name__}: give a recording, show(record(lm, text)), or a model, show(lm)."
    )
