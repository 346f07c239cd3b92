"""flash-attn's functions and hub kernels under transformers: read exactly, or refused by name.

They need a GPU. Stand-ins that take the same arguments are put where transformers loads them from, so that
all of its own code runs: unpadding, packing, windows. Oracles: the model's own eager maps, of padded texts and of each
packed text alone.
"""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers import modeling_flash_attention_utils as utils
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import flash_attention_mask

import manyheads as mh
from manyheads import reference
from manyheads.errors import ModelError
from manyheads.models.taps import call as taps
from tests.models.eager import assert_near, assert_the_models_own, draw, eager_maps, padded, spans
from tests.models.tiny import VOCAB_SIZE, tiny_bert, tiny_gemma2, tiny_gpt_oss, tiny_llama, tiny_tokenizer
from tests.refusals import refuses

# ============================================================================================================ stand-ins
# Stand-ins for flash-attn's functions, which need a GPU: the same arguments, attention by the formula, on a CPU.
#
# Conventions are those of the packages' documentation: texts are counted from their ends, a window is (left, right),
# packed lse is `[h n]`, and a row that sees nothing has output 0 and lse +inf. Nothing is shared with the library.


def one_text(q, k, v, causal, window, softcap, scale, sinks):
    """[n h d], [m g d] -> output [n h d], lse [h n], sinks counted into it as flash-attn 4 does."""
    num_rows, num_keys, served = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(served, 1).double() for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.double(), k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    left, right = ((-1 if side is None else side) for side in window)
    for row in range(num_rows):
        own = row + num_keys - num_rows
        for key in range(num_keys):
            beyond = (0 <= left < own - key) or (key > own and causal) or (0 <= right < key - own)
            if beyond:
                scores[:, row, key] = -torch.inf
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, num_rows, 1)], 2)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().nan_to_num(0)[..., :num_keys]
    out = torch.einsum("hnm,mhd->nhd", weights, v)
    return out.to(q.dtype), torch.where(lse == -torch.inf, torch.inf, lse).float()


def alike(q, k, v, *how):
    parts = [one_text(*text, *how) for text in zip(q, k, v, strict=True)]
    return torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])


def packed(q, k, v, begins_q, begins_k, *how):
    out, lse = torch.empty_like(q), q.new_empty(q.shape[1], len(q), dtype=torch.float32)
    for text in range(len(begins_q) - 1):
        rows, keys = (slice(int(begins[text]), int(begins[text + 1])) for begins in (begins_q, begins_k))
        out[rows], lse[:, rows] = one_text(q[rows], k[keys], v[keys], *how)
    return out, lse


class Flash2:
    """Asked by `return_attn_probs`; knows softcap, no sinks."""

    def __init__(self):
        self.calls = []

    def alike(
        self, q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        self.calls.append("alike")
        out, lse = alike(q, k, v, causal, window_size, softcap, softmax_scale, None)
        return (out, lse, None) if return_attn_probs else out

    def packed(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        self.calls.append("packed")
        out, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, window_size, softcap, softmax_scale, None)
        return (out, lse, None) if return_attn_probs else out


class Flash3(Flash2):
    """vLLM's: sinks as `s_aux`; no dropout."""

    def alike(
        self, q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, s_aux=None,
        return_attn_probs=False,
    ):  # fmt: skip
        self.calls.append("alike")
        out, lse = alike(q, k, v, causal, window_size, softcap, softmax_scale, s_aux)
        return (out, lse) if return_attn_probs else out

    def packed(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, s_aux=None, return_attn_probs=False,
    ):  # fmt: skip
        self.calls.append("packed")
        out, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, window_size, softcap, softmax_scale, s_aux)
        return (out, lse) if return_attn_probs else out


