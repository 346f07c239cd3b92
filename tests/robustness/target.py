"""A reader of outside bytes, and the judgement of one reading: read or refused, soon, in little memory, whole."""

from __future__ import annotations

import ctypes
import json
import re
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from manyheads.errors import ManyHeadsError

SECONDS = 20.0  # of processor time that one reading may take: a hundred times what the slowest of the examples takes
PATIENCE = 6  # ... and by the clock so many times as long: a machine that runs other things is slow, not wrong
MEGABYTES = 256.0  # that one reading may add at its peak, whatever sizes its input declares
LIBC = ctypes.CDLL(None)
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
    """How many MB the process had more at its peak in the block than before it, as Linux counts them.

    What earlier tests left free in the process' heap goes back to Linux first: used again, it would not count.
    """
    added: list[float] = []
    LIBC.malloc_trim(0)
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


# =============================================================================================================== damage
# Damage: bytes changed, cut, doubled and spliced; JSON with one thing in it that is something else.
#
# Everything is drawn from a `Random`, which Hypothesis can stand in for: then a failure is shrunk.

STRANGE = (
    None, True, False, 0, 1, -1, 7, 0.5, -0.0, 1e400, 2**31, 2**40, 2**63, 2**64, -(2**70), 10**400,
    "", "a", "L0H1", "\0", "\n", "\ud800", "../..", "/etc/passwd", "é" * 300, "9" * 5000,
    [], {}, [[]], [0], {"": None},
)  # fmt: skip
TOKENS = (
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\r\n", b"\n\n", b"\t", b'"', b"\\", b"{", b"}", b"[" * 2000, b"]",
    b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"-", b"=", b"#", b"|", b"*", b",", b"\xed\xa0\x80", b"\\ud800",
    b"\x1f\x8b", b"null", b"true", b"-1", b"99999999999999999999", b"../", b"%00", b"Entity=(1-", b"L0H" + b"9" * 5000,
)  # fmt: skip
DEEP = 3000  # lists in lists: past what Python's own recursion bears
DEEP_JSON = b"[" * 30 * DEEP + b"]" * 30 * DEEP
DIGITS = b"9" * 5000  # more than Python makes a number of


def mutated(random: Random, examples: Sequence[bytes]) -> bytes:
    """One of the examples, damaged once or a few times."""
    data = random.choice(examples)
    if random.random() < 0.5 and (changed := changed_json(random, data)) is not None:
        return changed
    for _ in range(random.choice((1, 1, 2, 4))):
        data = damaged(random, data, examples)
    return data


def damaged(random: Random, data: bytes, examples: Sequence[bytes]) -> bytes:
    """One change of the bytes."""
    begin = random.randint(0, len(data))
    end = min(len(data), begin + random.choice((1, 1, 2, 8, 64, 4096)))
    match random.choice(("bit", "byte", "cut", "drop", "twice", "token", "splice", "number")):
        case "bit":
            flipped = bytes(each ^ 1 << random.randint(0, 7) for each in data[begin : begin + 1])
            return data[:begin] + flipped + data[begin + 1 :]
        case "byte":
            return data[:begin] + bytes([random.randint(0, 255)]) + data[begin + 1 :]
        case "cut":
            return data[:begin]
        case "drop":
            return data[:begin] + data[end:]
        case "twice":
            return data[:end] + data[begin:]
        case "token":
            return data[:begin] + random.choice(TOKENS) + data[random.choice((begin, end)) :]
        case "splice":
            other = random.choice(examples)
            return data[:begin] + other[random.randint(0, len(other)) :]
        case _:  # eight bytes that say how long something is
            size = random.choice((0, 1, 255, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1))
            return data[:begin] + size.to_bytes(8, "little") + data[begin + 8 :]


def changed_json(random: Random, data: bytes) -> bytes | None:
    """JSON with one thing in it changed, wherever that is; None for what is not JSON."""
    try:
        if random.random() < 0.03:
            return b'{"a":' * DEEP + b"1" + b"}" * DEEP if random.random() < 0.5 else b"[" * DEEP + b"]" * DEEP
        return json.dumps(changed(random, json.loads(data))).encode()
    except (ValueError, RecursionError):
        return None


def changed(random: Random, value: Any) -> Any:
    if isinstance(value, dict | list) and value and random.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key, out = random.choice(keys), value.copy()
        fate = random.random()
        if fate < 0.1:
            del out[key]
        elif fate < 0.2 and isinstance(out, list):
            out.append(out[key])
        elif fate < 0.2:
            out[random.choice(("", "format", "x" * 300, random.choice(keys)))] = out[key]
        else:
            out[key] = changed(random, value[key])
        return out
    if type(value) is int and random.random() < 0.5:
        return value + random.choice((-1, 1, 2, 1000, 2**31, 2**62, -(2**70)))
    if isinstance(value, str) and random.random() < 0.3:
        return damaged(random, value.encode("utf-8", "replace"), [b"abc"]).decode("utf-8", "replace")
    return random.choice(STRANGE)
