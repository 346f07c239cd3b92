"""A corpus from files, folders and streams: what is found, what documents are called, what reading costs.

What cannot be read is said: lines that are no text, files of another kind, places that are shut.
"""

import gzip
import io
import json
import os
import random
import sys
import threading
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from manyheads.corpora import lines as sources
from manyheads.corpora import open_corpus
from manyheads.corpora.treebanks import PASSAGE_WORDS
from manyheads.errors import FileAccessError, TextError
from tests.corpora.writing import CONLLU, PAGE, chain, write_corpus


@pytest.fixture
def folder(tmp_path):
    return write_corpus(tmp_path)


def told(corpus):
    found = list(corpus.open())
    assert not [each.problem for each in found if each.problem]
    return [(each.name, each.text) for each in found]


PAGE_TOLD = [("b.txt:1", "One text of two lines."), ("b.txt:5", "Another, ça va.")]


def test_paragraphs_or_lines_of_a_file(folder):
    assert told(open_corpus(folder / "b.txt")) == PAGE_TOLD
    assert told(open_corpus(str(folder / "b.txt"), lines=True)) == [
        ("b.txt:1", "One text"),
        ("b.txt:2", "of two lines."),
        ("b.txt:5", "Another, ça va."),
    ]
    assert told(open_corpus([folder / "LICENSE"])) == [("LICENSE:1", "no ending")]


def test_source_and_restructured_text_are_plain_text(tmp_path):
    (tmp_path / "code.py").write_text("def f(x):\n    return x\n\n\nprint(f(1))\n")
    (tmp_path / "page.rst").write_text("Title\n=====\n")
    texts = [(each.name, each.text) for each in open_corpus(tmp_path).open()]
    assert texts == [("code.py:1", "def f(x): return x"), ("code.py:5", "print(f(1))"), ("page.rst:1", "Title =====")]


def test_a_packed_file_reads_as_the_plain_one(folder):
    assert [text for _, text in told(open_corpus(folder / "f.txt.gz"))] == [text for _, text in PAGE_TOLD]
    assert told(open_corpus(folder / "deep/g.conllu.gz")) == [("s-1", "a cat"), ("s-2", "it")]
    assert told(open_corpus(folder / "h.jsonl.gz")) == [("h.jsonl.gz:1", "packed")]


def test_a_folder_is_all_its_files_of_known_kinds_in_order(folder):
    corpus = open_corpus(folder)
    assert [name for name, _ in told(corpus)] == [
        *("a.md:1", "a.md:3", "b.txt:1", "b.txt:5", "c.jsonl:1"),
        *("deep/d.ndjson:1", "s-1", "s-2", "s-1", "s-2", "f.txt.gz:1", "f.txt.gz:5", "h.jsonl.gz:1"),
    ]
    assert corpus.origin == f"folder {folder} (8 files)"
    assert [name for name, _ in told(open_corpus(folder, kind="conllu"))] == ["s-1", "s-2"] * 2


def test_several_sources_come_in_the_order_given_and_files_of_one_name_by_their_paths(folder):
    (folder / "deep/b.txt").write_text("deep b")
    corpus = open_corpus([folder / "deep/b.txt", folder / "c.jsonl", folder / "b.txt"])
    assert [name for name, _ in told(corpus)] == [
        f"{folder}/deep/b.txt:1",
        "c.jsonl:1",
        f"{folder}/b.txt:1",
        f"{folder}/b.txt:5",
    ]
    assert corpus.origin == "3 files"


def test_the_options_matter(folder):
    assert told(open_corpus(folder / "c.jsonl", field="body")) == [("c.jsonl:1", "other")]
    assert told(open_corpus(folder / "deep/e.conllu", unit="passage")) == [("s-1..s-2", "a cat it")]
    assert told(open_corpus(folder / "picture.png", kind="text")) == [("picture.png:1", "no text")]
    assert told(open_corpus(folder / "c.jsonl", kind="text"))[0][1].startswith('{"text"')


def test_reading_goes_on_over_all_files_and_ends_at_the_total(folder):
    corpus = open_corpus(folder)
    at = [each.at for each in corpus.open()]
    sizes = [file.stat().st_size for file in folder.rglob("*.*") if file.suffix != ".png" and "/." not in str(file)]
    assert corpus.total == sum(sizes) == at[-1]
    assert all(before <= after for before, after in pairwise(at)) and at[0] > 0


def test_a_corpus_can_be_opened_again_also_twice_at_a_time(folder):
    corpus = open_corpus(folder)
    first, second = corpus.open(), corpus.open()
    assert next(first) == next(second)
    assert list(first) == list(second) == list(corpus.open())[1:]


