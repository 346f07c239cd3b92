"""What was found about a model's heads over a corpus: one role a head, every claim behind it, examples, and probes.

A `Roles` is a sequence of `HeadRole`, in the model's order. Asked by question, it ranks heads as the choosing half does
and shows figures of the other half, so that the first of a ranking is no lucky one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, overload

from manyheads.base import html_table
from manyheads.errors import StatisticError
from manyheads.heads import Head
from manyheads.roles.claims import Claim
from manyheads.roles.labels import HeadRole
from manyheads.roles.probes.all import NO_LABEL, PROBES, Probe
from manyheads.roles.role_table import UNLABELLED
from manyheads.roles.rules import AHEAD, UNASKED
from manyheads.statistics import OFFSETS, HeadTable, offset_name, write_frame

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AHEAD", "UNASKED", "role_named", "unanswerable", "why_unasked"]


# ---------------------------------------------------------------------------------------------------------------------
# Which questions a model can be asked at all, and why not: a causal head has no answer to what comes later.
#
# A question that no head was asked is no question that no head answers: it is left out of counts, pictures and
# rankings, and said for itself.


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


SHOWN = 12  # heads in a notebook's view
EFFECT = "not measured"  # attention is not effect: every row of a table says so


class Example(NamedTuple):
    """A text in which a head does what it is asked for: its score there, and its strongest links, in words."""

    name: str
    text: str
    score: float
    links: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Roles(Sequence[HeadRole]):
    """`labels`, a role a head; `claims`, a list a head: every rule it was asked by. `tables` hold all statistics.

    `examples[head, role]` are texts of the reporting half on which a head does it most: of every label, and of every
    question's best head for which it holds. `probes` are those of `probing.PROBES` by name, where they were asked for;
    no label rests on them. `notes` say what all rests on.
    """

    labels: tuple[HeadRole, ...]
    claims: tuple[tuple[Claim, ...], ...]
    tables: tuple[HeadTable, ...]
    notes: dict[str, str]
    examples: Mapping[tuple[Head, str], tuple[Example, ...]] = field(default_factory=dict)
    probes: Mapping[str, Probe] = field(default_factory=dict)

    @overload
    def __getitem__(self, index: int | str | Head) -> HeadRole: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[HeadRole]: ...
    def __getitem__(self, index: int | slice | str | Head) -> HeadRole | Sequence[HeadRole]:
        """`roles["L2H9"]` is that head's label, `roles[2]` the third. Errors: HeadError, StatisticError; IndexError."""
        return self.labels[self._place(index)] if isinstance(index, str | Head) else self.labels[index]

    def _place(self, head: str | Head) -> int:
        wanted = head if isinstance(head, Head) else Head.parse(head)
        place = next((at for at, label in enumerate(self.labels) if label.head == wanted), None)
        if place is None:
            raise StatisticError(f"there is no head {head} here, only {self.labels[0].head} to {self.labels[-1].head}.")
        return place

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[HeadRole]:
        return iter(self.labels)

    @property
    def table(self) -> HeadTable:
        """The statistics of the texts themselves (the first table)."""
        return self.tables[0]

    @cached_property
    def questions(self) -> dict[str, str]:
        """Every role that was asked for, and its question in words."""
        return {claim.role: claim.asks for claim in self.claims[0]} if self.claims else {}

    @cached_property
    def unanswerable(self) -> dict[str, str]:
        """The roles of which no head has a single case, and why: "cannot look ahead", or that no text asks it."""
        return unanswerable(self.claims, self.tables)

    @cached_property
    def answerable(self) -> tuple[str, ...]:
        """The roles that some head could be asked by."""
        return tuple(role for role in self.questions if role not in self.unanswerable)

    @cached_property
    def num_tried(self) -> int:
        """How many claims were tried: those with at least one case."""
        return sum(claim.num_queries > 0 for mine in self.claims for claim in mine)

    def ranked(self, role: str, top: int | None = None) -> list[Claim]:
        """Heads by how far above chance they are at one role on the choosing half; the figures are of the other half.

        `role` is its name, its question, or a part of either that no other has. Of probes: `probes[name].top()`.
        Errors: StatisticError for a role that was not asked for, and for a probe.
        """
        role = self.role_named(role)
        if role in self.probes:
            raise StatisticError(f"{role!r} is a probe, and has no claims: its heads are probes[{role!r}].top().")
        asked = [claim for mine in self.claims for claim in mine if claim.role == role]
        return sorted(asked, key=lambda claim: (-claim.chosen_excess, claim.head))[:top]

    def role_named(self, asked: str) -> str:
        """The role, or probe, that is meant by a name, a question, or a part of one; roles go before probes.

        Errors: StatisticError names the nearest.
        """
        return role_named(asked, self.questions, {name: probe.asks for name, probe in self.probes.items()})

    def of_head(self, head: str | Head) -> list[Claim]:
        """A head's claims that hold, the furthest above chance first."""
        mine = self.claims[self._place(head)]
        return sorted((claim for claim in mine if claim.holds), key=lambda claim: -claim.excess)

    def probed(self, probes: Mapping[str, Probe]) -> Roles:
        """The same with what probes found (`probing.ask_probes`)."""
        return replace(self, probes=probes, notes={**self.notes, "probes": NO_LABEL})

    def to_pandas(self) -> pd.DataFrame:
        """A row a head and role asked: all of its claim, and whether the head is named after it.

        `kind` is "claim"; below these, "probe": a row a head and probe that was asked, with what a probe knows.
        """
        import pandas as pd

        claims = self.claims_to_pandas()
        names = {str(label.head): label.name for label in self.labels}
        told = [{"kind": "probe", **row} for probe in self.probes.values() for row in probe.rows()]
        probes = pd.DataFrame([row | {"label": names[row["head"]], "named": False, "effect": EFFECT} for row in told])
        if probes.empty:
            return claims
        claims["holds"] = claims["holds"].astype("boolean")  # of a probe: neither yes nor no
        return pd.concat([claims, probes], ignore_index=True)

    def claims_to_pandas(self) -> pd.DataFrame:
        """The rows of claims alone."""
        import pandas as pd

        return pd.DataFrame(
            {
                "kind": "claim",
                **claim.to_dict(),
                "label": label.name,
                "named": claim.role == label.name,
                "effect": EFFECT,
            }
            for label, claims in zip(self.labels, self.claims, strict=True)
            for claim in claims
        )

    def save(self, path: str | Path) -> None:
        """Write every claim and probe by the path's ending: .parquet (with the notes: `attrs` of the frame that pandas
        reads), .csv or .json. Errors: FileAccessError."""
        frame = self.to_pandas()
        frame.attrs["notes"] = dict(self.notes)
        write_frame(frame, Path(path))

    def __repr__(self) -> str:
        named = sum(label.name != UNLABELLED for label in self.labels)
        texts, tokens = self.table.sums.num_texts, self.table.sums.num_tokens
        return f"Roles({named} of {len(self)} heads named, {texts:,} texts, {tokens:,} tokens)"

    def _repr_html_(self) -> str:
        """A notebook's view: the surest labels first."""
        named = [label for label in self.labels if label.name != UNLABELLED]
        named.sort(key=lambda label: label.evidence.chance - label.evidence.score)
        rows = [[str(each.head), each.name, shown_share(each), each.evidence.words] for each in named[:SHOWN]]
        more = max(0, len(named) - SHOWN)
        note = f"{more} more: to_pandas() has them all." if more else ""
        return html_table(["head", "role", "score", "evidence"], rows, caption=repr(self), note=note)


def shown_share(label: HeadRole) -> float:
    """A label's score as it is shown: a share that rounding put above 1 is 1. Data keep what was computed."""
    score = label.evidence.score
    return score if label.evidence.statistic == "entropy" else min(score, 1.0)
