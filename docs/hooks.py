"""What mkdocs asks of us while it builds the site (`hooks:` in mkdocs.yml): links that leave docs/, and the live page.

In a checkout a link such as ../src/manyheads/plan.py opens the file. The site has no such files: there CONTRIBUTING.md,
CHANGELOG.md and SECURITY.md are pages of their own, the README is the first page, and any other file is named by its
path, as code.
A link to a file that is not there is a warning, which ends the build.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import manyheads as mh
from manyheads.roles import label_page
from manyheads.studio import write_report

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
LIVE = "live/animal.html"
SENTENCE = "The animal didn't cross the street because it was too tired."
WIDE = {"lab.md", "models.md"}  # tables that want the room beside them
OUTSIDE = {**PAGES, "README.md": "index.md"}
CODE = r"^ *(?P<fence>`{3,})[\s\S]*?^ *(?P=fence)`* *$|`[^`\n]+`"
LINK = r"(?<!!)\[(?P<words>[^\]\n]+)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
MENTION = r"(?<![\w/`\[])(?<!\]\()(?P<mentioned>docs/[\w/-]+\.md)"

log = logging.getLogger("mkdocs.hooks.docs")


def on_files(files: Any, config: Any) -> Any:
    """What `PAGES` lists, as pages, and the studio's own icon as the site's."""
    for name, uri in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=changed(text, MENTION, _mention)))
    files.append(File.generated(config, "images/favicon.svg", abs_src_path=str(ROOT / "web/public/favicon.svg")))
    files.append(File.generated(config, LIVE, content=_live_page()))
    return files


def _live_page() -> bytes:
    """The single file that the first page shows: made anew from what is here, for the page's own code is in it."""
    lm = mh.load("minilm")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        write_report(path, lm, SENTENCE, labels=label_page(lm), exact=True)
        return path.read_bytes()


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Each link as the site has it; wide pages with nothing beside them."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    return with_links(markdown, page.file.src_uri)


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
        log.warning("%s has a link to %s, which is not there", uri, target)
        return link[0]
    else:
        name = path.relative_to(ROOT).as_posix()
        if name not in OUTSIDE:
            return words if words.strip("`") == name else f"{words} (`{name}`)"
        inside = OUTSIDE[name]
    return f"[{words}]({os.path.relpath(inside, Path(uri).parent)}{anchor})"
