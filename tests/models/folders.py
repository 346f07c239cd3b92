"""A folder with a model in it, its weights and its config rewritten; and what the hub answers when it is asked."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from manyheads.models import LoadedModel
from tests.models.tiny import TEXT, tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama

BUILDERS = {"bert": tiny_bert, "gpt2": tiny_gpt2, "llama": tiny_llama, "gemma2": tiny_gemma2}
QUERY = "encoder.layer.1.attention.self.query.weight"


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
