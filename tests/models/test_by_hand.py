"""The fourth way in: attention that modules compute themselves, and what `declare` says of it.

Oracle: the module's own softmax, kept by a function mode that knows nothing of manyheads.
"""

import copy
import gc
import logging
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import manyheads as mh
from manyheads.errors import GuardError, ModelError
from manyheads.measurement import measure_call
from tests.models.own_attention import FORMS, TEN, B, D, H, M, N, NanoGPT, TwoLines
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")

SAME = {torch.float32: 3e-5, torch.float64: 1e-11}  # scores of 20 are 1e-6 apart in float32


class Softmaxes(TorchFunctionMode):
    """Every softmax that is made, and what it was made of."""

    def __init__(self):
        super().__init__()
        self.scores, self.weights = [], []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "softmax":
            self.scores.append(args[0].detach().clone())
            self.weights.append(result.detach().clone())
        return result


def drawn(module, fresh, dtype=torch.float32):
    """Weights so large that maps are far from even."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=fresh))
    return module.to(dtype)


def tokens(fresh, dtype=torch.float32):
    return torch.randn(B, N, M, generator=fresh, dtype=torch.float64).to(dtype)


def four(x, num_heads):
    return x.reshape(-1, num_heads, *x.shape[-2:])


def own_maps(module, num_heads, *inputs):
    with torch.no_grad(), Softmaxes() as kept:
        out = module(*inputs)
    return four(kept.weights[0], num_heads), four(kept.scores[0], num_heads), out


CASES = [(name, torch.float32) for name in TEN] + [("nanogpt", torch.float64), ("t5", torch.float64)]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda x: str(x).removeprefix("torch."))
def test_maps_and_statistics_are_those_of_the_modules_own_softmax(name, dtype, fresh):
    form = FORMS[name]
    model = nn.Sequential(drawn(form.make(), fresh, dtype)).eval()
    inputs = form.inputs(tokens(fresh, dtype))
    weights, _, _ = own_maps(model[0], form.num_heads, *inputs)
    rec = mh.record_call(model[0], *inputs)
    (layer,) = rec.layers
    assert layer.site.num_heads == form.num_heads and layer.site.causal == form.causal
    assert layer.because.endswith("computed by the module itself")
    ours = torch.stack([layer.weights(text=text) for text in range(len(weights))])
    assert ours.shape == weights.shape and float((ours - weights).abs().max()) <= SAME[dtype]
    table = measure_call(model[0], *inputs, statistics=["entropy", "first_mass"])
    p = weights.double().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0).sum(-1).mean((0, 2))
    np.testing.assert_allclose(table["entropy"], entropy, atol=10 * SAME[dtype])
    np.testing.assert_allclose(table["first_mass"], p[..., 0].mean((0, 2)), atol=10 * SAME[dtype])


@pytest.mark.thinned(name=("nanogpt", "d2l", "t5", "x-transformers"), dtype=())
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda x: str(x).removeprefix("torch."))
def test_a_watch_has_the_numbers_of_the_training_pass_and_changes_none(name, dtype, fresh):
    form = FORMS[name]
    module = drawn(form.make(), fresh, dtype).train()
    inputs = form.inputs(tokens(fresh, dtype))
    state = torch.get_rng_state()
    with Softmaxes() as kept:
        plain = module(*inputs)
    plain.square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    torch.set_rng_state(state)  # the same dropout
    with mh.watch(module, statistics=["max_logit", "entropy"]) as seen:
        out = module(*inputs)
        out.square().mean().backward()
        seen.step()
    assert torch.equal(out, plain)
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), gradients, strict=True))
    p, scores = (four(x[0], form.num_heads).double().numpy() for x in (kept.weights, kept.scores))
    real = (p > 0).any((1, 2))  # a token that nobody looks at is padding, and so is its row
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0).sum(-1)
    rows = np.broadcast_to(real[:, None], entropy.shape)
    means = (entropy * rows).sum((0, 2)) / rows.sum((0, 2))
    np.testing.assert_allclose(seen.last["entropy"], means, atol=10 * SAME[dtype])
    # Of a real row, among the cells that have any weight: a fill value is no logit.
    largest = np.where((p > 0) & rows[..., None], scores, -np.inf).max((0, 2, 3))
    np.testing.assert_allclose(seen.last["max_logit"], largest, rtol=SAME[dtype], atol=SAME[dtype])
    assert "attention computed by the module itself" in seen.last.because


def test_an_ablated_head_is_one_without_its_columns_of_the_output_projection(fresh):
    for name, last in (("nanogpt", "c_proj"), ("einops", "to_out"), ("d2l", "W_o")):
        form = FORMS[name]
        module, inputs = drawn(form.make(), fresh).eval(), form.inputs(tokens(fresh))
        with torch.no_grad():
            with mh.applied(module, mh.Ablate("L0H2")) as now:
                out = module(*inputs)
            assert now.changes == {"ablate L0H2 (zero)": 1.0}
            getattr(module, last).weight[:, 2 * D : 3 * D] = 0
            torch.testing.assert_close(out, module(*inputs))


class Scored(nn.Module):
    """softmax(steps(q k^T)) v with heads, and functions of a test's own in between."""

    def __init__(self, steps=lambda s: s, after=lambda w: w, axis=-1, values=torch.matmul):
        super().__init__()
        self.steps, self.after, self.axis, self.values = steps, after, axis, values
        self.q, self.k, self.v, self.proj = (nn.Linear(M, M) for _ in range(4))
        self.temperature = nn.Parameter(torch.rand(H, 1, 1) + 0.5)

    def heads(self, x):
        return (f(x).view(len(x), -1, H, D).transpose(1, 2) for f in (self.q, self.k, self.v))

    def forward(self, x):
        q, k, v = self.heads(x)
        weights = self.after(self.steps(q @ k.mT).softmax(self.axis))
        return self.proj(self.values(weights, v).transpose(1, 2).flatten(2))


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def window(scores):
    place = torch.arange(N)
    scores[..., (place[:, None] - place).abs() > 3] = -torch.inf  # in place, by an index
    return scores / 3


