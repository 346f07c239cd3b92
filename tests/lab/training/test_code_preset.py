"""The `code` preset: its sources, vocabulary, windows and first repeats; and the bundled model made with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import manyheads as mh
from manyheads.errors import FileAccessError, ModelError, PlanError
from manyheads.lab.training import bundle as bundling
from manyheads.lab.training.bundle import FOLDER, MOST_BYTES, bundle, numbers_table
from manyheads.lab.training.presets.code import NAME_OF_FIRSTREPEATS as NAME
from manyheads.lab.training.presets.code import NULL, TRIAL, first_repeats, read_data
from manyheads.lab.training.presets.induction import RepeatedTokens
from manyheads.lab.training.presets.preset import Setup
from manyheads.lab.training.presets.python_source import (
    BEGIN,
    BEGIN_ID,
    END_ID,
    QUICK_FOLDERS,
    Stage,
    Windows,
    data_digest,
    is_held_out,
    module_paths,
    paste,
    random_twice,
    read_sources,
    stream_of,
    train_tokenizer,
)
from manyheads.models.loading import bundled
from manyheads.roles.probes import probe_repeats
from tests.refusals import refuses

STAGES = (Stage(0.5, 16), Stage(1.0, 64))


def windows(length: int = 5000, **changes) -> Windows:
    given = {"stream": torch.arange(length) % 90 + 5, "vocab_size": 100, "seed": 4, "steps": 10, "tokens_a_step": 128}
    return Windows(**{**given, "stages": STAGES, **changes})


@pytest.mark.slow
def test_nothing_held_out_is_ever_trained_on(tmp_path):
    data = read_data(Setup(0, True, None, tmp_path, torch.device("cpu")), TRIAL)
    trained = data.tokenizer.decode(data.stream.tolist(), skip_special_tokens=True)
    held = data.held_out_texts
    assert {each.path.split("/")[0] + "/" for each in held} == set(QUICK_FOLDERS)
    for each in data.sources:
        assert (each.text in trained) != each.held_out, each.path
    again = read_data(Setup(0, True, None, tmp_path, torch.device("cpu")), TRIAL)  # the kept vocabulary
    assert torch.equal(again.stream, data.stream) and again.digest == data.digest


def test_a_module_is_held_out_by_its_path_alone(tmp_path):
    for path in (
        "a.py", "b/c.py", "test/t.py", "site-packages/x.py", "encodings/cp1.py", "_sysconfigdata_x.py", "n.txt",
    ):  # fmt: skip
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("x = 1\r\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    assert module_paths(tmp_path) == ["a.py", "b/c.py", "empty.py", "latin.py"]
    sources = read_sources(tmp_path)
    assert [(each.path, each.text, each.held_out) for each in sources] == [
        (path, "x = 1\n", is_held_out(path)) for path in ("a.py", "b/c.py")
    ]
    share = sum(is_held_out(f"{n}.py") for n in range(4000)) / 4000
    assert 0.04 < share < 0.09
    digest = data_digest(sources)
    (tmp_path / "a.py").write_text("x = 2\n")
    assert data_digest(read_sources(tmp_path)) != digest
    (tmp_path / "none").mkdir()
    refuses(FileAccessError, "holds no Python source", read_sources, tmp_path / "none")


def test_a_batch_follows_from_seed_and_step_alone_early_windows_are_short_and_late_ones_long():
    assert torch.equal(windows().batch(3)["ids"], windows().batch(3)["ids"])
    assert not torch.equal(windows().batch(3)["ids"], windows().batch(4)["ids"])
    assert not torch.equal(windows().batch(3)["ids"], windows(seed=5).batch(3)["ids"])
    shapes = [tuple(windows().batch(step)["ids"].shape) for step in (0, 4, 5, 9)]
    assert shapes == [(8, 17), (8, 17), (2, 65), (2, 65)]
    assert all(bool((windows().batch(step)["ids"][:, 0] == BEGIN_ID).all()) for step in range(10))


def test_windows_cover_the_stream_evenly(monkeypatch):
    monkeypatch.setattr("manyheads.lab.training.presets.python_source.RANDOM_SHARE", 0.0)
    monkeypatch.setattr("manyheads.lab.training.presets.python_source.PASTED_SHARE", 0.0)
    counts = torch.zeros(5000)
    data = windows(stream=torch.arange(5000), steps=200, stages=(Stage(1.0, 16),))
    for step in range(200):
        counts[data.batch(step)["ids"][:, 1:].flatten()] += 1
    inner = counts[16:-16]
    assert float(inner.min()) >= 3 and float(inner.max()) <= 8, "1600 windows of 16 in 5000: 5 each"


def test_a_share_of_the_windows_repeats_itself(monkeypatch):
    window = torch.arange(100)
    paste(window, torch.Generator().manual_seed(1))
    moved = (window != torch.arange(100)).nonzero().flatten()
    back = window[moved]
    assert len(moved) >= 8 and int(moved[-1] - moved[0]) + 1 == len(moved)
    assert torch.equal(back, torch.arange(int(back[0]), int(back[-1]) + 1)) and int(back[-1]) < int(moved[0])
    twice = random_twice(100, 33, torch.Generator().manual_seed(1))
    assert len(twice) == 33 and int(twice.min()) > END_ID
    assert any(torch.equal(twice[size:], twice[:-size]) for size in range(4, 17))
    plain = windows(stream=torch.arange(5000)).batch(0)["ids"]
    monkeypatch.setattr("manyheads.lab.training.presets.python_source.PASTED_SHARE", 0.95)
    assert not torch.equal(windows(stream=torch.arange(5000)).batch(0)["ids"], plain)


def test_the_vocabulary_knows_every_text_and_a_stream_shorter_than_a_window_is_refused():
    tokenizer = train_tokenizer(["def f(x):\n\treturn x\n"] * 9, 270)
    text = "naïve ☃ = '\x00'\r\n"
    got = tokenizer.encode(text)
    assert got.tokens[0] == BEGIN and tokenizer.decode(got.ids) == text
    assert stream_of([[5, 6], [7]]).tolist() == [5, 6, END_ID, 7, END_ID]
    refuses(PlanError, "the stream has 64 tokens, and windows have 64: give more text", windows, 64)


def test_repeated_tokens_repeat_at_a_distance_of_their_own():
    data = RepeatedTokens(vocab_size=40, length=50, rows=30, shortest=3, longest=20, seed=1)
    ids = data.batch(7)["ids"]
    assert torch.equal(ids, data.batch(7)["ids"]) and not torch.equal(ids, data.batch(8)["ids"])
    sizes = set()
    for row in ids:
        size = next(n for n in range(1, 50) if torch.equal(row[n:], row[:-n]))
        assert len(set(row[:size].tolist())) == size
        sizes.add(size)
    assert min(sizes) >= 3 and max(sizes) <= 20 and len(sizes) > 8


@pytest.fixture(scope="module")
def tiny_code():
    return mh.load("tiny-code")


@pytest.mark.slow
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
    page = (Path(__file__).parents[3] / "docs" / "reference" / "tiny-code.md").read_text()
    assert numbers_table(json.loads((FOLDER / "recipe.json").read_text())) in page


def test_only_a_finished_whole_training_of_code_is_bundled(finished, tmp_path, capsys, monkeypatch):
    report = json.loads((finished / "report.json").read_text())
    for change, told in (({"quick": True}, "holds a trial: bundle what"), ({"preset": "heads"}, "a training of heads")):
        (finished / "report.json").write_text(json.dumps({**report, **change}))
        refuses(ModelError, told, bundle, finished, tmp_path / "made")
    refuses(FileAccessError, "cannot read .*report.json", bundle, tmp_path, tmp_path / "made")
    (finished / "report.json").write_text(json.dumps(report))
    monkeypatch.setattr(bundling, "MOST_BYTES", 1000)
    with pytest.raises(ModelError, match="bytes: more than 1,000 is too much to bundle"):
        bundle(finished, tmp_path / "made")
    assert bundling.main([]) == 2 and "usage: python -m manyheads.lab.training.bundle" in capsys.readouterr().err
    assert bundling.main([str(tmp_path)]) == 2 and "cannot read" in capsys.readouterr().err
