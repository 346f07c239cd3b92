"""What a studio keeps has limits in memory, not only in number, and what it lets go of goes back to the system."""

import asyncio
import gzip
import platform
import re
import subprocess
import sys
import threading
import weakref

import pytest

import manyheads as mh
from benchmarks.soak import BAR_MB, judged, soak
from manyheads.corpora import lines as sources
from manyheads.corpora import open_corpus
from manyheads.corpora import sources as plaintext
from manyheads.errors import TextError
from manyheads.studio import NotHere, StudioSession, Workspace
from manyheads.studio import jobs as jobs_module
from manyheads.studio.jobs import Jobs
from manyheads.studio.schema.experiments import ExperimentAsk
from manyheads.studio.schema.recordings import RecordingAsk
from tests.models.tiny import tiny_bert, tiny_tokenizer


@pytest.fixture
def desk():
    made = StudioSession(Workspace())
    made.workspace.add_model(mh.load(tiny_bert(), tokenizer=tiny_tokenizer()))
    yield made
    made.close()


def ended(jobs: Jobs, size: int) -> str:
    """A job that found so many characters."""
    job = jobs.start("cell", lambda say: {"words": "x" * size})
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


def test_a_lessons_cell_does_not_wait_for_experiments():
    released = threading.Event()
    jobs = Jobs(max_running=1)
    try:
        long = [jobs.start("experiment", lambda report: {"ended": released.wait(20)}) for _ in range(2)]
        cell = asyncio.run(jobs.wait(jobs.start("cell", lambda report: {"sum": 5}), 10))
        assert cell.state == "done" and cell.result == {"sum": 5}
        assert [asyncio.run(jobs.wait(job)).state for job in long] == ["running", "running"]
    finally:
        released.set()
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


@pytest.mark.slow
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


# ============================================================================================================= the soak
# The soak of the studio (`python -m benchmarks.soak`): what it calls flat, and a short one of the real server.

SECONDS = [0.5 * at for at in range(1200)]  # ten minutes


@pytest.mark.parametrize(
    ("mb", "flat"),
    [
        (lambda s: 1600 + 7 * (s % 3), True),  # noise
        (lambda s: 300 + min(s, 190) * 7, True),  # what is kept is filled in the first third
        (lambda s: 1600 - s, True),
        (lambda s: 1600 + 6 / 1024 * 20 * s, False),  # 6 kB a request, 20 requests a second
        (lambda s: 1600 + 400 * (s > 300), False),
    ],
)
def test_flat_is_judged_over_the_last_two_thirds(mb, flat):
    found = judged([(second, mb(second)) for second in SECONDS])
    assert found["flat"] is flat and (found["rise_mb"] <= BAR_MB) is flat


@pytest.mark.slow
def test_no_request_fails_and_no_kind_is_left_out_in_a_short_soak():
    found = soak(0.75)
    assert not found["num_faults"] and not found["traceback"], found
    kinds = {
        "open", "atlas", "heads", "rows", "tiles", "table", "size", "lesson", "check", "page", "bad", "cut", "file",
    }  # fmt: skip
    assert kinds <= found["kinds"].keys() and found["requests"] > 200
    assert found["last_mb"] < 2500


# ========================================================================================================== large texts
# Texts that no model could read, and sentences that cannot be: a problem in words, and the next one is read.

RANGE = "\tab" + "\t_" * 8 + "\n"
WORD = "1\ta\ta\tX\t_\t_\t0\troot\t_\t_\n"


def problems(path, **options) -> list[tuple[str, str]]:
    return [(each.text, each.problem) for each in open_corpus(path, **options).open()]


@pytest.mark.slow  # hundreds of megabytes
def test_what_is_too_long_to_be_a_text_is_a_problem_and_reading_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_BYTES", 1 << 20)
    long = b"a" * (3 << 20)
    (tmp_path / "a.txt").write_bytes(long + b"\n\nfine\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one\n" + long + b"\ntwo\n"))
    (first, told), after = problems(tmp_path / "a.txt")
    assert (first, told, after) == ("", "line 1 is longer than 1 MB: break it up.", ("fine", ""))
    assert [text for text, _ in problems(tmp_path / "b.txt.gz", lines=True)] == ["one", "", "two"]
    (tmp_path / "c.txt").write_bytes(b"words\n" * (1 << 18) + b"\nfine\n")
    (first, told), after = problems(tmp_path / "c.txt")
    assert after == ("fine", "") and re.match(
        r"from line 1 on, there is no empty line for .* or 1 MB: part texts", told
    )
    assert len(problems(tmp_path / "c.txt", lines=True)) == (1 << 18) + 1


def test_long_lines_json_lines_and_sentences_have_limits_and_count_their_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(plaintext, "MOST_JSON", 1 << 20)
    (tmp_path / "a.jsonl").write_text('{"text": "%s"}\n{"text": "fine"}\n' % ("a" * (1 << 20)))
    assert problems(tmp_path / "a.jsonl") == [("", "this line is longer than 1 MB of JSON: break it up."), ("fine", "")]
    (tmp_path / "a.conllu").write_text("# comment\n" * 20_000 + "\n1\tfine\tfine\tX\t_\t_\t0\troot\t_\t_\n\n")
    (_, told), after = problems(tmp_path / "a.conllu")
    assert "there is no empty line for 10,000 lines" in told and after == ("fine", "")
    monkeypatch.setattr(sources, "MOST_BYTES", 100)
    (tmp_path / "a.txt").write_bytes(b"x" * 500 + b"\n\nfine\n")
    assert [each.at for each in open_corpus(tmp_path / "a.txt").open()] == [501, 507]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (f"1-999999999{RANGE}{WORD}", "the words of 1-999999999 'ab' do not follow it"),
        (f"2-1{RANGE}{WORD}", r"line 1 is not CoNLL-U"),
        (f"{'9' * 5000}{WORD}", r"line 1 is not CoNLL-U \(Exceeds the limit"),
        ("8.1\tgone\tgo\tX\t_\t_\t_\t_\t0:root\t_\n", "it has no word, only tokens that are not in its text"),
    ],
)  # fmt: skip
def test_a_sentence_that_cannot_be_is_a_problem(rows, words, tmp_path):
    (tmp_path / "a.conllu").write_text(rows + "\n")
    ((text, problem),) = problems(tmp_path / "a.conllu")
    assert text == "" and re.search(words, problem)
