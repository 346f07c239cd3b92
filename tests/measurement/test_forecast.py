"""A forecast is what the run then takes, and names what would refuse it, without measuring the corpus.

Oracle: time that passes by the cells of each batch, for the forecast and for the run that it is about.
"""

from dataclasses import dataclass
from itertools import pairwise

import pytest

import manyheads as mh
from manyheads.corpora import as_corpus
from manyheads.errors import EngineError, StatisticError, TextError
from manyheads.measurement.corpus_run import chunks, driver, dry_run, forecast, require_possible, store, worker
from manyheads.measurement.corpus_run.dry_run import duration
from tests.measurement.corpus_runs import patch_few_texts, some_texts, tiny_lm
from tests.measurement.fake_cluster import FakeActor, FakeCluster
from tests.refusals import refuses

NAMES = ["entropy", "previous_mass", "sink_mass"]


@pytest.fixture
def seconds(monkeypatch):
    """Time in which nothing passes but the cells of what is measured, a second each."""
    patch_few_texts(monkeypatch)
    monkeypatch.setattr(chunks, "code_digest", lambda: "the code")
    passed, real = [0.0], worker.sums_of

    def sums_of(run, batches, *rest, **options):
        passed[0] += sum(batch.inputs["input_ids"].numel() for batch in batches)
        return real(run, batches, *rest, **options)

    monkeypatch.setattr(worker, "sums_of", sums_of)
    return passed


def told(lm, texts, seconds, **how):
    return forecast(lm, texts, NAMES, clock=lambda: seconds[0], **how)


def test_forecast_of_texts_that_were_seen_whole_is_the_run(seconds):
    lm, texts = tiny_lm(), [*some_texts(47), " "]
    before = told(lm, texts, seconds)
    seconds[0] = 0.0
    sums = mh.HeadSums(lm, NAMES, survey=texts).update(iter(texts))
    assert before.seconds == pytest.approx(seconds[0]) and before.survey_seconds == 0
    assert (before.texts, before.tokens, before.counted) == (48, sums.table().sums.num_tokens, True)
    assert before.sums_bytes == pytest.approx(len(store.packed(sums._total.tensors(), {})), rel=0.01)
    assert before.refused == () and before.remarks == (
        "1 text could not be measured: text 47: the text is empty: give at least one word",
    )
    assert before.memory_bytes is None or before.memory_bytes > 50e6
    require_possible(before)
    assert repr(before).startswith(f"Forecast({lm.name} over {before.tokens:,} tokens of 48 texts: about ")
    rows, plain = dict(before.rows()), before.to_dict()
    assert rows["texts"] == "48" and "tokens a second on cpu" in rows["time"] and plain["tokens"] == before.tokens
    assert "<table" in before._repr_html_()


@pytest.mark.slow
def test_forecast_of_a_part_that_was_seen_is_in_proportion(seconds, monkeypatch):
    monkeypatch.setattr(chunks, "SURVEY_TOKENS", 60)
    lm, texts = tiny_lm(), some_texts(120)
    before = told(lm, texts, seconds)
    seconds[0] = 0.0
    tokens = mh.HeadSums(lm, NAMES, survey=texts).update(iter(texts)).table().sums.num_tokens
    assert before.seen_tokens < tokens / 2 and before.texts == 120
    assert before.tokens == pytest.approx(tokens, rel=0.1) and before.seconds == pytest.approx(seconds[0], rel=0.2)


@dataclass(frozen=True)
class Some:
    """An engine of so many processes, or of none."""

    count: int
    every: float = 30.0

    def room(self, corpus):
        if not self.count:
            raise EngineError("no machine of the cluster has room")
        return self.count

    def run(self, what, corpus, *, resume=None, progress=None):
        raise AssertionError("a dry run measures nothing by an engine")

    run_items = run


def test_forecast_for_an_engine_says_its_traffic_and_what_refuses_it(seconds, monkeypatch, tmp_path):
    lm, texts = tiny_lm(), some_texts(30)
    alone, four = told(lm, texts, seconds), told(lm, texts, seconds, engine=Some(4))
    assert (four.processes, four.seconds) == (4, pytest.approx(alone.seconds / 4))
    assert (four.every, four.traffic) == (30.0, pytest.approx(4 * four.sums_bytes / 30))
    monkeypatch.setattr(dry_run, "TRAFFIC", four.sums_bytes / 10)
    slow = told(lm, texts, seconds, engine=Some(4))
    assert slow.every == pytest.approx(40) and slow.traffic == pytest.approx(four.sums_bytes / 10)
    mh.measure(lm, some_texts(9), NAMES, resume=tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    never = told(lm, texts, seconds, engine=Some(0), resume=tmp_path)
    assert never.refused[0] == "no machine of the cluster has room"
    assert "was begun with other inputs: texts (" in never.refused[1] and len(never.refused) == 2
    refuses(StatisticError, "has room .*was begun with other inputs", require_possible, never)
    assert sorted(path.name for path in tmp_path.iterdir()) == left, "a dry run writes nothing"
    refuses(TextError, "a dry run reads texts that the run reads again", told, lm, iter(texts), seconds)
    refuses(TextError, "no text was given", told, lm, [], seconds)


def test_duration_is_said_as_people_say_it():
    assert [duration(x) for x in (0.041, 3.25, 61.0, 130.0, 7_200.0, 200_000.0)] == [
        "0.041 s", "3.2 s", "61 s", "2.17 min", "2 h", "2.31 days",
    ]  # fmt: skip


def test_parts_are_handed_over_at_a_rate_that_the_driver_takes_in_and_not_all_at_once():
    cluster = FakeCluster(FakeActor)
    run = driver.Driver(cluster, as_corpus(["1"]), 8, every=30.0)
    run._held = {actor: {} for actor in range(8)}
    assert run._age == run._age_of(0) == 30.0
    run._part_bytes = 10 * driver.TRAFFIC  # ten seconds each
    run._first_share = {actor: (actor + 1) * driver.SPREAD_SHARES % 1 for actor in range(8)}
    assert run._age == 80.0
    ages = sorted(run._age_of(actor) for actor in range(8))
    assert all(4 < later - before < 18 for before, later in pairwise(ages)) and ages[-1] < 80
    assert run._age_of("one that has handed over") == 80.0
