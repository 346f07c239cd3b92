"""What the doctor finds around the package: packages, folders, variables, ports and browsers, each said as it is."""

import os
import platform
import socket
import tempfile
from base64 import urlsafe_b64encode
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, PathDistribution, version
from pathlib import Path

import pytest
from huggingface_hub.constants import _is_true

import manyheads
from manyheads.base import NEWEST_TESTED
from manyheads.doctor import ABSENT, FINE, NOTE, WRONG, packages, surroundings
from manyheads.doctor import surroundings as places
from manyheads.doctor import trials as machine
from manyheads.doctor.surroundings import VARIABLES, variables
from manyheads.models import BUNDLED

# ============================================================================================================= packages
# What is installed, held to what the metadata asks for: whatever is wrong with a package is said in a line.


METADATA = f"""Metadata-Version: 2.4
Name: manyheads
Version: {manyheads.__version__}
Requires-Python: >=3.11
Requires-Dist: torch<3,>=2.11
Requires-Dist: transformers<6,>=5.9
Requires-Dist: numpy>=2.0
Requires-Dist: einops>=0.8
Requires-Dist: colorama>=9; sys_platform == 'nowhere'
Provides-Extra: lightning
Requires-Dist: lightning>=2.5; extra == 'lightning'
Provides-Extra: studio
Requires-Dist: fastapi>=0.120; extra == 'studio'
Requires-Dist: uvicorn>=0.35; extra == 'studio'
Provides-Extra: dev
Requires-Dist: pytest>=9; extra == 'dev'
"""
HERE = {
    "manyheads": manyheads.__version__, "torch": "2.13.0+cpu", "transformers": "5.23.0", "numpy": "2.4.6",
    "einops": "0.8.2", "lightning": "2.6.6", "fastapi": "0.165.0", "uvicorn": "0.54.0", "pytest": "9.2.0",
}  # fmt: skip


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with manyheads' metadata as an installer writes it; `HERE` is what else is installed."""
    info = tmp_path / "manyheads.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    monkeypatch.setattr(packages, "distribution", lambda name: PathDistribution(info))
    packages.requirements.cache_clear()
    yield tmp_path
    packages.requirements.cache_clear()


@pytest.fixture
def installed(site, monkeypatch):
    """`installed(torch="2.12.1", numpy=None)`: these versions, None for what is not there."""

    def install(**changed):
        here = {**HERE, **{name.replace("_", "-"): each for name, each in changed.items()}}

        def found(name):
            if here[name] is None:
                raise PackageNotFoundError(name)
            return here[name]

        monkeypatch.setattr(packages, "version", found)

    install()
    return install


def by_subject(findings):
    return {each.subject: each for each in findings}


def test_versions_in_their_ranges_are_fine_those_of_other_platforms_not_asked_for(installed):
    found = by_subject(packages.needed())
    assert found["torch"].found == "2.13.0+cpu, within >=2.11,<3"
    assert found["others"].found == "within their ranges: einops 0.8.2"
    assert {each.state for each in found.values()} == {FINE} and set(found) == {
        "torch",
        "transformers",
        "numpy",
        "others",
    }


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"transformers": "5.8.9"}, 'transformers: 5.8.9, but >=5.9,<6 is needed. pip install "transformers>=5.9,<6"'),
        ({"transformers": "6.0.0"}, 'transformers: 6.0.0, but >=5.9,<6 is needed. pip install "transformers>=5.9,<6"'),
        ({"torch": None}, 'torch: not installed. pip install "torch>=2.11,<3", the build you want'),
        ({"einops": "0.7"}, 'einops: 0.7, but >=0.8 is needed. pip install "einops>=0.8"'),
    ],
)  # fmt: skip
def test_a_package_of_another_version_or_none_is_said_with_what_to_type(installed, changed, line):
    installed(**changed)
    assert [each.line for each in packages.needed() if each.state == WRONG] == [line]


