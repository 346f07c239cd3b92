"""Loading: from names, folders and the hub to a model in memory, and what is refused on the way."""

import gc
import json
import logging
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import transformers
from torch import nn
from torch.torch_version import TorchVersion

from manyheads import private_names
from manyheads.errors import FileAccessError, ManyHeadsError, ModelError, PlanError
from manyheads.inputs import record
from manyheads.machine import untested_here
from manyheads.machine.versions import NEWEST_TESTED
from manyheads.models import load, quietly
from manyheads.models.describe import max_positions_of
from manyheads.models.loading import load as load_module
from manyheads.models.loading import pretrained
from manyheads.models.loading.load import refusing_head_mask
from tests.models.conftest import BUILDERS, QUERY, answer_hub, change_config, change_weights, outputs
from tests.models.tiny import TEXT, save_tiny, tiny_bert, tiny_gpt2, tiny_llama, tiny_tokenizer
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("hub")

# -------------------------------------------------------------------------------------------------------- a folder


@pytest.mark.parametrize("family", BUILDERS)
def test_a_saved_model_comes_back_with_equal_outputs_in_eval_mode_and_with_its_tokenizer(family, tmp_path):
    model, tokenizer = BUILDERS[family](), tiny_tokenizer()
    # The model's own way to attend: Gemma 2 has no softcap under the sdpa of transformers 5.17 and before.
    attention = model.config._attn_implementation
    lm = load(save_tiny(model, tmp_path / "saved", tokenizer), attn_implementation=attention)
    assert type(lm.model) is type(model)
    assert not lm.model.training
    assert torch.equal(outputs(lm), outputs(model, tokenizer))
    assert lm.tokenizer(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
    assert (lm.name, lm.device, lm.dtype) == ("saved", torch.device("cpu"), torch.float32)


def test_a_language_model_head_is_kept(tmp_path):
    lm = load(save_tiny(tiny_gpt2(), tmp_path / "g", tiny_tokenizer()))
    assert type(lm.model) is transformers.GPT2LMHeadModel
    assert lm.model.lm_head.weight is lm.model.transformer.wte.weight


def test_because_says_class_dtype_device_attention_and_where_it_was_found(bert):
    because = load(str(bert)).because
    for part in ("BertModel, which its config.json names", "float32, as its config.json says",
                 "on cpu, since no accelerator is here", "attention by sdpa, the choice of transformers",
                 f"from the folder {bert}"):  # fmt: skip
        assert part in because
    change_config(bert, dtype=None)
    assert "float32, as it is stored" in load(bert).because
    asked = load(bert, dtype="bf16", device="cpu", attn_implementation="eager")
    assert (asked.dtype, asked.model.config._attn_implementation) == (torch.bfloat16, "eager")
    for part in ("bfloat16, as asked", "on cpu, as asked", "attention by eager, as asked"):
        assert part in asked.because


def test_because_and_provenance_say_where_a_version_is_newer_than_what_was_tested(bert, monkeypatch):
    tested = NEWEST_TESTED["transformers"]
    monkeypatch.setattr(torch, "__version__", TorchVersion(f"{NEWEST_TESTED['torch']}.99"))
    monkeypatch.setattr(transformers, "__version__", f"{tested}.99")
    lm = load(str(bert), tokenizer=tiny_tokenizer())
    assert "newer" not in lm.because + load(tiny_llama()).because and "untested" not in record(lm, TEXT).provenance
    monkeypatch.setattr(transformers, "__version__", "5.99.1")
    sentence = f"transformers 5.99 is newer than what was tested ({tested})"
    lm = load(str(bert), tokenizer=tiny_tokenizer())
    assert sentence in lm.because.split("; ") and sentence in load(tiny_llama()).because.split("; ")
    assert record(lm, TEXT).provenance["untested"] == sentence


@pytest.mark.parametrize(
    ("named", "why"), [(None, "names no architecture"), (["BertOfMine"], "names BertOfMine, which")]
)
def test_without_a_known_architecture_the_bare_model_is_loaded_and_because_says_so(bert, named, why):
    change_config(bert, architectures=named)
    lm = load(bert)
    assert type(lm.model) is transformers.BertModel
    assert f"the bare model without a head, because its config.json {why}" in lm.because


def test_the_tokenizer_neither_pads_nor_truncates_even_where_its_file_says_so(tmp_path):
    tokenizer = tiny_tokenizer(model_max_length=64)
    tokenizer.backend_tokenizer.enable_truncation(12)
    tokenizer.backend_tokenizer.enable_padding(length=12)
    folder = save_tiny(tiny_bert(), tmp_path / "cut")
    tokenizer.save_pretrained(folder)
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"]["max_length"] == 12
    read = load(folder).tokenizer
    backend = read.backend_tokenizer
    assert backend.truncation is backend.padding is None  # before a call resets them
    assert len(read("cat " * 100, verbose=False)["input_ids"]) == len(backend.encode("cat " * 100)) == 102
    assert len(read("cat")["input_ids"]) == len(backend.encode("cat")) == 3


def test_a_tokenizer_in_hand_or_none_is_taken_instead_of_the_one_in_the_folder(bert):
    own = tiny_tokenizer(special_tokens=False)
    assert load(bert, tokenizer=own).tokenizer is own
    assert load(bert, tokenizer=False).tokenizer is None


def test_a_sharded_checkpoint_is_whole_only_with_all_its_shards(bert):
    model = load(bert).model
    (bert / "model.safetensors").unlink()
    model.save_pretrained(bert, max_shard_size="60KB")
    shards = sorted(bert.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert type(load(bert).model) is transformers.BertModel
    shards[0].unlink()
    refuses(ModelError, rf"is incomplete: 1 of {len(shards)} weight files missing: {shards[0].name}", load, bert)
    (bert / "model.safetensors.index.json").write_text("[]")
    refuses(ModelError, "is not an index of weights", load, bert)


# ----------------------------------------------------------------------------------------- folders that will not do


def test_a_folder_without_config_weights_or_tokenizer_says_which(bert, tmp_path):
    shutil.copytree(bert, tmp_path / "no-tokenizer", ignore=shutil.ignore_patterns("tokenizer*"))
    message = r"no-tokenizer has no tokenizer files \(tokenizer\.json, .*: save one there, or pass tokenizer="
    refuses(ModelError, message, load, tmp_path / "no-tokenizer")
    assert load(tmp_path / "no-tokenizer", tokenizer=False).tokenizer is None
    (bert / "model.safetensors").unlink()
    refuses(ModelError, r"has no weights: model.safetensors or .* It holds config.json", load, bert)
    (bert / "config.json").unlink()
    refuses(ModelError, "has no config.json, so its kind of model is unknown. It holds", load, bert)
    (tmp_path / "empty").mkdir()
    refuses(ModelError, "has no config.json.* It is empty", load, tmp_path / "empty")
    (tmp_path / "empty" / "model.bin").mkdir()  # of whatever name, a folder is no file of a model
    refuses(ModelError, r"has no config.json.* It holds model.bin/\.$", load, tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text("{}", encoding="utf-8")
    refuses(ModelError, r"has no weights: .* It holds config.json, model.bin/\.$", load, tmp_path / "empty")


def test_a_damaged_file_is_named(bert):
    (bert / "tokenizer.json").write_text("{")
    refuses(ModelError, "has no usable tokenizer: .* Save one there", load, bert)
    whole = (bert / "model.safetensors").read_bytes()
    (bert / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refuses(ModelError, r"the weights in .*bert are damaged \(.*\)\. Copy or fetch them again", load, bert)
    (bert / "config.json").write_text('{"architectures": ["BertMo')
    refuses(ModelError, r"config.json is not JSON \(.*\): the file is damaged", load, bert)
    (bert / "config.json").write_text("[]")
    refuses(ModelError, "config.json is a list, not a mapping", load, bert)
    (bert / "config.json").write_text('{"architectures": true}')
    refuses(ModelError, r"config.json says architectures=True, which should be a list of names\.", load, bert)


def test_a_config_that_transformers_cannot_build_is_refused_with_its_own_reason(bert):
    change_config(bert, num_attention_heads=7)
    refuses(ModelError, r"transformers cannot load bert as BertModel: .*hidden size", load, bert)
    change_config(bert, architectures=None, model_type="no-such-type")
    refuses(ModelError, r"transformers cannot load bert as AutoModel: .*no-such-type", load, bert)


@pytest.mark.parametrize(("door", "named"), [("iterdir", "bert"), ("read_text", "bert/config.json")])
def test_what_may_not_be_read_is_an_access_error(bert, monkeypatch, door, named):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, door, refuse)
    refuses(FileAccessError, rf"cannot read .*{named}: .*Permission denied.* Check its permissions", load, bert)


# ------------------------------------------------------------------------------------------------- weights that lack


def test_missing_weights_are_an_error_that_names_the_first_few(bert):
    change_config(bert, num_hidden_layers=3)
    refuses(ModelError, r"lacks 16 of the weights of BertModel.* and 12 more", load, bert)
    change_config(bert, num_hidden_layers=2, architectures=["BertForMaskedLM"])
    refuses(ModelError, r"lacks .* of the weights of BertForMaskedLM, .*: cls.predictions", load, bert)
    change_config(bert, architectures=["BertModel"])
    change_weights(bert, lambda weights: {k: v for k, v in weights.items() if ".attention.self.key" not in k})
    with pytest.raises(ModelError, match=r"bert lacks 4 of the weights of BertModel, which would be random numbers: "
                                         r"encoder.layer.0.attention.self.key.bias, .*\. Use a complete"):  # fmt: skip
        load(bert)


def test_a_missing_pooler_is_zero_not_random_and_because_says_so(bert):
    change_weights(bert, lambda weights: {k: v for k, v in weights.items() if not k.startswith("pooler.")})
    first, second = load(bert), load(bert)
    assert "its pooler, which no head depends on, is not stored and set to zero" in first.because
    assert first.weights_hash == second.weights_hash
    assert not first.model.pooler.dense.weight.any()


@pytest.mark.parametrize("cls", ["BertForSequenceClassification", "DebertaV2ForSequenceClassification"])
def test_a_pooler_under_a_classifier_counts(cls, tmp_path):
    sizes = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    cls = getattr(transformers, cls)
    folder = save_tiny(cls(cls.config_class(**sizes, intermediate_size=20)), tmp_path / "classifier")
    change_weights(folder, lambda weights: {k: v for k, v in weights.items() if "pooler." not in k})
    refuses(ModelError, rf"lacks 2 of the weights of {cls.__name__}.*pooler.dense.bias", load, folder, tokenizer=False)


def test_weights_without_a_place_are_named_and_those_of_another_shape_an_error(bert):
    change_weights(bert, lambda weights: weights | {"extra.weight": torch.zeros(2)})
    assert "1 stored weights have no place in BertModel and are left out: extra.weight" in load(bert).because
    change_weights(bert, lambda weights: weights | {QUERY: torch.zeros(40, 32)})
    refuses(ModelError, rf"1 weights do not have the shapes .*: {QUERY} is \[40, 32\], not \[40, 40\]", load, bert)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_weight_that_is_no_number_is_an_error_that_names_the_layer(bert, value, dtype):
    def spoil(weights):
        weights[QUERY][3, 5] = value

    change_weights(bert, spoil)
    refuses(ModelError, rf"bert has NaN or infinite weights \(layer 1\): {re.escape(QUERY)}\.", load, bert, dtype=dtype)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


# ---------------------------------------------------------------------------------------------------- names, the hub


def put_in_cache(hub: Path, name: str, folder: Path) -> Path:
    """Lay `folder` into the hub's cache as the hub's client would have."""
    home = hub / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    return Path(shutil.copytree(folder, home / "snapshots" / COMMIT))


def test_a_model_in_the_hub_cache_loads_without_asking_the_hub(bert, hub):
    put_in_cache(hub, "someone/tiny", bert)
    lm = load("someone/tiny")
    assert lm.name == "someone/tiny"
    assert f"from the local hub cache, commit {COMMIT[:7]}" in lm.because
    assert load("someone/tiny", revision=COMMIT).weights_hash == lm.weights_hash


def test_a_cached_model_without_tokenizer_serves_whoever_needs_none_when_offline(bert, hub):
    for file in put_in_cache(hub, "someone/tiny", bert).glob("tokenizer*"):
        file.unlink()
    assert "not fetched: offline" in load("someone/tiny", tokenizer=False).because
    refuses(ModelError, "has no tokenizer", load, "someone/tiny")


@pytest.mark.parametrize("name", ["minlm", "MiniLM-v2"])
def test_an_unknown_name_offline_says_offline_and_what_is_near(name):
    reached = "not in the local hub cache, and the hub cannot be reached"
    why = rf"{reached}: offline\? \(Name or service not known\)\. Did you mean 'minilm'\?$"
    nowhere = rf"no model '{name}': not bundled \(minilm, smollm2, tiny-code\), not a folder here"
    refuses(ModelError, f"{nowhere}, {why}", load, name)


def test_a_name_near_one_in_the_hub_cache_is_suggested_and_offline_mode_is_said(bert, hub, monkeypatch):
    put_in_cache(hub, "someone/tiny-model", bert)
    refuses(ModelError, "Did you mean 'someone/tiny-model'", load, "someone/tiny-modle")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refuses(ModelError, r"cannot be reached: offline mode is on \(HF_HUB_OFFLINE or", load, "someone/else")


@pytest.mark.parametrize(
    "name", ["", " ", "./nothing", "/no/such/folder", "~/nothing-here", "a b", "x" * 5000, "a/b/c"]
)
def test_a_text_that_can_be_no_hub_id_is_never_looked_up_there(name, monkeypatch):
    answer_hub(monkeypatch, AssertionError("the hub was asked"))
    refuses(ModelError, "no such folder, and not a name that the hub could know.*Bundled: minilm", load, name)


def test_a_path_object_is_a_folder_even_where_it_has_a_bundled_name(bert, monkeypatch):
    monkeypatch.chdir(bert.parent)
    bert.rename("minilm")
    assert load(Path("minilm")).model.config.num_hidden_layers == load("./minilm").model.config.num_hidden_layers == 2
    refuses(ModelError, "no model 'gpt2': no such folder", load, Path("gpt2"))


def test_what_a_folder_does_not_take_is_refused(bert):
    refuses(ModelError, "is a file. Give the folder that it is in", load, bert / "model.safetensors")
    refuses(ModelError, "revision='main' is for models on the hub, and .* is here", load, bert, revision="main")
    refuses(ModelError, "'minilm' is bundled", load, "minilm", revision="main")
    refuses(ModelError, "name='other' is for a model in hand, and .* has a name of its own", load, bert, name="other")
    change_config(bert, attn_implementation="somebody/kernel")
    refuses(ModelError, "asks for attention code from the hub, 'somebody/kernel'.*trust_remote_code=True", load, bert)
    (bert / "adapter_config.json").write_text("{}")
    refuses(ModelError, "holds an adapter, not a whole model. Merge it into its base model first", load, bert)


def http_error(kind: str) -> Exception:
    response = SimpleNamespace(headers={}, request=None, status_code=404)
    return getattr(huggingface_hub.errors, kind)("no", response=response)


@pytest.mark.parametrize(("kind", "words"), [
    ("RepositoryNotFoundError", "no model 'someone/else': not bundled .* and the hub shows you none of that name"),
    ("GatedRepoError", "is open to those who accept its licence: huggingface.co/someone/else"),
    ("RevisionNotFoundError", "the hub's 'someone/else' has no revision='v9'"),
])  # fmt: skip
def test_what_the_hub_answers_is_passed_on(kind, words, monkeypatch):
    answer_hub(monkeypatch, http_error(kind))
    refuses(ModelError, words, load, "someone/else", revision="v9")


def says(*files: str, **config) -> SimpleNamespace:
    """What the hub says of a model with these files."""
    return SimpleNamespace(sha=COMMIT, siblings=[SimpleNamespace(rfilename=file) for file in files], config=config)


@pytest.mark.parametrize(("files", "words"), [
    (["README.md"], "the hub's 'someone/else' has no config.json.* It holds README.md"),
    (["config.json", "onnx/model.safetensors"], "the hub's 'someone/else' has no weights in safetensors"),
    (["config.json", "adapter_config.json"], "the hub's 'someone/else' holds an adapter"),
    (["config.json", "pytorch_model.bin"], r"pickled \(pytorch_model.bin\)(.|\n)*load './else'(.|\n)*import BertModel"),
])  # fmt: skip
def test_a_hub_model_that_will_not_do_is_refused_before_anything_is_fetched(files, words, monkeypatch):
    answer_hub(monkeypatch, says(*files, architectures=["BertModel"]))
    refuses(ModelError, words, load, "someone/else")


@pytest.mark.parametrize("code", [False, True])
def test_from_the_hub_comes_safetensors_and_code_only_when_asked(code, bert, tmp_path, monkeypatch):
    fetched = []

    def snapshot_download(name, *, revision, allow_patterns, ignore_patterns=(), local_files_only=False):
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not there")
        fetched.append((name, revision))
        there = [*(file.name for file in bert.iterdir()), "pytorch_model.bin", "modeling_own.py", "onnx/config.json"]
        chosen = huggingface_hub.utils.filter_repo_objects(
            there, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        assert set(chosen) == {file.name for file in bert.iterdir()} | ({"modeling_own.py"} if code else set())
        return str(shutil.copytree(bert, tmp_path / COMMIT))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    answer_hub(monkeypatch, says(*(file.name for file in bert.iterdir())))
    lm = load("someone/tiny", trust_remote_code=code)
    assert fetched == [("someone/tiny", COMMIT)]
    assert f"from the hub, commit {COMMIT[:7]}" in lm.because


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
    refuses(ModelError, rf"weights of .*bert are pickled \({name}\).*\n  python -c ", load, bert)
    refuses(ModelError, rf"weights of .*{name} are pickled", load, bert / name)
    (bert / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {QUERY: name}}))
    refuses(ModelError, rf"are pickled \({name}\)", load, bert)
    change_config(bert, transformers_weights=name)
    refuses(ModelError, rf"are pickled \({name}\)", load, bert)
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
    refuses(ModelError, "has no weights", load, bert)


def test_code_beside_a_model_runs_only_when_the_user_says_so(bert, tmp_path, monkeypatch):
    (bert / "modeling_own.py").write_text(
        "import warnings\nfrom pathlib import Path\nfrom transformers import BertModel\n"
        "warnings.warn('this is an error under pytest, and chatter elsewhere')\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
        "class OwnModel(BertModel):\n    pass\n"
    )
    change_config(bert, architectures=["OwnModel"], auto_map={"AutoModel": "modeling_own.OwnModel"})
    refuses(ModelError, "is a OwnModel, which transformers does not have.*pass trust_remote_code=True", load, bert)
    assert not (tmp_path / "ran").exists()
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    lm = load(bert, trust_remote_code=True)
    assert (tmp_path / "ran").exists()
    assert type(lm.model).__name__ == "OwnModel"
    assert "OwnModel, from its own code, as trust_remote_code=True allows" in lm.because


# ------------------------------------------------------------------------------------------------- a model in hand


def test_a_model_in_hand_is_used_as_it_is_and_named_after_where_it_came_from_or_as_asked(bert):
    model, tokenizer = tiny_llama(), tiny_tokenizer()
    lm = load(model, tokenizer=tokenizer)
    assert (lm.model, lm.tokenizer, lm.name) == (model, tokenizer, "LlamaForCausalLM")
    newer = "".join(f"; {sentence}" for sentence in untested_here())  # none with the lock's versions
    assert lm.because == f"LlamaForCausalLM in hand, used as it is: float32 on cpu, attention by sdpa{newer}"
    bare = load(nn.MultiheadAttention(6, 2).eval())
    assert (bare.tokenizer, bare.because) == (None, f"MultiheadAttention in hand, used as it is: float32 on cpu{newer}")
    assert load(transformers.BertModel.from_pretrained(bert)).name == "bert"
    model = tiny_bert()
    model.config._name_or_path = "someone/tiny"
    assert load(model).name == "someone/tiny"
    lm = load(tiny_llama(), tokenizer=tiny_tokenizer(), name="tuned")
    assert (lm.name, lm.spec.name, record(lm, TEXT).provenance["model"]) == ("tuned",) * 3


def test_a_model_in_hand_is_refused_in_training_mode_with_nan_or_with_options_that_would_change_it():
    for name in ("", "  "):
        message = f"name={name!r} is not a name for a model: give a text, or leave it out"
        refuses(ModelError, message, load, nn.MultiheadAttention(6, 2).eval(), name=name)
    refuses(ModelError, r"BertModel is in training mode, .* Call model\.eval\(\) first", load, tiny_bert().train())
    model = tiny_bert()
    model.encoder.layer[1].train()
    refuses(ModelError, r"its module 'encoder\.layer\.1' is in training mode", load, model)
    message = r"device=, dtype= cannot be given with a model in hand \(this BertModel\)"
    refuses(ModelError, message, load, tiny_bert(), device="cpu", dtype="float16")
    refuses(ModelError, "trust_remote_code= cannot be given", load, tiny_bert(), trust_remote_code=True)
    model = tiny_llama()
    for layer in (0, 2):
        model.model.layers[layer].self_attn.k_proj.weight.data[1, 2] = float("nan")
    refuses(ModelError, r"weights \(layer 0, 2\): model.layers.0.self_attn.k_proj.weight, ", load, model, name="mine")


# ------------------------------------------------------------------------------------------------- what was asked


@pytest.mark.parametrize(("options", "words"), [
    ({"dtype": "float31"}, "dtype='float31' is not a dtype for weights. Use one of .*bfloat16"),
    ({"dtype": torch.int8}, "dtype=torch.int8 is not a dtype for weights"),
    ({"device": "toaster"}, "device='toaster' cannot be used: .* Here is: cpu"),
    ({"device": "cuda:99"}, "device='cuda:99' cannot be used: .* Here is: cpu"),
    ({"tokenizer": "bert"}, "tokenizer='bert' is not a tokenizer: give one in hand"),
    ({"attn_implementation": "sdpaa"}, "transformers cannot load bert as BertModel: .*sdpaa"),
])  # fmt: skip
def test_an_option_that_cannot_be_met_is_an_error(bert, options, words):
    refuses(ModelError, words, load, bert, **options)


def test_a_flash_kernel_over_weights_that_it_lacks_is_refused(bert, monkeypatch):
    monkeypatch.setattr(private_names, "attention_of", lambda model: "flash_attention_2")
    message = "flash_attention_2 computes in float16 and bfloat16 only, and these weights are float32: load with dtype="
    refuses(ModelError, message, load, bert)
    assert load(bert, dtype="fp16").dtype == torch.float16


def test_weights_go_straight_to_an_accelerator_and_one_that_is_too_small_is_said(bert, monkeypatch):
    cuda, options = torch.device("cuda", 1), []

    def out_of_memory(folder, **how):
        options.append(how)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(load_module, "choose_device", lambda device: (cuda, "the accelerator here"))
    monkeypatch.setattr(pretrained, "free_bytes", {cuda: 3_000_000}.get)
    monkeypatch.setattr(transformers.BertModel, "from_pretrained", out_of_memory)
    message = r"bert does not fit on cuda:1, where 3\.00 MB are free: its weights are [\d.]+ [kM]B of files"
    refuses(ModelError, message, load, bert)
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)  # no accelerate
    refuses(ModelError, "does not fit", load, bert)
    assert [how.get("device_map") for how in options] == [{"": cuda}, None]


def test_model_is_spread_over_all_accelerators_by_accelerate(bert, monkeypatch):
    """Two GPUs are a stand-in here: what is tried is the call, and that nothing is moved after it."""
    calls, real = [], transformers.BertModel.from_pretrained

    def on_two_gpus(folder, **how):
        calls.append(how.pop("device_map", None))
        model, info = real(folder, **how)
        if calls[-1]:
            model.to = None  # a model that accelerate has laid out must not be moved
        return model, info

    monkeypatch.setattr(transformers.BertModel, "from_pretrained", on_two_gpus)
    lm = load(bert, device="auto")
    assert calls == ["auto"] and "on cpu, as asked" in lm.because
    assert lm.loading is not None and lm.loading.device == "auto" and lm.weights_hash == load(bert).weights_hash
    assert calls == ["auto", None]
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)  # no accelerate
    refuses(ModelError, "device='auto' spreads a folder of safetensors .* install it", load, bert, device="auto")


