"""What fits into a memory: how a memory is written, which ones people have, and what `Sizing.fits` returns.

Counted are the weights in their dtype; the cache as it is set aside beforehand (a window has a place for the newest
token as well), with states that do not grow; and a share of the memory that stays free, 10 % unless said, for what is
not counted: activations, the logits of a prompt, the runtime, fragments. vLLM leaves as much by default
(`gpu_memory_utilization` of 0.9). Gradients and optimisers are not counted, nor the scales of quantised numbers, unless
weights are sized as they are published.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import NamedTuple

from manyheads import units
from manyheads.base import Json, brief, plural
from manyheads.errors import ShapeError
from manyheads.results import Shown
from manyheads.sizing.architecture.architecture import Architecture, Stored, Streaming, Weights

GB, GIB = 10**9, 2**30
UNITS = {"MB": 10**6, "MIB": 2**20, "GB": GB, "GIB": GIB, "TB": 10**12, "TIB": 2**40}

MAC_SHARE = 0.75
"""Of a Mac's memory that Metal gives its GPU unless told otherwise (`recommendedMaxWorkingSetSize`): 48 of 64 GiB, as
llama.cpp prints it there (51539.61 MB). `sysctl iogpu.wired_limit_mb` moves it; Macs of up to 32 GB give less."""

MACHINES: Mapping[str, int] = MappingProxyType(
    {
        "24 GB GPU": 24 * GB,
        "48 GB GPU": 48 * GB,
        "64 GB Mac": int(64 * GIB * MAC_SHARE),
        "80 GB GPU": 80 * GB,
        "141 GB GPU": 141 * GB,
    }
)
"""Memories that people have, in bytes that a model may use. A GPU's GB are counted as 10^9; most cards have a little
more (a "24 GB" one nearly 24 GiB)."""

SEVERAL: Mapping[str, int] = MappingProxyType({f"{count} × 80 GB": count * 80 * GB for count in (2, 4, 8)})
"""Several GPUs of one machine, in bytes of all together. Weights and cache then have to be divided evenly among them; a
model with fewer KV heads than GPUs keeps more cache than is counted here."""

LEAST = 10**6
"""Bytes that a memory given as a number has at least: less was meant in GB."""

OVERHEAD = 0.1
"""The share of a memory that stays free unless said."""


DTYPES = {
    "fp64": 64, "float64": 64, "fp32": 32, "float32": 32, "fp16": 16, "float16": 16, "bf16": 16, "bfloat16": 16,
    "fp8": 8, "float8": 8, "int8": 8, "int4": 4,
}  # fmt: skip
"""Bits of a number. Of 8 and 4 bits the numbers alone are counted, not the scales that come with them: these differ by
library, and those of `KVCache` are in a note."""

PUBLISHED = "published"
"""The dtype of weights that are as their config.json says: each part in its own bits, the scales counted."""

FAR = 2**48
"""Tokens of a text that no memory holds: where the cache stops growing before, its length is no matter of memory."""


@dataclass(frozen=True)
class Ask:
    """What is asked of an architecture: `batch` texts of `context` tokens (and `source`, what an encoder reads), the
    dtypes of the weights and of the cache, and which heads stream. `stored`: what the dtype "published" means."""

    context: int
    source: int
    batch: int
    dtype: str
    cache_dtype: str
    streaming: Streaming | None = None
    stored: Stored | None = None

    def weight_bytes(self, weights: Iterable[Weights]) -> float:
        """Bytes of all of these weights, every expert included, in their dtype."""
        return (self.stored or Stored("", DTYPES[self.dtype])).num_bytes(weights)

    @property
    def in_dtype(self) -> str:
        """ "in fp16", "as published"."""
        return "as published" if self.stored else f"in {self.dtype}"

    @property
    def number_bits(self) -> int:
        """Bits that a number of the activations has: one of fewer is computed with in 16."""
        return max(16, round(self.stored.rest) if self.stored else DTYPES[self.dtype])

    def cache_bytes(self, numbers: int | float) -> float:
        """Bytes of so many numbers in the cache's dtype."""
        return numbers * DTYPES[self.cache_dtype] / 8


class CacheTerm(NamedTuple):
    """Numbers that one token leaves in the cache of all attentions that see equally far: `window` tokens at most (all
    where that is None); those of `crosses` are of the text that an encoder read."""

    width: int
    window: int | None
    crosses: bool

    def numbers(self, length: int, source: int, *, spare: int = 0) -> int:
        """What one text of `length` tokens leaves; of a window, `spare` tokens less."""
        if self.crosses:  # the other text's keys are made once and stay
            return self.width * source
        return self.width * (length if self.window is None else min(length, self.window - spare))


def cache_terms(architecture: Architecture) -> list[CacheTerm]:
    """The cache as a sum of few terms: a deep model has few kinds of layers."""
    widths: Counter[tuple[int | None, bool]] = Counter()
    for attention in architecture.attention if architecture.generates else ():
        window = attention.window if attention.sheds and not attention.cross else None
        widths[window, attention.cross] += attention.cache_width
    return [CacheTerm(width, window, crosses) for (window, crosses), width in widths.items() if width]