@pytest.mark.parametrize(("name", "untested"), [("transformers", "5.99.0"), ("torch", "2.99.1+cu140")])
def test_a_version_in_its_range_that_is_newer_than_what_was_tested_is_a_note(installed, name, untested):
    tested, newer = NEWEST_TESTED[name], untested.rpartition(".")[0]
    installed(**{name: untested})
    found = by_subject(packages.needed())
    assert found[name].state == NOTE
    assert found[name].found.endswith(f"; {name} {newer} is newer than what was tested ({tested})")
    assert {finding.state for subject, finding in found.items() if subject != name} == {FINE}
    installed(**{name: f"{tested}.99"})  # a later patch release of what was tested
    assert by_subject(packages.needed())[name].state == FINE


def test_an_extra_is_here_or_what_to_type_is_said(installed, monkeypatch):
    monkeypatch.setattr(packages, "checkout", lambda: None)
    assert [(each.subject, each.state) for each in packages.extras()] == [("[lightning]", FINE), ("[studio]", FINE)]
    installed(lightning=None, uvicorn=None)
    lightning, studio = packages.extras()
    assert (lightning.state, studio.state) == (ABSENT, ABSENT)
    assert lightning.line == '[lightning]: not here: lightning. To have it: pip install "manyheads[lightning]"'
    assert studio.line == '[studio]: not here: uvicorn. To have it: pip install "manyheads[studio]"'


def test_an_extra_of_another_version_is_wrong(installed, monkeypatch):
    monkeypatch.setattr(packages, "checkout", lambda: None)
    installed(fastapi="0.99.0")
    assert [each.line for each in packages.extras() if each.state == WRONG] == [
        'fastapi: 0.99.0, but >=0.120 is needed. pip install "fastapi>=0.120"'
    ]


def test_what_only_a_checkout_needs_is_told_in_a_checkout_alone(installed, monkeypatch, tmp_path):
    installed(pytest=None)
    monkeypatch.setattr(packages, "checkout", lambda: tmp_path)
    dev = by_subject(packages.extras())["[dev]"]
    assert (dev.state, dev.remedy) == (ABSENT, 'To have it: pip install -e ".[dev]"')
    monkeypatch.setattr(packages, "checkout", lambda: None)
    assert "[dev]" not in by_subject(packages.extras())


def test_a_python_out_of_range_is_wrong(installed, monkeypatch):
    (found,) = packages.python()
    assert found.state == FINE and found.found.startswith(platform.python_version())
    monkeypatch.setattr(packages.platform, "python_version", lambda: "3.10.13")
    (found,) = packages.python()
    assert found.state == WRONG and ", but >=3.11 is needed" in found.found


def test_a_package_that_is_not_installed_or_another_version_is_said(installed):
    installed(manyheads="0.0.9")
    (found,) = (each for each in packages.own() if each.state == WRONG)
    assert f"{manyheads.__version__}, " in found.found and "what is installed calls itself 0.0.9" in found.found
    installed(manyheads=None)
    (found,) = packages.own()
    assert found.state == WRONG and "which is not installed" in found.found


def test_files_that_are_missing_or_changed_are_named(installed, site, monkeypatch):
    contents = {"manyheads/one.py": b"one = 1\n", "manyheads/static/page.js": b"page()\n", "manyheads/two.py": b"two\n"}
    # As from Python 3.12 on, on every Python: files that are not there are not among those of the distribution.
    every_file = PathDistribution.files.fget
    there = property(lambda self: [file for file in every_file(self) if file.locate().exists()])
    monkeypatch.setattr(PathDistribution, "files", there)
    digests = {name: urlsafe_b64encode(sha256(data).digest()).decode().rstrip("=") for name, data in contents.items()}
    record = "".join(f"{name},sha256={digests[name]},{len(data)}\n" for name, data in contents.items())
    (site / "manyheads.dist-info/RECORD").write_text(f"{record}manyheads.dist-info/METADATA,,\n../bin/manyheads,,\n")
    for name, data in contents.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    assert packages.damaged_files() == ([], 3)
    assert by_subject(packages.own())["its files"].found == "3, as they were installed"
    (site / "manyheads/static/page.js").write_bytes(b"page();\n")
    (site / "manyheads/two.py").unlink()
    found = by_subject(packages.own())["its files"]
    assert found.state == WRONG
    assert found.found == "2 of 3 missing or changed: manyheads/static/page.js, manyheads/two.py"
    line = "pip install --force-reinstall --no-deps manyheads (in a checkout: --no-deps .)"
    assert found.remedy == f"Install it anew: {line}." and BUNDLED["tiny-code"].repair == line


