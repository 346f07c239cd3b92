"""`manyheads ablate` and `manyheads importance`: what they say is what the library found, and bad input is one line."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import manyheads as mh
from manyheads.cli.arguments import ModelChoice, Source
from manyheads.cli.interventions import importance_lines
from manyheads.cli.terminal.console import aligned
from manyheads.interventions import Importance, importance_verdict, verdict

from .conftest import assert_refused

TEXTS = ("The cat sat on the mat.", "A dog that saw the cat ran home.", "Rain fell all night, and nobody slept.")


@pytest.fixture
def page(tmp_path):
    """Three paragraphs, one of them on two lines."""
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(text.replace(" the ", "\nthe ", 1) for text in TEXTS) + "\n", encoding="utf-8")
    return str(path)


def test_an_ablation_says_what_the_library_found(run, page, minilm):
    ran = run("ablate", "L3H7, L5H3", "--file", page, "--controls", "2")
    found = mh.effect(minilm, mh.Ablate("L3H7, L5H3"), list(TEXTS), controls=2)
    assert ran.code == 0
    assert ran.lines[0] == "minilm: ablate L3H7, L5H3 (zero)"
    (change,), (control,) = ([line for line in ran.lines if line.startswith(name)] for name in ("change", "control"))
    numbers = re.findall(r"-?\d+\.\d+", change + control.partition(":")[0])
    assert [float(number) for number in numbers] == pytest.approx(
        [found.change, sum(found.control) / 2, min(found.control), max(found.control)], abs=1e-3
    )
    assert found.low is None and change.endswith("(no 95% interval: too few texts)")
    assert len({len(number.partition(".")[2]) for number in numbers}) == 1 and " +0." in change
    assert "3 texts from file" in ran.out and "2 random sets of the same number of heads" in ran.out
    assert found.change > 1e-4


def test_an_ablation_begins_with_its_verdict_and_a_dot_for_each_random_head(run, page, minilm):
    ran = run("ablate", "l3h7", "--file", page)
    found = mh.effect(minilm, mh.Ablate("L3H7"), list(TEXTS))
    assert ran.lines[:2] == ["minilm: ablate L3H7 (zero)", verdict(found).words]
    (end,) = [index for index, line in enumerate(ran.lines) if line.strip() == "● random heads"]
    mark, *dots, scale = ran.lines[3:end]
    assert mark.split() == ["▼", "L3H7"] and "".join(dots).count("●") == len(found.control) == 10
    share = found.change / max(found.change, *found.control)  # cosine: nothing is below 0
    assert mark.index("▼") - 10 == round(59 * share) and scale.split()[0] == "0"
    alone = run("ablate", "L3H7", "--file", page, "--controls", "0")
    assert alone.lines[1] == "No verdict: there is no control, as asked." and "●" not in alone.out


def test_json_holds_the_plan_the_numbers_and_the_controls(run, page, minilm):
    data = json.loads(run("ablate", "L2", "--kind", "average", "--file", page, "--controls", "1", "--json").out)
    found = mh.effect(minilm, mh.Average("L2"), list(TEXTS), controls=1)
    assert mh.Plan.from_dict(data["plan"]) == mh.Plan(mh.Average("L2"))
    assert data["change"] == pytest.approx(found.change, rel=1e-4)
    assert data["control"] == pytest.approx(list(found.control), rel=1e-4)
    assert data["origin"].startswith("3 texts") and data["texts"] == 3


@pytest.mark.parametrize(("options", "step"), [
    (["--kind", "mean"], mh.Ablate("L1", kind="mean")),
    (["--kind", "scale", "--factor", "0.5"], mh.Scale("L1", 0.5)),
    (["--kind", "copy", "--source", "L1H2"], mh.Copy("L1", "L1H2")),
    (["--kind", "unmixed"], mh.SkipOutputProjection("L1")),
])  # fmt: skip
def test_every_kind_is_the_step_of_that_name_and_a_saved_plan_is_applied_again(options, step, run, page, minilm):
    alone = ("--file", page, "--controls", "0", "--json")
    first = json.loads(run("ablate", "L1", *options, *alone, "--save-plan", "plan.json").out)
    assert mh.Plan.from_dict(first["plan"]) == mh.Plan(step)
    again = json.loads(run("ablate", "--plan", "plan.json", *alone).out)
    assert again["change"] == pytest.approx(first["change"], rel=1e-5) and abs(first["change"]) > 1e-5
    with mh.applied(minilm, "plan.json"):
        pass


def test_a_streaming_head_sees_as_many_tokens_as_the_options_say(run):
    options = (
        "--model", "tiny-code", "--kind", "streaming", "--recent", "3", "--sink", "1", "--controls", "0", "--json",
    )  # fmt: skip
    data = json.loads(run("ablate", "L1", *options, "def add(first, second): return first + second").out)
    assert mh.Plan.from_dict(data["plan"]) == mh.Plan(mh.Ablate("L1", kind="streaming", sink=1, recent=3))
    assert abs(data["change"]) > 1e-4


def test_lines_are_texts_where_that_is_said(run, page):
    by_line = json.loads(run("ablate", "L1H1", "--file", page, "--lines", "--controls", "0", "--json").out)
    assert by_line["texts"] == sum(bool(line.strip()) for line in Path(page).read_text(encoding="utf-8").splitlines())
    assert by_line["control"] == []


def test_what_a_language_model_loses_is_told_token_by_token(run, gpt2_folder):
    ran = run("ablate", "L0", "the cat sat on the old table", "--model", gpt2_folder, "--controls", "1")
    assert ran.code == 0 and re.search(r"loss [-+]?\d+\.\d{4}, after \d+\.\d{4} nats a token", ran.out)
    assert len(re.findall(r"'[a-z]+' [-+]\d", ran.out)) >= 4


def test_a_corpus_of_its_own_and_what_changed_nothing_come_first(run, page, tmp_path, minilm):
    (tmp_path / "corpus.txt").write_text("Snow lay on the hills.\n\nNobody came to the door.\n", encoding="utf-8")
    options = ("--kind", "mean", "--controls", "0", "--json")
    ran = json.loads(run("ablate", "L2", "--file", page, "--corpus", "corpus.txt", *options).out)
    other = ["Snow lay on the hills.", "Nobody came to the door."]
    found = mh.effect(minilm, mh.Ablate("L2", kind="mean"), list(TEXTS), corpus=other, controls=0)
    assert ran["change"] == pytest.approx(found.change, rel=1e-4)
    alone = run("ablate", "L2H1", "--kind", "average", "--file", page, "--controls", "0").lines
    assert alone[1] == "Changes nothing here: average L2H1 has no effect."
    assert any(line.startswith("nothing   average L2H1: changed nothing") for line in alone)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file of somebody's own functions in the working folder."""
    (tmp_path / "edits_of_mine.py").write_text(
        "def flip(output):\n    return -output\n\n\ndef cut(output):\n    return output[:, 1:]\n\n\nnumber = 3\n"
    )
    (tmp_path / "broken_edits.py").write_text("import nothing_like_it\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "edits_of_mine", None)  # put back as it was: another test's own is another file
    monkeypatch.delitem(sys.modules, "edits_of_mine")
    return "edits_of_mine"


def test_function_of_ones_own_is_a_kind_of_both_commands(run, own, gpt2_folder):
    text, small = "the cat sat on the old table", ("--model", gpt2_folder)
    options = (text, *small, "--controls", "2", "--json")
    mine = json.loads(run("ablate", "L1H2", "--kind", f"{own}:flip", *options, "--save-plan", "plan.json").out)
    scaled = json.loads(run("ablate", "L1H2", "--kind", "scale", "--factor", "-1", *options).out)
    assert [mine[name] for name in ("change", "control")] == [
        pytest.approx(scaled[name], abs=1e-6) for name in ("change", "control")
    ]
    assert json.loads(Path("plan.json").read_text())["steps"] == [
        {"step": "edit", "heads": "L1H2", "function": f"{own}:flip"}
    ]
    place = run("ablate", "L1 feed-forward", text, "--kind", f"{own}:flip", *small)
    assert place.lines[0].endswith(": edit L1 feed-forward by flip") and "▼ L1 feed-forward" in place.out
    assert "random sets of the same number of layers: there are no others" in place.out
    assert "● random layers" in place.out
    flipped = sys.modules[own].flip
    worth = json.loads(run("importance", text, "--kind", f"{own}:flip", "--json", *small).out)
    found = mh.importance(mh.load(gpt2_folder), text, kind=flipped)
    assert [row["importance"] for row in worth["heads"]] == pytest.approx(found.values.tolist(), abs=1e-6)
    assert worth["notes"]["computed"].startswith("edit by flip of each head")


@pytest.mark.parametrize(("kind", "parts"), [
    ("edits_of_mine:flop", ["edits_of_mine has no 'flop': did you mean flip?"]),
    ("edits_of_mien:flip", ["there is no module 'edits_of_mien' in this folder or among the installed ones"]),
    ("broken_edits:flip", ["'broken_edits' cannot be imported: ModuleNotFoundError: No module named 'nothing"]),
    ("edits_of_mine:number", ["that is a int, and no function"]),
    ("edits of mine:flip", ["is not written as module:name, as in my_edits:flip"]),
    ("edits_of_mine:cut", ["edit L1H2 by cut: cut gave [1, 4, 32], float32 on cpu, at L1H2: return the new output"]),
])  # fmt: skip
def test_function_of_ones_own_that_cannot_be_is_one_line(kind, parts, run, own):
    assert_refused(run("ablate", "L1H2", "the cat sat", "--kind", kind), *parts)
    if kind == "edits_of_mine:cut":
        refused = run("importance", "the cat sat", "--kind", "edits_of_mine:flip", "--curve", "c.svg")
        assert_refused(refused, "--curve removes heads, and --kind edits_of_mine:flip is an edit of your own")


@pytest.mark.parametrize(("arguments", "parts"), [
    (["ablate"], ["no heads were named"]),
    (["ablate", "L9H1", "some text"], ["there is no layer 9", "L5H1"]),
    (["ablate", "L1", "--kind", "copy"], ["--source belongs to --kind copy"]),
    (["ablate", "L1", "--sink", "2"], ["--sink belongs to --kind streaming"]),
    (["ablate", "L1", "--factor", "2"], ["--factor belongs to --kind scale"]),
    (["ablate", "L1", "--kind", "kill"], ["--kind kill is unknown", "resample"]),
    (["ablate", "L1H1", "L1H2"], ["'L1H2' names heads", '"L1H1, L1H2"']),
    (["ablate", "L1", "--plan", "p.json"], ["HEADS ('L1') and --plan p.json both say what to do", "A text", "--file"]),
    (["ablate", "--plan", "nowhere.json"], ["there is no such file"]),
    (["ablate", "--plan", "p.json", "--kind", "mean", "--factor", "0.5"],
     ["--kind and --factor and --plan p.json both say what to do: leave out one or the other"]),
    (["ablate", "L1", "some text", "--metric", "loss"], ["needs a model that predicts the next token"]),
    (["ablate", "L1", "--save-plan", "plan.txt"], ["--save-plan plan.txt", ".json"]),
    (["importance", "--estimator", "guess"], ["--estimator guess is unknown"]),
    (["importance", "one text", "--curve", "c.svg"], ["at least two texts"]),
    (["importance", "--out", "table.xls"], ["--out table.xls"]),
    (["importance", "some text", "--kind", "kill"], ["kind='kill'"]),
])  # fmt: skip
def test_what_cannot_be_is_one_line(arguments, parts, run, tmp_path):
    assert_refused(run(*arguments), *parts)
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".svg", ".json", ".xls")]


