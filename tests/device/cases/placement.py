"""Where the parts of a model and of a call lie: half precision, two devices, mixed up; and how often the host waits."""

import copy

import pytest
import torch
from accelerate import dispatch_model
from torch import nn

import manyheads as mh
from manyheads.attention import Mask, Rule
from manyheads.errors import ModelError, ShapeError
from manyheads.measurement import measure_call
from manyheads.nn import Rope
from manyheads.recording import Layer, prepare
from manyheads.recording.exact_map import Entropy, Received, one_pass
from manyheads.roles.probes import copying_scores, probe_repeats
from manyheads.texts import Sinks, Tokens
from tests.device.conftest import MAKERS, TEXTS, assert_same, each
from tests.device.simulated import counted_waits
from tests.models.eager import draw
from tests.models.tiny import VOCAB_SIZE, WORDS, tiny_llama, tiny_tokenizer
from tests.refusals import refuses

# ====================================================================================== half precision, and two devices
# Models in half precision, and models that are split over two devices with accelerate's hooks.


@pytest.fixture
def split(fresh):
    """The model on the host, and its twin with the first layer on one device and the rest on another."""

    def make(name, **how):
        model = MAKERS[name](seed=draw(fresh), **how)
        twin = copy.deepcopy(model)
        # The first layer and what stands before it on one device, the rest on the other. Tied weights stay together.
        body, stack = twin.base_model_prefix, "h" if name == "gpt2" else "layers"
        places = {f"{body}.{part}": "cuda:0" for part, _ in getattr(twin, body).named_children() if part != stack}
        for index in range(len(getattr(getattr(twin, body), stack))):
            places[f"{body}.{stack}.{index}"] = f"cuda:{min(index, 1)}"
        twin = dispatch_model(twin, {**places, "lm_head": "cuda:0"}, main_device="cuda:0")
        tokenizer = tiny_tokenizer(special_tokens=False)
        return tuple(mh.load(one, tokenizer=tokenizer, name="tiny") for one in (model, twin))

    return make


@pytest.mark.parametrize("name", each(["llama", "gpt2", "gemma2", "mistral"], "mistral"))
@pytest.mark.slow
def test_a_model_on_two_devices(name, split):
    host, device = split(name)
    assert device.spec.sites == host.spec.sites
    got, want = (mh.record(lm, TEXTS) for lm in (device, host))
    assert {layer.q.device.index for layer in got.layers} == {0, 1}
    for one, other in zip(got.layers, want.layers, strict=True):
        assert_same(one.weights(text=1), other.weights(text=1), share=5e-5)
    got, want = (mh.measure(lm, TEXTS, "all", sinks=Sinks(first=True)) for lm in (device, host))
    for statistic in want.names:
        assert_same(got.column(statistic), want.column(statistic), statistic, 5e-5)
    got, want = (mh.record(lm, TEXTS[0], generate=3) for lm in (device, host))
    assert got.tokens.ids.tolist() == want.tokens.ids.tolist()


@pytest.mark.slow
def test_what_heads_are_worth_on_two_devices(split):
    host, device = split("llama")
    plan = mh.Plan([mh.Ablate("L0H1, L2H0", kind="mean"), mh.Copy("L1H1", source="L1H0")])
    got, want = (mh.effect(lm, plan, TEXTS, controls=2, corpus=TEXTS) for lm in (device, host))
    assert_same(got.per_token, want.per_token, share=5e-5)
    for estimator in ("gradient", "ablation"):
        got, want = (mh.importance(lm, TEXTS, estimator=estimator) for lm in (device, host))
        assert_same(got.to_pandas(), want.to_pandas(), share=5e-5)
    got, want = (mh.find_roles(lm, TEXTS) for lm in (device, host))
    assert_same(got.to_pandas(), want.to_pandas(), share=1e-4)
    for probe in (lambda lm: mh.head_families(lm, TEXTS).divergences, lambda lm: copying_scores(lm).score):
        assert_same(probe(device), probe(host), share=1e-4)
    got, want = (probe_repeats(lm, length=7, samples=3) for lm in (device, host))
    assert_same(got.after.score, want.after.score, share=1e-4)
    assert device.weights_hash == host.weights_hash


