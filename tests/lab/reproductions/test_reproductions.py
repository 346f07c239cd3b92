"""The papers' definitions by hand, every reproduction in a trial, and what is said of their results."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from manyheads.attention import Mask
from manyheads.attention.scores import Rule
from manyheads.errors import FileAccessError, PlanError
from manyheads.heads import Head
from manyheads.lab.reproductions import (
    REPRODUCTIONS,
    Claim,
    Reproduction,
    Result,
    Row,
    gqa_uptrain,
    gu_sinks,
    kimi_clip,
    markdown,
    michel_curve,
    olsson_phase,
    reproduce,
    voita_gates,
    wu_masking,
    wu_scores,
    zhai_collapse,
)
from manyheads.lab.reproductions import reproduction_of as named
from manyheads.lab.training import save_chart
from manyheads.lab.training.charts import Chart
from manyheads.lab.training.checkpoints import History
from manyheads.lab.training.decoder import ATTENTIONS, Decoder, DecoderConfig, sigmoid_attend, to_llama
from manyheads.lab.training.presets.heads import Reader, related
from manyheads.lab.training.presets.passkey import Passkeys
from manyheads.lab.training.presets.preset import live
from manyheads.long_context import Needle
from manyheads.measurement import measure_call
from manyheads.nn.mixing import LayerCall, Mixed
from tests.refusals import refuses

# ========================================================================================================== definitions
# The papers' definitions against what is computed by hand, and every reproduction in a trial.

VOCAB, WIDTH, LAYERS, HEADS, HEAD_DIM, TEXTS, LENGTH = 29, 18, 2, 3, 6, 5, 11


def decoder(attention: str) -> Decoder:
    torch.manual_seed(3)
    model = Decoder(DecoderConfig(VOCAB, WIDTH, LAYERS, HEADS, HEADS, HEAD_DIM, 20, attention=attention)).eval()
    with torch.no_grad():
        for each in model.parameters():  # far from the start, where all maps are even
            each.mul_(3 if each.ndim > 1 else 1).add_(0.2 * torch.randn_like(each))
    return model


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_mean_weights_on_the_first_key_are_those_of_maps_made_by_hand(kind, fresh):
    q, k, v = (torch.randn(TEXTS, HEADS, LENGTH, HEAD_DIM, generator=fresh) for _ in range(3))
    sinks = torch.randn(HEADS, generator=fresh) if kind == "learned-sink" else None
    module = torch.nn.Identity()
    module.attend = sigmoid_attend if kind == "sigmoid" else None
    rule, mask = Rule(0.7, sinks=sinks), Mask.causal(LENGTH, LENGTH)
    seen = gu_sinks.MeanWeights(frozenset())
    seen.seen(LayerCall(module, q, k, v, rule, lambda: mask, False, lambda: Mixed(v, "")))
    first, learned = (np.zeros((TEXTS, HEADS)) for _ in range(2))
    for text, head, row in np.ndindex(TEXTS, HEADS, LENGTH):
        scores = [0.7 * float(q[text, head, row] @ k[text, head, key]) for key in range(row + 1)]
        if kind == "sigmoid":
            weights, sink = [1 / (1 + math.exp(-score)) for score in scores], 0.0
        else:
            weights = [math.exp(score) for score in scores]
            sink = math.exp(float(sinks[head])) if sinks is not None else 0.0
        first[text, head] += weights[0] / (sum(weights) + sink) / LENGTH
        learned[text, head] += sink / (sum(weights) + sink) / LENGTH
    np.testing.assert_allclose(seen.first_key[0], first, rtol=1e-4)
    np.testing.assert_allclose(seen.learned_sink[0], learned, rtol=1e-4, atol=1e-6)


def test_the_share_of_sinks_counts_every_text_layer_and_head_by_itself(monkeypatch, fresh):
    model, ids = decoder("softmax"), torch.randint(VOCAB, (TEXTS, LENGTH), generator=fresh)
    one_by_one = [measure_call(model, ids[text : text + 1], statistics=["first_mass"]) for text in range(TEXTS)]
    masses = np.array([table.column("first_mass") for table in one_by_one])  # the library's own statistic
    assert masses.shape == (TEXTS, LAYERS * HEADS)
    for threshold in np.quantile(masses, [0.2, 0.5, 0.9]) + 1e-4:
        monkeypatch.setattr(gu_sinks, "THRESHOLD", float(threshold))
        with torch.no_grad():
            shares = gu_sinks.sink_shares(model, ids)
        assert shares == {"first_key": pytest.approx((masses > threshold).mean()), "learned_sink": 0.0}
    with torch.no_grad():
        before = model(ids).logits
        assert torch.equal(before, model(ids).logits)  # nobody is watched any more


def test_the_in_context_score_is_the_late_tokens_loss_minus_the_early_ones(fresh):
    model, ids = decoder("softmax"), torch.randint(VOCAB, (TEXTS, LENGTH), generator=fresh)
    with torch.no_grad():
        score = olsson_phase.in_context_score(model, ids, early=3, late=10)
        logits = model(ids).logits.double().numpy()
    by_hand = 0.0
    for text in range(TEXTS):
        # The tenth token is predicted from nine, by the logits at the ninth place, whose index is 8.
        for sign, token in ((1, 10), (-1, 3)):
            row = logits[text, token - 2]
            by_hand += sign * (np.log(np.exp(row).sum()) - row[ids[text, token - 1]]) / TEXTS
    assert score == pytest.approx(by_hand, rel=1e-4)


def test_when_a_curve_changes_is_read_between_measurements_and_a_spike_is_far_over_those_before():
    history = History()
    for step, value in ((0, 1.0), (10, 1.0), (20, 0.5), (30, -0.5), (40, -1.0)):
        history.add({"step": step, "score": value})
    # From 1 to -1: 10 % is 0.8, on the line from 10 to 20 at 14; half is 0, at 25; 90 % is -0.8, at 36. Of 40 steps.
    assert olsson_phase.change(history, "score") == pytest.approx({"at_10%": 14 / 40, "at_50%": 25 / 40, "at_90%": 0.9})
    losses = [4.0 + 0.1 * (step % 3) for step in range(30)] + [2.0 + 0.1 * (step % 3) for step in range(40)]
    assert kimi_clip.spikes_of(losses) == 0
    # The first has too few steps before it. 1.5 times the median, 2.1, of the last 20 steps is 3.15; of all it is more.
    losses[5], losses[60], losses[65] = 9.0, 3.2, 3.1
    assert kimi_clip.spikes_of(losses) == 1


def test_retrieval_heads_of_a_published_file_are_counted(tmp_path):
    # 7 layers of 9 heads: 4 over 0.1, 1 at it, 40 never active.
    places = [(layer, head) for layer in range(7) for head in range(9)]
    means = dict.fromkeys(places, 0.05) | dict.fromkeys(places[:40], 0.0)
    means |= {places[50]: 0.11, places[51]: 0.9, places[60]: 0.4, places[62]: 0.10001, places[55]: 0.1}
    scores = {f"{a}-{b}": [2 * mean, 0.0, mean] for (a, b), mean in means.items()}
    (tmp_path / "toy.json").write_text(json.dumps(scores))
    made = reproduce("wu-scores", tmp_path / "out", file=tmp_path / "toy.json")
    active, never = made.document["rows"]
    assert (active["mean"], active["low"], active["verdict"]) == (4 / 63, None, "does not come out")
    assert (never["mean"], never["verdict"]) == (40 / 63, "not judged")
    assert f"{Head('', *places[51])} 0.90, {Head('', *places[60])} 0.40, " in made.document["notes"][0]
    save_chart(made.result.chart, tmp_path / "figure.svg")
    (tmp_path / "other.json").write_text('{"sparsity": 0.5}')
    with pytest.raises(FileAccessError, match="not one of the lists of heads"):
        reproduce("wu-scores", tmp_path / "other", file=tmp_path / "other.json")
    assert not (tmp_path / "other").exists()
    assert "3.2 % of this file" in wu_scores.rows_of({Head("", 0, 0): 0.2}, "llama-2-7b-80k")[0].paper


def test_claims_are_read_from_what_the_presets_found():
    def way(**numbers):
        layers = [{"each": [0.01, 0.02]}, {"each": [0.30, 0.05]}]
        return {name: {"each": list(each)} for name, each in numbers.items()} | {"entropy_by_layer": layers}

    ways = {
        "stable": way(held_out_loss=(2.0, 2.1), lowest_entropy=(0.5, 0.6)),
        "high": way(held_out_loss=(2.5, 3.1), lowest_entropy=(0.0, 0.0)),
        "sigma": way(held_out_loss=(2.2, 2.2), lowest_entropy=(0.7, 0.8)),
    }
    rows = zhai_collapse.rows_of(ways, (0.0, 1.0))
    assert [row.values for row in rows] == [
        (0.30, 0.05), (0.5, 0.6), (0.5, 1.0), (0.0, 1.0), (0.7, 0.8), pytest.approx((-0.3, -0.9))
    ]  # fmt: skip
    ways = {
        "free": way(held_out_loss=(2.0, 2.5), highest_max_logit=(1200.0, 1300.0), max_logit=(900.0, 800.0)),
        "clipped-100": way(held_out_loss=(1.9, 2.0), highest_max_logit=(104.0, 107.0), max_logit=(99.0, 80.0)),
    }
    rows = kimi_clip.rows_of(ways, {"free": (2.0, 3.0), "clipped-100": (0.0, 1.0)})
    assert [row.values for row in rows] == [
        (1200.0, 1300.0), (104.0, 107.0), (99.0, 80.0), pytest.approx((-0.1, -0.5)), (0.0, 1.0), (2.0, 3.0)
    ]  # fmt: skip


def test_a_quick_trial_of_own_trainings_shows_seeds_steps_and_both_curves(tmp_path):
    made = reproduce("olsson-phase", tmp_path / "out", quick=True, seeds=2)
    rows = made.document["rows"]
    assert [len(row["each"]) for row in rows] == [2] * 6 and made.document["seeds"] == 2
    assert sorted(path.name for path in (tmp_path / "out/training").glob("checkpoint-*")) == [
        f"checkpoint-{run}.safetensors" for run in ("1-0", "1-1", "2-0", "2-1")
    ]
    save_chart(made.result.chart, tmp_path / "figure.svg")
    again = reproduce("olsson-phase", tmp_path / "out", quick=True, seeds=2)
    assert again.document["rows"] == rows  # read back, not trained again


@pytest.mark.slow  # a training of a seed: the circuit forms in it, and only with two layers
def test_induction_heads_form_with_two_layers_and_not_with_one(tmp_path):
    made = reproduce("olsson-phase", tmp_path / "out", seeds=1)
    values = [row["mean"] for row in made.document["rows"]]
    assert values[0] < -1.0 and values[1] < 0 and values[2] > 0.5 and values[3] < 0.1


# ================================================================================================== pruning and pooling
# `michel-curve`, `voita-gates`, `wu-masking`, `gqa-uptrain`: what they compute, by hand and by cut weights.


def loud_decoder(fresh, config: DecoderConfig, louder: float = 4.0) -> Decoder:
    torch.manual_seed(int(torch.randint(2**20, (), generator=fresh)))
    model = Decoder(config)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.out_proj.weight.mul_(louder)  # so that heads matter before anything is learned
            block.attention.qkv_proj.k.weight.mul_(louder)
    return model.eval()


def without(model: Decoder, heads: list[str]) -> Decoder:
    """The oracle of zero ablation: the heads' columns of the output projection are 0."""
    cut, width = Decoder(model.config), model.config.head_dim
    cut.load_state_dict(model.state_dict())
    with torch.no_grad():
        for layer, head in (map(int, name[1:].split("H")) for name in heads):
            cut.blocks[layer].attention.out_proj.weight[:, head * width : (head + 1) * width] = 0
    return cut.eval()


