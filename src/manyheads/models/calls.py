"""What the tap sees of one attention call: the same few facts for every architecture.

Everything above the seam (records, statistics, edits, the guard) speaks of an `AttentionCall` and of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from manyheads.models.families import weight_by_head
from manyheads.nn.attention import log_sum_exp
from manyheads.nn.masks import Mask
from manyheads.nn.masks import Rule
from manyheads.recording.exact_map.one_pass import Layer
from manyheads.spec import CROSS, Site


@dataclass(eq=False)
class KnownLse:
    """A call's lse, and where it came from; computed when it is first asked for, since some edits never ask."""

    compute: Callable[[], tuple[Float[Tensor, "b h q"], str]]

    @cached_property
    def made(self) -> tuple[Float[Tensor, "b h q"], str]:
        return self.compute()


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of a layer's attention function. `out` is per head, *before* the output projection mixes the heads.

    `lse` came from the model's own fused kernel where there was one; `because` says so.
    `output` is the output projection, where it could be found; `gain` a factor on each head's output before it.
    """

    site: Site
    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k f"]
    mask: Mask
    rule: Rule
    out: Float[Tensor, "b h q f"]
    known: KnownLse
    output: nn.Module | None = None
    gain: Float[Tensor, "h"] | None = None

    @property
    def lse(self) -> Float[Tensor, "b h q"]:
        return self.known.made[0]

    @property
    def because(self) -> str:
        return self.known.made[1]

    @property
    def crosses(self) -> bool:
        """Whether keys are other tokens than queries: cross-attention, or a cache."""
        return self.site.stack == CROSS or self.q.shape[2] != self.k.shape[2]

    def value_norms(self) -> Float[Tensor, "b h k"]:
        """The length of each key's value vector after the head's slice of the output projection.

        How much a key can move the residual stream per unit of weight. Source: Kobayashi et al. 2020. Where the
        output projection is unknown, the plain length of the value vector. Cost: O(b * h * k * f), by the Gram
        matrix of the slice, so that no `[b h k m]` tensor is made.
        """
        groups, num_heads = self.v.shape[1], self.q.shape[1]
        v = self.v.float()
        gain = v.new_ones(num_heads) if self.gain is None else self.gain.detach().float().abs()
        if self.output is None:
            return v.norm(dim=-1).repeat_interleave(num_heads // groups, 1) * gain[:, None]
        weight = weight_by_head(self.output, num_heads).float()
        gram = (weight @ weight.transpose(1, 2)).view(groups, num_heads // groups, *weight.shape[1:2], weight.shape[1])
        squares = torch.einsum("bgkf,grfe,bgke->bgrk", v, gram, v)
        return squares.clamp_min(0).sqrt().reshape(v.shape[0], num_heads, v.shape[2]) * gain[:, None]


@dataclass(eq=False)
class Aligner:
    """Rolls each text of a call to the left and cuts padding: what records and the pass read.

    Each mask is treated once, however many layers share it. Calls whose keys are other tokens keep their places; rows
    past a text's end see nothing.
    """

    first: Int[Tensor, "b"]
    lengths: Int[Tensor, "b"]
    masks: dict[int, tuple[Mask, Mask]] = field(default_factory=dict)
    spills: bool = False  # whether some token of a text also reads padding, whose share its row then lacks

    def layer(self, call: AttentionCall) -> Layer:
        if call.crosses:
            return Layer(call.q, call.k, call.lse, self._ended(call.mask), call.rule, crosses=True)
        q, k, lse = (self.roll(x) for x in (call.q, call.k, call.lse[..., None]))
        rule = call.rule
        if rule.bias is not None and (bool(self.first.any()) or q.shape[2] < call.q.shape[2]):
            bias = rule.bias.expand(len(self.first), *rule.bias.shape[1:])
            bias = self.roll(self.roll(bias).transpose(2, 3)).transpose(2, 3)
            rule = Rule(rule.scale, rule.softcap, rule.sinks, bias)
        if id(call.mask) not in self.masks:
            self.masks[id(call.mask)] = (call.mask, call.mask.trimmed(self.first, self.lengths))
            self.spills |= self._leaves_text(call.mask)
        return Layer(q, k, lse[..., 0], self.masks[id(call.mask)][1], rule)

    def _leaves_text(self, mask: Mask) -> bool:
        """Whether a token of a text sees keys outside it."""
        whole, end = mask.expand(len(self.lengths)), (self.first + self.lengths)[:, None]
        first, row = self.first[:, None], torch.arange(mask.num_queries)[None]
        own = (row >= first) & (row < end) & (whole.stop > whole.start)
        return bool((own & ((whole.start < first) | (whole.stop > end))).any())

    def _ended(self, mask: Mask) -> Mask:
        """The mask of rows that are other tokens than keys, padding after a text's end hidden."""
        if bool((self.lengths >= mask.num_queries).all()):
            return mask
        if id(mask) not in self.masks:
            whole = mask.expand(len(self.lengths))
            alive = torch.arange(mask.num_queries)[None] < self.lengths[:, None]
            start, stop = (torch.where(alive, x, 0) for x in (whole.start, whole.stop))
            dense = None if whole.dense is None else whole.dense & alive[:, None, :, None]
            self.masks[id(mask)] = (mask, Mask(start, stop, mask.num_keys, dense))
        return self.masks[id(mask)][1]

    def roll(self, x: Tensor) -> Tensor:
        return rolled(x, self.first, self.lengths)


Edit = Callable[[AttentionCall], Float[Tensor, "b h q f"] | None]
"""New per-head outputs for a call, or None to leave it alone."""

Observer = Callable[[AttentionCall], None]


def rolled(x: Shaped[Tensor, "b h q f"], first: Int[Tensor, "b"], lengths: Int[Tensor, "b"]) -> Tensor:
    """Each text's rows moved to the left edge and cut to the longest text. No copy where nothing moves."""
    longest = int(lengths.max()) if len(lengths) else 0
    if not bool(first.any()):
        return x[:, :, :longest]
    source = (torch.arange(longest)[None] + first[:, None]).clamp_max(x.shape[2] - 1)
    index = source[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def lse_of(q: Tensor, k: Tensor, mask: Mask, rule: Rule, captured: Tensor | None) -> tuple[Float[Tensor, "b h q"], str]:
    """The lse that the model's own kernel returned, else one call of ours; rows that see nothing get -inf."""
    if captured is not None and captured.numel() == q.shape[0] * q.shape[1] * q.shape[2]:
        lse = captured.reshape(q.shape[:3]).contiguous()
        because = "the model's own fused kernel returned the lse"
        if rule.sinks is not None:  # no fused kernel knows them: they are on top of what it returned
            lse = torch.logaddexp(lse, rule.sinks.to(lse.dtype)[None, :, None].expand_as(lse))
    else:
        lse, backend = log_sum_exp(q.detach(), k.detach(), mask, rule)
        because = f"recomputed, since the model's function returns no lse ({backend})"
    empty = mask.counts() == 0
    if rule.sinks is None and bool(empty.any()):
        lse = lse.masked_fill(empty[:, None], -torch.inf)
    return lse, because
