"""An edit of one's own does what a hook written by hand does, and says in a line why it cannot.

Oracles: forward hooks of torch on the stock modules (the input of an output projection, the projections of q, k and v,
a block, a feed-forward) and plain sums over them, in float64.
"""

import json
import logging
import math
import re
import sys
from contextlib import ExitStack
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import manyheads as mh
from manyheads.edits import open_plan
from manyheads.errors import HeadError, PlanError
from manyheads.plan import Ablate, Edit, Plan, Scale
from tests.edits.test_bare_modules import H, M, Plain, Stack, sharpened
from tests.interventions.surgeries import (
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
    with_heads,
)
from tests.models.eager import draw, padded
from tests.models.tiny import VOCAB_SIZE
from tests.refusals import refuses

EXACT = 1e-10
LENGTHS = (11, 7, 13)
FAMILIES = ("gpt2", "llama", "bert")
PROJECTED = {  # the modules that make q, k and v, of the stock models
    "bert": [f"encoder.layer.1.attention.self.{name}" for name in ("query", "key", "value")],
    "llama": [f"model.layers.1.self_attn.{name}_proj" for name in "qkv"],
    "gpt2": ["transformer.h.1.attn.c_attn"],
}
BLOCKS = {"bert": "encoder.layer.1", "llama": "model.layers.1", "gpt2": "transformer.h.1", "own": "layers.1"}
FEED_FORWARDS = {
    "bert": "encoder.layer.1.output.dense", "llama": "model.layers.1.mlp", "gpt2": "transformer.h.1.mlp",
    "own": "layers.1.second",
}  # fmt: skip


class Block(nn.Module):
    """Attention, then two matrices that are parts of the block itself; on rows of all texts, one after another."""

    def __init__(self, wide):
        super().__init__()
        self.attention, self.first, self.second = Plain(), nn.Linear(M, wide), nn.Linear(wide, M)

    def forward(self, hidden_states):
        x = hidden_states + self.attention(F.layer_norm(hidden_states, (M,)))
        return x + self.second(F.gelu(self.first(F.layer_norm(x, (M,)).flatten(0, 1)))).view_as(x)


class Own(nn.Module):
    """A model that nobody knows: words, three blocks called by keyword, no config."""

    def __init__(self, wide=70):
        super().__init__()
        self.words, self.layers = nn.Embedding(VOCAB_SIZE, M), nn.ModuleList(Block(wide) for _ in range(3))

    def forward(self, input_ids):
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(hidden_states=x)
        return (x,)


def double(name, fresh):
    if name == "own":
        return mh.load(sharpened(Own(), fresh).double(), tokenizer=False)
    return loaded(name, draw(fresh), "sdpa", torch.float64)


def texts_of(fresh, side="right"):
    return padded(fresh, LENGTHS, VOCAB_SIZE, side)


def attended(name, lm, inputs, head):
    """q, k, v and the map of a head of layer 1, made by hand of what the model's projections give."""
    with ExitStack() as stack:
        given = []
        for path in PROJECTED[name]:
            module = lm.model.get_submodule(path)
            stack.callback(module.register_forward_hook(lambda _, args, out: given.append(out)).remove)
        output(lm.model, inputs)
    parts = given[0].chunk(3, -1) if name == "gpt2" else given
    width = parts[0].shape[-1] // HEADS[name]
    q, k, v = (part.unflatten(-1, (-1, width)).transpose(1, 2) for part in parts)
    if name == "llama":
        cos, sin = lm.model.model.rotary_emb(q, torch.arange(q.shape[2])[None])
        half = width // 2
        turn = lambda x: x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin  # noqa: E731
        q, k = turn(q), turn(k)
    own = head // (HEADS[name] // k.shape[1])
    q, k, v = q[:, head], k[:, own], v[:, own]
    seen = inputs["attention_mask"].bool()[:, None].expand(-1, q.shape[1], -1)
    if name != "bert":
        seen = seen & torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    scores = (q @ k.mT / math.sqrt(width)).masked_fill(~seen, -math.inf)
    return q, k, v, scores.softmax(-1).nan_to_num(0)


