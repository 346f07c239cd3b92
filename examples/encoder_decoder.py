"""An encoder and a decoder: self-, causal self- and cross-attention. `python examples/encoder_decoder.py`

The task: read a row of tokens and write it backwards. While writing, the decoder's own past is in a growing cache, and
the encoder's keys and values are projected once, into a cross cache.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import manyheads as mh

VOCAB, BEGIN = 12, 0


class EncoderDecoder(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, length: int) -> None:
        super().__init__()

        def attention(causal: bool = False) -> mh.MultiHeadAttention:
            return mh.MultiHeadAttention(embed_dim, num_heads, batch_first=True, causal=causal)

        self.tokens, self.places = nn.Embedding(VOCAB, embed_dim), nn.Embedding(length + 1, embed_dim)
        self.reads, self.remembers, self.looks_up = attention(), attention(causal=True), attention()
        self.thinks, self.writes = mh.FeedForward(embed_dim), mh.FeedForward(embed_dim)
        self.norms = nn.ModuleList(nn.LayerNorm(embed_dim) for _ in range(5))
        self.out = nn.Linear(embed_dim, VOCAB)

    def encode(self, source: Tensor) -> Tensor:
        x = self.tokens(source) + self.places(torch.arange(source.shape[1]))
        x = x + self.reads(self.norms[0](x), need_weights=False)[0]
        return x + self.thinks(self.norms[1](x))

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        first: int = 0,
        own: mh.KVCache | None = None,
        cross: mh.KVCache | None = None,
    ) -> Tensor:
        x = self.tokens(target) + self.places(torch.arange(first, first + target.shape[1]))
        x = x + self.remembers(self.norms[2](x), need_weights=False, cache=own)[0]
        x = x + self.looks_up(self.norms[3](x), memory, need_weights=False, cache=cross)[0]
        return self.out(x + self.writes(self.norms[4](x)))

    @torch.no_grad()
    def write(self, source: Tensor) -> Tensor:
        """The most likely target, a token at a time."""
        memory, own, cross = self.encode(source), mh.KVCache(), mh.KVCache.cross()
        token, written = torch.full((len(source), 1), BEGIN), []
        for place in range(source.shape[1]):
            token = self.decode(token, memory, place, own, cross)[:, -1:].argmax(-1)
            written.append(token)
        return torch.cat(written, 1)


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--length", type=int, default=6)
    asked = parser.parse_args(argv)
    torch.manual_seed(0)
    model = EncoderDecoder(64, 4, asked.length)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(asked.steps):
        source = torch.randint(1, VOCAB, (32, asked.length))
        target = source.flip(1)
        shifted = torch.cat([torch.full((len(source), 1), BEGIN), target[:, :-1]], 1)
        guesses = model.decode(shifted, model.encode(source))
        loss = nn.functional.cross_entropy(guesses.flatten(0, 1), target.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 100 == 0 or step == asked.steps - 1:
            print(f"step {step:4}  loss {loss.item():.3f}")
    source = torch.randint(1, VOCAB, (64, asked.length))
    right = (model.write(source) == source.flip(1)).float().mean().item()
    print(f"reads  {source[0].tolist()}\nwrites {model.write(source[:1])[0].tolist()}\n{right:.0%} of tokens right")
    return right


if __name__ == "__main__":
    main()
