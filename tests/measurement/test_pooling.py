"""Pooled maps are the block means of the model's own eager maps; nothing visible is NaN; several texts are said."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import manyheads as mh
from manyheads.errors import HeadError, ShapeError, StatisticError, TextError
from manyheads.heads import Head
from manyheads.measurement import pooled_maps
from manyheads.recording.exact_map import one_pass as tiling
from manyheads.statistics.defined.own_pattern import pattern_statistics, targets
from tests.models.eager import draw, eager_maps
from tests.models.tiny import TEXT, WORDS, tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_t5, tiny_tokenizer
from tests.refusals import refuses
from tests.statistics.facts import written_text

TOLERANCE = 1e-5


def loaded(model, special_tokens=False):
    return mh.load(model, tokenizer=tiny_tokenizer(special_tokens=special_tokens))


def own_maps(lm, ids):
    """[head, n, n] as the model computes them under eager attention, NaN above what a causal row sees."""
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    maps = np.concatenate([layer[0].double().numpy() for layer in eager_maps(lm.model, **inputs)])
    if lm.spec.sites[0].causal:
        maps[:, ~np.tri(len(ids), dtype=bool)] = np.nan
    return maps


def blocks_of(maps, size, how="mean"):
    """Position i of n lies in block i * p // n; cell by cell, without the library."""
    n = maps.shape[-1]
    p = min(size, n)
    out = np.full((len(maps), p, p), np.nan)
    for row in range(p):
        for column in range(p):
            rows = [i for i in range(n) if i * p // n == row]
            keys = [j for j in range(n) if j * p // n == column]
            cells = maps[:, rows][:, :, keys].reshape(len(maps), -1)
            if not np.isnan(cells).all():
                out[:, row, column] = (np.nanmean if how == "mean" else np.nanmax)(cells, axis=1)
    return out


@pytest.mark.thinned
@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("size", [32, 7, 1])
@pytest.mark.parametrize("make", [tiny_bert, tiny_llama], ids=["bert", "llama"])
def test_one_text_is_exactly_the_block_means_of_the_models_own_maps(fresh, make, size, how):
    lm = loaded(make(seed=draw(fresh)))
    got = pooled_maps(lm, TEXT, size=size, how=how)
    want = blocks_of(own_maps(lm, lm.tokenizer(TEXT)["input_ids"]), size, how)
    assert got.maps.dtype == np.float32
    assert_allclose(got.maps, want, atol=TOLERANCE)  # NaN in the same places, too


def test_minilm_shows_its_previous_token_head_cell_by_cell(minilm):
    text = "The cat sat on the mat, and the dog sat on the cat."
    got = pooled_maps(minilm, text)
    want = own_maps(minilm, minilm.tokenizer(text)["input_ids"])
    assert_allclose(got.maps, want, atol=TOLERANCE)
    assert got.exact and got.because == "every cell"
    assert got.tokens[:4] == ("[CLS]", "The", "cat", "sat") and len(got.tokens) == got.num_tokens == want.shape[-1]
    assert len(got.heads) == 72 and got["L0H2"].diagonal(-1).mean() > 0.9
    assert got.heads[14] == Head("", 1, 2) and got["L1H2"] is not None and (got["L1H2"] == got.maps[14]).all()


def test_nothing_visible_is_nan_and_not_zero_also_where_layers_see_differently(fresh):
    got = pooled_maps(loaded(tiny_llama(seed=draw(fresh))), TEXT, size=5)
    above = ~np.tri(5, dtype=bool)
    assert np.isnan(got.maps[:, above]).all() and not np.isnan(got.maps[:, ~above]).any()
    lm = loaded(tiny_gemma2(seed=draw(fresh)))  # window 7, full, window 7
    got = pooled_maps(lm, TEXT, size=64)
    n = got.num_tokens
    far = np.tri(n, k=-7, dtype=bool)
    for layer, windowed in enumerate([True, False, True]):
        assert np.isnan(got[f"L{layer}H0"][far]).all() == windowed


@pytest.mark.parametrize(
    ("size", "because"), [(7, "mean of 3 x 3 cells"), (8, "mean of blocks of 2 or 3 cells a side")]
)
def test_the_blocks_are_said(fresh, size, because):
    got = pooled_maps(loaded(tiny_llama(seed=draw(fresh))), TEXT, size=size)
    assert (got.num_tokens, got.because, got.exact) == (21, because, False)


def test_a_long_text_is_the_mean_over_its_full_windows(fresh):
    lm = loaded(tiny_bert(seed=draw(fresh)), special_tokens=True)  # 64 positions
    text = " ".join(WORDS[int(at)] for at in torch.randint(len(WORDS), (150,), generator=fresh))  # a token each
    windows = lm.tokenizer(text, truncation=True, max_length=64, stride=8, return_overflowing_tokens=True)["input_ids"]
    full = [ids for ids in windows if len(ids) == 64]
    assert len(full) >= 2 and len(windows[-1]) < 64
    got = pooled_maps(lm, text, size=16)
    assert_allclose(got.maps, np.mean([blocks_of(own_maps(lm, ids), 16) for ids in full], 0), atol=TOLERANCE)
    assert got.num_tokens == 64 * len(full) and got.tokens == () and not got.exact
    assert got.because == f"mean over {len(full)} windows of 64 tokens, mean of 4 x 4 cells (1 shorter window left out)"


def test_a_cut_text_shows_its_first_window_and_says_so(fresh):
    lm = loaded(tiny_bert(seed=draw(fresh)), special_tokens=True)
    text = written_text(fresh, 150)
    got = pooled_maps(lm, mh.Inputs(text, long="truncate"), size=16)
    ids = lm.tokenizer(text, truncation=True, max_length=64)["input_ids"]
    assert_allclose(got.maps, blocks_of(own_maps(lm, ids), 16), atol=TOLERANCE)
    assert len(got.tokens) == 64
    assert got.because == "mean of 4 x 4 cells; the text cut to the model's 64 positions"
    refuses(TextError, "64 positions", pooled_maps, lm, mh.Inputs(text, long="whole"))


def test_several_texts_share_the_blocks_of_the_shortest(fresh):
    lm = loaded(tiny_llama(seed=draw(fresh)))
    texts = [TEXT, " ".join(TEXT.split()[:6]), TEXT + " " + TEXT]
    lengths = [len(lm.tokenizer(text)["input_ids"]) for text in texts]
    alone = [blocks_of(own_maps(lm, lm.tokenizer(text)["input_ids"]), min(lengths)) for text in texts]
    got = pooled_maps(lm, texts)
    assert_allclose(got.maps, np.ma.masked_invalid(alone).mean(0).filled(np.nan), atol=TOLERANCE)
    p = min(lengths)
    assert got.because == f"mean over 3 texts of {p} to {max(lengths)} tokens, each in {p} x {p} blocks"
    most = pooled_maps(lm, texts, how="max")
    whole = [blocks_of(own_maps(lm, lm.tokenizer(text)["input_ids"]), p, "max") for text in texts]
    assert_allclose(most.maps, np.fmax.reduce(whole), atol=TOLERANCE)


def test_a_long_text_among_others_is_said_and_progress_counts_every_token_once(fresh):
    lm = loaded(tiny_bert(seed=draw(fresh)), special_tokens=True)
    got = pooled_maps(lm, [TEXT, written_text(fresh, 150)], size=4)
    assert got.because.startswith("mean over ") and "texts and windows of 23 to 64 tokens" in got.because
    seen = []
    got = pooled_maps(loaded(tiny_bert(seed=draw(fresh))), [TEXT] * 3, progress=lambda *done: seen.append(done))
    assert seen[-1] == (got.num_tokens, got.num_tokens) == (63, 63)
    assert seen == sorted(seen)


def test_order_and_batches_of_texts_do_not_matter(fresh, monkeypatch):
    lm = loaded(tiny_bert(seed=draw(fresh)).double())  # other batches, other sums
    texts = [written_text(fresh, 9 + n) for n in range(5)]
    one = pooled_maps(lm, texts)
    monkeypatch.setattr("manyheads.inputs.Reading.batches.__defaults__", (20, None))
    other = pooled_maps(lm, texts[::-1])
    assert_allclose(one.maps, other.maps, atol=1e-6)
    assert one.because == other.because


def test_cross_attention_is_left_out_though_the_decoder_reads_as_many_tokens(fresh):
    lm = loaded(tiny_t5(seed=draw(fresh)))
    assert {site.stack for site in lm.spec.sites} == {"encoder", "decoder", "cross"}
    got = pooled_maps(lm, TEXT, size=4)
    assert {site.stack for site in got.sites} == {"encoder", "decoder"}
    assert len(got.heads) == len(got.maps) == sum(site.num_heads for site in lm.spec.sites if site.stack != "cross")


def test_no_map_is_ever_held(fresh, monkeypatch):
    lm = loaded(tiny_llama(seed=draw(fresh)).double())
    whole = pooled_maps(lm, TEXT, size=4).maps
    monkeypatch.setattr(tiling, "TILE_CELLS", 1)
    monkeypatch.setattr(tiling, "TILE_KEYS", 5)
    tiles = []
    compute = tiling.GroupPass._tile
    monkeypatch.setattr(
        tiling.GroupPass,
        "_tile",
        lambda self, rows, keys, border: tiles.append((rows, keys)) or compute(self, rows, keys, border),
    )
    assert_allclose(pooled_maps(lm, TEXT, size=4).maps, whole, atol=1e-6)
    assert max(rows.stop - rows.start for rows, _ in tiles) <= 8 and max(k.stop - k.start for _, k in tiles) <= 5


def test_what_cannot_be_pooled_is_said_and_words_are_as_they_were_written(fresh):
    lm = loaded(tiny_bert(seed=draw(fresh)))
    with pytest.raises(StatisticError, match=r"how='median' is not a way to pool: use one of mean, max"):
        pooled_maps(lm, TEXT, how="median")
    refuses(ShapeError, r"size=0: a map has at least one block a side", pooled_maps, lm, TEXT, size=0)
    refuses(TextError, "empty", pooled_maps, lm, "  ")
    maps = pooled_maps(lm, TEXT)
    with pytest.raises(HeadError, match=r"no head L7H0 in these maps: they hold L0H0 to L1H4"):
        maps["L7H0"]
    with pytest.raises(HeadError, match="does not name one head"):
        maps["L7"]
    got = pooled_maps(loaded(tiny_bert(seed=draw(fresh)), special_tokens=True), "The OLD cat: Zyzzyva!")
    assert_array_equal(got.tokens, ["[CLS]", "The", "OLD", "cat", ":", "Zyzzyva", "!", "[SEP]"])


# ================================================================================================ patterns of one's own
# A pattern of one's own scores what the model's own eager maps say of the places it names, beside its chance.


def vowels(pieces):
    """Every token looks at the tokens that begin with a vowel, itself left out; odd ones at nothing."""
    places = [at for at, piece in enumerate(pieces) if piece[:1] in "aeiou"]
    return [None if at % 2 else [place for place in places if place != at] for at in range(len(pieces))]


def before(pieces):
    return [None, *range(len(pieces) - 1)]


def texts_of(seed, count=9):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS[:120], k=draw.randint(4, 17))) for _ in range(count)]


