"""The routes of the laboratory's room: lessons, their cells and questions, and what became of trained nets.

The studio's server adds them to its own: `studio.server.app.ROOMS` names this package by a string.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Path, Query

from manyheads.lab.lessons.answers import Verdict
from manyheads.lab.lessons.lesson import ENGLISH
from manyheads.lab.room import views
from manyheads.lab.room.schema import CellAsk, CellResult, CheckAsk, Lesson, LessonEntry, Trained
from manyheads.studio import Job, ReportProgress, StudioSession
from manyheads.studio.server import QUICK

Language = Annotated[str, Query(max_length=8, pattern=r"^[a-z]+$")]
Slug = Annotated[str, Path(max_length=80, pattern=r"^[a-z0-9-]+$")]
CELL: dict[int | str, dict[str, Any]] = {
    200: {"model": CellResult, "description": "The `result` of the job, once it is done."}
}


def add_routes(app: FastAPI, desk: StudioSession) -> None:
    """Everything under /api/lessons, and /api/trained."""

    @app.get("/api/trained")
    def trained() -> list[Trained]:
        """What becomes of nets that are trained as each scene of the Experiment room has it."""
        return views.trained()

    @app.get("/api/lessons")
    def lessons() -> list[LessonEntry]:
        """Every lesson."""
        return views.entries()

    @app.get("/api/lessons/{slug}")
    def lesson(
        slug: Slug, seed: Annotated[int | None, Query(ge=0, lt=views.MAX_SEED)] = None, language: Language = ENGLISH
    ) -> Lesson:
        """One lesson, its numbers computed now. With a seed, the inputs of its checks are drawn at random."""
        return views.lesson(slug, seed, language, load=desk.workspace.load)

    @app.post("/api/lessons/{slug}/cells/{cell}", status_code=202, responses=CELL)
    async def run_cell(slug: Slug, cell: Slug, ask: CellAsk) -> Job:
        """Run a live cell with the reader's parameters."""

        def run(report: ReportProgress) -> dict[str, Any]:
            return views.run_cell(slug, cell, ask, progress=report, load=desk.workspace.load).model_dump(mode="json")

        return await desk.jobs.wait(desk.jobs.start("cell", run), QUICK)

    @app.post("/api/lessons/{slug}/checks/{check}")
    def check(slug: Slug, check: Slug, ask: CheckAsk, language: Language = ENGLISH) -> Verdict:
        """Judge an answer. The right one is computed as well."""
        return views.check(slug, check, ask, language, load=desk.workspace.load)
