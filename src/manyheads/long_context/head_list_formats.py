"""The formats of other projects' lists of heads: a row of `LISTS` each.

docs/reference/head-lists.md describes them field by field, and names the file of each project that reads them. None
says of which weights it is. What is written here does: in a key that the project's reader passes by, or in a file
beside it. Comparing a list with a model is `head_lists.py`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np

from manyheads.base import first_line
from manyheads.errors import FileAccessError, HeadError
from manyheads.long_context.split_layer import (
    MOST_HEADS,
    Split,
    dividing,
    file_bytes,
    json_in,
    num_kept,
    puts_first,
    table_of,
    write_files,
)

Axis = Literal["query", "kv"]
Place = tuple[int, int]  # a layer and a head of it; whether a query head or a key/value head, `HeadList.axis` says
Fault = Callable[..., FileAccessError]  # what is wrong, in which file of a folder -> the error, which names the file
Made = tuple[dict[str, Any], str]  # what is written, JSON or bytes, by file ("": the list itself); its numbers' unit

KIND = "manyheads head list"
OWN_NUMBERS = "the model's own"  # an earlier manyheads, which said nothing, counted the layers that attend
KEY = "manyheads"  # where a document has room for a key of ours
BESIDE = ".manyheads.json"  # else, after the name of the file
GATES, CONFIG = "full_attention_heads.tsv", "config.json"  # duo
_LAYER_HEAD = re.compile(r"[0-9]{1,6}-[0-9]{1,6}")  # headkv
RATIOS = 99  # lukv: of all heads together, 1 % to 99 % freed
STREAMS, LOOKS, BLOCKS = "stream_llm", "vertical_and_slash", "block_sparse"  # minference
LOOKED = (1000, 6096)  # columns and diagonals: what MInference takes for a head that its list does not name
VARIABLE = ".layer_heads.txt"  # vllm-hook's second file: what VLLM_HOOK_LAYER_HEADS takes, "0:0,3,6;15:2"
LONGEST_VARIABLE = 1 << 17  # bytes, as Linux has them
_LAYER_HEADS = re.compile(rb"[0-9]{1,6}:[0-9]{1,6}(,[0-9]{1,6})*(;[0-9]{1,6}:[0-9]{1,6}(,[0-9]{1,6})*)*")


@dataclass(frozen=True)
class HeadList:
    """What a file says of heads, before it is compared with a model.

    `scores`: of each head of a table, or of those that are listed (`whole=False`). `kept`: which heads keep everything,
    where the file itself says so. Counts and windows are None where it says nothing. `list_in` knows the others, which
    are the same for all formats; `described` is what manyheads wrote of the list's model.
    """

    scores: dict[Place, float]
    whole: bool = True
    num_layers: int | None = None
    num_heads: int | None = None
    kept: frozenset[Place] | None = None
    sink: int | None = None
    recent: int | None = None
    notes: dict[str, str] = field(default_factory=dict)
    format: str = ""
    axis: Axis = "kv"
    unit: str = ""
    described: Mapping[str, Any] = field(default_factory=dict)


class Format(Protocol):
    """One project's lists: files with this `ending`, or folders (""). `note`: where our description of the model is.

    `unit`: of the numbers where no description says it; `as_read`: of what is read, "{}" being what is written.
    """

    name: str
    axis: Axis
    ending: str
    note: Literal["key", "beside"]
    unit: str = ""
    as_read: str = "{}"

    def knows(self, document: object) -> bool:
        """Whether a document, JSON or bytes as `list_in` decodes files, is such a list."""
        ...

    def parse(self, document: Any, fault: Fault) -> HeadList:
        """The list in a document that it knows. Errors: what `fault` makes."""
        ...

    def make(self, split: Split) -> Made:
        """The files of a split; the first has the numbers. Errors: HeadError for what the format cannot say."""
        ...


def list_in(files: Mapping[str, bytes], path: Path) -> HeadList:
    """The list of heads in the bytes of `files_at(path)`, of whichever format. Errors: FileAccessError."""
    (name, data), *others = files.items()
    place = path / CONFIG if others else path  # where our key is
    if others:
        document: object = {**_object(json_in(files[CONFIG], place)), GATES: data}
    elif data.startswith(b"\x93NUMPY"):
        document = data
    elif len(data) <= LONGEST_VARIABLE and _LAYER_HEADS.fullmatch(data.strip()):
        parts = [part.split(":") for part in data.decode().strip().split(";")]
        pairs = [[int(layer), int(head)] for layer, heads in parts for head in heads.split(",")]
        document = {"params": {"important_heads": pairs}}
    else:
        document = json_in(data, path, "as a list of heads is unless it is .npy")
    row = next((row for row in LISTS if row.knows(document)), None)
    if row is None:
        raise FileAccessError(
            f"{path} is not one of the lists of heads that are known here ({', '.join(FORMATS)}), and not a saved "
            "split."
        )
    heads = row.parse(document, lambda why, name="": _damaged(path / name, why))
    described: Mapping[str, Any] = {}
    if row.note == "key":
        described = _description(_object(document).get(KEY), place)
    elif os.path.lexists(beside := path.with_name(path.name + BESIDE)):
        described, place = _description(json_in(file_bytes(beside), beside), beside), beside
    if described and place != path and described.get("sha256") != hashlib.sha256(data).hexdigest():
        raise FileAccessError(
            f"{path / name} was changed since manyheads wrote it, and what {place} says about its model may no longer "
            f"hold: export the list again, or remove that."
        )
    unit = row.as_read.format(described.get("unit", row.unit))
    return replace(heads, format=row.name, axis=row.axis, unit=unit, described=described)


def write_heads(split: Split, format: str, place: str | os.PathLike[str]) -> list[Path]:
    """Write a split as another project's list of heads, as `HeadSplit.export` says."""
    row = next((row for row in LISTS if row.name == format), None)
    if row is None:
        raise HeadError(f"there is no format {format!r} of lists of heads: use {', '.join(FORMATS)}.")
    path = Path(os.path.expanduser(place))
    config = path if row.ending else path / CONFIG
    if row.ending and path.suffix.lower() != row.ending:
        raise FileAccessError(f"cannot write {path}: a list for {format} is a file that ends in {row.ending}.")
    contents, unit = row.make(split)
    files = {path.with_suffix(name) if name[:1] == "." else path / name: _encoded(contents[name]) for name in contents}
    description = {
        "kind": KIND, "model": split.model, "weights_hash": split.weights_hash, "stack": split.stack,
        "layer_numbers": OWN_NUMBERS, "kept": num_kept(split), "sink": split.sink, "recent": split.recent,
        "unit": unit, "joined": split.joined,
    }  # fmt: skip
    if row.note == "beside" or not row.ending:  # the numbers are in another file, which must stay as it is
        description["sha256"] = hashlib.sha256(next(iter(files.values()))).hexdigest()
    if row.note == "beside":
        files[path.with_name(path.name + BESIDE)] = _encoded(description, indent=1)
    else:
        files[config] = _encoded({**contents["" if row.ending else CONFIG], KEY: description}, indent=1)
    # A model's folder has a config.json as well, which must not be lost.
    if not row.ending and os.path.lexists(config) and KEY not in _object(json_in(file_bytes(config), config)):
        raise FileAccessError(
            f"cannot write {path}: there is a {CONFIG} that no export to duo wrote, and it would be lost. Name a new "
            f"folder."
        )
    write_files(files, None if row.ending else path)
    return list(files)


