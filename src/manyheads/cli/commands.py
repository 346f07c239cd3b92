"""The list of commands, and what is said when a line cannot be read as one."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Annotated, Any, Protocol, TypeVar, runtime_checkable

import typer
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from manyheads import __version__
from manyheads.base import nearest
from manyheads.cli import completion
from manyheads.cli.terminal.console import emit, print_whole, shortened

COMMANDS: tuple[str, ...] = (
    "manyheads.cli.look.command:look",
    "manyheads.cli.head.command:head",
    "manyheads.cli.cards:card",
    "manyheads.cli.roles.command:roles",
    "manyheads.cli.stats:stats",
    "manyheads.cli.stats:merge",
    "manyheads.cli.stats:compare",
    "manyheads.cli.interventions:ablate",
    "manyheads.cli.interventions:importance",
    "manyheads.cli.long_context:split",
    "manyheads.cli.circuits:patch",
    "manyheads.cli.circuits:circuit",
    "manyheads.cli.circuits:attribute",
    "manyheads.cli.why:why",
    "manyheads.cli.circuits:writes",
    "manyheads.cli.interventions:prune",
    "manyheads.cli.interventions:convert",
    "manyheads.cli.long_context:heads",
    "manyheads.cli.size:size",
    "manyheads.lab.commands:train",
    "manyheads.cli.watch:watch",
    "manyheads.lab.commands:reproduce",
    "manyheads.lab.commands:learn",
    "manyheads.lab.commands:practice",
    "manyheads.cli.studio:studio",
    "manyheads.cli.studio:publish",
    "manyheads.cli.fetch:fetch",
    "manyheads.cli.doctor:doctor",
)
"""The place of every command, in the order of `--help`. One that is named is imported alone: all of them take half of
the time in which a short command answers."""

NAMES = {place.rpartition(":")[2]: place for place in COMMANDS}

SENTENCE = "When Mary and John went to the store, John gave a drink to"
FINDING = ("L8H1", "John#2", "John#1", 0.87)
"""In that text, the head of `smollm2` with the largest weight from the one word to the other. A test measures it."""
GROUPS = {
    "Look": (
        ("look", 'every head; on your text: look "any text"'),
        (f'head {FINDING[0]} "any text"', "one head: where each word looks"),
        ("studio", "the same as a page, with experiments and more"),
    ),
    "Find out": (
        ("roles", "which head does what, and how surely"),
        ("stats --list", "every statistic by name, also a treebank's"),
        ("compare A B", "two models or checkpoints: which heads differ"),
        ("importance", "what every head is worth"),
        (f"ablate {FINDING[0]}", "what is lost without it, beside random heads"),
    ),
    "Circuits": (
        ("patch", "which heads carry an answer, and how surely"),
        ("circuit", "the fewest heads that keep an answer"),
        ("attribute", "what each head adds to a token's logit"),
    ),
    "Change": (
        ("prune --lowest 6 --out smaller", "remove heads, and save the smaller model"),
        ("split", "which heads need the whole context"),
    ),
    "Size": (("size llama-2-70b --context 128k", "parameters, FLOPs and KV cache"),),
    "Learn": (
        ("learn", "lessons whose numbers are computed as you read"),
        ("train induction", "watch an induction head grow, in two minutes"),
        ("watch heads.parquet", "the heads of your own training, while it runs"),
    ),
}
"""What people want, and the commands for it, each as a line to copy: what `manyheads` alone shows."""
MORE = {
    "card": "Look",
    "writes": "Circuits",
    "why": "Circuits",
    "merge": "Find out",
    "convert": "Change",
    "heads": "Change",
    "publish": "Look",
    "practice": "Learn",
    "reproduce": "Learn",
    "fetch": "Look",
    "doctor": "Look",
}
"""Commands that are only named there, and the group of each in `--help`."""

OTHER_NAMES = {"measure": "stats"}
"""Commands that may be typed by the library's name as well."""

GONE_OPTIONS = {"--save": "--out"}
"""Options that were called otherwise, and their names now."""

REMEDIES = {
    "less_than_equal": "give {le} or less",
    "greater_than_equal": "give {ge} or more",
    "int_parsing": "give a whole number",
    "int_parsing_size": "give a smaller number",
    "float_parsing": "give a number",
}
"""Of what typer calls wrong with a value: what to do."""

