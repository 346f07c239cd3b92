"""Each step of a plan does what the same surgery, done by hand on the model's own modules, does.

Oracles: zeros in a stock output projection's columns; its input, replaced by what plain torch computes from the model's
own eager maps, values and hooks (`surgeries`).
"""

import copy
import json
import logging
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads.edits import plan_edits
from manyheads.errors import HeadError, ModelError, PlanError
from manyheads.interventions.effects.effect import random_plans
from manyheads.models.taps.open_taps import OPEN
from manyheads.nn.positions import Rope, Yarn
from manyheads.plan import Ablate, Average, Copy, Plan, Scale, SkipOutputProjection, SkipPositions
from tests.interventions.surgeries import (
    CASES,
    HEADS,
    TEXTS,
    assert_close,
    assert_matters,
    by_head,
    edited,
    feeding,
    hook_counts,
    loaded,
    output,
    projection,
    reading,
    weighted,
    with_heads,
    without_heads,
)
from tests.models.eager import draw, padded, spans
from tests.models.tiny import VOCAB_SIZE, save_tiny, tiny_bert
from tests.refusals import refuses

LENGTHS = (11, 7, 13)
LAYER = 1  # all of them have it; of gemma2 it is a full layer, of gpt_oss too
MAPPED = ("bert", "llama", "gemma2", "gpt_oss")  # whose values come from a module of their own
every_case = pytest.mark.parametrize(("name", "attention"), CASES)
sides = pytest.mark.parametrize("side", ["right", "left"])


def some_inputs(name, fresh, side="right"):
    if name == "vit":
        return {"pixel_values": torch.randn(3, 3, 24, 40, generator=fresh)}
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE, side)
    if name == "t5":
        inputs["decoder_input_ids"] = torch.randint(5, VOCAB_SIZE, (3, 6), generator=fresh)
    return inputs


def assert_plan_is(lm, plan, inputs, name, change, *, layer=LAYER, corpus=None):
    """What the plan does is `change` to the input of one output projection, and that is something."""
    plain = output(lm.model, inputs)
    with feeding(projection(name, lm.model, layer), change):
        want = output(lm.model, inputs)
    assert_close(edited(lm, plan, inputs, corpus), want)
    assert_matters(want, plain)
    assert torch.equal(output(lm.model, inputs), plain)


# ------------------------------------------------------------------------------------------------------ zero and scale

STACKS = {"t5": ("encoder", "decoder", "cross")}


@pytest.mark.thinned
@every_case
def test_zero_ablation_is_zeros_in_the_columns_of_a_stock_output_projection(name, attention, fresh):
    lm, inputs = loaded(name, draw(fresh), attention), some_inputs(name, fresh)
    plain = output(lm.model, inputs)
    for stack in STACKS.get(name, ("",)):
        heads = [1, HEADS[name] - 1]
        operated = copy.deepcopy(lm.model)
        without_heads(name, operated, LAYER, heads, stack)
        want = output(operated, inputs)
        layer = f"{stack}:L{LAYER}".removeprefix(":")
        assert_close(edited(lm, Ablate(f"{layer}H1, {layer}H{heads[1]}"), inputs), want)
        assert_matters(want, plain)
    assert torch.equal(output(lm.model, inputs), plain)


STOCK = """
import json, sys, torch
from transformers import AutoModel
model = AutoModel.from_pretrained(sys.argv[1]).eval()
ids = torch.tensor(json.loads(sys.argv[2]))
with torch.no_grad():
    plain = model(ids)[0]
    weight = model.encoder.layer[1].attention.output.dense.weight.view(40, 5, 8)
    weight[:, [0, 3]] = 0
    torch.save({"plain": plain, "operated": model(ids)[0]}, sys.argv[3])
assert "manyheads" not in sys.modules
"""


