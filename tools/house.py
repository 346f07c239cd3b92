"""How easily the source is entered and walked, in figures: `python -m tools.house [--src DIR] [--json] [--walk]`.

Everything but `--walk` and what `dir(manyheads)` holds is read from the source text with `ast` and `tokenize`. How each
figure is counted:

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
- Imports between packages: pairs of a module and one of another top-level package that it imports, wherever in its code
  and under TYPE_CHECKING, too. Past a face: what is imported is a file of that package, or of a folder in it, and no
  `__init__.py`. The largest face: the names that a package's or a folder's stub imports, the front door's aside.
- Arrows that go up: pairs of top-level packages of which the one imports the other, and the floors in pyproject.toml
  have the other above it, or beside it.
- `: Any`: arguments, variables and fields whose annotation is `Any`, and functions that return it.
- Classes of input, classes that are sums, loops, bodies: what COUNTED names, where it is defined.
- Docstrings: their lines, as a share of all lines.
- Arguments that are not listed: functions of LONG_LIST or more arguments whose docstring (of `__init__`, the class')
  has not a line for each that begins with its name, as in "- `texts`: what is read". A command's options each have
  their help, which `--help` prints, and its docstring with it: they are listed.
- Tests that run whole: functions of tests that have none of the marks PARTLY, nor a parameter that has.
- Pronoun-like names: places that bind one of PRONOUNS, as a share of all places that bind a variable: assignment,
  `for`, `with`, `except`, the walrus, `match`, comprehensions and arguments; not self, cls, `_`, dunder names, and the
  fields of classes.
- Files a reader opens (`--walk`, which needs the package's dependencies): files of which at least GLANCED lines run on
  the way to a result, after the model is loaded; fewer lines are a call whose name says enough. The first is
  `manyheads look` without what runs in `cli/` or in loading; the others are `measure(lm, texts, ["entropy"])` and
  `prune_heads(lm, heads).save(folder)`.
- Forward passes (`--walk`, too): calls of the whole model by `manyheads look` with and without pictures and pages, and
  by `manyheads head`, on a text of its own, once the model's labels are remembered.

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
import re
import runpy
import subprocess
import sys
import tempfile
import threading
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
SENTENCE = "The committee that met on Monday sent its report to the mayor, who read it twice."  # not the bundled one
FEW_TOKENS = 8
HELPED = ("Option", "Argument")  # typer's, of which each has its help
LONG_LIST = 8  # arguments, self and cls aside, from which on a docstring lists them
PARTLY = {"slow", "thinned", "sampled", "turns"}  # marks of tests of which `make test` leaves cases out, or all

MEETS = {
    *("nn", "attention", "texts", "recording", "models", "inputs", "statistics", "measurement", "interventions"),
    *("edits", "roles", "compat", "studio"),
}
FACTORIES = {
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn"),
    *("randperm", "tensor", "zeros"),
}


class Named(NamedTuple):
    """A class, function or method that counts, by its name from its module on, and the packages in which it does.

    `uses`: names of which its body must have one, where a name is kept by what no longer does the work itself.
    """

    name: str
    packages: str
    uses: frozenset[str] = frozenset()


# What counts as what: names of today, and those of the third plan of the house, in the packages of either. A name that
# is nowhere does not count, and `--json` lists which were found; a class of another name takes a line here.
READERS = frozenset({"Measured", "BatchReader"})  # what a body of `measure` makes of each batch
COUNTED: Mapping[str, Sequence[Named]] = {
    "classes that are an input to a model": (
        Named("Document", "corpora texts"),
        Named("Inputs", "inputs"),
        Named("Piece", "models inputs"),
        Named("Pair", "models inputs"),
        Named("Written", "models inputs"),
        Named("Reading", "models inputs corpora"),
        Named("OwnTexts", "corpora"),
        Named("Padded", "models inputs"),
        Named("Side", "inputs"),
        Named("CallTexts", "models inputs"),
        Named("Given", "models inputs"),
        Named("BatchRead", "models inputs"),
        Named("Batch", "interventions edits inputs"),
        Named("Corpus", "interventions edits"),  # of a metric; that of `corpora` is where texts come from
        Named("PairBatch", "circuits"),
        Named("Half", "long_context"),
        Named("Source", "cli"),
        Named("Texts", "cli"),
        Named("GivenPairs", "cli"),
        Named("Read", "compat"),
    ),
    "classes that are sums of statistics": (
        Named("Contribution", "statistics"),
        Named("BatchSums", "statistics measurement"),
        Named("Sums", "statistics"),
        Named("Tally", "statistics"),
        Named("Gathered", "statistics"),
        Named("RunningSums", "statistics measurement"),
        Named("Batch", "statistics measurement"),  # of a run over a corpus: what one batch adds, and to which chunk
        Named("BatchPart", "statistics measurement"),
        Named("Total", "statistics measurement"),
        Named("RunTotal", "statistics measurement"),
        Named("CorpusSums", "statistics measurement"),
        Named("HeadSums", "statistics measurement"),
    ),
    "loops that run a model under edits": (
        Named("carried_out", "interventions edits"),
        Named("sweep", "interventions edits"),
        Named("calls_of", "circuits"),
        Named("path_effects", "circuits", frozenset({"read_under"})),
        Named("Runner.over", "interventions edits"),
    ),
    "bodies of `measure`": (
        Named("measure", "statistics measurement", READERS),
        Named("_measure_media", "statistics measurement", READERS),
        Named("measure_call", "statistics measurement", READERS),
        Named("measure_batch", "statistics measurement", READERS),
        Named("sums_of", "statistics measurement", READERS),
        Named("measure_recording", "statistics measurement"),
    ),
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
        self.docstrings: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                self.comments.add(token.start[0])
            elif token.type not in NO_CODE:
                self.code.update(range(token.start[0], token.end[0] + 1))
        for node in self.nodes:
            if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node, clean=False):
                self.docstrings |= lines_of(node.body[0])
        self.code -= self.docstrings
        self.import_lines = len(set().union(*map(lines_of, self.import_nodes)))

    @property
    def top(self) -> str:
        """The top-level package, or module, that this file is part of; "" for the package's own `__init__.py`."""
        return top_of(self.name)

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

    def definitions(self) -> Iterator[tuple[str, ast.AST]]:
        """Every class and function, by its name from this module on, as in "Runner.over"."""
        stack: list[tuple[str, ast.AST]] = [("", self.tree)]
        while stack:
            path, parent = stack.pop()
            for node in ast.iter_child_nodes(parent):
                named = isinstance(node, (ast.ClassDef, *FUNCTIONS))
                inner = ".".join(filter(None, [path, node.name])) if named else path
                if named:
                    yield inner, node
                stack.append((inner, node))

    def any_annotations(self) -> Iterator[str]:
        """The names of what is annotated as `Any`: arguments, variables, fields, and functions that return it."""
        for node in self.nodes:
            if isinstance(node, ast.arg) and used_name(node.annotation) == "Any":
                yield node.arg
            elif isinstance(node, ast.AnnAssign) and used_name(node.annotation) == "Any":
                yield used_name(node.target) or ""
            elif isinstance(node, FUNCTIONS) and used_name(node.returns) == "Any":
                yield f"-> {node.name}"

    def without_list(self) -> Iterator[str]:
        """The functions of LONG_LIST or more arguments whose docstring does not list them, one a line."""
        of_class = {id(part): owner for owner in self.classes for part in owner.body}
        for name, node in self.definitions():
            is_overload = isinstance(node, FUNCTIONS) and "overload" in map(used_name, node.decorator_list)
            if not isinstance(node, FUNCTIONS) or is_overload:  # what it overloads has a docstring for all
                continue
            inputs = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names = [argument.arg for argument in inputs if argument.arg not in ("self", "cls")]
            described = of_class[id(node)] if node.name == "__init__" and id(node) in of_class else node
            words = ast.get_docstring(described) or ""
            listed = set(re.findall(r"^\s*(?:[-*] )?`*(\w+)`*\b", words, re.MULTILINE))
            if any(isinstance(part, ast.Attribute) and part.attr in HELPED for part in ast.walk(node.args)):
                continue
            if len(names) >= LONG_LIST and not listed.issuperset(names):
                yield name

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


