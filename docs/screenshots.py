"""docs/images/studio: every room as it looks, and a scene as it plays, from the real page: `make screenshots`.

python docs/screenshots.py --scene       the scene alone: half a minute
python docs/screenshots.py /tmp/rooms    for eyes alone: every room, light and dark, at 1280 x 720 and 1920 x 1080
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.serving import serving
from tests.studio.chromium import ARGUMENTS, MISSING, find_chromium

IMAGES = Path(__file__).with_name("images") / "studio"
TEXT = "The cat sat on the mat because it was tired, and the dog that saw the cat sat down beside it."
OTHER = "L1H1"
SENTENCE = f"model=minilm&text={quote(TEXT)}"
WRITER = f"model=smollm2&text={quote('When Mary and John went to the store, John gave a drink to')}"
ANIMAL = "The animal didn't cross the street because it was too tired."
PLAYED = f"head/L3H1?model=minilm&text={quote(ANIMAL)}&pin=10&play=word&t=0.5"
# Names of the film, and the window that it is made in: letters are then as large as those of the page around it.
SCENES = {"play": (960, 640), "play-phone": (390, 844)}
# The page's own exports of the scene that stands on its stage: the film in base 64, and the stills.
FILM = """async () => {
  const { scene, stage } = document.querySelector("[data-testid=play-stage]").player;
  const gif = await manyheadsPlay.gifOf(scene, stage);
  let text = "";
  for (let i = 0; i < gif.length; i += 32768) text += String.fromCharCode(...gif.subarray(i, i + 32768));
  return [btoa(text), manyheadsPlay.stillsSvg(scene, stage)];
}"""
SIZES = ((1280, 720), (1920, 1080))
PATIENCE = 600_000  # ms: a circuit of 270 heads takes minutes


def rooms(page: Any, address: str, save: Any) -> None:
    """Walk through every room, and hand each picture on under its name."""
    page.goto(f"{address}#/atlas?{WRITER}")
    page.get_by_test_id("role-previous").wait_for(timeout=PATIENCE)
    page.locator("[data-head=L29H8]").wait_for()
    page.wait_for_timeout(1200)
    save("atlas")
    page.goto(f"{address}#/head/L2H9?{SENTENCE}&pin=8")
    page.get_by_test_id("pinned-row").wait_for()
    page.wait_for_timeout(1200)
    save("head")
    page.goto(f"{address}#/head/L2H9?{SENTENCE}&show=layer")
    page.get_by_test_id("play-stage").wait_for()
    page.wait_for_timeout(500)
    save("layer")
    page.goto(f"{address}#/head/L2H9?{SENTENCE}&show=lines")
    page.wait_for_timeout(1200)
    save("lines")
    page.goto(f"{address}#/compare/L2H9?{SENTENCE}&other={OTHER}")
    page.get_by_test_id("compare-map-d").wait_for()
    page.wait_for_timeout(1500)
    box = page.get_by_test_id("compare-map-a").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.45)
    page.wait_for_timeout(500)
    save("compare")
    page.goto(f"{address}#/experiment?{SENTENCE}")
    page.get_by_test_id("scene-same").click()
    page.get_by_test_id("alike-share").wait_for(timeout=PATIENCE)
    page.get_by_test_id("play-stage").evaluate("canvas => { canvas.player.seek(canvas.player.scene.end); }")
    page.wait_for_timeout(1200)
    save("experiment")
    page.goto(f"{address}#/size")
    page.get_by_test_id("size-conclusion").wait_for()
    page.wait_for_timeout(1000)
    save("size")
    page.goto(f"{address}#/learn?lesson=whole-layer")
    page.get_by_test_id("lesson-cell-result").first.wait_for()
    page.get_by_role("button", name="weights, head 1").click()
    page.locator("section.cell").first.evaluate("cell => cell.scrollIntoView()")
    page.locator(".pane").evaluate("pane => pane.scrollBy(0, -60)")  # what lies under the lesson's title
    page.wait_for_timeout(500)
    save("learn")
    page.goto(f"{address}#/training")
    page.get_by_test_id("training-table").wait_for()
    page.wait_for_timeout(500)
    save("training")
    page.goto(f"{address}#/circuit?{WRITER}")
    page.get_by_test_id("circuit-writing").wait_for(timeout=PATIENCE)
    page.get_by_test_id("circuit-listen").click()
    page.get_by_test_id("circuit-smallest").click()
    page.get_by_test_id("circuit-kept").wait_for(timeout=PATIENCE)
    page.get_by_test_id("circuit-listening").wait_for(timeout=PATIENCE)
    page.wait_for_timeout(500)
    save("circuit")


def scene(browser: Any, address: str, target: Path) -> None:
    """One word looks, in paper and in ink: NAME.gif as it plays, play.svg its stills side by side."""
    for scheme, tail in (("light", ""), ("dark", "-dark")):
        for name, (width, height) in SCENES.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.set_default_timeout(PATIENCE)
            page.goto(f"{address}#/{PLAYED}")
            page.wait_for_function("() => document.querySelector('[data-testid=play-stage]')?.player?.stage.width > 0")
            page.wait_for_timeout(500)
            film, stills = page.evaluate(FILM)
            (target / f"{name}{tail}.gif").write_bytes(base64.b64decode(film))
            if name == "play":
                (target / f"play{tail}.svg").write_text(stills, encoding="utf-8")
            page.close()


def trained(folder: Path) -> str:
    """The path of the heads of a small Llama that learns to repeat, at a rate at which its logits grow too large."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import manyheads as mh

    path = folder / "heads.parquet"
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 64}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    statistics = ["max_logit", "entropy", "first_mass", "output_share"]
    with mh.watch(model, every=2, statistics=statistics, out=path) as seen:
        for _ in range(160):
            tokens = torch.randint(0, 97, (4, 16)).repeat(1, 2)
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.step()
    return str(path)


