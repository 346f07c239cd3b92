"""GGUF files: models of each family as transformers had them, packed numbers, tokenizers, damage, and noise.

Files are written by `gguf_files`, as llama.cpp's converter writes them. What judges: the model that was written, the
`gguf` package's own unpacking, transformers' own loader of GGUF, and a merge of bytes written here.
"""

import hashlib
import random
import re
import shutil
import struct
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn

import manyheads as mh
from manyheads.models.loading.gguf import blocks
from manyheads.models.loading.gguf.file import FORMATS, GgufFile
from manyheads.models.loading.gguf.model import build_unpacked
from manyheads.models.loading.gguf.tokenizer import tokenizer_of
from tests.models.gguf_files import (
    Packed,
    gguf_bytes,
    metadata_of,
    packed,
    random_blocks,
    stored_name,
    text,
    value_bytes,
    write_model,
)
from tests.refusals import refuses
from tests.seeds import seed_of

SIZES: dict[str, Any] = {
    "vocab_size": 37, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 80, "max_position_embeddings": 72, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 5, "num_experts_per_tok": 3}
DEEP: dict[str, Any] = {**SIZES, "num_hidden_layers": 7}  # the sixth layer of Gemma 3 is the first without a window
MODELS: dict[str, Any] = {
    "llama": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**SIZES, rms_norm_eps=3e-5, rope_parameters={"rope_type": "default", "rope_theta": 7e4})
    ),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES, tie_word_embeddings=True)),
    # 128: the width that transformers' loader takes whatever the file says; ours is asked for another below.
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, head_dim=128)),
    # Experts of the widths, likewise, that transformers' loader takes.
    "qwen2moe": lambda: hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**SIZES, **EXPERTS, norm_topk_prob=False)),
    "qwen3moe": lambda: hf.Qwen3MoeForCausalLM(
        hf.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=128, norm_topk_prob=True)
    ),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SIZES, sliding_window=11)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**SIZES, head_dim=10, query_pre_attn_scalar=10, sliding_window=7, attn_logit_softcapping=20.0)
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(
            **DEEP, head_dim=10, query_pre_attn_scalar=10, sliding_window=7
        )
    ),
    "starcoder2": lambda: hf.Starcoder2ForCausalLM(hf.Starcoder2Config(**SIZES, sliding_window=None)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=37, n_embd=48, n_layer=2, n_head=6, n_inner=192, n_positions=1024, bos_token_id=None,
            eos_token_id=None,
        )
    ),
}  # fmt: skip


