"""docs/reference/published-numbers.md: published results beside ours, of whole runs in docs/reproduced.

    python docs/reproduced.py              the page
    python docs/reproduced.py FOLDER...    take the result and figure in of folders that `manyheads reproduce` wrote,
                                           then the page

A result's file is named after its command; a test holds the page to the files.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.lab.reproductions import REPRODUCTIONS, markdown
from manyheads.lab.reproductions.reproduction import each_words, mean_words

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "docs" / "reproduced", ROOT / "docs" / "images" / "reproduce"
PAGE = ROOT / "docs" / "reference" / "published-numbers.md"
OPENING = """\
<!-- made by `python docs/reproduced.py` from docs/reproduced, held to it by a test -->
# What published numbers say, and what ours say

A paper reports a number of a large model. What does a small one, which anybody can train in minutes, show of it? And a
pretrained one of 135 million parameters, `smollm2`, on prose?

{table}

A number is the mean over seeds with its 95 % interval, and beside it is the verdict of its claim. All rows of every
result stand below.

<!-- not run: trains for minutes -->
```sh
manyheads reproduce              # lists the papers
manyheads reproduce voita-gates  # trains, measures by the paper's definition, and writes such a part with its figure
```

Headings say what a paper reports, not what came out. In the tables *mean* is over three seeds (trainings from other
random numbers), or the count where there are no seeds; each seed's number, versions and times are in `docs/reproduced`.
The words for heads are in [the glossary](glossary.md).

