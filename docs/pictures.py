"""The pictures of the docs, from real runs, and docs/gallery.md, which shows each with what made it.

    python docs/pictures.py                    every picture that takes minutes at most, and the page
    python docs/pictures.py training/gqa.svg   those named: what is trained takes up to an hour
    python docs/pictures.py --page             the page alone

Pictures of the studio come from docs/screenshots.py, that of the house from docs/house.py.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "gallery.md"
CARDS = ROOT / "docs" / "heads.json"  # docs/heads.py measures them
WIDTH = 100
CODE = "def area(width, height): return width * height; area(width, height) + area(width, height)"
SENTENCE = "The cat sat because the cat was tired, and the dog let the cat sleep."
FAMILIES = """\
import manyheads as mh
from manyheads.corpora import page_texts
from manyheads.figures import save_families

save_families(mh.head_families(mh.load("minilm"), page_texts()), "families-minilm.svg")"""


def quoted(text: str) -> str:
    """A text as a command takes it, and a blank; "" for none."""
    return text and f'"{text}" '


@dataclass(frozen=True)
class Picture:
    """One picture. `way`: what the command writes ("file"), what it prints ("terminal"), what it writes as a page
    ("page"), code to run ("code"), what a training writes ("training"); "": another script of ours makes it."""

    file: str
    title: str
    words: str
    command: str
    way: str = "file"


GALLERY: dict[str, tuple[Picture, ...]] = {
    "What heads do": (
        Picture("look.svg", "Every head and its label", "Each with its evidence.", "manyheads look", "terminal"),
        Picture("grid.png", "Every head on one sheet", "A frame's colour is what the head does.",
                "manyheads look --model minilm --plot grid.png"),
        Picture("grid-tiny-code.png", "The same of a decoder", "Eight query heads on two key/value heads a layer: a "
                "bracket joins those that share.", "manyheads look --model tiny-code --plot grid-tiny-code.png"),
        Picture("head.svg", "One head, in words", "Where each word looks, and how sure that is.",
                f'manyheads head L2H9 "{SENTENCE}" --model minilm', "terminal"),
        Picture("head-map.svg", "One head, its map", "Cats look at cats: the weights, exactly.",
                f'manyheads head L2H9 "{SENTENCE}" --model minilm --plot head-map.svg'),
        Picture("induction.svg", "An induction head", "Each token looks at what followed its earlier copy: the dark "
                "steps below the diagonal.", f'manyheads head L3H5 "{CODE}" --model tiny-code --plot induction.svg'),
        Picture("roles-minilm.svg", "Every question's best head", "Dots are scores, ticks what chance and fixed "
                "guesses get; open dots did not hold.", "manyheads roles --model minilm --plot roles-minilm.svg"),
        Picture("roles-report.png", "The report", "One page: every question, its evidence, examples.",
                "manyheads roles --model minilm --report roles.html", "page"),
        Picture("families-minilm.svg", "Which heads look alike", "Near: they look at the same words. How: "
                "[families](reference/families.md).", FAMILIES, "code"),
    ),
    "Twelve heads of smollm2": tuple(
        Picture(
            f"smollm2/{row['head']}.svg",
            f"{row['head']}: {row['title']}",
            f"{row['claim'][0].upper()}{row['claim'][1:]}. Without it: {row['effect']} (`{row['command']}`).",
            f"manyheads head {row['head']} {quoted(row['text'])}--plot {row['head']}.svg",
        )
        for row in json.loads(CARDS.read_text(encoding="utf-8"))
        if row["model"] == "smollm2"
    ),
    "What they are worth": (
        Picture("how-far-minilm.svg", "How far it goes", "What is lost as heads go, by importance and at random.",
                "manyheads importance --model minilm --curve how-far-minilm.svg"),
    ),
    "Circuits": (
        Picture("circuit-smollm2.svg", "Who is given something", "The five heads that keep the answer, and what "
                "they tell each other ([the study](howto/patch-heads.md)).",
                "manyheads circuit --plot circuit-smollm2.svg"),
        Picture("subject.svg", "A head that looks for the subject", "At the verb, past the words between ([the "
                "story](stories/what-one-head-knows-about-grammar.md)).",
                'manyheads head L16H5 "The farmer in the valley near the river sells cheese." --plot subject.svg'),
        Picture("circuit-tiny-code.svg", "Which heads answer together", "Lines are paths: by what a head hears "
                "an earlier one ([the study](../examples/which_variable_comes_next.ipynb)).",
                "manyheads circuit --model tiny-code --plot circuit-tiny-code.svg"),
    ),
    "What it costs": (
        Picture("size-llama-2-70b.svg", "Parameters, FLOPs, KV cache", "As it is, with keys and values for every head, "
                "and with one for all.", "manyheads size llama-2-70b --plot size-llama-2-70b.svg"),
    ),
    "Small models, trained here": (
        Picture("training/induction.svg", "A circuit forms", "The loss falls off a step.",
                "manyheads train induction --out FOLDER", "training"),
        Picture("training/heads.svg", "How many heads", "Equally many parameters, more and narrower heads.",
                "manyheads train heads --out FOLDER", "training"),
        Picture("training/collapse.svg", "All heads forced to one map", "And heads left unmixed.",
                "manyheads train collapse --out FOLDER", "training"),
        Picture("training/gqa.svg", "Fewer key/value heads", "Losses, caches, decode times.",
                "manyheads train gqa --out FOLDER", "training"),
        Picture("training/rul.svg", "How long an engine lasts", "On SIMULATED engines.",
                "manyheads train rul --out FOLDER", "training"),
        Picture("training/supervised.svg", "A head pulled to a pattern", "Beside a free one and a designed one.",
                "manyheads train supervised --out FOLDER", "training"),
        Picture("training/entropy-collapse.svg", "Attention that freezes", "A rate at which entropy falls to "
                "nothing, and three cures.", "manyheads train entropy-collapse --out FOLDER", "training"),
        Picture("training/qk-clip.svg", "Largest logits, capped", "Muon at a high rate, without and with QK-clip.",
                "manyheads train qk-clip --out FOLDER", "training"),
        Picture("training/passkey.svg", "Which heads need the whole context", "A task of which the answer is known.",
                "manyheads train passkey --out FOLDER", "training"),
        Picture("training/tiny-code.svg", "tiny-code grows", "Losses, and the heads that grew.",
                "manyheads train code --out FOLDER", "training"),
        Picture("healthy-heads.svg", "Every head while a model learns", "Entropy and max logit, by "
                "[a watch](howto/watch-training.md) of a small Llama.", "python docs/healthy_heads.py", ""),
    ),
    "Published results, made again": tuple(
        Picture(f"reproduce/{path.stem}.svg", result["title"][0].upper() + result["title"][1:],
                f"{result['paper'].split(',')[0]}: [theirs and ours](reference/published-numbers.md).",
                f"{result['command']} --out FOLDER", "training")
        for path in sorted((ROOT / "docs" / "reproduced").glob("*.json"))
        for result in [json.loads(path.read_text(encoding="utf-8"))]
    ),
    "The studio": tuple(
        Picture(f"studio/{name}", title, words, "make screenshots", "")
        for name, title, words in (
            ("play.gif", "A scene", "One word looks: ask, match, share, fetch, mix, send on, add."),
            ("play-dark.gif", "A scene, dark", "The same at night."),
            ("play-phone.gif", "A scene on a phone", "The same, turned by a quarter."),
            ("play-phone-dark.gif", "A scene on a phone, dark", "The same at night."),
            ("play.svg", "A scene on paper", "The same at eight moments; also where motion is reduced."),
            ("play-dark.svg", "A scene on paper, dark", "The same at night."),
            ("atlas.png", "Atlas", "Every head at once."),
            ("atlas-dark.png", "Atlas, dark", "The same at night."),
            ("head.png", "Head", "One head, down to single weights."),
            ("lines.png", "Lines", "A short text as two columns."),
            ("layer.png", "Layer", "The layer that a head is in, with its shapes."),
            ("compare.png", "Compare", "Two heads, and their difference."),
            ("experiment.png", "Experiment", "All heads the same: what is left."),
            ("size.png", "Size", "Parameters and cache, with sliders."),
            ("learn.png", "Learn", "A lesson whose cells run."),
            ("training.png", "Training", "Heads of a model that trains, and what is wrong with them."),
            ("circuit.png", "Circuit", "Which heads carry an answer from one text to another."),
            ("report.png", "The single file", "The page from the disk, with the network off."),
        )
    ),
    "The house": (
        Picture("house.svg", "Who imports whom", "Every import goes down: [the house](house.md).",
                "python docs/house.py", ""),
    ),
}  # fmt: skip


ELSEWHERE = {
    "Small models, trained here": (
        "Losses and heads of every preset of `manyheads train`: [training](reference/training.md),\n"
        "[tiny-code](reference/tiny-code.md), [remaining useful life](reference/rul.md),\n"
        "[a watched training](howto/watch-training.md#what-healthy-heads-look-like)."
    ),
    "Published results, made again": (
        "One picture for each result, the paper's numbers beside ours:\n"
        "[published numbers](reference/published-numbers.md)."
    ),
}
"""Groups whose pictures stand on pages of their own: the gallery links to these."""


def gallery_markdown() -> str:
    """The page."""
    parts = [
        "<!-- made by `python docs/pictures.py --page`, held to it by a test -->\n# Gallery\n",
        "Pictures of these pages with the commands that made them. All are real runs; none was touched up. "
        "`python docs/pictures.py` makes\nthem again, but for what takes up to an hour to train.\n",
    ]
    for group, pictures in GALLERY.items():
        parts.append(f"## {group}\n")
        if group in ELSEWHERE:
            parts.append(f"{ELSEWHERE[group]}\n")
            continue
        for each in pictures:
            fence = (
                f"<!-- not run: docs/pictures.py runs it -->\n```python\n{each.command}\n```"
                if "\n" in each.command
                else f"`{each.command}`"
            )
            parts.append(f"### {each.title}\n\n{each.words}\n\n![](images/{each.file})\n\n{fence}\n")
    return "\n".join(parts)


def make(picture: Picture) -> None:
    """Run a picture's command in an empty folder, and keep what came out."""
    target = IMAGES / picture.file
    with tempfile.TemporaryDirectory() as place:
        if picture.way == "terminal":
            target.write_text(_terminal(picture.command), encoding="utf-8")
            return
        if picture.way == "code":
            _run([sys.executable, "-c", picture.command], place)
        else:
            _run([sys.executable, "-m", *shlex.split(picture.command)], place)
        if picture.way == "page":
            _shot(next(Path(place).glob("*.html")), target)
        else:
            made = {"training": "FOLDER/figure.svg"}.get(picture.way, target.name)
            shutil.copy(Path(place) / made, target)


