"""Labels that come with the package: used where everything they depend on is as it was, and what would be measured."""

import copy
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.models import BUNDLED
from manyheads.roles import label_page, shipped
from manyheads.roles.shipped import path_of, shipped_labels


@pytest.fixture(scope="module")
def lm():
    return mh.load("tiny-code", device="cpu")


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_model_has_labels_that_say_where_they_are_from(name):
    lm = mh.load(name, device="cpu")
    labels = label_page(lm)
    assert labels.because.startswith("shipped with manyheads, measured 20")
    assert [role.head for role in labels.roles] == [head for site in lm.spec.sites for head in site.heads]
    assert path_of(name).stat().st_size < 80_000
    unlabelled = [role.evidence.words.rpartition(": ")[2] for role in labels.roles if role.name == "unlabelled"]
    assert all(re.match("closest to “.+”, not enough for a role$|too few ", words) for words in unlabelled)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_what_is_shipped_is_what_is_measured(name):
    """A failure: run `python -m manyheads.roles.shipped`, and see what became of the roles."""
    lm = mh.load(name, device="cpu")
    known, measured = shipped_labels(lm), label_page(lm, remember=False)
    assert [(role.head, role.name) for role in known.roles] == [(role.head, role.name) for role in measured.roles]
    for one, other in zip(known.roles, measured.roles, strict=True):
        # The percents of a sentence may round otherwise.
        assert (
            one.evidence.words.rpartition(": ")[2] == other.evidence.words.rpartition(": ")[2]
            or one.name != "unlabelled"
        )
        numbers = [
            [np.nan if each is None else each for each in (e.score, e.chance, e.given, e.num_queries)]
            for e in (one.evidence, other.evidence)
        ]
        np.testing.assert_allclose(*numbers, rtol=1e-5, atol=1e-6, err_msg=str(one.head))
        # Of a share of 0.99996 what varies from text to text is as small as what rounding does to a softmax.
        ends = [[e.low, e.high] for e in (one.evidence, other.evidence)]
        np.testing.assert_allclose(*ends, rtol=1e-4, atol=1e-4, err_msg=str(one.head))
    assert (known.num_texts, known.num_tokens, known.sinks.ids) == (
        measured.num_texts, measured.num_tokens, measured.sinks.ids,
    )  # fmt: skip


def test_labels_of_other_weights_dtype_or_words_are_not_shipped(lm):
    assert shipped_labels(lm) is not None
    changed = copy.deepcopy(lm.model)
    with torch.no_grad():
        next(changed.parameters()).view(-1)[7] += 1e-4
    assert shipped_labels(mh.load(changed, tokenizer=lm.tokenizer, name="tiny-code")) is None
    half = mh.load(copy.deepcopy(lm.model).bfloat16(), tokenizer=lm.tokenizer, name="tiny-code")
    assert shipped_labels(half) is None
    words = copy.deepcopy(lm.tokenizer)
    words.add_tokens(["another word"])
    assert shipped_labels(mh.load(lm.model, tokenizer=words, name="tiny-code")) is None
    assert shipped_labels(replace(lm, name="a model of mine")) is None, "such a one would read prose, not Python"


def test_labels_are_a_models_whatever_it_is_called(minilm):
    assert shipped_labels(replace(minilm, name="a copy")) == shipped_labels(minilm) is not None


def test_labels_of_a_model_that_computes_otherwise_are_not_shipped(lm):
    """... with the very same weights: its angles turn otherwise, or its config says so."""
    turned = copy.deepcopy(lm.model)
    for name, buffer in turned.named_buffers():
        if name.endswith("inv_freq"):
            buffer.mul_(0.5)
    other = mh.load(turned, tokenizer=lm.tokenizer, name="tiny-code")
    assert other.weights_hash == lm.weights_hash and shipped_labels(other) is None
    other = mh.load(copy.deepcopy(lm.model), tokenizer=lm.tokenizer, name="tiny-code")
    assert shipped_labels(other) is not None
    other.model.config.rms_norm_eps *= 2
    assert shipped_labels(other) is None
    del other.model.config.rms_norm_eps  # of another version of transformers: it has no such field
    other.model.config.something_new = 1
    assert shipped_labels(other) is not None


@pytest.mark.slow
def test_labels_of_older_rules_are_measured_anew(lm, monkeypatch, tmp_path):
    monkeypatch.setattr(shipped, "RULES", shipped.RULES + 1)
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path))
    assert shipped_labels(lm) is None and label_page(lm).because == "measured now, remembered for the next run"
    assert label_page(lm).because.startswith("remembered from an earlier run")


def test_the_command_writes_what_the_package_reads(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(shipped, "path_of", lambda name: tmp_path / "labels" / f"{name}.json.gz")
    shipped.main(["tiny-code"])
    assert "32 heads" in capsys.readouterr().out
    shipped._stored.cache_clear()
    stored = shipped._stored("tiny-code")
    shipped._stored.cache_clear()
    assert stored["basis"]["rules"] == shipped.RULES and json.dumps(stored)
