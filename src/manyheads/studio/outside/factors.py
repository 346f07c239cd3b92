"""The factors of every map, kept so that a page computes any cell itself: q, k and each row's log-sum-exp.

`weight[i, j] = exp(score(q_i, k_j) - lse_i)`: 72 maps of 512 x 512 cells are 18.9 million weights, and their factors
2.4 million numbers. These are kept in float32 where that is small, else in float16. Rows of rounded q and k have
another sum, so in float16 the lse is that of the rounded factors: every row adds up to 1 (or to what a sink leaves),
and the largest difference to the recording's own weights is measured and said.

Cost: with float16, two windows of every map (72 heads, 512 tokens: 2 s). The page's side is web/src/lib/api/factors.ts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from manyheads.errors import RecordingError
from manyheads.nn import attend
from manyheads.recording import LayerRecord
from manyheads.recording.exact_map.one_pass import Layer, window_weights
from manyheads.recording.layer import one_text
from manyheads.sizing.units import gb

DTYPES = ("float16", "float32")
WIDE_BYTES = 4_000_000  # of q and k together: up to so many they are kept in float32
MOST_BYTES = (
    64_000_000  # of all factors as they are kept: a browser opens a page of some 80 MB, and no sensible one more
)
COMPARED_CELLS = 1 << 22  # of one head: up to so many, every weight is compared with the recording's
COMPARED_ROWS = 128  # of a longer text


@dataclass(frozen=True)
class Factors:
    """What a page needs to compute every cell of one text: arrays, the rule of each layer, and words for a reader."""

    header: dict[str, Any]
    arrays: dict[str, ndarray] = field(repr=False)
    words: str


def factors_of(layers: Sequence[LayerRecord], text: int, exact: str | None = None) -> Factors:
    """The factors of one text of all layers. `exact` is "float16" or "float32"; None: float32 up to `WIDE_BYTES`.

    Errors: RecordingError for more than `MOST_BYTES`, another dtype, or numbers that float16 cannot hold.
    """
    parts = [one_text(layer, text) for layer in layers]
    dtype = _dtype_of(parts, exact)
    arrays: dict[str, ndarray] = {}
    entries, masks, biases, differences = [], [], [], []
    for index, part in enumerate(parts):
        page_layer = part
        if dtype == "float16":
            q, k = part.q.half().float(), part.k.half().float()
            if not bool(q.isfinite().all() & k.isfinite().all()):
                raise RecordingError(
                    f"q or k of {layers[index].site.module} has numbers beyond {torch.finfo(torch.float16).max:,.0f}, "
                    f'which float16 cannot hold: give exact="float32".'
                )
            lse = attend(q, k, k.new_zeros(*k.shape[:3], 1), mask=part.mask, **part.rule.options).lse
            page_layer = Layer(q, k, lse, part.mask, part.rule, part.crosses)
            differences.append(_difference(part, page_layer))
        mask = part.mask
        # The first and last key of each row; where rows are no runs, the cells too, eight to a byte.
        runs: list[ndarray] = [ends[0].numpy().astype(np.uint32) for ends in (mask.start, mask.stop)]
        if mask.dense is not None:
            runs.append(np.packbits(mask.dense[0].cpu().numpy(), axis=-1))
        for name, tensor in (("q", page_layer.q), ("k", page_layer.k)):
            values = tensor[0].cpu().float().numpy().astype(dtype)
            # The numbers' bytes, all highest ones first: signs and exponents pack, the lowest bits do not.
            little_endian = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
            columns = little_endian.view(np.uint8).reshape(-1, values.itemsize)
            arrays[f"{name}{index}"] = np.ascontiguousarray(columns.T[::-1])
        arrays[f"lse{index}"] = page_layer.lse[0].cpu().float().numpy()
        entries.append({
            "scale": part.rule.scale,
            "softcap": part.rule.softcap,
            "width": part.q.shape[-1],
            "mask": _shared(masks, runs),
            "bias": None if part.rule.bias is None else _shared(biases, [part.rule.bias[0].cpu().float().numpy()]),
            "sinks": None if part.rule.sinks is None else part.rule.sinks.double().tolist(),
        })  # fmt: skip
    for number, (start, stop, *dense) in enumerate(masks):
        arrays |= {f"start{number}": start, f"stop{number}": stop} | {f"dense{number}": bits for bits in dense}
    arrays |= {f"bias{number}": bias for number, (bias,) in enumerate(biases)}
    cells, words = "exact weights", "every weight exact (computed in this page from q, k and each row's log-sum-exp)"
    if differences:
        rows_compared = min(rows for _, rows in differences)
        bound = _rounded_up(max(largest for largest, _ in differences))
        sampled = "" if rows_compared == math.inf else f"; compared in {rows_compared:,} rows of each head"
        cells = f"weights to {bound}: q and k are kept in float16"
        words = f"every weight to within {bound} (computed in this page from q and k in float16{sampled})"
    return Factors({"dtype": dtype, "words": cells, "layers": entries}, arrays, words)


def _dtype_of(parts: Sequence[Layer], exact: str | None) -> str:
    """Errors: RecordingError."""
    if exact is not None and exact not in DTYPES:
        raise RecordingError(f"exact={exact!r}: q and k are kept in {' or '.join(DTYPES)}; give one of these, or True.")
    count = sum(part.q.numel() + part.k.numel() for part in parts)
    dtype = exact or ("float32" if 4 * count <= WIDE_BYTES else "float16")
    biases = {id(part.rule.bias): part.rule.bias for part in parts if part.rule.bias is not None}
    num_bytes = count * np.dtype(dtype).itemsize + sum(4 * bias.numel() for bias in biases.values())
    if num_bytes > MOST_BYTES:
        raise RecordingError(
            f"the exact page would keep {gb(num_bytes)} of q and k in {dtype}, above its limit of {gb(MOST_BYTES)}: "
            f"take a shorter text, a page that is not exact, or the studio, which computes from the recording."
        )
    return dtype


def _difference(part: Layer, page_layer: Layer) -> tuple[float, float]:
    """The largest difference between a layer's weights and those of its kept factors; in how many rows (inf: all)."""
    num_rows, num_keys = part.q.shape[2], part.k.shape[2]
    compares_all = num_rows * num_keys <= COMPARED_CELLS
    count = min(num_rows, COMPARED_ROWS)
    rows = (
        [slice(0, num_rows)] if compares_all else [slice(r, r + 1) for r in range(0, num_rows, -(-num_rows // count))]
    )
    largest = 0.0
    for head in range(part.q.shape[1]):
        for row in rows:
            pair = [window_weights(layer, 0, [head], row, slice(0, num_keys)) for layer in (part, page_layer)]
            largest = max(largest, float((pair[0] - pair[1]).abs().max()))
    return largest, math.inf if compares_all else len(rows)


def _shared(known: list[list[ndarray]], arrays: list[ndarray]) -> int:
    """The number of equal arrays in `known`, to which they are added if there are none: most layers have one mask."""
    for number, known_arrays in enumerate(known):
        if len(known_arrays) == len(arrays) and all(map(np.array_equal, known_arrays, arrays)):
            return number
    known.append(arrays)
    return len(known) - 1


def _rounded_up(number: float) -> str:
    """One figure, never less than the number: 0.00361 is "0.004"."""
    if number <= 0:
        return "0"
    places = -math.floor(math.log10(number))
    return f"{math.ceil(number * 10**places) / 10**places:.{max(places, 0)}f}"