def top_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def used_name(node: ast.AST | None) -> str | None:
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


# ---------------------------------------------------------------------------------------------------- a figure each


def between_packages(sources: Sequence[Source]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Pairs of a module and one of another top-level package that it imports: all, and those past a face."""
    modules = {source.name for source in sources}
    doors = {source.name for source in sources if source.is_package}
    pairs = {
        (source.name, target.module)
        for source in sources
        for target in source.imports(modules, {})
        if source.top != top_of(target.module)
    }
    return pairs, {(user, used) for user, used in pairs if used not in doors and used.count(".") > 1}


def read_floors(settings: Path) -> list[set[str]]:
    """The packages of each floor from the top, as import-linter's contract `floors` has them; none without a file."""
    if not settings.is_file():
        return []
    contracts = tomllib.loads(settings.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "floors")
    return [set(re.findall(r"\w+", layer)) for layer in layers]


def arrows_up(pairs: Iterable[tuple[str, str]], floors: Sequence[set[str]]) -> set[tuple[str, str]]:
    """The pairs of packages of which the first imports what is above it or beside it. The front door is on no floor."""
    number = {name: floor for floor, names in enumerate(floors) for name in names}
    arrows = {(top_of(user), top_of(used)) for user, used in pairs}
    return {(a, b) for a, b in arrows if a in number and b in number and number[b] <= number[a]}


def counted(sources: Sequence[Source], table: Sequence[Named]) -> list[str]:
    """What the table names and the source defines, as "models.inputs.texts.Piece"."""
    packages = {(name.name, package): name.uses for name in table for package in name.packages.split()}
    return sorted(
        f"{source.name.partition('.')[2]}.{path}"
        for source in sources
        for path, node in source.definitions()
        if (uses := packages.get((path, source.top))) is not None
        and (not uses or any(used_name(inner) in uses for inner in ast.walk(node)))
    )


def front_door(src: Path) -> tuple[list[str], list[str]]:
    """The names of `manyheads.__all__`, and those that `dir(manyheads)` has in place of these or besides."""
    code = f"import json, {PACKAGE} as m; print(json.dumps([list(getattr(m, '__all__', [])), dir(m)]))"
    environment = os.environ | {"PYTHONPATH": str(src)}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    if process.returncode:
        sys.exit(f"{PACKAGE} of {src} cannot be imported:\n{process.stderr}")
    names, listed = json.loads(process.stdout)
    return names, sorted(set(names) ^ set(listed))


def run_whole(files: Iterable[str]) -> tuple[int, int]:
    """How many functions of tests `make test` runs whole and always, and how many there are."""
    whole = every = 0
    for text in files:
        tree = ast.parse(text)
        # Marks, and what holds them: `slow = pytest.mark.slow`, or a list of parameters some of which are slow.
        holders: set[str] = set()
        for node in tree.body:
            if not is_partial(node, holders):
                continue
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                holders |= {inner.id for inner in ast.walk(node) if is_stored(inner)}
            elif isinstance(node, FUNCTIONS) and not node.name.startswith("test_"):
                holders.add(node.name)
        functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS) and node.name.startswith("test_")]
        every += len(functions)
        if "pytestmark" not in holders:
            whole += sum(not any(is_partial(d, holders) for d in node.decorator_list) for node in functions)
    return whole, every


