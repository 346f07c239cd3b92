"""Attention patterns to build heads for, as plain values: `HeadDesign`, and a function for each pattern.

A design is a pattern and its sharpness. `weights` turns it into matrices, `model` into a model. Sharpness is a gap
between scores, in nats: in a row that sees keys of the pattern, each of them scores at least that much above every
other key; in a row that sees none, the first token does. So a head's weights have a floor, `HeadDesign.least_mass`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from manyheads.errors import PlanError
from manyheads.texts import is_punctuation

SHARP = 10.0  # e^-10: over 512 keys, at most 2.3 % of a row are off its targets
RANDOM_SHARPNESS = 2.0  # of a random head: some keys get 50 times what others get, as in trained models
SHARPEST = 30.0  # e^-30 is below what float32 can tell from 0

Members: TypeAlias = "Callable[[str], bool] | frozenset[str | int]"
"""A class of tokens: those for whose text a function is true, or a set of tokens and ids."""


@dataclass(frozen=True)
class HeadDesign:
    """One head to build: `kind` is the pattern, `sharpness` the gap in nats, `role` the label that is right for it.

    `offset` and `members` complete the kinds that need them. Errors: PlanError for a sharpness out of range.
    """

    kind: str
    sharpness: int | float
    role: str
    offset: int = 0
    members: Members | None = None

    def __post_init__(self) -> None:
        number = self.sharpness
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= SHARPEST:
            raise PlanError(
                f"sharpness={number!r} is not a gap between scores: give nats, above 0, up to {SHARPEST:g}."
            )

    def least_mass(self, num_keys: int, num_targets: int = 1) -> float:
        """The share of a row's weight on its targets, at the least, if it sees `num_keys` keys, targets among them.

        `t / (t + (n - t) e^-sharpness)`. A row without targets counts the first token as its one. A uniform head
        gives exactly `t / n`; a random one promises nothing (0). Before noise, if the model has any.
        """
        if self.kind in ("uniform", "random"):
            return num_targets / num_keys if self.kind == "uniform" else 0.0
        return num_targets / (num_targets + (num_keys - num_targets) * math.exp(-self.sharpness))


def previous(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the token before, and writes down for induction heads in later layers which one that was."""
    return HeadDesign("offset", sharpness, "previous token", offset=-1)


def next(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the token after: only in models that are not causal."""
    return HeadDesign("offset", sharpness, "next token", offset=1)


def offset(tokens: int, sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the token at this distance: -2 is two before, 0 the token itself."""
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        raise PlanError(f"{tokens!r} is not a number of tokens: give a whole one, -2 for two tokens before.")
    roles = {-1: "previous token", 0: "self", 1: "next token"}
    return HeadDesign("offset", sharpness, roles.get(tokens, f"offset {tokens:+d}"), offset=tokens)


def first(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the first token, whatever it is: heads without a match rest there."""
    return HeadDesign("first", sharpness, "sink")


def separator(token: str | None = None, sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to separators, all alike: the tokenizer's own separator or end token, or `token`."""
    if token is None:
        return HeadDesign("separator", sharpness, "sink")
    if not isinstance(token, str):
        raise PlanError(
            f"{token!r} is not a token: give a text such as '[SEP]' or '.', or nothing for the tokenizer's."
        )
    return HeadDesign("members", sharpness, "sink", members=frozenset([token]))


def same_token(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the same token elsewhere in the text, all copies alike, and not to itself."""
    return HeadDesign("same", sharpness, "duplicate token")


def token_class(
    members: Callable[[str], bool] | Iterable[str | int], sharpness: int | float = SHARP, *, role: str = "token class"
) -> HeadDesign:
    """Attends to the tokens of a class, all alike. `members`: tokens and ids, or a function of a token's text.

    The function receives a token's text without the tokenizer's marks ("ing" for "##ing"); a token in a list must be
    written as the tokenizer has it.
    """
    if callable(members):
        return HeadDesign("members", sharpness, role, members=members)
    if isinstance(members, str) or not isinstance(members, Iterable):
        raise PlanError(
            f"members={members!r} is not a class of tokens: give a list such as ['the', 'a'], or a function."
        )
    tokens = frozenset(members)
    if strange := [token for token in tokens if isinstance(token, bool) or not isinstance(token, str | int)]:
        raise PlanError(f"{strange[0]!r} is neither a token nor an id: members are texts or whole numbers.")
    if not tokens:
        raise PlanError("members is empty: give at least one token, or use first() for a head that rests.")
    return HeadDesign("members", sharpness, role, members=tokens)


def punctuation(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to punctuation and symbols (Unicode categories P and S), all alike: a token class."""
    return token_class(is_punctuation, sharpness, role="punctuation")


def uniform() -> HeadDesign:
    """Attends equally to every key that it sees: its scores are 0."""
    return HeadDesign("uniform", SHARP, "broad")


def induction(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the tokens after earlier copies of its own token (Olsson et al. 2022), in causal models.

    The second head of a circuit: some earlier layer must have a `previous()` head, which writes down at each token
    which one came before. It copies the token that it reads into the model's prediction of the next token.
    """
    return HeadDesign("induction", sharpness, "induction")


def random(sharpness: int | float = RANDOM_SHARPNESS) -> HeadDesign:
    """Random weights, whose scores differ by about `sharpness` nats (standard deviation over pairs of tokens)."""
    return HeadDesign("random", sharpness, "unlabelled")
