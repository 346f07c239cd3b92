"""A watch sees every head of a model that trains, says what is true of it, and leaves the training as it was.

Oracles: the scores and maps of the model's own eager function in float64, on the very q and k of the step;
`measure_call` of the same weights in evaluation mode; the same training without a watch.
"""

import copy
import io
import logging
import pickle
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import manyheads as mh
from manyheads.errors import FileAccessError, GuardError, ModelError, PlanError, RecordingError, StatisticError
from manyheads.measurement import measure_call
from manyheads.models.taps import open_taps
from manyheads.watching import open_history
from tests.models.eager import draw
from tests.models.random_models import built, float64_beside, trial
from tests.models.tiny import VOCAB_SIZE, tiny_bert, tiny_gpt2, tiny_llama
from tests.refusals import refuses

NAMES = ["max_logit", "entropy", "first_mass", "previous_mass", "missing_mass"]
peft_warns = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21
not_a_leaf = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo


def batch(fresh, lengths=(5, 11, 8), side="right"):
    longest = max(lengths)
    ids = torch.randint(5, VOCAB_SIZE, (len(lengths), longest), generator=fresh)
    place, length = torch.arange(longest)[None], torch.tensor(lengths)[:, None]
    real = place < length if side == "right" else place >= longest - length
    return {"input_ids": ids, "attention_mask": real.long(), "labels": ids.masked_fill(~real, -100)}


