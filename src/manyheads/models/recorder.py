"""Recording: run a model under the tap and keep q, k and lse of every layer, or hand each layer on and keep nothing.

`record` and `record_call` keep; `watch` is the stream both stand on, and what statistics are measured from: it
computes what is asked of a layer while the layer's tensors are there, and drops them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.errors import ModelError, RecordingError
from manyheads.models.calls import AttentionCall
from manyheads.models.calltexts import CallTexts, Padded, texts_of_call
from manyheads.models.generation import Joiner, tokens_written
from manyheads.models.generation import generate as write
from manyheads.models.seam import Tap, tap
from manyheads.models.sites import run
from manyheads.models.taps import left_out, no_way_in
from manyheads.models.texts import model_inputs, rarity_table, read_texts, tokens_of
from manyheads.nn.attention import attend
from manyheads.nn.masks import Mask
from manyheads.recording.passes import Layer
from manyheads.recording.records import LayerRecord, Recording
from manyheads.recording.tokens import Tokens

ERROR_ROWS = 4  # rows of a layer on which the error against float64 is measured
LARGE_SCORE = 16.0  # above it, a unit in the last place of a float32 is over 1e-6
KEEP = ("q", "k", "v", "lse")
MEMORY_SHARE = 0.7  # of the memory that is free: a recording that would take more is refused before it starts
log = logging.getLogger("manyheads")


def record(
    lm: Any,
    texts: str | Sequence[str],
    *,
    keep: Sequence[str] = ("q", "k", "lse"),
    long: str = "windows",
    generate: int | None = None,
    **options: Any,
) -> Recording:
    """Run texts through a loaded model and keep, of every layer, q, k and each row's lse.

    `texts` is one text or several; `long` says how one beyond the model's positions is read ("windows", "truncate",
    "whole"). Add "v" to `keep` for value-weighted questions. The size is logged (logger "manyheads") before any
    memory is taken. Returns texts left-aligned and padded to the longest in memory; files are packed.

    `generate=n` lets a language model write n tokens after each text, and records prompt and new tokens as one text;
    other `options` (do_sample=True, temperature=0.7, cache_implementation="static" ...) go to the model's own generate.
    A text ends with its first end token; `rec.provenance["prompt_tokens"]` says how long each prompt was.

    Cost: one forward pass, and `2 * d + 1` numbers a token, layer and head (fewer under GQA).
    Errors: TextError, ModelError (also where the recording would not fit), GuardError.
    """
    kept = _kept(keep)
    if generate is not None:
        return _record_generation(lm, texts, generate, options, kept)
    if options:
        raise RecordingError(f"{', '.join(options)} would go to generate: say how many tokens to write, generate=.")
    reading = read_texts(lm, texts, long)
    table, because = rarity_table(reading, lm.spec.vocab_size or 0)
    tokens = tokens_of(reading, range(len(reading.pieces)), table, because)
    _announce(lm.spec, tokens, kept)
    provenance = {"model": lm.name, "dtype": str(lm.dtype).removeprefix("torch."), "windows": reading.because}
    texts_read = CallTexts.of(lm, tokens)
    return _collect(
        lm.model, lm.name, texts_read, kept, lambda: run(lm.model, lm.name, model_inputs(lm, tokens)), provenance
    )


def record_call(module: nn.Module, *args: Any, keep: Sequence[str] = ("q", "k", "lse"), **kwargs: Any) -> Recording:
    """Call `module(*args, **kwargs)`, and keep what its attention layers did.

    A two-dimensional `attention_mask` among the keywords says where the texts are: padding, left or right, is rolled
    away. Errors: ModelError where no attention was seen, GuardError.
    """
    texts = texts_of_call(args, kwargs)

    def call() -> None:
        with torch.no_grad():
            module(*args, **kwargs)

    return _collect(module, type(module).__name__, texts, _kept(keep), call, {"model": type(module).__name__})


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
        raise ModelError(no_way_in(model, name, state.by_hand))
    return state


def _collect(
    model: nn.Module,
    name: str,
    texts: CallTexts,
    kept: frozenset[str],
    forward: Callable[[], None],
    provenance: dict[str, object],
) -> Recording:
    keeper = _Keeper(texts, kept)
    state = watch(model, name, forward, keeper.keep)
    return keeper.recording(model, state, provenance)


@dataclass(eq=False)
class _Keeper:
    """What is kept of each layer as its call comes by, and the recording made of it."""

    texts: CallTexts
    kept: frozenset[str]
    stacks: dict[str, list[LayerRecord]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    error: float = 0.0

    def keep(self, call: AttentionCall) -> None:
        assert call.site.module not in self.seen, "a module called again is a site of its own"
        self.seen.add(call.site.module)
        tokens, aligner = self.texts.read_by(call)
        layer = aligner.layer(call)
        layer = replace(layer, lse=_sharpened(layer))
        self.error = max(self.error, float64_error(layer))
        v = call.v if call.crosses else aligner.roll(call.v)
        record = LayerRecord(
            call.site,
            layer.q.clone(),
            layer.k.clone(),
            v.clone() if "v" in self.kept else None,
            layer.lse,
            layer.mask,
            layer.rule,
            tokens.lengths,
            tokens,
            call.because,
        )
        self.stacks.setdefault(call.site.stack, []).append(record)

    def recording(self, model: nn.Module, state: Tap, provenance: dict[str, object]) -> Recording:
        config = getattr(model, "config", None)
        provenance = {
            **provenance,
            "implementation": getattr(config, "_attn_implementation", None) or "unknown",
            "backend": dict(state.because),
            "guard_error": state.guard_error,
            "float64_error": self.error,
        }
        if state.by_hand:
            provenance["left out"] = left_out(state.by_hand)
        tokens = self.texts.main.tokens if self.texts.main else next(iter(self.stacks.values()))[0].tokens
        return Recording(self.stacks, tokens, provenance)


def _record_generation(
    lm: Any, texts: str | Sequence[str], count: int, options: Mapping[str, Any], kept: frozenset[str]
) -> Recording:
    """The prompt and every step, joined: `generation`."""
    joiner, written = Joiner(), None

    def forward() -> None:
        nonlocal written
        written = write(lm, texts, count, options)

    state = watch(lm.model, lm.name, forward, joiner.observe)
    assert written is not None
    tokens = tokens_written(lm, written.ids, written.first, written.lengths)
    main = decoder = Padded(tokens, written.first, written.ids.shape[1])
    if written.source is not None and written.source_first is not None:
        width = written.source.shape[1]
        read = tokens_written(lm, written.source, written.source_first, width - written.source_first)
        main = Padded(read, written.source_first, width)
    keeper = _Keeper(CallTexts(main, decoder), kept)
    for call in joiner.joined(lm.model):
        keeper.keep(call)
    provenance = {
        "model": lm.name,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "prompt_tokens": written.prompt_lengths.tolist(),
        "generated": {"tokens": count, **{name: repr(value) for name, value in options.items()}},
    }
    return keeper.recording(lm.model, state, provenance)


def _sharpened(layer: Layer) -> Tensor:
    """The lse, from float64 in heads whose scores are so large that float32 would round their weights by over 1e-6."""
    served = layer.q.shape[1] // layer.k.shape[1]
    largest = layer.lse.masked_fill(layer.lse.isinf(), 0).abs().amax((0, 2)).view(-1, served).amax(1)
    groups = (largest > LARGE_SCORE).nonzero()[:, 0]
    if layer.q.dtype != torch.float32 or not len(groups):
        return layer.lse
    heads = (groups[:, None] * served + torch.arange(served)).flatten()
    rule, mask, lse = layer.rule, layer.mask, layer.lse.clone()
    if mask.dense is not None and mask.dense.shape[1] > 1:
        mask = replace(mask, dense=mask.dense[:, heads])
    bias = None if rule.bias is None else rule.bias.expand(-1, layer.q.shape[1], -1, -1)[:, heads]
    sinks = None if rule.sinks is None else rule.sinks[heads].double()
    q, k = layer.q[:, heads].double(), layer.k[:, groups].double()
    got = attend(q, k, k, mask=mask, scale=rule.scale, softcap=rule.softcap, sinks=sinks, bias=bias)
    lse[:, heads] = got.lse.float()
    return lse


def float64_error(layer: Layer) -> float:
    """How far weights by the layer's lse lie from those that float64 gives for the same q and k, on sampled rows.

    What is left is the rounding of the lse itself, kept in float32, and of a kernel that made it in a half type.
    """
    rows = torch.linspace(layer.q.shape[2] - 1, 0, min(layer.q.shape[2], ERROR_ROWS)).round().long().unique()
    if not len(rows) or not layer.k.shape[2] or not len(layer.q):
        return 0.0
    text = slice(0, 1)
    rule, mask = layer.rule.texts(text), layer.mask.expand(len(layer.q)).texts(text)
    bias = None if rule.bias is None else rule.bias[:, :, rows].double()
    sinks = None if rule.sinks is None else rule.sinks.double()
    dense = None if mask.dense is None else mask.dense[:, :, rows]
    seen = Mask(mask.start[:, rows], mask.stop[:, rows], mask.num_keys, dense)
    q, k = layer.q[text][:, :, rows].double(), layer.k[text].double()
    exact = attend(q, k, k, mask=seen, scale=rule.scale, softcap=rule.softcap, sinks=sinks, bias=bias).lse
    alive = seen.counts() > 0
    # A weight is exp(score - lse): the largest weight of a row is off by as much of itself as the lse is off.
    off = torch.where(alive[:, None], (layer.lse[text][:, :, rows].double() - exact).abs(), 0)
    return float(off.expm1().max())


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
            f"this recording would take {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free: record fewer or "
            f"shorter texts, or use measure(), which keeps nothing."
        )


def free_memory_bytes() -> int | None:
    """What the system could give without swapping; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
