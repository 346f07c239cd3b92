"""The studio's page in a fresh browser: how soon it shows something, how heavy it is, how fast its tiles come.

`python -m benchmarks.studio` starts the real server with the bundled model loaded, opens the page in headless Chromium
with an empty profile, and asks for tiles from within the page, nothing cached. Beside it, BertViz's page of the same
model and text, made by its own package in a process of its own.

`python -m benchmarks.studio --scenes` plays every scene for some seconds instead, and opens each bundled model's own
sentence in a fresh browser: frames a second, script a frame, seconds to the first view, and the load of the machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

import manyheads as mh
from benchmarks.serving import port_of, serving
from manyheads.corpora import page_texts, reading_of
from tests.studio.chromium import ARGUMENTS, MISSING, find_chromium
from tests.studio.serving import Studio

TOKENS, LONG = 512, 8_192
Launch = Callable[[], Any]  # a fresh browser
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
SENTENCES = {name: reading_of(name).sentence for name in ("minilm", "smollm2")}
SCENES = {
    "word": ("minilm", "head/L3H1?pin=10&play=word"),
    "layer": ("minilm", "head/L3H1?pin=10&play=layer&show=layer"),
    "swap": ("minilm", "head/L3H1?pin=10&play=swap&swap=13:wide"),
    "pass": ("minilm", "head/L3H1?pin=10&play=pass"),
    "alike": ("minilm", "experiment"),
    "birth": ("minilm", "learn?lesson=birth"),
    "word of smollm2": ("smollm2", "head/L24H4?pin=14&play=word"),
    "layer of smollm2": ("smollm2", "head/L24H4?pin=14&play=layer&show=layer"),
    "pass of smollm2": ("smollm2", "head/L24H4?pin=14&play=pass"),
}
READY = "() => document.querySelector('[data-testid=play-stage]')?.player?.stage.width > 0"
# Plays from the start for so many seconds: how many frames the browser drew, and the script of 200 frames, in ms.
PLAY = """async (seconds) => {
  const { player } = document.querySelector("[data-testid=play-stage]");
  player.seek(0);
  const button = document.querySelector("[data-testid=play-button]");
  if (button.getAttribute("aria-label") === "Play") button.click();
  await new Promise(requestAnimationFrame);
  const begun = performance.now();
  let frames = 0;
  let now = begun;
  while (now - begun < 1000 * seconds && player.t < player.scene.end) {
    now = await new Promise(requestAnimationFrame);
    frames += 1;
  }
  return { frames_per_second: (1000 * frames) / (now - begun), script: player.cost(200) };
}"""
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
    words = " ".join(page_texts()).split()
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


def first_view(launch: Launch, address: str) -> dict[str, float]:
    """Seconds from asking for the page to seeing all heads' maps drawn, and the bytes that came; a new profile."""
    browser = launch()
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    taken: list[int] = []
    page.on("requestfinished", lambda request: taken.append(request.sizes()["responseBodySize"]))
    begun = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_selector("[data-testid=atlas-grid][data-drawn=true]", timeout=60_000)
    found = {"seconds": time.perf_counter() - begun, "bytes": float(sum(taken))}
    browser.close()
    return found


def bertviz(folder: Path, text: Path) -> dict[str, Any]:
    """BertViz's own page of the same model and text; its package goes into a folder of its own."""
    place = folder / "bertviz"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), BERTVIZ]
    subprocess.run(command, check=True, capture_output=True)
    from manyheads.models.loading.checkpoints import find_bundled

    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(place), str(find_bundled("minilm")), str(text)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else str(done.returncode)}
    return json.loads(done.stdout.splitlines()[-1])


def first_views(launch: Launch, address: str, text: str, rounds: int) -> dict[str, Any]:
    """The first view of the text, each time with a number at its end, so that nobody has read it before."""
    views = [first_view(launch, f"{address}#/atlas?text={quote(f'{text} {at}')}") for at in range(rounds)]
    return {
        "first_view_seconds": spread([view["seconds"] for view in views]),
        "first_view_bytes": int(max(view["bytes"] for view in views)),
    }


def tile_seconds(launch: Launch, address: str, tiles: dict[str, list[str]]) -> dict[str, list[float]]:
    """What each list of tiles takes, one after another, asked for from within the page."""
    browser = launch()
    page = browser.new_page()
    page.goto(address)
    seconds = {name: page.evaluate(TIME_TILES, paths) for name, paths in tiles.items()}
    browser.close()
    return seconds


