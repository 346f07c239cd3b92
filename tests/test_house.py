"""Every public name and every option of the command is met by a test that `make test` always runs; faces are narrow.

`make check` runs these, as it runs what else judges the source alone.
Nothing is run to know it: tests are read as text. A test names what its own lines name, and what the helpers, tables
and fixtures name that it uses, in whichever file of tests they stand. Slow tests and slow cases of a test do not count.
A name of a package's face that no test names at all is a part of what others return, and met with them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

import manyheads
from manyheads.cli.commands import all_commands

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parent
PACKAGE = Path(manyheads.__file__).parent
CODE_FOLDERS = ("tests", "benchmarks", "docs", "examples", "tools")
BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
parsed = cache(ast.parse)


class Place(NamedTuple):
    """A statement at the top level of a file: the names in it, in full, its options, and what may be a command."""

    names: frozenset[str]
    options: frozenset[str]
    commands: frozenset[str]
    is_test: bool


class Suite:
    """Files of tests by the name of their module; `slow`: with what is marked slow."""

    def __init__(self, sources: dict[str, str], slow: bool = False) -> None:
        self.slow = slow
        self.places: dict[str, list[Place]] = {}
        for module, text in sources.items():
            tree = parsed(text)
            imports = dict(imported(tree, module))
            marks = [part for node in tree.body if "pytestmark" in bound(node) for part in ast.walk(node)]
            runs = slow or not any(dotted(part) == "pytest.mark.slow" for part in marks)
            for statement in tree.body:
                place = self.read(statement, module, imports, runs)
                for name in bound(statement):
                    self.places.setdefault(f"{module}.{name}", []).append(place)

    def read(self, statement: ast.stmt, module: str, imports: dict[str, str], runs: bool) -> Place:
        nodes = list(self.nodes(statement))
        names = {name for node in nodes if (name := dotted(node))}
        firsts = {name: name.partition(".")[0] for name in names}
        texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        return Place(
            frozenset(imports.get(first, f"{module}.{first}") + name[len(first) :] for name, first in firsts.items()),
            frozenset(option for text in texts for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)),
            frozenset(word for node in nodes if (word := command_in(node))),
            runs and bool(nodes) and isinstance(statement, BLOCKS) and statement.name.startswith(("test", "Test")),
        )

    def nodes(self, statement: ast.AST) -> Iterator[ast.AST]:
        """The statement and all within, but for what is slow: a test, or a case (`pytest.param(..., marks=...)`)."""
        left = [statement]
        while left:
            node = left.pop()
            if self.slow or not is_slow(node):
                yield node
                left += ast.iter_child_nodes(node)

    def met(self) -> Iterator[set[Place]]:
        """Of each test, its own place and all that it uses, and that those use."""
        for places in self.places.values():
            if any(place.is_test for place in places):
                used, left = {*places}, [*places]
                while left:
                    more = {place for name in left.pop().names for place in self.home(name)} - used
                    used |= more
                    left += more
                yield used

    def home(self, name: str) -> tuple[Place, ...]:
        """Where a name is defined: there, or, of a fixture, in a conftest.py of the folder or of one above it."""
        parts = name.split(".")
        for end in range(len(parts), 1, -1):
            if (prefix := ".".join(parts[:end])) in self.places:
                return tuple(self.places[prefix])
        fixtures = (".".join([*parts[:end], "conftest", parts[-1]]) for end in range(len(parts) - 2, 0, -1))
        return next((tuple(self.places[name]) for name in fixtures if name in self.places), ())


def is_slow(node: ast.AST) -> bool:
    if isinstance(node, BLOCKS):
        return any(dotted(getattr(mark, "func", mark)) == "pytest.mark.slow" for mark in node.decorator_list)
    if isinstance(node, ast.Call) and dotted(node.func) == "pytest.param":
        return any(dotted(part) == "pytest.mark.slow" for keyword in node.keywords for part in ast.walk(keyword))
    return False


def imported(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Names that imports bind, anywhere in a file, and what of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            for alias in node.names:
                yield alias.asname or alias.name, ".".join([*above, *filter(None, [node.module]), alias.name])


def bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, BLOCKS):
        return {statement.name}
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return {node.id for node in stored}


def dotted(node: ast.AST) -> str:
    """`mh.attention.attend`; an argument's name, too, since a fixture is asked for by one; "" for what is not a
    name."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return (before := dotted(value)) and f"{before}.{name}"
    return ""


