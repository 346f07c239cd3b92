"""A folder that any static host serves: the studio's page, recordings beside it, an index with a card for each.

Every address in it is relative, so it works below any path. Its policy forbids to fetch anything from elsewhere.
The index is plain HTML: cards, a picture of every head, links to telling weights. The studio's page fetches the
snapshot of the recording that it shows, and of an exact one a layer's numbers when a head of it is opened. An address
names recording, head and row: people share that.

Cost: that of a snapshot for each recording, and 1.2 MB for the page.
"""

from __future__ import annotations

import io
import json
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image

from manyheads import __version__
from manyheads.base import few, percent, plural
from manyheads.errors import RecordingError, TextError
from manyheads.inputs import fault_in
from manyheads.interventions.save import replacing_folder, require_replaceable
from manyheads.models import LoadedModel
from manyheads.recording import Recording
from manyheads.recording import open_recording as read_recording
from manyheads.roles import PageLabels
from manyheads.studio.outside import one_file
from manyheads.studio.outside.snapshot import saved_workspace, snapshot_of
from manyheads.studio.schema.base import FileEntry
from manyheads.studio.schema.recordings import Atlas
from manyheads.studio.session import StudioSession, desk_with, open_recording, open_text
from manyheads.studio.state.recordings import Opened
from manyheads.studio.views.atlas import atlas_of, card_of
from manyheads.studio.views.maps import ABSENT, thumbnails_of, unpack

MARK, INSIDE, LESSONS = "manyheads-site.json", "recordings", "lessons.heads-page"
OURS = re.compile(
    rf"(index|studio)\.html|(studio|site)\.(js|css)|(cells|exact|play)\.js|favicon\.svg|{re.escape(MARK)}|[a-z0-9-]+\.(heads-page|png)"
)
COPIED = ("studio.js", "studio.css", "site.js", "site.css", "favicon.svg")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src data:; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)
TELLING, FAR = 4, 3  # weights that a card links to; tokens between the two, for neighbours tell nothing
NAMED = 3  # recordings of an earlier site that are named
TITLE, WHOLE_TITLE, EXCERPT = 60, 90, 240  # characters of a text, on a card: a title holds all of up to `WHOLE_TITLE`
PICTURE_CELLS = 1_500_000  # of one picture of all heads
HEAD = (
    one_file.HEAD
    + """<link rel="icon" href="favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{program}.css">
<script type="module" src="{program}.js"></script>
</head>
<body>
"""
)
STUDIO = """<div id="manyheads-studio" data-site="{mark}" data-rooms="{rooms}"></div>
<noscript>This page needs JavaScript. <a href="index.html">The list of recordings</a> does not.</noscript>
</body>
</html>
"""
INDEX = """<header>
<h1>{title}</h1>
<p>Where every attention head of a model looks, on {texts}. Open one, click a square, click a word.</p>
<label class="search" hidden>Search
<input type="search" placeholder="a word, a model, a head" autocomplete="off"></label>
<p class="count" role="status"></p>
</header>
<main>
{cards}
</main>
<footer>
<p>{caveat}</p>
<p>Made with manyheads {version}. Nothing is fetched from elsewhere, and nothing is sent.</p>
</footer>
</body>
</html>
"""
CARD = """<article class="card" id="{name}">
<a class="picture" href="{address}" tabindex="-1" aria-hidden="true">
<img src="{inside}/{name}.png" alt="" width="{width}" height="{height}" loading="lazy">
</a>
<h2><a href="{address}">{title}</a></h2>
{excerpt}<p class="facts">{facts}</p>
{heads}<p class="more">
<a class="button" href="{address}">Open</a>
<button type="button" class="button copy" data-link="{address}" hidden>Copy link</button>
</p>
</article>"""


class _Telling(NamedTuple):
    """A large weight between two words that lie apart: `reader` reads `read`."""

    share: float
    head: str
    query: int
    reader: str
    read: str


class _Entry(NamedTuple):
    """A recording of a site, under its name there."""

    name: str
    opened: Opened
    text: str
    words: str
    num_bytes: int
    num_tokens: int
    atlas: Atlas
    telling: list[_Telling]

    def card(self, place: Path) -> str:
        """Its card in the index. Its text is data: escaped, and never markup."""
        text = " ".join(self.text.split())
        picture = (place / INSIDE / f"{self.name}.png").read_bytes()
        width, height = struct.unpack(">II", picture[16:24])
        links = "".join(
            f'<li><a href="studio.html#/head/{escape(weight.head)}?file={self.name}&amp;pin={weight.query}">'
            f"{escape(weight.reader)} → {escape(weight.read)}</a> {percent(weight.share)}, {escape(weight.head)}</li>"
            for weight in self.telling
        )
        whole = len(text) <= WHOLE_TITLE
        facts = f"{self.opened.model} · {len(self.atlas.heads)} heads · {self.num_tokens:,} tokens · {self.words}"
        return CARD.format(
            name=self.name,
            address=f"studio.html#/atlas?file={self.name}",
            inside=INSIDE,
            width=width,
            height=height,
            title=escape(text if whole else _beginning(text, TITLE)),
            excerpt="" if whole else f'<p class="text" dir="auto">{escape(_beginning(text, EXCERPT))}</p>\n',
            facts=escape(facts),
            heads=f'<ul class="heads">{links}</ul>\n' if links else "",
        )


def _beginning(text: str, most: int) -> str:
    """A text's first `most` characters or fewer, ended after a word: not where a script has no blanks between words."""
    if len(text) <= most:
        return text
    words = text[: most + 1].rpartition(" ")[0]
    return f"{words if len(words) > most // 2 else text[:most]}…"


def publish(
    folder: str | os.PathLike[str],
    recordings: Sequence[Recording | str | os.PathLike[str]] = (),
    *,
    texts: Sequence[str] = (),
    lm: LoadedModel | Sequence[LoadedModel] | None = None,
    labels: Mapping[str, PageLabels] | None = None,
    exact: bool | str = False,
    title: str = "Attention, head by head",
    progress: Callable[[str, int, int], None] | None = None,
) -> str:
    """Write a static site of recordings, and of `texts` read by `lm`. Returns in words what it holds.

    - `folder`: written whole or not at all; an existing one is replaced only if it is empty or an earlier site of ours,
      and then the words say of what.
    - `recordings`: Recordings, or paths of `.heads` files.
    - `texts`: read by `lm`, each a recording.
    - `lm`: a loaded model, or several, of which the first reads `texts`. Their recordings keep what needs a model.
    - `labels`: roles by a model's name, from `label_page`.
    - `exact`: as in `write_report`.
    - `title`: of the first page.
    - `progress`: called with a recording's title, recordings done and recordings in all.

    Errors: RecordingError for nothing to publish or a damaged file, TextError, FileAccessError.
    """
    earlier = require_publishable(folder, recordings, texts)
    if texts and not lm:
        raise RecordingError(f"{len(texts)} texts were given without a model: give lm=load(...), which reads them.")
    with replacing_folder(folder, INSIDE, None, OURS, MARK) as place:
        (place / INSIDE).mkdir()
        models = () if lm is None else (lm,) if isinstance(lm, LoadedModel) else tuple(lm)
        desk = desk_with()
        for model in models:
            desk.workspace.add_model(model)
            desk.workspace.load(model.name)  # recordings of it that are in hand keep scenes, too
        desk.labels.known.update(labels or {})
        entries: list[_Entry] = []
        try:
            for source in (*recordings, *map(_Text, texts)):
                entries.append(_write(desk, place, source, models, exact, {entry.name for entry in entries}))
                if progress is not None:
                    progress(entries[-1].opened.title, len(entries), len(recordings) + len(texts))
        finally:
            desk.close()
        static = files("manyheads.studio") / "static"
        parts = [f"{name}.js" for name in one_file.PROGRAMS if (static / f"{name}.js").is_file()]
        for name in (*COPIED, *parts):
            (place / name).write_bytes((static / name).read_bytes())
        if lessons := one_file.saved_lessons():
            (place / LESSONS).write_bytes(lessons)
        listed = [
            FileEntry(name=entry.name, id=entry.opened.id, num_bytes=entry.num_bytes, unreadable=None)
            for entry in entries
        ]
        workspace = saved_workspace(list(dict.fromkeys(entry.opened.model for entry in entries)), listed, listed[0].id)
        site = {"format": "manyheads-site", "format_version": "1", "title": title, "workspace": workspace}
        (place / MARK).write_text(json.dumps(site), encoding="utf-8")
        facts = {"policy": escape(POLICY), "version": escape(__version__), "title": escape(title)}
        (place / "studio.html").write_text(
            (HEAD + STUDIO).format(**facts, program="studio", mark=MARK, rooms=one_file.rooms_of(lessons)),
            encoding="utf-8",
        )
        count = f"{len(entries)} texts" if len(entries) > 1 else "a text"
        cards = "\n".join(entry.card(place) for entry in entries)
        index = (HEAD + INDEX).format(
            **facts, program="site", texts=count, cards=cards, caveat=escape(entries[0].atlas.caveat)
        )
        (place / "index.html").write_text(index, encoding="utf-8")
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    kinds = "; ".join(dict.fromkeys(entry.words for entry in entries))
    recordings_in_words = f"{len(entries)} recordings" if len(entries) > 1 else "1 recording"
    replaced = f"; replaced the earlier site of {earlier}" if earlier else ""
    return f"{recordings_in_words}, {size / 1e6:.1f} MB: {kinds}{replaced}"


