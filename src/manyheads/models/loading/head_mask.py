"""`head_mask=` is refused, with what to use instead.

transformers 5 took head masking away, and most of its models swallow the keyword without a word: an ablation that
changes nothing. Wherever a model takes no such argument and somebody passes one, that is said.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from manyheads.errors import PlanError

NAMES = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")


def refuse_head_mask(model: nn.Module) -> list[RemovableHandle]:
    """From now on, calls of the model, or of a model in it, with a head mask that it would ignore raise PlanError.

    The models in it are transformers' own, which say what their main input is; what refuses already is left alone.
    """
    models = [part for part in model.modules() if part is model or hasattr(part, "main_input_name")]
    parts = [part for part in models if _refuse not in part._forward_pre_hooks.values()]
    return [part.register_forward_pre_hook(_refuse, prepend=True, with_kwargs=True) for part in parts]


@contextmanager
def refusing_head_mask(model: nn.Module) -> Iterator[None]:
    """The same, until the block is left."""
    handles = refuse_head_mask(model)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    given = [name for name in NAMES if kwargs.get(name) is not None]
    given = given and [name for name in given if name not in inspect.signature(model.forward).parameters]
    if not given:
        return
    raise PlanError(
        f"{given[0]}= does nothing here: transformers 5 has no head masking, and {type(model).__name__} would "
        f"ignore it. Use mh.applied(lm, mh.Plan([mh.Ablate({{3: [7]}})])) around the call (kind='zero' is what "
        f"head_mask did), or mh.prune_heads(lm, {{3: [7]}}) to remove heads for good."
    )
