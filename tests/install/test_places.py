"""Claims about the files that bring manyheads elsewhere: they say what pyproject.toml says, and publish what passed."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

from manyheads import __version__

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = DECLARED["project"]
ON_CONDA = {"torch": "pytorch"}  # names that conda-forge has otherwise


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_citation_says_what_the_project_says():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # what version 1.2.0 requires
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    said = [citation[name] for name in ("title", "version", "abstract", "license", "keywords", "authors")]
    assert said == [
        PROJECT["name"], __version__, PROJECT["description"], PROJECT["license"], PROJECT["keywords"],
        PROJECT["authors"],
    ]  # fmt: skip


def test_recipe_has_both_packages_with_the_projects_ranges():
    recipe = yaml.safe_load(read("conda/recipe.yaml"))
    assert recipe["context"]["version"] == __version__
    assert f">={recipe['context']['python_min']}" == PROJECT["requires-python"]
    core, whole = recipe["outputs"]
    assert [output["package"]["name"] for output in (core, whole)] == ["manyheads-core", "manyheads"]
    entry = PROJECT["scripts"]["manyheads"]
    assert core["build"]["python"]["entry_points"] == [f"manyheads = {entry}"] and whole["build"]["noarch"] == "generic"
    (first, *core_lines), (pin, *whole_lines) = (output["requirements"]["run"] for output in (core, whole))
    assert first == "python >=${{ python_min }}" and pin == '${{ pin_subpackage("manyheads-core", exact=True) }}'
    requirements = [Requirement(line) for line in PROJECT["dependencies"]]
    for lines, in_core in ((core_lines, True), (whole_lines, False)):
        ranges = {line.split()[0]: set(line.split()[1].split(",")) for line in lines}
        assert ranges == {
            ON_CONDA.get(entry.name, entry.name): set(map(str, entry.specifier))
            for entry in requirements
            if (entry.name in DECLARED["tool"]["manyheads"]["core"]) == in_core
        }


def test_release_publishes_without_a_password_what_was_built_and_tested():
    text = read(".github/workflows/release.yml")
    jobs = yaml.safe_load(text)["jobs"]
    build, publish = jobs["build"], jobs["publish"]
    ran = [step["run"] for step in build["steps"] if "run" in step]
    assert [line for line in ran if line.startswith("make")] == ["make release", "make test", "make check"]
    assert publish["needs"] == "build" and publish["permissions"] == {"id-token": "write"}
    assert "permissions" not in build and publish["environment"]
    uploads = [step for step in publish["steps"] if "gh-action-pypi-publish" in step.get("uses", "")]
    assert [step["with"]["packages-dir"] for step in uploads] == ["core/", "dist/"]
    assert all(re.fullmatch(r"[\w/-]+@v\d+(\.\d+\.\d+)?", used) for used in re.findall(r"uses: (\S+)", text))
    assert all(re.search(r"@v\d+\.\d+\.\d+$", step["uses"]) for step in uploads)
    assert not re.search(r"secrets\.|password|https?://", text.partition("\njobs:")[2])


def test_image_installs_the_locked_torch_and_serves_the_studio_as_no_root():
    text = read("Dockerfile")
    (torch,) = re.findall(r"pip install torch==(\S+)", text)
    assert f"install torch=={torch} " in read("Makefile") and f"pip install torch=={torch}" in read("README.md")
    copied = " ".join(re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)).split()
    assert all((ROOT / name).exists() for name in copied)
    assert {f"!{name}" for name in copied} < set(read(".dockerignore").splitlines())
    (user,) = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
    assert int(user) > 0 and text.index("USER") < text.index("manyheads fetch")
    command = json.loads(text.partition("\nCMD ")[2])
    assert command[:2] == ["manyheads", "studio"] and f"EXPOSE {command[command.index('--port') + 1]}" in text
