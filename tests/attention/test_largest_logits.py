"""`max_logits` is the maximum of all scores, in float64, of every head that reads few rows and of those that read all.

The oracle holds the whole map of scores and shares no code: products, softcap, bias and mask in NumPy.
"""

import itertools

import numpy as np
import pytest
import torch

from manyheads.attention import Mask, Rule, attend, largest_logits, largest_scores, max_logits
from manyheads.errors import ShapeError
from manyheads.reference import visible_keys
from tests.attention.conftest import tensor
from tests.refusals import refuses

B, H, G, Q, K, D = 2, 6, 3, 101, 113, 5
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ROUNDING = {torch.float64: 1e-12}  # of the other types float32's: products of 16-bit numbers are exact there
MASKS = ("full", "causal", "window", "padded", "packed", "holes", "blind")


def make_mask(name, rng):
    """A mask, and the same as booleans `[b h q k]`, made apart from it."""
    place, key = np.arange(Q)[:, None], np.arange(K)[None]
    last = place + K - Q
    rows = {
        "full": (0 * place, 0 * place + K),
        "causal": (0 * place, last + 1),
        "window": (np.maximum(last - 6, 0), last + 1),
        "packed": (place // 37 * 37, np.minimum(place // 37 * 37 + 37, K)),
        "blind": (0 * place, 0 * place),
    }
    if name in rows:
        start, stop = rows[name]
        seen = (key >= start) & (key < stop)
        runs = [torch.from_numpy(ends[:, 0])[None] for ends in (start, stop)]
        return Mask(*runs, K), np.broadcast_to(seen, (B, H, Q, K))
    if name == "padded":  # the second text is padded on the left, and some of its rows see nothing
        lengths = rng.integers(70, Q, B)
        start, stop = np.zeros((B, Q), int), np.zeros((B, Q), int)
        for text, length in enumerate(lengths):
            rows = np.arange(length) if text == 0 else np.arange(Q - length, Q)
            first = 0 if text == 0 else Q - length
            start[text, rows], stop[text, rows] = first, rows + 1
        seen = (key >= start[..., None]) & (key < stop[..., None])
        return Mask(torch.from_numpy(start), torch.from_numpy(stop), K), np.broadcast_to(seen[:, None], (B, H, Q, K))
    seen = rng.random((B, H, Q, K)) < 0.2
    seen[1, 4] = seen[:, :, 7] = False  # a head that sees nothing, and a row of all heads
    return Mask.from_dense(torch.from_numpy(seen)), seen


def rules(rng):
    """As every model has them: plain, Gemma 2, gpt-oss, ALiBi, a bias that hides cells, and everything together."""
    away = torch.arange(Q)[:, None] + K - Q - torch.arange(K)[None]
    alibi = -away.abs() * torch.tensor([2.0**-n for n in range(1, H + 1)])[None, :, None, None]
    hides = tensor(rng, B, 1, Q, K).masked_fill(torch.from_numpy(rng.random((B, 1, Q, K)) < 0.3), -torch.inf)
    lowest = torch.where(hides == -torch.inf, torch.finfo(torch.float32).min, hides)
    return {
        "plain": Rule(0.4), "softcap": Rule(0.7, 3.0), "sinks": Rule(0.4, None, 3 * tensor(rng, H)),
        "alibi": Rule(0.4, None, None, alibi), "hides": Rule(0.4, None, None, hides),
        "lowest": Rule(0.4, 4.0, None, lowest), "all": Rule(0.3, 5.0, tensor(rng, H), hides),
    }  # fmt: skip


def scores(q, k, rule, seen):
    """Every finished score and every one before softcap and bias; -inf where hidden."""
    q, k = (x.double().numpy() for x in (q, k))
    before = rule.scale * np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, q.shape[1] // k.shape[1], 1))
    after = before if rule.softcap is None else rule.softcap * np.tanh(before / rule.softcap)
    visible = seen
    if rule.bias is not None:
        bias = rule.bias.double().numpy()
        after, visible = after + bias, seen & (bias > -1e30)
    return np.where(seen, after, -np.inf), np.where(visible, before, -np.inf)


def largest_weights(largest, lse):
    """Each row's largest weight, as a pass over the map returns it: 0 where a row sees nothing."""
    weights = np.where(np.isneginf(largest), 0, np.exp(largest - np.nan_to_num(lse.double().numpy(), neginf=0)))
    return torch.from_numpy(weights).to(lse.dtype)


def assert_max(got, want, dtype):
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = ROUNDING.get(dtype, 1e-5)
    np.testing.assert_allclose(got.double().numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", MASKS)
def test_it_is_the_maximum_of_all_scores_and_lies_within_its_bounds(kind, rng):
    mask, seen = make_mask(kind, rng)
    for dtype, sharpness in zip(DTYPES, rng.permutation([0.1, 1.0, 2.0, 4.0]), strict=True):
        for name, rule in rules(rng).items():
            q, k = sharpness * tensor(rng, B, H, Q, D), tensor(rng, B, G, K, D)
            q, k = q.to(dtype), k.to(dtype)
            of_rows = [all_scores.max(-1) for all_scores in scores(q, k, rule, seen)]
            after, before = (rows.max(-1) for rows in of_rows)
            lse = attend(q, k, k, mask=mask, **rule.options).lse
            for weights in (None, largest_weights(of_rows[0], lse)):
                got = largest_scores(q, k, lse, mask, rule, weights=weights)
                assert got.uncapped is not None
                assert_max(got.finished, after, dtype)
                assert_max(got.uncapped, before, dtype)
            assert_max(max_logits(q, k, lse, mask, **rule.options), after, dtype)
            assert 0 <= got.rows_read <= got.num_rows <= B * H * Q, name
            lower, upper = max_logits(q, k, lse, mask, **rule.options, bound=True)
            # The oracle is float64's: what float32 rounds of it is no part of the bound.
            slack = 1e-6 * np.abs(np.where(np.isfinite(after), after, 0))
            assert (lower.double().numpy() <= after + slack).all(), (name, lower, after)
            assert (upper.double().numpy() >= after - slack).all(), (name, upper, after)
            assert ((lower == -torch.inf).numpy() <= (np.isneginf(after) | (rule.sinks is not None))).all()
            for count in (1, 7):
                some = largest_scores(q, k, lse, mask, rule, rows=count)
                assert (some.finished.double().numpy() <= after + 1e-5 + 10 * slack).all()
                assert some.rows_read <= B * H * count


def test_heads_alone_and_keys_that_all_share(rng):
    mask, seen = make_mask("causal", rng)
    for groups in (1, 2, H):
        q, k = 2 * tensor(rng, B, H, Q, D), tensor(rng, B, groups, K, D)
        lse = attend(q, k, k, mask=mask).lse
        want = scores(q, k, Rule(D**-0.5), seen)[0].max((-1, -2))
        assert_max(max_logits(q, k, lse, mask), want, q.dtype)
        assert_max(max_logits(q, k, attend(q, k, k).lse), scores(q, k, Rule(D**-0.5), True)[0].max((-1, -2)), q.dtype)


@pytest.mark.slow
def test_no_more_texts_than_fit_are_read_together(rng, monkeypatch):
    """Blocks so small that heads, rows and keys are all divided."""
    for name, size in {"BLOCK_CELLS": 3000, "SWEEP_CELLS": 500, "SWEEP_KEYS": 17}.items():
        monkeypatch.setattr(largest_logits, name, size)
    for kind, sharpness in itertools.product(("causal", "padded", "holes"), (0.1, 2.0)):
        mask, seen = make_mask(kind, rng)
        for rule in rules(rng).values():
            q, k = sharpness * tensor(rng, B, H, Q, D), tensor(rng, B, G, K, D)
            lse = attend(q, k, k, mask=mask, **rule.options).lse
            got, (after, before) = largest_scores(q, k, lse, mask, rule), scores(q, k, rule, seen)
            assert_max(got.finished, after.max((-1, -2)), q.dtype)
            assert_max(got.uncapped, before.max((-1, -2)), q.dtype)


def test_scores_that_are_all_negative_have_a_negative_maximum(rng):
    q, k = tensor(rng, 1, 2, 89, 3).abs() + 1, -tensor(rng, 1, 2, 89, 3).abs() - 1
    mask = Mask.causal(89, 89)
    got = max_logits(q, k, attend(q, k, k, mask=mask).lse, mask)
    want = scores(q, k, Rule(3**-0.5), visible_keys((1, 2, 89, 89), causal=True))[0].max((-1, -2))
    assert (want < 0).all()
    assert_max(got, want, q.dtype)


def test_a_head_with_an_outlier_is_exact_after_one_block_and_an_even_one_reads_all_rows(rng):
    n, mask = 700, Mask.causal(700, 700)
    q, k = 1e-3 * tensor(rng, 1, 3, n, 64), tensor(rng, 1, 3, n, 64)
    lse = attend(q, k, k, mask=mask, scale=1.0).lse
    even = largest_scores(q, k, lse, mask, Rule(1.0))
    assert even.rows_read == even.num_rows == 3 * n
    all_scores = scores(q, k, Rule(1.0), visible_keys((1, 3, n, n), causal=True))[0]
    known = largest_scores(q, k, lse, mask, Rule(1.0), weights=largest_weights(all_scores.max(-1), lse))
    assert known.rows_read <= 3 * 16
    assert_max(known.finished, all_scores.max((-1, -2)), q.dtype)
    row, key = int(rng.integers(400, n)), int(rng.integers(0, 400))
    q[:, :, row] = 300 * k[:, :, key]
    sharp = largest_scores(q, k, attend(q, k, k, mask=mask).lse, mask, Rule(1.0))
    assert sharp.rows_read <= 3 * 16 and sharp.num_rows == 3 * n
    want = scores(q, k, Rule(1.0), visible_keys((1, 3, n, n), causal=True))[0].max((-1, -2))
    assert_max(sharp.finished, want, q.dtype)


def test_an_lse_that_was_rounded_to_bfloat16_needs_the_margin(rng, monkeypatch):
    """200 rows of one key each, whose scores round to the same lse: the largest is at another place in every head."""
    heads, n = 40, 200
    largest = torch.from_numpy(rng.permutation(n)[:heads])
    q = torch.full((1, heads, n, 1), 10.01)
    q[0, torch.arange(heads), largest] = 10.03
    k = torch.ones(1, heads, 1, 1)
    lse = attend(q, k, k, scale=1.0).lse.bfloat16()
    assert (lse == 10.0).all()
    assert max_logits(q, k, lse, scale=1.0).eq(10.03).all()
    monkeypatch.setattr(largest_logits._Search, "margins", torch.zeros_like(lse, dtype=torch.float32))
    assert not max_logits(q, k, lse, scale=1.0).eq(10.03).all(), "without its margin the search must miss some"


def test_sampled_rows_have_the_last_row_of_each_text_among_them(rng):
    n, lengths = 97, (97, 61)
    start = torch.zeros(2, n, dtype=torch.long)
    stop = torch.stack([torch.arange(n).add(1).where(torch.arange(n) < length, 0) for length in lengths])
    q, k = tensor(rng, 2, 4, n, D), tensor(rng, 2, 2, n, D)
    for text, length in enumerate(lengths):
        q[text, :, length - 1] = 50 * k[text, 0, length - 1]
        k[text, 1, length - 1] = k[text, 0, length - 1]
    mask = Mask(start, stop, n)
    rule, lse = Rule(1.0), attend(q, k, k, mask=mask, scale=1.0).lse
    few, every = (largest_scores(q, k, lse, mask, rule, rows=count) for count in (3, 1000))
    assert torch.allclose(few.finished, every.finished, rtol=1e-6)
    assert few.rows_read == 2 * 4 * 3 and every.num_rows == 4 * sum(lengths)
    assert torch.equal(every.finished, largest_scores(q, k, lse, mask, rule).finished)


def test_no_gradient_is_kept_and_nan_is_seen_where_a_row_is(rng):
    q, k = tensor(rng, 1, 2, 90, D).requires_grad_(), tensor(rng, 1, 2, 90, D)
    mask = Mask.causal(90, 70 + 20)
    got = max_logits(q, k, attend(q, k, k, mask=mask).lse, mask)
    assert not got.requires_grad
    padded = Mask(mask.start, mask.stop.where(torch.arange(90) < 80, 0), 90)
    q, k = q.detach().clone(), k.clone()
    q[:, :, 80:], k[:, :, 80:] = torch.nan, torch.nan  # padding may hold anything
    lse = attend(q[:, :, :80], k[:, :, :80], k[:, :, :80], mask=Mask.causal(80, 80)).lse
    lse = torch.nn.functional.pad(lse, (0, 10), value=-torch.inf)
    assert max_logits(q, k, lse, padded).isfinite().all()
    assert all(bound.isfinite().all() for bound in max_logits(q, k, lse, padded, bound=True))
    q[0, 1, 33], lse[0, 1, 33] = torch.nan, torch.nan
    assert max_logits(q, k, lse, padded)[0].isnan().tolist() == [False, True]


@pytest.mark.parametrize("shape", [(0, 4, 9, 3), (2, 0, 9, 3), (2, 4, 0, 3), (2, 4, 9, 0)])
def test_empty_axes_have_no_maximum(shape):
    q = torch.randn(shape)
    got = max_logits(q, q, torch.zeros(shape[:3]), scale=1.0)
    assert got.shape == shape[:2]
    assert (got == (0.0 if shape[3] == 0 else -torch.inf)).all()


def test_what_does_not_fit_is_refused(rng, unchecked_types):
    q, k = tensor(rng, B, H, 7, D), tensor(rng, B, G, 11, D)
    lse = attend(q, k, k).lse
    with pytest.raises(ShapeError, match=r"lse is torch.float32 of shape \(2, 6, 6\).*of shape \(2, 6, 7\)"):
        max_logits(q, k, lse[..., 1:])
    with pytest.raises(ShapeError, match="give a Mask of manyheads.attention.masks"):
        max_logits(q, k, lse, torch.ones(B, H, 7, 11, dtype=torch.bool))  # pyright: ignore[reportArgumentType]
    refuses(ShapeError, "rows=0 are not rows to read", largest_scores, q, k, lse, Mask.full(7, 11), Rule(1.0), rows=0)
