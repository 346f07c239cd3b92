"""What a layer should give, in NumPy and float64 from its own numbers, written without its code: only the reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from manyheads import reference
from manyheads.nn.projections import FusedProjections


@dataclass
class Expected:
    out: np.ndarray  # b q m
    weights: np.ndarray  # b h q k


def array(x):
    return None if x is None else x.detach().double().numpy()


def linear(x, weight, bias):
    product = x @ array(weight).T
    return product if bias is None else product + array(bias)


def project(layer, query, key, value):
    of = layer.qkv_proj
    if isinstance(of, FusedProjections):
        h, g = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
        rows = [slice(0, h), slice(h, h + g), slice(h + g, None)]
        parts = [(of.weight[r], None if of.bias is None else of.bias[r]) for r in rows]
    else:
        parts = [(part.weight, part.bias) for part in (of.q, of.k, of.v)]
    counts = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    inputs = zip((query, key, value), parts, counts, strict=True)
    return [linear(x, *part).reshape(*x.shape[:2], count, -1).swapaxes(1, 2) for x, part, count in inputs]


def normed(x, norm):
    if norm is None:
        return x
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps) * array(norm.weight)


def turned(x, rope, positions):
    """Rotation as multiplication of complex numbers, for plain rope, halves or neighbours paired."""
    dims = rope.dims or x.shape[-1]
    rest, x = x[..., dims:], x[..., :dims]
    angle = np.asarray(positions)[..., None] * rope.base ** (-np.arange(0, dims, 2) / dims)
    turn = np.exp(1j * angle)
    turn = turn[:, None] if turn.ndim == 3 else turn
    if rope.interleaved:
        z = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        x = np.stack([z.real, z.imag], -1).reshape(x.shape)
    else:
        z = (x[..., : dims // 2] + 1j * x[..., dims // 2 :]) * turn
        x = np.concatenate([z.real, z.imag], -1)
    return np.concatenate([x, rest], -1)


def alibi_slope(head, num_heads):
    """Press et al. 2022 for 6 heads: those of 4 heads, then every other one of 8."""
    assert num_heads == 6
    return [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3][head]


def relative_class(ahead, count, furthest, causal):
    """Raffel et al. 2020, one distance at a time: as many distances alone as in widening classes."""
    first = 0 if causal or ahead <= 0 else count // 2
    count = count if causal else count // 2
    distance, single = max(-ahead, 0) if causal else abs(ahead), count // 2
    if distance < single:
        return first + distance
    return first + min(single + int(math.log(distance / single) / math.log(furthest / single) * single), count - 1)


def expected(layer, query, key=None, value=None, *, visible=None, bias=None, positions=None, causal=False):
    """`visible` and `bias` broadcast to (b, h, q, k), extra keys left out; inputs are float64 "b n m"."""
    key = query if key is None else key
    value = key if value is None else value
    q, k, v = project(layer, query, key, value)
    q, k = normed(q, layer.q_norm), normed(k, layer.k_norm)
    (b, h, num_q, _), num_k = q.shape, k.shape[2]
    places = np.arange(num_q) + num_k - num_q
    if layer.rotary is not None:
        own = positions is not None
        q = turned(q, layer.rotary.rope, positions if own else places)
        k = turned(k, layer.rotary.rope, positions if own else np.arange(num_k))
    seen = np.ones((b, h, num_q, num_k), bool) if visible is None else np.broadcast_to(visible, (b, h, num_q, num_k))
    ahead = np.arange(num_k) - places[:, None]
    if layer.causal or causal:
        seen = seen & (ahead <= 0)
    if layer.window is not None:
        seen = seen & (abs(ahead) < layer.window)
    added = np.zeros((b, h, num_q, num_k)) if bias is None else np.broadcast_to(bias, (b, h, num_q, num_k))
    if layer.alibi:
        added = added - np.array([alibi_slope(i, h) for i in range(h)])[:, None, None] * abs(ahead)
    if layer.relative_bias is not None:
        count, furthest = layer.relative_bias.weight.shape[0], layer.relative_bias.rule.max_distance
        classes = np.vectorize(lambda step: relative_class(step, count, furthest, layer.causal))(ahead)
        added = added + np.moveaxis(array(layer.relative_bias.weight)[classes], -1, 0)
    if layer.bias_k is not None:
        k = np.concatenate([k, np.broadcast_to(array(layer.bias_k), (b, *layer.bias_k.shape))], 2)
        v = np.concatenate([v, np.broadcast_to(array(layer.bias_v), (b, *layer.bias_v.shape))], 2)
    if layer.add_zero_attn:
        k, v = (np.concatenate([x, np.zeros((*x.shape[:2], 1, x.shape[3]))], 2) for x in (k, v))
    extra = ((0, 0), (0, 0), (0, 0), (0, k.shape[2] - num_k))
    seen, added = np.pad(seen, extra, constant_values=True), np.pad(added, extra)
    if layer.scale_by_head is not None:
        q, scale = q * array(layer.scale_by_head)[:, None, None], 1.0
    else:
        scale = layer.scale
    got = reference.attend(q, k, v, mask=seen, bias=added, scale=scale, softcap=layer.softcap, sinks=array(layer.sinks))
    out = got.out if layer.head_scale is None else got.out * array(layer.head_scale)[:, None, None]
    out = linear(out.swapaxes(1, 2).reshape(b, num_q, -1), layer.out_proj.weight, layer.out_proj.bias)
    return Expected(out, got.weights)


def stirred(layer, generator):
    """Random numbers in every parameter, so that none that starts at 0 or 1 goes unnoticed."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return layer


def normal(fresh, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=fresh, dtype=torch.float64).to(dtype)
