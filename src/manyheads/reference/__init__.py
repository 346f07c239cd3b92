"""The oracle: attention and multi-head attention in NumPy, float64, written to be read. Start with `naive`."""

from manyheads.reference.attention import Attended, attend
from manyheads.reference.multihead import BatchedWeights
from manyheads.reference.multihead import FusedWeights
from manyheads.reference.multihead import NaiveWeights
from manyheads.reference.multihead import count_parameters
from manyheads.reference.multihead import initialise
from manyheads.reference.multihead import to_batched
from manyheads.reference.multihead import to_fused
from manyheads.reference.multihead import to_naive
from manyheads.reference.multihead import MultiHead, batched, fused, naive, worked_example
from manyheads.reference.attention import softmax_rows
from manyheads.reference.attention import visible_keys

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