def test_the_real_metadata_is_read(monkeypatch):
    """... of this very environment, which has everything."""
    packages.requirements.cache_clear()
    found = by_subject([*packages.own(), *packages.python(), *packages.needed(), *packages.extras()])
    assert [each.line for each in found.values() if each.state == WRONG] == []
    assert found["torch"].found.startswith(f"{version('torch')}, within >=2.11,<3")
    assert {"[studio]", "[bench]", "[dev]"} <= set(found)


# ================================================================================== folders, variables, ports, browsers
# Folders that cannot be written, variables that change results, ports and browsers: each said as it is.


DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def variable(monkeypatch):
    """`variable("OMP_NUM_THREADS", "two")`: the one finding where only that is set."""
    for name in list(os.environ):
        if name in VARIABLES or name.startswith(surroundings.FAMILIES):
            monkeypatch.delenv(name)

    def of(name, value):
        monkeypatch.setenv(name, value)
        (found,) = variables()
        return found

    return of


def test_no_variable_that_matters_is_said_too(variable):
    (found,) = variables()
    assert (found.state, found.found) == (FINE, "none is set that would change a result")


def test_a_variable_is_shown_with_what_it_does(variable):
    found = variable("ATEN_CPU_CAPABILITY", "avx2")
    assert (found.state, found.found) == (
        NOTE,
        "avx2: which instructions torch may use: slower, and last digits differ",
    )


def test_a_secret_and_what_nobody_knows_are_not_shown(variable):
    assert variable("HF_TOKEN", "hf_abcdef").found == "set: who you are to the hub"


def test_an_unknown_variable_of_a_known_family_is_named_and_not_shown(variable):
    found = variable("TORCH_SOMETHING", "hunter2")
    assert (found.state, found.found) == (NOTE, "set; not one that manyheads knows")


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("value", ["1", "yes", "True", "ON", "0", "no", "False", "off", "maybe", "2", "y"])
def test_offline_is_what_huggingface_hub_takes_for_it(variable, name, value):
    found = variable(name, value)
    assert _is_true(value) == (found.state == NOTE and found.found == f"{value}: {VARIABLES[name]}")
    if value in ("maybe", "2", "y"):
        assert (found.state, found.found) == (WRONG, f"{value!r} is not taken, so the hub is asked")
    elif not _is_true(value):
        assert (found.state, found.found) == (NOTE, f"{value}: the hub is asked, as if this were not set")


