"""What each head does, in words: a label for each head, chosen on one half of the texts and reported on the other.

Choosing the best of many rules for each of many heads on the same texts that one reports would flatter every figure.
So the rules are tried on one half, what is reported comes from the other alone, and over all heads and rules together
the share of false claims is kept down (`roles.claims`). A label says what a head reads, not what is lost without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from jaxtyping import Float64
from numpy import ndarray

from manyheads.base import Json, brief, plain
from manyheads.corpora import reading_of
from manyheads.errors import StatisticError
from manyheads.heads import Head
from manyheads.measurement import measure
from manyheads.models import LoadedModel
from manyheads.progress import Progress
from manyheads.results import Shown
from manyheads.roles.claims import CHOOSE, REPORT, Claim, Half, claims_of, control
from manyheads.roles.rules import (
    LOCAL_RULE,
    MIN_BROAD,
    MIN_GIVEN,
    MIN_QUERIES,
    MIN_TEXTS,
    NEEDED,
    NORMS,
    RULES,
    SINK_RULE,
    Rule,
    distance,
    rule_of,
)
from manyheads.roles.words.role_table import NOT_EFFECT, ONLY_READS, UNLABELLED
from manyheads.statistics import DEFAULT, HeadTable, named, number
from manyheads.texts import Sinks

NO_EFFECT = f"{NOT_EFFECT}: a role says {ONLY_READS} (manyheads ablate)"
"""The note about labels in every result that holds some."""


@dataclass(frozen=True)
class Evidence:
    """Why a head has its label. Shares are 0 to 1; all figures are of the reporting half of the texts.

    `chance` is the highest chance level; `low` and `high` the 95 % interval of `score` over texts. For a mass, `given`
    is the share of what does not go to a sink (None where that is not told apart). For an accuracy, `score` and `given`
    are among words, and `words` says what is left where special tokens compete. `norm`: by weight x value norm.
    `q_value`: the share of false ones among all claims as sure as this. `words` says it in a sentence.
    """

    statistic: str
    score: float
    chance: float
    low: float
    high: float
    num_queries: int
    given: float | None
    words: str
    norm: float | None = None
    q_value: float | None = None

    @property
    def unit(self) -> str:
        """That of `score`, as the table of statistics has it; "" for a statistic of one's own."""
        defined = named(self.statistic)
        return "" if defined is None else defined.unit

    @property
    def saying(self) -> str:
        """What the head looks at, in the words of the rule that reads the statistic: "the token before"."""
        return rule_of(self.statistic).saying

    def to_dict(self) -> Json:
        """Plain data for JSON: the fields, None where there is no interval."""
        return {name: plain(value) for name, value in vars(self).items()}

    @property
    def distance(self) -> float:
        """How far the score is from its chance level (`rules.distance`): among several labels the furthest is the
        surest.

        0 of a broad head: its score is an entropy, which has no always.
        """
        return 0.0 if self.statistic == "entropy" else distance(self.score, self.chance)


@dataclass(frozen=True)
class HeadRole(Shown):
    """A head, the name of what it does ("unlabelled" where evidence is missing), and the evidence."""

    head: Head
    name: str
    evidence: Evidence

    @property
    def nearest(self) -> str:
        """What an unlabelled head came nearest to, in a word; "" where it has a label."""
        if self.name != UNLABELLED:
            return ""
        near = next((rule.role for rule in RULES if rule.statistic == self.evidence.statistic), "")
        return near.replace(" tokens", "").replace(" token", "")

    @property
    def on_words(self) -> bool:
        """Whether the role says which words the head looks at: it is no sink, not broad, and not unlabelled."""
        return self.name not in (UNLABELLED, "broad") and not self.name.startswith("sink")

    def __repr__(self) -> str:
        return brief(f"HeadRole({self.head}: {self.name}; {self.evidence.words})")

    def to_dict(self) -> Json:
        """Plain data for JSON: the head, its role, and the evidence."""
        return {"head": str(self.head), "role": self.name, **self.evidence.to_dict()}


def label(table: HeadTable) -> list[HeadRole]:
    """Roles from a table that holds the statistics in `rules.NEEDED`, and `kinds`.

    Errors: StatisticError names what it lacks.
    """
    check_table(table)
    rules = (*RULES, SINK_RULE)
    return label_heads(table, rules, control(claims_of(table, rules)))


