"""How things are timed beside each other, and how much memory a process had: what several benchmarks share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Calls = Mapping[str, Callable[[], object]]


def in_turns(
    calls: Calls, rounds: int, clock: Callable[[], float] = time.perf_counter, until: float | None = None
) -> dict[str, list[float]]:
    """Seconds of each call, round by round, after a round that warms up. One round times each once.

    `until`, in seconds of `time.time`: no round begins that would not be over by then, but for the first that counts.

    `clock`: `time.process_time` counts the seconds of processors, which other processes' load moves less; with one
    thread, for threads that wait may spin.

    So all meet the same machine. Each round begins with another call: what one leaves behind (memory given back,
    caches) falls on all alike.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    last_round = 0.0
    for turn in range(rounds + 1):
        began = time.time()
        if turn > 1 and until is not None and began + last_round > until:
            break
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            begin = clock()
            calls[name]()
            if turn:
                taken[name].append(clock() - begin)
        last_round = time.time() - began
    return taken


def ratio(ours: Sequence[float], theirs: Sequence[float], name: str = "ratio") -> dict[str, float]:
    """`ours` over `theirs`, each of the same round: the median of the ratios, called `name`, and their ends."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {name: statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def medians(taken: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(each) for name, each in taken.items()}


def memory_bytes(field: str, process: int | str = "self") -> int:
    """A process' memory as Linux counts it: VmRSS now, VmHWM at the most so far.

    Not by getrusage, which gives the parent's most where that was more.
    """
    with open(f"/proc/{process}/status", encoding="ascii") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def live_bytes(call: Callable[[], object]) -> int:
    """The most bytes of CPU tensors that were alive at once in a call, beyond those alive before it.

    Each allocation and release of torch's allocator, also within its kernels, as the profiler notes them: the same call
    gives the same number. A process' high-water mark does not: it counts what the C library keeps of freed memory,
    pages of libraries as they are first touched, and threads' stacks, which move it by several per cent of a training.
    Not seen: what other libraries take (NumPy's arrays, a product's packed panels).
    """
    from torch.profiler import ProfilerActivity, profile  # 200 MB, which a process whose memory is read must not hold

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    assert recorded.profiler is not None and recorded.profiler.kineto_results is not None
    noted = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(noted, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most
