"""A recording: q, k and each row's lse of every layer, from which any weight can be rebuilt exactly.

`weight[i, j] = exp(score(q_i, k_j) - lse_i)`: n numbers a row were a map, d + 1 are a record. A layer's texts are
left-aligned, padding rolled away. A question costs no more than its answer needs: chosen cells from q and k, statistics
of the whole map by one pass over tiles, a window of the map for people's eyes, and small maps for a grid of all heads.
Sources: Dao 2023 (lse), docs/decisions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.base import html_table
from manyheads.errors import RecordingError, ShapeError, WindowError
from manyheads.nn import Mask, Rule, attend
from manyheads.recording.exact_map.cells import cell_weights, window_weights
from manyheads.recording.exact_map.one_pass import Layer, Reduced, prepare
from manyheads.recording.exact_map.requests import Received, Request, bins, visible_blocks
from manyheads.recording.media import Frames, Grid, frames_of, grid_of
from manyheads.recording.tokens import Tokens
from manyheads.recording.words import Merging, WordMap, Words, numbered, words_of_text
from manyheads.spec import CROSS, Site

__all__ = ["SmallMaps", "one_text", "small_maps"]


WINDOW_BYTES = 1_000_000_000  # the largest dense window of weights that is handed out
SHOWN_TEXT = 120  # characters of the first text in a notebook
WORD_BLOCK_CELLS = 1 << 22  # weights of pieces held while words are merged: 16 MB, beside which the answer is large


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """One attention layer over a batch of texts. `v` is None unless it was kept; `because` says what gave the lse.

    Where keys are other tokens than queries (cross-attention), `lengths` are the queries' and every key is kept.
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

    @cached_property
    def _layer(self) -> Layer:
        return Layer(self.q, self.k, self.lse, self.mask, self.rule, self.crosses)

    @property
    def crosses(self) -> bool:
        """Whether keys are other tokens than queries."""
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
        rows, columns = _window(queries, self.num_queries(text)), _window(keys, self.num_keys(text))
        heads = range(self.site.num_heads) if head is None else [self._head(head)]
        size = len(heads) * (rows.stop - rows.start) * (columns.stop - columns.start) * 4
        if size > WINDOW_BYTES:
            raise WindowError(
                f"a window of {len(heads)} heads x {rows.stop - rows.start} x {columns.stop - columns.start} weights "
                f"is {size / 1e9:.1f} GB, above the limit of {WINDOW_BYTES / 1e9:.0f} GB: ask for fewer queries=, "
                f"keys= or one head=, or use reduce() or tiles(), which never hold the map."
            )
        out = torch.cat([window_weights(self._layer, text, [h], rows, columns) for h in heads])
        return out[0] if head is not None else out

    def weights_at(
        self, queries: Int[Tensor, "pairs"], keys: Int[Tensor, "pairs"], text: int = 0
    ) -> Float[Tensor, "h pairs"]:
        """The exact weights of chosen cells, all heads. Cost: O(pairs * h * d). Hidden cells are 0."""
        text, queries, keys = self._text(text), torch.as_tensor(queries), torch.as_tensor(keys)
        limits = {"queries": (queries, self.num_queries(text)), "keys": (keys, self.num_keys(text))}
        for name, (index, limit) in limits.items():
            if len(index) and not 0 <= int(index.min()) <= int(index.max()) < limit:
                raise ShapeError(
                    f"{name} run from {int(index.min())} to {int(index.max())}, but text {text} has {limit} of them."
                )
        return cell_weights(self._layer, text, queries, keys).to(self.lse.dtype)

    def word_weights(
        self,
        head: int | None = None,
        text: int = 0,
        how: str = "mean",
        words: Words | str | None = None,
        *,
        key_words: Words | None = None,
        queries: slice | None = None,
        keys: slice | None = None,
        drop: str = "none",
    ) -> WordMap:
        """The exact map between the words of one text, `(queries, keys, weights)`: units, and `Float[q k]` between them
        (`Float[h q k]` where `head` is None).

        `words` are `Words.of(layer.tokens)`, or the name of a way to find them; `how` as in `words.merge`; `drop` as in
        `Words.units`: what is dropped is left out of the merged map, and the other weights stay as they are.
        `queries` and `keys` slice the units that are left. Cross-attention needs `key_words`, of the text it looks at.
        Cost: O(pieces * pieces * d) time for the window's pieces (for "max", every key), the answer's memory.
        Errors: WindowError above 1 GB, RecordingError for keys that are no text, TextError, ShapeError, StatisticError.
        """
        text = self._text(text)
        row_words = words_of_text(words, self.tokens, text, self.num_queries(text), "words=")
        column_words = self._key_words(row_words, key_words, text)
        rows, columns = row_words.units(drop=drop), column_words.units(drop=drop)
        rows = rows[_window(queries, len(rows))]
        columns = columns[_window(keys, len(columns))]
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

    def _key_words(self, row_words: Words, key_words: Words | None, text: int) -> Words:
        """The words of the text that keys are from."""
        if not self.crosses and key_words is None:
            return row_words
        if not self.crosses:
            raise RecordingError(
                f"{self.site.module} looks at its own text: give that text's words as words=, without key_words=."
            )
        if key_words is None:
            raise RecordingError(
                f"{self.site.module} looks at another text, whose words this layer does not know: give them as "
                f"key_words=Words.of(tokens), with the tokens its keys come from. If they are no text (an image, "
                f"sound), use weights()."
            )
        return words_of_text(key_words, self.tokens, text, self.num_keys(text), "key_words=", padded=True)

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
        if queries is not None and len(queries) and not 0 <= int(queries.min()) <= int(queries.max()) < num_rows:
            raise ShapeError(f"queries run to {int(queries.max())}, but text {text} has {num_rows} of them.")
        values = features.float()[None, None].expand(1, self.site.num_kv_heads, -1, -1).contiguous()
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
        if not -len(self.lengths) <= text < len(self.lengths):
            raise ShapeError(f"{text=} is not in this recording: it holds {len(self.lengths)} texts, counted from 0.")
        return text % len(self.lengths)

    def num_queries(self, text: int) -> int:
        """How many rows one text's map has: its tokens."""
        return int(self.lengths[text])

    def num_keys(self, text: int) -> int:
        """How many keys one text's map has: its tokens, or all those of what a crossing layer looks at."""
        return self.k.shape[2] if self.crosses else int(self.lengths[text])

    def _head(self, head: int) -> int:
        if not isinstance(head, int) or not 0 <= head < self.site.num_heads:
            raise ShapeError(f"{head=} is not in layer {self.site.layer}: it has heads 0 to {self.site.num_heads - 1}.")
        return head


