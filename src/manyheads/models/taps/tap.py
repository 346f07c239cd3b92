"""The one seam: a context manager under which every attention call of a model becomes an `AttentionCall`.

Three ways in, tried together: transformers' interface (`through_transformers`), our own layers (the hook that
`manyheads.nn` offers), and whatever calls `scaled_dot_product_attention` or is torch's own layer (`through_torch`).
They are put in place once, under a lock, with the first tap, and taken away with the last; calls go by module identity,
and by thread, to the taps on that module, so that several threads may tap, the same model too, and leave in any order.
An untapped model passes through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor, nn

from manyheads import private_names
from manyheads.errors import ModelError
from manyheads.models.taps import through_torch, through_transformers
from manyheads.models.taps.call import Edit, Observer
from manyheads.models.taps.open_taps import (
    OPEN,
    Attend,
    RawCall,
    StandIn,
    Tap,
    WatchFused,
    carrying_out,
    left_out,
    log,
    no_way_in,
)
from manyheads.nn import LayerCall, add_hook, remove_hook

__all__ = ["Tap", "require_tappable", "standing_in", "tap"]


class _LayerHook:
    """Our own layers ask before they attend whether somebody watches, and hand over their call if so."""

    def wants(self, module: nn.Module) -> bool:
        return bool(OPEN.on(module))

    def seen(self, call: LayerCall) -> Tensor:
        with carrying_out(), WatchFused() as watch:
            out = call.run().out
        sinks = call.rule.sinks
        rule = call.rule if sinks is None else replace(call.rule, sinks=sinks.detach())
        gain = getattr(call.module, "head_scale", None)
        raw = RawCall(
            call.module, call.q, call.k, call.v, call.mask(), rule, out, watch.lse, call.crosses, gain, call.dropout
        )
        return raw.show(OPEN.on(call.module))


_HOOK = _LayerHook()


@contextmanager
def tap(
    model: nn.Module,
    on_call: Observer | None = None,
    edits: Sequence[Edit] = (),
    *,
    guard: bool | Callable[[str, RawCall], bool] = True,
    training: bool = False,
    lenient: bool = False,
) -> Iterator[Tap]:
    """See, and change, every attention call of `model` made in this thread.

    `on_call` gets each call as the model computed it. Each edit gets the call and returns new per-head outputs, or
    None; edits act *before* the output projection, in order. The model is always restored, after an exception too.
    Outputs stay bit-identical where nothing is edited; only torch's own layers leave their fast path (`through_torch`).
    `guard` may be asked for each site, by its module and call. `training`: the model may be in training mode and its
    parts compiled (what these hide is the caller's care); `on_call` then gets calls without gradients, and the guard
    leaves calls with dropout out, whose outputs are not what their weights give (unless the module shows its weights).
    `lenient`: a layer that the guard refuses is left out from then on, as one that cannot be read. Whoever opens a tap
    for training says what `unread` holds.
    Errors: ModelError for a model in training mode, compiled, or that attends only where nobody can see; GuardError
    where a recording would be wrong. Cost: the guard's few rows, and what `on_call` does.
    """
    modules = require_tappable(model, training)
    state = Tap(model, on_call, tuple(edits), guard, training, lenient, threading.get_ident())
    # A part that torch.compile stands around is the part itself, whoever runs it.
    state.paths = {id(module): path.replace("_orig_mod.", "") for path, module in modules}
    with OPEN.lock:
        # Under the lock from first to last: another thread may be closing the last tap, and taking the ways in away.
        # Each `install` looks first whether it is in place.
        through_transformers.install()
        add_hook(_HOOK)
        through_torch.install()
        editing = [tap for tap in OPEN.taps if tap.thread == state.thread and tap.edits]
        state.edited = any(not tap.paths.keys().isdisjoint(state.paths) for tap in editing)
        OPEN.taps = (*OPEN.taps, state)
    try:
        # Entered last and left first: its end takes off the stack what still runs (after an exception, say), and no
        # way in may come upon a module there whose tap is gone.
        with through_torch.watching_functions():
            yield state
    finally:
        with OPEN.lock:
            # Off the list first, the ways in away after it: a call that another thread has sent into one of them
            # meanwhile finds no tap there, and passes through.
            OPEN.taps = tuple(tap for tap in OPEN.taps if tap is not state)
            if not OPEN.taps:
                remove_hook(_HOOK)
                through_torch.remove()
                if not OPEN.stand_ins:
                    through_transformers.remove()
    if state.unread and not training:
        if not state.sites:
            raise ModelError(no_way_in(model, type(model).__name__, state.unread))
        log.warning("left out: %s", left_out(state.unread))


@contextmanager
def standing_in(modules: Sequence[nn.Module], attend: Attend) -> Iterator[None]:
    """Compute the attention of some modules of a transformers model by `attend`, in this thread, in the block.

    Taps on such a module are refused when it attends. Errors: ModelError where one of them has a stand-in already.
    """
    stand_in = StandIn({id(module): module for module in modules}, attend, threading.get_ident())
    with OPEN.lock:
        if any(not x.modules.keys().isdisjoint(stand_in.modules) for x in OPEN.stand_ins):  # of any thread
            raise ModelError("this model streams already (mh.streaming): leave that block first.")
        through_transformers.install()
        OPEN.stand_ins = (*OPEN.stand_ins, stand_in)
    try:
        yield
    finally:
        with OPEN.lock:
            OPEN.stand_ins = tuple(x for x in OPEN.stand_ins if x is not stand_in)
            if not OPEN.taps and not OPEN.stand_ins:
                through_transformers.remove()


def require_tappable(model: nn.Module, training: bool = False) -> list[tuple[str, nn.Module]]:
    """The model's modules with their paths.

    Errors: ModelError for a model whose calls cannot be seen, or would not be what they are in use.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"give a torch module, not a {type(model).__name__}: for a loaded model that is lm.model.")
    modules = list(model.named_modules())
    for path, module in () if training else modules:
        if module.training:
            where = f"{type(model).__name__} is" if module is model else f"{path} of {type(model).__name__} is"
            raise ModelError(
                f"{where} in training mode, where dropout changes its weights: call model.eval() first, "
                f"or watch() it as it trains."
            )
        # Compiled code calls neither hooks nor function modes: it would run, and show nothing.
        if private_names.is_compiled(module) or private_names.has_compiled_call(module):
            raise ModelError(
                f"module {path or type(model).__name__!r} is compiled by torch.compile: its attention cannot be seen; "
                f"hand in the model as it was before compiling (model._orig_mod)."
            )
    return modules
