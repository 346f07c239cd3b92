"""The studio's application: its routes, the built page, and an HTTP answer for every error: a status and words.

`answer` asks it one request without a socket: for `--get` and the notebook, which so cannot come to differ
from the page. `python -m manyheads.studio.server.app` writes the description of the routes, `web/openapi.json`, again.
The page's own types are generated from that file, and a test keeps file and server equal.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple
from urllib.parse import unquote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from manyheads import __version__
from manyheads.errors import ManyHeadsError
from manyheads.studio.problems import Busy, Stopped, misfit_of, problem_of
from manyheads.studio.schema.base import Problem
from manyheads.studio.server.routes import add_routes
from manyheads.studio.session import StudioSession
from manyheads.studio.state.workspace import Workspace

ROOMS = ("manyheads.lab.room:add_routes",)
"""Rooms that others bring: functions that take the application and the session, and add routes."""
STATIC = {
    "": ("index.html", "text/html; charset=utf-8"),
    "studio.js": ("studio.js", "text/javascript; charset=utf-8"),
    "training.js": ("training.js", "text/javascript; charset=utf-8"),  # rooms that the page loads when they are opened
    "circuit.js": ("circuit.js", "text/javascript; charset=utf-8"),
    "play.js": ("play.js", "text/javascript; charset=utf-8"),  # what draws scenes, loaded when one is played
    "studio.css": ("studio.css", "text/css; charset=utf-8"),
    "favicon.svg": ("favicon.svg", "image/svg+xml"),
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 403, 404, 409, 413, 500, 503)
}
ROUTING = {404: "There is no such address here.", 405: "This address does not take such a request."}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def create_app(desk: StudioSession) -> FastAPI:
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

    async def answer_error(_: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            status, problem = misfit_of(error.errors())
        elif isinstance(error, HTTPException):
            status, words = error.status_code, ROUTING.get(error.status_code, str(error.detail))
            problem = Problem(kind="RequestError", words=words)
        else:
            status, problem = problem_of(error)
        headers = {"retry-after": "1"} if isinstance(error, Busy) else {}
        return JSONResponse(problem.model_dump(), status, headers)

    # `Exception` alone is not enough: starlette raises it again after its answer, as a fault for the server's log, and
    # FastAPI has handlers of its own for the first two, whose answers are no `Problem`.
    for kind in (RequestValidationError, HTTPException, ManyHeadsError, Stopped, Exception):
        app.add_exception_handler(kind, answer_error)
    for path, (name, kind) in STATIC.items():
        app.get(f"/{path}", include_in_schema=False)(_page_file(name, kind))
    add_routes(app, desk)
    for place in ROOMS:
        resolve_name(place)(app, desk)
    return app


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
    description = create_app(StudioSession(Workspace())).openapi()
    description["info"]["version"] = "0"  # the page's types do not depend on our version
    return json.dumps(description, indent=1, sort_keys=True) + "\n"


class Answer(NamedTuple):
    """A status, the body's media type, and the body."""

    status: int
    kind: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def answer(app: Application, method: str, path: str, body: object = None) -> Answer:
    """The application's answer to one request without a socket; `body` is sent as JSON. No guard stands before it, for
    the caller is in this process already. Works inside a running event loop as well.

    docs/decisions/005 says why this is not an HTTP client's ASGI transport.
    """
    place, _, query = path.partition("?")
    data = b"" if body is None else json.dumps(body).encode()
    headers = [(b"host", b"127.0.0.1"), (b"content-length", str(len(data)).encode())]
    if body is not None:
        headers.append((b"content-type", b"application/json"))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(place),
        "raw_path": place.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
    }
    status, kind, chunks, is_read = 500, "", [], False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal is_read
        if is_read:
            # After the body an application waits for the client to disconnect, which never happens here.
            await asyncio.sleep(3600)
        is_read = True
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, kind
        if message["type"] == "http.response.start":
            status = message["status"]
            kind = next((value.decode() for key, value in message["headers"] if key.lower() == b"content-type"), "")
        else:
            chunks.append(message.get("body", b""))

    async def serve() -> None:
        await app(scope, receive, send)

    # A notebook's kernel runs an event loop in this thread, in which a second one cannot start: hence another thread.
    with ThreadPoolExecutor(1, thread_name_prefix="studio-answer") as pool:
        pool.submit(asyncio.run, serve()).result()
    return Answer(status, kind, b"".join(chunks))


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "web/openapi.json")
    target.write_text(openapi_text(), encoding="utf-8")
