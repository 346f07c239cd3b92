"""`manyheads roles`: which head does what over a corpus, how surely, against which chance level."""

from __future__ import annotations

import io
import math
import runpy
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from manyheads import __version__, base, corpora, figures, machine
from manyheads import roles as role_finder
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    LOOKED_AT,
    OF_SHARD,
    PICTURE_ENDINGS,
    STDIN,
    AsJson,
    CorpusFiles,
    DeviceName,
    DtypeName,
    EngineActors,
    EngineAddress,
    EngineEvery,
    EngineGpus,
    EngineName,
    ModelChoice,
    ModelName,
    ResumeFolder,
    ShardBy,
    ShardOption,
    check_output,
    chosen_engine,
    chosen_shard,
    load_model,
    opened_corpus,
    read_sources,
    save_sums,
    to_file,
)
from manyheads.cli.terminal.console import WIDTH, clean, emit_document, print_whole, print_written
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.corpora import KINDS
from manyheads.errors import FileAccessError, TextError
from manyheads.roles import compare
from manyheads.roles.words import ABSENT, NOT_EFFECT, UNLABELLED, figure, span

if TYPE_CHECKING:
    from manyheads.corpora import Corpus
    from manyheads.models import LoadedModel
    from manyheads.roles import Claim, HeadRole, Roles
    from manyheads.roles.probes import HeadScore, Probe


Found = TypeVar("Found")
REPORT_ENDINGS = (".html",)
FAMILY_TEXTS = 300  # of the corpus' beginning: some thousand rows, which tell heads apart to a thousandth
ASK_HELP = "Rank the heads at this role; may be repeated."
ALL_HELP = "Also print a ranking for each question, and each head's evidence and examples."
ELSEWHERE_HELP = "A second corpus, to test which labels hold there too."
NO_CACHE_HELP = "Measure the corpus again, and keep nothing for the next run."
KIND_HELP = "What the files hold: text, jsonl or conllu."
PROBES_HELP = "Also probe repeated random tokens, copying by weights, retrieval (docs/reference/probes.md)."
PATTERN_HELP = (
    "Roles of your own: functions in FILE.py that return where each token should look (docs/reference/roles.md)."
)

EFFECT_SAID = f"{NOT_EFFECT}: what is lost without a head was not measured"
GENERAL = (UNLABELLED, "broad")
NAMED = 4  # heads of a role
SUREST = 3  # roles in the verdict
EXAMPLES = 1  # texts shown for a question
NEAREST = 3  # unanswered questions that are named
FAILED = 10  # texts that failed, by name
TEXT_WIDTH = 96
BEST = 3  # heads of a probe that are shown
COLUMNS = f"{'score':>8}{'chance':>8}{'95%':>14}{'cases':>9}"

Files = Annotated[list[str] | None, typer.Argument(metavar="FILES", help="More files of the corpus.")]


