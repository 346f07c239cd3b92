"""One page's code, as a reader would type it: from top to bottom, one namespace, an empty folder, a fresh process.

Blocks of Python and our own command's lines take turns in the page's order, so that one may use what the other wrote.
Commands run in the same process, through the command's own front door: importing torch once a page is enough. Only a
line with a pipe or a redirection goes to a shell. Before all that, the folder gets what a reader has (`bring`).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from tests.docs.pages import ROOT, Block, Command, blocks_of, commands_of, named

# ============================================================================================ what a reader has at hand
# What a reader of a page has at hand: a treebank, some texts, a folder with a config. Only what the page names.


def bring(text: str, folder: Path) -> None:
    """Put into `folder` what `text` speaks of, but for what it saves itself."""
    for name, make in WHAT_READERS_HAVE.items():
        if name in text and f'save("{name}")' not in text:
            make(folder / name)


def _texts(path: Path) -> None:
    path.write_text("The cat sat on the mat because it was tired.\n\nA dog that saw the cat ran home.\n\nRain fell.\n")


def _treebank(path: Path) -> None:
    shutil.copy(str(files("manyheads.corpora") / "sentences.conllu"), path)


def _config(path: Path) -> None:
    path.mkdir()
    sizes = {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 64, "vocab_size": 97}
    (path / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))


def _python(path: Path) -> None:
    path.write_text(Path(json.__file__).read_text(encoding="utf-8"), encoding="utf-8")


def _recording(path: Path) -> None:
    import manyheads as mh

    mh.record(mh.load("minilm"), "The cat sat on the mat because it was tired.").save(path)


WHAT_READERS_HAVE: dict[str, Callable[[Path], None]] = {
    "texts.txt": _texts, "text.txt": _texts, "novel.txt": _texts, "sentences.txt": _texts, "treebank.conllu": _treebank,
    "my-model/": _config, "long.py": _python, "cat.heads": _recording,
}  # fmt: skip


# ======================================================================================================== a page is run

PATIENCE_SECONDS = 900  # of one page: the README's commands take six minutes of a processor
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
PRINTED = 2_000  # characters of what a block printed that a fault shows


@dataclass
class Outcome:
    """What came of a page. `skipped` has a line, what stands there, and why; `fault` is empty where all went well.

    `seconds` are the processor's: what else the machine does is not counted.
    """

    page: str
    python: int = 0
    commands: int = 0
    skipped: list[tuple[int, str, str]] = field(default_factory=list)
    fault: str = ""
    seconds: float = 0.0


def outcome_of(page: Path) -> Outcome:
    """Run a page in a process and a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="page-") as place:
        told, work = Path(place) / "told.json", Path(place) / "here"
        work.mkdir()
        outside = {name: value for name, value in os.environ.items() if name != "MANYHEADS_DEFAULT_MODEL"}
        env = {
            **outside, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}", "MPLBACKEND": "Agg",
            "HF_HUB_OFFLINE": "1", "MANYHEADS_STATE": place, "COLUMNS": "120",
        }  # fmt: skip
        begun = _spent()
        command = [sys.executable, "-m", "tests.docs.running", str(page), str(told)]
        try:
            done = subprocess.run(
                command, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=PATIENCE_SECONDS, check=False,
            )  # fmt: skip
            died = f"the process ended with {done.returncode}: {done.stderr[-PRINTED:]}"
        except subprocess.TimeoutExpired:
            died = f"not done after {PATIENCE_SECONDS} seconds"
        read = json.loads(told.read_text(encoding="utf-8")) if told.is_file() else {"fault": died}
    return Outcome(**{"page": named(page), **read, "seconds": _spent() - begun})


def _spent() -> float:
    """Processor seconds of all processes that have ended under this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_here(page: Path) -> Outcome:
    """Run a page's blocks in this process and this folder, up to the first that fails."""
    found = Outcome(named(page))
    names: dict[str, object] = {"__name__": "__main__"}
    bring(page.read_text(encoding="utf-8"), Path.cwd())
    for block in blocks_of(page):
        if block.language == "python":
            if block.not_run:
                found.skipped.append((block.line, _first_line(block.code), block.not_run))
                continue
            found.python += 1
            found.fault = _run_python(block, names)
            if block.not_held:
                found.skipped.append((block.line, "what it prints", block.not_held))
        elif block.language == "sh":
            for each in commands_of(block):
                if each.not_run:
                    found.skipped.append((each.line, each.text, each.not_run))
                    continue
                found.commands += 1
                found.fault = found.fault or _run_command(block, each)
        if found.fault:
            break
    return found


def _first_line(code: str) -> str:
    return next((line for line in code.splitlines() if line.strip()), "")


def _run_python(block: Block, names: dict[str, object]) -> str:
    where, printed = f"{named(block.page)}:{block.line}", io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (block.line - 1) + block.code, str(block.page), "exec"), names)
    except Exception:
        return f"{where}: {traceback.format_exc()}\n{printed.getvalue()[-PRINTED:]}"
    if block.prints is not None and not same_print(block.prints, printed.getvalue()):
        return f"{where} prints\n{printed.getvalue()}\nwhere the page shows\n{block.prints}"
    return ""


def same_print(said: str, printed: str) -> bool:
    """Whether the lines that a page shows are among those that its code prints, in this order."""
    left = iter(printed.splitlines())
    return all(any(_same_line(line, other) for other in left) for line in said.splitlines() if line.strip(" .…"))


def _same_line(said: str, printed: str) -> bool:
    """Equal words; numbers equal but for one in the last place shown, a part in 1e5, or 1e-6: machines differ by it."""
    said, printed = said.rstrip(), printed.rstrip()
    ours, theirs = NUMBER.findall(printed), NUMBER.findall(said)
    if NUMBER.sub("#", said) != NUMBER.sub("#", printed):
        return False
    return all(abs(float(a) - float(b)) <= _slack(b) for a, b in zip(ours, theirs, strict=True))


def _slack(shown: str) -> float:
    """How far another machine's number may be from the one that is shown. A whole number is a count: not at all."""
    mantissa, _, power = shown.partition("e")
    places = len(mantissa.partition(".")[2])
    return max(1.01 * 10.0 ** (int(power or 0) - places), 1e-5 * float(shown), 1e-6) if places or power else 0.0


def _run_command(block: Block, command: Command) -> str:
    """Errors come back as words: what was typed, the exit code, what it said."""
    from manyheads.cli.main import main

    words = shlex.split(command.text, comments=True)
    if {"|", ">", "<"} & set(command.text.split()):
        done = subprocess.run(["bash", "-c", f"set -o pipefail; {command.text}"], capture_output=True, text=True)
        code, said = done.returncode, done.stderr or done.stdout
    else:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words[1:])
        said = err.getvalue() or out.getvalue()
    where = f"{named(block.page)}:{command.line}"
    return f"{where}: `{command.text}` ended with {code}: {said[-PRINTED:]}" if code else ""


if __name__ == "__main__":
    outcome = run_here(Path(sys.argv[1]))
    told = {name: getattr(outcome, name) for name in ("python", "commands", "skipped", "fault")}
    Path(sys.argv[2]).write_text(json.dumps(told), encoding="utf-8")