# --------------------------------------------------------------------------------------------------------- michel-curve


def test_heads_are_free_up_to_the_first_step_that_costs_more_than_the_limit():
    counts = (0, 2, 5, 7)
    assert michel_curve.free_share(counts, [0.0, 0.1, 0.1, 0.1], 0.1) == 1
    assert michel_curve.free_share(counts, [0.0, -0.3, 0.2, 0.05], 0.1) == pytest.approx(2 / 7)
    assert michel_curve.free_share(counts, [0.0, 0.2, 0.0, 0.0], 0.1) == 0


@pytest.mark.slow
def test_a_curve_says_what_is_free_by_the_loss_of_its_own_half(fresh):
    model = loud_decoder(fresh, DecoderConfig(13, 12, 2, 3, 1, 4, 14))
    texts = [{"input_ids": torch.randint(13, (2, 9), generator=fresh)} for _ in range(12)]
    found = michel_curve.curve_of(live(model), texts)

    def loss(of: Decoder, some: list) -> np.ndarray:
        with torch.no_grad():
            nats = [
                F.cross_entropy(of(text["input_ids"]).logits[:, :-1].transpose(1, 2), text["input_ids"][:, 1:],
                                reduction="none").mean(1)
                for text in some
            ]  # fmt: skip
        return torch.cat(nats).double().numpy()

    before = loss(model, texts[1::2])
    assert found["before"] == pytest.approx(before.mean(), rel=1e-5)
    assert found["limit"] == pytest.approx(found["before"] / 100)
    order, curve = found["curve"]["order"], found["curve"]
    for count, change in zip(curve["counts"], curve["ranked"], strict=True):
        expected = (loss(without(model, order[:count]), texts[1::2]) - before).mean()
        assert change == pytest.approx(expected, abs=2e-6), count
    assert found["free"] == michel_curve.free_share(curve["counts"], curve["ranked"], found["limit"])


