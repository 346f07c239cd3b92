"""Lessons that a page computes by itself give what the library gives, to the letter and to rounding.

Oracle: the library's own cells, on NumPy and its reference. The page has static/cells.js, built from web/src/lib.
"""

import json
import math
from importlib.resources import files

import numpy as np
import pytest

from manyheads.base import divisors
from manyheads.errors import ManyHeadsError
from manyheads.lab.lessons import shelf
from manyheads.lab.lessons.answers import Predict
from manyheads.lab.room import views
from manyheads.lab.room.saved_lessons import judged_answers
from manyheads.lab.room.schema import CellAsk

BLOCKS = {
    block.run: (slug, name)
    for slug, page in shelf.lessons().items()
    for name, block in page.cells.items()
    if shelf.CELLS[block.run].in_page
}
"""Function -> a lesson's slug and the name of its cell."""
SPOILT = (
    "", "1 0,5", "1 2; 3", "a b", "2e6 1", " ".join("1" * 13), "1", "1 0 -1; 2 _ 3", "it's 'one\\two\"", "1 2 3; 4 5 6",
)  # fmt: skip
WORDS = ("dog", "bites", "man", "don't", "Zoë", "x2", '"so"', "a'\"b", "世界", "1", "heads")
LARGE = {"three-ways": {"d_model": 96, "tokens": 24}}  # the most that is drawn: what the library takes is dear here


def written(rng, rows, columns):
    """A table as a reader may type it: small whole numbers, or six figures."""
    if rng.integers(3) == 0:
        return "; ".join(" ".join(str(value) for value in row) for row in rng.integers(-3, 4, (rows, columns)))
    return "\n".join(" ".join(f"{value:.6g}" for value in row) for row in rng.normal(size=(rows, columns)))


def texts_of(run, rng):
    """Texts that fit each other, for a cell that reads some."""
    n, m, d, f, w = (int(size) for size in rng.permutation(np.arange(1, 8))[:5])
    odd = 2 * int(rng.integers(1, 6)) + 1
    heads, width = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    words = " ".join(rng.choice(WORDS, odd))
    shapes = {
        "one-head": {"x": (n, m), "w_q": (m, d), "w_k": (m, d), "w_v": (m, f)},
        "masked-scores": {"scores": (n, m)},
        "cross-attention": {"x": (n, m), "context": (d, m)},
        "feed-forward": {"x": (n, m), "w1": (m, w), "w3": (m, w), "w2": (w, m)},
        "whole-layer": {"x": (n, 4), "w_o": (4, 4)},
        "sum-of-parts": {"heads": (heads, width), "w_o": (heads * width, m)},
        "two-places": {"values": (odd, 2 * heads)},
    }.get(run, {})
    texts = {name: written(rng, *shape) for name, shape in shapes.items()}
    if run == "masked-scores":
        texts["mask"] = "\n".join(" ".join(map(str, row)) for row in rng.integers(0, 2, (n, m)))
    return texts | ({"words": words} if run == "two-places" else {})


def drawn(block, rng, number):
    """A reader's values: number 0 at the lower ends, 1 at the upper, every seventh with something that misfits."""
    values = {}
    for parameter in shelf.parameters_of(block):
        low, high = parameter.low, parameter.high
        if parameter.kind == "choice":
            values[parameter.name] = parameter.choices[(number + int(rng.integers(2))) % len(parameter.choices)]
        elif parameter.kind == "number":
            high = min(high, LARGE.get(block.run, {}).get(parameter.name, high))
            middle = rng.integers(low, high + 1) if parameter.whole else round(float(rng.uniform(low, high)), 2)
            values[parameter.name] = (low, high)[number] if number < 2 else float(middle)
    spoilt = number % 7 == 6
    for name, by in (("d_model", "heads"), ("heads", "kv_heads")):
        if {name, by} <= values.keys() and not spoilt:
            most = next(parameter.high for parameter in shelf.parameters_of(block) if parameter.name == by)
            fitting = [divisor for divisor in divisors(int(values[name])) if divisor <= most]
            values[by] = float(fitting[-1] if number == 1 else rng.choice(fitting))
    values |= texts_of(block.run, rng)
    if spoilt:
        kinds = {parameter.name: parameter.kind for parameter in shelf.parameters_of(block)}
        name = str(rng.choice([name for name, kind in kinds.items() if kind != "choice"]))
        values[name] = str(rng.choice(SPOILT)) if kinds[name] == "text" else float(rng.choice([-1, 2e6, 0.5]))
    # what a choice fills is filled by the page, too: the reader's own is what this tests
    for parameter in shelf.parameters_of(block):
        if parameter.own is not None and number % 3:
            values[parameter.name] = parameter.own
    return values


