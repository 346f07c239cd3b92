"""What a page needs to live without a server: one recording's atlas, cards, maps and strongest links, packed small.

The single file and a saved notebook carry it. A short text's maps are exact, a longer one's are kept in blocks beside
the strongest links of every row (`keptmaps`). Everything says which of these it is.

Cost: one pass over all exact weights (72 heads, 512 tokens: 0.6 s), 1.4 MB. What is not kept, no page can make up: it
says so. Format: an envelope of gzipped envelopes (`envelopes`), read by web/src/lib/api/snapshot.ts.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyheads.base import users_home
from manyheads.studio.outside.kept_maps import held_of, packed, read_map
from manyheads.studio.schema.base import Limits, ModelEntry, Workspace
from manyheads.studio.schema.recordings import HeadCard, RecordingInfo
from manyheads.studio.session import Desk
from manyheads.studio.state.recordings import Opened
from manyheads.studio.views.atlas import atlas_of, card_of
from manyheads.studio.views.envelope import pack

__all__ = ["FORMAT", "Snapshot", "snapshot_of"]

FORMAT = 1
PACKED_BYTES = 1_600_000  # more texts (or windows) are taken up to this
NO_ROLES = "it was not measured when this page was saved"
REMEMBERED = re.compile(r" \([^()]*page-[0-9a-f]+\.json\)")  # where roles were remembered: this machine's business
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Snapshot:
    """The packed bytes, and in words what they hold."""

    data: bytes
    words: str


def snapshot_of(desk: Desk, opened: Opened, progress: Progress | None = None, note: str = "") -> Snapshot:
    """Pack a recording: its first text (or window), and the next ones as long as they are small.

    Roles are those that the desk knows by now. `progress` is called with heads done and heads in all (of one text).
    `note`: what else its words should say.
    """
    infos, parts, size = [], [], 0
    for text in range(opened.num_texts):
        if parts and size + len(parts[-1]) > PACKED_BYTES:
            break  # the next will hardly be smaller: it is not even read
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
    zipped = np.frombuffer(_zipped(json.dumps(head).encode()), np.uint8)
    return Snapshot(pack({"format": FORMAT}, head=zipped, **arrays), words)


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
    labels, held = desk.labels.of(opened), held_of(info.layers)
    done, num_heads = 0, sum(layer.num_heads for layer in info.layers)
    arrays, sampled = {}, ""
    for at, layer in enumerate(opened.layers()):
        read = [read_map(layer, head, text, held) for head in range(layer.site.num_heads)]
        sampled = sampled or read[0].sampled
        arrays |= {f"{name}{at}": values for name, values in packed(read, held).items()}
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
        "words": {**{how: held.map_words(how, sampled) for how in ("mean", "max")}, "links": held.links_words},
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
    values = [[value.statistic.name, value.value, value.chance, value.page] for value in card.values]
    links = [[link.query, link.key, link.weight] for link in card.links]
    said = {"values": values, "links": links, "layer": card.layer.name}
    rest = card.model_dump(mode="json", include={"head", "kv_group", "shares_with", "exact", "because", "caveat"})
    return {**rest, **said, "role": None if card.role is None else card.role.model_dump(mode="json")}


def _zipped(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)
