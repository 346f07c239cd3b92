"""Where the positions of a picture or a sound lie: the grid of patches, and the frames of time.

A vision model reads a picture as patches, row by row, with a few tokens of its own before them (a class token,
registers); a speech model reads a sound as frames. `texts.tokens.Grid` and `Frames` say which pixels, or which moment,
a position is, so that a head can be drawn on the picture. Both are plain data, kept in a recording's provenance: a
recording that was saved and opened again still has them. How they are found, by measurement, is `inputs.media`.
"""

# pyright: reportUnknownArgumentType=false
# What a provenance holds is plain data.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from manyheads.errors import RecordingError, ShapeError
from manyheads.texts import Grid

__all__ = ["Frames", "frames_of", "grid_of"]


@runtime_checkable
class Described(Protocol):
    """What has a provenance: a recording."""

    @property
    def provenance(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Frames:
    """The frames of sounds: frame i begins at `i * seconds_per_frame` and hears `window_seconds` from there on.

    `sound_seconds` is how long each sound is. A model that pads every sound to one length (Whisper: 30 s) has frames
    after its end, and attends to them as to the others. A model may hear a little before a frame's beginning too.
    """

    count: int
    seconds_per_frame: float
    window_seconds: float
    sound_seconds: tuple[float, ...]

    def start(self, frame: int) -> float:
        """When a frame begins, in seconds. Errors: ShapeError."""
        if not 0 <= frame < self.count:
            raise ShapeError(f"{frame=} is not in this recording: it has {self.count} frames, counted from 0.")
        return frame * self.seconds_per_frame

    def at(self, seconds: float) -> int:
        """The frame that begins last before a moment. Errors: ShapeError."""
        frame = int(seconds / self.seconds_per_frame + 1e-6)  # so that start(i) is in frame i, in floats too
        if seconds < 0 or frame >= self.count:
            end = self.count * self.seconds_per_frame
            raise ShapeError(f"{seconds=} is not in this recording: its frames cover 0 to {end:.2f} s.")
        return frame

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each frame, the moment when it begins: "1.24s"."""
        return tuple(f"{frame * self.seconds_per_frame:.2f}s" for frame in range(self.count))


def grid_of(recording: Described) -> Grid:
    """The grid of a recording's pictures. Errors: RecordingError where it has none, with the reason."""
    about = _about(recording, "grid", "of patches")
    pairs = {name: tuple(about[name]) for name in ("picture", "patch", "stride", "prefix", "suffix")}
    return Grid(int(about["rows"]), int(about["columns"]), **pairs)


def frames_of(recording: Described) -> Frames:
    """The frames of a recording's sounds. Errors: RecordingError where it has none, with the reason."""
    about = _about(recording, "frames", "of time")
    lengths = tuple(float(seconds) for seconds in about["sound_seconds"])
    return Frames(int(about["count"]), float(about["seconds_per_frame"]), float(about["window_seconds"]), lengths)


def as_json(place: Grid | Frames | str) -> dict[str, Any]:
    """What the provenance keeps: the fields, or why there is nothing."""
    if isinstance(place, str):
        return {"none": place}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(place).items()}


def _about(recording: Described, subject: str, of: str) -> Mapping[str, Any]:
    about = recording.provenance.get(subject)
    if about is None:
        raise RecordingError(
            f"this recording has no {subject} {of}: record(lm, mh.Inputs(image=...)), or audio=..., makes them."
        )
    if "none" in about:
        raise RecordingError(f"this recording has no {subject} {of}: {about['none']}.")
    return about
