"""What `--help` shows of every command: each option as it is typed, and all the words of its help."""

import inspect

import pytest

from manyheads.cli.commands import COMMANDS
from manyheads.cli.main import main


@pytest.mark.parametrize("command", ["", *(each.__name__ for each in COMMANDS)])
def test_help_shows_each_parameter_as_it_is_typed(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*command.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert "--help" in said
    for wrong in ("<bool>", "<list[", "<int>", "<str>", "<float>", "<path>", "[[", "]...]"):
        assert wrong not in said


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.__name__)
def test_help_shows_every_word_of_an_options_help(command, capsys, monkeypatch):
    """Rich takes "[default: ...]" within it for markup, and shows nothing."""
    monkeypatch.setenv("COLUMNS", "1000")
    main([command.__name__, "--help"])
    said = capsys.readouterr().out
    for each in inspect.signature(command, eval_str=True).parameters.values():
        assert each.annotation.__metadata__[0].help in said


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.__name__)
def test_help_leaves_the_wrapping_of_paragraphs_to_the_terminal(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    main([command.__name__, "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for paragraph in inspect.getdoc(command).split("\n\n"):
        assert " ".join(paragraph.split()) in lines
