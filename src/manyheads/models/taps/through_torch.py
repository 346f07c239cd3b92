"""The third way in: whatever calls `scaled_dot_product_attention`, and torch's own `nn.MultiheadAttention`.

Two nets, since either alone has holes. A function mode sees every torch function of its thread, also one that was
imported by name long ago; but torch switches it off inside its own `multi_head_attention_forward`. There the wrapper
serves that stands under the function's name in `torch.nn.functional`. While the mode is on, torch's own layers leave
their fast path, whose kernel shows nothing: outputs equal the fast path's to rounding, the slow path's to the bit.

With `need_weights=True` torch's layer takes another road, by plain products: a dispatch mode picks q, k, v and the
per-head outputs out of them. Who takes neither road, and makes weights by hand (a softmax, then a product), is noted
by name, so that nobody is left out in silence. Checked on torch 2.13.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, overrides
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from manyheads.errors import ModelError
from manyheads.models.taps.mask_arguments import four_axes
from manyheads.models.taps.open_taps import HERE, OPEN, Seen, WatchFused, in_hand, only
from manyheads.nn import Rule

ATTENTION = F.scaled_dot_product_attention
TORCHS_LAYER = F.multi_head_attention_forward
ARGUMENTS = inspect.signature(TORCHS_LAYER)

SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax}
CARRY = {
    F.dropout, torch.dropout, Tensor.to, Tensor.type, Tensor.type_as, Tensor.float, Tensor.half, Tensor.bfloat16,
    Tensor.view, Tensor.reshape, Tensor.masked_fill, Tensor.__mul__, Tensor.mul, torch.mul, Tensor.contiguous,
    torch.nan_to_num, Tensor.nan_to_num, torch.masked_fill,
}  # fmt: skip
PRODUCT = {
    torch.matmul, torch.bmm, torch.einsum, Tensor.matmul, Tensor.bmm, Tensor.__matmul__, torch.baddbmm,
}  # fmt: skip
"""What makes weights of scores, what may still be done to them, and what reads values with them."""

_HANDLES: list[Any] = []


class _ByHand(threading.local):
    """Weights that somebody made by a softmax of their own, as long as they live."""

    def __init__(self) -> None:
        self.made: dict[int, weakref.ref[Tensor]] = {}

    def add(self, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and tensor.ndim >= 3:
            self.made[id(tensor)] = weakref.ref(tensor)

    def holds(self, tensor: Any) -> bool:
        found = self.made.get(id(tensor))
        return found is not None and found() is tensor


_BY_HAND = _ByHand()
_CROSSES = threading.local()  # .said: whether torch's own layer, which is running, reads another text


def install() -> None:
    """The wrapper under the function's name, and who is running: for all modules, while any tap is open."""
    if _HANDLES:
        return
    F.scaled_dot_product_attention = _attention
    _HANDLES.append(register_module_forward_pre_hook(_enter))
    _HANDLES.append(register_module_forward_hook(_leave, always_call=True))


def remove() -> None:
    if not _HANDLES:
        return
    F.scaled_dot_product_attention = ATTENTION
    while _HANDLES:
        _HANDLES.pop().remove()


def _enter(module: nn.Module, _: Any) -> None:
    taps = OPEN.on(module)
    if not taps:
        return
    if not HERE.modules:  # a forward pass begins
        _BY_HAND.made.clear()
        for tap in taps:
            tap.calls.clear()
    HERE.modules.append(module)


def _leave(module: nn.Module, *_: Any) -> None:
    if HERE.modules and HERE.modules[-1] is module:
        HERE.modules.pop()


@contextmanager
def watching_functions() -> Iterator[None]:
    """The function mode, for this thread. Taps nest: each brings one, and the first that sees a call has it in hand."""
    depth = len(HERE.modules)
    try:
        with _Functions():
            yield
    finally:
        del HERE.modules[depth:]  # a module that was left by way of a tap's end


@contextmanager
def unwatched() -> Iterator[None]:
    """Without our function modes, for what torch compiles as it is called: else it compiles once more for a tap."""
    with ExitStack() as stack:
        while overrides._len_torch_function_stack() and isinstance(overrides._get_current_function_mode(), _Functions):
            stack.enter_context(overrides._pop_mode_temporarily())
        yield


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if HERE.in_hand or not HERE.modules:
            return func(*args, **kwargs)
        if func is ATTENTION:
            return _attention(*args, **kwargs)
        if func is TORCHS_LAYER:
            return _torchs_layer(args, kwargs)
        result = func(*args, **kwargs)
        _note_by_hand(func, args, result)
        return result


def _note_by_hand(func: Any, args: Any, result: Any) -> None:
    if func in SOFTMAX:
        _BY_HAND.add(result)
    elif not _BY_HAND.made:
        return
    elif func in CARRY and args and _BY_HAND.holds(args[0]):
        _BY_HAND.add(result)
    elif func in PRODUCT and any(map(_BY_HAND.holds, _operands(args))):
        module = HERE.modules[-1]
        for tap in OPEN.on(module):
            tap.by_hand[tap.paths[id(module)]] = type(module).__name__