@pytest.mark.slow  # another Python: in every run the same surgery is done on a copy in this process, of each family
def test_zero_ablation_equals_what_a_process_that_never_heard_of_it_computes(tmp_path, fresh):
    folder = save_tiny(tiny_bert(seed=draw(fresh)), tmp_path / "bert")
    ids = torch.randint(5, VOCAB_SIZE, (2, 13), generator=fresh)
    command = [sys.executable, "-c", STOCK, str(folder), json.dumps(ids.tolist()), str(tmp_path / "out.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stock = torch.load(tmp_path / "out.pt")
    lm = mh.load(folder, tokenizer=False)
    assert_close(edited(lm, Ablate({1: [0, 3]}), {"input_ids": ids}), stock["operated"])
    assert_close(output(lm.model, {"input_ids": ids}), stock["plain"])
    assert_matters(stock["operated"], stock["plain"])


def test_scale_multiplies_what_a_head_says_exactly_in_float64(fresh):
    lm, inputs = loaded("llama", draw(fresh), dtype=torch.float64), some_inputs("llama", fresh)
    plain = output(lm.model, inputs)
    for factor in (-0.7, 0.0, 0.1, 0.5, 2.0):
        change = lambda x, factor=factor: with_heads(x, [2, 5], by_head(x, 6)[:, :, [2, 5]] * factor, 6)  # noqa: E731
        with feeding(projection("llama", lm.model, LAYER), change):
            want = output(lm.model, inputs)
        assert_close(edited(lm, Scale("L1H2, L1H5", factor), inputs), want, 1e-13)
        assert_matters(want, plain)


# ------------------------------------------------------------------------------------------------- first, average, copy


def first_seen(maps):
    """All weight of each row on the first key that it sees."""
    seen = maps.amax(1) > 0
    return nn.functional.one_hot(seen.to(torch.uint8).argmax(-1), maps.shape[-1]).to(maps)


WEIGHTS = {
    "first": (Ablate("L1H1, L1H3", kind="first"), [1, 3], first_seen),
    "average": (Average("L1H0-2"), [0, 1, 2], lambda maps: maps[:, :3].mean(1)),
    "copy": (Copy("L1H0, L1H3", source="L1H2"), [0, 3], lambda maps: maps[:, 2]),
    "part": (Copy("L1H0, L1H3", "L1H2", share=0.3), [0, 3], lambda maps: 0.7 * maps[:, [0, 3]] + 0.3 * maps[:, [2]]),
}


@pytest.mark.thinned
@pytest.mark.parametrize("step", WEIGHTS)
@pytest.mark.parametrize("name", MAPPED)
def test_steps_that_change_weights_equal_sums_over_the_models_own_eager_maps(name, step, fresh):
    """Padded on the left: there the first key that a row sees is another in each text."""
    lm, inputs = loaded(name, draw(fresh)), some_inputs(name, fresh, "left")
    plan, heads, weights = WEIGHTS[step]
    new = weighted(name, lm.model, LAYER, inputs, heads, weights)
    real = inputs["attention_mask"].bool()[..., None, None]

    def change(x):
        return with_heads(x, heads, torch.where(real, new, by_head(x, HEADS[name])[:, :, heads]), HEADS[name])

    assert_plan_is(lm, plan, inputs, name, change)


@pytest.mark.thinned
@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
@pytest.mark.parametrize("step", WEIGHTS)
def test_windows_are_kept_where_weights_change(name, step, fresh):
    """Layer 0 sees few keys back."""
    lm, inputs = loaded(name, draw(fresh)), some_inputs(name, fresh)
    plan, heads, weights = WEIGHTS[step]
    plan = Plan.from_json(Plan(plan).to_json().replace("L1", "L0"))
    new = weighted(name, lm.model, 0, inputs, heads, weights)
    assert_plan_is(lm, plan, inputs, name, lambda x: with_heads(x, heads, new, HEADS[name]), layer=0)


def test_copy_wants_one_source_in_each_layer_where_heads_are_named(fresh):
    lm = loaded("llama", draw(fresh))
    for heads, source in (("L1", "L1H0-1"), ("L0, L1", "L1H0"), ("L2", "L1H0")):
        with pytest.raises(PlanError, match=r"the source must be one head in each layer .* it is [02]\. Write it as"):
            edited(lm, Copy(heads, source), some_inputs("llama", fresh))
    inputs = some_inputs("llama", fresh)
    both = edited(lm, Copy("L0H1, L2H3", "L*H0"), inputs)
    one_by_one = edited(lm, Plan([Copy("L0H1", "L0H0"), Copy("L2H3", "L2H0")]), inputs)
    assert torch.equal(both, one_by_one)
    assert_matters(both, output(lm.model, inputs))


# -------------------------------------------------------------------------------------------------- mean and resample


def heads_on(lm, name, texts, layer=LAYER):
    """What goes into the output projection on each text by itself: [n, heads, f] each."""
    with reading({0: projection(name, lm.model, layer)}) as seen, torch.no_grad():
        for text in texts:
            lm.model(**lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False))
    return [by_head(x[0], HEADS[name]) for x in seen[0]]


def rows_by_position(x, inputs, heads, values):
    """`values(position)` for each row of each text, padding as it was."""
    new = by_head(x.clone(), x.shape[-1] // values(0).shape[-1])
    for text, span in enumerate(spans(inputs["attention_mask"])):
        for position, row in enumerate(range(span.start, span.stop)):
            new[text, row, heads] = values(position)
    return new.flatten(-2)


@pytest.mark.thinned(name=("bert", "gpt2", "gpt_oss"))
@sides
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt_oss"])
def test_mean_ablation_puts_the_corpus_mean_in_a_heads_place(name, side, fresh):
    lm, inputs = loaded(name, draw(fresh)), some_inputs(name, fresh, side)
    mean = torch.cat(heads_on(lm, name, TEXTS)).mean(0)[[1, 3]]
    plan = Ablate("L1H1, L1H3", kind="mean")
    assert_plan_is(lm, plan, inputs, name, lambda x: with_heads(x, [1, 3], mean, HEADS[name]), corpus=list(TEXTS))


@pytest.mark.thinned(name=("llama", "gemma2"))
@sides
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2"])
def test_mean_ablation_by_position_counts_a_texts_own_positions(name, side, fresh):
    """The shortest text of the corpus ends before the longest that is read: further on, the mean over all serves."""
    lm, inputs = loaded(name, draw(fresh)), some_inputs(name, fresh, side)
    rows = heads_on(lm, name, TEXTS[1:2] + TEXTS[3:])
    longest = max(map(len, rows))
    assert longest < max(LENGTHS)

    def values(position):
        known = [row[position, [1, 3]] for row in rows if position < len(row)]
        return torch.stack(known).mean(0) if known else torch.cat(rows).mean(0)[[1, 3]]

    plan = Ablate("L1H1, L1H3", kind="mean", per_position=True)
    corpus = [TEXTS[1], TEXTS[3]]
    assert_plan_is(lm, plan, inputs, name, lambda x: rows_by_position(x, inputs, [1, 3], values), corpus=corpus)


@pytest.mark.thinned(name=("bert", "llama"))
@sides
@pytest.mark.parametrize("name", ["bert", "llama", "gpt_oss"])
def test_resampling_by_a_text_puts_its_outputs_in_row_by_row_and_again_from_its_start(name, side, fresh):
    lm, inputs = loaded(name, draw(fresh)), some_inputs(name, fresh, side)
    (rows,) = heads_on(lm, name, TEXTS[3:])
    assert len(rows) < max(LENGTHS)
    plan = Ablate("L1H1, L1H3", kind="resample", text=TEXTS[3])
    change = lambda x: rows_by_position(x, inputs, [1, 3], lambda at: rows[at % len(rows), [1, 3]])  # noqa: E731
    assert_plan_is(lm, plan, inputs, name, change)


def test_resampling_from_a_corpus_takes_one_of_its_texts_by_the_seed(fresh):
    # In float64: texts of a corpus are read together, whose sums are others than those of each alone.
    lm, inputs = loaded("llama", draw(fresh), dtype=torch.float64), some_inputs("llama", fresh)
    by_text = [edited(lm, Ablate("L1H1", kind="resample", text=text), inputs) for text in TEXTS]
    taken = []
    for seed in range(7):
        got = edited(lm, Ablate("L1H1", kind="resample", seed=seed), inputs, corpus=list(TEXTS))
        taken += [at for at, want in enumerate(by_text) if torch.allclose(got, want, atol=1e-6)]
    assert len(taken) == 7 and len(set(taken)) > 1, "each seed takes one text, and not always the same"


def test_a_plan_that_wants_texts_says_so(fresh):
    lm = loaded("llama", draw(fresh))
    for kind in ("mean", "resample"):
        with pytest.raises(PlanError, match=rf"{kind!r} ablation of L1H1 needs texts .* give corpus=\["):
            edited(lm, Ablate("L1H1", kind=kind), some_inputs("llama", fresh))
    for corpus, words in (([], "empty"), (3, "a int"), ({}, "a dict")):
        plan, inputs = Ablate("L1H1", kind="mean"), some_inputs("llama", fresh)
        refuses(PlanError, f"corpus= is {words}: give a list of texts", edited, lm, plan, inputs, corpus)


def test_pictures_are_a_corpus_for_a_model_of_pictures(fresh):
    lm, inputs = loaded("vit", draw(fresh)), some_inputs("vit", fresh)
    corpus = [{"pixel_values": torch.randn(size, 3, 24, 40, generator=fresh)} for size in (2, 5)]
    with reading({0: projection("vit", lm.model, 1)}) as seen, torch.no_grad():
        for each in corpus:
            lm.model(**each)
    mean = torch.cat([by_head(x, 3).flatten(0, 1) for x in seen[0]]).mean(0)[[1]]
    change = lambda x: with_heads(x, [1], mean, 3)  # noqa: E731
    assert_plan_is(lm, Ablate("L1H1", kind="mean"), inputs, "vit", change, corpus=corpus)


# ------------------------------------------------------------------------------------------------ the output projection


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_skipping_an_output_projection_is_the_identity_in_its_place(name, fresh):
    lm, inputs = loaded(name, draw(fresh)), some_inputs(name, fresh)
    operated, plain = copy.deepcopy(lm.model), output(lm.model, inputs)
    path = next(path for path, module in operated.named_modules() if module is projection(name, operated, LAYER))
    operated.set_submodule(path, nn.Identity())
    assert_close(edited(lm, SkipOutputProjection(LAYER), inputs), output(operated, inputs))
    assert_matters(output(operated, inputs), plain)
    assert torch.equal(output(lm.model, inputs), plain)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "t5"])
