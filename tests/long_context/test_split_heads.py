"""Which heads need the whole context: scores, losses, recall and written texts are those of dense masks and eager maps.

Oracles: the model's own eager attention under a dense mask, in float64 (of the tests of streaming heads); NumPy over
its eager maps; its own generate; and a model whose one far-looking head is known beforehand.
"""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import manyheads as mh
from manyheads.errors import FileAccessError, ModelError, StatisticError, TextError
from manyheads.figures import save_split
from manyheads.lab import design
from manyheads.long_context import HeadSplit, Needle, retrieval_heads
from manyheads.long_context.needles import hidden_needles
from manyheads.long_context.split_layer import SplitLayer
from tests.edits.test_streaming import dense
from tests.figures.pictures import KINDS, assert_is_file_of, words_in
from tests.models import tiny
from tests.models.eager import draw, eager_maps
from tests.refusals import refuses

SINK, RECENT = 2, 5
WRITTEN = 7
LENGTHS = (23, 31, 17, 9, 26, 30, 14, 35)
MAKERS = {"llama": tiny.tiny_llama, "gemma2": tiny.tiny_gemma2}


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    monkeypatch.setattr(retrieval_heads, "WRITTEN", WRITTEN)


def loaded(fresh, name="llama", *, tokenizer=None, **config):
    """Without a tokenizer; logits far apart, so that losses differ by what heads do."""
    model = MAKERS[name](seed=draw(fresh), **config)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(30.0)
    if name == "gemma2":
        model.set_attn_implementation("eager")
    return mh.load(model, tokenizer=tokenizer or False)


def token_rows(fresh, lengths=LENGTHS):
    return [torch.randint(5, tiny.VOCAB_SIZE, (length,), generator=fresh).tolist() for length in lengths]


def needles_in(fresh, count=5, key=3, length=33):
    """Random tokens, among them a key of `key` tokens whose copy ends the text."""
    needles = []
    for row in token_rows(fresh, [length] * count):
        begin = int(torch.randint(3, length - key - 12, (1,), generator=fresh))
        row[-key:] = row[begin : begin + key]
        needles.append(Needle(tuple(row), (length - key, length), (begin, begin + key)))
    return needles


def split_of(lm, rows, keep=0.5, **options):
    return mh.split_heads(lm, rows, keep, **{"sink": SINK, "recent": RECENT, "random": 0, "needles": (), **options})


def loss_of(model, row):
    ids = torch.tensor([row])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits.double()
    return float(F.cross_entropy(logits[0, :-1], ids[0, 1:]))


def streaming_losses(lm, rows, layers):
    """Each row's loss where these heads stream, {layer: heads}, under a dense mask in float64."""
    with dense(lm, torch.zeros(1), SINK, RECENT, layers=layers) as model:
        return np.array([loss_of(model, row) for row in rows])


def by_layer(heads):
    return {layer: list(indices) for (_, layer), indices in heads.by_layer().items()}


# -------------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(("name", "divided"), [("llama", (0, 1, 2)), ("gemma2", (1,))])
def test_the_effect_of_a_group_is_the_loss_under_a_dense_mask_on_the_half_that_chooses(name, divided, fresh):
    """Gemma 2's first and last layer have windows of 7, which are sink + recent: they stream already."""
    lm, rows = loaded(fresh, name), token_rows(fresh)
    split = split_of(lm, rows)
    plain = streaming_losses(lm, rows[::2], {})
    assert tuple(number for number, _ in split.dividable) == divided
    largest = 0.0
    for number, layer in enumerate(split.layers):
        size = layer.num_heads // layer.num_kv_heads
        for g, score in enumerate(layer.scores):
            heads = list(range(g * size, (g + 1) * size))
            changes = streaming_losses(lm, rows[::2], {number: heads}) - plain if number in divided else np.zeros(1)
            assert score == pytest.approx(changes.mean(), abs=1e-5)
            largest = max(largest, abs(score))
    assert largest > 1e-4
    assert (split.by, split.unit, split.joined) == ("effect", "nats a token", "group")
    table = split.to_pandas()[lambda rows: rows.layer.isin(divided)]
    kept, others = (table[table.keeps_everything == flag].score for flag in (True, False))
    assert kept.min() >= others.max() and len(kept) == round(0.5 * len(table))


