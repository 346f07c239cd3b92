"""Kernels on trial: before they answer for a layer, they answer the same requests of a small one that the CPU knows.

What a compiler makes of a kernel can be wrong on one kind of GPU alone. On an H200 a matrix product of weights and
columns, as Triton 3.6 compiled it, was off by as much as 2.3, and no test without a GPU saw it.

Cost: once a process for each kind of layer and set of requests, a pass over 270 tokens on either side: milliseconds
beside the compilation of the kernels, which the layer's own launches then share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from manyheads.attention import Mask, attend
from manyheads.recording.exact_map.layer import Layer
from manyheads.recording.exact_map.requests import Linear, Match, MatchReceived, Request, RowsReceived, WordRows
from manyheads.texts import Tokens

LENGTHS = (199, 71)  # tokens: tiles of which all is seen, tiles on the diagonal, rows and keys that are none
CLOSE = 1e-3  # of an answer, and of 1: where both are right, kernels and tiles are some 1e-5 apart
RARE = 0.01  # of the rows: where another key is the strongest, which rounding may choose
TRIED: dict[Hashable, str | None] = {}  # by kind of layer and of requests: what was wrong

Run = Callable[[Tokens, Sequence[Request], Layer, str], Mapping[Request, Tensor]]


def fault_of_kernels(layer: Layer, requests: Sequence[Request], run: Run) -> str | None:
    """What kernels get wrong where this layer is; None where they are right. Tried once for its kind.

    `run` answers requests of some tokens' layer: by "tiles", or by "kernels".
    """
    group = layer.q.shape[1] // layer.k.shape[1]
    kind = layer.q.device, layer.q.dtype, layer.q.shape[-1], group, layer.rule.softcap, *map(named, requests)
    if kind not in TRIED:
        tokens, small = Tokens.unnamed(LENGTHS), small_layer(layer, group)
        alike = [like(request, place) for place, request in enumerate(requests) if not isinstance(request, WordRows)]
        right = run(tokens, alike, small, "tiles")
        there = {name: getattr(small, name).to(layer.q.device) for name in ("q", "k", "lse")}
        answers = run(tokens, alike, replace(small, **there), "kernels")
        faults = (fault(request, answers[request], right[request]) for request in alike)
        TRIED[kind] = next((text for text in faults if text is not None), None)
    return TRIED[kind]


def small_layer(layer: Layer, group: int) -> Layer:
    """Random q and k on the CPU, as wide and as precise: a causal text, and a bidirectional one with unseen padding."""
    random, longest = torch.Generator().manual_seed(sum(LENGTHS)), max(LENGTHS)
    shape = len(LENGTHS), longest, layer.q.shape[-1]
    q, k = (
        torch.randn(shape[0], heads, *shape[1:], generator=random, device="cpu").to(layer.q.dtype)
        for heads in (2 * group, 2)
    )
    row, length = torch.arange(longest, device="cpu"), torch.tensor(LENGTHS, device="cpu")[:, None]
    stop = torch.stack([row + 1, length[1].expand(longest)]) * (row < length)
    mask = Mask(torch.zeros_like(stop), stop, longest)
    rule = replace(layer.rule, scale=shape[-1] ** -0.5, sinks=None, bias=None)
    values = k.float()
    lse = attend(q.float(), values, values, mask=mask, scale=rule.scale, softcap=rule.softcap).lse
    return replace(layer, q=q, k=k, lse=lse, mask=mask, rule=rule, crosses=False)


def named(request: Request) -> tuple[object, ...]:
    """What a request's kernel depends on."""
    match = getattr(request, "match", request)
    return type(request), *(getattr(match, name, None) for name in ("earlier", "elsewhere", "apart"))


def like(request: Request, place: int) -> Request:
    """The same request of other numbers: a random column, random labels."""
    if isinstance(request, (MatchReceived, RowsReceived)):
        return replace(request, match=like(request.match, place))
    random = torch.Generator().manual_seed(place)
    rows, keys = torch.randint(-1, 4, (2, len(LENGTHS), max(LENGTHS)), generator=random, device="cpu")
    if isinstance(request, Match):
        return replace(request, labels=lambda tokens: (rows, keys))
    return replace(request, column=lambda tokens: keys / 3) if isinstance(request, Linear) else request


def fault(request: Request, given: Tensor, right: Tensor) -> str | None:
    """What is wrong with an answer, in words; None where it is right."""
    if right.dtype == torch.long:
        share = float((given != right).double().mean())
        return f"{type(request).__name__} was another in {share:.0%} of rows" if share > RARE else None
    if bool((given.isnan() != right.isnan()).any()):  # a block that is absent is NaN on either side
        return f"{type(request).__name__} was NaN where it is a number, or a number where it is NaN"
    off = ((given.double() - right.double()).abs() / (1 + right.double().abs())).nan_to_num(0)
    return f"{type(request).__name__} was {float(off.max()):.2g} off" if float(off.max()) > CLOSE else None
