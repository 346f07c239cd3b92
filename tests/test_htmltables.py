"""Plain HTML tables: everything shown is escaped, numbers are numbers, and what is left out is counted."""

import re

import pytest

import manyheads as mh
from manyheads.base import html_table

HOSTILE = "</td><script>window.bad=1</script><img src=x onerror=bad()>\"'&"


def test_what_is_shown_is_escaped_wherever_it_stands():
    html = html_table([HOSTILE, "n"], [[HOSTILE, 1.0]], caption=HOSTILE, note=HOSTILE)
    assert html.count("&lt;script&gt;") == 4
    assert set(re.findall(r"<(\w+)", html)) == {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}


def test_of_many_rows_the_first_are_shown_and_the_rest_counted():
    html = html_table(["head"], [[f"L0H{at}"] for at in range(72)])
    assert html.count("<tr>") == 21 and "... and 52 more" in html and "L0H20" not in html
    assert "more" not in html_table(["head"], [["L0H0"]] * 20)


@pytest.mark.parametrize(
    ("value", "shown"), [(0.123456, "0.123"), (12, "12"), (float("nan"), "–"), (None, "–"), (1e-9, "1e-09")]
)
def test_numbers_are_short_and_stand_to_the_right_and_none_is_a_dash(value, shown):
    html = html_table(["x"], [[value], [1.0]])
    assert f'">{shown}</td>' in html and html.count("text-align:right") == 3


def test_a_long_cell_is_cut():
    assert f">{'x' * 120}...<" in html_table(["x"], [["x" * 5_000]])


def test_a_notebook_shows_recordings_and_tables_as_tables(minilm):
    recording = mh.record(minilm, f"a cat {HOSTILE} {'word ' * 60}")
    html = recording._repr_html_()
    assert html.count("<tr>") == 7 and "encoder.layer.5.attention.self" in html
    assert "The text begins: a cat &lt;/td&gt;&lt;script" in html and "<script" not in html and "<img" not in html
    table = mh.measure(minilm, "a cat")._repr_html_()
    assert table.count("<tr>") == 21 and "... and 52 more" in table and "L1H7" in table and "L1H8" not in table
    assert "to_pandas() has them all" in table and "entropy" in table
