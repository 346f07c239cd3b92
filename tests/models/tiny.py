"""Small transformers models with random weights, and a tokenizer for them, made in milliseconds and without a network.

All sizes of a model differ, so that no swapped axis can pass. The weights of q and k are scaled up: at the usual
initialisation every map is near uniform, and near-uniform maps agree with almost anything. The same arguments give the
same weights, and the global random state is left alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn

from manyheads.private_names import seen_since

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAGE = """
    the a an this that these those each every some no and or but if when while because so then of in on at by for
    with from to into over under between after before near cat dog bird fish horse mouse king queen child woman man
    friend teacher doctor farmer house garden river road city village door window table chair book letter word story
    song map head key query value tree stone water fire wind rain snow sun moon star day night morning evening year
    week hour one two three four five six seven eight nine ten red blue green white black old new small large long
    short high low good bad first last next same other many few all more most less very too not never always often
    soon now here there was is are were be been has had have do did does said says saw sees went goes came comes took
    takes gave gives made makes sat sits ran runs read reads wrote writes found finds lost kept keeps left held told
    asked knew thought felt heard he she it they we you i his her its their our your my who what which where why how
    . , ; : ! ? ' " ( ) - 0 1 2 3 4 5 6 7 8 9"""
WORDS = tuple(PAGE.split())
VOCAB_SIZE = len(SPECIAL) + len(WORDS)
INITIAL = 0.05  # standard deviation of weights: embeddings must differ more than biases do, or all tokens look alike
TEXT = "The old cat sat on the table, and the dog said: why is the cat here? Zyzzyva!"


def tiny_tokenizer(*, special_tokens: bool = True, model_max_length: int | None = None) -> hf.PreTrainedTokenizerFast:
    """A fast tokenizer of whole words, lower-cased; the rest is [UNK]. `special_tokens`: [CLS], [SEP] around a text."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()])
    if special_tokens:
        around = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
        )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if special_tokens:
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    limit = {} if model_max_length is None else {"model_max_length": model_max_length}
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, **names, **limit)


def tiny_bert(
    cls: type[hf.PreTrainedModel] = hf.BertModel, *, seed: int = 0, sharpness: float = 5.0, **config: Any
) -> Any:
    """2 layers, 5 heads of 8, bidirectional, 64 learned positions. `cls` may be any Bert class, one with a head too."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 5, "hidden_size": 40, "intermediate_size": 56}
    other = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 64, "pad_token_id": 0}
    return _made(cls, hf.BertConfig(**{**sizes, **other, **config}), seed, sharpness)


def tiny_gpt2(
    cls: type[hf.PreTrainedModel] = hf.GPT2LMHeadModel, *, seed: int = 0, sharpness: float = 5.0, **config: Any
) -> Any:
    """3 layers, 4 heads of 9, causal, 96 learned positions; q, k, v in one projection; a tied language-model head."""
    sizes = {"n_layer": 3, "n_head": 4, "n_embd": 36, "n_inner": 60, "n_positions": 96}
    other = {"vocab_size": VOCAB_SIZE, "bos_token_id": None, "eos_token_id": None}
    return _made(cls, hf.GPT2Config(**{**sizes, **other, **config}), seed, sharpness)


def tiny_llama(num_kv_heads: int = 3, *, seed: int = 0, sharpness: float = 5.0, **config: Any) -> Any:
    """3 layers, 6 heads of 8 over `num_kv_heads` (3: GQA, 1: MQA, 6: MHA), causal, rotary positions, 80 of them."""
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": num_kv_heads, "hidden_size": 48}
    other = {
        "intermediate_size": 68, "max_position_embeddings": 80, "vocab_size": VOCAB_SIZE, "tie_word_embeddings": False,
    }  # fmt: skip
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return _made(hf.LlamaForCausalLM, hf.LlamaConfig(**{**sizes, **other, **ends, **config}), seed, sharpness)


