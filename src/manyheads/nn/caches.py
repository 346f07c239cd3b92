"""`KVCache`: the keys and values of tokens already read, so that a new token costs one row and not a whole text.

One cache serves one layer. Three kinds keep a layer's own past, and one holds another text:

- `KVCache()` grows: its buffer doubles when full, so that a token is copied once or twice in all, not at every step.
- `KVCache.static(max_length)` takes all its memory at once, on first use, and refuses what does not fit.
- `KVCache.sliding(window)` keeps what a sliding window of that many keys still needs, and no more.
- `KVCache.cross()` takes a cross-attention's keys and values once and gives them back at every step.

Keys are held as attention reads them, after norm and rotation, one row a key/value head: never repeated.
`bytes = 2 * kv_heads * head_dim * positions * batch * bytes_per_value`, a layer.

With `dtype=torch.int8` each head's key and value of a token is held as whole numbers from -127 to 127 and one scale,
its largest number / 127, in bfloat16: head_dim + 2 bytes where a half type has 2 * head_dim. What a call brings, that
call reads as it is; what the call finds is rounded, by half a scale at most, and unpacked while the call runs.
"""

# pyright: reportUnnecessaryIsInstance=false
# What people give is checked, whatever its type says.
from __future__ import annotations

import copy
import weakref
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.base import one_of
from manyheads.errors import ShapeError

