"""The documentation's site: `python -m docs.website [FOLDER]` (site/) makes it, `--pages` what it is made of alone.

Everything that is ours happens before a generator sees it: build/docs holds plain Markdown, which Zensical builds as
mkdocs.yml says; any other generator of that format would do (docs/decisions/021-zensical.md). A warning ends it.

In a checkout a link such as ../src/manyheads/plan.py opens the file. The site has no such files: there CONTRIBUTING.md,
CHANGELOG.md, DIARY.md and SECURITY.md are pages of their own, the README is the first page, and any other file is named
by its path, as code. Beside each page stands its Markdown, which docs/llms.txt names.

The first page shows single heads: docs/heads.json has them, their recordings are published as a site in live/, and each
head's card opens its map there. From the disk, where browsers fetch nothing, one file serves: live/animal.html.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from html import escape
from pathlib import Path

import manyheads as mh
from manyheads.corpora import reading_of
from manyheads.heads import Head
from manyheads.roles import label_page
from manyheads.studio import publish, write_report

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STAGED, BUILT = ROOT / "build/docs", ROOT / "build/docs-site"  # as mkdocs.yml has them
LEFT_OUT = ("*.py", "__pycache__", "*.heads", "000-template.md")
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "DIARY.md": "diary.md",
    "SECURITY.md": "security.md",
}
LIVE = "live/animal.html"
CARDS_HERE = "<!-- a card for each head of docs/heads.json -->"
CARD = """<a class="head" href="live/studio.html#/head/{head}?file={recording}&amp;pin={pin}" target="live">
<img src="live/maps/{number}.png" alt="the map of {head}" loading="lazy">
<span class="title">{title}</span>
<span>{head} of {model}: {claim}.</span>
<span>Without it: {effect}.</span>
<code>{command}</code>
</a>"""
ANIMAL = "The animal didn't cross the street because it was too tired."
NEEDLE = "The best thing to do in Lisbon is to eat a tart."
TEXT_OF = {
    "smollm2-gift": ("smollm2", reading_of("smollm2").sentence),
    "smollm2-names": ("smollm2", "Mr and Mrs Dursley, of number four, Privet Drive. Mr and Mrs D"),
    "smollm2-marks": ("smollm2", "Ada came in, sat down, and said: no, not today."),
    "smollm2-needle": (
        "smollm2",
        f"{NEEDLE} What is the best thing to do in Lisbon? {NEEDLE.removesuffix(' tart.')}",
    ),
    "minilm-animal": ("minilm", ANIMAL),
    "minilm-cats": ("minilm", "The cat sat because the cat was tired, and the dog let the cat sleep."),
    "tiny-code-area": (
        "tiny-code",
        "def area(width, height): return width * height; area(width, height) + area(width, height)",
    ),
}
"""What bundled models read on the first page: a recording's name, the model, the text."""
CARDS, RECORDINGS = DOCS / "heads.json", DOCS / "live"
WIDE = {"lab.md", "models.md"}  # tables that want the room beside them
OUTSIDE = {**PAGES, "README.md": "index.md"}
CODE = r"^ *(?P<fence>`{3,})[\s\S]*?^ *(?P=fence)`* *$|`(?:[^`\n]|\n(?!\s*\n))+`"
LINK = r"(?<!!)\[(?P<words>[^\]\n]+)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
MENTION = r"(?<![\w/`\[])(?<!\]\()(?P<mentioned>docs/[\w/-]+\.md)"


def build(folder: Path) -> None:
    """The site, in this folder, whose earlier content goes. Raises CalledProcessError where a page has a fault."""
    stage(live_files())
    subprocess.run([Path(sys.executable).with_name("zensical"), "build", "--strict"], cwd=ROOT, check=True)
    for page in STAGED.rglob("*.md"):
        shutil.copy(page, BUILT / page.relative_to(STAGED))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(BUILT, folder)


