"""Whatever bytes a reader is given, it reads them or refuses them in words: soon, in little memory, nothing left over.

`make test` tries the same few damages of each reader every time, `make test-all` others for every commit. A failure
prints what it was; `python -m tests.robustness.fuzz` goes on from there for as long as you like.
"""

import ctypes

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.refusals import refuses
from tests.robustness.target import Target, judge, mutated
from tests.robustness.targets import TARGETS

pytestmark = pytest.mark.usefixtures("unchecked_types")  # what users run: nothing checks types before a reader does

FEW, MANY = 12, 1500  # damages of a reader, by `make test` and by `make test-all`
COSTLY = 5  # times fewer where a reading takes tens of milliseconds


@pytest.fixture(params=TARGETS)
def target(request) -> Target:
    return TARGETS[request.param]


def damages(target: Target, folder, count: int, **options) -> None:
    """Judge `count` damaged examples. Hypothesis draws them, so that a failure is shrunk, and repeated by its blob."""
    healthy = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, **options}

    @settings(max_examples=max(1, count // (COSTLY if target.costly else 1)), print_blob=True, **healthy)
    @given(st.randoms(use_true_random=False))
    def property(random):
        data = mutated(random, target.examples)
        assert isinstance(judge(target, data, folder), str), data

    property()


def test_whole_examples_are_read(target, tmp_path):
    """Else nothing of what follows would say anything. (Requests may ask for what is not there.)"""
    said = [judge(target, data, tmp_path) for data in target.examples]
    assert said.count("") >= len(said) / 3, said


def test_damage_is_refused_in_words_or_read(target, tmp_path):
    damages(target, tmp_path, FEW, derandomize=True)


@pytest.mark.slow
def test_any_damage_is_refused_in_words_or_read(target, tmp_path):
    damages(target, tmp_path, MANY)


LARGE = {
    "short lines",
    "a list of lists",
    "a line of 127 MB",
    "a line of 600 MB",
    "words",
}  # seconds of reading, as much as is taken at all
BOMBS = [
    pytest.param(name, bomb, id=f"{name}: {bomb}", marks=[pytest.mark.slow] * (bomb in LARGE or number > 1))
    for name, target in TARGETS.items()
    for number, bomb in enumerate(target.bombs)  # each is a process: two of a kind of file stand for the others
]


@pytest.mark.parametrize(("name", "bomb"), BOMBS)
@pytest.mark.thinned
def test_what_claims_to_be_large_takes_neither_memory_nor_time(name, bomb, tmp_path):
    judge(TARGETS[name], TARGETS[name].bomb(bomb), tmp_path)


# ------------------------------------------------------------------------------------ what is judged could be otherwise


def of(read, tmp_path, **options) -> str:
    return judge(Target("a test", lambda: [b""], read, {}, **options), b"data", tmp_path)


def test_the_judge_lets_no_other_error_slowness_memory_or_rest_pass(tmp_path, monkeypatch):
    from manyheads.errors import TextError
    from tests.robustness import target as module

    def raising(error):
        def read(data, folder):
            raise error

        return read

    assert of(raising(TextError("no text here.")), tmp_path) == "no text here." and of(lambda *_: 3, tmp_path) == ""
    refuses(KeyError, "ids", of, raising(KeyError("ids")), tmp_path)
    refuses(AssertionError, "a TextError without words", of, raising(TextError(" ")), tmp_path)
    refuses(AssertionError, r"took \d+ MB for 4 bytes", of, lambda *_: b"x" * (400 << 20), tmp_path)
    with pytest.raises(MemoryError):
        of(lambda *_: bytearray(3 << 30), tmp_path)
    with pytest.raises(AssertionError, match=r"left \['\.manyheads-1\.tmp'\] behind"):
        of(lambda data, folder: (folder / ".manyheads-1.tmp").write_bytes(data), tmp_path)
    (tmp_path / ".manyheads-1.tmp").unlink()

    def endless(data, folder):
        try:
            while True:
                pass
        except Exception:
            return

    monkeypatch.setattr(module, "SECONDS", 0.2)
    refuses(module.Late, "still at it after 0.2 s", of, endless, tmp_path)


def test_memory_that_lay_free_in_the_heap_counts_when_it_is_used_again():
    from tests.robustness.target import LIBC, peak

    LIBC.malloc.restype = ctypes.c_void_p
    parts = [LIBC.malloc(ctypes.c_size_t(20 << 20)) for _ in range(9)]
    for part in parts:
        ctypes.memset(part, 1, 20 << 20)
    end = LIBC.malloc(ctypes.c_size_t(200 << 10))  # above them: a free part at the top would go back by itself
    for part in parts:
        LIBC.free(ctypes.c_void_p(part))
    with peak() as added:
        b"x" * (150 << 20)
    LIBC.free(ctypes.c_void_p(end))
    assert 149 < added[0] < 160


@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(st.randoms(use_true_random=False))
@example(__import__("random").Random(0))
def test_damage_is_bytes_and_mostly_other_bytes(random):
    whole = [b'{"a": [1, 2, {"b": "c"}]}', b"plain text\n"]
    assert isinstance(mutated(random, whole), bytes)


def test_every_kind_of_damage_occurs():
    from random import Random

    whole = [b'{"a": [1, 2, {"b": "c"}]}', b"plain text\n"]
    found = {mutated(Random(seed), whole) for seed in range(2000)}
    assert len(found) > 1000 and any(each.startswith(b"[" * 2000) for each in found) and b"" in found
