"""The first way in: transformers' models look their attention function up by name, through one class.

While any tap is open, that look-up returns the model's *own* function inside a wrapper: no new name is registered, so
masks, and branches that test a name, keep working, and outputs stay bit-identical. (Registering a name would lose the
mask: docs/decisions/001.) A kernel's lse is taken from the model's own call: no second pass. A stand-in
(`tap.standing_in`) gets the model's own function by the same look-up, and calls it as it likes.

More look-ups are wrapped: of flash-attn's functions and of flex attention's; of the decoding step that
`generate` compiles for a static cache, which runs uncompiled in a model that is tapped; and of continuous batching,
which is refused: it runs in a thread of its own, and keeps its keys in pages.

What torch's dispatcher does not show of flash-attn's and flex's calls is read off what they are handed. transformers
hands the functions of flash-attn packages and hub kernels q, k and v laid end to end where texts are
padded or packed, with a window, a cap, sinks, as far as a package knows them. So mask and rule are read off what the
kernel was handed, not off what the model asked for. Texts are counted from their ends: of fewer rows than keys, the
last row sees the last key. Checked on transformers 5.23 with stand-ins on a CPU, whose arguments are those of
flash-attn 2, 3 and 4; the guard checks the result on every call.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from manyheads import private_names
from manyheads.attention import Mask, Rule
from manyheads.errors import ModelError
from manyheads.models.taps.call import CapturedLse
from manyheads.models.taps.mask_arguments import FLEX_NAME, is_causal_without_mask, read_rule
from manyheads.models.taps.open_taps import OPEN, RawCall, WatchFused, carrying_out, log, unwatched, watching_sdpa

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
    places = private_names.look_ups()
    own = {key: getattr(owner, name) for key, (owner, name) in places.items()}

    def look_up(table: object, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return _wrapped(own["interface"](table, name, default), name)

    def item(table: object, name: str) -> Callable[..., Any]:
        return _wrapped(own["item"](table, name), name)

    def compiled_call(model: nn.Module, compile_config: object) -> Callable[..., Any]:
        return model.__call__ if _tapped(model) else own["compiled"](model, compile_config)

    def continuous_batching(model: nn.Module, *args: Any, **kwargs: Any) -> object:
        if _tapped(model):
            raise ModelError(PAGES.format(what="continuous batching"))
        return own["batching"](model, *args, **kwargs)

    wrappers = {"interface": look_up, "item": item, "compiled": compiled_call, "batching": continuous_batching}
    wrappers |= {
        key: watched(own[key]) for key, watched in (("flash", watched_flash), ("flex", watched_flex)) if key in own
    }
    for key, (owner, name) in places.items():
        # Only what the owner itself defines is put back: an inherited method would be frozen into it otherwise.
        _SAVED.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, wrappers[key])


def remove() -> None:
    while _SAVED:
        owner, name, value = _SAVED.pop()
        if value is None:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def _wrapped(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The model's own attention function, which shows each of its calls to the taps on the calling module."""
    if hasattr(function, "untapped"):  # one look-up calls the other: a call must not be shown twice
        return function

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
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
        pages = next((value for value in named.values() if private_names.is_paged(value)), None)
        if pages is not None or name.startswith("paged|"):
            raise ModelError(PAGES.format(what=f"attention {name!r} with a {type(pages).__name__}"))
        note = ""
        if name == "sdpa" and named.get("softcap") is not None:
            # It has none: up to transformers 5.20 it drops the argument, later it refuses it.
            note = private_names.WITHOUT_SOFTCAP.format(softcap=named.pop("softcap"))
        is_flex = name == FLEX_NAME  # torch compiles it as it is called, which nothing may watch
        dense = named.get("attention_mask")
        if is_flex and isinstance(dense, Tensor) and (not dense.is_floating_point() or dense.shape[1] > 1):
            raise ModelError(
                f"flex attention under transformers adds a dense mask to the scores, and head 0's for all heads: the "
                f"{dense.dtype} mask of shape {tuple(dense.shape)} does not hide there what it says. Give a BlockMask, "
                f"or load the model with attn_implementation='sdpa'."
            )
        if is_flex:
            watching = unwatched()
        else:  # of transformers' own function it is known which of its operations is the kernel
            is_known = name == "sdpa" and function.__module__.startswith("transformers.")
            watching = watching_sdpa() if is_known else WatchFused()
        with carrying_out(), watching_kernels() as calls, watching as watch:
            result = function(module, query, key, value, *args, **kwargs)
        if is_flex and result[1] is not None and named.get("output_attentions") and not taps[0].sites:
            log.warning(
                "outputs.attentions of flex attention are not maps but the lse of each row, rounded: do not use it"
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
        edited = RawCall(module, query, key, value, mask, rule, out, lse, dropout=dropout, note=note).show(taps)
        if edited is out:
            return result
        return (edited.transpose(1, 2).contiguous(), *result[1:])

    attention.untapped = function  # type: ignore[attr-defined]
    return attention


def _tapped(model: nn.Module) -> bool:
    """Whether this thread watches the model, or a part of it, or computes its attention."""
    return any(OPEN.on(module) or OPEN.stand_in(module) is not None for module in model.modules())


ASKS = ("return_attn_probs", "return_lse", "return_softmax_lse")  # what packages call the wish for an lse
SINKS = ("s_aux", "learnable_sink")  # and what they call sinks


@dataclass(frozen=True, eq=False)
class FlashCall:
    """One call of a flash-attn function. `begins`, of q and of k: where each packed text begins, and the total at the
    end; None where nothing is packed. `lse` is `[b h q]`, packed `[h n]`; None where the function gives none."""

    q: Shaped[Tensor, "*rows h d"]
    k: Shaped[Tensor, "*keys g d"]
    begins: tuple[Int[Tensor, "t"], Int[Tensor, "t"]] | None
    options: Mapping[str, Any]
    lse: Tensor | None

    @property
    def window(self) -> tuple[int | None, int | None]:
        """How many keys a row sees to the left and right of its own; None is all."""
        sides = self.options.get("window_size") or (None, None)
        left, right = (None if side is None or side < 0 else int(side) for side in sides)
        return left, 0 if self.options.get("causal") else right

    @property
    def rule(self) -> Rule:
        scale, softcap = self.options.get("softmax_scale"), self.options.get("softcap")
        sinks = next((self.options[name] for name in SINKS if self.options.get(name) is not None), None)
        scale = float(self.q.shape[-1] ** -0.5 if scale is None else scale)
        return Rule(scale, softcap or None, None if sinks is None else sinks.detach())  # a softcap of 0 is none

    def mask(
        self, attention_mask: Tensor | None, num_texts: int, num_queries: int, num_keys: int
    ) -> tuple[Mask, Int[Tensor, "n"] | None]:
        """The mask of the batch, on the host; of packed calls also where each packed row stands in it.

        That is `text * num_queries + row`. `attention_mask`: which positions are tokens, `[text, key]`.
        Errors: ModelError where a packed text runs from one row of the batch into the next.
        """
        if self.begins is None:
            num_texts, rows, keys = 1, _count(num_queries), _count(num_keys)
            begin_rows, begin_keys = (torch.tensor([0, count], device="cpu") for count in (num_queries, num_keys))
        else:
            rows, keys = _packed(attention_mask, num_texts, num_queries, num_keys)
            if (len(rows), len(keys)) != (len(self.q), len(self.k)):
                raise ModelError(
                    f"transformers packed {len(self.q)} rows and {len(self.k)} keys for its flash attention where "
                    f"{len(rows)} and {len(keys)} are tokens: load the model with attn_implementation='sdpa'."
                )
            begin_rows, begin_keys = (begins.cpu().long() for begins in self.begins)
        rows = rows[: int(begin_rows[-1])]
        text = torch.repeat_interleave(_count(len(begin_rows) - 1), begin_rows.diff())
        left, right = self.window
        num_seen = begin_keys.diff()[text]
        own_key = _count(len(rows)) - begin_rows[1:][text] + num_seen  # the last row's is the last key
        first = torch.zeros_like(own_key) if left is None else (own_key - left).clamp_min(0)
        end = num_seen if right is None else torch.minimum(own_key + right + 1, num_seen)
        alive = end > first
        first_key, last_key = (keys[(begin_keys[text] + key)[alive]] for key in (first, end - 1))
        own_text = rows[alive] // num_queries
        if bool((first_key // num_keys != own_text).any()) or bool((last_key // num_keys != own_text).any()):
            raise ModelError(
                "cu_seq_lens let a packed text run from one row of the batch into the next, which no mask of the batch "
                "can say: hand in packed texts as one row, (1, positions)."
            )
        start, stop = torch.zeros(2, num_texts * num_queries, dtype=torch.long, device="cpu")
        start[rows[alive]], stop[rows[alive]] = first_key % num_keys, last_key % num_keys + 1
        mask = Mask(start.view(num_texts, num_queries), stop.view(num_texts, num_queries), num_keys)
        if bool((last_key - first_key != (end - first)[alive] - 1).any()):  # padding between tokens: packed, it is gone
            tokens = torch.zeros(num_texts * num_keys, dtype=torch.bool, device="cpu")
            tokens[keys] = True
            dense = mask.visible(slice(None), slice(None)) & tokens.view(num_texts, 1, 1, num_keys)
            mask = Mask(mask.start, mask.stop, num_keys, dense.to(self.q.device))
        return mask, None if self.begins is None else rows

    def captured(
        self, rows: Int[Tensor, "n"] | None, num_texts: int, num_queries: int, name: str
    ) -> CapturedLse | None:
        """The function's lse as `[b h q]`, -inf for rows that are not tokens; None where it gives none.

        Nor where there are sinks, which some packages count into it and others do not.
        """
        num_heads = self.q.shape[-2]
        if self.lse is None or self.rule.sinks is not None:
            return None
        if rows is None:
            return CapturedLse(self.lse, name) if self.lse.shape == (num_texts, num_heads, num_queries) else None
        if self.lse.shape != (num_heads, len(self.q)):
            return None
        lse = self.lse.new_full((num_heads, num_texts * num_queries), -torch.inf)
        lse[:, rows.to(lse.device)] = self.lse[:, : len(rows)]
        return CapturedLse(lse.view(num_heads, num_texts, num_queries).transpose(0, 1), name)


def _count(size: int) -> Int[Tensor, "n"]:
    return torch.arange(size, device="cpu")


def _packed(
    attention_mask: Tensor | None, num_texts: int, num_queries: int, num_keys: int
) -> tuple[Int[Tensor, "n"], Int[Tensor, "m"]]:
    """Where in the batch each packed row and key comes from. Source: transformers, `_upad_input`."""
    if attention_mask is None:
        return _count(num_texts * num_queries), _count(num_texts * num_keys)
    tokens = attention_mask.cpu().bool()  # a static cache's keys go on past it, and are not read
    text, key = tokens.nonzero().unbind(1)
    if num_queries == 1:  # a decoded token, of every text
        return _count(num_texts), text * num_keys + key
    text_of_row, row = tokens[:, -num_queries:].nonzero().unbind(1)
    return text_of_row * num_queries + row, text * num_keys + key


class _Watched(threading.local):
    """What this thread's kernels were handed while a tap carries out a call; None while none does."""

    def __init__(self) -> None:
        self.calls: list[FlashCall | CapturedLse] | None = None


_WATCHED = _Watched()


@contextmanager
def watching_kernels() -> Iterator[list[FlashCall | CapturedLse]]:
    """The calls of flash-attn functions, and the lse of flex attention, that are made meanwhile."""
    before, _WATCHED.calls = _WATCHED.calls, []
    try:
        yield _WATCHED.calls
    finally:
        _WATCHED.calls = before


def watched_flash(look_up: Callable[..., Any]) -> Callable[..., Any]:
    """transformers' look-up of flash-attn functions; those for texts in a batch and packed note their calls."""

    def looked_up(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        (alike, packed, *functions), prepare = look_up(*args, **kwargs)
        return (_noting(alike), _noting(packed), *functions), prepare

    return looked_up


def _noting(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if function is None:
        return None
    parameters = inspect.signature(function).parameters
    asking = {name: True for name in ASKS if name in parameters}

    def call(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> object:
        if _WATCHED.calls is None:
            return function(q, k, v, **options)
        result = function(q, k, v, **options, **asking)
        lse = result[1] if isinstance(result, tuple) and len(result) > 1 else None
        begins = (options["cu_seqlens_q"], options["cu_seqlens_k"]) if "cu_seqlens_q" in options else None
        _WATCHED.calls.append(FlashCall(q, k, begins, options, lse))
        return result

    return call


def watched_flex(function: Callable[..., Any]) -> Callable[..., Any]:
    """transformers' call of flex attention; where it asks for the lse (not on a CPU), that is noted as it is."""

    def call(*args: Any, **kwargs: Any) -> object:
        result = function(*args, **kwargs)
        if _WATCHED.calls is not None and isinstance(result, tuple) and result[1].lse is not None:
            # transformers rounds it to the model's dtype: in bfloat16 by up to 3 % of every weight.
            _WATCHED.calls.append(CapturedLse(result[1].lse, "flex attention"))
        return result

    return call
