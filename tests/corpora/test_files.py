"""A corpus from files, folders and streams: what is found, what documents are called, what reading costs.

What cannot be read is said: lines that are not text, files of another kind, places that are shut.
"""

import gzip
import io
import json
import os
import random
import re
import sys
import threading
import tracemalloc
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.corpora import lines as sources
from manyheads.corpora import open_corpus
from manyheads.corpora.lines import Line
from manyheads.corpora.sources import json_documents, line_documents, paragraph_documents, text_of
from manyheads.corpora.treebanks import PASSAGE_WORDS
from manyheads.errors import FileAccessError, TextError
from tests.corpora.writing import CONLLU, PAGE, chain, write_corpus
from tests.refusals import refuses


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
    lines = [("b.txt:1", "One text"), ("b.txt:2", "of two lines."), ("b.txt:5", "Another, ça va.")]
    assert told(open_corpus(str(folder / "b.txt"), lines=True)) == lines
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
        f"{folder}/deep/b.txt:1", "c.jsonl:1", f"{folder}/b.txt:1", f"{folder}/b.txt:5",
    ]  # fmt: skip
    assert corpus.origin == "3 files"


def test_the_options_matter(folder):
    assert told(open_corpus(folder / "c.jsonl", field="body")) == [("c.jsonl:1", "other")]
    assert told(open_corpus(folder / "deep/e.conllu", unit="passage")) == [("s-1..s-2", "a cat it")]
    assert told(open_corpus(folder / "picture.png", kind="text")) == [("picture.png:1", "no text")]
    assert told(open_corpus(folder / "c.jsonl", kind="text"))[0][1].startswith('{"text"')


def test_a_corpus_can_be_opened_again_and_reading_ends_at_the_total(folder):
    corpus = open_corpus(folder)
    at = [each.at for each in corpus.open()]
    sizes = [file.stat().st_size for file in folder.rglob("*.*") if file.suffix != ".png" and "/." not in str(file)]
    assert corpus.total == sum(sizes) == at[-1]
    assert all(before <= after for before, after in pairwise(at)) and at[0] > 0
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
        open_corpus(folder / "b.txt", lines=True), open_corpus(folder / "copy.txt"),
        open_corpus(folder / "b.txt", kind="jsonl"), open_corpus([folder / "b.txt", folder / "copy.txt"]),
        open_corpus(folder / "deep/e.conllu"), open_corpus(folder / "deep/e.conllu", unit="passage"),
        open_corpus(folder / "c.jsonl"), open_corpus(folder / "c.jsonl", field="body"),
    ]  # fmt: skip
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
    refuses(TextError, "stdin and pipes can be read once only. To read them again, write them to a", corpus.open)


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
    refuses(TextError, "can be read once only", corpus.open)


# ------------------------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("name", ["l.txt", "l.txt.gz", "l.jsonl", "l.conllu"])
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
    assert f"up to {PASSAGE_WORDS} words together" in page
    assert f"a file over {sources.WHOLE_BYTES >> 20} MB" in page
    assert str(PASSAGE_WORDS) in (open_corpus.__doc__ or "")


def test_a_line_that_is_not_utf8_is_a_problem_and_reading_goes_on_in_treebanks_too(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"\xef\xbb\xbfone\n\ntwo\nna\xefve\n\nthree\x00\n\nfour\n")
    found = list(open_corpus(path).open())
    assert [(each.name, each.text) for each in found] == [
        ("latin.txt:1", "one"), ("latin.txt:3", ""), ("latin.txt:6", ""), ("latin.txt:8", "four"),
    ]  # fmt: skip
    assert found[1].problem == "line 4 is not UTF-8 text (byte 14 is 0xef): convert it first."
    assert found[2].problem == "line 6 is not UTF-8 text (byte 24 is 0x00): convert it first."
    data = path.read_bytes()
    assert (data[14], data[24]) == (0xEF, 0)
    data = chain(["a"], sent_id="1") + chain(["b"], sent_id="2") + chain(["c"], sent_id="3")
    (tmp_path / "t.conllu").write_bytes(data.encode().replace(b"\tb\t", b"\t\xe9\t"))
    found = list(open_corpus(tmp_path / "t.conllu").open())
    assert [bool(each.problem) for each in found] == [False, True, False]
    assert "line 7 is not UTF-8" in found[1].problem


