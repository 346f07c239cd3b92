"""The table of statistics by name, and which of them "default" and "all" mean.

Texts that people have annotated have more: a treebank's relations ("nsubj.to_governor.given") and its coreference
("coreference.mentions"). Which there are, the beginning of the texts tells; so these are chosen by name or pattern too,
but are not part of "all".
"""

from __future__ import annotations

import copyreg
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from manyheads.base import nearest, plural
from manyheads.errors import StatisticError
from manyheads.statistics.defined import coreference, masses
from manyheads.statistics.defined.alignment import alignments
from manyheads.statistics.defined.masses import tops
from manyheads.statistics.defined.pictures import IMAGES, pictures
from manyheads.statistics.defined.shape import effects, logits, norm_masses, norm_matches, places, spread
from manyheads.statistics.defined.syntax import (
    MIN_ARCS,
    PLACE,
    SMALL_ARCS,
    Relation,
    survey_syntax,
    syntax_names,
    syntax_statistics,
)
from manyheads.statistics.statistic import Statistic, described
from manyheads.texts import Document, Gold

STATISTICS: dict[str, Statistic] = {
    statistic.name: statistic
    for statistic in (
        *spread(),
        *places(),
        *(statistic for offset in masses.OFFSETS for statistic in masses.offset_mass(offset)),
        *masses.local_mass(),
        *masses.distant_masses(*masses.DISTANT),
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

OF_SCORES: dict[str, Statistic] = {statistic.name: statistic for statistic in logits()}
"""Of scores before the softmax, which no map shows. By name alone: they are not part of "default" and "all"."""

OF_IMAGES: dict[str, Statistic] = {statistic.name: statistic for statistic in pictures()}
"""Where a head looks in the pictures of a text: where there are some, a part of "default" and "all"."""

DEFAULT = (
    *("entropy", "effective_keys", "distance", "signed_distance", "previous_mass", "self_mass", "next_mass"),
    *("sink_mass", "first_mass", "special_mass", "punctuation_mass", "rare_mass", "duplicate_mass", "induction_mass"),
)
"""What a first look needs; `"all"` is all that a map shows, chance levels included."""

OF_PLACES = re.compile(r"distant_mass_(0|[1-9]\d{0,8})_([1-9]\d{0,8})(\.uniform)?")  # sink, recent

ALIASES = {f"offset_{offset:+d}_mass": masses.offset_name(offset) for offset in (-1, 0, 1)}


HOW_TO_LIST = "manyheads stats --list shows them all"
OF_SYNTAX = 'corpora.open_corpus("treebank.conllu")'
OF_COREFERENCE = 'corpora.open_corpus("treebank.conllu", unit="passage") (as GUM and CorefUD have, in Entity=)'
SHELL = frozenset("*?[")  # what makes a pattern of a name
NAMED = STATISTICS | OF_CROSS | OF_SCORES | OF_IMAGES


def named(name: str) -> Statistic | None:
    """The statistic of a name, where it is one of the table or `distant_mass` with numbers of its own."""
    if match := OF_PLACES.fullmatch(name):
        return masses.distant_masses(int(match[1]), int(match[2]))[match[3] is not None]
    return NAMED.get(name)


def _unpickled(description: dict[str, Any]) -> Statistic:
    """The table's own, where it has one of this name that means the same; else what is described."""
    known = named(description["name"])
    return described(description) if known is None or known.description != description else known


# `copyreg` is asked before a class's own `__reduce__`, which stands below this table and cannot know it.
copyreg.pickle(Statistic, lambda statistic: (_unpickled, (statistic.description,)))


@dataclass(frozen=True, eq=False)
class Survey:
    """The head of a corpus: its first documents in order, gold and all. `whole`: there are no others.

    The same documents on every process and on every resumed run, whatever came of them: some may be empty or fail.
    """

    documents: tuple[Document, ...]
    whole: bool


def choose(
    request: str | Sequence[str | Statistic],
    survey: Survey | None = None,
    *,
    crosses: bool = False,
    images: bool = False,
) -> tuple[Statistic, ...]:
    """Statistics by name or pattern, "default", "all", or your own among them.

    A pattern is a shell's: "det.*" is every name that begins so, and "det" itself where there is one. `survey` is the
    beginning of the texts, for what is defined only where people have annotated them. `crosses`: whether "default" and
    "all" have the statistics of cross-attention as well; `images`: whether there are pictures in the text, of which
    some statistics are.
    Errors: StatisticError names the nearest, or what the texts lack.
    """
    if not isinstance(request, Iterable) or isinstance(request, bytes):
        raise StatisticError(f"statistics={request!r}: give 'default', 'all', a name, or a list of names.")
    if isinstance(request, str):
        more = (*(OF_CROSS if crosses else ()), *(OF_IMAGES if images else ()))
        plain = tuple(name for name in more if NAMED[name].kind == "statistic")
        request = {"default": (*DEFAULT, *plain), "all": (*STATISTICS, *more)}.get(request, (request,))
    annotated = Annotated(survey, images)
    names = [item if isinstance(item, Statistic) else annotated.names_of(str(item)) for item in request]
    listed = [name for part in names if isinstance(part, list) for name in part]
    known = {name: statistic for name in listed if (statistic := named(name)) is not None}
    known |= annotated.statistics([name for name in listed if name not in known])
    out: dict[str, Statistic] = {}
    for part in names:
        for statistic in [part] if isinstance(part, Statistic) else [known[name] for name in part]:
            if out.get(statistic.name, statistic) is not statistic:
                raise StatisticError(
                    f"two statistics are called {statistic.name!r}, and a table has one column for a name: rename "
                    f"yours."
                )
            out[statistic.name] = statistic
    if not out:
        raise StatisticError("no statistic was asked for: give 'default', 'all', or names.")
    return tuple(out.values())


def may_need_survey(request: str | Sequence[str | Statistic]) -> bool:
    """Whether the request has a name or a pattern that only the texts can tell the meaning of."""
    items = (request,) if isinstance(request, str) or not isinstance(request, Iterable) else request
    known = {"default", "all", *ALIASES}
    return any(isinstance(item, str) and item not in known and named(item) is None for item in items)


def relations_of(survey: Survey) -> tuple[Relation, ...]:
    """The relations that the beginning of some texts has often enough to be scored."""
    return survey_syntax((document.gold for document in survey.documents), least_arcs(survey))


def least_arcs(survey: Survey) -> int:
    """How often a relation must be there to be scored."""
    return SMALL_ARCS if survey.whole else MIN_ARCS


class Annotated:
    """What is defined on texts that begin like this, besides the table."""

    def __init__(self, survey: Survey | None, images: bool = False) -> None:
        self.survey, self.images = survey, images
        documents = () if survey is None else survey.documents
        self.golds: list[Gold] = [document.gold for document in documents if document.gold is not None]

    @cached_property
    def relations(self) -> tuple[Relation, ...]:
        return () if self.survey is None else relations_of(self.survey)

    @cached_property
    def names(self) -> list[str]:
        """The name of everything that can be asked of these texts alone."""
        of_coreference = coreference.NAMES if any(gold.has_coreference for gold in self.golds) else ()
        return [*syntax_names(relation.name for relation in self.relations), *of_coreference]

    def statistics(self, names: Sequence[str]) -> dict[str, Statistic]:
        """Those of these names, and of no others: a relation that nobody asked for costs nothing."""
        requested = list(dict.fromkeys(names))
        of_coreference = [name for name in requested if name in coreference.NAMES]
        of_syntax = [name for name in requested if name not in coreference.NAMES]
        chosen = syntax_statistics(self.relations, of_syntax) if of_syntax else []
        if of_coreference:
            ranks = coreference.survey_coreference(self.golds)
            chosen += coreference.coreference_statistics(ranks, of_coreference)
        return {statistic.name: statistic for statistic in chosen}

    def names_of(self, item: str) -> list[str]:
        """The names that one item of a request stands for. Errors: StatisticError where there is none."""
        item = ALIASES.get(item, item)
        if (statistic := named(item)) is not None:
            if statistic.asks & IMAGES and not self.images:
                raise StatisticError(
                    f"{item!r} is about the pictures in a text, and there are none: give mh.Inputs(text, image=...)."
                )
            return [statistic.name]
        # As what is annotated, what is about pictures is there for a pattern only where they are.
        pool = [name for name in (*NAMED, *self.names) if self.images or name not in OF_IMAGES]
        names = [name for name in pool if matches(name, item)] if SHELL & {*item} else [item] if item in pool else []
        if names:
            return names
        if lack := self.lack(item):
            raise StatisticError(lack)
        near = nearest(item, pool)
        guess = f": did you mean {', '.join(near)}?" if near else "."
        lead = "no statistic is called like" if SHELL & {*item} else "there is no statistic"
        raise StatisticError(f"{lead} {item!r}{guess} {HOW_TO_LIST}.")

    def lack(self, name: str) -> str:
        """Why nothing of these texts has this name, where it is that of a treebank; "" where it is not."""
        relation, _, kind = name.partition(".")
        if any(matches(known, name) for known in coreference.NAMES):
            return (
                f"{name!r} is about coreference, and these texts lack that annotation: give passages of a treebank "
                f"that has it, {OF_COREFERENCE}."
            )
        if not kind or relation in NAMED or not any(fnmatchcase(known, kind) for known in PLACE):
            return ""
        if not any(gold.has_syntax for gold in self.golds):
            subject = f"no other statistic is called like {name!r}, and if that is" if kind == "*" else f"{name!r} is"
            return f"{subject} about syntax, these texts lack that annotation: give a treebank, {OF_SYNTAX}."
        counts = Counter(word.relation for gold in self.golds if gold.has_syntax for word in gold.words)
        assert self.survey is not None
        if counts[relation]:
            return (
                f"{name!r}: these texts have the relation {relation!r} {plural(counts[relation], 'time')}, and at "
                f"least {least_arcs(self.survey)} links between words are needed to score it: give more text."
            )
        near = nearest(relation, counts)
        guess = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(sorted(counts)[:6])} ..."
        return f"{name!r}: this treebank has no relation {relation!r}: {guess}"


def matches(name: str, pattern: str) -> bool:
    """Whether a name fits a shell's pattern; "det.*" fits "det" as well."""
    return fnmatchcase(name, pattern) or (pattern.endswith(".*") and fnmatchcase(name, pattern[:-2]))


OFFSET = re.compile(r"-?\+?\d+")
PER_ROW, MOVED = "; the mean over rows with such a key", "share of what is moved (weight x value norm) that comes from "


def table_markdown() -> str:
    """A Markdown row for each statistic; one row for those that differ in an offset, or weigh a mass by norms."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for statistic in NAMED.values():
        if statistic.kind == "chance":
            continue
        levels = [name.split(".")[1] for name in NAMED if name.startswith(f"{statistic.name}.")]
        chance = ", ".join(f"`.{level}`" for level in levels) or "-"
        maps = "both" if len(statistic.maps) == 2 else next(iter(statistic.maps))
        meaning = statistic.meaning
        if statistic.name.startswith("offset_"):
            meaning = OFFSET.sub("so many places", meaning)
        elif meaning.startswith(MOVED):
            meaning = f"{MOVED}the keys of that mass"
        about = (statistic.unit, meaning, chance, maps, statistic.source.removesuffix(PER_ROW))
        rows.setdefault(about, []).append(f"`{statistic.name}`")
    lines = [f"| {' | '.join([', '.join(names), *about])} |" for about, names in rows.items()]
    titles = ("statistic", "unit", "what", "chance levels", "maps", "source")
    return "\n".join([f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *lines])
