"""One HTML file that shows every head: the studio's page with all its data inside. It opens anywhere, offline.

The page is the one that the server sends, with a snapshot in place of a server. Its policy forbids every request. The
text is packed data in it, never markup; so is the page's own module, which so cannot close its tag and takes a third
of the room. Without JavaScript the file shows a table of the heads.

Cost: a second, and under 3 MB for 72 heads of 512 tokens, most of it the maps.
"""

from __future__ import annotations

import gzip
import json
import os
from base64 import b64encode
from html import escape
from typing import Any

from manyheads import __version__
from manyheads.base import html_table, replacing
from manyheads.corpora import reading_of
from manyheads.recording import Recording
from manyheads.roles import PageLabels
from manyheads.studio.outside.snapshot import FORMAT, Progress, bundle, snapshot_of
from manyheads.studio.session import Desk, desk_with, open_recording, open_text
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import Workspace
from manyheads.studio.views.atlas import atlas_of

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; font-src data:; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
MOST_CHARS = 40_000  # of a text that is read: some 16 windows of 512 tokens, of which the page holds the first
PLAIN_COLUMNS = ("entropy", "distance", "sink_mass", "previous_mass", "duplicate_mass")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="manyheads {version}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<div id="manyheads-studio"></div>
<noscript>{plain}</noscript>
<script type="application/json" id="manyheads-snapshot">{snapshot}</script>
<script type="text/plain" id="manyheads-bundle">{js}</script>
<script type="module">
const place = document.getElementById("manyheads-studio");
if (globalThis.DecompressionStream) {{
  const packed = Uint8Array.from(atob(document.getElementById("manyheads-bundle").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.type = "module";
  script.textContent = await new Response(stream).text();
  document.body.append(script);
}} else place.textContent = "This page needs a browser of 2023 or newer: it unpacks itself.";
</script>
</body>
</html>
"""


def write_report(
    path: str | os.PathLike[str],
    what: Any,
    text: str | None = None,
    *,
    labels: PageLabels | None = None,
    long: str = "windows",
    progress: Progress | None = None,
) -> str:
    """Write one HTML file, whole or not at all. Returns in words what it holds.

    `what` is a LoadedModel with a `text`, or a Recording. `labels` are the model's, from `label_page`: with them the
    page has roles. Of a text in several windows the first is included, and the next ones as long as they are small; of
    a long text only the beginning is read, and the returned words say so.
    `progress` is called with heads done and heads in all. Errors: FileAccessError, TextError, what recording raises.
    """
    cut = ""
    if isinstance(what, Recording):
        desk = Desk(Workspace())
        opened = open_recording(desk, what)
        if labels is not None:
            desk.labels.known[opened.model] = labels
    else:
        desk, text = desk_with(what, labels), reading_of(what.name).sentence if text is None else text
        opened = open_text(desk, what, text[:MOST_CHARS], long)
        cut = f"of a text of {len(text):,} characters, {MOST_CHARS:,} were read" if len(text) > MOST_CHARS else ""
    try:
        page, words = page_of(desk, opened, progress, cut)
    finally:
        desk.close()
    with replacing(path, ".html") as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as out:
        out.write(page)
    return f"{words}; {len(page.encode()) / 1e6:.1f} MB"


def page_of(desk: Desk, opened: Opened, progress: Progress | None = None, note: str = "") -> tuple[str, str]:
    """The page, and the words for what it holds; `note` is added to them."""
    snapshot = snapshot_of(desk, opened, progress, note)
    data = {"format": FORMAT, "data": b64encode(snapshot.data).decode()}
    js, css = bundle()
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
    )
    # A browser ends a style sheet at the first "</style", even inside a string of it; snapshot and module are base 64.
    page = PAGE.format(
        policy=escape(POLICY),
        version=escape(__version__),
        title=escape(f"{opened.model}: {opened.title[:60]}"),
        css=css.replace("</style", "<\\/style"),
        plain=plain,
        snapshot=json.dumps(data),
        js=b64encode(gzip.compress(js.encode(), 9, mtime=0)).decode(),
    )
    return page, snapshot.words
