"""What a row may see, as one run of keys: two integers a row instead of an n x n matrix.

Full, causal, cached, sliding-window, chunked, packed and padded attention all let a query see one contiguous
run of keys, `start <= key < stop`. Two vectors say it exactly, at any length; chance levels follow from
cumulative sums. They live on the host, wherever the model is: loops over blocks ask them where to go on.
Only where a mask is *proven* not to fit (`Mask.from_dense` checks every row) is it kept dense.
An empty run (`start == stop`) is a row that sees nothing: its weights and its output are zero, its lse is -inf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.errors import ShapeError

DENSE_ROWS = 512  # rows of a dense mask looked at together: bounds the temporaries of from_dense


@dataclass(frozen=True, eq=False)
class Mask:
    """Runs of visible keys: row i of text b sees keys `start[b, i] <= key < stop[b, i]`.

    `dense` (True = may look) is set only where some row's keys are not a run; `start` and `stop` then bound it. It
    stays on the device where it was made. Runs are moved to the host, once; what a mask answers about itself is there
    too.
    """

    start: Int[Tensor, "b q"]
    stop: Int[Tensor, "b q"]
    num_keys: int
    dense: Bool[Tensor, "#b h q k"] | None = None

    def __post_init__(self) -> None:
        if self.start.device.type != "cpu":
            runs = torch.stack([self.start, self.stop]).cpu()  # together: each copy is a wait
            object.__setattr__(self, "start", runs[0])
            object.__setattr__(self, "stop", runs[1])

    @staticmethod
    def full(num_queries: int, num_keys: int) -> Mask:
        """Every row sees every key."""
        start = torch.zeros(1, num_queries, dtype=torch.long, device="cpu")
        return Mask(start, torch.full_like(start, num_keys), num_keys)

    @staticmethod
    def causal(
        num_queries: int,
        num_keys: int,
        *,
        offset: int | None = None,
        window: int | None = None,
    ) -> Mask:
        """Row i sees keys up to `i + offset`, at most the last `window` of them.

        `offset` defaults to `num_keys - num_queries`: the last query sees the last key, as with a cache.
        (`offset=0` is the top-left alignment of torch's own `is_causal`.)
        """
        if window is not None and window < 1:
            raise ShapeError(f"{window=} lets a row see nothing, not even its own token: give 1 or more, or None.")
        offset = num_keys - num_queries if offset is None else offset
        stop = (torch.arange(num_queries, device="cpu")[None] + 1 + offset).clamp(0, num_keys)
        start = torch.zeros_like(stop) if window is None else (stop - window).clamp_min(0)
        return Mask(start, stop, num_keys)

    @staticmethod
    def from_lengths(lengths: Int[Tensor, "b"], num_queries: int, num_keys: int) -> Mask:
        """Rows of text b see its first `lengths[b]` keys; rows past the length see nothing."""
        lengths, rows = lengths.cpu(), torch.arange(num_queries, device="cpu")[None]
        stop = torch.where(rows < lengths[:, None], lengths[:, None], 0).long()
        return Mask(torch.zeros_like(stop), stop, num_keys)

    @staticmethod
    def from_dense(visible: Bool[Tensor, "b h q k"]) -> Mask:
        """Read runs off a dense mask (True = may look), proving for every row that they say the same.

        Cost: one pass over the mask, O(b * q) memory besides it. A head axis of size 1 is the usual case; masks
        that differ between heads, or rows that are not a run, stay dense.
        """
        num_texts, num_heads, num_queries, num_keys = visible.shape
        start = torch.zeros(num_texts, num_queries, dtype=torch.long, device=visible.device)
        stop, holes = torch.zeros_like(start), torch.zeros((), dtype=torch.bool, device=visible.device)
        if not visible.numel():
            return Mask(start, stop, num_keys)
        for row in range(0, num_queries, DENSE_ROWS):
            rows = slice(row, row + DENSE_ROWS)
            block = visible[:, :, rows].any(1) if num_heads > 1 else visible[:, 0, rows]
            if num_heads > 1:
                holes |= (visible[:, :, rows] != block[:, None]).any()
            count, first = block.sum(-1), block.to(torch.uint8).argmax(-1)
            last = num_keys - block.flip(-1).to(torch.uint8).argmax(-1)
            start[:, rows], stop[:, rows] = first, torch.where(count > 0, last, first)
            # As many visible keys as the run is long: only then is there no hole between its first and its last.
            holes |= (stop[:, rows] - start[:, rows] != count).any()
        return Mask(start, stop, num_keys, visible if bool(holes) else None)

    @property
    def num_queries(self) -> int:
        return self.start.shape[1]

    def counts(self) -> Int[Tensor, "b q"]:
        """How many keys each row sees (over all heads, where heads differ)."""
        return self._counts

    @cached_property
    def _counts(self) -> Int[Tensor, "b q"]:
        return self.stop - self.start if self.dense is None else self.dense.any(1).sum(-1).cpu()

    @cached_property
    def has_empty_rows(self) -> bool:
        """Whether some row sees nothing."""
        return bool((self._counts == 0).any())

    @cached_property
    def sees_ahead(self) -> bool:
        """Whether some row sees past its own place (of rows with a cache, which begin after the past)."""
        past = max(0, self.num_keys - self.num_queries)
        last_key = torch.arange(self.num_queries, device="cpu")[None] + 1 + past
        return bool((self.stop > last_key).any())

    def uniform_mass(self, column: Float[Tensor, "#b k"]) -> Float[Tensor, "b q"]:
        """The exact chance level: the mass on `column` if a row spread its weight evenly over what it may see.

        By cumulative sums, O(b * k), float64. A row that sees nothing has no chance level: 0. Where heads see
        different keys, the mean of their levels.
        """
        column = column.double()
        if self.dense is not None:
            visible, num_keys = self.dense.double(), self.dense.sum(-1)
            levels = (visible @ column.to(visible.device)[:, None, :, None])[..., 0] / num_keys.clamp_min(1)
            return (levels.sum(1) / (num_keys > 0).sum(1).clamp_min(1)).cpu()
        num_texts = max(self.start.shape[0], column.shape[0])
        # A 0 before the first: a run's mass is then one difference, also of a run that begins at the first key.
        sums = torch.nn.functional.pad(column.cumsum(-1), (1, 0)).expand(num_texts, -1)
        start, stop = self.start.expand(num_texts, -1), self.stop.expand(num_texts, -1)
        return (sums.gather(1, stop) - sums.gather(1, start)) / (stop - start).clamp_min(1)

    def visible(
        self, rows: slice, keys: slice, heads: Sequence[int] | None = None, device: torch.device | str = "cpu"
    ) -> Bool[Tensor, "b h r c"]:
        """A dense window of the mask (True = may look), of some heads; the head axis has size 1 unless heads differ."""
        if self.dense is not None:
            window = self.dense[:, :, rows, keys]
            window = window if heads is None or window.shape[1] == 1 else window[:, list(heads)]
            return window.to(device, non_blocking=torch.device(device).type != "cpu")
        index = torch.arange(self.num_keys, device=device)[keys]
        # Two numbers a row are sent, and the cells are made where they are needed.
        start, stop = (runs[:, rows, None].to(device, non_blocking=True) for runs in (self.start, self.stop))
        return ((index >= start) & (index < stop))[:, None]

    def texts(self, chosen: slice | Tensor) -> Mask:
        """The mask of some texts; a mask that all texts share stays shared."""
        if self.start.shape[0] == 1 and (self.dense is None or self.dense.shape[0] == 1):
            return self
        dense = None if self.dense is None else self.dense.expand(self.start.shape[0], -1, -1, -1)[chosen]
        return Mask(self.start[chosen], self.stop[chosen], self.num_keys, dense)

    def expand(self, num_texts: int) -> Mask:
        """One row of runs for each text, so that texts may be treated differently."""
        if self.start.shape[0] not in (1, num_texts):
            raise ShapeError(f"a mask of {self.start.shape[0]} texts cannot serve {num_texts=}: give 1 or {num_texts}.")
        return Mask(self.start.expand(num_texts, -1), self.stop.expand(num_texts, -1), self.num_keys, self.dense)

    def trimmed(
        self, first: Int[Tensor, "b"], lengths: Int[Tensor, "b"], texts: Int[Tensor, "b"] | None = None
    ) -> Mask:
        """The mask after every text is rolled left by `first[b]` and cut to `lengths[b]`, rows and keys alike.

        `texts`: of which text of this mask each new one is, where several were packed into one; by default its own.
        Padding rows come out empty. Use it for self-attention, where rows and keys are the same tokens.
        """
        mask, longest = self, int(lengths.max()) if len(lengths) else 0
        if texts is None:
            mask, texts = self.expand(len(lengths)), torch.arange(len(lengths), device="cpu")
        row = torch.arange(longest, device="cpu")[None]
        source = (row + first[:, None]).clamp_max(max(self.num_queries - 1, 0))
        start = (mask.start[texts[:, None], source] - first[:, None]).clamp_min(0)
        stop = torch.minimum(mask.stop[texts[:, None], source] - first[:, None], lengths[:, None])
        # An empty run must be 0 to 0: left where it was rolled to, its ends might lie outside of the text.
        alive = (row < lengths[:, None]) & (stop > start)
        start, stop = torch.where(alive, start, 0), torch.where(alive, stop, 0)
        if mask.dense is None:
            return Mask(start, stop, longest)
        # Cells outside a text are hidden, so the texts are copied into zeros one by one.
        dense = mask.dense.new_zeros(len(lengths), mask.dense.shape[1], longest, longest)
        untrimmed = mask.dense.expand(len(mask.start), -1, -1, -1)
        for text in range(len(lengths)):
            begin, length = int(first[text]), int(lengths[text])
            span = slice(begin, begin + length)
            dense[text, :, :length, :length] = untrimmed[int(texts[text]), :, span, span]
        return Mask(start, stop, longest, dense)