class Flash4(Flash2):
    """None for no window; sinks as `learnable_sink`; a pair always, without an lse unless asked by `return_lse`."""

    def alike(
        self, q, k, v, softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
        return_lse=False,
    ):  # fmt: skip
        self.calls.append("alike")
        out, lse = alike(q, k, v, causal, window_size, softcap, softmax_scale, learnable_sink)
        return out, lse if return_lse else None

    def packed(
        self, q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, softmax_scale=None, causal=False,
        window_size=(None, None), learnable_sink=None, softcap=0.0, return_lse=False,
    ):  # fmt: skip
        self.calls.append("packed")
        how = (causal, window_size, softcap, softmax_scale, learnable_sink)
        out, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, *how)
        return out, lse if return_lse else None


class Mute(Flash2):
    """A hub kernel that gives no lse."""

    def alike(self, q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
        return super().alike(q, k, v, 0.0, softmax_scale, causal, window_size, softcap)

    def packed(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0,
    ):  # fmt: skip
        how = (0.0, softmax_scale, causal, window_size, softcap)
        return super().packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *how)


# =================================================================================================== under transformers

LENGTHS = (11, 7, 17)
MAKERS = {
    "llama": tiny_llama,
    "mqa": lambda **how: tiny_llama(1, **how),
    "gemma2": tiny_gemma2,  # softcap, a scale of its own, a window of 7
    "gpt_oss": tiny_gpt_oss,  # sinks, a window of 5
    "bert": tiny_bert,  # no causal mask
}
PACKAGES = {
    "flash_attention_2": Flash2, "flash_attention_3": Flash3, "flash_attention_4": Flash4, "someone/kernel": Flash3,
    "someone/mute": Mute,
}  # fmt: skip
KNOWS_SINKS = {name for name, package in PACKAGES.items() if package in (Flash3, Flash4)}  # others are handed none
CASES = [(model, name) for model in MAKERS for name in PACKAGES if model != "gpt_oss" or name in KNOWS_SINKS]
three_packages = pytest.mark.parametrize(
    ("model", "name"),
    [("llama", "flash_attention_2"), ("gemma2", "flash_attention_2"), ("gpt_oss", "flash_attention_4")],
)
OWN = "the model's own fused kernel returned the lse ({})"


@pytest.fixture
def install(monkeypatch):
    """Puts a package's stand-in where transformers loads it from; `use(model, name)` has the model call it."""
    stand_ins = {name: package() for name, package in PACKAGES.items()}

    def load(name, *args, **kwargs):
        package = stand_ins[name]
        return package.alike, package.packed, None, utils._pad_input, utils._unpad_input

    check = "_check_and_adjust_attn_implementation"  # whether the package is installed
    monkeypatch.setattr(PreTrainedModel, check, lambda model, name, *args, **kwargs: name)
    monkeypatch.setattr(utils, "_lazy_imports", load)
    monkeypatch.setattr(utils, "_loaded_implementation", None)
    for name in ("_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn", "_process_flash_kwargs_fn"):
        monkeypatch.setattr(utils, name, None)
    for name in PACKAGES:  # what transformers registers for a hub kernel
        monkeypatch.setitem(AttentionInterface._global_mapping, name, flash_attention_forward)
        monkeypatch.setitem(AttentionMaskInterface._global_mapping, name, flash_attention_mask)

    def use(model, name):
        model.set_attn_implementation(name)
        return stand_ins[name]

    return use


def assert_read(model, inputs):
    """As the model's own, and no mask written out."""
    rec = assert_the_models_own(model, inputs)
    assert all(layer.mask.dense is None for layer in rec.layers)
    return rec


@pytest.mark.thinned
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("model", "name"), CASES)
def test_texts_of_unlike_length_have_the_weights_of_the_eager_model(model, name, side, install, fresh):
    loaded = MAKERS[model](seed=draw(fresh))
    package = install(loaded, name)
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE, side)
    rec = assert_read(loaded, inputs)
    assert set(package.calls) == {"packed"}
    because = list(rec.provenance["backend"])
    if PACKAGES[name] is Mute or model == "gpt_oss":  # sinks: some packages count them into their lse, others do not
        assert all(one.startswith("recomputed, since the model's function returns no lse") for one in because)
    else:
        assert because == [OWN.format(name)]


