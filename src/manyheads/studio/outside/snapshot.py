"""A snapshot: what a page needs to live without a server, which the single file and a saved notebook carry.

It holds one recording's atlas, cards, maps and strongest links, and what the head that it begins with says at its word.
With the model at hand it holds that word's forward pass, and on the model's own sample its look once a word changes.
A short text's maps are exact; of a longer one each head's map is kept in blocks, by mean and by largest (those a level
coarser), beside the exact strongest links of every row. An exact snapshot holds q, k, the log-sum-exp and, where it is
small, v instead, from which the page computes any cell, and what any head says (`Factors`); in a folder each layer's
numbers are a file of their own, which the page fetches when a head of that layer is opened. The snapshot says which of
these it is; what it does not hold, the page cannot invent, and says so.

Cost: one pass over all exact weights (72 heads, 512 tokens: 0.6 s), 1.4 MB; an exact one, two windows of every map
for the factors (2 s), 4.2 MB. Format: an envelope of gzipped envelopes (`views.maps`), read by
web/src/lib/api/snapshot.ts; the page computes cells in web/src/lib/exact/factors.ts.

The arrays of the outer envelope are `head` (gzipped JSON: the workspace, each text's description), `text0`, `text1`,
... and, in a single file, `lessons`. A text's header holds its atlas and cards, and either maps (`mean0`, `max0`,
`keys0`, `links0` of layer 0) or factors: `q0` (`h q d`), `k0` (`g k d`) as `bytes, n`, their highest bytes first;
`lse0` (`h q`, float32); `start0`, `stop0` (`q`, uint32), a mask's runs; `dense0`, its cells, eight to a byte, where a
row's keys are not a run; `bias0`, added to the scores. A single file writes bytes as text: 13 bits in two of 91
characters (33 to 126 without `"`, `<` and `\\`), the first character 91 times the second one's place.

Factors of a map: `weight[i, j] = exp(score(q_i, k_j) - lse_i)`: 72 maps of 512 x 512 cells are 18.9 million weights,
and their factors 2.4 million numbers. These are kept in float32 where that is small, else in float16. Rows of rounded q
and k have another sum, so in float16 the lse is that of the rounded factors: every row adds up to 1 (or to what a sink
leaves), and the largest difference to the recording's own weights is measured and said.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from manyheads import __version__
from manyheads.attention import attend
from manyheads.base import users_home
from manyheads.corpora import reading_of
from manyheads.errors import ManyHeadsError, RecordingError
from manyheads.progress import Progress
from manyheads.recording import Layer, LayerRecord, one_text
from manyheads.recording.exact_map import read_region, window_weights
from manyheads.studio.schema.base import Alternatives, FileEntry, Limits, ModelEntry, Workspace
from manyheads.studio.schema.recordings import Atlas, KeptScenes, LayerInfo, RecordingInfo, SwapAsk
from manyheads.studio.session import StudioSession
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import first_swap
from manyheads.studio.views.atlas import atlas_of, card_of
from manyheads.studio.views.maps import MIN_MISSING, in_steps, pack
from manyheads.studio.views.outputs import model_of, output_of, pass_of
from manyheads.studio.views.recording import units_of
from manyheads.units import gb

FORMAT = 3
PACKED_BYTES = 1_600_000  # more texts (or windows) are added up to this size
MAP_CELLS = 1_200_000  # of all heads' maps together: 72 maps of 128 x 128 are 0.75 MB, packed
FLOAT_CELLS = 150_000  # up to so many exact weights are kept as they are; more, to 1/65,534
NUM_LINKS, MOST_LINKS = 200_000, 10  # of all heads together; of one row
WHOLE_CELLS = 1 << 22  # of one head's map: up to 2,048 tokens every cell is read, beyond there are no links of rows
SAMPLED_CELLS = 1 << 25  # of one head's map; of a longer text rows are sampled
COARSEST = 40
STEPS, ABSENT, LINK_STEPS = 65_534, 65_535, 65_535
NO_ROLES = "it was not measured when this page was saved"
THUMBNAIL = 64  # cells a side at most, as in web/src/lib/api/snapshot.ts
SAID_KEYS = 24  # columns of what a head says, in a saved page
PASS_TOKENS = 512  # of a longer text no forward pass is kept: the pass back through the layers would take long
CACHE_FILE = re.compile(r" \([^()]*page-[0-9a-f]+\.json\)")  # where labels are kept on this machine's disk


@dataclass(frozen=True)
class Snapshot:
    """The packed bytes, and what they hold, in words.

    `layers`: where they are kept apart, each layer's packed numbers by the text's and the layer's place, as "0-12".
    """

    data: bytes
    words: str
    layers: dict[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def num_bytes(self) -> int:
        return len(self.data) + sum(map(len, self.layers.values()))


def snapshot_of(
    desk: StudioSession,
    opened: Opened,
    progress: Progress | None = None,
    note: str = "",
    exact: bool | str = False,
    lessons: bytes = b"",
    apart: bool = False,
) -> Snapshot:
    """Pack a recording: its first text (or window), and the next ones as long as they are small.

    `exact`: with q, k and lse, as `factors_of` keeps them; "float16" or "float32" chooses how. Errors: RecordingError.
    `lessons`: those of `saved_lessons`, which are put beside the recording as they are.
    `apart`: of an exact one, each layer's numbers by themselves, and every head's map, small, in their place.

    Roles are those that the desk knows by now. `progress` is called with heads done and heads in all (of one text).
    `note` is added to its words.
    """
    infos, parts, size = [], [], 0
    apart_layers: dict[str, bytes] = {}
    for text in range(opened.num_texts):
        if parts and size + len(parts[-1]) > PACKED_BYTES:
            break  # the next one will hardly be smaller: it is not even read
        info, part, layers = _part(desk, opened, text, progress, exact, apart)
        if parts and size + len(part) > PACKED_BYTES:
            break
        infos.append(info)
        parts.append(part)
        apart_layers |= layers
        size += len(part)
    num_heads = sum(layer.num_heads for layer in infos[0].layers)
    words = f"{num_heads} heads on {infos[0].num_tokens:,} tokens: {infos[0].notes['held']}"
    if opened.num_texts > 1:
        first = "the first" if len(infos) == 1 else f"the first {len(infos)}"
        words += f"; of {opened.num_texts} texts or windows, {'all' if len(infos) == opened.num_texts else first}"
    words = "; ".join(filter(None, (words, note)))
    model = _shareable(opened.model)
    saved = []  # the recording's descriptions, as they are true of the saved page
    for info in infos:
        notes = {key: _shareable(value) for key, value in info.notes.items() if key != "held"} | {"saved": words}
        changes = {"model_here": False, "num_texts": len(parts), "notes": notes, "model": model}
        saved.append(info.model_copy(update={**changes, "because": _shareable(info.because)}).model_dump(mode="json"))
    head = {"workspace": saved_workspace([model], [], opened.id), "infos": saved, "words": words}
    arrays = {f"text{index}": np.frombuffer(part, np.uint8) for index, part in enumerate(parts)}
    if lessons:
        arrays["lessons"] = np.frombuffer(lessons, np.uint8)
    zipped = np.frombuffer(_zipped(json.dumps(head).encode()), np.uint8)
    return Snapshot(pack({"format": FORMAT}, head=zipped, **arrays), words, apart_layers)


def saved_workspace(models: Sequence[str], listed: list[FileEntry], first: str) -> dict[str, Any]:
    """The workspace of a page without a server, as JSON: its models cannot be run."""
    because = "this page was saved"
    return Workspace(
        version=__version__,
        models=[
            ModelEntry(
                name=name,
                title=name,
                sample="",
                question=None,
                swap=None,
                bundled=False,
                loaded=False,
                unavailable=because,
                device="",
                pair=None,
            )
            for name in map(_shareable, models)
        ],
        files=listed,
        default_model=None,
        default_text="",
        opened=first,
        folder="",
        can_write=False,
        limits=Limits(max_text=0, max_steps=0, max_running=0),
    ).model_dump(mode="json")


def _shareable(words: str) -> str:
    """Words without the user's name, for a page that is sent to others: no cache file; a home folder becomes "~"."""
    words, home = CACHE_FILE.sub("", words), str(users_home() or "")
    return words.replace(home, "~") if len(home) > 1 else words


