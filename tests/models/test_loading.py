"""Loading from a folder: the model that was asked for and no other, or one line that says why not.

No test here asks the network.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from manyheads.errors import FileAccessError, ModelError
from manyheads.models import load
from tests.models.folders import BUILDERS, QUERY, change_config, change_weights, outputs
from tests.models.tiny import TEXT, save_tiny, tiny_bert, tiny_gpt2, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("hub")

# -------------------------------------------------------------------------------------------------------- a folder


@pytest.mark.parametrize("family", BUILDERS)
def test_a_saved_model_comes_back_with_equal_outputs_in_eval_mode_and_with_its_tokenizer(family, tmp_path):
    model, tokenizer = BUILDERS[family](), tiny_tokenizer()
    lm = load(save_tiny(model, tmp_path / "saved", tokenizer))
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
    for part in ("BertModel, which its config.json names", "float32, as its config.json says", "on cpu, the default",
                 "attention by sdpa, the choice of transformers", f"from the folder {bert}"):  # fmt: skip
        assert part in because
    change_config(bert, dtype=None)
    assert "float32, as it is stored" in load(bert).because
    asked = load(bert, dtype="bf16", device="cpu", attn_implementation="eager")
    assert (asked.dtype, asked.model.config._attn_implementation) == (torch.bfloat16, "eager")
    for part in ("bfloat16, as asked", "on cpu, as asked", "attention by eager, as asked"):
        assert part in asked.because


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
    assert (read.backend_tokenizer.truncation, read.backend_tokenizer.padding) == (
        None,
        None,
    )  # before a call resets them
    assert (
        len(read("cat " * 100, verbose=False)["input_ids"]) == len(read.backend_tokenizer.encode("cat " * 100)) == 102
    )
    assert len(read("cat")["input_ids"]) == len(read.backend_tokenizer.encode("cat")) == 3


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
    with pytest.raises(ModelError, match=rf"is incomplete: 1 of {len(shards)} weight files missing: {shards[0].name}"):
        load(bert)
    (bert / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelError, match="is not an index of weights"):
        load(bert)


# ----------------------------------------------------------------------------------------- folders that will not do


def test_a_folder_without_config_weights_or_tokenizer_says_which(bert, tmp_path):
    shutil.copytree(bert, tmp_path / "no-tokenizer", ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(
        ModelError,
        match=r"no-tokenizer has no tokenizer files \(tokenizer\.json, .*: save one there, or pass tokenizer=",
    ):
        load(tmp_path / "no-tokenizer")
    assert load(tmp_path / "no-tokenizer", tokenizer=False).tokenizer is None
    (bert / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no weights: model.safetensors or .* It holds config.json"):
        load(bert)
    (bert / "config.json").unlink()
    with pytest.raises(ModelError, match="has no config.json, so there is no telling what model it is. It holds"):
        load(bert)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="has no config.json.* It is empty"):
        load(tmp_path / "empty")


def test_a_damaged_file_is_named(bert):
    (bert / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="has no usable tokenizer: .* Save one there"):
        load(bert)
    whole = (bert / "model.safetensors").read_bytes()
    (bert / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"the weights in .*bert are damaged \(.*\)\. Copy or fetch them anew"):
        load(bert)
    (bert / "config.json").write_text('{"architectures": ["BertMo')
    with pytest.raises(ModelError, match=r"config.json is not JSON \(.*\): the file is damaged"):
        load(bert)
    (bert / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="config.json is a list, not a mapping"):
        load(bert)


def test_a_config_that_transformers_cannot_build_is_refused_with_its_own_reason(bert):
    change_config(bert, num_attention_heads=7)
    with pytest.raises(ModelError, match=r"transformers cannot load bert as BertModel: .*hidden size"):
        load(bert)
    change_config(bert, architectures=None, model_type="no-such-type")
    with pytest.raises(ModelError, match=r"transformers cannot load bert as AutoModel: .*no-such-type"):
        load(bert)


@pytest.mark.parametrize(("door", "named"), [("iterdir", "bert"), ("read_text", "bert/config.json")])
def test_what_may_not_be_read_is_an_access_error(bert, monkeypatch, door, named):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, door, refuse)
    with pytest.raises(FileAccessError, match=rf"cannot read .*{named}: .*Permission denied.* Check its permissions"):
        load(bert)


def test_an_adapter_is_not_a_model(bert):
    (bert / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds an adapter, not a whole model. Merge it into its base model first"):
        load(bert)


# ------------------------------------------------------------------------------------------------- weights that lack


def test_missing_weights_are_an_error_that_names_the_first_few(bert):
    change_weights(bert, lambda weights: {k: v for k, v in weights.items() if ".attention.self.key" not in k})
    with pytest.raises(ModelError, match=r"bert lacks 4 of the weights of BertModel, which would be random numbers: "
                                         r"encoder.layer.0.attention.self.key.bias, .*\. Use a complete"):  # fmt: skip
        load(bert)


def test_a_config_with_more_layers_than_are_stored_is_an_error(bert):
    change_config(bert, num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"lacks 16 of the weights of BertModel.* and 12 more"):
        load(bert)


def test_a_head_that_is_not_stored_is_an_error(bert):
    change_config(bert, architectures=["BertForMaskedLM"])
    with pytest.raises(ModelError, match=r"lacks .* of the weights of BertForMaskedLM, .*: cls.predictions"):
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
    with pytest.raises(ModelError, match=rf"lacks 2 of the weights of {cls.__name__}.*pooler.dense.bias"):
        load(folder, tokenizer=False)


def test_weights_of_another_shape_are_an_error(bert):
    change_weights(bert, lambda weights: weights | {QUERY: torch.zeros(40, 32)})
    with pytest.raises(
        ModelError, match=rf"1 weights do not have the shapes .*: {QUERY} is \[40, 32\], not \[40, 40\]"
    ):
        load(bert)


def test_weights_without_a_place_are_left_out_and_because_names_them(bert):
    change_weights(bert, lambda weights: weights | {"extra.weight": torch.zeros(2)})
    assert "1 stored weights have no place in BertModel and are left out: extra.weight" in load(bert).because


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_weight_that_is_no_number_is_an_error_that_names_the_layer(bert, value, dtype):
    def spoil(weights):
        weights[QUERY][3, 5] = value

    change_weights(bert, spoil)
    with pytest.raises(ModelError, match=rf"bert has NaN or infinite weights \(layer 1\): {re.escape(QUERY)}\."):
        load(bert, dtype=dtype)
