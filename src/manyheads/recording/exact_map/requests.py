"""The reductions of an attention map, a class each: what one pass over its tiles can compute together.

A request is a small frozen value, so that statistics can ask for the same reduction and it is computed once. A request
that depends on the tokens holds a *function of the tokens*, not the numbers: it can be planned before a text is read.

To add a reduction, write one class here, its oracle in `reference.reductions`, and the line in
`tests/recording/passing.py` that compares the two (a test holds that every class has one). The class says

- `of_tokens(tokens)`: what it reads off the tokens, once for all layers (nothing, for most);
- `empty(sizes, ...)`: its answer before the first tile, which is also the answer of rows that see nothing;
- `add(tile, answer)`: how one tile of exact weights changes the answer (`add_all`, where several requests of the class
  are one matrix product);
- `finish(answer, ...)`: what is left to do after the last tile (nothing, for most).

Shapes: b texts, h query heads, q rows, k keys; in a tile r rows and c keys. Padding comes out as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from manyheads.attention import Mask
from manyheads.errors import StatisticError
from manyheads.texts import Tokens

Made = TypeVar("Made")

Column = Callable[[Tokens], Float[Tensor, "b k"]]
WordsOf = Callable[[Tokens], Int[Tensor, "b k"]]
Labels = Callable[[Tokens], tuple[Int[Tensor, "b q"], Int[Tensor, "b k"]]]

ALL = "all"  # in place of a tensor of ones
HIDDEN = -1e4  # log2 of a hidden cell's weight: exp2 gives exactly 0, and unlike -inf it survives 0 * x
FAR = -1e30  # what is added to logarithms of hidden cells: whatever finite number one of them was, it is this one then
KEPT_CELLS = 1 << 19  # of a group whose cells by place are kept for other layers: 2 MB for each thing that is kept


# ------------------------------------------------------------------------ what a request gets to work on


@dataclass(eq=False)
class Batch:
    """A batch of tokens, and what was computed of it once for all the layers that are reduced.

    `keys`: the tokens that are looked at, where these are others than those that look (cross-attention).
    """

    tokens: Tokens
    keys: Tokens | None = None
    memory: dict[tuple[Hashable, Hashable], Any] = field(default_factory=dict)

    def of_tokens(self, request: Request) -> Any:
        """What the request reads off these tokens."""
        tokens = self.keys if request.of_keys and self.keys is not None else self.tokens
        return self.remember("tokens", request, lambda: request.of_tokens(tokens))

    def once(self, mask: Mask, name: Hashable, compute: Callable[[], Made]) -> Made:
        """Something that depends on tokens and mask alone: computed for the first layer, remembered for the others."""
        return self.remember(name, id(mask), compute)

    def matches(self, request: Match, mask: Mask) -> Float[Tensor, "b q"]:
        """How many visible keys each row's label matches."""
        return self.once(mask, request, lambda: request.count(self.of_tokens(request), mask))

    def expanded(self, mask: Mask) -> Mask:
        """The mask with a row of runs for each text: the same object for the same mask.

        `once` remembers by the identity of a mask, so masks are held here: no other may get the identity of a lost one.
        """
        return self.remember("expanded", id(mask), lambda: (mask, mask.expand(self.tokens.num_texts)))[1]

    def on_host(self, mask: Mask) -> Mask:
        """The same mask with its dense part, if it has one, on the host: for what is computed of the pass's answers."""

        def moved() -> tuple[Mask, Mask]:
            # The same mask where nothing moves: what is remembered of it is found by its identity.
            if mask.dense is None or mask.dense.device.type == "cpu":
                return mask, mask
            return mask, replace(mask, dense=mask.dense.cpu())

        return self.remember("on host", id(mask), moved)[1]

    def remember(self, name: Hashable, owner: Hashable, compute: Callable[[], Made]) -> Made:
        """Something computed once for this batch, by its name and what it belongs to."""
        if (name, owner) not in self.memory:
            self.memory[name, owner] = compute()
        return self.memory[name, owner]