def roles(
    files: Files = None,
    corpus: CorpusFiles = None,
    model: ModelName = DEFAULT_MODEL,
    ask: Annotated[list[str] | None, typer.Option("--ask", metavar="ROLE", help=ASK_HELP)] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Heads in a ranking.")] = 10,
    complete: Annotated[bool, typer.Option("--all", help=ALL_HELP)] = False,
    elsewhere: Annotated[list[str] | None, typer.Option("--elsewhere", metavar="FILE", help=ELSEWHERE_HELP)] = None,
    patterns: Annotated[list[Path] | None, typer.Option("--pattern", metavar="FILE.py", help=PATTERN_HELP)] = None,
    probes: Annotated[bool, typer.Option("--probes", help=PROBES_HELP)] = False,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help=KIND_HELP)] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of a text file is a text.")] = False,
    field: Annotated[
        str, typer.Option("--field", metavar="NAME", help="The field of JSON lines that holds the text.")
    ] = "text",
    resume: ResumeFolder = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help=NO_CACHE_HELP)] = False,
    shard: ShardOption = None,
    shard_by: ShardBy = "text",
    out: Annotated[Path | None, to_file("--out", f"Write every claim: .parquet, .csv or .json. {OF_SHARD}")] = None,
    plot: Annotated[Path | None, to_file("--plot", "Draw every question's best head: .svg, .png, .pdf.")] = None,
    families: Annotated[Path | None, to_file("--families", "Draw how far apart heads are: .svg, .png, .pdf.")] = None,
    report: Annotated[Path | None, to_file("--report", "Write what --all prints, and the drawing: .html.")] = None,
    engine: EngineName = None,
    address: EngineAddress = None,
    actors: EngineActors = None,
    gpus_per_actor: EngineGpus = None,
    every: EngineEvery = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Which head does what over a corpus: how surely, against which chance level, ranked by question.

    Heads are chosen on one half of the texts and reported on the other. A treebank (.conllu) adds every relation and
    coreference. Several processes: torchrun --nproc-per-node 2 -m manyheads roles ...

    For example: manyheads roles --corpus treebank.conllu --report roles.html
    """
    talk, choice = ProgressLine(), ModelChoice(model, device, dtype)
    check_output(plot, "--plot", PICTURE_ENDINGS)
    check_output(families, "--families", PICTURE_ENDINGS)
    check_output(report, "--report", REPORT_ENDINGS)
    of_all = {"--plot": plot, "--families": families, "--report": report, "--json": as_json}
    crew = chosen_engine(engine, address, actors, gpus_per_actor, every, shard_by)
    of_all |= {"--engine": engine, "--ask": ask, "--all": complete, "--probes": probes, "--elsewhere": elsewhere}
    place = chosen_shard(shard, shard_by if engine is None else "text", out, of_all)
    own_patterns = {name: read_pattern for path in patterns or [] for name, read_pattern in read_patterns(path).items()}
    options = {"kind": kind, "lines": lines, "field": field}
    sources = [*(corpus or []), *(files or [])]
    if kind is not None and kind not in KINDS:
        raise TextError(
            f"--kind {kind}: there is no such kind of text. Use one of {', '.join(KINDS)}, or leave it out."
        )
    if resume is not None:
        if STDIN in sources:
            raise TextError("stdin cannot be resumed: write the texts to a file, and give that with --resume.")
        # Imports torch, for which --help is not to wait.
        from manyheads.roles import check_resume

        check_resume(resume)
    texts, passages = read_sources(sources, options, model)
    second = opened_corpus(elsewhere, **options) if elsewhere else None

    def judge(questions: dict[str, str]) -> None:
        """Refuse a role that no question asks, as soon as the questions are known: before the long reading."""
        # Both import torch, for which --help is not to wait.
        from manyheads.roles import role_named  # as above
        from manyheads.roles.probes import PROBES

        for role in ask or []:
            role_named(role, questions, PROBES if probes else {})

    # Relations may be asked of what has syntax, which only the corpus' head tells; a stream cannot be looked into.
    if texts.total is None:
        may_have_syntax = kind not in ("text", "jsonl")
    else:
        first = islice(texts.open(), LOOKED_AT)
        may_have_syntax = any(text.gold is not None and text.gold.has_syntax for text in first)
    if not may_have_syntax:
        # Imports torch, for which --help is not to wait.
        from manyheads.roles import fixed_questions

        judge(fixed_questions(own_patterns, passages is not None))
    with machine.torchrun() as (rank, world):
        if rank:
            talk.silence()  # the first process speaks for all, the others say nothing but what goes wrong
        elif world > 1:
            talk.note(f"{world} processes share the corpus")
        lm = load_model(talk, choice)
        if place is not None and out is not None:
            texts = texts.shard(place.index, place.of, place.by)
            passages = passages.shard(place.index, place.of, place.by) if passages else None
            how = {"passages": passages, "patterns": own_patterns, "resume": resume}
            sums = _find(talk, lm, texts, None, role_finder.role_sums, on_questions=judge, **how)
            if not rank:
                print_written(*save_sums(sums, out))
            return
        labelled = _find(
            talk,
            lm,
            texts,
            second,
            role_finder.find_roles,
            passages=passages,
            patterns=own_patterns,
            resume=resume,
            remember=not no_cache and world == 1,
            on_questions=judge,
            engine=crew,
        )
        if rank:
            return
        if probes:
            # Imports torch, for which --help is not to wait.
            from manyheads.roles.probes import COST, ask_probes

            with talk.step(f"probing: {COST}") as progress:
                labelled = labelled.probed(ask_probes(lm, progress))
        if out is not None:
            labelled.save(out)
        if plot is not None:
            figures.save_roles(labelled, plot)
        if report is not None:
            write_report(labelled, page(labelled, texts.origin, choice, sources, complete=True, top=top), report)
        if families is not None:
            if texts.total is None:
                raise TextError(
                    f"--families reads the corpus again, and {texts.origin} can be read only once: give a file."
                )
            head_texts = [document.text for document in islice(texts.open(), FAMILY_TEXTS) if document.text.strip()]
            with talk.step("comparing heads with each other") as progress:
                drawn = compare.head_families(lm, head_texts, progress=progress)
                figures.save_families(drawn, families, roles=list(labelled))
    if "run" in labelled.notes:
        talk.note(f"numbers of the corpus: {labelled.notes['run']} (--no-cache measures again)")
    if count := labelled.num_failed:
        were = "s could not be measured, and were" if count > 1 else " could not be measured, and was"
        talk.note(f"{count:,} text{were} left out")
    if as_json:
        emit_document({"loaded": lm.because, "origin": texts.origin, **labelled.to_dict()})
        return
    rankings = [line for role in ask or [] for line in ranking(labelled, role, top)]
    print_whole(rankings or page(labelled, texts.origin, choice, sources, complete=complete, top=top))
    print_written(out, plot, families, report)


def _find(
    talk: ProgressLine,
    lm: LoadedModel,
    texts: Corpus,
    second: Corpus | None,
    find: Callable[..., Found],
    **options: Any,
) -> Found:
    """All that is read, each reading a step of its own by name."""
    if lm.tokenizer is None:
        raise TextError(f"{lm.name} has no tokenizer, so it cannot read a corpus.")
    labels = {
        "texts": f"reading {texts.origin}",
        "passages": f"reading passages of {texts.origin}",
        "second corpus": f"reading the second corpus, {second.origin if second else ''}",
        "examples": "reading examples",
    }
    with talk.steps() as steps:

        def begin(name: str) -> None:
            steps.begin(labels[name])

        options |= {} if second is None else {"elsewhere": second}
        return find(lm, texts, progress=steps.progress, on_reading=begin, **options)


# ---------------------------------------------------------------------------------------------------------------------
# Roles of one's own from a Python file: every public function in it is a pattern, its name the role's.


def read_patterns(path: Path) -> dict[str, Any]:
    """The file's own functions by name, run as Python runs a file. Errors: FileAccessError, TextError."""
    if not path.is_file():
        raise FileAccessError(f"--pattern {path}: there is no such file.")
    try:
        names = runpy.run_path(str(path), run_name="manyheads_pattern")
    except (Exception, SystemExit) as error:
        raise TextError(f"--pattern {path} cannot be run: {type(error).__name__}: {error}.") from error
    names_defined = {
        name.replace("_", " "): value
        for name, value in names.items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", "") == "manyheads_pattern"
        and not isinstance(value, type)
    }  # fmt: skip
    if not names_defined:
        raise TextError(
            f"--pattern {path} defines no function: write one that takes a text's tokens and returns, for each of "
            f"them, the places it should look at (docs/reference/roles.md)."
        )
    return names_defined


