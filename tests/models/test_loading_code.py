"""Pickles beside a model are never opened, and code beside it runs only when the user says so.

No test here asks the network.
"""

import json
import pickle
import shlex
import sys
from pathlib import Path

import pytest
import torch

from manyheads.errors import ModelError
from manyheads.models import load, quietly
from tests.models.folders import QUERY, change_config, outputs
from tests.models.tiny import save_tiny, tiny_gpt2, tiny_tokenizer


class Payload:
    """A pickle of this makes `path` when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "last.ckpt"])
def test_a_pickle_is_refused_by_name_and_never_opened(bert, tmp_path, name):
    (bert / "model.safetensors").unlink()
    (bert / name).write_bytes(pickle.dumps(Payload(tmp_path / "opened")))
    with pytest.raises(ModelError, match=rf"weights of .*bert are pickled \({name}\).*\n  python -c "):
        load(bert)
    with pytest.raises(ModelError, match=rf"weights of .*{name} are pickled"):
        load(bert / name)
    (bert / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {QUERY: name}}))
    with pytest.raises(ModelError, match=rf"are pickled \({name}\)"):
        load(bert)
    change_config(bert, transformers_weights=name)
    with pytest.raises(ModelError, match=rf"are pickled \({name}\)"):
        load(bert)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt"])
def test_the_line_for_a_pickle_makes_a_folder_that_loads(tmp_path, name):
    model, tokenizer = tiny_gpt2(), tiny_tokenizer()
    folder = save_tiny(model, tmp_path / "it's here", tokenizer)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / name)
    with pytest.raises(ModelError) as refusal:
        load(folder)
    command = shlex.split(str(refusal.value).splitlines()[-1])
    assert command[:2] == ["python", "-c"]
    with quietly():
        exec(command[2], {})
    assert torch.equal(outputs(load(folder)), outputs(model, tokenizer))


def test_a_config_cannot_put_code_into_the_line_for_a_pickle(bert):
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    change_config(bert, architectures=["A as M; import os; os.remove('x')"])
    with pytest.raises(ModelError, match="from transformers import AutoModel as M; ") as refusal:
        load(bert)
    assert "os.remove" not in str(refusal.value)


def test_what_training_leaves_behind_is_not_taken_for_weights(bert):
    (bert / "model.safetensors").rename(bert / "optimizer.pt")
    with pytest.raises(ModelError, match="has no weights"):
        load(bert)


def test_code_beside_a_model_runs_only_when_the_user_says_so(bert, tmp_path, monkeypatch):
    (bert / "modeling_own.py").write_text(
        "import warnings\nfrom pathlib import Path\nfrom transformers import BertModel\n"
        "warnings.warn('this is an error under pytest, and chatter elsewhere')\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
        "class OwnModel(BertModel):\n    pass\n"
    )
    change_config(bert, architectures=["OwnModel"], auto_map={"AutoModel": "modeling_own.OwnModel"})
    with pytest.raises(
        ModelError, match="is a OwnModel, which transformers does not have.*pass trust_remote_code=True"
    ):
        load(bert)
    assert not (tmp_path / "ran").exists()
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    lm = load(bert, trust_remote_code=True)
    assert (tmp_path / "ran").exists()
    assert type(lm.model).__name__ == "OwnModel"
    assert "OwnModel, from its own code, as trust_remote_code=True allows" in lm.because


def test_attention_code_from_the_hub_is_refused_when_a_config_asks_for_it(bert):
    change_config(bert, attn_implementation="somebody/kernel")
    with pytest.raises(
        ModelError, match="asks for attention code from the hub, 'somebody/kernel'.*trust_remote_code=True"
    ):
        load(bert)
