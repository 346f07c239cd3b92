"""Pictures and sounds as a model's inputs, and the names of its positions then.

A picture is a path, a PIL image or an array, and becomes a PIL image in RGB, turned upright as its camera says. A sound
is a path or an array, and becomes one channel of float32 samples, -1 to 1; several channels are averaged. Nothing is
resampled: a sound of another rate is refused, with both numbers.

The model's own processor makes inputs of them. A look at the first layer finds which position is which patch or frame;
tokens are named after them ("[CLS]", "r0c3", "1.24s"), so that everything that needs only places works on them as on
texts. Beside an encoder of sounds, a decoder reads its start tokens, a transcript, or what it writes itself.
"""

# device: facts about pictures and sounds are the host's

from __future__ import annotations

import os
import warnings
import wave
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray
from torch import Tensor

from manyheads.base import first_line, no_access
from manyheads.errors import FileAccessError, ManyHeadsError, ModelError, RecordingError, ShapeError
from manyheads.inputs.batch import Batch, Side
from manyheads.inputs.generation import decoder_inputs, decoder_texts, start_tokens
from manyheads.inputs.media.positions import find_frames, find_grid, look
from manyheads.models import (
    DOOR,
    PICTURES,
    SOUNDS,
    TEXT,
    LoadedModel,
    device_of,
    sense_of,
    takes,
)
from manyheads.models.loading import Processor
from manyheads.models.weights import image_token_of
from manyheads.recording import Frames, Recording, as_json, grid_of
from manyheads.texts import Grid, Tokens, data_seed

DEFAULT_RATE = 16_000  # samples a second, where a processor of sounds names no rate
Samples = Float32[ndarray, "samples"]


@runtime_checkable
class PilImage(Protocol):
    """A picture of PIL's, which is imported only where a picture is read."""

    def convert(self, mode: str) -> PilImage: ...

    def resize(self, size: tuple[int, int]) -> PilImage: ...

    def tobytes(self) -> bytes: ...


ImageLike = str | os.PathLike[str] | ndarray | Tensor | PilImage
"""A path, a PIL image, or an array `[height, width, 3]` (uint8, or float from 0 to 1)."""

AudioLike = str | os.PathLike[str] | ndarray | Tensor | Sequence[float]
"""A path of a .wav, or an array `[samples]`, of one channel, as int16 or floats from -1 to 1."""


def require_sense(lm: LoadedModel, modality: str) -> None:
    """Errors: ModelError where the model does not read texts, pictures or sounds (`modality`) by themselves."""
    sense, whose = sense_of(lm.model), f"{lm.name} ({type(lm.model).__name__})"
    if sense == modality:
        return
    if sense != TEXT or modality == TEXT:
        raise ModelError(f"{whose} reads {sense}, not {modality}: give {DOOR[sense]}, or another model.")
    tower = f"{'vision' if modality == PICTURES else 'audio'}_model"
    if takes(lm.model) != modality:
        raise ModelError(f"{whose} reads text, not {modality}: give it a text, or load a model of {modality}.")
    how = f"take its tower alone, mh.load(lm.model.{tower}, processor=lm.processor), or " * hasattr(lm.model, tower)
    if modality == PICTURES and image_token_of(lm.model.config) is not None:
        raise ModelError(
            f"{whose} reads pictures among the tokens of a text: give it a text too, as in "
            f"record(lm, mh.Inputs('What is this?', image=...))."
        )
    raise ModelError(f"{whose} reads {modality} only together with text: {how}use record_call with all its inputs.")


def read_pictures(lm: LoadedModel, image: ImageLike | Sequence[ImageLike]) -> tuple[Batch, dict[str, object]]:
    """Pictures for a model of pictures, and their grid. Errors: ModelError, FileAccessError, ShapeError,
    RecordingError."""
    require_sense(lm, PICTURES)
    pictures = [picture_of(picture) for picture in listed(image)]
    inputs = _processed(lm, PICTURES, images=pictures)
    inputs |= decoder_inputs(lm, start_tokens(lm, None), len(inputs["pixel_values"]))
    grid = find_grid(lm.model, lm.name, inputs)
    names, count = (grid.names, grid.num_positions) if isinstance(grid, Grid) else ((), 0)
    special = set(grid.others) if isinstance(grid, Grid) else set()
    main = _named(names, [count] * len(inputs["pixel_values"]), count, special) if names else None
    seeds = tuple(data_seed(picture.tobytes()) for picture in pictures)
    batch = Batch(inputs, tuple(range(len(seeds))), main, decoder_texts(lm, inputs), seeds)
    return batch, {"grid": as_json(grid)}


