"""Claims about backups: figures are those of plans applied by hand inside plans, chance is counted, errors are told.

A backup head that was built by hand is found, with what it says and when; others are not.
"""

import json
from math import log

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

import manyheads as mh
from manyheads.errors import HeadError, ModelError, PlanError, StatisticError
from manyheads.heads import Head
from manyheads.roles.chance import q_values, random_targets, sign_flip_p
from manyheads.roles.compare import backup_heads
from tests.interventions.surgeries import TEXTS, loaded
from tests.models.eager import draw
from tests.refusals import refuses

# ---------------------------------------------------------------------------------------------------- figures, by hand

FEW = list(TEXTS[:2])


def losses(lm):
    """Each text's next-token loss, by transformers alone."""
    out = []
    for text in FEW:
        ids = lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False)["input_ids"]
        with torch.no_grad():
            logs = lm.model(ids).logits[0, :-1].log_softmax(-1)
        out.append(-float(logs.gather(1, ids[0, 1:, None]).mean()))
    return np.array(out)


@pytest.mark.parametrize(
    ("targets", "kind"), [("L0H1, L1H0", "zero"), pytest.param("L1H2", "mean", marks=pytest.mark.slow)]
)
def test_worth_with_and_without_the_targets_is_that_of_plans_inside_plans(targets, kind, fresh):
    lm, texts = loaded("gpt2", draw(fresh)), FEW
    found = backup_heads(lm, texts, targets, kind=kind, controls=1, among="L0H3, L1H3")
    (other,) = [part.split(" in the")[0] for part in found.notes["controls"].split("without ")[1:]]
    whole = losses(lm)
    assert found.metric == "loss"
    for head in ("L0H3", "L1H3")[: 1 if kind == "zero" else 2]:
        with mh.applied(lm, mh.Ablate(head, kind=kind), corpus=texts):
            alone = losses(lm) - whole
        left = []
        for gone in (targets, other):
            with mh.applied(lm, mh.Ablate(gone, kind=kind), corpus=texts):
                before = losses(lm)
                with mh.applied(lm, mh.Ablate(head, kind=kind), corpus=texts):
                    left.append(losses(lm) - before)
            if gone == targets:
                assert abs(found.effect - (before - whole).mean()) < 1e-5
        each = found[head]
        assert abs(each.alone - alone.mean()) < 1e-5 and abs(each.without - left[0].mean()) < 1e-5
        assert abs(each.interaction - (left[0] - alone).mean()) < 1e-5
        if head in other:
            assert each.control == (None,), "a random target has no interaction with itself"
        else:
            assert abs(each.control[0] - (left[1] - alone).mean()) < 1e-5
        assert each.low is None or each.low <= each.interaction <= each.high


@pytest.mark.parametrize("name", ["gpt2", pytest.param("bert", marks=pytest.mark.slow)])
def test_rows_move_in_later_layers_alone_and_by_what_records_say(name, fresh):
    lm, texts = loaded(name, draw(fresh)), FEW
    found = backup_heads(lm, texts, "L0H1", kind="zero", controls=0, among="L0H0, L0H2, L1H0, L1H2", rows=1_000)
    assert [each.moved for each in found.changes if each.head.layer == 0] == [0.0, 0.0], "exactly"
    for each in (each for each in found.changes if each.head.layer):
        want = []
        for text in texts:
            before = mh.record(lm, text).layers[each.head.layer].weights(each.head.index).double().numpy()
            with mh.applied(lm, mh.Ablate("L0H1")):
                after = mh.record(lm, text).layers[each.head.layer].weights(each.head.index).double().numpy()
            rows = (before > 0).sum(-1) > 1
            p, q = before[rows], after[rows]
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = [np.where(x > 0, x * np.log(2 * x / (p + q)), 0).sum(-1) for x in (p, q)]
            want.append(sum(terms).mean() / 2)
        assert abs(each.moved - np.mean(want)) < 1e-5 * log(2) + 1e-3 * np.mean(want) and each.moved > 1e-7
        assert each.moved_low is each.moved_high is each.moved_q is None and each.moved_control == (), "few texts"


