"""A recording of tensors that somebody else computed: q, k and, where they have it, each row's log-sum-exp.

q and k say everything about a map, so whoever has them (another library's hooks, a serving engine's dump, a module of
one's own) needs no model here. Keys are as they were multiplied: after rotation, after a norm of q and k.
"""

# pyright: reportUnnecessaryIsInstance=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# What people pass in is checked, whatever its type says; torch does not say what `unique` returns.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.attention import Mask, Rule, check_attention, log_sum_exp
from manyheads.errors import RecordingError, ShapeError
from manyheads.recording.exact_map.layer import Layer
from manyheads.recording.layer import LayerRecord
from manyheads.recording.recording import Recording
from manyheads.spec import CROSS, Site
from manyheads.texts import Tokens

MaskLike: TypeAlias = "str | Mask | Tensor"
"""What says which keys a row sees: "causal", "full", a Mask, or a boolean tensor `b h q k` (True = may look)."""

CHECKED_ROWS = 8  # of each text and layer, computed again where an lse is given
SAME = {torch.float64: 1e-6, torch.float32: 1e-3}  # of 1 + |lse|, by the coarser dtype of q and lse
HALF_SAME = 0.05  # in 16 bits, where kernels round q, k or the lse once more


@torch.no_grad()
def record_tensors(
    q: Tensor | Sequence[Tensor],
    k: Tensor | Sequence[Tensor],
    lse: Tensor | Sequence[Tensor] | None = None,
    *,
    mask: MaskLike | Sequence[MaskLike] = "causal",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Sequence[int] | None = None,
    tokens: Tokens | None = None,
    modules: Sequence[str] = (),
    layer_numbers: Sequence[int] = (),
    provenance: Mapping[str, object] | None = None,
) -> Recording:
    """A recording of one layer, `q: [b, h, n, d]` and `k: [b, g, n, d]`, or of a list of layers.

    - `q`: queries. Where there are fewer than keys, they are the last ones of each text.
    - `k`: keys. Texts are left-aligned.
    - `lse`: each row's log-sum-exp (natural log), which is checked on some rows against q and k; None: it is computed,
      at the cost of one attention call without values.
    - `mask`: which keys a row may see, of each layer or of all.
    - `scale`: of the scores; None: 1 / sqrt(d).
    - `softcap`: of the scores, in every layer.
    - `sinks`: as in `attend`, of every layer.
    - `bias`: as in `attend`, of every layer.
    - `lengths`: text b has the first `lengths[b]` keys; None: all.
    - `tokens`: the words; None: positions alone.
    - `modules`: the layers' names.
    - `layer_numbers`: the layers' numbers; none: from 0.
    - `provenance`: from what model this is, as plain data.

    Errors: ShapeError for tensors that do not fit each other; RecordingError for an lse that is not theirs.
    """
    qs, ks = _listed(q, "q"), _listed(k, "k")
    lses = [None] * len(qs) if lse is None else _listed(lse, "lse")
    masks = list(mask) if isinstance(mask, Sequence) and not isinstance(mask, str) else [mask] * len(qs)
    if not qs or len({len(qs), len(ks), len(lses), len(masks)}) > 1:
        raise ShapeError(
            f"q has {len(qs)} layers, k {len(ks)}, lse {len(lses)} and mask {len(masks)}: give one tensor for each "
            f"layer, or one layer."
        )
    if tokens is None:
        num_texts, longest = (ks[0].shape[0], ks[0].shape[2]) if ks[0].ndim == 4 else (0, 0)
        lengths = [longest] * num_texts if lengths is None else list(lengths)
        if len(lengths) != num_texts or not all(0 < length <= longest for length in lengths):
            raise ShapeError(f"{lengths=} of {num_texts} texts of at most {longest} positions: give one for each text.")
        tokens = Tokens.unnamed(lengths)
    numbers = list(layer_numbers) or list(range(len(qs)))
    layers: list[LayerRecord] = []
    for place, number in enumerate(numbers):
        q, k, lse, mask = qs[place].detach(), ks[place].detach(), lses[place], masks[place]
        shapes = f"layer {number}: q has shape {tuple(q.shape)} and k {tuple(k.shape)}"
        if q.ndim != 4 or k.ndim != 4:
            raise ShapeError(f"{shapes}: give four axes (text, head, position, width), as in q[None] of one text.")
        if {len(q), len(k)} != {tokens.num_texts}:
            raise ShapeError(f"{shapes}: every layer needs q and k of the first one's {tokens.num_texts} texts.")
        if q.dtype != k.dtype or q.device != k.device:
            raise ShapeError(
                f"layer {number}: q is {q.dtype} on {q.device}, k {k.dtype} on {k.device}: they must be alike. Convert "
                f"one, as in k.to(q)."
            )
        runs = _mask(mask, q, k, tokens.lengths)
        check_attention(q, k, k, runs, softcap, sinks, bias)
        _, num_heads, num_rows, dim = q.shape
        rule = Rule(1 / math.sqrt(dim) if scale is None else scale, softcap, sinks, bias)
        crosses, because = num_rows != k.shape[2], "given"
        if lse is None:
            lse, because = log_sum_exp(q, k, runs, rule)
        elif lse.shape != q.shape[:3]:
            raise ShapeError(
                f"layer {number}: lse has shape {tuple(lse.shape)}, and q has {tuple(q.shape)}: give one number for "
                f"each text, head and query."
            )
        else:
            _check_lse(Layer(q, k, lse, runs, rule, crosses), tokens, number)
        stack, module = CROSS if crosses else "", modules[place] if modules else f"layer {number}"
        site = Site(stack, number, module, num_heads, k.shape[1], dim, dim, causal=mask == "causal")
        of_rows = Tokens.unnamed([num_rows] * tokens.num_texts) if crosses else tokens
        layers.append(LayerRecord(site, q, k, None, lse.detach(), runs, rule, of_rows.lengths, of_rows, because))
    return Recording({layers[0].site.stack: layers}, tokens, {"model": "given tensors", **(provenance or {})})


