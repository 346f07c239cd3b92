"""Recording: run a model under the tap and keep q, k and lse of every layer, or hand each layer on and keep nothing.

`record` and `record_call` keep; `watch` is the stream both stand on, and what statistics are measured from: it
computes what is asked of a layer while the layer's tensors are there, and drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from manyheads.errors import ModelError, RecordingError
from manyheads.models import media, transcripts
from manyheads.models.calls import AttentionCall
from manyheads.models.calltexts import DECODER, CallTexts, texts_of_call
from manyheads.models.generation import Joiner, generate, read_prompts
from manyheads.models.keeping import Keeper, model_facts, recording_of
from manyheads.models.taps import Tap
from manyheads.models.seam import tap
from manyheads.models.sites import run
from manyheads.models.taps import log, no_way_in
from manyheads.models.texts import (
    batches,
    decoder_story,
    decoder_tokens,
    model_inputs,
    rarity_table,
    read_texts,
    tokens_of,
    writes_apart,
)
from manyheads.base.files import MEMORY_SHARE
from manyheads.base.files import free_memory_bytes
from manyheads.recording.recording import Recording
from manyheads.recording.tokens import Tokens
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
