"""What can be refused before a model is loaded is: no second is spent on a line that cannot be."""

import pytest

from manyheads.cli.arguments import METRICS
from manyheads.interventions import METRICS as OF_THE_LIBRARY

from .conftest import assert_refused

UNKNOWN = "--metric bogus is unknown: use auto, loss, kl or cosine."
OURS = "which alone would be replaced. Name a new folder."


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["ablate", "L1", "--metric", "bogus"], UNKNOWN),
        (["importance", "--metric", "bogus"], UNKNOWN),
        (["importance", "--metric", "class_loss"], "--metric class_loss is unknown: use auto"),
        (["importance", "--kind", "scale"], "kind='scale' is no way to ablate: use one of 'zero', 'mean'"),
        (["ablate", "L3H5-2"], "'L3H5-2': heads 5 to 2 run backwards. Write 'L3H2-5'."),
        (["ablate", "L1", "--kind", "copy", "--source", "L4-1"], "'L4-1': layers 4 to 1 run backwards. Write 'L1-4'."),
        (["prune", "L1, L3H5-2", "--out", "new"], "'L3H5-2': heads 5 to 2 run backwards. Write 'L3H2-5'."),
        (["prune", "L3H2", "--out", "a.txt"], "a.txt: it is a file. Name a folder."),
        (
            ["prune", "--lowest", "3", "--out", "full"],
            f"'novel.txt' in it is not of an earlier save by manyheads, {OURS}",
        ),
        (["prune", "L3H2", "--out", "none/new"], "none/new: its folder does not exist. Make it first"),
        (["convert", "--kv-heads", "0", "--model", "m", "--out", "new"], "--kv-heads 0: give 1 or more."),
        (["convert", "--kv-heads", "2", "--model", "m", "--out", "a.txt"], "a.txt: it is a file. Name a folder."),
        (["roles", "--corpus", "a.txt"], "no text was given: file a.txt holds none."),
        (["roles", "--corpus", "/dev/zero"], "cannot read /dev/zero: it is a device, not a file. Name a file."),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(run, monkeypatch, tmp_path, line, said):
    def refuse(*_, **__):
        raise AssertionError("loaded first")

    monkeypatch.setattr("manyheads.models.load", refuse)
    (tmp_path / "a.txt").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/novel.txt").write_text("words")
    assert_refused(run(*line), said)


def test_the_metrics_that_may_be_typed_are_those_of_the_library_that_need_no_labels():
    assert [*METRICS] == ["auto", *(name for name in OF_THE_LIBRARY if not name.startswith("class"))]
