"""`manyheads split` and `manyheads heads`: a split of a model's heads, and lists of other projects."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import manyheads as mh
from manyheads.cli.long_context import FEW_TEXTS, long_texts, whole_lines
from manyheads.corpora.own_texts import READINGS
from manyheads.long_context import HeadSplit
from manyheads.long_context.split_layer import SplitLayer
from tests.cli.conftest import assert_refused
from tests.models.tiny import WORDS, save_tiny, tiny_llama, tiny_tokenizer

# ================================================================================================================ split
# `manyheads split`: what it says is what the library found, what it writes opens again, and bad input is one line.

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


def test_the_document_and_the_file_are_what_the_library_found(run, files, llama_folder):
    texts, names = files
    options = ("--keep", "0.3", "--by", "distant_mass", "--context", "1k", "--batch", "2", *SIZES)
    options += ("--shares", "2", "--random-curve", "--needles", "3")
    ran = run(
        "split",
        llama_folder,
        *names,
        *options,
        "--out",
        "a.split.json",
        "--plot",
        "a.png",
        "--json",
        "--resume",
        "kept",
    )
    lm = mh.load(llama_folder)
    named = {"by": "distant_mass", "sink": 2, "recent": 5, "context": 1024, "batch": 2, "random": 2}
    want = mh.split_heads(lm, texts, 0.3, **named, shares=2, random_curve=True, needles=3)
    curve = want.evidence["curve"]
    assert [point["keep"] for point in curve] == pytest.approx([0.3, 1 / 3, 2 / 3, 1])
    assert all(len(point["loss"]["random"]) == 2 for point in curve) and "in 3 and 3 texts" in want.notes["needles"]
    assert ran.code == 0 and HeadSplit.open("a.split.json") == want and any(Path("kept").iterdir())
    document = json.loads(ran.out)
    assert document["origin"] == "6 texts of 3 files" and HeadSplit.from_dict(document["split"]) == want
    assert document["split"]["evidence"]["cache"]["context"] == 1024


@pytest.mark.slow
def test_the_page_begins_with_the_verdict_and_names_what_is_kept(run, files, llama_folder):
    texts, names = files
    ran = run("split", llama_folder, *names, "--by", "distant_mass", *SIZES, "--plot", "a.svg", "--shares", "9")
    want = mh.split_heads(mh.load(llama_folder), texts, by="distant_mass", sink=2, recent=5, random=2, shares=9)
    assert ran.code == 0 and ran.lines[1] == want.evidence["verdict"]["words"]
    rows = {line[:12].strip(): line[12:] for line in ran.lines}
    assert set(rows["whole"].split(", ")) == {
        str(want.query_heads(number, g)) for number, layer in want.dividable for g in range(3) if layer.kept[g]
    }  # fmt: skip
    assert rows["loss"].endswith(", nats a token, mean of 3 texts")
    assert "What is lost at each share that is kept (loss, nats a token, mean of 3 texts)" in ran.lines
    assert f"{want.evidence['loss']['change']:+.4f}" in rows["loss"] and ran.lines[-1] == "wrote a.svg"
    assert rows["texts"] == "6 texts of 3 files: 3 chose, 3 report"
    assert sum(line.strip().startswith(f"{share}%") for line in ran.lines for share in range(10, 101, 10)) == 10


def test_bundled_texts_of_a_model_with_many_heads_are_enough_for_an_interval(smollm2, monkeypatch):
    """Every other text chooses, and an interval needs five that report; each must be longer than 128 + 256 tokens."""
    monkeypatch.setattr("manyheads.corpora.reading_of", lambda lm: READINGS["language"])  # tests have a short one
    count, times = FEW_TEXTS
    lengths = [len(smollm2.tokenizer(text)["input_ids"]) for text in long_texts(smollm2, count, int(times * 384))]
    assert len(lengths[1::2]) >= 5 and min(lengths) >= 1.5 * 384 and max(lengths) < 2 * 384
    assert len(set(long_texts(smollm2, count, 576))) == count


@pytest.mark.parametrize(
    ("scores", "keep", "whole", "by_place", "without"),
    [
        ((0.5, 0.0, 0.2, 0.0, 0.0, 0.0), 0.5, "L0H0-1, L1H0-1", "L0H2-3", " (--keep 0.333 is without them)"),
        ((0.0,) * 6, 0.3, "none by its score", "L0H0-1, L0H2-3", ""),
        ((0.5, 0.0, 0.2, 0.0, 0.1, 0.0), 0.5, "L0H0-1, L1H0-1, L2H0-1", None, ""),
    ],
)
def test_heads_that_are_kept_by_their_place_alone_stand_apart(scores, keep, whole, by_place, without):
    layers = tuple(SplitLayer(4, 2, 8, 8, (False,) * 2, scores[2 * layer :][:2]) for layer in range(3))
    split = HeadSplit("a model", "", "", layers, 2, 5, "needle", "share", "maximum").with_keep(keep)
    lines = dict(whole_lines(split))
    assert lines["whole"] == whole and ("by place" in lines) == (by_place is not None)
    if by_place is not None:
        words = f"{by_place}: these score 0, the same as others that stream; the earlier ones were taken to"
        assert lines["by place"].startswith(words) and lines["by place"].endswith(without)
    if without:  # what it says to do does that
        told = split.with_keep(float(without.split()[1])).to_pandas()
        assert ", ".join(told[told.keeps_everything].query_heads) == whole


def test_bad_input_is_one_line(run, files, llama_folder):
    names = files[1]
    assert_refused(run("split", llama_folder, *names, "--by", "loss"), "--by loss is unknown: use effect")
    assert_refused(run("split", llama_folder, *names, *SIZES, "--keep", "0"), "keep=0.0 is not a share")
    assert_refused(run("split", llama_folder, *names), "sink + recent = 384 positions, and the context has 80")
    assert_refused(run("split", llama_folder, "."), ". is a folder: name its files")
    assert_refused(run("split", llama_folder, *names, "--plot", "a.txt"), "--plot a.txt")
    assert_refused(run("split", llama_folder, "0.txt", *SIZES), "at least two texts")
    assert_refused(run("split", "minilm", *names, *SIZES), "causal self-attention")


# ================================================================================================================ heads
# `manyheads heads`: a saved split as another project's list, and such a list as a split of a model.


@pytest.fixture
def listed(tmp_path):
    """What vLLM-Hook's variable takes, in a file: three heads of minilm, which has 6 layers of 12."""
    path = tmp_path / "heads.txt"
    path.write_text("0:0,3;5:11\n")
    return path