@pytest.mark.thinned
@pytest.mark.parametrize(("model", "name"), [case for case in CASES if "/" not in case[1]])
def test_texts_that_are_alike_are_not_packed(model, name, install, fresh):
    loaded = MAKERS[model](seed=draw(fresh))
    package = install(loaded, name)
    inputs = padded(fresh, (13, 13), VOCAB_SIZE)
    assert_read(loaded, inputs)
    assert set(package.calls) == {"alike"}


def test_sinks_that_a_package_does_not_know_are_not_recorded(install, fresh):
    """transformers leaves them out without a word; the recording shows what the model did."""
    model = tiny_gpt_oss(seed=draw(fresh))
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE)
    without = copy.deepcopy(model)  # of which the eager function has no sinks either
    with torch.no_grad():
        for layer in without.model.layers:
            layer.self_attn.sinks.fill_(-torch.inf)
    maps = eager_maps(without, **inputs)
    install(model, "flash_attention_2")
    for layer, own in zip(mh.record_call(model, **inputs).layers, maps, strict=True):
        for text, span in enumerate(spans(inputs["attention_mask"])):
            assert_near(layer.weights(text=text), own[text][:, span, span])
    install(model, "flash_attention_3")
    assert_read(model, inputs)


# ------------------------------------------------------------------------------------------------------------- packed

PACKED = (5, 9, 3, 8)
ENDS = torch.tensor([0, 5, 14, 17, 25], dtype=torch.int32)


def packed_inputs(fresh, how):
    inputs = {"input_ids": torch.randint(5, VOCAB_SIZE, (1, 25), generator=fresh), "use_cache": False}
    inputs["position_ids"] = torch.cat([torch.arange(length) for length in PACKED])[None]
    if how == "cu_seq_lens":
        ends = {"cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS}
        inputs |= ends | {"max_length_q": 9, "max_length_k": 9}
    return inputs


@pytest.mark.parametrize("how", ["position_ids", "cu_seq_lens"])
@three_packages
def test_a_packed_text_has_the_weights_that_it_has_alone(model, name, how, install, fresh):
    loaded = MAKERS[model](seed=draw(fresh))
    inputs = packed_inputs(fresh, how)
    package = install(loaded, name)
    rec = mh.record_call(loaded, **inputs)
    assert set(package.calls) == {"packed"}
    for first, last in pairwise(ENDS.tolist()):
        span = slice(first, last)
        maps = eager_maps(loaded, input_ids=inputs["input_ids"][:, span])
        for layer, own in zip(rec.layers, maps, strict=True):
            assert_near(layer.weights(queries=span, keys=span), own[0])
    for layer in rec.layers:
        assert layer.mask.dense is None
        begins = [int(first) for first, length in zip(ENDS, PACKED, strict=False) for _ in range(length)]
        assert all(start >= begin for start, begin in zip(layer.mask.start[0].tolist(), begins, strict=True))
        assert layer.mask.stop[0].tolist() == list(range(1, 26))


def test_the_lse_is_the_packages_own_and_no_second_pass_is_made(install, fresh, monkeypatch):
    def never(*args):
        raise AssertionError("a second pass over q and k")

    monkeypatch.setattr(taps, "log_sum_exp", never)
    model = tiny_gemma2(seed=draw(fresh))
    install(model, "flash_attention_2")
    for inputs in (padded(fresh, LENGTHS, VOCAB_SIZE), padded(fresh, (13, 13), VOCAB_SIZE)):
        layers = mh.record_call(model, **inputs).layers
        assert all(layer.lse.dtype == torch.float32 for layer in layers)
    mh.record_call(model, **packed_inputs(fresh, "position_ids"))


def test_packed_texts_across_rows_of_the_batch_are_refused(install, fresh):
    model = tiny_llama(seed=draw(fresh))
    install(model, "flash_attention_2")
    inputs = packed_inputs(fresh, "cu_seq_lens")
    inputs["input_ids"] = torch.randint(5, VOCAB_SIZE, (5, 5), generator=fresh)
    inputs["position_ids"] = inputs["position_ids"].view(5, 5)
    with pytest.raises(ModelError, match=r"cu_seq_lens let a packed text run .* hand in packed texts as one row"):
        mh.record_call(model, **inputs)
    within = torch.tensor([0, 2, 5, 10, 13, 15, 20, 25], dtype=torch.int32)
    rec = mh.record_call(model, **inputs | {"cu_seq_lens_q": within, "cu_seq_lens_k": within})
    assert rec.layers[0].mask.start.tolist() == [
        [0, 0, 2, 2, 2], [0, 0, 0, 0, 0], [0, 0, 0, 3, 3], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0],
    ]  # fmt: skip


