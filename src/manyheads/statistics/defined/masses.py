"""Masses: the mean weight that a row gives to certain keys, over the rows that see one of them.

By place (offsets, the local window, the first key), by class of token (sinks, punctuation, rare tokens ...) and by
match between tokens (the same token elsewhere; the key after, or before, an earlier copy). Each has chance twins:

- `<name>.uniform`: what a row gives those keys if it spreads its weight evenly over all it sees. Exact.
- `<name>.relabelled`: what this head gives them if the text's words are shuffled among the ordinary places. For a
  class the exact mean over all shuffles; for a match one shuffle, seeded by the text.

Rows are all rows of a text, special tokens among them. Oracle: `reference.statistics`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.recording import Received, Request, Tokens
from manyheads.recording.exact_map.requests import Band, Linear, Match, MatchReceived, RowsReceived
from manyheads.recording.tokens import relabelling
from manyheads.statistics.statistic import SHARE, Facts, Finish, PerText, Statistic, row_count

OFFSETS = tuple(range(-8, 9))
BAND = Band(OFFSETS)
LOCAL = 3  # a head that stays within three tokens either way is called local
NAMED_OFFSETS = {-1: "previous_mass", 0: "self_mass", 1: "next_mass"}
EVENLY = "if each row spread its weight evenly"
SHUFFLED = "if the text's words were shuffled"
Class = Callable[[Tokens], Bool[Tensor, "b k"]]


def class_mass(name: str, members: Class, meaning: str, *, source: str, asks: Sequence[str] = ("tokens",)) -> Statistic:
    """The mean weight on a class of tokens, over the rows that see one of them. Needs column sums only."""

    def finish(facts: Facts) -> PerText:
        column = members(facts.tokens).double()
        return PerText((facts[Received()] * column[:, None]).sum(-1), row_count(seeing(facts, members)))

    return Statistic(name, "share", SHARE, source, meaning, lambda _: (Received(),), finish, asks=frozenset(asks))


def class_uniform(of: Statistic, members: Class) -> Statistic:
    """The chance twin of a class mass: even spread over what a row sees."""

    def finish(facts: Facts) -> PerText:
        return facts.over_rows(even_mass(facts, members)[:, None], seeing(facts, members))

    return uniform(of, finish)


def class_relabelled(of: Statistic, members: Class) -> Statistic:
    """The chance twin of a class mass: its tokens moved to any ordinary places, the mean over all shuffles.

    Per row: the weight on ordinary places times the share of them that is in the class.
    """

    def finish(facts: Facts) -> PerText:
        column, ordinary = members(facts.tokens).double(), facts.tokens.ordinary.double()
        counted = seeing(facts, members)
        share = (column * ordinary).sum(-1) / ordinary.sum(-1).clamp_min(1)
        moved = facts.over_rows(facts[ON_ORDINARY], counted).num * share[:, None]
        fixed = (facts[Received()] * (column * (1 - ordinary))[:, None]).sum(-1)
        return PerText(moved + fixed, row_count(counted))

    return chance(of, "relabelled", SHUFFLED, finish, (Received(), ON_ORDINARY))


def uniform(of: Statistic, finish: Finish) -> Statistic:
    """The chance twin by even spread, which hangs on mask and tokens alone."""
    return chance(of, "uniform", EVENLY, finish, ())


def chance(of: Statistic, kind: str, meaning: str, finish: Finish, needs: tuple[Request, ...]) -> Statistic:
    """A chance level is a statistic too: the same unit, range and rows as what it is the chance of."""
    name, said = f"{of.name}.{kind}", f"{of.name} {meaning}"
    return Statistic(name, of.unit, of.range, of.source, said, lambda _: needs, finish, "chance", of.asks)


def _ordinary(tokens: Tokens) -> Float[Tensor, "b k"]:
    return tokens.ordinary.double()


ON_ORDINARY = Linear(_ordinary)


def even_mass(facts: Facts, members: Class) -> Float[Tensor, "b q"]:
    """The mass on a class if each row spread its weight evenly."""
    return facts.once(members, lambda: facts.uniform(members(facts.tokens).double()))


def seeing(facts: Facts, members: Class) -> Bool[Tensor, "b q"]:
    """Rows that see at least one key of a class."""
    return (even_mass(facts, members) > 0) & facts.rows


def offset_name(offset: int) -> str:
    return NAMED_OFFSETS.get(offset, f"offset_{offset:+d}_mass")


def offset_place(offset: int) -> str:
    named = {-1: "the token before", 0: "the token itself", 1: "the token after"}
    return named.get(offset, f"the token {offset:+d} away")


def offset_mass(offset: int) -> list[Statistic]:
    """The weight at one distance, over the rows that see a key there, and its chance twin."""

    def finish(facts: Facts) -> PerText:
        return facts.over_rows(facts[BAND][..., OFFSETS.index(offset)], has_key(facts, offset))

    def even(facts: Facts) -> PerText:
        return facts.over_rows((1 / facts.visible.clamp_min(1))[:, None], has_key(facts, offset))

    source = "Clark et al. 2019, section 3.1; the mean over rows with such a key"
    meaning = f"mean weight on {offset_place(offset)}"
    mass = Statistic(offset_name(offset), "share", SHARE, source, meaning, lambda _: (BAND,), finish)
    return [mass, uniform(mass, even)]


def has_key(facts: Facts, offset: int) -> Bool[Tensor, "b q"]:
    """Rows that see the key `offset` away."""
    return facts.once(("offset", offset), lambda: _has_key_now(facts, offset))


def _has_key_now(facts: Facts, offset: int) -> Bool[Tensor, "b q"]:
    mask, target = facts.reduced.mask, torch.arange(facts.rows.shape[1])[None] + offset
    if mask.dense is None:
        return ((target >= mask.start) & (target < mask.stop)).expand(facts.rows.shape)
    found = mask.dense.any(1).diagonal(offset, -2, -1)
    out = torch.zeros(found.shape[0], facts.rows.shape[1], dtype=torch.bool)
    begin = max(0, -offset)
    out[:, begin : begin + found.shape[1]] = found
    return out.expand(facts.rows.shape)


def local_mass() -> list[Statistic]:
    """The weight within `LOCAL` tokens either way, and its chance twin."""
    near = slice(OFFSETS.index(-LOCAL), OFFSETS.index(LOCAL) + 1)

    def finish(facts: Facts) -> PerText:
        return facts.over_rows(facts[BAND][..., near].sum(-1))

    def even(facts: Facts) -> PerText:
        keys = sum(has_key(facts, offset).double() for offset in OFFSETS[near])
        return facts.over_rows((keys / facts.visible.clamp_min(1))[:, None])

    source = "Voita et al. 2019, positional heads"
    meaning = f"mean weight within {LOCAL} tokens either way, the token itself included"
    mass = Statistic("local_mass", "share", SHARE, source, meaning, lambda _: (BAND,), finish)
    return [mass, uniform(mass, even)]


class Matched(NamedTuple):
    """A match between tokens in the table: what is asked, and the same of the text's words shuffled."""

    name: str
    meaning: str
    source: str
    asked: Match
    shuffled: Match