def _operands(args: Any) -> list[Any]:
    """Of a product, also of one that takes them in a list."""
    return [x for each in args for x in (each if isinstance(each, list | tuple) else (each,))]


def _attention(*args: Any, **kwargs: Any) -> Any:
    """What stands under `scaled_dot_product_attention` while a tap is open."""
    if HERE.in_hand or not HERE.modules:
        return ATTENTION(*args, **kwargs)
    with in_hand(), WatchFused() as watch:
        result = ATTENTION(*args, **kwargs)  # errors are torch's own
    module = HERE.modules[-1]
    taps = OPEN.on(module)
    q, k, v, attn_mask, is_causal, scale = _said(*args, **kwargs)
    if min(x.ndim for x in (q, k, v)) < 2 or 0 in q.shape or 0 in k.shape:
        return result
    q, k, v = _texts_and_heads(q, k, v)
    mask, bias = taps[0].masks.plain(attn_mask, result.ndim, q.shape[2], k.shape[2], is_causal)
    rule = Rule(q.shape[-1] ** -0.5 if scale is None else float(scale), bias=bias)
    out = four_axes(result)
    crosses = getattr(_CROSSES, "said", False)
    edited = Seen(module, q, k, v, mask, rule, out, only(watch), crosses).show(taps)
    return result if edited is out else edited.reshape(result.shape)


def _said(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool, float | None]:
    """What a call says, by place or by name, as far as it shapes the weights."""
    return query, key, value, attn_mask, is_causal, scale


def _texts_and_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with four axes, of as many texts, k and v of as many heads: torch broadcasts them."""
    leading = max(x.ndim for x in (q, k, v))
    q, k, v = (four_axes(x.reshape((1,) * (leading - x.ndim) + x.shape)) for x in (q, k, v))
    num_texts, num_kv_heads = max(len(x) for x in (q, k, v)), max(k.shape[1], v.shape[1])
    k, v = (x.expand(num_texts, num_kv_heads, -1, -1) for x in (k, v))
    return q.expand(num_texts, max(q.shape[1], num_kv_heads), -1, -1), k, v


def _torchs_layer(args: Any, kwargs: Any) -> Any:
    """`nn.MultiheadAttention`: without weights its own call of our wrapper serves; with weights its products do."""
    given = ARGUMENTS.bind(*args, **kwargs)
    given.apply_defaults()
    asked = given.arguments
    module = HERE.modules[-1]
    taps = OPEN.on(module)
    before = getattr(_CROSSES, "said", False)
    _CROSSES.said = asked["key"] is not asked["query"]
    try:
        if not asked["need_weights"]:
            return TORCHS_LAYER(*args, **kwargs)
        if any(tap.edits for tap in taps):  # the products cannot be edited with gradients: the other road can
            with in_hand():
                weights = TORCHS_LAYER(*args, **kwargs)[1]
            asked["need_weights"] = False
            return TORCHS_LAYER(*given.args, **given.kwargs)[0], weights
        with in_hand(), _WatchProducts() as products:
            result = TORCHS_LAYER(*args, **kwargs)
        products.seen(module, asked["num_heads"], _CROSSES.said).show(taps)
        return result
    finally:
        _CROSSES.said = before


class _WatchProducts(TorchDispatchMode):
    """The two products around the softmax of torch's layer. Changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: Any = ()
        self.softened = False
        self.values: Tensor | None = None
        self.out: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._softmax.default:
            self.softened = True
        elif func in (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default) and self.out is None:
            if self.softened:
                self.values, self.out = args[1], result
            else:
                self.scores = args
        return result

    def seen(self, module: nn.Module, num_heads: int, crosses: bool) -> Seen:
        """The call, as far as it could be picked out of the products. Errors: ModelError."""
        if self.values is None or self.out is None or not self.scores:
            raise ModelError(
                f"{type(module).__name__} was asked for its weights and took a road that is not known: call it with "
                f"need_weights=False, or use another version of torch (this is {torch.__version__})."
            )
        *bias, q, k = self.scores  # q is scaled already; k is transposed
        q, k, v, out = (x.unflatten(0, (-1, num_heads)) for x in (q, k.transpose(1, 2), self.values, self.out))
        added = None
        if bias:
            added = bias[0].expand(bias[0].shape[0], q.shape[2], k.shape[2])
            added = added[None] if len(added) == 1 else added.unflatten(0, (-1, num_heads))
        taps = OPEN.on(module)
        mask, bias_left = taps[0].masks.plain(added, 4, q.shape[2], k.shape[2], False)
        return Seen(module, q, k, v, mask, Rule(1.0, bias=bias_left), out, None, crosses)