@dataclass(eq=False)
class Group:
    """Neighbouring texts of one layer that share tiles; `memory` is what requests remember from tile to tile."""

    batch: Batch
    mask: Mask  # of all texts of the batch, on the host
    texts: slice
    num_rows: int
    num_keys: int
    dtype: torch.dtype
    keeps_places: bool = False  # cells are few: what depends on a tile's place alone serves the other layers too
    memory: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, name: Hashable, compute: Callable[[], Made]) -> Made:
        """Something that all tiles of this group and layer share."""
        if name not in self.memory:
            self.memory[name] = compute()
        return self.memory[name]


@dataclass(frozen=True, eq=False)
class Tile:
    """A block of exact weights, their base-2 logarithms, a buffer of the same shape to work in, and what is hidden.

    `hide` makes the cells that are hidden; None where all are seen.
    """

    weights: Float[Tensor, "b h r c"]
    logs: Float[Tensor, "b h r c"]
    work: Float[Tensor, "b h r c"]
    hide: Callable[[], Bool[Tensor, "#b #h r c"]] | None
    rows: slice
    keys: slice
    group: Group

    def times(self, factor: Tensor) -> Float[Tensor, "b h r c"]:
        """The weights times something, in the buffer: to be read before the next product is made."""
        return torch.mul(self.weights, factor, out=self.work)

    def by_place(self, name: Hashable, compute: Callable[[], Made]) -> Made:
        """Something that depends on the tile's place alone. Memory: of one tile or KEPT_CELLS, O(n^2 / h)."""
        group, (rows, keys) = self.group, (self.rows, self.keys)
        if not group.keeps_places:
            return compute()
        # A layer of fewer heads has larger groups, so the texts are part of the name.
        place = group.texts.start, group.texts.stop, rows.start, rows.stop, keys.start, keys.stop
        return group.batch.once(group.mask, (name, place), compute)

    @property
    def hidden(self) -> Bool[Tensor, "#b #h r c"] | None:
        return None if self.hide is None else self.by_place("hidden", self.hide)

    @property
    def device(self) -> torch.device:
        return self.weights.device

    @property
    def row_index(self) -> Int[Tensor, "r one"]:
        return torch.arange(self.rows.start, self.rows.stop, device=self.device)[:, None]

    @property
    def key_index(self) -> Int[Tensor, "one c"]:
        return torch.arange(self.keys.start, self.keys.stop, device=self.device)[None]


class Sizes(NamedTuple):
    """Sizes of one layer's map (texts, query heads, rows, keys), and its device."""

    texts: int
    heads: int
    rows: int
    keys: int
    device: torch.device = torch.device("cpu")


class Request:
    """A reduction of a map. By default its answer is `[b h q]`, sums that begin at 0."""

    one_text_a_group = False  # whether texts must not share tiles, because the answer depends on each text's length
    of_keys = False  # whether what it reads off tokens is about keys

    def of_tokens(self, tokens: Tokens) -> Any:
        """What the request reads off the tokens."""
        return None

    def empty(self, sizes: Sizes, batch: Batch, dtype: torch.dtype) -> Tensor:
        """The answer before the first tile, on the device of the tiles."""
        return torch.zeros(sizes.texts, sizes.heads, sizes.rows, dtype=dtype, device=sizes.device)

    def add(self, tile: Tile, answer: Tensor) -> None:
        """Change the answer (of the tile's group of texts) by what the tile holds."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a tile adds to its answer.")

    @classmethod
    def add_all(cls, tile: Tile, answers: Mapping[Any, Tensor]) -> None:
        """`add` for every request of this class."""
        for request, answer in answers.items():
            request.add(tile, answer)

    def finish(self, answer: Tensor, batch: Batch, mask: Mask) -> None:
        """Finish the answer of all texts in place, after the last tile."""


# ------------------------------------------------------------------------------------------------------ a number a row


@dataclass(frozen=True)
class Mass(Request):
    """`[b h q]` sum_j w: 1, or less where a sink takes its share. Unit: share, range 0..1."""

    def add(self, tile: Tile, answer: Tensor) -> None:
        answer[:, :, tile.rows].add_(tile.weights.sum(-1))


@dataclass(frozen=True)
class Entropy(Request):
    """`[b h q]` -sum_j w ln w, in nats. A tile's last request: it multiplies where the logarithms lie."""

    def add(self, tile: Tile, answer: Tensor) -> None:
        answer[:, :, tile.rows].sub_(tile.logs.mul_(tile.weights).sum(-1).mul_(math.log(2)))


