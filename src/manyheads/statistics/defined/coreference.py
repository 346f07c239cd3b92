"""How often a head's row finds the antecedent: from the head word of a mention to that of an earlier one of its entity.

Counted for all mentions that have an antecedent (`coreference`), and for pronouns alone (`pronoun`). Scored four ways:
the plain name is the published one (the strongest key of all, special tokens among them, is an antecedent); `.given`
among words; `.norm` by weight x value norm; `.mentions` among the head words of all earlier mentions: the question that
a coreference resolver answers. Beside it stands what knows nothing of meaning: `.uniform` (any earlier mention),
`.relabelled` (another mention with an antecedent's part of speech, drawn by how far back antecedents tend to lie),
`.nearest` (the nearest earlier mention), `.same_word` (the nearest with the same head word, else the nearest); and the
score where those two fail: `.off_nearest`, `.off_same_word`.

A mention around this one is not a candidate, nor is one with the same head word, nor one that the row cannot see (in a
window). Source: Clark et al. 2019, section 4.3. Oracle: tests/statistics/test_coreference.py, from eager maps.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from manyheads.statistics.defined.treebank_words import ROWS, GoldWords, looks
from manyheads.statistics.statistic import Block, Facts, Statistic, columns_named, shares_of
from manyheads.texts import Gold, Mention

GROUPS = {"coreference": "mentions with an antecedent", "pronoun": "pronouns with an antecedent"}
CLARK, OURS = "Clark et al. 2019, section 4.3", "ours: distance and part of speech kept"
KINDS = (
    ("", "the strongest key of all is the head word of an antecedent", CLARK, "statistic"),
    (".given", "the same among words", CLARK, "statistic"),
    (".norm", "the strongest key by weight x value norm", "Kobayashi et al. 2020", "statistic"),
    (".mentions", "the strongest among earlier mentions' head words", CLARK, "statistic"),
    (".off_nearest", "among mentions, where the nearest one is wrong", OURS, "statistic"),
    (".off_same_word", "among mentions, where the nearest one with the same head word is wrong", OURS, "statistic"),
    (".relabelled", "another mention with an antecedent's part of speech, by distance", OURS, "chance"),
    (".uniform", "any earlier mention", CLARK, "chance"),
    (".nearest", "the nearest earlier mention", CLARK, "chance"),
    (".same_word", "the nearest earlier mention with the same head word, else the nearest", CLARK, "chance"),
)
PLACE = {name: column for column, (name, *_) in enumerate(KINDS)}
NAMES = tuple(f"{group}{name}" for group in GROUPS for name in PLACE)
MOST_RANKS = 64  # mentions back that are told apart
UNSEEN_RANK = 0.5


class Search(NamedTuple):
    """One mention that has an antecedent: its head word, the head words of earlier mentions (the nearest last), and
    which of these are antecedents'."""

    text: int
    row: int
    candidates: tuple[int, ...]
    right: frozenset[int]


def searches(gold: Gold, text: int = 0) -> list[Search]:
    """Every mention of a text that has an antecedent there."""

    def can_refer(earlier: Mention, mention: Mention) -> bool:
        around = earlier.first <= mention.first and mention.last <= earlier.last
        return earlier.head != mention.head and not around

    out = []
    for number, mention in enumerate(gold.mentions):
        earlier = [candidate for candidate in gold.mentions[:number] if can_refer(candidate, mention)]
        right = frozenset(candidate.head for candidate in earlier if candidate.entity == mention.entity)
        if right:
            # Each head word once, at its nearest place.
            candidates = tuple(dict.fromkeys(candidate.head for candidate in reversed(earlier)))[::-1]
            out.append(Search(text, mention.head, candidates, right))
    return out


def survey_coreference(golds: Iterable[Gold | None]) -> tuple[float, ...]:
    """How likely the nearest antecedent is the last mention before, the last but one, and so on."""
    counts: Counter[int] = Counter()
    for gold in golds:
        for search in searches(gold) if gold is not None and gold.has_coreference else ():
            rank = next(rank for rank, head in enumerate(reversed(search.candidates)) if head in search.right)
            counts[min(rank, MOST_RANKS - 1)] += 1
    # No rank may be impossible: a chance level of 0 would make any hit there look like a discovery.
    smooth = [counts[rank] + UNSEEN_RANK for rank in range(MOST_RANKS)]
    return tuple(count / sum(smooth) for count in smooth)


def coreference_statistics(ranks: Sequence[float], names: Iterable[str] | None = None) -> list[Statistic]:
    """Every column of both groups, as statistics of one block. Texts without coreference count for none of them.

    `names`: these columns alone, in their order.
    """
    likely, requested = tuple(ranks), list(NAMES if names is None else names)
    normed = any(name.endswith(".norm") for name in requested)
    block = Block("coreference", lambda facts: _columns(facts, likely, normed))
    columns = [
        (f"{group}{name}", f"{whose}: {meaning}", source, kind)
        for group, whose in GROUPS.items()
        for name, meaning, source, kind in KINDS
    ]
    return columns_named(shares_of(block, columns, (ROWS,), ("tokens",)), requested)