@pytest.mark.parametrize(("name", "divided"), [("llama", (0, 1, 2)), ("gemma2", (1,))])
def test_the_needle_effect_of_a_group_is_the_answers_loss_under_a_dense_mask(name, divided, fresh):
    """Of needles of several lengths, whose answers stand anywhere, also at the very end."""
    lm, rows, needles = loaded(fresh, name), token_rows(fresh), []
    for number, length in enumerate((33, 27, 41, 36, 30, 25)):
        row = token_rows(fresh, [length])[0]
        begin, after, key = 3 + number % 2, number % 3, 2 + number % 2
        answer = (length - after - key, length - after)
        row[slice(*answer)] = row[begin : begin + key]
        needles.append(Needle(tuple(row), answer, (begin, begin + key)))

    def losses(layers):
        with dense(lm, torch.zeros(1), SINK, RECENT, layers=layers) as model, torch.no_grad():
            each = []
            for needle in needles[::2]:  # the half that chooses
                begin, end = needle.answer
                logits = model(torch.tensor([needle.ids]), use_cache=False).logits[0].double()
                logs = logits - logits.logsumexp(-1, keepdim=True)
                each.append(-np.mean([float(logs[place - 1, needle.ids[place]]) for place in range(begin, end)]))
        return np.array(each)

    split, plain, largest = split_of(lm, rows, by="needle_effect", needles=needles, also=["effect"]), losses({}), 0.0
    for number in divided:
        layer = split.layers[number]
        size = layer.num_heads // layer.num_kv_heads
        for g, score in enumerate(layer.scores):
            change = (losses({number: list(range(g * size, (g + 1) * size))}) - plain).mean()
            assert score == pytest.approx(change, abs=2e-5)
            largest = max(largest, abs(score))
    assert largest > 1e-3
    assert (split.by, split.unit, split.joined) == ("needle_effect", "nats a token of an answer", "group")
    assert split.evidence["criteria"]["effect"] != split.evidence["criteria"]["needle_effect"]
    assert "effect ~ needle_effect" in split.evidence["agreement"]
    assert all(layer.query_scores == () for layer in split.layers)


@pytest.mark.parametrize("name", MAKERS)
def test_distant_mass_is_numpys_over_eager_maps_and_a_group_has_its_highest(name, fresh):
    lm, rows = loaded(fresh, name), token_rows(fresh)
    split = split_of(lm, rows, by="distant_mass")
    num, den = np.zeros((3, lm.spec.layers[0].num_heads)), np.zeros(3)
    for row in rows[::2]:
        for layer, maps in enumerate(eager_maps(lm.model, input_ids=torch.tensor([row]))):
            query, key = np.arange(len(row))[:, None], np.arange(len(row))[None]
            window = {"llama": 99}.get(name, 99 if layer == 1 else 7)
            far = (key >= SINK) & (key <= query - RECENT) & (key > query - window)
            num[layer] += (maps[0].numpy() * far).sum((1, 2))
            den[layer] += far.any(1).sum()
    for number, layer in split.dividable:
        want = num[number] / den[number]
        np.testing.assert_allclose(layer.query_scores, want, atol=1e-5)
        np.testing.assert_allclose(layer.scores, want.reshape(layer.num_kv_heads, -1).max(1), atol=1e-5)
    assert split.joined == "maximum" and split.unit == "share"
    assert "windows" in split.notes if name == "gemma2" else "windows" not in split.notes


