"""Heads of the real SmolLM2 ranked and removed: held to transformers alone, in a process without manyheads."""

import json
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

import manyheads as mh
from manyheads.interventions import costs_without, prune_heads

TEXT = "When Mary and John went to the store, John gave a drink to Mary, and she said thank you."
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
READER = """
import json, sys
folder, text, out = sys.argv[1:]
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
assert "manyheads" not in sys.modules
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
inputs = tokenizer(text, return_tensors="pt")
with torch.no_grad():
    logits = model.eval()(**inputs).logits
torch.save(logits, out)
sizes = [model.config.num_attention_heads, model.config.num_key_value_heads]
counts = [sum(p.numel() for p in model.parameters()), sizes, inputs["input_ids"][0].tolist(), type(model).__name__]
print(json.dumps(counts))
"""


def read_by_transformers(folder, tmp_path):
    """Logits of TEXT, parameters, heads, tokens and class, as a fresh process with transformers alone has them."""
    out = tmp_path / "logits.pt"
    ran = subprocess.run(
        [sys.executable, "-c", READER, str(folder), TEXT, str(out)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return torch.load(out), *json.loads(ran.stdout.splitlines()[-1])


def heads_silenced(model, ids, gone):
    """Logits where these heads, by layer, put nothing into the residual stream: hooks before the output projection."""

    def silence(heads):
        def hook(_, args):
            x = args[0].clone()
            for head in heads:
                x[..., 64 * head : 64 * (head + 1)] = 0
            return x

        return hook

    hooks = [
        model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(silence(heads))
        for layer, heads in gone.items()
    ]
    try:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits
    finally:
        for hook in hooks:
            hook.remove()


def test_270_heads_are_ranked_by_gradient_and_whole_groups_free_cache(smollm2):
    worth = mh.importance(smollm2, [TEXT, "The capital of France is Paris."])
    assert worth.estimator == "gradient" and "there are 270 heads" in worth.notes["estimator"]
    assert worth.per_text.shape == (2, 270) and (worth.values > 0).all()
    groups = worth.lowest(9, groups=True)
    assert len({(head.layer, head.index // 3) for head in groups}) == 3
    # A group: q rows and o columns of three heads of width 64, k and v rows of one; one head of it frees no cache.
    costs = costs_without(smollm2, groups)
    assert costs.freed_parameters == 3 * (3 * 2 + 2) * 64 * 576 and costs.freed_cache_bytes == 3 * 2 * 64 * 4
    assert costs_without(smollm2, "L4H0, L4H3, L4H6").freed_cache_bytes == 0


def test_the_gradient_of_a_head_is_a_difference_in_its_gate(smollm2):
    """In float32, by a hook before the output projection: the slope of the mean next-token loss."""
    ids = torch.tensor([smollm2.tokenizer(TEXT)["input_ids"]])
    worth = mh.importance(smollm2, [TEXT], "gradient")

    def loss(layer, head, gate):
        def hook(_, args):
            x = args[0].clone()
            x[..., 64 * head : 64 * (head + 1)] *= gate
            return x

        handle = smollm2.model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(hook)
        with torch.no_grad():
            logits = smollm2.model(ids).logits[0, :-1].double()
        handle.remove()
        return float(F.cross_entropy(logits, ids[0, 1:]))

    for layer, head in ((0, 6), (7, 1), (16, 8), (29, 4)):
        slope = abs(loss(layer, head, 1.01) - loss(layer, head, 0.99)) / 0.02
        assert worth[f"L{layer}H{head}"] == pytest.approx(slope, rel=0.05, abs=5e-4)


@pytest.mark.slow
def test_a_group_of_every_layer_is_cut_saved_and_read_by_transformers_alone(smollm2, tmp_path):
    """Another group of each layer, so that the third that stays is not the same everywhere."""
    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**31)
    gone = {}
    for layer in range(30):
        group = int(torch.randint(3, (), generator=generator))
        gone[layer] = [3 * group, 3 * group + 1, 3 * group + 2]
    pruned = prune_heads(smollm2, gone)
    saved = pruned.save(tmp_path / "smaller", evidence="a test")
    assert (saved.form, saved.loads_as) == ("stock", "LlamaForCausalLM")
    names = {path.name for path in saved.folder.iterdir()}
    assert {"model.safetensors", "tokenizer.json", "config.json", "README.md", "manyheads.json"} <= names
    logits, parameters, sizes, ids, loaded_as = read_by_transformers(saved.folder, tmp_path)
    assert sizes == [6, 2] and loaded_as == "LlamaForCausalLM"
    assert parameters == pruned.spec.num_parameters == 134_515_008 - 30 * 8 * 64 * 576
    assert ids == smollm2.tokenizer(TEXT)["input_ids"]
    want = heads_silenced(smollm2.model, ids, gone)
    assert (logits - want).abs().max() < 1e-4 * want.abs().max()
    assert (want - heads_silenced(smollm2.model, ids, {})).abs().max() > 0.1 * want.abs().max()
    card = (saved.folder / "README.md").read_text(encoding="utf-8")
    stored = "unpacked from Q4_1 (210 tensors)"
    assert stored in card and f"SmolLM2-135M-Instruct.Q4_1.gguf, sha256 {SHA256}" in card
    assert json.loads((saved.folder / "manyheads.json").read_text())["from"]["stored"].startswith(stored)
    assert mh.load(saved.folder).spec.num_parameters == parameters


@pytest.mark.slow
def test_key_value_heads_are_merged_saved_and_read_by_transformers_alone(smollm2, tmp_path):
    """Heads of a layer are one group: their mean is the mean of the file's, whatever their order."""
    converted = mh.convert_to_gqa(smollm2, 1)
    saved = converted.save(tmp_path / "mqa")
    logits, _, sizes, ids, _ = read_by_transformers(saved.folder, tmp_path)
    assert sizes == [9, 1]
    with torch.no_grad():
        assert (logits - converted.model(torch.tensor([ids])).logits).abs().max() < 1e-3
    by_hand = dict(smollm2.model.state_dict())
    for layer in (0, 17):
        for part in "kv":
            name = f"model.layers.{layer}.self_attn.{part}_proj.weight"
            mean = by_hand[name].view(3, 64, 576).mean(0)
            assert torch.allclose(converted.model.state_dict()[name], mean, atol=1e-6)
    card = (saved.folder / "README.md").read_text(encoding="utf-8")
    assert "unpacked from Q4_1 (210 tensors)" in card and SHA256 in card
