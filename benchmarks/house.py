"""How easily the source is entered and walked, in figures: `python -m benchmarks.house [--src DIR] [--json] [--walk]`.

Everything but `--walk` is read from the source text with `ast` and `tokenize`. How each figure is counted:

- Files of a folder: its modules, without `__init__.py`.
- Code lines: lines with a token of code; blank lines, lines of comment alone and docstrings are none. Stubs (`.pyi`)
  have rows of their own and are in no other figure.
- Imports: lines of `import` and `from` statements, as a share of code lines.
- A module imported by one other only: by one module of the package, at any depth of its code. `from manyheads.nn
  import attend` imports the module that defines `attend` where the stub `nn/__init__.pyi` names it (`from .attention
  import attend`), else `manyheads/nn/__init__.py`. What an `__init__.py` or a stub imports does not count.
- Private helpers used once: functions at the top level of a module whose names begin with `_`, and which their own
  module names in one place, recursion aside. Methods are counted in the row after.
- Deferred imports: statements in functions that import modules of ours. A reason is a comment on the statement, or on
  the line before it.
- Circles: groups of modules of one package that import each other, directly or by way of others. Imports in functions
  and under TYPE_CHECKING count, those of `__init__.py` do not.
- Pronoun-like names: places that bind one of PRONOUNS, as a share of all places that bind a variable: assignment,
  `for`, `with`, `except`, the walrus, `match`, comprehensions and arguments; not self, cls, `_`, dunder names, and the
  fields of classes.
- Files a reader opens (`--walk`, which needs the package's dependencies): files of which at least GLANCED lines run on
  the way to a result, after the model is loaded; fewer lines are a call whose name says enough. The first is
  `manyheads look` without what runs in `cli/` or in loading; the others are `measure(lm, texts, ["entropy"])` and
  `prune_heads(lm, heads).save(folder)`.

`--worst` is a check instead: it lists where one of the WORST names is assigned outside a comprehension, and where a
tensor is made without a device in a package that meets a model's tensors (MEETS); it ends with 1 if there is such a
place. Such a tensor is the host's, wherever the model is. Where that is meant, `device="cpu"` says it, or a line
`# device: ...` with the reason for all that its file makes. Random numbers of a generator are the generator's.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = "manyheads"
WORST = {"each", "found", "said", "asked", "told", "mine", "given", "wanted", "kept", "here", "at"}
PRONOUNS = WORST | {
    *("what", "which", "who", "one", "ones", "those", "these", "such", "some", "both", "same", "other", "others"),
    *("own", "ours", "theirs", "whole", "rest", "there", "much", "so", "as_is"),
    *("got", "held", "holds", "seen", "shown"),
}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
GLANCED = 12  # lines; with it, the walks of the house before its second plan count about what its readers opened
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


MEETS = {"nn", "recording", "models", "statistics", "interventions", "roles", "compat", "studio"}
FACTORIES = {
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn"),
    *("randperm", "tensor", "zeros"),
}


class Import(NamedTuple):
    """A module of ours that a statement imports; whether that stands in a function, and has a comment as its reason."""

    module: str
    line: int
    deferred: bool
    has_reason: bool


class Source:
    """A Python file: its syntax tree, and which of its lines are what."""

    def __init__(self, path: Path, src: Path) -> None:
        parts = path.relative_to(src).with_suffix("").parts
        self.path, self.is_package = path, parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.nodes = list(ast.walk(self.tree))
        self.classes = [node for node in self.nodes if isinstance(node, ast.ClassDef)]
        self.import_nodes = [node for node in self.nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
        self.in_functions = below(node for node in self.nodes if isinstance(node, FUNCTIONS))
        self.lines = len(self.text.splitlines())
        self.code: set[int] = set()
        self.comments: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                self.comments.add(token.start[0])
            elif token.type not in NO_CODE:
                self.code.update(range(token.start[0], token.end[0] + 1))
        for node in self.nodes:
            if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node, clean=False):
                self.code -= lines_of(node.body[0])

        self.import_lines = len(set().union(*map(lines_of, self.import_nodes)))

    def imports(self, modules: set[str], faces: dict[str, dict[str, str]]) -> Iterator[Import]:
        """The modules of ours that this file imports, through the faces of packages to those that define the names."""
        for node in self.import_nodes:
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                base = resolved(node, self.name, self.is_package)
                inner = [(alias.name, f"{base}.{alias.name}") for alias in node.names]
                targets = [path if path in modules else faces.get(base, {}).get(name, base) for name, path in inner]
            reason = any(line in self.comments for line in (node.lineno - 1, *lines_of(node)))
            for target in dict.fromkeys(targets):
                if target in modules and target != self.name:
                    yield Import(target, node.lineno, node in self.in_functions, reason)

    def helpers(self) -> tuple[list[str], list[str]]:
        """The private functions, and the private methods, that this module names in one place."""
        functions = [node for node in self.tree.body if isinstance(node, FUNCTIONS)]
        methods = [node for owner in self.classes for node in owner.body if isinstance(node, FUNCTIONS)]
        uses = Counter(map(used_name, self.nodes))

        def is_used_once(node: Any) -> bool:
            in_itself = sum(used_name(inner) == node.name for inner in ast.walk(node))
            return node.name.startswith("_") and not node.name.startswith("__") and uses[node.name] - in_itself == 1

        return [node.name for node in functions if is_used_once(node)], [n.name for n in methods if is_used_once(n)]

    def without_device(self) -> Iterator[tuple[int, str]]:
        """Every tensor that is made without saying where, unless the file says it for all: the line, and by what."""
        if any(line.startswith("# device: ") for line in self.text.splitlines()):
            return
        for node in self.nodes:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            by_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            # None is `**options`, which may hold a device.
            places = {"device", "generator", "out", None} & {keyword.arg for keyword in node.keywords}
            if by_torch and node.func.attr in FACTORIES and not places:
                yield node.lineno, node.func.attr

    def bound(self) -> Iterator[tuple[str, int, bool]]:
        """Every variable that is bound: its name, the line, and whether it is assigned outside a comprehension."""
        in_comprehensions = below(node.target for node in self.nodes if isinstance(node, ast.comprehension))
        statements = [
            node for owner in self.classes for node in owner.body if isinstance(node, (ast.Assign, ast.AnnAssign))
        ]
        fields = below(statements)
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
                name, assigned = node.id, node not in in_comprehensions
            elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
                name, assigned = node.name or "_", True
            elif isinstance(node, ast.arg):
                name, assigned = node.arg, False
            else:
                continue
            if name not in ("self", "cls", "_") and not name.startswith("__"):
                yield name, node.lineno, assigned


def below(nodes: Iterable[ast.AST]) -> set[ast.AST]:
    return {inner for node in nodes for inner in ast.walk(node)}


def lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def used_name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def resolved(node: ast.ImportFrom, name: str, is_package: bool) -> str:
    """The absolute name of the module after `from`."""
    parts = name.split(".")
    above = parts[: len(parts) - node.level + is_package] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def read_faces(src: Path) -> dict[str, dict[str, str]]:
    """Package -> name -> the module that its stub imports the name from."""
    faces: dict[str, dict[str, str]] = {}
    for path in src.rglob("__init__.pyi"):
        package = ".".join(path.parent.relative_to(src).parts)
        faces[package] = {
            alias.asname or alias.name: resolved(node, package, True)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
    return faces


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other, sorted."""

    def reached(start: str) -> set[str]:
        names, stack = set(), [start]
        while stack:
            for name in graph.get(stack.pop(), set()) - names:
                names.add(name)
                stack.append(name)
        return names

    reach = {name: reached(name) for name in graph}
    groups = {frozenset(n for n in reach[name] if name in reach[n]) for name in graph if name in reach[name]}
    return sorted(sorted(group) for group in groups)


