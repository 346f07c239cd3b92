"""The arguments and options that several commands take, each said once, and what is made of them.

They are checked before anything slow begins, then read: one text or several, and a model with the labels of its heads.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import stat
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from typer.models import OptionInfo

from manyheads import corpora, inputs, machine, models, roles
from manyheads import texts as text_data
from manyheads.base import no_access, quoted
from manyheads.cli import completion, start
from manyheads.cli.terminal.console import shortened
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import (
    EngineError,
    FileAccessError,
    HeadError,
    ManyHeadsError,
    ModelError,
    StatisticError,
    TextError,
)
from manyheads.heads import Head
from manyheads.own_functions import imported

if TYPE_CHECKING:
    from manyheads.corpora import Corpus
    from manyheads.models import LoadedModel
    from manyheads.ray import Engine
    from manyheads.statistics import Statistic

DEFAULT_MODEL = os.environ.get("MANYHEADS_DEFAULT_MODEL") or "smollm2"
"""The model of a command that names none. Why this one: docs/decisions/017-the-first-model.md."""


def to_file(name: str, help: str) -> OptionInfo:
    """An option for a file to write."""
    return typer.Option(name, metavar="FILE", help=help)


TEXT_HELP = "The text to read; - reads it from stdin. Default: an example of what the model reads."
FILE_HELP = "Read the text from this file (UTF-8); - is stdin."
MODEL_HELP = "smollm2, minilm or tiny-code, a folder, a GGUF file, or a name on the Hugging Face hub."
DEVICE_HELP = "Where to compute: cpu, cuda, cuda:1 ... Default: MANYHEADS_DEVICE, else an accelerator, else cpu."
DTYPE_HELP = "Dtype of the weights: float32, bfloat16, float16 or float64. Default: as stored."
HEADS_HELP = "Which heads: 'L3H7', 'L3', 'L3H0-5', 'L*H7', 'encoder:L0H1', or several separated by commas."
TEXT_OR_OWN_HELP = "The text to read; - reads it from stdin. Default: 64 bundled texts."
TEXTS_HELP = "Read texts from this file (UTF-8): paragraphs, separated by empty lines; - is stdin."

ModelName = Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP, autocompletion=completion.models)]
DeviceName = Annotated[str | None, typer.Option("--device", metavar="DEVICE", help=DEVICE_HELP)]
DtypeName = Annotated[str | None, typer.Option("--dtype", metavar="DTYPE", help=DTYPE_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Label the heads again, and store nothing.")]
HeadNames = Annotated[
    str | None, typer.Argument(metavar="HEADS", help=HEADS_HELP, show_default=False, autocompletion=completion.heads)
]
HeadName = Annotated[
    str,
    typer.Argument(
        metavar="HEAD", help="Layer and head, both from 0: L0H2.", show_default=False, autocompletion=completion.heads
    ),
]
CORPUS_HELP = "Files, folders, - or hf:NAME: .txt, .md, .rst, .py, .jsonl, .conllu, also .gz. Default: bundled texts."
CorpusFiles = Annotated[list[str] | None, typer.Option("--corpus", metavar="FILES...", help=CORPUS_HELP)]
SHARD_HELP = (
    "Measure only part K of N of the texts (0/8 to 7/8) and write it to --out; manyheads merge adds up the parts."
)
BY_HELP = "What --shard or --engine divides: text (parts of equal size) or file (each part reads only its own files)."
OF_SHARD = "With --shard, its part: .sums."
RESUME_HELP = "Store progress in this folder, and continue from it."
ShardOption = Annotated[str | None, typer.Option("--shard", metavar="K/N", help=SHARD_HELP)]
ShardBy = Annotated[str, typer.Option("--shard-by", metavar="WHAT", help=BY_HELP)]
ResumeFolder = Annotated[Path | None, typer.Option("--resume", metavar="FOLDER", help=RESUME_HELP)]
ENGINES = ("ray",)  # as `ENGINES` of measurement/corpus_run/driver.py, which imports torch
ENGINE_HELP = "ray: let Ray's processes measure, on this machine or a cluster (needs the extra ray)."
ADDRESS_HELP = "For --engine: the cluster, auto, HOST:PORT or ray://... Default: this machine's cores."
ACTORS_HELP = "For --engine: how many processes. Default: one for each accelerator, else for each core."
GPUS_HELP = "For --engine: accelerators for each process, or a part of one. Default: 1 if there are any."
EVERY_HELP = (
    "For --engine: a process hands over its sums after this many seconds, and loses no more if it dies. Default: 30."
)
EngineName = Annotated[str | None, typer.Option("--engine", metavar="NAME", help=ENGINE_HELP)]
EngineAddress = Annotated[str | None, typer.Option("--address", metavar="ADDRESS", help=ADDRESS_HELP)]
EngineActors = Annotated[int | None, typer.Option("--actors", metavar="N", min=1, help=ACTORS_HELP)]
EngineGpus = Annotated[float | None, typer.Option("--gpus-per-actor", metavar="X", min=0.0, help=GPUS_HELP)]
EngineEvery = Annotated[float | None, typer.Option("--every", metavar="SECONDS", min=0.0, help=EVERY_HELP)]
METRICS = ("auto", "loss", "kl", "cosine")
"""Those that need no labels: nobody types any. Here, so that `--help` and a misspelt one need no model."""
MetricName = Annotated[str, typer.Option("--metric", metavar="NAME", help="auto, loss, kl or cosine.")]

TextWords = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help=TEXT_HELP, show_default=False)]
"""A list: a text without its quotes comes word by word."""

TextFile = Annotated[str | None, typer.Option("--file", metavar="FILE", help=FILE_HELP)]
TextOrOwn = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help=TEXT_OR_OWN_HELP, show_default=False)]
TextsFile = Annotated[str | None, typer.Option("--file", metavar="FILE", help=TEXTS_HELP)]
TextsAreLines = Annotated[bool, typer.Option("--lines", help="Each line of the file is a text.")]
TARGET_HELP = "What an encoder-decoder is to write for the text. Default: the text itself."
TargetText = Annotated[str | None, typer.Option("--target", metavar="TEXT", help=TARGET_HELP)]
TARGETS_HELP = "What an encoder-decoder is to write: one text for each text that is read, divided in the same way."
TargetsFile = Annotated[str | None, typer.Option("--targets", metavar="FILE", help=TARGETS_HELP)]
STATISTICS_HELP = (
    "default, all, or names and patterns separated by commas: 'duplicate_*,det.*,coreference.*' (in quotes); of your "
    "own: module:name."
)
StatisticNames = Annotated[
    str, typer.Option("--statistics", metavar="NAMES", help=STATISTICS_HELP, autocompletion=completion.statistics)
]


COUNT_STEPS = {"": 1, "k": 1024, "m": 1024**2}
"""What stands after a number of tokens or texts: contexts are powers of two, so 128k is 131,072 and not 128,000."""


def count_of(text: str | int) -> int:
    """A number of tokens or texts, as people write one: 4096, 128k, 1M. Typer names the option of the error."""
    match = re.fullmatch(r"(-?[0-9]{1,30})([kKmM]?)", str(text).strip())  # a default comes as the number that it is
    if match is None:
        raise typer.BadParameter(f"{shortened(str(text), 40)}: give a whole number, or one such as 128k or 1M")
    return int(match[1]) * COUNT_STEPS[match[2].lower()]


def count_option(*names: str, help: str, **options: Any) -> OptionInfo:
    """An option that takes a number of tokens or texts."""
    return typer.Option(*names, metavar="N", help=help, parser=count_of, **options)


OWN = re.compile(r"[\w.]+:\w+")  # no statistic of a treebank's relation: "nmod:poss.to_governor" goes on with a point


def requested_statistics(names: str) -> str | list[str | Statistic]:
    """What `--statistics` asks for, as `measure` takes it. Errors: StatisticError for one's own that is none."""
    items = [name.strip() for name in names.split(",") if name.strip()]
    if items in (["default"], ["all"]):
        return items[0]
    if not any(OWN.fullmatch(item) for item in items):
        return [*items]
    # Imports torch, for which --help is not to wait.
    from manyheads.statistics import Statistic

    requested: list[str | Statistic] = []
    for item in items:
        if OWN.fullmatch(item) is None:
            requested.append(item)
            continue
        value = imported_here(item, f"--statistics {item}", StatisticError)
        several: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
        if not several or not all(isinstance(one, Statistic) for one in several):
            raise StatisticError(
                f"--statistics {item}: that is a {type(value).__name__}: name a Statistic, or a list of them."
            )
        requested += several
    return requested


