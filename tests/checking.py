"""Types are checked under pytest alone, at half of the tests' time: so shapes are compared only where there are any.

For every call jaxtyping opens a scope and binds all arguments, at many times the price of the check itself. A function
that speaks of no array has no shapes to compare: beartype alone checks it; where everything may be anything, nobody.
"""

import builtins
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from beartype.roar import BeartypeDecorException
from jaxtyping._decorator import _destring_annotation

__all__ = ["install"]

SHAPED = jaxtyping.jaxtyped
PLAIN = types.FunctionType


def install() -> None:
    """In place of jaxtyping's decorator, from here on. Must come before the first import of manyheads."""
    jaxtyping.jaxtyped = checked


def checked(fn: Any = None, /, *, typechecker: Any = None) -> Any:
    """`jaxtyping.jaxtyped`, but for plain functions without arrays."""
    if fn is None:
        return functools.partial(checked, typechecker=typechecker)
    unusual = inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
    if type(fn) is not PLAIN or unusual:
        return SHAPED(fn, typechecker=typechecker)
    hints = {name: _destring_annotation(hint, fn.__globals__) for name, hint in fn.__annotations__.items()}
    if any(map(speaks_of_arrays, hints.values())):
        return SHAPED(fn, typechecker=typechecker)
    if all(hint is Any for hint in hints.values()):
        return fn
    return without_shapes(fn, hints, typechecker)


def speaks_of_arrays(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    inside = hint if isinstance(hint, list) else get_args(hint)
    return any(map(speaks_of_arrays, inside))


def without_shapes(fn: Callable, hints: dict[str, Any], typechecker: Any) -> Callable:
    """`fn`, checked against these hints from its first call on: most functions of an import are never called."""
    strict = None

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal strict
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if strict is None:
            strict = by_beartype(fn, hints) or SHAPED(fn, typechecker=typechecker)
        return strict(*args, **kwargs)

    return called


def by_beartype(fn: Callable, hints: dict[str, Any]) -> Callable | None:
    """None where beartype cannot read the hints, or where its code, run among the module's names, would meet others."""
    if any(name in vars(builtins) for name in fn.__globals__ if not name.startswith("__")):
        return None  # a function called `next`, say
    same = PLAIN(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    functools.update_wrapper(same, fn)
    del same.__wrapped__
    same.__kwdefaults__, same.__annotations__ = fn.__kwdefaults__, hints
    try:
        return beartype(same)
    except BeartypeDecorException:
        return None
