"""`manyheads stats` and `manyheads compare`: what they show is what the library found; bad input is one line."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import manyheads.corpora
from manyheads.corpora import gold_corpus
from manyheads.statistics import STATISTICS

from .conftest import assert_refused

TEXT = "the old cat sat on the table"
OWN = Path(manyheads.corpora.__file__).parent / "sentences.conllu"


def test_a_treebanks_statistics_are_shown_and_kept(run, minilm, tmp_path):
    """Syntax of sentences and coreference of passages, of our own annotated texts."""
    names = "nsubj.to_governor.given,coreference.mentions"
    ran = run("stats", "--corpus", str(OWN), "--statistics", names, "--out", "table.csv", "--top", "2")
    assert ran.code == 0 and ran.lines[0].startswith("minilm · ") and "sentences.conllu · " in ran.lines[0]
    syntax = manyheads.measure(minilm, gold_corpus(), "nsubj.to_governor.given")
    best = int(syntax.column("nsubj.to_governor.given").argmax())
    (row,) = (line for line in ran.lines if line.startswith("nsubj.to_governor.given"))
    score, cases = syntax.column("nsubj.to_governor.given")[best], syntax.sums.den[:, best, 0, 0].sum()
    assert row.split()[1:4] == [f"{cases:.0f}", str(syntax.heads[best]), f"{score:.1%}"] and row.count("·") == 1
    coreference = manyheads.measure(minilm, gold_corpus("passage"), "coreference.mentions")
    table = pd.read_csv("table.csv").set_index("head")
    assert table["coreference.mentions"].to_list() == pytest.approx(coreference.column("coreference.mentions").tolist())
    assert table["nsubj.to_governor.given"].to_list() == pytest.approx(
        syntax.column("nsubj.to_governor.given").tolist(), nan_ok=True
    )


def test_texts_patterns_and_json(run, minilm):
    data = json.loads(run("stats", TEXT, "--statistics", "duplicate_mass.*,entropy", "--json").out)
    names = [row["name"] for row in data["statistics"]]
    assert names == [name for name in STATISTICS if name.split(".")[0] == "duplicate_mass"] + ["entropy"]
    table = manyheads.measure(minilm, [TEXT], "entropy")
    heads = data["statistics"][-1]["heads"]
    assert heads["L2H3"]["value"] == pytest.approx(table["L2H3", "entropy"]) and len(heads) == 72
    (told,) = json.loads(run("stats", TEXT, "--statistics", "entropy", "--dry-run", "--json").out)["forecasts"]
    assert told["texts"] == 1 and told["tokens"] == told["seen_tokens"] > 0 and told["sums_bytes"] > 0
    shown = run("stats", TEXT, "--statistics", "entropy,distance", "--all")
    assert len([line for line in shown.lines if line.startswith("L")]) == 72


OF_MINE = """
from manyheads.recording.exact_map import Maximum
from manyheads.statistics import PerText, Statistic


def mean(name, times=1.0, **more):
    finish = lambda facts: facts.over_rows(times * facts[Maximum()])
    return Statistic(name=name, needs=(Maximum(),), finish=finish, **more)


