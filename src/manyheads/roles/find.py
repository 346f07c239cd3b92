"""Finding what heads do over a corpus: which statistics are measured, on which texts, the labels that follow, examples.

Two readings at most: of the texts themselves (a treebank's sentences, for positions, kinds of tokens and syntax), and
of passages, stretches of sentences in which pronouns find what they mean. Each is measured in one pass
(`measurement.measure`), whose page explains streaming, resuming and several processes.

Examples are texts from the head of the corpus, of the reporting half alone, in which a head does what its role says.
For each label, and for each question's best head where it holds: the texts in which the head's score is highest, and
its strongest links there. The links are of syntax from a word to its governor or dependent, of reference from a mention
to its antecedents, else between the tokens that the role means, and no other: an example shows what its label says, so
the pairs are those that the statistic counts, taken from the statistics' own tables and at their own granularity
(tokens, not words). A number says how often a head does something; a sentence shows what that looks like.
Cost of examples: one more reading of those texts of which links are shown. How well a head does in a text is kept from
the pass that measures the corpus; where an earlier run has measured it (`resume`), that text is measured once more.
"""

# device: words, tokens and a pass's answers are the host's

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's methods have no types here.

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from manyheads.corpora import Corpus, as_corpus, is_about_texts
from manyheads.errors import FileAccessError, StatisticError, TextError
from manyheads.heads import Head
from manyheads.inputs import Inputs, InputsLike, Piece, Reading, fault_in, record, tokenised
from manyheads.machine import Ranks, is_split, own_rank, require_all_heads, splits_heads
from manyheads.measurement import by_model, measure, measure_corpus, sums_of
from manyheads.measurement.corpus_run import (
    Engine,
    HeadSums,
    RunRequest,
    Wanted,
    require_own,
)
from manyheads.models import LoadedModel
from manyheads.progress import Progress, ShowProgress, shows_progress
from manyheads.roles.claims import REPORT, claims_of, control
from manyheads.roles.labels import NO_EFFECT, check_table, label_heads
from manyheads.roles.page_labels import cache_folder, key_of
from manyheads.roles.probes.all import ask_probes
from manyheads.roles.results import Example, Roles
from manyheads.roles.rules import ASKED, NEEDED, RULES, SINK_RULE, Rule, coreference_rules, own_rule, syntax_rules
from manyheads.roles.words.role_table import UNLABELLED
from manyheads.statistics import STATISTICS, HeadTable, Statistic, Survey, relations_of
from manyheads.statistics.defined import (
    SOURCE,
    Pattern,
    coreference_statistics,
    pattern_statistics,
    searches,
    surfaces_of,
    survey_coreference,
    syntax_statistics,
    targets,
)
from manyheads.statistics.sums import BatchSums
from manyheads.texts import ROOT, Document, Gold, Sinks, Tokens, WordMap, Words, text_seed

log = logging.getLogger("manyheads")

OF_ROLES = "roles"  # the name of a reading, where sums are of what roles need
OWN = (SOURCE, "statistic")  # of a statistic that is a pattern of one's own
FOLDERS = {"texts": "texts", "passages": "passages", "second corpus": "elsewhere"}
"""What is read, one after another, as far as it is asked for; and the folder of each reading in that to resume from."""

MOST_TEXTS = 200
RECORDED = 16  # texts whose queries and keys are held at once: of 135 M parameters and 400 tokens, 37 MB
MIN_ROWS = 3  # questions in a text, so that one lucky one is no example; fewer where no such text does it half as much
SHORTEST, LONGEST = 5, 60  # tokens: what reads as a sentence
LONGEST_PASSAGE = 256  # passages have up to 128 words
LINKS = 3
LEAST_WEIGHT = 0.005  # of a link that is shown: below it, it would read 0.00
COREFERENCE = {rule.role: rule.statistic for rule in coreference_rules()}
RESTS = ("first_mass", "sink_mass", "special_mass", "separator_mass")  # their keys are special tokens, mostly


