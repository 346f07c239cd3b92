"""Corpora on Ray: without it, one line names the extra; with it, the numbers of one process, whatever dies.

What the driver does is tried in `test_driver`, hundreds of times. Here are Ray's own processes, as few as will do.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import manyheads as mh
from manyheads import ray as on_ray
from manyheads.corpora import as_corpus, corpus_of_rows
from manyheads.errors import EngineError, LostProcessError, StatisticError, TextError
from manyheads.machine import ALONE
from manyheads.measurement.corpus_run import chunks
from manyheads.models import Loading
from manyheads.private_names import ray_on_loopback
from manyheads.ray import NO_RETRIES, Engine
from manyheads.statistics.defined import class_mass
from tests.measurement.corpus_runs import STATISTICS, Stopped, assert_near, assert_same_tables, stopping_after
from tests.models.tiny import WORDS, tiny_bert, tiny_tokenizer
from tests.refusals import refuses

NAMES = [name for name in STATISTICS if isinstance(name, str)]


# ------------------------------------------------------------------------------------------------------- without Ray


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # an import of it fails


@pytest.fixture
def lm():
    return mh.load(tiny_bert(num_hidden_layers=1), tokenizer=tiny_tokenizer())


def test_without_ray_one_line_names_the_extra(no_ray, lm):
    message = r'^this needs Ray: pip install "manyheads\[ray\]"$'
    refuses(EngineError, message, mh.measure, lm, ["the cat"], engine="ray")
    refuses(EngineError, message, mh.measure, lm, ["the cat"], engine=Engine(actors=3))
    refuses(EngineError, message, on_ray.measure, "minilm", ["the cat"])


@pytest.mark.slow  # another process
def test_import_of_manyheads_and_of_its_engine_brings_no_ray():
    program = "import sys, manyheads.ray; manyheads.ray.Engine(); print('ray' in sys.modules)"
    path = os.pathsep.join([str(Path(mh.__file__).parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout == "False\n", done.stderr


def test_engine_that_is_none_and_one_that_cannot_be_used_here_is_refused(lm):
    refuses(EngineError, "there is no engine 'spark': give 'ray', or an Engine", mh.measure, lm, ["a"], engine="spark")
    for name, value in {"actors": 0, "cpus": 0, "ahead": 0, "deaths": 0, "every": -1.0, "patience": 0.0}.items():
        refuses(EngineError, rf"^{name}={value}: give [01] or more", Engine, **{name: value})
    refuses(EngineError, "gpus=1.5: an actor has a part of an accelerator, or whole ones", Engine, gpus=1.5)
    refuses(EngineError, "shard_by='row' is not a way to deal out texts: use one of text, file", Engine, shard_by="row")


def test_address_that_does_not_answer_is_said():
    message = r"no Ray cluster answers at 127\.0\.0\.1:9 \(.*\): is it up \(ray status\)"
    refuses(EngineError, message, Engine._require_answer, "127.0.0.1:9")
    refuses(EngineError, r"at ray://127\.0\.0\.1:9 ", Engine._require_answer, "ray://127.0.0.1:9")


class StartingRay(ModuleType):
    """Ray as far as it is started: what it is told, and where it says that it listens."""

    def __init__(self, listens="127.0.0.1", fails=None, **more):
        super().__init__("ray")
        vars(self).update(more)
        self.util, self.fails, self.told = SimpleNamespace(get_node_ip_address=lambda: listens), fails, []

    def is_initialized(self):
        return False

    def init(self, **how):
        if self.fails:
            raise self.fails
        self.told.append(how)

    def shutdown(self):
        self.told.append("shutdown")


def test_ray_that_is_started_here_is_this_machines_own_and_ends_with_the_run(caplog):
    ray = StartingRay()
    with Engine()._connected(ray):
        assert ray.told[0]["address"] == "local" and ray.told[0]["_node_ip_address"] == "127.0.0.1"
    assert ray.told[1:] == ["shutdown"] and not caplog.messages
    with Engine()._connected(StartingRay("10.0.0.7")):
        assert caplog.messages == ["what this version of Ray starts is reached by other machines, at 10.0.0.7"]


def test_ray_that_does_not_start_is_said_in_one_line():
    for error in (RuntimeError("no memory\nadvice"), Exception("no memory\nadvice")):
        connected = Engine()._connected(StartingRay(fails=error))
        refuses(EngineError, r"^Ray does not start on this machine: no memory\.$", connected.__enter__)
    refused = ConnectionError("it does not answer")
    refused.__cause__ = RuntimeError("RPC error: InvalidAuthToken: Authentication token is missing or incorrect")
    message = r"not answer\. It asks for a token: set RAY_AUTH_MODE=token, and have its token in ~/.ray"
    refuses(EngineError, message, Engine()._connected(StartingRay(fails=refused)).__enter__)


def test_cluster_to_which_this_process_is_connected_is_taken_and_another_address_is_said_to_be_unused(caplog):
    context = SimpleNamespace(gcs_address="10.0.0.7:6379")
    ray = StartingRay(is_initialized=lambda: True, get_runtime_context=lambda: context)
    for address in (None, "auto", "10.0.0.7:6379"):
        with Engine(address)._connected(ray):
            assert not caplog.messages
    with Engine("10.0.0.8:6379")._connected(ray):
        assert caplog.messages == [
            "this process is connected to Ray at 10.0.0.7:6379: address='10.0.0.8:6379' is not used"
        ]


def test_texts_that_are_read_once_are_refused_before_ray_is_started(lm, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # nothing can be asked of it
    message = "resume= needs texts that can be read again, and a stream of texts can be read once only"
    refuses(StatisticError, message, mh.measure, lm, iter(["the cat"]), engine="ray", resume=tmp_path / "run")


def test_what_cannot_be_sent_to_actors_is_refused():
    def put(value):
        reason = TypeError("cannot pickle '_thread.lock' object")
        raise TypeError("Could not serialize all of the texts\nadvice") from reason

    cluster = on_ray.RayCluster(StartingRay(put=put), list)
    refuses(
        EngineError, r"^a text cannot be sent to the engine's processes \(.*lock' object\): give", cluster.share, "x"
    )


def test_engine_says_that_nothing_is_repeated():
    """Rule 1 of "exactly once" is the engine's."""
    assert NO_RETRIES == {"max_restarts": 0, "max_task_retries": 0}


