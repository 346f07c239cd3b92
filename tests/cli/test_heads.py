"""`manyheads heads`: a saved split as another project's list, and such a list as a split of a model."""

from __future__ import annotations

import json

import pytest

import manyheads as mh

from .conftest import assert_refused


@pytest.fixture
def listed(tmp_path):
    """What vLLM-Hook's variable takes, in a file: three heads of minilm, which has 6 layers of 12."""
    path = tmp_path / "heads.txt"
    path.write_text("0:0,3;5:11\n")
    return path


def test_a_list_is_imported_saved_exported_and_imported_again(run, listed, minilm):
    ran = run("heads", "import", str(listed), "--save", "a.split.json")
    assert (ran.code, ran.err.count("manyheads: ")) == (0, 0)
    assert ran.lines[0].startswith("3 of 72 key/value heads of minilm keep everything, by file")
    assert ran.lines[1] == "  heads            L0H0, L0H3, L5H11" and ran.lines[-1] == "wrote a.split.json"
    assert any(line.startswith("  model            the file names no weights") for line in ran.lines)
    ran = run("heads", "export", "a.split.json", "--to", "duo", "patterns", "--json")
    exported = json.loads(ran.out)
    assert exported["heads"] == ["L0H0", "L0H3", "L5H11"] and exported["format"] == "duo"
    assert exported["files"] == ["patterns/full_attention_heads.tsv", "patterns/config.json"]
    ran = run("heads", "import", "patterns", "--json")
    document = json.loads(ran.out)
    assert (
        document["heads"] == exported["heads"]
        and document["saved"] is None
        and document["keep"] == pytest.approx(1 / 24)
    )
    assert mh.HeadSplit.from_dict(document["split"]) == mh.read_heads("patterns", minilm)
    ran = run("heads", "import", "patterns", "--keep", "0.5")
    assert ran.lines[0].startswith("36 of 72 key/value heads of minilm keep everything")
    ran = run("heads", "export", "a.split.json", "--to", "vllm-hook", "v.json")
    assert ran.lines[1:] == ["wrote v.json", "wrote v.layer_heads.txt"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["show", "a"], "'show' is nothing to do with lists of heads: use export or import."),
        (["export", "a", "--to", "duo"], "say for which project, and where to write"),
        (
            ["export", "a", "b", "--to", "duo", "--keep", "0.5"],
            "--keep, --threshold, --join and --save are of heads import",
        ),
        (["export", "none.json", "b", "--to", "duo"], "cannot read none.json: there is no such file"),
        (["import", "a", "b"], "--to and PLACE are of heads export"),
        (["import", "a", "--save", "a.txt"], "--save a.txt: cannot tell what to write by that ending. Use .json"),
        (["import", "a"], "cannot read a: there is no such file"),
        (
            ["import", "heads.txt", "--keep", "0.5"],
            "says itself which heads keep everything: leave keep and threshold out",
        ),
        (["import", "heads.txt", "--join", "sum"], "join='sum' is unknown: use 'maximum' or 'mean'."),
        (["import", "other.txt"], "other.txt lists L0H12, and minilm has 6 layers of 12 query heads"),
    ],
)
def test_what_cannot_be_is_one_line(run, listed, line, words):
    listed.with_name("other.txt").write_text("0:12")
    assert_refused(run("heads", *line), words)