def trained(model, batches, watched=None, micro_batches=1):
    """The losses and gradients of a few steps, and the weights after them; dropout and all."""
    torch.manual_seed(5)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, kept = torch.optim.SGD(parameters, lr=0.1), []
    for index, inputs in enumerate(batches):
        loss = model(**inputs).loss
        loss.backward()
        kept.append(loss.detach())
        if (index + 1) % micro_batches:
            continue
        kept += [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        if watched is not None:
            watched.step()
    return kept + [parameter.detach().clone() for parameter in model.parameters()]


def assert_same_bits(one, other):
    assert len(one) == len(other) and all(map(torch.equal, one, other))


# ------------------------------------------------------------------------------------------------- the numbers are true


@contextmanager
def float64_scores(scores):
    """The scores that softmax gets in float64: those of the model's own eager function, finished and masked."""
    softmax, inside = F.softmax, []

    def kept(x, *args, **kwargs):
        if x.dtype == torch.float64 and not inside:  # torch's function modes call it by its name once more
            scores.append(x.detach())
        inside.append(x)
        try:
            return softmax(x, *args, **kwargs)
        finally:
            inside.pop()

    F.softmax = kept
    try:
        yield
    finally:
        F.softmax = softmax


@pytest.mark.parametrize(
    ("architecture", "mask"),
    [
        ("llama", "right"), ("llama", "float"), ("mistral", "left"), ("gemma2", "right"), ("gpt2", "left"),
        ("bert", "right"), ("qwen3", "boolean"), ("opt", "ones"), ("modernbert", "right"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [None, 1000])
def test_max_logits_and_entropies_are_those_of_the_models_own_float64_scores(architecture, mask, rows, fresh):
    drawn = trial(draw(fresh), architecture=architecture, mask=mask, dtype=torch.float32, factor=3.0)
    model, inputs = built(drawn)  # in evaluation mode: the oracle has no dropout, and a pass with gradients counts
    scores, truths = [], []
    with mh.watch(model, statistics=NAMES[:2], rows=rows) as seen, float64_scores(scores), float64_beside(truths):
        model(**inputs)
        seen.step()
    last = seen.last
    assert len(scores) == len(truths) == len(last.sites)
    known = inputs["attention_mask"].bool() if inputs["attention_mask"].ndim == 2 else None
    for site, score, truth in zip(last.sites, scores, truths, strict=True):
        # Rows of padding attend to something in most models, and are nobody's.
        alive = truth.visible.any(-1) if known is None else truth.visible.any(-1) & known[:, None]
        counted = truth.visible & alive[..., None]
        largest = score.masked_fill(~counted, -torch.inf).amax((0, 2, 3))
        weights = truth.weights.clamp_min(1e-300)
        entropy = -(truth.weights * weights.log()).sum(-1)
        mean = (entropy * alive).sum((0, 2)) / alive.sum((0, 2))
        for head in site.heads:
            assert last[head, "max_logit"] == pytest.approx(largest[head.index].item(), rel=2e-5, abs=2e-5), str(drawn)
            assert last[head, "entropy"] == pytest.approx(mean[head.index].item(), abs=2e-5), str(drawn)


def test_a_learned_sink_is_part_of_entropy_and_what_it_takes_is_missing(fresh):
    drawn = trial(draw(fresh), architecture="gpt_oss", mask="right", dtype=torch.float32, factor=2.0)
    model, inputs = built(drawn)
    truths = []
    with mh.watch(model, statistics=["missing_mass", "entropy"]) as seen, float64_beside(truths):
        model(**inputs)
        seen.step()
    for site, truth in zip(seen.last.sites, truths, strict=True):
        alive = truth.visible.any(-1) & inputs["attention_mask"].bool()[:, None]
        missing = ((1 - truth.weights.sum(-1)) * alive).sum((0, 2)) / alive.sum((0, 2))
        entropy = -(truth.weights * truth.weights.clamp_min(1e-300).log()).sum(-1)
        mean = (entropy * alive).sum((0, 2)) / alive.sum((0, 2))
        assert missing.min().item() > 1e-3
        for head in site.heads:
            assert seen.last[head, "missing_mass"] == pytest.approx(missing[head.index].item(), abs=1e-5)
            assert seen.last[head, "entropy"] == pytest.approx(mean[head.index].item(), abs=1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize("make", [tiny_llama, tiny_bert, tiny_gpt2])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_watched_step_says_what_measure_says_of_the_same_weights_and_batches(make, side, fresh):
    model, names = make(seed=draw(fresh)).eval(), ["entropy", "first_mass", "previous_mass", "distance", "max_weight"]
    names += ["distant_mass_1_2", "distant_mass_4_64"]  # the second is distant_mass, of which so short texts have none
    parts = [batch(fresh, (5, 11, 8), side), batch(fresh, (7, 3), side)]
    tables = []
    for inputs in parts:
        del inputs["labels"]
        tables.append(measure_call(model, **inputs, statistics=names))
    with mh.watch(model, statistics=names) as seen:  # two micro-batches: they add up, and neither overwrites the other
        for inputs in parts:
            model(**inputs)
        seen.step()
    value = (tables[0].sums + tables[1].sums).value()[..., 0]
    assert [str(head) for head in seen.last.heads] == [str(head) for head in tables[0].heads]
    np.testing.assert_allclose(seen.last.values, value, atol=1e-6)


@pytest.mark.parametrize("by", ["sdpa", "eager"])
def test_weights_of_a_training_with_dropout_are_those_before_it(by, fresh):
    """Of the first layer, which reads what has met no dropout yet; later ones read what it left."""
    inputs, names = batch(fresh), ["entropy", "first_mass", "max_weight", "max_logit"]
    model = tiny_llama(seed=draw(fresh), attention_dropout=0.4, attn_implementation=by).train()
    with mh.watch(model, statistics=names) as seen:
        model(**inputs).loss.backward()
        seen.step()
    del inputs["labels"]
    table = measure_call(model.eval(), **inputs, statistics=names)
    for name in names:
        np.testing.assert_allclose(seen.last[name][:6], table[name][:6], atol=1e-5, err_msg=name)
    assert np.abs(seen.last["entropy"][6:] - table["entropy"][6:]).max() > 1e-3, "nothing was dropped"


def test_texts_packed_into_a_row_are_texts_of_their_own(fresh):
    model = tiny_llama(seed=draw(fresh))
    lengths = (5, 9, 3)
    ids = torch.randint(5, VOCAB_SIZE, (1, sum(lengths)), generator=fresh)
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    begins = np.cumsum([0, *lengths])
    apart = torch.block_diag(*[torch.ones(length, length) for length in lengths]).tril().bool()[None, None]
    by_mask = {"attention_mask": torch.zeros(apart.shape).masked_fill(~apart, torch.finfo(torch.float32).min)}
    results = []
    for more in ({"position_ids": places, "use_cache": False}, {**by_mask, "position_ids": places}):
        with mh.watch(model, statistics=NAMES) as seen:
            model(input_ids=ids, **more)
            seen.step()
        results.append(seen.last.values)
    with mh.watch(model, statistics=NAMES) as seen:  # the oracle: each text by itself
        for begin, end in pairwise(begins):
            model(input_ids=ids[:, begin:end])
        seen.step()
    for values in results:
        np.testing.assert_allclose(values, seen.last.values, atol=2e-5)
    whole = measure_call(model, ids, statistics=["first_mass"])["first_mass"]
    assert np.abs(whole - seen.last["first_mass"]).max() > 0.05, "position 0 of the row would have said the same"


def test_padding_of_a_text_that_is_written_and_of_the_one_that_is_read_is_nobodys(fresh):
    """Both are padded to one width: the mask of the one must not be taken for the other's."""
    model, _ = built(trial(draw(fresh), architecture="t5", dtype=torch.float32, implementation="sdpa", factor=3.0))
    read, written, longest = (11, 4, 7), (6, 11, 9), 11
    ids, labels = (torch.randint(5, 60, (3, longest), generator=fresh) for _ in range(2))
    place = torch.arange(longest)[None]
    real, labelled = (place < torch.tensor(lengths)[:, None] for lengths in (read, written))
    names = [*NAMES, "max_weight", "q_norm", "k_norm", "output_share"]
    inputs = {"input_ids": ids, "attention_mask": real.long(), "labels": labels.masked_fill(~labelled, -100)}
    results = []
    by_mask = {**inputs, "labels": labels, "decoder_attention_mask": labelled.long()}
    for batches in (
        [inputs],
        [by_mask],
        [
            {"input_ids": ids[i : i + 1, :n], "labels": labels[i : i + 1, :m]}
            for i, (n, m) in enumerate(zip(read, written, strict=True))
        ],
    ):
        with mh.watch(model, statistics=names) as seen:
            for one in batches:
                model(**one)
            seen.step()
        results.append(seen.last.values)
    assert {site.stack for site in seen.last.sites} == {"encoder", "decoder", "cross"}
    for values in results[:2]:
        np.testing.assert_allclose(values, results[2], rtol=2e-5, atol=2e-5)


def test_norms_and_shares_of_the_output_are_those_of_the_layer_itself(fresh):
    model = tiny_llama(seed=draw(fresh))
    inputs = batch(fresh, (9, 6))
    attention, caught = model.model.layers[1].self_attn, {}
    handles = [
        attention.o_proj.register_forward_pre_hook(lambda _, args: caught.update(out=args[0].detach())),
        attention.q_proj.register_forward_hook(lambda *args: caught.update(q=args[2].detach())),
        attention.k_proj.register_forward_hook(lambda *args: caught.update(k=args[2].detach())),
    ]
    with mh.watch(model, statistics=["q_norm", "k_norm", "output_share"]) as seen:
        model(**inputs)
        seen.step()
    for handle in handles:
        handle.remove()
    site, real = seen.last.sites[1], inputs["attention_mask"].bool()
    width, group = site.v_dim, site.num_heads // site.num_kv_heads
    parts = []
    for head in range(site.num_heads):
        columns = slice(head * width, (head + 1) * width)
        added = caught["out"][..., columns] @ attention.o_proj.weight.detach()[:, columns].T
        parts.append(added.norm(dim=-1)[real])
    total = torch.stack(parts).sum(0)
    for head in site.heads:
        # Rotation keeps lengths, so that those of the projections are those of what the scores see.
        q = caught["q"].unflatten(-1, (-1, site.qk_dim))[:, :, head.index].norm(dim=-1)[real].mean()
        k = caught["k"].unflatten(-1, (-1, site.qk_dim))[:, :, head.index // group].norm(dim=-1)[real].mean()
        assert seen.last[head, "q_norm"] == pytest.approx(float(q), rel=1e-5)
        assert seen.last[head, "k_norm"] == pytest.approx(float(k), rel=1e-5)
        share = float((parts[head.index] / total).mean())
        assert seen.last[head, "output_share"] == pytest.approx(share, rel=1e-4)


def test_sampled_rows_give_near_means_and_never_a_larger_max(fresh):
    model = tiny_llama(seed=draw(fresh))
    inputs = batch(fresh, (60, 55))
    values = {}
    for rows in (None, 20, 60):
        with mh.watch(model, statistics=["max_logit", "entropy", "first_mass"], rows=rows) as seen:
            model(**inputs)
            seen.step()
        values[rows] = seen.last
    np.testing.assert_allclose(values[60].values, values[None].values, atol=1e-5)
    assert (values[20]["max_logit"] <= values[None]["max_logit"] + 1e-5).all()
    assert np.abs(values[20]["entropy"] - values[None]["entropy"]).max() < 0.25 * values[None]["entropy"].max()
    assert (values[20].values != values[None].values).any(), "nothing was sampled"


# -------------------------------------------------------------------------------------------- the training is as it was


class Plain(nn.Module):
    """Layers of unlike numbers of heads, by plain calls of torch's function, with dropout; the second in bare form."""

    def __init__(self, width=12):
        super().__init__()
        self.embed = nn.Embedding(VOCAB_SIZE, width)
        self.layers = nn.ModuleList(PlainLayer(width, heads) for heads in (2, 3, 6))
        self.ours = mh.MultiHeadAttention(width, 4, dropout=0.2)
        self.torchs = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, VOCAB_SIZE)

    def forward(self, input_ids, labels, **_):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        x = x + self.ours(x, is_causal=True)[0]
        x = x + self.torchs(x, x, x, need_weights=False)[0]
        x = x + self.torchs(x, x, x, need_weights=True)[0]
        loss = F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())
        return type("Out", (), {"loss": loss})()


class PlainLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = 0.15 if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout).transpose(1, 2).flatten(2)


def llama(**how):
    def make(seed):
        model = tiny_llama(
            seed=seed, attention_dropout=how.get("dropout", 0.0), attn_implementation=how.get("by", "sdpa")
        )
        if how.get("checkpointed"):
            model.config.use_cache = False
            new = hasattr(model, "activation_checkpointing_enable")  # transformers 5.23
            (model.activation_checkpointing_enable if new else model.gradient_checkpointing_enable)()
        return model

    return make


def plain(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Plain()


def frozen(seed):
    model = tiny_llama(seed=seed)
    for part in (model.model.embed_tokens, model.model.layers[0], model.model.layers[1].self_attn):
        part.requires_grad_(False)
    return model


def adapted(seed):
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LoraConfig(
            r=2, target_modules=["q_proj", "v_proj", "o_proj"], lora_dropout=0.3, init_lora_weights=False
        )
        return get_peft_model(tiny_llama(seed=seed), config)


def masked_bert(seed):
    from transformers import BertForMaskedLM

    return tiny_bert(BertForMaskedLM, seed=seed)


def packed(fresh):
    """Texts of 5, 9 and 4 tokens in one row, kept apart by their positions."""
    places = torch.cat([torch.arange(length) for length in (5, 9, 4)])[None]
    rows = torch.randint(5, VOCAB_SIZE, (4, 1, 18), generator=fresh)
    return [{"input_ids": ids, "position_ids": places, "labels": ids, "use_cache": False} for ids in rows]


MODELS = {
    "sdpa": llama(), "eager": llama(by="eager"), "flex": llama(by="flex_attention"),
    "sdpa, dropout": llama(dropout=0.2), "eager, dropout": llama(by="eager", dropout=0.2),
    "checkpointed": llama(checkpointed=True), "checkpointed, dropout": llama(checkpointed=True, dropout=0.2),
    "plain modules": plain, "frozen parts": frozen, "adapters": adapted, "gpt2": lambda seed: tiny_gpt2(seed=seed),
    "bert": masked_bert,
}  # fmt: skip


def padded(fresh):
    return [batch(fresh, lengths, side) for lengths in ((5, 11, 8), (6, 6)) for side in ("right", "left")]


@pytest.fixture
def flex_that_trains(monkeypatch):
    """torch's own flex attention without its compiler, and with a backward pass, which it refuses on a CPU."""
    from torch.nn.attention import flex_attention as flex

    def call(query, key, value, training=False, **kwargs):
        return flex.flex_attention(query, key, value, **kwargs)

    def make(*args, _compile=False, **kwargs):
        return flex.create_block_mask(*args, **kwargs)

    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr("transformers.integrations.flex_attention.compile_friendly_flex_attention", call)
    monkeypatch.setattr("transformers.masking_utils.create_block_mask", make)
    yield
    torch._dynamo.reset()


@peft_warns
@not_a_leaf
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.thinned
@pytest.mark.parametrize(
    ("precision", "batches"), [("float32", padded), ("autocast", padded), ("float32", packed), ("bfloat16", packed)]
)
@pytest.mark.parametrize("name", MODELS)
def test_losses_gradients_and_weights_are_the_same_to_the_bit_with_a_watch_and_without(
    name, precision, batches, fresh, flex_that_trains
):
    seed, batches = draw(fresh), batches(fresh)  # two steps of two micro-batches
    statistics = ["max_logit", "max_logit_uncapped", "entropy", "first_mass", "q_norm", "output_share"]
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    with torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext():
        plainly = trained(MODELS[name](seed).to(dtype).train(), batches, micro_batches=2)
        model = MODELS[name](seed).to(dtype).train()
        with mh.watch(model, every=1, statistics=statistics) as seen:
            watched = trained(model, batches, seen, micro_batches=2)
    assert seen.fresh and seen.last.step == 2 and np.isfinite(seen.last.values).all()
    assert_same_bits(plainly, watched)
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_layers_of_unlike_sizes_are_logged_side_by_side(fresh):
    model = plain(draw(fresh)).train()
    with mh.watch(model, statistics=["max_logit", "entropy", "first_mass", "output_share"]) as seen:
        model(**batch(fresh))
        seen.step()
    assert [site.num_heads for site in seen.last.sites] == [2, 3, 6, 4, 2, 2]  # torch's layer is called twice
    summary = seen.latest()
    assert {"heads/L2/entropy.min", "heads/entropy.mean", "heads/max_logit.max"} <= set(summary)
    assert summary["heads/max_logit.max"] == max(summary[f"heads/L{layer}/max_logit.max"] for layer in range(6))
    assert summary["heads/L1/entropy.mean"] == pytest.approx(seen.last["entropy"][2:5].mean())
    assert summary["heads/sink_heads"] == (seen.last["first_mass"] > 0.3).mean()
    assert summary["heads/L1/dead_heads"] == (seen.last["output_share"][2:5] < 0.1 / 3).mean()
    assert {name.partition("/")[2] for name in seen.latest(layers=False)} == {
        "max_logit.max", "entropy.mean", "entropy.min", "first_mass.mean", "first_mass.max", "sink_heads",
        "output_share.min", "dead_heads",
    }  # fmt: skip


def test_watch_has_a_repr_of_one_short_line(fresh):
    with mh.watch(plain(draw(fresh)).train(), every=7, statistics=["entropy", "q_norm"]) as seen:
        seen.step()
        assert repr(seen) == "Watch(Plain, every 7 steps: 1 step done; entropy, q_norm)"
    assert repr(seen) == "Watch(Plain, closed: 1 step done; entropy, q_norm)"


def test_share_of_heads_past_a_limit_is_no_number_where_a_head_has_none(fresh):
    model = plain(draw(fresh)).train()
    with mh.watch(model, statistics=["first_mass", "output_share"]) as seen:
        model(**batch(fresh))
        seen.step()
    values = seen.last.values.copy()
    values[3] = np.nan  # of layer 1, which has heads 2 to 4
    summary = replace(seen.last, values=values).summary()
    for name in ("sink_heads", "dead_heads", "first_mass.mean"):
        assert np.isnan(summary[f"heads/{name}"]) and np.isnan(summary[f"heads/L1/{name}"])
        assert summary[f"heads/L2/{name}"] == seen.latest()[f"heads/L2/{name}"]


def test_layers_that_are_computed_again_in_the_backward_pass_count_once(fresh):
    seed, inputs = draw(fresh), batch(fresh)

    def numbers(model, call):
        with mh.watch(model, statistics=["max_logit", "entropy", "first_mass"]) as seen:
            call(model).backward()
            counts = {name: layer.den.clone() for name, layer in seen._layers.items()}
            seen.step()
        return seen.last.values, counts

    once = numbers(llama()(seed), lambda model: model(**inputs).loss)
    layers = numbers(llama(checkpointed=True)(seed).train(), lambda model: model(**inputs).loss)

    def checkpointed(model):
        return checkpoint(
            lambda ids: model(**{**inputs, "input_ids": ids}).loss, inputs["input_ids"], use_reentrant=False
        )

    whole = numbers(llama()(seed), checkpointed)
    for values, counts in (layers, whole):
        np.testing.assert_array_equal(values, once[0])
        assert all(torch.equal(counts[name], count) for name, count in once[1].items())


# ----------------------------------------------------------------------------------------------------- what is compiled


def compiled_around(model):
    return torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def compiled_layers(model):
    for layer in model.model.layers:
        layer.self_attn.forward = torch.compile(layer.self_attn.forward, backend="eager")
    return model


@not_a_leaf
@pytest.mark.parametrize(
    "compiling",
    [compiled_in_place, *(pytest.param(way, marks=pytest.mark.slow) for way in (compiled_around, compiled_layers))],
)
@pytest.mark.slow
def test_a_compiled_model_is_read_by_a_probe_of_the_batch_in_hand(compiling, fresh):
    torch._dynamo.reset()
    seed, parts = draw(fresh), [batch(fresh, (7, 7)), batch(fresh, (7, 7))]
    plainly = trained(compiling(llama(dropout=0.3)(seed).train()), parts)
    with mh.watch(oracle := llama()(seed), statistics=NAMES) as plain_watch:
        oracle(**parts[0])
        plain_watch.step()
    torch._dynamo.reset()
    model = compiling(llama(dropout=0.3)(seed).train())
    with mh.watch(model, every=1000, statistics=NAMES) as seen:
        watched = trained(model, parts, seen)
    assert "probe" in seen.because and "compiled" in seen.because
    np.testing.assert_allclose(seen.last.values, plain_watch.last.values, atol=1e-6)
    assert_same_bits(plainly, watched)
    assert all(module.training for module in model.modules())


class Noisy(Plain):
    """Draws random numbers in evaluation mode, too."""

    def forward(self, input_ids, labels, **_):
        return super().forward(input_ids, labels.where(torch.rand(labels.shape) < 0.8, -100))


def noisy(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Noisy()
    part = model.layers[0]
    compiled = lambda x, forward=part.forward: forward(x)  # noqa: E731  # a stand-in: known by torch's mark alone
    compiled._torchdynamo_orig_callable = part.forward
    part.forward = compiled
    return model.train()


def test_a_probe_leaves_random_numbers_as_they_were(fresh):
    seed, batches = draw(fresh), [batch(fresh), batch(fresh)]
    with mh.watch(model := noisy(seed), every=1, statistics=["max_logit"]) as seen:
        watched = trained(model, batches, seen)
    assert "read by a probe, since layers.0 is compiled" in seen.because
    assert_same_bits(trained(noisy(seed), batches), watched)


# ----------------------------------------------------------------------------------------------------- steps and errors


def test_the_first_step_and_each_multiple_are_watched_and_no_maximum_outlives_its_step(fresh):
    model, inputs = tiny_llama(seed=draw(fresh)), batch(fresh, (9, 9))
    largest, fresh_steps = {}, []
    with mh.watch(model, every=3, statistics=["max_logit"]) as seen:
        for step in range(1, 8):
            if step == 4:  # from here on every score is a quarter of what it was
                with torch.no_grad():
                    for layer in model.model.layers:
                        layer.self_attn.q_proj.weight.mul_(0.25)
            with torch.no_grad():
                model(**inputs)  # an evaluation in the middle of a step is no part of it
            before = seen.latest()
            model(**inputs).loss.backward()
            seen.step()
            if seen.fresh:
                fresh_steps.append(step)
                largest[step] = seen.last["max_logit"]
            else:
                assert seen.latest() == before
    assert fresh_steps == [1, 3, 6]
    first_layer = slice(0, 6)
    np.testing.assert_allclose(largest[6][first_layer], 0.25 * largest[3][first_layer], rtol=1e-4)


def test_a_negative_maximum_is_shown_as_it_is(fresh):
    q = k = torch.ones(1, 1, 4, 3)

    class Away(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self):
            return F.scaled_dot_product_attention(q * self.weight, -k, k).sum()

    with mh.watch(model := Away(), statistics=["max_logit"]) as seen:
        model().backward()
        seen.step()
    assert seen.last["L0H0", "max_logit"] == pytest.approx(-(3**0.5))


def test_a_run_that_diverges_is_watched_to_the_end(fresh):
    model, inputs = tiny_llama(seed=draw(fresh)), batch(fresh)
    with mh.watch(model, every=1, statistics=["max_logit", "entropy"]) as seen:
        model(**inputs)
        seen.step()
        with torch.no_grad():
            model.model.layers[1].self_attn.q_proj.weight.fill_(torch.nan)
        model(**inputs)
        seen.step()
    first, later = seen.last["entropy"][:6], seen.last["entropy"][6:]
    assert np.isfinite(first).all() and np.isnan(later).all()
    assert np.isposinf(seen.last["max_logit"][6:]).all() and np.isposinf(seen.latest()["heads/max_logit.max"])


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
def test_a_run_that_has_diverged_before_its_first_step_is_watched_and_checked_once_it_is_mended(name, fresh):
    model, inputs = tiny_llama(seed=draw(fresh)), batch(fresh)
    projection = getattr(model.model.layers[1].self_attn, name)
    sound = projection.weight.detach().clone()
    with mh.watch(model, every=1, statistics=["max_logit", "entropy", "output_share"]) as seen:
        with torch.no_grad():
            projection.weight.fill_(torch.nan)
        model(**inputs)
        seen.step()
        first = seen.last
        of_scores, of_outputs = first["entropy"], first["output_share"]
        assert np.isfinite(of_scores[:6]).all() and np.isfinite(of_outputs[:6]).all() and np.isnan(of_outputs[6:]).all()
        assert name == "v_proj" or np.isnan(of_scores[6:]).all()
        sites = ", ".join(f"model.layers.{layer}.self_attn" for layer in (1, 2))
        assert first.because.endswith(f"; not checked yet, since they hold NaN or infinity: {sites}")
        with torch.no_grad():
            projection.weight.copy_(sound)
        model(**inputs)
        seen.step()
    assert np.isfinite(seen.last.values).all() and "not checked" not in seen.last.because


def test_a_layer_that_attends_otherwise_than_it_shows_is_found_after_a_first_pass_of_nan(fresh, monkeypatch):
    model, inputs = tiny_llama(seed=draw(fresh)), batch(fresh)
    projection = model.model.layers[1].self_attn.v_proj
    sound = projection.weight.detach().clone()
    with mh.watch(model, every=1, statistics=["max_logit"]) as seen:
        with torch.no_grad():
            projection.weight.fill_(torch.nan)
        model(**inputs)
        seen.step()
        with torch.no_grad():
            projection.weight.copy_(sound)
        real = open_taps.lse_of
        monkeypatch.setattr(open_taps, "lse_of", lambda *args: (real(*args)[0] + 0.1, "wrong on purpose"))
        with pytest.raises(GuardError, match="layer 1 .* lies .* of the row's norm"):
            model(**inputs)


def test_a_step_in_which_nothing_trained_says_so(fresh, caplog):
    model = tiny_llama(seed=draw(fresh))
    with mh.watch(model, every=1) as seen, caplog.at_level(logging.WARNING, "manyheads"):
        with torch.no_grad():
            model(**batch(fresh))
        seen.step()
    assert not seen.fresh and seen.latest() == {} and "no forward pass with gradients" in caplog.text


def test_a_watched_model_can_be_copied_and_saved_and_its_copy_is_not_watched(fresh):
    model, inputs = tiny_gpt2(seed=draw(fresh)), batch(fresh)
    with mh.watch(model) as seen:
        torch.save(model, file := io.BytesIO())
        file.seek(0)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            other(**inputs)
        assert not seen._layers
        with mh.watch(other):
            pass


def test_a_closed_watch_is_pickled_without_its_model_and_an_open_one_is_refused(fresh):
    model, callback = tiny_gpt2(seed=draw(fresh)), mh.HeadWatch(every=3)
    with mh.watch(model, every=1) as seen:
        model(**batch(fresh))
        seen.step()
        refuses(
            ModelError, "^this watch is open, and its hooks .*: close it first, or pickle .*, .last", pickle.dumps, seen
        )
    data = pickle.dumps(seen)
    assert len(data) < 20_000
    for again in (pickle.loads(data), copy.deepcopy(seen)):
        assert repr(again).startswith("Watch(read from a pickle, closed")
        assert again.latest() == seen.latest() and again.because == seen.because and again.done == 1
        refuses(ModelError, "this watch is closed", again.step)
        again.close()
    callback.open(model, 0)
    again = pickle.loads(pickle.dumps(callback))
    assert again.watch is None and again.options.every == 3 and callback.watch is not None
    callback.close()


def test_an_error_in_the_loop_leaves_the_model_as_it_was(fresh):
    model, inputs = tiny_gpt2(seed=draw(fresh)), batch(fresh)
    expected = model(**inputs).logits
    with pytest.raises(IndexError), mh.watch(model):
        model(input_ids=torch.tensor([[10**6]]))
    with mh.watch(model) as seen:
        assert torch.equal(model(**inputs).logits, expected)
        seen.step()
    assert seen.fresh and not model._forward_pre_hooks


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 6)

    def forward(self, x):
        x = self.line(x)
        return (x @ x.transpose(1, 2)).softmax(-2) @ x


def test_what_cannot_be_watched_is_refused_in_words(fresh):
    model = tiny_gpt2(seed=draw(fresh))
    for every in (0, -3, True):
        refuses(PlanError, r"every=.*whole number, 1 or more", mh.watch, model, every=every)
    refuses(PlanError, r"rows=0", mh.watch, model, rows=0)
    with pytest.raises(StatisticError, match="'punctuation_mass' is about a text's words"):
        mh.watch(model, statistics=["punctuation_mass"])
    with pytest.raises(StatisticError, match="'image_mass' is about the pictures in a text, which a watch"):
        mh.watch(model, statistics=["image_mass"])
    with pytest.raises(StatisticError, match=r"no statistic 'entropie': a watch has max_logit, .*entropy"):
        mh.watch(model, statistics=["entropie"])
    refuses(StatisticError, "give a list of names", mh.watch, model, statistics="entropy")
    with pytest.raises(StatisticError, match="'distance' depends on where a row stands"):
        mh.watch(model, statistics=["distance"], rows=4)
    with mh.watch(model), pytest.raises(ModelError, match="watched already: close that watch"):
        mh.watch(model)
    with mh.watch(model), pytest.raises(ModelError, match="watched already, as a part of the same GPT2LMHeadModel"):
        mh.watch(model.transformer)
    with mh.QKClip(model), pytest.raises(ModelError, match="has a clip already, and two would both scale its heads"):
        mh.QKClip(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    refuses(
        PlanError, r"^tau=SGD \(.* \.\.\.\) is not a limit for a score: give a number.*\.$", mh.QKClip, model, optimizer
    )
    refuses(PlanError, r"^alpha=SGD \(.* \.\.\.\) is not a share of the clip", mh.QKClip, model, alpha=optimizer)
    refuses(
        PlanError,
        r"^optimizer=GPT2.* \.\.\.\) is not an optimizer: "
        r"give the one",
        mh.QKClip,
        model,
        optimizer=model,
    )
    refuses(PlanError, "step=-1: give the number of steps that were done before", mh.watch, model, step=-1)
    refuses(PlanError, "every=0: give a whole number", mh.HeadWatch, every=0)
    refuses(PlanError, "tau=-1.0 is not a limit for a score", mh.HeadWatch, qk_clip=-1.0)
    with mh.watch(model) as seen:
        pass
    refuses(ModelError, "this watch is closed: make another one", seen.step)
    with mh.watch(line := nn.Linear(2, 2)), pytest.raises(ModelError, match="made no attention call"):
        line(torch.randn(1, 2))
    with mh.watch(by_hand := ByHand()), pytest.raises(ModelError, match="computes its attention itself"):
        by_hand(torch.randn(1, 3, 6))
    with mh.watch(model) as seen:
        model(**batch(fresh))
        seen.step()
        with pytest.raises(StatisticError, match="this watch has no 'distance', only max_logit"):
            _ = seen.last["distance"]


def test_a_file_that_is_there_is_gone_on_with_or_refused_before_anything_is_trained(fresh, tmp_path):
    model, inputs, out = tiny_gpt2(seed=draw(fresh)), batch(fresh), tmp_path / "heads.parquet"

    def steps(count, **how):
        with mh.watch(model, every=2, out=out, **how) as seen:
            for _ in range(count):
                model(**inputs)
                seen.step()

    out.mkdir()  # as a training leaves it that was killed before its first step
    steps(3)
    refuses(FileAccessError, r"holds the steps 1 to 2 of an earlier training: give another path, del", steps, 1)
    steps(3, step=3)
    assert open_history(out).steps.tolist() == [1, 2, 4, 6]
    (tmp_path / "other.parquet").write_text("no table")
    refuses(RecordingError, "other.parquet", mh.watch, model, out=tmp_path / "other.parquet")
    with mh.watch(model, every=1, out=out, step=6) as seen, pytest.raises(KeyError), seen:
        model(**inputs)
        seen.step()
        raise KeyError("in the loop")
    assert open_history(out).steps.tolist() == [1, 2, 4, 6, 7]


def test_a_model_that_does_something_unseen_is_stopped_in_its_first_step(fresh, monkeypatch):
    model = tiny_gpt2(seed=draw(fresh))
    real = open_taps.lse_of
    monkeypatch.setattr(open_taps, "lse_of", lambda *args: (real(*args)[0] + 0.1, "wrong on purpose"))
    with mh.watch(model), pytest.raises(GuardError, match="lies .* of the row's norm"):
        model(**batch(fresh))
