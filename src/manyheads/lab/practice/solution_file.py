"""Solutions in files: each is run in a process of its own, which is ended when its time is over.

A solution is code, and may do whatever its writer may: the process is not a sandbox. What it is for: an endless loop, a
crash or `exit()` ends that process, and not the judge; and what the solution prints stays apart from the verdict.

The limit is faulthandler's, whose watchdog is a thread outside of Python: it stops a loop that catches everything, too,
and says at which line it was.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import IO

from manyheads.base import first_line, nearest, no_access, read_bytes
from manyheads.errors import ManyHeadsError
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.practice.exercise import Exercise
from manyheads.lab.practice.judging import SolutionVerdict, checked_seed, exercise_of, verdict_on, with_points

SECONDS = 20  # of a solution; right ones take less than one
MOST_SECONDS = 3600
START_SECONDS = 120  # for Python, NumPy and perhaps torch to start, before a solution's own time begins
MOST_BYTES = 1 << 20  # of a file with a solution
PRINTED = 2_000  # characters of what it printed that are kept
MODULE = "solution"  # its name: what stands under `if __name__ == "__main__":` does not run


def judge_file(
    exercise: str, path: str | Path, *, seconds: int | float = SECONDS, seed: int | None = None, keep: bool = True
) -> SolutionVerdict:
    """Run the solution in a Python file, in a process of its own, and judge it as `judge` does.

    - `exercise`: its name.
    - `path`: a file with the function that the exercise names; what else is in it runs as well.
    - `seconds`: how long the solution may take, its imports among them; torch is imported before.
    - `seed`: of the inputs; None: others each time.
    - `keep`: note the points of a right solution.

    The process may do what its code says: judge files that you trust. Cost: half a second for it to start.
    Errors: as `judge`; FileAccessError for a file that cannot be read. What is wrong within it is a verdict.
    """
    task, seed = exercise_of(exercise), checked_seed(seed)
    if isinstance(seconds, bool) or not 0 < seconds <= MOST_SECONDS:
        raise LessonError(f"seconds={seconds!r} is not a limit: give a number above 0, up to {MOST_SECONDS:,}.")
    try:
        source = read_bytes(path, MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise no_access("read", path, error) from error
    if len(source) > MOST_BYTES:
        raise LessonError(f"{path} has more than {MOST_BYTES:,} bytes: that is not a solution to an exercise.")
    path = Path(path).resolve()
    verdict = _run_apart(task, path, seconds, seed, b"torch" in source)
    return with_points(task, verdict) if keep else verdict


def _run_apart(task: Exercise, path: Path, seconds: int | float, seed: int, with_torch: bool) -> SolutionVerdict:
    """The verdict that a process of its own writes, or why it wrote none."""
    with tempfile.TemporaryDirectory(prefix="manyheads-") as folder:
        answer, dump = Path(folder) / "verdict.json", Path(folder) / "where.txt"
        # -P: no file beside the solution, a random.py say, may stand in the way of the judge's own imports.
        command = [
            sys.executable, "-P", "-m", __name__, task.name, str(path), str(seed), str(seconds), str(int(with_torch)),
            str(answer), str(dump),
        ]  # fmt: skip
        source = str(Path(__file__).parents[3])
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONIOENCODING": "utf-8"}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        printed: list[str] = []
        reader = threading.Thread(target=_drain, args=(process.stdout, printed), daemon=True)
        reader.start()
        try:
            process.wait(seconds + START_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:  # and all that it started: with Ctrl-C, too
            if hasattr(os, "killpg"):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            code = process.wait()
            reader.join(1)
        output = "".join(printed)
        with suppress(OSError, ValueError, TypeError):
            fields = json.loads(answer.read_text(encoding="utf-8"))
            fields |= {"mistakes": tuple(fields["mistakes"]), "printed": output}
            return SolutionVerdict(**fields)
        where = dump.read_text(encoding="utf-8", errors="replace") if dump.exists() else ""
    if where or code == -signal.SIGKILL:
        place = next(
            (match for match in re.finditer(r'File "(.+)", line (\d+) in (\S+)', where) if match[1] == str(path)), None
        )
        line = f" It was at line {place[2]} of {path.name}, in {place[3]}." if place else ""
        words = f"No answer within {seconds:g} seconds: is there an endless loop?{line}"
    else:
        words = f"{path.name} ended its process with code {code}, and no answer: out of memory, or os._exit?"
    return SolutionVerdict(False, 0, f"Not yet. {words}", exercise=task.name, seed=seed, printed=output)


def _drain(pipe: IO[bytes], printed: list[str]) -> None:
    """Read all that comes, and keep the beginning: a loop that prints must neither block nor fill the memory."""
    left = PRINTED
    with pipe:
        while chunk := pipe.read1(65536):  # type: ignore[attr-defined]
            if left > 0:
                text = chunk.decode("utf-8", "replace")
                printed.append(text if len(text) <= left else f"{text[:left]} ...")
                left -= len(text)


# ------------------------------------------------------------------------------------------- in the process of its own


def function_in(path: Path, task: Exercise) -> object:
    """The function that a file defines. Errors: LessonError with the line that fails, or the names that there are."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise LessonError(f"{path.name} is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # as dataclasses of the solution need it
    sys.path.insert(0, str(path.parent))
    sys.dont_write_bytecode = True
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError) and error.filename == str(path):
            line = error.lineno
        else:
            frames = traceback.extract_tb(error.__traceback__)
            line = next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)
        place = path.name if line is None else f"{path.name}, line {line}"
        words = error.msg if isinstance(error, SyntaxError) else first_line(error, 200)
        words = "" if isinstance(error, SystemExit) else words
        raise LessonError(f"{place}: {type(error).__name__}{f': {words}' if words else ''}.") from error
    function = getattr(module, task.function, None)
    if callable(function):
        return function
    names = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == MODULE]
    near = nearest(task.function, names, 1)
    has = f" It has {', '.join(names[:6])}." if names else ""
    guess = f" Is {near[0]} meant?" if near else ""
    raise LessonError(f"{path.name} has no function {task.function}: write def {task.signature}.{has}{guess}")


def main(arguments: list[str]) -> None:
    """Judge one file, and write the verdict into another."""
    name, path, seed, seconds, with_torch, answer, dump = arguments
    task = exercise_of(name)
    if with_torch == "1":  # it takes seconds on a busy machine, which are none of the solution's
        with suppress(ImportError):
            import torch  # noqa: F401
    with open(dump, "w", encoding="utf-8") as where:
        faulthandler.dump_traceback_later(float(seconds), exit=True, file=where)
        try:
            function = function_in(Path(path), task)
            assert callable(function)
            verdict = verdict_on(task, function, int(seed))
        except ManyHeadsError as error:
            verdict = SolutionVerdict(False, 0, f"Not yet. {error}", exercise=task.name, seed=int(seed))
        faulthandler.cancel_dump_traceback_later()
    sys.stdout.flush()
    temporary = Path(f"{answer}.part")
    temporary.write_text(json.dumps(verdict.to_dict()), encoding="utf-8")
    temporary.replace(answer)


if __name__ == "__main__":
    main(sys.argv[1:])