def of_library(slug, name, values):
    """The result as JSON, or the words of the refusal."""
    try:
        result = views.run_cell(slug, name, CellAsk(parameters=values), progress=lambda *_: None)
    except ManyHeadsError as error:
        return str(error)
    return result.model_dump(mode="json")


PAGE = """(asks) => asks.map(([slug, cell, values]) => {
  try { return manyheadsCells.ranCell(slug, cell, values); } catch (error) { return error.message; }
})"""


@pytest.fixture(scope="module")
def cells_page(browser):
    page = browser.new_page()
    script = (files("manyheads.studio") / "static" / "cells.js").read_text("utf-8")
    page.add_script_tag(content=script, type="module")
    page.wait_for_function("() => globalThis.manyheadsCells")
    yield page
    page.close()


def assert_same(got, want, where, size=1.0):
    """Equal texts and structure; numbers equal to rounding, by the size of the largest in their table."""
    if isinstance(want, dict):
        assert isinstance(got, dict) and got.keys() == want.keys(), (where, got)
        numbers = [abs(v) for row in want.get("values", []) for v in row if v is not None]
        for key, value in want.items():
            assert_same(got[key], value, (*where, key), max(numbers, default=1.0))
    elif isinstance(want, list):
        assert len(got) == len(want), where
        for i, (one, other) in enumerate(zip(got, want, strict=True)):
            assert_same(one, other, (*where, i), size)
    elif isinstance(want, float | int) and not isinstance(want, bool):
        assert math.isclose(got, want, rel_tol=1e-12, abs_tol=1e-12 * max(1.0, size)), (where, got, want)
    else:
        assert got == want, (where, got, want)


def assert_cells_are_the_same(page, rng, numbers):
    asks, wanted = [], []
    for slug, name in BLOCKS.values():
        block = shelf.lessons()[slug].cells[name]
        part = views.cell_body(block).model_dump(mode="json")
        for number in numbers:
            values = drawn(block, rng, number)
            asks.append((slug, part, values))
            wanted.append(of_library(slug, name, values))
    for (slug, part, values), got, want in zip(asks, page.evaluate(PAGE, asks), wanted, strict=True):
        assert_same(got, want, (slug, part["cell"], json.dumps(values)))
    return wanted


def test_each_cell_of_arithmetic_is_computed_in_the_page_as_by_the_library(cells_page, rng):
    number = int(rng.integers(7))
    assert len(assert_cells_are_the_same(cells_page, rng, [number])) == len(BLOCKS) == 18


@pytest.mark.slow
def test_twenty_drawn_inputs_of_each_cell_are_computed_in_the_page_as_by_the_library(cells_page, rng):
    wanted = assert_cells_are_the_same(cells_page, rng, range(21))
    refused = sum(isinstance(want, str) for want in wanted)
    assert 18 < refused < len(wanted) / 3, "both refusals and results were compared"


JUDGED = """(asks) => asks.map(([slug, check, cell, values]) => {
  const { ranCell, judged } = manyheadsCells;
  try { return judged(check, ranCell(slug, cell, values)); } catch (error) { return error.message; }
})"""
PREDICTIONS = [
    (slug, name)
    for slug, page in shelf.lessons().items()
    for name, check in page.checks.items()
    if isinstance(shelf.CHECKS[check.run], Predict) and shelf.CELLS[page.cells[check.cell].run].in_page
]


def test_predictions_with_a_readers_values_are_judged_in_the_page_as_by_the_library(cells_page, rng):
    asks, wanted = [], []
    for slug, name in PREDICTIONS:
        page = shelf.lessons()[slug]
        check, cell = page.checks[name], page.cells[page.checks[name].cell]
        for number in (int(rng.integers(2, 6)), 7):
            values = drawn(cell, rng, number)
            inputs = shelf.draw(check, int(rng.integers(1000)))
            parts = (views.check_body(page, check, inputs), views.cell_body(cell))
            asks.append((slug, *(part.model_dump(mode="json") for part in parts), values))
            try:
                with views.named_by_labels(shelf.parameters_of(cell)):
                    wanted.append(judged_answers(page, check, inputs, values))
            except ManyHeadsError as error:
                wanted.append(str(error))
    assert len({name for _, name in PREDICTIONS}) == 9
    for ask, got, want in zip(asks, cells_page.evaluate(JUDGED, asks), wanted, strict=True):
        assert_same(got, json.loads(json.dumps(want)), (ask[0], ask[1]["check"], json.dumps(ask[3])))