OTHERS = {
    "where": lambda s: torch.where(causal(N), s * 0.3, torch.tensor(-1e30)),
    "multiplied by a mask": lambda s: (s / 2) * causal(N).float() - 1e4 * (1 - causal(N).float()),
    "in place, by an index": window,
    "a row's maximum off": lambda s: s - s.amax(-1, keepdim=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_done_to_scores_is_read_from_what_it_does(name, fresh):
    # As CPM-Ant does after its softmax, by torch's function and not the tensor's.
    module = drawn(Scored(OTHERS[name], lambda w: torch.masked_fill(w, w < 0, 0)), fresh).eval()
    x = tokens(fresh)
    weights, _, _ = own_maps(module, H, x)
    layer = mh.record_call(module, x).layers[0]
    assert float((torch.stack([layer.weights(text=t) for t in range(B)]) - weights).abs().max()) <= SAME[torch.float32]
    assert (layer.rule.bias is None) and (layer.mask.num_keys == N)


class Folded(Scored):
    """As older models do: baddbmm with a bias, texts and heads in one axis, a scale for each head."""

    def forward(self, x):
        q, k, v = (y.reshape(-1, N, D) for y in self.heads(x))
        bias = torch.linspace(0, 2, N).expand(B * H, 1, N)
        scores = bias.baddbmm(q, k.mT, beta=0.5, alpha=0.3).view(B, H, N, N) * self.temperature
        scores = scores.masked_fill(~causal(N), torch.finfo(x.dtype).min)
        weights = F.softmax(scores, -1, dtype=torch.float32).to(x.dtype).view(B * H, N, N)
        return self.proj(torch.bmm(weights, v).view(B, H, N, D).transpose(1, 2).flatten(2))


class HeadsFirst(Scored):
    """Heads before texts, in one axis: as some translations of the first transformer have it."""

    def forward(self, x):
        q, k, v = (y.transpose(0, 1).reshape(-1, N, D) for y in self.heads(x))
        weights = (torch.bmm(q, k.mT) / math.sqrt(D)).softmax(2)
        return self.proj(torch.bmm(weights, v).view(H, B, N, D).permute(1, 2, 0, 3).flatten(2))


class Grouped(Scored):
    """Two heads share a key/value head, by an axis of size 1."""

    def forward(self, x):
        q, k, v = self.heads(x)
        q, k, v = q.unflatten(1, (2, 2)), k[:, ::2].unsqueeze(2), v[:, ::2].unsqueeze(2)
        read = (q @ k.mT * D**-0.5).softmax(-1) @ v
        return self.proj(read.flatten(1, 2).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("kind", [Folded, HeadsFirst, Grouped])
def test_texts_and_heads_are_told_apart(kind, fresh):
    module, x = drawn(kind(), fresh).eval(), tokens(fresh)
    with torch.no_grad():
        module.temperature.abs_().add_(0.1)
    with torch.no_grad(), Softmaxes() as kept:
        out = module(x)
    own = kept.weights[0]
    own = own.view(H, B, N, N).transpose(0, 1) if kind is HeadsFirst else own.reshape(B, H, N, N)
    layer = mh.record_call(module, x).layers[0]
    assert (layer.site.num_heads, layer.site.num_kv_heads) == (H, 2 if kind is Grouped else H)
    assert float((torch.stack([layer.weights(text=t) for t in range(B)]) - own).abs().max()) <= SAME[torch.float32]
    with torch.no_grad(), mh.applied(module, mh.Ablate("L0H1", kind="mean"), corpus=[x]):
        changed = module(x)
    assert changed.shape == out.shape and not torch.equal(changed, out)


class TwoProducts(Scored):
    """As Shaw, or Transformer-XL: what lies between two places is a second product."""

    def forward(self, x):
        q, k, v = self.heads(x)
        scores = q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, torch.ones(N, N, D))
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Linear(Scored):
    """Linear attention: no map at all."""

    def forward(self, x):
        q, k, v = self.heads(x)
        return self.proj((q.softmax(-1) @ (k.softmax(-2).mT @ v)).transpose(1, 2).flatten(2))


class Slots(Scored):
    """Keys that are parameters: the same for every text."""

    def forward(self, x):
        return self.proj((x @ self.q.weight.T).softmax(-1) @ self.v.weight)


UNREAD = {
    "softmax runs along an axis other": lambda: Scored(axis=-2),
    "two products": TwoProducts,
    "does not multiply weights and values": lambda: Scored(
        lambda s: torch.einsum("bhqk,hg->bgqk", s, torch.eye(H) + 0.1)
    ),
    "clamp changes its scores": lambda: Scored(lambda s: s.clamp(-1, 1)),
    "dropout changes its scores": lambda: Scored(lambda s: F.dropout(s, 0.2, True)),
    "no scale, mask or bias": lambda: Scored(lambda s: s * s),
    "scaled cell by cell": lambda: Scored(lambda s: s * torch.linspace(1, 2, N)),
    "do not depend on q and k|cell by cell": lambda: Scored(lambda s: s.masked_fill(~causal(N), 0.0)),
    "exchange of axes changes its weights": lambda: Scored(after=lambda w: w.mT),
    "not of a product's result": Linear,
    "same for all texts": Slots,
}


@pytest.mark.thinned(why=("two products", "softmax runs along an axis other", "scaled cell by cell"))
@pytest.mark.parametrize("why", UNREAD)
def test_what_cannot_be_read_is_one_clear_error(why, fresh, caplog):
    model = nn.Sequential(nn.Linear(M, M), drawn(UNREAD[why](), fresh)).eval()
    x, kind = tokens(fresh), type(model[1]).__name__
    words = (
        rf"^Sequential: module '1' \({kind}\) computes its attention itself, in a way that cannot be read: .*({why})"
    )
    refuses(ModelError, words + r".*Nothing was recorded\. Have it call .*mh\.declare\)\.$", mh.record_call, model, x)
    refuses(ModelError, words, measure_call, model, x)
    with mh.watch(model), pytest.raises(ModelError, match=words):
        model(x)
    beside = nn.Sequential(drawn(NanoGPT(), fresh), model[1], drawn(NanoGPT(), fresh))
    with caplog.at_level(logging.WARNING, "manyheads"), mh.watch(beside, every=1, unseen="warn") as seen:
        for _ in range(3):
            beside(x)
            seen.step()
    assert [str(site) for site in seen.last.sites] == ["L0", "L2"] and np.isfinite(seen.last["entropy"]).all()
    assert caplog.text.count("left out of the watch: 1 (") == 1


def test_weights_that_are_changed_after_their_softmax_are_refused_by_the_guard_and_watched_around(fresh, caplog):
    module, x = drawn(Scored(after=lambda w: w * 1.5), fresh), tokens(fresh)
    words = r"^layer 0 \(\), head \d, row .* does something that was not recorded"
    refuses(GuardError, words, mh.record_call, module.eval(), x)
    with mh.watch(module.train()), pytest.raises(GuardError, match="not recorded"):
        module(x)
    with caplog.at_level(logging.WARNING, "manyheads"), mh.watch(module, every=1, unseen="warn") as seen:
        for _ in range(2):
            module(x)
            seen.step()
    assert seen.latest() == {} and not seen.fresh and seen.because.startswith("nothing was read in the last pass")
    assert caplog.text.count("left out of the watch:") == 1
    refuses(mh.errors.PlanError, r"^unseen='no': give 'raise' or 'warn'\.$", mh.watch, module, unseen="no")


def test_dropout_hides_no_mistake_from_the_guard(fresh):
    """Under dropout the module's own softmax is what the guard compares."""

    class Late(NanoGPT):
        def forward(self, x):
            q, k, v = (y.view(len(x), -1, H, D).transpose(1, 2) for y in self.c_attn(x).split(M, 2))
            weights = F.dropout((q @ k.mT).softmax(-1), 0.3, self.training)
            k.mul_(1.5)  # what the record would hold is no more what the scores were made of
            return self.c_proj((weights @ v).transpose(1, 2).flatten(2))

    with torch.no_grad():
        module = drawn(Late(), fresh).train()
    for parameter in module.c_attn.parameters():
        parameter.requires_grad_(False)
    with mh.watch(module), pytest.raises(GuardError):
        module(tokens(fresh))


def test_values_read_twice_are_recorded_and_not_edited(fresh):
    module = drawn(Scored(values=lambda w, v: w @ v + w @ torch.ones(N, D)), fresh).eval()
    x = tokens(fresh)
    assert len(mh.record_call(module, x).layers) == 1
    with mh.applied(module, mh.Ablate("L0H1")), pytest.raises(ModelError, match="reads values twice by the same"):
        module(x)


def test_one_text_without_an_axis_for_texts_and_several_calls_in_one_module(fresh):
    class Loop(nn.Module):
        """Heads one after another, each without an axis of its own."""

        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList(TwoLines() for _ in range(2))
            self.q = nn.Linear(M, 2 * D)

        def forward(self, x):
            q = self.q(x).split(D, -1)
            return torch.cat([(y @ y.mT).softmax(-1) @ y for y in q] + [head(x) for head in self.heads], -1)

    module, x = drawn(Loop(), fresh).eval(), tokens(fresh)
    with torch.no_grad(), Softmaxes() as kept:
        module(x)
    rec = mh.record_call(module, x)
    assert [layer.site.module for layer in rec.layers] == ["", "#2", "heads.0", "heads.1"]
    for layer, own in zip(rec.layers, kept.weights, strict=True):
        assert float((layer.weights(head=0, text=1) - own[1]).abs().max()) <= SAME[torch.float32]
    single = nn.Module()
    single.forward = lambda y: (y @ y.mT / 4).softmax(-1) @ y
    layer = mh.record_call(single.eval(), x[0]).layers[0]
    want = (x[0] @ x[0].mT / 4).softmax(-1)
    assert float((layer.weights(head=0, text=0) - want).abs().max()) <= SAME[torch.float32]


# --------------------------------------------------------------------------------------------------------- mh.declare


class Exponentials(Scored):
    """A softmax spelled out, which nobody can tell from other fractions."""

    def forward(self, x):
        self.query, k, v = self.heads(x)
        e = (torch.einsum("bhid,bhjd->bhij", self.query, k) / math.sqrt(D)).exp() * causal(N)
        return self.proj((e / e.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))


def test_what_is_declared_is_read_checked_and_edited(fresh):
    module, x = drawn(Exponentials(), fresh).eval(), tokens(fresh)
    refuses(ModelError, r"with no softmax.* Nothing was recorded\. .*mh\.declare\)\.$", mh.record_call, module, x)
    mh.declare(module, q="query", k="k", v="v", causal=True, num_heads=H)  # an attribute, and two parts
    with torch.no_grad():
        q, k, _ = module.heads(x)
        want = (q @ k.mT / math.sqrt(D)).masked_fill(~causal(N), -torch.inf).softmax(-1)
    layer = mh.record_call(module, x).layers[0]
    assert layer.because.endswith("read where mh.declare says") and layer.site.causal
    assert float((torch.stack([layer.weights(text=t) for t in range(B)]) - want).abs().max()) <= SAME[torch.float32]
    with mh.watch(module.train(), statistics=["first_mass"]) as seen:
        module(x).sum().backward()
        seen.step()
    np.testing.assert_allclose(seen.last["first_mass"], want[..., 0].mean((0, 2)), atol=1e-4)
    with torch.no_grad(), mh.applied(module.eval(), mh.Ablate("L0H2")):
        out = module(x)
    with torch.no_grad():
        module.proj.weight[:, 2 * D : 3 * D] = 0
        torch.testing.assert_close(out, module(x))


class OneHead(nn.Module):
    """A head as a module of its own, as in lectures that build a layer from a list of them."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(M, D, bias=False) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * D**-0.5
        return F.softmax(scores.masked_fill(~causal(N), float("-inf")), dim=-1) @ self.value(x)


class ListOfHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.proj = nn.ModuleList(OneHead() for _ in range(H)), nn.Linear(H * D, M)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class DeclaredHeads(ListOfHeads):
    def forward(self, x):
        for name in ("query", "key", "value"):
            setattr(self, name, torch.cat([getattr(head, name)(x) for head in self.heads], dim=-1))
        return super().forward(x)


def test_heads_that_are_modules_are_layers_of_one_head_or_one_layer_that_is_declared(fresh):
    module, x = drawn(DeclaredHeads(), fresh).eval(), tokens(fresh)
    plain = ListOfHeads().eval()
    plain.load_state_dict(module.state_dict())
    with Softmaxes() as seen, torch.no_grad():
        plain(x)
    want = torch.stack(seen.weights, 1)
    layers = mh.record_call(plain, x).layers
    assert [(layer.site.module, layer.site.num_heads) for layer in layers] == [(f"heads.{n}", 1) for n in range(H)]
    mh.declare(module, q="query", k="key", v="value", out="proj", num_heads=H, causal=True)
    (layer,) = mh.record_call(module, x).layers
    assert float((torch.stack([layer.weights(text=t) for t in range(B)]) - want).abs().max()) <= SAME[torch.float32]
    with torch.no_grad(), mh.applied(module, mh.Ablate("L0H2")):
        out = module(x)
    with torch.no_grad():
        plain.heads[2].value.weight.zero_()
        torch.testing.assert_close(out, plain(x))


def test_a_declaration_that_is_wrong_is_refused(fresh):
    module, x = drawn(Exponentials(), fresh).eval(), tokens(fresh)
    mh.declare(module, q="q", k="k", v="v", num_heads=H)  # not causal
    refuses(GuardError, r"not recorded, .*If what mh\.declare names is wrong .*causal=", mh.record_call, module, x)
    mh.declare(module, q="q", k="k", v="nothing", num_heads=H)
    refuses(ModelError, r"^module '' \(Exponentials\): v='nothing' of mh.declare is neither", mh.record_call, module, x)
    mh.declare(module, q="q", k="k", v="v")
    refuses(ModelError, r"^module '' \(Exponentials\): give num_heads= to mh.declare\.$", mh.record_call, module, x)
    mh.declare(module, q="q", k="k", v="v", num_heads=3)
    refuses(
        ModelError,
        r"^module '' .*: q of mh.declare is 20 wide, which 3 heads do not divide: say",
        mh.record_call,
        module,
        x,
    )
    refuses(
        ModelError, r"^declare takes a torch module or its class, not a str\.$", mh.declare, "q", q="q", k="k", v="v"
    )
    refuses(ModelError, r"not a loaded model: .* On a module's own inputs: mh\.record_call", mh.record, module, x)
    refuses(ModelError, r"^num_heads=0: give a whole", mh.declare, module, q="q", k="k", v="v", num_heads=0)
    refuses(ModelError, r"has no part 'o': name the output", mh.declare, module, q="q", k="k", v="v", out="o")


def test_a_class_is_declared_for_all_its_modules_and_a_copy_keeps_what_was_said(fresh):
    class Own(Exponentials):
        pass

    mh.declare(Own, q="q", k="k", v="v", causal=True, num_heads=H)
    model = nn.Sequential(drawn(Own(), fresh), nn.LayerNorm(M), drawn(Own(), fresh)).eval()
    assert len(mh.record_call(copy.deepcopy(model), tokens(fresh)).layers) == 2


# -------------------------------------------------------------------------------------------- memory, and a user's walk


def maps_alive():
    gc.collect()
    return sorted(tuple(x.shape) for x in gc.get_objects() if isinstance(x, torch.Tensor) and x.shape[1:] == (H, N, N))


def test_no_map_is_kept_that_the_module_does_not_keep(fresh):
    module, x = drawn(NanoGPT(0.1), fresh), tokens(fresh)
    before = maps_alive()
    mh.record_call(module.eval(), x)
    rec = mh.record_call(module, x)
    assert maps_alive() == before and rec.layers[0].mask.dense is None
    plain = module.train()(x)
    trained = maps_alive()
    del plain
    with mh.watch(module) as seen:
        out = module(x)
        assert maps_alive() == trained
        out.sum().backward()
        seen.step()


class Unsoftened(nn.Module):
    """Attention whose weights are an activation of the scores, and the feed-forward layer with matrices of its own."""

    def __init__(self, activation):
        super().__init__()
        self.activation, self.qkv = activation, nn.Linear(M, 3 * M)
        self.up, self.down = nn.Parameter(torch.randn(M, N)), nn.Parameter(torch.randn(N, M))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        weights = self.activation((q @ k.mT / math.sqrt(D)).tril()) / N if self.activation else 1.0
        x = x + (weights @ v).transpose(1, 2).flatten(2) if self.activation else x
        return x + F.relu(x @ self.up) @ self.down


@pytest.mark.parametrize("activation", [F.relu, torch.sigmoid, lambda x: x.square(), torch.exp])
def test_a_layer_without_softmax_beside_others_is_named_once(activation, fresh, caplog):
    model = drawn(nn.Sequential(NanoGPT(), Unsoftened(activation), Unsoftened(None)), fresh).eval()
    words = r"1 (Unsoftened): not read, since it reads values by scores after"
    rec = mh.record_call(model, tokens(fresh))
    assert [layer.site.module for layer in rec.layers] == ["0"]
    assert rec.provenance["left out"].startswith(words) and "2 (" not in rec.provenance["left out"]
    assert caplog.text.count(words) == 1
    caplog.clear()
    model.train()
    with mh.watch(model) as watch:
        for _ in range(2):
            model(tokens(fresh)).mean().backward()
            watch.step()
    assert caplog.text.count("left out of the watch: " + words) == 1


def test_a_model_of_layers_without_softmax_is_refused(fresh):
    model = drawn(nn.Sequential(Unsoftened(F.relu), Unsoftened(F.relu)), fresh).eval()
    words = "module '0' .Unsoftened., and 1 more like it, .* after relu, with no softmax. Nothing was recorded"
    refuses(ModelError, words, mh.record_call, model, tokens(fresh))
