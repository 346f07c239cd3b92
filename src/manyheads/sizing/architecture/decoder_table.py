"""The decoders that can be sized from their config alone: a row a family, in the order of their kin.

A row says what differs from Llama, and what a field means that a config leaves out. Names are transformers'
`model_type`s. Whoever adds a row adds nothing else: the tests take every row here and hold it to the real model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from manyheads.errors import ModelError
from manyheads.sizing.architecture import building_blocks as blocks
from manyheads.sizing.architecture.architecture import Attention, LayerShape, Weights
from manyheads.sizing.architecture.decoders import LINEAR, Decoder, Experts, Windows, every, everywhere, nowhere
from manyheads.sizing.architecture.fields import Fields

# Which layers slide


def beyond(fields: Fields, count: int) -> list[bool]:
    """The layers after max_window_layers."""
    window = fields.maybe("sliding_window")
    return [window is not None and layer >= fields.count("max_window_layers", count) for layer in range(count)]


def switched(windows: Windows) -> Windows:
    """Those layers if windows are on at all, else none."""
    return lambda fields, count: (windows if fields.flag("use_sliding_window") else nowhere)(fields, count)


def qwen_moe(fields: Fields, count: int) -> list[bool]:
    """Every other layer up to max_window_layers, if windows are on at all."""
    on = fields.flag("use_sliding_window")
    return [on and (layer + 1) % 2 == 1 and layer < fields.count("max_window_layers", count) for layer in range(count)]


def smollm(fields: Fields, count: int) -> list[bool]:
    """Those without rotary positions, if windows are on at all."""
    step = fields.whole("no_rope_layer_interval", 4)
    rotary = fields.listed("no_rope_layers") or [int((layer + 1) % step != 0) for layer in range(count)]
    on = fields.flag("use_sliding_window") and fields.maybe("sliding_window") is not None
    return [on and not has_rotary for has_rotary in rotary]


def gpt_neo(fields: Fields, count: int) -> list[bool]:
    """The local layers of `attention_types`, [[kinds, how many times], ...]; every second one where none are listed."""
    kinds: list[object] = []
    for entry in fields.listed("attention_types"):
        match entry:
            case [list(group), int(times)] if 0 <= times <= count and len(group) <= count:  # pyright: ignore
                kinds += group * times  # pyright: ignore
            case _:
                raise ModelError(
                    f"the config of {fields.family!r} says attention_types with {str(entry)[:60]!r} in it, which "
                    f"should be a list of kinds and how many times it comes: the file is damaged."
                )
    return [kind == "local" for kind in kinds] if kinds else [layer % 2 == 1 for layer in range(count)]


def llama4(fields: Fields, count: int) -> list[bool]:
    """Those with rotary positions see chunks, all others see all."""
    step = fields.whole("no_rope_layer_interval", 4)
    rotary = fields.listed("no_rope_layers") or [int((layer + 1) % step != 0) for layer in range(count)]
    return [fields.maybe("attention_chunk_size") is not None and bool(has_rotary) for has_rotary in rotary]


def qwen_next(fields: Fields, count: int) -> list[bool]:
    """All but the last of each full_attention_interval are linear."""
    step = fields.whole("full_attention_interval", 4)
    return [(layer + 1) % step != 0 for layer in range(count)]


def delta_net(fields: Fields, embed_dim: int) -> LayerShape:
    """A gated delta net (Yang et al. 2024), as Qwen3-Next has it: what it adds beside the feed-forward and norms.

    Its states: the last tokens of a convolution, and a matrix a value head, which is kept in 32 bits.
    """
    names = ("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim")
    num_keys, key_dim, num_values, value_dim = (fields.whole(name) for name in names)
    keys, values, kernel = num_keys * key_dim, num_values * value_dim, fields.whole("linear_conv_kernel_dim")
    channels = 2 * keys + values
    weights = (
        blocks.matrix("mixer", embed_dim, channels + values),  # q, k, v and the gate
        blocks.matrix("mixer", embed_dim, 2 * num_values),  # how much is written, how much is forgotten
        Weights("mixer", channels * kernel, channels * kernel),
        blocks.vector("mixer", 2 * num_values),
        blocks.vector("norm", value_dim),
        blocks.matrix("mixer", values, embed_dim),
    )
    return LayerShape(weights, state=channels * kernel, state32=num_values * key_dim * value_dim)


# Which layers are sparse


def stepped(fields: Fields, layer: int) -> bool:
    """Every so many layers, those aside that are listed as dense."""
    return layer not in fields.listed("mlp_only_layers") and (layer + 1) % fields.whole("decoder_sparse_step", 1) == 0


def after_dense(fields: Fields, layer: int) -> bool:
    """All but the first layers."""
    return layer >= fields.count("first_k_dense_replace")


def ernie(fields: Fields, layer: int) -> bool:
    """Every so many layers between a first and a last one (-1: the model's)."""
    last = fields.count("moe_layer_end_index", -1, least=-1)
    last = fields.whole("num_hidden_layers") - 1 if last == -1 else last
    step, first = fields.whole("moe_layer_interval", 1), fields.count("moe_layer_start_index", 1)
    return (layer + 1) % step == 0 and first <= layer <= last


def interleaved(fields: Fields, layer: int) -> bool:
    """Those that are listed, else every so many layers."""
    if fields.get("moe_layers") is not None:
        return layer in fields.listed("moe_layers")
    return (layer + 1) % fields.whole("interleave_moe_layer_step", 1) == 0


def dense_width(fields: Fields) -> int:
    return fields.whole("intermediate_size")


def shared_experts(fields: Fields) -> int:
    return fields.count("n_shared_experts") * fields.whole("moe_intermediate_size")


# Other choices


def sinks(fields: Fields, attention: Attention, embed_dim: int) -> tuple[Weights, ...]:
    """A learned logit for each query head."""
    return (blocks.vector("other", attention.num_heads),)


def sub_norms(fields: Fields, attention: Attention, embed_dim: int) -> tuple[Weights, ...]:
    """A norm before the output projection, and one before the last matrix of the feed-forward."""
    return blocks.vector("norm", embed_dim), blocks.vector("norm", fields.whole("intermediate_size"))


def two_numbers(fields: Fields, attention: Attention, embed_dim: int) -> tuple[Weights, ...]:
    return (blocks.vector("feed-forward", 2),)  # the activation's own


def shared_width(fields: Fields) -> int:
    return fields.whole("shared_expert_intermediate_size")


def ernie_shared(fields: Fields) -> int:
    return fields.count("moe_num_shared_experts") * fields.whole("moe_intermediate_size")


def parallel_norms(fields: Fields) -> int:
    return 1 if fields.flag("use_parallel_residual") else 2


def all_heads(fields: Fields, num_heads: int) -> int:
    return num_heads


def one_head_or_all(fields: Fields, num_heads: int) -> int:
    return 1 if fields.flag("multi_query") else num_heads


def falcon_heads(fields: Fields, num_heads: int) -> int:
    if fields.flag("new_decoder_architecture"):
        return fields.whole("num_kv_heads", num_heads)
    return one_head_or_all(fields, num_heads)


def falcon_norms(fields: Fields) -> int:
    if fields.flag("new_decoder_architecture"):
        return fields.whole("num_ln_in_parallel_attn", 2)
    return 1 if fields.flag("parallel_attn") else 2


def opt_final_norm(fields: Fields) -> bool:
    return fields.flag("do_layer_norm_before") and not fields.flag("_remove_final_layer_norm")


TIED = {"tie_word_embeddings": True}
GEMMA = {**TIED, "head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096}
GLM = {"head_dim": 128, "num_key_value_heads": 2, "attention_bias": True}
QWEN = {"sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 32}
GPT2_NAMES = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions", "intermediate_size": "n_inner",
}  # fmt: skip

LLAMA = Decoder(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
BIASED = Decoder(qkv_bias="attention_bias", o_bias="attention_bias")
CLASSIC = Decoder(qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, norm=2)
"""GPT-2's way: a bias wherever there can be one, two matrices, layer norms."""
GPT2 = replace(CLASSIC, positions=0, times=4, heads_of=all_heads, names=GPT2_NAMES, defaults=TIED)
GPTJ = Decoder(
    mlp_bias=True, gated=False, norm=2, norms=1, times=4, head_bias=True, heads_of=all_heads, names=GPT2_NAMES,
)  # fmt: skip
DEEPSEEK = Experts(count="n_routed_experts", shared=shared_experts, sparse=after_dense)
MIXTRAL = Experts(count="num_local_experts", width="intermediate_size")

DECODERS: Mapping[str, Decoder] = MappingProxyType(
    {
        # Llama and kin
        "llama": LLAMA,
        "llama4_text": replace(
            BIASED, windows=llama4, marked="chunked_attention", width="intermediate_size_mlp",
            experts=Experts("num_local_experts", width="intermediate_size", shared=dense_width, sparse=interleaved),
            defaults={"attention_chunk_size": 8192, "head_dim": 128, "num_key_value_heads": 8},
        ),
        "arcee": replace(LLAMA, gated=False),
        "granite": LLAMA,
        "helium": Decoder(
            qkv_bias="attention_bias", mlp_bias="mlp_bias", defaults={"head_dim": 128, "num_key_value_heads": 20}
        ),
        "hunyuan_v1_dense": replace(BIASED, qk_norm="head", defaults={"tie_word_embeddings": False}),
        "ernie4_5": Decoder(
            qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias",
            defaults={**TIED, "head_dim": 128, "num_key_value_heads": 2},
        ),
        "seed_oss": Decoder(
            qkv_bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias",
            defaults={"attention_bias": True, "head_dim": 128, "num_key_value_heads": 8},
        ),
        "smollm3": replace(LLAMA, windows=smollm, defaults={**TIED, "num_key_value_heads": 4}),
        "mistral": Decoder(windows=everywhere, defaults={"sliding_window": 4096, "num_key_value_heads": 8}),
        "ministral": Decoder(windows=everywhere, defaults={"sliding_window": 4096, "num_key_value_heads": 8}),
        "ministral3": Decoder(windows=everywhere, defaults={"head_dim": 128, "num_key_value_heads": 8}),
        "mixtral": Decoder(windows=everywhere, experts=MIXTRAL, defaults={"num_key_value_heads": 8}),
        "nanochat": replace(BIASED, gated=False, norm=0),
        "apertus": replace(BIASED, gated=False, qk_norm="head", extras=two_numbers),
        "bitnet": replace(BIASED, extras=sub_norms, defaults={"num_key_value_heads": 5}),
        "exaone4": Decoder(
            qk_norm="head", windows=every(4), defaults={"sliding_window": 4096, "num_key_value_heads": 32}
        ),
        "jais2": replace(LLAMA, gated=False, norm=2, defaults={"attention_bias": True, "mlp_bias": True}),
        "nemotron": replace(LLAMA, gated=False, norm=2),
        "gpt_oss": replace(
            BIASED, windows=every(2), extras=sinks,
            experts=Experts(count="num_local_experts", width="intermediate_size", bias=True),
            defaults={"attention_bias": True, "head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128},
        ),
        # Qwen
        "qwen2": Decoder(qkv_bias=True, windows=switched(beyond), defaults=QWEN),
        "qwen2_moe": Decoder(
            qkv_bias="qkv_bias", windows=qwen_moe,
            experts=Experts(shared=shared_width, sparse=stepped, shared_gate=True),
            defaults={"qkv_bias": True, "sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 16},
        ),
        "qwen3": replace(BIASED, qk_norm="head", windows=switched(beyond), defaults={**QWEN, "head_dim": 128}),
        "qwen3_moe": replace(
            BIASED, qk_norm="head", windows=switched(everywhere), experts=Experts(sparse=stepped),
            defaults={"sliding_window": 4096, "num_key_value_heads": 4},
        ),
        "qwen3_next": replace(
            BIASED, qk_norm="head", gated_heads=True, windows=qwen_next, marked=LINEAR, linear=delta_net,
            experts=Experts(shared=shared_width, sparse=stepped, shared_gate=True),
            defaults={"head_dim": 256, "num_key_value_heads": 2},
        ),
        # Gemma, Cohere, Phi, GLM, OLMo
        "gemma": replace(BIASED, defaults={**TIED, "head_dim": 256, "num_key_value_heads": 16}),
        "gemma2": replace(BIASED, norms=4, windows=every(2), defaults=GEMMA),
        "vaultgemma": replace(BIASED, windows=every(2), defaults=GEMMA),
        "gemma3_text": replace(BIASED, norms=4, qk_norm="head", windows=every(6), defaults=GEMMA),
        "cohere": replace(BIASED, norms=1, qk_norm="heads", qk_norm_if="use_qk_norm", defaults=TIED),
        "cohere2": replace(BIASED, norms=1, windows=every(4), defaults={**TIED, "sliding_window": 4096}),
        "phi": replace(
            CLASSIC, norms=1, head_bias=True, qk_norm="head", qk_norm_if="qk_layernorm",
            qk_vectors=2,
        ),
        "phi3": Decoder(windows=everywhere),
        "phimoe": replace(
            BIASED, norm=2, head_bias="lm_head_bias", windows=everywhere, experts=MIXTRAL,
            defaults={"num_key_value_heads": 8},
        ),
        "glm": Decoder(qkv_bias="attention_bias", defaults=GLM),
        "glm4": Decoder(qkv_bias="attention_bias", norms=4, defaults=GLM),
        "glm4_moe": Decoder(
            qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm", experts=DEEPSEEK,
            defaults={"num_key_value_heads": 8, "n_shared_experts": 1, "first_k_dense_replace": 1},
        ),
        "olmo": replace(BIASED, norm=0),
        "olmo2": replace(BIASED, qk_norm="whole"),
        "olmo3": replace(BIASED, qk_norm="whole", windows=every(4), defaults={"sliding_window": 4096}),
        "olmoe": replace(BIASED, qk_norm="whole", experts=Experts(width="intermediate_size")),
        # More experts; MLA
        "granitemoe": replace(BIASED, experts=MIXTRAL),
        "ernie4_5_moe": Decoder(
            qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", head_bias="use_bias",
            experts=Experts("moe_num_experts", "moe_k", shared=ernie_shared, sparse=ernie, extra=1),
            defaults={**TIED, "num_key_value_heads": 4, "moe_num_shared_experts": 2},
        ),
        "dots1": replace(
            BIASED, qk_norm="head", windows=beyond, experts=DEEPSEEK,
            defaults={"sliding_window": 4096, "max_window_layers": 62, "num_key_value_heads": 32},
        ),
        "deepseek_v2": Decoder(
            qkv_bias="attention_bias", mlp_bias="mlp_bias", latent=True, experts=DEEPSEEK,
            defaults={"q_lora_rank": 1536, "n_shared_experts": 2},
        ),
        "deepseek_v3": Decoder(
            qkv_bias="attention_bias", latent=True, experts=DEEPSEEK,
            defaults={"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3},
        ),
        "minicpm3": Decoder(
            qkv_bias="attention_bias", mlp_bias="mlp_bias", latent=True, defaults={**TIED, "q_lora_rank": 768}
        ),
        # GPT-2 and older
        "gpt2": GPT2,
        "gpt_bigcode": replace(
            CLASSIC, positions=0, times=4, names=GPT2_NAMES, heads_of=one_head_or_all,
            defaults={**TIED, "multi_query": True},
        ),
        "gptj": GPTJ,
        "codegen": GPTJ,
        "gpt_neo": Decoder(
            o_bias=True, mlp_bias=True, gated=False, norm=2, positions=0, times=4, windows=gpt_neo, sheds=False,
            names={
                "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "sliding_window": "window_size",
            },
            defaults={**TIED, "sliding_window": 256},
        ),
        "gpt_neox": replace(BIASED, mlp_bias=True, gated=False, norm=2, defaults={"attention_bias": True}),
        "opt": Decoder(
            qkv_bias="enable_bias", o_bias="enable_bias", mlp_bias="enable_bias", gated=False, norm=2, positions=2,
            final_norm=opt_final_norm, names={"intermediate_size": "ffn_dim"},
            defaults={**TIED, "enable_bias": True, "do_layer_norm_before": True},
        ),
        "bloom": replace(
            CLASSIC, times=4, embedding_norm=True,
            names={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}, defaults=TIED,
        ),
        "falcon": Decoder(
            qkv_bias="bias", o_bias="bias", mlp_bias="bias", gated=False, norm=2, norms=falcon_norms, times=4,
            heads_of=falcon_heads, names={"intermediate_size": "ffn_hidden_size"},
            defaults={**TIED, "multi_query": True, "parallel_attn": True},
        ),
        "mpt": Decoder(
            gated=False, times=4,
            names={
                "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                "max_position_embeddings": "max_seq_len",
            },
            defaults=TIED,
        ),
        "xglm": replace(
            CLASSIC, defaults=TIED,
            names={
                "hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "attention_heads",
                "intermediate_size": "ffn_dim",
            },
        ),
        "biogpt": replace(CLASSIC, positions=2, defaults=TIED),
        "starcoder2": Decoder(
            qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", gated=False, norm=2, windows=everywhere,
            defaults={**TIED, "use_bias": True, "num_key_value_heads": 2},
        ),
        "stablelm": Decoder(
            qkv_bias="use_qkv_bias", norm=2, qk_norm="heads", qk_norm_if="qk_layernorm",
            norms=parallel_norms, defaults={"num_key_value_heads": 32},
        ),
        "persimmon": replace(
            CLASSIC, qk_norm="head", qk_norm_if="qk_layernorm", qk_vectors=2,
            heads_of=all_heads, defaults={"qk_layernorm": True},
        ),
    }
)  # fmt: skip