@shows_progress("finding roles")
def find_roles(
    lm: LoadedModel,
    texts: InputsLike | Corpus | None,
    *,
    passages: Iterable[str | Document] | Corpus | None = None,
    patterns: Mapping[str, Pattern] | None = None,
    elsewhere: Iterable[str | Document] | Corpus | None = None,
    examples: int = 3,
    probes: bool = False,
    resume: str | Path | None = None,
    remember: bool = False,
    progress: ShowProgress = None,
    ranks: Ranks | None = None,
    on_questions: Callable[[dict[str, str]], None] | None = None,
    on_reading: Callable[[str], None] | None = None,
    engine: Engine | str | None = None,
) -> Roles:
    """What each head of a loaded model does on some texts: one role a head, in the model's order, and every claim.

    - `lm`: a loaded model.
    - `texts`: texts, Documents, or a Corpus (`open_corpus`); those with gold syntax are also asked for every
      relation.
    - `passages`: stretches of text with gold coreference, asked for antecedents alone.
    - `patterns`: your own roles by name, a function of a text's tokens each (`statistics.defined.own_pattern`).
    - `elsewhere`: a second corpus, on which every claim is tried again (`claim.elsewhere`): about one label in five
      does not travel.
    - `examples`: how many texts are kept for every label, and for every question's best head.
    - `probes`: ask random repeats, copying and retrieval, too (`roles.probes`; `roles.ask_probes`).
    - `resume`: a folder, as in `measure`.
    - `remember`: keep what was measured in the user's cache folder, and take what an earlier run over the same texts
      kept there; `notes["run"]` says which. Without patterns, and of texts that can be read again.
    - `progress`: called with how far a reading is.
    - `ranks`: as in `measure`; of several processes the first alone has examples and probes.
    - `on_questions`: called with every role and its question as soon as the corpus' head tells them, before the long
      reading: what it raises ends the run.
    - `on_reading`: called with each reading's name as it begins: "texts", "passages", "second corpus", "examples",
      "probes", as far as they are asked for.
    - `engine`: as in `measure`: every reading is its processes', and the first, second and passages' are one after
      another; examples and probes are this process' own.

    Where processes hold heads of one model (tensor parallelism) all get all roles, without examples, and probes are
    refused.

    Give some hundreds of texts: with few, most heads stay "unlabelled". Cost: as `measure`; docs/reference/roles.md.
    Errors: as `measure`; StatisticError for a pattern that is none; FileAccessError for a folder to resume from that
    holds other files.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    if texts is None:
        raise TextError("texts=None: give a text, a list of texts, or a corpus (mh.open_corpus).")
    check_resume(resume)
    note = {}
    if remember and resume is None and not patterns:
        sources = [Inputs.of(source) for source in (texts, passages, elsewhere) if source is not None]
        folder = _run_folder(lm, sources)
        if isinstance(folder, Path):
            known = any((folder / FOLDERS["texts"]).glob("finished.*"))  # as `measurement.corpus_run.store` names it
            words = "of an earlier run, kept" if known else "measured now, kept for the next run"
            try:
                roles = find_roles(
                    lm, texts, passages=passages, elsewhere=elsewhere, examples=examples, probes=probes, resume=folder,
                    progress=progress, ranks=ranks, on_questions=on_questions, on_reading=on_reading, engine=engine,
                )  # fmt: skip
                return replace(roles, notes={**roles.notes, "run": f"{words} in {folder}"})
            # Whatever is wrong with what is kept (damaged, in use, no room), the answer is to measure without it.
            except (FileAccessError, StatisticError) as error:
                if str(folder) not in str(error):
                    raise
                folder = str(error)
        note = {"run": f"measured now, and not kept: {folder.removesuffix('.')}"}
    if probes:
        require_all_heads(lm.model, lm.name, "find_roles(probes=True)")
    begins: Callable[[str], None] = on_reading or (lambda name: None)
    # Patterns are checked here, before the first reading: one that is none must not show when a corpus has been read.
    questions = _Questions(
        pattern_statistics(patterns or {}), passages is not None, on_questions, lm if examples else None
    )
    pattern_of = {name.strip(): pattern for name, pattern in (patterns or {}).items()}

    def read(
        name: str, source: InputsLike | Corpus, statistics: Wanted, *, kinds: bool = False, sinks: Sinks | None = None
    ) -> HeadTable:
        begins(name)
        folder = None if resume is None else Path(resume) / FOLDERS[name]
        inputs = Inputs.of(source)
        if not callable(statistics) or inputs.texts is None or inputs.has_media:
            return measure(
                lm, source, statistics, sinks=sinks, kinds=kinds, progress=progress, resume=folder, ranks=ranks,
                engine=engine,
            )  # fmt: skip
        # Whoever measures in other processes watches nothing: texts of examples are measured once more, by this one.
        watch = None if engine is not None else questions.watch
        what = RunRequest(lm, statistics, inputs.long, sinks, kinds, watch=watch)
        return measure_corpus(what, inputs.texts, progress=progress, resume=folder, ranks=ranks, engine=engine)

    tables = [read("texts", texts, questions.of_texts, kinds=True)]
    check_table(tables[0])
    if passages is not None:
        tables.append(read("passages", passages, questions.of_passages, sinks=tables[0].sinks))
    second = None
    if elsewhere is not None:
        # With the first corpus' sinks: a sink is the model's, and another would make another question of it.
        second = read("second corpus", elsewhere, tables[0].statistics, kinds=True, sinks=tables[0].sinks)
    roles = roles_of(tables, second)
    table, notes = tables[0], {**roles.notes, **questions.unplaced(lm), **note}
    roles = replace(roles, notes=notes)
    if ranks is None and own_rank() and not is_split(lm.model):
        return roles  # the first process shows examples, and is probed
    if splits_heads(lm.model):  # each process has some heads' maps alone
        left_out = "left out: the heads are divided among processes" if examples else ""
        return replace(roles, notes={**notes, **({"examples": left_out} if left_out else {})})
    begins("examples")
    shown_texts: dict[tuple[Head, str], tuple[Example, ...]] = {}
    for scored in questions.scored:
        shown_texts |= find_examples(lm, scored, roles, table.sinks, examples, pattern_of)
    roles = replace(roles, examples=shown_texts)
    if not probes:
        return roles
    begins("probes")
    return roles.probed(ask_probes(lm, progress))


def _run_folder(lm: LoadedModel, sources: Sequence[Inputs]) -> Path | str:
    """The folder in the user's cache of a run over these texts, named after all that it depends on; or why none."""
    if any(source.texts is None or source.has_media for source in sources):
        return "not of texts alone"
    keys = [as_corpus(source.texts).key for source in sources]
    if not all(keys):
        return "the texts can be read once only"
    try:
        return cache_folder() / f"run-{key_of(lm, *keys, *(source.long for source in sources))}"
    except FileAccessError as error:  # no home
        return str(error)


