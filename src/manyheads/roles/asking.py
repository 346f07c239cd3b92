"""Which questions a model can be asked at all, and why not: a causal head has no answer to what comes later.

A question that no head was asked is no question that no head answers: it is left out of counts, pictures and rankings,
and said for itself.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from manyheads.errors import StatisticError
from manyheads.heads import Head
from manyheads.roles.claims import Claim
from manyheads.roles.probing import PROBES
from manyheads.statistics.head_table import HeadTable
from manyheads.statistics.defined.masses import OFFSETS
from manyheads.statistics.defined.masses import offset_name

__all__ = ["AHEAD", "UNASKED", "role_named", "unanswerable", "why_unasked"]

AHEAD = "cannot look ahead"
UNASKED = "these texts do not ask it"
LATER = frozenset(offset_name(offset) for offset in OFFSETS if offset > 0)
OF_ARCS = (".to_head", ".to_dependent")  # surveyed, so the texts have them: where none counts, all of them point ahead


def why_unasked(claim: Claim, causal: Mapping[Head, bool]) -> str:
    """Why a claim has no case; "" where it has one."""
    if claim.num_queries:
        return ""
    ahead = claim.statistic in LATER or claim.statistic.endswith(OF_ARCS)
    return AHEAD if ahead and causal.get(claim.head, False) else UNASKED


def unanswerable(claims: Sequence[Sequence[Claim]], tables: Sequence[HeadTable]) -> dict[str, str]:
    """The roles of which no head has any case, and why."""
    causal = {head: site.causal for table in reversed(tables) for site in table.sites for head in site.heads}
    reasons: dict[str, list[str]] = {}
    for claim in (claim for mine in claims for claim in mine):
        reasons.setdefault(claim.role, []).append(why_unasked(claim, causal))
    return {role: AHEAD if AHEAD in told else UNASKED for role, told in reasons.items() if all(told)}


def role_named(asked: str, questions: Mapping[str, str], probes: Mapping[str, str]) -> str:
    """The role, or probe, that is meant by a name, a question, or a part of one; roles go before probes.

    A pattern may be named as its function is (`to_comma`) or as it is listed ("to comma").
    Errors: StatisticError names all that may be meant, else the nearest.
    """
    known = {**questions, **probes}
    if asked in known:
        return asked
    part = asked.casefold().strip(" ?")
    alike = [name for name in known if _spaced(name) == _spaced(part)]
    if len(alike) == 1:
        return alike[0]
    found = [
        [role for role, said in some.items() if part and part in f"{role} {said}".casefold()]
        for some in (questions, probes)
    ]
    meant = found[0] or found[1]
    if len(meant) == 1:
        return meant[0]
    if asked in PROBES and not probes:
        raise StatisticError(f"{asked!r} is a probe, which was not asked: give probes=True (--probes).")
    near = meant or difflib.get_close_matches(asked, known, 3, 0.3) or list(known)[:3]
    why = f"{asked!r} may mean several roles" if meant else f"no head was asked for {asked!r}"
    raise StatisticError(f"{why}: did you mean {', '.join(map(repr, near))}?")


def _spaced(name: str) -> str:
    return name.casefold().replace("_", " ")
