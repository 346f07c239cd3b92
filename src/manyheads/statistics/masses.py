"""Masses: the mean weight that a row gives to certain keys, over the rows that see one of them.

By place (offsets, the local window, the first key), by class of token (sinks, punctuation, rare tokens ...) and by
match between tokens (the same token elsewhere; the key after an earlier copy). Each has chance twins:

- `<name>.uniform`: what a row gives those keys if it spreads its weight evenly over all it sees. Exact.
- `<name>.relabelled`: what this head gives them if the text's words are shuffled among the ordinary places. For a
  class the exact mean over all shuffles; for a match one shuffle, seeded by the text.

Rows are all rows of a text, special tokens among them. Oracle: `reference.statistics`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.recording.requests import Band, Linear, Match, Received, Request
from manyheads.recording.tokens import Tokens, relabelling
from manyheads.statistics.statistic import Facts, PerText, Statistic

OFFSETS = tuple(range(-8, 9))
BAND = Band(OFFSETS)
LOCAL = 3  # a head that stays within three tokens either way is called local
SHARE = (0.0, 1.0)
NAMED_OFFSETS = {-1: "previous_mass", 0: "self_mass", 1: "next_mass"}
NOTHING: tuple[Request, ...] = ()
Class = Callable[[Tokens], Bool[Tensor, "b k"]]


def class_mass(name: str, members: Class, meaning: str, *, source: str, asks: Sequence[str] = ("tokens",)) -> Statistic:
    """The mean weight on a class of tokens, over the rows that see one of them. Needs column sums only."""

    def finish(facts: Facts) -> PerText:
        column = members(facts.tokens).double()
        return PerText((facts[Received()] * column[:, None]).sum(-1), _count(_seeing(facts, members)))

    return Statistic(name, "share", SHARE, source, meaning, lambda _: (Received(),), finish, asks=frozenset(asks))


def class_uniform(of: Statistic, members: Class) -> Statistic:
    """The chance twin of a class mass: even spread over what a row sees."""

    def finish(facts: Facts) -> PerText:
        return facts.over_rows(_even(facts, members)[:, None], _seeing(facts, members))

    return chance(of, "uniform", "if each row spread its weight evenly", finish)


def class_relabelled(of: Statistic, members: Class) -> Statistic:
    """The chance twin of a class mass: its tokens moved to any ordinary places, the mean over all shuffles.

    Per row: the weight on ordinary places times the share of them that is in the class.
    """

    def finish(facts: Facts) -> PerText:
        column, ordinary = members(facts.tokens).double(), facts.tokens.ordinary.double()
        counted = _seeing(facts, members)
        share = (column * ordinary).sum(-1) / ordinary.sum(-1).clamp_min(1)
        moved = facts.over_rows(facts[ON_ORDINARY], counted).num * share[:, None]
        fixed = (facts[Received()] * (column * (1 - ordinary))[:, None]).sum(-1)
        return PerText(moved + fixed, _count(counted))

    return chance(of, "relabelled", "if the text's words were shuffled", finish, (Received(), ON_ORDINARY))


def chance(of: Statistic, kind: str, meaning: str, finish: Callable, needs: tuple[Request, ...] = NOTHING) -> Statistic:
    """A chance level is a statistic too: the same unit, range and rows as what it is the chance of."""
    name, said = f"{of.name}.{kind}", f"{of.name} {meaning}"
    return Statistic(name, of.unit, of.range, of.source, said, lambda _: needs, finish, "chance", of.asks)


def _ordinary(tokens: Tokens) -> Float[Tensor, "b k"]:
    return tokens.ordinary.double()


ON_ORDINARY = Linear(_ordinary)


def _even(facts: Facts, members: Class) -> Float[Tensor, "b q"]:
    """The mass on a class if each row spread its weight evenly."""
    return facts.once(members, lambda: facts.uniform(members(facts.tokens).double()))


def _seeing(facts: Facts, members: Class) -> Bool[Tensor, "b q"]:
    """Rows that see at least one key of a class."""
    return (_even(facts, members) > 0) & facts.rows


def _count(rows: Bool[Tensor, "b q"]) -> Float[Tensor, "b one"]:
    return rows.sum(-1, dtype=torch.float64)[:, None]


def offset_name(offset: int) -> str:
    return NAMED_OFFSETS.get(offset, f"offset_{offset:+d}_mass")


def offset_mass(offset: int) -> list[Statistic]:
    """The weight at one distance, over the rows that see a key there, and its chance twin."""
    where = {-1: "the token before", 0: "the token itself", 1: "the token after"}.get(
        offset, f"the token {offset:+d} away"
    )

    def finish(facts: Facts) -> PerText:
        return facts.over_rows(facts[BAND][..., OFFSETS.index(offset)], _has_key(facts, offset))

    def even(facts: Facts) -> PerText:
        return facts.over_rows((1 / facts.visible.clamp_min(1))[:, None], _has_key(facts, offset))

    source = "Clark et al. 2019, section 3.1; the mean over rows with such a key"
    mass = Statistic(offset_name(offset), "share", SHARE, source, f"mean weight on {where}", lambda _: (BAND,), finish)
    return [mass, chance(mass, "uniform", "if each row spread its weight evenly", even)]


def _has_key(facts: Facts, offset: int) -> Bool[Tensor, "b q"]:
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
        keys = sum(_has_key(facts, offset).double() for offset in OFFSETS[near])
        return facts.over_rows((keys / facts.visible.clamp_min(1))[:, None])

    meaning = f"mean weight within {LOCAL} tokens either way, the token itself included"
    mass = Statistic(
        "local_mass", "share", SHARE, "Voita et al. 2019, positional heads", meaning, lambda _: (BAND,), finish
    )
    return [mass, chance(mass, "uniform", "if each row spread its weight evenly", even)]


def match_mass(name: str, labels: Callable, meaning: str, source: str, **how: bool) -> list[Statistic]:
    """The weight on keys whose label equals the row's, over the rows that see one, and both chance twins.

    `labels(tokens, ids)` gives the labels of rows and of keys, so that the relabelled twin is the same, `ids` shuffled.
    """

    def plain(tokens: Tokens) -> tuple[Tensor, Tensor]:
        return labels(tokens, words(tokens))

    def shuffled(tokens: Tokens) -> tuple[Tensor, Tensor]:
        return labels(tokens, words(tokens).gather(1, relabelling(tokens)))

    asked, moved = Match(plain, **how), Match(shuffled, **how)

    def finish_with(request: Match) -> Callable[[Facts], PerText]:
        return lambda facts: facts.over_rows(facts[request], matches(facts, request) > 0)

    def even(facts: Facts) -> PerText:
        keys = matches(facts, asked)
        return facts.over_rows((keys / facts.visible.clamp_min(1))[:, None], keys > 0)

    mass = Statistic(
        name, "share", SHARE, source, meaning, lambda _: (asked,), finish_with(asked), asks=frozenset({"tokens"})
    )
    return [
        mass,
        chance(mass, "uniform", "if each row spread its weight evenly", even),
        chance(mass, "relabelled", "if the text's words were shuffled", finish_with(moved), (moved,)),
    ]


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


def matches(facts: Facts, request: Match) -> Float[Tensor, "b q"]:
    """How many visible keys each row's label matches. Same for all layers with one mask: kept beside the labels."""
    return facts.reduced.matches(request)


