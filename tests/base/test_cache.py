"""A cache forgets what was used longest ago, keeps to its bounds, and makes each value once."""

import threading
import time

import pytest

from manyheads.base import Cache


def test_what_was_used_longest_ago_goes_first():
    cache = Cache[str, int](max_entries=3)
    for value, key in enumerate("abc"):
        assert cache.put(key, value) == value
    assert cache.get("a") == 0 and cache.get("x") is None
    cache.put("d", 3)
    assert list(cache) == ["c", "a", "d"] and len(cache) == 3 and "b" not in cache
    cache.put("c", 7)  # put again: the newest, and in there once
    assert list(cache) == ["a", "d", "c"] and cache.get("c") == 7


def test_sizes_are_bounded_and_the_last_value_stays_whatever_its_size():
    cache = Cache[str, bytes](max_size=10, size_of=len)
    for key, size in (("a", 4), ("b", 4), ("a", 6)):
        cache.put(key, b"x" * size)
    assert list(cache) == ["b", "a"] and cache.size == 10
    cache.put("c", b"x")
    assert list(cache) == ["a", "c"] and cache.size == 7
    cache.put("d", b"x" * 99)
    assert list(cache) == ["d"] and cache.size == 99
    cache.drop("d")
    cache.drop("d")
    assert not len(cache) and cache.size == 0


def test_a_value_is_made_once_however_many_threads_want_it_and_others_do_not_wait():
    cache = Cache[str, object]()
    started, go_on, made, results = threading.Event(), threading.Event(), [], []

    def slow() -> object:
        started.set()
        assert go_on.wait(10)
        made.append(object())
        return made[-1]

    threads = [threading.Thread(target=lambda: results.append(cache.get_or_make("a", slow))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    assert cache.get_or_make("b", lambda: 1) == 1 and cache.get("a") is None
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and results == made * 4
    assert not cache._making  # no lock is kept for a key that nobody makes


def test_where_making_fails_the_next_one_tries():
    cache = Cache[str, int]()
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make("a", lambda: 1 // 0)
    assert cache.get_or_make("a", lambda: 1) == 1 and cache.get_or_make("a", lambda: 2) == 1


def test_many_threads_keep_its_counts_right():
    cache = Cache[int, int](max_entries=5, max_size=100, size_of=lambda value: value)
    end = time.monotonic() + 0.2

    def work(seed: int) -> None:
        at = seed
        while time.monotonic() < end:
            at = (at * 31 + 7) % 40
            cache.put(at, at)
            cache.get_or_make((at * 3) % 40, lambda at=at: (at * 3) % 40)
            cache.drop((at * 7) % 40)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.size == sum(cache.get(key) for key in cache) <= 100 and len(cache) <= 5
