"""docs/images/house.svg, the table of docs/house.md, and docs/tree.md, from the code: `python docs/house.py`.

Floors come from pyproject.toml, where `make check` reads them too; who imports whom comes from the code itself, by the
library that import-linter uses. A dot in a row: that package imports the one of the column. Columns stand in the rows'
order, so a dot left of the diagonal would be an import that goes up. The tree has every package with the first
sentence of its docstring, and the names of its files, whatever the layout is.
"""

from __future__ import annotations

import ast
import re
import tomllib
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "manyheads"
PICTURE = ROOT / "docs" / "images" / "house.svg"
PAGE = ROOT / "docs" / "house.md"
TREE_PAGE = ROOT / "docs" / "tree.md"
BEGIN, END = "<!-- made by `python docs/house.py`, held to it by a test -->", "<!-- /house -->"
TREE_BEGIN, TREE_END = "<!-- the tree, made by `python docs/house.py`, held to it by a test -->", "<!-- /tree -->"
OUTSIDE = {"torch": ("torch",), "transformers": ("transformers",), "web server": ("fastapi", "starlette", "uvicorn")}
CELL, GAP, LEFT, TOP = 22, 7, 118, 104
STYLE = """
  text { font: 12.5px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1b1e24 }
  .faded { fill: #565a63 }
  .floor { fill: #f3f1ea } .own { fill: #d6d2c7 } .dot { fill: #a8401f } .outside { fill: #0072b2 }
  .guide { stroke: #e6e3db; stroke-width: 1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e9e7e1 } .faded { fill: #a9abaf }
    .floor { fill: #1d2025 } .own { fill: #43474f } .dot { fill: #f09a72 } .outside { fill: #56b4e9 }
    .guide { stroke: #2b2e34 }
  }"""


def floors() -> list[list[str]]:
    """The packages and modules of each floor, from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in settings["contracts"] if contract["id"] == "floors")
    return [re.findall(r"\w+", layer) for layer in layers]


def imports() -> dict[str, set[str]]:
    """The imports of each package or module of ours: others of ours, and the names of `OUTSIDE`."""
    graph = grimp.build_graph("manyheads", include_external_packages=True, cache_dir=None)
    outside = {module: name for name, modules in OUTSIDE.items() for module in modules}
    out: dict[str, set[str]] = {name: set() for floor in floors() for name in floor}
    for module in graph.modules:
        parts = module.split(".")
        if parts[0] != "manyheads" or len(parts) == 1:
            continue
        for imported in graph.find_modules_directly_imported_by(module):
            top, _, rest = imported.partition(".")
            name = rest.partition(".")[0] if top == "manyheads" else outside.get(top, "")
            if name and name != parts[1]:
                out[parts[1]].add(name)
    return out


def first_sentence(path: Path) -> str:
    """The first sentence of a file's or a package's docstring, on one line, as Markdown that makes no links."""
    source = (path / "__init__.py" if path.is_dir() else path).read_text(encoding="utf-8")
    paragraph = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]
    return re.sub(r"(`[^`]*`)|\[", lambda match: match[1] or r"\[", sentence)


def files(folder: Path) -> list[Path]:
    """The files of a package by name; `__init__.py` speaks for the package itself."""
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def packages(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/__init__.py"))


def picture() -> str:
    """The matrix as an SVG without script or font from elsewhere, in light and dark."""
    imported, rows, y = imports(), {}, TOP
    bands = []
    for floor in floors():
        bands.append((y, len(floor) * CELL))
        for name in floor:
            rows[name] = y + CELL / 2
            y += CELL
        y += GAP
    columns = {name: LEFT + row - TOP for name, row in rows.items()}
    edge = LEFT + y - TOP
    columns |= {name: edge + CELL * (place + 1) for place, name in enumerate(OUTSIDE)}
    width, height = edge + CELL * (len(OUTSIDE) + 1) + 30, y
    parts = [f'<rect class="floor" x="0" y="{top}" width="{width}" height="{high}" rx="5"/>' for top, high in bands]
    for name, x in columns.items():
        parts.append(f'<line class="guide" x1="{x}" x2="{x}" y1="{TOP}" y2="{height - GAP}"/>')
        parts.append(f'<text class="faded" transform="translate({x + 4} {TOP - 8}) rotate(-52)">{escape(name)}</text>')
    for name, row in rows.items():
        parts.append(f'<text x="10" y="{row + 4.5}">{escape(name)}</text>')
        parts.append(f'<rect class="own" x="{columns[name] - 5}" y="{row - 5}" width="10" height="10" rx="2"/>')
        for other in (column for column in columns if column in imported[name]):
            kind = "outside" if other in OUTSIDE else "dot"
            title = f"<title>{escape(name)} imports {escape(other)}</title>"
            parts.append(f'<circle class="{kind}" cx="{columns[other]}" cy="{row}" r="5">{title}</circle>')
    words = "Who imports whom in manyheads: every import goes down"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{words}">'
    return "\n".join([head, f"<style>{STYLE}\n</style>", *parts, "</svg>\n"])


def table() -> str:
    """Every floor with its packages and files."""
    rows = [
        f"| {number} | {', '.join(f'`{_path_of(name).name}`' for name in floor)} |"
        for number, floor in zip(range(len(floors()) - 1, -1, -1), floors(), strict=True)
    ]
    return "\n".join([BEGIN, "| floor | packages and files |", "|---|---|", *rows, END])


def tree() -> str:
    """Every package with its first sentence and its files' names; folders in it by their files' names alone."""
    lines = [TREE_BEGIN, "", *(f"- `{path.name}`: {first_sentence(path)}" for path in files(PACKAGE))]
    for package in packages(PACKAGE):
        lines += ["", f"### `{package.name}/`", "", f"{first_sentence(package)} {_names(package)}".rstrip(), ""]
        lines += _nested(package, 0)
    return re.sub(r"\n{3,}", "\n\n", "\n".join([*lines, TREE_END]))


def _path_of(name: str) -> Path:
    return PACKAGE / name if (PACKAGE / name).is_dir() else PACKAGE / f"{name}.py"


def _nested(folder: Path, depth: int) -> list[str]:
    lines = []
    for package in packages(folder):
        line = f"{' ' * 4 * depth}- `{package.name}/` {_names(package)}"
        lines += [line.rstrip(), *_nested(package, depth + 1)]
    return lines


def _names(folder: Path) -> str:
    return ", ".join(f"`{path.name}`" for path in files(folder))


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.partition(BEGIN)[0] + table() + page.partition(END)[2], encoding="utf-8")
    page = TREE_PAGE.read_text(encoding="utf-8")
    TREE_PAGE.write_text(page.partition(TREE_BEGIN)[0] + tree() + page.partition(TREE_END)[2], encoding="utf-8")
