"""Readers of what a run over a corpus left in its folder: the run is gone on with, to its table."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import manyheads as mh
from manyheads.statistics.corpus_run import store
from tests.robustness.file_targets import HUGE_HEADER, base, signed, split
from tests.robustness.target import Read, Target
from tests.statistics.corpus_runs import some_texts, tiny_lm

TEXTS = some_texts(6)


class Stopped(BaseException):
    pass


@cache
def states() -> Path:
    """Three folders of a run: `half`, stopped before its end, `merged`, the same with its parts merged, and `whole`."""
    lm = tiny_lm()
    mh.measure(lm, TEXTS, ["entropy", "previous_mass"], resume=base() / "whole")
    for name, most in (("half", store.MOST_PARTS), ("merged", 0)):
        with pytest.MonkeyPatch.context() as patch, suppress(Stopped):
            patch.setattr(store, "MOST_PARTS", most)
            patch.setattr(store.RunFolder, "finish", _stop)
            mh.measure(lm, TEXTS, ["entropy", "previous_mass"], resume=base() / name)
    return base()


def _stop(*_: object) -> None:
    raise Stopped


def state_of(which: str, pattern: str, header: bool = False) -> tuple[Any, Read]:
    """The examples of one file of a run's folder (or its header), and a reader that goes on from it."""

    def name() -> Path:
        return next((states() / which).glob(pattern))

    def examples() -> list[bytes]:
        data = name().read_bytes()
        return [json.dumps(split(data)[0]).encode()] if header else [data]

    def read(data: bytes, folder: Path) -> None:
        place = folder / which
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(states() / which, place)
        (place / name().name).write_bytes(signed(data, split(name().read_bytes())[1]) if header else data)
        try:
            table = mh.measure(lm_of_states(), TEXTS, ["entropy", "previous_mass"], resume=place)
            assert table.sums.num_texts <= len(TEXTS) or header
        finally:
            shutil.rmtree(place)

    return examples, read


@cache
def lm_of_states() -> Any:
    return tiny_lm()


STATES = {
    "run": state_of("half", "run.safetensors"),
    "run header": state_of("half", "run.safetensors", header=True),
    "part": state_of("half", "part-*.safetensors"),
    "part header": state_of("half", "part-*.safetensors", header=True),
    "merged part": state_of("merged", "part-*-sum-of-*.safetensors"),
    "merged part header": state_of("merged", "part-*-sum-of-*.safetensors", header=True),
    "finished": state_of("whole", "finished.safetensors"),
    "finished header": state_of("whole", "finished.safetensors", header=True),
}
STATE_TARGETS = tuple(
    Target(name, make, read, {"header": HUGE_HEADER}, costly=True) for name, (make, read) in STATES.items()
)
