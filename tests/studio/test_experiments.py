"""An experiment says what `mh.effect` says, and what stock transformers says of a model with a head's columns zeroed.

Oracles: `mh.effect` itself for what is passed on; for the rest a copy of the model cut by hand, run by transformers,
with losses, cosines and softmaxes written out. A pruning is `mh.prune_heads` and its `save`, in the workspace's own
folder and nowhere else; the fresh process that tries every checkpoint takes some 10 s, and is left out but once.
"""

import base64
import copy
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.corpora import EXAMPLE_SENTENCES
from manyheads.errors import FileAccessError, HeadError, PlanError, StatisticError, TextError
from manyheads.interventions import Effect, verdict
from manyheads.interventions.effects import random_plans
from manyheads.interventions.save import save as saving
from manyheads.lab.room import views
from manyheads.lab.training.presets.table import stored_report
from manyheads.models.taps.open_taps import OPEN
from manyheads.plan import Ablate, Plan, Scale
from manyheads.roles.compare import head_diversity
from manyheads.studio.problems import Stopped
from manyheads.studio.schema.base import MAX_STEPS
from manyheads.studio.schema.experiments import (
    BlendAsk,
    Experiment,
    ExperimentAsk,
    Guess,
    Neighbour,
    PruningAsk,
    SceneName,
)
from manyheads.studio.state.recordings import corpus_of, plan_of, recording_id
from manyheads.studio.views import blend, experiments
from manyheads.studio.views.effect_words import headline, plain, sentence
from tests.interventions.surgeries import TEXTS, loaded, without_heads
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_tokenizer
from tests.refusals import refuses

SAME = 1e-5
TEXT = "the cat sat on the table and the dog said why is the cat here"
LONG = " ".join([TEXT] * 9)  # 135 words, more than any of these models has positions


def quiet(words, done, total):
    pass


def ask(*steps, text=TEXT, controls=3, **more):
    steps = steps or ({"step": "ablate", "heads": "L1H1, L1H3"},)
    return ExperimentAsk.model_validate({"model": "m", "text": text, "plan": steps, "controls": controls, **more})


def cut_by_hand(name, lm, heads, **more):
    """Outputs of the model and of a copy whose output projection reads nothing of some heads; and the ids."""
    inputs = lm.tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)
    small = copy.deepcopy(lm.model)
    for layer, indices in heads.items():
        without_heads(name, small, layer, indices)
    with torch.no_grad():
        return lm.model(**inputs, **more), small(**inputs, **more), inputs["input_ids"][0]


def losses(logits, ids):
    return -logits[:-1].double().log_softmax(-1).gather(1, ids[1:, None])[:, 0]


# ------------------------------------------------------------------------------------------------------- what it says


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_language_models_loss_changes_as_with_the_heads_columns_at_zero(name, fresh):
    lm = loaded(name, draw(fresh))
    found = experiments.run(lm, ask(), progress=quiet)
    before, after, ids = cut_by_hand(name, lm, {1: [1, 3]})
    want = losses(after.logits[0], ids) - losses(before.logits[0], ids)
    assert (found.metric, found.unit) == ("loss", "nats a token")
    assert abs(found.change - float(want.mean())) < SAME and want.abs().max() > 1e-4
    assert found.per_token[0] is None and len(found.per_token) == len(ids) == len(found.tokens)
    assert np.allclose(found.per_token[1:], want, atol=SAME)
    assert np.allclose([found.before, found.after], [float(losses(x.logits[0], ids).mean()) for x in (before, after)])
    assert "first token is not predicted" in found.per_token_words


def test_every_other_models_embedding_turns_and_so_does_each_tokens_state(fresh):
    lm = loaded("bert", draw(fresh))
    found = experiments.run(lm, ask(), progress=quiet)
    before, after, ids = (x for x in cut_by_hand("bert", lm, {1: [1, 3]}))
    a, b = before.last_hidden_state[0].double(), after.last_hidden_state[0].double()
    assert found.metric == "cosine" and found.guesses == []
    assert abs(found.change - (1 - float(torch.cosine_similarity(a.mean(0), b.mean(0), dim=0)))) < SAME
    turned = [1 - float(x @ y / x.norm() / y.norm()) for x, y in zip(a, b, strict=True)]
    assert np.allclose(found.per_token, turned, atol=SAME) and max(turned) > 1e-4 and len(turned) == len(ids)
    assert [token.special for token in found.tokens] == [True] + [False] * (len(ids) - 2) + [True]
    assert [token.text for token in found.tokens] == ["", *TEXT.split(), ""]


def test_a_masked_language_model_tells_of_its_states_and_guesses_nothing(fresh):
    from transformers import BertForMaskedLM

    lm = mh.load(tiny_bert(BertForMaskedLM, seed=draw(fresh)), tokenizer=tiny_tokenizer())
    found = experiments.run(lm, ask(controls=0), progress=quiet)
    assert found.guesses == [] and found.metric == "cosine" and None not in found.per_token


