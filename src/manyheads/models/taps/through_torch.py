"""The third way in: whatever calls `scaled_dot_product_attention`, and torch's own `nn.MultiheadAttention`.

Two nets, since either alone has holes. A function mode sees every torch function of its thread, also one that was
imported by name long ago; but torch switches it off inside its own `multi_head_attention_forward`. There the wrapper
serves that stands under the function's name in `torch.nn.functional`. While the mode is on, torch's own layers leave
their fast path, whose kernel shows nothing: outputs equal the fast path's to rounding, the slow path's to the bit.

With `need_weights=True` torch's layer takes another road, by plain products: a dispatch mode picks q, k, v and the
per-head outputs out of them. A module that takes neither road and makes weights itself is read by `by_hand`, or noted
by name, so that none is left out in silence. Checked on torch 2.13.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from manyheads import private_names
from manyheads.attention import Rule
from manyheads.errors import ModelError
from manyheads.models.taps import by_hand, declared
from manyheads.models.taps.mask_arguments import four_axes
from manyheads.models.taps.open_taps import OPEN, RUNNING, FunctionWatch, RawCall, WatchFused, carrying_out
from manyheads.private_names import TorchDispatchMode

ATTENTION = F.scaled_dot_product_attention
SDPA_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # by place; it has no signature
TORCHS_LAYER = F.multi_head_attention_forward
ARGUMENTS = inspect.signature(TORCHS_LAYER)

WATCHED = frozenset({ATTENTION, TORCHS_LAYER, *by_hand.WATCHED})

SOFTMAX_OPERATOR = private_names.found("_softmax")  # None where torch lacks it: its layer with weights is refused then

_HANDLES: list[Any] = []


_TORCHS_LAYER_CALL = threading.local()  # .crosses: whether torch's own layer, which is running, reads another text


def install() -> None:
    """The wrapper under the function's name, and who is running: for all modules, while any tap is open."""
    if _HANDLES:
        return
    F.scaled_dot_product_attention = _attention

    def enter(module: nn.Module, args: tuple[object, ...]) -> tuple[object, ...] | None:
        taps = OPEN.on(module)
        if not taps:
            return None
        if not RUNNING.modules:  # a forward pass begins
            by_hand.clear()
            for tap in taps:
                tap.calls.clear()
        return begin(module, args)

    def leave(module: nn.Module, _: object, output: object) -> object:
        # By identity: a module that was entered before its tap opened leaves without having been put on the stack.
        if RUNNING.modules and RUNNING.modules[-1] is module:
            RUNNING.modules.pop()
            RUNNING.inputs.pop(id(module), None)
            if not RUNNING.modules:
                by_hand.clear()
            return declared.leave(module, output)
        return None

    # torch's types know of no hook that returns other arguments or another output; torch does.
    _HANDLES.append(register_module_forward_pre_hook(enter))  # pyright: ignore[reportArgumentType]
    # After an exception too.
    _HANDLES.append(register_module_forward_hook(leave, always_call=True))  # pyright: ignore[reportArgumentType]


def begin(module: nn.Module, args: tuple[object, ...]) -> tuple[object, ...] | None:
    """A module that is tapped runs from here on; its new arguments, where an edit made others."""
    RUNNING.modules.append(module)
    RUNNING.inputs[id(module)] = next((x.shape for x in args if isinstance(x, Tensor)), torch.Size())
    return declared.enter(module, args)


def remove() -> None:
    if not _HANDLES:
        return
    # Whoever looked the wrapper up while it stood there may keep it: it passes on what no tap watches.
    F.scaled_dot_product_attention = ATTENTION
    while _HANDLES:
        _HANDLES.pop().remove()


@contextmanager
def watching_functions() -> Iterator[None]:
    """The function mode, for this thread. Taps nest: each brings one, and the first that sees a call carries it out."""
    depth = len(RUNNING.modules)
    try:
        with _Functions():
            yield
    finally:
        del RUNNING.modules[depth:]  # a module that was left by way of a tap's end
        declared.forget()
        if not depth:
            by_hand.clear()