def _part(
    desk: StudioSession, opened: Opened, text: int, progress: Progress | None, exact: bool | str, apart: bool
) -> tuple[RecordingInfo, bytes, dict[str, bytes]]:
    """One text: its description, everything else of it, packed, and what is kept apart."""
    info = desk.info(opened, text)
    labels, layers = desk.labels.of(opened), opened.layers()
    atlas = atlas_of(opened, text, labels)
    because = NO_ROLES if labels is None else _shareable(atlas.roles_because)
    # Cards without what the atlas and the recording's description hold: roles, values, definitions, their layers.
    kept_fields = {"head", "kv_group", "shares_with", "exact", "because", "caveat"}
    cards = [card_of(opened, str(head), text, labels) for layer in layers for head in layer.site.heads]
    header: dict[str, Any] = {
        "atlas": atlas.model_copy(update={"roles_because": because}).model_dump(mode="json"),
        "cards": [
            {
                **card.model_dump(mode="json", include=kept_fields),
                "levels": [[value.statistic.name, value.chance, value.page] for value in card.values],
                "links": [[link.query, link.key, link.weight] for link in card.links],
                "layer": card.layer.name,
            }
            for card in cards
        ],
    }
    factors = factors_of(layers, text, exact if isinstance(exact, str) else None) if exact else None
    # A long exact page is near its limit: it keeps what its first head says, and not the layer's twelve times as much.
    with_layer = factors is None or factors.header["dtype"] == "float32"
    header["said"], outputs, kept_words = said_of(desk, opened, atlas, text, with_layer)
    kept_scenes, header["swaps"], scenes, scene_words = scenes_of(desk, opened, info, header["said"], text)
    info, outputs, kept_words = (
        info.model_copy(update={"kept": kept_scenes}),
        outputs | scenes,
        kept_words + scene_words,
    )
    if factors is not None:
        info = info.model_copy(update={"notes": {**info.notes, "held": factors.words + kept_words}})
        header["factors"] = factors.header
        if not apart:
            return info, _zipped(pack(header, **factors.arrays, **outputs)), {}
        header["thumbnails"], thumbnails = thumbnails_of(layers, text, factors)
        owners = {f"{name}{index}": index for index in range(len(layers)) for name in ("q", "k", "v", "lse")}
        shared = {name: values for name, values in factors.arrays.items() if name not in owners}
        by_layer: dict[str, dict[str, ndarray]] = {}
        for name in owners.keys() & factors.arrays.keys():
            by_layer.setdefault(f"{text}-{owners[name]}", {})[name] = factors.arrays[name]
        packed_layers = {
            place: _zipped(pack({}, **{name: arrays[name] for name in sorted(arrays)}))
            for place, arrays in sorted(by_layer.items())
        }
        return info, _zipped(pack(header, **shared, **thumbnails, **outputs)), packed_layers
    precision = precision_of(info.layers)
    done, num_heads = 0, sum(layer.num_heads for layer in info.layers)
    arrays, sampled = {}, ""
    for index, layer in enumerate(layers):
        maps = [read_map(layer, head, text, precision) for head in range(layer.site.num_heads)]
        sampled = sampled or maps[0].sampled
        arrays |= {f"{name}{index}": values for name, values in packed(maps, precision).items()}
        done += len(maps)
        if progress is not None:
            progress(done, num_heads)
    header["maps"] = {
        "coding": precision.coding,
        "level": precision.level,
        "words": {
            "mean": precision.map_words("mean", sampled),
            "max": precision.map_words("max", sampled),
            "links": precision.links_words,
        },
        "exact": not sampled,
        "links": precision.links,
    }
    changes = {
        "min_level": precision.level,
        "max_level": max(info.max_level, precision.level),
        "notes": {**info.notes, "held": precision.words + sampled + kept_words},
    }
    return info.model_copy(update=changes), _zipped(pack(header, **arrays, **outputs)), {}


