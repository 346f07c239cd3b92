"""The preset `passkey`: its texts hold what they say, far enough away; its numbers are those of eager attention."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyheads as mh
from manyheads.heads import Head
from manyheads.lab.training import save_chart
from manyheads.lab.training.decoder import Decoder, to_llama
from manyheads.lab.training.loop import train
from manyheads.lab.training.presets import passkey
from manyheads.lab.training.presets.passkey import (
    RECENT,
    SINK,
    TRIAL,
    WHOLE,
    Passkeys,
    answered,
    divided,
    groups_of,
    loss_of,
)
from manyheads.lab.training.presets.python_source import BEGIN_ID
from manyheads.lab.training.runs import HELD_OUT_STEP
from manyheads.measurement import measure_call
from manyheads.statistics.defined import distant_mass

from .stopping import whole_and_resumed

SMALL = Passkeys(pairs=3, pair_room=7, gap=70, question_room=6, rows=5, seed=1, parts=19, words=9)


@pytest.fixture
def texts(fresh) -> Passkeys:
    return replace(SMALL, seed=int(torch.randint(2**20, (), generator=fresh)))


def test_answers_and_sources_are_where_a_reader_of_the_words_finds_them(texts):
    batch = texts.batch(3)
    for row, line in enumerate(texts.written(batch["ids"])):
        tokens = ["<|begin|>", *line.split()]
        assert len(tokens) == texts.length
        told = {tokens[at + 1]: at for at, token in enumerate(tokens) if token == "key"}
        asked = [at for at, token in enumerate(tokens) if token == "ask"]
        assert len(told) == len(asked) == texts.pairs and max(told.values()) < min(asked)
        assert {tokens[at + 1] for at in asked} == set(told), "each name is asked for once"
        expected = [(at + offset, told[tokens[at + 1]] + offset) for at in asked for offset in (2, 3)]
        assert list(zip(batch["answers"][row].tolist(), batch["sources"][row].tolist(), strict=True)) == expected
        for answer, source in expected:
            assert tokens[answer] == tokens[source] and tokens[answer][0] == "p"
        # What is no passkey is a word, and the other way around.
        passkeys = {at + offset for at in (*told.values(), *asked) for offset in range(4)}
        words = [at for at in range(1, texts.length) if at not in passkeys]
        assert batch["is_word"][row].nonzero()[:, 0].tolist() == words
        assert all(tokens[at][0] == "w" for at in words)


def test_a_batch_follows_from_seed_and_step(texts):
    one, again = texts.batch(4), texts.batch(4)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["ids"], texts.batch(5)["ids"])
    assert not torch.equal(one["ids"], replace(texts, seed=texts.seed + 1).batch(4)["ids"])


@pytest.mark.parametrize("scale", [WHOLE, TRIAL])
def test_no_chain_of_layers_reaches_from_an_answer_to_its_pair(scale):
    batch = replace(scale.texts, rows=50).batch(7)
    # A row reads RECENT - 1 tokens back in each layer; an answer is written by the row before it.
    reach = scale.config.num_hidden_layers * (RECENT - 1)
    rows, sources = batch["answers"] - 1, batch["sources"]
    assert int((rows - sources).min()) > reach and int(sources.min()) >= SINK
    assert scale.texts.length <= scale.config.max_position_embeddings


def test_what_is_in_reach_of_an_answer_does_not_say_it(texts):
    """Least squares on all that a chain of two streaming layers sees guesses no better than chance."""
    batch = replace(texts, rows=4000).batch(0)
    ids, answers = batch["ids"], batch["answers"][:, -2:-1]  # of the last question: all other answers are in reach
    first, count = texts.tokens.index("p0"), len(texts.tokens)
    values = F.one_hot(ids.gather(1, answers)[:, 0] - first, texts.parts).double()
    asked = F.one_hot(ids.gather(1, answers - 1)[:, 0] - first, texts.parts).double()
    reach = 2 * (RECENT - 1)
    near = torch.cat([ids[:, :SINK], ids.gather(1, answers - 1 - reach + torch.arange(reach))], 1)
    seen = F.one_hot(near, count).sum(1).double()
    half = len(ids) // 2

    def guessed(*features: Tensor) -> float:
        inputs = torch.cat(features, 1)
        learned, tried = inputs[:half], inputs[half:]
        ridge = learned.T @ learned + torch.eye(inputs.shape[1])
        weights = torch.linalg.solve(ridge, learned.T @ values[:half])
        return float(((tried @ weights).argmax(1) == values[half:].argmax(1)).double().mean())

    # No part stands in two passkeys: those of the other questions, and the one that is asked for, are no answer.
    chance = 1 / (texts.parts - 3 * (texts.pairs - 1) - 1)
    spread = (chance * (1 - chance) / half) ** 0.5
    assert guessed(seen, asked) < chance + 5 * spread
    assert guessed(seen, asked, values) > 0.99, "with the answer among what it reads, it says it"


def test_words_follow_from_the_word_two_before_as_often_as_is_said(texts):
    batch = replace(texts, rows=200).batch(1)
    ids, is_word = batch["ids"] - texts.tokens.index("w0"), batch["is_word"]
    both = is_word[:, 2:] & is_word[:, :-2]
    follows = ((ids[:, 2:] - ids[:, :-2] - 7) % texts.words == 0)[both].double()
    expected = 0.8 + 0.2 / texts.words
    assert abs(float(follows.mean()) - expected) < 5 * (expected * (1 - expected) / len(follows)) ** 0.5


# --------------------------------------------------------------------------------- numbers, by plain eager attention

CONFIG = replace(
    TRIAL.config, vocab_size=len(SMALL.tokens), hidden_size=24, num_attention_heads=6, num_key_value_heads=3, head_dim=6
)


@pytest.fixture
def model(fresh) -> Decoder:
    torch.manual_seed(int(torch.randint(2**20, (), generator=fresh)))
    model = Decoder(CONFIG)
    with torch.no_grad():
        model.embedding.weight.mul_(30)  # so that answers differ
        for block in model.blocks:
            for weight in (block.attention.qkv_proj.q.weight, block.attention.qkv_proj.k.weight):
                weight.mul_(3)  # and that rows do not look at all keys evenly
            block.attention.out_proj.weight.mul_(4)  # nor is what they read lost beside the rest
    return model.eval()


class Eager:
    """Stock Llama with the model's weights, its own eager attention, and a dense bias for each layer and head."""

    def __init__(self, model: Decoder) -> None:
        self.llama = to_llama(model)
        self.llama.set_attn_implementation("eager")
        self.config = model.config
        self.biases: dict[int, Tensor] = {}
        for number, layer in enumerate(self.llama.model.layers):
            layer.self_attn.register_forward_pre_hook(
                lambda _, args, kwargs, number=number: (args, kwargs | {"attention_mask": self.biases[number]}),
                with_kwargs=True,
            )

    def run(self, ids: Tensor, streaming: list[Head]) -> tuple[Tensor, list[Tensor]]:
        """Logits, and every layer's map."""
        length = ids.shape[1]
        rows, keys = torch.arange(length)[:, None], torch.arange(length)
        for number in range(self.config.num_hidden_layers):
            seen = (keys <= rows).repeat(self.config.num_attention_heads, 1, 1)
            for head in streaming:
                if head.layer == number:
                    seen[head.index] &= (keys < SINK) | (rows - keys < RECENT)
            self.biases[number] = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[None]
        with torch.no_grad():
            out = self.llama(ids, output_attentions=True)
        return out.logits, list(out.attentions)

    def answered(self, batch: dict[str, Tensor], streaming: list[Head]) -> dict[str, float]:
        logits = self.run(batch["ids"], streaming)[0]
        recalled, answers, words = [], [], []
        for row, ids in enumerate(batch["ids"].tolist()):
            scores = logits[row].double().log_softmax(-1)
            for at in range(1, len(ids)):
                nats = -float(scores[at - 1, ids[at]])
                if batch["is_word"][row, at]:
                    words.append(nats)
                if at in batch["answers"][row].tolist():
                    answers.append(nats)
            for at in batch["answers"][row, ::2].tolist():
                recalled.append(scores[at - 1 : at + 1].argmax(-1).tolist() == ids[at : at + 2])
        return {
            "recall": sum(recalled) / len(recalled),
            "loss_answers": sum(answers) / len(answers),
            "loss_words": sum(words) / len(words),
        }


