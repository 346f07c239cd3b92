"""`manyheads prune` and `manyheads convert`: what they say, what they write, and how they end."""

import json
import os
import re

import pytest
import torch
from transformers import AutoModelForCausalLM

import manyheads as mh
from manyheads.cli.interventions import count_or_share, to_remove
from manyheads.errors import HeadError, PlanError
from manyheads.interventions import lowest_heads
from manyheads.interventions.convert import convert as convertedfiles
from manyheads.interventions.save import save as saving

from ..models.eager import tiny_lm
from ..models.tiny import WORDS, save_tiny, tiny_llama, tiny_tokenizer
from ..refusals import refuses
from .conftest import assert_refused


@pytest.fixture(autouse=True)
def no_other_process(monkeypatch):
    """tests/interventions try folders in a fresh process; here each is taken to have passed."""
    fine = {"error": 1.5e-7, "tokens": None, "wanted": None, "auto": True}
    for module in (saving, convertedfiles):
        monkeypatch.setattr(module, "try_all", lambda jobs: [fine for _ in jobs])


def test_it_says_what_was_removed_what_is_left_where_it_is_and_how_to_load_it(run, tmp_path):
    ran = run("prune", "L3H7, L4H0-1", "--out", "smaller", "--evidence", "a hunch")
    assert ran.code == 0 and "an earlier save" not in ran.err, ran.err
    assert ran.lines[0] == "minilm without L3H7, L4H0-1: 3 heads removed"
    assert "parameters  22,713,216 -> 22,565,472 (-0.7%)" in ran.out
    assert "saved       smaller, compact: tried in a fresh process on cpu, off by 1.5e-07" in ran.out
    lm = mh.load("smaller")
    sizes = [
        sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        for folder in (tmp_path / "smaller", tmp_path / "smaller" / "zeroed")
    ]
    assert sizes[0] < sizes[1]
    small, whole = (f"{size / 1e6:.2f} MB" for size in sizes)
    assert f"on disk     {small} the compact form, {whole} the zeroed one; --only compact or --only" in ran.out
    assert "mh.load('smaller')" in ran.out and "transformers.BertModel.from_pretrained('smaller/zeroed')" in ran.out
    assert "because     transformers has no config for what is left" in ran.out
    assert "a hunch." in (tmp_path / "smaller" / "README.md").read_text()
    assert [site.num_heads for site in lm.spec.sites] == [12, 12, 12, 11, 10, 12]
    with pytest.raises(mh.errors.ModelError, match=r"compact form.*mh\.size\(mh\.load\('smaller'\)\.spec\)"):
        mh.size("smaller")  # its config.json is the whole model's
    assert mh.size(lm.spec).num_parameters == sum(weight.numel() for weight in lm.model.parameters())
    again = run("prune", "L9H0", "--out", "smaller")  # refused for its heads, after the folder was looked at
    assert again.code == 2 and "smaller holds an earlier save, which this one replaces" in again.err


@pytest.mark.parametrize("only", ["compact", "zeroed"])
def test_one_form_alone_is_written_where_it_is_named(only, run, tmp_path):
    ran = run("prune", "L2H1", "--out", "smaller", "--only", only)
    assert ran.code == 0 and f"saved       smaller, {only}: " in ran.out, ran.err
    assert not (tmp_path / "smaller" / "zeroed").exists() and "--only" not in ran.out
    how = "mh.load('smaller'): " if only == "compact" else "transformers.BertModel.from_pretrained('smaller'): the orig"
    assert f"load it     {how}" in ran.out and "  or " not in ran.out
    heads = [site.num_heads for site in mh.load("smaller").spec.sites]
    assert heads == [12, 12, 11 if only == "compact" else 12, 12, 12, 12]
    assert f"## Form: {only}" in (tmp_path / "smaller" / "README.md").read_text()
    again = run("prune", "L2H2", "--out", "smaller", "--only", only)  # an earlier save of ours, which may be replaced
    assert again.code == 0 and "an earlier save" in again.err


