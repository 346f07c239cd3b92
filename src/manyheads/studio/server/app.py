"""The studio's application: its routes, the built page, and what every error becomes: a status and words."""

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
from manyheads.studio.problems import Busy, Stopped, misfit, told
from manyheads.studio.schema.base import Problem
from manyheads.studio.server.routes import add_routes
from manyheads.studio.session import Desk

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
    """The application of one workspace, with no guard before it: `server.guarded` adds that."""

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
    _add_page(app)
    add_routes(app, desk)
    return app


def _add_problems(app: FastAPI) -> None:
    """Every error becomes a `Problem`."""

    async def answer(_: Request, error: Exception) -> Response:
        status, problem = told(error)
        headers = {"retry-after": "1"} if isinstance(error, Busy) else {}
        return JSONResponse(problem.model_dump(), status, headers)

    async def unread(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        status, problem = misfit(error.errors())
        return JSONResponse(problem.model_dump(), status)

    async def plain(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        said = {404: "There is no such address here.", 405: "This address does not take such a request."}
        words = said.get(error.status_code, str(error.detail))
        return JSONResponse(Problem(kind="RequestError", words=words).model_dump(), error.status_code)

    app.add_exception_handler(RequestValidationError, unread)
    app.add_exception_handler(HTTPException, plain)
    for kind in (ManyHeadsError, Stopped, Exception):
        app.add_exception_handler(kind, answer)


def _add_page(app: FastAPI) -> None:
    """The built page: four files, by name; no path of a request ever becomes a path on the disk."""
    folder = files("manyheads.studio") / "static"

    def serve(name: str, kind: str) -> Callable[[Request], Response]:
        @cache
        def packed() -> bytes:
            return gzip.compress((folder / name).read_bytes(), 9)

        def page(request: Request) -> Response:
            headers = {"cache-control": "no-cache", "vary": "accept-encoding"}
            if "gzip" not in request.headers.get("accept-encoding", ""):
                return Response((folder / name).read_bytes(), media_type=kind, headers=headers)
            return Response(packed(), media_type=kind, headers={**headers, "content-encoding": "gzip"})

        return page

    for path, (name, kind) in STATIC.items():
        app.get(f"/{path}", include_in_schema=False)(serve(name, kind))


# ---------------------------------------------------------------------------------------------------------------------
# The server's description as a file: `python -m manyheads.studio.server.app` writes web/openapi.json anew.
#
# The page's own types are generated from it; a test holds file and server equal.


def openapi_text() -> str:
    """The description, as the file holds it."""
    from manyheads.studio.session import Desk
    from manyheads.studio.state.workspace import Workspace

    said = create_app(Desk(Workspace())).openapi()
    said["info"]["version"] = "0"  # the page's types do not hang on ours
    return json.dumps(said, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "web/openapi.json")
    target.write_text(openapi_text(), encoding="utf-8")