def said_of(
    desk: StudioSession, opened: Opened, atlas: Atlas, text: int, with_layer: bool
) -> tuple[dict[str, Any] | None, dict[str, ndarray], str]:
    """What the head that a page begins with says at the word that it links, and its layer: the server's own answers.

    Returns which these are, the envelopes, and in words what is kept. None where no two words see each other, or values
    were not kept. With the model at hand they hold what is added to the stream; an exact page computes all but that of
    any other head.
    """
    telling = atlas.telling
    if telling is None or opened.layer_of(telling.head)[0].v is None:
        return None, {}, ""
    # A word in pieces asks with its last one, as everywhere.
    query = next(unit.tokens[-1] for unit in units_of(opened, text) if telling.query in unit.tokens)
    layer = telling.head.rpartition("H")[0]
    envelopes = {
        f"said_{name}": np.frombuffer(
            output_of(desk.workspace, opened, telling.head if name == "head" else layer, query, SAID_KEYS, text),
            np.uint8,
        )
        for name in ("head", "layer")[: 1 + with_layer]
    }
    whose = f"{telling.head} and its layer say" if with_layer else f"{telling.head} says"
    return {"head": telling.head, "layer": layer, "query": query}, envelopes, f"; what {whose} at token {query}"


def scenes_of(
    desk: StudioSession, opened: Opened, info: RecordingInfo, said: dict[str, Any] | None, text: int
) -> tuple[KeptScenes | None, dict[str, Any], dict[str, ndarray], str]:
    """The scenes that need the model, as a saved page keeps them for the word and the head that it begins with.

    Returns which these are, a changed word's looks by the new word, the envelope of a forward pass, and in words what
    is kept; nothing without the model, and nothing of a model that the scenes cannot read. Cost: two forward passes and
    one back through the layers; of a model's own sample, one more for each word in the place of another.
    """
    if said is None or opened.edited or model_of(desk.workspace, opened) is None:
        return None, {}, {}, ""
    # A model that goes on with its text ends the scene in the next word: its last token's pass is kept.
    token = info.num_tokens - 1 if info.layers[0].causal else said["query"]
    arrays, passes = {}, []
    if info.num_tokens <= PASS_TOKENS:
        with suppress(ManyHeadsError):
            arrays["pass"] = np.frombuffer(pass_of(desk.workspace, opened, token, text), np.uint8)
            passes.append(token)
    swaps, offer, place = {}, first_swap(opened.model), None
    if offer is not None and opened.num_texts == 1 and info.written == reading_of(opened.model).sentence:
        place = next((word for word in reversed(info.words) if word.text == offer.word), None)
    if offer is not None and place is not None:
        for word in offer.words:
            ask = SwapAsk(at=place.begin, query=said["query"], word=word, heads=[said["head"]])
            with suppress(ManyHeadsError):
                swaps[word] = desk.swap(opened, ask, lambda *_: None).model_dump(mode="json")
    if not passes and not swaps:
        return None, {}, {}, ""
    swap = Alternatives(word=offer.word, words=list(swaps)) if offer is not None and swaps else None
    kept_scenes = KeptScenes(
        head=said["head"], query=said["query"], passes=passes, swap=swap, at=place.begin if place is not None else 0
    )
    words = f"; the forward pass of token {token}" if passes else ""
    return kept_scenes, swaps, arrays, words + (f"; “{offer.word}” changed" if offer is not None and swaps else "")