def stage(live: dict[str, bytes]) -> None:
    """Every page as plain Markdown, and what stands beside them. Errors: FileNotFoundError for a link to nothing."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(DOCS, STAGED, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for name, uri in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        (STAGED / uri).write_text(changed(text, MENTION, _mention), encoding="utf-8")
    for page in STAGED.rglob("*.md"):
        uri = page.relative_to(STAGED).as_posix()
        text = with_links(page.read_text(encoding="utf-8"), uri).replace(CARDS_HERE, cards())
        page.write_text("---\nhide: [toc]\n---\n" * (uri in WIDE) + text, encoding="utf-8")
    for name, content in live.items():
        (STAGED / name).parent.mkdir(parents=True, exist_ok=True)
        (STAGED / name).write_bytes(content)
    shutil.copy(ROOT / "web/public/favicon.svg", STAGED / "images/favicon.svg")


def live_files() -> dict[str, bytes]:
    """The single file, the published site, and a small picture of each head's map, by their places in the site.

    All are made anew from what is here, for the page's own code is in them.
    """
    import matplotlib.image  # half a second: not for the tests of links

    models = {name: mh.load(name) for name in {model for model, _ in TEXT_OF.values()}}
    labels = {name: label_page(lm) for name, lm in models.items()}
    made: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_report(folder / "page.html", models["minilm"], ANIMAL, labels=labels["minilm"], exact=True)
        made[LIVE] = (folder / "page.html").read_bytes()
        for name, (model, text) in TEXT_OF.items():
            mh.record(models[model], text).save(folder / f"{name}.heads")
        recordings = {path.stem: path for path in (*folder.glob("*.heads"), *RECORDINGS.glob("*.heads"))}
        publish(folder / "site", list(recordings.values()), labels=labels, exact=True, title="Heads of five models")
        for path in (folder / "site").rglob("*"):
            if path.is_file():
                made[f"live/{path.relative_to(folder / 'site').as_posix()}"] = path.read_bytes()
        for number, card in enumerate(json.loads(CARDS.read_text(encoding="utf-8"))):
            head = Head.parse(card["head"])
            weights = mh.open_recording(recordings[card["recording"]]).layers[head.layer].weights(head=head.index)
            picture = io.BytesIO()
            matplotlib.image.imsave(picture, weights.nan_to_num().sqrt(), cmap="Greys", vmin=0, vmax=1, format="png")
            made[f"live/maps/{number}.png"] = picture.getvalue()
    return made


def cards() -> str:
    """A card for each head; what it says is text, never markup."""
    rows = json.loads(CARDS.read_text(encoding="utf-8"))
    written = [{name: escape(str(value)) for name, value in row.items()} for row in rows]
    return "\n".join(CARD.format(number=number, **row) for number, row in enumerate(written))


def with_links(markdown: str, uri: str) -> str:
    """A page's text with every link as the site has it. `uri` is the page's place there."""
    outside = uri in PAGES.values()
    return changed(markdown, LINK, lambda link: _linked(link, ROOT if outside else (DOCS / uri).parent, uri))


def changed(markdown: str, pattern: str, change: Callable[[re.Match[str]], str]) -> str:
    """The text with `change` made to what the pattern matches outside code."""
    found = re.compile(rf"(?P<code>{CODE})|{pattern}", re.MULTILINE)
    return found.sub(lambda each: each[0] if each["code"] else change(each), markdown)


def _mention(said: re.Match[str]) -> str:
    """A page that is named in passing."""
    name = said["mentioned"]
    return f"[{name}]({name})" if (ROOT / name).is_file() else name


def _linked(link: re.Match[str], folder: Path, uri: str) -> str:
    words, target, anchor = link["words"], link["target"], link["anchor"] or ""
    if "://" in target or target.startswith("mailto:"):
        return link[0]
    path = Path(os.path.normpath(folder / target))
    if path.is_relative_to(DOCS):
        inside = path.relative_to(DOCS).as_posix()
    elif not path.exists():
        raise FileNotFoundError(f"{uri} has a link to {target}, which is not there")
    else:
        name = path.relative_to(ROOT).as_posix()
        if name not in OUTSIDE:
            return words if words.strip("`") == name else f"{words} (`{name}`)"
        inside = OUTSIDE[name]
    return f"[{words}]({os.path.relpath(inside, Path(uri).parent)}{anchor})"


if __name__ == "__main__":
    if sys.argv[1:] == ["--pages"]:
        stage(live_files())
    else:
        build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").absolute())
