"""The reference is what everything else is held to, so it is held to torch, to loops over cells, to the definitions.

Sizes are all different, so that no pair of swapped axes can pass.
"""

import doctest
import importlib
import inspect
import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from manyheads import reference
from manyheads.errors import ShapeError
from manyheads.reference import attend, batched, fused, naive, to_batched, to_fused, to_naive
from tests.refusals import refuses

# ===================================================================================================== what is the same
# What those share who test the reference's attention, of one kernel and of many heads.


def as_user(function):
    """The function without the tests' type checks, which would speak up before its own errors do."""
    return inspect.unwrap(function)


def assert_same(got, expected, **tolerance):
    for name in ("out", "weights", "lse"):
        assert_allclose(getattr(got, name), getattr(expected, name), err_msg=name, **({"atol": 1e-12} | tolerance))


# =========================================================================================================== one kernel

B, H, G, Q, K, D, F = 2, 6, 3, 7, 11, 5, 4


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.fixture
def qkv(rng):
    return rng.normal(size=(B, H, Q, D)), rng.normal(size=(B, G, K, D)), rng.normal(size=(B, G, K, F))


def by_the_cell(q, k, v, visible):
    """Attention once more, cell by cell, in loops that share nothing with the reference."""
    out = np.zeros((B, H, Q, F))
    for b, h, i in np.ndindex(B, H, Q):
        row = [np.exp(sum(q[b, h, i] * k[b, h // (H // G), j]) / D**0.5) if visible(i, j) else 0 for j in range(K)]
        for j in range(K):
            out[b, h, i] += row[j] / sum(row) * v[b, h // (H // G), j]
    return out


# ------------------------------------------------------------------------------------------------ the worked example


def test_reference_needs_no_torch():
    code = "import manyheads.reference.statistics, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------- attend against others


@pytest.mark.parametrize("kv_heads", [H, G, 1])
def test_attend_equals_torch(rng, kv_heads):
    q, k, v = rng.normal(size=(B, H, Q, D)), rng.normal(size=(B, kv_heads, K, D)), rng.normal(size=(B, kv_heads, K, F))
    mask = rng.random((B, H, Q, K)) < 0.6
    mask[..., 0] = True
    tensors = [torch.from_numpy(array) for array in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=torch.from_numpy(mask), scale=0.3, enable_gqa=True
    )
    assert_allclose(attend(q, k, v, mask=mask, scale=0.3).out, expected.numpy(), atol=1e-12)


def test_attend_equals_loops_over_cells_and_causal_is_aligned_to_the_last_key(qkv):
    assert_allclose(attend(*qkv).out, by_the_cell(*qkv, visible=lambda i, j: True), atol=1e-12)
    expected = by_the_cell(*qkv, visible=lambda i, j: j <= i + K - Q)
    assert_allclose(attend(*qkv, causal=True).out, expected, atol=1e-12)
    assert np.abs(attend(*qkv).out - expected).max() > 0.1
    q, k, v = qkv
    result = attend(q, k[:, :, :4], v[:, :, :4], causal=True)
    assert_array_equal(np.isneginf(result.lse), np.broadcast_to(np.arange(Q) < Q - 4, (B, H, Q)))
    assert_array_equal(result.out[:, :, : Q - 4], 0)


@pytest.mark.parametrize("causal", [False, True])
def test_window_shows_only_near_keys(qkv, causal):
    def visible(i, j):
        return abs(j - (i + K - Q)) < 3 and (j <= i + K - Q or not causal)

    result = attend(*qkv, causal=causal, window=3)
    assert_allclose(result.out, by_the_cell(*qkv, visible=visible), atol=1e-12)
    assert (result.weights[:, :, 0] > 0).sum(-1).max() == (3 if causal else 5)


def test_scores_are_scaled_then_capped_then_biased_then_masked(qkv, rng):
    q, k, v = qkv
    bias, mask = 3 * rng.normal(size=(H, Q, K)), rng.random((Q, K)) < 0.7
    q = 4 * q  # strong enough for the cap to bite
    scores = 0.7 * torch.einsum("bhqd,bhkd->bhqk", torch.tensor(q), torch.tensor(k).repeat_interleave(H // G, 1))
    scores = 2.5 * torch.tanh(scores / 2.5) + torch.tensor(bias)
    scores = scores.masked_fill(~torch.tensor(mask), -torch.inf)
    result = attend(q, k, v, scale=0.7, softcap=2.5, bias=bias, mask=mask)
    assert_allclose(result.weights, scores.softmax(-1).numpy(), atol=1e-12)
    assert_allclose(result.lse, scores.logsumexp(-1).numpy(), atol=1e-12)


@pytest.mark.parametrize(
    "option",
    [
        {"scale": 1.0}, {"causal": True}, {"softcap": 0.5}, {"window": 2}, {"sinks": np.arange(H) / H},
        {"bias": np.linspace(-2, 2, K)}, {"mask": np.arange(K) % 3 > 0},
    ],
    ids=lambda option: next(iter(option)),
)  # fmt: skip
def test_every_option_matters(qkv, option):
    plain, changed = attend(*qkv), attend(*qkv, **option)
    for name in ("out", "weights", "lse"):
        assert np.abs(getattr(plain, name) - getattr(changed, name)).max() > 0.05, name


# ------------------------------------------------------------------------------------------ softmax, lse, sinks, masks


def test_lse_rebuilds_every_weight_and_huge_scores_do_not_overflow(qkv):
    q, k, v = qkv
    result = attend(q, k, v, causal=True)
    scores = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, H // G, axis=1)) / np.sqrt(D)
    seen = result.weights > 0
    assert_allclose(result.weights[seen], np.exp(scores - result.lse[..., None])[seen], rtol=1e-12)
    assert_allclose(result.weights.sum(-1), 1, rtol=1e-12)
    assert seen.sum() == B * H * sum(range(K - Q + 1, K + 1))
    weights, lse = reference.softmax_rows(np.array([[1e4, 1e4 - np.log(3), -1e4]]))
    assert_allclose(weights, [[0.75, 0.25, 0]], atol=1e-11)
    assert_allclose(lse, [1e4 + np.log(4 / 3)], rtol=1e-14)


def test_sinks_are_one_more_key_whose_column_is_dropped(qkv, rng):
    q, k, v = qkv
    sinks = rng.normal(size=H)
    scores = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, H // G, axis=1)) / np.sqrt(D)
    scores[..., ~np.tri(Q, K, K - Q, dtype=bool)] = -np.inf
    column = np.broadcast_to(sinks[:, None, None], (B, H, Q, 1))
    whole = torch.tensor(np.concatenate([scores, column], axis=-1))
    result = attend(q, k, v, causal=True, sinks=sinks)
    assert_allclose(result.weights, whole.softmax(-1)[..., :-1].numpy(), atol=1e-12)
    assert_allclose(result.lse, whole.logsumexp(-1).numpy(), atol=1e-12)
    assert_allclose(1 - result.weights.sum(-1), np.exp(sinks[:, None] - result.lse), atol=1e-12)
    assert result.weights.sum(-1).max() < 0.999


def test_a_sink_far_above_the_scores_takes_everything_and_one_of_minus_infinity_nothing(qkv):
    result = attend(*qkv, sinks=np.full(H, 2000.0))
    assert_array_equal(result.weights, 0)
    assert_array_equal(result.lse, 2000)
    assert_same(attend(*qkv, sinks=np.full(H, -np.inf)), attend(*qkv))


@pytest.mark.parametrize("sinks", [None, np.arange(1.0, H + 1)], ids=["plain", "sinks"])
def test_a_row_that_may_see_nothing_is_zero(qkv, sinks):
    mask = np.ones((Q, K), int)
    mask[2] = 0
    result, open_result = attend(*qkv, mask=mask, sinks=sinks), attend(*qkv, sinks=sinks)
    assert_array_equal(result.weights[:, :, 2], 0)
    assert_array_equal(result.out[:, :, 2], 0)
    expected = -np.inf if sinks is None else np.broadcast_to(sinks, (B, H))
    assert_array_equal(result.lse[:, :, 2], np.broadcast_to(expected, (B, H)))
    assert_allclose(np.delete(result.out, 2, axis=2), np.delete(open_result.out, 2, axis=2), atol=1e-12)


def test_a_bias_of_minus_infinity_hides_like_a_mask(qkv):
    mask = np.tril(np.ones((Q, K), bool), -1)  # row 0 sees nothing
    assert_same(attend(*qkv, bias=np.where(mask, 0.0, -np.inf)), attend(*qkv, mask=mask))


@pytest.mark.parametrize("shape", [(K,), (Q, 1), (Q, K), (H, 1, K), (B, 1, 1, K), (B, H, Q, K)], ids=str)
def test_masks_broadcast_and_hide_exactly_their_zeros(qkv, rng, shape):
    mask = rng.random(shape) < 0.6
    result = attend(*qkv, mask=mask)
    assert_array_equal(result.weights > 0, np.broadcast_to(mask, (B, H, Q, K)))
    assert_same(attend(*qkv, mask=mask.astype(np.int8)), result)


@pytest.mark.parametrize("empty", ["b", "h", "g", "q", "k", "d", "f"])
def test_empty_axes_give_empty_or_zero_results(empty):
    sizes = {"b": B, "h": H, "g": G, "q": Q, "k": K, "d": D, "f": F} | {empty: 0}
    if empty == "g":
        sizes["h"] = 0
    if empty == "h":
        sizes["g"] = 0
    b, h, g, q, k, d, f = sizes.values()
    result = attend(np.ones((b, h, q, d)), np.ones((b, g, k, d)), np.ones((b, g, k, f)), causal=True)
    assert (result.out.shape, result.weights.shape, result.lse.shape) == ((b, h, q, f), (b, h, q, k), (b, h, q))
    if empty == "k":
        assert_array_equal(result.out, 0)
        assert_array_equal(result.lse, -np.inf)
    if empty == "d":  # scores that are all 0 look everywhere alike
        assert_allclose(result.weights[0, 0, -1], 1 / K)


def test_inputs_of_any_precision_are_computed_in_float64(rng):
    arrays = [rng.normal(size=shape).astype(np.float16) for shape in ((B, H, Q, D), (B, G, K, D), (B, G, K, F))]
    result = attend(*arrays)
    assert {result.out.dtype, result.weights.dtype, result.lse.dtype} == {np.dtype(np.float64)}
    assert_same(result, attend(*(array.astype(np.float64) for array in arrays)), atol=0, rtol=0)


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("num_kv_heads", [4, 0, 12])
def test_kv_heads_that_do_not_divide_the_heads_are_an_error(rng, num_kv_heads):
    message = rf"num_heads=6 is not a multiple of num_kv_heads={num_kv_heads}: .*Use one of \[1, 2, 3, 6\]"
    refuses(ShapeError, message, reference.initialise, rng, 12, 6, num_kv_heads)
    with pytest.raises(ShapeError, match=message):
        attend(np.ones((1, 6, 2, 3)), np.ones((1, num_kv_heads, 2, 3)), np.ones((1, num_kv_heads, 2, 3)))


@pytest.mark.parametrize(
    ("wrong", "shape"), [("q", (B, H, Q, D + 1)), ("k", (B + 1, G, K, D)), ("v", (B, G, K + 1, F)), ("q", (H, Q, D))]
)
def test_shapes_that_do_not_fit_are_an_error(qkv, wrong, shape):
    arrays = dict(zip("qkv", qkv, strict=True)) | {wrong: np.ones(shape)}
    refuses(ShapeError, r"must be \(b, h, q, d\), \(b, g, k, d\), \(b, g, k, f\)", as_user(attend), **arrays)


@pytest.mark.parametrize(("options", "message"), [
    ({"mask": np.ones((Q, K + 1), bool)}, r"mask has shape \(7, 12\).*\(2, 6, 7, 11\)"),
    ({"mask": np.ones((3, B, H, Q, K), bool)}, "mask has shape"),
    ({"bias": np.ones((Q + 1, K))}, r"bias has shape \(8, 11\)"),
    ({"mask": np.zeros((Q, K))}, r"mask is float64.*bias=.*astype\(bool\)"),
    ({"mask": np.full((Q, K), 2)}, "mask is int64 and must be booleans, or integers 0 and 1"),
    ({"sinks": np.ones(H + 1)}, r"sinks has shape \(7,\).*\(6,\)"),
    ({"softcap": 0.0}, "softcap=0.0 is not a cap"),
    ({"window": 0}, "window=0 shows no key"),
])  # fmt: skip
def test_options_that_do_not_fit_are_an_error(qkv, options, message):
    refuses(ValueError, message, as_user(attend), *qkv, **options)


# =========================================================================================================== many heads
# Multi-head attention of the reference, in all layouts of its weights, is held to pencil, to torch and to itself.
#
# Sizes are all different, so that no pair of swapped axes can pass.

M = 13  # the model's width where heads need not divide it; initialise() uses 30 = H * D
RUN = {"naive": (to_naive, naive), "batched": (to_batched, batched), "fused": (to_fused, fused)}
LAYOUTS = pytest.mark.parametrize("layout", RUN)


@pytest.fixture
def weights(rng):
    """GQA with biases, and d, f, m and h all different."""
    shapes = [(H, M, D), (G, M, D), (G, M, F), (H * F, M), (H, D), (G, D), (G, F), (M,)]
    return reference.NaiveWeights(*(rng.normal(size=shape) for shape in shapes))


def run(layout, x, weights, **options):
    convert, function = RUN[layout]
    return function(x, convert(weights), **options)


# ------------------------------------------------------------------------------------------------ the worked example


@LAYOUTS
def test_worked_example_gives_the_right_numbers(layout):
    x, weights = reference.worked_example()
    result = run(layout, x, weights)
    r = np.sqrt(0.5)
    scores = [[[0, r, r], [r, 0, r], [r, r, 2 * r]], [[0, r, 0], [r, 0, 0], [0, 0, 0]]]
    maps = [
        [[0.198, 0.401, 0.401], [0.401, 0.198, 0.401], [0.248, 0.248, 0.503]],
        [[0.248, 0.503, 0.248], [0.503, 0.248, 0.248], [1 / 3, 1 / 3, 1 / 3]],
    ]
    # head 0 reads V1 = [[2,0],[0,0],[1,0]], head 1 reads V2 = [[0,1],[0,1],[0,2]]; W^O is the identity
    out = [[0.797, 0, 0, 1.248], [1.203, 0, 0, 1.248], [1.0, 0, 0, 4 / 3]]
    assert_allclose(result.weights, maps, atol=6e-4)
    assert_allclose(np.log(result.weights) + result.lse[..., None], scores, atol=1e-12)
    assert_allclose(result.out, out, atol=6e-4)


def test_worked_example_projects_to_the_printed_queries_keys_and_values():
    x, weights = reference.worked_example()
    assert_array_equal(x @ weights.w_q, [[[1, 0], [0, 1], [1, 1]], [[1, 0], [0, 1], [0, 0]]])
    assert_array_equal(x @ weights.w_k, [[[0, 1], [1, 0], [1, 1]], [[0, 1], [1, 0], [0, 0]]])
    assert_array_equal(x @ weights.w_v, [[[2, 0], [0, 0], [1, 0]], [[0, 1], [0, 1], [0, 2]]])


@pytest.mark.parametrize("module", ["multihead", "attention"])
def test_examples_in_docstrings_are_true(module):
    result = doctest.testmod(importlib.import_module(f"manyheads.reference.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


# --------------------------------------------------------------------------------------- multi-head attention, 3 ways


@pytest.mark.parametrize("layout", ["batched", "fused"])
@pytest.mark.parametrize("options", ["plain", "causal", "mask", "context"])
def test_layouts_agree(rng, weights, layout, options):
    x = rng.normal(size=(B, Q, M))
    options = {
        "plain": {},
        "causal": {"causal": True},
        "mask": {"mask": rng.random((Q, Q)) < 0.6},
        "context": {"context": rng.normal(size=(B, K, M)), "causal": True},
    }[options]
    expected, result = naive(x, weights, **options), run(layout, x, weights, **options)
    assert_same(result, expected)
    assert_allclose(result.heads, expected.heads, atol=1e-12)
    assert result.heads.shape == (B, H, Q, F)


@LAYOUTS
def test_multi_head_equals_torch(rng, layout):
    embed_dim = H * D
    weights = reference.initialise(rng, embed_dim, H, layout="fused", bias=True)
    module = torch.nn.MultiheadAttention(embed_dim, H, batch_first=True, dtype=torch.float64)
    b_qkv, b_o = rng.normal(size=3 * embed_dim), rng.normal(size=embed_dim)
    weights = reference.FusedWeights(H, H, D, weights.w_qkv, weights.w_o, b_qkv, b_o)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.from_numpy(weights.w_qkv.T))  # torch keeps [out, in]
        module.in_proj_bias.copy_(torch.from_numpy(b_qkv))
        module.out_proj.weight.copy_(torch.from_numpy(weights.w_o.T))
        module.out_proj.bias.copy_(torch.from_numpy(b_o))
    x, mask = rng.normal(size=(B, Q, embed_dim)), np.tril(rng.random((Q, Q)) < 0.7)
    np.fill_diagonal(mask, True)
    hidden = torch.from_numpy(~mask)  # torch's boolean mask is True where nobody may look
    tensor = torch.from_numpy(x)
    with torch.no_grad():
        out, maps = module(tensor, tensor, tensor, attn_mask=hidden, average_attn_weights=False)
    result = run(layout, x, weights, mask=mask)
    assert_allclose(result.out, out.numpy(), atol=1e-12)
    assert_allclose(result.weights, maps.numpy(), atol=1e-12)
    assert reference.count_parameters(weights) == sum(p.numel() for p in module.parameters())


@LAYOUTS
def test_shapes_follow_the_input_no_tokens_are_empty_and_context_may_be_the_input_itself(rng, weights, layout):
    x = rng.normal(size=(B, Q, M))
    whole, one = run(layout, x, weights), run(layout, x[1], weights)
    assert (whole.out.shape, whole.weights.shape) == ((B, Q, M), (B, H, Q, Q))
    assert (one.out.shape, one.weights.shape) == ((Q, M), (H, Q, Q))
    assert_allclose(one.out, whole.out[1], atol=1e-12)
    assert_allclose(one.weights, whole.weights[1], atol=1e-12)
    assert run(layout, np.zeros((0, M)), weights).weights.shape == (H, 0, 0)
    assert run(layout, np.zeros((0, Q, M)), weights).out.shape == (0, Q, M)
    unseen = run(layout, np.ones((Q, M)), weights, context=np.zeros((0, M)))
    assert_array_equal(unseen.heads, 0)
    assert_allclose(unseen.out, np.broadcast_to(weights.b_o, (Q, M)))
    x = rng.normal(size=(Q, M))
    assert_same(run(layout, x, weights, context=x.copy()), run(layout, x, weights))


@LAYOUTS
def test_masks_matter_zero_means_may_not_look_and_may_differ_by_text_and_head(rng, weights, layout):
    x, mask = rng.normal(size=(B, Q, M)), np.tril(np.ones((Q, Q), int))
    result = run(layout, x, weights, mask=mask)
    assert_array_equal(result.weights > 0, np.broadcast_to(mask == 1, (B, H, Q, Q)))
    assert np.abs(result.out - run(layout, x, weights).out).max() > 0.1
    assert_same(result, run(layout, x, weights, causal=True))
    x, mask = rng.normal(size=(B, Q, M)), rng.random((B, H, Q, Q)) < 0.5
    assert_array_equal(run(layout, x, weights, mask=mask).weights > 0, mask)
    assert_array_equal(run(layout, x[0], weights, mask=mask[0]).weights > 0, mask[0])


@LAYOUTS
def test_multi_head_gqa_equals_repeated_kv_matrices(rng, weights, layout):
    x, twice = rng.normal(size=(Q, M)), H // G
    shared = ("w_k", "w_v", "b_k", "b_v")
    own = {name: np.repeat(getattr(weights, name), twice, axis=0) for name in shared}
    rest = {name: getattr(weights, name) for name in ("w_q", "w_o", "b_q", "b_o")}
    assert_same(run(layout, x, weights), naive(x, reference.NaiveWeights(**rest, **own)))


@LAYOUTS
def test_biases_matter(rng, weights, layout):
    x = rng.normal(size=(Q, M))
    full = run(layout, x, weights).out
    for name in ("b_q", "b_k", "b_v", "b_o"):
        parts = {field: getattr(weights, field) for field in vars(weights)} | {name: None}
        less = run(layout, x, reference.NaiveWeights(**parts)).out
        # A key bias alone shifts a whole row by q . b_k, and softmax forgets a shift.
        assert (np.abs(full - less).max() > 1e-3) == (name != "b_k"), name
        assert_allclose(less, naive(x, reference.NaiveWeights(**parts)).out, atol=1e-12)


# ------------------------------------------------------------------------------------------- weights and their layouts


@pytest.mark.parametrize("first", RUN)
@pytest.mark.parametrize("second", RUN)
def test_weights_survive_a_round_trip(weights, first, second):
    there = RUN[second][0](RUN[first][0](weights))
    back = to_naive(there)
    for name, value in vars(weights).items():
        assert_array_equal(getattr(back, name), value, err_msg=name)
    assert reference.count_parameters(there) == reference.count_parameters(weights)


def test_batched_columns_are_the_heads_in_order(weights):
    wide, one = to_batched(weights), to_fused(weights)
    assert_array_equal(wide.w_q[:, 2 * D : 3 * D], weights.w_q[2])
    assert_array_equal(wide.w_v[:, F : 2 * F], weights.w_v[1])
    assert_array_equal(one.w_qkv[:, H * D : (H + 1) * D], weights.w_k[0])
    assert_array_equal(one.b_qkv[(H + G) * D :][F : 2 * F], weights.b_v[1])


@pytest.mark.parametrize("num_heads", [1, 2, 8, 16])
@LAYOUTS
def test_parameters_are_4_d_squared_whatever_h(rng, layout, num_heads):
    weights = reference.initialise(rng, 48, num_heads, layout=layout)
    assert reference.count_parameters(weights) == 4 * 48**2
    heads = to_naive(weights)
    per_head = heads.w_q[0].size + heads.w_k[0].size + heads.w_v[0].size
    assert per_head == 3 * 48**2 // num_heads


def test_parameters_with_biases_are_torchs_and_gqa_shares_them(rng):
    assert reference.count_parameters(reference.initialise(rng, 512, 8, bias=True)) == 1_050_624
    weights = reference.initialise(rng, H * D, H, G, layout="batched")
    assert (weights.w_k.shape, weights.w_v.shape) == ((H * D, G * D), (H * D, G * D))


@pytest.mark.parametrize(("layout", "columns"), [("naive", 32), ("batched", 256), ("fused", 256)])
def test_initial_scale_is_glorots_for_the_layouts_matrix(rng, layout, columns):
    weights = to_naive(reference.initialise(rng, 256, 8, layout=layout))
    for name in ("w_q", "w_k", "w_v"):
        assert getattr(weights, name).std() == pytest.approx(np.sqrt(2 / (256 + columns)), rel=0.02), name
    assert weights.w_o.std() == pytest.approx(np.sqrt(2 / (2 * 256)), rel=0.02)
    assert abs(weights.w_q.mean()) < 1e-3


def test_initialise_repeats_with_its_seed():
    first, again, other = (reference.initialise(np.random.default_rng(seed), 12, 3).w_k for seed in (5, 5, 6))
    assert_array_equal(first, again)
    assert (first != other).all()


# ------------------------------------------------------------------------------------------------------------- errors


def test_heads_that_do_not_divide_the_width_and_an_unknown_layout_are_errors(rng):
    message = r"embed_dim=12 is not a multiple of num_heads=5.*Use one of \[1, 2, 3, 4, 6, 12\] heads"
    refuses(ShapeError, message, reference.initialise, rng, 12, 5)
    refuses(ShapeError, "num_heads=0", reference.initialise, rng, 12, 0)
    with pytest.raises(ValueError, match=r"layout='interleaved' .*: use one of naive, batched, fused"):
        reference.initialise(rng, 12, 3, layout="interleaved")


@LAYOUTS
def test_multi_head_inputs_that_do_not_fit_are_an_error(weights, layout):
    convert, function = RUN[layout]
    function, weights, x = as_user(function), convert(weights), np.ones((B, Q, M))
    refuses(ShapeError, r"x has shape \(2, 7, 14\).*\[n, 13\]", function, np.ones((B, Q, M + 1)), weights)
    refuses(ShapeError, r"context has shape \(13,\)", function, x, weights, context=np.ones(M))
    refuses(ShapeError, "the same batch axis, or none", function, x, weights, context=np.ones((B + 1, K, M)))
    # [batch, n, n] where batch == heads would be read as one mask a head
    with pytest.raises(ShapeError, match=r"needs a head axis too: mask\[:, None\]"):
        function(np.ones((H, Q, M)), weights, mask=np.ones((H, Q, Q), bool))


def test_weights_that_do_not_fit_each_other_are_an_error():
    w = np.ones((12, 12))
    with pytest.raises(ShapeError, match="num_heads=6 is not a multiple of num_kv_heads=4"):
        reference.BatchedWeights(6, 4, w, w[:, :8], w[:, :8], w)
    with pytest.raises(ShapeError, match=r"BatchedWeights.w_q has shape \(12, 12\).*must be \(12, 10\)"):
        reference.BatchedWeights(5, 5, w, w, w, w)
    with pytest.raises(ShapeError, match=r"FusedWeights.w_qkv has shape \(12, 24\).*must be \(12, 36\)"):
        reference.FusedWeights(6, 6, 2, np.ones((12, 24)), w)
    with pytest.raises(ShapeError, match=r"NaiveWeights.w_o has shape \(12, 12\).*must be \(6, 12\)"):
        as_user(reference.NaiveWeights.__init__)(object.__new__(reference.NaiveWeights), *[np.ones((3, 12, 2))] * 3, w)