def is_partial(node: ast.AST, holders: set[str]) -> bool:
    """Whether one of the marks PARTLY, or a name that holds one, stands in this piece of code."""
    return any(
        (isinstance(inner, ast.Attribute) and inner.attr in PARTLY and used_name(inner.value) == "mark")
        or (isinstance(inner, ast.Name) and inner.id in holders and isinstance(inner.ctx, ast.Load))
        for inner in ast.walk(node)
    )


def is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


# ---------------------------------------------------------------------------------- what is traced while it runs


def walks(src: Path) -> dict[str, int]:
    """Files a reader opens on the three ways, and forward passes, in a process of its own that imports `src`."""
    command = [sys.executable, "-m", "tools.house", "--trace", "--src", str(src)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {"PYTHONPATH": str(src), "OMP_NUM_THREADS": "1", "MANYHEADS_CACHE": cache}
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment, cwd=ROOT)
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

    def prune_and_save() -> None:
        with tempfile.TemporaryDirectory() as folder:
            mh.prune_heads(lm, "L3H7, L4H0").save(Path(folder) / "pruned")

    lm = mh.load("minilm")
    loading = lines_run(lambda: mh.load("minilm"))
    looking = lines_run(lambda: run_command("look", "--no-cache"))
    looking = {path: lines - loading[path] for path, lines in looking.items() if not path.startswith("cli")}
    ways = {
        "look's table": looking,
        "one statistic": lines_run(lambda: mh.measure(lm, ["The cat sat on the mat."], ["entropy"])),
        "prune and save": lines_run(prune_and_save),
    }
    for way, files in ways.items():
        print(way, *sorted((-len(lines), path) for path, lines in files.items()), sep="\n    ", file=sys.stderr)
    opened = {way: sum(len(lines) >= GLANCED for lines in files.values()) for way, files in ways.items()}
    return {**{f"files opened for {way}": count for way, count in opened.items()}, **forward_passes()}