def command_in(node: ast.AST) -> str:
    """The text that begins a call's arguments or a list, as a command does; the first word of a text of several."""
    match node:
        case ast.Call(args=[ast.Constant(value=str(text)), *_]) | ast.List(elts=[ast.Constant(value=str(text)), *_]):
            return text.partition(" ")[0]
        case ast.Tuple(elts=[ast.Constant(value=str(text)), *_]):
            return text.partition(" ")[0]
        case ast.Constant(value=str(text)) if " " in text:
            return text.removeprefix("manyheads ").partition(" ")[0]
    return ""


# -------------------------------------------------------------------------------------------------- what is to be met


def faces() -> dict[str, str]:
    """Every name of every face, `manyheads.nn.KVCache`, and where it is from, `manyheads.nn.caches.KVCache`."""
    homes = {}
    for path in PACKAGE.rglob("__init__.pyi"):
        package = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    homes[f"{package}.{alias.name}"] = ".".join(filter(None, [package, node.module, alias.name]))
    return homes


def named(tests: Suite, homes: dict[str, str]) -> set[str]:
    """Names of faces that tests name, from whichever module they import them."""
    origins = set()
    for name in {name for places in tests.met() for place in places for name in place.names}:
        so_far, *rest = name.split(".")
        for part in rest:
            origins.add(so_far := origin(f"{so_far}.{part}", homes))
    return {name for name in homes if origin(name, homes) in origins}


def origin(name: str, homes: dict[str, str]) -> str:
    while homes.get(name, name) != name:
        name = homes[name]
    return name


def options() -> set[tuple[str, str]]:
    """Every command with every option that it has; of a pair such as --browser/--no-browser both."""
    line = typer.Typer()
    for command in all_commands():
        line.command()(command)
    commands = typer.main.get_command(line).commands  # type: ignore[attr-defined]
    return {
        (name, option)
        for name, command in commands.items()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    }


def typed(tests: Suite) -> set[tuple[str, str]]:
    """Pairs of a command and an option that stand in one test."""
    names = {command.__name__ for command in all_commands()}
    pairs = set()
    for places in tests.met():
        commands = {command for place in places for command in place.commands} & names
        pairs |= {(command, option) for place in places for option in place.options for command in commands}
    return pairs


FEW = 24  # names of a face, the front door's aside: one that needs more is two packages
MADE = ("house.md", "tree.md", "lab.md")  # pages that list every name there is
CODE = re.compile(r"```.*?```|`[^`\n]+`|^::: \S+", re.DOTALL | re.MULTILINE)


def users(homes: dict[str, str]) -> dict[str, set[str]]:
    """Each name of a face, by where it is from, and the modules that name it, if only in a text of it alone."""
    root, found = TESTS.parent, {}
    paths = [*PACKAGE.rglob("*.py"), *(path for folder in CODE_FOLDERS for path in (root / folder).rglob("*.py"))]
    for path in paths:
        inside = path.relative_to(PACKAGE.parent if PACKAGE in path.parents else root)
        module = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
        tree = parsed(path.read_text(encoding="utf-8"))
        imports = dict(imported(tree, module))
        for node in ast.walk(tree):
            name = dotted(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
            if isinstance(node, ast.Constant) and re.fullmatch(r"[\w.]+[.:]\w+", str(node.value)):
                name = str(node.value).replace(":", ".")  # as in a table of what is imported when it is named
            first = name.partition(".")[0]
            so_far, *rest = (imports.get(first, first) + name[len(first) :]).split(".")
            for part in rest:
                so_far = origin(f"{so_far}.{part}", homes)
                found.setdefault(so_far, set()).add(module)
    return found


def on_pages() -> set[str]:
    """Every word that stands in code on a page of the documentation, or of a lesson."""
    root = TESTS.parent
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *PACKAGE.rglob("*.md")]
    texts = [path.read_text(encoding="utf-8") for path in pages if path.name not in MADE]
    return {word for text in texts for code in CODE.findall(text) for word in re.findall(r"\w+", code)}


