"""The bundled `tiny-code`: it loads offline, reads long texts, has induction heads, and is what its recipe says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import manyheads as mh
from manyheads.errors import FileAccessError, ModelError
from manyheads.models.loading import checkpoints as bundled
from manyheads.roles import probe_repeats
from manyheads.training import bundle as bundling
from manyheads.training.bundle import FOLDER, MOST_BYTES, bundle, numbers_table
from manyheads.training.presets.code.data import is_held_out, read_sources
from manyheads.training.presets.code.preset import NAME_OF_FIRSTREPEATS as NAME
from manyheads.training.presets.code.preset import NULL, first_repeats


@pytest.fixture(scope="module")
def tiny_code():
    return mh.load("tiny-code")


def test_tiny_code_is_a_stock_llama_that_reads_4096_tokens(tiny_code):
    assert (type(tiny_code.model).__name__, tiny_code.dtype) == ("LlamaForCausalLM", torch.float32)
    assert tiny_code.max_positions >= 4096
    assert {(site.num_heads, site.num_kv_heads) for site in tiny_code.spec.sites} == {(8, 2)}
    ids = torch.arange(4096)[None] % 2000 + 2
    with torch.no_grad():
        assert bool(torch.isfinite(tiny_code.model(ids).logits).all())


def test_tiny_code_has_an_induction_head_on_random_tokens_and_on_source_it_never_read(tiny_code):
    after = probe_repeats(tiny_code, "arena", samples=4).after
    best = after.top(1)[0]
    assert best.score > 0.5 and best.chance < 0.1
    held = [each.text[:3000] for each in read_sources() if is_held_out(each.path) and len(each.text) > 9000][:3]
    table = mh.measure(tiny_code, held, list(first_repeats()))
    assert table[str(best.head), NAME] > 5 * table[str(best.head), NULL] > 0


def test_its_recipe_says_how_it_was_made_and_nothing_of_the_machine(tiny_code):
    recipe = json.loads((FOLDER / "recipe.json").read_text())
    assert recipe["command"].startswith("manyheads train code --seed 0") and len(recipe["facts"]["data"]) == 64
    assert recipe["runs"]["code"]["parameters"] == sum(each.numel() for each in tiny_code.model.parameters())
    assert all(is_held_out(path) for path in recipe["found"]["held_out_modules"])
    texts = [each.read_text() for each in FOLDER.iterdir() if each.suffix in (".json", ".md")]
    assert not any(word in text for text in texts for word in ("/tmp", "/work", "/root", "/home"))
    assert sum(each.stat().st_size for each in FOLDER.iterdir()) < MOST_BYTES
    assert "PSF-2.0" in (FOLDER / "README.md").read_text() and "PSF-2.0" in recipe["licence"]


def test_a_flipped_byte_in_its_weights_is_caught(tmp_path, monkeypatch):
    shutil.copytree(FOLDER, tmp_path / "bundled" / "tiny-code")
    monkeypatch.setattr(
        bundled, "find_spec", lambda name: type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    )
    assert bundled.find_bundled("tiny-code") == tmp_path / "bundled/tiny-code"
    weights = tmp_path / "bundled/tiny-code/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelError, match="'tiny-code' is not the published manyheads' own tiny-code: .*has sha256"):
        bundled.find_bundled("tiny-code")
    (tmp_path / "bundled/tiny-code/recipe.json").unlink()
    with pytest.raises(ModelError, match="'tiny-code' has no readable weights .*pip install --force-reinstall"):
        bundled.find_bundled("tiny-code")


@pytest.fixture
def finished(tmp_path) -> Path:
    """A folder as a finished training leaves it, with the bundled model in it."""
    recipe = json.loads((FOLDER / "recipe.json").read_text())
    shutil.copytree(FOLDER, tmp_path / "run/model")
    shutil.copyfile(FOLDER / "metrics.parquet", tmp_path / "run/metrics.parquet")
    report = {"preset": "code", "quick": False, "steps": None, **recipe, "found": {**recipe["found"], "model": "model"}}
    (tmp_path / "run/report.json").write_text(json.dumps(report))
    return tmp_path / "run"


def test_bundling_copies_the_checkpoint_with_its_recipe(finished, tmp_path, capsys):
    assert bundling.main([str(finished), str(tmp_path / "made")]) == 0
    assert sorted(each.name for each in (tmp_path / "made").iterdir()) == sorted(each.name for each in FOLDER.iterdir())
    assert json.loads((tmp_path / "made/recipe.json").read_text()) == json.loads((FOLDER / "recipe.json").read_text())
    assert (tmp_path / "made/README.md").read_text() == (FOLDER / "README.md").read_text()
    assert capsys.readouterr().out == f"{numbers_table(json.loads((FOLDER / 'recipe.json').read_text()))}\n"


def test_the_page_says_what_the_recipe_says():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "tiny-code.md").read_text()
    assert numbers_table(json.loads((FOLDER / "recipe.json").read_text())) in page


def test_only_a_finished_whole_training_of_code_is_bundled(finished, tmp_path, capsys, monkeypatch):
    report = json.loads((finished / "report.json").read_text())
    for change, told in (({"quick": True}, "holds a trial: bundle what"), ({"preset": "heads"}, "a training of heads")):
        (finished / "report.json").write_text(json.dumps({**report, **change}))
        with pytest.raises(ModelError, match=told):
            bundle(finished, tmp_path / "made")
    with pytest.raises(FileAccessError, match="cannot read .*report.json"):
        bundle(tmp_path, tmp_path / "made")
    (finished / "report.json").write_text(json.dumps(report))
    monkeypatch.setattr(bundling, "MOST_BYTES", 1000)
    with pytest.raises(ModelError, match="bytes: more than 1,000 is too much to come with everything"):
        bundle(finished, tmp_path / "made")
    assert bundling.main([]) == 2 and "usage: python -m manyheads.training.bundle" in capsys.readouterr().err
    assert bundling.main([str(tmp_path)]) == 2 and "cannot read" in capsys.readouterr().err