def test_importance_lists_the_heads_at_both_ends_and_saves_all_of_them(run, page, minilm):
    ran = run("importance", "--file", page, "--out", "heads.parquet", "--estimator", "both")
    found = mh.importance(minilm, list(TEXTS))
    assert ran.code == 0
    order = [str(head) for head in found.ranking()]
    listed = re.findall(r"^  (L\dH\d+) ", ran.out, re.MULTILINE)
    assert listed == order[::-1][:6] + order[:6]
    assert re.search(r"agreement 0\.\d{3} with the gradient", ran.out)
    assert ran.lines[1] == importance_verdict(found) and f"of {order[-1]}, the largest; blank: less" in ran.out
    values = re.findall(r"^  L\dH\d+ +(\S+)  \((\S+) to (\S+)\)$", ran.out, re.MULTILINE)
    assert len(values) == 12
    for column in zip(*values, strict=True):
        assert len({len(value.partition(".")[2]) for value in column}) == 1, column
    table = pd.read_parquet("heads.parquet")
    np.testing.assert_allclose(table["importance"], found.values, rtol=1e-3, atol=1e-7)
    assert sorted(table["rank"]) == list(range(72))


def test_importance_lists_each_head_of_a_small_model_once_and_none_below_0_as_worth_most(minilm):
    console = Console(width=120, file=io.StringIO())

    def listed(values):
        spec = replace(minilm.spec, sites=minilm.spec.sites[: len(values) // 12])
        notes = {"model": "minilm", "metric": "m", "estimator": "as asked", "computed": "c"}
        result = Importance(spec, "ablation", "loss", "nats a token", np.array([values] * 2), notes)
        lines = importance_lines(result, None, Source("a text", "a text"), ModelChoice("minilm"), console)
        return [line.plain for line in lines]

    values = np.linspace(-2, 1, 12)
    shown = listed(values)
    assert sorted(re.findall(r"^  (L0H\d+) ", "\n".join(shown), re.MULTILINE)) == sorted(f"L0H{n}" for n in range(12))
    assert "every head, the most important first" in shown and "worth least" not in shown
    shown = listed(np.concatenate([values, np.linspace(-3, -2.5, 12)]))
    most, least = shown.index("worth most"), shown.index("worth least")
    assert [line.split()[0] for line in shown[most + 1 : least]] == ["L0H11", "L0H10", "L0H9", "L0H8"]
    assert "worth most" not in listed(np.linspace(-3, -2, 24))


@pytest.mark.slow
def test_importance_as_json_and_a_curve(run, page):
    ran = run("importance", "--file", page, "--estimator", "gradient", "--curve", "far.svg", "--json", "--debug")
    assert ran.code == 0, ran.err
    data = json.loads(ran.out)
    assert len(data["heads"]) == 72 and data["estimator"] == "gradient" and data["agreement"] is None
    curve = data["curve"]
    assert curve["counts"][0] == 0 and curve["counts"][-1] == 72 and curve["ranked"][0] == 0
    assert [line[-1] for line in curve["random"]] == pytest.approx([curve["ranked"][-1]] * 3, rel=1e-3)
    drawn = Path("far.svg").read_text(encoding="utf-8")
    assert "heads removed, of 72" in drawn and "at random" in drawn


def test_with_a_plan_what_is_typed_is_the_text(run, minilm):
    Path("plan.json").write_text('{"steps": [{"step": "ablate", "heads": "L1H9"}]}')
    typed = json.loads(run("ablate", "--plan", "plan.json", TEXTS[0], "--controls", "0", "--json").out)
    assert typed["texts"] == 1 and typed["origin"] == "1 text from what you typed"
    assert typed["change"] == pytest.approx(mh.effect(minilm, mh.Ablate("L1H9"), [TEXTS[0]], controls=0).change)
    words = json.loads(run("ablate", "--plan", "plan.json", *TEXTS[0].split(), "--controls", "0", "--json").out)
    assert words["change"] == typed["change"]


@pytest.mark.parametrize(("text", "said"), [
    ('{"steps": []}', "plan.json: the plan has no steps"),
    ('{"steps": [{"heads": "L1H9"}]}', 'plan.json: step 1 of 1: "step" is missing'),
])  # fmt: skip
def test_a_plan_that_says_nothing_is_refused_by_its_file(text, said, run):
    Path("plan.json").write_text(text)
    assert_refused(run("ablate", "--plan", "plan.json", "some text"), said)


def test_one_control_is_one_random_set(run):
    assert ": 1 random set of the same number of heads" in run("ablate", "L3H7", TEXTS[0], "--controls", "1").out


@pytest.mark.parametrize(("values", "written"), [
    ([0.1445, 0.08099, 0.0306], ["0.144", "0.081", "0.031"]),
    ([0.1445, 0.0001641], ["0.1445", "0.0002"]),
    ([1234.5, -2.25], ["1234", "-2"]),
    ([3.0, 0.0], ["3.00", "0.00"]),
    ([2e-9, 1e-8], ["2.00e-09", "1.00e-08"]),
    ([0.5, float("nan")], ["0.500", "nan"]),
    ([0.0], ["0"]),
])  # fmt: skip
def test_the_numbers_of_a_column_have_as_many_decimals(values, written):
    assert aligned(values) == written


def test_targets_are_what_an_encoder_decoder_is_measured_on(run, t5_folder, tmp_path):
    """The numbers are the library's on pairs; every way to pair wrongly is one line."""
    sources, targets = ["the old cat sat", "why is the dog here ?"], ["the dog said", "a cat sat on the table"]
    (tmp_path / "in.txt").write_text("\n".join(sources), encoding="utf-8")
    (tmp_path / "out.txt").write_text("\n".join(targets), encoding="utf-8")
    files = ("--file", "in.txt", "--lines", "--targets", "out.txt", "--model", t5_folder)
    ran = run("ablate", "cross:L0H1", *files, "--controls", "0", "--json")
    pairs = list(zip(sources, targets, strict=True))
    found = mh.effect(mh.load(t5_folder), mh.Ablate("cross:L0H1"), pairs, controls=0)
    data = json.loads(ran.out)
    assert data["change"] == pytest.approx(found.change, abs=1e-6) and data["before"] == pytest.approx(found.before)
    assert data["origin"] == "2 texts from file in.txt, with the targets from out.txt"
    worth = json.loads(run("importance", *files, "--json").out)
    by_name = {row["head"]: row["importance"] for row in worth["heads"]}
    assert by_name["cross:L0H1"] == pytest.approx(found.change, abs=1e-5)
    table = mh.measure(mh.load(t5_folder), pairs, "entropy")
    (measured,) = json.loads(run("stats", *files, "--statistics", "entropy", "--json").out)["statistics"]
    assert measured["heads"]["cross:L0H1"]["value"] == pytest.approx(table["cross:L0H1", "entropy"], abs=1e-6)
    assert "its cases are worth" in measured["heads"]["cross:L0H1"]["no_interval"]
    one = mh.measure(mh.load(t5_folder), pairs[:1], "entropy")
    words = (sources[0], "--target", targets[0], "--model", t5_folder)
    looked = json.loads(run("look", *words, "--statistics", "entropy", "--json").out)
    (row,) = (row for row in looked["heads"] if row["head"] == "decoder:L0H1")
    assert row["text"]["entropy"] == pytest.approx(one["decoder:L0H1", "entropy"], abs=1e-6)
    shown = json.loads(run("head", "decoder:L0H1", *words, "--json").out)
    assert shown["text"]["entropy"] == pytest.approx(one["decoder:L0H1", "entropy"], abs=1e-6)
    assert_refused(run("look", *words, "--plot", "maps.png"), "--target is for the table alone")
    assert_refused(run("stats", *files, "--resume", "run"), "--targets pairs with texts that are read at once")
    (tmp_path / "out.txt").write_text("one\ntwo\nthree", encoding="utf-8")
    assert_refused(run("importance", *files), "2 texts from file in.txt and 3 targets from out.txt do not pair")
    (tmp_path / "out.txt").write_text("one\ntwo", encoding="utf-8")
    assert_refused(run("importance", *files[:-2]), "minilm writes no text beside the one that it reads")
    assert_refused(run("ablate", "L0H1", "--targets", "out.txt"), "no texts were given: give --file FILE")
    assert_refused(run("prune", "L0H1", "--out", "x", "--targets", "out.txt"), "--file, --lines and --targets")
