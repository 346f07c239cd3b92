"""Inputs for any forward signature: two texts of unlike length, a picture, a sound, a series.

The model's own words tell how many places a picture or a sound takes in a text: a first call without them fails, and
says so. What is asked for by name and not known here makes the architecture "not buildable", by that name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tests.sweep.architectures import INPUTS
from tests.sweep.shrink import PLAIN_IDS

LENGTHS = (29, 26)
DECODER_LENGTHS = (27, 25)
SAMPLES = 52_000  # of a sound: 27 frames at the widest stride there is
FRAMES = 256  # of a spectrogram: 32 at a stride of 8
MISMATCH = re.compile(r"tokens:?\s*(\d+)[^0-9]+(?:features|feature):?\s*(\d+)", re.IGNORECASE)

Inputs = dict[str, Tensor]


def candidates(model: Any, name: str, fresh: torch.Generator) -> Iterator[Inputs]:
    """Inputs to try, the barest first: what is required and what is read first, then pictures and sounds besides."""
    takes = inspect.signature(model.forward).parameters
    makers = _makers(model.config, fresh, takes)
    if name in INPUTS:
        yield {key: _special(value, fresh, model, takes) for key, value in INPUTS[name].items()}
        return
    required = [
        key
        for key, parameter in takes.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind in (0, 1) and key not in ("self",)
    ]
    barest = [*required]
    for key in (getattr(model, "main_input_name", None), "input_ids"):
        if key in takes and key in makers and key not in barest and "inputs_embeds" not in barest:
            barest.append(key)
    text_first = _fill(barest, makers, takes)
    if text_first is not None:
        yield text_first
        yield from _relaid(text_first, model.config, fresh)
    for more in (["pixel_values"], ["input_features"], ["input_values"], ["decoder_input_ids"], ["bbox"],
                 ["pixel_values", "image_grid_thw"], ["pixel_values", "decoder_input_ids"],
                 ["input_features", "decoder_input_ids"], ["input_values", "decoder_input_ids"],
                 ["input_ids", "bbox", "pixel_values"]):  # fmt: skip
        wanted = [key for key in more if key in takes]
        if len(wanted) == len(more) and set(wanted) - set(barest):
            filled = _fill([*barest, *wanted], makers, takes)
            if filled is not None:
                yield filled
                yield from _relaid(filled, model.config, fresh)


def _fill(keys: list[str], makers: dict[str, Callable[[], Tensor]], takes: Any) -> Inputs | None:
    if any(key not in makers for key in keys):
        return None
    out = {key: makers[key]() for key in dict.fromkeys(keys)}
    for key, beside in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
        if key in out and beside in takes:
            out[beside] = makers[beside]()
    return out


def _relaid(given: Inputs, config: Any, fresh: torch.Generator) -> Iterator[Inputs]:
    for key, sizes in _other_shapes(config, list(given)).items():
        for size in sizes:
            yield {**given, key: torch.randn(*size, generator=fresh)}


def _other_shapes(config: Any, keys: list[str]) -> dict[str, list[tuple[int, ...]]]:
    """The same inputs in the other layouts that architectures ask for: films, pictures in tiles, sounds turned over."""
    channels, height, width = _picture(config)
    frames, mel = _frames(config)
    films = [(2, _first(config, "num_frames", default=4), channels, height, width), (2, 1, channels, height, width),
             (2, 2, channels, height, width)]  # fmt: skip
    sounds = [(2, frames, mel), (2, mel, frames), (2, 1, frames, mel), (2, 1, SAMPLES), (2, mel, 104), (2, 104, mel)]
    every = {"pixel_values": films, "pixel_values_videos": films, "input_features": sounds, "input_values": sounds}
    return {key: sizes for key, sizes in every.items() if key in keys}


def _frames(config: Any) -> tuple[int, int]:
    mel = _first(
        config, "num_mel_bins", "feature_size", "input_dim", "mel_bins", "input_feat_per_channel",
        "feature_projection_input_dim", default=80,
    )  # fmt: skip
    frames = 2 * _first(config, "max_source_positions", default=FRAMES // 2)
    if _has(config, "num_mel_bins", "max_length", "patch_size"):
        frames = config.max_length
    return frames, mel


def missing(model: Any, name: str) -> str:
    """Required inputs that are not known here."""
    takes = inspect.signature(model.forward).parameters
    makers = _makers(model.config, torch.Generator(), takes)
    lacking = [
        key
        for key, parameter in takes.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind in (0, 1) and key not in makers
    ]
    return ", ".join(lacking)


def _special(value: Any, fresh: torch.Generator, model: Any, takes: Any) -> Any:
    if isinstance(value, str):
        return _makers(model.config, fresh, takes)[value]()
    if callable(value):
        return value(model.config, fresh)
    if isinstance(value, tuple):
        return torch.randn(*value, generator=fresh)
    return value


def _makers(config: Any, fresh: torch.Generator, takes: Any) -> dict[str, Callable[[], Tensor]]:
    """Input -> how it is made for this config."""
    decodes = bool(getattr(config, "is_encoder_decoder", False)) or "decoder_input_ids" in takes
    side = "right" if decodes or not _is_causal(config) else "left"

    def noise(*shape: int) -> Callable[[], Tensor]:
        return lambda: torch.randn(*shape, generator=fresh)

    width = _first(config, "hidden_size", "d_model", default=64)
    frames, mel = _frames(config)
    mel_frames = noise(2, mel, frames) if _has(config, "max_source_positions") else noise(2, frames, mel)
    picture = _picture(config)
    grid = torch.tensor([[1, 6, 6]])
    patch = _patch_width(config)
    makers: dict[str, Callable[[], Tensor]] = {
        "input_ids": lambda: padded(fresh, LENGTHS, side)[0], "attention_mask": lambda: padded(fresh, LENGTHS, side)[1],
        "decoder_input_ids": lambda: padded(fresh, DECODER_LENGTHS, "right")[0],
        "decoder_attention_mask": lambda: padded(fresh, DECODER_LENGTHS, "right")[1],
        "qformer_input_ids": lambda: padded(fresh, (9, 9), "right")[0], "inputs_embeds": noise(2, LENGTHS[0], width),
        "query_embeds": noise(2, LENGTHS[0], width), "pixel_values": noise(2, *picture),
        "pixel_values_videos": noise(2, _first(config, "num_frames", "frames_per_clip", default=4), *picture),
        "input_values": noise(2, SAMPLES), "input_features": mel_frames,
        "input_features_mask": lambda: torch.ones(2, frames, dtype=torch.long), "audio_mel": noise(2, frames, mel),
        "audio_mel_mask": lambda: torch.zeros(2, frames, dtype=torch.bool),
        "bbox": lambda: torch.tensor([1, 2, 8, 9]).expand(2, LENGTHS[0], 4).clone(), "grid_thw": lambda: grid,
        "image_grid_thw": lambda: grid, "merge_sizes": lambda: torch.tensor([1]),
    }  # fmt: skip
    if "hidden_states" in takes:
        makers["hidden_states"] = noise(36, patch) if "grid_thw" in takes else noise(2, LENGTHS[0], width)
    if "grid_thw" in takes or "image_grid_thw" in takes:
        makers["pixel_values"] = noise(36, patch)
    return makers


def padded(fresh: torch.Generator, lengths: tuple[int, ...], side: str) -> tuple[Tensor, Tensor]:
    """Ids and their mask."""
    longest = max(lengths)
    ids = torch.randint(PLAIN_IDS.start, PLAIN_IDS.stop, (len(lengths), longest), generator=fresh)
    place, length = torch.arange(longest)[None], torch.tensor(lengths)[:, None]
    real = place < length if side == "right" else place >= longest - length
    return ids.masked_fill(~real, 0), real.long()


def _is_causal(config: Any) -> bool:
    """A guess that only chooses the side of the padding."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_MASKED_LM_MAPPING


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from _parts(value)


def _has(config: Any, *names: str) -> bool:
    return all(getattr(config, name, None) is not None for name in names)


def _first(config: Any, *names: str, default: Any) -> Any:
    """The first of these fields that holds a number, in the config or in one of its parts."""
    for part in _parts(config):
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return default


def _picture(config: Any) -> tuple[int, ...]:
    channels = _first(config, "num_channels", "in_channels", "in_chans", default=3)
    for part in _parts(config):
        size = getattr(part, "image_size", None)
        if isinstance(size, list | tuple) and len(size) == 2:
            return (channels, *map(int, size))
        if isinstance(size, dict):
            return (channels, int(size["height"]), int(size["width"]))
        if isinstance(size, int):
            return (channels, size, size)
    return (channels, 64, 64)


def _patch_width(config: Any) -> int:
    for part in _parts(config):
        if isinstance(getattr(part, "patch_size", None), int):
            channels = _first(part, "in_channels", "in_chans", "num_channels", default=3)
            return channels * int(getattr(part, "temporal_patch_size", 1) or 1) * part.patch_size**2
    return 192