def test_what_is_left_is_that_of_eager_attention_with_a_dense_bias(model, texts, monkeypatch):
    monkeypatch.setattr(passkey, "chosen_by_split_heads", lambda *_: None)  # it has tests of its own
    monkeypatch.setattr(passkey, "DRAWS", 2)
    batch = texts.batch(2)
    eager, groups = Eager(model), groups_of(model.config)
    assert list(groups) == ["L0H0-1", "L0H2-3", "L0H4-5", "L1H0-1", "L1H2-3", "L1H4-5"]
    found = divided(model, batch, seed=3)
    everything = [head for heads in groups.values() for head in heads]
    kept = [head for name in found["needed"] for head in groups[name]]
    expected = {
        "all": [], "none": everything, "others": kept, "needed": [head for head in everything if head not in kept]
    }  # fmt: skip
    close = 2e-5
    for name, streaming in expected.items():
        assert found["splits"][name] == pytest.approx(eager.answered(batch, streaming), rel=close), name
    for draw in found["random"]:
        assert len(draw["kept"]) == len(found["needed"]) and draw["kept"] != found["needed"]
        streaming = [head for name, heads in groups.items() if name not in draw["kept"] for head in heads]
        result = {key: value for key, value in draw.items() if key != "kept"}
        assert result == pytest.approx(eager.answered(batch, streaming), rel=close), draw["kept"]
    whole = found["splits"]["all"]
    for name, heads in groups.items():
        result = {key: value for key, value in found["groups"][name].items() if key != "distant_mass"}
        assert result == pytest.approx(eager.answered(batch, list(heads)), rel=close), name
        changes = [abs(result[loss] / whole[loss] - 1) for loss in ("loss_words", "loss_answers")]
        assert max(changes) > 10 * close, "streaming moves these numbers by more than they are compared by"
    rows, keys = torch.arange(texts.length)[:, None], torch.arange(texts.length)
    distant = (keys >= SINK) & (rows - keys >= RECENT)
    for layer, maps in enumerate(eager.run(batch["ids"], [])[1]):
        masses = (maps.double() * distant).sum(-1)[..., distant.any(1)].mean((0, 2))
        for index, mass in enumerate(masses.tolist()):
            assert found["distant_mass"][f"L{layer}H{index}"] == pytest.approx(mass, rel=1e-4)


