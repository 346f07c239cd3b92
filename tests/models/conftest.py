"""What tests of models share: models to load, with what they need beside them, and a hub that cannot be reached."""

from pathlib import Path

import pytest
import torch.nn.functional as F
from torch.nn.modules import module as torch_module

import manyheads as mh
from tests.models.eager import MAKERS, draw
from tests.models.folders import answer_hub
from tests.models.tiny import save_tiny, tiny_bert, tiny_tokenizer

original = F.scaled_dot_product_attention


@pytest.fixture
def loaded(request, fresh):
    """`loaded("llama")`: a model with fresh weights and a tokenizer, or minilm."""

    def make(name, **how):
        if name == "minilm":
            return request.getfixturevalue("minilm")
        tokenizer = tiny_tokenizer(special_tokens=name == "bert")
        return mh.load(MAKERS[name](seed=draw(fresh), **how), tokenizer=tokenizer)

    return make


@pytest.fixture
def made(request, fresh):
    """`made("llama")`: a model with fresh weights, or minilm."""

    def make(name):
        if name == "minilm":
            return request.getfixturevalue("minilm").model
        return MAKERS[name](seed=draw(fresh))

    return make


@pytest.fixture
def bert(tmp_path) -> Path:
    """A folder with a whole tiny BERT and its tokenizer."""
    return save_tiny(tiny_bert(), tmp_path / "bert", tiny_tokenizer())


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty hub cache, and a hub that cannot be reached: no test here asks the network."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    answer_hub(monkeypatch, ConnectionError("Name or service not known"))
    return cache


@pytest.fixture
def nothing_is_left_behind():
    yield
    assert F.scaled_dot_product_attention is original
    assert not torch_module._global_forward_pre_hooks and not torch_module._global_forward_hooks


# ---------------------------------------------------------------------------------------------- pictures and sounds
# Their modules are many: whoever tests texts alone does not wait for them.


@pytest.fixture
def seeing(fresh, tmp_path):
    """`seeing("vit")`: saved to a folder with its processor, and loaded from there."""
    from tests.models.tiny_media import PICTURES, saved

    def make(name):
        model, processor = PICTURES[name]
        return mh.load(saved(tmp_path / name, model(draw(fresh)), processor()))

    return make


@pytest.fixture
def whisper(fresh, tmp_path):
    from tests.models.tiny_media import saved, spectra, tiny_whisper

    def make(tokenizer=None, **config):
        folder = saved(tmp_path / "whisper", tiny_whisper(draw(fresh), **config), spectra())
        return mh.load(folder, tokenizer=tokenizer)

    return make


@pytest.fixture
def wav2vec2(fresh, tmp_path):
    from tests.models.tiny_media import saved, tiny_wav2vec2, waves

    def make(mask=True, **config):
        return mh.load(saved(tmp_path / "wav2vec2", tiny_wav2vec2(draw(fresh), **config), waves(mask)))

    return make
