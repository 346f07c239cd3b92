"""A loaded model: one in hand, or as it was asked for; what it knows of itself, and what loading leaves as it was.

No test here asks the network.
"""

import gc
import logging
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from manyheads.errors import ManyHeadsError, ModelError, PlanError
from manyheads.models import load, quietly, record
from manyheads.models.describe import max_positions_of
from manyheads.models.loading.head_mask import refusing_head_mask
from manyheads.models.loading.load import require_usable
from tests.models.folders import BUILDERS, QUERY, change_weights
from tests.models.tiny import TEXT, save_tiny, tiny_bert, tiny_llama, tiny_tokenizer

# ------------------------------------------------------------------------------------------------- a model in hand


def test_a_model_in_hand_is_used_as_it_is():
    model, tokenizer = tiny_llama(), tiny_tokenizer()
    lm = load(model, tokenizer=tokenizer)
    assert (lm.model, lm.tokenizer, lm.name) == (model, tokenizer, "LlamaForCausalLM")
    assert lm.because == "LlamaForCausalLM in hand, used as it is: float32 on cpu, attention by sdpa"
    bare = load(nn.MultiheadAttention(6, 2).eval())
    assert (bare.tokenizer, bare.because) == (None, "MultiheadAttention in hand, used as it is: float32 on cpu")


def test_a_model_in_hand_is_named_after_where_it_was_loaded_from(bert):
    assert load(transformers.BertModel.from_pretrained(bert)).name == "bert"
    model = tiny_bert()
    model.config._name_or_path = "someone/tiny"
    assert load(model).name == "someone/tiny"


def test_a_model_in_hand_is_called_as_asked():
    lm = load(tiny_llama(), tokenizer=tiny_tokenizer(), name="tuned")
    assert (lm.name, lm.spec.name, record(lm, TEXT).provenance["model"]) == ("tuned",) * 3


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(name):
    with pytest.raises(ModelError, match=f"name={name!r} is no name for a model: give a text, or leave it out"):
        load(nn.MultiheadAttention(6, 2).eval(), name=name)


def test_only_a_model_in_hand_takes_a_name(bert):
    with pytest.raises(ModelError, match="name='other' is for a model in hand, and .* has a name of its own"):
        load(bert, name="other")


def test_training_mode_is_refused_wherever_it_is():
    with pytest.raises(ModelError, match=r"BertModel is in training mode, .* Call model\.eval\(\) first"):
        load(tiny_bert().train())
    model = tiny_bert()
    model.encoder.layer[1].train()
    with pytest.raises(ModelError, match=r"its module 'encoder\.layer\.1' is in training mode"):
        load(model)


def test_options_that_would_change_a_model_in_hand_are_refused():
    with pytest.raises(ModelError, match=r"device=, dtype= cannot be given with a model in hand \(this BertModel\)"):
        load(tiny_bert(), device="cpu", dtype="float16")
    with pytest.raises(ModelError, match="trust_remote_code= cannot be given"):
        load(tiny_bert(), trust_remote_code=True)


def test_nan_in_a_model_in_hand_is_refused():
    model = tiny_llama()
    with torch.no_grad():
        for layer in (0, 2):
            model.model.layers[layer].self_attn.k_proj.weight[1, 2] = float("nan")
    with pytest.raises(ModelError, match=r"weights \(layer 0, 2\): model.layers.0.self_attn.k_proj.weight, "):
        require_usable(model, "mine")


# ------------------------------------------------------------------------------------------------- what was asked


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "float31"}, "dtype='float31' is no dtype for weights. Use one of .*bfloat16"),
        ({"dtype": torch.int8}, "dtype=torch.int8 is no dtype for weights"),
        ({"device": "toaster"}, "device='toaster' cannot be used: .* Here is: cpu"),
        ({"device": "cuda:99"}, "device='cuda:99' cannot be used: .* Here is: cpu"),
        ({"tokenizer": "bert"}, "tokenizer='bert' is not a tokenizer: give one in hand"),
        ({"attn_implementation": "sdpaa"}, "transformers cannot load bert as BertModel: .*sdpaa"),
    ],
)
def test_an_option_that_cannot_be_met_is_an_error(bert, options, words):
    with pytest.raises(ModelError, match=words):
        load(bert, **options)


def test_another_attention_than_the_one_asked_for_is_an_error(bert, monkeypatch):
    monkeypatch.setattr(
        transformers.BertModel, "get_correct_attn_implementation", lambda self, asked, is_init_check=False: "eager"
    )
    with pytest.raises(ModelError, match="BertModel took 'eager' for attn_implementation='sdpa'. Ask for that one"):
        load(bert, attn_implementation="sdpa")


@pytest.mark.parametrize("what", [3, None, tiny_tokenizer()])
def test_what_is_neither_name_nor_module_is_refused(what):
    with pytest.raises(ModelError, match=rf"takes a name, a folder or a torch module, not a {type(what).__name__}"):
        load(what)


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
    with pytest.raises((IndexError, RuntimeError), match="out of (range|bounds)"):
        model(torch.full((1, limit + 1), 7))


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
    assert repr(lm).startswith("LoadedModel(name='bert', because='BertModel, ")
    assert len(repr(lm)) < 500
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


def test_silence_ends_with_the_last_thread_and_after_an_error(bert):
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


def test_the_collector_stays_off_where_it_was_off(bert):
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
    with pytest.raises(PlanError, match="head_mask= does nothing here"):
        model(ids, head_mask=mask)


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
