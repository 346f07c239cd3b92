"""The command, as the tests of `cli` run it."""

from tests.cli.conftest import run as run
from tests.cli.conftest import surroundings as surroundings