# ---------------------------------------------------------------------------------------------------------- voita-gates


def test_a_head_is_specialised_by_where_its_strongest_key_lies(fresh):
    torch.manual_seed(int(torch.randint(2**20, (), generator=fresh)))
    reader = Reader(letters=3, numbers=5, length=7, width=32, num_heads=4).eval()
    cards = torch.stack([torch.randint(3, (6, 7), generator=fresh), torch.randint(5, (6, 7), generator=fresh)], -1)
    with torch.no_grad():
        x = reader.letter(cards[..., 0]) + reader.number(cards[..., 1]) + reader.place(torch.arange(7))
        maps = reader.attention(reader.attention_norm(x), average_attn_weights=False)[1]
    shares = voita_gates.aimed_shares(reader, cards, related(cards[..., 0]))
    assert shares.shape == (4, 5)
    for head in range(4):
        # One back, three back, five back, the first, the last of the same letter: counted card by card.
        right, asked = np.zeros(5), np.zeros(5)
        for text in range(6):
            letters = cards[text, :, 0].tolist()
            for row in range(7):
                same = [key for key in range(row) if letters[key] == letters[row]]
                wanted = [row - 1, row - 3, row - 5, 0 if row else -1, same[-1] if same else -1]
                for relation, key in enumerate(wanted):
                    asked[relation] += key >= 0
                    right[relation] += key >= 0 and int(maps[text, head, row].argmax()) == key
        assert shares[head].tolist() == pytest.approx((right / asked).tolist(), abs=1e-6)


