"""Where the positions of a picture or a sound lie: the grid of patches, and the frames of time.

A vision model reads a picture as patches, row by row, with a few tokens of its own before them (a class token,
registers); a speech model reads a sound as frames. `Grid` and `Frames` say which pixels, or which moment, a position
is, so that a head can be drawn on the picture. Both are plain data, kept in a recording's provenance: a recording that
was saved and opened again still has them. How they are found, by measurement, is `models.inputs.media`.

A vision-language model reads a picture among the tokens of a text. `ImageSpan` says which tokens those are and how they
lie in the picture; it is kept with the tokens (`Tokens.images`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from einops import rearrange
from torch import Tensor

from manyheads.errors import RecordingError, ShapeError

__all__ = ["Frames", "Grid", "ImageSpan", "frames_of", "grid_of"]


@dataclass(frozen=True)
class Grid:
    """The patches of a picture: `rows` x `columns` of them, after the tokens in `prefix` and before those in `suffix`.

    `picture` is the height and width of the picture as the model reads it (resized, cropped), in pixels; `patch` the
    height and width of a patch, `stride` how far neighbours lie apart: less than `patch` where they overlap.
    """

    rows: int
    columns: int
    picture: tuple[int, int]
    patch: tuple[int, int]
    stride: tuple[int, int]
    prefix: tuple[str, ...] = ()
    suffix: tuple[str, ...] = ()

    @property
    def num_patches(self) -> int:
        return self.rows * self.columns

    @property
    def num_positions(self) -> int:
        return len(self.prefix) + self.num_patches + len(self.suffix)

    @property
    def patches(self) -> slice:
        """The positions that are patches."""
        return slice(len(self.prefix), len(self.prefix) + self.num_patches)

    @property
    def others(self) -> dict[str, int]:
        """The positions that are none, by name."""
        behind = self.patches.stop
        names = [*enumerate(self.prefix), *enumerate(self.suffix, behind)]
        return {name: position for position, name in names}

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each position: "[CLS]", "reg1", "r0c3"."""
        patches = (f"r{row}c{column}" for row in range(self.rows) for column in range(self.columns))
        return (*self.prefix, *patches, *self.suffix)

    def position(self, row: int, column: int) -> int:
        """Where among a layer's positions the patch stands. Errors: ShapeError."""
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            raise ShapeError(
                f"there is no patch {row},{column}: the picture has {self.rows} rows and {self.columns} columns of "
                f"patches, both counted from 0."
            )
        return self.patches.start + row * self.columns + column

    def place(self, position: int) -> tuple[int, int] | None:
        """The row and column of a position; None for one that is no patch. Errors: ShapeError."""
        if not 0 <= position < self.num_positions:
            raise ShapeError(f"{position=} is not in this grid: it has {self.num_positions}, counted from 0.")
        inside = position - self.patches.start
        return divmod(inside, self.columns) if 0 <= inside < self.num_patches else None

    def pixels(self, row: int, column: int) -> tuple[slice, slice]:
        """The pixels that a patch covers, rows and columns of the picture as the model reads it. Errors: ShapeError."""
        self.position(row, column)
        top, left = row * self.stride[0], column * self.stride[1]
        return slice(top, top + self.patch[0]), slice(left, left + self.patch[1])

    def laid_out(self, values: Tensor) -> Tensor:
        """Values by position as values by place: `[..., positions]` to `[..., rows, columns]`. Errors: ShapeError."""
        if values.shape[-1] != self.num_positions:
            raise ShapeError(f"{tuple(values.shape)} does not end in the grid's {self.num_positions} positions.")
        return rearrange(values[..., self.patches], "... (r c) -> ... r c", r=self.rows)


@dataclass(frozen=True)
class ImageSpan:
    """A picture among a text's tokens: `rows` x `columns` of them, row by row, from position `begin` on.

    `size` is the height and width, in pixels, of the picture as the model reads it (resized, cropped). Rows and columns
    are those that the language model reads: where the model merges patches (Qwen: 2 x 2), the merged ones.
    """

    begin: int
    rows: int
    columns: int
    size: tuple[int, int]

    @property
    def span(self) -> slice:
        """The picture's positions in the text."""
        return slice(self.begin, self.begin + self.rows * self.columns)

    @property
    def grid(self) -> Grid:
        """Where each of these positions lies in the picture: `grid.laid_out(row[image.span])` is a row by place."""
        patch = (self.size[0] // self.rows, self.size[1] // self.columns)
        return Grid(self.rows, self.columns, self.size, patch, patch)


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


def grid_of(recording: Any) -> Grid:
    """The grid of a recording's pictures. Errors: RecordingError where it has none, with the reason."""
    about = _about(recording, "grid", "of patches")
    pairs = {name: tuple(about[name]) for name in ("picture", "patch", "stride", "prefix", "suffix")}
    return Grid(int(about["rows"]), int(about["columns"]), **pairs)


def frames_of(recording: Any) -> Frames:
    """The frames of a recording's sounds. Errors: RecordingError where it has none, with the reason."""
    about = _about(recording, "frames", "of time")
    lengths = tuple(float(seconds) for seconds in about["sound_seconds"])
    return Frames(int(about["count"]), float(about["seconds_per_frame"]), float(about["window_seconds"]), lengths)


def as_json(place: Grid | Frames | str) -> dict[str, Any]:
    """What the provenance keeps: the fields, or why there is nothing."""
    if isinstance(place, str):
        return {"none": place}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(place).items()}


def _about(recording: Any, subject: str, of: str) -> Mapping[str, Any]:
    about = recording.provenance.get(subject)
    if about is None:
        raise RecordingError(f"this recording has no {subject} {of}: record(lm, image=...) and audio=... make them.")
    if "none" in about:
        raise RecordingError(f"this recording has no {subject} {of}: {about['none']}.")
    return about
