"""One attention call as the tap sees it, the same few facts for every architecture; and the guard that checks it.

Everything above the seam (records, statistics, edits) works on an `AttentionCall` and on nothing else. `Aligner` rolls
the texts of a call to the left and cuts their padding.

The guard (`check`) compares what is rebuilt with what the model's own function returned: on sampled rows, `weights @ v`
from q, k, lse, mask and rule must equal the function's output, or no recording is made. A forgotten softcap, a wrong
scale, a lost mask or a swapped key/value head all show in it. Cost: a few rows of each call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor, nn

from manyheads.attention import Mask, Rule, log_sum_exp
from manyheads.errors import GuardError, ModelError
from manyheads.models.weights.projections import weight_by_head
from manyheads.recording import Layer
from manyheads.spec import CROSS, Site

BY_DECLARATION = "read where mh.declare says"  # of a call that is read off a declared module

GUARD_ROWS = 4  # rows a text; every head is checked on each. Of each layer others, so that together they miss few
GUARD_WHOLE = 16  # rows of a text, at most: of such a short one all, as a window may begin at its last but one
GUARD_TOGETHER = 8  # texts of a batch, at most, that are all rebuilt at once: fewer calls than two choices of rows
GUARD_TEXTS = 2  # of a larger batch; of all others the last row
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Distance that is always allowed, in norms of the row. float32: sums of thousands of terms; half types: rounding."""
COARSEST = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.25}
"""Most that rounding excuses, as a share of what a row adds up: weights that it moved further are not recorded."""
HUNDREDS = 100.0  # from an lse of this size on, float32 alone takes up to 1e-5 of itself from each weight: see `check`
SURE = 5.0  # a sum of n independent errors is at most so many times the root of their squares but 7 times in a million
SINGLE = 2.0**-24  # unit roundoff of float32, in which models accumulate and most of them compute the softmax


class CapturedLse(NamedTuple):
    """The lse that the model's own kernel returned, as `[b h q]`, and which kernel that is, in words; "" where it is of
    the module's own softmax."""

    lse: Float[Tensor, "b h q"]
    kernel: str


@dataclass(eq=False)
class KnownLse:
    """A call's lse and its origin, computed on first use: some edits need none, and it costs a pass over q and k.

    `fused`: whether a fused kernel of the model computed the scores, in float32 for half types too. `finer`: the lse of
    q and k in float64, and what computed it.
    """

    compute: Callable[[], tuple[Float[Tensor, "b h q"], str]]
    fused: bool = False
    finer: Callable[[], tuple[Float64[Tensor, "b h q"], str]] | None = None

    @cached_property
    def computed(self) -> tuple[Float[Tensor, "b h q"], str]:
        return self.compute()

    def sharpen(self) -> bool:
        """Put the float64 lse in the place of a coarser one, if there is such a one: whether it did."""
        if self.finer is None or self.computed[0].dtype == torch.float64:
            return False
        lse, backend = self.finer()
        self.computed = (lse, f"recomputed in float64, since scores are in the hundreds ({backend})")
        return True


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
        """Whether keys and queries are different tokens: cross-attention, or a cache."""
        return self.site.stack == CROSS or self.q.shape[2] != self.k.shape[2]

    def rows_from(self, first: int) -> AttentionCall:
        """Its rows from `first` on, with all its keys, as a model with the rows before in a cache makes it."""
        if not first:
            return self
        mask, rule = self.mask, self.rule
        dense = None if mask.dense is None else mask.dense[:, :, first:]
        bias = None if rule.bias is None else rule.bias[:, :, first:]
        return replace(
            self,
            q=self.q[:, :, first:],
            out=self.out[:, :, first:],
            mask=Mask(mask.start[:, first:], mask.stop[:, first:], mask.num_keys, dense),
            rule=replace(rule, bias=bias),
            known=KnownLse(lambda: (self.lse[:, :, first:], self.because), self.known.fused),
        )

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
        if not captured.kernel:
            because = "the lse is of the module's own softmax"
        if rule.sinks is not None:  # no fused kernel of torch knows them: they are on top of what it returned
            lse = torch.logaddexp(lse, rule.sinks.to(lse.dtype)[None, :, None].expand_as(lse))
    else:
        lse, backend = log_sum_exp(q.detach(), k.detach(), mask, rule)
        because = f"recomputed, since the model's function returns no lse ({backend})"
    if rule.sinks is None and mask.has_empty_rows:
        empty = mask.counts() == 0
        lse = lse.masked_fill(empty[:, None].to(lse.device, non_blocking=True), -torch.inf)
    return lse, because


