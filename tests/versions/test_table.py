"""The table of versions: the page says what was run, it names today's floor and lock, and hides nothing that fails."""

import json
import re
from dataclasses import replace

import yaml

from manyheads.machine.versions import NEWEST_TESTED
from tests.versions import notebooks, report
from tests.versions.combinations import ROOT, floor, locked
from tests.versions.work import TESTS, _numbers

WORKFLOW = ROOT / ".github" / "workflows" / "versions.yml"


def row_of(name):
    return next(row for row in report.read() if row.name == name)


def test_the_page_is_made_of_what_was_run():
    assert report.PAGE.read_text(encoding="utf-8") == report.page(report.read())


def test_the_lowest_and_the_locked_versions_of_today_were_run():
    assert row_of("floor").transformers == floor("transformers")
    assert row_of("torch-floor").torch == floor("torch")
    lock = row_of("lock")
    assert (lock.transformers, lock.numpy) == (locked("transformers"), locked("numpy"))
    assert f"torch=={lock.torch}" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_what_the_package_calls_tested_is_the_newest_that_passes():
    assert {name: report.newest_passing(report.read(), name) for name in NEWEST_TESTED} == NEWEST_TESTED


def test_a_combination_that_fails_is_shown_as_failed_and_counts_as_no_tested_one():
    good = row_of("lock")
    for fault in (
        {"failed": 2, "failures": ("tests.nn.test_x::test_y",)},
        {"equal": good.numbers - 1},
        {"readme": False, "failures": ("README.md: said so",)},
        {"passed": 0},
    ):
        bad = replace(good, name="bad", torch="2.99.0", transformers="5.99.1", **fault)
        assert not bad.passes
        page = report.page([good, bad])
        (line,) = (line for line in page.splitlines() if line.startswith("| 2.99.0 | 5.99.1 |"))
        assert "**" in line and "- torch 2.99.0, transformers 5.99.1" in page
        assert all(failure in page for failure in bad.failures)
        assert report.newest_passing([good, bad], "transformers") == ".".join(good.transformers.split(".")[:2])


def test_row_that_ran_another_number_of_tests_is_named_with_both_numbers():
    rows = [replace(row_of("lock"), passed=1_591, expected=0), replace(row_of("floor"), passed=1_546, expected=45)]
    assert "the same set for each" in report.page(rows)
    short = replace(row_of("lock"), name="short", python="3.14.10", passed=803, failed=2, expected=5, date="2026-11-27")
    page = report.page([*rows, short])
    assert "the same set for each" not in page
    assert "on Python 3.14.10 ran 810 on 2026-11-27; each other row 1,591." in page


def test_page_says_where_notebooks_ran_which_failed_and_which_did_not_run():
    ran = notebooks.read()
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.of_notebooks(ran) in page and ran["date"] in page
    assert ran["versions"]["torch"] == notebooks.COLAB.packages["torch"]
    assert [row["name"] for row in ran["notebooks"] if row["widgets"]] == ["notebook"]
    first, *others = ran["notebooks"]
    text = report.of_notebooks({**ran, "notebooks": [{**first, "fault": "KeyError: 'x'"}, *others[1:]]})
    assert f"`{first['name']}` **fails**: `KeyError: 'x'`" in text and f"Not run: {others[0]['name']}." in text
    assert f"{len(others) - 1} of {len(notebooks.names())} notebooks" in text


def test_every_file_of_the_fixed_set_is_there():
    assert [name for name in TESTS if not (ROOT / name).is_file()] == []


def test_the_workflow_runs_every_combination_and_only_the_newest_may_fail():
    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    entries = job["strategy"]["matrix"]["include"]
    assert {entry["name"] for entry in entries} == {row.name for row in report.read()}
    assert [entry["name"] for entry in entries if entry.get("canary")] == ["newest"]
    assert job["continue-on-error"] == "${{ matrix.canary == true }}"
    pythons = {entry["name"]: entry["python"] for entry in entries}
    assert pythons == {row.name: ".".join(row.python.split(".")[:2]) for row in report.read()}


def test_numbers_are_whole_or_floating_and_stand_beside_their_places(tmp_path):
    document = json.loads('{"a": [1, {"b": 2.5, "c": "3"}], "d": true, "e": null}')
    assert dict(_numbers(document, "")) == {".a[0]": 1, ".a[1].b": 2.5}
    assert re.fullmatch(r"\d+\.\d+", NEWEST_TESTED["torch"])
