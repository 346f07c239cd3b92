"""One attention call as the tap sees it, the same few facts for every architecture; and the guard that checks it.

Everything above the seam (records, statistics, edits) works on an `AttentionCall` and on nothing else. `Aligner` rolls
the texts of a call to the left and cuts their padding.

The guard (`check`) compares what is rebuilt with what the model's own function returned: on sampled rows, `weights @ v`
from q, k, lse, mask and rule must equal the function's output, or no recording is made. A forgotten softcap, a wrong
scale, a lost mask or a swapped key/value head all show in it. Cost: a few rows of each call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from manyheads.errors import GuardError, ModelError
from manyheads.models.weights.projections import weight_by_head
from manyheads.nn import Mask, Rule, log_sum_exp
from manyheads.recording import Layer
from manyheads.spec import CROSS, Site

GUARD_ROWS = 4  # rows a text; every head is checked on each
GUARD_TEXTS = 2  # of a batch; of all others the last row
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Largest allowed distance, in norms of the row. float32: sums of thousands of terms; half types: their rounding."""


class CapturedLse(NamedTuple):
    """The lse that the model's own kernel returned, as `[b h q]`, and which kernel that is, in words."""

    lse: Float[Tensor, "b h q"]
    kernel: str


@dataclass(eq=False)
class KnownLse:
    """A call's lse and its origin, computed on first use: some edits need none, and it costs a pass over q and k."""

    compute: Callable[[], tuple[Float[Tensor, "b h q"], str]]

    @cached_property
    def computed(self) -> tuple[Float[Tensor, "b h q"], str]:
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
        return self.known.computed[0]

    @property
    def because(self) -> str:
        return self.known.computed[1]

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
        weight = weight_by_head(self.output, num_heads, v.shape[3]).float()
        gram = (weight @ weight.transpose(1, 2)).view(groups, num_heads // groups, *weight.shape[1:2], weight.shape[1])
        squares = torch.einsum("bgkf,grfe,bgke->bgrk", v, gram, v)
        # Rounding may leave the square of a short vector below zero, whose root is NaN.
        return squares.clamp_min(0).sqrt().reshape(v.shape[0], num_heads, v.shape[2]) * gain[:, None]


@dataclass(eq=False)
class Aligner:
    """Rolls each text of a call to the left and cuts padding, for recordings and statistics.

    `first` and `lengths`, on the host: where each text begins among the positions, and how many tokens it has. Each
    mask is treated once, however many layers share it. Calls whose keys are other tokens keep their places; rows past a
    text's end see nothing. `spills`: whether some token of a text also reads padding, whose share its row then lacks.
    """

    first: Int[Tensor, "b"]
    lengths: Int[Tensor, "b"]
    # By identity, with the mask itself as part of the value: as long as it is held, its id cannot be given anew.
    masks: dict[int, tuple[Mask, Mask]] = field(default_factory=dict)
    spills: bool = False

    def layer(self, call: AttentionCall) -> Layer:
        """The call's q, k, lse, mask and rule, each text from the left edge on."""
        mask = call.mask
        if call.crosses:
            if bool((self.lengths < mask.num_queries).any()):  # padding after a text's end sees nothing
                if id(mask) not in self.masks:
                    runs = mask.expand(len(self.lengths))
                    alive = torch.arange(mask.num_queries, device="cpu")[None] < self.lengths[:, None]
                    start, stop = (torch.where(alive, x, 0) for x in (runs.start, runs.stop))
                    dense = runs.dense
                    dense = None if dense is None else dense & alive[:, None, :, None].to(dense.device)
                    self.masks[id(mask)] = (mask, Mask(start, stop, mask.num_keys, dense))
                mask = self.masks[id(mask)][1]
            return Layer(call.q, call.k, call.lse, mask, call.rule, crosses=True)
        q, k, lse = (self.roll(x) for x in (call.q, call.k, call.lse[..., None]))
        rule = call.rule
        if rule.bias is not None and (bool(self.first.any()) or q.shape[2] < call.q.shape[2]):
            bias = rule.bias.expand(len(self.first), *rule.bias.shape[1:])
            # Only where something moves: a bias of n x n cells is the largest tensor of the call, and a roll copies it.
            bias = self.roll(self.roll(bias).transpose(2, 3)).transpose(2, 3)  # rows, then keys
            rule = Rule(rule.scale, rule.softcap, rule.sinks, bias)
        if id(mask) not in self.masks:
            self.masks[id(mask)] = (mask, mask.trimmed(self.first, self.lengths))
            runs, end = mask.expand(len(self.lengths)), (self.first + self.lengths)[:, None]
            first, row = self.first[:, None], torch.arange(mask.num_queries, device="cpu")[None]
            in_text = (row >= first) & (row < end) & (runs.stop > runs.start)
            self.spills |= bool((in_text & ((runs.start < first) | (runs.stop > end))).any())
        return Layer(q, k, lse[..., 0], self.masks[id(mask)][1], rule)

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
    # Past a short text's end the index would leave the tensor: it reads padding instead, which the trimmed mask hides.
    source = (torch.arange(longest, device="cpu")[None] + first[:, None]).clamp_max(x.shape[2] - 1)
    source = source.to(x.device, non_blocking=True)
    index = source[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def lse_of(
    q: Tensor, k: Tensor, mask: Mask, rule: Rule, captured: CapturedLse | None
) -> tuple[Float[Tensor, "b h q"], str]:
    """The lse that the model's own kernel returned (`captured`), else one call of ours; -inf for rows that see nothing.

    Also returns where it came from, in words.
    """
    # A kernel that got other texts or heads than the call (torch broadcasts) has an lse of another size.
    if captured is not None and captured.lse.numel() == q.shape[0] * q.shape[1] * q.shape[2]:
        lse = captured.lse.reshape(q.shape[:3]).contiguous()
        because = f"the model's own fused kernel returned the lse ({captured.kernel})"
        if rule.sinks is not None:  # no fused kernel of torch knows them: they are on top of what it returned
            lse = torch.logaddexp(lse, rule.sinks.to(lse.dtype)[None, :, None].expand_as(lse))
    else:
        lse, backend = log_sum_exp(q.detach(), k.detach(), mask, rule)
        because = f"recomputed, since the model's function returns no lse ({backend})"
    empty = mask.counts() == 0
    if rule.sinks is None and bool(empty.any()):
        lse = lse.masked_fill(empty[:, None].to(lse.device, non_blocking=True), -torch.inf)
    return lse, because


@torch.no_grad()
def check(call: AttentionCall, model: torch.nn.Module) -> float:
    """The worst distance between outputs returned and rebuilt on sampled rows, as a share of the row's norm.

    Errors: GuardError where it is over `TOLERANCE`; ModelError where the model returned NaN or infinity.
    """
    num_texts, _, num_rows, _ = call.q.shape
    if not call.q.numel() or not call.k.numel():
        return 0.0
    samples = [(spread(num_texts, GUARD_TEXTS), spread(num_rows, GUARD_ROWS))]
    if num_texts > GUARD_TEXTS:  # one row of every text: padding may be misread in a single one
        samples.append((torch.arange(num_texts, device="cpu"), spread(num_rows, 1)))
    compared = [rebuild(call, texts, rows) for texts, rows in samples]
    # All that is read of the device by one copy: a second one would be a second wait for every layer.
    worst, finite = torch.stack([torch.stack([part.worst, part.finite]) for part in compared]).double().cpu().unbind(1)
    for (texts, rows), part, largest, is_finite in zip(samples, compared, worst.tolist(), finite.tolist(), strict=True):
        if not is_finite:
            place = f"layer {call.site.layer} ({call.site.module})"
            for name, parameter in model.named_parameters():
                # An offloaded weight is an empty tensor on "meta": there are no numbers in it to look at.
                if parameter.device.type != "meta" and not bool(torch.isfinite(parameter).all()):
                    raise ModelError(
                        f"the weights of {name} hold NaN or infinity, first seen in the output of {place}: the "
                        f"checkpoint is damaged; load another copy."
                    )
            raise ModelError(
                f"the output of {place} holds NaN or infinity, though every weight is finite: {call.q.dtype} "
                f"overflowed; load the model with dtype='float32'."
            )
        if not largest <= TOLERANCE[call.q.dtype]:
            text, head, row = (int(i) for i in (part.relative == part.worst).nonzero()[0])
            place = f"layer {call.site.layer} ({call.site.module}), head {head}, row {int(rows[row])}"
            norms = [float(x[text, head, row].norm()) for x in (part.returned, part.rebuilt)]
            raise GuardError(
                f"{place} of text {int(texts[text])}: the model's attention returned a vector of norm {norms[0]:.6g}, "
                f"what was rebuilt from its q, k and v has norm {norms[1]:.6g} and lies {largest:.2g} of the row's "
                f"norm away (allowed: {TOLERANCE[call.q.dtype]:g}). This attention does something that was not "
                f"recorded, so a recording would be wrong: none is made."
            )
    return max(worst.tolist())


class Rebuilt(NamedTuple):
    """Sampled rows as the model returned them and as they were rebuilt; how far apart, in norms of the row.

    `worst` is the largest of `relative`; `finite` is 1 where the model returned no NaN and no infinity, else 0.
    """

    returned: Float[Tensor, "t h r f"]
    rebuilt: Float[Tensor, "t h r f"]
    relative: Float[Tensor, "t h r"]
    worst: Float[Tensor, ""]
    finite: Float[Tensor, ""]


def rebuild(call: AttentionCall, texts: Int[Tensor, "t"], rows: Int[Tensor, "r"]) -> Rebuilt:
    """Sampled rows, rebuilt from q, k, v, lse, mask and rule, beside what the model's function returned."""
    # This formula stands here a second time on purpose. The library's own function from scores to weights is what the
    # guard has to check: if it called that function, a fault in it would be on both sides and would not show.
    # (Row sums would check nothing: the lse comes from the same scores, so a forgotten softcap leaves them at 1.)
    # In float32 also for half types: then only the model's own rounding counts against `TOLERANCE`, not the guard's.
    dtype = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    num_heads, groups, device = call.q.shape[1], call.k.shape[1], call.q.device
    mask = call.mask.expand(call.q.shape[0])
    key = torch.arange(call.k.shape[2], device="cpu")
    start, stop = mask.start[texts][:, rows], mask.stop[texts][:, rows]
    visible = ((key >= start[..., None]) & (key < stop[..., None]))[:, None].to(device, non_blocking=True)
    texts, rows = (index.to(device, non_blocking=True) for index in (texts, rows))
    q = call.q[texts][:, :, rows].to(dtype)
    group = torch.arange(num_heads, device=device) // (num_heads // groups)
    k, v = (x[texts].to(dtype) if groups == num_heads else x[texts][:, group].to(dtype) for x in (call.k, call.v))
    scores = q @ k.transpose(2, 3) * call.rule.scale
    if call.rule.softcap is not None:
        scores = call.rule.softcap * (scores / call.rule.softcap).tanh()
    if call.rule.bias is not None:
        scores = scores + call.rule.bias.expand(call.q.shape[0], *call.rule.bias.shape[1:])[texts][:, :, rows]
    if mask.dense is not None:
        visible = mask.dense.expand(call.q.shape[0], -1, -1, -1)[texts][:, :, rows]
    lse = call.lse[texts][:, :, rows].to(dtype)
    # A row that sees nothing has an lse of -inf, and -inf minus -inf is NaN: 0 in its place, and nothing is visible.
    weights = torch.where(visible, (scores - torch.where(lse == -torch.inf, 0, lse)[..., None]).exp(), 0)
    rebuilt = weights @ v
    # A row whose values cancel has next to no norm of its own: a thousandth of what it adds up keeps rounding apart.
    norm = rebuilt.norm(dim=-1) + 1e-3 * (weights @ v.norm(dim=-1, keepdim=True))[..., 0]
    alive, returned = visible.any(-1).expand(-1, num_heads, -1), call.out[texts][:, :, rows].to(dtype)
    distance = (rebuilt - returned).norm(dim=-1)
    # NaN counts as infinitely far: it compares as false, so it would slip through the tolerance.
    relative = torch.where(alive, distance / norm.clamp_min(1e-30), 0).nan_to_num(nan=torch.inf)
    finite = (torch.isfinite(returned).all(-1) | ~alive).all()
    return Rebuilt(returned, rebuilt, relative, relative.max(), finite.to(dtype))


def spread(size: int, count: int) -> Int[Tensor, "n"]:
    """Indices spread over an axis, its last one among them: the last row of a text sees most."""
    return torch.linspace(size - 1, 0, min(size, count), device="cpu").round().long().unique()
