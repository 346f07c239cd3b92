"""How often the word that a head's row looks at most is the word that a treebank links it to: for every relation.

Two questions, which are not the same (and a third, of columns, that published code asks for the second):

- `nsubj.to_governor`: the dependent looks at its governor (the subject at its verb);
- `nsubj.to_dependent`: the governor looks at this dependent. Where there are several, one look cannot hit all of them:
  `nsubj.to_dependent.any` asks for any of them, once a governor;
- `nsubj.received`: who looks at the dependent most is its governor (the code of Clark et al. 2019 for "head <- dep").

Each is scored as `given` (among words; the plain name lets special tokens win too) and `norm`, see `treebank_words`.
Beside them stand scores without knowledge of the sentence: `.uniform` (any other word), `.relabelled` (another word of
the right part of speech, drawn by where the relation's other end tends to lie: position and part of speech kept, the
link destroyed), `.mode` (the most frequent offset) and `.rule` ("the nearest verb to the left"); and the score where
those fail: `.off_mode`, `.off_rule`. An arc counts where the one word can see the other at all: a causal head is not
expected to look ahead, and is compared with the most frequent offset and the best rule among words to its left.
Oracle: tests/statistics/test_syntax.py, from the model's own eager maps.

What heads are compared with is learned beforehand (`survey_syntax`), from the head of a corpus, its choosing half
alone: for each relation, at which offsets its governor lies, the most frequent of them, and the best rule of the kind
"the nearest verb to the left". A head that links determiners to nouns must do better than a guess that a noun mostly
follows. Source: Clark et al. 2019, section 4.2 (fixed offsets); the rule and the distribution are ours.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from manyheads.base import Json, brief, plural
from manyheads.statistics.defined.treebank_words import POS, ROWS, GoldWords, Looks, looks
from manyheads.statistics.statistic import Block, Facts, Statistic, columns_named, shares_of
from manyheads.texts import ROOT, Gold

CLARK = "Clark et al. 2019, section 4.2"
OURS = "ours: position and part of speech kept"
KINDS = (
    ("to_governor", "the dependent looks most at its governor, specials competing", CLARK, "statistic"),
    ("to_governor.given", "the same among words alone", CLARK, "statistic"),
    ("to_governor.norm", "the same by weight x value norm, specials competing", "Kobayashi et al. 2020", "statistic"),
    ("to_governor.off_mode", "the same among words, where the most frequent offset is wrong", CLARK, "statistic"),
    ("to_governor.off_rule", "the same among words, where the relation's rule is wrong", OURS, "statistic"),
    ("to_governor.relabelled", "another word of the right part of speech, by the relation's offsets", OURS, "chance"),
    ("to_governor.uniform", "any other word", CLARK, "chance"),
    ("to_governor.mode", "the word at the most frequent offset", CLARK, "chance"),
    ("to_governor.rule", "the nearest word of one part of speech on one side", OURS, "chance"),
    ("to_dependent", "the governor looks most at this dependent, specials competing", CLARK, "statistic"),
    ("to_dependent.given", "the same among words alone", CLARK, "statistic"),
    ("to_dependent.any", "the governor looks most at any such dependent, among words", OURS, "statistic"),
    ("to_dependent.off_mode", "as given, where the dependent is not at the most frequent offset", CLARK, "statistic"),
    ("to_dependent.relabelled", "another word of the right part of speech, by the relation's offsets", OURS, "chance"),
    ("to_dependent.uniform", "any other word", CLARK, "chance"),
    ("to_dependent.mode", "the word at the most frequent offset", CLARK, "chance"),
    ("to_dependent.rule", "the nearest word of one part of speech on one side", OURS, "chance"),
    ("received", "who looks at the dependent most is its governor", f"{CLARK}, as in its code", "statistic"),
)
"""What is counted of each relation, in the order of a block's columns."""

PLACE = {name: column for column, (name, *_) in enumerate(KINDS)}
MIN_ARCS = 50  # in the survey, from which on a relation is scored: with fewer, no interval would say anything
SMALL_ARCS = 20  # where the survey is the whole of a small treebank: enough to report, not to label
FAR = 64  # offsets beyond this are counted as this
UNSEEN_OFFSET = 0.5  # added to each offset's count: none is impossible


@dataclass(frozen=True)
class Rule:
    """Guess the nearest word with part of speech `pos` on one `side`: -1 is to the left, 1 to the right.

    `pos` is one of `POS`, or "" for words that have none of them.
    """

    side: int
    pos: str

    def __str__(self) -> str:
        return f"the nearest {self.pos or 'word'} to the {'left' if self.side < 0 else 'right'}"


