"""Which way a layer's attention is computed, and why: the fastest that gives exactly what was asked.

`attend` returns each row's log-sum-exp, and torch's kernels give no gradient of that. A layer in training needs
gradients and no lse, so it goes another way: `mix` hands the call to torch's `scaled_dot_product_attention` wherever
its meaning fits (told `is_causal` and `enable_gqa` where they do), packs one query into its group where it is a decoded
token, and computes softcap and sinks, which no kernel has, on the plain map. Nothing here looks at a tensor's numbers,
so all of it compiles into one graph. Every way returns `because`.

`LayerCall` and the hooks at the end let somebody look over a layer's shoulder: our own layers have no interface of
another library to wrap, so they ask there before they attend.
Oracle: reference.attend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.attention import Mask, Rule, attend, decode_one
from manyheads.nn.layer_inputs import View

DENSE_CELLS = 1 << 26  # a mask of more cells (64 MB of booleans) is not formed where tiles can serve


@dataclass(frozen=True, eq=False)
class Mixed:
    """`out` per head, before W^O; `because`: which way, and why."""

    out: Float[Tensor, "b h q f"]
    because: str


def mix(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k f"],
    view: View,
    rule: Rule,
    *,
    dropout: float = 0.0,
) -> Mixed:
    """Attention without its lse, with gradients. Rows that see nothing give 0.

    - `q`: queries, of h heads.
    - `k`: keys, of g heads.
    - `v`: values, of g heads.
    - `view`: which keys each query sees.
    - `rule`: scale, softcap, sinks and bias of the scores.
    - `dropout`: the share of weights that are dropped, 0 to 1.

    Query head i reads key/value head `i // (h / g)`. Empty axes give empty or zero results.
    Cost: O(q * f) memory where a fused kernel serves, O(h * q * k) on the plain map. Oracle: reference.attend.
    """
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        return Mixed(q.new_zeros(*q.shape[:3], v.shape[-1]), "nothing to do: an axis is empty")
    tracked = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (q, k, v, rule.sinks, rule.bias)
    )
    special = "softcap" if rule.softcap is not None else "sinks" if rule.sinks is not None else ""
    # `attend` gives no gradients by way of its lse, drops nothing, and looks at numbers, which a graph cannot.
    free = not (tracked or dropout or torch.compiler.is_compiling())
    if free and (special or (view.by_position and view.num_queries * view.num_keys > DENSE_CELLS)):
        mask = view.mask(len(q), q.device)
        attended = attend(q, k, v, mask=mask, **rule.options)
        return Mixed(attended.out, f"attend, since {special or 'the mask is too large to form'}: {attended.because}")
    if special:
        weights = dense_weights(q, k, view, rule)
        return Mixed(weigh(weights, v, dropout), f"the plain map: no fused kernel with gradients knows {special}")
    view, keys = view.last_keys()
    k, v = k[:, :, keys], v[:, :, keys]
    if rule.bias is None:  # booleans where only visibility counts; none where a triangle says it all
        mask = None if view.triangle else view.dense(q.device)
    else:  # floats where something is added
        mask = rule.bias[..., keys]
        if mask.dtype != q.dtype:  # half-precision scores may have float32 added on the CPU, and only there
            mask = mask.to(torch.promote_types(q.dtype, torch.float32) if q.device.type == "cpu" else q.dtype)
        visible = view.dense(q.device)
        mask = mask if visible is None else torch.where(visible, mask, -torch.inf)
    shares, triangle = bool(q.shape[1] != k.shape[1]), bool(view.triangle and mask is None)  # traced, they are tensors
    if q.shape[2] == 1 and not dropout:
        return Mixed(*decode_one(q, k, v, rule.scale, mask))
    width = v.shape[-1]
    wide = max(q.shape[-1], width)
    if q.shape[-1] != width and not dropout:  # else torch's CPU kernel refuses, and the n x n map is formed
        q, k, v = (x if x.shape[-1] == wide else F.pad(x, (0, wide - x.shape[-1])) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, mask, dropout, triangle, scale=rule.scale, enable_gqa=shares)
    passed = "is_causal" if triangle else "no mask" if mask is None else f"a {mask.dtype} mask"
    return Mixed(out[..., :width], f"scaled_dot_product_attention with {passed}{', enable_gqa' if shares else ''}")


def dense_weights(
    q: Float[Tensor, "b h q d"], k: Float[Tensor, "b g k d"], view: View, rule: Rule, heads: Sequence[int] | None = None
) -> Float[Tensor, "b n q k"]:
    """The map of some heads (all, if None), and of no other: float32 at the least, with gradients.

    Rows that see nothing are 0; where a sink takes its share, rows sum to less than 1. Cost: O(n * q * k) memory.
    """
    compute = torch.promote_types(q.dtype, torch.float32)
    serves = q.shape[1] // max(k.shape[1], 1)
    if heads is not None:
        chosen = list(heads)
        q, k, serves = q[:, chosen], k[:, [head // serves for head in chosen]], 1
        rule = rule.heads(chosen)
    num_texts, num_heads, num_rows, dim = q.shape
    packed = (q.to(compute) * rule.scale).reshape(num_texts, num_heads // serves, serves * num_rows, dim)
    scores = (packed @ k.to(compute).transpose(2, 3)).reshape(num_texts, num_heads, num_rows, k.shape[2])
    scores = rule.finish(scores)
    visible = view.dense(q.device)
    if visible is None and rule.bias is None and rule.sinks is None:
        return scores.softmax(-1)  # every row sees something
    if visible is not None:
        visible = visible[:, list(heads)] if heads is not None and visible.shape[1] > 1 else visible
        scores = scores.masked_fill(~visible, -torch.inf)
    if not scores.shape[-1]:
        return scores
    # Rows of nothing but -inf come out as 0, where torch's own softmax and its gradient are NaN. The maximum is
    # detached: it cancels out of the result, so a gradient by way of it would be work for nothing.
    top = scores.detach().amax(-1, keepdim=True)
    sink = None if rule.sinks is None else rule.sinks.to(scores.dtype)[:, None, None]
    if sink is not None:
        top = torch.maximum(top, sink.detach())
    raised = (scores - torch.where(top == -torch.inf, 0, top)).exp()
    total = raised.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink - torch.where(top == -torch.inf, 0, top)).exp()
    return raised / torch.where(total > 0, total, 1)


def weigh(
    weights: Float[Tensor, "b h q k"], v: Float[Tensor, "b g k f"], dropout: float = 0.0
) -> Float[Tensor, "b h q f"]:
    """`weights @ v`, each key/value head read once for all the query heads it serves; in v's dtype."""
    weights = F.dropout(weights, dropout) if dropout else weights
    num_texts, num_heads, num_rows, num_keys = weights.shape
    groups = v.shape[1]
    packed = weights.to(v.dtype).reshape(num_texts, groups, num_heads // max(groups, 1) * num_rows, num_keys)
    return (packed @ v).reshape(num_texts, num_heads, num_rows, v.shape[-1])


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One attention call of one of our layers, before it is made: q and k after norm and rotation, heads not repeated.

    `run()` makes it, just as the unwatched layer would: per-head outputs before W^O and before any per-head output
    scale, and which way they were computed. The mask is read off when asked for: `mask()` costs O(q * k) where the
    caller gave masks. `crosses`: keys were handed in as another text. `dropout`: the share of weights left out.
    """

    module: nn.Module
    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k f"]
    rule: Rule
    mask: Callable[[], Mask]
    crosses: bool
    run: Callable[[], Mixed]
    dropout: float = 0.0


@runtime_checkable
class Hook(Protocol):
    """Sees each attention call of the layers that it watches, and may put other outputs in its place.

    `wants`: whether it watches a module (from this thread). `seen` makes the call and returns its outputs. Compiled
    layers are not watched.
    """

    def wants(self, module: nn.Module) -> bool: ...

    def seen(self, call: LayerCall) -> Tensor: ...


# The tuple is replaced under the lock, never changed: a layer in another thread reads all of it, and pays one look at
# an empty tuple where nobody watches.
_LOCK = threading.Lock()
_hooks: tuple[Hook, ...] = ()


def watching(module: nn.Module) -> Hook | None:
    """The hook that wants this module's calls: the last one added, who may call `run()` and so reach no other."""
    return next((hook for hook in reversed(_hooks) if hook.wants(module)), None) if _hooks else None


def add_hook(hook: Hook) -> None:
    """Watch calls with this hook. A hook that was added before stays where it is."""
    global _hooks
    with _LOCK:
        _hooks = _hooks if hook in _hooks else (*_hooks, hook)


def remove_hook(hook: Hook) -> None:
    global _hooks
    with _LOCK:
        _hooks = tuple(registered for registered in _hooks if registered is not hook)
