"""Claims about what coding agents read: it is made of the documentation, and every command in it does what it says."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex

import pytest
import yaml

from docs.agents import INDEX, PYTHON, SKILL, TASKS, llms_txt, skill, title_and_sentence
from manyheads.cli.commands import NAMES
from manyheads.cli.main import main


def test_llms_txt_names_every_page_and_command():
    text = llms_txt()
    assert INDEX.read_text(encoding="utf-8") == text, "again: make pages"
    assert text.startswith("# manyheads\n\n> ") and "](start.md): " in text and "](changelog.md): " in text
    for line in text.partition("\n## ")[2].splitlines():
        assert not line or re.fullmatch(r"## .+|\w.*|- \[[^]]+\]\([\w/-]+\.md(#[\w-]+)?\)(: .+[.!?])?", line), line
    assert {f"[manyheads {name}](reference/command.md#{name})" in text for name in NAMES} == {True}


def test_skill_is_short_and_has_the_front_matter_of_agent_skills():
    text = SKILL.read_text(encoding="utf-8")
    assert text == skill(), "again: make pages"
    assert len(text.splitlines()) <= 200
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["name"] == SKILL.parent.name and re.fullmatch(r"[a-z0-9-]{1,64}", front["name"])
    assert 0 < len(front["description"]) <= 1024 and 0 < len(front["compatibility"]) <= 500
    assert all(f"- `{name}`: " in text for name in NAMES)


@pytest.mark.parametrize(("page", "title", "sentence"), [
    ("---\nhide: [toc]\n---\n# A *b*\n\n<!-- x. -->\n```sh\nrun it.\n```\n\n| a | b |\n\nOne [two](x.md) three. Four.",
     "A *b*", "One two three."),
    ("# T\n\n<figure>\n\nNot this.\n\n</figure>\n\nBy `f.g`, of 3.5 (Li et al. 2019), or\nthis: one.\n", "T",
     "By `f.g`, of 3.5 (Li et al. 2019), or this: one."),
    ("# T\n\n- a list.\n\nWhich one? This.", "T", "Which one?"),
    ("# T\n", "T", ""),
])  # fmt: skip
def test_title_and_first_sentence_are_those_of_the_prose(page, title, sentence):
    assert title_and_sentence(page) == (title, sentence)


def values_at(document, path):
    """The values under a key as a task writes it: a.b, or a[].b for every entry of a list."""
    values = [document]
    for name in path.split("."):
        values = [value[name.removesuffix("[]")] for value in values]
        if name.endswith("[]"):
            values = [entry for value in values for entry in value]
    return values


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.command.split()[1])
def test_command_of_a_task_prints_the_keys_that_the_skill_promises(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(shlex.split(task.command)[1:])
    document = json.loads(out.getvalue())
    assert code == (0 if document.get("fine", True) else 1)
    for key in task.keys:
        assert values_at(document, key), key


@pytest.mark.slow
def test_rules_of_the_skill_hold(capsys):
    assert main(["head", "L30H0", "x", "--model", "tiny-code", "--json"]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and "L30H0" in err
    assert main(["look", "--no-such-option", "--json"]) == 2
    exec(PYTHON, {})
    assert "ablate L2H1" in capsys.readouterr().out
