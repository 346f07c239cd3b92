"""Readers of texts to be measured: plain ones, JSON lines, treebanks, packed or not, and folders of them."""

from __future__ import annotations

import gzip
import io
import shutil
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from manyheads.corpora import open_corpus
from tests.robustness.mutations import DEEP_JSON, DIGITS
from tests.robustness.target import Read, Target

PARTED = b"\n--8<--\n"  # between the files of a folder
CORPUS_TEXTS = 500  # of a corpus read to its end: no example has so many

CONLLU = """# newdoc id = d1
# global.Entity = GRP-etype-infstat-minspan-centering-link-identity
# sent_id = d1-1
# text = The cat's mat isn't here.
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\tEntity=(1-animal-new-2-cf1-coref
2-3\tcat's\t_\t_\t_\t_\t_\t_\t_\t_
2\tcat\tcat\tNOUN\tNN\tNumber=Sing\t4\tnmod:poss\t_\tEntity=1)
3\t's\t's\tPART\tPOS\t_\t2\tcase\t_\t_
4\tmat\tmat\tNOUN\tNN\t_\t7\tnsubj\t_\t_
5-6\tisn't\t_\t_\t_\t_\t_\t_\t_\t_
5\tis\tbe\tAUX\tVBZ\t_\t7\tcop\t_\t_
6\tn't\tnot\tPART\tRB\t_\t7\tadvmod\t_\t_
7\there\there\tADV\tRB\t_\t0\troot\t_\tSpaceAfter=No|Entity=(2-place-giv-1-cf2-ana)
8\t.\t.\tPUNCT\t.\t_\t7\tpunct\t_\t_
8.1\tgone\tgo\tVERB\tVBN\t_\t_\t_\t7:dep\t_

# sent_id = d1-2
1\tIt\tit\tPRON\tPRP\t_\t2\tnsubj\t_\tEntity=(1-animal-giv-1-cf1-ana)
2\tsat\tsit\tVERB\tVBD\t_\t0\troot\t_\t_

"""


def corpus_of(name: str, **options: Any) -> Read:
    """A reader of one file of a corpus, to its end."""

    def read(data: bytes, folder: Path) -> None:
        (folder / name).write_bytes(data)
        documents = list(islice(open_corpus(folder / name, **options).open(), CORPUS_TEXTS))
        for each in documents:
            assert each.text or each.problem, each
            for word in each.gold.words if each.gold else ():
                assert 0 <= word.begin < word.end <= len(each.text)

    return read


def read_folder(data: bytes, folder: Path) -> None:
    """Several files at once: parts of the data, each by another ending."""
    names = ("a.txt", "b/c.jsonl", "b/d.conllu", "e.txt.gz", "f.md", "g.unknown", "noending")
    shutil.rmtree(folder / "corpus", ignore_errors=True)
    (folder / "corpus" / "b").mkdir(parents=True)
    for name, part in zip(names, data.split(PARTED), strict=False):
        (folder / "corpus" / name).write_bytes(part)
    list(islice(open_corpus(folder / "corpus").open(), CORPUS_TEXTS))


def texts() -> list[bytes]:
    return [
        b"The cat sat.\n\nOn the  mat,\tand\r\nslept.\n",
        "\ufeffÜber שלום \U0001f600\n\n\n".encode(),
        b"one line, no end",
    ]


def json_lines() -> list[bytes]:
    return [
        b'{"text": "The cat sat.", "id": 3}\n{"text": "\\u00fcber"}\n\n{"other": [1, {"a": null}]}\n{"text": "  "}\n',
        b'["no object"]\n{"text": 3}\n{"text": "\\ud800"}\n',
    ]


def packed(examples: list[bytes]) -> list[bytes]:
    return [gzip.compress(each, mtime=0) for each in examples] + [gzip.compress(b"a\n", mtime=0) * 3]


@cache
def zeros(size: int, fill: bytes = b"a", end: bytes = b"") -> bytes:
    """A small gz file of `size` bytes without a line break."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        block = fill * (1 << 20)
        for _ in range(size // len(block)):
            file.write(block)
        file.write(end)
    return out.getvalue()


def folders() -> list[bytes]:
    return [PARTED.join((texts()[0], json_lines()[0], CONLLU.encode(), packed(texts())[0], b"# a"))]


RANGE = b"1-999999999\ta\t_\t_\t_\t_\t_\t_\t_\t_\n1\ta\ta\t_\t_\t_\t0\troot\t_\t_\n\n"
WORD = b"1\ta\ta\t_\t_\t_\t0\troot\t_\t_\n"
LINES = {"a line of 600 MB": lambda: zeros(600 << 20), "short lines": lambda: zeros(1 << 22, b"a\n")}
TEXTS = {**LINES, "a line of 127 MB": lambda: zeros(127 << 20, end=b"\n\nb\n")}
TREES = {"comments": lambda: zeros(1 << 21, b"# a\n"), "words": lambda: zeros(1 << 21, WORD)}
LISTS = {"a list of lists": lambda: gzip.compress(b"[" + b"[]," * (3 << 20) + b"[]]\n", 1)}
HELD_MB = 1024  # what stands between two empty lines is held, up to 128 MB of it, and read

CORPUS_TARGETS = (
    Target("conllu", lambda: [CONLLU.encode()], corpus_of("a.conllu"),
           {"a range": RANGE, "long number": DIGITS + WORD}),
    Target("passages", lambda: [CONLLU.encode() * 3], corpus_of("a.conllu", unit="passage"), {}),
    Target("jsonl", json_lines, corpus_of("a.jsonl"), {"deep": DEEP_JSON}),
    Target("text", texts, corpus_of("a.txt"), {}),
    Target("lines", texts, corpus_of("a.txt", lines=True), {}),
    Target("gz text", lambda: packed(texts()), corpus_of("a.txt.gz"), TEXTS, megabytes=HELD_MB),
    Target("gz lines", lambda: packed(texts()), corpus_of("a.txt.gz", lines=True), LINES, megabytes=HELD_MB),
    Target("gz conllu", lambda: packed([CONLLU.encode()]), corpus_of("a.conllu.gz"), TREES, megabytes=HELD_MB),
    Target("gz jsonl", lambda: packed(json_lines()), corpus_of("a.jsonl.gz"), LISTS, megabytes=HELD_MB),
    Target("folder", folders, read_folder, {}),
)  # fmt: skip