@dataclass(frozen=True)
class Relation:
    """One relation as the survey saw it. `offsets[o]`: how many governors lie at `o - FAR` from their dependents.

    `rule`: the best guess at a governor; `rule_left`: the best to the left, for heads that see no more, if any governor
    lies there. `down` and `down_left`: the same for guesses at a dependent.
    """

    name: str
    num_arcs: int
    offsets: tuple[int, ...]
    rule: Rule
    rule_left: Rule | None = None
    down: Rule | None = None
    down_left: Rule | None = None

    def rule_of(self, way: int, causal: bool) -> Rule:
        """The rule that a head is compared with. `way`: 1 from dependent to governor, -1 back."""
        best, left = (self.rule, self.rule_left) if way > 0 else (self.down or self.rule, self.down_left)
        return left if causal and left is not None else best

    def rule_words(self, way: int) -> str:
        """The rule in words, and the one of a head that sees nothing ahead where that is another."""
        best, left = self.rule_of(way, False), self.rule_of(way, True)
        return str(best) if left == best else f"{best}; {left} where nothing ahead is seen"

    def to_dict(self) -> Json:
        """Plain data for JSON: `offsets` has a count for each offset that occurs."""
        counts = {str(index - FAR): count for index, count in enumerate(self.offsets) if count}
        return {"name": self.name, "num_arcs": self.num_arcs, "offsets": counts, "rule": self.rule_words(1)}

    def __repr__(self) -> str:
        return brief(f"Relation({self.name}: {plural(self.num_arcs, 'arc')}, modal {self.modal:+d}, {self.rule})")

    @cached_property
    def modal(self) -> int:
        """The most frequent offset of a governor from its dependent."""
        return self._modal(range(-FAR, FAR + 1))

    @cached_property
    def modal_left(self) -> int:
        """The most frequent offset of a governor to the left of its dependent."""
        return self._modal(range(-FAR, 0))

    @cached_property
    def modal_right(self) -> int:
        """The most frequent offset of a governor to the right of its dependent."""
        return self._modal(range(1, FAR + 1))

    def _modal(self, offsets: range) -> int:
        return max(offsets, key=lambda offset: self.offsets[offset + FAR])

    @cached_property
    def chances(self) -> Float[torch.Tensor, "offset"]:
        """How likely each offset is."""
        counts = torch.tensor(self.offsets, dtype=torch.float32) + UNSEEN_OFFSET
        return counts / counts.sum()


def survey_syntax(golds: Iterable[Gold | None], min_arcs: int = MIN_ARCS) -> tuple[Relation, ...]:
    """The relations that are frequent enough, sorted by name. A word that depends on no word of its text has none."""
    offsets: dict[str, Counter[int]] = {}
    hits: dict[str, Counter[Rule]] = {}
    down: dict[str, Counter[Rule]] = {}
    for gold in golds:
        if gold is None or not gold.has_syntax:
            continue
        tags = [word.pos if word.pos in POS else "" for word in gold.words]
        for number, word in enumerate(gold.words):
            if word.head == ROOT or word.head == number:
                continue
            offsets.setdefault(word.relation, Counter())[max(-FAR, min(FAR, word.head - number))] += 1
            rule = Rule(1 if word.head > number else -1, tags[word.head])
            between = tags[min(number, word.head) + 1 : max(number, word.head)]
            # Rules that never hit are candidates too, with 0 hits: a relation may have no other.
            hits.setdefault(word.relation, Counter())[rule] += rule.pos not in between
            back = Rule(-rule.side, tags[number])
            down.setdefault(word.relation, Counter())[back] += back.pos not in between
    relations = []
    for name in sorted(name for name, counts in offsets.items() if counts.total() >= min_arcs):
        counts = tuple(offsets[name][offset] for offset in range(-FAR, FAR + 1))
        (rule, left), (back, back_left) = _best(hits[name]), _best(down[name])
        relations.append(Relation(name, offsets[name].total(), counts, rule, left, back, back_left))
    return tuple(relations)


def _best(hits: Counter[Rule]) -> tuple[Rule, Rule | None]:
    """The rule that hits most, and of those to the left, if there are any."""
    # Equal hits: by part of speech, then to the right, so that the order of sentences decides nothing.
    rules = sorted(hits, key=lambda rule: (hits[rule], _pos_number(rule.pos), rule.side), reverse=True)
    return rules[0], next((rule for rule in rules if rule.side < 0), None)


def _pos_number(pos: str) -> int:
    return POS.index(pos) if pos in POS else -1


