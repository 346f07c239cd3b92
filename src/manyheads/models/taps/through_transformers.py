"""The first way in: transformers' models look their attention function up by name, through one class.

While any tap is open, that look-up returns the model's *own* function inside a wrapper: no new name is registered, so
masks, and branches that test a name, keep working, and outputs stay bit-identical. (Registering a name would lose the
mask: docs/decisions/001.) A kernel's lse is taken from the model's own call: no second pass. A stand-in
(`tap.standing_in`) gets the model's own function by the same look-up, and calls it as it likes.

More look-ups are wrapped: of flash-attn's functions and of flex attention's (`kernel_calls`); of the decoding step that
`generate` compiles for a static cache, which runs uncompiled in a model that is tapped; and of continuous batching,
which is refused: it runs in a thread of its own, and keeps its keys in pages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from manyheads.errors import ModelError
from manyheads.models.taps.call import CapturedLse
from manyheads.models.taps.kernel_calls import FlashCall, watched_flash, watched_flex, watching_kernels
from manyheads.models.taps.mask_arguments import FLEX_NAME, is_causal_without_mask, read_rule
from manyheads.models.taps.open_taps import OPEN, RawCall, WatchFused, carrying_out, log
from manyheads.models.taps.through_torch import unwatched

_SAVED: list[tuple[Any, str, Any]] = []  # owner, name and what it held, while ours stand in their place
ARGUMENTS = ("attention_mask", "scaling", "dropout")  # of an attention function, after the values
PAGES = (
    "{what} keeps earlier keys in pages, where they cannot be read yet: use a plain forward pass or generate(), with "
    "attn_implementation='sdpa'."
)


def install() -> None:
    """Wrap the look-ups. Nothing is imported for it: where transformers is not loaded, none of its models is either."""
    if _SAVED or "transformers.modeling_utils" not in sys.modules:
        return
    from transformers import modeling_flash_attention_utils
    from transformers.generation.continuous_batching.continuous_api import ContinuousMixin
    from transformers.integrations import flex_attention
    from transformers.modeling_utils import AttentionInterface, PreTrainedModel

    get_interface, get_item = AttentionInterface.get_interface, AttentionInterface.__getitem__
    get_compiled_call, batching = PreTrainedModel.get_compiled_call, ContinuousMixin.init_continuous_batching

    def look_up(table: Any, name: str, default: Callable) -> Callable:
        return _wrapped(get_interface(table, name, default), name)

    def item(table: Any, name: str) -> Callable:
        return _wrapped(get_item(table, name), name)

    def compiled_call(model: Any, compile_config: Any) -> Callable:
        return model.__call__ if _tapped(model) else get_compiled_call(model, compile_config)

    def continuous_batching(model: Any, *args: Any, **kwargs: Any) -> Any:
        if _tapped(model):
            raise ModelError(PAGES.format(what="continuous batching"))
        return batching(model, *args, **kwargs)

    flash, flex = "lazy_import_flash_attention", "compile_friendly_flex_attention"
    for owner, name, wrapper in (
        (AttentionInterface, "get_interface", look_up),
        (AttentionInterface, "__getitem__", item),
        (PreTrainedModel, "get_compiled_call", compiled_call),
        (ContinuousMixin, "init_continuous_batching", continuous_batching),
        (modeling_flash_attention_utils, flash, watched_flash(getattr(modeling_flash_attention_utils, flash))),
        (flex_attention, flex, watched_flex(getattr(flex_attention, flex))),
    ):
        # Only what the owner itself defines is put back: an inherited method would be frozen into it otherwise.
        _SAVED.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, wrapper)


def remove() -> None:
    while _SAVED:
        owner, name, value = _SAVED.pop()
        if value is None:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def _wrapped(function: Callable, name: str) -> Callable:
    """The model's own attention function, which shows each of its calls to the taps on the calling module."""
    if hasattr(function, "untapped"):  # one look-up calls the other: a call must not be shown twice
        return function

    def attention(module: nn.Module, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        # Models may keep the function that they looked up, also when the tap is long closed: then it only passes on.
        taps, stand_in = OPEN.on(module), OPEN.stand_in(module)
        if not taps and stand_in is None:
            return function(module, query, key, value, *args, **kwargs)
        named = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
        if stand_in is not None:
            if taps:
                raise ModelError(
                    "a model that streams (mh.streaming) has freed keys that a recording, a measurement and a plan "
                    "need: leave one of the two blocks. mh.applied(lm, split.ablation()) streams with all keys kept."
                )
            return stand_in.attend(function, name, module, query, key, value, named)
        if (cache := named.get("cache")) is not None or name.startswith("paged|"):
            raise ModelError(PAGES.format(what=f"attention {name!r} with a {type(cache).__name__}"))
        is_flex = name == FLEX_NAME  # torch compiles it as it is called, which nothing may watch
        dense = named.get("attention_mask")
        if is_flex and isinstance(dense, Tensor) and (not dense.is_floating_point() or dense.shape[1] > 1):
            raise ModelError(
                f"flex attention under transformers adds a dense mask to the scores, and head 0's for all heads: the "
                f"{dense.dtype} mask of shape {tuple(dense.shape)} does not hide there what it says. Give a BlockMask, "
                f"or load the model with attn_implementation='sdpa'."
            )
        with carrying_out(), watching_kernels() as calls, unwatched() if is_flex else WatchFused() as watch:
            result = function(module, query, key, value, *args, **kwargs)
        if is_flex and result[1] is not None and named.get("output_attentions") and not taps[0].sites:
            log.warning(
                "outputs.attentions of flex attention are no maps but the lse of each row, rounded: do not use it"
            )
        lse = watch.lse if watch is not None else next((call for call in calls if isinstance(call, CapturedLse)), None)
        flash = [call for call in calls if isinstance(call, FlashCall)]
        num_texts, num_queries, num_keys = len(query), query.shape[2], key.shape[2]
        attention_mask = named.get("attention_mask")
        if len(flash) == 1:
            (call,) = flash
            query, key, value = (x.to(call.q.dtype) for x in (query, key, value))  # what the kernel read
            # All layers get the same tensor that says where texts begin; the kernel's own is made anew for each.
            sources = (attention_mask, named.get("cu_seq_lens_q"), named.get("position_ids"))
            mask, rows = taps[0].masks.once(
                next((source for source in sources if source is not None), None),
                ("flash", num_queries, num_keys, call.begins is None, call.window),
                partial(call.mask, attention_mask, num_texts, num_queries, num_keys),
            )
            rule, lse = call.rule, call.captured(rows, num_texts, num_queries, name)
        else:
            if flash or (isinstance(attention_mask, Tensor) and attention_mask.ndim == 2):
                raise ModelError(
                    f"attention {name!r} hides padding inside of a kernel, and made {len(flash)} calls of flash-attn's "
                    f"functions where one can be read: load the model with attn_implementation='sdpa' or 'eager'."
                )
            causal = is_causal_without_mask(name, module, num_queries, named)
            mask, bias = taps[0].masks.read(attention_mask, num_queries, num_keys, causal)
            rule = read_rule(query, named, bias)
        out = result[0].transpose(1, 2)  # [text, row, head, width], as these functions return it
        dropout = float(named.get("dropout") or 0.0)
        edited = RawCall(module, query, key, value, mask, rule, out, lse, dropout=dropout).show(taps)
        if edited is out:
            return result
        return (edited.transpose(1, 2).contiguous(), *result[1:])

    attention.untapped = function  # type: ignore[attr-defined]
    return attention


def _tapped(model: nn.Module) -> bool:
    """Whether this thread watches the model, or a part of it, or computes its attention."""
    return any(OPEN.on(module) or OPEN.stand_in(module) is not None for module in model.modules())
