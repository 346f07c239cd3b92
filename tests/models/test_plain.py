"""Modules that use no interface but call torch's function: what they show is the reference's, whatever they pass on."""

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

import manyheads as mh
from manyheads import reference
from manyheads.models import tap
from tests.models.sharp import SAME, assert_weights, normal, sharpened

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")

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


def test_a_mask_that_calls_read_otherwise_is_read_for_each(fresh):
    """Under a causal call, and not; as a mask of texts with one head each, and as one of heads."""
    seen, text = visible_half(fresh), torch.rand(H, Q, Q, generator=fresh) < 0.6
    text |= torch.eye(Q, dtype=torch.bool)

    class Twice(nn.Module):
        def forward(self, q, k, v):
            for causal in (True, False):
                imported_by_name(q, k, v, seen, is_causal=causal)
            imported_by_name(q[0], k[0], v[0], text)  # texts
            imported_by_name(q, k, v, text)  # heads

    q, k, v = (normal(fresh, B, H, Q, 5) * 2 for _ in range(3))
    layers = mh.record_call(Twice().eval(), q, k, v).layers
    four = [x.double().numpy() for x in (q, k, v)]
    heads = [x[0][:, None].double().numpy() for x in (q, k, v)]
    for layer, given, told in (
        (layers[0], four, {"mask": seen.numpy(), "causal": True}),
        (layers[1], four, {"mask": seen.numpy()}),
        (layers[2], heads, {"mask": text[:, None].numpy()}),
        (layers[3], four, {"mask": text.numpy()}),
    ):
        assert_weights(layer, torch.from_numpy(reference.attend(*given, **told).weights))


def test_a_call_between_two_texts_keeps_its_shape_and_name(fresh):
    module = sharpened(Calls(lambda q, k, v: imported_by_name(q, k, v)), fresh)
    x, other = normal(fresh, B, Q, M), normal(fresh, B, K, M)
    (layer,) = mh.record_call(nn.ModuleDict({"reads": module})["reads"], x, other).layers
    assert_weights(layer, wanted(module, x, {}, other))