def _run(command: list[str], place: str) -> None:
    subprocess.run(command, cwd=place, env={**os.environ, "MPLBACKEND": "Agg"}, check=True, stdout=subprocess.DEVNULL)


def _terminal(command: str) -> str:
    """What a command prints in colour, as an SVG without font or script from elsewhere."""
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

    paper = TerminalTheme(
        (250, 249, 246), (40, 40, 44),
        [(40, 40, 44), (178, 66, 20), (0, 110, 80), (150, 104, 0), (0, 90, 150), (140, 70, 120), (0, 120, 150),
         (120, 120, 120)],
    )  # fmt: skip
    env = {**os.environ, "FORCE_COLOR": "1", "COLORTERM": "truecolor", "COLUMNS": str(WIDTH)}
    line = [sys.executable, "-m", *shlex.split(command)]
    subprocess.run(line, capture_output=True, check=True)  # once before: the page that labels rest on is remembered
    shown = subprocess.run(line, env=env, capture_output=True, text=True, check=True).stdout
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(shown.rstrip()), soft_wrap=True)
    svg = console.export_svg(title="manyheads", theme=paper)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace(
        "Fira Code, monospace", "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    )
    return re.sub(r"terminal-\d+", "terminal", svg)


def _shot(page: Path, target: Path) -> None:
    """The top of a page that was written, in the system's Chromium with the network off."""
    sys.path.insert(0, str(ROOT))
    from playwright.sync_api import sync_playwright

    from tests.studio.chromium import ARGUMENTS, MISSING, find_chromium

    chromium = find_chromium()
    if chromium is None:
        raise SystemExit(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
        opened = context.new_page()
        opened.goto(page.as_uri())
        opened.wait_for_timeout(800)
        opened.screenshot(path=target)
        browser.close()


def main(asked: list[str]) -> None:
    """Make what was asked for; without names all that takes minutes at most."""
    every = [each for pictures in GALLERY.values() for each in pictures]
    unknown = {each for each in asked if each != "--page"} - {each.file for each in every}
    if unknown:
        raise SystemExit(
            f"no picture {', '.join(sorted(unknown))}: there are {', '.join(each.file for each in every)}."
        )
    for each in every:
        if each.way and (each.file in asked or (not asked and each.way != "training")):
            print(each.file, flush=True)
            make(each)
    PAGE.write_text(gallery_markdown(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