class Duo(Format):
    """Of DuoAttention and kvpress: gates of key/value heads, layers x heads, and the two windows."""

    name, axis, ending, note = "duo", "kv", "", "key"
    unit = "DuoAttention's gate, 0 to 1"

    def knows(self, document: object) -> bool:
        return isinstance(_object(document).get(GATES), bytes)

    def parse(self, document: Mapping[str, Any], fault: Fault) -> HeadList:
        windows, data = [document.get(name) for name in ("sink_size", "recent_size")], document[GATES]
        if any(type(size) is not int or not least <= size < 2**53 for size, least in zip(windows, (0, 1), strict=True)):
            raise fault(f"sink_size and recent_size are {windows}, not numbers of positions", CONFIG)
        if data.count(b"\t") + data.count(b"\n") > MOST_HEADS:
            raise fault(f"it has gates for more than {MOST_HEADS:,} heads", GATES)
        try:
            lines = [line.partition("#")[0].strip() for line in data.decode().split("\n")]  # as np.loadtxt reads them
            table = np.array([[float(cell) for cell in line.split("\t")] for line in lines if line])
        except ValueError as error:
            raise fault(error, GATES) from error
        if not table.size or not np.isfinite(table).all():
            raise fault("it has no gates" if not table.size else "a gate is not a finite number", GATES)
        outside = int(((table < 0) | (table > 1)).sum())
        notes = {"clipped": f"{outside} gates are outside 0 to 1, and taken as 0 or 1"} if outside else {}
        gates = {place: float(gate) for place, gate in np.ndenumerate(table.clip(0, 1))}
        return HeadList(gates, num_layers=len(table), sink=windows[0], recent=windows[1], notes=notes)

    def make(self, split: Split) -> Made:
        gates, unit = dividing(split)
        table = table_of(split, gates, "duo", "key/value heads")
        np.savetxt(written := io.BytesIO(), table, delimiter="\t")
        # The share of cells, not of heads: their quantile counts the rows of layers without attention as well.
        sparsity = 1 - num_kept(split) / table.size
        config = {"model_name": split.model, "sink_size": split.sink, "recent_size": split.recent, "sparsity": sparsity}
        return {GATES: written.getvalue(), CONFIG: config}, unit


