"""`michel-real`: how many heads of a pretrained model go, least important first, beside random orders, on prose.

Heads are ranked on every other window of a seed, and removed on the rest (`removal_curve`).
Source: Michel et al. 2019, Are sixteen heads really better than one?, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from manyheads.interventions import removal_curve
from manyheads.lab.reproductions import prose
from manyheads.lab.reproductions.michel_curve import FREE, curve_lines, free_shares
from manyheads.lab.reproductions.prose import windows_of
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.charts import Chart, Panel
from manyheads.models import load

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # of the heads
WINDOWS, TOKENS, ORDERS = 16, 128, 2  # of the windows one half ranks


def run(task: Task) -> Result:
    lm = load(prose.MODEL, device=task.device)
    counts = sorted({round(share * len(lm.spec.heads.heads)) for share in SHARES})
    windows, tokens = (4, 16) if task.quick else (WINDOWS, TOKENS)
    by_seed: list[dict[str, Any]] = []
    for seed in range(task.seeds):
        texts: list[Mapping[str, Tensor]] = [{"input_ids": row[None]} for row in windows_of(lm, seed, windows, tokens)]
        tell = None if task.progress is None else task.progress(f"seed {seed}")
        curve = removal_curve(
            lm, texts, "gradient", metric="loss", counts=counts, random=ORDERS, seed=seed, progress=tell or False
        )
        assert curve.before is not None
        by_seed.append({"curve": curve.to_dict(), **free_shares(curve, FREE * curve.before)})
    return Result(rows_of(by_seed), chart(by_seed), notes_of(by_seed))


# ------------------------------------------------------------------------------------------------------ what it shows


def rises(curve: Mapping[str, Any], share: float) -> tuple[float, float]:
    """The rise of the loss without that share of the heads: by importance, and in the mean of the random orders."""
    place = curve["counts"].index(round(share * len(curve["order"])))
    return curve["ranked"][place], float(np.mean([order[place] for order in curve["random"]]))


def rows_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    rows = [
        Row("heads that go for free", "20 % (WMT), 40 % (BERT)", tuple(one["free"] for one in by_seed),
            Claim("a fifth or more", low=0.2 - 1e-9), ".0%"),
        Row("... more than in random orders", "importance tells them",
            tuple(one["more_than_random"] for one in by_seed), Claim("more than 0", low=0.0), "+.0%"),
    ]  # fmt: skip
    papers = {0.1: "", 0.2: "no noticeable loss", 0.5: "a sharp loss"}
    for share, paper in papers.items():
        ranked, random = zip(*(rises(one["curve"], share) for one in by_seed), strict=True)
        rows += [
            Row(f"{share:.0%} of the heads removed, by importance: nats a token more", paper, ranked, None, "+.3f"),
            Row("... at random", "", random, None, "+.3f"),
            Row("... random over importance", "", less(random, ranked), Claim("above 0", low=0.0), "+.3f"),
        ]
    return tuple(rows)


def notes_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """How much is free, and which heads are the most important of every seed."""
    levels = ", ".join(f"{one['curve']['before']:.3f}" for one in by_seed)
    named = "; ".join(f"seed {seed}: {', '.join(one['curve']['order'][:-6:-1])}" for seed, one in enumerate(by_seed))
    return (f"Nats a token with all heads, seed by seed: {levels}. Most important: {named}.",)


def chart(by_seed: Sequence[Mapping[str, Any]]) -> Chart:
    """A curve a seed, by importance and at random."""
    lines = [line for seed, one in enumerate(by_seed) for line in curve_lines(one["curve"], named=not seed)]
    return Chart(
        "How many heads of a language model can go",
        f"{prose.MODEL}: heads set to zero, least important first; grey: the mean of {ORDERS} random orders",
        (Panel("rise of the loss, nats a token; a line for each order of the texts", tuple(lines)),),
        "heads removed, percent",
    )


REPRODUCTION = Reproduction(
    "michel-real",
    "how many heads of a language model can go",
    "Michel et al. 2019, Are Sixteen Heads Really Better than One? (NeurIPS).",
    "Up to 20 % of the heads of a WMT translator and 40 % of BERT's go, least important first, without a noticeable "
    "loss; with half or more of them gone performance drops sharply (section 4.2, figure 3).",
    f"Importance is the mean over texts of |d loss / d gate|, a gate on each head's output (section 4.1). {WINDOWS} "
    f"windows of {TOKENS} tokens of prose: every other one ranks, and on the rest heads are set to zero, least "
    f"important first, {', '.join(f'{share:.0%}' for share in SHARES[1:])} of them; beside them {ORDERS} random "
    f"orders. Free: up to the last step before the loss first rises by over {FREE:.0%} of itself.",
    (
        "smollm2 (135M, 30 layers of 9 heads, three key/value heads a layer), not a translator and not BERT with a "
        "task; the loss, which moves with everything, not BLEU or accuracy.",
        "The paper's importance is divided by its layer's norm; here it is not.",
        "Seeds are orders of the same texts, other halves and other random orders, not other models.",
    ),
    run,
)  # fmt: skip
