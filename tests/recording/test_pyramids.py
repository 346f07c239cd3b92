"""Regions of one head's map at every level: each cell is the mean, or the largest, of the visible weights there.

The oracle is the map itself, as the NumPy reference makes it from q and k; a block is sliced out of it and averaged.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyheads import reference
from manyheads.errors import ShapeError
from manyheads.nn import Mask, Rule
from manyheads.recording import LayerRecord, Tokens
from manyheads.recording.exact_map import zoom as pyramids
from manyheads.recording.exact_map.zoom import read_region
from manyheads.spec import Site

H, G, D = 6, 3, 5
KINDS = ("full", "causal", "window", "dense", "dense by head", "bias", "softcap", "sinks", "cross", "padded", "float16")


def layer_of(kind, fresh, num_queries, num_keys=None):
    """A layer's record with everything about it drawn at random, and its map as the reference computes it, by head."""
    num_keys = num_keys or num_queries
    q, k = (2 * torch.randn(1, heads, n, D, generator=fresh) for heads, n in ((H, num_queries), (G, num_keys)))
    if kind == "float16":
        q, k = q.half(), k.half()
    mask, rule, stack = Mask.full(num_queries, num_keys), Rule(0.6), ""
    if kind in ("causal", "sinks", "softcap", "float16"):
        mask = Mask.causal(num_queries, num_keys)
    if kind == "window":
        mask = Mask.causal(num_queries, num_keys, window=7)
    if kind.startswith("dense"):
        heads = H if kind == "dense by head" else 1
        seen = torch.rand(1, heads, num_queries, num_keys, generator=fresh) < 0.4
        mask = Mask.from_dense(seen)
        assert mask.dense is not None or num_queries < 9, "every row of a small one may be a run"
    if kind == "padded":
        mask = Mask.from_lengths(torch.tensor([num_queries - 3]), num_queries, num_keys)
    if kind == "bias":
        rule = Rule(0.6, bias=torch.randn(1, H, num_queries, num_keys, generator=fresh))
    if kind == "softcap":
        rule = Rule(0.6, softcap=3.0)
    if kind == "sinks":
        rule = Rule(0.6, sinks=torch.randn(H, generator=fresh))
    if kind == "cross":
        stack = "cross"
    visible = mask.visible(slice(0, num_queries), slice(0, num_keys))[0].expand(H, -1, -1).numpy()
    weights, lse = full_map(q[0].double().numpy(), k[0].double().numpy(), visible, rule)
    site = Site(stack, 2, "layers.2", H, G, D, D, kind == "causal")
    lengths = torch.tensor([num_queries])
    tokens = Tokens.unnamed([num_queries])
    record = LayerRecord(site, q, k, None, torch.from_numpy(lse)[None].float(), mask, rule, lengths, tokens)
    return record, np.where(visible, weights, np.nan)


def full_map(q, k, visible, rule):
    """Weights and lse in float64, written out."""
    scores = rule.scale * q @ np.repeat(k, H // G, 0).transpose(0, 2, 1)
    if rule.softcap is not None:
        scores = rule.softcap * np.tanh(scores / rule.softcap)
    if rule.bias is not None:
        scores = scores + rule.bias[0].double().numpy()
    scores = np.where(visible, scores, -np.inf)
    extra = np.zeros((H, 0)) if rule.sinks is None else rule.sinks.double().numpy()[:, None]
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores).sum(-1) + np.exp(extra).sum(-1)[:, None])
    return np.where(visible, np.exp(scores - np.where(np.isinf(lse), 0, lse)[..., None]), 0), lse


