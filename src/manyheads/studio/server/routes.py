"""The server's routes: each parses, calls one function, and answers. docs/decisions/005 lists them.

Nothing here computes: what takes long runs in threads, as a job where it may take over half a second. A tile whose
request is gone is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from manyheads import __version__
from manyheads.corpora import reading_of
from manyheads.studio.jobs import Say
from manyheads.studio.schema.base import MAX_STEPS, MAX_TEXT, AblationKind, How, Limits, Workspace
from manyheads.studio.schema.experiments import Experiment, ExperimentAsk, PruningAsk
from manyheads.studio.schema.jobs import Job, JobKind
from manyheads.studio.schema.lessons import CellAsk, CheckAsk, CheckResult, Lesson, LessonEntry
from manyheads.studio.schema.recordings import Atlas, HeadCard, RecordingAsk, RecordingInfo
from manyheads.studio.schema.sizes import SizeAsk, SizePreset, SizeReport
from manyheads.studio.session import Desk
from manyheads.studio.views import lessons as learning
from manyheads.studio.views import sizes
from manyheads.studio.views.atlas import atlas_of, card_of
from manyheads.studio.views.envelope import MEDIA_TYPE
from manyheads.studio.views.exports import TABLE_FORMATS, table_file, window_file
from manyheads.studio.views.maps import row_of, thumbnails_of
from manyheads.studio.views.tiles import Address

__all__ = ["add_routes"]


Ident = Annotated[str, Path(max_length=40, pattern=r"^[0-9a-f]+$")]
HeadPath = Annotated[str, Path(max_length=80)]
Slug = Annotated[str, Path(max_length=80, pattern=r"^[a-z0-9-]+$")]
Place = Annotated[int, Path(ge=0, lt=2**31)]
TextIndex = Annotated[int, Query(ge=0, lt=2**31)]
BYTES = {"schema": {"type": "string", "format": "binary"}}
BINARY: dict[int | str, dict[str, Any]] = {200: {"content": {MEDIA_TYPE: BYTES}}}
ROWS = {"schema": {"type": "array", "items": {"type": "object"}}}
TABLES: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: ROWS if "json" in kind else BYTES for kind in TABLE_FORMATS.values()}}
}
MAX_WAIT = 20.0
QUICK = 0.4  # seconds that a POST waits for its job: below it nobody needs to see progress


def add_routes(app: FastAPI, desk: Desk) -> None:
    """Everything under /api."""
    for add in (_recordings, _heads, _maps, _exports, _experiments, _sizes, _lessons, _jobs):
        add(app, desk)


def _recordings(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/workspace")
    def workspace() -> Workspace:
        """What is here to look at."""
        at = desk.workspace
        return Workspace(
            version=__version__,
            models=at.model_entries(),
            files=at.file_entries(),
            default_model=at.default_model,
            default_text=reading_of(at.default_model or "").sentence,
            opened=desk.first,
            folder=str(at.folder or ""),
            can_write=at.folder is not None,
            limits=Limits(max_text=MAX_TEXT, max_steps=MAX_STEPS, max_running=desk.jobs.max_running),
        )

    @app.post("/api/recordings", status_code=202)
    async def open_recording(ask: RecordingAsk) -> Job:
        """Read a text through a model, or open one of the workspace's files."""
        return await _job(desk, "recording", lambda say: desk.open(ask, say))

    @app.get("/api/recordings/{recording}")
    def recording_info(recording: Ident, text: TextIndex = 0) -> RecordingInfo:
        """A recording and one of its texts."""
        return desk.info(desk.recordings.get(recording), text)

    @app.get("/api/recordings/{recording}/atlas")
    def atlas(recording: Ident, text: TextIndex = 0) -> Atlas:
        """Every head's numbers on a text."""
        opened = desk.recordings.get(recording)
        return atlas_of(opened, text, desk.labels.of(opened))


def _heads(app: FastAPI, desk: Desk) -> None:
    @app.post("/api/recordings/{recording}/roles", status_code=202)
    async def find_roles(recording: Ident) -> Job:
        """What each head of a recording's model does, by the bundled page."""
        opened = desk.recordings.get(recording)
        return await _job(desk, "roles", lambda say: desk.labels.roles(opened, say))

    @app.post("/api/recordings/{recording}/importance", status_code=202)
    async def find_importance(recording: Ident, text: TextIndex = 0) -> Job:
        """What is lost on a text without each head, one by one: the atlas with that beside its statistics."""
        opened = desk.recordings.get(recording)
        return await _job(desk, "importance", lambda say: desk.importance(opened, text, say))

    @app.get("/api/recordings/{recording}/heads/{head}")
    def head_card(recording: Ident, head: HeadPath, text: TextIndex = 0) -> HeadCard:
        """All that is known of one head."""
        opened = desk.recordings.get(recording)
        return card_of(opened, head, text, desk.labels.of(opened))

    @app.post("/api/recordings/{recording}/heads/{head}/worth", status_code=202)
    async def head_worth(recording: Ident, head: HeadPath, kind: AblationKind = "mean", text: TextIndex = 0) -> Job:
        """What is lost on this text without one head."""
        opened = desk.recordings.get(recording)
        return await _job(desk, "worth", lambda say: desk.worth(opened, head, kind, text, say))


