"""`python -m tools.site [FOLDER]`: the site that is the product, for any static web server or opened from the disk.

`make site` writes build/site: a front page, the live atlas of bundled models with the lessons in it, the cards of all
heads, the documentation, and on top of each page one slim bar. Every address is relative. Nothing is loaded from
elsewhere.

A browser fetches nothing beside a page that it opened from the disk, and the live pages fetch their recordings. So each
recording is also a single file, and from the disk `bar.js` sends every link into the live pages there.

Cost: half an hour for the cards of three models, remembered afterwards, or `--cards` takes those that are there; a
minute for the documentation, seconds for the rest.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

import manyheads as mh
from manyheads import __version__
from manyheads.corpora import reading_of
from manyheads.errors import FileAccessError
from manyheads.heads import Head
from manyheads.lab.lessons import lessons
from manyheads.models import LoadedModel
from manyheads.recording import Recording
from manyheads.roles import PageLabels, label_page
from manyheads.roles.words import CAVEAT, NO_ROLE, ROLES, UNLABELLED, RoleStyle, group_of, role_style
from manyheads.studio import publish, write_report

ROOT = Path(__file__).parents[1]
FRONT = Path(__file__).parent / "front"
CARDS, ATLAS_MARK = "manyheads-cards.json", "atlas/manyheads-site.json"
CARDED = ("smollm2", "minilm", "tiny-code")
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'"
MAP_PIXELS, GAP = 42, 2  # of one head's map in the picture of all, at most; between two
PALER = 0.4  # of white in a role's colour on a dark page
SHADES = 10  # of a word, by its weight
SKIPPED_TO = '<header class="md-header'
NAMED = (
    (r'role="dialog">', 'role="dialog" aria-label="Search">'),
    (r'<nav class="md-path" aria-label="Navigation"', '<nav class="md-path" aria-label="Path"'),
    (
        r'(<nav class="md-nav" data-md-level="\d+") aria-labelledby="[^"]*"'
        r'([^>]*>\s*<label class="md-nav__title"[^>]*>\s*<span class="md-nav__icon md-icon"></span>\s*)'
        r"([^<]+?)(\s*</label>)",
        r'\1 aria-label="\3"\2\3\4',
    ),
)
"""Names for those who hear a page, which the documentation's theme leaves out."""
BAR = """<nav class="site-bar" aria-label="The site" data-first="{first}">
<a href="{root}index.html">manyheads</a>
{links}
</nav>
"""


class Look(NamedTuple):
    """A sentence that a model reads, and what the front page shows of it: a head at the token that asks."""

    model: str
    text: str
    head: str = ""
    query: int = 0


LOOKS = (
    Look("smollm2", reading_of("smollm2").sentence, "L23H0", 13),
    Look("smollm2", "Mr and Mrs Dursley, of number four, Privet Drive. Mr and Mrs D", "L17H5", 18),
    Look("minilm", "The animal didn't cross the street because it was too tired.", "L3H1", 10),
    Look("smollm2", "Ada came in, sat down, and said: no, not today."),
    Look("minilm", "The cat sat because the cat was tired, and the dog let the cat sleep."),
)
"""What the atlas holds. The first is the picture of all heads; those that name a head stand on the front page."""


def main(typed: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="Write the site that is the product.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build/site")
    parser.add_argument("--cards", type=Path, help="a folder of `manyheads publish --cards`, instead of computing it")
    parser.add_argument("--docs", type=Path, help="a folder of `make docs`, instead of building it")
    options = parser.parse_args(typed)
    models = {name: mh.load(name) for name in dict.fromkeys(look.model for look in LOOKS)}
    labels = {name: label_page(lm) for name, lm in models.items()}
    try:
        print(f"Wrote {options.folder}: {build(options.folder, LOOKS, models, labels, options.cards, options.docs)}")
    except FileAccessError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"Look at it:  python -m http.server -d {options.folder}")


