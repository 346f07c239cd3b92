"""What a logger gets of a watched step: numbers, a histogram of all heads, and a picture of the grid of heads.

Loggers are recognised by what they can do, and none is imported: TensorBoard's `SummaryWriter` (and tensorboardX's) by
`add_scalar`; `wandb`, `trackio`, and the runs that their `init` returns, by `log`, `Histogram` and `Image`.
"""

# device: pictures are the host's

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, UInt8
from numpy import ndarray

from manyheads.errors import PlanError
from manyheads.watching.watched_step import WatchedStep

CELL = 16  # pixels of a head's square
RAMP = np.array([[68, 1, 84], [33, 145, 140], [253, 231, 37]], np.float64)  # low, middle, high: viridis' own
ABSENT = (128, 128, 128)  # of a head without a number, and where a layer has fewer heads than others


@runtime_checkable
class Writer(Protocol):
    """TensorBoard's `SummaryWriter`, as far as it is called here."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> None: ...
    def add_histogram(self, tag: str, values: ndarray, global_step: int, /) -> None: ...
    def add_image(self, tag: str, img_tensor: ndarray, global_step: int, /, *, dataformats: str) -> None: ...


@runtime_checkable
class Run(Protocol):
    """`wandb` or `trackio`, or a run of theirs, as far as it is called here."""

    @property
    def log(self) -> Callable[..., object]: ...


@runtime_checkable
class Media(Protocol):
    """The module of a `Run`: the classes of what is logged beside numbers."""

    @property
    def Histogram(self) -> Callable[..., object]: ...
    @property
    def Image(self) -> Callable[..., object]: ...


Logger = Writer | Run | ModuleType  # the module wandb or trackio has `log`, and what is no logger is refused


def check_logger(logger: object) -> None:
    """Errors: PlanError for what is not a logger that is known here."""
    if not isinstance(logger, Writer) and (not isinstance(logger, Run) or media_of(logger) is None):
        raise PlanError(
            f"logger={type(logger).__name__}: give TensorBoard's SummaryWriter, the module wandb or trackio, or what "
            f"its init() returned. Any other logger takes seen.latest(), a dict of names and numbers."
        )


def media_of(logger: Run | ModuleType) -> Media | None:
    """The module that a run, or the module itself, has its `Histogram` and `Image` from; None where there is none."""
    path = logger.__name__ if isinstance(logger, ModuleType) else type(logger).__module__
    module = sys.modules.get(path.partition(".")[0])
    return module if isinstance(module, Media) else None


def log_step(logger: Logger, step: int, numbers: Mapping[str, float]) -> None:
    """Hand a step's numbers to a logger."""
    if isinstance(logger, Writer):
        for name, value in numbers.items():
            logger.add_scalar(name, value, step)
    else:
        logger.log(dict(numbers), step=step)


def log_pictures(logger: Logger, watched: WatchedStep, step: int, counter: str = "") -> None:
    """Hand a histogram and a grid of each statistic to a logger, as `heads/NAME.histogram` and `heads/NAME.grid`.

    `counter`: the name under which a trainer's own logging counts steps, where W&B and trackio count calls.
    """
    logged: dict[str, object] = {}
    for index, name in enumerate(watched.names):
        column = watched.values[:, index]
        finite = column[np.isfinite(column)]
        if not len(finite):
            continue
        grid, histogram = f"heads/{name}.grid", f"heads/{name}.histogram"
        if isinstance(logger, Writer):
            logger.add_histogram(histogram, finite, step)
            logger.add_image(grid, grid_image(watched, name), step, dataformats="HWC")
        elif (media := media_of(logger)) is not None:
            caption = f"{name}, a row a layer: {finite.min():.3g} (dark) to {finite.max():.3g} (light)"
            logged[histogram] = media.Histogram(finite)
            logged[grid] = media.Image(grid_image(watched, name), caption=caption)
    if logged and isinstance(logger, Run):
        if counter:
            logger.log({**logged, counter: step})
        else:
            logger.log(logged, step=step)


def grid_image(watched: WatchedStep, name: str) -> UInt8[ndarray, "height width 3"]:
    """One statistic of all heads as squares of 16 pixels: a row a layer, the first on top, from dark (the least of this
    step) to light (the largest). Errors: StatisticError."""
    column = watched[name]
    columns = max(site.num_heads for site in watched.sites)
    cells: Float64[ndarray, "layer head"] = np.full((len(watched.sites), columns), np.nan)
    begin = 0
    for row, site in enumerate(watched.sites):
        cells[row, : site.num_heads] = column[begin : begin + site.num_heads]
        begin += site.num_heads
    finite = np.isfinite(cells)
    low, high = (float(end(cells[finite])) for end in (np.min, np.max)) if finite.any() else (0.0, 0.0)
    share = np.where(finite, (cells - low) / (high - low), 0.5) if high > low else np.full(cells.shape, 0.5)
    colours = np.stack([np.interp(share, (0, 0.5, 1), RAMP[:, channel]) for channel in range(3)], -1)
    colours[~finite] = ABSENT
    return colours.round().astype(np.uint8).repeat(CELL, 0).repeat(CELL, 1)
