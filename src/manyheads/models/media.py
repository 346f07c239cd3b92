"""Pictures and sounds on their way into a model, and what its positions are called then.

The model's own processor makes them into inputs. A look at the first layer (`looking`) finds which position is which
patch or frame; tokens are named after them ("[CLS]", "r0c3", "1.24s"), so that everything that needs only places works
on them as on texts. Beside an encoder of sounds, a decoder reads its start tokens, a transcript that was given, or what
it writes itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from numpy import ndarray
from torch import Tensor

from manyheads.errors import ManyHeadsError, ModelError, RecordingError, TextError
from manyheads.models import generation
from manyheads.models.calltexts import CallTexts, Padded
from manyheads.models.checkpoints import first_line
from manyheads.models.looking import find_frames, find_grid, look
from manyheads.models.mediafiles import listed, picture_of, sounds_of
from manyheads.models.senses import DOOR, PICTURES, SOUNDS, TEXT, sense_of, takes
from manyheads.recording.media import Frames, Grid, as_json, grid_of
from manyheads.recording.records import Recording
from manyheads.recording.tokens import Tokens

WRITTEN = "its start tokens, and what it wrote itself, by transformers' plain generation"
DEFAULT_RATE = 16_000  # samples a second, where a processor of sounds names no rate


@dataclass(frozen=True, eq=False)
class Given:
    """Pictures or sounds as the model's inputs, which tokens its layers will read, and what to remember of it."""

    inputs: dict[str, Tensor]
    texts: CallTexts
    provenance: dict[str, object]

    @property
    def tokens(self) -> Tokens:
        assert self.texts.main is not None
        return self.texts.main.tokens


def require_one(texts: object, image: object, audio: object) -> None:
    """Errors: TextError where none of them was given, RecordingError for several."""
    came = [name for name, value in (("texts", texts), ("image=", image), ("audio=", audio)) if value is not None]
    if not came:
        raise TextError("texts is a NoneType: give a text, or a list of texts. Or give one of image= and audio=.")
    if len(came) > 1:
        raise RecordingError(f"give exactly one of texts, image= and audio= to record: {' and '.join(came)} came.")


def require_reader(lm: Any, wanted: str) -> None:
    """Errors: ModelError where the model does not read texts, pictures or sounds (`wanted`) by themselves."""
    if not hasattr(lm, "model"):
        raise ModelError(f"{lm!r} is a {type(lm).__name__}, not a loaded model: load it first, as mh.load({lm!r}).")
    sense, whose = sense_of(lm.model), f"{lm.name} ({type(lm.model).__name__})"
    if sense == wanted:
        return
    if sense != TEXT or wanted == TEXT:
        raise ModelError(f"{whose} reads {sense}, not {wanted}: give {DOOR[sense]} to record, or another model.")
    tower = f"{'vision' if wanted == PICTURES else 'audio'}_model"
    if takes(lm.model) != wanted:
        raise ModelError(f"{whose} reads text, not {wanted}: give it a text, or load a model of {wanted}.")
    how = f"record its tower alone, mh.load(lm.model.{tower}, processor=lm.processor), or " * hasattr(lm.model, tower)
    raise ModelError(f"{whose} reads {wanted} only together with text: {how}use record_call with all its inputs.")


def pictures_given(lm: Any, image: Any) -> Given:
    """Pictures for a model of pictures. Errors: ModelError, FileAccessError, ShapeError, RecordingError."""
    require_reader(lm, PICTURES)
    inputs = _processed(lm, PICTURES, images=[picture_of(each) for each in listed(image)])
    inputs |= _decoder_inputs(lm, _start(lm, None), len(inputs["pixel_values"]))
    grid = find_grid(lm.model, lm.name, inputs)
    names, count = (grid.names, grid.num_positions) if isinstance(grid, Grid) else ((), 0)
    others = set(grid.others) if isinstance(grid, Grid) else set()
    main = _named(names, [count] * len(inputs["pixel_values"]), count, others) if names else None
    return Given(inputs, CallTexts(main, _decoder_texts(lm, inputs)), {**_about(lm), "grid": as_json(grid)})


def sounds_given(lm: Any, audio: Any, sampling_rate: int | None, transcript: str | None) -> Given:
    """Sounds for a model of sounds. Errors: ModelError, FileAccessError, ShapeError, RecordingError."""
    require_reader(lm, SOUNDS)
    rate = int(getattr(_processor(lm, SOUNDS), "sampling_rate", None) or DEFAULT_RATE)
    sounds = sounds_of(audio, sampling_rate, rate)
    _require_short(lm, sounds, rate)
    inputs = _processed(lm, SOUNDS, sounds, sampling_rate=rate, **_padding(lm, sounds))
    start = _start(lm, transcript)
    inputs |= _decoder_inputs(lm, start, len(sounds))
    first = look(lm.model, lm.name, inputs)
    features = inputs[lm.model.main_input_name]
    spaced, axis = _input_seconds(lm, features, rate)
    frames: Frames | str = "its processor does not say how far the spectra that it makes lie apart"
    if spaced is not None:
        lengths = tuple(round(len(sound) / rate, 6) for sound in sounds)
        frames = find_frames(first, features.shape[axis], spaced, lengths)
    main = None
    if isinstance(frames, Frames):
        assert first.call is not None
        heard = first.call.mask.expand(len(sounds)).stop.amax(1).tolist()
        main = _named(frames.names, heard, frames.count, set())
    about = {**_about(lm), "frames": as_json(frames)}
    if "decoder_input_ids" in inputs:
        about["decoder"] = "a transcript that was given" if transcript else "its start tokens alone"
    return Given(inputs, CallTexts(main, _decoder_texts(lm, inputs)), about)