def check_table(table: HeadTable) -> None:
    """Errors: StatisticError for a table that lacks what labels rest on."""
    if lacking := [name for name in NEEDED if name not in (*table.names, *NORMS)]:
        raise StatisticError(
            f"labelling needs {', '.join(lacking[:4])}{' ...' if lacking[4:] else ''}, which this table lacks: "
            f"measure with rules.NEEDED."
        )
    if table.kinds is None:
        raise StatisticError("labelling needs what each kind of token receives: measure with kinds=True.")


def label_heads(table: HeadTable, rules: Sequence[Rule], claims: Sequence[Sequence[Claim]]) -> list[HeadRole]:
    """One role a head from its claims, which stand in the rules' order.

    Of the claims that hold, the furthest from chance (`rules.distance`); `local` yields to finer ones, the sink to all.
    """
    halves = (Half(table, CHOOSE), Half(table, REPORT))
    # Both are longer in longer texts: what varies from text to text is their ratio.
    share = halves[REPORT].ratio_interval("entropy", "entropy.uniform")
    labels: list[HeadRole] = []
    for index, head in enumerate(table.heads):
        by_rule = list(zip(rules, claims[index], strict=True))
        sound = [(rule, claim) for rule, claim in by_rule if claim.holds and rule.names_heads and rule is not SINK_RULE]
        finer = [pair for pair in sound if pair[0] is not LOCAL_RULE] or sound
        sink = next((claim for rule, claim in by_rule if rule is SINK_RULE and claim.holds), None)
        if finer:
            # By the choosing half: to choose by the figures that are reported would flatter them.
            rule, claim = max(finer, key=lambda pair: pair[1].chosen_distance)
            labels.append(HeadRole(head, rule.role, evidence_of(rule, claim)))
        elif sink is not None:
            names = " and ".join(table.sinks.names)
            evidence = evidence_of(SINK_RULE, sink, f"{names}, the model's sink")
            labels.append(HeadRole(head, f"sink {names}", evidence))
        else:
            labels.append(_without_rule(head, index, by_rule, halves, share))
    return labels


def _without_rule(
    head: Head,
    index: int,
    by_rule: Sequence[tuple[Rule, Claim]],
    halves: tuple[Half, Half],
    share: tuple[Float64[ndarray, "head"], Float64[ndarray, "head"]],
) -> HeadRole:
    """Broad, or unlabelled with the figures of what it came nearest to. `share`: of the evenest, as an interval."""
    entropies, evenest = ([float(half.get(name)[index]) for half in halves] for name in ("entropy", "entropy.uniform"))
    evenness = [entropy / max(most, 1e-9) for entropy, most in zip(entropies, evenest, strict=True)]
    reported, most = halves[REPORT], evenest[REPORT]
    score = float(reported.value("entropy")[index])
    low, high = (most * float(end[index]) for end in share)
    rows = int(reported.num_queries("entropy")[index])
    enough = min(float(half.effective_texts("entropy")[index]) for half in halves) >= MIN_TEXTS
    if min(evenness) >= MIN_BROAD and rows >= MIN_QUERIES and enough:
        words = f"entropy {score:.2f} nats, {evenness[REPORT]:.0%} of the evenest possible ({most:.2f})"
        return HeadRole(head, "broad", Evidence("entropy", score, most, low, high, rows, None, words))
    candidates = [(rule, claim) for rule, claim in by_rule if rule.names_heads and rule is not SINK_RULE]
    rule, claim = max(candidates, key=lambda pair: pair[1].chosen_excess)
    evidence = evidence_of(rule, claim)
    why = f"closest to “{rule.role}”, not enough for a role"
    if evidence.num_queries < MIN_QUERIES:
        why = "too few queries for a role"
    elif not enough:
        why = f"too few independent texts for a role (at least {MIN_TEXTS} on each half)"
    return HeadRole(head, UNLABELLED, replace(evidence, words=f"{evidence.words}: {why}"))


def evidence_of(rule: Rule, claim: Claim, target: str = "") -> Evidence:
    """A claim as the evidence of a label, with its sentence; `target` is what the head reads, by default in the rule's
    words."""
    target = target or rule.saying
    if rule.given:
        words = f"its strongest key is {target} in {claim.score:.0%} of {claim.num_queries:,} cases, "
        words += f"{claim.tested:.0%} given that it looks at a word; {claim.chance:.0%} by chance"
        nearest = next((value for name, value in claim.beyond.items() if name.endswith(".rule")), 0.0)
        if nearest >= claim.tested:
            words += f"; the nearest word of one part of speech on one side is right in {nearest:.0%}"
    else:
        words = f"{claim.score:.0%} of its attention on {target}, {claim.chance:.0%} by chance"
        if claim.score < MIN_GIVEN <= (claim.given or 0) and rule is not SINK_RULE:
            words += f"; {claim.given:.0%} of what does not go to a sink"
    span = (claim.low, claim.high, claim.num_queries)
    return Evidence(claim.statistic, claim.tested, claim.chance, *span, claim.given, words, claim.norm, claim.q_value)


