"""Models compute in the dtype that they have, so that oracles agree to rounding in float64."""

import pytest
import torch
import torch.nn.functional as F
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm


@pytest.fixture(autouse=True)
def all_in_float64(monkeypatch):
    """Models' own eager attention and norms are in float32, whatever their dtype: no place for a difference of 1e-8."""
    softmax = F.softmax
    for norm, eps, more in ((LlamaRMSNorm, "variance_epsilon", 0), (Gemma2RMSNorm, "eps", 1)):

        def forward(self, x, eps=eps, more=more):
            return (more + self.weight) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + getattr(self, eps))

        monkeypatch.setattr(norm, "forward", forward)
    monkeypatch.setattr(F, "softmax", lambda scores, dim=-1, dtype=None, **_: softmax(scores.double(), dim).to(scores))
