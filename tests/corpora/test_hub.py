"""Datasets by name: with the `datasets` library where it is installed, else with a small one in its place."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from manyheads.corpora import open_corpus
from manyheads.errors import FileAccessError, TextError


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


def told(corpus):
    return [(each.name, each.text, each.problem) for each in corpus.open()]


def test_a_dataset_is_its_train_split_unless_one_is_named(small):
    corpus = open_corpus("hf:some/set")
    assert told(corpus) == [
        ("hf:some/set row 1", "one", ""),
        ("hf:some/set row 3", "", "the field 'text' holds no text, but nothing (null)."),
    ]
    assert told(corpus) == told(corpus)
    assert (corpus.origin, corpus.total) == ("hf:some/set", None)
    assert told(open_corpus("hf:some/set:test", field="body")) == [("hf:some/set:test row 1", "vier", "")]
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
    with pytest.raises(
        TextError, match="hf:some/set:dev asks for the split 'dev': there is train, test. Add one after"
    ):
        open_corpus("hf:some/set:dev")
    small.splits["one"] = small.splits.pop("train")
    with pytest.raises(TextError, match="hf:some/set does not say which split: there is test, one. Add one"):
        open_corpus("hf:some/set")
    small.splits.pop("one")
    assert [each.text for each in open_corpus("hf:some/set").open()] == ["four"]


@pytest.mark.parametrize("given", ["hf:", "hf::test", "hf:a:b:c:d", "hf:a:"])
def test_what_names_no_dataset_is_said(small, given):
    with pytest.raises(TextError, match=f"'{given}' names no dataset: write hf:NAME, hf:NAME:SPLIT or"):
        open_corpus(given)


def test_without_the_library_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        FileAccessError, match="hf:a/b is read by the `datasets` library, which is not installed .*: pip i"
    ):
        open_corpus("hf:a/b")


def test_what_the_library_cannot_get_is_one_error_with_its_reason(monkeypatch):
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
    pytest.importorskip("datasets", reason="the datasets library is not installed: it is no dependency")
    for split, texts in {"train": ["one", "two"], "test": ["three"]}.items():
        rows = [json.dumps({"text": text, "id": i}) for i, text in enumerate(texts)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
    corpus = open_corpus(f"hf:{tmp_path}")
    assert [each.text for each in corpus.open()] == ["one", "two"] == [each.text for each in corpus.open()]
    assert [each.text for each in open_corpus(f"hf:{tmp_path}:test").open()] == ["three"]
    assert corpus.key == open_corpus(f"hf:{tmp_path}").key != open_corpus(f"hf:{tmp_path}:test").key
    with pytest.raises(TextError, match="asks for the split 'dev': there is train, test"):
        open_corpus(f"hf:{tmp_path}:dev")
    with pytest.raises(FileAccessError, match="cannot open hf:.*nowhere: .*nowhere. Check the name "):
        open_corpus(f"hf:{tmp_path}/nowhere")