class HeadKV(Format):
    """Of HeadKV and Retrieval_Head: scores of query heads, one a trial."""

    name, axis, ending, note = "headkv", "query", ".json", "beside"
    unit = "mean retrieval score"

    def knows(self, document: object) -> bool:
        return bool(_object(document)) and all(map(_LAYER_HEAD.fullmatch, _object(document)))

    def parse(self, document: Mapping[str, Any], fault: Fault) -> HeadList:
        scores: dict[Place, float] = {}
        trials: set[int] = set()
        for name, values in document.items():
            if not isinstance(values, list) or not values:
                raise fault(f"{name} has no list of scores")
            numbers = [_number(value, fault, name) for value in cast("list[Any]", values)]
            layer, head = map(int, name.split("-"))
            if (layer, head) in scores:
                raise fault(f"{name} is given twice")
            # Of large numbers only the sum may be too large for float64.
            scores[layer, head] = _number(math.fsum(number / len(numbers) for number in numbers), fault, name)
            trials.add(len(numbers))
        notes = {"trials": f"a score is the mean of {' to '.join(map(str, sorted({min(trials), max(trials)})))}"}
        if list(scores) != sorted(scores):
            words = "HeadKV's reader counts the entries, and would take these for other heads: they are not in order"
            notes["order"] = words
        return HeadList(scores, num_layers=1 + max(layer for layer, _ in scores), notes=notes)

    def make(self, split: Split) -> Made:
        scores, unit = [layer.query_scores for layer in split.layers], split.unit
        measured = split.joined != "group" and all(len(layer.query_scores) == layer.num_heads for layer in split.layers)
        if not measured or not puts_first(split, [layer.joined(split.joined) for layer in split.layers], scores):
            groups, unit = dividing(split)
            scores = [layer.by_query(values) for layer, values in zip(split.layers, groups, strict=True)]
        table = table_of(split, scores, "headkv", "query heads")
        return {"": {f"{layer}-{head}": [float(score)] for (layer, head), score in np.ndenumerate(table)}}, unit


