"""Heads of a training on the disk: a row a head a watched step, in a folder that readers of Parquet read at any time.

`heads.parquet/` is a Parquet dataset, not one file: to a single Parquet file nothing can be added safely. Its columns
are `step`, `stack`, `layer`, `head` (the index in its layer), then a float64 column for each statistic, NaN where there
is none, and `loss`, the same in all rows of a step. `pandas.read_parquet("heads.parquet")` reads it while it grows.

Every step that is added writes the newest part again, with the steps that it had, beside its place, and moves it there
at once. A part that has `PART_ROWS` rows stays as it is, and the next one begins. So parts need no merging, no row is
ever in two of them, and whoever is killed loses the step being written and nothing else. Each part carries the facts of
the run (model, sites, what the statistics mean) as JSON in its schema, under the key "manyheads".

A training that goes on from a checkpoint repeats the steps after it. The first step that a new writer adds therefore
cuts away what an earlier one had written of that step and later ones: newest parts first, so that a kill in between
leaves a shorter history and not a torn one.
"""

# device: a history is the host's

from __future__ import annotations

import io
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64
from numpy import ndarray

from manyheads.base import (
    Json,
    PartsFolder,
    brief,
    few,
    first_line,
    no_access,
    plain,
    plural,
    read_bytes,
    replacing,
    synced,
)
from manyheads.errors import FileAccessError, HeadError, ManyHeadsError, RecordingError, ShapeError
from manyheads.heads import Head, HeadLike
from manyheads.recording import PerHeadResult
from manyheads.results import figure_of
from manyheads.spec import MOST, Site, counted_layers

if TYPE_CHECKING:  # pandas takes half a second to import: only who asks for a frame waits for it
    import pandas as pd
    from matplotlib.figure import Figure

FORMAT, VERSION = "manyheads head history", 1
KEYS = ("step", "stack", "layer", "head")  # the columns that say what a row is of; all others but LOSS are statistics
LOSS = "loss"  # of the step, the same in each of its rows; a column that older files lack
PART_ROWS = 1 << 15  # of a part: 30 ms to write anew; 32 steps of a model of 1,024 heads
SAME_RUN = ("run", "model", "kind", "sites")  # of the facts: in these a run that goes on agrees with what is there
METADATA = b"manyheads"
NAME = "part-{:06}.parquet"
FIRST_PART = NAME.format(0)
SPARSE, SPARSE_BYTES = 100, 1 << 26  # times as large in memory as what it is read from, and above these bytes: refused
READS = 5  # of a folder whose parts are being cut away, before it is called unreadable

log = logging.getLogger("manyheads")


# -------------------------------------------------------------------------------------------------------- what is read


@dataclass(frozen=True, eq=False)
class _Part:
    """One file of a history as it was at some moment: `stamp` changes when the file is replaced."""

    stamp: tuple[int, int, int]
    heads: tuple[Head, ...]
    statistics: tuple[str, ...]
    steps: Int64[ndarray, "step"]
    values: Float64[ndarray, "step head statistic"]
    loss: Float64[ndarray, "step"]
    facts: dict[str, Any]


