"""Which packages are here, held to what manyheads' own metadata asks for: ranges are said once, in pyproject.toml.

Only metadata is read and nothing is imported, so a package that is missing, broken or of another version is found
before it is met. Whether the heavy ones can be imported is tried elsewhere, in a process of its own (`trials`).
"""

from __future__ import annotations

import base64
import hashlib
import platform
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING

import manyheads
from manyheads.doctor.findings import ABSENT, WRONG, Finding, shown

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = "manyheads"
SHOWN = ("torch", "transformers", "numpy")  # in lines of their own; of the others only those that are wrong
MISSING = "not installed"
FOR_CHECKOUTS = ("dev", "docs")  # extras that are of no use without the sources
INSTALL_ANEW = f"Install it anew: pip install --force-reinstall --no-deps {NAME}"


def checkout() -> Path | None:
    """The folder of the sources that this package is run from; None where it is installed."""
    root = Path(manyheads.__file__).parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "tests").is_dir() else None


def own() -> Iterator[Finding]:
    """manyheads itself: where it lies, and whether its files are those that were installed."""
    place, root = shown(Path(manyheads.__file__).parent), checkout()
    said = f"{manyheads.__version__}, {f'the sources in {shown(root)}' if root else place}"
    try:
        installed = version(NAME)
    except PackageNotFoundError:
        yield Finding(NAME, f"{said}, which is not installed, so what it needs is not known", WRONG, _installing())
        return
    if installed == manyheads.__version__:
        yield Finding(NAME, said)
    else:
        yield Finding(NAME, f"{said}, but what is installed calls itself {installed}", WRONG, _installing())
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
    record = [file for file in distribution(NAME).files or () if file.parts[0] == NAME and file.hash]
    return [str(file) for file in record if not _as_written(Path(str(file.locate())), file.hash)], len(record)


def _as_written(path: Path, written: object) -> bool:
    try:
        digest = hashlib.new(getattr(written, "mode", "sha256"), path.read_bytes()).digest()
    except OSError:
        return False
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") == getattr(written, "value", "")


def python() -> Iterator[Finding]:
    """The interpreter, held to the range of the metadata."""
    from packaging.specifiers import SpecifierSet

    said = f"{platform.python_version()}, {shown(sys.executable)}"
    asked = distribution(NAME).metadata["Requires-Python"]
    if SpecifierSet(asked).contains(platform.python_version(), prereleases=True):
        yield Finding("python", said)
    else:
        yield Finding("python", f"{said}, but {asked} is needed", WRONG, "Make an environment with another Python.")


@cache
def requirements(extra: str = "") -> tuple[Requirement, ...]:
    """What manyheads needs here, or an extra adds, by its metadata. Raises PackageNotFoundError, ImportError."""
    from packaging.requirements import Requirement

    asked = [Requirement(line) for line in distribution(NAME).requires or ()]
    always = [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    if not extra:
        return tuple(always)
    return tuple(
        each for each in asked if each not in always and each.marker and each.marker.evaluate({"extra": extra})
    )


def imported() -> tuple[str, ...]:
    """The packages whose import is worth a trial: of a checkout's own extras, none; those that others need first."""
    first = tuple(reversed(SHOWN))
    try:
        wanted = list(requirements())
        for extra in distribution(NAME).metadata.get_all("Provides-Extra") or ():
            if extra not in FOR_CHECKOUTS:
                wanted += requirements(extra)
    except Exception:  # said by `own` and by `python`
        return first
    return tuple(dict.fromkeys([*first, *(each.name for each in wanted)]))


def needed() -> Iterator[Finding]:
    """What manyheads cannot do without."""
    others = []
    for asked in requirements():
        finding = judged(asked)
        if finding.state == WRONG or asked.name in SHOWN:
            yield finding
        else:
            others.append(f"{asked.name} {version(asked.name)}")
    if others:
        yield Finding("others", f"within their ranges: {', '.join(others)}")


def extras() -> Iterator[Finding]:
    """Each extra: whole, or what to type to have it. Of a checkout's own only in a checkout."""
    for extra in distribution(NAME).metadata.get_all("Provides-Extra") or ():
        if extra in FOR_CHECKOUTS and checkout() is None:
            continue
        found = [judged(each) for each in requirements(extra)]
        absent = [each for each in found if each.state == WRONG and each.found == MISSING]
        wrong = [each for each in found if each.state == WRONG and each not in absent]
        if absent:
            lacking = ", ".join(each.subject for each in absent)
            to_type = f'pip install "{NAME}[{extra}]"' if checkout() is None else f'pip install -e ".[{extra}]"'
            yield Finding(f"[{extra}]", f"not here: {lacking}", ABSENT, f"To have it: {to_type}")
        elif not wrong:
            here = ", ".join(f"{each.subject} {version(each.subject)}" for each in found[:4])
            yield Finding(f"[{extra}]", f"here: {here}{', ...' if len(found) > 4 else ''}")
        yield from wrong


def judged(asked: Requirement) -> Finding:
    """One requirement: whether it is here, and in its range."""
    span = ",".join(sorted(map(str, asked.specifier), reverse=True))  # >= before <
    remedy = f'pip install "{asked.name}{span}"{", the build you want" if asked.name == "torch" else ""}'
    try:
        here = version(asked.name)
    except PackageNotFoundError:
        return Finding(asked.name, MISSING, WRONG, remedy)
    if asked.specifier.contains(here, prereleases=True):
        return Finding(asked.name, f"{here}, within {span}")
    return Finding(asked.name, f"{here}, but {span} is needed", WRONG, remedy)