def role_sums(
    lm: LoadedModel,
    texts: Corpus,
    passages: Corpus | None = None,
    *,
    patterns: Mapping[str, Pattern] | None = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
    on_questions: Callable[[dict[str, str]], None] | None = None,
    on_reading: Callable[[str], None] | None = None,
) -> list[HeadSums]:
    """What `find_roles` measures, as sums that add: of the texts, then of passages. Give shards (`Corpus.shard`).

    Those of all shards, added, make the roles (`roles_of`).

    - `lm`: a loaded model.
    - `texts`: a corpus, or a shard of one.
    - `passages`: as in `find_roles`, or a shard of them.
    - `patterns`: as in `find_roles`.
    - `resume`: as in `find_roles`.
    - `progress`: as in `find_roles`.
    - `on_questions`: as in `find_roles`.
    - `on_reading`: as in `find_roles`.

    Cost and errors as of `find_roles`.
    """
    check_resume(resume)
    questions = _Questions(pattern_statistics(patterns or {}), passages is not None, on_questions, None)

    def read(name: str, corpus: Corpus, sums: HeadSums) -> HeadSums:
        if on_reading is not None:
            on_reading(name)
        folder = None if resume is None else Path(resume) / FOLDERS[name]
        return sums.update(corpus, resume=folder, progress=progress, ranks=None)

    out = [read("texts", texts, HeadSums(lm, questions.of_texts, kinds=True, reading=OF_ROLES))]
    if passages is not None:
        of_passages = HeadSums(lm, questions.of_passages, sinks=out[0].sinks, reading=f"{OF_ROLES}: passages")
        out.append(read("passages", passages, of_passages))
    return out


