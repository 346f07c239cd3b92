"""Several GPUs: what each of them holds of a model, what is left for the cache, and how many texts go into that.

Each layer is divided over `tensor` GPUs, and the layers over `pipeline` stages of such GPUs, as serving engines do it
(Shoeybi et al. 2019, Megatron-LM, section 3; Narayanan et al. 2021, section 2.2):

- q, k, v, the feed-forward, its experts, the words' table and the head are divided. Norms, routers, positions and the
  biases that are added after the GPUs' sums stand on each GPU.
- A GPU keeps the key/value heads of its own query heads. Where there are more GPUs than such heads, a head stands on
  several: more GPUs then make room for weights, and none for the cache.
- MLA's latents belong to every head, so that each GPU keeps all of them; a pipeline divides them by layers.
- Layers that do not divide evenly go to the later stages but the last, which has the head. Where the head is tied to
  the table of words and there are several stages, the last one has its own copy.

The cache is counted in blocks, as vLLM does (its documentation, version 0.26: `vllm.v1.kv_cache_interface`, and
*Hybrid KV Cache Manager*): a text takes ceil(tokens / block) blocks of a layer that sees all; of one with a window
ceil(min(tokens, window - 1 + chunk) / block) + 1, for a window need not begin where a block does. Kinds of layers that
keep equally many bytes share one pool: they are put in groups of equally many layers, the last one filled up. Full
blocks of a prefix that all texts begin with are kept once.

Activations are those of a prompt's chunk at the widest place of a layer, counted tensor by tensor: the residual stream
and its norm, and either q, k, v and what the heads give, or the feed-forward's inner numbers; besides, a row of logits
for each text. An engine's own buffers, communication and fragments are in the share that stays free.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import ClassVar, NamedTuple

from manyheads import units
from manyheads.base import Json, brief, divisors, plural, whole
from manyheads.errors import ModelError, ShapeError
from manyheads.results import Shown
from manyheads.sizing.architecture.architecture import Architecture, Attention, LayerShape, Weights
from manyheads.sizing.memory import FAR, PUBLISHED, Ask, Fit, checked_overhead, memory_bytes

BLOCK = 16
"""Tokens in a block of the cache, by default: vLLM's default."""

CHUNK = 2048
"""Tokens of prompts that are computed at once unless said: vLLM's default (`max_num_batched_tokens`)."""

MOST_GPUS = 1024
NARROW = 1.5  # from vLLM: below this ratio of the kinds' layers the larger number is a group's, else the smaller
LOGIT_BYTES = 4  # beside those of the activations: they are sampled from in float32


@dataclass(frozen=True)
class Stage:
    """What each of the `tensor` GPUs of a pipeline's stage holds: `layers` of the model, from `first_layer` on, with
    `num_kv_heads` key/value heads of each (None: latents, or layers that differ), `num_parameters`, and what fits
    beside these. `blocks`: of the cache, in one pool; None where layers keep different numbers of bytes."""

    first_layer: int
    num_layers: int
    num_kv_heads: int | None
    num_parameters: int
    blocks: int | None
    tokens: int | None
    fit: Fit


