"""Masses: the mean weight that a row gives to certain keys, over the rows that see one of them.

By place (offsets, the local window, the first key, what is far from both), by class of token (sinks, punctuation, rare
tokens ...) and by match between tokens (the same token elsewhere; the key after, or before, an earlier copy). Each has
chance levels:

- `<name>.uniform`: what a row gives those keys if it spreads its weight evenly over all keys that it sees. Exact.
- `<name>.relabelled`: what this head gives them if the text's words are shuffled among the ordinary places. For a
  class the exact mean over all shuffles; for a match one shuffle, seeded by the text.

Rows are all rows of a text, special tokens among them.
To add a class of tokens, add a row to `CLASSES`; to add a match between tokens, add a row to `MATCHES`.

How often a row looks most at one of the text's rarest words (`rarest`): Voita et al. count, over the tokens of a text,
how often a head's strongest key is the least frequent token (or one of the two least frequent). Special tokens are left
out: as rows, and where one is a row's strongest key, that row does not count ("given that it looks at a word at all").
`word_top` is the share of rows that remain; where specials are to compete, multiply by it. "Rarest" goes by kinds of
token: each occurrence counts, and so do kinds as rare as the last.

A key is strongest where its weight, straight from q, k and lse, is the row's largest to within rounding; so no pass has
to keep each row's best key. Cost: O(rows * specials and rare tokens * d). A tie counts for the key in question.

`.uniform`: any word that a row sees is as likely to be its strongest key. `.relabelled`: the text's words shuffled, the
exact mean over all shuffles. Source: Voita et al. 2019, rare words (on all sentences: theirs are those whose rarest
word is outside the 500 most frequent). Oracle: `reference.statistics`.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.errors import StatisticError
from manyheads.recording.exact_map import (
    Band,
    KeySum,
    Linear,
    Match,
    MatchReceived,
    Maximum,
    Received,
    Request,
    RowsReceived,
    key_weights,
)
from manyheads.statistics.statistic import (
    ANY_MAP,
    SELF_ONLY,
    SHARE,
    Block,
    Cells,
    Facts,
    Finish,
    PerText,
    Statistic,
    row_count,
    shares_of,
)
from manyheads.texts import Tokens

OFFSETS = tuple(range(-8, 9))
BAND = Band(OFFSETS)
LOCAL = 3  # a head that stays within three tokens either way is called local
DISTANT = (4, 64)  # of the text's first keys and of a row's last ones: what is called distant lies beyond both
MOST_PLACES = 10**9
NAMED_OFFSETS = {-1: "previous_mass", 0: "self_mass", 1: "next_mass"}
OF_ROWS = "the mean over rows with such a key"
"""Of every mass: under a sliding window, `first_mass` is of the rows whose window still reaches the first token."""
EVENLY = "if each row spread its weight evenly"
SHUFFLED = "if the text's words were shuffled"
Class = Callable[[Tokens], Bool[Tensor, "b k"]]


def class_mass(name: str, members: Class, meaning: str, *, source: str, asks: Sequence[str] = ("tokens",)) -> Statistic:
    """The mean weight on a class of tokens, over the rows that see one of them. Needs column sums only; of sinks all of
    them, as sinks may be found in the same pass.

    In cross-attention the tokens are the source's. The model's sinks are not: they were found in texts' attention to
    themselves, so that a class of them has a meaning there alone.
    """
    received = Received() if "sinks" in asks else KeySum(members)

    def finish(facts: Facts) -> PerText:
        mass = facts[received]
        if "sinks" in asks:
            mass = (mass * members(facts.keys).double()[:, None]).sum(-1)
        return PerText(mass, row_count(seeing(facts, members)))

    def cells(tokens: Tokens, text: int) -> Bool[Tensor, "q k"]:
        return members(tokens)[text][None].expand(tokens.longest, -1)

    maps = SELF_ONLY if "sinks" in asks else ANY_MAP
    how = {"asks": frozenset(asks), "cells": cells, "by_row": True, "maps": maps}
    return Statistic(
        name=name,
        unit="share",
        range=SHARE,
        source=source,
        meaning=meaning,
        needs=lambda _: (received,),
        finish=finish,
        **how,
    )


def class_uniform(of: Statistic, members: Class) -> Statistic:
    """The chance level of a class mass by an even spread over the keys that a row sees."""

    def finish(facts: Facts) -> PerText:
        return facts.over_rows(even_mass(facts, members)[:, None], seeing(facts, members))

    return uniform(of, finish)


def class_relabelled(of: Statistic, members: Class) -> Statistic:
    """The chance level of a class mass if its tokens stood at any ordinary places: the mean over all shuffles.

    For each row: the weight on ordinary places times the share of them that is in the class.
    """
    staying = KeySum(lambda tokens: members(tokens).double() * (1 - tokens.ordinary.double()))

    def finish(facts: Facts) -> PerText:
        column, ordinary = members(facts.keys).double(), facts.keys.ordinary.double()
        rows = seeing(facts, members)
        share = (column * ordinary).sum(-1) / ordinary.sum(-1).clamp_min(1)
        moved = facts.over_rows(facts[ON_ORDINARY], rows).num * share[:, None]
        return PerText(moved + facts[staying], row_count(rows))

    return chance(of, "relabelled", SHUFFLED, finish, (staying, ON_ORDINARY))


def uniform(of: Statistic, finish: Finish) -> Statistic:
    """The chance level by an even spread, which depends on mask and tokens alone."""
    return replace(chance(of, "uniform", EVENLY, finish, ()), by_row=of.by_row)


def chance(of: Statistic, kind: str, meaning: str, finish: Finish, needs: tuple[Request, ...]) -> Statistic:
    """A chance level is a statistic too: it has the unit, range and rows of the statistic that it is compared with."""
    name, words = f"{of.name}.{kind}", f"{of.name} {meaning}"
    return Statistic(
        name=name,
        unit=of.unit,
        range=of.range,
        source=of.source,
        meaning=words,
        needs=lambda _: needs,
        finish=finish,
        kind="chance",
        asks=of.asks,
        maps=of.maps,
    )


# One object for all statistics: the pass computes equal requests once, and compares their functions by identity.
ON_ORDINARY = Linear(lambda tokens: tokens.ordinary.double())


def even_mass(facts: Facts, members: Class) -> Float[Tensor, "b q"]:
    """The mass on a class if each row spread its weight evenly."""
    return facts.cached(members, lambda: facts.uniform(members(facts.keys).double()))


def seeing(facts: Facts, members: Class) -> Bool[Tensor, "b q"]:
    """Rows that see at least one key of a class."""
    return (even_mass(facts, members) > 0) & facts.rows


# --- by place ---


def offset_name(offset: int) -> str:
    return NAMED_OFFSETS.get(offset, f"offset_{offset:+d}_mass")


def offset_place(offset: int) -> str:
    named = {-1: "the token before", 0: "the token itself", 1: "the token after"}
    return named.get(offset, f"the token {offset:+d} away")


def offset_mass(offset: int) -> list[Statistic]:
    """The weight at one distance, over the rows that see a key there, and its chance level."""

    def finish(facts: Facts) -> PerText:
        return facts.over_rows(at_offset(facts, offset), has_key(facts, offset))

    def even(facts: Facts) -> PerText:
        return facts.over_rows((1 / facts.visible.clamp_min(1))[:, None], has_key(facts, offset))

    def cells(tokens: Tokens, text: int) -> Bool[Tensor, "q k"]:
        return distances(tokens) == offset

    name, meaning = offset_name(offset), f"mean weight on {offset_place(offset)}"
    source = f"Clark et al. 2019, section 3.1; {OF_ROWS}"
    mass = Statistic(
        name=name,
        unit="share",
        range=SHARE,
        source=source,
        meaning=meaning,
        needs=lambda _: (BAND,),
        finish=finish,
        cells=cells,
    )
    return [mass, uniform(mass, even)]


def at_offset(facts: Facts, offset: int) -> Float[Tensor, "b h q"]:
    """Each row's weight on the key `offset` away, 0 where there is none."""
    # Offset by offset in memory, once for a layer: every statistic of places reads it, and of each row one number.
    if BAND not in facts.of_layer:
        facts.of_layer[BAND] = facts[BAND].movedim(-1, 0).contiguous()
    return facts.of_layer[BAND][OFFSETS.index(offset)]


