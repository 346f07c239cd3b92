"""One HTML file that shows every head: the studio's page with all its data inside. It opens anywhere, offline.

The page is the one that the server sends, with a snapshot in place of a server. Its policy forbids every request. The
text is packed data in it, never markup; so are the page's own module and style sheet, which so cannot close their tags
and take a third of the room. Without JavaScript the file shows a table of the heads.

Cost: a second, and under 3 MB for 72 heads of 512 tokens, most of it the maps.
"""

from __future__ import annotations

import gzip
import os
from html import escape
from importlib.resources import files

import numpy as np

from manyheads import __version__
from manyheads.base import html_table, replacing
from manyheads.corpora import reading_of
from manyheads.inputs import Long
from manyheads.models import LoadedModel
from manyheads.progress import Progress
from manyheads.recording import Recording
from manyheads.roles import PageLabels
from manyheads.studio.outside.snapshot import bundle, program, snapshot_of
from manyheads.studio.session import StudioSession, desk_with, open_recording, open_text
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import Workspace
from manyheads.studio.views.atlas import atlas_of

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; font-src data:; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
MOST_CHARS = 40_000  # of a text that is read: some 16 windows of 512 tokens, of which the page holds the first
DIGITS = np.frombuffer(bytes(code for code in range(33, 127) if chr(code) not in '"\\<'), np.uint8)
PLAIN_COLUMNS = ("entropy", "distance", "sink_mass", "previous_mass", "duplicate_mass")
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="manyheads {version}">
<title>{title}</title>
"""
PAGE = (
    HEAD
    + """<link rel="icon" href="data:,">
