"""How much memory is free, asked before something large is made: a refusal in words is better than the system's."""

from __future__ import annotations

__all__ = ["MEMORY_SHARE", "free_memory_bytes"]

MEMORY_SHARE = 0.7  # of the memory that is free: what would take more is refused before it starts


def free_memory_bytes() -> int | None:
    """What the system could give without swapping; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
