"""`voita-real`: gates with an L0 price on the heads of a pretrained model; are specialised heads the last to go?

The gates are those of `voita-gates`. They learn on two of three windows of a seed, with the weights as they are, and
what they leave open is tried on the third. Prices rise one after another, and the gates of one go on under the next.
Source: Voita et al. 2019, Analyzing Multi-Head Self-Attention, section 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from manyheads.heads import Head
from manyheads.interventions import importance
from manyheads.lab.reproductions import prose
from manyheads.lab.reproductions.michel_curve import FREE
from manyheads.lab.reproductions.prose import losses_without, windows_of
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.reproductions.voita_gates import GatedHeads, outlives, share
from manyheads.lab.training.charts import DOTS, Chart, Line, Panel, Points, PointsPanel
from manyheads.lab.training.runs import Progress
from manyheads.models import LoadedModel
from manyheads.roles import HeadRole, label_page

PRICES = (0.01, 0.03, 0.1)  # nats a token that an open head adds to the loss
RATE = 0.3  # of Adam, in a gate's location: from open (3) to closed (-2.4) within 18 steps that agree
AT_ONCE = 2  # windows of a step, each with draws of its own
LAST = 6  # heads that are named
WAYS = {"gates": "by gates", "importance": "by importance", "random": "at random"}
GROUPS = {"on words": "with a role\non words", "sink": "on the sink", "neither": "broad or\nwithout a role"}


@dataclass(frozen=True)
class Sizes:
    windows: int = 36  # of which two of three teach the gates
    length: int = 64
    steps: int = 25  # at each price
    draws: int = 2  # of random heads, at each price


TRIAL = Sizes(windows=6, length=16, steps=2, draws=1)


def run(task: Task) -> Result:
    seeds = prose.by_seed(task, measured, TRIAL if task.quick else Sizes())
    return Result(rows_of(seeds), chart(seeds), notes_of(seeds))


def measured(lm: LoadedModel, sizes: Sizes, seed: int, tell: Progress | None = None) -> dict[str, Any]:
    """One seed: what is left at each price, what is lost there by each of the WAYS, and what the heads' roles are.

    `kept`: the heads left, by price. `rise`: by way and price, how much more a held-out token costs, in nats. `groups`:
    each head's, of GROUPS. `last`: the roles of the heads whose gates are widest open in the end.
    """
    windows, heads = windows_of(lm, seed, sizes.windows, sizes.length), list(lm.spec.heads.heads)
    held_out, learnt = windows[::3], windows[torch.arange(len(windows), device="cpu") % 3 > 0]
    texts = [{"input_ids": row[None]} for row in learnt]
    order = importance(lm, texts, "gradient", metric="loss", progress=False).ranking()
    before, roles = float(losses_without(lm, held_out).mean()), {role.head: role for role in label_page(lm).roles}
    torch.manual_seed(seed)  # the gates' draws
    gated = GatedHeads(lm.model, {layer: len(indices) for (_, layer), indices in lm.spec.heads.by_layer().items()})
    gated.to(lm.device)
    kept_heads, rise = list[list[str]](), {way: list[float]() for way in WAYS}
    for number, price in enumerate(PRICES):
        learn(gated, learnt, price, sizes.steps)
        gone = [head for head, is_kept in gated.kept.items() if not is_kept]
        drawn = [drawn_like(gone, heads, 1_000 * seed + 10 * number + draw) for draw in range(sizes.draws)]
        for way, sets in {"gates": [gone], "importance": [order[: len(gone)]], "random": drawn}.items():
            losses = [float(losses_without(lm, held_out, removed).mean()) for removed in sets]
            rise[way].append(float(np.mean(losses)) - before)
        kept_heads.append([str(head) for head in heads if head not in gone])
        if tell is not None:
            tell(number + 1, len(PRICES))
    widest = sorted(heads, key=lambda head: -float(gated.location(head.layer)[head.index].detach()))
    return {
        "before": before,
        "kept": kept_heads,
        "rise": rise,
        "groups": {str(head): group_of(roles[head]) for head in heads},
        "last": [f"{head} ({roles[head].name})" for head in widest[:LAST]],
    }


def learn(gated: GatedHeads, windows: Int[Tensor, "windows length"], price: float, steps: int) -> None:
    """Move the gates, and no weight, to where loss and price of open heads are least; leaves the model in eval mode."""
    moved = list(gated.moved.parameters())
    optimizer = torch.optim.Adam(moved, lr=RATE)
    gated.train()
    for step in range(steps):
        places = torch.arange(step * AT_ONCE, (step + 1) * AT_ONCE, device="cpu") % len(windows)
        ids = windows[places].to(moved[0].device)
        logits = gated(input_ids=ids, use_cache=False).logits[:, :-1].float()
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) + price * gated.expected_open
        optimizer.zero_grad()
        loss.backward(inputs=moved)
        optimizer.step()
    gated.eval()


def drawn_like(gone: Sequence[Head], heads: Sequence[Head], seed: int) -> list[Head]:
    """Heads drawn at random, the same number of each layer as are gone."""
    left, drawn = Counter(head.layer for head in gone), list[Head]()
    for place in torch.randperm(len(heads), generator=torch.Generator().manual_seed(seed)).tolist():
        if left[heads[place].layer]:
            left[heads[place].layer] -= 1
            drawn.append(heads[place])
    return drawn


def group_of(role: HeadRole) -> str:
    return "on words" if role.on_words else "sink" if role.name.startswith("sink") else "neither"


# ------------------------------------------------------------------------------------------------------ what it shows


def numbers_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one seed that rows show; a head is specialised that has a role on words.

    `free`: the share of heads gone at the highest price at which the loss rises by FREE of itself at most; 0 if there
    is none. `outlives`: by the number of prices at which a head is left. `left`: by group, the share of its heads left
    at the last price. `beyond`: the share of specialised heads among those left, over what it is in their layers.
    """
    heads, groups, last = list(one["groups"]), one["groups"], one["kept"][-1]
    gone = [1 - len(kept) / len(heads) for kept in one["kept"]]
    limit = FREE * one["before"]
    survived = {head: sum(head in kept for kept in one["kept"]) for head in heads}
    words, others = ([head for head in heads if (groups[head] == "on words") is true] for true in (True, False))
    by_layer = [share([other in words for other in heads if layer_of(other) == layer_of(head)]) for head in last]
    return {
        "gone": gone,
        "free": max((at for at, rise in zip(gone, one["rise"]["gates"], strict=True) if rise <= limit), default=0.0),
        "outlives": outlives([survived[head] for head in words], [survived[head] for head in others]),
        "left": {group: share([head in last for head in heads if groups[head] == group]) for group in GROUPS},
        "beyond": share([head in words for head in last]) - sum(by_layer) / max(1, len(by_layer)),
    }


