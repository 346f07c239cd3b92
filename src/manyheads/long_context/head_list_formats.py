"""The formats of other projects' lists of heads, each with its reader and its writer.

    duo         a folder: gates of key/value heads, layers x heads, and the two windows   DuoAttention, kvpress
    headkv      scores of query heads, one a trial                                        HeadKV, Retrieval_Head
    lukv        what share of each key/value head to free, at 99 compression ratios       kvpress's LUKVPress
    minference  a sparse pattern for each query head                                      MInference
    vllm-hook   the query heads to look at                                                vLLM-Hook
    llama.cpp   the query heads whose weights to give, each with a score                  llama.cpp, pull request 20086

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
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from jaxtyping import Float64

from manyheads.base import first_line, no_access, read_bytes, replacing
from manyheads.errors import FileAccessError, HeadError
from manyheads.long_context.split_layer import MOST_HEADS, Split, SplitLayer

Place = tuple[int, int]  # a layer and a head of it; whether a query head or a key/value head, `HeadList.axis` says

LARGEST_FILE = 32 * 2**20  # bytes; 126 layers of 128 heads come to 1 MB
KIND = "manyheads head list"
OWN_NUMBERS = "the model's own"  # an earlier manyheads, which said nothing, counted the layers that attend
KEY = "manyheads"  # where a document has room for a key of ours
BESIDE = ".manyheads.json"  # else, after the name of the file
APART = 1e-5  # DuoAttention adds noise of up to 1e-6 to gates before it divides them
NAMED, UNNAMED = 1.0, "1 where a head is listed, else 0"


@dataclass(frozen=True)
class HeadList:
    """What a file says of heads, before it is compared with a model.

    `scores`: of each head of a table, or of those that are listed (`whole=False`). `kept`: which heads keep everything,
    where the file itself says so. Counts and windows are None where it says nothing. `described`: what manyheads wrote
    of the list's model.
    """

    format: str
    axis: Literal["query", "kv"]
    scores: dict[Place, float]
    unit: str
    whole: bool = True
    num_layers: int | None = None
    num_heads: int | None = None
    kept: frozenset[Place] | None = None
    sink: int | None = None
    recent: int | None = None
    described: Mapping[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def numbered_as(self, numbers: Sequence[int]) -> HeadList:
        """This list with the numbers that its model gives to the layers that attend, where they are only counted.

        Errors: HeadError for a layer beyond these.
        """
        if "layer_numbers" in self.described or not self.described or list(numbers) == list(range(len(numbers))):
            return self
        places = [*self.scores, *(self.kept or ())]
        if beyond := [layer for layer, _ in places if layer >= len(numbers)]:
            raise HeadError(f"it lists layer {beyond[0]} of {len(numbers)} that attend")
        scores = {(numbers[layer], head): score for (layer, head), score in self.scores.items()}
        places_kept = None if self.kept is None else frozenset((numbers[layer], head) for layer, head in self.kept)
        return replace(self, scores=scores, kept=places_kept, num_layers=None)


def list_in(data: bytes, path: Path) -> HeadList:
    """The list of heads that a file holds, of whichever format. Errors: FileAccessError."""
    if data.startswith(b"\x93NUMPY"):
        return lukv_in(data, path)
    if len(data) <= LONGEST_VARIABLE and _LAYER_HEADS.fullmatch(data.strip()):
        return vllm_hook_text_in(data)
    document = json_in(data, path, "as a list of heads is unless it is .npy")
    if isinstance(document, list):
        return minference_in(data, cast("list[Any]", document), path)
    if isinstance(document, Mapping):
        known = cast("Mapping[str, Any]", document)
        params = known.get("params")
        if isinstance(params, Mapping) and "important_heads" in params:
            return vllm_hook_in(known, path)
        if "token_alignment_heads" in known:
            return llama_in(known, path)
        if known and all(_LAYER_HEAD.fullmatch(name) for name in known):
            return headkv_in(data, known, path)
    raise FileAccessError(
        f"{path} is none of the lists of heads that are known here ({', '.join(WRITERS)}), and no saved split."
    )


# ---------------------------------------------------------------------------------------------------- duo: DuoAttention

GATES, CONFIG = "full_attention_heads.tsv", "config.json"


def duo_in(folder: Path) -> HeadList:
    """The list in a folder of DuoAttention's. Errors: FileAccessError."""
    gates, config = file_bytes(folder / GATES), json_in(file_bytes(folder / CONFIG), folder / CONFIG)
    known = cast("Mapping[str, Any]", config) if isinstance(config, Mapping) else {}
    windows = [known.get(name) for name in ("sink_size", "recent_size")]
    if any(type(size) is not int or not least <= size < 2**53 for size, least in zip(windows, (0, 1), strict=True)):
        raise _damaged(folder / CONFIG, f"sink_size and recent_size are {windows}, not numbers of positions")
    if gates.count(b"\t") + gates.count(b"\n") > MOST_HEADS:
        raise _damaged(folder / GATES, f"it has gates for more than {MOST_HEADS:,} heads")
    try:
        lines = [line.partition("#")[0].strip() for line in gates.decode().split("\n")]  # as np.loadtxt reads them
        table = np.array([[float(cell) for cell in line.split("\t")] for line in lines if line])
    except ValueError as error:
        raise _damaged(folder / GATES, error) from error
    if not table.size or not np.isfinite(table).all():
        raise _damaged(folder / GATES, "it has no gates" if not table.size else "a gate is no finite number")
    outside = int(((table < 0) | (table > 1)).sum())
    described = _description(known.get(KEY), folder / CONFIG, gates, folder / GATES)
    return HeadList(
        "duo",
        "kv",
        {place: float(gate) for place, gate in np.ndenumerate(table.clip(0, 1))},
        described.get("unit", "DuoAttention's gate, 0 to 1"),
        num_layers=len(table),
        sink=windows[0],
        recent=windows[1],
        described=described,
        notes={"clipped": f"{outside} gates are outside 0 to 1, and taken as 0 or 1"} if outside else {},
    )