@dataclass(frozen=True)
class Fit(Shown):
    """What fits into `memory_bytes`, of which `overhead_bytes` stay free. `weight_bytes` and `cache_bytes` are those of
    the `batch` texts of `context` tokens that were sized.

    `longest_context`: how long each of these texts may be; 0 if not one token, None where memory sets no limit (every
    layer has a window, or nothing is kept). `largest_batch`: how many texts of this context; None where nothing is
    kept. `positions`: those that the model is made for, None where nothing says. `activation_bytes`: counted on GPUs
    that serve (`Sizing.on`); else 0, for they are within what stays free.
    """

    name: str
    memory_bytes: int
    overhead_bytes: int
    weight_bytes: float
    cache_bytes: float
    context: int
    batch: int
    longest_context: int | None
    largest_batch: int | None
    positions: int | None
    activation_bytes: float = 0.0

    @property
    def room_bytes(self) -> float:
        """What is left for the cache beside the weights; never below 0."""
        return max(0.0, self.memory_bytes - self.overhead_bytes - self.weight_bytes - self.activation_bytes)

    @property
    def missing_bytes(self) -> float:
        """How much more memory it would take, the part that stays free left as it is; 0 where all fits."""
        counted = self.weight_bytes + self.activation_bytes + self.cache_bytes + self.overhead_bytes
        return max(0.0, counted - self.memory_bytes)

    @property
    def weights_fit(self) -> bool:
        """Whether the weights fit beside what stays free, without any cache."""
        return self.weight_bytes + self.activation_bytes + self.overhead_bytes <= self.memory_bytes

    @property
    def fits(self) -> bool:
        """Whether the weights and the cache of the texts that were sized fit beside what stays free."""
        return not self.missing_bytes

    @property
    def past_positions(self) -> bool:
        """Whether memory would hold longer texts than the model is made for: they fit, and may be of no use."""
        if self.positions is None or self.largest_batch is None:
            return False
        return self.longest_context is None or self.longest_context > self.positions

    def __str__(self) -> str:
        memory, missing = units.gb(self.memory_bytes), units.gb(self.missing_bytes)
        texts = f"{plural(self.batch, 'text')} of {plural(self.context, 'token')}"
        counted = f"{units.gb(self.weight_bytes)} of weights, {units.gb(self.cache_bytes)} of cache, "
        counted += f"{units.gb(self.activation_bytes)} of activations, " if self.activation_bytes else ""
        counted += f"{units.gb(self.overhead_bytes)} left free"
        if not self.weights_fit:
            beyond = f"{missing} are missing with the cache of {texts} ({counted})"
            # They may be smaller than the memory, and larger than what the part that stays free leaves of it.
            beside = "" if self.weight_bytes > self.memory_bytes else " beside what stays free"
            return f"{self.name}: the weights alone do not fit into {memory}{beside}; {beyond}."
        fit, do = ("fit", "do") if self.batch > 1 else ("fits", "does")
        sentences = [f"{self.name}: {texts} {fit} into {memory} ({counted})."]
        if not self.fits:
            sentences = [f"{self.name}: {texts} {do} not fit into {memory}; {missing} are missing ({counted})."]
        if self.largest_batch is None:
            return f"{sentences[0]} It keeps no cache."
        subject = "The text" if self.batch == 1 else f"Each of {self.batch:,} texts"
        length = "be of any length" if self.longest_context is None else f"have {plural(self.longest_context, 'token')}"
        others = f"of {self.context:,} tokens there may be {self.largest_batch:,}"
        if not self.largest_batch:
            others = f"not one of {plural(self.context, 'token')} fits"
        sentences.append(f"{subject} may {length}; {others}.")
        if self.past_positions:
            sentences.append(f"Past {self.positions:,} tokens is beyond the positions that it is made for.")
        return " ".join(sentences)

    def __repr__(self) -> str:
        return brief(f"Fit({self})")

    def to_dict(self) -> Json:
        """As plain data for JSON: the fields, `fits` and `missing_bytes`."""
        document = {**asdict(self), "fits": self.fits, "missing_bytes": self.missing_bytes}
        return {
            key: int(value) if isinstance(value, float) and value.is_integer() else value
            for key, value in document.items()
        }


def checked_overhead(overhead: float) -> float:
    """A share of a memory that stays free. Raises ShapeError for what is none."""
    if isinstance(overhead, bool) or not 0 <= overhead < 1:
        raise ShapeError(f"overhead={overhead!r}: give the share of the memory that stays free, from 0 to below 1.")
    return overhead


def memory_bytes(memory: int | str) -> int:
    """Bytes of a memory: a whole number, or a text as "24 GB" (10^9 each) or "64GiB" (2^30). Raises ShapeError."""
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?b)\s*", memory, re.IGNORECASE)
        if match and match[2].upper() in UNITS and float(match[1]) > 0:
            return round(float(match[1]) * UNITS[match[2].upper()])
        if (number := memory.strip()).isdecimal() and int(number) > 0:
            raise ShapeError(
                f"memory={memory!r} has no unit: write '{number} GB' (10^9 bytes each) or '{number} GiB' (2^30)."
            )
    elif not isinstance(memory, bool) and isinstance(memory, int) and memory > 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        if memory < LEAST:
            raise ShapeError(
                f"memory={memory} is {plural(memory, 'byte')}, which holds no model: give bytes, or a text with its "
                f"unit, as '{memory} GB'."
            )
        return memory
    raise ShapeError(
        f"memory={memory!r}: give bytes as a whole number, or a text with its unit, as '24 GB' (10^9 bytes) or "
        f"'64 GiB' (2^30)."
    )
