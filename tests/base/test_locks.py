"""A lock excludes other processes and threads while it is held, and outlives nobody."""

import os
import signal
import subprocess
import sys

import pytest

from manyheads.base import locked, locks

BUSY = ValueError("somebody is there")
HOLD = """
import sys
from manyheads.base import locked
with locked(sys.argv[1], ValueError()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    return tmp_path / "lock" if request.param == "file" else tmp_path


def test_one_holder_at_a_time_in_one_process_too(path):
    with locked(path, BUSY):
        with pytest.raises(ValueError, match="somebody is there"), locked(path, BUSY):
            pytest.fail("two at once")
        with pytest.raises(ValueError, match="somebody is there"), locked(path, BUSY):
            pytest.fail("two at once, after a refusal")
    with locked(path, BUSY):
        pass


@pytest.mark.turns(4)
def test_another_process_is_refused_until_this_one_is_killed(path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdin is not None and child.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match="somebody is there"), locked(path, BUSY):
        pytest.fail("two at once")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with locked(path, BUSY):  # a file that a killed process left behind is no lock
        pass


def test_where_nothing_can_be_opened_the_systems_own_error_comes_through(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "none" / "lock", BUSY):
        pass


def test_a_file_system_without_locks_refuses_nobody_and_leaks_nothing(path, monkeypatch):
    def unsupported(*_, **__):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks, "lock_descriptor", unsupported)
    before = len(os.listdir("/proc/self/fd"))
    with locked(path, BUSY), locked(path, BUSY):
        pass
    assert len(os.listdir("/proc/self/fd")) == before
