"""What was found about a model's heads over a corpus: one role a head, every claim behind it, examples, and probes.

A `Roles` is a sequence of `HeadRole`, in the model's order. For a question it ranks heads as the choosing half does and
shows figures of the other half, so that the first of a ranking is not merely lucky.

A question that no head could be asked (a causal head has no answer about later tokens) is not a question that no head
answers: it is left out of counts, pictures and rankings, and reported by itself.

Questions stand in families: positions, tokens, syntax in two directions, reference, others' and one's own.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pandas has no types here.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, overload

from manyheads.base import Json, brief, html_table, nearest, plain, plural
from manyheads.corpora import Failure
from manyheads.errors import StatisticError
from manyheads.heads import Head, HeadLike
from manyheads.recording import PerHeadResult
from manyheads.results import write_frame
from manyheads.roles.claims import Claim
from manyheads.roles.labels import HeadRole
from manyheads.roles.probes.all import NO_LABEL, PROBES, Probe
from manyheads.roles.rules import AHEAD, ASKED, FIXED_RULES, LOCAL_RULE, POSITIONAL, UNASKED, coreference_rules
from manyheads.roles.words.role_table import UNLABELLED
from manyheads.statistics import HeadTable
from manyheads.statistics.defined import OFFSETS, offset_name

if TYPE_CHECKING:
    import pandas as pd


LATER = frozenset(offset_name(offset) for offset in OFFSETS if offset > 0)
# Relations are surveyed, so the texts have them: where none counts, all of its arcs point ahead.
OF_ARCS = (".to_governor", ".to_dependent")
SHOWN = 12  # heads in a notebook's view
EFFECT = "not measured"  # a label does not say what is lost without its head: every row of a table repeats that


class Example(NamedTuple):
    """A text in which a head does what it is asked for: its score there, and its strongest links, in words."""

    name: str
    text: str
    score: float
    links: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Roles(PerHeadResult):
    """`labels`, a role for each head; `claims`, a list for each head: one of every rule. `tables` hold all statistics.

    `examples[head, role]` are texts of the reporting half on which a head does it most: of every label, and of every
    question's best head for which it holds. `probes` are those of `probes.all.PROBES` by name, where they were run; no
    label rests on them. `notes` say what all rests on.
    """

    missing: ClassVar[str] = "here, only {first} to {last}."

    labels: tuple[HeadRole, ...]
    claims: tuple[tuple[Claim, ...], ...]
    tables: tuple[HeadTable, ...]
    notes: dict[str, str]
    examples: Mapping[tuple[Head, str], tuple[Example, ...]] = field(
        default_factory=dict[tuple[Head, str], tuple[Example, ...]]
    )
    probes: Mapping[str, Probe] = field(default_factory=dict[str, Probe])

    @overload
    def __getitem__(self, index: int | HeadLike) -> HeadRole: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[HeadRole, ...]: ...
    def __getitem__(self, index: int | slice | HeadLike) -> HeadRole | tuple[HeadRole, ...]:
        """`roles["L2H9"]` is that head's label, `roles[2]` the third. Errors: HeadError; IndexError."""
        return self.labels[self.head_place(index)] if isinstance(index, str | Head | tuple) else self.labels[index]

    @property
    def heads(self) -> tuple[Head, ...]:
        """All heads of the first table, in the model's order."""
        return tuple(label.head for label in self.labels)

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
        # In reverse, so that of heads that several tables have the first table's word counts.
        causal = {head: site.causal for table in reversed(self.tables) for site in table.sites for head in site.heads}
        reasons: dict[str, list[str]] = {}
        for claim in (claim for of_head in self.claims for claim in of_head):
            ahead = claim.statistic in LATER or claim.statistic.endswith(OF_ARCS)
            why = AHEAD if ahead and causal.get(claim.head, False) else UNASKED
            reasons.setdefault(claim.role, []).append("" if claim.num_queries else why)
        return {role: AHEAD if AHEAD in of_role else UNASKED for role, of_role in reasons.items() if all(of_role)}

    @cached_property
    def answerable(self) -> tuple[str, ...]:
        """The roles that some head could be asked by."""
        return tuple(role for role in self.questions if role not in self.unanswerable)

    @cached_property
    def num_tried(self) -> int:
        """How many claims were tried: those with at least one case."""
        return sum(claim.num_queries > 0 for of_head in self.claims for claim in of_head)

    def ranked(self, role: str, top: int | None = None) -> list[Claim]:
        """Heads whose claim of one role holds, then the others, each by their score on the choosing half.

        That score is the one above chance or, of an accuracy, above the best fixed guess. The figures are of the other
        half.

        `role` is its name, its question, or a part of either that no other has. For probes: `probes[name].top()`.
        Errors: StatisticError for a role that was not asked for, and for a probe.
        """
        role = self.role_named(role)
        if role in self.probes:
            raise StatisticError(f"{role!r} is a probe, and has no claims: its heads are probes[{role!r}].top().")
        of_role = [claim for of_head in self.claims for claim in of_head if claim.role == role]
        return sorted(of_role, key=lambda claim: (not claim.holds, -claim.chosen_excess, claim.head))[:top]

    def role_named(self, words: str) -> str:
        """The role, or probe, that is meant by a name, a question, or a part of one; roles go before probes.

        Errors: StatisticError names the nearest.
        """
        return role_named(words, self.questions, {name: probe.asks for name, probe in self.probes.items()})

    def of_head(self, head: HeadLike) -> list[Claim]:
        """A head's claims that hold, the surest (the furthest from chance) first."""
        claims = self.claims[self.head_place(head)]
        return sorted((claim for claim in claims if claim.holds), key=lambda claim: -claim.distance)

    def probed(self, probes: Mapping[str, Probe]) -> Roles:
        """The same with the results of probes (`roles.ask_probes`)."""
        return replace(self, probes=probes, notes={**self.notes, "probes": NO_LABEL})

    def to_pandas(self) -> pd.DataFrame:
        """A row for each head and role: all of its claim, and whether the head is named after it.

        `kind` is "claim"; below these, "probe": a row for each head and probe that was run, with what a probe knows.
        """
        import pandas as pd

        claims = self.claims_to_pandas()
        names = {str(label.head): label.name for label in self.labels}
        probes = pd.DataFrame(
            {"kind": "probe", **row, "label": names[str(row["head"])], "named": False, "effect": EFFECT}
            for probe in self.probes.values()
            for row in probe.rows()
        )
        if probes.empty:
            return claims
        # A probe neither holds nor fails: a column of plain bools has no third value.
        claims["holds"] = claims["holds"].astype("boolean")
        claims["num_texts"] = claims["num_texts"].astype("Int64")  # a probe reads none: a whole number, or nothing
        return pd.concat([claims, probes], ignore_index=True)

    def claims_to_pandas(self) -> pd.DataFrame:
        """The rows of claims alone."""
        import pandas as pd

        return pd.DataFrame(
            {
                "kind": "claim",
                **claim.row(),
                "label": label.name,
                "named": claim.role == label.name,
                "effect": EFFECT,
            }
            for label, claims in zip(self.labels, self.claims, strict=True)
            for claim in claims
        )

    @property
    def num_failed(self) -> int:
        """Texts that could not be measured, over all readings."""
        return sum(table.failures.count for table in self.tables)

    @property
    def failed_texts(self) -> list[Failure]:
        """Those of them that are kept by name."""
        return [failure for table in self.tables for failure in table.failures]

    def to_dict(self) -> Json:
        """Plain data for JSON: labels, every claim without what is not known of it, examples, failures, and notes.

        `failures` names the first texts that could not be measured; `probes` is there where they were asked.
        """
        claims = self.claims_to_pandas().to_dict(orient="records")
        return {
            "texts": self.table.sums.num_texts,
            "tokens": self.table.sums.num_tokens,
            "heads": [label.to_dict() for label in self.labels],
            "claims": [
                {str(key): known for key, value in row.items() if (known := plain(value)) is not None} for row in claims
            ],
            "examples": [
                {"head": str(head), "role": role, **example._asdict()}
                for (head, role), examples in self.examples.items()
                for example in examples
            ],
            "failures": {
                "count": self.num_failed,
                "named": [failure._asdict() for failure in self.failed_texts],
            },
            **({"probes": [probe.to_dict() for probe in self.probes.values()]} if self.probes else {}),
            "notes": self.notes,
        }

    def save(self, path: str | Path) -> None:
        """Write every claim and probe by the path's ending: .parquet (with the notes: `attrs` of the frame that pandas
        reads), .csv or .json. Errors: FileAccessError."""
        frame = self.to_pandas()
        frame.attrs["notes"] = dict(self.notes)
        write_frame(frame, Path(path))

    def __repr__(self) -> str:
        named = sum(label.name != UNLABELLED for label in self.labels)
        texts, tokens = self.table.sums.num_texts, self.table.sums.num_tokens
        return brief(f"Roles({named} of {len(self)} heads named, {texts:,} texts, {tokens:,} tokens)")

    def _repr_html_(self) -> str:
        """A notebook's view: the surest labels, the furthest from chance, first."""
        named = [label for label in self.labels if label.name != UNLABELLED]
        named.sort(key=lambda label: -label.evidence.distance)
        rows = [[str(label.head), label.name, shown_share(label), label.evidence.words] for label in named[:SHOWN]]
        more = max(0, len(named) - SHOWN)
        note = f"{more} more: to_pandas() has them all." if more else ""
        return html_table(["head", "role", "score", "evidence"], rows, caption=str(self), note=note)