def tiles_of(studio: Studio, text: str) -> tuple[int, dict[str, list[str]]]:
    """How many tokens the text has; the addresses of full tiles of its maps, and of pooled ones of the long recording,
    which are asked for twice."""
    rec = studio.open(text)
    full = [f"/api/recordings/{rec['id']}/tiles/L{layer}H{head}/0/0/0" for layer in range(6) for head in range(12)]
    random.Random(0).shuffle(full)
    long = studio.job("/api/recordings", {"file": "long.heads"})["result"]
    pooled = [f"/api/recordings/{long['id']}/tiles/L0H{head}/5/0/0" for head in range(12)]
    return rec["num_tokens"], {"full": full, "pooled": pooled, "again": pooled}


def served(folder: Path, text: str, rounds: int) -> dict[str, Any]:
    """All that is asked of the server and its page."""
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if chromium is None:
        raise SystemExit(MISSING)
    (folder / "recordings").mkdir()
    long_recording(folder / "recordings" / "long.heads")
    with (
        serving(str(folder / "recordings"), "--model", "minilm", said=folder / "said.txt") as (_, address),
        sync_playwright() as playwright,
    ):
        launch = partial(playwright.chromium.launch, executable_path=chromium, args=ARGUMENTS)
        studio = Studio(None, port_of(address))  # type: ignore[arg-type]
        studio.open("a first text, so that the model is loaded")
        views = first_views(launch, address, text, rounds)
        tokens, tiles = tiles_of(studio, text)
        seconds = tile_seconds(launch, address, tiles)
    p95 = sorted(seconds["full"])[int(0.95 * len(seconds["full"]))]
    return {
        "tokens": tokens,
        **views,
        "javascript_gzip_bytes": len(gzip.compress((files("manyheads.studio") / "static/studio.js").read_bytes(), 9)),
        "full_tile_seconds": {**spread(seconds["full"]), "p95": p95, "tiles": len(seconds["full"])},
        "pooled_tile_seconds_8192": spread(seconds["pooled"]),
        "pooled_tile_again_seconds": spread(seconds["again"]),
    }


def scenes(folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Every scene as it plays at 1440 x 900, and the first view of each model's own sentence."""
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if chromium is None:
        raise SystemExit(MISSING)
    played: dict[str, Any] = {}
    with serving(said=folder / "said.txt") as (_, address), sync_playwright() as playwright:
        address = address.partition("#")[0]
        launch = partial(playwright.chromium.launch, executable_path=chromium, args=ARGUMENTS)
        studio = Studio(None, port_of(address))  # type: ignore[arg-type]
        for name, sentence in SENTENCES.items():  # models are loaded, and sentences read, before anything is timed
            studio.open(sentence, name)
        views = {
            name: spread([first_view(launch, address + shown)["seconds"] for _ in range(rounds)])
            for name, sentence in SENTENCES.items()
            for shown in [f"#/atlas?model={name}&text={quote(sentence)}"]
        }
        browser = launch()
        for name, (model, place) in SCENES.items():
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(120_000)
            text = f"model={model}&text={quote(SENTENCES[model])}"
            page.goto(f"{address}#/{place}{'&' if '?' in place else '?'}{text}")
            if name == "alike":
                page.get_by_test_id("scene-same").click()
            page.wait_for_function(READY)
            page.get_by_test_id("player").evaluate("player => player.scrollIntoView({ block: 'center' })")
            page.wait_for_timeout(500)
            seen = page.evaluate(PLAY, seconds)
            script = sorted(seen["script"])
            played[name] = {
                "frames_per_second": round(seen["frames_per_second"], 1),
                "script_ms": {"median": statistics.median(script), "p95": script[int(0.95 * len(script))]},
            }
            page.close()
        browser.close()
    return {"load": os.getloadavg()[0], "first_view_seconds": views, "scenes": played}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-bertviz", action="store_true")
    parser.add_argument("--scenes", action="store_true")
    asked = parser.parse_args()
    if asked.scenes:
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(scenes(Path(place), 6.0, asked.rounds)))
        return
    from manyheads.studio import write_report

    lm = mh.load("minilm")
    text = own_text(lm.tokenizer, TOKENS - 2)  # and a number at its end
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "text.txt").write_text(text, encoding="utf-8")
        found = served(folder, text, asked.rounds)
        write_report(folder / "report.html", lm, text)
        found["file_bytes"] = (folder / "report.html").stat().st_size
        found["bertviz"] = None if asked.without_bertviz else bertviz(folder, folder / "text.txt")
    print(json.dumps(found))


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


if __name__ == "__main__":
    main()
