"""What tests of recordings share: numbers drawn afresh, a file to write to, small tiles, and what is read when."""

import random as random_module

import pytest
import torch

from manyheads.recording import Recording
from manyheads.recording.exact_map import one_pass as tiles
from manyheads.recording.file.safetensors_io import TensorFile
from tests.recording.damage import save_whole


@pytest.fixture
def random(fresh: torch.Generator) -> random_module.Random:
    """Like `fresh`, but Python's; torch's global numbers follow it too."""
    torch.manual_seed(fresh.initial_seed())
    return random_module.Random(fresh.initial_seed())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cat.heads"


@pytest.fixture
def saved(random, path) -> Recording:
    """A recording with everything a file may hold, saved to `path`."""
    return save_whole(path)


@pytest.fixture
def reads(monkeypatch, unchecked_types):
    """The names of tensors, as they are read. (Checked types would look into sequences: not here.)"""
    names, read = [], TensorFile.read
    monkeypatch.setattr(TensorFile, "read", lambda self, name: (names.append(name), read(self, name))[1])
    return names


@pytest.fixture
def shrink(monkeypatch):
    """Tiles so small that a sentence has many borders; None leaves them as they are."""

    def to(cells, keys=5):
        if cells is not None:
            monkeypatch.setattr(tiles, "TILE_CELLS", cells)
            monkeypatch.setattr(tiles, "TILE_KEYS", keys)

    return to
