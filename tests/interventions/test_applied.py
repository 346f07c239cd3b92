"""Each step of a plan does what the same surgery, done by hand on the model's own modules, does.

Oracles: zeros in a stock output projection's columns; its input, replaced by what plain torch computes from the model's
own eager maps, values and hooks (`surgeries`).
"""

import copy
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads import Ablate, Average, Copy, Plan, Scale, SkipOutputProjection
from manyheads.errors import PlanError
from tests.interventions.surgeries import (
    CASES,
    HEADS,
    TEXTS,
    assert_close,
    assert_matters,
    by_head,
    edited,
    feeding,
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


@pytest.mark.parametrize("factor", [-0.7, 0.5, 2.0, 0.0])
def test_scale_multiplies_what_a_head_says(factor, fresh):
    lm, inputs = loaded("llama", draw(fresh)), some_inputs("llama", fresh)

    def change(x):
        return with_heads(x, [2, 5], by_head(x, 6)[:, :, [2, 5]] * factor, 6)

    assert_plan_is(lm, Scale("L1H2, L1H5", factor), inputs, "llama", change)


def test_scale_is_exact_in_float64(fresh):
    lm, inputs = loaded("llama", draw(fresh)), some_inputs("llama", fresh)
    lm.model.double()
    with feeding(projection("llama", lm.model, LAYER), lambda x: with_heads(x, [2], by_head(x, 6)[:, :, [2]] * 0.1, 6)):
        want = output(lm.model, inputs)
    assert_close(edited(lm, Scale("L1H2", 0.1), inputs), want, 1e-13)


# ------------------------------------------------------------------------------------------------- first, average, copy


def first_seen(maps):
    """All weight of each row on the first key that it sees."""
    seen = maps.amax(1) > 0
    return nn.functional.one_hot(seen.to(torch.uint8).argmax(-1), maps.shape[-1]).to(maps)


WEIGHTS = {
    "first": (Ablate("L1H1, L1H3", kind="first"), [1, 3], first_seen),
    "average": (Average("L1H0-2"), [0, 1, 2], lambda maps: maps[:, :3].mean(1)),
    "copy": (Copy("L1H0, L1H3", source="L1H2"), [0, 3], lambda maps: maps[:, 2]),
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


@pytest.mark.thinned
@sides
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt_oss"])
def test_mean_ablation_puts_the_corpus_mean_in_a_heads_place(name, side, fresh):
    lm, inputs = loaded(name, draw(fresh)), some_inputs(name, fresh, side)
    mean = torch.cat(heads_on(lm, name, TEXTS)).mean(0)[[1, 3]]
    plan = Ablate("L1H1, L1H3", kind="mean")
    assert_plan_is(lm, plan, inputs, name, lambda x: with_heads(x, [1, 3], mean, HEADS[name]), corpus=list(TEXTS))


@pytest.mark.thinned
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


@pytest.mark.thinned
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
    lm, inputs = loaded("llama", draw(fresh)), some_inputs("llama", fresh)
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
        with pytest.raises(PlanError, match=f"corpus= is {words}: give a list of texts"):
            edited(lm, Ablate("L1H1", kind="mean"), some_inputs("llama", fresh), corpus)


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
    with pytest.raises(
        PlanError, match=r"skip the output projection .* wide side by side .* they cannot go on unmixed"
    ):
        edited(lm, SkipOutputProjection(layer), some_inputs(name, fresh))