def test_what_outlives_what_is_counted_pair_by_pair():
    assert voita_gates.outlives([3, 1], [2, 1, 0]) == pytest.approx((1 + 1 + 1 + 0 + 0.5 + 1) / 6)
    assert voita_gates.outlives([], [1]) == voita_gates.outlives([1], [1]) == 0.5


def test_gone_is_read_at_the_highest_price_that_harms_nothing():
    kept = {"0": list(range(16)), "0.1": [0, 1, 2, 3, 9], "0.3": [0, 9]}
    seen = {
        "specialised": {0: "1 back", 1: "1 back", 2: "first", 5: "3 back"},
        "kept": kept,
        "right": {"0": 0.90, "0.1": 0.895, "0.3": 0.5},
    }
    found = voita_gates.judged_numbers(seen)
    assert found["price"] == 0.1 and found["gone"] == pytest.approx(11 / 16)
    # Specialised 0, 1, 2, 5 are kept at 3, 2, 2, 1 prices; of the twelve others 9 at 3, 3 at 2, ten at 1.
    wins = (11 + 0.5) + 2 * (10 + 0.5) + 10 * 0.5
    assert found["outlives"] == pytest.approx(wins / 48)
    assert found["functions"] == pytest.approx(2 / 3) and found["specialised_left"] == 3 / 4
    assert found["others_left"] == pytest.approx(2 / 12) and found["right"] == pytest.approx(-0.005)


