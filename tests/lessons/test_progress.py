"""Points on disk: what was reached stays reached; damage and a home that cannot be written are survived."""

import json

import pytest

from manyheads.errors import FileAccessError
from manyheads.lessons import Progress
from manyheads.lessons.progress import state_folder


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
    with pytest.raises(FileAccessError, match="cannot write"):
        progress.reset()


def test_the_folder_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("MANYHEADS_STATE", raising=False)
    assert state_folder() == tmp_path / "manyheads"
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "other"))
    assert state_folder() == tmp_path / "other"
