"""Where texts come from: files, datasets, stdin.

`open_corpus` is the one way in: files of texts, of JSON lines, treebanks, folders, stdin, datasets. A text is read when
it is its turn, so a corpus may be of any size. The kind of a file goes by its ending: `.txt`, `.md`, `.rst`, `.py` and
none (texts in UTF-8), `.jsonl` and `.ndjson`, `.conllu`; each also with `.gz`.

Datasets of the Hugging Face Hub are streamed: "hf:NAME[:CONFIGURATION][:SPLIT]". The `datasets` library does it, where
it is installed: most corpora are files, so it is not a dependency. The path of a folder of data files stands for a
dataset as well, as it does there.

What is read where no corpus is given: `own_texts.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from manyheads.base import no_access, one_of, plural
from manyheads.corpora.corpus import Corpus
from manyheads.corpora.lines import KINDS, STDIN, Kind, Line, Source, digest_of, find_sources, numbered_lines, stretches
from manyheads.corpora.treebanks import PASSAGE_WORDS, UNITS, Unit, treebank_documents
from manyheads.errors import FileAccessError, TextError
from manyheads.texts import Document

MOST_JSON = 32 << 20  # characters of a line of JSON: what it becomes may take twenty times as much
UNEVEN = re.compile(r"[^\S ]|  ")  # white space other than single blanks
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can write what no UTF-8 can hold, nor any tokenizer take
PREFIX = "hf:"
DEFAULT_SPLIT = "train"


@dataclass(frozen=True)
class Part:
    """One source of a corpus. `size` is in bytes, None where unknown; `once` says that it cannot be read again."""

    documents: Callable[[], Iterator[Document]]
    key: str
    size: int | None
    source: Source | Dataset
    once: bool = False


@dataclass(frozen=True)
class Reader:
    """How files are read, whatever their kind: the options of `open_corpus`."""

    lines: bool
    field: str
    unit: str

    def part_of(self, source: Source | Dataset) -> Part:
        """A source, named by its digest. Errors: FileAccessError."""
        if isinstance(source, Dataset):
            field = self.field
            return Part(lambda: dataset_documents(source, field), f"{source.key} {field=}", None, source)
        once = source.size is None
        # A stream cannot be hashed without using it up: a random key keeps two readings of stdin apart.
        digest = secrets.token_hex(16) if once else digest_of(source)
        lines, field, unit = self.lines, self.field, self.unit
        options = {"text": f"{lines=}", "jsonl": f"{field=}", "conllu": f"{unit=} of {PASSAGE_WORDS}"}
        key = f"{source.name} {source.size} {digest} {source.kind} {options[source.kind]}"
        return Part(partial(self.documents, source), key, source.size, source, once)

    def documents(self, source: Source) -> Iterator[Document]:
        """The texts of a file, from its beginning."""
        lines = numbered_lines(source)
        if source.kind == "jsonl":
            return json_documents(lines, source.name, self.field)
        if source.kind == "conllu":
            return treebank_documents(lines, source.name, self.unit)
        return (line_documents if self.lines else paragraph_documents)(lines, source.name)


def open_corpus(
    sources: str | Path | Sequence[str | Path],
    *,
    kind: Kind | None = None,
    lines: bool = False,
    field: str = "text",
    unit: Unit = "sentence",
) -> Corpus:
    """Texts from files, folders, "-" (stdin) and "hf:NAME[:SPLIT]" (a Hugging Face dataset), one after another.

    `kind` ("text", "jsonl", "conllu") says what they hold where the ending does not, or says otherwise. Texts are
    paragraphs, separated by empty lines, or single lines with `lines=True`; in JSON objects, what is in `field`; in
    treebanks, sentences or, with `unit="passage"`, up to 128 words of them.

    A document is called by file and line ("page.txt:12") or by its sent_id. One that cannot be read has a `problem`.
    The key is made of names, sizes and digests (of files over 64 MB: size, time of change and both ends) and of the
    options; no two readings of stdin have the same. Opening costs one pass over files up to 64 MB.
    Errors: TextError, FileAccessError.
    """
    names = [sources] if isinstance(sources, str | Path) else list(sources)
    if not names or "" in names:
        raise TextError("no source was given: name a file, a folder, - (stdin) or hf:NAME (a dataset).")
    if names.count(STDIN) > 1:
        raise TextError(f"{STDIN} (stdin) was given {names.count(STDIN)} times: it can be read once.")
    if kind is not None:
        one_of("kind", kind, KINDS, TextError, "is not a kind of text", ", or None: the ending tells")
    one_of("unit", unit, UNITS, TextError, "is not a unit of treebanks")
    how = Reader(lines, field, unit)
    all_sources: list[Source | Dataset] = []
    for name in names:
        if isinstance(name, str) and name.startswith(PREFIX):
            all_sources.append(open_dataset(name))
        else:
            all_sources += find_sources(name, kind)
    # Files of one name are called by their paths, so that a document says where it is.
    times = Counter(source.name for source in all_sources)
    parts = [
        how.part_of(
            replace(source, name=str(source.path))
            if isinstance(source, Source) and source.path is not None and times[source.name] > 1
            else source
        )
        for source in all_sources
    ]
    opened = False

    def open_anew() -> Iterator[Document]:
        nonlocal opened
        if opened and once:
            raise TextError("stdin and pipes can be read once only. To read them again, write them to a file.")
        opened = True
        return documents()

    def documents() -> Iterator[Document]:
        # `at` counts on over all files, so that progress is one bar for the whole corpus.
        bytes_before = 0
        for part in parts:
            for document in part.documents():
                yield replace(document, at=bytes_before + document.at) if bytes_before else document
            bytes_before += part.size or 0

    sizes = [part.size for part in parts]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    digest = hashlib.blake2b("\n".join(part.key for part in parts).encode(), digest_size=16).hexdigest()
    once = any(part.once for part in parts)
    again = None if once else partial(open_corpus, names, kind=kind, lines=lines, field=field, unit=unit)

    def again_of(source: Source) -> Callable[[], Corpus]:
        # By its whole path: another process may be at work in another folder.
        return partial(_file_of, how, replace(source, path=source.path and source.path.absolute()))

    files = tuple(
        Corpus(part.documents, source.name, part.key, part.size, again=again_of(part.source))
        for source, part in zip(all_sources, parts, strict=True)
        if isinstance(part.source, Source) and not part.once
    )
    are_files = [name != STDIN and not (isinstance(name, str) and name.startswith(PREFIX)) for name in names]
    if len(names) > 1:
        origin = f"{len(parts)} {'files' if all(are_files) else 'sources'}"
    elif names[0] == STDIN:
        origin = "stdin"
    elif not are_files[0]:
        origin = str(names[0])
    else:
        is_folder = Path(names[0]).is_dir()
        origin = f"folder {names[0]} ({plural(len(parts), 'file')})" if is_folder else f"file {names[0]}"
    return Corpus(open_anew, origin, digest, total, files if len(files) == len(parts) else (), again=again)


def _file_of(how: Reader, source: Source) -> Corpus:
    """One of a corpus' files, by its whole path: no other file is opened for it. Errors: FileAccessError."""
    assert source.path is not None, "what can be read once has no files"
    try:
        part = how.part_of(replace(source, size=source.path.stat().st_size))
    except OSError as error:
        raise no_access("read", source.path, error) from error
    return Corpus(part.documents, source.name, part.key, part.size, again=partial(_file_of, how, source))


