"""Some rows of every head's map, whole and exact: what comparing heads needs, and no more.

Heads are compared row by row over all keys of a row, so rows may be sampled and cells may not. Rows are drawn by each
text's own words, so that order, batches and machines change nothing. Held in memory are one batch's keys and the
queries of the chosen rows, for all layers, since rows of different layers are compared; weights are made of them for a
block of rows at a time. Never an n x n map.

A row has one key more: what it gives to nothing that can be seen (a sink in the softmax, padding that a model lets its
tokens read). So every row sums to 1 and is never renormalised.

How far apart two heads are is the Jensen-Shannon divergence of their rows, in nats: 0 where two heads look at the same
keys alike, ln 2 = 0.693 where no key that one looks at is looked at by the other; always finite, weights of exactly 0
included, and without smoothing. Its square root is a metric, and the mean over rows is a squared Euclidean distance in
some space, so that heads can be laid out on a map (`compare.families`). It is computed by entropies,
JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2: of each pair only the logarithm of the sum is new.
Cost: heads^2 / 2 x rows x keys logarithms in float64, 3 to 4 ns each on one core: 2 s for 72 heads and 5,000 rows of 40
keys, six minutes for 1,024 heads.
Sources: Lin 1991; Endres and Schindelin 2003 (the metric); Fuglede and Topsoe 2004 (the space).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's methods have no types here.

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from manyheads.attention import Mask, Rule, grouped_scores
from manyheads.base import whole
from manyheads.edits import Editor
from manyheads.errors import StatisticError
from manyheads.inputs import Batch, Reading
from manyheads.models import AttentionCall
from manyheads.models.taps import OPEN
from manyheads.plan import Average, Copy
from manyheads.spec import Site
from manyheads.texts import Tokens

ROWS = 16  # of a text: rows of one text are alike, so more texts tell more than more rows of each
LEAST_ROWS = 2_048  # of all texts together, or few texts give more each: the draw then moves a pair by 0.003 nats
LEAST_KEYS = 2  # a row that sees one key is the same in every head
BLOCK_CELLS = 1 << 18  # weights of a block of rows over all heads, in float64: 2 MB, which stays in cache
MOST = math.log(2)  # the divergence of two rows that share no key
TINY = 1e-300  # keeps the logarithm of 0 finite; the 0 it is multiplied with does the rest
Sharing = Callable[[Site], Mapping[int, Mapping[int, float]]]
"""Which heads of a site use the mean of which heads' weights, where a plan has them do so."""