def test_a_decoder_beside_an_encoder_has_a_loss_at_every_token(fresh):
    lm = loaded("t5", draw(fresh))
    found = experiments.run(lm, ask({"step": "ablate", "heads": "cross:L1H1"}, controls=0), progress=quiet)
    ids = lm.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    small = copy.deepcopy(lm.model)
    without_heads("t5", small, 1, [1], "cross")
    with torch.no_grad():
        before, after = (
            model(input_ids=ids, labels=ids).logits[0].double().log_softmax(-1) for model in (lm.model, small)
        )
    want = (before - after).gather(1, ids[0, :, None])[:, 0]
    assert np.allclose(found.per_token, want, atol=SAME) and found.guesses == []


def test_the_same_is_said_as_by_effect_with_its_controls(fresh):
    lm, heads = loaded("llama", draw(fresh)), "L1H2"
    steps = ({"step": "ablate", "heads": heads, "kind": "mean"}, {"step": "scale", "heads": "L0H1", "factor": 3.0})
    found = experiments.run(lm, ask(*steps, controls=4, seed=7, metric="kl"), progress=quiet)
    plan = Plan([Ablate(heads, kind="mean"), Scale("L0H1", 3.0)])
    want = mh.effect(lm, plan, TEXT, controls=4, seed=7, metric="kl")
    said = want.to_dict()
    for name in ("metric", "unit", "change", "low", "high", "before", "after", "control", "share_of_controls_above"):
        assert getattr(found, name) == said[name], name
    assert found.low is None and found.high is None, "a single text has no interval"
    assert len(found.control) == 4 and found.plan_words == str(plan)
    assert found.notes["corpus"].startswith("the text itself")
    assert plan_of(found.plan) == plan and Experiment.model_validate_json(found.model_dump_json()) == found


def test_a_guess_of_white_space_is_shown_as_people_read_it():
    asked = ask({"step": "ablate", "heads": "L0H0"}, text="def f(x):", controls=0)
    tokens = {guess.token for guess in experiments.run(mh.load("tiny-code"), asked, progress=quiet).guesses}
    assert any(set(token) <= set("␣↵⇥") for token in tokens), tokens
    assert not set("".join(tokens)) & set("ĠĊĉ") and all(token.strip() for token in tokens)


def test_the_guesses_are_the_likeliest_next_tokens_before_and_after(fresh):
    lm = loaded("gpt2", draw(fresh))
    heads = {layer: [0, 1, 2, 3] for layer in range(3)}
    found = experiments.run(lm, ask({"step": "ablate", "heads": "L*"}, controls=0), progress=quiet)
    before, after, _ = cut_by_hand("gpt2", lm, heads)
    p, q = (each.logits[0, -1].double().softmax(-1) for each in (before, after))
    want = {int(i) for each in (p, q) for i in each.topk(experiments.GUESSES).indices}
    names = {lm.tokenizer.decode([i]): i for i in want}
    first, best = (int(each.argmax()) for each in (p, q))
    name = lm.tokenizer.decode([first]).strip()
    verb = "still" if first == best else "no longer"
    assert found.headline.startswith(f"Without L*, it {verb} guesses “{name}” (")
    assert found.beside.endswith("Nothing to compare with: no random heads were run.")
    assert {guess.token for guess in found.guesses} == names.keys()
    assert len(found.guesses) == len(want) >= experiments.GUESSES
    for guess in found.guesses:
        i = names[guess.token]
        assert abs(guess.before - float(p[i])) < SAME and abs(guess.after - float(q[i])) < SAME
    ranked = [max(guess.before, guess.after) for guess in found.guesses]
    assert ranked == sorted(ranked, reverse=True)


def test_what_random_heads_do_to_the_guess_is_that_of_their_plans_one_by_one(fresh):
    lm = loaded("llama", draw(fresh))
    found = experiments.run(lm, ask({"step": "ablate", "heads": "L1H2"}, controls=5, seed=3), progress=quiet)
    inputs = lm.tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        first = int(lm.model(**inputs).logits[0, -1].argmax())
        want = []
        for plan in random_plans(Plan(Ablate("L1H2")), lm.spec, 5, 3):
            layer, heads = next(iter(lm.spec.select(plan.steps[0].heads).by_layer().items()))
            small = copy.deepcopy(lm.model)
            without_heads("llama", small, layer[1], list(heads))
            want.append(float(small(**inputs).logits[0, -1].double().softmax(-1)[first]))
    assert np.allclose(found.control_guesses, want, atol=SAME) and len(set(want)) > 1
    assert experiments.run(lm, ask(controls=0), progress=quiet).control_guesses == []


def test_of_a_text_in_windows_the_first_is_told_token_by_token(fresh):
    lm = loaded("gpt2", draw(fresh))
    found = experiments.run(lm, ask(text=LONG, controls=0), progress=quiet)
    whole = mh.effect(lm, Ablate("L1H1, L1H3"), LONG, controls=0)
    assert whole.num_texts == 2 and found.change == whole.change and (found.low, found.high) == (whole.low, whole.high)
    assert len(found.tokens) == len(found.per_token) == 96 and found.per_token[0] is None
    assert np.allclose(found.per_token[1:], whole.per_token[0], atol=SAME)
    assert found.notes["tokens"] == "the first of 2 windows" and "which overlap" in found.notes["interval"]