@pytest.mark.parametrize(("name", "data", "message"), [
    ("wide.txt", "text".encode("utf-16"), r"wide.txt is UTF-16 text: convert it to UTF-8 first\."),
    ("wide.txt.gz", gzip.compress(b"\xfe\xff\x00a", mtime=0), "wide.txt.gz is UTF-16 text"),
    ("packed.txt", gzip.compress(b"text", mtime=0), r"packed.txt is gzip data: let its name end in .gz\."),
    ("table.csv", b"a,b", r"cannot tell from its ending what .*table.csv holds. Say kind= \(text, jsonl, conllu\)"),
    ("a.tar.gz", gzip.compress(b"x", mtime=0), "cannot tell from its ending what"),
])  # fmt: skip
def test_a_file_that_is_something_else_is_refused_at_once(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    refuses(TextError, message, open_corpus, tmp_path / name)


def test_what_is_not_there_or_cannot_be_read_is_said(tmp_path, folder):
    message = r"cannot read .*nothing\.txt: there is no such file\. Check the spelling"
    refuses(FileAccessError, message, open_corpus, [folder / "b.txt", folder / "nothing.txt"])
    with pytest.raises(FileAccessError, match="cannot read The cat sat.*: there is no such file"):
        open_corpus("The cat sat on the mat. " * 200)
    refuses(FileAccessError, "cannot read a\x00b: there is no such file", open_corpus, "a\x00b")
    (tmp_path / "empty").mkdir()
    message = r"empty holds no file to read. Files may end in .txt, .md, .rst, .py, .jsonl"
    refuses(FileAccessError, message, open_corpus, tmp_path / "empty")
    with pytest.raises(FileAccessError, match="holds no file of kind='conllu' to read. Files may end in .conllu "):
        open_corpus(folder / ".hidden", kind="conllu")
    (folder / "no.txt.gz").write_bytes(b"plain")
    with pytest.raises(FileAccessError, match=r"no.txt.gz: it is not a whole gzip file \(Not a gzipped file"):
        open_corpus(folder / "no.txt.gz")


def test_what_may_not_be_read_is_said(folder, monkeypatch):
    def refused(*_, onerror=None, **__):
        error = PermissionError(13, "Permission denied", str(folder / "deep"))
        if onerror is None:
            raise error
        onerror(error)

    monkeypatch.setattr(sources.os, "walk", refused)
    refuses(FileAccessError, r"cannot read folder .*deep: Permission denied\.", open_corpus, folder)
    monkeypatch.setattr(sources.Path, "stat", refused)
    refuses(FileAccessError, "cannot read secret.txt: you have no permission to", open_corpus, "secret.txt")
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stdin", None)
    refuses(TextError, "stdin is closed: there is nothing to read.", next, open_corpus("-").open())


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file here that is there and cannot be read")
def test_a_file_that_fails_to_be_read_is_said():
    refuses(FileAccessError, r"cannot read /proc/self/mem: Input/output error\.", open_corpus, "/proc/self/mem")


def test_arguments_that_mean_nothing_and_a_gzip_file_cut_short_are_refused(tmp_path):
    lines = "".join(f"{random.random()}\n" for _ in range(20_000))
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(lines.encode())[:-5000])
    found = []
    with pytest.raises(
        FileAccessError,
        match=r"cannot read .*cut.txt.gz after line \d+,\d+: it is not a whole "
        r"gzip file",
    ):
        found.extend(open_corpus(tmp_path / "cut.txt.gz", lines=True).open())
    assert len(found) > 10_000
    refuses(TextError, "no source was given: name a file, a folder, - ", open_corpus, [])
    refuses(TextError, "no source was given", open_corpus, "")
    refuses(TextError, r"- \(stdin\) was given 2 times: it can be read once\.", open_corpus, ["-", "-"])
    with pytest.raises(TextError, match="kind='csv' is not a kind of text: use one of text, jsonl, conllu, or None"):
        open_corpus("-", kind="csv")
    with pytest.raises(TextError, match="unit='document' is not a unit of treebanks: use one of sentence, passage."):
        open_corpus("-", unit="document")


# =========================================================================================================== plain text
# Paragraphs, lines and JSON objects: what is a text, what it is called, what is a problem.

LINES = st.lists(st.text(st.sampled_from("ab \t\r\u00a0é"), max_size=6), max_size=12)


def lines_of(lines, bad=()):
    return [Line(i, "" if i in bad else line, 10 * i, "broken" if i in bad else "") for i, line in enumerate(lines, 1)]


