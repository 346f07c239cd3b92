"""A decoder that generates text, with and without a cache, timed: `python examples/generate.py`

A tiny character model is trained on one sentence and continues it. Then the same text is generated three ways, which
must agree: without a cache (the whole text again for every token), with a growing one, with a static one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import manyheads as mh
from manyheads.nn import Rope

TEXT = "the cat sat on the mat because it was tired. "


class Decoder(nn.Module):
    """GQA (`num_kv_heads=2`), rope, SwiGLU: a Llama in small."""

    def __init__(self, vocab: int, embed_dim: int, num_layers: int, max_positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, embed_dim)
        self.attentions = nn.ModuleList(
            mh.MultiHeadAttention(
                embed_dim, 4, 2, batch_first=True, causal=True, bias=False, rope=Rope(max_positions=max_positions)
            )
            for _ in range(num_layers)
        )
        self.feed_forwards = nn.ModuleList(mh.SwiGLU(embed_dim) for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.RMSNorm(embed_dim) for _ in range(2 * num_layers + 1))
        self.out = nn.Linear(embed_dim, vocab, bias=False)

    def forward(self, tokens: Tensor, caches: list[mh.KVCache] | None = None) -> Tensor:
        x = self.tokens(tokens)
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            x = x + attention(self.norms[2 * i](x), need_weights=False, cache=caches[i] if caches else None)[0]
            x = x + feed_forward(self.norms[2 * i + 1](x))
        return self.out(self.norms[-1](x))


@torch.no_grad()
def generate(model: Decoder, prompt: Tensor, count: int, make: Callable[[], mh.KVCache] | None) -> Tensor:
    """`prompt` and `count` more tokens, each the most likely one; `make` makes a cache a layer, or there is none."""
    caches = [make() for _ in model.attentions] if make else None
    text, new = prompt, prompt
    for _ in range(count):
        new = model(new if caches else text, caches)[:, -1:].argmax(-1)
        text = torch.cat([text, new], 1)
    return text


def main(argv: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--count", type=int, default=120)  # it was trained on 135 characters, and knows no further
    asked = parser.parse_args(argv)
    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    ids = torch.tensor([letters.index(letter) for letter in TEXT * 3])[None]
    room = 10 + asked.count
    model = Decoder(len(letters), 48, 2, max(room, ids.shape[1]))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(asked.steps):
        loss = nn.functional.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    ways = {"no cache": None, "growing": mh.KVCache, "static": lambda: mh.KVCache.static(room)}
    texts = {}
    for name, make in ways.items():
        begin = time.perf_counter()
        texts[name] = generate(model, ids[:, :10], asked.count, make)
        print(f"{name:9} {1000 * (time.perf_counter() - begin) / asked.count:6.2f} ms a token")
    assert all(bool((text == texts["no cache"]).all()) for text in texts.values())
    written = "".join(letters[i] for i in texts["static"][0].tolist())
    print(written)
    return written


if __name__ == "__main__":
    main()
