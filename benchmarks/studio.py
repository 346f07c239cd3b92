"""The studio's page in a fresh browser: how soon it shows something, how heavy it is, how fast its tiles come.

`python -m benchmarks.studio` starts the real server with the bundled model loaded, opens the page in headless Chromium
with an empty profile, and asks for tiles from within the page, nothing cached. Beside it, BertViz's page of the same
model and text, made by its own package in a process of its own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

import manyheads as mh

TOKENS, LONG = 512, 8_192
BERTVIZ = "bertviz==1.4.1"
OTHER = """
import json, sys, time, torch, transformers
sys.path.insert(0, sys.argv[1])
from bertviz import model_view
model = transformers.AutoModel.from_pretrained(sys.argv[2], attn_implementation="eager").eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[2])
inputs = tokenizer(open(sys.argv[3], encoding="utf-8").read(), return_tensors="pt", truncation=True, max_length=512)
with torch.no_grad():
    maps = model(**inputs, output_attentions=True).attentions
begun = time.perf_counter()
page = model_view(maps, tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), html_action="return").data
taken, tokens = time.perf_counter() - begun, inputs["input_ids"].shape[1]
print(json.dumps({"tokens": tokens, "seconds": taken, "bytes": len(page.encode())}))
"""
TIME_TILES = """
async (paths) => {
  const taken = [];
  for (const path of paths) {
    const begun = performance.now();
    const answer = await fetch(path);
    await answer.arrayBuffer();
    if (!answer.ok) throw new Error(path + " " + answer.status);
    taken.push((performance.now() - begun) / 1000);
  }
  return taken;
}
"""


def own_text(tokenizer: Any, count: int) -> str:
    """The bundled page's words, as many as make `count` tokens of one window."""
    words = files("manyheads.corpora").joinpath("page.txt").read_text(encoding="utf-8").split()
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        fits = len(tokenizer(" ".join(words[:middle]), verbose=False)["input_ids"]) <= count
        low, high = (middle, high) if fits else (low, middle - 1)
    return " ".join(words[:low])


def long_recording(path: Path) -> None:
    """8,192 tokens through a layer of twelve heads of 64, causal, as a file."""
    torch.manual_seed(0)
    layer = mh.MultiHeadAttention(768, 12, causal=True, batch_first=True).eval()
    mh.record_call(layer, torch.randn(1, LONG, 768), need_weights=False).save(path)


def first_view(playwright: Any, chromium: str, arguments: list[str], address: str) -> dict[str, float]:
    """Seconds from asking for the page to seeing all heads' maps drawn, and the bytes that came; a new profile."""
    browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    taken: list[int] = []
    page.on("requestfinished", lambda request: taken.append(request.sizes()["responseBodySize"]))
    begun = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_selector("[data-testid=atlas-grid][data-drawn=true]", timeout=60_000)
    seconds = time.perf_counter() - begun
    found = {"seconds": seconds, "bytes": float(sum(taken))}
    browser.close()
    return found


def bertviz(folder: Path, text: Path) -> dict[str, Any]:
    """BertViz's own page of the same model and text; its package goes into a folder of its own."""
    place = folder / "bertviz"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), BERTVIZ]
    subprocess.run(command, check=True, capture_output=True)
    from manyheads.models.bundled import find_bundled

    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(place), str(find_bundled("minilm")), str(text)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else str(done.returncode)}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-bertviz", action="store_true")
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from manyheads.studio.report import write_report
    from tests.studio.chromium import ARGUMENTS, MISSING, find_chromium
    from tests.studio.serving import Studio

    chromium = find_chromium()
    if chromium is None:
        raise SystemExit(MISSING)
    lm = mh.load("minilm")
    static = files("manyheads.studio") / "static"
    script = gzip.compress((static / "studio.js").read_bytes(), 9)
    text = own_text(lm.tokenizer, TOKENS - 2)  # and a number at its end, so that nobody has read it before
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        (folder / "text.txt").write_text(text, encoding="utf-8")
        (folder / "recordings").mkdir()
        long_recording(folder / "recordings" / "long.heads")
        command = [
            sys.executable,
            "-m",
            "manyheads",
            "studio",
            str(folder / "recordings"),
            "--no-browser",
            "--port",
            "0",
        ]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            studio = Studio(None, int(address.rstrip("/").rsplit(":", 1)[1]))  # type: ignore[arg-type]
            studio.open("a first text, so that the model is loaded")
            views = []
            for round_ in range(asked.rounds):
                fresh = f"{text} {round_}"
                views.append(first_view(playwright, chromium, ARGUMENTS, f"{address}#/atlas?text={quote(fresh)}"))
            rec = studio.open(text)
            tiles = [
                f"/api/recordings/{rec['id']}/tiles/L{layer}H{head}/0/{column}/0"
                for layer in range(6) for head in range(12) for column in range(1)
            ]  # fmt: skip
            random.Random(0).shuffle(tiles)
            long = studio.job("/api/recordings", {"file": "long.heads"})["result"]
            heads = [f"L0H{head}" for head in range(12)]
            pooled = [f"/api/recordings/{long['id']}/tiles/{head}/5/0/0" for head in heads]
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            page = browser.new_page()
            page.goto(address)
            full, whole, again = (page.evaluate(TIME_TILES, paths) for paths in (tiles, pooled, pooled))
            browser.close()
        finally:
            server.terminate()
            server.wait(20)
        report = folder / "report.html"
        write_report(report, lm, text)
        seconds = [view["seconds"] for view in views]
        print(
            json.dumps(
                {
                    "tokens": rec["num_tokens"],
                    "first_view_seconds": spread(seconds),
                    "first_view_bytes": int(max(view["bytes"] for view in views)),
                    "javascript_gzip_bytes": len(script),
                    "full_tile_seconds": {
                        **spread(full),
                        "p95": sorted(full)[int(0.95 * len(full))],
                        "tiles": len(full),
                    },
                    "pooled_tile_seconds_8192": spread(whole),
                    "pooled_tile_again_seconds": spread(again),
                    "file_bytes": report.stat().st_size,
                    "bertviz": None if asked.without_bertviz else bertviz(folder, folder / "text.txt"),
                }
            )
        )


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


if __name__ == "__main__":
    main()