# ----------------------------------------------------------------------------------------------------------- wu-masking


def test_scores_and_what_is_answered_with_heads_masked_are_those_of_eager_maps_and_cut_weights(fresh, monkeypatch):
    texts = Passkeys(pairs=3, pair_room=7, gap=20, question_room=6, rows=8, seed=3, parts=19, words=9)
    model = loud_decoder(fresh, DecoderConfig(len(texts.tokens), 24, 2, 6, 3, 6, 28), louder=6)
    batch = texts.batch(5)
    monkeypatch.setattr(wu_masking, "RETRIEVAL", -1.0)  # nothing is learned: every head counts, and none is another
    found = wu_masking.masked(model, batch, seed=2)
    assert found["random"] == {} and len(found["retrieval"]) == 12
    llama = to_llama(model)
    llama.set_attn_implementation("eager")
    scores = np.zeros((2, 6))
    needles: list[Needle] = wu_masking.needles_of({name: tensor[::2] for name, tensor in batch.items()})
    for needle in needles:
        with torch.no_grad():
            maps = llama(torch.tensor([needle.ids]), output_attentions=True).attentions
        for place in range(*needle.answer):
            for layer in range(2):
                for head in range(6):
                    key = int(maps[layer][0, head, place - 1].argmax())
                    inside = needle.needle_span[0] <= key < needle.needle_span[1]
                    scores[layer, head] += inside and needle.ids[key] == needle.ids[place]
    for name, score in found["scores"].items():
        layer, head = map(int, name[1:].split("H"))
        assert score == pytest.approx(scores[layer, head] / (2 * len(needles)))
    assert list(found["scores"].values()) == sorted(found["scores"].values(), reverse=True)
    rest = {name: tensor[1::2] for name, tensor in batch.items()}
    for count in (1, 4, 12):
        cut = without(model, found["retrieval"][:count])
        with torch.no_grad():
            logits = cut(rest["ids"][:, :-1]).logits.double().log_softmax(-1)
        right, nats = [], []
        for row, ids in enumerate(rest["ids"].tolist()):
            for place in rest["answers"][row, ::2].tolist():
                right.append(logits[row, place - 1 : place + 1].argmax(-1).tolist() == ids[place : place + 2])
            for place in rest["is_word"][row].nonzero()[:, 0].tolist():
                nats += [-float(logits[row, place - 1, ids[place]])] if place else []
        masked = found["top"][count - 1]
        assert masked["recall"] == pytest.approx(np.mean(right), rel=1e-7)  # a mean in float32: 1 / 12 is rounded
        assert masked["loss_words"] == pytest.approx(np.mean(nats), rel=1e-5)


