"""Induction where it is plainest: rows whose token has come exactly once before.

In source code, most rows are of tokens that stand everywhere (spaces, brackets, `self`), with many earlier copies and
no reason to look behind any one. At a token's first repeat there is one copy, and one place behind it. Null: the same
rows' rule after the text's words were shuffled.
Source: after Olsson et al. 2022, prefix matching; the rows are our choice.
"""

from __future__ import annotations

from collections.abc import Callable

from manyheads.recording.exact_map.requests import Match
from manyheads.statistics.defined.masses import MATCHES
from manyheads.statistics.statistic import Facts, PerText, Statistic

NAME = "first_repeat_mass"
NULL = f"{NAME}.relabelled"


def first_repeats() -> tuple[Statistic, Statistic]:
    """The weight on the token after the only earlier copy, and the same of shuffled words."""
    induction = next(each for each in MATCHES if each.name == "induction")
    meaning = "mean weight on the token after an earlier copy, over rows whose token came exactly once before"
    return (
        Statistic(NAME, *SCALE, meaning, lambda _: (induction.asked,), _over_first(induction.asked), asks=ASKS),
        Statistic(
            NULL,
            *SCALE,
            f"{NAME} if the text's words were shuffled",
            lambda _: (induction.shuffled,),
            _over_first(induction.shuffled),
            "chance",
            ASKS,
        ),
    )


SCALE = ("share", (0.0, 1.0), "after Olsson et al. 2022, prefix matching")
ASKS = frozenset({"tokens"})


def _over_first(request: Match) -> Callable[[Facts], PerText]:
    return lambda facts: facts.over_rows(facts[request], facts.reduced.matches(request) == 1)
