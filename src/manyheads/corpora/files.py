"""One way in for all that texts come from: files of texts, of JSON lines, treebanks, folders, stdin, datasets.

Nothing is read but as it is asked for, so a corpus may be as large as it likes. What a file is goes by its ending:
`.txt`, `.md`, `.rst`, `.py` and none (texts in UTF-8), `.jsonl` and `.ndjson`, `.conllu`; each also with `.gz`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from manyheads.corpora.documents import Corpus, Document
from manyheads.corpora.hub import PREFIX, Dataset, dataset_documents, open_dataset
from manyheads.corpora.plaintext import json_documents, line_documents, paragraph_documents
from manyheads.corpora.sources import KINDS, STDIN, Line, Source, digest_of, find_sources, numbered_lines
from manyheads.corpora.treebanks import PASSAGE_WORDS, UNITS, treebank_documents
from manyheads.errors import TextError


@dataclass(frozen=True)
class Part:
    """One source of a corpus. `size` is in bytes, None where unknown; `once` says that it cannot be read again."""

    documents: Callable[[], Iterator[Document]]
    key: str
    size: int | None
    once: bool = False


def open_corpus(
    sources: str | Path | Sequence[str | Path],
    *,
    kind: str | None = None,
    lines: bool = False,
    field: str = "text",
    unit: str = "sentence",
) -> Corpus:
    """Texts from files, folders, "-" (stdin) and "hf:NAME[:SPLIT]" (a Hugging Face dataset), one after another.

    `kind` ("text", "jsonl", "conllu") says what they hold where the ending does not, or says otherwise. Texts are
    paragraphs, parted by empty lines, or each line with `lines=True`; of JSON objects, what is in `field`; of
    treebanks, sentences or, with `unit="passage"`, up to 128 words of them.

    A document is called by file and line ("page.txt:12") or by its sent_id. One that cannot be read has a `problem`.
    The key is made of names, sizes and digests (of files over 64 MB: size, time of change and both ends) and of the
    options; no two readings of stdin have the same. Opening costs one pass over files up to 64 MB.
    Errors: TextError, FileAccessError.
    """
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    _check(given, kind, unit)
    options = {"text": f"{lines=}", "jsonl": f"{field=}", "conllu": f"{unit=} of {PASSAGE_WORDS}"}
    readers: dict[str, Callable[[Iterator[Line], str], Iterator[Document]]] = {
        "text": line_documents if lines else paragraph_documents,
        "jsonl": lambda read, name: json_documents(read, name, field),
        "conllu": lambda read, name: treebank_documents(read, name, unit),
    }
    found = _distinct([source for each in given for source in _find(each, kind)])
    parts = [
        _dataset_part(source, field)
        if isinstance(source, Dataset)
        else _file_part(source, readers[source.kind], options[source.kind])
        for source in found
    ]
    spent: list[bool] = []

    def open_anew() -> Iterator[Document]:
        if any(part.once for part in parts):
            if spent:
                raise TextError("stdin and pipes can be read once only. To read them again, write them to a file.")
            spent.append(True)
        return _documents(parts)

    sizes = [part.size for part in parts]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    digest = hashlib.blake2b("\n".join(part.key for part in parts).encode(), digest_size=16).hexdigest()
    return Corpus(open_anew, _origin(given, len(parts)), digest, total)


def _check(given: Sequence[str | Path], kind: str | None, unit: str) -> None:
    if not given or "" in given:
        raise TextError("no source was given: name a file, a folder, - (stdin) or hf:NAME (a dataset).")
    if list(given).count(STDIN) > 1:
        raise TextError(f"{STDIN} (stdin) was given {list(given).count(STDIN)} times: it can be read once.")
    if kind is not None and kind not in KINDS:
        raise TextError(f"{kind=} is no kind of text. Use one of {', '.join(KINDS)}, or None: the ending tells.")
    if unit not in UNITS:
        raise TextError(f"{unit=} is no unit of treebanks. Use one of {', '.join(UNITS)}.")


def _find(given: str | Path, kind: str | None) -> Sequence[Source | Dataset]:
    if isinstance(given, str) and given.startswith(PREFIX):
        return [open_dataset(given)]
    return find_sources(given, kind)


def _distinct(found: Sequence[Source | Dataset]) -> list[Source | Dataset]:
    """Files of one name are called by their paths, so that a document's name says where it is."""
    times = Counter(source.name for source in found)
    return [
        replace(source, name=str(source.path))
        if isinstance(source, Source) and source.path is not None and times[source.name] > 1
        else source
        for source in found
    ]


def _file_part(source: Source, read: Callable[[Iterator[Line], str], Iterator[Document]], option: str) -> Part:
    once = source.size is None
    digest = secrets.token_hex(16) if once else digest_of(source)
    key = f"{source.name} {source.size} {digest} {source.kind} {option}"
    return Part(lambda: read(numbered_lines(source), source.name), key, source.size, once)


def _dataset_part(dataset: Dataset, field: str) -> Part:
    return Part(lambda: dataset_documents(dataset, field), f"{dataset.key} {field=}", None)


def _documents(parts: Sequence[Part]) -> Iterator[Document]:
    """All documents, each with the bytes read so far over all parts."""
    before = 0
    for part in parts:
        for document in part.documents():
            yield replace(document, at=before + document.at) if before else document
        before += part.size or 0


def _origin(given: Sequence[str | Path], count: int) -> str:
    if len(given) > 1:
        return f"{count} sources" if any(_is_no_file(each) for each in given) else f"{count} files"
    (only,) = given
    if only == STDIN:
        return "stdin"
    if _is_no_file(only):
        return str(only)
    return f"folder {only} ({count} {'file' if count == 1 else 'files'})" if Path(only).is_dir() else f"file {only}"


def _is_no_file(given: str | Path) -> bool:
    return given == STDIN or (isinstance(given, str) and given.startswith(PREFIX))