@dataclass(frozen=True)
class PageLabels(Shown):
    """A model's labels and default statistics on the bundled texts. `because` says whether they were remembered;
    `texts_are` whose texts these are, in words."""

    roles: tuple[HeadRole, ...]
    values: dict[str, dict[str, float | None]]
    sinks: Sinks
    notes: dict[str, str]
    num_texts: int
    num_tokens: int
    because: str
    texts_are: str = "bundled texts"

    def role_of(self, head: Head) -> HeadRole | None:
        """The label of a head; None where it has none (a head that reads another text)."""
        return next((role for role in self.roles if role.head == head), None)

    @property
    def surest_head(self) -> Head | None:
        """The head to look at first: the one of the surest label that is a role on words; None without labels."""
        pool = [role for role in self.roles if role.on_words] or self.roles
        return max(pool, key=lambda role: role.evidence.distance).head if pool else None

    def by_role(self) -> dict[str, list[HeadRole]]:
        """Role -> its heads, the strongest first. Specific roles come before general ones, unlabelled heads last."""
        order = [*(rule.role for rule in RULES), "sink", "broad", UNLABELLED]

        def place(name: str) -> int:
            ranks = (i for i, prefix in enumerate(order) if name == prefix or name.startswith(f"{prefix} "))
            return next(ranks, len(order))

        groups: dict[str, list[HeadRole]] = {}
        for role in sorted(self.roles, key=lambda role: -role.evidence.score):
            groups.setdefault(role.name, []).append(role)
        return {name: groups[name] for name in sorted(groups, key=place)}

    @property
    def basis(self) -> Json:
        """What the labels rest on, as plain data."""
        return {
            "texts": self.num_texts,
            "texts_are": self.texts_are,
            "tokens": self.num_tokens,
            "because": self.because,
            "sinks": list(self.sinks.names),
            "notes": dict(self.notes),
        }

    def to_dict(self) -> Json:
        """Plain data for JSON: `basis`, each head's label, and its default statistics by name."""
        return {**self.basis, "heads": [role.to_dict() for role in self.roles], "values": self.values}

    def __repr__(self) -> str:
        count = sum(role.name != UNLABELLED for role in self.roles)
        texts = f"{self.num_texts:,} {self.texts_are}, {self.num_tokens:,} tokens"
        return brief(f"PageLabels({count} of {len(self.roles)} heads named, {texts})")


def measured_page(lm: LoadedModel, *, progress: Progress | None = None) -> PageLabels:
    """The labels of a loaded model's heads, measured on the bundled texts."""
    reading = reading_of(lm.name)
    table = measure(lm, reading.texts(), tuple(dict.fromkeys((*NEEDED, *DEFAULT))), kinds=True, progress=progress)
    columns = {name: table.column(name) for name in DEFAULT}
    values = {
        str(head): {name: number(column[index]) for name, column in columns.items()}
        for index, head in enumerate(table.heads)
    }
    return PageLabels(
        tuple(label(table)), values, table.sinks, table.notes, table.sums.num_texts, table.sums.num_tokens,
        "measured now", reading.texts_are,
    )  # fmt: skip


def labels_to_data(labels: PageLabels) -> dict[str, Any]:
    """What `labels_from` reads. Not `to_dict`, in which an interval that is not known is no NaN."""
    rows = [{"head": str(role.head), "role": role.name, **asdict(role.evidence)} for role in labels.roles]
    return {**asdict(labels), "roles": rows}


def labels_from(data: Mapping[str, Any], because: str) -> PageLabels:
    """Labels from the fields of `PageLabels` as JSON has them, roles flat."""
    names = [field.name for field in fields(Evidence)]
    roles = tuple(
        HeadRole(Head.parse(row["head"]), row["role"], Evidence(**{name: row[name] for name in names}))
        for row in data["roles"]
    )
    stored = data["sinks"]
    sinks = Sinks(stored["first"], tuple(stored["ids"]), tuple(stored["names"]), stored["because"])
    counts = (data["num_texts"], data["num_tokens"])
    return PageLabels(roles, data["values"], sinks, data["notes"], *counts, because, data["texts_are"])