def _maps(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/recordings/{recording}/thumbnails", response_class=Response, responses=BINARY)
    def thumbnails(
        recording: Ident, size: Annotated[int, Query(ge=1, le=4096)] = 48, how: How = "mean", text: TextIndex = 0
    ) -> Response:
        """Every head's map, small."""
        return _binary(thumbnails_of(desk.recordings.get(recording), size, how, text))

    @app.get(
        "/api/recordings/{recording}/tiles/{head}/{level}/{column}/{row}", response_class=Response, responses=BINARY
    )
    async def tile(
        request: Request,
        recording: Ident,
        head: HeadPath,
        level: Annotated[int, Path(ge=0, le=40)],
        column: Place,
        row: Place,
        how: How = "mean",
        rows: Literal["auto", "all"] = "auto",
        text: TextIndex = 0,
    ) -> Response:
        """A tile of one head's map: exact cells at level 0, means or maxima of blocks above."""
        at = Address(recording, text, head, level, column, row, rows == "all")
        if (known := desk.tiles.known(at, how)) is not None:
            return _binary(known)
        opened = desk.recordings.get(recording)
        return _binary(await desk.queue.run(request, lambda stopped: desk.tiles.get(opened, at, how, stopped)))

    @app.get("/api/recordings/{recording}/rows/{head}/{row}", response_class=Response, responses=BINARY)
    def map_row(recording: Ident, head: HeadPath, row: Place, text: TextIndex = 0) -> Response:
        """One exact row of a head's map: where this word looks."""
        return _binary(row_of(desk.recordings.get(recording), head, row, text))


def _exports(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/recordings/{recording}/table", response_class=Response, responses=TABLES)
    def table(recording: Ident, format: Literal["csv", "parquet", "json"] = "csv", text: TextIndex = 0) -> Response:
        """Every head's numbers as a file."""
        return _file(*table_file(desk.recordings.get(recording), text, format))

    @app.get("/api/recordings/{recording}/window/{head}", response_class=Response, responses=TABLES)
    def window(
        recording: Ident,
        head: HeadPath,
        format: Literal["csv", "parquet"] = "csv",
        queries: Annotated[str, Query(pattern=r"^\d{0,9}:\d{0,9}$")] = ":",
        keys: Annotated[str, Query(pattern=r"^\d{0,9}:\d{0,9}$")] = ":",
        text: TextIndex = 0,
    ) -> Response:
        """A window of one head's exact map as a file."""
        return _file(*window_file(desk.recordings.get(recording), head, queries, keys, text, format))


def _experiments(app: FastAPI, desk: Desk) -> None:
    @app.post("/api/experiments", status_code=202)
    async def run_experiment(ask: ExperimentAsk) -> Job:
        """A plan carried out on a text, beside as many random heads."""
        desk.workspace.place_of(ask.model)
        return await _job(desk, "experiment", lambda say: desk.experiment(ask, say))

    @app.get("/api/experiments/{experiment}")
    def experiment(experiment: Ident) -> Experiment:
        """An experiment that was run."""
        return desk.experiment_of(experiment)

    @app.post("/api/prunings", status_code=202)
    async def prune(ask: PruningAsk) -> Job:
        """Remove heads for good, and write the smaller checkpoint into the workspace's folder."""
        desk.workspace.place_of(ask.model)
        return await _job(desk, "pruning", lambda say: desk.prune(ask, say))


def _sizes(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/presets")
    def presets() -> list[SizePreset]:
        """Architectures by name."""
        return sizes.presets()

    @app.post("/api/sizes")
    def size(ask: SizeAsk) -> SizeReport:
        """What an architecture costs."""
        return sizes.run(ask, desk.config_of)


def _lessons(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/lessons")
    def lessons() -> list[LessonEntry]:
        """Every lesson."""
        return learning.entries()

    @app.get("/api/lessons/{slug}")
    def lesson(slug: Slug, seed: Annotated[int | None, Query(ge=0, lt=learning.MAX_SEED)] = None) -> Lesson:
        """One lesson, its numbers computed. With a seed, the inputs of its checks are drawn."""
        return learning.lesson(slug, seed, load=desk.workspace.load)

    @app.post("/api/lessons/{slug}/cells/{cell}", status_code=202)
    async def run_cell(slug: Slug, cell: Slug, ask: CellAsk) -> Job:
        """Run a live cell with the reader's parameters."""
        load = desk.workspace.load
        return await _job(desk, "cell", lambda say: learning.run_cell(slug, cell, ask, progress=say, load=load))

    @app.post("/api/lessons/{slug}/checks/{check}")
    def check(slug: Slug, check: Slug, ask: CheckAsk) -> CheckResult:
        """Judge an answer; what is right is computed."""
        return learning.check(slug, check, ask, load=desk.workspace.load)


def _jobs(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/jobs/{job}")
    async def job(job: Ident, wait: Annotated[float, Query(ge=0, le=MAX_WAIT)] = 0.0) -> Job:
        """How a job is: at once, or as soon as it ends within `wait` seconds."""
        return await desk.jobs.wait(job, wait)

    @app.delete("/api/jobs/{job}")
    async def stop_job(job: Ident) -> Job:
        """Stop a job at its next step."""
        return await run_in_threadpool(desk.jobs.stop, job)


async def _job(desk: Desk, kind: JobKind, work: Callable[[Say], Any]) -> Job:
    """Begin a job, and give its state; its result, where that is a matter of moments."""
    return await desk.jobs.wait(desk.jobs.start(kind, work), QUICK)


def _binary(data: bytes) -> Response:
    return Response(data, media_type=MEDIA_TYPE, headers={"cache-control": "no-cache"})


def _file(name: str, kind: str, data: bytes) -> Response:
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})
