"""Wheel and source archive, built as `make wheel` builds them; what they hold, by name."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

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
