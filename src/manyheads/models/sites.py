"""Where a model attends: its sites, seen in one tiny forward pass, and its dimensions.

Read off the calls themselves rather than off the config: names of config fields differ between families, calls do not.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from manyheads.errors import ManyHeadsError, ModelError
from manyheads.models.loading import max_positions_of
from manyheads.models.offloaded import device_of
from manyheads.models.seam import tap
from manyheads.models.senses import TEXT, blank_inputs, sense_of
from manyheads.models.taps import no_way_in
from manyheads.spec import ModelSpec, Site

PROBE_TOKENS = 4


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
    device = device_of(model)
    ids = torch.arange(1, PROBE_TOKENS + 1, device=device)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if sense_of(model) != TEXT:
        inputs = blank_inputs(model)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        inputs |= {"decoder_input_ids": ids}
    with tap(model) as state:
        run(model, name, inputs)
    if not state.sites:
        raise ModelError(no_way_in(model, name, state.by_hand))
    return tuple(state.sites.values())


def run(model: nn.Module, name: str, inputs: dict[str, Any], *, head: bool = False, grad: bool = False) -> Any:
    """One forward pass for the sake of its attention, and what it returns: no cache; no gradient unless said.

    Nor the model's head (a language model's, a classifier's), unless said. Errors: ModelError in place of whatever
    the model raises about its inputs.
    """
    body = model if head else getattr(model, "base_model", model)
    takes = inspect.signature(body.forward).parameters
    if next(iter(inputs)) not in takes:  # what is called the base of some models begins after their embeddings
        body, takes = model, inspect.signature(model.forward).parameters
    named = {key: value for key, value in inputs.items() if key in takes or "kwargs" in takes}
    if "use_cache" in takes or hasattr(getattr(body, "config", None), "use_cache"):
        named["use_cache"] = False
    try:
        with torch.set_grad_enabled(grad):
            return body(**named)
    except ManyHeadsError:
        raise
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ModelError(
            f"{name} ({type(model).__name__}) could not read its input: {type(error).__name__}: "
            f"{str(error).splitlines()[0][:200]}. "
            f"Use record_call(model, ...) with the inputs that it needs."
        ) from error
