"""Attention with each row's log-sum-exp: the one fact about a head from which all its weights can be rebuilt.

`weight[i, j] = exp(score[i, j] - lse[i])`, exactly, so nobody needs the full map. Two backends share one contract:

- `fused`: torch's fused kernel, which returns the lse for free. It serves float masks badly, softcap
  and bias not at all, so it is used where a text's visible keys are a plain slice or a causal triangle. Sinks are exact
  on top of it: they only rescale the output. It needs d_q = d_k = d_v, so the narrower side is padded with zeros,
  which changes no bit of the result. The CPU's kills the process on an empty axis: never called with one.
- `tiles`: blocks of rows in plain torch, O(block) memory, for everything else and every other device.

`decode_one` is the path of a single new token against many cached ones; it returns no lse.

Source: Dao 2023, FlashAttention-2, Algorithm 1 (the lse); Xiao et al. 2024 and gpt-oss (sinks).
Oracle: reference.attend.

torch's fused kernels that return a log-sum-exp (`FUSED_KERNELS`) all return the natural logarithm in float32 (float64
for float64), as `[b h q]` once padding and a last axis of one are off. `attend` calls them by itself; a tap watches for
them in a model's own calls. Checked on torch 2.13: shapes and dtypes of the CUDA kernels by torch's own fake tensors,
their numbers nowhere yet.

Source: torch's `native_functions.yaml`; its context parallelism, which adds blocks up by these lse as natural ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.attention import SDPBackend

from manyheads import private_names
from manyheads.attention.masks import Mask
from manyheads.attention.scores import Rule, check_softcap, exact_arithmetic
from manyheads.base import check_groups, one_of
from manyheads.errors import ShapeError


@dataclass(frozen=True)
class FusedKernel:
    """`asked`: whether it returns the lse only where its fifth argument, `compute_log_sumexp`, says so."""

    name: str
    operator: Any
    asked: bool = False

    def run(
        self,
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b g k d"],
        v: Float[Tensor, "b g k d"],
        causal: bool,
        scale: float,
    ) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h q"]]:
        """Output and lse. Head widths are alike; on CUDA they are a multiple of `WIDTHS`."""
        result = self.operator(q, k, v, *((None, True) if self.asked else ()), 0.0, causal, scale=scale)
        return result[0], row_lse(result[1], q.shape[2])


WIDTHS = 8  # CUDA's kernels take head widths that are a multiple of this; zeros change nothing
CPU = FusedKernel("CPU", private_names.found("_scaled_dot_product_flash_attention_for_cpu"))
CUDA = {
    SDPBackend.FLASH_ATTENTION: FusedKernel("flash", private_names.found("_scaled_dot_product_flash_attention")),
    SDPBackend.EFFICIENT_ATTENTION: FusedKernel(
        "memory-efficient", private_names.found("_scaled_dot_product_efficient_attention"), asked=True
    ),
    SDPBackend.CUDNN_ATTENTION: FusedKernel(
        "cuDNN", private_names.found("_scaled_dot_product_cudnn_attention"), asked=True
    ),
}
CHOICE: Any = private_names.found("_fused_sdp_choice")
# Of a kernel that this torch lacks, nothing is known: what it computes is computed by tiles.
FUSED_KERNELS = {kernel.operator: kernel for kernel in (CPU, *CUDA.values()) if kernel.operator is not None}


def row_lse(lse: Tensor, num_rows: int) -> Float[Tensor, "b h q"]:
    """A kernel's lse without what it puts beside the rows: a last axis of one (cuDNN), rows up to a multiple of 32."""
    return lse.reshape(*lse.shape[:2], -1)[..., :num_rows]


