"""Every package that the code imports is one that the metadata asks for, or that one of those asks for."""

import ast
import functools
import sys
from importlib.metadata import distribution, packages_distributions, requires

import pytest

from .building import PACKAGE
from .environments import closure_of

OPTIONAL = {
    "soundfile",  # asked for by name, with the line to type, where a sound file is no .wav
    "lightning",  # the extra of that name, for `manyheads.lightning`, which says so where it is missing
    "pytorch_lightning",  # ... the same under its older name
    "triton",  # comes with torch where there is a GPU; without it maps are read by tiles, which is said
}


def imported(folder, besides=()):
    """Top-level names of packages of others, and a file that imports each."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        if any(each in path.parts for each in besides):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            else:
                names = [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found |= {name.partition(".")[0]: path.name for name in names}
    return {name: file for name, file in found.items() if name not in (*sys.stdlib_module_names, "manyheads")}


distributions = functools.cache(packages_distributions)  # reads the metadata of all that is installed


@pytest.mark.parametrize(("folder", "besides", "extras"), [("", ("studio",), ()), ("studio", (), ("studio",))])
@pytest.mark.sampled(1)
def test_what_is_imported_is_asked_for(folder, besides, extras):
    by_module, asked = distributions(), closure_of(requires("manyheads") or [], extras)
    asked_names = {distribution(name).metadata["Name"] for name in asked}
    found = imported(PACKAGE / folder, besides)
    assert len(found) > 4
    unasked = {name: file for name, file in found.items() if name not in OPTIONAL
               and not asked_names & set(by_module.get(name, ()))}  # fmt: skip
    assert unasked == {}
