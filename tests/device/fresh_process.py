"""The program that tries a saved checkpoint in a fresh process, with the simulated accelerator in that one too."""

import sys

sys.path.insert(0, __file__.rpartition("/tests/")[0])  # the process searches its program's folder for nothing

from tests.device import simulated  # isort: skip  # before anything that imports torch

import runpy
from importlib.util import find_spec
from pathlib import Path

simulated.install()
package = Path(find_spec("manyheads").origin).parent
runpy.run_path(str(package / "interventions/save/fresh_process_program.py"), run_name="__main__")
