"""What an architecture is made of, in numbers: its weights, its attention, its layers. Plain data.

Why: a parameter count, a FLOP count and a cache size are sums over the same few facts. Each matrix says once how large
it is, who is multiplied by it, and whether it grows with the key/value heads; each attention says what it sees and what
it keeps. Everything else here is addition (`manyheads.sizing.costs`).
Cost: a model of 100 layers is 100 references to a few values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from manyheads.base import check_groups, whole
from manyheads.errors import ShapeError

# In the order in which tables and pictures list them.
PARTS: tuple[str, ...] = (
    *("embedding", "q", "k", "v", "qkv", "latent", "o"),
    *("feed-forward", "router", "mixer", "norm", "head", "other"),
)
"""Where a parameter can belong. `qkv`: all three in one matrix, where its split is not known; `latent`: MLA's
compression of keys and values; `mixer`: whatever mixes tokens without attention (a convolution, a recurrence);
`other`: the rest (sinks, relative biases, gates, layer scales)."""

REPLICATED = ("norm", "router", "latent", "other")  # parts that each of the GPUs that divide a layer holds whole

TEXT, LAST, SOURCE, ONCE = "text", "last", "source", "once"
"""Which rows are multiplied by a matrix: every token of the text; its last token (a decoder's head, when generating);
every token of the other text that an encoder reads; one row a text (a pooler). Only the first two run when decoding."""


@dataclass(frozen=True)
class Weights:
    """Some parameters of one kind. `size` counts them all, biases included; `matmul` those that each row is multiplied
    by, at 2 FLOPs each (0: looked up, added, or scaled by). Where there are `experts`, both are of one expert, and a
    row goes through `chosen` of them. `size` is 0 where another place owns the numbers (a tied head). `replicated`:
    each of the GPUs that divide a layer holds it whole (norms and routers are so in any case).
    """

    part: str
    size: int
    matmul: int = 0
    experts: int = 1
    chosen: int = 1
    rows: str = TEXT
    per_kv_head: bool = False
    replicated: bool = False

    @property
    def total(self) -> int:
        """Parameters of all experts together."""
        return self.size * self.experts

    @property
    def active(self) -> int:
        """What one token uses."""
        return self.size * self.chosen

    @property
    def stands_whole(self) -> bool:
        """Whether each of the GPUs that divide a layer holds all of it; an activation's own numbers are so as well."""
        activation = self.part == "feed-forward" and not self.matmul
        return self.replicated or self.part in REPLICATED or activation

    def summed_bias(self, embed_dim: int) -> int:
        """Numbers of the last matrix's bias: it is added to the sum of the GPUs, so that each holds all of it."""
        return embed_dim if self.part in ("o", "feed-forward") and self.size > self.matmul else 0


@dataclass(frozen=True)
class Stored:
    """How published weights are stored, as their config.json says: matrices of `parts` in `bits` each, the scales that
    they share counted (MXFP4: 8 bits for 32 numbers), and all else in `rest` bits. `form` is a phrase."""

    form: str
    rest: int | float
    bits: float = 0.0
    parts: tuple[str, ...] = ()

    def num_bytes(self, weights: Iterable[Weights]) -> float:
        """Bytes of all of these, every expert included."""
        num_bits = 0.0
        for weight in weights:
            packed = min(weight.size, weight.matmul) if weight.part in self.parts else 0
            num_bits += weight.experts * (packed * self.bits + (weight.size - packed) * self.rest)
        return num_bits / 8


@dataclass(frozen=True)
class Attention:
    """One attention of a layer: `num_heads` queries of width `qk_dim`, each key/value head shared by the same number.

    `window`: how many tokens a causal row sees at most, itself included. `chunked`: windows do not slide but stand side
    by side. `sheds`: the cache drops what no later token can see. `cross`: keys and values come from the other text.
    `latent`: MLA's cached widths (compressed, rotary), shared by all heads. `cached`: it keeps keys and values of its
    own. Raises ShapeError where heads do not divide.
    """

    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    causal: bool = True
    window: int | None = None
    chunked: bool = False
    sheds: bool = True
    cross: bool = False
    latent: tuple[int, int] | None = None
    cached: bool = True

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_kv_heads", "qk_dim", "v_dim"):
            if getattr(self, name) < 1:
                raise ShapeError(f"{name}={getattr(self, name)}: attention has at least one head of width at least 1.")
        if self.window is not None and (self.window < 1 or not self.causal):
            raise ShapeError(f"window={self.window}, causal={self.causal}: windows are of 1 or more, and causal.")
        check_groups(self.num_heads, self.num_kv_heads)

    @property
    def cache_width(self) -> int:
        """Numbers that one token leaves in the cache."""
        if not self.cached:
            return 0
        return sum(self.latent) if self.latent else self.num_kv_heads * (self.qk_dim + self.v_dim)


@dataclass(frozen=True)
class Streaming:
    """`share` (0 to 1) of the key/value heads see and keep the first `sink` tokens and the last `recent` alone.

    Raises ShapeError for what is not a share or no window.
    """

    share: float
    sink: int
    recent: int

    def __post_init__(self) -> None:
        if type(self.share) not in (int, float) or not 0 <= self.share <= 1:
            raise ShapeError(f"streaming={self.share!r}: give the share of key/value heads that stream, from 0 to 1.")
        for name, least in (("sink", 0), ("recent", 1)):
            whole(name, getattr(self, name), least, ShapeError)


@dataclass(frozen=True)
class LayerShape:
    """One layer. `state`: numbers that it keeps for each text, however long (a recurrence, a convolution), `state32`
    the same where they are kept in 32 bits whatever the cache's dtype. `stack`: "" where a model has only one."""

    weights: tuple[Weights, ...]
    attention: tuple[Attention, ...] = ()
    state: int = 0
    state32: int = 0
    stack: str = ""


@dataclass(frozen=True)
class Architecture:
    """A whole model. `outside` are the weights of no layer: tables, last norms, the head.

    `embed_dim` is the width of the residual stream. `max_positions`: None where nothing sets a limit; it is a hard one
    (`learned_positions`) where each position has a row in a table. `num_tokens`: how many tokens a text always has (an
    image's patches), `num_source` the same of what an encoder reads. `generates`: it decodes token by token, with a
    cache. `because`: where this description comes from and what it leaves out. `untold`: which of "parts", "flops" and
    "cache" it cannot tell, and why: those are never estimated. `stored`: how its published weights are, if known.
    """

    name: str
    family: str
    embed_dim: int
    layers: tuple[LayerShape, ...]
    outside: tuple[Weights, ...] = ()
    vocab_size: int | None = None
    max_positions: int | None = None
    learned_positions: bool = False
    num_tokens: int | None = None
    num_source: int | None = None
    generates: bool = True
    because: tuple[str, ...] = ()
    untold: tuple[tuple[str, str], ...] = ()
    stored: Stored | None = None

    @property
    def weights(self) -> tuple[Weights, ...]:
        """All of them, outside first."""
        return (*self.outside, *(weights for layer in self.layers for weights in layer.weights))

    @property
    def attention(self) -> tuple[Attention, ...]:
        """Every attention of every layer, in order."""
        return tuple(attention for layer in self.layers for attention in layer.attention)

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model; a tied head counts once."""
        return sum(weights.total for weights in self.weights)

    @property
    def num_active(self) -> int:
        """Parameters that one token uses; all of them unless there are experts."""
        return sum(weights.active for weights in self.weights)

    @property
    def has_source(self) -> bool:
        """Whether it reads a second text: an encoder's."""
        return any(attention.cross for attention in self.attention)

    def why_untold(self, what: str) -> str:
        """Why "parts", "flops" or "cache" cannot be told; "" where it can."""
        return dict(self.untold).get(what, "")

    def with_kv_heads(self, count: int | None, *, parts_told: bool = True) -> Architecture:
        """The same with `count` key/value heads in every attention; None: as many as query heads (MHA).

        Raises ShapeError where that does not divide, where there is no attention, for latents, which all heads share
        already, and, where `parts_told` matters, if it cannot be told which parameters depend on it.
        """
        if not self.attention:
            raise ShapeError(f"num_kv_heads={count}: {self.name} has no attention.")
        if any(attention.latent for attention in self.attention):
            raise ShapeError(
                f"num_kv_heads={count}: {self.name} caches latents (MLA), which all heads share: there are no "
                f"key/value heads to choose. Its sizing shows what keeping every head's keys and values would take."
            )
        if parts_told and self.why_untold("parts"):
            raise ShapeError(f"num_kv_heads={count}: {self.name} cannot be changed: {self.why_untold('parts')}.")
        # A deep model has few kinds of layers, and equal layers stay one object.
        changed: dict[LayerShape, LayerShape] = {}
        for layer in dict.fromkeys(self.layers):
            attention = tuple(replace(item, num_kv_heads=count or item.num_heads) for item in layer.attention)
            weights = layer.weights
            if attention:
                # A layer's second attention (over the other text) has as many heads as its first: one ratio is enough.
                new, old = attention[0].num_kv_heads, layer.attention[0].num_kv_heads
                weights = tuple(
                    replace(weight, size=weight.size * new // old, matmul=weight.matmul * new // old)
                    if weight.per_kv_head
                    else weight
                    for weight in weights
                )
            changed[layer] = replace(layer, attention=attention, weights=weights)
        return replace(self, layers=tuple(changed[layer] for layer in self.layers))

    def with_streaming(self, streaming: Streaming) -> Architecture:
        """The same where some heads stream, as many as that share comes to (rounded), spread evenly over the layers.

        Heads that can stream are those with keys and values of their own that see more than `sink + recent` tokens. An
        attention whose heads differ becomes two; what depends on its heads' number (`with_kv_heads`, weights) is to be
        read from the architecture that this one is made of. Raises ShapeError where no head can stream.
        """
        window = streaming.sink + streaming.recent

        def can(attention: Attention) -> bool:
            longer = attention.window is None or (attention.window > window and not attention.chunked)
            return attention.causal and attention.cached and not attention.cross and not attention.latent and longer

        total = sum(attention.num_kv_heads for attention in self.attention if can(attention))
        if not total or not self.generates:
            raise ShapeError(
                f"streaming={streaming.share}: no head of {self.name} has its own cache of more than {window:,} tokens."
            )
        num_streaming, before, layers = round(streaming.share * total), 0, list[LayerShape]()
        for layer in self.layers:
            parts: list[Attention] = []
            for attention in layer.attention:
                count, group = 0, attention.num_heads // attention.num_kv_heads
                if can(attention):
                    first, before = before, before + attention.num_kv_heads
                    count = num_streaming * before // total - num_streaming * first // total
                for kv_heads, changes in (
                    (attention.num_kv_heads - count, {}),
                    (count, {"window": window, "sheds": True}),
                ):
                    if kv_heads:
                        heads = {"num_heads": kv_heads * group, "num_kv_heads": kv_heads}
                        parts.append(replace(attention, **heads, **changes))
            layers.append(replace(layer, attention=tuple(parts)))
        return replace(self, layers=tuple(layers))


def by_part(weights: tuple[Weights, ...]) -> Mapping[str, int]:
    """Part -> parameters, in the order of PARTS; parts that have none are left out."""
    sums = dict.fromkeys(PARTS, 0)
    for weight in weights:
        sums[weight.part] += weight.total
    return {part: count for part, count in sums.items() if count}


def kind_of(architecture: Architecture | LayerShape) -> str:
    """MHA, MQA, GQA-8 (its key/value heads), MLA, mixed where layers differ, or "" without attention."""
    kinds = {
        "MLA"
        if attention.latent
        else "MHA"
        if attention.num_kv_heads == attention.num_heads
        else f"GQA-{attention.num_kv_heads}"
        for attention in architecture.attention
    }
    kind = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else ""
    return "MQA" if kind == "GQA-1" else kind