def write_duo(split: Split, folder: Path) -> dict[Path, bytes]:
    gates, unit = _dividing(split)
    table = _table(split, gates, "duo", "key/value heads")
    written = io.BytesIO()
    np.savetxt(written, table, delimiter="\t")
    config = {
        "model_name": split.model,
        "sink_size": split.sink,
        "recent_size": split.recent,
        # The share of cells, not of heads: their quantile counts the rows of layers without attention, too.
        "sparsity": 1 - _num_kept(split) / table.size,
        KEY: _describe(split, unit, written.getvalue()),
    }
    return {folder / GATES: written.getvalue(), folder / CONFIG: _json(config)}


# --------------------------------------------------------------------------------------- headkv: HeadKV, Retrieval_Head


def headkv_in(data: bytes, document: Mapping[str, Any], path: Path) -> HeadList:
    scores: dict[Place, float] = {}
    trials: set[int] = set()
    for name, values in document.items():
        if not isinstance(values, list) or not values:
            raise _damaged(path, f"{name} has no list of scores")
        numbers = [_number(value, path, name) for value in cast("list[Any]", values)]
        layer, head = map(int, name.split("-"))
        if (layer, head) in scores:
            raise _damaged(path, f"{name} is there twice")
        # Of large numbers only the sum may be too large for float64.
        scores[layer, head] = _number(math.fsum(number / len(numbers) for number in numbers), path, name)
        trials.add(len(numbers))
    described = _description_beside(path, data)
    counts = " to ".join(map(str, sorted({min(trials), max(trials)})))
    notes = {"trials": f"a score is the mean of {counts}"}
    if list(scores) != sorted(scores):
        notes["order"] = (
            "HeadKV's reader counts the entries, and would take these for other heads: they are not in order"
        )
    unit = described.get("unit", "mean retrieval score")
    layers = 1 + max(layer for layer, _ in scores)
    return HeadList("headkv", "query", scores, unit, num_layers=layers, described=described, notes=notes)


def write_headkv(split: Split, path: Path) -> dict[Path, bytes]:
    query_scores = [layer.query_scores for layer in split.layers]
    measured = split.joined != "group" and all(len(layer.query_scores) == layer.num_heads for layer in split.layers)
    if (
        measured
        and _divides(split, [_joined(layer, split.joined) for layer in split.layers])
        and _are_shares(query_scores)
    ):
        scores, unit = query_scores, split.unit
    else:
        groups, unit = _dividing(split)
        scores = [repeated(values, layer) for layer, values in zip(split.layers, groups, strict=True)]
    table = _table(split, scores, "headkv", "query heads")
    data = json.dumps({f"{layer}-{head}": [float(score)] for (layer, head), score in np.ndenumerate(table)}).encode()
    return _with_description(split, path, data, unit)