def test_needles_are_the_last_questions(texts):
    batch = texts.batch(2)
    for row, needle in enumerate(passkey.needles_of(batch)):
        tokens = [texts.tokens[number] for number in needle.ids]
        (begin, end), (first, last) = needle.answer, needle.needle_span
        assert list(needle.ids) == batch["ids"][row, :end].tolist() and end == len(tokens)
        assert tokens[begin - 2] == "ask" and tokens[first - 2] == "key" and end - begin == last - first == 2
        assert tokens[begin - 1 : end] == tokens[first - 1 : last]


@pytest.mark.slow  # split_heads writes texts on, too
def test_what_split_heads_keeps_is_named_by_its_scores(model, texts):
    batch = texts.batch(2)
    names = list(groups_of(model.config))
    found = passkey.chosen_by_split_heads(model, batch, 2, seed=1)
    assert set(found["criteria"]) == {"effect", "needle_effect", "distant_mass", "needle"}
    for name, result in found["criteria"].items():
        assert list(result["scores"]) == names and len(result["kept"]) == 2
        least = min(result["scores"][kept] for kept in result["kept"])
        assert all(score <= least for group, score in result["scores"].items() if group not in result["kept"]), name
    # Every other text chooses, so these masses are of half of the texts.
    table = measure_call(model, batch["ids"][::2], statistics=[distant_mass(SINK, RECENT)])
    masses = dict(zip(map(str, table.heads), table.column(table.names[0]).tolist(), strict=True))
    for name, heads in groups_of(model.config).items():
        highest = max(masses[str(head)] for head in heads)
        assert found["criteria"]["distant_mass"]["scores"][name] == pytest.approx(highest, rel=1e-3)


