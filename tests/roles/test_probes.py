"""Probes with repeated random tokens: equal to loops over the model's own eager maps; known heads come out as built."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import GPT2Model

import manyheads as mh
from manyheads.corpora import page_texts
from manyheads.errors import HeadError, ModelError, StatisticError
from manyheads.heads import Head
from manyheads.roles import find as finding
from manyheads.roles.probes import Probe, Repeats, ask_probes, copying_scores, probe_repeats, retrieval_scores
from manyheads.roles.probes import all as probing
from manyheads.roles.probes.all import LENGTHS, NEEDLE, NEEDLE_DEPTHS, PROBES, QUESTION
from manyheads.roles.probes.repeats import PLACES, VARIANTS, sample
from tests.models.eager import MAKERS, draw, eager_maps, implementation
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_t5, tiny_tokenizer
from tests.refusals import refuses

SAMPLES = 2
WINDOW = 7  # of gemma2's layers 0 and 2
SMALL = {  # lengths that fit the tiny models, of which no two numbers are the same
    "arena": {"length": 13, "repeats": 2},
    "mlxterp": {"length": 11, "repeats": 2},
    "olsson": {"length": 5, "repeats": 4},
    "olsson-entries": {"length": 6, "repeats": 3},
}


def loaded(name, fresh, special_tokens=None):
    bidirectional = name == "bert" if special_tokens is None else special_tokens
    return mh.load(MAKERS[name](seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=bidirectional))


def probed(lm, *args, **options):
    """The probe, and the ids that the model was shown."""
    seen = []
    hook = lm.model.get_input_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        lm.spec  # noqa: B018  found out by a forward pass, which is no part of the probe
        seen.clear()
        return probe_repeats(lm, *args, samples=SAMPLES, **options), torch.cat(seen)
    finally:
        hook.remove()


def by_loops(maps, visible, targets_of):
    """For every head the mean over rows that see a target, or over all targets, and the even share; heads in order."""
    out = []
    for layer, of_layer in enumerate(maps):
        seen = visible(layer)
        weight, even, rows, pairs = torch.zeros(of_layer.shape[1]), 0.0, 0, 0
        for text in range(SAMPLES):
            for i in range(of_layer.shape[2]):
                targets = [j for j in targets_of(text, i) if seen[i, j]]
                weight = weight + of_layer[text, :, i, targets].sum(-1)
                even += len(targets) / seen[i].sum()
                rows, pairs = rows + bool(targets), pairs + len(targets)
        out.append((weight.double().numpy(), even, rows, pairs))
    return out


def assert_probe(probe, maps, ids, visible, special):
    """All three places, their even shares, counts and controls. `ids`: the repeated texts, then the controls."""
    variant, length = probe.variant, ids.shape[1]

    def earlier(i, text):
        if int(ids[text, i]) in special:
            return []
        return [c for c in range(i) if ids[text, c] == ids[text, i]][-1 if variant.count == "latest" else 0 :]

    for place, by in PLACES.items():
        for kind, texts in (("score", range(SAMPLES)), ("control", range(SAMPLES, 2 * SAMPLES))):
            targets = lambda text, i, by=by: [c + by for c in earlier(i, text) if 0 <= c + by < length]  # noqa: E731
            wanted = by_loops([each[list(texts)] for each in maps], visible, targets)
            got = getattr(probe, place)
            have = got.score if kind == "score" else got.chances["control"]
            count = [pairs if variant.count == "entries" else rows for _, _, rows, pairs in wanted]
            want = np.concatenate([w / max(n, 1) for (w, *_), n in zip(wanted, count, strict=True)])
            seen = np.concatenate([np.full(len(w), n > 0) for (w, *_), n in zip(wanted, count, strict=True)])
            np.testing.assert_allclose(have[seen], want[seen], atol=2e-6, err_msg=f"{place} {kind}")
            assert np.isnan(have[~seen]).all()
        for at, (w, even, _, _) in enumerate(wanted):
            here = slice(at * len(w), (at + 1) * len(w))
            assert (got.num_queries[here] == count[at]).all()
            if count[at]:
                np.testing.assert_allclose(got.chances["uniform"][here], even / count[at])


# ------------------------------------------------------------------------------------------------- against the model

CASES = [*(("gpt2", variant) for variant in SMALL), ("llama", "mlxterp"), ("bert", "arena"), ("bert", "olsson-entries")]


@pytest.mark.thinned
@pytest.mark.parametrize(("name", "variant"), [*CASES, ("gemma2", "arena"), ("gemma2", "olsson")])
def test_every_head_of_every_variant_equals_loops_over_the_models_own_maps(name, variant, fresh):
    lm = loaded(name, fresh)
    with implementation(lm.model, "eager" if name == "gemma2" else None):
        probe, ids = probed(lm, variant, seed=draw(fresh), **SMALL[variant])
    assert probe.variant.count == VARIANTS[variant].count and probe.num_samples == SAMPLES
    assert len(ids) == 2 * SAMPLES and len(probe.after) == len(lm.spec.heads)
    n = ids.shape[1]
    away = np.arange(n)[:, None] - np.arange(n)[None]

    def visible(layer):
        if name == "bert":
            return np.ones((n, n), bool)
        return (away >= 0) & (away < (WINDOW if name == "gemma2" and layer % 2 == 0 else n))

    maps = eager_maps(lm.model, input_ids=ids)
    assert_probe(probe, maps, ids, visible, set(lm.tokenizer.all_special_ids))
    assert probe.causal == (frozenset() if name == "bert" else frozenset(lm.spec.heads))


def test_both_stacks_of_an_encoder_decoder_are_probed_the_decoder_one_place_later(fresh):
    lm = mh.load(tiny_t5(seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))
    seed = draw(fresh)
    probe = probe_repeats(lm, "mlxterp", length=6, samples=SAMPLES, seed=seed)
    drawn = sample(lm, probe.variant, SAMPLES, seed, (0.1, 0.9)).tokens.ids[:SAMPLES]
    shifted = torch.cat([torch.zeros(SAMPLES, 1, dtype=torch.long), drawn[:, :-1]], 1)
    with implementation(lm.model, "eager"), torch.no_grad():
        own = lm.model(input_ids=drawn, decoder_input_ids=shifted, output_attentions=True)
    stacks = {"encoder": (own.encoder_attentions, range(6, 12)), "decoder": (own.decoder_attentions, range(7, 12))}
    for stack, (maps, rows) in stacks.items():
        for layer, weights in enumerate(maps):
            want = torch.stack([weights[:, :, i, i - 5] for i in rows]).mean((0, 1))
            got = [probe.after[f"{stack}:L{layer}H{head}"].score for head in range(weights.shape[1])]
            np.testing.assert_allclose(got, want, atol=1e-6)
    assert {head.stack for head in probe.causal} == {"decoder"}


# ------------------------------------------------------------------------------------------------------- as was built


class Built(nn.Module):
    """Four causal heads over one-hot tokens: after a copy, on copies, before copies, and 10 places back whatever."""

    def __init__(self, vocab_size: int = 60, back: int = 10) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocab_size, hidden_size=vocab_size)
        self.back, self.scale = back, nn.Parameter(torch.tensor(60.0))

    def forward(self, input_ids):
        tokens = nn.functional.one_hot(input_ids, self.config.vocab_size).float()
        place = torch.eye(input_ids.shape[1], self.config.vocab_size).expand_as(tokens)
        keys = [tokens.roll(1, 1), tokens, tokens.roll(-1, 1), place]
        keys[0][:, 0] = keys[2][:, -1] = 0
        queries = [tokens] * 3 + [place.roll(-self.back, 2)]
        q, k = torch.stack(queries, 1) * self.scale, torch.stack(keys, 1)
        return nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, scale=1.0)


def test_heads_that_were_built_for_it_are_found_and_a_fixed_distance_is_told_by_the_control(fresh):
    probe = probe_repeats(mh.load(Built().eval()), "mlxterp", length=11, samples=4, seed=draw(fresh))
    found = {place: getattr(probe, place) for place in PLACES}
    assert found["after"]["L0H0"].score == pytest.approx(1, abs=1e-5)
    assert found["same"]["L0H1"].score == pytest.approx(0.5, abs=1e-5)  # the other half on the row itself
    assert found["before"]["L0H2"].score == pytest.approx(0.5, abs=0.03)  # ... on what is before the row
    assert found["after"]["L0H3"].score == pytest.approx(1, abs=1e-5)
    assert found["after"]["L0H3"].chance == found["after"].chances["control"][3] == pytest.approx(1, abs=1e-5)
    assert found["after"].chances["control"][0] < 0.3  # by chance a token comes again
    assert str(found["after"].top(1)[0].head) == "L0H0" and probe.name("L0H0") == "induction"
    assert found["after"]["L0H0"].num_queries == 4 * 11


def test_with_four_repeats_latest_sum_and_entries_tell_different_things(fresh):
    lm = mh.load(Built(back=6).eval())
    how = {count: Repeats(7, 4, False, count) for count in ("latest", "sum", "entries")}
    got = {count: probe_repeats(lm, each, samples=2, seed=draw(fresh)).after for count, each in how.items()}
    assert got["sum"]["L0H0"].score == pytest.approx(1, abs=1e-5)
    assert got["entries"]["L0H0"].score == pytest.approx(1 / 2, abs=1e-5)  # 1 + 1 + 1 over 1 + 2 + 3 copies
    assert got["latest"]["L0H0"].score == pytest.approx((1 + 1 / 2 + 1 / 3) / 3, abs=1e-5)
    assert [each["L0H0"].num_queries for each in got.values()] == [2 * 21, 2 * 21, 2 * 7 * 6]


def test_an_encoders_heads_are_not_called_induction_and_its_known_duplicate_heads_come_out(minilm):
    probe = probe_repeats(minilm, samples=6)
    assert not probe.causal and "not induction" in probe.name("L2H9") and "not causal" in probe.notes
    assert [str(each.head) for each in probe.same.top(2)] == ["L2H9", "L1H1"]
    best = probe.same["L2H9"]
    assert best.low <= best.score <= best.high and best.score > 0.4 > 10 * best.chance
    assert max(probe.after.score) < 0.05
    assert "the start token is [CLS]" in probe.notes["tokens"] and "50 random tokens 2 times" in probe.notes["probe"]


# ---------------------------------------------------------------------------------------------------------- the texts


def test_texts_repeat_controls_do_not_and_neither_has_special_common_or_rare_tokens(fresh):
    lm, seed = loaded("bert", fresh), draw(fresh)
    drawn = sample(lm, Repeats(9, 3, True, "sum"), 4, seed, (0.2, 0.7))
    ids = drawn.tokens.ids
    assert ids.shape == (8, 29) and drawn.tokens.special[:, [0, -1]].all() and drawn.tokens.special.sum() == 16
    assert (ids[:, 0] == lm.tokenizer.cls_token_id).all() and (ids[:, -1] == lm.tokenizer.sep_token_id).all()
    blocks = ids[:, 1:-1].unflatten(1, (3, 9))
    assert all(len(set(block.tolist())) == 9 for text in blocks for block in text)
    assert (blocks[:4] == blocks[:4, :1]).all() and not (blocks[4:, 0] == blocks[4:, 1]).all(-1).any()
    size = len(lm.tokenizer)
    assert int(0.2 * size) <= blocks.min() and blocks.max() < int(0.7 * size)
    again = sample(lm, Repeats(9, 3, True, "sum"), 4, seed, (0.2, 0.7))
    assert (again.tokens.ids == ids).all() and again.seeds == drawn.seeds and len(set(drawn.seeds)) == 4
    assert not (sample(lm, Repeats(9, 3, True, "sum"), 4, seed + 1, (0.2, 0.7)).tokens.ids == ids).all()


def test_special_ids_in_the_middle_of_the_vocabulary_are_not_drawn(fresh):
    lm = loaded("bert", fresh, special_tokens=True)
    ids = sample(lm, Repeats(20, 2, False, "sum"), 40, draw(fresh), (0.0, 0.2)).tokens.ids
    assert not set(ids.unique().tolist()) & set(lm.tokenizer.all_special_ids)
    assert ids.unique().tolist()[0] == 5  # the first word


def test_a_start_token_that_there_is_not_is_said(fresh):
    lm = loaded("gpt2", fresh)
    probe, ids = probed(lm, length=8)
    assert "no start token: this tokenizer has none" in probe.notes["tokens"] and ids.shape[1] == 16
    lm.tokenizer.bos_token = "the"
    probe, ids = probed(lm, length=8)
    assert "the start token is the" in probe.notes["tokens"] and ids.shape[1] == 17
    assert probe_repeats(lm, "mlxterp", length=8, samples=1).notes["tokens"].endswith("no special ones")


def test_intervals_narrow_with_texts_and_the_same_seed_gives_the_same(fresh):
    lm, seed = loaded("gpt2", fresh), draw(fresh)
    few, many = (probe_repeats(lm, length=10, samples=n, seed=seed).same for n in (6, 60))
    width = [float(np.mean(each.high - each.low)) for each in (few, many)]
    assert width[1] < 0.6 * width[0] and (many.low <= many.score).all() and (many.score <= many.high).all()
    again = probe_repeats(lm, length=10, samples=6, seed=seed).same
    assert (again.score == few.score).all() and (again.low == few.low).all()


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"variant": "olson"}, r"no variant 'olson' of this probe: did you mean olsson"),
        ({"length": 1}, r"length=1, repeats=2: the probe needs at least 2 tokens"),
        ({"repeats": 1}, r"repeats=1: the probe needs .* at least 2 times"),
        ({"samples": 0}, r"samples=0: draw at least one text"),
        ({"between": (0.9, 0.1)}, r"between=\(0.9, 0.1\): give two shares of the vocabulary, as \(0.1, 0.9\)"),
        (
            {"between": (0.5, 0.6)},
            r"length=50 different tokens cannot be drawn: .* has \d+ ordinary ones .*wider between",
        ),
        ({"length": 49}, r"49 tokens 2 times are 98 positions, but GPT2LMHeadModel has 96: give a smaller length="),
    ],
    ids=str,
)
def test_what_cannot_be_probed_says_why(options, said, fresh):
    refuses(StatisticError, said, probe_repeats, loaded("gpt2", fresh), **options)


def test_ways_to_count_models_without_a_vocabulary_and_heads_that_there_are_not_are_refused(fresh):
    message = r"count='all' is not a way to count earlier copies: use one of latest, sum, entries"
    refuses(StatisticError, message, Repeats, 5, 2, True, "all")
    lm = mh.load(Built().eval())
    lm.model.config.vocab_size = None
    object.__setattr__(lm, "spec", SimpleNamespace(vocab_size=None))
    refuses(ModelError, r"Built has no vocabulary to draw random tokens from: .* models of text", probe_repeats, lm)
    probe = probe_repeats(loaded("gpt2", fresh), length=5, samples=5)
    assert probe.after[Head("", 2, 3)] == probe.after["L2H3"]
    with pytest.raises(HeadError, match=r"there is no head L3H0 here: there are L0H0 to L2H3"):
        probe.after["L3H0"]


# ============================================================================================== probes as part of roles
# Probes as part of roles: their numbers are the direct functions' own, and what cannot be asked is said.

POSITIONS = 230  # enough for the shortest text of retrieval, too few for the next
WHATEVER = partial(retrieval_scores, min_recall=-1.0)  # a random model answers with anything: every trial counts
TEXTS = page_texts()[:4]


def gpt2(**sizes):
    return mh.load(tiny_gpt2(**sizes), tokenizer=tiny_tokenizer(special_tokens=False))


@pytest.fixture(scope="module")
def lm():
    return gpt2(n_positions=POSITIONS, n_layer=2)


@pytest.fixture(scope="module")
def roles(lm):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "retrieval_scores", WHATEVER)
        return mh.find_roles(lm, TEXTS, examples=0, probes=True)


@pytest.fixture(scope="module")
def plain(lm):
    return mh.find_roles(lm, TEXTS, examples=0)


@pytest.fixture(scope="module")
def direct(lm):
    """Every probe's scores, asked without roles."""
    repeats = probe_repeats(lm)
    needles = WHATEVER(lm, page_texts(), NEEDLE, QUESTION, lengths=LENGTHS[:1], depths=NEEDLE_DEPTHS)
    return {
        "random repeats": repeats.after, "random repeats, offset 0": repeats.same,
        "random repeats, offset -1": repeats.before, "retrieval": needles.scores, "copying": copying_scores(lm),
    }  # fmt: skip