def paragraph_documents(lines: Iterable[Line], name: str) -> Iterator[Document]:
    """Stretches of lines parted by empty ones; line breaks and runs of white space inside become a blank.

    A paragraph is called after its first line ("page.txt:12"). One line that cannot be read spoils its paragraph.
    """
    for stretch in stretches(lines):
        problem = next((line.problem for line in stretch if line.problem), "")
        # A line of 100 MB with single blanks is not taken apart: its words as objects would take gigabytes.
        texts = (" ".join(line.text.split()) if UNEVEN.search(line.text) else line.text.strip() for line in stretch)
        text = "" if problem else " ".join(texts)
        yield Document(text, f"{name}:{stretch[0].number}", at=stretch[-1].at, problem=problem)


def line_documents(lines: Iterable[Line], name: str) -> Iterator[Document]:
    """Each line a text, without the white space around it; empty lines are none."""
    for line in lines:
        text = line.text.strip()
        if text or line.problem:
            yield Document(text, f"{name}:{line.number}", at=line.at, problem=line.problem)


def json_documents(lines: Iterable[Line], name: str, field: str) -> Iterator[Document]:
    """`field` of each line's JSON object, as it is. Empty lines and texts are none; broken lines have a problem."""
    for line in lines:
        text, problem = "", line.problem
        if len(line.text) > MOST_JSON:
            problem = f"this line is longer than {MOST_JSON >> 20} MB of JSON: break it up."
        elif line.text.strip():
            try:
                text, problem = text_of(json.loads(line.text), field)
            except (ValueError, RecursionError) as error:
                reason = f"{error.msg}, column {error.colno:,}" if isinstance(error, json.JSONDecodeError) else error
                problem = f"this line is not JSON ({reason})."
        if text.strip() or problem:
            yield Document(text, f"{name}:{line.number}", at=line.at, problem=problem)


