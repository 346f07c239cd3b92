"""What heads are worth, and heads removed: plans, effects, importance, prune, conversion, roles and families."""

import copy
from pathlib import Path

import pytest
import torch

import manyheads as mh
from manyheads import circuits
from manyheads.interventions.save import fresh_process
from manyheads.long_context import HeadSplit
from manyheads.long_context.split_layer import split_layers
from manyheads.roles.compare import head_diversity
from manyheads.roles.probes import copying_scores, probe_repeats, retrieval_scores
from tests.device.conftest import TEXTS, assert_same, each
from tests.device.simulated import counted_waits

CORPUS = [*TEXTS, "a king found the old book", "she told the child a long story about rain , snow , fire and wind"]
STEPS = {
    "zero": mh.Ablate("L0H1, L1"), "mean": mh.Ablate("L0H1, L1", kind="mean"),
    "mean per position": mh.Ablate("L0H1", kind="mean", per_position=True),
    "resample": mh.Ablate("L0H1, L1H0", kind="resample"),
    "resample a text": mh.Ablate("L0H1", kind="resample", text=TEXTS[1]),
    "first": mh.Ablate("L0H1, L1H0", kind="first"), "scale": mh.Scale("L0H1", 0.5), "average": mh.Average("L0H1, L0H2"),
    "copy": mh.Copy("L0H1, L0H2", source="L0H0"), "skip": mh.SkipOutputProjection("L0"),
}  # fmt: skip


def logits(lm, text, plan, corpus):
    inputs = lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False).to(lm.device)
    with mh.applied(lm, plan, corpus=corpus), torch.no_grad():
        outputs = lm.model(**inputs)
    return outputs.logits if hasattr(outputs, "logits") else outputs.last_hidden_state


@pytest.mark.parametrize("step", each(STEPS, "mean", "copy"))
def test_a_plan_is_applied(step, both):
    host, device = both("llama")
    corpus = CORPUS if step in ("mean", "mean per position", "resample") else None
    got, want = (logits(lm, TEXTS[0], mh.Plan([STEPS[step]]), corpus) for lm in (device, host))
    assert got.device.type == "cuda"
    assert_same(got, want)
    assert (want - logits(host, TEXTS[0], mh.Plan([]), None)).abs().max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss"])
def test_a_plan_of_several_steps_acts_on_padded_batches(name, both):
    plan = mh.Plan([mh.Ablate("L0H1", kind="mean"), mh.Copy("L1H1", source="L1H0"), mh.Ablate("L1H2", kind="first")])
    host, device = both(name)
    got, want = (mh.effect(lm, plan, CORPUS, controls=2, corpus=CORPUS) for lm in (device, host))
    assert_same(got.per_token, want.per_token, share=5e-5)


def test_a_streaming_cache_writes_what_it_writes_on_the_host_and_a_step_waits_for_nothing(both):
    results, waits = [], []
    for lm in both("llama"):
        flags = {site.layer: [site.layer == 1, True, False] for site in lm.spec.layers}
        split = HeadSplit(lm.name, "", "", split_layers(lm, "", flags, {}, {}), 2, 3, "hand", "none", "none")
        lm.tokenizer.padding_side = "left"
        inputs = lm.tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False).to(lm.device)
        with mh.streaming(lm, split) as now, torch.no_grad():
            written = lm.model.generate(**inputs, max_new_tokens=6, num_beams=2, do_sample=False, pad_token_id=0)
            cache = now.cache()
            lm.model(inputs["input_ids"][:1], past_key_values=cache)
            with counted_waits() as ours:
                logits = lm.model(inputs["input_ids"][:1, :1], past_key_values=cache).logits
        results.append((written, logits))
        waits.append(ours.total())
    (want, want_logits), (got, got_logits) = results
    assert got.device.type == "cuda" and waits[1] == 0
    assert torch.equal(got.cpu(), want)
    assert_same(got_logits, want_logits)


@pytest.mark.parametrize("metric", each(["loss", "kl", "cosine"], "loss"))
def test_effects(metric, both):
    host, device = both("bert" if metric == "cosine" else "llama")
    got, want = (mh.effect(lm, mh.Ablate("L0H1, L1H0"), CORPUS, metric=metric, controls=3) for lm in (device, host))
    assert_same(got, want, share=5e-5)


@pytest.mark.parametrize("estimator", each(["gradient", "ablation"], "gradient"))
def test_importance(estimator, both):
    host, device = both("llama")
    got, want = (mh.importance(lm, CORPUS, estimator=estimator) for lm in (device, host))
    assert_same(got.to_pandas(), want.to_pandas(), share=5e-5)


PAIRS = (
    ["the cat sat on the table", "a king found the old book"],
    ["the dog sat on the table", "a king found the new book"],
)


