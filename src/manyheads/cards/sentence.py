"""The sentence of a card: what a head is, in plain words, chosen by rules from held-out evidence.

The rules, in their order; each clause has a fact with its number, chance level and command:

1. The label that `manyheads look` shows, which was chosen on one half of the texts and is reported on the other.
   Without one the sentence begins "No one thing". What a sink takes of a broad head's attention is said with it, from
   `MIN_DISTANCE` on, though it be under the half that a role needs.
2. What else it does, the surest first, at most `BESIDES`: another claim of `manyheads roles` that holds, and goes
   `MIN_DISTANCE` of the way from chance to always; a probe (random repeats, a fact far back) beyond chance with a score
   of at least `MIN_PROBE`. What follows from the label, or from a surer one, is not said again.
3. What it writes of a token that it looks at, by its weights: that token is promoted, or suppressed, beyond chance.
4. What is lost without it, beside random heads: the verdict of `manyheads ablate`.

A sentence says what was asked, and so what is known; it does not say that the head does nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from manyheads.cards.evidence import TEXTS, Loss, Measured
from manyheads.cards.head_card import Fact, rounded
from manyheads.heads import Head
from manyheads.roles import RULES, Claim, HeadRole, failing
from manyheads.roles.words import UNLABELLED, figure
from manyheads.statistics.defined import LOCAL

BESIDES = 2  # clauses beside the label
MIN_DISTANCE = 0.2  # of a further claim: a fifth of the way from chance to always
MIN_PROBE = 0.3
MOSTLY, OFTEN = 0.5, 0.3  # shares of all attention, in words
REPEATS = {
    "random repeats": ("where random tokens repeat, looks at what followed the earlier copy", "induction"),
    "random repeats, offset 0": ("where random tokens repeat, looks at the earlier copy", "duplicate token"),
    "retrieval": ("looks at a fact far back while the model writes it down", "retrieval"),
}
FOLLOWS = {
    "previous token": ("local",),
    "next token": ("local",),
    "self": ("local", "duplicate token"),
    "duplicate token": ("self",),
    "rare tokens": ("two rarest words", "rarest word"),
    "two rarest words": ("rare tokens", "rarest word"),
    "rarest word": ("rare tokens", "two rarest words"),
}
"""What a role makes likely by itself, and is not said again beside it."""
SOURCE = re.compile(r" \([^()]* et al\.\)")  # in a question, whose formula it goes by: the table has it
(NEAR,) = (rule.saying for rule in RULES if rule.role == "local")
BEHIND = f"the token itself and the {LOCAL} before it"
"""`NEAR` of a causal head, which sees nothing of the other way."""
AMONG_WORDS = ("rarest word", "two rarest words")
"""Roles whose share is not of attention, nor of all tokens: special tokens may well get the most."""
OF_COPIES = ("duplicate token", "induction")
"""Roles whose share is of the attention of tokens that have a copy to look for: others are not counted."""
OF_SINKS = ("sink", "first token", "separator")


class Clause(NamedTuple):
    """A part of the sentence, and the fact that it rests on."""

    words: str
    fact: Fact


def clauses_of(measured: Measured, head: Head, wrote: Clause | None) -> list[Clause]:
    """The clauses of a head's sentence, by the rules; none where nothing could be asked. `wrote`: that of rule 3."""
    role = None if measured.labels is None else measured.labels.role_of(head)
    besides = list(_besides(measured, head, "" if role is None else role.name))[:BESIDES]
    out = [] if role is None else [label_clause(measured, role, bool(besides))]
    out += besides
    if wrote is not None:
        out.append(wrote)
    if (loss := measured.losses.get(head)) is not None:
        out.append(loss_clause(measured, head, loss))
    return out


def sentence_of(clauses: Sequence[Clause], without: str) -> str:
    """The clauses as one sentence; `without`: what is said where there are none."""
    words = [clause.words for clause in clauses if clause.words]
    if not words:
        return f"{without.removesuffix('.')}."
    sentence = "; ".join(words).replace("but; ", "but it ").replace("; and ", ", and ")
    return f"{sentence[:1].upper()}{sentence[1:]}."


def label_clause(measured: Measured, role: HeadRole, has_more: bool) -> Clause:
    """Rule 1. `has_more`: whether clauses of rule 2 follow."""
    evidence = role.evidence
    command = f"manyheads look --all --model {measured.name}"
    label = "no role" if role.name == UNLABELLED else role.name
    # Of entropy that is no chance level, but the most there could be: `words` says so.
    unit, chance = ("nats", None) if evidence.statistic == "entropy" else ("share", rounded(evidence.chance))
    fact = Fact(
        label, rounded(evidence.score), unit, chance, rounded(evidence.low), rounded(evidence.high),
        words=evidence.words, command=command,
    )  # fmt: skip
    share = figure(evidence.score, "share")
    if role.name == UNLABELLED:
        return Clause("no one thing on ordinary texts, but" if has_more else _nothing(measured, role.head), fact)
    if role.name == "broad":
        words = f"reads everything a little ({evidence.score / evidence.chance:.0%} of the largest entropy)"
        if (rests := _rests(_claims(measured, role.head))) is not None:
            words += f", but for the {figure(rests.tested, 'share')} of its attention that goes to a sink"
        return Clause(words, fact)
    if role.name.startswith("sink"):
        return Clause(f"rests on {role.name.removeprefix('sink ')} with {share} of its attention", fact)
    saying, chance = _near(measured, role.head, evidence.saying), figure(evidence.chance, "share")
    whose = "its attention where there is one" if role.name in OF_COPIES else "its attention"
    if evidence.score >= OFTEN:
        often = "mostly looks" if evidence.score >= MOSTLY else "often looks"
        return Clause(f"{often} at {saying} ({share} of {whose}, {chance} by chance)", fact)
    of_rest = f"; {figure(evidence.given, 'share')} of what does not go to a sink" if evidence.given is not None else ""
    return Clause(f"looks more than chance at {saying} ({share} of {whose}, {chance} by chance{of_rest})", fact)