# ----------------------------------------------------------------------------------------------- what the command shows


def page(
    labelled: Roles,
    origin: str,
    model: ModelChoice,
    sources: Sequence[str] | None,
    *,
    complete: bool = False,
    top: int = 10,
) -> list[Text]:
    """What it comes to, the heads by role, then the questions that some head answers, then what it rests on.

    `sources`: the files that were read, for the commands that read them again; None where nobody knows them here.
    `complete`: with each head's evidence and examples, and for each question and probe its best `top` heads.
    """
    sums = labelled.table.sums
    texts = labelled.notes.get("texts") or base.plural(sums.num_texts, "text")
    answered = any(claim.holds for claims in labelled.claims for claim in claims)
    # How many heads have a role, and the surest of them; where none has one, what most of them lack.
    count = sum(role.name != UNLABELLED for role in labelled)
    verdict = f"{count} of {len(labelled)} heads have a role"
    surest: dict[str, HeadRole] = {}  # of each role its surest head; a broad head has no distance
    for role in sorted(labelled, key=lambda role: -role.evidence.distance):
        if role.name != UNLABELLED and role.evidence.distance > 0:
            surest.setdefault(role.name, role)
    if not count:
        reasons = Counter(role.evidence.words.rpartition(": ")[2] for role in labelled)
        verdict += f": {clean(reasons.most_common(1)[0][0]) if reasons else 'there are no heads'}"
    elif surest:
        verdict += ". Surest: " + ", ".join(
            f"{role.head} {clean(role.name)} ({_share(min(role.evidence.score, 1))}, "
            f"chance {_share(role.evidence.chance)})"
            for role in islice(surest.values(), SUREST)
        )
    lines = [
        Text.assemble((clean(labelled.notes["model"]), "bold"), f": what each head does over {clean(origin)}"),
        Text(verdict, style="bold"),
        Text(f"texts     {texts}, {sums.num_tokens:,} tokens; chosen on one half, reported on the other"),
    ]
    if sources is None or sources or corpora.reading_of(model.name).annotated:
        # `look` and the studio may give a head another role, where they read other texts.
        treebank = any(claim.baselines for claims in labelled.claims for claim in claims)
        questions = ", without syntax" if treebank else ""
        lines.append(
            Text(f"note      look and the studio rest on the bundled texts alone{questions}: some roles differ")
        )
    lines.append(Text())
    if any(role.name != UNLABELLED for role in labelled):
        lines += [Text(f"Roles ({EFFECT_SAID})", style="bold"), *_by_role(labelled), Text()]
    lines += [*_by_question(labelled), Text()] if answered else []
    lines += by_probe(labelled)
    topics: Sequence[str] = ("sinks", "rarity", "tokenizer", "windows", "labels")
    if complete:
        topics = [topic for topic in labelled.notes if topic != "model"]
        lines += [*_by_head(labelled), Text()]
        for role in (*labelled.questions, *labelled.probes):
            lines += [*ranked(labelled, role, top), Text()]
        lines += [*_legend((), ranked=True), Text()]
    # What the figures rest on, and what they do not say.
    lines.append(Text("What this rests on", style="bold"))
    if complete:
        # Imports torch, for which --help is not to wait.
        from manyheads.roles import RULES_IN_WORDS

        lines.append(Text(f"  rules: {RULES_IN_WORDS}"))
    lines += [Text(f"  {name}: {clean(labelled.notes[name])}") for name in topics if labelled.notes.get(name)]
    if failed := labelled.num_failed:
        failures = labelled.failed_texts
        first = failures if complete else failures[:FAILED]
        where = "all" if len(failures) == failed else f"the first {len(failures)}"
        lines.append(Text(f"  failed: {failed:,} text{'s' * (failed > 1)} could not be measured"))
        lines += [Text(f"    {clean(failure.name)}: {clean(failure.reason)}") for failure in first]
        lines += [Text(f"    … and {failed - len(first):,} more ({where} in --json)")] if failed > len(first) else []
    if answered:
        tried = f"{labelled.num_tried:,} claims were tried"
        lines.append(Text(f"  {tried}; of those that hold, at most 5% are false, on average"))
    lines += [Text(), Text("Try next", style="bold")]
    added = model.arguments
    best = next((claim for claim in _best(labelled) if claim.holds), None)
    ablate = [] if best is None else [Text(f"  manyheads ablate {best.head}{added}")]
    if sources is None:
        return [*lines, *ablate] if ablate else lines[:-2]
    if STDIN in sources:  # which is spent: no command is offered that would read it again
        lines += ablate
        return [*lines, Text("  to ask more of these texts, write them to a file: stdin can be read only once")]
    arguments = added + (f" --corpus {shlex.join(sources)}" if sources else "")
    ask = [] if best is None else [Text(f'  manyheads roles{arguments} --ask "{best.role}"')]
    return [*lines, *ask, *ablate, Text(f"  manyheads roles{arguments} --report roles.html")]


