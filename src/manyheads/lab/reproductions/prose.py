"""What reproductions on a pretrained language model share: windows of prose, and what each token costs, heads removed.

A seed draws the order of the page's texts, and so which of them meet in a window; the page is one, so that seeds say
how much depends on that, not on another author. Removed is a head whose output is 0 before the output projection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.corpora import page_texts
from manyheads.edits import applied
from manyheads.heads import Head
from manyheads.lab.reproductions.reproduction import Task
from manyheads.lab.training.runs import Progress
from manyheads.models import LoadedModel, load
from manyheads.plan import Ablate, Plan

MODEL = "smollm2"
Sizes = TypeVar("Sizes")


def by_seed(
    task: Task, measured: Callable[[LoadedModel, Sizes, int, Progress | None], dict[str, Any]], sizes: Sizes
) -> list[dict[str, Any]]:
    """What `measured` answers for each of the task's seeds, on the pretrained model."""
    lm, progress = load(MODEL, device=task.device), task.progress
    return [
        measured(lm, sizes, seed, None if progress is None else progress(f"seed {seed}")) for seed in range(task.seeds)
    ]


def page_in_order(seed: int) -> str:
    """The page's texts in the seed's order, one after another."""
    texts = page_texts()
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    return "\n\n".join(texts[index] for index in order)


def windows_of(lm: LoadedModel, seed: int, count: int, length: int) -> Int[Tensor, "windows length"]:
    """The page in the seed's order as windows that do not overlap."""
    ids = lm.required_tokenizer(page_in_order(seed), return_tensors="pt", verbose=False)["input_ids"][0]
    assert ids.numel() >= count * length, f"the page has {ids.numel():,} tokens"
    return ids[: count * length].view(count, length)


def losses_without(
    lm: LoadedModel, ids: Int[Tensor, "windows length"], heads: Sequence[Head] = ()
) -> Float[Tensor, "windows length-1"]:
    """Nats of each token but a window's first, with these heads removed."""
    plan = Plan([Ablate(list(heads), kind="zero")] if heads else [])
    with applied(lm, plan), torch.inference_mode():
        rows = [
            F.cross_entropy(lm.model(input_ids=window[None]).logits[0, :-1].float(), window[1:], reduction="none")
            for window in ids.to(lm.device)
        ]
    return torch.stack(rows).cpu()


def others_like(heads: Sequence[Head], pool: Sequence[Head], seed: int) -> list[Head]:
    """As many other heads, each drawn from the layer of one of these; from any layer where that one has no more."""
    generator = torch.Generator().manual_seed(seed)
    drawn: list[Head] = []
    for head in heads:
        free = [one for one in pool if one not in heads and one not in drawn]
        choice = [one for one in free if one.layer == head.layer] or free
        drawn.append(choice[int(torch.randint(len(choice), (), generator=generator))])
    return drawn
