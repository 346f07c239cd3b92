"""One request answered by the studio's application without a socket: for `--get`, the notebook and the single file.

The application is the same that the server runs, so these three cannot come to differ from the page. It has no guard
before it: whoever calls is in this process already.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import MutableMapping
from typing import Any, NamedTuple
from urllib.parse import unquote

__all__ = ["Answer", "answer"]


class Answer(NamedTuple):
    """A status, the body's media type, and the body."""

    status: int
    kind: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def answer(app: Any, method: str, path: str, body: Any = None) -> Answer:
    """What the application says to one request. `body` is sent as JSON. Works inside a running event loop too."""
    found: list[Answer | BaseException] = []

    def work() -> None:
        try:
            found.append(asyncio.run(_answer(app, method, path, body)))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work, name="studio-answer")
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


async def _answer(app: Any, method: str, path: str, body: Any) -> Answer:
    where, _, query = path.partition("?")
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
        "path": unquote(where),
        "raw_path": where.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
    }
    status, kind, chunks, given = 500, "", [], False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            await asyncio.sleep(3600)  # nobody hangs up
        given = True
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, kind
        if message["type"] == "http.response.start":
            status = message["status"]
            kind = next((v.decode() for k, v in message["headers"] if k.lower() == b"content-type"), "")
        else:
            chunks.append(message.get("body", b""))

    await app(scope, receive, send)
    return Answer(status, kind, b"".join(chunks))
