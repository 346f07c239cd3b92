"""Claims about the types of the code in README.md and docs: pyright, as strict as it is, has nothing to say of ours."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of, named, pages

UNKNOWN = {f"reportUnknown{what}Type" for what in ("Member", "Argument", "Variable", "Lambda", "Parameter")}
IMPORTS = {"reportMissingImports", "reportMissingTypeStubs", "reportMissingModuleSource"}
OPEN = {"reportUntypedBaseClass"}
RUN_ON = {"reportDuplicateImport", "reportUnusedImport", "reportUnusedExpression"}
"""A page is many cells: a second one imports again what it uses, and the last line of one shows a value."""


def module_of(page: Path) -> str:
    """All Python of a page, on the lines where it stands."""
    lines: list[str] = []
    for block in blocks_of(page):
        if block.language == "python":
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


def our_names() -> set[str]:
    """Every attribute and function that our sources define."""
    names: set[str] = set()
    for path in (ROOT / "src" / "manyheads").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return names


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
        of_statement = [(line, one) for line in range(statement.lineno, statement.end_lineno + 1) for one in by_line[line]]
        loads = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        foreign = bool(unknown & loads) or any(is_foreign(one, statement, names) for _, one in of_statement)
        for line, one in of_statement:
            rule = one.get("rule", "")
            if rule in RUN_ON or foreign and rule in UNKNOWN | OPEN and not names_ours(one, names):
                continue
            if not is_foreign(one, statement, names):
                faults.append(f"{line}: {rule}: {one['message']}")
        if foreign and any(one.get("rule") in UNKNOWN | IMPORTS for _, one in of_statement):
            unknown |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name | ast.alias)
                        and isinstance(getattr(node, "ctx", None), ast.Store)} | imported(statement)
    return faults


def is_foreign(diagnostic: dict, statement: ast.stmt, names: set[str]) -> bool:
    """Whether a diagnostic begins with another library."""
    rule = diagnostic.get("rule", "")
    if imported(statement):
        of_ours = any(name.startswith("manyheads") for name in modules_of(statement))
        return not of_ours and rule in IMPORTS | UNKNOWN
    return rule == "reportUnknownMemberType" and not names_ours(diagnostic, names)


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
