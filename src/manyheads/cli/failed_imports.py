"""Which package made an import fail: an exception, read as "this package is missing" or "this one is broken".

A package that is installed and broken may raise any exception when it is imported. Then the traceback shows it: a
module of that package was being run, and nothing of manyheads was running further in. What our own code raised stays
an error of ours. Only packages that our metadata names are judged, and none is imported for it.

`main` asks when typer or rich is what is missing, so neither is imported here.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from traceback import walk_tb
from types import MappingProxyType

from manyheads.base import first_line

NAME, CORE = "manyheads", "manyheads-core"
"""The package, and the part of it that needs no torch (docs/decisions/020-two-wheels.md): either may be installed."""
MODULES = MappingProxyType({"markdown-it-py": "markdown_it", CORE: NAME})  # whose name differs between pip and Python
BACKEND = "MPLBACKEND"


@dataclass(frozen=True)
class Failed:
    """`package`, by pip's name, is `missing`, or is installed and cannot be imported; `error` is the exception."""

    package: str
    missing: bool
    error: BaseException

    @property
    def remedy(self) -> str:
        """The command that installs the package in the range that manyheads needs, or installs it again."""
        from importlib.metadata import PackageNotFoundError, version  # a fifth of a command's start, for errors alone

        try:
            installed = version(self.package).partition("+")[0]  # what follows + names the build
        except PackageNotFoundError:
            if installed_as() == CORE and self.package not in spans():
                return f"pip install {NAME}"
            return f'pip install "{self.package}{spans().get(self.package, "")}"'
        return f'pip install --force-reinstall "{self.package}=={installed}"'


def failed_import(error: BaseException) -> Failed | None:
    """The package of others whose import failed; None where the exception is of another kind."""
    name = getattr(error, "name", None) if isinstance(error, ImportError) else None
    top = (name or "").partition(".")[0]
    if top == NAME:
        return None
    if isinstance(error, ImportError) and error.__cause__ is not None:  # transformers and pandas wrap what they met
        cause = failed_import(error.__cause__)
        if cause is not None:
            return cause
    declared = {module_of(package): package for package in spans()}
    absent = top == name or sys.modules.get(top, sys) is None  # None: Python's own way to say that there is none
    if top and absent and isinstance(error, ModuleNotFoundError):
        return Failed(declared.get(top, top), True, error)
    # Outermost first, by top name: the modules whose bodies were running, further in than anything of ours.
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    tops = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in frames]
    last_of_ours = max((index for index, name in enumerate(tops) if name == NAME), default=-1)
    running = [
        name
        for frame, name in list(zip(frames, tops, strict=True))[last_of_ours + 1 :]
        if frame.f_code.co_name == "<module>" and name in declared
    ]
    broken = top if top in declared else running[-1] if running else ""
    if broken:
        return Failed(declared[broken], False, error)
    return None


def refused_backend(error: BaseException) -> str:
    """The message for a matplotlib that does not start with this MPLBACKEND; "" for any other exception."""
    value = os.environ.get(BACKEND)
    if value and isinstance(error, ValueError) and str(error).startswith(f"Key backend: {value!r}"):
        why = f"{value!r} is not a backend that matplotlib knows, so matplotlib does not start"
        return f"{BACKEND} is wrong: {why}. Unset it, since no picture of manyheads needs it, or set agg."
    return ""


def module_of(package: str) -> str:
    """The module that a package, by its name for pip, is imported as."""
    return MODULES.get(package, package.replace("-", "_"))


def installed_as() -> str:
    """The distribution that is installed here: `NAME`, `CORE` where that is all, "" among bare sources."""
    from importlib.metadata import PackageNotFoundError, distribution  # as above

    for name in (NAME, CORE):
        with suppress(PackageNotFoundError):
            distribution(name)
            return name
    return ""


def requirements() -> list[str]:
    """What our metadata asks for; nothing where manyheads is not installed."""
    from importlib.metadata import distribution  # as above

    return (distribution(name).requires or []) if (name := installed_as()) else []


@cache
def spans() -> Mapping[str, str]:
    """Every package that our metadata names, extras included, and the versions of it that are needed (">=2.11,<3").

    Empty where manyheads is not installed.
    """
    lines = requirements()
    # name, [extras], versions; then a marker, such as the extra of ours that needs it
    parts = [re.findall(r"([\w.-]+)(?:\[.*?\])?([^;]*)", line)[0] for line in lines]
    # >= before <
    return MappingProxyType({name: ",".join(sorted(span.strip().split(","), reverse=True)) for name, span in parts})


def in_words(error: BaseException) -> str:
    """An exception in one line: its kind and the first line of its message, without anything that a terminal obeys."""
    line = " ".join(first_line(error).split()).rstrip(".")
    line = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    return f"{type(error).__name__}{f': {line}' if line else ''}"