@pytest.mark.slow
def test_heads_are_removed_and_merged_on_two_devices(split):
    host, device = split("llama", num_kv_heads=6)
    inputs = host.tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False)
    for change in (lambda lm: mh.prune_heads(lm, "L0H1, L2H4"), lambda lm: mh.convert_to_gqa(lm, 2, texts=TEXTS)):
        got, want = (change(lm) for lm in (device, host))
        with torch.no_grad():
            assert_same(got.model(**inputs.to("cuda:0")).logits, want.model(**inputs.to("cpu")).logits)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", each([torch.bfloat16, torch.float16], torch.bfloat16), ids=str)
@pytest.mark.parametrize("name", each(["llama", "bert", "gpt_oss"], "llama"))
def test_half_precision(name, dtype, both):
    host, device = both(name)
    host, device = (mh.load(lm.model.to(dtype), tokenizer=lm.tokenizer) for lm in (host, device))
    got, want = (mh.record(lm, TEXTS, keep=("q", "k", "v", "lse")) for lm in (device, host))
    for one, other in zip(got.layers, want.layers, strict=True):
        assert one.q.dtype == dtype and one.lse.dtype == torch.float32
        assert_same(one.weights(), other.weights(), share=0.1)  # the model's own kernels round otherwise
        exact = one.weights(head=1, text=1).double()
        assert (exact.sum(-1) - 1).abs().max() < 2e-3 or name == "gpt_oss"
    table = mh.measure(device, TEXTS, "all", sinks=Sinks(first=True))
    assert table.names == mh.measure(host, TEXTS, "all", sinks=Sinks(first=True)).names
    mh.effect(device, mh.Ablate("L0H1", kind="mean"), TEXTS, controls=1, corpus=TEXTS)


# =========================================================================================== parts on different devices
# Calls by hand whose parts are on different devices: one clear line, before torch names an operation deep inside.

B, H, G, Q, K, D, F = 2, 6, 3, 7, 11, 8, 5
WIDTH = 48


def test_attend(fresh):
    q, k, v = (torch.randn(*shape, generator=fresh) for shape in ((B, H, Q, D), (B, G, K, D), (B, G, K, F)))
    for mixed in ((q.to("cuda"), k, v), (q, k.to("cuda"), v), (q.to("cuda:1"), k.to("cuda"), v.to("cuda"))):
        refuses(ShapeError, r"q is torch.float32 on .*, k is .* on .*: they must be alike", mh.attend, *mixed)
    sinks, bias = torch.randn(H, generator=fresh), torch.randn(1, H, Q, K, generator=fresh)
    with pytest.raises(ShapeError, match=r"sinks is on cuda:0 and q on cpu: move one, as in sinks.to\(q.device\)"):
        mh.attend(q, k, v, sinks=sinks.to("cuda"))
    with pytest.raises(ShapeError, match=r"bias is on cpu and q on cuda:0: move one"):
        mh.attend(q.to("cuda"), k.to("cuda"), v.to("cuda"), bias=bias)


def test_a_mask_of_another_device_is_read_from_there(fresh):
    q, k, v = (torch.randn(*shape, generator=fresh) for shape in ((B, H, Q, D), (B, G, K, D), (B, G, K, F)))
    holes = torch.rand(B, 1, Q, K, generator=fresh) > 0.4
    want = mh.attend(q, k, v, mask=Mask.from_dense(holes)).out
    assert_same(mh.attend(q, k, v, mask=Mask.from_dense(holes.to("cuda"))).out, want)
    assert_same(mh.attend(q.to("cuda"), k.to("cuda"), v.to("cuda"), mask=Mask.from_dense(holes)).out, want)


@pytest.mark.parametrize("moved", ["q", "k", "lse", "bias"])
def test_a_layer(moved, fresh):
    q, k = torch.randn(B, H, K, D, generator=fresh), torch.randn(B, G, K, D, generator=fresh)
    parts = {"q": q, "k": k, "lse": mh.attend(q, k, k).lse, "bias": torch.randn(1, H, K, K, generator=fresh)}
    parts[moved] = parts[moved].to("cuda")
    with pytest.raises(ShapeError, match=rf"{moved} is on cuda:0.*: a layer is read on one device\. Move them"):
        layer = Layer(parts["q"], parts["k"], parts["lse"], Mask.full(K, K), Rule(0.3, bias=parts["bias"]))
        prepare(Tokens(torch.tensor([K, 5])), [Received(), Entropy()]).run(layer)


