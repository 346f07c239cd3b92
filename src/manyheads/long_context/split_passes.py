"""`SplitPasses`: what a model predicts in the rows of a text, as it is and under splits of its heads.

These passes are what a split's evidence costs, so each computes only what no pass before has. A row loses no key until
`sink + recent` are before it: up to there all splits share the rows of the model as it is, as keys and values in front
of their own rows (`StreamingCache.begin`). Up to the first layer in which a head streams they share all rows. Logits
are computed of the rows that are read.

Where a streaming cache does not serve the model, or a trial on the first text does not give what the model itself gave,
whole texts are read under each split's plan, and `because` gives the reason.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from manyheads import private_names
from manyheads.base import first_line
from manyheads.edits import applied, exact, logits_of, replaced_forward
from manyheads.errors import ModelError
from manyheads.long_context.head_split import HeadSplit
from manyheads.long_context.streaming_cache import stock_cache, streaming
from manyheads.models import LoadedModel, run
from manyheads.private_names import DynamicLayer

SAME = 1e-4  # of the largest logit in float32: the same sums in another order


class Predicted(NamedTuple):
    """Of each row that was read: the loss of the token that follows (nats), and whether it is the likeliest."""

    losses: Float64[Tensor, "row"]
    right: Bool[Tensor, "row"]


class Plain(NamedTuple):
    """The model as it is on one text: logits of the rows that were read, its cache, and what each block returned."""

    logits: Float[Tensor, "row v"]
    cache: list[Any]
    returned: dict[int, object]


@dataclass(eq=False)
class SplitPasses:
    """Reads texts one by one under splits. `count`: passes a text; `whole`: why whole texts run, "" if they do not.

    - `lm`: a decoder.
    - `splits`: with the same `sink` and `recent`. Equal ones run once; one in which nothing streams not at all.
    """

    lm: LoadedModel
    splits: Sequence[HeadSplit]
    whole: str = ""

    def __post_init__(self) -> None:
        self.first = self.splits[0].sink + self.splits[0].recent
        # Layers in which nobody streams keep their caches in their own way: those whose window is short do so anyway.
        self.streamed: dict[object, HeadSplit] = {}
        for split in self.splits:
            if _first_layer(split) is not None:
                divided = {number for number, _ in split.dividable}
                self.streamed[split.layers] = _kept(split, {number for number, _ in enumerate(split.layers)} - divided)
        self.blocks = _blocks(self.lm)
        self.tried = False
        self.everything = _kept(self.splits[0], range(len(self.splits[0].layers)))
        if not self.whole:
            try:
                with streaming(self.lm, self.everything):
                    pass
            except ModelError as error:  # it names what it does not serve
                self.whole = str(error).rstrip(".")

    @property
    def count(self) -> int:
        return 1 + len(self.streamed)

    @property
    def because(self) -> str:
        """How texts are read, in words."""
        if self.whole:
            return f"whole texts under each split's plan: {self.whole}"
        layers = ", layers from the first that streams" if self.blocks else ""
        return f"rows from the first that loses a key{layers}"

    @torch.no_grad()
    def read(self, ids: Sequence[int], rows: range, done: Callable[[], None] | None = None) -> list[Predicted]:
        """What is predicted in `rows` (row i predicts token i + 1) by the model as it is, then under each split.

        Cost: one pass, and one for each split that differs, of the rows behind `sink + recent` and the layers from its
        first that streams; the keys and values of the text, and a copy of it in each such layer. `done` is called after
        each pass.
        """
        text = torch.tensor([list(ids)], device=self.lm.device)
        following = text[0, rows.start + 1 : rows.stop + 1]
        plain = self._plain(text, rows)
        before = _predicted(plain.logits, following)
        if done is not None:
            done()
        by_layers: dict[object, Predicted] = {}
        for layers, split in self.streamed.items():
            by_layers[layers] = before
            if rows.stop > self.first < text.shape[1]:
                by_layers[layers] = self._under(split, text, rows, plain, before)
            if done is not None:
                done()
        return [before, *(by_layers.get(split.layers, before) for split in self.splits)]

    def _plain(self, text: Tensor, rows: range) -> Plain:
        """The model as it is."""
        if self.whole or text.shape[1] <= self.first:
            return Plain(self._logits(text, rows), [], {})
        numbers_read = {layer - 1 for split in self.streamed.values() if (layer := _first_layer(split))}
        numbers_read |= set() if self.tried else {len(self.blocks) - 2}
        returned: dict[int, object] = {}
        thread = threading.get_ident()

        def keeper(number: int) -> Callable[..., None]:
            def keep(module: nn.Module, args: object, result: object) -> None:
                values = result if isinstance(result, tuple) else (result,)
                first: object = values[0] if len(values) == 1 else None
                if threading.get_ident() == thread and isinstance(first, Tensor) and first.shape[:2] == text.shape:
                    later = first[:, self.first :]
                    returned[number] = (later,) if isinstance(result, tuple) else later

            return keep

        cache = stock_cache(self.lm.model)
        with ExitStack() as stack:
            for number in numbers_read & set(range(len(self.blocks))):
                stack.callback(self.blocks[number].register_forward_hook(keeper(number)).remove)
            logits = self._logits(text, rows, cache)
        if not all(type(layer) is DynamicLayer for layer in cache.layers):  # a window's layer has freed its first rows
            cache = stock_cache(self.lm.model)
            self._logits(text[:, : self.first], range(self.first - 1, self.first), cache)
        plain = Plain(logits, cache.layers, returned)
        later = range(max(rows.start, self.first), rows.stop)
        if not self.tried and later:
            self.tried = True
            try:
                again = self._later(self.everything, text, later, plain, len(self.blocks) - 1)
                known = logits[-len(later) :]
                close = max(SAME, 4 * torch.finfo(known.dtype).eps)
                if not bool((again - known).abs().max() <= close * known.abs().max()):
                    self.whole = "rows behind a cache do not give what whole texts give"
            except (ModelError, TypeError, ValueError, IndexError, RuntimeError) as error:
                self.whole = first_line(error) or type(error).__name__
        return plain

    def _under(self, split: HeadSplit, text: Tensor, rows: range, plain: Plain, before: Predicted) -> Predicted:
        """What is predicted under a split; up to row `first` that is known."""
        if not self.whole:
            try:
                later = range(max(rows.start, self.first), rows.stop)
                logits = self._later(split, text, later, plain, _first_layer(split) or 0)
                new, known = _predicted(logits, text[0, later.start + 1 : later.stop + 1]), later.start - rows.start
                return Predicted(*(torch.cat([old[:known], x]) for old, x in zip(before, new, strict=True)))
            except ModelError as error:  # of a layer in which no head of the trial streamed
                self.whole = str(error).rstrip(".")
        with applied(self.lm, split.ablation()):
            return _predicted(self._logits(text, rows), text[0, rows.start + 1 : rows.stop + 1])

    def _later(self, split: HeadSplit, text: Tensor, rows: range, plain: Plain, layer: int) -> Float[Tensor, "row v"]:
        """Logits of rows behind the first ones, under a split whose heads stream from `layer` on."""
        with ExitStack() as stack:
            cache = stack.enter_context(streaming(self.lm, split)).cache()
            cache.begin(plain.cache, self.first)
            if (known := plain.returned.get(layer - 1)) is not None:
                for number in range(layer):  # the results of all but the last of them are read by nobody
                    stack.enter_context(replaced_forward(self.blocks[number], lambda *_, **__: known))
            return self._logits(text[:, self.first :], rows, cache, self.first)

    def _logits(self, text: Tensor, rows: range, cache: object = None, past: int = 0) -> Float[Tensor, "row v"]:
        """Logits of rows of a text, `past` of whose tokens are in the cache."""
        model, last = self.lm.model, past + text.shape[1] - rows.start
        arguments: dict[str, Any] = {"input_ids": text}
        if cache is not None:
            arguments |= private_names.with_cache(model, {}, cache)
        if "logits_to_keep" in inspect.signature(model.forward).parameters:
            arguments["logits_to_keep"] = last
        outputs = run(model, self.lm.name, arguments, head=True)
        return logits_of(outputs, "loss", 3)[0, -last:][: len(rows)]


def _predicted(logits: Float[Tensor, "row v"], following: Tensor) -> Predicted:
    losses = F.cross_entropy(exact(logits), following, reduction="none")
    return Predicted(losses.double().cpu(), (logits.argmax(-1) == following).cpu())


def _first_layer(split: HeadSplit) -> int | None:
    """The first layer in which a head streams; None where none does."""
    return next((number for number, layer in split.dividable if not all(layer.kept)), None)


def _kept(split: HeadSplit, numbers: Container[int]) -> HeadSplit:
    """The split with all heads of some layers kept."""
    return replace(
        split,
        layers=tuple(
            replace(layer, kept=(True,) * len(layer.kept)) if number in numbers else layer
            for number, layer in enumerate(split.layers)
        ),
    )


def _blocks(lm: LoadedModel) -> list[nn.Module]:
    """The model's blocks by the number of their layer; none where they cannot be told."""
    paths = [re.match(r"(.*\.\d+)\.", site.module) for site in lm.spec.sites if "#" not in site.module]
    numbered = [match[1] for match in paths if match is not None]
    alike = [site.layer for site in lm.spec.sites] == list(range(len(numbered))) and len(set(numbered)) == len(numbered)
    return [lm.model.get_submodule(path) for path in numbered] if alike else []