class Knowing(nn.Module):
    """Writes each next token, but at some places another."""

    def __init__(self, ids: Tensor, wrong: list[tuple[int, int]], size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        logits = 9.0 * F.one_hot(ids[:, 1:], size).float()
        for row, at in wrong:
            logits[row, at - 1] = logits[row, at - 1].roll(1)
        self.logits = logits

    def forward(self, ids: Tensor) -> object:
        from manyheads.lab.training.decoder import DecoderOutput

        return DecoderOutput(self.logits + self.weight, self.logits)


def test_a_question_counts_where_both_of_its_values_are_right(texts):
    batch = texts.batch(6)
    size, questions = len(texts.tokens), texts.rows * texts.pairs
    answers = batch["answers"].tolist()
    assert answered(Knowing(batch["ids"], [], size), batch)["recall"] == 1
    wrong = [(0, answers[0][0]), (0, answers[0][1]), (2, answers[2][3])]  # both of one question, one of another
    seen = answered(Knowing(batch["ids"], wrong, size), batch)
    assert seen["recall"] == pytest.approx(1 - 2 / questions)
    assert seen["loss_answers"] == pytest.approx(seen["loss_words"] + 3 * 9 / (2 * questions), rel=1e-4)
    # A marker or the first token of a passkey, each known to this model for as many nats as a word is; but for one.
    loss = float(loss_of(Knowing(batch["ids"], [*wrong, (1, answers[1][0] - 1)], size), batch).detach())
    guessed = seen["loss_words"] + 9 / (texts.rows * texts.pairs * (2 + 2 + 2))
    assert loss == pytest.approx((seen["loss_answers"] + seen["loss_words"]) / 2 + passkey.GUESSED * guessed, rel=1e-4)


def test_in_texts_that_stream_all_heads_but_those_that_were_drawn_are_trained_as_if_they_streamed(model, texts):
    """The training's masks, row by row, beside eager attention with a dense bias."""
    batch = texts.batch(8)
    streams = torch.arange(texts.rows) % 2 == 1
    eager, groups = Eager(model), groups_of(CONFIG)
    far = passkey.far_of(replace(TRIAL, config=CONFIG, far=2), texts.seed)
    assert len(far) == 2 and set(far) < {name for name in groups if name.startswith("L1")}
    with torch.no_grad():
        got = model(batch["ids"], hidden=passkey.hidden_keys(CONFIG, far, streams, texts.length)).logits
    others = [head for name, heads in groups.items() if name not in far for head in heads]
    plain, streaming = (eager.run(batch["ids"], heads)[0] for heads in ([], others))
    assert float((plain - streaming)[:, RECENT + SINK :].abs().amax((1, 2)).min()) > 0.05
    torch.testing.assert_close(got, torch.where(streams[:, None, None], streaming, plain), rtol=1e-3, atol=2e-3)
    # Which texts do is drawn with them: about STREAMS of them.
    drawn = replace(texts, rows=4000).batch(0)["streams"].double()
    assert abs(float(drawn.mean()) - passkey.STREAMS) < 5 * (passkey.STREAMS * (1 - passkey.STREAMS) / 4000) ** 0.5
    assert {tuple(passkey.far_of(WHOLE, seed)) for seed in range(9)} > {tuple(passkey.far_of(WHOLE, 0))}


# ------------------------------------------------------------------------------------------------- from start to end


@pytest.mark.slow
def test_a_trial_goes_on_the_same_and_its_export_reads_its_texts(tmp_path):
    whole, resumed = whole_and_resumed("passkey", tmp_path, 5)  # in the longer texts, after the checkpoint
    assert resumed.trained["passkey-0"].resumed_at == 3 and resumed.report["found"] == whole.report["found"]
    found = json.loads((tmp_path / "whole/report.json").read_text())["found"]
    assert found["whole"]["recall"]["each"] == [found["by_seed"][0]["splits"]["all"]["recall"]]
    save_chart(whole.findings.chart, tmp_path / "figure.svg")
    lines = [json.loads(line)["text"] for line in (tmp_path / "whole/texts.jsonl").read_text().splitlines()]
    batch = passkey.held_out_texts(TRIAL, 0)
    lm = mh.load(tmp_path / "whole/model")
    ids = torch.tensor([lm.tokenizer(line)["input_ids"] for line in lines])
    assert ids.equal(batch["ids"]) and set(ids[:, 0].tolist()) == {BEGIN_ID}
    trained = whole.trained["passkey-0"].model
    with torch.no_grad():
        torch.testing.assert_close(lm.model(ids).logits, trained(ids).logits, rtol=1e-4, atol=1e-4)


def test_the_report_names_needed_heads_and_counts_draws_that_serve_as_well():
    def left(recall: float, nats: float = 1.0) -> dict[str, float]:
        return {"recall": recall, "loss_answers": nats, "loss_words": 2.0}

    seed = {
        "far": ["L0H2-3", "L1H0-1"],
        "groups": {"L0H0-1": left(1.0, 1.002), "L0H2-3": left(0.97, 0.9), "L1H0-1": left(0.96, 1.3)},
        "needed": ["L1H0-1"],
        "splits": {"all": left(1.0), "needed": left(0.95), "others": left(0.2), "none": left(0.0)},
        "random": [{"kept": ["L0H0-1"], **left(0.95)}, {"kept": ["L0H2-3"], **left(0.1)}],
        "split_heads": {"criteria": {"effect": {"kept": ["L1H0-1"]}, "distant_mass": {"kept": ["L0H0-1"]}}},
    }
    spread = {"mean": 1.0, "sd": 0.0, "each": [1.0]}
    numbers = {
        "seeds": 2, "sink": 4, "recent": 32, "tokens": 256, "questions": 192, "kv_heads": 3,
        "whole": {"recall": spread, "loss_words": spread}, "by_seed": [seed, {**seed, "needed": []}],
    }  # fmt: skip
    _, first, second = passkey.lines_of(numbers)
    assert "1 of 3 key/value heads: L1H0-1, of L0H2-3, L1H0-1 that training let look far (one alone on the fi" in first
    assert "+0.300 to +0.300 nats an answer's token, any other +0.002 at most, and 96.0% answered" in first
    assert "keeps by effect the same, by distant_mass L0H0-1. If they alone keep everything, 95.0%" in first
    assert "52.5% in the mean of 2 draws (95.0% at most; nearly all, 95% of them or more, in 1)" in first
    assert "no key/value head alone is needed" in second


@pytest.mark.slow  # a training of two minutes
def test_split_heads_names_the_heads_that_a_one_by_one_ablation_names_and_random_splits_fail(tmp_path):
    """Single ablations, and what is left with a split, are those of stock Llama's eager attention with a dense bias."""
    model = train(passkey.passkey_run("passkey", WHOLE, 1), tmp_path / "passkey.safetensors").model
    batch = replace(WHOLE.texts, rows=24, seed=1).batch(HELD_OUT_STEP)
    eager, groups = Eager(model), groups_of(WHOLE.config)
    everything = [head for heads in groups.values() for head in heads]

    def left(kept: list[str]) -> dict[str, float]:
        streaming = [head for name, heads in groups.items() if name not in kept for head in heads]
        return eager.answered({name: x[:8] for name, x in batch.items()}, streaming)

    whole, none = left(list(groups)), left([])
    assert whole["recall"] > 0.95 and none["recall"] < 0.05
    costs = {
        name: left([other for other in groups if other != name])["loss_answers"] - whole["loss_answers"]
        for name in groups
    }
    clear = 0.02 * (none["loss_answers"] - whole["loss_answers"])
    needed = [name for name, cost in costs.items() if cost > clear]
    # The answer is clear: any that is needed costs ten times as much as any that is not, and few are.
    among, rest = ([cost for name, cost in costs.items() if (name in needed) == flag] for flag in (True, False))
    assert min(among) > 10 * max(rest)
    assert len(needed) <= len(groups) / 8 and set(needed) <= set(passkey.far_of(WHOLE, 1))

    lm = mh.load(to_llama(model), tokenizer=False)
    split = mh.split_heads(
        lm, batch["ids"].tolist(), len(needed) / len(groups), by="needle_effect", also=["effect"], random=3,
        sink=SINK, recent=RECENT, needles=passkey.needles_of(batch),
    )  # fmt: skip
    table = split.to_pandas()
    assert table[table.keeps_everything].query_heads.tolist() == needed
    assert split.evidence["recall"]["after"] >= 0.95 * split.evidence["recall"]["before"] > 0.8
    assert split.evidence["verdict"]["level"] == "better"
    assert set(split.streaming) == {head for head in everything if head not in set(split.retrieval)}

    names = list(groups)
    assert left(needed)["recall"] >= 0.95 * whole["recall"]
    generator = np.random.default_rng(1)
    draws = [sorted(generator.choice(len(names), len(needed), replace=False).tolist()) for _ in range(20)]
    recalls = [left([names[index] for index in draw])["recall"] for draw in draws]
    serve = [draw for draw, recall in zip(draws, recalls, strict=True) if recall >= 0.95 * whole["recall"]]
    assert all([names[index] for index in draw] == needed for draw in serve), "none but the needed themselves"
    # What needs only near tokens loses nothing. It may gain: what is far away can lead a head astray.
    assert max(result["loss_words"] for result in (none, left(needed))) < whole["loss_words"] + 0.1