def matched(name: str, meaning: str, source: str, labels: Callable, **how: Any) -> Matched:
    """`labels(tokens, ids)` gives the labels of rows and of keys, so that the shuffled twin is the same, ids moved."""

    def plain(tokens: Tokens) -> tuple[Tensor, Tensor]:
        return labels(tokens, words(tokens))

    def moved(tokens: Tokens) -> tuple[Tensor, Tensor]:
        return labels(tokens, words(tokens).gather(1, relabelling(tokens)))

    return Matched(name, meaning, source, Match(plain, **how), Match(moved, **how))


def match_mass(each: Matched) -> list[Statistic]:
    """The weight on keys whose label equals the row's, over the rows that see one, and both chance twins."""

    def finish_with(request: Match) -> Finish:
        return lambda facts: facts.over_rows(facts[request], facts.reduced.matches(request) > 0)

    def even(facts: Facts) -> PerText:
        keys = facts.reduced.matches(each.asked)
        return facts.over_rows((keys / facts.visible.clamp_min(1))[:, None], keys > 0)

    name, meaning, asked = f"{each.name}_mass", f"mean weight on {each.meaning}", (each.asked,)
    finish, tokens = finish_with(each.asked), frozenset({"tokens"})
    mass = Statistic(name, "share", SHARE, each.source, meaning, lambda _: asked, finish, asks=tokens)
    shuffled = finish_with(each.shuffled)
    return [mass, uniform(mass, even), chance(mass, "relabelled", SHUFFLED, shuffled, (each.shuffled,))]


def words(tokens: Tokens) -> Int[Tensor, "b k"]:
    """Token ids, -1 on special tokens and padding: these match nothing."""
    assert tokens.ids is not None
    return torch.where(tokens.ordinary, tokens.ids, -1)


