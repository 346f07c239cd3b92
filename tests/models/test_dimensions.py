"""Models of families that have no row: built without weights, placed by name, measured; or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch.utils.flop_counter import FlopCounterMode

from manyheads.errors import ModelError, ShapeError
from manyheads.models import size
from manyheads.models.dimensions import describe, describe_model
from manyheads.sizing import costs as counting
from manyheads.sizing.architecture import by_part, describe_config
from manyheads.sizing.architecture.config import FAMILIES
from manyheads.sizing.architecture.decoder_table import DECODERS
from tests.refusals import refuses

from ..sizing import real
from .tiny import tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama

LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 8,
}  # fmt: skip
MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 24, "mamba_d_state": 5, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 8,
}  # fmt: skip
THIRD = ["linear_attention", "linear_attention", "full_attention"]
LATENT = {"num_key_value_heads": 6}

OTHERS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {**LINEAR, "layer_types": THIRD},
    "olmo_hybrid": {**LINEAR},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "jamba": {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
        "expert_layer_offset": 1, "mamba_d_state": 5, "mamba_dt_rank": 3, "use_mamba_kernels": False,
    },
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 96},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 30},
    "youtu": LATENT,
    "glm4_moe_lite": {**LATENT, "mlp_layer_types": None},
    "modernbert-decoder": {"local_attention": 8},
    "cwm": {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    "granitemoeshared": {"shared_intermediate_size": 30},
    "minimax_m2": {}, "afmoe": {}, "granite_swa": {}, "flex_olmo": {}, "internlm3": {}, "hyperclovax": {},
    "exaone_moe": {}, "laguna": {}, "gpt_neox_japanese": {}, "ctrl": {}, "diffllama": {},
}  # fmt: skip
RECURRENT = {"qwen3_5_text", "olmo_hybrid", "lfm2", "jamba", "falcon_h1", "bamba", "granitemoehybrid"}
OTHERWISE = {"diffllama": "differential attention"}
# Of those with a row: grouped, window, softcap, sinks, experts, latent, one matrix, learned positions, alibi ...
FEW_DECODERS = (
    "llama", "mistral", "gemma2", "gpt_oss", "mixtral", "qwen2_moe", "deepseek_v3", "phi3", "gpt2", "gpt_bigcode",
    "gptj", "gpt_neo", "opt", "bloom", "falcon", "biogpt",
)  # fmt: skip
DERIVED = {"youtu", "glm4_moe_lite"}  # head_dim follows from other sizes


def config_of(family: str) -> tuple[Any, Any, dict[str, Any]]:
    """A small config, its class, and what its config.json says."""
    options = OTHERS[family]
    config = real.config_of(family, **options, **({"head_dim": 4} if family in DERIVED else {}))
    cls = real.class_of(config)
    return config, cls, real.plain(config, cls)


def cached_bytes(architecture: Any, length: int) -> int:
    """Of two texts in float32, whatever states take."""
    numbers = counting.cached_numbers(architecture, length, length)
    return 2 * 4 * (numbers + sum(layer.state + layer.state32 for layer in architecture.layers))


@pytest.mark.thinned(
    family=(
        "qwen3_5_text", "lfm2", "jamba", "bamba", "youtu", "modernbert-decoder", "granite_swa", "afmoe", "ctrl",
        "diffllama",
    ),
)  # fmt: skip
@pytest.mark.parametrize("family", OTHERS)
def test_a_family_without_a_row_has_the_parameters_and_the_cache_of_the_real_model(family):
    assert family not in FAMILIES
    config, cls, written = config_of(family)
    found = describe(written)
    assert found.num_parameters == real.count_on_meta(config, cls)
    assert not found.why_untold("cache")
    model = cls._from_config(config, attn_implementation="eager").eval()
    assert cached_bytes(found, 14) == real.bytes_in(real.cache_after(model, 2, 11, 3))


@pytest.mark.thinned(family=("youtu", "modernbert-decoder", "granite_swa", "ctrl", "diffllama"))  # the rest: slow
@pytest.mark.parametrize("family", [name for name in OTHERS if name not in RECURRENT])
def test_its_flops_are_those_that_torch_counts_or_are_not_told(family):
    config, cls, written = config_of(family)
    found = describe(written)
    if family in OTHERWISE:
        assert "but torch counts" in found.why_untold("flops"), OTHERWISE[family]
        assert size(written).prefill is None and size(written).decode is None and size(written).decoding is None
        return
    model = cls._from_config(config, attn_implementation="eager").eval()
    model.set_experts_implementation("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(1, 11, dtype=torch.long), use_cache=False)
    spent = counting.prefill(found, 11, 11, dense=True)
    assert sum(spent.values()) + 10 * spent["head"] == real.flops_of(counter)


def test_a_recurrence_is_measured_and_its_update_said_not_to_be_counted():
    _, _, written = config_of("qwen3_5_text")
    found = size(written, context=100, batch=3, dtype="bf16")
    assert any("the update of its recurrent state is not counted" in line for line in found.architecture.because)
    assert found.cache.state > 0 and found.cache.growth == 2 * 2 * 2 * 10  # k and v of the one layer with attention
    assert found.parameters["mixer"] > 0
    assert [each.name for each in found.variants] == ["MHA", "GQA-2", "MQA"]


@pytest.mark.thinned(family=FEW_DECODERS)
@pytest.mark.parametrize("family", DECODERS)
def test_measuring_and_arithmetic_agree_where_both_know_a_family(family):
    """The same parameters, active ones, cache at every length and FLOPs, by two ways that share no table."""
    config = real.config_of(family)
    written = real.plain(config, real.class_of(config))
    reckoned, measured = describe_config(written), describe(written)
    assert measured.num_parameters == reckoned.num_parameters
    assert measured.num_active == reckoned.num_active
    parts, others = by_part(reckoned.weights), by_part(measured.weights)
    for part in ("embedding", "o", "feed-forward", "router", "norm", "head"):
        assert others.get(part) == parts.get(part)
    if measured.why_untold("cache"):
        # Positions are made of real numbers, OPT's up to transformers 5.17.
        assert family == "biogpt" or (family == "opt" and Version(transformers.__version__) < Version("5.18"))
        return
    if family == "deepseek_v3" and Version(transformers.__version__) < Version("5.15"):
        pytest.xfail("it caches keys and values of every head (seen in 5.10), since 5.15 the latent of all")
    for length in (1, 6, 7, 8, 40):
        assert counting.cached_numbers(measured, length, 0) == counting.cached_numbers(reckoned, length, 0)
    if not measured.why_untold("flops") and family != "gpt_neo":  # whose cache does not tell of its windows
        assert sum(counting.prefill(measured, 30, 0).values()) == sum(counting.prefill(reckoned, 30, 0).values())
        assert sum(counting.decoding(measured, 30, 0).values()) == sum(counting.decoding(reckoned, 30, 0).values())


# --------------------------------------------------------------------------------------------------- a model in hand


@pytest.mark.parametrize("made", [tiny_llama, tiny_gpt2, tiny_gemma2, tiny_bert], ids=lambda each: each.__name__)
def test_a_model_in_hand_or_its_config_is_sized_by_arithmetic(made):
    model = made()
    count = sum(each.numel() for each in model.parameters())
    found = size(model)
    assert found.num_parameters == count and found.prefill is not None and not found.architecture.untold
    assert f"as {type(model).__name__}" in found.architecture.because[0]
    assert size(model.config).num_parameters in (count, found.num_parameters)


def test_a_model_that_is_not_what_its_config_says_is_measured_as_it_stands():
    model = tiny_llama()
    layer = model.model.layers[1].self_attn
    layer.o_proj = torch.nn.Linear(48, 48, bias=True)
    found = size(model)
    assert found.num_parameters == sum(each.numel() for each in model.parameters())
    assert found.layers[1]["o"] == found.layers[0]["o"] + 48
    assert found.cache.steady == size(model.config).cache.steady


def test_the_bundled_model_is_its_preset_and_a_folder_names_its_model(minilm, tmp_path):
    found = size(minilm)
    assert (found.name, found.num_parameters) == ("minilm", size("minilm").num_parameters)
    assert found.parameters == size("minilm").parameters
    folder = tmp_path / "my-model"
    folder.mkdir()
    _, _, written = config_of("cwm")
    (folder / "config.json").write_text(json.dumps(written))
    assert size(folder).name == "my-model"


def test_a_head_that_has_no_row_is_built():
    config = real.config_of("llama", architectures=["LlamaForSequenceClassification"], num_labels=3)
    found = size({**config.to_dict(), "architectures": ["LlamaForSequenceClassification"], "num_labels": 3})
    bare = size({**config.to_dict(), "architectures": ["LlamaModel"]})
    assert found.num_parameters == bare.num_parameters + 3 * 48
    assert found.cache is None and "built with transformers" in found.architecture.because[0]


def tensors(states: Any) -> list[Any]:
    """Of a layer's states: one tensor up to transformers 5.12, then several by number."""
    return list(states.values()) if isinstance(states, dict) else [states]


