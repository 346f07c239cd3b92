"""How an answer is judged: numbers as people write them, units, rounding, mistakes that are known, nonsense."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.lessons.checks import Right, judged
from manyheads.lessons.quantities import DIMENSIONS, factor_of, read_quantity

CACHE = Right(10.0, "So it is.", "Count again.", unit="GiB", mistakes={80.0: "That is MHA."})
COUNT = Right(1_050_624.0, "So it is.", "Count again.", unit="parameters", mistakes={1_048_576.0: "No biases."})
SHARE = Right(1 / 3, "So it is.", "Look again.")
PERCENT = Right(80.0, "So it is.", "Look again.", unit="%")
TIME = Right(500.0, "So it is.", "Look again.", unit="ms")
FREE = Right(10.0, "So it is.", "Look again.", unit="GiB", free=True)
EXACT = Right(12.0, "So it is.", "Look again.", unit="heads")


def number(right, given):
    return judged(right, "number", (), 3, given)


@pytest.mark.parametrize(
    ("right", "given"),
    [
        (SHARE, ("1/3", "0.333", "0,33", " 33.3 % ", ".333", "3.33e-1", "33,3%")),
        (CACHE, ("10", "10 GiB", "10gib", "10.0 GiB", "10240 MiB", "10,240 MiB", "1e1")),
        (COUNT, ("1,050,624", "1050624", "1.05M", "1.05 m", "1.05 million", "1050.6k", "1_050_624 parameters",
                 "1 050 624", "1.05 M parameters", "0.00105 B")),
        (PERCENT, ("80", "80 %", "80.0%", "80 percent")),
        (TIME, ("500", "500 ms", "0.5 s", "500000 us", "500000 µs")),
        (FREE, ("10 GiB", "10.7 GB", "10240 MiB", "10.74 GB")),
        (EXACT, ("12", "12 heads", "12.0", "1.2e1", "24/2")),
        (Right(-2.5, "", ""), ("-2.5", "\u22122.5", "-5/2")),
        (Right(0.0, "", ""), ("0", "0.0", "0 %")),
        (Right(3.2e15, "", "", unit="FLOPs"), ("3.2e15", "3.20 PFLOP", "3200 TFLOPs")),
    ],
)  # fmt: skip
def test_a_right_number_is_right_however_it_is_written(right, given):
    for each in given:
        verdict = number(right, each)
        assert verdict.right and verdict.points == 3 and verdict.answered and verdict.words.startswith("Right. "), each


@pytest.mark.parametrize(
    ("right", "given", "said"),
    [
        (CACHE, "10.7 GB", "10.7 GB is right in GB; the question asks for GiB."),
        (CACHE, "10 GB", "The number is right, the unit is not: 10 GiB are 10.7 GB."),
        (CACHE, "10.7", "That is the number in GB; the question asks for GiB."),
        (CACHE, "10240", "That is the number in MiB; the question asks for GiB."),
        (CACHE, "80", "That is MHA."),
        (CACHE, "80 GiB", "That is MHA."),
        (CACHE, "85.9 GB", "That is MHA."),
        (CACHE, "3", "Count again."),
        (CACHE, "10.2", "Close, but not there: work it out to three figures. Count again."),
        (COUNT, "1,048,576", "No biases."),
        (COUNT, "1.04858M", "No biases."),
        (COUNT, "1M", "Close, but not there"),
        (COUNT, "1.06M", "Close, but not there"),
        (COUNT, "1.05", "Count again."),
        (PERCENT, "0.8", "That is the share; the question asks for percent."),
        (PERCENT, "20", "Look again."),
        (TIME, "0.5", "That is the number in s; the question asks for ms."),
        (TIME, "5 s", "Look again."),
        (EXACT, "12.1", "Close, but not there"),
        (EXACT, "-12", "Look again."),
        (FREE, "10 GB", "The number is right, the unit is not: 10 GiB are 10.7 GB."),
        (SHARE, "0.34", "Close, but not there"),
        (SHARE, "-0.333", "Look again."),
    ],
)
def test_a_wrong_number_is_told_which_mistake_it_is(right, given, said):
    verdict = number(right, given)
    assert not verdict.right and verdict.points == 0 and verdict.answered
    assert verdict.words.startswith(f"Not yet. {said}"), verdict.words


@pytest.mark.parametrize(
    ("right", "given", "said"),
    [
        *((SHARE, each, "is no number: write one, as in 0.25 or 1/4") for each in
          ("a third", "1/0", "nan", "inf", "1/2/3", "--1", "1 2", "<script>", "1e999", "9" * 400)),
        (SHARE, "", "Write an answer first."),
        (SHARE, "0x1", "'x1' is no unit here; the question asks for a plain number."),
        (SHARE, "3 GB", "GB measures memory; the question asks for a plain number."),
        (CACHE, "ten", "is no number: write one, as in 4 GiB"),
        (CACHE, "3 ms", "ms measures time; the question asks for GiB."),
        (CACHE, "4 apples", "'apples' is no unit here; the question asks for GiB."),
        (FREE, "10", "10 of what? The unit is part of the answer: say it, as in 4 GiB."),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_told_and_costs_nothing(right, given, said):
    verdict = number(right, given)
    assert (verdict.right, verdict.points, verdict.answered) == (False, 0, False) and said in verdict.words


def test_of_a_right_answer_and_a_mistake_the_nearer_counts():
    near = Right(100.4, "", "", mistakes={100.0: "You forgot the rest."})
    assert number(near, "100.4").right and number(near, "100.3").right
    assert number(near, "100").words == "Not yet. You forgot the rest."
    same = Right(4.0, "", "", mistakes={4.0: "never said"})
    assert number(same, "4").right, "a mistake that is the right answer for these inputs is none"


def test_tolerance_can_be_set():
    assert number(Right(100.0, "", "", tolerance=5), "104").right
    assert not number(Right(0.5, "", "", tolerance=0), "0.501").right


def test_choices_and_words():
    right = Right("even", "So it is.", "Look again.", mistakes={"uneven": "The other way round."}, also=("level",))
    choices = ("even", "uneven", "neither")
    assert judged(right, "choice", choices, 2, " even ").points == 2
    assert judged(right, "choice", choices, 2, "uneven").words == "Not yet. The other way round."
    assert judged(right, "choice", choices, 2, "neither").words == "Not yet. Look again."
    none = judged(right, "choice", choices, 2, "whatever")
    assert not none.answered and "is none of the choices: even; uneven; neither." in none.words
    for each in ("EVEN", "  even", "Level"):
        assert judged(right, "text", (), 1, each).right
    assert judged(right, "text", (), 1, "UNEVEN").words == "Not yet. The other way round."
    assert judged(right, "text", (), 1, "eve").words == "Not yet. Look again."


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789.,-+/eE %GiBkMsx_\u2212", max_size=20))
def test_anything_that_is_typed_is_judged(written):
    for right in (CACHE, COUNT, SHARE, PERCENT, TIME, FREE):
        assert number(right, written).words


@settings(max_examples=100, deadline=None)
@given(st.floats(min_value=1e-3, max_value=1e12), st.sampled_from([(d, u) for d in DIMENSIONS for u in DIMENSIONS[d]]))
def test_a_quantity_is_read_as_it_is_written(value, unit):
    dimension, name = unit
    quantity = read_quantity(f"{value!r} {name}")
    assert quantity is not None and quantity.value == value and quantity.unit == name
    assert factor_of(name, dimension) == DIMENSIONS[dimension][name]
    assert number(Right(value, "", ""), repr(value)).right