A claim says beforehand within which bounds a quantity must lie. It **comes out** where the whole 95 % interval of the
mean over seeds (Student's t) lies within them, **does not come out** where all of it lies outside, and is **undecided**
otherwise: three seeds make wide intervals. An exact number, such as a count in a file, has no interval. No verdict says
that a paper is right or wrong: small models are other things, and each part says what is not comparable.
"""


class Shown(NamedTuple):
    """A row of a result that the first table shows. `stem`: the result's file; `unit`: words behind the number."""

    stem: str
    quantity: str
    unit: str = ""


FIRST: dict[str, tuple[Shown | None, Shown | None]] = {
    "heads that park on the first token": (
        Shown("gu-sinks", "sinks on the first token, softmax, fixed first token"),
        Shown("gu-real", "sinks on the first token, prose"),
    ),
    "induction heads carry what a model learns from its context": (
        Shown("olsson-phase", "in-context score, two layers over one, nats", "nats, two layers over one"),
        Shown("olsson-induction", "... how much it weakens without induction heads", "nats weaker without them"),
    ),
    "heads link the words of a relation better than a fixed offset does": (
        None,
        Shown("clark-syntax.en_ewt-ud-dev", "smollm2: relations", "of the relations"),
    ),
    "heads that go for free, least important first": (
        Shown("michel-curve", "heads that go for free, decoders trained here"),
        Shown("michel-real", "heads that go for free"),
    ),
    "specialised heads are the last that gates close": (
        Shown("voita-gates", "a specialised head outlives another one", "(chance: 0.5)"),
        Shown("voita-real", "a specialised head outlives another one", "(chance: 0.5)"),
    ),
    "heads that retrieve": (
        Shown("wu-masking", "heads with a retrieval score above 0.1"),
        Shown("wu-retrieval", "heads with a retrieval score above 0.1"),
    ),
    "half of the key/value heads stream: pass keys still found": (
        None,
        Shown("xiao-duo", "... of those that all heads write"),
    ),
    "one key/value head from several: their mean beats the first": (
        Shown("gqa-uptrain", "MQA: mean less first, nats a byte", "nats a byte"),
        Shown("ainslie-uptrain", "after uptraining: mean less first", "nats a token"),
    ),
    "at too high a learning rate attention entropy falls to 0": (
        Shown("zhai-collapse", "entropy of the layer with most, high rate, nats", "nats"),
        None,
    ),
    "QK-clip costs no loss": (
        Shown("kimi-clip", "loss with QK-clip over Muon alone, nats", "nats"),
        None,
    ),
}
"""What the first table shows: a small model's row and a real one's. None: there is no such reproduction."""

LONGEST_NOTE = 50  # words

SEEDS = re.compile(r"^\|(.*?)\|(.*?)\|(.*?)\|(.*?)\|", re.MULTILINE)
"""A row of a table as far as its mean."""

COMPARED = """\
## Clark et al. 2019: the same heads by their code and by our statistics

**The paper.** Clark, Khandelwal, Levy, Manning 2019, What Does BERT Look At? An Analysis of BERT's Attention (section
4).

**Compared.** Their measurement, written after their published code and its quirks, and [ours](statistics.md)
(`det.to_governor.given` and so on) of the same heads of `minilm` on the same treebanks: all relations with at least
100 arcs. It was measured once, on 2026-11-27; that code has since left the package.

| of every relation, over 72 heads | English EWT, dev (2,001 sentences) | English GUM, dev, its free part (1,383) |
|---|---|---|
| their code: the same best head, dependent to governor | 27 of 30 | 27 of 29 |
| ... governor from dependent (`received`) | 28 of 30 | 28 of 29 |
| ... a head's accuracy apart: mean, largest | 0.006, 0.167 | 0.004, 0.120 |
| with a word's mean row, the text as written, no quirks: the same best head | 30 and 30 of 30 | 29 and 29 of 29 |
| ... a head's accuracy apart: mean, largest | 0.0003, 0.022 | 0.0001, 0.014 |

| relation in EWT | head | by their code | ours |
|---|---|---|---|
| determiner to noun (det) | L2H8 | 80.8% | 81.0% |
| object to verb (obj) | L2H0 | 74.4% | 73.8% |
| subject to verb (nsubj) | L2H8 | 57.5% | 58.9% |
| auxiliary to verb (aux) | L1H4 | 66.4% | 74.2% |
| passive auxiliary to verb (aux:pass) | L1H4 | 85.2% | 85.6% |

Coreference, which they describe and never published: in 228 passages of GUM the best head is L2H9 by both, right for
47.2% of 2,301 mentions by theirs (the nearest mention: 24.8%, the same head word: 49.3%), and 47.7% by ours.

The difference is the text: their code joins words by blanks ("do n't") and takes a word's first piece as its row; ours
reads the text as it was written, and takes the mean over a word's pieces.

**Not comparable.** The paper's own figures are of BERT-base on the Penn Treebank in Stanford Dependencies.
"""


def documents() -> dict[str, dict[str, Any]]:
    """The results by the name of their file, in the order of the list of reproductions."""
    order = list(REPRODUCTIONS)
    read = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    return dict(sorted(read.items(), key=lambda item: order.index(item[1]["name"])))


def first_table(results: Mapping[str, dict[str, Any]]) -> str:
    """Result, small model, real model, paper. Errors: KeyError for a row that its result does not have."""
    lines = ["| result | a small model | a real model | the paper |", "|---|---|---|---|"]
    for words, models in FIRST.items():
        cells, papers = list[str](), list[str]()
        for shown in models:
            document = None if shown is None else results.get(shown.stem)
            if shown is None or document is None:
                cells.append("–" if shown is None else "no whole run yet")
                continue
            rows = [row for row in document["rows"] if row["quantity"].startswith(shown.quantity)]
            if not rows:
                raise KeyError(f"{shown.stem} has no row {shown.quantity!r}: mend FIRST")
            number = mean_words(rows[0]) or each_words(rows[0])
            cells.append(" ".join(filter(None, (number, shown.unit, f"**{rows[0]['verdict']}**"))))
            papers.append(rows[0]["paper"])
        name = next(shown for shown in models if shown is not None).stem.split(".")[0]
        source = REPRODUCTIONS[name].meaning.partition(":")[0]
        lines.append(f"| {words} | {' | '.join(cells)} | {': '.join(filter(None, (source, '; '.join(papers[-1:]))))} |")
    return "\n".join(lines)


def page() -> str:
    """The opening with its table, which reproductions were not run whole, and the results."""
    results = documents()
    parts = [OPENING.format(table=first_table(results))]
    made = {document["name"] for document in results.values()}
    if missing := [f"`{name}`" for name in REPRODUCTIONS if name not in made]:
        parts.append(f"There is no whole run yet of {', '.join(missing)}.\n")
    return "\n".join([*parts, *(_part(document, stem) for stem, document in results.items()), COMPARED])


def _part(document: dict[str, Any], stem: str) -> str:
    """A result in short: what `manyheads reproduce` writes into a folder, without what stands in the first table.

    Long notes say what each seed gave: the result's file has them.
    """
    notes = [note for note in document["notes"] if len(note.split()) <= LONGEST_NOTE]
    if len(notes) < len(document["notes"]):
        notes.append(f"What each seed gave: `docs/reproduced/{stem}.json`.")
    whole = markdown(document | {"notes": notes}, f"../images/reproduce/{stem}.svg", level=2)
    left = ("**What it reports.**", "Made by `")
    parts = [part for part in whole.split("\n\n") if not part.startswith(left)]
    text = "\n\n".join(parts).strip() + "\n"
    return SEEDS.sub(lambda row: f"|{row[1]}|{row[2]}|{row[4] if row[4].strip() else row[3]}|", text)


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
