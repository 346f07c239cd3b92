"""Which backend serves the calls that people make, for what reason, and how far each lies from NumPy.

No rule is restated here: every case is computed by `mh.attend` (or by what a layer calls), and the finding is the
reason that the result carries. Some rows of each are compared with the reference in float64, in the guard's measure;
so are the sums over a map that statistics are made of, all of them, by whatever makes the pass.
Cost: half a second on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from manyheads import reference
from manyheads.base import devices_here
from manyheads.doctor.findings import WRONG, Finding, guarded
from manyheads.models.taps.call import TOLERANCE
from manyheads.nn import Mask, Rule, View, attend, mix
from manyheads.recording import Tokens
from manyheads.recording.exact_map.one_pass import Layer, prepare
from manyheads.recording.exact_map.requests import (
    Band,
    Distance,
    Entropy,
    Mass,
    Match,
    Maximum,
    Received,
    Request,
    Square,
    Strongest,
)
from manyheads.reference import reductions

NUM_TEXTS, NUM_HEADS, HEAD_DIM, VALUE_DIM = 2, 6, 16, 16
SHORT, MIDDLE, LONG = 23, 97, 4096  # tokens; of the middle, the pass makes several tiles on a GPU
ROWS = 5  # of each case, from its middle, are held to the reference
STATISTICS_ALLOWED = 1e-4  # of a sum over a map, as a share of the largest one, or of 1 where that is more
OFFSETS = (-9, -1, 0)
PASS_REMEDY = "Trust no statistic from that device. Set MANYHEADS_PASS=tiles, look again, and please report it."
REMEDY = (
    "Trust no number from here. Install torch anew, or another build of it; if that does not help, please report it."
)


@dataclass(frozen=True)
class Case:
    """One call of `attend`, `about` in words."""

    about: str
    tokens: int = SHORT
    num_kv_heads: int = NUM_HEADS
    dtype: torch.dtype = torch.float32
    causal: bool = False
    padded: bool = False
    float_mask: bool = False
    softcap: float | None = None
    gradient: bool = False


CASES = (
    Case("a short text"),
    Case("a long text", tokens=LONG, causal=True),
    Case("grouped queries", num_kv_heads=2, causal=True),
    Case("padded texts", padded=True),
    Case("a float mask", float_mask=True),
    Case("a softcap", softcap=7.0),
    Case("bfloat16", dtype=torch.bfloat16, causal=True),
    Case("a gradient", gradient=True),
)


def devices() -> list[torch.device]:
    """The CPU, and one accelerator: a second one of its kind would run the same."""
    return devices_here()[:2]


def backends() -> Iterator[Finding]:
    """What runs in each case, on each device."""
    for device in devices():
        where = "" if device.type == "cpu" else f" on {device.type}"
        for case in CASES:
            subject = f"{case.about}{where}"
            yield from guarded(subject, partial(outcome, case, device, subject))
        for about, because in of_layers(device).items():
            yield Finding(f"{about}{where}", because)
        yield from guarded(f"statistics on {device}", partial(statistics, device))


def outcome(case: Case, device: torch.device, subject: str) -> Iterator[Finding]:
    """The case by `attend`: which backend ran and why, and its distance from the reference."""
    q, k, v, options = arguments(case, device)
    attended = attend(q, k, v, **options)
    error, allowed = distance(attended, q, k, v, options), TOLERANCE[case.dtype]
    words = f"{attended.because}; {error:.0e} from NumPy"
    if error <= allowed:
        yield Finding(subject, words)
    else:
        yield Finding(subject, f"{words}, where {allowed:.0e} is allowed", WRONG, REMEDY)


def arguments(case: Case, device: torch.device) -> tuple[Any, Any, Any, dict[str, Any]]:
    """q, k, v, and the options of the call. The same numbers on every run: a verdict must not depend on luck."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(device, case.dtype)

    texts = NUM_TEXTS if case.tokens == SHORT else 1
    q = normal(texts, NUM_HEADS, case.tokens, HEAD_DIM)
    k = normal(texts, case.num_kv_heads, case.tokens, HEAD_DIM)
    v = normal(texts, case.num_kv_heads, case.tokens, VALUE_DIM)
    mask = Mask.full(case.tokens, case.tokens)
    if case.causal:
        mask = Mask.causal(case.tokens, case.tokens)
    if case.padded:
        lengths = torch.tensor([case.tokens, case.tokens - 7], device=device)
        mask = Mask.from_lengths(lengths, case.tokens, case.tokens)
    bias = normal(1, NUM_HEADS, case.tokens, case.tokens) if case.float_mask else None
    return q.requires_grad_(case.gradient), k, v, {"mask": mask, "bias": bias, "softcap": case.softcap}


