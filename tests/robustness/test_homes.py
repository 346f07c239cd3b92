"""A home, and a folder to be in, that cannot be written; no home at all: what can be done is, and the rest is said.

Commands run as processes of their own, as users run them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from manyheads.errors import FileAccessError
from manyheads.lessons import Progress
from manyheads.lessons.progress import state_folder
from manyheads.roles.labels import cache_folder
from tests.models.tiny import save_tiny, tiny_bert, tiny_tokenizer

ROOT = Path(__file__).parents[2]
KEPT_ELSEWHERE = (
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
    "MANYHEADS_CACHE",
    "MANYHEADS_STATE",
    "HF_HOME",
)
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
    "a table": ["look", "the cat", "--save", "t.csv"],
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
@pytest.mark.turns(4)
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
def test_without_any_home_the_doctor_says_what_is_not_kept(tmp_path, tmp_path_factory):
    done = ran(["doctor"], tmp_path, None, tmp_path_factory.mktemp("site"))
    assert "this is a fault of manyheads" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "MANYHEADS_CACHE" in done.stdout and "MANYHEADS_STATE" in done.stdout, done.stdout


def test_the_folders_of_a_user_without_a_home_are_refused_by_name_and_chosen_ones_are_taken(tmp_path, monkeypatch):
    for name in KEPT_ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(
        FileAccessError, match=r"there is no home folder to keep anything in: name a folder in MANYHEADS_C"
    ):
        cache_folder()
    with pytest.raises(
        FileAccessError, match=r"there is no home folder to keep anything in: name a folder in MANYHEADS_S"
    ):
        state_folder()
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