def test_before_and_after_are_named_as_recordings_are_and_an_experiment_after_its_question_alone(fresh):
    found = experiments.run(loaded("llama", draw(fresh)), asked := ask(controls=0), progress=quiet)
    assert found.before_recording == recording_id("m", TEXT)
    assert found.after_recording == recording_id("m", TEXT, asked.plan)
    lm = loaded("llama", draw(fresh))
    asks = [ask(controls=0), ask(controls=0), ask(controls=0, seed=1), ask(controls=0, text="the dog saw a bird")]
    ids = [experiments.run(lm, each, progress=quiet).id for each in asks]
    assert ids[0] == ids[1] and len(set(ids)) == 3


def test_the_verdict_and_the_heads_diversity_are_the_librarys(fresh):
    lm, plan = loaded("llama", draw(fresh)), Plan(mh.Copy("L*", source="L*H0"))
    found = experiments.run(lm, ask({"step": "copy", "heads": "L*", "source": "L*H0"}), progress=quiet)
    with mh.applied(lm, plan):
        after = head_diversity(lm, TEXT)
    assert (found.diversity.before, found.diversity.after) == (head_diversity(lm, TEXT).value, after.value)
    assert after.value < 1e-9 < found.diversity.before and after.because in found.diversity.words
    known = verdict(mh.effect(lm, plan, TEXT, controls=3))
    assert found.verdict.words == known.words and found.verdict.level == known.level == "no control"
    assert "the plan is on every head, so that no others are left to draw" in known.words
    one = experiments.run(lm, ask({"step": "ablate", "heads": "L1H1"}, controls=6), progress=quiet)
    assert one.verdict.words == verdict(mh.effect(lm, Ablate("L1H1"), TEXT, controls=6)).words
    assert one.diversity.words.count("heads set to zero still have maps") == 1 and one.neighbours == []


def test_one_head_alone_in_each_layer_has_no_diversity(fresh):
    """Heads set to zero still have maps: a gauge of them would show what nobody hears."""
    lm = loaded("llama", draw(fresh))
    alone = experiments.run(lm, ask({"step": "ablate", "heads": "L*H1-5"}, controls=0), progress=quiet)
    assert alone.diversity.before is alone.diversity.after is None
    assert alone.diversity.words.startswith("at most one head of each layer speaks")
    assert alone.headline.startswith("With one head alone in each layer, ")
    half = experiments.run(lm, ask({"step": "ablate", "heads": "L*H3-5"}, controls=0), progress=quiet)
    assert half.diversity.after is not None and half.headline.startswith("With half the heads, ")


def test_a_text_of_one_token_has_no_diversity_and_that_is_said(fresh):
    lm = mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))
    found = experiments.run(lm, ask(text="cat", controls=0), progress=quiet)
    assert (
        found.diversity.before is found.diversity.after is None and "no row that sees two keys" in found.diversity.words
    )


def test_the_nearest_sentences_are_those_of_stock_embeddings_before_and_with_the_heads_at_zero(minilm):
    small = copy.deepcopy(minilm.model)
    with torch.no_grad():
        small.encoder.layer[2].attention.output.dense.weight[:, 3 * 32 : 10 * 32] = 0
    text = "The doctor lost her patience with the animal."
    found = experiments.run(minilm, ask({"step": "ablate", "heads": "L2H3-9"}, text=text, controls=0), progress=quiet)

    def embedded(model, words):
        with torch.no_grad():
            return model(**minilm.tokenizer(words, return_tensors="pt")).last_hidden_state[0].mean(0).double()

    def cosines(model):
        whole = embedded(model, text)
        return {s: float(torch.cosine_similarity(whole, embedded(model, s), dim=0)) for s in EXAMPLE_SENTENCES}

    before, after = cosines(minilm.model), cosines(small)
    assert {near.sentence: near.before for near in found.neighbours} == pytest.approx(before, abs=SAME)
    assert {near.sentence: near.after for near in found.neighbours} == pytest.approx(after, abs=SAME)
    assert [near.before for near in found.neighbours] == sorted((n.before for n in found.neighbours), reverse=True)
    five = [set(sorted(side, key=side.__getitem__)[-5:]) for side in (before, after)]
    changed = len(five[1] - five[0])
    turned = 1 - float(torch.cosine_similarity(embedded(minilm.model, text), embedded(small, text), dim=0))
    number = re.match(r"Without L2H3-9, the text's embedding turns by ([\d.]+) \(1 - cosine, where a", found.words)
    assert number and float(number[1]) == pytest.approx(turned, rel=0.005), found.words
    if changed:
        newest = max(five[1] - five[0], key=after.__getitem__).rstrip(".")
        said = f"the model takes “{newest}” for a neighbour of your sentence"
        assert found.beside.startswith(f"{changed} of its 5 nearest sentences changed.")
    else:
        said = "your sentence keeps its 5 nearest sentences"
    assert found.headline.startswith(f"Without L2H3-9, {said}")
    assert "cosine" not in found.headline and found.beside.endswith("no random heads were run.")


