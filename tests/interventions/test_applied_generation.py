"""A model that writes under a plan writes what the edited model would, step by step, whatever its cache holds.

The oracle: the finished text, read at once under the same plan, without padding and without a cache.
"""

import pytest
import torch

import manyheads as mh
from manyheads import Ablate, Average, Plan, Scale
from tests.interventions.surgeries import TEXTS, assert_close, assert_matters, loaded
from tests.models.eager import draw, padded
from tests.models.tiny import VOCAB_SIZE

STEPS = 6  # past the windows of gemma2 and gpt_oss
LENGTHS = (4, 7)
CORPUS = list(TEXTS)
PLANS = {
    "zero": Ablate("L1H1, L0H2"),
    "first": Ablate("L1H1, L0H2", kind="first"),
    "mean": Ablate("L1H1, L0H2", kind="mean"),
    "by position": Ablate("L*H1-2", kind="mean", per_position=True),
    "text": Ablate("L*H1-2", kind="resample", text=TEXTS[2]),
    "several": Plan([Scale("L1H0", 3.0), Average("L0H1-2"), Ablate("L1H1", kind="mean", per_position=True)]),
}
STATIC = {"cache_implementation": "static"}
CASES = [*[("llama", step, {}) for step in PLANS], ("gpt2", "several", {}), ("gemma2", "by position", {})]
CASES += [("gemma2", "first", {}), ("gpt_oss", "several", {}), ("llama", "by position", STATIC)]
CASES += [("llama", "first", STATIC), ("gemma2", "several", STATIC)]


def written(lm, inputs, **options):
    """New tokens and the logits that chose them: [b, steps], [b, steps, vocabulary]."""
    how = {
        "max_new_tokens": STEPS,
        "min_new_tokens": STEPS,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    got = lm.model.generate(**inputs, **how, pad_token_id=0, **options)
    return got.sequences[:, -STEPS:], torch.stack(got.logits, 1)


def assert_written(lm, plan, inputs, tokens, logits, corpus):
    """Every step is what the edited model makes of the finished text, read at once."""
    for text, length in enumerate(LENGTHS):
        prompt = inputs["input_ids"][text][inputs["attention_mask"][text].bool()]
        whole = torch.cat([prompt, tokens[text]])[None]
        with mh.applied(lm, plan, corpus=corpus), torch.no_grad():
            want = lm.model(input_ids=whole, use_cache=False).logits[0, length - 1 : -1]
        assert_close(logits[text], want, 2e-5)
        assert torch.equal(want.argmax(-1), tokens[text])


SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1::2]]  # every second one is enough each time


@pytest.mark.parametrize(("name", "step", "options"), [*CASES[::2], *SLOW])
def test_a_left_padded_batch_is_written_as_the_edited_model_would_write_each_text(name, step, options, fresh):
    lm, plan = loaded(name, draw(fresh)), PLANS[step]
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE, "left")
    corpus = CORPUS if "mean" in repr(plan) else None
    with mh.applied(lm, plan, corpus=corpus):
        tokens, logits = written(lm, inputs, **options)
    assert_written(lm, plan, inputs, tokens, logits, corpus)
    assert_matters(logits, written(lm, inputs, **options)[1])


def test_a_second_text_begins_at_its_first_position(fresh):
    lm, inputs = loaded("gemma2", draw(fresh)), padded(fresh, LENGTHS, VOCAB_SIZE, "left")
    with mh.applied(lm, PLANS["by position"], corpus=CORPUS):
        first, again = written(lm, inputs)[1], written(lm, inputs)[1]
    assert torch.equal(first, again)


def test_plans_for_single_samples_hold_while_they_are_written(fresh):
    lm = loaded("llama", draw(fresh))
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE, "left")
    plans = [Plan(PLANS["several"].steps), Plan(PLANS["text"])]
    with mh.applied(lm, plans, corpus=CORPUS):
        tokens, logits = written(lm, inputs)
    for text, plan in enumerate(plans):
        prompt = inputs["input_ids"][text][inputs["attention_mask"][text].bool()]
        whole = torch.cat([prompt, tokens[text]])[None]
        with mh.applied(lm, plan, corpus=CORPUS), torch.no_grad():
            want = lm.model(input_ids=whole, use_cache=False).logits[0, LENGTHS[text] - 1 : -1]
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
