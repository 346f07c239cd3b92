"""The house, as it stands: docs/images/house.svg and the table of docs/house.md. `python docs/house.py`

Floors come from pyproject.toml, where `make check` reads them too; who imports whom from the code itself, by the
library that import-linter stands on. A dot in a row: that package imports the one of the column. Columns stand in the
rows' order, so a dot left of the diagonal would be an import that goes up.
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
BEGIN, END = "<!-- made by `python docs/house.py`, held to it by a test -->", "<!-- /house -->"
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
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(each["layers"] for each in told["contracts"] if each["id"] == "floors")
    return [re.findall(r"\w+", layer) for layer in layers]


def imports() -> dict[str, set[str]]:
    """What each package or module of ours imports: others of ours, and what is named in `OUTSIDE`."""
    graph = grimp.build_graph("manyheads", include_external_packages=True, cache_dir=None)
    outside = {module: name for name, modules in OUTSIDE.items() for module in modules}
    out: dict[str, set[str]] = {name: set() for floor in floors() for name in floor}
    for module in graph.modules:
        parts = module.split(".")
        if parts[0] != "manyheads" or len(parts) == 1:
            continue
        for found in graph.find_modules_directly_imported_by(module):
            top, _, rest = found.partition(".")
            name = rest.partition(".")[0] if top == "manyheads" else outside.get(top, "")
            if name and name != parts[1]:
                out[parts[1]].add(name)
    return out


def said(name: str) -> str:
    """The first sentence of a package's or module's docstring."""
    path = PACKAGE / name / "__init__.py"
    source = (path if path.is_file() else PACKAGE / f"{name}.py").read_text(encoding="utf-8")
    first = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", first)[0]


def picture() -> str:
    """The matrix as an SVG without script or font from elsewhere, in light and dark."""
    found, rows, y = imports(), {}, TOP
    bands = []
    for floor in floors():
        bands.append((y, len(floor) * CELL))
        for name in floor:
            rows[name] = y + CELL / 2
            y += CELL
        y += GAP
    columns = {name: LEFT + row - TOP for name, row in rows.items()}
    edge = LEFT + y - TOP
    columns |= {name: edge + CELL * (at + 1) for at, name in enumerate(OUTSIDE)}
    width, height = edge + CELL * (len(OUTSIDE) + 1) + 30, y
    parts = [f'<rect class="floor" x="0" y="{at}" width="{width}" height="{high}" rx="5"/>' for at, high in bands]
    for name, x in columns.items():
        parts.append(f'<line class="guide" x1="{x}" x2="{x}" y1="{TOP}" y2="{height - GAP}"/>')
        parts.append(f'<text class="faded" transform="translate({x + 4} {TOP - 8}) rotate(-52)">{escape(name)}</text>')
    for name, row in rows.items():
        parts.append(f'<text x="10" y="{row + 4.5}">{escape(name)}</text>')
        parts.append(f'<rect class="own" x="{columns[name] - 5}" y="{row - 5}" width="10" height="10" rx="2"/>')
        for other in (each for each in columns if each in found[name]):
            kind = "outside" if other in OUTSIDE else "dot"
            title = f"<title>{escape(name)} imports {escape(other)}</title>"
            parts.append(f'<circle class="{kind}" cx="{columns[other]}" cy="{row}" r="5">{title}</circle>')
    words = "Who imports whom in manyheads: every import goes down"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{words}">'
    return "\n".join([head, f"<style>{STYLE}\n</style>", *parts, "</svg>\n"])


def table() -> str:
    """Every floor with its packages, and what each says of itself."""
    rows = [
        f"| {number if name == floor[0] else ''} | `{name}` | {said(name)} |"
        for number, floor in zip(range(len(floors()) - 1, -1, -1), floors(), strict=True)
        for name in floor
    ]
    return "\n".join([BEGIN, "| floor | package | what |", "|---|---|---|", *rows, END])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(before + table() + after, encoding="utf-8")