def has_key(facts: Facts, offset: int) -> Bool[Tensor, "b q"]:
    """Rows that see the key `offset` away."""

    def compute() -> Bool[Tensor, "b q"]:
        mask, target = facts.reduced.mask, torch.arange(facts.rows.shape[1])[None] + offset
        if mask.dense is None:
            return ((target >= mask.start) & (target < mask.stop)).expand(facts.rows.shape)
        diagonal = mask.dense.any(1).diagonal(offset, -2, -1)  # shorter than the rows: it begins below or ends above
        out = torch.zeros(diagonal.shape[0], facts.rows.shape[1], dtype=torch.bool)
        begin = max(0, -offset)
        out[:, begin : begin + diagonal.shape[1]] = diagonal
        return out.expand(facts.rows.shape)

    return facts.cached(("offset", offset), compute)


def distances(tokens: Tokens) -> Int[Tensor, "q k"]:
    """Key place minus query place of every cell: negative looks back."""
    place = torch.arange(tokens.longest)
    return place[None] - place[:, None]


def local_mass() -> list[Statistic]:
    """The weight within `LOCAL` tokens either way, and its chance level."""
    near = slice(OFFSETS.index(-LOCAL), OFFSETS.index(LOCAL) + 1)

    def finish(facts: Facts) -> PerText:
        return facts.over_rows(facts[BAND][..., near].sum(-1))

    def even(facts: Facts) -> PerText:
        keys = sum(has_key(facts, offset).double() for offset in OFFSETS[near])
        return facts.over_rows((keys / facts.visible.clamp_min(1))[:, None])

    def cells(tokens: Tokens, text: int) -> Bool[Tensor, "q k"]:
        return distances(tokens).abs() <= LOCAL

    source = "Voita et al. 2019, positional heads"
    meaning = f"mean weight within {LOCAL} tokens either way, the token itself included"
    mass = Statistic(
        name="local_mass",
        unit="share",
        range=SHARE,
        source=source,
        meaning=meaning,
        needs=lambda _: (BAND,),
        finish=finish,
        cells=cells,
    )
    return [mass, uniform(mass, even)]