def test_other_texts_at_the_same_positions_are_read_anew(install, fresh):
    """Masks are read once a pass, for all layers; the guard would see one that is left from the pass before."""
    model = tiny_llama(seed=draw(fresh))
    install(model, "flash_attention_2")
    inputs, calls = packed_inputs(fresh, "cu_seq_lens"), []
    others = torch.tensor([0, 9, 12, 25], dtype=torch.int32)
    with mh.tap(model, on_call=calls.append), torch.no_grad():
        model(**inputs)
        model(**inputs | {"cu_seq_lens_q": others, "cu_seq_lens_k": others, "max_length_q": 13, "max_length_k": 13})
        del inputs["cu_seq_lens_q"]
        model(**inputs, attention_mask=torch.arange(25)[None] >= 4)
        model(**inputs, attention_mask=torch.arange(25)[None] >= 8)
    begins = [call.mask.start[0, -1].item() for call in calls]
    assert begins == [17] * 3 + [12] * 3 + [4] * 3 + [8] * 3
    assert all(call.mask is calls[3 * (i // 3)].mask for i, call in enumerate(calls))


# ------------------------------------------------------------------------------------------------------------- caches


@pytest.mark.thinned
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@three_packages
def test_generation_equals_the_recording_of_the_finished_text(model, name, cache, install, fresh):
    """Prompts of unlike length, so left padding; decoded tokens; a static cache's keys go on past its mask."""
    loaded = mh.load(MAKERS[model](seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))
    install(loaded.model, name)
    how = {"cache_implementation": "static"} if cache == "static" else {}
    rec = mh.record(loaded, ["the cat sat on the mat . the dog", "a king said : why is it"], generate=9, **how)
    for text in range(2):
        ids = rec.tokens.ids[text : text + 1, : rec.tokens.lengths[text]]
        for layer, own in zip(rec.layers, eager_maps(loaded.model, input_ids=ids), strict=True):
            assert_near(layer.weights(text=text), own[0])


@pytest.mark.parametrize("model", ["llama", "gemma2"])
def test_several_rows_after_a_cache_are_counted_from_the_end(model, install, fresh):
    loaded = MAKERS[model](seed=draw(fresh))
    ids = torch.randint(5, VOCAB_SIZE, (2, 15), generator=fresh)
    maps = eager_maps(loaded, input_ids=ids)
    install(loaded, "flash_attention_2")
    calls = []
    with torch.no_grad():
        cache = loaded(input_ids=ids[:, :11]).past_key_values
        with mh.tap(loaded, on_call=calls.append):
            loaded(input_ids=ids[:, 11:], past_key_values=cache)
    for call, own in zip(calls, maps, strict=True):
        seen = call.mask.visible(slice(None), slice(None)).expand(2, -1, -1, -1)
        num_keys = seen.shape[3]
        assert torch.equal(seen[:, 0], own[:, 0, 11:, -num_keys:] > 0)


def test_padding_between_tokens_is_no_part_of_a_window(install, fresh):
    """Packed, it is gone: a window counts tokens, not places. The mask is then no runs."""
    model = tiny_gemma2(seed=draw(fresh))
    inputs = padded(fresh, (17, 17), VOCAB_SIZE)
    inputs["attention_mask"][1, 4:9] = 0
    install(model, "flash_attention_2")
    calls = []
    with mh.tap(model, on_call=calls.append) as state, torch.no_grad():
        model(**inputs)
    assert state.guard_error < 5e-5
    tokens = [place for place in range(17) if not 4 <= place < 9]
    for call, window in zip(calls, (7, 17, 7), strict=True):
        seen = call.mask.visible(slice(None), slice(None))[1, 0]
        for row in range(17):
            before = [key for key in tokens if key <= row][-window:] if row in tokens else []
            assert seen[row].nonzero()[:, 0].tolist() == before


# ------------------------------------------------------------------------------------------------------- other roads


class Attends(nn.Module):
    """Attention by a name, in float32 where its weights are bfloat16: transformers hands the kernel bfloat16."""

    is_causal = True

    def __init__(self, name):
        super().__init__()
        self.config = tiny_llama().config
        self.config._attn_implementation = name
        self.linear = nn.Linear(8, 8, dtype=torch.bfloat16)

    def forward(self, q, k, mask=None, **options):
        function = AttentionInterface()[self.config._attn_implementation]
        return function(self, q, k, k, mask, scaling=0.5, **options)[0]


def test_what_the_kernel_read_is_recorded_not_what_it_was_rounded_from(install, fresh):
    module = Attends("flash_attention_3").eval()
    q, k = torch.randn(2, 6, 9, 8, generator=fresh), torch.randn(2, 3, 9, 8, generator=fresh)
    rec = mh.record_call(module, q, k)
    assert torch.equal(rec.layers[0].q, q.bfloat16().to(rec.layers[0].q.dtype))
    scores = (q.bfloat16().double() @ k.bfloat16().double().repeat_interleave(2, 1).transpose(2, 3)) * 0.5
    scores = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    assert_near(rec.layers[0].weights(text=1).double(), scores.softmax(-1)[1])


def test_kernels_that_cannot_be_read_are_refused_by_name(install, fresh, monkeypatch):
    def its_own(module, query, key, value, attention_mask, **options):
        return torch.zeros(len(query), query.shape[2], query.shape[1], value.shape[3]), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "someone/kernel:its_own", its_own)
    module = Attends("someone/kernel:its_own").eval()
    q, mask = torch.randn(2, 6, 9, 8, generator=fresh), torch.ones(2, 9).bool()
    message = r"attention 'someone/kernel:its_own' hides padding inside of a kernel, .* attn_implementation='sdpa'"
    refuses(ModelError, message, mh.record_call, module, q, q, mask)

    def twice(*args, **options):
        flash_attention_forward(*args, **options)
        return flash_attention_forward(*args, **options)

    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", twice)
    module = Attends("flash_attention_2").eval()
    q = torch.randn(2, 6, 9, 8, generator=fresh)
    refuses(ModelError, "made 2 calls of flash-attn's functions where one can be read", mh.record_call, module, q, q)
    from transformers.generation.continuous_batching import PagedAttentionCache

    module = Attends("sdpa").eval()
    q = torch.randn(1, 6, 9, 8, generator=fresh)
    message = "attention 'sdpa' with a PagedAttentionCache keeps earlier keys in pages, where they cannot be read yet"
    pages = object.__new__(PagedAttentionCache)
    refuses(ModelError, message, mh.record_call, module, q, q, cache=pages)
    refuses(ModelError, message, mh.record_call, module, q, q, kept=pages)  # known by its type
    (record,) = mh.record_call(module, q, q, cache=DynamicCache()).layers  # transformers 5.24 calls any cache so
    own = torch.from_numpy(reference.attend(*[q.double().numpy()] * 3, causal=True, scale=0.5).weights).float()
    assert_near(record.weights(text=0), own[0])
    model = tiny_llama(seed=draw(fresh))
    message = r"continuous batching keeps earlier keys in pages, .* with attn_implementation='sdpa'"
    with mh.tap(model), pytest.raises(ModelError, match=message):
        model.generate_batch([[5, 6, 7], [8, 9]])
