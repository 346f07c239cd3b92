"""One way in for all that texts come from: files of texts, of JSON lines, treebanks, folders, stdin, datasets.

Nothing is read but as it is asked for, so a corpus may be as large as it likes. What a file is goes by its ending:
`.txt`, `.md`, `.rst`, `.py` and none (texts in UTF-8), `.jsonl` and `.ndjson`, `.conllu`; each also with `.gz`.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from manyheads.corpora.corpus import Corpus, Document
from manyheads.corpora.lines import KINDS, STDIN, Line, Source, digest_of, find_sources, numbered_lines, stretches
from manyheads.corpora.treebanks import PASSAGE_WORDS, UNITS, treebank_documents
from manyheads.errors import FileAccessError, TextError


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


# ---------------------------------------------------------------------------------------------------------------------
# Texts out of lines: paragraphs, the lines themselves, or a field of JSON objects, one a line.


MOST_JSON = 32 << 20  # characters of a line of JSON: what it becomes may take twenty times as much
UNEVEN = re.compile(r"[^\S ]|  ")  # white space other than single blanks
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can write what no UTF-8 can hold, nor any tokenizer take


def paragraph_documents(lines: Iterable[Line], name: str) -> Iterator[Document]:
    """Stretches of lines parted by empty ones; line breaks and runs of white space inside become a blank.

    A paragraph is called after its first line ("page.txt:12"). One line that cannot be read spoils its paragraph.
    """
    for held in stretches(lines):
        yield _paragraph(held, name)


def line_documents(lines: Iterable[Line], name: str) -> Iterator[Document]:
    """Each line a text, without the white space around it; empty lines are none."""
    for line in lines:
        text = line.text.strip()
        if text or line.problem:
            yield Document(text, f"{name}:{line.number}", at=line.at, problem=line.problem)


def json_documents(lines: Iterable[Line], name: str, field: str) -> Iterator[Document]:
    """`field` of each line's JSON object, as it is. Empty lines and empty texts are none; what is broken says so."""
    for line in lines:
        text, problem = "", line.problem
        if len(line.text) > MOST_JSON:
            problem = f"this line is longer than {MOST_JSON >> 20} MB of JSON: break it up."
        elif line.text.strip():
            try:
                text, problem = text_of(json.loads(line.text), field)
            except (ValueError, RecursionError) as error:
                told = f"{error.msg}, column {error.colno:,}" if isinstance(error, json.JSONDecodeError) else error
                problem = f"this line is not JSON ({told})."
        if text.strip() or problem:
            yield Document(text, f"{name}:{line.number}", at=line.at, problem=problem)


def text_of(row: object, field: str) -> tuple[str, str]:
    """The text in a field of a row, or "" and the problem."""
    if not isinstance(row, dict):
        return "", f"this is no object with a field {field!r}, but {_told(row)}."
    if field not in row:
        return "", f"there is no field {field!r}. There is: {', '.join(map(repr, row)) or 'none'}."
    text = row[field]
    if not isinstance(text, str):
        return "", f"the field {field!r} holds no text, but {_told(text)}."
    if SURROGATE.search(text):
        return "", f"the field {field!r} holds half a character (a lone surrogate)."
    return text, ""


def _paragraph(held: list[Line], name: str) -> Document:
    problem = next((line.problem for line in held if line.problem), "")
    text = "" if problem else " ".join(_evened(line.text) for line in held)
    return Document(text, f"{name}:{held[0].number}", at=held[-1].at, problem=problem)


def _evened(text: str) -> str:
    """Single blanks between words. A line of 100 MB that has them already is not taken apart: that costs gigabytes."""
    return " ".join(text.split()) if UNEVEN.search(text) else text.strip()


def _told(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing (null)"}
    return kinds.get(type(value), "a number")


# ---------------------------------------------------------------------------------------------------------------------
# Datasets of the Hugging Face Hub as texts, streamed: "hf:NAME[:CONFIGURATION][:SPLIT]".
#
# The `datasets` library does it, where it is installed: most corpora are files, so it is no dependency. A folder of
# data files by its path stands for a dataset, too, as it does there.


PREFIX = "hf:"
DEFAULT_SPLIT = "train"


@dataclass(frozen=True)
class Dataset:
    """A split of a dataset. `key` says which version of it this is: the commit on the Hub, or a digest of its files."""

    name: str
    key: str
    rows: Iterable[Mapping[str, Any]]


def open_dataset(given: str) -> Dataset:
    """The dataset that "hf:..." names; its rows are fetched when they are read.

    Errors: TextError for a name that cannot be read and for a split that is not there; FileAccessError where the
    library is missing, or cannot get the dataset (no network, no such name, no permission).
    """
    parts = given.removeprefix(PREFIX).split(":")
    if not all(parts) or len(parts) > 3:
        raise TextError(f"{given!r} names no dataset: write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIGURATION:SPLIT.")
    name, configuration = parts[0], parts[1] if len(parts) == 3 else None
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise FileAccessError(
            f"{given} is read by the `datasets` library, which is not installed ({error}): pip install datasets."
        ) from error
    try:
        builder = library.load_dataset_builder(name, configuration)
        streams: Mapping[str, Any] = builder.as_streaming_dataset()
    except Exception as error:  # a foreign library: what it raises differs by version and by what is wrong
        raise FileAccessError(
            f"cannot open {given}: {_reason(error)}. Check the name (hf:NAME:CONFIGURATION:SPLIT where it has several "
            f"configurations), the network, and your login where it needs one (hf auth login). A dataset that was "
            f"downloaded can be given by its folder, hf:/path/to/folder."
        ) from error
    split = parts[-1] if len(parts) > 1 else _only_split(list(streams))
    if split is None or split not in streams:
        asked = "does not say which split" if split is None else f"asks for the split {split!r}"
        raise TextError(f"{given} {asked}: there is {', '.join(streams)}. Add one after a colon.")
    return Dataset(given, f"{given} {split} {builder.hash}", streams[split])


def dataset_documents(dataset: Dataset, field: str) -> Iterator[Document]:
    """`field` of each row; rows count from 1, and empty texts are none. Errors: FileAccessError, midway."""
    number = 0
    try:
        for number, row in enumerate(dataset.rows, 1):
            text, problem = text_of(row, field)
            if text.strip() or problem:
                yield Document(text, f"{dataset.name} row {number}", at=number, problem=problem)
    except Exception as error:  # as above; what is done with a document does not come through here
        raise FileAccessError(f"cannot read {dataset.name} after row {number:,}: {_reason(error)}.") from error


def _only_split(splits: list[str]) -> str | None:
    return DEFAULT_SPLIT if DEFAULT_SPLIT in splits else splits[0] if len(splits) == 1 else None


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
