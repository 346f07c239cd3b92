"""Progress codes: what is handed in says what was reached, a typing error is refused, and a class's table has all."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import FileAccessError
from manyheads.lab import practice
from manyheads.lab.lessons import lessons
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.progress import Progress
from manyheads.lab.practice.codes import ALPHABET

NAMES = list(practice.EXERCISES)
CODES = st.builds(
    practice.ProgressCode,
    st.text("abcÄé猫 '-", min_size=1, max_size=20)
    .map(lambda name: f"x{name}y")
    .map(lambda name: " ".join(name.split())),
    st.integers(0, 2**24 - 1),
    st.sets(st.sampled_from(NAMES)).map(lambda done: tuple(name for name in NAMES if name in done)),
    st.integers(0, 4095),
    st.integers(0, 4095).map(lambda quarters: quarters / 4),
)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


@given(CODES, st.data())
def test_code_is_read_as_it_was_written_and_any_other_character_is_refused(code, data):
    text = str(code)
    assert practice.read_code(text) == code and re.fullmatch(r"([0-9A-Z]{4}-){5}[0-9A-Z]{4}", text.rpartition(":")[2])
    name, _, letters = text.rpartition(":")
    assert (
        practice.read_code(f" {name} : {letters.replace('-', ' ').lower().replace('0', 'o').replace('1', 'l')}") == code
    )
    place = data.draw(st.sampled_from([index for index, letter in enumerate(letters) if letter != "-"]))
    other = data.draw(st.sampled_from([letter for letter in ALPHABET if letter != letters[place]]))
    for broken in (
        f"{name}:{letters[:place]}{other}{letters[place + 1 :]}",
        f"{name}a:{letters}",
        f"{name[:-1]}:{letters}",
    ):
        with pytest.raises(LessonError, match="does not fit its checksum and name"):
            practice.read_code(broken)


@given(st.text(), st.text(ALPHABET + "-oil ", min_size=24, max_size=28))
def test_any_text_is_a_code_or_refused(name, letters):
    for text in (name, f"{name}:{letters}", f"\udc80{name}:{letters}"):
        with pytest.raises(LessonError):
            practice.read_code(text)
    with pytest.raises(FileAccessError):
        practice.class_report(["no file of this name " + name.replace(":", "")])


def test_text_too_long_for_the_name_of_a_file_is_a_broken_code():
    assert len(practice.class_report([f"{'x' * 5000}:0123"]).broken) == 1


@pytest.mark.parametrize(
    "text", ["", "Anna", "Anna:", ":0123", "Anna:0000-0000", f"Anna:{'0' * 23}U", f"Anna:{'0' * 25}"]
)
def test_what_is_no_code_is_refused(text):
    with pytest.raises(LessonError, match="is not a progress code: it is a name, a colon, and 24 letters and digits"):
        practice.read_code(text)


def test_code_of_a_later_version_is_refused(monkeypatch):
    monkeypatch.setattr(practice.progress_code.__module__ + ".VERSION", 2)
    text = str(practice.ProgressCode("Anna", 5, ("softmax",), 3, 4.5))
    monkeypatch.undo()
    with pytest.raises(LessonError, match="Anna: the code is of another version of manyheads. Update it."):
        practice.read_code(text)


def test_code_holds_what_was_reached_and_keeps_its_seed_until_all_is_forgotten(state):
    page = next(page for page in lessons().values() if page.checks)
    check = next(iter(page.checks))
    Progress().reach(page.slug, check, 0.5)
    Progress().reach("practice", "causal-mask", 2)
    Progress().reach("practice", "softmax", 1)
    Progress().reach("practice", "an older exercise", 5)
    code = practice.progress_code("  Anna   Ada ")
    assert (code.name, code.exercises, code.questions, code.points) == ("Anna Ada", ("softmax", "causal-mask"), 1, 3.5)
    assert practice.read_code(str(code)) == code == practice.progress_code("Anna Ada")
    Progress().reset()
    assert practice.progress_code("Anna Ada").points == 0 and practice.progress_code("Anna Ada").seed != code.seed
    for name in ("", "a:b", "x" * 61, "a\x1bb"):
        with pytest.raises(LessonError, match="is not a name for a code: give 1 to 60 characters, and no colon"):
            practice.progress_code(name)


def test_code_without_a_place_for_points_is_refused(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "file"))
    with pytest.raises(FileAccessError, match="cannot write"):
        practice.progress_code("Anna")


def test_class_report_has_the_best_code_of_each_names_broken_ones_and_copies(tmp_path):
    anna = [practice.ProgressCode("Anna", 11, tuple(NAMES[:count]), 4, 2.0 * count) for count in (3, 1)]
    ben, copy = (
        practice.ProgressCode("ben", 12, (), 0, 0.0),
        practice.ProgressCode("Carl", 11, tuple(NAMES[:3]), 4, 6.0),
    )
    (tmp_path / "codes.txt").write_text(f"# class 7b\n{anna[0]}\n\n{anna[1]}\nDora:0000\n", encoding="utf-8")
    report = practice.class_report([tmp_path / "codes.txt", str(ben), str(copy)])
    assert report.codes == (anna[0], ben, copy) and report.copied == (("Anna", "Carl"),)
    assert len(report.broken) == 1 and "'Dora:0000' is not a progress code" in report.broken[0]
    table = report.to_pandas()
    assert table["name"].tolist() == ["Anna", "ben", "Carl"] and table["points"].tolist() == [6, 0, 6]
    assert table["num_exercises"].tolist() == [3, 0, 3] and table[NAMES[2]].tolist() == [True, False, True]
    assert table["questions"].tolist() == [4, 0, 4] and not table[NAMES[3]].any()
    with pytest.raises(LessonError, match="there is no code to report"):
        practice.class_report([])
    with pytest.raises(FileAccessError, match="cannot read Dora: there is no such file"):
        practice.class_report(["Dora"])