def maps_of(model, ids):
    return [layer[0].double().numpy() for layer in eager_maps(model, input_ids=ids)]


@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2], ids=["bidirectional", "causal"])
def test_a_pattern_scores_the_mean_weight_on_its_places(fresh, make):
    seed = int(torch.randint(1 << 30, (1,), generator=fresh))
    texts, tokenizer = texts_of(seed), tiny_tokenizer()
    lm = mh.load(make(seed=seed), tokenizer=tokenizer)
    table = mh.measure(lm, texts, pattern_statistics({"vowels": vowels, "before": before}))
    sums = {name: np.zeros((len(table.heads), 2)) for name in table.names}
    eager = make(seed=seed).eval()
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids
        maps = np.concatenate(maps_of(eager, ids))
        pieces = ["" if at in (0, ids.shape[1] - 1) else text.split()[at - 1] for at in range(ids.shape[1])]
        named = [p or tokenizer.convert_ids_to_tokens(int(i)) for i, p in zip(ids[0], pieces, strict=True)]
        order = mh.record(lm, text).layers[0].tokens.relabelling[0].tolist()
        for name, pattern in (("vowels", vowels), ("before", before)):
            seen = lambda i, j: make is tiny_bert or j <= i  # noqa: E731
            plain = [[x] if isinstance(x, int) else list(x or ()) for x in pattern(named)]
            moved = [[x] if isinstance(x, int) else list(x or ()) for x in pattern([named[at] for at in order])]
            moved = [new if set(new) != set(old) else [] for new, old in zip(moved, plain, strict=True)]
            for suffix, places in (("", plain), (".relabelled", moved)):
                for i, where in enumerate(places):
                    where = [j for j in where if seen(i, j)]
                    if where:
                        sums[name + suffix] += np.stack([maps[:, i, where].sum(-1), np.ones(len(maps))], 1)
            for i, where in enumerate(plain):
                where = [j for j in where if seen(i, j)]
                if where:
                    width = i + 1 if make is tiny_gpt2 else len(named)
                    sums[f"{name}.uniform"] += [len(where) / width, 1]
    assert not sums["before.relabelled"].any(), "places alone do not change when words are shuffled"
    for name, both in sums.items():
        if both[:, 1].any():
            np.testing.assert_allclose(table.column(name), both[:, 0] / both[:, 1], atol=1e-5, err_msg=name)
    assert np.isnan(table.column("before.relabelled")).all()
    assert not np.allclose(table.column("vowels"), table.column("vowels.relabelled"), atol=1e-3)