@torch.no_grad()
def check(call: AttentionCall, model: torch.nn.Module) -> float:
    """The worst distance between outputs returned and rebuilt on sampled rows, as a share of the row's norm.

    A row is right within `TOLERANCE` of its own norm, or within what rounding explains (`rounding_bound`), of which the
    share counts then, in units of `TOLERANCE`. Where scores are in the hundreds, the call's lse is float64 from then
    on, and the rows are compared again. Errors: GuardError for any other row; ModelError where the model returned NaN
    or infinity.
    """
    num_texts, _, num_rows, _ = call.q.shape
    if not call.q.numel() or not call.k.numel():
        return 0.0
    count = num_texts if num_texts <= GUARD_TOGETHER else GUARD_TEXTS
    samples = [(spread(num_texts, count), sampled_rows(num_rows, call.site.layer))]
    if num_texts > count:  # one row of every text: padding may be misread in a single one
        samples.append((torch.arange(num_texts, device="cpu"), spread(num_rows, 1)))
    bounded = False
    while True:
        compared = [rebuild(call, texts, rows, bounded=bounded) for texts, rows in samples]
        largest_lse = call.lse.detach().masked_fill(call.lse.isinf(), 0).abs().amax()
        # All that is read of the device by one copy: a second one would be a second wait for every layer.
        numbers = [x for part in compared for x in (part.worst, part.finite)]
        *numbers, size = torch.stack([*numbers, largest_lse.to(numbers[0].dtype)]).tolist()
        worst, finite = numbers[0::2], numbers[1::2]
        if size >= HUNDREDS and call.known.sharpen():
            continue
        # What rounding explains is asked only where a row needs it: it costs as much as rebuilding the rows.
        if bounded or max(worst) <= TOLERANCE[call.q.dtype]:
            break
        bounded = True
    for (texts, rows), part, largest, is_finite in zip(samples, compared, worst, finite, strict=True):
        if not is_finite:
            place = f"layer {call.site.layer} ({call.site.module})"
            for name, parameter in model.named_parameters():
                # An offloaded weight is an empty tensor on "meta": there are no numbers in it to look at.
                if parameter.device.type != "meta" and not bool(torch.isfinite(parameter).all()):
                    raise ModelError(
                        f"the weights of {name} hold NaN or infinity, first seen in the output of {place}: the "
                        f"checkpoint is damaged; load another copy."
                    )
            cause = f"{call.q.dtype} overflowed"
            if call.q.dtype == torch.float64:  # eager attention's softmax is of float32, where its least number is -inf
                cause = "in float64 transformers' eager attention makes NaN of padding whose window holds no token"
            raise ModelError(
                f"the output of {place} holds NaN or infinity, though every weight is finite: {cause}; load the model "
                f"with dtype='float32'."
            )
        if not largest <= TOLERANCE[call.q.dtype]:
            text, head, row = (int(i) for i in (part.relative == part.worst).nonzero()[0])
            place = f"layer {call.site.layer} ({call.site.module}), head {head}, row {int(rows[row])}"
            norms = [float(x[text, head, row].norm()) for x in (part.returned, part.rebuilt)]
            apart, rounding, allowed = (
                float(shares[text, head, row]) for shares in (part.distance, part.rounding, part.allowed)
            )
            message = (
                f"{place} of text {int(texts[text])}: the model's attention returned a vector of norm {norms[0]:.6g}, "
                f"what was rebuilt from its q, k and v has norm {norms[1]:.6g} and lies {apart:.2g} of the row's norm "
                f"away (allowed: {allowed:.3g}). "
            )
            if apart <= rounding and call.q.dtype != torch.float64:
                finer = "float64" if call.q.dtype == torch.float32 else "float32"
                raise GuardError(
                    f"{message}{str(call.q.dtype).removeprefix('torch.')} is too coarse for its scores, whose lse is "
                    f"up to {size:.0f}: rounding alone may have moved its weights by so much, and they are "
                    f"not known from q and k, so nothing is recorded. Load the model with dtype='{finer}'."
                )
            remedy = (
                " If what mh.declare names is wrong (q, k, v, scale=, mask=, causal=), mend that."
                if BY_DECLARATION in call.because
                else ""
            )
            raise GuardError(
                f"{message}This attention does something that was not recorded, so a recording would be wrong: none "
                f"is made.{remedy}"
            )
    return max(worst)