def test_an_output_projection_between_two_widths_cannot_be_skipped(name, fresh):
    lm, layer = loaded(name, draw(fresh)), "encoder:L1" if name == "t5" else "L1"
    message = r"skip the output projection .* wide side by side .* they cannot go on unmixed"
    refuses(PlanError, message, edited, lm, SkipOutputProjection(layer), some_inputs(name, fresh))


# ---- a block of `applied`: plans for single samples, blocks in blocks, threads; what is left behind, and what is said


def block_inputs(fresh):
    return padded(fresh, (11, 7, 13), VOCAB_SIZE)


PLANS = [
    Plan([Ablate("L1H1"), Scale("L2H0", 0.5)]), Plan(Average("L1H0-2")), Plan([]),
    Plan([SkipOutputProjection(1), Ablate("L0H3", kind="first")]), Plan(Ablate("L1H1, L2H4", kind="mean")),
    Plan(Copy("L2H1", "L2H0")), Plan([Scale("L1H1", 2), Ablate("L1H1", kind="resample", text=TEXTS[1])]),
]  # fmt: skip


@pytest.mark.parametrize("side", ["right", "left"])
def test_plans_for_single_samples_equal_each_by_itself(side, fresh):
    lm, corpus = loaded("llama", draw(fresh)), list(TEXTS)
    inputs = padded(fresh, (11, 7, 13, 5, 9, 8, 6), VOCAB_SIZE, side)
    with mh.applied(lm, PLANS, corpus=corpus), torch.no_grad():
        together = lm.model(**inputs).logits
    for at, (plan, span) in enumerate(zip(PLANS, spans(inputs["attention_mask"]), strict=True)):
        alone = {"input_ids": inputs["input_ids"][at : at + 1, span]}
        want = edited(lm, plan, alone, corpus)[0]
        assert_close(together[at, span], want)
        if plan.steps:
            assert_matters(want, output(lm.model, alone)[0])


