"""A cache that forgets what was used longest ago: bounded by a number of entries and by their size, for any thread.

Sizes are whatever `size_of` counts (bytes, tokens). The entry that was put in last always stays, however large it is,
because whoever made it is about to use it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Cache(Generic[Key, Value]):
    """Values by key, the least recently used first. `max_size` bounds the sum of `size_of` over all values."""

    def __init__(
        self,
        max_entries: int | None = None,
        max_size: int | None = None,
        size_of: Callable[[Value], int] = lambda value: 0,
    ) -> None:
        self.max_entries, self.max_size, self.size_of = max_entries, max_size, size_of
        self.size = 0  # of all entries together
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.RLock()  # reentrant: dropping a value may run code that asks this cache
        # A lock for each key whose value is being made. Held weakly: it goes when the last thread that waits lets go.
        self._making: WeakValueDictionary[Key, threading.Lock] = WeakValueDictionary()

    def get(self, key: Key) -> Value | None:
        """The value, which is thereby used; None where there is none."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Key, value: Value) -> Value:
        """Keep a value, drop those used longest ago until all bounds hold, and return it."""
        size = self.size_of(value)
        with self._lock:
            self.drop(key)
            self._entries[key] = value, size
            self.size += size
            while len(self._entries) > 1 and (
                (self.max_entries is not None and len(self._entries) > self.max_entries)
                or (self.max_size is not None and self.size > self.max_size)
            ):
                self.drop(next(iter(self._entries)))
        return value

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value, made where there is none: by one thread, for which those that want the same key wait.

        Other keys do not wait. Where making raises, the error goes to that thread alone, and the next one tries.
        """
        with self._lock:
            making = self._making.get(key)
            if making is None:
                making = self._making[key] = threading.Lock()
        # Outside of `_lock`: making may take seconds, and others may read meanwhile.
        with making:
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
                    return self._entries[key][0]
            return self.put(key, make())

    def drop(self, key: Key) -> None:
        """Forget a value, where there is one."""
        with self._lock:
            if (entry := self._entries.pop(key, None)) is not None:
                self.size -= entry[1]

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        """The keys, the least recently used first."""
        with self._lock:
            return iter(list(self._entries))