@dataclass(frozen=True)
class Placement(Shown):
    """A model on `tensor` x `pipeline` equal GPUs, and how many texts they serve.

    `memory_bytes`: of one GPU. `block`: tokens of a block of the cache; `prefix`: tokens that all texts begin with;
    `chunk`: prompt tokens computed at once; `overhead`: the share of each memory that stays free. `enough`: the
    smallest number of such GPUs, layers divided over all of them, that holds these texts, where this one does not; None
    where none up to 64 does.
    """

    name: str
    dtype: str
    cache_dtype: str
    memory_bytes: int
    tensor: int
    pipeline: int
    block: int
    prefix: int
    chunk: int
    overhead: float
    stages: tuple[Stage, ...] = ()
    enough: int | None = None

    default_block: ClassVar[int] = BLOCK
    default_chunk: ClassVar[int] = CHUNK

    @property
    def num_gpus(self) -> int:
        """How many GPUs there are."""
        return self.tensor * self.pipeline

    @property
    def fits(self) -> bool:
        """Whether weights, activations and the cache of the texts that were sized fit on every GPU."""
        return all(stage.fit.fits for stage in self.stages)

    @property
    def tokens(self) -> int | None:
        """Tokens that the cache holds in all, a shared prefix counted once; None where that depends on how long each
        text is, for some layers have windows or keep a state."""
        return _least([stage.tokens for stage in self.stages])

    @property
    def longest_context(self) -> int | None:
        """How long each of the texts that were sized may be; 0 if not one token, None where memory sets no limit."""
        return _least([stage.fit.longest_context for stage in self.stages])

    @property
    def largest_batch(self) -> int | None:
        """How many texts of that context there may be; None where nothing is kept."""
        return _least([stage.fit.largest_batch for stage in self.stages])

    @property
    def past_positions(self) -> bool:
        """Whether memory would hold longer texts than the model is made for."""
        return all(stage.fit.past_positions for stage in self.stages)

    def __str__(self) -> str:
        fit = self.stages[0].fit
        where = f"{self.num_gpus} x {units.brief(self.memory_bytes, units.DECIMAL)}"
        subject = f"{self.name} {'as' if self.dtype == PUBLISHED else 'in'} {self.dtype}"
        if self.cache_dtype != self.dtype:
            subject += f", its cache in {self.cache_dtype},"
        texts = f"{plural(fit.batch, 'text')} of {plural(fit.context, 'token')}"
        if not self.fits:
            worst = max(self.stages, key=lambda stage: stage.fit.missing_bytes).fit
            what = texts if worst.weights_fit else "the weights alone"
            sentences = [
                f"{subject} does not fit on {where}: {units.gb(worst.missing_bytes)} are missing on a GPU for {what}"
                f"{'' if worst.weights_fit else f', counted with the cache of {texts}'}."
            ]
            if worst.weights_fit and self.longest_context and self.longest_context < fit.context:
                sentences.append(f"Texts of {self.longest_context:,} tokens would fit.")
            if self.enough:
                sentences.append(f"{self.enough} of these GPUs would do.")
            return " ".join(sentences)
        if self.largest_batch is None:
            return f"{subject} fits on {where}: any number of texts, for it keeps no cache."
        batch = f"a batch of {self.largest_batch:,} at {fit.context:,}"
        if self.prefix:
            batch += f", the first {self.prefix:,} of each shared"
        if self.tokens is not None:
            return f"{subject} fits on {where}: up to {self.tokens:,} tokens in all, e.g. {batch}."
        longest = "be of any length" if self.longest_context is None else f"have {self.longest_context:,} tokens"
        one = "one text" if fit.batch == 1 else f"{fit.batch:,} texts"
        return f"{subject} fits on {where}: up to {batch}; {one} may {longest}."

    def __repr__(self) -> str:
        return brief(f"Placement({self})")

    def to_dict(self) -> Json:
        """As plain data for JSON: the fields, and `num_gpus`, `fits`, `tokens`, `longest_context`, `largest_batch`."""
        names = ("num_gpus", "fits", "tokens", "longest_context", "largest_batch", "past_positions")
        stages = [{**asdict(stage), "fit": stage.fit.to_dict()} for stage in self.stages]
        return {**asdict(self), **{name: getattr(self, name) for name in names}, "stages": stages}


def parsed_gpus(gpus: str) -> tuple[int, int]:
    """How many GPUs, and the bytes of one: "4x80GB", "8 x 141 GB", "80GB" for one. Raises ShapeError."""
    match = re.fullmatch(r"\s*(?:(\d{1,9})\s*[x×*]\s*)?(\d[\d.]*\s*[a-z]*)\s*", str(gpus), re.IGNORECASE)
    if match is None:
        raise ShapeError(f"gpus={gpus!r}: give how many and how large each is, as '4x80GB' or '8 x 141 GB'.")
    count = int(match[1] or 1)
    if not 1 <= count <= MOST_GPUS:
        raise ShapeError(f"gpus={gpus!r}: give from 1 to {MOST_GPUS:,} GPUs.")
    try:
        return count, memory_bytes(match[2])
    except ShapeError as error:
        raise ShapeError(f"gpus={gpus!r}: {error}") from error


def divided(count: int, tensor: int | None, pipeline: int) -> int:
    """Over how many of `count` GPUs each layer is divided: `tensor`, or all of a stage. Raises ShapeError."""
    whole("pipeline", pipeline, 1, ShapeError)
    if tensor is None:
        if count % pipeline:
            raise ShapeError(
                f"{pipeline=}: {count} GPUs cannot be divided into that number of stages. Use one of {divisors(count)}."
            )
        tensor = count // pipeline
    whole("tensor", tensor, 1, ShapeError)
    if tensor * pipeline != count:
        raise ShapeError(
            f"{tensor=} times {pipeline=} is {tensor * pipeline}, and gpus= says {count}: give numbers whose product "
            f"that is, or size one copy of the model, as on '{tensor * pipeline}x...'."
        )
    return tensor