@pytest.mark.parametrize("name", MAKERS)
def test_retrieval_scores_are_the_argmax_of_eager_maps(name, fresh):
    lm, rows, needles = loaded(fresh, name), token_rows(fresh), needles_in(fresh, 41)
    split = split_of(lm, rows, by="needle", needles=needles)
    want = [0.0] * 3
    for needle in needles[::2]:
        for layer, maps in enumerate(eager_maps(lm.model, input_ids=torch.tensor([needle.ids]))):
            for token in range(*needle.answer):
                strongest = maps[0, :, token - 1].argmax(-1).numpy()
                in_needle = (strongest >= needle.needle_span[0]) & (strongest < needle.needle_span[1])
                copies = in_needle & (np.array(needle.ids)[strongest] == needle.ids[token])
                want[layer] = want[layer] + copies / 3 / len(needles[::2])
    for number, layer in split.dividable:
        np.testing.assert_allclose(layer.query_scores, want[number], atol=1e-9)
    assert max(score for _, layer in split.dividable for score in layer.scores) > 0
    # Shares of few tokens are often equal: heads that stream by their place alone are counted.
    scores = np.concatenate([layer.scores for _, layer in split.dividable])
    last = np.sort(scores)[::-1][round(0.5 * len(scores)) - 1]
    left_out = int((scores >= last).sum()) - round(0.5 * len(scores))
    words = f"{int((scores == last).sum())} key/value heads score {last:.3g}, where the share ends: {left_out} of them"
    assert split.notes.get("ties", "").startswith(words) == (left_out > 0)


@pytest.mark.slow
def test_agreement_is_the_rank_correlation_of_what_was_computed(fresh):
    lm = loaded(fresh)
    split = split_of(lm, token_rows(fresh), by="distant_mass", also=["effect"])
    a, b = (np.concatenate(split.evidence["criteria"][name]) for name in ("distant_mass", "effect"))
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
    assert split.evidence["agreement"]["distant_mass ~ effect"] == pytest.approx(np.corrcoef(ranks)[0, 1])
    assert len(a) == 9 and "effect" not in split_of(lm, token_rows(fresh), by="distant_mass").evidence["criteria"]


# ------------------------------------------------------------------------------------------------------------ evidence


@pytest.mark.slow
def test_losses_and_recall_of_the_other_half_are_those_under_dense_masks(fresh):
    lm, rows, needles = loaded(fresh), token_rows(fresh), needles_in(fresh, 8, key=1)
    with torch.no_grad():  # an answer that the whole model gives, for half of the needles
        for place in (1, 5):
            ids = torch.tensor([needles[place].ids[:-1]])
            answer = int(lm.model(ids).logits[0, -1].argmax())
            needles[place] = Needle((*needles[place].ids[:-1], answer), *[getattr(needles[place], name)
                                    for name in ("answer", "needle_span")])  # fmt: skip
    options = {"keep": 0.3, "by": "distant_mass", "needles": needles, "random": 2}
    split = split_of(lm, rows, **options, shares=9, random_curve=True)
    plain, streaming = (streaming_losses(lm, rows[1::2], layers) for layers in ({}, by_layer(split.streaming)))
    loss, evidence = split.evidence["loss"], split.evidence
    assert loss["before"] == pytest.approx(plain.mean(), abs=2e-5)
    weights = [len(row) - 1 for row in rows[1::2]]
    assert abs(loss["before"] - np.average(plain, weights=weights)) > 1e-4, "each text counts once, however long"
    assert split.notes["loss"] == "the mean over 4 texts that report of each one's mean over its tokens"
    assert " nats a token in the mean of the texts that report" in evidence["verdict"]["words"]
    assert loss["change"] == pytest.approx((streaming - plain).mean(), abs=2e-5)
    assert np.abs(streaming - plain).max() > 1e-3 and loss["low"] is None  # of four texts there is no interval
    assert len(loss["random"]) == 2 and loss["better"] == pytest.approx(np.mean(loss["random"]) - loss["change"])
    assert evidence["verdict"]["level"] == "no verdict" and "too few texts" in evidence["verdict"]["words"]
    assert evidence["recall"]["before"] == 0.5 and evidence["texts"]["reporting"] == 4
    with dense(lm, torch.zeros(1), SINK, RECENT, layers=by_layer(split.streaming)) as model, torch.no_grad():
        right = [int(model(torch.tensor([n.ids])).logits[0, -2].argmax()) == n.ids[-1] for n in needles[1::2]]
    assert evidence["recall"]["after"] == np.mean(right)
    lost = sum(max(0, len(row) - SINK - RECENT) for row in rows[1::2])
    assert evidence["texts"]["rows_that_lose_keys"] == lost / sum(map(len, rows[1::2]))
    for point in evidence["curve"]:
        other = split.with_keep(point["keep"])
        changes = streaming_losses(lm, rows[1::2], by_layer(other.streaming)) - plain if other.streaming else 0.0
        assert point["loss"]["change"] == pytest.approx(np.mean(changes), abs=2e-5)
    assert [point["keep"] for point in evidence["curve"]] == pytest.approx([0.1 * k for k in range(1, 11)])
    assert evidence["texts"]["reporting"] == 4 and all(len(point["loss"]["random"]) == 2 for point in evidence["curve"])
    other = split_of(lm, rows, keep=0.3, by="distant_mass", random=2, seed=7)
    assert other.layers == split.layers and other.evidence["loss"]["random"] != loss["random"]


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [LENGTHS, (23, 78, 17, 31, 26, 76)])
def test_the_written_share_is_that_of_the_models_own_generation_under_the_plan(lengths, fresh):
    """Of 80 positions: a text that leaves no room for what is written is cut."""
    lm, rows = loaded(fresh), token_rows(fresh, lengths)
    split = split_of(lm, rows, by="distant_mass", keep=0.25)
    plan, shares = split.ablation(), []
    for row in (row[: 80 - WRITTEN - 1] for row in rows[1::2]):
        options = {"max_new_tokens": WRITTEN, "do_sample": False, "pad_token_id": 0}
        ids = torch.tensor([row])
        own = lm.model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(row) :]
        with mh.applied(lm, plan):
            new = lm.model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(row) :]
        shares.append(float((own == new).cumprod(0).double().mean()))
    written = split.evidence["generation"]
    assert written["before"] == 1 and written["after"] == pytest.approx(np.mean(shares))
    assert 0 <= np.mean(shares) < 1


