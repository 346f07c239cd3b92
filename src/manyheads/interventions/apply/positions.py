"""Where a model's positions come in, and the same model without them (`SkipPositions`).

Three ways are known, each one module whose output can be replaced while the model runs: an embedding of positions
(BERT, GPT-2, OPT), a rotation (Llama and its kin, our own layers), a bias by distance (T5). All others are refused by
name, for a model that keeps some of its positions would pass for one without: positions as a bare parameter (ViT) or
buffer (GPT-J), slopes (ALiBi), relative embeddings (DeBERTa). What no module holds cannot be seen here, and is not
claimed: a causal mask and a window are no positions, and still tell tokens apart.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.errors import PlanError
from manyheads.nn.positions import RotaryTable

TABLES = {  # names of embeddings that are called with positions, or with distances, and whose output is added
    "wpe", "position_embeddings", "position_embedding", "embed_positions", "pos_embed", "pos_emb", "positions",
    "relative_attention_bias",
}  # fmt: skip
ROTATION = re.compile(r"Rotary(Position)?Embedding$")  # of transformers' classes: they give cos and sin
OTHER = re.compile(r"(^|_)(pos|positions?|positional|rel|relative|rope|rotary|alibi)(_|$)")
INDICES = {"position_ids", "relative_position_index"}  # where tokens stand, before anything is made of it


def positions_in(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that tell a model where its tokens stand, by path. Errors: PlanError where others do, or none."""
    name = type(model).__name__
    carriers = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, RotaryTable)
        or ROTATION.search(type(module).__name__)
        or (isinstance(module, nn.Embedding) and path.rpartition(".")[2] in TABLES)
    }
    inside = tuple(f"{path}." for path in carriers)
    parts = [path for path, _ in (*model.named_modules(), *model.named_parameters(), *model.named_buffers())]
    for path in parts:
        last = path.rpartition(".")[2]
        if path not in carriers and not path.startswith(inside) and last not in INDICES and OTHER.search(last):
            raise PlanError(
                f"skip the positions: {name} has some in {path!r}, which is none of the ways known here (an embedding "
                f"that is called, a rotation, a bias by distance): they cannot be taken away whole."
            )
    slopes = [path for path, module in model.named_modules() if getattr(module, "alibi", False)]
    if slopes or getattr(getattr(model, "config", None), "alibi", False):
        raise PlanError(f"skip the positions: {name} has them as slopes (ALiBi), which cannot be taken away here.")
    if not carriers:
        raise PlanError(
            f"skip the positions: {name} has no position embedding, no rotation and no bias by distance, so there is "
            f"nothing to take away."
        )
    return carriers


def without_positions(module: nn.Module, args: tuple[Any, ...], result: Any) -> tuple[Any, Tensor, Tensor]:
    """What a module of `positions_in` gives without positions; and what changed: before, after. Errors: PlanError."""
    if isinstance(module, RotaryTable):
        x = args[0].clone()
        x[..., : module.dims] *= module.rope.sharpen  # a stretched rotation also lengthens, which tells no position
        return x, result, x
    if isinstance(module, nn.Embedding) and isinstance(result, Tensor):
        nothing = torch.zeros_like(result)
        return nothing, result, nothing
    if isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, Tensor) for part in result):
        cos, sin = result
        lengths = (cos.float().square() + sin.float().square()).sqrt().to(cos.dtype)
        still = (lengths, torch.zeros_like(sin))
        return still, torch.stack(result), torch.stack(still)
    raise PlanError(
        f"skip the positions: a {type(module).__name__} gives a {type(result).__name__}, not cos and sin: what turns "
        f"nothing is not known of it."
    )