# -------------------------------------------------------------------------------------------- lukv: kvpress's LUKVPress

RATIOS = 99  # of all heads together: 1 % to 99 % freed


def lukv_in(data: bytes, path: Path) -> HeadList:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header by an old Python; what cannot be is checked below
            curves = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
            wrong = curves.dtype.kind not in "fiu" or curves.ndim != 3 or len(curves) != RATIOS
            wrong = wrong or not 0 < curves.size <= RATIOS * MOST_HEADS
            freed = np.zeros(1) if wrong else curves.astype(np.float64)
    except Exception as error:  # the header is parsed as Python, which fails in many ways, and may claim any size
        raise _damaged(path, error) from error
    if wrong or not np.isfinite(freed).all():
        contents = f"{curves.dtype} {list(curves.shape)}" if wrong else "numbers that are not finite"
        raise _damaged(
            path, f"it holds {contents}, and not a share for each of [{RATIOS} ratios, layers, key/value heads]"
        )
    table = (1 - freed).clip(0, 1).mean(axis=0)
    return HeadList(
        "lukv",
        "kv",
        {place: float(share) for place, share in np.ndenumerate(table)},
        f"share of its positions that a head keeps, mean over {RATIOS} ratios",
        num_layers=len(table),
        described=_description_beside(path, data),
    )


def write_lukv(split: Split, path: Path) -> dict[Path, bytes]:
    total, num_kept = sum(layer.num_kv_heads for layer in split.layers), _num_kept(split)
    curves: list[Float64[np.ndarray, "layers heads"]] = []
    for percent in range(1, RATIOS + 1):
        freed = percent / 100 * total  # in heads: those that stream are freed first, the others share what is left
        of_streaming = min(1.0, freed / (total - num_kept)) if num_kept < total else 0.0
        of_kept = min(1.0, max(0.0, freed - (total - num_kept)) / num_kept) if num_kept else 0.0
        shares = [[of_kept if keeps else of_streaming for keeps in layer.kept] for layer in split.layers]
        curves.append(_table(split, shares, "lukv", "key/value heads", absent=1.0))
    written = io.BytesIO()
    np.save(written, np.stack(curves), allow_pickle=False)
    return _with_description(split, path, written.getvalue(), split.unit)


# ----------------------------------------------------------------------------------------------- minference: MInference

STREAMS, LOOKS, BLOCKS = "stream_llm", "vertical_and_slash", "block_sparse"
LOOKED = (1000, 6096)  # columns and diagonals: what MInference takes for a head that its list does not name


def minference_in(data: bytes, document: list[Any], path: Path) -> HeadList:
    scores: dict[Place, float] = {}
    windows: dict[Place, tuple[int, int]] = {}
    if len(document) > MOST_HEADS:
        raise _damaged(path, f"it has more than {MOST_HEADS:,} layers")
    for number, layer in enumerate(document):
        if not isinstance(layer, Mapping):
            raise _damaged(path, f"layer {number} is no JSON object")
        for name, entries in cast("Mapping[str, Any]", layer).items():
            pattern = cast("list[Any]", entries) if isinstance(entries, list) else []
            sizes = pattern[1:3]
            if (
                not _INDEX.fullmatch(name)
                or len(pattern) != 4
                or pattern[0] not in (STREAMS, LOOKS, BLOCKS)
                or any(type(size) is not int or not 0 <= size < 2**53 for size in sizes)
            ):
                raise _damaged(path, f"layer {number} has no pattern, two sizes and a score for {name[:20]!r}")
            place = (number, int(name))
            scores[place] = _number(pattern[3], path, f"L{place[0]}H{place[1]}")
            if pattern[0] == STREAMS:
                windows[place] = (pattern[1], max(1, pattern[2]))
    described = _description_beside(path, data)
    several = len(set(windows.values())) > 1
    return HeadList(
        "minference",
        "query",
        scores,
        described.get("unit", "score of MInference's search"),
        num_layers=len(document),
        kept=frozenset(place for place in scores if place not in windows),
        sink=max((sink for sink, _ in windows.values()), default=None),
        recent=max((recent for _, recent in windows.values()), default=None),
        described=described,
        notes={"windows": "the file has several; these are the largest"} if several else {},
    )


