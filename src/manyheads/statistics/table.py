"""The table of statistics by name, and which of them "default" and "all" mean."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from manyheads.errors import StatisticError
from manyheads.statistics.defined import masses
from manyheads.statistics.defined.alignment import alignments
from manyheads.statistics.defined.norms import norm_masses, norm_matches
from manyheads.statistics.defined.rarest import tops
from manyheads.statistics.defined.shape import effects, places, spread
from manyheads.statistics.statistic import Statistic

STATISTICS: dict[str, Statistic] = {
    statistic.name: statistic
    for statistic in (
        *spread(),
        *places(),
        *(statistic for offset in masses.OFFSETS for statistic in masses.offset_mass(offset)),
        *masses.local_mass(),
        *masses.token_classes(),
        *masses.token_matches(),
        *tops(),
        *effects(),
        *norm_masses(),
        *norm_matches(),
    )
}
"""Every statistic and chance level of a text's attention to itself. `reference.statistics` computes each from the full
map. Cross-attention has those whose `maps` say so, and besides:"""

OF_CROSS: dict[str, Statistic] = {statistic.name: statistic for statistic in alignments()}
"""How a head aligns two texts: statistics of cross-attention alone."""

DEFAULT = (
    *("entropy", "effective_keys", "distance", "signed_distance", "previous_mass", "self_mass", "next_mass"),
    *("sink_mass", "first_mass", "special_mass", "punctuation_mass", "rare_mass", "duplicate_mass", "induction_mass"),
)
"""What a first look needs; `"all"` is the whole table, chance levels included."""

ALIASES = {f"offset_{offset:+d}_mass": masses.offset_name(offset) for offset in (-1, 0, 1)}


def choose(request: str | Sequence[str | Statistic], *, crosses: bool = False) -> tuple[Statistic, ...]:
    """Statistics by name, "default", "all", or your own among them. Errors: StatisticError names the nearest.

    `crosses`: whether "default" and "all" have the statistics of cross-attention, too.
    """
    if isinstance(request, str):
        more = tuple(OF_CROSS) if crosses else ()
        plain = tuple(name for name in more if OF_CROSS[name].kind == "statistic")
        request = {"default": (*DEFAULT, *plain), "all": (*STATISTICS, *more)}.get(request, (request,))
    out: dict[str, Statistic] = {}
    for item in request:
        statistic = item if isinstance(item, Statistic) else statistic_named(item)
        if out.get(statistic.name, statistic) is not statistic:
            raise StatisticError(
                f"two statistics are called {statistic.name!r}, and a table has one column for a name: rename yours."
            )
        out[statistic.name] = statistic
    if not out:
        raise StatisticError("no statistic was asked for: give 'default', 'all', or names.")
    return tuple(out.values())


def statistic_named(name: str) -> Statistic:
    """The statistic of a name or an alias. Errors: StatisticError with the nearest names."""
    name = ALIASES.get(name, name)
    if name in OF_CROSS:
        return OF_CROSS[name]
    if name not in STATISTICS:
        near = difflib.get_close_matches(str(name), [*STATISTICS, *OF_CROSS], 3)
        guess = f": did you mean {', '.join(near)}?" if near else "."
        raise StatisticError(
            f"there is no statistic {name!r}{guess} python -m manyheads.statistics lists all {len(STATISTICS)}."
        )
    return STATISTICS[name]


def table_markdown() -> str:
    """Every statistic as a Markdown row, its chance levels and the maps it is of named in two of the columns."""
    rows, known = [], STATISTICS | OF_CROSS
    for statistic in known.values():
        if statistic.kind == "chance":
            continue
        levels = [name.split(".")[1] for name in known if name.startswith(f"{statistic.name}.")]
        chance = ", ".join(f"`.{level}`" for level in levels) or "-"
        maps = "both" if len(statistic.maps) == 2 else next(iter(statistic.maps))
        about = (f"`{statistic.name}`", statistic.unit, statistic.meaning, chance, maps, statistic.source)
        rows.append(f"| {' | '.join(about)} |")
    titles = ("statistic", "unit", "what", "chance levels", "maps", "source")
    return "\n".join([f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *rows])