def kernel_for(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> FusedKernel | None:
    """The kernel that torch itself would choose for such a call; None where that is one without an lse."""
    kernel: FusedKernel | None = CPU
    if q.device.type != "cpu":
        grouped = q.shape[1] != k.shape[1]
        chosen = None if CHOICE is None else CHOICE(q, k, v, None, 0.0, causal, scale=scale, enable_gqa=grouped)
        kernel = None if chosen is None else CUDA.get(SDPBackend(chosen))
    return None if kernel is None or kernel.operator is None else kernel


# pyright: reportUnnecessaryIsInstance=false
# What people pass in is checked, whatever its type says.


BLOCK_CELLS = 4_000_000  # cells of one block of rows in `tiles`: 16 MB of float32, near the size of a last-level cache
ACCELERATOR_CELLS = 1 << 25  # the same on an accelerator, which has memory for more and pays by the call: 134 MB
Backend = Literal["auto", "fused", "tiles"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
LONG_KEYS = 1024  # below it a decoding step is a few calls' overhead, and the fused kernel makes fewest


@dataclass(frozen=True, eq=False)
class Attended:
    """`out` in the dtype of q; `lse`, natural log, float32 (float64 for float64); `because`: which backend, and why."""

    out: Float[Tensor, "b h q f"]
    lse: Float[Tensor, "b h q"]
    because: str


def attend(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k f"],
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "h"] | None = None,
    bias: Float[Tensor, "#b #h q k"] | None = None,
    backend: Backend = "auto",
) -> Attended:
    """Scaled dot-product attention and each row's log-sum-exp.

    - `q`: the queries, after rotation and norms. `h` is a multiple of `g`: head i reads key head `i // (h / g)`.
    - `k`: the keys, likewise; of the dtype and on the device of q.
    - `v`: the values, likewise; their width may be another than that of the keys.
    - `mask`: which keys each row sees; without it every row sees every key.
    - `scale`: of the products of q and k, `1 / sqrt(d)` by default.
    - `softcap`: squeezes scores into (-softcap, softcap).
    - `sinks`: a logit for each query head, which is in the denominator alone.
    - `bias`: added to the scores, after the softcap.
    - `backend`: "fused", "tiles", or "auto", which takes the fused kernel where it serves the call.

    The lse covers the whole denominator, sinks included. A row that sees nothing has output 0 and lse -inf (with a
    sink: lse = sink). Empty axes give empty or zero results.

    Cost: O(q * k * d) time, O(q * f) memory. No gradient of lse. Errors: ShapeError.
    Source: Dao 2023, FlashAttention-2. Oracle: `reference.attend`.
    """
    one_of("backend", backend, BACKENDS, ShapeError, "is not a backend")
    check_attention(q, k, v, mask, softcap, sinks, bias)
    rule = Rule(max(q.shape[-1], 1) ** -0.5 if scale is None else scale, softcap, sinks, bias)
    mask = Mask.full(q.shape[2], k.shape[2]) if mask is None else mask
    plan, why_not = (None, "asked for by name") if backend == "tiles" else _fused_plan(q, k, v, mask, rule)
    if backend == "fused" and plan is None:
        raise ShapeError(f"backend='fused' cannot serve this call: {why_not}. Use backend='auto' or 'tiles'.")
    if plan is None:
        out, lse = _tiles(q, k, v, mask, rule)
        return Attended(out, lse, f"tiles: {why_not}")
    return Attended(*_fused(q, v, rule, plan), plan.because)


def log_sum_exp(
    q: Float[Tensor, "b h q d"], k: Float[Tensor, "b g k d"], mask: Mask, rule: Rule
) -> tuple[Float[Tensor, "b h q"], str]:
    """The lse alone (float32, float64 for float64), and the backend: for calls whose own function did not return one.

    Cost: that of `attend`; where no fused kernel serves the call, without its product with the values.
    """
    check_attention(q, k, k, mask, rule.softcap, rule.sinks, rule.bias)
    # A fused kernel reads values whatever one wants of it; the keys are as good as any, and lie there already.
    plan, why_not = _fused_plan(q, k, k, mask, rule)
    if plan is not None:
        return _fused(q, k, rule, plan)[1], plan.because
    return _tiles(q, k, None, mask, rule)[1], f"tiles: {why_not}"


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    softcap: float | None,
    sinks: Tensor | None,
    bias: Tensor | None,
) -> None:
    """Errors: ShapeError for arguments of `attend` that do not fit each other."""
    # Torch would broadcast what does not fit, or fail in a block of rows far from the argument that is wrong.
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        if not isinstance(tensor, Tensor):
            raise ShapeError(
                f"{name} is a {type(tensor).__name__}: attend wants tensors (text, head, position, width)."
            )
        if tensor.ndim != 4:
            raise ShapeError(
                f"{name} has shape {tuple(tensor.shape)}: attend wants four axes (text, head, position, width)."
            )
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        places = ", ".join(f"{name} is {x.dtype} on {x.device}" for name, x in {"q": q, "k": k, "v": v}.items())
        raise ShapeError(f"{places}: they must be alike. Convert them, as in k.to(q).")
    if not q.is_floating_point():
        raise ShapeError(f"q, k and v are {q.dtype}: attention needs floating-point numbers. Convert them: q.float().")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"q has head width {q.shape[-1]} and k has {k.shape[-1]}: they are multiplied, so must be equal."
        )
    if k.shape[:3] != v.shape[:3]:
        raise ShapeError(
            f"k has (text, head, position) {tuple(k.shape[:3])} and v has {tuple(v.shape[:3])}: must be equal."
        )
    if q.shape[0] != k.shape[0]:
        raise ShapeError(f"q has {q.shape[0]} texts and k has {k.shape[0]}: must be equal.")
    if q.shape[1] != k.shape[1]:  # no heads at all on either side is an empty axis, not an error
        check_groups(q.shape[1], k.shape[1])
    check_softcap(softcap)
    if sinks is not None and sinks.shape != q.shape[1:2]:
        raise ShapeError(f"sinks has shape {tuple(sinks.shape)}: give one sink for each query head, ({q.shape[1]},).")
    for name, extra in {"sinks": sinks, "bias": bias}.items():
        if extra is not None and extra.device != q.device:
            raise ShapeError(f"{name} is on {extra.device} and q on {q.device}: move one, as in {name}.to(q.device).")
    if bias is not None:
        full, shape = (*q.shape[:3], k.shape[2]), tuple(bias.shape)
        if len(shape) != 4 or shape[2:] != full[2:] or shape[0] not in (1, full[0]) or shape[1] not in (1, full[1]):
            raise ShapeError(
                f"bias has shape {shape}, but (text, head, query, key) is {full}: only texts and heads may be 1."
            )
    if mask is not None and not isinstance(mask, Mask):
        raise ShapeError(
            f"mask is a {type(mask).__name__}: give a Mask of manyheads.attention.masks, as Mask.causal(queries, keys) "
            f"or Mask.from_dense(booleans of (text, head, query, key), True = may look) makes one."
        )
    if mask is not None and (mask.num_queries, mask.num_keys) != (q.shape[2], k.shape[2]):
        raise ShapeError(
            f"the mask is for {mask.num_queries} queries and {mask.num_keys} keys, but q has {q.shape[2]} and k "
            f"has {k.shape[2]}: build it with these sizes."
        )
    if mask is not None and mask.start.shape[0] not in (1, q.shape[0]):
        raise ShapeError(f"the mask is for {len(mask.start)} texts, but q has {len(q)}: give 1 or {len(q)}.")


