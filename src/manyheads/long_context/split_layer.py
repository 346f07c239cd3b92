"""`SplitLayer`, one layer of a split of heads, and what those who read and write splits and lists of heads share."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float64

from manyheads.base import no_access, read_bytes, replacing
from manyheads.errors import FileAccessError, HeadError
from manyheads.heads import HeadSet
from manyheads.models import LoadedModel, text_config_of
from manyheads.spec import MOST, Site

LARGEST_FILE = 16 * 2**20  # bytes, which as JSON may take 0.5 GB; 126 layers of 128 heads come to 1 MB
MOST_HEADS = 1 << 17  # of a model, as a file may claim them: they are listed one by one
APART = 1e-5  # DuoAttention adds noise of up to 1e-6 to gates before it divides them
JoinedBy = Literal["group", "maximum", "mean", "none"]
Table = Float64[np.ndarray, "layers heads"]
T = TypeVar("T")


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

    def by_query(self, values: Iterable[T]) -> list[T]:
        """What is so of key/value heads, for each of their query heads."""
        return [value for value in values for _ in range(self.num_heads // max(1, self.num_kv_heads))]

    def of_query(self) -> Sequence[float]:
        """A score for each query head: its own, or that of its group."""
        return self.query_scores or self.by_query(self.scores)

    def joined(self, how: str) -> list[float]:
        """The scores of query heads as one for each key/value head."""
        size = self.num_heads // max(1, self.num_kv_heads)
        return [
            join_scores(self.query_scores[size * index : size * (index + 1)], how) for index in range(self.num_kv_heads)
        ]


def join_scores(values: Sequence[float], how: str) -> float:
    """The scores of a group's query heads as one: their mean, else the largest."""
    # Equal numbers have that mean, which a division could miss by a rounding.
    return math.fsum(value / len(values) for value in values) if how == "mean" and len({*values}) > 1 else max(values)


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


def layers_of(lm: LoadedModel, stack: str) -> tuple[Site | None, ...]:
    """The sites of a stack by the model's own number of the layer; None where a layer has no attention.

    As many as the config counts, so that a table has the rows that its readers expect, though the last of the layers
    may not attend. A stack that has a name is counted to its last site: configs count others in other ways.
    """
    sites = {site.layer: site for site in lm.spec.stacks.get(stack, ())}
    counted = 0 if stack else getattr(text_config_of(lm.model), "num_hidden_layers", None) or 0
    return tuple(sites.get(number) for number in range(max(1 + max(sites, default=-1), counted)))


