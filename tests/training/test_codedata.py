"""What the code preset reads: the same everywhere, nothing of it held out, all of it in turn."""

from __future__ import annotations

import pytest
import torch

from manyheads.errors import FileAccessError, PlanError
from manyheads.training.presets.code.data import (
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
from manyheads.training.presets.code.preset import TRIAL, read_data
from manyheads.training.presets.induction import RepeatedTokens
from manyheads.training.presets.preset import Setup

STAGES = (Stage(0.5, 16), Stage(1.0, 64))


def windows(length: int = 5000, **changes) -> Windows:
    given = {"stream": torch.arange(length) % 90 + 5, "vocab_size": 100, "seed": 4, "steps": 10, "tokens_a_step": 128}
    return Windows(**{**given, "stages": STAGES, **changes})


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
        "a.py",
        "b/c.py",
        "test/t.py",
        "site-packages/x.py",
        "encodings/cp1.py",
        "_sysconfigdata_x.py",
        "n.txt",
    ):
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
    with pytest.raises(FileAccessError, match="holds no Python source"):
        read_sources(tmp_path / "none")


def test_a_batch_follows_from_seed_and_step_alone():
    assert torch.equal(windows().batch(3)["ids"], windows().batch(3)["ids"])
    assert not torch.equal(windows().batch(3)["ids"], windows().batch(4)["ids"])
    assert not torch.equal(windows().batch(3)["ids"], windows(seed=5).batch(3)["ids"])


def test_early_windows_are_short_and_late_ones_long():
    shapes = [tuple(windows().batch(step)["ids"].shape) for step in (0, 4, 5, 9)]
    assert shapes == [(8, 17), (8, 17), (2, 65), (2, 65)]
    assert all(bool((windows().batch(step)["ids"][:, 0] == BEGIN_ID).all()) for step in range(10))


def test_windows_cover_the_stream_evenly(monkeypatch):
    monkeypatch.setattr("manyheads.training.presets.code.data.RANDOM_SHARE", 0.0)
    monkeypatch.setattr("manyheads.training.presets.code.data.PASTED_SHARE", 0.0)
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
    monkeypatch.setattr("manyheads.training.presets.code.data.PASTED_SHARE", 0.95)
    assert not torch.equal(windows(stream=torch.arange(5000)).batch(0)["ids"], plain)


def test_a_stream_shorter_than_a_window_is_refused():
    with pytest.raises(PlanError, match="the stream has 64 tokens, and windows have 64: give more text"):
        windows(64)


def test_the_vocabulary_knows_every_text_and_begins_each():
    tokenizer = train_tokenizer(["def f(x):\n\treturn x\n"] * 9, 270)
    text = "naïve ☃ = '\x00'\r\n"
    got = tokenizer.encode(text)
    assert got.tokens[0] == BEGIN and tokenizer.decode(got.ids) == text
    assert stream_of([[5, 6], [7]]).tolist() == [5, 6, END_ID, 7, END_ID]


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
