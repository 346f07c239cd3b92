"""How a recording lies in its file: what is packed, what is shared, and what must fit what. docs/format.md says it all.

Packing leaves out padding: a tensor with an axis of positions keeps the rows that are tokens, text after text, the
position first, so that a layer is one run of bytes and a text is one run within it. Something is packed only where
nothing is lost: a layer whose mask never looks past a text's end, a column that holds nothing but filling there. The
rest (cross-attention, mostly, whose queries and keys are not the same tokens) is stored whole, with the axis of texts;
how many axes a stored tensor has says which it is.

Writer and reader share the checks below, so that nothing can be saved that cannot be opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from manyheads.errors import RecordingError
from manyheads.nn.masks import Mask
from manyheads.recording.tokens import Tokens
from manyheads.spec import Site

__all__ = ["check_layer", "check_tokens", "fits_runs", "layer_name", "pack_cells", "pack_rows", "unpack_cells", "unpack_rows"]

MOST_POSITIONS = 100_000_000  # padding included: q of as many fits no machine, so a file that says so is not honest
FILL: Mapping[str, float] = {"lse": -torch.inf, "ids": -1}  # what stands in padding; 0 where nothing is said


class Shaped(Protocol):
    """What is known of a tensor before it is made or read."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def layer_name(stack: str, index: int) -> str:
    """What the names of a layer's tensors begin with: "layer.3", or "cross.layer.3" in a stack that has a name."""
    return f"{stack}.layer.{index}" if stack else f"layer.{index}"
