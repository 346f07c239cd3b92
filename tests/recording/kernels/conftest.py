"""Kernels are interpreted in a process of their own, which `tests/recording/test_kernels.py` starts."""

import ctypes
import mmap
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = [] if INTERPRETED else ["test_numbers.py"]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Kernels by choice, with small tiles, every tensor in front of a wall, and answers that begin as NaN."""
    from triton.runtime import interpreter

    from manyheads.recording.exact_map import launches
    from tests.recording.kernels.conftest import behind_walls

    monkeypatch.setenv("MANYHEADS_PASS", "kernels")
    monkeypatch.setattr(launches, "launch", behind_walls(launches.launch))
    monkeypatch.setattr(launches.Reader, "_new", lambda self, *shape: self.lse.new_full(shape, float("nan")))
    once_patched(interpreter)


def once_patched(interpreter):
    """Patch the language for good: the interpreter would do so for each call of each function, half of its time."""
    import triton.language as tl

    if not hasattr(interpreter, "patch_again"):
        interpreter.patch_again, patched = interpreter._patch_lang, set()

        def patch(fn):
            if fn.__module__ not in patched:
                patched.add(fn.__module__)
                interpreter.patch_again(fn)
                # Triton 3.6 makes int() of an array of one number, which NumPy 2.4 refuses; 3.7 does this.
                tl.core.tensor.__index__ = lambda self: int(self.handle.data.squeeze())
            return interpreter._LangPatchScope()

        interpreter._patch_lang = patch


@pytest.fixture
def tiles(monkeypatch):
    """Tiles of lines x others, and sums of so many parts."""

    def to(lines=16, others=16, parts=8):
        from manyheads.recording.exact_map import launches

        shape = launches.Shape(lines, others, parts, "ieee", 4)
        monkeypatch.setattr(launches.Shape, "of", lambda q, major: shape)

    return to


# ================================================================================================================ walls
# Tensors in front of a wall: what a kernel reads or writes behind them ends the process, what it writes before shows.
#
# The interpreter touches real memory, so a kernel that strays would read or spoil whatever lies there, unseen.

PAGE, NEVER = mmap.PAGESIZE, 0xA5
MPROTECT = ctypes.CDLL(None, use_errno=True).mprotect


class Walled:
    """A copy of a tensor, of the same strides, that ends where a page ends; no one may touch the next page."""

    def __init__(self, tensor: torch.Tensor) -> None:
        length = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        size = length * tensor.element_size()
        self.before = -size % PAGE + PAGE
        self.memory = mmap.mmap(-1, self.before + size + PAGE)
        self.memory[: self.before] = bytes([NEVER]) * self.before
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        assert MPROTECT(ctypes.c_void_p(base + self.before + size), PAGE, 0) == 0
        cells = torch.frombuffer(self.memory, dtype=tensor.dtype, count=length, offset=self.before)
        self.original, self.tensor = tensor, cells.as_strided(tensor.shape, tensor.stride())
        self.tensor.copy_(tensor)

    def back(self) -> None:
        """What the kernel wrote, into the tensor that was walled."""
        assert self.memory[: self.before] == bytes([NEVER]) * self.before, "something was written before a tensor"
        self.original.copy_(self.tensor)


def behind_walls(launch):
    """The launch, every tensor of which stands in front of a wall while it runs."""

    def walled_launch(kernel, programs, *arguments, **constants):
        walled = {i: Walled(x) for i, x in enumerate(arguments) if isinstance(x, torch.Tensor) and x.numel()}
        copies = (walled[i].tensor if i in walled else x for i, x in enumerate(arguments))
        launch(kernel, programs, *copies, **constants)
        for own in walled.values():
            own.back()

    return walled_launch
