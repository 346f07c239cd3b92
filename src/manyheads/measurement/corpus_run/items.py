"""Numbered items: what a verb computes batch by batch, in this process or by an engine's, which is no sum over texts.

Ablating heads, patching pairs, reading texts under splits: each batch gives numbers of its own texts, whichever process
computes it, and whatever that process computed before. So a batch is an item with a number, and its results are kept
by that number. They are those of one process to the last bit, however many processes there are.

Who hands items out, and puts back what dies, is the driver of a corpus (`driver`): an item is a chunk of one batch, and
its part holds results where a corpus' part holds sums (`store.RunTotal`). In the folder to resume from are the same
files, and either goes on with what the other left: one process, or an engine.
"""

# device: results are the host's

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

import torch
from torch import Tensor

from manyheads.base import few
from manyheads.corpora import Corpus, Failures
from manyheads.errors import ManyHeadsError, StatisticError
from manyheads.inputs import Batch
from manyheads.machine import is_split
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run.actor import Actor, returned
from manyheads.measurement.corpus_run.basis import ALWAYS_NOTED, Basis
from manyheads.measurement.corpus_run.chunks import (
    OF_VERBS,
    Chunk,
    StartFacts,
    code_digest,
    inputs_of_model,
    require_same,
)
from manyheads.measurement.corpus_run.driver import Driver, Engine, engine_of
from manyheads.models import LoadedModel
from manyheads.progress import Progress
from manyheads.recording.file import bytes_of
from manyheads.texts import Document, Sinks

Result = Mapping[str, Tensor]
"""What an item comes to: numbers by name."""


@dataclass(eq=False)
class Items(ABC):
    """What is computed, in items. A verb's own are a dataclass whose fields say all that it depends on.

    `lm` is this process' model; all other fields travel to the engine's processes. What is made of them (readings,
    batches) is made in each when it is first needed, a `cached_property`.
    """

    lm: LoadedModel

    @property
    @abstractmethod
    def places(self) -> Sequence[Sequence[int]]:
        """The numbers of each item's texts."""

    @abstractmethod
    def result(self, number: int) -> Result:
        """What an item comes to. It depends on no item that was computed before."""

    @property
    @abstractmethod
    def key(self) -> str:
        """All that results depend on besides the model, in words that are equal only where it is."""

    @property
    def rests_on(self) -> dict[str, str]:
        """All that results depend on, by name. Cost: a digest of the weights."""
        code = code_digest(OF_VERBS)
        return {**inputs_of_model(self.lm), "manyheads' own code": code, "what is computed": self.key}

    @staticmethod
    def digest(batches: Iterable[Batch], *words: object) -> str:
        """A digest of all that a model is given in some batches, and of further words."""
        digest = hashlib.blake2b(repr(words).encode("utf-8", "surrogatepass"), digest_size=16)
        for batch in batches:
            for name, value in {**batch.inputs, "labels": batch.labels, "targets": batch.targets}.items():
                if value is not None:
                    digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
                    digest.update(bytes_of(value.cpu().contiguous()))
        return digest.hexdigest()

    @staticmethod
    def words(sentence: str) -> Tensor:
        """A sentence, as a part of a result."""
        return torch.frombuffer(bytearray(sentence.encode() or b" "), dtype=torch.uint8)

    @staticmethod
    def longest(results: Iterable[Result], name: str) -> str:
        """The longest sentence by that name: what a process finds out is added to what it says."""
        return max((bytes(bytes_of(result[name])).decode().strip() for result in results), key=len, default="")

    def of(self) -> Callable[[LoadedModel], Items]:
        """The same of another process' model."""
        return partial(type(self), **{x.name: getattr(self, x.name) for x in fields(self) if x.init and x.name != "lm"})

    @cached_property
    def catalogue(self) -> Corpus:
        """A document for each item, which names its texts."""
        places = self.places

        def documents() -> Iterator[Document]:
            for number, texts in enumerate(places):
                named = few([f"text {text}" for text in texts], 3)
                yield Document("", f"batch {number} ({named})", at=number + 1)

        return Corpus(documents, f"{len(places):,} batch{'es' * (len(places) != 1)}", "items", len(places))

    def results(
        self,
        *,
        engine: Engine | str | None = None,
        resume: str | Path | None = None,
        progress: Progress | None = None,
    ) -> list[Result]:
        """The results of all items, in order. `progress` is called with how many there are, and of how many.

        - engine: None: this process computes them.
        - resume: a folder for results: the same call goes on with what it has.

        Errors: those of `result`; EngineError, LostProcessError; StatisticError for a folder of something else.
        """
        if engine is None and resume is None:
            out: list[Result] = []
            for number in range(len(self.places)):
                out.append(self.result(number))
                if progress is not None:
                    progress(number + 1, len(self.places))
            return out
        if is_split(self.lm.model):
            raise StatisticError(
                "engine= and resume= need the whole model in each process: give one that is not divided among them."
            )
        folder = None if resume is None else Path(resume)
        if engine is None:
            # A folder, and no other process: this one is the only actor.
            alone = ThisProcess(ItemActor(lambda: self.lm, lambda _: self))
            driver = ItemDriver(alone, self.catalogue, 1, None, folder, every=0.0, progress=progress).run()
        else:
            driver = engine_of(engine).run_items(self, resume=folder, progress=progress)
        by_item: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        for name, value in driver.total.results.items():
            number, _, entry = name.partition("/")
            by_item[int(number)][entry] = value
        return [by_item[number] for number in range(len(self.places))]


