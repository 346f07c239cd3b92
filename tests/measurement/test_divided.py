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
from manyheads.corpora import is_about_texts
from manyheads.errors import LostProcessError, StatisticError
from manyheads.machine import ALONE, torchrun
from manyheads.machine.processes import _interrupt, joined_processes
from manyheads.measurement.split_heads import Part, join
from tests.measurement.corpus_runs import some_texts, tiny_lm
from tests.models.eager import draw
from tests.models.tiny import tiny_llama, tiny_tokenizer
from tests.refusals import refuses

ROOT = Path(__file__).parents[2]
EXACT = 1e-5
TEXTS = ["the old cat sat on the table", "a dog"]


def found_by_two(out, fresh, *names):
    command = [sys.executable, "-m", "tests.measurement.divided", str(out), str(draw(fresh)), *names]
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


@pytest.mark.slow
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
            "all", "logits", "streamed", "call", "sums", "recorded", "effect", "gradient", "ablation", "families",
        )  # fmt: skip
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
        refuses(StatisticError, message, join, parts)
    other = replace(second.table, sums=replace(second.table.sums, num_tokens=3))
    with pytest.raises(StatisticError, match="measured other texts, statistics or layers: make the same call"):
        join([first, replace(second, table=other)])


# ========================================================================================= a corpus shared by processes
# Several processes measure what one measures: real ones, that speak by gloo, some of which die.
#
# Oracle: the same texts measured by one process (`ranks=ALONE`), in each of them.

SAME = 1e-6
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "src")])
ENVIRONMENT = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}


def assert_the_same_table(found, world: int) -> None:
    """Each process has the table of one process, and none measured all of it."""
    assert len(found) == world
    for each in found:
        assert max(each[name] for name in ("num", "den", "mass", "even", "maxima")) <= SAME, each
        assert each["counts"] == 0.0 and each["notes"]["processes"] == str(world)


def launched(world: int, out: Path, **given: str) -> tuple[int, str, list[dict]]:
    """By torchrun, as a user would."""
    out.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    run = subprocess.run(
        [*command, "-m", "tests.measurement.ranked", str(out)],
        cwd=ROOT, capture_output=True, text=True, env={**ENVIRONMENT, **given},
    )  # fmt: skip
    paths = [out / f"{rank}.json" for rank in range(world)]
    return run.returncode, run.stderr, [json.loads(path.read_text()) for path in paths if path.exists()]


@pytest.mark.slow  # two processes measure above, two and three train in test_engine
def test_two_and_three_processes_measure_what_one_does_and_go_on_in_any_number(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "tests.measurement.ranked", "several", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    for name, world in (("two", 2), ("three", 3), ("more", 3)):
        assert_the_same_table(found[name], world)
    shares = [each["batches"] for each in found["three"]]
    assert max(shares) - min(shares) <= 1 and sum(shares) == sum(each["batches"] for each in found["two"])
    dead, *others = found["killed"][1], found["killed"][0], found["killed"][2]
    assert dead == {} and all(
        each["error"].startswith("LostProcessError: another process of this run is gone") for each in others
    )
    assert found["again"][0] == {} and "it goes on with what is on the disk" in found["again"][1]["error"]
    # Processes 0 and 2 had finished their batches before they missed process 1: little is left of the second run's.
    assert 0 < sum(each["batches"] for each in found["more"]) < sum(shares) / 2
    assert all(each["notes"]["resumed"].startswith("gone on with after ") for each in found["more"])
    assert all(each["batches"] == 0 and "finished before" in each["notes"]["resumed"] for each in found["done"])
    assert_the_same_table(found["done"], 2)
    assert found["left"] == ["finished.safetensors", "lock", "run.safetensors"]


def test_being_told_to_end_by_torchrun_says_what_happened_and_how_it_goes_on():
    """And is no text's fault: a run that took it for one would go on with the next."""
    with pytest.raises(LostProcessError, match=r"is gone \(killed, or out of memory\).*--resume FOLDER") as caught:
        _interrupt()
    assert not is_about_texts(caught.value)


@pytest.mark.slow
def test_torchrun_starts_them_and_what_a_killed_one_leaves_others_go_on_with(tmp_path):
    code, said, found = launched(2, tmp_path / "a", FOLDER=str(tmp_path / "run"), KILL="1:3")
    assert code != 0 and "SIGKILL" in said and len(found) <= 1  # process 0 is told to end, or misses process 1
    code, said, found = launched(3, tmp_path / "b", FOLDER=str(tmp_path / "run"))
    assert code == 0, said
    assert_the_same_table(found, 3)
    assert all(each["notes"]["resumed"].startswith("gone on with after ") for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_bundled_model(world, tmp_path):
    code, said, found = launched(world, tmp_path / "a", MODEL="minilm")
    assert code == 0, said
    assert_the_same_table(found, world)


def test_one_process_needs_no_torchrun(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with torchrun() as both, joined_processes() as ranks:
        assert both == (0, 1) and ranks == ALONE
        table = mh.measure(tiny_lm(), iter(some_texts(3)), ["entropy"])
    assert "processes" not in table.notes
