"""Long recordings: an overview at once, said to be of sampled rows, then exact; single cells anywhere."""

import time

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.studio import Workspace
from manyheads.studio.views import tiles as tiles_module
from tests.studio.serving import studio_of


def recorded(folder, length):
    """A causal layer of two heads over random vectors, as a file."""
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    layer = mh.MultiHeadAttention(32, 2, causal=True, batch_first=True).eval()
    x = 3 * torch.randn(1, length, 32, generator=generator)
    mh.record_call(layer, x, need_weights=False).save(folder / f"{length}.heads")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    recorded(folder, 8_192)
    return folder


@pytest.fixture(scope="module")
def studio(files):
    with studio_of(Workspace.of([files])) as studio:
        yield studio


def opened(studio, length):
    job = studio.job("/api/recordings", {"file": f"{length}.heads"})
    assert job["state"] == "done", job
    return job["result"]


@pytest.mark.slow  # thousands of tokens
def test_every_level_of_8192_tokens_is_of_the_same_weights(studio, files):
    rec = opened(studio, 8192)
    layer = mh.open_recording(files / "8192.heads").layers[0]
    base = f"/api/recordings/{rec['id']}/tiles/L0H1"
    assert rec["max_level"] == 5
    for level, column, row in ((5, 0, 0), (3, 1, 3), (1, 9, 12), (0, 7, 30)):
        side = 1 << level
        for how in ("mean", "max"):
            header, arrays = studio.get(f"{base}/{level}/{column}/{row}?how={how}").arrays()
            values = arrays["values"]
            assert header["exact"]
            for i, j in ((0, 0), (17, 200), (255, 3), (130, 129)):
                top, left = (256 * row + i) * side, (256 * column + j) * side
                cells = layer.weights(head=1, queries=slice(top, top + side), keys=slice(left, left + side)).numpy()
                seen = np.arange(left, left + side)[None] <= np.arange(top, top + side)[:, None]
                if not seen.any():
                    assert np.isnan(values[i, j])
                    continue
                want = cells[seen].mean() if how == "mean" else cells[seen].max()
                assert abs(values[i, j] - want) < 1e-5


@pytest.mark.slow
def test_100_000_tokens_open_with_an_overview_that_says_so_and_are_refined(tmp_path):
    recorded(tmp_path, 100_000)
    with studio_of(Workspace.of([tmp_path])) as studio:
        assert_overview(studio, tmp_path)


def assert_overview(studio, files):
    begun = time.perf_counter()
    rec = opened(studio, 100_000)
    base = f"/api/recordings/{rec['id']}"
    assert rec["num_tokens"] == 100_000 and rec["max_level"] == 9
    header, arrays = studio.get(f"{base}/tiles/L0H0/9/0/0").arrays()
    assert not header["exact"] and "rows read" in header["words"]
    sampled = arrays["values"]
    assert studio.get(f"{base}/thumbnails").arrays()[0]["exact"] is False
    atlas = studio.get(f"{base}/atlas").json
    assert atlas["exact"].startswith("sampled: ") and atlas["heads"][0]["values"]
    print(f"open, overview, thumbnails, atlas: {time.perf_counter() - begun:.1f} s")
    assert time.perf_counter() - begun < 60
    header, arrays = studio.get(f"{base}/tiles/L0H0/9/0/0?rows=all").arrays()
    assert header["exact"] and "rows read" not in header["words"]
    exact = arrays["values"]
    assert (np.isnan(exact) == np.isnan(sampled)).mean() > 0.99
    both = ~np.isnan(exact) & ~np.isnan(sampled)
    assert np.corrcoef(exact[both], sampled[both])[0, 1] > 0.5, "of the same map"
    header, arrays = studio.get(f"{base}/tiles/L0H0/9/0/0").arrays()
    assert header["exact"], "what was refined is kept"
    layer = mh.open_recording(files / "100000.heads").layers[0]
    _, arrays = studio.get(f"{base}/tiles/L0H0/0/390/390").arrays()
    want = layer.weights(head=0, queries=slice(99_840, 100_000), keys=slice(99_840, 100_000)).numpy()
    np.testing.assert_allclose(np.nan_to_num(arrays["values"]), want, atol=1e-6)
    _, arrays = studio.get(f"{base}/rows/L0H1/99999").arrays()
    np.testing.assert_allclose(arrays["weights"], layer.weights(head=1, queries=slice(99_999, None))[0], atol=1e-6)


@pytest.mark.turns(4)
def test_a_region_of_too_many_cells_is_sampled_unless_all_rows_are_asked_for(studio, files, monkeypatch):
    monkeypatch.setattr(tiles_module, "SAMPLED_CELLS", 1 << 20)
    rec = opened(studio, 8192)
    path = f"/api/recordings/{rec['id']}/tiles/L0H0/5/0/0"
    sampled, _ = studio.get(path).arrays()
    assert not sampled["exact"] and sampled["rows_read"] < 8192 // 8
    exact, _ = studio.get(f"{path}?rows=all").arrays()
    assert exact["exact"] and exact["rows_read"] == 8192
    again, _ = studio.get(path).arrays()
    assert again["exact"]
