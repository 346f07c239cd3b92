"""Recording: run a model under the tap and keep q, k and lse of every layer, or hand each layer on and keep nothing.

`record` and `record_call` keep; `watch` is the stream both stand on, and what statistics are measured from: it
computes what is asked of a layer while the layer's tensors are there, and drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from manyheads.base import MEMORY_SHARE, free_memory_bytes
from manyheads.errors import ModelError, RecordingError
from manyheads.models.describe import model_facts, run
from manyheads.models.inputs import generation as transcripts
from manyheads.models.inputs import media
from manyheads.models.inputs.generation import Joiner, generate, read_prompts
from manyheads.models.inputs.texts import (
    DECODER,
    CallTexts,
    batches,
    decoder_story,
    decoder_tokens,
    model_inputs,
    rarity_table,
    read_texts,
    texts_of_call,
    tokens_of,
    writes_apart,
)
from manyheads.models.taps.call import AttentionCall
from manyheads.models.taps.open_taps import EDITED, Tap, left_out, log, no_way_in
from manyheads.models.taps.tap import tap
from manyheads.nn import attend
from manyheads.recording import Layer, LayerRecord, Recording, Tokens
from manyheads.recording.joining import together
from manyheads.spec import CROSS

KEEP = ("q", "k", "v", "lse")


def record(
    lm: Any,
    texts: str | Sequence[str] | None = None,
    *,
    image: Any = None,
    audio: Any = None,
    sampling_rate: int | None = None,
    transcript: str | None = None,
    keep: Sequence[str] = ("q", "k", "lse"),
    long: str = "windows",
    generate: int | None = None,
    **options: Any,
) -> Recording:
    """Run texts, pictures or sounds through a loaded model and keep, of every layer, q, k and each row's lse.

    `texts` is one text or several; `long` says how one beyond the model's positions is read ("windows", "truncate",
    "whole"). Add "v" to `keep` for value-weighted questions. The size is logged (logger "manyheads") before any
    memory is taken. Returns texts left-aligned and padded to the longest in memory; files are packed.

    `generate=n` lets a language model write n tokens after each text, and records prompt and new tokens as one text;
    other `options` (do_sample=True, temperature=0.7, cache_implementation="static" ...) go to the model's own generate.
    A text ends with its first end token; `rec.provenance["prompt_tokens"]` says how long each prompt was.

    `image` is a path, a PIL image, an array [height, width, 3] (uint8, or float 0 to 1) or a list of them; `audio` a
    path of a .wav, an array [samples] with its `sampling_rate`, or a list. `recording.media` says which patch or
    moment a position is. A decoder beside an encoder of sounds (Whisper) reads its start tokens, or a `transcript`
    after them, or what it writes itself (`generate=n`).

    Cost: one forward pass, and `2 * d + 1` numbers a token, layer and head (fewer under GQA).
    Errors: TextError, ModelError (also where the recording would not fit), GuardError; for pictures and sounds
    FileAccessError, ShapeError and RecordingError too.
    """
    kept = _kept(keep)
    if options and generate is None:
        raise RecordingError(f"{', '.join(options)} would go to generate: say how many tokens to write, generate=.")
    given = media.media_given(lm, texts, image, audio, sampling_rate, transcript)
    if given is not None:
        return _record_media(lm, given, generate, options, kept)
    assert texts is not None
    if generate is not None:
        return _record_generation(lm, texts, generate, options, kept)
    return _record_texts(lm, texts, long, kept)


def _record_texts(lm: Any, texts: str | Sequence[str], long: str, kept: frozenset[str]) -> Recording:
    """Texts as they are, those of like length together, so that little of a batch is padding."""
    reading = read_texts(lm, texts, long)
    table, because = rarity_table(reading, lm.spec.vocab_size or 0)
    tokens = tokens_of(reading, range(len(reading.pieces)), table, because)
    _announce(lm.spec, tokens, kept)
    places = batches(reading)
    places = places if len(places) > 1 else [list(range(len(reading.pieces)))]
    keepers, states = [], []
    for group in places:
        some = tokens_of(reading, group, table, because)
        keeper = Keeper(CallTexts.of(lm, some), kept)
        inputs = model_inputs(lm, some)
        states.append(watch(lm.model, lm.name, lambda inputs=inputs: run(lm.model, lm.name, inputs), keeper.keep))
        keepers.append(keeper)
    written = decoder_tokens(lm, tokens)
    by_stack = {"": tokens} if written is None else {"": tokens, DECODER: written, CROSS: written}
    about = {**model_facts(lm), "windows": reading.because}
    about |= {} if written is None else {"decoder": decoder_story(lm)}
    return recording_of(keepers, places, by_stack, lm.model, states, about)


def record_call(module: nn.Module, *args: Any, keep: Sequence[str] = ("q", "k", "lse"), **kwargs: Any) -> Recording:
    """Call `module(*args, **kwargs)`, and keep what its attention layers did.

    A two-dimensional `attention_mask` among the keywords says where the texts are: padding, left or right, is rolled
    away. Errors: ModelError where no attention was seen, GuardError.
    """
    texts = texts_of_call(args, kwargs)

    def call() -> None:
        with torch.no_grad():
            module(*args, **kwargs)

    keeper, name = Keeper(texts, _kept(keep)), type(module).__name__
    state = watch(module, name, call, keeper.keep)
    return recording_of([keeper], [], None, module, [state], {"model": name})


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


def _record_generation(
    lm: Any, texts: str | Sequence[str], count: int, options: Mapping[str, Any], kept: frozenset[str]
) -> Recording:
    """The prompt and every step, joined: `generation`."""
    prompts = read_prompts(lm, texts, count, options)
    keeper, state = _keep_writing(lm, lambda: generate(lm, prompts, count, options), kept)
    lengths = [1 if writes_apart(lm) else len(prompt) for prompt in prompts]
    about = {**model_facts(lm), "prompt_tokens": lengths, "generated": _generated(count, options)}
    return recording_of([keeper], [], None, lm.model, [state], about)


def _record_media(
    lm: Any, given: media.Given, count: int | None, options: Mapping[str, Any], kept: frozenset[str]
) -> Recording:
    """Pictures or sounds; beside them what a decoder reads, or writes."""
    if given.texts.main is not None:
        _announce(lm.spec, given.texts.main.tokens, kept)
    if count is None:
        about, keeper = given.provenance, Keeper(given.texts, kept)
        state = watch(lm.model, lm.name, lambda: run(lm.model, lm.name, given.inputs), keeper.keep)
    else:
        about = {**given.provenance, "decoder": transcripts.WRITTEN, "generated": _generated(count, options)}
        keeper, state = _keep_writing(
            lm, lambda: CallTexts(given.texts.main, transcripts.write(lm, given.inputs, count, options)), kept
        )
    return media.settled(recording_of([keeper], [], None, lm.model, [state], about))


def _keep_writing(lm: Any, write: Callable[[], CallTexts], kept: frozenset[str]) -> tuple[Keeper, Tap]:
    """Each layer's calls while the model writes, joined to one. `write` does it, and says which texts came of it."""
    joiner, texts = Joiner(), CallTexts(None)

    def forward() -> None:
        nonlocal texts
        texts = write()

    state = watch(lm.model, lm.name, forward, joiner.observe)
    keeper = Keeper(texts, kept)
    for call in joiner.joined(lm.model):
        keeper.keep(call)
    return keeper, state