@dataclass(frozen=True, eq=False)
class HeadCurves(PerHeadResult):
    """Every head's statistics over the watched steps of a training, as `open_history` read them.

    `steps` grow; `values` are NaN where a head has no such number, `loss` where none was seen. `facts` say what was
    watched: `run`, `model`, `kind`, `sites`, `statistics`, `meaning` (of each statistic, a sentence), `every` (steps
    between two watched ones) and `because` (lines); whatever the writer did not know is not in them. A head's layer is
    its site's (`manyheads.spec.Site`); `numbering` is a sentence where an earlier manyheads counted layers instead.
    """

    missing = "in this history: it holds {first} to {last}."

    path: Path
    heads: tuple[Head, ...]  # pyright: ignore[reportIncompatibleMethodOverride] a field where the base has a property
    statistics: tuple[str, ...]
    steps: Int64[ndarray, "step"]
    values: Float64[ndarray, "step head statistic"]
    loss: Float64[ndarray, "step"]
    facts: dict[str, Any]
    _parts: dict[str, _Part] = field(default_factory=dict, repr=False)

    def of(self, head: HeadLike) -> Float64[ndarray, "step statistic"]:
        """One head's curves, given as a `Head` or by its name ("L3H5"). Errors: HeadError."""
        return self.values[:, self.head_place(head)]

    @property
    def numbering(self) -> str:
        """A sentence where layers are counted by their first calls, as an earlier manyheads did; else ""."""
        try:
            return counted_layers([Site.from_dict(site) for site in self.facts.get("sites", ())])
        except (ManyHeadsError, TypeError):  # a table of somebody else's: it says nothing of sites
            return ""

    def refresh(self) -> HeadCurves:
        """The history as it is now: these curves where nothing changed. Only parts that changed are read.

        Errors: as `open_history`.
        """
        return _read(self.path, self)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each watched step and head: columns step, head, stack, layer, index, then the statistics."""
        import pandas as pd  # half a second: not for who never asks for a frame

        count = len(self.steps)
        columns = {name: [*column] * count for name, column in self.head_columns().items()}
        frame = pd.DataFrame({"step": self.steps.repeat(len(self.heads)), **columns})
        values = self.values.reshape(len(frame), len(self.statistics))
        return pd.concat([frame, pd.DataFrame(values, columns=list(self.statistics))], axis=1)

    def plot(self, column: str | None = None, heads: Sequence[HeadLike] | None = None) -> Figure:
        """A statistic of every head over the steps as a matplotlib figure, in grey; `heads` in ink, with their names.

        `column`: the statistic; None: the first. Errors: StatisticError, HeadError.
        """
        return figure_of(self, column=column, heads=heads)

    def to_dict(self) -> Json:
        """Plain data for JSON: facts, steps, loss, every head's curves by statistic; None where there is no number."""
        return {
            "file": str(self.path),
            "facts": self.facts,
            "steps": self.steps.tolist(),
            "loss": plain(self.loss),
            "heads": {
                str(head): {name: plain(self.values[:, place, index]) for index, name in enumerate(self.statistics)}
                for place, head in enumerate(self.heads)
            },
        }

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        sizes = f"{plural(len(self.steps), 'step')}, {plural(len(self.heads), 'head')}"
        return f"HeadCurves({str(self.path)!r}: {sizes}; {', '.join(self.statistics)})"


def open_history(path: str | os.PathLike[str]) -> HeadCurves:
    """Read what a training wrote of its heads: a folder as `HeadHistory` writes it, or one .parquet file like it.

    The folder may grow meanwhile: what was written whole is read, and `refresh()` reads what came later.
    Errors: FileAccessError where it cannot be read; RecordingError for what is not a history, or a damaged one.
    """
    return _read(Path(path), None)


