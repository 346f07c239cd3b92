"""Binary answers: a header in JSON, then arrays as they lie in memory. docs/decisions/005 describes the format.

The page receives numbers, not colours: what is read off a pixel is the exact value. `unpack` reads what `pack` writes.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8
from numpy import ndarray

__all__ = ["MAGIC", "MEDIA_TYPE", "MIN_MISSING", "in_steps", "pack", "unpack"]


MAGIC = b"MHB1"
MEDIA_TYPE = "application/vnd.manyheads.arrays"
ALIGN = 8  # bytes: a typed array in the browser must begin at a multiple of its element's size
STEPS, ABSENT = 254, 255  # of a byte
MIN_MISSING = 1e-4  # of a row's mass: less is rounding, more went to a sink without a key


def pack(header: dict[str, Any], **arrays: ndarray) -> bytes:
    """One answer. Arrays are written little-endian and in C order."""
    entries, chunks, offset = [], [], 0
    for name, values in arrays.items():
        data = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()
        entries.append({"name": name, "dtype": values.dtype.name, "shape": list(values.shape), "offset": offset})
        padding = -len(data) % ALIGN
        chunks += [data, bytes(padding)]
        offset += len(data) + padding
    head = json.dumps({**header, "arrays": entries}, allow_nan=False).encode()
    head += b" " * (-(len(MAGIC) + 4 + len(head)) % ALIGN)
    return b"".join([MAGIC, struct.pack("<I", len(head)), head, *chunks])


def in_steps(maps: Float32[ndarray, "h r c"]) -> tuple[UInt8[ndarray, "h r c"], Float32[ndarray, "h"]]:
    """Maps as bytes, and each map's peak: a byte u is `peak * (u / 254)^2`, to 0.4 % of the peak; 255 is absent."""
    peaks = np.nan_to_num(np.nanmax(maps.reshape(len(maps), -1), 1, initial=0.0)).astype(np.float32)
    # Square roots: most weights are far below the peak, and would all fall into the first few even steps.
    shares = np.sqrt(maps / np.maximum(peaks, 1e-30)[:, None, None])
    steps = np.rint(np.nan_to_num(shares).clip(0, 1) * STEPS)
    return np.where(np.isnan(maps), ABSENT, steps).astype(np.uint8), peaks


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, ndarray]]:
    """The header and the arrays of a packed answer. Raises ValueError for anything else."""
    if data[:4] != MAGIC or len(data) < 8:
        raise ValueError("this is no envelope of manyheads")
    (length,) = struct.unpack("<I", data[4:8])
    header, begin = json.loads(data[8 : 8 + length]), 8 + length
    arrays = {}
    for entry in header["arrays"]:
        count = int(np.prod(entry["shape"], dtype=np.int64))
        dtype = np.dtype(entry["dtype"]).newbyteorder("<")
        arrays[entry["name"]] = np.frombuffer(data, dtype, count, begin + entry["offset"]).reshape(entry["shape"])
    return header, arrays
