"""The guard: what we rebuild must equal what the model's own function returned, or there is no recording.

On sampled rows, `weights @ v`, rebuilt from q, k, lse, mask and rule, is held against the function's own output. A
forgotten softcap, a wrong scale, a lost mask or a swapped key/value head all show here. (Row sums would not do: the
lse comes from the same scores, so a forgotten softcap leaves them at 1.) Cost: a few rows of each call.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.errors import GuardError, ModelError
from manyheads.models.calls import AttentionCall

GUARD_ROWS = 4  # rows a text; every head is checked on each
GUARD_TEXTS = 2  # of a batch; of all others the last row
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Largest allowed distance, in norms of the row. float32: sums of thousands of terms; half types: their rounding."""


@torch.no_grad()
def check(call: AttentionCall, model: torch.nn.Module) -> float:
    """The worst distance found, as a share of its row's norm. Errors: GuardError; ModelError where there is NaN."""
    num_texts, _, num_rows, _ = call.q.shape
    if not call.q.numel() or not call.k.numel():
        return 0.0
    samples = [(_sample(num_texts, GUARD_TEXTS), _sample(num_rows, GUARD_ROWS))]
    if num_texts > GUARD_TEXTS:  # one row of every text: padding may be misread in a single one
        samples.append((torch.arange(num_texts), _sample(num_rows, 1)))
    return max(_check_rows(call, model, texts, rows) for texts, rows in samples)


def _check_rows(call: AttentionCall, model: torch.nn.Module, texts: Int[Tensor, "t"], rows: Int[Tensor, "r"]) -> float:
    seen, norm, rebuilt = rebuild(call, texts, rows)
    returned = call.out[texts][:, :, rows].to(rebuilt.dtype)
    if not bool(torch.isfinite(returned[seen]).all()):
        raise ModelError(_nan_story(call, model))
    distance = (rebuilt - returned).norm(dim=-1)
    relative = torch.where(seen, distance / norm.clamp_min(1e-30), 0).nan_to_num(nan=torch.inf)
    worst = float(relative.max())
    if not worst <= TOLERANCE[call.q.dtype]:
        text, head, row = (int(i) for i in (relative == relative.max()).nonzero()[0])
        place = f"layer {call.site.layer} ({call.site.module}), head {head}, row {int(rows[row])}"
        norms = [float(x[text, head, row].norm()) for x in (returned, rebuilt)]
        raise GuardError(
            f"{place} of text {int(texts[text])}: the model's attention returned a vector of norm {norms[0]:.6g}, what "
            f"was rebuilt from its q, k and v has norm {norms[1]:.6g} and lies {worst:.2g} of the row's norm away "
            f"(allowed: {TOLERANCE[call.q.dtype]:g}). This attention does something that was not recorded, so a "
            f"recording would be wrong: none is made."
        )
    return worst


def rebuild(
    call: AttentionCall, texts: Int[Tensor, "t"], rows: Int[Tensor, "r"]
) -> tuple[Tensor, Tensor, Float[Tensor, "t h r f"]]:
    """Which sampled rows see anything, their norm (of what they could add up to at the least), and their output."""
    dtype = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    num_heads, groups = call.q.shape[1], call.k.shape[1]
    q = call.q[texts][:, :, rows].to(dtype)
    group = torch.arange(num_heads) // (num_heads // groups)
    k, v = (x[texts].to(dtype) if groups == num_heads else x[texts][:, group].to(dtype) for x in (call.k, call.v))
    scores = q @ k.transpose(2, 3) * call.rule.scale
    if call.rule.softcap is not None:
        scores = call.rule.softcap * (scores / call.rule.softcap).tanh()
    if call.rule.bias is not None:
        scores = scores + call.rule.bias.expand(call.q.shape[0], *call.rule.bias.shape[1:])[texts][:, :, rows]
    mask = call.mask.expand(call.q.shape[0])
    if mask.dense is not None:
        visible = mask.dense.expand(call.q.shape[0], -1, -1, -1)[texts][:, :, rows]
    else:
        key = torch.arange(call.k.shape[2])
        start, stop = mask.start[texts][:, rows], mask.stop[texts][:, rows]
        visible = ((key >= start[..., None]) & (key < stop[..., None]))[:, None]
    lse = call.lse[texts][:, :, rows].to(dtype)
    weights = torch.where(visible, (scores - torch.where(lse == -torch.inf, 0, lse)[..., None]).exp(), 0)
    rebuilt = weights @ v
    # A row whose values cancel has next to no norm of its own: a thousandth of what it adds up keeps rounding apart.
    norm = rebuilt.norm(dim=-1) + 1e-3 * (weights @ v.norm(dim=-1, keepdim=True))[..., 0]
    return visible.any(-1).expand(-1, num_heads, -1), norm, rebuilt


def _sample(size: int, count: int) -> Int[Tensor, "n"]:
    """Indices spread over an axis, its last one among them: the last row of a text sees most."""
    return torch.linspace(size - 1, 0, min(size, count)).round().long().unique()


def _nan_story(call: AttentionCall, model: torch.nn.Module) -> str:
    """Which weights hold NaN, or that none does."""
    for name, parameter in model.named_parameters():
        if parameter.device.type != "meta" and not bool(torch.isfinite(parameter).all()):
            return (
                f"the weights of {name} hold NaN or infinity, first seen in the output of layer {call.site.layer} "
                f"({call.site.module}): the checkpoint is damaged; load another copy."
            )
    return (
        f"the output of layer {call.site.layer} ({call.site.module}) holds NaN or infinity, "
        f"though every weight is finite: "
        f"{call.q.dtype} overflowed; load the model with dtype='float32'."
    )