def _read(path: Path, earlier: HeadCurves | None) -> HeadCurves:
    known = {} if earlier is None else earlier._parts
    for attempt in range(READS):
        parts: dict[str, _Part] = {}
        try:
            for file in _files(path):
                status = file.stat()
                stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
                unchanged = known.get(file.name)
                parts[file.name] = (
                    unchanged if unchanged is not None and unchanged.stamp == stamp else _read_part(file, stamp)
                )
            break
        except FileNotFoundError as error:  # a run that goes on cuts parts away: they are listed anew
            if attempt == READS - 1 or not path.exists():
                raise no_access("read", path, error) from error
        except OSError as error:
            if isinstance(error, FileAccessError):
                raise
            raise no_access("read", path, error) from error
    if earlier is not None and parts == known:  # the same objects: nothing was read
        return earlier
    newest = list(parts.values())[-1]
    heads = tuple(dict.fromkeys(head for part in parts.values() for head in part.heads))
    for name, part in parts.items():
        if part.statistics != newest.statistics:
            raise RecordingError(
                f"{path} is not a history of one run: {name} holds {', '.join(part.statistics)}, and its newest part "
                f"{', '.join(newest.statistics)}."
            )
    columns = {head: column for column, head in enumerate(heads)}
    steps = np.concatenate([part.steps for part in parts.values()])
    num_bytes = sum(part.values.nbytes for part in parts.values())
    _require_dense(8 * len(steps) * len(heads) * len(newest.statistics), num_bytes, path)
    values = np.full((len(steps), len(heads), len(newest.statistics)), np.nan)
    row = 0
    for name, part in parts.items():
        rows = slice(row, row + len(part.steps))
        values[rows, [columns[head] for head in part.heads]] = part.values
        parts[name] = replace(part, heads=heads, values=values[rows])  # a view: nothing is in memory twice
        row += len(part.steps)
    if (np.diff(steps) <= 0).any():
        # Parts of a folder follow each other; one file may have been sorted by its owner, which `_read_part` undoes.
        raise RecordingError(f"{path} is not a history of one run: steps of one part are also in another part.")
    loss = np.concatenate([part.loss for part in parts.values()])
    return HeadCurves(path, heads, newest.statistics, steps, values, loss, newest.facts, parts)


def _files(path: Path) -> list[Path]:
    """The files that a history consists of, in the order of their steps. Errors: OSError, RecordingError."""
    if not path.is_dir():
        return [path]
    names = sorted(name for name in os.listdir(path) if not name.startswith((".", "_")))
    if foreign := [name for name in names if not name.endswith(".parquet")]:
        raise RecordingError(
            f"{path} is not a history of heads: it holds {few(foreign, 3)}. Give the folder that a watched training "
            f"wrote, such as heads.parquet."
        )
    if not names:
        raise RecordingError(f"{path} is an empty folder, no history of heads.")
    return [path / name for name in names]


