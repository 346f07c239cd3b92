"""What a page needs to live without a server: one recording's atlas, cards, maps and strongest links, packed small.

The single file and a saved notebook carry it. A short text's maps are exact; of a longer one each head's map is kept in
blocks, by mean and by largest, beside the exact strongest links of every row. Everything says which of these it is.

Cost: one pass over all exact weights (72 heads, 512 tokens: 0.6 s), 1.4 MB. What is not kept, no page can make up: it
says so. Format: an envelope of gzipped envelopes (`envelopes`), read by web/src/lib/snapshot.ts.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from manyheads.recording.pyramids import read_region
from manyheads.recording.records import LayerRecord
from manyheads.studio.atlas import atlas_of, card_of
from manyheads.studio.desk import Desk
from manyheads.studio.envelopes import MIN_MISSING, in_steps, pack
from manyheads.studio.recordings import Opened
from manyheads.studio.schema.recordings import HeadCard, RecordingInfo
from manyheads.studio.schema.workspace import Limits, ModelEntry, Workspace
from manyheads.wholefiles import users_home

__all__ = ["FORMAT", "Snapshot", "snapshot_of"]

FORMAT = 1
MAP_CELLS = 1_200_000  # of all heads' maps together: 72 maps of 128 x 128 are 0.75 MB, packed
FLOAT_CELLS = 150_000  # up to so many exact weights are kept as they are; more, to 1/65,534
NUM_LINKS, MOST_LINKS = 200_000, 10  # of all heads together; of one row
WHOLE_CELLS = 1 << 22  # of one head's map: up to 2,048 tokens every cell is read, beyond there are no links of rows
SAMPLED_CELLS = 1 << 25  # of one head's map; of a longer text rows are sampled
PACKED_BYTES = 1_600_000  # more texts (or windows) are taken up to this
NO_ROLES = "it was not measured when this page was saved"
STEPS, LINK_STEPS = 65_534, 65_535
REMEMBERED = re.compile(r" \([^()]*page-[0-9a-f]+\.json\)")  # where roles were remembered: this machine's business
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Snapshot:
    """The packed bytes, and in words what they hold."""

    data: bytes
    words: str


@dataclass(frozen=True)
class _Held:
    """How much of a text is kept: the level of its maps (0: exact), and links a row (0: none)."""

    level: int
    cells: int
    links: int

    @property
    def coding(self) -> str:
        return "steps8" if self.level else "float32" if self.cells <= FLOAT_CELLS else "steps16"

    @property
    def maps(self) -> str:
        if self.level == 0:
            return "every weight, exact" + ("" if self.coding == "float32" else f" to 1/{STEPS:,}")
        mean, largest = 1 << self.level, 2 << self.level
        return (
            f"every head's map by the mean of {mean} x {mean} cells and by the largest of {largest} x {largest}, to "
            f"0.4 % of the map's largest"
        )

    @property
    def links_words(self) -> str:
        most = f"the {self.links} strongest of each row" if self.links > 1 else "the strongest of each row"
        return f"{most}, exact to 1/{LINK_STEPS:,}" if self.links else ""

    @property
    def words(self) -> str:
        return self.maps + (f"; {self.links_words}" if self.links else "")


def snapshot_of(desk: Desk, opened: Opened, progress: Progress | None = None, note: str = "") -> Snapshot:
    """Pack a recording: its first text (or window), and the next ones as long as they are small.

    Roles are those that the desk knows by now. `progress` is called with heads done and heads in all (of one text).
    `note`: what else its words should say.
    """
    infos, parts, size = [], [], 0
    for text in range(opened.num_texts):
        if parts and size + len(parts[-1]) > PACKED_BYTES:
            break
        info, part = _part(desk, opened, text, progress)
        if parts and size + len(part) > PACKED_BYTES:
            break
        infos.append(info)
        parts.append(part)
        size += len(part)
    words = "; ".join(filter(None, (_words(opened, infos), note)))
    infos = [_told(info, len(parts), words) for info in infos]
    head = {"workspace": _workspace(opened), "infos": [info.model_dump(mode="json") for info in infos], "words": words}
    arrays = {f"text{at}": np.frombuffer(part, np.uint8) for at, part in enumerate(parts)}
    packed = np.frombuffer(_zipped(json.dumps(head).encode()), np.uint8)
    return Snapshot(pack({"format": FORMAT}, head=packed, **arrays), words)


# ------------------------------------------------------------------------------------------------------- what is said


def _words(opened: Opened, infos: list[RecordingInfo]) -> str:
    num_heads = sum(layer.num_heads for layer in infos[0].layers)
    said = f"{num_heads} heads on {infos[0].num_tokens:,} tokens: {infos[0].notes['held']}"
    if opened.num_texts > 1:
        some = "the first" if len(infos) == 1 else f"the first {len(infos)}"
        said += f"; of {opened.num_texts} texts or windows, {'all' if len(infos) == opened.num_texts else some}"
    return said


def _told(info: RecordingInfo, num_texts: int, words: str) -> RecordingInfo:
    """The recording's description, as it is true of what is kept."""
    notes = {key: _shareable(value) for key, value in info.notes.items() if key != "held"}
    told = {"model_here": False, "num_texts": num_texts, "notes": {**notes, "saved": words}}
    return info.model_copy(update={**told, "model": _shareable(info.model), "because": _shareable(info.because)})


