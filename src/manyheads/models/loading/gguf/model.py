"""A model of transformers from a GGUF file: every weight unpacked, none made up, none left over."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from manyheads import private_names
from manyheads.base import few, first_line
from manyheads.errors import ManyHeadsError, ModelError
from manyheads.machine import plain
from manyheads.models.loading.gguf.architectures import Plan, family_of, plan_of
from manyheads.models.loading.gguf.blocks import unpacked
from manyheads.models.loading.gguf.file import PLAIN, GgufFile

__all__ = ["build_unpacked", "class_of"]


def build_unpacked(file: GgufFile, device: torch.device, dtype: torch.dtype | None, attention: str | None) -> nn.Module:
    """The model of a GGUF file on a device, in eval mode.

    - `dtype`: None: float32, where the file holds packed numbers; else the precision that it holds.

    Cost: SmolLM2 (135 M parameters, Q4_1): 0.5 s and 0.54 GB. Each weight goes to the device by itself.
    Errors: ModelError for a file whose tensors are not those that its keys mean.
    """
    plan = plan_of(file)
    kind = dtype or _precision(file)
    empty = _built(file, plan, torch.device("meta"), kind, attention)
    expected = {name: tuple(weight.shape) for name, weight in empty.state_dict().items()}
    tied = {"lm_head.weight"} if plan.config["tie_word_embeddings"] else set[str]()
    if lost := sorted(expected.keys() - plan.sources.keys() - tied):
        raise ModelError(
            f"{file.path} is damaged: a {plan.family.model} of its sizes needs {len(lost)} weights that it lacks: "
            f"{few(lost)}. Copy or fetch it again."
        )
    # Besides a missing place of a bias, which another class of the family might have.
    if unplaced := sorted(plan.sources.keys() - expected.keys()):
        raise ModelError(
            f"{file.path} holds {len(unplaced)} tensors that have no place in a {plan.family.model} "
            f"({few([stored for name in unplaced for stored in plan.sources[name]])}), and without them this would "
            f"be another model. Convert the original to safetensors instead."
        )
    try:
        state: dict[str, Tensor] = {}
        for name in plan.sources:
            weight = _weight(file, plan, name)
            if tuple(weight.shape) != expected[name]:
                raise ModelError(
                    f"{file.path} is damaged: {few(plan.sources[name])} is {list(weight.shape)}, and its keys mean "
                    f"{list(expected[name])}. Copy or fetch it again."
                )
            state[name] = weight.to(device, kind)
        model = _built(file, plan, torch.device("cpu"), kind, attention)  # of sizes that the file was seen to hold
        model.load_state_dict(state, strict=False, assign=True)  # what is missing is tied, as was checked above
        model = model.to(device)  # what the class computes besides: tables of positions
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{file.path.name} does not fit on {device}, unpacked to {plain(kind)}: load it on another device "
            f"(device='cpu'), or in a smaller dtype."
        ) from error
    model.tie_weights()
    return model.eval()


def class_of(file: GgufFile) -> type:
    """The class of transformers for a file's architecture. Errors: ModelError for one that is not read."""
    import transformers

    return getattr(transformers, family_of(file).model)


def _weight(file: GgufFile, plan: Plan, name: str) -> Tensor:
    """One weight of the model, as the model holds it, in the precision of the file."""
    stored = plan.sources[name]
    numbers = [_undone(file, plan, part) for part in stored]
    try:
        return numbers[0] if len(numbers) == 1 else torch.cat(numbers, 1)
    except (RuntimeError, IndexError) as error:
        raise _misshapen(file, few(stored), numbers[0]) from error


def _undone(file: GgufFile, plan: Plan, stored: str) -> Tensor:
    numbers = unpacked(file, stored)
    for pattern, undo in plan.family.as_stored:
        if re.search(pattern, stored):
            try:
                numbers = undo(numbers, plan.config)
            except (RuntimeError, ZeroDivisionError) as error:  # so many heads do not divide it
                raise _misshapen(file, stored, numbers) from error
    return numbers


def _misshapen(file: GgufFile, stored: str, numbers: Tensor) -> ModelError:
    return ModelError(
        f"{file.path} is damaged: {stored} of {list(numbers.shape)} is not what its keys mean. Copy or fetch it again."
    )


def _precision(file: GgufFile) -> torch.dtype:
    kinds = set(file.formats)
    if not kinds <= PLAIN:
        return torch.float32
    if "BF16" in kinds:  # norms are float32 beside it
        return torch.bfloat16
    return torch.float16 if "F16" in kinds else torch.float32


def _built(file: GgufFile, plan: Plan, device: torch.device, dtype: torch.dtype, attention: str | None) -> Any:
    """The model of a plan's config, its weights not set. Errors: ModelError for sizes that make no model."""
    cls: Any = class_of(file)
    options = {"attn_implementation": attention} if attention else {}
    try:
        config = cls.config_class(**plan.config)
        with torch.random.fork_rng(devices=[]), device, private_names.no_init_weights():
            return private_names.from_config(cls, config, dtype=dtype, **options)
    except ManyHeadsError:
        raise
    except Exception as error:  # whatever a foreign class stumbles over is about this file's sizes
        raise ModelError(
            f"transformers cannot build a {plan.family.model} of the sizes in {file.path}: {first_line(error, 300)}"
        ) from error