@dataclass(frozen=True)
class Square(Request):
    """`[b h q]` sum_j w^2: 1 where all weight is on one key, 1/n where it is spread evenly over n."""

    def add(self, tile: Tile, answer: Tensor) -> None:
        answer[:, :, tile.rows].add_(tile.times(tile.weights).sum(-1))


@dataclass(frozen=True)
class Maximum(Request):
    """`[b h q]` the row's largest weight."""

    def add(self, tile: Tile, answer: Tensor) -> None:
        answer[:, :, tile.rows] = torch.maximum(answer[:, :, tile.rows], tile.weights.amax(-1))


@dataclass(frozen=True)
class Strongest(Request):
    """`[b h q]` the key of the row's largest weight (the first of equals); -1 in rows that see nothing."""

    def empty(self, sizes: Sizes, batch: Batch, dtype: torch.dtype) -> Tensor:
        return torch.full((sizes.texts, sizes.heads, sizes.rows), -1, dtype=torch.long, device=sizes.device)

    def add(self, tile: Tile, answer: Tensor) -> None:
        """The answer is a key; the weight that later tiles must exceed is remembered beside it."""
        # Logarithms are compared, not weights: two weights that both round to 0 still differ here.
        largest, place = tile.logs.max(-1)
        shape = (*tile.logs.shape[:2], tile.group.num_rows)
        highest = tile.group.once(self, lambda: torch.full(shape, HIDDEN, dtype=tile.group.dtype, device=tile.device))[
            :, :, tile.rows
        ]
        # Only what is larger replaces: of equal weights the first stays, and hidden cells never count.
        rows = answer[:, :, tile.rows]
        rows.copy_(torch.where(largest > highest, place + tile.keys.start, rows))
        torch.maximum(highest, largest, out=highest)


@dataclass(frozen=True)
class Distance(Request):
    """`[b h q]` sum_j w |j - i|, in tokens."""

    def add(self, tile: Tile, answer: Tensor) -> None:
        rows, keys = tile.rows, tile.keys
        if keys.stop <= rows.start and not tile.group.keeps_places:
            # Left of the diagonal |j - i| is a line along the keys: a product with their places, which reads weights
            # once. From the tile's first key, so that no long way is the difference of two longer ones.
            made_in = {"dtype": tile.weights.dtype, "device": tile.device}
            place = torch.arange(keys.stop - keys.start, **made_in)
            way = (tile.weights.view(-1, len(place)) @ place).view(tile.weights.shape[:3])
            row = torch.arange(rows.start - keys.start, rows.stop - keys.start, **made_in)
            answer[:, :, rows].add_(tile.weights.sum(-1).mul_(row).sub_(way))
            return
        dtype = tile.weights.dtype
        distance = tile.by_place("distance", lambda: (tile.key_index.to(dtype) - tile.row_index.to(dtype)).abs_())
        answer[:, :, rows].add_(tile.times(distance).sum(-1))


@dataclass(frozen=True)
class Linear(Request):
    """`[b h q]` sum_j w c_j for a column c over the keys."""

    column: Column

    of_keys = True

    def of_tokens(self, tokens: Tokens) -> Float64[Tensor, "b k"]:
        return self.column(tokens).to(torch.float64)

    @classmethod
    def add_all(cls, tile: Tile, answers: Mapping[Any, Tensor]) -> None:
        """All columns at once, as one matrix product."""
        group = tile.group
        columns = group.once(
            cls,
            lambda: torch.stack(
                [group.batch.of_tokens(request)[group.texts, : group.num_keys].to(group.dtype) for request in answers],
                -1,
            ).to(tile.device, non_blocking=True),
        )
        num_texts, num_heads, num_rows, num_keys = tile.weights.shape
        rows = tile.weights.view(num_texts, num_heads * num_rows, num_keys)
        sums = torch.bmm(rows, columns[:, tile.keys]).view(num_texts, num_heads, num_rows, -1)
        for index, answer in enumerate(answers.values()):
            answer[:, :, tile.rows].add_(sums[..., index])


