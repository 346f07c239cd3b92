"""The main idea of the project: every number about an attention map, exactly, in one pass, without the map.

A recording holds q, k and each row's log-sum-exp. Any weight is then `exp(score - lse)`, one dot product away, so that
a block of the map (a tile) can be made anywhere, read by every statistic that needs it while it lies in cache, and
dropped. What a map of n x n weights says about a head is thus computed in O(tile) memory, at the cost of the matrix
product q.k alone:

    for each group of texts, for each block of rows, for each block of keys that some of these rows sees:
        tile = exp(scale * q.k - lse)            # exact weights, never more of them than TILE_CELLS
        for each request: request.add(tile, answer)

What can be requested is in `requests`, a class a reduction. `prepare(tokens, requests)` plans a pass for one batch of
tokens; `Pass.run(layer)` makes it for one layer, and remembers for the next layers what depends on the tokens alone.
That is also the contract of any other backend: the same requests in, the same tensors out. `launches` has one, kernels
for NVIDIA GPUs; `Reduced.because` says what made a pass.

q, k, lse, a dense mask and a bias stay where the model is, and so do the tiles. The answers come back on the host,
moved once a layer, and the mask's runs and all that is read off the tokens have never left it: nothing in the loop over
tiles waits for a device.

Where only some cells, some keys of every row, or a window of the map are needed, `cell_weights`, `key_weights` and
`window_weights` make these alone. Hidden cells are 0.

Cost: O(q * k * d) time a head. Oracle: `reference.reductions` on the map of `reference.attend`.
Source of the lse: Dao 2023, FlashAttention-2, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.attention import Mask, exact_arithmetic, exact_weights, finite, grouped_scores
from manyheads.errors import ModelError, ShapeError
from manyheads.recording.exact_map.launches import Reader, chosen_pass
from manyheads.recording.exact_map.layer import Layer
from manyheads.recording.exact_map.requests import (
    FAR,
    HIDDEN,
    KEPT_CELLS,
    Batch,
    Entropy,
    Group,
    KeySum,
    Match,
    Received,
    Request,
    Sizes,
    Tile,
)
from manyheads.recording.exact_map.trial import fault_of_kernels
from manyheads.texts import Tokens

TILE_CELLS = 200_000  # cells of a tile over all heads: two float32 buffers of them lie in a second-level cache of 2 MB
TILE_KEYS = 256
ACCELERATOR_CELLS, ACCELERATOR_KEYS = 1 << 24, 1024  # the same on an accelerator: few calls, buffers of 67 MB each
LOG2_E = math.log2(math.e)
SMALL = 1e20  # scores of a layer up to which FAR hides a cell: beside -1e30 they are nothing


@dataclass(frozen=True, eq=False)
class Reduced:
    """The answers, on the host: `reduced[request]`, and the facts about rows that statistics need to finish them.

    `because`: what made the pass, kernels or tiles, and why.
    """

    values: dict[Request, Tensor]
    plan: Pass
    mask: Mask
    because: str

    @property
    def tokens(self) -> Tokens:
        return self.plan.tokens

    @property
    def keys(self) -> Tokens:
        """The tokens that are looked at: `tokens` themselves, but in cross-attention."""
        return self.plan.keys or self.plan.tokens

    def __getitem__(self, request: Request) -> Tensor:
        return self.values[request]

    @property
    def rows(self) -> Bool[Tensor, "b q"]:
        """Rows that see at least one key; padding is none."""
        return (self.mask.counts() > 0).expand(self.tokens.num_texts, -1)

    def matches(self, request: Match) -> Float[Tensor, "b q"]:
        """How many visible keys each row's label matches; counted once for all layers that share a mask."""
        return self.plan.matches(request, self.mask)


def prepare(tokens: Tokens, requests: Iterable[Request], keys: Tokens | None = None) -> Pass:
    """Plan a pass over a batch of tokens: each request once, however often it was made.

    `keys`: the tokens that cross-attention looks at.
    """
    return Pass(tokens, keys, requests=tuple(dict.fromkeys(requests)))


