"""`manyheads roles`: which head does what over a corpus, how surely, against which chance level."""

from __future__ import annotations

import runpy
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manyheads import base, corpora, figures
from manyheads import roles as role_finder
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    PICTURE_ENDINGS,
    STDIN,
    TABLE_ENDINGS,
    AsJson,
    ModelName,
    check_output,
    load_model,
    to_file,
)
from manyheads.cli.roles.page import document, num_failed, page, ranking
from manyheads.cli.terminal.console import clean, emit_document, print_whole
from manyheads.cli.terminal.progress import Talk
from manyheads.corpora.lines import KINDS
from manyheads.errors import FileAccessError, TextError

if TYPE_CHECKING:
    from manyheads.corpora import Corpus
    from manyheads.roles import Roles


REPORT_ENDINGS = (".html",)
FAMILY_TEXTS = 300  # of the corpus' beginning: some thousand rows, which tell heads apart to a thousandth
LOOKED_AT = 200  # passages, to see whether a treebank knows who is meant
CORPUS_HELP = "Files, folders, - or hf:NAME: .txt, .md, .rst, .py, .jsonl, .conllu, also .gz. None: texts of our own."
ASK_HELP = "Rank the heads at this role; may be repeated."
ELSEWHERE_HELP = "A second corpus: which labels travel?"
KIND_HELP = "What the files hold: text, jsonl or conllu."
RESUME_HELP = "Keep what is done there, and go on from it."
PROBES_HELP = "Also random tokens that repeat, copying by weights, a needle in long texts (docs/reference/probes.md)."
PATTERN_HELP = "A role of your own: FILE.py, its functions say where each token should look (docs/reference/roles.md)."

Files = Annotated[list[str] | None, typer.Argument(metavar="FILES", help="More files of the corpus.")]


