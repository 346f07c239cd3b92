"""C-MAPSS files: what is written is what is read, whatever is wrong is named, and windows stay within their engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.errors import FileAccessError, TextError
from manyheads.training import CAP, CHANNELS, LENGTH, Scaling, read_cmapss, split, windows_of
from manyheads.training.presets.rul.data import COLUMNS, Engine

REST = " ".join(f"{value}.5" for value in range(COLUMNS - 2))


def written(folder: Path, train: str = f"1 1 {REST}\n", test: str = f"1 1 {REST}\n", left: str = "7\n") -> Path:
    for kind, text in (("train", train), ("test", test), ("RUL", left)):
        (folder / f"{kind}_FD001.txt").write_text(text)
    return folder


def engine(unit: int, cycles: int, left: int = 0) -> Engine:
    """Its first sensor says the unit, its second the cycle."""
    rows = np.zeros((cycles, len(CHANNELS)))
    rows[:, 3], rows[:, 4] = unit, np.arange(1, cycles + 1)
    return Engine(unit, rows, left)


def test_a_set_written_by_hand_is_read_as_it_stands(tmp_path):
    first = "1 1 -0.0007 -0.0004 100.0 518.67 641.82 1589.70 1400.60 14.62 21.61 554.36 2388.06 9046.19 1.30 47.47 " \
            "521.66 2388.02 8138.62 8.4195 0.03 392 2388 100.00 39.06 23.4190  \n"  # fmt: skip
    second = first.replace("1 1 -0.0007", "1 2 +1e-3").replace(" 392 ", "\t393 ")
    other = first.replace("1 1 ", "2 1 ")
    written(tmp_path, first + second + other, first + other.replace("392", "400"), "112 \r\n0\n\n")
    fleet = read_cmapss(tmp_path)
    assert fleet.name == "FD001" and [each.unit for each in fleet.train] == [1, 2]
    one, two = fleet.train
    assert one.rows.shape == (2, 24) and one.rows[0, :5].tolist() == [-0.0007, -0.0004, 100.0, 518.67, 641.82]
    assert one.rows[1, 0] == 0.001 and one.rows[:, CHANNELS.index("htBleed")].tolist() == [392, 393]
    assert one.rows[0, CHANNELS.index("W32")] == 23.419
    assert one.remaining.tolist() == [1, 0] and two.remaining.tolist() == [0]
    assert [each.left for each in fleet.test] == [112, 0] and fleet.test[0].remaining.tolist() == [112]
    assert read_cmapss(tmp_path / "train_FD001.txt").digest == fleet.digest
    written(tmp_path, first + second + other, first + other.replace("392", "401"), "112\n0\n")
    assert read_cmapss(tmp_path).digest != fleet.digest


GOOD = f"1 1 {REST}\n"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"train": GOOD + "1 2 3\n"}, "train_FD001.txt, line 2: 3 columns came, and a line has 26: unit, cycle, 3 set"),
        ({"train": f"1 1 {REST} 9\n"}, "train_FD001.txt, line 1: 27 columns came"),
        ({"test": f"1 1 {REST.replace('2.5', 'warm', 1)}\n"}, "line 1: 'warm' came as its throttle, which is no numb"),
        ({"train": f"1 1 {REST.replace('3.5', 'nan', 1)}\n"}, "line 1: 'nan' came as its T2, which is no number"),
        ({"train": f"1 1 {REST.replace('4.5', '1_0', 1)}\n"}, "line 1: '1_0' came as its T24, which is no number"),
        ({"train": f"1 1 {REST.replace('5.5', '1e999', 1)}\n"}, "line 1: '1e999' came as its T30, which is no number"),
        ({"train": f"1 1 {REST.replace('5.5', '５', 1)}\n"}, "came as its T30, which is no number"),
        ({"train": f"1.5 1 {REST}\n"}, "line 1: '1.5' came as its unit, which is no whole number"),
        ({"train": f"1 2 {REST}\n"}, "line 1: cycle 2 of unit 1 came, and here follows cycle 1 of unit 1. Repair"),
        ({"train": GOOD + f"1 3 {REST}\n"}, "line 2: cycle 3 of unit 1 came, and here follows cycle 2 of unit 1, or"),
        ({"train": GOOD + GOOD}, "line 2: cycle 1 of unit 1 came"),
        (
            {"train": GOOD + f"3 1 {REST}\n"},
            "cycle 1 of unit 3 came, and here follows cycle 2 of unit 1, or cycle 1 of",
        ),
        ({"train": GOOD + f"2 1 {REST}\n1 2 {REST}\n"}, "line 3: cycle 2 of unit 1 came"),
        ({"train": GOOD + f"\n\n2 2 {REST}\n"}, "line 4: cycle 2 of unit 2 came"),
        ({"train": "\n \n"}, "train_FD001.txt has no line with anything in it"),
        ({"left": ""}, "RUL_FD001.txt has 0 rows, and test_FD001.txt has 1 units: each needs its row"),
        ({"left": "7\n8\n"}, "RUL_FD001.txt has 2 rows, and test_FD001.txt has 1 units"),
        ({"left": "7 8\n"}, "RUL_FD001.txt, line 1: 2 columns came, and a line has one"),
        ({"left": "-1\n"}, "RUL_FD001.txt, line 1: -1 came, and nothing has less than 0 cycles left"),
        ({"left": "many\n"}, "RUL_FD001.txt, line 1: 'many' came as its number of cycles left, which is no number"),
        ({"left": "7.5\n"}, "'7.5' came as its number of cycles left, which is no whole number"),
    ],
)
def test_whatever_is_wrong_is_named_with_file_line_and_what_came(files, told, tmp_path):
    written(tmp_path, **files)
    with pytest.raises(TextError) as refused:
        read_cmapss(tmp_path)
    assert told in str(refused.value)


def test_folders_without_a_set_or_with_several_are_refused(tmp_path):
    with pytest.raises(TextError, match="holds no train_<set>.txt: give the folder of a C-MAPSS set"):
        read_cmapss(tmp_path)
    written(tmp_path)
    (tmp_path / "train_FD003.txt").write_text(GOOD)
    with pytest.raises(TextError, match="holds 2 sets .train_FD001.txt, train_FD003.txt.: give one of these files"):
        read_cmapss(tmp_path)
    with pytest.raises(FileAccessError, match="cannot read .*test_FD003.txt: there is no such file"):
        read_cmapss(tmp_path / "train_FD003.txt")
    with pytest.raises(TextError, match="test_FD001.txt is no train_<set>.txt"):
        read_cmapss(tmp_path / "test_FD001.txt")
    with pytest.raises(FileAccessError, match="nowhere: there is no such file"):
        read_cmapss(tmp_path / "nowhere")


@given(st.lists(st.integers(1, 70), min_size=1, max_size=5), st.integers(0, 40))
@settings(max_examples=25, deadline=None)
def test_windows_never_mix_engines_and_know_what_was_left(cycles, left):
    engines = [engine(unit, count, left) for unit, count in enumerate(cycles, 1)]
    plain = Scaling((3, 4), np.zeros(2), np.ones(2))
    windows = windows_of(engines, plain)
    assert len(windows) == sum(max(1, count - LENGTH + 1) for count in cycles)
    assert windows.padded == sum(count < LENGTH for count in cycles)
    read = windows.all()
    assert read.shape == (len(windows), LENGTH, 2)
    assert torch.equal(read[:, :, 0], (windows.engine[:, None] + 1.0).expand(-1, LENGTH))
    assert bool((read[:, :, 1].diff(dim=1) >= 0).all())
    ends = torch.tensor(cycles)[windows.engine]
    assert torch.equal(read[:, -1, 1], (ends - (windows.left - left)).float())


def test_an_engine_shorter_than_a_window_begins_with_its_first_cycle_again():
    windows = windows_of([engine(1, 3, 9)], Scaling((3, 4), np.zeros(2), np.ones(2)))
    assert windows.all()[0, :, 1].tolist() == [1.0] * 28 + [2.0, 3.0] and windows.left.tolist() == [9]


def test_a_number_of_windows_is_spread_over_each_life_to_its_end():
    engines = [engine(1, 100), engine(2, 40)]
    plain = Scaling((3, 4), np.zeros(2), np.ones(2))
    assert windows_of(engines, plain, 3).left.tolist() == [70, 35, 0, 10, 5, 0]
    last = windows_of(engines, plain, 1)
    assert last.left.tolist() == [0, 0] and last.all()[:, -1, 1].tolist() == [100, 40]


def test_the_target_is_capped():
    windows = windows_of([engine(1, 300)], Scaling((4,), np.zeros(1), np.ones(1)))
    assert windows.left[0] == 270 and windows.capped[0] == CAP == 125
    assert windows.capped[-126:].tolist() == list(range(125, -1, -1))


def test_scaling_is_of_the_engines_trained_on_and_leaves_out_what_never_changes():
    engines = [engine(unit, 40 + unit) for unit in range(1, 12)]
    trained, held = split(engines)
    assert [each.unit for each in held] == [5, 10] and len(trained) == 9
    scaling = Scaling.of(trained)
    assert scaling.names == ["T2", "T24"] and len(scaling.constant) == 22 and "epr" in scaling.constant
    rows = np.concatenate([scaling.scaled(each) for each in trained])
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(rows.std(0), 1, rtol=1e-5)
    louder = [replace(each, rows=each.rows * 1000) for each in held]
    again, _ = split([*trained[:4], louder[0], *trained[4:8], louder[1], trained[8]])
    assert np.array_equal(Scaling.of(again).mean, scaling.mean), "engines held out must not count"
    with pytest.raises(TextError, match="no setting and no sensor of these engines ever changes"):
        Scaling.of([replace(engines[0], rows=engines[0].rows[:1])])
