"""`manyheads look --from --to`: the page and the document say what `Recording.heads_linking` says."""

import json

import pandas as pd
import pytest

import manyheads as mh
from manyheads.cli.look.ask_word import BAR

from .conftest import assert_refused

SENTENCE = "The animal didn't cross the street because it was too tired."
BOTH = ("--from", "it", "--to", "animal")


@pytest.fixture(scope="module")
def rec(minilm):
    return mh.record(minilm, SENTENCE)


@pytest.mark.turns(4)
def test_the_page_ranks_the_heads_and_draws_the_link(run, rec):
    ran = run("look", *SENTENCE.split(), *BOTH)
    assert ran.code == 0 and max(map(len, ran.lines)) <= 100 and all(line == line.rstrip() for line in ran.lines)
    first, second = links = rec.heads_linking("it", "animal")[:2]
    assert ran.lines[0] == (
        f'"it" looks at "animal" most in L3H1 ({first.weight:.1%}) and L5H11 ({second.weight:.1%}); '
        "spread evenly it is 6.3%.  in minilm"
    )
    rows = [line.split() for line in ran.lines if "█" in line]
    assert len(rows) == 10
    for row, link in zip(rows, links, strict=False):
        assert row[:3] == [str(link.head), f"{link.weight:.1%}", "█" * round(BAR * link.weight)]
    ends, words = next(ran.lines[place + 1 : place + 3] for place, line in enumerate(ran.lines) if "╭" in line)
    assert words[ends.index("▼") - 2 :].startswith("animal") and words[ends.index("│") :].startswith("it ")
    assert "One text shows what its heads do here. A role rests on many texts" in " ".join(ran.out.split())
    everything = run("look", SENTENCE, *BOTH, "--all").lines
    heads = [line.split()[0] for line in everything if line.startswith("  L") and "%" in line]
    assert heads == [str(head) for head in rec.heads_linking("it", "animal").heads]


@pytest.mark.parametrize(("option", "side", "other"), [("--from", "query", "key"), ("--to", "key", "query")])
@pytest.mark.sampled(1)
@pytest.mark.turns(4)
def test_one_word_alone_groups_the_heads_by_the_other(run, rec, option, side, other):
    links = rec.heads_linking(**{side: "it"})
    ran = run("look", SENTENCE, option, "it", "--all")
    assert ran.code == 0 and max(map(len, ran.lines)) <= 100
    groups = {}
    for link in links:
        groups.setdefault(getattr(link, other), []).append(link)
    rows = {line.split()[0]: line.split() for line in ran.lines if " head" in line and line.startswith("  ")}
    for word, of_word in groups.items():
        assert rows[word][1] == str(len(of_word)) and rows[word][3] == str(of_word[0].head)
        assert rows[word][4] == f"{of_word[0].weight:.0%}"
    short = run("look", SENTENCE, option, "it")
    assert len(short.lines) <= 40 and "special tokens and marks are left out" in " ".join(short.out.split())


@pytest.mark.turns(4)
def test_json_and_save_hold_every_head(run, rec, tmp_path):
    document = json.loads(run("look", SENTENCE, *BOTH, "--json", "--save", "it.csv").out)
    links = rec.heads_linking("it", "animal")
    assert (document["from"], document["to"]) == ("it", "animal") and len(document["heads"]) == 72
    for row, link in zip(document["heads"], links, strict=True):
        assert (row["head"], row["weight"]) == (str(link.head), pytest.approx(link.weight, abs=1e-6))
    assert document["heads"][0]["role"] and document["text"]["text"] == SENTENCE
    assert list(pd.read_csv(tmp_path / "it.csv")["head"])[:2] == ["L3H1", "L5H11"]
    assert document["written"][0].startswith("it.csv, ")


@pytest.mark.turns(4)
def test_what_a_causal_model_cannot_see_is_said_and_null_in_json(run, gpt2_folder):
    line = ["look", "the cat sat on the mat", "--model", gpt2_folder]
    assert_refused(run(*line, "--from", "cat", "--to", "mat"), "no head can look from 'cat' to 'mat'", "Ask from 'mat'")
    ran = run(*line, "--from", "mat", "--to", "the#1")
    assert ran.code == 0 and "╭" in ran.out and "--from mat" in ran.out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([SENTENCE, "--from", "its"], "there is no word 'its' in this text: did you mean 'it'?"),
        (["the cat saw the dog", "--to", "the"], "'the' is in this text 2 times. Say which: 'the#1' (the cat saw)"),
        ([SENTENCE, "--from", "it", "--html", "x.html"], "--html shows all links: give one or the other."),
        (["the cat sat. " * 300, "--from", "cat"], "is read in 3 windows: ask about a sentence of it, or add --trunc"),
    ],
)
@pytest.mark.sampled(2)
def test_what_cannot_be_asked_is_one_line_and_exit_2(run, line, message):
    assert_refused(run("look", *line), message)


def test_in_ascii_the_arc_is_ascii(run, monkeypatch):
    monkeypatch.setattr("manyheads.cli.terminal.console.knows_blocks", lambda console: False)
    arc, ends, _ = next(
        lines[place : place + 3]
        for lines in [run("look", SENTENCE, *BOTH).lines]
        for place, line in enumerate(lines)
        if " L3H1 68% " in line
    )
    assert arc.strip().startswith("+--") and arc.endswith("--+") and ends.split() == ["v", "|"]


@pytest.mark.turns(4)
def test_of_a_long_sentence_what_stands_between_is_left_out(run):
    text = f"The animal, {'which was very large and very old, ' * 6}didn't move because it was tired."
    ran = run("look", text, *BOTH)
    sentence = next(line for line in ran.lines if line.strip().startswith(("The animal", "…")))
    assert ran.code == 0 and len(sentence) <= 100 and " … " in sentence and "animal" in sentence and " it " in sentence
