"""How an answer is judged, and the points on disk."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import FileAccessError
from manyheads.lab.lessons import Progress, Right
from manyheads.lab.lessons.answers import judge
from manyheads.lab.lessons.parameters import DIMENSIONS, factor_of, read_quantity
from manyheads.lab.lessons.progress import state_folder
from tests.refusals import refuses

# ============================================================================================================== judging
# How an answer is judged: numbers as people write them, units, rounding, mistakes that are known, nonsense.

CACHE = Right(10.0, "So it is.", "Count again.", unit="GiB", mistakes={80.0: "That is MHA."})
COUNT = Right(1_050_624.0, "So it is.", "Count again.", unit="parameters", mistakes={1_048_576.0: "No biases."})
SHARE = Right(1 / 3, "So it is.", "Look again.")
PERCENT = Right(80.0, "So it is.", "Look again.", unit="%")
TIME = Right(500.0, "So it is.", "Look again.", unit="ms")
FREE = Right(10.0, "So it is.", "Look again.", unit="GiB", free=True)
BLEU = Right(0.9, "", "", unit="BLEU", tolerance=0.04)
DROPPED = Right(50.3, "", "", unit="%", mistakes={57.8: "Not divided."})
FIT = Right(78_643.0, "", "Whole.", unit="tokens", mistakes={78_643.2: "Round down.", 78_644.0: "Round down."})
EXACT = Right(12.0, "So it is.", "Look again.", unit="heads")


def number(right, given):
    return judge(right, "number", (), 3, given)


@pytest.mark.parametrize(
    ("right", "given"),
    [
        (SHARE, ("1/3", "0.333", "0,33", " 33.3 % ", ".333", "3.33e-1", "33,3%")),
        (CACHE, ("10", "10 GiB", "10gib", "10.0 GiB", "10240 MiB", "10,240 MiB", "1e1")),
        (CACHE, ("10 gibibytes", "10 Gio", "10 G", "10 Gi")),
        (Right(8.0, "", "", unit="GB"), ("8 GB", "8 gigabytes", "8 Go", "8 gb")),
        (PERCENT, ("80 points", "80 pp", "80 percentage points")),
        (BLEU, ("0.9", "0.9 BLEU", "0.9 points", "0.9 bleu")),
        (Right(172_284.0, "", "", unit="parameters", mistakes={172_032.0: "No biases."}), ("1.72e+05", "172k")),
        (Right(4_198_400.0, "", "", unit="weights"), ("4.2M", "4.20 million", "4.198.400")),
        (Right(-3.0, "", ""), ("- 3", "\u20133", "-3")),
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


@pytest.mark.parametrize(("right", "given", "said"), [
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
    (FREE, "10 GB", "The figure is right in another unit: GB is not the one."),
    (FREE, "10 MiB", "The figure is right in another unit: MiB is not the one."),
    (CACHE, "10 MiB", "The number is right, the unit is not: 10 GiB are 10,240 MiB."),
    (CACHE, "85.9", "Read in GB: That is MHA."),
    (CACHE, "80 GB", "Read in GiB: That is MHA."),
    (CACHE, "10.7 GiB", "That is the number in GB, not in GiB: 10 GiB are 10.7 GB."),
    (CACHE, "85.9 GiB", "Read in GB: That is MHA."),
    (FREE, "10.7 GiB", "The figure is right in another unit: GiB is not the one."),
    (TIME, "0.5 ms", "That is the number in s, not in ms: 500 ms are 0.5 s."),
    (Right(8.0, "", "Count.", unit="GB"), "8 Gb", "Gb are bits, 8 to a byte. The number is right"),
    (Right(17.2, "", "", unit="GFLOP"), "17.2 TFLOP", "The number is right, the unit is not: 17.2 GFLOP are"),
    (COUNT, "1.05 B", "The figure is right, the unit is not: it is in M, not in B."),
    (COUNT, "1,050,625", "Count again."),
    (DROPPED, "0.578", "Read as a share: Not divided."),
    (FIT, "78643.2", "Round down."),
    (FIT, "78644", "Round down."),
    (FIT, "78,642", "Whole."),
    (SHARE, "0.34", "Close, but not there"),
    (SHARE, "-0.333", "Look again."),
])  # fmt: skip
def test_a_wrong_number_is_told_which_mistake_it_is(right, given, said):
    verdict = number(right, given)
    assert not verdict.right and verdict.points == 0 and verdict.answered
    assert verdict.words.startswith(f"Not yet. {said}"), verdict.words


@pytest.mark.parametrize(
    ("right", "given", "said"),
    [
        *((SHARE, each, "is not a number: write one, as in 0.25 or 1/4") for each in
          ("a third", "1/0", "nan", "inf", "1/2/3", "--1", "1 2", "<script>", "1e999", "9" * 400)),
        (SHARE, "", "Write an answer first."),
        (SHARE, "0x1", "'x1' is not a unit here; the question asks for a plain number."),
        (SHARE, "3 GB", "GB measures memory; the question asks for a plain number."),
        (CACHE, "ten", "is not a number: write one, as in 4 GiB"),
        (CACHE, "3 ms", "ms measures time; the question asks for GiB."),
        (CACHE, "4 apples", "'apples' is not a unit here; the question asks for GiB."),
        (FREE, "10", "10 of what? The unit is part of the answer: write it after the number."),
        (FREE, "10 G", "10 G of what?"),
        (BLEU, "90 %", "% says a share; the question asks for BLEU."),
        (FIT, "78.643", "78.643 is read as a number with a decimal point. Write 78643 if that is what you mean."),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_told_and_costs_nothing(right, given, said):
    verdict = number(right, given)
    assert (verdict.right, verdict.points, verdict.answered) == (False, 0, False) and said in verdict.words


def test_of_a_right_answer_and_a_mistake_the_nearer_counts_and_tolerance_can_be_set():
    near = Right(100.4, "", "", mistakes={100.0: "You forgot the rest."})
    assert number(near, "100.4").right and number(near, "100.3").right
    assert number(near, "100").words == "Not yet. You forgot the rest."
    same = Right(4.0, "", "", mistakes={4.0: "never said"})
    assert number(same, "4").right, "a mistake that is the right answer for these inputs is none"
    assert number(Right(100.0, "", "", tolerance=5), "104").right
    assert not number(Right(0.5, "", "", tolerance=0), "0.501").right


def test_choices_and_words():
    right = Right("even", "So it is.", "Look again.", mistakes={"uneven": "The other way round."}, also=("level",))
    choices = ("even", "uneven", "neither")
    assert judge(right, "choice", choices, 2, " even ").points == 2
    assert judge(right, "choice", choices, 2, "uneven").words == "Not yet. The other way round."
    assert judge(right, "choice", choices, 2, "neither").words == "Not yet. Look again."
    none = judge(right, "choice", choices, 2, "whatever")
    assert not none.answered and "is not one of the choices: even; uneven; neither." in none.words
    for each in ("EVEN", "  even", "Level"):
        assert judge(right, "text", (), 1, each).right
    assert judge(right, "text", (), 1, "UNEVEN").words == "Not yet. The other way round."
    assert judge(right, "text", (), 1, "eve").words == "Not yet. Look again."


def test_a_choice_is_meant_by_its_number_in_any_case_and_by_a_part_that_no_other_has():
    choices = ("stay as they are", "become more even", "become more uneven")
    right = Right("become more even", "So it is.", "Look again.")
    for each in ("Become more even", "more even", "2", "2)", "even", "become more even."):
        assert judge(right, "choice", choices, 1, each).right, each
    for each in ("uneven", "3", "STAY"):
        verdict = judge(right, "choice", choices, 1, each)
        assert verdict.answered and not verdict.right, each
    for each in ("become", "more", "4", "0", "are even", "ven"):
        assert not judge(right, "choice", choices, 1, each).answered, each


def test_a_word_is_taken_with_quotes_an_article_and_a_full_stop():
    cat = Right("cat", "", "Look.", also=("4", "token 4"), mistakes={"[CLS]": "It rests."})
    for each in ('"cat"', "The cat.", "\u201ccat\u201d", "CAT!", "token 4", "Token4", "4"):
        assert judge(cat, "text", (), 1, each).right, each
    assert "Count from 0" in judge(cat, "text", (), 1, "token 5").words
    assert judge(cat, "text", (), 1, "'[CLS]'").words == "Not yet. It rests."
    for mark in (".", "a", "the", "'"):
        assert judge(Right(mark, "", ""), "text", (), 1, mark).right, "a mark or an article may be the word itself"
    assert not judge(Right(".", "", ""), "text", (), 1, ",").right


def test_counted_from_one_units_and_mistakes_that_are_right_here_are_understood():
    assert "Count from 0" in judge(Right(4.0, "", ""), "number", (), 1, "5", "Which row? Count from 0.").words
    assert judge(Right(4.0, "", ""), "number", (), 1, "4 sheep", "How many sheep?").right
    assert not judge(Right(4.0, "", ""), "number", (), 1, "4 apples", "How many sheep?").answered
    assert Right(4.0, "", "", mistakes={4: "x", 5.0: "y"}).mistakes == {5.0: "y"}
    assert Right("Cat", "", "", mistakes={"cat": "x"}).mistakes == {}


@given(st.text(alphabet="0123456789.,-+/eE %GiBkMsx_\u2212", max_size=20))
def test_anything_that_is_typed_is_judged(written):
    for right in (CACHE, COUNT, SHARE, PERCENT, TIME, FREE):
        assert number(right, written).words


@given(st.floats(min_value=1e-3, max_value=1e12), st.sampled_from([(d, u) for d in DIMENSIONS for u in DIMENSIONS[d]]))
def test_a_quantity_is_read_as_it_is_written(value, unit):
    dimension, name = unit
    quantity = read_quantity(f"{value!r} {name}")
    assert quantity is not None and quantity.value == value and quantity.unit == name
    assert factor_of(name, dimension) == DIMENSIONS[dimension][name]
    assert number(Right(value, "", ""), repr(value)).right


# =============================================================================================================== points
# Points on disk: what was reached stays reached; damage and a home that cannot be written are survived.


def test_points_are_kept_and_read_again(tmp_path):
    progress = Progress(tmp_path / "new" / "state")
    progress.reach("masks", "a", 2)
    progress.reach("masks", "a", 1)
    progress.reach("masks", "gone", 3)
    progress.reach("recap", "b", 1)
    again = Progress(tmp_path / "new" / "state")
    assert again.points == {"masks": {"a": 2, "gone": 3}, "recap": {"b": 1}} and not again.trouble
    assert again.of("masks", {"a": 2, "c": 1}) == (1, 2) and again.of("none", {"a": 1}) == (0, 0)
    again.reset()
    assert Progress(tmp_path / "new" / "state").points == {}
    assert [each.name for each in (tmp_path / "new" / "state").iterdir()] == ["lessons.json"], (
        "nothing is left beside it"
    )


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"points": 3}', "\x00"])
def test_damage_is_told_and_survived(tmp_path, text):
    (tmp_path / "lessons.json").write_text(text, encoding="utf-8")
    progress = Progress(tmp_path)
    assert progress.points == {} and "is damaged and was read as empty" in progress.trouble
    progress.reach("masks", "a", 1)
    assert not progress.trouble and json.loads((tmp_path / "lessons.json").read_text())["points"] == {"masks": {"a": 1}}


def test_what_is_no_number_of_points_is_left_out(tmp_path):
    kept = {"points": {"masks": {"a": 1, "b": "x", "c": -1}, "recap": 3}}
    (tmp_path / "lessons.json").write_text(json.dumps(kept), encoding="utf-8")
    assert Progress(tmp_path).points == {"masks": {"a": 1}}


def test_where_nothing_can_be_written_points_last_as_long_as_the_run(tmp_path):
    (tmp_path / "a-file").write_text("", encoding="utf-8")
    progress = Progress(tmp_path / "a-file" / "state")  # no folder can be made there, whoever we are
    progress.reach("masks", "a", 2)
    assert progress.of("masks", {"a": 2}) == (1, 2) and "cannot write" in progress.trouble
    refuses(FileAccessError, "cannot write", progress.reset)


def test_the_folder_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("MANYHEADS_STATE", raising=False)
    assert state_folder() == tmp_path / "manyheads"
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "other"))
    assert state_folder() == tmp_path / "other"