def test_what_was_trained_so_stands_beside_each_scene_from_the_stored_reports():
    by_scene = {truth.scene: truth for truth in views.trained()}
    assert list(by_scene) == list(get_args(SceneName))
    ways = stored_report("collapse")["found"]["ways"]
    same, unmixed = by_scene["same"], by_scene["unmixed"]
    assert [way.right for way in same.ways] == [
        ways[name]["all_right"]["mean"] for name in ("free", "averaged", "tied")
    ]
    assert [way.right for way in unmixed.ways] == [ways[n]["all_right"]["mean"] for n in ("free", "skipped", "unmixed")]
    assert [way.diversity for way in same.ways] == pytest.approx([ways["free"]["diversity"]["mean"], 0, 0], abs=1e-6)
    assert "right at 4 % of places, not 93 %. Their diversity is 0, not 0.725." in same.words
    assert "nothing is lost" in unmixed.words and "right at 93 % of places, with Wᴼ at 93 %" in unmixed.words
    counts = stored_report("heads")["found"]["by_heads"]
    assert [way.right for way in by_scene["half"].ways] == [counts[n]["all_right"]["mean"] for n in ("8", "4")]
    assert (
        by_scene["positions"].ways == [] and by_scene["positions"].words == "No net was trained here without positions."
    )


# ------------------------------------------------------------------------------------------------------------- corpora


def test_a_corpus_is_read_by_paragraphs(fresh):
    lm, corpus = loaded("llama", draw(fresh)), "a king found\nthe old book\n\n\nseven birds sat near the river\n"
    step = {"step": "ablate", "heads": "L1H1", "kind": "mean"}
    found = experiments.run(lm, ask(step, corpus=corpus, controls=2), progress=quiet)
    parts = ["a king found the old book", "seven birds sat near the river"]
    assert found.change == mh.effect(lm, Ablate("L1H1", kind="mean"), TEXT, corpus=parts, controls=2).change
    assert found.change != experiments.run(lm, ask(step, controls=0), progress=quiet).change
    assert found.notes["corpus"] == "2 paragraphs, as given" and "without the corpus" in found.notes["after_recording"]


def test_resampling_without_a_corpus_takes_our_page_for_the_text_itself_would_change_nothing(fresh):
    lm = loaded("llama", draw(fresh))
    step = {"step": "ablate", "heads": "L1H1", "kind": "resample"}
    found = experiments.run(lm, ask(step, controls=0), progress=quiet)
    assert found.notes["corpus"].startswith("32 bundled texts") and "unchanged" not in found.notes
    assert abs(found.change) > 1e-6 and any(abs(each) > 1e-5 for each in found.per_token[1:])
    itself = mh.effect(lm, Ablate("L1H1", kind="resample"), TEXT, controls=0)
    assert "unchanged" in itself.notes
    own = Plan(Ablate("L1H1", kind="resample", text="a bird"))
    assert corpus_of(own, TEXT) == (None, "") and corpus_of(Plan(Ablate("L1H1")), TEXT, "much") == (None, "")


# ------------------------------------------------------------------------------------------------------ how far it is


def test_progress_is_told_before_every_pass_at_every_layer(fresh):
    lm, told = loaded("llama", draw(fresh)), []
    experiments.run(lm, ask(controls=3), progress=lambda *said: told.append(said))
    passes = 2 + 3 + 2 + 3 + 2  # before and after, controls, token by token, their guesses, the heads' diversity
    assert [done for _, done, _ in told if done == passes - 1] and {total for *_, total in told} == {passes}
    assert sorted({done for _, done, _ in told}) == list(range(passes))
    assert len(told) == 4 + passes * 3, "four times what begins, and three layers of each pass"
    counts = [done for _, done, _ in told]
    assert counts == sorted(counts)


@pytest.mark.parametrize("at", [0, 5, 13, 22])
def test_whatever_progress_raises_passes_through_and_the_model_is_as_it_was(at, fresh):
    lm, count = loaded("llama", draw(fresh)), 0
    ids = lm.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        before = lm.model(ids).logits

    def stop(words, done, total):
        nonlocal count
        count += 1
        if count > at:
            raise Stopped("no more")

    with pytest.raises(Stopped):
        experiments.run(lm, ask(controls=3), progress=stop)
    with torch.no_grad():
        assert torch.equal(lm.model(ids).logits, before)
    assert OPEN.taps == () and count == at + 1


# --------------------------------------------------------------------------------------------------------- one head


def test_the_worth_of_a_head_is_its_effect_beside_random_heads(fresh, monkeypatch):
    assert experiments.CONTROLS == 10
    monkeypatch.setattr(experiments, "CONTROLS", 3)
    lm, told = loaded("gpt2", draw(fresh)), []
    found = experiments.worth(lm, "r1", "L1H2", TEXT, "zero", progress=lambda *said: told.append(said))
    want = mh.effect(lm, Ablate("L1H2"), TEXT, controls=3)
    assert (found.change, tuple(found.control)) == (want.change, want.control) and len(found.control) == 3
    assert (found.head, found.recording, found.kind, found.metric) == ("L1H2", "r1", "zero", "loss")
    before, after, ids = cut_by_hand("gpt2", lm, {1: [2]})
    assert abs(found.change - float((losses(after.logits[0], ids) - losses(before.logits[0], ids)).mean())) < SAME
    assert max(done for _, done, _ in told) == 4 and found.words.startswith("Without L1H2, the loss ")
    mean = experiments.worth(lm, "r1", "L1H2", TEXT, "mean", progress=quiet)
    assert mean.change == mh.effect(lm, Ablate("L1H2", kind="mean"), TEXT, controls=0).change != found.change
    assert mean.notes["corpus"].startswith("the text itself")


