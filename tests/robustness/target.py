"""A reader of outside bytes, and the judgement of one reading: read or refused, soon, in little memory, whole."""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from manyheads.errors import ManyHeadsError

SECONDS = 20.0  # of processor time that one reading may take: a hundred times what the slowest of the examples takes
PATIENCE = 6  # ... and by the clock so many times as long: a machine that runs other things is slow, not wrong
MEGABYTES = 256.0  # that one reading may add at its peak, whatever sizes its input declares
ROOM_BYTES = 2 << 30  # of addresses: past it, what asks for more gets a MemoryError, and this machine stays up


class Late(BaseException):
    """Nobody who catches every Exception of a foreign library may take it for one of those."""


Read = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Target:
    """`read(data, folder)` reads to the end whatever it makes of the bytes; `folder` is its own, to write them to.

    `make` gives whole examples. `bombs`: small inputs that claim to be large. `costly`: tens of milliseconds a reading.
    """

    name: str
    make: Callable[[], list[bytes]]
    read: Read
    bombs: Mapping[str, bytes | Callable[[], bytes]]
    costly: bool = False
    megabytes: float = MEGABYTES

    @cached_property
    def examples(self) -> list[bytes]:
        return self.make()

    def bomb(self, name: str) -> bytes:
        made = self.bombs[name]
        return made if isinstance(made, bytes) else made()


def judge(target: Target, data: bytes, folder: Path) -> str:
    """What the reader says to these bytes: "" where it reads them, else its refusal.

    Anything but a ManyHeadsError comes through, and so fails: `Late`, too. Memory, a refusal without words and a
    temporary file left behind are AssertionErrors.
    """
    said = ""
    with limited(SECONDS), walled(ROOM_BYTES), peak() as added:
        try:
            target.read(data, folder)
        except ManyHeadsError as error:
            said = str(error)
            assert said.strip(), f"a {type(error).__name__} without words"
    assert added[0] < target.megabytes, f"{target.name} took {added[0]:.0f} MB for {len(data)} bytes"
    left = [path.name for path in folder.rglob(".manyheads-*")]
    assert not left, f"{target.name} left {left} behind"
    return said


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises Late in a block that computes longer, or waits for `PATIENCE` times as long. Main thread only."""

    def late(*_: object) -> None:
        raise Late(f"it was still at it after {seconds:g} s")

    clocks = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, PATIENCE * seconds)}
    before = {number: signal.signal(number, late) for number in clocks}
    for clock, after in clocks.values():
        signal.setitimer(clock, after)
    try:
        yield
    finally:
        for number, (clock, _) in clocks.items():
            signal.setitimer(clock, 0)
            signal.signal(number, before[number])


@contextmanager
def walled(room: int) -> Iterator[None]:
    """The process gets so many bytes of addresses more than it has, and then none."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(resident("VmSize") * 2**20) + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def peak() -> Iterator[list[float]]:
    """How many MB the process had more at its peak in the block than before it, as Linux counts them."""
    added: list[float] = []
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew from here
    before = resident("VmRSS")
    try:
        yield added
    finally:
        added.append(resident("VmHWM") - before)


def resident(what: str = "VmRSS", process: int | str = "self") -> float:
    """A process' memory in MB: resident now (VmRSS) or at its peak (VmHWM), or its addresses (VmSize)."""
    found = re.search(rf"{what}:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
