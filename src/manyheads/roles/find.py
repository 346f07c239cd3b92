"""Finding what heads do over a corpus: which statistics are measured, on which texts, and the labels that follow.

Two readings at most: of the texts themselves (a treebank's sentences, for positions, kinds of tokens and syntax), and
of passages, stretches of sentences in which pronouns find what they mean. Each is measured in one pass
(`statistics.measure`), whose page explains streaming, resuming and several processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyheads.base import is_split
from manyheads.base.processes import own_rank
from manyheads.corpora import Corpus, Document
from manyheads.errors import FileAccessError, TextError
from manyheads.roles.claims import claims_of, control
from manyheads.roles.examples import find_examples
from manyheads.roles.labels import NO_EFFECT, check_table, label_heads
from manyheads.roles.probes.all import ask_probes
from manyheads.roles.results import Roles
from manyheads.roles.rules import (
    ASKED,
    NEEDED,
    RULES,
    SINK_RULE,
    Rule,
    coreference_rules,
    own_rule,
    syntax_rules,
)
from manyheads.statistics import STATISTICS, HeadTable, Progress, Statistic, measure, survey_syntax, syntax_statistics
from manyheads.statistics.corpus_run.chunks import Survey, Wanted
from manyheads.statistics.corpus_run.store import require_own
from manyheads.statistics.defined.coreference import coreference_statistics, survey_coreference
from manyheads.statistics.defined.own_pattern import Pattern, pattern_statistics
from manyheads.statistics.defined.syntax import MIN_ARCS

log = logging.getLogger("manyheads")

FOLDERS = {"texts": "texts", "passages": "passages", "second corpus": "elsewhere"}
"""What is read, one after another, as far as it is asked for; and the folder of each reading in that to resume from."""

COUNTED = 20
"""Arcs of a relation in the survey of a small treebank: enough to report, not to label."""


def find_roles(
    lm: Any,
    texts: str | Iterable[str | Document] | Corpus | None,
    *,
    passages: Iterable[str | Document] | Corpus | None = None,
    patterns: Mapping[str, Pattern] | None = None,
    elsewhere: Iterable[str | Document] | Corpus | None = None,
    examples: int = 3,
    probes: bool = False,
    resume: str | Path | None = None,
    progress: Progress | None = None,
    ranks: Any = None,
    on_questions: Callable[[dict[str, str]], None] | None = None,
    on_reading: Callable[[str], None] | None = None,
) -> Roles:
    """What each head of a loaded model does on some texts: one role a head, in the model's order, and every claim.

    `texts` are texts, Documents, or a Corpus (`corpora.files.open_corpus`); those with gold syntax are also asked for
    every relation. `passages` are stretches of text with gold coreference, asked for antecedents alone. `patterns` are
    your own roles, a function of a text's tokens each (`statistics.patterns`). `elsewhere` is a second corpus, on which
    every claim is tried again (`claim.elsewhere`): about one label in five does not travel. `examples` texts are kept
    for every label, and for every question's best head. `probes` asks random repeats, copying and retrieval, too
    (`roles.probes`; `probing.ask_probes`). `resume`, `ranks` as in `measure`; of several processes the first alone
    has examples and probes.

    `on_questions` is called with every role and its question as soon as the corpus' head tells them, before the long
    reading: what it raises ends the run. `on_reading` is called with each reading's name as it begins: "texts",
    "passages", "second corpus", "examples", "probes", as far as they are asked for.

    Give some hundreds of texts: with few, most heads stay "unlabelled". Cost: as `measure`; docs/reference/roles.md.
    Errors: as `measure`; StatisticError for a pattern that is none; FileAccessError for a folder to resume from that
    holds other files.
    """
    if texts is None:
        raise TextError("texts=None: give a text, a list of texts, or a corpus (corpora.files.open_corpus).")
    check_resume(resume)
    begins = on_reading or (lambda name: None)
    questions = _Questions(pattern_statistics(patterns or {}), passages is not None, on_questions)
    own = {name.strip(): pattern for name, pattern in (patterns or {}).items()}

    def read(name: str, source: Any, statistics: Wanted, **how: Any) -> HeadTable:
        begins(name)
        folder = None if resume is None else Path(resume) / FOLDERS[name]
        return measure(lm, source, statistics, progress=progress, resume=folder, ranks=ranks, **how)

    table = read("texts", texts, questions.of_texts, kinds=True)
    check_table(table)
    parts = [(table, questions.rules(table.names))]
    if passages is not None:
        of_passages = read("passages", passages, questions.of_passages, sinks=table.sinks)
        parts.append((of_passages, coreference_rules()))
    # every part lists claims head by head: they are put side by side
    by_part = [claims_of(part, rules) for part, rules in parts]
    claims = control([[claim for claims in of_head for claim in claims] for of_head in zip(*by_part, strict=True)])
    if elsewhere is not None:
        other = read("second corpus", elsewhere, table.statistics, kinds=True, sinks=table.sinks)
        elsewhere_of = {rule.role: other.column(rule.tested) for rule in parts[0][1]}
        claims = [
            [
                replace(claim, elsewhere=float(elsewhere_of[claim.role][head])) if claim.role in elsewhere_of else claim
                for claim in of_head
            ]
            for head, of_head in enumerate(claims)
        ]
    rules = tuple(rule for _, of_part in parts for rule in of_part)
    labels = label_heads(table, rules, claims)
    notes = {**table.notes, "labels": NO_EFFECT, **questions.unplaced(lm)}
    if len(parts) > 1:
        notes |= {f"passages: {name}": note for name, note in parts[1][0].notes.items()}
    roles = Roles(tuple(labels), tuple(map(tuple, claims)), tuple(part for part, _ in parts), notes)
    if ranks is None and own_rank() and not is_split(lm.model):
        return roles  # the first process shows examples, and is probed
    begins("examples")
    shown_texts = {
        **find_examples(lm, questions.head, roles, questions.all_statistics, table.sinks, examples, own),
        **find_examples(lm, questions.passages, roles, questions.of_coreference, table.sinks, examples, own),
    }
    roles = replace(roles, examples=shown_texts)
    if not probes:
        return roles
    begins("probes")
    return roles.probed(ask_probes(lm, progress))


def check_resume(resume: str | Path | None) -> None:
    """Errors: FileAccessError for what is no folder to resume from, or holds what is no part of such a run."""
    if resume is None:
        return
    if Path(resume).is_file():
        raise FileAccessError(f"resume={resume} is a file: name a folder in which a run may keep what it has.")
    require_own(Path(resume), tuple(FOLDERS.values()))


def questions_of(rules: Iterable[Rule]) -> dict[str, str]:
    """Each rule's role, and its question in words."""
    return {rule.role: rule.asks for rule in rules}


