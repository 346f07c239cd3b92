"""Text being generated, as one recording: the prompt and every step, joined layer by layer.

A model that generates with a cache attends in pieces: the prompt at once, then one row a token. Each piece is seen, and
guarded, as any call; a `Joiner` puts the rows under each other and the keys beside each other, so that a layer is one
causal map whose rows are all tokens, prompt and generated. The joined layer is guarded once more.

One token more than `count` is generated and dropped: only so is the last token read by the model, and has a row.
Cost: the generation itself, and q, k and lse of every layer, as in any recording.

A decoder beside an encoder of pictures or sounds reads start tokens, a transcript, or what it writes. Whisper gets its
language and task by tokens that stand before the text: they are part of what it reads, and are recorded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.attention import Mask
from manyheads.base import whole
from manyheads.errors import ModelError, RecordingError, TextError
from manyheads.inputs.batch import Batch, Side, named_texts
from manyheads.inputs.pieces import Piece
from manyheads.models import AttentionCall, LoadedModel, device_of
from manyheads.models.taps import KnownLse, check
from manyheads.spec import CROSS

REFUSED = {
    "num_beams": "beams are reordered as they go, so no row has one past",
    "assistant_model": "guessed tokens are read and thrown away",
    "prompt_lookup_num_tokens": "guessed tokens are read and thrown away",
    "use_cache": "every step would read the whole text again: record the finished text instead",
    "max_new_tokens": "say how many tokens by generate=",
    "max_length": "say how many tokens by generate=",
    "num_return_sequences": "give the prompt that many times instead",
}
NEUTRAL = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True}  # values that change nothing are allowed
WRITTEN = "its start tokens, and what it wrote itself, by transformers' plain generation"


def prompts_of(lm: LoadedModel, pieces: Sequence[Piece], count: int) -> list[tuple[int, ...]]:
    """The tokens of each text that is to be written on. Errors: RecordingError for more than the model's positions."""
    prompts = [piece.ids for piece in pieces]
    longest = max(map(len, prompts))
    limit = None if lm.writes_apart else lm.max_positions
    if limit is not None and longest + count > limit:
        raise RecordingError(
            f"generate={count} after {longest} tokens is more than the {limit} positions of {lm.name}: ask for at most "
            f"{max(limit - longest, 0)}, or give a shorter prompt."
        )
    return prompts


def generate(lm: LoadedModel, prompts: Sequence[Sequence[int]], count: int, options: Mapping[str, object]) -> Batch:
    """Let the model write `count` tokens after each prompt; the finished texts, as its layers have read them."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), padding_of(lm), device="cpu")
    mask = torch.zeros(len(prompts), width, dtype=torch.long, device="cpu")
    for row, prompt in enumerate(prompts):
        # Padding stands before a text where new tokens follow its last one; after what an encoder reads.
        span = slice(len(prompt)) if lm.writes_apart else slice(width - len(prompt), width)
        ids[row, span], mask[row, span] = torch.tensor(list(prompt), device="cpu"), 1
    inputs = {"input_ids": ids.to(lm.device), "attention_mask": mask.to(lm.device)}
    begin = 1 if lm.writes_apart else width
    finished, stops = finished_texts(lm, inputs, begin, count, options)
    lengths, places = mask.sum(-1), tuple(range(len(prompts)))
    if lm.writes_apart:
        written = _written(lm, finished, torch.zeros_like(lengths), stops)
        return Batch({}, places, _written(lm, ids, torch.zeros_like(lengths), lengths), written)
    pads = width - lengths
    written = _written(lm, finished, pads, stops - pads)
    return Batch({}, places, written, written)


def finished_texts(
    lm: LoadedModel,
    inputs: Mapping[str, Tensor],
    begin: int,
    count: int,
    options: Mapping[str, object],
    method: Callable[..., Tensor] | None = None,
) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b"]]:
    """Let the model write `count` tokens; the ids of the finished texts, on the host, and where each text stops.

    `begin`: the place of the first token that is written. `method`: what writes; by default the model's own `generate`,
    but without an end, so that the texts of a batch stay in step. One token more is written, and dropped: the last one
    is never read by the model, and has no row in any layer.
    """
    model: Any = lm.model  # transformers' methods, which a Module has not
    # Put in the place of the model's own config, not passed to generate: there, transformers fills in what is None.
    own_config = model.generation_config
    config = copy.deepcopy(own_config)
    more = config.update(**options)  # the options that are none of generation's go to the model's generate itself
    config.eos_token_id, config.pad_token_id = None, padding_of(lm)
    config.max_length, config.max_new_tokens = None, count + 1
    model.generation_config = config
    try:
        with torch.no_grad():
            writes = model.generate if method is None else partial(method, model)
            ids = writes(**inputs, **more).cpu()[:, :-1]
    finally:
        model.generation_config = own_config
    ends = getattr(own_config, "eos_token_id", None)
    ends = getattr(lm.tokenizer, "eos_token_id", None) if ends is None else ends
    ends = [] if ends is None else [int(end) for end in (ends if isinstance(ends, list | tuple) else [ends])]
    # Only what was written: the token that ends a text may also begin it (GPT-2 has one token for both).
    written = torch.arange(ids.shape[1], device="cpu")[None] >= begin
    stops = torch.isin(ids, torch.tensor(ends, dtype=ids.dtype, device="cpu")) & written
    # As numbers, since argmax takes no booleans; of equal ones it returns the first, which is the first end.
    return ids, torch.where(stops.any(-1), stops.to(torch.uint8).argmax(-1) + 1, ids.shape[1])


def require_writer(lm: LoadedModel, count: int, options: Mapping[str, object]) -> None:
    """Errors: RecordingError for what cannot be recorded as one text; ModelError for a model that cannot write."""
    whole("generate", count, 1, RecordingError, "how many tokens to write, 1 or more")
    for name, why in REFUSED.items():
        if name in options and options[name] not in (None, NEUTRAL.get(name)):
            raise RecordingError(f"{name}={options[name]!r} cannot be recorded as one text: {why}.")
    if not getattr(lm.model, "can_generate", lambda: False)():
        raise ModelError(
            f"{lm.name} ({type(lm.model).__name__}) cannot generate: it has no language-model head. Load it with one, "
            f"or record the text without generate=."
        )


def padding_of(lm: LoadedModel) -> int:
    return int(getattr(lm.tokenizer, "pad_token_id", None) or 0)


def _written(lm: LoadedModel, ids: Tensor, first: Tensor, lengths: Tensor) -> Side:
    """Finished texts, each token's rarity by its id: what was generated is too little to count."""
    texts = named_texts(lm, ids, first, lengths)
    text_ids = texts.tokens.ids
    assert text_ids is not None
    size = max(getattr(lm.model.config, "vocab_size", None) or 0, 1 + int(text_ids.max()))
    rarity = torch.where(text_ids >= 0, torch.arange(size, device="cpu")[text_ids.clamp_min(0)] / size, 0)
    because = "rank in the vocabulary (what was generated is too little to count)"
    return texts._replace(tokens=replace(texts.tokens, rarity=rarity, rarity_because=because))