def program(name: str) -> bytes:
    """A part of the built page that is loaded when it is needed, gzipped; b"" where the page was built without it."""
    file = files("manyheads.studio") / "static" / f"{name}.js"
    return gzip.compress(file.read_bytes(), 9, mtime=0) if file.is_file() else b""


def bundle() -> tuple[str, str]:
    """The built page that shows a snapshot: its module and its style sheet."""
    folder = files("manyheads.studio") / "static"
    js, css = ((folder / name).read_text(encoding="utf-8") for name in ("studio.js", "studio.css"))
    return js, css


def _zipped(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)  # no time in it: the same recording gives the same bytes


@dataclass(frozen=True)
class Precision:
    """How much of a text is kept: the level of its maps (0: exact), their cells in all, links per row (0: none)."""

    level: int
    cells: int
    links: int

    @property
    def coding(self) -> str:
        return "steps8" if self.level else "float32" if self.cells <= FLOAT_CELLS else "steps16"

    @property
    def words(self) -> str:
        if self.level == 0:
            maps = "every weight, exact" + ("" if self.coding == "float32" else f" to 1/{STEPS:,}")
        else:
            mean, largest = 1 << self.level, 2 << self.level
            maps = (
                f"every head's map by the mean of {mean} x {mean} cells and by the largest of {largest} x {largest}, "
                f"to 0.4 % of the map's largest"
            )
        return maps + (f"; {self.links_words}" if self.links else "")

    @property
    def links_words(self) -> str:
        most = f"the {self.links} strongest of each row" if self.links > 1 else "the strongest of each row"
        return f"{most}, exact to 1/{LINK_STEPS:,}" if self.links else ""

    def map_words(self, how: str, sampled: str) -> str:
        """What a cell of the maps by "mean" or "max" holds; `sampled` as in `HeadMap`."""
        if self.level == 0:
            return "exact weights" if self.coding == "float32" else f"weights, exact to 1/{STEPS:,}"
        pooling, side = ("mean", 1 << self.level) if how == "mean" else ("largest", 2 << self.level)
        return f"{pooling} of {side} x {side} cells, to 0.4 % of the map's largest{sampled}"


