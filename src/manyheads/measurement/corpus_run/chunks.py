"""What a run reads: a corpus in chunks of batches, what is learned from its head, and all inputs by their digests.

**Chunks** are the same whoever reads the corpus, in however many processes. Documents come in chunks; a chunk is
tokenised at once and sorted into batches of like length. Both depend on the corpus and on the constants of this file
alone, so a batch is known by two numbers, its chunk's and its own. By these a run knows what it has done, and processes
share the work: each reads the whole stream, which is cheap (20 microseconds a sentence to tokenise, 4 milliseconds to
measure), and measures batches of its own. Memory: one chunk.

**The head** of a corpus is read before its first batch is measured. A corpus of ten million texts is read once, and a
pipe can be read only once: so the head is kept, surveyed, and then measured like the rest. From it come how rare each
token is, where the model parks its attention (`sinks`), and the statistics that are made for this corpus:
`measure(lm, corpus, statistics)` takes a function of the survey.

**Inputs** are everything that the numbers of a run depend on, by name: a run goes on only with the same. Where the
model computes (device, attention kernel, number of processes) is none of it, since that changes rounding alone.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.resources import as_file, files
from itertools import chain
from pathlib import Path
from typing import Any

from jaxtyping import Float32
from torch import Tensor, nn

from manyheads import private_names
from manyheads.base import Json
from manyheads.corpora import WHOLE, Corpus, Failure, Shard, is_about_texts, reason_of
from manyheads.errors import StatisticError, TextError
from manyheads.inputs import (
    BATCH_TOKENS,
    Long,
    Piece,
    Reading,
    fault_in,
    tokenised,
)
from manyheads.measurement.loop import find_sinks
from manyheads.measurement.sinks import probed
from manyheads.models import LoadedModel
from manyheads.statistics import Statistic, Survey
from manyheads.texts import Document, Sinks

CHUNK_TEXTS = 2_048  # enough of every length to fill batches: a twelfth of what is read is padding, for sentences
CHUNK_CHARACTERS = 1 << 19  # about 120,000 tokens
SHARD_BITS = 32  # of a chunk's number, those that count within a shard; the shard's own number is above them
PADDING = "padding of a batch"  # what a run rests on by this name: its own folder's alone, for parts of two devices add


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some documents in a row: the first is number `begin` of the corpus, and reading was at `begin_at` before it.

    In a shard, they are every `step`th of the corpus. Chunks of a corpus, and of each of its shards, follow each other
    in number, and no two chunks of its shards have the same: those of shard i are numbered from `i << SHARD_BITS` on.
    """

    number: int
    documents: tuple[Document, ...]
    begin: int
    begin_at: int
    step: int = 1

    @property
    def num_texts(self) -> int:
        return len(self.documents)

    @property
    def end_at(self) -> int:
        return max(self.begin_at, self.documents[-1].at)

    @property
    def size(self) -> int:
        """How much of the corpus it is, in its own units."""
        return self.end_at - self.begin_at

    def __str__(self) -> str:
        return " to ".join(dict.fromkeys((self.documents[0].name, self.documents[-1].name)))


def chunks_of(documents: Iterable[Document], place: Shard = WHOLE) -> Iterator[Chunk]:
    """Documents in chunks of at most `CHUNK_TEXTS` texts and `CHUNK_CHARACTERS` characters, at least one text each."""
    # Within a file shard, texts are numbered as they come: where its files lie in the corpus, nobody has counted.
    first, step = (place.index, place.of) if place.by == "text" else (0, 1)
    number, begin, begin_at, collected, size = place.index << SHARD_BITS, first, 0, [], 0
    for document in documents:
        # By texts and characters, never by tokens: a border must be known before anything is tokenised, the same in
        # every process. A document longer than the limit is a chunk by itself.
        is_full = len(collected) == CHUNK_TEXTS or size + len(document.text) > CHUNK_CHARACTERS
        if collected and is_full:
            chunk = Chunk(number, tuple(collected), begin, begin_at, step)
            yield chunk
            number, begin, begin_at = number + 1, begin + step * len(collected), chunk.end_at
            collected, size = [], 0
        collected.append(document)
        size += len(document.text)
    if collected:
        yield Chunk(number, tuple(collected), begin, begin_at, step)


