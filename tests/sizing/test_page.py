"""docs/sizing.md: its code runs, its tables are the code's own, and its command lines can be read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import manyheads
from manyheads.cli.app import main
from manyheads.models.dimensions import size
from manyheads.sizing.tables import families_markdown, presets_markdown

PAGE = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text(encoding="utf-8")
COMMANDS = [line.split("#")[0].strip() for line in PAGE.splitlines() if line.startswith("manyheads size")]


def test_the_code_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(manyheads, "size", size, raising=False)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "sizing.md", "exec"), {})


def test_the_tables_are_made_from_the_code():
    assert presets_markdown() in PAGE
    assert families_markdown() in PAGE


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_lines_run(line, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    config = '{"model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 64, "vocab_size": 97}'
    (tmp_path / "my-model" / "config.json").write_text(config)
    assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
