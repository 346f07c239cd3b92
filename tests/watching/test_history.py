"""The file of a watched training: readable by plain pandas at any moment, whoever is killed; its run continues it."""

import os
import random
import re
import resource
import signal
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from manyheads.errors import FileAccessError, HeadError, RecordingError, ShapeError, StatisticError
from manyheads.heads import Head
from manyheads.watching import RULES, AlertRule, alerts, history, rules_with
from manyheads.watching.history import HeadHistory, open_history
from tests.processes import assert_killed, in_child
from tests.refusals import refuses

# Layers of unlike size, and a stack without a name beside one that has one.
HEADS = [Head("", 0, 0), Head("", 0, 1), Head("", 0, 2), Head("", 2, 0), Head("cross", 1, 0)]
STATISTICS = ["max_logit", "entropy"]
FACTS = {"run": "a run", "model": "tiny", "kind": "causal", "every": 10, "because": ["seen in the step"]}


def numbers(step: int) -> np.ndarray:
    """What a head has at a step, by a formula of its own: another number for each head, statistic and step."""
    return np.add.outer(np.arange(5.0) * 1000 + step, [0.5, 0.25])


def assert_holds(path, steps: list[int]) -> None:
    """Plain pandas reads exactly these steps, every head once in each, in order, with its own numbers."""
    frame = pd.read_parquet(path)
    assert list(frame.columns) == ["step", "stack", "layer", "head", *STATISTICS, "loss"]
    want = [(step, head.stack, head.layer, head.index) for step in steps for head in HEADS]
    assert list(zip(*(frame[name] for name in ("step", "stack", "layer", "head")), strict=True)) == want
    if steps:
        np.testing.assert_array_equal(frame[STATISTICS], np.concatenate([numbers(step) for step in steps]))
    curves = open_history(path)
    assert curves.steps.tolist() == steps and (curves.heads == tuple(HEADS) or not steps)
    if steps:
        np.testing.assert_array_equal(curves.values, [numbers(step) for step in steps])


def written(path, steps, facts=FACTS, heads=HEADS, statistics=STATISTICS) -> None:
    with HeadHistory(path, heads, statistics, facts) as writer:
        for step in steps:
            writer.append(step, numbers(step)[: len(heads), : len(statistics)])


def test_what_is_written_is_what_pandas_and_we_read(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "PART_ROWS", 15)  # three steps
    path = tmp_path / "heads.parquet"
    with HeadHistory(path, HEADS, STATISTICS, FACTS) as writer:
        assert_holds(path, [])
        for step in range(0, 80, 10):
            writer.append(step, numbers(step))
            assert_holds(path, list(range(0, step + 1, 10)))
    assert len(list(path.iterdir())) == 3
    curves = open_history(path)
    assert curves.facts.items() >= FACTS.items() and curves.facts["statistics"] == STATISTICS
    np.testing.assert_array_equal(curves.of("L2H0"), [numbers(step)[3] for step in range(0, 80, 10)])
    refuses(HeadError, "no head L5H0 in this history: it holds L0H0 to cross:L1H0", curves.of, "L5H0")


def test_a_history_is_drawn_by_any_of_its_statistics_and_another_is_refused(tmp_path):
    written(tmp_path / "heads.parquet", [1, 2, 3])
    curves = open_history(tmp_path / "heads.parquet")
    for name in STATISTICS:
        texts = [text.get_text() for text in curves.plot(name, heads=[curves.heads[-1]]).findobj(Text)]
        assert any(text.startswith(f"{name.replace('_', ' ')} of ") for text in texts)
    refuses(StatisticError, r"^column='x' is not a statistic of this history", curves.plot, "x")


def test_a_refresh_reads_the_parts_that_changed_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "PART_ROWS", 10)  # two steps
    path, reads = tmp_path / "heads.parquet", []
    read_part = history._read_part
    monkeypatch.setattr(history, "_read_part", lambda file, stamp: reads.append(file.name) or read_part(file, stamp))
    with HeadHistory(path, HEADS, STATISTICS, FACTS) as writer:
        for step in range(5):
            writer.append(step, numbers(step))
        curves = open_history(path)
        reads.clear()
        assert curves.refresh() is curves and not reads
        writer.append(5, numbers(5))
        writer.append(6, numbers(6))
        later = curves.refresh()
    assert reads == ["part-000002.parquet", "part-000003.parquet"]
    assert (curves.steps.tolist(), later.steps.tolist()) == ([*range(5)], [*range(7)])
    np.testing.assert_array_equal(later.values, [numbers(step) for step in range(7)])


