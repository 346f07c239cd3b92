"""One corpus, read again and again: texts in batches of like length, and what a model returns for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool
from numpy import ndarray
from torch import Tensor

from manyheads.errors import ModelError, TextError
from manyheads.models.describe import run
from manyheads.models.inputs.texts import BATCH_TOKENS
from manyheads.models.inputs.texts import batches
from manyheads.models.inputs.texts import decoder_story
from manyheads.models.inputs.texts import model_inputs
from manyheads.models.inputs.texts import read_texts
from manyheads.models.inputs.texts import tokens_of

__all__ = ["Batch", "Corpus", "read_corpus"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of one forward pass, which texts they are, and the texts' labels where there are any.

    `targets`: the tokens that a decoder beside an encoder is to write, -100 where there is none: it repeats the text.
    """

    inputs: dict[str, Tensor]
    places: tuple[int, ...]
    labels: Tensor | None = None
    targets: Tensor | None = None

    @property
    def real(self) -> Bool[Tensor, "b n"] | None:
        """Where tokens are, not padding; None where the inputs do not say."""
        mask = self.inputs.get("attention_mask")
        return None if mask is None else mask.bool()

    def repeated(self, times: int) -> Batch:
        """Each text `times` times in a row."""
        inputs = {name: x.repeat_interleave(times, 0) for name, x in self.inputs.items()}
        places = tuple(place for place in self.places for _ in range(times))
        labels, targets = (None if x is None else x.repeat_interleave(times, 0) for x in (self.labels, self.targets))
        return Batch(inputs, places, labels, targets)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Batches, and how many texts and tokens they hold.

    `notes`: how long texts were cut ("windows"), and what a decoder beside an encoder reads ("decoder"), where any is.
    """

    batches: tuple[Batch, ...]
    num_texts: int
    num_tokens: int
    notes: Mapping[str, str] = field(default_factory=dict)


def read_corpus(lm: Any, texts: str | Sequence[Any], labels: Any = None, num_tokens: int = BATCH_TOKENS) -> Corpus:
    """Texts, or ready inputs (a list of mappings, each a batch: pictures, sounds, anything), as batches.

    `num_tokens` is the size of a batch with padding. Long texts are read in windows; each is a text of its own.
    Errors: TextError for no texts, or labels that are not one a text.
    """
    if not isinstance(texts, str) and isinstance(texts, Sequence) and texts and isinstance(texts[0], Mapping):
        return _ready(lm, texts, labels)
    reading = read_texts(lm, texts)
    given = 1 if isinstance(texts, str) else len(texts)
    _check_labels(labels, given)
    found = []
    for group in batches(reading, num_tokens):
        inputs = model_inputs(lm, tokens_of(reading, group, None, ""))
        beside, ids = "decoder_input_ids" in inputs, inputs["input_ids"]
        targets = ids.masked_fill(inputs["attention_mask"] == 0, -100) if beside else None
        sources = [reading.pieces[i].source for i in group]
        found.append(Batch(inputs, tuple(group), _labels(labels, sources), targets))
    notes = {"windows": reading.because, "decoder": decoder_story(lm)}
    said = {name: words for name, words in notes.items() if words}
    return Corpus(tuple(found), len(reading.pieces), reading.num_tokens, said)


def require_loaded(lm: Any) -> None:
    """Errors: ModelError for what is no loaded model."""
    if not hasattr(lm, "model") or not hasattr(lm, "spec"):
        how = f"mh.load({lm!r})" if isinstance(lm, str) else "mh.load(model, tokenizer=...)"
        raise ModelError(f"a {type(lm).__name__} is not a loaded model: load it first, as {how}.")


def _ready(lm: Any, given: Sequence[Any], labels: Any) -> Corpus:
    found, count, tokens = [], 0, 0
    for inputs in given:
        if not isinstance(inputs, Mapping) or not inputs or not all(isinstance(x, Tensor) for x in inputs.values()):
            raise TextError("ready inputs are mappings of names to tensors, each a batch: one of these is none.")
        inputs = {name: x.to(lm.device) for name, x in inputs.items()}
        size = len(next(iter(inputs.values()))) if all(x.ndim for x in inputs.values()) else 0
        if not size or any(len(x) != size for x in inputs.values()):
            shapes = {name: tuple(x.shape) for name, x in inputs.items()}
            raise TextError(f"a batch of inputs has {shapes}: the first axis of each must be the samples.")
        places = range(count, count + size)
        found.append(Batch(inputs, tuple(places), None))
        count, tokens = count + size, tokens + int(inputs.get("attention_mask", torch.zeros(1)).sum())
    _check_labels(labels, count)
    found = [Batch(each.inputs, each.places, _labels(labels, each.places)) for each in found]
    return Corpus(tuple(found), count, tokens)


def _check_labels(labels: Any, count: int) -> None:
    if labels is None:
        return
    if isinstance(labels, str) or not isinstance(labels, Sequence | Tensor | ndarray):
        raise TextError(f"labels is a {type(labels).__name__}: give a list of class numbers, one for each text.")
    if len(labels) != count:
        raise TextError(f"{len(labels)} labels were given for {count} texts: give one for each.")
    if wrong := [label for label in labels if isinstance(label, str) or int(label) != label or label < 0]:
        raise TextError(f"label {wrong[0]!r} is no class: give whole numbers, from 0.")


def _labels(labels: Any, sources: Sequence[int]) -> Tensor | None:
    return None if labels is None else torch.tensor([int(labels[source]) for source in sources])


def exact(x: Tensor) -> Tensor:
    """Float32 at the least."""
    return x if x.dtype == torch.float64 else x.float()


def outputs_of(lm: Any, batch: Batch, *, head: bool, grad: bool = False) -> Any:
    """What the model returns for a batch; without the model's head unless said."""
    return run(lm.model, lm.name, batch.inputs, head=head, grad=grad)
