"""A desk for what a caller has in hand, a model or a recording, instead of what a command line named."""

from __future__ import annotations

from typing import Any

from manyheads.errors import RecordingError, TextError
from manyheads.recording.recording import Recording
from manyheads.roles.labels import PageLabels
from manyheads.studio.desk import Desk
from manyheads.studio.recordings import TITLE, Opened
from manyheads.studio.schema.base import MAX_TEXT
from manyheads.studio.schema.recordings import RecordingAsk
from manyheads.studio.workspace import Workspace

__all__ = ["address_of", "desk_with", "open_recording", "open_text"]

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
    from manyheads.models.recorder import record

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
    """The fragment at which the page opens a text, as web/src/lib/view.svelte.ts reads it.

    A long text has none: no browser takes it, and the page then opens what the desk has first.
    """
    from urllib.parse import urlencode

    fragment = f"#/atlas?{urlencode({'model': model, 'text': text})}"
    return fragment if len(fragment) <= LONGEST_ADDRESS else ""