class _Functions(FunctionWatch):
    """Carries out attention calls under the eyes of the taps, also those of which a module makes the parts itself."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        # Every torch function of the thread comes through here: what is none of ours leaves by the shortest way.
        if func not in WATCHED and not by_hand.MAPS.nodes:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if func is ATTENTION:
            return _attention(*args, **kwargs)
        if RUNNING.calls or not RUNNING.modules:
            return func(*args, **kwargs)
        if func is TORCHS_LAYER:
            return _torchs_layer(args, kwargs)
        return by_hand.carry_out(func, args, kwargs)


def _attention(*args: Any, **kwargs: Any) -> Tensor:
    """What stands under `scaled_dot_product_attention` while a tap is open."""
    if RUNNING.calls or not RUNNING.modules:
        watch, RUNNING.watch = RUNNING.watch, None  # torch's function comes by here once more, in the function mode
        try:
            with watch or nullcontext():
                return ATTENTION(*args, **kwargs)
        finally:
            RUNNING.watch = watch
    # The model's own call comes first, with its own arguments: whatever is read off them below cannot change it.
    with carrying_out(), WatchFused() as watch:
        result = ATTENTION(*args, **kwargs)  # errors are torch's own
    module = RUNNING.modules[-1]
    taps = OPEN.on(module)
    named = dict(zip(SDPA_ARGUMENTS, args, strict=False)) | kwargs
    q, k, v = (named[name] for name in SDPA_ARGUMENTS[:3])
    if min(x.ndim for x in (q, k, v)) < 2 or 0 in q.shape or 0 in k.shape:
        return result
    # torch broadcasts leading axes: all get four, as many texts, and k and v as many heads.
    leading = max(x.ndim for x in (q, k, v))
    q, k, v = (four_axes(x.reshape((1,) * (leading - x.ndim) + x.shape)) for x in (q, k, v))
    num_texts, num_kv_heads = max(len(x) for x in (q, k, v)), max(k.shape[1], v.shape[1])
    k, v = (x.expand(num_texts, num_kv_heads, -1, -1) for x in (k, v))
    q = q.expand(num_texts, max(q.shape[1], num_kv_heads), -1, -1)
    # Of the first tap, for all: a mask is the call's, and each tap would read the same cells again.
    mask, bias = taps[0].masks.plain(
        named.get("attn_mask"), result.ndim, q.shape[2], k.shape[2], named.get("is_causal", False)
    )
    scale = named.get("scale")
    rule = Rule(q.shape[-1] ** -0.5 if scale is None else float(scale), bias=bias)
    out, dropout = four_axes(result), named.get("dropout_p", 0.0)
    crosses = getattr(_TORCHS_LAYER_CALL, "crosses", False)
    edited = RawCall(module, q, k, v, mask, rule, out, watch.lse, crosses, dropout=dropout).show(taps)
    # Unedited, the very tensor that torch returned: a tap that only looks on changes no bit and no layout.
    return result if edited is out else edited.reshape(result.shape)


def _torchs_layer(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention`: without weights its own call of our wrapper serves; with weights its products do."""
    bound = ARGUMENTS.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    module = RUNNING.modules[-1]
    taps = OPEN.on(module)
    before = getattr(_TORCHS_LAYER_CALL, "crosses", False)
    # By identity, as torch's own projection tells self-attention from the rest: equal numbers may be another text.
    crosses = _TORCHS_LAYER_CALL.crosses = arguments["key"] is not arguments["query"]
    try:
        if not arguments["need_weights"]:
            return TORCHS_LAYER(*args, **kwargs)
        if any(tap.edits for tap in taps):  # the products cannot be edited with gradients: the other road can
            # Twice: the weights of the plain road are what the caller
            # asked for, the outputs of the other are what edits change.
            with carrying_out():
                weights = TORCHS_LAYER(*args, **kwargs)[1]
            arguments["need_weights"] = False
            return TORCHS_LAYER(*bound.args, **bound.kwargs)[0], weights
        with carrying_out(), _WatchProducts() as products:
            result = TORCHS_LAYER(*args, **kwargs)
        dropout = arguments["dropout_p"] if arguments["training"] else 0.0
        products.seen(module, arguments["num_heads"], crosses, dropout).show(taps)
        return result
    finally:
        _TORCHS_LAYER_CALL.crosses = before


class _WatchProducts(TorchDispatchMode):
    """The two products around the softmax of torch's layer. Changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: tuple[Tensor, ...] = ()
        self.softened = False
        self.values: Tensor | None = None
        self.out: Tensor | None = None

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if func is SOFTMAX_OPERATOR:
            self.softened = True
        elif func in (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default) and self.out is None:
            if self.softened:
                self.values, self.out = args[1], result
            else:
                self.scores = args
        return result

    def seen(self, module: nn.Module, num_heads: int, crosses: bool, dropout: float) -> RawCall:
        """The call, as far as it could be picked out of the products. Errors: ModelError."""
        if self.values is None or self.out is None or not self.scores:
            raise ModelError(
                f"{type(module).__name__} was asked for its weights and took a path that is not known: call it with "
                f"need_weights=False, or use another version of torch (this is {torch.__version__})."
            )
        *bias, q, k = self.scores  # q is scaled already; k is transposed
        q, k, v, out = (x.unflatten(0, (-1, num_heads)) for x in (q, k.transpose(1, 2), self.values, self.out))
        added = None
        if bias:
            # torch adds one mask for all texts and heads, or one for each pair of them: the leading axis says which.
            added = bias[0].expand(bias[0].shape[0], q.shape[2], k.shape[2])
            added = added[None] if len(added) == 1 else added.unflatten(0, (-1, num_heads))
        taps = OPEN.on(module)
        mask, bias_left = taps[0].masks.plain(added, 4, q.shape[2], k.shape[2], False)
        return RawCall(module, q, k, v, mask, Rule(1.0, bias=bias_left), out, None, crosses, dropout=dropout)