def roles_of(tables: Sequence[HeadTable], elsewhere: HeadTable | None = None) -> Roles:
    """The roles, without examples, from tables of what `role_sums` measures: of texts, and then of passages.

    Errors: StatisticError for a table that lacks a statistic which roles need.
    """
    table, *of_passages = tables
    check_table(table)
    parts = [(table, rules_of(table.statistics)), *((part, coreference_rules()) for part in of_passages)]
    # Every part lists claims head by head: they are put side by side, so that q-values are over all of them.
    by_part = [claims_of(part, rules) for part, rules in parts]
    claims = control([[claim for claims in of_head for claim in claims] for of_head in zip(*by_part, strict=True)])
    if elsewhere is not None:
        elsewhere_of = {rule.role: elsewhere.column(rule.tested) for rule in parts[0][1]}
        claims = [
            [
                replace(claim, elsewhere=float(elsewhere_of[claim.role][head])) if claim.role in elsewhere_of else claim
                for claim in of_head
            ]
            for head, of_head in enumerate(claims)
        ]
    rules = tuple(rule for _, of_part in parts for rule in of_part)
    labels = label_heads(table, rules, claims)
    notes = {**table.notes, "labels": NO_EFFECT}
    for part in of_passages:
        notes |= {f"passages: {name}": note for name, note in part.notes.items()}
    return Roles(tuple(labels), tuple(map(tuple, claims)), tuple(tables), notes)


def rules_of(statistics: Sequence[Statistic]) -> tuple[Rule, ...]:
    """The rules that a table of these statistics can answer."""
    of_patterns = (own_rule(statistic.name) for statistic in statistics if (statistic.source, statistic.kind) == OWN)
    names = [x.name.removesuffix(".to_governor") for x in statistics if x.name.endswith(".to_governor")]
    return (*RULES, SINK_RULE, *ASKED, *of_patterns, *syntax_rules(names))


def check_resume(resume: str | Path | None) -> None:
    """Errors: FileAccessError for a file, or a folder that holds anything but such a run."""
    if resume is None:
        return
    if Path(resume).is_file():
        raise FileAccessError(f"resume={resume} is a file: name a folder in which a run may keep what it has.")
    require_own(Path(resume), tuple(FOLDERS.values()))


def questions_of(rules: Iterable[Rule]) -> dict[str, str]:
    """Each rule's role, and its question in words."""
    return {rule.role: rule.asks for rule in rules}


def fixed_questions(patterns: Iterable[str], passages: bool) -> dict[str, str]:
    """What is asked of any texts, before anything is known of them; `passages`: of reference as well."""
    rules = (*RULES, SINK_RULE, *ASKED, *map(own_rule, patterns), *(coreference_rules() if passages else ()))
    return questions_of(rules)


