"""The time of a loop over heads, a wide product and a fused one: in torch, here, whenever the cell runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from einops import rearrange

from manyheads.lessons.cells import Cell, Loader, Ran, matrix
from manyheads.lessons.format import LessonError
from manyheads.lessons.parameters import Values, require_fitting, whole
from manyheads.lessons.topics.splitting import FUSED, LOOP, WIDE, close_to

__all__ = ["CELLS"]

ROUNDS, WARM_UP = 15, 2  # timed runs of each way, in turn; before them some that are not counted
MOST_WORK = 3e8  # products in one run: all of them then take a second or two on a slow machine
MOST_SCORES = 2e7  # 80 MB of them


def timed(values: Values, load: Loader) -> Ran:
    """Each way timed in turn, in torch, float32, on the reader's own processor. Raises ShapeError, LessonError."""
    m, h, n, b = (values.whole(name) for name in ("d_model", "heads", "tokens", "batch"))
    require_fitting(values)
    work = b * n * m * (4 * m + 2 * n)
    if work > MOST_WORK or b * h * n * n > MOST_SCORES:
        raise LessonError(
            f"that is {work:.1e} products and {b * h * n * n:.1e} scores a run, {ROUNDS} runs of each way: take up to "
            f"{MOST_WORK:.0e} and {MOST_SCORES:.0e}."
        )
    ways, gap = _ways(m, h, n, b)
    found = _in_turn(ways)
    table = np.array([np.quantile(each, (0.5, 0.25, 0.75)) for each in found.values()])
    loop, wide, joined = table[:, 0]
    names = ("the loop", "one wide each", "one fused")
    overlap = table[1, 2] >= table[0, 1]
    note = " The middle halves of the two overlap: that is no clear difference." if overlap else ""
    return Ran(
        f"On this machine, just now: the loop takes {loop:.3g} ms, the wide product {wide:.3g} ms, the fused one "
        f"{joined:.3g} ms; so the wide one is {loop / wide:.1f} times as fast as the loop.{note} They agree "
        f"{close_to(gap)}.",
        (
            matrix("milliseconds", f"median of {ROUNDS} runs each, and where their middle half lies", table, names,
                   ("median", "from", "to")),
            matrix("times as fast", "as the loop, by the medians", (loop / table[:, 0])[:, None], names, ("times",)),
        ),
    )  # fmt: skip


def _ways(m: int, h: int, n: int, b: int) -> tuple[dict[str, Callable[[], Any]], float]:
    """The three, ready to run on the same weights and input; and how far apart their results are."""
    import torch

    d = m // h
    made = torch.Generator().manual_seed(0)
    x = torch.randn(b, n, m, generator=made)
    w_q, w_k, w_v, w_o = (torch.randn(4, m, m, generator=made) * m**-0.5).unbind()
    by_head = [[each[:, i * d : (i + 1) * d].contiguous() for each in (w_q, w_k, w_v)] for i in range(h)]
    w_qkv = torch.cat((w_q, w_k, w_v), 1)

    def attended(q: Any, k: Any, v: Any) -> Any:
        return (q @ k.transpose(-1, -2) * d**-0.5).softmax(-1) @ v

    def loop() -> Any:
        return torch.cat([attended(x @ q, x @ k, x @ v) for q, k, v in by_head], 2) @ w_o

    def wide() -> Any:
        q, k, v = (rearrange(x @ each, "b n (h d) -> b h n d", h=h) for each in (w_q, w_k, w_v))
        return rearrange(attended(q, k, v), "b h n d -> b n (h d)") @ w_o

    def joined() -> Any:
        q, k, v = rearrange(x @ w_qkv, "b n (three h d) -> three b h n d", three=3, h=h)
        return rearrange(attended(q, k, v), "b h n d -> b n (h d)") @ w_o

    with torch.no_grad():
        first, *others = (each() for each in (loop, wide, joined))
    return {LOOP: loop, WIDE: wide, FUSED: joined}, max(float((each - first).abs().max()) for each in others)


def _in_turn(ways: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Milliseconds of each run. In turn, so that whatever else the machine does falls on all of them."""
    import torch

    found: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        for _ in range(WARM_UP + ROUNDS):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                found[name].append(1000 * (time.perf_counter() - began))
    return {name: each[WARM_UP:] for name, each in found.items()}


CELLS: Mapping[str, Cell] = {
    "loop-or-wide": Cell(
        timed,
        (
            whole("d_model", "model width", 64, 1, 2048, 64),
            whole("heads", "heads", 8, 1, 64),
            whole("tokens", "tokens", 16, 1, 2048),
            whole("batch", "texts at a time", 1, 1, 256),
        ),
    ),
}
