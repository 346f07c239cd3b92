"""Where a row stands in its text: padding before a text counted out, and what a cache holds counted in.

A cache shows how much it holds, as long as it holds everything. Layers with a window keep only its end, and layers that
look at another text keep the other text: both go by what was seen before, call after call.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.models.taps.call import AttentionCall
from manyheads.nn.masks import Mask
from manyheads.spec import CROSS

__all__ = ["Places"]


@dataclass(eq=False)
class Places:
    """Counts the rows of each layer that calls. A call that sees no more keys than it has rows begins a text anew."""

    seen: dict[str, tuple[int, Int[Tensor, "b 1"]]] = field(default_factory=dict)  # rows so far, where texts begin
    last: Int[Tensor, "b q"] | None = None  # of the last layer that read its own text

    def of(self, call: AttentionCall) -> Int[Tensor, "b q"]:
        """Each row's place in its text, from 0. To be asked once for every call, in order.

        Rows that look at another text stand where the layer before them, which read its own, had them.
        """
        num_texts, _, num_rows, _ = call.q.shape
        if call.site.stack == CROSS:
            if self.last is not None and self.last.shape == (num_texts, num_rows):
                return self.last
            return torch.arange(num_rows)[None].expand(num_texts, -1)
        mask = call.mask.expand(num_texts)
        held = max(0, int(mask.stop.max()) - num_rows) if mask.stop.numel() else 0
        first, name = _first(mask), call.site.module
        if held:
            rows, begins = self.seen.get(name, (held, first))
            held, first = max(held, rows), begins if len(begins) == num_texts else first
        self.seen[name] = (held + num_rows, first)
        self.last = (torch.arange(num_rows)[None] + held - first).clamp_min(0)
        return self.last


def _first(mask: Mask) -> Int[Tensor, "b 1"]:
    """The first key that any row of a text sees."""
    seen = mask.stop > mask.start
    return torch.where(seen, mask.start, mask.num_keys).amin(-1, keepdim=True).cpu()