class _Questions:
    """Which statistics are measured; those that depend on the corpus follow from a survey of its first texts.

    `shown_by`: the model by which examples are chosen, None for none: `scored` are the texts to choose from.
    """

    def __init__(
        self,
        of_patterns: list[Statistic],
        passages: bool,
        on_questions: Callable[[dict[str, str]], None] | None,
        shown_by: LoadedModel | None,
    ) -> None:
        self.of_patterns, self.with_passages, self.on_questions = of_patterns, passages, on_questions
        self.shown_by = shown_by
        self.annotated = False
        self.scored: list[TextScores] = []

    def __reduce__(self) -> tuple[type[_Questions], tuple[object, ...]]:
        # In another process: the same statistics, and nobody who is told of them.
        return _Questions, (self.of_patterns, self.with_passages, None, None)

    def of_texts(self, survey: Survey) -> tuple[Statistic, ...]:
        relations = relations_of(survey)
        fixed = [STATISTICS[name] for name in dict.fromkeys((*NEEDED, *(n for rule in ASKED for n in rule.needed)))]
        statistics = (*fixed, *self.of_patterns, *syntax_statistics(relations))
        if self.on_questions is not None:
            further = coreference_rules() if self.with_passages else ()
            self.on_questions(questions_of((*rules_of(statistics), *further)))
        return self._noted(survey, statistics)

    def of_passages(self, survey: Survey) -> tuple[Statistic, ...]:
        gold = (passage.gold for passage in survey.documents)
        return self._noted(survey, tuple(coreference_statistics(survey_coreference(gold))))

    def _noted(self, survey: Survey, statistics: tuple[Statistic, ...]) -> tuple[Statistic, ...]:
        self.annotated |= any(document.gold for document in survey.documents)
        if self.shown_by is not None:
            self.scored.append(TextScores.of(self.shown_by, survey.documents, statistics))
        return statistics

    def watch(self, documents: Sequence[Document], adds: BatchSums) -> None:
        """Keep what a batch says of texts that may be examples of the reading that was surveyed last."""
        if self.scored:
            self.scored[-1].keep(documents, adds)

    def unplaced(self, lm: LoadedModel) -> dict[str, str]:
        """Warn (log and note) that a slow tokenizer gives no offsets, so that syntax and coreference stay NaN."""
        if getattr(lm.tokenizer, "is_fast", False) or not self.annotated:
            return {}
        note = (
            f"{type(lm.tokenizer).__name__} is a slow tokenizer: it does not say which characters its tokens are, so "
            f"the texts' words cannot be found among them, and nothing of syntax and coreference was counted. Load "
            f"{lm.name} with a fast tokenizer (tokenizer=)"
        )
        log.warning(note)
        return {"tokenizer": note}


class Pairs(NamedTuple):
    """Cells of one text's map, `rows[i]` looks at `keys[i]`."""

    rows: list[int]
    keys: list[int]


def pairs_of(statistic: str, tokens: Tokens, text: int, patterns: Mapping[str, Pattern]) -> Pairs:
    """The pairs that a statistic counts in one text; from and to words where there are such, as people read words.

    Of what means no pair in particular (entropy), every pair of two words.
    """
    if statistic in patterns:
        places = targets(statistic, patterns[statistic], surfaces_of(tokens, text))
        pairs = [(row, key) for row, keys in enumerate(places) for key in keys]
    else:
        count = int(tokens.lengths[text])
        cells, plain = _cells(statistic, tokens, text)[:count, :count], tokens.ordinary[text][:count]
        readable = cells & plain[:, None] & (plain[None] | (statistic in RESTS))
        pairs = (readable if bool(readable.any()) else cells).nonzero().tolist()
    return Pairs([row for row, _ in pairs], [key for _, key in pairs])


def _cells(statistic: str, tokens: Tokens, text: int) -> Bool[Tensor, "q k"]:
    """The cells that the statistic counts; of one that is about whole rows, every pair of two different words."""
    cells = STATISTICS[statistic].cells if statistic in STATISTICS else None
    if cells is not None:
        return cells(tokens, text)
    word = tokens.ordinary[text]
    return word[:, None] & word[None] & ~torch.eye(len(word), dtype=torch.bool)


