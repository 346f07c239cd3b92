"""Claims about the documents: what is made of the code is the code's own, and nothing is left out."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from inspect import getdoc, ismodule
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import manyheads
from docs.command import PAGE as COMMAND_PAGE
from docs.command import command_markdown
from docs.docstrings import as_markdown
from docs.house import OUTSIDE, PACKAGE, PICTURE, TREE_PAGE, floors, imports, picture, table, tree
from docs.house import PAGE as HOUSE_PAGE
from docs.lab import FIELDS, RECORDS, lab_markdown, records
from docs.lab import PAGE as LAB_PAGE
from docs.pictures import GALLERY, IMAGES, gallery_markdown
from docs.pictures import PAGE as GALLERY_PAGE
from docs.reproduced import PAGE as REPRODUCED_PAGE
from docs.reproduced import documents
from docs.reproduced import page as reproduced_markdown
from docs.website import PAGES, with_links
from manyheads.cli.arguments import DEFAULT_MODEL
from manyheads.cli.commands import NAMES
from manyheads.lab.lessons import lessons
from manyheads.lab.reproductions import reproduction_of
from manyheads.lab.training.presets.table import PRESETS
from manyheads.models import BUNDLED
from manyheads.roles.words import glossary
from manyheads.roles.words.role_table import NO_ROLE, ROLES
from manyheads.statistics.listing import listed, rows
from manyheads.statistics.table import table_markdown
from tests.docs.pages import ROOT, blocks_of, named, pages

DOCS = ROOT / "docs"
REFERENCE = sorted((DOCS / "reference").rglob("*.md"))


def test_the_table_of_statistics_is_the_codes_own():
    assert table_markdown() in (DOCS / "reference" / "statistics.md").read_text(encoding="utf-8"), "again: make pages"
    assert listed() == rows(), "again: make pages"


def test_the_glossary_of_docs_and_page_is_the_librarys_own():
    assert glossary.markdown() == (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8"), "again: make pages"
    words = (ROOT / "web/src/lib/words.generated.ts").read_text(encoding="utf-8")
    assert glossary.page_table() == words, "again: make web"


def test_every_thing_has_one_name_and_one_short_sentence():
    terms = [term for terms in glossary.SECTIONS.values() for term in terms]
    names = Counter(term.name for term in terms) + Counter([*glossary.role_words(), *glossary.statistic_words()])
    assert [name for name, count in names.items() if count > 1] == ["sink"]  # the token, and the role of a head
    for term in terms:
        assert term.short.endswith(".") and len(term.short) <= 120, term.name
        assert not term.page or (DOCS / term.page).is_file(), term.page
    assert {style.name for style in (*ROLES, NO_ROLE)} <= set(glossary.role_words())


def test_the_page_of_the_command_is_its_own_help():
    # Tests have a default model of their own.
    page = command_markdown().replace(f"hub. Default: `{DEFAULT_MODEL}`.", "hub. Default: `smollm2`.")
    assert COMMAND_PAGE.read_text(encoding="utf-8") == page, "again: make pages"


def test_the_gallery_shows_every_picture_with_what_made_it():
    assert GALLERY_PAGE.read_text(encoding="utf-8") == gallery_markdown(), "again: make pages"
    shown = [each.file for pictures in GALLERY.values() for each in pictures]
    there = [path.relative_to(IMAGES).as_posix() for path in IMAGES.rglob("*") if path.is_file()]
    assert sorted(shown) == sorted(there)


def test_the_page_of_published_numbers_is_made_of_the_results():
    assert REPRODUCED_PAGE.read_text(encoding="utf-8") == reproduced_markdown(), "again: make pages"
    for document in documents().values():  # the words are the code's, the verdicts those of the numbers
        named = reproduction_of(document["name"]).to_dict()
        assert {name: document[name] for name in named} == named, f"{document['name']}: make it again"
        assert document["seeds"] != 1 and not document["quick"]


def test_the_house_is_drawn_as_the_imports_are_and_they_go_down():
    assert PICTURE.read_text(encoding="utf-8") == picture(), "again: make pages"
    assert table() in HOUSE_PAGE.read_text(encoding="utf-8"), "again: make pages"
    height = {name: -number for number, floor in enumerate(floors()) for name in floor}
    found = {name: below - set(OUTSIDE) for name, below in imports().items()}
    assert set(found) == set(height)
    assert all(height[other] < height[name] for name, below in found.items() for other in below)
    assert found["cli"] and not found["errors"] and "recording" in found["statistics"]


def nav_pages(part):
    if isinstance(part, str):
        return [part]
    return [page for each in (part.values() if isinstance(part, dict) else part) for page in nav_pages(each)]


@pytest.mark.parametrize("page", pages(), ids=named)
def test_install_lines_name_the_checkout_and_the_index_and_weights_as_messages_do(page):
    text = page.read_text(encoding="utf-8")
    if page == LAB_PAGE:  # what was typed then
        return
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    checkout, index = (set(re.findall(rf'"{source}\[([\w,]+)\]"', text)) for source in (r"\.", "manyheads"))
    assert checkout == index
    assert {extra for names in checkout for extra in names.split(",")} <= set(declared)
    assert not re.findall(r"pip install --no-deps [\w.=-]+", text)
    fetched = {
        name for names in re.findall(r"^manyheads fetch((?: [\w-]+)*)", text, re.MULTILINE) for name in names.split()
    }
    assert fetched <= set(BUNDLED)
    if re.search(r"pip install manyheads\b", text):
        assert "pip install ./manyheads" in text


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_two_pages_that_install_everything_say_the_same_lines(page):
    lines = [
        line.partition("  #")[0].strip()
        for block in blocks_of(ROOT / page)
        for line in block.code.splitlines()
        if line.startswith(("pip install", "manyheads fetch"))
    ]
    assert lines == ["pip install torch==2.13.0", 'pip install ".[studio]"', "manyheads fetch"]


def test_every_part_that_a_class_is_told_of_is_where_the_table_says():
    page = DOCS / "howto" / "teach-a-class.md"
    parts = page.read_text(encoding="utf-8").split("the parts -->")[1].split("\n")[3:-1]
    commands = {*NAMES}
    rooms = {"atlas", "head", "compare", "experiment", "size", "learn", "training"}
    assert len(parts) >= 20
    for row in parts:
        _, what, where, _ = row.split("|")
        places = re.findall(r"`manyheads ([^`]+)`|`#/(\w+)`|\]\(([^)]+)\)", where)
        assert places, what
        for command, room, link in places:
            name, *words = command.split() or [""]
            assert name in commands | {""} and room in rooms | {""} and (page.parent / link).exists(), (what, where)
            if name == "train":
                assert words[0] in PRESETS, what
            if name == "learn":
                lesson, *option = words
                named = {"--run": lessons()[lesson].cells, "--answer": lessons()[lesson].checks}
                assert not option or option[1] in named[option[0]], what


def test_the_navigation_names_every_page_once():
    told = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = nav_pages(told["nav"])
    there = {page.relative_to(DOCS).as_posix() for page in pages() if page.is_relative_to(DOCS)}
    left = {"decisions/000-template.md"}
    assert len(listed) == len(set(listed))
    assert set(listed) == (there - left) | set(PAGES.values())


MOST_WORDS = 110_000  # of all pages, as wc -w counts: what is added makes room for itself


def test_the_pages_have_no_more_words_than_a_reader_can_use():
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in pages() if page.is_relative_to(DOCS))
    assert words <= MOST_WORDS


DOORS = ["Start", "Understand", "Do", "Look up", "For contributors"]


def test_the_site_and_the_readme_have_the_same_five_doors():
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert [door for section in navigation for door in section] == DOORS
    more = (ROOT / "README.md").read_text(encoding="utf-8").partition("## More")[2]
    assert re.findall(r"\[([^]]+)\]\(", more) == DOORS


# ------------------------------------------------------------------------------------------------- the reference


def documented() -> dict[str, object]:
    """What the reference shows: by name, each object and, of a module, what has a docstring in it."""
    out: dict[str, object] = {}
    for page in REFERENCE:
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            out[name] = found = resolved(name)
            if isinstance(found, ModuleType):
                own = [each for each, value in vars(found).items() if getattr(value, "__module__", "") == name]
                members = {each: getattr(found, each) for each in getattr(found, "__all__", own) if each[0] != "_"}
                out |= {f"{name}.{each}": value for each, value in members.items() if getdoc(value)}
    return out


def resolved(name: str) -> object:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(import_module(module), last)


def imported_by_the_docs() -> dict[str, object]:
    """`from manyheads.x import y` in the code of any page: who reads it will look y up."""
    out: dict[str, object] = {}
    for page in pages():
        for block in blocks_of(page):
            if block.language == "python":
                for module, names in re.findall(r"^ *from (manyheads\.[\w.]+) import (.+)$", block.code, re.MULTILINE):
                    wanted = [each.split(" as ")[0].strip(" ()") for each in names.split("#")[0].split(",")]
                    out |= {f"{module}.{each}": resolved(f"{module}.{each}") for each in wanted if each}
    return out


def is_shown(value: object, shown: dict[str, object]) -> bool:
    """Whether it is on some page, for itself or, of a module, through something in it."""
    if ismodule(value):
        return any(name == value.__name__ or name.startswith(f"{value.__name__}.") for name in shown)
    return any(each is value for each in shown.values())


def test_every_public_name_is_in_the_reference():
    shown = documented()
    names = [name for name in manyheads.__all__ if name != "__version__"]
    assert [name for name in names if not is_shown(getattr(manyheads, name), shown)] == []
    index = (DOCS / "reference" / "index.md").read_text(encoding="utf-8")
    assert [name for name in names if f"[`{name}`](" not in index] == []


def test_what_the_docs_import_is_in_the_reference_and_has_a_docstring():
    shown, plain = documented(), (str, int, float, tuple, frozenset)
    found = {name: value for name, value in imported_by_the_docs().items() if not isinstance(value, plain)}
    assert len(found) > 20
    assert [name for name, value in found.items() if not is_shown(value, shown)] == []
    assert [name for name, value in documented().items() if not getdoc(value)] == []


def test_docstrings_become_prose_with_links():
    text = (
        "What.\n\n`a`: one.\n`b` (two): three.\nCost: little. Errors: ShapeError; `TextError`.\n\n    code: ShapeError"
    )
    said = as_markdown(text, {"ShapeError", "TextError"})
    assert "one.  \n`b` (two): three." in said
    assert "**Cost:** little. **Errors:** [ShapeError][manyheads.errors.ShapeError]; `TextError`." in said
    assert said.endswith("\n\n    code: ShapeError")
    linked = "See [layer](layer.md), [format](../format.md)."
    assert as_markdown("See docs/reference/layer.md, docs/format.md.", set()) == linked
    assert as_markdown("See docs/nowhere.md.", set()) == "See docs/nowhere.md."


# -------------------------------------------------------------------------------------------------- links that leave


@pytest.mark.parametrize(("given", "made"), [
    ("[one](../plan.md#a) `[two](x.md)`", "[one](../plan.md#a) `[two](x.md)`"),
    ("[front](../../README.md)", "[front](../index.md)"),
    ("[rules](../../CONTRIBUTING.md)", "[rules](../contributing.md)"),
    ("[its code](../../src/manyheads/plan.py)", "its code (`src/manyheads/plan.py`)"),
    ("[`src/manyheads/plan.py`](../../src/manyheads/plan.py)", "`src/manyheads/plan.py`"),
    ("```sh\n[its code](../../src/manyheads/plan.py)\n```", "```sh\n[its code](../../src/manyheads/plan.py)\n```"),
    ("[web](https://example.org/a)", "[web](https://example.org/a)"),
])  # fmt: skip
def test_links_out_of_docs_become_pages_or_paths(given, made):
    assert with_links(given, "studio/head.md") == made
    with pytest.raises(FileNotFoundError, match="studio/head.md has a link to ../../nowhere.md, which is not there"):
        with_links(f"{given} [gone](../../nowhere.md)", "studio/head.md")


# ================================================================================================== the way to the code
# Claims about the way to the code and its numbers: the tree, where to find what, files a page names, the lab log.


def test_the_tree_has_every_package_and_file_as_the_code_has_them():
    page = TREE_PAGE.read_text(encoding="utf-8")
    assert tree() in page, "again: make pages"
    names = {path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    assert len(names) > 100 and all(f"`{name}`" in page for name in names)


def test_every_answer_to_where_do_i_find_is_a_file_that_exists():
    section = HOUSE_PAGE.read_text(encoding="utf-8").partition("## Where do I find")[2].partition("\n## ")[0]
    answers = re.findall(r"^\|[^|]+\| (?:`([\w/]+/)`)? ?\| `(\w+\.py)` \|$", section, re.MULTILINE)
    assert len(answers) >= 30 and len(answers) == section.count(".py` |")
    assert [f"{folder}{name}" for folder, name in answers if not (PACKAGE / folder / name).is_file()] == []


def test_every_file_of_code_that_a_page_names_exists():
    """Lab log, decisions and changelog speak of their day."""
    dated = (DOCS / "lab.md", *(DOCS / "decisions").glob("*.md"))
    roots = (ROOT, ROOT / "src", PACKAGE)
    missing = [
        f"{named(page)}: {path}"
        for page in [*pages(), ROOT / "CONTRIBUTING.md"]
        if page not in dated
        for path in re.findall(r"`((?:[a-z_.]+/)+[a-z_]+\.py)`", page.read_text(encoding="utf-8"))
        if not any((root / path).is_file() for root in roots)
    ]
    assert missing == []


def test_the_lab_log_is_made_from_its_records_newest_first():
    assert LAB_PAGE.read_text(encoding="utf-8") == lab_markdown(), "again: make pages"
    dates = [record["date"] for record in records()]
    assert len(dates) >= 70 and dates == sorted(dates, reverse=True)
    assert all(list(record) == list(FIELDS) and all(record.values()) for record in records())
    written = RECORDS.read_text(encoding="utf-8")  # a field that comes twice would be lost in silence
    assert all(written.count(f"\n  {name}:") == len(dates) for name in FIELDS if name != "date")


# ================================================================================================= names that pages use
# Claims about the names that pages and examples use: they come from faces, so that what lies behind may move.
#
# A face is `manyheads` itself, one of its packages, `manyheads.<package>`, or a part of the laboratory,
# `manyheads.lab.<part>`. A program that is run by `python -m` may lie deeper where its own docstring says so.

EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".ipynb"))
IMPORT = re.compile(r"^\s*(?:from\s+(manyheads[\w.]*)\s+import\b|import\s+(manyheads[\w.]*))", re.MULTILINE)
PROGRAM = re.compile(r"(?:python3?|-m torch\.distributed\.run|torchrun[^\n]*?) -m (manyheads[\w.]*)")
NAME = re.compile(r"`(manyheads(?:\.\w+)+)")
DATED = {"docs/lab.md", "docs/house.md", "docs/tree.md"}  # what a record said on its day; what is made of the code


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
    """Whether it is a module of the top, or a folder in a package, whose stub lists its names."""
    return (
        module.count(".") <= 1
        or (Path(manyheads.__file__).parent.joinpath(*module.split(".")[1:], "__init__.pyi")).exists()
    )


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
        if named(path) not in DATED and "decisions" not in path.parts:
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
    assert is_face("manyheads") and is_face("manyheads.roles") and is_face("manyheads.roles.probes")
    assert not is_face("manyheads.roles.find")
    assert PROGRAM.findall(
        "python -m manyheads.roles.words.glossary\ntorchrun --nproc-per-node 2 -m manyheads roles"
    ) == [
        "manyheads.roles.words.glossary",
        "manyheads",
    ]