class LuKV(Format):
    """Of kvpress's LUKVPress: what share of each key/value head to free, at 99 compression ratios."""

    name, axis, ending, note = "lukv", "kv", ".npy", "beside"
    as_read = f"share of its positions that a head keeps, mean over {RATIOS} ratios"

    def knows(self, document: object) -> bool:
        return isinstance(document, bytes)

    def parse(self, data: bytes, fault: Fault) -> HeadList:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a header by an old Python; what cannot be is checked below
                curves = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
                wrong = curves.dtype.kind not in "fiu" or curves.ndim != 3 or len(curves) != RATIOS
                wrong = wrong or not 0 < curves.size <= RATIOS * MOST_HEADS
                freed = np.zeros(1) if wrong else curves.astype(np.float64)
        except Exception as error:  # the header is parsed as Python, which fails in many ways, and may claim any size
            raise fault(error) from error
        if wrong or not np.isfinite(freed).all():
            contents = f"{curves.dtype} {list(curves.shape)}" if wrong else "numbers that are not finite"
            raise fault(f"it holds {contents}, and not a share for each of [{RATIOS} ratios, layers, key/value heads]")
        table = (1 - freed).clip(0, 1).mean(axis=0)
        return HeadList({place: float(share) for place, share in np.ndenumerate(table)}, num_layers=len(table))

    def make(self, split: Split) -> Made:
        total, num_whole = sum(layer.num_kv_heads for layer in split.layers), num_kept(split)
        curves: list[np.ndarray] = []
        for percent in range(1, RATIOS + 1):
            freed = percent / 100 * total  # in heads: those that stream are freed first, the others share what is left
            of_streaming = min(1.0, freed / (total - num_whole)) if num_whole < total else 0.0
            of_kept = min(1.0, max(0.0, freed - (total - num_whole)) / num_whole) if num_whole else 0.0
            shares = [[of_kept if keeps else of_streaming for keeps in layer.kept] for layer in split.layers]
            curves.append(table_of(split, shares, "lukv", "key/value heads", absent=1.0))
        np.save(written := io.BytesIO(), np.stack(curves), allow_pickle=False)
        return {"": written.getvalue()}, split.unit


class MInference(Format):
    """Of MInference: a sparse pattern for each query head."""

    name, axis, ending, note = "minference", "query", ".json", "beside"
    unit = "score of MInference's search"

    def knows(self, document: object) -> bool:
        return isinstance(document, list)

    def parse(self, document: list[Any], fault: Fault) -> HeadList:
        scores: dict[Place, float] = {}
        windows: dict[Place, tuple[int, int]] = {}
        if len(document) > MOST_HEADS:
            raise fault(f"it has more than {MOST_HEADS:,} layers")
        for number, layer in enumerate(document):
            if not isinstance(layer, dict):
                raise fault(f"layer {number} is not a JSON object")
            for name, entries in cast("dict[str, Any]", layer).items():
                kind, *sizes, score = entries if isinstance(entries, list) and len(entries) == 4 else (None, None)
                are_sizes = all(type(size) is int and 0 <= size < 2**53 for size in sizes)
                if not re.fullmatch("[0-9]{1,6}", name) or kind not in (STREAMS, LOOKS, BLOCKS) or not are_sizes:
                    raise fault(f"layer {number} has no pattern, two sizes and a score for {name[:20]!r}")
                place = (number, int(name))
                scores[place] = _number(score, fault, f"L{place[0]}H{place[1]}")
                if kind == STREAMS:
                    windows[place] = (sizes[0], max(1, sizes[1]))
        sink, recent = (max(sizes) for sizes in zip(*windows.values(), strict=True)) if windows else (None, None)
        notes = {"windows": "the file has several; these are the largest"} if len({*windows.values()}) > 1 else {}
        whole = frozenset(scores.keys() - windows.keys())
        return HeadList(scores, num_layers=len(document), kept=whole, sink=sink, recent=recent, notes=notes)

    def make(self, split: Split) -> Made:
        looks, streams = (LOOKS, *LOOKED), (STREAMS, split.sink, split.recent)
        layers = [zip(layer.by_query(layer.kept), layer.of_query(), strict=True) for layer in split.layers]
        patterns = [
            {str(head): [*(looks if keeps else streams), score] for head, (keeps, score) in enumerate(layer)}
            for layer in layers
        ]
        return {"": patterns}, split.unit


class VLLMHook(Format):
    """Of vLLM-Hook: the query heads to look at."""

    name, axis, ending, note = "vllm-hook", "query", ".json", "key"
    as_read = "1 where a head is listed, else 0"

    def knows(self, document: object) -> bool:
        return "important_heads" in _object(_object(document).get("params"))

    def parse(self, document: Mapping[str, Any], fault: Fault) -> HeadList:
        pairs = document["params"]["important_heads"]
        if not isinstance(pairs, list):
            raise fault("important_heads is not a list")
        listed = {_pair(pair, fault): 1.0 for pair in cast("list[Any]", pairs)}
        return HeadList(listed, whole=False, kept=frozenset(listed))

    def make(self, split: Split) -> Made:
        layers = groupby(split.retrieval, lambda head: head.layer)
        by_layer = {layer: [head.index for head in heads] for layer, heads in layers}
        config = {
            "model_info": {"name": split.model, "model_id": split.model},
            "params": {"important_heads": [[layer, head] for layer, heads in by_layer.items() for head in heads]},
        }
        text = ";".join(f"{layer}:{','.join(map(str, heads))}" for layer, heads in by_layer.items())
        return {"": config, VARIABLE: f"{text}\n".encode()}, split.unit