def test_as_many_samples_as_plans(fresh):
    lm = loaded("llama", draw(fresh))
    words = r"2 plans were given, one for each sample, but model\.layers\.1\.self_attn attends in a batch of 3"
    refuses(PlanError, words, edited, lm, [Ablate("L1H1"), Ablate("L1H2")], block_inputs(fresh))


def test_steps_act_one_after_another_and_blocks_add_up(fresh):
    lm, inputs = loaded("llama", draw(fresh)), block_inputs(fresh)
    both = edited(lm, Plan([Scale("L1H1", 3), Scale("L1H1", 0.5), Ablate("L2H0")]), inputs)
    assert_close(edited(lm, Plan([Scale("L1H1", 1.5), Ablate("L2H0")]), inputs), both)
    with mh.applied(lm, Scale("L1H1", 1.5)), mh.applied(lm, Ablate("L2H0")):
        nested = output(lm.model, inputs)
    assert_close(nested, both)
    assert_matters(edited(lm, Scale("L1H1", 1.5), inputs), both)
    with mh.applied(lm, Ablate("L1H1")), mh.applied(lm, Ablate("L1H1", kind="first")):  # the inner one goes last
        assert torch.equal(output(lm.model, inputs), edited(lm, Ablate("L1H1", kind="first"), inputs))


