"""What the soak asks of the studio: clients that look at recordings in many ways, and what came of their requests.

Among them are requests that no page would make: damaged JSON, foreign names, cut connections, other people's jobs.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

MODEL = "minilm"
PLANS = (
    [{"step": "ablate", "heads": "L2H9", "kind": "mean"}],
    [{"step": "scale", "heads": "L0H0-5", "factor": 0.5}],
    [{"step": "ablate", "heads": "L1", "kind": "zero"}, {"step": "average", "heads": "L3"}],
)
SIZES: tuple[dict[str, Any], ...] = (
    {"preset": "llama-2-70b", "context": 8192},
    {"words": {"num_layers": 8, "embed_dim": 512, "num_heads": 8, "vocab_size": 1000}, "dtype": "fp16"},
    {"model": MODEL, "batch": 3},
    {"words": {"num_layers": 10**9, "embed_dim": 7, "num_heads": 2}},
)
BAD: tuple[tuple[str, str, bytes | None, dict[str, str]], ...] = (
    ("GET", "/api/recordings/nowhere/atlas", None, {}),
    ("GET", "/api/jobs/0011223344556677", None, {}),
    ("GET", "/../../etc/passwd", None, {}),
    ("GET", "/api/workspace", None, {"Host": "evil.example"}),
    ("POST", "/api/sizes", b'{"words": ' + b"[" * 50_000, {}),
    ("POST", "/api/recordings", b'{"model": "minilm", "text": "\xff\xfe"}', {}),
    ("POST", "/api/recordings", json.dumps({"model": MODEL, "text": "x " * 300_000}).encode(), {}),
    ("POST", "/api/recordings", b"{}", {"Origin": "http://evil.example"}),
    ("POST", "/api/prunings", json.dumps({"model": MODEL, "heads": "L0H0", "name": "small"}).encode(), {}),
    ("DELETE", "/api/workspace", None, {}),
)


@dataclass(eq=False)
class Log:
    """What came of all requests, by kind and status, and what should not have come."""

    counts: Counter[str] = field(default_factory=Counter)
    busy: int = 0
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, fault: str = "", busy: bool = False) -> None:
        with self.lock:
            self.counts[kind] += 1
            self.busy += busy
            if fault:
                self.faults.append(f"{kind}: {fault}"[:500])


class Client:
    """One page's worth of requests: a recording, looked at in many ways, then another."""

    def __init__(self, port: int, seed: int, texts: Sequence[str], log: Log) -> None:
        self.port, self.random, self.texts, self.log = port, random.Random(seed), texts, log
        self.kinds: dict[str, Callable[[], None]] = {
            "look": self.look, "file": self.open_file, "experiment": self.experiment, "size": self.size,
            "lesson": self.lesson, "page": self.page, "bad": self.bad, "cut": self.cut, "stop": self.stop,
        }  # fmt: skip
        self.shares = (40, 6, 3, 12, 8, 4, 10, 4, 2)

    def run(self, over: threading.Event) -> None:
        while not over.is_set():
            kind = self.random.choices(tuple(self.kinds), self.shares)[0]
            try:
                self.kinds[kind]()
            except Exception as error:  # whatever it is, the server did not answer as it should
                self.log.note(kind, f"{type(error).__name__}: {error}")

    def ask(
        self,
        kind: str,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        allowed: Sequence[int] = (),
    ) -> Any:
        """The answer's JSON (None: it is none), noted; a status of 400 and more is a fault unless it is allowed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            found = answer.read()
        finally:
            connection.close()
        fine = answer.status < 400 or answer.status in (*allowed, 503)
        self.log.note(kind, "" if fine else f"{method} {path}: {answer.status} {found[:300]!r}", answer.status == 503)
        if "json" not in (answer.headers.get("content-type") or "") or answer.status >= 400:
            return None
        return json.loads(found)

    def job(self, kind: str, path: str, body: Any, failing: bool = False) -> Any:
        """What a job came to; None where the server was busy, or the job was to fail and did."""
        job = self.ask(kind, "POST", path, body)
        while job is not None and job["state"] == "running":
            job = self.ask(f"{kind} (waited)", "GET", f"/api/jobs/{job['id']}?wait=5")
        if job is None or job["state"] == "done":
            return job and job["result"]
        fault = job["problem"]["kind"] == "Fault" or not failing
        self.log.note(kind, f"{path}: {job['state']} {job['problem']}" if fault else "")
        return None

    def fill(self) -> None:
        """Reach the limits of what is kept: every text opened, and the long recording's tiles, 10 MB a head."""
        for text in self.texts:
            self.job("fill", "/api/recordings", {"model": MODEL, "text": text})
        info = self.job("fill", "/api/recordings", {"file": "long.heads"})
        for head in range(info["layers"][0]["num_heads"]):
            self.ask("fill", "GET", f"/api/recordings/{info['id']}/tiles/L0H{head}/{info['max_level']}/0/0")

    # ---------------------------------------------------------------------------------------------- kinds of requests

    def look(self) -> None:
        """A text opened (or found open), and some of what a page asks of it. It may be gone again meanwhile: 404."""
        plan = self.random.choice(PLANS) if self.random.random() < 0.1 else []
        ask = {"model": MODEL, "text": self.random.choice(self.texts), "plan": plan}
        info = self.job("open", "/api/recordings", ask)
        if info is not None:
            self.at(f"/api/recordings/{info['id']}", info)

    def open_file(self) -> None:
        info = self.job("file", "/api/recordings", {"file": "long.heads"})
        if info is not None:
            self.at(f"/api/recordings/{info['id']}", info)
        self.job("damaged file", "/api/recordings", {"file": "damaged.heads"}, failing=True)

    def at(self, base: str, info: dict[str, Any]) -> None:
        heads = [f"L{layer['layer']}H{self.random.randrange(layer['num_heads'])}" for layer in info["layers"]]
        tokens = info["num_tokens"]
        for _ in range(self.random.randint(3, 9)):
            head, row = self.random.choice(heads), self.random.randrange(tokens)
            level = self.random.randint(0, max(1, info["max_level"]))
            paths = (
                base, f"{base}/atlas", f"{base}/heads/{head}", f"{base}/rows/{head}/{row}",
                f"{base}/thumbnails?size=24&how={self.random.choice(('mean', 'max'))}", f"{base}/table?format=parquet",
                f"{base}/window/{head}?queries={row}:{row + 3}", f"{base}/tiles/{head}/{level}/0/{row >> level + 8}",
            )  # fmt: skip
            path = self.random.choice(paths)
            self.ask(path.removeprefix(base).split("/")[1].split("?")[0] if path != base else "info", "GET", path,
                     allowed=(404,))  # fmt: skip
        if self.random.random() < 0.05 and info["model"] == MODEL:
            self.job("worth", f"{base}/heads/{self.random.choice(heads)}/worth", {}, failing=True)

    def experiment(self) -> None:
        ask = {"model": MODEL, "text": self.random.choice(self.texts)[:300], "plan": self.random.choice(PLANS)}
        self.job("experiment", "/api/experiments", {**ask, "controls": 1})

    def size(self) -> None:
        self.ask("size", "POST", "/api/sizes", self.random.choice(SIZES), allowed=(400,))

    def lesson(self) -> None:
        lessons = self.ask("lessons", "GET", "/api/lessons") or []
        slug = self.random.choice(lessons)["slug"]
        lesson = self.ask("lesson", "GET", f"/api/lessons/{slug}?seed={self.random.randrange(9)}")
        parts = [part for part in lesson["parts"] if part["kind"] in ("cell", "check")]
        for part in self.random.sample(parts, min(2, len(parts))):
            if part["kind"] == "cell":
                values = {each["name"]: each["value"] for each in part["parameters"]}
                self.job("cell", f"/api/lessons/{slug}/cells/{part['cell']}", {"parameters": values})
            elif part["cell"] is None:
                ask = {"answer": self.random.choice(["3", "1/4", "10 GiB", "x"]), "inputs": part["inputs"]}
                self.ask("check", "POST", f"/api/lessons/{slug}/checks/{part['check']}", ask)

    def page(self) -> None:
        for path in ("/", "/studio.js", "/studio.css", "/api/workspace", "/api/presets"):
            self.ask("page", "GET", path, headers={"accept-encoding": "gzip"})

    def bad(self) -> None:
        method, path, body, headers = self.random.choice(BAD)
        self.ask("bad", method, path, body, headers, allowed=(400, 403, 404, 405, 413))

    def cut(self) -> None:
        """A connection that is closed in the middle of a request, or before its answer."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            text = self.random.choice(self.texts)
            body = json.dumps({"model": MODEL, "text": text}).encode()
            head = f"POST /api/recordings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(
                f"{head}Content-Type: application/json\r\n\r\n".encode() + body[: self.random.choice((9, 10**9))]
            )
        self.log.note("cut")

    def stop(self) -> None:
        """Work that nobody wants any more."""
        ask = {"model": MODEL, "text": self.random.choice(self.texts), "plan": PLANS[0], "controls": 5}
        job = self.ask("stop", "POST", "/api/experiments", ask)
        if job is not None:
            self.ask("stop", "DELETE", f"/api/jobs/{job['id']}")
