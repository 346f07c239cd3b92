"""Our layer where torch's stood in torch's own encoder, decoder and transformer: masks, padding, nested tensors.

Oracle: the same module with `nn.MultiheadAttention` and the same numbers, which takes its fast path where it can. (Of
masks of numbers that path makes NaN, in torch 2.13: there the oracle is torch's slow path.)
"""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from contextlib import contextmanager

import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

import manyheads as mh
from manyheads import nn as mnn
from tests.nn.layer_oracle import normal, stirred
from tests.refusals import refuses

B, Q, K, M, H, INNER = 3, 7, 11, 24, 6, 40
LENGTHS = (Q, 5, 2)

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True"
)


def stirred_all(module, fresh):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=fresh) * 0.3)
    return module


def with_ours(theirs, **options):
    """A copy of a module of torch's with our layer, and its numbers, for every attention in it."""
    ours = copy.deepcopy(theirs)
    for path, attention in theirs.named_modules():
        if isinstance(attention, nn.MultiheadAttention):
            layer = mnn.MultiHeadAttention(
                M, H, batch_first=attention.batch_first, bias=attention.in_proj_bias is not None, **options
            )
            mnn.load_state(layer, attention.state_dict(), "torch")
            ours.set_submodule(path, layer.train(attention.training))
    return ours


def encoders(fresh, nested=True, layers=3, **options):
    layer = nn.TransformerEncoderLayer(M, H, INNER, 0.1, batch_first=True, **options)
    theirs = stirred_all(nn.TransformerEncoder(layer, layers, nn.LayerNorm(M), enable_nested_tensor=nested), fresh)
    theirs.eval()
    return theirs, with_ours(theirs)


def masks_of(fresh):
    """By name: what an encoder is called with. No row sees nothing: torch gives NaN there."""
    future = torch.ones(Q, Q, dtype=torch.bool).triu(1)
    spotted = torch.rand(Q, Q, generator=fresh) < 0.3
    spotted[:, 0] = False
    padding = torch.arange(Q) >= torch.tensor(LENGTHS)[:, None]

    def floats(hidden):
        return torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)

    return {
        "nothing": {},
        "causal": {"mask": future},
        "causal, in floats, with its hint": {"mask": floats(future), "is_causal": True},
        "spots": {"mask": spotted},
        "numbers": {"mask": normal(fresh, Q, Q)},
        "padding": {"src_key_padding_mask": padding},
        "padding in floats": {"src_key_padding_mask": floats(padding)},
        "padding before": {"src_key_padding_mask": padding.flip(1)},
        "causal and padding": {"mask": future, "src_key_padding_mask": padding},
        "numbers and padding in floats": {"mask": normal(fresh, Q, Q), "src_key_padding_mask": floats(padding)},
        "spots and padding": {"mask": spotted, "src_key_padding_mask": padding},
    }


@contextmanager
def right_path(masks):
    """torch without its fast path where a mask holds numbers, for which that path has none."""
    mask = masks.get("mask")
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(mask is None or mask.dtype == torch.bool or bool(mask.isinf().any()))
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


