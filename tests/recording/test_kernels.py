"""The pass as Triton kernels, without a GPU: their numbers by the interpreter, their machine code by the compiler.

A process interprets or compiles, and what strays in the interpreter ends it: so both run in processes of their own.
`kernels/test_numbers.py` holds what is claimed of the numbers, `kernels/mutations.py` that it sees what it should.
What a GPU makes of them, `benchmarks.cuda` asks there, and every process for itself (`exact_map.trial`).
"""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from manyheads.attention import Mask
from manyheads.errors import ModelError, ShapeError
from manyheads.recording import prepare
from manyheads.recording.exact_map import launches
from manyheads.recording.exact_map.requests import Mass
from tests.recording.passing import make_case
from tests.refusals import refuses

HERE = Path(__file__).parent / "kernels"
NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

# Issue slots of a warp for a cell, in the loop over plain tiles: what one cell may cost on each kind of GPU, by the
# version of Triton (a newer one has the newest's). 3.6 makes more copies of labels and lse into shared memory.
BUDGETS = {
    "3.7": {
        "shape of rows": {80: 13.5, 90: 10.8, 100: 11.5}, "shape and columns of rows": {80: 18, 90: 15.5, 100: 17},
        "matches of rows": {80: 14.5, 90: 12.5, 100: 13.5}, "everything of rows": {80: 25, 90: 21.5, 100: 23},
        "matches and columns of rows": {80: 19, 90: 17, 100: 18.5},
        "received by keys": {80: 8, 90: 6.8, 100: 8}, "everything of keys": {80: 20.5, 90: 19, 100: 22},
        "rows in float32": {80: 98, 90: 55, 100: 70},
    },
    "3.6": {
        "shape of rows": {80: 13.5, 90: 10.8, 100: 12}, "shape and columns of rows": {80: 20.5, 90: 19, 100: 20.5},
        "matches of rows": {80: 15, 90: 15.7, 100: 17.3}, "everything of rows": {80: 25.5, 90: 25, 100: 30},
        "matches and columns of rows": {80: 21, 90: 21.5, 100: 31.5},
        "received by keys": {80: 8.2, 90: 7, 100: 13.6}, "everything of keys": {80: 24, 90: 24.5, 100: 45.5},
        "rows in float32": {80: 101, 90: 58, 100: 80},
    },
}  # fmt: skip
# Registers in memory, where there may be some: float32 on sm_100 takes more than there are.
LAID_ASIDE = {
    ("3.6", "everything of keys", 100): 0.05, ("3.6", "rows in float32", 100): 5.5, ("3.6", "keys in float32", 100): 6,
    ("3.7", "rows in float32", 100): 6.5, ("3.7", "keys in float32", 100): 6.5,
}  # fmt: skip
SHARED = {80: 99, 90: 227, 100: 227}  # KiB a program may have; 99 on consumers' GPUs, which are handled like sm_80


def run(*arguments, **environment):
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=1800)
    report = f"exit {done.returncode} (-11: a kernel strayed)\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, report
    return done.stdout


@pytest.mark.slow
@NEEDS_TRITON
def test_numbers_equal_the_reference(pytestconfig):
    chosen = ("-m", pytestconfig.option.markexpr)
    report = run("-m", "pytest", "-v", "-x", "-p", "no:cacheprovider", *chosen, HERE, TRITON_INTERPRET="1")
    assert " passed" in report and "skipped" not in report


def assert_compiles_within_budget(tmp_path, *names):
    output = run("-m", "tests.recording.kernels.machine_code", *names, TRITON_CACHE_DIR=str(tmp_path))
    measured = [json.loads(line) for line in output.splitlines()]
    assert len(measured) >= len(names) > 0
    for code in measured:
        kernel, target = code["name"].split(" sm_")[0], int(code["name"].split(" sm_")[1])
        version = ".".join(code["triton"].split(".")[:2])
        version = version if version in BUDGETS else "3.7"
        assert code["registers"] <= 255 and code["shared"] <= SHARED[target] * 1024, code
        if "band" in kernel or "pool" in kernel:
            continue
        assert code["slots"] <= BUDGETS[version].get(kernel, {}).get(target, 110), code
        # No registers laid aside in memory, no exchange between threads for every cell, loads that run ahead.
        aside = LAID_ASIDE.get((version, kernel, target), 0)
        assert code["local"] <= aside and code["shuffles"] < 1.3 and code["ahead"], code
        matches = 3 if "everything" in kernel or "matches" in kernel else 0
        assert not matches or code["compares"] == matches, "a match is one comparison and one addition"


@NEEDS_TRITON
@pytest.mark.slow
@pytest.mark.parametrize("target", [80, 90, 100])
def test_all_machine_code_is_within_its_budget(tmp_path, target):
    assert_compiles_within_budget(tmp_path, f"sm_{target}")


def test_a_million_rows_are_planned_at_once():
    ends = Mask.causal(1_000_000, 1_000_000)
    shape, begin = launches.Shape(64, 64, 8, "tf32", 4), time.perf_counter()
    planned = launches.planned_tiles(ends.start, ends.stop, 1_000_000, shape, 1, by_key=False)
    assert time.perf_counter() - begin < 5 and planned.shape == (1, 15_625, 6)
    assert planned[0, 9_999].tolist() == [0, 0, 9_999, 15_625, 15_625, 10_000]


@pytest.mark.parametrize(("choice", "message"), [
    ("kernels", "MANYHEADS_PASS=kernels, but kernels cannot read this layer: it is on cpu, which is not an NVIDIA GPU"),
    ("tile", "MANYHEADS_PASS='tile' is not a way to make a pass: set it to kernels, tiles or auto"),
])  # fmt: skip
def test_a_forced_pass_that_is_none_here_is_refused(rng, monkeypatch, choice, message):
    monkeypatch.setenv("MANYHEADS_PASS", choice)
    case = make_case(rng, dtype=torch.float32)
    refuses(ShapeError, message, prepare(case.tokens, [Mass()]).run, case.layer)


def test_tiles_make_the_pass_on_a_cpu_and_say_so(rng, monkeypatch):
    case = make_case(rng, dtype=torch.float32)
    assert prepare(case.tokens, [Mass()]).run(case.layer).because == "tiles: it is on cpu, which is not an NVIDIA GPU"


@NEEDS_TRITON
def test_a_machine_on_which_triton_cannot_compile_is_told_what_to_do(rng, monkeypatch):
    case = make_case(rng, lengths=(5, 3), dtype=torch.float32)
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def no_header(*_, **__):
        raise OSError("no Python.h\nand more")

    monkeypatch.setattr(launches, "launch", no_header)
    message = (
        r"Triton could not run the kernels of the pass on cpu: OSError: no Python.h\. Set MANYHEADS_PASS=tiles to do"
    )
    refuses(ModelError, message, prepare(case.tokens, [Mass()]).run, case.layer)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(launches, "which", lambda name: None)
    launches.no_triton.cache_clear()
    assert launches.no_triton() == "triton finds no C compiler (CC, gcc or clang)"
    launches.no_triton.cache_clear()
