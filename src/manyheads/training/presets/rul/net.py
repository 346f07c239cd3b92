"""A net that says how many cycles an engine has left, with attention or without, and the line that both must beat.

BiLSTM (2 x 256) -> attention of 8 heads, added -> layer norm -> feed-forward, added -> layer norm -> mean over the
window -> one number. The twin without attention has all the rest. Both read every cycle's state through the mean, so
that attention is not the only way from the first cycle to the answer.

With 512 numbers a cycle the attention has 4 (512^2 + 512) = 1,050,624 parameters. Source: Vaswani et al. 2017, section
3.1 (the block, norms after); Hochreiter and Schmidhuber 1997 (LSTM); Hoerl and Kennard 1970 (ridge).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from manyheads.models import device_of, record_call
from manyheads.nn import FeedForward, MultiHeadAttention

DROPOUT = 0.1
PENALTIES = tuple(10.0**power for power in range(-1, 7))


class AttentionBlock(nn.Module):
    """`[b, n, m]` to the same: attention (or not) and a small feed-forward, each added and normed."""

    def __init__(self, embed_dim: int, num_heads: int, attention: bool = True) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(embed_dim, num_heads, batch_first=True) if attention else None
        self.norm = nn.LayerNorm(embed_dim)
        self.feedforward = FeedForward(embed_dim, embed_dim // 4)
        self.norm_after = nn.LayerNorm(embed_dim)

    def forward(self, x: Float[Tensor, "b n m"]) -> Float[Tensor, "b n m"]:
        if self.attention is not None:
            x = x + self.attention(x, need_weights=False)[0]
        x = self.norm(x)
        return self.norm_after(x + self.feedforward(x))


class RulNet(nn.Module):
    """Windows to shares of the cap: about 1 for a sound engine, 0 for one that fails now."""

    def __init__(self, num_channels: int, hidden: int = 256, num_heads: int = 8, attention: bool = True) -> None:
        super().__init__()
        self.lstm = nn.LSTM(num_channels, hidden, batch_first=True, bidirectional=True)
        self.block = AttentionBlock(2 * hidden, num_heads, attention)
        self.dropout = nn.Dropout(DROPOUT)
        self.dense = nn.Linear(2 * hidden, 1)

    def forward(self, windows: Float[Tensor, "b n channel"]) -> Float[Tensor, "b"]:
        read = self.block(self.lstm(windows)[0])
        return self.dense(self.dropout(read.mean(1)))[:, 0]


def cycles_read(net: RulNet, windows: Float[Tensor, "b n channel"]) -> Float[Tensor, "b h n"]:
    """How much of a window's attention each cycle gets from each head: the mean over queries, 1 in all.

    A recording of the net, as of any model. Cost: one call, and q and k of it.
    """
    layer = record_call(net, windows.to(device_of(net))).layers[0]
    return (layer.received() / layer.q.shape[2]).cpu()


# ------------------------------------------------------------------------------------------------ the line to beat


@dataclass(frozen=True, eq=False)
class Ridge:
    """A line in each channel's mean, slope and last five cycles of a window; `penalty` is what the validating engines
    liked best."""

    weights: Float[ndarray, "feature"]
    mean: Float[ndarray, "feature"]
    spread: Float[ndarray, "feature"]
    middle: float
    penalty: float

    def __call__(self, windows: Float[ndarray, "b n channel"]) -> Float[ndarray, "b"]:
        return self.middle + (features(windows) - self.mean) / self.spread @ self.weights


def features(windows: Float[ndarray, "b n channel"]) -> Float[ndarray, "b feature"]:
    time = np.linspace(-1, 1, windows.shape[1])
    slope = np.einsum("n,bnc->bc", time / (time @ time), windows)
    return np.concatenate([windows.mean(1), slope, windows[:, -5:].mean(1)], 1).astype(np.float64)


def fit_ridge(
    windows: Float[ndarray, "b n channel"],
    left: Float[ndarray, "b"],
    validating: Float[ndarray, "v n channel"],
    validating_left: Float[ndarray, "v"],
) -> Ridge:
    """Least squares with a penalty on weights, which is chosen by the error on `validating`."""
    x, y = features(windows), left.astype(np.float64)
    # 1e-12: a feature that never changes has no spread, and must not divide by 0.
    mean, spread, middle = x.mean(0), x.std(0) + 1e-12, float(y.mean())
    x = (x - mean) / spread
    tried = []
    for penalty in PENALTIES:
        weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ (y - middle))
        ridge = Ridge(weights, mean, spread, middle, penalty)
        tried.append((float(np.square(ridge(validating) - validating_left).mean()), ridge))
    return min(tried, key=lambda candidate: candidate[0])[1]


def predicted(net: nn.Module, windows: Float[Tensor, "b n channel"], cap: int) -> Float[ndarray, "b"]:
    """Cycles left, 0 to the cap."""
    with torch.no_grad():
        # 256 windows at a time: the LSTM keeps every cycle's state.
        parts = [net(part.to(device_of(net))).float().cpu() for part in windows.split(256)]
    return (torch.cat(parts) * cap).clamp(0, cap).numpy()