@pytest.mark.parametrize(("pattern", "match"), [
    (lambda pieces: [0], r"gave 1 answer for \d+ tokens"),
    (lambda pieces: None, r"gave a NoneType"),
    (lambda pieces: [-1 for _ in pieces], r"points at \[-1\].*places count from 0"),
    (lambda pieces: [len(pieces) for _ in pieces], r"points at"),
])  # fmt: skip
def test_a_pattern_that_names_no_places_is_refused(pattern, match):
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    refuses(StatisticError, match, mh.measure, lm, ["the cat sat"], pattern_statistics({"mine": pattern}))


def divides(pieces):
    return [at // abs(len(pieces) - 5) for at, _ in enumerate(pieces)]  # the third text has five tokens


def past_the_end(pieces):
    return [pieces.index(pieces[len(pieces)])]


def of_two(pieces, more):
    return more


@pytest.mark.parametrize(("pattern", "match"), [
    (divides, r"the pattern 'mine' \(test_pooling.py, line \d+\) failed on text 'the man saw': ZeroDivision"),
    (past_the_end, r"line \d+\) failed on text 'the cat': IndexError: list index"),
    (of_two, r"line \d+\) failed on text 'the cat': TypeError: .*missing 1 required"),
    (lambda pieces: [0.5 for _ in pieces], r"\(test_pooling.py, line \d+\) gave 0.5 for token 0"),
    (lambda pieces: ["ab" for _ in pieces], r"gave 'ab' for token 0"),
    (lambda pieces: "x" * len(pieces), r"gave a str for"),
    (lambda pieces: torch.zeros(len(pieces), 2, 2), r"gave \[\[0.0, 0.0\], \[0.0, 0.0\]\] for token 0"),
])  # fmt: skip
def test_an_error_in_a_pattern_ends_the_run_and_is_said_with_file_line_and_text(pattern, match):
    """... though errors of texts alone end none: of these three texts, two may be fine."""
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    with pytest.raises(StatisticError, match=match):
        mh.measure(lm, iter(["the cat", "a dog", "the man saw"]), pattern_statistics({"mine": pattern}))


def test_whole_numbers_of_numpy_and_torch_are_places():
    assert targets("mine", lambda pieces: torch.tensor([1, 0]), ["a", "b"]) == [(1,), (0,)]
    assert targets("mine", lambda pieces: [np.int64(1), np.array([0, 1])], ["a", "b"]) == [(1,), (0, 1)]


@pytest.mark.parametrize("patterns", [{"mine": 3}, {"": vowels}])
def test_what_is_no_pattern_is_refused(patterns):
    refuses(StatisticError, "give a name and a function", pattern_statistics, patterns)