Kind = Literal["growing", "static", "sliding", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LARGEST = 127  # of an int8 cache's whole numbers: symmetric, so that -x is held as well as x
FIRST_CAPACITY = 64  # positions of a growing buffer at first: a few doublings from any length


class KVCache:
    """Keys and values of one layer's past. `length`: positions read so far; `num_keys`: how many are still held.

    Memory is taken on first use, in the keys' own batch, heads and device, in their own dtype or in int8. Write without
    gradients (generation runs under `torch.no_grad()`); a growing cache also keeps gradients, by concatenation.
    Errors: ShapeError for what does not fit: other shapes, dtype or device than before, or more than `static` holds.
    """

    def __init__(self, kind: Kind = "growing", size: int | None = None, *, dtype: torch.dtype | None = None) -> None:
        one_of("kind", kind, KINDS, ShapeError, "is not a kind of cache")
        if (kind in ("static", "sliding")) != (size is not None):
            raise ShapeError(f"{kind=} with {size=}: static and sliding caches take a size of 1 or more, others none.")
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ShapeError(f"KVCache.{kind}({size!r}): give how many positions it holds, 1 or more.")
        if dtype not in (None, torch.int8):
            raise ShapeError(f"{dtype=}: a cache holds keys and values in their own dtype (None) or in torch.int8.")
        self.kind, self.size, self.dtype = kind, size, dtype
        self.reset()

    @staticmethod
    def static(max_length: int, *, dtype: torch.dtype | None = None) -> KVCache:
        """A cache that holds up to `max_length` positions, all of its memory taken on first use."""
        return KVCache("static", max_length, dtype=dtype)

    @staticmethod
    def sliding(window: int, *, dtype: torch.dtype | None = None) -> KVCache:
        """A cache for a layer whose sliding window is at most `window` keys: older ones are dropped."""
        return KVCache("sliding", window, dtype=dtype)

    @staticmethod
    def cross(*, dtype: torch.dtype | None = None) -> KVCache:
        """A cache for cross-attention: filled by the first call, it stands for key and value in all later ones."""
        return KVCache("cross", dtype=dtype)

    def reset(self) -> None:
        """Forget everything, memory included."""
        self.length = 0
        self._first = self._end = 0
        # Keys and values, then in an int8 cache their scales: each [b, g, capacity, width].
        self._parts: tuple[Tensor, ...] = ()
        self._own_dtypes: tuple[torch.dtype, ...] = ()  # of the keys and values that came
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
        return bool(self._parts)

    @property
    def cache_bytes(self) -> int:
        """Memory taken, in bytes: the buffers, whether full or not, and the scales of an int8 cache."""
        return sum(part.numel() * part.element_size() for part in self._parts)

    def held(self) -> tuple[Float[Tensor, "b g k d"], Float[Tensor, "b g k f"]]:
        """The keys and values held, oldest first: views of the buffer, or an int8 cache's unpacked into their dtype.

        Errors: ShapeError before the first update.
        """
        if not self._parts:
            raise ShapeError("this cache holds nothing yet: call the layer with it first.")
        k, v, *scales = (part[:, :, self._first : self._end] for part in self._parts)
        if scales:
            # The product in float32: in a half type the scale's own rounding would come on top.
            parts = zip((k, v), scales, self._own_dtypes, strict=True)
            k, v = ((numbers.float() * scale.float()).to(dtype) for numbers, scale, dtype in parts)
        return k, v

    def update(
        self, k: Float[Tensor, "b g k d"], v: Float[Tensor, "b g k f"]
    ) -> tuple[Float[Tensor, "b g n d"], Float[Tensor, "b g n f"]]:
        """Add new keys and values; get all that the new queries may need, the new ones last."""
        new = k.shape[2]
        for name, x, old, dtype in zip("kv", (k, v), self._parts, self._own_dtypes, strict=False):  # none at first
            want, shape = (*old.shape[:2], old.shape[3]), (*x.shape[:2], x.shape[3])
            if want != shape:
                raise ShapeError(
                    f"{name} has (batch, key/value heads, width) {shape}, but this cache holds {want}: one cache "
                    f"serves one layer and one batch; reset() it for another."
                )
            if (x.dtype, x.device) != (dtype, old.device):
                raise ShapeError(
                    f"{name} is {x.dtype} on {x.device}, but this cache holds {dtype} on {old.device}: "
                    f"reset() it after moving the layer."
                )
        if self.kind == "cross" and self.filled:
            raise ShapeError("this cross cache is filled, and takes one text: reset() it for another.")
        if self.kind == "static" and self.length + new > (self.size or 0):
            raise ShapeError(
                f"{new} new positions after {self.length} make {self.length + new}, but this static cache holds "
                f"{self.size}: make it KVCache.static({self.length + new}) or more."
            )
        tracked = torch.is_grad_enabled() and (k.requires_grad or v.requires_grad)
        if tracked and (self.kind in ("static", "sliding") or self.dtype is not None):
            how = "is written in place" if self.dtype is None else "rounds to int8"
            raise ShapeError(f"k and v carry gradients, and a {self.kind} cache {how}: decode under torch.no_grad().")
        if self.kind == "sliding":  # the next query sees itself and the size - 1 keys before it
            # Before the new ones come in: their queries still need the
            # window before them, so more than a window may be held.
            self._first = max(self._first, self._end - ((self.size or 1) - 1))
        # Autograd must see each step as a tensor of its own: a
        # buffer written in place would lose what the gradient needs.
        self._own_dtypes = (k.dtype, v.dtype)
        if self.dtype is not None:
            packed = [_packed(x) for x in (k, v)]
            self._write(packed[0][0], packed[1][0], packed[0][1], packed[1][1])
        elif tracked or self.kind == "cross":
            all_k, all_v = k, v
            if self._parts:
                old_k, old_v = self.held()
                all_k, all_v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
            self._parts, self._first, self._end = (all_k, all_v), 0, all_k.shape[2]
        else:
            self._write(k, v)
        self.length += new
        keys_and_values = self.held()
        if self.dtype is not None:
            # This call reads its own tokens as they are, so that a prompt read at once has no error at all.
            for unpacked, x in zip(keys_and_values, (k, v), strict=True):
                unpacked[:, :, unpacked.shape[2] - new :] = x
        return keys_and_values

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on: to take back rejected tokens. Positions that slid out stay out."""
        # A sliding cache cannot give back what slid out: cropped below that, rows would lack keys that they should see.
        num_left = self.num_keys - (self.length - length)
        if not 0 <= length <= self.length or (num_left < min(length, self.size or 0) and self.kind == "sliding"):
            raise ShapeError(f"crop({length}): this cache has read {self.length} positions and holds {self.num_keys}.")
        self._end = self._first + num_left
        self.length = length

    def reorder(self, index: Int[Tensor, "b"]) -> None:
        """Batch row i becomes what row `index[i]` was: for beam search."""
        self._parts = tuple(part[index] for part in self._parts)

    def stands_for(self, source: Tensor | None, query: Tensor) -> None:
        """Filled cross caches are asked whether this is the text they hold, and where `query` is.

        Errors: ShapeError where the text is another one, or on another device.
        """
        if self._parts and self._parts[0].device != query.device:
            raise ShapeError(
                f"query is on {query.device}, but this cross cache holds keys on {self._parts[0].device}: reset() it "
                f"after moving the layer."
            )
        if source is not None and (self._source is None or self._source() is not source):
            raise ShapeError("this cross cache holds another text's keys: leave key out, or reset() the cache first.")

    def remember(self, source: Tensor) -> None:
        """Remember which text a cross cache holds, without keeping the text itself."""
        if self.kind == "cross":
            self._source = weakref.ref(source)

    def _write(self, *parts: Tensor) -> None:
        new, capacity_used = parts[0].shape[2], self.num_keys
        if not self._parts or self._end + new > self._parts[0].shape[2]:
            needed = capacity_used + new
            if self.kind == "static":
                capacity = self.size or 0
            elif self.kind == "sliding":  # room for as many again: what is kept moves to the front once in a window
                capacity = needed + (self.size or 0)
            elif self.kind == "cross":  # never grows
                capacity = needed
            else:
                # The first text may be all there is. From then on twice as much: a token is copied once or twice.
                capacity = max(FIRST_CAPACITY, 2 * needed if self._parts else needed)
            rows = slice(self._first, self._end)
            # New buffers, not shifted ones: source and target of a copy within one buffer would overlap.
            buffers = tuple(part.new_empty(*part.shape[:2], capacity, part.shape[3]) for part in parts)
            for buffer, old in zip(buffers, self._parts, strict=False):  # none at first
                buffer[:, :, :capacity_used] = old[:, :, rows]
            self._parts, self._first, self._end = buffers, 0, capacity_used
        rows = slice(self._end, self._end + new)
        for buffer, part in zip(self._parts, parts, strict=True):
            buffer[:, :, rows] = part.detach()
        self._end += new

    def __getstate__(self) -> dict[str, Any]:
        """A pickle has what is held, and not whose it is: the first layer that uses it makes it its own."""
        return {**vars(self), "_source": None, "_layer": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        """A copy in this process serves the same layer, and a cross cache's holds the same text."""
        new = KVCache.__new__(KVCache)
        memo[id(self)] = new
        vars(new).update(copy.deepcopy(vars(self), memo))
        return new

    def __repr__(self) -> str:
        size = ("" if self.size is None else f", size={self.size}") + ("" if self.dtype is None else ", int8")
        return f"KVCache({self.kind}{size}; {self.length} read, {self.num_keys} held, {self.cache_bytes:,} bytes)"


def _packed(x: Float[Tensor, "b g n d"]) -> tuple[Int[Tensor, "b g n d"], Float[Tensor, "b g n 1"]]:
    """Whole numbers from -127 to 127 and a scale a row: `numbers * scale` is x to half a scale.

    A row that holds NaN or infinity comes back as NaN.
    """
    x = x.detach().float()
    # A hair more than 1 / 127, as bfloat16 keeps 8 bits: rounded down, the largest number would not fit any more.
    scale = (x.abs().amax(-1, keepdim=True) * ((1 + 2**-8) / LARGEST)).bfloat16()
    numbers = (x / scale.float()).round().nan_to_num(0, 0, 0).clamp(-LARGEST, LARGEST)  # 0 / 0 in a row of zeros
    return numbers.to(torch.int8), scale