def roles(
    files: Files = None,
    corpus: Annotated[list[str] | None, typer.Option("--corpus", metavar="FILES...", help=CORPUS_HELP)] = None,
    model: ModelName = DEFAULT_MODEL,
    ask: Annotated[list[str] | None, typer.Option("--ask", metavar="ROLE", help=ASK_HELP)] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Heads in a ranking.")] = 10,
    elsewhere: Annotated[list[str] | None, typer.Option("--elsewhere", metavar="FILE", help=ELSEWHERE_HELP)] = None,
    patterns: Annotated[list[Path] | None, typer.Option("--pattern", metavar="FILE.py", help=PATTERN_HELP)] = None,
    probes: Annotated[bool, typer.Option("--probes", help=PROBES_HELP)] = False,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help=KIND_HELP)] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of a text file is a text.")] = False,
    field: Annotated[str, typer.Option("--field", metavar="NAME", help="The text's field in JSON lines.")] = "text",
    resume: Annotated[Path | None, typer.Option("--resume", metavar="FOLDER", help=RESUME_HELP)] = None,
    save: Annotated[Path | None, to_file("--save", "Write every claim: .parquet, .csv or .json.")] = None,
    plot: Annotated[Path | None, to_file("--plot", "Draw every question's best head: .svg, .png, .pdf.")] = None,
    families: Annotated[Path | None, to_file("--families", "Draw how far apart heads are: .svg, .png, .pdf.")] = None,
    report: Annotated[Path | None, to_file("--report", "Write a report on one page: .html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Which head does what over a corpus: how surely, against which chance level, ranked by question.

    Heads are chosen on one half of the texts and reported on the other. With a treebank (.conllu), every relation and
    coreference too. Several processes: torchrun --nproc-per-node 2 -m manyheads roles ...

    For example: manyheads roles --corpus treebank.conllu --report roles.html
    """
    talk = Talk()
    check_output(save, "--save", TABLE_ENDINGS)
    check_output(plot, "--plot", PICTURE_ENDINGS)
    check_output(families, "--families", PICTURE_ENDINGS)
    check_output(report, "--report", REPORT_ENDINGS)
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
        from manyheads.roles.find import check_resume

        check_resume(resume)
    texts, passages = _corpora(sources, options, model)
    second = _opened(elsewhere, **options) if elsewhere else None

    def judge(questions: dict[str, str]) -> None:
        """Refuse a role that no question asks, as soon as the questions are known: before the long reading."""
        # Both import torch, for which --help is not to wait.
        from manyheads.roles.probes.all import PROBES
        from manyheads.roles.results import role_named  # as above

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
        from manyheads.roles.find import fixed_questions

        judge(fixed_questions(own_patterns, passages is not None))
    with base.torchrun() as (rank, world):
        if rank:
            talk.silence()  # the first process speaks for all, the others say nothing but what goes wrong
        elif world > 1:
            talk.note(f"{world} processes share the corpus")
        lm = load_model(talk, model)
        labelled = _find(
            talk, lm, texts, second, passages=passages, patterns=own_patterns, resume=resume, on_questions=judge
        )
        if rank:
            return
        if probes:
            # Imports torch, for which --help is not to wait.
            from manyheads.roles.probes.all import COST

            with talk.step(f"probing: {COST}") as progress:
                labelled = labelled.probed(role_finder.ask_probes(lm, progress))
        if save is not None:
            labelled.save(save)
        if plot is not None:
            figures.save_roles(labelled, plot)
        if report is not None:
            figures.write_report(labelled, report)
        if families is not None:
            _draw_families(talk, lm, texts, labelled, families)
    if count := num_failed(labelled):
        were = "s could not be measured, and were" if count > 1 else " could not be measured, and was"
        talk.note(f"{count:,} text{were} left out")
    if as_json:
        emit_document(document(labelled, texts.origin))
        return
    rankings = [line for role in ask or [] for line in ranking(labelled, role, top)]
    print_whole(rankings or page(labelled, texts.origin, model, sources))
    print_whole(f"wrote {clean(str(path))}" for path in (save, plot, families, report) if path is not None)


def _corpora(sources: list[str], options: dict[str, Any], model: str) -> tuple[Corpus, Corpus | None]:
    """The texts, and the passages of those that are a treebank with coreference. Ours are what the model reads."""
    if not sources:
        return corpora.own_corpora(model)
    texts = _opened(sources, **options)
    if texts.total is None or options["kind"] in ("text", "jsonl"):
        return texts, None  # what cannot be read twice has no passages
    passages = _opened(sources, unit="passage", **options)
    first = islice(passages.open(), LOOKED_AT)
    annotated = any(document.gold is not None and document.gold.has_coreference for document in first)
    return texts, passages if annotated else None


def _opened(sources: list[str], **options: Any) -> Corpus:
    """The corpus. Errors: TextError for one of whose texts none can be read, before a model is loaded."""
    kind = options.get("kind")
    try:
        corpus = corpora.open_corpus(sources, **options)
    except (TextError, FileAccessError) as error:
        message = str(error).replace("Say kind= (", "Say --kind (").replace(f" of {kind=} ", f" of --kind {kind} ")
        raise type(error)(message) from error
    if corpus.total is None:
        return corpus  # what can be read once is not looked into
    first = list(islice(corpus.open(), LOOKED_AT))
    if not first:
        raise TextError(f"no text was given: {corpus.origin} holds none.")
    if len(first) < LOOKED_AT and all(document.problem for document in first):
        others = "" if len(first) == 1 else f", nor any of the {len(first)} texts of the corpus"
        raise TextError(
            f"{first[0].name} cannot be read{others}: {first[0].problem.rstrip('.')}. Mend the file, or say by --kind "
            f"what it holds: text, jsonl or conllu."
        )
    return corpus


def _find(talk: Talk, lm: Any, texts: Corpus, second: Corpus | None, **options: Any) -> Roles:
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

        return role_finder.find_roles(lm, texts, elsewhere=second, progress=steps.progress, on_reading=begin, **options)


def _draw_families(talk: Talk, lm: Any, texts: Corpus, labelled: Roles, path: Path) -> None:
    """The map of all heads, on the corpus' first texts."""
    if texts.total is None:
        raise TextError(f"--families reads the corpus again, and {texts.origin} can be read once only: give a file.")
    first = [document.text for document in islice(texts.open(), FAMILY_TEXTS) if document.text.strip()]
    with talk.step("comparing heads with each other") as progress:
        figures.save_families(role_finder.head_families(lm, first, progress=progress), path, roles=list(labelled))


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