@dataclass(frozen=True, eq=False)
class FileChunk:
    """A chunk that is read by the actor which measures it. `again` opens its file; `place` is the file's shard.

    `num_texts`, and how much of the file it is (`size`), are known once it is measured.
    """

    number: int
    place: Shard
    again: Callable[[], Corpus] = field(repr=False)
    name: str = ""
    num_texts: int = 0
    size: int = 0

    @property
    def index(self) -> int:
        """Its number in its file."""
        return self.number - (self.place.index << SHARD_BITS)

    def __str__(self) -> str:
        return f"chunk {self.index:,} of file {self.name}"


Work = Chunk | FileChunk  # what an actor is given to measure


@dataclass(frozen=True)
class FileEnd:
    """What an actor answers in place of a measured chunk that there is not: how many chunks and texts the file has."""

    num_chunks: int
    num_texts: int


@dataclass(eq=False)
class FileReading:
    """One file, open in an actor. It is read in order; a chunk before the last one needs another reading."""

    chunk: FileChunk
    chunks: Iterator[Chunk] = field(init=False)
    next: int = 0  # the number in the file of the chunk that is read next
    num_texts: int = 0

    def __post_init__(self) -> None:
        self.chunks = chunks_of(self.chunk.again().open(), self.chunk.place)

    def can_read(self, chunk: FileChunk) -> bool:
        """Whether this is its file, and it is not read past it."""
        return self.chunk.place == chunk.place and self.next <= chunk.index

    def read(self, index: int) -> Chunk | FileEnd:
        """The chunk of this number in the file; those before it are read and dropped."""
        for chunk in self.chunks:
            self.next, self.num_texts = self.next + 1, self.num_texts + chunk.num_texts
            if self.next > index:
                return chunk
        return FileEnd(self.next, self.num_texts)


@dataclass(frozen=True, eq=False)
class Chunked:
    """A chunk, tokenised: a reading of what can be measured, its batches, and texts that cannot be read.

    There is always a batch, an empty one where no text can be read. `cut`: texts longer than the model's positions,
    which are read in `windows` pieces (one each where they are truncated); `cut_gold` of them had gold, now left out.
    `error`: the first that the tokenizer raised itself, where no text of the chunk could be read.
    """

    chunk: Chunk
    reading: Reading
    failures: tuple[Failure, ...]
    cut: int
    windows: int
    cut_gold: int
    error: Exception | None = None

    @property
    def texts(self) -> int:
        """How many there are, readable or not."""
        return self.chunk.num_texts

    @cached_property
    def batches(self) -> list[list[int]]:
        # Never none: failures and counts of a chunk travel with
        # its first batch, and a chunk without one would lose them.
        return self.reading.groups(BATCH_TOKENS) or [[]]

    def failure(self, index: int, error: Exception | str) -> Failure:
        """Why the piece of this number cannot be measured; of a window, which one it is."""
        piece = self.reading.pieces[index]
        return _failure(self.chunk, piece.source, error, f" (from its character {piece.begin:,})" * (piece.begin > 0))


def read_chunk(lm: LoadedModel, chunk: Chunk, long: Long) -> Chunked:
    """Tokenise a chunk. A text that cannot be read is a failure, and no error."""
    failures: list[Failure] = []
    readable: dict[int, Document] = {}
    for index, document in enumerate(chunk.documents):
        fault = "" if document.problem else fault_in(document.text)
        if document.target is not None and not fault:
            fault = "has a target, which is read of a list of texts alone"
        if problem := document.problem or (fault and f"the text {fault.rstrip('.')}"):
            failures.append(_failure(chunk, index, problem))
        else:
            readable[index] = document
    pieces: list[Piece] = []
    cut, cut_gold = 0, 0
    first: Exception | None = None
    for index, of_text in zip(readable, tokenised(lm, readable, long), strict=True):
        if isinstance(of_text, Exception):
            if not is_about_texts(of_text):
                raise of_text
            # A TextError is about the text. The tokenizer's own error may mean that the tokenizer is broken: where
            # nothing at all can be measured, the run raises that first one instead of blaming every text.
            first = first or (None if isinstance(of_text, TextError) else of_text)
            failures.append(_failure(chunk, index, of_text))
            continue
        if of_text[0].is_cut:
            # What people have said of a text holds for the whole of it: a window would need its share, so it has none.
            cut, cut_gold = cut + 1, cut_gold + (chunk.documents[index].gold is not None)
        pieces += of_text
    notes = {"windows": "some texts are cut" if cut else ""}
    reading = Reading(lm, tuple(pieces), notes=notes, most_padding=lm.most_padding)
    windows = sum(piece.is_cut for piece in pieces)
    return Chunked(chunk, reading, tuple(failures), cut, windows, cut_gold, None if pieces else first)