def same_token(tokens: Tokens, ids: Int[Tensor, "b k"]) -> tuple[Tensor, Tensor]:
    """Rows and keys carry their own token: they match where the tokens are the same."""
    return ids, ids


def after_same_token(tokens: Tokens, ids: Int[Tensor, "b k"]) -> tuple[Tensor, Tensor]:
    """A key carries the token before it: a row matches the key that followed an earlier copy of the row's token."""
    return ids, torch.nn.functional.pad(ids[:, :-1], (1, 0), value=-1)


def before_same_token(tokens: Tokens, ids: Int[Tensor, "b k"]) -> tuple[Tensor, Tensor]:
    """A key carries the token after it: a row matches the key that preceded a copy of its token, or its own token."""
    return ids, torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-1)


def separators(tokens: Tokens) -> Bool[Tensor, "b k"]:
    """What the tokenizer set behind or between texts ([SEP], an end of text): added tokens after the first place."""
    return tokens.real & ~tokens.ordinary & ~tokens.first


class Named(NamedTuple):
    """A class of tokens in the table. `movable`: shuffling the text's words moves it, so it has a relabelled twin."""

    name: str
    members: Class
    meaning: str
    source: str
    movable: bool = True
    asks: tuple[str, ...] = ("tokens",)


CLARK, XIAO = "Clark et al. 2019, section 3.2", "Xiao et al. 2024, attention sinks"
WORDS_OR_SINKS = ("tokens", "sinks")
CLASSES = (
    Named("first", lambda t: t.first, "the first token", XIAO, False, ()),
    Named("sink", lambda t: t.sink, "the model's own sinks, as found on text", XIAO, False, WORDS_OR_SINKS),
    Named("special", lambda t: t.real & ~t.ordinary, "tokens that the tokenizer added", CLARK, False),
    Named("separator", separators, "tokens that the tokenizer added, but for the first", CLARK, False),
    Named("punctuation", lambda t: t.punctuation, "punctuation", CLARK),
    Named("number", lambda t: t.number, "pieces that hold a digit", CLARK),
    Named("capitalised", lambda t: t.capitalised, "pieces written with a capital", CLARK),
    Named("rare", lambda t: t.rare, "the rarest tenth of the text's tokens", "Voita et al. 2019"),
)


def token_classes() -> list[Statistic]:
    """Every class of tokens, each with its chance twins."""
    out: list[Statistic] = []
    for each in CLASSES:
        meaning = f"mean weight on {each.meaning}"
        mass = class_mass(f"{each.name}_mass", each.members, meaning, source=each.source, asks=each.asks)
        out += [mass, class_uniform(mass, each.members)]
        out += [class_relabelled(mass, each.members)] if each.movable else []
    return out


WANG, OLSSON = "Wang et al. 2023, duplicate-token heads", "Olsson et al. 2022, offset"
AS_WRITTEN = f"{OLSSON} -1, as their text has it"
MATCHES = (
    matched("duplicate", "the same token elsewhere", WANG, same_token, elsewhere=True),
    matched("induction", "the token after an earlier copy", f"{OLSSON} +1", after_same_token, earlier=True),
    matched(
        "previous_copy", "the token before an earlier copy", AS_WRITTEN, before_same_token,
        earlier=True, apart=2,
    ),
)  # fmt: skip
"""The text of Olsson et al. has an induction head look at what *preceded* a copy; the mechanism, and others' code, at
what followed it. Both are here."""


def token_matches() -> list[Statistic]:
    """Matches between tokens, each with its chance twins, and what they are of what the sinks leave."""
    return [statistic for each in MATCHES for statistic in (*match_mass(each), _unsunk_match(each))]


def _unsunk_match(each: Matched) -> Statistic:
    """A ratio of sums over the rows that see a match: what goes to its keys, of all that does not go to a sink."""
    found, given = MatchReceived(each.asked), RowsReceived(each.asked)

    def finish(facts: Facts) -> PerText:
        free = ~facts.tokens.sink[:, None]  # what follows a copy may be a sink itself
        return PerText((facts[found] * free).sum(-1), (facts[given] * free).sum(-1))

    meaning = f"share of what does not go to a sink that is on {each.meaning}, in rows that see such a key"
    name, asks = f"{each.name}_unsunk_mass", frozenset(WORDS_OR_SINKS)
    return Statistic(name, "share", SHARE, each.source, meaning, lambda _: (found, given), finish, asks=asks)
