"""The oracle: transformers' own models. Parameters, the cache and FLOPs are theirs, exactly.

Small models, all sizes different: parameters on the meta device, the cache after a real pass that is longer than every
window, FLOPs as torch counts them. Every family that is sized from its config alone, and options that are not its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import StaticCache

from manyheads.models import size
from manyheads.sizing import PRESETS
from manyheads.sizing import costs as counting
from manyheads.sizing.architecture import describe_config
from manyheads.sizing.architecture.architecture import LAST
from manyheads.sizing.architecture.config import FAMILIES
from manyheads.sizing.architecture.decoder_table import DECODERS
from manyheads.sizing.architecture.encoders import IMAGES
from manyheads.sizing.architecture.seq2seq import SEQ2SEQ

from . import real

CASES: dict[str, tuple[str, dict[str, Any]]] = {**{family: (family, {}) for family in FAMILIES}, **real.OPTIONS}
BATCH, PREFILL, MORE = 2, 11, 3  # longer than every window here
CONTEXT = PREFILL + MORE

REPEATED = {"falcon, new", "falcon, new with one norm"}
"""transformers keeps these keys once for each query head, not once for each key/value head. We count what is needed."""
MASKED = {name for name, (family, _) in CASES.items() if family in ("gpt_neo", "llama4_text")}
"""Their cache keeps what their windows hide (of chunks a key or more), and the eager kernel multiplies it, too."""
DELTA = {name for name, (family, _) in CASES.items() if family == "qwen3_next"}
"""Its recurrent state is updated by products of its own, which are not counted here; the rest is, token by token."""
LATENT = {name for name, (family, _) in CASES.items() if family in ("deepseek_v2", "deepseek_v3", "minicpm3")}
GENERATING = [name for name, (family, _) in CASES.items() if family in (*DECODERS, *SEQ2SEQ)]


STANDS_FOR_OTHERS = (
    *("llama", "llama, MQA", "mistral", "qwen2_moe, windows", "gemma2", "gemma3, layers said", "gpt_oss", "phi"),
    *(
        "olmo2", "olmoe", "stablelm", "dots1", "ernie4_5_moe", "deepseek_v2", "deepseek_v3", "minicpm3", "gpt2",
        "gpt_neo",
    ),
    *("gpt_bigcode", "opt, narrow tables", "bloom", "falcon", "falcon, MHA with biases", "mpt", "smollm3, windows"),
    *("bert", "mpnet", "electra", "distilbert", "vit", "deit", "dinov2", "t5", "t5, gated", "bart, untied", "mbart"),
    "marian, two vocabularies",
)  # fmt: skip
"""Every way to shape a window, experts, a latent, a norm, a bias, a head and a table. All cases have their parameters
held to the real model's in `make test`; of the slower tests it runs these, and `make test-all` the others."""


def described(name: str) -> tuple[Any, dict[str, Any]]:
    """The small real model of a case, and what its config.json says."""
    family, options = CASES[name]
    frozen = tuple((key, tuple(each) if isinstance(each, list) else each) for key, each in options.items())
    model, config = real.ready(family, frozen)
    return model, real.plain(config, type(model))


def test_there_are_as_many_architectures_as_promised():
    generating = {CASES[name][0] for name in GENERATING if name not in REPEATED}
    assert len(FAMILIES) == len(set(FAMILIES)) >= 70
    assert len(generating) >= 60


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_real_model(name):
    family, options = CASES[name]
    config = real.config_of(family, **options)
    cls = real.class_of(config)
    assert size(real.plain(config, cls)).num_parameters == real.count_on_meta(config, cls)


@pytest.mark.thinned(name=STANDS_FOR_OTHERS)
@pytest.mark.parametrize("name", CASES)
def test_parameters_without_a_head_are_those_of_the_bare_model(name):
    family, options = CASES[name]
    config = real.config_of(family, **options)
    cls = real.class_of(config, bare=True)
    assert size(real.plain(config, cls)).num_parameters == real.count_on_meta(config, cls)


