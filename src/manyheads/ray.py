"""Corpora on Ray: many processes measure, on this machine or a cluster, and every text counts once. Extra: `ray`.

    mh.measure(lm, texts, engine="ray")                                   # this machine's cores
    mh.measure(lm, texts, engine=manyheads.ray.Engine("10.0.0.7:6379", actors=16, gpus=1))

Plain actors, and a driver that hands out the corpus' own numbered chunks (`measurement.corpus_run.driver`): nothing of
Ray's retries is used, since a call that Ray repeats meets an actor whose sums are empty. Each actor loads the model
once, by its loading (`lm.loading`); one in hand is sent. Batches are those of one process, so that in float32 one
actor comes to its numbers, to the last bit. With `resume=` the folder is that of a run in one process, and either goes
on with what the other left.

It imports without Ray; a run needs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from manyheads.base import first_line, one_of
from manyheads.corpora import DEALT, Corpus, as_corpus, corpus_of_rows
from manyheads.errors import EngineError
from manyheads.inputs import Long
from manyheads.machine import is_out_of_memory
from manyheads.measurement.corpus_run import (
    ActorLost,
    Driver,
    FileDriver,
    HeadSums,
    ItemDriver,
    Items,
    RunRequest,
    Wanted,
)
from manyheads.models import LoadedModel, Loading
from manyheads.private_names import ray_on_loopback
from manyheads.progress import Progress, ShowProgress, shows_progress
from manyheads.statistics import Statistic, Survey, named
from manyheads.texts import Document, Sinks

ADDRESS_SECONDS = 15.0  # in which an address must answer
NO_RETRIES = {"max_restarts": 0, "max_task_retries": 0}
REASON_CHARACTERS = 200

log = logging.getLogger("manyheads")


@dataclass(frozen=True)
class Engine:
    """Ray, and which of its resources to use. Give it as `engine=`.

    - address: the cluster's, "HOST:PORT", "ray://..." or "auto"; None: this machine's cores, or the cluster to which
      this process is connected already (`ray.init`).
    - actors: how many processes measure; None: one for each accelerator, or where there is none, for each core.
    - gpus: accelerators for each process, which may be a part of one; None: one if the cluster has any. With several, a
      machine's, each actor loads the model with its layers spread over them (`load(device="auto")`).
    - cpus: cores for each process, and torch's threads in it.
    - every: seconds after which an actor hands over its sums. If it dies, at most this much is measured again.
      Stretched where all of them would hand over more than 50 MB a second.
    - ahead: how many chunks an actor is given at a time.
    - shard_by: "text": the driver reads the texts, and sends them. "file": each actor opens files of its own, which
      must lie where all machines see them; the sums are those of shards by file (`Corpus.shard`), added. Where reading
      takes as long as measuring, or the corpus is too large for one process; have several files for each actor.
    - deaths: how many actors may be lost with the same chunk before its texts are named, and the run ends.
    - patience: seconds without an answer after which an actor counts as hung, and is ended.
    - runtime_env: Ray's, for the actors.

    Cost: measuring itself as in one process; each actor loads the model once.
    """

    address: str | None = None
    actors: int | None = None
    gpus: float | None = None
    cpus: int = 1
    every: float = 30.0
    ahead: int = 2
    shard_by: Literal["text", "file"] = "text"
    deaths: int = 3
    patience: float = 600.0
    runtime_env: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, least in {"actors": 1, "cpus": 1, "ahead": 1, "deaths": 1, "every": 0, "patience": 1}.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not value >= least):
                raise EngineError(f"{name}={value!r}: give {least} or more.")
        if self.gpus is not None and not (0 <= self.gpus <= 1 or (self.gpus > 1 and self.gpus == int(self.gpus))):
            raise EngineError(
                f"gpus={self.gpus!r}: an actor has a part of an accelerator, or whole ones: give 0 to 1, or 2, 3, ..."
            )
        one_of("shard_by", self.shard_by, DEALT, EngineError, "is not a way to deal out texts")

    def check(self) -> None:
        """Check that Ray is installed and that its address answers, before slow work begins. Errors: EngineError."""
        # Importing it takes seconds, in which the address could have answered.
        if not (sys.modules["ray"] if "ray" in sys.modules else importlib.util.find_spec("ray")):
            imported()
        if self.address is not None:
            self._require_answer(self.address)

    def run(
        self, what: RunRequest, corpus: Corpus, *, resume: Path | None = None, progress: Progress | None = None
    ) -> Driver:
        """Run over a corpus, or over a shard of it, to its end: `measure(engine=)` calls this.

        Errors: as of `measure`; EngineError; LostProcessError where no actor is left, or one chunk ends all of them.
        """
        assert what.watch is None, "no function of this process can watch what others measure"
        request = partial(RunRequest, statistics=by_value(what.statistics), long=what.long, sinks=what.sinks,
                          kinds=what.kinds, reading=what.reading)  # fmt: skip
        return self.run_over(
            corpus, what.lm.loading or what.lm, request, what.survey, resume, progress, chosen=what.chosen
        )

    def run_items(self, items: Items, *, resume: Path | None = None, progress: Progress | None = None) -> Driver:
        """Compute a verb's items: `mh.importance(engine=)` and its like call this. Errors: as of `run`."""
        if self.shard_by == "file":
            raise EngineError(
                "shard_by='file' deals out files to be measured, and here batches are dealt out: leave it out."
            )
        driver = partial(ItemDriver, corpus=items.catalogue, folder=resume, progress=progress)
        return self._run(items.lm.loading or items.lm, ItemDriver.actor, items.of(), driver)

    def run_over(
        self,
        corpus: Corpus,
        model: Callable[[], LoadedModel] | LoadedModel,
        request: Callable[[LoadedModel], RunRequest],
        survey: Corpus | None,
        folder: Path | None,
        progress: Progress | None,
        chosen: Callable[[Survey], Sequence[Statistic]] | None = None,
    ) -> Driver:
        """Run over a corpus. `chosen` is as the driver has it. Errors: as of `run`."""
        kind = self._kind
        kind.check(corpus, folder)
        driver = partial(kind, corpus=corpus, survey=survey, folder=folder, progress=progress, chosen=chosen)
        return self._run(model, kind.actor, request, driver)

    @property
    def _kind(self) -> type[Driver]:
        return FileDriver if self.shard_by == "file" else Driver

    def room(self, corpus: Corpus) -> int:
        """How many actors would measure this corpus. Errors: EngineError; TextError where they could not read it."""
        self._kind.check(corpus, None)
        ray = imported()
        with self._connected(ray):
            num_actors, _ = self._room([node["Resources"] for node in ray.nodes() if node["Alive"]])
        return min(num_actors, len(corpus.files)) if self.shard_by == "file" else num_actors

    def _run(
        self,
        model: Callable[[], LoadedModel] | LoadedModel,
        kind: type[object],
        request: Callable[[LoadedModel], RunRequest | Items],
        driver: Callable[..., Driver],
    ) -> Driver:
        ray = imported()
        with self._connected(ray):
            num_actors, gpus = self._room([node["Resources"] for node in ray.nodes() if node["Alive"]])
            if gpus > 1:
                model = spread(model)
            if isinstance(model, LoadedModel):
                size = sum(weight.nbytes for weight in model.model.parameters()) / 1e6
                log.warning("%s has no loading, so that all of it is sent to the actors: %.0f MB", model.name, size)
                with sent("the model"):
                    model = partial(ray.get, ray.put(model))
            options = {
                "num_cpus": self.cpus,
                "num_gpus": gpus,
                "runtime_env": self.runtime_env and {**self.runtime_env},
            }
            remote = ray.remote(**NO_RETRIES, **{name: value for name, value in options.items() if value})(kind)
            cluster = RayCluster(ray, lambda: remote.remote(partial(_loaded, model, self.cpus), request))
            pace = {name: getattr(self, name) for name in ("every", "ahead", "deaths", "patience")}
            return driver(cluster, num_actors=num_actors, **pace).run()

    @contextmanager
    def _connected(self, ray: ModuleType) -> Generator[None]:
        """Be connected while the block runs; what this process was connected to before stays as it is."""
        if ray.is_initialized():
            if self.address not in (None, "auto") and self.address != (known := ray.get_runtime_context().gcs_address):
                log.warning("this process is connected to Ray at %s: address=%r is not used", known, self.address)
            yield
            return
        how: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        if self.address is None:
            # Not the cluster that was begun last on this machine, which ray.init() would join. Nobody else reaches it.
            how |= {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent that nobody asked for
        else:
            self._require_answer(self.address)
            how |= {"address": self.address}
        try:
            with ray_on_loopback() if self.address is None else nullcontext():
                ray.init(**how)
        except Exception as error:  # of a node that does not come up in 30 seconds, Ray raises a plain one
            where = "on this machine" if self.address is None else f"at {self.address}"
            reason = first_line(error, REASON_CHARACTERS).rstrip(".")
            if "AuthToken" in f"{error.__cause__}":
                reason += ". It asks for a token: set RAY_AUTH_MODE=token, and have its token in ~/.ray/auth_token"
            raise EngineError(f"Ray does not start {where}: {reason}.") from error
        try:
            if self.address is None and not (own := ray.util.get_node_ip_address()).startswith("127."):
                log.warning("what this version of Ray starts is reached by other machines, at %s", own)
            yield
        finally:
            ray.shutdown()

    @staticmethod
    def _require_answer(address: str) -> None:
        """Ray itself would ask for minutes. Errors: EngineError."""
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if not (host and port.isdecimal()):
            return
        try:
            socket.create_connection((host.strip("[]"), int(port)), ADDRESS_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise EngineError(
                f"no Ray cluster answers at {address} ({error}): is it up (ray status), and is this its address? "
                f"Without one, this machine's cores are used."
            ) from error

    def _room(self, nodes: Sequence[Mapping[str, float]]) -> tuple[int, float]:
        """How many actors these machines have room for, and the accelerators of each. Errors: EngineError."""
        num_gpus = sum(node.get("GPU", 0) for node in nodes)
        gpus = (1.0 if num_gpus else 0.0) if self.gpus is None else float(self.gpus)
        rooms = [
            min(node.get("CPU", 0) // self.cpus, node.get("GPU", 0) // gpus if gpus else float("inf")) for node in nodes
        ]
        if not sum(rooms):
            request = f"{self.cpus:,} cores" + (f" and {gpus:g} accelerators" if gpus else "")
            most = "; ".join(f"{node.get('CPU', 0):g} cores, {node.get('GPU', 0):g} accelerators" for node in nodes[:3])
            raise EngineError(f"no machine of the cluster has room for an actor of {request}: it has {most}.")
        if self.actors is not None and self.actors > sum(rooms):
            raise EngineError(
                f"actors={self.actors}: the cluster has room for {sum(rooms):.0f}. Ray would wait for more for ever."
            )
        return self.actors or int(sum(rooms)), gpus


def spread(model: Callable[[], LoadedModel] | LoadedModel) -> Callable[[], LoadedModel]:
    """The same model with its layers over all accelerators of an actor. Errors: EngineError for a model in hand.

    A function that loads a model is called as it is: it has the actor's accelerators, and no others, in sight.
    """
    if isinstance(model, LoadedModel):
        raise EngineError(
            f"several accelerators an actor load the model once more, over all of them, and {model.name} is in hand: "
            f"give a name, a folder, or a function that loads it with device_map='auto'."
        )
    return replace(model, device="auto") if isinstance(model, Loading) else model


def _loaded(load: Callable[[], LoadedModel], num_threads: int) -> LoadedModel:
    """The model, in a process that has so many threads."""
    torch.set_num_threads(num_threads)
    return load()


def by_value(statistics: Wanted) -> Wanted:
    """The same for other processes: of a statistic of one's own, a pickle has its meaning and not its functions."""
    if isinstance(statistics, str) or callable(statistics):
        return statistics
    makers = [
        one if isinstance(one, str) or named(one.name) is one
        else partial(Statistic, **{each.name: getattr(one, each.name) for each in fields(one)})
        for one in statistics
    ]  # fmt: skip
    return partial(_made, makers)


def _made(makers: Sequence[str | Statistic | Callable[[], Statistic]], survey: Survey) -> list[str | Statistic]:
    return [maker() if callable(maker) else maker for maker in makers]


@contextmanager
def sent(what: str) -> Generator[None]:
    """Errors: EngineError for what cannot be pickled, in one line: Ray's own message has a page."""
    try:
        yield
    except Exception as error:
        # By its name: nothing here imports what can run what it reads.
        if not isinstance(error, (TypeError, AttributeError)) and type(error).__name__ != "PicklingError":
            raise
        cause = error.__cause__ or error.__context__ or error
        raise EngineError(
            f"{what} cannot be sent to the engine's processes ({first_line(cause, REASON_CHARACTERS)}): give what can "
            f"be pickled, and make locks, files and connections inside a function."
        ) from error


class RayCluster:
    """Ray as the driver's `Cluster`: actors by number, calls as Ray's references."""

    def __init__(self, ray: ModuleType, start: Callable[[], Any]) -> None:
        self._ray, self._start, self._numbers = ray, start, count()
        self._actors: dict[int, Any] = {}

    def start(self) -> Hashable:
        number = next(self._numbers)
        with sent("the model, a statistic or a metric"):
            self._actors[number] = self._start()
        return number

    def share(self, value: object) -> object:
        with sent("a text"):
            return self._ray.put(value)

    def call(self, actor: Hashable, method: str, *arguments: object) -> Hashable:
        with sent("a text, or what was learned from the texts,"):
            return getattr(self._actors[actor], method).remote(*arguments)  # type: ignore[index]

    def first_done(self, calls: Sequence[Hashable], seconds: float) -> Hashable | None:
        done, _ = self._ray.wait([*calls], num_returns=1, timeout=seconds)
        return done[0] if done else None

    def result(self, call: Hashable) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(call)
        # Not RayActorError alone: OutOfMemoryError, ObjectLostError and RayTaskError do not derive from it. One that
        # may be the network's (ActorUnavailableError) is made certain: the driver ends the actor.
        except exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            memory = isinstance(cause, exceptions.OutOfMemoryError) or is_out_of_memory(cause)
            raise ActorLost(f"{type(cause).__name__}: {first_line(cause, REASON_CHARACTERS)}", memory) from error

    def kill(self, actor: Hashable) -> None:
        self._ray.kill(self._actors.pop(actor))  # type: ignore[arg-type]


@shows_progress("measuring")
def measure(
    model: str | Path | Loading | LoadedModel | Callable[[], LoadedModel],
    texts: Any,
    statistics: Wanted = "default",
    *,
    text: str = "text",
    name: str | None = None,
    long: Long = "windows",
    sinks: Sinks | None = None,
    kinds: bool = False,
    survey: str | Iterable[str | Document] | Corpus | None = None,
    reading: str = "texts",
    resume: str | Path | None = None,
    progress: ShowProgress = None,
    engine: Engine | None = None,
) -> HeadSums:
    """The sums of every head over a corpus, measured by Ray; this process needs neither model nor accelerator.

    - model: what `mh.load` takes, `lm.loading`, a loaded model, or a function that each actor calls.
    - texts: what `mh.measure` takes; of a dataset's rows the column `text` has the texts, and `name` their names.
    - statistics, long, sinks, kinds, resume, progress: as in `mh.measure`; survey, reading: as in `mh.HeadSums`.
    - engine: None: this machine's cores.

    Errors: as of `mh.measure`; EngineError where Ray is missing, does not answer or has no room.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    request = partial(RunRequest, statistics=by_value(statistics), long=long, sinks=sinks, kinds=kinds, reading=reading)
    if isinstance(model, LoadedModel):
        loading: Callable[[], LoadedModel] | LoadedModel = model.loading or model
    else:
        loading = model if callable(model) else Loading(os.fspath(model))
    by_column = (text, name) != ("text", None)
    corpus = corpus_of_rows(texts, text, name) if by_column else as_corpus(texts)
    of_survey = None if survey is None else as_corpus(survey)
    folder = None if resume is None else Path(resume)
    return HeadSums.of_run((engine or Engine()).run_over(corpus, loading, request, of_survey, folder, progress))


def imported() -> ModuleType:
    """Ray. Errors: EngineError names the extra."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise EngineError('this needs Ray: pip install "manyheads[ray]"') from error
