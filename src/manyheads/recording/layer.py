"""A recorded layer: q, k and each row's lse, from which any weight can be rebuilt exactly.

`weight[i, j] = exp(score(q_i, k_j) - lse_i)`: n numbers a row were a map, d + 1 are a record. A layer's texts are
left-aligned, padding rolled away. A question costs no more than its answer needs: chosen cells from q and k, statistics
of the whole map by one pass over tiles, a window of the map for people's eyes, and small maps for a grid of all heads.

A layer's tensors are where its model was: windows of weights (`weights`, `weights_at`, `word_weights`, `tiles`) and
`project` come from there; the answers of a pass (`reduce`, `received`) and small maps are on the host, and so is all
that a file holds.

Texts of similar length are read together, so that little of a batch is padding; `together` makes one record of the
batches' records again, left-aligned and padded to the longest text. Cost: a copy of the record.
Sources: Dao 2023 (lse), docs/decisions.
"""

# pyright: reportUnnecessaryIsInstance=false
# What people pass in is checked, whatever its type says.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.attention import Mask, Rule, attend
from manyheads.base import plural
from manyheads.errors import RecordingError, ShapeError, WindowError
from manyheads.recording.exact_map.layer import Layer
from manyheads.recording.exact_map.one_pass import Reduced, cell_weights, prepare, window_weights
from manyheads.recording.exact_map.requests import Received, Request, bins, visible_blocks
from manyheads.results import Shown, figure_of
from manyheads.spec import CROSS, Site
from manyheads.texts import Merging, Tokens, WordMap, Words, numbered, words_of_text

if TYPE_CHECKING:  # half a second to import: only who draws waits for it
    from matplotlib.figure import Figure

WINDOW_BYTES = 1_000_000_000  # the largest dense window of weights that is handed out
WORD_BLOCK_CELLS = 1 << 22  # weights of pieces held while words are merged: 16 MB, beside which the answer is large


