"""A file is read only as far as it is used, and closed when nobody can read from it any more.

Inputs are drawn afresh each run. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

import gc
import os
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from manyheads.recording import open_recording
from manyheads.recording.file import format as lazy
from tests.recording.bits import assert_same_layer, make_recording


def test_opening_reads_the_tokens_and_a_layer_reads_itself(fresh, path, reads):
    recording = make_recording(fresh, 5)
    recording.save(path)
    opened = open_recording(path)
    assert all(name.startswith("tokens.0.") for name in reads)
    reads.clear()
    assert (repr(opened), opened.num_bytes) == (repr(recording), recording.num_bytes)
    assert opened.layers[1:][2:] is not None and len(opened.layers) == 5
    assert reads == []
    assert_same_layer(opened.layers[3], recording.layers[3])
    assert sorted(reads) == sorted([*(f"layer.3.{x}" for x in ("q", "k", "v", "lse")), "mask.0.start", "mask.0.stop"])


def test_a_layer_is_read_once_while_it_is_held_and_dropped_when_others_follow(fresh, path, reads):
    make_recording(fresh, lazy.KEPT_LAYERS + 2).save(path)
    layers = open_recording(path).layers
    held, dropped = layers[0], weakref.ref(layers[1])
    for layer in layers[2:]:
        assert layer.q is not None
    del layer
    gc.collect()
    assert dropped() is None
    reads.clear()
    assert layers[0] is held and layers[-len(layers)] is held and layers[::2][0] is held
    assert reads == []
    assert layers[1].site.layer == 1 and len(reads) == 4  # its mask is still that of the others


def test_the_layer_used_last_is_kept_though_nobody_holds_it(fresh, path, reads):
    make_recording(fresh).save(path)
    layers = open_recording(path).layers
    assert layers[2].q.shape == layers[2].q.shape
    reads.clear()
    assert layers[2].site.layer == 2
    assert reads == []


def test_layers_are_a_sequence_like_any_other(fresh, path):
    make_recording(fresh, 4).save(path)
    layers = open_recording(path).layers
    assert [layer.site.layer for layer in layers] == [0, 1, 2, 3]
    assert [layer.site.layer for layer in layers[-1:0:-2]] == [3, 1]
    assert layers[-1].site.layer == 3
    with pytest.raises(IndexError, match="layer 4 is not in this stack: it has 4 layers, from 0"):
        layers[4]


def test_threads_read_the_same_layers(fresh, path):
    recording = make_recording(fresh, 8)
    recording.save(path)
    layers = open_recording(path).layers
    order = torch.randperm(80, generator=fresh).tolist()
    with ThreadPoolExecutor(8) as pool:
        for at, layer in zip(order, pool.map(lambda at: layers[at % 8], order), strict=True):
            assert_same_layer(layer, recording.layers[at % 8])


def test_the_file_is_closed_when_nobody_can_read_from_it_any_more(fresh, path):
    make_recording(fresh).save(path)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else pytest.skip("needs /proc")
    opened = open_recording(path)
    layers = opened.layers
    del opened
    assert layers[0].q is not None
    del layers
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