def layer_of(head: str) -> str:
    return head.partition("H")[0]


def rows_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    numbers = [numbers_of(one) for one in by_seed]

    def each(name: str) -> tuple[float, ...]:
        return tuple(one[name] for one in numbers)

    def left(group: str) -> tuple[float, ...]:
        return tuple(one["left"][group] for one in numbers)

    rows = [
        Row(f"heads gone while the loss rises by {FREE:.0%} at most", "38 of 48 (79 %) for 0.15 BLEU", each("free"),
            Claim("more than half", low=0.5), ".0%"),
        Row("a specialised head outlives another one", "specialised heads are last to be pruned", each("outlives"),
            Claim("above 0.5, which is chance", low=0.5), ".2f"),
        Row(f"heads with a role on words left at the last price, {PRICES[-1]:g}", "", left("on words"), None, ".0%"),
        Row("... of heads on the sink", "", left("sink"), None, ".0%"),
        Row("... of broad heads and those without a role", "", left("neither"), None, ".0%"),
        Row("specialised ones among the heads left, over their layers' share", "", each("beyond"),
            Claim("above 0", low=0.0), "+.0%"),
    ]  # fmt: skip
    for place, price in enumerate(PRICES):
        gates, ranked, random = (tuple(one["rise"][way][place] for one in by_seed) for way in WAYS)
        rows += [
            Row(f"price {price:g}: heads gone", "", tuple(one["gone"][place] for one in numbers), None, ".0%"),
            Row("... nats a token more", "", gates, None, "+.3f"),
            Row("... random heads of the same layers over gates", "", less(random, gates),
                Claim("above 0", low=0.0), "+.3f"),
            Row("... the least important by gradient over gates", "", less(ranked, gates), None, "+.3f"),
        ]  # fmt: skip
    return tuple(rows)


