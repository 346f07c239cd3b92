"""The server that the command starts, bound to this machine unless another host is chosen; and its guard.

Every web page that the user's browser has open can reach a local server. So `Host` is checked (a foreign name that
resolves to 127.0.0.1 is DNS rebinding), so is `Origin`, nothing is shared across origins, and bodies are limited. Where
the server is bound to more than this machine, each request needs a random token, from the address that was printed or
from the cookie that this address sets. Source: the Jupyter server's way; OWASP, DNS rebinding.
"""

from __future__ import annotations

import ctypes
import hmac
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from manyheads.errors import FileAccessError
from manyheads.inputs import record
from manyheads.studio.server.app import Application, Receive, Scope, Send, create_app
from manyheads.studio.session import MAX_UPLOAD, StudioSession

if TYPE_CHECKING:
    import uvicorn

LOCAL = "127.0.0.1"
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_PORT = 8765
PORTS_TRIED = 20
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGE_BYTES = 1 << 20
TRIM_SECONDS = 15.0
MAX_BODY = 3_000_000  # bytes: a text of MAX_TEXT characters and a plan
DIGITS = re.compile("[0-9]{1,15}")
COOKIE = "manyheads_token"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src data:; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


@dataclass(frozen=True, eq=False)
class Serving:
    """A bound socket, the guarded application that is served on it, and the address to open."""

    desk: StudioSession
    socket: socket.socket
    app: Application
    address: str


def bind(desk: StudioSession, host: str = LOCAL, port: int | None = None) -> Serving:
    """Bind to the given port, or to the first free one from 8765. Errors: FileAccessError."""
    token = None if host in (LOCAL, "localhost", "::1") else secrets.token_urlsafe(24)
    ports = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED), 0]
    for candidate in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A studio that was just stopped leaves its port waiting for a minute: the page finds the next one there.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, candidate))
        except OSError as error:
            bound.close()
            if candidate == ports[-1]:
                raise FileAccessError(
                    f"cannot listen on {host}:{candidate}: {error.strerror or error}. Choose another --port (0: any "
                    f"free one) or --host."
                ) from error
            continue
        url_host = f"[{host}]" if ":" in host else host
        query = f"?token={token}" if token else ""
        address = f"http://{url_host}:{bound.getsockname()[1]}/{query}"
        return Serving(desk, bound, guarded(desk, host, token), address)
    raise AssertionError("the last try either binds or raises")


def guarded(desk: StudioSession, host: str = LOCAL, token: str | None = None) -> Guard:
    """The application behind its guard. Bound to this machine it answers to local names only, else to any, by token."""
    names = frozenset(LOCAL_NAMES) if token is None else frozenset({"*"})
    return Guard(create_app(desk), names | {host}, token)


def server_of(serving: Serving) -> uvicorn.Server:
    """The server, not started: `run(sockets=[serving.socket])` serves until its `should_exit` is set."""
    import uvicorn  # a notebook and a single file have no server

    return uvicorn.Server(
        uvicorn.Config(
            serving.app,
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=2,  # an open page's request waits for its job, and would hold Ctrl-C up
            server_header=False,
            ws="none",
        )
    )


def serve(serving: Serving, *, ready: Callable[[], None] | None = None) -> None:
    """Serve until Ctrl-C. `ready` is called in a thread of its own as soon as the server answers."""
    give_memory_back()
    over = threading.Event()
    server = server_of(serving)

    def trim_now_and_then() -> None:
        while not over.wait(TRIM_SECONDS):
            trim()

    def call_ready() -> None:
        # uvicorn sets a flag, and no event that could be waited for.
        while not server.started and not server.should_exit:
            time.sleep(0.02)
        if ready is not None and server.started:
            ready()

    threading.Thread(target=trim_now_and_then, daemon=True, name="studio-trim").start()
    threading.Thread(target=call_ready, daemon=True, name="studio-ready").start()
    try:
        with suppress(KeyboardInterrupt):
            server.run(sockets=[serving.socket])
    finally:
        over.set()
        serving.desk.close()