@given(LINES)
def test_paragraphs_are_what_empty_lines_part_and_lines_are_texts_without_blanks_around_them(lines):
    parts = re.split(r"\n\s*\n", "\n".join(lines))
    wanted = [" ".join(part.split()) for part in parts if part.strip()]
    assert [each.text for each in paragraph_documents(lines_of(lines), "f")] == wanted
    wanted = [(line.strip(), f"f:{i}", 10 * i) for i, line in enumerate(lines, 1) if line.strip()]
    assert [(each.text, each.name, each.at) for each in line_documents(lines_of(lines), "f")] == wanted


def test_a_paragraph_is_called_after_its_first_line_and_ends_with_its_last():
    found = list(paragraph_documents(lines_of(["", "a", " b ", "", "", "c"]), "page.txt"))
    assert [(each.text, each.name, each.at) for each in found] == [("a b", "page.txt:2", 30), ("c", "page.txt:6", 60)]


def test_a_line_that_cannot_be_read_spoils_its_own_text_alone():
    lines = lines_of(["a", "", "b", "?", "c", "", "d"], bad={4})
    found = list(paragraph_documents(lines, "f"))
    said = [(each.text, each.name, each.problem) for each in found]
    assert said == [("a", "f:1", ""), ("", "f:3", "broken"), ("d", "f:7", "")]
    assert [each.problem for each in line_documents(lines, "f")] == ["", "", "broken", "", ""]
    assert [each.problem for each in json_documents(lines_of(["{}"], bad={1}), "f", "text")] == ["broken"]


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=9), max_size=6))
def test_texts_written_as_json_come_back_as_they_were(texts):
    rows = [json.dumps({"id": i, "body": text}) for i, text in enumerate(texts)]
    wanted = [(text, f"f:{i}") for i, text in enumerate(texts, 1) if text.strip()]
    found = json_documents(lines_of(rows), "f", "body")
    assert [(each.text, each.name) for each in found] == wanted


@pytest.mark.parametrize(("line", "problem"), [
    ('{"text": "cut', "this line is not JSON (Unterminated string starting at, column 10)."),
    ("prose", "this line is not JSON (Expecting value, column 1)."),
    ("[" * 100_000, "this line is not JSON (maximum recursion depth exceeded"),
    ("1" * 5000, "this line is not JSON (Exceeds the limit"),
    ('["a"]', "this is not an object with a field 'text', but a list."),
    ("7", "this is not an object with a field 'text', but a number."),
    ('{"body": "a", "id": 1}', "there is no field 'text'. There is: 'body', 'id'."),
    ("{}", "there is no field 'text'. There is: none."),
    ('{"text": null}', "the field 'text' holds no text, but nothing (null)."),
    ('{"text": ["a"]}', "the field 'text' holds no text, but a list."),
    ('{"text": true}', "the field 'text' holds no text, but true or false."),
    ('{"text": "\\ud83d"}', "the field 'text' holds half a character (a lone surrogate)."),
])  # fmt: skip
def test_a_line_that_holds_no_text_is_a_problem_and_the_next_is_read(line, problem):
    bad, good = json_documents(lines_of([line, "", '{"text": "fine"}']), "f.jsonl", "text")
    assert bad.name == "f.jsonl:1" and bad.text == "" and bad.problem.startswith(problem)
    assert (good.name, good.text, good.problem) == ("f.jsonl:3", "fine", "")


def test_a_pair_of_surrogates_is_a_character():
    assert text_of(json.loads('{"t": "\\ud83d\\ude00"}'), "t") == ("\U0001f600", "")


# ===================================================================================================== datasets by name
# Datasets by name: with the `datasets` library where it is installed, else with a small one in its place.


def library(builder) -> ModuleType:
    module = ModuleType("datasets")
    module.load_dataset_builder = builder
    return module


@pytest.fixture
def small(monkeypatch):
    """The library with one dataset of two splits; what it was asked for is in `asked`."""
    asked = []
    splits = {
        "train": [{"text": "one", "body": "eins"}, {"text": " ", "body": "-"}, {"text": None, "body": "drei"}],
        "test": [{"text": "four", "body": "vier"}],
    }

    def load(name, configuration):
        asked.append((name, configuration))
        return SimpleNamespace(hash="c0ffee", as_streaming_dataset=lambda: splits)

    monkeypatch.setitem(sys.modules, "datasets", library(load))
    return SimpleNamespace(asked=asked, splits=splits)