def shown_share(label: HeadRole) -> float:
    """A label's score as it is shown: a share that rounding put above 1 is 1. Data keep what was computed."""
    score = label.evidence.score
    return score if label.evidence.statistic == "entropy" else min(score, 1.0)


def role_named(words: str, questions: Mapping[str, str], probes: Mapping[str, str]) -> str:
    """The role, or probe, that is meant by a name, a question, or a part of one; roles go before probes.

    A pattern may be named as its function is (`to_comma`) or as it is listed ("to comma").
    Errors: StatisticError names all that may be meant, else the nearest.
    """
    known = {**questions, **probes}
    if words in known:
        return words
    part = words.casefold().strip(" ?")
    alike = [name for name in known if part.replace("_", " ") == name.casefold().replace("_", " ")]
    if len(alike) == 1:
        return alike[0]
    in_roles, in_probes = (
        [role for role, question in names.items() if part and part in f"{role} {question}".casefold()]
        for names in (questions, probes)
    )
    meant = in_roles or in_probes
    if len(meant) == 1:
        return meant[0]
    if words in PROBES and not probes:
        raise StatisticError(f"{words!r} is a probe, which was not run: give probes=True (--probes).")
    why = f"{words!r} may mean several roles" if meant else f"no head was asked for {words!r}"
    near = meant or nearest(words, known)
    if not near:
        some = ", ".join(map(repr, list(known)[:3]))
        others = f"{plural(len(known), 'other question')} {'was' if len(known) == 1 else 'were'}"
        raise StatisticError(f"{why}: {others}, as {some}.")
    raise StatisticError(f"{why}: did you mean {', '.join(map(repr, near))}?")