# ------------------------------------------------------------------------ cells whose labels are equal


class MatchLabels(NamedTuple):
    """Labels as ranks, -1 where they match nothing.

    `tile_rows` and `tile_keys` are what tiles compare: half as wide, and of different values where nothing matches.
    """

    rows: Int[Tensor, "b q"]
    keys: Int[Tensor, "b k"]
    tile_rows: Int[Tensor, "b q"]
    tile_keys: Int[Tensor, "b k"]

    def tile_labels(self, device: torch.device) -> tuple[Int[Tensor, "b q"], Int[Tensor, "b k"]]:
        """What tiles compare, sent to where tiles are."""
        return self.tile_rows.to(device, non_blocking=True), self.tile_keys.to(device, non_blocking=True)


@dataclass(frozen=True)
class Match(Request):
    """`[b h q]` sum of w where the row's label equals the key's. Labels below 0 match nothing.

    `earlier` counts keys `j <= i - apart` only; `elsewhere` leaves out those nearer than `apart` on either side, and
    `j = i` in any case. Keys all labelled alike but for a few make sums by place: all but the nearest, say.
    """

    labels: Labels
    earlier: bool = False
    elsewhere: bool = False
    apart: int = 0

    @property
    def reach(self) -> int:
        """The least distance of a key that counts, on the sides that count at all."""
        return max(self.apart, 1) if self.elsewhere else self.apart

    def of_tokens(self, tokens: Tokens) -> MatchLabels:
        """Ranks in place of labels: equal ones stay equal, and hashes fit where 32 bits or products are used."""
        rows, keys = self.labels(tokens)
        _, ranks = torch.cat([rows, keys], 1).unique(return_inverse=True)
        row_ranks, key_ranks = ranks.split([rows.shape[1], keys.shape[1]], 1)
        # After the ranks: labels below 0 have ranks too, and would match each other.
        row_ranks, key_ranks = torch.where(rows < 0, -1, row_ranks), torch.where(keys < 0, -1, key_ranks)
        return MatchLabels(row_ranks, key_ranks, row_ranks.int(), torch.where(key_ranks < 0, -2, key_ranks).int())

    def add(self, tile: Tile, answer: Tensor) -> None:
        cells = self.cells(tile)
        if cells is not None:
            answer[:, :, tile.rows].add_(cells.sum(-1))

    def cells(self, tile: Tile) -> Float[Tensor, "b h r c"] | None:
        """The weights of matching cells, else 0; None where the tile has no match. To be read, not written to."""
        equal = tile.by_place(self, lambda: self.equal_labels(tile))
        if isinstance(equal, Tensor):
            return tile.times(equal)
        return None if equal is None else tile.weights

    def equal_labels(self, tile: Tile) -> Float[Tensor, "b one r c"] | str | None:
        """1 where the row's label equals the key's, else 0: one equality test, shared by all heads.

        None where no cell's are equal; ALL where every cell's are, which a match by place has in most tiles.
        """
        if self.earlier and tile.keys.start >= tile.rows.stop:
            return None
        batch, texts, on_host = tile.group.batch, tile.group.texts, tile.device.type == "cpu"
        labels: MatchLabels = batch.of_tokens(self)
        # Rare labels leave most tiles without a match. On the host that shows when the cells are compared; looking at a
        # device's cells would be a wait for each tile, so its labels are looked at before, on the host.
        if not on_host:
            rows, keys = labels.tile_rows[texts, tile.rows], labels.tile_keys[texts, tile.keys]
            place = (tile.rows.start, tile.rows.stop, tile.keys.start, tile.keys.stop)
            if not batch.remember((self, *place), texts.start, lambda: bool(torch.isin(rows, keys).any())):
                return None
        tile_rows, tile_keys = batch.remember((self, "labels"), tile.device, lambda: labels.tile_labels(tile.device))
        equal = tile_rows[texts, tile.rows, None] == tile_keys[texts, None, tile.keys]
        # Where all keys of a tile lie well before its rows, neither condition can leave anything out.
        reach = self.reach
        if tile.keys.start < tile.rows.stop + reach and tile.rows.start < tile.keys.stop + reach:
            if self.earlier:
                equal &= tile.key_index <= tile.row_index - reach
            elif self.elsewhere:
                equal &= (tile.key_index - tile.row_index).abs() >= reach
        count = int(equal.count_nonzero()) if on_host else -1
        if count in (0, equal.numel()):
            return ALL if count else None
        return equal[:, None].to(tile.weights.dtype)

    def count(self, labels: MatchLabels, mask: Mask) -> Float[Tensor, "b q"]:
        """How many visible keys carry each row's label (seen by any head, where heads differ).

        Cost: O(n log n), where the mask is runs; a dense mask is compared cell by cell.
        """
        num_rows, num_keys = labels.rows.shape[1], labels.keys.shape[1]
        if mask.dense is not None:
            row, key = torch.arange(num_rows, device="cpu")[:, None], torch.arange(num_keys, device="cpu")[None]
            equal = (labels.rows[:, :, None] == labels.keys[:, None]) & (labels.rows >= 0)[:, :, None]
            if self.earlier:
                equal &= key <= row - self.reach
            elif self.elsewhere:
                equal &= (key - row).abs() >= self.reach
            return (equal & mask.dense.any(1)).sum(-1).double()
        row = torch.arange(num_rows, device="cpu")[None]
        start, stop = mask.start[:, :num_rows], mask.stop[:, :num_rows]
        if self.earlier:
            stop = torch.minimum(stop, row + 1 - self.reach)
        # Keys sorted by label and then by place: a row's matches within its run of keys are one interval of them.
        stride = num_keys + 1
        order = (labels.keys * stride + torch.arange(num_keys, device="cpu")[None]).sort(-1).values

        def among(start: Int[Tensor, "b q"], stop: Int[Tensor, "b q"]) -> Int[Tensor, "b q"]:
            low = torch.searchsorted(order, labels.rows * stride + start)
            return torch.searchsorted(order, labels.rows * stride + torch.maximum(stop, start)) - low

        count = among(start, stop)
        if self.elsewhere and not self.earlier:
            near = (torch.maximum(start, row + 1 - self.reach), torch.minimum(stop, row + self.reach))
            count = count - among(*near)
        return torch.where(labels.rows >= 0, count, 0).double()


