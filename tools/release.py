"""`python -m tools.release [FOLDER]`: what is published, built from this tree and checked; dist/ unless one is named.

Two packages (docs/decisions/020-two-wheels.md): `manyheads-core` holds the code and asks for what needs no torch;
`manyheads` holds the bundled weights, and asks for `manyheads-core` of the same version and all the rest. Each is
staged as a tree of its own, so that its source archive builds again. Both are built twice, and their bytes must be the
same.

Checked: the descriptions render and the metadata holds (twine), the wheels hold what they should
(check-wheel-contents), every file of others that we carry has its licence beside it. Both tools are asked of this
environment: `make release` installs them in one of their own.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE, WHOLE = "manyheads-core", "manyheads"
CORE_SENTENCE = "manyheads without torch: sizes of models, lessons, exercises, the NumPy reference of attention."
SHARED = ("README.md", "LICENSE")
WEIGHTS = "src/manyheads/bundled/tiny-code/model.safetensors"  # nothing without torch reads them
COMPILED = shutil.ignore_patterns("__pycache__", "*.pyc")
CARRIED = "src/manyheads/studio/licences.txt"  # made by web/dev/licences.mjs


def main(typed: Sequence[str]) -> int:
    """Build both packages, check them, and print their sizes and sums; 1 where something is wrong."""
    out = Path(typed[0] if typed else "dist")
    with tempfile.TemporaryDirectory(prefix="manyheads-release-") as name:
        first, second = (built(Path(name) / turn) for turn in ("first", "second"))
        faults = [*unlike(first, second), *checked(first)]
        if not faults:
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(first, out)
    for fault in faults:
        print(f"wrong: {fault}", file=sys.stderr)
    if not faults:
        for path in sorted(out.iterdir()):
            print(f"{digest(path)}  {path.name}  {path.stat().st_size / 1e6:.2f} MB")
    return int(bool(faults))


def built(folder: Path) -> Path:
    """The folder with the wheel and the source archive of both packages."""
    for name in (CORE, WHOLE):
        tree = staged(name, folder / "trees" / name)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(tree)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} cannot be built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return folder / "dist"


def staged(name: str, tree: Path) -> Path:
    """A tree that builds one of the packages: its pyproject.toml, and the package's files where it holds them."""
    tree.mkdir(parents=True)
    for file in SHARED:
        shutil.copy2(ROOT / file, tree / file)
    if name == CORE:
        shutil.copytree(ROOT / "src", tree / "src", ignore=COMPILED)
        (tree / WEIGHTS).unlink()
    else:
        (tree / WEIGHTS).parent.mkdir(parents=True)
        shutil.copy2(ROOT / WEIGHTS, tree / WEIGHTS)
    (tree / "pyproject.toml").write_text(pyproject(name), encoding="utf-8")
    return tree


def pyproject(name: str) -> str:
    """The pyproject.toml of one of the packages, from the tree's own."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = {key: value for key, value in own["project"].items() if key not in ("dynamic", "optional-dependencies")}
    (version,) = re.findall(
        r'^__version__ = "(.+)"$', (ROOT / own["tool"]["hatch"]["version"]["path"]).read_text(), re.M
    )
    core = own["tool"]["manyheads"]["core"]
    requirements = [line for line in project["dependencies"] if name == WHOLE or name_of(line) in core]
    project |= {"name": name, "version": version, "dependencies": requirements}
    if name == CORE:
        project["description"] = CORE_SENTENCE
    else:
        project["dependencies"] = [f"{CORE}=={version}", *requirements]
        extras = own["project"]["optional-dependencies"]
        project["optional-dependencies"] = {key: lines for key, lines in extras.items() if key not in ("dev", "docs")}
    tables: Mapping[str, Mapping[str, object]] = {
        "build-system": own["build-system"],
        "project": {key: value for key, value in project.items() if not isinstance(value, dict)},
        **{f"project.{key}": value for key, value in project.items() if isinstance(value, dict)},
        "tool.hatch.build.targets.wheel": {"packages": ["src/manyheads"]},
        "tool.hatch.build.targets.sdist": {"include": ["/src", *(f"/{file}" for file in SHARED)]},
    }
    return "\n".join(f"[{title}]\n{lines_of(table)}" for title, table in tables.items())


def lines_of(table: Mapping[str, object]) -> str:
    """A table of strings, flags, lists and tables of strings as TOML: what JSON and TOML write alike."""

    def written(value: object) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {written(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return f"[{', '.join(map(written, value))}]"
        return json.dumps(value, ensure_ascii=False)

    return "".join(f"{key} = {written(value)}\n" for key, value in table.items())


def name_of(requirement: str) -> str:
    """The package that a requirement names."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unlike(first: Path, second: Path) -> list[str]:
    """Files that two builds of one tree do not write alike."""
    return [
        f"{path.name}: two builds differ"
        for path in sorted(first.iterdir())
        if digest(path) != digest(second / path.name)
    ]


def checked(dist: Path) -> list[str]:
    """What is wrong with what was built."""
    files = sorted(map(str, dist.iterdir()))
    wheels = [file for file in files if file.endswith(".whl")]
    # W002: the page and the cards have the same icon. W010: one wheel has weights alone.
    tools = (["twine", "check", "--strict", *files], ["check_wheel_contents", "--ignore", "W002,W010", *wheels])
    faults = []
    for tool in tools:
        done = subprocess.run([sys.executable, "-m", *tool], capture_output=True, text=True)
        if done.returncode:
            faults.append(f"{tool[0]}: {(done.stdout + done.stderr).strip()[-1500:]}")
    if not (ROOT / CARRIED).is_file():
        faults.append(f"{CARRIED} is missing: the built page carries packages of others")
    return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