@pytest.mark.slow
def test_every_number_is_that_of_the_function_itself(roles, direct):
    assert set(roles.probes) == set(direct) == set(PROBES)
    for name, wanted in direct.items():
        probe = roles.probes[name]
        assert np.array_equal(probe.scores.score, wanted.score) and np.ptp(wanted.score) > 0
        assert [each.head for each in probe.top()] == [each.head for each in wanted.top(len(wanted.heads))]
        if name == "copying":
            assert np.array_equal(probe.spread, wanted.spread) and (probe.scores.chance == 0).all()
            assert probe.z(probe.top(1)[0]) == pytest.approx(wanted.top(1)[0].z)
            continue
        for part in ("chance", "low", "high", "num_queries"):
            assert np.array_equal(getattr(probe.scores, part), getattr(wanted, part), equal_nan=True), (name, part)


def test_each_probe_says_its_variant(roles):
    said = {name: probe.says for name, probe in roles.probes.items()}
    assert "ARENA" in said["random repeats"] and "no start token" in said["random repeats"]
    assert "the last norm" in said["copying"] and "3 of 3 trials counted" in said["retrieval"]


def test_no_label_rests_on_a_probe_and_the_notes_say_so(plain, roles):
    assert not plain.probes and "probes" not in plain.notes
    assert [each.name for each in plain] == [each.name for each in roles]
    assert "labels rest on natural text" in roles.notes["probes"] and not set(PROBES) & set(roles.questions)


