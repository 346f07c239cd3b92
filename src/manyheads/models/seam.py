"""The one seam: a context manager under which every attention call of a model becomes an `AttentionCall`.

transformers' models look their attention function up by name, through one class. While any tap is open, that look-up
returns the model's *own* function inside a wrapper: no new name is registered, so masks, and branches that test a
name, keep working, and outputs stay bit-identical. (Registering a name would lose the mask: docs/decisions/001.)
A fused kernel's lse is taken from the model's own call, by a dispatch mode that watches it: no second pass.

Wrappers are installed once, under a lock, and counted; calls go by module identity, and by thread, to the taps on that
module, so that several threads may tap, the same model too, and leave in any order. An untapped model passes through.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from manyheads.errors import ModelError
from manyheads.models import guard as guarding
from manyheads.models.calls import AttentionCall, Edit, Observer, lse_of
from manyheads.models.families import output_projection, stack_of
from manyheads.models.reading import MaskReader, is_causal_without_mask, read_rule
from manyheads.nn.hooks import LayerCall, add_hook, remove_hook
from manyheads.nn.masks import Mask
from manyheads.nn.rules import Rule
from manyheads.spec import Site

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
SDPA = torch.ops.aten.scaled_dot_product_attention.default


class _WatchFused(TorchDispatchMode):
    """Keeps the lse of every fused CPU call made under it. Changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.lse: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is SDPA:  # under inference_mode the composite arrives whole: take it apart, under this same mode
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func is FUSED:
            self.lse.append(result[1])
        return result


@dataclass(eq=False)
class Tap:
    """An open tap. `sites` in the order in which layers first called; `guard_error` the worst seen so far."""

    model: nn.Module
    on_call: Observer | None = None
    edits: Sequence[Edit] = ()
    guard: bool = True
    thread: int = 0
    sites: dict[str, Site] = field(default_factory=dict)
    guard_error: float = 0.0
    because: dict[str, int] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)
    projections: dict[str, nn.Module | None] = field(default_factory=dict)
    masks: MaskReader = field(default_factory=MaskReader)

    def site(self, seen: _Seen, causal: bool) -> Site:
        """The call's place in the model; layers are counted in the order in which they first call."""
        path = self.paths[id(seen.module)]
        if path not in self.sites:
            config = getattr(self.model, "config", None)
            stack = stack_of(
                path,
                encoder_decoder=bool(getattr(config, "is_encoder_decoder", False)),
                crosses=seen.crosses or bool(getattr(seen.module, "is_cross_attention", False)),
            )
            layer = sum(site.stack == stack for site in self.sites.values())
            sizes = (seen.q.shape[1], seen.k.shape[1], seen.q.shape[3], seen.v.shape[3])
            self.sites[path] = Site(stack, layer, path, *sizes, causal)
        return self.sites[path]

    def projection(self, site: Site) -> nn.Module | None:
        if site.module not in self.projections:
            found = output_projection(self.model, site.module, site.num_heads * site.v_dim)
            self.projections[site.module] = None if found is None else found[1]
        return self.projections[site.module]


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
    Errors: ModelError for a model in training mode, compiled, or without a way in; GuardError where a recording
    would be wrong. Cost: the guard's few rows, and what `on_call` does.
    """
    _refuse(model)
    state = Tap(model, on_call, tuple(edits), guard, threading.get_ident())
    state.paths = {id(module): path for path, module in model.named_modules()}
    _INTERFACE.open(state)
    try:
        yield state
    finally:
        _INTERFACE.close(state)


def _refuse(model: nn.Module) -> None:
    """Models whose calls cannot be seen, or would not be what they are in use."""
    for path, module in model.named_modules():
        if module.training:
            where = f"{type(model).__name__} is" if module is model else f"{path} of {type(model).__name__} is"
            raise ModelError(f"{where} in training mode, where dropout changes its weights: call model.eval() first.")
        if isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or getattr(module, "_compiled_call_impl", None):
            raise ModelError(
                f"module {path or type(model).__name__!r} is compiled by torch.compile: its attention cannot be seen; "
                f"hand in the model as it was before compiling (model._orig_mod)."
            )


@dataclass(eq=False)
class _Interface:
    """The wrapped look-up of transformers' attention functions, shared by all open taps."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    taps: list[Tap] = field(default_factory=list)
    saved: dict[str, Any] = field(default_factory=dict)

    def open(self, state: Tap) -> None:
        with self.lock:
            if not self.taps:
                add_hook(_LAYER_HOOK)
            # A transformers model cannot be here before transformers is; our own layers need not wait for its import.
            if not self.saved and "transformers.modeling_utils" in sys.modules:
                self._install()
            self.taps = [*self.taps, state]

    def close(self, state: Tap) -> None:
        with self.lock:
            self.taps = [tap for tap in self.taps if tap is not state]
            if not self.taps:
                remove_hook(_LAYER_HOOK)
                if self.saved:
                    self._remove()

    def on(self, module: nn.Module) -> list[Tap]:
        """The taps of this thread that hold this module, the first opened first."""
        here = threading.get_ident()
        return [tap for tap in self.taps if tap.thread == here and id(module) in tap.paths]

    def _install(self) -> None:
        from transformers.modeling_utils import AttentionInterface

        get_interface, get_item = AttentionInterface.get_interface, AttentionInterface.__getitem__

        def look_up(table: Any, name: str, default: Callable) -> Callable:
            return _wrapped(get_interface(table, name, default), name)

        def item(table: Any, name: str) -> Callable:
            return _wrapped(get_item(table, name), name)

        self.saved = {name: vars(AttentionInterface).get(name) for name in ("get_interface", "__getitem__")}
        AttentionInterface.get_interface, AttentionInterface.__getitem__ = look_up, item  # type: ignore[method-assign]

    def _remove(self) -> None:
        from transformers.modeling_utils import AttentionInterface

        for name, value in self.saved.items():
            if value is None:
                delattr(AttentionInterface, name)
            else:
                setattr(AttentionInterface, name, value)
        self.saved = {}


