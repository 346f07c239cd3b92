"""Which pairs of tokens a role means: from each token to the one before, to its copies, to marks of punctuation ...

An example shows what its label says and nothing else; so the links that it may show are those that the statistic
counts, taken from the statistics' own tables and at their own granularity: tokens, not words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from manyheads.recording.tokens import Tokens
from manyheads.statistics.defined.masses import CLASSES
from manyheads.statistics.defined.masses import LOCAL
from manyheads.statistics.defined.masses import MATCHES
from manyheads.statistics.defined.masses import OFFSETS
from manyheads.statistics.defined.masses import offset_name
from manyheads.statistics.defined.masses import words
from manyheads.statistics.defined.own_pattern import Pattern
from manyheads.statistics.defined.own_pattern import surfaces_of
from manyheads.statistics.defined.own_pattern import targets
from manyheads.statistics.defined.rarest import rarest

__all__ = ["Pairs", "pairs_of"]

AT_DISTANCE = {offset_name(offset): offset for offset in OFFSETS}
OF_CLASS = {f"{each.name}_mass": each.members for each in CLASSES}
OF_MATCH = {f"{each.name}_mass": each.asked for each in MATCHES}
RAREST = {"rarest_top": 1, "two_rarest_top": 2}
RESTS = ("first_mass", "sink_mass", "special_mass", "separator_mass")  # their keys are special tokens, mostly


class Pairs(NamedTuple):
    """Cells of one text's map, `rows[i]` looks at `keys[i]`."""

    rows: list[int]
    keys: list[int]


def pairs_of(statistic: str, tokens: Tokens, text: int, patterns: Mapping[str, Pattern]) -> Pairs:
    """The pairs that a statistic counts in one text; from and to words where there are such, as people read words.

    Of what means no pair in particular (entropy), every pair of two words.
    """
    count, ordinary = int(tokens.lengths[text]), tokens.ordinary[text]
    if statistic in patterns:
        places = targets(statistic, patterns[statistic], surfaces_of(tokens, text))
        return _listed((row, key) for row, keys in enumerate(places) for key in keys)
    cells = _cells(statistic, tokens, text)[:count, :count]
    plain = ordinary[:count]
    readable = plain[:, None] & (plain[None] | (statistic in RESTS))
    shown = cells & readable if bool((cells & readable).any()) else cells
    return _listed((row, key) for row, key in shown.nonzero().tolist())


def _listed(pairs: Iterable[tuple[int, int]]) -> Pairs:
    found = list(pairs)
    return Pairs([row for row, _ in found], [key for _, key in found])


def _cells(statistic: str, tokens: Tokens, text: int) -> Bool[Tensor, "q k"]:
    place = torch.arange(tokens.longest)
    away = place[None] - place[:, None]
    if statistic in AT_DISTANCE:
        return away == AT_DISTANCE[statistic]
    if statistic == "local_mass":
        return away.abs() <= LOCAL
    if statistic in OF_CLASS:
        return OF_CLASS[statistic](tokens)[text][None].expand(len(place), -1)
    if statistic in RAREST:
        return rarest(tokens, RAREST[statistic])[text][None].expand(len(place), -1)
    if statistic in OF_MATCH:
        asked = OF_MATCH[statistic]
        rows, keys = (side[text] for side in asked.labels(tokens))
        same = (rows[:, None] == keys[None]) & (rows[:, None] >= 0)
        same = same & (away <= -asked.apart) if asked.earlier else same
        return same & (away != 0) if asked.elsewhere else same
    word = words(tokens)[text] >= 0
    return word[:, None] & word[None] & (away != 0)