def write_minference(split: Split, path: Path) -> dict[Path, bytes]:
    layers: list[dict[str, list[Any]]] = []
    for layer in split.layers:
        keeps, scores = repeated(layer.kept, layer), layer.query_scores or repeated(layer.scores, layer)
        layers.append(
            {
                str(head): [*((LOOKS, *LOOKED) if keeps[head] else (STREAMS, split.sink, split.recent)), scores[head]]
                for head in range(layer.num_heads)
            }
        )
    return _with_description(split, path, json.dumps(layers).encode(), split.unit)


# ------------------------------------------------------------------------------------------------- vllm-hook: vLLM-Hook


def vllm_hook_in(document: Mapping[str, Any], path: Path) -> HeadList:
    pairs = document["params"]["important_heads"]
    if not isinstance(pairs, list):
        raise _damaged(path, "important_heads is no list")
    listed = {_pair(pair, path): NAMED for pair in cast("list[Any]", pairs)}
    return _naming("vllm-hook", listed, UNNAMED, _description(document.get(KEY), path))


def vllm_hook_text_in(data: bytes) -> HeadList:
    """What the variable VLLM_HOOK_LAYER_HEADS takes: "0:0,3,6;15:2"."""
    parts = [part.split(":") for part in data.decode().strip().split(";")]
    listed = {(int(layer), int(head)): NAMED for layer, heads in parts for head in heads.split(",")}
    return _naming("vllm-hook", listed, UNNAMED, {})


def write_vllm_hook(split: Split, path: Path) -> dict[Path, bytes]:
    by_layer: dict[int, list[int]] = {}
    for head in split.retrieval:
        by_layer.setdefault(head.layer, []).append(head.index)
    config = {
        "model_info": {"name": split.model, "model_id": split.model},
        "params": {"important_heads": [[layer, head] for layer, heads in by_layer.items() for head in heads]},
        KEY: _describe(split, split.unit),
    }
    text = ";".join(f"{layer}:{','.join(map(str, heads))}" for layer, heads in by_layer.items())
    return {path: _json(config), path.with_suffix(".layer_heads.txt"): f"{text}\n".encode()}


# ---------------------------------------------------------------------------- llama.cpp: llama.cpp's pull request 20086


def llama_in(document: Mapping[str, Any], path: Path) -> HeadList:
    entries = document["token_alignment_heads"]
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in cast("list[Any]", entries)):
        raise _damaged(path, "token_alignment_heads is no list of JSON objects")
    listed: dict[Place, float] = {}
    for entry in cast("list[Mapping[str, Any]]", entries):
        place = _pair([entry.get("layer"), entry.get("head")], path)
        listed[place] = _number(entry.get("ts"), path, f"L{place[0]}H{place[1]}")
    counts = {name: document.get(name) for name in ("num_layers", "num_heads")}
    if any(count is not None and (type(count) is not int or not 0 < count < 10**6) for count in counts.values()):
        raise _damaged(path, f"{str(counts)[:80]} are no counts")
    described = _description(document.get(KEY), path)
    unit = f"{described.get('unit', 'ts, translation score')}; 0 where a head is not listed"
    return _naming("llama.cpp", listed, unit, described, **counts)


def write_llama(split: Split, path: Path) -> dict[Path, bytes]:
    scores = [layer.query_scores or repeated(layer.scores, layer) for layer in split.layers]
    ranked = sorted(split.retrieval, key=lambda head: (-scores[head.layer][head.index], head))
    heads = [{"layer": head.layer, "head": head.index, "ts": scores[head.layer][head.index]} for head in ranked]
    document = {
        "model": split.model,
        "num_layers": len(split.layers),
        "num_heads": max(layer.num_heads for layer in split.layers),
        "token_alignment_heads": heads,
        KEY: _describe(split, split.unit),
    }
    return {path: _json(document)}


def _naming(
    format: str, listed: dict[Place, float], unit: str, described: Mapping[str, Any], **counts: Any
) -> HeadList:
    """A list that names the heads that are kept, and no others."""
    return HeadList(format, "query", listed, unit, whole=False, kept=frozenset(listed), described=described, **counts)


WRITERS: dict[str, Callable[[Split, Path], dict[Path, bytes]]] = {
    "duo": write_duo,
    "headkv": write_headkv,
    "lukv": write_lukv,
    "minference": write_minference,
    "vllm-hook": write_vllm_hook,
    "llama.cpp": write_llama,
}
"""Each takes a split and a path, and returns the bytes of each file. Errors: HeadError for what a format cannot say."""

