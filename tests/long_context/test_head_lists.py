"""Lists of heads as files: plain readers of the documented formats find what was written, and it is read back."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import manyheads as mh
from manyheads.errors import FileAccessError, HeadError, ModelError, StatisticError
from manyheads.long_context import FORMATS, SplitLayer, retrieval_scores
from manyheads.models import LoadedModel
from manyheads.spec import ModelSpec, Site
from tests.long_context import head_list_readers as plain
from tests.refusals import refuses

PLACES = {"duo": "a folder", "lukv": "list.npy", **dict.fromkeys(FORMATS[3:], "list.json"), "headkv": "list.json"}
TABLES = ("duo", "headkv", "lukv")
MIXED = (
    (12, 3, 10, 6),
    None,
    (12, 3, 10, 6),
    None,
    (12, 3, 10, 6),
    (12, 3, 10, 6),
)  # GQA, with layers that do not attend
RAGGED = (12, 3, 10, 6), (4, 2, 7, 5), None, (6, 1, 8, 9)
QUICK = settings(
    max_examples=30, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def model(shapes, name="a model", digest="d" * 16, stack=""):
    """What `read_heads` asks of a loaded model, for layers of (query heads, key/value heads, width, value width)."""
    sites = [Site(stack, number, f"l{number}", *shape, True) for number, shape in enumerate(shapes) if shape]
    spec = ModelSpec(name, "Any", tuple(sites), 48, 97, 80, 1234, "float32")
    lm = LoadedModel(nn.Module(), None, name, "")
    vars(lm).update(spec=spec, weights_hash=digest)
    return lm


def made(shapes, kept, scores, query_scores=None, joined="group", **more):
    """A split of `model(shapes)` with the flags and scores, taken in order."""
    kept, scores, queries = iter(kept), iter(scores), iter(query_scores or ())
    layers = []
    for num_heads, num_kv_heads, qk_dim, v_dim in (shape or (0, 0, 0, 0) for shape in shapes):
        flags, values = (tuple(next(numbers) for _ in range(num_kv_heads)) for numbers in (kept, scores))
        own = tuple(next(queries) for _ in range(num_heads if query_scores else 0))
        layers.append(SplitLayer(num_heads, num_kv_heads, qk_dim, v_dim, flags, values, own))
    values = {"sink": 5, "recent": 37, "by": "effect", "unit": "nats", **more}
    return mh.HeadSplit("a model", "d" * 16, "", tuple(layers), joined=joined, **values)


def split_of(shapes, fresh_numbers, keep=0.4, **more):
    count = sum(shape[1] for shape in shapes if shape)
    kept = fresh_numbers.random(count) < keep
    kept[0], kept[-1] = True, False
    return made(shapes, kept.tolist(), fresh_numbers.normal(size=count).tolist(), **more)


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch):
    """Thousands of small files are written here; whether they survive a power cut is claimed elsewhere."""
    monkeypatch.setattr("manyheads.base.files.synced", lambda path: None)


def kept_of(split):
    return [layer.kept for layer in split.layers]


def kept_places(split, axis):
    """{(layer, head)} that keep everything, of key/value heads or of query heads."""
    kept = {(number, index) for number, layer in enumerate(split.layers) for index in np.flatnonzero(layer.kept)}
    if axis == "kv":
        return kept
    return {
        (number, head)
        for number, layer in enumerate(split.layers)
        for head in range(layer.num_heads)
        if (number, head * layer.num_kv_heads // layer.num_heads) in kept
    }


@st.composite
def splits(draw):
    """A split of any shape that a table can hold: MHA, GQA, MQA, one layer, layers without attention, ties."""
    groups, size = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    shape = (groups * size, groups, draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    shapes = [shape if attends else None for attends in draw(st.lists(st.booleans(), max_size=5))] + [shape]
    count = groups * sum(shape is not None for shape in shapes)
    of = lambda numbers, size: draw(st.lists(numbers, min_size=size, max_size=size))  # noqa: E731
    ties, shares = st.sampled_from([0.0, 0.25, 1.0]), st.floats(0, 1)
    any_number = st.floats(allow_nan=False, allow_infinity=False)
    scores = of(draw(st.sampled_from([ties, shares, any_number])), count)
    queries = of(draw(st.sampled_from([ties, shares, any_number])), count * size) if draw(st.booleans()) else None
    joined = "group" if queries is None else draw(st.sampled_from(["maximum", "mean"])) if size > 1 else "none"
    if queries is not None and joined != "mean":  # as a split that was measured by query head has them
        scores = [max(queries[size * index : size * (index + 1)]) for index in range(count)]
    kept = of(st.booleans(), count)
    if draw(st.booleans()):  # as `keep` chooses, so that scores go out as they are
        most = draw(st.integers(0, count))
        chosen = sorted(range(count), key=lambda index: (-scores[index], index))[:most]
        kept = [index in chosen for index in range(count)]
    windows = {"sink": draw(st.integers(0, 300)), "recent": draw(st.integers(1, 9000))}
    return shapes, made(shapes, kept, scores, queries, joined, **windows)


# ------------------------------------------------------------------------------------------- what is written, read back


@pytest.mark.parametrize("format", FORMATS)
@QUICK
@given(drawn=splits())
def test_an_exported_list_comes_back_with_the_same_heads_kept(format, drawn, tmp_path):
    shapes, split = drawn
    place = tmp_path / PLACES[format]
    split.export(format, place)
    back = mh.read_heads(place, model(shapes))
    assert kept_of(back) == kept_of(split)
    assert (back.weights_hash, back.by, back.sink, back.recent) == ("d" * 16, "file", split.sink, split.recent)
    if back.unit == split.unit and format in ("duo", "minference"):  # the scores themselves
        own = [layer.query_scores for layer in split.layers]
        if format == "duo":
            assert [layer.scores for layer in back.layers] == [layer.scores for layer in split.layers]
        elif any(own):
            assert [layer.query_scores for layer in back.layers] == own


@QUICK
@given(drawn=splits())
def test_a_plain_reader_of_each_documented_format_finds_the_same_heads(drawn, tmp_path):
    shapes, split = drawn
    place = {format: tmp_path / f"{format}-{PLACES[format]}" for format in FORMATS}
    for format, path in place.items():
        split.export(format, path)
    groups, queries = kept_places(split, "kv"), kept_places(split, "query")
    attends = [number for number, shape in enumerate(shapes) if shape]
    num_heads, num_kv_heads, *_ = next(shape for shape in shapes if shape)

    (_, kept), sink, recent = plain.duo(place["duo"])
    assert {entry for entry in kept if entry[0] in attends} == groups == kept and (sink, recent) == (
        split.sink,
        split.recent,
    )
    streaming = plain.kvpress_streaming(place["duo"])
    assert not streaming & groups and {entry for entry in streaming if entry[0] in attends} | groups == {
        (layer, head) for layer in attends for head in range(num_kv_heads)
    }
    budgets = plain.headkv(place["headkv"], len(shapes), num_heads)
    by_name = plain.retrieval_head(place["headkv"])
    assert np.isfinite(budgets).all()
    assert [*by_name] == [*np.ndindex(budgets.shape)] and len(by_name) == budgets.size
    assert not budgets[[number for number, shape in enumerate(shapes) if not shape]].any()
    curves = plain.lukv(place["lukv"])
    assert curves.shape == (99, len(shapes), num_kv_heads) and curves.dtype == np.float64
    np.testing.assert_allclose(curves[:, attends].mean(axis=(1, 2)), np.arange(1, 100) / 100, rtol=1e-12)
    freed = {
        flag: [
            curves[:, layer, head]
            for layer in attends
            for head in range(num_kv_heads)
            if ((layer, head) in groups) == flag
        ]
        for flag in (True, False)
    }
    assert all((one <= other).all() for one in freed[True] for other in freed[False])
    (scores, kept), windows = plain.minference(place["minference"])
    assert kept == queries and windows <= {(split.sink, split.recent)} and {layer for layer, _ in scores} == {*attends}
    pairs, text = plain.vllm_hook(place["vllm-hook"])
    written = place["vllm-hook"].with_suffix(".layer_heads.txt").read_text()
    assert pairs == queries == plain.vllm_hook_text(written) and written == f"{text}\n"
    rows = plain.llama(place["llama.cpp"])
    assert {(layer, head) for layer, head, _ in rows} == queries
    assert [score for *_, score in rows] == sorted((score for *_, score in rows), reverse=True)


def test_scores_go_out_as_they_are_where_they_divide_the_heads(rng, tmp_path):
    scores = (rng.permutation(12) / 13 + 0.01).tolist()
    split = made(MIXED, [score > 0.5 for score in scores], scores, unit="mean weight")
    split.export("duo", tmp_path / "duo")
    (gates, _), *_ = plain.duo(tmp_path / "duo")
    assert [gates[number, index] for number in (0, 2, 4, 5) for index in range(3)] == scores
    assert mh.read_heads(tmp_path / "duo", model(MIXED)).unit == "mean weight"
    for format, place in (("headkv", "a.json"), ("minference", "b.json")):
        split.export(format, tmp_path / place)
    assert (
        plain.retrieval_head(tmp_path / "a.json")[4, 7]
        == scores[7]
        == plain.minference(tmp_path / "b.json")[0][0][4, 7]
    )


def test_rows_of_layers_without_attention_are_never_chosen(rng, tmp_path):
    """Their zeros would be, beside a kept head whose own score is 0."""
    shapes = None, (6, 3, 8, 8), None
    made(shapes, [True] * 3, [0.0, 0.9, 0.0]).export("duo", tmp_path / "duo")
    (gates, kept), *_ = plain.duo(tmp_path / "duo")
    assert kept == {(1, 0), (1, 1), (1, 2)} and min(gates[place] for place in kept) > 0.5
    assert not any(gates[place] for place in {*gates} - kept)


def test_query_heads_keep_their_own_scores(rng, tmp_path):
    queries = rng.random(48).tolist()  # means of fractions would tie, and a tie divides no heads
    groups = [float(np.mean(queries[4 * index : 4 * index + 4])) for index in range(12)]
    limit = sorted(groups)[7]
    split = made(MIXED, [score >= limit for score in groups], groups, queries, "mean")
    split.export("headkv", tmp_path / "a.json")
    back = mh.read_heads(tmp_path / "a.json", model(MIXED))
    assert back.layers[2].query_scores == split.layers[2].query_scores and back.joined == "mean"
    assert kept_of(back) == kept_of(split)
    np.testing.assert_allclose(back.layers[4].scores, split.layers[4].scores, rtol=1e-14)
    largest = mh.read_heads(tmp_path / "a.json", model(MIXED), join="maximum")
    assert largest.layers[0].scores[1] == max(queries[4:8]) and largest.joined == "maximum"


# ---------------------------------------------------------------------------------------------- lists of other projects


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def duo_folder(folder: Path, rows, **config) -> Path:
    folder.mkdir()
    lines = ["\t".join(f"{gate:.18e}" for gate in row) for row in rows]
    (folder / "full_attention_heads.tsv").write_text("\n".join(lines) + "\n")
    write(
        folder / "config.json",
        {"model_name": "models/x", "sink_size": 64, "recent_size": 512, "sparsity": None, **config},
    )
    return folder


TWO = (6, 3, 8, 8), (6, 3, 8, 8)


def test_gates_of_duo_attention_are_clipped_and_chosen_by_rank_ties_by_place(tmp_path):
    folder = duo_folder(tmp_path / "duo", [[1.0, 1.2, 0.3], [1.0, 0.2, -0.1]])
    split = mh.read_heads(folder, model(TWO), keep=0.5)
    assert split.layers[0].scores == (1.0, 1.0, 0.3) and split.layers[1].scores == (1.0, 0.2, 0.0)
    assert kept_of(split) == [(True, True, False), (True, False, False)]
    assert kept_of(mh.read_heads(folder, model(TWO), keep=0.34)) == [(True, True, False), (False, False, False)]
    assert kept_of(mh.read_heads(folder, model(TWO), threshold=0.3)) == [(True, True, True), (True, False, False)]
    assert (split.sink, split.recent, split.joined, split.weights_hash) == (64, 512, "group", "")
    assert split.notes["clipped"].startswith("2 gates") and "from its shape alone" in split.notes["model"]
    assert "of equal ones the lower layer" in split.notes["kept"]


def test_trials_of_retrieval_scores_become_means_by_name(tmp_path):
    trials = {f"{layer}-{head}": [0, 0.01 * layer, 0.1 * head] for layer in (1, 0) for head in range(6)}
    path = write(tmp_path / "llama.json", trials)
    means = retrieval_scores(path)
    assert means[mh.Head("", 1, 5)] == pytest.approx((0.01 + 0.5) / 3) and len(means) == 12
    split = mh.read_heads(path, model(TWO), keep=0.34)
    assert split.layers[1].query_scores[4] == means[mh.Head("", 1, 4)]
    assert split.layers[1].scores[1] == max(means[mh.Head("", 1, 2)], means[mh.Head("", 1, 3)])
    assert split.notes["trials"] == "a score is the mean of 3" and "not in order" in split.notes["order"]
    assert kept_of(split) == [(False, False, True), (False, False, True)]
    mean = mh.read_heads(path, model(TWO), threshold=0.1, join="mean")
    assert mean.layers[0].scores[2] == pytest.approx(0.15) and mean.joined == "mean"


def test_budgets_of_lu_kv_become_the_share_that_is_kept(rng, tmp_path):
    freed = rng.uniform(-0.1, 1.1, (99, 2, 3))
    np.save(tmp_path / "b.npy", freed.astype(np.float32))
    split = mh.read_heads(tmp_path / "b.npy", model(TWO), keep=1 / 3)
    expected = np.clip(1 - freed, 0, 1).mean(axis=0)
    np.testing.assert_allclose([layer.scores for layer in split.layers], expected, rtol=1e-6)
    assert sum(map(sum, kept_of(split))) == 2 and split.sink == 128 and "DuoAttention" in split.notes["windows"]


def test_patterns_of_minference_say_which_heads_stream(tmp_path):
    looks, streams = ["vertical_and_slash", 30, 800, 0.9], ["stream_llm", 100, 800, 0.4]
    layers = [{str(head): looks for head in range(6)} for _ in range(2)]
    layers[1] |= {"2": streams, "3": ["stream_llm", 4, 1000, 0.3], "4": streams, "5": ["block_sparse", 8, 1, 0.2]}
    split = mh.read_heads(write(tmp_path / "m.json", layers), model(TWO))
    assert kept_of(split) == [(True, True, True), (True, False, True)]
    assert (split.sink, split.recent) == (100, 1000) and "largest" in split.notes["windows"]
    assert split.notes["part of a group"].endswith("L1H5") and split.layers[1].scores == (0.9, 0.4, 0.4)
    message = r"m.json is a list for minference, which says itself .*: leave keep and threshold"
    refuses(HeadError, message, mh.read_heads, tmp_path / "m.json", model(TWO), keep=0.5)


def test_one_query_head_of_a_group_keeps_the_group_and_that_is_said(tmp_path):
    path = write(tmp_path / "v.json", {"params": {"important_heads": [[1, 4], [0, 0], [0, 1], [1, 4]]}, "hookq": {}})
    split = mh.read_heads(path, model(TWO))
    assert kept_of(split) == [(True, False, False), (False, False, True)]
    assert split.notes["part of a group"].endswith(": L1H4") and split.layers[1].scores == (0.0, 0.0, 1.0)
    (tmp_path / "t.txt").write_text("0:0,1;1:4\n")
    assert kept_of(mh.read_heads(tmp_path / "t.txt", model(TWO), join="mean")) == kept_of(split)


def test_alignment_heads_of_llama_cpp(tmp_path):
    heads = [{"layer": 1, "head": 3, "ts": 0.5}, {"layer": 0, "head": 0, "ts": 0.25}]
    document = {"num_layers": 2, "num_heads": 6, "ts_matrix": [], "token_alignment_heads": heads}
    split = mh.read_heads(write(tmp_path / "l.json", document), model(TWO), join="mean")
    assert kept_of(split) == [(True, False, False), (False, True, False)] and split.layers[1].scores == (0, 0.25, 0)
    message = r"l.json lists heads of 3 layers of 6 query heads, and a model has 2 layers of 6"
    refuses(ModelError, message, mh.read_heads, write(tmp_path / "l.json", {**document, "num_layers": 3}), model(TWO))


def test_a_saved_split_is_read_and_compared_with_the_model(rng, tmp_path):
    split = split_of(MIXED, rng)
    split.save(tmp_path / "a.split.json")
    assert mh.read_heads(tmp_path / "a.split.json", model(MIXED)) == split
    with pytest.raises(ModelError, match="whose weights have the digest dddddddd"):
        mh.read_heads(tmp_path / "a.split.json", model(MIXED, digest="e" * 16))
    with pytest.raises(HeadError, match="is a saved split, which says itself which heads"):
        mh.read_heads(tmp_path / "a.split.json", model(MIXED), threshold=0.5)


# --------------------------------------------------------------------------------------------------------- other models


@pytest.mark.parametrize("format", FORMATS)
def test_a_list_of_other_weights_or_another_shape_is_refused(format, rng, tmp_path):
    place = tmp_path / PLACES[format]
    split_of(MIXED, rng).export(format, place)
    message = "split of a model, whose weights have the digest dddddddd, and those of another"
    refuses(ModelError, message, mh.read_heads, place, model(MIXED, name="another", digest="e" * 16))
    smaller = [shape and (2, 1, 10, 6) for shape in MIXED]
    with pytest.raises(ModelError, match=r"lists .*, and a model has 6 layers of 2 or 0|6 layers of 1 or 0"):
        mh.read_heads(place, model(smaller))


def test_three_layers_of_28_heads_are_no_list_of_28_layers_of_16(tmp_path):
    """A stored list of MInference for Qwen3-0.6B is like that."""
    path = write(tmp_path / "q.json", [{str(head): ["vertical_and_slash", 1000, 6096, 1.0] for head in range(28)}] * 3)
    message = r"lists 3 layers of 28 query heads, and a model has 28 layers of 16 query heads"
    refuses(ModelError, message, mh.read_heads, path, model([(16, 8, 128, 128)] * 28))


def test_layers_without_attention_must_be_empty_in_a_table(tmp_path):
    rows = [[0.5, 0.2, 0.9], [0.0, 0.0, 0.1]]
    shapes = (6, 3, 8, 8), None, (6, 3, 8, 8)
    message = (
        r"lists heads of layer 1, and L1 of a model has no attention, .*: the layers that attend are L0, L2\. Name"
    )
    folder = duo_folder(tmp_path / "a", [*rows, [1.0, 1.0, 1.0]])
    refuses(ModelError, message, mh.read_heads, folder, model(shapes), keep=0.5)
    folder = duo_folder(tmp_path / "b", [rows[0], [0.0] * 3, rows[0]])
    assert kept_of(mh.read_heads(folder, model(shapes), keep=1 / 3)) == [(False, False, True), (), (False, False, True)]


def test_rows_after_the_last_layer_that_attends_need_the_models_own_count(tmp_path):
    lm = model(TWO)
    folder = duo_folder(tmp_path / "a", [[0.5, 0.2, 0.9]] * 2 + [[0.0] * 3])
    refuses(ModelError, "lists 3 layers", mh.read_heads, folder, lm, keep=0.5)
    lm.model.config = SimpleNamespace(num_hidden_layers=3)
    assert [len(layer.kept) for layer in mh.read_heads(folder, lm, keep=0.5).layers] == [3, 3, 0]


def test_a_list_is_of_one_stack(rng, tmp_path):
    path = write(tmp_path / "v.json", {"params": {"important_heads": [[1, 4]]}})
    two = model(TWO, stack="encoder")
    assert mh.read_heads(path, two).stack == "encoder"
    sites = (*two.spec.sites, *model(TWO, stack="decoder").spec.sites)
    both = replace(two)
    vars(both).update(vars(two), spec=replace(two.spec, sites=sites))
    message = r"does not say which stack it is for, and those of a model are 'encoder', 'decoder'"
    refuses(ModelError, message, mh.read_heads, path, both)
    replace(split_of(TWO, rng), stack="decoder").export("vllm-hook", tmp_path / "d.json")
    assert mh.read_heads(tmp_path / "d.json", both).stack == "decoder"
    with pytest.raises(ModelError, match="is for the stack 'decoder', and the stacks of a model are 'encoder'"):
        mh.read_heads(tmp_path / "d.json", two)


# ------------------------------------------------------------------------------------------------------ what is refused


def test_what_says_twice_or_never_which_heads_are_kept(tmp_path):
    folder = duo_folder(tmp_path / "a", [[0.5, 0.2, 0.9]] * 2)
    for options, words in (
        ({}, r"a has a score for each head, and does not say which keep everything: .* keep=0.5"),
        ({"keep": 0.5, "threshold": 0.1}, "keep=0.5 and threshold=0.1 both say"),
        ({"keep": 1.5}, "keep=1.5 is not a share of key/value heads to keep: give one above 0"),
        ({"threshold": 2.0}, "threshold=2 is reached by no score of .*: they are"),
        ({"threshold": float("nan")}, "threshold=nan is not a finite number"),
        ({"keep": 0.5, "join": "sum"}, "join='sum' is unknown: use one of maximum, mean"),
    ):
        refuses((HeadError, StatisticError), words, mh.read_heads, folder, model(TWO), **options)


@pytest.mark.parametrize("format", TABLES)
def test_layers_of_unlike_numbers_of_heads_fit_no_table(format, rng, tmp_path):
    split = split_of(RAGGED, rng)
    message = rf"a list for {format} has the same number of .* heads in every layer, .*: export to minference"
    refuses(HeadError, message, split.export, format, tmp_path / PLACES[format])
    assert not [*tmp_path.iterdir()]
    for other in {*FORMATS} - {*TABLES}:
        split.export(other, tmp_path / "list.json")
        assert kept_of(mh.read_heads(tmp_path / "list.json", model(RAGGED))) == kept_of(split)
        for file in tmp_path.iterdir():
            file.unlink()


def test_where_it_cannot_be_written(rng, tmp_path):
    split = split_of(MIXED, rng)
    with pytest.raises(HeadError, match="there is no format 'hf' of lists of heads: use duo, headkv"):
        split.export("hf", tmp_path / "a.json")
    with pytest.raises(FileAccessError, match=r"a.json: a list for lukv is a file that ends in \.npy"):
        split.export("lukv", tmp_path / "a.json")
    refuses(FileAccessError, r"its folder does not exist", split.export, "minference", tmp_path / "none" / "a.json")
    refuses(FileAccessError, "its folder does not exist|no such", split.export, "duo", tmp_path / "none" / "a")
    (tmp_path / "a.json").mkdir()
    refuses(FileAccessError, "it is a folder", split.export, "headkv", tmp_path / "a.json")
    # One of two files that cannot be written leaves neither.
    (tmp_path / "b.json.manyheads.json").mkdir()
    refuses(FileAccessError, "it is a folder", split.export, "headkv", tmp_path / "b.json")
    assert not (tmp_path / "b.json").exists()
    (tmp_path / "model").mkdir()
    write(tmp_path / "model" / "config.json", {"model_type": "llama"})
    message = "there is a config.json that no export to duo wrote, and it would be lost"
    refuses(FileAccessError, message, split.export, "duo", tmp_path / "model")
    assert [*(tmp_path / "model").iterdir()] == [tmp_path / "model" / "config.json"]
    split.export("duo", tmp_path / "own")
    split.export("duo", tmp_path / "own")  # an earlier export is replaced


def test_a_list_that_was_changed_since_is_refused(rng, tmp_path):
    split = split_of(MIXED, rng)
    for format in (*TABLES, "minference"):
        place = tmp_path / format / PLACES[format]
        place.parent.mkdir()
        split.export(format, place)
        file = place / "full_attention_heads.tsv" if format == "duo" else place
        data = file.read_bytes()
        last = len(data) - 1 if format == "lukv" else max(data.rfind(digit) for digit in b"0123456789")
        file.write_bytes(data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :])  # another digit
        with pytest.raises(FileAccessError, match=r"was changed since manyheads wrote it, .*: export the list again"):
            mh.read_heads(place, model(MIXED))


DAMAGED = {
    "empty": b"",
    "text": b"L3H7, L5H2",
    "a number": b"3",
    "nothing listed": b"{}",
    "another document": b'{"model_type": "llama"}',
    "nan": b'{"0-0": [NaN]}',
    "infinite": b'{"0-0": [1e999]}',
    "huge whole number": b'{"0-0": [' + b"9" * 400 + b"]}",
    "huge digits": b'{"0-0": [' + b"9" * 9000 + b"]}",
    "huge layer": b'{"999999-999999": [0.5]}',
    "no scores": b'{"0-0": []}',
    "twice": b'{"0-1": [1], "00-1": [1]}',
    "true": b'{"0-0": [true]}',
    "nested": b"[" * 100_000,
    "nested objects": b'{"params":' * 50_000,
    "no pairs": b'{"params": {"important_heads": 3}}',
    "triples": b'{"params": {"important_heads": [[1, 2, 3]]}}',
    "a name": b'{"params": {"important_heads": [["1", 2]]}}',
    "below zero": b'{"params": {"important_heads": [[1, -2]]}}',
    "far": b'{"params": {"important_heads": [[900000, 2]]}}',
    "no list": b'{"token_alignment_heads": {"layer": 1}}',
    "no ts": b'{"token_alignment_heads": [{"layer": 1, "head": 2}]}',
    "odd counts": b'{"token_alignment_heads": [], "num_layers": "2"}',
    "three entries": b'[{"0": ["stream_llm", 100, 800]}]',
    "a pattern": b'[{"0": ["dense", 100, 800, 1]}]',
    "a list as pattern": b'[{"0": [[], 100, 800, 1]}]',
    "sizes": b'[{"0": ["stream_llm", 100.5, 800, 1]}]',
    "a layer": b"[3]",
    "no layers": b"[]",
    "latin": b'{"0-0": ["\xe9"]}',
    "description": b'{"params": {"important_heads": []}, "manyheads": {"kind": 3}}',
    "npy head": b"\x93NUMPY",
    "npy version": b"\x93NUMPY\x09\x00\x10\x00",
    "npy claims": b"\x93NUMPY\x01\x00\x76\x00"
    + b"{'descr': '<f8', 'fortran_order': False, 'shape': (99, 1000000, 10000), }".ljust(117)
    + b"\n",
    "npy objects": b"\x93NUMPY\x01\x00\x76\x00"
    + b"{'descr': '|O', 'fortran_order': False, 'shape': (99, 1, 1), }".ljust(117)
    + b"\n",
    "a split": b'{"kind": "manyheads head split", "format": 1}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_list_is_refused_in_one_line_whatever_its_ending(name, tmp_path):
    path = tmp_path / ("list.json" if name.startswith("npy") else "list.npy")
    path.write_bytes(DAMAGED[name])
    with pytest.raises((FileAccessError, ModelError)) as refused:
        mh.read_heads(path, model(TWO))
    assert re.fullmatch(r"[^\n]{20,400}\.", str(refused.value)) and str(path) in str(refused.value)


@pytest.mark.parametrize(("gates", "config"), [
    ("", {}), ("a\tb\tc\n", {}), ("nan\t1\t1\n1\t1\t1\n", {}), ("1\t1\t1\n1\t1\n", {}), ("1 1 1\n", {}),
    ("1e400\t1\t1\n1\t1\t1\n", {}), (None, {"sink_size": -1}), (None, {"recent_size": 0}),
    (None, {"recent_size": True}), (None, {"sink_size": None}), (None, {"manyheads": "x"}),
])  # fmt: skip
def test_a_damaged_folder_is_refused_in_one_line(gates, config, tmp_path):
    folder = duo_folder(tmp_path / "a", [[0.5, 0.2, 0.9]] * 2, **config)
    if gates is not None:
        (folder / "full_attention_heads.tsv").write_text(gates)
    with pytest.raises(FileAccessError, match=r"^[^\n]*a/(full_attention_heads.tsv|config.json) is damaged: [^\n]*\.$"):
        mh.read_heads(folder, model(TWO), keep=0.5)


def test_what_is_no_file(tmp_path):
    for path in (tmp_path / "none", tmp_path, "/dev/zero", "a\0b"):
        refuses(FileAccessError, r"^cannot read [^\n]*\.$", mh.read_heads, path, model(TWO), keep=0.5)
    os.mkfifo(tmp_path / "pipe.json")
    refuses(FileAccessError, "it is a device or a pipe", mh.read_heads, tmp_path / "pipe.json", model(TWO), keep=0.5)
    folder = duo_folder(tmp_path / "a", [[0.5, 0.2, 0.9]] * 2)
    (folder / "full_attention_heads.tsv").unlink()
    os.mkfifo(folder / "full_attention_heads.tsv")
    refuses(FileAccessError, "it is a device or a pipe", mh.read_heads, folder, model(TWO), keep=0.5)
    with pytest.raises(FileAccessError, match="is a list for vllm-hook: retrieval scores are in files for headkv"):
        retrieval_scores(write(tmp_path / "v.json", {"params": {"important_heads": [[1, 4]]}}))
    refuses(FileAccessError, "there is no such file", mh.HeadSplit.open, tmp_path / "none.split.json")