def report(browser: Any, folder: Path, path: Path) -> None:
    """The single file, from the disk with the network off."""
    target = folder / "report.html"
    subprocess.run(
        [sys.executable, "-m", "manyheads", "look", TEXT, "--model", "minilm", "--html", str(target)],
        check=True,
        capture_output=True,
    )
    context = browser.new_context(viewport={"width": 1280, "height": 720}, offline=True)
    page = context.new_page()
    page.goto(target.as_uri())
    page.locator("[data-head=L5H11]").wait_for()
    page.wait_for_timeout(1200)
    page.screenshot(path=path)
    context.close()


def main(folder: Path | None, scene_alone: bool = False) -> None:
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if chromium is None:
        raise SystemExit(MISSING)
    looks = [(size, scheme) for size in SIZES for scheme in ("light", "dark")] if folder else [(SIZES[0], "light")]
    target = folder or IMAGES
    target.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as place,
        sync_playwright() as playwright,
        serving(trained(Path(place)), "--folder", place, said=Path(place) / "said.txt") as (_, address),
    ):
        address = address.partition("#")[0]
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        scene(browser, address, target)
        for (width, height), scheme in looks if not scene_alone else ():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.set_default_timeout(30_000)
            tail = f"-{scheme}-{width}" if folder else ""
            rooms(page, address, lambda name, page=page, tail=tail: page.screenshot(path=target / f"{name}{tail}.png"))
            page.close()
        if not folder and not scene_alone:
            page = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="dark")
            page.goto(f"{address}#/atlas?{WRITER}")
            page.get_by_test_id("role-previous").wait_for(timeout=PATIENCE)
            page.wait_for_timeout(1200)
            page.screenshot(path=target / "atlas-dark.png")
        if not scene_alone:
            report(browser, Path(place), target / "report.png")
        browser.close()


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else None
    main(None if chosen in (None, "--scene") else Path(chosen), chosen == "--scene")