@dataclass(eq=False)
class Pass(Batch):
    """A plan for one batch of tokens, run on any number of layers: what depends on the tokens is computed once."""

    requests: tuple[Request, ...] = ()

    def run(self, layer: Layer) -> Reduced:
        """Every request's answer for this layer, on the host, float32 (float64 where q or the lse is)."""
        return self._run(layer, chosen_pass(), trial=layer.q.is_cuda)

    @exact_arithmetic()
    def _run(self, layer: Layer, choice: str, trial: bool) -> Reduced:
        """By tiles or kernels, as chosen; `trial`: kernels are tried on a small layer first, where they were not."""
        # A float64 lse is that of scores in the hundreds: float32 would round every one of them by as much as 1e-5.
        dtype = torch.float64 if layer.lse.dtype == torch.float64 else layer.dtype
        expanded = self.expanded(layer.mask)
        mask = self.on_host(expanded)
        num_texts, num_heads, num_rows, _ = layer.q.shape
        sizes = Sizes(num_texts, num_heads, num_rows, layer.k.shape[2], layer.q.device)
        reader = Reader(self, self.requests, layer.q, layer.k, layer.lse, mask, layer.rule, layer.reads_itself)
        reason = f"MANYHEADS_PASS={choice}" if choice == "tiles" else reader.why_tiles()
        if reason is not None and choice == "kernels":
            raise ShapeError(f"MANYHEADS_PASS=kernels, but kernels cannot read this layer: {reason}. Set it to auto.")
        if reason is None and trial and (fault := fault_of_kernels(layer, self.requests, answers_of)) is not None:
            raise ModelError(
                f"The kernels of the pass give wrong numbers on {layer.q.device}: on trial {fault}. Set "
                "MANYHEADS_PASS=tiles to do without them."
            )
        answers, because = ({}, f"tiles: {reason}") if reason is not None else reader.answers()
        left = [request for request in self.requests if request not in answers]
        sums = [request for request in left if isinstance(request, KeySum)]
        left = [request for request in left if request not in sums]
        if sums and Received() not in (*left, *answers):
            left.append(Received())
        values = {request: request.empty(sizes, self, dtype) for request in left}
        if values:
            # Keys are read once a tile: their rows must lie side by side.
            k, lse = layer.k.to(dtype).contiguous(), layer.lse.to(dtype)
            lse = finite(lse) if layer.mask.has_empty_rows else lse
            layer = replace(layer, k=k, lse=lse, mask=expanded)
            # What hidden cells hold may be anything, NaN too, of padding: only a score that is small beside FAR is
            # hidden by adding it. To ask is a wait for a device, where both ways of hiding cost the same.
            on_cpu = layer.q.device.type == "cpu"
            adds = on_cpu and bool(abs(layer.rule.scale) * layer.q.norm() * k.norm() < SMALL)
            for texts in self._groups(layer):
                GroupPass(self, layer, mask, values, texts, dtype, adds).run()
        values = moved_to_host(values | answers)
        values |= {request: request.of_received(values[Received()], self) for request in sums}
        for request, answer in values.items():
            request.finish(answer, self, mask)
        return Reduced(values, self, mask, because)

    def _groups(self, layer: Layer) -> Iterator[slice]:
        """Neighbouring texts that together fill no more than one tile; a longer text is a group of its own."""
        num_texts, num_heads, _, _ = layer.q.shape
        lengths = self.tokens.lengths.tolist()
        apart = any(request.one_text_a_group for request in self.requests)
        most_cells, tile_keys = tile_size(layer.q.device)
        begin = 0
        while begin < num_texts:
            end, longest = begin + 1, lengths[begin]
            while end < num_texts and not apart:
                # A group is padded to its longest text, so a long one would make its neighbours cost as much.
                longest = max(longest, lengths[end])
                if longest > tile_keys or (end + 1 - begin) * num_heads * longest**2 > most_cells:
                    break
                end += 1
            yield slice(begin, end)
            begin = end


def answers_of(tokens: Tokens, requests: Sequence[Request], layer: Layer, choice: str) -> dict[Request, Tensor]:
    """The answers of one layer by tiles or kernels, which are not tried first."""
    return prepare(tokens, requests)._run(layer, choice, trial=False).values


