"""What fools a labeller does not fool this one: each trap as a table made to order, and what comes out of it.

The tables are made of per-text numbers drawn afresh, so that halves, replicates and intervals are real ones.
"""

from __future__ import annotations

from dataclasses import replace
from math import erfc, gamma, isnan

import numpy as np
import pandas as pd
import pytest
import torch

import manyheads as mh
from manyheads.errors import FileAccessError, HeadError, StatisticError, TextError
from manyheads.heads import Head
from manyheads.roles import MAX_FALSE, RULES, SINK_RULE, Roles
from manyheads.roles.chance import adjusted, as_normal
from manyheads.roles.claims import CHOOSE, Half, claims_of, control
from manyheads.roles.find import check_resume, fixed_questions
from manyheads.roles.labels import label_heads
from manyheads.roles.results import role_named
from manyheads.roles.rules import AHEAD, CONTENT, LEFT, NEEDED, POSITIONAL, UNASKED, coreference_rules, syntax_rules
from manyheads.spec import Site
from manyheads.statistics import HeadTable, Statistic, Sums
from manyheads.texts import Sinks, text_seed
from tests.figures.test_roles import roles_of
from tests.refusals import refuses

HEADS, TEXTS, CASES = 7, 400, 3
DET = syntax_rules(["det"])
UP, DOWN = DET


def statistic(name):
    return Statistic(
        name=name,
        unit="share",
        range=(0.0, 1.0),
        source="made",
        meaning=name,
        needs=lambda _: (),
        finish=lambda facts: None,
    )


def site(heads):
    return Site("", 0, "layer", heads, heads, 4, 4, False)


def made(rng, scores, heads=HEADS, texts=TEXTS, cases=CASES):
    """A table in which each head's answers are right with the probability given: `scores[name]`, one or one a head."""
    names = list(scores)
    chances = np.array([np.broadcast_to(scores[name], heads) for name in names]).T  # head statistic
    hits = rng.binomial(cases, np.broadcast_to(chances, (texts, *chances.shape)))
    num, den = torch.from_numpy(hits.astype(float)), torch.full(hits.shape, float(cases), dtype=torch.float64)
    seeds = [text_seed(f"{rng.integers(1 << 60)} {text}") for text in range(texts)]
    sums = Sums.of(num, den, seeds, texts * cases)
    return HeadTable((site(heads),), tuple(statistic(name) for name in names), sums, Sinks(), {"model": "made"})


def accuracies(asked, /, **given):
    """What every column of a rule shows where nothing else is said: a head that knows nothing."""
    flat = dict.fromkeys(asked.needed, 0.1)
    return flat | {f"{asked.statistic}.{name}" if name else asked.statistic: value for name, value in given.items()}


def found(rng, asked, /, **given):
    extra = {"": given.pop("score", 0.5), **given}
    return control(claims_of(made(rng, accuracies(asked, **extra)), [asked]))


@pytest.fixture
def rng(fresh):
    return np.random.default_rng(int(torch.randint(1 << 31, (1,), generator=fresh)))


GOOD = {"given": 0.8, "mode": 0.5, "relabelled": 0.6, "uniform": 0.1, "off_mode": 0.6, "off_rule": 0.5, "rule": 0.6}


def test_a_head_that_beats_every_chance_level_and_guess_holds(rng):
    claims = found(rng, UP, **GOOD)
    assert all(claim.holds for (claim,) in claims)
    (claim,) = claims[0]
    assert claim.low < claim.tested < claim.high and abs(claim.tested - 0.8) < 0.08
    assert claim.q_value < 1e-3 and claim.num_queries > 400
    assert claim.chance == max(claim.chances.values()) and set(claim.chances) == {"relabelled", "uniform"}


