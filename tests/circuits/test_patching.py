"""Patches equal plain hooks on the models' own modules; gradients equal finite differences.

The oracle (`by_hooks`) shares no code with what it judges. All in float64, where the two differ by rounding alone.
"""

import json
import random

import numpy as np
import pytest
import torch
from transformers import BertForMaskedLM

import manyheads as mh
from manyheads.circuits import path_effect, path_effects
from manyheads.errors import HeadError, ModelError, StatisticError, TextError
from manyheads.interventions.effects.importance import rank_correlation
from manyheads.lab import design
from tests.circuits.by_hooks import PLACES, ByHooks
from tests.circuits.test_circuit import induction_pairs
from tests.interventions.checkpoints import COMPACT, STOCK, VOCABULARY
from tests.interventions.surgeries import loaded
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_tokenizer
from tests.refusals import refuses

SAME = 1e-8  # of the largest change, in float64
LENGTH, TEXTS = 9, 2
SIX = ("gpt2", "llama", "gpt_neox", "gemma2", "bert", "opt")
MORE = ("mistral", "qwen3", "gpt_oss", "t5")
WHAT = ("out", "q", "k", "v", "weights")


def made(name, fresh):
    """A tiny lively model in float64 with two texts on either side, and its oracle."""
    model = {**STOCK, **COMPACT}[name].make(fresh).double()
    if name == "gpt_oss":
        model.config._experts_implementation = "eager"  # the grouped product of experts has no float64
    lm = mh.load(model, tokenizer=False)
    sides = [{"input_ids": torch.randint(3, VOCABULARY, (TEXTS, LENGTH), generator=fresh)} for _ in range(2)]
    if name == "t5":
        for side in sides:
            side["decoder_input_ids"] = torch.randint(3, VOCABULARY, (TEXTS, LENGTH - 2), generator=fresh)
    weights = torch.randn(VOCABULARY, generator=fresh, dtype=torch.float64)

    def metric(outputs, inputs):
        return outputs.logits[:, -1] @ weights + (outputs.logits[:, -2, 5] / 3).sin()

    site = next(site for site in lm.spec.sites if site.stack in ("", "decoder"))
    oracle = ByHooks(
        model, PLACES[name], site.num_heads, site.num_kv_heads, site.v_dim, lambda outputs: metric(outputs, None)
    )
    return lm, *sides, metric, oracle


def truth(oracle, heads, sides, what, direction, spots, share=1.0):
    """The oracle's change of the edited run's answer, [head, spot, text]."""
    clean, corrupted = sides
    into, other = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
    plain, rows = oracle.run(into), []
    for head in heads:
        for place in spots:
            where = slice(None) if place == "all" else [place] if isinstance(place, int) else place
            rows.append(oracle.patched(into, other, head.layer, head.index, what, where, share) - plain)
    return torch.stack(rows).unflatten(0, (len(heads), len(spots)))


def changes_of(got):
    """What a result says of the same, in the metric's unit."""
    sign = 1 if got.direction == "denoise" else -1
    return torch.from_numpy(sign * got.gap * got.per_text.reshape(*got.per_text.shape[:2], -1)).permute(1, 2, 0)


def assert_patched(name, what, direction, positions, fresh):
    lm, clean, corrupted, metric, oracle = made(name, fresh)
    got = mh.patch(
        lm, clean, corrupted, metric, what=what, direction=direction, positions=positions, controls=0, num_tokens=120
    )
    assert torch.allclose(torch.from_numpy(got.clean), oracle.run(clean), atol=1e-9)
    mine = [index for index, head in enumerate(got.heads) if head.stack in ("", "decoder")]
    spots = range(LENGTH) if positions == "each" else [positions]
    want = truth(oracle, [got.heads[index] for index in mine], (clean, corrupted), what, direction, spots)
    assert want.abs().max() > 1e-4, "no patch changed anything: this proves nothing"
    assert (want - changes_of(got)[mine]).abs().max() <= SAME * want.abs().max()


@pytest.mark.thinned
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", SIX)
def test_every_head_is_patched_as_by_hooks(name, what, fresh):
    assert_patched(name, what, "denoise", "all", fresh)


