"""The studio's application: its routes, the built page, and an HTTP answer for every error: a status and words.

`python -m manyheads.studio.server.app` writes the description of the routes, `web/openapi.json`, anew. The page's own
types are generated from that file, and a test keeps file and server equal.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from manyheads import __version__
from manyheads.errors import ManyHeadsError
from manyheads.studio.problems import Busy, Stopped, misfit_of, problem_of
from manyheads.studio.schema.base import Problem
from manyheads.studio.server.routes import add_routes
from manyheads.studio.session import Desk
from manyheads.studio.state.workspace import Workspace

__all__ = ["create_app", "openapi_text"]


STATIC = {
    "": ("index.html", "text/html; charset=utf-8"),
    "studio.js": ("studio.js", "text/javascript; charset=utf-8"),
    "studio.css": ("studio.css", "text/css; charset=utf-8"),
    "favicon.svg": ("favicon.svg", "image/svg+xml"),
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 403, 404, 409, 413, 500, 503)
}


def create_app(desk: Desk) -> FastAPI:
    """The application of one studio, without a guard: `server.guarded` adds that."""

    app = FastAPI(
        title="manyheads studio",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=PROBLEMS,
        generate_unique_id_function=lambda route: route.name,
    )
    _add_problems(app)
    for path, (name, kind) in STATIC.items():
        app.get(f"/{path}", include_in_schema=False)(_page_file(name, kind))
    add_routes(app, desk)
    return app


def _add_problems(app: FastAPI) -> None:
    """Make every error a `Problem`."""

    async def answer_error(_: Request, error: Exception) -> Response:
        status, problem = problem_of(error)
        headers = {"retry-after": "1"} if isinstance(error, Busy) else {}
        return JSONResponse(problem.model_dump(), status, headers)

    async def answer_misfit(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        status, problem = misfit_of(error.errors())
        return JSONResponse(problem.model_dump(), status)

    async def answer_routing(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        sentences = {404: "There is no such address here.", 405: "This address does not take such a request."}
        words = sentences.get(error.status_code, str(error.detail))
        return JSONResponse(Problem(kind="RequestError", words=words).model_dump(), error.status_code)

    app.add_exception_handler(RequestValidationError, answer_misfit)
    app.add_exception_handler(HTTPException, answer_routing)
    for kind in (ManyHeadsError, Stopped, Exception):
        app.add_exception_handler(kind, answer_error)


def _page_file(name: str, kind: str) -> Callable[[Request], Response]:
    """The route of one file of the built page. No path of a request ever becomes a path on the disk.

    docs/decisions/005 says why these are not starlette's StaticFiles and GZipMiddleware.
    """
    folder = files("manyheads.studio") / "static"

    @cache
    def packed() -> bytes:
        return gzip.compress((folder / name).read_bytes(), 9)

    def page(request: Request) -> Response:
        headers = {"cache-control": "no-cache", "vary": "accept-encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response((folder / name).read_bytes(), media_type=kind, headers=headers)
        return Response(packed(), media_type=kind, headers={**headers, "content-encoding": "gzip"})

    return page


def openapi_text() -> str:
    """The description of the routes, as web/openapi.json holds it."""
    description = create_app(Desk(Workspace())).openapi()
    description["info"]["version"] = "0"  # the page's types do not depend on our version
    return json.dumps(description, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "web/openapi.json")
    target.write_text(openapi_text(), encoding="utf-8")
