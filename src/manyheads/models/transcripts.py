"""What a decoder reads beside an encoder of pictures or sounds: its start tokens, a transcript, or what it writes.

Whisper is told its language and task by tokens that stand before the text: they are part of what it reads, and are
recorded. What it writes is transformers' plain generation, one token after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ModelError, RecordingError, TextError
from manyheads.models import generation
from manyheads.models.calltexts import Padded, named_texts
from manyheads.models.offloaded import device_of
from manyheads.models.texts import decoder_start

WRITTEN = "its start tokens, and what it wrote itself, by transformers' plain generation"


def start_tokens(lm: Any, transcript: str | None) -> list[int]:
    """What a decoder beside an encoder reads: its start tokens, and a transcript without its end. Errors: TextError."""
    config = getattr(lm.model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        if transcript is not None:
            raise RecordingError(f"transcript= is for a model with a decoder, and {lm.name} has none: leave it out.")
        return []
    first = [decoder_start(config)]
    if transcript is None:
        prefix = [int(each) for each in getattr(lm.tokenizer, "prefix_tokens", None) or first]
        return prefix if prefix[0] == first[0] else first + prefix
    if lm.tokenizer is None:
        raise ModelError(f"{lm.name} has no tokenizer, so it cannot read a transcript: load it with tokenizer=.")
    if not transcript.strip():
        raise TextError("transcript= is empty: give what is said, or leave it out.")
    ids = [int(each) for each in lm.tokenizer(transcript)["input_ids"]]
    ids = ids[:-1] if ids[-1] == lm.tokenizer.eos_token_id else ids
    ids = ids if ids[0] == first[0] else first + ids
    limit = lm.max_positions
    if limit is not None and len(ids) > limit:
        raise TextError(f"the transcript has {len(ids)} tokens, but the decoder of {lm.name} has {limit}: shorten it.")
    return ids


def decoder_inputs(lm: Any, start: list[int], count: int) -> dict[str, Tensor]:
    """The same for each of `count` encoders' inputs; nothing where there is no decoder."""
    return {"decoder_input_ids": torch.tensor([start] * count, device=device_of(lm.model))} if start else {}


def decoder_texts(lm: Any, inputs: Mapping[str, Tensor]) -> Padded | None:
    """What a decoder reads of these inputs, as tokens; None where there is no decoder."""
    ids = inputs.get("decoder_input_ids")
    if ids is None:
        return None
    lengths = torch.full((len(ids),), ids.shape[1])
    return named_texts(lm, ids.cpu(), torch.zeros_like(lengths), lengths)


def write(lm: Any, given: Mapping[str, Tensor], count: int, options: Mapping[str, Any]) -> Padded:
    """Let the decoder write `count` tokens after what it is given, by transformers' plain generation, and say which.

    Whisper's own way (retries at other temperatures, rules for time stamps, pieces of long sounds) is not taken:
    what it throws away cannot be one recording. Errors: ModelError, RecordingError.
    """
    generation.require_writer(lm, count, options)
    from transformers import GenerationMixin

    begin = given["decoder_input_ids"].shape[1]
    limit = lm.max_positions
    if limit is not None and begin + count > limit:
        raise RecordingError(
            f"generate={count} after {begin} tokens is more than the {limit} positions of {lm.name}: ask for at most "
            f"{max(limit - begin, 0)}."
        )
    pad, ends = generation.padding_of(lm), generation.ends_of(lm.model.generation_config, lm.tokenizer)
    with generation.nobody_ends(lm.model, count, options, pad) as others, torch.no_grad():
        plain: Any = GenerationMixin.generate  # type: ignore[attr-defined]
        ids = plain(lm.model, **given, **others).cpu()[:, :-1]
    lengths = generation.until_end(ids, begin, ends)
    return named_texts(lm, ids, torch.zeros_like(lengths), lengths)
