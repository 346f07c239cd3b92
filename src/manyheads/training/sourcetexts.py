"""The Python standard library's own source, as found on this machine: a corpus that everybody who runs us has.

A module is held out by its own path, not by chance: the same modules on every machine and in every version, so that
no score is ever taken of a text that was trained on. Left out: tests, installed packages, what is no source but a
table (character maps, the help texts, this machine's build settings). Licence: PSF-2.0.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from manyheads.errors import FileAccessError

HELD_OUT = 16  # one module in so many
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "encodings", "pydoc_data"}
)
SKIPPED_START = "_sysconfigdata"
QUICK_FOLDERS = ("json/", "logging/", "http/")  # half a megabyte; each has a module that is held out


@dataclass(frozen=True)
class Source:
    """One module: its path below the library's folder with forward slashes, and its text."""

    path: str
    text: str

    @property
    def held_out(self) -> bool:
        return is_held_out(self.path)


def is_held_out(path: str) -> bool:
    """By the hash of the module's path alone.

    >>> is_held_out("argparse.py"), is_held_out("json/decoder.py")
    (False, False)
    """
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") % HELD_OUT == 0


def read_sources(root: Path | None = None) -> tuple[Source, ...]:
    """Every module in the order of its path. Errors: FileAccessError where there is no library."""
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    found = [Source(path, text) for path in module_paths(root) if (text := _text(root / path)).strip()]
    if not found:
        raise FileAccessError(f"{root} holds no Python source: the preset code trains on the standard library's.")
    return tuple(found)


def sources_for(quick: bool) -> tuple[Source, ...]:
    """The library on this machine; for a trial some folders of it."""
    return tuple(each for each in read_sources() if not quick or each.path.startswith(QUICK_FOLDERS))


def module_paths(root: Path) -> list[str]:
    """Paths of the modules below `root`, sorted, forward slashes."""
    paths = []
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if each not in SKIPPED_FOLDERS]
        inside = Path(folder).relative_to(root)
        paths += [
            (inside / file).as_posix() for file in files if file.endswith(".py") and not file.startswith(SKIPPED_START)
        ]
    return sorted(paths)


def data_digest(sources: tuple[Source, ...]) -> str:
    """A digest of every path and text: which data a recipe was cooked with."""
    digest = hashlib.sha256()
    for each in sources:
        digest.update(f"{each.path}\0{each.text}\0".encode())
    return digest.hexdigest()


def _text(path: Path) -> str:
    """As UTF-8; one of another encoding, or unreadable, is left out as empty, as whoever lacks it would."""
    try:
        return path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError):
        return ""