def _generated(count: int, options: Mapping[str, Any]) -> dict[str, object]:
    return {"tokens": count, **{name: repr(value) for name, value in options.items()}}


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


# ---------------------------------------------------------------------------------------------------------------------
# What is kept of each layer as its call comes by, and the recording that is made of it.


ERROR_ROWS = 4  # rows of a layer on which the error against float64 is measured
LARGE_SCORE = 16.0  # above it, a unit in the last place of a float32 is over 1e-6
SPILLS = "this model lets tokens read padding, which is not kept: their rows lack what they gave to it"


@dataclass(eq=False)
class Keeper:
    """What is kept of each layer as its call comes by, and the recording made of it."""

    texts: CallTexts
    kept: frozenset[str]
    stacks: dict[str, list[LayerRecord]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    error: float = 0.0
    spills: bool = False

    def keep(self, call: AttentionCall) -> None:
        assert call.site.module not in self.seen, "a module called again is a site of its own"
        self.seen.add(call.site.module)
        tokens, aligner = self.texts.read_by(call)
        layer = aligner.layer(call)
        layer = replace(layer, lse=sharpened(layer))
        self.error = max(self.error, float64_error(layer))
        self.spills |= aligner.spills
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


def recording_of(
    keepers: Sequence[Keeper],
    places: Sequence[Sequence[int]],
    tokens: Mapping[str, Tokens] | None,
    model: nn.Module,
    states: Sequence[Tap],
    provenance: Mapping[str, object],
) -> Recording:
    """One recording of what was kept of each batch. `places` are the texts of each; `tokens` those of all, by stack."""
    stacks = keepers[0].stacks
    if tokens is not None and len(keepers) > 1:
        stacks = {
            stack: [
                together([keeper.stacks[stack][index] for keeper in keepers], places, tokens.get(stack, tokens[""]))
                for index in range(len(layers))
            ]
            for stack, layers in stacks.items()
        }
    backend: dict[str, int] = {}
    for state in states:
        backend = {name: backend.get(name, 0) + state.because.get(name, 0) for name in backend | state.because}
    about = {
        **provenance,
        "implementation": getattr(getattr(model, "config", None), "_attn_implementation", None) or "unknown",
        "backend": backend,
        "guard_error": max(state.guard_error for state in states),
        "float64_error": max(keeper.error for keeper in keepers),
    }
    if states[0].by_hand:
        about["left out"] = left_out(states[0].by_hand)
    if any(state.edited for state in states):
        about["edited"] = EDITED
    if any(keeper.spills for keeper in keepers):
        about["padding"] = SPILLS
        log.warning(SPILLS)
    main = keepers[0].texts.main
    if tokens is not None:
        return Recording(stacks, tokens[""], about)
    return Recording(stacks, main.tokens if main else next(iter(stacks.values()))[0].tokens, about)


def sharpened(layer: Layer) -> Tensor:
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
    sinks = None if rule.sinks is None else rule.sinks[heads]
    some = Layer(layer.q[:, heads], layer.k[:, groups], lse[:, heads], mask, replace(rule, sinks=sinks, bias=bias))
    lse[:, heads] = float64_lse(some).float()
    return lse


def float64_error(layer: Layer) -> float:
    """How far weights by the layer's lse lie from those that float64 gives for the same q and k, on sampled rows.

    What is left is the rounding of the lse itself, kept in float32, and of a kernel that made it in a half type.
    """
    rows = torch.linspace(layer.q.shape[2] - 1, 0, min(layer.q.shape[2], ERROR_ROWS)).round().long().unique()
    if not len(rows) or not layer.k.shape[2] or not len(layer.q):
        return 0.0
    some = layer.one_text(0, rows, layer.k.shape[2])
    alive = some.mask.counts() > 0
    # A weight is exp(score - lse): the largest weight of a row is off by as much of itself as the lse is off.
    off = torch.where(alive[:, None], (some.lse.double() - float64_lse(some)).abs(), 0)
    return float(off.expm1().max())


def float64_lse(layer: Layer) -> Float64[Tensor, "b h q"]:
    """What the layer's lse is in float64."""
    rule, q, k = layer.rule, layer.q.double(), layer.k.double()
    bias, sinks = (None if value is None else value.double() for value in (rule.bias, rule.sinks))
    return attend(q, k, k, mask=layer.mask, scale=rule.scale, softcap=rule.softcap, sinks=sinks, bias=bias).lse
