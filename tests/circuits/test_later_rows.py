"""Patches that run only the tokens from the first difference on are what plain hooks on whole texts give.

In float64 the two differ by rounding alone. The oracle (`by_hooks`, and hooks written out for the bundled model) shares
no code with what it judges. Models in which earlier tokens cannot be left out run whole texts, and that is said.
"""

import random
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import manyheads as mh
from manyheads.circuits import path_effects
from manyheads.edits.runner import PART_ROWS, Runner, parts_of
from manyheads.errors import ManyHeadsError, StatisticError
from manyheads.models import BUNDLED
from tests.circuits.by_hooks import PLACES, ByHooks
from tests.circuits.test_circuit import truth as faithfulness_by_hooks
from tests.circuits.test_patching import SAME, changes_of, truth
from tests.interventions.checkpoints import COMPACT, STOCK, VOCABULARY, enliven
from tests.interventions.surgeries import loaded
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_tokenizer

LENGTH, SHARED = 11, (7, 2, 7)  # tokens of a text, and how many of each pair are the same before the first that differs
ANSWERS = (5, 11)
SAVED = ", and the rows before the first that is changed"


def pairs_sharing(shared, fresh, length=LENGTH):
    """Ready inputs of either run: random tokens, of each text the first the same."""
    clean = torch.randint(3, VOCABULARY - 1, (len(shared), length), generator=fresh)
    corrupted = torch.randint(3, VOCABULARY - 1, (len(shared), length), generator=fresh)
    for text, count in enumerate(shared):
        corrupted[text, :count] = clean[text, :count]
        corrupted[text, count] = clean[text, count] + 1
    return {"input_ids": clean}, {"input_ids": corrupted}


def made(name, fresh, shared=SHARED, **changes):
    model = {**STOCK, **COMPACT}[name].make(fresh).double()
    if name == "gpt_oss":
        model.config._experts_implementation = "eager"  # the grouped product of experts has no float64
    lm = mh.load(model, tokenizer=False)
    right, wrong = ANSWERS
    oracle = ByHooks(
        model, PLACES[name], lm.spec.sites[0].num_heads, lm.spec.sites[0].num_kv_heads, lm.spec.sites[0].v_dim,
        lambda outputs: outputs.logits[:, -1, right] - outputs.logits[:, -1, wrong],
    )  # fmt: skip
    return lm, *pairs_sharing(shared, fresh), oracle


def assert_as_by_hooks(name, what, direction, positions, fresh):
    lm, clean, corrupted, oracle = made(name, fresh)
    got = mh.patch(
        lm, clean, corrupted, answers=ANSWERS, what=what, direction=direction, positions=positions, controls=0,
        num_tokens=400,
    )  # fmt: skip
    assert got.notes["computed"].endswith(SAVED)
    spots = range(LENGTH) if positions == "each" else [positions]
    want = truth(oracle, got.heads, (clean, corrupted), what, direction, spots)
    assert want.abs().max() > 1e-4, "no patch changed anything: this proves nothing"
    assert (want - changes_of(got)).abs().max() <= SAME * want.abs().max()


ALL_OF = ("gpt2", "llama", "gpt_neox", "gemma2", "opt", "mistral", "qwen3", "gpt_oss")


@pytest.mark.thinned
@pytest.mark.parametrize("what", ["out", "q", "k", "v", "weights"])
@pytest.mark.parametrize("name", ALL_OF)
def test_later_rows_are_patched_as_whole_texts_by_hooks(name, what, fresh):
    assert_as_by_hooks(name, what, "denoise", "all", fresh)


@pytest.mark.parametrize(
    ("name", "what", "positions"),
    [("llama", "out", [2, -3]), ("gpt2", "v", [8]), ("gemma2", "q", [-1]), ("opt", "k", "each"),
     pytest.param("llama", "out", "each", marks=pytest.mark.slow),
     pytest.param("mistral", "weights", "each", marks=pytest.mark.slow)],
)  # fmt: skip
def test_so_are_some_positions(name, what, positions, fresh):
    assert_as_by_hooks(name, what, "noise", positions, fresh)


def whole_texts(monkeypatch):
    """The runner as it is where no row is known to stay as it is."""
    zeros = lambda self, batch: torch.zeros(len(batch.places), self.edits.count, dtype=torch.long)  # noqa: E731
    monkeypatch.setattr(Runner, "_unchanged", zeros)


