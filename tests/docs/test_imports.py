"""Claims about the names that pages and examples use: they come from faces, so that what lies behind may move.

A face is `manyheads` itself or one of its packages, `manyheads.<package>`. A program that is run by `python -m` may lie
deeper where its own docstring says so.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tests.docs.pages import ROOT, blocks_of, named, pages
from tests.docs.test_pages import resolved

EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".ipynb"))
IMPORT = re.compile(r"^\s*(?:from\s+(manyheads[\w.]*)\s+import\b|import\s+(manyheads[\w.]*))", re.MULTILINE)
PROGRAM = re.compile(r"(?:python3?|-m torch\.distributed\.run|torchrun[^\n]*?) -m (manyheads[\w.]*)")
NAME = re.compile(r"`(manyheads(?:\.\w+)+)")
DATED = {"docs/lab.md", "docs/house.md"}  # what a record said on its day; what is made of the code


def code_of(path: Path) -> Iterator[str]:
    """The code of a page (all of its fenced and indented blocks), a program or a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        yield from ("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    elif path.suffix == ".md":
        yield from (block.code for block in blocks_of(path))
        yield "\n".join(line for line in text.splitlines() if line.startswith("    "))
    else:
        yield text


def is_face(module: str) -> bool:
    return module.count(".") <= 1


def is_documented_program(module: str) -> bool:
    """Whether the module's own docstring shows `python -m` with its name."""
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    return f"python -m {module}" in (ast.get_docstring(ast.parse(source)) or "")


def test_pages_and_examples_import_from_faces_alone():
    deep = []
    for path in (*pages(), *EXAMPLES):
        modules = {"".join(match) for code in code_of(path) for match in IMPORT.findall(code)}
        deep += [f"{named(path)}: {module}" for module in sorted(modules) if not is_face(module)]
    assert deep == []


def test_pages_run_only_programs_that_say_so():
    deep = []
    for path in (*pages(), *EXAMPLES):
        if named(path) not in DATED:
            modules = sorted(set(PROGRAM.findall(path.read_text(encoding="utf-8"))))
            deep += [
                f"{named(path)}: {name}" for name in modules if not is_face(name) and not is_documented_program(name)
            ]
    assert deep == []


def test_every_name_of_ours_that_a_page_writes_as_code_exists():
    missing = []
    for page in pages():
        if named(page) in DATED or "decisions" in page.parts:
            continue
        for name in sorted(set(NAME.findall(page.read_text(encoding="utf-8")))):
            if not name.endswith(".json"):  # a file beside a checkpoint
                try:
                    resolved(name)
                except (ImportError, AttributeError):
                    missing.append(f"{named(page)}: {name}")
    assert missing == []


def test_what_counts_as_deep_is_found_in_every_kind_of_code(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("    from manyheads.a.b import c\n\n```py\nimport manyheads as mh\nimport manyheads.d.e\n```\n")
    notebook = tmp_path / "story.ipynb"
    cells = [{"cell_type": "code", "source": ["x = 1\n", "from manyheads.f.g import h\n"]}]
    notebook.write_text(json.dumps({"cells": cells}))
    modules = [
        {"".join(match) for code in code_of(path) for match in IMPORT.findall(code)} for path in (page, notebook)
    ]
    assert modules == [{"manyheads", "manyheads.a.b", "manyheads.d.e"}, {"manyheads.f.g"}]
    assert is_face("manyheads") and is_face("manyheads.roles") and not is_face("manyheads.roles.probes")
    assert PROGRAM.findall("python -m manyheads.doctor\ntorchrun --nproc-per-node 2 -m manyheads roles") == [
        "manyheads.doctor",
        "manyheads",
    ]