def test_the_key_hangs_on_words_names_and_options_and_on_nothing_else(folder, tmp_path):
    keys = {open_corpus(folder / "b.txt").key}
    (folder / "deep/b.txt").write_text(PAGE, encoding="utf-8")
    assert open_corpus(folder / "deep/b.txt").key in keys  # the same file elsewhere
    assert open_corpus(folder / "b.txt", field="body", unit="passage").key in keys  # options of other kinds
    (folder / "copy.txt").write_text(PAGE, encoding="utf-8")
    others = [
        open_corpus(folder / "b.txt", lines=True),
        open_corpus(folder / "copy.txt"),
        open_corpus(folder / "b.txt", kind="jsonl"),
        open_corpus([folder / "b.txt", folder / "copy.txt"]),
        open_corpus(folder / "deep/e.conllu"),
        open_corpus(folder / "deep/e.conllu", unit="passage"),
        open_corpus(folder / "c.jsonl"),
        open_corpus(folder / "c.jsonl", field="body"),
    ]
    (folder / "b.txt").write_text(PAGE.replace("One", "Two"), encoding="utf-8")
    others.append(open_corpus(folder / "b.txt"))
    assert len(keys | {each.key for each in others}) == len(others) + 1


def test_the_key_of_a_large_file_hangs_on_both_ends_size_and_time(folder, monkeypatch):
    monkeypatch.setattr(sources, "WHOLE_BYTES", 100)
    monkeypatch.setattr(sources, "END_BYTES", 10)
    path = folder / "large.txt"

    def key(text: str, time: int = 1):
        path.write_text(text)
        os.utime(path, (time, time))
        return open_corpus(path).key

    before = key("a" * 200)
    assert key("a" * 200) == before
    assert key("a" * 100 + "b" + "a" * 99) == before  # what is said in the docstring: the middle is not looked at
    assert len({before, key("b" + "a" * 199), key("a" * 199 + "b"), key("a" * 201), key("a" * 200, time=2)}) == 5


# ---------------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize(
    "put", [lambda data: io.TextIOWrapper(io.BytesIO(data)), lambda data: io.StringIO(data.decode())]
)
def test_stdin_is_read_once_and_no_two_readings_have_the_same_key(put, monkeypatch):
    monkeypatch.setattr(sys, "stdin", put(PAGE.encode()))
    corpus = open_corpus("-")
    assert corpus.total is None and corpus.origin == "stdin" and corpus.key != open_corpus("-").key
    assert told(corpus) == [("stdin:1", "One text of two lines."), ("stdin:5", "Another, ça va.")]
    with pytest.raises(TextError, match="stdin and pipes can be read once only. To read them again, write them to a"):
        corpus.open()


def test_stdin_may_be_of_any_kind(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CONLLU.encode())))
    assert told(open_corpus("-", kind="conllu")) == [("s-1", "a cat"), ("s-2", "it")]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
@pytest.mark.parametrize("name", ["pipe", "pipe.gz"])
def test_a_named_pipe_is_a_stream_too(tmp_path, name):
    os.mkfifo(tmp_path / name)
    data = gzip.compress(PAGE.encode()) if name.endswith(".gz") else PAGE.encode()
    writer = threading.Thread(target=(tmp_path / name).write_bytes, args=(data,))
    writer.start()
    corpus = open_corpus(tmp_path / name)
    assert corpus.total is None
    assert [text for _, text in told(corpus)] == [text for _, text in PAGE_TOLD]
    writer.join()
    with pytest.raises(TextError, match="can be read once only"):
        corpus.open()


# ------------------------------------------------------------------------------------------------------------ memory


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ["l.txt", "l.txt.gz", "l.jsonl", "l.conllu"])
@pytest.mark.sampled(2)
def test_memory_does_not_grow_with_the_file(tmp_path, name):
    made = random.Random(7)
    texts = ["".join(made.choices("abcdefgh ", k=2_000)) for _ in range(500)]
    text = {
        "l.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts),
        "l.conllu": "".join(chain(["a", "b"], note=text) for text in texts),
    }.get(name, "\n\n".join(texts))
    data = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (tmp_path / name).write_bytes(data)
    corpus = open_corpus(tmp_path / name)
    next(corpus.open())
    tracemalloc.start()
    count = sum(1 for _ in corpus.open())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == len(texts)
    assert peak < len(text) / 3


def test_a_single_line_of_any_length_is_a_text(tmp_path):
    (tmp_path / "one.txt").write_text("word " * 400_000)
    ((name, text),) = told(open_corpus(tmp_path / "one.txt"))
    assert (name, len(text)) == ("one.txt:1", 5 * 400_000 - 1)


def test_the_reference_names_every_ending_and_the_codes_own_numbers():
    page = (Path(__file__).parents[2] / "docs/reference/corpora.md").read_text(encoding="utf-8")
    assert all(f"`{ending}`" in page for ending in sources.ENDINGS)
    assert f"have {PASSAGE_WORDS} words together" in page
    assert f"a file over {sources.WHOLE_BYTES >> 20} MB" in page
    assert str(PASSAGE_WORDS) in (open_corpus.__doc__ or "")