MASKS = list(masks_of(torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "padded"])
@pytest.mark.parametrize("name", MASKS)
def test_encoder_is_torchs_with_and_without_gradients(fresh, name, nested):
    theirs, ours = encoders(fresh, nested)
    x, masks = normal(fresh, B, Q, M), masks_of(fresh)[name]
    with torch.no_grad():
        got = ours(x, **masks)
        with right_path(masks):
            want = theirs(x, **masks)
    if nested and name == "padding":
        assert bool((want[1, LENGTHS[1] :] == want[2, -1]).all()), "torch filled padding, so it made a nested tensor"
    assert_allclose(got, want, atol=2e-5)
    seed, grads = normal(fresh, B, Q, M), []
    for encoder in (theirs, ours):
        given = x.clone().requires_grad_()
        out = encoder(given, **masks)
        norms = [p for n, p in encoder.named_parameters() if "norm" in n or "linear" in n]
        grads.append([out, *torch.autograd.grad((out * seed).sum(), [given, *norms])])
    for got, want in zip(grads[1], grads[0], strict=True):
        assert_allclose(got.detach(), want.detach(), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("options", [
    {"norm_first": True}, {"activation": "gelu"}, {"bias": False}, {"activation": nn.SiLU()},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "learns"])
def test_encoder_of_other_options_is_torchs(fresh, options, frozen):
    theirs, ours = encoders(fresh, **options)
    x, masks = normal(fresh, B, Q, M), masks_of(fresh)["padding"]
    for encoder in (theirs, ours):
        encoder.requires_grad_(not frozen)
    assert_allclose(ours(x, **masks).detach(), theirs(x, **masks).detach(), atol=2e-5)
    with torch.no_grad():
        assert_allclose(ours(x, **masks), theirs(x, **masks), atol=2e-5)


@pytest.mark.parametrize("places", [[0], [1], [1, 2]], ids=str)
def test_our_layer_may_stand_beside_torchs(fresh, places):
    theirs, ours = encoders(fresh)
    for place in {0, 1, 2} - {*places}:
        ours.layers[place].self_attn = copy.deepcopy(theirs.layers[place].self_attn)
    x, masks = normal(fresh, B, Q, M), masks_of(fresh)["padding"]
    with torch.no_grad():
        assert_allclose(ours(x, **masks), theirs(x, **masks), atol=2e-5)
    assert_allclose(ours(x, **masks).detach(), theirs(x, **masks).detach(), atol=2e-5)


@pytest.mark.parametrize("options", [{"projections": "split"}, {"out_bias": False, "projections": "fused"}], ids=str)
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "learns"])
def test_layer_without_one_weight_and_its_biases_leaves_texts_padded(fresh, options, frozen):
    theirs, _ = encoders(fresh)
    if "out_bias" in options:
        with torch.no_grad():
            for layer in theirs.layers:
                layer.self_attn.out_proj.bias.zero_()
    ours = copy.deepcopy(theirs)
    for part, other in zip(ours.layers, theirs.layers, strict=True):
        part.self_attn = mnn.MultiHeadAttention(M, H, batch_first=True, **options).eval()
        state = other.self_attn.state_dict()
        mnn.load_state(
            part.self_attn, {n: x for n, x in state.items() if n != "out_proj.bias" or len(options) == 1}, "torch"
        )
    x, masks = normal(fresh, B, Q, M), masks_of(fresh)["padding"]
    ours.requires_grad_(not frozen)
    real = ~masks["src_key_padding_mask"]
    want = theirs(x, **masks).detach()
    assert_allclose(ours(x, **masks).detach()[real], want[real], atol=2e-5)
    with torch.no_grad():
        assert_allclose(ours(x, **masks), want, atol=2e-5)
    refuses(
        mh.errors.ShapeError,
        "this layer has no in_proj_weight with biases",
        lambda: torch.sum(ours.layers[0].self_attn.in_proj_weight),
    )


@pytest.mark.parametrize("options", [{"projections": "split"}, {"out_bias": False, "projections": "fused"}], ids=str)
def test_attribute_of_the_weight_that_a_layer_has_not_is_refused_in_words(options):
    layer = mnn.MultiHeadAttention(M, H, **options)
    for name in ("shape", "device", "data", "requires_grad"):
        words = f"no in_proj_weight with biases, so that it has no {name}: manyheads.nn.dump_state"
        refuses(AttributeError, re.escape(words), getattr, layer.in_proj_weight, name)
    assert not hasattr(layer.in_proj_weight, "shape") and torch.overrides.has_torch_function((layer.in_proj_weight,))
    for other in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        assert type(other(layer.in_proj_weight)) is type(layer.in_proj_weight)
        assert type(other(layer).in_proj_weight) is type(layer.in_proj_weight)