def _by_role(labelled: Roles) -> list[Text]:
    """A line for each role: how many heads, what such a head does, and the strongest of them."""
    counts = Counter(head_role.name for head_role in labelled)
    from manyheads.roles.words import words_of  # imports torch, for which --help is not to wait

    words = {name: words_of(name) for name in counts}
    width, name_width = max(map(len, words.values())), max(18, *(len(clean(name)) for name in counts))
    lines = []
    for name in sorted(counts, key=lambda name: (name in GENERAL, name.startswith("sink"), -counts[name], name)):
        heads = sorted(
            (head_role for head_role in labelled if head_role.name == name),
            key=lambda head_role: -head_role.evidence.score,
        )
        listing = " ".join(str(head.head) for head in heads[:NAMED])
        remainder = f" and {len(heads) - NAMED} more" if len(heads) > NAMED else ""
        title = (f"  {clean(name):<{name_width}}", "" if name == UNLABELLED else "bold")
        lines.append(
            Text.assemble(title, f"{len(heads):>3}  ", (f"{words[name]:<{width}}", "dim"), f"  {listing}{remainder}")
        )
    return lines


def _by_head(labelled: Roles) -> list[Text]:
    """Each head with the evidence of its label, what else holds, and the texts in which it does that most."""
    units = {statistic.name: statistic.unit for table in labelled.tables for statistic in table.statistics}
    title = "By head: the evidence of its label, what else holds, and examples, which prove nothing"
    lines = [Text(title, style="bold")]
    for role in labelled:
        label = (f"  {role.head!s:<8}{clean(role.name)}", "" if role.name == UNLABELLED else "bold")
        lines.append(Text.assemble(label, f": {clean(role.evidence.words)}"))
        claims = [
            claim for claim in labelled.of_head(role.head) if claim.role not in (role.name, role_finder.SINK_RULE.role)
        ]
        if claims:
            also = ", ".join(f"{clean(claim.role)} ({_share(claim.tested)})" for claim in claims)
            lines.append(Text(f"          also holds: {also}"))
        statistics = {role.name: role.evidence.statistic} | {claim.role: claim.statistic for claim in claims}
        for name, statistic in statistics.items():
            unit = units.get(statistic, "share")
            for example in labelled.examples.get((role.head, name), ()):
                score = figure(example.score, unit) + ("" if unit.startswith("share") else f" {unit}")
                words = f"{clean(name)}, {score} in {clean(example.name)}: “{clean(example.text)}”"
                lines.append(Text(f"          {words}", style="dim"))
                lines.append(Text(f"            {clean('; '.join(example.links))}", style="dim"))
    return lines


