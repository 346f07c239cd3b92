"""Types are checked under pytest alone, and cost more than what is tested: so not every call of a function is checked.

- `make test` checks the first calls (CALLS) of each function in each file of tests, `make test-all` every call.
- What modules compute while they are imported is not checked: no test runs yet.
- A function is made checkable when it is first called, and a dataclass when its first value is made: most of an import
  never are. Of a function that stands in another, only the first: every call of the other makes it again, and its
  checks take a millisecond to make.
- What a function refuses in words of ours, whatever its type says, meets these words: they are what people read.
- The import hook keeps what it compiles under names of its own. Packages that our modules import keep the usual ones:
  they are not compiled again.
- For every call jaxtyping opens a scope and binds all arguments, at many times the price of the check itself. A
  function that speaks of no array has no shapes to compare: beartype alone checks it.
"""

import builtins
import dataclasses
import functools
import importlib.machinery
import inspect
import math
import types
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, get_args
from unittest.mock import patch

import jaxtyping
import jaxtyping._import_hook as hook
from beartype import beartype
from beartype.roar import BeartypeCallHintParamViolation, BeartypeDecorException
from jaxtyping._decorator import _destring_annotation

__all__ = ["install", "unchecked"]

SHAPED = jaxtyping.jaxtyped
PLAIN = types.FunctionType
CALLS = 15  # of a function, in a file of tests
INNER: set[types.CodeType] = set()


class running:
    """The file of tests that is running, and how many calls of a function are checked in each."""

    file = ""
    calls: float = CALLS


def install() -> None:
    """In place of jaxtyping's decorator, from here on. Must come before the first import of manyheads."""
    jaxtyping.jaxtyped = checked
    del hook._JaxtypingLoader.exec_module
    hook._JaxtypingLoader.get_code = own_code


@contextmanager
def unchecked() -> Iterator[None]:
    """No type is checked meanwhile: what a wrong value meets is what users meet."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def own_code(loader: Any, name: str) -> Any:
    named = functools.partial(hook._optimized_cache_from_source, loader._typechecker.get_hash())
    with patch("importlib._bootstrap_external.cache_from_source", named):
        return importlib.machinery.SourceFileLoader.get_code(loader, name)


def checked(fn: Any = None, /, *, typechecker: Any = None) -> Any:
    """`jaxtyping.jaxtyped`, but for plain functions."""
    if fn is None:
        return functools.partial(checked, typechecker=typechecker)
    if dataclasses.is_dataclass(fn) and not hasattr(fn.__init__, "__wrapped__"):
        fn.__init__ = at_first_calls(fn.__init__, lambda init: SHAPED(init, typechecker=typechecker))
    if inspect.isclass(fn):
        return fn
    unusual = inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
    if type(fn) is PLAIN and inspect.isgeneratorfunction(fn):
        strict = SHAPED(fn, typechecker=typechecker)
        return functools.wraps(fn)(
            lambda *args, **kwargs: (fn if jaxtyping.config.jaxtyping_disable else strict)(*args, **kwargs)
        )
    if type(fn) is not PLAIN or unusual:
        return SHAPED(fn, typechecker=typechecker)
    if all(hint in (Any, "Any") for hint in fn.__annotations__.values()):
        return fn
    if "triton" in fn.__globals__:  # which compiles the very function that it is handed
        return fn
    if "<locals>" in fn.__qualname__ and running.calls < math.inf:
        if fn.__code__ in INNER:
            return fn
        INNER.add(fn.__code__)
    return at_first_calls(fn, lambda plain: checkable(plain, typechecker))


def at_first_calls(fn: Callable, made: Callable[[Callable], Callable]) -> Callable:
    strict, file, calls = None, "", 0

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal strict, file, calls
        if not running.file:  # tests are being collected
            return fn(*args, **kwargs)
        if file != running.file:
            file, calls = running.file, 0
        calls += 1
        if calls > running.calls or jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if strict is None:
            strict = made(fn)
        try:
            return strict(*args, **kwargs)
        except (BeartypeCallHintParamViolation, jaxtyping.TypeCheckError) as violation:
            # What the function refuses itself meets its own words, as it does where nobody checks types.
            if not getattr(violation, "settled", False):
                violation.settled = True  # an outer function's call is not made again
                with own_words(violation):
                    fn(*args, **kwargs)
            raise

    return called


@contextmanager
def own_words(violation: Exception) -> Generator[None]:
    try:
        yield
    except Exception as error:
        if type(error).__module__ == "manyheads.errors":
            raise error from None
        raise violation from error


def checkable(fn: Callable, typechecker: Any) -> Callable:
    hints = {name: _destring_annotation(hint, fn.__globals__) for name, hint in fn.__annotations__.items()}
    plain = None if any(map(speaks_of_arrays, hints.values())) else by_beartype(fn, hints)
    return plain or SHAPED(fn, typechecker=typechecker)


def speaks_of_arrays(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    inside = hint if isinstance(hint, list) else get_args(hint)
    return any(map(speaks_of_arrays, inside))


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
