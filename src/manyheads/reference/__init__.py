"""The oracle: attention and multi-head attention in NumPy, float64, written to be read. Start with `naive`."""

from manyheads.reference.attention import Attended, attend
from manyheads.reference.layouts import (
    BatchedWeights,
    FusedWeights,
    NaiveWeights,
    count_parameters,
    initialise,
    to_batched,
    to_fused,
    to_naive,
)
from manyheads.reference.multihead import MultiHead, batched, fused, naive, worked_example
from manyheads.reference.softmax import softmax_rows, visible_keys

__all__ = [
    "Attended",
    "BatchedWeights",
    "FusedWeights",
    "MultiHead",
    "NaiveWeights",
    "attend",
    "batched",
    "count_parameters",
    "fused",
    "initialise",
    "naive",
    "softmax_rows",
    "to_batched",
    "to_fused",
    "to_naive",
    "visible_keys",
    "worked_example",
]
