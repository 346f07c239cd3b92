"""Texts that no model could read, and sentences that cannot be: a problem in words, and the next one is read."""

import gzip
import re

import pytest

from manyheads.corpora import lines as sources
from manyheads.corpora import open_corpus
from manyheads.corpora import sources as plaintext

RANGE = "\tab" + "\t_" * 8 + "\n"
WORD = "1\ta\ta\tX\t_\t_\t0\troot\t_\t_\n"


def problems(path, **options) -> list[tuple[str, str]]:
    return [(each.text, each.problem) for each in open_corpus(path, **options).open()]


@pytest.mark.slow  # hundreds of megabytes
def test_what_is_too_long_to_be_a_text_is_a_problem_and_reading_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_BYTES", 1 << 20)
    long = b"a" * (3 << 20)
    (tmp_path / "a.txt").write_bytes(long + b"\n\nfine\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one\n" + long + b"\ntwo\n"))
    (first, told), after = problems(tmp_path / "a.txt")
    assert (first, told, after) == ("", "line 1 is longer than 1 MB: break it up.", ("fine", ""))
    assert [text for text, _ in problems(tmp_path / "b.txt.gz", lines=True)] == ["one", "", "two"]
    (tmp_path / "c.txt").write_bytes(b"words\n" * (1 << 18) + b"\nfine\n")
    (first, told), after = problems(tmp_path / "c.txt")
    assert after == ("fine", "") and re.match(
        r"from line 1 on, there is no empty line for .* or 1 MB: part texts", told
    )
    assert len(problems(tmp_path / "c.txt", lines=True)) == (1 << 18) + 1


def test_a_long_line_counts_its_bytes_so_that_a_run_knows_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_BYTES", 100)
    (tmp_path / "a.txt").write_bytes(b"x" * 500 + b"\n\nfine\n")
    assert [each.at for each in open_corpus(tmp_path / "a.txt").open()] == [501, 507]


def test_json_lines_and_sentences_have_a_limit_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(plaintext, "MOST_JSON", 1 << 20)
    (tmp_path / "a.jsonl").write_text('{"text": "%s"}\n{"text": "fine"}\n' % ("a" * (1 << 20)))
    assert problems(tmp_path / "a.jsonl") == [("", "this line is longer than 1 MB of JSON: break it up."), ("fine", "")]
    (tmp_path / "a.conllu").write_text("# comment\n" * 20_000 + "\n1\tfine\tfine\tX\t_\t_\t0\troot\t_\t_\n\n")
    (_, told), after = problems(tmp_path / "a.conllu")
    assert "there is no empty line for 10,000 lines" in told and after == ("fine", "")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (f"1-999999999{RANGE}{WORD}", "the words of 1-999999999 'ab' do not follow it"),
        (f"2-1{RANGE}{WORD}", r"line 1 is not CoNLL-U"),
        (f"{'9' * 5000}{WORD}", r"line 1 is not CoNLL-U \(Exceeds the limit"),
        ("8.1\tgone\tgo\tX\t_\t_\t_\t_\t0:root\t_\n", "it has no word, only what is not in its text"),
    ],
)  # fmt: skip
def test_a_sentence_that_cannot_be_is_a_problem(rows, words, tmp_path):
    (tmp_path / "a.conllu").write_text(rows + "\n")
    ((text, problem),) = problems(tmp_path / "a.conllu")
    assert text == "" and re.search(words, problem)
