"""Binary answers: a header in JSON, then arrays as they lie in memory. docs/decisions/005 describes the format.

Numbers go to the page as they are: what is read off a pixel is the value, not a colour. `unpack` reads what `pack`
made.
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
ALIGN = 8
STEPS, ABSENT = 254, 255  # of a byte
MIN_MISSING = 1e-4  # of a row's mass: less is rounding, more went to a sink without a key


def pack(header: dict[str, Any], **arrays: ndarray) -> bytes:
    """One answer. Arrays are little-endian and in C order."""
    listed, chunks, at = [], [], 0
    for name, values in arrays.items():
        array = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
        listed.append({"name": name, "dtype": values.dtype.name, "shape": list(values.shape), "offset": at})
        data = array.tobytes()
        chunks += [data, bytes(-len(data) % ALIGN)]
        at += len(data) + -len(data) % ALIGN
    said = json.dumps({**header, "arrays": listed}, allow_nan=False).encode()
    said += b" " * (-(len(MAGIC) + 4 + len(said)) % ALIGN)
    return b"".join([MAGIC, struct.pack("<I", len(said)), said, *chunks])


def in_steps(maps: Float32[ndarray, "h r c"]) -> tuple[UInt8[ndarray, "h r c"], Float32[ndarray, "h"]]:
    """Maps as bytes, and each one's peak: a byte u is `peak * (u / 254)^2`, to 0.4 % of the peak; 255 is absent."""
    peaks = np.nan_to_num(np.nanmax(maps.reshape(len(maps), -1), 1, initial=0.0)).astype(np.float32)
    shares = np.sqrt(maps / np.maximum(peaks, 1e-30)[:, None, None])
    steps = np.rint(np.nan_to_num(shares).clip(0, 1) * STEPS)
    return np.where(np.isnan(maps), ABSENT, steps).astype(np.uint8), peaks


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, ndarray]]:
    """The header and the arrays of what `pack` made. Raises ValueError for anything else."""
    if data[:4] != MAGIC or len(data) < 8:
        raise ValueError("this is no envelope of manyheads")
    (length,) = struct.unpack("<I", data[4:8])
    header, begin = json.loads(data[8 : 8 + length]), 8 + length
    arrays = {}
    for each in header["arrays"]:
        count = int(np.prod(each["shape"], dtype=np.int64))
        dtype = np.dtype(each["dtype"]).newbyteorder("<")
        arrays[each["name"]] = np.frombuffer(data, dtype, count, begin + each["offset"]).reshape(each["shape"])
    return header, arrays
