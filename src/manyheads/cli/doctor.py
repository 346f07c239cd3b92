"""`manyheads doctor`: what is here, what would run, and what is wrong. Exit 0 where nothing is, else 1."""

from __future__ import annotations

import typer
from rich.text import Text

from manyheads import doctor as examiner
from manyheads.cli.arguments import AsJson
from manyheads.cli.terminal.console import emit_document, knows_blocks, stdout_console
from manyheads.cli.terminal.progress import Talk

STYLES = {"title": "bold", "fine": "", "note": "", "absent": "dim", "wrong": "red"}


def doctor(as_json: AsJson = False) -> None:
    """What is installed, which backends run and why, and what is wrong.

    It checks packages, extras, the machine, attention against NumPy, the bundled models, folders, the studio, and
    environment variables.

    Exit 1 where something is wrong, with a line for each that says what to do.

    Where the command itself does not start: python -m manyheads.doctor
    """
    # It reads what every package says of itself, by modules that no other command needs to start.
    from manyheads.doctor.findings import lines

    with Talk().step("looking at packages, machine and models"):
        examination = examiner.examine()
    if as_json:
        emit_document(examination.to_dict())
    else:
        console = stdout_console()
        for state, line in lines(examination, console.width, plain=not knows_blocks(console)):
            console.print(Text(line, style=STYLES[state]), soft_wrap=True)
    if examination.wrong:
        raise typer.Exit(1)