def text_of(row: object, field: str) -> tuple[str, str]:
    """The text in a field of a row, or "" and the problem."""
    if not isinstance(row, dict):
        return "", f"this is not an object with a field {field!r}, but {_json_kind(row)}."
    row = cast("dict[str, object]", row)
    if field not in row:
        return "", f"there is no field {field!r}. There is: {', '.join(map(repr, row)) or 'none'}."
    text: object = row[field]
    if not isinstance(text, str):
        return "", f"the field {field!r} holds no text, but {_json_kind(text)}."
    if SURROGATE.search(text):
        return "", f"the field {field!r} holds half a character (a lone surrogate)."
    return text, ""


def _json_kind(value: object) -> str:
    kinds: dict[type, str] = {
        dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing (null)",
    }  # fmt: skip
    return kinds.get(type(value), "a number")


@dataclass(frozen=True)
class Dataset:
    """A split of a dataset. `key` says which version of it this is: the commit on the Hub, or a digest of its files."""

    name: str
    key: str
    rows: Iterable[Mapping[str, Any]]


def open_dataset(source: str) -> Dataset:
    """The dataset that "hf:..." names; its rows are fetched when they are read.

    Errors: TextError for a name that cannot be read and for a split that is not there; FileAccessError where the
    library is missing, or cannot get the dataset (no network, no such name, no permission).
    """
    parts = source.removeprefix(PREFIX).split(":")
    if not all(parts) or len(parts) > 3:
        raise TextError(f"{source!r} names no dataset: write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIGURATION:SPLIT.")
    name, configuration = parts[0], parts[1] if len(parts) == 3 else None
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise FileAccessError(
            f"{source} is read by the `datasets` library, which is not installed ({error}): pip install datasets."
        ) from error
    try:
        builder = library.load_dataset_builder(name, configuration)
        streams: Mapping[str, Any] = builder.as_streaming_dataset()
    except Exception as error:  # a foreign library: what it raises differs by version and by what is wrong
        raise FileAccessError(
            f"cannot open {source}: {_reason(error)}. Check the name (hf:NAME:CONFIGURATION:SPLIT where it has several "
            f"configurations), the network, and your login where it needs one (hf auth login). A dataset that was "
            f"downloaded can be given by its folder, hf:/path/to/folder."
        ) from error
    if len(parts) > 1:
        split = parts[-1]
    else:
        split = DEFAULT_SPLIT if DEFAULT_SPLIT in streams else next(iter(streams)) if len(streams) == 1 else None
    if split is None or split not in streams:
        mistake = "does not say which split" if split is None else f"asks for the split {split!r}"
        raise TextError(f"{source} {mistake}: there is {', '.join(streams)}. Add one after a colon.")
    return Dataset(source, f"{source} {split} {builder.hash}", streams[split])


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


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
