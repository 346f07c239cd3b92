"""What works on the host works on a device, with the host's numbers: every case of `cases`, on a simulated accelerator.

The cases need a torch that believes in CUDA from its first import on, so they run in a process of their own; each of
them is a subtest here. `python -m tests.device` runs them directly.
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX") or "g++") is None,
    reason="the simulated accelerator needs a C++ compiler (g++, or what CXX names), and there is none",
)


def run_cases(tmp_path, subtests, *arguments):
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "tests.device", f"--junitxml={report}", "--tb=short", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert report.exists(), done.stdout[-4000:] + done.stderr[-4000:]
    cases = ET.parse(report).getroot().findall(".//testcase")
    assert len(cases) > 10
    for case in cases:
        fault = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        with subtests.test(f"{case.get('classname')} {case.get('name')}"):
            assert fault is None, f"{fault.get('message')}\n{fault.text}"
    assert done.returncode == 0, done.stdout[-4000:]


@NEEDED
def test_what_works_on_the_host_works_on_a_device(tmp_path, subtests):
    run_cases(tmp_path, subtests)


@NEEDED
@pytest.mark.slow
def test_what_takes_minutes_works_on_a_device_too(tmp_path, subtests):
    run_cases(tmp_path, subtests, "-m", "slow")