@pytest.mark.parametrize(("why", "given"), [
    ("the best fixed offset does as well", {"mode": 0.78}),
    ("position and part of speech do better", {"relabelled": 0.82}),  # at 0.8 one draw in 500 has a head above them
    ("a positional head: right only where the offset is", {"off_mode": 0.02}),
    ("a residual of a sink: special tokens win nearly always", {"score": 0.03}),
    ("it does many other things", {"given": 0.25, "mode": 0.1, "relabelled": 0.1}),
])  # fmt: skip
def test_each_trap_alone_takes_the_claim_away(rng, why, given):
    assert not any(claim.holds for (claim,) in found(rng, UP, **{**GOOD, **given})), why


def test_under_a_hundred_cases_no_accuracy_is_a_label(rng):
    few = made(rng, accuracies(UP, **{"": 0.5, **GOOD}), texts=30)
    assert not any(claim.holds for (claim,) in control(claims_of(few, [UP])))


def test_a_text_said_many_times_is_one_text(rng):
    """And so are windows of one: what a single author does, however long, is no rule."""
    table = made(rng, accuracies(UP, **{"": 0.5, **GOOD}))
    few = [text_seed(f"{rng.integers(1 << 60)}") & ~1 | at % 2 for at in range(8)]  # four in each half
    num, den = (
        torch.from_numpy(side[..., 0].sum(0)[None].repeat(300, 0)) / 300 for side in (table.sums.num, table.sums.den)
    )
    repeated = replace(table, sums=Sums.of(num, den, [few[at % 8] for at in range(300)], 900))
    for (claim,) in control(claims_of(repeated, [UP])):
        assert claim.num_queries > 100 and claim.effective_texts < 10 and not claim.holds


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_the_number_of_texts_is_a_whole_number_in_every_table(kind, rng, tmp_path):
    """Those of the reporting half that hold a case; of how many of equal length they are worth is another number."""
    seeds = [text_seed(f"{rng.integers(1 << 60)} {text}") for text in range(TEXTS)]
    cases = torch.from_numpy(rng.integers(0, 4, TEXTS).astype(float))
    den = cases[:, None, None].expand(-1, HEADS, len(UP.needed)).clone()
    table = replace(made(rng, accuracies(UP)), sums=Sums.of(den * 0.3, den, seeds, TEXTS))
    found = Roles(
        roles_of(1, HEADS).labels, tuple(map(tuple, control(claims_of(table, [UP])))), (table,), {"model": "made"}
    )
    count = sum(seed & 1 == 1 and float(held) > 0 for seed, held in zip(seeds, cases, strict=True))
    found.save(tmp_path / f"claims.{kind}")
    frame = getattr(pd, f"read_{kind}")(tmp_path / f"claims.{kind}")
    assert pd.api.types.is_integer_dtype(frame["num_texts"]) and set(frame["num_texts"]) == {count}
    assert all(type(claim.num_texts) is int for (claim,) in found.claims)
    assert (frame["effective_texts"] <= count).all() and (frame["effective_texts"] > count / 2).all()


def test_texts_of_unlike_length_count_for_fewer(rng):
    """Kish: a hundred cases in one text and one in each of a hundred others are worth four texts."""
    sizes = np.array([100.0] + [1.0] * 100)
    den = torch.from_numpy(sizes)[:, None, None].expand(-1, HEADS, len(UP.needed))
    worths = []
    for _ in range(15):  # each rests on the replicates' weights of one long text, which vary by a sixth
        seeds = [text_seed(f"{rng.integers(1 << 60)}") & ~1 for _ in sizes]
        table = replace(made(rng, accuracies(UP)), sums=Sums.of(den * 0.5, den, seeds, 200))
        worths.append(Half(table, CHOOSE).effective_texts(UP.tested)[0])
    assert np.median(worths) == pytest.approx(200**2 / (100**2 + 100), rel=0.3)


