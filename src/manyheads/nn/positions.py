"""Rotary positions (RoPE): q and k are turned by an angle that grows with position, so that q.k knows their distance.

A `Rope` says which rotation: plain, partial (only the first `dims` numbers of a head turn), and three ways to stretch
a trained model to longer texts: linear, Llama 3, YaRN. The angles of all positions are tabled once, in float32 whatever
the layer's dtype (half precision cannot tell position 4,000 from 4,001), and a position past the table is an error.

ALiBi (`alibi_slopes`, `alibi_bias`) puts no positions in the tokens: each head's scores fall with distance instead, at
a slope of its own. `RelativeBias` (T5) has a learned number a head for each of some classes of distances. The cost of
either is the bias of all heads, O(h * q * k), made for each call.

Source: Su et al. 2021 (RoPE); Chen et al. 2023 (linear); Llama 3 2024, as in Meta's code; Peng et al. 2023 (YaRN),
sections 3.2-3.4; Press et al. 2022, section 3 (ALiBi); Raffel et al. 2020, section 2.1.
Oracle: transformers' own functions, and a plain complex rotation.
"""

# device: torch's default, as of its own layers; moved with the layer

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.base import one_of
from manyheads.errors import ShapeError

MAX_POSITIONS = 4096  # of a table nobody sized: 2 MB for heads of 128


@dataclass(frozen=True)
class Linear:
    """Positions divided by `factor`."""

    factor: float

    @classmethod
    def read(cls, parameters: Mapping[str, Any], max_positions: int) -> Linear:
        """From transformers' `rope_parameters`."""
        return cls(parameters["factor"])

    def stretched(self, plain: Float[Tensor, "half"], base: float) -> Float[Tensor, "half"]:
        """The frequencies of the model as trained (`plain`), for longer texts."""
        return plain / self.factor


@dataclass(frozen=True)
class Llama3:
    """Slow turns are divided by `factor`, fast ones kept, those between blended. `original`: positions trained on."""

    factor: float
    original: int
    low: float = 1.0
    high: float = 4.0

    @classmethod
    def read(cls, parameters: Mapping[str, Any], max_positions: int) -> Llama3:
        """From transformers' `rope_parameters`."""
        names = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        return cls(*(parameters[name] for name in names))

    def stretched(self, plain: Float[Tensor, "half"], base: float) -> Float[Tensor, "half"]:
        """The frequencies of the model as trained (`plain`), for longer texts."""
        wavelength = 2 * math.pi / plain
        longest, shortest = self.original / self.low, self.original / self.high
        keep = (self.original / wavelength - self.low) / (self.high - self.low)
        blended = (1 - keep) * plain / self.factor + keep * plain
        slow = torch.where(wavelength > longest, plain / self.factor, plain)
        return torch.where((wavelength >= shortest) & (wavelength <= longest), blended, slow)