def test_our_layer_and_its_caches(fresh):
    host = mh.MultiHeadAttention(WIDTH, H, rope=Rope(), batch_first=True).eval()
    device, x = copy.deepcopy(host).to("cuda"), torch.randn(B, Q, WIDTH, generator=fresh)
    refuses(ShapeError, r"query is on cuda:0 and the layer on cpu: move one", host, x.to("cuda"))
    with pytest.raises(ShapeError, match=r"key is on cpu and the layer on cuda:0: move one"):
        mh.MultiHeadAttention(WIDTH, H).to("cuda")(x.to("cuda"), x)
    with pytest.raises(ShapeError, match=r"attn_mask is on cpu, but the layer and its input are on cuda:0: move it"):
        device(x.to("cuda"), attn_mask=torch.ones(Q, Q, dtype=torch.bool).tril())
    cache, cross = mh.KVCache(), mh.KVCache.cross()
    plain = mh.MultiHeadAttention(WIDTH, H, batch_first=True)
    with torch.no_grad():
        host(x, cache=cache)
        with pytest.raises(ShapeError, match=r"k is .* on cuda:0, but this cache holds .* on cpu: reset\(\) it"):
            host.to("cuda")(x.to("cuda"), cache=cache)
        plain(x, x, cache=cross)
        with pytest.raises(ShapeError, match=r"query is on cuda:0, but this cross cache holds keys on cpu: reset\(\)"):
            plain.to("cuda")(x.to("cuda"), cache=cross)


def test_inputs_on_another_device_than_the_model(fresh):
    model, ids = tiny_llama(seed=draw(fresh)), torch.randint(5, VOCAB_SIZE, (B, Q), generator=fresh)
    for call in (mh.record_call, measure_call):
        with pytest.raises(ModelError, match=r"LlamaForCausalLM takes its inputs on cpu, and some .*ids.to\('cpu'\)"):
            call(model, input_ids=ids.to("cuda"))
    model.to("cuda")
    refuses(ModelError, r"takes its inputs on cuda:0, and some are on another device", mh.record_call, model, ids)
    layer, x = nn.MultiheadAttention(WIDTH, H, batch_first=True).eval(), torch.randn(B, Q, WIDTH, generator=fresh)
    refuses(ModelError, "MultiheadAttention takes its inputs on cpu", mh.record_call, layer, x, x.to("cuda"), x)


# ============================================================================================= how often the host waits
# How often the host waits for the device: a few times a layer, however long the text and however many tiles.

# A layer: what the guard saw, large scores or answers, value norms, tops.
WAITS = {"record": 2, "default": 2, "all": 5, "logits": 2}
ONCE = 12  # for a batch, whatever the number of layers: its inputs are sent, each of its masks is read
READ = {
    "record": lambda lm, text: mh.record(lm, text),
    "default": lambda lm, text: mh.measure(lm, text, sinks=Sinks(first=True)),
    "all": lambda lm, text: mh.measure(lm, text, "all", sinks=Sinks(first=True)),
    "logits": lambda lm, text: mh.measure(lm, text, "max_logit"),
}


def waits_of(what, name, num_layers, seed, length):
    config = {"n_layer": num_layers, "n_positions": 128} if name == "gpt2" else {"num_hidden_layers": num_layers}
    config |= {} if name == "gpt2" else {"max_position_embeddings": 128}
    model = MAKERS[name](seed=seed, **config).to("cuda")
    lm = mh.load(model, tokenizer=tiny_tokenizer(special_tokens=False))
    assert len(lm.spec.sites) == num_layers  # found out by a forward pass of its own, once for each model
    text = " ".join(WORDS[index * 7 % len(WORDS)] for index in range(length))
    with counted_waits() as waits:
        READ[what](lm, text)
    return waits


@pytest.mark.slow
@pytest.mark.parametrize("what", each(WAITS, "all"))
@pytest.mark.parametrize("name", each(["llama", "gpt2", "gemma2"], "gemma2"))
def test_the_host_waits_a_few_times_a_layer(name, what, fresh, monkeypatch):
    # Small tiles: 60 tokens are then ten of tiles a layer, and a wait in each of them would show.
    monkeypatch.setattr(one_pass, "ACCELERATOR_CELLS", 6 * 16 * 16)
    monkeypatch.setattr(one_pass, "ACCELERATOR_KEYS", 16)
    seed = draw(fresh)
    few, many = (waits_of(what, name, layers, seed, 60) for layers in (2, 4))
    a_layer = {place: (many[place] - few[place]) / 2 for place in many if many[place] > few[place]}
    assert sum(a_layer.values()) <= WAITS[what], a_layer
    assert few.total() <= ONCE + 2 * WAITS[what], few
