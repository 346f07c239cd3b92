"""`HeadShard`: the heads of a layer that one process has, where `HeadParallel` has divided them."""

# A module of its own, below the layer and what divides it: torch.distributed.tensor takes a while to load.

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard


@dataclass(frozen=True, eq=False)
class HeadShard:
    """Which heads of a layer this process has: the `rank`-th of `mesh.size()` equal parts, in their own order."""

    mesh: DeviceMesh
    rank: int

    def count(self, num_heads: int) -> int:
        """How many of so many heads are here; a single one is in every process."""
        return num_heads if num_heads == 1 else num_heads // self.mesh.size()

    def part(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """This process's heads of what all have whole; an axis of one head stands for all of them."""
        num_own = self.count(tensor.shape[axis])
        return tensor if tensor.shape[axis] == 1 else tensor.narrow(axis, self.rank * num_own, num_own)

    def parameter(self, tensor: Tensor) -> Tensor:
        """A parameter that every process has whole: each one's gradient is a summand."""
        return tensor.to_local(grad_placements=[Partial()]) if isinstance(tensor, DTensor) else tensor

    def spread(self, *inputs: Tensor) -> list[Tensor]:
        """Inputs that are alike in all processes, so that their gradients are added up; equal objects stay equal."""
        made = {id(x): DTensor.from_local(x, self.mesh, [Replicate()], run_check=False) for x in inputs}
        return [made[id(x)] for x in inputs]

    def normed(self, norm: nn.RMSNorm, x: Tensor) -> Tensor:
        return F.rms_norm(x, list(norm.normalized_shape), self.parameter(norm.weight), norm.eps)

    def whole(self, weights: Float[Tensor, "b own q k"]) -> Float[Tensor, "b h q k"]:
        """The maps of all heads, in every process."""
        return DTensor.from_local(weights, self.mesh, [Shard(1)], run_check=False).full_tensor()
