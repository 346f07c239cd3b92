"""`KVCache`: the keys and values of tokens already read, so that a new token costs one row and not a whole text.

One cache serves one layer. Three kinds keep a layer's own past, and one holds another text:

- `KVCache()` grows: its buffer doubles when full, so that a token is copied once or twice in all, not at every step.
- `KVCache.static(max_length)` takes all its memory at once, on first use, and refuses what does not fit.
- `KVCache.sliding(window)` keeps what a sliding window of that many keys still needs, and no more.
- `KVCache.cross()` takes a cross-attention's keys and values once and gives them back at every step.

Keys are held as attention reads them, after norm and rotation, one row a key/value head: never repeated.
`bytes = 2 * kv_heads * head_dim * positions * batch * bytes_per_value`, a layer.
"""

# pyright: reportUnnecessaryIsInstance=false
# What people give is checked, whatever its type says.
from __future__ import annotations

import weakref

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.errors import ShapeError

KINDS = ("growing", "static", "sliding", "cross")
FIRST_CAPACITY = 64  # positions of a growing buffer at first: a few doublings from any length


class KVCache:
    """Keys and values of one layer's past. `length`: positions read so far; `num_keys`: how many are still held.

    Memory is taken on first use, in the keys' own batch, heads, dtype and device. Write without gradients (generation
    runs under `torch.no_grad()`); a growing cache also keeps gradients, by concatenation.
    Errors: ShapeError for what does not fit: other shapes, dtype or device than before, or more than `static` holds.
    """

    def __init__(self, kind: str = "growing", size: int | None = None) -> None:
        if kind not in KINDS:
            raise ShapeError(f"{kind=} is no kind of cache: use one of {', '.join(KINDS)}.")
        if (kind in ("static", "sliding")) != (size is not None):
            raise ShapeError(f"{kind=} with {size=}: static and sliding caches take a size of 1 or more, others none.")
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ShapeError(f"KVCache.{kind}({size!r}): give how many positions it holds, 1 or more.")
        self.kind, self.size = kind, size
        self.reset()

    @staticmethod
    def static(max_length: int) -> KVCache:
        """A cache that holds up to `max_length` positions, all of its memory taken on first use."""
        return KVCache("static", max_length)

    @staticmethod
    def sliding(window: int) -> KVCache:
        """A cache for a layer whose sliding window is at most `window` keys: older ones are dropped."""
        return KVCache("sliding", window)

    @staticmethod
    def cross() -> KVCache:
        """A cache for cross-attention: filled by the first call, it stands for key and value in all later ones."""
        return KVCache("cross")

    def reset(self) -> None:
        """Forget everything, memory included."""
        self.length = 0
        self._first = self._end = 0
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._source: weakref.ref[Tensor] | None = None
        self._layer: weakref.ref[object] | None = None

    def serve(self, layer: object) -> None:
        """One cache serves one layer, from its first use to `reset()`. Errors: ShapeError for a second layer."""
        known = None if self._layer is None else self._layer()
        if known is not None and known is not layer and self._end:
            raise ShapeError(
                "this cache holds another layer's keys and values: give each layer a cache of its own, or reset() it."
            )
        # Weak: a cache that somebody keeps must not keep a model alive.
        self._layer = weakref.ref(layer)

    @property
    def num_keys(self) -> int:
        return self._end - self._first

    @property
    def filled(self) -> bool:
        return self._k is not None

    @property
    def cache_bytes(self) -> int:
        """Memory taken, in bytes: the buffers, whether full or not."""
        return sum(x.numel() * x.element_size() for x in (self._k, self._v) if x is not None)

    def held(self) -> tuple[Float[Tensor, "b g k d"], Float[Tensor, "b g k f"]]:
        """The keys and values held, oldest first: views of the buffer. Errors: ShapeError before the first update."""
        if self._k is None or self._v is None:
            raise ShapeError("this cache holds nothing yet: call the layer with it first.")
        rows = slice(self._first, self._end)
        return self._k[:, :, rows], self._v[:, :, rows]

    def update(
        self, k: Float[Tensor, "b g k d"], v: Float[Tensor, "b g k f"]
    ) -> tuple[Float[Tensor, "b g n d"], Float[Tensor, "b g n f"]]:
        """Add new keys and values; get all that the new queries may need, the new ones last."""
        new = k.shape[2]
        if self._k is not None:
            self._check(k, v)
        if self.kind == "cross" and self.filled:
            raise ShapeError("this cross cache is filled, and takes one text: reset() it for another.")
        if self.kind == "static" and self.length + new > (self.size or 0):
            raise ShapeError(
                f"{new} new positions after {self.length} make {self.length + new}, but this static cache holds "
                f"{self.size}: make it KVCache.static({self.length + new}) or more."
            )
        tracked = torch.is_grad_enabled() and (k.requires_grad or v.requires_grad)
        if tracked and self.kind in ("static", "sliding"):
            raise ShapeError(
                f"k and v carry gradients, and a {self.kind} cache is written in place: decode under torch.no_grad()."
            )
        if self.kind == "sliding":  # the next query sees itself and the size - 1 keys before it
            # Before the new ones come in: their queries still need the
            # window before them, so more than a window may be held.
            self._first = max(self._first, self._end - ((self.size or 1) - 1))
        # Autograd must see each step as a tensor of its own: a
        # buffer written in place would lose what the gradient needs.
        if tracked or self.kind == "cross":
            self._append(k, v)
        else:
            self._write(k, v)
        self.length += new
        return self.held()

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on: to take back rejected tokens. What slid out stays out."""
        # A sliding cache cannot give back what slid out: cropped below that, rows would lack keys that they should see.
        num_left = self.num_keys - (self.length - length)
        if not 0 <= length <= self.length or (num_left < min(length, self.size or 0) and self.kind == "sliding"):
            raise ShapeError(f"crop({length}): this cache has read {self.length} positions and holds {self.num_keys}.")
        self._end = self._first + num_left
        self.length = length

    def reorder(self, index: Int[Tensor, "b"]) -> None:
        """Batch row i becomes what row `index[i]` was: for beam search."""
        if self._k is not None and self._v is not None:
            self._k, self._v = self._k[index], self._v[index]

    def stands_for(self, source: Tensor | None, query: Tensor) -> None:
        """Filled cross caches are asked whether this is the text they hold, and where `query` is.

        Errors: ShapeError where the text is another one, or on another device.
        """
        if self._k is not None and self._k.device != query.device:
            raise ShapeError(
                f"query is on {query.device}, but this cross cache holds keys on {self._k.device}: reset() it after "
                f"moving the layer."
            )
        if source is not None and (self._source is None or self._source() is not source):
            raise ShapeError("this cross cache holds another text's keys: leave key out, or reset() the cache first.")

    def remember(self, source: Tensor) -> None:
        """Which text a cross cache holds: not the text itself, which may go."""
        if self.kind == "cross":
            self._source = weakref.ref(source)

    def _append(self, k: Tensor, v: Tensor) -> None:
        if self._k is not None:
            old_k, old_v = self.held()
            k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
        self._k, self._v, self._first, self._end = k, v, 0, k.shape[2]

    def _write(self, k: Tensor, v: Tensor) -> None:
        new, capacity_used = k.shape[2], self.num_keys
        if self._k is None or self._v is None or self._end + new > self._k.shape[2]:
            capacity = self._capacity(capacity_used + new)
            rows = slice(self._first, self._end)
            # New buffers, not shifted ones: source and target of a copy within one buffer would overlap.
            buffers = [x.new_empty(*x.shape[:2], capacity, x.shape[3]) for x in (k, v)]
            for buffer, old in zip(buffers, (self._k, self._v), strict=True):
                if old is not None:
                    buffer[:, :, :capacity_used] = old[:, :, rows]
            (self._k, self._v), self._first, self._end = buffers, 0, capacity_used
        rows = slice(self._end, self._end + new)
        self._k[:, :, rows], self._v[:, :, rows] = k.detach(), v.detach()
        self._end += new

    def _capacity(self, needed: int) -> int:
        if self.kind == "static":
            return self.size or 0
        if self.kind == "sliding":  # room for as many again: what is kept moves to the front once in a window
            return needed + (self.size or 0)
        # The first text may be all there is. From then on twice as much: a token is copied once or twice in all.
        return max(FIRST_CAPACITY, 2 * needed if self._k is not None else needed)

    def _check(self, k: Tensor, v: Tensor) -> None:
        for name, new, old in (("k", k, self._k), ("v", v, self._v)):
            assert old is not None
            want, shape = (*old.shape[:2], old.shape[3]), (*new.shape[:2], new.shape[3])
            if want != shape:
                raise ShapeError(
                    f"{name} has (batch, key/value heads, width) {shape}, but this cache holds {want}: one cache "
                    f"serves one layer and one batch; reset() it for another."
                )
            if (new.dtype, new.device) != (old.dtype, old.device):
                raise ShapeError(
                    f"{name} is {new.dtype} on {new.device}, but this cache holds {old.dtype} on {old.device}: "
                    f"reset() it after moving the layer."
                )

    def __repr__(self) -> str:
        size = "" if self.size is None else f", size={self.size}"
        return f"KVCache({self.kind}{size}; {self.length} read, {self.num_keys} held, {self.cache_bytes:,} bytes)"
