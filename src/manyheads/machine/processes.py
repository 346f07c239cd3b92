"""Several processes that measure one corpus: who they are, and how what they found comes together.

Every process reads the same stream and measures batches of its own; they speak at the start (the survey, who goes on
with what) and at the end (sums are added). So a process that dies costs the others nothing that is not on the disk.
They speak by gloo, in a group of their own: it works whatever torch.distributed was initialised with, and waits as
long as it takes. What they send is numbers and JSON, never pickle.
"""

# pyright: reportUnknownMemberType=false
# torch.distributed has no types for its collective calls.

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from manyheads.base import first_line
from manyheads.errors import LostProcessError, ManyHeadsError, ModelError, StatisticError

PATIENCE = timedelta(days=30)  # the fastest process waits for the slowest, with the sums of all its batches in hand
_FINE, _REFUSED = b"+", b"-"  # the first byte of what process 0 computed: an answer, or why there is none


@dataclass(frozen=True)
class Ranks:
    """This process's number, and how many there are. `group` is None where there is one process.

    `device`: where the group's backend takes what is gathered and added. What all share is broadcast on the CPU.
    """

    rank: int = 0
    world: int = 1
    group: dist.ProcessGroup | None = field(default=None, repr=False)
    device: str = "cpu"

    def first(self, compute: Callable[[], bytes]) -> bytes:
        """Compute on process 0, and return its result on every process. Its errors are raised everywhere."""
        if self.group is None:
            return compute()
        data = None
        if self.rank == 0:
            try:
                data = _FINE + compute()
            except ManyHeadsError as error:
                # Before it is raised: the others are waiting for this very message, and would wait for `PATIENCE`.
                self._broadcast(_REFUSED + str(error).encode())
                raise
        data = self._broadcast(data)
        if data.startswith(_REFUSED):
            raise StatisticError(data[1:].decode())
        return data[1:]

    def _broadcast(self, data: bytes | None) -> bytes:
        """The bytes that process 0 has, everywhere."""
        # Its length first: gloo broadcasts into a buffer of a known size.
        size = torch.tensor([len(data) if data is not None else 0])
        with _reached():
            dist.broadcast(size, 0, group=self.group)
            buffer = torch.empty(int(size), dtype=torch.uint8)
            if data is not None:
                buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            dist.broadcast(buffer, 0, group=self.group)
        return buffer.numpy().tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        """Every process' bytes, everywhere, in the processes' order."""
        if self.group is None:
            return [data]
        with _reached():
            sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.world)]
            dist.all_gather(sizes, torch.tensor([len(data)], device=self.device), group=self.group)
            # gloo gathers what is of one size: everything is padded to the longest.
            width = max(1, max(int(size) for size in sizes))
            padded = torch.zeros(width, dtype=torch.uint8)
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else padded[:0]
            buffers = [torch.empty(width, dtype=torch.uint8, device=self.device) for _ in range(self.world)]
            dist.all_gather(buffers, padded.to(self.device), group=self.group)
        return [buffer[: int(size)].cpu().numpy().tobytes() for buffer, size in zip(buffers, sizes, strict=True)]

    def add(self, tensor: Tensor) -> None:
        """Make of every process' tensor the sum of all, in place."""
        if self.group is not None:
            with _reached():
                on_device = tensor.to(self.device)  # the tensor itself where it is there already
                dist.all_reduce(on_device, group=self.group)
                tensor.copy_(on_device)


ALONE = Ranks()
"""Measure everything here, whatever torch.distributed says: as where one model is split over the processes."""


@contextmanager
def joined_processes() -> Generator[Ranks]:
    """The processes of torch.distributed, where that is initialised, as a group of our own; else this one alone."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        yield ALONE
        return
    with _reached():
        # Of our own: another backend may not send bytes on the CPU, and another timeout may end a run that only waits.
        group = dist.new_group(backend="gloo", timeout=PATIENCE)
        assert isinstance(group, dist.ProcessGroup)  # of all processes, so that this one is in it
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), group)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group(group)


def own_rank() -> int:
    """This process's number among those of torch.distributed; 0 where it is alone."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_split(model: nn.Module) -> bool:
    """Whether the processes hold parts of one model: then they read every text together."""
    return any(hasattr(parameter, "to_local") for parameter in model.parameters())


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 (`fully_shard`) gathers the model's weights while it runs: then every process sees all heads."""
    # By its methods: to import torch's FSDP takes a while, and whoever has such a model has done it.
    return any(hasattr(module, "unshard") and hasattr(module, "reshard") for module in model.modules())


def splits_heads(model: nn.Module) -> bool:
    """Whether each process has heads of its own (tensor parallelism).

    Errors: ModelError where tensor parallelism and FSDP divide the same weights: that was never tried.
    """
    if not is_split(model):
        return False
    if not is_sharded(model):
        return True
    if any(len(_divided(weight)) > 1 for weight in model.parameters()):
        raise ModelError(
            f"the weights of this {type(model).__name__} are divided twice, by tensor parallelism and by FSDP: use one "
            f'of them, or neither (device_map="auto").'
        )
    return False


def _divided(weight: Tensor) -> list[int]:
    """The dimensions of the processes' mesh over which a weight is divided."""
    return [index for index, placement in enumerate(getattr(weight, "placements", ())) if placement.is_shard()]


def processes_of_heads(model: nn.Module) -> Ranks:
    """The processes among which tensor parallelism divides the model's heads; this one alone where it does not.

    They speak in the group in which the model itself does: all of them are in the same call of it.
    """
    divided = ((weight, _divided(weight)) for weight in model.parameters())
    meshes = ((getattr(weight, "device_mesh", None), over[0]) for weight, over in divided if over)
    mesh, dimension = next(meshes, (None, 0))
    if mesh is None or not splits_heads(model):
        return ALONE
    group = mesh.get_group(dimension)
    return Ranks(dist.get_rank(group), dist.get_world_size(group), group, mesh.device_type)


def require_all_heads(model: nn.Module, name: str, function: str) -> None:
    """Errors: ModelError where tensor parallelism divides the heads, of which `function` needs all in one process."""
    if splits_heads(model):
        raise ModelError(
            f"{function} needs all of {name} in one process, and tensor parallelism divides it among several: load it "
            f'whole, on several devices with device_map="auto". (record and measure take it as it is.)'
        )


@contextmanager
def torchrun() -> Generator[tuple[int, int]]:
    """For a program that torchrun may have started: its rank and world size, with torch.distributed initialised.

    Goes by the environment that torchrun sets (RANK, WORLD_SIZE); without it there is one process, (0, 1). Measuring
    needs gloo and nothing else. When one process dies torchrun tells the others to end (SIGTERM): that is then a
    LostProcessError here, so that a run says what happened and how it goes on before torch's traceback.
    """
    if dist.is_initialized():
        yield dist.get_rank(), dist.get_world_size()
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0, 1
        return
    with _reached():
        dist.init_process_group("gloo")
    # Python takes signal handlers in the main thread alone.
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _interrupt) if main else None
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
        if dist.is_initialized():
            dist.destroy_process_group()


GO_ON = (
    "Start the same command again, with all its processes: with --resume FOLDER (resume=) it goes on with what is on "
    "the disk, without it starts again."
)


def _interrupt(*_: object) -> None:
    raise LostProcessError(
        f"another process of this run is gone (killed, or out of memory), or torchrun itself was told to stop. {GO_ON}"
    )


@contextmanager
def _reached() -> Generator[None]:
    """Errors: LostProcessError in place of what gloo says of a connection that is closed."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            f"another process of this run is gone or cannot be reached ({first_line(error)}). {GO_ON}"
        ) from error