def mixed(output, q, k, v, weights):
    """Some of everything that a function can get."""
    sharp = weights.square() / weights.square().sum(-1, keepdim=True).clamp_min(1e-30)
    return 0.3 * output + sharp @ (v + k) + q


@pytest.mark.parametrize("name", FAMILIES)
def test_edit_of_a_head_equals_a_hook_by_hand(name, fresh):
    """llama has 6 heads over 3 key/value heads; k and v are those of head 3's own."""
    lm, inputs, head = double(name, fresh), texts_of(fresh), 3
    q, k, v, weights = attended(name, lm, inputs, head)

    def change(x):
        old = by_head(x, HEADS[name])[:, :, head]
        return with_heads(x, [head], mixed(old, q, k, v, weights)[:, :, None], HEADS[name])

    plain = output(lm.model, inputs)
    with feeding(projection(name, lm.model, 1), change):
        want = output(lm.model, inputs)
    before = hook_counts(lm.model)
    got = edited(lm, Edit(f"L1H{head}", mixed), inputs)
    assert_close(got, want, EXACT)
    assert_matters(want, plain)
    assert torch.equal(output(lm.model, inputs), plain) and hook_counts(lm.model) == before


def test_edit_of_a_module_of_ones_own_equals_the_sum_by_hand(fresh):
    """No transformers model: a function of torch's that is called, and a bare module."""
    model, x = sharpened(Stack(Plain), fresh).double(), torch.randn(2, 9, M, generator=fresh, dtype=torch.float64)

    def change(flat):
        maps, v = model.layers[1].maps(F.layer_norm(state[0], (M,)))
        return with_heads(flat, [4], (maps[:, 4].flip(-1) @ v[:, 4])[:, :, None], H)

    def flipped(weights, v):
        return weights.flip(-1) @ v

    state: list[torch.Tensor] = []
    with reading({0: model.layers[1]}), torch.no_grad():
        plain = model(x)
        state.append(x + model.layers[0](F.layer_norm(x, (M,))))
        with feeding(model.layers[1].proj, change):
            want = model(x)
        with mh.applied(model, Edit("L1H4", flipped)):
            got = model(x)
    assert_close(got, want, EXACT)
    assert_matters(want, plain)


@pytest.mark.parametrize("place", ["stream", "feed-forward"])
@pytest.mark.parametrize("name", BLOCKS)
def test_edit_of_a_place_equals_a_hook_by_hand(name, place, fresh):
    lm, inputs = double(name, fresh), texts_of(fresh)
    if name == "own":
        inputs = {"input_ids": inputs["input_ids"]}
    plain = output(lm.model, inputs)

    def steered(output):
        return 0.7 * output + output.shape[-1] ** -0.5 * torch.arange(output.shape[-1], dtype=output.dtype)

    block, module = (lm.model.get_submodule(paths[name]) for paths in (BLOCKS, FEED_FORWARDS))
    if place == "stream" and name == "own":
        change = lambda _, args, kwargs: (args, {"hidden_states": steered(kwargs["hidden_states"])})  # noqa: E731
        hook = block.register_forward_pre_hook(change, with_kwargs=True)
    elif place == "stream":
        hook = block.register_forward_pre_hook(lambda _, args: (steered(args[0]), *args[1:]))
    else:
        hook = module.register_forward_hook(lambda _, args, out: steered(out))
    want = output(lm.model, inputs)
    hook.remove()
    assert_close(edited(lm, Edit(f"L1 {place}", steered), inputs), want, EXACT)
    assert_matters(want, plain)
    assert torch.equal(output(lm.model, inputs), plain)


def test_steps_act_in_order_each_on_what_the_last_one_left(fresh):
    lm, inputs = double("llama", fresh), texts_of(fresh)

    def cubed(output):
        return output**3

    def change(x):
        return with_heads(x, [2], (by_head(x, 6)[:, :, [2]] * 0.5) ** 3 * -2, 6)

    with feeding(projection("llama", lm.model, 1), change):
        want = output(lm.model, inputs)
    got = edited(lm, Plan([Scale("L1H2", 0.5), Edit("L1H2", cubed), Scale("L1H2", -2)]), inputs)
    assert_close(got, want, EXACT)


