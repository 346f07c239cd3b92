"""The studio in a notebook: an anywidget that holds a snapshot, and answers the page as long as the kernel lives.

The page sends requests as messages, `{id, method, path, body}`; the widget confirms each at once, `{id, taken}`, and
then sends the answer, `{id, status, kind}`, with the body as bytes. The server's own application answers, without a
socket, in threads: a cell that runs does not wait for it. Errors are answers as well.

Nothing comes from a network: the page's module and style sheet are part of the widget, and are saved with the notebook.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import anywidget
import traitlets

from manyheads.corpora import reading_of
from manyheads.errors import ManyHeadsError, TextError
from manyheads.models import LoadedModel
from manyheads.recording import Recording
from manyheads.roles import label_page
from manyheads.studio.outside.snapshot import bundle, program, snapshot_of
from manyheads.studio.problems import problem_of
from manyheads.studio.server.app import answer, create_app
from manyheads.studio.session import StudioSession, desk_with, open_recording, open_text
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import Workspace

THREADS = 8  # of one widget: a page has some tiles under way, and each job that it waits for holds one
METHODS = ("GET", "POST", "DELETE")
JS, CSS = bundle()
PLAY = program("play")


class StudioWidget(anywidget.AnyWidget):
    """The page in a cell. `snapshot` is what shows without a kernel, `play` the program that plays scenes, gzipped;
    `height` is fixed, in pixels."""

    _esm = JS
    _css = CSS
    snapshot = traitlets.Bytes().tag(sync=True)
    play = traitlets.Bytes(PLAY).tag(sync=True)
    height = traitlets.Int(640).tag(sync=True)

    def __init__(self, desk: StudioSession, opened: Opened, snapshot: bytes, height: int) -> None:
        super().__init__(snapshot=snapshot, height=height)
        self._desk, self._opened, self._app = desk, opened, create_app(desk)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="studio-widget")
        self._requests: dict[str, Future[None]] = {}
        self._labelled = desk.labels.of(opened) is not None
        self.on_msg(self._receive)

    def __repr__(self) -> str:
        """What a reader sees who has no kernel and no snapshot: the page of a repository, a terminal."""
        return f"the studio's page of {self._opened.recording}: run this cell to see it"

    def close(self) -> None:
        super().close()
        self._desk.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _receive(self, _: object, content: object, __: object = None) -> None:
        """A message from the page: a request, or the cancellation of one."""
        if not isinstance(content, dict):
            return
        if "cancel" in content:
            if future := self._requests.pop(str(content["cancel"]), None):
                future.cancel()
        elif "id" in content:
            name = str(content["id"])
            # At once, from the kernel's own thread: without it the page takes the kernel for busy or stopped.
            self.send({"id": name, "taken": True})
            self._requests[name] = future = self._pool.submit(self._answer, name, content)
            # After it was noted, not before: it may have ended already, and would then stay in the list for ever.
            future.add_done_callback(lambda _: self._requests.pop(name, None))

    def _answer(self, name: str, content: dict[str, Any]) -> None:
        """Answer one request, then take roles into the snapshot once they are known: a saved notebook has them."""
        try:
            method, path = str(content.get("method", "GET")), str(content.get("path", ""))
            if method not in METHODS or not path.startswith("/api/"):
                raise TextError(f"{method} {path[:200]}: this widget answers {', '.join(METHODS)} of /api/ alone.")
            status, kind, body = answer(self._app, method, path, content.get("body"))
        except Exception as error:
            status, problem = problem_of(error)
            kind, body = "application/json", problem.model_dump_json().encode()
        self.send({"id": name, "status": status, "kind": kind}, [body])
        # Two threads may both get past this line: the snapshot is then made twice, and is the same.
        if not self._labelled and self._desk.labels.of(self._opened) is not None:
            self._labelled = True
            try:
                self.snapshot = snapshot_of(self._desk, self._opened).data
            except ManyHeadsError:
                self._labelled = False  # the old one stays; the next answer tries again


def of_recording(recording: Recording, height: int) -> StudioWidget:
    """A widget of a recording. Its model is loaded only when the page requests roles or edits."""
    # The snapshot comes from a workspace without models: one of the same name would be loaded for its description.
    bare = StudioSession(Workspace())
    snapshot = snapshot_of(bare, open_recording(bare, recording))
    bare.close()
    desk = desk_with()
    return StudioWidget(desk, open_recording(desk, recording), snapshot.data, height)


def of_model(lm: LoadedModel, text: str | None, height: int) -> StudioWidget:
    """A widget of a text through a model, with the model's roles."""
    try:
        labels = label_page(lm)
    except TextError:  # the model cannot read the page that roles are measured on: the widget says so in their place
        labels = None
    desk = desk_with(lm, labels)
    opened = open_text(desk, lm, reading_of(lm).sentence if text is None else text)
    return StudioWidget(desk, opened, snapshot_of(desk, opened).data, height)