def test_minilms_embedding_turns_as_with_a_zeroed_head(minilm, monkeypatch):
    text = "The researcher who cited the paper won the prize."
    monkeypatch.setattr(experiments, "CONTROLS", 3)
    found = experiments.worth(minilm, "r1", "L2H9", text, "zero", progress=quiet)
    small, inputs = copy.deepcopy(minilm.model), minilm.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        small.encoder.layer[2].attention.output.dense.weight[:, 9 * 32 : 10 * 32] = 0
        a, b = (model(**inputs).last_hidden_state[0].mean(0).double() for model in (minilm.model, small))
    assert abs(found.change - (1 - float(a @ b / a.norm() / b.norm()))) < SAME
    words = (
        r"Without L2H9, the text's embedding turns by [\d.e-]+ \(1 - cosine, where a right angle is 1\); "
        r"3 random heads: [\d.e-]+ to [\d.e-]+ \("
    )
    assert re.match(words, found.words), found.words


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(("asked", "kind", "words"), [
    (ask({"step": "ablate", "heads": "L9H1"}), HeadError, "there is no layer 9"),
    (ask({"step": "ablate", "heads": ""}), HeadError, "names no heads"),
    (ask({"step": "ablate", "heads": "L1H1", "text": "a"}), PlanError, "with kind='zero'"),
    (ask({"step": "copy", "heads": "L1", "source": "L0H1"}), PlanError, "source"),
    (ask(text=" "), TextError, "the text is empty"),
    (ask(text="cat"), StatisticError, "a text of one token has no next token"),
    (ask(metric="speed"), StatisticError, "metric='speed' is unknown"),
])  # fmt: skip
def test_what_cannot_be_done_is_told_as_the_library_tells_it(asked, kind, words, fresh):
    refuses(kind, words, experiments.run, loaded("llama", draw(fresh)), asked, progress=quiet)
    assert OPEN.taps == ()


def test_the_worth_of_several_heads_at_once_and_what_is_too_long_are_refused(fresh):
    with pytest.raises(HeadError, match="'L1' is 6 heads of LlamaForCausalLM: name one, as in 'L3H7'"):
        experiments.worth(loaded("llama", draw(fresh)), "r1", "L1", TEXT, "zero", progress=quiet)
    refuses(ValueError, "at most 64", ask, *[{"step": "ablate", "heads": "L1H1"}] * (MAX_STEPS + 1))
    assert json.loads(ask().model_dump_json())["plan"][0]["step"] == "ablate"


@pytest.mark.slow
def test_two_experiments_on_one_model_at_once_do_not_meet(fresh):
    lm = loaded("llama", draw(fresh))
    asks = [ask({"step": "ablate", "heads": f"L{at % 3}H{at}"}, controls=4) for at in range(6)]
    alone = [experiments.run(lm, each, progress=quiet) for each in asks]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda each: experiments.run(lm, each, progress=quiet), asks))
    assert together == alone and OPEN.taps == ()


def effect_of(lm, *steps, **options):
    return mh.effect(lm, Plan(list(steps)), TEXTS[0], **options)


def test_the_sentence_says_what_was_done_what_changed_and_what_random_heads_change(fresh):
    lm = loaded("llama", draw(fresh))
    one = effect_of(lm, Ablate("L1H1"), Scale("L0H2", 3), controls=5)
    said = sentence(one)
    verb = "rises" if one.change > 0 else "falls"
    assert said.startswith(f"Without L1H1 and with L0H2 3 times as loud, the loss {verb} by {abs(one.change):.3g} nats")
    assert f"5 random sets of the same number of heads: {min(one.control):.3g} to {max(one.control):.3g} (" in said
    assert said.endswith("as much or more, up or down).")
    kl = effect_of(lm, mh.Average("L1"), mh.Copy("L0", source="L0H2"), metric="kl", controls=0)
    assert sentence(kl).startswith(
        "With one mean map for the heads of L1 and with the map of L0H2 for every head of L0, what is predicted moves "
    )
    assert sentence(kl).endswith("; nothing to compare it with (none, as asked).")
    skipped = effect_of(lm, mh.SkipOutputProjection(1), Ablate("L0H1", "first"), Ablate("L0H2", "mean"), controls=0)
    assert sentence(skipped).startswith(
        "Without the output projection of L1 and with L0H1 looking at the first token alone and with L0H2 held at the "
    )
    many = effect_of(lm, *[Ablate(f"L1H{head}") for head in range(4)], controls=0)
    assert sentence(many).startswith("After 4 steps, the loss ")
    nothing = effect_of(lm, Scale("L1H1", 1.0), controls=1)
    assert sentence(nothing) == "With L1H1 1 times as loud, nothing changes: scale L1H1 by 1 has no effect here."


