"""Processes that hold parts of one model (transformers' tensor parallelism, FSDP2) find what one process finds.

Real processes, two of them, that speak by gloo. Oracle: the same model whole, in the memory of each of them.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import manyheads as mh
from manyheads.errors import StatisticError
from manyheads.statistics.split_heads import Part, join
from tests.models.eager import draw
from tests.models.tiny import tiny_llama, tiny_tokenizer

ROOT = Path(__file__).parents[2]
EXACT = 1e-5
TEXTS = ["the old cat sat on the table", "a dog"]


def found_by_two(out, fresh, *names):
    command = [sys.executable, "-m", "tests.statistics.divided", str(out), str(draw(fresh)), *names]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout.splitlines()[-1])
    for name in names:
        assert len(found[name]) == 2, f"{name}: a process is gone. {run.stderr[-2000:]}"
        for process in found[name]:
            assert "error" not in process or name == "uneven", f"{name}: {process}"
    return found


@pytest.mark.turns(5)
def test_two_processes_find_what_one_finds(fresh, tmp_path):
    found = found_by_two(tmp_path, fresh, "llama")
    for rank, process in enumerate(found["llama"]):
        assert process["heads"] == [3, 6], "each process must have half of the heads, or nothing was tested"
        numbers = {"all", "logits", "streamed", "call", "sums"} | ({"recorded"} if rank == 0 else set())
        assert {name: process[name] for name in numbers if process[name] > EXACT} == {}
        for function, message in process["refused"].items():
            assert message.startswith(("ModelError: ", "StatisticError: ")), f"{function}: {message}"
        for function in ("a plan", "importance", "head_families", "probe_repeats", "find_roles"):
            assert "needs all of tiny in one process, and tensor parallelism divides" in process["refused"][function]


@pytest.mark.slow
def test_two_processes_that_hold_parts_of_every_weight_find_what_one_finds(fresh, tmp_path):
    for process in found_by_two(tmp_path, fresh, "fsdp")["fsdp"]:
        numbers = (
            "all",
            "logits",
            "streamed",
            "call",
            "sums",
            "recorded",
            "effect",
            "gradient",
            "ablation",
            "families",
        )
        assert {name: process[name] for name in numbers if process[name] > EXACT} == {}
        assert "FSDP gathers a block's weights only while the whole model runs" in process["because"]
        refused = process["refused"]
        assert "are divided among processes (tensor parallelism or FSDP), and prune_heads writes" in refused["prune"]
        assert "are divided among processes (tensor parallelism or FSDP), and convert_to_gqa" in refused["convert"]
        assert "are divided among processes (tensor parallelism or FSDP), and copying_scores" in refused["copying"]
        assert "resume= is for a model that each process has whole" in refused["resume"]


@pytest.mark.slow
def test_tensor_parallelism_of_other_architectures(fresh, tmp_path):
    found = found_by_two(tmp_path, fresh, "mistral", "gemma2", "qwen3", "phi3", "gpt_oss", "uneven")
    # transformers cannot run heads that the processes do not divide evenly; it says so when the model is first called.
    assert all("could not read its input" in process["error"] for process in found.pop("uneven"))
    for name, processes in found.items():
        for process in processes:
            here, in_all = process["heads"]
            assert here == (in_all if name in ("phi3", "gpt_oss") else in_all // 2), name
            assert process["all"] <= EXACT, name


# ------------------------------------------------------------------------------------------------------- in one process


@pytest.fixture
def table(fresh):
    lm = mh.load(tiny_llama(2, seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))
    return mh.measure(lm, iter(TEXTS), "default", kinds=True)


def part_of(table, begin, count, total=6):
    """A process's table of the heads from `begin` on, of every layer; `total`: of how many it knows."""
    rows = [6 * layer + begin + head for layer in range(3) for head in range(count)]
    sums = replace(
        table.sums, **{name: getattr(table.sums, name)[:, rows] for name in ("num", "den", "moments", "maxima")}
    )
    kinds = replace(table.kinds, mass=table.kinds.mass[:, rows], even=table.kinds.even[:, rows])
    sites = tuple(replace(site, num_heads=count, num_kv_heads=1) for site in table.sites)
    return Part(replace(table, sites=sites, sums=sums, kinds=kinds), [begin] * 3, [total] * 3)


def test_parts_in_any_order_are_the_whole(table):
    parts = [part_of(table, 3, 3), part_of(table, 0, 3)]
    whole = join(parts)
    assert whole.heads == table.heads and whole.sites == table.sites
    assert (whole.sums.num == table.sums.num).all() and (whole.sums.den == table.sums.den).all()
    assert (whole.sums.moments == table.sums.moments).all()
    assert (whole.kinds.mass == table.kinds.mass).all() and (whole.kinds.even == table.kinds.even).all()
    assert whole.notes["heads joined"] == "of 2 processes"
    again = join([part_of(table, 0, 6), part_of(table, 0, 6)])
    assert again.heads == table.heads and (again.sums.num == table.sums.num).all()


def test_parts_that_are_not_of_one_whole_are_refused(table):
    first, second = part_of(table, 0, 3), part_of(table, 3, 3)
    for parts, message in (
        ([first, part_of(table, 4, 2)], "of the 6 heads of L0, number 3 is in no process"),
        ([first, part_of(table, 2, 4)], "of the 6 heads of L0, number 2 is in two"),
        ([first], "of the 6 heads of L0, number 3 is in no process"),
        ([second, second], "of the 6 heads of L0, number 0 is in no process"),
        ([first, replace(second, begins=[0] * 3)], "number 0 has other numbers in one process than in another"),
    ):
        with pytest.raises(StatisticError, match=message):
            join(parts)
    other = replace(second.table, sums=replace(second.table.sums, num_tokens=3))
    with pytest.raises(StatisticError, match="measured other texts, statistics or layers: make the same call"):
        join([first, replace(second, table=other)])
