"""An architecture in words: how its attention is shaped, and which layers differ. For pages, figures and documents."""

from __future__ import annotations

from collections import Counter

from manyheads.sizing.results import kind_of
from manyheads.sizing.shapes import Architecture, Attention

__all__ = ["layers_in_words", "shape_in_words"]


def shape_in_words(architecture: Architecture) -> str:
    """ "80 layers of 8,192, 64 heads of 128 on 8 key/value heads (GQA-8), 32,000 words, 4,096 positions"."""
    at = architecture
    count = len(at.layers)
    said = [f"{count} layer{'s' * (count != 1)} of {at.embed_dim:,}"]
    shapes = {(each.num_heads, each.num_kv_heads, each.qk_dim, each.v_dim, each.latent) for each in at.attention}
    if len(shapes) == 1:
        said.append(_heads(at.attention[0], kind_of(at)))
    elif shapes:
        said.append(f"attention of {len(shapes)} shapes ({kind_of(at)})")
    said += [f"{at.vocab_size:,} words"] if at.vocab_size else []
    said += [f"{at.max_positions:,} positions"] if at.max_positions else []
    return ", ".join(said)


def layers_in_words(architecture: Architecture) -> str:
    """ "21 of 42 layers see the last 4,096 tokens; 58 of 61 layers have experts"; "" where all layers are alike."""
    at, said = architecture, list[str]()
    windows = Counter(each.window for layer in at.layers for each in layer.attention if each.window)
    total = len(at.layers)
    for window, count in sorted(windows.items()):
        seen = "chunks of" if any(each.chunked for each in at.attention if each.window == window) else "the last"
        said.append(f"{_share(count, total)} see {seen} {window:,} tokens")
    sparse = [layer for layer in at.layers if any(each.experts > 1 for each in layer.weights)]
    if sparse:
        one = next(each for layer in sparse for each in layer.weights if each.experts > 1)
        said.append(f"{_share(len(sparse), total)} have {one.experts} experts, of which a token uses {one.chosen}")
    stateful = sum(1 for layer in at.layers if layer.state or layer.state32)
    if stateful:
        said.append(f"{_share(stateful, total)} keep a state that does not grow")
    stacks = Counter(layer.stack for layer in at.layers if layer.stack)
    said += [f"{count} layers of {stack}" for stack, count in stacks.items()] if len(stacks) > 1 else []
    return "; ".join(said)


def _heads(attention: Attention, kind: str) -> str:
    at = attention
    wide = f"{at.qk_dim}" if at.qk_dim == at.v_dim else f"{at.qk_dim} (q, k) and {at.v_dim} (v)"
    said = f"{at.num_heads} head{'s' * (at.num_heads != 1)} of {wide}"
    if at.latent:
        return f"{said} on latents of {at.latent[0]} + {at.latent[1]} (MLA)"
    if at.num_kv_heads == at.num_heads:
        return f"{said} ({kind})"
    return f"{said} on {at.num_kv_heads} key/value head{'s' * (at.num_kv_heads != 1)} ({kind})"


def _share(count: int, total: int) -> str:
    return "all layers" if count == total else f"{count} of {total} layers"
