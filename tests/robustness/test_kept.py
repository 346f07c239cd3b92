"""What a studio keeps has limits in memory, not only in number, and what it lets go of goes back to the system."""

import asyncio
import platform
import subprocess
import sys
import weakref

import pytest

import manyheads as mh
from manyheads.errors import TextError
from manyheads.studio import Desk, NotHere, Workspace
from manyheads.studio import jobs as jobs_module
from manyheads.studio.jobs import Jobs
from manyheads.studio.schema.experiments import ExperimentAsk
from manyheads.studio.schema.lessons import CellResult
from manyheads.studio.schema.recordings import RecordingAsk
from tests.models.tiny import tiny_bert, tiny_tokenizer


@pytest.fixture
def desk():
    made = Desk(Workspace())
    made.workspace.add_model(mh.load(tiny_bert(), tokenizer=tiny_tokenizer()))
    yield made
    made.close()


def ended(jobs: Jobs, size: int) -> str:
    """A job that found so many characters."""
    job = jobs.start("cell", lambda say: CellResult(lesson="a", cell="b", words="x" * size, shown=[], links=[]))
    assert asyncio.run(jobs.wait(job, 20)).state == "done"
    return job


def known(jobs: Jobs, names: list[str]) -> list[bool]:
    def is_known(name: str) -> bool:
        try:
            return asyncio.run(jobs.wait(name)).result is not None
        except NotHere:
            return False

    return [is_known(name) for name in names]


def test_what_jobs_found_is_kept_up_to_so_many_bytes_and_the_last_one_always(monkeypatch):
    monkeypatch.setattr(jobs_module, "KEPT_BYTES", 10_000)
    jobs = Jobs()
    names = [ended(jobs, size) for size in (3_000, 3_000, 3_000, 3_000)]
    ended(jobs, 1)  # a new one looks after what is there
    assert known(jobs, names) == [False, True, True, True]
    large = ended(jobs, 50_000)
    ended(jobs, 1)
    assert known(jobs, [*names, large]) == [False, False, False, False, True]
    jobs.close()


def test_a_job_that_failed_keeps_its_words_and_lets_go_of_what_it_worked_on():
    class Large:
        pass

    held = []

    def fail(say):
        large = Large()
        held.append(weakref.ref(large))
        try:
            raise KeyError("within")
        except KeyError:
            raise TextError("it cannot be read") from None

    jobs = Jobs()
    job = asyncio.run(jobs.wait(jobs.start("cell", fail), 20))
    assert job.state == "failed" and job.problem.words == "it cannot be read"
    assert held[0]() is None
    jobs.close()


@pytest.mark.turns(4)
def test_experiments_are_kept_up_to_so_many_tokens_and_the_last_one_always(desk):
    desk.experiments.max_size = 20
    (model,) = desk.workspace.models
    plan = [{"step": "ablate", "heads": "L0H1", "kind": "zero"}]
    found = [
        desk.experiment(ExperimentAsk(model=model, text=text, plan=plan, controls=0), lambda *_: None).id
        for text in ("the cat sat on the mat", "a dog sat on the mat", "the bird sat on the mat")
    ]
    assert list(desk.experiments) == found[1:]
    long = desk.experiment(ExperimentAsk(model=model, text="the cat " * 12, plan=plan, controls=0), lambda *_: None)
    assert list(desk.experiments) == [long.id]


def test_texts_that_fail_and_texts_asked_for_twice_leave_nothing_behind(desk):
    (model,) = desk.workspace.models
    for text in ("  ", "", "the cat", "the cat", "the cat"):
        try:
            desk.recordings.open(RecordingAsk(model=model, text=text), lambda *_: None)
        except TextError:
            assert not text.strip()
    assert not desk.recordings.opened._making and len(desk.recordings.opened) == 1


SCATTERED = """
import sys
from tests.robustness.target import resident
from manyheads.studio.server.serve import give_memory_back
if sys.argv[1] == "given back":
    give_memory_back()
before, kept = resident(), []
for size in range(30, 2, -1):  # maps of many sizes, and between them what is kept
    large = [b'x' * (size << 20) for _ in range(6)]
    kept.append([b'x' * 900_000 for _ in range(2)])
    del large[::2]
    kept.append([b'x' * 900_000 for _ in range(2)])
    del large
print(resident() - before - sum(len(each) for part in kept for each in part) / 2**20)
"""


@pytest.mark.slow  # 8 seconds
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's memory that is told so")
def test_large_blocks_go_back_to_the_system_among_small_ones_that_stay():
    left = [
        float(subprocess.run([sys.executable, "-c", SCATTERED, how], capture_output=True, text=True, check=True).stdout)
        for how in ("given back", "left as it is")
    ]
    assert left[0] < 20 < 50 < left[1], left


SMALL = """
import numpy as np
from tests.robustness.target import resident
from manyheads.studio.server.serve import give_memory_back, trim
give_memory_back()
kept = [np.ones(6_000) for _ in range(8_000)]  # 48 kB each
full = resident()
del kept[::2]
left = resident()
trim()
print(full - left, left - resident())
"""


@pytest.mark.slow  # of the allocator, not of ours
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's memory that is trimmed")
def test_free_pages_between_small_blocks_go_back_when_they_are_trimmed():
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, check=True)
    by_itself, trimmed = map(float, done.stdout.split())
    assert by_itself < 20 < 120 < trimmed
