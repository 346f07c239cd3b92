"""Functions of a user's own: what they take, by the names of their arguments, and where they are, as "module:name".

An edit, or the definition of a statistic, names what it needs and gets nothing else: `def flip(output)`,
`def mine(weights, v)`. So what is dear, as a map of n x n weights, is computed only for a function that names it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from traceback import extract_tb
from types import CodeType
from typing import cast

from manyheads.base import first_line, nearest
from manyheads.errors import ManyHeadsError

__all__ = ["argument_names", "code_of", "failure", "imported", "location", "name_of", "reference_of"]

Function = Callable[..., object]


def argument_names(
    function: Function, known: Collection[str], about: str, error: type[ManyHeadsError]
) -> tuple[str, ...]:
    """The arguments of a function that are among `known`; others keep their defaults.

    `about` begins the message. Raises `error` for what is not a function, for an argument that is unknown and has no
    default, and where none is known.
    """
    offered = ", ".join(known)
    is_class = inspect.isclass(function)
    if not callable(function) or is_class:
        kind = "a class" if is_class else f"a {type(function).__name__}"
        raise error(f"{about}: {function!r} is {kind}: give a function whose arguments are among {offered}.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as reason:  # of some functions that are not written in Python
        raise error(
            f"{about}: the arguments of {name_of(function)} cannot be read: put a function of your own around it, "
            f"whose arguments are among {offered}."
        ) from reason
    names: list[str] = []
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if parameter.name in known and by_name:
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_KEYWORD or (by_name and parameter.default is not parameter.empty):
            continue
        else:
            near = nearest(parameter.name, list(known))
            guess = f" (did you mean {near[0]!r}?)" if near and parameter.name not in known else ""
            raise error(
                f"{about}: {name_of(function)} takes {str(parameter)!r}, and arguments are passed by name: name its "
                f"arguments {offered}{guess}."
            )
    if not names:
        raise error(f"{about}: {name_of(function)} takes none of {offered}: name what it needs.")
    return tuple(names)


def name_of(function: Function) -> str:
    """What people call a function: "flip", "Model.forward", "<lambda>"; of an object that is called, its class."""
    plain = _inner(function)
    return str(getattr(plain, "__qualname__", type(plain).__name__))


def reference_of(function: Function) -> str:
    """Where a function is, as "my_edits:flip". Whether another process finds it there, `imported` tells."""
    plain = _inner(function)
    return f"{getattr(plain, '__module__', type(plain).__module__)}:{name_of(function)}"


def code_of(function: Function) -> str:
    """A function's name and its code, as words that are equal only where these are. What it calls is not seen."""
    code = getattr(_inner(function), "__code__", None)
    if not isinstance(code, CodeType):
        return reference_of(function)
    # Sets among the constants are in another order in another process.
    constants: list[object] = []
    for value in code.co_consts:
        if isinstance(value, frozenset):
            constants.append(sorted(map(repr, cast("frozenset[object]", value))))
        elif not inspect.iscode(value):
            constants.append(value)
    return f"{reference_of(function)} {(code.co_code, code.co_names, constants)!r}"


def _inner(function: Function) -> Function:
    """The function in a `partial`, else itself."""
    return cast(Function, function.func) if isinstance(function, partial) else function


def imported(reference: str, about: str, error: type[ManyHeadsError], *, run: bool = True) -> object:
    """What "my_edits:flip" names: `flip` of the module `my_edits`. `about` begins the message.

    `run=False`: of a module that is imported already, and of no other: a file that somebody sent runs no code.
    Raises `error` for a text of another form, a module that is not there or fails, and a name that it has not.
    """
    module_name, colon, path = reference.partition(":")
    parts = [*module_name.split("."), *path.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise error(f"{about}: {reference!r} is not written as module:name, as in my_edits:flip.")
    module = sys.modules.get(module_name)
    if module is None and not run:
        raise error(
            f"{about}: {reference!r} is code, which no file can hold: `import {module_name}` before it is read."
        )
    if module is None:
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as reason:
            if isinstance(reason, ModuleNotFoundError) and reason.name in (module_name, module_name.partition(".")[0]):
                raise error(
                    f"{about}: there is no module {module_name!r} in this folder or among the installed ones: write "
                    f"the name of a file without its .py."
                ) from reason
            words = f"{type(reason).__name__}: {first_line(reason, 200)}"
            raise error(f"{about}: {module_name!r} cannot be imported: {words}.") from reason
    value: object = module
    for name in path.split("."):
        if not hasattr(value, name):
            near = nearest(name, [known for known in vars(module) if not known.startswith("_")])
            guess = f": did you mean {', '.join(near)}?" if near else "."
            raise error(f"{about}: {module_name} has no {path!r}{guess}")
        value = getattr(value, name)
    return value


def location(function: Function, failed: BaseException | None = None) -> str:
    """ " (mine.py, line 3)": where a function failed, the last line of its own file; else where it begins."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    frames = extract_tb(None if failed is None else failed.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == code.co_filename), code.co_firstlineno)
    return f" ({Path(code.co_filename).name}, line {line})"


def failure(function: Function, failed: BaseException) -> str:
    """Where and why a function failed, in words: "flip (mine.py, line 3) failed: ValueError: ..."."""
    words = first_line(failed, 200)
    reason = f"{type(failed).__name__}: {words}" if words else type(failed).__name__
    return f"{name_of(function)}{location(function, failed)} failed: {reason}"
