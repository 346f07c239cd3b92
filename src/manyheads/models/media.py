"""Pictures and sounds on their way into a model, and what its positions are called then.

The model's own processor makes them into inputs. A look at the first layer (`looking`) finds which position is which
patch or frame; tokens are named after them ("[CLS]", "r0c3", "1.24s"), so that everything that needs only places works
on them as on texts. Beside an encoder of sounds, a decoder reads its start tokens, a transcript that was given, or what
it writes itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy import ndarray
from torch import Tensor

from manyheads.errors import ManyHeadsError, ModelError, RecordingError, TextError
from manyheads.models.calltexts import CallTexts, Padded, at_the_edge
from manyheads.models.checkpoints import first_line
from manyheads.models.keeping import model_facts
from manyheads.models.looking import find_frames, find_grid, look
from manyheads.models.mediafiles import listed, picture_of, sounds_of
from manyheads.models.offloaded import device_of
from manyheads.models.senses import DOOR, PICTURES, SOUNDS, TEXT, sense_of, takes
from manyheads.models.transcripts import decoder_inputs, decoder_texts, start_tokens
from manyheads.recording.media import Frames, Grid, as_json, grid_of
from manyheads.recording.recording import Recording
from manyheads.recording.tokens import Tokens, data_seed

DEFAULT_RATE = 16_000  # samples a second, where a processor of sounds names no rate


@dataclass(frozen=True, eq=False)
class Given:
    """Pictures or sounds as the model's inputs, which tokens its layers will read, and what to remember of it.

    `seeds`: a number of each, made from its pixels or samples alone.
    """

    inputs: dict[str, Tensor]
    texts: CallTexts
    provenance: dict[str, object]
    seeds: tuple[int, ...]

    def batches(self, size: int) -> list[Given]:
        """The same in parts of `size`: all in one where some input is not laid out one by one."""
        count = len(self.seeds)
        if any(len(value) != count for value in self.inputs.values()):
            return [self]
        return [self._some(slice(begin, begin + size)) for begin in range(0, count, size)]

    def _some(self, chosen: slice) -> Given:
        inputs = {name: value[chosen] for name, value in self.inputs.items()}
        main, decoder = (
            None if read is None else Padded(read.tokens.some(chosen), read.first[chosen], read.width)
            for read in (self.texts.main, self.texts.decoder)
        )
        return Given(inputs, CallTexts(main, decoder), self.provenance, self.seeds[chosen])


def media_given(
    lm: Any, texts: object, image: Any, audio: Any, sampling_rate: int | None, transcript: str | None
) -> Given | None:
    """What was given in place of texts, ready for the model; None where it is texts, which this model then reads.

    Errors: TextError where nothing was given, RecordingError for several; as `pictures_given` and `sounds_given`.
    """
    _require_one(texts, image, audio)
    if audio is None and (sampling_rate is not None or transcript is not None):
        raise RecordingError("sampling_rate= and transcript= are for sounds: give them with audio=.")
    if image is not None:
        return pictures_given(lm, image)
    if audio is not None:
        return sounds_given(lm, audio, sampling_rate, transcript)
    if hasattr(lm, "model"):
        require_reader(lm, TEXT)
    return None


def _require_one(texts: object, image: object, audio: object) -> None:
    """Errors: TextError where none of them was given, RecordingError for several."""
    came = [name for name, value in (("texts", texts), ("image=", image), ("audio=", audio)) if value is not None]
    if not came:
        raise TextError("texts is a NoneType: give a text, or a list of texts. Or give one of image= and audio=.")
    if len(came) > 1:
        raise RecordingError(f"give exactly one of texts, image= and audio=: {' and '.join(came)} came.")


def require_reader(lm: Any, wanted: str) -> None:
    """Errors: ModelError where the model does not read texts, pictures or sounds (`wanted`) by themselves."""
    if not hasattr(lm, "model"):
        raise ModelError(f"{lm!r} is a {type(lm).__name__}, not a loaded model: load it first, as mh.load({lm!r}).")
    sense, whose = sense_of(lm.model), f"{lm.name} ({type(lm.model).__name__})"
    if sense == wanted:
        return
    if sense != TEXT or wanted == TEXT:
        raise ModelError(f"{whose} reads {sense}, not {wanted}: give {DOOR[sense]}, or another model.")
    tower = f"{'vision' if wanted == PICTURES else 'audio'}_model"
    if takes(lm.model) != wanted:
        raise ModelError(f"{whose} reads text, not {wanted}: give it a text, or load a model of {wanted}.")
    how = f"take its tower alone, mh.load(lm.model.{tower}, processor=lm.processor), or " * hasattr(lm.model, tower)
    raise ModelError(f"{whose} reads {wanted} only together with text: {how}use record_call with all its inputs.")


def pictures_given(lm: Any, image: Any) -> Given:
    """Pictures for a model of pictures. Errors: ModelError, FileAccessError, ShapeError, RecordingError."""
    require_reader(lm, PICTURES)
    pictures = [picture_of(each) for each in listed(image)]
    inputs = _processed(lm, PICTURES, images=pictures)
    inputs |= decoder_inputs(lm, start_tokens(lm, None), len(inputs["pixel_values"]))
    grid = find_grid(lm.model, lm.name, inputs)
    names, count = (grid.names, grid.num_positions) if isinstance(grid, Grid) else ((), 0)
    others = set(grid.others) if isinstance(grid, Grid) else set()
    main = _named(names, [count] * len(inputs["pixel_values"]), count, others) if names else None
    seeds = tuple(data_seed(picture.tobytes()) for picture in pictures)
    return Given(inputs, CallTexts(main, decoder_texts(lm, inputs)), {**model_facts(lm), "grid": as_json(grid)}, seeds)


def sounds_given(lm: Any, audio: Any, sampling_rate: int | None, transcript: str | None) -> Given:
    """Sounds for a model of sounds. Errors: ModelError, FileAccessError, ShapeError, RecordingError."""
    require_reader(lm, SOUNDS)
    rate = int(getattr(_processor(lm, SOUNDS), "sampling_rate", None) or DEFAULT_RATE)
    sounds = sounds_of(audio, sampling_rate, rate)
    _require_short(lm, sounds, rate)
    inputs = _processed(lm, SOUNDS, sounds, sampling_rate=rate, **_padding(lm, sounds))
    inputs |= decoder_inputs(lm, start_tokens(lm, transcript), len(sounds))
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
    about = {**model_facts(lm), "frames": as_json(frames)}
    if "decoder_input_ids" in inputs:
        about["decoder"] = "a transcript that was given" if transcript else "its start tokens alone"
    seeds = tuple(data_seed(sound.tobytes()) for sound in sounds)
    return Given(inputs, CallTexts(main, decoder_texts(lm, inputs)), about, seeds)


def settled(recording: Recording) -> Recording:
    """The recording without its grid, and with the reason, if some layer has other positions than the first one."""
    if "grid" not in recording.provenance or "none" in recording.provenance["grid"]:  # type: ignore[operator]
        return recording
    num_pictures, wanted = recording.tokens.num_texts, grid_of(recording).num_positions
    for layer in (layer for stack in ("", "encoder") for layer in recording.stacks.get(stack, ())):
        if (layer.q.shape[0], layer.q.shape[2]) != (num_pictures, wanted):
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
    tensors = {key: value.to(device_of(lm.model)) for key, value in made.items() if isinstance(value, Tensor)}
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


# ---------------------------------------------------------------------------------------------------------- the tokens


def _named(names: Sequence[str], lengths: Sequence[int], width: int, others: set[str]) -> Padded:
    """Positions by name. Those in `others` are special, as a tokenizer's own tokens are."""
    special = torch.tensor([[name in others for name in names]] * len(lengths), dtype=torch.bool)
    pieces = tuple(tuple(names[:length]) for length in lengths)
    longest = max(lengths)
    special = special[:, :longest] & (torch.arange(longest)[None] < torch.tensor(lengths)[:, None])
    return at_the_edge(Tokens(torch.tensor(lengths), None, pieces, special), width)