@pytest.mark.parametrize(("name", "what"), list(zip(SIX, (*WHAT, "k"), strict=True)))
def test_so_it_is_at_some_positions(name, what, fresh):
    assert_patched(name, what, "noise", [2, -3], fresh)


@pytest.mark.slow
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", SIX)
def test_so_it_is_at_each_position(name, what, fresh):
    assert_patched(name, what, "noise", "each", fresh)


@pytest.mark.parametrize(("name", "what"), list(zip(MORE, ("q", "v", "weights", "k"), strict=True)))
def test_windows_norms_sinks_and_a_second_text(name, what, fresh):
    assert_patched(name, what, "noise", "all", fresh)


@pytest.mark.slow
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", MORE)
def test_so_they_are_for_everything_else(name, what, fresh):
    assert_patched(name, what, "denoise", "all", fresh)


# ------------------------------------------------------------------------------------- places of layers, no heads

LAYERS = {  # the block, and its feed-forward
    "gpt2": ("transformer.h.{}", "mlp"), "llama": ("model.layers.{}", "mlp"), "gemma2": ("model.layers.{}", "mlp"),
    "bert": ("bert.encoder.layer.{}", "output.dense"), "opt": ("model.decoder.layers.{}", "fc2"),
    "gpt_neox": ("gpt_neox.layers.{}", "mlp"), "t5": ("decoder.block.{}", "layer.2.DenseReluDense"),
}  # fmt: skip


def place_patched(model, layers, layer, what, into, other, where):
    """The outputs of a run into which another's stream, or feed-forward, is put at some positions."""
    path, inner = layers
    block = model.get_submodule(path.format(layer))
    module = block if what == "stream" else block.get_submodule(inner)
    kept = []

    def at(*args):
        states = args[1][0] if what == "stream" else args[2]
        rows = states.view(TEXTS, -1, states.shape[-1])
        if not kept:
            kept.append(rows.clone())
            return None
        new = rows.clone()
        new[:, where] = kept[0][:, where]
        return (new, *args[1][1:]) if what == "stream" else new.view_as(states)

    hook = module.register_forward_pre_hook(at) if what == "stream" else module.register_forward_hook(at)
    try:
        with torch.no_grad():
            model(**other)
            return model(**into)
    finally:
        hook.remove()