def blocks_of(cells, side):
    """Means and maxima of the visible cells of each block; NaN where there is none."""
    rows, columns = (-(-n // side) for n in cells.shape)
    out = np.full((2, rows, columns), np.nan)
    for i in range(rows):
        for j in range(columns):
            block = cells[i * side : (i + 1) * side, j * side : (j + 1) * side]
            if not np.isnan(block).all():
                out[:, i, j] = np.nanmean(block), np.nanmax(block)
    return out


def assert_level(level, cells):
    want = blocks_of(cells, 1 << level.level)
    for got, wanted in ((level.mean, want[0]), (level.max, want[1])):
        got = got.numpy()
        assert got.shape == wanted.shape
        assert (np.isnan(got) == np.isnan(wanted)).all()
        np.testing.assert_allclose(np.nan_to_num(got), np.nan_to_num(wanted), atol=1e-5)


@pytest.mark.turns(4)
@pytest.mark.thinned
@pytest.mark.parametrize("wide", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("strip", [1 << 20, 64], ids=["one strip", "many strips"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_every_cell_of_every_level_is_of_the_weights_that_it_stands_for(kind, strip, wide, fresh, monkeypatch):
    monkeypatch.setattr(pyramids, "STRIP_CELLS", strip)
    monkeypatch.setattr(pyramids, "WIDE_CELLS", 1 << 18 if wide else 0)
    record, cells = layer_of(kind, fresh, 53, 37 if kind == "cross" else None)
    rows, keys = (slice(0, n) for n in cells.shape[1:])
    for head in (0, 5):
        region = read_region(record, head, rows, keys, range(5))
        assert region.exact and [level.level for level in region.levels] == [0, 1, 2, 3, 4]
        for level in region.levels:
            assert_level(level, cells[head])
    assert not np.allclose(np.nan_to_num(cells[0]), np.nan_to_num(cells[1]), atol=1e-3), "heads must differ to tell"


def test_the_map_is_that_of_the_reference(fresh):
    record, cells = layer_of("causal", fresh, 19)
    q, k = record.q.double().numpy(), record.k.double().numpy()
    seen = record.mask.visible(slice(0, 19), slice(0, 19)).numpy()
    known = reference.attend(q, np.repeat(k, H // G, 1), np.repeat(k, H // G, 1), mask=seen, scale=0.6)
    np.testing.assert_allclose(np.nan_to_num(cells), known.weights[0], atol=1e-6)


@given(st.data())
def test_any_region_that_begins_at_whole_blocks_is_a_window_of_the_whole(data):
    fresh = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    kind = data.draw(st.sampled_from(KINDS))
    length, top = data.draw(st.integers(2, 40)), data.draw(st.integers(0, 3))
    record, cells = layer_of(kind, fresh, max(4, length))
    length, side = max(4, length), 1 << top
    row, key = (side * data.draw(st.integers(0, (length - 1) // side)) for _ in range(2))
    rows, keys = (slice(at, data.draw(st.integers(at + 1, length))) for at in (row, key))
    region = read_region(record, 4, rows, keys, range(data.draw(st.integers(0, top)), top + 1))
    for level in region.levels:
        assert_level(level, cells[4][rows, keys])


@pytest.mark.parametrize("kind", ["causal", "full", "window"])
def test_a_sample_reads_no_more_than_asked_says_so_and_is_the_mean_of_its_rows(kind, fresh):
    record, cells = layer_of(kind, fresh, 61)
    whole = slice(0, 61)
    seen = int((~np.isnan(cells[3])).sum())
    region = read_region(record, 3, whole, whole, range(2, 5), most_cells=seen // 4)
    assert not region.exact and region.rows_in_all == 61 and len(region.levels) == 1
    assert 4 <= region.rows_read <= 61 // 4 + 4
    (level,) = region.levels
    kept = max(1, int(16 * (seen // 4) / seen))
    chosen = [
        at for block in range(4) for at in (int((i + 0.5) * 16 / kept) + 16 * block for i in range(kept)) if at < 61
    ]
    assert region.rows_read == len(chosen)
    thin = np.full_like(cells[3], np.nan)
    thin[chosen] = cells[3][chosen]
    assert_level(level, thin)
    exact = read_region(record, 3, whole, whole, range(4, 5))
    assert exact.exact and not np.allclose(exact.levels[0].mean.nan_to_num(), level.mean.nan_to_num(), atol=1e-5)


def test_a_long_row_of_a_short_last_block_is_never_left_out(fresh):
    record, _ = layer_of("full", fresh, 65)
    region = read_region(record, 0, slice(0, 65), slice(0, 65), range(5, 6), most_cells=100)
    assert not region.exact and not region.levels[0].mean.isnan().any()


def test_work_is_told_of_and_can_be_stopped(fresh, monkeypatch):
    monkeypatch.setattr(pyramids, "STRIP_CELLS", 53 * 8)
    record, _ = layer_of("full", fresh, 53)
    told = []

    def stop(done, total):
        told.append((done, total))
        if done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_region(record, 0, slice(0, 53), slice(0, 53), range(3), on_strip=stop)
    assert told[0] == (0, 53) and 2 < len(told) < 8


@pytest.mark.parametrize(
    ("rows", "keys", "levels", "text", "head", "said"),
    [
        (slice(0, 54), slice(0, 9), range(1), 0, 0, "rows 0 to 54 cannot be read: text 0 has 53 of them"),
        (slice(0, 9), slice(5, 5), range(1), 0, 0, "keys 5 to 5 cannot be read"),
        (slice(2, 9), slice(0, 9), range(3), 0, 0, "a region of level 2 begins at a multiple of 4"),
        (slice(0, 9), slice(0, 9), range(0), 0, 0, "give a run of levels from 0 to 40"),
        (slice(0, 9), slice(0, 9), range(0, 4, 2), 0, 0, "give a run of levels"),
        (slice(0, 9), slice(0, 9), range(1), 1, 0, "text=1 is not in this recording: it holds 1 texts"),
        (slice(0, 9), slice(0, 9), range(1), 0, 6, "head=6 is not in layer 2: it has heads 0 to 5"),
    ],
)
def test_what_is_no_region_is_said(rows, keys, levels, text, head, said, fresh):
    record, _ = layer_of("full", fresh, 53)
    with pytest.raises(ShapeError, match=said):
        read_region(record, head, rows, keys, levels, text=text)
