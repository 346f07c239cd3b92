"""Bad input gets an error of a kind and in words: one line of a test for each."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.checking import unchecked


def refuses(
    error: type[BaseException] | tuple[type[BaseException], ...],
    message: str,
    call: Callable,
    /,
    *args: Any,
    **kwargs: Any,
) -> None:
    """`call(*args, **kwargs)` raises `error`, in whose words `message`, a regular expression, is found.

    Types are not checked during the call: what people give, whatever its type says, must meet our own message.
    """
    with pytest.raises(error, match=message), unchecked():
        call(*args, **kwargs)
