"""Packages taken out of a process's sight, and out of that of its children, as if nobody had installed them."""

import os
from pathlib import Path

SITE = """
import os, sys
from importlib.machinery import PathFinder

hidden = set(os.environ["HIDDEN_PACKAGES"].split())


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, path, target)

    @staticmethod
    def find_distributions(*given, **named):
        found = PathFinder.find_distributions(*given, **named)
        return (each for each in found if each.metadata["Name"] not in hidden)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


def without(folder: Path, *names: str, **variables: str) -> dict[str, str]:
    """The environment of a process that finds none of these, neither as a package of pip's nor as a module."""
    (folder / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    ours = {"PYTHONPATH": str(folder), "HIDDEN_PACKAGES": " ".join(names), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **ours, **variables}
