"""A task in which every answer needs several relations at once, and a small net that reads it.

A text is cards: a letter and a number each. At every place the net says which number lies one card back, three back,
five back, on the first card, and on the last card before that had the same letter. No card tells how it is related to
another, so whoever reads all of them through one set of weights gets their mixture: who reads what is what heads are
for. One layer can do each relation by itself; the task is in doing all of them, at every place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.models.loading.offloaded import device_of
from manyheads.models.recorder import record_call
from manyheads.nn.feed_forward import FeedForward
from manyheads.nn.layer import MultiHeadAttention
from manyheads.nn.projections import Projection
from manyheads.roles.compare.rows import MOST
from manyheads.roles.compare.rows import pair_divergences
from manyheads.roles.compare.rows import LEAST_KEYS
from manyheads.roles.compare.rows import sharing_around
from manyheads.training.runs import Batch, generator_of

BACK = (1, 3, 5)
RELATIONS = (*(f"{count} back" for count in BACK), "first", "same letter")
NOTHING = -100  # no such card: cross_entropy leaves it out
INITIAL_STD = 0.5  # of the three embeddings, whose sum is then about as long as what norms make of it
KINDS = ("free", "tied", "unmixed")


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
    length = letters.shape[1]
    place = torch.arange(length)
    same = (letters[:, :, None] == letters[:, None]) & (place < place[:, None])
    last = torch.where(same, place, -1).amax(-1)
    where = [(place - back).expand_as(letters) for back in BACK]
    where += [torch.where(place > 0, 0, -1).expand_as(letters), last]
    read = torch.stack(where, -1)
    found = numbers[:, None].expand(-1, length, -1).gather(2, read.clamp_min(0))
    return found.masked_fill(read < 0, NOTHING)


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
        for each in (self.letter, self.number, self.place):
            nn.init.normal_(each.weight, std=INITIAL_STD)
        self.attention_norm = nn.RMSNorm(width)
        self.attention = attention_of(width, num_heads, kind)
        self.feed_forward_norm = nn.RMSNorm(width)
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
    cards, wanted = (held_out[name].to(device_of(model)) for name in ("cards", "answers"))
    logits = model(cards).float()
    there, right = wanted != NOTHING, logits.argmax(-1) == wanted
    shares = {
        f"right_{name}": float(right[..., at][there[..., at]].double().mean()) for at, name in enumerate(RELATIONS)
    }
    return {
        "held_out_loss": float(F.cross_entropy(logits.flatten(0, 2), wanted.flatten())),
        "all_right": float(right.all(-1)[there.all(-1)].double().mean()),
        **shares,
    }


def diversity(model: nn.Module, cards: Int[Tensor, "b n two"]) -> float:
    """How different the heads' maps are: the mean Jensen-Shannon divergence of two heads as a share of ln 2, over all
    rows that see two cards or more. 0: all the same. Inside `applied`, of the maps as the plan has them.

    It is what `head_families` gives as a layer's diversity, of a model whose texts are no words.
    """
    layer = record_call(model, cards.to(device_of(model))).layers[0]
    sharing = sharing_around(model)(layer.site)
    num_heads, total, rows = layer.site.num_heads, 0.0, 0
    for text in range(len(cards)):
        own = layer.weights(text=text)[:, LEAST_KEYS - 1 :].double().cpu()
        own = own / own.sum(-1, keepdim=True)  # recorded in float32: 1e-8 off, which the divergence of equal maps shows
        maps = own.clone()
        for head, sources in sharing.items():
            maps[head] = own[list(sources)].mean(0)
        total += float(pair_divergences(maps).sum())
        rows += maps.shape[1]
    return total / max(1, num_heads * (num_heads - 1)) / rows / MOST