def settled(recording: Recording) -> Recording:
    """The recording without its grid, and with the reason, if some layer has other positions than the first one."""
    if "grid" not in recording.provenance or "none" in recording.provenance["grid"]:  # type: ignore[operator]
        return recording
    wanted = grid_of(recording).num_positions
    for stack, layers in recording.stacks.items():
        for layer in layers:
            if stack in ("", "encoder") and (layer.q.shape[0], layer.q.shape[2]) != (
                recording.tokens.num_texts,
                wanted,
            ):
                why = f"{layer.site.module} has {layer.q.shape[2]} positions, the first layer {wanted}"
                return replace(recording, provenance={**recording.provenance, "grid": as_json(why)})
    return recording


def shown(lm: Any, image: Any) -> UInt8[ndarray, "h w rgb"]:
    """A picture as the model reads it (resized, cropped), for people's eyes. Errors as `pictures_given`'s."""
    processor = _processor(lm, PICTURES)
    values = _processed(lm, PICTURES, images=[picture_of(image)])["pixel_values"][0].float().cpu()
    if getattr(processor, "do_normalize", False):
        mean, std = (
            torch.tensor(list(getattr(processor, name)))[:, None, None] for name in ("image_mean", "image_std")
        )
        values = values * std + mean
    scaled = values * 255 if getattr(processor, "do_rescale", True) else values
    return scaled.round().clamp(0, 255).permute(1, 2, 0).numpy().astype(np.uint8)


# ------------------------------------------------------------------------------------------------------ the processor


def _processor(lm: Any, sense: str) -> Any:
    """What makes inputs: the part of a processor that is about pictures or sounds."""
    if lm.processor is None:
        raise ModelError(
            f"{lm.name} has no processor to make inputs of {sense}: save one beside the model, or load it with "
            f"processor=. Why there is none, lm.because says: {lm.because.split('; ')[-1]}."
        )
    part = "image_processor" if sense == PICTURES else "feature_extractor"
    return getattr(lm.processor, part, None) or lm.processor