def test_a_decoder_without_its_head_tells_its_cache_and_its_states():
    mamba = transformers.MambaModel(transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=99))
    found = size(mamba)
    with torch.no_grad():
        kept = mamba.bfloat16()(torch.arange(7)[None], use_cache=True).cache_params
    states = [x for layer in kept.layers for kind in (layer.conv_states, layer.recurrent_states) for x in tensors(kind)]
    assert found.cache.state == 8 * sum(x.numel() * x.element_size() for x in states)  # 8 texts; some stay in 32 bits
    assert "o" not in {part for part, number in found.parameters.items() if number}


def test_a_limit_of_minus_one_is_none():
    xlnet = transformers.XLNetModel(
        transformers.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=40, vocab_size=99)
    )
    assert size(xlnet).architecture.max_positions is None and size(xlnet).ask.context == 4096


# ---------------------------------------------------------------------------------------------------- what is refused


def test_a_config_that_nobody_can_read_is_refused_in_words_and_its_sizes_never_made_up():
    with pytest.raises(ModelError, match=r"'zork' is an architecture that neither manyheads nor transformers knows"):
        size({"model_type": "zork", "hidden_size": 3})
    message = r"config of 'jamba' lacks hidden_size, num_hidden_layers, vocab_size, which its"
    refuses(ModelError, message, size, {"model_type": "jamba"})
    _, _, written = config_of("cwm")
    refuses(ModelError, r"transformers cannot read this config of 'cwm': ", size, {**written, "hidden_size": "wide"})
    with pytest.raises(ModelError, match=r"transformers cannot build .* from this config: "):
        size({**written, "rope_parameters": {"rope_type": "unheard of"}})
    message = r"this Linear has no config, so its attention is unknown. Describe it"
    refuses(ModelError, message, size, torch.nn.Linear(3, 3))
    refuses(ModelError, r"this MultiheadAttention has no config", describe_model, torch.nn.MultiheadAttention(8, 2))