def tiny_mistral(*, seed: int = 0, sharpness: float = 5.0, **config: Any) -> Any:
    """2 layers, 6 heads of 8 over 2, a window of 6 in every layer, 72 positions; sdpa and eager."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48}
    other = {"intermediate_size": 52, "max_position_embeddings": 72, "vocab_size": VOCAB_SIZE, "sliding_window": 6}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return _made(hf.MistralForCausalLM, hf.MistralConfig(**{**sizes, **other, **ends, **config}), seed, sharpness)


EAGER = {"attn_implementation": "eager"}  # of what is capped: up to transformers 5.20 sdpa drops the cap in silence


def tiny_gemma2(*, seed: int = 0, sharpness: float = 5.0, **config: Any) -> Any:
    """3 layers, 4 heads of 10 over 2: sliding (window 7), full, sliding. Scores are capped at 5, and their scale is not
    1 / sqrt(head_dim): whoever forgets either gets other weights. 72 positions."""
    sizes = {
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "hidden_size": 44,
    }  # fmt: skip
    rules = {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 7, "sliding_window": 7}
    other = {"intermediate_size": 52, "max_position_embeddings": 72, "vocab_size": VOCAB_SIZE}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    return _made(
        hf.Gemma2ForCausalLM, hf.Gemma2Config(**{**sizes, **rules, **other, **ends, **EAGER, **config}), seed, sharpness
    )


def save_tiny(model: hf.PreTrainedModel, folder: Path, tokenizer: hf.PreTrainedTokenizerFast | None = None) -> Path:
    """`folder`, with the model in it, and with the tokenizer if one is given, as a hub model would lie there."""
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


def _made(cls: type[hf.PreTrainedModel], config: Any, seed: int, sharpness: float) -> Any:
    config.initializer_range = INITIAL
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = cls(config).eval()
        for name, module in model.named_modules():
            weight = getattr(module, "weight", None)
            if not isinstance(weight, nn.Parameter):
                continue
            if name.endswith((".query", ".key", ".q_proj", ".k_proj")):
                weight.mul_(sharpness)
            elif name.endswith(".c_attn"):  # GPT-2 keeps q, k and v side by side, in columns
                weight[:, : 2 * config.n_embd].mul_(sharpness)
        for name, bias in model.named_parameters():  # zero at initialisation: then nobody notices that one was dropped
            if name.endswith(".bias"):
                bias.normal_(std=INITIAL / 2)
    return model


# ============================================================================================================ odd rules
# Small models with odd rules, made like those of `tiny`: gpt-oss has sinks, T5 a bias on scores, T5, BART 3 stacks.


def tiny_gpt_oss(*, seed: int = 0) -> Any:
    """2 layers, 6 heads over 3, a sink a head in the denominator; the first layer with a window of 5. Eager only."""
    sizes = {"hidden_size": 40, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "sliding_window": 5}
    other = {"num_local_experts": 3, "num_experts_per_tok": 2, "vocab_size": VOCAB_SIZE}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    with _seeded(seed):
        model = hf.GptOssForCausalLM(hf.GptOssConfig(**sizes, **heads, **other, **ends, **kinds, **rope)).eval()
        for name, weight in model.named_parameters():
            if name.endswith("sinks"):
                weight.normal_(mean=1.0)
            elif name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.mul_(6)
    return model


def require_seen(family: str) -> None:
    """End a test as expected to fail where this transformers is older than the one that shows the family's attention.

    That such a model is refused, by that version's name, is a test of its own (test_taps.py).
    """
    if since := seen_since(family):
        pytest.xfail(f"{family} is refused before transformers {since}")


def attend_by(model: Any, name: str) -> None:
    """Have the whole model compute its attention by `name`: up to transformers 5.17 T5's stacks do not follow it."""
    for part in model.modules():
        if isinstance(part, hf.PreTrainedModel):
            part.set_attn_implementation(name)


def tiny_t5(*, seed: int = 0, **config: Any) -> Any:
    """2 layers of an encoder, 3 of a decoder, 4 heads of 7; scores have a bias by distance and no scale."""
    require_seen("t5")
    sizes = {"d_model": 30, "d_kv": 7, "d_ff": 44, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
    with _seeded(seed):
        made = hf.T5Config(**{"vocab_size": VOCAB_SIZE, "decoder_start_token_id": 0, **sizes, **config})
        model = hf.T5ForConditionalGeneration(made).eval()
        for name, weight in model.named_parameters():
            if "relative_attention_bias" in name:
                weight.normal_(std=2.0)
    return model


def tiny_bart(seed: int = 0) -> Any:
    """2 layers of an encoder, 2 of a decoder, 4 heads of 8; maps far from even."""
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 48}
    ends = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2, "bos_token_id": 2}
    with _seeded(seed):
        return hf.BartForConditionalGeneration(
            hf.BartConfig(vocab_size=VOCAB_SIZE, init_std=0.25, **sizes, **ends)
        ).eval()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The same weights for the same seed, and the global random state left alone."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        yield