def test_a_probe_is_asked_by_its_name_or_question_and_roles_go_before_it(plain, roles):
    assert roles.role_named("random repeats") == "random repeats"
    assert roles.role_named("raises the logit") == "copying"
    assert roles.role_named("offset -1") == "induction, offset -1"
    with pytest.raises(StatisticError, match=r"'copying' is a probe, and has no claims: .*probes\['copying'\].top\(\)"):
        roles.ranked("copying")
    refuses(StatisticError, "'copying' is a probe, which was not run: give probes=True", plain.role_named, "copying")


def test_the_table_has_a_row_a_head_and_probe_below_the_claims(roles, direct, tmp_path):
    roles.save(tmp_path / "roles.parquet")
    frame = pd.read_parquet(tmp_path / "roles.parquet")
    probes, claims = frame[frame["kind"] == "probe"], frame[frame["kind"] == "claim"]
    assert len(probes) == len(roles) * len(PROBES) and len(claims) == len(roles) * len(roles.questions)
    assert len(frame[frame["holds"]]) == claims["holds"].sum() and probes["holds"].isna().all()
    assert not claims["holds"].isna().any() and not probes["named"].any()
    assert str(frame["num_texts"].dtype) == "Int64" and probes["num_texts"].isna().all()
    assert pd.api.types.is_integer_dtype(frame["num_queries"]) and not claims["num_texts"].isna().any()
    mine = probes[probes["role"] == "random repeats"]
    assert list(mine["score"]) == list(direct["random repeats"].score)
    assert list(mine["chance_control"]) == list(direct["random repeats"].chances["control"])
    assert list(probes[probes["role"] == "copying"]["also_z"]) == pytest.approx(list(direct["copying"].z))