def _window(chosen: slice | None, length: int) -> slice:
    begin, end, step = (chosen or slice(None)).indices(length)
    if step != 1:
        raise ShapeError(f"a window has step 1, but {chosen} has step {step}: slice the result instead.")
    return slice(begin, max(begin, end))


@dataclass(frozen=True, eq=False)
class Recording:
    """What every attention layer did with some texts: `rec.layers[3]`, or `rec.stacks["cross"][3]` of several stacks.

    `provenance` says which model, dtype, backend and guard error it comes from.
    """

    stacks: Mapping[str, Sequence[LayerRecord]]
    tokens: Tokens
    provenance: Mapping[str, object] = field(default_factory=dict)

    @property
    def layers(self) -> Sequence[LayerRecord]:
        """The layers of the only stack. Errors: RecordingError where there are several."""
        if len(self.stacks) != 1:
            named = ", ".join(name or "''" for name in self.stacks)
            raise RecordingError(
                f"this recording has {len(self.stacks)} stacks of layers ({named}): "
                f"say which, as in rec.stacks[{next(iter(self.stacks), '')!r}][0]."
            )
        return next(iter(self.stacks.values()))

    @property
    def grid(self) -> Grid:
        """Where the patches of a recorded picture are. Errors: RecordingError where there is none, with the reason."""
        return grid_of(self)

    @property
    def frames(self) -> Frames:
        """When the frames of a recorded sound begin. Errors: RecordingError where that is unknown, with the reason."""
        return frames_of(self)

    @property
    def num_bytes(self) -> int:
        """The size of its tensors."""
        parts = [x for stack in self.stacks.values() for layer in stack for x in (layer.q, layer.k, layer.v, layer.lse)]
        return sum(x.numel() * x.element_size() for x in parts if x is not None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, whole or not at all. Errors: FileAccessError."""
        # The writer stands above recordings, and reads them; a recording hands itself over.
        from manyheads.recording.file.write import save_recording

        save_recording(self, path)

    def __repr__(self) -> str:
        stacks = ", ".join(f"{name or 'layers'}: {len(layers)}" for name, layers in self.stacks.items())
        lengths = self.tokens.lengths.tolist()
        span = f"{min(lengths, default=0)}-{max(lengths, default=0)} tokens"
        return f"Recording({stacks}; {len(lengths)} texts of {span}, {self.num_bytes / 1e6:.1f} MB)"

    def _repr_html_(self) -> str:
        """A notebook's view: a row a layer, and how the first text begins."""
        columns = ["stack", "layer", "heads", "key/value heads", "queries", "keys", "module", "weights from"]
        rows: list[list[str | int]] = []
        for name, layers in self.stacks.items():
            for layer in layers:
                site, most = layer.site, max(layer.lengths.tolist(), default=0)
                keys = layer.k.shape[2] if layer.crosses else most
                sizes = (site.num_heads, site.num_kv_heads, most, keys)
                rows.append([name, site.layer, *sizes, site.module, layer.because])
        if len(self.stacks) < 2:
            columns, rows = columns[1:], [row[1:] for row in rows]
        text = self.tokens.texts[0] if self.tokens.texts else ""
        dots = "..." if len(text) > SHOWN_TEXT else ""
        note = f"The text begins: {text[:SHOWN_TEXT]}{dots}" if text else ""
        return html_table(columns, rows, caption=repr(self), note=note)


# -------------------------------------------------------------------------------------------------- one text of a layer


class SmallMaps(NamedTuple):
    """The maps of a layer's heads in blocks, by the mean of the visible cells; NaN where nothing is visible.

    Position i of n falls in block `i * p // n`. `rows_read` of `rows_in_all` rows were read.
    """

    maps: Float[Tensor, "h row_blocks key_blocks"]
    rows_read: int
    rows_in_all: int


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
        place = (torch.arange(row_blocks * rows_a_block, dtype=torch.float64) + 0.5) / (row_blocks * rows_a_block)
        rows = (place * num_rows).long()
        of_rows = of_rows[rows]
    columns = torch.nn.functional.one_hot(of_keys, key_blocks).float()
    mass = layer.project(columns, text, rows)
    sums = mass.new_zeros(len(mass), row_blocks, key_blocks).index_add_(1, of_rows, mass)
    visible = visible_blocks(one_text(layer, text, rows).mask, of_rows, of_keys, (row_blocks, key_blocks)).float()
    maps = (sums / visible).masked_fill(visible == 0, torch.nan)
    return SmallMaps(maps, num_rows if rows is None else len(rows), num_rows)