def place(architecture: Architecture, ask: Ask, placement: Placement) -> Placement:
    """The placement with its stages, and how many GPUs would do where these do not. Errors: as `Sizing.on`."""
    checked_overhead(placement.overhead)
    for name, least in (("block", 1), ("chunk", 1), ("prefix", 0)):
        whole(name, getattr(placement, name), least, ShapeError)
    if placement.prefix >= ask.context:
        raise ShapeError(
            f"prefix={placement.prefix}: texts of context={ask.context:,} tokens have at least one of their own beside "
            f"it."
        )
    placement = replace(placement, stages=_stages(architecture, ask, placement))
    if placement.fits:
        return placement
    for count in (2**power for power in range(1, 7) if 2**power > placement.num_gpus):
        with suppress(ShapeError):  # heads do not divide over so many
            larger = replace(placement, tensor=count, pipeline=1)
            if replace(larger, stages=_stages(architecture, ask, larger)).fits:
                return replace(placement, enough=count)
    return placement


# ---------------------------------------------------------------------------------------------------------------------
# What a GPU holds.


def shards(architecture: Architecture, tensor: int, pipeline: int) -> list[Architecture]:
    """What each GPU of each stage holds, as an architecture of its own: its layers, their part of each matrix, and the
    heads whose keys and values it keeps. Raises ShapeError or ModelError for what cannot be divided so."""
    name, num_layers = architecture.name, len(architecture.layers)
    if why := architecture.why_untold("cache"):
        raise ModelError(f"what fits on GPUs is not known for {name}, since its cache is not: {why}.")
    if not architecture.generates or architecture.has_source or any(layer.stack for layer in architecture.layers):
        raise ShapeError(
            f"{name} is not a decoder: GPUs are counted for models that write token by token, in one stack."
        )
    if pipeline > num_layers:
        raise ShapeError(f"{pipeline=}: {name} has {plural(num_layers, 'layer')}, and a stage has at least one.")
    if tensor > 1 and (why := architecture.why_untold("parts")):
        raise ModelError(f"{tensor=}: how {name} would be divided cannot be told: {why}.")
    for attention in dict.fromkeys(architecture.attention):
        check_heads(name, attention, tensor)
    # vLLM's `get_pp_indices`: what does not divide goes to the stages before the last, one layer each.
    in_each, more = divmod(num_layers, pipeline)
    counts = [in_each + (pipeline - more - 1 <= stage < pipeline - 1) for stage in range(pipeline)]
    kinds = {layer: _layer_shard(layer, tensor, architecture.embed_dim) for layer in dict.fromkeys(architecture.layers)}
    shard_list: list[Architecture] = []
    first = 0
    for stage, count in enumerate(counts):
        outside: list[Weights] = []
        for weight in architecture.outside:
            is_last, is_table = stage == pipeline - 1, weight.part == "embedding"
            if is_last and weight.part == "head" and pipeline > 1 and weight.size < weight.matmul:
                weight = replace(weight, size=weight.size + weight.matmul)  # tied: a copy of the table, far from it
            if stage == 0 if is_table else is_last:
                outside.append(_weight_shard(weight, tensor, Fraction(1), architecture.embed_dim))
        layers = tuple(kinds[layer] for layer in architecture.layers[first : first + count])
        shard_list.append(replace(architecture, layers=layers, outside=tuple(outside)))
        first += count
    return shard_list


def check_heads(name: str, attention: Attention, tensor: int) -> None:
    """That so many GPUs can share the heads of an attention. Raises ShapeError naming those that can."""
    heads, kv_heads = attention.num_heads, attention.num_kv_heads

    def can(count: int) -> bool:
        return heads % count == 0 and (kv_heads % count == 0 or count % kv_heads == 0)

    if not can(tensor):
        choices = [count for count in divisors(heads) if can(count)]
        grouped = "" if kv_heads == heads else f" on {plural(kv_heads, 'key/value head')}"
        raise ShapeError(
            f"{tensor=}: {plural(heads, 'head')}{grouped} of {name} do not divide over {tensor} GPUs. Use one of "
            f"{choices}, and pipeline= for the rest."
        )