right = mean("right", definition=lambda weights: weights.amax(-1).mean())
both = [right, mean("of_two")]
wrong = mean("wrong", 0.9, definition=lambda weights: weights.amax(-1).mean())
"""


def test_statistics_of_ones_own_are_measured_and_held_against_their_definitions(run, minilm, tmp_path, monkeypatch):
    name = "statistics_of_mine"
    (tmp_path / f"{name}.py").write_text(OF_MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, name)
    data = json.loads(run("stats", TEXT, "--statistics", f"{name}:both,max_weight", "--json").out)
    mine, second, known = data["statistics"]
    assert [row["name"] for row in data["statistics"]] == ["right", "of_two", "max_weight"]
    assert mine["heads"] == second["heads"] == known["heads"]
    shown = run("stats", TEXT, "--statistics", f"{name}:right", "--check")
    assert shown.code == 0 and shown.lines[0].startswith("right agrees with its definition on whole maps: at most ")
    assert shown.lines[0].endswith("over 72 heads and 1 text of minilm")
    checked = json.loads(run("stats", TEXT, "--statistics", f"{name}:right", "--check", "--json").out)
    assert checked["furthest"]["right"] < 1e-5 and (checked["heads"], checked["texts"]) == (72, 1)
    for statistics, words in (
        (f"{name}:wrong", "'wrong' is "), (f"{name}:both", "'of_two' has no definition to be compared with"),
        ("entropy", "--check is for statistics of your own: name them"),
        (f"{name}:rigth", f"{name} has no 'rigth': did you mean right?"),
        (f"{name}:Maximum", "that is a type: name a Statistic, or a list of them"),
    ):  # fmt: skip
        assert_refused(run("stats", TEXT, "--statistics", statistics, "--check"), words)
    beside = run("stats", TEXT, "--statistics", f"{name}:right", "--check", "--out", "table.csv")
    assert_refused(beside, "--check measures nothing else: leave --out out")
    # A relation of a treebank may have a colon too, and goes on with a point.
    assert_refused(run("stats", TEXT, "--statistics", "nmod:poss.to_governor"), "these texts lack that annotation")


def test_the_list_has_every_statistic_and_a_treebanks(run, ewt_like):
    ran = run("stats", "--list")
    assert [line.split()[0] for line in ran.lines[: len(STATISTICS)]] == list(STATISTICS)
    listed = json.loads(run("stats", "--list", "--corpus", ewt_like, "--statistics", "det.*", "--json").out)
    assert len(listed["statistics"]) == 18 and listed["statistics"][0]["name"] == "det.to_governor"
    assert_refused(run("stats", TEXT, "--list"), "--list needs no text")
    assert_refused(run("stats", "entropy", "previous_mas"), "'entropy previous_mas' stands where the text does",
                   "--statistics entropy,previous_mass.")  # fmt: skip
    assert_refused(run("stats", TEXT, "--statistics", "entropi"), "no statistic 'entropi': did you mean entropy")
    assert_refused(run("stats", TEXT, "--statistics", "det.*"), "these texts lack that annotation")
    assert_refused(run("stats", TEXT, "--corpus", ewt_like), "two sources of texts were given", "give one of them")


@pytest.fixture
def ewt_like(tmp_path):
    """A treebank of one sentence, 25 times."""
    rows = [("the", "DET", 2, "det"), ("cat", "NOUN", 3, "nsubj"), ("sat", "VERB", 0, "root")]
    lines = [
        "\t".join([str(place), form, form, pos, "_", "_", str(head), relation, "_", "_"])
        for place, (form, pos, head, relation) in enumerate(rows, 1)
    ]
    path = tmp_path / "small.conllu"
    path.write_text("".join("# text = the cat sat\n" + "\n".join(lines) + "\n\n" for _ in range(25)), encoding="utf-8")
    return str(path)


@pytest.mark.slow  # tests/roles has it of the library
def test_a_model_compared_with_itself_shows_nothing(run, bert_folder):
    ran = run("compare", bert_folder, bert_folder, TEXT)
    assert ran.code == 0 and ran.lines[0] == "No head differs." and 2 <= len(ran.lines) <= 4
    data = json.loads(run("compare", bert_folder, bert_folder, TEXT, "--statistics", "entropy", "--json").out)
    assert data["num_changed"] == 0 and len(data["heads"]) == 10 and data["statistics"] == ["entropy"]


def test_two_heads_are_shown_as_head_shows_them(run, bert_folder):
    of_model = ("--model", bert_folder, "--json")
    texts, (one, other) = (
        [],
        (run(*line, TEXT, *of_model) for line in (("compare", "L0H1", "L1H0"), ("head", "L0H1", "L1H0"))),
    )
    for ran in (one, other):
        assert ran.code == 0, ran.err
        texts.append(re.sub(r'"(seconds|because|labels)": [^\n]*', "", ran.out))
    assert texts[0] == texts[1] and [head["head"] for head in json.loads(one.out)["heads"]] == ["L0H1", "L1H0"]
    assert_refused(
        run("compare", "L0H1", "L1H0", "--rows", "3"), "--rows is for two models, and L0H1 and L1H0 are heads"
    )
    assert_refused(
        run("compare", "L0H1", "minilm"), "L0H1 is a head, and minilm is none: give two heads, or two models."
    )
    assert_refused(run("compare", "minilm", "minilm", "--model", "minilm"), "--model minilm is for two heads")


def test_two_models_are_compared(run, bert_folder, tmp_path):
    other = manyheads.load(bert_folder)
    model: Any = other.model
    for layer in model.encoder.layer[1:]:
        layer.attention.self.query.weight.data.mul_(-1)
    model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    ran = run("compare", bert_folder, str(tmp_path / "other"), TEXT, "--out", "heads.csv")
    assert ran.code == 0 and ran.lines[0] == "5 of 10 heads differ, 0 labels changed."
    found = manyheads.compare(bert_folder, tmp_path / "other", [TEXT])
    first = next(line for line in ran.lines if line.startswith("L1H"))
    name, apart = first.split()[:2]
    assert name == str(found.changed[0].head) and float(apart) == pytest.approx(found.changed[0].moved, abs=1e-3)
    assert "One text gives no intervals." in ran.lines
    assert pd.read_csv("heads.csv")["differs"].to_list().count(True) == 5
    assert_refused(run("compare", bert_folder, "minilm", TEXT), "heads are compared place by place", "6 layers of 12")


def test_parts_that_are_merged_are_one_run_and_wrong_ones_are_named(run):
    names = ("--corpus", str(OWN), "--statistics", "entropy,coreference.mentions")
    for index in range(2):
        ran = run("measure", *names, "--shard", f"{index}/2", "--out", f"part-{index}.sums")
        assert ran.lines == [f"wrote part-{index}.sums", f"wrote part-{index}-passages.sums"]
    parts = sorted(path.name for path in Path().glob("part-*.sums"))
    merged = json.loads(run("merge", *reversed(parts), "--json").out)
    whole = json.loads(run("stats", *names, "--json").out)
    assert (merged["parts"], merged["missing"]) == (2, [])
    for one, two in zip(merged["statistics"], whole["statistics"], strict=True):
        assert (one["name"], one["texts"], one["tokens"]) == (two["name"], two["texts"], two["tokens"])
        for head, numbers in two["heads"].items():
            assert one["heads"][head]["value"] == pytest.approx(numbers["value"], rel=1e-5, abs=1e-6)
    assert run("merge", *parts, "--out", "all.sums").lines == ["wrote all.sums", "wrote all-passages.sums"]
    assert run("merge", "all.sums", "--top", "1").lines[3].startswith("entropy")
    assert_refused(run("merge", "part-0.sums"), "1 of 2 shards is missing: 1. Measure them")
    assert run("merge", "part-0.sums", "--partial").code == 0
    assert_refused(run("merge", "part-0.sums", "all.sums"), "part-0.sums and all.sums both hold shard 0/2")
    run("stats", TEXT, "--statistics", "distance", "--shard", "1/2", "--out", "other.sums")
    assert_refused(
        run("merge", "part-0.sums", "other.sums"), "statistics (entropy in part-0.sums, distance in other.sums)"
    )
    assert_refused(
        run("stats", "--shard", "2/2", "--out", "x.sums"), "there is no shard 2/2: shards are counted from 0"
    )
    assert_refused(run("stats", "--shard", "1", "--out", "x.sums"), "'1' names no shard", "as 17/512")
    assert_refused(run("stats", "--shard", "0/2"), "--shard 0/2 writes sums to a file: name it, --out")
    assert_refused(run("stats", "--out", "x.sums"), "--out x.sums is for a part of the texts", "--shard K/N")
    assert_refused(run("roles", "--shard", "0/2", "--out", "x.sums", "--json"), "--json is about all texts")
    assert_refused(run("stats", "--shard", "0/2", "--out", "x.csv"), "cannot tell from that ending what to write")
