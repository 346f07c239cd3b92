"""`python -m tests.install [PYTHON ...]`: the wheel installed by pip alone, for every Python named, or found here.

For each: a new environment, torch first and alone, then the wheel, then its extras and weights; after each of
the last two every claim, from an empty folder. Takes minutes and gigabytes an interpreter, and a network. Exit 1 where
one does not hold.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.install.environments import build

from .claims import CLAIMS
from .environments import Environment, installed, with_extras

NAMES = ("python3.11", "python3.12", "python3.13", "python3.14")
EXTRAS = ("studio", "bench")


def main(asked: list[str]) -> int:
    """Each Python in turn, in a folder that is removed before the next."""
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="manyheads-install-") as name:
        wheel, labels = build("wheel", Path(name) / "dist"), Path(name) / "labels"
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        for python in asked or [each for each in NAMES if runs(each)]:
            try:
                wrong += tried(python, Path(name) / "environment", wheel, labels)
            except AssertionError as error:  # pip's own words
                print(f"{python}: cannot be installed: {error}", flush=True)
                wrong += 1
            shutil.rmtree(Path(name) / "environment")
    return int(wrong > 0)


def runs(python: str) -> bool:
    """Whether such a Python is here: a version manager's stand-in for one that it lacks ends with an error."""
    found = shutil.which(python)
    return found is not None and subprocess.run([found, "--version"], capture_output=True).returncode == 0


def tried(python: str, folder: Path, wheel: Path, labels: Path) -> int:
    """How many claims do not hold: without extras and weights, then with all of them."""
    said = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    begun = time.monotonic()
    here = installed(folder, wheel, labels, python)
    torch = here.says("import torch; print(torch.__version__)")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"{said}, torch {torch}: installed in {time.monotonic() - begun:.0f} s, {size / 1e9:.1f} GB", flush=True)
    wrong = judged(here)
    begun = time.monotonic()
    here = with_extras(here, EXTRAS)
    print(f"{said}, with {', '.join(EXTRAS)}, weights: {time.monotonic() - begun:.0f} s more", flush=True)
    return wrong + judged(here)


def judged(here: Environment) -> int:
    """How many claims do not hold; each is said."""
    wrong = 0
    for claim in CLAIMS:
        begun = time.monotonic()
        try:
            claim(here)
            outcome = "holds"
        except AssertionError as error:
            outcome, wrong = f"DOES NOT HOLD: {error}", wrong + 1
        print(f"  {claim.__name__}: {outcome} ({time.monotonic() - begun:.0f} s)", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