def require_publishable(
    folder: str | os.PathLike[str], recordings: Sequence[Recording | str | os.PathLike[str]], texts: Sequence[str]
) -> str:
    """What can be refused before a model is loaded, and what earlier site is in the folder, in words ("": none).

    Errors as of `publish`. Cost: the headers of the recordings.
    """
    if not recordings and not texts:
        raise RecordingError("there is nothing to publish: give recordings (.heads files), or texts.")
    for number, text in enumerate(texts, 1):
        if fault := fault_in(text):
            raise TextError(f"text {number} of {len(texts)} {fault}")
    target = Path(os.path.realpath(folder))
    require_replaceable(target, INSIDE, OURS, MARK)
    for source in recordings:
        if not isinstance(source, Recording):
            read_recording(source)
    try:
        site = json.loads((target / MARK).read_text(encoding="utf-8"))
        names = [str(entry["name"]) for entry in site["workspace"]["files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""  # a new folder, or a site whose list nobody can read: nothing is known of it
    return f"{plural(len(names), 'recording')} ({few(names, NAMED)})"


class _Text(str):
    """A text to be read, among paths of files."""


def _write(
    desk: StudioSession,
    place: Path,
    source: Recording | str | os.PathLike[str],
    models: Sequence[LoadedModel],
    exact: bool | str,
    taken: set[str],
) -> _Entry:
    """One recording's files: its snapshot, and the picture of its heads."""
    if isinstance(source, _Text):
        opened, stem = open_text(desk, models[0], str(source)), " ".join(str(source).split())
    elif isinstance(source, Recording):
        opened = open_recording(desk, source)
        stem = opened.title
    else:
        opened = open_recording(desk, read_recording(source))
        stem = Path(source).name.removesuffix(".heads")
        opened.source = f"file {Path(source).name}"
    name = base = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-") or "recording"
    number = 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    snapshot = snapshot_of(desk, opened, exact=exact, apart=True)
    (place / INSIDE / f"{name}.heads-page").write_bytes(snapshot.data)
    for layer, data in snapshot.layers.items():
        (place / INSIDE / f"{name}--{layer}.heads-page").write_bytes(data)
    atlas = atlas_of(opened, 0, desk.labels.of(opened))
    (place / INSIDE / f"{name}.png").write_bytes(_picture(opened, atlas))
    info = desk.info(opened)
    snapshot_words = snapshot.words.partition(": ")[2].partition(" (")[0]
    words = {token: word.text for word in info.words for token in range(word.begin, word.end)}
    best: dict[tuple[str, str], _Telling] = {}
    for head in atlas.heads:
        for link in card_of(opened, head.head, 0, None).links if not opened.layer_of(head.head)[0].crosses else []:
            reader, read = words.get(link.query, ""), words.get(link.key, "")
            tells = abs(link.query - link.key) >= FAR and reader.isalpha() and read.isalpha()
            if tells and reader.casefold() != read.casefold():
                weight = _Telling(link.weight, head.head, link.query, reader, read)
                best[reader, read] = max(best.get((reader, read), weight), weight)
    telling = sorted(best.values(), reverse=True)[:TELLING]
    written = info.written or opened.title
    return _Entry(name, opened, written, snapshot_words, snapshot.num_bytes, info.num_tokens, atlas, telling)


def _picture(opened: Opened, atlas: Atlas) -> bytes:
    """Every head's map in one PNG, wider than high, a row or a column a layer: black where weights are large,
    transparent where they are 0."""
    layers: dict[tuple[str, int], int] = {}
    for head in atlas.heads:
        layers.setdefault((head.stack, head.layer), len(layers))
    num_columns = max(head.index for head in atlas.heads) + 1
    size = max(4, min(40, int((PICTURE_CELLS / (len(layers) * num_columns)) ** 0.5) - 2))
    _, arrays = unpack(thumbnails_of(opened, size, "mean", 0))
    maps: UInt8[ndarray, "h r c"] = arrays["maps"]
    # A short text has fewer cells than pixels: each is drawn as a square of them.
    maps = maps.repeat(max(1, size // maps.shape[1]), 1).repeat(max(1, size // maps.shape[2]), 2)
    side = maps.shape[1] + 2
    is_deep = len(layers) > num_columns
    shape = (num_columns, len(layers)) if is_deep else (len(layers), num_columns)
    ink = np.zeros((shape[0] * side, shape[1] * side), np.uint8)
    for head, cells in zip(atlas.heads, maps, strict=True):
        row, column = layers[head.stack, head.layer], head.index
        top, left = (side * place for place in ((column, row) if is_deep else (row, column)))
        ink[top : top + side - 2, left : left + side - 2] = np.where(cells == ABSENT, 0, cells.clip(8))
    # Black with this opacity: as ink on paper, or inverted on a dark page.
    out = io.BytesIO()
    Image.fromarray(np.stack([np.zeros_like(ink), ink], -1)).save(out, "png", optimize=True)
    return out.getvalue()