_INTERFACE = _Interface()


def _wrapped(function: Callable, name: str) -> Callable:
    """The model's own attention function, which shows each of its calls to the taps on the calling module."""
    if hasattr(function, "untapped"):
        return function

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        taps = _INTERFACE.on(module)
        if not taps:
            return function(module, query, key, value, *args, **kwargs)
        return _seen(taps, function, name, module, query, key, value, args, kwargs)

    attention.untapped = function  # type: ignore[attr-defined]
    return attention


def _seen(
    taps: list[Tap],
    function: Callable,
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run the model's function, show the call to every tap, and put edited outputs in its place."""
    with _WatchFused() as watch:
        result = function(module, query, key, value, *args, **kwargs)
    attention_mask = args[0] if args else kwargs.get("attention_mask")
    named = dict(zip(("scaling", "dropout"), args[1:], strict=False)) | kwargs
    causal = is_causal_without_mask(name, module, query.shape[2], named)
    mask, bias = taps[0].masks.read(attention_mask, query.shape[2], key.shape[2], causal)
    seen = _Seen(module, query, key, value, mask, read_rule(query, named, bias), watch, result[0].transpose(1, 2))
    edited = seen.show(taps)
    if edited is seen.out:
        return result
    return (edited.transpose(1, 2).contiguous(), *result[1:])


class _LayerHook:
    """Our own layers ask here before they attend: `nn.hooks`."""

    def wants(self, module: nn.Module) -> bool:
        return bool(_INTERFACE.on(module))

    def seen(self, call: LayerCall) -> Tensor:
        with _WatchFused() as watch:
            out = call.run().out
        sinks = call.rule.sinks
        rule = call.rule if sinks is None else replace(call.rule, sinks=sinks.detach())
        gain = getattr(call.module, "head_scale", None)
        seen = _Seen(call.module, call.q, call.k, call.v, call.mask(), rule, watch, out, call.crosses, gain)
        return seen.show(_INTERFACE.on(call.module))


@dataclass(frozen=True, eq=False)
class _Seen:
    """One call, whoever made it, on its way to the taps."""

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    rule: Rule
    watch: _WatchFused
    out: Tensor
    crosses: bool = False
    gain: Tensor | None = None

    def show(self, taps: list[Tap]) -> Tensor:
        """The outputs after every tap's edits: the same tensor where there were none."""
        fused = self.watch.lse[0] if len(self.watch.lse) == 1 else None
        lse, because = lse_of(self.q, self.k, self.mask, self.rule, fused)
        edited = self.out
        for state in taps:
            site = state.site(self, _looks_causal(self.mask))
            facts = (self.q, self.k, self.v, self.mask, self.rule, self.out, lse, because)
            call = AttentionCall(site, *facts, state.projection(site), self.gain)
            state.because[because] = state.because.get(because, 0) + 1
            if state.guard:
                state.guard_error = max(state.guard_error, guarding.check(call, state.model))
            if state.on_call is not None:
                state.on_call(call)
            for edit in state.edits:
                new = edit(replace(call, out=edited))
                edited = edited if new is None else new
        return edited


def _looks_causal(mask: Mask) -> bool:
    """Whether no row sees past its own place."""
    rows = torch.arange(mask.num_queries)[None] + 1 + max(0, mask.num_keys - mask.num_queries)
    return mask.num_queries > 1 and bool((mask.stop <= rows).all())


_LAYER_HOOK = _LayerHook()
