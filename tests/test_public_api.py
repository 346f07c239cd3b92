"""The front door: light to open, and everything it names is there."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import manyheads

PACKAGE = Path(manyheads.__file__).parent
IMPORT_SECONDS = 0.1  # what a shell prompt may wait for; it takes about 0.003
HEAVY = ("torch", "numpy", "transformers", "pandas", "matplotlib", "fastapi")


def in_fresh_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["manyheads", "manyheads.errors", "manyheads.heads", "manyheads.spec"])
def test_the_lower_floors_load_nothing_heavy(module):
    program = f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    assert in_fresh_python(program) == ""


def test_naming_heads_loads_nothing_heavy():
    program = (
        "import sys, manyheads as mh; mh.Head.parse('L3H7'); mh.ModelSpec; mh.ShapeError; dir(mh);"
        f"print(*[name for name in {HEAVY} if name in sys.modules])"
    )
    assert in_fresh_python(program) == ""


def test_importing_is_quick():
    program = "import time; t = time.perf_counter(); import manyheads; print(time.perf_counter() - t)"
    assert min(float(in_fresh_python(program)) for _ in range(3)) < IMPORT_SECONDS


@pytest.mark.parametrize("name", manyheads.__all__)
def test_every_public_name_is_there_with_a_docstring_and_stays(name):
    value = getattr(manyheads, name)
    assert value is getattr(manyheads, name)
    assert name in dir(manyheads)
    if name != "__version__":
        assert value.__doc__


def test_the_names_are_said_once_and_are_few():
    assert len(set(manyheads.__all__)) == len(manyheads.__all__) <= 62


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.pyi")), ids=lambda path: path.parent.name)
def test_a_face_names_things_that_are_where_it_says(path):
    package = import_module(".".join(path.parent.relative_to(PACKAGE.parent).parts))
    imports = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
    places = {alias.name: node.module for node in imports for alias in node.names}
    assert {*places} == {*package.__all__} - {"__version__"}
    for name, module in places.items():
        home = import_module(f"{package.__name__}.{module or name}")
        assert getattr(package, name) is (getattr(home, name) if module else home)


def test_a_misspelt_name_lists_the_right_ones():
    with pytest.raises(AttributeError, match=r"module 'manyheads' has no attribute 'recrod'; it has load, record, "):
        _ = manyheads.recrod


def public_init_files():
    return sorted(PACKAGE.rglob("__init__.py"))


@pytest.mark.parametrize("path", public_init_files(), ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_no_package_exports_a_thing_named_like_its_own_submodule(path):
    """`from package import name` would mean one or the other by what was imported before."""
    submodules = {file.stem for file in path.parent.glob("*.py")} | {
        file.parent.name for file in path.parent.glob("*/__init__.py")
    }
    package = import_module(".".join(path.parent.relative_to(PACKAGE.parent).parts))
    for name in {*getattr(package, "__all__", ())} & submodules:
        assert getattr(package, name) is import_module(f"{package.__name__}.{name}")
