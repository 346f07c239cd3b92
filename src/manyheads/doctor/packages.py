"""Which packages are installed, compared with manyheads' own metadata: ranges stand once, in pyproject.toml.

Only metadata is read and nothing is imported, so a package that is missing, broken or of another version is found
before it is needed. Whether the heavy ones can be imported is tried in a process of its own (`trials`).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import platform
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING

import manyheads
from manyheads.base import newer_than_tested
from manyheads.doctor.findings import ABSENT, NOTE, WRONG, Finding, shown

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = "manyheads"
SHOWN = ("torch", "transformers", "numpy")  # in lines of their own; of the others only those that are wrong
MISSING = "not installed"
FOR_CHECKOUTS = ("dev", "docs")  # extras that are of no use without the sources
NEWER = "Should anything be refused or fail, try an older one, and please report it."
INSTALL_ANEW = f"Install it anew: pip install --force-reinstall --no-deps {NAME} (in a checkout: --no-deps .)"


def checkout() -> Path | None:
    """The folder of the sources that this package is run from; None where it is installed."""
    root = Path(manyheads.__file__).parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "tests").is_dir() else None


def own() -> Iterator[Finding]:
    """manyheads itself: where it lies, and whether its files are those that were installed."""
    place, root = shown(Path(manyheads.__file__).parent), checkout()
    words = f"{manyheads.__version__}, {f'the sources in {shown(root)}' if root else place}"
    try:
        installed = version(NAME)
    except PackageNotFoundError:
        yield Finding(NAME, f"{words}, which is not installed, so what it needs is not known", WRONG, _installing())
        return
    if installed == manyheads.__version__:
        yield Finding(NAME, words)
    else:
        yield Finding(NAME, f"{words}, but what is installed calls itself {installed}", WRONG, _installing())
    damaged, count = damaged_files()
    if damaged:
        few = ", ".join(damaged[:3]) + (", ..." if len(damaged) > 3 else "")
        yield Finding("its files", f"{len(damaged)} of {count} missing or changed: {few}", WRONG, f"{INSTALL_ANEW}.")
    elif count:
        yield Finding("its files", f"{count}, as they were installed")


def _installing() -> str:
    return "Install it: pip install -e ." if checkout() else f"{INSTALL_ANEW}."


def damaged_files() -> tuple[list[str], int]:
    """Of the files that came with the package, those that are not as the installer wrote down; and how many it did."""
    package, damaged, count = distribution(NAME), [], 0
    # The record itself, since Python 3.12's `files` leaves out those that are missing. Hashed anew, as pip does when it
    # installs: sizes and dates say nothing of a damaged byte.
    for name, written, *_ in csv.reader((package.read_text("RECORD") or "").splitlines()):
        if not written or not name.startswith(f"{NAME}/"):
            continue
        count += 1
        mode, _, value = written.partition("=")
        try:
            digest = hashlib.new(mode, Path(str(package.locate_file(name))).read_bytes()).digest()
        except OSError:
            damaged.append(name)
            continue
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != value:
            damaged.append(name)
    return damaged, count


def python() -> Iterator[Finding]:
    """The interpreter, compared with the range of the metadata."""
    from packaging.specifiers import SpecifierSet

    words = f"{platform.python_version()}, {shown(sys.executable)}"
    required = distribution(NAME).metadata["Requires-Python"]
    if SpecifierSet(required).contains(platform.python_version(), prereleases=True):
        yield Finding("python", words)
    else:
        yield Finding("python", f"{words}, but {required} is needed", WRONG, "Make an environment with another Python.")


@cache
def requirements(extra: str = "") -> tuple[Requirement, ...]:
    """What manyheads needs on this machine, or an extra adds, by its metadata. Raises PackageNotFoundError,
    ImportError."""
    from packaging.requirements import Requirement

    declared = [Requirement(line) for line in distribution(NAME).requires or ()]
    always = [entry for entry in declared if entry.marker is None or entry.marker.evaluate({"extra": ""})]
    if not extra:
        return tuple(always)
    return tuple(
        entry for entry in declared if entry not in always and entry.marker and entry.marker.evaluate({"extra": extra})
    )


def imported() -> tuple[str, ...]:
    """The packages whose import is worth a trial: of a checkout's own extras, none; those that others need first."""
    first = tuple(reversed(SHOWN))
    try:
        entries = list(requirements())
        for extra in distribution(NAME).metadata.get_all("Provides-Extra") or ():
            if extra not in FOR_CHECKOUTS:
                entries += requirements(extra)
    except Exception:  # `own` and `python` report it
        return first
    return tuple(dict.fromkeys([*first, *(entry.name for entry in entries)]))


def needed() -> Iterator[Finding]:
    """What manyheads cannot do without."""
    in_range = []
    for requirement in requirements():
        finding = judged(requirement)
        if finding.state == WRONG or requirement.name in SHOWN:
            yield finding
        else:
            in_range.append(f"{requirement.name} {version(requirement.name)}")
    if in_range:
        yield Finding("others", f"within their ranges: {', '.join(in_range)}")


def extras() -> Iterator[Finding]:
    """Each extra: whole, or what to type to have it. Of a checkout's own only in a checkout."""
    for extra in distribution(NAME).metadata.get_all("Provides-Extra") or ():
        if extra in FOR_CHECKOUTS and checkout() is None:
            continue
        findings = [judged(requirement) for requirement in requirements(extra)]
        absent = [finding for finding in findings if finding.state == WRONG and finding.found == MISSING]
        wrong = [finding for finding in findings if finding.state == WRONG and finding not in absent]
        if absent:
            lacking = ", ".join(finding.subject for finding in absent)
            to_type = f'pip install "{NAME}[{extra}]"' if checkout() is None else f'pip install -e ".[{extra}]"'
            yield Finding(f"[{extra}]", f"not here: {lacking}", ABSENT, f"To have it: {to_type}")
        elif not wrong:
            first = ", ".join(f"{finding.subject} {version(finding.subject)}" for finding in findings[:4])
            yield Finding(f"[{extra}]", f"here: {first}{', ...' if len(findings) > 4 else ''}")
        yield from wrong


def judged(requirement: Requirement) -> Finding:
    """One requirement: whether it is installed, and in its range."""
    name = requirement.name
    span = ",".join(sorted(map(str, requirement.specifier), reverse=True))  # >= before <
    remedy = f'pip install "{name}{span}"{", the build you want" if name == "torch" else ""}'
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Finding(name, MISSING, WRONG, remedy)
    # a pre-release within the range is somebody's own choice, not a mistake
    if requirement.specifier.contains(installed, prereleases=True):
        newer = newer_than_tested(name, installed)
        words = f"{installed}, within {span}"
        return Finding(name, f"{words}; {newer}", NOTE, NEWER) if newer else Finding(name, words)
    return Finding(name, f"{installed}, but {span} is needed", WRONG, remedy)
