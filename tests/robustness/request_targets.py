"""The studio's server as a reader: raw requests, through its guard, to its answer and to the end of what they began."""

from __future__ import annotations

import asyncio
import json
import time
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import manyheads as mh
from manyheads.errors import ManyHeadsError
from manyheads.studio import Desk, Workspace
from manyheads.studio.server.serve import guarded
from manyheads.studio.state.workspace import ModelPlace
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_tokenizer
from tests.robustness.file_targets import base
from tests.robustness.head_file_targets import histories
from tests.robustness.mutations import DEEP
from tests.robustness.target import Target

PLAN = [{"step": "ablate", "heads": "L0H1", "kind": "mean"}]
WORDS = {"num_layers": 3, "embed_dim": 48, "num_heads": 6, "ffn_dim": 68, "vocab_size": 101}
GETS = (
    "/", "/studio.js", "/api/workspace", "/api/presets", "/api/lessons", "/api/lessons/counting?seed=3",
    "/api/recordings/REC?text=0", "/api/recordings/REC/atlas", "/api/recordings/REC/heads/L0H1",
    "/api/recordings/REC/thumbnails?size=4&how=max", "/api/recordings/REC/tiles/L0H1/0/0/0?rows=all",
    "/api/recordings/REC/rows/L0H1/2", "/api/recordings/REC/table?format=json",
    "/api/recordings/REC/window/L0H1?queries=1:3&keys=:4", "/api/jobs/0011223344556677?wait=0.01",
    "/api/histories", "/api/histories/HIST", "/api/histories/HIST/curves/entropy", "/api/histories/HIST/heads/L0H1",
)  # fmt: skip
PAIR = {"model": "gpt", "clean": "the cat sat", "corrupted": "the dog sat", "right": "cat", "wrong": "dog"}
POSTS: dict[str, Any] = {
    "/api/recordings": {"model": "tiny", "text": "a cat", "plan": PLAN},
    "/api/experiments": {"model": "tiny", "text": "the cat sat", "plan": PLAN, "controls": 1, "metric": "auto"},
    "/api/prunings": {"model": "tiny", "heads": "L0H0", "name": "small"},
    "/api/sizes": {"words": WORDS, "context": 64, "batch": 2, "dtype": "fp16"},
    "/api/lessons/counting/checks/x": {"answer": "3", "inputs": {"heads": 4}},
    "/api/recordings/REC/heads/L0H1/worth?kind=zero": {},
    "/api/recordings/REC/importance": {},
    "/api/circuits/pairs": PAIR,
    "/api/circuits/effects": {**PAIR, "what": "v", "controls": 1},
    "/api/circuits/writing": {**PAIR, "head": "L1H2"},
    "/api/circuits/paths": {**PAIR, "head": "L1H2", "direction": "noise"},
    "/api/circuits/alone": {**PAIR, "heads": "L0H1, L2H3"},
}


@cache
def desk() -> Desk:
    """A studio of two tiny models and a training's history, that may write nothing."""
    made = Desk(Workspace())
    predicts = mh.load(tiny_gpt2(), tokenizer=tiny_tokenizer(special_tokens=False))
    made.workspace.models["gpt"] = ModelPlace("gpt", predicts, "gpt")
    (base() / "part.parquet").write_bytes(histories()[0])
    made.workspace.histories["part.parquet"] = base() / "part.parquet"
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    made.workspace.models["tiny"] = ModelPlace("tiny", lm, "tiny")
    made.recordings.add(mh.record(lm, "the cat sat on the mat"), "a cat")
    return made


def requests() -> list[bytes]:
    """A request line, header lines, an empty line, a body."""
    name = next(iter(desk().recordings.opened))
    history = Workspace.history_id("part.parquet")
    gets = [path.replace("REC", name).replace("HIST", history) for path in GETS]
    out = [f"GET {path}\nhost: 127.0.0.1\naccept-encoding: gzip\n\n".encode() for path in gets]
    head = "\nhost: localhost:8765\norigin: http://localhost:8765\ncontent-type: application/json\n\n"
    out += [f"POST {path.replace('REC', name)}{head}{json.dumps(body)}".encode() for path, body in POSTS.items()]
    return out


def bodies() -> list[bytes]:
    """Of one request, what is JSON: {path: body}."""
    name = next(iter(desk().recordings.opened))
    return [json.dumps({path.replace("REC", name): body}).encode() for path, body in POSTS.items()]


def read_body(data: bytes, folder: Path) -> None:
    """Damage of the JSON alone, so that more of it gets past the parser."""
    try:
        found = json.loads(data)
        ((path, body),) = found.items()
        sent = json.dumps(body).encode("utf-8", "surrogatepass")
    except (ValueError, AttributeError, RecursionError, TypeError):
        path, sent = "/api/sizes", data
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    asked(b"POST", path.encode("utf-8", "surrogatepass"), headers, sent)


def read_request(data: bytes, folder: Path) -> None:
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, _, path = first.partition(b" ")
    headers = [tuple(part.strip() for part in line.partition(b":")[::2]) for line in lines]
    asked(method, path, [(key.lower(), value) for key, value in headers], body)


def asked(method: bytes, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Raises ManyHeadsError for a refusal, as any other reader does, and AssertionError for a fault of ours."""
    where, _, query = path.partition(b"?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method.decode("latin-1"),
        "scheme": "http", "path": unquote(where.decode("latin-1")), "raw_path": where, "query_string": query,
        "root_path": "", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    status, answer = asyncio.run(_asked(scope, body))
    assert status < 500 or status == 503, (status, answer[:500])
    job = json.loads(answer) if status == 202 else {}
    until = time.monotonic() + 10
    while job and job["state"] == "running" and time.monotonic() < until:
        job = asyncio.run(desk().jobs.wait(job["id"], 1.0)).model_dump()
    if job:
        assert job["state"] != "running" and (job["problem"] or {}).get("kind") != "Fault", job
    if status >= 400:
        raise ManyHeadsError(json.loads(answer)["words"])


async def _asked(scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
    status, parts, given = [500], [], []

    async def receive() -> dict[str, Any]:
        if given:
            await asyncio.sleep(3600)
        given.append(True)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            status[0] = message["status"]
        parts.append(message.get("body", b""))

    await guarded(desk())(scope, receive, send)
    return status[0], b"".join(parts)


def post(path: str, body: bytes) -> bytes:
    return f"POST {path}\nhost: localhost\ncontent-type: application/json\n\n".encode() + body


REQUEST_TARGETS = (
    Target("request", requests, read_request, {
        "deep": post("/api/sizes", b"[" * 30 * DEEP),
        "long number": post("/api/sizes", b'{"context": ' + b"9" * 5000 + b"}"),
        "large": post("/api/sizes", b'{"model": "' + b"a" * 4_000_000 + b'"}'),
        "lists": post("/api/sizes", b"[" + b"[]," * 999_000 + b"1]"),
        "layers": post("/api/sizes", json.dumps({"words": {**WORDS, "num_layers": 10**9}}).encode()),
        "context": post("/api/sizes", json.dumps({"words": WORDS, "context": 10**30}).encode()),
    }, costly=True),
    Target("body", bodies, read_body, {}, costly=True),
)  # fmt: skip
