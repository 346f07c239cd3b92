"""Tiny models of many families, lively enough that generation is no one word repeated, and surgery done by hand.

All sizes differ. Weights are large, biases and gains are random, so that nothing that is dropped goes unnoticed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import nn

import manyheads as mh
from manyheads.interventions import difference
from manyheads.interventions.verify import outputs_of, random_inputs
from tests.models.tiny import require_seen

SAME = 1e-5  # of the largest output
VOCABULARY = 97
ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 68, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10, "max_position_embeddings": 80,
    "tie_word_embeddings": False, **ENDS,
}  # fmt: skip
EIGHT = {**DECODER, "head_dim": 8}  # as wide as the model: configs that ask for it
VISION = {
    "hidden_size": 40, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 5, "image_size": 24,
    "patch_size": 8,
}  # fmt: skip
T5 = {
    "vocab_size": VOCABULARY, "d_model": 30, "d_kv": 7, "d_ff": 44, "num_layers": 3, "num_decoder_layers": 3,
    "num_heads": 4, "decoder_start_token_id": 1, "tie_word_embeddings": False, **ENDS,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How to make one, which heads to remove, where its output projection is, and as what it should come back."""

    cls: str
    sizes: dict[str, Any]
    remove: str
    output: str  # the end of the path of each output projection
    comes_back: str = ""
    attention: str = "sdpa"
    changes: dict[str, Any] = field(default_factory=dict)

    def make(self, fresh: torch.Generator) -> Any:
        cls = getattr(transformers, self.cls)
        require_seen(cls.config_class.model_type)
        config = cls.config_class(**{**self.sizes, **self.changes})
        config._attn_implementation = self.attention
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=fresh)))
            model = cls(config).eval()
            enliven(model)
        if model.can_generate():
            model.generation_config.no_repeat_ngram_size = 1  # no word twice: each step is a choice of its own
        return model


