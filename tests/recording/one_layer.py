"""A layer record over random q and k, and each text's whole map, which comes from `reference.attend`, text by text."""

from dataclasses import dataclass

import numpy as np
import torch

from manyheads import reference
from manyheads.nn import Mask, Rule
from manyheads.recording import LayerRecord, Tokens
from manyheads.spec import Site

H, G, D, F = 6, 3, 5, 4
LENGTHS = (13, 7, 17, 1)
SCALE = 0.7


def visible_cells(rng, kind, num_texts, num_rows, num_keys):
    """[b, 1 or h, q, k]: who may look where, before padding."""
    row, key = np.arange(num_rows)[:, None], np.arange(num_keys)
    shape = (num_texts, H if kind == "head by head" else 1, num_rows, num_keys)
    if kind in ("holes", "head by head"):
        return rng.random(shape) < 0.6
    seen = np.broadcast_to(
        {"bidirectional": key >= 0, "window": (key <= row) & (key > row - 4)}.get(kind, key <= row), shape
    )
    return seen & (rng.random((num_rows, 1)) < 0.6) if kind == "dead rows" else seen.copy()


def make_rule(rng, option, num_texts, num_rows, num_keys):
    everything = option == "everything"
    bias = None
    if everything or "bias" in option:
        shape = (1, 1) if option == "shared bias" else (num_texts, H)
        bias = torch.from_numpy(rng.normal(size=(*shape, num_rows, num_keys))).float()
    sinks = torch.from_numpy(rng.normal(size=H)).float() if everything or option == "sinks" else None
    return Rule(SCALE, 1.3 if everything or option == "softcap" else None, sinks, bias)


@dataclass
class Case:
    """A record over some texts, and each text's whole map, [h q k] in float64."""

    layer: LayerRecord
    maps: list

    def each(self):
        return ((text, torch.from_numpy(full)) for text, full in enumerate(self.maps))


def make_case(rng, kind="causal", option="plain", lengths=LENGTHS, dtype=torch.float32, keys=None):
    """Random q and k; padding holds garbage, which nobody may see. `keys` makes it cross-attention to that many."""
    num_texts, num_rows = len(lengths), max(lengths)
    num_keys, key_lengths = (num_rows, lengths) if keys is None else (max(keys), keys)
    q = torch.from_numpy(rng.normal(size=(num_texts, H, num_rows, D))).to(dtype)
    k = torch.from_numpy(rng.normal(size=(num_texts, G, num_keys, D))).to(dtype)
    rule = make_rule(rng, option, num_texts, num_rows, num_keys)
    seen = visible_cells(rng, kind, num_texts, num_rows, num_keys)
    lse, maps = torch.full((num_texts, H, num_rows), -torch.inf), []
    for text, (own, length) in enumerate(zip(lengths, key_lengths, strict=True)):
        seen[text, :, own:], seen[text, :, :, length:] = False, False
        bias = None if rule.bias is None else rule.bias.expand(num_texts, -1, -1, -1)[text : text + 1, :, :own, :length]
        got = reference.attend(
            q[text : text + 1, :, :own].double().numpy(),
            k[text : text + 1, :, :length].double().numpy(),
            np.zeros((1, G, length, 1)),
            mask=np.broadcast_to(seen[text, :, :own, :length], (H, own, length))[None],
            scale=SCALE,
            softcap=rule.softcap,
            sinks=None if rule.sinks is None else rule.sinks.double().numpy(),
            bias=None if bias is None else bias.double().numpy(),
        )
        lse[text, :, :own] = torch.from_numpy(got.lse[0])
        maps.append(got.weights[0])
    tokens, mask = Tokens.unnamed(lengths), Mask.from_dense(torch.from_numpy(seen))
    site = Site("", 3, "layer.3", H, G, D, F, causal=kind != "bidirectional")
    return Case(LayerRecord(site, q, k, None, lse, mask, rule, tokens.lengths, tokens), maps)


def assert_near(got, want, atol=1e-5):
    torch.testing.assert_close(got.double(), torch.as_tensor(want).double(), rtol=0, atol=atol)