def syntax_names(relations: Iterable[str]) -> list[str]:
    """The name of every column of these relations."""
    return [f"{relation}.{name}" for relation in relations for name in PLACE]


def syntax_statistics(relations: Sequence[Relation], names: Iterable[str] | None = None) -> list[Statistic]:
    """Every column of every relation, as statistics of one block. Texts without syntax count for none of them.

    `names`: these columns alone, in their order; relations that none of them is about are not counted.
    """
    requested = syntax_names(relation.name for relation in relations) if names is None else list(names)
    named = {relation_of(name) for name in requested}
    surveyed = tuple(relation for relation in relations if relation.name in named)
    columns = []
    for relation in surveyed:
        for name, meaning, source, kind in KINDS:
            detail = (
                f" ({relation.rule_words(-1 if name.startswith('to_dependent') else 1)})"
                if name.endswith("rule")
                else ""
            )
            if name == "to_governor.mode":
                ahead = f"; {relation.modal_left:+d} where nothing ahead is seen" if relation.rule_left else ""
                detail = f" ({relation.modal:+d}{ahead})"
            columns.append((f"{relation.name}.{name}", f"{relation.name}: {meaning}{detail}", source, kind))
    counted = frozenset(name.partition(".")[2] for name in requested)
    block = Block("syntax", lambda facts: _columns(facts, surveyed, counted))
    return columns_named(shares_of(block, columns, (ROWS,), ("tokens",)), requested)


def relation_of(name: str) -> str:
    """The relation that a column is about: "nsubj" of "nsubj.to_governor.given"."""
    return name.partition(".")[0]


class Arcs(NamedTuple):
    """The links of a batch, one a dependent: its text, its word, its governor's word, its relation's number."""

    text: Int[Tensor, "a"]
    dependent: Int[Tensor, "a"]
    head: Int[Tensor, "a"]
    relation: Int[Tensor, "a"]

    def where(self, chosen: Bool[Tensor, "a"]) -> Arcs:
        return Arcs(*(part[chosen] for part in self))


class Ends(NamedTuple):
    """Arcs read in one direction: from the word that looks to the word it should look at, and guesses at that word.

    `group`: which text and relation, as one number. `chance[a, w]`: how likely a guess that knows offsets and parts of
    speech is to fall on word w. `first`: whether no arc before has the same text, relation and head.
    """

    arcs: Arcs
    row: Int[Tensor, "a"]
    target: Int[Tensor, "a"]
    group: Int[Tensor, "a"]
    chance: Float[Tensor, "a w"]
    uniform: Float[Tensor, "a"]
    mode: Bool[Tensor, "a"]
    rule: Bool[Tensor, "a"]
    first: Bool[Tensor, "a"]


class Questions(NamedTuple):
    """What layers with the same mask share: arcs in both directions, questions, and hits that depend on no head."""

    up: Ends
    down: Ends
    num: Float64[Tensor, "group kind"]
    den: Float64[Tensor, "group kind"]


def arcs_of(words: GoldWords, relations: Sequence[Relation]) -> Arcs:
    """Every link of a surveyed relation between two words, also those that have no token and so see nothing."""
    number = {relation.name: index for index, relation in enumerate(relations)}
    rows = [
        (text, place, word.head, number[word.relation])
        for text, gold in enumerate(words.golds)
        if gold is not None and gold.has_syntax
        for place, word in enumerate(gold.words)
        if word.head not in (ROOT, place) and word.relation in number and max(place, word.head) < words.num_words
    ]
    return Arcs(*torch.tensor(rows, dtype=torch.long).view(-1, 4).unbind(1))


def _columns(
    facts: Facts, relations: tuple[Relation, ...], counted: frozenset[str]
) -> tuple[Float64[Tensor, "b h c"], Float64[Tensor, "b one c"]]:
    """Hits and questions by text, head and column; the dearest kinds only where they are `counted`."""
    layer = looks(facts)
    questions: Questions = facts.cached(("arcs", relations), lambda: _questions(layer, relations))
    num = questions.num[..., None].repeat(1, 1, layer.given.shape[1])

    def add(name: str, ends: Ends, hits: Tensor) -> None:
        num[:, PLACE[name]].index_add_(0, ends.group, hits.double())

    for name, ends in (("to_governor", questions.up), ("to_dependent", questions.down)):
        strongest, target = layer.given[ends.arcs.text, :, ends.row], ends.target[:, None]
        hit = strongest == target
        add(name, ends, layer.free[ends.arcs.text, :, ends.row] == target)
        add(f"{name}.given", ends, hit)
        add(f"{name}.off_mode", ends, hit & ~ends.mode[:, None])
        add(f"{name}.relabelled", ends, ends.chance.gather(1, strongest.clamp_min(0)) * (strongest >= 0))
        if name == "to_governor":
            add("to_governor.off_rule", ends, hit & ~ends.rule[:, None])
        else:
            add("to_dependent.any", ends, hit)  # one look hits one of them: only the questions are fewer
    # Both look at the whole map of words once more: together they take as long as all the others.
    up, down = questions.up, questions.down
    if "to_governor.norm" in counted:
        add("to_governor.norm", up, layer.normed[up.arcs.text, :, up.row] == up.target[:, None])
    if "received" in counted:
        add("received", down, layer.received[down.arcs.text, :, down.target] == down.row[:, None])
    size = (len(layer.words.golds), len(relations) * len(KINDS))
    return num.view(*size, -1).transpose(1, 2), questions.den.view(*size, 1).transpose(1, 2)