@cache
def distant_masses(sink: int, recent: int) -> tuple[Statistic, Statistic]:
    """`distant_mass` and its chance level: one object for the same numbers, so that a table has one column of it."""

    def beyond_sink(tokens: Tokens) -> tuple[Int[Tensor, "b q"], Int[Tensor, "b k"]]:
        rows = torch.zeros(tokens.num_texts, tokens.longest, dtype=torch.long)
        keys = rows.clone()
        keys[:, :sink] = -1  # matches nothing
        return rows, keys

    request = Match(beyond_sink, elsewhere=True, apart=recent)

    def finish(facts: Facts) -> PerText:
        return facts.over_rows(facts[request], facts.reduced.matches(request) > 0)

    def even(facts: Facts) -> PerText:
        keys = facts.reduced.matches(request)
        return facts.over_rows((keys / facts.visible.clamp_min(1))[:, None], keys > 0)

    def cells(tokens: Tokens, text: int) -> Bool[Tensor, "q k"]:
        return (distances(tokens).abs() >= recent) & (torch.arange(tokens.longest) >= sink)[None]

    name = "distant_mass" if (sink, recent) == DISTANT else f"distant_mass_{sink}_{recent}"
    meaning = f"mean weight outside of the first {sink} tokens of the text and the last {recent} ones that a row sees"
    source = f"Xiao et al. 2024, retrieval and streaming heads; {OF_ROWS}"
    mass = Statistic(
        name=name,
        unit="share",
        range=SHARE,
        source=source,
        meaning=meaning,
        needs=lambda _: (request,),
        finish=finish,
        cells=cells,
    )
    return mass, uniform(mass, even)


def distant_mass(sink: int = DISTANT[0], recent: int = DISTANT[1]) -> Statistic:
    """The mean weight outside of a text's first `sink` keys and each row's last `recent` ones, itself included.

    What a head would lose if it streamed, that is if its cache kept these keys alone. A share, 0 to 1: near 0 the head
    may stream, from about a third on it reads far back (a "retrieval head"). Row i's last keys are i - recent + 1 to i;
    where rows also look ahead, its near ones are those with |i - j| < recent. Only rows that see a distant key count,
    so that texts of `sink + recent` tokens and fewer have none. Its name is `distant_mass`, for other numbers
    `distant_mass_128_256`, which is also how `measure` takes it; its chance level ends in `.uniform`.
    Source: Xiao et al. 2024, DuoAttention. Errors: StatisticError for a sink below 0 or a recent below 1.
    """
    for value, name, least in ((sink, "sink", 0), (recent, "recent", 1)):
        if type(value) is not int or not least <= value <= MOST_PLACES:
            raise StatisticError(f"distant_mass: {name}={value!r} should be a number of keys, {least} or more.")
    return distant_masses(sink, recent)[0]