def _best(labelled: Roles) -> list[Claim]:
    """The best head by the choosing half of every question that can be asked, the surest (`rules.distance`) first."""
    best = [labelled.ranked(role, 1)[0] for role in labelled.answerable]
    return sorted(best, key=lambda claim: (not claim.holds, -claim.distance))


def _by_question(labelled: Roles) -> list[Text]:
    """A row for each question that a head answers, with an example beneath it; then how many have no answer."""
    best = _best(labelled)
    # Guesses and rules are of syntax and reference: without a treebank their columns would be empty.
    guessed = any(claim.baselines for claim in best if claim.holds)
    titles = f"{'score ':>8}{'words ':>8}{'chance':>7}{'  guess  rule' * guessed}{'95%':>9}{'cases':>9}"
    lines = [
        Text("By question: the best head on one half of the texts, its figures on the other", style="bold"),
        Text(f"  {'':<28}{'head':<8}{titles}", style="dim"),
    ]
    alike: dict[tuple[Any, ...], list[Claim]] = {}
    for claim in (claim for claim in best if claim.holds):
        # Two questions may come to the same, as those about the sink and about the first token where that is the sink.
        alike.setdefault((claim.head, claim.score, str(claim.low), claim.chance, claim.num_queries), []).append(claim)
    for claims in alike.values():
        claim, role = claims[0], clean(" = ".join(question.role for question in claims))
        guesses = _guesses(claim) * guessed
        levels = f"{_share(claim.chance):>7}{guesses}{_interval(claim):>9}"
        figures = f"{claim.head!s:<8}{_both(claim)}{levels}{claim.num_queries:>9,}{_elsewhere(claim)}"
        lines.append(Text.assemble("  ", (f"{role:<28}", "bold"), figures))
        for example in labelled.examples.get((claim.head, claim.role), ())[:EXAMPLES]:
            sentence = f"      “{clean(example.text)}”"
            cut = sentence if len(sentence) <= TEXT_WIDTH else f"{sentence[: TEXT_WIDTH - 1]}…"
            lines += [Text(cut, style="dim"), Text(f"       {clean('; '.join(example.links))}", style="dim")]
    lacking = [claim for claim in best if not claim.holds]
    if lacking:
        asked_enough = [claim for claim in lacking if claim.num_queries >= role_finder.MIN_QUERIES]
        near = [f"{claim.role} ({claim.head})" for claim in asked_enough[:NEAREST]]
        nearest = f"; nearest: {clean(', '.join(near))}" if near else ""
        lines.append(Text(f"  {len(lacking)} more are answered by no head on these texts{nearest}"))
    for why, count in Counter(labelled.unanswerable.values()).items():
        lines.append(Text(f"  {count} not asked: {why}"))
    return [*lines, *_legend(() if guessed else ("guess", "rule"))]


