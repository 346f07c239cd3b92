"""What an int8 cache changes in a trained model: `python -m benchmarks.int8_cache [--tokens 1024] [--prompt 1]`

The bundled tiny-code (4 layers, 8 query heads on 2 of 32) gets our layers in place of its own and reads a page of
Python twice: the prompt at once, then a token at a time, on a cache in float32 and on one in int8. What differs: in
each layer, with the rounding of those below, attention's outputs (as a share of their root mean square) and weights;
then the model's loss. A line of JSON each.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
from torch import Tensor, nn

import manyheads as mh
from manyheads.corpora import reading_of
from manyheads.nn import load_state
from manyheads.nn.state_dicts import layer_from_config


class Cached(nn.Module):
    """Our layer where transformers calls its own; keeps its cache, and what came out of every call."""

    def __init__(self, layer: mh.MultiHeadAttention) -> None:
        super().__init__()
        self.layer, self.cache = layer, mh.KVCache()
        self.outputs: list[Tensor] = []
        self.weights: list[Tensor] = []

    def start(self, dtype: torch.dtype | None) -> None:
        self.cache, self.outputs, self.weights = mh.KVCache(dtype=dtype), [], []

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        out, weights = self.layer(hidden_states, average_attn_weights=False, cache=self.cache)
        assert weights is not None
        self.outputs.append(out[0])
        self.weights.append(weights[0, :, -1])
        return out, None


@torch.no_grad()
def read(model: nn.Module, layers: list[Cached], ids: Tensor, prompt: int, dtype: torch.dtype | None) -> dict[str, Any]:
    """Logits of every token, each layer's outputs and weights, and the caches' bytes."""
    for layer in layers:
        layer.start(dtype)
    chunks = [ids[:, :prompt], *ids[:, prompt:].split(1, 1)]
    logits = torch.cat([model(chunk, use_cache=False).logits[0] for chunk in chunks])
    outputs = [torch.cat(layer.outputs) for layer in layers]
    num_bytes = sum(layer.cache.cache_bytes for layer in layers)
    return {"logits": logits, "outputs": outputs, "weights": [layer.weights for layer in layers], "bytes": num_bytes}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--prompt", type=int, default=1)
    requested = parser.parse_args(argv)
    lm = mh.load("tiny-code")
    model: Any = lm.model.eval()
    layers: list[Cached] = []
    for index, block in enumerate(model.model.layers):
        layer, family = layer_from_config(model.config, index)
        load_state(layer, block.self_attn.state_dict(), family)
        block.self_attn = Cached(layer.eval())
        layers.append(block.self_attn)
    page = "\n\n".join(reading_of("tiny-code").texts())
    tokenizer: Any = lm.tokenizer
    ids = torch.tensor(tokenizer(page)["input_ids"][: requested.tokens])[None]
    exact, rounded = (read(model, layers, ids, requested.prompt, dtype) for dtype in (None, torch.int8))
    for index in range(len(layers)):
        want, got = exact["outputs"][index], rounded["outputs"][index]
        off = (got - want).abs() / want.square().mean().sqrt()
        steps = zip(rounded["weights"][index], exact["weights"][index], strict=True)
        cells = torch.cat([(one - other).abs().flatten() for one, other in steps])
        row: dict[str, Any] = {"layer": index}
        off_by = {"output_max": off.max(), "output_mean": off.mean()}
        off_by |= {"weight_max": cells.max(), "weight_mean": cells.mean()}
        print(json.dumps(row | {name: round(float(value), 8) for name, value in off_by.items()}))
    targets = ids[0, 1:]
    losses = [nn.functional.cross_entropy(way["logits"][:-1], targets) for way in (exact, rounded)]
    same = (exact["logits"].argmax(-1) == rounded["logits"].argmax(-1)).float().mean()
    row: dict[str, Any] = {"tokens": ids.shape[1], "prompt": requested.prompt, "loss": float(losses[0])}
    row |= {"loss_int8": float(losses[1]), "same_next_token": float(same)}
    row |= {
        "loss_change": float(losses[1] - losses[0]),
        "bytes_float32": exact["bytes"],
        "bytes_int8": rounded["bytes"],
    }
    print(json.dumps(row | {"ratio": rounded["bytes"] / exact["bytes"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
