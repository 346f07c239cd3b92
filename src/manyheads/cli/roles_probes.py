"""What `manyheads roles --probes` shows: each probe's best heads beside chance, or why it was not asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from manyheads.cli.console import clean
from manyheads.cli.roleview import figure, span

if TYPE_CHECKING:
    from manyheads.roles.results import Roles
    from manyheads.roles.probes.score import HeadScore
    from manyheads.roles.probes.all import Probe

BEST = 3  # heads of a probe that are shown
COLUMNS = f"{'score':>8}{'chance':>8}{'95 %':>14}{'cases':>9}"


def by_probe(found: Roles) -> list[Text]:
    """Every probe with its best heads and its variant in words; nothing where none was asked."""
    if not found.probes:
        return []
    lines = [
        Text(f"Probes: {found.notes['probes']}", style="bold"),
        Text(f"  {'':<28}{'head':<8}{COLUMNS}", style="dim"),
    ]
    said = ""
    for probe in found.probes.values():
        best = probe.top(BEST)
        name = (f"{clean(probe.name):<28}", "bold")
        lines += [Text.assemble("  ", name if at == 0 else " " * 28, row(probe, each)) for at, each in enumerate(best)]
        if not best:
            lines.append(Text.assemble("  ", name, f"{lacking(probe)}: {clean(probe.says)}"))
        elif probe.says != said:  # the places of one probe rest on the same
            lines.append(Text(f"      {clean(probe.says)}", style="dim"))
        said = probe.says
    return [*lines, Text()]


def ranking_of_probe(found: Roles, name: str, top: int) -> list[Text]:
    """The heads by one probe, the furthest above chance first."""
    probe = found.probes[name]
    best = probe.top(top)
    lines = [Text(clean(probe.asks), style="bold")]
    lines += [Text(f"  {'head':<8}{COLUMNS}", style="dim")] if best else [Text(f"  {lacking(probe)}")]
    lines += [Text.assemble("  ", row(probe, each)) for each in best]
    return [*lines, Text(), Text(f"  {clean(probe.says)}"), Text(f"  {found.notes['probes']}")]


def row(probe: Probe, each: HeadScore) -> str:
    """A head's figures; where scores have no interval, how many standard deviations of chance it lies from it."""
    z = probe.z(each)
    level = figure(each.chance, probe.unit) if z is None else f"±{each.score / z if z else 0:.2f}"
    between = span(each.low, each.high, probe.unit) if z is None else f"{z:+.1f} sd"
    cases = f"{each.num_queries:,}" if each.num_queries else "–"
    mark = "" if probe.beats_chance(each) else "  within chance"
    return f"{each.head!s:<8}{figure(each.score, probe.unit):>8}{level:>8}{between:>14}{cases:>9}{mark}"


def lacking(probe: Probe) -> str:
    return "not asked" if probe.scores is None else "no head was counted"
