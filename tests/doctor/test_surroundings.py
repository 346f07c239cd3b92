"""Folders that cannot be written, variables that change results, ports and browsers: each said as it is."""

import os
import socket
import tempfile
from pathlib import Path

import pytest
from huggingface_hub.constants import _is_true

from manyheads.doctor import ABSENT, FINE, NOTE, WRONG, surroundings
from manyheads.doctor import surroundings as places
from manyheads.doctor import trials as machine
from manyheads.doctor.surroundings import VARIABLES, variables

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


def test_one_of_our_own_that_nothing_reads_is_a_note(variable):
    assert variable("MANYHEADS_COLOR", "red").found == "set, but nothing reads it"


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
