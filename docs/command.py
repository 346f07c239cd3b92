"""docs/reference/command.md, from the command's own help: `python docs/command.py`. A test holds the page to it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import typer

from manyheads.cli import main as app
from manyheads.cli.commands import all_commands

PAGE = Path(__file__).parent / "reference" / "command.md"
SHARED, OFTEN = "## Options of many commands", 2  # a row that comes so often stands there, once
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
    options = [each for command in commands.values() for each in command.params if each.opts[0].startswith("-")]
    rows = Counter(_row(option) for option in options)
    commonest: dict[str, str] = {}  # of an option that says several things, the one said most often
    for row, count in rows.most_common():
        if count >= OFTEN:
            commonest.setdefault(row.split()[1], row)
    shared = [row for row in rows if row in commonest.values()]
    parts = [OPENING, "\n".join(ends) + "\n", _index(commands), f"{SHARED}\n\n{_list(shared)}"]
    return "\n".join([*parts, *(_section(name, each, shared) for name, each in commands.items())])


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


def _index(commands: dict[str, Any]) -> str:
    return f"Commands: {', '.join(f'[`{name}`](#{name})' for name in commands)}.\n"


def _section(name: str, command: Any, shared: list[str]) -> str:
    given = [each for each in command.params if not each.opts[0].startswith("-")]
    usage = " ".join([f"manyheads {name}", *(_usage(each) for each in given), "[OPTIONS]"])
    said = [re.sub(r"(?s)^(For example:) (.*)$", r"\1 `\2`", part) for part in _paragraphs(command)]
    rows = [_row(each) for each in (*given, *(each for each in command.params if each not in given))]
    own = [row for row in rows if row not in shared]
    lines = [f"## {name}", "", f"    {usage}", "", "\n\n".join(said), ""]
    if own:
        lines += [_list(own)]
    if len(own) < len(rows):
        names = ", ".join(f"`{row.split('`')[1].split()[0]}`" for row in rows if row in shared)
        lines += [f"[Also](#options-of-many-commands): {names}.", ""]
    return "\n".join(lines)


def _list(rows: list[str]) -> str:
    return "\n".join(rows) + "\n"


def _row(option: Any) -> str:
    """A line of a list: an option or argument, what it does, its default."""
    is_argument = not option.opts[0].startswith("-")
    name, default = (_usage(option), "") if is_argument else (_option(option), _default(option))
    text = f"{_cell(option.help or '')} {default and f'Default: {default}.'}".strip()
    return f"- `{name}`: {text}"


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
