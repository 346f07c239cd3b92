"""What a model itself says of its attention, taken without any code of manyheads.

Under `eager`, transformers' attention functions return their weights beside their outputs: they are kept as they
pass, by the path of the calling module. Where a module calls torch's fused function or torch's own layer, the weights
are computed from its arguments in float64 by the formula in torch's documentation, or asked of the layer. What a
softmax made elsewhere is kept too: it tells who makes weights by hand.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

SDPA, MHA = F.scaled_dot_product_attention, F.multi_head_attention_forward
MHA_ARGUMENTS = inspect.signature(MHA)
SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax}


@dataclass
class Maps:
    """Maps by module path, in the order of its calls; `softened` is what any softmax made there.

    `without_sinks`: maps as a model returned them that takes its sinks off later, from the output. `scored`: what each
    softmax was given, scaled, capped, biased and masked, in the dtype of the model."""

    called: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    scored: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    softened: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    without_sinks: list[Tensor] = field(default_factory=list)
    returned: list[Tensor] = field(default_factory=list)
    output: Any = None

    @property
    def by_path(self) -> dict[str, list[Tensor]]:
        """All maps by the module that made them: those of attention functions, or else what it softened itself."""
        return {**self.softened, **self.called}


def own_maps(model: nn.Module, inputs: dict[str, Any]) -> Maps:
    """Run the model once and keep every map it makes; `returned` are the `attentions` that it hands out itself."""
    maps = Maps()
    with _watched(model, maps):
        try:
            maps.output = run(model, {**inputs, "output_attentions": True})
        except (TypeError, ValueError) as error:
            if "output_attentions" not in str(error):
                raise
            maps.called.clear(), maps.softened.clear(), maps.scored.clear()
            maps.output = run(model, inputs)
    maps.returned = list(_attentions(maps.output))
    return maps


def run(model: nn.Module, inputs: dict[str, Any]) -> Any:
    """One forward pass, with the same chance each time: some models hide random patches."""
    with torch.no_grad(), seeded():
        return model(**inputs)


@contextmanager
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def alike(one: Any, other: Any) -> bool:
    """Whether two outputs of a model agree, in every tensor of numbers that both have under a name."""
    one, other = dict(_tensors(one)), dict(_tensors(other))
    pairs = [
        (one[name].double(), other[name].double()) for name in one.keys() & other.keys() if "attention" not in name
    ]
    return all(a.shape == b.shape and _close(a, b) for a, b in pairs)


def _close(a: Tensor, b: Tensor) -> bool:
    """Half of all numbers within a thousandth: rows of padding may be anything."""
    if not a.numel():
        return True
    far = (a - b).abs() > 1e-3 * (1 + a.abs())
    return bool(far.double().mean() < 0.2)


def _tensors(output: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield name, output
    elif hasattr(output, "items"):
        for key, value in output.items():
            yield from _tensors(value, f"{name}.{key}")
    elif isinstance(output, tuple | list):
        for index, value in enumerate(output):
            yield from _tensors(value, f"{name}.{index}")


def _attentions(output: Any) -> Iterator[Tensor]:
    """Tensors of four axes under a name that says attentions, also in the outputs of parts."""
    if not hasattr(output, "items"):
        return
    for name, value in output.items():
        if hasattr(value, "items"):
            yield from _attentions(value)
        elif "attention" in name and isinstance(value, tuple | list):
            for one in value:
                for tensor in one if isinstance(one, tuple | list) else (one,):
                    if isinstance(tensor, Tensor) and tensor.ndim == 4:
                        yield tensor


@contextmanager
def _watched(model: nn.Module, maps: Maps) -> Iterator[None]:
    from transformers.modeling_utils import AttentionInterface

    paths = {id(module): path for path, module in model.named_modules()}
    stack: list[str] = []
    handles = []
    for module in model.modules():
        path = paths[id(module)]
        handles.append(module.register_forward_pre_hook(lambda *_, path=path: stack.append(path)))
        handles.append(module.register_forward_hook(lambda *_: _left(stack), always_call=True))
    before = AttentionInterface.get_interface

    def look_up(table: Any, name: str, default: Any) -> Any:
        function = before(table, name, default)

        def kept(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = function(module, *args, **kwargs)
            if isinstance(result, tuple) and len(result) > 1 and isinstance(result[1], Tensor):
                weights = result[1].detach().float()
                if kwargs.get("s_aux") is not None and bool((weights.sum(-1) > 0.9999).all()):
                    maps.without_sinks.append(weights)
                    weights = weights * _left_by_sinks(module, *args, **kwargs)
                maps.called[paths.get(id(module), "?")].append(weights)
            return result

        return kept

    AttentionInterface.get_interface = look_up  # type: ignore[method-assign]
    try:
        with _Functions(maps, stack):
            yield
    finally:
        AttentionInterface.get_interface = before  # type: ignore[method-assign]
        for handle in handles:
            handle.remove()


def _left(stack: list[str]) -> None:
    """A hook that returns anything but None would replace the module's output."""
    stack.pop()