def machines(*sizes):
    return [{"CPU": float(cpus), **({"GPU": float(gpus)} if gpus else {})} for cpus, gpus in sizes]


@pytest.mark.parametrize(
    ("nodes", "engine", "room"),
    [
        ([(3, 0), (5, 0)], Engine(), (8, 0.0)),
        ([(3, 0), (5, 0)], Engine(cpus=2), (3, 0.0)),
        ([(16, 4), (16, 2)], Engine(), (6, 1.0)),
        ([(16, 4), (16, 2)], Engine(gpus=0.5, cpus=2), (12, 0.5)),
        ([(16, 4), (16, 2)], Engine(gpus=0.0, actors=20), (20, 0.0)),
        ([(16, 5), (16, 2)], Engine(gpus=2.0), (3, 2.0)),
    ],
)
def test_number_of_actors_is_what_the_machines_have_room_for(nodes, engine, room):
    assert engine._room(machines(*nodes)) == room


def test_more_than_the_machines_have_is_refused_since_ray_would_wait_for_ever():
    for engine, sizes, message in (
        (Engine(gpus=1.0), [(4, 0)], "no machine of the cluster has room for an actor of 1 cores and 1 accelerators"),
        (Engine(cpus=6), [(4, 0), (5, 0)], "room for an actor of 6 cores: it has 4 cores, 0 accelerators; 5 cores"),
        (Engine(actors=7), [(16, 4), (16, 2)], "actors=7: the cluster has room for 6"),
    ):
        refuses(EngineError, message, engine._room, machines(*sizes))


def test_several_accelerators_an_actor_load_the_model_over_all_of_them(lm):
    """Ray shows an actor its own accelerators alone; no GPU is here, so the call is what is tried."""
    assert on_ray.spread(Loading("minilm", device="cuda")) == Loading("minilm", device="auto")
    assert on_ray.spread(mh.load) is mh.load
    refuses(EngineError, "several accelerators an actor load the model once more, .* is in hand", on_ray.spread, lm)


def test_texts_that_no_actor_could_read_for_itself_are_refused_before_ray(no_ray, lm):
    refuses(TextError, "deals out the files of a corpus, and 1 text has none", Engine(shard_by="file").room,
            as_corpus(["a"]))  # fmt: skip
    refuses(EngineError, "this needs Ray", Engine().room, as_corpus(["a"]))


def test_engine_is_for_texts_and_brings_its_own_processes(lm):
    refuses(StatisticError, "engine= and statistics made", mh.measure, lm, mh.Inputs(ids=[[5, 6, 7]]), engine="ray")
    refuses(StatisticError, "leave out ranks=", mh.measure, lm, ["the cat"], engine="ray", ranks=ALONE)