def _workspace(opened: Opened) -> dict[str, Any]:
    from manyheads import __version__

    model = _shareable(opened.model)
    here = ModelEntry(name=model, title=model, bundled=False, loaded=False, unavailable="this page was saved")
    said = Workspace(
        version=__version__,
        models=[here],
        files=[],
        default_model=None,
        default_text="",
        opened=opened.id,
        folder="",
        can_write=False,
        limits=Limits(max_text=0, max_steps=0, max_running=0),
    )
    return said.model_dump(mode="json")


def _shareable(words: str) -> str:
    """Without the name of whoever made it: no file of the cache, and a home folder is "~"."""
    words, home = REMEMBERED.sub("", words), str(users_home() or "")
    return words.replace(home, "~") if len(home) > 1 else words


# ---------------------------------------------------------------------------------------------------------- one text


def _part(desk: Desk, opened: Opened, text: int, progress: Progress | None) -> tuple[RecordingInfo, bytes]:
    """One text: its description, and everything else of it, packed."""
    info = desk.info(opened, text)
    labels, held = desk.labels.of(opened), _held(info)
    done, num_heads = 0, sum(layer.num_heads for layer in info.layers)
    arrays, sampled = {}, ""
    for at, layer in enumerate(opened.layers()):
        read = [_read(layer, head, text, held) for head in range(layer.site.num_heads)]
        sampled = sampled or read[0].sampled
        arrays |= {f"{name}{at}": values for name, values in _packed(read, held).items()}
        done += len(read)
        if progress is not None:
            progress(done, num_heads)
    atlas = atlas_of(opened, text, labels)
    because = NO_ROLES if labels is None else _shareable(atlas.roles_because)
    names = [str(head) for layer in opened.layers() for head in layer.site.heads]
    header = {
        "atlas": atlas.model_copy(update={"roles_because": because}).model_dump(mode="json"),
        "cards": [_card(card_of(opened, head, text, labels)) for head in names],
        "coding": held.coding,
        "level": held.level,
        "words": {"mean": _map_words(held, 0, sampled), "max": _map_words(held, 1, sampled), "links": held.links_words},
        "exact": not sampled,
        "links": held.links,
    }
    told = {
        "min_level": held.level,
        "max_level": max(info.max_level, held.level),
        "notes": {**info.notes, "held": held.words + sampled},
    }
    return info.model_copy(update=told), _zipped(pack(header, **arrays))


def _card(card: HeadCard) -> dict[str, Any]:
    """A card without what the atlas and the recording's description say already: definitions, its layer, its role."""
    values = [[each.statistic.name, each.value, each.chance, each.page] for each in card.values]
    links = [[each.query, each.key, each.weight] for each in card.links]
    said = {"values": values, "links": links, "layer": card.layer.name}
    rest = card.model_dump(mode="json", include={"head", "kv_group", "shares_with", "exact", "because", "caveat"})
    return {**rest, **said, "role": None if card.role is None else card.role.model_dump(mode="json")}


def _map_words(held: _Held, coarser: int, sampled: str) -> str:
    if held.level == 0:
        return "exact weights" if held.coding == "float32" else f"weights, exact to 1/{STEPS:,}"
    side = 1 << (held.level + coarser)
    return f"{'largest' if coarser else 'mean'} of {side} x {side} cells, to 0.4 % of the map's largest{sampled}"