CHILD = """
import sys, threading
import manyheads as mh

def anonymous():
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

mh.load(sys.argv[1], tokenizer=False)  # imports
before, peak, over = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not over.wait(0.001):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
lm = mh.load(sys.argv[2], tokenizer=False, dtype=sys.argv[3])
over.set()
watcher.join()
print((peak - before) / sum(weight.nbytes for weight in lm.model.parameters()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", -0.1, 0.1), ("float32", 0.9, 1.1)])
def test_a_weight_exists_once_while_a_model_loads(dtype, least, most, bert, tmp_path):
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "num_hidden_layers": 12}
    model = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=1000))
    model.to(torch.bfloat16).save_pretrained(tmp_path / "larger")
    command = [sys.executable, "-c", CHILD, str(bert), str(tmp_path / "larger"), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # As it is stored, a weight stays in its mapped file; in another dtype it is made once.
    assert least < float(done.stdout) < most


def test_another_attention_than_the_one_asked_for_is_an_error(bert, monkeypatch):
    monkeypatch.setattr(
        transformers.BertModel, "get_correct_attn_implementation", lambda self, asked, is_init_check=False: "eager"
    )
    with pytest.raises(ModelError, match="BertModel took 'eager' for attn_implementation='sdpa'. Ask for that one"):
        load(bert, attn_implementation="sdpa")


@pytest.mark.parametrize("what", [3, None, tiny_tokenizer()])
def test_what_is_neither_name_nor_module_is_refused(what):
    refuses(ModelError, rf"takes a name, a folder or a torch module, not a {type(what).__name__}", load, what)


# ---------------------------------------------------------------------------------------------------- what it knows


def test_the_hash_follows_every_weight_and_dtype_and_nothing_else(bert):
    first = load(bert)
    assert first.weights_hash == load(bert, attn_implementation="eager", tokenizer=False).weights_hash
    assert len({first.weights_hash, *(load(bert, dtype=kind).weights_hash for kind in ("bf16", "fp16", "fp64"))}) == 4
    changed = load(bert)
    with torch.no_grad():
        changed.model.get_parameter(QUERY)[3, 5] += 1e-3
    assert changed.weights_hash != first.weights_hash


def test_the_hash_sees_names_shapes_dtypes_and_buffers():
    def hashed(name: str, value: torch.Tensor) -> str:
        module = nn.Module()
        module.register_buffer(name, value)
        return load(module.eval()).weights_hash

    values = [torch.zeros(6), torch.zeros(2, 3), torch.zeros(0), torch.zeros(()), torch.zeros(12, dtype=torch.bfloat16)]
    assert len({hashed("a", value) for value in values} | {hashed("b", values[0])}) == 6
    assert hashed("a", torch.arange(6.0)[::2]) == hashed("a", torch.tensor([0.0, 2, 4]))
    assert hashed("a", torch.arange(6.0).view(2, 3).T) == hashed("a", torch.tensor([[0.0, 3], [1, 4], [2, 5]]))


def test_sums_of_the_weights_follow_every_change_however_it_was_made(bert):
    lm = load(bert)
    first, query = lm.weights_sums, lm.model.get_parameter(QUERY)
    assert first == load(bert).weights_sums == load(bert, attn_implementation="eager", tokenizer=False).weights_sums
    seen = {first}
    query.data[3, 5] += 1e-3  # of which torch's own counter of changes knows nothing
    seen.add(lm.weights_sums)
    query.detach().numpy()[3, 5] -= 2e-3
    seen.add(lm.weights_sums)
    for order in (torch.tensor([1, 0, *range(2, len(query))]), torch.tensor([*range(2, len(query)), 1, 0])):
        query.data.copy_(query.data[order])  # rows: heads that changed places
        seen.add(lm.weights_sums)
        query.data.copy_(query.data[:, order])  # columns
        seen.add(lm.weights_sums)
    assert len(seen) == 7
    assert len({first, *(load(bert, dtype=kind).weights_sums for kind in ("bf16", "fp16", "fp64"))}) == 4


def test_sums_of_the_weights_see_names_shapes_dtypes_and_buffers_of_any_size():
    def summed(name: str, value: torch.Tensor) -> str:
        module = nn.Module()
        module.register_buffer(name, value)
        return load(module.eval()).weights_sums

    values = [torch.zeros(6), torch.zeros(2, 3), torch.zeros(0), torch.zeros(()), torch.zeros(12, dtype=torch.bfloat16)]
    assert len({summed("a", value) for value in values} | {summed("b", values[0])}) == 6
    assert summed("a", torch.arange(6.0)[::2]) == summed("a", torch.tensor([0.0, 2, 4]))
    assert summed("a", torch.arange(6.0).view(2, 3).T) == summed("a", torch.tensor([[0.0, 3], [1, 4], [2, 5]]))
    for kind, count in ((torch.bfloat16, 7), (torch.float64, 5), (torch.bool, 11), (torch.int8, 3), (torch.float32, 9)):
        value = torch.ones(count + 1).to(kind)[1:]  # it begins where no wider number may
        other = value.clone()
        other[-1] = 0
        assert summed("a", value) == summed("a", value.clone()) != summed("a", other)


@pytest.mark.parametrize(("family", "limit"), [("bert", 64), ("gpt2", 96), ("llama", 80), ("gemma2", 72)])
def test_max_positions_is_the_config_s(family, limit):
    assert load(BUILDERS[family]()).max_positions == limit


def test_a_roberta_like_table_loses_the_positions_up_to_its_padding():
    config = transformers.RobertaConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=20,
        max_position_embeddings=40, pad_token_id=1,
    )  # fmt: skip
    model = transformers.RobertaModel(config).eval()
    limit = load(model).max_positions
    assert limit == 38
    model(torch.full((1, limit), 7))
    refuses((IndexError, RuntimeError), "out of (range|bounds)", model, torch.full((1, limit + 1), 7))


def test_where_the_config_sets_no_limit_the_tokenizer_may_and_else_nothing_does():
    module = nn.Linear(2, 3)
    assert max_positions_of(module) is None
    assert max_positions_of(module, tiny_tokenizer(model_max_length=33)) == 33
    assert max_positions_of(module, tiny_tokenizer()) is None
    module.config = SimpleNamespace(max_position_embeddings=-1)
    assert max_positions_of(module) is None
    module.config = SimpleNamespace(max_position_embeddings=20, alibi=True)
    assert max_positions_of(module, tiny_tokenizer(model_max_length=33)) is None


def test_a_loaded_model_is_shown_without_its_weights_and_describes_itself_once(bert):
    lm = load(bert)
    assert repr(lm).startswith("LoadedModel(bert: BertModel, ") and repr(lm).endswith(" parameters, float32 on cpu)")
    assert f">{sum(weight.numel() for weight in lm.model.parameters()):,}<" in lm._repr_html_() and len(repr(lm)) < 90
    assert lm.spec is lm.spec
    assert (lm.spec.name, lm.spec.architecture) == ("bert", "BertModel")


# ------------------------------------------------------------------------------------------------------- left alone


@pytest.mark.slow
def test_loading_is_silent_and_leaves_every_process_wide_switch_as_it_was(bert):
    script = f"""