@pytest.mark.parametrize("metric", ["logit_diff", "logit", "prob", "loss", "kl"])
def test_later_rows_and_whole_texts_give_the_same_of_random_sizes(metric, fresh, monkeypatch):
    choose = random.Random(draw(fresh))
    groups = choose.choice([1, 2, 3])
    heads = groups * choose.randint(1, 3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=heads * choose.randint(5, 9), intermediate_size=choose.randint(30, 60),
        num_hidden_layers=choose.randint(2, 5), num_attention_heads=heads, num_key_value_heads=groups,
        head_dim=2 * choose.randint(2, 6), pad_token_id=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        enliven(model)
    lm = mh.load(model, tokenizer=False)
    shared = [choose.randint(0, 8) for _ in range(choose.randint(1, 4))] + [8]
    sides = [pairs_sharing(shared, fresh, 10 + draw(fresh) % 4)]
    sides = [list(side) for side in zip(*sides, pairs_sharing([3, 0], fresh, 5), strict=True)]
    answers = {"logit_diff": ANSWERS, "kl": None}.get(metric, ANSWERS[0])
    options = {"metric": metric, "answers": answers, "num_tokens": choose.randint(40, 900), "direction": "noise"}
    # Where parts cost nothing, each text and head runs on its own rows; else such small models run them together.
    part_rows = choose.choice([0, PART_ROWS])
    monkeypatch.setattr("manyheads.edits.runner.PART_ROWS", part_rows)
    got = mh.patch(lm, *sides, **options)
    assert got.notes["computed"].endswith(SAVED) or part_rows
    whole_texts(monkeypatch)
    want = mh.patch(lm, *sides, **options)
    assert SAVED not in want.notes["computed"]
    same = {"abs": 1e-8 * max(1.0, abs(want.per_text).max())}
    assert got.per_text == pytest.approx(want.per_text, **same)
    # Of a random text the first rows differ as well: such patches run on all rows, beside those of the partner.
    assert got.control == pytest.approx(want.control, **same)
    assert max(map(abs, want.control)) > 1e-3 * abs(want.per_text).max()


def test_paths_and_sets_of_heads_run_later_rows_too(fresh, monkeypatch):
    lm, *sides, _ = made("llama", fresh, (7, 6, 7, 5))
    found = [mh.find_circuit(lm, *sides, answers=ANSWERS, keep=0.7, random_sets=3, seed=2)]
    paths = [path_effects(lm, *sides, "L1H3", answers=ANSWERS)]
    assert found[0].notes["computed"].endswith(SAVED)
    whole_texts(monkeypatch)
    found.append(mh.find_circuit(lm, *sides, answers=ANSWERS, keep=0.7, random_sets=3, seed=2))
    paths.append(path_effects(lm, *sides, "L1H3", answers=ANSWERS))
    assert found[0].heads == found[1].heads and found[0].random == pytest.approx(found[1].random, abs=1e-8)
    assert found[0].faithfulness == pytest.approx(found[1].faithfulness, abs=1e-8)
    for one, other in zip(*paths, strict=True):
        assert one.per_text == pytest.approx(other.per_text, abs=1e-8 * max(1.0, abs(other.value)))


def test_rows_are_left_out_and_not_only_said_to_be(fresh):
    lm, *sides, _ = made("llama", fresh, (7, 7))
    rows = []
    hook = lm.model.model.layers[1].mlp.register_forward_hook(lambda _, args, out: rows.append(out.shape[:2].numel()))
    mh.patch(lm, *sides, answers=ANSWERS, controls=0)
    hook.remove()
    heads, texts, later = len(lm.spec.heads), 2, LENGTH - 7
    # Both runs, and the check of an expanded batch; the later rows unedited, alone and in two blocks; and the patches.
    assert sum(rows) == 2 * texts * LENGTH + 2 * texts * LENGTH + 3 * texts * later + heads * texts * later


# ------------------------------------------------------------------------------------------------ where whole texts run


class Mixed(nn.Module):
    """A feed-forward layer that mixes tokens besides attention."""

    def __init__(self, inner, mix):
        super().__init__()
        self.inner, self.mix = inner, mix

    def forward(self, x):
        return self.inner(x) + 0.3 * self.mix(x)


MIXES = {
    # A state-space layer or a convolution reads the rows before, and no cache of keys has them.
    "before": (lambda x: x.cumsum(1), "later rows alone do not give what they give behind the rows before them"),
    "after": (lambda x: x.flip(1).cumsum(1).flip(1), "the two runs differ before the first token that differs"),
    "length": (lambda x: x * x.shape[1], "later rows alone do not give what they give behind the rows before them"),
    "shape": (lambda x: x.view(-1, LENGTH, x.shape[2]), "later rows cannot run alone (shape '[-1, 11, 48]' is invalid"),
}


@pytest.mark.parametrize("name", MIXES)
def test_a_model_that_reads_other_tokens_besides_by_attention_runs_whole_texts(name, fresh):
    lm, clean, corrupted, oracle = made("llama", fresh, (7, 7))
    mix, reason = MIXES[name]
    lm.model.model.layers[0].mlp = Mixed(lm.model.model.layers[0].mlp, mix).eval()
    got = mh.patch(lm, clean, corrupted, answers=ANSWERS, controls=0)
    assert f"too; whole texts run again: {reason}" in got.notes["computed"]
    want = truth(oracle, got.heads, (clean, corrupted), "out", "denoise", ["all"])
    assert (want - changes_of(got)).abs().max() <= SAME * want.abs().max()


def test_other_readings_and_models_run_whole_texts(fresh):
    lm, *sides, _ = made("gpt2", fresh)
    own = mh.patch(lm, *sides, lambda outputs, inputs: outputs.logits[:, -2, 5], controls=0)
    assert own.notes["computed"].endswith("whole texts run again: the metric may read any row")
    bert = mh.load(tiny_bert(BertForMaskedLM, seed=draw(fresh)), tokenizer=tiny_tokenizer())
    texts = "the king gave the book to the [MASK]", "the king gave the map to the [MASK]"
    masked = mh.patch(bert, *texts, answers=("child", "dog"), controls=0)
    assert masked.notes["computed"].endswith(
        "whole texts run again: the two runs differ before the first token that differs"
    )
    t5 = mh.load(STOCK["t5"].make(fresh).double(), tokenizer=False)
    for side in sides:
        side["decoder_input_ids"] = side["input_ids"][:, :6]
    apart = mh.patch(t5, *sides, answers=ANSWERS, controls=0)
    assert apart.notes["computed"].endswith("too") or "whole texts run again" in apart.notes["computed"]
    lm = loaded("llama", draw(fresh))
    first = mh.patch(lm, "king gave the book", "queen gave the book", answers=("child", "dog"), controls=0)
    assert first.notes["computed"].endswith("of 3 of them too"), "there is nothing before the first token"


def test_every_text_and_plan_runs_once_from_no_later_than_it_must(fresh):
    choose = random.Random(draw(fresh))
    for _ in range(40):
        size, count, length = choose.randint(1, 5), choose.randint(1, 70), choose.randint(1, 60)
        unchanged = torch.tensor([[choose.randint(0, length) for _ in range(count)] for _ in range(size)])
        if choose.random() < 0.5:
            unchanged = unchanged[:, :1].expand(-1, count)
        seen = torch.zeros(size, count)
        parts = list(parts_of(unchanged, list(range(count)), length))
        for part in parts:
            rows = unchanged[part.texts.start : part.texts.stop, part.plans]
            seen[part.texts.start : part.texts.stop, part.plans] += 1
            assert part.first == rows.min() and part.first < length and part.size == size
        assert ((seen == 1) | ((unchanged == length) & (seen == 0))).all()
    apart = torch.tensor([[0], [9]]).expand(-1, PART_ROWS)
    assert [(list(part.texts), part.first) for part in parts_of(apart, list(range(PART_ROWS)), 12)] == [
        ([0], 0),
        ([1], 9),
    ]
    assert len(list(parts_of(apart[:, :3], [0, 1, 2], 12))) == 1


# ---------------------------------------------------------------------------------- circuits of many heads, by gradient


def deep(fresh):
    """A model of 110 heads, in float64, and pairs."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=40, intermediate_size=36, num_hidden_layers=11, num_attention_heads=10,
        num_key_value_heads=5, head_dim=4, pad_token_id=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        enliven(model)
    return mh.load(model, tokenizer=False), *pairs_sharing((5, 6, 5), fresh)


def test_a_circuit_of_many_heads_is_ordered_by_gradient_and_measured_by_patches(fresh):
    lm, *sides = deep(fresh)
    right, wrong = ANSWERS
    got = mh.find_circuit(lm, *sides, answers=ANSWERS, keep=0.8, random_sets=2)
    begin, order = got.steps[0], got.notes["order"]
    assert begin == (110, 1.0) and order.startswith("by gradient from 110 heads to ")
    assert order == f"by gradient from 110 heads to {got.steps[1][0]}, by patches from there"

    def kept(names):
        read = lambda outputs: outputs.logits[:, -1, right] - outputs.logits[:, -1, wrong]  # noqa: E731
        return faithfulness_by_hooks(lm, "llama", *sides, read, names)

    names = [str(head) for head in got.heads]
    assert got.faithfulness == pytest.approx(kept(names), abs=1e-8) and got.found_with >= 0.8
    # None of its heads can go: whatever put them in order, that is measured.
    for name, cost in zip(names, got.costs, strict=True):
        rest = kept([other for other in names if other != name])
        assert rest < 0.8 and cost == pytest.approx(got.found_with - rest, abs=1e-8)


def test_a_metric_without_a_gradient_is_put_in_order_by_patches(fresh):
    lm, *sides = deep(fresh)

    def metric(outputs, inputs):
        return outputs.logits[:, -1].detach()[:, 7]

    got = mh.find_circuit(lm, *sides, metric, keep=0.3, random_sets=0)
    assert got.notes["order"].startswith("by patches, since there is no gradient: metric 'metric' is a metric without")
    with pytest.raises(StatisticError, match="a metric without a gradient"):
        mh.find_circuit(lm, *sides, metric, keep=0.3, random_sets=0, estimator="gradient")
    with pytest.raises(StatisticError, match="estimator='slope' is unknown: use one of exact, gradient"):
        mh.find_circuit(lm, *sides, metric, estimator="slope")


# ---------------------------------------------------------------------------------------------------- the bundled model


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_patching_smollm2_equals_plain_hooks_on_one_pair(direction, fresh):
    """Hooks on the input of the stock model's output projections, in the dtype that people run."""
    try:
        lm = mh.load("smollm2", device="cpu")
    except ManyHeadsError as error:
        pytest.skip(f"{BUNDLED['smollm2'].weights} cannot be had here: {error}")
    model, tokenizer = lm.model, lm.tokenizer
    texts = [f"When Mary and John went to the store, {name} gave a drink to" for name in ("John", "Mary")]
    clean, corrupted = (tokenizer(text, return_tensors="pt")["input_ids"] for text in texts)
    mary, john = (tokenizer(name)["input_ids"] for name in (" Mary", " John"))
    into, other = (corrupted, clean) if direction == "denoise" else (clean, corrupted)

    def run(ids, layer=None, hook=None):
        handle = None if layer is None else model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(hook)
        with torch.no_grad():
            logits = model(ids).logits[0, -1].double()
        if handle is not None:
            handle.remove()
        return float(logits[mary[0]] - logits[john[0]])

    choose, width = random.Random(draw(fresh)), model.config.head_dim
    heads = [(layer, choose.randrange(9)) for layer in range(30)] + [(17, 4), (20, 0), (23, 3)]
    heads = sorted(set(heads))
    got = mh.patch(
        lm, *texts, answers=("Mary", "John"), direction=direction, controls=0,
        heads=", ".join(f"L{layer}H{head}" for layer, head in heads),
    )  # fmt: skip
    assert got.notes["computed"].endswith(SAVED)
    plain, top, bottom = run(into), run(clean), run(corrupted)
    changes = []
    for layer, head in heads:
        part, kept = slice(head * width, (head + 1) * width), []
        run(other, layer, lambda _, args, kept=kept: kept.append(args[0].clone()))

        def put(_, args, kept=kept, part=part):
            x = args[0].clone()
            x[..., part] = kept[0][..., part]
            return (x,)

        changes.append(run(into, layer, put) - plain)
    sign = 1 if direction == "denoise" else -1
    assert max(map(abs, changes)) > 1
    assert got.values == pytest.approx([sign * change / (top - bottom) for change in changes], abs=2e-5)


@pytest.mark.slow
def test_circuits_of_smollm2_by_gradient_are_those_by_patches(tmp_path: Path):
    """On names: the same heads, or as few that keep as much."""
    lm = mh.load("smollm2", device="cpu")
    names = [("Mary", "John"), ("Tom", "James"), ("Anna", "Paul")]
    text = "When {0} and {1} went to the store, {2} gave a drink to"
    clean, corrupted = ([text.format(a, b, (a, b)[place]) for a, b in names] for place in (1, 0))
    found = {
        estimator: mh.find_circuit(lm, clean, corrupted, answers=names, random_sets=0, estimator=estimator)
        for estimator in ("exact", "gradient")
    }
    assert len(found["gradient"].heads) <= len(found["exact"].heads)
    assert found["gradient"].found_with >= 0.9
