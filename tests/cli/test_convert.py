"""`manyheads convert`: what it says, what it writes, and how it ends."""

import json
import os

import pytest

import manyheads as mh
from manyheads.interventions.save import save_converted as convertedfiles

from ..models.tiny import WORDS, save_tiny, tiny_llama, tiny_tokenizer
from .conftest import assert_refused


@pytest.fixture(autouse=True)
def no_other_process(monkeypatch):
    """tests/interventions try folders in a fresh process; here each is taken to have passed."""
    fine = {"error": 1.5e-7, "tokens": None, "wanted": None, "auto": True}
    monkeypatch.setattr(convertedfiles, "try_all", lambda jobs: [fine for _ in jobs])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny(tiny_llama(6), tmp_path_factory.mktemp("models") / "llama", tiny_tokenizer()))


@pytest.fixture
def texts(tmp_path):
    lines = [" ".join(WORDS[at : at + 15]) for at in range(0, 60, 15)]
    (tmp_path / "texts.txt").write_text("\n\n".join(lines) + "\n")
    return "texts.txt"


def test_it_says_what_is_lost_and_gained_before_uptraining_and_where_it_is(run, folder, texts):
    ran = run("convert", "--kv-heads", "2", "--model", folder, "--out", "grouped", "--file", texts)
    assert ran.code == 0, ran.err
    assert ran.lines[0] == "llama: 6 key/value heads of each layer merged into 2"
    assert "before  after, before uptraining" in ran.out
    assert "loss, nats a token" in ran.out and "over 4 texts" in ran.out and "decoding, tokens a second" in ran.out
    assert "KV cache of 80 tokens, bytes  92,160" in ran.out and "-66.7 %" in ran.out
    assert "  L0 0." in ran.out and "  L2 0." in ran.out
    assert "Saved in grouped, as LlamaForCausalLM: in a fresh process equal to 1.5e-07." in ran.out
    assert "transformers.LlamaForCausalLM.from_pretrained('grouped')" in ran.out
    assert [site.num_kv_heads for site in mh.load("grouped").spec.sites] == [2, 2, 2]


def test_without_texts_nothing_is_measured_and_that_is_said(run, folder):
    ran = run("convert", "--kv-heads", "3", "--model", folder, "--out", "grouped")
    assert "quality and decode speed: not measured, since no texts were given" in ran.out
    assert "Relative error of the key and value weights of each layer (no texts were given):" in ran.out


def test_json_is_one_document_with_everything_and_neighbours_are_merged_where_asked(run, folder):
    ran = run("convert", "--kv-heads", "3", "--model", folder, "--out", "grouped", "--no-regroup", "--json")
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert list(said) == [
        "manyheads", "model", "num_kv_heads", "permutation", "groups", "error_by_layer", "error_because", "table",
        "saved",
    ]  # fmt: skip
    assert said["groups"] == {layer: [[0, 1], [2, 3], [4, 5]] for layer in "012"}
    assert said["saved"] == {"folder": "grouped", "loads_as": "LlamaForCausalLM", "error": 1.5e-7}
    regrouped = json.loads(run("convert", "--kv-heads", "3", "--model", folder, "--out", "grouped", "--json").out)
    assert regrouped["groups"] != said["groups"]
    assert all(regrouped["error_by_layer"][layer] < said["error_by_layer"][layer] for layer in "01")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--kv-heads", "4"), ("num_kv_heads=4 does not divide the 6 key/value heads", "Use one of [1, 2, 3, 6]")),
        (("--kv-heads", "4", "--model", "minilm"), ("its config has no num_key_value_heads", "can: llama, mistral")),
        (("--kv-heads", "many"), ("--kv-heads many: give a whole number",)),
        ((), ("missing option '--kv-heads'",)),
        (("--kv-heads", "2", "--file", "none.txt"), ("cannot read none.txt: there is no such file",)),
        (("--kv-heads", "2", "--out", "no/grouped"), ("cannot write", "its folder does not exist")),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_and_nothing_is_written(arguments, parts, run, folder, tmp_path):
    usual = {"--model": folder, "--out": "grouped"}
    asked = [each for option, value in usual.items() if option not in arguments for each in (option, value)]
    assert_refused(run("convert", *asked, *arguments), *parts)
    assert os.listdir(tmp_path) == []