@dataclass(frozen=True)
class MatchReceived(Request):
    """`[b h k]` column sums over the cells of a match alone: what each key receives from rows that carry its label."""

    match: Match

    def empty(self, sizes: Sizes, batch: Batch, dtype: torch.dtype) -> Tensor:
        return torch.zeros(sizes.texts, sizes.heads, sizes.keys, dtype=dtype, device=sizes.device)

    def add(self, tile: Tile, answer: Tensor) -> None:
        cells = self.match.cells(tile)
        if cells is not None:
            answer[:, :, tile.keys].add_(cells.sum(-2))


@dataclass(frozen=True)
class RowsReceived(Request):
    """`[b h k]` column sums over the rows that see a match: all that they give, to its keys and to others."""

    match: Match

    def empty(self, sizes: Sizes, batch: Batch, dtype: torch.dtype) -> Tensor:
        return torch.zeros(sizes.texts, sizes.heads, sizes.keys, dtype=dtype, device=sizes.device)

    @classmethod
    def add_all(cls, tile: Tile, answers: Mapping[Any, Tensor]) -> None:
        """All sets of rows at once, as one matrix product."""
        group = tile.group

        def chosen_rows() -> Float[Tensor, "b n q"]:
            counts = (group.batch.matches(request.match, group.mask) for request in answers)
            chosen = torch.stack([count[group.texts, : group.num_rows] > 0 for count in counts], 1).to(group.dtype)
            return chosen.to(tile.device, non_blocking=True)

        sums = group.once(cls, chosen_rows)[:, None, :, tile.rows] @ tile.weights
        for index, answer in enumerate(answers.values()):
            answer[:, :, tile.keys].add_(sums[:, :, index])


# ------------------------------------------------------------------------ diagonals, columns, rows of words, blocks


