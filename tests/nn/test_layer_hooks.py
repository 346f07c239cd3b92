"""Who attends for a `MultiHeadAttention`, what hooks see of it and change, and that it compiles into one graph."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import manyheads as mh
from manyheads.nn import LayerCall, Mask, MultiHeadAttention, Rope, add_hook, remove_hook
from tests.nn.layer_oracle import normal, stirred

B, Q, K, M, H, G = 2, 7, 11, 24, 6, 3


# ------------------------------------------------------------------------------------------------- precision, gradients


@pytest.mark.parametrize("options", [{"window": 3}, {"window": 3, "causal": True}, {"causal": True}], ids=str)
def test_a_mask_too_large_to_form_is_left_to_tiles(fresh, monkeypatch, options):
    from manyheads.nn import mixing

    layer = stirred(MultiHeadAttention(M, H, G, batch_first=True, **options), fresh)
    x, key = normal(fresh, B, Q, M), normal(fresh, B, K, M)
    with torch.no_grad():
        want, _ = layer(x, key, need_weights=False)
        monkeypatch.setattr(mixing, "DENSE_CELLS", 10)
        with hooked(Watcher(layer)) as watcher:
            got, _ = layer(x, key, need_weights=False)
    assert_allclose(got, want, atol=1e-5)
    assert watcher.calls[0][1].because.startswith("attend, since the mask is too large to form: tiles: ")


# ----------------------------------------------------------------------------------------------- attend, hooks, compile


def test_attend_is_called_with_what_mh_attend_takes(fresh):
    calls = []

    def own(q, k, v, **options):
        calls.append((q.shape, k.shape, options))
        return mh.attend(q, k, v, **options)

    layer = stirred(MultiHeadAttention(M, H, G, batch_first=True, causal=True, softcap=1.0, attend=own), fresh)
    x = normal(fresh, B, Q, M)
    plain = MultiHeadAttention(M, H, G, batch_first=True, causal=True, softcap=1.0)
    plain.load_state_dict(layer.state_dict())
    assert_allclose(layer(x)[0].detach(), plain(x)[0].detach(), atol=1e-5)
    ((q, k, options),) = calls
    assert (q, k) == ((B, H, Q, M // H), (B, G, Q, M // H))
    assert isinstance(options["mask"], Mask) and options["mask"].dense is None and options["softcap"] == 1.0


class Watcher:
    def __init__(self, module, edit=lambda out: out):
        self.module, self.edit, self.calls, self.thread = module, edit, [], threading.get_ident()

    def wants(self, module):
        return module is self.module and threading.get_ident() == self.thread

    def seen(self, call: LayerCall):
        mixed = call.run()
        self.calls.append((call, mixed))
        return self.edit(mixed.out)


@contextmanager
def hooked(hook):
    add_hook(hook)
    try:
        yield hook
    finally:
        remove_hook(hook)


def test_a_hook_sees_the_call_and_leaves_the_output_as_it_was(fresh):
    layer = stirred(MultiHeadAttention(M, H, G, batch_first=True, causal=True, rope=Rope(base=20.0)), fresh)
    x = normal(fresh, B, Q, M)
    with torch.no_grad():
        before, _ = layer(x, need_weights=False)
        with hooked(Watcher(layer)) as watcher:
            during, _ = layer(x, need_weights=False)
        after, _ = layer(x, need_weights=False)
    assert_array_equal(during, before)
    assert_array_equal(after, before)
    ((call, mixed),) = watcher.calls
    assert call.module is layer and not call.crosses
    rebuilt = mh.attend(call.q, call.k, call.v, mask=call.mask(), scale=call.rule.scale)
    assert_allclose(rebuilt.out, mixed.out, atol=1e-5)
    assert mixed.because == "scaled_dot_product_attention with is_causal, enable_gqa"


def test_a_hooks_edit_reaches_the_output_before_heads_are_mixed(fresh):
    layer = stirred(MultiHeadAttention(M, H, batch_first=True), fresh)
    x = normal(fresh, B, Q, M)

    def without_head_2(out):
        out = out.clone()
        out[:, 2] = 0
        return out

    with torch.no_grad():
        with hooked(Watcher(layer, without_head_2)):
            edited, _ = layer(x)
        pruned = copy.deepcopy(layer)
        pruned.out_proj.weight[:, 2 * layer.head_dim : 3 * layer.head_dim] = 0
        assert_allclose(edited, pruned(x)[0], atol=1e-5)


def test_hooks_of_other_modules_and_threads_see_nothing_and_a_hook_goes_after_an_error(fresh):
    layer, other = (MultiHeadAttention(M, H, batch_first=True) for _ in range(2))
    x = normal(fresh, B, Q, M)
    with pytest.raises(ZeroDivisionError), hooked(Watcher(layer)) as watcher:
        other(x)
        thread = threading.Thread(target=layer, args=(x,))
        thread.start()
        thread.join()
        assert watcher.calls == []
        layer(x)
        1 / 0  # noqa: B018
    layer(x)
    assert len(watcher.calls) == 1


COMPILED = """
import torch, manyheads as mh
from manyheads.nn.positions import Rope
torch.manual_seed(0)
x, y = torch.randn(2, 7, 24), torch.randn(2, 11, 24)
hide = torch.rand(7, 7) < 0.3
pad = torch.arange(7) >= torch.tensor([[7], [5]])
cases = [
    ({}, {}), ({"num_kv_heads": 3, "causal": True, "rope": Rope()}, {"need_weights": False}),
    ({"softcap": 1.0, "sinks": True, "window": 3}, {"need_weights": False}), ({"alibi": True}, {"attn_mask": hide}),
    ({"qk_norm": True, "head_scale": True, "projections": "split"}, {"key_padding_mask": pad}),
    ({"add_bias_kv": True, "add_zero_attn": True, "v_head_dim": 5}, {"weight_heads": [1, 4]}),
    ({}, {"key": y, "need_weights": False}),
]
for build, call in cases:
    torch._dynamo.reset()
    layer = mh.MultiHeadAttention(24, 6, batch_first=True, **build)
    compiled = torch.compile(layer, fullgraph=True, backend=BACKEND)
    for got, want in zip(compiled(x, **call), layer(x, **call)):
        assert (got is None) == (want is None)
        if got is not None:
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    grads = [torch.autograd.grad(f(x, **call)[0].square().sum(), list(layer.parameters())) for f in (compiled, layer)]
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-4)
torch._dynamo.reset()
x = torch.randn(2, 12, 24)  # more steps than the compiler would compile anew
layer = mh.MultiHeadAttention(24, 6, 3, batch_first=True, causal=True, rope=Rope())
compiled = torch.compile(layer, fullgraph=True, backend=BACKEND)
with torch.no_grad():
    whole, _ = layer(x, need_weights=False)
    cache = mh.KVCache.static(12)
    steps = [compiled(x[:, i : i + 1], need_weights=False, cache=cache)[0] for i in range(12)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=1e-5)
ff = [mh.FeedForward(24), mh.SwiGLU(24)]
for f in ff:
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend=BACKEND)(x), f(x), atol=1e-5, rtol=1e-5)
print("compiled")
"""


@pytest.mark.slow  # 13 seconds, and a minute
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_it_compiles_into_one_graph(backend):
    """In a process of its own: the tests' type checks are no part of the graph."""
    program = f"BACKEND = {backend!r}\n{COMPILED}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500)
    assert done.stdout.strip() == "compiled", done.stderr[-3000:]