def _interval(claim: Claim) -> str:
    return ABSENT if math.isnan(claim.low) else f"{100 * claim.low:.0f}–{100 * claim.high:.0f}"


def _both(claim: Claim) -> str:
    """Score and words, with * at the one that is held against chance."""
    among_words = bool(claim.baselines) and claim.given is not None
    figures = ((claim.score, not among_words), (claim.given, among_words))
    return "".join(f"{_share(value) + ('*' if tested else ' '):>8}" for value, tested in figures)


def _guesses(claim: Claim) -> str:
    """The best of the fixed guesses that an accuracy must beat, and what the nearest word of one kind gets."""
    best, rule = max(claim.baselines.values(), default=None), claim.guesses.get("rule")
    return f"{_share(best):>7}{_share(rule):>6}"


def ranking(labelled: Roles, role: str, top: int) -> list[Text]:
    """A question's or a probe's ranking, then what its columns are."""
    role = labelled.role_named(role)
    lines = [*ranked(labelled, role, top), Text()]
    if role in labelled.probes:
        return [*lines, Text(f"  {clean(labelled.probes[role].says)}"), Text(f"  {labelled.notes['probes']}")]
    legend = [] if role in labelled.unanswerable else _legend((), ranked=True)
    return [*lines, *legend, Text(f"  {labelled.notes['labels']}")]


def ranked(labelled: Roles, role: str, top: int) -> list[Text]:
    """The heads at one role, the best of the choosing half first; beneath a claim that does not hold, why.

    By a probe, the heads furthest above chance first.
    """
    if role in labelled.probes:
        probe = labelled.probes[role]
        best = probe.top(top)
        titles = [Text(f"  {'head':<8}{COLUMNS}", style="dim")] if best else [Text(f"  {lacking(probe)}")]
        rows = [Text.assemble("  ", row(probe, score)) for score in best]
        return [Text(clean(probe.asks), style="bold"), *titles, *rows]
    question = Text(clean(labelled.questions[role]), style="bold")
    if why := labelled.unanswerable.get(role):
        # Imports torch, for which --help is not to wait.
        from manyheads.roles import AHEAD

        subject = "the heads of this model see no later token, they " if why == AHEAD else ""
        return [question, Text(f"  not asked: {subject}{why}")]
    shares = f"{'norm':>6}{'chance':>7}{'guess':>7}{'rule':>6}"
    titles = f"{'score ':>8}{'words ':>8}{shares}{'above':>11}{'95%':>9}{'cases':>9}{'q':>8}"
    lines = [question, Text(f"  {'head':<8}{titles}", style="dim")]
    # Beside causal heads there may be others, of which the question was not asked.
    can_answer = [claim for claim in labelled.ranked(role) if claim.num_queries]
    for claim in can_answer[:top]:
        above = ABSENT  # how far above chance on the same texts, in points: the 95 % interval
        if not math.isnan(claim.over_low) and not math.isnan(claim.over_high):
            above = f"{round(100 * claim.over_low):+d}…{round(100 * claim.over_high):+d}"
        shares = f"{_share(claim.norm):>6}{_share(claim.chance):>7}{_guesses(claim)}"
        line = f"{_both(claim)}{shares}{above:>11}{_interval(claim):>9}{claim.num_queries:>9,}"
        q_value = "<0.001" if claim.q_value < 0.001 else f"{claim.q_value:.3f}"
        lines.append(Text(f"  {claim.head!s:<8}{line}{q_value:>8}{_elsewhere(claim)}"))
        if not claim.holds:
            lines.append(Text(f"          does not hold: {clean('; '.join(role_finder.failing(claim)))}", style="dim"))
    return lines


def _elsewhere(claim: Claim) -> str:
    return "" if claim.elsewhere is None else f"  elsewhere {_share(claim.elsewhere)}"


def _share(value: float | None) -> str:
    """A share in per cent; what rounding put above 1 is 100 %."""
    return ABSENT if value is None or math.isnan(value) else f"{100 * min(value, 1.0):.0f}%"


