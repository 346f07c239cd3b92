"""A converted model is saved as a stock one that loads and computes the same, with a table of before and after.

Oracles: a fresh process of stock transformers, two models run side by side, transformers' own loss.
"""

import copy
import json
import os
from functools import partial

import pytest
import torch
import transformers

import manyheads as mh
from manyheads.errors import ModelError, StatisticError, TextError
from manyheads.interventions import convert_to_gqa
from manyheads.interventions.convert import table as decodespeed
from manyheads.interventions.convert.convert import FAMILIES
from manyheads.interventions.save import save_converted as convertedfiles
from manyheads.interventions.save.fresh_process import Trial, fault_in, try_all
from manyheads.models import quietly
from tests.interventions.checkpoints import DECODER, SAME, enliven, fresh_mha
from tests.models.tiny import WORDS, tiny_llama, tiny_tokenizer

SAVED = ("qwen2", "phi3")  # biases; one matrix. The others of FAMILIES are saved in the slow test
TEXTS = [" ".join(WORDS[at : at + 13 + 2 * at % 9]) for at in range(5, 65, 12)]


@pytest.fixture
def made(fresh):
    """`made("llama")`: a fresh MHA of 6 heads, loaded. `made("llama", 12, 6)`: of 12 over 6."""
    return partial(fresh_mha, fresh)


@pytest.fixture
def reader(fresh):
    """A tiny MHA Llama that reads words."""
    return mh.load(tiny_llama(6, seed=int(torch.randint(1000, (1,), generator=fresh))), tokenizer=tiny_tokenizer())


# ------------------------------------------------------------------------------------------------ it is a stock model


def saved_and_tried(names, folders):
    """Model type -> where and as what it was saved, and what one fresh process, of stock transformers, found of it."""
    seed = int(os.environ.get("MANYHEADS_SEED") or torch.randint(2**31, ()))
    print(f"MANYHEADS_SEED={seed}")
    fresh, jobs, forms = torch.Generator().manual_seed(seed), [], []
    with quietly(), pytest.MonkeyPatch.context() as patch:
        fine = {"error": 0.0, "tokens": None, "wanted": None, "auto": True}
        patch.setattr(convertedfiles, "try_all", lambda trials: [fine for _ in trials])
        for name in names:
            small = convert_to_gqa(mh.load(family(name, fresh), tokenizer=False), 2)
            forms.append(small.save(folders.mktemp("saved")))
            jobs.append(Trial(forms[-1].folder, small.model))
        return dict(zip(names, zip(forms, try_all(jobs), strict=True), strict=True))


def family(name, fresh):
    """A tiny MHA of a model type, fresh and lively."""
    few = {"num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
    few |= {"sliding_window": 5, "mask_token_id": 1, "hidden_act": "silu", "num_key_value_heads": 6, "head_dim": 8}
    config = transformers.AutoConfig.for_model(name, **{**DECODER, **few})
    config._attn_implementation = "eager"
    auto = transformers.AutoModel if name == "eurobert" else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=fresh)))
        model = auto.from_config(config).eval()
        enliven(model)
    return model


def assert_saved(saved, result):
    assert fault_in(result) == "" and result["error"] <= SAME
    assert result["class"] == saved.loads_as and saved.form == "stock"
    assert json.loads((saved.folder / "config.json").read_text())["num_key_value_heads"] == 2


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    return saved_and_tried(SAVED, tmp_path_factory)


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_model_is_equal_in_a_fresh_process_of_stock_transformers(name, tried):
    assert_saved(*tried[name])


@pytest.mark.slow
def test_every_family_that_errors_name_is_converted_saved_and_equal_in_a_fresh_process(tmp_path_factory):
    tried = saved_and_tried(FAMILIES, tmp_path_factory)
    assert set(tried) == set(FAMILIES) > set(SAVED)
    for found in tried.values():
        assert_saved(*found)