def _held(info: RecordingInfo) -> _Held:
    """The finest level at which all maps together are small enough, and the links that fit beside it."""

    def cells(level: int) -> int:
        return sum(
            each.num_heads * (-(-each.num_queries // (1 << level))) * (-(-each.num_keys // (1 << level)))
            for each in info.layers
        )

    level = next(level for level in range(41) if cells(level) <= MAP_CELLS or level == 40)
    rows = sum(each.num_heads * each.num_queries for each in info.layers)
    whole = max(each.num_queries * each.num_keys for each in info.layers) <= WHOLE_CELLS
    links = min(MOST_LINKS, NUM_LINKS // max(1, rows)) if level and whole else 0
    return _Held(level, cells(level), links)


@dataclass(frozen=True, eq=False)
class _Read:
    """One head's map as it is kept; `visible` and `missing` of each row are None where not every cell was read."""

    mean: ndarray
    max: ndarray
    keys: ndarray | None
    weights: ndarray | None
    visible: ndarray | None
    missing: ndarray | None
    sampled: str


def _read(layer: LayerRecord, head: int, text: int, held: _Held) -> _Read:
    rows, keys = slice(0, layer.num_queries(text)), slice(0, layer.num_keys(text))
    level, whole = held.level, rows.stop * keys.stop <= WHOLE_CELLS
    levels, most = (range(0, level + 1), None) if whole else (range(level, level + 1), SAMPLED_CELLS)
    region = read_region(layer, head, rows, keys, levels, text=text, most_cells=most)
    mean, largest = region.levels[-1].mean.numpy(), region.levels[-1].max.numpy()
    sampled = "" if region.exact else f", {region.rows_read:,} of {region.rows_in_all:,} rows read"
    if not whole:
        return _Read(mean, _halved(largest), None, None, None, None, sampled)
    cells = region.levels[0].mean
    seen = cells.isfinite()
    weights = cells.nan_to_num(0.0)
    visible = seen.sum(-1).numpy().astype(np.uint32)
    missing = (1.0 - weights.double().sum(-1)).clamp_min(0).masked_fill(~seen.any(-1), 0).float().numpy()
    best, found = (None, None) if not held.links else weights.topk(min(held.links, keys.stop), dim=-1)
    if best is None or found is None:
        return _Read(mean, mean, None, None, visible, missing, sampled)
    order = found.argsort(-1)
    return _Read(
        mean, _halved(largest), found.gather(-1, order).numpy(), best.gather(-1, order).numpy(), visible, missing, ""
    )


def _halved(values: ndarray) -> ndarray:
    """The next coarser level of maxima; what is absent is NaN."""
    padded = np.pad(values, [(0, size % 2) for size in values.shape], constant_values=np.nan)
    return np.fmax(np.fmax(padded[::2, ::2], padded[1::2, ::2]), np.fmax(padded[::2, 1::2], padded[1::2, 1::2]))


# ---------------------------------------------------------------------------------------------------------- packed


def _packed(read: list[_Read], held: _Held) -> dict[str, ndarray]:
    """One layer's arrays. What is kept in steps lies as differences, and high bytes before low: that packs better."""
    out: dict[str, ndarray] = {}
    for name in ("mean", "max") if held.level else ("mean",):
        maps = np.stack([getattr(each, name) for each in read])
        if held.coding == "steps8":
            steps, out[f"{name}_peaks"] = in_steps(maps.astype(np.float32))
            out[name] = _down(steps)
        elif held.coding == "steps16":
            steps = np.rint(np.nan_to_num(maps).clip(0, 1) * STEPS)
            out[name] = _planes(np.where(np.isnan(maps), 65_535, steps).astype(np.uint16))
        else:
            out[name] = maps.astype(np.float32)
    if held.links:
        keys = np.stack([each.keys for each in read if each.keys is not None]).astype(np.uint16)
        weights = np.stack([each.weights for each in read if each.weights is not None])
        out["keys"] = _planes(np.diff(keys, axis=-1, prepend=np.uint16(0)).astype(np.uint16))
        out["links"] = _planes(np.rint(weights.clip(0, 1) * LINK_STEPS).astype(np.uint16))
    if read[0].visible is not None and read[0].missing is not None:
        visible = np.stack([each.visible for each in read if each.visible is not None])
        missing = np.stack([each.missing for each in read if each.missing is not None])
        out["visible"] = visible[:1] if (visible == visible[:1]).all() else visible
        if missing.max(initial=0.0) > MIN_MISSING:
            out["missing"] = missing
    return out


def _down(values: ndarray) -> ndarray:
    """Each row less the one above it, modulo 256."""
    out = values.copy()
    out[:, 1:] -= values[:, :-1]
    return out


def _planes(values: ndarray) -> ndarray:
    """uint16 as all high bytes, then all low bytes."""
    return np.stack([values >> 8, values & 255]).astype(np.uint8)


def _zipped(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)
