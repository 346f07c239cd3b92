"""Verbs by an engine's processes: the numbers of one process to the last bit, whatever dies, and each item once.

The engine is of functions (`fake_cluster`), whose requests are pickled, as between processes; `test_ray` has Ray's own.
"""

import pickle
import random
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.corpora import as_corpus, corpus_of_rows
from manyheads.errors import EngineError, StatisticError, TextError
from manyheads.inputs import Inputs
from manyheads.interventions.effects import importance as of_heads
from manyheads.lab import design
from manyheads.measurement.corpus_run import ItemDriver, RunRequest, chunks, driver
from manyheads.measurement.corpus_run.actor import Actor
from manyheads.measurement.corpus_run.driver import Driver
from manyheads.measurement.corpus_run.items import ItemActor
from tests.measurement.corpus_runs import CHUNK, assert_same_tables, some_texts, tiny_lm
from tests.measurement.fake_cluster import Chance, FakeCluster
from tests.models.tiny import tiny_llama, tiny_tokenizer
from tests.refusals import refuses

SMALL = 120  # tokens of a batch, so that some texts make some batches


@dataclass
class FakeEngine:
    """An engine of three actors, some of which die at any call."""

    lm: mh.models.LoadedModel
    dies: float = 0.2
    every: float = 0.3
    ran: list[Driver] = field(default_factory=list)

    def room(self, corpus):
        return 3

    def run(self, what, corpus, *, resume=None, progress=None):
        statistics = pickle.loads(pickle.dumps(what.statistics))
        request = partial(RunRequest, statistics=statistics, sinks=what.sinks, kinds=what.kinds)
        kind = partial(Driver, survey=what.survey, chosen=what.chosen)
        return self._run(kind, partial(Actor, lambda: self.lm, request), corpus, resume, progress)

    def run_items(self, items, *, resume=None, progress=None):
        sent = pickle.loads(pickle.dumps(items.of()))
        return self._run(ItemDriver, partial(ItemActor, lambda: self.lm, sent), items.catalogue, resume, progress)

    def _run(self, kind, actor, corpus, resume, progress):
        cluster = FakeCluster(actor, random.Random(5), Chance(dies=self.dies))
        how = {"every": self.every, "deaths": 10**6, "progress": progress}
        made = kind(cluster, corpus, 3, folder=resume, clock=cluster.clock, sleep=cluster.sleep, **how)
        self.ran.append(made)
        return made.run()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setattr(driver.log, "disabled", True)  # a line for each death
    for name in ("measurement.corpus_run.chunks", "measurement.corpus_run.items"):
        monkeypatch.setattr(f"manyheads.{name}.code_digest", lambda further=(): "the code")


@pytest.fixture(scope="module")
def lm():
    return tiny_lm()


@pytest.fixture(scope="module")
def decoder():
    return mh.load(tiny_llama(num_hidden_layers=1), tokenizer=tiny_tokenizer(special_tokens=False))


def assert_same_importance(got, want):
    np.testing.assert_array_equal(got.per_text, want.per_text)
    assert (got.estimator, got.metric, got.notes) == (want.estimator, want.metric, want.notes)