def run_command(*arguments: str) -> None:
    """`manyheads` with these arguments, in this process, without what it prints."""
    sys.argv = [PACKAGE, *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_module(PACKAGE, run_name="__main__")
    except SystemExit as end:
        if end.code:  # a command that failed would count as a short walk
            raise


def forward_passes() -> dict[str, int]:
    """How often `look` and `head` run the whole model over a text of the user's, once its labels are remembered."""
    import uvicorn
    from transformers import PreTrainedModel

    depth = passes = 0  # a model that runs within another is the same pass

    def counting(model: PreTrainedModel, *arguments: Any, **options: Any) -> Any:
        nonlocal depth, passes
        # The studio warms its model up in a thread, on a text of its own, while the browser opens; and a pass over some
        # few tokens finds a model's layers when it is first used.
        is_main = threading.current_thread() is threading.main_thread()
        passes += is_main and not depth and options["input_ids"].numel() > FEW_TOKENS
        depth += is_main
        try:
            return super(PreTrainedModel, model).__call__(*arguments, **options)
        finally:
            depth -= is_main

    def stop(server: Any, **_: object) -> None:
        server.should_exit = True
        raise KeyboardInterrupt  # as Ctrl-C does

    PreTrainedModel.__call__, uvicorn.Server.run = counting, stop
    run_command("look")  # its labels are remembered from now on
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        pages = ("--plot", f"{folder}/maps.svg", "--html", f"{folder}/heads.html", "--open")
        for name, arguments in {
            "look": ("look", SENTENCE),
            "look with --plot, --html and --open": ("look", SENTENCE, *pages),
            "head": ("head", "L3H7", SENTENCE),
        }.items():
            passes = 0
            run_command(*arguments)
            counts[f"forward passes of {name}"] = passes
    return counts


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
    pairs, past = between_packages(sources)
    face, face_names = max(faces.items(), key=lambda item: (item[0] != PACKAGE, len(item[1])), default=("", {}))
    public, unlisted = front_door(src)
    up = arrows_up(pairs, read_floors(src.parent / "pyproject.toml"))
    anys = [name for source in sources for name in source.any_annotations()]
    found = {what: counted(sources, table) for what, table in COUNTED.items()}
    without_list = [f"{source.name}.{name}" for source in sources for name in source.without_list()]
    deferred = {
        f"{source.path.relative_to(src)}:{target.line}": target.has_reason
        for source in sources
        for target in imports[source.name]
        if target.deferred
    }
    bound = [name for source in sources for name, _, _ in source.bound()]
    lines, code = sum(source.lines for source in sources), sum(len(source.code) for source in sources)
    test_files = [path.read_text(encoding="utf-8") for path in tests.rglob("*.py")] if tests.is_dir() else []
    whole, every = run_whole(test_files)
    return {
        "figures": {
            "Python files in src": len(sources),
            "files of the largest folder": most,
            "lines in src": lines,
            "code lines": code,
            "imports, % of code lines": round(100 * sum(source.import_lines for source in sources) / code, 1),
            "modules imported by one other only": len(single),
            "private helpers used once": sum(len(functions) for functions, _ in helpers.values()),
            "private methods used once": sum(len(methods) for _, methods in helpers.values()),
            "deferred imports of our own modules": len(deferred),
            "of them with a reason": sum(deferred.values()),
            "circles inside packages": len(circles(graph)),
            "imports between packages": len(pairs),
            "of them past a face": len(past),
            "names of the largest face": len(face_names),
            "arrows between packages that go up": len(up),
            "names of mh.__all__": len(public),
            "of dir(mh), missing or besides": len(unlisted),
            "`: Any` and `-> Any`": len(anys),
            "the same, per 1,000 lines": round(1_000 * len(anys) / lines, 1),
            "`lm: Any`": anys.count("lm"),
            **{what: len(names) for what, names in found.items()},
            "docstrings, % of lines": round(100 * sum(len(source.docstrings) for source in sources) / lines, 1),
            f"functions of {LONG_LIST} or more arguments, not listed": len(without_list),
            "comment lines on their own": sum(len(source.comments - source.code) for source in sources),
            "pronoun-like names, % of bound": round(100 * sum(name in PRONOUNS for name in bound) / len(bound), 1),
            "stubs in src": len(stubs),
            "lines of stubs": sum(len(text.splitlines()) for text in stubs),
            "files of tests": len(test_files),
            "lines of tests": sum(len(text.splitlines()) for text in test_files),
            "functions of tests": every,
            "of them run whole, always, %": round(100 * whole / max(every, 1), 1),
            **(walks(src) if walk else {}),
        },
        "largest folder": str(largest.relative_to(src)),
        "circles": circles(graph),
        "counted": found,
        "past a face": sorted(f"{user} -> {used}" for user, used in past),
        "largest face": face,
        "arrows that go up": sorted(f"{user} -> {used}" for user, used in up),
        "of dir(mh), missing or besides": unlisted,
        "arguments not listed": without_list,
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
        print(f"{name:<46}{value:>10,}")
    for what, names in house["counted"].items():
        print(f"{what}: {', '.join(names)}")
    for circle in house["circles"]:
        print("circle:", ", ".join(name.removeprefix(f"{PACKAGE}.") for name in circle))
    return 0


if __name__ == "__main__":
    sys.exit(main())