def test_other_heads_are_drawn_among_those_that_are_no_retrieval_heads():
    row = {"recall": 0.8, "loss_words": 1.0}
    seen = {
        "scores": {"L0H0": 0.9, "L0H1": 0.2, "L0H2": 0.0, "L0H3": 0.0},
        "retrieval": ["L0H0", "L0H1"],
        "whole": row,
        "top": [{"recall": 0.4, "loss_words": 1.1}, {"recall": 0.2, "loss_words": 1.5}],
        "random": {"1": [row, row], "2": [{"recall": 0.8, "loss_words": 1.2}, {"recall": 0.6, "loss_words": 1.4}]},
    }
    assert wu_masking.judged_numbers(seen) == pytest.approx(
        {
            "share": 0.5, "recall": 0.8, "without_first": 0.5, "without_retrieval": 0.25, "without_others": 0.875,
            "words_without_retrieval": 0.5, "words_without_others": 0.3,
        }
    )  # fmt: skip
    nothing = {**seen, "retrieval": [], "top": [], "random": {}}
    assert (
        wu_masking.judged_numbers(nothing)["without_retrieval"]
        == wu_masking.judged_numbers(nothing)["without_others"]
        == 1
    )


# ---------------------------------------------------------------------------------------------------------- gqa-uptrain


@pytest.mark.parametrize("num_kv_heads", [2, 1])
def test_pooled_heads_are_the_mean_the_first_or_new_and_all_else_stays(fresh, num_kv_heads):
    heads, width = 4, 6
    teacher = loud_decoder(fresh, DecoderConfig(17, 20, 2, heads, heads, width, 22), louder=1.5)
    students = {pooling: gqa_uptrain.converted(teacher, num_kv_heads, pooling) for pooling in gqa_uptrain.POOLINGS}
    again = gqa_uptrain.converted(teacher, num_kv_heads, "random")
    size, state = heads // num_kv_heads, teacher.state_dict()
    for name, weight in state.items():
        if ".qkv_proj.k." not in name and ".qkv_proj.v." not in name:
            for student in students.values():
                torch.testing.assert_close(student.state_dict()[name], weight)
            continue
        for group in range(num_kv_heads):
            rows = slice(group * width, (group + 1) * width)
            merged = [weight[h * width : (h + 1) * width] for h in range(group * size, (group + 1) * size)]
            own = {pooling: student.state_dict()[name][rows] for pooling, student in students.items()}
            torch.testing.assert_close(own["mean"], sum(merged) / size)
            torch.testing.assert_close(own["first"], merged[0])
            assert all((own["random"] - head).abs().max() > 0.01 for head in (*merged, own["mean"]))
            assert (own["random"] - again.state_dict()[name][rows]).abs().max() > 0.01, "drawn again"


def test_differences_of_losses_are_taken_seed_by_seed():
    kind = {
        pooling: {"before": [3.0, 3.5], "after": after}
        for pooling, after in {"mean": [2.0, 2.5], "first": [2.1, 2.9], "random": [2.4, 2.8]}.items()
    }
    rows = gqa_uptrain.rows_of({"mha": [1.5, 1.75], "kinds": {"gqa": kind, "mqa": kind}})
    assert [row.quantity.split(":")[0] for row in rows] == ["MQA"] * 4 + ["GQA"] * 4
    expected = [(-0.1, -0.4), (-0.3, 0.1), (0.5, 0.75), (1.5, 1.75)]
    for row, values in zip(rows, expected * 2, strict=True):
        assert row.values == pytest.approx(values)


# ------------------------------------------------------------------------------------------------------------- as whole


LEFT_OUT = ("olsson-phase", "wu-scores", "clark-syntax")  # tried above, or read a file


@pytest.mark.slow  # what they train is held by its own tests, what they read by those above
@pytest.mark.parametrize("name", [name for name in REPRODUCTIONS if name not in LEFT_OUT])
def test_a_trial_goes_from_training_to_page(tmp_path, name):
    made = reproduce(name, tmp_path / name, quick=True)
    assert made.document["rows"] and all(len(row["each"]) == 1 for row in made.document["rows"])
    # One seed shows no spread: a number alone is judged that no seed moves.
    exact = {row.quantity for row in made.result.rows if row.exact}
    verdicts = {row["verdict"] for row in made.document["rows"] if row["quantity"] not in exact}
    assert verdicts <= {"undecided", "not judged"}
    save_chart(made.result.chart, tmp_path / "figure.svg")
    page = (tmp_path / name / "page.md").read_text()
    assert all(row["quantity"] in page for row in made.document["rows"])
    # What was trained is read back: a second start gives the same numbers.
    assert reproduce(name, tmp_path / name, quick=True).document["rows"] == made.document["rows"]