def imported_here(reference: str, about: str, error: type[ManyHeadsError]) -> object:
    """What "module:name" names, of a module in the working folder or an installed one. Raises `error`."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return imported(reference, about, error)
    finally:
        sys.path.pop(0)


def check_statistics(request: str | list[str | Statistic], texts: Corpus | list[str]) -> None:
    """Refuse names that no statistic has, before a model is loaded. Errors: StatisticError."""
    # Imports torch, for which --help is not to wait.
    from manyheads.statistics import choose, may_need_survey

    if isinstance(texts, list) or not may_need_survey(request):
        choose(request)


# ---------------------------------------------------------------------------------------------------------------------
# What the commands are given, checked before anything slow begins: one text from one source, and paths to write to.


HEAD = re.compile(r"[Ll]\d+(?:[Hh]\d+)?,?")  # as somebody types several, apart
STDIN, TYPED = "-", "what you typed"
YOURS = '"any text"'  # as somebody types one, in the commands that are suggested
SUMS_ENDINGS = (".sums",)
TABLE_ENDINGS = (".parquet", ".csv", ".json")
PICTURE_ENDINGS = (".png", ".svg", ".pdf")
QUOTED_WIDTH = 80  # a longer text is not repeated in the commands that are suggested


@dataclass(frozen=True)
class Source:
    """A text, or a list of texts or of pairs (source, target), as the library reads it; where it is from, in words.

    `arguments` are those that give it again ("" where nothing short does), `own` whether it is ours, for want of
    another.
    """

    given: str | list[Any]
    origin: str
    arguments: str = ""
    own: bool = False

    @property
    def text(self) -> str:
        """The text, the first of several; of a pair the one that is read."""
        first = self.given if isinstance(self.given, str) else self.given[0]
        return first if isinstance(first, str) else first[0]

    def shown_to(self, lm: LoadedModel) -> Source:
        """This text, or in place of our own the one that a model of that kind is shown: known once it is loaded."""
        if not self.own or not isinstance(self.given, str):
            return self
        reading = corpora.reading_of(lm)
        return replace(self, given=reading.sentence, origin=reading.sentence_is)


def read_source(words: Sequence[str], file: str | None, model: str = DEFAULT_MODEL) -> Source:
    """The one text that was given, else the one of our own that the model of that name is shown (`Source.shown_to`).

    Words that came without quotes are joined by blanks. Errors: TextError for two texts or an empty one;
    FileAccessError.
    """
    text = " ".join(words)
    if words and file is not None:
        raise TextError(f"two texts were given, {quoted(shortened(text, 40))} and --file {file}: give one of them.")
    if len(words) > 1 and all(map(HEAD.fullmatch, words)):
        heads = quoted(", ".join(word.rstrip(",") for word in words))
        raise TextError(f"{' '.join(words)} are heads, not a text: write several heads as one argument, {heads}.")
    if words == [STDIN] or file == STDIN:
        source = Source(_read(None, "stdin"), "stdin", "")
    elif file is not None:
        source = Source(_read(Path(file), file), f"file {file}", f"--file {shlex.quote(file)}")
    elif words:
        source = Source(text, TYPED, quoted(text) if len(text) <= QUOTED_WIDTH else "")
    else:
        reading = corpora.reading_of(model)
        return Source(reading.sentence, reading.sentence_is, "", own=True)
    if any("\ud800" <= char <= "\udfff" for char in source.text):
        raise TextError("the text is not valid UTF-8: some of its bytes are not characters.")
    if not source.text.strip():
        where = "" if source.origin == TYPED else f" of {source.origin}"
        raise TextError(f"the text{where} is empty: give at least one word.")
    return source


def typed_source(
    talk: ProgressLine, words: Sequence[str], file: str | None, model: str, target: str | None = None
) -> Source:
    """The text of the command line, with what is to be written of it; says what else may have been meant."""
    source = read_source(words, file, model)
    if target is not None:
        source = replace(source, given=[(source.text, target)])
    if note := source_note(words, file, model):
        talk.note(note)
    return source


def source_note(words: Sequence[str], file: str | None, model: str = DEFAULT_MODEL) -> str:
    """What somebody may have meant instead of what is done; "" where nothing suggests so."""
    if len(words) == 1 and len(words[0]) < 256 and words[0] != STDIN and Path(words[0]).is_file():
        return f"{words[0]} is also a file, but its name was read as the text. To read the file: --file {words[0]}"
    if not words and file is None and _stdin_waits():
        sentence_is = corpora.reading_of(model).sentence_is
        return f"nothing was read from stdin: add - to read it. Without a text, {sentence_is} is read."
    return ""


def chosen_shard(shard: str | None, by: str, out: Path | None, of_all: dict[str, Any]) -> corpora.Shard | None:
    """The shard that --shard names, and whether --out can be written: sums of a shard, else a table.

    Errors: TextError; also where a shard comes without --out, or with `of_all`; FileAccessError.
    """
    if shard is None:
        is_sums = out is not None and out.suffix.lower() in SUMS_ENDINGS
        if is_sums or by != "text":
            option = f"--out {out}" if is_sums else f"--shard-by {by}"
            raise TextError(f"{option} is for a part of the texts: say which one, --shard K/N, or leave it out.")
        check_output(out, "--out", TABLE_ENDINGS)
        return None
    if out is None:
        raise TextError(f"--shard {shard} writes sums to a file: name it, --out part.sums.")
    check_output(out, "--out", SUMS_ENDINGS)
    if refused := [option for option, value in of_all.items() if value]:
        raise TextError(
            f"{refused[0]} is about all texts, and --shard measures a part: give it to manyheads merge later."
        )
    return corpora.Shard.read(shard, cast(Literal["text", "file"], by))


def save_sums(sums: Sequence[Any], path: Path) -> list[Path]:
    """Write each reading's sums: the first to the file, of passages to one beside it."""
    paths = [path, path.with_stem(f"{path.stem}-passages")][: len(sums)]
    for part, target in zip(sums, paths, strict=True):
        part.save(target)
    return paths


