"""The newest torch and transformers with which all of `make test-versions` passes: the table's, held to it by a test.

A range in pyproject.toml is wider than what was tried, because others release every few days. What is newer is no
error: the guard checks every call, and refuses what it cannot follow. It is said, though, where results are explained.
"""

from __future__ import annotations

import re
import sys

NEWEST_TESTED = {"torch": "2.14", "transformers": "5.24"}


def newer_than_tested(name: str, installed: str) -> str:
    """The sentence for a version that is newer than what was tested, "" for any other. Patch releases do not count."""
    tested = NEWEST_TESTED.get(name, "")
    release = re.match(r"(\d+)\.(\d+)", installed)
    if not tested or release is None or tuple(map(int, release.groups())) <= tuple(map(int, tested.split("."))):
        return ""
    return f"{name} {release[0]} is newer than what was tested ({tested})"


def untested_here() -> tuple[str, ...]:
    """The sentences for what this process has imported; none where it was tested, or is older than what was."""
    # What is imported, not what is installed: a package on the path needs no metadata, and reading that takes time.
    versions = {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in NEWEST_TESTED}
    return tuple(filter(None, (newer_than_tested(name, installed) for name, installed in versions.items())))