def rows_of(corpus):
    return [(each.name, each.text, each.problem) for each in corpus.open()]


def test_a_dataset_is_its_train_split_unless_one_is_named(small):
    corpus = open_corpus("hf:some/set")
    assert rows_of(corpus) == [
        ("hf:some/set row 1", "one", ""),
        ("hf:some/set row 3", "", "the field 'text' holds no text, but nothing (null)."),
    ]
    assert rows_of(corpus) == rows_of(corpus)
    assert (corpus.origin, corpus.total) == ("hf:some/set", None)
    assert rows_of(open_corpus("hf:some/set:test", field="body")) == [("hf:some/set:test row 1", "vier", "")]
    assert small.asked == [("some/set", None)] * 2
    open_corpus("hf:some/set:english:test")
    assert small.asked[-1] == ("some/set", "english")


def test_the_key_hangs_on_the_version_the_split_and_the_field(small, monkeypatch):
    keys = [open_corpus(each).key for each in ("hf:some/set", "hf:some/set", "hf:some/set:test", "hf:other/set")]
    keys.append(open_corpus("hf:some/set", field="body").key)
    later = SimpleNamespace(hash="decade", as_streaming_dataset=lambda: small.splits)
    monkeypatch.setitem(sys.modules, "datasets", library(lambda *_: later))
    keys.append(open_corpus("hf:some/set").key)
    assert keys[0] == keys[1] and len(set(keys)) == 5


def test_it_stands_among_files(small, tmp_path):
    (tmp_path / "a.txt").write_text("first")
    corpus = open_corpus([tmp_path / "a.txt", "hf:some/set:test"])
    assert [each.text for each in corpus.open()] == ["first", "four"]
    assert (corpus.origin, corpus.total) == ("2 sources", None)


def test_a_split_that_is_not_there_or_must_be_said_is_told(small):
    message = "hf:some/set:dev asks for the split 'dev': there is train, test. Add one after"
    refuses(TextError, message, open_corpus, "hf:some/set:dev")
    small.splits["one"] = small.splits.pop("train")
    refuses(TextError, "hf:some/set does not say which split: there is test, one. Add one", open_corpus, "hf:some/set")
    small.splits.pop("one")
    assert [each.text for each in open_corpus("hf:some/set").open()] == ["four"]


@pytest.mark.parametrize("given", ["hf:", "hf::test", "hf:a:b:c:d", "hf:a:"])
def test_what_names_no_dataset_is_said(small, given):
    refuses(TextError, f"'{given}' names no dataset: write hf:NAME, hf:NAME:SPLIT or", open_corpus, given)


def test_without_the_library_or_where_it_gets_nothing_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = "hf:a/b is read by the `datasets` library, which is not installed .*: pip i"
    refuses(FileAccessError, message, open_corpus, "hf:a/b")

    def offline(name, configuration):
        raise ConnectionError(f"Couldn't reach '{name}' on the Hub.")

    monkeypatch.setitem(sys.modules, "datasets", library(offline))
    with pytest.raises(FileAccessError, match="cannot open hf:a/b: Couldn't reach 'a/b' on the Hub. Check the name "):
        open_corpus("hf:a/b")


def test_a_stream_that_breaks_off_is_said_with_its_row(small):
    def rows():
        yield {"text": "one"}
        raise TimeoutError

    small.splits["train"] = rows()
    with pytest.raises(FileAccessError, match="cannot read hf:some/set after row 1: TimeoutError."):
        list(open_corpus("hf:some/set").open())


def test_the_real_library_reads_a_folder(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="the datasets library is not installed: it is not a dependency")
    for split, texts in {"train": ["one", "two"], "test": ["three"]}.items():
        rows = [json.dumps({"text": text, "id": i}) for i, text in enumerate(texts)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
    corpus = open_corpus(f"hf:{tmp_path}")
    assert [each.text for each in corpus.open()] == ["one", "two"] == [each.text for each in corpus.open()]
    assert [each.text for each in open_corpus(f"hf:{tmp_path}:test").open()] == ["three"]
    assert corpus.key == open_corpus(f"hf:{tmp_path}").key != open_corpus(f"hf:{tmp_path}:test").key
    refuses(TextError, "asks for the split 'dev': there is train, test", open_corpus, f"hf:{tmp_path}:dev")
    with pytest.raises(FileAccessError, match="cannot open hf:.*nowhere: .*nowhere. Check the name "):
        open_corpus(f"hf:{tmp_path}/nowhere")
