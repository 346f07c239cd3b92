"""A pruning is `mh.prune_heads` and its `save`, in the workspace's own folder and nowhere else.

The fresh process that tries every checkpoint takes some 10 s: here, but for one slow test, it is left out.
"""

import copy

import pytest
import torch

from manyheads.errors import FileAccessError, HeadError
from manyheads.interventions.save import save as saving
from manyheads.studio.problems import Stopped
from manyheads.studio.schema.experiments import PruningAsk
from manyheads.studio.views import experiments
from tests.interventions.surgeries import loaded, without_heads
from tests.models.eager import draw

TEXT = "the cat sat on the table and the dog said why is the cat here"


def quiet(words, done, total):
    pass


def ask(heads="L1H1, L1H3", name="smaller", **more):
    return PruningAsk(model="m", heads=heads, name=name, **more)


@pytest.fixture
def untried(monkeypatch):
    """Saves are believed: what trials find is the business of tests/interventions/test_saving.py."""
    monkeypatch.setattr(saving, "try_all", lambda trials: [{"error": 0.0} for _ in trials])
    monkeypatch.setattr(saving, "fault_in", lambda result: "")


def test_heads_go_and_parameters_are_counted(fresh, tmp_path, untried):
    lm, told = loaded("gpt2", draw(fresh)), []
    found = experiments.save_pruned(lm, ask(), tmp_path, progress=lambda *said: told.append(said[1:]))
    assert found.heads == ["L1H1", "L1H3"] and found.model == "m" and found.folder == str(tmp_path / "smaller")
    saved = torch.nn.Module.parameters
    assert found.parameters_before == sum(each.numel() for each in saved(lm.model))
    width, embed_dim = 9, 36
    assert found.parameters_before - found.parameters_after == 2 * (4 * width * embed_dim + 3 * width)
    assert (tmp_path / "smaller" / "README.md").is_file() and told == [(0, 2), (1, 2)]
    assert not found.stock and "with L1H1, L1H3 at zero" in found.words and "mh.load reads it" in found.words
    assert [each.name for each in tmp_path.iterdir()] == ["smaller"]


def test_what_is_there_stays_whoever_wrote_it(fresh, tmp_path, untried):
    lm = loaded("gpt2", draw(fresh))
    first = experiments.save_pruned(lm, ask(), tmp_path, progress=quiet)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("also theirs")
    kept = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    for name in ("smaller", "theirs", "file"):
        with pytest.raises(FileAccessError, match=f"{name} is there already: give another name"):
            experiments.save_pruned(lm, ask("L0H2", name=name), tmp_path, progress=quiet)
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == kept
    second = experiments.save_pruned(lm, ask("L0H2", name="other"), tmp_path, progress=quiet)
    assert second.folder != first.folder and second.parameters_after > first.parameters_after


@pytest.mark.parametrize("name", ["..", "a/b", "../out", "/tmp/out", ".hidden", "a\\b", "", "a b", "x" * 81, "a\n"])
def test_a_name_that_is_no_plain_name_is_refused_with_the_request(name):
    with pytest.raises(ValueError, match="name"):
        ask(name=name)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../out", "/tmp/out", "link"])
def test_a_name_that_leaves_the_folder_is_refused_here_too(name, fresh, tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    given = PruningAsk.model_construct(model="m", heads="L1H1", name=name, empty_layers=False)
    with pytest.raises(FileAccessError, match="it would not lie in"):
        experiments.save_pruned(loaded("gpt2", draw(fresh)), given, inside, progress=quiet)
    assert list(outside.iterdir()) == []


def test_heads_that_cannot_go_are_told_with_the_nearest_that_can(fresh, tmp_path):
    lm = loaded("llama", draw(fresh))
    with pytest.raises(HeadError, match="Nearest plan that can"):
        experiments.save_pruned(lm, ask("L1H1"), tmp_path, progress=quiet)
    with pytest.raises(HeadError, match="Say empty_layers=True"):
        experiments.save_pruned(lm, ask("L1"), tmp_path, progress=quiet)
    with pytest.raises(HeadError, match="names no heads"):
        experiments.save_pruned(lm, ask(""), tmp_path, progress=quiet)
    assert list(tmp_path.iterdir()) == []


def test_a_pruning_that_is_stopped_writes_nothing(fresh, tmp_path):
    def stop(words, done, total):
        if done:
            raise Stopped("no more")

    with pytest.raises(Stopped):
        experiments.save_pruned(loaded("gpt2", draw(fresh)), ask(), tmp_path, progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_was_written_computes_what_the_model_with_zeroed_columns_does(fresh, tmp_path):
    from transformers import LlamaForCausalLM

    lm = loaded("llama", draw(fresh))
    found = experiments.save_pruned(lm, ask("L*H2-3"), tmp_path, progress=quiet)
    assert found.stock and "stock transformers loads it" in found.words
    oracle = copy.deepcopy(lm.model)
    for layer in range(3):
        without_heads("llama", oracle, layer, [2, 3])
    ids = lm.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    small = LlamaForCausalLM.from_pretrained(found.folder).eval()
    with torch.no_grad():
        want, got = oracle(ids).logits, small(ids).logits
    assert float((want - got).abs().max()) < 1e-5 * float(want.abs().max())
    assert found.parameters_after == sum(each.numel() for each in small.parameters())