@dataclass(eq=False)
class Joiner:
    """Collects the calls of each layer, and joins them when all is written."""

    calls: dict[str, list[AttentionCall]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def observe(self, call: AttentionCall) -> None:
        """Keep a call's rows and its new keys. Copies: a static cache is written over at the next step."""
        name = call.site.module
        past, new = self.rows.get(name, 0), call.q.shape[2]
        self.rows[name] = past + new
        if call.site.stack == CROSS:
            # The encoder's keys are the same at every step: those of the first call are enough.
            k, v = (call.k[:, :, :0], call.v[:, :, :0]) if past else (call.k.clone(), call.v.clone())
            shed = 0
        else:
            k, v = (x[:, :, new_keys(x.shape[2], past, new)].clone() for x in (call.k, call.v))
            shed = max(0, past + new - call.k.shape[2])
        # Refused, not joined: rows of several calls become one map by their runs, and a dense mask of a step has none.
        if call.mask.dense is not None:
            raise RecordingError(
                f"layer {name} hides keys that are not a run while it generates: record the finished text instead."
            )
        # Mask and bias count keys from the first token ever read, also where a sliding cache has shed some.
        mask = Mask(call.mask.start + shed, call.mask.stop + shed, call.mask.num_keys + shed)
        bias = None if call.rule.bias is None else torch.nn.functional.pad(call.rule.bias, (shed, 0))
        rule = replace(call.rule, bias=bias)
        step = replace(call, q=call.q.clone(), k=k, v=v, out=call.out.clone(), rule=rule, mask=mask)
        self.calls.setdefault(name, []).append(step)

    def joined(self, model: torch.nn.Module) -> list[AttentionCall]:
        """One call a layer: rows under each other, keys beside each other. Errors: GuardError where they do not fit."""
        layers = [_join(calls) for calls in self.calls.values()]
        for layer in layers:
            check(layer, model)  # once more: the joining itself may be wrong
        return layers


def new_keys(num_keys: int, past: int, new: int) -> slice:
    """Where a step's own keys stand: after the past, or last where a sliding cache has shed the oldest."""
    return slice(past, past + new) if num_keys >= past + new else slice(num_keys - new, num_keys)


def _join(calls: Sequence[AttentionCall]) -> AttentionCall:
    first = calls[0]
    if len(calls) == 1:
        return first
    q, out, lse = (torch.cat([getattr(call, name) for call in calls], 2) for name in ("q", "out", "lse"))
    k, v = (torch.cat([getattr(call, name) for call in calls], 2) for name in ("k", "v"))
    num_texts, num_keys = len(q), k.shape[2]
    start, stop = (
        torch.cat([getattr(call.mask.expand(num_texts), name) for call in calls], 1) for name in ("start", "stop")
    )
    site = first.site
    if site.stack != CROSS:
        # The first call saw the prompt alone: a prompt of one token does not show that the layer is causal.
        site = replace(site, causal=True)
    biases = []
    for call in calls:
        bias = call.rule.bias
        if first.rule.bias is None:
            break
        assert bias is not None, "a layer adds a bias at every step or at none"
        # 0 over keys that came later than the step: they are hidden from it.
        wide = bias.new_zeros(*bias.shape[:2], call.q.shape[2], num_keys)
        wide[..., : bias.shape[3]] = bias[..., :num_keys]
        biases.append(wide)
    rule = replace(first.rule, bias=torch.cat(biases, 2) if biases else None)
    # A static cache's mask counts all the room that it has: keys that were never written are not among those joined.
    mask = Mask(start.clamp_max(num_keys), stop.clamp_max(num_keys), num_keys)
    because = "; ".join(dict.fromkeys(call.because for call in calls))
    known = KnownLse(lambda: (lse, because))
    return replace(first, site=site, q=q, k=k, v=v, mask=mask, rule=rule, out=out, known=known)


def decoder_start(lm: LoadedModel) -> int:
    """The token that a decoder beside an encoder begins with, by the model's config."""
    config = getattr(lm.model, "config", None)
    start = getattr(config, "decoder_start_token_id", None)
    return int(start if start is not None else getattr(config, "bos_token_id", None) or 0)


def start_tokens(lm: LoadedModel, transcript: str | None) -> list[int]:
    """What a decoder beside an encoder reads: its start tokens, and a transcript without its end. Errors: TextError."""
    if not lm.writes_apart:
        if transcript is not None:
            raise RecordingError(f"transcript= is for a model with a decoder, and {lm.name} has none: leave it out.")
        return []
    first = [decoder_start(lm)]
    if transcript is None:
        prefix = [int(token) for token in getattr(lm.tokenizer, "prefix_tokens", None) or first]
        return prefix if prefix[0] == first[0] else first + prefix
    if lm.tokenizer is None:
        raise ModelError(f"{lm.name} has no tokenizer, so it cannot read a transcript: load it with tokenizer=.")
    if not transcript.strip():
        raise TextError("transcript= is empty: give what is said, or leave it out.")
    ids = [int(token) for token in lm.tokenizer(transcript)["input_ids"]]
    ids = ids[:-1] if ids[-1] == getattr(lm.tokenizer, "eos_token_id", None) else ids
    ids = ids if ids[0] == first[0] else first + ids
    limit = lm.max_positions
    if limit is not None and len(ids) > limit:
        raise TextError(f"the transcript has {len(ids)} tokens, but the decoder of {lm.name} has {limit}: shorten it.")
    return ids


def decoder_inputs(lm: LoadedModel, start: list[int], count: int) -> dict[str, Tensor]:
    """The same for each of `count` encoders' inputs; nothing where there is no decoder."""
    return {"decoder_input_ids": torch.tensor([start] * count, device=device_of(lm.model))} if start else {}


def decoder_texts(lm: LoadedModel, inputs: Mapping[str, Tensor]) -> Side | None:
    """What a decoder reads of these inputs, as tokens; None where there is no decoder."""
    ids = inputs.get("decoder_input_ids")
    if ids is None:
        return None
    lengths = torch.full((len(ids),), ids.shape[1], device="cpu")
    return named_texts(lm, ids.cpu(), torch.zeros_like(lengths), lengths)


def write(lm: LoadedModel, inputs: Mapping[str, Tensor], count: int, options: Mapping[str, object]) -> Side:
    """Let the decoder write `count` tokens after its inputs, by transformers' plain generation; the finished texts.

    Whisper's own way (retries at other temperatures, rules for time stamps, pieces of long sounds) is not taken:
    what it throws away cannot be one recording. Errors: ModelError, RecordingError.
    """
    require_writer(lm, count, options)
    from transformers import GenerationMixin

    begin = inputs["decoder_input_ids"].shape[1]
    limit = lm.max_positions
    if limit is not None and begin + count > limit:
        raise RecordingError(
            f"generate={count} after {begin} tokens is more than the {limit} positions of {lm.name}: ask for at most "
            f"{max(limit - begin, 0)}."
        )
    plain = GenerationMixin.generate  # type: ignore[attr-defined]
    ids, lengths = finished_texts(lm, inputs, begin, count, options, plain)
    return named_texts(lm, ids, torch.zeros_like(lengths), lengths)