def token_classes() -> list[Statistic]:
    """Every class of tokens, each with its chance twins."""
    clark, xiao = "Clark et al. 2019, section 3.2", "Xiao et al. 2024, attention sinks"
    rows: list[tuple[str, Class, str, str, tuple[str, ...], bool]] = [
        ("first_mass", lambda t: t.first, "the first token", xiao, (), False),
        ("sink_mass", lambda t: t.sink, "the model's own sinks, as found on text", xiao, ("tokens", "sinks"), False),
        ("special_mass", lambda t: t.real & ~t.ordinary, "tokens that the tokenizer added", clark, ("tokens",), False),
        ("punctuation_mass", lambda t: t.punctuation, "punctuation", clark, ("tokens",), True),
        ("number_mass", lambda t: t.number, "pieces that hold a digit", clark, ("tokens",), True),
        ("capitalised_mass", lambda t: t.capitalised, "pieces written with a capital", clark, ("tokens",), True),
        (
            "rare_mass",
            lambda t: t.rare,
            "the rarest tenth of the text's tokens",
            "Voita et al. 2019",
            ("tokens",),
            True,
        ),
    ]
    out: list[Statistic] = []
    for name, members, meaning, source, asks, movable in rows:
        mass = class_mass(name, members, f"mean weight on {meaning}", source=source, asks=asks)
        out += [mass, class_uniform(mass, members)]
        out += [class_relabelled(mass, members)] if movable else []
    return out


def token_matches() -> list[Statistic]:
    duplicate, induction = "mean weight on the same token elsewhere", "mean weight on the token after an earlier copy"
    return [
        *match_mass("duplicate_mass", same_token, duplicate, "Wang et al. 2023, duplicate-token heads", elsewhere=True),
        *match_mass("induction_mass", after_same_token, induction, "Olsson et al. 2022, offset +1", earlier=True),
    ]
