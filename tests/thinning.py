"""Which cases of a grid `make test` holds: few, but every value of every parameter. `make test-all` holds all.

    @pytest.mark.thinned                             # name x attention: each name once, each attention in turns
    @pytest.mark.thinned(name=("gpt2", "llama"))     # of names, these are kinds enough; the others are slow

    @pytest.mark.sampled(12)                         # twelve cases, drawn by the seed: each commit runs others
    @pytest.mark.turns(3)                            # all cases, in one commit of three, by the seed and the name

The other cases are marked slow, by the same rule in every process. A test takes turns where it costs a third of a
second, says a detail or a further surface of what others prove in every run, and cannot be made smaller.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests import seeds

__all__ = ["chosen", "thin"]

Value = tuple[str, str]


def thin(items: Iterable[Any]) -> None:
    """Mark as slow what `make test` can do without, of every function marked `thinned`, `sampled`, or `turns`."""
    grids: dict[str, list[Any]] = {}
    for item in items:
        function = item.nodeid.partition("[")[0]
        if (turns := item.get_closest_marker("turns")) and seeds.seed_of(f"turn of {function}") % turns.args[0]:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("thinned") or item.get_closest_marker("sampled"):
            grids.setdefault(function, []).append(item)
    for function, grid in grids.items():
        quick = [item for item in grid if not item.get_closest_marker("slow")]
        if thinned := grid[0].get_closest_marker("thinned"):
            for name in thinned.kwargs:
                if name not in grid[0].callspec.params:
                    raise pytest.UsageError(f"{function} is thinned by {name}, which is no parameter of it")
            quick = [quick[at] for at in sorted(chosen([item.callspec.params for item in quick], thinned.kwargs))]
        sampled = grid[0].get_closest_marker("sampled")
        if sampled and len(quick) > sampled.args[0]:
            quick = random.Random(f"{seeds.seed()} {function}").sample(quick, sampled.args[0])
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
