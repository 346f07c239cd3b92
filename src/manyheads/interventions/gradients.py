"""Importance by gradients: how steeply the work of a model answers to a gate on each head, at the unedited model.

A gate multiplies a head's output before the output projection and stands at 1. One forward and one backward pass give
the derivative in the gate of every head, text and token: Michel et al. 2019 take its absolute value, whose sum over
tokens, texts or whole batches comes before or after that (`reduce`).

Where the loss compares with the unedited model itself (1 - cosine, KL), it is flat there: its derivative is 0, and a
gradient says nothing. What rises then is the square of the output's derivative, `1/2 |P de/dg|^2 / |e|^2` of an
embedding e, P being what turns it. Its norm is taken over orthonormal directions drawn at random, one backward pass
each: exact when there are as many as the embedding is wide, unbiased with fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from manyheads.errors import StatisticError
from manyheads.interventions.metrics import Metric, require_numbers
from manyheads.interventions.readings import Batch, Corpus, outputs_of
from manyheads.models.taps.call import AttentionCall
from manyheads.models.taps.tap import tap
from manyheads.spec import ModelSpec

__all__ = ["REDUCE", "gradients"]

REDUCE = ("token", "example", "batch")
DIRECTIONS = 16  # of an embedding: over 200 texts a head's mean square is then good to about 3 %


def gradients(
    lm: Any, corpus: Corpus, metric: Metric, *, reduce: str = "example", directions: int = DIRECTIONS, seed: int = 0
) -> tuple[Float64[Tensor, "text head"], str]:
    """Each text's importance of each head, in the order of `lm.spec.heads`, and how it was computed.

    `reduce`: one of REDUCE. Under "batch", every text of a batch carries the batch's own, so that means over texts are
    means over tokens alike.
    Errors: StatisticError for a metric without a derivative.
    """
    found = torch.zeros(corpus.num_texts, len(lm.spec.heads), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for batch in corpus.batches:
        if metric.flat:
            found[list(batch.places)] = _squares(lm, batch, metric, directions, generator)
        else:
            found[list(batch.places)] = _slopes(lm, batch, metric, reduce)
    require_numbers(found, metric, "its gradient")
    if not metric.flat:
        return found, f"|d {metric.name} / d gate|, summed by {reduce} before the absolute value"
    return found, (
        f"{metric.name} is flat at the unedited model, where its gradient is 0: half the squared derivative of the "
        f"output in the gate instead, over {directions} random directions"
    )


def _slopes(lm: Any, batch: Batch, metric: Metric, reduce: str) -> Float64[Tensor, "b head"]:
    """The derivative of each text's own metric in the gates of its tokens."""
    with torch.enable_grad(), _gated(lm, batch) as gates:
        reading = metric.read(outputs_of(lm, batch, head=metric.head, grad=True), batch)
        texts = metric.change(torch.zeros_like(reading), reading)
    _require_slope(texts, metric)
    slopes = gates.by_head(lm.spec, torch.autograd.grad(texts.sum(), gates.all, allow_unused=True))
    if reduce == "token":
        return torch.stack([each.abs().sum(-1) for each in slopes], 1)
    sums = torch.stack([each.sum(-1) for each in slopes], 1)
    return sums.abs() if reduce == "example" else sums.sum(0, keepdim=True).abs().expand_as(sums) / len(sums)


def _squares(
    lm: Any, batch: Batch, metric: Metric, directions: int, generator: torch.Generator
) -> Float64[Tensor, "b head"]:
    """Half the squared derivative of the turned embedding (or of the predictions, in the metric of KL)."""
    with torch.enable_grad(), _gated(lm, batch) as gates:
        reading = metric.read(outputs_of(lm, batch, head=metric.head, grad=True), batch)
    _require_slope(reading, metric)
    units, width = _units(reading, metric), reading.shape[-1]
    count = min(directions, width)
    basis = torch.linalg.qr(torch.randn(width, count, generator=generator))[0].T.to(reading)
    total = torch.zeros(len(batch.places), len(lm.spec.heads), dtype=torch.float64)
    for number, direction in enumerate(basis):
        side = (units * direction).sum()
        got = torch.autograd.grad(side, gates.all, retain_graph=number + 1 < count, allow_unused=True)
        total += torch.stack([each.sum(-1) for each in gates.by_head(lm.spec, got)], 1).square()
    return total * width / count / 2


def _units(reading: Tensor, metric: Metric) -> Tensor:
    """What moves by the square root of the change: unit embeddings, whose derivative is tangent to the sphere."""
    if metric.name == "cosine":
        return reading / reading.norm(dim=-1, keepdim=True)
    raise StatisticError(
        f"metric {metric.name!r} is flat at the unedited model and has no derivative here: use 'loss', or the "
        f"estimator 'ablation'."
    )


def _require_slope(value: Tensor, metric: Metric) -> None:
    if not value.requires_grad:
        raise StatisticError(
            f"metric {metric.name!r} does not depend on the heads by anything that has a derivative (a count, an "
            f"argmax): use the estimator 'ablation'."
        )


class _Gates:
    """One gate a text, head and row of each layer, all 1."""

    def __init__(self) -> None:
        self.by_layer: dict[tuple[str, int], Float[Tensor, "b h q"]] = {}

    @property
    def all(self) -> list[Tensor]:
        return list(self.by_layer.values())

    def edit(self, call: AttentionCall) -> Tensor:
        key = (call.site.stack, call.site.layer)
        self.by_layer[key] = call.out.detach().new_ones(call.out.shape[:3]).requires_grad_()
        return call.out * self.by_layer[key][..., None]

    def by_head(self, spec: ModelSpec, got: Sequence[Tensor | None]) -> Iterator[Float64[Tensor, "b q"]]:
        """Derivatives in the gates, head by head in the spec's order; zeros of a layer that nothing depends on."""
        found, size = dict(zip(self.by_layer, got, strict=True)), len(self.all[0])
        for head in spec.heads:
            key = (head.stack, head.layer)
            slope = found.get(key)
            yield torch.zeros(size, 1).double() if slope is None else slope[:, head.index].double().cpu()


@contextmanager
def _gated(lm: Any, batch: Batch) -> Iterator[_Gates]:
    gates = _Gates()
    with tap(lm.model, edits=[gates.edit], guard=False):
        yield gates
    if wrong := [gate.shape for gate in gates.all if gate.shape[0] != len(batch.places)]:
        raise StatisticError(
            f"a layer of {lm.name} attends in a batch of {wrong[0][0]} where there are {len(batch.places)} texts (it "
            f"cuts them up), so a text's own gradient cannot be told: use the estimator 'ablation'."
        )