def test_what_cannot_be_asked_is_said_with_the_reason():
    bert = mh.load(tiny_bert(max_position_embeddings=128), tokenizer=tiny_tokenizer())
    found = ask_probes(bert)
    assert found["copying"].says == found["retrieval"].says == f"{bert.name} is not causal"
    assert found["copying"].scores is None and found["copying"].top() == [] and found["copying"].rows() == []
    assert found["random repeats"].scores is not None
    assert "'random repeats' is not induction" in found["random repeats"].says
    short = ask_probes(gpt2())  # 96 positions
    assert short["copying"].scores is not None
    assert "are 100 positions, but GPT2LMHeadModel has 96" in short["random repeats, offset -1"].says
    assert "GPT2LMHeadModel has 96 positions" in short["retrieval"].says and "128 tokens" in short["retrieval"].says
    bare = ask_probes(gpt2(cls=GPT2Model, n_positions=POSITIONS))
    assert "unembedding" in bare["copying"].says and "cannot write" in bare["retrieval"].says


def test_an_exception_of_a_model_ends_no_run(lm, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("of its own")

    monkeypatch.setattr(probing, "copying_scores", broken)
    monkeypatch.setattr(probing, "retrieval_scores", broken)
    told = []
    found = ask_probes(lm, lambda done, total: told.append((done, total)))
    assert found["copying"].says == "ZeroDivisionError: of its own" and found["random repeats"].scores is not None
    assert told[0][0] == 0 and told == sorted(told) and told[-1][0] == told[-1][1]


def test_of_several_processes_the_first_alone_is_probed(lm, monkeypatch):
    asked = []
    monkeypatch.setattr(finding, "ask_probes", lambda *_: asked.append(1) or {"copying": Probe("copying", "not here")})
    monkeypatch.setattr(finding, "own_rank", lambda: 1)
    assert not mh.find_roles(lm, TEXTS[:2], probes=True, examples=0).probes and not asked
    monkeypatch.setattr(finding, "own_rank", lambda: 0)
    assert mh.find_roles(lm, TEXTS[:2], probes=True, examples=0).probes and asked == [1]


def test_rows_are_plain_numbers_and_words(roles):
    for probe in roles.probes.values():
        assert json.loads(json.dumps(probe.rows()[:2]))[0]["head"] == "L0H0"
