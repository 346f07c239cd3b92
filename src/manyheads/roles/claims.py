"""Claims: for every head and every rule, the score, what chance would give, how sure that is, and whether it holds.

A head is chosen on one half of the texts; every figure of a claim is of the other half. The p-value of a claim is that
of its score being no higher than the highest chance level on the same texts: by the spread of their difference over
Poisson-bootstrap replicates, as Student's t with one degree of freedom less than there are independent texts. How many
texts are independent is read off the replicates as well, so that two windows of a text, or a text that occurs twice,
count as one. Over all heads and all rules together the false discovery rate is at most 5 % (`q_value`), however the
tests depend on each other. That a claim is not chance does not make it large: the rules' floors and baselines do.

`failed_conditions` is the one place that decides whether figures satisfy a rule; `failing` puts what it returns into
words. That something was looked for and not found is a result as well, but a bare "no" does not say what was missed.

Sources: Hanley and MacGibbon 2006 (bootstrap); Kish 1965 (texts of unlike length as so many of equal length); of the
tests themselves, `roles.chance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.heads import Head
from manyheads.roles import rules
from manyheads.roles.chance import adjusted, p_of_spread
from manyheads.roles.rules import (
    LEFT,
    MIN_DISTANCE,
    MIN_EXCESS,
    MIN_FAVOUR,
    MIN_GIVEN,
    MIN_GIVEN_SCORE,
    MIN_LIFT,
    MIN_LIFT_LOW,
    MIN_QUERIES,
    MIN_TEXTS,
    SINK_RULE,
    Rule,
    distance,
    rule_of,
)
from manyheads.statistics import HeadTable
from manyheads.statistics.sums import (
    REPLICATES,
    Spread,
    replicate_error,
    share_difference_interval,
    t_95,
    wilson_interval,
)

CHOOSE, REPORT = 0, 1  # the half of the texts on which a label is chosen, and the one whose figures are shown
MAX_FALSE = 0.05  # the share of false claims among those that hold, at most, on average
OVER_BASELINE = 1.1  # an accuracy is a tenth above fixed guesses ...
OVER_BASELINE_BY = 0.03  # ... and three points above them, and above chance


GUESSES = {  # fixed ones, which know nothing of the sentence
    "mode": "offset", "rule": "nearest by part of speech", "nearest": "nearest mention", "same_word": "same word",
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """One head asked one question; all figures are of the reporting half.

    `score` lets special tokens win; `given` leaves them out: for a mass, its share of what does not go to the sinks;
    for an accuracy, the same among words. `norm` is the score by weight x value norm. `chance` is the highest chance
    level (`chances` has each by name), `low` to `high` the 95 % interval of what is compared with it, `over_low` to
    `over_high` that of how far it is above that chance on the same texts (narrower than the two apart: both are high
    where texts are easy). `num_texts`: how many texts hold the cases, `effective_texts`: how many of equal length these
    are worth. `baselines` are what fixed guesses get, `beyond` what else is known (the score where those fail). None:
    not counted, or not known. `chosen_excess` and `chosen_distance`: the choosing half's, by which heads are ranked and
    named. `holds`: the rule is satisfied on both halves, and `q_value` is at most 5 %. `elsewhere`: the same on a
    second corpus, where there was one.
    """

    head: Head
    role: str
    asks: str
    statistic: str
    score: float
    given: float | None
    norm: float | None
    chance: float
    chances: dict[str, float]
    low: float
    high: float
    over_low: float
    over_high: float
    num_queries: int
    num_texts: int
    effective_texts: float
    baselines: dict[str, float]
    beyond: dict[str, float]
    p_value: float
    q_value: float
    chosen_excess: float
    chosen_distance: float
    holds: bool
    elsewhere: float | None = None

    @property
    def tested(self) -> float:
        """What is compared with chance: an accuracy among words, a mass as it is."""
        return self.given if self.given is not None and self.baselines else self.score

    @property
    def guesses(self) -> dict[str, float]:
        """The score of each fixed guess by its name, one of `GUESSES`, as far as it is known."""
        scores = {name.rpartition(".")[2]: value for name, value in (self.baselines | self.beyond).items()}
        return {name: scores[name] for name in GUESSES if not np.isnan(scores.get(name, np.nan))}

    @property
    def excess(self) -> float:
        """A mass above chance, an accuracy above the best fixed guess (for all heads the same); -1 of nothing."""
        against = max(self.baselines.values()) if self.baselines else self.chance
        return -1.0 if np.isnan(self.tested) else self.tested - against

    @property
    def distance(self) -> float:
        """How far it is from its chance level, comparable between questions (`rules.distance`)."""
        return distance(self.tested, self.chance)

    def row(self) -> dict[str, Any]:
        """A row of a table, with the same columns for all relations: chance_uniform, guess_mode, also_off_mode ..."""
        row: dict[str, Any] = {**vars(self), "head": str(self.head)}
        parts = {
            "chance": row.pop("chances"),
            "guess": row.pop("baselines"),
            "also": row.pop("beyond"),
        }
        return row | {
            f"{part}_{name.rpartition('.')[2]}": value
            for part, values in parts.items()
            for name, value in values.items()
        }


class Above(NamedTuple):
    """Scores over a chance level: p-values of their being no higher, and the interval of the difference."""

    p_value: Float64[ndarray, "head"]
    low: Float64[ndarray, "head"]
    high: Float64[ndarray, "head"]


class Half:
    """The figures of one half of the texts, each computed once, of all heads."""

    def __init__(self, table: HeadTable, half: int) -> None:
        self.table, self.half = table, half
        self.index = {name: i for i, name in enumerate(table.names)}
        self._texts: dict[str, ndarray] = {}
        self._above: dict[tuple[str, str], Above] = {}

    @cached_property
    def favour(self) -> Float64[ndarray, "head"] | None:
        return None if self.table.kinds is None else self.table.kinds.favour(self.half)

    def value(self, name: str) -> Float64[ndarray, "head"]:
        return self.table.column(name, self.half)

    def get(self, name: str) -> Float64[ndarray, "head"]:
        """Values, 0 where nothing was counted (a sink that no text holds takes no mass)."""
        value = self.value(name)
        return np.where(np.isnan(value), 0.0, value)

    def replicates(self, name: str) -> Float64[ndarray, "head replicate"]:
        """The values, and those of each replicate."""
        # One column at a time: of 270 heads and 434 statistics all of them take 95 MB.
        column = self.index[name]
        return self.table.sums.value(self.half, slice(column, column + 1))[:, 0]

    def num_queries(self, name: str) -> Float64[ndarray, "head"]:
        den = self.table.sums.den[self.half, :, self.index[name], 0]
        return np.broadcast_to(den, (len(self.table.heads),))

    def num_texts(self, name: str) -> Float64[ndarray, "head"]:
        """How many texts have rows that count."""
        return self.table.sums.spread(self.half)[1].num_texts[:, self.index[name]]

    def effective_texts(self, name: str) -> Float64[ndarray, "head"]:
        """Of how many texts of equal length the rows are worth: (sum n)^2 / sum n^2, from the replicates' counts."""
        if name not in self._texts:
            den = self.table.sums.den[self.half, :, self.index[name]]
            with np.errstate(invalid="ignore", divide="ignore"):
                # A Poisson weight has variance 1, so the replicates'
                # variance of a count is the sum of the texts' squares.
                worth = np.nan_to_num(den[:, 0] ** 2 / den[:, 1:].var(-1, ddof=1), posinf=0.0)
            self._texts[name] = np.broadcast_to(worth, (len(self.table.heads),))
        return self._texts[name]

    def above(self, name: str, chance: str) -> Above:
        """How far the scores of all heads are above a chance level on the same texts."""
        if (name, chance) not in self._above:
            shares = self.replicates(name), self.replicates(chance)
            difference = shares[0] - shares[1]
            spread = replicate_error(difference)
            # The spread of so many draws is a guess as well: no more degrees of freedom than there are replicates.
            freedom = np.minimum(self.effective_texts(name), REPLICATES) - 1
            tests = map(p_of_spread, difference[:, 0].tolist(), spread.tolist(), freedom.tolist())
            known = ~np.isnan(self.table.interval(name, self.half)[0]) & (spread > 0)
            low, high = share_difference_interval(shares[0], self._ends(name), shares[1], self._ends(chance))
            low, high = np.where(known, low, np.nan), np.where(known, high, np.nan)
            self._above[name, chance] = Above(np.array(list(tests)), np.maximum(low, -1.0), np.minimum(high, 1.0))
        return self._above[name, chance]

    def ratio_interval(self, name: str, most: str) -> tuple[Float64[ndarray, "head"], Float64[ndarray, "head"]]:
        """The interval of a figure's share of the most that it can be on the same texts, which it does not pass."""
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = self.replicates(name) / self.replicates(most)
        freedom = np.minimum(self.effective_texts(name), REPLICATES) - 1
        reach = t_95(freedom) * replicate_error(shares)
        reach = np.where(np.isnan(self.table.interval(name, self.half)[0]), np.nan, reach)
        return shares[:, 0] - reach, np.minimum(shares[:, 0] + reach, 1.0)

    def _ends(self, name: str) -> tuple[Float64[ndarray, "head"], Float64[ndarray, "head"]]:
        """Wilson's interval of a share, also of too few texts to show it; the share itself where all texts agree."""
        spread = Spread(*(part[:, self.index[name]] for part in self.table.sums.spread(self.half)[0]))
        low, high = wilson_interval(self.value(name), spread)
        return np.where(np.isnan(low), self.value(name), low), np.where(np.isnan(high), self.value(name), high)

    def claims(self, rule: Rule) -> list[Claim]:
        """The claim of every head by a rule: everything but the q-values, and what depends on them."""
        # All heads at once: asked head by head, 270 heads and 90 rules took columns of all heads 49,000 times.
        tested, score = rule.tested, self.value(rule.statistic)
        twins = {name: f"{rule.statistic}.{name}" for name in rule.chances}
        # A rule of places alone has no level by shuffled words: they stay where they are.
        counted = {name: self.num_queries(twin) > 0 for name, twin in twins.items()}
        levels = {name: self.get(twin) for name, twin in twins.items()}
        over = {name: self.above(tested, twins[name]) for name in twins if counted[name].any()}
        num_queries, num_texts = self.num_queries(tested), self.num_texts(tested)
        # By replicates, so that it is good to 14 %: never more than there are.
        effective_texts = np.minimum(self.effective_texts(tested), num_texts).tolist()
        low, high = (end.tolist() for end in self.table.interval(tested, self.half))
        unsunk, norm = self._given(rule, score), self.value(rule.norm) if rule.norm in self.index else None
        baselines, beyond = (
            {name: self.value(name).tolist() for name in names} for names in (rule.baselines, rule.beyond)
        )
        claims: list[Claim] = []
        for index, head in enumerate(self.table.heads):
            chances = {name: float(level[index]) for name, level in levels.items() if counted[name][index]}
            highest = max(chances, key=lambda name: chances[name], default=None)
            ends = (low[index], high[index])
            if highest is not None:
                ends = float(over[highest].low[index]), float(over[highest].high[index])
            claims.append(
                Claim(
                    head=head,
                    role=rule.role,
                    asks=rule.asks,
                    statistic=rule.statistic,
                    score=float(score[index]),
                    given=None if unsunk is None else _known(unsunk[index]),
                    norm=None if norm is None else _known(norm[index]),
                    chance=max(chances.values(), default=0.0),
                    chances=chances,
                    low=low[index],
                    high=high[index],
                    over_low=ends[0],
                    over_high=ends[1],
                    num_queries=int(num_queries[index]),
                    num_texts=int(num_texts[index]),
                    effective_texts=effective_texts[index],
                    baselines={name: values[index] for name, values in baselines.items()},
                    beyond={name: values[index] for name, values in beyond.items()},
                    # Against every chance level: the claim is that the score beats all of them, so the least sure one
                    # decides.
                    p_value=max((float(over[name].p_value[index]) for name in chances), default=1.0),
                    # Until `control` has seen all claims of all tables
                    # together: a q-value of some alone would promise too much.
                    q_value=1.0,
                    chosen_excess=-1.0,
                    chosen_distance=-1.0,
                    holds=False,
                )
            )
        return claims

    def _given(self, rule: Rule, score: Float64[ndarray, "head"]) -> Float64[ndarray, "head"] | None:
        """The score where sinks or special tokens do not compete, in the way that the rule defines it; NaN or None
        where it is not known."""
        if rule.given:
            return self.value(rule.given)
        if rule.unsunk in self.index:
            return self.value(rule.unsunk)
        if rule.unsunk != LEFT or SINK_RULE.statistic not in self.index:
            return None
        if self.table.sinks.first and "relabelled" in rule.chances:
            # Tokens that are chosen by what they are, of which the first may be one: what goes to it is both.
            return None
        free = 1 - self.get(SINK_RULE.statistic)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Both are estimates over rows, so their quotient may come out a little above all there is.
            return np.where(free > 0, np.minimum(1.0, score / free), np.nan)


