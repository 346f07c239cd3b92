"""Metrics that compare a model before and after an intervention.

A metric takes a reading of the model's outputs, text by text (a language model's loss, its predictions, an embedding, a
class), and computes how far two readings are apart. A positive change is always for the worse. A user's metric may be
any function of the model's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from manyheads.base import one_of
from manyheads.errors import ModelError, StatisticError
from manyheads.inputs import Batch
from manyheads.models import LoadedModel


def require_loaded(lm: LoadedModel) -> None:
    """Raises ModelError unless `lm` is a loaded model."""
    if not hasattr(lm, "model") or not hasattr(lm, "spec"):
        how = f"mh.load({lm!r})" if isinstance(lm, str) else "mh.load(model, tokenizer=...)"
        raise ModelError(f"a {type(lm).__name__} is not a loaded model: load it first, as {how}.")


def exact(x: Tensor) -> Tensor:
    """In float32, or in float64 what is float64 already."""
    return x if x.dtype == torch.float64 else x.float()


Own = Callable[[Any, Mapping[str, Tensor]], Any]
"""A user's metric: (the model's outputs, its inputs) -> one number a text, where more is worse."""
MetricLike = str | Own
"""A key of METRICS, "auto", or a function of the user's."""


@dataclass(frozen=True)
class Metric:
    """`read` takes a reading of a forward pass; `change` compares two readings and returns one number per text.

    `head`: whether the model's output head must run. `flat`: whether the change has no slope at the unedited model,
    because it compares with that model. `by_token`: whether a reading holds one number per token. `last_row`: whether
    it reads the logits of each text's last row, and nothing else; `tokens`: those of these tokens alone, in rising
    order, () for all: outputs may lack the others. `refer`: of a metric that compares with one run of each text, what
    it keeps of that run, as `Batch.reference`.
    """

    name: str
    unit: str
    meaning: str
    read: Callable[[object, Batch], Tensor]
    change: Callable[[Tensor, Tensor], Float[Tensor, "b"]]
    head: bool = True
    flat: bool = False
    by_token: bool = False
    last_row: bool = False
    tokens: tuple[int, ...] = ()
    refer: Callable[[object, Batch], Tensor] | None = None

    def level(self, readings: Sequence[Tensor]) -> float | None:
        """The mean reading over texts, None for a flat metric, whose readings are not numbers of texts or tokens."""
        if self.flat:
            return None
        texts = [reading.double().nanmean(-1) if reading.ndim > 1 else reading.double() for reading in readings]
        return float(torch.cat([text.cpu() for text in texts]).mean())


def token_losses(outputs: object, batch: Batch) -> Float[Tensor, "b n"]:
    """The cross-entropy of each next token, NaN where none is predicted (nats).

    The tokens are those that the decoder reads, each predicted by the row before it; or, among ready inputs, `labels`
    as transformers defines them: -100 is not counted, and a decoder beside an encoder predicts label i in row i.
    """
    logits, inputs = logits_of(outputs, "loss", 3), batch.inputs
    side = "decoder_" if "decoder_input_ids" in inputs else ""
    ids, mask = inputs.get(f"{side}input_ids"), inputs.get(f"{side}attention_mask")
    labels = inputs.get("labels", batch.targets)
    if labels is not None:
        in_place = _is_encoder_decoder(outputs) or ids is None
        logits, ids = (logits, labels) if in_place else (logits[:, :-1], labels[:, 1:])
        real = ids >= 0
    elif ids is not None:
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        logits, ids, real = logits[:, :-1], ids[:, 1:], real[:, 1:] & real[:, :-1]
    else:
        raise StatisticError("metric 'loss' reads input_ids, and these inputs have none: use a function of your own.")
    if logits.shape[:2] != ids.shape:
        raise StatisticError(
            f"metric 'loss': {tuple(logits.shape[:2])} predictions and {tuple(ids.shape)} tokens do "
            f"not fit: give labels with the same number of tokens as the decoder reads."
        )
    # clamp_min: -100 is no index. These positions become NaN on the next line, and means leave NaN out.
    losses = F.cross_entropy(exact(logits.transpose(1, 2)), ids.clamp_min(0), reduction="none")
    return losses.masked_fill(~real, torch.nan)


def _is_encoder_decoder(outputs: object) -> bool:
    """Whether a decoder beside an encoder gave these outputs: it predicts label i in row i."""
    return getattr(outputs, "encoder_last_hidden_state", None) is not None


def predictions(outputs: object, batch: Batch) -> Float[Tensor, "b n v"]:
    """Log-probabilities of the next token at each real position, NaN elsewhere."""
    logs = exact(logits_of(outputs, "kl", 3)).log_softmax(-1)
    if _is_encoder_decoder(outputs):
        labels, real = batch.inputs.get("labels", batch.targets), batch.inputs.get("decoder_attention_mask")
        real = labels >= 0 if labels is not None else real
    else:
        real = batch.inputs.get("attention_mask")
    return logs if real is None else logs.masked_fill(~real.bool()[..., None], torch.nan)


def embedding(outputs: object, batch: Batch) -> Float[Tensor, "b m"]:
    """The mean of a text's last hidden states, padding left out, as sentence embeddings are computed."""
    states = getattr(outputs, "encoder_last_hidden_state", None)
    states = getattr(outputs, "last_hidden_state", None) if states is None else states
    if not isinstance(states, Tensor):
        raise StatisticError(
            f"metric 'cosine' reads a model's last hidden states, and a {type(outputs).__name__} has none: use a "
            f"function (outputs, inputs)."
        )
    states = exact(states)
    states = states.flatten(1, -2) if states.ndim > 3 else states
    # Patches of pictures and frames of sounds have no padding mask of their own shape: all of them count.
    if batch.real is None or batch.real.shape != states.shape[:2]:
        return states.mean(1)
    real = batch.real[..., None].to(states)
    return (states * real).sum(1) / real.sum(1)