class Family(NamedTuple):
    """Questions of one kind; `unit`: what a score is a share of. `accuracy`: it says how often the strongest key is the
    right one, else how much attention goes there."""

    title: str
    unit: str
    accuracy: bool = False


POSITIONS = Family("Positions: looks at a fixed place", "of all attention")
TOKENS = Family("Tokens: looks at what tokens are", "of all attention")
UP = Family("Syntax: from a word to the word it depends on", "right among words", True)
DOWN = Family("Syntax: from a word to what depends on it", "right among words", True)
REFERENCE = Family("Reference: from a mention to what it means", "right among earlier mentions", True)
OTHERS = Family("By others' formulas", "of all attention")
OWN = Family("Your own patterns", "of all attention")
FAMILIES = (POSITIONS, TOKENS, UP, DOWN, REFERENCE, OTHERS, OWN)
REFERENCES = frozenset(rule.statistic for rule in coreference_rules())
BY_OTHERS = frozenset(rule.statistic for rule in ASKED)
AT_PLACES = frozenset(rule.statistic for rule in (*POSITIONAL, LOCAL_RULE))
BROAD = "entropy"  # what the label "broad" rests on


def family_of(statistic: str) -> Family:
    """The family of a claim or a label, by what it rests on."""
    if statistic in REFERENCES:
        return REFERENCE
    if statistic.endswith((".to_governor", ".to_dependent")):
        return UP if statistic.endswith(".to_governor") else DOWN
    if statistic in AT_PLACES or statistic in BY_OTHERS:
        return POSITIONS if statistic in AT_PLACES else OTHERS
    return TOKENS if statistic in FIXED_RULES or statistic == BROAD else OWN


Ranked = dict[str, list[Claim]]


def by_family(ranked: Ranked) -> list[tuple[Family, list[str]]]:
    """Roles in families. Syntax: roles that hold first, then by the best head's score; the others in the order given,
    but offsets for which no claim holds last."""
    families: list[tuple[Family, list[str]]] = []
    for family in FAMILIES:
        roles = [role for role, claims in ranked.items() if family_of(claims[0].statistic) is family]
        if family in (UP, DOWN):
            roles.sort(key=lambda role: (not ranked[role][0].holds, -known(ranked[role][0].tested), role))
        elif family is POSITIONS:
            roles.sort(key=lambda role: role.startswith("offset ") and not any(claim.holds for claim in ranked[role]))
        families += [(family, roles)] if roles else []
    return families


def known(value: float | None) -> float:
    """0 for what was not counted."""
    return 0.0 if value is None or math.isnan(value) else value