def test_json_is_one_document_with_everything(run):
    ran = run("prune", "L5", "--out", "smaller", "--json", "--empty-layers")
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert list(said) == [
        "manyheads", "model", "removed", "parameters", "cache_bytes_per_token", "error", "effect", "saved",
    ]  # fmt: skip
    assert said["removed"] == "L5" and said["parameters"][0] == 22_713_216 > said["parameters"][1]
    assert said["saved"]["form"] == "compact" and said["saved"]["error"] == 1.5e-7
    assert said["error"] <= 1e-5 < said["effect"]


@pytest.mark.parametrize(("arguments", "parts"), [
    (("L9H0", "--out", "smaller"), ("there is no layer 9: layers are 0 to 5", "Nearest: 'L5H0'")),
    (("L5H0-11", "--out", "smaller"), ("manyheads: this removes all 12 heads of L5: its", "empty_layers=True")),
    (("L5H1",), ("no place to save to", "--out FOLDER")),
    (("--out", "smaller"), ("say which heads", "--lowest N")),
    (("--lowest", "72", "--out", "smaller"), ("all of the 72 heads", "give fewer")),
    (("L5H1", "--lowest", "3", "--out", "smaller"), ("HEADS ('L5H1') and --lowest 3 were both given",)),
    (("--lowest", "3", "--cache-bytes", "64", "--out", "smaller"), ("--lowest 3 and --cache-bytes 64 were both",)),
    (("--lowest", "0", "--out", "smaller"), ("--lowest 0: give a number of heads from 1, or a share",)),
    (("--lowest", "100%", "--out", "smaller"), ("--lowest 100%: give a number",)),
    (("--lowest", "1.2%", "--out", "smaller"), ("--lowest 1.2000% of the 72 heads of minilm is less than can "
        "be removed",)),
    (("--cache-bytes", "0", "--out", "smaller"), ("--cache-bytes 0: give a number of bytes from 1.",)),
    (("--cache-bytes", "64", "--out", "smaller"), ("--cache-bytes 64: minilm keeps no cache: give --lowest N",)),
    (("--loss", "nan", "--out", "smaller"), ("--loss nan: give the nats a token by which the loss may rise",)),
    (("--loss", "0.1", "--out", "smaller"), ("metric='loss' needs a model that predicts the next token",)),
    (("L5H1", "--lines", "--out", "smaller"), ("--lowest ranks heads by",)),
    (("L5H1", "--way", "anywhere", "--out", "smaller"), ("--way and --estimator say how --lowest chooses",)),
    (("L5H1", "--estimator", "gradient", "--out", "smaller"), ("--way and --estimator say how --lowest chooses",)),
    (("--lowest", "3", "--estimator", "both", "--out", "smaller"), ("--estimator both is unknown", "or gradient")),
    (("--lowest", "3", "--way", "rows", "--out", "smaller"), ("way='rows' is unknown", "each layer")),
    (("--lowest", "3", "--way", "anywhere", "--out", "smaller"), ("way='anywhere' is not available", "no heads share")),
    (("L5H1", "--only", "stock", "--out", "smaller"), ("--only stock is not a form: use compact or zeroed",)),
    (("L5H1", "--out", "no/smaller"), ("cannot write", "its folder does not exist")),
])  # fmt: skip
def test_what_cannot_be_done_is_said_in_one_line_and_nothing_is_written(arguments, parts, run, tmp_path):
    assert_refused(run("prune", *arguments), *parts)
    assert os.listdir(tmp_path) == []


def test_a_model_without_a_tokenizer_is_pruned_too(run, tmp_path):
    tiny_llama().save_pretrained(tmp_path / "llama")
    ran = run("prune", "L*H0-1", "--out", "smaller", "--model", "llama")
    assert ran.code == 0, ran.err
    assert_refused(run("prune", "--lowest", "2", "--out", "less", "--model", "llama"), "no tokenizer files")


