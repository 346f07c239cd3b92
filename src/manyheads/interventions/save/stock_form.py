"""A pruned model as a checkpoint that transformers loads by itself, where some config can say what is left.

A config counts heads once for all layers. Where all layers are left with the same numbers, it may say them: as the
model's own family, or as one that computes the same (Llama as Mistral, whose config does not ask that the heads divide
the model's width). Here configs are only proposed, and one whose model has not exactly our tensors' shapes is dropped;
whether it computes the same is tried with the saved files (`trials`). Source: transformers 5.23, tried on small models.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from manyheads.models import kept_in
from manyheads.models.loading.checkpoints import brief
from manyheads.spec import ModelSpec

__all__ = ["Proposal", "as_stock", "proposals", "why_not_uniform"]


COUNTS = ("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads")


@dataclass(frozen=True, eq=False)
class Proposal:
    """A class and a config that may be the pruned model, and why these. `fault`: why they cannot, if so."""

    cls: Any
    config: Any
    because: str
    fault: str = ""


def why_not_uniform(model: Any, spec: ModelSpec) -> str:
    """Why no config can count the heads of these sites; "" where one number fits all."""
    emptied = [kept.site for kept in kept_in(model) if not kept.heads]
    if emptied:
        return f"{emptied[0]} has no heads at all"
    for name in ("num_heads", "num_kv_heads"):
        first = spec.sites[0]
        for site in spec.sites:
            if getattr(site, name) != getattr(first, name):
                what = "heads" if name == "num_heads" else "key/value heads"
                return f"{first} has {getattr(first, name)} {what}, {site} {getattr(site, name)}"
    return ""


def proposals(model: Any, spec: ModelSpec) -> Iterator[Proposal]:
    """Configs that may say what is left, the model's own family first; those that cannot come with a fault."""
    import transformers

    own = type(model)
    yield checked(model, _proposed(own, lambda: type(model.config).from_dict(_counted(model, spec)), "its own family"))
    for names, changes, because in SIBLINGS.get(model.config.model_type, ()):
        cls = getattr(transformers, own.__name__.replace(*names), None)
        if cls is not None:
            make = partial(_as, cls, model, spec, changes)
            yield checked(model, _proposed(cls, make, because))


def checked(model: Any, proposal: Proposal) -> Proposal:
    """The proposal, with a fault where its model's tensors would not be ours."""
    if proposal.fault:
        return proposal
    try:
        with torch.device("meta"):
            empty = proposal.cls._from_config(copy.deepcopy(proposal.config), dtype=model.dtype)
    except Exception as error:  # a family's own checks, of any kind
        return replace(proposal, fault=brief(error))
    theirs = {name: value.shape for name, value in empty.state_dict().items()}
    ours = {name: value.shape for name, value in _needed(model, theirs).items()}
    wrong = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if wrong:
        name = wrong[0]
        sizes = [list(shape) if (shape := one.get(name)) is not None else "not there" for one in (ours, theirs)]
        return replace(proposal, fault=f"its {name} would be {sizes[1]}, and is {sizes[0]}")
    return proposal


def as_stock(model: Any, proposal: Proposal) -> Any:
    """The proposed model with the pruned one's weights: the same tensors, not copies."""
    from transformers.initialization import no_init_weights

    with torch.random.fork_rng(devices=[]), no_init_weights():
        made = proposal.cls._from_config(copy.deepcopy(proposal.config), dtype=model.dtype)
    made.load_state_dict(_needed(model, made.state_dict()), strict=True, assign=True)
    made.tie_weights()
    if getattr(model, "generation_config", None) is not None:
        made.generation_config = copy.deepcopy(model.generation_config)
    return made.eval()


def _needed(model: Any, wanted: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model's tensors, but for biases of nothing but zeros that the other has no place for."""
    state = model.state_dict()
    return {
        name: value
        for name, value in state.items()
        if name in wanted or not name.endswith("o_proj.bias") or bool(value.any())
    }


def _proposed(cls: Any, make: Callable[[], Any], because: str) -> Proposal:
    try:
        return Proposal(cls, make(), because)
    except Exception as error:
        return Proposal(cls, None, because, brief(error))


def _counted(model: Any, spec: ModelSpec) -> dict[str, Any]:
    """The config as plain data, with as many heads as are left; their width is said where it no longer follows."""
    config, site = model.config, spec.sites[0]
    data = config.to_dict()
    names = {name: getattr(config, "attribute_map", {}).get(name, name) for name in (*COUNTS, "num_key_value_heads")}
    for name in COUNTS:
        if names[name] in data:
            data[names[name]] = site.num_heads
    if data.get(names["num_key_value_heads"]) is not None or site.num_kv_heads != site.num_heads:
        data[names["num_key_value_heads"]] = site.num_kv_heads
    follows = site.num_heads * site.qk_dim == spec.embed_dim
    if "d_kv" not in data and (data.get("head_dim") is not None or not follows):
        data["head_dim"] = site.qk_dim
    return data


def _as(cls: Any, model: Any, spec: ModelSpec, changes: dict[str, Any]) -> Any:
    """The config of another family with what the two share, and these changes."""
    data = _counted(model, spec)
    fields = cls.config_class().to_dict().keys() - {"model_type", "architectures", "transformers_version"}
    shared = {name: value for name, value in data.items() if name in fields}
    return cls.config_class(**{**shared, "head_dim": spec.sites[0].qk_dim, **changes})


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
"""Family -> others that compute the same: how their classes are called, what their config must say besides, and why."""
