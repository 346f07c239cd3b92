"""Rounds time every call once and begin with another each; memory is a process' own."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rounds import in_turns, medians, memory_bytes, ratio

ROOT = Path(__file__).parents[2]


def test_each_round_times_every_call_once_and_begins_with_another():
    called = []
    taken = in_turns({name: lambda name=name: called.append(name) for name in "abc"}, rounds=4)
    assert called == list("abcbcacababcbca"), "the first round warms up"
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 4, "b": 4, "c": 4}
    assert min(min(seconds) for seconds in taken.values()) >= 0


def test_ratios_are_taken_within_a_round():
    ours, theirs = [1.0, 6.0, 9.0, 2.0, 5.0], [2.0, 2.0, 3.0, 8.0, 5.0]
    assert ratio(ours, theirs) == {"ratio": 1.0, "low": 0.25, "high": 3.0}
    assert ratio(ours, theirs, "times_as_fast")["times_as_fast"] == 1.0
    assert medians({"ours": ours, "theirs": theirs}) == {"ours": 5.0, "theirs": 3.0}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read where Linux tells it")
def test_a_process_memory_is_not_its_parents():
    held = bytearray(b"1") * 300_000_000
    code = "from benchmarks.rounds import memory_bytes; print(memory_bytes('VmHWM'))"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert memory_bytes("VmHWM") > len(held) > 100_000_000 > int(said) > 0
    assert memory_bytes("VmHWM") >= memory_bytes("VmRSS") > len(held)
