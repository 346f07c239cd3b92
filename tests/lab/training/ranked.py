"""Processes that train together: `python -m tests.lab.training.ranked FOLDER` forks them, and prints what each found.

The small run has 11 rows of which some count more than others, so that no split is even, neither in rows nor in terms.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from manyheads.errors import ManyHeadsError
from manyheads.lab.training import carry_out
from manyheads.lab.training.loop import train
from manyheads.lab.training.runs import Run, Settings, rows_of
from manyheads.lab.training.together import together
from tests.processes import forked

CPU = torch.device("cpu")
SETTINGS = Settings(steps=12, rate=0.02, warmup=3, floor=0.25, clip=0.3, checkpoint_every=5, measure_every=4)
ROWS, PLACES = 11, 7


def counted(batch: Any) -> int:
    return int((batch["answers"] >= 0).sum())


def run_of(dropout: float = 0.0, rows: int = ROWS, terms: Callable[[Any], int] = counted) -> Run:
    """A small classifier of which one layer is never used, and so must neither move nor decay."""
    torch.manual_seed(3)
    model = nn.ModuleDict({
        "net": nn.Sequential(nn.Linear(5, 13), nn.Tanh(), nn.Dropout(dropout), nn.Linear(13, 3)),
        "idle": nn.Linear(2, 2),
    })  # fmt: skip

    def batch(step: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(rows, PLACES, 5, generator=generator)
        answers = x[..., :3].argmax(-1)
        told = torch.arange(PLACES) <= torch.arange(rows)[:, None]  # later rows have more answers
        return {"x": x, "answers": torch.where(told, answers, -100)}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model["net"](batch["x"]).flatten(0, 1), batch["answers"].flatten())

    def measure(model: Any, step: int) -> dict[str, float]:
        return {"noise": float(torch.randn(())), "weight": float(model["net"][0].weight.sum())}

    return Run("small", model, SETTINGS, batch, loss, measure, terms=terms)


def trained(run: Run, checkpoint: Path, stop: tuple[int, int] = (-1, -1)) -> dict[str, Any]:
    """What this process has at the end, or the error that it ended with. `stop`: the rank and step that are killed."""
    rank = dist.get_rank() if dist.is_initialized() else 0

    def progress(done: int, total: int | None, note: str = "", /) -> None:
        if (rank, done) == stop:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        with together(CPU) as team:
            done = train(run, checkpoint, progress=progress, team=team)
    except ManyHeadsError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    columns = {name: done.history.columns[name][1:] for name in ("loss", "norm", "rate")}
    weights = torch.cat([each.flatten() for each in done.model.parameters()]).tolist()
    measured = [done.history.taken(name)[1] for name in ("noise", "weight")]
    return {**columns, "weights": weights, "measured": measured, "at": done.resumed_at, "because": done.because}


def preset(name: str, folder: Path, killed: int = -1) -> dict[str, Any]:
    """A trial by `carry_out`: losses of all runs, and what this process found. `killed`: a rank, in step 4."""

    def progress(done: int, total: int | None, note: str = "", /) -> None:
        if done == 4 and killed >= 0 and dist.get_rank() == killed:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        outcome = carry_out(name, folder, quick=True, progress=lambda what: progress)
    except ManyHeadsError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    losses = {run: each.history.columns["loss"][1:] for run, each in outcome.trained.items()}
    return {"losses": losses, "found": outcome.report.get("found"), "rank": outcome.rank}


def drawn() -> dict[str, Any]:
    """Random numbers inside and outside of `noise`."""
    torch.manual_seed(5)
    inside, outside = [], []
    with together(CPU) as team:
        for step in (0, 1, 0):
            with team.noise(step, CPU):
                inside.append(float(torch.rand(())))
            outside.append(float(torch.rand(())))
        team.require_same(3, "here")  # nobody leaves before all have come
    return {"inside": inside, "outside": outside}


def all_of_it(at: Path, few: bool) -> dict[str, Any]:
    """What the tests ask, in processes of one interpreter that has loaded everything once; few: without slow ones."""
    found = {
        "one": trained(run_of(), at / "one.safetensors"),
        "two": forked(2, at / "two", lambda rank: trained(run_of(), at / ("two.safetensors", "second's")[rank])),
        "by rows": forked(2, at / "rows", lambda rank: trained(run_of(terms=rows_of), at / "rows.safetensors")),
        "killed": forked(2, at / "killed", lambda rank: trained(run_of(), at / "k.safetensors", (1, 8))),
        "again by one": trained(run_of(), copied(at / "k.safetensors", at / "k1.safetensors")),
        "again by two": forked(2, at / "again", lambda rank: trained(run_of(), at / "k.safetensors")),
        "drawn": forked(2, at / "drawn", lambda rank: drawn()),
    }  # fmt: skip
    if not few:
        noisy = replace(run_of(0.5), name="noisy")
        found |= {
            "three": forked(3, at / "three", lambda rank: trained(run_of(), at / "three.safetensors")),
            "apart": forked(
                2, at / "apart", lambda rank: trained(run_of(), at / ("two.safetensors", "no")[rank])
            ),
            "heads, one": preset("heads", at / "h1"),
            "heads, two": forked(2, at / "h", lambda rank: preset("heads", at / "h2")),
            "foreign": forked(2, at / "f", lambda rank: preset("collapse", at / "h2")),
            "lost": forked(2, at / "l", lambda rank: preset("heads", at / "h3", killed=1)),
            "found again": forked(2, at / "fa", lambda rank: preset("heads", at / "h3")),
            "too few": forked(3, at / "few", lambda rank: trained(run_of(rows=2), at / "few.safetensors")),
            "noisy": forked(2, at / "noisy", lambda rank: trained(noisy, at / "n.safetensors")),
            "noisy killed": forked(2, at / "nk", lambda rank: trained(noisy, at / "nk.safetensors", (0, 7))),
            "noisy again": forked(2, at / "na", lambda rank: trained(noisy, at / "nk.safetensors")),
        }  # fmt: skip
    return found | {"files": sorted(each.name for each in at.iterdir())}


def copied(source: Path, target: Path) -> Path:
    target.write_bytes(source.read_bytes())
    return target


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(all_of_it(Path(sys.argv[1]), few=sys.argv[2:] == ["few"])))
