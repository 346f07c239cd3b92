"""Where the words of one text look, for one head: read off its record row by row, never as a whole map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from manyheads.cli.head import HeadLooked

ROWS = 256  # rows of the map held at once
NUM_LINKS = 10


@dataclass(frozen=True)
class Link:
    """Token `query` gives `weight` of its attention to token `key`. Both count from 0."""

    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Links:
    """`looks[i]`: the strongest keys of token i. `strongest`: each token's best link but those to sinks, best first."""

    looks: tuple[tuple[Link, ...], ...]
    strongest: tuple[Link, ...]


def find_links(layer: Any, head: int, top: int) -> Links:
    """One reading of a head's map, `ROWS` rows at a time. Keys that cannot be seen are left out."""
    length = int(layer.lengths[0])
    sinks = layer.tokens.sink[0, :length] if layer.tokens.ids is not None else torch.zeros(length, dtype=torch.bool)
    looks: list[tuple[Link, ...]] = []
    best: list[Link] = []
    for begin in range(0, length, ROWS):
        weights = layer.weights(head=head, queries=slice(begin, begin + ROWS))
        values, keys = weights.topk(min(top, length), dim=-1)
        for row, (value, key) in enumerate(zip(values.tolist(), keys.tolist(), strict=True)):
            pairs = zip(key, value, strict=True)
            looks.append(tuple(Link(begin + row, k, v) for k, v in pairs if v > 0))
        value, key = weights.masked_fill(sinks, 0).max(-1)
        each = zip(range(begin, begin + ROWS), key.tolist(), value.tolist(), strict=False)
        best += [Link(query, k, v) for query, k, v in each if v > 0]
    strongest = sorted(best, key=lambda link: -link.weight)
    return Links(tuple(looks), tuple(strongest))


def small_map(layer: Any, head: int, most: int, blocks: int) -> torch.Tensor:
    """The map in at most `blocks` x `blocks` blocks, by mean, or whole up to `most` tokens. NaN: nothing visible."""
    from manyheads.recording.exact_map.requests import Pooled

    length = int(layer.lengths[0])
    request = Pooled(length if length <= most else blocks)
    return layer.reduce([request])[request][0, head]


def word(tokens: Any, position: int) -> str:
    """What stands at a token in the text, or the token's own name where nothing does."""
    return tokens.surface(0, position) or tokens.pieces[0][position]


def document(found: HeadLooked, top: int) -> dict[str, Any]:
    """Everything about one head: what the page says, its numbers on the text, where every token looks."""
    from manyheads.cli.look_data import evidence_of
    from manyheads.statistics.head_table import number

    links = find_links(found.layer, found.head.index, top)
    tokens, table = found.layer.tokens, found.table
    at = table.heads.index(found.head)
    return {
        "model": {"asked": found.model, "name": found.lm.name, "because": found.lm.because},
        "head": str(found.head),
        "role": None if found.role is None else found.role.name,
        "evidence": None if found.role is None else evidence_of(found.role),
        "page": found.labels.values.get(str(found.head)),
        "text": {name: number(table.column(name)[at]) for name in table.names},
        "window": {"shown": found.window, "of": found.num_windows},
        "tokens": [word(tokens, i) for i in range(int(found.layer.lengths[0]))],
        "sinks": list(tokens.sinks.names),
        "looks": [[{"key": link.key, "weight": link.weight} for link in row] for row in links.looks],
        "strongest": [vars(link) for link in links.strongest[:NUM_LINKS]],
        "notes": {"labels": found.labels.because, **table.notes, "backend": found.layer.because},
        "written": list(found.written),
        "seconds": round(found.seconds, 3),
    }