def _read_part(file: Path, stamp: tuple[int, int, int]) -> _Part:
    """Errors: OSError; RecordingError for what is not a history."""
    data = read_bytes(file)  # at once: the name may belong to a newer file in a moment
    try:
        parquet = pq.ParquetFile(io.BytesIO(data))
        columns = {field.name: field.type for field in parquet.schema_arrow}
        facts = json.loads((parquet.schema_arrow.metadata or {}).get(METADATA, b"{}"))
        newer = facts.get("format_version", VERSION) > VERSION
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        cause = "it is empty" if not data else first_line(error).rstrip(".")
        if data and not data.startswith(b"PAR1"):  # with which every Parquet file begins
            cause = "it is another kind of file"
        raise RecordingError(
            f"{file} cannot be read as Parquet: {cause}. Name what a watched training wrote, as mh.watch(model, "
            f"out='heads.parquet') does; if this is it, the file is damaged."
        ) from error
    if newer:
        raise RecordingError(f"{file} was written by a newer manyheads: update this one to read it.")
    lacking = [name for name in KEYS if name not in columns]
    if lacking:
        raise RecordingError(
            f"{file} is not a history of heads: it has no column {lacking[0]!r} "
            f"(its columns: {few(columns, 3)}). Such a history has step, stack, layer, head and a column for each "
            "statistic."
        )
    statistics = tuple(
        name
        for name, kind in columns.items()
        if name not in (*KEYS, LOSS)
        and not name.startswith("__")
        and (pa.types.is_floating(kind) or pa.types.is_integer(kind))
    )
    if not statistics:
        raise RecordingError(f"{file} holds no statistic: a history of heads has a column of numbers for each.")
    claimed = 8 * parquet.metadata.num_rows * (len(KEYS) + len(statistics))
    _require_dense(claimed, len(data), file)
    try:
        # As a dictionary: a long name of a stack, written once, would stand in memory once a row. Not by `read_table`:
        # its threads abort the process as it ends (5 of 150, pyarrow 26.0.1).
        table = pq.ParquetFile(io.BytesIO(data), read_dictionary=["stack"]).read(
            [*KEYS, *statistics, *([LOSS] if LOSS in columns else [])]
        )
        if absent := [name for name in KEYS if table[name].null_count]:
            raise ValueError(f"a row has no {absent[0]}")
        step, layer, index = (table[name].cast(pa.int64()).to_numpy() for name in ("step", "layer", "head"))
        stacks = table["stack"].combine_chunks().dictionary_encode()
        if len(table) and max(layer.max(), index.max()) > MOST:
            raise ValueError(f"it has a layer or head past {MOST:,}")
        # Heads by the order in which they first appear, which is the model's.
        keys = (stacks.indices.to_numpy().astype(np.int64) * (MOST + 1) + layer) * (MOST + 1) + index
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first)
        heads = tuple(Head(stacks[row].as_py(), int(layer[row]), int(index[row])) for row in first[order].tolist())
        column = np.argsort(order)[place]
        steps, row = np.unique(step, return_inverse=True)
        rows = np.stack([table[name].cast(pa.float64()).to_numpy() for name in statistics], -1)
        losses = table[LOSS].cast(pa.float64()).to_numpy() if LOSS in columns else np.full(len(rows), np.nan)
    except (pa.ArrowException, OSError, ValueError, TypeError, HeadError) as error:
        raise RecordingError(f"{file} is not a history of heads: {first_line(error).rstrip('.')}.") from error
    if len(rows) > len(np.unique(row * len(heads) + column)):
        raise RecordingError(f"{file} is not a history of heads: it has two rows for the same head and step.")
    _require_dense(8 * len(steps) * len(heads) * len(statistics), claimed, file)
    values = np.full((len(steps), len(heads), len(statistics)), np.nan)
    values[row, column] = rows
    loss = np.full(len(steps), np.nan)
    loss[row] = losses
    return _Part(stamp, heads, statistics, steps.astype(np.int64), values, loss, facts)


def _require_dense(size: int, stored: int, file: Path) -> None:
    """Errors: RecordingError where `stored` bytes would become `size` in memory, and are nearly all repeats or gaps."""
    if size > max(SPARSE_BYTES, SPARSE * stored):
        raise RecordingError(
            f"{file} is not a history of heads: it would take {size / 1e9:.1f} GB in memory, of which nearly all is "
            f"repeats or gaps. A history has a row for each head at each watched step."
        )


# ------------------------------------------------------------------------------------------------------ what is written


