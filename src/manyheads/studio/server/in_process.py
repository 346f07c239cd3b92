"""One request answered by the studio's application without a socket: for `--get`, the notebook and the doctor.

It is the application that the server runs, so these cannot come to differ from the page. No guard stands before it:
the caller is in this process already. docs/decisions/005 says why this is not an HTTP client's ASGI transport.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
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
    """The application's answer to one request; `body` is sent as JSON. Works inside a running event loop, too."""
    # A notebook's kernel runs an event loop in this thread, in which a second one cannot start: hence another thread.
    with ThreadPoolExecutor(1, thread_name_prefix="studio-answer") as pool:
        return pool.submit(asyncio.run, _answer(app, method, path, body)).result()


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

    await app(scope, receive, send)
    return Answer(status, kind, b"".join(chunks))
