"""Statistics of tensors that somebody else computed are those of the maps that these tensors make.

The oracle is NumPy's softmax over dense scores, in float64. Inputs are drawn afresh; MANYHEADS_SEED=... repeats them.
"""

import math

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import HeadError, RecordingError, ShapeError
from manyheads.nn import Mask
from manyheads.recording import record_tensors
from tests.models.tiny import tiny_llama

B, H, G, N, D = 3, 6, 2, 11, 5
LENGTHS = [11, 7, 4]


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
    for text, length in enumerate(LENGTHS):
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
    table = mh.statistics_of(q, k, mask=mask, statistics=["entropy", "distance", "max_logit"], lengths=LENGTHS)
    assert [str(head) for head in table.heads] == [f"L{layer}H{head}" for layer in range(2) for head in range(H)]
    visible = visible_cells(mask == "causal")
    for place, (queries, keys) in enumerate(layers):
        weights, scores = maps_by_numpy(queries, keys, visible)
        in_layer = slice(place * H, (place + 1) * H)
        # Every row counts once, over all texts.
        sums = sum(entropies(weights[text], length) * length for text, length in enumerate(LENGTHS))
        assert np.allclose(table.column("entropy")[in_layer], sums / sum(LENGTHS), atol=1e-9)
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
    with pytest.raises(RecordingError, match="from which it differs by inf"):
        record_tensors(q, k, lse * torch.nan)


def test_queries_at_the_end_see_the_keys_before_them(fresh):
    q, k = qk(fresh, rows=2)
    weights, _ = maps_by_numpy(q, k, visible_cells(True, rows=2))
    layer = record_tensors(q, k, lengths=LENGTHS).layers[0]
    for text in range(B):
        assert np.abs(layer.weights(text=text).numpy() - weights[text]).max() < 1e-9
    with pytest.raises(ShapeError, match="q has 2 positions and k 11: .* Are heads and positions swapped"):
        mh.statistics_of(q, k, lengths=LENGTHS)


def test_cells_of_a_head_are_those_of_its_map(fresh, unchecked_types):
    q, k = qk(fresh)
    weights, _ = maps_by_numpy(q, k, visible_cells(True))
    recording = record_tensors(q, k, lengths=LENGTHS, layer_numbers=[4])
    pairs = [(6, 2), (3, 3), (2, 5), (6, 0)]
    got = recording.cells("L4H5", pairs, text=1)
    assert np.abs(got.numpy() - [weights[1, 5, query, key] for query, key in pairs]).max() < 1e-9
    assert got[2] == 0 and recording.cells("L4H5", []).shape == (0,)
    with pytest.raises(HeadError, match="there is no head L0H5 in this recording: it holds L4H0 to L4H5"):
        recording.cells("L0H5", pairs)
    with pytest.raises(ShapeError, match="queries run from 3 to 7, but text 1 has 7 of them"):
        recording.cells("L4H0", [(7, 1), (3, 1)], text=1)
    for wrong in ((6, 2), [(6, 2, 1)], [(6.5, 2)]):
        with pytest.raises(ShapeError, match=r"give a list of \(query, key\) positions, as in"):
            recording.cells("L4H5", wrong)


def test_what_a_model_records_is_had_from_its_q_and_k(fresh):
    lm = tiny_llama()
    ids = torch.randint(5, 40, (2, 9), generator=fresh)
    rec = mh.record_call(lm, input_ids=ids)
    tensors = zip(*((layer.q, layer.k, layer.lse) for layer in rec.layers), strict=True)
    own, model = mh.statistics_of(*tensors), mh.measure_call(lm, input_ids=ids)
    for name in own.names:
        assert np.allclose(own.column(name), model.column(name), atol=1e-5, equal_nan=True), name


def test_tensors_that_do_not_fit_are_refused(fresh, unchecked_types):
    q, k = qk(fresh)
    for arguments, options, words in [
        (([q, q], [k]), {}, "q has 2 layers, k 1, lse 2 and mask 2: give one tensor of each layer"),
        ((q[0], k[0]), {}, "layer 0: q has shape .6, 11, 5. .* give four axes"),
        ((q, k), {"lengths": [3, 4]}, r"lengths=\[3, 4\] of 3 texts of at most 11 positions"),
        ((q, k), {"lengths": [3, 0, 4]}, "give one for each text"),
        ((q, k), {"mask": "caudal"}, "mask='caudal' says nothing of which keys a row sees"),
        ((q, k), {"mask": torch.ones(B, 1, N, N)}, "mask is torch.float32 .* give a boolean one"),
        ((q, k), {"mask": Mask.causal(N, N - 1)}, "the mask is of 11 queries and 10 keys, q and k of 11 and 11"),
        ((q, k.float()), {}, "q is torch.float64 on cpu, k torch.float32 on cpu: they must be alike"),
        ((q[:, :5], k), {}, "num_heads=5 is not a multiple of num_kv_heads=2"),
        (
            ([q, q[:2]], [k, k[:2]]),
            {},
            "layer 1: q has shape .2, 6, 11, 5. .* needs q and k of the first one's 3 texts",
        ),
        ((q, k, q[..., 0, 0]), {}, r"layer 0: lse has shape \(3, 6\)"),
        (([q.numpy()], [k]), {}, "q holds a ndarray: give torch tensors"),
    ]:
        with pytest.raises((ShapeError, HeadError), match=words):
            record_tensors(*arguments, **options)