@pytest.mark.thinned(family=STANDS_FOR_OTHERS)
@pytest.mark.parametrize(
    "family", sorted({*FAMILIES} - {"nemotron", "hunyuan_v1_dense", "ministral", "dots1", "glm4_moe"})
)
def test_parameters_at_a_familys_own_sizes(family):
    """The sizes of its published models, as transformers has them; without those whose defaults do not build."""
    config = real.CONFIG_MAPPING[family](**({"num_experts_per_tok": 6} if family == "deepseek_v2" else {}))
    cls = real.class_of(config)
    assert size(real.plain(config, cls)).num_parameters == real.count_on_meta(config, cls)


@pytest.mark.thinned(name=("qwen3-0.6b", "qwen3-30b-a3b", "gemma-3-1b", "gpt-oss-20b"))
@pytest.mark.parametrize("name", [name for name, row in PRESETS.items() if row.config])
def test_presets_are_the_real_models_built_on_the_meta_device(name):
    """Their own config, as transformers reads it: each parameter tensor of the real class, without numbers."""
    config = real.CONFIG_MAPPING[PRESETS[name].config["model_type"]](**PRESETS[name].config)
    (cls,) = (getattr(transformers, each) for each in PRESETS[name].config["architectures"])
    assert size(name).num_parameters == real.count_on_meta(config, cls)


SAID = {  # fields that a family's own default makes no model of, or none of this size
    "glm4_moe": {"head_dim": 8}, "hunyuan_v1_dense": {"head_dim": 8}, "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 8}, "helium": {"num_key_value_heads": 4, "head_dim": 2},
    "bitnet": {"num_key_value_heads": 4}, "deepseek_v2": {"num_experts_per_tok": 2},
    "opt": {"ffn_dim": 56},
    "xglm": {"ffn_dim": 56},
    "dots1": {"n_shared_experts": 2},
}  # fmt: skip
OWN_NAMES = {*IMAGES, *SEQ2SEQ, "distilbert"}
LEFT_OUT = {
    "head_dim", "sliding_window", "num_key_value_heads", "q_lora_rank", "n_shared_experts", "first_k_dense_replace",
    "n_group", "topk_group",
}  # fmt: skip


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in OWN_NAMES])
def test_a_field_that_a_config_leaves_out_means_what_it_means_to_transformers(family):
    """Only sizes are said; biases, ties, shared experts and the widths of heads are the family's own."""
    known = real.CONFIG_MAPPING[family]()
    sizes = {name: each for name, each in real.SMALL.items() if hasattr(known, name) and name not in LEFT_OUT}
    sizes |= {"num_attention_heads": 32, "hidden_size": 64, "num_hidden_layers": 5, **SAID.get(family, {})}
    sizes |= {"num_hidden_layers": 2, "attention_types": [[["global", "local"], 1]]} if family == "gpt_neo" else {}
    config = real.CONFIG_MAPPING[family](**sizes)
    cls = real.class_of(config)
    written = {"model_type": family, "architectures": [cls.__name__], **sizes}
    assert size(written).num_parameters == real.count_on_meta(config, cls)


@pytest.mark.thinned(name=STANDS_FOR_OTHERS)
@pytest.mark.parametrize("name", [name for name in GENERATING if name not in REPEATED])
def test_the_cache_holds_the_bytes_of_the_real_one(name):
    model, config = described(name)
    kept = real.cache_after(model, BATCH, PREFILL, MORE)
    source = PREFILL if CASES[name][0] in SEQ2SEQ else None
    found = size(config, context=CONTEXT, batch=BATCH, dtype="fp32", source=source)
    assert found.cache is not None
    assert found.cache.steady == real.bytes_in(kept)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2", "deepseek_v3"])
@pytest.mark.parametrize("length", [5, 20])
def test_what_is_set_aside_is_what_a_static_cache_takes(name, length):
    model, config = described(name)
    kept = StaticCache(config=model.config, max_cache_len=length)
    with torch.no_grad():
        model(input_ids=torch.ones(BATCH, 4, dtype=torch.long), past_key_values=kept, use_cache=True)
    found = size(config, context=length, batch=BATCH, dtype="fp32")
    assert found.cache is not None
    assert found.cache.allocated == real.bytes_in(kept)


def torch_counts(model: Any, **inputs: Any) -> int:
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # an expert at a time, on its own tokens: what is counted here
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    return real.flops_of(counter)


