"""Plans on modules that are not transformers models: their layers show as they call, and what they lack is told.

The oracle: zeros in the columns of the module's own output projection, or the same sums by plain torch.
"""

import logging
import re

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

import manyheads as mh
from manyheads import Ablate, Average, Copy, Plan, Scale, SkipOutputProjection
from manyheads.errors import HeadError, PlanError

B, H, G, Q, K, M = 2, 6, 3, 9, 13, 30
SAME = 1e-5
MATTERS = 1e-3


def normal(fresh, *shape):
    return torch.randn(*shape, generator=fresh)


def sharpened(module, fresh):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" not in name:
                parameter.copy_(normal(fresh, *parameter.shape) * 0.3)
    return module.eval()


class Plain(nn.Module):
    """Projections around torch's function, q, k and v in one product."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(M, 3 * M), nn.Linear(M, M)

    def maps(self, x):
        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=H)
        return (q @ k.transpose(-2, -1) * (M // H) ** -0.5).softmax(-1), v

    def forward(self, x):
        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=H)
        return self.proj(rearrange(F.scaled_dot_product_attention(q, k, v), "b h n f -> b n (h f)"))


class Ours(nn.Module):
    def __init__(self):
        super().__init__()
        self.mine = mh.MultiHeadAttention(M, H, G, batch_first=True, causal=True)

    def forward(self, x):
        return self.mine(x, need_weights=False)[0]


class Stack(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, (M,)))  # else scores grow past what float32 can tell apart
        return x


def torchs():
    return nn.TransformerEncoderLayer(M, H, dim_feedforward=16, batch_first=True)


MADE = {
    "a module that calls torch's function": (lambda: Stack(Plain), "layers.{}.proj"),
    "our own layer": (lambda: Stack(Ours), "layers.{}.mine.out_proj"),
    "torch's own encoder": (lambda: nn.TransformerEncoder(torchs(), 3), "layers.{}.self_attn.out_proj"),
}
every_module = pytest.mark.parametrize(("make", "path"), MADE.values(), ids=MADE)


def output(module, *args, **kwargs):
    with torch.no_grad():
        return module(*args, **kwargs)


@every_module
def test_zero_ablation_is_zeros_in_the_columns_of_the_output_projection(make, path, fresh):
    module, x = sharpened(make(), fresh), normal(fresh, B, Q, M)
    with mh.applied(module, Ablate("L1-2H4, L1H0")):
        got = output(module, x)
    plain = output(module, x)
    with torch.no_grad():
        for layer, heads in ((1, [0, 4]), (2, [4])):
            module.get_submodule(path.format(layer)).weight.view(M, H, -1)[:, heads] = 0
    want = output(module, x)
    assert (got - want).abs().max() <= 10 * SAME * want.abs().max()
    assert (want - plain).abs().max() > MATTERS


@every_module
def test_mean_ablation_takes_a_list_of_the_modules_own_inputs_as_corpus(make, path, fresh):
    """Each by itself a batch: a tensor, a tuple, or keywords."""
    module, x = sharpened(make(), fresh), normal(fresh, B, Q, M)
    name = "src" if isinstance(module, nn.TransformerEncoder) else "x"
    corpus = [normal(fresh, 1, 5, M), (normal(fresh, 3, K, M),), {name: normal(fresh, 2, 7, M)}]
    calls = []
    with mh.tap(module, on_call=calls.append), torch.no_grad():
        for each in corpus:
            module(**each) if isinstance(each, dict) else module(each[0] if isinstance(each, tuple) else each)
    rows = [rearrange(call.out, "b h q f -> (b q) h f") for call in calls if call.site.layer == 1]
    mean = torch.cat(rows).mean(0)[2]
    with mh.applied(module, Ablate("L1H2", kind="mean"), corpus=corpus):
        got = output(module, x)

    def edit(call):
        out = call.out.clone()
        out[:, 2] = mean
        return out if call.site.layer == 1 else None

    with mh.tap(module, edits=[edit]), torch.no_grad():
        want = module(x)
    assert (got - want).abs().max() <= 10 * SAME * want.abs().max()
    assert (want - output(module, x)).abs().max() > MATTERS


def test_average_and_copy_take_layers_in_spans_and_lists(fresh):
    module, x = sharpened(Stack(Plain), fresh), normal(fresh, B, Q, M)

    def by_hand(change):
        hidden = x
        for layer in module.layers:
            maps, v = layer.maps(F.layer_norm(hidden, (M,)))
            hidden = hidden + layer.proj(rearrange(change(maps) @ v, "b h n f -> b n (h f)"))
        return hidden

    def averaged(maps):
        return torch.cat([maps[:, :3].mean(1, keepdim=True).expand(-1, 3, -1, -1), maps[:, 3:]], 1)

    def copied(maps):
        return maps[:, [0, 5, 2, 3, 4, 5]]

    plans = (
        (Average("L0-2H0-2"), averaged),
        (Copy("L*H1", "L0H5, L1H5, L2H5"), copied),
        (Copy("L0-2H1", "L*H5"), copied),
    )
    for plan, change in plans:
        with mh.applied(module, plan):
            got = output(module, x)
        with torch.no_grad():
            want = by_hand(change)
        assert (got - want).abs().max() <= 10 * SAME * want.abs().max()
        assert (want - output(module, x)).abs().max() > MATTERS


def test_heads_that_no_layer_has_are_told_in_the_end_and_beyond_a_layer_at_once(fresh):
    module, x = sharpened(Stack(Plain), fresh), normal(fresh, B, Q, M)
    words = r"'L7H1' names no head of this Stack, which attended as L0 \(6 heads\), L1 \(6 heads\), L2 \(6 heads\)"
    with pytest.raises(PlanError, match=words), mh.applied(module, Ablate("L1H1, L7H1")):
        module(x)
    with pytest.raises(PlanError, match="'encoder:L0' names no head"), mh.applied(module, Ablate("encoder:L0")):
        module(x)
    with pytest.raises(HeadError, match=r"'L1H6': there is no head 6 in L1: heads are 0 to 5\. Nearest: 'L1H5'"):  # noqa: SIM117
        with mh.applied(module, Ablate("L1H6")):
            module(x)


def decoder(fresh):
    made = nn.TransformerDecoder(nn.TransformerDecoderLayer(M, H, dim_feedforward=16, batch_first=True), 2)
    return sharpened(made, fresh)


def test_a_stack_without_a_name_is_what_heads_without_a_stack_mean(fresh):
    module, x, memory = decoder(fresh), normal(fresh, B, Q, M), normal(fresh, B, K, M)
    plain = output(module, x, memory)
    for plan, part in (("L1H2", "self_attn"), ("cross:L1H2", "multihead_attn")):
        with mh.applied(module, Ablate(plan)):
            got = output(module, x, memory)
        weight = module.layers[1].get_submodule(part).out_proj.weight.detach().view(M, H, -1)[:, 2]
        kept = weight.clone()
        weight.zero_()
        want = output(module, x, memory)
        weight.copy_(kept)
        assert (got - want).abs().max() <= 10 * SAME * want.abs().max()
        assert (want - plain).abs().max() > MATTERS


class Two(nn.Module):
    """Cross-attention first."""

    def __init__(self):
        super().__init__()
        self.reads = nn.MultiheadAttention(M, H, batch_first=True)
        self.own = nn.MultiheadAttention(M, H, batch_first=True)

    def forward(self, x, memory):
        x = self.reads(x, memory, memory, need_weights=False)[0]
        return self.own(x, x, x, need_weights=False)[0]


def test_heads_without_a_stack_are_refused_where_that_could_mean_two(fresh):
    module, x, memory = sharpened(Two(), fresh), normal(fresh, B, Q, M), normal(fresh, B, K, M)
    words = r"'L0H1' does not say which stack, and this module has 'cross', '': write 'cross:L0H1'"
    with pytest.raises(PlanError, match=words), mh.applied(module, Ablate("L0H1")):
        module(x, memory)


def test_resampling_keeps_each_layers_own_lengths(fresh):
    """An encoder's layers read another text than the decoder's, and a longer one."""
    how = {"num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 16, "batch_first": True}
    module = sharpened(nn.Transformer(M, H, **how), fresh)
    source, target = normal(fresh, B, K, M), normal(fresh, B, Q, M)
    corpus = [(normal(fresh, 1, 11, M), normal(fresh, 1, 5, M))]
    calls = []
    with mh.tap(module, on_call=calls.append), torch.no_grad():
        module(*corpus[0])
    other = {(call.site.stack, call.site.layer): call.out[0] for call in calls}
    assert {out.shape[1] for out in other.values()} == {5, 11}

    def edit(call):
        whole = other[call.site.stack, call.site.layer]
        out = call.out.clone()
        out[:, :5] = whole[:5, torch.arange(out.shape[2]) % whole.shape[1]]
        return out

    with mh.applied(module, Ablate("L*H0-4, cross:L*H0-4", kind="resample"), corpus=corpus):
        got = output(module, source, target)
    with mh.tap(module, edits=[edit]), torch.no_grad():
        want = module(source, target)
    assert (got - want).abs().max() <= 10 * SAME * want.abs().max()
    assert (want - output(module, source, target)).abs().max() > MATTERS


def test_first_of_heads_that_see_different_keys_is_each_heads_own(fresh):
    layer, x = sharpened(mh.MultiHeadAttention(M, H, G, batch_first=True), fresh), normal(fresh, B, Q, M)
    hidden = torch.rand(B, H, Q, Q, generator=fresh) < 0.5
    hidden[..., -1] = False
    calls = []
    given = {"attn_mask": hidden.flatten(0, 1), "need_weights": False}
    with mh.tap(layer, on_call=calls.append), torch.no_grad():
        plain = layer(x, **given)[0]
    v = calls[0].v.repeat_interleave(H // G, 1)
    first = (~hidden).to(torch.uint8).argmax(-1)[..., None].expand(-1, -1, -1, v.shape[-1])
    out = calls[0].out.clone()
    out[:, [1, 4]] = v.gather(2, first)[:, [1, 4]]
    with torch.no_grad():
        want = layer.out_proj(rearrange(out, "b h q f -> b q (h f)"))
    with mh.applied(layer, Ablate("L0H1, L0H4", kind="first")):
        got = output(layer, x, **given)[0]
    assert (got - want).abs().max() <= SAME * want.abs().max()
    assert (want - plain).abs().max() > MATTERS


def test_gradients_flow_through_every_step_also_where_rows_see_nothing(fresh):
    layer, x = sharpened(mh.MultiHeadAttention(M, H, batch_first=True), fresh), normal(fresh, B, Q, M)
    padding = torch.zeros(B, Q, dtype=torch.bool)
    padding[1] = True  # a text of nothing but padding
    plan = Plan([Average("L0H0-1"), Copy("L0H2", "L0H3"), Ablate("L0H4", kind="first"), Scale("L0H5", 0.5)])
    x.requires_grad_()
    with mh.applied(layer, plan):
        layer(x, key_padding_mask=padding, need_weights=False)[0].square().sum().backward()
    assert torch.isfinite(x.grad).all() and x.grad[0].abs().min() > 0


def test_what_a_module_cannot_do_is_refused_and_what_it_never_did_is_said(fresh, caplog):
    layer, x = sharpened(nn.MultiheadAttention(M, H, batch_first=True), fresh), normal(fresh, B, Q, M)
    words = re.escape("is multiplied without being called (torch's own layer): it cannot be skipped")
    with pytest.raises(PlanError, match=words), mh.applied(layer, SkipOutputProjection(0)):
        layer(x, x, x)
    module = sharpened(Stack(Plain), fresh)
    with pytest.raises(PlanError, match=r"a Stack reads no text: leave text= out and give corpus="):  # noqa: SIM117
        with mh.applied(module, Ablate("L0H1", kind="resample", text="a cat")):
            pass
    caplog.set_level(logging.WARNING, logger="manyheads")
    module = sharpened(Stack(Plain), fresh)
    with mh.applied(module, Ablate("L9H1")):
        pass
    assert "the model did not run" in caplog.text