def distance(attended: Any, q: Any, k: Any, v: Any, options: dict[str, Any]) -> float:
    """The largest distance of some rows from the reference, in norms of the row; or of their lse, if that is larger."""
    first = q.shape[2] // 2
    rows, mask, bias = slice(first, first + ROWS), options["mask"], options["bias"]
    q, k, v = (x.detach().cpu().double().numpy() for x in (q[:, :, rows], k, v))
    visible = mask.visible(rows, slice(0, mask.num_keys)).cpu().numpy()
    added = None if bias is None else bias[:, :, rows].cpu().double().numpy()
    true = reference.attend(q, k, v, mask=visible, bias=added, softcap=options["softcap"])
    out, lse = (x[:, :, rows].detach().cpu().double() for x in (attended.out, attended.lse))
    true_out, true_lse = torch.from_numpy(true.out), torch.from_numpy(true.lse)
    apart = (out - true_out).norm(dim=-1) / true_out.norm(dim=-1)
    lse_apart = (lse - true_lse).abs() / true_lse.abs().clamp_min(1)
    return float(torch.stack([apart.max(), lse_apart.max()]).nan_to_num(nan=torch.inf).max())


def of_layers(device: torch.device) -> dict[str, str]:
    """What `MultiHeadAttention` calls where it needs no lse: in training, and for one more token of a long text."""
    q, k, v, _ = arguments(Case("", tokens=LONG, num_kv_heads=2), device)
    short_q, short_k, short_v = (x[:, :, :SHORT] for x in (q.clone().requires_grad_(), k, v))
    rule = Rule(HEAD_DIM**-0.5)
    trained = mix(short_q, short_k, short_v, View(SHORT, SHORT, causal=True), rule, dropout=0.1)
    decoded = mix(q[:, :, -1:], k, v, View(1, LONG, causal=True), rule)
    return {"a layer's dropout": trained.because, "a layer's next token": decoded.because}


def statistics(device: torch.device) -> Iterator[Finding]:
    """Sums over a layer's map by the pass as it is chosen for the device: what made it and why, how far from NumPy."""
    layer, requests, true = sums(device)
    reduced = prepare(Tokens.unnamed([MIDDLE] * NUM_TEXTS), requests).run(layer)
    apart = []
    for request, expected in zip(requests, true, strict=True):
        difference = (reduced[request].double() - expected).abs().max() / expected.abs().max().clamp_min(1)
        apart.append(float(difference.nan_to_num(nan=torch.inf)))
    words = f"{reduced.because}; {max(apart):.0e} from NumPy"
    if max(apart) <= STATISTICS_ALLOWED:
        yield Finding(f"statistics on {device}", words)
    else:
        kind = type(requests[apart.index(max(apart))]).__name__
        words += f" ({kind}), where {STATISTICS_ALLOWED:.0e} is allowed"
        yield Finding(f"statistics on {device}", words, WRONG, PASS_REMEDY)


def sums(device: torch.device) -> tuple[Layer, list[Request], list[torch.Tensor]]:
    """A causal layer on the device, what is requested of it, and NumPy's answers. The same numbers on every run."""
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(NUM_TEXTS, NUM_HEADS, MIDDLE, HEAD_DIM, generator=draw)
    k = torch.randn(NUM_TEXTS, 2, MIDDLE, HEAD_DIM, generator=draw)
    labels = torch.randint(5, (NUM_TEXTS, MIDDLE), generator=draw)
    mask, scale = Mask.causal(MIDDLE, MIDDLE), HEAD_DIM**-0.5
    visible = mask.visible(slice(0, MIDDLE), slice(0, MIDDLE)).numpy()
    exact_q, exact_k = q.double().numpy(), k.double().numpy()
    true = reference.attend(exact_q, exact_k, exact_k, mask=visible, scale=scale)
    of = reductions
    match = Match(lambda tokens: (labels, labels), earlier=True)
    answers: dict[Request, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        Mass(): lambda w, tokens: of.mass(w),
        Entropy(): lambda w, tokens: of.entropy(w),
        Square(): lambda w, tokens: of.square(w),
        Maximum(): lambda w, tokens: of.maximum(w),
        Strongest(): lambda w, tokens: of.strongest(w, visible[0]),
        Distance(): lambda w, tokens: of.distance(w),
        Received(): lambda w, tokens: of.received(w),
        Band(OFFSETS): lambda w, tokens: of.band(w, OFFSETS),
        match: lambda w, tokens: of.match(w, tokens, tokens, earlier=True).sum(-1),
    }
    texts = list(zip(true.weights, labels.numpy(), strict=True))
    expected = [torch.from_numpy(np.stack([answer(*text) for text in texts])).double() for answer in answers.values()]
    lse = torch.from_numpy(true.lse).float()
    return Layer(q.to(device), k.to(device), lse.to(device), mask, Rule(scale)), list(answers), expected
