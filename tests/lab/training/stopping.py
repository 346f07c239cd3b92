"""Trainings that are stopped in their middle, as by Ctrl-C, and taken up again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from manyheads.lab.training import Outcome, carry_out
from manyheads.lab.training import loop as engine


@contextmanager
def stopping_before(step: int) -> Iterator[None]:
    """Inside, the so many-th step, counted from 1 over all runs, is not taken: Ctrl-C comes first."""
    taken, one = [], engine._one_step

    def stops(*arguments: Any) -> Any:
        taken.append(0)
        if len(taken) == step:
            raise KeyboardInterrupt
        return one(*arguments)

    with patch.object(engine, "_one_step", stops):
        yield


def whole_and_resumed(preset: str, folder: Path, stop: int) -> tuple[Outcome, Outcome]:
    """A trial that never stopped, in `folder/whole`, and one that was stopped before that step and taken up again."""
    whole = carry_out(preset, folder / "whole", quick=True)
    with stopping_before(stop), pytest.raises(KeyboardInterrupt):
        carry_out(preset, folder / "other", quick=True)
    return whole, carry_out(preset, folder / "other", quick=True)
