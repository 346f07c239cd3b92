"""What a run over a corpus takes, told before it: tokens, passes, hours, memory, sums, traffic, and what refuses it.

`forecast` surveys the corpus as the run would, looks at some further places of it, and measures a few batches of what
it saw. All else is proportion: what it says of time is of this machine, and of texts that are like those it saw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch

from manyheads.base import Json, html_table, plural
from manyheads.corpora import Corpus, Failures, as_corpus
from manyheads.errors import ManyHeadsError, StatisticError, TextError
from manyheads.inputs import BATCH_TOKENS, Long, require_reader
from manyheads.machine import PeakMemory, Ranks, free_bytes, is_split, joined_processes
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run.chunks import (
    Chunk,
    Chunked,
    Wanted,
    chunks_of,
    learn,
    read_chunk,
    read_head,
    require_read_again,
    require_same,
    texts_of,
)
from manyheads.measurement.corpus_run.driver import TRAFFIC, Engine, engine_of
from manyheads.measurement.corpus_run.worker import RunRequest, Worker
from manyheads.models import LoadedModel
from manyheads.statistics import Statistic
from manyheads.texts import Document, Sinks
from manyheads.units import gb

TIMED = 3  # batches: one of each third of the tokens, from short texts to long ones
MORE_PLACES = 4  # of the corpus that are looked at, besides its beginning


@dataclass(frozen=True)
class Forecast:
    """What a run over a corpus takes. Sizes in bytes, times in seconds; None: this cannot be known here.

    `texts`, `tokens`, `passes`: those of the run; `counted` says that texts were counted, else they are in proportion;
    so are tokens and passes, to `seen_tokens` of them. A pass is one forward of at most 2,048 tokens, and its maps.
    `processes` measure at once, each with the model. `seconds`: of them together, if each is as fast as this one was;
    `survey_seconds` come before, and loading the model. `memory_bytes`: the peak of one process, on a GPU of what the
    model and its batches take there, on a CPU of this whole process. `sums_bytes`: of a part; `kinds_bytes`: what may
    be added to it where kinds of tokens are counted. `every`: seconds between two parts of an actor, `traffic`: bytes a
    second that reach the driver. `refused`: why such a run would end at once. `remarks`: what to know beside.
    """

    model: str
    origin: str
    device: str
    texts: int | None
    tokens: int | None
    passes: int | None
    counted: bool
    seen_tokens: int
    processes: int
    seconds: float | None
    survey_seconds: float
    tokens_per_second: float
    memory_bytes: int | None
    sums_bytes: int
    kinds_bytes: int
    every: float | None = None
    traffic: float | None = None
    refused: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=(), repr=False)

    def rows(self) -> list[tuple[str, str]]:
        """What it says, a line each: a name and words."""
        about = "" if self.counted else "about "
        about_tokens = "" if self.tokens == self.seen_tokens else "about "
        unknown = "unknown: the corpus does not say how much there is to read"
        several = f" with {self.processes:,} processes" if self.processes > 1 else ""
        speed = f"{self.tokens_per_second:,.0f} tokens a second on {self.device}"
        took = unknown if self.seconds is None else f"about {duration(self.seconds)}{several}"
        kinds = f", and up to {gb(self.kinds_bytes)} of kinds of tokens" if self.kinds_bytes else ""
        rows = [
            ("texts", unknown if self.texts is None else f"{about}{self.texts:,}"),
            ("tokens", unknown if self.tokens is None else f"{about_tokens}{self.tokens:,}"),
            ("passes", unknown if self.passes is None else f"about {self.passes:,}, of up to {BATCH_TOKENS:,} tokens"),
            ("time", f"{took}, {speed}; before it {duration(self.survey_seconds)} for the survey"),
            ("memory", "unknown here" if self.memory_bytes is None else f"{gb(self.memory_bytes)} for each process"),
            ("sums", f"{gb(self.sums_bytes)} a part{kinds}"),
        ]
        if self.every is not None and self.traffic is not None:
            rows.append(("traffic", f"{gb(self.traffic)} a second to the driver: a part every {self.every:,.0f} s"))
        rows += [("remark", remark) for remark in self.remarks]
        return rows + [("refused", reason) for reason in self.refused]

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {**asdict(self), "refused": [*self.refused], "remarks": [*self.remarks]}

    def __repr__(self) -> str:
        took = "unknown time" if self.seconds is None else f"about {duration(self.seconds)}"
        tokens = "?" if self.tokens is None else f"{self.tokens:,}"
        refused = f", refused for {plural(len(self.refused), 'reason')}" if self.refused else ""
        return f"Forecast({self.model} over {tokens} tokens of {self.origin}: {took}{refused})"

    def _repr_html_(self) -> str:
        return html_table(["what", "forecast"], self.rows(), caption=f"{self.model} over {self.origin}")


def duration(seconds: float) -> str:
    """Seconds as people say them: "3.2 s", "12 min", "5.1 h", "97 days"."""
    for size, unit in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:,.2g} s" if seconds < 10 else f"{seconds:,.0f} s"


def forecast(
    lm: LoadedModel,
    texts: str | Iterable[str | Document] | Corpus,
    statistics: Wanted = "default",
    *,
    sinks: Sinks | None = None,
    kinds: bool = False,
    long: Long = "windows",
    resume: str | Path | None = None,
    ranks: Ranks | None = None,
    engine: Engine | str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Forecast:
    """What `measure` of the same arguments will take, and what would refuse it. Nothing is written.

    `clock` gives seconds: `time.process_time` leaves out what others do on this machine.

    Cost: the survey of the corpus' beginning (up to 50,000 tokens, tokenised), some further places of it, and four
    batches. Texts in memory are counted; of files the bytes are known, and a part of them is read.
    Errors: TextError where there is no text, or where texts can be read once only; StatisticError for statistics that
    there are not; ModelError; as `measure`. What concerns the run alone is in `refused`.
    """
    require_reader(lm, long)
    corpus = as_corpus(texts)
    if not corpus.key:
        raise TextError(
            f"a dry run reads texts that the run reads again, and {corpus.origin} can be read once only: give a list, "
            f"or files."
        )
    what, survey = RunRequest(lm, statistics, long, sinks, kinds), corpus.whole
    peak, begun = PeakMemory(lm.device), clock()
    head = read_head(lm, chunks_of((survey or corpus).open()), long)
    if not head.chunks:
        raise TextError(f"no text was given: {(survey or corpus).origin} holds none.")
    chosen = what.chosen(head.survey)
    learned = learn(lm, head, sinks, chosen)
    survey_seconds = clock() - begun
    is_whole = head.whole and survey is None
    seen = [*head.read.values()] if survey is None else [read_chunk(lm, x, long) for x in _beginning(corpus)]
    seen += [] if is_whole else [read_chunk(lm, chunk, long) for chunk in _elsewhere(corpus)]
    seen = [*{chunked.chunk.number: chunked for chunked in seen}.values()]
    seen_tokens = sum(chunked.reading.num_tokens for chunked in seen)
    read_seconds = 0.0
    if not is_whole:  # else it was read for the survey, and is not read again
        begun, first = clock(), seen[0]
        read_chunk(lm, first.chunk, long)
        read_seconds = (clock() - begun) * seen_tokens / max(1, first.reading.num_tokens)
    # Texts in memory are counted, by characters; files are in proportion to their bytes.
    in_memory = not corpus.files and corpus.total is not None
    if in_memory:
        lengths = [len(document.text) for document in corpus.open()]
        share = sum(lengths) / max(1, sum(len(x.text) for chunked in seen for x in chunked.chunk.documents))
        num_texts: int | None = len(lengths)
    else:
        share = 1.0 if is_whole else (corpus.total or 0) / max(1, sum(chunked.chunk.size for chunked in seen))
        num_texts = round(share * sum(chunked.texts for chunked in seen)) if corpus.total is not None else None
    known = corpus.total is not None or is_whole
    worker = Worker(what, chosen, learned, store.RunTotal(), lambda part: None)
    worker.keep = worker.total.add
    seconds, total = read_seconds + _seconds(worker, seen, clock), worker.total
    if not total.num_texts:
        raise TextError(f"no text of {corpus.origin} could be measured: {total.failures}")
    refused: list[str] = []
    remarks = [str(failures)] if (failures := sum((Failures.of(x.failures) for x in seen), Failures())) else []
    num_processes, every = _processes(what, corpus, resume, ranks, engine, chosen, refused)
    counts = None if total.sums.kinds is None else total.sums.kinds.counts()
    kinds_bytes = 0
    if counts is not None and len(counts.ids):
        of_each = sum(tensor.nbytes for tensor in counts.tensors().values()) / len(counts.ids)
        kinds_bytes = round(of_each * (lm.spec.vocab_size or len(counts.ids)))
        total.sums.kinds = None
    sums_bytes = len(store.packed(total.tensors(), {"holds": "sums"}))
    if every is not None:
        every = max(every, num_processes * sums_bytes / TRAFFIC)
    memory, free = peak.num_bytes, free_bytes(lm.device)
    if memory is not None and free is not None and num_processes > 1 and lm.device.type == "cpu":
        need = (num_processes - 1) * memory
        remarks += [f"{num_processes:,} processes take {gb(need + memory)} where all are on this machine, "
                    f"of which {gb(free)} are free"] * (need > free)  # fmt: skip
    threads = f", {plural(torch.get_num_threads(), 'thread')}" if lm.device.type == "cpu" else ""
    num_tokens = round(share * seen_tokens) if known else None
    return Forecast(
        lm.name,
        corpus.origin,
        f"{lm.device}{threads}",
        num_texts if known else None,
        num_tokens,
        round(share * sum(len(chunked.batches) for chunked in seen)) if known else None,
        is_whole or in_memory,
        seen_tokens,
        num_processes,
        share * seconds / num_processes if known else None,
        survey_seconds,
        seen_tokens / seconds,
        memory,
        sums_bytes,
        kinds_bytes,
        every,
        None if every is None else num_processes * sums_bytes / every,
        tuple(refused),
        tuple(remarks),
    )


def _beginning(corpus: Corpus) -> Iterator[Chunk]:
    return islice(chunks_of(corpus.open()), 1)


def _elsewhere(corpus: Corpus) -> Iterator[Chunk]:
    """Chunks of further places: of other files the first, of texts in memory those in the middle and at the end."""
    if len(corpus.files) > 1 and corpus.place is None:
        count = len(corpus.files)
        for number in sorted({(count - 1) * place // MORE_PLACES for place in range(1, MORE_PLACES + 1)} - {0}):
            for chunk in islice(chunks_of(corpus.files[number].open()), 1):
                yield replace(chunk, number=-number)  # by itself: numbers of the corpus are not known here
    elif not corpus.files and corpus.total is not None:
        every = max(1, sum(1 for _ in chunks_of(corpus.open())) // MORE_PLACES)
        yield from islice(chunks_of(corpus.open()), every, None, every)


def _seconds(worker: Worker, seen: list[Chunked], clock: Callable[[], float]) -> float:
    """How long measuring all that was seen takes, by three of its batches; one more comes first, of the longest texts.

    Batches in order of their texts' length fall into thirds by their tokens, padding included. Of each the one in the
    middle is timed: what a token costs depends on the length of its text, and hardly within a third.
    """
    batches: list[tuple[int, int, Chunked, int]] = []
    for chunked in seen:
        for number, pieces in enumerate(chunked.batches):
            if pieces:
                longest = max(len(chunked.reading.pieces[piece].ids) for piece in pieces)
                batches.append((longest, longest * len(pieces), chunked, number))
    batches.sort(key=lambda batch: batch[:2])
    if not batches:
        for chunked in seen[:1]:
            _measure(worker, chunked, 0)
        return 0.0
    _measure(worker, batches[-1][2], batches[-1][3])
    cells, thirds = sum(batch[1] for batch in batches), [[] for _ in range(TIMED)]
    before = 0
    for batch in batches:
        thirds[min(TIMED - 1, TIMED * before // cells)].append(batch)
        before += batch[1]
    seconds = 0.0
    for third in filter(None, thirds):
        _, size, chunked, number = third[len(third) // 2]
        begun = clock()
        _measure(worker, chunked, number)
        seconds += (clock() - begun) * sum(batch[1] for batch in third) / size
    return seconds


def _measure(worker: Worker, chunked: Chunked, number: int) -> None:
    """One batch of a chunk, as the run measures it."""
    others = {*range(len(chunked.batches))} - {number}
    chunk = chunked.chunk
    done = store.Done({chunk.number: (len(chunked.batches), others)} if others else {})
    worker.total.done = store.Done()  # the same batch may be measured again
    worker.measure([chunk], {chunk.number: chunked}, done, lambda *_: None)


def _processes(
    what: RunRequest,
    corpus: Corpus,
    resume: str | Path | None,
    ranks: Ranks | None,
    engine: Engine | str | None,
    chosen: Sequence[Statistic],
    refused: list[str],
) -> tuple[int, float | None]:
    """How many processes would measure, and after how many seconds each hands over; adds why they would not."""
    num_processes, every, divided = 1, None, is_split(what.lm.model)

    def check(call: Callable[[], object]) -> None:
        try:
            call()
        except ManyHeadsError as error:
            refused.append(str(error))

    if divided and (resume is not None or engine is not None):
        refused.append(
            "resume= and engine= are for a model that each process has whole, and several hold parts of this one."
        )
    elif engine is not None:

        def room() -> None:
            nonlocal num_processes, every
            chosen_engine = engine_of(engine)
            num_processes, every = chosen_engine.room(corpus), chosen_engine.every

        check(room)
    elif not divided:
        with ExitStack() as stack:
            num_processes = (ranks or stack.enter_context(joined_processes())).world
    if resume is not None:
        path = Path(resume)
        check(lambda: require_read_again(corpus))
        if path.exists():
            check(lambda: store.require_own(path, store.OWN))

            def same() -> None:
                begun = store.RunFolder(path).begun() if path.is_dir() else None
                if begun is not None:
                    require_same(what.inputs(texts_of(corpus), chosen), begun[0], path)

            check(same)
    return num_processes, every


def require_possible(expected: Forecast) -> None:
    """Errors: StatisticError with the reasons for which the run would be refused."""
    if expected.refused:
        raise StatisticError(" ".join(expected.refused))