@dataclass(frozen=True, eq=False)
class LayerRecord(Shown):
    """One attention layer over a batch of texts. `v` is None unless it was kept; `because` says what gave the lse.

    Where keys and queries are different tokens (cross-attention), `lengths` are the queries' and every key is kept.
    """

    site: Site
    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k f"] | None
    lse: Float[Tensor, "b h q"]
    mask: Mask
    rule: Rule
    lengths: Int[Tensor, "b"]
    tokens: Tokens
    because: str = ""

    def __repr__(self) -> str:
        heads, keys = self.site.num_heads, "" if not self.crosses else f" x {plural(self.k.shape[2], 'key')}"
        size = f"{plural(len(self.lengths), 'text')} of up to {plural(self.q.shape[2], 'token')}{keys}"
        return f"LayerRecord({self.site.module}: {plural(heads, 'head')}; {size})"

    def _named_values(self) -> dict[str, str | int | float | None]:
        site = self.site
        sizes = {"heads": site.num_heads, "key/value heads": site.num_kv_heads, "texts": len(self.lengths)}
        shape = {"queries": self.q.shape[2], "keys": self.k.shape[2], "head dimension": self.q.shape[3]}
        return {**sizes, **shape, "module": site.module, "weights from": self.because}

    def plot(self, head: int, text: int = 0) -> Figure:
        """One head's map of one text as a matplotlib figure, a text of over 512 tokens by means of blocks.

        Cost: one attention call of the layer. Errors: HeadError, ShapeError for a head or text that is not there.
        """
        return figure_of(self, head=head, text=text)

    @cached_property
    def _layer(self) -> Layer:
        return Layer(self.q, self.k, self.lse, self.mask, self.rule, self.crosses)

    @property
    def crosses(self) -> bool:
        """Whether keys and queries are different tokens."""
        return self.site.stack == CROSS or self.q.shape[2] != self.k.shape[2]

    def reduce(self, requests: Sequence[Request]) -> Reduced:
        """Every requested reduction in one pass over exact tiles. Cost: O(q * k * d) time, O(tile) memory."""
        return prepare(self.tokens, requests).run(self._layer)

    def received(self) -> Float[Tensor, "b h k"]:
        """How much attention each key receives in all: column sums of the map."""
        return self.reduce([Received()])[Received()]

    def weights(
        self, head: int | None = None, queries: slice | None = None, keys: slice | None = None, text: int = 0
    ) -> Tensor:
        """A window of the exact map of one text: `Float[q k]`, or `Float[h q k]` where `head` is None.

        Trimmed to the text. Rows that see nothing are 0. Cost: O(window * d) time and the window's memory.
        Errors: WindowError above 1 GB, ShapeError for a head or text that is not there.
        """
        text = self._text(text)
        rows = _window("queries", queries, self.num_queries(text))
        columns = _window("keys", keys, self.num_keys(text))
        num_heads = self.site.num_heads
        if head is not None and (not isinstance(head, int) or not 0 <= head < num_heads):
            if not isinstance(head, int):  # a head's name, or a number of another type
                for name in self.site.heads:
                    if str(head) in (str(name), str(name.index)):
                        raise ShapeError(f"head={head!r}: a layer's heads are whole numbers: give head={name.index}.")
            raise ShapeError(f"{head=} is not in layer {self.site.layer}: it has heads 0 to {num_heads - 1}.")
        heads = range(num_heads) if head is None else [head]
        size = len(heads) * (rows.stop - rows.start) * (columns.stop - columns.start) * 4
        if size > WINDOW_BYTES:
            raise WindowError(
                f"a window of {len(heads)} heads x {rows.stop - rows.start} x {columns.stop - columns.start} weights "
                f"is {size / 1e9:.1f} GB, above the limit of {WINDOW_BYTES / 1e9:.0f} GB: ask for fewer queries=, "
                f"keys= or one head=, or use reduce() or tiles(), which never hold the map."
            )
        # Head by head: a window is computed in float64 with several temporaries, and these are of one head only.
        out = torch.cat([window_weights(self._layer, text, [h], rows, columns) for h in heads])
        return out[0] if head is not None else out

    def weights_at(
        self, queries: Int[Tensor, "pairs"] | Sequence[int], keys: Int[Tensor, "pairs"] | Sequence[int], text: int = 0
    ) -> Float[Tensor, "h pairs"]:
        """The exact weights of chosen cells, all heads. Cost: O(pairs * h * d). Hidden cells are 0."""
        text = self._text(text)
        rows, columns = (torch.as_tensor(index, device="cpu") for index in (queries, keys))
        limits = {"queries": (rows, self.num_queries(text)), "keys": (columns, self.num_keys(text))}
        for name, (index, limit) in limits.items():
            if len(index) and not 0 <= int(index.min()) <= int(index.max()) < limit:
                raise ShapeError(
                    f"{name} run from {int(index.min())} to {int(index.max())}, but text {text} has {limit} of them."
                )
        return cell_weights(self._layer, text, rows, columns).to(self._layer.dtype)

    def word_weights(
        self,
        head: int | None = None,
        text: int = 0,
        how: Literal["mean", "first", "max"] = "mean",
        words: Words | str | None = None,
        *,
        key_words: Words | None = None,
        queries: slice | None = None,
        keys: slice | None = None,
        drop: Literal["none", "special", "wordless"] = "none",
    ) -> WordMap:
        """The exact map between the words of one text, `(queries, keys, weights)`: units, and the weights between them.

        - `head`: whose map; None: all of the layer, `Float[h q k]` in place of `Float[q k]`.
        - `text`: which text, from 0.
        - `how`: how pieces of a word become one number, as in `words.merge`.
        - `words`: `Words.of(layer.tokens)`, or the name of a way to find them.
        - `key_words`: for cross-attention, the words of the text that it looks at.
        - `queries`: a slice of the units that are left.
        - `keys`: a slice of the units that are left.
        - `drop`: as in `Words.units`: what is dropped is left out of the merged map, and the other weights stay as they
          are.

        Cost: O(pieces * pieces * d) time for the window's pieces (for "max", every key), the answer's memory.
        Errors: WindowError above 1 GB, RecordingError for keys that are not text, TextError, ShapeError,
        StatisticError.
        """
        text = self._text(text)
        row_words = words_of_text(words, self.tokens, text, self.num_queries(text), "words=")
        column_words = row_words
        if self.crosses and key_words is not None:
            column_words = words_of_text(key_words, self.tokens, text, self.num_keys(text), "key_words=", padded=True)
        elif self.crosses:
            raise RecordingError(
                f"{self.site.module} looks at another text, whose words this layer does not know: give them as "
                f"key_words=Words.of(tokens), with the tokens its keys come from. If they are not text (an image, "
                f"sound), use weights()."
            )
        elif key_words is not None:
            raise RecordingError(
                f"{self.site.module} looks at its own text: give that text's words as words=, without key_words=."
            )
        rows, columns = row_words.units(drop=drop), column_words.units(drop=drop)
        rows = rows[_window("queries", queries, len(rows))]
        columns = columns[_window("keys", keys, len(columns))]
        summed = column_words.units() if how == "max" else columns  # a maximum is scaled to the mass of its whole row
        num_heads = self.site.num_heads if head is None else 1
        if (size := num_heads * len(rows) * len(summed) * 4) > WINDOW_BYTES:
            raise WindowError(
                f"{num_heads} heads x {len(rows)} x {len(summed)} weights between words is {size / 1e9:.1f} GB, above "
                f"the limit of {WINDOW_BYTES / 1e9:.0f} GB: ask for fewer queries=, one head=, or fewer keys= (which "
                f"helps with how='mean' and 'first': 'max' needs every key)."
            )
        (from_words, span), (to_words, keys) = numbered(rows), numbered(summed)
        merging = Merging(from_words, to_words, how)
        step = max(1, WORD_BLOCK_CELLS // max(1, num_heads * len(to_words)))
        for row in range(span.start, max(span.stop, span.start + 1), step):
            block = self.weights(head, slice(row, min(row + step, span.stop)), keys, text)
            merging.add(block, row - span.start)
        weights = merging.weights
        if how == "max":
            place = {unit.tokens: index for index, unit in enumerate(summed)}
            weights = weights[..., [place[unit.tokens] for unit in columns]]
        return WordMap(rows, columns, weights)

    def project(
        self, features: Float[Tensor, "k f"], text: int = 0, queries: Int[Tensor, "q"] | None = None
    ) -> Float[Tensor, "h q f"]:
        """`weights @ features` for one text, without the map: one more attention call with features where v stood.

        `queries`: only these rows, in that order.
        """
        text = self._text(text)
        num_rows, num_keys = self.num_queries(text), self.num_keys(text)
        if features.shape[0] != num_keys:
            raise ShapeError(
                f"features has {features.shape[0]} rows, but text {text} has {num_keys} keys: give one row a key."
            )
        queries = None if queries is None else queries.cpu()
        if queries is not None and len(queries) and not 0 <= int(queries.min()) <= int(queries.max()) < num_rows:
            raise ShapeError(f"queries run to {int(queries.max())}, but text {text} has {num_rows} of them.")
        values = features.to(self.q.device).float()[None, None].expand(1, self.site.num_kv_heads, -1, -1).contiguous()
        trimmed = self._layer.one_text(text, slice(num_rows) if queries is None else queries, num_keys)
        q, k, mask, rule = trimmed.q.float(), trimmed.k.float(), trimmed.mask, trimmed.rule
        return attend(q, k, values, mask=mask, **rule.options).out[0]

    def tiles(self, text: int = 0, size: int = 256) -> Iterator[tuple[slice, slice, Float[Tensor, "h r c"]]]:
        """One text's map tile by tile, for your own statistics: `(rows, keys, weights)`. Hidden ones are left out."""
        text, mask = self._text(text), self.mask.expand(len(self.lengths))
        num_queries, num_keys = self.num_queries(text), self.num_keys(text)
        for row in range(0, num_queries, size):
            rows = slice(row, min(row + size, num_queries))
            start, stop = mask.start[text, rows], mask.stop[text, rows]
            for key in range(0, num_keys, size):
                keys = slice(key, min(key + size, num_keys))
                if bool(((start < keys.stop) & (stop > keys.start)).any()):
                    yield rows, keys, window_weights(self._layer, text, range(self.site.num_heads), rows, keys)

    def _text(self, text: int) -> int:
        """The text's index from the front, checked."""
        if not hasattr(text, "__index__") or not -len(self.lengths) <= text < len(self.lengths):
            raise ShapeError(f"{text=} is not in this recording: it holds {len(self.lengths)} texts, counted from 0.")
        return text % len(self.lengths)

    def mask_of(self, text: int) -> Mask:
        """The mask of one text alone."""
        return self.mask.expand(len(self.lengths)).texts(slice(text, text + 1))

    def num_queries(self, text: int) -> int:
        """How many rows one text's map has: its tokens."""
        return int(self.lengths[text])

    def num_keys(self, text: int) -> int:
        """How many keys one text's map has: its tokens, or all those of what a crossing layer looks at."""
        return self.k.shape[2] if self.crosses else int(self.lengths[text])


def _window(name: str, chosen: slice | None, length: int) -> slice:
    if chosen is not None and not isinstance(chosen, slice):
        raise ShapeError(
            f"{name} is a {type(chosen).__name__}, and a window is a slice: give {name}=slice(1, 50), or read cells of "
            f"your choice by weights_at(queries, keys)."
        )
    begin, end, step = (chosen or slice(None)).indices(length)
    if step != 1:
        raise ShapeError(f"a window has step 1, but {chosen} has step {step}: slice the result instead.")
    return slice(begin, max(begin, end))


def site_of(layer: LayerRecord) -> Site:
    return layer.site


class SmallMaps(NamedTuple):
    """The maps of a layer's heads in blocks, by the mean of the visible cells; NaN where nothing is visible.

    Position i of n falls in block `i * p // n`. `rows_read` of `rows_in_all` rows were read.
    """

    maps: Float[Tensor, "h row_blocks key_blocks"]
    rows_read: int
    rows_in_all: int


def spread_evenly(count: int, length: int) -> Int[Tensor, "count"]:
    """`count` of `length` rows: the middles of equal stretches.

    The first row of each stretch would favour rows that see few keys, where attention is causal.
    """
    return ((torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) * length / count).long()


def one_text(layer: LayerRecord, text: int, rows: Int[Tensor, "r"] | None = None) -> Layer:
    """One text of a layer as the pass reads it, trimmed; with `rows`, those rows alone, as if queries of their own."""
    chosen = slice(layer.num_queries(text)) if rows is None else rows
    batch = Layer(layer.q, layer.k, layer.lse, layer.mask, layer.rule, layer.crosses or rows is not None)
    return batch.one_text(text, chosen, layer.num_keys(text))


def small_maps(layer: LayerRecord, size: int, text: int = 0, rows_a_block: int | None = None) -> SmallMaps:
    """Every head's map of one text in at most `size x size` blocks, by mean. `rows_a_block`: no more rows than that.

    One more attention call, with a column a block of keys where the values stood. Cost: as attention itself; of a long
    text `rows_a_block` rows of each block are read, and the answer contains how many.
    Errors: ShapeError for a size below 1, or a text that is not there.
    """
    if size < 1 or not 0 <= text < len(layer.lengths):
        raise ShapeError(f"{size=}, {text=}: a map has at least one block, and there are {len(layer.lengths)} texts.")
    num_rows, num_keys = layer.num_queries(text), layer.num_keys(text)
    of_rows, of_keys = bins(num_rows, size), bins(num_keys, size)
    row_blocks, key_blocks = min(size, num_rows), min(size, num_keys)
    rows = None
    if rows_a_block is not None and num_rows > rows_a_block * row_blocks:
        count = row_blocks * rows_a_block
        place = (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) / count
        rows = (place * num_rows).long()
        of_rows = of_rows[rows]
    columns = torch.nn.functional.one_hot(of_keys, key_blocks).float()
    mass = layer.project(columns, text, rows).cpu()
    sums = mass.new_zeros(len(mass), row_blocks, key_blocks).index_add_(1, of_rows, mass)
    visible = visible_blocks(one_text(layer, text, rows).mask, of_rows, of_keys, (row_blocks, key_blocks)).float()
    maps = (sums / visible).masked_fill(visible == 0, torch.nan)
    return SmallMaps(maps, num_rows if rows is None else len(rows), num_rows)


def together(parts: Sequence[LayerRecord], places: Sequence[Sequence[int]], tokens: Tokens) -> LayerRecord:
    """One layer's record of all texts from its records of batches. `places[i]` are the texts of batch i, in its order.

    `tokens` are those of all texts as this layer reads them. What lies past a text's end sees, and is seen by, nobody.
    """
    first = parts[0]
    if len(parts) == 1 and list(places[0]) == list(range(len(first.lengths))):
        return replace(first, tokens=tokens, lengths=tokens.lengths)
    num_texts = sum(len(batch) for batch in places)
    # As wide as the widest batch: what a shorter one lacks is padding, which stays hidden.
    num_rows, num_keys = max(part.q.shape[2] for part in parts), max(part.k.shape[2] for part in parts)

    def placed(values: Sequence[Tensor], length: int, fill: float = 0.0) -> Tensor:
        # The lse of one batch may be float64, where its scores are in the hundreds.
        dtype = max((value.dtype for value in values), key=lambda dtype: dtype.itemsize)
        out = values[0].new_full((num_texts, values[0].shape[1], length, *values[0].shape[3:]), fill, dtype=dtype)
        for value, texts in zip(values, places, strict=True):
            out[list(texts), :, : value.shape[2]] = value
        return out

    # Scale, softcap and sinks are the layer's; a bias is put in each text's corner.
    biases, bias = [part.rule.bias for part in parts], None
    if any(x is not None for x in biases):
        heads = max(x.shape[1] for x in biases if x is not None)
        bias = first.q.new_zeros(num_texts, heads, num_rows, num_keys, dtype=torch.float32)
        for added, texts in zip(biases, places, strict=True):
            if added is not None:
                bias[list(texts), :, : added.shape[2], : added.shape[3]] = added.to(bias.dtype)
    start, stop = (torch.zeros(num_texts, num_rows, dtype=torch.long, device="cpu") for _ in range(2))
    dense = None
    if planes := [part.mask.dense for part in parts if part.mask.dense is not None]:
        heads = max(plane.shape[1] for plane in planes)
        dense = planes[0].new_zeros(num_texts, heads, num_rows, num_keys)
    for part, texts in zip(parts, places, strict=True):
        mask, rows = part.mask.expand(len(texts)), slice(0, part.mask.num_queries)
        start[list(texts), rows], stop[list(texts), rows] = mask.start, mask.stop
        # One dense mask makes all of them dense; runs that were proven exact give the same cells.
        if dense is not None:
            keys = slice(0, mask.num_keys)
            dense[list(texts), :, rows, keys] = part.mask.visible(rows, keys, device=dense.device)
    recorded_values = [part.v for part in parts if part.v is not None]
    because = "; ".join(dict.fromkeys(part.because for part in parts))
    return replace(
        first,
        q=placed([part.q for part in parts], num_rows),
        k=placed([part.k for part in parts], num_keys),
        v=placed(recorded_values, num_keys) if recorded_values else None,
        # -inf is the lse of a row that sees nothing, as all padding does: 0 would claim a row with weights.
        lse=placed([part.lse for part in parts], num_rows, -torch.inf),
        mask=Mask(start, stop, num_keys, dense),
        rule=first.rule if bias is None else replace(first.rule, bias=bias),
        lengths=tokens.lengths,
        tokens=tokens,
        because=because,
    )
