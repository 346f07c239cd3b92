"""docs/reference/published-numbers.md: published results beside ours, of whole runs in docs/reproduced.

    python docs/reproduced.py              the page
    python docs/reproduced.py FOLDER...    take the result and figure in of folders that `manyheads reproduce` wrote,
                                           then the page

A result's file is named after its command; a test holds the page to the files.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from manyheads.reproductions import REPRODUCTIONS, markdown
from manyheads.reproductions.reproduction import COMES_OUT, FAILS, UNDECIDED

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "docs" / "reproduced", ROOT / "docs" / "images" / "reproduce"
PAGE = ROOT / "docs" / "reference" / "published-numbers.md"
OPENING = """\
<!-- made by `python docs/reproduced.py` from docs/reproduced, held to it by a test -->
# What published numbers say, and what ours say

A paper reports a number of a large model. What does a small one, which anybody can train in minutes, show of it?

<!-- not run: trains for minutes -->
```sh
manyheads reproduce              # lists the papers
manyheads reproduce voita-gates  # trains, measures by the paper's definition, and writes such a part with its figure
```

Headings say what a paper reports, not what came out: that is the verdict's. In the tables *the paper* is its number,
*here* is ours, one for each of three seeds (trainings from other random numbers). Each part defines what it measures;
the words for heads are in [the glossary](glossary.md).

A claim says beforehand within which bounds a quantity must lie. It **comes out** where the whole 95 % interval of the
mean over seeds (Student's t) lies within them, **does not come out** where all of it lies outside, and is **undecided**
else: three seeds make wide intervals. What is exact, as a count in a file, has no interval. No verdict says that a
paper is right or wrong: small models are other things, and each part says what is not comparable.
"""


def documents() -> dict[str, dict[str, Any]]:
    """The results by the name of their file, in the order of the list of reproductions."""
    order = list(REPRODUCTIONS)
    read = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    return dict(sorted(read.items(), key=lambda item: order.index(item[1]["name"])))


def page() -> str:
    """The opening, a row for each result, and the results."""
    rows, parts, results = ["| command | the paper reports | its claims, here |", "|---|---|---|"], [], documents()
    for stem, document in results.items():
        found = Counter(row["verdict"] for row in document["rows"])
        counts = ", ".join(f"{word}: {found[word]}" for word in (COMES_OUT, FAILS, UNDECIDED) if found[word])
        rows.append(f"| `{document['command']}` | {REPRODUCTIONS[document['name']].meaning} | {counts} |")
        parts.append(markdown(document, f"../images/reproduce/{stem}.svg", level=2))
    made = {document["name"] for document in results.values()}
    if missing := [f"`{name}`" for name in REPRODUCTIONS if name not in made]:
        rows += ["", f"There is no whole run yet of {', '.join(missing)}."]
    return "\n".join([OPENING, *rows, "", *parts])


def take(folder: Path) -> None:
    """Copy the result and figure of a finished folder under the name of its command."""
    document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    words = document["command"].removeprefix("manyheads reproduce ").split()
    stem = ".".join(Path(word).stem for word in words if not word.startswith("--"))
    shutil.copyfile(folder / "result.json", RESULTS / f"{stem}.json")
    shutil.copyfile(folder / "figure.svg", IMAGES / f"{stem}.svg")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        take(Path(name))
    PAGE.write_text(page(), encoding="utf-8")
