"""`show`: every head in a notebook, on the studio's page, alive while the kernel is and readable after.

A module of its own, for it has to work, and to say what is missing, where the extra "studio" is not installed.
"""

from __future__ import annotations

from importlib.util import find_spec

from manyheads.errors import ModelError, RecordingError, TextError
from manyheads.models import LoadedModel
from manyheads.recording import Recording
from manyheads.statistics import HeadTable

INSTALL = 'show() needs the studio: pip install "manyheads[studio]".'
HEIGHTS = (320, 4000)


def show(what: LoadedModel | Recording | HeadTable, text: str | None = None, height: int = 640) -> object:
    """Every head in a notebook: the atlas, any head's map, comparisons, experiments. Ends a cell: `mh.show(rec)`.

    `what` is a Recording, or a LoadedModel with a `text` (a sentence of ours by default), whose heads then have their
    roles: the first time for a model that takes seconds. A table has numbers but no maps, and is returned as it is: a
    notebook shows it as a table. `height` in pixels.

    While the kernel runs, the page requests everything from it. A snapshot is saved with the notebook: the atlas,
    cards, maps and strongest links, which show without a kernel, and say what they are. No network is used.
    Returns an anywidget.AnyWidget. Cost: reading every weight once (72 heads, 512 tokens: 1.5 s), about 2 MB in the
    notebook. Errors: ModelError without the extra "studio", RecordingError for anything else, TextError.
    """
    low, high = HEIGHTS
    if not isinstance(height, int) or not low <= height <= high:
        raise RecordingError(f"{height=}: give a height of {low} to {high} pixels.")
    if isinstance(what, HeadTable):
        return what
    if find_spec("anywidget") is None or find_spec("fastapi") is None:
        raise ModelError(INSTALL)
    # A notebook without the extra must get the message above: this module needs anywidget as it is loaded.
    from manyheads.studio.outside.notebook import of_model, of_recording

    if isinstance(what, Recording):
        if text is not None:
            raise TextError("a recording has its own text: show(rec) without text=, or show(lm, text).")
        return of_recording(what, height)
    if hasattr(what, "model") and hasattr(what, "tokenizer"):
        return of_model(what, text, height)
    raise RecordingError(
        f"show() was given {type(what).__name__}: give a recording, show(record(lm, text)), or a model, show(lm)."
    )