# ------------------------------------------------------------------------------------- a head that is known beforehand


def test_the_only_head_that_looks_far_is_kept_by_every_criterion_and_beats_random_heads(fresh):
    heads = [[design.previous(), design.first()], [design.first(), design.induction(), design.first()]]
    lm = design.build(heads, causal=True, max_positions=60, tokenizer=tiny.tiny_tokenizer(special_tokens=False))
    rows = [(5 + torch.randperm(tiny.VOCAB_SIZE - 5, generator=fresh)[:15]).tolist() * 2 for _ in range(12)]
    needles = [Needle(tuple(row), (24, 27), (9, 12)) for row in rows]
    for by, random in (("effect", 2), ("needle_effect", 0), ("distant_mass", 0), ("needle", 0)):
        split = split_of(lm, rows, 0.2, by=by, needles=needles, random=random)
        assert str(split.retrieval) == "L1H1" and split.keep == 0.2 and split.joined == "none"
        assert split.evidence["recall"]["before"] == split.evidence["recall"]["after"] == 1
        assert split.evidence["generation"] is None  # designed models have no generate()
        if random:
            assert split.evidence["verdict"]["level"] == "better"
            assert abs(split.evidence["loss"]["change"]) < 1e-4 and min(split.evidence["loss"]["random"]) > 0.5
            assert split.evidence["recall"]["random"] == [-1, -1]


def test_needles_lie_between_what_a_streaming_head_keeps_and_repeat_at_the_end(fresh):
    rows = token_rows(fresh, (60, 44, 12))
    words = loaded(fresh, tokenizer=tiny.tiny_tokenizer(special_tokens=False))
    for lm in (loaded(fresh), words):
        needles = hidden_needles(lm, rows, 4, 9, 6, 3)
        assert len(needles) >= 4  # none fits into the shortest
        for needle in needles:
            (begin, end), (first, last) = needle.answer, needle.needle_span
            assert needle.ids[begin:end] == needle.ids[first:last] and end == len(needle.ids) <= 80
            assert first >= 4 and last - 1 <= begin - 1 - 9
        depths = [needle.needle_span[0] for needle in needles[::3]]
        assert depths == sorted(depths) and depths[0] != depths[-1]
    assert not hidden_needles(words, rows, 40, 40, 6, 3)


# ---------------------------------------------------------------------------------------------------------- the value