def test_recording_and_measuring_inside_see_the_edited_model(fresh):
    lm, plan = loaded("llama", draw(fresh)), Ablate("L0", kind="zero")
    inputs = {"input_ids": torch.randint(5, VOCAB_SIZE, (1, 11), generator=fresh)}
    operated = copy.deepcopy(lm.model)
    without_heads("llama", operated, 0, list(range(6)))
    other = mh.load(operated, tokenizer=lm.tokenizer)
    plain = mh.record_call(lm.model, **inputs).layers[1].weights(head=2)
    with mh.applied(lm, plan):
        rec = mh.record_call(lm.model, **inputs)
        table = mh.measure(lm, TEXTS[0], statistics=["entropy"])
    want = mh.record_call(operated, **inputs).layers[1].weights(head=2)
    assert_close(torch.as_tensor(rec.layers[1].weights(head=2)), torch.as_tensor(want))
    assert_matters(torch.as_tensor(want), torch.as_tensor(plain))
    assert abs(table["entropy"] - mh.measure(other, TEXTS[0], statistics=["entropy"])["entropy"]).max() < 1e-5


@pytest.mark.parametrize("plan", [Plan([*PLANS[0].steps, *PLANS[3].steps]), Plan(PLANS[4].steps[0])], ids=str)
def test_nothing_is_left_behind_also_after_an_error_inside_the_model(plan, fresh):
    lm, inputs = loaded("llama", draw(fresh)), block_inputs(fresh)
    plain, hooks = output(lm.model, inputs), hook_counts(lm.model)
    broken = lm.model.model.layers[2].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), mh.applied(lm, plan, corpus=list(TEXTS)):
        lm.model(**inputs)
    broken.remove()
    assert torch.equal(output(lm.model, inputs), plain)
    assert hook_counts(lm.model) == hooks and not OPEN.taps
    assert_matters(edited(lm, plan, inputs, list(TEXTS)), plain)
    assert torch.equal(output(lm.model, inputs), plain) and hook_counts(lm.model) == hooks


def test_another_thread_runs_the_model_as_it_is(fresh):
    lm, inputs, got = loaded("llama", draw(fresh)), block_inputs(fresh), {}
    plain = output(lm.model, inputs)
    plan = Plan([Ablate("L1H1"), SkipOutputProjection(2)])

    def other():
        got["other"] = output(lm.model, inputs)
        with mh.applied(lm, Ablate("L0H2")):
            got["own"] = output(lm.model, inputs)

    with mh.applied(lm, plan):
        output(lm.model, inputs)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        here = output(lm.model, inputs)
    assert torch.equal(got["other"], plain)
    assert torch.equal(got["own"], edited(lm, Ablate("L0H2"), inputs))
    assert torch.equal(here, edited(lm, plan, inputs))
    assert_matters(here, plain)


# ------------------------------------------------------------------------------------------------------- what is said


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, logger="manyheads")
    return lambda: [record.message for record in caplog.records if record.name == "manyheads"]


def test_steps_that_changed_nothing_are_named(said, fresh):
    lm, inputs = loaded("llama", draw(fresh)), block_inputs(fresh)
    idle = [Scale("L0H1", 1), Average("L1H2"), Copy("L2H3", "L2H3")]
    after = [Scale("L0H5", 2), Ablate("L0H5")]  # of a head that is silent by then
    with mh.applied(lm, Plan([*idle, Ablate("L0H5"), *after, Ablate("L1H0")])) as now:
        output(lm.model, inputs)
    words = ["scale L0H1 by 1", "average L1H2", "use the map of L2H3 for L2H3", "scale L0H5 by 2"]
    assert list(now.unchanged) == words
    assert said() == [f"{each} changed nothing in what was run." for each in words]
    assert now.changes["ablate L0H5 (zero)"] == now.changes["ablate L1H0 (zero)"] == 1


def test_a_step_that_changed_something_is_not_named_and_a_model_that_never_ran_is_told(said, fresh):
    lm, inputs = loaded("llama", draw(fresh)), block_inputs(fresh)
    steps = [
        Scale("L0H1", 4), Average("L1H1-2"), Copy("L2H3", "L2H2"), Ablate("L1H5", "first"), SkipOutputProjection(2),
    ]  # fmt: skip
    with mh.applied(lm, Plan(steps)) as now:
        output(lm.model, inputs)
    assert now.unchanged == () and not said() and len(now.changes) == 5
    assert now.changes["scale L0H1 by 4"] == 0.75  # of the largest
    with mh.applied(loaded("llama", draw(fresh)), Ablate("L0H1")):
        pass
    assert said() == ["the plan changed nothing: the model did not run while it was applied."]


