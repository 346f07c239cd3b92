"""A pruned model as a checkpoint that transformers loads by itself, where some config can describe what is left.

A config counts heads once for all layers. Where all layers keep the same numbers of heads, it may state them: as the
model's own family, or as one that computes the same (Llama as Mistral, whose config does not require that the heads
divide the model's width). Configs are only proposed on this page, and one whose model does not have exactly our
tensors' shapes is dropped; whether it computes the same is tried with the saved files (`fresh_process`). Source:
transformers 5.23, tried on small models.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from manyheads import private_names
from manyheads.models import kept_in
from manyheads.models.loading import brief
from manyheads.spec import ModelSpec

COUNTS = ("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads")


@dataclass(frozen=True, eq=False)
class Proposal:
    """A class and a config that may describe the pruned model, and why these. `fault`: why they cannot, if so."""

    cls: Any
    config: Any
    because: str
    fault: str = ""


def why_not_uniform(model: nn.Module, spec: ModelSpec) -> str:
    """Why no config can count the heads of these sites; "" where one number fits all."""
    emptied = [cut.site for cut in kept_in(model) if not cut.heads]
    if emptied:
        return f"{emptied[0]} has no heads at all"
    for name in ("num_heads", "num_kv_heads"):
        first = spec.sites[0]
        for site in spec.sites:
            if getattr(site, name) != getattr(first, name):
                noun = "heads" if name == "num_heads" else "key/value heads"
                return f"{first} has {getattr(first, name)} {noun}, {site} {getattr(site, name)}"
    return ""


def proposals(model: Any, spec: ModelSpec) -> Iterator[Proposal]:
    """Configs that may describe what is left, the model's own family first; those that cannot come with a fault."""
    import transformers

    def proposal(cls: Any, make: Callable[[], Any], because: str) -> Proposal:
        try:
            return checked(model, Proposal(cls, make(), because))
        except Exception as error:  # a config's own checks, of any kind
            return Proposal(cls, None, because, brief(error))

    def as_sibling(cls: Any, changes: dict[str, Any]) -> Any:
        """The config of another family with the fields that the two share, and these changes."""
        data = _config_data(model, spec)
        fields = cls.config_class().to_dict().keys() - {"model_type", "architectures", "transformers_version"}
        shared = {name: value for name, value in data.items() if name in fields}
        return cls.config_class(**{**shared, "head_dim": spec.sites[0].qk_dim, **changes})

    model_class = type(model)
    yield proposal(model_class, lambda: type(model.config).from_dict(_config_data(model, spec)), "its own family")
    for names, changes, because in SIBLINGS.get(model.config.model_type, ()):
        cls = getattr(transformers, model_class.__name__.replace(*names), None)
        if cls is not None:
            yield proposal(cls, partial(as_sibling, cls, changes), because)


def checked(model: Any, proposal: Proposal) -> Proposal:
    """The proposal, with a fault where its model's tensors would not be ours."""
    if proposal.fault:
        return proposal
    try:
        # On the meta device shapes cost nothing: a large model is not allocated a second time to be rejected.
        with torch.device("meta"):
            empty = private_names.from_config(proposal.cls, copy.deepcopy(proposal.config), dtype=model.dtype)
    except Exception as error:  # a family's own checks, of any kind
        return replace(proposal, fault=brief(error))
    new_shapes = {name: value.shape for name, value in empty.state_dict().items()}
    old_shapes = {name: value.shape for name, value in _needed_tensors(model, new_shapes).items()}
    for name in sorted(old_shapes.keys() | new_shapes.keys()):
        old, new = old_shapes.get(name), new_shapes.get(name)
        if old != new:
            old_size, new_size = ("not there" if shape is None else list(shape) for shape in (old, new))
            return replace(proposal, fault=f"its {name} would be {new_size}, and is {old_size}")
    return proposal


def as_stock(model: Any, proposal: Proposal) -> Any:
    """The proposed model with the pruned one's weights: the same tensors, not copies."""
    # No weights are drawn, and the caller's random numbers stay where they were: all tensors come from the model.
    with torch.random.fork_rng(devices=[]), private_names.no_init_weights():
        stock = private_names.from_config(proposal.cls, copy.deepcopy(proposal.config), dtype=model.dtype)
    # assign: the stock model shares the tensors of the pruned one and copies none.
    stock.load_state_dict(_needed_tensors(model, stock.state_dict()), strict=True, assign=True)
    stock.tie_weights()
    if getattr(model, "generation_config", None) is not None:
        stock.generation_config = copy.deepcopy(model.generation_config)
    return stock.eval()


def _needed_tensors(model: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    """The model's tensors, without output biases that are all zeros and have no place among `names`."""
    state = model.state_dict()
    return {
        name: value
        for name, value in state.items()
        if name in names or not name.endswith("o_proj.bias") or bool(value.any())
    }


def _config_data(model: Any, spec: ModelSpec) -> dict[str, Any]:
    """The config as plain data, with the remaining numbers of heads, and their width where it no longer follows."""
    config, site = model.config, spec.sites[0]
    data = config.to_dict()
    names = {name: getattr(config, "attribute_map", {}).get(name, name) for name in (*COUNTS, "num_key_value_heads")}
    for name in COUNTS:
        if names[name] in data:
            data[names[name]] = site.num_heads
    if data.get(names["num_key_value_heads"]) is not None or site.num_kv_heads != site.num_heads:
        data[names["num_key_value_heads"]] = site.num_kv_heads
    follows = site.num_heads * site.qk_dim == spec.embed_dim
    # T5 calls the width d_kv and always states it; others derive it from the number of heads unless told.
    if "d_kv" not in data and (data.get("head_dim") is not None or not follows):
        data["head_dim"] = site.qk_dim
    return data


SIBLINGS: dict[str, tuple[tuple[tuple[str, str], dict[str, Any], str], ...]] = {
    "llama": (
        (
            ("Llama", "Mistral"),
            {"sliding_window": None},
            "Llama's config wants the number of heads to divide the model's width; Mistral's, which computes the same "
            "without a sliding window, does not",
        ),
        (
            ("Llama", "Qwen2"),
            {"use_sliding_window": False, "sliding_window": None},
            "Llama's config wants the number of heads to divide the model's width; Qwen2's, which computes the same "
            "with biases on q, k and v, does not",
        ),
    ),
}
"""Family -> others that compute the same: their classes' names, the fields that their config needs besides, and why."""
