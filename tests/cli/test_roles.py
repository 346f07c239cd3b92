"""`manyheads roles`: what it shows is what the library found; files, questions and refusals."""

import json
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

import manyheads as mh
from manyheads.corpora.page import page_texts
from manyheads.roles import probing

from ..models.tiny import save_tiny, tiny_gpt2, tiny_tokenizer
from .conftest import assert_refused

TEXTS = 16


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.txt"
    path.write_text("\n".join(page_texts()[:TEXTS]) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.slow
def test_heads_and_questions_are_what_the_library_found(run, page, minilm):
    ran = run("roles", "--corpus", page, "--lines")
    found = mh.find_roles(minilm, page_texts()[:TEXTS], examples=0)
    assert ran.code == 0 and ran.lines[0] == f"minilm: what each head does over file {page}"
    named = sum(each.name != "unlabelled" for each in found)
    assert f"{named} of 72 named" in ran.out and "attention is not effect" in ran.out
    best = found.ranked("previous token", 1)[0]
    assert f"{best.score:.0%}" in next(line for line in ran.lines if line.startswith("  previous token"))
    assert f"manyheads roles --corpus {page}" in ran.out


def test_json_and_the_saved_table_hold_every_claim(run, page):
    ran = run("roles", "--corpus", page, "--lines", "--json", "--save", "claims.csv")
    data, frame = json.loads(ran.out), pd.read_csv("claims.csv")
    assert len(data["claims"]) == len(frame) and data["texts"] == TEXTS and len(data["heads"]) == 72
    claim = next(each for each in data["claims"] if each["head"] == "L0H2" and each["role"] == "previous token")
    assert claim["holds"] and 0.9 < claim["score"] <= 1 and claim["q_value"] < 1e-6


@pytest.mark.slow
def test_a_question_ranks_the_heads(run, page):
    ran = run("roles", "--corpus", page, "--lines", "--ask", "looks at the token before", "--top", "3")
    assert ran.lines[0] == "Which head looks at the token before?"
    assert ran.lines[2].split()[0] == "L0H2" and "attention is not effect" in ran.out
    assert_refused(run("roles", "--corpus", page, "--lines", "--ask", "token"), "may mean several roles")


@pytest.mark.slow
def test_a_role_of_ones_own_comes_from_a_file(run, page, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("def the_one_before(pieces):\n    return [None, *range(len(pieces) - 1)]\n", encoding="utf-8")
    ran = run("roles", "--corpus", page, "--lines", "--pattern", str(own), "--ask", "the one before")
    assert "the one before" in ran.lines[0] and ran.lines[2].split()[0] == "L0H2"
    own.write_text("x = 1\n", encoding="utf-8")
    assert_refused(run("roles", "--corpus", page, "--pattern", str(own)), "defines no function")
    own.write_text("def f(:\n", encoding="utf-8")
    assert_refused(run("roles", "--corpus", page, "--pattern", str(own)), "cannot be run: SyntaxError")
    assert_refused(run("roles", "--corpus", page, "--pattern", "none.py"), "there is no such file")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--corpus", "none.txt"), "none.txt"),
        (("--save", "claims.txt"), "cannot tell what to write"),
        (("--report", "roles.pdf"), "cannot tell what to write"),
        (("--plot", "nowhere/roles.svg"), "there is no folder"),
    ],
)
def test_bad_input_is_one_line(run, arguments, said):
    assert_refused(run("roles", *arguments), said)


@pytest.mark.slow
def test_several_files_make_one_corpus_and_a_bad_line_ends_nothing(run, tmp_path):
    texts = page_texts()[:40]
    (tmp_path / "a.txt").write_text("\n\n".join(texts[:20]), encoding="utf-8")
    lines = [json.dumps({"words": text}) for text in texts[20:]]
    (tmp_path / "b.jsonl").write_text("\n".join([*lines, "{broken"]), encoding="utf-8")
    data = json.loads(run("roles", "--corpus", "a.txt", "b.jsonl", "--field", "words", "--json").out)
    assert data["texts"] == 40 and data["origin"] == "2 files" and "b.jsonl" in data["notes"]["failed"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A causal model with positions for a needle."""
    made = tiny_gpt2(n_positions=230, n_layer=2)
    return str(save_tiny(made, tmp_path_factory.mktemp("probed") / "gpt2", tiny_tokenizer(special_tokens=False)))


def test_probes_are_shown_with_chance_and_variant_and_what_cannot_be_asked_with_its_reason(run, folder, monkeypatch):
    Path("some.txt").write_text("The cat sat on the old table.\n\nShe said no.\n", encoding="utf-8")
    here = ("roles", "--model", folder, "--corpus", "some.txt")
    unlike = {name: probing.Probe(name, "it is \x1b[31mlazy") for name in ("copying",)}
    asked = cache(probing.ask_probes)  # once for all three
    lm = mh.load(folder)
    monkeypatch.setattr(probing, "ask_probes", lambda *_: {**asked(lm), **unlike})
    ran = run(*here, "--probes")
    assert "labels rest on natural text" in next(line for line in ran.lines if line.startswith("Probes"))
    line = next(line for line in ran.lines if line.startswith("  random repeats  "))
    assert line.split()[2][:2] in ("L0", "L1") and line.split()[6] == "800" and "ARENA" in ran.out
    assert "copying                     not asked: it is" in ran.out and "\x1b" not in ran.out
    assert "no head was counted: a needle in texts of 128 tokens" in ran.out
    assert "probing: 32 texts" in ran.err or not ran.err  # a quick step says nothing
    ranked = run(*here, "--probes", "--ask", "random repeats", "--ask", "copying", "--top", "5")
    assert ranked.lines[0] == probing.PROBES["random repeats"] and len(ranked.lines[2:7]) == 5
    assert ranked.lines[2].split()[:4] == line.split()[2:6] and "not asked" in ranked.out
    assert_refused(run(*here, "--ask", "copying"), "is a probe, which was not asked: give probes=True (--probes)")
    data = json.loads(run(*here, "--probes", "--json").out)
    assert [(each["name"], each["asked"], len(each["heads"])) for each in data["probes"]][2:4] == [
        ("random repeats, offset -1", True, 8), ("copying", False, 0),
    ]  # fmt: skip
