"""The notebooks of examples/ in Colab's versions, with the packages that `make release` builds.

`make test-notebooks` builds the packages, makes the environment (Colab's Python, torch, transformers, NumPy and pandas,
the rest as in the lock, without manyheads), and runs each notebook from its first cell on, whose pip has to install
manyheads beside what is there. Each runs in an empty folder with nothing of this checkout on its path. What came of it
is in notebooks.json, and in docs/versions.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.versions.combinations import ROOT, Combination, environment, run, versions_of
from tests.versions.work import OURS

COLAB = Combination(
    "colab-notebooks",
    "Google Colab's, November 2026",
    {"torch": "2.11.0", "transformers": "5.15.1", "numpy": "2.1.3", "pandas": "2.2.3"},
    "3.12",
)
EXAMPLES = ROOT / "examples"
RESULTS = Path(__file__).with_name("notebooks.json")
UNSOLVED = ("ioi_exercises",)  # ends at its first exercise, as it should
RUNNER = """
import re, sys
import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

notebook = nbformat.read(sys.argv[1], 4)
for cell in notebook.cells:
    if cell.cell_type == "code":
        cell.outputs = []
        # The one line that is another: there is no checkout, and pip is shown where the packages lie.
        cell.source = re.sub("^SOURCE = .*$", 'SOURCE = "manyheads[studio]"', cell.source, flags=re.M)
notebook.cells.append(new_code_cell("import manyheads; assert 'site-packages' in manyheads.__file__"))
notebook.metadata.pop("widgets", None)
NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
kept = notebook.metadata.get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
views = [output.get("data", {}).get("application/vnd.jupyter.widget-view+json", {}).get("model_id")
         for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
print(sum("_esm" in kept[view]["state"] for view in views if view in kept))
"""  # run by the environment's Python; bars of progress are widgets too, but have no program of their own


@dataclass(frozen=True)
class Ran:
    """One notebook: how long it took, the fault that ended it or "", and how many of its outputs hold the studio's
    page, as a widget whose model was saved."""

    name: str
    seconds: int
    fault: str
    widgets: int


def names() -> list[str]:
    """The notebooks that run from top to bottom."""
    return sorted(path.stem for path in EXAMPLES.glob("*.ipynb") if path.stem not in UNSOLVED)


def read() -> dict[str, Any]:
    """What was run last: the date, the versions, and a row a notebook."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def run_all(chosen: list[str]) -> int:
    """Make the environment, run the notebooks in it, and keep what came of it; how many failed."""
    packages = ROOT / "dist"
    if not list(packages.glob("manyheads_core-*.whl")):
        sys.exit("there is no package in dist/: make release builds them.")
    python = environment(COLAB)
    run([sys.executable, "-m", "pip", "--python", str(python), "uninstall", "-q", "-y", "manyheads", "manyheads-core"])
    versions = versions_of(python, "pandas", "anywidget")
    first, *others = chosen  # the first installs; the others then find what it installed, and run side by side
    rows = [kept(ran(python, packages, first), versions)]
    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        runs = [pool.submit(ran, python, packages, name) for name in others]
        rows += [kept(run.result(), versions) for run in as_completed(runs)]
    return sum(bool(row.fault) for row in rows)


def kept(row: Ran, versions: dict[str, str]) -> Ran:
    """The row itself, written into notebooks.json at once: what comes after it may be interrupted."""
    print(*asdict(row).values(), flush=True)
    earlier = read()["notebooks"] if RESULTS.exists() else []
    rows = {entry["name"]: entry for entry in [*earlier, asdict(row)] if entry["name"] in names()}
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
        "notebooks": [rows[name] for name in sorted(rows)],
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return row


def ran(python: Path, packages: Path, name: str) -> Ran:
    """Run one notebook by the environment's own nbclient."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith((*OURS, "MPLBACKEND"))}
    inside = {"PIP_FIND_LINKS": f"{packages} {outside.get('PIP_FIND_LINKS', '')}", "OMP_NUM_THREADS": "1"}
    begun, source = time.monotonic(), (EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        shutil.copy(EXAMPLES / f"{name}.ipynb", folder)
        command = [str(python), "-P", "-c", RUNNER, f"{name}.ipynb"]
        done = subprocess.run(
            command, cwd=folder, env={**outside, **inside}, capture_output=True, text=True, check=False
        )
    seconds, widgets = round(time.monotonic() - begun), 0
    if done.returncode:
        fault = (done.stderr or done.stdout).strip().splitlines()[-1][:200]
    else:
        widgets = int(done.stdout.split()[-1])
        fault = "" if widgets or "mh.show(" not in source else "no output holds the widget's model"
    return Ran(name, seconds, fault, widgets)