# --- by class of token ---


def separators(tokens: Tokens) -> Bool[Tensor, "b k"]:
    """Tokens that the tokenizer set behind or between texts ([SEP], an end of text): added after the first place."""
    return added(tokens) & ~tokens.first


def added(tokens: Tokens) -> Bool[Tensor, "b k"]:
    """Special tokens but for patches of pictures, which the caller gave."""
    return tokens.real & ~tokens.ordinary & ~tokens.image


class TokenClass(NamedTuple):
    """A class of tokens in the table. `movable`: shuffling the text's words moves it, so it has `.relabelled`."""

    name: str
    members: Class
    meaning: str
    source: str
    movable: bool = True
    asks: tuple[str, ...] = ("tokens",)


CLARK, XIAO = "Clark et al. 2019, section 3.2", "Xiao et al. 2024, attention sinks"
WORDS_OR_SINKS = ("tokens", "sinks")
CLASSES = (
    TokenClass("first", lambda t: t.first, "the first token", XIAO, False, ()),
    TokenClass("sink", lambda t: t.sink, "the model's own sinks, as found on text", XIAO, False, WORDS_OR_SINKS),
    TokenClass("special", added, "tokens that the tokenizer added", CLARK, False),
    TokenClass("separator", separators, "tokens that the tokenizer added, but for the first", CLARK, False),
    TokenClass("punctuation", lambda t: t.punctuation, "punctuation", CLARK),
    TokenClass("number", lambda t: t.number, "pieces that hold a digit", CLARK),
    TokenClass("capitalised", lambda t: t.capitalised, "pieces written with a capital", CLARK),
    TokenClass("rare", lambda t: t.rare, "the rarest tenth of the text's tokens", "Voita et al. 2019"),
)


def token_classes() -> list[Statistic]:
    """Every class of tokens, each with its chance levels."""
    out: list[Statistic] = []
    for name, members, meaning, source, movable, asks in CLASSES:
        mass = class_mass(
            f"{name}_mass", members, f"mean weight on {meaning}", source=f"{source}; {OF_ROWS}", asks=asks
        )
        out += [mass, class_uniform(mass, members)]
        out += [class_relabelled(mass, members)] if movable else []
    return out


# --- by match between tokens ---


def words(tokens: Tokens) -> Int[Tensor, "b k"]:
    """Token ids, -1 on special tokens and padding: these match nothing."""
    if tokens.ids is None:
        raise StatisticError(
            "statistics of copies (duplicate, induction, previous_copy) compare tokens, and some layer attends among "
            "positions that are not the text's tokens: ask for other statistics by name, as 'entropy'."
        )
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


class Matched(NamedTuple):
    """A match between tokens in the table: the request, and the same request with the text's words shuffled."""

    name: str
    meaning: str
    source: str
    request: Match
    shuffled: Match


def matched(
    name: str, meaning: str, source: str, labels: Callable[[Tokens, Tensor], tuple[Tensor, Tensor]], **how: Any
) -> Matched:
    """`labels(tokens, ids)` returns the labels of rows and of keys: the shuffled request moves the ids alone."""

    def plain(tokens: Tokens) -> tuple[Tensor, Tensor]:
        return labels(tokens, words(tokens))

    def moved(tokens: Tokens) -> tuple[Tensor, Tensor]:
        return labels(tokens, words(tokens).gather(1, tokens.relabelling))

    return Matched(name, meaning, source, Match(plain, **how), Match(moved, **how))


