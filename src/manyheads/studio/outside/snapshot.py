"""A snapshot: what a page needs to live without a server, which the single file and a saved notebook carry.

It holds one recording's atlas, cards, maps and strongest links. A short text's maps are exact; of a longer one each
head's map is kept in blocks, by mean and by largest (those a level coarser), beside the exact strongest links of every
row; an exact snapshot holds q, k and the log-sum-exp instead, from which the page computes any cell (`factors`). The
snapshot says which of these it is; what it does not hold, the page cannot invent, and says so.

Cost: one pass over all exact weights (72 heads, 512 tokens: 0.6 s), 1.4 MB; an exact one: 2 s, 4.3 MB. Format: an
envelope of gzipped envelopes (`views.maps`), read by web/src/lib/api/snapshot.ts.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy import ndarray

from manyheads import __version__
from manyheads.base import users_home
from manyheads.recording import LayerRecord
from manyheads.recording.exact_map.zoom import read_region
from manyheads.studio.outside.factors import factors_of
from manyheads.studio.schema.base import FileEntry, Limits, ModelEntry, Workspace
from manyheads.studio.schema.recordings import HeadCard, LayerInfo, RecordingInfo
from manyheads.studio.session import Desk
from manyheads.studio.state.recordings import Opened
from manyheads.studio.views.atlas import atlas_of, card_of
from manyheads.studio.views.maps import MIN_MISSING, in_steps, pack

FORMAT = 2
PACKED_BYTES = 1_600_000  # more texts (or windows) are added up to this size
MAP_CELLS = 1_200_000  # of all heads' maps together: 72 maps of 128 x 128 are 0.75 MB, packed
FLOAT_CELLS = 150_000  # up to so many exact weights are kept as they are; more, to 1/65,534
NUM_LINKS, MOST_LINKS = 200_000, 10  # of all heads together; of one row
WHOLE_CELLS = 1 << 22  # of one head's map: up to 2,048 tokens every cell is read, beyond there are no links of rows
SAMPLED_CELLS = 1 << 25  # of one head's map; of a longer text rows are sampled
COARSEST = 40
STEPS, ABSENT, LINK_STEPS = 65_534, 65_535, 65_535
NO_ROLES = "it was not measured when this page was saved"
CACHE_FILE = re.compile(r" \([^()]*page-[0-9a-f]+\.json\)")  # where labels are kept on this machine's disk
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Snapshot:
    """The packed bytes, and what they hold, in words."""

    data: bytes
    words: str


def snapshot_of(
    desk: Desk,
    opened: Opened,
    progress: Progress | None = None,
    note: str = "",
    exact: bool | str = False,
    lessons: bytes = b"",
) -> Snapshot:
    """Pack a recording: its first text (or window), and the next ones as long as they are small.

    `exact`: with q, k and lse, as `factors_of` keeps them; "float16" or "float32" chooses how. Errors: RecordingError.
    `lessons`: those of `saved_lessons`, which are put beside the recording as they are.

    Roles are those that the desk knows by now. `progress` is called with heads done and heads in all (of one text).
    `note` is added to its words.
    """
    infos, parts, size = [], [], 0
    for text in range(opened.num_texts):
        if parts and size + len(parts[-1]) > PACKED_BYTES:
            break  # the next one will hardly be smaller: it is not even read
        info, part = _part(desk, opened, text, progress, exact)
        if parts and size + len(part) > PACKED_BYTES:
            break
        infos.append(info)
        parts.append(part)
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
    return Snapshot(pack({"format": FORMAT}, head=zipped, **arrays), words)


def saved_workspace(models: Sequence[str], listed: list[FileEntry], first: str) -> dict[str, Any]:
    """The workspace of a page without a server, as JSON: its models cannot be run."""
    because = "this page was saved"
    return Workspace(
        version=__version__,
        models=[
            ModelEntry(
                name=name, title=name, sample="", bundled=False, loaded=False, unavailable=because, device="", pair=None
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
    desk: Desk, opened: Opened, text: int, progress: Progress | None, exact: bool | str
) -> tuple[RecordingInfo, bytes]:
    """One text: its description, and everything else of it, packed."""
    info = desk.info(opened, text)
    labels, layers = desk.labels.of(opened), opened.layers()
    atlas = atlas_of(opened, text, labels)
    because = NO_ROLES if labels is None else _shareable(atlas.roles_because)
    header = {
        "atlas": atlas.model_copy(update={"roles_because": because}).model_dump(mode="json"),
        "cards": [_card(card_of(opened, str(head), text, labels)) for layer in layers for head in layer.site.heads],
    }
    if exact:
        factors = factors_of(layers, text, exact if isinstance(exact, str) else None)
        info = info.model_copy(update={"notes": {**info.notes, "held": factors.words}})
        return info, _zipped(pack({**header, "factors": factors.header}, **factors.arrays))
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
        "notes": {**info.notes, "held": precision.words + sampled},
    }
    return info.model_copy(update=changes), _zipped(pack(header, **arrays))


def bundle() -> tuple[str, str]:
    """The built page that shows a snapshot: its module and its style sheet."""
    folder = files("manyheads.studio") / "static"
    js, css = ((folder / name).read_text(encoding="utf-8") for name in ("studio.js", "studio.css"))
    return js, css


def _card(card: HeadCard) -> dict[str, Any]:
    """A card without what the atlas and the recording's description hold already: definitions, its layer."""
    return {
        **card.model_dump(mode="json", include={"head", "kv_group", "shares_with", "exact", "because", "caveat"}),
        "values": [[value.statistic.name, value.value, value.chance, value.page] for value in card.values],
        "links": [[link.query, link.key, link.weight] for link in card.links],
        "layer": card.layer.name,
        "role": None if card.role is None else card.role.model_dump(mode="json"),
    }


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
                f"to 0.4% of the map's largest"
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
        return f"{pooling} of {side} x {side} cells, to 0.4% of the map's largest{sampled}"


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


def _byte_planes(values: ndarray) -> ndarray:
    """uint16 as all high bytes, then all low bytes."""
    return np.stack([values >> 8, values & 255]).astype(np.uint8)
