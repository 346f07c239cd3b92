"""The notebooks of this folder, run, and kept with what came out: each made of plain Python in `sources/`, but for one.

    python examples/make.py               all of them: some minutes of one core
    python examples/make.py long_text     those named

Sources are what one reviews and edits. Cells are parted by "# %%", as editors that know notebooks in Python part them;
of "# %% [markdown]" each line is prose behind a "#". What a cell says on stderr (bars of progress) is not kept.
`notebook` is written by hand and has no source. Its live page is not kept: a megabyte of script that is there anyway.
"""

from __future__ import annotations

import base64
import io
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from PIL import Image

EXAMPLES = Path(__file__).parent
SOURCES = {path.stem: path for path in sorted((EXAMPLES / "sources").glob("*.py"))}
BY_HAND = ("notebook",)
CELL, PROSE = "# %%", "# %% [markdown]"
PATIENCE_SECONDS = 900  # of one cell by the clock, on a busy machine
# Small nets on two threads: where other work takes one, the other waits at every operation (15 minutes for 20 seconds).
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
COLORS = 96  # of a picture: a third of its bytes, and nobody sees it


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
    spec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": spec, "language_info": {"name": "python"}})


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
            cell.outputs = [_smaller(each) for each in cell.outputs if each.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}  # else the version, which would change with every machine
    return notebook


def _smaller(output: NotebookNode) -> NotebookNode:
    """An output whose picture, if it has one, has few colors; without the view of a widget, which needs its kernel."""
    output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    if "image/png" in output.get("data", {}):
        picture, kept = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))), io.BytesIO()
        picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(kept, "png", optimize=True)
        output.data["image/png"] = base64.b64encode(kept.getvalue()).decode()
    return output


def main(asked: list[str]) -> None:
    names = (*SOURCES, *BY_HAND)
    if unknown := sorted(set(asked) - set(names)):
        sys.exit(f"no notebook is called {unknown[0]!r}: there are {', '.join(names)}.")
    for name in asked or names:
        place = EXAMPLES / f"{name}.ipynb"
        by_hand = nbformat.read(place, 4) if name in BY_HAND else None
        with tempfile.TemporaryDirectory() as folder:
            made = run(by_hand or notebook_of(SOURCES[name].read_text(encoding="utf-8")), Path(folder))
        made.metadata.pop("widgets", None)
        nbformat.write(made, place)
        print(f"{place.name}: {len(made.cells)} cells, {place.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
