"""A Transformer block from the library's parts, trained for a moment: `python examples/transformer_block.py`

The task: say, at every place, which token stood two places before. One head that looks two places back can do it.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import manyheads as mh
from manyheads.nn import Rope

VOCAB, BACK = 16, 2


class Block(nn.Module):
    """Norm, attention, add; norm, feed-forward, add: what most models are made of (pre-norm, SwiGLU, rope)."""

    def __init__(self, embed_dim: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.attention = mh.MultiHeadAttention(
            embed_dim, num_heads, num_kv_heads, batch_first=True, causal=True, bias=False, rope=Rope()
        )
        self.feed_forward = mh.SwiGLU(embed_dim)
        self.before_attention, self.before_feed_forward = nn.RMSNorm(embed_dim), nn.RMSNorm(embed_dim)

    def forward(self, x: Tensor, cache: mh.KVCache | None = None) -> Tensor:
        mixed, _ = self.attention(self.before_attention(x), need_weights=False, cache=cache)
        x = x + mixed
        return x + self.feed_forward(self.before_feed_forward(x))


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--embed-dim", type=int, default=64)
    asked = parser.parse_args(argv)
    torch.manual_seed(0)
    tokens_in = nn.Embedding(VOCAB, asked.embed_dim)
    model = nn.Sequential(tokens_in, Block(asked.embed_dim, 4, 2), nn.Linear(asked.embed_dim, VOCAB))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for step in range(asked.steps):
        tokens = torch.randint(VOCAB, (16, 24))
        guesses = model(tokens)[:, BACK:]
        loss = nn.functional.cross_entropy(guesses.flatten(0, 1), tokens[:, :-BACK].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0 or step == asked.steps - 1:
            print(f"step {step:4}  loss {loss.item():.3f} nats (chance: {torch.tensor(VOCAB).log():.3f})")
    return loss.item()


if __name__ == "__main__":
    main()