@pytest.mark.parametrize("side", ["right", "left"])
def test_function_gets_each_rows_position_and_its_own_head(side, fresh):
    lm, inputs = double("llama", fresh), texts_of(fresh, side)
    seen = {}

    def looking(output, positions, head):
        seen[str(head)] = positions
        return output

    edited(lm, Edit("L0H1, L2H4-5", looking), inputs)
    assert list(seen) == ["L0H1", "L2H4", "L2H5"]
    for positions in seen.values():
        for row, length, real in zip(positions, LENGTHS, inputs["attention_mask"].bool(), strict=True):
            assert row[real].tolist() == list(range(length))


def test_what_a_function_writes_into_is_its_own_and_no_map_is_made_unasked(fresh, monkeypatch):
    lm, inputs = double("llama", fresh), texts_of(fresh)
    plain = output(lm.model, inputs)

    def spoiling(output, q, k, v):
        before = output.clone()
        for x in (output, q, k, v):
            x.zero_()
        return before

    monkeypatch.setattr("manyheads.edits.edits.weights_of", None)  # a call of it would fail
    assert_close(edited(lm, Edit("L1", spoiling), inputs), plain, EXACT)


def test_plans_for_single_samples_edit_each_its_own(fresh):
    lm, inputs = double("gpt2", fresh), texts_of(fresh)

    def doubled(output):
        return 2 * output

    plans = [Plan(Edit("L1H2", doubled)), Plan(Edit("L0 stream", doubled)), Plan(Edit("L2 feed-forward", doubled))]
    with mh.applied(lm, plans), torch.no_grad():
        together = lm.model(**inputs).logits
    for at, plan in enumerate(plans):
        with mh.applied(lm, plan), torch.no_grad():
            assert_close(together[at], lm.model(**inputs).logits[at], EXACT)


def test_edits_in_blocks_within_blocks_add_up_and_gradients_pass_them(fresh):
    lm, inputs = double("gpt2", fresh), texts_of(fresh)
    gain = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)

    def louder(output):
        return gain * output

    with mh.applied(lm, Edit("L1 stream", louder)), mh.applied(lm, Edit("L1 stream", louder)):
        nested = lm.model(**inputs).logits
    (slope,) = torch.autograd.grad(nested.square().mean(), gain)
    with torch.no_grad():
        gain.mul_(1.5)
        assert_close(edited(lm, Edit("L1 stream", louder), inputs), nested[inputs["attention_mask"].bool()], EXACT)
    assert float(slope) != 0


# -------------------------------------------------------------------------------------------- effects, with controls


def test_effect_of_an_edit_and_its_controls_equal_those_of_the_same_step_by_name(fresh):
    lm, texts = loaded("gpt2", draw(fresh)), [TEXTS[1], TEXTS[3]]

    def third(output):
        return 0.3 * output

    mine = mh.effect(lm, Edit("L1H2, L0H3", third), texts, controls=2)
    by_name = mh.effect(lm, Scale("L1H2, L0H3", 0.3), texts, controls=2)
    torch.testing.assert_close(torch.tensor(mine.per_text), torch.tensor(by_name.per_text), atol=1e-6, rtol=1e-4)
    assert mine.control == pytest.approx(by_name.control, abs=1e-6) and len(set(mine.control)) == 2
    worth = mh.importance(lm, texts, kind=third)
    assert worth["L1H2"] == pytest.approx(mh.effect(lm, Edit("L1H2", third), texts, controls=0).change, abs=1e-6)
    assert worth.notes["computed"].startswith("edit by ") and worth.estimator == "ablation"


