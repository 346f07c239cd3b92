"""The notebooks of this folder, run, and kept with what came out: each made of plain Python in `sources/`, but for one.

    python examples/make.py               all of them: some minutes of one core
    python examples/make.py long_text     those named

Sources are what one reviews and edits. Cells are parted by "# %%", as editors that know notebooks in Python part them;
of "# %% [markdown]" each line is prose behind a "#". What a cell says on stderr (bars of progress) is not kept.
Behind each title comes the cell `install_cell`, and above the title, once pyproject.toml names a repository, the badge
that opens the notebook in Google Colab.
`notebook` is written by hand and has no source. Its live page is not kept: a megabyte of script that is there anyway.
A cell behind "# %% [exercise]" defines a function for learners to write. From a source called `x_solutions` a second
notebook is made, `x_exercises`, in which such a function is a stub, its solution folded below it; that one is not run.
"""

from __future__ import annotations

import ast
import base64
import copy
import io
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from PIL import Image

EXAMPLES = Path(__file__).parent
SOURCES = {path.stem: path for path in sorted((EXAMPLES / "sources").glob("*.py"))}
BY_HAND = ("notebook",)
CELL, PROSE, EXERCISE = "# %%", "# %% [markdown]", "# %% [exercise]"
SOLVED = {name.replace("_solutions", "_exercises"): name for name in SOURCES if name.endswith("_solutions")}
PATIENCE_SECONDS = 900  # of one cell by the clock, on a busy machine
# Small nets on two threads: where other work takes one, the other waits at every operation (15 minutes for 20 seconds).
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
COLORS = 96  # of a picture: a third of its bytes, and nobody sees it

INSTALL = """\
# Where manyheads is installed, this cell does nothing. Elsewhere, such as in Google Colab, it installs manyheads beside
# the torch, transformers, NumPy and pandas that are there: pip fails rather than change them.
# manyheads is not on the package index yet, so SOURCE is a checkout. Once it is: SOURCE = "manyheads[studio]".
from importlib.metadata import version
from importlib.util import find_spec

SOURCE = "./manyheads-main[studio]"
if getattr(find_spec("manyheads"), "origin", None) is None:
    kept = " ".join(f"{name}=={version(name)}" for name in ("torch", "transformers", "numpy", "pandas"))
    %pip install --quiet "{SOURCE}" {kept}"""
FETCHED = re.compile(r'load\("(minilm|smollm2)"\)')
COLAB, GITHUB = "https://colab.research.google.com", "https://github.com/"


def repository(project: Mapping[str, object]) -> str:
    """The repository on GitHub that pyproject.toml names (`[project.urls] Repository`), "owner/name", or ""."""
    urls = project.get("urls")
    place = str(urls.get("Repository", "")) if isinstance(urls, Mapping) else ""
    return place.removeprefix(GITHUB).strip("/") if place.startswith(GITHUB) else ""


def install_cell(code: str, project: Mapping[str, object]) -> NotebookNode:
    """The cell that installs manyheads where it is missing, with the weights that the notebook's code loads."""
    names, place = sorted(set(FETCHED.findall(code))), repository(project)
    text = INSTALL if not place else INSTALL.replace("a checkout", "its repository").replace(
        "./manyheads-main[studio]", f"manyheads[studio] @ git+{GITHUB}{place}")  # fmt: skip
    return new_code_cell(text + "".join(f"\n    !manyheads fetch {name}" for name in names), id="install")


def badge(name: str, project: Mapping[str, object]) -> str:
    """The badge that opens a notebook in Colab, which takes them from GitHub; "" where none is named."""
    place = repository(project)
    link = f"{COLAB}/github/{place}/blob/main/examples/{name}.ipynb"
    return f"[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({link})" if place else ""


def with_start(notebook: NotebookNode, name: str) -> NotebookNode:
    """The notebook with the badge and the cell that installs, in place of those that it had."""
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    title, *others = (cell for cell in notebook.cells if cell.id != "install")
    prose = title.source.partition("# ")
    title.source = f"{badge(name, project)}\n\n".lstrip() + "".join(prose[1:])
    notebook.cells = [title, install_cell("".join(cell.source for cell in others), project), *others]
    return notebook