def _nothing(measured: Measured, head: Head) -> str:
    """What is said of a head without a label of which no claim goes far enough."""
    if measured.roles is None:
        return "no one thing on ordinary texts"
    claims = _claims(measured, head)
    holding = [claim for claim in claims if claim.holds]
    of_words = sum(claim.role not in OF_SINKS for claim in holding)
    if (rests := _rests(holding)) is not None:
        answers = f"{of_words} of the questions about words, by little" if of_words else "no question about words"
        share = figure(rests.tested, "share")
        return f"no one thing: {share} of its attention goes to a sink, and it is an answer to {answers}"
    if holding:
        return f"no one thing: it is an answer to {len(holding)} of {len(claims)} questions, and to none by much"
    return f"no one thing: it is an answer to none of {len(claims)} questions"


def _claims(measured: Measured, head: Head) -> list[Claim]:
    """All claims about a head that could be asked, whether they hold or not."""
    roles = measured.roles
    return [] if roles is None else [claim for claim in roles.claims[roles.head_place(head)] if claim.num_queries]


def _rests(claims: Sequence[Claim]) -> Claim | None:
    """Of these the claim about a sink that goes furthest, where it goes far enough to be said."""
    of_sinks = [claim for claim in claims if claim.role in OF_SINKS and claim.distance >= MIN_DISTANCE]
    return max(of_sinks, key=lambda claim: claim.distance, default=None)


def _besides(measured: Measured, head: Head, label: str) -> Iterator[Clause]:
    """Rule 2: the surest first, each of another kind."""
    candidates = list[tuple[float, str, Clause]]()
    for claim in () if measured.roles is None else measured.roles.of_head(head):
        if claim.distance >= MIN_DISTANCE and claim.role not in OF_SINKS:
            candidates.append((claim.distance, claim.role, claim_clause(measured, head, claim)))
    for name, (words, kind) in REPEATS.items():
        probe = measured.probes.get(name)
        score = None if probe is None or probe.scores is None or head not in probe.scores.heads else probe.scores[head]
        if probe is None or score is None or score.score < MIN_PROBE or not probe.beats_chance(score):
            continue
        fact = Fact(
            name, rounded(score.score), "share", rounded(score.chance), rounded(score.low), rounded(score.high),
            words=probe.says, command=f'manyheads roles --probes --ask "{name}" --model {measured.name}',
        )  # fmt: skip
        numbers = f"{figure(score.score, 'share')}, {figure(score.chance, 'share')} by chance"
        candidates.append((score.score - score.chance, kind, Clause(f"{words} ({numbers})", fact)))
    covered = {label, *FOLLOWS.get(label, ())}
    for _, kind, clause in sorted(candidates, key=lambda entry: -entry[0]):
        if kind not in covered:
            covered |= {kind, *FOLLOWS.get(kind, ())}
            yield clause


def claim_clause(measured: Measured, head: Head, claim: Claim) -> Clause:
    """A claim that holds as a clause: its question without "Which head", and without a source."""
    words = _near(measured, head, SOURCE.sub("", claim.asks.removeprefix("Which head ").removesuffix("?")))
    of_rows = " of the tokens that look most at a word" if claim.role in AMONG_WORDS else ""
    numbers = f"{figure(claim.tested, 'share')}{of_rows}, {figure(claim.chance, 'share')} by chance"
    fact = claim_fact(claim, command=f'manyheads roles --ask "{claim.role}" --top 270 --model {measured.name}')
    return Clause(f"{words} ({numbers})", fact)


def _near(measured: Measured, head: Head, words: str) -> str:
    """These words; of a causal head without the other way, where it sees nothing."""
    return words.replace(NEAR, BEHIND) if measured.lm.spec.site_of(head).causal else words


def claim_fact(claim: Claim, command: str = "") -> Fact:
    """A claim as a line of a table, with what it misses where it does not hold."""
    return Fact(
        claim.role, rounded(claim.tested), "share", rounded(claim.chance), rounded(claim.low), rounded(claim.high),
        mark="holds" if claim.holds else "does not hold",
        words="holds" if claim.holds else f"does not hold: {', '.join(failing(claim))}", command=command,
    )  # fmt: skip


def loss_clause(measured: Measured, head: Head, loss: Loss) -> Clause:
    """Rule 4."""
    words = {
        "nothing": "without it nothing changes here",
        "barely": "and is hardly missed: at least half of the random heads matter as much",
        "more than most": "and what is lost without it does not set it apart from random heads",
        "stands out": "and is missed more than any of the random heads",
    }.get(loss.level, "")
    if loss.level == "stands out":
        if loss.low is not None and loss.high is not None and loss.low <= 0 <= loss.high:
            words = "and leaving it out changes more than leaving out any random head, but not on every text alike"
        elif loss.change < 0:
            words = "and without it the model does better here"
    return Clause(words, loss_fact(measured, head, loss))


def loss_fact(measured: Measured, head: Head, loss: Loss) -> Fact:
    """What is lost, as a line of a table."""
    command = f"manyheads ablate {head} --model {measured.name}"
    if measured.num_texts != TEXTS:  # the command reads as many
        command = f"mh.effect(lm, mh.Ablate({str(head)!r}), reading_of(lm).spread({measured.num_texts}))"
    return Fact(
        f"without it, {loss.unit}", rounded(loss.change), loss.unit, None, rounded(loss.low), rounded(loss.high),
        mark=loss.level, words=loss.words, command=command,
    )  # fmt: skip
