"""What tests of models share: models to load, with what they need beside them, and a hub that cannot be reached."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.modules import module as torch_module

from manyheads.models import LoadedModel
from tests.models.eager import MAKERS, draw
from tests.models.tiny import TEXT, save_tiny, tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_tokenizer

BUILDERS = {"bert": tiny_bert, "gpt2": tiny_gpt2, "llama": tiny_llama, "gemma2": tiny_gemma2}
QUERY = "encoder.layer.1.attention.self.query.weight"
original = F.scaled_dot_product_attention


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


# ------------------------------------------------------------------------------------------- folders and the hub


def answer_hub(monkeypatch, answer):
    """Let the hub answer a question about a model: with an exception, or with what it says of the model."""

    def model_info(self, name, *, revision=None, timeout=None):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)


def change_weights(folder: Path, change) -> None:
    """Rewrite the weights in `folder` as `change(weights)` leaves or returns them."""
    weights = load_file(folder / "model.safetensors")
    weights = change(weights) or weights
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder: Path, **changes) -> None:
    """Rewrite config.json with these fields; None takes a field away."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def outputs(lm: LoadedModel | nn.Module, tokenizer=None) -> torch.Tensor:
    model, tokenizer = (lm.model, lm.tokenizer) if isinstance(lm, LoadedModel) else (lm, tokenizer)
    with torch.no_grad():
        return model(**tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False))[0]
