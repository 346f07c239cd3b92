"""Probes as part of roles: their numbers are the direct functions' own, and what cannot be asked is said."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from transformers import GPT2Model

import manyheads as mh
from manyheads.corpora import page_texts
from manyheads.errors import StatisticError
from manyheads.figures.roles.report import page_of
from manyheads.roles import Probe, ask_probes, copying_scores, probe_repeats, retrieval_scores
from manyheads.roles import find as finding
from manyheads.roles.probes import all as probing
from manyheads.roles.probes.all import LENGTHS, NEEDLE, NEEDLE_DEPTHS, PROBES, QUESTION
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_tokenizer

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
        "random repeats": repeats.after,
        "random repeats, offset 0": repeats.same,
        "random repeats, offset -1": repeats.before,
        "retrieval": needles.scores,
        "copying": copying_scores(lm),
    }


@pytest.mark.turns(5)
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


@pytest.mark.turns(4)
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
    with pytest.raises(StatisticError, match="'copying' is a probe, which was not asked: give probes=True"):
        plain.role_named("copying")


@pytest.mark.turns(4)
def test_the_table_has_a_row_a_head_and_probe_below_the_claims(roles, direct, tmp_path):
    roles.save(tmp_path / "roles.parquet")
    frame = pd.read_parquet(tmp_path / "roles.parquet")
    probes, claims = frame[frame["kind"] == "probe"], frame[frame["kind"] == "claim"]
    assert len(probes) == len(roles) * len(PROBES) and len(claims) == len(roles) * len(roles.questions)
    assert len(frame[frame["holds"]]) == claims["holds"].sum() and probes["holds"].isna().all()
    assert not claims["holds"].isna().any() and not probes["named"].any()
    mine = probes[probes["role"] == "random repeats"]
    assert list(mine["score"]) == list(direct["random repeats"].score)
    assert list(mine["chance_control"]) == list(direct["random repeats"].chances["control"])
    assert list(probes[probes["role"] == "copying"]["also_z"]) == pytest.approx(list(direct["copying"].z))


def test_the_report_has_a_section_with_each_probes_best_head_and_variant(plain, roles):
    page = page_of(roles)
    best = roles.probes["random repeats"].top(1)[0]
    assert f'>{best.head}</th><td class="n">{100 * best.score:.1f}%</td>' in page and "ARENA" in page
    assert 'href="#probes"' in page and "standard deviations" in page
    assert "{{" not in page and "Probes</h2>" not in page_of(plain)


@pytest.mark.turns(4)
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


@pytest.mark.turns(4)
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