class Search(NamedTuple):
    """A search for examples: of a head (`place` counts from the model's first) at a role, by a statistic."""

    head: Head
    role: str
    place: int
    statistic: str


@dataclass(frozen=True, eq=False)
class TextScores:
    """The texts that examples are chosen from, and what each of them adds to the statistics that roles rest on.

    `statistics`: those that were measured on such texts, `columns` the places of those that are of use here. `pieces`:
    the texts as the model reads them, with their documents. `rows`: of each text that was measured, by its place among
    them, the numerators and denominators of each head and column.
    """

    statistics: tuple[Statistic, ...]
    columns: tuple[int, ...]
    pieces: tuple[tuple[Piece, Document], ...]
    rows: dict[int, tuple[Float[Tensor, "h c"], Float[Tensor, "h c"]]] = field(default_factory=dict)

    @staticmethod
    def of(lm: LoadedModel, documents: Sequence[Document], statistics: Sequence[Statistic]) -> TextScores:
        """Nothing measured yet. `documents`: those of the choosing half among them."""
        read_by_roles = {rule.statistic for rule in (*rules_of(statistics), *coreference_rules())} | {"entropy"}
        columns = [column for column, statistic in enumerate(statistics) if statistic.name in read_by_roles]
        refers = any(statistics[column].name in COREFERENCE.values() for column in columns)
        pieces = _pieces(lm, documents, LONGEST_PASSAGE if refers else LONGEST)
        return TextScores(tuple(statistics), tuple(columns), tuple(pieces))

    @cached_property
    def _places(self) -> dict[int, int]:
        # By identity: a corpus may hold a text twice. The documents are held here, so that no other takes their number.
        return {id(document): place for place, (_, document) in enumerate(self.pieces)}

    def keep(self, documents: Sequence[Document], adds: BatchSums, columns: Sequence[int] | None = None) -> None:
        """Keep the rows of a batch that are of these texts; `columns`: where it has the statistics of use, if not as
        `columns` here."""
        places = [self._places.get(id(document)) for document in documents]
        if any(place is not None for place in places):
            columns = self.columns if columns is None else columns
            num, den = adds.num[..., list(columns)], adds.own_of(columns)
            rows = ((place, row) for row, place in enumerate(places) if place is not None)
            self.rows.update((place, (num[row].clone(), den[row].clone())) for place, row in rows)

    def measure(self, lm: LoadedModel, sinks: Sinks) -> None:
        """Measure the texts that are not measured yet: those of an earlier run, or of another process."""
        left = [place for place in range(len(self.pieces)) if place not in self.rows]
        if not left:
            return
        reading = Reading(lm, tuple(piece for piece, _ in self.pieces)).counted()
        reading = replace(reading, pieces=tuple(reading.pieces[place] for place in left))
        statistics = tuple(self.statistics[column] for column in self.columns)
        batches = sums_of(by_model(lm), reading.batches(), statistics, sinks=sinks)
        for group, adds in zip(reading.groups(), batches, strict=True):
            self.keep([self.pieces[left[place]][1] for place in group], adds, range(len(statistics)))


