"""What a model reads (text, pictures or sounds), and blank inputs of that kind, to see where it attends.

The modality follows from the name that the model gives its main input, and from its other arguments: a model that reads
text beside pictures (CLIP as a whole, a captioner) counts as one of text, its vision tower alone as one of pictures.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.models.loading.offloaded import device_of

TEXT, PICTURES, SOUNDS = "text", "pictures", "sounds"
OF_INPUT = {"pixel_values": PICTURES, "input_features": SOUNDS, "input_values": SOUNDS}
DOOR = {TEXT: "texts", PICTURES: "image=", SOUNDS: "audio="}  # how `record` takes each
PICTURE_SIZE = 224  # pixels, where the config names no size
SOUND_SAMPLES = 8_000  # half a second, as most models hear it
FEATURE_FRAMES, MEL_BINS = 200, 80  # of a spectrogram, where the config names no number


def sense_of(model: nn.Module) -> str:
    """TEXT, PICTURES or SOUNDS: what the model's main input is. TEXT for a model that names no input."""
    sense = OF_INPUT.get(str(getattr(model, "main_input_name", "")), TEXT)
    return TEXT if "input_ids" in inspect.signature(model.forward).parameters else sense


def takes(model: nn.Module) -> str | None:
    """PICTURES or SOUNDS where the model takes them, beside text too; None where it takes neither."""
    named = inspect.signature(model.forward).parameters
    return next((sense for name, sense in OF_INPUT.items() if name in named), None)


def blank_inputs(model: nn.Module) -> dict[str, Tensor]:
    """One blank picture, or a short silence, of a shape that the config means."""
    name, config = str(getattr(model, "main_input_name", "")), getattr(model, "config", None)
    if name == "pixel_values":
        size: Any = _field(config, "image_size") or PICTURE_SIZE
        if isinstance(size, dict):
            size = (size["height"], size["width"])
        height, width = (size, size) if isinstance(size, int) else size
        shape: tuple[int, ...] = (int(_field(config, "num_channels") or 3), int(height), int(width))
    else:
        shape = _sound_shape(name, config)
    first = next(model.parameters())
    return {name: torch.zeros(1, *shape, dtype=first.dtype, device=device_of(model))}


def _sound_shape(name: str, config: Any) -> tuple[int, ...]:
    bins = _field(config, "num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_dim")
    positions = getattr(config, "max_source_positions", None)
    if name == "input_features" and positions and _field(config, "num_mel_bins"):
        return int(bins or MEL_BINS), 2 * int(positions)  # Whisper: bins first, always all frames, two a position
    if name == "input_features":
        return FEATURE_FRAMES, int(bins or MEL_BINS)
    if bins and _field(config, "max_length"):  # a spectrogram that is read as a picture
        return int(config.max_length), int(bins)
    return (SOUND_SAMPLES,)


def _field(config: Any, *names: str) -> Any:
    """The first of these fields that has a value, in the config or in its part about the encoder."""
    parts = [config, getattr(config, "vision_config", None), getattr(config, "encoder", None)]
    values = (getattr(part, name, None) for part in parts if part is not None for name in names)
    return next((value for value in values if value), None)
