"""How `--help` shows a command: said once, for all of them.

Typer would show a flag as if it took a value (`--json <bool>`) and an argument with its Python type
(`TEXT <list[str]>`), and would keep the line breaks of a docstring, which fit no terminal but ours.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from typer.core import TyperCommand, TyperGroup


class HelpfulCommand(TyperCommand):
    """A command that shows its parameters as they are typed."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_typed(super().get_params(ctx))


class HelpfulGroup(TyperGroup):
    """The same for `manyheads` itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_typed(super().get_params(ctx))


def help_of(command: Callable[..., Any]) -> str:
    """Its docstring, a line for each paragraph: the terminal wraps them."""
    parts = re.split(r"\n\s*\n", inspect.getdoc(command) or "")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def _as_typed(params: list[Any]) -> list[Any]:
    """The parameters, `--help` among them: a flag takes no value, and an argument has its name and no type."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
        elif each.param_type_name == "argument":
            each.display_type_rich = lambda ctx: None  # typer has no option for that
    return params