def _failure(chunk: Chunk, index: int, error: Exception | str, where: str = "") -> Failure:
    name = chunk.documents[index].name
    return Failure(
        chunk.begin + chunk.step * index, f"{name}{where}", error if isinstance(error, str) else reason_of(error)
    )


# ---------------------------------------------------------------------------------------------------------- the head

SURVEY_TOKENS = 50_000  # from so many tokens on, rarity is counted: whole chunks are read until there are as many
SURVEY_TEXTS = 20_000  # or as many texts: those of one word never come to so many tokens


Wanted = str | Sequence[str | Statistic] | Callable[[Survey], str | Sequence[str | Statistic]]
"""What `measure` is asked for: "default", "all", names and Statistics; or what a function makes of the survey."""


@dataclass(frozen=True, eq=False)
class CorpusStart:
    """The first chunks of a corpus, tokenised where that was needed, and all that follow.

    `enough`: whether they hold enough to learn from; a corpus may end before. `whole`: whether nothing follows.
    """

    chunks: tuple[Chunk, ...]
    read: dict[int, Chunked]
    rest: Iterator[Chunk]
    whole: bool
    enough: bool = True

    @property
    def survey(self) -> Survey:
        return Survey(tuple(document for chunk in self.chunks for document in chunk.documents), self.whole)

    @property
    def pieces(self) -> list[Piece]:
        return [piece for chunked in self.read.values() for piece in chunked.reading.pieces]

    def stream(self) -> Iterator[Chunk]:
        """The whole corpus from its beginning; once."""
        return chain(self.chunks, self.rest)


def read_head(lm: LoadedModel, stream: Iterator[Chunk], long: Long, num_documents: int | None = None) -> CorpusStart:
    """Chunks until they hold enough to learn from; `num_documents`: as many as an earlier run had, not tokenised."""
    first_chunks: list[Chunk] = []
    read: dict[int, Chunked] = {}
    num_tokens = num_texts = 0
    enough = False
    for chunk in stream:
        first_chunks.append(chunk)
        num_texts += len(chunk.documents)
        if num_documents is None:
            read[chunk.number] = read_chunk(lm, chunk, long)
            num_tokens += read[chunk.number].reading.num_tokens
        # A resumed run takes the head's length from what was stored and counts no tokens: statistics are made from the
        # survey, so it must hold the very documents of the first start.
        of_tokens = num_tokens >= SURVEY_TOKENS or num_texts >= SURVEY_TEXTS
        if enough := of_tokens if num_documents is None else num_texts >= num_documents:
            break
    following = next(stream, None)  # one chunk more, to know whether the head is the whole corpus
    unread = iter(()) if following is None else chain([following], stream)
    return CorpusStart(tuple(first_chunks), read, unread, following is None, enough)