def notebook_of(source: str) -> NotebookNode:
    """A source as a notebook that was not run."""
    cells = []
    for number, part in enumerate(source.split(f"\n{CELL}")[1:]):
        kind, _, text = part.partition("\n")
        if kind.strip() == PROSE.removeprefix(CELL).strip():
            prose = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.strip().splitlines())
            cells.append(new_markdown_cell(prose, id=f"cell-{number}"))
        else:
            cells.append(new_code_cell(text.strip(), id=f"cell-{number}"))
            if kind.strip() == EXERCISE.removeprefix(CELL).strip():
                cells[-1].metadata["tags"] = ["exercise"]
    spec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": spec, "language_info": {"name": "python"}})


def exercises_of(solutions: NotebookNode) -> NotebookNode:
    """The notebook with a stub in place of each function to write, and the solution folded in a cell of its own."""
    notebook = copy.deepcopy(solutions)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if "exercise" in cell.metadata.get("tags", ()):
            code, cell.source = cell.source, stub_of(cell.source)
            solution = code.partition("\n\n\n")[0]
            fold = f"<details><summary>Solution</summary>\n\n```python\n{solution}\n```\n\n</details>"
            cells.append(new_markdown_cell(fold, id=f"{cell.id}-solution"))
    notebook.cells = cells
    return notebook


def stub_of(code: str) -> str:
    """The code of a cell with `...` for what its first function does behind its docstring."""
    function = next(node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef))
    lines = code.splitlines()
    lines[function.body[1].lineno - 1 : function.end_lineno] = ["    ..."]
    return "\n".join(lines)


def run(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run every cell in `folder`; the first error ends it (nbclient's CellExecutionError)."""
    os.environ.pop("MPLBACKEND", None)  # the kernel's own draws into the notebook
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=PATIENCE_SECONDS, kernel_name="python3", resources=resources, record_timing=False
    )
    client.execute(env=os.environ | ONE_THREAD | {"TQDM_DISABLE": "1"})  # a bar comes and goes by time
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [
                _smaller(each) for each in cell.outputs if each.get("name") != "stderr" and not _is_bar(each)
            ]
    notebook.metadata.language_info = {"name": "python"}  # else the version, which would change with every machine
    return notebook


def _is_bar(output: NotebookNode) -> bool:
    """Whether it is a bar of progress, whose width is that of the moment."""
    return re.match(r"[\w ]+: +\d+%\|", "".join(output.get("data", {}).get("text/plain", ""))) is not None


def _smaller(output: NotebookNode) -> NotebookNode:
    """An output whose picture, if it has one, has few colors; without the view of a widget, which needs its kernel."""
    output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    if "image/png" in output.get("data", {}):
        picture, kept = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))), io.BytesIO()
        picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(kept, "png", optimize=True)
        output.data["image/png"] = base64.b64encode(kept.getvalue()).decode()
    return output


def plain(name: str) -> NotebookNode:
    """A notebook of this folder as it is before it is run."""
    if name in BY_HAND:
        return nbformat.read(EXAMPLES / f"{name}.ipynb", 4)
    solved = notebook_of(SOURCES[SOLVED.get(name, name)].read_text(encoding="utf-8"))
    return exercises_of(solved) if name in SOLVED else solved


def main(asked: list[str]) -> None:
    names = (*SOURCES, *SOLVED, *BY_HAND)
    if unknown := sorted(set(asked) - set(names)):
        sys.exit(f"no notebook is called {unknown[0]!r}: there are {', '.join(names)}.")
    for name in asked or names:
        place = EXAMPLES / f"{name}.ipynb"
        made = with_start(plain(name), name)
        if name not in SOLVED:
            with tempfile.TemporaryDirectory() as folder:
                made = run(made, Path(folder))
        made.metadata.pop("widgets", None)
        nbformat.write(made, place)
        print(f"{place.name}: {len(made.cells)} cells, {place.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
