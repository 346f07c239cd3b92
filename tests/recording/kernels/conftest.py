"""Kernels are interpreted in a process of their own, which `tests/recording/test_kernels.py` starts."""

import os

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = [] if INTERPRETED else ["test_numbers.py"]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Kernels by choice, with small tiles, every tensor in front of a wall, and answers that begin as NaN."""
    from triton.runtime import interpreter

    from manyheads.recording.exact_map import launches
    from tests.recording.kernels.walls import behind_walls

    monkeypatch.setenv("MANYHEADS_PASS", "kernels")
    monkeypatch.setattr(launches, "launch", behind_walls(launches.launch))
    monkeypatch.setattr(launches.Reader, "_new", lambda self, *shape: self.lse.new_full(shape, float("nan")))
    once_patched(interpreter)


def once_patched(interpreter):
    """Patch the language for good: the interpreter would do so for each call of each function, half of its time."""
    if not hasattr(interpreter, "patch_again"):
        interpreter.patch_again, patched = interpreter._patch_lang, set()

        def patch(fn):
            if fn.__module__ not in patched:
                patched.add(fn.__module__)
                interpreter.patch_again(fn)
            return interpreter._LangPatchScope()

        interpreter._patch_lang = patch


@pytest.fixture
def tiles(monkeypatch):
    """Tiles of lines x others, and sums of so many parts."""

    def to(lines=16, others=16, parts=8):
        from manyheads.recording.exact_map import launches

        shape = launches.Shape(lines, others, parts, "ieee", 4)
        monkeypatch.setattr(launches.Shape, "of", lambda q, major: shape)

    return to