def test_a_model_of_the_hub_is_sized_by_its_config_and_offline_says_what_to_download(hub, monkeypatch):
    """A preset's repository needs no hub; another is taken from the cache, or named with the file to download."""
    assert size("Qwen/Qwen3-8B").num_parameters == size("qwen3-8b").num_parameters
    address = "Download https://huggingface.co/someone/tiny/resolve/main/config.json and give that file."
    refuses(ModelError, rf"^no model 'someone/tiny': .*offline\? .*{address}$", size, "someone/tiny")
    preset = r" The preset 'llama-3\.1-70b' needs no file, if the two have the same sizes\.$"
    refuses(ModelError, rf"give that file\.{preset}", size, "meta-llama/Llama-3.1-70B-Instruct")
    refuses(ModelError, r"give that file\.$", size, "mistralai/Mistral-7B-Instruct-v0.3")
    snapshot = hub / "models--someone--tiny" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (hub / "models--someone--tiny" / "refs").mkdir()
    (hub / "models--someone--tiny" / "refs" / "main").write_text("0" * 40)
    config, cls = real.config_of("llama"), real.class_of(real.config_of("llama"))
    (snapshot / "config.json").write_text(json.dumps(real.plain(config, cls)))
    found = size("someone/tiny")
    assert (found.name, found.num_parameters) == ("someone/tiny", real.count_on_meta(config, cls))


def test_what_is_measured_takes_other_heads_only_if_they_divide():
    _, _, written = config_of("cwm")
    assert size(written, num_kv_heads=3).parameters["k"] == size(written).parameters["k"] * 3 // 2
    refuses(ShapeError, r"num_heads=6 is not a multiple of num_kv_heads=4", size, written, num_kv_heads=4)