def made(change, control=(), plan=None, **more):
    """An effect of this size, as `mh.effect` would return it."""
    none = "none: the plan is on every head, so that no others are left to draw"
    fields = {"metric": "loss", "unit": "nats a token", "before": 3.0, "after": 3.0 + change, "low": None, "high": None}
    notes = {"control": f"{len(control)} random sets of the same number of heads" if control else none}
    plan = plan or Plan(Ablate("L1H2"))
    per_text = np.array([change])
    options = {**fields, "notes": notes, "per_text": per_text, "per_token": None, "num_heads": 1, **more}
    return Effect(plan=plan, change=change, control=tuple(control), **options)


GUESSED = (Guess(token=" Mary", before=0.92, after=0.31), Guess(token=" the", before=0.02, after=0.44))


def test_the_headline_says_what_a_reader_sees_and_the_quiet_line_what_random_heads_do(fresh):
    spec = loaded("llama", draw(fresh)).spec
    far, near = [0.95, 0.91, 0.9, 0.93, 0.92], [0.95, 0.1, 0.9, 0.93, 0.92]
    lost = headline(made(0.8, [0.01] * 5), spec, GUESSED, far)
    assert lost == (
        "Without L1H2, it no longer guesses “Mary” (92 % → 31 %).",
        "It guesses “the” instead (2 % → 44 %). 5 random heads: 90 to 95 %.",
    )
    # One of the random heads changes the guess as much: no headline of its own, but for the text as a whole.
    assert headline(made(0.8, [0.01] * 5), spec, GUESSED, near)[0] == (
        "Without L1H2, each token of the text is 2.23 times less likely to be guessed."
    )
    barely = headline(made(0.001, [0.01] * 5), spec, GUESSED, near)
    assert barely[0] == "Without L1H2, nothing changes that can be told from chance."
    assert barely[1].endswith("The guess “Mary”: 92 % → 31 %; 5 random heads: 10 to 95 %.")
    # The loss barely moves, and yet the end of the text is another.
    assert headline(made(0.001, [0.01] * 5), spec, GUESSED, far)[0] == lost[0]
    everything = headline(made(0.8, plan=Plan(mh.Copy("L*", "L*H0"))), spec, GUESSED)
    assert everything[0].startswith("With one map for all heads, it no longer guesses “Mary”")
    assert everything[1].endswith("Nothing to compare with: every head was changed.")
    near = [Neighbour(sentence=f"S{n}.", before=1 - n / 10, after=1 - n / 10) for n in range(7)]
    swapped = [*near[:4], Neighbour(sentence="S4.", before=0.6, after=0.1), *near[5:]]
    cosine = {"metric": "cosine", "unit": "", "before": None, "after": None}
    assert headline(made(0.2, **cosine), spec, neighbours=swapped) == (
        "Without L1H2, the model takes “S5” for a neighbour of your sentence.",
        "1 of its 5 nearest sentences changed. Nothing to compare with: every head was changed.",
    )
    assert headline(made(0.2, **cosine), spec, neighbours=near)[0] == (
        "Without L1H2, your sentence keeps its 5 nearest sentences."
    )
    assert headline(made(0.0), spec) == ("Without L1H2, nothing changes.", "")
    few = headline(made(0.1, [0.01, 0.02]), spec, GUESSED, [0.9, 0.8])
    assert few[1].endswith("Only 2 random heads to compare with, too few for a verdict.")


def test_no_sentence_has_a_number_in_powers_of_ten(fresh):
    spec = loaded("llama", draw(fresh)).spec
    tiny = made(1.62e-05, [3.1e-06, 2.9e-06, 1e-07, 2e-06, 1.2e-06])
    assert "by 0.0000162 nats a token" in sentence(tiny) and "0.0000001 to 0.0000031" in sentence(tiny)
    said = " ".join([sentence(tiny), *headline(tiny, spec)])
    assert not re.search(r"\de[-+−]?\d", said), said
    values = [0.0, 1e-12, -4.25e-06, 0.0123456, 0.41666, 12.345, 1234.5, 1.2e7]
    written = ["0", "0", "-0.00000425", "0.0123", "0.417", "12.3", "1,234", "12,000,000"]
    assert [plain(value) for value in values] == written


def pruning(heads="L1H1, L1H3", name="smaller", **more):
    return PruningAsk(model="m", heads=heads, name=name, **more)


@pytest.fixture
def untried(monkeypatch):
    """Saves are believed: what trials find is the business of tests/interventions/test_saving.py."""
    monkeypatch.setattr(saving, "try_all", lambda trials: [{"error": 0.0} for _ in trials])
    monkeypatch.setattr(saving, "fault_in", lambda result: "")


