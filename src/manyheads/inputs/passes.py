"""The one place where a model runs for us: a forward pass under the tap, and what came out of it.

`forward` runs a loaded model over a batch, `forward_call` any module with its own arguments, `watched` whatever else
runs a model (a generation). Each layer's call goes to every observer, before any edit acts; the layers' tensors live
only while an observer has them: what is wanted of a call must be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from manyheads.base import first_line
from manyheads.errors import ModelError
from manyheads.inputs.batch import Batch
from manyheads.models import AttentionCall, LoadedModel, device_of, run, tap
from manyheads.models.taps import Edit, Observer, Tap, no_way_in


class Ran(NamedTuple):
    """What a pass returned, and the tap that saw it (one that was never opened, where nobody looked)."""

    outputs: Any
    tap: Tap


def forward(
    lm: LoadedModel,
    batch: Batch,
    *observers: Observer,
    edits: Sequence[Edit] = (),
    guard: bool = True,
    head: bool = False,
    grad: bool = False,
) -> Ran:
    """One forward pass of a loaded model over a batch; each call goes to every observer.

    `guard`: whether the tap checks what it sees. `head`: with the language model's or the classifier's head. `grad`:
    with gradients. Without observers, edits and guard the model runs untapped. Errors: ModelError where no call could
    be seen, or the model refuses its inputs; GuardError.
    """
    skips = batch.skips

    def visible(observer: Observer) -> Observer:
        return lambda call: None if call.site.stack == skips else observer(call)

    def read() -> object:
        return run(lm.model, lm.name, {**batch.inputs, **batch.options}, head=head, grad=grad)

    if not (observers or edits or guard):
        return Ran(read(), Tap(lm.model))
    shown = map(visible, observers) if skips else observers
    return watched(lm.model, lm.name, read, *shown, edits=edits, guard=guard)


def forward_call(module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object], *observers: Observer) -> Ran:
    """The same of any module and its own arguments, without gradients."""

    def call() -> object:
        with torch.no_grad():
            return module(*args, **kwargs)

    return watched(module, type(module).__name__, call, *observers)


def watched(
    model: nn.Module,
    name: str,
    work: Callable[[], object],
    *observers: Observer,
    edits: Sequence[Edit] = (),
    guard: bool = True,
) -> Ran:
    """Do `work`, which runs the model, under a tap. Errors: ModelError where there are observers and nothing to see."""

    def show(call: AttentionCall) -> None:
        for observer in observers:
            observer(call)

    with tap(model, on_call=show if observers else None, edits=edits, guard=guard) as state:
        try:
            outputs = work()
        except RuntimeError as error:
            # torch's own words name an operation deep in the model, and not the input.
            if "on the same device" not in str(error):
                raise
            place = device_of(model)
            raise ModelError(
                f"{name} takes its inputs on {place}, and some are on another device ({first_line(error)}): move "
                f"them, as in ids.to({str(place)!r})."
            ) from error
    if observers and not state.sites:
        raise ModelError(no_way_in(model, name, state.unread))
    return Ran(outputs, state)