def way_to_read(truncate: bool, whole: bool) -> inputs.Long:
    """How a text longer than the model's positions is read, as the library calls it. Errors: TextError for both."""
    if truncate and whole:
        raise TextError("--truncate and --whole contradict each other: cut a long text, or refuse it.")
    return "truncate" if truncate else "whole" if whole else "windows"


def check_output(path: Path | None, option: str, endings: Sequence[str]) -> None:
    """Whether a file can be written there, known before the work that fills it. Errors: FileAccessError.

    Of pictures also whether they can be drawn: whatever importing matplotlib raises.
    """
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise FileAccessError(f"{option} {path}: cannot tell from that ending what to write. Use {', '.join(endings)}.")
    if path.is_dir():
        raise FileAccessError(f"{option} {path} is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise FileAccessError(f"{option} {path}: there is no folder {path.parent}. Make it first.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise FileAccessError(
            f"{option} {path} cannot be written: {error.strerror or error}. Choose a folder that you may write to."
        ) from error
    if endings is PICTURE_ENDINGS:
        import_module("matplotlib")  # a backend that it does not know is refused by the import, before any work


def check_folder(talk: ProgressLine, path: Path) -> None:
    """Whether a checkpoint may go there, and what it replaces, before a model is loaded. Errors: FileAccessError."""
    # Imports torch, for which --help is not to wait.
    from manyheads.interventions.save import ZEROED, require_replaceable

    try:
        place = Path(os.path.realpath(path.expanduser()))
        require_replaceable(place, ZEROED)
        if place.exists() and any(place.iterdir()):
            talk.note(f"{path} holds an earlier save, which this one replaces")
    except ManyHeadsError:
        raise
    except OSError as error:
        raise no_access("write", path, error) from error


def chosen_engine(
    name: str | None,
    address: str | None,
    actors: int | None,
    gpus: float | None,
    every: float | None,
    shard_by: str = "text",
) -> Engine | None:
    """The engine that was chosen, which is there and answers; None: this process measures. Errors: EngineError."""
    options = {"--address": address, "--actors": actors, "--gpus-per-actor": gpus, "--every": every}
    if name is None:
        if option := next((option for option, value in options.items() if value is not None), None):
            raise EngineError(f"{option} belongs to an engine, and none was chosen: add --engine ray, or leave it out.")
        return None
    if name not in ENGINES:
        raise EngineError(f"--engine {name} is unknown: use {' or '.join(ENGINES)}.")
    # Imports torch, for which --help is not to wait.
    from manyheads.ray import Engine

    pace = {} if every is None else {"every": every}
    engine = Engine(address, actors, gpus, shard_by=shard_by, **pace)  # type: ignore[arg-type]  # it is checked there
    engine.check()
    return engine


def check_metric(name: str) -> None:
    """Errors: StatisticError for a --metric that there is not, or that needs labels."""
    if name not in METRICS:
        raise StatisticError(f"--metric {name} is unknown: use {', '.join(METRICS[:-1])} or {METRICS[-1]}.")


def _read(path: Path | None, origin: str) -> str:
    """The text of a file, or of stdin (None). Errors: FileAccessError; TextError for what is too long, or no UTF-8."""
    data = corpora.read_whole(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte {error.start:,} is {data[error.start]:#04x}"
        raise TextError(f"{origin} is not UTF-8 text ({where}): convert it first.") from error


def _stdin_waits() -> bool:
    """Whether a file or a pipe was put on stdin: then its owner expects it to be read."""
    if sys.stdin is None:
        return False
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
        return stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and bool(select.select([descriptor], [], [], 0)[0]))
    except (OSError, ValueError):
        return False


# ---------------------------------------------------------------------------------------------------------------------
# The texts that an intervention is measured on: typed, from a file, or a part of our own page.


OWN_TEXTS = 64  # of the page: every few of them, so that all kinds are there


def given_texts(
    talk: ProgressLine,
    words: Sequence[str],
    file: str | None,
    lines: bool,
    model: str = DEFAULT_MODEL,
    targets: str | None = None,
) -> Source:
    """What was typed or is in the file, as a list; where nothing was given, of the page that the model is shown.

    With a file of `targets` each text is a pair: what is read, and what is to be written.
    Errors: TextError, FileAccessError.
    """
    if targets is not None and not words and file is None:
        raise TextError(
            f"--targets {targets} says what is written for texts, but no texts were given: give --file FILE."
        )
    if targets is not None and targets == STDIN and (file == STDIN or list(words) == [STDIN]):
        raise TextError("the texts and --targets both come from stdin: give one of them as a file.")
    if not words and file is None:
        reading = corpora.reading_of(model)
        if note := source_note(words, file, model):
            talk.note(note.replace(f"{reading.sentence_is} is", "bundled texts are"))
        texts = reading.spread(OWN_TEXTS)
        return Source(texts, f"{len(texts)} {reading.texts_are}")
    source = read_source(words, file)
    if note := source_note(words, file):
        talk.note(note)
    texts: list[Any] = texts_in(source, lines)
    origin = f"{len(texts)} {'text' if len(texts) == 1 else 'texts'} from {source.origin}"
    if targets is None:
        return Source(texts, origin)
    written = texts_in(read_source([], targets), lines)
    if len(written) != len(texts):
        unit = "lines" if lines else "paragraphs, separated by empty lines (with --lines: lines)"
        raise TextError(
            f"{len(texts)} texts from {source.origin} and {len(written)} targets from {targets} do "
            f"not pair: give one target for each text. Both are read as {unit}."
        )
    return Source(list(zip(texts, written, strict=True)), f"{origin}, with the targets from {targets}")


LOOKED_AT = 200  # of a corpus' first documents, to see whether any can be read, and what people have annotated


def opened_corpus(sources: list[str], **options: Any) -> Corpus:
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
        raise TextError(f"no text was given: {corpus.origin} contains none.")
    if len(first) < LOOKED_AT and all(document.problem for document in first):
        nor_any = "" if len(first) == 1 else f", nor any of the {len(first)} texts of the corpus"
        raise TextError(
            f"{first[0].name} cannot be read{nor_any}: {first[0].problem.rstrip('.')}. Correct the "
            f"file, or say with --kind what it holds: text, jsonl or conllu."
        )
    return corpus


def read_sources(sources: list[str], options: dict[str, Any], model: str) -> tuple[Corpus, Corpus | None]:
    """The texts, and the passages of those that are a treebank with coreference. Ours are what the model reads."""
    if not sources:
        return corpora.own_corpora(model)
    texts = opened_corpus(sources, **options)
    if texts.total is None or options["kind"] in ("text", "jsonl"):
        return texts, None  # what cannot be read twice has no passages
    passages = opened_corpus(sources, unit="passage", **options)
    first = islice(passages.open(), LOOKED_AT)
    annotated = any(document.gold is not None and document.gold.has_coreference for document in first)
    return texts, passages if annotated else None


def given_corpora(
    talk: ProgressLine,
    words: Sequence[str],
    file: str | None,
    lines: bool,
    files: list[str] | None,
    model: str,
    targets: str | None = None,
) -> tuple[Corpus | list[Any], Corpus | None, str]:
    """What was typed, is in the file or in the corpus; its passages whose coreference is known; and where it is from.

    Where nothing was given: our own page and annotated sentences, or what the model is shown else. With a file of
    `targets`, pairs, as of `given_texts`. Errors: TextError, FileAccessError.
    """
    if files and targets is not None:
        raise TextError(f"--targets {targets} pairs with the texts of --file, and not with --corpus {files[0]}.")
    if files and (words or file is not None):
        text = quoted(shortened(" ".join(words), 40)) if words else f"--file {file}"
        raise TextError(f"two sources of texts were given, {text} and --corpus {files[0]}: give one of them.")
    if words or file is not None or targets is not None:
        source = given_texts(talk, words, file, lines, model, targets)
        return list(source.given), None, source.origin
    corpus, passages = read_sources(files or [], {"kind": None, "lines": lines}, model)
    return corpus, passages, corpus.origin


def texts_in(source: Source, lines: bool) -> list[str]:
    """The texts of a source: its lines, or its paragraphs, whose own line breaks are blanks."""
    if lines:
        return [line.strip() for line in source.text.splitlines() if line.strip()]
    parts = re.split(r"\n\s*\n", source.text)
    return [" ".join(part.split()) for part in parts if part.strip()]


# ---------------------------------------------------------------------------------------------------------------------
# The slow steps that follow: a model loaded, a head of it chosen, its heads labelled. Each says what is going on.


@dataclass(frozen=True)
class ModelChoice:
    """The model that a command line names, and where and in which dtype it is to compute; None: as `load` chooses."""

    name: str
    device: str | None = None
    dtype: str | None = None

    def loaded(self, lm: LoadedModel) -> dict[str, str]:
        """Which model was asked for, which was loaded, and why, as plain data."""
        return {"asked": self.name, "name": lm.name, "because": lm.because}

    @property
    def arguments(self) -> str:
        """What to add to a command so that it takes the same model in the same way; "" for what it takes anyway."""
        options = {"--model": None if self.name == DEFAULT_MODEL else self.name}
        options |= {"--device": self.device, "--dtype": self.dtype}
        return "".join(f" {option} {shlex.quote(value)}" for option, value in options.items() if value is not None)


def chosen_place(device: str | None, dtype: str | None = None) -> tuple[Any, str]:
    """Where a command is to compute, and why: called before anything is loaded, as is known then what cannot be.

    Errors: ModelError for a device that is not here or a dtype that it lacks, ShapeError for a MANYHEADS_PASS that is
    none.
    """
    from manyheads.models.loading import weights_dtype  # deferred: imports torch
    from manyheads.recording.exact_map import chosen_pass  # as above

    chosen_pass()
    place, because = machine.choose_device(device, "--device")
    if dtype is not None:
        weights_dtype(dtype, place)
    return place, because


def load_model(talk: ProgressLine, choice: ModelChoice, *, reads: bool = True) -> LoadedModel:
    """The model that was chosen; `reads=False`: without a tokenizer where none lies beside it."""
    name = choice.name
    local = name in models.BUNDLED or Path(name).exists() or name.startswith(("/", ".", "~")) or name.count("/") > 1
    # What may have to be fetched from the hub leaves the terminal's last line to the hub's own bars.
    with talk.step(f"loading {name}" if local else f"loading {name} (fetched from the hub the first time)", bar=local):
        # Imports torch: within the step, so that the wait for it is announced.
        from manyheads.models.loading import OPTIONS, has_tokenizer_files

        folder = Path(name)
        options: dict[str, Any] = {"device": choice.device, "dtype": choice.dtype}
        _, why_there = chosen_place(choice.device, choice.dtype)
        if not reads and folder.is_dir() and not has_tokenizer_files(folder):
            options["tokenizer"] = False
        try:
            lm = models.load(name, **options)
        except ModelError as error:  # which offers options of Python's `load`, and none that can be typed
            if OPTIONS not in str(error):
                raise
            raise ModelError(str(error).replace(OPTIONS, "")) from error
        start.end()
    if choice.device is None and why_there != machine.NO_ACCELERATOR:
        talk.note(f"{lm.name} is on {lm.device}, {why_there}; --device chooses another")
    return lm


def head_first(words: Sequence[str], head: str | None) -> tuple[list[str], str | None]:
    """The text's words and the head: one typed before the text, as `head` and `card` take it, does for --head."""
    if head is None and words and re.fullmatch(r"L\d+H\d+", words[0], re.IGNORECASE):
        return [*words[1:]], words[0]
    return [*words], head


def head_of(lm: LoadedModel, name: str) -> Head:
    """The head by that name. Errors: HeadError, which says what the model has."""
    try:
        (head,) = lm.spec.select(name)
    except HeadError as error:
        if len(lm.spec.shape) != 1 or not all(next(iter(lm.spec.shape.values()))):  # it names those that attend
            raise
        (counts,) = lm.spec.shape.values()
        bounds = f"layers 0-{len(counts) - 1} and heads 0-{max(counts) - 1}"
        raise HeadError(f"{name}: {lm.name} has {bounds}.") from error
    return head


def label_heads(talk: ProgressLine, lm: LoadedModel, *, remember: bool = True) -> roles.PageLabels:
    """The model's `PageLabels`; without roles, and with the reason, where it cannot read the page."""
    try:
        with talk.step("finding the roles of the heads on the bundled texts (once for each model)") as progress:
            return roles.label_page(lm, progress=progress, remember=remember)
    except TextError as error:
        because = f"this model cannot read the bundled texts: {error}"
        return roles.PageLabels((), {}, text_data.Sinks(), {}, 0, 0, because)