def _left_by_sinks(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
) -> Tensor:
    """What a row's weights add up to where a sink takes the rest, of models that scale the output, not the weights."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1).double()
    scores = query.double() @ key.transpose(2, 3) * kwargs["scaling"]
    if attention_mask is not None:
        scores = scores + attention_mask
    return (scores.logsumexp(-1, keepdim=True) - kwargs["s_aux"].double().view(1, -1, 1, 1)).sigmoid().float()


class _Functions(TorchFunctionMode):
    def __init__(self, maps: Maps, stack: list[str]) -> None:
        super().__init__()
        self.maps, self.stack = maps, stack

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is MHA and self.stack:
            return self._torchs_layer(args, kwargs)
        result = func(*args, **kwargs)
        if self.stack and func is SDPA:
            scores, weights = documented(*args, **kwargs)
            self.maps.scored[self.stack[-1]].append(scores)
            self.maps.called[self.stack[-1]].append(weights)
        elif self.stack and func in SOFTMAX and result.ndim >= 3:
            path = self.stack[-1].removesuffix(".softmax")  # a softmax that is a module is its parent's
            self.maps.scored[path].append((args[0] if args else kwargs["input"]).detach())
            self.maps.softened[path].append(result.detach().float())
        return result

    def _torchs_layer(self, args: Any, kwargs: Any) -> Any:
        given = MHA_ARGUMENTS.bind(*args, **kwargs)
        given.apply_defaults()
        asked = given.arguments
        wanted, averaged = asked["need_weights"], asked["average_attn_weights"]
        asked["need_weights"], asked["average_attn_weights"] = True, False
        scored, softmax = self.maps.scored[self.stack[-1]], F.softmax
        F.softmax = lambda x, *args, **kwargs: scored.append(x.detach()) or softmax(x, *args, **kwargs)
        try:
            out, weights = MHA(*given.args, **given.kwargs)
        finally:
            F.softmax = softmax
        four = weights if weights.ndim == 4 else weights[None]
        self.maps.called[self.stack[-1]].append(four.detach().float())
        return out, (weights.mean(-3) if averaged else weights) if wanted else None


def documented(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The weights, by the code in torch's documentation of its fused function, in float64."""
    q, k = query.detach().double(), key.detach().double()
    bias = q.new_zeros(q.shape[-2], k.shape[-2])
    if is_causal:
        bias.masked_fill_(torch.ones_like(bias, dtype=torch.bool).tril().logical_not(), -torch.inf)
    if attn_mask is not None:
        bias = bias.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else bias + attn_mask.double()
    if enable_gqa:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    weights = scores.softmax(-1).nan_to_num(0).float()
    return _four(scores), _four(weights)


def _four(cells: Tensor) -> Tensor:
    """[b h q k]"""
    while cells.ndim < 4:
        cells = cells[None] if cells.ndim == 2 else cells[:, None]
    return cells if cells.ndim == 4 else cells.flatten(0, cells.ndim - 4)