def build(
    folder: Path,
    looks: Sequence[Look],
    models: Mapping[str, LoadedModel],
    labels: Mapping[str, PageLabels],
    cards: Path | None = None,
    docs: Path | None = None,
) -> str:
    """Write the site, whole or not at all. Returns in words what it holds.

    - `folder`: new, empty, or an earlier site.
    - `looks`: what the atlas holds.
    - `models`: by name, those that read them.
    - `labels`: their roles, by the model's name.
    - `cards`: a folder of cards, which is copied; None: computed.
    - `docs`: the built documentation, which is copied; None: built.

    Errors: FileAccessError for a folder that is something else, or has no cards or pages.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / ATLAS_MARK).is_file():
        raise FileAccessError(f"{folder} holds something else than an earlier site: name a new or an empty folder.")
    for source, mark in ((cards, CARDS), (docs, "index.html")):
        if source is not None and not (source / mark).is_file():
            raise FileAccessError(f"{source} holds no {mark}: name a folder that was written whole.")
    place = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    recordings = [mh.record(models[look.model], look.text, keep=("q", "k", "v", "lse")) for look in looks]
    publish(
        place / "atlas",
        recordings,
        lm=list(models.values()),
        labels=labels,
        exact=True,
        title="Sentences, head by head",
    )
    site = json.loads((place / ATLAS_MARK).read_text(encoding="utf-8"))
    names = [str(entry["name"]) for entry in site["workspace"]["files"]]
    for name, look, recording in zip(names, looks, recordings, strict=True):
        page = place / "disk" / f"{name}.html"
        page.parent.mkdir(exist_ok=True)
        lm = models[look.model]
        write_report(page, lm, look.text, labels=labels.get(look.model), exact=True, recording=recording)
    if cards is None:
        named = [part for name in CARDED for part in ("--cards", name)]
        _run("manyheads", "publish", *named, str(place / "cards"))
    else:
        shutil.copytree(cards, place / "cards")
    if docs is None:
        _run("docs.website", str(place / "docs"))
    else:
        shutil.copytree(docs, place / "docs")
    _write_front(place, looks, names, recordings, labels)
    for page in sorted(place.rglob("*.html")):
        path = page.relative_to(place)
        if path.parts[:2] != ("docs", "live"):  # frames of a page that has the bar
            page.write_text(with_bar(page.read_text(encoding="utf-8"), path, names[0]), encoding="utf-8")
    for name in ("bar.css", "bar.js"):
        shutil.copy(FRONT / name, place / name)
    shutil.copy(place / "atlas/favicon.svg", place / "favicon.svg")
    (place / ".nojekyll").touch()  # GitHub Pages would leave out what begins with "_"
    shutil.rmtree(folder, ignore_errors=True)
    place.rename(folder)
    sizes = {part: _megabytes(folder / part) for part in ("atlas", "cards", "docs", "disk")}
    parts = ", ".join(f"{part} {size:.1f} MB" for part, size in sizes.items())
    return f"{_megabytes(folder):.1f} MB ({parts})"


def with_bar(page: str, path: Path, first: str) -> str:
    """A page with the bar on top. `path` is its place in the site; `first` the recording that "Atlas" opens.

    A single file holds the bar's style and script: its policy lets nothing be loaded.
    """
    root, part = "../" * (len(path.parts) - 1), path.parts[0]
    live = f"{root}atlas/studio.html#"
    links = {
        "Atlas": f"{live}/atlas?file={first}", "Cards": f"{root}cards/index.html", "Learn": f"{live}/learn",
        "Docs": f"{root}docs/index.html",
    }  # fmt: skip
    here = {"atlas": "Atlas", "disk": "Atlas", "cards": "Cards", "docs": "Docs"}.get(part)
    bar = BAR.format(
        first=escape(first),
        root=root,
        links="\n".join(
            f'<a href="{escape(address)}"{" aria-current=true" * (name == here)}>{name}</a>'
            for name, address in links.items()
        ),
    )
    if part == "disk":
        style, script = ((FRONT / name).read_text(encoding="utf-8") for name in ("bar.css", "bar.js"))
        # As a module it waits until the whole page is there, as the other pages' script does.
        head, bar = f"<style>\n{style}</style>", f'{bar}<script type="module">\n{script}</script>\n'
    else:
        head = f'<link rel="stylesheet" href="{root}bar.css">\n<script defer src="{root}bar.js"></script>'
    if part == "docs":
        for pattern, named in NAMED:
            page = re.sub(pattern, named, page)
    page = page.replace("</head>", f"{head}\n</head>", 1)
    if SKIPPED_TO in page:  # what skips to the text stays the page's first link
        return page.replace(SKIPPED_TO, f"{bar}{SKIPPED_TO}", 1)
    return re.sub(r"<body\b[^>]*>\n?", lambda body: f"{body[0].rstrip()}\n{bar}", page, count=1)


def _write_front(
    place: Path,
    looks: Sequence[Look],
    names: Sequence[str],
    recordings: Sequence[Recording],
    labels: Mapping[str, PageLabels],
) -> None:
    """The front page, and its picture of all heads, light and dark. Each argument as in `build`."""
    model, roles = looks[0].model, labels[looks[0].model].roles
    width = height = 0
    for name, dark in (("heads.png", False), ("heads-dark.png", True)):
        width, height = _write_board(place / name, recordings[0], labels[model], dark)
    counts = Counter(group_of(role.name) for role in roles)
    cells: list[dict[str, str]] = []
    for layer in recordings[0].layers:
        for head in layer.site.heads:
            role = labels[model].role_of(head)
            address = f"cards/heads/{model}-{head}.html".lower()
            if (place / address).is_file():
                cells.append({"address": address, "words": f"{head}, {role.name if role else ''}".rstrip(", ")})
    cards = json.loads((place / "cards" / CARDS).read_text(encoding="utf-8"))
    environment = Environment(
        loader=FileSystemLoader(FRONT), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    styles = [
        {"group": style.group, "inks": [" ".join(map(str, _ink_of(style, dark))) for dark in (False, True)]}
        for style in (*ROLES, NO_ROLE) if style.words
    ]  # fmt: skip
    num_rows = max(layer.site.num_heads for layer in recordings[0].layers)
    sheet = environment.get_template("front.css").render(styles=styles, num_rows=num_rows, num_shades=SHADES)
    (place / "front.css").write_text(sheet, encoding="utf-8")
    page = environment.get_template("index.html").render(
        policy=POLICY, version=__version__, caveat=CAVEAT, model=model, text=looks[0].text, first=names[0],
        num_heads=len(roles), num_layers=len(recordings[0].layers), num_labelled=len(roles) - counts[UNLABELLED],
        legend=counts.most_common(), cells=cells if len(cells) == len(roles) else [], width=width, height=height,
        looks=[
            _look_of(look, name, recording)
            for look, name, recording in zip(looks, names, recordings, strict=True) if look.head
        ],
        read_by=list(dict.fromkeys(look.model for look in looks)), num_recordings=len(recordings), cards=cards,
        num_lessons=len(lessons()),
        num_pages=sum(1 for path in (place / "docs").rglob("*.html") if "live" not in path.parts),
    )  # fmt: skip
    (place / "index.html").write_text(page, encoding="utf-8")


def _look_of(look: Look, name: str, recording: Recording) -> dict[str, object]:
    """A sentence as the template takes it: its words, each with a shade for what the asking word reads of it."""
    head = Head.parse(look.head)
    units, _, weights = recording.layers[head.layer].word_weights(head.index, drop="special")
    row = next(place for place, unit in enumerate(units) if look.query in unit.tokens)
    best = int(weights[row].argmax())
    text, words, end = recording.tokens.texts[0], [], 0
    for unit, weight in zip(units, weights[row].tolist(), strict=True):
        begin = max(end, unit.span[0])
        words.append({
            "before": text[end:begin], "text": text[begin : unit.span[1]], "asks": unit is units[row],
            "shade": round((SHADES - 1) * weight**0.5),
        })  # fmt: skip
        end = max(end, unit.span[1])
    return {
        "address": f"atlas/studio.html#/head/{look.head}?file={name}&pin={look.query}&play=word",
        "words": words, "rest": text[end:], "asks": units[row].text, "read": units[best].text,
        "share": f"{float(weights[row, best]):.0%}", "head": look.head, "model": look.model,
    }  # fmt: skip


def _write_board(path: Path, recording: Recording, labels: PageLabels, dark: bool) -> tuple[int, int]:
    """A picture of every head's map in its role's colour, a column a layer. Returns its width and height."""
    layers = recording.layers
    num_rows = max(layer.site.num_heads for layer in layers)
    size = recording.tokens.longest
    pixels = max(1, MAP_PIXELS // size)
    side = size * pixels + GAP
    board = np.zeros((num_rows * side - GAP, len(layers) * side - GAP, 4), np.uint8)
    for column, layer in enumerate(layers):
        weights = layer.weights().float().nan_to_num().clamp(0, 1).sqrt().cpu().numpy()
        for head, cells in zip(layer.site.heads, weights, strict=True):
            role = labels.role_of(head)
            ink = _ink_of(role_style(role.name if role else ""), dark)
            top, left = head.index * side, column * side
            square = board[top : top + size * pixels, left : left + size * pixels]
            square[..., :3] = ink
            # A faint ground shows where a map ends.
            square[..., 3] = np.rint(28 + 227 * cells).astype(np.uint8).repeat(pixels, 0).repeat(pixels, 1)
    out = io.BytesIO()
    Image.fromarray(board).save(out, "png", optimize=True)
    path.write_bytes(out.getvalue())
    return board.shape[1], board.shape[0]


def _ink_of(style: RoleStyle, dark: bool) -> list[int]:
    """A role's colour as red, green and blue. On a dark page it is paler, and what has no role stays behind."""
    parts = [int(style.colour[i : i + 2], 16) for i in (1, 3, 5)]
    white = 0 if style is NO_ROLE else 255 * PALER
    return [round(part * (1 - PALER) + white) for part in parts] if dark else parts


def _run(module: str, *words: str) -> None:
    """Run a module's command in the checkout, as it would be typed. Raises SystemExit where it fails."""
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(words)} failed: nothing was written.")


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    main()