def test_another_share_keeps_the_highest_scores_and_forgets_what_was_measured_at_the_first(fresh, unchecked_types):
    split = split_of(loaded(fresh), token_rows(fresh), by="distant_mass", keep=0.3)
    before: set = set()
    for share in (0.1, 0.2, 0.5, 0.9, 1):
        other = split.with_keep(share)
        heads = set(other.retrieval)
        assert before <= heads and other.keep == pytest.approx(max(1, round(share * 9)) / 9)
        assert set(other.evidence) & {"loss", "recall", "cache", "verdict", "generation"} == set()
        assert other.evidence["curve"] == split.evidence["curve"]
        before = heads
    assert split.with_keep(0.3) == split and len(before) == 18
    with pytest.raises(StatisticError, match=r"keep=nan is not a share of key/value heads to keep: give one above 0"):
        split.with_keep(float("nan"))


def test_the_cache_is_counted_head_by_head_and_a_window_holds_no_more_than_itself(fresh, tmp_path):
    lm = loaded(fresh, "gemma2")
    split = split_of(lm, token_rows(fresh), by="distant_mass", context=60, batch=3)
    assert [layer.window for layer in split.layers] == [7, 0, 7] and split.keep == 0.5
    positions = 7 * 2 + (60 + 7) + 7 * 2  # two key/value heads a layer, one of them keeps everything
    cache = split.evidence["cache"]
    assert cache["split"] == positions * 3 * (10 + 10) * 4 == split.cache_bytes(60, 3, 4)
    size = mh.size(lm.model.config.to_dict(), context=60, batch=3, dtype="fp32")
    assert cache["whole"] == (7 * 4 + 60 * 2) * 3 * 20 * 4 == size.cache.allocated
    assert {head.layer for head in split.streaming} == {0, 1, 2}
    assert "L0" not in str(split.ablation().heads) and "L1" in str(split.ablation().heads)
    split.save(tmp_path / "a.split.json")
    assert HeadSplit.open(tmp_path / "a.split.json") == split
    assert json.loads((tmp_path / "a.split.json").read_text())["layers"][0]["window"] == 7


@pytest.mark.thinned(kind=(".svg",))
@pytest.mark.parametrize("kind", KINDS)
def test_the_figure_shows_scores_and_the_curve(kind, fresh, tmp_path):
    split = split_of(loaded(fresh), token_rows(fresh), by="distant_mass", random=2)
    path = tmp_path / f"split{kind}"
    save_split(split, path)
    assert_is_file_of(kind, path)
    if kind == ".svg":
        words = words_in(path)
        assert "by distant_mass" in words and "at random" in words and "L2" in words
        bare = HeadSplit.from_dict({**split.to_dict(), "evidence": {}})
        refuses(StatisticError, "has no curve to draw: mh.split_heads measures it", save_split, bare, path)
        refuses(FileAccessError, "cannot tell what kind of figure", save_split, split, tmp_path / "a.bmp")


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("options", "words"), [
    ({"keep": 0.0}, "keep=0.0 is not a share of key/value heads to keep"),
    ({"keep": 1.01}, r"keep=1\.01 is not a share"),
    ({"by": "loss"}, "by='loss' chooses no heads: use one of effect, needle_effect, distant_mass, needle"),
    ({"also": ["gradient"]}, "by='gradient' chooses no heads"),
    ({"sink": -1}, "sink=-1: give a whole number, 0 or more"),
    ({"recent": 0}, "recent=0: give a whole number, 1 or more"),
    ({"random": -1}, "random=-1: give a whole number, 0 or more"),
    ({"batch": 0}, "batch=0: give a whole number, 1 or more"),
    ({"sink": 60, "recent": 20}, r"sink \+ recent = 80 positions, and the context has 80: nothing would ever"),
    ({"context": 7}, r"sink \+ recent = 7 positions, and the context has 7"),
    ({"sink": 20, "recent": 12}, r"32 positions, and 1 of 8 texts are longer \(the longest has 35 tokens\)"),
    ({"by": "needle"}, "'needle' is scored on needles, and none fits"),
    ({"by": "needle_effect"}, "'needle_effect' is scored on needles, and none fits"),
    ({"also": ["needle_effect"]}, "'needle_effect' is scored on needles, and none fits"),
])  # fmt: skip
def test_what_cannot_be_is_refused(options, words, fresh, unchecked_types):
    refuses(StatisticError, words, split_of, loaded(fresh), token_rows(fresh), **options)


