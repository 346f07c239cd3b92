"""The one seam: a context manager under which every attention call of a model becomes an `AttentionCall`.

Three ways in, tried together: transformers' interface (`interface`), our own layers (`ownlayers`), and whatever calls
`scaled_dot_product_attention` or is torch's own layer (`plain`). They are put in place once, under a lock, with the
first tap, and taken away with the last; calls go by module identity, and by thread, to the taps on that module, so that
several threads may tap, the same model too, and leave in any order. An untapped model passes through.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from manyheads.errors import ModelError
from manyheads.models.taps import through_our_layers as ownlayers
from manyheads.models.taps import through_torch as plain
from manyheads.models.taps import through_transformers as interface
from manyheads.models.taps.call import Edit, Observer
from manyheads.models.taps.open_taps import OPEN, Tap, left_out, log, no_way_in

__all__ = ["Tap", "tap"]


WAYS = (interface, ownlayers, plain)


@contextmanager
def tap(
    model: nn.Module,
    on_call: Observer | None = None,
    edits: Sequence[Edit] = (),
    *,
    guard: bool = True,
) -> Iterator[Tap]:
    """See, and change, every attention call of `model` made in this thread.

    `on_call` gets each call as the model computed it. Each edit gets the call and returns new per-head outputs, or
    None; edits act *before* the output projection, in order. The model is always restored, after an exception too.
    Outputs stay bit-identical where nothing is edited; only torch's own layers leave their fast path (`plain`).
    Errors: ModelError for a model in training mode, compiled, or that attends only where nobody can see; GuardError
    where a recording would be wrong. Cost: the guard's few rows, and what `on_call` does.
    """
    _refuse(model)
    state = Tap(model, on_call, tuple(edits), guard, threading.get_ident())
    state.paths = {id(module): path for path, module in model.named_modules()}
    _open(state)
    try:
        with plain.watching_functions():
            yield state
    finally:
        _close(state)
    if state.by_hand:
        if not state.sites:
            raise ModelError(no_way_in(model, type(model).__name__, state.by_hand))
        log.warning("left out: %s", left_out(state.by_hand))


def _open(state: Tap) -> None:
    with OPEN.lock:
        for way in WAYS:  # each looks first whether it is in place
            way.install()
        others = [tap for tap in OPEN.taps if tap.thread == state.thread and tap.edits]
        state.edited = any(not tap.paths.keys().isdisjoint(state.paths) for tap in others)
        OPEN.taps = (*OPEN.taps, state)


def _close(state: Tap) -> None:
    with OPEN.lock:
        OPEN.taps = tuple(tap for tap in OPEN.taps if tap is not state)
        if not OPEN.taps:
            for way in WAYS:
                way.remove()


def _refuse(model: nn.Module) -> None:
    """Models whose calls cannot be seen, or would not be what they are in use."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"tap() takes a torch module, not a {type(model).__name__}: of a loaded model that is lm.model."
        )
    for path, module in model.named_modules():
        if module.training:
            where = f"{type(model).__name__} is" if module is model else f"{path} of {type(model).__name__} is"
            raise ModelError(f"{where} in training mode, where dropout changes its weights: call model.eval() first.")
        if isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or getattr(module, "_compiled_call_impl", None):
            raise ModelError(
                f"module {path or type(model).__name__!r} is compiled by torch.compile: its attention cannot be seen; "
                f"hand in the model as it was before compiling (model._orig_mod)."
            )