def test_controls_of_a_place_are_other_layers(fresh):
    lm, texts = loaded("gpt2", draw(fresh)), [TEXTS[1]]

    def halved(output):
        return 0.5 * output

    found = mh.effect(lm, Edit("L1 feed-forward", halved), texts, controls=7)
    by_layer = [mh.effect(lm, Edit(f"L{layer} feed-forward", halved), texts, controls=0).change for layer in (0, 2)]
    assert sorted(found.control) == pytest.approx(sorted(by_layer)) and found.num_heads == 0
    assert found.notes["control"] == "2 random sets of the same number of layers: there are no others"
    assert "the same number of random layers" in str(found)
    every = mh.effect(lm, Edit("L* stream", halved), texts, controls=3)
    assert not every.control and "too few layers are left" in every.notes["control"]


def test_measure_and_compare_see_a_model_under_an_edit(fresh):
    lm, texts = loaded("llama", draw(fresh)), [TEXTS[1]]

    def loud(output):
        return 3 * output

    plain = mh.measure(lm, texts, ["entropy"])
    with mh.applied(lm, Edit("L0 stream", loud)):
        changed = mh.measure(lm, texts, ["entropy"])
    assert changed.notes["edited"] and not (plain["entropy"] == changed["entropy"]).all()


# ------------------------------------------------------------------------------------------------------ files, refusals


@pytest.fixture
def my_edits(monkeypatch):
    module = ModuleType("my_edits_of_a_test")
    exec("def flip(output):\n    return -output\n", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_plan_file_names_the_function_and_runs_no_code(my_edits, tmp_path, fresh, monkeypatch):
    lm, inputs, path = double("llama", fresh), texts_of(fresh), tmp_path / "plan.json"
    plan = Plan([Edit("L1H2", my_edits.flip), Edit("L0 stream, L2 stream", my_edits.flip)])
    with mh.applied(lm, plan) as now:
        want = output(lm.model, inputs)
        now.save(path)
    entries = json.loads(path.read_text())["steps"]
    name = f"{my_edits.__name__}:flip"
    assert entries[1] == {"step": "edit", "heads": "L0 stream, L2 stream", "function": name}
    assert open_plan(path).plans[0] == plan == Plan.from_json(plan.to_json()) and hash(plan) == hash(Plan(plan.steps))
    assert str(plan) == "edit L1H2 by flip; edit L0 stream, L2 stream by flip"
    assert_close(edited(lm, path, inputs), want, EXACT)
    monkeypatch.delitem(sys.modules, my_edits.__name__)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{my_edits.__name__}.py").write_text("raise SystemExit('code of a stranger')")
    message = rf"step 1 of 2: .*{name}' is code, which no file can hold: `import {my_edits.__name__}` before"
    with pytest.raises(PlanError, match=message):
        open_plan(path)


def test_function_without_a_name_is_not_written(tmp_path, fresh):
    lm, path = double("gpt2", fresh), tmp_path / "plan.json"
    plan = Plan(Edit("L1H2", lambda output: -output))
    assert plan.to_dict()["steps"][0]["function"].endswith("<lambda>")
    with pytest.raises(
        PlanError, match=r"edit L1H2 by .*<lambda> cannot be written: .* Define it by `def` in a module"
    ):
        plan.to_json()
    with mh.applied(lm, plan) as now:
        output(lm.model, texts_of(fresh))
        refuses(PlanError, "cannot be written", now.save, path)
    assert not path.exists()


OF_HEADS = "name its arguments output, q, k, v, weights, positions, head"
WRONG = {
    "an unknown argument": (lambda wieghts: wieghts, rf"takes 'wieghts', .* {OF_HEADS} \(did you mean 'weights'\?\)"),
    "arguments without names": (lambda *args: args[0], rf"takes '\*args', .* {OF_HEADS}"),
    "no argument": (lambda: None, "takes none of output, q, k, v"),
    "a number": (3, "3 is a int: give a function whose arguments are among output, q"),
    "a class": (nn.Identity, "is a class: give a function"),
    "a text": ("my_edits:flip", r"is a text: give the function itself .*--kind"),
    "C": (torch.neg, r"the arguments of \S*neg cannot be read: put a function of your own around it"),
}


@pytest.mark.parametrize("case", WRONG)
def test_function_that_takes_something_else_is_refused_when_it_is_named(case):
    function, message = WRONG[case]
    refuses(PlanError, message, Edit, "L1H2", function)
    if case == "an unknown argument":
        refuses(PlanError, r"takes 'q', .* name its arguments output", Edit, "L1 stream", lambda q: q)


def failing(output):
    raise ValueError("not on a Sunday")


RETURNED = {
    "another shape": (lambda output: output[:, 1:], r"gave \[3, 12, 8\], float64 on cpu, at L1H2: .*\[3, 13, 8\]"),
    "another dtype": (lambda output: output.float(), r"float32 on cpu, at L1H2: return .*, \[b q f\] = .* float64"),
    "another device": (lambda output: output.to("meta"), r"float64 on meta, at L1H2: return .* float64 on cpu"),
    "nothing": (lambda output: None, r"gave a NoneType at L1H2 \(is its `return` missing\?\)"),
    "no number": (lambda output: output / 0, r"gave NaN or infinity at L1H2, where the model's own output had none"),
    "an error": (failing, r"at L1H2 failing \(test_own_edits.py, line \d+\) failed: ValueError: not on a Sunday"),
}  # fmt: skip


@pytest.mark.parametrize("case", RETURNED)
def test_what_a_function_may_not_return_is_told_with_its_head_and_the_model_is_restored(case, fresh):
    lm, inputs = double("llama", fresh), texts_of(fresh)
    plain, before = output(lm.model, inputs), hook_counts(lm.model)
    function, message = RETURNED[case]
    refuses(PlanError, message, edited, lm, Edit("L1H2", function), inputs)
    place = message.replace("at L1H2", "at L1 stream").replace("12, 8", "12, 48").replace("13, 8", "13, 48")
    refuses(PlanError, place.replace("b q f", "b q m"), edited, lm, Edit("L1 stream", function), inputs)
    assert torch.equal(output(lm.model, inputs), plain) and hook_counts(lm.model) == before


def kept(output):
    return output


PLACES = {
    "L1H2 stream": (PlanError, "'L1H2' is a head, and 'stream' is of a layer"),
    "L1 stream, L2 feed-forward": (PlanError, "are places of several kinds: give each kind a step of its own"),
    "L1 stream, L2H1": (PlanError, "are places of several kinds"),
    "L1 strem": (HeadError, "names no heads.*also name a place in a layer: 'L3 stream', 'L3 feed-forward'"),
    "L1 mlp": (HeadError, "names no heads.*also name a place in a layer: 'L3 stream', 'L3 feed-forward'"),
    "L9 stream": (HeadError, "there is no layer 9"),
}


@pytest.mark.parametrize("place", PLACES)
def test_place_that_is_none_is_refused_before_anything_runs(place, fresh):
    lm, inputs = double("gpt2", fresh), texts_of(fresh)
    kind, message = PLACES[place]
    refuses(kind, re.compile(message).pattern, lambda: edited(lm, Edit(place, kept), inputs))


def test_places_that_are_not_known_are_refused_by_name(fresh):
    bare = sharpened(Stack(Plain), fresh)
    message = "where a Stack has its stream is known only for a loaded model: mh.load"
    refuses(PlanError, message, lambda: mh.applied(bare, Edit("L1 stream", kept)).__enter__())
    lm = mh.load(sharpened(Own(wide=M), fresh), tokenizer=False)  # both matrices are as wide as the stream
    message = (
        r"L1 feed-forward: which of its modules is the feed-forward is not known \(candidates: layers\.1\.first, "
        r"layers\.1\.second\)"
    )
    refuses(PlanError, message, lambda: mh.applied(lm, Edit("L1 feed-forward", kept)).__enter__())


def test_edit_that_changes_nothing_is_reported(fresh, caplog):
    lm, inputs = double("gpt2", fresh), texts_of(fresh)
    with caplog.at_level(logging.WARNING, "manyheads"):
        edited(lm, Plan([Edit("L1H2", kept), Edit("L1 stream", kept), Ablate("L0H1")]), inputs)
    assert [record.getMessage() for record in caplog.records] == [
        "edit L1H2 by kept changed nothing in what was run.", "edit L1 stream by kept changed nothing in what was run.",
    ]  # fmt: skip