def test_encoder_that_was_built_with_our_layer_is_torchs(fresh):
    theirs, ours = encoders(fresh, layers=1)
    built = nn.TransformerEncoder(ours.layers[0], 2, enable_nested_tensor=False).eval()
    torchs = nn.TransformerEncoder(theirs.layers[0], 2, enable_nested_tensor=False).eval()
    for name, masks in masks_of(fresh).items():
        x = normal(fresh, B, Q, M)
        with torch.no_grad():
            got = built(x, **masks)
            with right_path(masks):
                assert_allclose(got, torchs(x, **masks), atol=2e-5, err_msg=name)


def test_encoder_that_was_built_with_our_layer_leaves_texts_padded(fresh):
    theirs, ours = encoders(fresh, layers=1)
    with pytest.warns(UserWarning, match="_qkv_same_embed_dim was not True"):
        built = nn.TransformerEncoder(ours.layers[0], 2).eval()
    nested, padded = (
        nn.TransformerEncoder(theirs.layers[0], 2, enable_nested_tensor=nest).eval() for nest in (True, False)
    )
    x, masks = normal(fresh, B, Q, M), masks_of(fresh)["padding"]
    real = ~masks["src_key_padding_mask"]
    with torch.no_grad():
        got, filled, want = (encoder(x, **masks) for encoder in (built, nested, padded))
    assert not filled[~real].any() and bool(got[~real].all())
    assert_allclose(got, want, atol=2e-5)
    assert_allclose(got[real], filled[real], atol=2e-5)


# ------------------------------------------------------------------------------------------------------- nn.Transformer


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("floats", [True, False], ids=["floats", "bools"])
@pytest.mark.parametrize("grad", [True, False], ids=["gradients", "none"])
def test_transformer_is_torchs(fresh, batch_first, floats, grad):
    theirs = stirred_all(nn.Transformer(M, H, 2, 2, INNER, 0.1, batch_first=batch_first), fresh).eval()
    ours = with_ours(theirs)
    source, target = normal(fresh, B, K, M), normal(fresh, B, Q, M)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    pads = {
        "src_key_padding_mask": torch.arange(K) >= torch.tensor([K, 4, 6])[:, None],
        "tgt_key_padding_mask": torch.arange(Q) >= torch.tensor(LENGTHS)[:, None],
        "memory_key_padding_mask": torch.arange(K) >= torch.tensor([K, 4, 6])[:, None],
    }
    crossed = torch.rand(Q, K, generator=fresh) < 0.3
    crossed[:, 0] = False
    hides = {"tgt_mask": torch.ones(Q, Q, dtype=torch.bool).triu(1), "memory_mask": crossed}
    hints = {"tgt_is_causal": True}

    def typed(masks):
        return {n: torch.zeros(m.shape).masked_fill(m, -torch.inf) if floats else m for n, m in masks.items()}

    with torch.set_grad_enabled(grad):
        for masks in ({}, typed(pads), typed(hides), {**typed(hides), **hints}, {**typed(hides), **typed(pads)}):
            got, want = (module(source, target, **masks) for module in (ours, theirs))
            assert_allclose(got.detach(), want.detach(), atol=5e-5)


# ------------------------------------------------------------------------------------------------- what looks at heads


@pytest.mark.parametrize("name", ["padding", "causal and padding"])
def test_maps_that_are_recorded_inside_torchs_encoder_are_those_that_torchs_layers_return(fresh, name):
    theirs, ours = encoders(fresh)
    x, masks = normal(fresh, B, Q, M), masks_of(fresh)[name]
    with torch.no_grad():
        rec = mh.record_call(ours, x, **masks)
        hidden = x
        for index, layer in enumerate(theirs.layers):
            call = {"attn_mask": masks.get("mask"), "key_padding_mask": masks["src_key_padding_mask"]}
            _, maps = layer.self_attn(hidden, hidden, hidden, average_attn_weights=False, **call)
            for text, length in enumerate(LENGTHS):
                got = rec.layers[index].weights(text=text)[:, :length]
                assert_allclose(got, maps[text, :, :length], atol=1e-5)
            if layer is not theirs.layers[-1]:
                hidden = layer(hidden, masks.get("mask"), masks["src_key_padding_mask"])