WANG, OLSSON = "Wang et al. 2023, duplicate-token heads", "Olsson et al. 2022, offset"
AS_WRITTEN = f"{OLSSON} -1, as their text has it"
# The text of Olsson et al. has an induction head look at what preceded a copy; the mechanism, and the code of others,
# at what followed it. Both are in the table.
MATCHES = (
    matched("duplicate", "the same token elsewhere", WANG, same_token, elsewhere=True),
    matched("induction", "the token after an earlier copy", f"{OLSSON} +1", after_same_token, earlier=True),
    matched(
        "previous_copy", "the token before an earlier copy", AS_WRITTEN, before_same_token,
        earlier=True, apart=2,
    ),
)  # fmt: skip


def token_matches() -> list[Statistic]:
    """Matches between tokens, each with its chance levels, and their share of what does not go to a sink."""
    return [statistic for match in MATCHES for statistic in (*match_mass(match), unsunk_match(match))]


def match_mass(match: Matched) -> list[Statistic]:
    """The weight on keys whose label equals the row's, over the rows that see one, and both chance levels."""

    def finish_with(request: Match) -> Finish:
        return lambda facts: facts.over_rows(facts[request], facts.reduced.matches(request) > 0)

    def even(facts: Facts) -> PerText:
        keys = facts.reduced.matches(match.request)
        return facts.over_rows((keys / facts.visible.clamp_min(1))[:, None], keys > 0)

    def cells(tokens: Tokens, text: int) -> Bool[Tensor, "q k"]:
        request, away = match.request, distances(tokens)
        rows, keys = (labels[text] for labels in request.labels(tokens))
        matching = (rows[:, None] == keys[None]) & (rows[:, None] >= 0)
        matching = matching & (away <= -request.apart) if request.earlier else matching
        return matching & (away != 0) if request.elsewhere else matching

    name, meaning, needs = f"{match.name}_mass", f"mean weight on {match.meaning}", lambda _: (match.request,)
    finish, asks = finish_with(match.request), frozenset({"tokens"})
    source = f"{match.source}; {OF_ROWS}"
    mass = Statistic(
        name=name,
        unit="share",
        range=SHARE,
        source=source,
        meaning=meaning,
        needs=needs,
        finish=finish,
        asks=asks,
        cells=cells,
    )
    shuffled = chance(mass, "relabelled", SHUFFLED, finish_with(match.shuffled), (match.shuffled,))
    return [mass, uniform(mass, even), shuffled]


def unsunk_match(match: Matched) -> Statistic:
    """A ratio of sums over the rows that see a match: what goes to its keys, of all that does not go to a sink."""
    on_match, on_any = MatchReceived(match.request), RowsReceived(match.request)

    def finish(facts: Facts) -> PerText:
        free = ~facts.tokens.sink[:, None]  # the key after a copy may be a sink itself
        return PerText((facts[on_match] * free).sum(-1), (facts[on_any] * free).sum(-1))

    meaning = f"share of what does not go to a sink that is on {match.meaning}, in rows that see such a key"
    name, asks = f"{match.name}_unsunk_mass", frozenset(WORDS_OR_SINKS)
    return Statistic(
        name=name,
        unit="share",
        range=SHARE,
        source=match.source,
        meaning=meaning,
        needs=lambda _: (on_match, on_any),
        finish=finish,
        asks=asks,
    )


ROUNDING = 1e-4  # of a weight: float32 scores of some tens are off by that much when summed in another order
CHUNK_CELLS = 1 << 22  # weights held at a time: 16 MB
VOITA = "Voita et al. 2019, rare words; special tokens left out"
WORDS_ALIKE = "if any word that a row sees were as likely"
KINDS = {"rarest_top": 1, "two_rarest_top": 2}  # how many of the text's rarest kinds of token count
TOPS = {
    "word_top": "share of rows whose strongest key is not a special token",
    "word_top.uniform": "the share of words among what a row sees",
    "rarest_top": "share of rows whose strongest key is the text's rarest token",
    "rarest_top.uniform": f"rarest_top {WORDS_ALIKE}",
    "rarest_top.relabelled": f"rarest_top {SHUFFLED}",
    "two_rarest_top": "share of rows whose strongest key is one of the text's two rarest tokens",
    "two_rarest_top.uniform": f"two_rarest_top {WORDS_ALIKE}",
    "two_rarest_top.relabelled": f"two_rarest_top {SHUFFLED}",
}


