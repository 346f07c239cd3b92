"""The third way in: models that call torch's attention function, and torch's own layers."""

import logging
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

import manyheads as mh
from manyheads import reference
from manyheads.attention.attention import Attended
from manyheads.errors import GuardError, ModelError
from manyheads.measurement import measure_call
from manyheads.models import tap
from manyheads.models.taps.mask_arguments import MaskReader
from manyheads.nn import RelativeBias, Rope
from manyheads.nn import mixing as hooks
from tests.nn.layer_oracle import array, expected, stirred

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")

SAME = 1e-5


def normal(fresh, *shape):
    return torch.randn(*shape, generator=fresh)


def sharpened(module, fresh):
    """Weights so large that maps are far from even."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(normal(fresh, *parameter.shape) * 0.4)
    return module.eval()


def assert_weights(layer, want):
    for text in range(len(want)):
        assert (torch.as_tensor(layer.weights(text=text)).double() - want[text]).abs().max() <= SAME


B, H, G, Q, K, M = 2, 6, 3, 9, 13, 30


class Calls(nn.Module):
    """Projections around whatever attention it is given: `call(q, k, v)` with heads in the second axis."""

    def __init__(self, call, num_kv_heads=H, v_dim=5):
        super().__init__()
        self.call, self.g, self.v_dim = call, num_kv_heads, v_dim
        self.q, self.k = nn.Linear(M, H * 5), nn.Linear(M, num_kv_heads * 5)
        self.v, self.out_proj = nn.Linear(M, num_kv_heads * v_dim), nn.Linear(H * v_dim, M)

    def heads(self, x, other=None):
        other = x if other is None else other
        q = rearrange(self.q(x), "b n (h d) -> b h n d", h=H)
        k, v = (rearrange(p(other), "b n (h d) -> b h n d", h=self.g) for p in (self.k, self.v))
        return q, k, v

    def forward(self, x, other=None):
        out = self.call(*self.heads(x, other))
        return self.out_proj(rearrange(out, "b h n f -> b n (h f)"))


def visible_half(fresh):
    seen = torch.rand(Q, Q, generator=fresh) < 0.6
    return seen | torch.eye(Q, dtype=torch.bool)


def cases(fresh):
    """Name: (call, what the reference is told, other keywords of the module)."""
    seen, added = visible_half(fresh), normal(fresh, B, H, Q, Q)
    by_mask, half = {"mask": seen.numpy()}, {"causal": True, "scale": 0.9}
    return {
        "plain": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), {}, {}),
        "imported by name": (lambda q, k, v: imported_by_name(q, k, v), {}, {}),
        "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), {"causal": True}, {}),
        "by position": (lambda q, k, v: imported_by_name(q, k, v, None, 0.0, True, scale=0.9), half, {}),
        "bool mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=seen), by_mask, {}),
        "float mask": (lambda q, k, v: imported_by_name(q, k, v, added), {"bias": added.numpy()}, {}),
        "gqa": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), {}, {"num_kv_heads": G}),
        "one key head, broadcast": (lambda q, k, v: imported_by_name(q, k, v), {}, {"num_kv_heads": 1}),
        "wide values": (lambda q, k, v: imported_by_name(q, k, v), {}, {"v_dim": 7}),
    }  # fmt: skip


NAMES = tuple(cases(torch.Generator()))
every_case = pytest.mark.parametrize("name", NAMES)


def made(fresh, name):
    call, told, how = cases(fresh)[name]
    return sharpened(Calls(call, **how), fresh), told


def wanted(module, x, told, other=None):
    with torch.no_grad():
        q, k, v = (each.double().numpy() for each in module.heads(x, other))
    return torch.from_numpy(reference.attend(q, k, v, **told).weights)


@every_case
def test_weights_are_the_references(fresh, name):
    module, told = made(fresh, name)
    x = normal(fresh, B, Q, M)
    (layer,) = mh.record_call(module, x).layers
    assert_weights(layer, wanted(module, x, told))
    assert layer.weights(text=0).max() > 0.3, "an even map agrees with almost anything"


@every_case
def test_outputs_under_a_tap_are_bit_identical(fresh, name):
    module, _ = made(fresh, name)
    x = normal(fresh, B, Q, M)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            before = module(x)
            with tap(module) as state:
                during = module(x)
        assert torch.equal(before, during) and len(state.sites) == 1


@every_case
def test_an_edit_acts_before_the_output_projection(fresh, name):
    module, _ = made(fresh, name)
    x = normal(fresh, B, Q, M)

    def zero(call):
        return call.out.index_fill(1, torch.tensor([1, 4]), 0)

    with torch.no_grad(), tap(module, edits=[zero]):
        edited = module(x)
    with torch.no_grad():
        module.out_proj.weight.view(M, H, -1)[:, [1, 4]] = 0
        operated, changed = module(x), edited
    assert (edited - operated).abs().max() <= SAME * operated.abs().max()
    with torch.no_grad():
        assert (module.out_proj(torch.zeros(B, Q, H * module.v_dim)) - changed).abs().max() > 1e-2


def test_other_numbers_of_axes_are_texts_and_heads(fresh):
    """Three axes are texts with a head each; of five, the leading two are texts."""

    class Bare(nn.Module):
        def forward(self, q, k, v, mask=None):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    for lead, texts, heads in (((4,), 4, 1), ((2, 3, 5), 6, 5), ((), 1, 1)):
        q, k, v = normal(fresh, *lead, Q, 6) * 2, normal(fresh, *lead, K, 6) * 2, normal(fresh, *lead, K, 6)
        mask = torch.rand(Q, K, generator=fresh) < 0.7
        mask[:, 0] = True
        (layer,) = mh.record_call(Bare().eval(), q, k, v, mask=mask).layers
        four = [x.reshape(texts, heads, *x.shape[-2:]).double().numpy() for x in (q, k, v)]
        assert (layer.site.num_heads, len(layer.q)) == (heads, texts)
        assert_weights(layer, torch.from_numpy(reference.attend(*four, mask=mask.numpy()).weights))


def takes_a_mask_beside_is_causal():
    """torch up to 2.13 does, and hides what either hides; from 2.14 on it refuses the two together."""
    x = torch.ones(1, 1, 3, 5)
    try:
        imported_by_name(x, x, x, torch.ones(3, 3).bool(), is_causal=True)
    except (RuntimeError, ValueError):
        return False
    return True


def test_a_mask_that_calls_read_otherwise_is_read_for_each(fresh):
    """Under a causal call, and not; as a mask of texts with one head each, and as one of heads."""
    causals = (True, False) if takes_a_mask_beside_is_causal() else (False,)
    seen, text = visible_half(fresh), torch.rand(H, Q, Q, generator=fresh) < 0.6
    text |= torch.eye(Q, dtype=torch.bool)

    class Twice(nn.Module):
        def forward(self, q, k, v):
            for causal in causals:
                imported_by_name(q, k, v, seen, is_causal=causal)
            imported_by_name(q[0], k[0], v[0], text)  # texts
            imported_by_name(q, k, v, text)  # heads

    q, k, v = (normal(fresh, B, H, Q, 5) * 2 for _ in range(3))
    layers = mh.record_call(Twice().eval(), q, k, v).layers
    four = [x.double().numpy() for x in (q, k, v)]
    heads = [x[0][:, None].double().numpy() for x in (q, k, v)]
    cases = [
        *((four, {"mask": seen.numpy(), "causal": causal}) for causal in causals),
        (heads, {"mask": text[:, None].numpy()}),
        (four, {"mask": text.numpy()}),
    ]
    for layer, (given, told) in zip(layers, cases, strict=True):
        assert_weights(layer, torch.from_numpy(reference.attend(*given, **told).weights))


def test_a_mask_tensor_is_read_anew_where_a_call_is_causal(fresh):
    """The same tensor, in turns: what a reader remembers of it is of one way to read it."""
    seen, reader = visible_half(fresh), MaskReader()
    for causal in (True, False, True):
        mask, bias = reader.plain(seen, 4, Q, Q, causal)
        expected_cells = seen & torch.ones_like(seen).tril() if causal else seen
        assert bias is None and torch.equal(mask.visible(slice(None), slice(None))[0, 0], expected_cells)


def test_a_call_between_two_texts_keeps_its_shape_and_name(fresh):
    module = sharpened(Calls(lambda q, k, v: imported_by_name(q, k, v)), fresh)
    x, other = normal(fresh, B, Q, M), normal(fresh, B, K, M)
    (layer,) = mh.record_call(nn.ModuleDict({"reads": module})["reads"], x, other).layers
    assert_weights(layer, wanted(module, x, {}, other))


LAYERS = {
    "plain": {},
    "no biases": {"bias": False},
    "other widths": {"kdim": 11, "vdim": 17},
    "extra keys": {"add_bias_kv": True, "add_zero_attn": True},
}
every_layer = pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)


def inputs(fresh, options, batch_first, self_attention):
    x = normal(fresh, B, Q, M)
    if self_attention and "kdim" not in options:
        x = x if batch_first else x.transpose(0, 1)
        return x, x, x
    key, value = normal(fresh, B, K, options.get("kdim", M)), normal(fresh, B, K, options.get("vdim", M))
    return tuple(each if batch_first else each.transpose(0, 1) for each in (x, key, value))


def masks(fresh, num_keys):
    padding = torch.zeros(B, num_keys, dtype=torch.bool)
    padding[1, -3:] = True
    hidden = torch.rand(Q, num_keys, generator=fresh) < 0.3
    hidden[:, 0] = False
    return {"key_padding_mask": padding, "attn_mask": hidden}


@every_layer
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "length first"])
@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize("masked", [True, False], ids=["masks", "no masks"])
@pytest.mark.parametrize("self_attention", [True, False], ids=["self", "cross"])
def test_torchs_layer_shows_the_weights_it_returns(fresh, options, batch_first, need_weights, masked, self_attention):
    layer = sharpened(nn.MultiheadAttention(M, H, batch_first=batch_first, **options), fresh)
    given = inputs(fresh, options, batch_first, self_attention)
    num_keys = given[1].shape[1 if batch_first else 0]
    hiding = masks(fresh, num_keys) if masked else {}
    with torch.no_grad():
        plain = layer(*given, need_weights=need_weights, **hiding)
        _, want = layer(*given, need_weights=True, average_attn_weights=False, **hiding)
        with tap(layer) as state:
            seen = layer(*given, need_weights=need_weights, **hiding)
    # sums of M products each as large as these outputs: their roundings grow with them
    assert (plain[0] - seen[0]).abs().max() <= SAME * plain[0].abs().max().clamp_min(1)
    assert (plain[1] is None) == (seen[1] is None)
    rec = mh.record_call(layer, *given, need_weights=need_weights, **hiding)
    crosses = given[1] is not given[0]
    assert list(rec.stacks) == (["cross"] if crosses else [""])
    assert_weights(rec.stacks["cross" if crosses else ""][0], want.double())
    assert len(state.sites) == 1


def test_torchs_layer_without_a_batch(fresh):
    layer = sharpened(nn.MultiheadAttention(M, H), fresh)
    x = normal(fresh, Q, M)
    for need_weights in (True, False):
        (record,) = mh.record_call(layer, x, x, x, need_weights=need_weights).layers
        with torch.no_grad():
            assert_weights(record, layer(x, x, x, average_attn_weights=False)[1][None].double())


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_edits_of_torchs_layer_act_before_its_output_projection(fresh, need_weights, gradients):
    layer = sharpened(nn.MultiheadAttention(M, H, batch_first=True), fresh)
    x = normal(fresh, B, Q, M)
    with torch.set_grad_enabled(gradients):
        weights_before = layer(x, x, x, need_weights=True)[1]
        with tap(layer, edits=[lambda call: call.out.index_fill(1, torch.tensor([2]), 0)]):
            edited, weights = layer(x, x, x, need_weights=need_weights)
    assert edited.requires_grad == gradients
    assert (weights is not None) == need_weights
    if need_weights:
        assert torch.allclose(weights, weights_before, atol=SAME)
    with torch.no_grad():
        layer.out_proj.weight.view(M, H, -1)[:, 2] = 0
        assert (edited - layer(x, x, x)[0]).abs().max() <= 1e-4
        assert (edited - layer.out_proj.bias).abs().max() > 1e-2


def test_torchs_encoder_and_decoder_are_recorded_off_their_fast_path(fresh):
    how = {"d_model": M, "nhead": H, "dim_feedforward": 16, "batch_first": True}
    encoder = sharpened(nn.TransformerEncoder(nn.TransformerEncoderLayer(**how), 2), fresh)
    decoder = sharpened(nn.TransformerDecoder(nn.TransformerDecoderLayer(**how), 3), fresh)
    x, target = normal(fresh, B, K, M), normal(fresh, B, Q, M)
    causal = nn.Transformer.generate_square_subsequent_mask(Q)
    padding = torch.zeros(B, K, dtype=torch.bool)
    padding[0, -4:] = True
    with torch.no_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's own, of nested tensors
            plain = encoder(x, src_key_padding_mask=padding)  # the fast path
        with tap(encoder):
            tapped = encoder(x, src_key_padding_mask=padding)
        assert (plain - tapped)[~padding].abs().max() <= SAME * 10
        rec = mh.record_call(encoder, x, src_key_padding_mask=padding)
        hidden = x
        for layer, record in zip(encoder.layers, rec.layers, strict=True):
            want = layer.self_attn(hidden, hidden, hidden, key_padding_mask=padding, average_attn_weights=False)[1]
            assert_weights(record, want.double())
            hidden = layer(hidden, src_key_padding_mask=padding)
        rec = mh.record_call(decoder, target, x, tgt_mask=causal, memory_key_padding_mask=padding)
        assert {stack: len(layers) for stack, layers in rec.stacks.items()} == {"": 3, "cross": 3}
        assert rec.stacks[""][0].site.causal and not rec.stacks["cross"][0].site.causal
        assert [layer.site.module for layer in rec.stacks["cross"]] == [f"layers.{i}.multihead_attn" for i in range(3)]
        first = decoder.layers[0].self_attn(target, target, target, attn_mask=causal, average_attn_weights=False)[1]
        assert_weights(rec.stacks[""][0], first.double())


class Unreadable(nn.Module):
    """Mixes the weights of its heads before they read values."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(M, 3 * M)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * 0.4).softmax(-1).roll(1, 1)
        return (weights @ v).transpose(1, 2).flatten(2)