# ---------------------------------------------------------------------------------------------------------- with Ray


@pytest.fixture(scope="module")
def session():
    """Ray on this machine, for this process alone."""
    ray = pytest.importorskip("ray")
    with ray_on_loopback():
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False,
            logging_level="error", _node_ip_address="127.0.0.1",
        )  # fmt: skip
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models that are loaded from folders: of float32 and of other weights."""
    folder = tmp_path_factory.mktemp("models")
    for seed in range(2):
        tiny_bert(seed=seed, num_hidden_layers=1).save_pretrained(folder / f"{seed}")
        tiny_tokenizer().save_pretrained(folder / f"{seed}")
    return folder


def texts_of(count):
    fresh = np.random.default_rng(7)
    return [" ".join(fresh.choice(WORDS, size)) for size in fresh.integers(1, 21, count)]


def pids():
    """This session's actors: processes of Ray's below this one."""
    out = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            title = (entry / "cmdline").read_bytes().decode(errors="replace")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            above = int((Path("/proc") / str(parent) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if title.startswith(("ray::Actor", "ray::ItemActor")) and os.getpid() in (parent, above):
            out.append(int(entry.name))
    return sorted(out)


def assert_gone():
    """No actor outlives its run; Ray takes a moment to end one."""
    end = time.monotonic() + 20
    while pids() and time.monotonic() < end:
        time.sleep(0.1)
    assert not pids()


@pytest.mark.slow
def test_no_process_of_ray_listens_to_other_machines(session):
    """Whoever reaches a port of Ray can run code, but for the token that newer versions ask for."""
    psutil = pytest.importorskip("psutil")
    addresses = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses and addresses <= {"127.0.0.1", "::1"}


@pytest.mark.slow
def test_one_actor_is_one_process_to_the_last_bit(session, folders, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 15)
    lm, texts = mh.load(folders / "0"), [*texts_of(61), "", "zz " * 600]
    want = mh.measure(lm, iter(texts), NAMES, kinds=True)
    seen = []
    got = mh.measure(lm, texts, NAMES, kinds=True, engine=Engine(actors=1), progress=lambda *where: seen.append(where))
    assert_same_tables(got, want)
    assert got.notes["actors"] == "1" and seen == sorted(seen) and seen[-1] == (63, 63)
    assert {key: value for key, value in got.notes.items() if key not in ("actors", "corpus")} == {
        key: value for key, value in want.notes.items() if key != "corpus"
    }


@pytest.mark.slow
def test_two_actors_one_of_which_is_killed_are_one_process(session, folders, monkeypatch, tmp_path):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 10)
    lm, texts = mh.load(folders / "0", dtype="float64"), texts_of(137)
    want, killed = mh.measure(lm, iter(texts), NAMES, kinds=True), []

    def progress(done, total):
        if done >= 50 and not killed:
            killed.append(pids()[0])
            os.kill(killed[0], signal.SIGKILL)

    sums = on_ray.measure(
        lm.loading, texts, NAMES, kinds=True, engine=Engine(actors=2), progress=progress, resume=tmp_path
    )
    assert killed
    assert_same_tables(sums.table(), want, within=1e-12)
    assert_gone()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["finished.safetensors", "lock", "run.safetensors"]


@pytest.mark.slow
def test_run_that_one_process_began_goes_on_with_ray(session, folders, monkeypatch, tmp_path):
    lm, texts = mh.load(folders / "0"), texts_of(2_300)  # more than one chunk, by the limits that actors have, too
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stopping_after(3, patch)
        mh.measure(lm, texts, ["entropy"], resume=tmp_path)
    got = mh.measure(lm, texts, ["entropy"], resume=tmp_path, engine=Engine(actors=1))
    assert got.notes["resumed"].startswith("gone on with after ")
    assert_near(got, mh.measure(lm, iter(texts), ["entropy"]))
    again = mh.measure(lm, texts, ["entropy"], resume=tmp_path)
    assert again.notes["resumed"].startswith("finished before") and (again["entropy"] == got["entropy"]).all()


@pytest.mark.slow
def test_actors_that_read_their_own_files_come_to_the_shards_by_file(session, folders, tmp_path):
    lm, texts = mh.load(folders / "0", dtype="float64"), texts_of(90)
    for index, begin in enumerate((0, 40, 55)):
        (tmp_path / f"{index}.txt").write_text("\n".join(texts[begin : (40, 55, 90)[index]]))
    corpus = mh.open_corpus(tmp_path, lines=True)
    want = sum(mh.HeadSums(lm, NAMES).update(corpus.shard(index, 3, "file")) for index in range(3))
    engine = Engine(actors=2, shard_by="file")
    assert (engine.room(corpus), Engine(shard_by="file").room(corpus)) == (2, 2)
    got = on_ray.measure(lm.loading, corpus, NAMES, engine=engine)
    assert_same_tables(got.table(), want.table(), within=1e-12)
    assert got.parts == {"0/3": 40, "1/3": 15, "2/3": 35}
    assert_gone()


def other_at_second(folders, mark):
    """Loads the first model in the first process, and another in the next."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return mh.load(folders / "1")
    return mh.load(folders / "0")


