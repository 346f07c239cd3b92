"""`heads`: 1, 2, 4, 8 and 16 heads, equally many parameters, on a task that needs five relations at every place.

More heads are narrower ones: the projections are the same matrices, cut into more or fewer pieces, so that nothing but
the number of heads differs. Five seeds each, the same weights' distribution and the same texts for every number. The
report sets the paper's own experiment beside it, with its numbers as printed there.

A text is cards, a letter and a number each. At every place the net names the number one card back, three back, five
back, on the first card, and on the last card before that had the same letter. No card tells how it is related to
another, so whoever reads all of them through one set of weights gets their mixture: who reads what is what heads are
for. One layer can do each relation by itself; the task is in doing all of them, at every place.

Source: Vaswani et al. 2017, "Attention is all you need", table 3, rows (A).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.inputs import record_call
from manyheads.lab.training.charts import Chart, Points, PointsPanel
from manyheads.lab.training.loop import Trained
from manyheads.lab.training.presets.bleu import CIRCULATING_BLEU, PAPER_BLEU
from manyheads.lab.training.presets.preset import (
    WATCHED,
    AllTrained,
    Findings,
    Preset,
    Scaled,
    Setup,
    Training,
    by_seed,
)
from manyheads.lab.training.runs import (
    HELD_OUT_STEP,
    Batch,
    Run,
    Settings,
    change_lines,
    generator_of,
    num_parameters,
    paired,
    plus_minus,
    spreads_of,
)
from manyheads.models import device_of
from manyheads.nn import FeedForward, MultiHeadAttention, Projection
from manyheads.roles.compare import LEAST_KEYS, MOST, mixed, pair_divergences, sharing_around

NAME = "heads"
COUNTS = (1, 2, 4, 8, 16)
HELD_OUT_ROWS = 128
LETTERS, NUMBERS, LENGTH = 8, 8, 24  # of cards: each has a letter and a number, and a text so many cards
WHY_FLOAT32 = "seconds a training"
BACK = (1, 3, 5)
RELATIONS = (*(f"{count} back" for count in BACK), "first", "same letter")
NOTHING = -100  # no such card: cross_entropy leaves it out
INITIAL_STD = 0.5  # of the three embeddings, whose sum is then about as long as what norms make of it
KINDS = ("free", "tied", "unmixed")


@dataclass(frozen=True)
class RunScale(Scaled):
    seeds: int
    width: int
    rows: int

    def cards(self, seed: int) -> Cards:
        return Cards(LETTERS, NUMBERS, LENGTH, self.rows, seed)


WHOLE = RunScale(
    Settings(500, 5e-3, warmup=50, floor=0.05, decay=0.01, checkpoint_every=100, measure_every=100),
    seeds=5, width=64, rows=32,
)  # fmt: skip
TRIAL = RunScale(
    Settings(6, 5e-3, warmup=2, decay=0.01, checkpoint_every=3, measure_every=3), seeds=2, width=32, rows=4
)


def build(setup: Setup) -> Training:
    """A run a number of heads and seed."""
    scale = setup.scale(WHOLE, TRIAL)

    def make(name: str, index: int, count: int, _: AllTrained) -> Run:
        return reader_run(name, scale, setup.seed + index, count)

    runs = by_seed(scale.seeds, {f"h{count}": count for count in COUNTS}, make)
    return Training(runs, lambda trained: findings(trained, scale))


PRESET = Preset(NAME, build)


# ---------------------------------------------------------------------------------- the task, and the net that reads it


@dataclass(frozen=True)
class Cards:
    """`rows` texts of `length` cards. A batch follows from seed and step."""

    letters: int
    numbers: int
    length: int
    rows: int
    seed: int

    def batch(self, step: int) -> dict[str, Tensor]:
        """`cards`: letter and number of each; `answers`: a number a place and relation, NOTHING where there is none."""
        generator = generator_of(self.seed, step)
        letters = torch.randint(self.letters, (self.rows, self.length), generator=generator)
        numbers = torch.randint(self.numbers, (self.rows, self.length), generator=generator)
        return {"cards": torch.stack([letters, numbers], -1), "answers": answers(letters, numbers)}


def answers(letters: Int[Tensor, "b n"], numbers: Int[Tensor, "b n"]) -> Int[Tensor, "b n relation"]:
    """What there is to say at each place, in the order of RELATIONS."""
    read = related(letters)
    # Clamped for the index alone: what lies before the first card is masked on the next line.
    values = numbers[:, None].expand(-1, letters.shape[1], -1).gather(2, read.clamp_min(0))
    return values.masked_fill(read < 0, NOTHING)


def related(letters: Int[Tensor, "b n"]) -> Int[Tensor, "b n relation"]:
    """The place of the card that each relation names, -1 where there is none, in the order of RELATIONS."""
    place = torch.arange(letters.shape[1])
    # Earlier cards only, never the card itself: its own number would be the answer to read off.
    matches = (letters[:, :, None] == letters[:, None]) & (place < place[:, None])
    last = torch.where(matches, place, -1).amax(-1)
    where = [(place - back).expand_as(letters) for back in BACK]
    where += [torch.where(place > 0, 0, -1).expand_as(letters), last]
    return torch.stack(where, -1).clamp_min(-1)


class Reader(nn.Module):
    """One block: cards -> attention, added -> feed-forward, added -> a number for each relation. Norms come before.

    `kind`: "free"; "tied", all heads with one query and key projection, so that all maps are the same; "unmixed",
    without an output projection. The feed-forward of the last two is wider, so that all have as many parameters.
    """

    def __init__(self, letters: int, numbers: int, length: int, width: int, num_heads: int, kind: str = "free") -> None:
        super().__init__()
        self.numbers = numbers
        self.letter = nn.Embedding(letters, width)
        self.number = nn.Embedding(numbers, width)
        self.place = nn.Embedding(length, width)
        for embedding in (self.letter, self.number, self.place):
            nn.init.normal_(embedding.weight, std=INITIAL_STD)
        self.attention_norm = nn.RMSNorm(width)
        self.attention = attention_of(width, num_heads, kind)
        self.feed_forward_norm = nn.RMSNorm(width)
        # A wider feed-forward makes up for parameters that a kind lacks, so that all kinds are of one size.
        spared = {"free": 0, "tied": 2 * width * (width - width // num_heads), "unmixed": width * width}[kind]
        self.feed_forward = FeedForward(width, 2 * width + spared // (2 * width), bias=False)
        self.norm = nn.RMSNorm(width)
        self.says = nn.Linear(width, len(RELATIONS) * numbers)

    def forward(self, cards: Int[Tensor, "b n two"]) -> Float[Tensor, "b n relation v"]:
        place = torch.arange(cards.shape[1], device=cards.device)
        x = self.letter(cards[..., 0]) + self.number(cards[..., 1]) + self.place(place)
        x = x + self.attention(self.attention_norm(x), need_weights=False)[0]
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return self.says(self.norm(x)).unflatten(-1, (len(RELATIONS), self.numbers))


def attention_of(width: int, num_heads: int, kind: str) -> MultiHeadAttention:
    """The attention of a kind, as `Reader` says."""
    parts: dict[str, nn.Module] = {name: Projection(width, width, bias=False) for name in ("q", "k", "v", "out")}
    if kind == "tied":
        parts |= {name: Shared(width, num_heads) for name in "qk"}
    elif kind == "unmixed":
        parts["out"] = nn.Identity()
    return MultiHeadAttention(width, num_heads, causal=True, batch_first=True, projections=parts)


class Shared(nn.Module):
    """One head's projection, given to all heads."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.one = Projection(width, width // num_heads, bias=False)

    def forward(self, x: Float[Tensor, "*n m"]) -> Float[Tensor, "*n m"]:
        return torch.cat([self.one(x)] * self.num_heads, -1)