def fixed_questions(patterns: Iterable[str], passages: bool) -> dict[str, str]:
    """What is asked of any texts, before anything is known of them; `passages`: of reference, too."""
    rules = (*RULES, SINK_RULE, *ASKED, *map(own_rule, patterns), *(coreference_rules() if passages else ()))
    return questions_of(rules)


class _Questions:
    """Which statistics are measured; those that depend on the corpus follow from a survey of its first texts."""

    def __init__(
        self, own: list[Statistic], passages: bool, on_questions: Callable[[dict[str, str]], None] | None
    ) -> None:
        self.own, self.with_passages, self.on_questions = own, passages, on_questions
        self.head: tuple[Document, ...] = ()
        self.passages: tuple[Document, ...] = ()
        self.all_statistics: tuple[Statistic, ...] = ()
        self.of_coreference: tuple[Statistic, ...] = ()

    def of_texts(self, survey: Survey) -> tuple[Statistic, ...]:
        self.head = survey.documents
        golds = [document.gold for document in survey.documents]
        relations = survey_syntax(golds, COUNTED if survey.whole else MIN_ARCS)
        fixed = [STATISTICS[name] for name in dict.fromkeys((*NEEDED, *(n for rule in ASKED for n in rule.needed)))]
        self.all_statistics = (*fixed, *self.own, *syntax_statistics(relations))
        if self.on_questions is not None:
            further = coreference_rules() if self.with_passages else ()
            self.on_questions(
                questions_of((*self.rules([statistic.name for statistic in self.all_statistics]), *further))
            )
        return self.all_statistics

    def of_passages(self, survey: Survey) -> tuple[Statistic, ...]:
        self.passages = survey.documents
        self.of_coreference = tuple(
            coreference_statistics(survey_coreference(passage.gold for passage in self.passages))
        )
        return self.of_coreference

    def unplaced(self, lm: Any) -> dict[str, str]:
        """That no gold can be laid on this model's tokens, as a note, and in the log: without a word, all are NaN."""
        if getattr(lm.tokenizer, "is_fast", False) or not any(
            document.gold for document in (*self.head, *self.passages)
        ):
            return {}
        note = (
            f"{type(lm.tokenizer).__name__} is a slow tokenizer: it does not say which characters its tokens are, so "
            f"the texts' words cannot be found among them, and nothing of syntax and coreference was counted. Load "
            f"{lm.name} with a fast tokenizer (tokenizer=)"
        )
        log.warning(note)
        return {"tokenizer": note}

    def rules(self, statistics: Sequence[str]) -> tuple[Rule, ...]:
        """The rules that a table of these statistics can answer."""
        own = (own_rule(statistic.name) for statistic in self.own if statistic.kind == "statistic")
        names = [name.removesuffix(".to_head") for name in statistics if name.endswith(".to_head")]
        return (*RULES, SINK_RULE, *ASKED, *own, *syntax_rules(names))