def give_memory_back() -> None:
    """Make glibc return large blocks to the system as soon as they are freed; nothing where memory is not glibc's.

    By default glibc raises its threshold with the size of what is freed, and from then on the maps of several threads
    lie scattered among what stays: a studio of a gigabyte grew by 0.3 GB in five minutes.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, size in ((MMAP_THRESHOLD, LARGE_BYTES), (TRIM_THRESHOLD, 16 * LARGE_BYTES)):
            mallopt(option, size)


def trim() -> None:
    """Return the free pages between small blocks, which glibc keeps: 0.3 GB after some minutes of many requests."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def warm(desk: StudioSession) -> None:
    """Load the default model in a thread: importing it takes seconds, and so does opening a browser."""
    name = desk.workspace.default_model

    def load() -> None:
        with suppress(Exception):  # the first request that needs the model reports the error
            if name is not None:
                lm = desk.workspace.load(name)
                if lm.tokenizer is not None:
                    record(lm, "a first text")
                    desk.labels.at_hand(name)

    threading.Thread(target=load, daemon=True, name="studio-warm").start()


class Guard:
    """An ASGI application before another. `hosts` are the names it answers to; `token` None where none is needed."""

    def __init__(self, app: Application, hosts: frozenset[str], token: str | None = None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a websocket would pass unguarded: the page has none, and it is dropped
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        status, words = self._refusal(scope)
        if status:
            body = json.dumps({"kind": "Refused", "words": words}).encode()
            fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": status, "headers": fields + HEADERS})
            await send({"type": "http.response.body", "body": body})
            return
        headers = list(HEADERS)
        # Whoever came by the printed address gets the cookie, and the page's own requests need no token then.
        if self.token is not None and _tokens_in(scope):
            headers.append((b"set-cookie", f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/".encode()))
        num_bytes = 0

        async def receive_limited() -> MutableMapping[str, Any]:
            # A body sent in chunks has no length to refuse: it is counted, and the connection then reads as closed.
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            return {"type": "http.disconnect"} if num_bytes > _most_bytes(scope) else message

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *headers]}
            await send(message)

        await self.app(scope, receive_limited, send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        """Status and words of a refusal; 0 for a request that may pass."""
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if "*" not in self.hosts and name.lower() not in self.hosts:
            return 403, "This server answers to its own address only, not to another name that leads here."
        try:
            is_foreign = "origin" in headers and urlsplit(headers["origin"]).netloc.lower() != host.lower()
        except ValueError:  # what is no address is no page of ours
            is_foreign = True
        if is_foreign:
            return 403, "This request comes from another page: the studio answers its own page only."
        # A link or an image on another site sends no Origin; browsers then say in this header that it is another site.
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "This request comes from another site: the studio answers its own page only."
        length = headers.get("content-length", "0")
        if not DIGITS.fullmatch(length) or int(length) > _most_bytes(scope):
            return 413, f"The request is {length[:20]} bytes, above the limit of {_most_bytes(scope):,}."
        if self.token is not None:
            tokens = _tokens_in(scope)
            with suppress(CookieError):
                if (cookie := SimpleCookie(headers.get("cookie", "")).get(COOKIE)) is not None:
                    tokens.append(cookie.value)
            # compare_digest: the time of a plain comparison would tell how many characters are right.
            if not any(hmac.compare_digest(token.encode(), self.token.encode()) for token in tokens):
                return 401, "Open the address that was printed when the studio started: it holds the token."
        return 0, ""


def _most_bytes(scope: Scope) -> int:
    """The limit of a request's body: a recording that is dropped on the page may be larger than everything else."""
    return MAX_UPLOAD if (scope.get("method"), scope.get("path")) == ("POST", "/api/uploads") else MAX_BODY


def _tokens_in(scope: Scope) -> list[str]:
    """The tokens in a request's address."""
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