GROUP, PAIR, ONE = "L*H2-3", "L*H1, L*H3, L*H5", "L*H1"
STOCK = {
    "llama": Family("LlamaForCausalLM", EIGHT, PAIR, "o_proj"),
    "llama, five heads": Family(
        "LlamaForCausalLM", EIGHT, ONE, "o_proj", "MistralForCausalLM", changes={"num_key_value_heads": 6}
    ),
    "mistral": Family("MistralForCausalLM", DECODER, GROUP, "o_proj"),
    "qwen2": Family("Qwen2ForCausalLM", DECODER, GROUP, "o_proj"),
    "qwen3": Family("Qwen3ForCausalLM", DECODER, PAIR, "o_proj"),
    "gemma": Family("GemmaForCausalLM", DECODER, GROUP, "o_proj"),
    "gemma2": Family("Gemma2ForCausalLM", DECODER, PAIR, "o_proj", attention="eager"),
    "phi": Family("PhiForCausalLM", EIGHT, PAIR, "dense"),
    "phi3": Family("Phi3ForCausalLM", EIGHT, GROUP, "o_proj"),
    "olmo": Family("OlmoForCausalLM", EIGHT, GROUP, "o_proj"),
    "granite": Family("GraniteForCausalLM", EIGHT, PAIR, "o_proj"),
    "cohere": Family("CohereForCausalLM", EIGHT, GROUP, "o_proj", changes={"use_qk_norm": True}),
    "starcoder2": Family("Starcoder2ForCausalLM", EIGHT, PAIR, "o_proj"),
    "smollm3": Family("SmolLM3ForCausalLM", EIGHT, GROUP, "o_proj"),
    "gpt_oss": Family(
        "GptOssForCausalLM", DECODER, GROUP, "o_proj", attention="eager",
        changes={"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 5,
                 "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "t5": Family("T5ForConditionalGeneration", T5, "encoder:L*H2, decoder:L*H1, cross:L0H0, cross:L1-2H3", ".o"),
    "vit": Family("ViTModel", VISION, ONE, "o_proj"),
    "dinov2": Family("Dinov2Model", VISION, ONE, "o_proj"),
}  # fmt: skip
"""Families whose config can say what is left."""

BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 40, "intermediate_size": 52, "num_hidden_layers": 2,
    "num_attention_heads": 5, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
BART = {
    "vocab_size": VOCABULARY, "d_model": 30, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 5,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 44, "decoder_ffn_dim": 38, "max_position_embeddings": 64,
    "decoder_start_token_id": 1, **ENDS,
}  # fmt: skip
WIDE = {**DECODER, "num_key_value_heads": 6, "head_dim": None}
COMPACT = {
    "bert": Family("BertForMaskedLM", BERT, "L0H1, L1H0, L1H3-4", "output.dense"),
    "roberta": Family("RobertaModel", BERT, "L0H1-2, L1H4", "output.dense"),
    "electra": Family("ElectraModel", {**BERT, "embedding_size": 24}, "L0H1, L1H0", "output.dense"),
    "distilbert": Family(
        "DistilBertModel", {"vocab_size": VOCABULARY, "dim": 40, "n_heads": 5, "n_layers": 2, "hidden_dim": 52},
        "L0H1, L1H0-2", "out_lin",
    ),
    "modernbert": Family("ModernBertModel", {**BERT, "cls_token_id": 1, "sep_token_id": 2}, "L0H1, L1H0-2", "Wo"),
    "gpt2": Family(
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_layer": 2, "n_head": 4, "n_embd": 36, "n_positions": 64, **ENDS},
        "L0H1, L1H0, L1H2", "c_proj",
    ),
    "gpt_bigcode": Family(
        "GPTBigCodeForCausalLM",
        {"vocab_size": VOCABULARY, "n_layer": 2, "n_head": 4, "n_embd": 36, "n_positions": 64, **ENDS}, "L0H1, L1H2-3",
        "c_proj",
    ),
    "gpt_neox": Family("GPTNeoXForCausalLM", WIDE, "L0H1, L1H0, L1H4-5", "dense"),
    "opt": Family("OPTForCausalLM", {**WIDE, "ffn_dim": 52, "word_embed_proj_dim": 48}, "L0H1, L1H0, L1H3", "out_proj"),
    "bart": Family(
        "BartForConditionalGeneration", BART, "encoder:L0H1, decoder:L1H0-2, cross:L0H5, cross:L1H1", "out_proj"
    ),
    "llama, uneven": Family("LlamaForCausalLM", EIGHT, "L0H0-1, L1H1, L1H3, L1H5", "o_proj"),
    "phi3, uneven": Family("Phi3ForCausalLM", EIGHT, "L1H2-3", "o_proj"),
}  # fmt: skip
"""Families whose config cannot, or not where layers differ."""


def enliven(model: nn.Module) -> None:
    """Large weights, random biases, gains and position biases."""
    for name, weight in model.named_parameters():
        if weight.ndim >= 2:
            weight.normal_(std=2.0 if "relative_attention_bias" in name else 1.5 / weight.shape[-1] ** 0.5)
            if name.endswith("Attention.q.weight"):  # T5 divides no score by the root of the width, its q does instead
                weight.mul_(model.config.d_kv**-0.5)
            if name.startswith(("lm_head", "model.embed_tokens", "shared")):
                weight.normal_()
        elif name.endswith(("bias", "sinks")):
            weight.normal_(std=0.3)
        else:
            weight.add_(0.2 * torch.randn_like(weight))


def fresh_mha(fresh: torch.Generator, name: str, num_heads: int = 6, num_kv_heads: int = 6) -> Any:
    """A family's model with as many key/value heads as said, loaded."""
    sizes = {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads, "hidden_size": 8 * num_heads}
    changes = {**STOCK[name].changes, **sizes, "head_dim": 8}
    return mh.load(replace(STOCK[name], changes=changes).make(fresh), tokenizer=False)


def mha_of_type(name: str, fresh: torch.Generator) -> Any:
    """A tiny MHA of a model type, fresh and lively."""
    few = {"num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
    few |= {"sliding_window": 5, "mask_token_id": 1, "hidden_act": "silu", "num_key_value_heads": 6, "head_dim": 8}
    config = transformers.AutoConfig.for_model(name, **{**DECODER, **few})
    config._attn_implementation = "eager"
    auto = transformers.AutoModel if name == "eurobert" else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=fresh)))
        model = auto.from_config(config).eval()
        enliven(model)
    return model


def in_float64(model: Any) -> Any:
    """A copy of it."""
    model = copy.deepcopy(model).double()
    if hasattr(model, "config"):
        model.config._experts_implementation = "eager"  # the grouped product of experts has no float64
    return model


def gap(got: Any, want: Any) -> float:
    """Between their outputs, in float64: what float32 rounds grows with scores, and with each layer."""
    inputs = random_inputs(want)
    return difference(*(outputs_of(in_float64(model), inputs) for model in (got, want)))


def assert_same(got: Any, want: Any) -> None:
    apart = gap(got, want)
    assert apart <= SAME, f"differs by {apart:.1e} of the largest output"


def by_hand(model: Any, output: str, sites: Any, removed: Any) -> Any:
    """A copy in which the removed heads' input columns of the output projections are zero: nothing of ours in it."""
    zeroed = copy.deepcopy(model)
    with torch.no_grad():
        for site in sites:
            around = site.module.removesuffix(".self")  # BERT's projection stands beside its attention
            name = next(p for p, _ in zeroed.named_modules() if p.startswith(f"{around}.") and p.endswith(output))
            module = zeroed.get_submodule(name)
            columns = module.weight.T if type(module).__name__ == "Conv1D" else module.weight
            for head in removed:
                if (head.stack, head.layer) == (site.stack, site.layer):
                    columns[:, head.index * site.v_dim : (head.index + 1) * site.v_dim] = 0
    return zeroed


class Reader(nn.Module):
    """The least that can be loaded: embeddings, and one layer of somebody's, or ours."""

    def __init__(self, layer: nn.Module | None = None):
        super().__init__()
        self.embed, self.layer = nn.Embedding(19, 20), layer or mh.MultiHeadAttention(20, 4, batch_first=True)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        return self.layer(x, x, x, need_weights=False)[0]
