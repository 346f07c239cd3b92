"""`streaming`: a cache whose streaming heads hold first and last positions alone, for stock transformers `generate`.

    with mh.streaming(lm, split):
        ids = lm.model.generate(**inputs, max_new_tokens=200)

A cache of transformers gives attention one tensor of keys a layer, so all heads have the same length. Here a layer has
two stores. Retrieval heads grow. Streaming heads have `sink` slots for the text's first positions and a ring of
`recent` slots: a new key takes the place of the one that leaves the window, and nothing is copied. Keys are held as
they come, rotated to their own positions, so outputs are those of the `streaming` ablation.

`update` stores nothing: it hands the new keys on, and the layer waits for its attention call, which `standing_in`
brings here. There, the model's own attention function is called twice, for the query heads of either kind, each with
the keys that these heads hold. A prompt is read in blocks of `STREAMED_ROWS` rows: no streaming head has an n x n map.
Source: Xiao et al. 2024, DuoAttention (the split); Xiao et al. 2023, StreamingLLM (sinks and a window; it counts
positions within the cache, which is not done here). Oracle: the streaming ablation, and dense masks (the tests).
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.generation import GenerationConfig, GenerationMode

from manyheads import private_names
from manyheads.base import whole
from manyheads.edits import require_loaded
from manyheads.errors import ModelError
from manyheads.long_context.head_split import HeadSplit
from manyheads.machine import require_all_heads
from manyheads.models import LoadedModel
from manyheads.models.taps import MaskReader, is_causal_without_mask, require_tappable, standing_in
from manyheads.private_names import CacheLayerMixin, DynamicLayer

GROWTH = 256  # positions: with as many more each time, a step copies 1/256 of the cache on average
STREAMED_ROWS = 256  # of a prompt at once: as many keys more than `recent` are multiplied in vain
FUNCTIONS = ("sdpa", "eager")  # attention functions that take a dense mask
MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)
NOT_YET = 1 << 60  # the begin of a text of which only padding has come
Position = TypeVar("Position", int, Tensor)


@contextmanager
def streaming(lm: LoadedModel, split: HeadSplit, *, growth: int = GROWTH) -> Iterator[Streaming]:
    """In the block, and in this thread, `lm.model` streams as `split` says, and its caches hold only what is still
    needed.

    `lm.model.generate(...)` and `lm.model(ids, use_cache=True)` make a cache of this kind where none is given; for a
    loop of one's own, `cache()` of the block's value makes one. Without a cache (`use_cache=False`) the streaming heads
    see the same keys. Sampling, beams, left padding, prompts in pieces (`prefill_chunk_size`), any dtype and device.

    Outputs are those of `mh.applied(lm, split.ablation())`, up to rounding. A cache holds `split.cache_bytes(positions,
    batch, element_bytes)`, and room for up to `growth - 1` more positions: exactly that behind a prompt read at once,
    and at every step with `growth=1`, where each step copies all that is kept. `StreamingCache.held_bytes` counts it.

    Cost: a step reads each retrieval head's keys and values, and `sink + recent` of each streaming head.
    Errors: ModelError for what is not served: encoder-decoders, layers with a window of their own whose heads stream,
    latent caches (MLA), attention other than sdpa and eager, learned sinks and position biases; static, quantized and
    offloaded caches, assisted generation, returned attentions, gradients, packed texts; a recording within the block.
    """
    require_loaded(lm)
    if not isinstance(split, HeadSplit):
        raise ModelError(f"{split!r} is not a HeadSplit: mh.HeadSplit.open(path) reads one.")
    whole("growth", growth, 1, ModelError, "how many positions a cache grows by, 1 or more")
    require_tappable(lm.model)
    require_all_heads(lm.model, lm.name, "a streaming cache")
    split.require_model(lm)
    block = Streaming(lm.model, lm.name, split, growth, _places(lm, split))
    modules = [block.model.get_submodule(path) for path in block.places]
    block.layers = {id(module): place for module, place in zip(modules, block.places.values(), strict=True)}
    with ExitStack() as stack:
        stack.enter_context(standing_in(modules, block.attend))
        stack.callback(block.model.register_forward_pre_hook(block.before, with_kwargs=True).remove)
        stack.callback(block.model.register_forward_hook(block.after).remove)
        if hasattr(block.model, private_names.PREPARE_CACHE):
            model_prepare = getattr(block.model, private_names.PREPARE_CACHE)

            def prepare(*args: Any, **kwargs: Any) -> None:
                if threading.get_ident() != block.thread or not block.serve(*args, **kwargs):
                    model_prepare(*args, **kwargs)

            setattr(block.model, private_names.PREPARE_CACHE, prepare)
            stack.callback(lambda: delattr(block.model, private_names.PREPARE_CACHE))
        try:
            yield block
        finally:
            block.is_open = False


def _places(lm: LoadedModel, split: HeadSplit) -> dict[str, tuple[int, int]]:
    """Path of each attention module that is served -> its number in the split, and in a cache. Errors: ModelError."""
    model, config = lm.model, getattr(lm.model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise ModelError(f"{lm.name} is not a transformers model, and a streaming cache is one of transformers.")
    if getattr(config, "is_encoder_decoder", False) or split.stack:
        raise ModelError(f"{lm.name} is an encoder-decoder: a streaming cache is for decoders alone.")
    if (attention := private_names.attention_of(model)) not in FUNCTIONS:
        raise ModelError(
            f"{lm.name} attends by {attention!r}, and a streaming cache hands its attention dense "
            f"masks: load it with attn_implementation='sdpa'."
        )
    stock, places = DynamicCache(config=config).layers, {}
    for site in lm.spec.stacks[split.stack]:
        streams = not all(split.layers[site.layer].kept)
        path, _, again = site.module.partition("#")
        module = model.get_submodule(path)
        index = getattr(module, "layer_idx", None)
        layer = stock[index] if isinstance(index, int) and index < len(stock) else None
        alike = type(layer) is DynamicLayer and site.causal and site.qk_dim == site.v_dim and not again
        if alike and _looks_up(module):
            places[path] = (site.layer, index)
            continue
        if not streams:  # a layer that keeps everything may keep it in its own way
            continue
        if getattr(layer, "is_sliding", False):
            why = "keeps a window of its own, of which a streaming head would see the end without the beginning"
        elif not site.causal:
            why = "lets rows look ahead: a streaming head keeps what came before"
        elif site.qk_dim != site.v_dim:
            why = f"has keys of {site.qk_dim} and values of {site.v_dim} (MLA), which it caches together, for all heads"
        elif layer is None or not _looks_up(module):
            why = f"does not attend through transformers' attention interface ({type(module).__name__})"
        else:
            why = f"keeps its keys in a {type(layer).__name__}, or is called twice, which is not known here"
        raise ModelError(f"{site} of {lm.name} {why}. Keep all of its heads (`kept`), or use mh.applied.")
    if not places:
        raise ModelError(f"no layer of {lm.name} can be served by a streaming cache.")
    return places


def _looks_up(module: nn.Module) -> bool:
    """Whether a module takes its attention function from transformers' table, as its code says."""
    functions = [
        inspect.unwrap(value) for kind in type(module).__mro__ for value in vars(kind).values() if callable(value)
    ]
    codes = [function.__code__ for function in functions if hasattr(function, "__code__")]
    return any("ALL_ATTENTION_FUNCTIONS" in code.co_names for code in codes)