def test_a_cosine_compares_with_the_model_that_is_left(fresh):
    lm, texts = loaded("bert", draw(fresh)), FEW

    def pooled():
        got = []
        for text in texts:
            with torch.no_grad():
                got.append(lm.model(**lm.tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).double())
        return torch.stack(got)

    def turned(before, after):
        return float((1 - torch.cosine_similarity(before, after, dim=-1)).mean())

    found = backup_heads(lm, texts, "L0H2", kind="zero", controls=0, among="L1H3")
    whole = pooled()
    with mh.applied(lm, mh.Ablate("L1H3")):
        alone = turned(whole, pooled())
    with mh.applied(lm, mh.Ablate("L0H2")):
        left = pooled()
        with mh.applied(lm, mh.Ablate("L1H3")):
            without = turned(left, pooled())
    assert found.metric == "cosine"
    assert found["L1H3"].alone == pytest.approx(alone, rel=1e-3)
    assert found["L1H3"].without == pytest.approx(without, rel=1e-3)


def test_every_stack_of_an_encoder_decoder_is_looked_at(fresh):
    lm = loaded("t5", draw(fresh))
    among = "encoder:L0H0, encoder:L1H0, decoder:L0H0, decoder:L1H0, cross:L0H0"
    found = backup_heads(lm, TEXTS[1], "encoder:L0H3", kind="zero", controls=0, among=among)
    moved = {str(each.head): each.moved for each in found.changes}
    assert moved.pop("encoder:L0H0") == moved.pop("decoder:L0H0") == 0.0
    assert len(moved) == 3 and min(moved.values()) > 1e-7


@pytest.mark.slow
def test_order_of_texts_is_nothing(fresh):
    lm = loaded("gpt2", draw(fresh))
    found, again = (
        backup_heads(lm, texts, "L0H1", kind="zero", controls=1, among="L2H1-2") for texts in (TEXTS, TEXTS[::-1])
    )
    for one, other in zip(found.changes, again.changes, strict=True):
        assert one.interaction == pytest.approx(other.interaction, abs=1e-6)
        assert (one.p, one.moved_q) == (pytest.approx(other.p, abs=1e-3), pytest.approx(other.moved_q, abs=1e-3))


def test_one_text_has_no_interval_and_proves_nothing(fresh):
    lm = loaded("gpt2", draw(fresh))
    found = backup_heads(lm, TEXTS[0], "L0H1", kind="zero", controls=1, among="L2")
    assert all(each.low is None and each.moved_high is None and each.p == each.q == 1 for each in found.changes)
    assert found.backups == () and "none" in str(found)


# ------------------------------------------------------------------------------------------------------------- chance


def test_p_is_the_share_of_all_flips_that_reach_as_far_and_q_is_benjamini_and_hochbergs(fresh):
    # Of 8 texts there are 256 flips: all of them, against the drawn ones.
    values = torch.randn(8, 5, generator=fresh, dtype=torch.float64).numpy() + np.array([0, 0.3, 1, 2, -2])
    signs = np.array([[1 - 2 * (flip >> bit & 1) for bit in range(8)] for flip in range(256)])
    want = (np.abs(signs @ values) >= np.abs(values.sum(0)) * (1 - 1e-9)).mean(0)
    got = sign_flip_p(values, range(100, 108))
    assert np.abs(got - want).max() < 0.025
    assert np.array_equal(sign_flip_p(values[::-1], range(107, 99, -1)), got)
    assert (sign_flip_p(np.zeros((4, 2)), range(4)) == 1).all()
    assert (sign_flip_p(values, [7] * 8) == 1).all(), "one text eight times is one text"
    assert np.isnan(sign_flip_p(np.full((3, 1), np.nan), range(3))).all()
    p = np.array([0.01, 0.04, np.nan, 0.03, 0.005, 0.9])
    assert np.allclose(q_values(p), [0.025, 0.05, np.nan, 0.05, 0.025, 0.9], equal_nan=True)