def test_a_line_that_is_not_utf8_is_a_problem_and_reading_goes_on(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"\xef\xbb\xbfone\n\ntwo\nna\xefve\n\nthree\x00\n\nfour\n")
    found = list(open_corpus(path).open())
    assert [(each.name, each.text) for each in found] == [
        ("latin.txt:1", "one"),
        ("latin.txt:3", ""),
        ("latin.txt:6", ""),
        ("latin.txt:8", "four"),
    ]
    assert found[1].problem == "line 4 is not UTF-8 text (byte 14 is 0xef): convert it first."
    assert found[2].problem == "line 6 is not UTF-8 text (byte 24 is 0x00): convert it first."
    data = path.read_bytes()
    assert (data[14], data[24]) == (0xEF, 0)


def test_a_treebank_with_such_a_line_loses_that_sentence(tmp_path):
    data = chain(["a"], sent_id="1") + chain(["b"], sent_id="2") + chain(["c"], sent_id="3")
    (tmp_path / "t.conllu").write_bytes(data.encode().replace(b"\tb\t", b"\t\xe9\t"))
    found = list(open_corpus(tmp_path / "t.conllu").open())
    assert [bool(each.problem) for each in found] == [False, True, False]
    assert "line 7 is not UTF-8" in found[1].problem


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("wide.txt", "text".encode("utf-16"), r"wide.txt is UTF-16 text: convert it to UTF-8 first\."),
        ("wide.txt.gz", gzip.compress(b"\xfe\xff\x00a", mtime=0), "wide.txt.gz is UTF-16 text"),
        ("packed.txt", gzip.compress(b"text", mtime=0), r"packed.txt is gzip data: let its name end in .gz\."),
        ("table.csv", b"a,b", r"cannot tell by its ending what .*table.csv holds. Say kind= \(text, jsonl, conllu\)"),
        ("a.tar.gz", gzip.compress(b"x", mtime=0), "cannot tell by its ending what"),
    ],
)
def test_a_file_that_is_something_else_is_refused_at_once(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TextError, match=message):
        open_corpus(tmp_path / name)


def test_what_is_not_there_or_cannot_be_read_is_said(tmp_path, folder):
    with pytest.raises(
        FileAccessError, match=r"cannot read .*nothing\.txt: there is no such file\. Check the spelling"
    ):
        open_corpus([folder / "b.txt", folder / "nothing.txt"])
    with pytest.raises(FileAccessError, match="cannot read The cat sat.*: there is no such file"):
        open_corpus("The cat sat on the mat. " * 200)
    with pytest.raises(FileAccessError, match="cannot read a\x00b: there is no such file"):
        open_corpus("a\x00b")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        FileAccessError, match=r"empty holds no file to read. Files may end in .txt, .md, .rst, .py, .jsonl"
    ):
        open_corpus(tmp_path / "empty")
    with pytest.raises(FileAccessError, match="holds no file of kind='conllu' to read. Files may end in .conllu "):
        open_corpus(folder / ".hidden", kind="conllu")
    (folder / "no.txt.gz").write_bytes(b"plain")
    with pytest.raises(FileAccessError, match=r"no.txt.gz: it is no whole gzip file \(Not a gzipped file"):
        open_corpus(folder / "no.txt.gz")


def test_what_may_not_be_read_is_said(folder, monkeypatch):
    def refused(*_, onerror=None, **__):
        error = PermissionError(13, "Permission denied", str(folder / "deep"))
        if onerror is None:
            raise error
        onerror(error)

    monkeypatch.setattr(sources.os, "walk", refused)
    with pytest.raises(FileAccessError, match=r"cannot read folder .*deep: Permission denied\."):
        open_corpus(folder)
    monkeypatch.setattr(sources.Path, "stat", refused)
    with pytest.raises(FileAccessError, match="cannot read secret.txt: you have no permission to"):
        open_corpus("secret.txt")
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(TextError, match="there is no stdin to read from."):
        next(open_corpus("-").open())


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file here that is there and cannot be read")
def test_a_file_that_fails_to_be_read_is_said():
    with pytest.raises(FileAccessError, match=r"cannot read /proc/self/mem: Input/output error\."):
        open_corpus("/proc/self/mem")


def test_a_gzip_file_cut_short_is_said_where_it_ends(tmp_path):
    lines = "".join(f"{random.random()}\n" for _ in range(20_000))
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(lines.encode())[:-5000])
    found = []
    with pytest.raises(FileAccessError, match=r"cannot read .*cut.txt.gz after line \d+,\d+: it is no whole gzip file"):
        found.extend(open_corpus(tmp_path / "cut.txt.gz", lines=True).open())
    assert len(found) > 10_000


def test_arguments_that_mean_nothing_are_refused():
    with pytest.raises(TextError, match="no source was given: name a file, a folder, - "):
        open_corpus([])
    with pytest.raises(TextError, match="no source was given"):
        open_corpus("")
    with pytest.raises(TextError, match=r"- \(stdin\) was given 2 times: it can be read once\."):
        open_corpus(["-", "-"])
    with pytest.raises(TextError, match="kind='csv' is no kind of text. Use one of text, jsonl, conllu, or None"):
        open_corpus("-", kind="csv")
    with pytest.raises(TextError, match="unit='document' is no unit of treebanks. Use one of sentence, passage."):
        open_corpus("-", unit="document")