class ItemActor(Actor):
    """An actor that keeps the results of items, until it hands them over."""

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        items: Callable[[LoadedModel], Items],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._load, self._items = load, items
        self._begin(clock)

    @cached_property
    def items(self) -> Items:
        """What is computed; the model is loaded when this is first needed, so that an error of it is a call's."""
        return self._items(self._load())

    def begin(self) -> dict[str, Any] | ManyHeadsError:  # type: ignore[override]  # nothing is learned from a corpus
        """The inputs of this process, which must be those of the others."""
        return returned(lambda: {"inputs": self.items.rests_on})

    def add(self, chunk: Chunk, done: store.Done, before: int) -> None:
        """Compute an item."""
        number, part = chunk.number, store.RunTotal()
        part.results = {f"{number}/{name}": value for name, value in self.items.result(number).items()}
        counts = {**dict.fromkeys(store.COUNTED, 0), "texts": len(self.items.places[number])}
        part.add(store.BatchPart(number, 0, 1, None, Failures(), counts))
        self.total.add(part)


class ItemDriver(Driver):
    """The driver of items: `corpus` has a document for each. Nothing is surveyed."""

    actor: ClassVar[type[Actor]] = ItemActor

    def _run(self, stack: ExitStack) -> None:
        self._inputs = self._first_begins()["inputs"]
        self.basis = Basis(self._inputs, (), Sinks(), dict.fromkeys(ALWAYS_NOTED, ""), None)
        if self.folder is not None:
            files = stack.enter_context(store.RunFolder.opened(self.folder))
            if (known := files.begun()) is None:
                files.begin(self._inputs, StartFacts(torch.zeros(0, device="cpu"), "", Sinks(), 0, "", ""))
            else:
                require_same(self._inputs, known[0], self.folder)
            parts = store.Parts.opened(self.folder, self.basis)
            self.total, self._add = parts.total, parts.add
        documents = enumerate(self.corpus.open())
        self._measure(Chunk(number, (document,), number, number) for number, document in documents)
        self._report_all()


class ThisProcess:
    """This process as a driver's `Cluster`, of one actor."""

    def __init__(self, actor: Actor) -> None:
        self._actor, self._numbers = actor, count()
        self._calls: dict[Hashable, Callable[[], Any]] = {}

    def start(self) -> Hashable:
        return 0

    def share(self, value: object) -> object:
        return value

    def call(self, actor: Hashable, method: str, *arguments: object) -> Hashable:
        number = next(self._numbers)
        self._calls[number] = partial(getattr(self._actor, method), *arguments)
        return number

    def first_done(self, calls: Sequence[Hashable], seconds: float) -> Hashable | None:
        return calls[0]

    def result(self, call: Hashable) -> Any:
        return self._calls.pop(call)()

    def kill(self, actor: Hashable) -> None:
        """Nothing outlives its run here."""