def thrown_away(name: str) -> int:
    """FLOPs a token of what the real model computes and multiplies by zero, or cuts off: the experts that Llama 4 did
    not choose, and a second output of Qwen3-Next's convolution."""
    family, spare = CASES[name][0], 0
    if family == "llama4_text":
        experts = [each for each in describe_config(described(name)[1]).weights if each.experts > 1]
        spare = sum(each.matmul * (each.experts - each.chosen) for each in experts)
    if name in DELTA:
        spare = sum(each.size for each in describe_config(described(name)[1]).weights if each.size == (24 + 20) * 3)
    return 2 * spare


@pytest.mark.thinned(name=STANDS_FOR_OTHERS)
@pytest.mark.parametrize("name", [name for name in GENERATING if CASES[name][0] in DECODERS and name not in DELTA])
def test_flops_of_a_whole_text_are_those_that_torch_counts(name):
    """The eager kernel computes every pair, and the head every position: so does this count, for once."""
    model, config = described(name)
    architecture = describe_config(config)
    ours = sum(counting.prefill(architecture, PREFILL, PREFILL, dense=True).values())
    ours += 2 * (PREFILL - 1) * sum(each.matmul for each in architecture.weights if each.rows == LAST)
    ids = torch.ones(1, PREFILL, dtype=torch.long)
    assert ours + PREFILL * thrown_away(name) == torch_counts(model, input_ids=ids, use_cache=False)


@pytest.mark.thinned(name=STANDS_FOR_OTHERS)
@pytest.mark.parametrize(
    "name", [name for name in GENERATING if CASES[name][0] in DECODERS and name not in MASKED | LATENT]
)
def test_flops_of_one_more_token_are_those_that_torch_counts(name):
    model, config = described(name)
    kept = real.cache_after(model, 1, CONTEXT - 1, 0)
    ids = torch.ones(1, 1, dtype=torch.long)
    ours = sum(counting.decoding(describe_config(config), CONTEXT, CONTEXT).values())
    assert ours + thrown_away(name) == torch_counts(model, input_ids=ids, past_key_values=kept, use_cache=True)


@pytest.mark.parametrize("name", sorted(LATENT))
def test_decoding_on_latents_saves_what_transformers_spends_on_expanding_them(name):
    """transformers makes every cached token's keys and values again; absorbed, a query goes to the latent instead."""
    model, config = described(name)
    kept = real.cache_after(model, 1, CONTEXT - 1, 0)
    theirs = torch_counts(model, input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=kept, use_cache=True)
    architecture = describe_config(config)
    for at in architecture.attention:
        assert at.latent is not None
        rank, rope = at.latent
        expanded = at.num_heads * (at.qk_dim - rope + at.v_dim) * rank
        theirs -= 2 * (CONTEXT - 1) * expanded
        wider = (rank + rope - at.qk_dim) + (rank - at.v_dim)
        theirs += 2 * CONTEXT * at.num_heads * wider
    assert sum(counting.decoding(architecture, CONTEXT, CONTEXT).values()) == theirs


def test_encoders_cost_what_torch_counts():
    for family in ("bert", "distilbert", "electra"):
        model, config = described(family)
        ids = torch.ones(1, PREFILL, dtype=torch.long)
        assert sum(counting.prefill(describe_config(config), PREFILL, PREFILL).values()) == torch_counts(
            model, input_ids=ids
        )
    for family in IMAGES:
        model, config = described(family)
        architecture = describe_config(config)
        pixels = torch.ones(1, 3, 24, 24)
        tokens = architecture.num_tokens
        assert tokens is not None
        assert sum(counting.prefill(architecture, tokens, tokens).values()) == torch_counts(model, pixel_values=pixels)


def test_an_encoder_decoder_costs_what_torch_counts():
    for family in SEQ2SEQ:
        model, config = described(family)
        architecture = describe_config(config)
        source, text = torch.ones(1, 7, dtype=torch.long), torch.ones(1, PREFILL, dtype=torch.long)
        ours = sum(counting.prefill(architecture, PREFILL, 7, dense=True).values())
        ours += 2 * (PREFILL - 1) * sum(each.matmul for each in architecture.weights if each.rows == LAST)
        assert ours == torch_counts(model, input_ids=source, decoder_input_ids=text, use_cache=False)