import gc, logging, os, sys, warnings
import torch, transformers, transformers.utils.logging as talk
import manyheads as mh
def state():
    levels = [logging.getLogger(name).level for name in ("transformers", "huggingface_hub", "")]
    bars = talk._tqdm_hook, talk.is_progress_bar_enabled()
    return levels, bars, list(warnings.filters), gc.isenabled(), torch.get_rng_state().tolist(), dict(os.environ)
transformers.BertModel  # torch's compiler, which this imports, names its cache folder in the environment
before = state()
lm = mh.load({str(bert)!r})
assert state() == before
assert "left out" in lm.because
print("MARK", file=sys.stderr, flush=True)
transformers.BertModel.from_pretrained({str(bert)!r})
"""
    change_weights(bert, lambda weights: weights | {"extra.weight": torch.zeros(2)})  # transformers reports that
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ours, theirs = done.stderr.split("MARK\n")
    assert (done.stdout, ours) == ("", "")
    assert "extra.weight" in theirs, "transformers has nothing to say any more: this test proves nothing"


def test_silence_ends_with_the_last_thread_and_after_an_error_and_the_collector_stays_off_where_it_was(bert):
    logger = logging.getLogger("transformers")
    level = logger.level
    threads = [threading.Thread(target=load, args=(bert,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(ManyHeadsError), quietly(), quietly():
        assert (logger.level, gc.isenabled()) == (logging.ERROR, False)
        load("./nothing")
    assert (logger.level, gc.isenabled()) == (level, True)
    gc.disable()
    try:
        load(bert)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_loaded_model_refuses_a_head_mask_that_it_would_ignore_and_so_do_its_parts(tmp_path):
    lm = load(save_tiny(tiny_llama(), tmp_path / "llama", tiny_tokenizer()))
    ids, mask = torch.tensor([[5, 6, 7]]), torch.ones(3, 6)
    lm.model(ids, head_mask=None)
    for model in (lm.model, lm.model.model):
        with pytest.raises(PlanError, match=rf"head_mask= does nothing here: .*{type(model).__name__} would ignore it"):
            model(ids, head_mask=mask)
    model = tiny_llama()
    model(ids, head_mask=mask)  # ignored, until somebody loads it
    for _ in range(2):
        load(model)
    assert len(model._forward_pre_hooks) == 1
    refuses(PlanError, "head_mask= does nothing here", model, ids, head_mask=mask)


def test_a_head_mask_that_a_model_takes_is_its_own_affair():
    class Masks(nn.Module):
        def forward(self, x, head_mask=None, **kwargs):
            return x * head_mask

    model = Masks()
    with refusing_head_mask(model):
        assert model(torch.ones(2), head_mask=torch.tensor([0.0, 1])).tolist() == [0, 1]
        with pytest.raises(PlanError, match="^cross_attn_head_mask= does nothing here"):
            model(torch.ones(2), head_mask=torch.ones(2), cross_attn_head_mask=torch.ones(2))
    model(torch.ones(2), head_mask=torch.ones(2), cross_attn_head_mask=torch.ones(2))