def tops() -> list[Statistic]:
    """All of them, as columns of one block."""

    def compute(facts: Facts) -> tuple[Float[Tensor, "b h c"], Float[Tensor, "b h c"]]:
        tokens = facts.tokens
        ordinary = tokens.ordinary
        even = facts.cached("even words", lambda: facts.uniform(ordinary.double()))
        seeing = facts.cached("rows of words", lambda: ordinary & (even > 0) & facts.rows)
        least_top = facts[Maximum()] * (1 - ROUNDING)
        on_word = _largest(facts, "specials", lambda: tokens.real & ~ordinary) < least_top
        out = {
            "word_top": facts.over_rows(on_word.double(), seeing),
            "word_top.uniform": facts.over_rows(even[:, None], seeing),
        }
        for name, kinds in KINDS.items():
            members = facts.cached(name, lambda kinds=kinds: rarest(tokens, kinds))
            chance = facts.cached(f"{name} even", lambda members=members: facts.uniform(members.double()))
            rows = seeing & (chance > 0)
            word_rows = on_word & rows[:, None]
            hits = word_rows & (_largest(facts, name, lambda members=members: members) >= least_top)
            share = members.sum(-1).double() / ordinary.sum(-1).clamp_min(1)
            count = word_rows.sum(-1).double()
            out[name] = PerText(hits.sum(-1).double(), count)
            out[f"{name}.uniform"] = facts.over_rows((chance / even.clamp_min(1e-300))[:, None], rows)
            out[f"{name}.relabelled"] = PerText(count * share[:, None], count)
        pairs = [torch.broadcast_tensors(*out[name], facts[Maximum()][..., 0])[:2] for name in TOPS]
        num, den = zip(*pairs, strict=True)
        return torch.stack(num, -1), torch.stack(den, -1)

    def cells(kinds: int) -> Cells:
        return lambda tokens, text: rarest(tokens, kinds)[text][None].expand(tokens.longest, -1)

    columns = [(name, meaning, VOITA, "chance" if "." in name else "statistic") for name, meaning in TOPS.items()]
    statistics = shares_of(Block("strongest keys", compute), columns, (Maximum(),), ("tokens",))
    return [replace(s, cells=cells(KINDS[s.name])) if s.name in KINDS else s for s in statistics]


def rarest(tokens: Tokens, kinds: int) -> Bool[Tensor, "b k"]:
    """The places of each text's `kinds` rarest kinds of token; of kinds as rare as the last one too."""
    assert tokens.ids is not None and tokens.rarity is not None
    out = torch.zeros_like(tokens.real)
    for text in range(tokens.num_texts):
        ordinary, rarity = tokens.ordinary[text], tokens.rarity[text]
        of_kind = dict(zip(tokens.ids[text][ordinary].tolist(), rarity[ordinary].tolist(), strict=True))
        if of_kind:
            least = sorted(of_kind.values(), reverse=True)[:kinds][-1]
            out[text] = ordinary & (rarity >= least)
    return out


def _largest(facts: Facts, name: str, find: Callable[[], Bool[Tensor, "b k"]]) -> Float[Tensor, "b h q"]:
    """Each row's largest weight on some keys, by their name, 0 where it sees none of them."""

    def chosen() -> tuple[Int[Tensor, "b c"], Bool[Tensor, "b c"]]:
        members = find()
        count = int(members.sum(-1).max())
        # Texts have different numbers of these keys: theirs first, then others to fill up, which are masked out below.
        keys = members.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :count]
        return keys, members.gather(1, keys)

    layer, (keys, is_member) = facts.layer, facts.cached((name, "keys"), chosen)
    count = keys.shape[1]
    if not count:
        return torch.zeros_like(facts[Maximum()])
    assert layer is not None, "whoever measures hands the layer on"
    out = torch.zeros_like(facts[Maximum()], device=layer.q.device)
    is_member = is_member.to(out.device, non_blocking=True)
    step = max(1, CHUNK_CELLS // max(1, out.numel()))
    for begin in range(0, count, step):
        chunk = slice(begin, begin + step)
        weights = key_weights(layer, keys[:, chunk], facts.reduced[Maximum()].dtype)
        out = torch.maximum(out, torch.where(is_member[:, None, None, chunk], weights, 0.0).amax(-1).double())
    return out.cpu()  # one number a row: the weights themselves stay where the layer is