@pytest.mark.slow
@pytest.mark.parametrize("what", each(["k", "weights", "gradient of q"], "k"))
def test_patching(what, both):
    host, device = both("llama")
    estimator = "gradient" if what.startswith("gradient") else "exact"
    got, want = (
        mh.patch(
            lm,
            *PAIRS,
            answers=("was", "is"),
            what=what[-1] if estimator == "gradient" else what,
            estimator=estimator,
            positions=[1, -1],
            controls=3,
        )
        for lm in (device, host)
    )
    assert_same(got.per_text * got.gap, want.per_text * want.gap, share=5e-5)
    if what == "k":
        found, true = (mh.find_circuit(lm, *PAIRS, answers=("was", "is"), random_sets=2) for lm in (device, host))
        assert found.heads == true.heads
        paths = [
            circuits.path_effect(lm, *PAIRS, "L0H1", "L1H2", answers=("was", "is")).per_text for lm in (device, host)
        ]
        assert_same(*paths, share=1e-3)


@pytest.mark.slow
def test_a_pruned_model_is_saved(both, tmp_path, monkeypatch):
    monkeypatch.setattr(fresh_process, "PROGRAM", Path(__file__).parents[1] / "fresh_process.py")
    host, device = both("llama")
    got, want = (mh.prune_heads(lm, "L0H0, L0H1") for lm in (device, host))
    got.save(tmp_path / "device")
    want.save(tmp_path / "host")
    one, other = (mh.load(tmp_path / folder, tokenizer=host.tokenizer) for folder in ("device", "host"))
    assert one.weights_hash == other.weights_hash


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_heads_are_removed(name, both):
    host, device = both(name)
    heads = "L0H0, L0H1" if name == "llama" else "L0H1, L1H2"
    got, want = (mh.prune_heads(lm, heads) for lm in (device, host))
    assert got.model.device.type == "cuda"
    inputs = host.tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        assert_same(got.model(**inputs.to("cuda"))[0], want.model(**inputs.to("cpu"))[0])


@pytest.mark.slow
@pytest.mark.parametrize("texts", [None, CORPUS], ids=["weights alone", "with texts"])
def test_convert_to_gqa(texts, both):
    host, device = both("llama", num_kv_heads=6)
    got, want = (mh.convert_to_gqa(lm, 2, texts=texts) for lm in (device, host))
    assert got.model.device.type == "cuda"
    assert got.groups == want.groups
    inputs = host.tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        assert_same(got.model(**inputs.to("cuda")).logits, want.model(**inputs.to("cpu")).logits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("find", "name"),
    [(mh.find_roles, "llama"), (mh.find_roles, "bert"), *((mh.head_families, n) for n in ("llama", "gpt_oss"))],
)
def test_roles_and_families_are_found(find, name, both):
    host, device = both(name)
    got, want = (find(lm, CORPUS) for lm in (device, host))
    assert_same(got.to_pandas(), want.to_pandas(), share=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_two_models_are_compared(name, both):
    host, device = both(name)
    others = [copy.deepcopy(lm.model) for lm in (host, device)]
    for model in others:
        model.model.layers[1].self_attn.q_proj.weight.data.mul_(-1)
    got, want = (
        mh.compare(lm, mh.load(other, tokenizer=host.tokenizer, name="other"), CORPUS, "default", labels=False)
        for lm, other in zip((device, host), reversed(others), strict=True)
    )
    for found in (got, want):
        assert min(head.head.layer for head in found.changed) == 1, "layers before the change are as they were"
    for name in ("moved", "moved_low", "moved_high"):
        assert_same(getattr(got, name), getattr(want, name), name, 1e-4)
    assert_same(got.after.column("entropy"), want.after.column("entropy"), "entropy", 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_words_are_linked_heads_differ_and_positions_are_left_out(name, both):
    text = "the king is in the garden"
    links, apart, lost = (
        [one(lm) for lm in both(name)]
        for one in (
            lambda lm: mh.record(lm, text).heads_linking("garden", "king").to_pandas(),
            lambda lm: head_diversity(lm, text),
            lambda lm: mh.effect(lm, mh.SkipPositions(), text, controls=0).change,
        )
    )
    assert_same(
        links[1].sort_values("head").reset_index(drop=True), links[0].sort_values("head").reset_index(drop=True)
    )
    assert_same(apart[1], apart[0], share=1e-4)
    assert_same(lost[1], lost[0], share=1e-4)


PROBES = {
    "copying": lambda lm: copying_scores(lm, draws=3),
    "repeats": lambda lm: probe_repeats(lm, length=15, samples=2),
    "retrieval": lambda lm: retrieval_scores(
        lm, " ".join(CORPUS * 3), "the king is in the garden", "where is the king ?", lengths=(40,), min_recall=-1.0
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_probes_of_roles(probe, both):
    host, device = both("llama", max_position_embeddings=256)
    got, want = (PROBES[probe](lm) for lm in (device, host))
    assert_same(got, want, share=1e-4)


def test_what_a_head_writes(both):
    host, device = both("llama")
    got, want = (
        mh.writes(lm, "L1H1", "the king is in the garden where the old man sat").to_pandas() for lm in (device, host)
    )
    for name in ("length", "of_layer", "along", "of_stream"):
        assert_same(got[name].to_numpy(), want[name].to_numpy(), share=1e-4)
    got, want = (mh.writes(lm, "L1H1") for lm in (device, host))
    assert_same(
        [got.copying.value, *(of.value for of in got.matching.values())],
        [want.copying.value, *(of.value for of in want.matching.values())],
        share=1e-3,
    )
