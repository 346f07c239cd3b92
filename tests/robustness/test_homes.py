"""A home, and a folder to be in, that cannot be written; no home at all: what can be done is, and the rest is said.

Commands run as processes of their own, as users run them.
"""

import ast
import os
import re
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import manyheads as mh
from manyheads.cli.main import main
from manyheads.errors import FileAccessError, ModelError
from manyheads.lab.lessons import Progress
from manyheads.lab.lessons.progress import state_folder
from manyheads.roles.page_labels import cache_folder
from tests.models.tiny import save_tiny, tiny_bert, tiny_tokenizer
from tests.refusals import refuses

ROOT = Path(__file__).parents[2]
KEPT_ELSEWHERE = (
    "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "MANYHEADS_CACHE", "MANYHEADS_STATE", "HF_HOME",
)  # fmt: skip
SEALED = r"(it is on a read-only file system|you have no permission to)"
NO_HOME = "import os\nos.path.expanduser = lambda path: path\n"  # as where the system knows of none


@pytest.fixture
def sealed(tmp_path):
    """A folder in which nothing can be written: for root a mount that is read-only, since he may write anywhere."""
    place = tmp_path / "sealed"
    place.mkdir()
    if os.geteuid():
        place.chmod(0o555)
        yield place
        place.chmod(0o755)
        return
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("this root may not mount anything, and may write anywhere: run the tests as another user")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(
        tiny_bert(max_position_embeddings=600), tmp_path_factory.mktemp("model") / "bert", tiny_tokenizer()
    )


def ran(arguments: list[str], cwd: Path, home: Path | None, site: Path | None = None) -> subprocess.CompletedProcess:
    """A command in a folder, with a home or without; nothing else says where anything may be kept.

    Where there is none, it and its own processes begin with what `site` holds, which says so.
    """
    environment = {name: value for name, value in os.environ.items() if name not in (*KEPT_ELSEWHERE, "HOME")}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    if home is not None:
        environment["HOME"] = str(home)
    elif site is not None:
        (site / "sitecustomize.py").write_text(NO_HOME)
        environment["PYTHONPATH"] += f"{os.pathsep}{site}"
    command = [sys.executable, "-m", "manyheads", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def in_one_line(said: str) -> str:
    return " ".join(said.split())


@pytest.mark.slow
def test_where_home_and_folder_are_sealed_a_model_is_looked_at_and_what_is_not_kept_is_said(sealed, model):
    done = ran(["look", "the cat sat", "--model", str(model)], sealed, sealed)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"not remembered: cannot write .*{SEALED}", in_one_line(done.stdout + done.stderr))
    assert "L0" in done.stdout and "Traceback" not in done.stderr and not list(sealed.iterdir())


REFUSED = {
    "a table": ["look", "the cat", "--out", "t.csv"],
    "a page": ["look", "the cat", "--html", "look.html"],
    "a picture": ["size", "gpt2", "--plot", "s.png"],
    "a pruned model": ["prune", "L0H1", "--out", "small"],
    "a training": ["train", "induction", "--quick", "--out", "here"],
}


QUICK = ("a table",)  # each is a process that imports torch


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(line, id=name, marks=[pytest.mark.slow] * (name not in QUICK)) for name, line in REFUSED.items()],
)
def test_what_cannot_be_written_where_one_is_is_refused_in_one_line_that_names_it(arguments, sealed, model):
    given = [*arguments, "--model", str(model)] if arguments[0] in ("look", "prune") else arguments
    done = ran(given, sealed, sealed)
    said = [line for line in done.stderr.splitlines() if line.startswith("manyheads:")]
    assert done.returncode == 2 and len(said) == 1, done.stderr
    assert arguments[-1] in said[0] and "rite" in said[0] and "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_any_home_the_commands_work_and_what_is_not_kept_is_said(tmp_path, tmp_path_factory, model):
    site = tmp_path_factory.mktemp("site")
    done = ran(["look", "the cat sat", "--model", str(model)], tmp_path, None, site)
    assert done.returncode == 0, done.stderr
    said = in_one_line(done.stdout + done.stderr)
    assert "not remembered: there is no home folder to keep anything in: name a folder in MANYHEADS_CACHE" in said
    done = ran(["learn", "masks", "--answer", "causal-cells", "36"], tmp_path, None, site)
    assert done.returncode == 0 and "Right." in done.stdout, done.stderr
    assert "your points are not kept: there is no home folder to keep anything in" in in_one_line(done.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_doctor_without_any_home_works(tmp_path, tmp_path_factory):
    done = ran(["doctor"], tmp_path, None, tmp_path_factory.mktemp("site"))
    assert done.returncode == 0 and done.stdout.endswith("Nothing is wrong.\n"), done.stdout + done.stderr


def test_the_folders_of_a_user_without_a_home_are_refused_by_name_and_chosen_ones_are_taken(tmp_path, monkeypatch):
    for name in KEPT_ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    refuses(FileAccessError, r"there is no home folder to keep anything in: name a folder in MANYHEADS_C", cache_folder)
    refuses(FileAccessError, r"there is no home folder to keep anything in: name a folder in MANYHEADS_S", state_folder)
    progress = Progress()
    progress.reach("one-head", "a", 2)
    assert "there is no home folder" in progress.trouble and progress.of("one-head", {"a": 2}) == (1, 2)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path / "own"))
    assert state_folder() == tmp_path / "manyheads" and cache_folder() == tmp_path / "own"


