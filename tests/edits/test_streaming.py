"""A head that streams gives what it gives under a dense mask of the same keys, in every architecture and way in.

Oracle: a float64 copy of the model, run by its own eager attention, whose additive mask hides in the chosen heads the
keys between the text's first ones and the row's last ones. Nothing of ours is in it.
"""

import copy
import json
import sys
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from transformers import GptOssForCausalLM, OPTConfig, OPTForCausalLM, Qwen3Config, Qwen3ForCausalLM

import manyheads as mh
from manyheads.edits import edits
from manyheads.errors import PlanError
from manyheads.plan import Ablate, Plan, Scale
from tests.interventions.surgeries import assert_close, assert_matters, edited, output
from tests.models.eager import draw, padded
from tests.models.tiny import (
    VOCAB_SIZE,
    attend_by,
    tiny_bert,
    tiny_gemma2,
    tiny_gpt2,
    tiny_gpt_oss,
    tiny_llama,
    tiny_mistral,
    tiny_t5,
    tiny_tokenizer,
)
from tests.refusals import refuses

SINK, RECENT = 2, 3
LENGTHS = (23, 6, 4, 31)
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 6, "hidden_size": 48, "vocab_size": VOCAB_SIZE}


def sharp(model):
    """Queries and keys far apart, so that which keys are seen matters."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.mul_(20.0)
    return model.eval()


def seeded(seed, make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return sharp(make())


def tiny_qwen3(*, seed):
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    sizes = {"num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 44, "max_position_embeddings": 64}
    return seeded(seed, lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, **sizes, **ends)))


def tiny_opt(*, seed):
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 1}
    return seeded(seed, lambda: OPTForCausalLM(OPTConfig(**SIZES, ffn_dim=44, word_embed_proj_dim=48, **ends)))


MAKERS = {
    "llama": tiny_llama,  # GQA
    "mqa": lambda **how: tiny_llama(1, **how),
    "mistral": tiny_mistral,  # windows of 6
    "gemma2": tiny_gemma2,  # softcap, windows of 7
    "gpt_oss": tiny_gpt_oss,  # sinks, windows of 5
    "gpt2": tiny_gpt2,
    "qwen3": tiny_qwen3,  # norms on q and k
    "opt": tiny_opt,
    "t5": lambda **how: tiny_t5(num_decoder_layers=2, **how),  # a bias by distance, in the decoder beside an encoder
}
EAGER = ("gemma2", "gpt_oss")
STACK = {"t5": "decoder:"}
HEADS = {0: [1, 3], 1: [0, 2]}


def loaded(name, fresh, attention=None):
    model = MAKERS[name](seed=draw(fresh))
    if attention is not None:
        attend_by(model, attention)
    return mh.load(model, tokenizer=tiny_tokenizer(special_tokens=False))


def named(name, layers=HEADS):
    return ", ".join(f"{STACK.get(name, '')}L{layer}H{head}" for layer, heads in layers.items() for head in heads)


def hidden(begins, num_rows, num_keys, sink, recent):
    """[b, 1, q, k]: keys behind the first `sink` of a text and before a row's last `recent`, rows and keys aligned."""
    row, key = torch.arange(num_rows)[:, None] + num_keys - num_rows, torch.arange(num_keys)[None]
    return ((key >= begins[:, None, None] + sink) & (key <= row - recent))[:, None]


@contextmanager
def dense(lm, begins, sink=SINK, recent=RECENT, stack="", layers=HEADS):
    """A float64 copy of the model that reads whole texts under the mask, by its own eager attention."""
    model = copy.deepcopy(lm.model)
    model = model if isinstance(model, GptOssForCausalLM) else model.double()  # its experts multiply in float32 alone
    attend_by(model, "eager")
    chosen = {id(model.get_submodule(site.module)): layers[site.layer]
              for site in lm.spec.sites if site.stack == stack and site.layer in layers}  # fmt: skip
    module = sys.modules[type(model).__module__]
    original, seen = module.eager_attention_forward, set()

    def attend(attention, q, k, v, mask, *args, **kwargs):
        if id(attention) in chosen:
            seen.add(id(attention))
            far = torch.zeros(q.shape[0], q.shape[1], q.shape[2], k.shape[2], dtype=torch.bool)
            far[:, chosen[id(attention)]] = hidden(begins, q.shape[2], k.shape[2], sink, recent)
            lowest = torch.finfo(torch.float32).min / 2  # eager softmax is float32's: lower than that is -inf there
            mask = torch.where(far, lowest, mask[..., : k.shape[2]].clamp_min(lowest))
        return original(attention, q, k, v, mask, *args, **kwargs)

    module.eager_attention_forward = attend
    try:
        yield model
        assert seen == set(chosen)
    finally:
        module.eager_attention_forward = original


