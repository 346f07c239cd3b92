"""Options that a command hands to the library: each makes the difference that it says; bad input is one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import manyheads as mh
import manyheads.models
from manyheads.errors import PlanError
from manyheads.roles import PageLabels

from .conftest import assert_refused

TEXT = "the old cat sat on the table"
OTHER = "the dog saw the key"
LOAD = manyheads.models.load  # before the fixture `run` puts the loaded model in its place


# ================================================================================================= devices and dtypes
# Refused before anything is loaded.

PAIR = ("a b", "c b", "--right", "d", "--wrong", "e")
TAKING_A_DEVICE = [
    ("look", TEXT),
    ("head", "L1H0", TEXT),
    ("roles",),
    ("stats", TEXT),
    ("compare", "minilm", "tiny-code", TEXT),
    ("ablate", "L1", TEXT),
    ("importance", TEXT),
    ("split", "tiny-code"),
    ("patch", *PAIR),
    ("circuit", *PAIR),
    ("attribute", TEXT, "--answer", "5"),
    ("writes", TEXT, "--head", "L1H0"),
    ("prune", "L1", "--out", "smaller"),
    ("convert", "--kv-heads", "1", "--model", "tiny-code", "--out", "smaller"),
    ("heads", "import", "list.json", "--model", "tiny-code"),
    ("learn", "one-head"),
    ("studio", "--get", "/api/workspace"),
    ("publish", "site", "--text", TEXT),
    ("train", "induction"),
    ("reproduce", "zhai-collapse"),
]


@pytest.fixture
def list_of_heads():
    Path("list.json").write_text('{"0-0": [1.0], "0-1": [0.5]}', encoding="utf-8")


@pytest.mark.usefixtures("list_of_heads")
@pytest.mark.parametrize("line", TAKING_A_DEVICE, ids=lambda line: line[0])
def test_device_that_is_not_there_is_refused(run, monkeypatch, line):
    monkeypatch.setattr("manyheads.models.load", LOAD)
    assert_refused(run(*line, "--device", "toaster"), "--device='toaster' cannot be used: ")


@pytest.mark.usefixtures("list_of_heads")
@pytest.mark.parametrize("line", TAKING_A_DEVICE[:-2], ids=lambda line: line[0])
def test_dtype_that_is_none_is_refused(run, monkeypatch, line):
    monkeypatch.setattr("manyheads.models.load", LOAD)
    assert_refused(run(*line, "--dtype", "float31"), "dtype='float31' is not a dtype for weights. Use one of float64, ")


# ================================================================================================== roles and the page


def test_labels_are_read_anew_and_not_remembered_where_that_is_asked_for(run, monkeypatch, bert_folder):
    remembered = []
    nothing = PageLabels((), {}, mh.texts.Sinks(), {}, 0, 0, "none was looked for")
    monkeypatch.setattr(
        "manyheads.roles.label_page", lambda lm, *, remember, **_: remembered.append(remember) or nothing
    )
    for line in (
        ("look", TEXT, "--model", bert_folder),
        ("head", "L1H0", TEXT, "--model", bert_folder),
        ("publish", "site", "--text", TEXT, "--model", bert_folder),
    ):
        assert run(*line).code == run(*line, "--no-cache").code == 0
    assert remembered == [True, False] * 3


def test_published_site_has_its_title_and_the_model_that_was_chosen(run, bert_folder):
    line = ("publish", "site", "--text", TEXT, "--model", bert_folder, "--title", "Seen <by> ours", "--no-cache")
    assert run(*line).code == 0
    index = Path("site/index.html").read_text(encoding="utf-8")
    assert "<title>Seen &lt;by&gt; ours</title>" in index and "bert" in index and "minilm" not in index


def test_roles_read_a_field_hold_labels_against_a_second_corpus_and_draw_families(run, bert_folder):
    for name, texts in (("a.jsonl", [TEXT, OTHER] * 4), ("b.jsonl", [OTHER, TEXT] * 3)):
        Path(name).write_text("\n".join(json.dumps({"words": text}) for text in texts), encoding="utf-8")
    line = ("roles", "--corpus", "a.jsonl", "--field", "words", "--model", bert_folder, "--json")
    ran = run(*line, "--elsewhere", "b.jsonl", "--families", "families.svg")
    document = json.loads(ran.out)
    assert document["texts"] == 8
    assert any(claim["elsewhere"] is not None for claim in document["claims"])
    assert "10 heads" in Path("families.svg").read_text(encoding="utf-8")


def test_what_a_shard_deals_out_is_said_with_a_shard_alone(run):
    for line in (("stats", "--shard-by", "file"), ("roles", "--shard-by", "file")):
        assert_refused(run(*line), "--shard-by file is for a part of the texts")
        line = (line[0], "--shard", "0/2", "--out", "part.sums", "--shard-by", "word")
        assert_refused(run(*line), "a corpus is divided by text or file, not by 'word'")


def test_merged_parts_are_shown_head_by_head(run, bert_folder):
    for index in range(2):
        line = ("stats", "--file", "texts.txt", "--lines", "--statistics", "entropy", "--model", bert_folder)
        Path("texts.txt").write_text(f"{TEXT}\n{OTHER}\n", encoding="utf-8")
        assert run(*line, "--shard", f"{index}/2", "--out", f"{index}.sums").code == 0
    shown = run("merge", "0.sums", "1.sums", "--all")
    assert len([each for each in shown.lines if re.match(r"L\dH\d ", each)]) == len(mh.load(bert_folder).spec.heads)


# ============================================================================================================= circuits


@pytest.fixture(scope="module")
def tiny_code():
    return mh.load("tiny-code")


CLEAN = "def f(self, name, size):\n    self.name = name\n    self.size ="
CORRUPTED = "def f(self, name, size):\n    self.name = name\n    self.name ="


def test_patch_takes_a_metric_and_an_estimator(run, tiny_code):
    line = (
        "patch",
        CLEAN,
        CORRUPTED,
        "--model",
        "tiny-code",
        "--right",
        " size",
        "--metric",
        "prob",
        "--estimator",
        "gradient",
    )
    document = json.loads(run(*line, "--controls", "0", "--json").out)
    expected = mh.patch(tiny_code, [CLEAN], [CORRUPTED], "prob", [" size"], estimator="gradient", controls=0)
    assert [row["effect"] for row in document["heads"]] == pytest.approx(expected.values.reshape(-1).tolist(), abs=1e-5)
    assert document["metric"] == "prob"


def test_circuit_takes_answers_a_metric_and_edges(run, tiny_code):
    line = ("circuit", CLEAN, CORRUPTED, "--model", "tiny-code", "--keep", "0.5", "--json")
    long = ("--right", " size_of_it", "--wrong", " name_of_it")
    assert_refused(run(*line, *long), "read only its first, --first-token.")
    document = json.loads(run(*line, *long, "--first-token").out)
    assert document["metric"] == "logit_diff" and not document["edges"]
    document = json.loads(run(*line, "--right", " size", "--metric", "logit", "--edges").out)
    expected = mh.find_circuit(tiny_code, [CLEAN], [CORRUPTED], "logit", [" size"], 0.5, edges=True)
    assert document["metric"] == "logit" and len(document["edges"]) == len(expected.edges) > 0


def test_attribution_reads_a_file_line_by_line_and_targets_pair_with_it(run, tiny_code):
    texts = ["def add(a, b): return a +", "x = y +"]
    Path("texts.txt").write_text("\n".join(texts), encoding="utf-8")
    line = ("attribute", "--model", "tiny-code", "--file", "texts.txt", "--answer", " b")
    document = json.loads(run(*line, "--lines", "--json").out)
    expected = mh.logit_attribution(tiny_code, texts, " b")
    assert [row["value"] for row in document["components"]] == pytest.approx(expected.values.tolist(), abs=1e-5)
    Path("targets.txt").write_text("one", encoding="utf-8")
    message = "2 texts from file texts.txt and 1 targets from targets.txt do not pair"
    assert_refused(run(*line, "--lines", "--targets", "targets.txt"), message)


# =============================================================================================================== models


@pytest.fixture
def other_folder(bert_folder, tmp_path):
    """The same model with other queries in all layers but the first."""
    other = mh.load(bert_folder)
    model: Any = other.model
    for layer in model.encoder.layer[1:]:
        layer.attention.self.query.weight.data.mul_(-1)
    model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    return str(tmp_path / "other")


def test_models_are_compared_on_the_texts_statistics_and_rows_that_were_asked_for(run, bert_folder, other_folder):
    Path("texts.txt").write_text(f"{TEXT}\n{OTHER}\n", encoding="utf-8")
    line = ("compare", bert_folder, other_folder, "--statistics", "entropy", "--rows", "3")
    document = json.loads(run(*line, "--file", "texts.txt", "--lines", "--json").out)
    expected = mh.compare(bert_folder, other_folder, [TEXT, OTHER], "entropy", rows=3).to_dict()
    assert document["origin"] == "2 texts from file texts.txt" and document["statistics"] == ["entropy"]
    assert document["heads"] == json.loads(json.dumps(expected["heads"]))
    shown = run(*line, "--corpus", "texts.txt", "--all")
    changed = [each for each in shown.lines if re.match(r"L\dH\d ", each)]
    assert len(changed) == int(shown.lines[0].split()[0]) > 0, shown


@pytest.mark.parametrize(("options", "expected"), [((), [f"{TEXT} {OTHER}"]), (("--lines",), [TEXT, OTHER])])
def test_conversion_reads_paragraphs_or_lines(run, monkeypatch, gpt2_folder, options, expected):
    def convert(lm, kv_heads, *, regroup, texts):
        raise PlanError(f"{kv_heads} {texts}")

    monkeypatch.setattr("manyheads.interventions.convert_to_gqa", convert)
    Path("texts.txt").write_text(f"{TEXT}\n{OTHER}\n", encoding="utf-8")
    line = ("convert", "--kv-heads", "1", "--model", gpt2_folder, "--out", "smaller", "--file", "texts.txt")
    assert_refused(run(*line, *options), f"1 {expected}")


def test_cache_of_half_the_bytes_is_half_as_large(run):
    whole, half = (json.loads(run("size", "gpt2", "--cache-dtype", dtype, "--json").out) for dtype in ("fp16", "fp8"))
    assert whole["cache"]["token_bytes"] == 2 * half["cache"]["token_bytes"]
    assert whole["parameters"] == half["parameters"]


def test_preset_that_makes_its_own_data_takes_no_file(run):
    assert_refused(run("train", "induction", "--quick", "--data", "texts.txt"), "data")


# =========================================================================================================== the studio


@pytest.fixture
def opened(monkeypatch):
    """Addresses that a browser was sent to; the server itself ends as soon as it could answer."""
    addresses: list[str] = []
    monkeypatch.setattr("webbrowser.open", addresses.append)
    monkeypatch.setattr("manyheads.studio.serve", lambda serving, *, ready: ready())
    monkeypatch.setattr("manyheads.studio.warm", lambda desk: None)
    return addresses


def test_studio_listens_on_an_address_and_opens_a_browser_unless_told_not_to(run, opened):
    ran = run("studio", "--host", "127.0.0.2", "--browser")
    assert ran.lines == [f"The studio is at {opened[0]}"] and opened[0].startswith("http://127.0.0.2:")
    assert run("studio", "--no-browser").code == 0 and len(opened) == 1


def test_studio_writes_checkpoints_into_its_folder(run):
    without = json.loads(run("studio", "--get", "/api/workspace").out)
    assert (without["folder"], without["can_write"]) == ("", False)
    chosen = json.loads(run("studio", "--folder", "pruned", "--get", "/api/workspace").out)
    assert (chosen["folder"], chosen["can_write"]) == ("pruned", True)
