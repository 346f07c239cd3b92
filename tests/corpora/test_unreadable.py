"""What of a corpus cannot be read is said: lines that are no text, files of another kind, places that are shut."""

import gzip
import os
import random
import sys

import pytest

from manyheads.corpora import lines as sources
from manyheads.corpora import open_corpus
from manyheads.errors import FileAccessError, TextError
from tests.corpora.writing import chain, write_corpus


@pytest.fixture
def folder(tmp_path):
    return write_corpus(tmp_path)


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
