"""`manyheads attribute`, `patch` and `circuit`: what they say is what the library found, and bad input is one line."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import manyheads as mh
from manyheads import figures
from manyheads.circuits import Circuit
from manyheads.circuits.writes import writes_of
from manyheads.corpora import reading_of
from tests.cli.conftest import assert_refused
from tests.models.tiny import save_tiny, tiny_llama, tiny_tokenizer

# ============================================================================================================ attribute
# `manyheads attribute`: what it prints is what the library found, and bad input is one line.

TEXT = "def add(a, b): return a +"
CODE = ("--model", "tiny-code")  # its words are code


@pytest.fixture(scope="module")
def found():
    return mh.logit_attribution(mh.load("tiny-code"), TEXT, (" b", " a"))


def test_the_components_that_add_most_come_first_and_the_sum_is_shown(run, found):
    ran = run("attribute", TEXT, "--answer", " b", "--versus", " a", "--head", "L3H3", *CODE)
    assert ran.code == 0
    assert ran.lines[0] == f"tiny-code: the logit of ' b' - ' a' is {found.logit[0]:.4g}"
    order = np.argsort(-np.abs(found.values))[:12]
    assert [line.split("  ")[1] for line in ran.lines[3:15]] == [found.components[index] for index in order]
    numbers = [float(line[2:].split("  ", 1)[1].split()[0]) for line in ran.lines[3:16]]
    assert numbers[:12] == pytest.approx(found.values[order].tolist(), abs=0.01)
    assert sum(numbers) == pytest.approx(found.logit[0], abs=0.1)
    assert "L3H3, by the token whose value it was" in ran.out and "(weight 0." in ran.out
    assert f"rows sum to {found.total[0]:.4f}" in ran.out


def test_json_table_and_figure_hold_every_row(run, found, tmp_path):
    ran = run(
        "attribute", TEXT, "--answer", " b", "--versus", " a", "--head", "L3H3", "--json", "--out", "t.csv", "--plot",
        "f.svg", *CODE,
    )  # fmt: skip
    document = json.loads(ran.out)
    assert [row["component"] for row in document["components"]] == list(found.components)
    assert [row["value"] for row in document["components"]] == pytest.approx(found.values.tolist(), abs=1e-5)
    assert document["total"] == pytest.approx(document["logit"], abs=1e-4) and document["error"] < 1e-4
    row = next(row["value"] for row in document["components"] if row["component"] == "L3H3")
    assert sum(share["value"] for share in document["keys"]) == pytest.approx(row, abs=1e-4)
    assert list(pd.read_csv(tmp_path / "t.csv")["component"]) == list(found.components)
    assert "L3 feed-forward" in (tmp_path / "f.svg").read_text(encoding="utf-8")


def test_an_id_is_a_token(run, found):
    token = mh.load("tiny-code").tokenizer(" b", add_special_tokens=False)["input_ids"][0]
    ran = run("attribute", TEXT, "--answer", str(token), *CODE)
    assert ran.lines[0].startswith("tiny-code: the logit of ' b' is ")


@pytest.mark.parametrize(("arguments", "parts"), [
    ((TEXT,), ("no answer was given", "--answer ' word'")),
    (("--versus", " b"), ("no answer was given",)),
    ((TEXT, "--answer", " b and more"), ("tokens", "a logit is of one", "or --first-token for the first")),
    ((TEXT, "--answer", " b", "--position", "99"), ("position 99 is not in a text of",)),
    ((TEXT, "--answer", " b", "--head", "L9H9"), ("'L9H9' has no row",)),
    ((TEXT, "--answer", " b", "--plot", "f.gif"), ("--plot",)),
    ((TEXT, "--answer", "5", "--model", "minilm"), ("minilm (BertModel) gives no logits",)),
])  # fmt: skip
def test_what_cannot_be_is_one_line(run, arguments, parts):
    assert_refused(run("attribute", *CODE[: 0 if "--model" in arguments else 2], *arguments), *parts)


# =============================================================================================================== writes
# `manyheads writes`: what it prints is what the library found, and bad input is one line.


def test_one_head_is_shown_by_weights_and_on_a_text_as_the_library_found_it(run, tmp_path):
    lm = mh.load("tiny-code")
    expected = mh.writes(lm, "L3H3", [TEXT], source="embedding", tokens=[" b", 7])
    line = ("writes", TEXT, "--head", "L3H3", "--source", "embedding", "--token", " b", "--token", "7", *CODE)
    ran = run(*line, "--out", "w.csv")
    assert ran.code == 0 and ran.lines[: len(str(expected).splitlines())] == str(expected).splitlines()
    assert "by weights, where it looks at" in ran.out and "source    the token's embedding" in ran.lines
    promoted = [word for word, _ in expected.table(" b").promoted]
    assert f"' b'            promotes    {', '.join(map(repr, promoted[:6]))}" in ran.out
    assert list(pd.read_csv("w.csv")["position"]) == [row.position for row in expected.positions]
    document = json.loads(run(*line, "--json").out)
    assert document["copying"] == pytest.approx(expected.to_dict()["copying"], abs=1e-6)
    assert [row["position"] for row in document["positions"]] == [row.position for row in expected.positions]
    Path("texts.txt").write_text(f"{TEXT}\nx = y +", encoding="utf-8")
    document = json.loads(run("writes", "--head", "L3H3", "--file", "texts.txt", "--lines", "--json", *CODE).out)
    assert {row["text"] for row in document["positions"]} == {0, 1}


@pytest.mark.slow
def test_all_heads_are_listed_by_what_they_do(run):
    every = writes_of(mh.load("tiny-code"))
    ran = run("writes", *CODE)
    assert ran.lines[0] == "tiny-code: what 32 heads write and look for, by their weights"
    for does in ("suppresses", "promotes"):
        chosen = [head for head, of in every.items() if of.does == does]
        assert f"{does} the token it looks at: {len(chosen) or 'none'}" in ran.lines
        assert all(f"  {head!s:<8}copying {every[head].copying.value:+.2f}, chance" in ran.out for head in chosen)
    document = json.loads(run("writes", "--json", *CODE).out)
    assert [row["head"] for row in document["heads"]] == [str(head) for head in every]


@pytest.mark.parametrize(("arguments", "parts"), [
    ((TEXT,), ("a text is about one head, and none was named: give --head, as in --head L12H3",)),
    (("--token", " b"), ("--token is about one head",)),
    (("--out", "w.csv"), ("--out is about one head",)),
    ((TEXT, "--head", "L9H9"), ("L9H9: tiny-code has layers 0-3",)),
    ((TEXT, "--head", "L3H3", "--source", "words"), ("source='words' stands for no token: use one of token",)),
    (("--head", "L3H3", "--token", " b and more"), ("the token ' b and more' has", "give a word of one token")),
    (("--head", "L3H3", "--out", "f.gif"), ("--out",)),
    (("--head", "what"), ("what",)),
])  # fmt: skip
def test_what_no_head_writes_is_one_line(run, arguments, parts):
    assert_refused(run("writes", *CODE, *arguments), *parts)


# ==================================================================================================== patch and circuit
# `manyheads patch` and `manyheads circuit`: what they say is what the library found, and bad input is one line.

TEMPLATE = "def f(self, {0}, {1}):\n    self.{0} = {0}\n    self.{2} ="
NAMES = (("name", "size"), ("path", "mode"), ("key", "value"), ("type", "data"))


@pytest.fixture(scope="module")
def tiny_code():
    return mh.load("tiny-code")


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"clean": TEMPLATE.format(a, b, b), "corrupted": TEMPLATE.format(a, b, a), "right": f" {b}", "wrong": f" {a}"}
        for a, b in NAMES
    ]
    path.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def told(count=4):
    return (
        [TEMPLATE.format(a, b, b) for a, b in NAMES[:count]],
        [TEMPLATE.format(a, b, a) for a, b in NAMES[:count]],
        [(f" {b}", f" {a}") for a, b in NAMES[:count]],
    )


def test_patch_says_what_the_library_found(run, pairs, tiny_code, tmp_path):
    ran = run("patch", "--pairs", pairs, *CODE, "--what", "v", "--direction", "noise", "--controls", "2",
              "--out", "heads.csv", "--plot", "heads.svg")  # fmt: skip
    clean, corrupted, answers = told()
    found = mh.patch(tiny_code, clean, corrupted, answers=answers, what="v", direction="noise", controls=2)
    assert ran.code == 0
    assert ran.lines[0].startswith("tiny-code: the values that a head reads: corrupted numbers into the clean run")
    first = found.ranking()[0]
    assert ran.lines[3].split()[0] == str(first)
    assert float(ran.lines[3].split()[1]) == pytest.approx(found[first], abs=1e-3)
    assert "pairs     4 pairs from pairs.jsonl" in ran.out.replace(str(tmp_path) + "/", "")
    assert "' size' (" in ran.out and "wrote heads.csv" in ran.out and "wrote heads.svg" in ran.out
    assert pd.read_csv("heads.csv")["effect"].tolist() == pytest.approx(found.values.tolist(), abs=1e-5)
    drawn = (tmp_path / "heads.svg").read_text(encoding="utf-8")
    assert "which heads carry the answer" in drawn and f"{found[first]:.2f}" in drawn and "L3" in drawn


def test_patch_as_data_at_each_position_of_one_pair(run, tiny_code):
    clean, corrupted, answers = told(1)
    ran = run("patch", clean[0], corrupted[0], "--right", " size", "--wrong", " name", "--positions", "each",
              *CODE, "--controls", "0", "--json", "--plot", "each.png", "--resume", "kept")  # fmt: skip
    document = json.loads(ran.out)
    found = mh.patch(tiny_code, clean, corrupted, answers=answers, positions="each", controls=0)
    assert [row["effect"] for row in document["heads"]] == pytest.approx(found.values.reshape(-1).tolist(), abs=1e-5)
    assert document["heads"][0]["low"] is None and document["origin"] == "the command line"
    assert {row["token"] for row in document["heads"]} == set(found.positions) and any(Path("kept").iterdir())


def test_circuit_says_what_the_library_found(run, pairs, tiny_code):
    ran = run("circuit", "--pairs", pairs, *CODE, "--keep", "0.5", "--json")
    clean, corrupted, answers = told()
    found = mh.find_circuit(tiny_code, clean, corrupted, answers=answers, keep=0.5)
    document = json.loads(ran.out)
    assert [row["head"] for row in document["heads"]] == [str(head) for head in found.heads]
    assert document["faithfulness"] == pytest.approx(found.faithfulness, abs=1e-4)
    said = run("circuit", "--pairs", pairs, *CODE, "--keep", "0.5", "--out", "circuit.csv", "--plot", "circuit.svg")
    assert said.lines[0] == f"tiny-code: {len(found.heads)} of 32 heads keep the answer"
    assert f"keeps     {found.faithfulness:.3f} of the gap" in said.out and "2 searched, 2 others measured" in said.out
    assert len(pd.read_csv("circuit.csv")) == len(found.heads)
    drawn = Path("circuit.svg").read_text(encoding="utf-8")
    assert f"{len(found.heads)} of 32 heads keep the answer" in drawn and "into its" in drawn
    assert all(f">H{head.index}<" in drawn for head in found.heads)
    assert "what its heads tell each other" in said.out and f"of {found.heads[-1]}" in said.out


def test_examples_are_read_where_no_text_is_given_and_the_output_says_how_to_give_one(run, tiny_code):
    examples = reading_of("tiny-code").pairs
    clean, corrupted = ([pair[side] for pair in examples] for side in ("clean", "corrupted"))
    found = mh.patch(tiny_code, clean, corrupted, answers=[(pair["right"], pair["wrong"]) for pair in examples])
    ran = run("patch", *CODE)
    assert ran.code == 0 and ran.lines[3].split()[:2] == [str(found.ranking()[0]), f"{found.values.max():.3f}"]
    yours = "10 examples of which attribute is set; for your own, give two texts and their answers, or --pairs FILE"
    assert f"pairs     {yours}" in ran.lines
    document = json.loads(run("circuit", *CODE, "--json", "--metric", "logit").out)
    assert document["origin"] == yours and document["metric"] == "logit" and document["faithfulness"] > 0.5
    first = examples[0]
    document = json.loads(run("attribute", *CODE, "--json").out)
    assert document["logit"] == pytest.approx(
        mh.logit_attribution(tiny_code, first["clean"], (first["right"], first["wrong"])).logit[0], abs=1e-4
    )
    said = run("attribute", *CODE, "--answer", " size")  # what is given wins
    assert said.lines[0].startswith("tiny-code: the logit of ' size' is ")
    assert 'texts     an example; for your own text: attribute "any text" --answer " word"' in said.lines


def test_examples_that_do_not_fit_a_model_are_said_to_be_ours(run, tmp_path):
    folder = save_tiny(tiny_llama(), tmp_path / "llama", tiny_tokenizer())
    message = "the examples do not fit this model, give texts of your own: pair 0"
    assert_refused(run("patch", "--model", str(folder)), message)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--wrong", "x"], "--wrong x answers a text, and none was given: give a clean and a corrupted text in quotes."),
    (["a b"], "one text was given: patching needs two"),
    (["a b", "a c"], "the right answer is missing: give --right WORD"),
    (["a b", "a c", "--right", "d"], "the wrong answer is missing: give --wrong WORD"),
    (["a b", "a c", "--pairs", "pairs.jsonl"], "holds texts and answers: leave out those of the command line"),
    (["--pairs", "pairs.jsonl", "--right", "x"], "holds texts and answers: leave out those of the command line"),
    (["--pairs", "nothing.jsonl"], "nothing.jsonl"),
    (["--pairs", "bad.jsonl"], "bad.jsonl, line 2 is not JSON"),
    (["--pairs", "half.jsonl"], "half.jsonl, line 1: a pair is"),
    (["--pairs", "empty.jsonl"], "empty.jsonl holds no pair"),
    (["--pairs", "pairs.jsonl", "--positions", "x"], "--positions x: use all, each, or numbers"),
    (["--pairs", "pairs.jsonl", "--plot", "x.gif"], "cannot tell from that ending what to write"),
    (["a b", "a c", "--right", "supercalifragilistic", "--wrong", "d"], "read only its first, --first-token."),
    (["--pairs", "pairs.jsonl", "--what", "z"], "what='z' is unknown"),
])  # fmt: skip
def test_bad_input_is_one_line(run, pairs, arguments, message, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"clean": "a", "corrupted": "b", "right": "c", "wrong": "d"}\n{nothing')
    (tmp_path / "half.jsonl").write_text('{"clean": "a"}')
    (tmp_path / "empty.jsonl").write_text("\n")
    assert_refused(run("patch", *CODE, *arguments), message)


def test_a_picture_of_a_deep_models_circuit_fits_a_screen_and_a_small_ones_has_room(tmp_path):
    heights = {}
    for layers in (3, 31):
        spec = mh.load(tiny_llama(num_hidden_layers=layers), tokenizer=False).spec
        every, costs = list(spec.heads), np.array([0.3, 0.6])
        circuit = Circuit(
            spec, (every[1], every[-2]), 0.9, "logit_diff", "logits", 2.0, -1.0, 0.95, 0.96, 0.1, (0.2,), (0.7,), costs,
            (), {"model": "tiny"},
        )  # fmt: skip
        figures.save_circuit(circuit, tmp_path / f"{layers}.svg")
        drawn = (tmp_path / f"{layers}.svg").read_text(encoding="utf-8")
        heights[layers] = float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawn)[1])
        assert drawn.count(f">L{layers - 1}<") == 1 and ">L0<" in drawn and ">H4<" in drawn
    assert heights[3] < heights[31] < 1000


def test_a_figure_of_layers_of_unlike_widths_and_of_stacks(tmp_path, fresh):
    """T5: three stacks, some of whose heads work against the answer."""
    import torch

    from tests.models.tiny import tiny_t5

    lm = mh.load(tiny_t5(), tokenizer=False)
    sides = [
        {name: torch.randint(3, 60, (1, 7), generator=fresh) for name in ("input_ids", "decoder_input_ids")}
        for _ in range(2)
    ]
    found = mh.patch(lm, *sides, answers=(5, 9), controls=0)
    figures.save_patching(found, tmp_path / "t5.svg")
    drawn = (tmp_path / "t5.svg").read_text(encoding="utf-8")
    assert "encoder:L0" in drawn and "cross:L2" in drawn and "No control was made." in drawn
    assert drawn.count("#D55E00".lower()) + drawn.count("#D55E00") >= sum(
        found.values < -0.05 * abs(found.values).max()
    )


# ================================================================================================================ why
# `manyheads why`: the library's own words and numbers.


def test_head_typed_before_the_text_is_the_head_as_card_takes_it(run):
    for command in ("why", "writes"):
        named, first = (
            run(command, *words, "--json", *CODE).out for words in ((TEXT, "--head", "L3H3"), ("L3H3", TEXT))
        )
        assert json.loads(named) == json.loads(first), command


ASKED = ("why", TEXT, "--head", "L3H3", *CODE)


def test_why_prints_the_librarys_words_and_gives_its_numbers(run, tmp_path):
    lm = mh.load("tiny-code")
    answer = mh.why(lm, TEXT, "L3H3", 5, 2)
    writer = next(row.writer for row in answer.query if row.looks_at is not None)
    ran = run(*ASKED, "--from", "5", "--to", "2", "--further", writer)
    assert ran.code == 0 and ran.lines[0] == "tiny-code: 1 text from what you typed"
    assert ran.lines[2] == answer.lines()[0]
    assert [line.strip() for line in ran.lines[3:6]] == [line.strip() for line in answer.lines()[1:4]]
    assert any(line.startswith(f"{writer} from ") for line in ran.lines)
    ran = run(
        *ASKED,
        "--from",
        "5",
        "--to",
        "2",
        "--against",
        "1",
        "--json",
        "--out",
        "t.csv",
        "--further",
        writer,
        "--device",
        "cpu",
        "--dtype",
        "float32",
    )
    document, other = json.loads(ran.out), mh.why(lm, TEXT, "L3H3", 5, 2, against=1)
    assert document["log_odds"] == pytest.approx(other.log_odds) and document["against"]["position"] == 1
    assert [row["writer"] for row in document["key"]] == [row.writer for row in other.key]
    assert document["further"]["head"] == writer
    assert len(pd.read_csv(tmp_path / "t.csv")) == len(other.query) + len(other.key)


def test_why_over_texts_is_the_mean_of_rows(run, tmp_path):
    (tmp_path / "texts.txt").write_text("def add(a, b): return a + b\ndef sub(a, b): return a - b\n")
    line = ("why", "--head", "L3H3", "--where", "first", "--file", "texts.txt", "--lines", *CODE)
    document = json.loads(run(*line, "--json").out)
    assert len(document["rows"]) == 2 and document["where"] == "first"
    assert run(*line).lines[2].startswith("L3H3, first: weight ")


def test_why_without_a_text_is_an_example(run, smollm2, monkeypatch):
    load = mh.models.load
    monkeypatch.setattr(
        "manyheads.models.load", lambda name, **how: smollm2 if name == "smollm2" else load(name, **how)
    )
    ran = run("why", "--model", "smollm2")
    assert ran.lines[2].startswith("L8H1 from ' John' (9) to ' John' (3): weight 0.87 (next: ")


@pytest.mark.parametrize(("arguments", "parts"), [
    (("why", TEXT, *CODE), ("no head was given: name it, --head L12H3",)),
    (("why", "--head", "L1H0", *CODE), ("no text was given: give one, as in why",)),
    ((*ASKED, "--from", "nowhere"), ("query='nowhere' is not a token of this text",)),
    ((*ASKED, "--where", "sideways"), ("--where='sideways' is not a kind of rows",)),
    ((*ASKED, "--where", "first", "--to", "3"), ("--to 3: --where chooses the rows, so leave it out",)),
    ((*ASKED, "--further", "L3H3"), ("L3H3 is not a head that wrote either side of this weight",)),
])  # fmt: skip
def test_what_why_cannot_be_asked_is_one_line(run, arguments, parts):
    assert_refused(run(*arguments), *parts)