@dataclass(frozen=True)
class _Span:
    """One fused call: these texts see keys `first:last`, all of them or as a causal triangle."""

    texts: slice
    first: int
    last: int
    rows: int
    causal: bool


@dataclass(frozen=True, eq=False)
class _Plan:
    """Fused calls: the span that each covers, its kernel, and q, k and v of it as the kernel takes them."""

    calls: tuple[tuple[_Span, FusedKernel, tuple[Tensor, Tensor, Tensor]], ...]
    because: str


def _fused_plan(q: Tensor, k: Tensor, v: Tensor, mask: Mask, rule: Rule) -> tuple[_Plan | None, str]:
    """Fused calls that cover every text, or None and the reason."""
    # From what costs nothing to ask to what looks at numbers: the last question reads runs of every text.
    if q.device.type not in ("cpu", "cuda"):
        return None, f"no fused kernel for device {q.device.type!r} yet returns what we need"
    if rule.softcap is not None:
        return None, "softcap is not in any fused kernel"
    if rule.bias is not None:
        return None, "an additive bias would need an n x n tensor"
    if mask.dense is not None:
        return None, "the mask's rows are not runs of keys"
    if 0 in q.shape or 0 in k.shape or v.shape[-1] == 0:
        return None, "the fused kernel kills the process on an empty axis"
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return None, "the fused kernel's lse has no gradient"
    shared = len(mask.start) == 1
    texts = [slice(None)] if shared else [slice(text, text + 1) for text in range(len(mask.start))]
    spans = [_span(mask.start[row], mask.stop[row], served) for row, served in enumerate(texts)]
    fused = tuple(span for span in spans if span is not None)
    if len(fused) < len(spans):
        return None, "rows see runs that are not a plain slice"
    # Without AVX-512, torch's CPU kernel approximates exp for 16-bit types: its lse is off by up to 4e-5, ours is held
    # to 5e-6. In float32 it is exact, and takes 1.16 times as long (docs/lab.yaml).
    on_cpu, dtype = q.device.type == "cpu", q.dtype
    if on_cpu and dtype.itemsize == 2 and torch.backends.cpu.get_cpu_capability() != "AVX512":
        q, k, v = q.float(), k.float(), v.float()
    # Zeros add nothing to a dot product, and nothing to the output but columns that are cut off.
    wide = max(q.shape[-1], v.shape[-1])
    wide = wide if on_cpu else -(-wide // WIDTHS) * WIDTHS
    q, k, v = (x if x.shape[-1] == wide else F.pad(x, (0, wide - x.shape[-1])) for x in (q, k, v))
    # The kernel reads head vectors as if their numbers lay side by side; it does not look, and reads past the end.
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    calls: list[tuple[_Span, FusedKernel, tuple[Tensor, Tensor, Tensor]]] = []
    for span in fused:
        if span.rows == 0:
            continue
        keys = slice(span.first, span.last)
        part = (q[span.texts, :, : span.rows], k[span.texts, :, keys], v[span.texts, :, keys])
        kernel = kernel_for(*part, span.causal, rule.scale)
        if kernel is None:
            return None, f"torch has no fused kernel with an lse for {dtype} and {wide} wide heads on {q.device.type}"
        calls.append((span, kernel, part))
    names = " and ".join(sorted({kernel.name for _, kernel, _ in calls})) or "CPU"
    kind = ("all texts in one call" if shared else "one call a text") + (", in float32" if q.dtype != dtype else "")
    return _Plan(tuple(calls), f"fused: torch's {names} kernel returns the lse ({kind})"), ""


def _span(start: Tensor, stop: Tensor, texts: slice) -> _Span | None:
    """The fused call that gives one text's runs: leading rows that all see one slice, or a triangle from its first key.

    Trailing rows that see nothing (padding) are left out of the call and stay zero.
    """
    # Trailing rows of padding may be left out of a call; a hole between rows that see would need a second one.
    alive = stop > start
    rows = int(alive.sum())
    if rows == 0:
        return _Span(texts, 0, 0, 0, False)
    if not bool(alive[:rows].all()):
        return None
    first, last = int(start[0]), int(stop[rows - 1])
    if bool((start[:rows] != first).any()):
        return None
    if bool((stop[:rows] == last).all()):
        return _Span(texts, first, last, rows, False)
    triangle = first + 1 + torch.arange(rows, device="cpu")
    if bool((stop[:rows] == triangle).all()):
        return _Span(texts, first, last, rows, True)
    return None


def _fused(q: Tensor, v: Tensor, rule: Rule, plan: _Plan) -> tuple[Tensor, Tensor]:
    """Run the plan's calls. Sinks: the kernel's output is rescaled by the share of the denominator that is not sink."""
    width, dtype = v.shape[-1], q.dtype
    # bfloat16 would round an lse of 10 by up to 0.03, and with it every weight of its row by 3 %.
    lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    # Rows in no span keep these: output 0 and lse -inf, the contract for rows that see nothing.
    out = q.new_zeros(*q.shape[:3], width, dtype=plan.calls[0][2][0].dtype if plan.calls else dtype)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=lse_dtype)
    for span, kernel, part in plan.calls:
        part_out, part_lse = kernel.run(*part, span.causal, rule.scale)
        # The usual case, one call for everything: its tensors are the answer, and no second copy is made.
        if len(plan.calls) == 1 and part_lse.shape == lse.shape:
            out, lse = part_out[..., :width], part_lse
        else:
            out[span.texts, :, : span.rows], lse[span.texts, :, : span.rows] = part_out[..., :width], part_lse
    if rule.sinks is None:
        return out.to(dtype), lse
    with_sinks = torch.logaddexp(lse, rule.sinks.to(lse.dtype)[None, :, None].expand_as(lse))
    # A row that sees the sink alone has -inf here: its whole denominator is sink, and its output stays 0.
    share = torch.where(lse == -torch.inf, 0, (lse - with_sinks).exp())
    return (out * share.to(out.dtype)[..., None]).to(dtype), with_sinks.detach()


