"""Records of batches, and of heads that are split over processes, put together are the record of all.

Batches: cell by cell, in their own order. Heads: the same as of the model in one process, recorded whole; two gloo
processes run torch's tensor parallelism on a tiny model.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import manyheads as mh
from manyheads.attention import Mask
from manyheads.errors import HeadError, RecordingError, ShapeError
from manyheads.measurement import measure_call
from manyheads.recording import Recording, record_tensors
from manyheads.recording.exact_map import Entropy, Received
from manyheads.recording.layer import together
from manyheads.recording.recording import gathered, heads_together
from manyheads.texts import Sinks, Tokens
from tests.models.eager import GUARDED, draw, implementation
from tests.models.tiny import VOCAB_SIZE, tiny_bert, tiny_gemma2, tiny_gpt_oss, tiny_llama, tiny_t5, tiny_tokenizer
from tests.refusals import refuses

LENGTHS = (11, 5, 17, 9, 6)
PLACES = ([1, 4], [3, 0], [2])
MAKERS = {"bert": tiny_bert, "llama": tiny_llama, "gemma2": tiny_gemma2, "gpt_oss": tiny_gpt_oss, "t5": tiny_t5}


def inputs(texts):
    width = max(len(text) for text in texts)
    ids = torch.stack([torch.cat([text, text.new_ones(width - len(text))]) for text in texts])
    seen = torch.stack([(torch.arange(width) < len(text)).long() for text in texts])
    return {"input_ids": ids, "attention_mask": seen}


def both_sides(given, name):
    if name != "t5":
        return given
    return {**given, **{f"decoder_{key}": value for key, value in given.items()}}


@pytest.mark.thinned
@pytest.mark.parametrize("keep", [("q", "k", "lse"), ("q", "k", "v", "lse")], ids=["without v", "with v"])
@pytest.mark.parametrize("name", MAKERS)
def test_every_text_is_as_it_is_alone(fresh, name, keep):
    model = MAKERS[name](seed=draw(fresh))
    texts = [torch.randint(5, VOCAB_SIZE, (length,), generator=fresh) for length in LENGTHS]
    with implementation(model, "eager" if name in ("gemma2", "gpt_oss") else "sdpa"):
        batches = [
            mh.record_call(model, keep=keep, **both_sides(inputs([texts[i] for i in at]), name)) for at in PLACES
        ]
        alone = [mh.record_call(model, keep=keep, **both_sides(inputs([text]), name)) for text in texts]
    tokens = Tokens(torch.tensor(LENGTHS))
    for stack, layers in batches[0].stacks.items():
        for index in range(len(layers)):
            whole = together([batch.stacks[stack][index] for batch in batches], PLACES, tokens)
            received, entropy = (whole.reduce([request])[request] for request in (Received(), Entropy()))
            for text, length in enumerate(LENGTHS):
                want = alone[text].stacks[stack][index]
                got = whole.weights(text=text)
                assert (got[..., : want.k.shape[2]] - want.weights()).abs().max() <= GUARDED
                assert not got[..., want.k.shape[2] :].any(), "keys past the text"
                assert (received[text, :, :length] - want.received()[0]).abs().max() <= GUARDED * length
                assert (entropy[text, :, :length] - want.reduce([Entropy()])[Entropy()][0]).abs().max() <= GUARDED * 9
                if whole.v is not None:
                    assert torch.allclose(whole.v[text, :, :length], want.v[0], atol=GUARDED)
                assert (whole.v is None) == ("v" not in keep)


def test_one_batch_in_order_stays_what_it_is(fresh):
    model = tiny_llama(seed=draw(fresh))
    record = mh.record_call(model, **inputs([torch.arange(5, 12), torch.arange(9, 13)])).layers[0]
    assert together([record], [[0, 1]], record.tokens).q is record.q


EXACT = 1e-5
TEXTS = ["the old cat sat on the table", "a dog"]


def assert_same(got, want):
    assert list(got.stacks) == list(want.stacks) and got.tokens.pieces == want.tokens.pieces
    for one, other in zip(got.layers, want.layers, strict=True):
        assert one.site == other.site and one.k.shape == other.k.shape
        for text in range(len(TEXTS)):
            torch.testing.assert_close(one.weights(text=text), other.weights(text=text), rtol=0, atol=EXACT)


def in_parallel(rank, meet, seed, num_kv_heads):
    """What each process does. Its model is split by torch's own plan; a single key/value head is kept by both."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    tokenizer = tiny_tokenizer(special_tokens=False)
    whole = mh.record(mh.load(tiny_llama(num_kv_heads, seed=seed), tokenizer=tokenizer), TEXTS)
    model, split = tiny_llama(num_kv_heads, seed=seed), ["q_proj"] + ["k_proj", "v_proj"] * (num_kv_heads > 1)
    for layer in model.model.layers:
        plan = {**{name: ColwiseParallel() for name in split}, "o_proj": RowwiseParallel()}
        parallelize_module(layer.self_attn, init_device_mesh("cpu", (2,)), plan)
        layer.self_attn.num_key_value_groups = 3  # of the heads that are here: with one kept whole, the caller's duty
    lm = mh.load(model, tokenizer=tokenizer)
    own = mh.record(lm, TEXTS)
    assert own.layers[0].site.num_heads == 3
    joined = gathered(own)
    assert (joined is None) == (rank == 1)
    if joined is not None:
        assert_same(joined, whole)
        assert joined.provenance["parts"] == 2 and joined.provenance["guard_error"] < 5e-5
    norms = [
        mh.measure(each, TEXTS, "sink_norm_mass", sinks=Sinks(first=True)).column("sink_norm_mass")
        for each in (lm, mh.load(tiny_llama(num_kv_heads, seed=seed), tokenizer=tokenizer))
    ]
    torch.testing.assert_close(torch.tensor(norms[0]), torch.tensor(norms[1]), rtol=0, atol=EXACT)  # of all heads
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("num_kv_heads", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_two_processes_make_the_recording_of_one(num_kv_heads, fresh, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # spawned processes import this file by its name
    mp.spawn(in_parallel, (tmp_path / "meet", draw(fresh), num_kv_heads), nprocs=2)


# ------------------------------------------------------------------------------------------------------- in one process


@pytest.fixture(params=[tiny_gpt_oss, tiny_llama])
def whole(request, fresh):
    lm = mh.load(request.param(seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))
    return mh.record(lm, TEXTS, keep=("q", "k", "v", "lse"))


def cut(recording, at, num_parts):
    """One part of a recording's heads, as a process would have recorded them."""

    def some(layer):
        groups = layer.site.num_kv_heads // num_parts
        served = layer.site.num_heads // layer.site.num_kv_heads
        g, h = (slice(at * n, (at + 1) * n) for n in (groups, groups * served))
        site = replace(layer.site, num_heads=groups * served, num_kv_heads=groups)
        sinks = None if layer.rule.sinks is None else layer.rule.sinks[h]
        mine = {"q": layer.q[:, h], "lse": layer.lse[:, h], "k": layer.k[:, g], "v": layer.v[:, g]}
        return replace(layer, site=site, rule=replace(layer.rule, sinks=sinks), **mine)

    return Recording({"": [some(layer) for layer in recording.layers]}, recording.tokens, recording.provenance)


def test_parts_are_the_whole_again_values_and_sinks_too(whole):
    count = whole.layers[0].site.num_kv_heads
    again = heads_together([cut(whole, at, count) for at in range(count)])
    assert_same(again, whole)
    for one, other in zip(again.layers, whole.layers, strict=True):
        assert torch.equal(one.v, other.v)
        assert one.rule.sinks is other.rule.sinks is None or torch.equal(one.rule.sinks, other.rule.sinks)


def test_a_layer_that_is_not_split_is_kept_once(whole):
    count = whole.layers[0].site.num_kv_heads
    parts = [cut(whole, at, count) for at in range(count)]
    parts = [Recording({"": [whole.layers[0], *part.layers[1:]]}, part.tokens, part.provenance) for part in parts]
    assert_same(heads_together(parts), whole)


def test_what_is_no_part_of_the_same_is_refused(whole):
    one, other = (cut(whole, at, 2) for at in range(2)) if whole.layers[0].site.num_kv_heads == 2 else (whole, whole)
    refuses(RecordingError, "every part holds the same heads: nothing is split", heads_together, [whole, whole])
    fewer = Recording({"": list(other.layers[1:])}, other.tokens, other.provenance)
    with pytest.raises(
        RecordingError, match=r"parts of different models: .* \{'': \[0, 1(, 2)?\]\}, \{'': \[1(, 2)?\]\}"
    ):
        heads_together([one, fewer])
    turned = replace(other.tokens, ids=other.tokens.ids.flip(0), lengths=other.tokens.lengths.flip(0))
    with pytest.raises(RecordingError, match="parts of different texts: every process must record the same texts"):
        heads_together([one, Recording(other.stacks, turned, other.provenance)])
    layer = whole.layers[0]
    otherwise = replace(layer, q=layer.q + 1, rule=replace(layer.rule, scale=2.0))
    parts = [Recording({"": [each]}, whole.tokens, whole.provenance) for each in (layer, otherwise)]
    refuses(RecordingError, "hides different keys, or scales differently, in different parts", heads_together, parts)
    refuses(RecordingError, "no process group is open: call torch.distributed.init_process_group", gathered, whole)


# ================================================================================== tensors that somebody else computed
# Statistics of tensors that somebody else computed are those of the maps that these tensors make.
#
# The oracle is NumPy's softmax over dense scores, in float64.

B, H, G, N, D = 3, 6, 2, 11, 5
GIVEN_LENGTHS = [11, 7, 4]


def drawn(fresh, *shape):
    return torch.randn(*shape, generator=fresh, dtype=torch.float64)


def qk(fresh, rows=N):
    return 2 * drawn(fresh, B, H, rows, D), drawn(fresh, B, G, N, D)


def maps_by_numpy(q, k, visible, scale=None):
    keys = np.repeat(k.numpy(), H // G, 1)
    scores = np.einsum("bhqd,bhkd->bhqk", q.numpy(), keys) * (scale or 1 / math.sqrt(D))
    scores = np.where(visible, scores, -np.inf)
    top = np.where(visible.any(-1, keepdims=True), scores.max(-1, keepdims=True), 0)
    weights = np.exp(scores - top)
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300), scores


def visible_cells(causal, rows=N):
    cells = np.zeros((B, 1, rows, N), dtype=bool)
    for text, length in enumerate(GIVEN_LENGTHS):
        for row in range(rows if rows != N else length):
            cells[
                text, 0, row, : min(length, length - rows + row + 1 if rows != N else row + 1) if causal else length
            ] = 1
    return cells


def entropies(weights, length):
    rows = weights[:, :length, :length]
    return -(np.where(rows > 0, rows * np.log(np.where(rows > 0, rows, 1)), 0)).sum(-1).mean(-1)


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_a_table_of_q_and_k_is_that_of_their_maps(fresh, mask):
    layers = [qk(fresh), qk(fresh)]
    q, k = zip(*layers, strict=True)
    table = mh.statistics_of(q, k, mask=mask, statistics=["entropy", "distance", "max_logit"], lengths=GIVEN_LENGTHS)
    assert [str(head) for head in table.heads] == [f"L{layer}H{head}" for layer in range(2) for head in range(H)]
    visible = visible_cells(mask == "causal")
    for place, (queries, keys) in enumerate(layers):
        weights, scores = maps_by_numpy(queries, keys, visible)
        in_layer = slice(place * H, (place + 1) * H)
        # Every row counts once, over all texts.
        sums = sum(entropies(weights[text], length) * length for text, length in enumerate(GIVEN_LENGTHS))
        assert np.allclose(table.column("entropy")[in_layer], sums / sum(GIVEN_LENGTHS), atol=1e-9)
        assert np.allclose(table.column("max_logit")[in_layer], scores.max((0, 2, 3)), atol=1e-6)


def test_a_mask_of_ones_own_a_scale_and_a_lse_are_used(fresh):
    q, k = qk(fresh)
    visible = (drawn(fresh, B, 1, N, N) > 0) | torch.eye(N, dtype=torch.bool)
    weights, scores = maps_by_numpy(q, k, visible.numpy(), scale=0.7)
    lse = torch.from_numpy(np.logaddexp.reduce(scores, axis=-1))
    recording = record_tensors(q, k, lse, mask=visible, scale=0.7)
    assert np.abs(recording.layers[0].weights(text=1).numpy() - weights[1]).max() < 1e-9
    assert recording.layers[0].because == "given"


def test_an_lse_in_base_2_or_of_other_scores_is_refused(fresh):
    q, k = qk(fresh)
    lse = record_tensors(q, k).layers[0].lse
    assert record_tensors(q, k, lse).layers[0].because == "given"
    with pytest.raises(RecordingError, match=r"layer 0, text 0: .* it is in base 2 \(as FlashInfer's\): multiply it"):
        record_tensors(q, k, lse / math.log(2))
    with pytest.raises(RecordingError, match=r"is not that of q and k, .* natural logarithm .*, or no lse"):
        record_tensors(q, k, lse, scale=0.9)
    refuses(RecordingError, "from which it differs by inf", record_tensors, q, k, lse * torch.nan)


def test_queries_at_the_end_see_the_keys_before_them(fresh):
    q, k = qk(fresh, rows=2)
    weights, _ = maps_by_numpy(q, k, visible_cells(True, rows=2))
    layer = record_tensors(q, k, lengths=GIVEN_LENGTHS).layers[0]
    for text in range(B):
        assert np.abs(layer.weights(text=text).numpy() - weights[text]).max() < 1e-9
    with pytest.raises(ShapeError, match="q has 2 positions and k 11: .* Are heads and positions swapped"):
        mh.statistics_of(q, k, lengths=GIVEN_LENGTHS)


def test_cells_of_a_head_are_those_of_its_map(fresh, unchecked_types):
    q, k = qk(fresh)
    weights, _ = maps_by_numpy(q, k, visible_cells(True))
    recording = record_tensors(q, k, lengths=GIVEN_LENGTHS, layer_numbers=[4])
    pairs = [(6, 2), (3, 3), (2, 5), (6, 0)]
    got = recording.cells("L4H5", pairs, text=1)
    assert np.abs(got.numpy() - [weights[1, 5, query, key] for query, key in pairs]).max() < 1e-9
    assert got[2] == 0 and recording.cells("L4H5", []).shape == (0,)
    refuses(
        HeadError,
        "L0 has no attention, or none that was seen: the layers that are here are L4",
        recording.cells,
        "L0H5",
        pairs,
    )
    with pytest.raises(ShapeError, match="queries run from 3 to 7, but text 1 has 7 of them"):
        recording.cells("L4H0", [(7, 1), (3, 1)], text=1)
    for wrong in ((6, 2), [(6, 2, 1)], [(6.5, 2)]):
        refuses(ShapeError, r"give a list of \(query, key\) positions, as in", recording.cells, "L4H5", wrong)


def test_what_a_model_records_is_had_from_its_q_and_k(fresh):
    lm = tiny_llama()
    ids = torch.randint(5, 40, (2, 9), generator=fresh)
    rec = mh.record_call(lm, input_ids=ids)
    tensors = zip(*((layer.q, layer.k, layer.lse) for layer in rec.layers), strict=True)
    own, model = mh.statistics_of(*tensors), measure_call(lm, input_ids=ids)
    for name in own.names:
        assert np.allclose(own.column(name), model.column(name), atol=1e-5, equal_nan=True), name


def test_tensors_that_do_not_fit_are_refused(fresh, unchecked_types):
    q, k = qk(fresh)
    for arguments, options, words in [
        (([q, q], [k]), {}, "q has 2 layers, k 1, lse 2 and mask 2: give one tensor for each layer"),
        ((q[0], k[0]), {}, "layer 0: q has shape .6, 11, 5. .* give four axes"),
        ((q, k), {"lengths": [3, 4]}, r"lengths=\[3, 4\] of 3 texts of at most 11 positions"),
        ((q, k), {"lengths": [3, 0, 4]}, "give one for each text"),
        ((q, k), {"mask": "caudal"}, "mask='caudal' does not say which keys a row sees"),
        ((q, k), {"mask": torch.ones(B, 1, N, N)}, "mask is torch.float32 .* give a boolean one"),
        ((q, k), {"mask": Mask.causal(N, N - 1)}, "the mask is for 11 queries and 10 keys, but q and k have 11 and 11"),
        ((q, k.float()), {}, "q is torch.float64 on cpu, k torch.float32 on cpu: they must be alike"),
        ((q.long(), k.long()), {}, r"q, k and v are torch.int64: .* Convert them: q.float\(\)"),
        ((q[:, :5], k), {}, "num_heads=5 is not a multiple of num_kv_heads=2"),
        (([q, q[:2]], [k, k[:2]]), {},
         "layer 1: q has shape .2, 6, 11, 5. .* needs q and k of the first one's 3 texts"),
        ((q, k, q[..., 0, 0]), {}, r"layer 0: lse has shape \(3, 6\)"),
        (([q.numpy()], [k]), {}, "q holds a ndarray: give torch tensors"),
    ]:  # fmt: skip
        refuses((ShapeError, HeadError), words, record_tensors, *arguments, **options)