def read_sounds(
    lm: LoadedModel, audio: AudioLike | Sequence[AudioLike], sampling_rate: int | None, transcript: str | None
) -> tuple[Batch, dict[str, object]]:
    """Sounds for a model of sounds, and their frames. Errors: ModelError, FileAccessError, ShapeError,
    RecordingError."""
    require_sense(lm, SOUNDS)
    processor = _processor(lm, SOUNDS)
    rate = int(getattr(processor, "sampling_rate", None) or DEFAULT_RATE)
    sounds = sounds_of(audio, sampling_rate, rate)
    most = getattr(processor, "n_samples", None)
    for index, sound in enumerate(sounds):  # the processor would cut a longer one in silence
        if most is not None and len(sound) > most:
            raise RecordingError(
                f"sound {index} is {len(sound) / rate:.1f} s long, and {lm.name} hears at most {most / rate:.0f} s at "
                f"once: cut it."
            )
    padding: dict[str, Any] = {}
    if not hasattr(processor, "chunk_length"):  # Whisper has its own way: it pads always to one length
        if len({len(sound) for sound in sounds}) > 1 and not getattr(processor, "return_attention_mask", True):
            raise RecordingError(
                f"the sounds have different lengths, and {type(processor).__name__} makes no mask for {lm.name}, which "
                f"would hear the padding: record them one by one."
            )
        padding = {"padding": True}
    inputs = _processed(lm, SOUNDS, sounds, sampling_rate=rate, **padding)
    inputs |= decoder_inputs(lm, start_tokens(lm, transcript), len(sounds))
    first = look(lm.model, lm.name, inputs)
    features = inputs[str(lm.model.main_input_name)]
    # How many seconds the model's samples or spectra lie apart (None if unknown), and the axis they run along.
    seconds: float | None = 1 / rate
    axis = 1
    if features.ndim != 2:
        hop, bins = getattr(processor, "hop_length", None), getattr(processor, "feature_size", None)
        axis = 2 if features.shape[1] == bins else 1
        seconds = None if hop is None or features.ndim != 3 else hop / rate
    frames: Frames | str = "its processor does not say how far the spectra that it makes lie apart"
    if seconds is not None:
        lengths = tuple(round(len(sound) / rate, 6) for sound in sounds)
        frames = find_frames(first, features.shape[axis], seconds, lengths)
    main = None
    if isinstance(frames, Frames):
        assert first.call is not None
        # How far the first layer looks is how much of the sound is no padding, whatever the processor calls its mask.
        heard = first.call.mask.expand(len(sounds)).stop.amax(1).tolist()
        main = _named(frames.names, heard, frames.count, set())
    notes: dict[str, object] = {"frames": as_json(frames)}
    if "decoder_input_ids" in inputs:
        notes["decoder"] = "a transcript that was given" if transcript else "its start tokens alone"
    seeds = tuple(data_seed(sound.tobytes()) for sound in sounds)
    return Batch(inputs, tuple(range(len(seeds))), main, decoder_texts(lm, inputs), seeds), notes


def settled(recording: Recording) -> Recording:
    """The recording without its grid, and with the reason, if some layer has other positions than the first one."""
    if "grid" not in recording.provenance or "none" in recording.provenance["grid"]:  # type: ignore[operator]
        return recording
    num_pictures, num_positions = recording.tokens.num_texts, grid_of(recording).num_positions
    for layer in (layer for stack in ("", "encoder") for layer in recording.stacks.get(stack, ())):
        if (layer.q.shape[0], layer.q.shape[2]) != (num_pictures, num_positions):
            why = f"{layer.site.module} has {layer.q.shape[2]} positions, the first layer {num_positions}"
            return replace(recording, provenance={**recording.provenance, "grid": as_json(why)})
    return recording


def shown(lm: LoadedModel, image: ImageLike, size: tuple[int, int] | None = None) -> UInt8[ndarray, "h w rgb"]:
    """A picture as the model reads it (resized, cropped), for people's eyes.

    `size`: height and width of a picture that is read among the tokens of a text (`Grid.picture`); where its processor
    makes single patches (Qwen), it is resized as a whole. Errors as `picture_of`'s; ModelError.
    """
    processor, picture = _processor(lm, PICTURES), picture_of(image)
    if size is None:
        values = _processed(lm, PICTURES, images=[picture])["pixel_values"]
    else:
        values = processed(lm, processor, "this picture", images=[picture])["pixel_values"]
        if values.ndim < 4:
            return np.asarray(picture.resize((size[1], size[0])), dtype=np.uint8)
    values = values.flatten(0, -4)[0].float().cpu()
    if getattr(processor, "do_normalize", False):
        mean, std = (
            torch.tensor(list(getattr(processor, name)))[:, None, None] for name in ("image_mean", "image_std")
        )
        values = values * std + mean
    scaled = values * 255 if getattr(processor, "do_rescale", True) else values
    return scaled.round().clamp(0, 255).permute(1, 2, 0).numpy().astype(np.uint8)


