"""`SplitLayer`, one layer of a split of heads, and what a writer of lists of heads reads of a whole split."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

from manyheads.heads import HeadSet
from manyheads.spec import MOST, Site

MOST_HEADS = 1 << 17  # of a model, as a file may claim them: they are listed one by one
JoinedBy = Literal["group", "maximum", "mean", "none"]


@dataclass(frozen=True)
class SplitLayer:
    """A layer's key/value heads: `kept[g]` is whether head g keeps everything, `scores[g]` how much it needs that.

    `query_scores[h]` is the same for each query head where query heads were measured one by one, else empty. `window`:
    how many positions a row of the layer sees at most, 0 where it sees all. A layer without attention has no heads, and
    its tuples are empty.
    """

    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    kept: tuple[bool, ...]
    scores: tuple[float, ...]
    query_scores: tuple[float, ...] = ()
    window: int = 0


@runtime_checkable  # for the tests, which check types
class Split(Protocol):
    """What a writer reads of a `HeadSplit`, whose fields these are."""

    @property
    def model(self) -> str: ...
    @property
    def weights_hash(self) -> str: ...
    @property
    def stack(self) -> str: ...
    @property
    def layers(self) -> tuple[SplitLayer, ...]: ...
    @property
    def sink(self) -> int: ...
    @property
    def recent(self) -> int: ...
    @property
    def unit(self) -> str: ...
    @property
    def joined(self) -> JoinedBy: ...
    @property
    def retrieval(self) -> HeadSet: ...


def shape_of(site: Site | None) -> tuple[int, int, int, int]:
    """Query heads, key/value heads, and the widths of keys and values of a layer; zeros where it has no attention."""
    return (0, 0, 0, 0) if site is None else (site.num_heads, site.num_kv_heads, site.qk_dim, site.v_dim)


def described(shapes: tuple[tuple[int, int, int, int], ...]) -> str:
    """ "28 layers of 16 heads on 8 of 128", or of layers that are not alike, which shapes there are."""
    kinds = [
        f"{heads} heads on {kv_heads} of {qk_dim}" for heads, kv_heads, qk_dim, _ in dict.fromkeys(shapes) if heads
    ]
    return f"{len(shapes)} layers of {' or '.join(kinds) or 'no heads'}"


def layers_of(lm: Any, stack: str) -> tuple[Site | None, ...]:
    """The sites of a stack by the model's own number of the layer; None where a layer has no attention.

    As many as the config counts, so that a table has the rows that its readers expect, though the last of the layers
    may not attend. A stack that has a name is counted to its last site: configs count others in other ways.
    """
    sites = {site.layer: site for site in lm.spec.stacks.get(stack, ())}
    config: Any = getattr(lm.model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    counted = 0 if stack else getattr(config, "num_hidden_layers", None) or 0
    return tuple(sites.get(number) for number in range(max(1 + max(sites, default=-1), counted)))


def split_layers(
    lm: Any,
    stack: str,
    kept: Mapping[int, Any],
    scores: Mapping[int, Any],
    query_scores: Mapping[int, Any],
    windows: Mapping[int, int] = MappingProxyType({}),
) -> tuple[SplitLayer, ...]:
    """The layers of a split of a model, from what is known of each layer that attends: which heads are kept, scores.

    `query_scores` and `windows` may be empty. A layer without attention has no heads.
    """
    return tuple(
        SplitLayer(
            *shape_of(site),
            tuple(bool(value) for value in kept.get(number, ())),
            tuple(float(value) for value in scores.get(number, ())),
            tuple(float(value) for value in query_scores.get(number, ())),
            windows.get(number, 0),
        )
        for number, site in enumerate(layers_of(lm, stack))
    )


def layer_in(entry: Mapping[str, Any], number: int) -> SplitLayer:
    """A layer as `HeadSplit.to_dict` gives it. Errors: TypeError and ValueError for what is not a layer's."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    layer = SplitLayer(**values)
    sizes = (layer.num_heads, layer.num_kv_heads, layer.qk_dim, layer.v_dim, layer.window)
    if any(type(size) is not int or not 0 <= size <= MOST for size in sizes):
        raise ValueError(f"layer {number} has a size that is not a whole number up to {MOST:,}")
    if bool(layer.num_heads) != bool(layer.num_kv_heads) or layer.num_heads % max(1, layer.num_kv_heads):
        raise ValueError(f"layer {number}: {layer.num_heads} heads do not share {layer.num_kv_heads} key/value heads")
    lengths = (len(layer.kept), len(layer.scores))
    if lengths != (layer.num_kv_heads,) * 2 or len(layer.query_scores) not in (0, layer.num_heads):
        raise ValueError(f"layer {number} has other lists than its {layer.num_kv_heads} key/value heads need")
    if any(type(keeps) is not bool for keeps in layer.kept):
        raise ValueError(f"layer {number}: kept={layer.kept} are not true or false")
    if any(type(score) not in (int, float) or not math.isfinite(score) for score in layer.scores + layer.query_scores):
        raise ValueError(f"layer {number}: a score is no finite number")
    return layer