@pytest.mark.parametrize("name", MASKS)
def test_no_path_of_torchs_goes_around_our_layer(fresh, name):
    _, ours = encoders(fresh)
    calls = []
    for layer in ours.layers:
        layer.self_attn.qkv_proj.register_forward_hook(lambda module, args, out: calls.append(module))
    with torch.no_grad():
        ours(normal(fresh, B, Q, M), **masks_of(fresh)[name])
    assert calls == [layer.self_attn.qkv_proj for layer in ours.layers]


def test_edited_head_changes_torchs_encoder_by_what_its_weights_say(fresh):
    _, ours = encoders(fresh)
    x, masks = normal(fresh, B, Q, M), masks_of(fresh)["padding"]
    with torch.no_grad(), mh.applied(ours, mh.Ablate("L1H2")):
        got = ours(x, **masks)
    without = copy.deepcopy(ours)
    with torch.no_grad():
        width = M // H
        without.layers[1].self_attn.out_proj.weight[:, 2 * width : 3 * width] = 0
        # At padding numbers differ: under a tap torch leaves texts padded, and else fills them with 0.
        real = ~masks["src_key_padding_mask"]
        assert_allclose(got[real], without(x, **masks)[real], atol=2e-5)


# -------------------------------------------------------------------------------------------------------- nested inputs


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": True, "num_kv_heads": 2}, {"mask_true": "see"}], ids=str)
def test_nested_tensor_is_read_as_its_texts_one_by_one(fresh, layout, options):
    layer = stirred(mnn.MultiHeadAttention(M, H, batch_first=True, **options), fresh)
    texts = [normal(fresh, length, M) for length in LENGTHS]
    given = torch.nested.nested_tensor(texts, layout=layout)
    for call in ({"need_weights": False}, {"average_attn_weights": False}, {}):
        out, weights = layer(given, given, given, **call)
        assert out.is_nested and out.layout == layout
        assert (out + given).is_nested
        for index, (text, got) in enumerate(zip(texts, out.unbind(), strict=True)):
            want, maps = layer(text, **call)
            assert_allclose(got.detach(), want.detach(), atol=1e-5)
            if weights is not None:
                rows = len(text)
                assert_allclose(weights[index, ..., :rows, :rows].detach(), maps.detach(), atol=1e-6)
                assert not weights[index, ..., rows:, :].any() and not weights[index, ..., rows:].any()
    # Sums of thousands of terms, some of which cancel: in float64, where no draw comes near the bar.
    layer, texts = layer.double(), [text.double() for text in texts]
    given = torch.nested.nested_tensor(texts, layout=layout)
    nested_sum = sum(text.square().sum() for text in layer(given)[0].unbind())
    plain_sum = sum(layer(text)[0].square().sum() for text in texts)
    for got, want in zip(
        *(torch.autograd.grad(loss, list(layer.parameters())) for loss in (nested_sum, plain_sum)), strict=True
    ):
        assert_allclose(got, want, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("call", "message"), [
    (lambda layer, x, plain: layer(x, plain),
     "a nested tensor with key: a layer reads a nested query alone, as self-attention. Give padded tensors"),
    (lambda layer, x, plain: layer(plain, x), "a nested tensor with key: "),
    (lambda layer, x, plain: layer(x, x, plain), "a nested tensor with value: "),
    (lambda layer, x, plain: layer(x, key_padding_mask=torch.zeros(2, 4, dtype=torch.bool)),
     "a nested tensor with key_padding_mask: "),
    (lambda layer, x, plain: layer(x, attn_mask=torch.zeros(4, 4), cache=mh.KVCache()),
     "a nested tensor with attn_mask, cache: "),
    (lambda layer, x, plain: layer.train().__class__(M, H)(x),
     "a nested tensor is (batch, length, width), and this layer has batch_first=False."),
    (lambda layer, x, plain: layer(torch.nested.nested_tensor([torch.ones(4, M), torch.ones(2, 5)])),
     "query is a nested tensor of [(4, 24), (2, 5)]: give texts of (length, width), all of one width."),
    (lambda layer, x, plain: layer(torch.nested.nested_tensor([torch.ones(4), torch.ones(2)])),
     "query is a nested tensor of [(4,), (2,)]: give texts of (length, width)"),
    (lambda layer, x, plain: layer(torch.nested.nested_tensor([torch.ones(4, 5), torch.ones(2, 5)])),
     "query has width 5, but this layer reads a query of width 24"),
])  # fmt: skip
def test_what_says_nothing_of_nested_tensors_is_refused(call, message):
    layer = mnn.MultiHeadAttention(M, H, batch_first=True)
    nested = torch.nested.nested_tensor([torch.ones(4, M), torch.ones(2, M)])
    refuses(mh.errors.ShapeError, re.escape(message), lambda: call(layer, nested, torch.ones(2, 4, M)))


