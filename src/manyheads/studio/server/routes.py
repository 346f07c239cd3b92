"""The server's routes: each parses a request, calls one function, and answers. docs/decisions/005 lists them.

Nothing is computed on the event loop: work runs in threads, as a job where it may take over half a second, and a tile
is given up when its request is closed. Docstrings of routes are part of the server's description.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from manyheads import __version__
from manyheads.corpora import reading_of
from manyheads.models import LoadedModel
from manyheads.studio.jobs import Job, JobKind, ReportProgress
from manyheads.studio.schema.base import (
    MAX_NAME,
    MAX_STEPS,
    MAX_TEXT,
    AblationKind,
    AnswerBody,
    FileEntry,
    How,
    Limits,
    Workspace,
)
from manyheads.studio.schema.circuits import AloneAsk, OneHeadAsk, PairAsk, PatchAsk, SmallestAsk
from manyheads.studio.schema.experiments import BlendAsk, Experiment, ExperimentAsk, PruningAsk
from manyheads.studio.schema.explained import WhyAnswer
from manyheads.studio.schema.recordings import Atlas, HeadCard, Pair, RecordingAsk, RecordingInfo, SwapAsk
from manyheads.studio.schema.sizes import SizeAsk, SizePreset, SizeReport
from manyheads.studio.schema.training import History, HistoryEntry
from manyheads.studio.session import StudioSession
from manyheads.studio.views import circuits, sizes
from manyheads.studio.views.atlas import atlas_of, card_of, table_file
from manyheads.studio.views.maps import (
    FILE_TYPES,
    MEDIA_TYPE,
    pair_of,
    row_of,
    thumbnails_of,
    window_file,
    word_row_of,
)
from manyheads.studio.views.outputs import output_of, pass_of
from manyheads.studio.views.tiles import Address
from manyheads.studio.views.why import why_of

Ident = Annotated[str, Path(max_length=40, pattern=r"^[0-9a-f]+$")]
HeadPath = Annotated[str, Path(max_length=80)]
Place = Annotated[int, Path(ge=0, lt=2**31)]
TextIndex = Annotated[int, Query(ge=0, lt=2**31)]
RANGE = r"^\d{0,9}:\d{0,9}$"  # "3:10", ":"
FileName = Annotated[str, Query(max_length=200, pattern=r"^[^/\\\x00-\x1f\x7f]+\.heads$")]
OCTETS = "application/octet-stream"
BYTES = {"schema": {"type": "string", "format": "binary"}}
BINARY: dict[int | str, dict[str, Any]] = {200: {"content": {MEDIA_TYPE: BYTES}}}
ROWS = {"schema": {"type": "array", "items": {"type": "object"}}}
TABLES: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: ROWS if "json" in kind else BYTES for kind in FILE_TYPES.values()}}
}
MAX_WAIT = 20.0
LOOK_SECONDS = 0.4  # between two looks at a file that grows
QUICK = 0.4  # seconds that a POST waits for its job: below it nobody needs to see progress


async def tile_address(
    recording: Ident,
    head: HeadPath,
    level: Annotated[int, Path(ge=0, le=40)],
    column: Place,
    row: Place,
    rows: Literal["auto", "all"] = "auto",
    text: TextIndex = 0,
) -> Address:
    """The tile that a request names."""
    return Address(recording, text, head, level, column, row, rows == "all")


def add_routes(app: FastAPI, desk: StudioSession) -> None:
    """Everything under /api: recordings, heads, maps, files, experiments, sizes, jobs."""

    # FastAPI runs a `def` in a thread of its own, so what computes is one; what is `async` only starts or waits.
    async def start(kind: JobKind, work: Callable[[ReportProgress], Any]) -> Job:
        """Start a job and return its state, with its result where that takes only moments."""
        return await desk.jobs.wait(desk.jobs.start(kind, work), QUICK)

    @app.get("/api/workspace")
    def workspace() -> Workspace:
        """The models and recordings that can be opened, and the server's limits."""
        listed = desk.workspace
        return Workspace(
            version=__version__,
            models=listed.model_entries(),
            files=listed.file_entries(),
            default_model=listed.default_model,
            default_text=reading_of(listed.default_model or "").sentence,
            opened=desk.first,
            folder=str(listed.folder or ""),
            can_write=listed.folder is not None,
            num_histories=len(listed.histories),
            limits=Limits(max_text=MAX_TEXT, max_steps=MAX_STEPS, max_running=desk.jobs.max_running),
        )

    @app.post("/api/recordings", status_code=202)
    async def open_recording(ask: RecordingAsk) -> Job:
        """Record a text through a model, or open a file of the workspace."""
        return await start("recording", lambda report: desk.open(ask, report))

    @app.post("/api/uploads", openapi_extra={"requestBody": {"required": True, "content": {OCTETS: BYTES}}})
    async def take_in(request: Request, file_name: FileName) -> FileEntry:
        """Add a recording whose file is the body of the request: it is checked as every file that is opened."""
        place = await run_in_threadpool(desk.place_for_upload)
        try:
            with open(place, "wb") as out:
                async for chunk in request.stream():
                    await run_in_threadpool(out.write, chunk)
        except BaseException:  # a page that is closed meanwhile, a full disk
            place.unlink(missing_ok=True)
            raise
        return await run_in_threadpool(desk.take_in, file_name, place)

    @app.get("/api/recordings/{recording}")
    def recording_info(recording: Ident, text: TextIndex = 0) -> RecordingInfo:
        """A recording and one of its texts."""
        return desk.info(desk.recordings.get(recording), text)

    @app.get("/api/recordings/{recording}/atlas")
    def atlas(recording: Ident, text: TextIndex = 0) -> Atlas:
        """Every head's numbers on a text."""
        opened = desk.recordings.get(recording)
        return atlas_of(opened, text, desk.labels.of(opened))

    @app.post("/api/recordings/{recording}/roles", status_code=202)
    async def find_roles(recording: Ident) -> Job:
        """Measure the role of each head of a recording's model on the bundled texts."""
        opened = desk.recordings.get(recording)
        return await start("roles", lambda report: desk.labels.roles(opened, report))

    @app.post("/api/recordings/{recording}/importance", status_code=202)
    async def find_importance(recording: Ident, text: TextIndex = 0) -> Job:
        """Measure the loss on a text without each head, one by one; the result is the atlas with it as a statistic."""
        opened = desk.recordings.get(recording)
        return await start("importance", lambda report: desk.importance(opened, text, report))

    @app.get("/api/recordings/{recording}/heads/{head}")
    def head_card(recording: Ident, head: HeadPath, text: TextIndex = 0) -> HeadCard:
        """Everything known about one head on a text."""
        opened = desk.recordings.get(recording)
        return card_of(opened, head, text, desk.labels.of(opened))

    @app.post("/api/recordings/{recording}/heads/{head}/worth", status_code=202)
    async def head_worth(recording: Ident, head: HeadPath, kind: AblationKind = "mean", text: TextIndex = 0) -> Job:
        """Measure the effect of ablating one head on a text."""
        opened = desk.recordings.get(recording)
        return await start("worth", lambda report: desk.worth(opened, head, kind, text, report))

    @app.post("/api/recordings/{recording}/heads/{head}/card", status_code=202)
    async def full_card(recording: Ident, head: HeadPath) -> Job:
        """The card of one head: what it is in a sentence, with the evidence, measured unless it is remembered."""
        opened = desk.recordings.get(recording)
        return await start("card", lambda report: desk.cards.of(opened, head, report))

    @app.post("/api/recordings/{recording}/swap", status_code=202)
    async def swap_word(recording: Ident, ask: SwapAsk) -> Job:
        """Read a text with one word changed: what another word's looks become."""
        opened = desk.recordings.get(recording)
        return await start("swap", lambda report: desk.swap(opened, ask, report))

    @app.get("/api/recordings/{recording}/thumbnails", response_class=Response, responses=BINARY)
    def thumbnails(
        recording: Ident, size: Annotated[int, Query(ge=1, le=4096)] = 48, how: How = "mean", text: TextIndex = 0
    ) -> Response:
        """Every head's map, small."""
        return _binary(thumbnails_of(desk.recordings.get(recording), size, how, text))

    @app.get(
        "/api/recordings/{recording}/tiles/{head}/{level}/{column}/{row}", response_class=Response, responses=BINARY
    )
    async def tile(request: Request, address: Annotated[Address, Depends(tile_address)], how: How = "mean") -> Response:
        """A tile of one head's map: exact cells at level 0, means or maxima of blocks above."""
        # Answered without a thread: most requests of a page that zooms are for tiles that are in the cache.
        if (known := desk.tiles.known(address, how)) is not None:
            return _binary(known)
        opened = desk.recordings.get(address.recording)
        return _binary(await desk.queue.run(request, lambda stopped: desk.tiles.get(opened, address, how, stopped)))

    @app.get("/api/recordings/{recording}/rows/{head}/{row}", response_class=Response, responses=BINARY)
    def map_row(recording: Ident, head: HeadPath, row: Place, text: TextIndex = 0) -> Response:
        """One exact row of a head's map: which tokens one token reads."""
        return _binary(row_of(desk.recordings.get(recording), head, row, text))

    @app.get("/api/recordings/{recording}/pairs/{head}/{query}/{key}")
    def pair(recording: Ident, head: HeadPath, query: Place, key: Place, text: TextIndex = 0) -> Pair:
        """How one weight comes about: q, k, and every number between them and the weight."""
        opened = desk.recordings.get(recording)
        return pair_of(opened, head, query, key, text, desk.workspace.loaded.get(opened.model))

    @app.get("/api/recordings/{recording}/said/{head}/{query}", response_class=Response, responses=BINARY)
    def head_output(
        recording: Ident,
        head: HeadPath,
        query: Place,
        keys: Annotated[int, Query(ge=3, le=4096)] = 24,
        text: TextIndex = 0,
    ) -> Response:
        """What a head (L3H1) or a whole layer (L3) says at one token, and what that adds to the residual stream."""
        return _binary(output_of(desk.workspace, desk.recordings.get(recording), head, query, keys, text))

    @app.get("/api/recordings/{recording}/pass/{token}", response_class=Response, responses=BINARY)
    def forward_pass(recording: Ident, token: Place, text: TextIndex = 0) -> Response:
        """One token's way through the layers: each head's and feed-forward's share of what the token became."""
        return _binary(pass_of(desk.workspace, desk.recordings.get(recording), token, text))

    @app.get("/api/recordings/{recording}/why/{head}/{query}/{key}")
    def why_there(
        recording: Ident,
        head: HeadPath,
        query: Place,
        key: Place,
        against: Literal["rest"] | Place = "rest",
        text: TextIndex = 0,
    ) -> WhyAnswer:
        """Why a head looks from one token to another: what wrote the query, and what wrote the keys.

        `against`: "rest", or the position of one other key.
        """
        return why_of(desk.workspace, desk.recordings.get(recording), head, query, key, against, text)

    @app.get("/api/recordings/{recording}/words/{query}", response_class=Response, responses=BINARY)
    def word_row(
        recording: Ident, query: Place, keys: Annotated[str, Query(pattern=RANGE)] = ":", text: TextIndex = 0
    ) -> Response:
        """One word's exact row in every head: how much of it goes to each word of the text."""
        return _binary(word_row_of(desk.recordings.get(recording), query, keys, text))

    @app.get("/api/recordings/{recording}/table", response_class=Response, responses=TABLES)
    def table(recording: Ident, format: Literal["csv", "parquet", "json"] = "csv", text: TextIndex = 0) -> Response:
        """Every head's statistics as a file."""
        return _file(*table_file(desk.recordings.get(recording), text, format))

    @app.get("/api/recordings/{recording}/window/{head}", response_class=Response, responses=TABLES)
    def window(
        recording: Ident,
        head: HeadPath,
        format: Literal["csv", "parquet"] = "csv",
        queries: Annotated[str, Query(pattern=RANGE)] = ":",
        keys: Annotated[str, Query(pattern=RANGE)] = ":",
        text: TextIndex = 0,
    ) -> Response:
        """A window of one head's exact map as a file."""
        return _file(*window_file(desk.recordings.get(recording), head, queries, keys, text, format))

    @app.post("/api/experiments", status_code=202)
    async def run_experiment(ask: ExperimentAsk) -> Job:
        """Carry out a plan on a text, beside random sets of the same number of heads."""
        desk.workspace.place_of(ask.model)
        return await start("experiment", lambda report: desk.experiment(ask, report))

    # A route of its own: a plan and its controls are another question, and have another answer.
    @app.post("/api/experiments/blend", status_code=202)
    async def blend_heads(ask: BlendAsk) -> Job:
        """Let all heads of each layer use more and more of one head's map, in two to eleven steps."""
        desk.workspace.place_of(ask.model)
        return await start("blend", lambda report: desk.blend(ask, report))

    @app.get("/api/experiments/{experiment}")
    def experiment(experiment: Ident) -> Experiment:
        """The result of an experiment that was run."""
        return desk.experiment_of(experiment)

    @app.post("/api/prunings", status_code=202)
    async def prune(ask: PruningAsk) -> Job:
        """Remove heads for good, and write the smaller checkpoint into the workspace's folder."""
        desk.workspace.place_of(ask.model)
        return await start("pruning", lambda report: desk.prune(ask, report))

    async def about_pair(kind: JobKind, ask: PairAsk, work: Callable[[LoadedModel, ReportProgress], AnswerBody]) -> Job:
        desk.workspace.place_of(ask.model)

        return await start(kind, lambda report: work(desk.workspace.load(ask.model, report), report))

    @app.post("/api/circuits/pairs", status_code=202)
    async def read_pair(ask: PairAsk) -> Job:
        """Two texts as a model reads them: their tokens, where they differ, and what it expects next."""
        return await about_pair("pair", ask, lambda lm, report: circuits.reading(lm, ask, progress=report))

    @app.post("/api/circuits/effects", status_code=202)
    async def patch_heads(ask: PatchAsk) -> Job:
        """Each head's effect on the answer when it takes its numbers from the other text."""
        return await about_pair("patching", ask, lambda lm, report: circuits.effects(lm, ask, progress=report))

    @app.post("/api/circuits/writing", status_code=202)
    async def head_writing(ask: OneHeadAsk) -> Job:
        """What one head writes to the answer, straight along the residual stream, token by token."""
        return await about_pair("writing", ask, lambda lm, report: circuits.writing(lm, ask, progress=report))

    @app.post("/api/circuits/paths", status_code=202)
    async def head_paths(ask: OneHeadAsk) -> Job:
        """What every earlier head tells one head, by its queries, keys and values."""
        return await about_pair("paths", ask, lambda lm, report: circuits.paths(lm, ask, progress=report))

    @app.post("/api/circuits/alone", status_code=202)
    async def circuit_alone(ask: AloneAsk) -> Job:
        """What a set of heads keeps of the answer when all others have the corrupted text's numbers."""
        return await about_pair("circuit", ask, lambda lm, report: circuits.alone(lm, ask, progress=report))

    @app.post("/api/circuits/smallest", status_code=202)
    async def smallest_circuit(ask: SmallestAsk) -> Job:
        """The fewest heads that keep a share of the answer."""
        return await about_pair("circuit", ask, lambda lm, report: circuits.smallest(lm, ask, progress=report))

    @app.get("/api/presets")
    def presets() -> list[SizePreset]:
        """Architectures by name."""
        return list(sizes.presets())

    @app.post("/api/sizes")
    def size(ask: SizeAsk) -> SizeReport:
        """Parameters, FLOPs and cache of an architecture."""
        return sizes.run(ask, desk.config_of)

    @app.get("/api/histories")
    def histories() -> list[HistoryEntry]:
        """The files of watched trainings that can be opened."""
        return desk.histories.entries()

    @app.get("/api/histories/{history}")
    async def history(
        history: Ident,
        seen: Annotated[str, Query(max_length=40)] = "",
        wait: Annotated[float, Query(ge=0, le=MAX_WAIT)] = 0.0,
    ) -> History:
        """A watched training as far as it is written: as soon as it is no longer the version `seen`, or after `wait`
        seconds."""
        until = time.monotonic() + wait
        while True:
            state = await run_in_threadpool(desk.histories.state, history)
            if state.version != seen or time.monotonic() >= until:
                return state
            await asyncio.sleep(LOOK_SECONDS)

    @app.get("/api/histories/{history}/curves/{statistic}", response_class=Response, responses=BINARY)
    def history_curves(history: Ident, statistic: Annotated[str, Path(max_length=MAX_NAME)]) -> Response:
        """One statistic of every head over the steps of a training."""
        return _binary(desk.histories.drawn(history, statistic))

    @app.get("/api/histories/{history}/heads/{head}", response_class=Response, responses=BINARY)
    def history_head(history: Ident, head: HeadPath) -> Response:
        """Every statistic of one head over the steps of a training."""
        return _binary(desk.histories.drawn_head(history, head))

    @app.get("/api/jobs/{job}")
    async def job(job: Ident, wait: Annotated[float, Query(ge=0, le=MAX_WAIT)] = 0.0) -> Job:
        """The state of a job, as soon as it ends or after `wait` seconds."""
        return await desk.jobs.wait(job, wait)

    @app.delete("/api/jobs/{job}")
    async def stop_job(job: Ident) -> Job:
        """Stop a job at its next step."""
        return await run_in_threadpool(desk.jobs.stop, job)


def _binary(data: bytes) -> Response:
    return Response(data, media_type=MEDIA_TYPE, headers={"cache-control": "no-cache"})


def _file(name: str, kind: str, data: bytes) -> Response:
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})