class HeadHistory:
    """Writes the heads of a training, step by step, into a folder that is readable at any time.

    `heads` and `statistics` name the rows and columns of what `append` takes. `facts` are kept with it, as JSON
    (`HeadCurves.facts` lists them). A folder of the same run is continued: `last_step` is the last one in it. Two
    writings belong to the same run where `heads`, `statistics` and the facts "run", "model", "kind" and "sites" are
    equal. Only a run that has a name ("run" is not None) may start again in its own folder.

    Whoever is killed at any moment loses the step being written; so does a power cut, which may cost the newest part.
    Cost: some 2 ms for 1,000 rows, up to 30 ms. Errors: FileAccessError where the folder cannot be written, is being
    written already, or belongs to another run or to something else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        heads: Sequence[Head],
        statistics: Sequence[str],
        facts: Mapping[str, Any],
    ) -> None:
        self.path, self.heads, self.statistics = Path(path), tuple(heads), tuple(statistics)
        if not self.heads or not self.statistics:
            raise ShapeError("a history needs at least one head and one statistic: give both.")
        if taken := [name for name in self.statistics if name in (*KEYS, LOSS)]:
            raise ShapeError(f"a statistic cannot be called {taken[0]!r}: that column says what a row is of.")
        self.facts = {"format": FORMAT, "format_version": VERSION, **facts, "statistics": list(self.statistics)}
        self._schema = pa.schema(
            [("step", pa.int64()), ("stack", pa.string()), ("layer", pa.int64()), ("head", pa.int64())]
            + [(name, pa.float64()) for name in (*self.statistics, LOSS)],
            {METADATA: json.dumps(self.facts).encode()},
        )
        # The steps of the newest part, with their values and their loss.
        self._tail: list[tuple[int, Float64[ndarray, "head statistic"], float]] = []
        self._number = 0  # of the newest part
        self._first_step: int | None = None  # of all parts
        self._has_added = False
        self._held = ExitStack()
        try:
            self._open()
        except BaseException as error:
            self._held.close()
            if isinstance(error, OSError) and not isinstance(error, FileAccessError):
                raise no_access("write", self.path, error) from error
            raise

    @property
    def last_step(self) -> int | None:
        """The last step that the folder holds; None where it holds none."""
        return self._tail[-1][0] if self._tail else None

    def append(self, step: int, values: Float64[ndarray, "head statistic"], loss: float = math.nan) -> None:
        """Add one step, and its loss where it is known; it is in the folder when this returns. Steps grow.

        The first call may name a step that an earlier writer had reached: that step and later ones are cut away.
        Errors: ShapeError for steps or sizes that do not fit; FileAccessError, after which the folder is as it was.
        """
        if self._held is _CLOSED:
            raise FileAccessError(f"{self.path} is closed: open it again to add step {step}.")
        if values.shape != (len(self.heads), len(self.statistics)):
            raise ShapeError(
                f"{values.shape=} at step {step}, but {self.path} takes ({len(self.heads)} heads, "
                f"{plural(len(self.statistics), 'statistic')})."
            )
        if step < 0:
            raise ShapeError(f"{step=}: steps count from 0.")
        if not self._has_added:
            self._cut(step)
        elif self.last_step is not None and step <= self.last_step:
            raise ShapeError(f"step {step:,} after step {self.last_step:,}: the steps of a history grow.")
        before = self._number, list(self._tail)
        if len(self._tail) * len(self.heads) >= PART_ROWS:
            self._number, self._tail = self._number + 1, []
        self._tail.append((step, np.array(values, np.float64), loss))
        try:
            self._write(flushed=len(self._tail) * len(self.heads) >= PART_ROWS)
        except BaseException:
            self._number, self._tail = before
            raise
        self._has_added = True
        if self._first_step is None:
            self._first_step = step

    def close(self) -> None:
        """See that all of it is on the disk, and let others write it. Closing twice does nothing."""
        if self._held is _CLOSED:
            return
        with suppress(OSError):
            synced(self._part)
        self._held.close()
        self._held = _CLOSED

    def __enter__(self) -> HeadHistory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _part(self) -> Path:
        """The newest part."""
        return self.path / NAME.format(self._number)

    def _open(self) -> None:
        """Begin a folder, or read where an earlier writer stopped. Errors: OSError, FileAccessError, RecordingError."""
        if self.path.exists() and not self.path.is_dir():
            raise FileAccessError(
                f"cannot write {self.path}: it is a file, and a history that grows is a folder. Give another path, or "
                f"delete it."
            )
        self.path.mkdir(exist_ok=True)  # not its parents, as for other files that are written
        busy = FileAccessError(
            f"{self.path} is being written already, by this process or another: end that, or give another path."
        )
        names = self._held.enter_context(PartsFolder.opened(self.path, busy)).names()
        expected = [NAME.format(number) for number in range(len(names))]
        if names != expected:
            foreign = [name for name in names if name not in expected]
            raise FileAccessError(
                f"the folder {self.path} holds {few(foreign, 3)}, which no history of heads holds: give another path."
            )
        if not names:
            self._write(flushed=False)  # no rows yet: whoever looks sees the run's facts, and what is wrong shows now
            return
        first, last = (_read_part(self.path / name, (0, 0, 0)) for name in (names[0], names[-1]))
        self._require_same_run(last)
        self._number = len(names) - 1
        self._tail = list(zip(last.steps.tolist(), last.values, last.loss.tolist(), strict=True))
        self._first_step = int(first.steps[0]) if len(first.steps) else None

    def _require_same_run(self, part: _Part) -> None:
        """Errors: FileAccessError where a folder is another run's."""
        # As JSON has them: a tuple is a list there.
        facts = json.loads(json.dumps(self.facts))
        unlike = [
            f"its {name} is {part.facts.get(name)!r}, not {facts.get(name)!r}"
            for name in SAME_RUN
            if part.facts.get(name) != facts.get(name) and name != "sites"
        ]
        if part.heads and part.heads != self.heads:
            unlike.append(f"its heads are {few(part.heads, 3)}, not {few(self.heads, 3)}")
        if not unlike and part.facts.get("sites") != facts.get("sites"):
            unlike.append("its heads are those of other modules, or of other sizes")
        if part.statistics != self.statistics:
            unlike.append(f"its statistics are {', '.join(part.statistics)}, not {', '.join(self.statistics)}")
        if unlike:
            reason = unlike[0] if len(unlike[0]) <= 120 else f"{unlike[0][:119]}…"
            raise FileAccessError(f"{self.path} belongs to another run ({reason}): give another path, or delete it.")

    def _cut(self, step: int) -> None:
        """Take away what earlier writers wrote of `step` and later. Errors: FileAccessError."""
        last = self.last_step
        if last is None or step > last:
            return
        assert self._first_step is not None
        if step <= self._first_step and self.facts.get("run") is None:
            raise FileAccessError(
                f"{self.path} holds steps {self._first_step:,} to {last:,} of an earlier run, and this one begins "
                f"again at step {step:,}: give another path, or delete it."
            )
        log.warning(
            "%s held steps up to %s: those from step %s on are cut away, since this run begins there.",
            self.path, f"{last:,}", f"{step:,}",
        )  # fmt: skip
        try:
            # From the newest part back: what is left is always the beginning of the history.
            while self._number and self._tail[0][0] >= step:
                self._part.unlink()
                self._number -= 1
                part = _read_part(self._part, (0, 0, 0))
                self._tail = list(zip(part.steps.tolist(), part.values, part.loss.tolist(), strict=True))
        except OSError as error:
            raise no_access("write", self.path, error) from error
        self._tail = [row for row in self._tail if row[0] < step]
        self._write(flushed=False)
        if step <= self._first_step:
            self._first_step = None

    def _write(self, flushed: bool) -> None:
        """Put the newest part in its place. Errors: FileAccessError."""
        num_steps, num_heads = len(self._tail), len(self.heads)
        rows = np.concatenate([np.empty((0, len(self.statistics))), *(values for _, values, _ in self._tail)])
        columns = [
            pa.array(np.repeat(np.array([step for step, _, _ in self._tail], np.int64), num_heads)),
            pa.array([head.stack for head in self.heads] * num_steps, pa.string()),
            pa.array(np.tile(np.array([head.layer for head in self.heads], np.int64), num_steps)),
            pa.array(np.tile(np.array([head.index for head in self.heads], np.int64), num_steps)),
            *(pa.array(np.ascontiguousarray(rows[:, column])) for column in range(len(self.statistics))),
            pa.array(np.repeat(np.array([loss for _, _, loss in self._tail], np.float64), num_heads)),
        ]
        dictionaries: Any = [*KEYS, LOSS]  # columns that repeat themselves; its type knows only True and False
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns, schema=self._schema), sink, compression="zstd", use_dictionary=dictionaries)
        with replacing(self._part, flushed=flushed) as temporary, open(temporary, "wb") as file:
            file.write(sink.getvalue())


_CLOSED = ExitStack()  # what a closed history holds