def test_of_two_variables_that_say_offline_the_hubs_own_is_read(variable, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    assert [each.found for each in variables()] == [
        "0: the hub is asked, as if this were not set", "1: not read, since HF_HUB_OFFLINE is set",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5", "4,,2"])
def test_a_number_of_threads_that_is_none_is_wrong(variable, value):
    found = variable("OMP_NUM_THREADS", value)
    assert found.state == WRONG and found.found == f"{value!r} is no number of threads"


@pytest.mark.parametrize("value", ["1", "16", "4,2"])
def test_a_number_of_threads_is_a_note(variable, value):
    assert variable("OMP_NUM_THREADS", value).state == NOTE


def test_a_slip_of_the_finger_in_our_own_variables_is_found(variable):
    found = variable("MANYHEADS_CAHCE", "/tmp")
    assert found.state == WRONG and found.remedy == "Write MANYHEADS_CACHE, or unset it."


@pytest.mark.parametrize("name", ["COLOR", "PATH", "LOG", "X", "GOLD_DATA", ""])
def test_one_of_our_own_that_nothing_reads_is_a_note(variable, name):
    """A name is like another by what follows MANYHEADS_, which they all have."""
    found = variable(f"MANYHEADS_{name}", "red")
    assert (found.state, found.found) == (NOTE, "set, but nothing reads it")


def test_a_terminal_obeys_nothing_in_a_value(variable):
    assert (
        variable("HF_HOME", "/tmp/\x1b[31mred\nline").found
        == "/tmp/\N{REPLACEMENT CHARACTER}[31mred line: " + VARIABLES["HF_HOME"]
    )


def test_the_table_of_variables_is_in_the_documents():
    assert surroundings.variables_markdown() in (DOCS / "reference" / "doctor.md").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------- folders


def test_a_folder_is_tried_by_writing_and_left_as_it_was(tmp_path):
    found = places.writable("labels", tmp_path, "HERE", "too bad")
    assert (found.state, list(tmp_path.iterdir())) == (FINE, [])
    found = places.writable("labels", tmp_path / "not" / "yet", "HERE", "too bad")
    assert found.state == FINE and found.found.endswith("yet, made when it is needed")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_is_wrong(tmp_path):
    (tmp_path / "home").write_text("a file")
    found = places.writable("labels", tmp_path / "home/.cache/manyheads", "MANYHEADS_CACHE", "they are measured anew")
    assert found.state == WRONG
    assert (
        found.found
        == f"{tmp_path}/home/.cache/manyheads cannot be written (Not a directory), so they are measured anew"
    )
    assert found.remedy == "Name a folder that you may write to in MANYHEADS_CACHE."


def test_a_read_only_home_is_wrong_in_the_systems_words(tmp_path, monkeypatch):
    def refuses(**options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuses)
    assert "cannot be written (Read-only file system), so" in places.writable("x", tmp_path, "X", "it is lost").found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that takes no files: Linux's /proc")
def test_a_folder_where_nobody_can_write_is_wrong():
    assert places.writable("labels", Path("/proc/manyheads"), "MANYHEADS_CACHE", "too bad").state == WRONG


def test_the_folders_are_those_that_are_used(monkeypatch, tmp_path):
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path / "one"))
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "two"))
    (labels,), (progress,) = places.labels(), places.progress()
    assert str(tmp_path / "one") in labels.found and str(tmp_path / "two") in progress.found


# --------------------------------------------------------------------------------------------- port, browser, machine


def test_a_port_that_is_taken_is_a_note(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr("manyheads.studio.DEFAULT_PORT", other.getsockname()[1])
        (found,) = surroundings.port()
    assert found.state == NOTE and "cannot be had (Address already in use): the studio takes the next" in found.found
    (found,) = surroundings.port()
    assert found.state == FINE


def test_a_browser_is_found_missing_or_misnamed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MANYHEADS_CHROMIUM", raising=False)
    (found,) = surroundings.browser()
    assert (found.state, found.remedy) == (ABSENT, "To have it: make chromium")
    monkeypatch.setenv("MANYHEADS_CHROMIUM", str(tmp_path / "none"))
    (found,) = surroundings.browser()
    assert found.state == WRONG and f"{tmp_path / 'none'} is no program" in found.found
    (tmp_path / "chromium").write_text("#!/bin/sh\n")
    (tmp_path / "chromium").chmod(0o755)
    monkeypatch.delenv("MANYHEADS_CHROMIUM")
    (found,) = surroundings.browser()
    assert found.state == FINE and str(tmp_path / "chromium") in found.found


def test_more_threads_than_cores_are_a_note(monkeypatch):
    import torch

    found = {each.subject: each for each in machine.machine()}
    assert found["threads"].found.startswith(f"{torch.get_num_threads()} thread")
    assert torch.backends.cpu.get_cpu_capability() in found["processor"].found
    monkeypatch.setattr(machine, "cores_for_us", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    threads = {each.subject: each for each in machine.machine()}["threads"]
    assert (threads.state, threads.found) == (NOTE, "7 threads on 2 cores: they wait for each other")
    assert threads.remedy == "Faster: OMP_NUM_THREADS=2"
