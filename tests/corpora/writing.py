"""Corpora as tests write them: CoNLL-U, a sentence of words at a time and as readers take it; files of every kind."""

import gzip
from collections.abc import Sequence
from pathlib import Path

from manyheads.corpora.lines import Line
from manyheads.corpora.treebanks import treebank_documents
from manyheads.texts import Document

NO_HEAD = "_"


def token(number: object, form: str, pos: str = "X", head: object = NO_HEAD, relation: str = "dep", misc: str = "_"):
    return f"{number}\t{form}\t_\t{pos}\t_\t_\t{head}\t{relation}\t_\t{misc}"


def sentence(*tokens: str, **comments: str) -> str:
    """Comments by their names, `sent_id=`, `text=`; "__" stands for the point in "global.Entity", "_id" after newdoc
    for " id"."""
    names = {"global__Entity": "global.Entity", "newdoc_id": "newdoc id"}
    said = [f"# {names.get(name, name)} = {value}" for name, value in comments.items()]
    return "\n".join([*said, *tokens]) + "\n\n"


def chain(forms: Sequence[str], entities: Sequence[str] = (), **comments: str) -> str:
    """A sentence whose words hang each on the one before; `entities` are what Entity= says on each, "" for nothing."""
    marks = [*entities, *[""] * len(forms)]
    tokens = [
        token(number, form, head=number - 1, misc=f"Entity={mark}" if mark else "_")
        for number, (form, mark) in enumerate(zip(forms, marks, strict=False), 1)
    ]
    return sentence(*tokens, **{"text": " ".join(forms), **comments})


def read(text: str, unit: str = "sentence") -> list[Document]:
    lines = (Line(number, line, number) for number, line in enumerate(text.split("\n"), 1))
    return list(treebank_documents(lines, "some.conllu", unit))


PAGE = "One text\nof two lines.\n\n\nAnother, ça va.\n"
CONLLU = chain(["a", "cat"], sent_id="s-1") + chain(["it"], sent_id="s-2")


def write_corpus(folder: Path) -> Path:
    """A file of each kind, plain and packed, some in a folder inside; and what is not a corpus."""
    (folder / "deep").mkdir()
    (folder / ".hidden").mkdir()
    written = {
        "b.txt": PAGE, "a.md": "# Title\n\nProse.", "c.jsonl": '{"text": "json", "body": "other"}\n',
        "deep/d.ndjson": '{"text": "deep"}', "deep/e.conllu": CONLLU, "picture.png": "no text", "LICENSE": "no ending",
        ".hidden/x.txt": "hidden", ".x.txt": "hidden",
    }  # fmt: skip
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, text in {"f.txt.gz": PAGE, "deep/g.conllu.gz": CONLLU, "h.jsonl.gz": '{"text": "packed"}'}.items():
        (folder / name).write_bytes(gzip.compress(text.encode()))
    return folder
