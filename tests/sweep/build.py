"""A tiny model of an architecture, its weights made sharp, and inputs that it accepts.

At the usual initialisation every map is near uniform, and near-uniform maps agree with almost anything. So the weights
that make queries and keys are scaled up, module by module, until some row that sees many keys puts more than 0.3 on
one of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.sweep import inputs as feeding
from tests.sweep import shrink
from tests.sweep.architectures import SOFTER, Architecture, model_class, one_line
from tests.sweep.oracle import Maps, own_maps
from tests.sweep.shrink import RECIPES

LARGEST = 0.3  # what some row's largest weight must exceed
TOO_SHARP = 0.9  # rows that put all on one key hide errors too, and scores of hundreds are coarse in float32
ROW_SEES = 6  # a row that counts sees at least so many keys: the first rows of a causal text are sharp by themselves
TOO_LARGE = 80_000_000  # parameters
ROUNDS = 9
FACTOR = 1.7
PATIENCE, GROWS = 4, 1.05  # after so many rounds the largest weight must have grown so much, or scaling is given up
QUERY_OR_KEY = re.compile(
    r"(^|[._])(q|k|query|key|qkv|q_proj|k_proj|qkv_proj|query_key_value|c_attn|in_proj|in_proj_weight|wqkv|wq|wk|to_q|"
    r"to_k|to_qkv|q_lin|k_lin|q_a_proj|q_b_proj|kv_b_proj|kv_a_proj_with_mqa|q_norm|k_norm|query_proj|key_proj|"
    r"q_layernorm|k_layernorm|query_layernorm|key_layernorm|query_key_value_proj|att_proj|w_q|w_k|kv|kv_proj|norm_q|"
    r"norm_k|linear_q|linear_k|proj_q|proj_k|qkv_linear|query_norm|key_norm|q_a_layernorm|kv_a_layernorm)(\.weight|\.linear\.weight)?$",
    re.IGNORECASE,
)


class NotBuilt(Exception):
    """Why there is no model to judge."""


@dataclass
class Built:
    """A model under `eager`, its class, what it was made from, and inputs."""

    model: Any
    cls: Any
    config: Any
    inputs: dict[str, Any]
    maps: Maps
    recipe: str


def build(found: Architecture) -> Built:
    """The first recipe that builds and runs. Errors: NotBuilt, with what the last and the first one said."""
    cls, why = model_class(found), []
    for recipe in RECIPES:
        try:
            config = shrink.config(found.config_class, found.name, recipe)
            model = make(cls, config, "eager")
            given, maps = _run(model, found.name)
        except NotBuilt as error:
            why.append(f"{recipe.name}: {error}")
            continue
        except Exception as error:  # a config or a model may raise anything about its sizes
            why.append(f"{recipe.name}: {one_line(error)}")
            continue
        if found.name in SOFTER:
            owners = _owners(model, maps)
            _scale(owners, dict.fromkeys(owners, SOFTER[found.name]))
            maps = own_maps(model, given)
        else:
            maps = _sharpen(model, given, maps)
        return Built(model, cls, config, given, maps, recipe.name)
    raise NotBuilt(f"{cls.__name__}: {' | '.join(dict.fromkeys(why))}")


def make(cls: Any, config: Any, implementation: str) -> Any:
    """A model with seeded weights. Errors: NotBuilt where it would be large."""
    import copy

    with torch.device("meta"):
        size = sum(p.numel() for p in cls._from_config(copy.deepcopy(config), attn_implementation="eager").parameters())
    if size > TOO_LARGE:
        raise NotBuilt(f"{size / 1e6:.0f} million parameters, though shrunken")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = cls._from_config(copy.deepcopy(config), attn_implementation=implementation).eval().float()
        _enliven(model)
    return model


def _enliven(model: nn.Module) -> None:
    """What is zero or near it at initialisation is made to matter: else nobody notices that it was dropped."""
    for name, weight in model.named_parameters():
        if not weight.is_floating_point():
            continue
        if not bool(torch.isfinite(weight).all()):
            weight.normal_(std=0.05)
        if re.search(r"(relative|position_bias|rel_pos|sink|attn_bias|attention_bias)", name):
            weight.normal_(std=1.0)
        elif name.endswith("bias"):
            weight.normal_(std=0.05)
        elif weight.ndim >= 2 and weight.numel() > 1 and float(weight.std()) > 0.6:
            weight.mul_(0.2 / weight.std())  # scores in the thousands are beyond what float32 can compare
        elif weight.ndim >= 2 and weight.numel() and float(weight.std() if weight.numel() > 1 else weight.abs()) < 1e-3:
            weight.normal_(std=0.05)


def _run(model: Any, name: str) -> tuple[dict[str, Any], Maps]:
    """Inputs that it accepts, and its maps. Errors: NotBuilt with what the model said of the others."""
    why = []
    fresh = torch.Generator().manual_seed(1)
    for given in feeding.candidates(model, name, fresh):
        try:
            return given, own_maps(model, given)
        except Exception as error:  # what a model raises about inputs is of any kind
            why.append(one_line(error))
    lacking = feeding.missing(model, name)
    if lacking:
        raise NotBuilt(f"needs inputs that are not known here: {lacking}")
    raise NotBuilt(
        "does not run: " + (why[-1] if len(set(why)) == 1 else " / ".join(dict.fromkeys(why))) if why else "?"
    )


def _sharpen(model: nn.Module, given: dict[str, Any], maps: Maps) -> Maps:
    """Scale queries and keys, each attention by itself, until it is sharp enough, not too sharp, or nothing helps."""
    owners = _owners(model, maps)
    first = {path: max(map(largest, each)) for path, each in maps.by_path.items()}
    for turn in range(ROUNDS):
        before = first if turn >= PATIENCE else {}
        factors = {path: _factor(each, before.get(path)) for path, each in maps.by_path.items() if owners.get(path)}
        if set(factors.values()) <= {1.0}:
            break
        _scale(owners, factors)
        again = own_maps(model, given)
        if not all(bool(torch.isfinite(one).all()) for each in again.by_path.values() for one in each):
            _scale(owners, {path: 1 / factor for path, factor in factors.items()})
            break
        maps = again
    return maps


def _owners(model: nn.Module, maps: Maps) -> dict[str, list[nn.Parameter]]:
    """The weights that make queries and keys, of each module that attends."""
    modules = {path: model.get_submodule(path) for path in maps.by_path if path != "?"}
    return {
        path: [weight for name, weight in module.named_parameters() if QUERY_OR_KEY.search(name)]
        for path, module in modules.items()
    }


def _factor(each: list[Tensor], before: float | None) -> float:
    """By how much to scale the queries and keys of one module. `before`: how sharp it was at first."""
    peak = max(map(largest, each))
    if min(map(typical, each)) > TOO_SHARP:
        return 1 / FACTOR
    if peak >= 1.15 * LARGEST:
        return 1.0
    if before is not None and peak < GROWS * before:
        return 1.0  # nothing helps: keys that are all alike, whose scores only grow
    return FACTOR


def _scale(owners: dict[str, list[nn.Parameter]], factors: dict[str, float]) -> None:
    """Each weight once, though several modules may own it."""
    done: set[int] = set()
    with torch.no_grad():
        for path, factor in factors.items():
            for weight in owners[path]:
                if id(weight) not in done and factor != 1:
                    done.add(id(weight))
                    weight.mul_(factor)


def typical(weights: Tensor) -> float:
    """The mean over rows that see many keys of their largest weight."""
    rows = (weights > -1).sum(-1) >= ROW_SEES
    return float(weights.amax(-1)[rows].mean()) if bool(rows.any()) else 0.0


def largest(weights: Tensor) -> float:
    """The largest weight of rows that see many keys (all that there are, where no row sees so many)."""
    seen = (weights > 1e-9).sum(-1)
    rows = seen >= min(ROW_SEES, weights.shape[-1])
    return float(weights.amax(-1)[rows].max()) if bool(rows.any()) else 0.0
