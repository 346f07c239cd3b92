"""The figure of a training: every line is drawn, the named ones are named, and the same input gives the same file."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from manyheads.errors import FileAccessError
from manyheads.figures import save_chart
from manyheads.training import Chart, Panel
from manyheads.training.charts import Line
from manyheads.training.checkpoints import History


@pytest.fixture
def chart() -> Chart:
    history = History()
    for step in range(3000):
        history.add({"step": step, "loss": 12.0 / (step + 1), **({"held": 2.0} if step % 500 == 0 else {})})
    losses = (Line.of(history, "loss", "trained on", False), Line.of(history, "held", "held out"))
    heads = tuple(Line(f"L0H{head}", (0.0, 2999.0), (0.0, 0.5)) for head in range(3))  # names would lie on each other
    return Chart("A title", "and below", (Panel("losses", losses), Panel("heads", heads, 0.0, 1.0)))


def test_lines_names_and_steps_are_there(chart, tmp_path):
    save_chart(chart, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    for words in ("A title", "and below", "losses", "trained on", "held out", "L0H0", "L0H1", "L0H2", "training step"):
        assert f">{words}<" in drawn, words
    assert ">1,000<" in drawn and drawn.count('id="LineCollection_') == 5  # two losses, three heads
    at = sorted(float(y) for y in re.findall(r'y="([\d.]+)"[^<]*>L0H\d<', drawn))
    assert len(at) == 3 and all(below - above > 8 for above, below in pairwise(at))
    save_chart(chart, tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_text() == drawn
    save_chart(chart, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_training_without_numbers_still_has_a_figure(tmp_path):
    save_chart(Chart("t", "s", (Panel("p", (Line("flat", (0.0,), (1.0,)),)), Panel("none", ()))), tmp_path / "a.svg")
    assert ">flat<" in (tmp_path / "a.svg").read_text()


def test_an_ending_that_is_no_figures_is_refused(chart, tmp_path):
    with pytest.raises(FileAccessError, match="cannot tell what kind of figure 'a.txt' is"):
        save_chart(chart, tmp_path / "a.txt")