def _layer_shard(layer: LayerShape, tensor: int, embed_dim: int) -> LayerShape:
    attention = tuple(
        replace(
            item,
            num_heads=item.num_heads // tensor,
            num_kv_heads=item.num_heads // tensor if item.latent else max(1, item.num_kv_heads // tensor),
        )
        for item in layer.attention
    )
    kv_share, kv_part = Fraction(1, tensor), Fraction(0)
    if attention and not attention[0].latent:
        kv_share = Fraction(attention[0].num_kv_heads, layer.attention[0].num_kv_heads)
        # Of q, k and v in one matrix: what k and v are of it.
        whole_heads = layer.attention[0]
        kv_width = whole_heads.num_kv_heads * (whole_heads.qk_dim + whole_heads.v_dim)
        kv_part = Fraction(kv_width, kv_width + whole_heads.num_heads * whole_heads.qk_dim)
    weights = tuple(_weight_shard(weight, tensor, kv_share, embed_dim, kv_part) for weight in layer.weights)
    return replace(
        layer,
        weights=weights,
        attention=attention,
        state=ceil(layer.state / tensor),
        state32=ceil(layer.state32 / tensor),
    )


def _weight_shard(
    weight: Weights, tensor: int, kv_share: Fraction, embed_dim: int, kv_part: Fraction = Fraction(0)
) -> Weights:
    """A GPU's part of a matrix, or all of it."""
    if tensor == 1 or weight.stands_whole:
        return weight
    share = Fraction(1, tensor)
    if weight.per_kv_head:
        share = kv_share
    elif weight.part == "qkv":
        share = (1 - kv_part) / tensor + kv_part * kv_share
    bias = weight.summed_bias(embed_dim)
    return replace(weight, size=ceil((weight.size - bias) * share) + bias, matmul=ceil(weight.matmul * share))


# ---------------------------------------------------------------------------------------------------------------------
# What fits beside it.


def _least(numbers: Sequence[int | None]) -> int | None:
    """The smallest, where None sets no limit."""
    return min((number for number in numbers if number is not None), default=None)


class Kind(NamedTuple):
    """Layers whose cache is alike: numbers that a token leaves in one, and its window."""

    width: int
    window: int | None
    chunked: bool


def _kinds(architecture: Architecture) -> Counter[Kind]:
    kinds: Counter[Kind] = Counter()
    for attention in architecture.attention:
        if attention.cache_width:
            window = attention.window if attention.sheds else None
            kinds[Kind(attention.cache_width, window, attention.chunked and window is not None)] += 1
    return kinds


def _stages(architecture: Architecture, ask: Ask, placement: Placement) -> tuple[Stage, ...]:
    """What each GPU of each stage of a placement holds."""
    limit = architecture.max_positions if architecture.learned_positions else None
    parts = shards(architecture, placement.tensor, placement.pipeline)
    group_counts = _groups(
        _kinds(replace(architecture, layers=tuple(layer for part in parts for layer in part.layers)))
    )
    stages: list[Stage] = []
    first = 0
    for index, part in enumerate(parts):
        kinds = _kinds(part)
        cache = _Cache(kinds, group_counts, part, ask, placement)
        size_bytes = placement.memory_bytes
        free_bytes, weight_bytes = int(size_bytes * placement.overhead), ask.weight_bytes(part.weights)
        logit_bytes = _logit_bytes(part, ask) if index == placement.pipeline - 1 else 0.0
        activation_bytes = _activation_bytes(part, ask, placement.chunk) + ask.batch * logit_bytes
        room = size_bytes - free_bytes - weight_bytes - activation_bytes
        heads = {attention.num_kv_heads for attention in part.attention if not attention.latent}
        fit = Fit(
            name=architecture.name,
            memory_bytes=size_bytes,
            overhead_bytes=free_bytes,
            weight_bytes=weight_bytes,
            cache_bytes=cache.needs(ask.context),
            context=ask.context,
            batch=ask.batch,
            longest_context=cache.longest(room, limit),
            largest_batch=cache.largest(room, logit_bytes),
            positions=architecture.max_positions,
            activation_bytes=activation_bytes,
        )
        stages.append(
            Stage(
                first_layer=first,
                num_layers=len(part.layers),
                num_kv_heads=heads.pop() if len(heads) == 1 else None,
                num_parameters=part.num_parameters,
                blocks=cache.blocks(room),
                tokens=cache.tokens(room),
                fit=fit,
            )
        )
        first += len(part.layers)
    return tuple(stages)


def _groups(kinds: Counter[Kind]) -> Mapping[tuple[int | None, bool], int]:
    """Into how many groups of layers each kind goes, where all keep equally many bytes and see differently far."""
    if len(kinds) < 2 or len({kind.width for kind in kinds}) > 1:
        return {}
    fewest, most = min(kinds.values()), max(kinds.values())
    size = most if most < fewest * NARROW else fewest
    return {(kind.window, kind.chunked): ceil(count / size) for kind, count in kinds.items()}