def test_of_heads_without_interaction_few_are_called_backups(fresh):
    noise = torch.randn(60, 400, generator=fresh, dtype=torch.float64).numpy()
    p = sign_flip_p(noise, range(60))
    assert abs((p < 0.1).mean() - 0.1) < 0.06 and (q_values(p) <= 0.05).sum() <= 4


def test_random_targets_are_others_of_the_same_layers(fresh):
    spec = loaded("llama", 0).spec
    gone = spec.select("L0H1, L2H3-4").heads
    drawn = random_targets(gone, spec, 6, seed=draw(fresh))
    assert len(set(drawn)) == 6
    for heads in drawn:
        assert [head.layer for head in heads] == [0, 2, 2] and not set(heads) & set(gone) and len(set(heads)) == 3
    assert len(random_targets(spec.select("L1H0-4").heads, spec, 6, seed=0)) > 1, (
        "from elsewhere, where a layer is full"
    )
    assert random_targets(spec.select("L0, L1").heads, spec, 3, seed=0) == []
    assert random_targets(gone, spec, 3, seed=5) == random_targets(gone, spec, 3, seed=5)


# ------------------------------------------------------------------------------------------- tables, and what is wrong


def test_a_table_and_json_say_what_was_found(fresh, tmp_path):
    lm = loaded("gpt2", draw(fresh))
    found = backup_heads(lm, FEW, "L0H1", kind="zero", controls=2, among="L0-1")
    frame = found.to_pandas()
    assert len(frame) == 7 and list(frame["head"])[:2] == ["L0H0", "L0H2"]
    assert frame["interaction"].to_numpy() == pytest.approx((frame["without"] - frame["alone"]).to_numpy())
    found.save(tmp_path / "backups.csv")
    assert len((tmp_path / "backups.csv").read_text().splitlines()) == 8
    data = json.loads(json.dumps(found.to_dict()))
    assert data["targets"] == ["L0H1"] and len(data["changes"]) == 7 and len(data["control_effects"]) == 2


def test_progress_ends_where_it_said(fresh):
    told = []
    lm = loaded("gpt2", 0)
    backup_heads(
        lm, FEW, "L0H1", kind="zero", among="L2H0", controls=1, progress=lambda done, of: told.append((done, of))
    )
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(("asked", "error", "match"), [
    ({"targets": "L9H0"}, HeadError, "no layer 9"),
    ({"targets": []}, PlanError, "names no heads"),
    ({"targets": "L0H0", "controls": -1}, StatisticError, "controls=-1: give 0 or more"),
    ({"targets": "L0H0", "among": "L0H0"}, StatisticError, r"no head is left to look at beside the targets \(L0H0\)"),
    ({"targets": "L0H0", "kind": "none"}, PlanError, "not a way to ablate"),
    ({"targets": "L0H0", "rows": 0}, StatisticError, "rows=0"),
    ({"targets": "L0H0", "metric": "beauty"}, StatisticError, "metric='beauty' is unknown"),
])  # fmt: skip
def test_what_cannot_be_asked_is_said(asked, error, match):
    refuses(error, match, backup_heads, loaded("gpt2", 0), TEXTS[0], **asked)


def test_a_head_that_was_not_looked_at_and_a_model_that_is_none():
    lm = loaded("gpt2", 0)
    found = backup_heads(lm, TEXTS[0], "L0H1", kind="zero", controls=0, among="L1H0")
    with pytest.raises(HeadError, match="there is no head L0H1 here: it is a target"):
        found["L0H1"]
    refuses(ModelError, "not a loaded model", backup_heads, "minilm", TEXTS[0], "L0H1")


NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *["cat", "dog", "sat", "ran", "on", "the", "a", "mat", "king", "queen"])
V, H, D = len(NAMES), 3, len(NAMES) + 1
M, ANSWER, FLAG, ONE = 2 * V + 2, V, 2 * V, 2 * V + 1  # a token's own axis, the answer's, "it has been said", always 1
WORKER, BACKUP = Head("", 0, 0), Head("", 1, 1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = mh.MultiHeadAttention(M, H, head_dim=D, bias=False, batch_first=True)

    def forward(self, x, hidden):
        return x + self.attention(x, key_padding_mask=hidden, need_weights=False)[0]


class Built(nn.Module):
    """It says every word again. L0H0 copies the word to the answer, and says that it did.

    Wherever that has been said, L1H1 looks at [CLS], of which it copies nothing; where it has not, it copies the word.
    Other heads say a little anything.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, input_ids, attention_mask):
        ones = torch.ones(*input_ids.shape, 1)
        x = torch.cat([nn.functional.one_hot(input_ids, V).float(), torch.zeros(*input_ids.shape, V + 1), ones], -1)
        for layer in self.layers:
            x = layer(x, attention_mask == 0)
        return 8 * x[..., ANSWER:FLAG]


def built(fresh):
    model = Built().eval()
    words = range(4, V)
    with torch.no_grad():
        for layer, head in ((0, 0), (1, 1)):
            attention = model.layers[layer].attention
            for weight in attention.parameters():
                weight.normal_(std=0.03, generator=fresh)
            q, k, v = attention.qkv_proj.weight.view(3, H, D, M)[:, head].zero_()
            out = attention.out_proj.weight.view(M, H, D)[:, head].zero_()
            for word in words:
                q[word, word] = k[word, word] = 9
                v[word, word] = out[ANSWER + word, word] = 1
            if layer == 0:
                v[V, ONE] = out[FLAG, V] = 1
            else:
                q[V, FLAG], k[V, NAMES.index("[CLS]")] = 12, 12
    backend = Tokenizer(models.WordLevel({name: at for at, name in enumerate(NAMES)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return mh.load(model, tokenizer=PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]"))


def unsaid(logits, inputs):
    """How surely each text's words are not said again: the mean cross-entropy."""
    ids = inputs["input_ids"]
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
    words = (ids > 3).float()
    return (losses * words).sum(1) / words.sum(1)


def sentences(fresh, count=40):
    words = NAMES[4:]
    drawn = [torch.randperm(len(words), generator=fresh)[: 5 + at % 5] for at in range(count)]
    return [" ".join(words[word] for word in each) for each in drawn]


def test_a_head_that_does_anothers_work_only_when_it_is_gone_is_found(fresh):
    lm, texts = built(fresh), sentences(fresh, 24)
    found = backup_heads(lm, texts, WORKER, metric=unsaid, kind="zero", controls=2)
    backup, *others = sorted(found.changes, key=lambda each: -each.interaction)
    assert backup.head == BACKUP == found.backups[0].head and backup.q < 0.01 and backup.low > 1
    assert backup.interaction > 10 * max(abs(each.interaction) for each in others)
    assert abs(backup.alone) < 0.1 < 1 < backup.without, "alone it is worth nothing: its work is done already"
    assert abs(found.effect) < 0.1, "and nothing is lost without the worker, whose work it does"
    assert max(backup.control) < 0.1
    assert backup.moved > 0.4 and backup.moved_q < 0.05 and max(backup.moved_control) < 0.01
    assert all(each.moved < 0.05 for each in others)
    assert "L1H1" in str(found)


def test_a_mean_in_the_workers_place_goes_on_saying_that_it_is_said(fresh):
    """The kind must be said: the flag is in the mean, so the backup is not called, and the work is lost."""
    lm, texts = built(fresh), sentences(fresh, 12)
    found = backup_heads(lm, texts, "L0H0", metric=unsaid, controls=0)
    assert found.kind == "mean" and found.notes["corpus"].startswith("the texts themselves")
    assert found.effect > 1 and abs(found[BACKUP].interaction) < 0.1 and found[BACKUP].moved < 0.1
