"""What is kept of each layer as its call comes by, and the recording that is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from manyheads.models.calls import AttentionCall
from manyheads.models.calltexts import CallTexts
from manyheads.models.taps import EDITED, Tap, left_out, log
from manyheads.nn.attention import attend
from manyheads.recording.joining import together
from manyheads.recording.exact_map.one_pass import Layer
from manyheads.recording.recording import LayerRecord
from manyheads.recording.recording import Recording
from manyheads.recording.tokens import Tokens

ERROR_ROWS = 4  # rows of a layer on which the error against float64 is measured
LARGE_SCORE = 16.0  # above it, a unit in the last place of a float32 is over 1e-6
SPILLS = "this model lets tokens read padding, which is not kept: their rows lack what they gave to it"


@dataclass(eq=False)
class Keeper:
    """What is kept of each layer as its call comes by, and the recording made of it."""

    texts: CallTexts
    kept: frozenset[str]
    stacks: dict[str, list[LayerRecord]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    error: float = 0.0
    spills: bool = False

    def keep(self, call: AttentionCall) -> None:
        assert call.site.module not in self.seen, "a module called again is a site of its own"
        self.seen.add(call.site.module)
        tokens, aligner = self.texts.read_by(call)
        layer = aligner.layer(call)
        layer = replace(layer, lse=sharpened(layer))
        self.error = max(self.error, float64_error(layer))
        self.spills |= aligner.spills
        v = call.v if call.crosses else aligner.roll(call.v)
        record = LayerRecord(
            call.site,
            layer.q.clone(),
            layer.k.clone(),
            v.clone() if "v" in self.kept else None,
            layer.lse,
            layer.mask,
            layer.rule,
            tokens.lengths,
            tokens,
            call.because,
        )
        self.stacks.setdefault(call.site.stack, []).append(record)


def recording_of(
    keepers: Sequence[Keeper],
    places: Sequence[Sequence[int]],
    tokens: Mapping[str, Tokens] | None,
    model: nn.Module,
    states: Sequence[Tap],
    provenance: Mapping[str, object],
) -> Recording:
    """One recording of what was kept of each batch. `places` are the texts of each; `tokens` those of all, by stack."""
    stacks = keepers[0].stacks
    if tokens is not None and len(keepers) > 1:
        stacks = {
            stack: [
                together([keeper.stacks[stack][index] for keeper in keepers], places, tokens.get(stack, tokens[""]))
                for index in range(len(layers))
            ]
            for stack, layers in stacks.items()
        }
    backend: dict[str, int] = {}
    for state in states:
        backend = {name: backend.get(name, 0) + state.because.get(name, 0) for name in backend | state.because}
    about = {
        **provenance,
        "implementation": getattr(getattr(model, "config", None), "_attn_implementation", None) or "unknown",
        "backend": backend,
        "guard_error": max(state.guard_error for state in states),
        "float64_error": max(keeper.error for keeper in keepers),
    }
    if states[0].by_hand:
        about["left out"] = left_out(states[0].by_hand)
    if any(state.edited for state in states):
        about["edited"] = EDITED
    if any(keeper.spills for keeper in keepers):
        about["padding"] = SPILLS
        log.warning(SPILLS)
    main = keepers[0].texts.main
    if tokens is not None:
        return Recording(stacks, tokens[""], about)
    return Recording(stacks, main.tokens if main else next(iter(stacks.values()))[0].tokens, about)


def model_facts(lm: Any) -> dict[str, object]:
    """What every recording of a loaded model says of it."""
    return {"model": lm.name, "dtype": str(lm.dtype).removeprefix("torch.")}


def sharpened(layer: Layer) -> Tensor:
    """The lse, from float64 in heads whose scores are so large that float32 would round their weights by over 1e-6."""
    served = layer.q.shape[1] // layer.k.shape[1]
    largest = layer.lse.masked_fill(layer.lse.isinf(), 0).abs().amax((0, 2)).view(-1, served).amax(1)
    groups = (largest > LARGE_SCORE).nonzero()[:, 0]
    if layer.q.dtype != torch.float32 or not len(groups):
        return layer.lse
    heads = (groups[:, None] * served + torch.arange(served)).flatten()
    rule, mask, lse = layer.rule, layer.mask, layer.lse.clone()
    if mask.dense is not None and mask.dense.shape[1] > 1:
        mask = replace(mask, dense=mask.dense[:, heads])
    bias = None if rule.bias is None else rule.bias.expand(-1, layer.q.shape[1], -1, -1)[:, heads]
    sinks = None if rule.sinks is None else rule.sinks[heads]
    some = Layer(layer.q[:, heads], layer.k[:, groups], lse[:, heads], mask, replace(rule, sinks=sinks, bias=bias))
    lse[:, heads] = float64_lse(some).float()
    return lse


def float64_error(layer: Layer) -> float:
    """How far weights by the layer's lse lie from those that float64 gives for the same q and k, on sampled rows.

    What is left is the rounding of the lse itself, kept in float32, and of a kernel that made it in a half type.
    """
    rows = torch.linspace(layer.q.shape[2] - 1, 0, min(layer.q.shape[2], ERROR_ROWS)).round().long().unique()
    if not len(rows) or not layer.k.shape[2] or not len(layer.q):
        return 0.0
    some = layer.one_text(0, rows, layer.k.shape[2])
    alive = some.mask.counts() > 0
    # A weight is exp(score - lse): the largest weight of a row is off by as much of itself as the lse is off.
    off = torch.where(alive[:, None], (some.lse.double() - float64_lse(some)).abs(), 0)
    return float(off.expm1().max())


def float64_lse(layer: Layer) -> Float64[Tensor, "b h q"]:
    """What the layer's lse is in float64."""
    rule, q, k = layer.rule, layer.q.double(), layer.k.double()
    bias, sinks = (None if value is None else value.double() for value in (rule.bias, rule.sinks))
    return attend(q, k, k, mask=layer.mask, scale=rule.scale, softcap=rule.softcap, sinks=sinks, bias=bias).lse