<style>noscript td, noscript th {{ padding: 2px 10px 2px 0; text-align: left }}</style>
</head>
<body>
<div id="manyheads-studio"></div>
<noscript>{plain}</noscript>
<script type="text/plain" id="manyheads-snapshot" data-bytes="{snapshot_bytes}" data-rooms="{rooms}">{snapshot}</script>
<script type="text/plain" id="manyheads-style" data-bytes="{css_bytes}">{css}</script>
<script type="text/plain" id="manyheads-bundle" data-bytes="{js_bytes}">{js}</script>
{programs}
<script type="module">
const place = document.getElementById("manyheads-studio");
function bytesOf(id) {{
  const {{ dataset, textContent }} = document.getElementById(id);
  const bytes = new Uint8Array(Number(dataset.bytes));
  const digit = (i) => {{
    const code = textContent.charCodeAt(i);
    return code - 33 - (code > 34) - (code > 60) - (code > 92);
  }};
  for (let i = 0, end = 0, word = 0, bits = 0; i < textContent.length; i += 2) {{
    word = ((word << 13) | (digit(i) * 91 + digit(i + 1))) & 0xfffff;
    for (bits += 13; bits >= 8; ) bytes[end++] = word >> (bits -= 8);
  }}
  return bytes;
}}
function unpacked(id) {{
  const stream = new Blob([bytesOf(id)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}}
if (globalThis.DecompressionStream) {{
  document.getElementById("manyheads-snapshot").bytes = bytesOf("manyheads-snapshot").buffer;
  for (const part of document.querySelectorAll("[data-program]")) part.unpacked = () => unpacked(part.id);
  const [style, script] = ["style", "script"].map((name) => document.createElement(name));
  style.textContent = await unpacked("manyheads-style");
  document.head.append(style);
  script.type = "module";
  script.textContent = await unpacked("manyheads-bundle");
  document.body.append(script);
}} else place.textContent = "This page needs a browser of 2023 or newer: it unpacks itself.";
</script>
</body>
</html>
"""
)


PROGRAM = '<script type="text/plain" id="manyheads-{name}" data-program="" data-bytes="{num_bytes}">{data}</script>'
PROGRAMS = ("exact", "play", "cells")  # parts of the page that it loads when they are needed
NAME = "lessons.json.gz"
ROOMS = ("atlas", "head", "compare", "size")  # that need a recording at most


def write_report(
    path: str | os.PathLike[str],
    what: LoadedModel | Recording,
    text: str | None = None,
    *,
    labels: PageLabels | None = None,
    long: Long = "windows",
    progress: Progress | None = None,
    exact: bool | str = False,
    recording: Recording | None = None,
) -> str:
    """Write one HTML file, whole or not at all. Returns in words what it holds.

    - `path`: where the file goes.
    - `what`: a LoadedModel, with a text, or a Recording.
    - `text`: what the model reads. The first of several windows is included, and the next ones as long as they are
      small; only the beginning of a long text is read, and the returned words say so.
    - `labels`: the model's, from `label_page`: with them the page has roles.
    - `long`: what becomes of a text over the model's positions.
    - `progress`: called with heads done and heads in all.
    - `exact`: the page holds q, k and each row's log-sum-exp, and computes any cell of any map: in float32 where that
      is small, else in float16 (72 heads of 512 tokens: under 6 MB); "float16" or "float32" chooses. The returned words
      and the page say how far from the recording the weights are.
    - `recording`: the model's of the whole text, where it was made already; then the model is not run, unless the text
      is too long to be read whole here.

    Errors: FileAccessError, TextError, RecordingError for an exact page that would be too large, what recording raises.
    """
    cut = ""
    if isinstance(what, Recording):
        desk = StudioSession(Workspace())
        opened = open_recording(desk, what)
        if labels is not None:
            desk.labels.known[opened.model] = labels
    else:
        desk, text = desk_with(what, labels), reading_of(what).sentence if text is None else text
        known = recording if len(text) <= MOST_CHARS else None
        opened = open_text(desk, what, text[:MOST_CHARS], long, known)
        cut = f"of a text of {len(text):,} characters, {MOST_CHARS:,} were read" if len(text) > MOST_CHARS else ""
    try:
        page, words = page_of(desk, opened, progress, cut, exact)
    finally:
        desk.close()
    with replacing(path, ".html") as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as out:
        out.write(page)
    return f"{words}; {len(page.encode()) / 1e6:.1f} MB"


def page_of(
    desk: StudioSession, opened: Opened, progress: Progress | None = None, note: str = "", exact: bool | str = False
) -> tuple[str, str]:
    """The page, and the words for what it holds; `note` is added to them."""
    lessons = saved_lessons()
    snapshot = snapshot_of(desk, opened, progress, note, exact, lessons)
    js, css = (gzip.compress(part.encode(), 9, mtime=0) for part in bundle())
    programs = {name: data for name in PROGRAMS if (data := program(name))}
    atlas = atlas_of(opened, 0, desk.labels.of(opened))
    names = [statistic.name for statistic in atlas.statistics]
    columns = [names.index(name) for name in PLAIN_COLUMNS if name in names]
    plain = html_table(
        ["head", "role", "evidence", *(names[column].replace("_", " ") for column in columns)],
        [
            [
                head.head,
                head.role.name if head.role else "",
                head.role.evidence.words if head.role else "",
                *(head.values[column] for column in columns),
            ]
            for head in atlas.heads
        ],
        caption=f"{opened.model}: {opened.title}",
        note=f"{atlas.caveat} With JavaScript this page shows {snapshot.words}.",
        most=len(atlas.heads),
        styled=False,
    )
    page = PAGE.format(
        policy=escape(POLICY),
        version=escape(__version__),
        title=escape(f"{opened.model}: {opened.title[:60]}"),
        plain=plain,
        snapshot=encoded(snapshot.data),
        snapshot_bytes=len(snapshot.data),
        rooms=rooms_of(lessons),
        css=encoded(css),
        css_bytes=len(css),
        js=encoded(js),
        js_bytes=len(js),
        programs="\n".join(
            PROGRAM.format(name=name, num_bytes=len(data), data=encoded(data)) for name, data in programs.items()
        ),
    )
    return page, snapshot.words


def encoded(data: bytes) -> str:
    """Bytes as text for a script element: 13 bits in two of 91 characters, a fourth less than base 64 adds.

    Neither a quote nor a backslash nor "<" is among them. `PAGE` reads them.
    """
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    words = np.pad(bits, (0, -len(bits) % 13)).reshape(-1, 13) @ (1 << np.arange(12, -1, -1))
    return DIGITS[np.stack([words // 91, words % 91], axis=-1)].tobytes().decode("ascii")


def saved_lessons() -> bytes:
    """The file, gzipped JSON; b"" where the page was built without it."""
    file = files("manyheads.studio") / "static" / NAME
    return file.read_bytes() if file.is_file() else b""


def rooms_of(lessons: bytes) -> str:
    """The rooms that a page without a server can fill, for its `data-rooms`; others are not offered there."""
    return " ".join((*ROOMS, "learn") if lessons else ROOMS)