def notes_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """How many heads have which roles, and which are the last of every seed."""
    counts, levels = Counter(by_seed[0]["groups"].values()), ", ".join(f"{one['before']:.3f}" for one in by_seed)
    return (
        f"Heads with a role on words: {counts['on words']}; on the sink: {counts['sink']}; broad or without a role: "
        f"{counts['neither']}. Nats a held-out token with all heads, seed by seed: {levels}.",
        *(f"Widest open in the end, seed {seed}: {', '.join(one['last'])}." for seed, one in enumerate(by_seed)),
    )


def chart(by_seed: Sequence[Mapping[str, Any]]) -> Chart:
    """What is lost by each way over how many heads are gone, in the mean over seeds, and what is left in the end."""
    numbers = [numbers_of(one) for one in by_seed]
    gone = (0.0, *(100 * np.mean([one["gone"] for one in numbers], axis=0)).tolist())
    lines = (
        Line(words, gone, (0.0, *np.mean([one["rise"][way] for one in by_seed], axis=0).tolist()), way == "gates")
        for way, words in WAYS.items()
    )
    points = (
        Points(words, tuple(one["left"][group] for one in numbers), group == "on words")
        for group, words in GROUPS.items()
    )
    return Chart(
        "Gates on the heads of a language model: which stay open",
        f"{prose.MODEL}; an open head costs {', '.join(f'{price:g}' for price in PRICES)} nats; seeds: {len(by_seed)}",
        (
            Panel("rise of the loss on held-out prose, nats a token", tuple(lines)),
            PointsPanel(f"share of heads left at {PRICES[-1]:g}, by role", tuple(points), 0.0, 1.0),
        ),
        "heads gone, percent",
        (DOTS,),
    )


SIZES = Sizes()
REPRODUCTION = Reproduction(
    "voita-real",
    "specialised heads of a language model are the last that gates close",
    "Voita et al. 2019, Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the Rest Can Be "
    "Pruned (ACL).",
    "With a gate on each encoder head and an L0 penalty, 38 of 48 heads of an English-Russian translator go for 0.15 "
    "BLEU (abstract); specialised heads (positional, syntactic, rare words) are last to be pruned (section 6.2).",
    f"Hard concrete gates as in `voita-gates`, on every head, drawn for each text; the loss adds the expected number "
    f"of open gates times a price of {', '.join(f'{price:g}' for price in PRICES)} nats a token, one after another, "
    f"{SIZES.steps} steps of {AT_ONCE} texts each. Of {SIZES.windows} windows of {SIZES.length} tokens of prose two of "
    "three teach the gates; on the others a head is left whole where its gate is above 0 and set to zero elsewhere. "
    f"Beside it: {SIZES.draws} draws of the same number of heads from each layer, and the same number of heads of "
    "least importance (Michel et al. 2019). Specialised: a head with a role on words by `manyheads roles`. A head "
    "outlives another if it is left at more of the prices; equal counts are half.",
    (
        "smollm2 (135M, 30 layers of 9 heads), a decoder and no encoder of a translator; the loss, not BLEU.",
        "The paper trains the weights on with the gates; here they stay as they are, and nothing makes up for a head.",
        "Roles by our rules (previous token, induction, punctuation, rare tokens, ...), not the paper's, and none of "
        "syntax; they are read off the same page.",
        "Seeds are orders of the same texts, other windows and draws, not other models.",
    ),
    run,
)  # fmt: skip