@dataclass(frozen=True, eq=False)
class StartFacts:
    """What the head of a corpus shows, and in words from how much of it. `texts`: a digest of that head."""

    rarity: Float32[Tensor, "vocabulary"]
    rarity_because: str
    sinks: Sinks
    num_documents: int
    because: str
    texts: str

    def tensors(self) -> dict[str, Tensor]:
        return {"rarity": self.rarity}

    def words(self) -> dict[str, Any]:
        """All but the numbers, as JSON takes it."""
        names = ("rarity_because", "num_documents", "because", "texts")
        return {"sinks": asdict(self.sinks), **{name: getattr(self, name) for name in names}}

    @staticmethod
    def read(tensors: dict[str, Tensor], words: dict[str, Any]) -> StartFacts:
        """Raises LookupError, TypeError or ValueError for what is not of that kind."""
        parked, rarity = words["sinks"], tensors["rarity"]
        ids, names = tuple(int(number) for number in parked["ids"]), tuple(str(name) for name in parked["names"])
        sinks = Sinks(bool(parked["first"]), ids, names, str(parked["because"]))
        if rarity.ndim != 1:
            raise ValueError(f"rarity has {rarity.ndim} axes")
        because, texts = str(words["because"]), str(words["texts"])
        return StartFacts(rarity, str(words["rarity_because"]), sinks, int(words["num_documents"]), because, texts)


def learn(lm: LoadedModel, head: CorpusStart, sinks: Sinks | None, statistics: Sequence[Statistic]) -> StartFacts:
    """Count tokens, and look for sinks where they are not given and some statistic asks for them.

    Cost: one forward pass over 24 texts spread over the head. Errors: as the model's, where it can read none of them.
    """
    pieces = head.pieces
    reading = Reading(lm, tuple(pieces)).counted("the corpus'" if head.whole else "the first")
    rarity = reading.rarity
    assert rarity is not None
    if sinks is None:
        need_sinks = any("sinks" in statistic.asks for statistic in statistics)
        sinks = _sinks(lm, pieces) if need_sinks and pieces else Sinks()
    count = len(head.survey.documents)
    scope = f"all {count:,}" if head.whole else f"the first {count:,}"
    source = (
        f"{scope} texts ({reading.num_tokens:,} tokens): how rare tokens are, sinks, what the statistics themselves ask"
    )
    digest = hashlib.blake2b(digest_size=8)
    for document in head.survey.documents:
        digest.update(repr((document.text, document.gold)).encode("utf-8", "surrogatepass"))
    return StartFacts(rarity.float(), reading.rarity_because, sinks, count, source, digest.hexdigest())


def _sinks(lm: LoadedModel, pieces: Sequence[Piece]) -> Sinks:
    """Sinks, of those of the probed texts that the model can read."""
    # A sample, not the whole head: a sink is the model's, not the corpus', and one pass over a few texts shows it.
    probes = tuple(pieces[place] for place in probed(pieces))
    try:
        return find_sinks(Reading(lm, probes))
    except Exception as error:
        if not is_about_texts(error):
            raise
        # Some text of the call failed, and the error does not say which: one by one.
        readable: tuple[Piece, ...] = ()
        for piece in probes:
            try:
                find_sinks(Reading(lm, (piece,)))
            except Exception as fault:
                if not is_about_texts(fault):
                    raise
            else:
                readable += (piece,)
        if not readable:
            raise
    return find_sinks(Reading(lm, readable))


# ---------------------------------------------------------------------------------------------------------- the inputs

# The packages and modules whose code numbers depend on, and which head they are of.
SOURCES = (
    *(
        "private_names.py",
        "units.py",
        "base",
        "heads.py",
        "texts",
        "machine",
        "spec.py",
        "attention",
        "nn",
        "recording",
        "models",
        "inputs",
        "corpora",
    ),
    *("statistics", "measurement", "roles"),
)
OF_VERBS = ("plan.py", "edits", "interventions", "circuits", "long_context")  # what those that change a model add
ELSEWHERE = (private_names.NAME_OR_PATH, "transformers_version")  # of a config: where it lay, not what the model does
SHOWN = 48  # characters of an input in an error


def inputs_of(
    lm: LoadedModel,
    texts: Mapping[str, str],
    statistics: Sequence[Statistic],
    long: Long,
    sinks: Sinks | None,
    kinds: bool,
) -> dict[str, str]:
    """Each input in words that are equal only where it is; `texts` are those of `texts_of`.

    Cost: a digest of the weights (22M parameters: 0.1 s).
    """
    definitions = [(x.name, x.source, x.meaning, x.column, x.block and x.block.name) for x in statistics]
    return {
        **texts,
        **inputs_of_model(lm),
        "statistics": f"{len(statistics)} statistics {_digest(repr(definitions))}",
        "manyheads' own code": code_digest(),
        "long": long,
        "kinds": str(kinds),
        "sinks": "as found" if sinks is None else f"given: {(sinks.first, sinks.ids)}",
        # A batch is known by two numbers alone, so constants that cut other batches would count texts twice or never.
        "batches": f"{BATCH_TOKENS} tokens, {CHUNK_TEXTS} texts or {CHUNK_CHARACTERS} characters a chunk",
        PADDING: f"{lm.most_padding:g} tokens a text",
        "survey": f"{SURVEY_TOKENS} tokens or {SURVEY_TEXTS} texts",
    }


