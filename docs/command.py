"""docs/reference/command.md, from the command's own help: `python docs/command.py`. A test holds the page to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from manyheads.cli import main as app
from manyheads.cli.commands import all_commands

PAGE = Path(__file__).parent / "reference" / "command.md"
ENDS = re.findall(r"^    (\d+) +(.+)$", app.__doc__ or "", re.MULTILINE)  # the exit codes, said there
OPENING = """\
<!-- made by `python docs/command.py`, held to it by a test -->
# The command

`manyheads COMMAND ...`: what `manyheads --help` and `manyheads COMMAND --help` say, on one page. `manyheads` alone
shows what it can do, in lines to copy. stdout is data, stderr is talk. `--version` shows the version;
`--debug` shows the traceback of an error as well.
"""


def command_markdown() -> str:
    """The page: every command with its arguments and options, in the order of `manyheads --help`."""
    commands = _commands()
    ends = ["| exit code | when |", "|---|---|", *(f"| {code} | {when} |" for code, when in ENDS)]
    parts = [OPENING, "\n".join(ends) + "\n", _index(), *(_section(*each) for each in commands.items())]
    return "\n".join(parts)


def sentences() -> dict[str, str]:
    """Each command by its name, in the order of `manyheads --help`: the first sentence of its help."""
    return {name: _cell(_paragraphs(command)[0]) for name, command in _commands().items()}


def without_json() -> list[str]:
    """Commands that have no `--json`."""
    return [name for name, command in _commands().items() if all("--json" not in each.opts for each in command.params)]


def _commands() -> dict[str, Any]:
    line = typer.Typer(add_completion=False)
    line.callback()(lambda: None)
    for each in all_commands():
        line.command()(each)
    return typer.main.get_command(line).commands  # type: ignore[attr-defined]


def _index() -> str:
    rows = [f"| [`{name}`](#{name}) | {sentence} |" for name, sentence in sentences().items()]
    return "\n".join(["| command | what |", "|---|---|", *rows]) + "\n"


def _section(name: str, command: Any) -> str:
    given = [each for each in command.params if not each.opts[0].startswith("-")]
    options = [each for each in command.params if each not in given]
    usage = " ".join([f"manyheads {name}", *(_usage(each) for each in given), "[OPTIONS]"])
    said = [re.sub(r"(?s)^(For example:) (.*)$", r"\1 `\2`", part) for part in _paragraphs(command)]
    rows = [f"| `{_usage(each)}` | {_cell(each.help or '')} | |" for each in given]
    rows += [f"| `{_option(each)}` | {_cell(each.help or '')} | {_default(each)} |" for each in options]
    table = ["| | what | unless given |", "|---|---|---|", *rows] if rows else []
    return "\n".join([f"## {name}", "", f"    {usage}", "", "\n\n".join(said), "", *table, ""])


def _paragraphs(command: Any) -> list[str]:
    return [re.sub(r"\s+", " ", part).strip() for part in (command.help or "").split("\n\n") if part.strip()]


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[].")
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs == -1 else "")


def _option(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {option.metavar or option.name.upper()}"


def _default(option: Any) -> str:
    if option.default in (None, (), []) or option.is_flag or not option.show_default:
        return ""
    return f"`{option.default}`"


def _cell(text: str) -> str:
    return (
        re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").replace("[bold]", "").replace("[/bold]", "")
    )


if __name__ == "__main__":
    PAGE.write_text(command_markdown(), encoding="utf-8")