def find_examples(
    lm: LoadedModel, scored: TextScores, roles: Roles, sinks: Sinks, count: int, patterns: Mapping[str, Pattern]
) -> dict[tuple[Head, str], tuple[Example, ...]]:
    """The best texts of all that rests on a statistic of theirs; fewer where few texts ask it at all.

    - `lm`: a loaded model.
    - `scored`: the texts to choose from.
    - `roles`: labels and claims.
    - `sinks`: the model's.
    - `count`: how many texts for a head and role.
    - `patterns`: the functions behind roles of one's own, by name.
    """
    names = {scored.statistics[column].name: index for index, column in enumerate(scored.columns)}
    # Every label, and every question's best head for which it holds; each once.
    place = {label.head: index for index, label in enumerate(roles)}
    statistic_of = {(label.head, label.name): label.evidence.statistic for label in roles if label.name != UNLABELLED}
    best_claims = (roles.ranked(role, 1)[0] for role in roles.questions)
    statistic_of |= {(claim.head, claim.role): claim.statistic for claim in best_claims if claim.holds}
    all_searches = (Search(head, role, place[head], statistic) for (head, role), statistic in statistic_of.items())
    wants = [search for search in all_searches if search.statistic in names]
    if not (wants and scored.pieces and count):
        return {}
    scored.measure(lm, sinks)
    num, den = (torch.stack([scored.rows[text][part] for text in range(len(scored.pieces))]) for part in (0, 1))
    best: dict[Search, list[tuple[float, int]]] = {}
    for search in wants:
        column = names[search.statistic]
        best[search] = _best(num[:, search.place, column], den[:, search.place, column], count)
    links = _links(lm, scored, best, sinks, patterns)
    return {
        (search.head, search.role): tuple(
            Example(scored.pieces[text][1].name, scored.pieces[text][0].text, score, linked)
            for score, text in scores
            if (linked := links[search, text])
        )
        for search, scores in best.items()
        if scores
    }


def _links(
    lm: LoadedModel,
    scored: TextScores,
    best: Mapping[Search, Sequence[tuple[float, int]]],
    sinks: Sinks,
    patterns: Mapping[str, Pattern],
) -> dict[tuple[Search, int], tuple[str, ...]]:
    """The strongest links of each search in each of its texts, which are recorded some at a time."""
    searches: dict[int, list[Search]] = {}
    for search, scores in best.items():
        for _, text in scores:
            searches.setdefault(text, []).append(search)
    # Of like length, so that little is padded; some at a time, since a recording holds queries and keys of every layer.
    texts = sorted(searches, key=lambda text: len(scored.pieces[text][0].ids))
    out: dict[tuple[Search, int], tuple[str, ...]] = {}
    for begin in range(0, len(texts), RECORDED):
        group = texts[begin : begin + RECORDED]
        links = _Links(lm, [scored.pieces[text][0] for text in group], sinks, patterns)
        for number, text in enumerate(group):
            for search in searches[text]:
                out[search, text] = links.of(search.head, number, search.role, search.statistic)
        del links  # before the next recording is made
    return out


def _best(num: Tensor, den: Tensor, count: int) -> list[tuple[float, int]]:
    """The texts of the highest scores; those that ask often enough come first, if they score half as high as any."""
    scores = torch.where(den > 0, num / den.clamp_min(1), 0.0)
    half = float(scores.max()) / 2 if len(scores) else 0.0

    def rank(text: int) -> tuple[bool, float, float]:
        often = bool(den[text] >= MIN_ROWS) and float(scores[text]) >= half
        return not often, -float(scores[text]), -float(den[text])

    ranked = sorted(range(len(scores)), key=rank)[:count]
    return [(float(scores[text]), text) for text in ranked if scores[text] > 0]


def _pieces(lm: LoadedModel, documents: Sequence[Document], longest: int) -> list[tuple[Piece, Document]]:
    """Short texts of the reporting half, in order; none that the tokenizer cannot read."""
    reported = (document for document in documents if document.text.strip() and text_seed(document.text) & 1 == REPORT)
    chosen = [document for document in islice(reported, 4 * MOST_TEXTS) if document.target is None]
    readable = {place: document for place, document in enumerate(chosen) if not fault_in(document.text)}
    pieces: list[tuple[Piece, Document]] = []
    for document, of_text in zip(readable.values(), tokenised(lm, readable, "windows"), strict=True):
        if isinstance(of_text, Exception):
            # A text that cannot be read is no example; a full disk or no memory ends the run.
            if not is_about_texts(of_text):
                raise of_text
        elif len(of_text) == 1 and SHORTEST <= len(of_text[0].ids) <= longest:
            pieces.append((of_text[0], document))
    return pieces[:MOST_TEXTS]