@dataclass(frozen=True)
class Band(Request):
    """`[b h q o]` the weight at each offset `j - i` of `offsets`; 0 where there is no such key."""

    offsets: tuple[int, ...]

    def empty(self, sizes: Sizes, batch: Batch, dtype: torch.dtype) -> Tensor:
        return torch.zeros(sizes.texts, sizes.heads, sizes.rows, len(self.offsets), dtype=dtype, device=sizes.device)

    def add(self, tile: Tile, answer: Tensor) -> None:
        # Rows of the tile some of whose keys at these offsets lie in it: near the diagonal, of most tiles none.
        rows, keys = tile.rows, tile.keys
        near = slice(max(rows.start, keys.start - max(self.offsets)), min(rows.stop, keys.stop - min(self.offsets)))
        if near.stop <= near.start:
            return

        def places() -> tuple[Int[Tensor, "r o"], Float[Tensor, "r o"]]:
            offsets = torch.tensor(self.offsets, device="cpu").to(tile.device, non_blocking=True)
            key = tile.row_index[near.start - rows.start : near.stop - rows.start] + offsets - keys.start
            num_keys = keys.stop - keys.start
            return key.clamp(0, num_keys - 1), ((key >= 0) & (key < num_keys)).to(tile.weights.dtype)

        key, inside = tile.by_place(self, places)
        weights = tile.weights[:, :, near.start - rows.start : near.stop - rows.start]
        # A cell lies in one tile only, so that every offset of a row is added once.
        answer[:, :, near].add_(weights.gather(-1, key.expand(*weights.shape[:2], -1, -1)).mul_(inside))


@dataclass(frozen=True)
class Received(Request):
    """`[b h k]` column sums, sum_i w: how much attention each key receives in all."""

    def empty(self, sizes: Sizes, batch: Batch, dtype: torch.dtype) -> Tensor:
        return torch.zeros(sizes.texts, sizes.heads, sizes.keys, dtype=dtype, device=sizes.device)

    def add(self, tile: Tile, answer: Tensor) -> None:
        answer[:, :, tile.keys].add_(tile.weights.sum(-2))


@dataclass(frozen=True)
class KeySum(Linear):
    """`[b h]` sum_i sum_j w c_j: what all rows together give to keys, each key counted by a column c.

    Made of `Received`, which the tiles add up once for all columns; kernels add up rows, where nothing asks for that.
    """

    def of_received(self, received: Float[Tensor, "b h k"], batch: Batch) -> Float64[Tensor, "b h"]:
        return (received.double() * batch.of_tokens(self)[:, None]).sum(-1)


@dataclass(frozen=True)
class WordRows(Request):
    """`[b h w k]` the mean of the rows of each word: who looks is a word, what is looked at are still tokens.

    `words` numbers the word of each token from 0, -1 for none. For texts of a treebank's length: the answer is a map.
    """

    words: WordsOf

    def of_tokens(self, tokens: Tokens) -> Float[Tensor, "b w q"]:
        """Each token's share of its word's row: one over the word's tokens, 0 for tokens of other words."""
        of_token = self.words(tokens)
        words = torch.arange(max(1, 1 + max(of_token.flatten().tolist(), default=0)), device="cpu")
        member = (of_token[:, None] == words[:, None]).double()
        return member / member.sum(-1, keepdim=True).clamp_min(1)

    def empty(self, sizes: Sizes, batch: Batch, dtype: torch.dtype) -> Tensor:
        num_words = batch.of_tokens(self).shape[1]
        return torch.zeros(sizes.texts, sizes.heads, num_words, sizes.keys, dtype=dtype, device=sizes.device)

    def add(self, tile: Tile, answer: Tensor) -> None:
        group = tile.group
        shares = group.batch.of_tokens(self)[group.texts, None, :, tile.rows].to(group.dtype)
        answer[..., tile.keys].add_(shares.to(tile.device, non_blocking=True) @ tile.weights)


