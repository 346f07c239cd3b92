"""Which versions are tried together, and an environment for each.

A transformers is an overlay: its package alone in a folder, before everything else that the tests' own environment has.
Another torch needs an environment of its own: torch first and alone, then what requirements.lock names, without asking
what that asks for. Ranges and the lock are read from where they stand; what others offer is written here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "versions"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Combination:
    """`name` is what the command line calls it. `packages` are those of other versions than the lock's; `python` is
    that of an environment of its own, "" for an overlay."""

    name: str
    about: str
    packages: dict[str, str] = field(default_factory=dict)
    python: str = ""


def overlays() -> tuple[Combination, ...]:
    """The combinations of `make test-versions`: transformers alone is another."""
    return (
        Combination("floor", "the lowest that is allowed", {"transformers": floor("transformers")}),
        Combination("colab", "Google Colab's, November 2026", {"transformers": "5.15.1"}),
        Combination("image", "that of a GPU image, November 2026", {"transformers": "5.17.0"}),
        Combination("lock", "what `make` installs", {"transformers": locked("transformers")}),
        Combination("newest", "the newest on the index", {"transformers": newest("transformers")}),
    )


def torches() -> tuple[Combination, ...]:
    """The combinations of `make test-torches`: torch is another, and what comes with it."""
    image = {"torch": "2.11.0", "transformers": "5.17.0", "numpy": "2.5.2"}
    after = {"torch": "2.14.1", "transformers": "5.24.0"}
    return (
        Combination("torch-floor", "the lowest torch; a GPU image, November 2026", image, "3.12"),
        Combination("torch-after", "a torch after the lock's", after, "3.11"),
        Combination("python-3.13", "a torch after the lock's", after, "3.13"),
        Combination("python-3.14", "the newest Python", after, "3.14"),
    )


def floor(package: str) -> str:
    """The lowest version that pyproject.toml allows, with its patch number."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    (requirement,) = (entry for entry in map(Requirement, declared) if entry.name == package)
    (lowest,) = (part.version for part in requirement.specifier if part.operator == ">=")
    return lowest if lowest.count(".") == 2 else f"{lowest}.0"


def locked(package: str) -> str:
    """The version in requirements.lock."""
    (line,) = (line for line in _lock() if line.startswith(f"{package}=="))
    return line.partition("==")[2].partition(";")[0].strip()


def _lock() -> list[str]:
    return (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()


@cache
def newest(package: str) -> str:
    """The newest version that pip would install here."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", package], capture_output=True, text=True, check=False
    )
    named = re.match(rf"{package} \((\S+)\)", listed.stdout)
    if named is None:
        sys.exit(f"pip knows no version of {package}: is there a network?\n{listed.stderr[-500:]}")
    return named[1]


# ======================================================================================================== environments


def folder_of(combination: Combination) -> Path:
    """Where its environment is: another version is another folder."""
    return FOLDER / "-".join([combination.name, *combination.packages.values()])


def environment(combination: Combination) -> Path:
    """The Python of the combination, made where it is not there yet. Ends with pip's own words where it cannot be."""
    folder = folder_of(combination)
    python = folder / "bin" / "python"
    made = folder / "made"
    if not made.exists():
        shutil.rmtree(folder, ignore_errors=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        make = _whole if combination.python else _overlay
        install = make(folder, combination)
        # An older transformers asks for another huggingface_hub than the lock's, and with that for other packages.
        if asked := lacking(python, "transformers"):
            run([*install, *asked])
        made.touch()
    # The sources, in every run with metadata of today's ranges: the doctor reads them.
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    run([sys.executable, "-m", "pip", "--python", str(python), *install])
    return python


def _overlay(folder: Path, combination: Combination) -> list[str]:
    """Make it, and return the command that installs more into it."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    target = folder / "overlay"
    names = [f"{name}=={version}" for name, version in combination.packages.items()]
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target)]
    run([*install, "--no-deps", *names])
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    below = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    # Folders of a .pth come after site-packages, in the order of its lines.
    (site / "versions.pth").write_text("".join(f"{place}\n" for place in (target, *below)), encoding="utf-8")
    return install


def _whole(folder: Path, combination: Combination) -> list[str]:
    """The same for an environment of its own."""
    command = interpreter(combination.python)
    if command is None:
        sys.exit(
            f"{combination.name} needs Python {combination.python}, and there is no python{combination.python} here."
        )
    run([command, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--no-cache-dir"]
    run([*pip, f"torch=={combination.packages['torch']}"])  # with the triton that it asks for
    others = {name: version for name, version in combination.packages.items() if name != "torch"}
    left_out = re.compile("|".join(["#", "triton==", *(f"{name}==" for name in others)]))
    lock = [line for line in _lock() if not left_out.match(line)]
    wanted = folder / "wanted.txt"
    wanted.write_text("\n".join([*lock, *(f"{name}=={version}" for name, version in others.items())]) + "\n")
    run([*pip, "--no-deps", "-r", str(wanted)])
    return pip


def interpreter(version: str) -> str | None:
    """The command of that Python; None where it is not here."""
    if version == HERE:
        return sys.executable
    command = shutil.which(f"python{version}")
    # A version manager's stand-in for one that it lacks ends with an error.
    if command is None or subprocess.run([command, "--version"], capture_output=True, check=False).returncode:
        return None
    return command


def lacking(python: Path, package: str) -> list[str]:
    """What a package there asks for by its own metadata, and is missing there or of another version."""
    program = (
        "import json, sys\nfrom importlib.metadata import PackageNotFoundError, requires, version\n"
        "from packaging.requirements import Requirement\n"
        "asked = [Requirement(line) for line in requires(sys.argv[1]) or ()]\n"
        "lacks = []\n"
        "for entry in asked:\n"
        "    if entry.marker is None or entry.marker.evaluate({'extra': ''}):\n"
        "        try: there = entry.specifier.contains(version(entry.name), prereleases=True)\n"
        "        except PackageNotFoundError: there = False\n"
        "        if not there: lacks.append(f'{entry.name}{entry.specifier}')\n"
        "print(json.dumps(lacks))"
    )
    return json.loads(run([str(python), "-c", program, package]))


def versions_of(python: Path, *more: str) -> dict[str, str]:
    """What is there, by its own metadata: Python, the packages of the table, and others."""
    program = (
        "import json, platform\nfrom importlib.metadata import PackageNotFoundError, version\n"
        "found = {'python': platform.python_version()}\n"
        f"for name in {('torch', 'transformers', 'triton', 'numpy', *more)}:\n"
        "    try: found[name] = version(name).partition('+')[0]\n"
        "    except PackageNotFoundError: found[name] = ''\n"
        "print(json.dumps(found))"
    )
    return json.loads(run([str(python), "-c", program]))


def run(command: Sequence[str]) -> str:
    """What a command prints. Ends the whole with its last words where it fails."""
    done = subprocess.run(list(command), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout
