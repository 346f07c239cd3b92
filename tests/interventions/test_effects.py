"""An effect is the change that the metric's own definition gives, beside random heads; what cannot be said is told.

Oracles: transformers' own loss, softmaxes and cosines written out, under `applied`, text by text and without padding.
"""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import BertForSequenceClassification, BertLMHeadModel

import manyheads as mh
from manyheads.edits import METRICS, choose_metric
from manyheads.errors import HeadError, PlanError, StatisticError, TextError
from manyheads.inputs import Batch
from manyheads.interventions import Effect, Importance, importance_verdict, verdict
from manyheads.interventions.effects.effect import random_plans
from manyheads.plan import Ablate, Average, Copy, Plan, Scale, SkipOutputProjection
from tests.interventions.surgeries import TEXTS, loaded, projection
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_t5, tiny_tokenizer
from tests.refusals import refuses

SAME = 1e-5
PLAN = Plan([Ablate("L1H1, L1H3"), Scale("L0H2", 3.0)])
TEXTS_LISTED = list(TEXTS)


def both(lm, plan, text, corpus=None):
    """The outputs on a text by itself, as the model is and under a plan; and its ids."""
    inputs = lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        before = lm.model(**inputs)
        with mh.applied(lm, plan, corpus=corpus):
            after = lm.model(**inputs)
    return before, after, inputs["input_ids"]


def losses(outputs, ids):
    logs = outputs.logits[0, :-1].log_softmax(-1)
    return -logs.gather(1, ids[0, 1:, None])[:, 0].double()


def kl(before, after):
    p, q = (each.logits[0].softmax(-1).double() for each in (before, after))
    return float((p * (p / q).log()).sum(-1).mean())


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_the_loss_is_next_token_loss_token_by_token(name, fresh):
    lm = loaded(name, draw(fresh))
    found = mh.effect(lm, PLAN, TEXTS_LISTED, controls=2)
    assert (found.metric, found.unit, found.notes["metric"]) == ("loss", "nats a token", "a language model")
    levels = []
    for at, text in enumerate(TEXTS):
        before, after, ids = both(lm, PLAN, text)
        want = losses(after, ids) - losses(before, ids)
        levels.append((float(losses(before, ids).mean()), float(losses(after, ids).mean())))
        assert np.abs(found.per_token[at] - want.numpy()).max() < 10 * SAME
        assert abs(found.per_token[at].mean() - found.per_text[at]) < 1e-12
        assert abs(found.per_text[at] - float(want.mean())) < SAME
    assert np.allclose(np.mean(levels, 0), [found.before, found.after], atol=SAME)
    assert abs(found.after - found.before - found.change) < SAME
    assert max(np.abs(each).max() for each in found.per_token) > 1e-4, "the plan matters"
    assert abs(found.change - found.per_text.mean()) < 1e-12 and found.num_texts == len(TEXTS)


def test_the_loss_of_a_decoder_beside_an_encoder_is_that_of_repeating_the_text(fresh):
    lm = loaded("t5", draw(fresh))
    plan = Ablate("cross:L1, decoder:L0H1")
    found = mh.effect(lm, plan, TEXTS_LISTED, controls=0)
    for text, got in zip(TEXTS, found.per_text, strict=True):
        ids = lm.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            before = lm.model(input_ids=ids, labels=ids).loss
            with mh.applied(lm, plan):
                assert abs(float(lm.model(input_ids=ids, labels=ids).loss - before) - got) < SAME
    assert np.abs(found.per_text).max() > 1e-4


def test_kl_is_that_of_what_was_predicted_before_to_what_is_after(fresh):
    lm, plan = loaded("llama", draw(fresh)), Plan([Ablate("L1"), Scale("L0", 9.0)])
    found, other_way = mh.effect(lm, plan, TEXTS_LISTED, metric="kl", controls=0), 0.0
    for text, got in zip(TEXTS, found.per_text, strict=True):
        before, after, _ = both(lm, plan, text)
        assert abs(kl(before, after) - got) < SAME and got > 1e-4
        other_way = max(other_way, abs(kl(after, before) - got))
    assert other_way > 3 * SAME
    assert found.before is None and found.after is None and found.per_token is None
    before = torch.tensor([[[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]]]).log()
    after = torch.tensor([[[0.25, 0.75, 0.0], [0.9, 0.1, 0.0]]]).log()
    want = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert abs(float(METRICS["kl"].change(before, after)) - want / 2) < 1e-6


def test_the_cosine_is_that_of_mean_pooled_embeddings_without_padding(fresh):
    lm = loaded("bert", draw(fresh))
    found = mh.effect(lm, PLAN, TEXTS_LISTED, controls=3)
    assert found.metric == "cosine" and found.notes["metric"].startswith("no labels, and no model that predicts")
    for text, got in zip(TEXTS, found.per_text, strict=True):
        before, after, _ = both(lm, PLAN, text)
        a, b = (each.last_hidden_state[0].mean(0).double() for each in (before, after))
        assert abs(1 - float(a @ b / a.norm() / b.norm()) - got) < SAME and got > 1e-4


@pytest.fixture
def classifier(fresh):
    model = tiny_bert(BertForSequenceClassification, seed=draw(fresh), num_labels=3)
    with torch.no_grad():
        model.classifier.weight.mul_(40)
    return mh.load(model, tokenizer=tiny_tokenizer())


def test_classes_have_a_loss_and_errors(classifier):
    labels, plan = [2, 0, 1, 1], Plan([Ablate("L1"), Scale("L0H2", 9.0)])
    found = mh.effect(classifier, plan, mh.Inputs(TEXTS_LISTED, labels=labels), controls=1)
    errors = mh.effect(
        classifier, plan, mh.Inputs(TEXTS_LISTED, labels=np.array(labels)), metric="class_error", controls=0
    )
    assert (found.metric, found.notes["metric"]) == ("class_loss", "labels were given")
    for at, (text, label) in enumerate(zip(TEXTS, labels, strict=True)):
        before, after, _ = both(classifier, plan, text)
        want = [-float(each.logits[0].log_softmax(-1)[label]) for each in (before, after)]
        wrong = [float(each.logits[0].argmax() != label) for each in (before, after)]
        assert abs(found.per_text[at] - (want[1] - want[0])) < 10 * SAME
        assert errors.per_text[at] == wrong[1] - wrong[0]
    assert abs(found.change) > 1e-4 and errors.before == np.mean([errors.before * 4]) / 4


def test_your_own_function_gives_one_number_a_text_and_more_is_worse(fresh):
    lm = loaded("llama", draw(fresh))

    def loudness(outputs, inputs):
        return (outputs.logits.square().mean(-1) * inputs["attention_mask"]).sum(1)

    found = mh.effect(lm, PLAN, TEXTS_LISTED, metric=loudness, controls=0)
    assert (found.metric, found.notes["metric"]) == ("loudness", "a function of your own")
    for text, got in zip(TEXTS, found.per_text, strict=True):
        before, after, _ = both(lm, PLAN, text)
        want = after.logits.square().mean(-1).sum() - before.logits.square().mean(-1).sum()
        assert abs(float(want) - got) < 1e-4
    assert np.abs(found.per_text).max() > 1e-3  # of one text it may be next to nothing by chance


def test_ready_inputs_are_batches_of_pictures(fresh):
    lm, plan = loaded("vit", draw(fresh)), Ablate("L1H1", kind="mean")
    projection("vit", lm.model, 1).weight.data.mul_(400)  # heads speak softly in this model
    pictures = [{"pixel_values": torch.randn(size, 3, 24, 40, generator=fresh)} for size in (2, 3)]
    found = mh.effect(lm, plan, pictures, controls=2)
    assert found.num_texts == 5 and found.notes["corpus"].startswith("the texts themselves")
    with torch.no_grad():
        a = lm.model(pictures[1]["pixel_values"][1:2]).last_hidden_state[0].mean(0)
        with mh.applied(lm, plan, corpus=pictures):
            b = lm.model(pictures[1]["pixel_values"][1:2]).last_hidden_state[0].mean(0)
    assert abs(1 - float(torch.cosine_similarity(a.double(), b.double(), dim=0)) - found.per_text[3]) < SAME
    assert found.per_text.max() > 1e-4
    with pytest.raises(TextError, match="the first axis of each must be the samples"):
        mh.effect(lm, plan, [{"pixel_values": torch.zeros(2, 3), "more": torch.zeros(3)}])
    refuses(TextError, "ready inputs are mappings of names to tensors", mh.effect, lm, plan, [{"pixel_values": 3}])


def test_a_corpus_of_your_own_goes_before_the_texts_and_either_is_said_as_are_steps_that_changed_nothing(fresh):
    lm, plan = loaded("llama", draw(fresh)), Plan(Ablate("L1H1", kind="mean"))
    own = mh.effect(lm, plan, TEXTS_LISTED, controls=0)
    other = mh.effect(lm, plan, TEXTS_LISTED, corpus=TEXTS_LISTED[:1], controls=0)
    assert own.notes["corpus"] == "the texts themselves, for want of another" and "corpus" not in other.notes
    before, after, ids = both(lm, plan, TEXTS[1], TEXTS_LISTED[:1])
    assert abs(other.per_text[1] - float((losses(after, ids) - losses(before, ids)).mean())) < SAME
    assert np.abs(own.per_text - other.per_text).max() > 1e-5
    found = mh.effect(loaded("llama", draw(fresh)), Plan([Scale("L0H1", 1.0), Ablate("L1H1")]), TEXTS[0], controls=0)
    assert found.notes["unchanged"] == "scale L0H1 by 1"


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(("options", "kind", "words"), [
    ({"metric": "speed"}, StatisticError, "metric='speed' is unknown: use one of loss, kl, cosine"),
    ({"metric": "class_loss"}, StatisticError, "metric='class_loss' needs labels="),
    ({"labels": [0, 1, 0, 1]}, StatisticError, "needs a classifier, and LlamaForCausalLM is not one"),
    ({"labels": [0, 1]}, StatisticError, "needs a classifier"),
    ({"metric": lambda outputs, inputs: outputs.logits}, StatisticError, r"the metric gave \(\d, \d+, \d+\) for"),
    ({"metric": lambda outputs, inputs: "much"}, StatisticError, "the metric gave a str: give one number"),
    ({"metric": lambda outputs, inputs: torch.full((len(inputs["input_ids"]),), torch.nan)}, StatisticError,
     "gave NaN or infinity for these texts"),
    ({"controls": -1}, StatisticError, "controls=-1: give 0 or more"),
    ({"seed": -1}, StatisticError, "seed=-1: give a whole number"),
    ({"corpus": []}, PlanError, "corpus= is empty"),
])  # fmt: skip
def test_what_was_asked_wrongly_is_told(options, kind, words, fresh):
    plan = Ablate("L1H1", kind="mean") if "corpus" in options else PLAN
    labels = options.get("labels")
    options = {name: value for name, value in options.items() if name != "labels"}
    given = mh.Inputs(TEXTS_LISTED, labels=labels)
    refuses(kind, words, mh.effect, loaded("llama", draw(fresh)), plan, given, **options)


def test_texts_heads_and_labels_that_will_not_do_are_told(fresh, classifier):
    lm, bert = loaded("llama", draw(fresh)), loaded("bert", draw(fresh))
    refuses(StatisticError, "a text of one token has no next token", mh.effect, lm, PLAN, ["cat", *TEXTS])
    refuses(TextError, "no text was given", mh.effect, lm, PLAN, [])
    refuses(TextError, "text 1 is empty", mh.effect, lm, PLAN, ["a cat", " "])
    refuses(HeadError, "there is no layer 9", mh.effect, lm, Ablate("L9H1"), TEXTS_LISTED)
    with pytest.raises(StatisticError, match="metric='loss' needs a model that predicts the next token, and BertModel"):
        mh.effect(bert, PLAN, TEXTS_LISTED, metric="loss")
    for labels, words in (
        ([0, 1], "2 labels were given for 4 texts"),
        ([0, 1, 2, -1], "label -1 is not a class"),
        ([0, 1, 0.5, 1], "label 0.5 is not a class"),
        (["a", "b", "c", "d"], "label 'a' is not a class"),
    ):
        refuses(TextError, words, lambda x=labels: mh.effect(classifier, PLAN, mh.Inputs(TEXTS_LISTED, labels=x)))
    with pytest.raises(StatisticError, match="label 7 is not a class of this model: it has 3"):
        mh.effect(classifier, PLAN, mh.Inputs(TEXTS_LISTED, labels=[0, 1, 2, 7]))
    with pytest.raises(StatisticError, match="metric 'class_loss': a CausalLMOutputWithPast has logits of shape"):
        output = lm.model(torch.tensor([[5, 6, 7]]))
        METRICS["class_loss"].read(output, Batch({}, (0,), labels=torch.tensor([0])))
    assert choose_metric(classifier, "class_error", [0])[0] is METRICS["class_error"]


# ----------------------------------------------------------------------------------------------- what ready inputs say


@pytest.mark.parametrize("length", [7, 11])  # a target as long as its source is still no text of its own
def test_ready_inputs_of_an_encoder_decoder_are_judged_by_their_labels_or_what_the_decoder_reads(length, fresh):
    lm = mh.load(tiny_t5(seed=draw(fresh)), tokenizer=False)
    ids, labels = (torch.randint(5, lm.model.config.vocab_size, (2, n), generator=fresh) for n in (11, length))
    labels[0, 4:] = -100
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        whole = lm.model(**inputs, labels=labels).logits
        with mh.applied(lm, mh.Ablate("encoder:L0H1")):
            less = lm.model(**inputs, labels=labels).logits
    assert (less - whole).abs().max() > 1e-4, "the head matters"
    before, after = (
        np.mean([float(F.cross_entropy(logits[i][labels[i] >= 0], labels[i][labels[i] >= 0])) for i in range(2)])
        for logits in (whole, less)
    )
    found = mh.effect(lm, mh.Ablate("encoder:L0H1"), [{**inputs, "labels": labels}], metric="loss", controls=0)
    assert found.before == pytest.approx(before, rel=1e-5) and found.change == pytest.approx(after - before, abs=1e-5)
    read = labels.clamp_min(0)
    with torch.no_grad():
        logits = lm.model(**inputs, decoder_input_ids=read).logits
    want = F.cross_entropy(logits[:, :-1].transpose(1, 2), read[:, 1:])
    found = mh.effect(lm, mh.Ablate("cross:L0H1"), [{**inputs, "decoder_input_ids": read}], metric="loss", controls=0)
    assert found.before == pytest.approx(float(want), rel=1e-5)


def test_labels_of_minus_100_are_not_counted_and_a_head_that_sees_the_next_token_is_no_language_model(fresh):
    lm = mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=False)
    ids = torch.randint(5, lm.model.config.vocab_size, (1, 13), generator=fresh)
    labels = ids.masked_fill(torch.arange(13) < 6, -100)
    with torch.no_grad():
        want = lm.model(input_ids=ids, labels=labels).loss
    found = mh.effect(lm, mh.Ablate("L0H1"), [{"input_ids": ids, "labels": labels}], controls=0)
    assert found.before == pytest.approx(float(want), rel=1e-5) and found.metric == "loss"
    model = tiny_bert(BertLMHeadModel, seed=draw(fresh))
    ids = torch.randint(5, model.config.vocab_size, (2, 9), generator=fresh)
    found = mh.effect(mh.load(model, tokenizer=False), mh.Ablate("L0H1"), [{"input_ids": ids}], controls=0)
    assert found.metric == "cosine" and "no model that predicts the next token" in found.notes["metric"]


@pytest.mark.parametrize(("count", "words"), [(1, "(1 text)"), (3, "(3 texts)")])
def test_few_texts_have_no_interval(count, words, fresh):
    lm = mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=False)
    ids = torch.randint(5, lm.model.config.vocab_size, (count, 13), generator=fresh)
    found = mh.effect(lm, mh.Ablate("L0H1"), [{"input_ids": ids}], controls=0)
    assert (found.low, found.high) == (None, None) and words in str(found)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["low"] is None


def test_kl_of_an_encoder_decoder_is_over_the_rows_that_predict_a_label(fresh):
    lm = mh.load(tiny_t5(seed=draw(fresh)), tokenizer=False)
    ids, labels = (torch.randint(5, lm.model.config.vocab_size, (2, 9), generator=fresh) for _ in range(2))
    labels[1, 5:] = -100
    seen = torch.ones_like(ids).index_put((torch.tensor([0]), torch.tensor([8])), torch.tensor(0))
    inputs = {"input_ids": ids, "attention_mask": seen, "labels": labels}
    with torch.no_grad():
        before = lm.model(**inputs).logits.log_softmax(-1)
        with mh.applied(lm, mh.Ablate("cross:L0H1")):
            after = lm.model(**inputs).logits.log_softmax(-1)
    each = (before.exp() * (before - after)).sum(-1)
    want = torch.stack([each[row][labels[row] >= 0].mean() for row in range(2)]).mean()
    found = mh.effect(lm, mh.Ablate("cross:L0H1"), [inputs], metric="kl", controls=0)
    assert found.change == pytest.approx(float(want), rel=1e-4) and found.change > 1e-6


# ---- random heads beside an effect: as many, none of the plan's, never the same set twice; how sure a mean of texts is


def touched(plan, spec):
    return {head for step in plan.steps for head in spec.select(step.heads)}


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_controls_are_as_many_heads_none_of_the_plans_by_the_seed(name, fresh):
    spec = loaded(name, draw(fresh)).spec
    stack = "cross:" if name == "t5" else ""
    steps = [Ablate(f"{stack}L1H1-3"), Scale(f"{stack}L0H2, {stack}L1H1", 2.0), Ablate(f"{stack}L2H0", kind="first")]
    plan = Plan(steps)
    drawn = random_plans(plan, spec, 20, seed=3)
    for each in drawn:
        assert [type(step) for step in each.steps] == [type(step) for step in steps]
        assert len(touched(each, spec)) == len(touched(plan, spec)) == 5, "steps drew the same head"
        assert not touched(each, spec) & touched(plan, spec)
        sizes = [len(spec.select(step.heads)) for step in each.steps]
        assert sizes == [3, 2, 1] and each.steps[1].factor == 2.0
        both = [set(spec.select(step.heads)) for step in each.steps[:2]]
        assert len(both[0] & both[1]) == 1, "L1H1 is named twice, and so is what stands in its place"
    assert drawn == random_plans(plan, spec, 20, seed=3) != random_plans(plan, spec, 20, seed=4)
    assert len(set(drawn)) > 15


def test_controls_of_steps_within_a_layer_keep_to_a_layer(fresh):
    spec = loaded("llama", draw(fresh)).spec
    plan = Plan([Average("L1H0-2"), Copy("L0H1-2", "L0H5"), Ablate("L1H0")])
    for each in random_plans(plan, spec, 20, seed=draw(fresh)):
        average, copied, ablated = each.steps
        (layer,) = spec.select(average.heads).by_layer()
        ((other, heads),) = spec.select(copied.heads).by_layer().items()
        ((third, source),) = spec.select(copied.source).by_layer().items()
        assert third == other != layer and len(heads) == 2 and len(source) == 1 and source[0] not in heads
        assert len(spec.select(average.heads)) == 3
        assert set(spec.select(ablated.heads)) <= set(spec.select(average.heads))
        assert not touched(each, spec) & touched(plan, spec)
    (skipped, *_) = random_plans(Plan(SkipOutputProjection(1)), spec, 3, seed=0)
    assert spec.select(skipped.steps[0].heads).by_layer().keys() <= {("", 0), ("", 2)}


def test_where_too_few_heads_are_left_there_is_no_control_and_that_is_said(fresh):
    lm = loaded("bert", draw(fresh))
    found = mh.effect(lm, Ablate("L0, L1H0"), TEXTS_LISTED, controls=3)
    assert found.control == () and found.share_of_controls_above is None
    assert found.notes["control"].startswith("none: too few heads are left beside those of ablate L0, L1H0")
    assert mh.effect(lm, Ablate("L0H1"), TEXTS[0], controls=0).notes["control"] == "none, as asked"


def test_a_control_is_what_the_same_steps_do_elsewhere(fresh):
    lm = loaded("llama", draw(fresh))
    found = mh.effect(lm, PLAN, TEXTS_LISTED, controls=4, seed=7)
    want = [mh.effect(lm, plan, TEXTS_LISTED, controls=0).change for plan in random_plans(PLAN, lm.spec, 4, seed=7)]
    assert np.allclose(found.control, want, atol=1e-12) and len(set(want)) == 4
    assert found.share_of_controls_above == sum(each >= found.change for each in want) / 4
    assert found.notes["control"] == "4 random sets of the same number of heads"
    assert "the same number of random heads" in str(found) and found.to_dict()["control"] == list(found.control)


def test_no_random_set_is_drawn_twice_and_fewer_are_said(fresh):
    lm = loaded("llama", draw(fresh))
    others = len(lm.spec.heads) - 1
    drawn = random_plans(Plan(Ablate("L0H1")), lm.spec, others + 5, seed=draw(fresh))
    assert len(set(drawn)) == len(drawn) == others
    layers = len(lm.spec.layers)
    found = mh.effect(lm, SkipOutputProjection(1), TEXTS[0], controls=layers + 3)
    assert len(found.control) == layers - 1
    assert found.notes["control"] == f"{layers - 1} random sets of the same number of heads: there are no others"


def effect_with(change, control, plan=None, num_heads=1, low=None, high=None, metric="loss", why=None, **notes):
    """An effect of given numbers, as `effect` would return it: for the verdict, which reads nothing else."""
    drawn = f"{len(control)} random sets of the same number of heads"
    notes["control"] = why or (drawn if control else "none, as asked")
    return Effect(
        plan or Plan(Ablate("L0H1")), metric, "nats a token", change, low, high, np.array([change]), tuple(control),
        None, None, None, notes, num_heads,
    )  # fmt: skip


TEN = tuple(rank / 10 for rank in range(1, 11))  # 0.1 to 1.0


@pytest.mark.parametrize(("change", "more", "level", "words"), [
    (0.35, {}, "barely", "Barely matters: 7 of 10 random heads matter at least as much."),
    (0.6, {}, "barely", "Barely matters: 5 of 10 random heads matter at least as much."),
    (0.65, {}, "more than most", "Not set apart from chance: 4 of 10 random heads matter at least as much."),
    (0.95, {}, "more than most", "Not set apart from chance: 1 of 10 random heads matters at least as much."),
    (2.0, {}, "stands out", "Stands out: none of 10 random heads matters as much."),
    (2.0, {"low": 0.1, "high": 3.0}, "stands out", "Stands out: none of 10 random heads matters as much."),
    (2.0, {"low": -0.1, "high": 3.0}, "stands out", "matters as much. But its interval over texts includes 0."),
    (-2.0, {}, "stands out", "none of 10 random heads matters as much. It is for the better: loss falls."),
    (-0.35, {}, "barely", "Barely matters: 7 of 10 random heads matter at least as much."),
    (1e-12, {}, "nothing", "Changes nothing here."),
    (0.0, {"unchanged": "scale L0H1 by 1"}, "nothing", "Changes nothing here: scale L0H1 by 1 has no effect."),
    (2.0, {"num_heads": 3}, "stands out", "none of 10 random sets of the same number of heads matters as much."),
    (2.0, {"plan": Plan(SkipOutputProjection("L1"))}, "stands out", "none of 10 random layers matters as much."),
])  # fmt: skip
def test_the_verdict_is_the_rank_among_random_heads_in_words(change, more, level, words):
    result = verdict(effect_with(change, TEN, **more))
    assert result.level == level and str(result).endswith(words)
    assert (result.above, result.controls) == (sum(value >= abs(change) for value in TEN), 10)


def test_a_verdict_counts_changes_by_size_whatever_their_sign():
    opposed = verdict(effect_with(0.35, [-value for value in TEN]))
    assert opposed == verdict(effect_with(0.35, TEN)) and opposed.above == 7


@pytest.mark.parametrize(("control", "notes", "level", "words"), [
    ((), {}, "no control", "No verdict: there is no control, as asked."),
    ((), {"why": "none: too few heads are left beside those of ablate L0 (zero)"}, "no control",
     "No verdict: there is no control: too few heads are left beside those of ablate L0 (zero)."),
    (TEN[:4], {}, "too few", "No verdict from 4 random heads: at least 5 are needed."),
    (TEN[:1], {}, "too few", "No verdict from 1 random head: at least 5 are needed."),
    (TEN[:5], {}, "stands out", "Stands out: none of 5 random heads matters as much."),
])  # fmt: skip
def test_without_enough_controls_there_is_no_verdict_and_it_says_so(control, notes, level, words):
    result = verdict(effect_with(2.0, control, **notes))
    assert (result.level, result.words) == (level, words)


def test_the_verdict_of_a_real_effect_counts_its_own_controls(fresh):
    lm = loaded("gpt2", draw(fresh))
    outcome = mh.effect(lm, PLAN, TEXTS_LISTED, controls=6)
    result = verdict(outcome)
    assert outcome.num_heads == 3 and result.things == "random sets of the same number of heads"
    assert result.above == int((np.abs(outcome.control) >= abs(outcome.change)).sum()) and result.controls == 6
    assert mh.effect(lm, Copy("L0H1", source="L0H2"), TEXTS[0], controls=0).num_heads == 2


@pytest.mark.parametrize(("worth", "words"), [
    ({}, "No head by itself changes anything on these texts."),
    ({"L1H2": 3.0}, "Half of all importance is in 1 of 12 heads: L1H2. 11 matter little: less than 5% of L1H2."),
    ({"L0H1": 4.0, "L1H2": 3.0, "L1H3": 2.0, "L0H0": -1.0},
     "Half of all importance is in 2 of 12 heads: L0H1, L1H2. 9 matter little: less than 5% of L0H1. "
     "Without 1 of them, one at a time, loss falls, which is for the better."),
])  # fmt: skip
def test_how_importance_is_spread_is_said_in_words(worth, words):
    lm = loaded("gpt2", 0)
    assert len(lm.spec.heads) == 12, "the sentences above count the heads of this model"
    values = np.array([worth.get(str(head), 0.0) for head in lm.spec.heads])
    result = Importance(lm.spec, "ablation", "loss", "nats a token", np.array([values, values]), {})
    assert importance_verdict(result) == words


def test_a_headline_of_importance_names_no_head_whose_interval_over_texts_includes_0(fresh):
    lm = loaded("gpt2", 0)
    num_heads, names = len(lm.spec.heads), [str(head) for head in lm.spec.heads]
    noise = np.random.default_rng(draw(fresh)).uniform(0.5, 1.5, (9, num_heads))
    noise = np.concatenate([noise, -noise * 0.9])  # each head: half of 18 texts up, half down

    def words(per_text):
        return importance_verdict(Importance(lm.spec, "ablation", "loss", "nats a token", per_text, {}))

    message = "No head's importance is clear of 0: over these 18 texts the interval of each includes it."
    assert words(noise) == message
    clear = noise.copy()
    clear[:, names.index("L1H2")] = np.linspace(30, 31, 18)
    clear[:, names.index("L0H3")] = -np.linspace(1, 2, 18)
    said = words(clear)
    assert said.startswith("Half of all importance is in 1 of 12 heads: L1H2. 11 matter little: less than 5% of L1H2.")
    assert said.endswith("Without 1 of them, one at a time, loss falls, which is for the better.")
    # One clear head, and one that is worth more by a single text.
    clear[:, names.index("L0H1")] = np.eye(18)[5] * 4_000
    assert "in 1 of 12 heads: L0H1. But its interval over texts includes 0." in words(clear)