UsageError = typer.BadParameter.__mro__[1]
"""What any unreadable command line raises. Typer gives it no public name of its own."""


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments ask for, and return its exit code. Raises whatever it raises."""
    command_line = completion.words_before() if completion.VARIABLE in os.environ else list(arguments)
    command_line[:1] = [OTHER_NAMES.get(name, name) for name in command_line[:1]]
    if completion.VARIABLE in os.environ:  # typer answers, and needs the parameters of the command that is typed
        _parser(next((name for name in command_line[:1] if name in NAMES), ""))(prog_name="manyheads")
        return 0
    if not set(arguments) - {"--"}:
        print_whole(overview())
        return 0
    parser = _parser(command_line[0] if command_line[0] in NAMES else "")
    # An option of one value that is given twice is refused: else the last would win in silence.
    command = parser.commands.get(command_line[0])
    words = command_line[1 : command_line.index("--") if "--" in command_line else None]
    for option in () if command is None else command.params:
        if not isinstance(option, TyperOption) or option.multiple or option.is_flag:
            continue
        times = sum(word in option.opts or word.partition("=")[0] in option.opts for word in words)
        if times > 1:
            raise UsageError(f"give {option.opts[0]} once: it was given {times} times")
    code = parser(args=command_line, prog_name="manyheads", standalone_mode=False)
    return code if isinstance(code, int) else 0


def all_commands() -> list[Callable[..., Any]]:
    """Every command, imported."""
    return [resolve_name(place) for place in COMMANDS]


@functools.cache
def _parser(named: str) -> TyperGroup:
    """What reads a line: the named command with its parameters, or where none is named ("") every command.

    Made once a process for each: all of them take 60 ms, and their imports 0.3 s.
    """
    app = typer.Typer(
        cls=HelpfulGroup,
        add_completion=not named or completion.VARIABLE in os.environ,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def root(
        version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="On an error, also show the traceback.")] = False,
    ) -> None:
        """What every attention head of a transformer does, with evidence. Begin with: [bold]manyheads look[/bold]"""
        # --debug stands here to be shown by --help: `main` takes it out of the line before.
        if version:
            emit(f"manyheads {__version__}")
            raise typer.Exit

    group_of = {line.split()[0]: group for group, lines in GROUPS.items() for line, _ in lines} | MORE
    for command in [resolve_name(NAMES[named])] if named else all_commands():
        panel = group_of[command.__name__]
        app.command(cls=HelpfulCommand, help=help_of(command), rich_help_panel=panel)(command)
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup), "an app of commands is a group"
    return group


def overview() -> list[Text]:
    """What manyheads can do, on one screen: a real finding, then lines to copy, by what people want."""
    name, query, key, weight = FINDING
    lines = [
        Text.assemble(("manyheads", "bold"), ": what every attention head of a transformer does, with evidence."),
        Text(f'"{SENTENCE}"'),
        Text.assemble(
            (name, "bold"), f' looks from "{query}" to "{key}" with {weight:.0%} of its attention (model smollm2).'
        ),
        Text(),
    ]
    wide = max(len(line) for group in GROUPS.values() for line, _ in group)
    for title, group in GROUPS.items():
        for index, (line, words) in enumerate(group):
            start = (f"{title if not index else '':<10}", "bold")
            lines.append(Text.assemble(start, f"manyheads {line:<{wide}}  ", (words, "dim")))
    lines.append(Text.assemble((f"{'More':<10}", "bold"), ", ".join(MORE)))
    return [*lines, Text("Options of a command: manyheads COMMAND --help. All commands: manyheads --help.")]


def usage_story(error: Exception, command: str = "") -> str | None:
    """One line for a command line that could not be read; None for any other error. `command`: what was typed first."""
    if not isinstance(error, UsageError):
        return None
    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    message = getattr(error, "format_message", error.__str__)().strip().rstrip(".")
    # Typer's own words ("input should be less than or equal to 10") leave out what came; its cause knows that.
    problems = getattr(error.__cause__, "errors", list)()
    if problems and param is not None:
        problem = problems[0]
        remedy = REMEDIES.get(problem["type"], str(problem["msg"]).lower()).format(**problem.get("ctx", {}))
        message = f"{param.opts[0]} {shortened(str(problem['input']), 40)}: {remedy}"
    # Typer compares names with their dashes, which are alike in all of them: --keeep would be --help.
    if (typed := getattr(error, "option_name", "")) and context is not None:
        options = [
            name for known in context.command.get_params(context) for name in (*known.opts, *known.secondary_opts)
        ]
        words = {name.lstrip("-"): name for name in options if name.startswith("--")}
        now = GONE_OPTIONS.get(typed, "")
        near = [now] if now in options else [words[name] for name in nearest(typed.lstrip("-"), words, 2)]
        message = f"No such option: {typed}" + (f". Did you mean {' or '.join(near)}?" if near else "")
    message = re.sub(r"^Invalid value for '(--[a-z-]+)': ", r"\1 ", message)
    stop = "" if message.endswith("?") else "."
    known = command in NAMES
    where = context.command_path if context is not None else f"manyheads {command}" if known else "manyheads"
    return f"{message[:1].lower()}{message[1:]}{stop} See {where} --help."


# ---------------------------------------------------------------------------------------------------------------------
# How `--help` shows a command: said once, for all of them.
#
# Typer would show a flag as if it took a value (`--json <bool>`) and an argument with its Python type
# (`TEXT <list[str]>`), and would keep the line breaks of a docstring, which fit no terminal but ours.


class HelpfulCommand(TyperCommand):
    """A command that shows its parameters as they are typed."""

    context_class = typer.Context  # a public name for what a command is run in

    def get_params(self, ctx: typer.Context):
        return _as_typed(super().get_params(ctx))


class HelpfulGroup(TyperGroup):
    """The same for `manyheads` itself."""

    context_class = typer.Context

    def get_params(self, ctx: typer.Context):
        return _as_typed(super().get_params(ctx))


def help_of(command: Callable[..., Any]) -> str:
    """Its docstring, a line for each paragraph: the terminal wraps them."""
    parts = re.split(r"\n\s*\n", inspect.getdoc(command) or "")
    return "\n\n".join(" ".join(part.split()) for part in parts)


@runtime_checkable
class Parameter(Protocol):
    """What is changed here of Typer's own class, which it keeps to itself."""

    metavar: str | None


Some = TypeVar("Some", bound=Parameter)


def _as_typed(params: list[Some]) -> list[Some]:
    """The parameters, `--help` among them: a flag takes no value, and an argument has its name and no type."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif isinstance(param, TyperArgument):
            param.display_type_rich = lambda ctx: None  # typer has no option for that
    return params
