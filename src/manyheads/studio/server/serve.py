"""The server that the command starts: bound to this machine unless said, guarded, quiet."""

from __future__ import annotations

import ctypes
import hmac
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from manyheads.errors import FileAccessError
from manyheads.studio.server.app import create_app
from manyheads.studio.session import Desk

if TYPE_CHECKING:
    import uvicorn

__all__ = [
    "DEFAULT_PORT",
    "LOCAL",
    "Serving",
    "bind",
    "guarded",
    "serve",
    "server_of",
    "warm",
    "CONTENT_SECURITY_POLICY",
    "Guard",
    "MAX_BODY",
]


LOCAL = "127.0.0.1"
DEFAULT_PORT = 8765
PORTS_TRIED = 20
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGE_BYTES = 1 << 20
TRIM_SECONDS = 15.0


@dataclass(frozen=True, eq=False)
class Serving:
    """A socket that is bound, what is served on it, guarded, and the address to open."""

    desk: Desk
    socket: socket.socket
    app: Any
    address: str


def guarded(desk: Desk, host: str = LOCAL, token: str | None = None) -> Guard:
    """The application behind its guard. Here it answers to its own names alone, elsewhere to any, by token."""
    names = frozenset(LOCAL_NAMES) if token is None else frozenset({"*"})
    return Guard(create_app(desk), names | {host}, token)


def bind(desk: Desk, host: str = LOCAL, port: int | None = None) -> Serving:
    """Bind, on the port that was asked for or the first free one from 8765. Errors: FileAccessError."""
    token = None if host in (LOCAL, "localhost", "::1") else secrets.token_urlsafe(24)
    tried = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED), 0]
    for each in tried:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, each))
        except OSError as error:
            bound.close()
            if each == tried[-1]:
                raise FileAccessError(
                    f"cannot listen on {host}:{each}: {error.strerror or error}. Choose another --port (0: any free "
                    f"one) or --host."
                ) from error
            continue
        shown = f"[{host}]" if ":" in host else host
        query = f"?token={token}" if token else ""
        address = f"http://{shown}:{bound.getsockname()[1]}/{query}"
        return Serving(desk, bound, guarded(desk, host, token), address)
    raise AssertionError("the last try either binds or raises")


def server_of(serving: Serving) -> uvicorn.Server:
    """The server, not started: `run(sockets=[serving.socket])` serves until its `should_exit` is set."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            serving.app,
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=2,
            server_header=False,
            ws="none",
        )
    )


def serve(serving: Serving, *, ready: Callable[[], None] | None = None) -> None:
    """Serve until Ctrl-C. `ready` is called in a thread of its own as soon as the server answers."""
    give_memory_back()
    over = threading.Event()
    threading.Thread(target=_trim_on, args=(over,), daemon=True, name="studio-trim").start()
    server = server_of(serving)

    def wait() -> None:
        while not server.started and not server.should_exit:
            time.sleep(0.02)
        if ready is not None and server.started:
            ready()

    threading.Thread(target=wait, daemon=True, name="studio-ready").start()
    try:
        with suppress(KeyboardInterrupt):
            server.run(sockets=[serving.socket])
    finally:
        over.set()
        serving.desk.close()


def give_memory_back() -> None:
    """Have large blocks go back to the system as soon as they are freed, where memory is glibc's.

    By itself glibc moves its threshold up with what is freed, and from then on maps of several threads lie scattered
    among what is kept: a studio of a gigabyte grew by 0.3 GB in five minutes.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, size in ((MMAP_THRESHOLD, LARGE_BYTES), (TRIM_THRESHOLD, 16 * LARGE_BYTES)):
            mallopt(option, size)


def trim() -> None:
    """Give back the free pages between small blocks, which glibc keeps: 0.3 GB after some minutes of many requests."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _trim_on(over: threading.Event) -> None:
    while not over.wait(TRIM_SECONDS):
        trim()


def warm(desk: Desk) -> None:
    """Load the model that will be asked for first, in a thread: importing it takes seconds, opening a browser too."""
    name = desk.workspace.default_model

    def load() -> None:
        with suppress(Exception):  # whoever asks for it is told
            if name is not None:
                lm = desk.workspace.load(name)
                from manyheads.models import record

                if lm.tokenizer is not None:
                    record(lm, "a first text")

    threading.Thread(target=load, daemon=True, name="studio-warm").start()


# ---------------------------------------------------------------------------------------------------------------------
# Who may ask: pages of this server and nobody else's, with bodies of bearable size.
#
# A local server is reachable from every web page that the user's browser has open. `Host` is checked (a foreign name
# that resolves to 127.0.0.1 is DNS rebinding), so is `Origin`; nothing is shared across origins. Where the server is
# bound to more than this machine, each request needs a random token, from the address that was printed or the cookie
# that it set. Source: the Jupyter server's way; OWASP, DNS rebinding.


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY = 3_000_000  # bytes: a text of MAX_TEXT characters and a plan
DIGITS = re.compile("[0-9]{1,15}")
COOKIE = "manyheads_token"
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Guard:
    """An ASGI application before another. `hosts` are the names it answers to; `token` None where none is needed."""

    def __init__(self, app: Any, hosts: frozenset[str], token: str | None = None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        status, words = self._judge(scope, headers)
        if status:
            await _refuse(send, status, words)
            return
        await self.app(scope, _limited(receive), self._with_headers(scope, send))

    def _judge(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str]:
        """Status and words of a refusal; 0 for a request that may pass."""
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if "*" not in self.hosts and name.lower() not in self.hosts:
            return 403, "This server answers to its own address only, not to another name that leads here."
        origin = headers.get("origin")
        if origin is not None and _place_of(origin) != host.lower():
            return 403, "This request comes from another page: the studio answers its own page only."
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "This request comes from another site: the studio answers its own page only."
        length = headers.get("content-length", "0")
        if not DIGITS.fullmatch(length) or int(length) > MAX_BODY:
            return 413, f"The request is {length[:20]} bytes, above the limit of {MAX_BODY:,}."
        if self.token is not None and not self._knows_token(scope, headers):
            return 401, "Open the address that was printed when the studio started: it holds the token."
        return 0, ""

    def _knows_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        assert self.token is not None
        given = _tokens_in(scope)
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        if cookie is not None:
            given.append(cookie.value)
        return any(hmac.compare_digest(each.encode(), self.token.encode()) for each in given)

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        from_address = self.token is not None and bool(_tokens_in(scope))

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                said = list(HEADERS)
                if from_address:
                    said.append((b"set-cookie", f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/".encode()))
                message = {**message, "headers": [*message.get("headers", []), *said]}
            await send(message)

        return sending


def _tokens_in(scope: Scope) -> list[str]:
    """The tokens in a request's address."""
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [])


def _place_of(origin: str) -> str | None:
    """Host and port of an origin; None for what is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _limited(receive: Receive) -> Receive:
    """A body without a length is counted as it comes; what is over the limit reads as the end of the connection."""
    taken = 0

    async def receiving() -> MutableMapping[str, Any]:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        return {"type": "http.disconnect"} if taken > MAX_BODY else message

    return receiving


async def _refuse(send: Send, status: int, words: str) -> None:
    body = json.dumps({"kind": "Refused", "words": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers + HEADERS})
    await send({"type": "http.response.body", "body": body})