FORMATS = tuple(WRITERS)
ENDINGS = {"duo": "", "lukv": ".npy"}  # of other formats: .json


def write_heads(split: Split, format: str, place: str | os.PathLike[str]) -> list[Path]:
    """Write a split as another project's list of heads, as `HeadSplit.export` says."""
    if format not in WRITERS:
        raise HeadError(f"there is no format {format!r} of lists of heads: use {', '.join(FORMATS)}.")
    path = Path(os.path.expanduser(place))
    ending = ENDINGS.get(format, ".json")
    if ending and path.suffix.lower() != ending:
        raise FileAccessError(f"cannot write {path}: a list for {format} is a file that ends in {ending}.")
    files = WRITERS[format](split, path)
    made = False
    if not ending:
        # A model's folder has a config.json, too, which must not be lost.
        if os.path.lexists(path / CONFIG):
            config = json_in(file_bytes(path / CONFIG), path / CONFIG)
            if not isinstance(config, Mapping) or KEY not in config:
                raise FileAccessError(
                    f"cannot write {path}: there is a {CONFIG} that no export to duo wrote, and it would be lost. Name "
                    f"a new folder."
                )
        try:
            made = not path.exists()
            path.mkdir(exist_ok=True)
        except (OSError, ValueError) as error:
            raise no_access("write", path, error) from error
    try:
        with ExitStack() as replacements:  # the first takes its place when all are written
            for file, data in files.items():
                Path(replacements.enter_context(replacing(file))).write_bytes(data)
    except BaseException:
        if made:
            path.rmdir()
        raise
    return list(files)


# ----------------------------------------------------------------------------------------------- checks of what is read


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
        raise FileAccessError(f"{path} is no JSON{f', {meant}' if meant else ''}: {error}.") from error


LONGEST_VARIABLE = 1 << 17  # bytes of a variable of the environment, as Linux has them
_INDEX = re.compile(r"[0-9]{1,6}")
_LAYER_HEAD = re.compile(r"[0-9]{1,6}-[0-9]{1,6}")
_LAYER_HEADS = re.compile(rb"[0-9]{1,6}:[0-9]{1,6}(,[0-9]{1,6})*(;[0-9]{1,6}:[0-9]{1,6}(,[0-9]{1,6})*)*")


def _damaged(path: Path, why: str | BaseException) -> FileAccessError:
    words = first_line(why) if isinstance(why, BaseException) else why
    return FileAccessError(f"{path} is damaged: {words.rstrip('.')}.")