def randomised(model: nn.Module, fresh: torch.Generator) -> Any:
    """Every parameter drawn, those too that a fresh model has at 0 and 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=fresh))
    return model.eval()


def unpacked(path: Path, dtype: torch.dtype | None = None) -> Any:
    return build_unpacked(GgufFile(path), torch.device("cpu"), dtype, None)


@pytest.fixture(params=list(MODELS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


class TestModels:
    def test_weights_and_logits_are_those_of_the_model_that_was_written(
        self, family: str, tmp_path: Path, fresh: torch.Generator
    ):
        model = randomised(MODELS[family](), fresh)
        read = unpacked(write_model(tmp_path / "model.gguf", model, family))
        assert type(read) is type(model)
        expected, weights = model.state_dict(), read.state_dict()
        assert weights.keys() == expected.keys()
        # A norm of Gemma is stored as 1 + w, which rounds; nothing else may change.
        for name, weight in expected.items():
            rounded = (weight + 1) - 1 if family.startswith("gemma") and name.endswith("norm.weight") else weight
            assert torch.equal(weights[name], rounded), name
        ids = torch.randint(0, 37, (2, 29), generator=fresh)
        with torch.no_grad():
            theirs, ours = model(ids).logits, read(ids).logits
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        if not family.startswith("gemma"):
            assert torch.equal(ours, theirs)

    def test_every_weight_is_as_transformers_unpacks_it(self, family: str, tmp_path: Path, fresh: torch.Generator):
        model, rng = randomised(MODELS[family](), fresh), np.random.default_rng(seed_of(family))

        def pack(name: str, weight: torch.Tensor) -> Packed:
            is_matrix = weight.ndim == 2 and weight.shape[1] % 32 == 0
            kind = int(rng.choice([2, 3, 6, 7, 8, 20]))
            form = FORMATS[kind]
            return random_blocks(tuple(weight.shape), kind, 32, form.num_bytes, rng) if is_matrix else packed(weight)

        path = write_model(tmp_path / "model.gguf", model, family, pack, **TOKENS)
        theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
        ours, expected = unpacked(path).state_dict(), theirs.state_dict()
        assert all(torch.equal(ours[name], weight) for name, weight in expected.items())
        assert ours.keys() == expected.keys()

    def test_names_and_keys_are_those_of_the_gguf_package(self, family: str):
        """Those that our files have, by which the reader is tested."""
        model, kind = MODELS[family](), {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[family]
        names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
        for name in model.state_dict():
            # In gguf's table experts are not joined, and the embedding of Gemma 2 is tied in every model.
            if ".experts." not in name and (family, name) != ("gemma2", "lm_head.weight"):
                assert stored_name(name, family) == names.get_name(name, try_suffixes=(".weight", ".bias"))
        known = {key for part in vars(gguf.Keys).values() if isinstance(part, type) for key in vars(part).values()}
        written = metadata_of(model, family, ["a"])
        assert {re.sub(rf"^{family}\.", "{arch}.", key) for key in written} <= known

    def test_size_is_that_of_the_model_and_published_bytes_are_the_tensors(
        self, family: str, tmp_path: Path, fresh: torch.Generator
    ):
        model, rng = randomised(MODELS[family](), fresh), np.random.default_rng(seed_of(f"size of {family}"))

        def pack(name: str, weight: torch.Tensor) -> Packed:
            is_matrix = weight.ndim == 2 and weight.shape[1] % 32 == 0
            return random_blocks(tuple(weight.shape), 8, 32, 34, rng) if is_matrix else packed(weight)

        path = write_model(tmp_path / "model.gguf", model, family, pack)
        sizing, expected = mh.size(path, 23, 3), mh.size(model, 23, 3)
        assert sizing.num_parameters == expected.num_parameters == sum(p.numel() for p in model.parameters())
        assert sizing.architecture.layers == expected.architecture.layers and sizing.cache == expected.cache
        published = mh.size(tmp_path, dtype="published")
        stored = sum(tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)
        assert published.weight_bytes == pytest.approx(stored, rel=1e-12) and published.name == tmp_path.name

    def test_size_refuses_keys_that_mean_other_tensors(self, tmp_path: Path, fresh: torch.Generator):
        model = randomised(MODELS["llama"](), fresh)
        path = write_model(tmp_path / "model.gguf", model, "llama", **{"llama.feed_forward_length": 96})
        refuses(mh.errors.ModelError, "its keys mean [0-9,]+ parameters, and its tensors hold", mh.size, path)


class TestNumbers:
    @pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
    def test_are_those_of_the_gguf_package_bit_for_bit(self, kind: int, tmp_path: Path):
        form, rng = FORMATS[kind], np.random.default_rng(seed_of(f"numbers of kind {kind}"))
        path = tmp_path / "model.gguf"
        drawn = random_blocks((3, 5, 512), kind, form.numbers, form.num_bytes, rng)
        path.write_bytes(gguf_bytes({"general.architecture": "llama"}, {"x": drawn}))
        (stored,) = gguf.GGUFReader(path).tensors
        expected = gguf.dequantize(stored.data, stored.tensor_type).astype(np.float32)
        numbers = blocks.unpacked(GgufFile(path), "x")
        assert numbers.shape == expected.shape and np.isfinite(expected).all() and len(np.unique(expected)) > 20
        assert numbers.float().numpy().tobytes() == expected.tobytes()


TOKENS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [chr(97 + place) if place < 26 else f"{chr(71 + place)}b" for place in range(37)],
    "tokenizer.ggml.token_type": [1] * 37,
    "tokenizer.ggml.merges": [f"{chr(97 + place)} b" for place in range(11)],
    "tokenizer.ggml.padding_token_id": 5,
}
PIECES = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(9)), "▁", *"abcdef", "▁a", "ab"],
    "tokenizer.ggml.scores": [-float(place) for place in range(20)],
    "tokenizer.ggml.token_type": [2, 3, *[6] * 9, *[1] * 9],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.unknown_token_id": 0,
}


class TestWhatAFileSays:
    """Keys that change what a model computes are read, or the file is refused, and the key named."""

    def read(self, tmp_path: Path, fresh: torch.Generator, /, architecture: str = "llama", **keys: Any) -> Any:
        model = randomised(MODELS[architecture](), fresh)
        named = {
            key if "." in key else f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()
        }
        return unpacked(write_model(tmp_path / "model.gguf", model, architecture, **named)), model

    @pytest.mark.parametrize("architecture", ["qwen2moe", "qwen3moe"])
    def test_widths_of_heads_and_experts_are_those_of_the_file(
        self, architecture: str, tmp_path: Path, fresh: torch.Generator
    ):
        sizes: dict[str, Any] = {**SIZES, **EXPERTS, "moe_intermediate_size": 24}
        made: Any = (
            hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**sizes, shared_expert_intermediate_size=40))
            if architecture == "qwen2moe"
            else hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**sizes, head_dim=10, norm_topk_prob=True))
        )
        model = randomised(made, fresh)
        read = unpacked(write_model(tmp_path / "model.gguf", model, architecture))
        ids = torch.randint(0, 37, (2, 29), generator=fresh)
        with torch.no_grad():
            assert torch.equal(read(ids).logits, model(ids).logits)

    def test_linear_scaling_is_that_of_transformers(self, tmp_path: Path, fresh: torch.Generator):
        read, model = self.read(tmp_path, fresh, rope__scaling__type="linear", rope__scaling__factor=2.5)
        scaled = hf.LlamaForCausalLM(
            hf.LlamaConfig(
                **SIZES, rms_norm_eps=3e-5, rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 7e4}
            )
        )
        scaled.load_state_dict(model.state_dict())
        ids = torch.randint(0, 37, (1, 31), generator=fresh)
        with torch.no_grad():
            assert torch.equal(read(ids).logits, scaled.eval()(ids).logits)
            assert not torch.allclose(read(ids).logits, model(ids).logits, atol=1e-3)

    def test_factors_of_llama_3_become_its_settings(self, tmp_path: Path, fresh: torch.Generator):
        settings = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0}
        settings |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        sizes: dict[str, Any] = SIZES | {
            "hidden_size": 128,
            "num_attention_heads": 2,
            "max_position_embeddings": 131072,
        }
        model = randomised(hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, rope_parameters=settings)), fresh)
        plain = 5e5 ** (torch.arange(0, 64, 2, dtype=torch.float64) / 64)
        factors = 1 / (model.model.rotary_emb.inv_freq.double() * plain)
        path = tmp_path / "model.gguf"
        write_model(path, model, "llama", extra={"rope_freqs.weight": packed(factors.float())})
        ids = torch.randint(0, 37, (1, 31), generator=fresh)
        with torch.no_grad():
            assert torch.equal(unpacked(path)(ids).logits, model(ids).logits)
        write_model(path, model, "llama", extra={"rope_freqs.weight": packed(factors.float() * 1.01)})
        refuses(mh.ManyHeadsError, "rope_freqs.weight.*not those of Llama 3", unpacked, path)

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"rope__scaling__type": "longrope"}, r"llama\.rope\.scaling\.type = 'longrope', which is not read"),
            ({"rope__scaling__factor": 2.0}, r"llama\.rope\.scaling\.factor = 2\.0"),
            ({"attention__clamp_kqv": 8.0}, r"llama\.attention\.clamp_kqv"),
            ({"expert_count": 4}, r"llama\.expert_count"),
            ({"attention__head_count_kv": [2, 3]}, r"head_count_kv for each layer \(2, 3\)"),
            ({"rope__dimension_count": 4}, r"llama\.rope\.dimension_count = 4"),
            ({"rope__dimension_count": 4096}, "says 4096 for llama.rope.dimension_count"),
            ({"attention__key_length": 0}, "says 0 for llama.attention.key_length"),
            ({"block_count": 900}, "900 layers, and 2"),
            ({"block_count": 3}, "lacks: model.layers.2"),
            ({"block_count": 1}, "'blk.1..*has no place"),
            ({"vocab_size": 36}, "a vocabulary of 36, and 37 embeddings"),
            ({"feed_forward_length": 82}, r"is \[80, 48\], and its keys mean \[82, 48\]"),
            ({"attention__head_count": 0}, "says 0 for llama.attention.head_count"),
            ({"tokenizer.ggml.bos_token_id": 37}, "says 37 for tokenizer.ggml.bos_token_id, .* of 37 tokens"),
            ({"tokenizer.ggml.eos_token_id": 2**32 - 1}, "says 4294967295 for tokenizer.ggml.eos_token_id"),
            ({"tokenizer.ggml.padding_token_id": "x"}, "says 'x' for tokenizer.ggml.padding_token_id"),
            ({"tokenizer.ggml.unknown_token_id": True}, "says True for tokenizer.ggml.unknown_token_id"),
            ({"tokenizer.ggml.tokens": ["a", "b"] * 19}, "damaged: 38 tokens, and 37 embeddings"),
            ({"attention__head_count": 5}, "."),
            ({"architecture": "qwen3moe", "expert_count": 4}, r"is \[5, 1536, 48\], and its keys mean \[4, "),
            ({"architecture": "qwen3moe", "expert_used_count": "x"}, "says 'x' for qwen3moe.expert_used_count"),
            ({"architecture": "qwen3moe", "expert_weights_scale": 2.0}, r"qwen3moe\.expert_weights_scale = 2\.0"),
        ],
    )
    def test_what_is_not_read_is_refused_and_named(
        self, tmp_path: Path, fresh: torch.Generator, keys: dict[str, Any], words: str
    ):
        refuses(mh.ManyHeadsError, words, self.read, tmp_path, fresh, **keys)

    def test_architecture_that_is_not_read(self, tmp_path: Path):
        path = tmp_path / "model.gguf"
        path.write_bytes(gguf_bytes({"general.architecture": "rwkv"}, {"x": packed(torch.ones(3))}))
        refuses(mh.ManyHeadsError, "of architecture 'rwkv'; GGUF is read for llama, qwen2, qwen3", unpacked, path)


U32, U64, STRING, ARRAY = "<I", "<Q", 8, 9
BIG = 2**62


def header(num_tensors: int = 0, num_keys: int = 1, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys)


ARCHITECTURE = text("general.architecture") + value_bytes("llama")


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack(U32, kind) + value


def entry(name: str = "x", sizes: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def one_tensor(*entries: bytes, data: bytes = b"\1" * 64, keys: bytes = b"", num_keys: int = 1) -> bytes:
    head = header(len(entries), num_keys) + ARCHITECTURE + keys + b"".join(entries)
    return head + b"\0" * (-len(head) % 32) + data


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "three bytes": (b"GGU", "is not a GGUF file"),
    "magic of GGML": (header(magic=b"lmgg"), "is not a GGUF file: its first bytes are b'lmgg'"),
    "header alone": (header(), "1 keys in the 0 bytes"),
    "half a header": (b"GGUF\3\0\0\0\0", "a number of 8 bytes, where 1 are left"),
    "version 1": (header(version=1), "of GGUF version 1; versions 2 and 3"),
    "version 99": (header(version=99), "of GGUF version 99"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 1), "is big-endian"),
    "keys of 2^62": (header(num_keys=BIG) + ARCHITECTURE, f"{BIG:,} keys in the"),
    "tensors of 2^62": (header(num_tensors=BIG) + ARCHITECTURE, f"{BIG:,} tensors in the"),
    "key of 2^60": (header() + struct.pack(U64, 2**60) + b"a" * 9, "a key of 1,152,921,504,606,846,976 bytes"),
    "key of 2^64 - 8": (header() + struct.pack(U64, 2**64 - 8) + b"a" * 9, "a key of 18,446,744,073,709,551,608 bytes"),
    "value cut short": (header() + key("general.architecture", STRING, struct.pack(U64, 9) + b"llama"), "of 9 bytes"),
    "value of a type": (header() + key("a", 999, b""), "a value of the unknown type 999 for 'a'"),
    "array of 2^40": (header() + key("a", ARRAY, struct.pack("<IQ", 0, 2**40)), "values of 'a' in the 0 bytes"),
    "array of 2^33": (header() + key("a", ARRAY, struct.pack("<IQ", 0, 2**33) + b"abc"), "8,589,934,592 values"),
    "array of strings": (header() + key("a", ARRAY, struct.pack("<IQ", 8, 9) + b"\0" * 71), "9 values of 'a'"),
    "array of arrays": (header() + key("a", ARRAY, struct.pack("<IQ", 9, 1) * 2000), "an array of arrays for 'a'"),
    "array of a type": (header() + key("a", ARRAY, struct.pack("<IQ", 77, 0)), "an array of the unknown type 77"),
    "no UTF-8": (header() + key("a", STRING, struct.pack(U64, 2) + b"\xff\xfe"), "which is not UTF-8"),
    "no architecture": (header() + key("a", 4, struct.pack(U32, 1)), "no general.architecture"),
    "number as it": (header() + key("general.architecture", 4, struct.pack(U32, 1)), "no general.architecture"),
    "key twice": (header(num_keys=2) + ARCHITECTURE * 2, "the key 'general.architecture' a second time"),
    "tensor twice": (one_tensor(entry(), entry()), "the tensor 'x' a second time"),
    "no dimensions' size": (one_tensor(entry(sizes=(0, 4))), r"the tensor 'x' of shape \[0, 4\]"),
    "nine dimensions": (one_tensor(entry(sizes=(1,) * 9)), "9 dimensions, where 4 are the most"),
    "dimensions of 2^33": (one_tensor(entry(sizes=(2**33,))), "which would end at byte"),
    "dimensions of 2^80": (one_tensor(entry(sizes=(2**40, 2**40))), "of shape"),
    "offset of 2^63": (one_tensor(entry(offset=2**63)), "which would end at byte"),
    "offset past the end": (one_tensor(entry(offset=64)), "which would end at byte"),
    "odd offset": (one_tensor(entry(offset=4)), "not aligned to 32 bytes"),
    "data cut short": (one_tensor(entry(sizes=(17,))), "which would end at byte"),
    "type of a tensor": (one_tensor(entry(kind=999)), "the tensor 'x' of the unknown type 999"),
    "number in blocks": (one_tensor(entry(sizes=(), kind=2)), "rows of 1 in the tensor 'x', of blocks of 32"),
    "rows of 33": (one_tensor(entry(sizes=(33, 2), kind=2)), "rows of 33 in the tensor 'x', of blocks of 32"),
    "keys beyond any": (header(num_keys=2**16 + 1) + bytes(13 * 2**16 + 13), "65,537 keys, where 65,536 are the most"),
    "tensors beyond any": (header(num_tensors=2**16 + 1) + bytes(2**21 + 32), "65,537 tensors, where 65,536 are"),
    "letters beyond any": (
        header(num_keys=5) + ARCHITECTURE + b"".join(key(name * 9, STRING, text("x" * 2**20)) for name in "abcd"),
        "texts of 4,194,.* bytes with the value of 'ddddddddd', where 4,194,304 are the most",
    ),
    "letters of an item": (
        header() + key("a", ARRAY, struct.pack("<IQ", 8, 1) + text("x" * (2**22 + 1))),
        "texts of 4,194,305 bytes with a value of 'a', where 4,194,304 are the most",
    ),
    "alignment 0": (one_tensor(entry(), keys=key("general.alignment", 4, struct.pack(U32, 0)), num_keys=2), "of 0, no"),
    "alignment 3": (one_tensor(entry(), keys=key("general.alignment", 4, struct.pack(U32, 3)), num_keys=2), "of 3, no"),
    "alignment in words": (one_tensor(entry(), keys=key("general.alignment", 8, text("x")), num_keys=2), "of 'x', no"),
}  # fmt: skip


class TestDamage:
    @pytest.mark.parametrize("name", DAMAGED)
    def test_is_one_line_that_names_file_and_fault(self, name: str, tmp_path: Path):
        contents, words = DAMAGED[name]
        path = tmp_path / "model.gguf"
        path.write_bytes(contents)
        with pytest.raises(mh.ManyHeadsError, match=words) as raised:
            GgufFile(path)
        with pytest.raises(mh.ManyHeadsError, match=re.escape(str(raised.value))):
            mh.size(path)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_kinds_that_are_not_read_are_named(self, tmp_path: Path):
        path = tmp_path / "model.gguf"
        path.write_bytes(one_tensor(entry("blk.0.ffn_up", kind=39)))
        refuses(
            mh.ManyHeadsError, r"holds MXFP4 tensors \(blk.0.ffn_up\), which are not read: convert it", GgufFile, path
        )

    def test_parts_of_a_model_are_named(self, tmp_path: Path):
        path = tmp_path / "model-00002-of-00007.gguf"
        path.write_bytes(one_tensor(entry()))
        refuses(mh.ManyHeadsError, "part 2 of 7 of a model", GgufFile, path)

    def test_file_that_is_gone(self, tmp_path: Path):
        refuses(mh.ManyHeadsError, "cannot read", GgufFile, tmp_path / "none.gguf")

    @pytest.mark.parametrize(
        ("kind", "value", "count", "most"),
        [
            (ARRAY, struct.pack("<IQ", 8, 20_000) + bytes(8 * 20_000), 1, 1),  # empty texts
            (STRING, text("\U0001f600" + "x" * 90_000), 46, 4),  # letters of four bytes each in Python
            (ARRAY, struct.pack("<IQ", 0, 0), 4000, 20),  # the smallest entries that make the largest values
        ],
    )
    def test_memory_of_a_file_that_is_made_to_take_much(
        self, kind: int, value: bytes, count: int, most: float, tmp_path: Path
    ):
        path = tmp_path / "model.gguf"
        keys = b"".join(key(format(place, "x"), kind, value) for place in range(count))
        path.write_bytes(header(num_keys=count + 1) + ARCHITECTURE + keys)
        GgufFile(path)
        tracemalloc.start()
        try:
            GgufFile(path)
            assert tracemalloc.get_traced_memory()[1] < most * path.stat().st_size + 2**17
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("tokens", ["bytes", "pieces"])
    def test_noise_ends_in_our_own_error_and_takes_no_more_memory_than_the_file(
        self, tokens: str, tmp_path: Path, fresh: torch.Generator
    ):
        """Bytes changed at random, cut, repeated: read whole, model and tokenizer, or refused in words."""
        rng = random.Random(seed_of(f"noise in {tokens}"))
        path, architecture = tmp_path / "model.gguf", rng.choice([name for name in MODELS if "moe" not in name])
        model = randomised(MODELS[architecture](), fresh)
        written = TOKENS if tokens == "bytes" else PIECES
        whole = write_model(path, model, architecture, **written).read_bytes()
        metadata = whole.index(b"blk.")  # most damage is where lengths are
        GgufFile(path)  # what Python imports and compiles at the first file is no memory of any
        outcomes = []
        for _ in range(160):
            contents = bytearray(whole)
            for _ in range(rng.choice([1, 1, 2, 8])):
                place = rng.randrange(metadata if rng.random() < 0.7 else len(contents))
                kind = rng.random()
                if kind < 0.6:
                    contents[place] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
                elif kind < 0.8:
                    del contents[place : place + rng.randrange(1, 40)]
                else:
                    contents[place:place] = contents[place : place + rng.randrange(1, 40)]
            path.write_bytes(contents[: rng.randrange(len(contents))] if rng.random() < 0.1 else contents)
            tracemalloc.start()
            try:
                file = GgufFile(path)
                assert tracemalloc.get_traced_memory()[1] < 2 * len(contents)
            except mh.ManyHeadsError as error:
                assert str(path) in str(error), error
                outcomes.append(False)
                continue
            finally:
                tracemalloc.stop()
            for read in (partial(build_unpacked, file, torch.device("cpu"), None, None), partial(tokenizer_of, file)):
                try:
                    read()
                    outcomes.append(True)
                except mh.ManyHeadsError as error:
                    assert str(path) in str(error), error
                    outcomes.append(False)
        assert 10 < sum(outcomes) < len(outcomes) - 50  # some damage is none that anybody could see


@pytest.fixture
def file(tmp_path: Path, fresh: torch.Generator) -> Path:
    """A model with its tokenizer, in a folder of its own."""
    model = randomised(hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)), fresh)
    (tmp_path / "folder").mkdir()
    return write_model(tmp_path / "folder/tiny.Q8_0.gguf", model, "llama", **TOKENS)


class TestLoading:
    """`mh.load` of a file, a folder with one, and what Ollama calls its files."""

    def test_file_and_folder_are_one_model(self, file: Path):
        by_file, by_folder = mh.load(file, device="cpu"), mh.load(str(file.parent), device="cpu")
        assert (by_file.name, by_folder.name) == ("tiny.Q8_0", "folder")
        assert by_file.weights_hash == by_folder.weights_hash
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        for words in (
            "LlamaForCausalLM, from the file's architecture 'llama'",
            "float32, stored as F32 (21 tensors)",
            "tokenizer from the file, texts split as 'gpt-2'",
            f"from the file {file}, sha256 {digest}...",
        ):
            assert words in by_file.because
        assert by_folder.because.endswith(f"from the folder {file.parent}: tiny.Q8_0.gguf, sha256 {digest}...")
        assert "float16, as asked" in mh.load(file, device="cpu", dtype="float16").because

    def test_because_counts_tensors_by_their_form(self, tmp_path: Path, fresh: torch.Generator):
        def pack(name: str, weight: torch.Tensor) -> Packed:
            if "attn_q." in name:
                return random_blocks(tuple(weight.shape), 8, 32, 34, np.random.default_rng(seed_of(name)))
            return packed(weight, 1 if "ffn_up" in name else 0)

        sizes: dict[str, Any] = SIZES | {"hidden_size": 96, "num_hidden_layers": 1}
        model = randomised(hf.LlamaForCausalLM(hf.LlamaConfig(**sizes)), fresh)
        lm = mh.load(write_model(tmp_path / "tiny.gguf", model, "llama", pack, **TOKENS), device="cpu")
        words = "float32, unpacked from F32 (10 tensors), Q8_0 (1), F16 (1): rounded weights, not the original's; on"
        assert words in lm.because

    def test_file_of_ollama_is_known_by_its_first_bytes(self, file: Path, tmp_path: Path):
        blob = file.rename(tmp_path / "sha256-9f4b")
        assert mh.load(blob, device="cpu").name == "sha256-9f4b"
        renamed = blob.rename(tmp_path / "model.bin")  # by its first bytes, not by a name that pickles have
        assert mh.load(renamed, device="cpu").name == "model"
        other = tmp_path / "sha256-0000"
        other.write_bytes(b"{}")
        refuses(mh.ManyHeadsError, "'.*sha256-0000' is a file. Give the folder", mh.load, str(other))

    def test_missing_file_is_called_one(self, tmp_path: Path):
        refuses(
            mh.ManyHeadsError, r"no model '.*none.gguf': no such file, and not a name", mh.load, tmp_path / "none.gguf"
        )

    def test_folder_with_several(self, file: Path):
        shutil.copy(file, file.parent / "b.GGUF")
        refuses(mh.ManyHeadsError, r"holds 2 GGUF files \(b.GGUF, tiny.Q8_0.gguf\): name one", mh.load, file.parent)

    def test_folder_with_the_parts_of_one(self, file: Path):
        file.rename(file.parent / "m-00001-of-00002.gguf")
        (file.parent / "m-00002-of-00002.gguf").write_bytes(b"GGUF")
        refuses(mh.ManyHeadsError, "is part 1 of 2 of a model, and split files are not read", mh.load, file.parent)