def test_points_in_a_sealed_home_are_counted_and_their_loss_is_said(sealed):
    progress = Progress(sealed / "manyheads")
    progress.reach("one-head", "a", 2)
    assert progress.of("one-head", {"a": 2}) == (1, 2)
    assert progress.trouble.endswith("its folder cannot be made. Name one in MANYHEADS_STATE.")
    assert not (sealed / "manyheads").exists()


# ========================================================================================================== the network
# Nothing here goes to the network by itself: whatever is done with files on this machine asks no other.

LOCAL = ("127.0.0.1", "localhost", "::1")


@pytest.fixture
def asked(monkeypatch):
    """Whom this process has asked for, but itself. Nobody answers."""
    found = []

    def refuse(place):
        if not isinstance(place, tuple) or place[0] not in LOCAL:
            found.append(place)
            raise OSError(101, "Network is unreachable")

    connect, look_up = socket.socket.connect, socket.getaddrinfo
    monkeypatch.setattr(socket.socket, "connect", lambda self, place: refuse(place) or connect(self, place))
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: refuse((host,)) or look_up(host, *rest, **more)
    )
    return found


@pytest.mark.slow  # a process that does everything
def test_models_recordings_tables_sizes_and_lessons_ask_nobody(asked, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = str(save_tiny(tiny_bert(max_position_embeddings=600), tmp_path / "bert", tiny_tokenizer()))
    lm = mh.load(folder)
    mh.record(lm, "the cat sat").save("cat.heads")
    assert mh.open_recording("cat.heads").layers[0].q is not None
    mh.measure(lm, ["the cat sat", "a dog"]).save("t.parquet")
    mh.prune_heads(lm, "L0H1")
    for arguments in (
        ["look", "the cat", "--model", folder, "--html", "look.html"],
        ["size", "llama-2-70b"],
        ["learn", "masks", "--answer", "causal-cells", "36"],
        ["train", "--json"],
    ):
        assert main(arguments) == 0, capfd.readouterr().err
    assert asked == []


def test_a_name_that_is_not_here_is_asked_for_at_the_hub_and_only_there(asked, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refuses(ModelError, "the hub cannot be reached", mh.load, "somebody/no-such-model")
    assert asked and {place[0] for place in asked} == {"huggingface.co"}


# ========================================================================================================== SECURITY.md
# SECURITY.md promises only what a test holds, and each test that it names is there.

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def promises() -> list[str]:
    """The items of the lists under "What is promised"."""
    section = PAGE.split("\n## What is promised\n")[1].split("\n## ")[0]
    return re.split(r"\n- ", section)[1:]


@cache
def named_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_promise_names_tests_that_are_there():
    assert len(promises()) >= 15
    for promise in promises():
        assert NAMED.search(promise), promise
    found = NAMED.findall(PAGE)
    assert len(found) >= 30
    for file, test in found:
        assert (ROOT / file).is_file(), file
        assert not test or test in named_in(file), f"{file}::{test}"


def test_nothing_that_is_never_loaded_is_imported_anywhere():
    """No pickle, no shelve, no yaml, no eval: each of them runs or may run what it reads."""
    unwanted = {"pickle", "dill", "shelve", "marshal", "yaml", "joblib", "cloudpickle"}
    readers = {"load", "read_pickle"}
    for path in (ROOT / "src/manyheads").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not unwanted & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in readers:
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "np.load", "numpy.load", "pd.read_pickle"), path