def _legend(hidden: Sequence[str], ranked: bool = False) -> list[Text]:
    """What the columns are, those that are shown and no others. `ranked`: those of one question's ranking."""
    entries = {
        "score": "share of all attention; for syntax and reference, how often the strongest key is right",
        "words": "the same, special tokens (or the sinks) left out",
        "norm": "the same by weight x value norm: the share of what the head writes",
        "chance": "the highest chance level on these texts; the surest score is furthest from it on the way to 100%",
        "guess": "the best fixed guess, which must be beaten: an offset, the nearest mention, the same word",
        "rule": "the nearest word of one part of speech on one side, for comparison",
        "above": "difference from chance on the same texts, in percentage points (95%)",
        "95%": f"the interval of the figure with *, {ABSENT} where too few texts have cases; chance is for the same",
        "cases": "rows of all tokens, also [CLS] and [SEP]; for syntax and reference, words with an answer",
        "q": "the q-value of the difference from chance on the same texts; the interval itself may reach chance",
    }
    return [
        Text(f"  {title:<8}{words}", style="dim")
        for title, words in entries.items()
        if title not in hidden and (ranked or title not in ("norm", "above", "q"))
    ]


def write_report(labelled: Roles, lines: Sequence[Text], path: Path) -> None:
    """Write lines as one HTML file, whole or not at all, with the drawing of every question's best head above them.

    No script, no request; light or dark as the reader's system prefers. Errors: FileAccessError.
    """
    with tempfile.TemporaryDirectory() as folder:
        figures.save_roles(labelled, drawing := Path(folder) / "roles.svg")
        svg = drawing.read_text(encoding="utf-8")
    console = Console(file=io.StringIO(), record=True, width=WIDTH)
    for line in lines:
        console.print(line, soft_wrap=True)
    text = console.export_html(code_format="{code}", inline_styles=True)
    html = PAGE.format(escape(lines[0].plain), __version__, svg[svg.index("<svg") :], text)
    with base.replacing(path, ".html") as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as out:
        out.write(html)


PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="manyheads {1}">
<title>{0}</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; color: light-dark(#1b1e24, #e9e7e1); background: light-dark(#fbfaf7, #15171b); }}
body {{ margin: 0 auto; padding: 20px 16px 48px; max-inline-size: max-content; }}
figure, div {{ margin: 0 0 24px; overflow-x: auto; }}
pre {{ margin: 0; inline-size: 136ch; font: 13px/19px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
span[style^="color"] {{ color: light-dark(#50555f, #b0b2b5) !important; }} /* what is faint in a terminal */
@media screen and (prefers-color-scheme: dark) {{ svg {{ filter: invert(0.92) hue-rotate(180deg); }} }}
</style>
<figure role="img" aria-label="Every question's best head, as a drawing: the same figures as below">{2}</figure>
<div><pre>{3}</pre></div>
</html>
"""


# ---------------------------------------------------------------------------------------------------------------------
# What `manyheads roles --probes` shows: each probe's best heads beside chance, or why it was not asked.


def by_probe(labelled: Roles) -> list[Text]:
    """Every probe with its best heads and its variant in words; nothing where none was asked."""
    if not labelled.probes:
        return []
    lines = [
        Text(f"Probes: {labelled.notes['probes']}", style="bold"),
        Text(f"  {'':<28}{'head':<8}{COLUMNS}", style="dim"),
    ]
    words = ""
    for probe in labelled.probes.values():
        best = probe.top(BEST)
        name = (f"{clean(probe.name):<28}", "bold")
        lines += [
            Text.assemble("  ", name if index == 0 else " " * 28, row(probe, score)) for index, score in enumerate(best)
        ]
        if not best:
            lines.append(Text.assemble("  ", name, f"{lacking(probe)}: {clean(probe.says)}"))
        elif probe.says != words:  # the places of one probe rest on the same
            lines.append(Text(f"      {clean(probe.says)}", style="dim"))
        words = probe.says
    return [*lines, Text()]


def row(probe: Probe, score: HeadScore) -> str:
    """A head's figures; where scores have no interval, how many standard deviations of chance it lies from it."""
    z = probe.z(score)
    level = figure(score.chance, probe.unit) if z is None else f"±{score.score / z if z else 0:.2f}"
    between = span(score.low, score.high, probe.unit) if z is None else f"{z:+.1f} sd"
    cases = f"{score.num_queries:,}" if score.num_queries else "–"
    mark = "" if probe.beats_chance(score) else "  within chance"
    return f"{score.head!s:<8}{figure(score.score, probe.unit):>8}{level:>8}{between:>14}{cases:>9}{mark}"


def lacking(probe: Probe) -> str:
    return "not asked" if probe.scores is None else "no head was counted"
