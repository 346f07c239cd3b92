"""Rows sum to the model's own logit, and each is what plain torch makes of the model's own tensors by hand.

The oracle keeps what the model's modules read and gave (plain hooks), takes a head's slice of the output projection,
and carries it by hand through the norms on the way, with the mean and the deviation that they had in that run.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import manyheads as mh
from manyheads.circuits import logit_attribution
from manyheads.errors import FileAccessError, HeadError, ModelError, StatisticError, TextError
from manyheads.lab import design
from tests.interventions.checkpoints import COMPACT, STOCK
from tests.models.tiny import VOCAB_SIZE, WORDS, tiny_tokenizer

TEXTS = ["the old cat sat on the table", "why is the dog here ? the cat said no", "a dog"]
FAMILIES = {**STOCK, **{name: family for name, family in COMPACT.items() if name not in STOCK}}
WITH_LOGITS = [
    "gpt2", "llama", "qwen3", "gemma2", "gpt_oss", "bert", "opt", "gpt_neox", "cohere", "granite", "starcoder2", "phi",
    "gpt_bigcode", "t5", "bart",
]  # fmt: skip
ANSWER, OTHER = 7, 31


def loaded(name, fresh, dtype=torch.float64, **changes):
    family = FAMILIES[name]
    model = replace(family, changes={**family.changes, "vocab_size": VOCAB_SIZE, **changes}).make(fresh)
    if name == "gpt_oss":  # torch's product for experts has no float64
        model.set_experts_implementation("eager")
    return mh.load(model.to(dtype), tokenizer=tiny_tokenizer())


@contextmanager
def seen(model, *paths):
    """Path -> what the module read and gave, of its last call."""
    kept = {}

    def keep(path):
        def hook(module, args, kwargs, output):
            given = args[0] if args else kwargs["hidden_states"]
            kept[path] = given, output[0] if isinstance(output, tuple) else output

        return hook

    with ExitStack() as stack:
        for path in paths:
            handle = model.get_submodule(path).register_forward_hook(keep(path), with_kwargs=True)
            stack.callback(handle.remove)
        yield kept


def read(lm, text, *paths):
    ids = lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    with seen(lm.model, *paths) as kept, torch.no_grad():
        return lm.model(**ids).logits[0], kept


def held_norm(norm, x, row):
    """What a LayerNorm makes of a part of its input, its deviation held."""
    return (row - row.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + norm.eps).sqrt() * norm.weight


# ------------------------------------------------------------------------------------------------- rows and their sum


@pytest.mark.parametrize("name", WITH_LOGITS)
def test_rows_add_up_to_the_models_own_logit(name, fresh):
    lm = loaded(name, fresh)
    result = logit_attribution(lm, TEXTS[:2], [ANSWER, (OTHER, ANSWER)], position=[3, -2])
    assert result.error <= 1e-10
    decoder = {} if name not in ("t5", "bart") else {"decoder_input_ids": None}
    for index, text in enumerate(TEXTS[:2]):
        ids = lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        if decoder:
            ids["decoder_input_ids"] = torch.cat([torch.tensor([[1]]), ids["input_ids"][:, :-1]], 1)
        with torch.no_grad():
            logits = lm.model(**ids).logits[0, [3, -2][index]]
        own = logits[ANSWER] if not index else logits[OTHER] - logits[ANSWER]
        # Padding may move the model's own numbers in the last digits; eager half of gemma2 computes in float32.
        assert result.capped[index] == pytest.approx(float(own), abs=1e-5)
        if name != "gemma2":
            assert result.logit[index] == result.capped[index]
        else:
            assert result.logit[index] != result.capped[index] and "before the model's cap of 30" in result.notes["sum"]
    assert sum(kind == "head" for kind in result.kinds) == len(result.heads) > 0
    assert len(set(result.components)) == len(result.components)


def test_what_a_norm_rounds_near_its_mean_is_a_row_of_its_own(fresh):
    """Cohere's norm computes in float32: a number that lies at the row's mean has no slope."""
    lm = loaded("cohere", fresh)
    norm = lm.model.model.norm
    with torch.no_grad():
        norm.weight[3] = 50.0
    handle = norm.register_forward_pre_hook(lambda m, a: (at_its_mean(a[0]),))
    try:
        result = logit_attribution(lm, TEXTS[0], ANSWER)
    finally:
        handle.remove()
    assert result.error <= 1e-10 and 0 < abs(result["norm rounding"]) < 1e-4


def at_its_mean(x):
    """x, with 1e-4 of its fourth number left above the mean of all: by a linear step, as it must be."""
    mean = x.detach().mean(-1, keepdim=True)
    step = torch.zeros_like(x)
    step[..., 3:4] = (mean - x.detach()[..., 3:4]) / x.detach()[..., 3:4] * x.shape[-1] / (x.shape[-1] - 1) * (1 - 1e-6)
    return x + step * x


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "bert", "cohere"])
def test_float32_sums_to_a_ten_thousandth(name, fresh):
    result = logit_attribution(loaded(name, fresh, torch.float32), TEXTS, ANSWER)
    assert 0 < result.error <= 1e-4


def test_capped_logits_are_the_cap_of_the_sum(fresh):
    lm = loaded("gemma2", fresh, final_logit_softcapping=3.5)
    result = logit_attribution(lm, TEXTS, ANSWER)
    assert np.abs(result.capped).max() < 3.5 < np.abs(result.total).max() or np.abs(result.total).max() > 0
    np.testing.assert_allclose(3.5 * np.tanh(result.total / 3.5), result.capped, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "output", "final", "head"),
    [
        ("gpt2", "transformer.h.{}.attn.c_proj", "transformer.ln_f", "lm_head"),
        ("opt", "model.decoder.layers.{}.self_attn.out_proj", "model.decoder.final_layer_norm", "lm_head"),
    ],
)
@torch.no_grad()
def test_every_row_of_a_pre_norm_model_is_the_projection_by_hand(name, output, final, head, fresh):
    lm = loaded(name, fresh)
    model, site = lm.model, lm.spec.sites[1]
    paths = [output.format(layer) for layer in (0, 1)]
    at = 4
    _, kept = read(lm, TEXTS[0], *paths, final)
    result = logit_attribution(lm, TEXTS[0], (ANSWER, OTHER), position=at)
    norm = model.get_submodule(final)
    unembed = model.get_submodule(head).weight
    direction = unembed[ANSWER] - unembed[OTHER]
    x = kept[final][0][0, at]
    for layer, path in enumerate(paths):
        module, (out, _) = model.get_submodule(path), kept[path]
        weight = module.weight if name == "gpt2" else module.weight.T
        for h in range(site.num_heads):
            of_head = slice(h * site.v_dim, (h + 1) * site.v_dim)
            added = out.reshape(*out.shape[-2:])[at, of_head] @ weight[of_head]
            expected = held_norm(norm, x, added) @ direction
            assert result[f"L{layer}H{h}"] == pytest.approx(float(expected), abs=1e-10)
        expected = held_norm(norm, x, module.bias) @ direction
        assert result[f"L{layer} output bias"] == pytest.approx(float(expected), abs=1e-10)
    assert result[f"{final} bias"] == pytest.approx(float(norm.bias @ direction), abs=1e-10)


@torch.no_grad()
def test_a_head_of_a_post_norm_model_passes_every_later_norm_as_it_acted(fresh):
    lm = loaded("bert", fresh)
    model, at, num_heads, width = lm.model, 2, 5, 8
    blocks = [f"bert.encoder.layer.{layer}" for layer in (0, 1)]
    norms = [f"{block}.{part}.LayerNorm" for block in blocks for part in ("attention.output", "output")]
    outputs = [f"{block}.attention.output.dense" for block in blocks]
    transform = "cls.predictions.transform"
    inside = [f"{transform}.{part}" for part in ("dense", "LayerNorm", "transform_act_fn")]
    _, kept = read(lm, TEXTS[0], *norms, *outputs, *inside)
    result = logit_attribution(lm, TEXTS[0], (ANSWER, OTHER), position=at)
    part = model.get_submodule
    x, y = (t[0, at] for t in kept[inside[2]])
    for layer in (0, 1):
        weight, out = part(outputs[layer]).weight.T, kept[outputs[layer]][0]
        for h in range(num_heads):
            of_head = slice(h * width, (h + 1) * width)
            row = out[0, at, of_head] @ weight[of_head]
            for path in norms[2 * layer :]:
                row = held_norm(part(path), kept[path][0][0, at], row)
            row = row @ part(inside[0]).weight.T * (y / x)
            row = held_norm(part(inside[1]), kept[inside[1]][0][0, at], row)
            unembed = part("cls.predictions.decoder").weight
            assert result[f"L{layer}H{h}"] == pytest.approx(float(row @ (unembed[ANSWER] - unembed[OTHER])), abs=1e-10)


@torch.no_grad()
def test_the_norm_after_a_branch_acts_on_the_head(fresh):
    lm = loaded("gemma2", fresh)
    paths = ["model.layers.1.self_attn.o_proj", "model.layers.1.post_attention_layernorm", "model.norm"]
    _, kept = read(lm, TEXTS[0], *paths)
    result = logit_attribution(lm, TEXTS[0], ANSWER, position=5)
    out, unembed = kept[paths[0]][0][0, 5], lm.model.lm_head.weight[ANSWER]
    for h in range(6):
        of_head = slice(10 * h, 10 * h + 10)
        row = out[of_head] @ lm.model.get_submodule(paths[0]).weight.T[of_head]
        for path in paths[1:]:
            norm, x = lm.model.get_submodule(path), kept[path][0][0, 5]
            row = row / (x.square().mean() + norm.eps).sqrt() * (1 + norm.weight)
        assert result[f"L1H{h}"] == pytest.approx(float(row @ unembed), abs=1e-6)  # the norms compute in float32


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_oss"])
def test_a_row_splits_by_key_into_weight_times_value(name, fresh):
    lm = loaded(name, fresh)
    lm.model.set_attn_implementation("eager")
    layer, h = 1, 3
    ids = lm.tokenizer(TEXTS[1], return_tensors="pt", return_token_type_ids=False)
    at = ids["input_ids"].shape[1] - 2
    base = {"gpt2": "transformer.h.1.attn", "llama": "model.layers.1.self_attn"}.get(name, "model.layers.1.self_attn")
    values = f"{base}.c_attn" if name == "gpt2" else f"{base}.v_proj"
    for sink in (4.0, 8.0, 16.0, 32.0):  # large enough beside the scores to take a share of this row
        for path, weight in lm.model.named_parameters():
            if path.endswith("sinks"):
                torch.nn.init.constant_(weight, sink)
        with seen(lm.model, values) as kept, torch.no_grad():
            weights = lm.model(**ids, output_attentions=True).attentions[layer][0, h, at]
        if name != "gpt_oss" or weights.sum() < 0.99:
            break
    site = lm.spec.sites[1]
    v = kept[values][1][0]
    v = v[:, 2 * 36 :] if name == "gpt2" else v
    v = v.reshape(len(v), site.num_kv_heads, site.v_dim)[:, site.kv_head_of(h)]
    result = logit_attribution(lm, [TEXTS[2], TEXTS[1]], [OTHER, ANSWER], position=[0, at])
    shares = result.by_key(f"L1H{h}", text=1)
    assert [share.token for share in shares] == lm.tokenizer.convert_ids_to_tokens(ids["input_ids"][0])
    np.testing.assert_allclose([s.weight for s in shares], weights[: len(shares)].numpy(), atol=1e-6)
    row = result.per_text[1][result.components.index(f"L1H{h}")]
    assert sum(share.value for share in shares) == pytest.approx(row, abs=1e-6)
    # What a key adds is weight (v_k . u) with one vector u for all keys, of which there are more than v has numbers.
    parts, rows = np.array([share.value for share in shares[: at + 1]]), (weights[: at + 1, None] * v[: at + 1]).numpy()
    assert len(rows) > rows.shape[1]
    u, *_ = np.linalg.lstsq(rows, parts, rcond=None)
    np.testing.assert_allclose(rows @ u, parts, atol=1e-6)
    if name == "gpt_oss":
        assert sum(share.weight for share in shares) < 0.999  # the sink's share is missing, and adds nothing
    assert all(share.weight == share.value == 0 for share in shares[at + 1 :])


def test_texts_read_together_have_the_rows_that_they_have_alone(fresh):
    lm = loaded("opt", fresh)
    together = logit_attribution(lm, TEXTS, [3, (4, 5), 6], position=[1, -3, 2])
    for index, (answer, place) in enumerate(zip([3, (4, 5), 6], [1, -3, 2], strict=True)):
        alone = logit_attribution(lm, TEXTS[index], answer, position=place)
        np.testing.assert_allclose(together.per_text[index], alone.per_text[0], atol=1e-10)
        assert together.positions[index] == alone.positions[0] and together.tokens[index] == alone.tokens[0]


def test_layers_that_share_their_weights_have_rows_of_their_own(fresh):
    lm = mh.load(albert(fresh), tokenizer=tiny_tokenizer())
    result = logit_attribution(lm, TEXTS, ANSWER)
    assert result.error <= 1e-4
    assert {"L0 feed-forward", "L0 feed-forward #2", "L0H2", "L1H2"} <= set(result.components)


def albert(fresh):
    import transformers

    sizes = {"num_hidden_layers": 2, "num_attention_heads": 5, "hidden_size": 40, "intermediate_size": 56}
    config = transformers.AlbertConfig(**sizes, vocab_size=VOCAB_SIZE, embedding_size=24, max_position_embeddings=64)
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=fresh)))
    return transformers.AlbertForMaskedLM(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    "cls", ["Olmo2", "Gemma3", "Mixtral", "Qwen3Moe", "StableLm", "Nemotron", "Falcon", "Helium", "Glm4", "GraniteMoe"]
)
def test_more_architectures_add_up(cls, fresh):
    import transformers

    sizes = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 48, "intermediate_size": 68, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 80, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": 0, "num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
    }  # fmt: skip
    model = getattr(transformers, f"{cls}ForCausalLM")
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=fresh)))
    sizes |= {} if cls in ("GraniteMoe", "Falcon") else {"head_dim": 8}
    lm = mh.load(model(model.config_class(**sizes)).eval(), tokenizer=tiny_tokenizer())
    result = logit_attribution(lm, TEXTS, (ANSWER, OTHER))
    assert result.error <= 1e-4 and len(result.heads) == 18


def test_designed_heads_have_rows(fresh):
    lm = design.build([[design.previous(), None], [None, design.induction()]], causal=True)
    result = logit_attribution(lm, "one two three four one two three", (" four", " one"), position=-2)
    assert result.error <= 1e-4 and result.ranking()[0] == mh.Head("", 1, 1) and result["L1H1"] > 5
    best = max(result.by_key("L1H1"), key=lambda share: share.value)
    assert (best.token, best.position) == ("four", 4) and best.weight > 0.9


def test_the_model_is_left_as_it_was(fresh):
    lm = loaded("llama", fresh)
    ids = torch.arange(5)[None]
    with torch.no_grad():
        before = lm.model(ids).logits
    logit_attribution(lm, TEXTS, ANSWER)
    with pytest.raises(TextError):
        logit_attribution(lm, TEXTS, ANSWER, position=99)
    assert torch.is_grad_enabled()
    hooks = [m for m in lm.model.modules() if m._forward_hooks or len(m._forward_pre_hooks) > (m is lm.model)]
    assert len([m for m in hooks if m._forward_hooks]) == 0
    assert all(parameter.grad is None for parameter in lm.model.parameters())
    with torch.no_grad():
        assert torch.equal(lm.model(ids).logits, before)


# ------------------------------------------------------------------------------------------------------------- results


def test_a_table_has_a_row_for_each_component(fresh, tmp_path):
    lm = loaded("gpt2", fresh)
    result = logit_attribution(lm, [*TEXTS, "the cat", "here is a table", "a dog sat"], "cat")
    frame = result.to_pandas()
    assert list(frame["component"]) == list(result.components) and frame["value"].sum() == pytest.approx(
        result.total.mean()
    )
    assert frame.loc[frame["kind"] == "head", "layer"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    known = frame.dropna(subset=["low"])
    assert len(known) > 8 and known["value"].between(known["low"], known["high"]).all()
    values = [result[head] for head in result.ranking()]
    assert values == sorted(values, reverse=True) and len(values) == 8
    assert result.answers == ("'cat'",) * 6 and "logit of 'cat'" in str(result)
    result.save(tmp_path / "rows.csv")
    assert pd.read_csv(tmp_path / "rows.csv")["value"].tolist() == pytest.approx(frame["value"].tolist())
    with pytest.raises(FileAccessError, match="end it in"):
        result.save(tmp_path / "rows.txt")
    data = result.to_dict()
    assert data["error"] == result.error and len(data["components"]) == len(result.components)
    assert "L1H3" in result._repr_html_()


def test_parts_by_key_are_kept_unless_they_are_not_wanted(fresh):
    lm = loaded("gpt2", fresh)
    result = logit_attribution(lm, TEXTS[0], ANSWER, keys=False)
    with pytest.raises(StatisticError, match="keys were not kept: call .*keys=True"):
        result.by_key("L0H0")
    result = logit_attribution(lm, TEXTS[0], ANSWER)
    with pytest.raises(StatisticError, match="text=4: there are 1 texts"):
        result.by_key("L0H0", text=4)
    with pytest.raises(HeadError, match="'L5H0' has no row: there are 8 heads, L0H0 to L1H3"):
        result["L5H0"]


# -------------------------------------------------------------------------------------------------------------- errors


def test_an_answer_is_one_token(fresh):
    lm = loaded("gpt2", fresh)
    word = WORDS[9]
    with pytest.raises(
        TextError, match=rf"the answer '{word} cat' has 2 tokens .* and a logit is of one.*first_token=True"
    ):
        logit_attribution(lm, TEXTS[0], f"{word} cat")
    with pytest.raises(TextError, match=r"a word of one token, or first_token=True"):  # the blank is there already
        logit_attribution(lm, TEXTS[0], f" {word} cat")
    first = logit_attribution(lm, TEXTS[0], f"{word} cat", first_token=True)
    np.testing.assert_array_equal(first.per_text, logit_attribution(lm, TEXTS[0], word).per_text)


@pytest.mark.parametrize(
    ("answers", "options", "message"),
    [
        ([1, 2], {}, "2 answers were given for 3 texts"),
        (VOCAB_SIZE, {}, rf"answer {VOCAB_SIZE} is not a token: ids are 0 to {VOCAB_SIZE - 1}"),
        ((1, 2, 3), {}, r"answer \(1, 2, 3\) has 3 parts, but a pair has two"),
        ("", {}, "makes no token of the answer ''"),
        (1, {"position": 9}, r"position 9 is not in a text of \d tokens: give 0 to"),
        (1, {"position": [0, 1]}, r"position=\[0, 1\]: give one whole number for all texts, or one for each of the 3"),
    ],
)
def test_answers_and_positions_that_cannot_be(answers, options, message, fresh):
    lm = loaded("gpt2", fresh)
    with pytest.raises(TextError, match=message):
        logit_attribution(lm, TEXTS, answers, **options)


def test_a_model_without_logits_is_refused(minilm):
    with pytest.raises(ModelError, match=r"minilm \(BertModel\) gives no logits.*load a model that predicts tokens"):
        logit_attribution(minilm, "one text", 5)
    with pytest.raises(ModelError, match="a str is not a loaded model: load it first"):
        logit_attribution("minilm", "one text", 5)


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        (
            "transformer.drop",
            lambda x: x + torch.arange(36) / 9,
            "the rows add up to .* something that is not known here enters its residual stream",
        ),
        ("transformer.drop", lambda x: x.sin(), r"a step that is not linear \(SinBackward0\)"),
        ("transformer.drop", lambda x: x * x, r"a step that is not linear \(MulBackward0\)"),
        ("transformer.ln_f", lambda x: x**3, r"transformer.ln_f \(LayerNorm\) is not a norm that is known"),
        ("lm_head", lambda x: x**3, "the step after the unembedding is neither a factor nor a cap"),
    ],
)
def test_what_is_not_known_is_refused_by_name(path, change, message, fresh):
    lm = loaded("gpt2", fresh)
    assert lm.spec
    handle = lm.model.get_submodule(path).register_forward_hook(lambda module, args, output: change(output))
    if path == "lm_head":  # it would act on what is computed again, too
        handle.remove()
        handle = lm.model.register_forward_hook(lambda m, a, output: setattr(output, "logits", change(output.logits)))
    try:
        with pytest.raises(ModelError, match=message):
            logit_attribution(lm, TEXTS, ANSWER)
    finally:
        handle.remove()


def test_a_gate_after_the_heads_leaves_rows_and_takes_keys_away(fresh):
    lm = loaded("llama", fresh)
    gate = torch.rand(48, generator=fresh, dtype=torch.float64)
    module = lm.model.model.layers[1].self_attn.o_proj
    handle = module.register_forward_pre_hook(lambda module, args: (args[0] * gate,))
    try:
        result = logit_attribution(lm, TEXTS, ANSWER)
    finally:
        handle.remove()
    assert result.error <= 1e-10 and result.by_key("L0H1")
    with pytest.raises(
        ModelError,
        match=r"L1H1: something else \(a gate, a norm\) acts between its layer's heads and the output projection",
    ):
        result.by_key("L1H1")
