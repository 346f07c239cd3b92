"""A cache, locks and tables of HTML: what every floor above uses."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.base import (
    Cache,
    PartsFolder,
    brief,
    html_table,
    nearest,
    one_of,
    parts_folder,
    percent,
    plain,
    quoted,
    whole,
)
from manyheads.base.parts_folder import locked
from manyheads.errors import PlanError, ShapeError
from tests.refusals import refuses

# ============================================================================================================== a cache
# A cache forgets what was used longest ago, keeps to its bounds, and makes each value once.


def test_what_was_used_longest_ago_goes_first():
    cache = Cache[str, int](max_entries=3)
    for value, key in enumerate("abc"):
        assert cache.put(key, value) == value
    assert cache.get("a") == 0 and cache.get("x") is None
    cache.put("d", 3)
    assert list(cache) == ["c", "a", "d"] and len(cache) == 3 and "b" not in cache
    cache.put("c", 7)  # put again: the newest, and in there once
    assert list(cache) == ["a", "d", "c"] and cache.get("c") == 7


def test_sizes_are_bounded_and_the_last_value_stays_whatever_its_size():
    cache = Cache[str, bytes](max_size=10, size_of=len)
    for key, size in (("a", 4), ("b", 4), ("a", 6)):
        cache.put(key, b"x" * size)
    assert list(cache) == ["b", "a"] and cache.size == 10
    cache.put("c", b"x")
    assert list(cache) == ["a", "c"] and cache.size == 7
    cache.put("d", b"x" * 99)
    assert list(cache) == ["d"] and cache.size == 99
    cache.drop("d")
    cache.drop("d")
    assert not len(cache) and cache.size == 0


def test_a_value_is_made_once_however_many_threads_want_it_and_others_do_not_wait():
    cache = Cache[str, object]()
    started, go_on, made, results = threading.Event(), threading.Event(), [], []

    def slow() -> object:
        started.set()
        assert go_on.wait(10)
        made.append(object())
        return made[-1]

    threads = [threading.Thread(target=lambda: results.append(cache.get_or_make("a", slow))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    assert cache.get_or_make("b", lambda: 1) == 1 and cache.get("a") is None
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and results == made * 4
    assert not cache._making  # no lock is kept for a key that nobody makes


def test_where_making_fails_the_next_one_tries():
    cache = Cache[str, int]()
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make("a", lambda: 1 // 0)
    assert cache.get_or_make("a", lambda: 1) == 1 and cache.get_or_make("a", lambda: 2) == 1


def test_many_threads_keep_its_counts_right():
    cache = Cache[int, int](max_entries=5, max_size=100, size_of=lambda value: value)
    end = time.monotonic() + 0.2

    def work(seed: int) -> None:
        at = seed
        while time.monotonic() < end:
            at = (at * 31 + 7) % 40
            cache.put(at, at)
            cache.get_or_make((at * 3) % 40, lambda at=at: (at * 3) % 40)
            cache.drop((at * 7) % 40)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.size == sum(cache.get(key) for key in cache) <= 100 and len(cache) <= 5


# ================================================================================================================ locks
# A lock excludes other processes and threads while it is held, and outlives nobody.

BUSY = ValueError("somebody is there")
HOLD = """
import sys
from manyheads.base.parts_folder import locked
with locked(sys.argv[1], ValueError()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    return tmp_path / "lock" if request.param == "file" else tmp_path


def test_one_holder_at_a_time_in_one_process_too(path):
    with locked(path, BUSY):
        with pytest.raises(ValueError, match="somebody is there"), locked(path, BUSY):
            pytest.fail("two at once")
        with pytest.raises(ValueError, match="somebody is there"), locked(path, BUSY):
            pytest.fail("two at once, after a refusal")
    with locked(path, BUSY):
        pass


def test_another_process_is_refused_until_this_one_is_killed(path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdin is not None and child.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match="somebody is there"), locked(path, BUSY):
        pytest.fail("two at once")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with locked(path, BUSY):  # a file that a killed process left behind is no lock
        pass


def test_where_nothing_can_be_opened_the_systems_own_error_comes_through(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "none" / "lock", BUSY):
        pass


def test_a_file_system_without_locks_refuses_nobody_and_leaks_nothing(path, monkeypatch):
    def unsupported(*_, **__):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(parts_folder, "lock_descriptor", unsupported)
    before = len(os.listdir("/proc/self/fd"))
    with locked(path, BUSY), locked(path, BUSY):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_unfinished_files_are_deleted_only_when_no_process_of_a_run_is_left_to_write_them(tmp_path):
    names = ["part-0", "part-1", ".hidden", ".manyheads-0a1b2c.tmp", ".manyheads-3d4e5f.json"]
    with PartsFolder.opened(tmp_path, BUSY, "lock", rank=2):  # the first process of its run is gone
        for name in names:
            (tmp_path / name).touch()
        with pytest.raises(ValueError, match="somebody is there"), PartsFolder.opened(tmp_path, BUSY, "lock"):
            pytest.fail("two runs at once")
        assert sorted(os.listdir(tmp_path)) == sorted([*names, "lock", "lock-2"])
    with PartsFolder.opened(tmp_path, BUSY, "lock") as folder:
        assert sorted(os.listdir(tmp_path)) == [".hidden", "lock", "part-0", "part-1"]
        assert folder.names() == ["lock", "part-0", "part-1"]
    assert PartsFolder(tmp_path / "none").names() == []


# ======================================================================================================= tables of HTML
# Plain HTML tables: everything shown is escaped, numbers are numbers, and what is left out is counted.


@pytest.mark.parametrize(("name", "known", "meant"), [
    ("modle", ["open", "model", "whole"], ["model"]),
    ("aks", ["all", "ask", "as"], ["ask"]),  # letters that changed places
    ("Keep", ["help", "keep"], ["keep"]),
    ("knd", ["token", "window"], []),
    ("share", ["save", "targets"], []),
    ("k", ["kv-heads", "keep"], []),  # one letter says nothing
    ("dat: dep", ["det: dependent to a word", "self"], ["det: dependent to a word"]),  # the beginning of a long name
    ("offset_+9", ["offset_+8", "offset_-8", "local"], ["offset_+8", "offset_-8"][:1]),
    ("lama-2-7b", ["llama-2-7b", "llama-3-8b"], ["llama-2-7b"]),
    ("x", [], []),
])  # fmt: skip
def test_the_nearest_names_are_those_that_a_misspelt_one_may_stand_for(name, known, meant):
    assert nearest(name, known) == meant


HOSTILE = "</td><script>window.bad=1</script><img src=x onerror=bad()>\"'&"


def test_plain_data_are_what_json_holds_and_anything_else_is_refused(fresh):
    values = torch.randn(3, 2, generator=fresh).double().numpy()
    held = {7: (True, np.int64(5), np.float32(0.5)), "path": Path("a/b"), "rows": values, "none": [np.nan, math.inf]}
    assert plain(held) == {"7": [True, 5, 0.5], "path": "a/b", "rows": values.tolist(), "none": [None, None]}
    assert json.loads(json.dumps(plain(held), allow_nan=False)) == plain(held)
    assert plain(torch.tensor([[2.0, math.nan]])) == [[2.0, None]]
    with pytest.raises(TypeError, match=r"^a function has no form as plain data: give it a to_dict\.$"):
        plain({"x": [lambda: 3]})


@pytest.mark.parametrize("length", [99, 100, 101, 102, 340])
def test_a_line_over_100_characters_is_cut_and_says_so(length):
    words = f"Roles({'x' * (length - 7)})"
    line = brief(words)
    assert len(line) <= 100 and (line == words) == (length <= 100)
    assert line.endswith(")" if length <= 100 else "x ...)") and "\n" not in brief(f"Roles(a\nb{'c' * length})")


def test_a_value_that_is_none_of_the_options_is_refused_with_all_of_them():
    ways = {"mean": 1, "max": 2}
    one_of("how", "max", ways, PlanError)
    for value in ("sum", "ma", "", ["max"], None, 1, np.array(["mean", "max"])):
        message = re.escape(f"how={value!r} is unknown: use one of mean, max.")
        refuses(PlanError, f"^{message}$", one_of, "how", value, ways, PlanError)
    message = r"^by='x' finds nothing: use one of a, b, or give spans\.$"
    refuses(ShapeError, message, one_of, "by", "x", iter("ab"), ShapeError, "finds nothing", ", or give spans")


def test_a_count_is_a_whole_number_from_its_least():
    assert whole("seed", 0, 0, PlanError) == 0 and whole("batch", 2**70, 1, PlanError) == 2**70
    for value in (-1, True, False, 2.0, "2", None, [2], np.int64(2)):
        message = re.escape(f"seed={value!r}: give a whole number, 0 or more.")
        refuses(PlanError, f"^{message}$", whole, "seed", value, 0, PlanError)
    refuses(ShapeError, r"^batch=0: give how many texts, 1 or more\.$", whole, "batch", 0, 1, ShapeError,
            "how many texts, 1 or more")  # fmt: skip


def test_what_is_shown_is_escaped_cut_and_of_many_rows_the_first_are_shown():
    html = html_table([HOSTILE, "n"], [[HOSTILE, 1.0]], caption=HOSTILE, note=HOSTILE)
    assert html.count("&lt;script&gt;") == 4
    assert set(re.findall(r"<(\w+)", html)) == {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    html = html_table(["head"], [[f"L0H{at}"] for at in range(72)])
    assert html.count("<tr>") == 21 and "... and 52 more" in html and "L0H20" not in html
    assert "more" not in html_table(["head"], [["L0H0"]] * 20)
    assert f">{'x' * 120}...<" in html_table(["x"], [["x" * 5_000]])


@pytest.mark.parametrize(
    ("value", "shown"), [(0.123456, "0.123"), (12, "12"), (float("nan"), "–"), (None, "–"), (1e-9, "1e-09")]
)
def test_numbers_are_short_and_stand_to_the_right_and_none_is_a_dash(value, shown):
    html = html_table(["x"], [[value], [1.0]])
    assert f'">{shown}</td>' in html and html.count("text-align:right") == 3


def test_a_notebook_shows_recordings_and_tables_as_tables(minilm):
    recording = mh.record(minilm, f"a cat {HOSTILE} {'word ' * 60}")
    html = recording._repr_html_()
    assert html.count("<tr>") == 7 and "encoder.layer.5.attention.self" in html
    assert "The text begins: a cat &lt;/td&gt;&lt;script" in html and "<script" not in html and "<img" not in html
    table = mh.measure(minilm, "a cat")._repr_html_()
    assert table.count("<tr>") == 21 and "... and 52 more" in table and "L1H7" in table and "L1H8" not in table
    assert "to_pandas() has them all" in table and "entropy" in table


@pytest.mark.parametrize(
    ("share", "decimals", "words"),
    [
        # web/tests/lib/draw.test.ts holds the page's function to the same cases.
        (0.677, 0, "68 %"), (0.677, 1, "67.7 %"), (1 / 16, 1, "6.3 %"), (0.125, 0, "13 %"), (-0.125, 0, "−13 %"),
        (1.3, 0, "130 %"), (0.004, 0, "< 1 %"), (0.005, 0, "1 %"), (1e-12, 0, "< 1 %"), (0.0, 0, "0 %"),
        (-0.004, 0, "0 %"), (0.0004, 1, "< 0.1 %"), (float("nan"), 0, "none"),
    ],
)  # fmt: skip
def test_a_share_in_words_rounds_half_away_from_zero_and_is_no_0_above_0(share, decimals, words):
    assert percent(share, decimals) == words


def test_quoted_text_is_one_line_that_a_shell_gives_back(rng):
    kinds = "aZ09 '\"\\$`!\n\t\r\x1b\x7f\xa0\u2028é漢🙂#~*-"
    drawn = ["".join(kinds[index] for index in rng.choice(len(kinds), size=length)) for length in range(1, 30)]
    texts = ["it's", "plain words", "-x", *drawn]
    assert quoted("it's") == '"it\'s"' and all(len(quoted(text).splitlines()) == 1 for text in texts)
    script = "printf '%s\\0' " + " ".join(map(quoted, texts))
    out = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout.decode()
    assert out.split("\0")[:-1] == texts
