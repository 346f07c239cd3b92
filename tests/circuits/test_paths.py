"""A path is what plain hooks on the models' own modules make of it; the two heads of induction talk by keys."""

import random

import pytest
import torch

from manyheads import design
from manyheads.circuits import path_effect, path_effects
from manyheads.errors import HeadError, StatisticError
from tests.circuits.test_circuit import induction_pairs
from tests.circuits.test_patching import LENGTH, made
from tests.models.tiny import tiny_tokenizer


def truth(oracle, base, other, sender, receiver, channel):
    """The answer of `base` when the receiver reads what the sender alone sends of `other`."""
    (low, head), (high, end) = sender, receiver
    stored = {layer: oracle.seen(base, layer, "out") for layer in range(high)}
    stored[low][:, :, head] = oracle.seen(other, low, "out")[:, :, head]
    holding = {oracle.places.output.format(layer): lambda _, x=x: x.flatten(-2) for layer, x in stored.items()}
    kept = []

    def keep(x):
        kept.append(oracle.split(x, channel).clone())
        return x

    oracle.run(base, holding, {getattr(oracle.places, channel).format(high): keep})
    place = end if channel == "q" else end // (oracle.num_heads // oracle.num_kv_heads)
    hooks = oracle.replacing(high, channel, place, kept[0][:, :, place], slice(None))
    new = oracle.seen(base, high, "out", after=hooks)[:, :, end]

    def change(x):
        x = x.clone()
        x.unflatten(-1, (oracle.num_heads, oracle.head_dim))[:, :, end] = new
        return x

    return oracle.run(base, {oracle.places.output.format(high): change})


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("name", "channel", "direction"),
    [
        ("gpt2", "q", "noise"),
        ("llama", "v", "denoise"),
        ("gpt_neox", "k", "denoise"),
        ("gemma2", "k", "noise"),
    ],
)
@pytest.mark.sampled(2)
def test_a_path_is_what_hooks_make_of_it(name, channel, direction, fresh):
    lm, clean, corrupted, metric, oracle = made(name, fresh)
    base, other = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
    got = path_effect(lm, clean, corrupted, "L0H1", "L1H3", channel, metric, direction=direction)
    want = truth(oracle, base, other, (0, 1), (1, 3), channel) - oracle.run(base)
    changes = torch.from_numpy(got.per_text) * (got.clean - got.corrupted) * (1 if direction == "denoise" else -1)
    assert want.abs().max() > 1e-5
    assert (changes - want).abs().max() <= 1e-8 * max(1.0, float(want.abs().max()))


@pytest.mark.turns(4)
def test_the_previous_token_head_speaks_to_the_induction_head_by_its_keys_alone():
    lm = design.build(
        [[None, design.previous(), None], [design.induction(), None]],
        tokenizer=tiny_tokenizer(special_tokens=False), causal=True,
    )  # fmt: skip

    clean, corrupted, answers = induction_pairs(random.Random(3))

    def effect(sender, receiver, channel):
        return path_effect(lm, clean, corrupted, sender, receiver, channel, answers=answers)

    by_keys = effect("L0H1", "L1H0", "k")
    assert by_keys.value > 0.9 and str(by_keys).startswith("L0H1 -> k of L1H0: +")
    assert abs(effect("L0H1", "L1H0", "q").value) < 0.1 and abs(effect("L0H1", "L1H1", "k").value) < 0.1
    assert abs(effect("L0H0, L0H2", "L1H0", "k").value) < 0.1


@pytest.mark.turns(4)
def test_all_paths_into_a_head_are_the_paths_one_by_one(fresh):
    lm, clean, corrupted, metric, _ = made("llama", fresh)
    told = []
    got = path_effects(
        lm, clean, corrupted, "L1H3", metric=metric, num_tokens=3 * LENGTH, progress=lambda *done: told.append(done)
    )
    heads = [head for head in lm.spec.heads if head.layer == 0]
    assert [(one.senders, one.channel) for one in got] == [((head,), name) for head in heads for name in "qkv"]
    for one in got:
        alone = path_effect(lm, clean, corrupted, one.senders, one.receiver, one.channel, metric)
        assert abs(one.value - alone.value) < 1e-8 * max(1.0, abs(alone.value)), str(one)
    assert len(told) > 1 and told[-1] == (len(heads), len(heads)) and len({one.value for one in got}) == len(got)


def test_several_texts_have_an_interval(fresh):
    lm, *_ = made("gpt2", fresh)
    sides = [{"input_ids": torch.randint(3, 90, (6, LENGTH), generator=fresh)} for _ in range(2)]
    got = path_effect(lm, *sides, "L0", "L1H2", "v", answers=(4, 9))
    assert got.low < got.value < got.high and len(got.senders) == 4


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"channel": "out"}, StatisticError, "channel='out' is unknown: use q, k, v"),
        ({"direction": "up"}, StatisticError, "direction='up' is unknown"),
        ({"sender": "L1H1"}, HeadError, "L1H1 does not run before L1H3"),
        ({"receiver": "L1"}, HeadError, "'L1' is 4 heads: a path ends in one"),
    ],
)
def test_mistakes_are_named(changes, error, message, fresh):
    lm, clean, corrupted, metric, _ = made("gpt2", fresh)
    with pytest.raises(error, match=message):
        path_effect(lm, clean, corrupted, **{"sender": "L0H1", "receiver": "L1H3", "metric": metric, **changes})
