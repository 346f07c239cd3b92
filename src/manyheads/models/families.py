"""What differs between model families: where the output projection is, and which stack a layer belongs to."""

from __future__ import annotations

import re

from jaxtyping import Float
from torch import Tensor, nn

from manyheads.models.offloaded import here, weight_of
from manyheads.spec import CROSS

OUTPUT_NAMES = (
    "o_proj", "out_proj", "c_proj", "dense", "wo", "o", "proj", "out", "to_out", "output.dense", "proj_out", "out_lin",
    "Wo", "projection_layer", "projection", "output",
)  # fmt: skip
CROSS_NAMES = re.compile(r"(cross|encoder_attn|encdec|enc_dec)", re.IGNORECASE)


def output_projection(model: nn.Module, path: str, width: int) -> tuple[str, nn.Module] | None:
    """The linear map that mixes a layer's heads, looked for inside the attention module, then beside it.

    It must take `num_heads * v_dim` inputs; anything else is not it. None where there is no such module.
    """
    parents = [path] + ([path.rsplit(".", 1)[0]] if "." in path else [""])
    for parent in parents:
        for name in OUTPUT_NAMES:
            full = f"{parent}.{name}" if parent else name
            try:
                module = model.get_submodule(full)
            except AttributeError:
                continue
            if input_width(module) == width:
                return full, module
    return None


def input_width(module: nn.Module) -> int | None:
    """How many inputs a linear map takes: Linear, or transformers' Conv1D (GPT-2), whose matrix is transposed."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    weight = here(weight)
    return weight.shape[0] if is_transposed(module) else weight.shape[1]


def is_transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


def weight_by_head(module: nn.Module, num_heads: int) -> Float[Tensor, "h f m"]:
    """The output projection cut into one matrix a head, from the head's width to the model's."""
    weight = weight_of(module)
    rows = weight if is_transposed(module) else weight.T
    return rows.reshape(num_heads, rows.shape[0] // num_heads, rows.shape[1])


def stack_of(path: str, *, encoder_decoder: bool, crosses: bool) -> str:
    """The stack of a layer by its path: "" in a model that has one kind, else encoder, decoder or cross."""
    if crosses or CROSS_NAMES.search(path):
        return CROSS
    if encoder_decoder:
        return "encoder" if re.search(r"(^|\.)encoder(\.|$)", path) else "decoder"
    return ""
