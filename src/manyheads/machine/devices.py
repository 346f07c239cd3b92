"""Devices: which one computes and why, which there are, the dtypes that one has, and how much memory is free on it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch

from manyheads.base import first_line
from manyheads.errors import ModelError
from manyheads.machine.memory import free_memory_bytes

VARIABLE = "MANYHEADS_DEVICE"
AS_REQUESTED = "as asked"
NO_ACCELERATOR = "since no accelerator is here"
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # of weights
# What torch raises for a device or dtype that is not there, by device: CUDA, the CPU, MPS, a build without the backend.
_NOT_THERE = (RuntimeError, AssertionError, NotImplementedError, TypeError, ImportError)
_NO_ROOM = ("out of memory", "ALLOC_FAILED")  # as MPS and cuBLAS say it, in a plain RuntimeError


def choose_device(device: str | torch.device | None = None, option: str = "device") -> tuple[torch.device, str]:
    """The device to compute on, and the reason in words: `device`, else what MANYHEADS_DEVICE says, else the
    accelerator (`torch.accelerator`) where there is one, else the CPU.

    An accelerator without float64 (MPS) must be requested: the errors that recordings state are measured in float64.
    Each of several processes that torchrun started on a machine gets an accelerator of its own as far as they go.
    `option`: what errors call `device`. Errors: ModelError for a device that is not here, with those that are, and for
    one that is full or busy.
    """
    variable = os.environ.get(VARIABLE, "").strip()
    if device is not None:
        return _usable(device, option), AS_REQUESTED
    if variable:
        return _usable(variable, VARIABLE), f"as {VARIABLE} says"
    accelerators = devices_here()[1:]
    if not accelerators:
        return CPU, NO_ACCELERATOR
    accelerator = torch.device(accelerators[0].type)
    if not has_dtype(accelerator, torch.float64):
        return CPU, f"since the accelerator here, {accelerator}, has no float64; device={str(accelerator)!r} takes it"
    if "LOCAL_RANK" not in os.environ:
        return accelerator, "the accelerator here"
    rank = int(os.environ["LOCAL_RANK"])
    return accelerators[rank % len(accelerators)], f"an accelerator here, for process {rank} of this machine"


def devices_here() -> list[torch.device]:
    """Those that torch can use here: the CPU first, then each accelerator."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    count = 0 if kind is None else torch.accelerator.device_count()
    return [CPU, *(torch.device(kind.type, index) for index in range(count) if kind is not None)]


def dtypes_of(device: torch.device) -> list[torch.dtype]:
    """The dtypes of weights that the device multiplies."""
    return [dtype for dtype in DTYPES if has_dtype(device, dtype)]


def has_dtype(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device multiplies matrices of that dtype: tried, since no table of torch says so.

    Errors: ModelError where the device is full or busy, which says nothing of its dtypes.
    """
    try:
        matrix = torch.ones(2, 2, dtype=dtype, device=device)
        torch.mm(matrix, matrix)
    except _NOT_THERE as error:
        unusable = isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError)
        if not unusable and not any(words in str(error) for words in _NO_ROOM):
            return False
        raise ModelError(
            f"{device} cannot be used now: {_fault(error)}. End what else runs there, or choose another device. "
            f"Here is: {_listed(map(str, devices_here()))}."
        ) from error
    return True


def require_dtype(device: torch.device, dtype: torch.dtype) -> None:
    """Raises ModelError for a dtype that the device cannot multiply, with those that it can."""
    if not has_dtype(device, dtype):
        raise ModelError(f"{device} has no {plain(dtype)}: use {_listed(map(plain, dtypes_of(device)))}, or the CPU.")


def plain(dtype: torch.dtype) -> str:
    """The dtype as people write it: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def free_bytes(device: torch.device) -> int | None:
    """The memory that is free on the device that would hold something; None where nobody says.

    What torch's allocator has reserved on an accelerator and does not use is free to us, and not to others.
    """
    if device.type == "cpu":
        return free_memory_bytes()
    try:
        free, _ = torch.accelerator.get_memory_info(device)
        unused = torch.accelerator.memory_reserved(device) - torch.accelerator.memory_allocated(device)
    except _NOT_THERE:
        return None
    return free + unused


class PeakMemory:
    """The most memory that was taken since this was made: on an accelerator by torch, on a CPU by this whole process.

    Its measure is the system's own, which starts again with each of these (Linux).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        try:
            if device.type == "cpu":
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is what is taken now
            else:
                torch.accelerator.reset_peak_memory_stats(device)
        except (OSError, *_NOT_THERE):
            pass  # the peak is then of all that this process has done

    @property
    def num_bytes(self) -> int | None:
        """In bytes; None where nobody says."""
        try:
            if self.device.type != "cpu":
                return torch.accelerator.max_memory_allocated(self.device)
            with open("/proc/self/status", encoding="utf-8") as lines:
                return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
        except (OSError, StopIteration, *_NOT_THERE):
            return None


def native_bf16() -> bool:
    """Whether the CPU has instructions for products of bf16."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))


def _usable(device: str | torch.device, name: str) -> torch.device:
    """`device`, tried before any file is read: one that is not there should not cost the loading of weights."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)  # a device that has a name need not be there
    except _NOT_THERE as error:
        fault = _fault(error)
        if fault.startswith("Expected one of cpu"):  # and twenty more types, most of which nobody has
            fault = f"torch knows no device of type {str(device).partition(':')[0]!r}"
        elif str(device).partition(":")[0] == "cuda" and torch.version.cuda is None and torch.version.hip is None:
            fault += ". Install torch's build for it, or leave the device out"
    else:
        if place.type != "meta":
            return place
        fault = "its tensors hold no numbers"
    raise ModelError(f"{name}={str(device)!r} cannot be used: {fault}. Here is: {_listed(map(str, devices_here()))}.")


def _fault(error: Exception) -> str:
    """The first sentence of torch's message, without its point; what follows is advice for torch's own callers."""
    return first_line(error, 300).partition(". ")[0].rstrip(".") or type(error).__name__


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
