"""The first way in: transformers' models look their attention function up by name, through one class.

While any tap is open, that look-up returns the model's *own* function inside a wrapper: no new name is registered, so
masks, and branches that test a name, keep working, and outputs stay bit-identical. (Registering a name would lose the
mask: docs/decisions/001.) A fused kernel's lse is taken from the model's own call: no second pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from manyheads.models.taps.mask_arguments import FLEX_NAME, is_causal_without_mask, read_rule
from manyheads.models.taps.open_taps import OPEN, RawCall, WatchFused, carrying_out
from manyheads.models.taps.through_torch import unwatched

_SAVED: dict[str, Any] = {}  # what the class held, while our look-ups stand in their place


def install() -> None:
    """Wrap the look-ups. Nothing is imported for it: where transformers is not loaded, none of its models is either."""
    if _SAVED or "transformers.modeling_utils" not in sys.modules:
        return
    from transformers.modeling_utils import AttentionInterface

    get_interface, get_item = AttentionInterface.get_interface, AttentionInterface.__getitem__

    def look_up(table: Any, name: str, default: Callable) -> Callable:
        return _wrapped(get_interface(table, name, default), name)

    def item(table: Any, name: str) -> Callable:
        return _wrapped(get_item(table, name), name)

    # Only what the class itself defines is put back: an inherited method would be frozen into it otherwise.
    _SAVED.update({name: vars(AttentionInterface).get(name) for name in ("get_interface", "__getitem__")})
    AttentionInterface.get_interface, AttentionInterface.__getitem__ = look_up, item  # type: ignore[method-assign]


def remove() -> None:
    if not _SAVED:
        return
    from transformers.modeling_utils import AttentionInterface

    for name, value in _SAVED.items():
        if value is None:
            delattr(AttentionInterface, name)
        else:
            setattr(AttentionInterface, name, value)
    _SAVED.clear()


def _wrapped(function: Callable, name: str) -> Callable:
    """The model's own attention function, which shows each of its calls to the taps on the calling module."""
    if hasattr(function, "untapped"):  # one look-up calls the other: a call must not be shown twice
        return function

    def attention(module: nn.Module, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        # Models may keep the function that they looked up, also when the tap is long closed: then it only passes on.
        taps = OPEN.on(module)
        if not taps:
            return function(module, query, key, value, *args, **kwargs)
        run = partial(function, module, query, key, value, *args, **kwargs)
        if name == FLEX_NAME:  # torch compiles it as it is called, which nothing may watch
            with carrying_out(), unwatched():
                result, lse = run(), None
        else:
            with carrying_out(), WatchFused() as watch:
                result = run()
            lse = watch.lse
        attention_mask = args[0] if args else kwargs.get("attention_mask")
        named = dict(zip(("scaling", "dropout"), args[1:], strict=False)) | kwargs
        causal = is_causal_without_mask(name, module, query.shape[2], named)
        mask, bias = taps[0].masks.read(attention_mask, query.shape[2], key.shape[2], causal)
        out = result[0].transpose(1, 2)  # [text, row, head, width], as these functions return it
        edited = RawCall(module, query, key, value, mask, read_rule(query, named, bias), out, lse).show(taps)
        if edited is out:
            return result
        return (edited.transpose(1, 2).contiguous(), *result[1:])

    attention.untapped = function  # type: ignore[attr-defined]
    return attention
