"""Our own layers are recorded, guarded and edited like any model's. The oracle: NumPy, from the layer's own weights."""

import numpy as np
import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads.errors import GuardError, ModelError
from manyheads.models import tap
from manyheads.nn import RelativeBias, Rope
from manyheads.nn import mixing as hooks
from manyheads.nn.attention import Attended
from tests.nn.layer_oracle import array, expected, stirred

B, H, G, Q, K, M, D = 2, 6, 3, 9, 13, 30, 4
SAME = 1e-5

OPTIONS = {
    "plain": {},
    "gqa": {"num_kv_heads": G},
    "mqa": {"num_kv_heads": 1},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 3},
    "both sides of a window": {"window": 3},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True, "causal": True},
    "relative bias": {"relative_bias": RelativeBias(8, 6)},
    "rope": {"head_dim": D, "rope": Rope(max_positions=40), "causal": True},
    "qk_norm": {"qk_norm": True},
    "scale": {"scale": 0.7},
    "a scale a head": {"scale": [0.1, 0.3, 0.5, 0.7, 0.9, 1.1]},
    "head_scale": {"head_scale": True},
    "wide values": {"head_dim": D, "v_head_dim": 7},
    "split": {"projections": "split", "bias": False},
    "mh.attend": {"attend": mh.attend, "causal": True},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def made(fresh, **options):
    return stirred(mh.MultiHeadAttention(M, H, batch_first=True, **options), fresh).eval()


def text(fresh, length=Q):
    return torch.randn(B, length, M, generator=fresh)


@every_option
@pytest.mark.sampled(8)
def test_weights_from_the_record_are_the_references(fresh, options):
    layer, x = made(fresh, **options), text(fresh)
    (record,) = mh.record_call(layer, x, need_weights=False).layers
    want = expected(layer, array(x))
    for which in range(B):
        got = record.weights(text=which)
        assert np.abs(np.asarray(got, float) - want.weights[which]).max() <= SAME
    assert record.site.num_heads == H and record.site.num_kv_heads == layer.num_kv_heads


@pytest.mark.thinned
@every_option
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.sampled(6)
def test_outputs_under_the_tap_are_bit_identical(fresh, options, weights):
    layer, x = made(fresh, **options), text(fresh)
    plain = layer(x, need_weights=weights)
    with tap(layer) as state:
        seen = layer(x, need_weights=weights)
    assert len(state.sites) == 1 and state.guard_error <= 1e-4
    assert torch.equal(plain[0], seen[0])
    assert (plain[1] is None and seen[1] is None) or torch.equal(plain[1], seen[1])


def test_cross_attention_is_a_stack_of_its_own_also_where_both_texts_are_as_long(fresh):
    layer = made(fresh)
    for length in (K, Q):
        x, other = text(fresh), text(fresh, length)
        rec = mh.record_call(layer, x, other, need_weights=False)
        assert list(rec.stacks) == ["cross"]
        got, want = rec.stacks["cross"][0].weights(text=1), expected(layer, array(x), array(other)).weights[1]
        assert np.abs(np.asarray(got, float) - want).max() <= SAME


def test_a_token_read_with_a_cache_is_recorded_with_the_keys_it_saw(fresh):
    layer, x = made(fresh, num_kv_heads=G, head_dim=D, causal=True, rope=Rope(max_positions=40)), text(fresh)
    want = expected(layer, array(x)).weights[:, :, -1:]
    cache = mh.KVCache()
    with torch.no_grad():
        layer(x[:, :-1], need_weights=False, cache=cache)
    (record,) = mh.record_call(layer, x[:, -1:], need_weights=False, cache=cache).layers
    assert np.abs(np.asarray(record.weights(text=1), float) - want[1]).max() <= SAME


def test_padding_and_masks_by_head_are_what_the_record_says(fresh):
    layer, x = made(fresh, num_kv_heads=G), text(fresh)
    hidden = torch.rand(B, H, Q, Q, generator=fresh) < 0.3
    padding = torch.zeros(B, Q, dtype=torch.bool)
    padding[1, 6:] = True
    (record,) = mh.record_call(
        layer, x, attn_mask=hidden.flatten(0, 1), key_padding_mask=padding, need_weights=False
    ).layers
    visible = ~(hidden | padding[:, None, None]).numpy()
    want = expected(layer, array(x), visible=visible).weights
    for which in range(B):
        assert np.abs(np.asarray(record.weights(text=which), float) - want[which]).max() <= SAME