@pytest.mark.slow
def test_a_writer_killed_again_and_again_loses_at_most_the_step_in_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "PART_ROWS", 40)  # so that many kills fall where a part ends and another begins
    path, chance, before = tmp_path / "heads.parquet", random.Random(11), 0
    for _ in range(15):
        # as a training does that goes on from its last checkpoint
        back, steps = chance.randrange(6), chance.randrange(1, 14)
        read_end, write_end = os.pipe()

        def write(back=back, write_end=write_end):
            with HeadHistory(path, HEADS, STATISTICS, FACTS) as writer:
                step = 0 if writer.last_step is None else max(0, writer.last_step + 1 - back)
                while True:
                    writer.append(step, numbers(step))
                    os.write(write_end, step.to_bytes(4, "big"))
                    step += 1

        child = in_child(write)
        os.close(write_end)
        told = b"".join(os.read(read_end, 4) for _ in range(steps))[-4:]
        time.sleep(chance.uniform(0, 0.01))  # somewhere in the steps after these
        os.kill(child, signal.SIGKILL)
        assert_killed(child)
        while chunk := os.read(read_end, 4):
            told = chunk
        os.close(read_end)
        last = len(pd.read_parquet(path)) // len(HEADS) - 1
        assert_holds(path, list(range(last + 1)))
        assert last >= int.from_bytes(told, "big"), "a step that was written is gone"
        before = max(before, last)
    assert before > 16  # three parts: 15 starts of 7 steps, less 3 that are repeated, in the mean
    written(path, [7])
    assert_holds(path, list(range(8)))
    assert sorted(file.name for file in path.iterdir()) == ["part-000000.parquet"]


