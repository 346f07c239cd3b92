"""The studio's real server under many kinds of requests for a while: no request fails, and memory stays flat.

`python -m benchmarks.soak --minutes 10` starts `manyheads studio` as a user does and asks it from several clients at
once: texts, files, tiles, rows, tables, experiments, worth, sizes, lessons and their cells, the page, and requests that
no page would make (damaged JSON, foreign names, cut connections, other people's jobs). Its resident memory is read
twice a second.

What a studio keeps has limits (open recordings, tiles, what jobs found): they are filled before the clock starts, and
the first third is left out. Flat means: over the last two thirds, the straight line through all samples rises by at
most `BAR_MB`. A leak of 6 kB a request would rise by more than that in ten minutes of 20 requests a second.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

BAR_MB = 40.0
CLIENTS = 3
EVERY = 0.5  # seconds between two samples
TEXTS = 36  # different ones: more than are kept open, so that some are dropped and made anew all the time
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


# ---------------------------------------------------------------------------------------------------- server and memory


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`manyheads studio` on a free port, and the port."""
    environment = {**os.environ, "MANYHEADS_CACHE": str(folder / "cache"), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "manyheads", "studio", str(folder), "--port", "0", "--no-browser"]
    with open(folder / "said.txt", "w", encoding="utf-8") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment)
        try:
            assert process.stdout is not None
            address = process.stdout.readline()
            if "http" not in address:
                raise RuntimeError(f"the studio did not start: {(folder / 'said.txt').read_text(encoding='utf-8')}")
            yield process, int(address.rstrip("/\n").rsplit(":", 1)[1])
        finally:
            process.terminate()
            process.communicate(timeout=60)


def write_files(folder: Path) -> None:
    """A recording of 2,048 tokens through 40 heads, and one that is damaged."""
    import torch

    import manyheads as mh

    torch.manual_seed(0)
    layer = mh.MultiHeadAttention(320, 40, causal=True, batch_first=True).eval()
    mh.record_call(layer, torch.randn(1, 2048, 320), need_weights=False).save(folder / "long.heads")
    whole = (folder / "long.heads").read_bytes()
    (folder / "damaged.heads").write_bytes(whole[: len(whole) // 2])


def some_texts() -> list[str]:
    """Texts of 40 to 320 words of the bundled page, all different."""
    words = files("manyheads.corpora").joinpath("page.txt").read_text(encoding="utf-8").split()
    return [" ".join(words[7 * at : 7 * at + 40 + 8 * at]) for at in range(TEXTS)]


def resident_mb(process: int) -> float:
    with open(f"/proc/{process}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def judged(samples: Sequence[tuple[float, float]], bar: float = BAR_MB) -> dict[str, Any]:
    """Whether memory is flat: (second, MB) samples; how much the line through the last two thirds of them rises."""
    end = samples[-1][0]
    late = [(second, mb) for second, mb in samples if second >= end / 3]
    slope = statistics.linear_regression(*zip(*late, strict=True)).slope
    rise = slope * (late[-1][0] - late[0][0])
    return {
        "first_mb": round(samples[0][1]),
        "third_mb": round(late[0][1]),
        "last_mb": round(samples[-1][1]),
        "peak_mb": round(max(mb for _, mb in samples)),
        "curve_mb": [round(mb) for _, mb in samples[:: max(1, len(samples) // 20)]],
        "rise_mb": round(rise, 1),
        "bar_mb": bar,
        "flat": rise <= bar,
    }


def soak(minutes: float, clients: int = CLIENTS, seed: int = 0) -> dict[str, Any]:
    """Ask for so long; what came of it."""
    log, samples, texts = Log(), [], some_texts()
    with tempfile.TemporaryDirectory() as place:
        write_files(Path(place))
        with serving(Path(place)) as (process, port):
            over = threading.Event()
            made = [Client(port, seed + at, texts, log) for at in range(clients)]
            made[0].fill()
            begin = time.monotonic()
            threads = [threading.Thread(target=each.run, args=(over,), daemon=True) for each in made]
            for thread in threads:
                thread.start()
            while (now := time.monotonic() - begin) < 60 * minutes and process.poll() is None:
                samples.append((now, resident_mb(process.pid)))
                time.sleep(EVERY)
            over.set()
            for thread in threads:
                thread.join(180)
            died = process.poll()
        said = (Path(place) / "said.txt").read_text(encoding="utf-8")
    if died is not None:
        log.faults.append(f"the studio ended with {died}: {said[-500:]}")
    found = {"minutes": minutes, "clients": clients, "requests": sum(log.counts.values()), "busy": log.busy}
    found |= {"kinds": dict(sorted(log.counts.items())), "faults": log.faults[:10], "num_faults": len(log.faults)}
    return {**found, **judged(samples), "traceback": said[-2000:] if "Traceback" in said else ""}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = soak(asked.minutes, asked.clients, asked.seed)
    print(json.dumps(found))
    fine = found["flat"] and not found["num_faults"] and not found["traceback"]
    print("passed" if fine else "not passed", file=sys.stderr)
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
