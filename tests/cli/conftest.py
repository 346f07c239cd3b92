"""The command, run in this process (one loaded model for all) and in processes of its own (a tiny model)."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import manyheads.models
from manyheads.cli.main import main
from tests.models.tiny import tiny_t5

from ..models.tiny import save_tiny, tiny_bert, tiny_gpt2, tiny_tokenizer

TEXT = "Ada gave Grace the key, and Grace kept the key."


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def surroundings(short_pages, monkeypatch, tmp_path):
    """A folder of its own to write into; a shorter page; no colour asked for, no terminal's width."""
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(minilm, monkeypatch, capsys) -> Run:
    """`run("look", "some text")` in this process, minilm being loaded already."""
    load = manyheads.models.load
    monkeypatch.setattr("manyheads.models.load", lambda name, **how: minilm if name == "minilm" else load(name, **how))

    def runner(*arguments: str) -> Ran:
        code = main(arguments)
        return Ran(code, *capsys.readouterr())

    return runner


def assert_refused(ran: Ran, *parts: str) -> None:
    """Exit 2, nothing on stdout, one clear line on stderr that holds all the parts, and no traceback."""
    said = [line for line in ran.err.splitlines() if line.startswith("manyheads: ")]
    assert (ran.code, ran.out, len(said)) == (2, "", 1), ran
    assert "Traceback" not in ran.err
    for part in parts:
        assert part in said[0], said[0]


def raising(error: BaseException) -> Callable[..., None]:
    """A function that takes whatever it is given and raises this."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.fixture
def passes(minilm):
    """The shapes of the ids in each forward pass of minilm."""
    shapes = []
    minilm.spec  # noqa: B018  a pass of its own, at the first use
    hook = minilm.model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    yield shapes
    hook.remove()


# --------------------------------------------------------------------------------------------- processes of their own


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory) -> str:
    return str(save_tiny(tiny_bert(), tmp_path_factory.mktemp("models") / "bert", tiny_tokenizer()))


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory) -> str:
    return str(save_tiny(tiny_gpt2(), tmp_path_factory.mktemp("models") / "gpt2", tiny_tokenizer(special_tokens=False)))


@pytest.fixture(scope="session")
def t5_folder(tmp_path_factory) -> str:
    model = tiny_t5(num_layers=3)  # as many layers on both sides: transformers' cache wants it so
    return str(save_tiny(model, tmp_path_factory.mktemp("models") / "t5", tiny_tokenizer(special_tokens=False)))


def start(*arguments: str, cache: Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen:
    """`python -m manyheads ...` with pipes for stdout and stderr."""
    environment = {**os.environ, "MANYHEADS_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "manyheads", *arguments]
    pipe = subprocess.PIPE
    # A shell that runs us in the background ignores Ctrl-C, and so would what we start.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, env=environment)
    finally:
        signal.signal(signal.SIGINT, heard)