class Block(nn.Module):
    """Two layers, one of them ours in torch's own encoder layer's place."""

    def __init__(self):
        super().__init__()
        self.first = mh.MultiHeadAttention(M, H, G, batch_first=True, causal=True)
        self.inner = nn.ModuleDict({"second": mh.MultiHeadAttention(M, H, batch_first=True, head_scale=True)})

    def forward(self, x):
        x = x + self.first(x, need_weights=False)[0]
        return x + self.inner["second"](x, average_attn_weights=False)[0]


def test_layers_inside_a_model_are_named_by_their_path_and_measured(fresh):
    model, x = stirred(Block(), fresh).eval(), text(fresh) / 4
    rec = mh.record_call(model, x)
    assert [layer.site.module for layer in rec.layers] == ["first", "inner.second"]
    table = mh.measure_call(model, x, statistics=["entropy", "previous_mass"]).to_pandas()
    want = expected(model.first, array(x)).weights
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(want > 0, want * np.log(want), 0).sum(-1).mean((0, 2))
    assert len(table) == 2 * H
    assert np.abs(table["entropy"][:H].to_numpy() - entropy).max() <= 1e-5 * np.log(Q)


@every_option
@pytest.mark.sampled(8)
def test_an_edit_acts_before_heads_are_mixed(fresh, options):
    """Heads 1 and 4 at zero is what the layer gives once their columns of W^O are zero: surgery, on a copy."""
    layer, x = made(fresh, **options), text(fresh)

    def zero(call):
        out = call.out.clone()
        out[:, [1, 4]] = 0
        return out

    with tap(layer, edits=[zero]):
        edited = layer(x, need_weights=False)[0]
    columns = layer.out_proj.weight.detach().view(M, H, layer.v_head_dim)
    columns[:, [1, 4]] = 0  # in place: the view is the layer's own weight
    operated = layer(x, need_weights=False)[0]
    assert torch.allclose(edited, operated, atol=SAME * operated.abs().max().item())
    columns.copy_(torch.randn(columns.shape, generator=fresh))
    assert not torch.allclose(edited, layer(x, need_weights=False)[0], atol=1e-2)


def test_an_attention_that_does_something_else_is_refused_by_name(fresh):
    def forgets_a_head(q, k, v, **asked):
        got = mh.attend(q, k, v, **asked)
        return Attended(got.out * torch.tensor([1, 1, 1, 0.5, 1, 1])[:, None, None], got.lse, got.because)

    layer, x = made(fresh, attend=forgets_a_head), text(fresh)
    layer(x, need_weights=False)
    with pytest.raises(GuardError, match=r"layer 0 \(\), head 3, row \d"), tap(layer):
        layer(x, need_weights=False)
    assert hooks._hooks == ()


def test_training_mode_anywhere_in_a_model_is_refused_by_name(fresh):
    model = Block().eval()
    model.inner["second"].train()
    with pytest.raises(ModelError, match=r"^inner\.second of Block is in training mode.*model\.eval\(\)"), tap(model):
        pass


def test_value_norms_are_lengths_after_the_output_projection_and_the_heads_scale(fresh):
    layer, x, seen = made(fresh, num_kv_heads=G, head_scale=True), text(fresh), []
    with torch.no_grad(), tap(layer, on_call=seen.append):
        layer(x, need_weights=False)
    (call,) = seen
    slices = array(layer.out_proj.weight).reshape(M, H, layer.v_head_dim)
    v = np.repeat(array(call.v), H // G, 1)
    want = np.linalg.norm(np.einsum("bhkf,mhf->bhkm", v, slices), axis=-1) * np.abs(array(layer.head_scale))[:, None]
    assert np.abs(call.value_norms().double().numpy() - want).max() <= 1e-5 * want.max()


def test_nothing_watches_when_no_tap_is_open(fresh):
    layer = made(fresh)
    with tap(layer):
        with tap(layer):
            pass
        assert len(hooks._hooks) == 1
    assert hooks._hooks == ()


def test_a_compiled_layer_is_refused_by_name():
    model = Block().eval()
    model.first.compile(backend="eager")
    with pytest.raises(ModelError, match=r"'first' is compiled by torch\.compile"), tap(model):
        pass
