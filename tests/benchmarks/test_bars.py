"""Bars judge what was measured, and the page says what the results say."""

import json

import pytest

from benchmarks.bars import BARS, Bar, judged
from benchmarks.run import BEGIN, END, PAGE, RESULTS, RUNS, written


def result(*lines):
    return {"lines": list(lines), "date": "2031-02-03", "machine": "a machine", "torch": "9"}


def one(results, what):
    return next(each for each in judged(results) if each.bar.what == what)


def test_every_bar_is_of_a_benchmark_and_has_one_limit():
    for bar in BARS:
        assert bar.run in RUNS and (bar.most is None) != (bar.least is None), bar


def test_a_figure_is_read_from_its_own_line_with_its_spread():
    name = "`measure`, texts of 8 to 128 tokens against equal ones, beyond the forward pass's"
    lines = [
        {"what": kind, "ratio": 3.0, "over_forward": {"ratio": ratio, "low": ratio - 0.1, "high": 2.0}}
        for kind, ratio in (("record", 1.1), ("measure", 1.14))
    ]
    found = one({"ragged": result(*lines)}, name)
    assert (found.value, found.met) == (1.14, True) and found.spread == pytest.approx((1.04, 2.0))
    assert found.measured == "1.14 (1.04-2) x"
    lines[1]["over_forward"]["ratio"] = 1.1501
    assert not one({"ragged": result(*lines)}, name).met


def test_at_least_is_a_floor():
    for ratio, met in ((0.4, True), (0.399, False), (float("nan"), False)):
        found = one(
            {"roles": result({"what": "roles", "ratio": ratio})}, "sentences a second of all roles, against the pass"
        )
        assert found.met is met, ratio


def test_what_was_not_measured_is_not_met():
    assert not any(each.met for each in judged({}))
    assert {each.verdict for each in judged({})} == {"not measured"}
    assert not one(
        {"roles": result({"what": "something else", "ratio": 9.0})}, "sentences a second of all roles, against the pass"
    ).met


@pytest.mark.parametrize(("most", "least", "said"), [(1.5, None, "at most 1.5 GB"), (None, 0.25, "at least 0.25 GB")])
def test_a_limit_says_its_side_and_unit(most, least, said):
    assert Bar("layer", None, "x", "what", most, least, "GB").limit == said


def test_the_page_says_what_the_results_say():
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert table.strip() == written(json.loads(RESULTS.read_text(encoding="utf-8"))).strip(), (
        "python -m benchmarks.run --page"
    )