def class_losses(outputs: object, batch: Batch) -> Float[Tensor, "b"]:
    """The cross-entropy of each text's label (nats)."""
    logits = exact(logits_of(outputs, "class_loss", 2))
    return F.cross_entropy(logits, _labels(batch, logits), reduction="none")


def class_errors(outputs: object, batch: Batch) -> Float[Tensor, "b"]:
    """1 where the likeliest class is not the text's label, else 0."""
    logits = logits_of(outputs, "class_error", 2)
    return (logits.argmax(-1) != _labels(batch, logits)).float()


def _labels(batch: Batch, logits: Tensor) -> Tensor:
    assert batch.labels is not None, "checked when the metric was chosen"
    if int(batch.labels.max()) >= logits.shape[-1]:
        raise StatisticError(
            f"label {int(batch.labels.max())} is not a class of this model: it has {logits.shape[-1]}, from 0."
        )
    return batch.labels.to(logits.device)


def logits_of(outputs: object, metric: str, num_axes: int) -> Tensor:
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != num_axes:
        result = f"logits of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else "no logits"
        raise StatisticError(f"metric {metric!r}: a {type(outputs).__name__} has {result}. Use a function of your own.")
    return logits


def _mean_difference(before: Tensor, after: Tensor) -> Float[Tensor, "b"]:
    change = after.double() - before.double()
    return change.nanmean(-1) if change.ndim > 1 else change


def divergence(before: Tensor, after: Tensor) -> Float[Tensor, "b"]:
    """KL(before || after) of log-probabilities, mean over tokens."""
    terms = before.exp() * (before - after)
    # 0 log 0 is 0, and not the NaN of 0 times infinity: a token that was impossible before costs nothing.
    return terms.masked_fill(before == -torch.inf, 0).sum(-1).double().nanmean(-1)


OR_OWN = ", or a function (outputs, inputs)"  # ends the refusal of a metric's name
TOKENS_OF_A_BATCH = "a whole number, 1 or more, of tokens of a batch"
METRICS = {
    metric.name: metric
    for metric in (
        Metric("loss", "nats a token", "next-token loss, after less before", token_losses, _mean_difference,
               by_token=True),
        Metric("kl", "nats a token", "KL(before || after) of the next token", predictions, divergence, flat=True),
        Metric("cosine", "", "1 - cosine of the mean-pooled embeddings", embedding,
               lambda before, after: 1 - F.cosine_similarity(before.double(), after.double(), dim=-1),
               head=False, flat=True),
        Metric("class_loss", "nats", "loss on the labels, after less before", class_losses, _mean_difference),
        Metric("class_error", "", "share of wrong labels, after less before", class_errors, _mean_difference),
    )
}  # fmt: skip


def choose_metric(lm: LoadedModel, metric: MetricLike | Metric, labels: object = None) -> tuple[Metric, str]:
    """The metric of this name, and why it was chosen.

    "auto": the labels' loss, else the language model's, else the embedding's cosine.

    Errors: StatisticError for an unknown name, or one that this model or these texts cannot give.
    """
    if isinstance(metric, Metric):
        return metric, "as asked"
    if callable(metric):
        return _user_metric(metric), "a function of your own"
    classifies = "Classification" in type(lm.model).__name__
    if metric == "auto" and labels is not None:
        return choose_metric(lm, "class_loss", labels)[0], "labels were given"
    if metric == "auto":
        if lm.predicts == "next":
            return METRICS["loss"], "a language model"
        return METRICS["cosine"], "no labels, and no model that predicts the next token"
    one_of("metric", metric, METRICS, StatisticError, more=OR_OWN)
    if metric in ("loss", "kl") and lm.predicts != "next":
        raise StatisticError(
            f"metric={metric!r} needs a model that predicts the next token, and {type(lm.model).__name__} does not: "
            f"use 'cosine', or a function (outputs, inputs)."
        )
    if metric.startswith("class"):
        if labels is None:
            raise StatisticError(
                f"metric={metric!r} needs labels=, one for each text: give mh.Inputs(texts, labels=...)."
            )
        if not classifies:
            raise StatisticError(f"metric={metric!r} needs a classifier, and {type(lm.model).__name__} is not one.")
    return METRICS[metric], "as asked"


def _user_metric(function: Own) -> Metric:
    def read(outputs: object, batch: Batch) -> Tensor:
        value = function(outputs, batch.inputs)
        try:
            numbers = torch.as_tensor(value, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise StatisticError(f"the metric gave a {type(value).__name__}: give one number for each text.") from error
        if numbers.shape != (len(batch.places),):
            raise StatisticError(
                f"the metric gave {tuple(numbers.shape)} for {len(batch.places)} texts: give one number for each text."
            )
        return numbers

    return Metric(getattr(function, "__name__", "own"), "", "your own, after less before", read, _mean_difference)


def require_numbers(values: Tensor, metric: Metric, source: str) -> None:
    """Raises StatisticError for NaN or infinity; `source` names what was run."""
    if not bool(torch.isfinite(values).all()):
        raise StatisticError(
            f"metric {metric.name!r} gave NaN or infinity for {source}: nothing can be compared with that. Check the "
            f"texts (a text of one token has no next token), the labels, or your function."
        )
