"""Which cases of a grid `make test` runs: few, but every value of every parameter. `make test-all` runs all of them.

    @pytest.mark.thinned                             # name x attention: each name once, either attention by turns
    @pytest.mark.thinned(name=("gpt2", "llama"))     # of names, these are kinds enough; the others are slow

The other cases are marked slow: the same ones in every process and at every commit. A grid of one parameter is thinned
to kinds that differ in code, not in size. What costs a third of a second or more and cannot be made smaller is thinned
or slow, unless it is the main claim of its file.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

__all__ = ["chosen", "thin"]

Value = tuple[str, str]


def thin(items: Iterable[Any]) -> None:
    """Mark as slow the cases that `make test` can do without, of every function marked `thinned`."""
    grids: dict[str, list[Any]] = {}
    for item in items:
        function = item.nodeid.partition("[")[0]
        if item.get_closest_marker("thinned"):
            grids.setdefault(function, []).append(item)
    for function, grid in grids.items():
        quick = [item for item in grid if not item.get_closest_marker("slow")]
        thinned = grid[0].get_closest_marker("thinned")
        for name in thinned.kwargs:
            if name not in grid[0].callspec.params:
                raise pytest.UsageError(f"{function} is thinned by {name}, which is not a parameter of it")
        quick = [quick[at] for at in sorted(chosen([item.callspec.params for item in quick], thinned.kwargs))]
        for item in grid:
            if item not in quick:
                item.add_marker(pytest.mark.slow)


def chosen(cases: Sequence[dict[str, Any]], kinds: dict[str, Sequence[Any]]) -> set[int]:
    """Places of cases that hold every value of every parameter; of a parameter in `kinds`, every value listed there.

    One by one, the case with most values that none before it has; of equals, the one whose values were seen least, so
    that no parameter always meets the same value of another.
    """
    values = [[(name, repr(value)) for name, value in case.items()] for case in cases]
    wanted = {(name, repr(value)) for name, listed in kinds.items() for value in listed}
    left = {each for case in values for each in case if each[0] not in kinds or each in wanted}
    seen: dict[Value, int] = {}
    kept: set[int] = set()
    while left:
        at = max(
            range(len(values)), key=lambda i: (len(left & {*values[i]}), -sum(seen.get(v, 0) for v in values[i]), -i)
        )
        kept.add(at)
        left -= {*values[at]}
        for value in values[at]:
            seen[value] = seen.get(value, 0) + 1
    return kept
