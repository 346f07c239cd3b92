"""`head_mask=` is refused, with what to use instead.

transformers 5 took head masking away, and most of its models swallow the keyword in silence: an ablation that changes
nothing. A call that passes one to a model without such an argument raises PlanError.
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

    The models in it are transformers' own, which name their main input; what refuses already is left alone.
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
    passed = [name for name in NAMES if kwargs.get(name) is not None]
    # The signature is read only where a mask was passed: this runs before every forward pass.
    ignored = passed and [name for name in passed if name not in inspect.signature(model.forward).parameters]
    if not ignored:
        return
    raise PlanError(
        f"{ignored[0]}= does nothing here: transformers 5 has no head masking, and {type(model).__name__} would "
        f"ignore it. Use mh.applied(lm, mh.Plan([mh.Ablate({{3: [7]}})])) around the call (kind='zero' is what "
        f"head_mask did), or mh.prune_heads(lm, {{3: [7]}}) to remove heads for good."
    )
