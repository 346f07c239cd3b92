"""`manyheads split`: what it says is what the library found, what it writes opens again, and bad input is one line."""

import json

import numpy as np
import pytest

import manyheads as mh
from manyheads.long_context import HeadSplit

from ..models.tiny import WORDS, save_tiny, tiny_llama, tiny_tokenizer
from .conftest import assert_refused

SIZES = ("--sink", "2", "--recent", "5", "--random", "2")


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    return str(save_tiny(tiny_llama(), tmp_path_factory.mktemp("models") / "llama", tiny_tokenizer()))


@pytest.fixture
def files(tmp_path):
    generator = np.random.default_rng(3)
    texts = [" ".join(generator.choice(np.array(WORDS[:80]), 30 + 3 * number)) for number in range(6)]
    for number in (0, 1):
        (tmp_path / f"{number}.txt").write_text(texts[number] + "\n", encoding="utf-8")
    lines = "\n".join(json.dumps({"text": text}) for text in texts[2:])
    (tmp_path / "others.jsonl").write_text(lines + "\n", encoding="utf-8")
    return texts, ["0.txt", "1.txt", "others.jsonl"]


@pytest.mark.turns(5)
def test_the_document_and_the_file_are_what_the_library_found(run, files, llama_folder):
    texts, names = files
    options = ("--keep", "0.3", "--by", "distant_mass", "--context", "1k", "--batch", "2", *SIZES)
    ran = run("split", llama_folder, *names, *options, "--save", "a.split.json", "--plot", "a.png", "--json")
    lm = mh.load(llama_folder)
    want = mh.split_heads(lm, texts, 0.3, by="distant_mass", sink=2, recent=5, context=1024, batch=2, random=2)
    assert ran.code == 0 and HeadSplit.open("a.split.json") == want
    document = json.loads(ran.out)
    assert document["origin"] == "6 texts of 3 files" and HeadSplit.from_dict(document["split"]) == want
    assert document["split"]["evidence"]["cache"]["context"] == 1024


@pytest.mark.turns(5)
def test_the_page_begins_with_the_verdict_and_names_what_is_kept(run, files, llama_folder):
    texts, names = files
    ran = run("split", llama_folder, *names, "--by", "distant_mass", *SIZES, "--plot", "a.svg")
    want = mh.split_heads(mh.load(llama_folder), texts, by="distant_mass", sink=2, recent=5, random=2)
    assert ran.code == 0 and ran.lines[1] == want.evidence["verdict"]["words"]
    rows = {line[:12].strip(): line[12:] for line in ran.lines}
    assert set(rows["whole"].split(", ")) == {
        str(want.query_heads(number, g)) for number, layer in want.dividable for g in range(3) if layer.kept[g]
    }  # fmt: skip
    assert f"{want.evidence['loss']['change']:+.4f}" in rows["loss"] and ran.lines[-1] == "wrote a.svg"
    assert rows["texts"] == "6 texts of 3 files: 3 chose, 3 report"
    assert sum(line.strip().startswith(f"{share}%") for line in ran.lines for share in range(10, 101, 10)) == 10


@pytest.mark.turns(4)
def test_bad_input_is_one_line(run, files, llama_folder):
    names = files[1]
    assert_refused(run("split", llama_folder, *names, "--by", "loss"), "--by loss is unknown: use effect")
    assert_refused(run("split", llama_folder, *names, *SIZES, "--keep", "0"), "keep=0.0 is no share")
    assert_refused(run("split", llama_folder, *names), "sink + recent = 384 positions, and the context has 80")
    assert_refused(run("split", llama_folder, "."), ". is a folder: name its files")
    assert_refused(run("split", llama_folder, *names, "--plot", "a.txt"), "--plot a.txt")
    assert_refused(run("split", llama_folder, "0.txt", *SIZES), "at least two texts")
    assert_refused(run("split", "minilm", *names, *SIZES), "causal self-attention")