def test_heads_go_and_parameters_are_counted(fresh, tmp_path, untried):
    lm, told = loaded("gpt2", draw(fresh)), []
    found = experiments.save_pruned(lm, pruning(), tmp_path, progress=lambda *said: told.append(said[1:]))
    assert found.heads == ["L1H1", "L1H3"] and found.model == "m" and found.folder == str(tmp_path / "smaller")
    saved = torch.nn.Module.parameters
    assert found.parameters_before == sum(each.numel() for each in saved(lm.model))
    width, embed_dim = 9, 36
    assert found.parameters_before - found.parameters_after == 2 * (4 * width * embed_dim + 3 * width)
    assert (tmp_path / "smaller" / "README.md").is_file() and told == [(0, 2), (1, 2)]
    assert not found.stock and "with L1H1, L1H3 at zero" in found.words and "mh.load reads it" in found.words
    assert [each.name for each in tmp_path.iterdir()] == ["smaller"]


def test_what_is_there_stays_whoever_wrote_it(fresh, tmp_path, untried):
    lm = loaded("gpt2", draw(fresh))
    first = experiments.save_pruned(lm, pruning(), tmp_path, progress=quiet)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("also theirs")
    kept = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    for name in ("smaller", "theirs", "file"):
        with pytest.raises(FileAccessError, match=f"{name} already exists: give another name"):
            experiments.save_pruned(lm, pruning("L0H2", name=name), tmp_path, progress=quiet)
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == kept
    second = experiments.save_pruned(lm, pruning("L0H2", name="other"), tmp_path, progress=quiet)
    assert second.folder != first.folder and second.parameters_after > first.parameters_after


@pytest.mark.parametrize("name", ["..", "a/b", "../out", "/tmp/out", ".hidden", "a\\b", "", "a b", "x" * 81, "a\n"])
def test_a_name_that_is_no_plain_name_is_refused_with_the_request(name):
    refuses(ValueError, "name", pruning, name=name)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../out", "/tmp/out", "link"])
