"""What a saved page keeps of a map: the largest weights a level coarser than the means, whether links fit or not."""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.recording.exact_map.zoom import read_region
from manyheads.studio.outside.snapshot import Precision, packed, read_map
from tests.models.tiny import tiny_llama, tiny_tokenizer

TEXT = "the old dog sat there and the cat that it saw sat down beside it on the mat"


@pytest.fixture(scope="module")
def layer():
    return mh.record(mh.load(tiny_llama(2), tokenizer=tiny_tokenizer()), TEXT).layers[1]


@pytest.mark.parametrize("links", [0, 3])
def test_the_largest_weights_are_a_level_coarser_with_links_and_without(layer, links):
    precision, n = Precision(level=1, cells=1, links=links), layer.num_queries(0)
    kept = read_map(layer, 2, 0, precision)
    want = read_region(layer, 2, slice(0, n), slice(0, n), range(1, 3)).levels
    assert np.allclose(kept.mean, want[0].mean, equal_nan=True)
    assert np.allclose(kept.max, want[1].max, equal_nan=True)
    assert (kept.keys is not None) == (links > 0)
    arrays = packed([kept, kept], precision)
    assert arrays["max"].shape == (2, *want[1].max.shape) and ("links" in arrays) == (links > 0)


def test_links_are_the_rows_largest_weights_in_the_keys_order(layer):
    kept = read_map(layer, 2, 0, Precision(level=1, cells=1, links=3))
    assert kept.keys is not None and kept.weights is not None
    weights = layer.weights(2)
    for row in (0, 5, 11):
        best = torch.from_numpy(kept.weights[row])
        assert torch.allclose(best.sort(descending=True).values, weights[row].topk(3).values, atol=1e-6)
        assert list(kept.keys[row]) == sorted(kept.keys[row])