@exact_arithmetic()
def _tiles(q: Tensor, k: Tensor, v: Tensor | None, mask: Mask, rule: Rule) -> tuple[Tensor, Tensor]:
    """Blocks of rows against the keys that any of them sees; softmax in float32, its maximum subtracted.

    Without values, the output is empty and the lse is the same.
    """
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    num_texts, num_heads, num_rows, dim = q.shape
    # Query heads a key/value head. Sizes are spelt out, never -1: torch cannot guess them where an axis is empty.
    served = num_heads // max(k.shape[1], 1)
    sinks = None if rule.sinks is None else rule.sinks.to(compute)[None, :, None, None]
    blocks: list[Tensor] = []
    sums: list[Tensor] = []
    cells = BLOCK_CELLS if q.device.type == "cpu" else ACCELERATOR_CELLS
    step = max(1, cells // max(1, num_texts * num_heads * k.shape[2]))
    for row in range(0, num_rows, step):
        rows = slice(row, min(row + step, num_rows))
        # Keys that none of these rows sees have weight zero and are not computed.
        start, stop = mask.start[:, rows], mask.stop[:, rows]
        alive = stop > start
        keys = slice(int(start[alive].min()), int(stop[alive].max())) if bool(alive.any()) else slice(0, 0)
        block_q, block_k = q[:, :, rows].to(compute), k[:, :, keys].to(compute)
        height, width = block_q.shape[2], block_k.shape[2]
        packed = block_q.reshape(num_texts, k.shape[1], served * height, dim) @ block_k.transpose(2, 3) * rule.scale
        scores = rule.finish(packed.reshape(num_texts, num_heads, height, width), rows, keys)
        scores = scores.masked_fill(~mask.visible(rows, keys, device=q.device), -torch.inf)
        # amax of an empty axis is an error: a block of rows that all see nothing has no keys.
        top = scores.amax(-1, keepdim=True) if width else scores.new_full((*scores.shape[:3], 1), -torch.inf)
        top = top if sinks is None else torch.maximum(top, sinks)
        top = torch.where(top == -torch.inf, 0, top)  # a row that sees nothing: exp(-inf - 0) is its zero weight
        weights = (scores - top).exp()
        total = weights.sum(-1, keepdim=True)
        total = total if sinks is None else total + (sinks - top).exp()
        sums.append((top + total.log())[..., 0])
        if v is None:
            continue
        # The clamp is for the branch that is not taken: 0 / 0 there would be NaN in the gradient of the other one too.
        weights = torch.where(total > 0, weights / total.clamp_min(torch.finfo(compute).tiny), 0)
        packed = weights.reshape(num_texts, v.shape[1], served * height, width)
        out = packed @ v[:, :, keys].to(compute)
        blocks.append(out.reshape(num_texts, num_heads, height, v.shape[-1]).to(q.dtype))
    lse = torch.cat(sums, 2).detach() if sums else q.new_zeros(num_texts, num_heads, 0, dtype=compute)
    width = 0 if v is None else v.shape[-1]
    return torch.cat(blocks, 2) if blocks else q.new_zeros(num_texts, num_heads, 0, width), lse


def decode_one(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k f"],
    scale: float,
    mask: Shaped[Tensor, "#b #h 1 k"] | None,
) -> tuple[Float[Tensor, "b h 1 f"], str]:
    """`(out, because)` for one new token against many cached ones. `mask`: True = may look, or floats to be added.

    A decoded token costs what it costs to read K and V once. A kernel that takes query heads one by one reads each
    key/value head again for every head it serves; repeating K and V copies them first. Packed, `[b, h, 1, d]` queries
    are `[b, g, h / g, d]`: as many rows as a group has heads, and each key is read once for all of them.
    """
    num_texts, num_heads, _, dim = q.shape
    groups = k.shape[1]
    rows = q.reshape(num_texts, groups, num_heads // groups, dim)
    if mask is not None and mask.shape[1] > 1:  # the heads of a mask become rows, as the query heads do
        mask = mask.reshape(mask.shape[0], groups, -1, mask.shape[-1])
    if q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64) and k.shape[2] >= LONG_KEYS:
        # K times q, not q times K: with so few rows the library reads the tall matrix straight through only from there.
        scores = (k @ (rows * scale).transpose(2, 3)).transpose(2, 3).contiguous()
        if mask is None:
            out = scores.softmax(-1) @ v
        else:
            hides = mask.dtype == torch.bool
            scores = scores.masked_fill(~mask, -torch.inf) if hides else scores + mask.to(scores.dtype)
            # Not torch's softmax: a row that may look nowhere would come out as NaN, and must come out as 0.
            top = scores.amax(-1, keepdim=True)
            raised = (scores - torch.where(top == -torch.inf, 0, top)).exp()
            total = raised.sum(-1, keepdim=True)
            out = (raised @ v) / torch.where(total > 0, total, 1)
        because = "one query, its group's heads as rows of two matrix products: K and V are read once"
    else:
        width = v.shape[-1]
        wide = max(dim, width)
        rows, k, v = (x if x.shape[-1] == wide else F.pad(x, (0, wide - x.shape[-1])) for x in (rows, k, v))
        out = F.scaled_dot_product_attention(rows, k, v, mask, scale=scale)[..., :width]
        because = "scaled_dot_product_attention, one query, its group's heads as rows: K and V are read once"
    return out.reshape(num_texts, num_heads, 1, out.shape[-1]), because