def test_a_list_is_imported_saved_exported_and_imported_again(run, listed, minilm):
    ran = run("heads", "import", str(listed), "--model", "minilm", "--out", "a.split.json")
    assert (ran.code, ran.err.count("manyheads: ")) == (0, 0)
    assert ran.lines[0].startswith("3 of 72 key/value heads of minilm keep everything, by file")
    assert ran.lines[1] == "  heads            L0H0, L0H3, L5H11" and ran.lines[-1] == "wrote a.split.json"
    assert any(line.startswith("  model            the file names no weights") for line in ran.lines)
    ran = run("heads", "export", "a.split.json", "--to", "duo", "patterns", "--json")
    exported = json.loads(ran.out)
    assert exported["heads"] == ["L0H0", "L0H3", "L5H11"] and exported["format"] == "duo"
    assert exported["files"] == ["patterns/full_attention_heads.tsv", "patterns/config.json"]
    ran = run("heads", "import", "patterns", "--model", "minilm", "--json")
    document = json.loads(ran.out)
    assert (
        document["heads"] == exported["heads"]
        and document["saved"] is None
        and document["keep"] == pytest.approx(1 / 24)
    )
    assert mh.HeadSplit.from_dict(document["split"]) == mh.read_heads("patterns", minilm)
    ran = run("heads", "import", "patterns", "--model", "minilm", "--keep", "0.5")
    assert ran.lines[0].startswith("36 of 72 key/value heads of minilm keep everything")
    ran = run("heads", "export", "a.split.json", "--to", "vllm-hook", "v.json")
    assert ran.lines[1:] == ["wrote v.json", "wrote v.layer_heads.txt"]


@pytest.mark.parametrize(("line", "words"), [
    (["show", "a"], "'show' is not an action on lists of heads: use export or import."),
    (["export", "a", "--to", "duo"], "say for which project, and where to write"),
    (["export", "a", "b", "--to", "duo", "--keep", "0.5"],
     "--keep, --threshold, --join and --out belong to heads import"),
    (["export", "none.json", "b", "--to", "duo"], "cannot read none.json: there is no such file"),
    (["import", "a", "b"], "--to and PLACE belong to heads export"),
    (["import", "a", "--out", "a.txt"], "--out a.txt: cannot tell from that ending what to write. Use .json"),
    (["import", "heads.txt"], "say which model's heads heads.txt lists: manyheads heads import PATH --model MODEL"),
    (["import", "a", "--model", "minilm"], "cannot read a: there is no such file"),
    (["import", "heads.txt", "--model", "minilm", "--keep", "0.5"],
     "says itself which heads keep everything: leave keep and threshold out"),
    (["import", "heads.txt", "--model", "minilm", "--join", "sum"], "join='sum' is unknown: use one of maximum, mean."),
    (["import", "other.txt", "--model", "minilm"], "other.txt lists L0H12, and minilm has 6 layers of 12 query heads"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(run, listed, line, words):
    listed.with_name("other.txt").write_text("0:12")
    assert_refused(run("heads", *line), words)