@pytest.mark.thinned(name=("gpt2", "opt"))
@pytest.mark.parametrize("what", ["stream", "feed-forward"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layers_place_is_patched_as_by_hooks(name, what, fresh):
    """OPT lays the rows of all texts one after another; of T5 the decoder's layers are judged."""
    lm, clean, corrupted, metric, _ = made(name, fresh)
    direction, positions = ("denoise", "all") if name in ("t5", "bert") else ("noise", "each")
    got = mh.patch(
        lm, clean, corrupted, metric, what=what, direction=direction, positions=positions, controls=3, num_tokens=90
    )
    into, other = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
    with torch.no_grad():
        plain = metric(lm.model(**into), None)
    mine = [index for index, place in enumerate(got.chosen) if place.stack in ("", "decoder")]
    spots = [[spot] for spot in range(LENGTH)] if positions == "each" else [slice(None)]
    want = torch.stack([
        torch.stack([
            metric(place_patched(lm.model, LAYERS[name], place.layer, what, into, other, where), None) - plain
            for where in spots
        ]) for place in [got.chosen[index] for index in mine]
    ])  # fmt: skip
    assert want.abs().max() > 1e-4, "no patch changed anything: this proves nothing"
    assert (want - changes_of(got)[mine]).abs().max() <= SAME * want.abs().max()
    assert len(got.control) == 3 and not got.heads


def test_patching_of_layers_reads_like_one_of_heads(fresh):
    lm, clean, corrupted, metric, _ = made("llama", fresh)
    got = mh.patch(lm, clean, corrupted, metric, what="stream", heads="L0-1", controls=2, seed=4)
    assert [*map(str, got.chosen)] == ["L0 stream", "L1 stream"] and got["L1 stream"] == got.values[1]
    frame = got.to_pandas()
    assert list(frame.columns[:3]) == ["place", "stack", "layer"] and list(frame["place"]) == ["L0 stream", "L1 stream"]
    assert "L1 stream" in got and "L2 stream" not in got and got.ranking()[0] in got.chosen
    assert "2 layers" in str(got) and got.notes["patched"].startswith("the residual stream as a layer reads it")
    assert got.share_of_controls_above("L1 stream") is not None and json.dumps(got.to_dict())
    refuses(
        HeadError, r"there is no 'L2 stream' here: there are 'L0 stream' to 'L1 stream'", got.__getitem__, "L2 stream"
    )
    asked = lambda **options: mh.patch(lm, clean, corrupted, metric, what="feed-forward", **options)  # noqa: E731
    refuses(StatisticError, "the estimator 'gradient' is for heads", lambda: asked(estimator="gradient"))
    refuses(StatisticError, r"heads='L1H2': 'feed-forward' belongs to layers: write 'L3'", lambda: asked(heads="L1H2"))
    refuses(HeadError, "there is no layer 9", lambda: asked(heads="L9"))


# ------------------------------------------------------------------------------------------------- attribution patching

STEP = 1e-4  # of the way from one run to the other, either side: the error is its square, times the third derivative


@pytest.mark.parametrize(
    ("name", "what"), [("gpt2", "out"), ("llama", "k"), ("gemma2", "q"), ("opt", "v"), ("gpt_neox", "weights")]
)
def test_a_gradient_is_the_finite_difference_on_the_way_to_the_other_run(name, what, fresh):
    lm, clean, corrupted, metric, oracle = made(name, fresh)
    got = mh.patch(lm, clean, corrupted, metric, what=what, positions="each", estimator="gradient")
    spots = [1, LENGTH - 2]
    ends = [truth(oracle, got.heads, (clean, corrupted), what, "denoise", spots, share) for share in (STEP, -STEP)]
    want = (ends[0] - ends[1]) / (2 * STEP)
    assert want.abs().max() > 1e-3
    assert (changes_of(got)[:, spots] - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize("what", WHAT)
def test_positions_of_a_gradient_add_up(what, fresh):
    lm, clean, corrupted, metric, _ = made("llama", fresh)

    def patched(positions):
        return mh.patch(lm, clean, corrupted, metric, what=what, positions=positions, estimator="gradient").values

    each = patched("each")
    assert patched("all") == pytest.approx(each.sum(1), abs=1e-9 * abs(each).max())
    assert patched([0, -2]) == pytest.approx(each[:, 0] + each[:, -2], abs=1e-9 * abs(each).max())


def test_where_all_is_linear_the_gradient_is_exact(fresh):
    """A small step: the other text differs from the first by its embedding alone, and by little."""
    lm, clean, _, metric, _ = made("llama", fresh)
    table = lm.model.get_input_embeddings().weight
    with torch.no_grad():
        table[4] = table[3] + 1e-5 * torch.randn(table[3].shape, generator=fresh, dtype=torch.float64)
    clean["input_ids"][:, 3], other = 3, clean["input_ids"].clone()
    other[:, 3] = 4
    with torch.no_grad():
        level = metric(lm.model(**clean), clean).mean()

    def above(outputs, inputs):
        """A small step's gap is next to nothing of the metric itself, and such a gap is refused."""
        return metric(outputs, inputs) - level

    exact, estimated = (
        mh.patch(lm, clean, {"input_ids": other}, above, estimator=estimator, controls=0)
        for estimator in ("exact", "gradient")
    )
    assert exact.agreement(estimated) > 0.99
    assert exact.values == pytest.approx(estimated.values, abs=1e-3 * abs(exact.values).max())
    assert exact.agreement(estimated) == rank_correlation(exact.values, estimated.values)


# ---------------------------------------------------------------------------------------------------- texts and answers

CLEAN = ("the king gave the book to the", "a dog saw the red bird near the")
CORRUPTED = ("the queen gave the map to the", "a cat saw the old fish near the")
ANSWERS = [("child", "queen"), ("river", "house")]


def logits_of(lm, text):
    with torch.no_grad():
        return lm.model(**lm.tokenizer(text, return_tensors="pt")).logits[0, -1].double()


@pytest.mark.parametrize("metric", ["logit_diff", "logit", "prob", "loss", "kl"])
def test_a_metric_by_name_is_that_of_the_answers_logits(metric, fresh):
    lm = loaded("gpt2", draw(fresh))
    answers = {"logit_diff": ANSWERS, "kl": None}.get(metric, [right for right, _ in ANSWERS])
    got = mh.patch(lm, CLEAN, CORRUPTED, metric, answers, controls=0)
    for index, (one, other, (right, wrong)) in enumerate(zip(CLEAN, CORRUPTED, ANSWERS, strict=True)):
        for text, value in ((one, got.clean[index]), (other, got.corrupted[index])):
            logits = logits_of(lm, text)
            r, w = lm.tokenizer.convert_tokens_to_ids([right, wrong])
            logs, clean = logits.log_softmax(-1), logits_of(lm, one).log_softmax(-1)
            want = {
                "logit_diff": logits[r] - logits[w],
                "logit": logits[r],
                "prob": logs[r].exp(),
                "loss": -logs[r],
                "kl": (clean.exp() * (clean - logs)).sum(),
            }[metric]
            assert value == pytest.approx(float(want), abs=1e-4 * max(1.0, abs(float(want))))
    assert got.metric == metric and got.notes["metric"] == f"{metric} after the last token"
    if metric == "prob":
        assert got.notes["answers"].startswith("'child' (")


def test_a_masked_model_answers_at_its_mask(fresh):
    lm = mh.load(tiny_bert(BertForMaskedLM, seed=draw(fresh)), tokenizer=tiny_tokenizer())
    one, other = "the king gave the [MASK] a book", "the queen gave the [MASK] a map"
    got = mh.patch(lm, one, other, answers=("child", "dog"), controls=0)
    ids = lm.tokenizer(one, return_tensors="pt")
    place = ids["input_ids"][0].tolist().index(lm.tokenizer.mask_token_id)
    with torch.no_grad():
        logits = lm.model(**ids).logits[0, place]
    child, dog = lm.tokenizer.convert_tokens_to_ids(["child", "dog"])
    assert got.clean[0] == pytest.approx(float(logits[child] - logits[dog]), abs=1e-4)
    assert got.notes["metric"] == "logit_diff at the mask"


def test_pairs_of_unlike_lengths_are_patched_as_each_by_itself(fresh):
    lm = loaded("llama", draw(fresh))
    texts = [(*CLEAN, "the old king"), (*CORRUPTED, "the new king")]
    answers = [*ANSWERS, ("was", "were")]
    together = mh.patch(lm, *texts, answers=answers, num_tokens=90)
    for index in range(3):
        alone = mh.patch(lm, texts[0][index], texts[1][index], answers=answers[index], controls=0)
        assert together.per_text[index] * together.gap == pytest.approx(alone.values * alone.gap, abs=1e-4)
    assert together.num_texts == 3 and len(together.control) == 10
    with pytest.raises(StatisticError, match=r"texts of 3 to 8 tokens have no positions in common: give pairs of one"):
        mh.patch(lm, *texts, answers=answers, positions="each")
    mh.patch(lm, *texts, answers=answers, positions=[-1], controls=0)


def test_a_result_says_what_it_is(fresh, tmp_path):
    lm = loaded("llama", draw(fresh))
    texts = [
        [words.replace("book", thing).replace("map", thing) for thing in ("book", "tree", "sun", "fire", "snow")]
        for words in (CLEAN[0], CORRUPTED[0])
    ]
    noise, denoise = (
        mh.patch(lm, *texts, answers=ANSWERS[0], what="v", direction=direction, seed=3)
        for direction in ("noise", "denoise")
    )
    assert (denoise.level == denoise.values).all() and noise.level == pytest.approx(1 - noise.values)
    low, high = noise.interval
    assert ((low < noise.values) & (noise.values < high)).all()
    ranking = noise.ranking()
    assert sorted(ranking, key=lambda head: -abs(noise[head])) == list(ranking)
    assert noise["L1H2"] == noise.values[noise.head_place("L1H2")]
    frame = noise.to_pandas()
    assert list(frame.columns) == ["head", "stack", "layer", "index", "effect", "low", "high", "change"]
    assert frame["change"].to_numpy() == pytest.approx(noise.values * noise.gap)
    noise.save(tmp_path / "heads.csv")
    assert 0 <= noise.share_of_controls_above("L0H1") <= 1 and len(noise.control) == 10
    assert noise.control == mh.patch(lm, *texts, answers=ANSWERS[0], what="v", direction="noise", seed=3).control
    assert "heads that share a key/value head are patched one by one" in noise.notes["patched"]
    assert noise.to_dict()["heads"][3]["head"] == str(noise.heads[3])
    few = mh.patch(lm, *texts, answers=ANSWERS[0], what="v", direction="noise", heads="L1H1, L2", controls=0)
    assert [few[head] for head in few.heads] == pytest.approx([noise[head] for head in few.heads], abs=1e-5)
    with pytest.raises(HeadError, match="ask for one, as in patching"):
        noise["L1"]
    with pytest.raises(StatisticError, match="have different heads or positions"):
        noise.agreement(few)


def test_each_position_has_its_token_and_a_row(fresh):
    lm = loaded("gpt2", draw(fresh))
    got = mh.patch(lm, CLEAN[0], CORRUPTED[0], answers=ANSWERS[0], positions="each", controls=0)
    assert got.positions == ("the", "king/queen", "gave", "the", "book/map", "to", "the")
    assert got.values.shape == (12, 7) and len(got.to_pandas()) == 84
    # Before the texts differ nothing can be patched; in the last layer only the last row is read. In logits: of some
    # draws the whole gap is small.
    gap = abs(got.clean - got.corrupted).max()
    assert abs(got.values[:, 0]).max() * gap < 1e-5 and abs(got.by_position("L2H1")[:-1]).max() * gap < 1e-5
    strongest = abs(got.by_position("L0H2")).max()
    assert abs(got.by_head[got.head_place("L0H2")]) == strongest
    refuses(StatisticError, r"^patching\['L0H2'\]: each position was patched, so a head has 7 values: ask "
            r"patching.by_position\('L0H2'\)\.$", lambda: got["L0H2"])  # fmt: skip
    assert len(json.dumps(got.to_dict(), allow_nan=False)) > 84
    everywhere = mh.patch(lm, CLEAN[0], CORRUPTED[0], answers=ANSWERS[0], positions=range(7), controls=0)
    by_default = mh.patch(lm, CLEAN[0], CORRUPTED[0], answers=ANSWERS[0])
    assert everywhere.values * gap == pytest.approx(by_default.values * gap, abs=1e-5)
    refuses(StatisticError, r"by_position\('L0H2'\): a head has one value here, patching\['L0H2'\]: patch\(\.\.\., "
            r"positions='each'\) has one for each position", everywhere.by_position, "L0H2")  # fmt: skip
    with pytest.raises(HeadError, match="ask for one, as in patching"):
        got.by_position("L1")


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (
            TextError,
            r"clean text has 7 tokens and the corrupted one 8.*first differ at token 1: "
            r"clean 'the' 'king' 'gave' 'the' 'book' 'to', corrupted 'the' 'old' 'queen' 'gave' 'the' 'book'",
            {"corrupted": "the old queen gave the book to the"},
        ),
        (TextError, "have the same tokens, so nothing can be patched", {"corrupted": CLEAN[0]}),
        (TextError, "1 clean texts and 2 corrupted ones", {"corrupted": list(CORRUPTED)}),
        (TextError, "give a text each, or a list of at least one|are a text each", {"clean": []}),
        (TextError, r"reads answers, one for all or one for each of 1 texts: answers=\(", {"answers": None}),
        (TextError, "is 2 tokens here .* read only its first, first_token=True", {"answers": ("old king", "dog")}),
        (TextError, "begin with the same token", {"answers": ("king", "king")}),
        (TextError, "is not a word of", {"answers": ("zyzzyva", "dog")}),
        (TextError, "is not a token of .* whose vocabulary has", {"answers": (5, 10**6)}),
        (TextError, "are 'dog': give answers=", {"answers": "dog"}),
        (TextError, "leave answers= out", {"metric": "kl"}),
        (StatisticError, "metric='accuracy' is unknown: use one of logit_diff", {"metric": "accuracy"}),
        (StatisticError, "what='keys' is unknown: use one of out, q", {"what": "keys"}),
        (StatisticError, "direction='both' is unknown", {"direction": "both"}),
        (StatisticError, "estimator='ablation' is unknown", {"estimator": "ablation"}),
        (StatisticError, "position 7 is not in a text of 7 tokens", {"positions": [7]}),
        (StatisticError, "positions='last': use 'all', 'each'", {"positions": "last"}),
        (StatisticError, "controls=-1: give 0 or more", {"controls": -1}),
        (
            StatisticError,
            "least at the clean run, so its gradient there is 0",
            {"metric": "kl", "answers": None, "direction": "noise", "estimator": "gradient"},
        ),
        (
            StatisticError,
            "a metric without a gradient",
            {
                "metric": lambda outputs, inputs: outputs.logits[:, -1].argmax(-1),
                "answers": None,
                "estimator": "gradient",
            },
        ),
        (
            StatisticError,
            "there is no difference that a head could carry",
            {"metric": lambda outputs, inputs: outputs.logits[:, 0, 3], "answers": None},
        ),
        (
            StatisticError,
            "gave NaN or infinity",
            {"metric": lambda outputs, inputs: outputs.logits[:, 0, 3] * torch.nan, "answers": None},
        ),
        (
            TextError,
            "answers= is for named metrics",
            {"metric": lambda outputs, inputs: outputs.logits[:, -1, 3]},
        ),
        (HeadError, "no", {"heads": "L7H1"}),
    ],
)
def test_mistakes_are_named(error, message, changes):
    lm = loaded("gpt2", 3)
    arguments = {"clean": CLEAN[0], "corrupted": CORRUPTED[0], "answers": ANSWERS[0], **changes}
    with pytest.raises(error, match=message):
        mh.patch(lm, **arguments)


def test_models_that_answer_nothing_say_so():
    with pytest.raises(
        StatisticError, match=r"reads logits over a vocabulary, and BertModel has none: load a language"
    ):
        mh.patch(loaded("bert", 1), CLEAN[0], CORRUPTED[0], answers=ANSWERS[0])
    lm = mh.load(tiny_bert(BertForMaskedLM), tokenizer=tiny_tokenizer())
    with pytest.raises(StatisticError, match=r"write one \[MASK\] in each text, at the same place in both"):
        mh.patch(lm, CLEAN[0], CORRUPTED[0], answers=ANSWERS[0])
    with pytest.raises(ModelError, match="has no tokenizer"):
        mh.patch(mh.load(lm.model, tokenizer=False), "a b", "a c", answers=ANSWERS[0])
    with pytest.raises(TextError, match="inputs to patch must have no padding"):
        ids = torch.arange(3, 9)[None]
        inputs = {"input_ids": ids, "attention_mask": (ids > 4).long()}
        mh.patch(loaded("gpt2", 1), inputs, {**inputs, "input_ids": ids + 1}, answers=(3, 4))


def test_the_first_token_of_an_answer_is_read_where_that_is_asked():
    lm = loaded("gpt2", 3)
    got = mh.patch(lm, CLEAN[0], CORRUPTED[0], "logit", "old king", first_token=True, controls=0)
    assert "the first of 2 tokens of 'old king'" in got.notes["answers"]
    assert got.values == pytest.approx(mh.patch(lm, CLEAN[0], CORRUPTED[0], "logit", "old", controls=0).values)


# ================================================================================================================ paths
# A path is what plain hooks on the models' own modules make of it; the two heads of induction talk by keys.


def truth_of_path(oracle, base, other, sender, receiver, channel):
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


@pytest.mark.parametrize(
    ("name", "channel", "direction"),
    [
        ("gpt2", "q", "noise"),
        ("llama", "v", "denoise"),
        ("gpt_neox", "k", "denoise"),
        ("gemma2", "k", "noise"),
    ],
)
def test_a_path_is_what_hooks_make_of_it(name, channel, direction, fresh):
    lm, clean, corrupted, metric, oracle = made(name, fresh)
    base, other = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
    got = path_effect(lm, clean, corrupted, "L0H1", "L1H3", channel, metric, direction=direction)
    want = truth_of_path(oracle, base, other, (0, 1), (1, 3), channel) - oracle.run(base)
    changes = torch.from_numpy(got.per_text) * (got.clean - got.corrupted) * (1 if direction == "denoise" else -1)
    assert want.abs().max() > 1e-5
    assert (changes - want).abs().max() <= 1e-8 * max(1.0, float(want.abs().max()))


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


def test_paths_of_a_model_that_shares_no_layers_are_the_same_and_a_first_layer_has_none(fresh, monkeypatch):
    lm, clean, corrupted, metric, _ = made("gpt2", fresh)
    shared = path_effects(lm, clean, corrupted, "L1H2", metric=metric)
    assert path_effects(lm, clean, corrupted, "L0H2", metric=metric) == ()
    monkeypatch.setattr("manyheads.edits.runner.blocks_of", lambda model, spec: ([], "of a test"))
    alone = path_effects(lm, clean, corrupted, "L1H2", metric=metric)
    assert len(alone) == len(shared) == 3 * 4 and [str(one.channel) for one in alone[:3]] == list("qkv")
    for one, other in zip(alone, shared, strict=True):
        assert np.abs(one.per_text - other.per_text).max() <= 1e-8 * max(1.0, abs(other.value))


@pytest.mark.parametrize(("direction", "passes"), [("denoise", 2), ("noise", 3)])
def test_kl_compares_both_runs_of_a_path_with_one_clean_run(direction, passes, fresh):
    lm, count = loaded("gpt2", draw(fresh)), []
    hook = lm.model.register_forward_pre_hook(lambda *_: count.append(1))
    got = path_effects(lm, CLEAN, CORRUPTED, "L1H2", ["L0H1", "L0"], ("v",), metric="kl", direction=direction)
    hook.remove()
    # Of each pair: the two runs (and the clean one before them, where it is not the first), a hold, a path; and once
    # an expanded batch that is checked, beside a plain one. Besides, of each pair the later rows unedited, and once
    # what the head reads of them where they join block by block, beside what it read of whole texts.
    assert len(count) == 2 * (passes + 2) + 2 + 2 + 2 and got[0].clean == pytest.approx(0, abs=1e-6)
    wanted = [logits_of(lm, text).log_softmax(-1) for text in (*CLEAN, *CORRUPTED)]
    kl = [float((one.exp() * (one - other)).sum()) for one, other in zip(wanted[:2], wanted[2:], strict=True)]
    # Logarithms of probabilities are rounded to some 5e-7 in float32.
    assert got[0].corrupted == pytest.approx(sum(kl) / 2, rel=1e-4, abs=1e-6)


def test_several_texts_have_an_interval(fresh):
    lm, *_ = made("gpt2", fresh)
    sides = [{"input_ids": torch.randint(3, 90, (6, LENGTH), generator=fresh)} for _ in range(2)]
    got = path_effect(lm, *sides, "L0", "L1H2", "v", answers=(4, 9))
    assert got.low < got.value < got.high and len(got.senders) == 4


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"channel": "out"}, StatisticError, "channel='out' is unknown: use one of q, k, v"),
        ({"direction": "up"}, StatisticError, "direction='up' is unknown"),
        ({"sender": "L1H1"}, HeadError, "L1H1 does not run before L1H3"),
        ({"receiver": "L1"}, HeadError, "'L1' is 4 heads: a path ends in one"),
    ],
)
def test_mistakes_about_paths_are_named(changes, error, message, fresh):
    lm, clean, corrupted, metric, _ = made("gpt2", fresh)
    with pytest.raises(error, match=message):
        path_effect(lm, clean, corrupted, **{"sender": "L0H1", "receiver": "L1H3", "metric": metric, **changes})