def test_what_is_saved_says_what_was_done_and_loads_with_its_tokenizer(reader, tmp_path, monkeypatch):
    fine = {"error": 3e-8, "tokens": None, "wanted": None, "auto": True}
    monkeypatch.setattr(convertedfiles, "try_all", lambda trials: [fine for _ in trials])
    small = convert_to_gqa(reader, 3, texts=TEXTS)
    saved = small.save(tmp_path / "out")
    assert (saved.form, saved.loads_as, saved.error, saved.zeroed) == ("stock", "LlamaForCausalLM", 3e-8, None)
    back = mh.load(saved.folder)
    assert back.weights_hash == small.weights_hash and back.spec.sites == small.spec.sites
    assert back.tokenizer("the cat").input_ids == reader.tokenizer("the cat").input_ids
    said = json.loads((saved.folder / "manyheads.json").read_text())
    assert said["num_kv_heads"] == [6, 3] and said["from"]["weights_hash"] == reader.weights_hash
    assert said["permutation"] == {str(layer): list(order) for layer, order in small.permutation.items()}
    card = (saved.folder / "README.md").read_text()
    for part in ("6 key/value heads merged into 3", "**Measured at conversion**", str(small.table), "| L2 | "):
        assert part in card, part


def test_a_model_that_was_trained_on_is_saved_as_it_is_and_not_called_untrained(reader, tmp_path, monkeypatch):
    fine = {"error": 3e-8, "tokens": None, "wanted": None, "auto": True}
    monkeypatch.setattr(convertedfiles, "try_all", lambda trials: [fine for _ in trials])
    small = convert_to_gqa(reader, 3, texts=TEXTS)
    untrained = copy.deepcopy(small.model.state_dict())
    ids = torch.tensor([reader.tokenizer(TEXTS[0]).input_ids])
    small.model(ids, labels=ids).loss.backward()
    torch.optim.SGD(small.model.parameters(), lr=0.5).step()
    monkeypatch.setenv("HOME", str(tmp_path))
    saved = small.save("~/out")
    assert saved.folder == tmp_path / "out"
    back = mh.load(saved.folder).model.state_dict()
    for name, weight in small.model.state_dict().items():
        assert torch.equal(back[name], weight), name
    assert any(not torch.equal(back[name], weight) for name, weight in untrained.items())
    card = (saved.folder / "README.md").read_text()
    assert "**Measured at conversion**, before any training on" in card and "Relative error, at conversion, of" in card
    assert "Not trained" not in card and "before uptraining" not in small.because