def test_heads_that_the_model_lacks_training_mode_and_what_is_no_plan_are_refused_before_anything_runs(fresh):
    lm = loaded("llama", draw(fresh))
    for heads in ("L3H0", "L0H6", "encoder:L0", "L1H2, L7"):
        with pytest.raises(HeadError, match="there is no|no stack"), mh.applied(lm, Ablate(heads)):
            raise AssertionError("inside")
    refuses(PlanError, "is not a plan: give a Plan", edited, lm, [], {})
    lm.model.train()
    refuses(ModelError, r"training mode.*model\.eval\(\)", edited, lm, Ablate("L0H1"), block_inputs(fresh))


def test_a_head_mask_is_refused_with_what_to_use_instead(fresh):
    lm, inputs = loaded("llama", draw(fresh)), block_inputs(fresh) | {"head_mask": torch.ones(3, 6)}
    words = r"head_mask= does nothing here: .*LlamaForCausalLM.*applied\(.*prune_heads\("
    with mh.applied(lm, Ablate("L0H1")):
        refuses(PlanError, words, lm.model, **inputs)
    refuses(PlanError, "head_mask= does nothing here", lm.model, **inputs)  # nor afterwards: it is loaded


def test_what_is_read_of_an_edited_model_says_so(fresh, minilm):
    with mh.applied(minilm, mh.Copy("L1", source="L1H0")):
        inside = mh.record(minilm, "The cat sat."), mh.measure(minilm, "The cat sat.", ["entropy"])
    outside = mh.record(minilm, "The cat sat."), mh.measure(minilm, "The cat sat.", ["entropy"])
    assert all("heads were edited meanwhile" in said["edited"] for said in (inside[0].provenance, inside[1].notes))
    assert not any("edited" in said for said in (outside[0].provenance, outside[1].notes))
    assert torch.equal(inside[0].layers[1].weights(), outside[0].layers[1].weights())  # of its own q and k, as ever
    assert not torch.equal(inside[0].layers[2].weights(), outside[0].layers[2].weights())


# ---- a model that writes under a plan writes what the edited model would, step by step, whatever its cache holds

STEPS = 6  # past the windows of gemma2 and gpt_oss
PROMPT_LENGTHS = (4, 7)
CORPUS = list(TEXTS)
GENERATION_PLANS = {
    "zero": Ablate("L1H1, L0H2"),
    "first": Ablate("L1H1, L0H2", kind="first"),
    "mean": Ablate("L1H1, L0H2", kind="mean"),
    "by position": Ablate("L*H1-2", kind="mean", per_position=True),
    "text": Ablate("L*H1-2", kind="resample", text=TEXTS[2]),
    "several": Plan([Scale("L1H0", 3.0), Average("L0H1-2"), Ablate("L1H1", kind="mean", per_position=True)]),
}
STATIC = {"cache_implementation": "static"}
GENERATION_CASES = [
    *[("llama", step, {}) for step in GENERATION_PLANS],
    ("gpt2", "several", {}),
    ("gemma2", "by position", {}),
]
GENERATION_CASES += [("gemma2", "first", {}), ("gpt_oss", "several", {}), ("llama", "by position", STATIC)]
GENERATION_CASES += [("llama", "first", STATIC), ("gemma2", "several", STATIC)]


def written(lm, inputs, **options):
    """New tokens and the logits that chose them: [b, steps], [b, steps, vocabulary]."""
    how = {
        "max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False, "return_dict_in_generate": True,
        "output_logits": True,
    }  # fmt: skip
    got = lm.model.generate(**inputs, **how, pad_token_id=0, **options)
    return got.sequences[:, -STEPS:], torch.stack(got.logits, 1)


def assert_written(lm, plan, inputs, tokens, logits, corpus):
    """Every step is what the edited model makes of the finished text, read at once."""
    for text, length in enumerate(PROMPT_LENGTHS):
        prompt = inputs["input_ids"][text][inputs["attention_mask"][text].bool()]
        whole = torch.cat([prompt, tokens[text]])[None]
        with mh.applied(lm, plan, corpus=corpus), torch.no_grad():
            want = lm.model(input_ids=whole, use_cache=False).logits[0, length - 1 : -1]
        assert_close(logits[text], want, 2e-5)
        assert torch.equal(want.argmax(-1), tokens[text])