def _questions(layer: Looks, relations: tuple[Relation, ...]) -> Questions:
    arcs = arcs_of(layer.words, relations)
    # Direction by direction: a causal head sees the dependent from its governor or the reverse, not both.
    up = arcs.where(layer.visible[arcs.text, arcs.dependent, arcs.head])
    down = arcs.where(layer.visible[arcs.text, arcs.head, arcs.dependent])
    ends_up = _ends(layer, up, up.dependent, up.head, relations, 1)
    ends_down = _ends(layer, down, down.head, down.dependent, relations, -1)
    num, den = (torch.zeros(len(layer.words.golds) * len(relations), len(KINDS), dtype=torch.float64) for _ in range(2))
    for name, column in PLACE.items():
        direction, _, kind = name.partition(".")
        ends = ends_up if direction == "to_governor" else ends_down
        guesses = {"uniform": ends.uniform, "mode": ends.mode, "rule": ends.rule}
        subsets = {"off_mode": ~ends.mode, "off_rule": ~ends.rule, "any": ends.first}
        den[:, column].index_add_(0, ends.group, subsets.get(kind, torch.ones(len(ends.row))).double())
        if kind in guesses:
            num[:, column].index_add_(0, ends.group, guesses[kind].double())
    return Questions(ends_up, ends_down, num, den)


def _ends(layer: Looks, arcs: Arcs, row: Tensor, target: Tensor, relations: Sequence[Relation], way: int) -> Ends:
    """What a guess without the sentence would be, arc by arc. `way`: 1 from dependent to governor, -1 back."""
    words, pos = layer.words, layer.words.pos
    word = torch.arange(words.num_words)
    visible = layer.visible[arcs.text, row]
    away = (word - row[:, None]) * way
    causal = not bool(layer.visible.triu(1).any())
    offsets = [
        (relation.modal_left if way > 0 else relation.modal_right) if causal else relation.modal
        for relation in relations
    ]
    modal = torch.tensor(offsets, dtype=torch.long)
    rules = [relation.rule_of(way, causal) for relation in relations]
    table = torch.stack([relation.chances for relation in relations]) if relations else torch.zeros(0, 2 * FAR + 1)
    likely = table[arcs.relation[:, None], away.clamp(-FAR, FAR) + FAR]
    # Of the right part of speech, drawn by offset: everything that position and word class could tell is chance.
    alike = visible & (pos[arcs.text] == pos[arcs.text, target][:, None])
    chance = torch.where(alike, likely, 0.0)
    chance = chance / chance.sum(1, keepdim=True).clamp_min(1e-12)
    mode = (target - row) * way == modal[arcs.relation]

    # The relation's rule: the nearest word of its part of speech on its side. Words that do not fit are put past all.
    side = torch.tensor([rule.side for rule in rules], dtype=torch.long)[arcs.relation][:, None]
    tags = torch.tensor([_pos_number(rule.pos) for rule in rules], dtype=torch.long)
    distance = (word - row[:, None]) * side
    fits = (distance > 0) & (pos[arcs.text] == tags[arcs.relation][:, None])
    nearest = torch.where(fits, distance, 10 * FAR * words.num_words + 1).min(1)
    rule = (nearest.indices == target) & fits.any(1)

    # The first arc of each text, relation and head.
    group = arcs.text * len(relations) + arcs.relation
    _, family = (group * words.num_words + arcs.head).unique(return_inverse=True)
    number = torch.arange(len(family))
    first_of_family = torch.full((len(family),), len(family)).scatter_reduce_(0, family, number, "amin")
    first = first_of_family[family] == number
    return Ends(arcs, row, target, group, chance, 1 / visible.sum(1).clamp_min(1), mode, rule, first)
