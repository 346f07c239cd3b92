"""Claims about the types of the code in README.md and docs: pyright, as strict as it is, has nothing to say of ours."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of, named, pages

UNKNOWN = {f"reportUnknown{what}Type" for what in ("Member", "Argument", "Variable", "Lambda", "Parameter")}
IMPORTS = {"reportMissingImports", "reportMissingTypeStubs", "reportMissingModuleSource"}
OPEN = {"reportUntypedBaseClass"}
OF_CONTAINERS = {"append", "extend", "insert", "setdefault"}  # of a page's own empty list or dict
RUN_ON = {"reportDuplicateImport", "reportUnusedImport", "reportUnusedExpression"}
"""A page is many cells: a second one imports again what it uses, and the last line of one shows a value."""


def module_of(page: Path) -> str:
    """All Python of a page, on the lines where it stands."""
    lines: list[str] = []
    for block in blocks_of(page):
        if block.language == "python" and "outline" not in block.not_run:
            lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
    return "\n".join(lines) + "\n"


def diagnostics(folder: Path, modules: dict[str, str]) -> dict[str, list[dict]]:
    """What pyright in strict mode says of each module, by its name."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    config = {
        "typeCheckingMode": "strict", "pythonVersion": "3.11", "include": ["."],
        "extraPaths": [str(ROOT / "src"), str(ROOT)],
    }  # fmt: skip
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    by_module: dict[str, list[dict]] = defaultdict(list)
    for diagnostic in json.loads(done.stdout)["generalDiagnostics"]:
        by_module[Path(diagnostic["file"]).stem].append(diagnostic)
    return by_module


def untyped_names() -> set[str]:
    """Every function, parameter and attribute of our sources whose type is not written down.

    Where it is, it has no unknown part of ours: `make check` refuses a generic class without its arguments.
    """
    names: set[str] = set()
    for path in (ROOT / "src" / "manyheads").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                of_types = {one.arg for one in arguments if one.annotation is not None or one.arg in ("self", "cls")}
                if node.returns is None or len(of_types) < len(arguments):
                    names.add(node.name)
                names |= {name for name, value in set_on_self(node) if value not in of_types}
    return names


def set_on_self(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """The attributes that a method sets without a type, each with the name of what it is set to ("": an expression)."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for name, value in pairs:
                    on_self = isinstance(name, ast.Attribute) and ast.unparse(name.value) == "self"
                    if on_self and not isinstance(value, ast.Constant):
                        yield name.attr, value.id if isinstance(value, ast.Name) else ""


def ours(text: str, found: list[dict], names: set[str]) -> list[str]:
    """The diagnostics of a module that are not another library's: a line and a message each.

    Another library's are unknown types of a member that no source of ours defines, and of imports of what is not ours;
    and what such a value makes unknown: in the same statement, or in one that uses a name which such a statement set.
    """
    by_line: dict[int, list[dict]] = defaultdict(list)
    for diagnostic in found:
        by_line[diagnostic["range"]["start"]["line"] + 1].append(diagnostic)
    faults: list[str] = []
    unknown: set[str] = set()
    for statement in ast.parse(text).body:
        of_statement = [
            (line, one) for line in range(statement.lineno, statement.end_lineno + 1) for one in by_line[line]
        ]
        loads = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        foreign = bool(unknown & loads) or any(is_foreign(one, statement, names) for _, one in of_statement)
        for line, one in of_statement:
            rule = one.get("rule", "")
            of_ours = names_ours(one, names) and "partially" in one["message"]  # wholly unknown: of an unknown value
            if rule in RUN_ON or (foreign and rule in UNKNOWN | OPEN and not of_ours):
                continue
            if not is_foreign(one, statement, names):
                faults.append(f"{line}: {rule}: {one['message']}")
        if foreign and any(one.get("rule") in UNKNOWN | IMPORTS for _, one in of_statement):
            unknown |= {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name | ast.alias) and isinstance(getattr(node, "ctx", None), ast.Store)
            } | imported(statement)
    return faults


def is_foreign(diagnostic: dict, statement: ast.stmt, names: set[str]) -> bool:
    """Whether a diagnostic begins with another library."""
    rule = diagnostic.get("rule", "")
    if imported(statement):
        of_ours = any(name.startswith("manyheads") for name in modules_of(statement))
        return not of_ours and rule in IMPORTS | UNKNOWN
    if rule == "reportUnknownArgumentType" and re.search(r"\b(DataFrame|Series)\b", diagnostic["message"]):
        return True  # a frame's subscript, by pandas' own types
    return rule == "reportUnknownMemberType" and not names_ours(diagnostic, names | OF_CONTAINERS)


def names_ours(diagnostic: dict, names: set[str]) -> bool:
    """Whether a diagnostic is of a member or parameter that a source of ours defines."""
    named = re.match(r'Type of (?:parameter )?"(\w+)" is', diagnostic["message"])
    return diagnostic.get("rule") == "reportUnknownMemberType" and named is not None and named[1] in names


def modules_of(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    return [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []


def imported(statement: ast.stmt) -> set[str]:
    """The names that an import sets."""
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return set()
    return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}


# ===================================================================================================== claims


@pytest.mark.slow
def test_code_of_every_page_is_clean_in_strict_mode(tmp_path):
    """Cost: a minute of a processor. `reveal_type` in a block shows what pyright makes of it."""
    modules = {re.sub(r"\W", "_", named(page)): module_of(page) for page in pages()}
    modules = {name: text for name, text in modules.items() if text.strip()}
    found, names = diagnostics(tmp_path, modules), untyped_names()
    faults = [f"{name}:{fault}" for name, text in modules.items() for fault in ours(text, found[name], names)]
    assert len(modules) > 50 and not faults, "\n".join(faults)


@pytest.mark.slow
def test_what_is_wrong_in_a_page_is_found(tmp_path):
    """Each line is a mistake of ours or the reader's, but for the last three: a library's unknown types."""
    text = """import manyheads as mh
lm = mh.load("minilm")
mh.patch(lm, "a", "b", what="outputs")
lm.tokenizer("a")
def flip(output): return -output
calls = []
calls.append(1)
import pandas
kept = pandas.DataFrame().nlargest(3, "x").to_dict()
print(kept)
lm.model.generate(max_new_tokens=3)[0].cpu()
"""
    found = ours(text, diagnostics(tmp_path, {"page": text})["page"], untyped_names())
    lines = {int(fault.partition(":")[0]) for fault in found}
    assert lines == {3, 4, 5, 7}, found


def unknown(line, member, of="() -> list[Unknown]", rule="reportUnknownMemberType"):
    message = f'Type of "{member}" is partially unknown\n  Type of "{member}" is "{of}"'
    return {"rule": rule, "message": message, "range": {"start": {"line": line - 1}}}


def test_unknown_is_anothers_where_a_member_that_is_not_ours_made_it():
    text = "a = x.tolist()\nb = a[0]\nc = y\nd = z.measured\n"
    found = [unknown(1, "tolist"), *(unknown(line, "a", rule="reportUnknownVariableType") for line in (1, 2, 3))]
    found.append(unknown(4, "measured"))
    assert [fault.partition(":")[0] for fault in ours(text, found, {"measured"})] == ["3", "4"]