@dataclass(frozen=True)
class Yarn:
    """Like Llama3 with a linear ramp over the dimensions, and q and k a little longer, which sharpens the softmax.

    `sharpen` multiplies cos and sin; None is YaRN's `0.1 ln(factor) + 1`. `truncate` rounds the ramp's ends to whole
    dimensions, as the paper's code does and gpt-oss does not.
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    sharpen: float | None = None
    truncate: bool = True

    @classmethod
    def read(cls, parameters: Mapping[str, Any], max_positions: int) -> Yarn:
        """From transformers' `rope_parameters`, with the defaults that transformers fills in."""
        original = parameters.get("original_max_position_embeddings") or max_positions
        factor = parameters.get("factor") or max_positions / original
        sharpen = parameters.get("attention_factor")
        mscale, mscale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
        if sharpen is None and mscale and mscale_all:
            sharpen = yarn_sharpen(factor, mscale) / yarn_sharpen(factor, mscale_all)
        fast, slow = parameters.get("beta_fast") or 32.0, parameters.get("beta_slow") or 1.0
        return cls(factor, original, fast, slow, sharpen, parameters.get("truncate", True))

    def stretched(self, plain: Float[Tensor, "half"], base: float) -> Float[Tensor, "half"]:
        """The frequencies of the model as trained (`plain`), for longer texts."""
        dims = 2 * len(plain)

        def dimension(turns: float) -> float:  # the pair that makes so many full turns over the positions trained on
            return dims * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = dimension(self.fast), dimension(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dims - 1)
        width = (high - low) or 0.001  # one step instead of a ramp
        share = 1 - ((torch.arange(dims // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
        # In transformers' order of operations: thousands of positions on, the last bit of a frequency is seen.
        return 1.0 / (self.factor * _wavelengths(base, dims)) * (1 - share) + plain * share


Scaling = Linear | Llama3 | Yarn
SCALINGS: dict[str, type[Scaling] | None] = {"default": None, "linear": Linear, "llama3": Llama3, "yarn": Yarn}
"""By the name that transformers gives each as `rope_type`."""


@dataclass(frozen=True)
class Rope:
    """A rotation. `dims`: how many numbers of a head turn (all, if None); `interleaved`: pairs (0, 1), (2, 3), ...

    else (0, d/2), (1, d/2 + 1), ..., as in transformers. `max_positions` sizes the table.
    """

    base: float = 10_000.0
    dims: int | None = None
    max_positions: int = MAX_POSITIONS
    scaling: Scaling | None = None
    interleaved: bool = False

    def frequencies(self, dims: int) -> Float[Tensor, "half"]:
        """The angle, in radians, by which each pair turns from one position to the next. float32, as models have it."""
        plain = 1.0 / _wavelengths(self.base, dims)
        return plain if self.scaling is None else self.scaling.stretched(plain, self.base)

    @property
    def sharpen(self) -> float:
        """What cos and sin are multiplied with: 1, except under YaRN."""
        if not isinstance(self.scaling, Yarn):
            return 1.0
        return self.scaling.sharpen if self.scaling.sharpen is not None else yarn_sharpen(self.scaling.factor)

    @staticmethod
    def from_parameters(parameters: Mapping[str, Any], *, max_positions: int, head_dim: int) -> Rope:
        """From transformers' `rope_parameters`. Errors: ShapeError for a kind that is not one of ours, by name."""
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        one_of("rope_type", kind, SCALINGS, ShapeError, "is not a rotation of ours")
        dims = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        base = float(parameters.get("rope_theta", 10_000.0))
        scaling = SCALINGS[kind]
        read = None if scaling is None else scaling.read(parameters, max_positions)
        return Rope(base, None if dims == head_dim else dims, max_positions, read)


def _wavelengths(base: float, dims: int) -> Float[Tensor, "half"]:
    """The positions over which each pair turns by one radian."""
    return base ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims)


def yarn_sharpen(factor: float, strength: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0


class RotaryTable(nn.Module):
    """cos and sin of every position, `[max_positions, dims / 2]`. No parameters, nothing in the state dict."""

    cos: Tensor
    sin: Tensor

    def __init__(self, rope: Rope, head_dim: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.rope, self.dims = rope, head_dim if rope.dims is None else rope.dims
        if self.dims % 2 or not 0 < self.dims <= head_dim:
            raise ShapeError(
                f"rope turns pairs of numbers, but {self.dims} of each head's {head_dim} were asked for: give "
                f"Rope(dims=) an even number up to {head_dim - head_dim % 2}."
            )
        angles = torch.arange(rope.max_positions, dtype=torch.float32)[:, None] * rope.frequencies(self.dims)
        for name, table in {"cos": angles.cos(), "sin": angles.sin()}.items():
            self.register_buffer(name, (table * rope.sharpen).to(device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryTable:
        """Follow the layer to another device, never to another dtype."""
        # `layer.half()` must not blur positions: cos and sin of 8 or 11 bits are off by more than neighbours differ in
        # the slow pairs.
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # pyright: ignore[reportUnknownMemberType]
        for name, table in before.items():
            moved = getattr(self, name)
            if moved.dtype != table.dtype:
                setattr(self, name, table.to(moved.device))
        return self

    def at(
        self, first: int, length: int, positions: Int[Tensor, "#b q"] | None
    ) -> tuple[Float[Tensor, "#b 1 q half"], Float[Tensor, "#b 1 q half"]]:
        """cos and sin of `length` positions from `first` on, or of the positions given."""
        if positions is None:
            self._check(first, first + length - 1)
            rows = slice(first, first + length)
            return self.cos[rows][None, None], self.sin[rows][None, None]
        if positions.numel() and not torch.compiler.is_compiling():  # a look at numbers would break the graph
            self._check(int(positions.min()), int(positions.max()))
        return self.cos[positions][:, None], self.sin[positions][:, None]

    def _check(self, first: int, last: int) -> None:
        if first < 0 or last >= self.rope.max_positions:
            raise ShapeError(
                f"positions {first} to {last} were asked for, but the rotary table holds 0 to "
                f"{self.rope.max_positions - 1}: build the layer with Rope(max_positions={last + 1}) or more."
            )

    def forward(self, x: Float[Tensor, "b h q d"], cos: Tensor, sin: Tensor) -> Float[Tensor, "b h q d"]:
        return rotate(x, cos, sin, interleaved=self.rope.interleaved)


def rotate(
    x: Float[Tensor, "b h q d"],
    cos: Float[Tensor, "#b #h #q half"],
    sin: Float[Tensor, "#b #h #q half"],
    *,
    interleaved: bool = False,
) -> Float[Tensor, "b h q d"]:
    """Turn the first `2 * half` numbers of each head; the rest stays. Computed in float32 at the least."""
    half = cos.shape[-1]
    # The tables are float32 for the sake of late positions: products in a half type would blur these after all.
    compute = torch.promote_types(x.dtype, torch.float32)
    turned, plain = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        left, right = turned[..., ::2], turned[..., 1::2]
    else:
        left, right = turned[..., :half], turned[..., half:]
    left, right, cos, sin = left.to(compute), right.to(compute), cos.to(compute), sin.to(compute)
    pair = (left * cos - right * sin, left * sin + right * cos)
    out = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([out.to(x.dtype), plain], -1) if plain.shape[-1] else out.to(x.dtype)


@dataclass(frozen=True)
class RelativeBias:
    """T5's relative positions. Half of the `num_buckets` classes hold one distance each; the others grow in
    width up to `max_distance`, past which all is one class. Where a layer is not causal, half lie ahead, half behind.
    """

    num_buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        if self.num_buckets < 4 or self.num_buckets % 2 or self.max_distance <= self.num_buckets // 2:
            raise ShapeError(
                f"{self}: num_buckets is an even number, 4 or more, and max_distance is more than half of it."
            )

    def buckets(self, num_queries: int, num_keys: int, device: torch.device, causal: bool) -> Int[Tensor, "q k"]:
        """The class of each key's distance from each query, query i standing at position `i + K - Q`."""
        query = torch.arange(num_queries, device=device)[:, None] + num_keys - num_queries
        ahead = torch.arange(num_keys, device=device) - query
        distance = (-ahead).clamp_min(0) if causal else ahead.abs()
        count = self.num_buckets if causal else self.num_buckets // 2
        single = count // 2
        # In transformers' order of operations and in float32: at a class's edge the last bit decides.
        share = torch.log(distance.clamp_min(1).float() / single) / math.log(self.max_distance / single)
        wide = (single + (share * (count - single)).long()).clamp_max(count - 1)
        bucket = torch.where(distance < single, distance, wide)
        return bucket if causal else bucket + (ahead > 0) * count


class RelativeBiasTable(nn.Module):
    """The learned numbers, `[num_buckets, num_heads]`, and the bias that they make: what is added to the scores."""

    def __init__(self, rule: RelativeBias, num_heads: int, std: float, **factory: Any) -> None:
        super().__init__()
        self.rule, self.std = rule, std
        self.weight = nn.Parameter(torch.empty(rule.num_buckets, num_heads, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)

    def forward(
        self, num_queries: int, num_keys: int, causal: bool, local: Callable[[Tensor], Tensor] | None = None
    ) -> Float[Tensor, "1 h q k"]:
        """What is added to the scores. `local`: what makes the table a plain tensor, where processes share it."""
        weight = self.weight if local is None else local(self.weight)
        bucket = self.rule.buckets(num_queries, num_keys, weight.device, causal)
        return weight[bucket].permute(2, 0, 1)[None]


def alibi_slopes(num_heads: int) -> Float[Tensor, "h"]:
    """The paper's slopes: powers of 2^(-8/h), and for h no power of two those of the next ones, interleaved."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(num_heads - power)]
    return torch.tensor(slopes, dtype=torch.float32)


def alibi_bias(slopes: Float[Tensor, "h"], num_queries: int, num_keys: int) -> Float[Tensor, "1 h q k"]:
    """`-slope * |i - j|`, query i standing at position `i + K - Q`: in a causal layer, how far back a key lies."""
    # Counted from the end: with a cache the queries are the last of the keys' positions, not the first.
    query = torch.arange(num_queries, device=slopes.device)[:, None] + num_keys - num_queries
    distance = (query - torch.arange(num_keys, device=slopes.device)).abs()
    return -slopes[None, :, None, None] * distance
