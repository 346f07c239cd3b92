"""How much memory is free, how much of it one thing may take, and whether it ran out."""

from __future__ import annotations

# A refusal in words before something large is made is better than the system's own when memory runs out.
MEMORY_SHARE = 0.7  # of the memory that is free: what would take more is refused before it starts


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: this machine's, or that of a device (torch's error, by name: torch need not be there)."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def free_memory_bytes() -> int | None:
    """What the system could give without swapping; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