def test_the_least_important_heads_go_and_the_card_says_why_them(run, tmp_path, bert_folder):
    lm = mh.load(bert_folder)
    texts = ["the cat sat on the table", "a dog ran home", "rain and snow fell all night", "the king read a book"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    ran = run("prune", "--lowest", "3", "--file", "texts.txt", "--lines", "--out", "smaller", "--model", bert_folder)
    assert ran.code == 0, ran.err
    chosen = mh.importance(lm, texts[::2]).lowest(3)
    assert set(mh.load("smaller").spec.heads.heads) != set(lm.spec.heads.heads)
    assert f"without {chosen}: 3 heads removed" in ran.lines[0]
    lost = mh.effect(lm, mh.Ablate(chosen), texts[1::2])
    card = (tmp_path / "smaller" / "README.md").read_text(encoding="utf-8")
    assert f"The 3 least important of {len(lm.spec.heads)} heads by zero ablation, cosine on 2 of 4 texts" in card
    assert (
        f"On 2 other texts, removing all of them changes cosine by {lost.change:+.4g}" in card
        and "the same number of random heads" in card
    )


def test_the_card_speaks_of_groups_where_whole_groups_go(run, tmp_path):
    folder = str(save_tiny(tiny_llama(), tmp_path / "llama", tiny_tokenizer()))
    (tmp_path / "texts.txt").write_text("the cat sat on the table\na dog ran home\nthe king read\n", encoding="utf-8")
    line = ["prune", "--file", "texts.txt", "--lines", "--model", folder, "--out", "smaller"]
    spec, card = mh.load(folder).spec, tmp_path / "smaller" / "README.md"
    size, groups = spec.sites[0].num_heads // spec.sites[0].num_kv_heads, sum(site.num_kv_heads for site in spec.sites)
    ran = run(*line, "--lowest", str(2 * size), "--way", "anywhere")
    assert ran.code == 0, ran.err
    words = f"The 2 least important of {groups} groups that share a key/value head, {2 * size} heads of "
    assert words + f"{len(spec.heads)}, by zero ablation, the least groups of all layers" in card.read_text()
    said = f"{2 * size} of {len(spec.heads)} heads are gone, 0 to {size} of a layer (the least groups of all layers, "
    assert said in ran.out or said.replace(f"0 to {size}", f"0 to {2 * size}") in ran.out
    assert f"); the cache shrinks by {100 * 2 / groups:.0f} %." in ran.out
    ran = run(*line, "--loss", "100.5", "--way", "anywhere")  # all but a group of each layer
    assert ran.code == 0, ran.err
    assert (
        "as many as the loss allows); the cache shrinks by" in ran.out
        and "by bisection, measured on 3 texts" in ran.out
    )
    assert "of at most +100.5; no more can go), 3 evaluations" in ran.out
    ran = run(*line, "--lowest", str(groups), "--way", "each-group")
    assert ran.code == 0, ran.err
    assert "the cache stays as it is, since no key/value head lost all heads that read it." in ran.out
    assert (
        f"The {groups} least important of {len(spec.heads)} heads by zero ablation, the same number" in card.read_text()
    )


def test_heads_to_remove_are_a_number_a_share_or_what_frees_bytes_of_cache(fresh):
    lm = tiny_lm("llama", fresh)
    spec = lm.spec
    size, groups = spec.sites[0].num_heads // spec.sites[0].num_kv_heads, sum(site.num_kv_heads for site in spec.sites)
    bytes_of_group = 4 * (spec.sites[0].qk_dim + spec.sites[0].v_dim)
    assert count_or_share("7") == 7 and count_or_share(" 12.5 %") == 0.125
    assert to_remove(lm, 2 * size, None, False) == 2 * size
    whole = next(count for count in range(int(0.4 * len(spec.heads)), 0, -1) if not count % size or not count % groups)
    assert to_remove(lm, 0.4, None, False) == whole
    assert to_remove(lm, None, bytes_of_group, False) == size
    assert to_remove(lm, None, bytes_of_group + 1, False) == 2 * size
    everything = bytes_of_group * groups
    message = rf"^--cache-bytes {everything}: .* keeps {everything} bytes a token in float32: give fewer"
    refuses(PlanError, message, to_remove, lm, None, everything, False)
    refuses(HeadError, "are not whole groups", to_remove, lm, 2 * size + 1, None, False)


def test_a_gqa_model_is_told_the_nearest_plan(run, tmp_path):
    folder = str(save_tiny(tiny_llama(), tmp_path / "llama", tiny_tokenizer()))
    assert_refused(run("prune", "L0H0", "--model", folder, "--out", "smaller"), "Nearest plan that can", "'L0H0-1'")
    ran = run("prune", "L*H0-1", "--model", folder, "--out", "smaller")
    assert "cache       576 -> 384 bytes a token" in ran.out, ran
    assert "smaller, stock:" in ran.out and "transformers.LlamaForCausalLM.from_pretrained('smaller')" in ran.out


@pytest.mark.slow
def test_the_least_important_heads_of_a_gqa_model_go_in_whole_groups(run, tmp_path):
    folder = str(save_tiny(tiny_llama(), tmp_path / "llama", tiny_tokenizer()))
    texts = [" ".join(WORDS[at : at + 15]) for at in range(0, 60, 15)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    asked = ("--file", "texts.txt", "--lines", "--model", folder)
    ran = run("prune", "--lowest", "4", *asked, "--out", "smaller")
    assert ran.code == 0, ran.err
    chosen = lowest_heads(mh.load(folder), texts[::2], 4).heads
    assert f"without {chosen}: 4 heads removed" in ran.lines[0]
    lost = {(head.layer, head.index // 2) for head in chosen}
    assert len(chosen) == 4 and len(lost) == 2  # of two query heads each
    card = (tmp_path / "smaller" / "README.md").read_text(encoding="utf-8")
    why = "since only whole groups free cache, and 4 heads do not divide evenly over the layers: loss"
    assert f"the least groups of all layers, {why}" in card and "on 2 of 4 texts" in card
    frees = (
        "frees       a group 2,304 parameters and 64 bytes of cache a token; one head of it 768 parameters and no cache"
    )
    assert frees in ran.out and "estimator   ablation, exact: of up to 100 heads, and there are 18" in ran.out
    near = ("are not whole groups", "give 2 or 4, or a multiple of 9, the same number from each group")
    assert_refused(run("prune", "--lowest", "3", *asked, "--out", "less"), *near)
    assert not (tmp_path / "less").exists()
    options = ("--way", "each-group", "--estimator", "ablation")
    data = json.loads(run("prune", "--lowest", "9", *options, *asked, "--out", "less", "--json").out)
    assert data["lowest"]["because"].startswith("the same number of heads from each group, as asked: ")
    assert data["saved"]["form"] == "stock" and data["lowest"]["way"] == "each group"
    assert len(data["lowest"]["groups"]) == 9 and set(data["lowest"]["ways"]) == {"each group"}
    ids, lm = torch.arange(5, 25)[None], mh.load(folder)
    with mh.applied(lm, mh.Ablate(data["lowest"]["heads"])), torch.no_grad():
        ablated = lm.model(ids).logits
        assert (AutoModelForCausalLM.from_pretrained("less")(ids).logits - ablated).abs().max() < 1e-5


# ------------------------------------------------------------------------------------------------------------- convert


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny(tiny_llama(6), tmp_path_factory.mktemp("models") / "llama", tiny_tokenizer()))


@pytest.fixture
def texts(tmp_path):
    lines = [" ".join(WORDS[at : at + 15]) for at in range(0, 60, 15)]
    (tmp_path / "texts.txt").write_text("\n\n".join(lines) + "\n")
    return "texts.txt"


@pytest.mark.slow
def test_a_merge_says_what_is_lost_and_gained_before_uptraining_and_where_it_is(run, folder, texts):
    ran = run("convert", "--kv-heads", "2", "--model", folder, "--out", "grouped", "--file", texts)
    assert ran.code == 0, ran.err
    assert ran.lines[0] == "llama: 6 key/value heads of each layer merged into 2"
    titles, units, before, after, change = (re.split(r"  +", line.strip()) for line in ran.lines[2:7])
    assert titles == ["loss", "parameters", "KV cache of 80 tokens", "decoding"] and "over 4 texts" in ran.out
    assert units == ["nats a token", "bytes", "tokens a second"]
    assert (before[0], before[3], after[0]) == ("before", "92,160", "after, before uptraining")
    assert [len(row[1].partition(".")[2]) for row in (before, after)] == [3, 3] and change[3] == "-66.7%"
    assert "  L0 0." in ran.out and "  L2 0." in ran.out
    assert "Saved in grouped, as LlamaForCausalLM: tried in a fresh process on cpu, off by 1.5e-07." in ran.out
    assert "transformers.LlamaForCausalLM.from_pretrained('grouped')" in ran.out
    assert [site.num_kv_heads for site in mh.load("grouped").spec.sites] == [2, 2, 2]


def test_without_texts_nothing_is_measured_and_that_is_said(run, folder):
    ran = run("convert", "--kv-heads", "3", "--model", folder, "--out", "grouped")
    assert "quality and decode speed: not measured, since no texts were given" in ran.out
    assert "Relative error of the key and value weights of each layer (no texts were given):" in ran.out


def test_json_of_a_merge_is_one_document_and_neighbours_are_merged_where_asked(run, folder):
    ran = run("convert", "--kv-heads", "3", "--model", folder, "--out", "grouped", "--no-regroup", "--json")
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert list(said) == [
        "manyheads", "model", "num_kv_heads", "permutation", "groups", "error_by_layer", "error_because", "table",
        "saved",
    ]  # fmt: skip
    assert said["groups"] == {layer: [[0, 1], [2, 3], [4, 5]] for layer in "012"}
    assert said["saved"] == {"folder": "grouped", "loads_as": "LlamaForCausalLM", "error": 1.5e-7, "tried_on": "cpu"}
    regrouped = json.loads(run("convert", "--kv-heads", "3", "--model", folder, "--out", "grouped", "--json").out)
    assert regrouped["groups"] != said["groups"]
    assert all(regrouped["error_by_layer"][layer] < said["error_by_layer"][layer] for layer in "01")


@pytest.mark.parametrize(("arguments", "parts"), [
    (("--kv-heads", "4"), ("num_kv_heads=4 does not divide the 6 key/value heads", "Use one of [1, 2, 3, 6]")),
    (("--kv-heads", "4", "--model", "minilm"), ("its config has no num_key_value_heads", "can: llama, mistral")),
    (("--kv-heads", "many"), ("--kv-heads many: give a whole number",)),
    ((), ("missing option '--kv-heads'",)),
    (("--kv-heads", "2", "--file", "none.txt"), ("cannot read none.txt: there is no such file",)),
    (("--kv-heads", "2", "--out", "no/grouped"), ("cannot write", "its folder does not exist")),
])  # fmt: skip
def test_what_cannot_be_merged_is_said_in_one_line_and_nothing_is_written(arguments, parts, run, folder, tmp_path):
    usual = {"--model": folder, "--out": "grouped"}
    asked = [each for option, value in usual.items() if option not in arguments for each in (option, value)]
    assert_refused(run("convert", *asked, *arguments), *parts)
    assert os.listdir(tmp_path) == []