def walks(src: Path) -> dict[str, int]:
    """Files a reader opens on the three ways, traced in a process of its own that imports `src`."""
    environment = os.environ | {"PYTHONPATH": str(src), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.house", "--trace", "--src", str(src)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    if process.returncode:
        sys.exit("The walks did not end well: see above.")
    return json.loads(process.stdout.splitlines()[-1])


def trace(src: Path) -> dict[str, int]:
    """The walks themselves, in this process."""
    import manyheads as mh

    package = str(src / PACKAGE) + os.sep
    if not str(mh.__file__).startswith(package):
        sys.exit(f"{mh.__file__} was imported, not what lies in {src}.")

    def lines_run(way: Callable[[], object]) -> dict[str, set[int]]:
        """File -> its lines that run. The first time is not traced: it imports modules and fills caches."""
        run: dict[str, set[int]] = defaultdict(set)

        def on_event(frame: Any, event: str, _: object) -> Any:
            path = frame.f_code.co_filename
            if not path.startswith(package) or frame.f_code.co_name == "<module>":
                return None
            if event == "line":
                run[path.removeprefix(package)].add(frame.f_lineno)
            return on_event

        way()
        sys.settrace(on_event)
        try:
            way()
        finally:
            sys.settrace(None)
        return run

    def look() -> None:
        sys.argv = ["manyheads", "look", "--no-cache"]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                runpy.run_module("manyheads", run_name="__main__")
        except SystemExit as end:
            if end.code:  # a command that failed would count as a short walk
                raise

    def prune_and_save() -> None:
        with tempfile.TemporaryDirectory() as folder:
            mh.prune_heads(lm, "L3H7, L4H0").save(Path(folder) / "pruned")

    lm = mh.load("minilm")
    loading = lines_run(lambda: mh.load("minilm"))
    looking = {path: lines - loading[path] for path, lines in lines_run(look).items() if not path.startswith("cli")}
    ways = {
        "look's table": looking,
        "one statistic": lines_run(lambda: mh.measure(lm, ["The cat sat on the mat."], ["entropy"])),
        "prune and save": lines_run(prune_and_save),
    }
    for way, files in ways.items():
        print(way, *sorted((-len(lines), path) for path, lines in files.items()), sep="\n    ", file=sys.stderr)
    return {way: sum(len(lines) >= GLANCED for lines in files.values()) for way, files in ways.items()}


def measured(src: Path, tests: Path, walk: bool) -> dict[str, Any]:
    """Every figure of the table, and the lists behind them."""
    sources = [Source(path, src) for path in sorted(src.rglob("*.py"))]
    stubs = [path.read_text(encoding="utf-8") for path in src.rglob("*.pyi")]
    modules, faces = {source.name for source in sources}, read_faces(src)
    imports = {source.name: list(source.imports(modules, faces)) for source in sources}
    inner = [source for source in sources if not source.is_package]

    largest, most = Counter(source.path.parent for source in inner).most_common(1)[0]

    users: dict[str, set[str]] = defaultdict(set)
    for source in inner:
        for target in imports[source.name]:
            users[target.module].add(source.name)
    single = sorted(source.name for source in inner if len(users[source.name]) == 1)

    packages = {source.name: source.name.split(".")[1] for source in inner if source.name.count(".") > 1}
    graph = {
        name: {target.module for target in imports[name] if packages.get(target.module) == package}
        for name, package in packages.items()
    }
    helpers = {source.name: source.helpers() for source in sources}
    deferred = {
        f"{source.path.relative_to(src)}:{target.line}": target.has_reason
        for source in sources
        for target in imports[source.name]
        if target.deferred
    }
    bound = [name for source in sources for name, _, _ in source.bound()]
    code = sum(len(source.code) for source in sources)
    test_files = [path.read_text(encoding="utf-8") for path in tests.rglob("*.py")] if tests.is_dir() else []
    return {
        "figures": {
            "Python files in src": len(sources),
            "files of the largest folder": most,
            "lines in src": sum(source.lines for source in sources),
            "code lines": code,
            "imports, % of code lines": round(100 * sum(source.import_lines for source in sources) / code, 1),
            "modules imported by one other only": len(single),
            "private helpers used once": sum(len(functions) for functions, _ in helpers.values()),
            "private methods used once": sum(len(methods) for _, methods in helpers.values()),
            "deferred imports of our own modules": len(deferred),
            "of them with a reason": sum(deferred.values()),
            "circles inside packages": len(circles(graph)),
            "comment lines on their own": sum(len(source.comments - source.code) for source in sources),
            "pronoun-like names, % of bound": round(100 * sum(name in PRONOUNS for name in bound) / len(bound), 1),
            "stubs in src": len(stubs),
            "lines of stubs": sum(len(text.splitlines()) for text in stubs),
            "files of tests": len(test_files),
            "lines of tests": sum(len(text.splitlines()) for text in test_files),
            **({f"files opened for {way}": count for way, count in walks(src).items()} if walk else {}),
        },
        "largest folder": str(largest.relative_to(src)),
        "circles": circles(graph),
        "imported by one other": {name: next(iter(users[name])) for name in single},
        "helpers used once": [f"{name}.{helper}" for name, pair in helpers.items() for helper in (*pair[0], *pair[1])],
        "deferred without a reason": [place for place, has_reason in deferred.items() if not has_reason],
        "pronoun-like names": dict(Counter(name for name in bound if name in PRONOUNS).most_common()),
    }


def worst(src: Path) -> int:
    """Print where one of the worst names is assigned, or a tensor made without a device; 1 if there is such a place."""
    sources = [Source(path, src) for path in sorted(src.rglob("*.py"))]
    places = sorted({(source.path, line, name) for source in sources for name, line, assigned in source.bound()
                     if assigned and name in WORST})  # fmt: skip
    for path, line, name in places:
        print(f"{os.path.relpath(path)}:{line}: {name!r} says nothing of what it is: give it the noun of its value")
    print(f"names: {len(places)} of the worst are assigned" if places else "names: clean")
    meeting = [source for source in sources if source.path.relative_to(src).parts[1] in MEETS]
    homeless = [(source.path, *place) for source in meeting for place in source.without_device()]
    for path, line, factory in homeless:
        print(f"{os.path.relpath(path)}:{line}: torch.{factory} without a device: give the one of the tensor it meets")
    print(f"devices: {len(homeless)} tensors are made without one" if homeless else "devices: clean")
    return int(bool(places or homeless))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="the folder that holds the package")
    parser.add_argument("--json", action="store_true", help="the figures and the lists behind them")
    parser.add_argument("--walk", action="store_true", help="trace what a reader opens as well (a minute or two)")
    parser.add_argument("--worst", action="store_true", help="only check names of variables, and devices of tensors")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    src = arguments.src.resolve()
    if not (src / PACKAGE).is_dir():
        parser.error(f"{src} holds no {PACKAGE}")
    if arguments.worst:
        return worst(src)
    if arguments.trace:
        print(json.dumps(trace(src)))
        return 0
    house = measured(src, src.parent / "tests", arguments.walk)
    if arguments.json:
        print(json.dumps(house, indent=1))
        return 0
    for name, value in house["figures"].items():
        print(f"{name:<40}{value:>10,}")
    for circle in house["circles"]:
        print("circle:", ", ".join(name.removeprefix(f"{PACKAGE}.") for name in circle))
    return 0


if __name__ == "__main__":
    sys.exit(main())
