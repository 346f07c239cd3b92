"""`michel-curve`, `voita-gates`, `wu-masking`, `gqa-uptrain`: what they compute, by hand and by cut weights."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from manyheads.figures import save_chart
from manyheads.long_context import Needle
from manyheads.reproductions import gqa_uptrain, michel_curve, reproduce, voita_gates, wu_masking
from manyheads.training.decoder import Decoder, DecoderConfig
from manyheads.training.export import to_llama
from manyheads.training.presets.heads import Reader, related
from manyheads.training.presets.passkey import Passkeys
from manyheads.training.presets.preset import live


def decoder(fresh, config: DecoderConfig, louder: float = 4.0) -> Decoder:
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


@pytest.mark.turns(5)
def test_a_curve_says_what_is_free_by_the_loss_of_its_own_half(fresh):
    model = decoder(fresh, DecoderConfig(13, 12, 2, 3, 1, 4, 14))
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
    found = voita_gates.read_off(seen)
    assert found["price"] == 0.1 and found["gone"] == pytest.approx(11 / 16)
    # Specialised 0, 1, 2, 5 are kept at 3, 2, 2, 1 prices; of the twelve others 9 at 3, 3 at 2, ten at 1.
    wins = (11 + 0.5) + 2 * (10 + 0.5) + 10 * 0.5
    assert found["outlives"] == pytest.approx(wins / 48)
    assert found["functions"] == pytest.approx(2 / 3) and found["specialised_left"] == 3 / 4
    assert found["others_left"] == pytest.approx(2 / 12) and found["right"] == pytest.approx(-0.005)


# ----------------------------------------------------------------------------------------------------------- wu-masking


@pytest.mark.turns(4)
def test_scores_and_what_is_answered_with_heads_masked_are_those_of_eager_maps_and_cut_weights(fresh, monkeypatch):
    texts = Passkeys(pairs=3, pair_room=7, gap=20, question_room=6, rows=8, seed=3, parts=19, words=9)
    model = decoder(fresh, DecoderConfig(len(texts.tokens), 24, 2, 6, 3, 6, 28), louder=6)
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
        assert masked["recall"] == np.mean(right)
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
    assert wu_masking.read_off(seen) == pytest.approx(
        {
            "share": 0.5, "recall": 0.8, "without_first": 0.5, "without_retrieval": 0.25, "without_others": 0.875,
            "words_without_retrieval": 0.5, "words_without_others": 0.3,
        }
    )  # fmt: skip
    nothing = {**seen, "retrieval": [], "top": [], "random": {}}
    assert wu_masking.read_off(nothing)["without_retrieval"] == wu_masking.read_off(nothing)["without_others"] == 1


# ---------------------------------------------------------------------------------------------------------- gqa-uptrain


@pytest.mark.turns(4)
@pytest.mark.parametrize("num_kv_heads", [2, 1])
@pytest.mark.sampled(1)
def test_pooled_heads_are_the_mean_the_first_or_new_and_all_else_stays(fresh, num_kv_heads):
    heads, width = 4, 6
    teacher = decoder(fresh, DecoderConfig(17, 20, 2, heads, heads, width, 22), louder=1.5)
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
            assert (own["random"] - again.state_dict()[name][rows]).abs().max() > 0.01, "drawn anew"


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["michel-curve", "voita-gates", "wu-masking", "gqa-uptrain"])
def test_a_trial_goes_from_training_to_page(tmp_path, name):
    made = reproduce(name, tmp_path / name, quick=True)
    assert made.document["rows"] and all(len(row["each"]) == 1 for row in made.document["rows"])
    save_chart(made.result.chart, tmp_path / "figure.svg")
    page = (tmp_path / name / "page.md").read_text()
    assert all(row["quantity"] in page for row in made.document["rows"])
    # What was trained is read back: a second start gives the same numbers.
    assert reproduce(name, tmp_path / name, quick=True).document["rows"] == made.document["rows"]