SLOW = [
    pytest.param(*case, marks=pytest.mark.slow) for case in GENERATION_CASES[1::2]
]  # every second one is enough each time


@pytest.mark.parametrize(("name", "step", "options"), [*GENERATION_CASES[::2], *SLOW])
@pytest.mark.thinned
def test_a_left_padded_batch_is_written_as_the_edited_model_would_write_each_text(name, step, options, fresh):
    lm, plan = loaded(name, draw(fresh)), GENERATION_PLANS[step]
    inputs = padded(fresh, PROMPT_LENGTHS, VOCAB_SIZE, "left")
    corpus = CORPUS if "mean" in repr(plan) else None
    with mh.applied(lm, plan, corpus=corpus):
        tokens, logits = written(lm, inputs, **options)
    assert_written(lm, plan, inputs, tokens, logits, corpus)
    assert_matters(logits, written(lm, inputs, **options)[1])


def test_a_second_text_begins_at_its_first_position(fresh):
    lm, inputs = loaded("gemma2", draw(fresh)), padded(fresh, PROMPT_LENGTHS, VOCAB_SIZE, "left")
    with mh.applied(lm, GENERATION_PLANS["by position"], corpus=CORPUS):
        first, again = written(lm, inputs)[1], written(lm, inputs)[1]
    assert torch.equal(first, again)


def test_plans_for_single_samples_hold_while_they_are_written(fresh):
    lm = loaded("llama", draw(fresh))
    inputs = padded(fresh, PROMPT_LENGTHS, VOCAB_SIZE, "left")
    plans = [Plan(GENERATION_PLANS["several"].steps), Plan(GENERATION_PLANS["text"])]
    with mh.applied(lm, plans, corpus=CORPUS):
        tokens, logits = written(lm, inputs)
    for text, plan in enumerate(plans):
        prompt = inputs["input_ids"][text][inputs["attention_mask"][text].bool()]
        whole = torch.cat([prompt, tokens[text]])[None]
        with mh.applied(lm, plan, corpus=CORPUS), torch.no_grad():
            want = lm.model(input_ids=whole, use_cache=False).logits[0, PROMPT_LENGTHS[text] - 1 : -1]
        assert_close(logits[text], want, 2e-5)


@pytest.mark.parametrize("step", ["by position", "text"])
def test_a_decoder_beside_an_encoder_counts_its_own_positions_in_cross_attention_too(step, fresh):
    lm = loaded("t5", draw(fresh), num_decoder_layers=2)  # transformers makes its cache by the encoder's layers
    ids = torch.randint(5, VOCAB_SIZE, (1, 7), generator=fresh)
    heads = "decoder:L*H1, cross:L*H2"
    plan = Ablate(heads, kind="mean", per_position=True) if step == "by position" else None
    plan = plan or Ablate(heads, kind="resample", text=TEXTS[2])
    corpus = CORPUS if step == "by position" else None
    with mh.applied(lm, plan, corpus=corpus):
        tokens, logits = written(lm, {"input_ids": ids})
    start = torch.tensor([[lm.model.config.decoder_start_token_id]])
    with mh.applied(lm, plan, corpus=corpus), torch.no_grad():
        want = lm.model(input_ids=ids, decoder_input_ids=torch.cat([start, tokens[:, :-1]], 1), use_cache=False).logits
    assert_close(logits, want, 2e-5)
    assert_matters(logits, written(lm, {"input_ids": ids})[1])


# ==================================================================================================== without positions
# A model without its positions is a copy of it whose position tables are zeros and whose rotations turn by nothing.