@pytest.mark.parametrize(
    "how",
    [
        {"estimator": "ablation"},
        {"estimator": "ablation", "kind": "mean"},  # of all texts, and not of each batch's own
        {"estimator": "gradient"},  # of a flat metric: in directions drawn batch by batch
    ],
    ids=["zero", "mean", "gradient"],
)
def test_importance_by_actors_that_die_is_that_of_one_process(how, lm, monkeypatch):
    monkeypatch.setattr(of_heads, "GRADIENT_TOKENS", SMALL // 4)
    texts, engine, seen = some_texts(19), FakeEngine(lm), []
    want = mh.importance(lm, texts, num_tokens=SMALL, **how)
    got = mh.importance(lm, texts, num_tokens=SMALL, **how, engine=engine, progress=lambda *at: seen.append(at))
    assert_same_importance(got, want)
    (run,) = engine.ran
    count = run.corpus.total
    assert count > 5 and run.events["lost"] and seen == sorted(seen) and seen[-1] == (count, count)


def test_patches_by_actors_that_die_are_those_of_one_process(decoder):
    clean = [f"{text} the cat sat" for text in some_texts(9)]
    pairs = (clean, [text.replace("the cat sat", "a dog ran") for text in clean])
    how = {"metric": "kl", "controls": 3, "seed": 7, "num_tokens": SMALL}
    for more in ({}, {"estimator": "gradient", "positions": [-1]}):
        engine = FakeEngine(decoder)
        want, got = mh.patch(decoder, *pairs, **how, **more), mh.patch(decoder, *pairs, **how, **more, engine=engine)
        np.testing.assert_array_equal(got.per_text, want.per_text)
        assert (got.control, got.notes) == (want.control, want.notes)
        assert engine.ran[0].corpus.total > 3 and engine.ran[0].events["lost"]


def test_split_by_actors_that_die_is_that_of_one_process(decoder):
    rows = [
        torch.randint(3, 20, (size,), generator=torch.Generator().manual_seed(size)).tolist()
        for size in (17, 23, 19, 21)
    ]
    how = {"sink": 2, "recent": 3, "needles": 1, "num_tokens": SMALL, "random": 1, "shares": 1}
    engine = FakeEngine(decoder)
    want = mh.split_heads(decoder, rows, **how)
    got = mh.split_heads(decoder, rows, **how, engine=engine)
    assert got.layers == want.layers and got.notes == want.notes and repr(got.evidence) == repr(want.evidence)
    assert len(engine.ran) == 2 and any(run.events["lost"] for run in engine.ran)


@pytest.mark.slow
def test_roles_by_actors_that_die_are_those_of_one_process_with_examples(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 2 * CHUNK)
    heads, tokenizer = [[design.previous(), design.first()]], tiny_tokenizer(special_tokens=False)
    lm = design.build(heads, causal=True, max_positions=60, tokenizer=tokenizer)
    texts, told = some_texts(61), []
    how = {"elsewhere": some_texts(11, seed=5), "examples": 2, "on_questions": lambda asked: told.append(asked)}
    want = mh.find_roles(lm, as_corpus(iter(texts)), **how)
    engine = FakeEngine(lm, dies=0.1)
    got = mh.find_roles(lm, iter(texts), **how, engine=engine)
    assert told[0] == told[1] and len(told) == 2
    for one, two in zip(got.tables, want.tables, strict=True):
        assert_same_tables(one, two, within=1e-9)  # parts are added in another order
    assert [(label.head, label.name) for label in got] == [(label.head, label.name) for label in want]
    # Which texts, and which links: of scores that are equal up to rounding, since they are measured once more.
    assert got.examples.keys() == want.examples.keys() and want.examples
    for key, examples in want.examples.items():
        assert [example.text for example in got.examples[key]] == [example.text for example in examples]
        assert [example.links for example in got.examples[key]] == [example.links for example in examples]
        close = [example.score for example in got.examples[key]]
        np.testing.assert_allclose(close, [example.score for example in examples], atol=1e-5)


def test_items_in_a_folder_are_gone_on_with_by_an_engine_and_by_one_process(lm, tmp_path):
    texts, how = some_texts(19), {"num_tokens": SMALL}
    want = mh.importance(lm, texts, **how)

    class Killed(KeyboardInterrupt):
        pass

    def killing(done, total):
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        mh.importance(lm, texts, **how, resume=tmp_path, progress=killing)
    counted = []
    real = of_heads._Batches.result
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_heads._Batches, "result", lambda self, number: counted.append(number) or real(self, number))
        got = mh.importance(lm, texts, **how, resume=tmp_path, engine=FakeEngine(lm, dies=0.0))
        assert_same_importance(got, want)
        assert min(counted) >= 2 and len(counted) == len({*counted}) and counted
        counted.clear()
        assert_same_importance(mh.importance(lm, texts, **how, resume=tmp_path), want)
        assert not counted
    message = "was begun with other inputs: what is computed"
    refuses(StatisticError, message, mh.importance, lm, texts[1:], **how, resume=tmp_path)
    refuses(StatisticError, message, mh.importance, lm, texts, "ablation", kind="first", **how, resume=tmp_path)


def test_request_that_no_process_can_serve_is_refused_as_by_one(lm):
    none = of_heads._NoGradient("no way", "'loss', or ")
    again = pickle.loads(pickle.dumps(none))
    assert (str(again), again.fault) == (str(none), "no way")

    def counting(outputs, inputs):
        return torch.ones(len(inputs["input_ids"]))

    engine = FakeEngine(lm)
    message = "does not depend on the heads by anything that has a derivative"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickle, "dumps", lambda value: value)  # a function of a test, which cloudpickle takes
        patch.setattr(pickle, "loads", lambda value: value)
        refuses(StatisticError, message, mh.importance, lm, ["the cat"], "gradient", metric=counting, engine=engine)


def test_engine_that_is_none_is_refused_by_each_verb(lm):
    for verb in (mh.find_roles, mh.importance):
        refuses(EngineError, "there is no engine 'spark': give 'ray', or an Engine", verb, lm, ["a b"], engine="spark")


def test_texts_of_an_item_are_named(lm):
    items = of_heads._Batches(lm, Inputs(some_texts(4)), "auto", "ablation", "zero", None, "example", SMALL)
    names = [document.name for document in items.catalogue.open()]
    assert names[0].startswith("batch 0 (text ") and items.catalogue.origin == f"{len(names)} batches"


# ------------------------------------------------------------------------------------------------- rows, and progress


class Rows(list):
    """A dataset of another library, as far as texts are read from it."""

    _fingerprint = "f1"


Rows.__module__ = "datasets.arrow_dataset"


def test_rows_of_a_dataset_are_texts_that_can_be_read_again():
    rows = Rows([{"text": "the cat", "id": 7}, {"text": None, "id": 8}, {"text": "a dog", "id": 9}])
    corpus = as_corpus(rows)
    assert [document.text for document in corpus.open()] == ["the cat", "", "a dog"] and corpus.total == 3
    assert [document.name for document in corpus_of_rows(rows, name="id").open()] == ["7", "8", "9"]
    assert [*corpus.open()][1].problem == "it is of type NoneType, not a text"
    assert corpus.key and corpus.key != corpus_of_rows(rows, name="id").key
    refuses(
        TextError, "'words' is not a column of the dataset: it has text, id", list, corpus_of_rows(rows, "words").open()
    )
    refuses(TextError, "a list has no columns", corpus_of_rows, ["the cat"], "words")


def test_progress_that_takes_a_note_is_told_who_is_at_work(lm, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", CHUNK)
    notes = []
    engine = FakeEngine(lm, dies=0.2, every=1e3)
    mh.measure(lm, some_texts(61), ["entropy"], engine=engine, progress=lambda done, total, note="": notes.append(note))
    assert engine.ran[0].events["again"]
    assert any(" at work, " in note and "not handed over yet" in note for note in notes)
    assert any("measured again" in note for note in notes)
