"""Models in half precision, and models that are split over two devices with accelerate's hooks."""

import copy

import pytest
import torch
from accelerate import dispatch_model

import manyheads as mh
from manyheads.recording import Sinks
from manyheads.roles import copying_scores, probe_repeats
from tests.device.conftest import MAKERS, TEXTS, assert_same, each
from tests.models.eager import draw
from tests.models.tiny import tiny_tokenizer


@pytest.fixture
def split(fresh):
    """The model on the host, and its twin with the first layer on one device and the rest on another."""

    def make(name, **how):
        model = MAKERS[name](seed=draw(fresh), **how)
        twin = copy.deepcopy(model)
        # The first layer and what stands before it on one device, the rest on the other. Tied weights stay together.
        body, stack = twin.base_model_prefix, "h" if name == "gpt2" else "layers"
        places = {f"{body}.{part}": "cuda:0" for part, _ in getattr(twin, body).named_children() if part != stack}
        for index in range(len(getattr(getattr(twin, body), stack))):
            places[f"{body}.{stack}.{index}"] = f"cuda:{min(index, 1)}"
        twin = dispatch_model(twin, {**places, "lm_head": "cuda:0"}, main_device="cuda:0")
        tokenizer = tiny_tokenizer(special_tokens=False)
        return tuple(mh.load(one, tokenizer=tokenizer, name="tiny") for one in (model, twin))

    return make


@pytest.mark.parametrize("name", each(["llama", "gpt2", "gemma2", "mistral"], "mistral"))
@pytest.mark.turns(2)
def test_a_model_on_two_devices(name, split):
    host, device = split(name)
    assert device.spec.sites == host.spec.sites
    got, want = (mh.record(lm, TEXTS) for lm in (device, host))
    assert {layer.q.device.index for layer in got.layers} == {0, 1}
    for one, other in zip(got.layers, want.layers, strict=True):
        assert_same(one.weights(text=1), other.weights(text=1), share=5e-5)
    got, want = (mh.measure(lm, TEXTS, "all", sinks=Sinks(first=True)) for lm in (device, host))
    for statistic in want.names:
        assert_same(got.column(statistic), want.column(statistic), statistic, 5e-5)
    got, want = (mh.record(lm, TEXTS[0], generate=3) for lm in (device, host))
    assert got.tokens.ids.tolist() == want.tokens.ids.tolist()


@pytest.mark.slow
def test_what_heads_are_worth_on_two_devices(split):
    host, device = split("llama")
    plan = mh.Plan([mh.Ablate("L0H1, L2H0", kind="mean"), mh.Copy("L1H1", source="L1H0")])
    got, want = (mh.effect(lm, plan, TEXTS, controls=2, corpus=TEXTS) for lm in (device, host))
    assert_same(got.per_token, want.per_token, share=5e-5)
    for estimator in ("gradient", "ablation"):
        got, want = (mh.importance(lm, TEXTS, estimator=estimator) for lm in (device, host))
        assert_same(got.to_pandas(), want.to_pandas(), share=5e-5)
    got, want = (mh.find_roles(lm, TEXTS) for lm in (device, host))
    assert_same(got.to_pandas(), want.to_pandas(), share=1e-4)
    for probe in (lambda lm: mh.head_families(lm, TEXTS).divergences, lambda lm: copying_scores(lm).score):
        assert_same(probe(device), probe(host), share=1e-4)
    got, want = (probe_repeats(lm, length=7, samples=3) for lm in (device, host))
    assert_same(got.after.score, want.after.score, share=1e-4)
    assert device.weights_hash == host.weights_hash


@pytest.mark.slow
def test_heads_are_removed_and_merged_on_two_devices(split):
    host, device = split("llama", num_kv_heads=6)
    inputs = host.tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False)
    for change in (lambda lm: mh.prune_heads(lm, "L0H1, L2H4"), lambda lm: mh.convert_to_gqa(lm, 2, texts=TEXTS)):
        got, want = (change(lm) for lm in (device, host))
        with torch.no_grad():
            assert_same(got.model(**inputs.to("cuda:0")).logits, want.model(**inputs.to("cpu")).logits)


@pytest.mark.parametrize("dtype", each([torch.bfloat16, torch.float16], torch.bfloat16), ids=str)
@pytest.mark.parametrize("name", each(["llama", "bert", "gpt_oss"], "llama"))
@pytest.mark.turns(2)
def test_half_precision(name, dtype, both):
    host, device = both(name)
    host, device = (mh.load(lm.model.to(dtype), tokenizer=lm.tokenizer) for lm in (host, device))
    got, want = (mh.record(lm, TEXTS, keep=("q", "k", "v", "lse")) for lm in (device, host))
    for one, other in zip(got.layers, want.layers, strict=True):
        assert one.q.dtype == dtype and one.lse.dtype == torch.float32
        assert_same(one.weights(), other.weights(), share=0.1)  # the model's own kernels round otherwise
        exact = one.weights(head=1, text=1).double()
        assert (exact.sum(-1) - 1).abs().max() < 2e-3 or name == "gpt_oss"
    table = mh.measure(device, TEXTS, "all", sinks=Sinks(first=True))
    assert table.names == mh.measure(host, TEXTS, "all", sinks=Sinks(first=True)).names
    mh.effect(device, mh.Ablate("L0H1", kind="mean"), TEXTS, controls=1, corpus=TEXTS)