class FailedCondition(NamedTuple):
    """A condition of a rule that figures fail: `value` does not reach `threshold`.

    `margin` is the constant of the rule that the threshold is made with: a share, a number, a factor or a distance.
    `guess` is the name of the fixed guess that was not beaten, where the condition is about one.
    """

    name: str
    value: float | int
    threshold: float | int
    margin: float | int
    guess: str = ""


def failed_conditions(claim: Claim, rule: Rule | None = None, *, half: int = REPORT) -> tuple[FailedCondition, ...]:
    """The conditions of a rule that one half's figures fail, in the order in which reports name them; () where none.

    Of conditions that imply each other the weakest that fails stands for the others. On the choosing half, half as many
    cases are enough, and the interval need not clear chance. Not among the conditions: what only the table of kinds
    knows (`Rule.by_kind`), and whether the other half bears the claim out.
    """
    rule = rule or rule_of(claim.statistic)
    failed: list[FailedCondition] = []

    def require(
        name: str, value: float | int, threshold: float | int, margin: float | None = None, guess: str = ""
    ) -> bool:
        # NaN fails nothing: a guess that was not counted is no guess to beat
        if value < threshold:
            failed.append(FailedCondition(name, value, threshold, threshold if margin is None else margin, guess))
        return not value < threshold

    require("cases", claim.num_queries, MIN_QUERIES if half == REPORT else MIN_QUERIES // 2)
    require("texts", claim.effective_texts, MIN_TEXTS)
    chance, score, tested = claim.chance, claim.score, claim.tested
    if rule.given:
        require("right answers", tested, rule.floor)
        require("right answers among all tokens", score, MIN_GIVEN_SCORE)
        if require("above chance by points", tested, chance + OVER_BASELINE_BY, OVER_BASELINE_BY):
            require("distance from chance", distance(tested, chance), MIN_DISTANCE)
        for name, value in claim.baselines.items():
            if require("above guess by factor", tested, OVER_BASELINE * value, OVER_BASELINE, name):
                require("above guess by points", tested, OVER_BASELINE_BY + value, OVER_BASELINE_BY, name)
        where_guess_fails = [value for name, value in claim.beyond.items() if ".off_" in name and not np.isnan(value)]
        even = claim.chances.get("uniform", 0.0)
        if where_guess_fails and not where_guess_fails[0] > even:
            failed.append(FailedCondition("where the guess fails", where_guess_fails[0], even, 0.0))
    else:
        # A sink takes what others do not: no share of the others' stands in for its own.
        rests = rule is SINK_RULE
        of_the_rest = 0.0 if claim.given is None or np.isnan(claim.given) else claim.given
        if rests or of_the_rest < MIN_GIVEN or score < MIN_GIVEN_SCORE:
            require("share of attention", score, rule.floor)
        if require("times chance", score, MIN_LIFT * chance, MIN_LIFT):
            enough = require("points of attention above chance", score, MIN_EXCESS + chance, MIN_EXCESS)
            # Where there is no interval (NaN), the q-value alone says that it is not chance.
            if enough and half == REPORT and not rests and claim.low <= MIN_LIFT_LOW * chance:
                bound = MIN_LIFT_LOW * chance
                failed.append(FailedCondition("interval above chance", claim.low, bound, MIN_LIFT_LOW))
    return tuple(failed)


def claims_of(table: HeadTable, rules: Sequence[Rule]) -> list[list[Claim]]:
    """Every claim of one table, a list for each head, with p-values; `control` adds q-values over several tables."""
    halves = Half(table, CHOOSE), Half(table, REPORT)
    by_rule: list[list[Claim]] = []
    for rule in rules:
        # A class of tokens must be favoured also where each of its kinds counts once, on both halves.
        favours = [half.favour for half in halves] if rule.by_kind else []
        favoured = [
            all(favour is not None and favour[head] >= MIN_FAVOUR for favour in favours)
            for head in range(len(table.heads))
        ]
        # Both halves are asked the same; only the reporting half's
        # figures are shown, since a head was chosen on the other.
        by_rule.append(
            [
                replace(
                    reported,
                    chosen_excess=chosen.excess,
                    chosen_distance=chosen.distance,
                    holds=is_favoured
                    and not np.isnan((chosen.tested, reported.tested)).any()
                    and not failed_conditions(chosen, rule, half=CHOOSE)
                    and not failed_conditions(reported, rule),
                )
                for is_favoured, chosen, reported in zip(favoured, *(half.claims(rule) for half in halves), strict=True)
            ]
        )
    return [list(of_head) for of_head in zip(*by_rule, strict=True)]


def control(claims: Sequence[Sequence[Claim]]) -> list[list[Claim]]:
    """The same with q-values over all of them (no query, no test), and `holds` only where that is low."""
    flat = [claim for of_head in claims for claim in of_head]
    tests = [index for index, claim in enumerate(flat) if claim.num_queries]
    q_values = dict(zip(tests, adjusted([flat[index].p_value for index in tests]), strict=True))
    controlled = iter(
        replace(claim, q_value=q_values.get(index, 1.0), holds=claim.holds and q_values.get(index, 1.0) <= MAX_FALSE)
        for index, claim in enumerate(flat)
    )
    return [[next(controlled) for _ in of_head] for of_head in claims]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


# ------------------------------------------------------------------------------------------------------------- in words

WORDS = {
    "cases": "under {margin} cases",
    "texts": "under {margin} independent texts",
    "share of attention": "under {margin:.0%} of all attention",
    "times chance": "under {margin:g} times chance",
    "points of attention above chance": "not {points:.0f} points above chance",
    "interval above chance": "interval reaches {margin:g} times chance",
    "right answers": "right in under {margin:.0%}",
    "right answers among all tokens": "under {margin:.0%} where special tokens may win",
    "above chance by points": "not {points:.0f} points above chance",
    "distance from chance": "under {margin:.0%} of the way from chance to always",
    "above guess by factor": "not {more:.0%} above the {guess}",
    "above guess by points": "not {points:.0f} points above the {guess}",
    "where the guess fails": "not above chance where the guess fails",
}
"""Each condition of `claims.failed_conditions` as reports write it."""

RULES_IN_WORDS = (
    f"Attention: enough of all, or {rules.MIN_GIVEN:.0%} of what no sink takes; {rules.MIN_LIFT:g} times chance and "
    f"{100 * rules.MIN_EXCESS:.0f} points more; the interval above {rules.MIN_LIFT_LOW:g} times chance. Syntax and "
    f"reference: {rules.MIN_QUERIES} cases, right in {rules.MIN_ACCURACY:.0%}, {100 * OVER_BASELINE_BY:.0f} points "
    f"above chance and a tenth of the way from chance to always, a tenth and {100 * OVER_BASELINE_BY:.0f} points above "
    f"every fixed guess, above chance also where that fails, and {rules.MIN_GIVEN_SCORE:.0%} where special tokens may "
    f"win."
)


def failing(claim: Claim) -> tuple[str, ...]:
    """In words each condition that a claim fails; () where it holds.

    Its figures are those of the reporting half. Where they satisfy all conditions, the choosing half's do not.
    """
    if claim.holds:
        return ()
    if math.isnan(claim.tested) or not claim.num_queries:
        return (rules.UNASKED,)
    words = [
        WORDS[condition.name].format(
            margin=condition.margin,
            points=100 * condition.margin,
            more=condition.margin - 1,
            guess=GUESSES.get(condition.guess.rpartition(".")[2], condition.guess),
        )
        for condition in failed_conditions(claim)
    ]
    if claim.q_value > MAX_FALSE:
        words.append(f"may be chance (q over {MAX_FALSE:g})")
    return tuple(words or ["the choosing half does not bear it out"])
