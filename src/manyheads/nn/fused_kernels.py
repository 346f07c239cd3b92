"""torch's fused attention kernels that return each row's log-sum-exp: which there are, and how each lays it out.

All of them return the natural logarithm in float32 (float64 for float64), as `[b h q]` once padding and a last axis of
one are off. `attend` calls them by itself; a tap watches for them in a model's own calls. Checked on torch 2.13: shapes
and dtypes of the CUDA kernels by torch's own fake tensors, their numbers nowhere yet.

Source: torch's `native_functions.yaml`; its context parallelism, which adds blocks up by these lse as natural ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend


@dataclass(frozen=True)
class FusedKernel:
    """`asked`: whether it returns the lse only where its fifth argument, `compute_log_sumexp`, says so."""

    name: str
    operator: Any
    asked: bool = False

    def run(
        self,
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b g k d"],
        v: Float[Tensor, "b g k d"],
        causal: bool,
        scale: float,
    ) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h q"]]:
        """Output and lse. Head widths are alike; on CUDA they are a multiple of `WIDTHS`."""
        result = self.operator(q, k, v, *((None, True) if self.asked else ()), 0.0, causal, scale=scale)
        return result[0], row_lse(result[1], q.shape[2])


WIDTHS = 8  # CUDA's kernels take head widths that are a multiple of this; zeros change nothing
CPU = FusedKernel("CPU", torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
CUDA = {
    SDPBackend.FLASH_ATTENTION: FusedKernel("flash", torch.ops.aten._scaled_dot_product_flash_attention.default),
    SDPBackend.EFFICIENT_ATTENTION: FusedKernel(
        "memory-efficient", torch.ops.aten._scaled_dot_product_efficient_attention.default, asked=True
    ),
    SDPBackend.CUDNN_ATTENTION: FusedKernel(
        "cuDNN", torch.ops.aten._scaled_dot_product_cudnn_attention.default, asked=True
    ),
}
CHOICE: Any = torch.ops.aten._fused_sdp_choice.default
FUSED_KERNELS = {kernel.operator: kernel for kernel in (CPU, *CUDA.values())}


def row_lse(lse: Tensor, num_rows: int) -> Float[Tensor, "b h q"]:
    """A kernel's lse without what it puts beside the rows: a last axis of one (cuDNN), rows up to a multiple of 32."""
    return lse.reshape(*lse.shape[:2], -1)[..., :num_rows]


def kernel_for(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> FusedKernel | None:
    """The kernel that torch itself would choose for such a call; None where that is one without an lse."""
    if q.device.type == "cpu":
        return CPU
    grouped = q.shape[1] != k.shape[1]
    return CUDA.get(SDPBackend(CHOICE(q, k, v, None, 0.0, causal, scale=scale, enable_gqa=grouped)))
