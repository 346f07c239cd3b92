"""`manyheads reproduce`: its list, what it says of a result, and what it refuses."""

import json

from .conftest import assert_refused


def test_without_a_name_they_are_listed(run):
    ran = run("reproduce")
    assert ran.code == 0 and ran.lines[0].startswith("What papers report") and ran.lines[3].startswith("  gu-sinks")
    assert "Make one: manyheads reproduce zhai-collapse" in ran.out
    listed = json.loads(run("reproduce", "--json").out)["reproductions"]
    assert {"name", "meaning", "takes"} == set(listed[0]) and "wu-scores" in [each["name"] for each in listed]
    assert_refused(run("reproduce", "--quick"), "--quick was given, but no name: say which of gu-sinks")
    assert_refused(run("reproduce", "--seeds", "2"), "--seeds was given, but no name")
    assert_refused(run("reproduce", "olson-phase"), "there is no reproduction 'olson-phase'")
    assert_refused(run("reproduce", "wu-scores"), "wu-scores: give a file of scores")
    assert "nightdessert/Retrieval_Head" in run("reproduce", "wu-scores").err


def test_a_result_is_told_and_written(run, tmp_path):
    (tmp_path / "toy.json").write_text(json.dumps({"0-0": [0.0, 0.3], "0-1": [0.0, 0.0], "1-0": [0.0, 0.1]}))
    ran = run("reproduce", "wu-scores", "toy.json", "--out", "here")
    assert ran.code == 0, ran.err
    # One of three heads has a mean above 0.1, and a third is far over 5 %.
    told = "does not come out  heads of toy with a mean score above 0.1\n"
    assert told in ran.out and f"{'':<17}  here: 33.3%\n" in ran.out and "wrote here/page.md" in ran.out
    written = {path.name for path in (tmp_path / "here").iterdir() if path.is_file() and path.suffix != ".lock"}
    assert {"page.md", "figure.svg", "result.json", "run.json"} <= written
    assert "| 33.3% |" in (tmp_path / "here/page.md").read_text()
    said = json.loads(run("reproduce", "wu-scores", "toy.json", "--out", "here", "--json").out)
    assert said["folder"] == "here" and said["rows"][0]["mean"] == 1 / 3
    assert_refused(run("reproduce", "olsson-phase", "--out", "here"), "here holds another training (reproduction")