class VisionBlock(nn.Module):
    """As timm writes it: one product for q, k and v, norms, torch's function."""

    def __init__(self):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(M), TimmAttention()
        self.mlp = nn.Sequential(nn.Linear(M, 40), nn.GELU(), nn.Linear(40, M))

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class TimmAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(M, 3 * M), nn.Linear(M, M)

    def heads(self, x):
        return self.qkv(x).reshape(*x.shape[:2], 3, H, M // H).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x):
        out = F.scaled_dot_product_attention(*self.heads(x), dropout_p=0.0)
        return self.proj(out.transpose(1, 2).reshape(x.shape))


def test_a_vision_transformer_in_timms_shape_is_measured(fresh):
    model = sharpened(nn.Sequential(VisionBlock(), VisionBlock(), nn.LayerNorm(M)), fresh)
    x = normal(fresh, B, Q, M)
    rec = mh.record_call(model, x)
    assert [layer.site.module for layer in rec.layers] == ["0.attn", "1.attn"]
    q, k, v = (each.detach().double().numpy() for each in model[0].attn.heads(model[0].norm(x)))
    want = torch.from_numpy(reference.attend(q, k, v).weights)
    assert_weights(rec.layers[0], want)
    entropy = -(want * want.clamp_min(1e-300).log()).sum(-1).mean((0, 2))
    table = measure_call(model, x, statistics=["entropy"])
    assert (torch.from_numpy(table["entropy"][:H]) - entropy).abs().max() <= SAME * 3


def test_a_layer_beside_others_that_cannot_be_read_is_said(fresh, caplog):
    model = nn.Sequential(TimmAttention(), Unreadable()).eval()
    with caplog.at_level(logging.WARNING, "manyheads"):
        rec = mh.record_call(model, normal(fresh, B, Q, M))
    assert (
        len(rec.layers) == 1
        and "1 (Unreadable): not read, since roll changes its weights" in rec.provenance["left out"]
    )
    assert "left out: 1 (Unreadable)" in caplog.text
    table = measure_call(model, normal(fresh, B, Q, M), statistics=["entropy"])
    assert "1 (Unreadable)" in table.notes["left out, since no query can see it"]


def test_a_softmax_that_weighs_no_values_is_no_attention(fresh):
    class Router(nn.Module):
        def forward(self, x):
            return x * x.softmax(-1).amax(-1, keepdim=True)

    model = nn.Sequential(Router()).eval()
    with tap(model) as state:
        model(normal(fresh, B, Q, M))
    assert not state.unread
    with pytest.raises(ModelError, match="made no attention call that can be seen: it uses neither"):
        mh.record_call(model, normal(fresh, B, Q, M))


def test_layers_that_share_one_module_are_layers_of_their_own(fresh):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = sharpened(TimmAttention(), fresh)

        def forward(self, x):
            for _ in range(3):
                x = x + self.attn(x) / 8
            return x

    model, x = Shared().eval(), normal(fresh, B, Q, M)
    with torch.no_grad():
        rec = mh.record_call(model, x)
        assert [layer.site.module for layer in rec.layers] == ["attn", "attn#2", "attn#3"]
        for record in rec.layers:
            assert_weights(
                record, torch.from_numpy(reference.attend(*(h.double().numpy() for h in model.attn.heads(x))).weights)
            )
            x = x + model.attn(x) / 8
    with torch.no_grad(), tap(model) as state:
        model(x), model(x)
    assert list(state.sites) == ["attn", "attn#2", "attn#3"], "a second pass meets the same layers"


def test_threads_see_their_own_calls(fresh):
    """One thread taps; another runs the same module untapped, and its own, at the same time."""
    module, other = (sharpened(TimmAttention(), fresh) for _ in range(2))
    x = normal(fresh, B, Q, M)
    plain, seen, wrong = module(x), [], []

    def run():
        for _ in range(30):
            if not torch.equal(module(x), plain):
                wrong.append("another output")
            with tap(other) as state:
                other(x)
            if len(state.sites) != 1:
                wrong.append(f"{len(state.sites)} sites")

    thread = threading.Thread(target=run)
    with tap(module, on_call=seen.append):
        thread.start()
        for _ in range(30):
            module(x)
        thread.join()
    assert not wrong and len(seen) == 30


def test_an_error_inside_a_module_leaves_nothing_behind(fresh):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = TimmAttention()

        def forward(self, x, fail):
            x = self.attn(x)
            if fail:
                raise KeyError("inside")
            return x

    model, x, seen = Fails().eval(), normal(fresh, B, Q, M), []
    with tap(model, on_call=seen.append) as state:
        with pytest.raises(KeyError):
            model(x, True)
        model(x, False)
    assert list(state.sites) == ["attn"] and len(seen) == 2


# ======================================================================================================= our own layers
# Our own layers are recorded, guarded and edited like any model's. The oracle: NumPy, from the layer's own weights.

D = 4

OPTIONS = {
    "plain": {}, "gqa": {"num_kv_heads": G}, "mqa": {"num_kv_heads": 1}, "causal": {"causal": True},
    "window": {"causal": True, "window": 3}, "both sides of a window": {"window": 3}, "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True}, "alibi": {"alibi": True, "causal": True},
    "relative bias": {"relative_bias": RelativeBias(8, 6)},
    "rope": {"head_dim": D, "rope": Rope(max_positions=40), "causal": True}, "qk_norm": {"qk_norm": True},
    "scale": {"scale": 0.7}, "a scale a head": {"scale": [0.1, 0.3, 0.5, 0.7, 0.9, 1.1]},
    "head_scale": {"head_scale": True}, "wide values": {"head_dim": D, "v_head_dim": 7},
    "split": {"projections": "split", "bias": False}, "mh.attend": {"attend": mh.attend, "causal": True},
}  # fmt: skip
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def own_layer(fresh, **options):
    return stirred(mh.MultiHeadAttention(M, H, batch_first=True, **options), fresh).eval()


def text(fresh, length=Q):
    return torch.randn(B, length, M, generator=fresh)


@every_option
def test_weights_from_the_record_are_the_references(fresh, options):
    layer, x = own_layer(fresh, **options), text(fresh)
    (record,) = mh.record_call(layer, x, need_weights=False).layers
    want = expected(layer, array(x))
    for which in range(B):
        got = record.weights(text=which)
        assert np.abs(np.asarray(got, float) - want.weights[which]).max() <= SAME
    assert record.site.num_heads == H and record.site.num_kv_heads == layer.num_kv_heads


@pytest.mark.thinned
@every_option
@pytest.mark.parametrize("weights", [True, False])
def test_outputs_under_the_tap_are_bit_identical(fresh, options, weights):
    layer, x = own_layer(fresh, **options), text(fresh)
    plain = layer(x, need_weights=weights)
    with tap(layer) as state:
        seen = layer(x, need_weights=weights)
    assert len(state.sites) == 1 and state.guard_error <= 1e-4
    assert torch.equal(plain[0], seen[0])
    assert (plain[1] is None and seen[1] is None) or torch.equal(plain[1], seen[1])


def test_cross_attention_is_a_stack_of_its_own_also_where_both_texts_are_as_long(fresh):
    layer = own_layer(fresh)
    for length in (K, Q):
        x, other = text(fresh), text(fresh, length)
        rec = mh.record_call(layer, x, other, need_weights=False)
        assert list(rec.stacks) == ["cross"]
        got, want = rec.stacks["cross"][0].weights(text=1), expected(layer, array(x), array(other)).weights[1]
        assert np.abs(np.asarray(got, float) - want).max() <= SAME


def test_a_token_read_with_a_cache_is_recorded_with_the_keys_it_saw(fresh):
    layer, x = own_layer(fresh, num_kv_heads=G, head_dim=D, causal=True, rope=Rope(max_positions=40)), text(fresh)
    want = expected(layer, array(x)).weights[:, :, -1:]
    cache = mh.KVCache()
    with torch.no_grad():
        layer(x[:, :-1], need_weights=False, cache=cache)
    (record,) = mh.record_call(layer, x[:, -1:], need_weights=False, cache=cache).layers
    assert np.abs(np.asarray(record.weights(text=1), float) - want[1]).max() <= SAME


def test_padding_and_masks_by_head_are_what_the_record_says(fresh):
    layer, x = own_layer(fresh, num_kv_heads=G), text(fresh)
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
    table = measure_call(model, x, statistics=["entropy", "previous_mass"]).to_pandas()
    want = expected(model.first, array(x)).weights
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(want > 0, want * np.log(want), 0).sum(-1).mean((0, 2))
    assert len(table) == 2 * H
    assert np.abs(table["entropy"][:H].to_numpy() - entropy).max() <= 1e-5 * np.log(Q)


@every_option
def test_an_edit_acts_before_heads_are_mixed(fresh, options):
    """Heads 1 and 4 at zero is what the layer gives once their columns of W^O are zero: surgery, on a copy."""
    layer, x = own_layer(fresh, **options), text(fresh)

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

    layer, x = own_layer(fresh, attend=forgets_a_head), text(fresh)
    layer(x, need_weights=False)
    with pytest.raises(GuardError, match=r"layer 0 \(\), head 3, row \d"), tap(layer):
        layer(x, need_weights=False)
    assert hooks._hooks == ()


def test_a_compiled_layer_and_training_mode_anywhere_in_a_model_are_refused_by_name(fresh):
    model = Block().eval()
    model.inner["second"].train()
    with pytest.raises(ModelError, match=r"^inner\.second of Block is in training mode.*model\.eval\(\)"), tap(model):
        pass
    model.first.compile(backend="eager")
    with pytest.raises(ModelError, match=r"'first' is compiled by torch\.compile"), tap(model):
        pass


def test_value_norms_are_lengths_after_the_output_projection_and_the_heads_scale(fresh):
    layer, x, seen = own_layer(fresh, num_kv_heads=G, head_scale=True), text(fresh), []
    with torch.no_grad(), tap(layer, on_call=seen.append):
        layer(x, need_weights=False)
    (call,) = seen
    slices = array(layer.out_proj.weight).reshape(M, H, layer.v_head_dim)
    v = np.repeat(array(call.v), H // G, 1)
    want = np.linalg.norm(np.einsum("bhkf,mhf->bhkm", v, slices), axis=-1) * np.abs(array(layer.head_scale))[:, None]
    assert np.abs(call.value_norms().double().numpy() - want).max() <= 1e-5 * want.max()


def test_nothing_watches_when_no_tap_is_open(fresh):
    layer = own_layer(fresh)
    with tap(layer):
        with tap(layer):
            pass
        assert len(hooks._hooks) == 1
    assert hooks._hooks == ()