def test_a_run_that_goes_on_cuts_away_what_it_repeats(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(history, "PART_ROWS", 15)
    path = tmp_path / "heads.parquet"
    written(path, range(0, 100, 10))
    with HeadHistory(path, HEADS, STATISTICS, FACTS) as writer:
        assert writer.last_step == 90
        writer.append(40, numbers(40))
        refuses(ShapeError, r"step 40 after step 40: the steps of a history grow\.", writer.append, 40, numbers(40))
    assert_holds(path, [0, 10, 20, 30, 40])
    assert "held steps up to 90: those from step 40 on are cut away" in caplog.text


def test_only_a_run_with_a_name_begins_anew_in_its_own_folder(tmp_path):
    path, nameless = tmp_path / "heads.parquet", {**FACTS, "run": None}
    written(path, [1, 10, 20], nameless)
    words = r"holds steps 1 to 20 of an earlier run, and this one begins again at"
    with HeadHistory(path, HEADS, STATISTICS, nameless) as writer, pytest.raises(FileAccessError, match=words):
        writer.append(1, numbers(1))
    assert_holds(path, [1, 10, 20])
    other = tmp_path / "named.parquet"
    written(other, [1, 10, 20])
    written(other, [1, 5])
    assert_holds(other, [1, 5])


@pytest.mark.parametrize(
    ("change", "message"),
    {
        "run": ({"facts": {**FACTS, "run": "b"}}, r"its run is 'a run', not 'b'"),
        "model": ({"facts": {**FACTS, "model": "big"}}, r"its model is 'tiny', not 'big'"),
        "heads": ({"heads": HEADS[:4]}, r"its heads are L0H0, L0H1, L0H2 and 2 more, not L0H0, L0H1, L0H2 and 1 more"),
        "statistics": ({"statistics": ["entropy"]}, r"its statistics are max_logit, entropy, not entropy"),
    }.values(),
)
def test_the_file_of_another_run_is_refused(change, message, tmp_path):
    path = tmp_path / "heads.parquet"
    written(path, [0, 10])
    message = rf"heads\.parquet belongs to another run \({message}\): give another path, or delete it\."
    refuses(FileAccessError, message, written, path, [20], **change)
    assert_holds(path, [0, 10])


def test_one_process_writes_at_a_time(tmp_path):
    path = tmp_path / "heads.parquet"
    words = "is being written already, by this process or another"
    with HeadHistory(path, HEADS, STATISTICS, FACTS) as writer, pytest.raises(FileAccessError, match=words):
        HeadHistory(path, HEADS, STATISTICS, FACTS)
    refuses(FileAccessError, "is closed: open it again to add step 3", writer.append, 3, numbers(3))


def test_on_a_full_disk_the_steps_before_stay_and_later_ones_may_follow(tmp_path):
    path, limits = tmp_path / "heads.parquet", resource.getrlimit(resource.RLIMIT_FSIZE)
    with HeadHistory(path, HEADS, STATISTICS, FACTS) as writer:
        writer.append(0, numbers(0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, limits[1]))  # the system then ends a write as a full disk does
        try:
            with pytest.raises(FileAccessError, match=r"^cannot write .*part-000000\.parquet: files there cannot be"):
                writer.append(1, numbers(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert_holds(path, [0])
        writer.append(2, numbers(2))
    assert_holds(path, [0, 2])


def test_one_parquet_file_of_the_same_columns_is_read_too(tmp_path):
    path, alone = tmp_path / "heads.parquet", tmp_path / "alone.parquet"
    written(path, [0, 10, 20])
    frame = pd.read_parquet(path)
    frame = frame[(frame["step"] != 10) | (frame["stack"] == "")].sort_values(by=["stack", "layer", "head", "step"])
    frame.assign(remark="no number").to_parquet(alone)
    curves = open_history(alone)
    assert curves.heads == tuple(HEADS) and curves.statistics == tuple(STATISTICS) and curves.facts == {}
    np.testing.assert_array_equal(curves.of("L0H1"), [numbers(step)[1] for step in (0, 10, 20)])
    np.testing.assert_array_equal(curves.of("cross:L1H0"), [numbers(0)[4], [np.nan, np.nan], numbers(20)[4]])


ROW = {"step": [1], "stack": [""], "layer": [0], "head": [0], "entropy": [0.5]}
NO_HISTORIES = {
    "no stack": (
        {key: ROW[key] for key in ("step", "layer", "head")},
        r"it has no column 'stack' \(its columns: step,",
    ),
    "no statistic": ({key: ROW[key] for key in ("step", "stack", "layer", "head")}, "holds no statistic"),
    "two rows": ({key: value * 2 for key, value in ROW.items()}, "it has two rows for the same head and step"),
    "no layer": ({**ROW, "layer": [-1]}, "layers and heads count from 0"),
    "huge": ({**ROW, "head": [1 << 50]}, "it has a layer or head past 1,048,576"),
    "half a step": ({**ROW, "step": [0.5]}, "is not a history of heads: .*0.5"),
    "null": ({**ROW, "stack": [None]}, "a row has no stack"),
}


@pytest.mark.parametrize(("columns", "message"), NO_HISTORIES.values(), ids=NO_HISTORIES)
def test_a_table_that_is_no_history_is_refused_in_one_line(columns, message, tmp_path):
    path = tmp_path / "table.parquet"
    pd.DataFrame(columns).to_parquet(path)
    refuses(RecordingError, rf"^{re.escape(str(path))} .*{message}[^\n]*$", open_history, path)


def test_what_is_no_parquet_is_refused_in_one_line(tmp_path):
    refuses(FileAccessError, "there is no such file", open_history, tmp_path / "nothing.parquet")
    empty = tmp_path / "empty.parquet"
    empty.write_bytes(b"")
    refuses(RecordingError, r"empty\.parquet cannot be read as Parquet: it is empty\.", open_history, empty)
    with pytest.raises(RecordingError, match=r"is not a history of heads: it holds empty\.txt\."):
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "empty.txt").touch()
        open_history(tmp_path / "folder")
    with pytest.raises(FileAccessError, match="holds empty.txt, which no history of heads holds: give another path"):
        HeadHistory(tmp_path / "folder", HEADS, STATISTICS, FACTS)
    with pytest.raises(FileAccessError, match="it is a file, and a history that grows is a folder"):
        HeadHistory(empty, HEADS, STATISTICS, FACTS)
    with pytest.raises(FileAccessError, match="its folder does not exist"):
        HeadHistory(tmp_path / "no" / "heads.parquet", HEADS, STATISTICS, FACTS)
    written(tmp_path / "heads.parquet", [0])
    part = tmp_path / "heads.parquet" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(RecordingError, match=r"part-000000\.parquet cannot be read as Parquet: [^\n]*$"):
        open_history(tmp_path / "heads.parquet")


def test_values_of_the_wrong_size_are_refused(tmp_path):
    with HeadHistory(tmp_path / "heads.parquet", HEADS, STATISTICS, FACTS) as writer:
        message = r"values.shape=\(2, 2\) at step 4, but .* takes \(5 heads, 2 statistics\)"
        refuses(ShapeError, message, writer.append, 4, numbers(4)[:2])
        refuses(ShapeError, "step=-1: steps count from 0", writer.append, -1, numbers(0))
    with pytest.raises(ShapeError, match="a statistic cannot be called 'head'"):
        HeadHistory(tmp_path / "other.parquet", HEADS, ["head"], FACTS)


# =============================================================================================================== alerts
# Alerts: the first watched step at which a head is past a limit, whatever came before or after.

FOUR_HEADS = [Head("", 0, 0), Head("", 0, 1), Head("", 0, 2), Head("cross", 1, 0)]
STEPS = np.array([1, 50, 100, 150, 200, 250, 300])
NAN = np.nan


def raised(statistic: str, curves: dict[int, list[float]], rules=RULES, usual: float = 1.0) -> list[str]:
    """The alerts where single heads have curves of their own and all others one value."""
    values = np.full((len(STEPS), len(FOUR_HEADS), 2), usual)
    for head, curve in curves.items():
        values[:, head, 1] = curve
    return [
        f"{alert} {alert.value:g} {alert.lasts}"
        for alert in alerts(FOUR_HEADS, ["other", statistic], STEPS, values, rules)
    ]


def test_a_head_alerts_once_at_the_first_step_past_the_limit_in_the_order_of_steps():
    curve = [1, 99, 100, NAN, 101.5, 20, 130]
    assert raised("max_logit", {2: curve}) == ["L0H2: max logit went over 100 at step 200 101.5 True"]
    curve = [5, 0.09, 0.05, 0.1, 3, NAN, NAN]
    assert raised("entropy", {3: curve}) == ["cross:L1H0: entropy fell under 0.1 nats at step 50 0.09 False"]
    assert raised("max_logit", {0: [NAN] * 7, 1: [-np.inf] * 7}) == []
    assert raised("max_logit", {1: [np.inf] * 7})[0].startswith("L0H1: max logit went over 100 at step 1 inf")
    curves = {0: [0, 0, 0, 0, 0, 0.95, 0.95], 3: [0, 0.91, 0, 0, 0, 0, 0], 1: [0, 0, 0, 0, 0, 0.99, 0]}
    moments = [line.split(" at ")[1] for line in raised("first_mass", curves, usual=0.5)]
    assert moments == ["step 50 0.91 False", "step 250 0.95 True", "step 250 0.99 False"]


def test_a_head_is_dead_after_five_steps_far_below_its_share_and_limits_are_changed_by_name():
    assert raised("output_share", {1: [0.5, 0.03, 0.03, 0.03, 0.03, 0.03, 0.03]}) == [
        "L0H1: output fell under 0.1 of an even share for 5 watched steps at step 250 0.03 True"
    ]
    assert raised("output_share", {1: [0.03, 0.03, 0.03, 0.03, 0.04, 0.03, 0.03]}) == []
    assert raised("output_share", {3: [0.09] * 7, 1: [0.09] * 7})[0].startswith("cross:L1H0: output fell under")
    assert raised("max_logit", {0: [10] * 7}, rules_with({"max_logit": 7.5})) == [
        "L0H0: max logit went over 7.5 at step 1 10 True"
    ]
    assert rules_with({}) == RULES
    assert raised("max_logit", {0: [1000] * 7}, [replace(RULES[0], statistic="none")]) == []
    with pytest.raises(StatisticError, match="there is no alert 'logit', only max_logit, entropy, first_mass, dead"):
        rules_with({"logit": 3.0})


def test_before_there_are_steps_nothing_is_wrong():
    assert alerts(FOUR_HEADS, ["max_logit"], [], np.empty((0, 4, 1))) == ()
    rule = AlertRule("own", "distance", True, 3.0, "mean distance", "tokens")
    assert rule.condition == "mean distance over 3 tokens"
    (alert,) = alerts(FOUR_HEADS[:1], ["distance"], [7], np.array([[[3.5]]]), [rule])
    assert alert.to_dict() == {
        "head": "L0H0", "rule": "own", "statistic": "distance", "limit": 3.0, "step": 7, "value": 3.5, "lasts": True,
        "words": "L0H0: mean distance went over 3 tokens at step 7",
    }  # fmt: skip