def _listed(value: Tensor | Sequence[Tensor], name: str) -> list[Tensor]:
    values = [value] if isinstance(value, Tensor) else list(value)
    if wrong := [type(x).__name__ for x in values if not isinstance(x, Tensor)]:
        raise ShapeError(f"{name} holds a {wrong[0]}: give torch tensors, as in torch.from_numpy(array).")
    return values


def _mask(mask: MaskLike, q: Tensor, k: Tensor, lengths: Int[Tensor, "b"]) -> Mask:
    """The runs of a layer, with padding hidden."""
    num_texts, _, num_rows, num_keys = *q.shape[:3], k.shape[2]
    if isinstance(mask, Tensor):
        if mask.dtype != torch.bool or mask.ndim != 4 or mask.shape[2:] != (num_rows, num_keys):
            raise ShapeError(
                f"mask is {mask.dtype} of shape {tuple(mask.shape)}: give a boolean one (text, head, "
                f"{num_rows} queries, {num_keys} keys), True where a query may look, or 'causal', 'full', a Mask."
            )
        mask = Mask.from_dense(mask)
    elif isinstance(mask, str) and mask in ("causal", "full"):
        # Queries are the last ones of each text: where a text is shorter, its keys end earlier, and so do they.
        shortened = (k.shape[2] - lengths[:, None]) * (num_rows != num_keys)
        runs = Mask.causal(num_rows, num_keys) if mask == "causal" else Mask.full(num_rows, num_keys)
        mask = Mask(runs.start.expand(num_texts, -1), (runs.stop - shortened).clamp_min(0), num_keys)
    elif not isinstance(mask, Mask):
        raise ShapeError(f"{mask=} does not say which keys a row sees: give 'causal', 'full', a Mask or a tensor.")
    if (mask.num_queries, mask.num_keys) != (num_rows, num_keys):
        raise ShapeError(
            f"the mask is for {mask.num_queries} queries and {mask.num_keys} keys, but q and k have {num_rows} and "
            f"{num_keys}."
        )
    if num_rows == num_keys and int(lengths.min()) < num_keys:
        mask = mask.trimmed(torch.zeros_like(lengths), lengths)
        if mask.num_keys < num_keys:  # as wide as the tensors, whose padding nobody sees
            more = num_keys - mask.num_keys
            start, stop = (torch.nn.functional.pad(x, (0, more)) for x in (mask.start, mask.stop))
            dense = None if mask.dense is None else torch.nn.functional.pad(mask.dense, (0, more, 0, more))
            mask = Mask(start, stop, num_keys, dense)
    return mask


def _check_lse(layer: Layer, tokens: Tokens, number: int) -> None:
    """Errors: RecordingError where some rows' lse are not those of q and k."""
    allowed = max(SAME.get(x.dtype, HALF_SAME) for x in (layer.q, layer.lse))
    for text in range(tokens.num_texts):
        length = layer.q.shape[2] if layer.crosses else int(tokens.lengths[text])
        rows = torch.linspace(0, length - 1, min(length, CHECKED_ROWS), device="cpu").round().long().unique()
        part = layer.one_text(text, rows, layer.k.shape[2])
        expected = log_sum_exp(part.q, part.k, part.mask, part.rule)[0]
        lse = part.lse.to(expected.dtype)
        alive = expected > -torch.inf
        apart = torch.where(alive, (lse - expected).abs(), 0.0).nan_to_num(nan=torch.inf)
        worst = float((apart / (1 + torch.where(alive, expected, 0.0).abs())).max())
        if worst <= allowed:
            continue
        base_2 = torch.where(alive, (lse * math.log(2) - expected).abs() / (1 + expected.abs()), 0.0)
        hint = "give the natural logarithm of the sum of exp(score), with scores scaled, masked and capped, or no lse"
        if float(base_2.nan_to_num(nan=torch.inf).max()) <= allowed:
            hint = "it is in base 2 (as FlashInfer's): multiply it by ln 2"
        raise RecordingError(
            f"layer {number}, text {text}: this lse is not that of q and k, from which it differs by {worst:.1g} of "
            f"its size: {hint}."
        )