# -------------------------------------------------------------------------------------------- torch.jit, and its errors


def test_torch_jit_script_is_refused_in_words(fresh):
    _, ours = encoders(fresh)
    for module in (ours.layers[0].self_attn, ours, nn.Sequential(ours)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, which gives TorchScript up
            refuses(
                mh.errors.ModelError,
                r"torch\.jit\.script cannot compile mh\.MultiHeadAttention",
                lambda m=module: torch.jit.script(m),
            )


WRONG = {
    "heads that do not divide the width": lambda kind: kind(M, 7),
    "a width that is not the layer's": lambda kind: kind(M, H)(*[torch.ones(Q, B, M + 1)] * 3),
    "keys of no values": lambda kind: kind(M, H)(torch.ones(Q, B, M), torch.ones(K, B, M), torch.ones(K - 1, B, M)),
    "keys of no batch": lambda kind: kind(M, H)(torch.ones(Q, B, M), torch.ones(K, M), torch.ones(K, M)),
    "a batch of batches": lambda kind: kind(M, H)(*[torch.ones(2, Q, B, M)] * 3),
    "a batch for a text": lambda kind: kind(M, H)(torch.ones(Q, M), torch.ones(K, B, M), torch.ones(K, B, M)),
    "padding of one axis": lambda kind: kind(M, H)(*[torch.ones(Q, B, M)] * 3, torch.zeros(Q, dtype=torch.bool)),
    "padding of a batch for a text": lambda kind: kind(M, H)(*[torch.ones(Q, M)] * 3, torch.zeros(B, Q).bool()),
    "padding of too many keys": lambda kind: kind(M, H)(*[torch.ones(Q, B, M)] * 3, torch.zeros(B, Q + 1).bool()),
    "a mask of one axis": lambda kind: kind(M, H)(*[torch.ones(Q, B, M)] * 3, attn_mask=torch.zeros(Q)),
    "a mask of complex numbers": lambda kind: kind(M, H)(
        *[torch.ones(Q, B, M)] * 3, attn_mask=torch.zeros(Q, Q, dtype=torch.complex64)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_torchs_layer_refuses_with_an_assertion_is_one_here_too(name):
    for kind in (nn.MultiheadAttention, mh.MultiHeadAttention):
        with pytest.raises(AssertionError):
            WRONG[name](kind)
    refuses(mh.errors.ShapeError, ".", lambda: WRONG[name](mh.MultiHeadAttention))