def deadly(survey):
    """A statistic that ends whichever process meets a zebra."""
    return ["entropy", class_mass("deadly", ends_with_zebra, "none", source="a test")]


def ends_with_zebra(tokens):
    if any("zebra" in text for text in tokens.texts):
        os._exit(1)
    return tokens.special


@pytest.mark.slow
def test_actor_with_other_weights_is_refused_by_name(session, folders, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 10)
    load = partial(other_at_second, folders, str(tmp_path / "mark"))
    message = r"do not measure alike, they differ in model's weights \(.* in the first, .* in another\)"
    with pytest.raises(StatisticError, match=message):
        on_ray.measure(load, texts_of(20_000), ["entropy"], engine=Engine(actors=2))
    assert_gone()


@pytest.mark.slow
def test_text_that_ends_every_process_is_named(session, folders, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 10)
    texts = texts_of(57)
    texts[33] = "the zebra"
    with pytest.raises(
        LostProcessError, match="2 actors were lost with the same texts, text 30 to text 39 of 57 texts"
    ):
        on_ray.measure(folders / "0", texts, deadly, engine=Engine(actors=1, deaths=2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data copies settings of its own that it will drop
def test_rows_of_a_dataset_are_texts_in_its_order(session, folders, tmp_path, monkeypatch):
    data = pytest.importorskip("ray.data")
    texts = texts_of(41)
    rows = data.from_items([{"sentence": text, "id": f"n{number}"} for number, text in enumerate(texts)])
    rows = rows.repartition(5)
    documents = list(corpus_of_rows(rows, "sentence", "id").open())
    assert [document.text for document in documents] == texts and documents[3].name == "n3"
    assert not rows.context.execution_options.preserve_order, "the dataset's own setting was left changed"
    with pytest.raises(mh.errors.TextError, match="'text' is not a column of the dataset: it has sentence, id"):
        next(corpus_of_rows(rows).open())
    sums = on_ray.measure(folders / "0", rows, ["entropy"], text="sentence", name="id", engine=Engine(actors=1))
    assert sums.num_texts == 41


OF_MAIN = """
from manyheads.statistics import PerText, Statistic

share = 2.0

def halves(facts):
    rows = facts.rows[:, None].double()
    return PerText((facts.layer.lse.double().sigmoid() * rows / share).sum(-1), rows.sum(-1))

own = [Statistic(name="own", unit="share", range=(0.0, 1.0), needs=(), finish=halves)]

def metric(outputs, inputs, weight=(lambda x: x / share)):
    return weight(outputs.last_hidden_state[:, 0, 0].double())
"""


@pytest.mark.slow
def test_functions_of_a_script_reach_the_actors_by_value_and_verbs_are_those_of_one_process(session, folders):
    """One run of statistics, one of items: an actor costs seconds."""
    script = {"__name__": "__main__"}  # no process can import what is defined there
    exec(compile(OF_MAIN, "script", "exec"), script)
    lm, texts, engine = mh.load(folders / "0"), texts_of(23), Engine(actors=1)
    assert_same_tables(mh.measure(lm, texts, script["own"], engine=engine), mh.measure(lm, iter(texts), script["own"]))
    how = {"metric": script["metric"], "kind": "mean", "num_tokens": 200}
    want, got = mh.importance(lm, texts, **how), mh.importance(lm, texts, **how, engine=engine)
    np.testing.assert_array_equal(got.per_text, want.per_text)
    assert got.notes == want.notes and want.per_text.any()
    assert_gone()


@pytest.mark.slow
def test_what_cannot_be_sent_is_said_in_one_line(session, folders):
    lock, lm = threading.Lock(), mh.load(folders / "0")
    message = r"the model, a statistic or a metric cannot be sent to the engine's processes \(.*lock.*\): give what can"
    refuses(EngineError, message, mh.measure, lm, ["a"], lambda survey: [lock], engine=Engine(actors=1))
