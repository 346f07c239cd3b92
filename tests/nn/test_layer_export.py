"""The layer becomes a program of torch's alone, for any number of texts and tokens, and gives the same numbers."""

import subprocess
import sys

import pytest


@pytest.mark.slow  # 5 to 15 seconds each
@pytest.mark.parametrize("way", ["exported", "strictly", "padded", "traced", "compiled"])
def test_a_program_of_the_layer_gives_the_layers_numbers(way, fresh):
    command = [sys.executable, "-m", "tests.nn.exporting", way, str(fresh.initial_seed() % 2**31)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.stdout.strip() == "held", done.stderr[-3000:]
