"""The one loop of every measurement: each batch is run once, and read while its layers' tensors are there.

Texts in memory, pictures and sounds, chunks of a corpus and a single call all come here, as batches of a model's
inputs and a way to run them. Sinks that are not known yet are found in the same pass (`SinkSearch`), where what
statistics of sinks need of all batches is small enough to be kept until the last one has been read; else on a few of
the texts before (`find_sinks`).
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from manyheads.inputs import Batch, Reading, forward
from manyheads.measurement.sinks import SinkSearch, probed
from manyheads.models import LoadedModel
from manyheads.models.taps import Observer, Tap
from manyheads.statistics import Statistic, named
from manyheads.statistics.sums import BatchReader, BatchSums, requests_of
from manyheads.texts import Sinks

KEPT_NUMBERS = 1 << 25  # of float32, 128 MB: so many are kept of layers until the sinks are known ...
READ_TWICE = 0.25  # ... and more, where finding sinks before would read more than this share of all tokens once more

Run = Callable[[Batch, Observer], Tap]
"""One forward pass over a batch, which shows each call of an attention layer to the observer."""


def sums_of(
    run: Run,
    batches: Iterable[Batch],
    statistics: tuple[Statistic, ...],
    *,
    sinks: Sinks | SinkSearch,
    kinds: bool = False,
) -> Iterator[BatchSums]:
    """What each batch adds to the sums of the statistics, in the order of the batches.

    `sinks`: a search finds them in the same pass; then nothing is returned before the last batch has been read, since
    statistics of sinks are finished with what it has found. `kinds`: also what each kind of token receives.
    Cost: one forward pass, and one pass over the tiles of each layer. Errors: StatisticError, ModelError, GuardError.
    """
    search = sinks if isinstance(sinks, SinkSearch) else None
    waiting: list[tuple[BatchReader, Tap]] = []
    for batch in batches:
        batch = batch if isinstance(sinks, SinkSearch) else batch.with_sinks(sinks)
        seen = None if search is None else partial(search.add, batch.places)
        reader = BatchReader(batch, statistics, seen, with_kinds=kinds, seeds=batch.seeds)
        tap = run(batch, reader.observe)
        if search is None:
            yield reader.finish(tap)
        else:
            reader.wait()
            waiting.append((reader, tap))
    for reader, tap in waiting:
        assert search is not None
        yield reader.finish(tap, search.sinks)


def by_model(lm: LoadedModel) -> Run:
    """One forward pass of a loaded model."""
    return lambda batch, observer: forward(lm, batch, observer).tap


# --------------------------------------------------------------------------------------------------------------- sinks


def find_sinks(reading: Reading) -> Sinks:
    """The sinks of a loaded model on some texts. Cost: one forward pass over those of them that are probed."""
    probes = Reading(reading.lm, tuple(reading.pieces[place] for place in probed(reading.pieces)))
    search = SinkSearch.of(probes)
    for _ in sums_of(by_model(reading.lm), probes.batches(), (), sinks=search):
        pass
    return search.sinks


def sinks_or_search(reading: Reading, statistics: Sequence[Statistic]) -> Sinks | SinkSearch:
    """How a reading comes by its sinks: none where nothing asks for them, a search in the same pass, or found before.

    They are found before where much would be kept (`KEPT_NUMBERS`, `READ_TWICE`): of few texts that is less than what a
    model itself holds of them. And they are with a statistic of the caller's own, which may read `tokens.sink` in its
    requests.
    """
    of_sinks = [statistic for statistic in statistics if "sinks" in statistic.asks]
    if not of_sinks:
        return Sinks()
    if all(named(statistic.name) is statistic for statistic in statistics):
        arrays = len(set(requests_of(of_sinks, reading.tokens([0]))))
        arrays += any("values" in statistic.asks for statistic in of_sinks)
        numbers = arrays * sum(site.num_heads for site in reading.lm.spec.sites) * reading.num_tokens
        again = sum(len(reading.pieces[place].ids) for place in probed(reading.pieces))
        if numbers <= KEPT_NUMBERS or again > READ_TWICE * reading.num_tokens:
            return SinkSearch.of(reading)
    return find_sinks(reading)