class _Links:
    """The strongest links of some texts that a role means, by head: between tokens, of gold between its words."""

    def __init__(self, lm: LoadedModel, pieces: Sequence[Piece], sinks: Sinks, patterns: Mapping[str, Pattern]) -> None:
        self.pieces, self.sinks, self.patterns = pieces, sinks, patterns
        # Where the gold words stand, once each (German "im" is two); nothing where they overlap otherwise.
        self.spans: list[list[tuple[int, int]]] = []
        for piece in pieces:
            spans = sorted({(word.begin, word.end) for word in piece.gold.words}) if piece.gold is not None else []
            overlap = any(before[1] > after[0] for before, after in pairwise(spans))
            self.spans.append([] if overlap else spans)
        self.recording = record(lm, [piece.text for piece in pieces])
        self.words: dict[str, Words] = {}
        self.tokens: dict[str, Tokens] = {}  # by stack; what they know of the texts' characters is found once

    def of(self, head: Head, text: int, role: str, statistic: str) -> tuple[str, ...]:
        """At most `LINKS`, the strongest first; none where no pair that is meant has any weight to speak of."""
        layer = self.recording.stacks[head.stack][head.layer]
        gold = self.pieces[text].gold
        arcs = _arcs(gold, role) if gold is not None and self.spans[text] else []
        if arcs and gold is not None:
            if head.stack not in self.words:
                self.words[head.stack] = Words.of(layer.tokens, by=self.spans)
            words = layer.word_weights(head.index, text, words=self.words[head.stack])
            cells = self._cells(words, gold, text, arcs)
            named = [(words.queries[i].text, words.keys[j].text, float(words.weights[i, j])) for i, j in cells]
        else:
            if head.stack not in self.tokens:
                self.tokens[head.stack] = layer.tokens.with_sinks(self.sinks)
            tokens = self.tokens[head.stack]
            pairs = pairs_of(statistic, tokens, text, self.patterns)
            weights = layer.weights_at(torch.tensor(pairs.rows).long(), torch.tensor(pairs.keys).long(), text)
            written = surfaces_of(tokens, text)
            cells = zip(pairs.rows, pairs.keys, weights[head.index].tolist(), strict=True)
            named = [(written[row], written[key], weight) for row, key, weight in cells]
        best = sorted(named, key=lambda link: -link[2])[:LINKS]
        return tuple(f"{query} → {key} {weight:.2f}" for query, key, weight in best if weight >= LEAST_WEIGHT)

    def _cells(self, words: WordMap, gold: Gold, text: int, arcs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Where gold words' links stand in a map of units; words that share their characters are one unit."""
        unit = {query.word: index for index, query in enumerate(words.queries) if query.word >= 0}
        number = {span: index for index, span in enumerate(self.spans[text])}
        place = [unit.get(number[word.begin, word.end]) for word in gold.words]
        cells = [(place[row], place[key]) for row, key in arcs]
        return [(row, key) for row, key in dict.fromkeys(cells) if row is not None and key is not None and row != key]


def _arcs(gold: Gold, role: str) -> list[tuple[int, int]]:
    """The pairs of words that a role of syntax or reference means in one text; none for other roles."""
    if role in COREFERENCE:
        return [
            (search.row, antecedent)
            for search in searches(gold)
            if role == "coreference" or gold.words[search.row].pos == "PRON"
            for antecedent in sorted(search.right)
        ]
    relation, colon, direction = role.rpartition(": ")
    if not colon:
        return []
    arcs = [
        (index, word.head) for index, word in enumerate(gold.words) if word.relation == relation and word.head != ROOT
    ]
    return arcs if direction == "dependent to governor" else [(head, dependent) for dependent, head in arcs]