def test_texts_that_cannot_be_read_are_refused(fresh):
    lm, rows = loaded(fresh), token_rows(fresh)
    for texts in (rows[:1], "one text", []):
        refuses(TextError, "a split needs a list of at least two texts", split_of, lm, texts)
    with pytest.raises(ModelError, match="has no tokenizer, so it cannot read text: give texts as lists of token ids"):
        split_of(lm, ["the cat sat", "a dog ran"])
    refuses(TextError, r"a text has 90 tokens, and LlamaForCausalLM has 80 positions", split_of, lm, [*rows, [7] * 90])
    with pytest.raises(TextError, match=rf"token {tiny.VOCAB_SIZE + 3} is not one of the {tiny.VOCAB_SIZE} tokens"):
        split_of(lm, [*rows, [tiny.VOCAB_SIZE + 3] * 20])
    for spans in (((3, 5), (4, 6)), ((9, 12), (1, 2)), ((4, 4), (1, 2))):
        refuses(StatisticError, "the needle comes first", Needle, tuple(range(10)), *spans)


@pytest.mark.parametrize(("make", "kind", "words"), [
    (tiny.tiny_bert, ModelError, "has no stacks of causal self-attention, and a split is for one: rows that look"),
    (tiny.tiny_t5, ModelError, "has cross-attention, whose keys are another text's"),
    (tiny.tiny_mistral, StatisticError, r"every layer of .* has a window of at most sink \+ recent = 7 positions"),
])  # fmt: skip
def test_models_that_cannot_be_split_are_refused(make, kind, words, fresh):
    lm = mh.load(make(seed=draw(fresh)), tokenizer=False)
    refuses(kind, words, split_of, lm, token_rows(fresh))


@pytest.mark.slow
def test_windows_of_one_text_count_once_and_short_texts_are_left_out(fresh):
    lm = loaded(fresh, tokenizer=tiny.tiny_tokenizer(special_tokens=False))
    with torch.no_grad():  # a pass key is one unknown word here: random weights must not write it by chance
        lm.model.get_output_embeddings().weight[lm.tokenizer.unk_token_id] = 0
    words = np.array(tiny.WORDS[:80])
    generator = np.random.default_rng(draw(fresh))
    texts = [" ".join(generator.choice(words, size)) for size in (110, 40, 3, 30, 150)]
    split = split_of(lm, texts, by="distant_mass", needles=None)
    assert split.evidence["texts"] | {"tokens": 0, "rows_that_lose_keys": 0} == {
        "choosing": 2, "reporting": 2, "left_out": 1, "tokens": 0, "rows_that_lose_keys": 0,
    }  # fmt: skip
    assert split.evidence["texts"]["tokens"] >= 40 + 150  # windows of the longest overlap
    assert split.notes["needles"].startswith("pass keys in 4 and 4 texts")  # two for each text of a half
    more = split_of(lm, texts, by="distant_mass", needles=3)
    assert more.notes["needles"].startswith("pass keys in 3 and 3 texts")
    assert split.evidence["recall"]["before"] == 0
    assert "The model finds no needle even with everything" in split.evidence["verdict"]["words"]


@pytest.mark.parametrize("random", [1, 2, 5])
def test_few_random_splits_are_said_to_stand_for_all(random):
    layer = SplitLayer(4, 2, 8, 8, (True, False), (0.5, 0.1))
    split = HeadSplit("m", "", "", (layer,), 3, 20, "effect", "nats", "group")
    loss = {"change": 0.1, "better": 0.3, "better_low": 0.2, "better_high": 0.4, "random": [0.4] * random}
    words = retrieval_heads.verdict_of(split, loss, None)["words"]
    assert words.startswith("Better than random: ")
    few = {1: "One random split stands", 2: "2 random splits stand"}.get(random)
    assert words.endswith(f"{few} for all others here: compare 5 or more.") == (few is not None)