TABLES = {
    "bert": ["embeddings.position_embeddings"],
    "gpt2": ["transformer.wpe"],
    "t5": [f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias" for side in ("encoder", "decoder")],
}


def without_positions(name, model):
    """A copy, by hand: zeros in its tables, angles of 0 in its rotation."""
    operated = copy.deepcopy(model)
    for path in TABLES.get(name, ()):
        torch.nn.init.zeros_(operated.get_submodule(path).weight)
    if name not in TABLES:
        operated.model.rotary_emb.inv_freq.zero_()
    return operated


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt_oss", "t5"])
def test_skipping_positions_is_zeros_in_the_tables_and_no_angle_in_the_rotation(name, fresh):
    lm, inputs = loaded(name, draw(fresh)), some_inputs(name, fresh)
    plain = output(lm.model, inputs)
    want = output(without_positions(name, lm.model), inputs)
    with mh.applied(lm, SkipPositions()) as now:
        assert_close(output(lm.model, inputs), want)
    assert_matters(want, plain)
    assert now.unchanged == () and torch.equal(output(lm.model, inputs), plain), "afterwards it is as it was"


def test_an_encoder_without_positions_reads_its_tokens_in_any_order(fresh):
    lm = loaded("bert", draw(fresh))
    ids = torch.randint(5, 60, (1, 11), generator=fresh)
    order = torch.randperm(11, generator=fresh)
    in_order, moved = (edited(lm, SkipPositions(), {"input_ids": some}) for some in (ids, ids[:, order]))
    assert_close(moved, in_order[:, order])


@pytest.mark.parametrize("rope", [Rope(), Rope(dims=4), Rope(scaling=Yarn(4.0, 16))])
def test_our_own_layers_turn_nothing_and_keep_their_length(rope, fresh):
    torch.manual_seed(draw(fresh))
    layer = mh.MultiHeadAttention(24, 3, rope=rope, causal=True).eval()
    still, x = copy.deepcopy(layer), torch.randn(9, 2, 24, generator=fresh)
    still.rotary.cos.fill_(rope.sharpen)
    still.rotary.sin.zero_()
    with torch.no_grad():
        plain, want = layer(x, x, x)[0], still(x, x, x)[0]
        with mh.applied(layer, SkipPositions()):
            assert_close(layer(x, x, x)[0], want)
        assert_matters(want, plain)
        assert torch.equal(layer(x, x, x)[0], plain)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: loaded("vit", 0), r"ViTModel has some in 'embeddings.position_embeddings', which is none of the ways"),
    (lambda: mh.MultiHeadAttention(24, 3, alibi=True).eval(), r"MultiHeadAttention has them as slopes \(ALiBi\)"),
    (lambda: mh.MultiHeadAttention(24, 3).eval(), "MultiHeadAttention has no position embedding"),
])  # fmt: skip
def test_a_model_without_positions_that_can_be_taken_is_refused_by_name(make, words):
    with pytest.raises(PlanError, match=f"^skip the positions: {words}"), mh.applied(make(), SkipPositions()):
        raise AssertionError("inside")


def test_positions_are_those_of_all_samples(fresh):
    lm, plans = loaded("llama", draw(fresh)), [Plan([SkipPositions()]), Plan([])]
    with pytest.raises(PlanError, match="all samples share the model's positions, and these plans are one for each"):
        edited(lm, plans, some_inputs("llama", fresh))
    unopened = plan_edits(lm, [Plan(SkipPositions())]).editors
    with pytest.raises(PlanError, match=r"only mh\.applied and mh\.effect can"), mh.tap(lm.model, edits=unopened):
        lm.model(**some_inputs("llama", fresh))


def test_an_effect_has_no_control_unless_heads_are_named_too(fresh):
    lm = loaded("llama", draw(fresh))
    alone = mh.effect(lm, SkipPositions(), TEXTS[0], controls=3)
    assert alone.control == () and alone.notes["control"] == "none: positions belong to no head"
    inputs = lm.tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False)
    ids = inputs["input_ids"][0]
    with torch.no_grad():
        losses = [
            -model(**inputs).logits[0, :-1].double().log_softmax(-1).gather(1, ids[1:, None]).mean()
            for model in (lm.model, without_positions("llama", lm.model))
        ]
    assert abs(alone.change - float(losses[1] - losses[0])) < 1e-5
    for drawn in random_plans(Plan([SkipPositions(), Ablate("L1H1")]), lm.spec, 3, 0):
        assert drawn.steps[0] == SkipPositions() and drawn.steps[1].heads != "L1H1"


def test_applied_plan_has_a_repr_of_one_short_line(minilm):
    with mh.applied(minilm, Ablate("L1H2")) as now:
        assert repr(now) == "Applied(ablate L1H2 (zero))"
    with mh.applied(minilm, Plan([Ablate(f"L{layer}H3, L{layer}H7-9") for layer in range(6)])) as now:
        assert len(repr(now)) <= 100 and repr(now).startswith("Applied(ablate L0H3, L0H7-9 (zero); ablate L1")
