"""Roles of one's own from a Python file: every public function in it is a pattern, its name the role's."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from manyheads.errors import FileAccessError, TextError


def read_patterns(path: Path) -> dict[str, Any]:
    """The file's own functions by name, run as Python runs a file. Errors: FileAccessError, TextError."""
    if not path.is_file():
        raise FileAccessError(f"--pattern {path}: there is no such file.")
    try:
        names = runpy.run_path(str(path), run_name="manyheads_pattern")
    except (Exception, SystemExit) as error:
        raise TextError(f"--pattern {path} cannot be run: {type(error).__name__}: {error}.") from error
    own = {
        name.replace("_", " "): value
        for name, value in names.items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", "") == "manyheads_pattern"
        and not isinstance(value, type)
    }  # fmt: skip
    if not own:
        raise TextError(
            f"--pattern {path} defines no function: write one that takes a text's tokens and returns, for each of "
            f"them, the places it should look at (docs/roles.md)."
        )
    return own