class _Plan(NamedTuple):
    """All searches of a batch; `candidate[s, c]` are word numbers (the nearest first), -1 past the last.

    A candidate that the row cannot see is none, and neither is a search without an antecedent that it can see.
    """

    text: Tensor
    row: Tensor
    candidate: Tensor
    right: Tensor
    chance: Tensor
    nearest: Tensor
    same_word: Tensor
    pronoun: Tensor


def _plan(words: GoldWords, visible: Bool[Tensor, "b w v"], ranks: Sequence[float]) -> _Plan:
    """All searches of a batch, laid side by side for tensors."""
    rows = []
    for text, gold in enumerate(words.golds):
        if gold is None or not gold.has_coreference:
            continue
        forms = [words.tokens.texts[text][word.begin : word.end].casefold() for word in gold.words]
        for search in searches(gold, text):
            if search.row >= words.num_words:
                continue
            visible_words = set(visible[text, search.row].nonzero()[:, 0].tolist())
            candidates = [head for head in reversed(search.candidates) if head in visible_words]
            if search.right & set(candidates):
                rows.append((search, candidates, [head in search.right for head in candidates], gold, forms))
    most = max((len(candidates) for _, candidates, *_ in rows), default=1)
    candidate = torch.full((len(rows), most), -1)
    right, chance = torch.zeros(len(rows), most, dtype=torch.bool), torch.zeros(len(rows), most)
    nearest, same_word, pronoun = (torch.zeros(len(rows), dtype=torch.bool) for _ in range(3))
    for number, (search, candidates, hits, gold, forms) in enumerate(rows):
        span = slice(0, len(candidates))
        candidate[number, span], right[number, span] = torch.tensor(candidates), torch.tensor(hits)
        # How likely each candidate is right where entities are dealt anew: by distance and part of speech alone.
        tags = {gold.words[head].pos for head, hit in zip(candidates, hits, strict=True) if hit}
        weights = [
            ranks[min(rank, MOST_RANKS - 1)] if gold.words[head].pos in tags else 0.0
            for rank, head in enumerate(candidates)
        ]
        chance[number, span] = torch.tensor([min(1.0, sum(hits) * weight / sum(weights)) for weight in weights])
        alike = [hit for head, hit in zip(candidates, hits, strict=True) if forms[head] == forms[search.row]]
        nearest[number], same_word[number] = hits[0], (alike or hits)[0]
        pronoun[number] = gold.words[search.row].pos == "PRON"
    text = torch.tensor([search.text for search, *_ in rows], dtype=torch.long)
    row = torch.tensor([search.row for search, *_ in rows], dtype=torch.long)
    return _Plan(text, row, candidate, right, chance, nearest, same_word, pronoun)


def _columns(
    facts: Facts, ranks: tuple[float, ...], normed: bool
) -> tuple[Float[Tensor, "b h c"], Float[Tensor, "b one c"]]:
    """Hits and questions by text, head and column; those by norm only where they are `normed`."""
    layer = looks(facts)
    plan: _Plan = facts.cached(("searches", ranks), lambda: _plan(layer.words, layer.visible, ranks))
    num_texts, num_heads = layer.given.shape[:2]
    mentions = plan.candidate.clamp_min(0)[:, None].expand(-1, num_heads, -1)
    weights = layer.weights[plan.text, :, plan.row].gather(2, mentions)
    chosen = weights.masked_fill((plan.candidate < 0)[:, None], -torch.inf).argmax(-1)
    among_mentions = plan.right.gather(1, chosen)
    # One column more than there are words, for what is no antecedent: padding of the lists, and a look at nothing.
    antecedent = torch.zeros(len(plan.text), layer.words.num_words + 1, dtype=torch.bool)
    antecedent.scatter_(1, torch.where(plan.right, plan.candidate, layer.words.num_words), True)
    antecedent[:, -1] = False

    def hits(looked_at: Tensor) -> Tensor:
        # -1, nowhere, reads the last column, where there is no antecedent.
        word = looked_at[plan.text, :, plan.row] % (layer.words.num_words + 1)
        return antecedent.gather(1, word)

    even = plan.right.sum(1) / (plan.candidate >= 0).sum(1)
    values = {
        "": (hits(layer.free), None),
        ".given": (hits(layer.given), None),
        **({".norm": (hits(layer.normed), None)} if normed else {}),
        ".mentions": (among_mentions, None),
        ".off_nearest": (among_mentions, ~plan.nearest),
        ".off_same_word": (among_mentions, ~plan.same_word),
        ".relabelled": (plan.chance.gather(1, chosen), None),
        ".uniform": (even[:, None], None),
        ".nearest": (plan.nearest[:, None], None),
        ".same_word": (plan.same_word[:, None], None),
    }
    num = torch.zeros(num_texts, num_heads, len(GROUPS), len(KINDS), dtype=torch.float64)
    den = torch.zeros(num_texts, 1, len(GROUPS), len(KINDS), dtype=torch.float64)
    for group, members in enumerate((torch.ones_like(plan.pronoun), plan.pronoun)):
        for name, (value, subset) in values.items():
            counted = members if subset is None else members & subset
            value = value.double().expand(-1, num_heads)[counted]
            num[..., group, PLACE[name]].index_add_(0, plan.text[counted], value)
            den[:, 0, group, PLACE[name]].index_add_(0, plan.text[counted], counted[counted].double())
    return num.flatten(2), den.flatten(2)
