"""The oracle: attention and multi-head attention in NumPy, float64, written to be read. Start with `naive`."""

from manyheads.reference.attention import Attended, attend, softmax_rows, visible_keys
from manyheads.reference.cells import Cells, TextFacts, at_offset, on_duplicate, on_first, on_induction
from manyheads.reference.multihead import (
    BatchedWeights,
    FusedWeights,
    MultiHead,
    NaiveWeights,
    batched,
    count_parameters,
    fused,
    initialise,
    naive,
    to_batched,
    to_fused,
    to_naive,
    worked_example,
)

__all__ = [
    "on_induction",
    "on_first",
    "on_duplicate",
    "at_offset",
    "TextFacts",
    "Cells",
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