@dataclass(frozen=True)
class _Cache:
    """The cache of one GPU, in bytes: what texts share, and what each takes."""

    kinds: Counter[Kind]
    groups: Mapping[tuple[int | None, bool], int]
    architecture: Architecture
    ask: Ask
    placement: Placement

    @cached_property
    def state_bytes(self) -> float:
        """What a text takes however long it is."""
        layers = self.architecture.layers
        return self.ask.cache_bytes(sum(layer.state for layer in layers)) + 4 * sum(layer.state32 for layer in layers)

    @cached_property
    def layers(self) -> Mapping[Kind, int]:
        """How many layers of each kind are set aside: more than there are where the last group is filled up."""
        if not self.groups:
            return self.kinds
        size = max(ceil(count / self.groups[kind.window, kind.chunked]) for kind, count in self.kinds.items())
        return {kind: size * self.groups[kind.window, kind.chunked] for kind in self.kinds}

    def page(self, kind: Kind) -> float:
        """Bytes of a block of one layer."""
        return self.ask.cache_bytes(self.placement.block * kind.width)

    def bytes_at(self, context: int) -> tuple[float, float]:
        """What all texts of that length share, and what each of them takes besides."""
        shared, own, block = 0.0, self.state_bytes, self.placement.block
        for kind, count in self.layers.items():
            length = (
                context
                if kind.window is None
                else min(context, kind.window - (not kind.chunked) + self.placement.chunk)
            )
            blocks = ceil(length / block) + (kind.window is not None and not kind.chunked)
            common = max(0, length - (context - self.placement.prefix)) // block
            shared += self.page(kind) * count * common
            own += self.page(kind) * count * (blocks - common)
        return shared, own

    def needs(self, context: int) -> float:
        """Bytes of all texts that were asked for, were they of that length."""
        shared, own = self.bytes_at(context)
        return shared + self.ask.batch * own

    def largest(self, room: float, logit_bytes: float) -> int | None:
        """How many texts of the context that was asked for go into so many bytes, each with its own row of logits."""
        shared, own = self.bytes_at(self.ask.context)
        free = room + self.ask.batch * logit_bytes - shared
        return None if not own else max(0, int(free // (own + logit_bytes)))

    def longest(self, room: float, limit: int | None) -> int | None:
        """How long all texts may be."""
        least, most = self.placement.prefix + 1, limit or FAR
        if self.needs(least) > room or room < 0:
            return 0
        if limit is None and self.needs(FAR) <= room:
            return None
        return least - 1 + bisect_right(range(least, most + 1), room, key=self.needs)

    def blocks(self, room: float) -> int | None:
        """Blocks of the one pool that all layers of equally many bytes share."""
        widths = {kind.width for kind in self.kinds}
        if len(widths) != 1 or self.state_bytes:
            return None
        together = max(self.layers[kind] // self.groups.get((kind.window, kind.chunked), 1) for kind in self.kinds)
        return max(0, int(room // self.page(next(iter(self.kinds))) // together))

    def tokens(self, room: float) -> int | None:
        """Tokens that go into so many bytes; None where some layers, or a state, do not grow with each token."""
        if not self.kinds or self.state_bytes or any(kind.window is not None for kind in self.kinds):
            return None
        together = sum(self.page(kind) * count for kind, count in self.kinds.items())
        return max(0, int(room // together)) * self.placement.block


def _logit_bytes(part: Architecture, ask: Ask) -> float:
    """What the logits of one text take."""
    return (part.vocab_size or 0) * (ask.number_bits / 8 + LOGIT_BYTES)


def _activation_bytes(part: Architecture, ask: Ask, chunk: int) -> float:
    """What a chunk of prompts takes at the widest place of a layer."""
    widest = 0
    for layer in dict.fromkeys(part.layers):
        # q and what the heads give, k and v: of MLA those of every head of this GPU, made anew for a prompt.
        heads = sum((item.num_heads + item.num_kv_heads) * (item.qk_dim + item.v_dim) for item in layer.attention)
        inner = 0
        for weight in layer.weights:
            if weight.part == "feed-forward" and weight.matmul:
                # Each matrix reads or writes the residual stream; experts' answers stand side by side before the sum.
                inner += weight.chosen * (weight.matmul // part.embed_dim)
                inner += weight.chosen * part.embed_dim if weight.experts > 1 else 0
        widest = max(widest, heads, inner)
    return ask.number_bits / 8 * chunk * (2 * part.embed_dim + widest)
