"""flex attention: its BlockMask is a function and a list of blocks; read exactly, or refused.

Oracles: the model's own eager maps, and the mask's function asked cell by cell. torch compiles flex attention as it is
called, some seconds for each model: that is done once; the others call it uncompiled.
"""

import shutil
import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface

import manyheads as mh
from manyheads.attention import Mask
from manyheads.errors import GuardError, ModelError
from manyheads.models.taps import mask_arguments as flexmasks
from manyheads.models.taps.mask_arguments import read_block_mask
from tests.models.eager import assert_near, assert_the_models_own, draw, eager_maps, implementation, padded
from tests.models.tiny import VOCAB_SIZE, tiny_bert, tiny_gemma2, tiny_llama, tiny_tokenizer

LENGTHS = (11, 7, 17)
MAKERS = {"llama": tiny_llama, "gemma2": tiny_gemma2, "bert": tiny_bert}


@pytest.fixture
def uncompiled(monkeypatch):
    def call(query, key, value, training=False, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it is not compiled
            return flex_attention(query, key, value, **kwargs)

    def make(*args, _compile=False, **kwargs):
        return create_block_mask(*args, **kwargs)

    monkeypatch.setattr("transformers.integrations.flex_attention.compile_friendly_flex_attention", call)
    monkeypatch.setattr("transformers.masking_utils.create_block_mask", make)


@pytest.fixture(autouse=True)
def forget():
    yield
    torch._dynamo.reset()


def assert_read(model, inputs):
    with implementation(model, "flex_attention"):
        rec = assert_the_models_own(model, inputs)
    assert rec.provenance["implementation"] == "flex_attention"
    return rec


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="torch compiles in C++")
@pytest.mark.filterwarnings("ignore")  # torch's, about its own compiler
@pytest.mark.slow  # the compiler takes 15 seconds; uncompiled, below, it is the same function
def test_compiled_as_transformers_calls_it_weights_are_the_models_own(fresh):
    model, inputs = tiny_llama(seed=draw(fresh)), {**padded(fresh, LENGTHS, VOCAB_SIZE), "use_cache": False}
    with implementation(model, "flex_attention"), torch.no_grad():
        model(**inputs)
    torch._dynamo.utils.counters.clear()
    assert_read(model, inputs)
    compiled = torch._dynamo.utils.counters["frames"]["ok"]
    assert compiled <= 2, f"{compiled} for two taps, which may have a mask's making compiled again, but never the rest"


@pytest.mark.thinned(name=("gemma2",), side=("left",))  # half of gemma2's layers are llama's
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_uncompiled_weights_are_the_models_own(name, side, uncompiled, fresh):
    """Causal, sliding and bidirectional masks, padded; softcaps; heads that are, and are not, a power of two."""
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE, side)
    rec = assert_read(MAKERS[name](seed=draw(fresh)), inputs)
    assert all(layer.mask.dense is None for layer in rec.layers)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_packed_text_has_the_weights_that_it_has_alone(name, uncompiled, fresh):
    model, lengths = MAKERS[name](seed=draw(fresh)), (5, 9, 3, 8)
    inputs = {"input_ids": torch.randint(5, VOCAB_SIZE, (1, sum(lengths)), generator=fresh), "use_cache": False}
    inputs["position_ids"] = torch.cat([torch.arange(length) for length in lengths])[None]
    with implementation(model, "flex_attention"):
        rec = mh.record_call(model, **inputs)
    begins = torch.tensor([0, *lengths]).cumsum(0).tolist()
    for span in map(slice, begins[:-1], begins[1:]):
        maps = eager_maps(model, input_ids=inputs["input_ids"][:, span])
        for layer, own in zip(rec.layers, maps, strict=True):
            assert layer.mask.dense is None
            assert_near(layer.weights(queries=span, keys=span), own[0])


@pytest.mark.parametrize("name", ["llama", pytest.param("gemma2", marks=pytest.mark.slow)])
@pytest.mark.thinned
def test_generation_equals_the_recording_of_the_finished_text(name, uncompiled, fresh):
    lm = mh.load(MAKERS[name](seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))
    with implementation(lm.model, "flex_attention"):
        rec = mh.record(lm, ["the cat sat on the mat . the dog", "a king said : why is it"], generate=9)
    for text in range(2):
        ids = rec.tokens.ids[text : text + 1, : rec.tokens.lengths[text]]
        for layer, own in zip(rec.layers, eager_maps(lm.model, input_ids=ids), strict=True):
            assert_near(layer.weights(text=text), own[0])


