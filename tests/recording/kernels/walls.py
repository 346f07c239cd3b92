"""Tensors in front of a wall: what a kernel reads or writes behind them ends the process, what it writes before shows.

The interpreter touches real memory, so a kernel that strays would read or spoil whatever lies there, unseen.
"""

import ctypes
import mmap

import torch

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