class LlamaCpp(Format):
    """Of llama.cpp, pull request 20086: the query heads whose weights to give, each with a score."""

    name, axis, ending, note = "llama.cpp", "query", ".json", "key"
    unit = "ts, translation score"
    as_read = "{}; 0 where a head is not listed"

    def knows(self, document: object) -> bool:
        return "token_alignment_heads" in _object(document)

    def parse(self, document: Mapping[str, Any], fault: Fault) -> HeadList:
        entries = document["token_alignment_heads"]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in cast("list[Any]", entries)):
            raise fault("token_alignment_heads is not a list of JSON objects")
        listed: dict[Place, float] = {}
        for entry in cast("list[dict[str, Any]]", entries):
            place = _pair([entry.get("layer"), entry.get("head")], fault)
            listed[place] = _number(entry.get("ts"), fault, f"L{place[0]}H{place[1]}")
        counts: dict[str, Any] = {name: document.get(name) for name in ("num_layers", "num_heads")}
        if any(count is not None and (type(count) is not int or not 0 < count < 10**6) for count in counts.values()):
            raise fault(f"{str(counts)[:80]} are not counts")
        return HeadList(listed, whole=False, kept=frozenset(listed), **counts)

    def make(self, split: Split) -> Made:
        scores = [layer.of_query() for layer in split.layers]
        ranked = sorted(split.retrieval, key=lambda head: (-scores[head.layer][head.index], head))
        heads = [{"layer": head.layer, "head": head.index, "ts": scores[head.layer][head.index]} for head in ranked]
        document = {
            "model": split.model,
            "num_layers": len(split.layers),
            "num_heads": max(layer.num_heads for layer in split.layers),
            "token_alignment_heads": heads,
        }
        return {"": document}, split.unit


LISTS: tuple[Format, ...] = (Duo(), HeadKV(), LuKV(), MInference(), VLLMHook(), LlamaCpp())
FORMATS = tuple(row.name for row in LISTS)


# ---------------------------------------------------------------------------------------- parts of what stands in files


def files_at(path: Path) -> dict[str, bytes]:
    """The bytes of a list's file under "", or those of the two files of a folder. Errors: FileAccessError."""
    return {name: file_bytes(path / name) for name in ((GATES, CONFIG) if os.path.isdir(path) else ("",))}


def _encoded(content: object, indent: int | None = None) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False, indent=indent).encode()


def _object(value: object) -> dict[str, Any]:
    """A value of JSON if it is an object, else one without keys."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _damaged(path: Path, why: str | BaseException) -> FileAccessError:
    words = first_line(why) if isinstance(why, BaseException) else why
    return FileAccessError(f"{path} is damaged: {words.rstrip('.')}.")


def _description(entry: object, path: Path) -> Mapping[str, Any]:
    """What `write_heads` wrote of a list's model; {} where nothing is. Errors: FileAccessError."""
    known, least = _object(entry), {"kept": 0, "sink": 0, "recent": 1}
    texts = (known.get(name) for name in ("model", "weights_hash", "stack", "unit", "joined"))
    counts = all(type(known.get(name)) is int and known[name] >= count for name, count in least.items())
    if entry is not None and not (
        counts and known.get("kind") == KIND and all(isinstance(text, str) for text in texts)
    ):
        raise _damaged(path, "what stands there of the list's model was not written by manyheads")
    return known


def _number(value: object, fault: Fault, of: str) -> float:
    """A number that float64 holds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise fault(f"{of} has a score that is not a finite number")
    return float(value)


def _pair(pair: object, fault: Fault) -> Place:
    entries = cast("list[Any]", pair) if isinstance(pair, list) else []
    if len(entries) != 2 or any(type(entry) is not int or not 0 <= entry < 10**6 for entry in entries):
        raise fault(f"{str(pair)[:40]} is not a layer and head")
    return entries[0], entries[1]
