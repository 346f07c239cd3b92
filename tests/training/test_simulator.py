"""Simulated engines: their files pass the reader, they wear the right way, and they say that they are simulated."""

from __future__ import annotations

import numpy as np
import pytest

from manyheads.errors import FileAccessError
from manyheads.training import CHANNELS, read_cmapss, write_simulated
from manyheads.training.presets.rul.data import SENSORS, SETTINGS
from manyheads.training.presets.rul.simulator import LIVES, RESPONSES, TEST_LEFT, TEST_SHORTEST, _life, simulate

UP = ("T24", "T30", "T50", "Nf", "Nc", "Ps30", "NRf", "NRc", "BPR", "htBleed")
DOWN = ("P30", "phi", "W31", "W32")
STILL = ("T2", "P2", "P15", "epr", "farB", "Nf_dmd", "PCNfR_dmd")


@pytest.fixture(scope="module")
def fleet():
    return simulate(5, 30, 12)


def test_what_is_written_passes_the_reader_and_comes_back_to_the_last_digit(tmp_path, fleet):
    read = read_cmapss(write_simulated(tmp_path / "made", 5, 30, 12))
    for theirs, ours in ((read.train, fleet[0]), (read.test, fleet[1])):
        assert [(each.unit, each.left) for each in theirs] == [(each.unit, each.left) for each in ours]
        for one, other in zip(theirs, ours, strict=True):
            assert np.array_equal(one.rows, other.rows)


def test_every_file_says_that_it_is_simulated(tmp_path):
    write_simulated(tmp_path, 0, 1, 1)
    files = sorted(each.name for each in tmp_path.iterdir())
    assert files == [
        "RUL_SIMULATED_FD001.txt",
        "SIMULATED.txt",
        "test_SIMULATED_FD001.txt",
        "train_SIMULATED_FD001.txt",
    ]
    assert "they are not NASA's data" in (tmp_path / "SIMULATED.txt").read_text()
    first = (tmp_path / "train_SIMULATED_FD001.txt").read_text().split("\n")[0]
    assert first.endswith("  ") and len(first.split()) == 26 and first.split()[4] == "100.0"
    (tmp_path / "taken").write_text("")
    with pytest.raises(FileAccessError, match="cannot write .*taken"):
        write_simulated(tmp_path / "taken", 0, 1, 1)


def test_sensors_begin_where_fd001s_do_and_go_the_way_of_a_worn_compressor(fleet):
    rows = {name: [each.rows[:, CHANNELS.index(name)] for each in fleet[0]] for name in CHANNELS}
    assert {*UP, *DOWN, *STILL} == set(SENSORS)
    for response in RESPONSES:
        new = np.mean([each[:20].mean() for each in rows[response.name]])
        old = np.mean([each[-5:].mean() for each in rows[response.name]])
        if response.name in STILL:
            assert all(np.ptp(each) == 0 for each in rows[response.name])
            continue
        sign = 1 if response.name in UP else -1
        assert sign * (old - new) > 2 * response.noise, response.name
        assert abs(new / response.baseline - 1) < 0.002, response.name
    for name, about in (("T24", 642), ("T30", 1587), ("T50", 1402), ("P30", 554), ("Nf", 2388), ("Nc", 9052)):
        assert np.mean([each[:20].mean() for each in rows[name]]) == pytest.approx(about, rel=1e-3)
    assert SETTINGS[2] == "throttle" and np.ptp(np.concatenate(rows["throttle"])) == 0


def test_health_stays_then_falls_ever_faster_until_it_is_gone():
    random = np.random.default_rng(3)
    for _ in range(10):
        life = _life(random)
        count = len(life.health)
        assert LIVES[0] <= count <= LIVES[1]
        assert life.health[-1] == 0 and (life.health[:-1] > 0).all()
        assert (np.diff(life.health) <= 0).all() and (np.diff(life.efficiency) >= 0).all()
        assert (np.diff(life.flow) >= 0).all() and life.health[:20].min() > 0.97
        fell = -np.diff(life.health)
        assert fell[-20:].sum() > 3 * fell[-80:-60].sum()


def test_seeds_make_other_engines_and_the_same_seed_the_same(fleet):
    again, other = simulate(5, 30, 12), simulate(6, 30, 12)
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(fleet[0], again[0], strict=True))
    assert [len(each.rows) for each in fleet[0]] != [len(each.rows) for each in other[0]]


def test_test_engines_stop_before_they_fail_and_train_engines_do_not(fleet):
    assert {each.left for each in fleet[0]} == {0}
    for each in fleet[1]:
        assert TEST_LEFT[0] <= each.left <= TEST_LEFT[1] and len(each.rows) >= TEST_SHORTEST
        assert len(each.rows) + each.left <= LIVES[1]
    assert len({each.left for each in fleet[1]}) > 6
