"""Whole models that use no interface: blocks as timm writes them, attention by hand, shared modules, threads."""

import logging
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import manyheads as mh
from manyheads import reference
from manyheads.errors import ModelError
from manyheads.models import tap
from tests.models.sharp import SAME, assert_weights, normal, sharpened


class ByHand(nn.Module):
    def __init__(self, product="matmul"):
        super().__init__()
        self.qkv, self.product, self.drop = nn.Linear(M, 3 * M), product, nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        weights = self.drop((q @ k.transpose(-2, -1) * 0.4).softmax(-1, dtype=torch.float64).to(x.dtype))
        if self.product == "masked":  # as CPM-Ant does, by torch's function and not the tensor's
            weights = torch.masked_fill(weights, weights < 0, 0)
        out = torch.einsum("bhqk,bhkd->bhqd", weights, v) if self.product == "einsum" else weights @ v
        return out.transpose(1, 2).flatten(2)


class VisionBlock(nn.Module):
    """As timm writes it: one product for q, k and v, norms, torch's function."""

    def __init__(self):
        super().__init__()
        self.norm, self.attn, self.mlp = (
            nn.LayerNorm(M),
            nn.Module(),
            nn.Sequential(nn.Linear(M, 40), nn.GELU(), nn.Linear(40, M)),
        )
        self.attn = TimmAttention()

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
    table = mh.measure_call(model, x, statistics=["entropy"])
    assert (torch.from_numpy(table["entropy"][:H]) - entropy).abs().max() <= SAME * 3


@pytest.mark.parametrize("product", ["matmul", "einsum", "masked"])
def test_attention_by_hand_is_refused_by_the_modules_name(fresh, product):
    model = nn.Sequential(nn.Linear(M, M), ByHand(product)).eval()
    x = normal(fresh, B, Q, M)
    words = (
        r"Sequential: module '1' \(ByHand\) makes its attention weights by hand.*Nothing was recorded\. Have it call"
    )
    with pytest.raises(ModelError, match=words):
        mh.record_call(model, x)
    with pytest.raises(ModelError, match=words):
        mh.measure_call(model, x)
    with pytest.raises(ModelError, match=words), tap(model):
        model(x)
    with pytest.raises(ModelError, match=r"^ByHand: ByHand makes"):
        mh.record_call(model[1], x)


def test_a_hand_made_layer_beside_others_is_said(fresh, caplog):
    model = nn.Sequential(TimmAttention(), ByHand()).eval()
    with caplog.at_level(logging.WARNING, "manyheads"):
        rec = mh.record_call(model, normal(fresh, B, Q, M))
    assert len(rec.layers) == 1 and "1 (ByHand): weights made by hand" in rec.provenance["left out"]
    assert "left out: 1 (ByHand)" in caplog.text
    table = mh.measure_call(model, normal(fresh, B, Q, M), statistics=["entropy"])
    assert "1 (ByHand)" in table.notes["left out, since nobody can see it"]


def test_a_softmax_that_weighs_no_values_is_no_attention(fresh):
    class Router(nn.Module):
        def forward(self, x):
            return x * x.softmax(-1).amax(-1, keepdim=True)

    model = nn.Sequential(Router()).eval()
    with tap(model) as state:
        model(normal(fresh, B, Q, M))
    assert not state.by_hand
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
