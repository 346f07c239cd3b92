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
MOST_NAMES = 51  # of `mh`: as many as one page shows a newcomer
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
        "import sys, manyheads as mh; mh.Head.parse('L3H7'); mh.ModelSpec; mh.errors.ShapeError; dir(mh);"
        f"print(*[name for name in {HEAVY} if name in sys.modules])"
    )
    assert in_fresh_python(program) == ""


def test_importing_is_quick():
    program = "import time; t = time.perf_counter(); import manyheads; print(time.perf_counter() - t)"
    assert min(float(in_fresh_python(program)) for _ in range(3)) < IMPORT_SECONDS


def test_every_public_name_is_there_once_with_a_docstring_and_stays():
    for name in manyheads.__all__:
        value = getattr(manyheads, name)
        assert value is getattr(manyheads, name) and name in dir(manyheads)
        assert name == "__version__" or value.__doc__, name
    assert len(set(manyheads.__all__)) == len(manyheads.__all__)
    assert not over_the_cap(manyheads.__all__), over_the_cap(manyheads.__all__)
    assert dir(manyheads) == sorted(manyheads.__all__)
    message = r"^module 'manyheads' has no attribute 'recrod'; it has load, record, .*\. Did you mean record\?$"
    with pytest.raises(AttributeError, match=message):
        _ = manyheads.recrod
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'; it has .*, __version__\.$"):
        _ = manyheads.zzz


def over_the_cap(names):
    """What to do where there are more names than `mh` has room for; "" where there are not."""
    if len(names) <= MOST_NAMES:
        return ""
    return (
        f"`manyheads` has {len(names)} public names, and room for {MOST_NAMES}: offer the new one at its package's "
        f"face (`from manyheads.PACKAGE import NAME`), or take one that fewer people need out of `__init__.py`."
    )


def test_too_many_public_names_are_told_with_what_to_do():
    assert over_the_cap(["name"] * MOST_NAMES) == ""
    message = over_the_cap(["name"] * (MOST_NAMES + 1))
    assert message.startswith(
        f"`manyheads` has {MOST_NAMES + 1} public names, and room for {MOST_NAMES}: offer the new one at its package's"
    )


def test_a_face_names_things_that_are_where_it_says():
    for path in PACKAGE.rglob("__init__.pyi"):
        package = import_module(".".join(path.parent.relative_to(PACKAGE.parent).parts))
        imports = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
        places = {alias.name: node.module for node in imports for alias in node.names}
        assert {*places} == {*package.__all__} - {"__version__"}, path
        for name, module in places.items():
            home = import_module(f"{package.__name__}.{module or name}")
            assert getattr(package, name) is (getattr(home, name) if module else home), f"{path}: {name}"


def test_no_package_exports_a_thing_named_like_its_own_submodule():
    """`from package import name` would mean one or the other by what was imported before."""
    for path in PACKAGE.rglob("__init__.py"):
        submodules = {file.stem for file in path.parent.glob("*.py")}
        submodules |= {file.parent.name for file in path.parent.glob("*/__init__.py")}
        package = import_module(".".join(path.parent.relative_to(PACKAGE.parent).parts))
        for name in {*getattr(package, "__all__", ())} & submodules:
            assert getattr(package, name) is import_module(f"{package.__name__}.{name}"), f"{path}: {name}"