@dataclass(frozen=True)
class Pooled(Request):
    """`[b h p p]` the map in `size` x `size` blocks (fewer for shorter texts), by mean or by max of the visible cells.

    Position i of a text of n falls in block `i * p // n`. Blocks in which nothing is visible are NaN: absent, not zero.
    """

    size: int
    how: Literal["mean", "max"] = "mean"

    one_text_a_group = True

    def __post_init__(self) -> None:
        if self.how not in ("mean", "max") or self.size < 1:
            raise StatisticError(f"{self}: pool by how='mean' or 'max', into at least one block.")

    def empty(self, sizes: Sizes, batch: Batch, dtype: torch.dtype) -> Tensor:
        # Sums begin at 0, and `finish` finds the absent blocks; of maxima, what no tile has touched is absent.
        fill = torch.nan if self.how == "max" else 0.0
        return torch.full((sizes.texts, sizes.heads, self.size, self.size), fill, dtype=dtype, device=sizes.device)

    def add(self, tile: Tile, answer: Tensor) -> None:
        """Sums (or maxima) of blocks: first over the rows of each block of rows, then over its keys."""
        sides = (tile.group.num_rows, tile.group.num_keys)
        row_bins, key_bins = tile.group.once(self, lambda: [bins(side, self.size) for side in sides])
        row_blocks, key_blocks = row_bins[tile.rows], key_bins[tile.keys].to(tile.device, non_blocking=True)
        blocks, counts = row_blocks.unique_consecutive(return_counts=True)
        stops = counts.cumsum(0).tolist()
        for block, start, stop in zip(blocks.tolist(), [0, *stops], stops, strict=False):
            weights = tile.weights[:, :, start:stop]
            if self.how == "mean":
                answer[:, :, block].index_add_(-1, key_blocks, weights.sum(-2))
                continue
            # A visible weight may be 0, so -1 stands for absent while maxima are taken.
            top = weights.amax(-2)
            if (hidden := tile.hidden) is not None:
                top = top.masked_fill(hidden[:, :, start:stop].all(-2).expand_as(top), -1)
            highest = answer[:, :, block].nan_to_num(nan=-1)
            highest.scatter_reduce_(-1, key_blocks.expand_as(top), top, "amax")
            answer[:, :, block] = torch.where(highest < 0, torch.nan, highest)

    def finish(self, answer: Tensor, batch: Batch, mask: Mask) -> None:
        if self.how == "mean":
            answer /= visible_cells(mask, batch.tokens.lengths.tolist(), self.size)


def bins(length: int, size: int) -> Int[Tensor, "n"]:
    """The block of each position: `i * p // n` with `p = min(size, n)` blocks."""
    return torch.arange(length, device="cpu") * min(size, length) // max(length, 1)


def visible_cells(mask: Mask, lengths: Sequence[int], size: int) -> Float[Tensor, "b h p p"]:
    """How many cells of each block are visible, NaN for none. Cost: O(n * size) by runs. `h` is 1 where heads agree."""
    num_heads = 1 if mask.dense is None else mask.dense.shape[1]
    out = torch.zeros(len(lengths), num_heads, size, size, dtype=torch.float64, device="cpu")
    for text, length in enumerate(lengths):
        sides = (length, length) if mask.num_queries == mask.num_keys else (mask.num_queries, mask.num_keys)
        row_bins, key_bins = (bins(side, size) for side in sides)
        out[text] = visible_blocks(mask.texts(slice(text, text + 1)), row_bins, key_bins, (size, size))
    return torch.where(out > 0, out, torch.nan)


def visible_blocks(
    mask: Mask, row_bins: Int[Tensor, "r"], key_bins: Int[Tensor, "k"], shape: tuple[int, int]
) -> Float64[Tensor, "h row_blocks key_blocks"]:
    """How many cells of each block one text's mask leaves visible: by runs, or by looking where it is dense."""
    if mask.dense is None:
        edges = torch.searchsorted(key_bins, torch.arange(shape[1] + 1, device="cpu"))
        start, stop = mask.start[0, : len(row_bins), None], mask.stop[0, : len(row_bins), None]
        counts = (torch.minimum(stop, edges[1:]) - torch.maximum(start, edges[:-1])).clamp_min(0).double()[None]
    else:
        visible = mask.dense[0, :, : len(row_bins), : len(key_bins)].cpu().double()
        counts = visible.new_zeros(*visible.shape[:2], shape[1]).index_add_(2, key_bins, visible)
    return counts.new_zeros(len(counts), *shape).index_add_(1, row_bins, counts)