@dataclass(eq=False)
class Streaming:
    """An open block of `streaming`: what makes its caches, and carries out its attention calls.

    `places`: path of an attention module -> its layer in the split, and in a cache. `updated`: the cache's layer that
    waits for its attention call, with the keys and values that it handed on.
    """

    model: Any
    name: str
    split: HeadSplit
    growth: int
    places: dict[str, tuple[int, int]]
    thread: int = field(default_factory=threading.get_ident)
    layers: dict[int, tuple[int, int]] = field(default_factory=dict)  # by the module's id
    masks: MaskReader = field(default_factory=MaskReader)
    updated: tuple[StreamingLayer, Tensor, Tensor] | None = None
    is_open: bool = True

    def cache(self) -> StreamingCache:
        """An empty cache, for one generation or one loop: `cache=now.cache()`, before transformers 5.24
        `past_key_values=now.cache()`."""
        return StreamingCache(self)

    def require(self, cache: object) -> None:
        """Errors: ModelError for a cache that was not made by this block."""
        if not isinstance(cache, StreamingCache) or cache.block is not self:
            whose = "of another block" if isinstance(cache, StreamingCache) else "of transformers"
            name = private_names.cache_name(self.model)
            raise ModelError(
                f"{name} is a {type(cache).__name__} {whose}: leave it out, or give cache() of this block "
                f"(with mh.streaming(lm, split) as now: now.cache())."
            )

    def serve(
        self, generation: GenerationConfig, model_kwargs: dict[str, Any], mode: object, *_: object, **__: object
    ) -> bool:
        """Put a cache into the arguments of `generate`, in the place of transformers' own; False: none is wanted.

        Errors: ModelError for ways to generate that a streaming cache cannot serve.
        """
        if mode not in MODES or generation.is_assistant:
            raise ModelError(
                f"generation by {getattr(mode, 'value', mode)} takes tokens back, and a streaming cache has freed the "
                f"keys that stood there: leave out assistant_model and prompt_lookup_num_tokens."
            )
        kind = generation.cache_implementation
        if kind not in (None, "dynamic"):
            raise ModelError(f"cache_implementation={kind!r}: a streaming cache takes its place, so leave it out.")
        if (cache := private_names.cache_in(model_kwargs)) is None:
            if generation.use_cache is False:
                return False
            cache = self.cache()
        self.require(cache)
        if cache.generated:
            raise ModelError(
                "this streaming cache was used by another generate() already: give each its own (now.cache()), or "
                "first copy one that holds a common beginning (copy.deepcopy)."
            )
        cache.generated = True
        arguments = private_names.with_cache(self.model, model_kwargs, cache)
        model_kwargs.clear()
        model_kwargs.update(arguments)
        return True

    def before(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The hook before a forward pass: a cache of this block where the model would make its own."""
        if threading.get_ident() != self.thread:
            return None
        self.updated = None
        named = inspect.signature(self.model.forward).bind_partial(*args, **kwargs).arguments
        arguments = {**named, **named.get("kwargs", {})}
        config = self.model.config.get_text_config()
        if arguments.get("output_attentions") or config.output_attentions:
            raise ModelError(
                "output_attentions=True: streaming heads have weights on other keys than the others, so a layer has no "
                "one map. mh.record, outside of this block, has every head's."
            )
        if (cache := private_names.cache_in(arguments)) is not None:
            self.require(cache)
            return None
        wants = arguments.get("use_cache")
        if not (getattr(config, "use_cache", False) if wants is None else wants):
            return None
        return args, private_names.with_cache(self.model, kwargs, self.cache())

    def after(self, model: nn.Module, args: tuple[object, ...], result: object) -> None:
        """The hook behind a forward pass. Errors: ModelError where the last layer attended by other ways."""
        if threading.get_ident() == self.thread:
            self.require_attended()

    def require_attended(self) -> None:
        """Errors: ModelError where keys were cached and no attention call came."""
        if self.updated is not None:
            number, self.updated = self.updated[0].number, None
            raise ModelError(
                f"L{number} of {self.name} cached keys and did not attend through transformers' attention interface: a "
                f"streaming cache cannot serve it, and what the model returned was not computed."
            )

    def attend(
        self,
        function: Callable[..., Any],
        name: str,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        named: dict[str, Any],
    ) -> tuple[Tensor, None]:
        """An attention call of the model: by the layer that waits for it, or of keys that are not cached."""
        number, _ = self.layers[id(module)]
        by_head = any(named.get(extra) is not None for extra in ("position_bias", "s_aux"))
        if name not in FUNCTIONS or (by_head and not all(self.split.layers[number].kept)):
            way = f"by {name!r}" if name not in FUNCTIONS else "with a position bias or with learned sinks"
            raise ModelError(f"L{number} of {self.name} attends {way}, which a streaming cache does not know.")
        updated, self.updated = self.updated, None
        if updated is None:
            if key.shape[2] != query.shape[2]:
                raise ModelError(f"L{number} of {self.name} reads a cache that is not of this block (now.cache()).")
            layer = StreamingLayer(self, number, Texts())
        else:
            layer, *cached = updated
            if layer.number != number or key is not cached[0] or value is not cached[1]:
                raise ModelError(
                    f"L{number} of {self.name} attends with keys that it did not cache: a streaming cache cannot "
                    f"serve it."
                )
        mask = named.pop("attention_mask", None)
        return layer.attend(Call(function, name, module, mask, named), query, key, value), None


@dataclass(frozen=True, eq=False)
class Call:
    """The model's own attention function, as one layer calls it: by `name`, with `mask` and other arguments."""

    function: Callable[..., Any]
    name: str
    module: nn.Module
    mask: Tensor | None
    named: dict[str, Any]

    def run(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """[b, q, h, f], as these functions return it."""
        return self.function(self.module, query, key, value, mask, **self.named)[0]

    def cells(
        self, query: Tensor, positions: Tensor, visible: Tensor, first: int, num_keys: int, heads: Tensor
    ) -> Tensor:
        """The mask of `query`'s rows, from row `first` of the call, on keys at `positions` [#b, k]: those of `visible`
        [#b, q, k] that the model's own mask shows, with what it adds to them."""
        if self.mask is None:
            cells = visible[:, None]
            lowest = torch.finfo(query.dtype).min
            return cells if self.name == "sdpa" else query.new_zeros(cells.shape).masked_fill(~cells, lowest)
        model_mask = self.mask if self.mask.shape[1] == 1 else self.mask[:, heads]
        model_mask = model_mask[:, :, first : first + query.shape[2]] if model_mask.shape[2] > 1 else model_mask
        shape = (max(len(model_mask), len(visible)), model_mask.shape[1], query.shape[2])
        index = positions.clamp(max=num_keys - 1)[:, None, None].expand(*shape, -1)
        model_mask = model_mask.expand(*shape, -1).gather(-1, index)
        if model_mask.dtype == torch.bool:
            return model_mask & visible[:, None]
        return model_mask.masked_fill(~visible[:, None], torch.finfo(model_mask.dtype).min)


def of_heads(mask: Tensor | None, heads: Tensor) -> Tensor | None:
    """A mask's planes of some heads, where heads have planes of their own."""
    return mask if mask is None or mask.shape[1] == 1 else mask[:, heads]


@dataclass(eq=False)
class Texts:
    """What all layers of a cache share: how far it is read, and where each text begins behind its padding.

    `begins` [#b]: on the model's device; None where all texts begin at 0. `latest`: the last of them. `waiting`: of
    some text only padding has come. `step`: the mask of the last decoding step, which all layers share.
    """

    length: int = 0
    begins: Tensor | None = None
    latest: int = 0
    waiting: bool = False
    step: tuple[int, Tensor | None, Tensor] | None = None

    def read(self, call: Call, masks: MaskReader, past: int, num_rows: int, device: torch.device) -> None:
        """Read the begins of texts off a mask, once for all layers. Errors: ModelError for masks of other kinds."""
        if self.length == past + num_rows:  # a layer before has
            return
        if self.length != past:
            raise ModelError(
                f"layers of this cache hold {self.length:,} and {past:,} positions: an earlier call broke off within "
                f"the model. Begin with a new one (now.cache())."
            )
        self.length = past + num_rows
        if num_rows == 1 and past and not self.waiting:
            return
        # One wait for the device in a prompt, or a piece of one: a step of one token asks it for nothing.
        causal = is_causal_without_mask(call.name, call.module, num_rows, call.named)
        mask, _ = masks.read(call.mask, num_rows, self.length, causal)
        positions = torch.arange(past, self.length, device="cpu")[None]
        alive = mask.stop > mask.start
        begins = torch.where(alive, mask.start, NOT_YET).amin(-1)
        if past:
            begins = torch.minimum(begins, torch.zeros_like(begins) if self.begins is None else self.begins.cpu())
        if bool((alive & (mask.stop > positions + 1)).any()):
            raise ModelError("rows look ahead, and a streaming head keeps what came before: decoders alone have those.")
        if bool((alive & (mask.start != begins[:, None])).any()):
            raise ModelError(
                "some rows do not see their text's first key: several texts are packed into one, or attention has a "
                "window. A streaming cache serves texts one by one, or padded."
            )
        self.waiting = bool((begins == NOT_YET).any())
        self.latest = int(begins[begins < NOT_YET].max()) if bool((begins < NOT_YET).any()) else 0
        self.begins = begins.to(device) if self.latest or self.waiting else None

    def sinks(self, count: int, device: torch.device) -> Tensor:
        """[#b, count]: positions of the texts' first keys."""
        places = torch.arange(count, device=device)[None]
        return places if self.begins is None else self.begins.to(device)[:, None] + places

    def choose(self, chosen: Callable[[Tensor], Tensor]) -> None:
        """Other texts in the place of these, as of all tensors of the cache."""
        self.step = None
        if self.begins is not None and len(self.begins) > 1:
            self.begins = chosen(self.begins)


class StreamingLayer(CacheLayerMixin):
    """A layer of a `StreamingCache`. `stores`: [keys, values] of the retrieval heads, and of the streaming ones.

    Slot s < sink of a streaming head holds position `begin + s` of its text, each text's own; slot `sink + (p - sink) %
    recent` holds position p >= sink of the last `recent`. A position may have both: one of the two is masked then.
    """

    is_sliding = False
    is_croppable = False

    def __init__(self, block: Streaming, number: int, texts: Texts) -> None:
        super().__init__()
        layer = block.split.layers[number]
        self.block, self.number, self.texts = block, number, texts
        self.num_heads, self.num_kv_heads = layer.num_heads, layer.num_kv_heads
        self.kept = layer.kept
        self.sink, self.recent = block.split.sink, block.split.recent
        self.reset()

    # --------------------------------------------------------------------------------------- what transformers calls

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Which heads are of which kind, on the keys' device."""
        self.dtype, self.device = key_states.dtype, key_states.device
        size = self.num_heads // self.num_kv_heads
        self.kv_heads, self.heads = [], []
        for kind in (True, False):
            groups = [index for index, keeps in enumerate(self.kept) if keeps is kind]
            heads = [group * size + place for group in groups for place in range(size)]
            self.kv_heads.append(torch.tensor(groups, dtype=torch.long, device=self.device))
            self.heads.append(torch.tensor(heads, dtype=torch.long, device=self.device))
        self.is_initialized = True

    def begin(self, *read: Tensor) -> None:
        """Hold keys and values of positions that were read before, no more than a streaming head has room for."""
        self.lazy_initialization(*read)
        # The ring's slots of the first sink + recent positions are these positions themselves.
        self.stores = [[x[:, heads] for x in read] if len(heads) else [] for heads in self.kv_heads]
        self.length = read[0].shape[2]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Hand new keys and values on to attention, which comes next, and there they are stored. Errors: ModelError."""
        block = self.block
        if not block.is_open or threading.get_ident() != block.thread:
            raise ModelError("this streaming cache is used outside of its block (with mh.streaming(lm, split) as now).")
        block.require_attended()
        if key_states.requires_grad or value_states.requires_grad:
            raise ModelError("a streaming cache frees keys, which gradients would need: run it under torch.no_grad().")
        if key_states.shape[1] != self.num_kv_heads or key_states.shape[2] != value_states.shape[2]:
            raise ModelError(
                f"L{self.number} caches keys {tuple(key_states.shape)} and values {tuple(value_states.shape)}, and has "
                f"{self.num_kv_heads} key/value heads: a streaming cache cannot tell them apart."
            )
        stored = next((store for store in self.tensors()), None)
        if stored is not None and len(stored) != len(key_states):
            raise ModelError(
                f"this streaming cache holds {len(stored)} texts, and {len(key_states)} would continue it."
            )
        block.updated = (self, key_states, value_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Positions read so far: a streaming head holds fewer."""
        return self.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # as transformers up to 5.12 calls it

    def reset(self) -> None:
        self.length = 0
        self.stores: list[list[Tensor]] = [[], []]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._choose(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._choose(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._choose(lambda x: x[indices.to(x.device)])

    def offload(self) -> None:
        raise ModelError("a streaming cache stays where its keys are: it cannot be offloaded.")

    def _choose(self, chosen: Callable[[Tensor], Tensor]) -> None:
        self.stores = [[chosen(x) for x in store] for store in self.stores]

    def tensors(self) -> list[Tensor]:
        """All that the layer holds."""
        return [x for store in self.stores for x in store]

    # ----------------------------------------------------------------------------------------------- attention

    def attend(self, call: Call, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store new keys and values, and attend: [b, q, h, f]."""
        if not self.is_initialized:
            self.lazy_initialization(key, value)
        self.texts.read(call, self.block.masks, self.length, query.shape[2], query.device)
        if all(self.kept):
            keys, values = self._append(key, value)
            out = call.run(query, keys, values, call.mask)
        elif not any(self.kept):
            out = self._stream(call, query, key, value)
        else:
            out = query.new_empty(len(query), query.shape[2], query.shape[1], value.shape[-1])
            kv, heads = self.kv_heads[0], self.heads[0]
            keys, values = self._append(key[:, kv], value[:, kv])
            out[:, :, heads] = call.run(query[:, heads], keys, values, of_heads(call.mask, heads))
            kv, heads = self.kv_heads[1], self.heads[1]
            out[:, :, heads] = self._stream(call, query[:, heads], key[:, kv], value[:, kv])
        self.length += query.shape[2]
        return out

    def _append(self, *new: Tensor) -> list[Tensor]:
        """Store retrieval heads' keys and values; all that they have so far."""
        total = self.length + new[0].shape[2]
        self._make_room(0, new, total, None)
        for store, x in zip(self.stores[0], new, strict=True):
            store[:, :, self.length : total] = x
        return [store[:, :, :total] for store in self.stores[0]]

    def _make_room(self, kind: int, new: tuple[Tensor, ...], needed: int, most: int | None) -> None:
        """Room for `needed` positions; where there is not enough, for some more than these, `most` at the most."""
        for index, x in enumerate(new):
            old = self.stores[kind][index] if index < len(self.stores[kind]) else None
            room = 0 if old is None else old.shape[2]
            if old is not None and room >= needed:
                continue
            size = needed if old is None else max(needed, room + self.block.growth)
            size = size if most is None else min(size, most)
            # A slot of a streaming head may be multiplied, masked, before it is filled, and garbage may be infinite.
            make = x.new_zeros if kind else x.new_empty
            grown = make(*x.shape[:2], size, x.shape[3])
            if old is None:
                self.stores[kind].append(grown)
            else:
                grown[:, :, :room] = old
                self.stores[kind][index] = grown

    def _stream(self, call: Call, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store streaming heads' keys and values as far as they are needed, and attend: [b, q, h, f]."""
        past, num_rows, most = self.length, query.shape[2], self.sink + self.recent
        total = past + num_rows
        self._make_room(1, (key, value), min(total, most), most)
        self._store_sinks(key, value)
        if num_rows == 1:
            self._store_recent(key, value)
            keys, values = (store[:, :, : min(total, most)] for store in self.stores[1])
            return call.run(query, keys, values, self._step(call, query, total))
        if total <= most and not past:  # no row loses a key
            out = call.run(query, key, value, of_heads(call.mask, self.heads[1]))
        else:
            out = self._blocks(call, query, key, value)
        self._store_recent(key, value)
        return out

    def _store_sinks(self, *new: Tensor) -> None:
        past, total = self.length, self.length + new[0].shape[2]
        count, texts = min(self.sink, total), self.texts
        if texts.begins is None:
            if past < self.sink:
                for store, x in zip(self.stores[1], new, strict=True):
                    store[:, :, past:count] = x[:, :, : count - past]
        elif texts.waiting or past < texts.latest + self.sink:
            # Each text from its own begin: its first keys may come in this piece, in the one before, or in both.
            positions = texts.sinks(count, new[0].device).expand(len(new[0]), -1)
            comes = ((positions >= past) & (positions < total))[:, None, :, None]
            index = (positions - past).clamp(0, total - past - 1)[:, None, :, None]
            for store, x in zip(self.stores[1], new, strict=True):
                taken = x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3]))
                store[:, :, :count] = torch.where(comes, taken, store[:, :, :count])

    def _store_recent(self, *new: Tensor) -> None:
        past, total = self.length, self.length + new[0].shape[2]
        first = max(past, total - self.recent, self.sink)
        if first >= total:
            return
        for store, x in zip(self.stores[1], new, strict=True):
            if total - first == 1:
                store[:, :, self._slot(first)] = x[:, :, -1]
            else:
                places = torch.arange(first, total, device=x.device)
                store.index_copy_(2, self._slot(places), x[:, :, first - past :])

    def _slot(self, position: Position) -> Position:
        """Where the ring holds a position, or several."""
        return self.sink + (position - self.sink) % self.recent

    def _step(self, call: Call, query: Tensor, total: int) -> Tensor | None:
        """The mask of a step of one token, on all slots that are filled. None: it sees all of them."""
        texts, device = self.texts, query.device
        if call.mask is None and texts.begins is None:
            return None
        if texts.step is not None and texts.step[0] == total and texts.step[1] is call.mask:
            return texts.step[2].to(device)
        num_held = min(total, self.sink + self.recent)
        sinks, query_position = texts.sinks(min(self.sink, total), device), total - 1
        ring = torch.arange(self.sink, max(self.sink, num_held), device=device)
        ring = (query_position - (query_position - ring) % self.recent)[None].expand(len(sinks), -1)
        in_ring = max(self.sink, total - self.recent)  # the first position that the ring holds
        visible = torch.cat(
            [(sinks <= query_position) & (sinks < in_ring), torch.ones_like(ring, dtype=torch.bool)], -1
        )
        cells = call.cells(query, torch.cat([sinks, ring], -1), visible[:, None], 0, total, self.heads[1])
        if cells.shape[1] == 1:
            texts.step = (total, call.mask, cells)
        return cells

    def _blocks(self, call: Call, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Rows in blocks, each with the texts' first keys, which are stored already, and those of its windows."""
        past, num_rows, device = self.length, query.shape[2], query.device
        # What the ring still holds of the window of the first row, in order, with the new keys behind it.
        begin = min(past, max(self.sink, past - self.recent + 1)) if past else 0
        slots = self._slot(torch.arange(begin, past, device=device))
        window = [torch.cat([store[:, :, slots], x], 2) for store, x in zip(self.stores[1], (key, value), strict=True)]
        sinks = self.texts.sinks(min(self.sink, past + num_rows), device)
        blocks = []
        for row in range(0, num_rows, STREAMED_ROWS):
            stop = min(row + STREAMED_ROWS, num_rows)
            first = max(begin, past + row - self.recent + 1)
            recent = torch.arange(first, past + stop, device=device)[None]
            query_positions = torch.arange(past + row, past + stop, device=device)[:, None]
            # A first key that is also in a row's window counts there, and as a first key where that holds it no more.
            early = sinks[:, None]
            early = (early <= query_positions) & ((early < first) | (early <= query_positions - self.recent))
            late = ((recent > query_positions - self.recent) & (recent <= query_positions)).expand(len(sinks), -1, -1)
            positions = torch.cat([sinks, recent.expand(len(sinks), -1)], -1)
            keys, values = (
                torch.cat([store[:, :, : sinks.shape[1]], x[:, :, first - begin : past + stop - begin]], 2)
                for store, x in zip(self.stores[1], window, strict=True)
            )
            q = query[:, :, row:stop]
            cells = call.cells(q, positions, torch.cat([early, late], -1), row, past + num_rows, self.heads[1])
            blocks.append(call.run(q, keys, values, cells))
        return torch.cat(blocks, 1)


def stock_cache(model: Any) -> DynamicCache:
    """An empty cache of transformers' own, which holds all positions of every head."""
    return DynamicCache(config=model.config)


class StreamingCache(DynamicCache):
    """The transformers `Cache` inside a `streaming` block: its layers hold what a split says.

    `get_seq_length()` is how many positions were read. Layers that are not served (with a window of their own, say,
    where all heads are kept) are transformers' own. Tokens are not taken back (`crop` raises ModelError).
    """

    def __init__(self, block: Streaming) -> None:
        super().__init__(config=block.model.config)
        self.block, self.texts, self.generated = block, Texts(), False
        for number, index in block.places.values():
            self.layers[index] = StreamingLayer(block, number, self.texts)

    def begin(self, layers: Sequence[Any], length: int) -> None:
        """Go on behind the first `length` positions of one text, sink + recent at most, which the model read as it is:
        `layers` are those of the cache that it filled."""
        for index, layer in enumerate(layers):
            own = self.layers[index]
            if isinstance(own, StreamingLayer):
                own.begin(layer.keys[:, :, :length], layer.values[:, :, :length])
            else:
                self.layers[index] = copy.deepcopy(layer)
        self.texts.length = length

    @property
    def held_bytes(self) -> int:
        """Bytes of all storages that hold keys and values now, with what is free in them."""
        tensors: list[Any] = []
        for layer in self.layers:
            if isinstance(layer, StreamingLayer):
                tensors += layer.tensors()
            else:
                tensors += [getattr(layer, name, None) for name in ("keys", "values")] + private_names.states_of(layer)
        return sum(x.untyped_storage().nbytes() for x in tensors if x is not None)

    @property
    def free_bytes(self) -> int:
        """Of these, bytes of positions that are still to come: `held_bytes - free_bytes` is `HeadSplit.cache_bytes`."""
        free = 0
        for layer in self.layers:
            if isinstance(layer, StreamingLayer):
                most = layer.sink + layer.recent
                for used, store in zip((layer.length, min(layer.length, most)), layer.stores, strict=True):
                    free += sum(x[:, :, used:].numel() * x.element_size() for x in store)
        return free

    def reset(self) -> None:
        super().reset()
        self.generated = False
        for name, value in vars(Texts()).items():
            setattr(self.texts, name, value)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # pyright: ignore[reportArgumentType] any tensor of indices
        self.texts.choose(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.texts.choose(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self.texts.choose(lambda x: x[indices.to(x.device)])

    def crop(self, tokens_to_remove: int) -> None:
        raise ModelError(
            f"crop({tokens_to_remove}): a streaming cache has freed the keys before its last positions, so it cannot "
            f"take tokens back."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> StreamingCache:
        """A copy that goes on by itself, in the same block."""
        memo[id(self.block)] = self.block
        new = memo[id(self)] = self.__class__.__new__(self.__class__)
        vars(new).update(copy.deepcopy(vars(self), memo))
        return new
