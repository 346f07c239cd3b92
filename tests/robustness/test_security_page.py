"""SECURITY.md promises only what a test holds, and each test that it names is there."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def promises() -> list[str]:
    """The items of the lists under "What is promised"."""
    section = PAGE.split("\n## What is promised\n")[1].split("\n## ")[0]
    return re.split(r"\n- ", section)[1:]


@cache
def named_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_promise_names_the_tests_that_hold_it():
    assert len(promises()) >= 15
    for promise in promises():
        assert NAMED.search(promise), promise


def test_every_test_that_is_named_is_there():
    found = NAMED.findall(PAGE)
    assert len(found) >= 30
    for file, test in found:
        assert (ROOT / file).is_file(), file
        assert not test or test in named_in(file), f"{file}::{test}"


def test_nothing_that_is_never_loaded_is_imported_anywhere():
    """No pickle, no shelve, no yaml, no eval: each of them runs or may run what it reads."""
    unwanted = {"pickle", "dill", "shelve", "marshal", "yaml", "joblib", "cloudpickle"}
    readers = {"load", "read_pickle"}
    for path in (ROOT / "src/manyheads").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not unwanted & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in readers:
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "np.load", "numpy.load", "pd.read_pickle"), path