class Rebuilt(NamedTuple):
    """Sampled rows as the model returned them and as they were rebuilt; how far apart, and how far they may be.

    `distance`, `rounding` (what rounding alone may do) and `allowed` (that, up to `COARSEST`, or `TOLERANCE` where that
    is more) are in norms of the row. `relative` is the distance where it is within the tolerance, else its share of
    what is allowed in units of the tolerance, so that a row is right where it is at most that. `worst` is the largest;
    `finite` is 1 where the model returned no NaN and no infinity, else 0.
    """

    returned: Float[Tensor, "t h r f"]
    rebuilt: Float[Tensor, "t h r f"]
    distance: Float[Tensor, "t h r"]
    rounding: Float[Tensor, "t h r"]
    allowed: Float[Tensor, "t h r"]
    relative: Float[Tensor, "t h r"]
    worst: Float[Tensor, ""]
    finite: Float[Tensor, ""]


def rebuild(call: AttentionCall, texts: Int[Tensor, "t"], rows: Int[Tensor, "r"], *, bounded: bool = True) -> Rebuilt:
    """Sampled rows, rebuilt from q, k, v, lse, mask and rule, beside what the model's function returned.

    `bounded=False` leaves out what rounding explains, and whether rows are finite: the tolerance alone is allowed, and
    rows within it are finite.
    """
    # This formula stands here a second time on purpose. The library's own function from scores to weights is what the
    # guard has to check: if it called that function, a fault in it would be on both sides and would not show.
    # (Row sums would check nothing: the lse comes from the same scores, so a forgotten softcap leaves them at 1.)
    # In float32 also for half types: then only the model's own rounding counts against `TOLERANCE`, not the guard's.
    dtype = torch.float64 if torch.float64 in (call.q.dtype, call.lse.dtype) else torch.float32
    num_texts, num_heads, _, width = call.q.shape
    groups, num_keys, device = call.k.shape[1], call.k.shape[2], call.q.device
    mask, cap = call.mask.expand(num_texts), call.rule.softcap
    key = torch.arange(num_keys, device="cpu")
    # Keys and values are most of what is read: those of all texts are taken as they lie, without a copy.
    every = len(texts) == num_texts
    start, stop = ((runs if every else runs[texts])[:, rows, None] for runs in (mask.start, mask.stop))
    visible = ((key >= start) & (key < stop))[:, None].to(device, non_blocking=True)
    texts, rows = (index.to(device, non_blocking=True) for index in (texts, rows))

    def sampled(x: Tensor) -> Tensor:
        return x.index_select(2, rows) if every else x.index_select(2, rows).index_select(0, texts)

    def by_head(x: Tensor) -> Tensor:
        return x.reshape(len(texts), num_heads, len(rows), x.shape[-1])

    k, v = ((x if every else x.index_select(0, texts)).to(dtype) for x in (call.k, call.v))
    # The heads of a group lie side by side, so that they are as many rows more to the keys that they share.
    q = sampled(call.q).to(dtype).reshape(len(texts), groups, num_heads // groups * len(rows), width)
    scores = q @ k.transpose(2, 3) * call.rule.scale
    if bounded:
        # For `rounding_bound`: the sum of what was rounded on the way to a score, and what its dot product adds up.
        rounded = by_head(2 * scores.abs())
        terms = by_head(abs(call.rule.scale) * q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :])
    scores = by_head(scores)
    if cap is not None:
        scores = cap * (scores / cap).tanh()
        if bounded:
            rounded, terms = 5 * scores.abs(), terms * (1 - (scores / cap).square())
    if call.rule.bias is not None:
        bias = sampled(call.rule.bias.expand(num_texts, *call.rule.bias.shape[1:]))
        scores = scores + bias
        if bounded:
            rounded = rounded + 2 * scores.abs() + bias.abs()
    if mask.dense is not None:
        visible = sampled(mask.dense.expand(num_texts, -1, -1, -1))
    lse = sampled(call.lse).to(dtype)
    # A row that sees nothing has an lse of -inf, and -inf minus -inf is NaN: 0 in its place, and nothing is visible.
    lse = lse.masked_fill(lse == -torch.inf, 0)[..., None]
    weights = (scores - lse).exp().masked_fill_(~visible, 0)
    packed = weights.reshape(len(texts), groups, -1, num_keys)
    rebuilt, added_up = by_head(packed @ v), by_head(packed @ v.norm(dim=-1, keepdim=True))[..., 0]
    # A row whose values cancel has next to no norm of its own: a thousandth of what it adds up keeps rounding apart.
    norm = (rebuilt.norm(dim=-1) + 1e-3 * added_up).clamp_min(1e-30)
    alive, returned = visible.any(-1).expand(-1, num_heads, -1), sampled(call.out).to(dtype)
    relative = distance = (rebuilt - returned).norm(dim=-1) / norm
    rounding, allowed = torch.zeros_like(norm), torch.full_like(norm, tolerance := TOLERANCE[call.q.dtype])
    if bounded:
        rounded = rounded + (scores - lse).abs()
        v = v.repeat_interleave(num_heads // groups, 1)
        by_scale, underflow = rounding_bound(call, weights, visible, v, rebuilt, rounded, terms, lse[..., 0])
        rounding = (by_scale + underflow) / norm
        allowed = (torch.minimum(by_scale, COARSEST[call.q.dtype] * added_up) + underflow) / norm
        allowed = allowed.clamp_min(tolerance)
        relative = torch.where(distance <= tolerance, distance, tolerance * distance / allowed)
    # NaN counts as infinitely far: it compares as false, so it would slip through the tolerance.
    relative = torch.where(alive, relative, 0).nan_to_num(nan=torch.inf)
    # Rows that are near what was rebuilt are finite: it is asked where some are not.
    finite = (torch.isfinite(returned).all(-1) | ~alive).all() if bounded else torch.ones((), device=device)
    return Rebuilt(returned, rebuilt, distance, rounding, allowed, relative, relative.max(), finite.to(dtype))


def rounding_bound(
    call: AttentionCall,
    weights: Float[Tensor, "t h r k"],
    visible: Bool[Tensor, "t #h #r k"],
    v: Float[Tensor, "t h k f"],
    rebuilt: Float[Tensor, "t h r f"],
    rounded: Float[Tensor, "t h r k"],
    terms: Float[Tensor, "t h r k"],
    lse: Float[Tensor, "t h r"],
) -> tuple[Float[Tensor, "t h r"], Float[Tensor, "t h r"]]:
    """How far rounding alone may take a row's output: by relative errors, and by those below the normal numbers.

    - `call`: whose dtype, kernel and rule count.
    - `weights`: of the sampled rows, as they were rebuilt.
    - `visible`: which keys each row sees.
    - `v`: the values, of every query head.
    - `rebuilt`: the rows' outputs.
    - `rounded`: of each score, the sum of what was rounded on the way to it.
    - `terms`: of each score, what its dot product adds up.
    - `lse`: of the rows.

    u is the unit roundoff of the model's dtype, a that of float32, in which it accumulates, and which many models give
    to the softmax even in float64; p_j are a row's weights of n keys, s_j its scores, v_j the values, o = sum p_j v_j.

    - **A score** is off by `e_j = u rounded_j + 2 a (sqrt(d) terms_j + rounded_j)`. `rounded` adds up each number that
      is rounded on its way: product and scale (2 |s|), a softcap's division, tanh and product (3 more), a bias (2 |s|
      and itself), the softmax's difference |s - lse|. A sum of d products errs as sqrt(d) (Higham and Mary 2019), and
      none of its partial sums exceeds `terms`, |scale| |q| |k_j|; a softcap passes on 1 - tanh^2 of that. The second
      part is there twice, for the guard computes in float32 as well. After a fused kernel, whose scores are float32,
      there is no u.
    - **It moves the output** by `p_j e_j |v_j - o|`: what all scores of a row share cancels. A weight and a partial sum
      are rounded themselves, by `p_j |v_j| (2 u + 16 a)`. These n errors c_j are at most `sum c_j`, and as independent
      ones (Pinelis 1994, theorem 3.5) at most `SURE sqrt(sum c_j^2)`. The lesser counts: long rows are held tighter.
    - **What all keys share** does not cancel: the lse's own errors, `|o| (2 a |lse| + sum p_j 2 a (...)_j)`; the sum
      over keys, `2 a sqrt(n) sum p_j |v_j|`; rounded partial sums and output, u of each; a sink's p |log p| < 0.4.
    - **Below the normal numbers** steps are absolute, s: each weight errs by one, of the head's largest value, and so
      does each number of the output. In float16 that is all of a row that gives nearly everything to a sink.

    A mistake that shifts scores by x_j moves a row by `|sum p_j x_j (v_j - o)|`, and is caught where that is more than
    is allowed: docs/decisions/013 has what that comes to. Cost: as rebuilding the rows; `check` asks for it where a
    row is off by more than the tolerance.
    """
    kind, num_keys = torch.finfo(call.q.dtype), visible.sum(-1)
    u, lengths, norm = kind.eps / 2, v.norm(dim=-1)[..., None, :], rebuilt.norm(dim=-1)
    # |v_j - o| by one more product, where |v_j| + |o| would do with a looser bound.
    apart = (lengths.square() - 2 * rebuilt @ v.transpose(2, 3) + norm.square()[..., None]).clamp_min(0).sqrt()
    single = torch.where(visible, 2 * SINGLE * (call.q.shape[-1] ** 0.5 * terms + rounded), 0)
    scores = single if call.known.fused else single + torch.where(visible, u * rounded, 0)
    by_key = weights * (scores * apart + (2 * u + 16 * SINGLE) * lengths)
    keys = torch.minimum(by_key.sum(-1), SURE * by_key.square().sum(-1).sqrt())
    sink = 0.0 if call.rule.sinks is None else 0.4 * u
    shared = norm * (u + sink + 2 * SINGLE * lse.abs() + (weights * single).sum(-1))
    sums = (weights * lengths).sum(-1) * (u + 2 * SINGLE * num_keys.sqrt())
    step = u * kind.smallest_normal
    underflow = step * (num_keys * torch.where(visible, lengths, 0).amax(-1) + v.shape[-1] ** 0.5)
    return keys + shared + sums, underflow


@lru_cache(maxsize=4096)  # of texts of one length in every layer
def sampled_rows(num_rows: int, layer: int) -> Int[Tensor, "n"]:
    """The rows that the guard rebuilds: all of a short text, else its last one and others spread before it.

    The others move on from layer to layer by the golden section of the distance between them, which comes near every
    row soonest: a mistake is mostly in all layers, and one that shows in a few rows alone is met in one of these.
    """
    if num_rows <= GUARD_WHOLE:
        return torch.arange(num_rows, device="cpu")
    apart = (num_rows - 1) / (GUARD_ROWS - 1)
    before = apart * (torch.arange(GUARD_ROWS - 1, device="cpu") + 0.618034 * layer % 1)
    return torch.cat([before.long(), torch.tensor([num_rows - 1], device="cpu")])


@lru_cache(maxsize=4096)
def spread(size: int, count: int) -> Int[Tensor, "n"]:
    """Indices spread over an axis, its last one among them: the last row of a text sees most."""
    return torch.linspace(size - 1, 0, min(size, count), device="cpu").round().long().unique()
