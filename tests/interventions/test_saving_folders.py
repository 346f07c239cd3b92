"""A pruned model's folder: its card and tokenizer too, written whole or not at all, never over anything else."""

import errno
import hashlib
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads.errors import FileAccessError, ModelError
from manyheads.interventions import difference, prune_heads, removed_text
from manyheads.interventions.prune.verify import outputs_of, random_inputs
from manyheads.interventions.save import fresh_process as trials
from manyheads.interventions.save import save as saving
from manyheads.interventions.save import whole_folder as wholefolders
from tests.interventions.checkpoints import SAME, STOCK
from tests.models.tiny import tiny_gpt2, tiny_llama, tiny_tokenizer

# ------------------------------------------------------------------------------------------- the whole way, for once


@pytest.fixture
def small(fresh):
    lm = mh.load(tiny_gpt2(seed=7), tokenizer=tiny_tokenizer(special_tokens=False))
    return prune_heads(lm, "L0H1, L1H0, L1H2")


@pytest.fixture
def trusting(monkeypatch):
    """No other process: every checkpoint passes. `trusting.results` is what is found, while it lasts."""
    state = SimpleNamespace(results=[])
    fine = {"error": 0.0, "tokens": None, "wanted": None, "auto": True}
    monkeypatch.setattr(saving, "try_all", lambda jobs: [state.results.pop(0) if state.results else fine for _ in jobs])
    return state


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def test_a_pruned_model_is_saved_and_loaded_with_its_tokenizer_and_its_card(small, tmp_path):
    saved = small.save(tmp_path / "out", evidence="ablation of each head\non 200 texts")
    assert (saved.form, saved.folder, saved.loads_as) == ("compact", tmp_path / "out", "GPT2LMHeadModel")
    assert saved.zeroed == tmp_path / "out" / "zeroed" and saved.error <= SAME
    assert os.listdir(tmp_path) == ["out"]
    for folder in (saved.folder, saved.zeroed):
        assert {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= {
            *os.listdir(folder)
        }
    back, inputs = mh.load(saved.folder), random_inputs(small.model)
    assert difference(outputs_of(back.model, inputs), outputs_of(small.model, inputs)) == 0
    assert back.spec.sites == small.spec.sites and "3 heads removed, in manyheads' compact form" in back.because
    assert back.tokenizer("the cat").input_ids == small.tokenizer("the cat").input_ids
    assert back.model.lm_head.weight is back.model.transformer.wte.weight  # tied, as they were
    again = prune_heads(back, "L2H0")
    assert [str(head) for head in again.removed] == ["L0H1", "L1H0", "L1H2", "L2H0"]
    assert removed_text(again) == "L0H1, L1H0, L1H2, L2H0"
    half = mh.load(saved.folder, dtype="bfloat16")
    assert half.dtype == torch.bfloat16 and half.model.training is False
    card = (saved.folder / "README.md").read_text()
    before, after = small.before.num_parameters, small.spec.num_parameters
    for said in (
        "**Removed:** L0H1, L1H0, L1H2", small.weights_hash_before, "a GPT2LMHeadModel with 12 heads",
        "ablation of each head on 200 texts.", f"| parameters | {before:,} | {after:,} | -",
        "| cache, bytes a token | 864 | 648 | -25.0 % |", "mh.load(", "from_pretrained(",
    ):  # fmt: skip
        assert said in card, said


def test_without_evidence_the_card_says_so_and_a_stock_folder_is_plain(fresh, tmp_path, trusting):
    lm = mh.load(STOCK["llama"].make(fresh), tokenizer=False)
    small = prune_heads(lm, STOCK["llama"].remove)
    saved = small.save(tmp_path / "out")
    assert (saved.form, saved.zeroed) == ("stock", None) and "its own family" in saved.because
    assert "**Evidence for removing them:** none was given." in (saved.folder / "README.md").read_text()
    assert mh.load(saved.folder, tokenizer=False).spec.sites == small.spec.sites
    assert json.loads((saved.folder / "manyheads.json").read_text())["form"] == "stock"


def test_a_stock_form_that_does_not_pass_its_trial_gives_way_and_is_said(fresh, tmp_path, trusting):
    small = prune_heads(mh.load(STOCK["qwen2"].make(fresh), tokenizer=False), "L*H2-3")
    trusting.results = [{"error": 0.3}]
    saved = small.save(tmp_path / "out")
    assert saved.form == "compact" and not (saved.folder / "model.safetensors").exists()
    assert "saved as Qwen2ForCausalLM, its outputs differ by 3.0e-01 of the largest" in saved.because


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"fault": "OSError: no such thing"}, "it does not load: OSError: no such thing"),
        ({"error": float("nan")}, "its outputs differ by nan"),
        ({"error": 0.0, "tokens": [1, 2], "wanted": [1, 3]}, r"it generates \[1, 2\], not \[1, 3\]"),
        ({"error": 0.0, "tokens": None, "wanted": None, "auto": False}, "no Auto class of transformers leads to it"),
    ],
)
def test_a_compact_form_that_does_not_pass_is_not_left_behind(result, said, small, tmp_path, trusting):
    trusting.results = [{"error": 0.0, "tokens": None, "wanted": None, "auto": True}, result]
    with pytest.raises(ModelError, match=f"was not saved: {said}"):
        small.save(tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_process_that_dies_is_told(small, tmp_path, monkeypatch):
    program = tmp_path / "dies.py"
    program.write_text("import sys; sys.exit('killed, for want of memory')")
    monkeypatch.setattr(trials, "PROGRAM", program)
    with pytest.raises(ModelError, match="ended with code 1 and said: killed, for want of memory. Nothing was saved"):
        small.save(tmp_path / "out")
    assert os.listdir(tmp_path) == ["dies.py"]


# ------------------------------------------------------------------------------------------ written whole or not at all


FAILURES = {
    "a full disk": OSError(errno.ENOSPC, "No space left on device"),
    "a full disk, as safetensors says it": RuntimeError("I/O error: No space left on device (os error 28)"),
    "Ctrl-C": KeyboardInterrupt(),
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("where", ["compact", "readers", "trial", "move"])
@pytest.mark.parametrize("failure", FAILURES)
def test_whatever_happens_on_the_way_leaves_the_older_checkpoint_whole(
    failure, where, small, tmp_path, trusting, monkeypatch
):
    small.save(tmp_path / "out")
    before, error = contents(tmp_path), FAILURES[failure]

    def fail(*_, **__):
        raise error

    place = {"compact": (saving, "write_compact"), "readers": (small.tokenizer, "save_pretrained")}
    place |= {"trial": (saving, "try_all"), "move": (wholefolders, "_put")}
    with monkeypatch.context() as patch:
        patch.setattr(*place[where], fail)
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                small.save(tmp_path / "out")
        else:
            with pytest.raises(FileAccessError, match="cannot write .*out: the disk is full. Free some space"):
                small.save(tmp_path / "out")
    assert contents(tmp_path) == before


def test_a_kill_leaves_the_older_checkpoint_whole(small, tmp_path, trusting):
    small.save(tmp_path / "out")
    before = contents(tmp_path / "out")
    child = os.fork()
    if child == 0:
        try:
            saving.try_all = lambda jobs: os.kill(os.getpid(), signal.SIGKILL)
            small.save(tmp_path / "out")
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert contents(tmp_path / "out") == before and len(os.listdir(tmp_path)) == 2  # and what it was about to be


def test_an_older_checkpoint_is_replaced_whole_in_one_step_or_in_two(small, tmp_path, trusting, monkeypatch):
    for exchanged in (wholefolders._exchanged, lambda one, other: False):
        monkeypatch.setattr(wholefolders, "_exchanged", exchanged)
        (tmp_path / "out").mkdir()
        for name in ("config.json", "manyheads.json", "vocab.txt", "model-00001-of-00002.safetensors"):
            (tmp_path / "out" / name).write_text("of the older one")
        small.save(tmp_path / "out")
        assert "vocab.txt" not in os.listdir(tmp_path / "out") and os.listdir(tmp_path) == ["out"]
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("entry", [".git/config", "notes.doc", "my_notes.txt", "zeroed/notes.txt", "results.json"])
def test_a_folder_with_anything_but_an_older_save_is_never_replaced(entry, small, tmp_path, trusting):
    path = tmp_path / "out" / entry
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    for name in ("config.json", "manyheads.json"):
        (tmp_path / "out" / name).write_text("{}")
    with pytest.raises(FileAccessError, match="not of an earlier save by manyheads, which alone would be replaced"):
        small.save(tmp_path / "out")
    assert path.read_text() == "mine"


def test_somebody_elses_checkpoint_and_the_models_own_are_never_replaced(small, tmp_path, trusting):
    tiny_llama().save_pretrained(tmp_path / "theirs")
    lm = mh.load(tmp_path / "theirs", tokenizer=False)
    for pruned in (small, mh.prune_heads(lm, "L*H0-1")):
        with pytest.raises(FileAccessError, match="not of an earlier save by manyheads"):
            pruned.save(tmp_path / "theirs")
    mh.prune_heads(lm, "L*H0-1").save(tmp_path / "mine")
    again = mh.prune_heads(mh.load(tmp_path / "mine", tokenizer=False), "L*H0-1")
    with pytest.raises(FileAccessError, match="the model was loaded from there"):
        again.save(tmp_path / "mine")
    assert mh.load(tmp_path / "theirs", tokenizer=False).spec.layers == lm.spec.layers


def test_a_place_that_cannot_be_is_refused_before_anything_is_written(small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileAccessError, match="it is a file. Name a folder"):
        small.save(tmp_path / "file")
    with pytest.raises(FileAccessError, match="its folder does not exist"):
        small.save(tmp_path / "no" / "out")


def test_a_model_that_transformers_did_not_make_is_not_saved(tmp_path):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layer = nn.Embedding(19, 20), mh.MultiHeadAttention(20, 4, batch_first=True)

        def forward(self, input_ids):
            return self.layer(self.embed(input_ids), need_weights=False)[0]

    small = prune_heads(mh.load(Reader().eval(), tokenizer=False), "L0H1")
    with pytest.raises(ModelError, match="is a Reader, no model of transformers', so there is no checkpoint"):
        small.save(tmp_path / "out")
    with pytest.raises(ModelError, match="Reader is no model of transformers', so it cannot be built anew"):
        small.zeroed()


def test_a_class_that_came_with_a_checkpoint_is_not_saved_without_its_code(small, tmp_path):
    class Strange(type(small.model)):
        pass

    small.model.__class__ = Strange
    with pytest.raises(ModelError, match="is a Strange of .*, which transformers does not have"):
        small.save(tmp_path / "out")