def rows_of_texts(reading: Reading, rows: int | None) -> tuple[int, str]:
    """How many rows of each text are read, and why. Errors: StatisticError for what is not a number of rows."""
    if rows is not None:
        whole("rows", rows, 1, StatisticError, "how many rows of each text to read, 1 or more, or None")
    count = max(ROWS, -(-LEAST_ROWS // len(reading.pieces))) if rows is None else rows
    why = "as asked" if rows is not None else f"{ROWS}, or more where that makes fewer than {LEAST_ROWS:,} in all"
    return count, f"at most {count:,} rows of each text ({why}), drawn by its words"


@dataclass(frozen=True, eq=False)
class KeptLayer:
    """One layer of one batch: queries of the chosen rows, text by text, and what makes weights of them.

    `spilled`: whether rows give mass to what lies outside their text, which only the kernel's own lse knows of.
    """

    site: Site
    rows: list[Int[Tensor, "_"]]
    q: list[Tensor]
    k: Tensor
    lse: list[Tensor]
    mask: Mask
    rule: Rule
    num_keys: list[int]
    spilled: bool
    sharing: Mapping[int, Mapping[int, float]]

    def usable(self, text: int) -> Bool[Tensor, "r"]:
        """Chosen rows that see two keys or more in every head."""
        return visible_keys(self.mask, text)[self.rows[text]] >= LEAST_KEYS

    def weights(self, text: int, chosen: Int[Tensor, "r"]) -> Float64[Tensor, "h r n"]:
        """Exact rows (`chosen` counts among the kept ones), with the mass on nothing visible as a last key."""
        rows, num_keys = self.rows[text][chosen], self.num_keys[text]
        q, k = self.q[text][:, chosen].double(), self.k[text, :, :num_keys].double()
        bias = self.rule.texts(slice(text, text + 1)).bias
        if bias is not None:
            bias = bias[:, :, rows.to(bias.device), :num_keys].double().cpu()
        # The sinks come in below, in float64.
        scores = self.rule.finish_cells(grouped_scores(q[None], k[None], self.rule.scale), bias)[0]
        mask = self.mask
        if mask.dense is not None:
            visible = mask.dense[min(text, mask.dense.shape[0] - 1)][:, rows.to(mask.dense.device), :num_keys].cpu()
        else:
            mask_text, key = min(text, mask.start.shape[0] - 1), torch.arange(num_keys, device="cpu")
            start, stop = mask.start[mask_text].cpu()[rows, None], mask.stop[mask_text].cpu()[rows, None]
            visible = ((key >= start) & (key < stop))[None]
        scores = scores.masked_fill(~visible, -torch.inf)
        # In float64: the kernel's float32 is off by what score and eps make together.
        total = scores.logsumexp(-1)
        if self.rule.sinks is not None:
            total = torch.logaddexp(total, self.rule.sinks.double().cpu()[:, None])
        if self.spilled:
            total = self.lse[text][:, chosen].double()
        weights = (scores - total[..., None]).exp()
        if self.sharing:
            # From a copy: a source may itself be replaced.
            before = weights.clone()
            for head, parts in self.sharing.items():
                weights[head] = mixed(before, parts)
        return torch.cat([weights, (1 - weights.sum(-1, keepdim=True)).clamp_min(0)], -1)


@dataclass(eq=False)
class RowKeeper:
    """Keeps the chosen rows of each layer of one batch as its call comes by; `stack` None: of every stack."""

    batch: Batch
    count: int
    stack: str | None = None
    sharing: Sharing = field(default=lambda site: {})
    layers: dict[str, KeptLayer] = field(default_factory=dict[str, KeptLayer])
    chosen: dict[tuple[int, bool], list[Tensor]] = field(default_factory=dict[tuple[int, bool], list[Tensor]])
    left_out: dict[str, None] = field(default_factory=dict[str, None])

    def observe(self, call: AttentionCall) -> None:
        if self.stack is not None and call.site.stack != self.stack:
            return
        tokens, aligner = self.batch.read_by(call)
        # Positions that are no text's, as of layers that attend within stretches.
        if not tokens.texts:
            self.left_out[call.site.module] = None
            return
        site, layer = call.site, aligner.layer(call)
        # `batch` holds on to its tokens, so that no others can have this identity. What a text's first token reads of
        # another one may be many keys, though of its own text it sees one.
        key = id(tokens), layer.crosses
        if key not in self.chosen:
            self.chosen[key] = [drawn(layer.mask, tokens, text, self.count) for text in range(tokens.num_texts)]
        rows = self.chosen[key]
        q, lse = ([x[text][:, r.to(x.device)].cpu() for text, r in enumerate(rows)] for x in (layer.q, layer.lse))
        num_keys = [layer.k.shape[2]] * len(rows) if layer.crosses else tokens.lengths.tolist()
        # A view would hold on to a fused q, k, v.
        k = layer.k.cpu() if layer.k.is_cuda else layer.k.clone()
        self.layers[site.module] = KeptLayer(
            site, rows, q, k, lse, layer.mask, layer.rule, num_keys, aligner.spills, self.sharing(site)
        )

    def blocks(self, text: int) -> Iterator[Float64[Tensor, "h r n"]]:
        """Rows of all kept layers' heads side by side, some rows at a time: those that all of the layers can use."""
        layers = list(self.layers.values())
        usable = torch.stack([layer.usable(text) for layer in layers]).all(0).nonzero()[:, 0]
        num_heads = sum(layer.site.num_heads for layer in layers)
        for chosen in usable.split(block_size(num_heads, layers[0].num_keys[text])):
            if len(chosen):
                yield torch.cat([layer.weights(text, chosen) for layer in layers])


def block_size(num_heads: int, num_keys: int) -> int:
    """How many rows are made at a time."""
    return max(1, BLOCK_CELLS // max(1, num_heads * num_keys))


def visible_keys(mask: Mask, text: int) -> Int[Tensor, "q"]:
    """How many keys each row of a text sees, in the head that sees fewest."""
    if mask.dense is not None:
        return mask.dense[min(text, mask.dense.shape[0] - 1)].sum(-1).amin(0).cpu()
    row = min(text, mask.start.shape[0] - 1)
    return (mask.stop[row] - mask.start[row]).cpu()


def drawn(mask: Mask, tokens: Tokens, text: int, count: int) -> Int[Tensor, "_"]:
    """At most `count` rows of a text that see two keys or more, drawn by its words, in their order."""
    rows = (visible_keys(mask, text)[: int(tokens.lengths[text])] >= LEAST_KEYS).nonzero()[:, 0]
    if len(rows) <= count:
        return rows
    # By the text's own words: other batches, another order or another machine draw the same rows.
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(tokens.seeds[text]))
    return rows[order[:count]].sort().values


def sharing_around(model: nn.Module) -> Sharing:
    """What `applied` blocks around this call have heads share: averaged and copied weights are not those of q and k.

    Of a site, each head that uses other weights than its own: from which heads, and which part of each. Recordings
    hold q and k alone; a comparison of what heads look at needs what the plan made of them. Later steps and later
    blocks win, as they do in the outputs. Errors: StatisticError for a list of plans, one for each sample.
    """
    thread = threading.get_ident()
    open_edits: list[Any] = [
        edit for tap in OPEN.taps if tap.thread == thread and tap.model is model for edit in tap.edits
    ]
    editors = [edit for edit in open_edits if isinstance(edit, Editor)]
    if any(editor.each_its_own for editor in editors):
        raise StatisticError("the plans around this are one for each sample of a batch: apply one plan for all texts.")

    def sharing(site: Site) -> dict[int, dict[int, float]]:
        shared: dict[int, dict[int, float]] = {}
        for act in (act for editor in editors for act in editor.acts.of(site)):
            if not isinstance(act.step, Average | Copy):
                continue
            share = act.step.share if isinstance(act.step, Copy) else 1.0
            for head in act.heads:
                parts = {source: (1 - share) * part for source, part in shared.get(head, {head: 1.0}).items()}
                for source in act.sources:
                    parts[source] = parts.get(source, 0.0) + share / len(act.sources)
                shared[head] = {source: part for source, part in parts.items() if part}
        return shared

    return sharing


def mixed(maps: Float[Tensor, "h ..."], parts: Mapping[int, float]) -> Float[Tensor, "..."]:
    """The map of a head that takes a part of each of some heads' weights: their weighted mean, `parts` summing to 1."""
    # Equal parts as a mean, so that one source's map is its map to the last bit.
    if len(set(parts.values())) == 1:
        return maps[list(parts)].mean(0)
    weights = torch.tensor(list(parts.values()), dtype=maps.dtype, device=maps.device)
    return torch.einsum("h...,h->...", maps[list(parts)], weights)


def pair_divergences(p: Float64[Tensor, "h r n"]) -> Float64[Tensor, "h h"]:
    """The divergences of all pairs of heads, summed over rows that each sum to 1. Symmetric, 0 on the diagonal."""
    num_heads, num_rows = p.shape[:2]
    alone = _sum_of_logs(p, torch.empty_like(p)).sum(-1)
    out = p.new_zeros(num_heads, num_heads)
    sums, logs = torch.empty_like(p), torch.empty_like(p)
    for head in range(num_heads - 1):
        # Each pair once, in two buffers for all of them: allocating anew for every head costs more than the logarithms.
        num_later = num_heads - head - 1
        mixture = torch.add(p[head + 1 :], p[head], out=sums[:num_later])
        mixed = _sum_of_logs(mixture, logs[:num_later]).sum(-1)
        out[head, head + 1 :] = (alone[head] + alone[head + 1 :] - mixed) / 2 + num_rows * MOST
    # Two rows that are the same may come out a rounding below 0, and a distance must not be negative.
    return (out + out.T).clamp_min_(0)


def row_divergences(p: Float64[Tensor, "h r n"], q: Float64[Tensor, "h r n"]) -> Float64[Tensor, "h r"]:
    """The divergence of each row from its like in `q`; exactly 0 where the two are the same numbers."""
    middle = ((p + q) / 2).clamp_min(TINY).log_()
    divergence = sum(side * (side.clamp_min(TINY).log_() - middle) for side in (p, q))
    assert isinstance(divergence, Tensor)
    return (divergence.sum(-1) / 2).clamp(0, MOST)


def _sum_of_logs(p: Float64[Tensor, "h r n"], work: Float64[Tensor, "h r n"]) -> Float64[Tensor, "h r"]:
    """sum p ln p, 0 ln 0 being 0."""
    torch.clamp_min(p, TINY, out=work).log_()
    return torch.einsum("hrn,hrn->hr", p, work)
