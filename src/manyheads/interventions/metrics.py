"""What is compared before and after an intervention: a language model's loss, its predictions, an embedding, a class.

A metric reads a few numbers off what the model returns, text by text, and says how far two readings are apart. A
positive change is always for the worse. What the user compares may be any function of the model's outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import StatisticError
from manyheads.interventions.readings import Batch

__all__ = ["METRICS", "Metric", "choose_metric"]

Own = Callable[[Any, dict[str, Tensor]], Any]
"""A user's metric: (the model's outputs, its inputs) -> one number a text, where more is worse."""


@dataclass(frozen=True)
class Metric:
    """`read` takes what is needed from a forward pass; `change` compares two readings, one number a text.

    `head`: whether the model's head must run. `flat`: whether the change has no slope at the unedited model, since
    that is what it is compared with. `by_token`: whether a reading holds one number a token.
    """

    name: str
    unit: str
    meaning: str
    read: Callable[[Any, Batch], Tensor]
    change: Callable[[Tensor, Tensor], Float[Tensor, "b"]]
    head: bool = True
    flat: bool = False
    by_token: bool = False


def token_losses(outputs: Any, batch: Batch) -> Float[Tensor, "b n"]:
    """The cross-entropy of each next token, NaN where none is predicted (nats).

    A decoder beside an encoder reads its own tokens one place late, so its row i predicts the text's token i.
    """
    logits, ids, real = outputs.logits, batch.inputs["input_ids"], batch.real
    real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    if "decoder_input_ids" not in batch.inputs:
        logits, ids, real = logits[:, :-1], ids[:, 1:], real[:, 1:] & real[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2).float(), ids, reduction="none")
    return losses.masked_fill(~real, torch.nan)


def predictions(outputs: Any, batch: Batch) -> Float[Tensor, "b n v"]:
    """Log-probabilities of the next token at each real position, NaN elsewhere."""
    logs = outputs.logits.float().log_softmax(-1)
    return logs if batch.real is None else logs.masked_fill(~batch.real[..., None], torch.nan)


def embedding(outputs: Any, batch: Batch) -> Float[Tensor, "b m"]:
    """The mean of a text's last hidden states, padding left out: what sentence embeddings are."""
    states = getattr(outputs, "encoder_last_hidden_state", None)
    states = outputs.last_hidden_state if states is None else states
    states = states.flatten(1, -2) if states.ndim > 3 else states
    if batch.real is None or batch.real.shape != states.shape[:2]:
        return states.float().mean(1)
    real = batch.real[..., None].float()
    return (states.float() * real).sum(1) / real.sum(1)


def class_losses(outputs: Any, batch: Batch) -> Float[Tensor, "b"]:
    return F.cross_entropy(outputs.logits.float(), _labels(batch), reduction="none")


def class_errors(outputs: Any, batch: Batch) -> Float[Tensor, "b"]:
    return (outputs.logits.argmax(-1) != _labels(batch)).float()


def _labels(batch: Batch) -> Tensor:
    assert batch.labels is not None, "checked when the metric was chosen"
    return batch.labels


def _mean_difference(before: Tensor, after: Tensor) -> Float[Tensor, "b"]:
    change = after.double() - before.double()
    return change.nanmean(-1) if change.ndim > 1 else change


def _divergence(before: Tensor, after: Tensor) -> Float[Tensor, "b"]:
    return (before.exp() * (before - after)).sum(-1).double().nanmean(-1)


def _turned(before: Tensor, after: Tensor) -> Float[Tensor, "b"]:
    return 1 - F.cosine_similarity(before.double(), after.double(), dim=-1)


_LOSS = Metric(
    "loss", "nats a token", "next-token loss, after less before", token_losses, _mean_difference, by_token=True
)
METRICS = {
    metric.name: metric
    for metric in (
        _LOSS,
        Metric("kl", "nats a token", "KL(before || after) of the next token", predictions, _divergence, flat=True),
        Metric("cosine", "", "1 - cosine of the mean-pooled embeddings", embedding, _turned, head=False, flat=True),
        Metric("class_loss", "nats", "loss on the labels, after less before", class_losses, _mean_difference),
        Metric("class_error", "", "share of wrong labels, after less before", class_errors, _mean_difference),
    )
}  # fmt: skip


def choose_metric(lm: Any, metric: str | Own | Metric, labels: Any = None) -> tuple[Metric, str]:
    """The metric meant, and why. "auto": the labels' loss, else the language model's, else the embedding's cosine.

    Errors: StatisticError for an unknown name, or one that this model or these texts cannot give.
    """
    if isinstance(metric, Metric):
        return metric, "as asked"
    if callable(metric):
        return _own(metric), "a function of your own"
    writes, sorts = _writes(lm), "Classification" in type(lm.model).__name__
    if metric == "auto":
        if labels is not None:
            return METRICS["class_loss"], "labels were given"
        if writes:
            return METRICS["loss"], "a language model"
        return METRICS["cosine"], "no labels, and no model that predicts the next token"
    if metric not in METRICS:
        raise StatisticError(f"{metric=} is unknown: use {', '.join(METRICS)}, or a function (outputs, inputs).")
    if metric in ("loss", "kl") and not writes:
        raise StatisticError(
            f"metric={metric!r} needs a model that predicts the next token, and {type(lm.model).__name__} does not: "
            f"use 'cosine', or a function (outputs, inputs)."
        )
    if metric.startswith("class"):
        if labels is None:
            raise StatisticError(f"metric={metric!r} needs labels=, one for each text.")
        if not sorts:
            raise StatisticError(f"metric={metric!r} needs a classifier, and {type(lm.model).__name__} is none.")
    return METRICS[metric], "as asked"


def _writes(lm: Any) -> bool:
    return bool(getattr(lm.model, "can_generate", lambda: False)())


def _own(function: Own) -> Metric:
    def read(outputs: Any, batch: Batch) -> Tensor:
        got = torch.as_tensor(function(outputs, batch.inputs))
        if got.shape != (len(batch.places),):
            raise StatisticError(
                f"the metric gave {tuple(got.shape)} for {len(batch.places)} texts: give one number for each text."
            )
        return got

    return Metric(getattr(function, "__name__", "own"), "", "your own, after less before", read, _mean_difference)


def require_numbers(values: Tensor, metric: Metric, what: str) -> None:
    """Errors: StatisticError for NaN or infinity, naming what was run."""
    if not bool(torch.isfinite(values).all()):
        raise StatisticError(
            f"metric {metric.name!r} gave NaN or infinity for {what}: nothing can be compared with that. Check the "
            f"texts (a text of one token has no next token), the labels, or your function."
        )
