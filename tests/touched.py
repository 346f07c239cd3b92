"""`python -m tests.touched`: the folders and files of tests of what was changed since main, a line each.

`src/manyheads/X/` is tested by `tests/X`, a module beside the packages by the files of its name, `web/` by
`tests/studio`; a file of tests is its own. `make test-touched` runs every case of them, the slow ones as well. What is
committed, what is not yet, and what git does not know yet count alike. Files that no test is named after are listed on
stderr: the fixed set and `make test-all` are theirs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

__all__ = ["changed", "tests_of"]

ROOT = Path(__file__).parents[1]
PACKAGE = PurePosixPath("src/manyheads")


def changed(root: Path = ROOT, since: str = "main") -> list[str]:
    """Files that differ from where `since` was left, and untracked ones. Errors: SystemExit with what git says."""
    paths = []
    for arguments in (["diff", "--name-only", "--merge-base", since], ["ls-files", "--others", "--exclude-standard"]):
        command = ["git", "-c", "safe.directory=*", "-c", "core.quotePath=false", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"cannot tell what was changed since {since}: {done.stderr.strip()}")
        paths += done.stdout.splitlines()
    return paths


def tests_of(paths: Iterable[str], root: Path = ROOT) -> tuple[list[str], list[str]]:
    """What tests the files at `paths`: folders and files that are there, none within another; and files without any."""
    places, untested = set(), []
    for path in map(PurePosixPath, paths):
        if own := list(_tests_of(path, root)):
            places.update(own)
        elif path.suffix == ".py" and path.is_relative_to(PACKAGE):
            untested.append(str(path))
    whole = {place for place in places if not places & set(place.parents)}
    return sorted(map(str, whole)), sorted(untested)


def _tests_of(path: PurePosixPath, root: Path) -> Iterable[PurePosixPath]:
    tests = PurePosixPath("tests")
    if path.is_relative_to("web"):
        yield tests / "studio"
    elif path.is_relative_to(PACKAGE):
        part = path.relative_to(PACKAGE)
        if len(part.parts) > 1 and (root / tests / part.parts[0]).is_dir():
            yield tests / part.parts[0]
        elif len(part.parts) == 1:
            for file in root.joinpath("tests").rglob(f"test_{part.stem.strip('_')}*.py"):
                yield PurePosixPath(file.relative_to(root).as_posix())
    elif path.is_relative_to(tests) and (root / path).exists():
        if path.match("test_*.py"):
            yield path
        elif path.parent != tests:
            yield tests / path.parts[1]


if __name__ == "__main__":
    found, without = tests_of(changed())
    if without:
        print(f"no tests of their own: {', '.join(without)}", file=sys.stderr)
    print(*found, sep="\n")