class GroupPass:
    """The tiles of one group of texts, row block by row block."""

    def __init__(
        self,
        plan: Pass,
        layer: Layer,
        mask: Mask,
        values: dict[Request, Tensor],
        texts: slice,
        dtype: torch.dtype,
        adds: bool,
    ) -> None:
        num_rows, num_keys = layer.q.shape[2], layer.k.shape[2]
        if layer.reads_itself:  # else lengths are the queries' alone, and every key is one
            lengths = plan.tokens.lengths[texts]
            longest = int(lengths.max()) if len(lengths) else 0
            num_rows, num_keys = min(longest, num_rows), min(longest, num_keys)
        self.group = Group(plan, mask, texts, num_rows, num_keys, dtype)
        self.q, self.k = layer.q[texts, :, :num_rows].to(dtype), layer.k[texts, :, :num_keys]
        self.mask, self.rule = layer.mask.texts(texts), layer.rule.texts(texts)
        # A plain rule's logarithms are to base 2 from the first: the change of base goes into the scale for nothing.
        self.lse = layer.lse[texts, :, :num_rows, None] * (LOG2_E if self.rule.plain else 1.0)
        self.adds = adds  # whether hidden cells are hidden by an addition
        # Requests of a class are handed a tile together: some of them are one matrix product for all.
        self.answers: dict[type[Request], dict[Request, Tensor]] = {}
        for request in sorted(values, key=lambda request: isinstance(request, Entropy)):
            self.answers.setdefault(type(request), {})[request] = values[request][texts]

    def run(self) -> None:
        num_texts, num_heads = self.q.shape[:2]
        num_rows, num_keys, group = self.group.num_rows, self.group.num_keys, self.group
        most_cells, tile_keys = tile_size(self.q.device)
        width = min(tile_keys, max(num_keys, 1))
        if num_texts * num_heads * num_rows * num_keys <= most_cells:
            height, width, group.keeps_places = max(num_rows, 1), max(num_keys, 1), True
        else:
            height = max(8, most_cells // (num_texts * num_heads * width))
            group.keeps_places = num_texts * num_rows * num_keys <= KEPT_CELLS
        # All tiles of all layers are made in the same three buffers: memory that is allocated anew lies in no cache,
        # and what is given back to the system meanwhile is the model's as well, which pays for it page by page.
        cells = num_texts * num_heads * min(height, num_rows) * width
        made_in = {"dtype": group.dtype, "device": self.q.device}
        buffers = group.batch.remember("buffers", tuple(made_in.values()), lambda: [torch.empty(0, **made_in)] * 3)
        if len(buffers[0]) < cells:
            buffers[:] = [torch.empty(cells, **made_in) for _ in range(3)]
        self.logs, self.weights, self.work = buffers
        # Where tiles lie depends on the mask alone, which the layers share.
        place = "tiles", group.texts.start, group.texts.stop, height, width
        for rows, keys, border in group.batch.once(group.mask, place, lambda: list(self.places(height, width))):
            self._tile(rows, keys, border)

    def places(self, height: int, width: int) -> Iterator[tuple[slice, slice, bool]]:
        """Rows and keys of each tile that some row sees, and whether some of its cells are hidden."""
        num_rows, num_keys = self.group.num_rows, self.group.num_keys
        for row in range(0, num_rows, height):
            rows = slice(row, min(row + height, num_rows))
            start, stop = self.mask.start[:, rows], self.mask.stop[:, rows]
            alive = stop > start
            # Tiles that no row sees are skipped: half of them where attention is causal, most with a window.
            if not bool(alive.any()):
                continue
            # Of rows that see something alone: an empty run lies anywhere, and would make the block begin there.
            first, last = int(start[alive].min()), min(int(stop[alive].max()), num_keys)
            # Between these keys every row sees every key, so that tiles there need not look at the mask.
            inner = (int(start.max()), int(stop.min())) if self.mask.dense is None else (0, 0)
            for key in range(first - first % width, last, width):
                keys = slice(key, min(key + width, last))  # no further than the block's rows see
                yield rows, keys, not inner[0] <= keys.start < keys.stop <= inner[1]

    def _tile(self, rows: slice, keys: slice, border: bool) -> None:
        """Compute one tile of exact weights and hand it to every request. `border`: some cells may be hidden.

        One matrix product (keys read once for all query heads of a group), minus the rows' lse, and one `exp2`.
        """
        shape = (*self.q.shape[:2], rows.stop - rows.start, keys.stop - keys.start)
        q, k, lse = self.q[:, :, rows], self.k[:, :, keys], self.lse[:, :, rows]
        if self.rule.plain:
            logs = grouped_scores(q, k, self.rule.scale * LOG2_E, self.logs).sub_(lse)
        else:
            # Softcap and bias are defined on natural scores. A bias may hide keys with -inf, and -inf * 0 is NaN.
            logs = self.rule.finish(grouped_scores(q, k, self.rule.scale, self.logs), rows, keys)
            logs.sub_(lse).mul_(LOG2_E).clamp_min_(HIDDEN)
        cells = math.prod(shape)
        weights, work = self.weights[:cells].view(shape), self.work[:cells].view(shape)
        hide = (lambda: ~self.mask.visible(rows, keys, device=self.q.device)) if border else None
        tile = Tile(weights, logs, work, hide, rows, keys, self.group)
        if (hidden := tile.hidden) is not None and self.adds:  # five times as fast as a fill by booleans
            logs.add_(tile.by_place("far", lambda: hidden.to(logs.dtype).mul_(FAR)))
        elif hidden is not None:
            logs.masked_fill_(hidden, HIDDEN)
        torch.exp2(logs, out=weights)
        for kind, answers in self.answers.items():
            kind.add_all(tile, answers)


def tile_size(device: torch.device) -> tuple[int, int]:
    """The most cells of a tile over all heads, and its keys: sized for a CPU's cache, or for an accelerator's calls."""
    return (TILE_CELLS, TILE_KEYS) if device.type == "cpu" else (ACCELERATOR_CELLS, ACCELERATOR_KEYS)


def moved_to_host(values: Mapping[Request, Tensor]) -> dict[Request, Tensor]:
    """Tensors of a device as the host's, by one copy: each copy is a wait."""
    if all(value.device.type == "cpu" for value in values.values()):
        return dict(values)
    # The widest numbers first, so that each part begins at a multiple of its own width.
    order = sorted(values, key=lambda request: -values[request].element_size())
    parts = [values[request].contiguous().flatten().view(torch.uint8) for request in order]
    copies = torch.cat(parts).cpu().split([len(part) for part in parts])
    moved = {
        request: part.view(values[request].dtype).view(values[request].shape)
        for request, part in zip(order, copies, strict=True)
    }
    return {request: moved[request] for request in values}


# -------------------------------------------------------------------------------------------- cells, without the pass


def cell_weights(
    layer: Layer, text: int, queries: Int[Tensor, "pairs"], keys: Int[Tensor, "pairs"]
) -> Float[Tensor, "h pairs"]:
    """The exact weights of some cells of one text, all heads, in float64. Cost: O(pairs * h * d)."""
    num_heads, bias, device = layer.q.shape[1], layer.rule.bias, layer.q.device
    group = torch.arange(num_heads, device=device) // (num_heads // layer.k.shape[1])
    mask = layer.mask.expand(layer.q.shape[0])
    host_queries, host_keys = queries.cpu(), keys.cpu()
    visible = (host_keys >= mask.start[text, host_queries]) & (host_keys < mask.stop[text, host_queries])
    queries, keys, visible = (part.to(device, non_blocking=True) for part in (queries, keys, visible))
    q, k = layer.q[text][:, queries].double(), layer.k[text][group][:, keys].double()
    if bias is not None:
        # An axis of 1 serves every text; `min` picks it without a copy for each.
        bias = bias[min(text, bias.shape[0] - 1)].expand(num_heads, -1, -1)[:, queries, keys]
    scores = layer.rule.finish_cells(layer.rule.scale * (q * k).sum(-1), bias)
    if mask.dense is not None:
        visible = mask.dense[min(text, mask.dense.shape[0] - 1)][:, queries, keys]
    return exact_weights(scores, layer.lse[text][:, queries], visible)


@exact_arithmetic()
def key_weights(layer: Layer, keys: Int[Tensor, "b c"], dtype: torch.dtype) -> Float[Tensor, "b h q c"]:
    """The exact weights of every row on chosen keys of each text, where the layer is.

    Cost: O(b * h * q * c * d).
    """
    device, mask = layer.q.device, layer.mask.expand(len(keys))
    keys = keys.to(device, non_blocking=True)
    k = layer.k.gather(2, keys[:, None, :, None].expand(-1, layer.k.shape[1], -1, layer.k.shape[3]))
    bias = None if layer.rule.bias is None else columns_at(layer.rule.bias, keys)
    scores = layer.rule.finish_cells(grouped_scores(layer.q.to(dtype), k.to(dtype), layer.rule.scale), bias)
    if mask.dense is not None:
        visible = columns_at(mask.dense, keys)
    else:
        start, stop = (runs[..., None].to(device, non_blocking=True) for runs in (mask.start, mask.stop))
        visible = ((keys[:, None] >= start) & (keys[:, None] < stop))[:, None]
    return exact_weights(scores, layer.lse[..., None], visible)


def columns_at(cells: Tensor, keys: Int[Tensor, "b c"]) -> Tensor:
    """The same keys' columns of every head and row: `[b h q k]` to `[b h q c]`; one text's serves all."""
    index = keys[:, None, None].expand(-1, *cells.shape[1:3], -1)
    return cells.expand(len(keys), -1, -1, -1).gather(3, index)


def window_weights(layer: Layer, text: int, heads: Sequence[int], rows: slice, keys: slice) -> Float[Tensor, "h r c"]:
    """A window of one text's map, some heads, in the layer's dtype. Cost: O(window * d) time, some times its memory."""
    texts, heads = slice(text, text + 1), list(heads)
    group = [head // (layer.q.shape[1] // layer.k.shape[1]) for head in heads]
    q, k = layer.q[texts][:, heads, rows].double(), layer.k[texts][:, group, keys].double()
    scores = layer.rule.texts(texts).heads(heads).finish(grouped_scores(q, k, layer.rule.scale), rows, keys)
    visible = layer.mask.expand(layer.q.shape[0]).texts(texts).visible(rows, keys, heads, q.device)
    return exact_weights(scores, layer.lse[texts][:, heads, rows, None], visible)[0].to(layer.dtype)
