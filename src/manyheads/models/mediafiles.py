"""Pictures and sounds as people have them (a path, an array, an image object), made into what processors take.

A picture becomes a PIL image in RGB, turned upright as its camera says. A sound becomes one channel of float32 samples,
-1 to 1; several channels are averaged. Nothing is resampled: a sound of another rate is refused, with both numbers.
"""

from __future__ import annotations

import os
import warnings
import wave
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from manyheads.errors import FileAccessError, RecordingError, ShapeError
from manyheads.base.files import no_access

Samples = Float32[ndarray, "samples"]


def listed(given: Any) -> list[Any]:
    """One picture or sound, or a list of them, as a list. Errors: RecordingError for an empty one."""
    many = list(given) if isinstance(given, list | tuple) else [given]
    if not many:
        raise RecordingError("the list is empty: give at least one.")
    return many


# ------------------------------------------------------------------------------------------------------------ pictures


def picture_of(given: Any) -> Any:
    """A PIL image in RGB, of a path, a PIL image, or an array `[height, width, 3]` (uint8, or float from 0 to 1).

    Errors: FileAccessError for a file that is not there or no picture; ShapeError for an array that is none.
    """
    from PIL import Image, ImageOps

    if isinstance(given, str | os.PathLike):
        given = _opened(given)
    if isinstance(given, Image.Image):
        return ImageOps.exif_transpose(given).convert("RGB")
    if isinstance(given, torch.Tensor | np.ndarray):
        return Image.fromarray(_bytes(given))
    raise RecordingError(
        f"a {type(given).__name__} is not a picture: give a path, a PIL image, or an array [height, width, 3]."
    )


def _opened(path: str | os.PathLike[str]) -> Any:
    from PIL import Image, UnidentifiedImageError

    bomb = Image.DecompressionBombWarning  # over 89 million pixels
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
        raise FileAccessError(f"{os.fspath(path)} is a damaged picture ({error}): copy or save it anew.") from error
    except (ValueError, SyntaxError, EOFError, MemoryError, Image.DecompressionBombError, bomb) as error:
        raise FileAccessError(f"cannot read {os.fspath(path)} as a picture: {error}.") from error


def _array(given: Any) -> ndarray:
    return np.asarray(given.detach().cpu() if isinstance(given, torch.Tensor) else given)


def _bytes(given: Any) -> ndarray:
    array = _array(given)
    shape = tuple(array.shape)
    if array.ndim != 3 or shape[2] != 3 or not array.size:
        turned = (
            " Its colours come first: permute(1, 2, 0) puts them last." if len(shape) == 3 and shape[0] == 3 else ""
        )
        raise ShapeError(f"an array of shape {shape} is not a picture: give [height, width, 3].{turned}")
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating) or not (array.min() >= 0 and array.max() <= 1):
        raise ShapeError(
            f"a picture's {array.dtype} values from {array.min()} to {array.max()} cannot be read: give uint8 from 0 "
            f"to 255, or floats from 0 to 1."
        )
    return (array * 255).round().astype(np.uint8)


# -------------------------------------------------------------------------------------------------------------- sounds


def sounds_of(given: Any, sampling_rate: int | None, wanted: int) -> list[Samples]:
    """Sounds of the rate that the model hears. `sampling_rate` is that of arrays; files say their own.

    Errors: FileAccessError, ShapeError, RecordingError for a rate that is not said or not the wanted one.
    """
    sounds = []
    for each in [given] if _is_one_sound(given) else listed(given):
        path = isinstance(each, str | os.PathLike)
        samples, rate = _read(each) if path else (_samples(each), sampling_rate)
        if rate is None:
            raise RecordingError(
                f"an array does not say how fast it is: give sampling_rate=, the model hears {wanted:,}."
            )
        if sampling_rate is not None and rate != sampling_rate:
            raise RecordingError(f"{sampling_rate=}, but {os.fspath(each)} says {rate:,}: leave it out for files.")
        if rate != wanted:
            raise RecordingError(
                f"the sound has {rate:,} samples a second, the model hears {wanted:,}: resample it first, for instance "
                f"with scipy.signal.resample_poly(sound, {wanted}, {rate})."
            )
        sounds.append(samples)
    return sounds


def _is_one_sound(given: Any) -> bool:
    """A list of numbers is a sound too."""
    return isinstance(given, list | tuple) and bool(given) and all(isinstance(each, int | float) for each in given)


def _samples(given: Any) -> Samples:
    array = _array(given)
    if array.ndim != 1 or not array.size or not (array.dtype == np.int16 or np.issubdtype(array.dtype, np.floating)):
        raise ShapeError(
            f"an array of {array.dtype}, shape {tuple(array.shape)}, is not a sound: give one channel, [samples], as "
            f"int16 or floats from -1 to 1."
        )
    samples = array.astype(np.float32) / (32768 if array.dtype == np.int16 else 1)
    if not np.isfinite(samples).all():
        raise ShapeError("the sound holds NaN or infinite samples: clean it first.")
    return samples


def _read(path: str | os.PathLike[str]) -> tuple[Samples, int]:
    """A file's samples and rate: .wav by itself; other kinds where soundfile is installed."""
    try:
        with wave.open(os.fspath(path), "rb") as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            if width > 4:
                raise wave.Error(f"{8 * width} bits a sample")
            there = os.path.getsize(path) // (width * channels)  # a head that was written before the end says more
            data = file.readframes(min(file.getnframes(), there))
        samples = _decoded(data, width).reshape(-1, channels).mean(1)
    except OSError as error:
        raise no_access("read", path, error) from error
    except (wave.Error, EOFError, ValueError, RuntimeError) as error:
        samples, rate = _by_soundfile(path, error)
    if not len(samples):
        raise FileAccessError(f"{os.fspath(path)} holds no sound: it has no samples.")
    return samples.astype(np.float32), rate


def _decoded(data: bytes, width: int) -> ndarray:
    """Whole-number samples of 1, 2, 3 or 4 bytes as floats. One byte has no sign, as the format wants it."""
    if width == 1:
        return np.frombuffer(data, np.uint8).astype(np.float64) / 128 - 1
    if width == 3:  # no such type: three bytes become the upper ones of four
        data = np.pad(np.frombuffer(data, np.uint8).reshape(-1, 3), ((0, 0), (1, 0))).tobytes()
    stored = np.dtype("<i2" if width == 2 else "<i4")
    return np.frombuffer(data, stored).astype(np.float64) / 2.0 ** (8 * stored.itemsize - 1)


def _by_soundfile(path: str | os.PathLike[str], fault: Exception) -> tuple[ndarray, int]:
    try:
        import soundfile  # type: ignore[import-not-found]
    except ImportError:
        raise FileAccessError(
            f"cannot read {os.fspath(path)} as a sound ({fault or 'it ends too soon'}): save it as a .wav of 16-bit "
            f"samples, or install soundfile, which reads other kinds."
        ) from fault
    try:
        samples, rate = soundfile.read(path, always_2d=True)
    except (RuntimeError, OSError) as error:
        raise FileAccessError(f"cannot read {os.fspath(path)} as a sound: {error}.") from error
    return samples.mean(1), int(rate)