def test_without_a_mask_nothing_is_hidden(uncompiled, fresh):
    """sdpa asks the module then; flex attention does as it is told."""

    class Attends(torch.nn.Module):
        is_causal = True

        def forward(self, x):
            return AttentionInterface()["flex_attention"](self, x, x, x, None, scaling=1.0)[0]

    module, x = Attends().eval(), torch.randn(2, 4, 7, 16, generator=fresh)
    rec = mh.record_call(module, x)
    assert_near(rec.layers[0].weights(text=1), (x @ x.transpose(2, 3)).softmax(-1)[1])


MASKS = {
    "causal": lambda b, h, q, k: q >= k, "sliding": lambda b, h, q, k: (q >= k) & (q - k < 5),
    "by text": lambda b, h, q, k: k < 3 + 4 * b, "by head": lambda b, h, q, k: (k + h) % 2 == 0,
    "holes": lambda b, h, q, k: (q - k) % 3 == 0, "nothing": lambda b, h, q, k: (q > 4) & (k < 2),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MASKS))
def test_a_block_mask_is_read_cell_by_cell(name, monkeypatch):
    """Row blocks that are not a multiple of the mask's own; more keys in the mask than there are."""
    monkeypatch.setattr(flexmasks, "DENSE_ROWS", 5)
    rule, (texts, heads, queries, keys) = MASKS[name], (2, 3, 13, 11)
    mask = create_block_mask(rule, texts, heads, queries, keys + 6, device="cpu", BLOCK_SIZE=(4, 8))
    got = read_block_mask(mask, queries, keys)
    seen = got.visible(slice(0, queries), slice(0, keys)).expand(texts, heads, -1, -1)
    for b in range(texts):
        for h in range(heads):
            for q in range(queries):
                for k in range(keys):
                    assert bool(seen[b, h, q, k]) == bool(rule(b, h, q, k)), (b, h, q, k)
    assert (got.dense is None) == (name not in ("by head", "holes"))


def test_blocks_and_function_that_part_are_refused():
    causal = create_block_mask(MASKS["causal"], 1, 1, 16, 16, device="cpu", BLOCK_SIZE=4)
    said = "blocks and mask_mod say different things, .* make it by create_block_mask"
    blocks = (causal.kv_num_blocks, causal.kv_indices)
    with pytest.raises(ModelError, match=said):  # kernels skip the blocks, the function hides nothing
        read_block_mask(BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=4), 16, 16)
    full = (causal.kv_num_blocks * 0, causal.kv_indices, causal.kv_num_blocks + 1, causal.kv_indices)
    with pytest.raises(ModelError, match=said):  # kernels see whole blocks in which the function hides cells
        read_block_mask(BlockMask.from_kv_blocks(*full, BLOCK_SIZE=4, mask_mod=MASKS["causal"]), 16, 16)


@pytest.mark.parametrize("mask", [torch.ones(2, 1, 9, 9).tril().bool(), torch.zeros(2, 4, 9, 9)])
def test_a_dense_mask_that_flex_attention_would_misread_is_refused_by_name(mask, uncompiled, fresh):
    model = tiny_llama(seed=draw(fresh))
    said = "adds a dense mask to the scores, and head 0's for all heads"
    with implementation(model, "flex_attention"), pytest.raises(ModelError, match=said):
        mh.record_call(model, **padded(fresh, (9, 9), VOCAB_SIZE) | {"attention_mask": mask}, use_cache=False)


def test_a_mask_that_was_misread_is_caught_by_the_guard(uncompiled, monkeypatch, fresh):
    """The guard stands behind the reading: here a causal mask is taken for none."""
    model = tiny_llama(seed=draw(fresh))
    whole = "manyheads.models.taps.mask_arguments.read_block_mask"
    monkeypatch.setattr(whole, lambda mask, queries, keys: Mask.full(queries, keys))
    with implementation(model, "flex_attention"), pytest.raises(GuardError, match="would be wrong: none is made"):
        mh.record_call(model, **padded(fresh, (9, 9), VOCAB_SIZE), use_cache=False)
