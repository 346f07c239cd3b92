"""`manyheads attribute`: what it prints is what the library found, and bad input is one line."""

import json

import numpy as np
import pandas as pd
import pytest

import manyheads as mh

from .conftest import assert_refused

TEXT = "def add(a, b): return a +"


@pytest.fixture(scope="module")
def found():
    return mh.logit_attribution(mh.load("tiny-code"), TEXT, (" b", " a"))


@pytest.mark.turns(4)
def test_the_components_that_add_most_come_first_and_the_sum_is_shown(run, found):
    ran = run("attribute", TEXT, "--answer", " b", "--versus", " a", "--head", "L3H3")
    assert ran.code == 0
    assert ran.lines[0] == f"tiny-code: the logit of ' b' - ' a' is {found.logit[0]:.4g}"
    order = np.argsort(-np.abs(found.values))[:12]
    assert [line.split("  ")[1] for line in ran.lines[3:15]] == [found.components[index] for index in order]
    numbers = [float(line[2:].split("  ", 1)[1].split()[0]) for line in ran.lines[3:16]]
    assert numbers[:12] == pytest.approx(found.values[order].tolist(), abs=0.01)
    assert sum(numbers) == pytest.approx(found.logit[0], abs=0.1)
    assert "L3H3, by the token whose value it was" in ran.out and "(weight 0." in ran.out
    assert f"rows sum to {found.total[0]:.4f}" in ran.out


@pytest.mark.turns(4)
def test_json_table_and_figure_hold_every_row(run, found, tmp_path):
    ran = run(
        "attribute", TEXT, "--answer", " b", "--versus", " a", "--head", "L3H3", "--json", "--save", "t.csv", "--plot",
        "f.svg",
    )  # fmt: skip
    document = json.loads(ran.out)
    assert [row["component"] for row in document["components"]] == list(found.components)
    assert [row["value"] for row in document["components"]] == pytest.approx(found.values.tolist(), abs=1e-5)
    assert document["total"] == pytest.approx(document["logit"], abs=1e-4) and document["error"] < 1e-4
    row = next(row["value"] for row in document["components"] if row["component"] == "L3H3")
    assert sum(share["value"] for share in document["keys"]) == pytest.approx(row, abs=1e-4)
    assert list(pd.read_csv(tmp_path / "t.csv")["component"]) == list(found.components)
    assert "L3 feed-forward" in (tmp_path / "f.svg").read_text(encoding="utf-8")


@pytest.mark.turns(4)
def test_an_id_is_a_token(run, found):
    token = mh.load("tiny-code").tokenizer(" b", add_special_tokens=False)["input_ids"][0]
    ran = run("attribute", TEXT, "--answer", str(token))
    assert ran.lines[0].startswith("tiny-code: the logit of ' b' is ")


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((TEXT,), ("no answer was given", "--answer ' word'")),
        (("--answer", " b"), ("no text was given",)),
        ((TEXT, "--answer", " b and more"), ("tokens", "a logit is of one", "or --first-token for the first")),
        ((TEXT, "--answer", " b", "--position", "99"), ("position 99 is not in a text of",)),
        ((TEXT, "--answer", " b", "--head", "L9H9"), ("'L9H9' has no row",)),
        ((TEXT, "--answer", " b", "--plot", "f.gif"), ("--plot",)),
        ((TEXT, "--answer", "5", "--model", "minilm"), ("minilm (BertModel) gives no logits",)),
    ],
)
@pytest.mark.sampled(4)
def test_what_cannot_be_is_one_line(run, arguments, parts):
    assert_refused(run("attribute", *arguments), *parts)