def some_inputs(name, fresh, side, lengths=LENGTHS):
    """A padded batch, and where its texts begin in the stack whose heads stream."""
    inputs = padded(fresh, lengths, VOCAB_SIZE, side)
    if name != "t5":
        return inputs, inputs["attention_mask"].argmax(1)
    return {"input_ids": torch.randint(5, VOCAB_SIZE, (3, 7), generator=fresh),
            "decoder_input_ids": torch.randint(5, VOCAB_SIZE, (3, 19), generator=fresh)}, torch.zeros(3)  # fmt: skip


def assert_streams(lm, name, inputs, begins, sink=SINK, recent=RECENT):
    with dense(lm, begins, sink, recent, STACK.get(name, "").rstrip(":")) as model:
        want = output(model, {**inputs, "use_cache": False})
    got = edited(lm, Ablate(named(name), kind="streaming", sink=sink, recent=recent), inputs)
    assert_close(got.double(), want.double())
    return want


# ------------------------------------------------------------------------------------------- texts that are read whole


@pytest.mark.thinned
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_streaming_head_is_the_models_own_attention_under_a_dense_mask(name, side, fresh):
    lm = loaded(name, fresh)
    inputs, begins = some_inputs(name, fresh, side)
    want = assert_streams(lm, name, inputs, begins)
    assert_matters(want.float(), output(lm.model, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("sink, recent", [(0, 1), (0, 4), (3, 1), (1, 2), (5, 9), (4, 60)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MAKERS)
def test_any_two_numbers_do_in_texts_of_any_length(name, attention, sink, recent, fresh, monkeypatch):
    """Blocks of rows shorter than a text, so that each has keys of its own."""
    monkeypatch.setattr(edits, "STREAMED_ROWS", 7)
    lm = loaded(name, fresh, "eager" if name in EAGER else attention)
    for lengths in ((1, 5, 2), (55, 17, 40), (13, 13, 13)):
        inputs, begins = some_inputs(name, fresh, "left", lengths)
        assert_streams(lm, name, inputs, begins, sink, recent)


def test_blocks_of_rows_are_joined_where_they_meet(fresh, monkeypatch):
    lm = loaded("llama", fresh)
    inputs, begins = some_inputs("llama", fresh, "left", (57, 31, 60))
    whole = assert_streams(lm, "llama", inputs, begins, 3, 9)
    monkeypatch.setattr(edits, "STREAMED_ROWS", 7)
    assert_close(assert_streams(lm, "llama", inputs, begins, 3, 9), whole, 1e-12)


def test_rows_that_lose_no_key_stay_as_they_are_and_a_plan_that_hides_none_says_so(fresh):
    lm = loaded("llama", fresh)
    inputs, _ = some_inputs("llama", fresh, "left", (23, 11))
    with mh.applied(lm, Ablate(named("llama"), kind="streaming")) as now:
        assert torch.equal(output(lm.model, inputs), output(lm.model, inputs))
    assert now.unchanged == ("ablate L0H1, L0H3, L1H0, L1H2 (streaming: first 128, last 256 keys)",)


# -------------------------------------------------------------------------------------------------- texts being written

WRITTEN = 9
PROMPTS = (4, 11)
GREEDY = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False, "pad_token_id": 0}
QUICK = [("llama", {}), ("gemma2", {}), ("gpt_oss", {})]
OTHERS = [("mqa", {}), ("mistral", {}), ("gpt2", {}), ("qwen3", {}), ("opt", {}), ("t5", {})]
OTHERS += [(name, {"cache_implementation": "static"}) for name in ("llama", "gemma2", "mistral")]
OTHERS += [(name, {"num_beams": 3}) for name in ("llama", "gemma2", "gpt2")]
SLOWLY = [pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS]


@pytest.mark.parametrize(("name", "options"), [*QUICK, *SLOWLY])
def test_what_is_written_token_by_token_is_what_the_dense_mask_writes(name, options, fresh):
    """With a cache, past every window; the other reads the whole text again for each token."""
    lm = loaded(name, fresh)
    inputs, begins = some_inputs(name, fresh, "left", PROMPTS)
    inputs.pop("decoder_input_ids", None)
    begins = torch.zeros(len(inputs["input_ids"])) if name == "t5" else begins
    own = {key: value for key, value in options.items() if key == "num_beams"}
    with dense(lm, begins.repeat_interleave(own.get("num_beams", 1)), stack=STACK.get(name, "").rstrip(":")) as model:
        want = model.generate(**inputs, **GREEDY, **own, use_cache=False)
    with mh.applied(lm, Ablate(named(name), kind="streaming", sink=SINK, recent=RECENT)) as now:
        got = lm.model.generate(**inputs, **GREEDY, **options)
    assert torch.equal(got, want)
    assert not now.unchanged or len(got.unique()) == 1  # of one token again and again, all keys say the same


def test_a_text_that_goes_on_behind_a_cache_streams_as_if_read_at_once(fresh):
    """A prompt in three pieces: rows count their keys by their place in the text, also in a window's short cache."""
    for name in ("llama", "gemma2"):
        lm = loaded(name, fresh)
        ids = torch.randint(5, VOCAB_SIZE, (2, 26), generator=fresh)
        plan, pieces, cache = Ablate(named(name), kind="streaming", sink=SINK, recent=RECENT), [], None
        with mh.applied(lm, plan), torch.no_grad():
            for piece in ids.split([9, 1, 16], 1):
                result = lm.model(input_ids=piece, past_key_values=cache, use_cache=True)
                cache = result.past_key_values
                pieces.append(result.logits)
        with dense(lm, torch.zeros(2)) as model:
            want = output(model, {"input_ids": ids, "use_cache": False})
        assert_close(torch.cat(pieces, 1).double(), want)


def test_a_text_whose_first_piece_is_padding_alone_begins_where_it_begins(fresh):
    """In a cache that keeps all, and in a window's short one."""
    for name in ("llama", "gemma2"):
        lm = loaded(name, fresh)
        inputs, begins = some_inputs(name, fresh, "left", (26, 5, 14))
        seen, pieces, begin, cache = inputs["attention_mask"], [], 0, None
        places = (seen.cumsum(-1) - 1).clamp_min(0)
        with mh.applied(lm, Ablate(named(name), kind="streaming", sink=SINK, recent=RECENT)), torch.no_grad():
            for size in (9, 1, 8, 8):
                rows = slice(begin, begin := begin + size)
                result = lm.model(
                    input_ids=inputs["input_ids"][:, rows], attention_mask=seen[:, :begin],
                    position_ids=places[:, rows], past_key_values=cache, use_cache=True,
                )  # fmt: skip
                cache = result.past_key_values
                pieces.append(result.logits)
        with dense(lm, begins, layers={**{2: []}, **HEADS} if name == "gemma2" else HEADS) as model, torch.no_grad():
            want = model(**inputs, position_ids=places, use_cache=False).logits
        assert_close(torch.cat(pieces, 1)[seen.bool()].double(), want[seen.bool()])


# ------------------------------------------------------------------------------------------------------- other ways in

B, H, G, Q, M = 2, 6, 3, 19, 30


def by_hand(q, k, v, bias=0.0, heads=(1, 4)):
    """Causal attention in float64, some heads under the dense mask; one text a row, nothing padded."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + bias
    seen = torch.ones(Q, Q, dtype=torch.bool).tril().expand(*scores.shape).clone()
    seen[:, list(heads)] &= ~hidden(torch.zeros(len(q)), Q, Q, SINK, RECENT)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


class Plain(nn.Module):
    """Projections around torch's function, with slopes as ALiBi has them, or a causal flag alone."""

    def __init__(self, slopes):
        super().__init__()
        self.qkv, self.proj = nn.Linear(M, 3 * M), nn.Linear(M, M)
        distance = (torch.arange(Q)[None] - torch.arange(Q)[:, None]).float()
        self.bias = 0.5 ** torch.arange(1.0, H + 1)[:, None, None] * distance if slopes else torch.zeros(H, Q, Q)
        self.slopes = slopes

    def heads(self, x):
        return rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=H)

    def forward(self, x):
        mask = self.bias.masked_fill(torch.ones(Q, Q).triu(1).bool(), -torch.inf)[None] if self.slopes else None
        out = F.scaled_dot_product_attention(*self.heads(x), attn_mask=mask, is_causal=mask is None)
        return self.proj(rearrange(out, "b h n f -> b n (h f)"))


def normal(fresh, *shape):
    return torch.randn(*shape, generator=fresh)


def assert_same_layer(layer, x, got, heads, out_proj, fresh, bias=0.0):
    out = by_hand(*heads, bias)
    want = F.linear(rearrange(out, "b h q f -> b q (h f)"), out_proj.weight.double(), out_proj.bias.double())
    assert_close(got.detach().double(), want.detach())


STEP = Ablate("L0H1, L0H4", kind="streaming", sink=SINK, recent=RECENT)


@pytest.mark.parametrize("slopes", [False, True])
def test_torchs_function_called_by_a_plain_module_streams_also_with_slopes(slopes, fresh):
    layer, x = Plain(slopes).eval(), 3 * normal(fresh, B, Q, M)
    with mh.applied(layer, STEP), torch.no_grad():
        got = layer(x)
    assert_same_layer(layer, x, got, layer.heads(x), layer.proj, fresh, layer.bias)
    assert_matters(got, layer(x).detach())


def test_our_layer_streams_with_a_mask_for_each_head_too_and_gradients_flow(fresh):
    layer, x = mh.MultiHeadAttention(M, H, G, batch_first=True, causal=True).eval(), 3 * normal(fresh, B, Q, M)
    x.requires_grad_()
    calls = []
    with mh.tap(layer, on_call=calls.append), torch.no_grad():
        layer(x, need_weights=False)
    with mh.applied(layer, STEP):
        got = layer(x, need_weights=False)[0]
    assert_same_layer(layer, x, got, (calls[0].q, calls[0].k, calls[0].v), layer.out_proj, fresh)
    got.square().sum().backward()
    step, move = 1e-5, normal(fresh, B, Q, M)
    with mh.applied(layer, STEP), torch.no_grad():
        moved = [layer.double()(x.double() + sign * step * move.double(), need_weights=False)[0].square().sum()
                 for sign in (1, -1)]  # fmt: skip
    torch.testing.assert_close((x.grad * move).sum().double(), (moved[0] - moved[1]) / (2 * step), rtol=1e-3, atol=1e-3)
    layer.float()
    holes = torch.rand(B, H, Q, Q, generator=fresh) < 0.3
    holes.diagonal(0, 2, 3)[:] = False
    with mh.applied(layer, STEP), torch.no_grad():
        got = layer(x, attn_mask=holes.flatten(0, 1), need_weights=False)[0]
    with torch.no_grad():
        bias = torch.zeros(holes.shape).masked_fill(holes, -torch.inf)
        assert_same_layer(layer, x, got, (calls[0].q, calls[0].k, calls[0].v), layer.out_proj, fresh, bias)


def test_torchs_own_layer_streams(fresh):
    layer, x = nn.MultiheadAttention(M, H, batch_first=True).eval(), 3 * normal(fresh, B, Q, M)
    mask = nn.Transformer.generate_square_subsequent_mask(Q)
    with mh.applied(layer, STEP), torch.no_grad():
        got = layer(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
    heads = rearrange(F.linear(x, layer.in_proj_weight, layer.in_proj_bias), "b n (t h d) -> t b h n d", t=3, h=H)
    assert_same_layer(layer, x, got, heads, layer.out_proj, fresh)


# ------------------------------------------------------------------------------------------- effects, plans, refusals


def test_effects_and_importance_stream_head_by_head_as_single_plans_do(fresh, tmp_path):
    lm = loaded("llama", fresh)
    texts = ["the cat sat on the table and the dog said why is the cat here", "a king found the old book near a river"]
    plans = [Plan(Ablate(f"L1H{head}", kind="streaming", sink=1, recent=2)) for head in (0, 3)]
    batch = lm.tokenizer(texts, padding=True, padding_side="left", return_tensors="pt", return_token_type_ids=False)
    with mh.applied(lm, plans):  # one plan for each sample
        together = output(lm.model, batch)
    single = [edited(lm, plan, {name: x[[text]] for name, x in batch.items()}) for text, plan in enumerate(plans)]
    assert_close(together, torch.cat(single))
    worth = mh.importance(lm, texts, kind="streaming")
    assert worth.values.shape == (18,) and (worth.values == 0).all()  # nothing is far in so short a text
    effect = mh.effect(lm, plans[0], texts, controls=2)
    assert abs(effect.per_text).max() > 1e-4 and len(effect.control) == 2  # two signs may cancel in the mean
    with mh.applied(lm, plans[0]) as now:
        now.save(tmp_path / "plan.json")
        assert_matters(output(lm.model, batch), output(loaded("llama", fresh).model, batch))
    step = json.loads((tmp_path / "plan.json").read_text())["steps"][0]
    assert step == {"step": "ablate", "heads": "L1H0", "kind": "streaming", "sink": 1, "recent": 2}
    with mh.applied(lm, tmp_path / "plan.json"):
        assert_close(output(lm.model, batch), edited(lm, plans[0], batch))


def test_a_later_step_acts_on_what_streams(fresh):
    lm = loaded("llama", fresh)
    inputs, _ = some_inputs("llama", fresh, "right", (23, 11))
    streams = Ablate("L1H0", kind="streaming", sink=SINK, recent=RECENT)
    both = edited(lm, Plan([Scale("L1H0", 3.0), streams, Scale("L1H0", 0.0)]), inputs)
    assert_close(both, edited(lm, Ablate("L1H0"), inputs))
    assert_close(edited(lm, Plan([Scale("L1H0", 3.0), streams]), inputs), edited(lm, streams, inputs))


@pytest.mark.parametrize(("make", "heads", "words"), [
    (tiny_bert, "L0H1", r"rows of L0 look ahead, and a streaming head keeps what came before"),
    (tiny_t5, "encoder:L1", "rows of encoder:L1 look ahead"),
    (tiny_t5, "cross:L0H0", "cross:L0 attends to another text, which has no last keys before a row"),
])  # fmt: skip
def test_what_cannot_stream_is_refused_before_anything_runs(make, heads, words, fresh):
    lm = mh.load(make(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    with pytest.raises(PlanError, match=words), mh.applied(lm, Ablate(heads, kind="streaming")):
        raise AssertionError("inside")


def test_what_looks_ahead_is_packed_or_cut_back_is_refused_when_it_comes(fresh):
    layer, x = mh.MultiHeadAttention(M, H, batch_first=True).eval(), normal(fresh, B, Q, M)
    with pytest.raises(PlanError, match="rows of L0 look ahead"), mh.applied(layer, STEP):
        layer(x, need_weights=False)
    lm = loaded("llama", fresh)
    ids, place = torch.randint(5, VOCAB_SIZE, (1, 17), generator=fresh), torch.cat([torch.arange(9), torch.arange(8)])
    with pytest.raises(PlanError, match=r"several texts are packed into one .* read the texts one by one, or padded"):
        edited(lm, STEP, {"input_ids": ids, "position_ids": place[None], "use_cache": False})
    lm = loaded("llama", fresh)
    ids = torch.tensor([[7, 8, 9, 10] * 6])
    options = {"max_new_tokens": 12, "do_sample": False, "prompt_lookup_num_tokens": 4, "pad_token_id": 0}
    options |= {"eos_token_id": 1, "min_new_tokens": 12}  # transformers 5.9 looks prompts up with an end alone
    words = r"L0: its cache holds \d+ tokens where \d+ were read: tokens were taken back"
    with mh.applied(lm, mh.Ablate("L0H1", kind="streaming", sink=1, recent=3)):
        refuses(PlanError, words, lm.model.generate, ids, attention_mask=torch.ones_like(ids), **options)