def _processed(lm: Any, sense: str, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """The processor's inputs, on the model's device and in its dtype. Errors: ModelError for what it refuses."""
    processor, name = _processor(lm, sense), str(getattr(lm.model, "main_input_name", ""))
    try:
        made = dict(processor(*args, return_tensors="pt", **kwargs))
    except ManyHeadsError:
        raise
    except Exception as error:  # whatever a foreign processor stumbles over is about these inputs
        raise ModelError(f"{type(processor).__name__} cannot read these {sense}: {first_line(error)}") from error
    if not isinstance(made.get(name), Tensor):
        raise ModelError(f"{type(processor).__name__} makes {', '.join(made)}, and {lm.name} reads {name}.")
    tensors = {key: value.to(lm.device) for key, value in made.items() if isinstance(value, Tensor)}
    return {key: value.to(lm.dtype) if value.is_floating_point() else value for key, value in tensors.items()}


def _padding(lm: Any, sounds: Sequence[ndarray]) -> dict[str, Any]:
    """How sounds are made as long as each other. Errors: RecordingError where padding would be heard."""
    processor = _processor(lm, SOUNDS)
    if hasattr(processor, "chunk_length"):  # Whisper: its own way, always to one length
        return {}
    if len({len(sound) for sound in sounds}) > 1 and not getattr(processor, "return_attention_mask", True):
        raise RecordingError(
            f"the sounds have different lengths, and {type(processor).__name__} makes no mask for {lm.name}, which "
            f"would hear the padding: record them one by one."
        )
    return {"padding": True}


def _require_short(lm: Any, sounds: Sequence[ndarray], rate: int) -> None:
    """Errors: RecordingError for a sound that the processor would cut without a word."""
    most = getattr(_processor(lm, SOUNDS), "n_samples", None)
    for at, sound in enumerate(sounds):
        if most is not None and len(sound) > most:
            raise RecordingError(
                f"sound {at} is {len(sound) / rate:.1f} s long, and {lm.name} hears at most {most / rate:.0f} s at "
                f"once: cut it."
            )


def _input_seconds(lm: Any, features: Tensor, rate: int) -> tuple[float | None, int]:
    """How many seconds the model's samples or spectra lie apart, None if unknown, and the axis they run along."""
    if features.ndim == 2:
        return 1 / rate, 1
    processor = _processor(lm, SOUNDS)
    hop, bins = getattr(processor, "hop_length", None), getattr(processor, "feature_size", None)
    axis = 2 if features.shape[1] == bins else 1
    return (None if hop is None or features.ndim != 3 else hop / rate), axis


# -------------------------------------------------------------------------------------------------------- the decoder


def _start(lm: Any, transcript: str | None) -> list[int]:
    """What a decoder beside an encoder reads: its start tokens, and a transcript without its end. Errors: TextError."""
    config = getattr(lm.model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        if transcript is not None:
            raise RecordingError(f"transcript= is for a model with a decoder, and {lm.name} has none: leave it out.")
        return []
    start = next((getattr(config, name, None) for name in ("decoder_start_token_id", "bos_token_id")), None)
    first = [int(start if start is not None else getattr(config, "bos_token_id", None) or 0)]
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


def _decoder_inputs(lm: Any, start: list[int], count: int) -> dict[str, Tensor]:
    return {"decoder_input_ids": torch.tensor([start] * count, device=lm.device)} if start else {}


def _decoder_texts(lm: Any, inputs: Mapping[str, Tensor]) -> Padded | None:
    ids = inputs.get("decoder_input_ids")
    if ids is None:
        return None
    return Padded(_written(lm, ids.cpu(), torch.full((len(ids),), ids.shape[1])), _zeros(len(ids)), ids.shape[1])


def write(lm: Any, given: Given, count: int, options: Mapping[str, Any]) -> CallTexts:
    """Let the decoder write `count` tokens after its start, by transformers' plain generation, and say which they are.

    Whisper's own way (retries at other temperatures, rules for time stamps, pieces of long sounds) is not taken:
    what it throws away cannot be one recording. Errors: ModelError, RecordingError.
    """
    generation._refuse(lm, count, options)
    from transformers import GenerationMixin

    inputs = dict(given.inputs)
    begin = inputs["decoder_input_ids"].shape[1]
    limit = lm.max_positions
    if limit is not None and begin + count > limit:
        raise RecordingError(
            f"generate={count} after {begin} tokens is more than the {limit} positions of {lm.name}: ask for at most "
            f"{max(limit - begin, 0)}."
        )
    pad, ends = generation.padding_of(lm), generation.ends_of(lm.model.generation_config, lm.tokenizer)
    with generation.nobody_ends(lm.model, count, options, pad) as others, torch.no_grad():
        plain: Any = GenerationMixin.generate  # type: ignore[attr-defined]
        ids = plain(lm.model, **inputs, **others).cpu()[:, :-1]
    lengths = generation._until_end(ids, _zeros(len(ids)) + begin, ends)
    return CallTexts(given.texts.main, Padded(_written(lm, ids, lengths), _zeros(len(ids)), ids.shape[1]))


# ---------------------------------------------------------------------------------------------------------- the tokens


def _named(names: Sequence[str], lengths: Sequence[int], width: int, others: set[str]) -> Padded:
    """Positions by name. Those in `others` are special, as a tokenizer's own tokens are."""
    special = torch.tensor([[name in others for name in names]] * len(lengths), dtype=torch.bool)
    pieces = tuple(tuple(names[:length]) for length in lengths)
    longest = max(lengths)
    special = special[:, :longest] & (torch.arange(longest)[None] < torch.tensor(lengths)[:, None])
    return Padded(Tokens(torch.tensor(lengths), None, pieces, special), _zeros(len(lengths)), width)


def _written(lm: Any, ids: Int[Tensor, "b k"], lengths: Int[Tensor, "b"]) -> Tokens:
    """A decoder's tokens, by their numbers where there is no tokenizer to name them."""
    real = torch.arange(ids.shape[1])[None] < lengths[:, None]
    ids = ids.masked_fill(~real, -1)[:, : int(lengths.max())]
    rows = [row[row >= 0].tolist() for row in ids]
    if lm.tokenizer is None:
        return Tokens(lengths, ids, tuple(tuple(f"token {each}" for each in row) for row in rows))
    known = torch.tensor(sorted(lm.tokenizer.all_special_ids), dtype=torch.long)
    pieces = tuple(tuple(str(each) for each in lm.tokenizer.convert_ids_to_tokens(row)) for row in rows)
    texts = tuple(str(lm.tokenizer.decode(row, skip_special_tokens=True)) for row in rows)
    return Tokens(lengths, ids, pieces, torch.isin(ids, known), None, texts)


def _zeros(count: int) -> Int[Tensor, "b"]:
    return torch.zeros(count, dtype=torch.long)


def _about(lm: Any) -> dict[str, object]:
    return {"model": lm.name, "dtype": str(lm.dtype).removeprefix("torch.")}
