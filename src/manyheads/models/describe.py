"""What a model reads (text, pictures or sounds), where it attends, and its dimensions.

The modality follows from the name that the model gives its main input, and from its other arguments: a model that reads
text beside pictures (CLIP as a whole, a captioner) counts as one of text, its vision tower alone as one of pictures.

Sites are seen in one tiny forward pass, over a few tokens or a blank input. They come from the calls themselves rather
than from the config: names of config fields differ between families, calls do not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from manyheads.base import few, first_line
from manyheads.errors import ManyHeadsError, ModelError
from manyheads.machine import is_sharded
from manyheads.models.loading.offloaded import device_of
from manyheads.models.taps.open_taps import no_way_in
from manyheads.models.taps.tap import tap
from manyheads.spec import ModelSpec, Site

PROBE_TOKENS = 4
_NO_LIMIT = 10**9  # tokenizers without a limit say int(1e30), some models -1
TEXT, PICTURES, SOUNDS = "text", "pictures", "sounds"
OF_INPUT = {"pixel_values": PICTURES, "input_features": SOUNDS, "input_values": SOUNDS}
DOOR = {TEXT: "texts", PICTURES: "mh.Inputs(image=...)", SOUNDS: "mh.Inputs(audio=...)"}  # how `record` takes each
PICTURE_SIZE = 224  # pixels, where the config names no size
SOUND_SAMPLES = 8_000  # half a second, as most models hear it
FEATURE_FRAMES, MEL_BINS = 200, 80  # of a spectrogram, where the config names no number


def describe(model: nn.Module, name: str) -> ModelSpec:
    """The spec of a transformers model. Errors: ModelError where it has no attention that the tap can see."""
    config = getattr(model, "config", None)
    sites = probe(model, name)
    return ModelSpec(
        name=name,
        architecture=type(model).__name__,
        sites=sites,
        embed_dim=int(getattr(config, "hidden_size", 0) or 0),
        vocab_size=getattr(config, "vocab_size", None),
        max_positions=max_positions_of(model),
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
    )


def probe(model: nn.Module, name: str) -> tuple[Site, ...]:
    """The sites of a model, by one forward pass over a few tokens, a blank picture or a short silence."""
    inputs = probe_inputs(model)
    with tap(model) as state:
        run(model, name, inputs)
    if not state.sites:
        raise ModelError(no_way_in(model, name, state.unread))
    return tuple(state.sites.values())


def probe_inputs(model: nn.Module) -> dict[str, Any]:
    """A few tokens, a blank picture or a short silence: the least that a transformers model reads."""
    ids = torch.arange(1, PROBE_TOKENS + 1, device=device_of(model))[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if sense_of(model) != TEXT:
        inputs = blank_inputs(model)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        inputs |= {"decoder_input_ids": ids}
    return inputs


def run(model: nn.Module, name: str, inputs: dict[str, Any], *, head: bool = False, grad: bool = False) -> Any:
    """One forward pass for the sake of its attention; returns the model's output. No cache is kept.

    By default without gradient, and without the model's head (a language model's, a classifier's): `grad`, `head`.
    Errors: ModelError in place of what the model raises about its inputs.
    """
    # FSDP gathers the weights of the outermost module when that is called, and of no part of it.
    body = model if head or is_sharded(model) else getattr(model, "base_model", model)
    takes = inspect.signature(body.forward).parameters
    if next(iter(inputs)) not in takes:  # the "base model" of some families begins after their embeddings
        body, takes = model, inspect.signature(model.forward).parameters
    named = {key: value for key, value in inputs.items() if key in takes or "kwargs" in takes}
    if "use_cache" in takes or hasattr(getattr(body, "config", None), "use_cache"):
        named["use_cache"] = False
    try:
        with torch.set_grad_enabled(grad):
            return body(**named)
    except (ManyHeadsError, torch.OutOfMemoryError):  # the latter says nothing of the input but its size
        raise
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ModelError(
            f"{name} ({type(model).__name__}) could not read its input: {type(error).__name__}: "
            f"{first_line(error)}. "
            f"Use record_call(model, ...) with the inputs that it needs."
        ) from error


def max_positions_of(model: nn.Module, tokenizer: object = None) -> int | None:
    """How many tokens a text may have, special tokens included. None where nothing sets a limit.

    The config's limit, less what a RoBERTa-like position table loses: there the first position of a text is
    padding_idx + 1. The tokenizer's own limit counts only where the config names none.
    """
    text = text_config_of(model)
    if getattr(text, "alibi", False):  # distances are penalised, positions not counted
        return None
    for name in ("max_position_embeddings", "n_positions", "max_target_positions"):
        if limit := _limit(text, name):
            for path, table in model.named_modules():
                if isinstance(table, nn.Embedding) and "position" in path and table.num_embeddings == limit:
                    # No text can use the rows up to and with the table's padding row.
                    return limit if table.padding_idx is None else limit - table.padding_idx - 1
            return limit
    return _limit(tokenizer, "model_max_length")


def text_config_of(model: nn.Module) -> object:
    """A model's config: of one that reads more than text, the part about text. None where it has no config."""
    config = getattr(model, "config", None)
    return getattr(config, "get_text_config", lambda: config)()


def without_weights(model: nn.Module, sites: Iterable[Site]) -> str:
    """Layers that form no attention weights (linear attention, convolutions), in words; "" where a config lists none.

    `sites`: of the layers that attend. A kind of layer of which one attends is not named.
    """
    config = text_config_of(model)
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    numbers = {site.layer for site in sites if not site.stack}
    if not isinstance(kinds, list | tuple) or not numbers:
        return ""
    listed = [str(kind) for kind in cast("Sequence[object]", kinds)]
    attending = {kind for number, kind in enumerate(listed) if number in numbers}
    others = {number: kind for number, kind in enumerate(listed) if number not in numbers and kind not in attending}
    names = few(f"L{number}" for number in others)
    return f"{names}: {', '.join(dict.fromkeys(others.values()))}" if others else ""


def _limit(owner: object, name: str) -> int | None:
    value = getattr(owner, name, None)
    return value if isinstance(value, int) and 0 < value < _NO_LIMIT else None


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
    name = str(getattr(model, "main_input_name", ""))
    config = getattr(model, "config", None)
    if name == "pixel_values":
        size = _field(config, "image_size") or PICTURE_SIZE
        if isinstance(size, dict):
            size = (size["height"], size["width"])
        height, width = (size, size) if isinstance(size, int) else size
        shape: tuple[int, ...] = (int(_field(config, "num_channels") or 3), int(height), int(width))
    else:
        bins = _field(config, "num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_dim")
        positions = getattr(config, "max_source_positions", None)
        if name == "input_features" and positions and _field(config, "num_mel_bins"):
            shape = (int(bins or MEL_BINS), 2 * int(positions))  # Whisper: bins first, always all frames
        elif name == "input_features":
            shape = (FEATURE_FRAMES, int(bins or MEL_BINS))
        elif bins and _field(config, "max_length"):  # a spectrogram that is read as a picture
            shape = (int(getattr(config, "max_length", 0)), int(bins))
        else:
            shape = (SOUND_SAMPLES,)
    first = next(model.parameters())
    return {name: torch.zeros(1, *shape, dtype=first.dtype, device=device_of(model))}


def _field(config: object, *names: str) -> Any:
    """The first of these fields that has a value, in the config or in its part about the encoder."""
    parts = [config, getattr(config, "vision_config", None), getattr(config, "encoder", None)]
    values = (getattr(part, name, None) for part in parts if part is not None for name in names)
    return next((value for value in values if value), None)