def texts_of(corpus: Corpus) -> dict[str, str]:
    """Those inputs that say which texts are measured."""
    place = corpus.place or WHOLE
    return {"texts": corpus.key, "shard": f"{place.index} of {place.of} by {place.by}"}


def inputs_of_model(lm: LoadedModel) -> dict[str, str]:
    """Those inputs that say which model it is, and how it computes."""
    return {
        "model's weights": lm.weights_hash,
        "model's config": config_digest(lm.model),
        "model's attention": private_names.attention_in_words(lm.model),
        "dtype": str(lm.dtype).removeprefix("torch."),
        "tokenizer": tokenizer_digest(lm.tokenizer),
    }


def require_read_again(corpus: Corpus) -> None:
    """Errors: StatisticError where a corpus can be read once only, so that a run over it cannot be continued."""
    if not corpus.key:
        raise StatisticError(
            f"resume= needs texts that can be read again, and {corpus.origin} can be read once only: give a list, or a "
            f"corpus of files."
        )


def require_same(inputs: dict[str, str], known: dict[str, str], folder: Path) -> None:
    """Refuse to go on with other inputs. Errors: StatisticError names those that changed since the run began."""
    if different := differences(known, inputs, "then", "now"):
        raise StatisticError(
            f"the run in {folder} was begun with other inputs: {different}. What it has is left as it is: to measure "
            f"with these inputs, give another folder, or delete that one."
        )


def differences(old: dict[str, str], new: dict[str, str], first: str, second: str) -> str:
    """Which inputs differ and how, in words; "" where none does. `first` and `second` say which is which."""
    different = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return "; ".join(
        f"{name} ({_short(old.get(name))} {first}, {_short(new.get(name))} {second})" for name in different
    )


def _short(value: str | None) -> str:
    return "none" if value is None else value if len(value) <= SHOWN else f"{value[:SHOWN]}..."


def config_digest(model: nn.Module) -> str:
    """Digest of what a model's config says of the model."""
    return _digest(json.dumps(config_of(model)))


def config_of(model: nn.Module) -> Json:
    """What a model's config says of the model, as JSON has it."""
    shape = getattr(getattr(model, "config", None), "to_dict", dict)()
    return json.loads(json.dumps({k: v for k, v in shape.items() if k not in ELSEWHERE}, default=str))


def tokenizer_digest(tokenizer: object) -> str:
    """Digest of all that a fast tokenizer does; of a slow one of its class and its words."""
    to_str = getattr(getattr(tokenizer, "backend_tokenizer", None), "to_str", None)
    if to_str is not None:
        # Truncation and padding are settings that calls leave behind in the tokenizer: with them in the digest, a run
        # could refuse to go on merely because somebody tokenised a text in between.
        rules = json.loads(to_str())
        return _digest(json.dumps({k: v for k, v in rules.items() if k not in ("truncation", "padding")}))
    vocabulary = getattr(tokenizer, "get_vocab", dict)()
    words = sorted(vocabulary.items())
    return _digest(f"{type(tokenizer).__name__} {words!r}")


def code_digest(further: Sequence[str] = ()) -> str:
    """Digest of the source that numbers depend on, sub-folders included: an update may change them."""
    parts: list[str] = []
    for source in (*SOURCES, *further):
        with as_file(files("manyheads").joinpath(source)) as place:  # a zip's members are unpacked for the time of it
            modules = [place] if place.suffix else sorted(place.rglob("*.py"), key=lambda path: path.as_posix())
            parts += [path.read_text(encoding="utf-8") for path in modules]
    return _digest("\0".join(parts))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