def split_layers(
    lm: LoadedModel,
    stack: str,
    kept: Mapping[int, Any],
    scores: Mapping[int, Any],
    query_scores: Mapping[int, Any],
    windows: Mapping[int, int] = MappingProxyType({}),
) -> tuple[SplitLayer, ...]:
    """The layers of a split of a model, from what is known of each layer that attends: which heads are kept, scores.

    - `lm`: the model.
    - `stack`: the one that is split.
    - `kept`: by layer, a flag for each key/value head.
    - `scores`: by layer, a number for each key/value head.
    - `query_scores`: by layer, a number for each query head; may be empty.
    - `windows`: by layer, how many positions a row sees at most; may be empty.

    A layer without attention has no heads.
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
        raise ValueError(f"layer {number} has lists that do not fit its {layer.num_kv_heads} key/value heads")
    if any(type(keeps) is not bool for keeps in layer.kept):
        raise ValueError(f"layer {number}: kept={layer.kept} are not true or false")
    if any(type(score) not in (int, float) or not math.isfinite(score) for score in layer.scores + layer.query_scores):
        raise ValueError(f"layer {number}: a score is not a finite number")
    return layer


# --------------------------------------------------------------------------------------------------- numbers of a split


def num_kept(split: Split) -> int:
    """How many key/value heads keep everything."""
    return sum(sum(layer.kept) for layer in split.layers)


def puts_first(
    split: Split, scores: Iterable[Sequence[float]], written: Iterable[Sequence[float]] | None = None
) -> bool:
    """Whether the kept heads have the largest scores, a clear step above all others, and budgets can be made of them.

    Budgets are shares of a sum: what is `written`, the scores unless given, must be from 0 to 1, and not all 0.
    """
    scores = list(scores)
    largest: list[float] = []
    smaller = [0.0 for layer in split.layers if not layer.num_heads]  # rows of tables that must not be chosen
    for layer, layer_scores in zip(split.layers, scores, strict=True):
        for keeps, score in zip(layer.kept, layer_scores, strict=True):
            (largest if keeps else smaller).append(score)
    numbers = [number for values in (scores if written is None else written) for number in values]
    are_shares = all(0 <= number <= 1 for number in numbers) and any(numbers)
    return are_shares and (not largest or not smaller or min(largest) - max(smaller) > APART)


def dividing(split: Split) -> tuple[list[list[float]], str]:
    """A number from 0 to 1 for each key/value head that puts the kept ones first, and what it is.

    The scores themselves where they do, else each head's place among all: under 0.5 where it streams, above where not.
    """
    scores = [list(layer.scores) for layer in split.layers]
    if puts_first(split, scores):
        return scores, split.unit
    ranked = sorted(
        (not keeps, -score, number, index)
        for number, layer in enumerate(split.layers)
        for index, (keeps, score) in enumerate(zip(layer.kept, layer.scores, strict=True))
    )
    num_whole, total = num_kept(split), len(ranked)
    for rank, (streams, _, number, index) in enumerate(ranked):
        share = (total - rank) / (total - num_whole + 1) if streams else 1 + (num_whole - rank) / num_whole
        scores[number][index] = 0.5 * share
    return scores, f"place by {split.unit}: above 0.5 where a head keeps everything"


def table_of(split: Split, values: Iterable[Sequence[float]], format: str, noun: str, absent: float = 0.0) -> Table:
    """Layers x heads; `absent` in layers without attention. Errors: HeadError where layers have unlike numbers."""
    rows = [list(row) for row in values]
    counts = sorted({len(row) for row in rows} - {0})
    if len(counts) != 1:
        raise HeadError(
            f"a list for {format} has the same number of {noun} in every layer, and layers of {split.model} have "
            f"{' or '.join(map(str, counts))}: export to minference, vllm-hook or llama.cpp, which name each head."
        )
    return np.array([row or [absent] * counts[0] for row in rows], dtype=np.float64)


# ------------------------------------------------------------------------------------------- files of splits and lists


def file_bytes(path: str | os.PathLike[str]) -> bytes:
    """A file's bytes. Errors: FileAccessError, also for a file larger than any list of heads."""
    try:
        data = read_bytes(path, LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise no_access("read", path, error) from error
    if len(data) > LARGEST_FILE:
        raise FileAccessError(f"{path} is larger than {LARGEST_FILE:,} bytes: no list of heads is.")
    return data


def json_in(data: bytes, path: str | os.PathLike[str], meant: str = "") -> object:
    """A file's bytes as JSON. Errors: FileAccessError."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileAccessError(f"{path} is not JSON{f', {meant}' if meant else ''}: {error}.") from error


def write_files(files: Mapping[Path, bytes], folder: Path | None = None) -> None:
    """Write all files or none; a `folder` that is not there is made for them. Errors: FileAccessError."""
    made = False
    if folder is not None:
        try:
            made = not folder.exists()
            folder.mkdir(exist_ok=True)
        except (OSError, ValueError) as error:
            raise no_access("write", folder, error) from error
    try:
        with ExitStack() as replacements:  # the first takes its place when all are written
            for path, data in files.items():
                Path(replacements.enter_context(replacing(path))).write_bytes(data)
    except BaseException:
        if made and folder is not None:
            folder.rmdir()
        raise
