"""The largest logit of each head, exactly, from q, k and each row's log-sum-exp: few rows are read, no map is made.

A row's largest score is at most its lse. So rows are read by falling lse, and reading ends where the next lse is at
most the largest score read so far: what was not read cannot hold a larger one. A head that looks sharply anywhere is
exact after a few rows in a thousand. Where all weights are even, the lse lies ln(keys) above every score and says
little; such a head is read whole, at the cost of the matrix product over the cells that its rows see.

**Upper bounds of a row.** The lse plus a margin; and by Cauchy-Schwarz `N_i = |scale| |q_i| max_j |k_j|`, capped as
scores are (rules without a bias). The margin covers what a kernel rounded away before it took its logarithm: it is

    margin_i = (r + 2 (d + 8) u) N_i + (2 l + 8 u) (1 + |lse_i|) + e,   u = 2^-24 (float32), 2^-53 (float64)

- `r`: kernels multiply 16-bit factors exactly and add up in float32, but some round the scaled query once more
  (FlexAttention's with `PRESCALE_QK`): 2^-8 for bfloat16, 2^-11 for float16. Off the CPU a float32 product may be
  TF32's, which rounds both factors to 11 bits: 2^-10. An error `e` of q moves a score by `|scale| |e| |k_j| <= r N_i`.
- `2 (d + 8) u`: two sums of d products in other orders, the kernel's and the one here.
- `l`: the lse's own rounding, 2^-8 where it is kept in bfloat16 (as FlexAttention of transformers returns it).
- `e`: 2^-14 for 16-bit inputs, of which torch's CPU kernel without AVX-512 approximates the exponential, to 4e-5.

Only an error on the row's largest cell matters, since a sum of exponentials never falls below its largest term.

Source: Dao 2023, FlashAttention-2, Algorithm 1 (the lse). Oracle: the maximum of all scores, in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.attention.attention import ACCELERATOR_CELLS, BLOCK_CELLS, check_attention
from manyheads.attention.masks import Mask
from manyheads.attention.scores import Rule, exact_arithmetic, finite
from manyheads.errors import ShapeError

FIRST_ROWS = 16  # of each head, read before anything is known; then as many again and again, by GROWTH
GROWTH = 4
WORTH_SEARCHING = 4  # of rows: that many times FIRST_ROWS, or all are read at once
SWEEP_SHARE = 0.25  # of a head's rows: where more may hold the maximum, all are read in order, a triangle at half price
SWEEP_CELLS = 400_000  # cells of one tile of a whole read on the CPU, all heads: lies in cache
SWEEP_KEYS, ACCELERATOR_KEYS = 512, 4096
SWEEP_ROWS = 64  # the least rows of such a tile: fewer heads are read together rather than fewer rows
HALF_EXP = 2.0**-14
INPUT_ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
TF32_ROUNDING = 2.0**-10


class MaxLogitBounds(NamedTuple):
    """Between which two numbers the largest score of each head lies. Both are -inf for a head that sees nothing."""

    lower: Float[Tensor, "b h"]
    upper: Float[Tensor, "b h"]


@dataclass(frozen=True, eq=False)
class LargestScores:
    """The largest score of each text and head, float32 (float64 for float64), -inf where a head sees nothing.

    `finished` as the softmax sees it; `uncapped` is the largest `scale * q.k` of the same visible cells, before softcap
    and bias (None where it was not wanted and would have cost more rows). `rows_read` of `num_rows`, over all texts
    and heads. Both are lower bounds where `rows` are sampled.
    """

    finished: Float[Tensor, "b h"]
    uncapped: Float[Tensor, "b h"] | None
    rows_read: int
    num_rows: int


@overload
def max_logits(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    mask: Mask | None = None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    bound: Literal[False] = False,
) -> Tensor: ...
@overload
def max_logits(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    mask: Mask | None = None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    bound: Literal[True],
) -> MaxLogitBounds: ...
def max_logits(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    lse: Float[Tensor, "b h q"],
    mask: Mask | None = None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    sinks: Float[Tensor, "h"] | None = None,
    bias: Float[Tensor, "#b #h q k"] | None = None,
    bound: bool = False,
) -> Float[Tensor, "b h"] | MaxLogitBounds:
    """The largest logit of each text and head, as the softmax sees it: scaled, capped, biased, over visible keys.

    - `q`: as it was multiplied, after rotation and norms.
    - `k`: likewise; groups of query heads may share a head of keys.
    - `lse`: what the attention call returned, natural log, sinks included: `attend(...).lse`, or that of any kernel.
      An lse of other scores gives a wrong maximum; where in doubt, give `attend`'s.
    - `mask`: which keys each row sees, as in `attend`; all by default.
    - `scale`: of the products, `1 / sqrt(d)` by default.
    - `softcap`: as in `attend`.
    - `sinks`: as in `attend`; they are in the lse, and are not score.
    - `bias`: as in `attend`.
    - `bound`: read no score, and return `(lower, upper)`: `max over rows of (lse - ln(visible keys))` and
      `max over rows of lse`, sinks taken off, the margin added; the maximum lies between them always.

    `[b h]`, float32 (float64 for float64), -inf where a head sees nothing, without a gradient. Exact up to the rounding
    of that dtype, although few rows are read: rows are taken by falling lse until the next one's is at most the best
    score so far, less a margin for 16-bit kernels (this module's docstring derives it).

    Cost: O(b * h * r * k * d) time for r rows read (few where a head is sharp, all where its weights are even, then
    only over the cells that rows see), O(block) memory, one question to the device a block; for bounds
    O((q + k) * d). Errors: ShapeError.
    """
    check_attention(q, k, k, mask, softcap, sinks, bias)
    rule = Rule(max(q.shape[-1], 1) ** -0.5 if scale is None else scale, softcap, sinks, bias)
    mask = Mask.full(q.shape[2], k.shape[2]) if mask is None else mask
    if bound:
        return _Search(q, k, lse, mask, rule).bounds()
    return largest_scores(q, k, lse, mask, rule, uncapped=False).finished


@torch.no_grad()
@exact_arithmetic()
def largest_scores(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    lse: Float[Tensor, "b h q"],
    mask: Mask,
    rule: Rule,
    *,
    rows: int | None = None,
    uncapped: bool = True,
    weights: Float[Tensor, "b h q"] | None = None,
) -> LargestScores:
    """The largest finished score of each text and head, and the largest before softcap and bias (`max_logits`).

    - `q`: as in `max_logits`.
    - `k`: as in `max_logits`.
    - `lse`: as in `max_logits`.
    - `mask`: which keys each row sees.
    - `rule`: scale, softcap, sinks and bias.
    - `rows`: read no more than so many rows of each text, evenly spread, its last row among them: lower bounds.
    - `uncapped`: whether the largest before softcap and bias is wanted; if not, it is None where it would cost
      anything.
    - `weights`: each row's largest weight, of the same lse, where a pass over the map has computed it in q's dtype
      (float32 at least): then few rows are read of even heads as well.

    Without softcap and bias the two are one. A softcap is monotone, but far above it all scores round to the cap, and
    the lse no longer tells which is largest: `uncapped` then reads on until no row's norms allow more. With a bias the
    lse says nothing of it, and all rows are read. Errors: ShapeError.
    """
    check_attention(q, k, k, mask, rule.softcap, rule.sinks, rule.bias)
    if rows is not None and rows < 1:
        raise ShapeError(f"{rows=} are not rows to read: give 1 or more, or None for the exact maximum.")
    return _Search(q, k, lse, mask, rule, uncapped, weights).largest(rows)


class _Search:
    """One call: its q, k and mask as heads of texts in one row of `pairs`, text by text.

    `best`, `raw` `[pair]`: the largest finished score so far, and the largest before softcap and bias. Without a bias
    only `raw` is kept, since the softcap of a maximum is the maximum of the capped.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        lse: Tensor,
        mask: Mask,
        rule: Rule,
        uncapped: bool = False,
        weights: Tensor | None = None,
    ) -> None:
        if lse.shape != q.shape[:3] or not lse.is_floating_point() or lse.device != q.device:
            raise ShapeError(
                f"lse is {lse.dtype} of shape {tuple(lse.shape)} on {lse.device}: max_logits wants each row's natural "
                f"log-sum-exp, floats of shape {tuple(q.shape[:3])} on {q.device}, as attend(...).lse."
            )
        self.dtype = torch.float64 if torch.float64 in (q.dtype, lse.dtype) else torch.float32
        self.q, self.k, self.lse, self.rule = q, k.to(self.dtype), lse, rule
        self.num_texts, self.num_heads, self.num_rows, self.dim = q.shape
        self.num_pairs = self.num_texts * self.num_heads
        self.served = self.num_heads // max(k.shape[1], 1)
        self.mask, self.device = mask.expand(self.num_texts), q.device
        self.uncapped, self.weights = uncapped, weights
        self.cells = BLOCK_CELLS if q.device.type == "cpu" else ACCELERATOR_CELLS
        # Of rows that see something: an empty run lies anywhere. Runs are the host's, so nobody waits for the answer.
        self.alive = self.mask.stop > self.mask.start
        any_alive = bool(self.alive.any())
        self.first = int(self.mask.start[self.alive].min()) if any_alive else 0
        self.last = int(self.mask.stop[self.alive].max()) if any_alive else 0
        self.best = q.new_full((self.num_pairs,), -torch.inf, dtype=self.dtype)
        self.raw = self.best.clone()
        self.rows_read = 0

    def largest(self, rows: int | None) -> LargestScores:
        counts: list[int] = self.alive.sum(1).numpy().tolist()
        if self.last > self.first and self.num_pairs:
            if rows is not None and rows < max(counts):
                # Evenly spread over the rows of a text that see something, the last of them among these.
                ranks = self.alive.cumsum(1)  # from 1
                sampled_ranks = (torch.arange(1, rows + 1, device="cpu") * ranks[:, -1:] + rows - 1) // rows
                sampled = torch.searchsorted(ranks, sampled_ranks).clamp_max(self.num_rows - 1)
                sampled = sampled.to(self.device, non_blocking=True).repeat_interleave(self.num_heads, 0)
                self._read(torch.arange(self.num_pairs, device=self.device), sampled, True)
            elif self.num_rows <= WORTH_SEARCHING * FIRST_ROWS or (self.uncapped and self.rule.bias is not None):
                self._sweep(list(range(self.num_pairs)))
            else:
                self._search()
        num_rows = sum(counts) * self.num_heads
        shape = (self.num_texts, self.num_heads)
        uncapped = self.raw.view(shape) if self.rule.plain or self.uncapped else None
        return LargestScores(self.finished.view(shape), uncapped, min(self.rows_read, num_rows), num_rows)

    # ------------------------------------------------------------------------------------------------------- bounds

    @cached_property
    def runs(self) -> tuple[Int[Tensor, "b q"], Int[Tensor, "b q"]]:
        """Where each row's keys begin and end, on the device."""
        start, stop = (run.to(self.device, non_blocking=True) for run in (self.mask.start, self.mask.stop))
        return start, stop

    @cached_property
    def norms(self) -> Float[Tensor, "b h q"]:
        """`|scale| |q_i| max_j |k_j|` over keys that any row of the text sees: no score of row i is larger."""
        start, stop = self.runs
        # What padding holds may be anything, NaN too: keys outside of every run of their text do not count.
        empty = stop <= start
        first = start.masked_fill(empty, self.k.shape[2]).amin(1)[:, None, None]
        last = stop.masked_fill(empty, 0).amax(1)[:, None, None]
        key = torch.arange(self.k.shape[2], device=self.device)
        lengths = self.k.square().sum(-1).sqrt().masked_fill((key < first) | (key >= last), 0.0)
        longest = lengths.amax(-1).repeat_interleave(self.served, 1)
        return abs(self.rule.scale) * self.q.to(self.dtype).square().sum(-1).sqrt() * longest[..., None]

    @cached_property
    def margins(self) -> Float[Tensor, "b h q"]:
        """By how much a row's lse may lie below its largest score, as that is computed here: the module's docstring."""
        unit = torch.finfo(self.dtype).eps / 2
        of_input = INPUT_ROUNDING.get(self.q.dtype, 0.0)
        if self.q.dtype == torch.float32 and self.device.type != "cpu":
            of_input = TF32_ROUNDING
        of_lse = INPUT_ROUNDING.get(self.lse.dtype, torch.finfo(self.lse.dtype).eps / 2)
        of_scores = (of_input + 2 * (self.dim + 8) * unit) * self.norms + HALF_EXP * (self.q.dtype in INPUT_ROUNDING)
        # Rows that see nothing have an lse of -inf, and their margin must be a number: -inf plus infinity is NaN.
        return of_scores + (2 * of_lse + 8 * unit) * (1 + finite(self.lse.to(self.dtype)).abs())

    def _row_bounds(self) -> Float[Tensor, "b h q"]:
        """A number that no score of the row exceeds; -inf for rows that see nothing. Of the scores that are searched:
        those before the softcap where these are wanted."""
        upper = self._without_sink(self.lse.to(self.dtype) + self.margins)
        if self.weights is not None:
            # The largest score is ln(w) + lse of the largest weight w, and what rounding may have taken from it. The
            # lse was taken off for w and is put on again, so that its own errors do not count.
            unit, tiny = torch.finfo(self.dtype).eps / 2, torch.finfo(self.dtype).tiny
            # Sinks may leave a row weights that round to 0: its scores are then at most those of the least weight.
            logs, lse = self.weights.to(self.dtype).clamp_min(tiny).log(), finite(self.lse.to(self.dtype))
            rounding = 4 * (self.dim + 8) * unit * self.norms + 32 * unit * (1 + logs.abs() + lse.abs())
            upper = torch.minimum(upper, logs + lse + rounding)
        if self.rule.bias is None:
            by_norms = self.norms * (1 + 4 * (self.dim + 8) * torch.finfo(self.dtype).eps)
            if self.uncapped and self.rule.softcap is not None:
                # What is at the cap may have been anything: then the norms alone are a bound.
                share = upper / self.rule.softcap
                upper = torch.where(share >= 1, torch.inf, self.rule.softcap * share.clamp_max(1).atanh())
            else:
                by_norms = self.rule.finish_cells(by_norms, None)
            upper = torch.minimum(upper, by_norms)
        start, stop = self.runs
        return upper.masked_fill((stop <= start)[:, None], -torch.inf)

    def _without_sink(self, lse: Float[Tensor, "b h q"]) -> Float[Tensor, "b h q"]:
        """The lse over keys alone, `ln(exp(lse) - exp(sink))`: -inf where the sink leaves nothing, never NaN."""
        if self.rule.sinks is None:
            return lse
        sinks = self.rule.sinks.to(self.dtype)[None, :, None]
        # The margin has been added before: a difference of two that nearly agree would magnify what it covers.
        less = (sinks - lse).clamp_max(0.0)
        return torch.where(less >= 0, -torch.inf, lse + (-torch.expm1(less)).log())

    @torch.no_grad()
    def bounds(self) -> MaxLogitBounds:
        if not self.num_rows or self.last <= self.first:
            nothing = self.best.view(self.num_texts, self.num_heads)
            return MaxLogitBounds(nothing, nothing.clone())
        counts = self.mask.counts().expand(self.num_texts, -1).to(self.device, non_blocking=True)[:, None]
        lower = self._without_sink(self.lse.to(self.dtype) - self.margins) - counts.clamp_min(1).log()
        # Where the sink takes nearly all, nothing is left of the difference, but no score is below minus its norms.
        if self.rule.bias is None:
            by_norms = self.norms * -(1 + 4 * (self.dim + 8) * torch.finfo(self.dtype).eps)
            lower = torch.maximum(lower, self.rule.finish_cells(by_norms, None))
        # A head that sees nothing where others do has an lse of -inf itself, or its sink alone.
        sees = (counts > 0) & (self.lse > -torch.inf)
        if self.mask.dense is not None and self.mask.dense.shape[1] > 1:
            sees = sees & self.mask.dense.any(-1)
        lower = lower.masked_fill(~sees, -torch.inf).amax(-1)
        return MaxLogitBounds(lower, self._row_bounds().masked_fill(~sees, -torch.inf).amax(-1))

    # ------------------------------------------------------------------------------------------------------- search

    def _search(self) -> None:
        """Rows by falling bounds, all heads together, each in its own order; heads that need most rows are swept."""
        bounds, order = self._row_bounds().flatten(0, 1).sort(-1, descending=True)  # NaN first: it is read
        active: list[int] = list(range(self.num_pairs))
        sweep: list[int] = []
        position, step = 0, FIRST_ROWS
        while active and position < self.num_rows:
            all_active = len(active) == self.num_pairs
            pairs = torch.tensor(active, device="cpu").to(self.device, non_blocking=True)
            ahead = bounds if all_active else bounds[pairs]
            rows = order if all_active else order[pairs]
            self._read(pairs, rows[:, position : position + step], all_active)
            position += step
            # The one question that a block puts to the device: how many rows of each head may still hold more. It saves
            # reading the others, which are nearly all of them. Written as "not at most", so that NaN is read on.
            best = self.raw if self.uncapped else self.finished  # with a bias: never both, that is swept
            best = best if all_active else best[pairs]
            left: list[int] = (~(ahead[:, position:] <= best[:, None])).sum(-1).cpu().numpy().tolist()
            most = SWEEP_SHARE * self.num_rows
            sweep += [pair for pair, count in zip(active, left, strict=True) if count > most]
            active = [pair for pair, count in zip(active, left, strict=True) if 0 < count <= most]
            # Bounds fall, so no head has more rows to read than it has left now.
            needed = max((count for count in left if count <= most), default=0)
            step = min(step * GROWTH, needed)
        self._sweep(sorted(sweep))

    @property
    def finished(self) -> Float[Tensor, "pair"]:
        """The largest finished score of each head so far."""
        if self.rule.bias is not None:
            return self.best
        # The softcap of -inf is a number, but nothing was seen.
        return self.rule.finish_cells(self.raw.clone(), None).masked_fill_(self.raw == -torch.inf, -torch.inf)

    def _read(self, pairs: Int[Tensor, "p"], rows: Int[Tensor, "p r"], all_heads: bool) -> None:
        """Some rows of some heads, over all keys that any row sees. `all_heads`: of all, whose keys are not copied."""
        keys = slice(self.first, self.last)
        k = self.k[:, :, keys].flatten(0, 1)
        key = torch.arange(self.last, device=self.device)[keys]
        start, stop = self.runs
        at_once = max(1, self.cells // max(1, rows.shape[1] * (self.last - self.first)))
        at_once = max(self.served, at_once - at_once % self.served) if all_heads else at_once
        for begin in range(0, len(pairs), at_once):
            part, index = pairs[begin : begin + at_once], rows[begin : begin + at_once]
            text, head = (part // self.num_heads)[:, None], (part % self.num_heads)[:, None]
            q = self.q[text, head, index].to(self.dtype) * self.rule.scale
            if all_heads:  # heads of a group lie side by side, and are one product with its keys
                groups = slice(begin // self.served, (begin + len(part)) // self.served)
                packed = q.reshape(-1, self.served * index.shape[1], self.dim)
                scores = (packed @ k[groups].transpose(1, 2)).view(*index.shape, -1)
            else:
                scores = q @ k[part // self.num_heads * self.k.shape[1] + part % self.num_heads // self.served].mT
            if self.mask.dense is None:
                low, high = start[text, index][..., None], stop[text, index][..., None]
                hidden = (key < low) | (key >= high)
            else:
                hidden = ~_plane(self.mask.dense, text, head, index)[..., keys]
            bias = None if self.rule.bias is None else _plane(self.rule.bias, text, head, index)[..., keys]
            self._keep(part, scores, hidden, bias)
        self.rows_read += rows.numel()

    def _sweep(self, pairs: list[int]) -> None:
        """All rows of some heads in order, by tiles over the keys that any row of a tile sees."""
        on_cpu = self.device.type == "cpu"
        most_cells = SWEEP_CELLS if on_cpu else self.cells
        width = min(SWEEP_KEYS if on_cpu else ACCELERATOR_KEYS, self.last - self.first)
        at_once = max(1, most_cells // (min(SWEEP_ROWS, self.num_rows) * width))
        for begin in range(0, len(pairs), at_once):
            block = pairs[begin : begin + at_once]
            texts = [pair // self.num_heads for pair in block]
            heads = [pair % self.num_heads for pair in block]
            groups = [text * self.k.shape[1] + head // self.served for text, head in zip(texts, heads, strict=True)]
            part, text, group = (
                torch.tensor(index, device="cpu").to(self.device, non_blocking=True) for index in (block, texts, groups)
            )
            head = part % self.num_heads
            q, k = self.q[text, head].to(self.dtype) * self.rule.scale, self.k.flatten(0, 1)[group]
            on_host = self.mask.texts(slice(texts[0], texts[-1] + 1))
            # Heads of one text see the same keys: their runs are compared with a tile's keys once, not for each head.
            low_runs, high_runs = (run[text if texts[0] != texts[-1] else text[:1]] for run in self.runs)
            height = min(self.num_rows, max(1, most_cells // (len(block) * width)))
            buffer = q.new_empty(len(block) * height * width)  # all tiles lie here: new memory would not be in cache
            for row in range(0, self.num_rows, height):
                rows = slice(row, min(row + height, self.num_rows))
                start, stop = on_host.start[:, rows], on_host.stop[:, rows]
                alive = stop > start
                if not bool(alive.any()):
                    continue
                first, last = int(start[alive].min()), int(stop[alive].max())
                # Between these keys every row sees every key, and nothing need be hidden. Tiles end there, so that of
                # a causal map only squares on its diagonal are looked at twice.
                low, high = (int(start.max()), int(stop.min())) if self.mask.dense is None else (0, 0)
                edges = [first, low, high, last] if first <= low < high <= last else [first, last]
                for begin_key, end_key in pairwise(edges):
                    for key in range(begin_key, end_key, width):
                        keys = slice(key, min(key + width, end_key))
                        shape = (len(block), rows.stop - rows.start, keys.stop - keys.start)
                        scores = buffer[: math.prod(shape)].view(shape)
                        torch.bmm(q[:, rows], k[:, keys].mT, out=scores)
                        hidden, index = None, torch.arange(keys.start, keys.stop, device=self.device)
                        if self.mask.dense is not None:
                            hidden = ~_plane(self.mask.dense, text, head, rows)[..., keys]
                        elif not low <= keys.start < keys.stop <= high:
                            hidden = (index < low_runs[:, rows, None]) | (index >= high_runs[:, rows, None])
                        bias = None if self.rule.bias is None else _plane(self.rule.bias, text, head, rows)[..., keys]
                        self._keep(part, scores, hidden, bias)
        self.rows_read += int(self.alive.sum(1)[[pair // self.num_heads for pair in pairs]].sum())

    def _keep(self, pairs: Int[Tensor, "p"], scores: Tensor, hidden: Tensor | None, bias: Tensor | None) -> None:
        """The largest of some heads' scaled scores, which are overwritten."""
        if bias is None:
            scores = scores if hidden is None else scores.masked_fill_(hidden, -torch.inf)
            self.raw[pairs] = torch.maximum(self.raw[pairs], scores.amax((-1, -2)))
            return
        if self.uncapped:
            # A bias that hides a cell (-inf, or the lowest number of a dtype) hides its score here as well.
            hides = bias <= torch.finfo(bias.dtype).min / 2
            visible = scores.masked_fill(hides if hidden is None else hides | hidden, -torch.inf)
            self.raw[pairs] = torch.maximum(self.raw[pairs], visible.amax((-1, -2)))
        finished = self.rule.finish_cells(scores, bias)
        # Hidden only now: the softcap of -inf is a number.
        finished = finished if hidden is None else finished.masked_fill_(hidden, -torch.inf)
        self.best[pairs] = torch.maximum(self.best[pairs], finished.amax((-1, -2)))


def _plane(cells: Tensor, text: Tensor, head: Tensor, rows: Tensor | slice) -> Tensor:
    """Rows of a `[#b #h q k]` tensor for some heads of some texts, `[p r k]`; an axis of 1 serves all."""
    text = text if cells.shape[0] > 1 else torch.zeros_like(text)
    head = head if cells.shape[1] > 1 else torch.zeros_like(head)
    return cells[text, head, rows]