def _number(value: object, path: Path, of: str) -> float:
    """Errors: FileAccessError for what is no number, or none that float64 holds."""
    try:
        number = float(cast("float", value)) if type(value) in (int, float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _damaged(path, f"{of} has a score that is no finite number")
    return number


def _pair(pair: object, path: Path) -> Place:
    entries = cast("list[Any]", pair) if isinstance(pair, list) else []
    if len(entries) != 2 or any(type(entry) is not int or not 0 <= entry < 10**6 for entry in entries):
        raise _damaged(path, f"{str(pair)[:40]} is no layer and head")
    return entries[0], entries[1]


# --------------------------------------------------------------------------------------------- of which model a list is


def _describe(split: Split, unit: str, data: bytes | None = None) -> dict[str, Any]:
    """What no format has room for; for a file beside it, with the digest of that file's `data`."""
    return {
        "kind": KIND,
        "model": split.model,
        "weights_hash": split.weights_hash,
        "stack": split.stack,
        "layer_numbers": OWN_NUMBERS,
        "kept": _num_kept(split),
        "sink": split.sink,
        "recent": split.recent,
        "unit": unit,
        "joined": split.joined,
        **({} if data is None else {"sha256": hashlib.sha256(data).hexdigest()}),
    }


def _with_description(split: Split, path: Path, data: bytes, unit: str) -> dict[Path, bytes]:
    return {path: data, path.with_name(path.name + BESIDE): _json(_describe(split, unit, data))}


def _description(entry: object, path: Path, data: bytes | None = None, of: Path | None = None) -> Mapping[str, Any]:
    """What `_describe` wrote; {} where nothing is. Errors: FileAccessError, also where `data` was changed since."""
    if entry is None:
        return {}
    known = cast("Mapping[str, Any]", entry) if isinstance(entry, Mapping) else {}
    texts = ("model", "weights_hash", "stack", "unit", "joined")
    least = {"kept": 0, "sink": 0, "recent": 1}
    if (
        known.get("kind") != KIND
        or any(not isinstance(known.get(name), str) for name in texts)
        or any(type(known.get(name)) is not int or known[name] < number for name, number in least.items())
    ):
        raise _damaged(path, "what stands there of the list's model was not written by manyheads")
    if data is not None and known.get("sha256") != hashlib.sha256(data).hexdigest():
        raise FileAccessError(
            f"{of} was changed since manyheads wrote it, and what {path} says of its model may no longer hold: export "
            f"the list again, or remove that."
        )
    return known


def _description_beside(path: Path, data: bytes) -> Mapping[str, Any]:
    beside = path.with_name(path.name + BESIDE)
    return _description(json_in(file_bytes(beside), beside), beside, data, path) if os.path.lexists(beside) else {}


# --------------------------------------------------------------------------------------------------- numbers of a split


def repeated(values: Iterable[Any], layer: SplitLayer) -> list[Any]:
    """What is so of key/value heads, for each of their query heads."""
    size = layer.num_heads // max(1, layer.num_kv_heads)
    return [value for value in values for _ in range(size)]


def join_scores(values: Sequence[float], how: str) -> float:
    """The scores of a group's query heads as one: their mean, else the largest."""
    # Equal numbers have that mean, which a division could miss by a rounding.
    return math.fsum(value / len(values) for value in values) if how == "mean" and len({*values}) > 1 else max(values)


def _joined(layer: SplitLayer, how: str) -> list[float]:
    size = layer.num_heads // max(1, layer.num_kv_heads)
    return [
        join_scores(layer.query_scores[size * index : size * (index + 1)], how) for index in range(layer.num_kv_heads)
    ]


def _num_kept(split: Split) -> int:
    return sum(sum(layer.kept) for layer in split.layers)


def _divides(split: Split, scores: Iterable[Iterable[float]]) -> bool:
    """Whether the kept heads are those with the largest scores, and a clear step above all others."""
    largest: list[float] = []
    smaller = [0.0 for layer in split.layers if not layer.num_heads]  # rows of tables that must not be chosen
    for layer, layer_scores in zip(split.layers, scores, strict=True):
        for keeps, score in zip(layer.kept, layer_scores, strict=True):
            (largest if keeps else smaller).append(score)
    return not largest or not smaller or min(largest) - max(smaller) > APART


def _are_shares(scores: Iterable[Iterable[float]]) -> bool:
    """Whether all are from 0 to 1, and not all are 0, for budgets are shares of their sum."""
    values = [score for layer in scores for score in layer]
    return all(0 <= score <= 1 for score in values) and any(values)


def _dividing(split: Split) -> tuple[list[list[float]], str]:
    """A number from 0 to 1 for each key/value head that puts the kept ones first, and what it is.

    The scores themselves where they do, else each head's place among all: under 0.5 where it streams, above where not.
    """
    scores = [list(layer.scores) for layer in split.layers]
    if _divides(split, scores) and _are_shares(scores):
        return scores, split.unit
    ranked = sorted(
        (not keeps, -score, number, index)
        for number, layer in enumerate(split.layers)
        for index, (keeps, score) in enumerate(zip(layer.kept, layer.scores, strict=True))
    )
    num_kept, total = _num_kept(split), len(ranked)
    for rank, (streams, _, number, index) in enumerate(ranked):
        share = (total - rank) / (total - num_kept + 1) if streams else 1 + (num_kept - rank) / num_kept
        scores[number][index] = 0.5 * share
    return scores, f"place by {split.unit}: above 0.5 where a head keeps everything"


def _table(
    split: Split, values: Iterable[Sequence[float]], format: str, noun: str, absent: float = 0.0
) -> Float64[np.ndarray, "layers heads"]:
    """Layers x heads; `absent` in layers without attention. Errors: HeadError where layers have unlike numbers."""
    rows = [list(row) for row in values]
    counts = sorted({len(row) for row in rows} - {0})
    if len(counts) != 1:
        raise HeadError(
            f"a list for {format} has as many {noun} in every layer, and layers of {split.model} have "
            f"{' or '.join(map(str, counts))}: export to minference, vllm-hook or llama.cpp, which name each head."
        )
    return np.array([row or [absent] * counts[0] for row in rows], dtype=np.float64)


def _json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, indent=1).encode()