def loss_of(model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
    """The mean cross-entropy of all answers that there are, nats."""
    return F.cross_entropy(model(batch["cards"]).flatten(0, 2).float(), batch["answers"].flatten())


def terms_of(batch: Batch) -> int:
    """How many answers there are in a batch: what `loss_of` is a mean over."""
    return int((batch["answers"] != NOTHING).sum())


def scores_of(model: nn.Module, held_out: Batch) -> dict[str, float]:
    """`loss`; `all_right`, the share of places where every answer is right, of those where all of them exist; and each
    relation's own share of right answers."""
    cards, answers = (held_out[name].to(device_of(model)) for name in ("cards", "answers"))
    logits = model(cards).float()
    exists, right = answers != NOTHING, logits.argmax(-1) == answers
    shares = {
        f"right_{name}": float(right[..., index][exists[..., index]].double().mean())
        for index, name in enumerate(RELATIONS)
    }
    return {
        "held_out_loss": float(F.cross_entropy(logits.flatten(0, 2), answers.flatten())),
        "all_right": float(right.all(-1)[exists.all(-1)].double().mean()),
        **shares,
    }


def diversity(model: nn.Module, cards: Int[Tensor, "b n two"]) -> float:
    """How different the heads' maps are: the mean Jensen-Shannon divergence of two heads as a share of ln 2, over all
    rows that see two cards or more. 0: all the same. Inside `applied`, of the maps as the plan has them.

    It is what `head_families` gives as a layer's diversity, of a model whose texts are not words.
    """
    layer = record_call(model, cards.to(device_of(model))).layers[0]
    sharing = sharing_around(model)(layer.site)
    num_heads, total, rows = layer.site.num_heads, 0.0, 0
    for text in range(len(cards)):
        # The first rows see one card: their maps are equal whatever the heads do.
        recorded = layer.weights(text=text)[:, LEAST_KEYS - 1 :].double().cpu()
        # Recorded in float32, rows are 1e-8 off 1, which the divergence of equal maps shows.
        recorded = recorded / recorded.sum(-1, keepdim=True)
        maps = recorded.clone()
        for head, parts in sharing.items():
            maps[head] = mixed(recorded, parts)
        total += float(pair_divergences(maps).sum())
        rows += maps.shape[1]
    return total / max(1, num_heads * (num_heads - 1)) / rows / MOST


def reader_run(
    name: str,
    scale: RunScale,
    seed: int,
    num_heads: int,
    kind: str = "free",
    measure: Callable[[nn.Module, Batch], Mapping[str, float]] = scores_of,
) -> Run:
    """One training of the cards' reader. Its texts depend on the seed and the step alone."""
    # Before the model is made: nets of one seed begin alike wherever their sizes agree.
    torch.manual_seed(seed)
    model = Reader(LETTERS, NUMBERS, LENGTH, scale.width, num_heads, kind)
    # Of a step that no training reaches (`HELD_OUT_STEP`), from
    # generators of its own: drawing it moves no other number.
    held_out = held_out_of(scale, seed)
    batch = scale.cards(seed).batch
    return Run(
        name, model, scale.settings, batch, loss_of, lambda m, _: measure(m, held_out), WHY_FLOAT32, terms_of, WATCHED
    )


def held_out_of(scale: RunScale, seed: int) -> Mapping[str, torch.Tensor]:
    """Texts that no step of any seed sees."""
    return replace(scale.cards(seed), rows=HELD_OUT_ROWS).batch(HELD_OUT_STEP)


# ------------------------------------------------------------------------------------------------ what it shows


def findings(trained: AllTrained, scale: RunScale) -> Findings:
    """Loss and right answers by number of heads, each with its spread over seeds, and the paper's beside it."""
    parameters = equal_parameters(trained.values())
    by_count = {count: [trained[f"h{count}-{seed}"] for seed in range(scale.seeds)] for count in COUNTS}
    measured = ("held_out_loss", "all_right", *(f"right_{name}" for name in RELATIONS))
    results = {
        str(count): spreads_of([{name: run.history.last(name) for name in measured} for run in runs])
        for count, runs in by_count.items()
    }
    losses = {count: results[str(count)]["held_out_loss"]["each"] for count in COUNTS}
    steps = {f"{more} over {fewer}": paired(losses[more], losses[fewer]) for fewer, more in pairwise(COUNTS)}
    numbers = {
        "parameters": parameters,
        "relations": list(RELATIONS),
        "seeds": scale.seeds,
        "by_heads": results,
        "loss_change": steps,
        "paper_bleu": {str(count): bleu for count, bleu in PAPER_BLEU.items()},
        "paper": "Vaswani et al. 2017, table 3 (A), newstest2013",
        "not_the_papers": {str(count): bleu for count, bleu in CIRCULATING_BLEU.items()},
    }
    return Findings(numbers, lines_of(numbers, scale), chart(numbers, scale))


def equal_parameters(trained: Iterable[Trained]) -> int:
    """How many parameters every net has. That they are equal is what the comparison rests on."""
    counts = {num_parameters(run.model) for run in trained}
    assert len(counts) == 1, f"nets that should be of one size have {sorted(counts)} parameters"
    return counts.pop()


def lines_of(numbers: dict[str, Any], scale: RunScale) -> tuple[str, ...]:
    lines = [f"{numbers['parameters']:,} parameters each; of {scale.seeds} seeds, mean and standard deviation:"]
    for count, result in numbers["by_heads"].items():
        loss, right = result["held_out_loss"], result["all_right"]
        worst = min(RELATIONS, key=lambda name, result=result: result[f"right_{name}"]["mean"])
        lines.append(
            f"h = {count:>2}: {plus_minus(loss)} nats an answer, all five right at "
            f"{100 * right['mean']:.0f} ± {100 * right['sd']:.0f} % of places; weakest: {worst}, "
            f"{100 * result[f'right_{worst}']['mean']:.0f} % right"
        )
    changes = {
        f"{pair} head{'s' * (not pair.endswith(' 1'))}": change for pair, change in numbers["loss_change"].items()
    }
    lines += change_lines(changes)
    bleu = ", ".join(f"{value} ({count})" for count, value in PAPER_BLEU.items())
    wrong = ", ".join(f"{value} ({count})" for count, value in CIRCULATING_BLEU.items())
    lines.append(f"The paper's own (Vaswani et al. 2017, table 3 (A), BLEU on newstest2013, by heads): {bleu}.")
    lines.append(f"Figures in circulation as that table, {wrong}, are not in it.")
    return tuple(lines)


def chart(numbers: dict[str, Any], scale: RunScale) -> Chart:
    def groups(name: str) -> tuple[Points, ...]:
        return tuple(Points(count, tuple(result[name]["each"])) for count, result in numbers["by_heads"].items())

    paper = tuple(Points(str(count), (bleu,)) for count, bleu in PAPER_BLEU.items())
    return Chart(
        "How many heads, with equally many parameters",
        f"one layer, {numbers['parameters']:,} parameters, five relations at every place; {scale.seeds} seeds",
        panels=(
            PointsPanel("held-out loss, nats an answer, by number of heads", groups("held_out_loss"), bottom=0.0),
            PointsPanel("share of places where all five answers are right", groups("all_right"), 0.0, 1.0),
            PointsPanel("another task: BLEU on newstest2013, Vaswani et al. 2017, table 3 (A)", paper, 24.5, 26.0),
        ),
        notes=(
            "Dots are seeds, strokes their means, bars one standard deviation either way; of the paper one value each.",
        ),
    )
