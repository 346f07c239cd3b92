"""Recording: run a model under the tap and keep q, k and lse of every layer, or hand each layer on and keep nothing.

`record` and `record_call` keep; `watch` is the stream both stand on, and what statistics are measured from: it
computes what is asked of a layer while the layer's tensors are there, and drops them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from manyheads.errors import ModelError, RecordingError
from manyheads.models.calls import Aligner, AttentionCall, rolled
from manyheads.models.seam import Tap, tap
from manyheads.models.sites import no_way_in, run
from manyheads.models.texts import model_inputs, rarity_table, read_texts, tokens_of
from manyheads.recording.records import LayerRecord, Recording
from manyheads.recording.tokens import Tokens

KEEP = ("q", "k", "v", "lse")
MEMORY_SHARE = 0.7  # of the memory that is free: a recording that would take more is refused before it starts
log = logging.getLogger("manyheads")


def record(
    lm: Any,
    texts: str | Sequence[str],
    *,
    keep: Sequence[str] = ("q", "k", "lse"),
    long: str = "windows",
) -> Recording:
    """Run texts through a loaded model and keep, of every layer, q, k and each row's lse.

    `texts` is one text or several; `long` says how one beyond the model's positions is read ("windows", "truncate",
    "whole"). Add "v" to `keep` for value-weighted questions. The size is logged (logger "manyheads") before any
    memory is taken. Returns texts left-aligned and padded to the longest in memory; files are packed.

    Cost: one forward pass, and `2 * d + 1` numbers a token, layer and head (fewer under GQA).
    Errors: TextError, ModelError (also where the recording would not fit), GuardError.
    """
    kept = _kept(keep)
    reading = read_texts(lm, texts, long)
    table, because = rarity_table(reading, lm.spec.vocab_size or 0)
    tokens = tokens_of(reading, range(len(reading.pieces)), table, because)
    _announce(lm.spec, tokens, kept)
    provenance = {"model": lm.name, "dtype": str(lm.dtype).removeprefix("torch."), "windows": reading.because}
    return _collect(
        lm.model, lm.name, tokens, kept, lambda: run(lm.model, lm.name, model_inputs(lm, tokens)), provenance
    )


def record_call(module: nn.Module, *args: Any, keep: Sequence[str] = ("q", "k", "lse"), **kwargs: Any) -> Recording:
    """Call `module(*args, **kwargs)`, and keep what its attention layers did.

    A two-dimensional `attention_mask` among the keywords says where the texts are: padding, left or right, is rolled
    away. Errors: ModelError where no attention was seen, GuardError.
    """
    tokens, first = tokens_of_call(args, kwargs)

    def call() -> None:
        with torch.no_grad():
            module(*args, **kwargs)

    return _collect(module, type(module).__name__, tokens, _kept(keep), call, {"model": type(module).__name__}, first)


def tokens_of_call(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Tokens | None, Int[Tensor, "b"] | None]:
    """Ids and lengths as far as a bare call shows them, and where each text begins. None where it shows no ids."""
    ids = kwargs.get("input_ids", args[0] if args else None)
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim != 2:
        return None, None
    seen = kwargs.get("attention_mask")
    real = seen.bool() if isinstance(seen, Tensor) and seen.ndim == 2 else torch.ones_like(ids, dtype=torch.bool)
    lengths, first = real.sum(-1), real.to(torch.uint8).argmax(-1)
    columns = torch.arange(ids.shape[1])[None]
    run_of_real = (columns >= first[:, None]) & (columns < (first + lengths)[:, None])
    if not bool((real == run_of_real).all()):
        raise RecordingError(
            "attention_mask has holes: a text must be one run of ones, with padding before or after it."
        )
    aligned = rolled(ids[:, None, :, None], first, lengths)[:, 0, :, 0]
    padding = torch.arange(aligned.shape[1])[None] >= lengths[:, None]
    return Tokens(lengths, aligned.masked_fill(padding, -1)), first


def watch(
    model: nn.Module,
    name: str,
    forward: Callable[[], None],
    observer: Callable[[AttentionCall], None],
) -> Tap:
    """Run `forward` under a guarded tap. Errors: ModelError where the model made no call that could be seen."""
    with tap(model, on_call=observer) as state:
        forward()
    if not state.sites:
        raise ModelError(no_way_in(model, name))
    return state


def _collect(
    model: nn.Module,
    name: str,
    tokens: Tokens | None,
    kept: frozenset[str],
    forward: Callable[[], None],
    provenance: dict[str, object],
    first: Int[Tensor, "b"] | None = None,
) -> Recording:
    stacks: dict[str, list[LayerRecord]] = {}
    aligner: Aligner | None = None
    seen: set[str] = set()

    def keep(call: AttentionCall) -> None:
        nonlocal tokens, aligner
        if call.site.module in seen:
            raise RecordingError(
                f"{call.site.module} attended twice in one call: record generation step by step instead."
            )
        seen.add(call.site.module)
        if tokens is None:
            tokens = Tokens.unnamed([call.q.shape[2]] * call.q.shape[0])
        if aligner is None:
            aligner = Aligner(torch.zeros_like(tokens.lengths) if first is None else first, tokens.lengths)
        layer = aligner.layer(call)
        v = aligner.roll(call.v).clone() if "v" in kept else None
        record = LayerRecord(
            call.site,
            layer.q.clone(),
            layer.k.clone(),
            v,
            layer.lse,
            layer.mask,
            layer.rule,
            tokens.lengths,
            tokens,
            call.because,
        )
        stacks.setdefault(call.site.stack, []).append(record)

    state = watch(model, name, forward, keep)
    assert tokens is not None
    config = getattr(model, "config", None)
    provenance = {
        **provenance,
        "implementation": getattr(config, "_attn_implementation", None) or "unknown",
        "backend": dict(state.because),
        "guard_error": state.guard_error,
    }
    return Recording(stacks, tokens, provenance)


def _kept(keep: Sequence[str]) -> frozenset[str]:
    unknown = [name for name in keep if name not in KEEP]
    missing = [name for name in ("q", "k", "lse") if name not in keep]
    if unknown or missing:
        raise RecordingError(
            f"{keep=}: a recording keeps q, k and lse, and v if asked for. Use a choice of {KEEP} with the first three."
        )
    return frozenset(keep)


def _announce(spec: Any, tokens: Tokens, kept: frozenset[str]) -> None:
    """Say the recording's size, and refuse one that would not fit in memory."""
    width = sum(
        site.num_heads * (site.qk_dim + 1) + site.num_kv_heads * (site.qk_dim + site.v_dim * ("v" in kept))
        for site in spec.sites
    )
    size = width * tokens.num_texts * tokens.longest * 4
    log.info("recording %s texts of up to %s tokens: %.1f MB", tokens.num_texts, tokens.longest, size / 1e6)
    free = free_memory_bytes()
    if free is not None and size > MEMORY_SHARE * free:
        raise ModelError(
            f"this recording would take {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free: record fewer or shorter texts, or use "
            f"measure(), which keeps nothing."
        )


def free_memory_bytes() -> int | None:
    """What the system could give without swapping; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