def test_a_name_that_leaves_the_folder_is_refused_here_too(name, fresh, tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    given = PruningAsk.model_construct(model="m", heads="L1H1", name=name, empty_layers=False)
    with pytest.raises(FileAccessError, match="it would not be in"):
        experiments.save_pruned(loaded("gpt2", draw(fresh)), given, inside, progress=quiet)
    assert list(outside.iterdir()) == []


def test_heads_that_cannot_go_are_told_with_the_nearest_that_can_and_a_pruning_that_is_stopped_writes_nothing(
    fresh, tmp_path
):
    lm = loaded("llama", draw(fresh))
    refuses(HeadError, "Nearest plan that can", experiments.save_pruned, lm, pruning("L1H1"), tmp_path, progress=quiet)
    refuses(HeadError, "Say empty_layers=True", experiments.save_pruned, lm, pruning("L1"), tmp_path, progress=quiet)
    refuses(HeadError, "names no heads", experiments.save_pruned, lm, pruning(""), tmp_path, progress=quiet)
    assert list(tmp_path.iterdir()) == []

    def stop(words, done, total):
        if done:
            raise Stopped("no more")

    with pytest.raises(Stopped):
        experiments.save_pruned(loaded("gpt2", draw(fresh)), pruning(), tmp_path, progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_was_written_computes_what_the_model_with_zeroed_columns_does(fresh, tmp_path):
    from transformers import LlamaForCausalLM

    lm = loaded("llama", draw(fresh))
    found = experiments.save_pruned(lm, pruning("L*H2-3"), tmp_path, progress=quiet)
    assert found.stock and "stock transformers loads it" in found.words
    oracle = copy.deepcopy(lm.model)
    for layer in range(3):
        without_heads("llama", oracle, layer, [2, 3])
    ids = lm.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    small = LlamaForCausalLM.from_pretrained(found.folder).eval()
    with torch.no_grad():
        want, got = oracle(ids).logits, small(ids).logits
    assert float((want - got).abs().max()) < 1e-5 * float(want.abs().max())
    assert found.parameters_after == sum(each.numel() for each in small.parameters())


# ------------------------------------------------------------------------------------------------- all heads made alike


def blended_by_hand(model, inputs, share):
    """Eager maps [layer, h, q, k] and last states of a BERT whose heads take a share of their layer's head 0."""
    x = model.embeddings(input_ids=inputs["input_ids"])
    maps = []
    for layer in model.encoder.layer:
        own, out = layer.attention.self, layer.attention.output
        heads = own.num_attention_heads
        q, k, v = (part(x)[0].unflatten(-1, (heads, -1)).transpose(0, 1) for part in (own.query, own.key, own.value))
        weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        weights = (1 - share) * weights + share * weights[:1]
        maps.append(weights)
        mixed = (weights @ v).transpose(0, 1).flatten(1)[None]
        x = out.LayerNorm(out.dense(mixed) + x)
        x = layer.output.LayerNorm(layer.output.dense(layer.intermediate(x)) + x)
    return torch.stack(maps), x[0]


def diversity_by_hand(maps):
    """Mean Jensen-Shannon divergence of two heads of a layer over ln 2, of maps [layer, h, q, k]."""
    maps = maps.double().numpy()
    pairs = [(i, j) for i in range(maps.shape[1]) for j in range(i)]
    entropy = lambda p: -np.where(p > 0, p * np.log2(np.maximum(p, 1e-300)), 0).sum(-1)  # noqa: E731
    apart = [entropy((maps[:, i] + maps[:, j]) / 2) - (entropy(maps[:, i]) + entropy(maps[:, j])) / 2 for i, j in pairs]
    return float(np.mean(apart))


def levels_of(found):
    raw = np.frombuffer(base64.b64decode(found.maps), "<u2").reshape(11, len(found.heads), found.side, found.side)
    return np.where(raw == blend.ABSENT, np.nan, raw / blend.LEVELS)


def test_heads_made_alike_are_those_of_an_eager_forward_by_hand_at_every_tenth(minilm):
    text = "The doctor lost her patience with the animal."
    told = []
    found = blend.run(minilm, BlendAsk(model="minilm", text=text, layer="L3"), progress=lambda *x: told.append(x))
    inputs = minilm.tokenizer(text, return_tensors="pt")
    maps = levels_of(found)
    with torch.no_grad():
        whole = blended_by_hand(minilm.model, inputs, 0.0)[1].mean(0).double()
        for step, share in enumerate(np.linspace(0, 1, 11)):
            want, states = blended_by_hand(minilm.model, inputs, float(share))
            assert np.abs(maps[step] - want[3].numpy()).max() < 1e-4, share
            now = states.mean(0).double()
            assert found.steps[step].kept == pytest.approx(float(torch.cosine_similarity(now, whole, dim=0)), abs=1e-4)
            assert found.steps[step].share == pytest.approx(share)
            assert found.steps[step].diversity == pytest.approx(diversity_by_hand(want), abs=1e-4), share
            if step in (0, 4, 10):
                for sentence_of, value in list(zip(found.items, found.steps[step].values, strict=True))[::5]:
                    other = minilm.tokenizer(sentence_of, return_tensors="pt")
                    near = blended_by_hand(minilm.model, other, float(share))[1].mean(0).double()
                    assert value == pytest.approx(float(torch.cosine_similarity(now, near, dim=0)), abs=1e-4)
    assert np.ptp(maps[10], 0).max() < 1e-4 < np.ptp(maps[5], 0).max(), "at the end all maps are one"
    assert (found.layer, found.kind, found.exact, found.layers) == (
        "L3",
        "neighbours",
        True,
        [f"L{n}" for n in range(6)],
    )
    assert found.items == list(EXAMPLE_SENTENCES) and found.steps[0].headline.startswith("Each head has its own map")
    assert all(
        step.headline.startswith(f"{n} % alike: ") for n, step in zip(range(10, 101, 10), found.steps[1:], strict=True)
    )
    assert max(done for _, done, _ in told) + 1 == {total for *_, total in told}.pop()


def test_heads_of_a_language_model_made_alike_change_its_likeliest_tokens(fresh):
    lm = loaded("gpt2", draw(fresh))
    found = blend.run(lm, BlendAsk(model="m", text=TEXT), progress=quiet)
    inputs = lm.tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)
    names = {lm.tokenizer.decode([i]): i for i in range(lm.model.config.vocab_size)}
    for step in (0, 3, 10):
        with torch.no_grad(), mh.applied(lm, Plan(mh.Copy("L*", "L*H0", share=step / 10 or 1e-30))):
            logits = lm.model(**inputs).logits[0]
        likely = logits[-1].double().softmax(-1)
        want = [float(likely[names[item]]) for item in found.items]
        assert np.allclose(found.steps[step].values, want, atol=SAME)
        assert found.steps[step].loss == pytest.approx(float(losses(logits, inputs["input_ids"][0]).mean()), abs=SAME)
        assert set(likely.topk(5).indices.tolist()) <= {names[item] for item in found.items}
    assert found.kind == "guesses" and np.isnan(levels_of(found)[:, :, 0, 1]).all(), (
        "a causal map hides what comes later"
    )
    few = blend.run(lm, BlendAsk(model="m", text=TEXT, steps=3), progress=quiet)
    assert [step.share for step in few.steps] == [0, 0.5, 1] and "every 50 %" in few.steps[1].figures
    assert [step.loss for step in few.steps] == pytest.approx([found.steps[n].loss for n in (0, 5, 10)], abs=SAME)
    absent = BlendAsk(model="m", text=TEXT, layer="L9")
    words = "there is no layer L9 with two heads or more: name one of L0, L1, L2"
    refuses(HeadError, words, blend.run, lm, absent, progress=quiet)


def test_maps_of_a_long_text_are_means_of_blocks(fresh):
    lm = loaded("gpt2", draw(fresh))
    found = blend.run(lm, BlendAsk(model="m", text=" ".join([TEXT] * 5)), progress=quiet)
    assert not found.exact and found.side == blend.SIDE and len(found.tokens) == 75


def test_heads_cannot_be_made_alike_where_each_layer_has_one(fresh):
    lm = mh.load(tiny_bert(seed=draw(fresh), num_attention_heads=1), tokenizer=tiny_tokenizer())
    ask_one = BlendAsk(model="m", text=TEXT)
    refuses(PlanError, "every layer of BertModel has one head", blend.run, lm, ask_one, progress=quiet)
