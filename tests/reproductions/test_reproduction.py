"""Verdicts by intervals over seeds, the page of a result, and folders that belong to one reproduction."""

import json
import math

import pytest

from manyheads.errors import PlanError
from manyheads.reproductions import REPRODUCTIONS, Claim, Reproduction, Result, Row, markdown, reproduce
from manyheads.reproductions import reproduction_of as named
from manyheads.training.charts import Chart


def test_a_verdict_goes_by_the_whole_interval():
    values = (1.0, 2.0, 4.5)
    # By hand: mean 2.5, variance (2.25 + 0.25 + 4) / 2 = 3.25, t of two degrees of freedom 4.303.
    wide = 4.303 * math.sqrt(3.25 / 3)
    row = Row("quantity", "3", values)
    assert row.interval == pytest.approx({"mean": 2.5, "low": 2.5 - wide, "high": 2.5 + wide})

    def verdict(claim: Claim | None, values=values, exact=False):
        return Row("quantity", "3", values, claim, exact=exact).verdict

    assert verdict(Claim("", low=2.49 - wide)) == "comes out" == verdict(Claim("", high=2.51 + wide))
    assert verdict(Claim("", low=2.51 - wide)) == "undecided" == verdict(Claim("", high=2.49 + wide))
    assert verdict(Claim("", low=2.51 + wide)) == "does not come out" == verdict(Claim("", high=2.49 - wide))
    assert verdict(None) == "not judged"
    # One seed shows no spread; a number that no seed moves needs none.
    assert verdict(Claim("", low=0.0), (1.0,)) == "undecided"
    assert verdict(Claim("", low=0.0), (1.0,), exact=True) == "comes out"
    assert verdict(Claim("", low=1.1), (1.0,), exact=True) == "does not come out"


def toy(values=(0.25, 0.5), takes_file="") -> Reproduction:
    def run(task):
        row = Row("share | of heads", "18 %", values[: task.seeds] or values, Claim("at most 0.1", high=0.1), ".1%")
        return Result((row,), Chart("toy", "", ()), ("A note.",))

    words = ("toy", "a toy", "Toy 2026.", "A share.", "The share.", ("Nothing is.",))
    return Reproduction(*words, run, takes_file)


def test_a_reproduction_writes_its_page_and_keeps_its_folder_to_itself(tmp_path):
    made = reproduce(toy(), tmp_path / "here", seeds=2)
    page = (tmp_path / "here/page.md").read_text()
    # By hand: mean 0.375, sd 0.17678, one degree of freedom: 12.706 * 0.17678 / 1.41421 = 1.58825.
    cells = "| share ¦ of heads | 18 % | 25.0%, 50.0% | 37.5% (-121.3% to 196.3%) | at most 0.1 | **undecided** |"
    assert cells in page and "`manyheads reproduce toy --seeds 2`: 2 seeds, " in page
    assert page == markdown(json.loads((tmp_path / "here/result.json").read_text()))
    assert made.document["rows"][0]["verdict"] == "undecided"
    with pytest.raises(PlanError, match=r"holds another training \(seeds 2 then, 3 now\)"):
        reproduce(toy(), tmp_path / "here")
    for options, message in (
        ({"seeds": 0}, "seeds=0: give 1 or more"),
        ({"file": "a.json"}, "toy: it reads no file: leave a.json out"),
    ):
        with pytest.raises(PlanError, match=message):
            reproduce(toy(), tmp_path / "new", **options)
    with pytest.raises(PlanError, match=r"toy: give a list of scores\."):
        reproduce(toy(takes_file="a list of scores"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_every_reproduction_is_the_one_that_is_listed():
    for name in REPRODUCTIONS:
        assert named(name).name == name and named(name).not_comparable
    with pytest.raises(PlanError, match="there is no reproduction 'zhai-colapse'.*Did you mean zhai-collapse"):
        named("zhai-colapse")
