"""What a head is to attend to, as plain values: `HeadDesign`, and a function for each pattern.

A design says the pattern and how sharply. `designweights` makes weights of it, `designedmodels` a model. Sharpness is a
gap between scores, in nats: in a row that sees keys of the pattern, each of them scores at least so much above every
other key; in a row that sees none, the first token does. So a head's weights have a floor, `HeadDesign.least_mass`.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from manyheads.errors import PlanError

SHARP = 10.0  # e^-10: over 512 keys, at most 2.3 % of a row go astray
RANDOM_SHARPNESS = 2.0  # of a random head: some keys get 50 times what others get, as in trained models
SHARPEST = 30.0  # e^-30 is below what float32 can tell from 0

Members: TypeAlias = "Callable[[str], bool] | frozenset[str | int]"
"""Which tokens: those whose text a function says yes to, or a set of tokens and ids."""


@dataclass(frozen=True)
class HeadDesign:
    """One head made to order: `kind` is the pattern, `sharpness` the gap in nats, `role` what a right label calls it.

    `offset` and `members` say more where the kind needs it. Errors: PlanError for a sharpness that is none.
    """

    kind: str
    sharpness: int | float
    role: str
    offset: int = 0
    members: Members | None = None

    def __post_init__(self) -> None:
        number = self.sharpness
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= SHARPEST:
            raise PlanError(f"sharpness={number!r} is no gap between scores: give nats, above 0, up to {SHARPEST:g}.")

    def least_mass(self, num_keys: int, num_targets: int = 1) -> float:
        """The share of a row's weight on its targets, at the least, if it sees `num_keys` keys, targets among them.

        `t / (t + (n - t) e^-sharpness)`. A row without targets counts the first token as its one. A uniform head
        gives exactly `t / n`; a random one promises nothing (0). Before noise, if the model has any.
        """
        if self.kind in ("uniform", "random"):
            return num_targets / num_keys if self.kind == "uniform" else 0.0
        return num_targets / (num_targets + (num_keys - num_targets) * math.exp(-self.sharpness))


def previous(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the token before. What induction heads in later layers read is written by these."""
    return HeadDesign("offset", sharpness, "previous token", offset=-1)


def next(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the token after: in models that look both ways."""
    return HeadDesign("offset", sharpness, "next token", offset=1)


def offset(tokens: int, sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the token so many places away: -2 is two before, 0 the token itself."""
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        raise PlanError(f"{tokens!r} is no number of tokens: give a whole one, -2 for two tokens before.")
    named = {-1: "previous token", 0: "self", 1: "next token"}
    return HeadDesign("offset", sharpness, named.get(tokens, f"offset {tokens:+d}"), offset=tokens)


def first(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the first token, whatever it is: where heads go that have nothing to do."""
    return HeadDesign("first", sharpness, "sink")


def separator(token: str | None = None, sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to separators, all alike: the tokenizer's own separator or end token, or the one given."""
    if token is None:
        return HeadDesign("separator", sharpness, "sink")
    if not isinstance(token, str):
        raise PlanError(f"{token!r} is no token: give a text such as '[SEP]' or '.', or nothing for the tokenizer's.")
    return HeadDesign("members", sharpness, "sink", members=frozenset([token]))


def same_token(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to the same token elsewhere in the text, all copies alike, and not to itself."""
    return HeadDesign("same", sharpness, "duplicate token")


def token_class(
    members: Callable[[str], bool] | Iterable[str | int], sharpness: int | float = SHARP, *, role: str = "token class"
) -> HeadDesign:
    """Attends to the tokens of a class, all alike. `members`: tokens and ids, or a function of a token's text.

    The function gets a token as it reads, without the tokenizer's marks ("ing" for "##ing"); a token that is given must
    be written as the tokenizer has it.
    """
    if callable(members):
        return HeadDesign("members", sharpness, role, members=members)
    if isinstance(members, str) or not isinstance(members, Iterable):
        raise PlanError(f"members={members!r} is no class of tokens: give a list such as ['the', 'a'], or a function.")
    found = frozenset(members)
    if strange := [each for each in found if isinstance(each, bool) or not isinstance(each, str | int)]:
        raise PlanError(f"{strange[0]!r} is neither a token nor an id: members are texts or whole numbers.")
    if not found:
        raise PlanError("members is empty: give at least one token, or use first() for a head that rests.")
    return HeadDesign("members", sharpness, role, members=found)


def punctuation(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to punctuation and symbols (Unicode categories P and S), all alike: a token class."""
    return token_class(_is_punctuation, sharpness, role="punctuation")


def uniform() -> HeadDesign:
    """Attends to everything that it sees alike: its scores are 0."""
    return HeadDesign("uniform", SHARP, "broad")


def induction(sharpness: int | float = SHARP) -> HeadDesign:
    """Attends to what followed earlier copies of its token (Olsson et al. 2022), in models that look back only.

    The second head of a circuit: some earlier layer must have a `previous()` head, which writes down at each token
    which one came before. It copies what it reads into the model's prediction of the next token.
    """
    return HeadDesign("induction", sharpness, "induction")


def random(sharpness: int | float = RANDOM_SHARPNESS) -> HeadDesign:
    """Random weights, whose scores differ by about `sharpness` nats (standard deviation over pairs of tokens)."""
    return HeadDesign("random", sharpness, "unlabelled")


def _is_punctuation(text: str) -> bool:
    return bool(text) and all(unicodedata.category(char)[0] in "PS" for char in text)
