"""`HeadSplit`: which key/value heads keep the whole context, which keep a window, and on what evidence.

A cache holds one row of keys and values for every position and key/value head. A *retrieval* head keeps all of them. A
*streaming* head keeps the text's first `sink` positions and the last `recent` ones, and what lies between is freed. The
query heads of a group share one cache, so a split is of key/value heads; where it was measured by query head, `joined`
says how a group's numbers became one.
Source: Xiao et al. 2024, DuoAttention.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from manyheads.base import Json, brief, replacing
from manyheads.errors import FileAccessError, HeadError, ModelError, StatisticError
from manyheads.heads import Head, HeadSet, layer_name, parse_heads
from manyheads.long_context.head_list_formats import write_heads
from manyheads.long_context.split_layer import (
    JoinedBy,
    SplitLayer,
    described,
    file_bytes,
    json_in,
    layer_in,
    layers_of,
    shape_of,
)
from manyheads.models import LoadedModel
from manyheads.plan import Ablate
from manyheads.results import NotIterated, Plotted, Tabular

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

KIND = "manyheads head split"
FORMAT = 1
OF_ONE_SHARE = frozenset({"loss", "recall", "generation", "cache", "verdict"})  # entries of `evidence`

ChosenBy = Literal["effect", "needle_effect", "distant_mass", "needle", "file", "hand"]


@dataclass(frozen=True)
class HeadSplit(Plotted, Tabular, NotIterated):
    """Key/value heads of one model, divided into those that keep everything ("retrieval") and those that stream.

    - `model`, `weights_hash`: the model's name and `LoadedModel.weights_hash`; the hash is "" in a list of heads whose
      file does not state it. `stack`: the name of the stack, "" in a decoder. `layers[i]` is layer i.
    - `sink`, `recent`: how many first and last positions a streaming head keeps.
    - `by`: what chose the heads; `unit`: what a score is; `joined`: how the query heads of a group became one score:
      "group" where they were measured together, "none" where every query head has keys and values of its own.
    - `evidence`: what was measured with the split, as plain data (`split_heads` describes it).
    - A layer whose own window is at most `sink + recent` has nothing to save: its heads count as streaming, no plan
      touches them, and `keep` is a share of the others.
    - `notes`: how things were computed, in words.

    It is written by `save` as JSON, and read by `open`. Equal splits are equal values.
    """

    instead = "its heads are .retrieval and .streaming, and its layers .layers"

    model: str
    weights_hash: str
    stack: str
    layers: tuple[SplitLayer, ...]
    sink: int
    recent: int
    by: ChosenBy
    unit: str
    joined: JoinedBy
    evidence: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------------------ which heads

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        """{stack: number of query heads of each layer}, as in a model's spec."""
        return {self.stack: tuple(layer.num_heads for layer in self.layers)}

    @property
    def retrieval(self) -> HeadSet:
        """The query heads whose keys and values are all kept."""
        return self._query_heads(keeps=True)

    @property
    def streaming(self) -> HeadSet:
        """The query heads whose keys and values are kept at the beginning and the end alone."""
        return self._query_heads(keeps=False)

    def _query_heads(self, keeps: bool) -> HeadSet:
        heads = [
            Head(self.stack, number, index)
            for number, layer in enumerate(self.layers)
            for index in range(layer.num_heads)
            if layer.kept[index * layer.num_kv_heads // layer.num_heads] is keeps
        ]
        return parse_heads(heads, self.shape)

    @property
    def keep(self) -> float:
        """The share of key/value heads that keep everything, from 0 to 1."""
        flags = [keeps for _, layer in self.dividable for keeps in layer.kept]
        return sum(flags) / max(1, len(flags))

    @property
    def dividable(self) -> tuple[tuple[int, SplitLayer], ...]:
        """The layers in which a head can save something by streaming, with their numbers."""
        num_held = self.sink + self.recent
        return tuple(
            (number, layer)
            for number, layer in enumerate(self.layers)
            if layer.kept and not 0 < layer.window <= num_held
        )

    def with_keep(self, keep: float) -> HeadSplit:
        """The same scores with another share of heads kept: the `keep` of them with the highest scores, at least one.

        Among equal scores, the earlier layer and head is kept. What was measured with the old share is left out of
        `evidence`, the curve over all shares stays. Errors: StatisticError for a share that is not above 0, up to 1.
        """
        require_share(keep)
        scores = {(number, g): score for number, layer in self.dividable for g, score in enumerate(layer.scores)}
        chosen = set(sorted(scores, key=lambda head: -scores[head])[: max(1, round(keep * len(scores)))])
        layers = tuple(
            replace(layer, kept=tuple((number, g) in chosen for g in range(layer.num_kv_heads)))
            for number, layer in enumerate(self.layers)
        )
        evidence = {name: value for name, value in self.evidence.items() if name not in OF_ONE_SHARE}
        return replace(self, layers=layers, evidence=self.evidence if layers == self.layers else evidence)

    def query_heads(self, layer: int, kv_head: int) -> HeadSet:
        """The query heads that share a key/value head. Errors: HeadError where the model has no such head."""
        size = self.layers[layer].num_heads // self.layers[layer].num_kv_heads
        heads = [Head(self.stack, layer, index) for index in range(kv_head * size, (kv_head + 1) * size)]
        return parse_heads(heads, self.shape)

    def ablation(self) -> Ablate:
        """The plan's step that makes the streaming heads stream. Errors: HeadError where none does.

        Where every layer of the split attends, it may be one of an earlier manyheads, which counted the layers that
        attend (`Plan.counted`): a model that has layers between them refuses the step.
        """
        numbers = {number for number, _ in self.dividable}
        streaming = parse_heads([head for head in self.streaming if head.layer in numbers], self.shape)
        if not streaming:
            raise HeadError(f"all heads of this split of {self.model} keep everything: there is nothing to stream.")
        step = Ablate(streaming, kind="streaming", sink=self.sink, recent=self.recent)
        object.__setattr__(step, "counted", all(layer.num_heads for layer in self.layers))
        return step

    # ------------------------------------------------------------------------------------------------ what it saves

    def cache_bytes(self, context: int, batch: int = 1, element_bytes: int | float = 2, *, whole: bool = False) -> int:
        """Bytes of keys and values of `batch` texts of `context` positions; with `whole`, without the split.

        Arithmetic: a streaming head holds min(context, sink + recent) positions of `qk_dim + v_dim` elements; no head
        holds more than its layer's window.
        """
        rows = 0
        for layer in self.layers:
            visible = min(context, layer.window or context)
            streamed = min(visible, self.sink + self.recent)
            positions = sum(visible if keeps or whole else streamed for keeps in layer.kept)
            rows += positions * (layer.qk_dim + layer.v_dim)
        return round(rows * batch * element_bytes)

    # ------------------------------------------------------------------------------------------------ of which model

    def require_model(self, lm: LoadedModel) -> None:
        """Errors: ModelError where this is not a split of `lm`, by its shape or by its weights."""
        model_shapes, split_shapes = tuple(map(shape_of, layers_of(lm, self.stack))), self._shapes
        if _attended(split_shapes) != _attended(model_shapes):
            if split_shapes == tuple(shape for shape in model_shapes if any(shape)):
                raise ModelError(
                    f"this is a split of {self.model} by an earlier manyheads, which counted the layers that attend: "
                    f"its L0 to L{len(split_shapes) - 1} are {', '.join(map(str, lm.spec.stacks[self.stack].sites))} "
                    f"of {lm.name}. Read its file by mh.read_heads(path, lm), which numbers them as the model does."
                )
            raise ModelError(
                f"this is a split of {self.model} ({described(split_shapes)}), and {lm.name} has "
                f"{described(model_shapes)}: split this model by mh.split_heads(lm, texts)."
            )
        if self.weights_hash and self.weights_hash != lm.weights_hash:
            raise ModelError(
                f"this is a split of {self.model}, whose weights have the digest {self.weights_hash[:8]}, and those of "
                f"{lm.name} have {lm.weights_hash[:8]}: split this model by mh.split_heads(lm, texts)."
            )

    def numbered_as(self, lm: LoadedModel) -> HeadSplit:
        """This split, where an earlier manyheads counted the layers that attend, with the numbers that `lm` gives them.

        `notes` says so. A split that has the model's own numbers, or is of another model, comes back as it is.
        """
        sites = layers_of(lm, self.stack)
        shapes = tuple(map(shape_of, sites))
        if self._shapes != tuple(shape for shape in shapes if any(shape)) or self._shapes == _attended(shapes):
            return self
        counted, numbers = iter(self.layers), [number for number, site in enumerate(sites) if site is not None]
        layers = tuple(SplitLayer(0, 0, 0, 0, (), ()) if site is None else next(counted) for site in sites)
        return replace(self, layers=layers, notes={**self.notes, "layers": renumbered(self.stack, numbers)})

    @property
    def _shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        return tuple((layer.num_heads, layer.num_kv_heads, layer.qk_dim, layer.v_dim) for layer in self.layers)

    # ------------------------------------------------------------------------------------------------ tables and files

    def to_pandas(self) -> pd.DataFrame:
        """A row for each key/value head: layer, index, its query heads, score, and whether it keeps everything."""
        import pandas as pd

        rows = []
        for number, layer in enumerate(self.layers):
            size = layer.num_heads // max(layer.num_kv_heads, 1)
            shape = {self.stack: (0,) * number + (layer.num_heads + 1,)}  # + 1: never shortened to "L3"
            for index in range(layer.num_kv_heads):
                heads = [Head(self.stack, number, query) for query in range(index * size, (index + 1) * size)]
                rows.append((number, index, str(parse_heads(heads, shape)), layer.scores[index], layer.kept[index]))
        return pd.DataFrame(rows, columns=["layer", "kv_head", "query_heads", "score", "keeps_everything"])

    def __repr__(self) -> str:
        num_kept = sum(map(sum, (layer.kept for layer in self.layers)))
        total = sum(layer.num_kv_heads for layer in self.layers)
        rest = f"the others {self.sink} + {self.recent} positions"
        return brief(f"HeadSplit({self.model}: {num_kept} of {total} key/value heads keep all, {rest})")

    def to_dict(self) -> Json:
        """Plain data for JSON, which `from_dict` reads."""
        return {"kind": KIND, "format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: object, label: str = "this split") -> HeadSplit:
        """Read what `to_dict` gave. Errors: FileAccessError, naming what is missing, unknown or wrong."""
        document = dict(cast("Mapping[str, Any]", data)) if isinstance(data, Mapping) else {}
        if document.pop("kind", None) != KIND:
            raise FileAccessError(f'{label} is not a split of heads: it lacks "kind": "{KIND}".')
        if (version := document.pop("format", None)) != FORMAT or isinstance(version, bool):
            raise FileAccessError(
                f"{label} has format {version!r}, and {FORMAT} is the newest known: upgrade manyheads."
            )
        if (names := {item.name for item in fields(cls)}) != set(document):
            raise FileAccessError(f"{label} is damaged: these fields are missing or unknown: {names ^ set(document)}.")
        try:
            layers = tuple(layer_in(entry, number) for number, entry in enumerate(document["layers"]))
            split = cls(**{**document, "layers": layers})
            texts = ("model", "weights_hash", "stack", "by", "unit", "joined")
            if wrong := [name for name in texts if not isinstance(getattr(split, name), str)]:
                raise ValueError(f"{wrong[0]}={getattr(split, wrong[0])!r} is not a text")
            notes = split.notes.items() if isinstance(split.notes, dict) else [(0, 0)]
            if not isinstance(split.evidence, dict) or not all(isinstance(text, str) for _, text in notes):
                raise ValueError("its evidence and notes are not those of a split")
            for name, least in (("sink", 0), ("recent", 1)):
                value = getattr(split, name)
                if type(value) is not int or value < least:
                    raise ValueError(f"{name}={value!r} is not a number of positions, {least} or more")
            if not any(layer.num_heads for layer in split.layers):
                raise ValueError("no layer has a head")
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise FileAccessError(f"{label} is damaged: {error}.") from error
        return split

    def save(self, path: str | Path) -> None:
        """Write the split as JSON, whole or not at all. Errors: FileAccessError."""
        with replacing(path) as temporary:
            Path(temporary).write_text(json.dumps(self.to_dict(), ensure_ascii=False, indent=1), encoding="utf-8")

    @classmethod
    def open(cls, path: str | Path) -> HeadSplit:
        """Read what `save` wrote. Errors: FileAccessError."""
        return cls.from_dict(json_in(file_bytes(path), path, "as a split of heads is"), str(path))

    def export(self, format: str, place: str | os.PathLike[str]) -> list[Path]:
        """Write the split as a list of heads that another project reads. Returns the paths of the files.

        `format` and `place`: "duo" (DuoAttention, kvpress), a folder; "lukv" (kvpress), a file that ends in .npy;
        "headkv" (HeadKV, Retrieval_Head), "minference", "vllm-hook" and "llama.cpp", one that ends in .json. An earlier
        file is replaced; a folder with a config.json that is no export's is refused. `mh.read_heads` reads each of them
        as a split with the same heads kept. docs/reference/head-lists.md says what each field holds, and what a format
        cannot say. Errors: HeadError for an unknown format, or one that cannot hold this split; FileAccessError.
        """
        return write_heads(self, format, place)

    def __str__(self) -> str:
        flags = [keeps for layer in self.layers for keeps in layer.kept]
        return (
            f"{sum(flags)} of {len(flags)} key/value heads of {self.model} keep everything, by {self.by}; the others "
            f"the first {self.sink} and last {self.recent} positions"
        )


def _attended(shapes: tuple[tuple[int, int, int, int], ...]) -> tuple[tuple[int, int, int, int], ...]:
    """Shapes of layers up to the last one that attends: how many follow it, not every file says."""
    last = max((number for number, shape in enumerate(shapes) if any(shape)), default=-1)
    return shapes[: last + 1]


def renumbered(stack: str, numbers: Sequence[int]) -> str:
    """The note about a file in which an earlier manyheads counted the layers that attend: which they are."""
    names = ", ".join(layer_name(stack, number) for number in numbers)
    return f"the file counts the layers that attend, as an earlier manyheads did; they are read as {names} of the model"


def is_split(data: bytes) -> bool:
    """Whether a file's bytes are those of a saved split, or were meant to be: `from_dict` says what is wrong."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, Mapping) and cast("Mapping[str, Any]", document).get("kind") == KIND


def require_share(keep: float) -> None:
    """Errors: StatisticError for what is not a share of heads."""
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
        raise StatisticError(f"keep={keep!r} is not a share of key/value heads to keep: give one above 0, up to 1.")
