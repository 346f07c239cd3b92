"""The server that the command starts: bound to this machine unless said, guarded, quiet."""

from __future__ import annotations

import ctypes
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from manyheads.errors import FileAccessError
from manyheads.studio.app import create_app
from manyheads.studio.desk import Desk
from manyheads.studio.safety import LOCAL_NAMES, Guard

if TYPE_CHECKING:
    import uvicorn

__all__ = ["DEFAULT_PORT", "LOCAL", "Serving", "bind", "guarded", "serve", "server_of", "warm"]

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
                from manyheads.models.recorder import record

                if lm.tokenizer is not None:
                    record(lm, "a first text")

    threading.Thread(target=load, daemon=True, name="studio-warm").start()