# ------------------------------------------------------------------------------------------------------------- claims


@cache
def sources() -> dict[str, str]:
    files = {path: path.relative_to(TESTS.parent).with_suffix("") for path in sorted(TESTS.rglob("*.py"))}
    return {".".join(name.parts): path.read_text(encoding="utf-8") for path, name in files.items()}


def test_public_names_are_named_by_tests_that_always_run():
    homes = faces()
    always = named(Suite(sources()), homes)
    front = {f"{manyheads.__name__}.{name}" for name in manyheads.__all__} - {"manyheads.__version__"}
    unmet, only_slow = front - always, named(Suite(sources(), slow=True), homes) - always
    assert not unmet and not only_slow, "no test that always runs names these"


def test_faces_have_few_names_and_each_is_used_behind_another_door():
    homes, front = faces(), manyheads.__name__
    names = [name for name in homes if name.rpartition(".")[0] != front]
    counts = Counter(name.rpartition(".")[0] for name in names)
    known, written = users(homes), on_pages()
    unused = []
    for name in names:
        face, _, leaf = name.rpartition(".")
        outside = {user for user in known.get(origin(name, homes), ()) if not f"{user}.".startswith(f"{face}.")}
        unused += [name] * (not outside and leaf not in written)
    assert not unused and names, "no other package, no test and no page names these: take them out of their stubs"
    wide = {face: count for face, count in counts.items() if count > FEW}
    assert not wide, "a face that needs so many names is two packages"


def test_options_are_typed_in_tests_that_always_run():
    untyped = options() - typed(Suite(sources()))
    assert not untyped and len(options()) > 200, "no test that always runs types these"


SMALL = {
    "tests.conftest": """
import pytest
from manyheads.cli.main import main

@pytest.fixture
def sized():
    return lambda *options: main(["size", *options])
""",
    "tests.test_sizes": """
import manyheads as mh
import pytest
from manyheads.nn import KVCache
from tests.helpers import recorded

TABLE = [("--batch", 3), pytest.param("--memory", 4, marks=pytest.mark.slow)]

@pytest.mark.parametrize("option, value", TABLE)
def test_size(sized, option, value):
    sized(option)
    assert recorded()

@pytest.mark.slow
def test_whole_model(sized):
    sized("--dtype")
    mh.effect(mh.load("minilm"), KVCache(3))
""",
    "tests.test_page": """
import pytest
from manyheads import prune_heads
pytestmark = pytest.mark.slow

def test_look(run):
    run("look", "--html", prune_heads)
""",
    "tests.helpers": """
import manyheads

def recorded():
    return manyheads.record("a model")

def unused():
    return manyheads.measure
""",
}


def test_what_slow_tests_alone_name_is_missed_and_helpers_fixtures_and_tables_count():
    homes = faces()
    always, all_of_them = Suite(SMALL), Suite(SMALL, slow=True)
    assert typed(always) == {("size", "--batch")}
    assert typed(all_of_them) == {("size", "--batch"), ("size", "--memory"), ("size", "--dtype"), ("look", "--html")}
    names = {"manyheads.record", "manyheads.inputs.record"}
    assert named(always, homes) == names
    assert named(all_of_them, homes) - names == {
        *("manyheads.load", "manyheads.models.load", "manyheads.KVCache", "manyheads.nn.KVCache"),
        *("manyheads.effect", "manyheads.interventions.effect"),
        *("manyheads.prune_heads", "manyheads.interventions.prune_heads"),
    }
