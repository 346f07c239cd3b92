"""What the queries of one call may see: by position (causal, window), and by the masks that the caller gave.

Positions are said by two numbers, so a call without masks keeps no mask at all, and the fused kernels can be told
`is_causal`. One rule places the queries: they are the *last* of the keys' positions, so that query i of Q stands at
position `i + K - Q`. In self-attention that is the plain triangle; with a cache it is the new tokens after the old.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from manyheads.nn.masks import Mask


@dataclass(frozen=True, eq=False)
class View:
    """`visible` (True = may look) is what masks leave; `causal` and `window` hide more, by position.

    `window` counts keys, the query's own among them: a key is seen where it lies less than `window` positions away.
    The last `extra` keys have no position: they are learned or zero keys that every query sees.
    """

    num_queries: int
    num_keys: int
    causal: bool = False
    window: int | None = None
    visible: Bool[Tensor, "#b #h #q k"] | None = None
    extra: int = 0

    @property
    def offset(self) -> int:
        """The position of the first query."""
        return self.num_keys - self.extra - self.num_queries

    @property
    def by_position(self) -> bool:
        """Whether positions hide anything at all. A single, last query is hidden from nothing by causality."""
        past = self.offset + self.num_queries  # how many keys have a position
        hides = self.causal and self.num_queries > 1
        return hides or (self.window is not None and not self._wider(past))

    @property
    def triangle(self) -> bool:
        """Whether this is the plain causal triangle, for which every fused kernel has a flag."""
        plain = self.window is None or self._wider(self.num_keys)
        return self.causal and plain and self.visible is None and self.extra == 0 and self.offset == 0

    def _wider(self, num_keys: int) -> bool:
        """Whether the window hides none of so many keys. A graph for texts of any length cannot know, and hides."""
        return self.window is not None and not torch.compiler.is_compiling() and self.window >= num_keys

    def dense(self, device: torch.device) -> Bool[Tensor, "#b #h #q k"] | None:
        """All of it as booleans, True = may look; None where everything is visible. Cost: O(q * k)."""
        if not self.by_position:
            return self.visible
        key = torch.arange(self.num_keys, device=device)
        ahead = key - (torch.arange(self.num_queries, device=device)[:, None] + self.offset)
        seen = ahead <= 0 if self.causal else torch.ones_like(ahead, dtype=torch.bool)
        if self.window is not None:
            seen = seen & (ahead < self.window) & (ahead > -self.window)
        if self.extra:
            seen = seen | (key >= self.num_keys - self.extra)
        return seen[None, None] if self.visible is None else seen & self.visible

    def mask(self, num_texts: int, device: torch.device) -> Mask:
        """The same as runs of keys, for `attend`, records and the tap; dense only where the rows are no runs."""
        if self.visible is None and not self.extra:
            if not self.by_position:
                return Mask.full(self.num_queries, self.num_keys, device)
            if self.causal:
                return Mask.causal(self.num_queries, self.num_keys, window=self.window, device=device)
        seen = self.dense(device)
        if seen is None:
            return Mask.full(self.num_queries, self.num_keys, device)
        texts, heads = seen.shape[:2]
        return Mask.from_dense(seen.expand(texts, heads, self.num_queries, self.num_keys))

    def last_keys(self) -> tuple[View, slice]:
        """The view of a single query, and the keys that its window leaves: the others need not be read."""
        if self.num_queries != 1 or self.extra or self.window is None or self.window >= self.num_keys:
            return self, slice(None)
        keys = slice(self.num_keys - self.window, None)
        visible = None if self.visible is None else self.visible[..., keys]
        return replace(self, num_keys=self.window, visible=visible), keys