@dataclass(frozen=True, eq=False)
class HeadMap:
    """One head's map as it is kept.

    `sampled`: in words, which rows were read, "" for all. `visible` and `missing` (of each row) are None where not
    every cell was read, `keys` and `weights` where no links are kept.
    """

    mean: ndarray
    max: ndarray
    sampled: str = ""
    visible: ndarray | None = None
    missing: ndarray | None = None
    keys: ndarray | None = None
    weights: ndarray | None = None


def precision_of(layers: Sequence[LayerInfo]) -> Precision:
    """The finest level at which all maps together are small enough, and the links that fit beside it."""

    def cells(level: int) -> int:
        side = 1 << level
        return sum(layer.num_heads * -(-layer.num_queries // side) * -(-layer.num_keys // side) for layer in layers)

    # The last level is taken whatever its size, so that there always is one.
    level = next(level for level in range(COARSEST + 1) if cells(level) <= MAP_CELLS or level == COARSEST)
    rows = sum(layer.num_heads * layer.num_queries for layer in layers)
    reads_all = max(layer.num_queries * layer.num_keys for layer in layers) <= WHOLE_CELLS
    links = min(MOST_LINKS, NUM_LINKS // max(1, rows)) if level and reads_all else 0
    return Precision(level, cells(level), links)


def read_map(layer: LayerRecord, head: int, text: int, precision: Precision) -> HeadMap:
    """One head's map as it is kept. Cost: one pass over its exact weights, or over sampled rows of a long text."""
    rows, keys = slice(0, layer.num_queries(text)), slice(0, layer.num_keys(text))
    level, reads_all = precision.level, rows.stop * keys.stop <= WHOLE_CELLS
    levels, most = (range(0, level + 1), None) if reads_all else (range(level, level + 1), SAMPLED_CELLS)
    region = read_region(layer, head, rows, keys, levels, text=text, most_cells=most)
    mean, largest = region.levels[-1].mean.numpy(), region.levels[-1].max.numpy()
    # The next coarser level of maxima. Odd sides get an absent (NaN) row or column, which fmax passes over.
    padded = np.pad(largest, [(0, size % 2) for size in largest.shape], constant_values=np.nan)
    coarser = np.fmax(np.fmax(padded[::2, ::2], padded[1::2, ::2]), np.fmax(padded[::2, 1::2], padded[1::2, 1::2]))
    if not reads_all:
        sampled = "" if region.exact else f", {region.rows_read:,} of {region.rows_in_all:,} rows read"
        return HeadMap(mean, coarser, sampled)
    cells = region.levels[0].mean
    is_visible = cells.isfinite()
    weights = cells.nan_to_num(0.0)
    # The page cannot compute masks: how many keys a row saw, and what a sink took of it, is read off here.
    visible = is_visible.sum(-1).numpy().astype(np.uint32)
    missing = (1.0 - weights.double().sum(-1)).clamp_min(0).masked_fill(~is_visible.any(-1), 0).float().numpy()
    if not precision.links:
        return HeadMap(mean, coarser, "", visible, missing)
    strongest, key_positions = weights.topk(min(precision.links, keys.stop), dim=-1)
    order = key_positions.argsort(-1)  # in the order of keys their differences are small, and pack well
    link_keys, link_weights = key_positions.gather(-1, order).numpy(), strongest.gather(-1, order).numpy()
    return HeadMap(mean, coarser, "", visible, missing, link_keys, link_weights)


def packed(heads: Sequence[HeadMap], precision: Precision) -> dict[str, ndarray]:
    """One layer's arrays. Steps lie as differences, and high bytes before low ones: gzip packs these better."""

    def stacked(name: str) -> ndarray:
        return np.stack([getattr(head, name) for head in heads])

    out: dict[str, ndarray] = {}
    for name in ("mean", "max") if precision.level else ("mean",):
        maps = stacked(name)
        if precision.coding == "steps8":
            steps, out[f"{name}_peaks"] = in_steps(maps.astype(np.float32))
            # Each row less the one above it, modulo 256: neighbouring rows of a map are alike.
            out[name] = np.concatenate([steps[:, :1], steps[:, 1:] - steps[:, :-1]], axis=1)
        elif precision.coding == "steps16":
            steps = np.rint(np.nan_to_num(maps).clip(0, 1) * STEPS)
            out[name] = _byte_planes(np.where(np.isnan(maps), ABSENT, steps).astype(np.uint16))
        else:
            out[name] = maps.astype(np.float32)
    if precision.links:
        keys = stacked("keys").astype(np.uint16)
        out["keys"] = _byte_planes(np.diff(keys, axis=-1, prepend=np.uint16(0)).astype(np.uint16))
        out["links"] = _byte_planes(np.rint(stacked("weights").clip(0, 1) * LINK_STEPS).astype(np.uint16))
    if heads[0].visible is not None:
        visible, missing = stacked("visible"), stacked("missing")
        # In most layers all heads see the same keys: one row of counts stands for them.
        out["visible"] = visible[:1] if (visible == visible[:1]).all() else visible
        if missing.max(initial=0.0) > MIN_MISSING:
            out["missing"] = missing
    return out


def thumbnails_of(
    layers: Sequence[LayerRecord], text: int, factors: Factors
) -> tuple[dict[str, Any], dict[str, ndarray]]:
    """Every head's map at a level at which it is at most `THUMBNAIL` cells wide, and what they are, in words.

    The page computes the same from factors, where it has those of all layers.
    """
    longest = max(max(layer.num_queries(text), layer.num_keys(text)) for layer in layers)
    level = max(0, math.ceil(math.log2(longest / THUMBNAIL)))
    side = -(-longest // (1 << level))
    maps: dict[str, list[ndarray]] = {"mean": [], "max": []} if level else {"mean": []}
    sampled = ""
    for layer in layers:
        rows, keys = slice(0, layer.num_queries(text)), slice(0, layer.num_keys(text))
        for head in range(layer.site.num_heads):
            region = read_region(layer, head, rows, keys, range(level, level + 1), text=text, most_cells=SAMPLED_CELLS)
            sampled = sampled or ("" if region.exact else f", {region.rows_read:,} of {region.rows_in_all:,} rows read")
            for how, squares in maps.items():
                cells = getattr(region.levels[-1], how).numpy().astype(np.float32)
                # A stack with fewer tokens has smaller maps: absent cells fill the common square.
                ends = [(0, side - size) for size in cells.shape]
                squares.append(np.pad(cells, ends, constant_values=np.nan))
    arrays: dict[str, ndarray] = {}
    for how, squares in maps.items():
        arrays[f"small_{how}"], arrays[f"small_{how}_peaks"] = in_steps(np.stack(squares))
    cells = f"{1 << level} × {1 << level} cells{sampled}"
    words = {"mean": f"mean of {cells}", "max": f"largest of {cells}"} if level else dict.fromkeys(
        ("mean", "max"), factors.header["words"]
    )  # fmt: skip
    return {"side": side, "span": 1 << level, "words": words, "exact": not sampled}, arrays


def _byte_planes(values: ndarray) -> ndarray:
    """uint16 as all high bytes, then all low bytes."""
    return np.stack([values >> 8, values & 255]).astype(np.uint8)


def _float_planes(numbers: ndarray) -> ndarray:
    """Bytes of floats, all highest ones first, before the numbers' shape: signs and exponents pack, low bits do not."""
    little_endian = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<"))
    planes = little_endian.view(np.uint8).reshape(-1, numbers.itemsize).T[::-1]
    return np.ascontiguousarray(planes).reshape(numbers.itemsize, *numbers.shape)


DTYPES = ("float16", "float32")
WIDE_BYTES = 4_000_000  # of q and k together: up to so many they are kept in float32
MOST_BYTES = (
    64_000_000  # of all factors as they are kept: a browser opens a page of some 80 MB, and no sensible one more
)
MOST_VALUE_BYTES = 1_200_000  # an exact page holds values of all heads where they are no more, as they are kept
COMPARED_CELLS = 1 << 22  # of one head: up to so many, every weight is compared with the recording's
COMPARED_ROWS = 128  # of a longer text


@dataclass(frozen=True)
class Factors:
    """What a page needs to compute every cell of one text: arrays, the rule of each layer, and words for a reader."""

    header: dict[str, Any]
    arrays: dict[str, ndarray] = field(repr=False)
    words: str


def factors_of(layers: Sequence[LayerRecord], text: int, exact: str | None = None) -> Factors:
    """The factors of one text of all layers. `exact` is "float16" or "float32"; None: float32 up to `WIDE_BYTES`.

    Errors: RecordingError for more than `MOST_BYTES`, another dtype, or numbers that float16 cannot hold.
    """
    parts = [one_text(layer, text) for layer in layers]
    dtype = _dtype_of(parts, exact)
    arrays: dict[str, ndarray] = {}
    entries, masks, biases, differences = [], [], [], []
    values = [None if layer.v is None else layer.v[text, :, : layer.num_keys(text)] for layer in layers]
    num_values = sum(0 if v is None else v.numel() for v in values)
    holds_values = 0 < num_values * np.dtype(dtype).itemsize <= MOST_VALUE_BYTES
    for index, part in enumerate(parts):
        page_layer = part
        if dtype == "float16":
            q, k = part.q.half().float(), part.k.half().float()
            if not bool(q.isfinite().all() & k.isfinite().all()):
                raise RecordingError(
                    f"q or k of {layers[index].site.module} has numbers beyond {torch.finfo(torch.float16).max:,.0f}, "
                    f'which float16 cannot hold: give exact="float32".'
                )
            lse = attend(q, k, k.new_zeros(*k.shape[:3], 1), mask=part.mask, **part.rule.options).lse
            page_layer = Layer(q, k, lse, part.mask, part.rule, part.crosses)
            differences.append(_difference(part, page_layer))
        mask = part.mask
        # The first and last key of each row; where rows are no runs, the cells too, eight to a byte.
        runs: list[ndarray] = [ends[0].numpy().astype(np.uint32) for ends in (mask.start, mask.stop)]
        if mask.dense is not None:
            runs.append(np.packbits(mask.dense[0].cpu().numpy(), axis=-1))
        tensors = {"q": page_layer.q[0], "k": page_layer.k[0]}
        v = values[index] if holds_values else None
        # Numbers that float16 cannot hold are left out, not cut off.
        v = v if v is None or dtype == "float32" or bool(v.half().isfinite().all()) else None
        tensors |= {} if v is None else {"v": v}
        for name, tensor in tensors.items():
            # By columns: one coordinate of all positions is more alike than all coordinates of one, and packs better.
            arrays[f"{name}{index}"] = _float_planes(tensor.mT.cpu().float().numpy().astype(dtype))
        arrays[f"lse{index}"] = _float_planes(page_layer.lse[0].cpu().float().numpy())
        entries.append({
            "scale": part.rule.scale,
            "softcap": part.rule.softcap,
            "width": part.q.shape[-1],
            "value_width": None if v is None else v.shape[-1],
            "mask": _shared(masks, runs),
            "bias": None if part.rule.bias is None else _shared(biases, [part.rule.bias[0].cpu().float().numpy()]),
            "sinks": None if part.rule.sinks is None else part.rule.sinks.double().tolist(),
        })  # fmt: skip
    for number, (start, stop, *dense) in enumerate(masks):
        arrays |= {f"start{number}": start, f"stop{number}": stop} | {f"dense{number}": bits for bits in dense}
    arrays |= {f"bias{number}": bias for number, (bias,) in enumerate(biases)}
    cells, words = "exact weights", "every weight exact (computed in this page from q, k and each row's log-sum-exp)"
    of_values = "; values of every head" if any(name.startswith("v") for name in arrays) else ""
    if differences:
        rows_compared = min(rows for _, rows in differences)
        largest = max(difference for difference, _ in differences)
        # One figure, never less than the number: 0.00361 is "0.004".
        places = -math.floor(math.log10(largest)) if largest > 0 else 0
        bound = f"{math.ceil(largest * 10**places) / 10**places:.{max(places, 0)}f}"
        sampled = "" if rows_compared == math.inf else f"; compared in {rows_compared:,} rows of each head"
        cells = f"weights to {bound}: q and k are kept in float16"
        words = f"every weight to within {bound} (computed in this page from q and k in float16{sampled})"
    return Factors({"dtype": dtype, "words": cells, "layers": entries}, arrays, words + of_values)


def _dtype_of(parts: Sequence[Layer], exact: str | None) -> str:
    """Errors: RecordingError."""
    if exact is not None and exact not in DTYPES:
        raise RecordingError(f"exact={exact!r}: q and k are kept in {' or '.join(DTYPES)}; give one of these, or True.")
    count = sum(part.q.numel() + part.k.numel() for part in parts)
    dtype = exact or ("float32" if 4 * count <= WIDE_BYTES else "float16")
    biases = {id(part.rule.bias): part.rule.bias for part in parts if part.rule.bias is not None}
    num_bytes = count * np.dtype(dtype).itemsize + sum(4 * bias.numel() for bias in biases.values())
    if num_bytes > MOST_BYTES:
        raise RecordingError(
            f"the exact page would keep {gb(num_bytes)} of q and k in {dtype}, above its limit of {gb(MOST_BYTES)}: "
            f"take a shorter text, a page that is not exact, or the studio, which computes from the recording."
        )
    return dtype


def _difference(part: Layer, page_layer: Layer) -> tuple[float, float]:
    """The largest difference between a layer's weights and those of its kept factors; in how many rows (inf: all)."""
    num_rows, num_keys = part.q.shape[2], part.k.shape[2]
    compares_all = num_rows * num_keys <= COMPARED_CELLS
    count = min(num_rows, COMPARED_ROWS)
    rows = (
        [slice(0, num_rows)] if compares_all else [slice(r, r + 1) for r in range(0, num_rows, -(-num_rows // count))]
    )
    largest = 0.0
    for head in range(part.q.shape[1]):
        for row in rows:
            pair = [window_weights(layer, 0, [head], row, slice(0, num_keys)) for layer in (part, page_layer)]
            largest = max(largest, float((pair[0] - pair[1]).abs().max()))
    return largest, math.inf if compares_all else len(rows)


def _shared(known: list[list[ndarray]], arrays: list[ndarray]) -> int:
    """The number of equal arrays in `known`, to which they are added if there are none: most layers have one mask."""
    for number, known_arrays in enumerate(known):
        if len(known_arrays) == len(arrays) and all(map(np.array_equal, known_arrays, arrays)):
            return number
    known.append(arrays)
    return len(known) - 1
