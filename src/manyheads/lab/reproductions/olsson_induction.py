"""`olsson-induction`: a pretrained model's strongest induction heads removed, beside other heads of the same layers.

Heads are ranked on random tokens read twice, and removed on prose: what they do there was not used to choose them.
Source: Olsson et al. 2022, In-context learning and induction heads, arguments 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.lab.reproductions import prose
from manyheads.lab.reproductions.prose import losses_without, others_like, windows_of
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task
from manyheads.lab.training.charts import Chart, Points, PointsPanel
from manyheads.lab.training.runs import Progress
from manyheads.models import LoadedModel
from manyheads.roles.probes import probe_repeats

EARLY, LATE = slice(40, 60), slice(-60, None)  # tokens that stand for the paper's 50th and 500th


@dataclass(frozen=True)
class Sizes:
    windows: int = 10
    length: int = 512
    removed: int = 10
    draws: int = 5  # of other heads
    random_tokens: int = 128  # that are read twice
    samples: int = 16  # texts of random tokens that rank the heads


TRIAL = Sizes(windows=2, length=96, removed=2, draws=1, random_tokens=12, samples=2)


def run(task: Task) -> Result:
    seeds = prose.by_seed(task, measured, TRIAL if task.quick else Sizes())
    return Result(rows_of(seeds), chart(seeds), notes_of(seeds))


def measured(lm: LoadedModel, sizes: Sizes, seed: int, tell: Progress | None = None) -> dict[str, Any]:
    """One seed: what each kind of token costs with all heads, without the induction heads, and without others."""
    scores = probe_repeats(lm, samples=sizes.samples, seed=seed).after
    heads = list(lm.spec.heads.heads)
    value = {head: scores[head].score for head in heads}
    strongest = sorted(heads, key=lambda head: -value[head])[: sizes.removed]
    ids = windows_of(lm, seed, sizes.windows, sizes.length)
    vocabulary = ids.unique()
    chosen = torch.randint(len(vocabulary), (2, sizes.random_tokens), generator=torch.Generator().manual_seed(seed))
    random_ids = vocabulary[chosen].repeat(1, 2)
    again = seen_before(ids)
    out = {"heads": {str(head): value[head] for head in strongest}, "share_again": float(again.float().mean())}
    removals = {"intact": [()], "induction": [strongest]}
    removals["others"] = [others_like(strongest, heads, 1_000 * seed + draw) for draw in range(sizes.draws)]
    for number, (kind, sets) in enumerate(removals.items()):
        drawn = []
        for removed in sets:
            drawn.append(parts_of(losses_without(lm, ids, removed), again, losses_without(lm, random_ids, removed)))
            if tell is not None:
                tell(number + len(drawn), 2 + sizes.draws)
        out[kind] = {name: float(np.mean([one[name] for one in drawn])) for name in drawn[0]}
    return out


def seen_before(ids: Int[Tensor, "windows length"]) -> Bool[Tensor, "windows length-1"]:
    """Of each token but the first: whether it followed the same token earlier in its window."""
    out = torch.zeros(ids.shape[0], ids.shape[1] - 1, dtype=torch.bool, device="cpu")
    for row, window in enumerate(ids.tolist()):
        known: set[tuple[int, int]] = set()
        for place, pair in enumerate(pairwise(window)):
            out[row, place] = pair in known
            known.add(pair)
    return out


def parts_of(
    losses: Float[Tensor, "windows n"], again: Bool[Tensor, "windows n"], random_losses: Float[Tensor, "texts m"]
) -> dict[str, float]:
    """The mean loss of tokens by kind: seen before, all others; late minus early; random tokens the second time."""
    half = (random_losses.shape[1] + 1) // 2
    return {
        "again": float(losses[again].mean()),
        "first": float(losses[~again].mean()),
        "in_context": float(losses[:, LATE].mean() - losses[:, EARLY].mean()),
        "copied": float(random_losses[:, half:].mean()),
    }


# ------------------------------------------------------------------------------------------------------ what it shows


def rise(measured: Mapping[str, Any], kind: str, part: str) -> float:
    """Nats more without these heads."""
    return measured[kind][part] - measured["intact"][part]


def rows_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    def each(part: str, kind: str = "induction") -> tuple[float, ...]:
        return tuple(rise(one, kind, part) for one in by_seed)

    def more(part: str) -> tuple[float, ...]:
        return tuple(rise(one, "induction", part) - rise(one, "others", part) for one in by_seed)

    again_over_first = tuple(rise(one, "induction", "again") - rise(one, "induction", "first") for one in by_seed)
    above = Claim("above 0", low=0.0)
    return (
        Row("random tokens read again, nats more without induction heads", "they copy (argument 4)", each("copied"),
            Claim("above 0.5", low=0.5), "+.3f"),
        Row("... without other heads", "", each("copied", "others"), None, "+.3f"),
        Row("... the difference", "", more("copied"), above, "+.3f"),
        Row("prose, a pair of tokens that came before: nats more", "", each("again"), None, "+.3f"),
        Row("... over what other heads cost there", "", more("again"), above, "+.3f"),
        Row("... over what the same heads cost at all other tokens", "", again_over_first, above, "+.3f"),
        Row("in-context learning score (late minus early tokens) with all heads", "about -0.4",
            tuple(one["intact"]["in_context"] for one in by_seed), Claim("below 0", high=0.0), "+.3f"),
        Row("... how much it weakens without induction heads", "most of it goes in small models (argument 3)",
            each("in_context"), above, "+.3f"),
        Row("... over what other heads cost", "", more("in_context"), above, "+.3f"),
    )  # fmt: skip


def notes_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    named = "; ".join(
        f"seed {seed}: " + ", ".join(f"{head} {score:.2f}" for head, score in one["heads"].items())
        for seed, one in enumerate(by_seed)
    )
    share = float(np.mean([one["share_again"] for one in by_seed]))
    return (
        f"Removed, with their scores on random tokens: {named}. {share:.0%} of the tokens end a pair that came before.",
    )


def chart(by_seed: Sequence[Mapping[str, Any]]) -> Chart:
    """What removal costs where tokens are copied, and in prose: a panel each, as one is twenty times the other."""

    def panel(title: str, groups: Sequence[tuple[str, str, str]]) -> PointsPanel:
        points = (
            Points(label, tuple(rise(one, kind, part) for one in by_seed), kind == "induction")
            for label, kind, part in groups
        )
        return PointsPanel(title, tuple(points))

    without_them, without_others = "without the\ninduction heads", "without others\nof their layers"
    panels = (
        panel(
            "random tokens read again: nats more",
            [(without_them, "induction", "copied"), (without_others, "others", "copied")],
        ),
        panel(
            "prose: nats more",
            [
                (f"a pair that came before,\n{without_them}", "induction", "again"),
                (f"a pair that came before,\n{without_others}", "others", "again"),
                (f"other tokens,\n{without_them}", "induction", "first"),
            ],
        ),
    )
    return Chart(
        "Induction heads of a language model, removed", f"{prose.MODEL}; {len(by_seed)} orders of the texts", panels
    )


REPRODUCTION = Reproduction(
    "olsson-induction",
    "what a language model's induction heads are for",
    "Olsson et al. 2022, In-context Learning and Induction Heads (Transformer Circuits Thread).",
    "Heads that copy random sequences carry most of in-context learning, the loss of the 500th token minus that of the "
    "50th (about -0.4 nats): in small models most of it goes with them (argument 3), and in larger ones they copy and "
    "complete patterns (argument 4).",
    "Ten heads with the highest induction score on random tokens read twice are removed (output 0), on windows of 512 "
    "tokens of prose; beside them ten others of the same layers, the mean of five draws. A token was seen before if it "
    "followed the same token earlier in its window. Late are a window's last 60 tokens, early those from the 41st to "
    "the 60th. Copying is the loss on 128 random tokens of the windows' vocabulary, the second time.",
    (
        "smollm2 (135M, 30 layers of 9 heads) and a page of short texts put one after another, not the paper's models "
        "of 13M to 13B on books and the web; in-context learning there is over texts that hang together.",
        "The paper removes every head by itself, and in attention-only models keeps its pattern; ten go here at once.",
        "Seeds are orders of the same texts and other random tokens, not other models.",
    ),
    run,
)
