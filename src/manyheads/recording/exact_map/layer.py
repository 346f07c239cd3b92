"""`Layer`: the tensors of one attention layer from which any weight of its maps can be computed.

It stands below the pass that reads it and the trial that makes a small one to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.attention import Mask, Rule
from manyheads.errors import ShapeError


@dataclass(frozen=True, eq=False)
class Layer:
    """What the pass reads of one attention layer, texts left-aligned: q, k, each row's lse, the mask, the rule."""

    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    lse: Float[Tensor, "b h q"]
    mask: Mask
    rule: Rule
    crosses: bool = False  # keys are other tokens than queries

    def __post_init__(self) -> None:
        tensors = {"q": self.q, "k": self.k, "lse": self.lse, "bias": self.rule.bias}
        places = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
        if len(set(places.values())) > 1:
            written = ", ".join(f"{name} is on {device}" for name, device in places.items())
            raise ShapeError(f"{written}: a layer is read on one device. Move them, as in k.to(q.device).")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights: float64 where q is, otherwise float32."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def reads_itself(self) -> bool:
        """Whether keys are the tokens of the queries."""
        return not self.crosses and self.q.shape[2] == self.k.shape[2]

    def first_keys(self, num_keys: int) -> Layer:
        """The layer without the keys after the first ones, which no row sees."""
        if num_keys == self.k.shape[2]:
            return self
        dense = None if self.mask.dense is None else self.mask.dense[..., :num_keys]
        bias = None if self.rule.bias is None else self.rule.bias[..., :num_keys]
        mask = Mask(self.mask.start, self.mask.stop, num_keys, dense)
        return replace(self, k=self.k[:, :, :num_keys], mask=mask, rule=replace(self.rule, bias=bias))

    def one_text(self, text: int, rows: slice | Int[Tensor, "r"], num_keys: int) -> Layer:
        """One text alone: some of its rows, as if there were no others, and its first keys."""
        texts, keys = slice(text, text + 1), slice(num_keys)
        mask, rule = self.mask.expand(len(self.q)).texts(texts), self.rule.texts(texts)
        runs = mask.start[:, rows], mask.stop[:, rows]
        rows = rows if isinstance(rows, slice) else rows.to(self.q.device, non_blocking=True)
        dense = None if mask.dense is None else mask.dense[:, :, rows, keys]
        bias = None if rule.bias is None else rule.bias[:, :, rows, keys]
        mask = Mask(*runs, num_keys, dense)
        q, k, lse = self.q[texts][:, :, rows], self.k[texts, :, keys], self.lse[texts][:, :, rows]
        return Layer(q, k, lse, mask, replace(rule, bias=bias), self.crosses)
