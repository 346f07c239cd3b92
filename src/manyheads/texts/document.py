"""One text, and what is known of it: where it is from, what people annotated in it, what is to be written of it."""

from __future__ import annotations

from dataclasses import dataclass

from manyheads.texts.tokens import Gold


@dataclass(frozen=True)
class Document:
    """One text. `name` says where it is from ("page.txt:12", a treebank's sent_id); `gold` is what people annotated.

    `target` is what an encoder-decoder is to write of it. `at` is how far reading has come with it, in the units of
    the corpus' `total` (bytes of files, else texts). `problem` says why there is no text where one was to be read (a
    broken line of JSON, say); `text` is empty then. A reader of a corpus counts and reports such documents, but goes
    on: one bad line of millions ends no run.
    """

    text: str
    name: str = ""
    gold: Gold | None = None
    target: str | None = None
    at: int = 0
    problem: str = ""