def test_a_checkpoint_that_does_not_pass_its_trial_is_not_left_behind(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(convertedfiles, "try_all", lambda trials: [{"error": 0.2}])
    with pytest.raises(ModelError, match="was not saved: as LlamaForCausalLM, its outputs differ by 2.0e-01"):
        convert_to_gqa(reader, 3).save(tmp_path / "out")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------- before and after


def attention_output(model, layer, text_ids):
    seen = {}
    module = model.model.layers[layer].self_attn
    handle = module.register_forward_hook(lambda _, args, output: seen.update(out=output[0]))
    with torch.no_grad():
        model(text_ids, use_cache=False)
    handle.remove()
    return seen["out"]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_layers_error_is_its_own_on_real_tokens_alone(layer, reader):
    small = convert_to_gqa(reader, 2, texts=TEXTS)
    mixed = copy.deepcopy(reader.model)
    mixed.model.layers[layer].self_attn = small.model.model.layers[layer].self_attn
    wrong = whole = 0.0
    for text in TEXTS:
        ids = torch.tensor([reader.tokenizer(text).input_ids])
        want, got = (attention_output(model, layer, ids) for model in (reader.model, mixed))
        wrong, whole = wrong + float((got - want).square().sum()), whole + float(want.square().sum())
    assert small.error_by_layer[layer] == pytest.approx((wrong / whole) ** 0.5, rel=1e-3)
    assert "each layer's attention puts out on these texts" in small.error_because


def test_without_texts_errors_are_of_weights_and_the_table_says_what_is_missing(made):
    lm = made("qwen2")
    small = convert_to_gqa(lm, 2)
    for layer, groups in small.groups.items():
        shares = []
        for name in ("k_proj", "v_proj"):
            linear = getattr(lm.model.model.layers[layer].self_attn, name)
            old = torch.cat([linear.weight, linear.bias[:, None]], 1).detach().view(6, -1)
            new = torch.empty_like(old)
            for group in groups:
                new[list(group)] = old[list(group)].mean(0)
            shares.append(float((new - old).square().sum() / old.square().sum()))
        assert small.error_by_layer[layer] == pytest.approx((sum(shares) / 2) ** 0.5, rel=1e-4)
    assert "the key and value weights" in small.error_because
    assert [row.what for row in small.table.rows] == ["parameters", "KV cache of 80 tokens"]
    assert "not measured, since no texts were given" in str(small.table)


def test_the_table_holds_loss_cache_and_speed_before_and_after(reader):
    small = convert_to_gqa(reader, 2, texts=TEXTS)
    rows = {row.what: row for row in small.table.rows}
    losses = {"before": [], "after": []}
    for side, lm in (("before", reader), ("after", small)):
        for text in TEXTS:
            ids = torch.tensor([reader.tokenizer(text).input_ids])
            with torch.no_grad():
                losses[side].append(float(lm.model(ids, labels=ids).loss))
        assert getattr(rows["loss"], side) == pytest.approx(sum(losses[side]) / len(TEXTS), rel=1e-5)
    assert rows["loss"].before != rows["loss"].after
    per_token = 3 * 2 * 8 * 4  # layers, k and v, width, bytes
    cache = rows["KV cache of 80 tokens"]
    assert (cache.before, cache.after) == (80 * 6 * per_token, 80 * 2 * per_token)
    assert rows["parameters"].before - rows["parameters"].after == 3 * 2 * 4 * 8 * 48
    assert rows["decoding"].before > 0 < rows["decoding"].after
    printed = str(small.table)
    assert (
        "after, before uptraining" in printed.splitlines()[0] and "-66.7 %" in printed and "tokens a second" in printed
    )
    assert small.table.to_dict()["rows"][0] == vars(rows["loss"]) and json.dumps(small.table.to_dict())


def test_quality_is_what_was_asked_for(reader):
    rows = [convert_to_gqa(reader, 1, texts=TEXTS, metric=metric).table.rows[0] for metric in ("kl", "cosine")]
    assert [(row.what, row.before) for row in rows] == [("kl", 0.0), ("cosine", 0.0)] and min(
        row.after for row in rows
    ) > 0
    own = convert_to_gqa(reader, 1, texts=TEXTS, metric=lambda outputs, inputs: outputs.logits[:, 0, 0]).table.rows[0]
    assert own.before != own.after
    with pytest.raises(StatisticError, match="metric='nonsense' is unknown"):
        convert_to_gqa(reader, 1, texts=TEXTS, metric="nonsense")
    with pytest.raises(TextError, match="text 1 is empty"):
        convert_to_gqa(reader, 1, texts=["the cat", ""])


def test_decoding_is_timed_with_a_cache_and_only_where_there_is_room(reader, monkeypatch):
    asked = []
    forward = reader.model.forward
    monkeypatch.setattr(
        reader.model, "forward", lambda *args, **kwargs: asked.append(kwargs) or forward(*args, **kwargs)
    )
    decodespeed._seconds(reader.model, torch.tensor([[5, 6, 7]]))
    assert [one["input_ids"].shape[1] for one in asked] == [3] + [1] * decodespeed.STEPS
    assert all(one["past_key_values"].get_seq_length() == 3 + decodespeed.STEPS for one in asked[1:])
    monkeypatch.setattr(type(reader), "max_positions", decodespeed.STEPS)
    small = convert_to_gqa(reader, 2, texts=[" ".join(WORDS[:9])])
    assert "decode speed: not measured, since no text leaves room" in str(small.table)
    assert "decoding" not in [row.what for row in small.table.rows]