def _processor(lm: LoadedModel, sense: str) -> Processor:
    """The part of the model's processor that makes inputs of pictures or of sounds."""
    if lm.processor is None:
        raise ModelError(
            f"{lm.name} has no processor to make inputs of {sense}: save one beside the model, or load it with "
            f"processor=. lm.because says why there is none: {lm.because.split('; ')[-1]}."
        )
    part = "image_processor" if sense == PICTURES else "feature_extractor"
    return getattr(lm.processor, part, None) or lm.processor


def processed(lm: LoadedModel, processor: Processor, subject: str, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """The processor's inputs of `subject`, on the model's device and in its dtype. Errors: ModelError."""
    try:
        made = dict(processor(*args, return_tensors="pt", **kwargs))
    except ManyHeadsError:
        raise
    except Exception as error:  # whatever a foreign processor stumbles over is about these inputs
        raise ModelError(f"{type(processor).__name__} cannot read {subject}: {first_line(error)}") from error
    device = device_of(lm.model)
    tensors = {name: value.to(device) for name, value in made.items() if isinstance(value, Tensor)}
    return {name: value.to(lm.dtype) if value.is_floating_point() else value for name, value in tensors.items()}


def _processed(lm: LoadedModel, sense: str, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """The inputs of pictures or sounds. Errors: ModelError where what the model reads is not among them as well."""
    processor, name = _processor(lm, sense), str(getattr(lm.model, "main_input_name", ""))
    inputs = processed(lm, processor, f"these {sense}", *args, **kwargs)
    if name not in inputs:
        raise ModelError(f"{type(processor).__name__} makes {', '.join(inputs)}, and {lm.name} reads {name}.")
    return inputs


def _named(names: Sequence[str], lengths: Sequence[int], width: int, special_names: set[str]) -> Side:
    """Positions by name. Those in `special_names` are special, as a tokenizer's own tokens are."""
    special = torch.tensor([[name in special_names for name in names]] * len(lengths), dtype=torch.bool)
    pieces = tuple(tuple(names[:length]) for length in lengths)
    longest = max(lengths)
    special = special[:, :longest] & (torch.arange(longest)[None] < torch.tensor(lengths)[:, None])
    return Side.at_the_edge(Tokens(torch.tensor(lengths), None, pieces, special), width)


def listed(media: object) -> list[Any]:
    """One picture or sound, or a list of them, as a list. Errors: RecordingError for an empty one."""
    items = list(media) if isinstance(media, list | tuple) else [media]
    if not items:
        raise RecordingError("the list is empty: give at least one.")
    return items


def picture_of(picture: ImageLike) -> PilImage:
    """A PIL image in RGB, of a path, a PIL image, or an array `[height, width, 3]` (uint8, or float from 0 to 1).

    Errors: FileAccessError for a file that is not there or no picture; ShapeError for an array that is none.
    """
    from PIL import Image, ImageOps

    if isinstance(picture, str | os.PathLike):
        picture = _opened(picture)
    if isinstance(picture, Image.Image):
        # A camera writes how it was held beside the pixels: unturned,
        # patches would lie elsewhere than a viewer shows them.
        return ImageOps.exif_transpose(picture).convert("RGB")
    if isinstance(picture, torch.Tensor | np.ndarray):
        array = _array(picture)
        shape = tuple(array.shape)
        if array.ndim != 3 or shape[2] != 3 or not array.size:
            colours_first = len(shape) == 3 and shape[0] == 3
            turned = " Its colours come first: permute(1, 2, 0) puts them last." if colours_first else ""
            raise ShapeError(f"an array of shape {shape} is not a picture: give [height, width, 3].{turned}")
        if array.dtype == np.uint8:
            return Image.fromarray(array)
        if not np.issubdtype(array.dtype, np.floating) or not (array.min() >= 0 and array.max() <= 1):
            raise ShapeError(
                f"a picture's {array.dtype} values from {array.min()} to {array.max()} cannot be read: give uint8 from "
                f"0 to 255, or floats from 0 to 1."
            )
        return Image.fromarray((array * 255).round().astype(np.uint8))
    raise RecordingError(
        f"a {type(picture).__name__} is not a picture: give a path, a PIL image, or an array [height, width, 3]."
    )


def _opened(path: str | os.PathLike[str]) -> PilImage:
    from PIL import Image, UnidentifiedImageError

    # PIL only warns of a picture of over 89 million pixels, whose file may be tiny: it is refused like a damaged one.
    bomb = Image.DecompressionBombWarning
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("error", bomb)
            image.load()
            return image.copy() if not image.getexif() else image
    except UnidentifiedImageError as error:
        raise FileAccessError(f"{os.fspath(path)} is not a picture that can be read: give a .png or .jpg.") from error
    except OSError as error:
        if error.errno is not None:
            raise no_access("read", path, error) from error
        raise FileAccessError(f"{os.fspath(path)} is a damaged picture ({error}): copy or save it again.") from error
    except (ValueError, SyntaxError, EOFError, MemoryError, Image.DecompressionBombError, bomb) as error:
        raise FileAccessError(f"cannot read {os.fspath(path)} as a picture: {error}.") from error


def _array(values: ndarray | Tensor | Sequence[float]) -> ndarray:
    return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)


def sounds_of(audio: AudioLike | Sequence[AudioLike], sampling_rate: int | None, model_rate: int) -> list[Samples]:
    """Sounds at `model_rate`, the rate that the model hears. `sampling_rate` is that of arrays; files have their own.

    Errors: FileAccessError, ShapeError, RecordingError for a rate that is unknown or not the model's.
    """
    # A list of numbers is one sound; any other list is a list of sounds.
    numbers = isinstance(audio, list | tuple) and bool(audio) and all(isinstance(x, int | float) for x in audio)
    items: list[Any] = [audio] if numbers else listed(audio)
    sounds = []
    for sound in items:
        if isinstance(sound, str | os.PathLike):
            samples, rate = _read(sound)
        else:
            array, rate = _array(sound), sampling_rate
            is_int16 = array.dtype == np.int16
            if array.ndim != 1 or not array.size or not (is_int16 or np.issubdtype(array.dtype, np.floating)):
                raise ShapeError(
                    f"an array of {array.dtype}, shape {tuple(array.shape)}, is not a sound: give one channel, "
                    f"[samples], as int16 or floats from -1 to 1."
                )
            samples = array.astype(np.float32) / (32768 if is_int16 else 1)
            if not np.isfinite(samples).all():
                raise ShapeError("the sound holds NaN or infinite samples: clean it first.")
        if rate is None:
            raise RecordingError(
                f"an array does not say how many samples it has a second: give sampling_rate=, the model hears "
                f"{model_rate:,}."
            )
        if sampling_rate is not None and rate != sampling_rate:
            raise RecordingError(f"{sampling_rate=}, but {os.fspath(sound)} says {rate:,}: leave it out for files.")
        if rate != model_rate:
            raise RecordingError(
                f"the sound has {rate:,} samples a second, the model hears {model_rate:,}: resample it first, for "
                f"instance with scipy.signal.resample_poly(sound, {model_rate}, {rate})."
            )
        sounds.append(samples)
    return sounds


def _read(path: str | os.PathLike[str]) -> tuple[Samples, int]:
    """A file's samples and rate: .wav by itself; other kinds where soundfile is installed."""
    try:
        with wave.open(os.fspath(path), "rb") as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            if width > 4:
                raise wave.Error(f"{8 * width} bits a sample")
            # A header that was written before the end may promise more frames than the file holds.
            most_frames = os.path.getsize(path) // (width * channels)
            data = file.readframes(min(file.getnframes(), most_frames))
        if width == 1:  # without a sign, as the format wants it
            decoded = np.frombuffer(data, np.uint8).astype(np.float64) / 128 - 1
        else:
            if width == 3:  # no such type: three bytes become the upper ones of four
                data = np.pad(np.frombuffer(data, np.uint8).reshape(-1, 3), ((0, 0), (1, 0))).tobytes()
            stored = np.dtype("<i2" if width == 2 else "<i4")
            decoded = np.frombuffer(data, stored).astype(np.float64) / 2.0 ** (8 * stored.itemsize - 1)
        # Models hear one channel: the mean of all loses less than any one of them alone.
        samples = decoded.reshape(-1, channels).mean(1)
    except OSError as error:
        raise no_access("read", path, error) from error
    except (wave.Error, EOFError, ValueError, RuntimeError) as error:
        try:
            import soundfile  # type: ignore[import-not-found]
        except ImportError:
            raise FileAccessError(
                f"cannot read {os.fspath(path)} as a sound ({error or 'it ends too soon'}): save it as a .wav of "
                f"16-bit samples, or install soundfile, which reads other kinds."
            ) from error
        try:
            stereo, rate = soundfile.read(path, always_2d=True)
        except (RuntimeError, OSError) as fault:
            raise FileAccessError(f"cannot read {os.fspath(path)} as a sound: {fault}.") from fault
        samples, rate = stereo.mean(1), int(rate)
    if not len(samples):
        raise FileAccessError(f"{os.fspath(path)} holds no sound: it has no samples.")
    return samples.astype(np.float32), rate