@pytest.mark.parametrize("freedom", [2.0, 9.0, 40.0])
@pytest.mark.parametrize("t", [-1.3, 0.4, 2.2, 4.1])
def test_a_value_of_students_t_is_as_rare_as_its_normal_twin(freedom, t):
    x = np.linspace(t, t + 4_000, 2_000_001)
    density = (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    density *= gamma((freedom + 1) / 2) / (gamma(freedom / 2) * np.sqrt(freedom * np.pi))
    assert 0.5 * erfc(as_normal(t, freedom) / np.sqrt(2)) == pytest.approx(np.trapezoid(density, x), rel=0.08, abs=1e-4)


def test_a_head_that_is_right_every_time_is_no_chance_and_what_is_above_it_is_told_on_the_same_texts(rng):
    # Texts of equal length leave a perfect head without any spread.
    perfect = {"": 1.0, **GOOD, "given": 1.0, "relabelled": 0.0, "uniform": 0.0}
    for (claim,) in control(claims_of(made(rng, accuracies(UP, **perfect)), [UP])):
        assert claim.p_value == 0.0 and claim.holds and np.isnan(claim.over_low), "no spread, no interval"
    (claim,) = found(rng, UP, **GOOD)[0]
    assert 0 < claim.over_low < claim.tested - claim.chance < claim.over_high


def test_both_directions_are_asked_apart(rng):
    scores = accuracies(UP, **{"": 0.7, **GOOD}) | accuracies(DOWN, **{"": 0.1, "given": 0.1, "mode": 0.5})
    for up, down in control(claims_of(made(rng, scores), DET)):
        assert up.holds and not down.holds
        assert up.role == "det: dependent to governor" and down.role == "det: governor to dependent"


def test_what_is_reported_is_not_what_was_chosen_by(rng):
    """A hundred heads that are all alike: the luckiest of the choosing half is an ordinary one on the other."""
    table = made(rng, accuracies(UP, **{"": 0.5, **GOOD}), heads=100, texts=300, cases=1)
    claims = [claim for (claim,) in control(claims_of(table, [UP]))]
    best = max(claims, key=lambda claim: claim.chosen_excess)
    flattered = max(claims, key=lambda claim: claim.tested)
    assert flattered.tested > 0.84, "the best of a hundred on its own data flatters itself"
    assert abs(np.mean([claim.tested for claim in claims]) - 0.8) < 0.03
    ranks = np.argsort([claim.chosen_excess for claim in claims])[::-1][:20]
    assert abs(np.mean([claims[at].tested for at in ranks]) - 0.8) < 0.04 and best.tested <= flattered.tested


@pytest.mark.parametrize(("count", "most"), [(3, 1), pytest.param(20, 3, marks=pytest.mark.slow)])
def test_chance_alone_makes_no_claim_however_many_are_tried(count, most, rng):
    """Scores that equal chance: of thousands of tests the bare p-values call some, the adjusted ones next to none."""
    scores = accuracies(UP, **{"": 0.5, **GOOD, "given": 0.6, "mode": 0.4})
    draws = [[claim for (claim,) in control(claims_of(made(rng, scores, heads=500), [UP]))] for _ in range(count)]
    assert all(sum(claim.p_value < 0.05 for claim in claims) > 5 for claims in draws)
    # Heads are drawn apart, so of 500 any passes in one draw of 136 (0.05 / (1 + 1/2 + ... + 1/500)): more than one of
    # three, and more than three of twenty, are less than a chance in 5,000.
    assert sum(any(claim.q_value <= MAX_FALSE for claim in claims) for claims in draws) <= most


@pytest.mark.slow  # 800 heads; the adjusted ones of 500 are quick
def test_p_values_are_even_where_there_is_nothing_to_find(rng):
    scores = accuracies(UP, **{"": 0.5, **GOOD, "given": 0.6})
    p_values = np.array([claim.p_value for (claim,) in claims_of(made(rng, scores, heads=800), [UP])])
    assert abs((p_values < 0.5).mean() - 0.5) < 0.08
    assert abs((p_values < 0.1).mean() - 0.1) < 0.05


def test_adjusted_p_values_are_benjamini_and_yekutielis(rng):
    p_values = rng.random(37) ** 4
    order, count = np.argsort(p_values), 37
    factor = sum(1 / i for i in range(1, count + 1))
    plain = [p_values[at] * count * factor / (rank + 1) for rank, at in enumerate(order)]
    want = np.empty(count)
    for rank, at in enumerate(order):
        want[at] = min(1.0, min(plain[rank:]))
    np.testing.assert_allclose(adjusted(p_values.tolist()), want)
    assert adjusted([]) == []
    factor = 0.0  # rounded after each addition, which `sum` no longer does from Python 3.12 on
    for rank in range(1, 338):
        factor += 1 / rank
    assert adjusted([1e-9] * 337) == [1e-9 * factor * 337 / 337] * 337  # to the last bit, on every Python
    many = adjusted([1e-9] * 5_000)
    assert many[0] == pytest.approx(1e-9 * sum(1 / i for i in range(1, 5_001)), rel=1e-6)


def test_no_case_is_no_test(rng):
    """A treebank without passives must not make the others' q-values worse."""
    scores = accuracies(UP, **{"": 0.5, **GOOD}) | accuracies(coreference_rules()[0])
    table = made(rng, scores)
    empty = [table.names.index(name) for name in coreference_rules()[0].needed]
    table.sums.den[:, :, empty] = 0
    table.sums.num[:, :, empty] = 0
    both = control(claims_of(table, [UP, coreference_rules()[0]]))
    alone = control(claims_of(table, [UP]))
    assert [mine[0].q_value for mine in both] == [mine[0].q_value for mine in alone]
    assert all(mine[0].q_value < 1e-2 and mine[1].q_value == 1.0 and not mine[1].holds for mine in both)


def test_a_head_is_named_after_the_claim_furthest_above_chance_and_the_sink_yields_to_all(rng):
    rules = (*RULES, SINK_RULE, *DET)
    # So far above the relabelled text that the claim holds among those of all rules and heads, whatever is drawn.
    scores = dict.fromkeys(NEEDED, 0.05) | accuracies(DOWN)
    scores |= accuracies(UP, **{"": 0.5, **GOOD, "relabelled": 0.3})
    scores |= {"sink_mass": 0.8, "sink_mass.uniform": 0.1, "entropy.uniform": 0.9}
    scores["previous_mass"] = np.where(np.arange(HEADS) == 2, 0.9, 0.05)
    scores["det.to_governor.given"] = np.where(np.arange(HEADS) == 4, 0.8, 0.05)
    table = made(rng, scores)
    named = [each.name for each in label_heads(table, rules, control(claims_of(table, rules)))]
    want = ["sink "] * HEADS
    want[2], want[4] = "previous token", "det: dependent to governor"
    assert [each if not each.startswith("sink") else "sink " for each in named] == want


def test_heads_are_ranked_by_the_choosing_half(rng):
    scores = accuracies(UP, **{"": 0.5, **GOOD, "given": np.linspace(0.3, 0.9, HEADS)})
    table = made(rng, scores)
    claims = control(claims_of(table, [UP]))
    roles = Roles((), tuple(map(tuple, claims)), (table,), {})
    ranked = roles.ranked(UP.role)
    assert [claim.chosen_excess for claim in ranked] == sorted((c.chosen_excess for c in ranked), reverse=True)
    assert ranked[0].head == Head("", 0, HEADS - 1)
    holding = [bool(holds) for holds in rng.permutation([True] * 2 + [False] * (HEADS - 2))]
    for number, holds in enumerate(holding):  # whatever its score: one that does not hold stands behind
        claims[number] = (replace(claims[number][0], holds=holds),)
    ranked = Roles((), tuple(map(tuple, claims)), (table,), {}).ranked(UP.role)
    assert [claim.holds for claim in ranked] == [True] * 2 + [False] * (HEADS - 2)
    for part in (ranked[:2], ranked[2:]):
        assert [claim.chosen_excess for claim in part] == sorted((c.chosen_excess for c in part), reverse=True)
    message = r"no head was asked for 'dat: dependent': did you mean 'det: dependent to governor'"
    refuses(ValueError, message, roles.ranked, "dat: dependent")
    refuses(ValueError, "no head was asked for 'zebra': 1 other question was, as 'det: dep", roles.ranked, "zebra")


# ============================================================================================================ questions
# What a question is called, which ones a model can be asked at all, and what tables say of every answer.

NAMES = {f"{name}: {way}": f"Which {way} {name}?" for name in ("obj", "iobj", "ccomp") for way in ("up", "down")}


def test_a_question_is_named_by_a_part_and_all_that_it_may_mean_are_listed():
    assert role_named("up iobj", NAMES, {}) == "iobj: up"
    with pytest.raises(StatisticError, match="may mean several roles: did you mean " + ", ".join(map(repr, NAMES))):
        role_named("o", NAMES, {})
    refuses(StatisticError, "give probes=True", role_named, "copying", NAMES, {})
    assert role_named("copying", NAMES, {"copying": "Which copies?"}) == "copying"


@pytest.mark.parametrize("listed", ["to comma", "to_comma"])
@pytest.mark.parametrize("asked", ["to comma", "to_comma", "To_Comma"])
def test_a_pattern_is_asked_by_its_functions_name_and_as_it_is_listed(listed, asked):
    assert role_named(asked, {**NAMES, listed: "Which?", "to comma or stop": "Which?"}, {}) == listed


def test_what_is_asked_of_any_text_is_known_before_one_is_read():
    known = fixed_questions(["mine"], passages=False)
    assert {"previous token", "sink", "first token", "mine"} <= known.keys() and "coreference" not in known
    assert "coreference" in fixed_questions([], passages=True)


def unasked(rules, causal):
    nothing = float("nan")
    found = roles_of(rules=rules, score=nothing, given=None, num_queries=0, holds=False)
    sites = tuple(replace(site, causal=causal) for site in found.tables[0].sites)
    return replace(found, tables=(replace(found.tables[0], sites=sites), found.tables[1]))


def test_a_causal_head_is_not_asked_what_comes_later():
    previous, following = RULES[:2]
    rules = (previous, following, *syntax_rules(["det"]), coreference_rules()[0])
    whys = [UNASKED, AHEAD, AHEAD, AHEAD, UNASKED]
    assert list(unasked(rules, True).unanswerable.values()) == whys
    found = unasked(rules, False)
    assert set(found.unanswerable.values()) == {UNASKED} and not found.answerable and found.num_tried == 0
    some = roles_of(rules=rules, num_queries=7)
    assert not some.unanswerable and some.num_tried == len(rules) * 6


def test_a_heads_label_is_found_by_its_name_too():
    found = roles_of(2, 3)
    assert found["L1H2"] is found[5] is found[Head("", 1, 2)]
    with pytest.raises(HeadError, match="there is no head L9H9 here, only L0H0 to L1H2"):
        found["L9H9"]
    with pytest.raises(HeadError, match="L2-9"):
        found["L2-9"]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_every_row_of_a_table_says_that_effect_was_not_measured(kind, tmp_path):
    found = roles_of(1, 2)
    found.save(tmp_path / f"t.{kind}")
    frame = getattr(pd, f"read_{kind}")(tmp_path / f"t.{kind}")
    assert set(frame["effect"]) == {"not measured"} and len(frame) == 2 * len(found.questions)
    if kind == "parquet":
        assert frame.attrs["notes"] == found.notes


def test_no_texts_are_said(minilm):
    message = r"texts=None: give a text, a list of texts, or a corpus \(mh\.open_corpus\)\.$"
    refuses(TextError, message, mh.find_roles, minilm, None)


def test_a_folder_with_other_files_is_not_gone_on_with(tmp_path):
    check_resume(None)
    check_resume(tmp_path)
    for name in ("texts", "passages", "elsewhere"):
        (tmp_path / name).mkdir()
    check_resume(tmp_path)
    (tmp_path / "notes.txt").touch()
    refuses(FileAccessError, r"holds notes.txt, which is not part of such a run", check_resume, tmp_path)
    refuses(FileAccessError, "is a file: name a folder", check_resume, tmp_path / "notes.txt")


def test_questions_are_known_before_the_long_reading(minilm, monkeypatch):
    monkeypatch.setattr("manyheads.measurement.corpus_run.run.Worker.measure", lambda *_: pytest.fail("read"))

    def refuse(questions):
        assert {"previous token", "mine"} <= questions.keys()
        raise StatisticError("nobody asks that")

    with pytest.raises(StatisticError, match="nobody asks that"):
        mh.find_roles(minilm, ["a cat sat"], patterns={"mine": len}, on_questions=refuse)


def test_interval_of_a_share_of_the_evenest_is_that_of_texts_drawn_again(rng):
    """Of texts of 5 to 300 tokens: nats grow with a text's length, and the share of the evenest does not."""
    sizes = rng.integers(5, 300, TEXTS)
    even = np.log(sizes)[:, None] * sizes[:, None] * np.ones(HEADS)
    nats = even * np.clip(rng.normal(0.9, 0.03, (TEXTS, HEADS)), 0, 1)
    seeds = [text_seed(f"{rng.integers(1 << 60)} {text}") for text in range(TEXTS)]
    num = torch.from_numpy(np.stack([nats, even], -1))
    den = torch.from_numpy(np.broadcast_to(sizes[:, None, None], num.shape).astype(float))
    sums = Sums.of(num, den, seeds, int(sizes.sum()))
    table = HeadTable((site(HEADS),), (statistic("nats"), statistic("even")), sums, Sinks(), {"model": "made"})
    half = Half(table, 1)
    low, high = half.ratio_interval("nats", "even")
    ours = [text for text, seed in enumerate(seeds) if seed % 2 == 1]
    if not np.allclose(half.value("nats"), nats[ours].sum(0) / sizes[ours].sum()):
        ours = [text for text in range(TEXTS) if text not in ours]
    drawn = rng.choice(ours, (2_000, len(ours)))
    shares = nats[drawn].sum(1) / even[drawn].sum(1)
    assert np.allclose(half.value("nats") / half.value("even"), nats[ours].sum(0) / even[ours].sum(0))
    width = np.diff(np.quantile(shares, [0.025, 0.975], 0), axis=0)[0]
    assert np.allclose(high - low, width, rtol=0.35)  # of 100 replicates the spread is known to a seventh
    assert (high <= 1).all()
    wide = table.interval("nats", 1)[1] - table.interval("nats", 1)[0]
    assert (wide / half.value("even") > 3 * (high - low)).all()


def test_where_the_first_token_is_a_sink_no_share_beside_it_is_given_of_tokens_chosen_by_what_they_are(rng):
    """The first token may be one of the rarest: its weight is in both parts of that quotient (1.2 was measured)."""
    rules = [rule for rule in (*POSITIONAL, *CONTENT) if rule.unsunk == LEFT]
    table = made(rng, dict.fromkeys(dict.fromkeys(name for rule in (*rules, SINK_RULE) for name in rule.needed), 0.3))
    by_sinks = {first: claims_of(replace(table, sinks=Sinks(first=first)), rules)[0] for first in (True, False)}
    assert all(claim.given is not None for claim in by_sinks[False])
    unknown = {claim.role for claim in by_sinks[True] if claim.given is None}
    assert unknown == {"punctuation", "rare tokens"}


def test_of_what_no_text_asks_no_share_is_given(rng):
    """Without a case there is no score, and so no score of what does not go to the sinks."""
    mass = next(rule for rule in POSITIONAL if rule.unsunk == LEFT)
    names = tuple(dict.fromkeys((*mass.needed, *SINK_RULE.needed)))
    table = made(rng, dict.fromkeys(names, 0.3))
    known = claims_of(table, [mass])
    assert all(0 < of_head[0].given <= 1 for of_head in known)
    den = table.sums.den.copy()
    den[:, :, table.names.index(mass.statistic)] = 0
    asked = claims_of(replace(table, sums=replace(table.sums, den=den)), [mass])
    assert all(isnan(of_head[0].score) and of_head[0].given is None for of_head in asked)