# ============================================================================================= verdicts, pages, folders
# Verdicts by intervals over seeds, the page of a result, and folders that belong to one reproduction.


def test_a_verdict_goes_by_the_whole_interval():
    values = (1.0, 2.0, 4.5)
    # By hand: mean 2.5, variance (2.25 + 0.25 + 4) / 2 = 3.25, t of two degrees of freedom 4.303.
    wide = 4.303 * math.sqrt(3.25 / 3)
    row = Row("quantity", "3", values)
    assert row.interval == pytest.approx({"mean": 2.5, "low": 2.5 - wide, "high": 2.5 + wide})

    def verdict(claim: Claim | None, values=values, exact=False):
        return Row("quantity", "3", values, claim, exact=exact).verdict

    assert verdict(Claim("", low=2.49 - wide)) == "comes out" == verdict(Claim("", high=2.51 + wide))
    assert verdict(Claim("", low=2.51 - wide)) == "undecided" == verdict(Claim("", high=2.49 + wide))
    assert verdict(Claim("", low=2.51 + wide)) == "does not come out" == verdict(Claim("", high=2.49 - wide))
    assert verdict(None) == "not judged"
    # One seed shows no spread; a number that no seed moves needs none.
    assert verdict(Claim("", low=0.0), (1.0,)) == "undecided"
    assert verdict(Claim("", low=0.0), (1.0,), exact=True) == "comes out"
    assert verdict(Claim("", low=1.1), (1.0,), exact=True) == "does not come out"


def toy(values=(0.25, 0.5), takes_file="") -> Reproduction:
    def run(task):
        row = Row("share | of heads", "18 %", values[: task.seeds] or values, Claim("at most 0.1", high=0.1), ".1%")
        return Result((row,), Chart("toy", "", ()), ("A note.",))

    words = ("toy", "a toy", "Toy 2026.", "A share.", "The share.", ("Nothing is.",))
    return Reproduction(*words, run, takes_file)


def test_a_reproduction_writes_its_page_and_keeps_its_folder_to_itself(tmp_path):
    made = reproduce(toy(), tmp_path / "here", seeds=2)
    page = (tmp_path / "here/page.md").read_text()
    # By hand: mean 0.375, sd 0.17678, one degree of freedom: 12.706 * 0.17678 / 1.41421 = 1.58825.
    cells = "| share ¦ of heads | 18 % | 25.0%, 50.0% | 37.5% (-121.3% to 196.3%) | at most 0.1 | **undecided** |"
    assert cells in page and "`manyheads reproduce toy --seeds 2`: 2 seeds, " in page
    assert page == markdown(json.loads((tmp_path / "here/result.json").read_text()))
    assert made.document["rows"][0]["verdict"] == "undecided"
    refuses(PlanError, r"holds another training \(seeds 2 then, 3 now\)", reproduce, toy(), tmp_path / "here")
    for options, message in (
        ({"seeds": 0}, "seeds=0: give 1 or more"),
        ({"file": "a.json"}, "toy: it reads no file: leave a.json out"),
    ):
        refuses(PlanError, message, reproduce, toy(), tmp_path / "new", **options)
    refuses(PlanError, r"toy: give a list of scores\.", reproduce, toy(takes_file="a list of scores"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_every_reproduction_is_the_one_that_is_listed():
    for name in REPRODUCTIONS:
        assert named(name).name == name and named(name).not_comparable
    refuses(PlanError, "there is no reproduction 'zhai-colapse'.*Did you mean zhai-collapse", named, "zhai-colapse")
